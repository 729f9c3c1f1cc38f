/* PTX text into flat code (ptx.h). Both dialects that NVRTC writes: NVVM 7's for sm_80 and sm_90, NVVM 20's for sm_100. A
 * form (an opcode with its modifiers and types) that the interpreter does not run is an error here, with its line. */
#include "ptx.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct family { char *name; int count, type; int32_t row; int scope; bool numbered; }; /* %r<40>, or one register */
struct label { char *name; int at, scope; };
struct fixup { char *name; int op, scope, line; };
enum { MAX_PARTS = 16, MAX_DEPTH = 64 };
struct parser {
    const char *start, *p, *end;
    int line;
    char *error;
    size_t error_size;
    jmp_buf failed;
    struct sim_module *module;
    struct sim_function *f;
    struct family *families;
    int n_families;
    struct label *labels;
    int n_labels;
    struct fixup *fixups;
    int n_fixups;
    int scope, n_scopes, parents[4096];
    int32_t sink; /* row where `_` goes */
    int loc;
    char *part[MAX_PARTS]; /* of the opcode, between dots; NULL: consumed */
    int n_parts;
    char opcode[128];
    int row_type; /* of the operand read last: its register's type, T_NONE for immediates */
};

static _Noreturn void fail(struct parser *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static _Noreturn void fail(struct parser *s, const char *format, ...) {
    int n = snprintf(s->error, s->error_size, "PTX line %d: ", s->line);
    va_list arguments;
    va_start(arguments, format);
    if (n >= 0 && (size_t)n < s->error_size)
        vsnprintf(s->error + n, s->error_size - (size_t)n, format, arguments);
    va_end(arguments);
    longjmp(s->failed, 1);
}

/* One more place in a list that grows by doubling. */
static void *more(void *list, int n, size_t size) {
    if (n & (n - 1) || (n && n < 8))
        return list;
    void *grown = realloc(list, size * (size_t)(n < 8 ? 8 : 2 * n));
    if (!grown)
        abort();
    return grown;
}
#define PUSH(list, n) ((list) = more((list), (n), sizeof *(list)), memset(&(list)[n], 0, sizeof *(list)), &(list)[(n)++])

static const struct { const char *name; uint8_t bytes, lanes; } type_table[N_TYPES] = {
    [PRED] = {"pred", 0}, [B8] = {"b8", 1}, [B16] = {"b16", 2}, [B32] = {"b32", 4}, [B64] = {"b64", 8}, [U8] = {"u8", 1},
    [U16] = {"u16", 2}, [U32] = {"u32", 4}, [U64] = {"u64", 8}, [S8] = {"s8", 1}, [S16] = {"s16", 2}, [S32] = {"s32", 4},
    [S64] = {"s64", 8}, [F16] = {"f16", 2}, [F16X2] = {"f16x2", 4}, [BF16] = {"bf16", 2}, [BF16X2] = {"bf16x2", 4},
    [F32] = {"f32", 4}, [F64] = {"f64", 8}, [E4M3] = {"e4m3", 1}, [E5M2] = {"e5m2", 1}, [E4M3X2] = {"e4m3x2", 2},
    [E5M2X2] = {"e5m2x2", 2}, [TF32] = {"tf32", 4},
};
int type_bytes(int type) { return type_table[type].bytes; }
static int type_named(const char *name) {
    for (int i = 1; i < N_TYPES; i++)
        if (strcmp(type_table[i].name, name) == 0)
            return i;
    return T_NONE;
}
static bool is_float(int t) { return t >= F16; }
static bool is_signed(int t) { return t >= S8 && t <= S64; }

/* ---- words ---- */

static void skip(struct parser *s) {
    for (; s->p < s->end; s->p++)
        if (*s->p == '\n') {
            s->line++;
        } else if (s->p + 1 < s->end && s->p[0] == '/' && s->p[1] == '/') {
            while (s->p < s->end && *s->p != '\n')
                s->p++;
            s->p--;
        } else if (s->p + 1 < s->end && s->p[0] == '/' && s->p[1] == '*') {
            for (s->p += 2; s->p + 1 < s->end && !(s->p[0] == '*' && s->p[1] == '/'); s->p++)
                s->line += *s->p == '\n';
            s->p++;
        } else if (!isspace((unsigned char)*s->p)) {
            return;
        }
    if (s->p > s->end)
        s->p = s->end;
}
static char peek(struct parser *s) {
    skip(s);
    return s->p < s->end ? *s->p : 0;
}
static bool accept(struct parser *s, char c) {
    if (peek(s) != c)
        return false;
    s->p++;
    return true;
}
static void expect(struct parser *s, char c) {
    if (!accept(s, c))
        fail(s, "`%c` expected, not `%.12s`", c, s->p < s->end ? s->p : "the end");
}
static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

/* A name, of the characters of names and those of `extra`. */
static char *word(struct parser *s, const char *extra, char out[128]) {
    skip(s);
    int n = 0;
    while (s->p < s->end && (in_word(*s->p) || (*s->p && strchr(extra, *s->p)))) {
        if (n == 127)
            fail(s, "a name of more than 127 characters");
        out[n++] = *s->p++;
    }
    out[n] = 0;
    if (!n)
        fail(s, "a name expected, not `%.12s`", s->p < s->end ? s->p : "the end");
    return out;
}

struct number { bool is_float; int64_t whole; double real; };
static bool at_number(struct parser *s) {
    char c = peek(s);
    return isdigit((unsigned char)c) || c == '-' || c == '+';
}
static struct number number(struct parser *s) {
    char text[128], *end;
    bool minus = accept(s, '-');
    if (!minus)
        accept(s, '+');
    word(s, ".", text);
    struct number n = {.is_float = true};
    uint64_t bits = 0;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D')) {
        bits = strtoull(text + 2, &end, 16);
        uint32_t low = (uint32_t)bits;
        float single;
        memcpy(&single, &low, 4);
        if (text[1] == 'f' || text[1] == 'F')
            n.real = single;
        else
            memcpy(&n.real, &bits, 8);
        n.whole = (int64_t)bits;
    } else if (strchr(text, '.')) {
        n.real = strtod(text, &end);
    } else {
        n.is_float = false;
        bits = strtoull(text, &end, 0);
        n.whole = (int64_t)(minus ? 0 - bits : bits);
        n.real = (double)n.whole;
    }
    if (*end == 'U')
        end++;
    if (*end || (minus && n.is_float))
        fail(s, "not a number: `%s`", text);
    return n;
}

/* ---- rows ---- */

static int32_t rows(struct parser *s, int type, int count) {
    struct sim_function *f = s->f;
    int64_t size = type == PRED ? 1 : type_bytes(type) == 8 ? 64 : 32;
    if (type != PRED)
        f->words = (f->words + 15) / 16 * 16; /* of whole cache lines */
    int32_t row = f->words;
    if (f->words + size * count > 1 << 24)
        fail(s, "more registers than 64 MiB a warp");
    f->words += (int32_t)(size * count);
    return row;
}
static int32_t constant(struct parser *s, uint64_t value, bool wide) {
    struct sim_function *f = s->f;
    for (int i = 0; i < f->n_constants; i++)
        if (f->constants[i].value == value && f->constants[i].wide == wide)
            return f->constants[i].row;
    int32_t row = rows(s, wide ? B64 : B32, 1);
    *PUSH(f->constants, f->n_constants) = (struct constant){.row = row, .value = value, .wide = wide};
    return row;
}

static bool in_scope(const struct parser *s, int scope, int from) {
    for (; from != scope; from = s->parents[from])
        if (!from)
            return false;
    return true;
}
static const struct family *register_named(struct parser *s, const char *name, int *number_of) {
    size_t n = strlen(name), digits = n;
    while (digits && isdigit((unsigned char)name[digits - 1]))
        digits--;
    int index = digits < n && n - digits < 9 ? atoi(name + digits) : -1;
    for (int i = s->n_families - 1; i >= 0; i--) {
        const struct family *f = &s->families[i];
        if (!in_scope(s, f->scope, s->scope))
            continue;
        *number_of = f->numbered ? index : 0;
        if (f->numbered ? index >= 0 && index < f->count && strlen(f->name) == digits && memcmp(f->name, name, digits) == 0
                        : strcmp(f->name, name) == 0)
            return f;
    }
    return NULL;
}
static const struct variable *variable_named(struct parser *s, const char *name) {
    for (int i = s->module->n_variables - 1; i >= 0; i--) {
        const struct variable *v = &s->module->variables[i];
        if (strcmp(v->name, name) == 0 && (v->scope < 0 || in_scope(s, v->scope, s->scope)))
            return v;
    }
    return NULL;
}
static uint64_t address_of(const struct variable *v) {
    return v->space == SHARED || v->space == LOCAL ? v->at : (uint64_t)(uintptr_t)v->bytes;
}
static const char *const special_names[N_SPECIALS] = {
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y",
    "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%smid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt",
    "%lanemask_ge", "%gridid", "%dynamic_smem_size", "%total_smem_size",
};

/* The row of a name: of a register, a special register, or of the constant that a variable's address is. */
static int32_t named_row(struct parser *s, const char *name, bool wide) {
    int index;
    const struct family *f = register_named(s, name, &index);
    s->row_type = T_NONE;
    if (f) {
        s->row_type = f->type;
        return f->row + index * (f->type == PRED ? 1 : type_bytes(f->type) == 8 ? 64 : 32);
    }
    for (int i = 0; i < N_SPECIALS; i++)
        if (strcmp(special_names[i], name) == 0) {
            s->row_type = U32;
            if (s->f->specials[i] < 0)
                s->f->specials[i] = rows(s, B32, 1);
            return s->f->specials[i];
        }
    if (strcmp(name, "WARP_SZ") == 0)
        return constant(s, 32, wide);
    const struct variable *v = variable_named(s, name);
    for (int i = 0; !v && i < s->f->n_params; i++)
        if (strcmp(s->f->param_names[i], name) == 0)
            return constant(s, s->f->params[i].offset, wide);
    if (!v)
        fail(s, "`%s` is declared nowhere", name);
    int64_t more_bytes = 0;
    if (accept(s, '+'))
        more_bytes = number(s).whole;
    return constant(s, address_of(v) + (uint64_t)more_bytes, wide);
}

static void width_fits(struct parser *s, int type, const char *name) {
    int have = s->row_type, bytes = type_bytes(type);
    if ((have == PRED) != (type == PRED) || (have != PRED && (type_bytes(have) == 8) != (bytes == 8)))
        fail(s, "`%s` is a register of .%s where .%s is meant", name, type_table[have].name, type_table[type].name);
}

static uint64_t number_as(struct parser *s, int type) {
    struct number n = number(s);
    uint64_t bits = (uint64_t)n.whole;
    if (type == F64) {
        memcpy(&bits, &n.real, 8);
    } else if (type == F32) {
        float single = (float)n.real;
        uint32_t low;
        memcpy(&low, &single, 4);
        bits = low;
    } else if (n.is_float && type_bytes(type) < 4) {
        fail(s, "a float where .%s is meant", type_table[type].name);
    }
    return type_bytes(type) == 8 ? bits : type_bytes(type) == 2 ? bits & 0xffff : bits & 0xffffffff;
}

/* A source of that type; of any width if `loose` (the register's type is in row_type). */
static int32_t source_of(struct parser *s, int type, bool loose) {
    char name[128];
    s->row_type = T_NONE;
    if (at_number(s)) {
        if (type == PRED)
            fail(s, "a number where a predicate is meant");
        return constant(s, number_as(s, type), type_bytes(type) == 8);
    }
    word(s, ".", name);
    int32_t row = named_row(s, name, type_bytes(type) == 8);
    if (!loose && s->row_type != T_NONE)
        width_fits(s, type, name);
    return row;
}
static int32_t source(struct parser *s, int type) { return source_of(s, type, false); }
static int32_t dest_of(struct parser *s, int type, bool loose) {
    char name[128];
    word(s, ".", name);
    s->row_type = type;
    if (strcmp(name, "_") == 0)
        return s->sink;
    int index;
    const struct family *f = register_named(s, name, &index);
    if (!f)
        fail(s, "`%s` is no register", name);
    int32_t row = named_row(s, name, false);
    if (!loose)
        width_fits(s, type, name);
    return row;
}
static int32_t dest(struct parser *s, int type) { return dest_of(s, type, false); }

static struct op *last(struct parser *s) { return &s->f->code[s->f->n_code - 1]; }
static void list(struct parser *s, int32_t row) { *PUSH(s->f->operands, s->f->n_operands) = row; }

/* `{a, b, ..}` or, for one, `a`: rows in the function's list. */
static int vector(struct parser *s, int type, bool to, bool loose) {
    int n = 0;
    if (!accept(s, '{')) {
        list(s, to ? dest_of(s, type, loose) : source_of(s, type, loose));
        return 1;
    }
    do {
        list(s, to ? dest_of(s, type, loose) : source_of(s, type, loose));
        n++;
    } while (accept(s, ','));
    expect(s, '}');
    return n;
}

/* `[register+4]`, `[variable]`, `[variable+-8]`, `[1024]`: row and immediate. */
static void address(struct parser *s, struct op *op) {
    char name[128];
    expect(s, '[');
    op->wide |= 1;
    if (at_number(s)) {
        op->a = constant(s, 0, true);
        op->immediate = number(s).whole;
    } else {
        int index;
        word(s, ".", name);
        const struct family *f = register_named(s, name, &index);
        const struct variable *v = f ? NULL : variable_named(s, name);
        if (v) {
            op->a = constant(s, 0, true);
            op->immediate = (int64_t)address_of(v);
            if (op->space == GENERIC && (v->space == SHARED || v->space == LOCAL))
                fail(s, "a generic access to `%s`", name);
        } else if (f && f->type != PRED) {
            op->a = named_row(s, name, true);
            if (type_bytes(f->type) != 8)
                op->wide &= ~1;
        } else {
            fail(s, "`%s` is no address", name);
        }
        if (accept(s, '+') || peek(s) == '-')
            op->immediate += number(s).whole;
    }
    expect(s, ']');
}

/* ---- opcodes ---- */

/* Consumes a part of the opcode. */
static bool take(struct parser *s, const char *part) {
    for (int i = 1; i < s->n_parts; i++)
        if (s->part[i] && strcmp(s->part[i], part) == 0) {
            s->part[i] = NULL;
            return true;
        }
    return false;
}
static int take_one(struct parser *s, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (take(s, names[i]))
            return i;
    return -1;
}
static int take_type(struct parser *s) { /* the first that is left */
    for (int i = 1; i < s->n_parts; i++)
        if (s->part[i] && type_named(s->part[i])) {
            int type = type_named(s->part[i]);
            s->part[i] = NULL;
            return type;
        }
    return T_NONE;
}
static _Noreturn void unknown(struct parser *s) { fail(s, "unknown form `%s`", s->opcode); }
static void all_taken(struct parser *s) {
    for (int i = 1; i < s->n_parts; i++)
        if (s->part[i])
            unknown(s);
}
static void need(struct parser *s, bool known) {
    if (!known)
        unknown(s);
}

/* Opcodes whose operands are registers of one type. Types and modifiers are what the interpreter runs; modifiers in
 * parentheses must be there. Of `operands`: d result, a source, w result of twice the width, c source of twice the width,
 * u source of 32 bits, D result of 32 bits, p predicate. `plain`: the sign does not matter. */
struct form { const char *name; enum base base; bool plain; const char *types, *modifiers, *operands; };
static const struct form forms[] = {
    {"abs", ABS, false, "s16 s32 s64", "", "da"},
    {"abs", ABS, false, "f32 f64 f16 f16x2 bf16 bf16x2", "ftz", "da"},
    {"neg", NEG, true, "s16 s32 s64", "", "da"},
    {"neg", NEG, false, "f32 f64 f16 f16x2 bf16 bf16x2", "ftz", "da"},
    {"add", ADD, true, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"add", ADD, false, "f32", "rn rz rm rp ftz sat", "daa"},
    {"add", ADD, false, "f64", "rn rz rm rp", "daa"},
    {"add", ADD, false, "f16 f16x2 bf16 bf16x2", "rn", "daa"},
    {"sub", SUB, true, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"sub", SUB, false, "f32", "rn rz rm rp ftz sat", "daa"},
    {"sub", SUB, false, "f64", "rn rz rm rp", "daa"},
    {"sub", SUB, false, "f16 f16x2 bf16 bf16x2", "rn", "daa"},
    {"mul", MUL_LO, true, "u16 s16 u32 s32 u64 s64", "(lo)", "daa"},
    {"mul", MUL_HI, false, "u16 s16 u32 s32 u64 s64", "(hi)", "daa"},
    {"mul", MUL_WIDE, false, "u16 s16 u32 s32", "(wide)", "waa"},
    {"mul", MUL, false, "f32", "rn rz rm rp ftz sat", "daa"},
    {"mul", MUL, false, "f64", "rn rz rm rp", "daa"},
    {"mul", MUL, false, "f16 f16x2 bf16 bf16x2", "rn", "daa"},
    {"mad", MAD_LO, true, "u16 s16 u32 s32 u64 s64", "(lo)", "daaa"},
    {"mad", MAD_HI, false, "u32 s32", "(hi)", "daaa"},
    {"mad", MAD_WIDE, false, "u16 s16 u32 s32", "(wide)", "waac"},
    {"mad", FMA, false, "f32", "rn rz rm rp ftz sat", "daaa"},
    {"mad", FMA, false, "f64", "rn rz rm rp", "daaa"},
    {"fma", FMA, false, "f32", "rn rz rm rp ftz sat", "daaa"},
    {"fma", FMA, false, "f64", "rn rz rm rp", "daaa"},
    {"fma", FMA, false, "f16 f16x2 bf16 bf16x2", "rn relu", "daaa"},
    {"div", DIV, false, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"div", DIV, false, "f32", "rn rz rm rp ftz approx full", "daa"},
    {"div", DIV, false, "f64", "rn rz rm rp", "daa"},
    {"rem", REM, false, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"min", MIN, false, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"min", MIN, false, "f32 f16 f16x2 bf16 bf16x2", "ftz NaN", "daa"},
    {"min", MIN, false, "f64", "", "daa"},
    {"max", MAX, false, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"max", MAX, false, "f32 f16 f16x2 bf16 bf16x2", "ftz NaN", "daa"},
    {"max", MAX, false, "f64", "", "daa"},
    {"and", AND, true, "b16 b32 b64 pred", "", "daa"},
    {"or", OR, true, "b16 b32 b64 pred", "", "daa"},
    {"xor", XOR, true, "b16 b32 b64 pred", "", "daa"},
    {"not", NOT, true, "b16 b32 b64 pred", "", "da"},
    {"cnot", CNOT, true, "b16 b32 b64", "", "da"},
    {"shl", SHL, true, "b16 b32 b64", "", "dau"},
    {"shr", SHR, false, "b16 b32 b64 u16 u32 u64 s16 s32 s64", "", "dau"},
    {"bfi", BFI, true, "b32 b64", "", "daauu"},
    {"bfe", BFE, false, "u32 s32 u64 s64", "", "dauu"},
    {"popc", POPC, true, "b32 b64", "", "Da"},
    {"clz", CLZ, true, "b32 b64", "", "Da"},
    {"brev", BREV, true, "b32 b64", "", "da"},
    {"bfind", BFIND, false, "u32 s32 u64 s64", "shiftamt", "Da"},
    {"copysign", COPYSIGN, false, "f32 f64", "", "daa"},
    {"selp", SELP, true, "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64", "", "daap"},
    {"ex2", EX2, false, "f32", "(approx) ftz", "da"},
    {"lg2", LG2, false, "f32", "(approx) ftz", "da"},
    {"sin", SIN, false, "f32", "(approx) ftz", "da"},
    {"cos", COS, false, "f32", "(approx) ftz", "da"},
    {"tanh", TANH, false, "f32", "(approx)", "da"},
    {"rcp", RCP, false, "f32", "approx rn rz rm rp ftz", "da"},
    {"rcp", RCP, false, "f64", "rn rz rm rp", "da"},
    {"rcp", RCP, false, "f64", "(approx) ftz", "da"},
    {"rsqrt", RSQRT, false, "f32 f64", "(approx) ftz", "da"},
    {"sqrt", SQRT, false, "f32", "approx rn rz rm rp ftz", "da"},
    {"sqrt", SQRT, false, "f64", "rn rz rm rp", "da"},
    {"prmt", PRMT, true, "b32", "", "daaa"},
    {"shf", SHF, true, "b32", "l r clamp wrap", "daau"},
    {"dp4a", DP4A, false, "", "", ""},
};

static bool listed(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += n)
        if ((at == names || at[-1] == ' ' || at[-1] == '(') && (at[n] == 0 || at[n] == ' ' || at[n] == ')'))
            return true;
    return false;
}
/* Whether the opcode has this form: nothing is consumed. */
static bool form_fits(struct parser *s, const struct form *form) {
    int types = 0;
    for (int i = 1; i < s->n_parts; i++) {
        if (type_named(s->part[i]) && listed(form->types, s->part[i]))
            types++;
        else if (!listed(form->modifiers, s->part[i]))
            return false;
    }
    const char *must = strchr(form->modifiers, '(');
    if (must) {
        bool there = false;
        for (int i = 1; i < s->n_parts; i++)
            there |= strncmp(must + 1, s->part[i], strlen(s->part[i])) == 0 && must[1 + strlen(s->part[i])] == ')';
        if (!there)
            return false;
    }
    return types == 1;
}

static void modifiers(struct parser *s, struct op *op) {
    static const char *const roundings[] = {"rn", "rz", "rm", "rp"};
    int r = take_one(s, roundings, 4);
    op->round = r < 0 ? RN : (uint8_t)r;
    static const struct { const char *name; int bit; } bits[] = {
        {"ftz", FTZ}, {"sat", SAT}, {"NaN", NANS}, {"approx", APPROX}, {"full", FULL | APPROX}, {"relu", RELU}, {"l", LEFT},
        {"clamp", CLAMP}, {"shiftamt", CLAMP}, {"lo", 0}, {"hi", 0}, {"wide", 0}, {"r", 0}, {"wrap", 0},
    };
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        if (take(s, bits[i].name))
            op->mods |= (uint16_t)bits[i].bit;
}

static int twice(int type) { return type == U16 ? U32 : type == S16 ? S32 : type == U32 ? U64 : S64; }
static int unsigned_of(int type) {
    int bytes = type_bytes(type);
    return type == PRED ? PRED : bytes == 8 ? U64 : bytes == 4 ? U32 : bytes == 2 ? U16 : U8;
}

static void simple(struct parser *s, struct op *op, const struct form *form) {
    int type = take_type(s);
    modifiers(s, op);
    all_taken(s);
    op->base = (uint8_t)form->base;
    int32_t *sources[] = {&op->a, &op->b, &op->c, &op->e};
    int n = 0;
    for (const char *o = form->operands; *o; o++) {
        if (o != form->operands)
            expect(s, ',');
        switch (*o) {
        case 'd': op->d = dest(s, type); break;
        case 'w': op->d = dest(s, twice(type)); break;
        case 'D': op->d = dest(s, U32); break;
        case 'c': *sources[n++] = source(s, twice(type)); break;
        case 'u': *sources[n++] = source(s, U32); break;
        case 'p': *sources[n++] = source(s, PRED); break;
        default: *sources[n++] = source(s, type); break;
        }
    }
    if (form->plain || (form->base == SHR && !is_signed(type)))
        type = unsigned_of(type);
    op->type = (uint8_t)type;
}

static void dp4a(struct parser *s, struct op *op) {
    op->type = (uint8_t)take_type(s);
    op->from = (uint8_t)take_type(s);
    need(s, (op->type == U32 || op->type == S32) && (op->from == U32 || op->from == S32));
    all_taken(s);
    op->base = DP4A;
    op->d = dest(s, U32), expect(s, ',');
    op->a = source(s, U32), expect(s, ',');
    op->b = source(s, U32), expect(s, ',');
    op->c = source(s, U32);
}

static void setp(struct parser *s, struct op *op) {
    static const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
                                        "lo", "ls", "hi", "hs"};
    static const char *const joins[] = {"", "and", "or", "xor"};
    int how = take_one(s, names, 18), type, join;
    type = take_type(s);
    join = take_one(s, joins + 1, 3) + 1;
    op->mods = take(s, "ftz") ? FTZ : 0;
    need(s, how >= 0 && type != T_NONE && type != PRED && type_bytes(type) > 1 && type != F16X2 && type != BF16X2);
    need(s, (!op->mods || type == F32) && (is_float(type) ? how < LO : how <= GE || how >= LO));
    all_taken(s);
    if (how >= LO) /* lo, ls, hi, hs: of unsigned numbers */
        how = (int[]){LT, LE, GT, GE}[how - LO];
    op->base = SETP;
    op->how = (uint8_t)how;
    op->type = (uint8_t)(is_float(type) || is_signed(type) ? type : unsigned_of(type));
    op->order = (uint8_t)join; /* how the predicate joins */
    op->d = dest(s, PRED);
    op->d2 = -1;
    if (accept(s, '|'))
        op->d2 = dest(s, PRED);
    expect(s, ','), op->a = source(s, type);
    expect(s, ','), op->b = source(s, type);
    if (join) {
        expect(s, ',');
        op->inverted |= accept(s, '!') ? 2 : 0;
        op->c = source(s, PRED);
    }
}

/* As setp, with a register for the result: all ones or zero, or 1.0 or zero. */
static void set(struct parser *s, struct op *op) {
    static const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    int how = take_one(s, names, 14), to = take_type(s), type = take_type(s);
    bool pair = type == F16X2 || type == BF16X2;
    op->mods = take(s, "ftz") ? FTZ : 0;
    need(s, how >= 0 && (!op->mods || type == F32) && (is_float(type) ? type <= F64 : type >= U16 && how <= GE));
    need(s, pair ? to == type || to == U32 : to == U32 || to == S32 || to == F32 || (to == type && (to == F16 || to == BF16)));
    all_taken(s);
    op->base = SET;
    op->how = (uint8_t)how;
    op->type = (uint8_t)type, op->from = (uint8_t)to;
    op->key = KEY(SET, T_NONE);
    op->d = dest(s, to), expect(s, ',');
    op->a = source(s, type), expect(s, ',');
    op->b = source(s, type);
}

static void mov(struct parser *s, struct op *op) {
    int type = take_type(s);
    need(s, type != T_NONE && type_bytes(type) != 1);
    all_taken(s);
    op->type = (uint8_t)unsigned_of(type);
    op->operands = (uint32_t)s->f->n_operands;
    if (peek(s) == '{') { /* unpack: {low, high} of a wider one */
        op->base = UNPACK;
        op->vector = 0;
        s->p++;
        int part = T_NONE;
        do {
            list(s, dest_of(s, B16, true));
            if (last(s)->vector++ == 0 || part == T_NONE)
                part = s->row_type;
        } while (accept(s, ','));
        expect(s, '}'), expect(s, ',');
        op->a = source(s, type);
        need(s, op->vector == 2 || op->vector == 4);
        return;
    }
    op->d = dest(s, type);
    expect(s, ',');
    if (peek(s) == '{') {
        op->base = PACK;
        op->vector = (uint8_t)vector(s, B16, false, true);
        need(s, op->vector == 2 || op->vector == 4);
        return;
    }
    op->base = MOV;
    op->a = source(s, type);
}

static void cvt(struct parser *s, struct op *op) {
    static const char *const whole[] = {"rni", "rzi", "rmi", "rpi"};
    op->type = (uint8_t)take_type(s);
    op->from = (uint8_t)take_type(s);
    int r = take_one(s, whole, 4);
    bool satfinite = take(s, "satfinite");
    if (take(s, "rna")) {
        need(s, op->type == TF32 && op->from == F32);
        op->round = 4;
    } else {
        modifiers(s, op);
    }
    if (r >= 0) {
        op->mods |= TOINT;
        op->round = (uint8_t)r;
    }
    need(s, op->type && op->from && op->type != PRED && op->from != PRED && !(op->mods & ~(FTZ | SAT | TOINT | RELU)));
    bool pair = op->type == F16X2 || op->type == BF16X2 || op->type == E4M3X2 || op->type == E5M2X2;
    bool small = op->from == E4M3X2 || op->from == E5M2X2;
    need(s, !pair || op->from == F32 || (op->from == F16X2 && (op->type == E4M3X2 || op->type == E5M2X2)) ||
                (small && op->type == F16X2));
    need(s, !small || op->type == F16X2);
    need(s, op->type != E4M3 && op->type != E5M2 && op->from != E4M3 && op->from != E5M2 && op->from != TF32);
    need(s, pair || small || (op->from != F16X2 && op->from != BF16X2));
    need(s, satfinite == (op->type == E4M3X2 || op->type == E5M2X2)); /* the only ones with it that are known */
    all_taken(s);
    op->base = CVT;
    op->d = dest_of(s, op->type, true);
    op->wide |= type_bytes(s->row_type) == 8 ? 2 : 0;
    expect(s, ',');
    op->a = source_of(s, op->from, true);
    op->wide |= s->row_type ? type_bytes(s->row_type) == 8 : type_bytes(op->from) == 8;
    op->vector = 1;
    if (pair && op->from == F32) {
        expect(s, ',');
        op->b = source(s, F32);
        op->vector = 2;
    }
    /* the common ones by keys of their own */
    bool moves = !op->mods && !is_float(op->type) && !is_float(op->from);
    if (moves && type_bytes(op->type) == 8 && type_bytes(op->from) == 4 && (op->wide == 2))
        op->key = KEY(CVT, is_signed(op->from) ? S64 : U64);
    else if (moves && type_bytes(op->type) == 4 && type_bytes(op->from) == 8 && op->wide == 1)
        op->key = KEY(CVT, U32);
    else
        op->key = KEY(CVT, T_NONE);
}

static void cvta(struct parser *s, struct op *op) {
    bool to = take(s, "to");
    static const char *const spaces[] = {"", "global", "shared", "local", "const", "param"};
    int space = take_one(s, spaces + 1, 5) + 1, type = take_type(s);
    need(s, space > 0 && type == U64);
    all_taken(s);
    op->base = COPY_ADDRESS;
    op->type = U64;
    uint64_t window = space == SHARED ? SHARED_WINDOW : space == LOCAL ? LOCAL_WINDOW : space == CONSTANT + 1 ? PARAM_WINDOW : 0;
    op->immediate = (int64_t)(to ? 0 - window : window);
    op->d = dest(s, U64), expect(s, ',');
    op->a = source(s, U64);
}

/* Scope, order and hints of caches: what remains of them is whether an access is ordered. */
static void ordering(struct parser *s, struct op *op) {
    static const char *const hints[] = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::no_allocate", "L1::evict_first", "L1::evict_last",
                                        "L1::evict_normal", "L1::evict_unchanged", "L2::64B", "L2::128B", "L2::256B"};
    while (take_one(s, hints, 15) >= 0) {}
    if (take(s, "volatile") || take(s, "relaxed"))
        op->order |= STRONG;
    if (take(s, "acquire"))
        op->order |= STRONG | ACQUIRE;
    if (take(s, "release"))
        op->order |= STRONG | RELEASE;
    if (take(s, "acq_rel"))
        op->order |= STRONG | ACQUIRE | RELEASE;
    static const char *const scopes[] = {"cta", "gpu", "sys", "cluster"};
    take_one(s, scopes, 4);
}
static void take_space(struct parser *s, struct op *op) {
    op->space = take(s, "global") ? GLOBAL : take(s, "shared") || take(s, "shared::cta") ? SHARED : take(s, "local") ? LOCAL
                : take(s, "const") ? CONSTANT : GENERIC;
}

static void ld_param(struct parser *s, struct op *op) {
    char name[128];
    struct sim_function *f = s->f;
    int index;
    expect(s, '[');
    word(s, "", name);
    const struct family *r = register_named(s, name, &index);
    if (r && type_bytes(r->type) == 8) { /* a place that is found at run time */
        op->a = named_row(s, name, true);
        op->immediate = accept(s, '+') || peek(s) == '-' ? number(s).whole : 0;
        op->wide = 1;
        expect(s, ']');
        return;
    }
    int i = 0;
    while (i < f->n_params && strcmp(f->param_names[i], name) != 0)
        i++;
    if (i == f->n_params)
        fail(s, "`%s` is no parameter", name);
    op->immediate = f->params[i].offset;
    if (accept(s, '+') || peek(s) == '-')
        op->immediate += number(s).whole;
    expect(s, ']');
    if (op->immediate < 0 || op->immediate + type_bytes(op->type) * op->vector > f->params[i].offset + f->params[i].size)
        fail(s, "beyond the parameter `%s`", name);
}

static void ld_st(struct parser *s, struct op *op, bool load) {
    bool param = load && take(s, "param");
    ordering(s, op);
    if (!param)
        take_space(s, op);
    if (load)
        take(s, "nc");
    op->vector = take(s, "v2") ? 2 : take(s, "v4") ? 4 : 1;
    op->type = (uint8_t)take_type(s);
    need(s, op->type && op->type != PRED && !(is_float(op->type) && op->type != F32 && op->type != F64));
    need(s, type_bytes(op->type) * op->vector <= 16 && (load || op->space != CONSTANT));
    all_taken(s);
    op->base = param ? LD_PARAM : load ? LD : ST;
    op->key = KEY(op->base, T_NONE);
    op->operands = (uint32_t)s->f->n_operands;
    if (!load)
        address(s, op), expect(s, ',');
    if (vector(s, op->type, load, true) != op->vector)
        fail(s, "as many registers as the vector has are meant");
    op->mods = s->row_type && type_bytes(s->row_type) == 8 ? CLAMP : 0; /* registers of 64 bits */
    if (!s->row_type && type_bytes(op->type) == 8)
        op->mods = CLAMP;
    if (type_bytes(op->type) == 8 && op->mods != CLAMP)
        fail(s, "a register of 32 bits where 64 are meant");
    if (load) {
        expect(s, ',');
        if (param)
            ld_param(s, op);
        else
            address(s, op);
    }
}

static void ldmatrix(struct parser *s, struct op *op) {
    need(s, take(s, "sync") && take(s, "aligned") && take(s, "m8n8") && (take(s, "shared") || take(s, "shared::cta")) && take(s, "b16"));
    op->vector = take(s, "x1") ? 1 : take(s, "x2") ? 2 : take(s, "x4") ? 4 : 0;
    need(s, op->vector);
    op->mods = take(s, "trans") ? TRANS : 0;
    all_taken(s);
    op->base = LDMATRIX;
    op->type = B32;
    op->space = SHARED;
    op->operands = (uint32_t)s->f->n_operands;
    if (vector(s, B32, true, false) != op->vector)
        fail(s, "as many registers as matrices are meant");
    expect(s, ',');
    address(s, op);
}

static void cp(struct parser *s, struct op *op) {
    need(s, take(s, "async"));
    if (take(s, "commit_group")) {
        op->base = CP_COMMIT;
    } else if (take(s, "wait_group")) {
        op->base = CP_WAIT;
        op->immediate = number(s).whole;
    } else if (take(s, "wait_all")) {
        op->base = CP_WAIT;
        op->immediate = -1;
    } else {
        bool all = take(s, "ca");
        need(s, all || take(s, "cg"));
        need(s, (take(s, "shared") || take(s, "shared::cta")) && take(s, "global"));
        static const char *const hints[] = {"L2::64B", "L2::128B", "L2::256B"};
        take_one(s, hints, 3);
        op->base = CP_ASYNC;
        op->space = SHARED;
        address(s, op);
        expect(s, ',');
        struct op from = {.space = GLOBAL};
        address(s, &from);
        op->b = from.a;
        op->wide |= (uint8_t)(from.wide << 1);
        op->e = (int32_t)from.immediate;
        if (from.immediate != op->e)
            fail(s, "an offset beyond 31 bits");
        expect(s, ',');
        op->immediate = op->immediate + 0;
        int64_t bytes = number(s).whole;
        if (bytes != 16 && (!all || (bytes != 4 && bytes != 8)))
            fail(s, "cp.async of %lld bytes", (long long)bytes);
        op->vector = (uint8_t)bytes;
        op->c = accept(s, ',') ? source(s, U32) : -1;
    }
    all_taken(s);
    op->key = KEY(op->base, T_NONE);
}

static void mma(struct parser *s, struct op *op) {
    need(s, take(s, "sync") && take(s, "aligned") && take(s, "row") && take(s, "col"));
    int shape = take(s, "m16n8k16") ? 16 : take(s, "m16n8k8") ? 8 : take(s, "m16n8k32") ? 32 : 0;
    int d = take_type(s), a = take_type(s), b = take_type(s), c = take_type(s);
    need(s, a == b && c == d && (d == F32 || (d == F16 && a == F16)));
    need(s, (shape == 16 && (a == BF16 || a == F16)) || (shape == 8 && (a == TF32 || a == BF16 || a == F16)) ||
                (shape == 32 && (a == E4M3 || a == E5M2)));
    all_taken(s);
    op->base = MMA;
    op->from = (uint8_t)a;
    op->type = (uint8_t)d;
    op->vector = (uint8_t)shape;
    op->operands = (uint32_t)s->f->n_operands;
    int n_c = d == F32 ? 4 : 2, n_a = shape == 8 && a != TF32 ? 2 : 4;
    int n[] = {n_c, n_a, n_a / 2, n_c};
    for (int i = 0; i < 4; i++) {
        if (i)
            expect(s, ',');
        if (vector(s, i == 0 || i == 3 ? (d == F32 ? F32 : B32) : B32, i == 0, false) != n[i])
            fail(s, "mma: %d registers are meant in place %d", n[i], i + 1);
    }
    op->key = KEY(MMA, T_NONE);
}

static void bar(struct parser *s, struct op *op) {
    bool name = strcmp(s->part[0], "barrier") == 0;
    take(s, "cta");
    if (!name && take(s, "warp")) {
        need(s, take(s, "sync"));
        op->base = BAR_WARP;
        op->a = source(s, U32);
    } else if (take(s, "red")) {
        op->base = BAR_RED;
        op->how = take(s, "popc") ? R_POPC : take(s, "and") ? R_AND : R_OR;
        need(s, op->how != R_OR || take(s, "or"));
        take(s, "aligned");
        int type = take_type(s);
        need(s, type == (op->how == R_POPC ? U32 : PRED));
        op->d = dest(s, type), expect(s, ',');
        op->a = source(s, U32), expect(s, ',');
        op->b = -1;
        if (peek(s) != '!') {
            int32_t row = source_of(s, U32, true);
            op->c = row;
            if (s->row_type != PRED) {
                op->b = row;
                expect(s, ',');
            }
        }
        if (peek(s) == '!' || op->b >= 0) {
            op->inverted |= accept(s, '!') ? 2 : 0;
            op->c = source(s, PRED);
        }
    } else {
        bool sync = take(s, "sync");
        need(s, sync || take(s, "arrive"));
        op->base = sync ? BAR : BAR_ARRIVE;
        op->mods = take(s, "aligned") || !name ? 0 : CLAMP; /* CLAMP: lanes may come apart */
        op->a = source(s, U32);
        op->b = accept(s, ',') ? source(s, U32) : -1;
        need(s, sync || op->b >= 0);
    }
    all_taken(s);
    op->key = KEY(op->base, T_NONE);
}

static void shfl(struct parser *s, struct op *op) {
    static const char *const names[] = {"up", "down", "bfly", "idx"};
    need(s, take(s, "sync"));
    int how = take_one(s, names, 4);
    need(s, how >= 0 && take_type(s) == B32);
    all_taken(s);
    op->base = SHFL;
    op->type = U32;
    op->how = (uint8_t)how;
    op->d = dest(s, B32);
    op->d2 = accept(s, '|') ? dest(s, PRED) : -1;
    expect(s, ','), op->a = source(s, B32);
    expect(s, ','), op->b = source(s, B32);
    expect(s, ','), op->c = source(s, B32);
    expect(s, ','), op->e = source(s, B32);
}

static void vote(struct parser *s, struct op *op) {
    static const char *const names[] = {"all", "any", "uni", "ballot"};
    need(s, take(s, "sync"));
    int how = take_one(s, names, 4), type = take_type(s);
    need(s, how >= 0 && type == (how == V_BALLOT ? B32 : PRED));
    all_taken(s);
    op->base = VOTE;
    op->type = U32;
    op->how = (uint8_t)how;
    op->d = dest(s, type), expect(s, ',');
    op->inverted |= accept(s, '!') ? 2 : 0;
    op->a = source(s, PRED), expect(s, ',');
    op->e = source(s, B32);
}

static void match(struct parser *s, struct op *op) {
    need(s, take(s, "sync"));
    bool all = take(s, "all");
    need(s, all || take(s, "any"));
    int type = take_type(s);
    need(s, type == B32 || type == B64);
    all_taken(s);
    op->base = MATCH;
    op->type = (uint8_t)unsigned_of(type);
    op->how = all;
    op->d = dest(s, B32);
    op->d2 = all && accept(s, '|') ? dest(s, PRED) : -1;
    expect(s, ','), op->a = source(s, type);
    expect(s, ','), op->e = source(s, B32);
}

static const char *const atomics[] = {"add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"};
static void redux(struct parser *s, struct op *op) {
    need(s, take(s, "sync"));
    int how = take_one(s, atomics, 8), type = take_type(s);
    need(s, how >= 0 && how != A_EXCH && how != A_CAS && (type == U32 || type == S32 || type == B32));
    all_taken(s);
    op->base = REDUX;
    op->type = (uint8_t)(type == B32 ? U32 : type);
    op->how = (uint8_t)how;
    op->d = dest(s, B32), expect(s, ',');
    op->a = source(s, B32), expect(s, ',');
    op->e = source(s, B32);
}

static void atom(struct parser *s, struct op *op, bool result) {
    ordering(s, op);
    take_space(s, op);
    int how = take_one(s, atomics, 10), type = take_type(s);
    need(s, how >= 0 && type && op->space != LOCAL && op->space != CONSTANT);
    if (how == A_ADD)
        need(s, type == U32 || type == S32 || type == U64 || type == F32 || type == F64);
    else
        need(s, !is_float(type) && type_bytes(type) >= 4);
    if (how == A_INC || how == A_DEC)
        need(s, type == U32);
    all_taken(s);
    op->base = ATOM;
    op->how = (uint8_t)how;
    op->type = (uint8_t)(is_signed(type) || is_float(type) ? type : unsigned_of(type));
    op->d = -1;
    if (result)
        op->d = dest(s, type), expect(s, ',');
    address(s, op);
    expect(s, ','), op->b = source(s, type);
    if (how == A_CAS)
        expect(s, ','), op->c = source(s, type);
    op->key = KEY(ATOM, T_NONE);
}

static void fence(struct parser *s, struct op *op, bool membar) {
    if (membar) {
        need(s, take(s, "gl") || take(s, "sys") || take(s, "cta"));
    } else {
        bool sc = take(s, "sc");
        need(s, sc || take(s, "acq_rel"));
        need(s, take(s, "gpu") || take(s, "sys") || take(s, "cta"));
    }
    all_taken(s);
    op->base = FENCE;
    op->key = KEY(FENCE, T_NONE);
}

static void bra(struct parser *s, struct op *op) {
    char name[128];
    take(s, "uni");
    all_taken(s);
    op->base = BRA;
    op->key = KEY(BRA, T_NONE);
    word(s, "", name);
    struct fixup *f = PUSH(s->fixups, s->n_fixups);
    *f = (struct fixup){.name = strdup(name), .op = s->f->n_code - 1, .scope = s->scope, .line = s->line};
}

static void other(struct parser *s, struct op *op) {
    static const struct { const char *name, *part; int base; bool operand; } names[] = {
        {"ret", NULL, RET, false}, {"exit", NULL, RET, false}, {"trap", NULL, TRAP, false}, {"nanosleep", "u32", NANOSLEEP, true},
        {"griddepcontrol", "wait", NOP, false}, {"griddepcontrol", "launch_dependents", NOP, false}, {"ret", "uni", RET, false},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(s->part[0], names[i].name) == 0 && (names[i].part ? take(s, names[i].part) : s->n_parts == 1)) {
            all_taken(s);
            op->base = (uint8_t)names[i].base;
            if (names[i].operand)
                op->a = source(s, U32);
            return;
        }
    if (strcmp(s->part[0], "activemask") == 0 && take(s, "b32")) {
        all_taken(s);
        op->base = ACTIVEMASK;
        op->d = dest(s, B32);
        return;
    }
    unknown(s);
}

static void instruction(struct parser *s, const char *opcode) {
    struct sim_function *f = s->f;
    struct op *op = last(s);
    snprintf(s->opcode, sizeof s->opcode, "%s", opcode);
    char parts[128], *at = parts;
    memcpy(parts, s->opcode, sizeof parts);
    s->n_parts = 0;
    for (char *dot; at; at = dot) {
        dot = strchr(at, '.');
        if (dot)
            *dot++ = 0;
        if (s->n_parts == MAX_PARTS)
            unknown(s);
        s->part[s->n_parts++] = at;
    }
    const char *n = s->part[0];
    const struct form *form = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, n) == 0 && *forms[i].operands) {
            if (!form_fits(s, &forms[i]))
                continue;
            form = &forms[i];
            break;
        }
#define IS(name) (strcmp(n, name) == 0)
    if (form) simple(s, op, form);
    else if (IS("dp4a")) dp4a(s, op);
    else if (IS("setp")) setp(s, op);
    else if (IS("set")) set(s, op);
    else if (IS("mov")) mov(s, op);
    else if (IS("cvt")) cvt(s, op);
    else if (IS("cvta")) cvta(s, op);
    else if (IS("ld")) ld_st(s, op, true);
    else if (IS("st")) ld_st(s, op, false);
    else if (IS("ldmatrix")) ldmatrix(s, op);
    else if (IS("cp")) cp(s, op);
    else if (IS("mma")) mma(s, op);
    else if (IS("bar") || IS("barrier")) bar(s, op);
    else if (IS("shfl")) shfl(s, op);
    else if (IS("vote")) vote(s, op);
    else if (IS("match")) match(s, op);
    else if (IS("redux")) redux(s, op);
    else if (IS("atom")) atom(s, op, true);
    else if (IS("red")) atom(s, op, false);
    else if (IS("membar")) fence(s, op, true);
    else if (IS("fence")) fence(s, op, false);
    else if (IS("bra")) bra(s, op);
    else other(s, op);
#undef IS
    if (!op->key)
        op->key = (uint16_t)KEY(op->base, op->type);
    expect(s, ';');
    (void)f;
}

/* ---- directives ---- */

static int declared_type(struct parser *s) {
    char name[128];
    expect(s, '.');
    int type = type_named(word(s, "", name));
    if (!type)
        fail(s, "unknown type .%s", name);
    return type;
}

static void reg(struct parser *s) {
    char name[128];
    int type = declared_type(s);
    do {
        word(s, "", name);
        struct family *f = PUSH(s->families, s->n_families);
        *f = (struct family){.name = strdup(name), .count = 1, .type = type, .scope = s->scope};
        if (accept(s, '<')) {
            int64_t count = number(s).whole;
            if (count < 0 || count > 1 << 20)
                fail(s, "%lld registers", (long long)count);
            f->count = (int)count, f->numbered = true;
            expect(s, '>');
        }
        f->row = rows(s, type, f->count);
    } while (accept(s, ','));
    expect(s, ';');
}

/* The initial value of a variable: `= 5`, `= {1, 2}`. */
static void initial(struct parser *s, struct variable *v, int type) {
    bool several = accept(s, '{');
    uint64_t at = 0;
    int bytes = type_bytes(type);
    do {
        if (!at_number(s))
            fail(s, "a variable that holds an address");
        uint64_t bits = number_as(s, type);
        if (at + (uint64_t)bytes > v->size)
            fail(s, "more values than `%s` has", v->name);
        memcpy(v->bytes + at, &bits, (size_t)bytes);
        at += (uint64_t)bytes;
    } while (several && accept(s, ','));
    if (several)
        expect(s, '}');
}

/* .shared, .local, .global, .const: `.align 4 .b8 name[32]`, after the space. */
static void variable(struct parser *s, enum space space, bool external) {
    char name[128];
    uint32_t align = 0;
    while (peek(s) == '.' && strncmp(s->p, ".align", 6) == 0) {
        s->p += 6;
        align = (uint32_t)number(s).whole;
        if (!align || align & (align - 1) || align > 4096)
            fail(s, "an alignment of %u", align);
    }
    int type = declared_type(s);
    uint64_t count = 1;
    bool open = false;
    word(s, "", name);
    while (accept(s, '[')) {
        if (accept(s, ']')) {
            open = true;
            continue;
        }
        int64_t n = number(s).whole;
        if (n < 0 || n > 1 << 30 || count * (uint64_t)n > 1 << 30)
            fail(s, "an array of %lld", (long long)n);
        count *= (uint64_t)n;
        expect(s, ']');
    }
    struct variable *v = PUSH(s->module->variables, s->module->n_variables);
    *v = (struct variable){.name = strdup(name), .space = space, .scope = s->f ? s->scope : -1, .external = open || external};
    v->align = align ? align : (uint32_t)type_bytes(type);
    v->size = open ? 0 : count * (uint64_t)type_bytes(type);
    if (space == GLOBAL || space == CONSTANT) {
        v->bytes = aligned_alloc(4096, (v->size + 4096) / 4096 * 4096);
        if (!v->bytes)
            abort();
        memset(v->bytes, 0, v->size);
        if (accept(s, '='))
            initial(s, v, type);
    }
    expect(s, ';');
    if (s->f && (space == SHARED || space == LOCAL) && !v->external) {
        uint32_t *used = space == SHARED ? &s->f->static_shared : &s->f->local;
        *used = (*used + v->align - 1) / v->align * v->align;
        v->at = MEMORY_START + *used;
        *used += (uint32_t)v->size;
    }
}

static int loc_like(const struct sim_function *f, struct loc l) {
    for (int i = f->n_locs - 1; i >= 0; i--)
        if (f->locs[i].file == l.file && f->locs[i].line == l.line && f->locs[i].column == l.column)
            return i;
    return -1;
}
static void loc(struct parser *s) {
    struct loc l = {.parent = -1};
    char name[128];
    l.file = (int)number(s).whole, l.line = (int)number(s).whole, l.column = (int)number(s).whole;
    struct loc at = {.parent = -1};
    while (accept(s, ',')) {
        word(s, "", name);
        while (*name == 'i' && strcmp(name, "inlined_at") != 0)
            word(s, "", name);
        if (strcmp(name, "function_name") == 0) {
            word(s, "", name);
            if (accept(s, '+'))
                number(s);
        }
        if (peek(s) == 'i' || strcmp(name, "inlined_at") == 0) {
            if (strcmp(name, "inlined_at") != 0)
                word(s, "", name);
            at.file = (int)number(s).whole, at.line = (int)number(s).whole, at.column = (int)number(s).whole;
            l.parent = loc_like(s->f, at);
            if (l.parent < 0) {
                l.parent = s->f->n_locs;
                *PUSH(s->f->locs, s->f->n_locs) = at;
            }
        }
    }
    if (l.line) { /* line 0 says that there is none: the one before stays */
        s->loc = s->f->n_locs;
        *PUSH(s->f->locs, s->f->n_locs) = l;
    }
}

static void skip_block(struct parser *s) {
    expect(s, '{');
    while (s->p < s->end && *s->p != '}')
        s->line += *s->p++ == '\n';
    expect(s, '}');
}

static void file(struct parser *s) {
    int64_t index = number(s).whole;
    expect(s, '"');
    const char *from = s->p;
    while (s->p < s->end && *s->p != '"' && *s->p != '\n')
        s->p++;
    if (index < 0 || index > 4096)
        fail(s, "file %lld", (long long)index);
    while (s->module->n_files <= index)
        PUSH(s->module->files, s->module->n_files);
    free(s->module->files[index]);
    s->module->files[index] = strndup(from, (size_t)(s->p - from));
    expect(s, '"');
    while (accept(s, ','))
        number(s);
}
static void pragma(struct parser *s) {
    expect(s, '"');
    while (s->p < s->end && *s->p != '"')
        s->p++;
    expect(s, '"'), expect(s, ';');
}

static void label_here(struct parser *s, const char *name) {
    for (int i = 0; i < s->n_labels; i++)
        if (s->labels[i].scope == s->scope && strcmp(s->labels[i].name, name) == 0)
            fail(s, "a second label `%s`", name);
    *PUSH(s->labels, s->n_labels) = (struct label){.name = strdup(name), .at = s->f->n_code, .scope = s->scope};
}

static void body_directive(struct parser *s) {
    char name[128];
    s->p++;
    word(s, "", name);
    if (strcmp(name, "reg") == 0) reg(s);
    else if (strcmp(name, "loc") == 0) loc(s);
    else if (strcmp(name, "shared") == 0) variable(s, SHARED, false);
    else if (strcmp(name, "local") == 0) variable(s, LOCAL, false);
    else if (strcmp(name, "global") == 0) variable(s, GLOBAL, false);
    else if (strcmp(name, "const") == 0) variable(s, CONSTANT, false);
    else if (strcmp(name, "pragma") == 0) pragma(s);
    else fail(s, "unknown directive .%s", name);
}

static void statement(struct parser *s) {
    char name[128];
    struct op op = {.guard = -1, .d2 = -1};
    if (accept(s, '@')) {
        op.guarded = 1;
        op.inverted = accept(s, '!');
        op.guard = source(s, PRED);
    }
    skip(s);
    op.line = s->line;
    op.loc = s->loc;
    word(s, ".:", name);
    size_t n = strlen(name);
    if (!op.guarded && name[n - 1] == ':') {
        name[n - 1] = 0;
        label_here(s, name);
        return;
    }
    if (!op.guarded && peek(s) == ':') {
        s->p++;
        label_here(s, name);
        return;
    }
    *PUSH(s->f->code, s->f->n_code) = op;
    instruction(s, name);
}

static void body(struct parser *s) {
    int depth = 1;
    expect(s, '{');
    while (depth) {
        char c = peek(s);
        if (!c)
            fail(s, "the function does not end");
        if (c == '{') {
            s->p++, depth++;
            if (s->n_scopes == 4096)
                fail(s, "more than 4096 scopes");
            s->parents[s->n_scopes] = s->scope;
            s->scope = s->n_scopes++;
        } else if (c == '}') {
            s->p++, depth--;
            if (depth)
                s->scope = s->parents[s->scope];
        } else if (c == ';') {
            s->p++;
        } else if (c == '.') {
            body_directive(s);
        } else {
            statement(s);
        }
    }
}

static void resolve(struct parser *s) {
    for (int i = 0; i < s->n_fixups; i++) {
        const struct fixup *f = &s->fixups[i];
        int found = -1;
        for (int scope = f->scope; found < 0; scope = s->parents[scope]) {
            for (int j = 0; j < s->n_labels; j++)
                if (s->labels[j].scope == scope && strcmp(s->labels[j].name, f->name) == 0)
                    found = s->labels[j].at;
            if (!scope)
                break;
        }
        if (found < 0) {
            s->line = f->line;
            fail(s, "no label `%s`", f->name);
        }
        s->f->code[f->op].target = (uint32_t)found;
    }
}

/* What is extern begins after what is static, in the greatest alignment. */
static void place_extern(struct parser *s) {
    struct sim_function *f = s->f;
    for (int i = 0; i < s->module->n_variables; i++) {
        struct variable *v = &s->module->variables[i];
        if (v->space == SHARED && v->scope < 0 && !v->external)
            v->at = MEMORY_START + f->static_shared, f->static_shared += (uint32_t)v->size;
    }
    for (int i = 0; i < s->module->n_variables; i++) {
        struct variable *v = &s->module->variables[i];
        if (v->space == SHARED && v->external)
            f->dynamic_shared = true;
    }
}

static void params(struct parser *s) {
    char name[128];
    struct sim_function *f = s->f;
    uint32_t at = 0;
    if (!accept(s, '(') || accept(s, ')'))
        return;
    do {
        expect(s, '.');
        if (strcmp(word(s, "", name), "param") != 0)
            fail(s, ".param expected");
        uint32_t align = 0;
        int type = T_NONE;
        while (accept(s, '.')) { /* .align 8 .b8, .u64 .ptr .global .align 1 */
            word(s, "", name);
            if (strcmp(name, "align") == 0) {
                uint32_t n = (uint32_t)number(s).whole;
                if (!type)
                    align = n;
            } else if (type_named(name)) {
                type = type_named(name);
            } else if (strcmp(name, "ptr") != 0 && strcmp(name, "global") != 0 && strcmp(name, "shared") != 0 &&
                       strcmp(name, "const") != 0 && strcmp(name, "local") != 0) {
                fail(s, "a parameter with .%s", name);
            }
        }
        word(s, "", name);
        uint64_t size = (uint64_t)type_bytes(type);
        if (!align)
            align = (uint32_t)size;
        if (accept(s, '[')) {
            size *= (uint64_t)number(s).whole;
            expect(s, ']');
        }
        if (!align || align & (align - 1) || size > 4096 * 8)
            fail(s, "the parameter `%s`", name);
        at = (at + align - 1) / align * align;
        int n = f->n_params;
        f->param_names = more(f->param_names, n, sizeof *f->param_names);
        f->param_names[n] = strdup(name);
        *PUSH(f->params, f->n_params) = (struct sim_param){.offset = at, .size = (uint32_t)size};
        at += (uint32_t)size;
    } while (accept(s, ','));
    expect(s, ')');
}

/* .maxntid 256, 1, 1 and the like, between parameters and body. */
static void tuning(struct parser *s) {
    char name[128];
    while (accept(s, '.')) {
        word(s, "", name);
        uint64_t product = 1;
        if (strcmp(name, "pragma") == 0) {
            pragma(s);
            continue;
        }
        while (at_number(s)) {
            product *= (uint64_t)number(s).whole;
            if (!accept(s, ','))
                break;
        }
        if (strcmp(name, "maxntid") == 0 || strcmp(name, "reqntid") == 0)
            s->f->max_threads = (uint32_t)product, s->f->exact_threads = *name == 'r';
        else if (strcmp(name, "minnctapersm") == 0)
            s->f->min_blocks = (uint32_t)product;
        else if (strcmp(name, "maxnreg") != 0)
            fail(s, "unknown directive .%s", name);
    }
}

static void forget_names(struct parser *s) {
    for (int i = 0; i < s->n_families; i++)
        free(s->families[i].name);
    for (int i = 0; i < s->n_labels; i++)
        free(s->labels[i].name);
    for (int i = 0; i < s->n_fixups; i++)
        free(s->fixups[i].name);
    free(s->families), free(s->labels), free(s->fixups);
    s->families = NULL, s->labels = NULL, s->fixups = NULL;
    s->n_families = s->n_labels = s->n_fixups = 0;
}
static void forget_variable(struct variable *v) { free(v->name), free(v->bytes); }

static void entry(struct parser *s) {
    char name[128];
    struct sim_function *f = calloc(1, sizeof *f), **end = &s->module->functions;
    if (!f)
        abort();
    while (*end)
        end = &(*end)->next;
    *end = s->f = f;
    f->module = s->module;
    for (int i = 0; i < N_SPECIALS; i++)
        f->specials[i] = -1;
    f->name = strdup(word(s, "", name));
    s->scope = 0, s->n_scopes = 1, s->loc = -1;
    params(s);
    tuning(s);
    s->sink = rows(s, B64, 1);
    place_extern(s);
    uint32_t module_shared = f->static_shared;
    (void)module_shared;
    /* Where the extern ones begin is known when all static ones are declared: those stand first in a body. */
    const char *at = s->p;
    int line = s->line;
    uint32_t first_static = f->static_shared;
    int n_variables = s->module->n_variables;
    for (int pass = 0; pass < 2; pass++) {
        s->p = at, s->line = line;
        body(s);
        resolve(s);
        if (pass == 0) {
            uint32_t start = f->static_shared, greatest = 16;
            bool again = false;
            for (int i = 0; i < n_variables; i++) {
                struct variable *v = &s->module->variables[i];
                if (v->space == SHARED && v->external) {
                    if (v->align > greatest)
                        greatest = v->align;
                    again = true;
                }
            }
            start = (start + greatest - 1) / greatest * greatest;
            for (int i = 0; i < n_variables; i++)
                if (s->module->variables[i].space == SHARED && s->module->variables[i].external)
                    s->module->variables[i].at = MEMORY_START + start;
            if (!again || start == first_static)
                if (!again)
                    break;
            /* once more, with the addresses known */
            while (s->module->n_variables > n_variables)
                forget_variable(&s->module->variables[--s->module->n_variables]);
            forget_names(s);
            free(f->code), free(f->operands), free(f->constants), free(f->locs);
            f->code = NULL, f->operands = NULL, f->constants = NULL, f->locs = NULL;
            f->n_code = f->n_operands = f->n_constants = f->n_locs = 0;
            f->static_shared = first_static, f->local = 0, f->words = 0;
            for (int i = 0; i < N_SPECIALS; i++)
                f->specials[i] = -1;
            s->scope = 0, s->n_scopes = 1, s->loc = -1;
            s->sink = rows(s, B64, 1);
        }
    }
    *PUSH(f->code, f->n_code) = (struct op){.base = RET, .key = KEY(RET, T_NONE), .guard = -1, .line = s->line, .loc = -1};
    s->f = NULL;
    for (int i = n_variables; i < s->module->n_variables; i++) /* seen in this function alone */
        s->module->variables[i].scope = 1 << 30;
    forget_names(s);
}

static void top(struct parser *s) {
    char name[128];
    bool external = false;
    expect(s, '.');
    for (;;) { /* linkage stands before */
        word(s, "", name);
        if (strcmp(name, "visible") != 0 && strcmp(name, "weak") != 0 && strcmp(name, "extern") != 0)
            break;
        external |= strcmp(name, "extern") == 0;
        expect(s, '.');
    }
    if (strcmp(name, "version") == 0) {
        word(s, ".", name);
    } else if (strcmp(name, "target") == 0) {
        do {
            word(s, "", name);
            if (strncmp(name, "sm_", 3) == 0)
                s->module->architecture = atoi(name + 3);
        } while (accept(s, ','));
    } else if (strcmp(name, "address_size") == 0) {
        if (number(s).whole != 64)
            fail(s, "addresses of other than 64 bits");
    } else if (strcmp(name, "entry") == 0) {
        entry(s);
    } else if (strcmp(name, "shared") == 0) {
        variable(s, SHARED, external);
    } else if (strcmp(name, "global") == 0 || strcmp(name, "const") == 0) {
        variable(s, *name == 'g' ? GLOBAL : CONSTANT, external);
    } else if (strcmp(name, "file") == 0) {
        file(s);
    } else if (strcmp(name, "section") == 0) {
        word(s, ".", name);
        skip_block(s);
    } else if (strcmp(name, "pragma") == 0) {
        pragma(s);
    } else {
        fail(s, "unknown directive .%s", name);
    }
}

struct sim_module *sim_module_load(const char *text, size_t length, char *error, size_t error_size) {
    struct parser *s = calloc(1, sizeof *s);
    struct sim_module *module = calloc(1, sizeof *module);
    if (!s || !module)
        abort();
    *s = (struct parser){.start = text, .p = text, .end = text + length, .line = 1, .error = error, .error_size = error_size,
                         .module = module};
    if (setjmp(s->failed)) {
        forget_names(s);
        sim_module_free(s->module);
        free(s);
        return NULL;
    }
    while (peek(s))
        top(s);
    struct sim_module *made = s->module;
    free(s);
    return made;
}

void sim_module_free(struct sim_module *m) {
    if (!m)
        return;
    for (struct sim_function *f = m->functions, *next; f; f = next) {
        next = f->next;
        for (int i = 0; i < f->n_params; i++)
            free(f->param_names[i]);
        free(f->name), free(f->code), free(f->operands), free(f->constants), free(f->params), free(f->param_names), free(f->locs);
        free(f);
    }
    for (int i = 0; i < m->n_variables; i++)
        forget_variable(&m->variables[i]);
    for (int i = 0; i < m->n_files; i++)
        free(m->files[i]);
    free(m->variables), free(m->files), free(m);
}

int sim_module_architecture(const struct sim_module *m) { return m->architecture; }
const struct sim_function *sim_function_find(const struct sim_module *m, const char *name) {
    const struct sim_function *f = m->functions;
    while (f && strcmp(f->name, name) != 0)
        f = f->next;
    return f;
}
const struct sim_function *sim_function_at(const struct sim_module *m, int index) {
    const struct sim_function *f = m->functions;
    while (f && index--)
        f = f->next;
    return f;
}
void *sim_module_variable(const struct sim_module *m, const char *name, size_t *size) {
    for (int i = 0; i < m->n_variables; i++)
        if (m->variables[i].scope < 0 && m->variables[i].bytes && strcmp(m->variables[i].name, name) == 0) {
            *size = m->variables[i].size;
            return m->variables[i].bytes;
        }
    return NULL;
}
struct sim_attributes sim_function_attributes(const struct sim_function *f) {
    struct sim_attributes a = {.name = f->name, .static_shared = f->static_shared, .local = f->local, .max_threads = f->max_threads,
                               .exact_threads = f->exact_threads, .min_blocks = f->min_blocks, .dynamic_shared = f->dynamic_shared,
                               .n_params = f->n_params, .params = f->params};
    if (f->n_params)
        a.params_size = f->params[f->n_params - 1].offset + f->params[f->n_params - 1].size;
    return a;
}
