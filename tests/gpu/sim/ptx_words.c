/* Words of PTX, and the rows that operands are. */
#include "parse.h"

#include <ctype.h>
#include <stdarg.h>

_Noreturn void ptx_fail(struct parser *s, const char *format, ...) {
    int n = snprintf(s->error, s->error_size, "PTX line %d: ", s->line);
    va_list arguments;
    va_start(arguments, format);
    if (n >= 0 && (size_t)n < s->error_size)
        vsnprintf(s->error + n, s->error_size - (size_t)n, format, arguments);
    va_end(arguments);
    longjmp(s->failed, 1);
}

/* One more place in a list that grows by doubling. */
void *ptx_more(void *list, int n, size_t size) {
    if (n & (n - 1) || (n && n < 8))
        return list;
    void *grown = realloc(list, size * (size_t)(n < 8 ? 8 : 2 * n));
    if (!grown)
        abort();
    return grown;
}

static const struct { const char *name; uint8_t bytes, lanes; } type_table[N_TYPES] = {
    [PRED] = {"pred", 0}, [B8] = {"b8", 1}, [B16] = {"b16", 2}, [B32] = {"b32", 4}, [B64] = {"b64", 8}, [U8] = {"u8", 1},
    [U16] = {"u16", 2}, [U32] = {"u32", 4}, [U64] = {"u64", 8}, [S8] = {"s8", 1}, [S16] = {"s16", 2}, [S32] = {"s32", 4},
    [S64] = {"s64", 8}, [F16] = {"f16", 2}, [F16X2] = {"f16x2", 4}, [BF16] = {"bf16", 2}, [BF16X2] = {"bf16x2", 4},
    [F32] = {"f32", 4}, [F64] = {"f64", 8}, [E4M3] = {"e4m3", 1}, [E5M2] = {"e5m2", 1}, [E4M3X2] = {"e4m3x2", 2},
    [E5M2X2] = {"e5m2x2", 2}, [TF32] = {"tf32", 4},
};
int type_bytes(int type) { return type_table[type].bytes; }
int ptx_type_named(const char *name) {
    for (int i = 1; i < N_TYPES; i++)
        if (strcmp(type_table[i].name, name) == 0)
            return i;
    return T_NONE;
}
bool ptx_is_float(int t) { return t >= F16; }
bool ptx_is_signed(int t) { return t >= S8 && t <= S64; }

/* The characters that a message shows. */
static int here(const struct parser *s) { return s->p >= s->end ? 7 : s->end - s->p < 12 ? (int)(s->end - s->p) : 12; }

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
char ptx_peek(struct parser *s) {
    skip(s);
    return s->p < s->end ? *s->p : 0;
}
bool ptx_accept(struct parser *s, char c) {
    if (ptx_peek(s) != c)
        return false;
    s->p++;
    return true;
}
void ptx_expect(struct parser *s, char c) {
    if (!ptx_accept(s, c))
        ptx_fail(s, "`%c` expected, not `%.*s`", c, here(s), s->p < s->end ? s->p : "the end");
}
static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

/* A name, of the characters of names and those of `extra`. */
char *ptx_word(struct parser *s, const char *extra, char out[128]) {
    skip(s);
    int n = 0;
    while (s->p < s->end && (in_word(*s->p) || (*s->p && strchr(extra, *s->p)))) {
        if (n == 127)
            ptx_fail(s, "a name of more than 127 characters");
        out[n++] = *s->p++;
    }
    out[n] = 0;
    if (!n)
        ptx_fail(s, "a name expected, not `%.*s`", here(s), s->p < s->end ? s->p : "the end");
    return out;
}

bool ptx_at_number(struct parser *s) {
    char c = ptx_peek(s);
    return isdigit((unsigned char)c) || c == '-' || c == '+';
}
struct number ptx_number(struct parser *s) {
    char text[128], *end;
    bool minus = ptx_accept(s, '-');
    if (!minus)
        ptx_accept(s, '+');
    ptx_word(s, ".", text);
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
        ptx_fail(s, "not a number: `%s`", text);
    return n;
}

/* ---- rows ---- */

int32_t ptx_rows(struct parser *s, int type, int count) {
    struct sim_function *f = s->f;
    int64_t size = type == PRED ? 1 : type_bytes(type) == 8 ? 64 : 32;
    if (type != PRED)
        f->words = (f->words + 15) / 16 * 16; /* of whole cache lines */
    int32_t row = f->words;
    if (f->words + size * count > 1 << 22)
        ptx_fail(s, "more registers than 16 MiB a warp");
    f->words += (int32_t)(size * count);
    return row;
}
int32_t ptx_constant(struct parser *s, uint64_t value, bool wide) {
    struct sim_function *f = s->f;
    for (int i = 0; i < f->n_constants; i++)
        if (f->constants[i].value == value && f->constants[i].wide == wide)
            return f->constants[i].row;
    int32_t row = ptx_rows(s, wide ? B64 : B32, 1);
    *PUSH(f->constants, f->n_constants) = (struct constant){.row = row, .value = value, .wide = wide};
    return row;
}

static bool in_scope(const struct parser *s, int scope, int from) {
    for (; from != scope; from = s->parents[from])
        if (!from)
            return false;
    return true;
}
const struct family *ptx_register_named(struct parser *s, const char *name, int *number_of) {
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
const struct variable *ptx_variable_named(struct parser *s, const char *name) {
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
int32_t ptx_named_row(struct parser *s, const char *name, bool wide) {
    int index;
    const struct family *f = ptx_register_named(s, name, &index);
    s->row_type = T_NONE;
    if (f) {
        s->row_type = f->type;
        return f->row + index * (f->type == PRED ? 1 : type_bytes(f->type) == 8 ? 64 : 32);
    }
    for (int i = 0; i < N_SPECIALS; i++)
        if (strcmp(special_names[i], name) == 0) {
            s->row_type = U32;
            if (s->f->specials[i] < 0)
                s->f->specials[i] = ptx_rows(s, B32, 1);
            return s->f->specials[i];
        }
    if (strcmp(name, "WARP_SZ") == 0)
        return ptx_constant(s, 32, wide);
    const struct variable *v = ptx_variable_named(s, name);
    for (int i = 0; !v && i < s->f->n_params; i++)
        if (strcmp(s->f->param_names[i], name) == 0)
            return ptx_constant(s, s->f->params[i].offset, wide);
    if (!v)
        ptx_fail(s, "`%s` is declared nowhere", name);
    int64_t more_bytes = 0;
    if (ptx_accept(s, '+'))
        more_bytes = ptx_number(s).whole;
    return ptx_constant(s, address_of(v) + (uint64_t)more_bytes, wide);
}

static void width_fits(struct parser *s, int type, const char *name) {
    int have = s->row_type, bytes = type_bytes(type);
    if ((have == PRED) != (type == PRED) || (have != PRED && (type_bytes(have) == 8) != (bytes == 8)))
        ptx_fail(s, "`%s` is a register of .%s where .%s is meant", name, type_table[have].name, type_table[type].name);
}

uint64_t ptx_number_as(struct parser *s, int type) {
    struct number n = ptx_number(s);
    uint64_t bits = (uint64_t)n.whole;
    if (type == F64) {
        memcpy(&bits, &n.real, 8);
    } else if (type == F32) {
        float single = (float)n.real;
        uint32_t low;
        memcpy(&low, &single, 4);
        bits = low;
    } else if (n.is_float && type_bytes(type) < 4) {
        ptx_fail(s, "a float where .%s is meant", type_table[type].name);
    }
    return type_bytes(type) == 8 ? bits : type_bytes(type) == 2 ? bits & 0xffff : bits & 0xffffffff;
}

/* A source of that type; of any width if `loose` (the register's type is in row_type). */
int32_t ptx_source_of(struct parser *s, int type, bool loose) {
    char name[128];
    s->row_type = T_NONE;
    if (ptx_at_number(s)) {
        if (type == PRED) /* a bit a lane */
            return ptx_constant(s, ptx_number_as(s, U32) ? UINT32_MAX : 0, false);
        return ptx_constant(s, ptx_number_as(s, type), type_bytes(type) == 8);
    }
    ptx_word(s, ".", name);
    int32_t row = ptx_named_row(s, name, type_bytes(type) == 8);
    if (!loose && s->row_type != T_NONE)
        width_fits(s, type, name);
    if (loose && s->row_type == PRED && type != PRED)
        ptx_fail(s, "`%s` is a predicate", name);
    return row;
}
int32_t ptx_source(struct parser *s, int type) { return ptx_source_of(s, type, false); }
int32_t ptx_dest_of(struct parser *s, int type, bool loose) {
    char name[128];
    ptx_word(s, ".", name);
    s->row_type = type;
    if (strcmp(name, "_") == 0)
        return s->sink;
    int index;
    const struct family *f = ptx_register_named(s, name, &index);
    if (!f)
        ptx_fail(s, "`%s` is no register", name);
    int32_t row = ptx_named_row(s, name, false);
    if (!loose)
        width_fits(s, type, name);
    else if (s->row_type == PRED)
        ptx_fail(s, "`%s` is a predicate", name);
    return row;
}
int32_t ptx_dest(struct parser *s, int type) { return ptx_dest_of(s, type, false); }

static void list(struct parser *s, int32_t row) { *PUSH(s->f->operands, s->f->n_operands) = row; }

/* `{a, b, ..}` or, for one, `a`: rows in the function's list, all of 64 bits (row_wide) or none. */
int ptx_vector(struct parser *s, int type, bool to, bool loose) {
    int n = 0;
    bool open = ptx_accept(s, '{');
    do {
        list(s, to ? ptx_dest_of(s, type, loose) : ptx_source_of(s, type, loose));
        bool wide = s->row_type ? type_bytes(s->row_type) == 8 : type_bytes(type) == 8;
        if (n++ && wide != s->row_wide)
            ptx_fail(s, "registers of 32 and of 64 bits in one vector");
        s->row_wide = wide;
    } while (open && ptx_accept(s, ','));
    if (open)
        ptx_expect(s, '}');
    return n;
}

/* `[register+4]`, `[variable]`, `[variable+-8]`, `[1024]`: row and immediate. */
void ptx_address(struct parser *s, struct op *op) {
    char name[128];
    ptx_expect(s, '[');
    op->wide |= 1;
    if (ptx_at_number(s)) {
        op->a = ptx_constant(s, 0, true);
        op->immediate = ptx_number(s).whole;
    } else {
        int index;
        ptx_word(s, ".", name);
        const struct family *f = ptx_register_named(s, name, &index);
        const struct variable *v = f ? NULL : ptx_variable_named(s, name);
        if (v) {
            op->a = ptx_constant(s, 0, true);
            op->immediate = (int64_t)address_of(v);
            if (op->space == GENERIC && (v->space == SHARED || v->space == LOCAL))
                ptx_fail(s, "a generic access to `%s`", name);
        } else if (f && f->type != PRED) {
            op->a = ptx_named_row(s, name, true);
            if (type_bytes(f->type) != 8)
                op->wide &= ~1;
        } else {
            ptx_fail(s, "`%s` is no address", name);
        }
        if (ptx_accept(s, '+') || ptx_peek(s) == '-')
            op->immediate += ptx_number(s).whole;
    }
    ptx_expect(s, ']');
}
