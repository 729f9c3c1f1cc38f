/* The state of `check`, shared by its rooms: check.c (files and declarations), check_numbers.c (constant expressions),
 * check_values.c (expressions to operators), check_model.c (statements, repeats, definitions), check_settings.c (mesh,
 * parallel, train, machine), check_dump.c (types with layouts, lines of dumps). Every function reports its errors; a
 * value of 0, or false, means that it did. */
#ifndef DTM_FRONTEND_CHECKER_H
#define DTM_FRONTEND_CHECKER_H

#include "frontend/ast.h"
#include "frontend/check.h"

typedef struct dtm_const {
    dtm_string name;
    double value;
    dtm_span span;
} dtm_const;

typedef struct dtm_binding_of {
    dtm_string name;
    dtm_value value;
    dtm_span span;
} dtm_binding_of;

/* The names set in a model, a repeat's body or a definition. A definition sees nothing outside of it. */
typedef struct dtm_scope {
    struct dtm_scope *outer;
    bool is_definition;
    dtm_binding_of *items;
    size_t count, capacity;
} dtm_scope;

typedef struct dtm_checked_file {
    const char *path; /* as opened */
    dtm_string name;  /* as places name it: 0 for the root file */
    const dtm_ast *ast;
} dtm_checked_file;

typedef struct dtm_pending_carry {
    dtm_op op;
    dtm_name name;
} dtm_pending_carry;

typedef struct dtm_checker {
    dtm_context *context;
    dtm_arena *arena;
    dtm_module *module;
    const dtm_check_options *options;
    bool dump;
    dtm_checked_file *files;
    size_t n_files, cap_files;
    dtm_const *consts;
    size_t n_consts, cap_consts;
    const dtm_statement **defs;
    size_t n_defs, cap_defs;
    bool *define_used; /* by option -D */
    const dtm_statement *model, *mesh, *machine, *train;
    const dtm_statement **rank_models; /* of a dump of a pipeline: the programs of its ranks */
    size_t n_rank_models, cap_rank_models;
    const dtm_statement **parallels; /* of the file whose section counts */
    size_t n_parallels, cap_parallels;
    uint32_t parallel_file;
    /* in the model */
    dtm_scope *scope;
    dtm_region region;
    const char *path; /* of weights: "layer.{layer}.attn." */
    int definition_depth;
    int dropouts; /* sites so far */
    dtm_pending_carry *carries;
    size_t n_carries, cap_carries;
} dtm_checker;

/* ---- names ---- */

const char *dtm_checker_text(const dtm_checker *c, dtm_string s);
dtm_dim dtm_checker_dim(dtm_checker *c, dtm_name name);      /* 0 after E0201 */
/* The same where one of these words might stand, which may be what was meant: flags of the operator table. */
dtm_dim dtm_checker_dim_or(dtm_checker *c, dtm_name name, const char *words);
/* The words of a list in the operator table ("causal", "base=10000 part"), less what follows `=`; at most DTM_MAX_NUMBERS. */
size_t dtm_checker_words(dtm_checker *c, const char *list, dtm_string *out);
uint8_t dtm_checker_axis(dtm_checker *c, dtm_name name);     /* DTM_NO_AXIS after E0202 */
dtm_place dtm_checker_place(const dtm_checker *c, dtm_span span);

/* ---- numbers ---- */

/* Whether the expression is a number known now (numbers, dims, consts, arithmetic); reports nothing if it is not. */
bool dtm_checker_is_number(dtm_checker *c, const dtm_expr *expr);
bool dtm_checker_number(dtm_checker *c, const dtm_expr *expr, double *value);
bool dtm_checker_integer(dtm_checker *c, const dtm_expr *expr, int64_t least, const char *what, int64_t *value);
/* The count of a repeat that stands in the region at hand. */
bool dtm_checker_copies(dtm_checker *c, const dtm_expr *expr, int64_t *copies);

/* ---- values ---- */

/* The value of an expression; what it makes is named after `name` ("q", then "q.dot" for what is nested). */
dtm_value dtm_checker_value(dtm_checker *c, const dtm_expr *expr, const char *name);
/* An operator with its attributes and operands read off a call or an infix expression. */
typedef struct dtm_read_call {
    dtm_op_kind kind;
    dtm_attributes attributes;
    dtm_value operands[64];
    uint32_t n_operands;
    dtm_name carried; /* carry in a dump: the operand that is defined later */
} dtm_read_call;
/* `result_dtype`: of literals that have no neighbour (dumps). */
bool dtm_checker_call(dtm_checker *c, const dtm_expr *expr, const char *name, dtm_dtype result_dtype, dtm_read_call *call);
const dtm_statement *dtm_checker_definition(const dtm_checker *c, const dtm_expr *expr);
bool dtm_checker_type(dtm_checker *c, const dtm_type_expr *type, dtm_dtype fallback, dtm_type *out);
dtm_builder dtm_checker_builder(dtm_checker *c, dtm_span span);

/* ---- scopes, statements ---- */

dtm_value dtm_scope_find(const dtm_scope *scope, dtm_string name);
void dtm_scope_set(dtm_checker *c, dtm_name name, dtm_value value);
bool dtm_checker_model(dtm_checker *c);
bool dtm_checker_block(dtm_checker *c, const dtm_ast_block *block);
bool dtm_checker_weight(dtm_checker *c, const dtm_statement *s);
bool dtm_checker_input(dtm_checker *c, const dtm_statement *s);
/* One line of a dump. */
bool dtm_checker_dump_block(dtm_checker *c, const dtm_ast_block *block);
bool dtm_checker_finish_carries(dtm_checker *c);
bool dtm_checker_init(dtm_checker *c, const dtm_statement *s, dtm_attributes *attributes);

/* ---- sections ---- */

bool dtm_checker_mesh(dtm_checker *c);
bool dtm_checker_settings(dtm_checker *c);
/* E0601: the construct parses, and this version does not execute it. */
bool dtm_checker_refuse(dtm_checker *c, dtm_span span, const char *what, const char *help);

#endif
