/* The syntax tree of one .dtm file, source or dump: what was written, with spans, and nothing resolved. The parser
 * builds it, `check` turns it into a module, `dtmc fmt` prints it. Everything lives in the context's arena. The tree is
 * generic where the language is: a call is a name, arguments and clauses, so a new operator needs no change here; names
 * are not yet told apart (a name after `over` may be a dimension or a flag: the operator table knows). Trees are at
 * most DTM_AST_MAX_DEPTH deep, so walkers may recurse. */
#ifndef DTM_AST_H
#define DTM_AST_H

#include "ir/base.h"

#define DTM_AST_MAX_DEPTH 500 /* of expressions, and of blocks and brackets in each other */

/* A name as written; in dumps it may have dots (`p.term`), in sources only paths and axes (`layer.x`, `dp.tp`) do. */
typedef struct dtm_name {
    dtm_string text;
    dtm_span span;
} dtm_name;

typedef struct dtm_names {
    dtm_name *items;
    size_t count, capacity;
} dtm_names;

/* ---- expressions ---- */

typedef struct dtm_expr dtm_expr;

typedef enum dtm_expr_kind {
    DTM_EXPR_ERROR,  /* stands where a syntax error was reported; never in a tree without errors */
    DTM_EXPR_NUMBER, /* 42, 1e-5, 8k, 80 GB */
    DTM_EXPR_NAME,   /* a value, dim, const, dtype, flag, inf, 1f1b ... */
    DTM_EXPR_STRING,
    DTM_EXPR_NEGATE, /* -left */
    DTM_EXPR_BINARY, /* left OPERATOR right */
    DTM_EXPR_CALL,
    DTM_EXPR_RANGE, /* left..right, only as the value of a keyed argument: slice(x, K = a..b as R) */
    DTM_EXPR_PART,  /* left of right, only in a stored layout: [D, 0 of 3, H*K] */
    DTM_EXPR_LIST,  /* [3, 3, 2] */
} dtm_expr_kind;

typedef enum dtm_operator {
    DTM_OPERATOR_ADD,
    DTM_OPERATOR_SUBTRACT,
    DTM_OPERATOR_MULTIPLY,
    DTM_OPERATOR_DIVIDE,
    DTM_OPERATOR_REMAINDER,
    DTM_OPERATOR_EQUAL,
    DTM_OPERATOR_NOT_EQUAL,
    DTM_OPERATOR_LESS,
    DTM_OPERATOR_LESS_EQUAL,
    DTM_OPERATOR_GREATER,
    DTM_OPERATOR_GREATER_EQUAL,
} dtm_operator;

/* What a number with a unit measures; its value is then in the base unit named here. */
typedef enum dtm_unit {
    DTM_UNIT_NONE,
    DTM_UNIT_BYTES,
    DTM_UNIT_BYTES_PER_SECOND, /* Gbit/s too, divided by eight */
    DTM_UNIT_SECONDS,
    DTM_UNIT_FLOPS_PER_SECOND,
    DTM_UNIT_HERTZ,
    DTM_UNIT_WATTS,
} dtm_unit;

/* Words that begin a clause inside a call. DTM_WORD_PLAIN heads the arguments before any word. */
typedef enum dtm_word {
    DTM_WORD_PLAIN,
    DTM_WORD_OVER,
    DTM_WORD_AT,
    DTM_WORD_AS,
    DTM_WORD_WHERE,
    DTM_WORD_ON,
    DTM_WORD_FROM,
    DTM_WORD_WITH,
    DTM_WORD_USING,
    DTM_WORD_BY,
    DTM_WORD_PER,
    DTM_WORD_COUNT
} dtm_word;

/* One argument: `EXPR`, or `KEY = EXPR` (then key.text != 0). */
typedef struct dtm_argument {
    dtm_name key;
    dtm_expr *value;
} dtm_argument;

/* `over S, K, causal, window = 8`: a word and what follows it up to the next word. */
typedef struct dtm_clause {
    dtm_word word;
    dtm_span span; /* from the word to the last argument */
    dtm_argument *arguments;
    size_t count, capacity;
} dtm_clause;

/* NAME(arguments, word arguments, ...) [{ parameter -> body }] */
typedef struct dtm_call {
    dtm_name callee;
    dtm_clause *clauses; /* in order; clauses[0] is always the DTM_WORD_PLAIN one, maybe empty */
    size_t count, capacity;
    dtm_name parameter; /* of the lambda after experts(..); text 0 if there is none */
    dtm_expr *body;
} dtm_call;

struct dtm_expr {
    dtm_expr_kind kind;
    dtm_span span;
    uint32_t depth;     /* 1 for a leaf */
    bool parenthesised; /* written in parentheses (for fmt) */
    dtm_string text;    /* of NAME, of STRING (unescaped), of NUMBER as written with its unit */
    double value;       /* of NUMBER, suffix and unit applied */
    bool whole;         /* NUMBER is a whole number: `integer` is exact */
    uint64_t integer;
    dtm_unit unit;
    dtm_operator operator; /* of BINARY */
    dtm_expr *left, *right;
    dtm_call *call;
    dtm_expr **items; /* of LIST */
    size_t count, capacity;
};

/* ---- types ---- */

/* `tp` or `tp:2` (blocks are multiples of 2) in a layout */
typedef struct dtm_axis_use {
    dtm_name name;
    uint64_t multiple; /* 0 where not given */
} dtm_axis_use;

typedef struct dtm_axes {
    dtm_axis_use *items; /* major first */
    size_t count, capacity;
} dtm_axes;

/* `S`, `S=256`, `S=256@cp.tp:2~zigzag`, `S@-` */
typedef struct dtm_dim_use {
    dtm_name name;
    dtm_span span;
    bool has_size;
    uint64_t size;
    dtm_axes axes;
    bool whole;     /* @- : pinned as not split (keep) */
    dtm_name order; /* `zigzag`, or text 0 */
} dtm_dim_use;

/* `sum@dp.tp` after a type: a reduction that is still to be done over the axes */
typedef struct dtm_pending {
    dtm_name reduction;
    dtm_axes axes;
} dtm_pending;

typedef struct dtm_type_expr {
    dtm_span span;
    dtm_name dtype; /* text 0 where not written: weight w : [D, F] */
    dtm_dim_use *dims;
    size_t n_dims, cap_dims;
    dtm_pending *pending;
    size_t n_pending, cap_pending;
} dtm_type_expr;

/* ---- statements ---- */

typedef struct dtm_statement dtm_statement;

typedef struct dtm_ast_block {
    dtm_span span;  /* braces included; of the whole file for the outermost */
    dtm_statement **items;
    size_t count, capacity;
} dtm_ast_block;

typedef enum dtm_statement_kind {
    DTM_STATEMENT_ERROR, /* could not be read; its block, if any, is kept for its own errors */
    /* declarations */
    DTM_STATEMENT_USE,        /* use "text" */
    DTM_STATEMENT_DIM,        /* dim bindings */
    DTM_STATEMENT_CONST,      /* const bindings */
    DTM_STATEMENT_MESH,       /* mesh { bindings } */
    DTM_STATEMENT_MACHINE,    /* machine { block of ASSIGN and GROUP } */
    DTM_STATEMENT_DEF,        /* def name(parameters) { block } */
    DTM_STATEMENT_MODEL,      /* model name { block } */
    DTM_STATEMENT_PARALLEL,   /* parallel { block } */
    DTM_STATEMENT_TRAIN,      /* train { block of SETTING } */
    DTM_STATEMENT_GENERATE,   /* generate { block of SETTING } */
    /* in a model, def or region */
    DTM_STATEMENT_INPUT,      /* input targets : TYPE (all targets share the type) */
    DTM_STATEMENT_WEIGHT,     /* weight targets : TYPE = value, flags from text as stored */
    DTM_STATEMENT_STATE,      /* state target : TYPE [= value]    (dumps) */
    DTM_STATEMENT_ASSIGN,     /* targets = value; in a machine: NAME = value */
    DTM_STATEMENT_CALL,       /* value alone: store(w, w.new)    (dumps) */
    DTM_STATEMENT_LOSS,       /* loss [: TYPE] = value; targets[0] is `loss` */
    DTM_STATEMENT_REPORT,     /* report targets[0] = value */
    DTM_STATEMENT_OUTPUT,     /* output targets[0] = value */
    DTM_STATEMENT_RETURN,     /* return value */
    DTM_STATEMENT_REPEAT,     /* repeat name = value [from first] [reversed] { block } */
    DTM_STATEMENT_MICROBATCH, /* microbatch name = value { block }    (dumps) */
    DTM_STATEMENT_REGION,     /* forward | backward | update | fused [stage = N] { block }: name says which    (dumps) */
    /* in a machine */
    DTM_STATEMENT_GROUP,      /* name { block } */
    /* in train, generate; `arena BYTES` at the top of a dump */
    DTM_STATEMENT_SETTING,    /* name value */
    /* in parallel */
    DTM_STATEMENT_SPLITS,     /* name splits names [by cost] [using using [, zigzag]] [with settings] */
    DTM_STATEMENT_MICROBATCHES, /* microbatches value */
    DTM_STATEMENT_ZERO,       /* zero value on names */
    DTM_STATEMENT_KEEP,       /* keep name as layout */
    DTM_STATEMENT_RECOMPUTE,  /* recompute value [storing names] */
    DTM_STATEMENT_EXPECT,     /* expect [name] { expectations } */
} dtm_statement_kind;

/* What a statement defines; `_` drops the result. */
typedef struct dtm_target {
    dtm_name name;
    dtm_type_expr *type; /* NULL where not written */
} dtm_target;

typedef struct dtm_targets {
    dtm_target *items;
    size_t count, capacity;
} dtm_targets;

/* NAME = EXPR of dim, const, mesh and `with` */
typedef struct dtm_binding {
    dtm_name name;
    dtm_expr *value;
} dtm_binding;

typedef struct dtm_bindings {
    dtm_binding *items;
    size_t count, capacity;
} dtm_bindings;

/* `all_gather on tp <= 4`, `memory <= 80 GB` */
typedef struct dtm_expectation {
    dtm_span span;
    dtm_name what;
    dtm_axes axes; /* none: on any axis */
    bool at_most;  /* <=, else = */
    dtm_expr *value;
} dtm_expectation;

typedef struct dtm_expectations {
    dtm_expectation *items;
    size_t count, capacity;
} dtm_expectations;

/* What may follow a statement of a dump: named ".." at 4096 [at ..] @ "other.dtm":7 why ".." */
typedef struct dtm_suffix {
    dtm_string named;
    dtm_expr **at;   /* where its buffers lie, one after each `at`; n_at == 0 where not given */
    size_t n_at, cap_at;
    uint32_t line;   /* 0 where not given */
    dtm_string file; /* 0: the root file */
    dtm_string why;
    dtm_span span; /* of all of it; file 0 if there is none */
} dtm_suffix;

struct dtm_statement {
    dtm_statement_kind kind;
    dtm_span span;    /* all of it, with its block */
    dtm_span keyword; /* the first word */
    dtm_name name;
    dtm_names names;     /* SPLITS: dims; ZERO: axes; RECOMPUTE: stored; DEF: parameters */
    dtm_targets targets; /* INPUT .. OUTPUT */
    dtm_expr *value;
    dtm_string text; /* USE: the path; WEIGHT: the pattern after `from` */
    dtm_span text_span;
    dtm_ast_block *block;
    dtm_suffix suffix;
    /* weight */
    bool no_decay, frozen, exact;
    dtm_expr *stored; /* LIST after `as`; items may be PART; NULL where not written */
    /* repeat */
    dtm_expr *first; /* NULL where not written */
    bool reversed;
    /* dim, const, mesh; settings of splits; of a model or region in a dump: which rank or stage it is of */
    dtm_bindings bindings;
    /* splits */
    bool by_cost, zigzag;
    dtm_name using;
    /* keep: a type without dtype */
    dtm_type_expr *layout;
    /* expect */
    dtm_expectations expectations;
};

/* ---- the file ---- */

typedef struct dtm_comment {
    dtm_span span; /* from the `#` to the last byte before the line's end */
    bool own_line; /* nothing stands before it on its line */
} dtm_comment;

typedef struct dtm_ast {
    uint32_t file;
    dtm_name after; /* of a dump: the pass; text 0 for a source */
    dtm_ast_block *block;
    dtm_comment *comments; /* by position */
    size_t n_comments, cap_comments;
} dtm_ast;

/* Reads a registered file (see dtm_source_add). Errors are reported in the context (dtm_error_count tells); the tree
 * then lacks, or has as STATEMENT_ERROR, what could not be read. NULL only where nothing could be read at all. */
dtm_ast *dtm_parse(dtm_context *context, uint32_t file);

/* Prints the tree in canonical style with the file's comments: what `dtmc fmt` does. Only for a tree without errors.
 * Formatting what it printed changes nothing. */
void dtm_ast_format(dtm_context *context, const dtm_ast *ast, dtm_text *out);

/* The clause with that word, or NULL. */
const dtm_clause *dtm_call_clause(const dtm_call *call, dtm_word word);
/* The value of the argument KEY = .. in any clause, or NULL; where it is written goes to *key_span if not NULL. */
const dtm_expr *dtm_call_keyed(const dtm_call *call, dtm_string key, dtm_span *key_span);
/* How the language writes them: "over", "<=", "repeat". */
const char *dtm_word_text(dtm_word word);
const char *dtm_operator_text(dtm_operator operator);
const char *dtm_statement_kind_text(dtm_statement_kind kind);

#endif
