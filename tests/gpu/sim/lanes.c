/* The instructions: a warp runs until it comes to a barrier or its end, or has used up its turn. Compiled for the plain
 * architecture and for one with AVX2 and FMA (VARIANT is the suffix of the names); both give the same bits, as nothing here
 * may be contracted or reassociated.
 *
 * Lanes come apart at branches. A group of lanes with one place runs; `next` is the lowest place of the others. By default
 * the group at the lowest place runs, so that lanes meet again where paths join. */
#include "arithmetic.h"
#include "lanes.h"

#include <stdlib.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)

/* ---- memory ---- */

static void addresses(uint32_t *file, const struct op *op, uint64_t *to) {
    if (op->wide & 1)
        for (int l = 0; l < LANES; l++)
            to[l] = R64(op->a)[l] + (uint64_t)op->immediate;
    else
        for (int l = 0; l < LANES; l++)
            to[l] = (uint32_t)(R32(op->a)[l] + (uint32_t)op->immediate);
}
static void load_one(uint32_t *file, const struct op *op, int32_t row, int l, const char *at) {
    uint64_t x = 0;
    memcpy(&x, at, (size_t)type_bytes(op->type));
    x = (uint64_t)extended(op->type, x);
    if (op->mods)
        R64(row)[l] = x;
    else
        R32(row)[l] = (uint32_t)x;
}
static bool in_a_row(char *const *at, uint32_t m) { /* words, of all lanes */
    if (m != ALL_LANES)
        return false;
    ptrdiff_t differ = 0;
    for (int l = 1; l < LANES; l++)
        differ |= (at[l] - at[0]) ^ (4 * l);
    return !differ;
}
static void load(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    uint32_t *file = w->file;
    uint64_t address[LANES];
    char *at[LANES];
    int size = type_bytes(op->type);
    addresses(file, op, address);
    m = check_access(r, w, op, op->space, m, address, size * op->vector, READS, at);
    for (int v = 0; v < op->vector; v++) {
        int32_t row = r->f->operands[op->operands + (uint32_t)v];
        if (size == 4 && !op->mods && op->vector == 1 && in_a_row(at, m)) {
            memcpy(R32(row), at[0], 4 * LANES);
        } else if (size == 4 && !op->mods) {
            for (int l = 0; l < LANES; l++)
                if (m >> l & 1)
                    memcpy(&R32(row)[l], at[l] + 4 * v, 4);
        } else {
            for (int l = 0; l < LANES; l++)
                if (m >> l & 1)
                    load_one(file, op, row, l, at[l] + size * v);
        }
    }
}
static void store(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    uint32_t *file = w->file;
    uint64_t address[LANES];
    char *at[LANES];
    int size = type_bytes(op->type);
    addresses(file, op, address);
    m = check_access(r, w, op, op->space, m, address, size * op->vector, WRITES, at);
    r->idle = 0;
    for (int v = 0; v < op->vector; v++) {
        int32_t row = r->f->operands[op->operands + (uint32_t)v];
        if (size == 4 && !op->mods && op->vector == 1 && in_a_row(at, m)) {
            memcpy(at[0], R32(row), 4 * LANES);
            continue;
        }
        for (int l = 0; l < LANES; l++)
            if (m >> l & 1) {
                if (op->mods)
                    memcpy(at[l] + size * v, &R64(row)[l], (size_t)size);
                else
                    memcpy(at[l] + size * v, &R32(row)[l], (size_t)size);
            }
    }
}
/* The same bytes into all lanes. */
static void load_uniform(struct run *r, struct warp *w, const struct op *op, uint32_t m, const char *from) {
    uint32_t *file = w->file;
    int size = type_bytes(op->type);
    for (int v = 0; v < op->vector; v++) {
        int32_t row = r->f->operands[op->operands + (uint32_t)v];
        uint64_t x = 0;
        memcpy(&x, from + size * v, (size_t)size);
        x = (uint64_t)extended(op->type, x);
        if (op->mods)
            EACH(uint64_t, row, x);
        else
            EACH(uint32_t, row, x);
    }
}
static void load_param(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    uint32_t *file = w->file;
    if (op->wide) {
        uint64_t address[LANES];
        char *at[LANES];
        addresses(file, op, address);
        uint64_t offset = address[0] & ~PARAM_WINDOW, differ = 0;
        for (int l = 0; l < LANES; l++) {
            differ |= address[l] ^ address[0];
            address[l] |= l ? PARAM_WINDOW : 0;
        }
        address[0] |= PARAM_WINDOW;
        size_t bytes = (size_t)(type_bytes(op->type) * op->vector);
        if (!differ && offset % bytes == 0 && offset + bytes <= r->launch->params_size && offset < PARAM_WINDOW) { /* of blockIdx alone */
            load_uniform(r, w, op, m, (const char *)r->launch->params + offset);
            return;
        }
        m = check_access(r, w, op, GENERIC, m, address, type_bytes(op->type) * op->vector, READS, at);
        for (int v = 0; v < op->vector; v++)
            for (int l = 0; l < LANES; l++)
                if (m >> l & 1)
                    load_one(file, op, r->f->operands[op->operands + (uint32_t)v], l, at[l] + type_bytes(op->type) * v);
        return;
    }
    load_uniform(r, w, op, m, (const char *)r->launch->params + op->immediate);
}

static uint64_t combined(const struct op *op, uint64_t old, uint64_t b, uint64_t c) {
    bool is_signed = op->type == S32 || op->type == S64;
    int64_t x = extended(op->type == F32 ? U32 : op->type, old), y = extended(op->type == F32 ? U32 : op->type, b);
    bool less = is_signed ? x < y : (uint64_t)x < (uint64_t)y;
    switch (op->how) {
    case A_ADD:
        if (op->type == F32)
            return bits_of(float_of((uint32_t)old) + float_of((uint32_t)b));
        if (op->type == F64)
            return bits_of_double(double_of(old) + double_of(b));
        return old + b;
    case A_MIN: return less ? old : b;
    case A_MAX: return less ? b : old;
    case A_EXCH: return b;
    case A_CAS: return x == y ? c : old;
    case A_AND: return old & b;
    case A_OR: return old | b;
    case A_XOR: return old ^ b;
    case A_INC: return (uint32_t)old >= (uint32_t)b ? 0 : old + 1;
    default: return old == 0 || (uint32_t)old > (uint32_t)b ? b : old - 1;
    }
}
static void atomic(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    uint32_t *file = w->file;
    uint64_t address[LANES];
    char *at[LANES];
    int size = type_bytes(op->type), start = r->launch->warps == SIM_FORWARD ? 0 : (int)draw(r, LANES);
    addresses(file, op, address);
    m = check_access(r, w, op, op->space, m, address, size, UPDATES, at);
    for (int i = 0; i < LANES; i++) {
        int l = (i + start) % LANES;
        if (!(m >> l & 1))
            continue;
        uint64_t old = 0, b = size == 8 ? R64(op->b)[l] : R32(op->b)[l], c = 0;
        if (op->how == A_CAS)
            c = size == 8 ? R64(op->c)[l] : R32(op->c)[l];
        memcpy(&old, at[l], (size_t)size);
        uint64_t now = combined(op, old, b, c);
        if (memcmp(&now, at[l], (size_t)size) != 0)
            r->idle = 0;
        memcpy(at[l], &now, (size_t)size);
        if (op->d >= 0 && size == 8)
            R64(op->d)[l] = old;
        else if (op->d >= 0)
            R32(op->d)[l] = (uint32_t)old;
    }
}

static void ldmatrix(struct run *r, struct warp *w, const struct op *op) {
    uint32_t *file = w->file;
    uint64_t address[LANES];
    char *at[LANES];
    uint16_t matrix[4][8][8];
    uint32_t rows = op->vector == 4 ? ALL_LANES : (1u << 8 * op->vector) - 1; /* lanes whose addresses count */
    memset(matrix, 0xff, sizeof matrix);
    addresses(file, op, address);
    uint32_t there = check_access(r, w, op, SHARED, rows, address, 16, READS, at);
    for (int l = 0; l < 8 * op->vector; l++)
        if (there >> l & 1)
            memcpy(matrix[l / 8][l % 8], at[l], 16);
    for (int v = 0; v < op->vector; v++) {
        uint32_t *to = R32(r->f->operands[op->operands + (uint32_t)v]);
        for (int l = 0; l < LANES; l++) {
            int row = l / 4, column = l % 4 * 2;
            uint32_t low = op->mods & TRANS ? matrix[v][column][row] : matrix[v][row][column];
            uint32_t high = op->mods & TRANS ? matrix[v][column + 1][row] : matrix[v][row][column + 1];
            to[l] = low | high << 16;
        }
    }
}

static void land(struct run *r, struct warp *w, struct copy *c) {
    char *to = w->block->shared + c->to;
    memcpy(to, c->from, (size_t)c->kept);
    memset(to + c->kept, 0, (size_t)(c->bytes - c->kept));
    c->landed = true;
    check_landed(r, w, c);
}
static void copy_async(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    uint32_t *file = w->file;
    uint64_t to[LANES], from[LANES];
    char *to_at[LANES], *from_at[LANES];
    for (int l = 0; l < LANES; l++) {
        to[l] = (op->wide & 1 ? R64(op->a)[l] : R32(op->a)[l]) + (uint64_t)op->immediate;
        from[l] = (op->wide & 2 ? R64(op->b)[l] : R32(op->b)[l]) + (uint64_t)(int64_t)op->e;
    }
    uint32_t whole = 0, part = 0;
    int kept[LANES];
    for (int l = 0; l < LANES; l++) {
        kept[l] = op->c < 0 || R32(op->c)[l] > op->vector ? op->vector : (int)R32(op->c)[l];
        if (m >> l & 1 && kept[l] == op->vector)
            whole |= 1u << l;
        else if (m >> l & 1 && kept[l])
            part |= 1u << l;
    }
    uint32_t zero = m & ~whole & ~part;
    whole = check_access(r, w, op, GLOBAL, whole, from, op->vector, COPIES_FROM, from_at);
    for (int l = 0; l < LANES; l++)
        if (part >> l & 1)
            zero |= check_access(r, w, op, GLOBAL, 1u << l, from, kept[l], COPIES_FROM, from_at);
    m = check_access(r, w, op, SHARED, whole | zero, to, op->vector, COPIES_TO, to_at);
    r->idle = 0;
    for (int l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        if (!(w->n_copies & (w->n_copies - 1)))
            w->copies = realloc(w->copies, sizeof *w->copies * (size_t)(w->n_copies ? 2 * w->n_copies : 1));
        if (!w->copies)
            abort();
        struct copy *c = &w->copies[w->n_copies++];
        *c = (struct copy){.lane = l, .bytes = op->vector, .kept = kept[l], .group = w->group[l], .from = kept[l] ? from_at[l] : NULL,
                           .to = (uint32_t)(to_at[l] - w->block->shared), .op = op};
        if (!kept[l])
            c->from = w->block->shared; /* of which nothing is read */
        if (r->launch->copies == SIM_AT_ISSUE || (r->launch->copies == SIM_BY_LOT && draw(r, 2)))
            land(r, w, c);
    }
}
/* What is still under way when its thread ends lands in memory that another block may have by then. */
static void copies_left(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    for (int i = 0; i < w->n_copies; i++)
        if (m >> w->copies[i].lane & 1) {
            report(r, SIM_ASYNC, w, w->copies[i].lane, op, "ends, and has not waited for its copy of %d bytes to shared memory + %u", w->copies[i].bytes, w->copies[i].to);
            return;
        }
}
static void copies_wait(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    int kept = 0;
    for (int i = 0; i < w->n_copies; i++) {
        struct copy *c = &w->copies[i];
        bool waits = m >> c->lane & 1 && (op->immediate < 0 || c->group + op->immediate < w->group[c->lane]);
        if (waits && !c->landed)
            land(r, w, c);
        if (waits)
            check_waited(r, w, c);
        else
            w->copies[kept++] = *c;
    }
    /* capacities are powers of two that hold what was there before: what is left keeps room */
    if (kept != w->n_copies) {
        int room = 1;
        while (room < kept)
            room *= 2;
        w->copies = realloc(w->copies, sizeof *w->copies * (size_t)room);
        w->n_copies = kept;
    }
}

/* ---- lanes together ---- */

static void shuffle(struct run *r, struct warp *w, const struct op *op, uint32_t m) {
    uint32_t *file = w->file, from[LANES], valid = 0;
    memcpy(from, R32(op->a), sizeof from);
    for (int l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        int b = R32(op->b)[l] & 31, c = R32(op->c)[l] & 31, segment = R32(op->c)[l] >> 8 & 31;
        int greatest = (l & segment) | (c & ~segment), least = l & segment, j = l;
        bool p;
        switch (op->how) {
        case S_UP: j = l - b, p = j >= greatest; break;
        case S_DOWN: j = l + b, p = j <= greatest; break;
        case S_BFLY: j = l ^ b, p = j <= greatest; break;
        default: j = least | (b & ~segment), p = j <= greatest; break;
        }
        if (!p)
            j = l;
        if (!(m >> j & 1))
            report(r, SIM_MASK, w, l, op, "lane %d takes the value of lane %d, which does not take part", l, j);
        R32(op->d)[l] = from[j];
        valid |= (uint32_t)p << l;
    }
    if (op->d2 >= 0)
        file[op->d2] = (file[op->d2] & ~m) | valid;
}
static void run_vote(uint32_t *file, const struct op *op, uint32_t m) {
    uint32_t p = (op->inverted & 2 ? ~file[op->a] : file[op->a]) & m;
    bool yes = op->how == V_ALL ? p == m : op->how == V_ANY ? p != 0 : p == m || p == 0;
    if (op->how == V_BALLOT)
        EACH(uint32_t, op->d, p);
    else
        file[op->d] = (file[op->d] & ~m) | (yes ? m : 0);
}
static void run_match(uint32_t *file, const struct op *op, uint32_t m) {
    uint32_t same[LANES], all = 0;
    for (int l = 0; l < LANES; l++) {
        same[l] = 0;
        for (int k = 0; k < LANES && m >> l & 1; k++)
            if (m >> k & 1 && (op->type == U64 ? R64(op->a)[l] == R64(op->a)[k] : R32(op->a)[l] == R32(op->a)[k]))
                same[l] |= 1u << k;
        if (same[l] == m)
            all |= 1u << l;
    }
    EACH(uint32_t, op->d, op->how ? (same[l] == m ? m : 0) : same[l]);
    if (op->d2 >= 0)
        file[op->d2] = (file[op->d2] & ~m) | (all & m);
}
static void run_redux(uint32_t *file, const struct op *op, uint32_t m) {
    int first = __builtin_ctz(m);
    uint64_t x = R32(op->a)[first];
    for (int l = first + 1; l < LANES; l++)
        if (m >> l & 1)
            x = (uint32_t)combined(op, x, R32(op->a)[l], 0);
    EACH(uint32_t, op->d, x);
}

static void approximate_lanes(struct run *r, uint32_t *file, const struct op *op, uint32_t m) {
    bool two = op->base == DIV;
    EACH(float, op->d, function(r, op, F32R(op->a)[l], two ? F32R(op->b)[l] : 1));
}
static void pack(struct run *r, uint32_t *file, const struct op *op, uint32_t m) {
    const int32_t *o = r->f->operands + op->operands;
    int bits = type_bytes(op->type) * 8 / op->vector;
    uint64_t mask = field_mask((uint32_t)bits);
    uint64_t x[LANES] = {0};
    for (int v = 0; v < op->vector; v++)
        for (int l = 0; l < LANES; l++)
            x[l] |= ((uint64_t)R32(o[v])[l] & mask) << v * bits;
    if (op->type == U64)
        EACH(uint64_t, op->d, x[l]);
    else
        EACH(uint32_t, op->d, x[l]);
}
static void unpack(struct run *r, uint32_t *file, const struct op *op, uint32_t m) {
    const int32_t *o = r->f->operands + op->operands;
    int bits = type_bytes(op->type) * 8 / op->vector;
    uint64_t mask = field_mask((uint32_t)bits), x[LANES];
    for (int l = 0; l < LANES; l++)
        x[l] = op->type == U64 ? R64(op->a)[l] : R32(op->a)[l];
    for (int v = 0; v < op->vector; v++)
        EACH(uint32_t, o[v], x[l] >> v * bits & mask);
}

/* Whether all lanes that `op` is meant for stand here: then they are the group that runs. */
static bool meets(struct run *r, struct warp *w, const struct op *op, uint32_t *m, int32_t row) {
    uint32_t *file = w->file;
    if (*m == w->mask && !w->waiting && !w->forced) { /* as a rule */
        uint32_t differ = 0;
        if (row < 0)
            differ = *m ^ w->live;
        else
            for (int l = 0; l < LANES; l++)
                differ |= *m >> l & 1 ? R32(row)[l] ^ *m : 0;
        if (!differ)
            return true;
    }
    return come_together(r, w, op, m, row);
}

/* ---- the loop ---- */

#define INTEGERS(BASE, OPERATOR)                                                                                               \
    case KEY(BASE, U16): EACH(uint32_t, op->d, (R32(op->a)[l] OPERATOR R32(op->b)[l]) & 0xffff); break;                        \
    case KEY(BASE, U32): EACH(uint32_t, op->d, R32(op->a)[l] OPERATOR R32(op->b)[l]); break;                                   \
    case KEY(BASE, U64): EACH(uint64_t, op->d, R64(op->a)[l] OPERATOR R64(op->b)[l]); break;
#define LOGICAL(BASE, OPERATOR)                                                                                                \
    INTEGERS(BASE, OPERATOR)                                                                                                   \
    case KEY(BASE, PRED): file[op->d] = (file[op->d] & ~m) | ((file[op->a] OPERATOR file[op->b]) & m); break;
#define FLOATS(BASE, EXPRESSION, EXPRESSION64)                                                                                 \
    case KEY(BASE, F32):                                                                                                       \
        if (op->mods | op->round)                                                                                              \
            EACH(float, op->d, slow(op, F32R(op->a)[l], F32R(op->b)[l], 0));                                                   \
        else                                                                                                                   \
            EACH(float, op->d, EXPRESSION);                                                                                    \
        break;                                                                                                                 \
    case KEY(BASE, F64):                                                                                                       \
        if (op->round)                                                                                                         \
            EACH(double, op->d, directed_double(op->base, F64R(op->a)[l], F64R(op->b)[l], 0, op->round));                      \
        else                                                                                                                   \
            EACH(double, op->d, EXPRESSION64);                                                                                 \
        break;                                                                                                                 \
    SMALLS(BASE)
#define SMALLS(BASE)                                                                                                           \
    case KEY(BASE, F16): EACH(uint32_t, op->d, small(op, F16, R32(op->a)[l], R32(op->b)[l], 0)); break;                        \
    case KEY(BASE, BF16): EACH(uint32_t, op->d, small(op, BF16, R32(op->a)[l], R32(op->b)[l], 0)); break;                      \
    case KEY(BASE, F16X2): EACH(uint32_t, op->d, small_pair(op, F16, R32(op->a)[l], R32(op->b)[l], 0)); break;                 \
    case KEY(BASE, BF16X2): EACH(uint32_t, op->d, small_pair(op, BF16, R32(op->a)[l], R32(op->b)[l], 0)); break;
#define BY_TYPE(BASE, T, ROW, TYPE, EXPRESSION)                                                                                \
    case KEY(BASE, TYPE): {                                                                                                    \
        const T *a = (const T *)ROW(op->a), *b = (const T *)ROW(op->b);                                                        \
        EACH(T, op->d, EXPRESSION);                                                                                            \
        break;                                                                                                                 \
    }
#define A16 (R32(op->a)[l] & 0xffff)
#define B16V (R32(op->b)[l] & 0xffff)
#define SA16 ((int16_t)R32(op->a)[l])
#define SB16 ((int16_t)R32(op->b)[l])

void PASTE(run_warp, VARIANT)(struct run *r, struct warp *w, int64_t turn) {
    uint32_t *const file = w->file;
    const struct op *const code = r->f->code;
    int64_t left = turn;
    uint64_t done = 0;
    uint8_t *const ran = r->launch->ran;
    const int n_lines = r->launch->n_lines;
    while (left-- > 0 && !r->stopped) {
        if (w->pc == w->next || (w->fuel && !--w->fuel)) {
            set_down(w);
            if (!pick_up(r, w))
                break;
        }
        const struct op *op = &code[w->pc];
        uint32_t m = w->mask;
        done++;
        if (ran && op->line < n_lines)
            ran[op->line] = 1;
        if (op->guarded) {
            m &= op->inverted & 1 ? ~file[op->guard] : file[op->guard];
            if (!m) {
                w->pc++;
                continue;
            }
        }
        switch (op->key) {
        case KEY(NOP, T_NONE): case KEY(NANOSLEEP, T_NONE): break;
        INTEGERS(ADD, +)
        INTEGERS(SUB, -)
        INTEGERS(MUL_LO, *)
        LOGICAL(AND, &)
        LOGICAL(OR, |)
        LOGICAL(XOR, ^)
        FLOATS(ADD, F32R(op->a)[l] + F32R(op->b)[l], F64R(op->a)[l] + F64R(op->b)[l])
        FLOATS(SUB, F32R(op->a)[l] - F32R(op->b)[l], F64R(op->a)[l] - F64R(op->b)[l])
        FLOATS(MUL, F32R(op->a)[l] * F32R(op->b)[l], F64R(op->a)[l] * F64R(op->b)[l])
        case KEY(NOT, U16): EACH(uint32_t, op->d, ~R32(op->a)[l] & 0xffff); break;
        case KEY(NOT, U32): EACH(uint32_t, op->d, ~R32(op->a)[l]); break;
        case KEY(NOT, U64): EACH(uint64_t, op->d, ~R64(op->a)[l]); break;
        case KEY(NOT, PRED): file[op->d] = (file[op->d] & ~m) | (~file[op->a] & m); break;
        case KEY(CNOT, U16): EACH(uint32_t, op->d, A16 == 0); break;
        case KEY(CNOT, U32): EACH(uint32_t, op->d, R32(op->a)[l] == 0); break;
        case KEY(CNOT, U64): EACH(uint64_t, op->d, R64(op->a)[l] == 0); break;
        case KEY(NEG, U16): EACH(uint32_t, op->d, (0 - R32(op->a)[l]) & 0xffff); break;
        case KEY(NEG, U32): EACH(uint32_t, op->d, 0 - R32(op->a)[l]); break;
        case KEY(NEG, U64): EACH(uint64_t, op->d, 0 - R64(op->a)[l]); break;
        case KEY(NEG, F32):
            if (op->mods)
                EACH(float, op->d, slow(op, F32R(op->a)[l], 0, 0));
            else
                EACH(uint32_t, op->d, R32(op->a)[l] ^ 0x80000000);
            break;
        case KEY(NEG, F64): EACH(uint64_t, op->d, R64(op->a)[l] ^ UINT64_C(1) << 63); break;
        case KEY(NEG, F16): case KEY(NEG, BF16): EACH(uint32_t, op->d, R32(op->a)[l] ^ 0x8000); break;
        case KEY(NEG, F16X2): case KEY(NEG, BF16X2): EACH(uint32_t, op->d, R32(op->a)[l] ^ 0x80008000); break;
        case KEY(ABS, S16): EACH(uint32_t, op->d, (SA16 < 0 ? 0 - R32(op->a)[l] : R32(op->a)[l]) & 0xffff); break;
        case KEY(ABS, S32): EACH(uint32_t, op->d, S32R(op->a)[l] < 0 ? 0 - R32(op->a)[l] : R32(op->a)[l]); break;
        case KEY(ABS, S64): EACH(uint64_t, op->d, S64R(op->a)[l] < 0 ? 0 - R64(op->a)[l] : R64(op->a)[l]); break;
        case KEY(ABS, F32):
            if (op->mods)
                EACH(float, op->d, slow(op, F32R(op->a)[l], 0, 0));
            else
                EACH(uint32_t, op->d, R32(op->a)[l] & 0x7fffffff);
            break;
        case KEY(ABS, F64): EACH(uint64_t, op->d, R64(op->a)[l] & UINT64_MAX >> 1); break;
        case KEY(ABS, F16): case KEY(ABS, BF16): EACH(uint32_t, op->d, R32(op->a)[l] & 0x7fff); break;
        case KEY(ABS, F16X2): case KEY(ABS, BF16X2): EACH(uint32_t, op->d, R32(op->a)[l] & 0x7fff7fff); break;
        case KEY(MUL_HI, U16): EACH(uint32_t, op->d, A16 * B16V >> 16); break;
        case KEY(MUL_HI, S16): EACH(uint32_t, op->d, (uint32_t)(SA16 * SB16) >> 16); break;
        case KEY(MUL_HI, U32): EACH(uint32_t, op->d, (uint64_t)R32(op->a)[l] * R32(op->b)[l] >> 32); break;
        case KEY(MUL_HI, S32): EACH(uint32_t, op->d, (uint64_t)((int64_t)S32R(op->a)[l] * S32R(op->b)[l]) >> 32); break;
        case KEY(MUL_HI, U64): EACH(uint64_t, op->d, high_of(R64(op->a)[l], R64(op->b)[l])); break;
        case KEY(MUL_HI, S64): EACH(uint64_t, op->d, high_of_signed(S64R(op->a)[l], S64R(op->b)[l])); break;
        case KEY(MUL_WIDE, U16): EACH(uint32_t, op->d, A16 * B16V); break;
        case KEY(MUL_WIDE, S16): EACH(uint32_t, op->d, SA16 * SB16); break;
        case KEY(MUL_WIDE, U32): EACH(uint64_t, op->d, (uint64_t)R32(op->a)[l] * R32(op->b)[l]); break;
        case KEY(MUL_WIDE, S32): EACH(uint64_t, op->d, (int64_t)S32R(op->a)[l] * S32R(op->b)[l]); break;
        case KEY(MAD_LO, U16): EACH(uint32_t, op->d, (A16 * B16V + R32(op->c)[l]) & 0xffff); break;
        case KEY(MAD_LO, U32): EACH(uint32_t, op->d, R32(op->a)[l] * R32(op->b)[l] + R32(op->c)[l]); break;
        case KEY(MAD_LO, U64): EACH(uint64_t, op->d, R64(op->a)[l] * R64(op->b)[l] + R64(op->c)[l]); break;
        case KEY(MAD_HI, U32): EACH(uint32_t, op->d, (uint32_t)((uint64_t)R32(op->a)[l] * R32(op->b)[l] >> 32) + R32(op->c)[l]); break;
        case KEY(MAD_HI, S32):
            EACH(uint32_t, op->d, (uint32_t)((uint64_t)((int64_t)S32R(op->a)[l] * S32R(op->b)[l]) >> 32) + R32(op->c)[l]);
            break;
        case KEY(MAD_WIDE, U16): EACH(uint32_t, op->d, A16 * B16V + R32(op->c)[l]); break;
        case KEY(MAD_WIDE, S16): EACH(uint32_t, op->d, (uint32_t)(SA16 * SB16) + R32(op->c)[l]); break;
        case KEY(MAD_WIDE, U32): EACH(uint64_t, op->d, (uint64_t)R32(op->a)[l] * R32(op->b)[l] + R64(op->c)[l]); break;
        case KEY(MAD_WIDE, S32):
            EACH(uint64_t, op->d, (uint64_t)((int64_t)S32R(op->a)[l] * S32R(op->b)[l]) + R64(op->c)[l]);
            break;
        case KEY(FMA, F32):
            if (op->mods | op->round)
                EACH(float, op->d, slow(op, F32R(op->a)[l], F32R(op->b)[l], F32R(op->c)[l]));
            else
                EACH(float, op->d, __builtin_fmaf(F32R(op->a)[l], F32R(op->b)[l], F32R(op->c)[l]));
            break;
        case KEY(FMA, F64):
            if (op->round)
                EACH(double, op->d, directed_double(FMA, F64R(op->a)[l], F64R(op->b)[l], F64R(op->c)[l], op->round));
            else
                EACH(double, op->d, __builtin_fma(F64R(op->a)[l], F64R(op->b)[l], F64R(op->c)[l]));
            break;
        case KEY(FMA, F16): EACH(uint32_t, op->d, small(op, F16, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(FMA, BF16): EACH(uint32_t, op->d, small(op, BF16, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(FMA, F16X2): EACH(uint32_t, op->d, small_pair(op, F16, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(FMA, BF16X2): EACH(uint32_t, op->d, small_pair(op, BF16, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(DIV, U16): EACH(uint32_t, op->d, B16V ? A16 / B16V : 0xffff); break;
        case KEY(DIV, S16): EACH(uint32_t, op->d, quotient(SA16, SB16) & 0xffff); break;
        case KEY(DIV, U32): EACH(uint32_t, op->d, R32(op->b)[l] ? R32(op->a)[l] / R32(op->b)[l] : UINT32_MAX); break;
        case KEY(DIV, S32): EACH(int32_t, op->d, quotient(S32R(op->a)[l], S32R(op->b)[l])); break;
        case KEY(DIV, U64): EACH(uint64_t, op->d, R64(op->b)[l] ? R64(op->a)[l] / R64(op->b)[l] : UINT64_MAX); break;
        case KEY(DIV, S64): EACH(int64_t, op->d, quotient64(S64R(op->a)[l], S64R(op->b)[l])); break;
        case KEY(DIV, F32):
            if (op->mods & APPROX)
                approximate_lanes(r, file, op, m);
            else if (op->mods | op->round)
                EACH(float, op->d, slow(op, F32R(op->a)[l], F32R(op->b)[l], 0));
            else
                EACH(float, op->d, F32R(op->a)[l] / F32R(op->b)[l]);
            break;
        case KEY(DIV, F64): EACH(double, op->d, directed_double(DIV, F64R(op->a)[l], F64R(op->b)[l], 0, op->round)); break;
        case KEY(REM, U16): EACH(uint32_t, op->d, B16V ? A16 % B16V : A16); break;
        case KEY(REM, S16): EACH(uint32_t, op->d, remainder32(SA16, SB16) & 0xffff); break;
        case KEY(REM, U32): EACH(uint32_t, op->d, R32(op->b)[l] ? R32(op->a)[l] % R32(op->b)[l] : R32(op->a)[l]); break;
        case KEY(REM, S32): EACH(int32_t, op->d, remainder32(S32R(op->a)[l], S32R(op->b)[l])); break;
        case KEY(REM, U64): EACH(uint64_t, op->d, R64(op->b)[l] ? R64(op->a)[l] % R64(op->b)[l] : R64(op->a)[l]); break;
        case KEY(REM, S64): EACH(int64_t, op->d, remainder64(S64R(op->a)[l], S64R(op->b)[l])); break;
        case KEY(MIN, U16): EACH(uint32_t, op->d, A16 < B16V ? A16 : B16V); break;
        case KEY(MIN, S16): EACH(uint32_t, op->d, (SA16 < SB16 ? SA16 : SB16) & 0xffff); break;
        BY_TYPE(MIN, uint32_t, R32, U32, a[l] < b[l] ? a[l] : b[l])
        BY_TYPE(MIN, int32_t, S32R, S32, a[l] < b[l] ? a[l] : b[l])
        BY_TYPE(MIN, uint64_t, R64, U64, a[l] < b[l] ? a[l] : b[l])
        BY_TYPE(MIN, int64_t, S64R, S64, a[l] < b[l] ? a[l] : b[l])
        BY_TYPE(MIN, double, F64R, F64, min_double(a[l], b[l]))
        case KEY(MIN, F32):
            if (op->mods)
                EACH(float, op->d, slow(op, F32R(op->a)[l], F32R(op->b)[l], 0));
            else
                EACH(float, op->d, least(F32R(op->a)[l], F32R(op->b)[l]));
            break;
        case KEY(MAX, F32):
            if (op->mods)
                EACH(float, op->d, slow(op, F32R(op->a)[l], F32R(op->b)[l], 0));
            else
                EACH(float, op->d, greatest(F32R(op->a)[l], F32R(op->b)[l]));
            break;
        SMALLS(MIN)
        SMALLS(EX2)
        SMALLS(TANH)
        case KEY(MAX, U16): EACH(uint32_t, op->d, A16 > B16V ? A16 : B16V); break;
        case KEY(MAX, S16): EACH(uint32_t, op->d, (SA16 > SB16 ? SA16 : SB16) & 0xffff); break;
        BY_TYPE(MAX, uint32_t, R32, U32, a[l] > b[l] ? a[l] : b[l])
        BY_TYPE(MAX, int32_t, S32R, S32, a[l] > b[l] ? a[l] : b[l])
        BY_TYPE(MAX, uint64_t, R64, U64, a[l] > b[l] ? a[l] : b[l])
        BY_TYPE(MAX, int64_t, S64R, S64, a[l] > b[l] ? a[l] : b[l])
        BY_TYPE(MAX, double, F64R, F64, max_double(a[l], b[l]))
        SMALLS(MAX)
        case KEY(SHL, U16): EACH(uint32_t, op->d, R32(op->b)[l] < 16 ? R32(op->a)[l] << R32(op->b)[l] & 0xffff : 0); break;
        case KEY(SHL, U32): EACH(uint32_t, op->d, R32(op->b)[l] < 32 ? R32(op->a)[l] << (R32(op->b)[l] & 31) : 0); break;
        case KEY(SHL, U64): EACH(uint64_t, op->d, R32(op->b)[l] < 64 ? R64(op->a)[l] << (R32(op->b)[l] & 63) : 0); break;
        case KEY(SHR, U16): EACH(uint32_t, op->d, R32(op->b)[l] < 16 ? A16 >> R32(op->b)[l] : 0); break;
        case KEY(SHR, U32): EACH(uint32_t, op->d, R32(op->b)[l] < 32 ? R32(op->a)[l] >> (R32(op->b)[l] & 31) : 0); break;
        case KEY(SHR, U64): EACH(uint64_t, op->d, R32(op->b)[l] < 64 ? R64(op->a)[l] >> (R32(op->b)[l] & 63) : 0); break;
        case KEY(SHR, S16): EACH(uint32_t, op->d, (SA16 >> (R32(op->b)[l] < 15 ? R32(op->b)[l] : 15)) & 0xffff); break;
        case KEY(SHR, S32): EACH(int32_t, op->d, S32R(op->a)[l] >> (R32(op->b)[l] < 31 ? R32(op->b)[l] : 31)); break;
        case KEY(SHR, S64): EACH(int64_t, op->d, S64R(op->a)[l] >> (R32(op->b)[l] < 63 ? R32(op->b)[l] : 63)); break;
        case KEY(BFI, U32): EACH(uint32_t, op->d, bfi(R32(op->a)[l], R32(op->b)[l], R32(op->c)[l], R32(op->e)[l], 32)); break;
        case KEY(BFI, U64): EACH(uint64_t, op->d, bfi(R64(op->a)[l], R64(op->b)[l], R32(op->c)[l], R32(op->e)[l], 64)); break;
        case KEY(BFE, U32): EACH(uint32_t, op->d, bfe(R32(op->a)[l], R32(op->b)[l], R32(op->c)[l], 32, false)); break;
        case KEY(BFE, S32): EACH(uint32_t, op->d, bfe(R32(op->a)[l], R32(op->b)[l], R32(op->c)[l], 32, true)); break;
        case KEY(BFE, U64): EACH(uint64_t, op->d, bfe(R64(op->a)[l], R32(op->b)[l], R32(op->c)[l], 64, false)); break;
        case KEY(BFE, S64): EACH(uint64_t, op->d, bfe(R64(op->a)[l], R32(op->b)[l], R32(op->c)[l], 64, true)); break;
        case KEY(POPC, U32): EACH(uint32_t, op->d, __builtin_popcount(R32(op->a)[l])); break;
        case KEY(POPC, U64): EACH(uint32_t, op->d, __builtin_popcountll(R64(op->a)[l])); break;
        case KEY(CLZ, U32): EACH(uint32_t, op->d, R32(op->a)[l] ? __builtin_clz(R32(op->a)[l]) : 32); break;
        case KEY(CLZ, U64): EACH(uint32_t, op->d, R64(op->a)[l] ? __builtin_clzll(R64(op->a)[l]) : 64); break;
        case KEY(BREV, U32): EACH(uint32_t, op->d, reversed(R32(op->a)[l], 32)); break;
        case KEY(BREV, U64): EACH(uint64_t, op->d, reversed(R64(op->a)[l], 64)); break;
        case KEY(BFIND, U32): case KEY(BFIND, S32): EACH(uint32_t, op->d, first_bit(op, R32(op->a)[l], 32)); break;
        case KEY(BFIND, U64): case KEY(BFIND, S64): EACH(uint32_t, op->d, first_bit(op, R64(op->a)[l], 64)); break;
        case KEY(COPYSIGN, F32): EACH(uint32_t, op->d, (R32(op->b)[l] & 0x7fffffff) | (R32(op->a)[l] & 0x80000000)); break;
        case KEY(COPYSIGN, F64):
            EACH(uint64_t, op->d, (R64(op->b)[l] & UINT64_MAX >> 1) | (R64(op->a)[l] & UINT64_C(1) << 63));
            break;
        case KEY(SELP, U16): case KEY(SELP, U32): EACH(uint32_t, op->d, file[op->c] >> l & 1 ? R32(op->a)[l] : R32(op->b)[l]); break;
        case KEY(SELP, U64): EACH(uint64_t, op->d, file[op->c] >> l & 1 ? R64(op->a)[l] : R64(op->b)[l]); break;
        case KEY(PRMT, U32): EACH(uint32_t, op->d, permuted(R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(LOP3, U32): EACH(uint32_t, op->d, table3(op->immediate, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(SHF, U32): EACH(uint32_t, op->d, funnel(op, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(DP4A, U32): case KEY(DP4A, S32): EACH(uint32_t, op->d, dot4(op, R32(op->a)[l], R32(op->b)[l], R32(op->c)[l])); break;
        case KEY(SETP, U16): case KEY(SETP, S16): case KEY(SETP, U32): case KEY(SETP, S32): case KEY(SETP, U64): case KEY(SETP, S64):
        case KEY(SETP, F16): case KEY(SETP, BF16): case KEY(SETP, F32): case KEY(SETP, F64):
            run_setp(file, op, m);
            break;
        case KEY(SET, T_NONE): run_set(file, op, m); break;
        case KEY(MOV, U16): case KEY(MOV, U32): EACH(uint32_t, op->d, R32(op->a)[l]); break;
        case KEY(MOV, U64): EACH(uint64_t, op->d, R64(op->a)[l]); break;
        case KEY(MOV, PRED): file[op->d] = (file[op->d] & ~m) | (file[op->a] & m); break;
        case KEY(PACK, U32): case KEY(PACK, U64): pack(r, file, op, m); break;
        case KEY(UNPACK, U32): case KEY(UNPACK, U64): unpack(r, file, op, m); break;
        case KEY(CVT, S64): EACH(int64_t, op->d, S32R(op->a)[l]); break;
        case KEY(CVT, U64): EACH(uint64_t, op->d, R32(op->a)[l]); break;
        case KEY(CVT, U32): EACH(uint32_t, op->d, R64(op->a)[l]); break;
        case KEY(CVT, T_NONE): run_convert(file, op, m); break;
        case KEY(COPY_ADDRESS, U64): EACH(uint64_t, op->d, R64(op->a)[l] + (uint64_t)op->immediate); break;
        case KEY(EX2, F32): case KEY(LG2, F32): case KEY(SIN, F32): case KEY(COS, F32): case KEY(TANH, F32): case KEY(RSQRT, F32):
            approximate_lanes(r, file, op, m);
            break;
        case KEY(RCP, F32): case KEY(SQRT, F32):
            if (op->mods & APPROX)
                approximate_lanes(r, file, op, m);
            else if (op->mods | op->round)
                EACH(float, op->d, slow(op, F32R(op->a)[l], 0, 0));
            else if (op->base == RCP)
                EACH(float, op->d, 1 / F32R(op->a)[l]);
            else
                EACH(float, op->d, sqrtf(F32R(op->a)[l]));
            break;
        case KEY(RSQRT, F64): EACH(double, op->d, gross(r, op, F64R(op->a)[l])); break;
        case KEY(RCP, F64):
            if (op->mods & APPROX) {
                EACH(double, op->d, gross(r, op, F64R(op->a)[l]));
                break;
            } /* fall through */
        case KEY(SQRT, F64): EACH(double, op->d, directed_double(op->base, F64R(op->a)[l], 0, 0, op->round)); break;
        case KEY(LD_PARAM, T_NONE): load_param(r, w, op, m); break;
        case KEY(LD, T_NONE): load(r, w, op, m); break;
        case KEY(ST, T_NONE): store(r, w, op, m); break;
        case KEY(ATOM, T_NONE): atomic(r, w, op, m); break;
        case KEY(CP_ASYNC, T_NONE): copy_async(r, w, op, m); break;
        case KEY(CP_COMMIT, T_NONE):
            for (int l = 0; l < LANES; l++)
                w->group[l] += m >> l & 1;
            break;
        case KEY(CP_WAIT, T_NONE): copies_wait(r, w, op, m); break;
        case KEY(FENCE, T_NONE): check_fence(r, w); break;
        case KEY(ACTIVEMASK, T_NONE): EACH(uint32_t, op->d, m); break;
        case KEY(LDMATRIX, B32):
            if (!meets(r, w, op, &m, -1))
                goto waits;
            if (m != ALL_LANES)
                report(r, SIM_MASK, w, -1, op, "ldmatrix with lanes 0x%08x: all 32 must take part", m);
            ldmatrix(r, w, op);
            break;
        case KEY(MMA, T_NONE):
            if (!meets(r, w, op, &m, -1))
                goto waits;
            if (m != ALL_LANES)
                report(r, SIM_MASK, w, -1, op, "mma with lanes 0x%08x: all 32 must take part", m);
            PASTE(run_mma, VARIANT)(r, w, op);
            break;
        case KEY(SHFL, U32):
            if (!meets(r, w, op, &m, op->e))
                goto waits;
            shuffle(r, w, op, m);
            break;
        case KEY(VOTE, U32):
            if (!meets(r, w, op, &m, op->e))
                goto waits;
            run_vote(file, op, m);
            break;
        case KEY(MATCH, U32): case KEY(MATCH, U64):
            if (!meets(r, w, op, &m, op->e))
                goto waits;
            run_match(file, op, m);
            break;
        case KEY(REDUX, U32): case KEY(REDUX, S32):
            if (!meets(r, w, op, &m, op->e))
                goto waits;
            run_redux(file, op, m);
            break;
        case KEY(BAR_WARP, T_NONE):
            if (!meets(r, w, op, &m, op->a))
                goto waits;
            check_warp_sync(r, w, m);
            break;
        case KEY(BAR, T_NONE): case KEY(BAR_ARRIVE, T_NONE): case KEY(BAR_RED, T_NONE):
            if (!meets(r, w, op, &m, -1))
                goto waits;
            w->pc++;
            if (arrive(r, w, op, m))
                break_turn(w, &left);
            continue;
        case KEY(TRAP, T_NONE):
            report(r, SIM_TRAP, w, __builtin_ctz(m), op, "trap");
            r->stopped = true;
            break;
        case KEY(BRA, T_NONE):
            if (m == w->mask) {
                w->pc = op->target;
                if (w->next == NOWHERE)
                    continue;
            } else {
                for (int l = 0; l < LANES; l++)
                    if (m >> l & 1)
                        w->lane_pc[l] = op->target;
                w->mask &= ~m;
                w->pc++;
            }
            set_down(w);
            if (!pick_up(r, w))
                goto out;
            continue;
        case KEY(RET, T_NONE):
            if (w->n_copies)
                copies_left(r, w, op, m);
            leave(r, w, m);
            if (w->mask) {
                w->pc++;
                continue;
            }
            if (!pick_up(r, w))
                goto out;
            continue;
        default: r->stopped = true; report(r, SIM_LIMIT, w, 0, op, "no such instruction"); break;
        }
        w->pc++;
        continue;
    waits:
        if (!pick_up(r, w))
            break;
    }
out:
    r->counts.instructions += done;
    r->idle += done;
}
