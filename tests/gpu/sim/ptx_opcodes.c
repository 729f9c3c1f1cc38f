/* Opcodes: each with the modifiers, types and operands that the interpreter runs. All else is refused. */
#include "parse.h"

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
        if (s->part[i] && ptx_type_named(s->part[i])) {
            int type = ptx_type_named(s->part[i]);
            s->part[i] = NULL;
            return type;
        }
    return T_NONE;
}
static _Noreturn void unknown(struct parser *s) { ptx_fail(s, "unknown form `%s`", s->opcode); }
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
    {"abs", ABS, false, "f32", "ftz", "da"},
    {"abs", ABS, false, "f64 f16 f16x2 bf16 bf16x2", "", "da"},
    {"neg", NEG, true, "s16 s32 s64", "", "da"},
    {"neg", NEG, false, "f32", "ftz", "da"},
    {"neg", NEG, false, "f64 f16 f16x2 bf16 bf16x2", "", "da"},
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
    {"min", MIN, false, "f32", "ftz NaN", "daa"},
    {"min", MIN, false, "f16 f16x2 bf16 bf16x2", "NaN", "daa"},
    {"min", MIN, false, "f64", "", "daa"},
    {"max", MAX, false, "u16 s16 u32 s32 u64 s64", "", "daa"},
    {"max", MAX, false, "f32", "ftz NaN", "daa"},
    {"max", MAX, false, "f16 f16x2 bf16 bf16x2", "NaN", "daa"},
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
    {"ex2", EX2, false, "f16 f16x2", "(approx)", "da"},
    {"ex2", EX2, false, "bf16 bf16x2", "(approx) ftz", "da"},
    {"tanh", TANH, false, "f16 f16x2 bf16 bf16x2", "(approx)", "da"},
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
        if (ptx_type_named(s->part[i]) && listed(form->types, s->part[i]))
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
            ptx_expect(s, ',');
        switch (*o) {
        case 'd': op->d = ptx_dest(s, type); break;
        case 'w': op->d = ptx_dest(s, twice(type)); break;
        case 'D': op->d = ptx_dest(s, U32); break;
        case 'c': *sources[n++] = ptx_source(s, twice(type)); break;
        case 'u': *sources[n++] = ptx_source(s, U32); break;
        case 'p': *sources[n++] = ptx_source(s, PRED); break;
        default: *sources[n++] = ptx_source(s, type); break;
        }
    }
    if (form->plain || (form->base == SHR && !ptx_is_signed(type)))
        type = unsigned_of(type);
    op->type = (uint8_t)type;
}

static void lop3(struct parser *s, struct op *op) {
    need(s, take(s, "b32"));
    all_taken(s);
    op->base = LOP3;
    op->type = U32;
    op->d = ptx_dest(s, B32), ptx_expect(s, ',');
    op->a = ptx_source(s, B32), ptx_expect(s, ',');
    op->b = ptx_source(s, B32), ptx_expect(s, ',');
    op->c = ptx_source(s, B32), ptx_expect(s, ',');
    op->immediate = ptx_number(s).whole;
}
/* dp4a, and dp2a.lo, .hi: of two halves and the bytes of a half. */
static void dot(struct parser *s, struct op *op, bool halves) {
    static const char *const parts[] = {"lo", "hi"};
    int part = halves ? take_one(s, parts, 2) : 0;
    need(s, part >= 0);
    op->how = (uint8_t)(halves ? 1 + part : 0);
    op->type = (uint8_t)take_type(s);
    op->from = (uint8_t)take_type(s);
    need(s, (op->type == U32 || op->type == S32) && (op->from == U32 || op->from == S32));
    all_taken(s);
    op->base = DP4A;
    op->d = ptx_dest(s, U32), ptx_expect(s, ',');
    op->a = ptx_source(s, U32), ptx_expect(s, ',');
    op->b = ptx_source(s, U32), ptx_expect(s, ',');
    op->c = ptx_source(s, U32);
}

static void setp(struct parser *s, struct op *op) {
    static const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
                                        "lo", "ls", "hi", "hs"};
    static const char *const joins[] = {"", "and", "or", "xor"};
    int how = take_one(s, names, 18), type, join;
    type = take_type(s);
    join = take_one(s, joins + 1, 3) + 1;
    op->mods = take(s, "ftz") ? FTZ : 0;
    need(s, how >= 0 && type != T_NONE && type != PRED && type_bytes(type) > 1 && type <= F64 && type != F16X2 && type != BF16X2);
    need(s, (!op->mods || type == F32) && (ptx_is_float(type) ? how < LO : how <= GE || how >= LO));
    need(s, type > B64 || how <= NE); /* bits are equal or not */
    all_taken(s);
    if (how >= LO) /* lo, ls, hi, hs: of unsigned numbers */
        how = (int[]){LT, LE, GT, GE}[how - LO];
    op->base = SETP;
    op->how = (uint8_t)how;
    op->type = (uint8_t)(ptx_is_float(type) || ptx_is_signed(type) ? type : unsigned_of(type));
    op->order = (uint8_t)join; /* how the predicate joins */
    op->d = ptx_dest(s, PRED);
    op->d2 = -1;
    if (ptx_accept(s, '|'))
        op->d2 = ptx_dest(s, PRED);
    ptx_expect(s, ','), op->a = ptx_source(s, type);
    ptx_expect(s, ','), op->b = ptx_source(s, type);
    if (join) {
        ptx_expect(s, ',');
        op->inverted |= ptx_accept(s, '!') ? 2 : 0;
        op->c = ptx_source(s, PRED);
    }
}

/* As setp, with a register for the result: all ones or zero, or 1.0 or zero. */
static void set(struct parser *s, struct op *op) {
    static const char *const names[] = {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    int how = take_one(s, names, 14), to = take_type(s), type = take_type(s);
    bool pair = type == F16X2 || type == BF16X2;
    op->mods = take(s, "ftz") ? FTZ : 0;
    need(s, how >= 0 && (!op->mods || type == F32) && (ptx_is_float(type) ? type <= F64 : type >= U16 && type_bytes(type) > 1 && how <= GE));
    need(s, pair ? to == type || to == U32 : to == U32 || to == S32 || to == F32 || (to == type && (to == F16 || to == BF16)));
    all_taken(s);
    op->base = SET;
    op->how = (uint8_t)how;
    op->type = (uint8_t)type, op->from = (uint8_t)to;
    op->key = KEY(SET, T_NONE);
    op->d = ptx_dest(s, to), ptx_expect(s, ',');
    op->a = ptx_source(s, type), ptx_expect(s, ',');
    op->b = ptx_source(s, type);
}

static void mov(struct parser *s, struct op *op) {
    int type = take_type(s);
    need(s, type != T_NONE && type_bytes(type) != 1);
    all_taken(s);
    op->type = (uint8_t)unsigned_of(type);
    op->operands = (uint32_t)s->f->n_operands;
    if (ptx_peek(s) == '{') { /* unpack: {low, high} of a wider one */
        op->base = UNPACK;
        op->vector = (uint8_t)ptx_vector(s, B16, true, true);
        need(s, (op->vector == 2 || op->vector == 4) && !s->row_wide);
        ptx_expect(s, ',');
        op->a = ptx_source(s, type);
        return;
    }
    op->d = ptx_dest(s, type);
    ptx_expect(s, ',');
    if (ptx_peek(s) == '{') {
        op->base = PACK;
        op->vector = (uint8_t)ptx_vector(s, type_bytes(type) == 8 ? B32 : B16, false, true); /* immediates of that width */
        need(s, (op->vector == 2 || op->vector == 4) && !s->row_wide);
        return;
    }
    op->base = MOV;
    op->a = ptx_source(s, type);
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
    op->d = ptx_dest_of(s, op->type, true);
    op->wide |= type_bytes(s->row_type) == 8 ? 2 : 0;
    ptx_expect(s, ',');
    op->a = ptx_source_of(s, op->from, true);
    op->wide |= s->row_type ? type_bytes(s->row_type) == 8 : type_bytes(op->from) == 8;
    op->vector = 1;
    if (pair && op->from == F32) {
        ptx_expect(s, ',');
        op->b = ptx_source(s, F32);
        op->vector = 2;
    }
    /* the common ones by keys of their own */
    bool moves = !op->mods && !ptx_is_float(op->type) && !ptx_is_float(op->from);
    if (moves && type_bytes(op->type) == 8 && type_bytes(op->from) == 4 && (op->wide == 2))
        op->key = KEY(CVT, ptx_is_signed(op->from) ? S64 : U64);
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
    op->d = ptx_dest(s, U64), ptx_expect(s, ',');
    op->a = ptx_source(s, U64);
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
    ptx_expect(s, '[');
    ptx_word(s, "", name);
    const struct family *r = ptx_register_named(s, name, &index);
    if (r && type_bytes(r->type) == 8) { /* a place that is found at run time */
        op->a = ptx_named_row(s, name, true);
        op->immediate = ptx_accept(s, '+') || ptx_peek(s) == '-' ? ptx_number(s).whole : 0;
        op->wide = 1;
        ptx_expect(s, ']');
        return;
    }
    int i = 0;
    while (i < f->n_params && strcmp(f->param_names[i], name) != 0)
        i++;
    if (i == f->n_params)
        ptx_fail(s, "`%s` is no parameter", name);
    op->immediate = f->params[i].offset;
    if (ptx_accept(s, '+') || ptx_peek(s) == '-')
        op->immediate += ptx_number(s).whole;
    ptx_expect(s, ']');
    if (op->immediate < 0 || op->immediate + type_bytes(op->type) * op->vector > f->params[i].offset + f->params[i].size)
        ptx_fail(s, "beyond the parameter `%s`", name);
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
    need(s, op->type && op->type != PRED && !(ptx_is_float(op->type) && op->type != F32 && op->type != F64));
    need(s, type_bytes(op->type) * op->vector <= 16 && (load || op->space != CONSTANT));
    all_taken(s);
    op->base = param ? LD_PARAM : load ? LD : ST;
    op->key = KEY(op->base, T_NONE);
    op->operands = (uint32_t)s->f->n_operands;
    if (!load)
        ptx_address(s, op), ptx_expect(s, ',');
    if (ptx_vector(s, op->type, load, true) != op->vector)
        ptx_fail(s, "as many registers as the vector has are meant");
    op->mods = s->row_wide ? CLAMP : 0; /* registers of 64 bits */
    if (type_bytes(op->type) == 8 && op->mods != CLAMP)
        ptx_fail(s, "a register of 32 bits where 64 are meant");
    if (load) {
        ptx_expect(s, ',');
        if (param)
            ld_param(s, op);
        else
            ptx_address(s, op);
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
    if (ptx_vector(s, B32, true, false) != op->vector)
        ptx_fail(s, "as many registers as matrices are meant");
    ptx_expect(s, ',');
    ptx_address(s, op);
}

static void cp(struct parser *s, struct op *op) {
    need(s, take(s, "async"));
    if (take(s, "commit_group")) {
        op->base = CP_COMMIT;
    } else if (take(s, "wait_group")) {
        op->base = CP_WAIT;
        op->immediate = ptx_number(s).whole;
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
        ptx_address(s, op);
        ptx_expect(s, ',');
        struct op from = {.space = GLOBAL};
        ptx_address(s, &from);
        op->b = from.a;
        op->wide |= (uint8_t)(from.wide << 1);
        op->e = (int32_t)from.immediate;
        if (from.immediate != op->e)
            ptx_fail(s, "an offset beyond 31 bits");
        ptx_expect(s, ',');
        op->immediate = op->immediate + 0;
        int64_t bytes = ptx_number(s).whole;
        if (bytes != 16 && (!all || (bytes != 4 && bytes != 8)))
            ptx_fail(s, "cp.async of %lld bytes", (long long)bytes);
        op->vector = (uint8_t)bytes;
        op->c = ptx_accept(s, ',') ? ptx_source(s, U32) : -1;
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
            ptx_expect(s, ',');
        if (ptx_vector(s, i == 0 || i == 3 ? (d == F32 ? F32 : B32) : B32, i == 0, false) != n[i])
            ptx_fail(s, "mma: %d registers are meant in place %d", n[i], i + 1);
    }
    op->key = KEY(MMA, T_NONE);
}

static void bar(struct parser *s, struct op *op) {
    bool name = strcmp(s->part[0], "barrier") == 0;
    take(s, "cta");
    if (!name && take(s, "warp")) {
        need(s, take(s, "sync"));
        op->base = BAR_WARP;
        op->a = ptx_source(s, U32);
    } else if (take(s, "red")) {
        op->base = BAR_RED;
        op->how = take(s, "popc") ? R_POPC : take(s, "and") ? R_AND : R_OR;
        need(s, op->how != R_OR || take(s, "or"));
        take(s, "aligned");
        int type = take_type(s);
        need(s, type == (op->how == R_POPC ? U32 : PRED));
        op->d = ptx_dest(s, type), ptx_expect(s, ',');
        op->a = ptx_source(s, U32), ptx_expect(s, ',');
        op->b = -1;
        if (ptx_peek(s) != '!') {
            int32_t row = ptx_at_number(s) ? ptx_source(s, U32) : ptx_source_of(s, PRED, true); /* a count, or the predicate */
            op->c = row;
            if (s->row_type != PRED) {
                op->b = row;
                ptx_expect(s, ',');
            }
        }
        if (ptx_peek(s) == '!' || op->b >= 0) {
            op->inverted |= ptx_accept(s, '!') ? 2 : 0;
            op->c = ptx_source(s, PRED);
        }
    } else {
        bool sync = take(s, "sync");
        need(s, sync || take(s, "arrive"));
        op->base = sync ? BAR : BAR_ARRIVE;
        op->mods = take(s, "aligned") || !name ? 0 : CLAMP; /* CLAMP: lanes may come apart */
        op->a = ptx_source(s, U32);
        op->b = ptx_accept(s, ',') ? ptx_source(s, U32) : -1;
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
    op->d = ptx_dest(s, B32);
    op->d2 = ptx_accept(s, '|') ? ptx_dest(s, PRED) : -1;
    ptx_expect(s, ','), op->a = ptx_source(s, B32);
    ptx_expect(s, ','), op->b = ptx_source(s, B32);
    ptx_expect(s, ','), op->c = ptx_source(s, B32);
    ptx_expect(s, ','), op->e = ptx_source(s, B32);
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
    op->d = ptx_dest(s, type), ptx_expect(s, ',');
    op->inverted |= ptx_accept(s, '!') ? 2 : 0;
    op->a = ptx_source(s, PRED), ptx_expect(s, ',');
    op->e = ptx_source(s, B32);
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
    op->d = ptx_dest(s, B32);
    op->d2 = all && ptx_accept(s, '|') ? ptx_dest(s, PRED) : -1;
    ptx_expect(s, ','), op->a = ptx_source(s, type);
    ptx_expect(s, ','), op->e = ptx_source(s, B32);
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
    op->d = ptx_dest(s, B32), ptx_expect(s, ',');
    op->a = ptx_source(s, B32), ptx_expect(s, ',');
    op->e = ptx_source(s, B32);
}

static void atom(struct parser *s, struct op *op, bool result) {
    ordering(s, op);
    take_space(s, op);
    int how = take_one(s, atomics, 10), type = take_type(s);
    need(s, how >= 0 && type && op->space != LOCAL && op->space != CONSTANT);
    if (how == A_ADD)
        need(s, type == U32 || type == S32 || type == U64 || type == F32 || type == F64);
    else
        need(s, !ptx_is_float(type) && type_bytes(type) >= 4);
    if (how == A_INC || how == A_DEC)
        need(s, type == U32);
    all_taken(s);
    op->base = ATOM;
    op->how = (uint8_t)how;
    op->type = (uint8_t)(ptx_is_signed(type) || ptx_is_float(type) ? type : unsigned_of(type));
    op->d = -1;
    if (result)
        op->d = ptx_dest(s, type), ptx_expect(s, ',');
    ptx_address(s, op);
    ptx_expect(s, ','), op->b = ptx_source(s, type);
    if (how == A_CAS)
        ptx_expect(s, ','), op->c = ptx_source(s, type);
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
    ptx_word(s, "", name);
    struct fixup *f = PUSH(s->fixups, s->n_fixups);
    *f = (struct fixup){.name = strdup(name), .op = s->f->n_code - 1, .scope = s->scope, .line = s->line};
}

static void prefetch(struct parser *s, struct op *op) { /* changes nothing */
    take_space(s, op);
    need(s, take(s, "L1") || take(s, "L2"));
    all_taken(s);
    op->base = NOP;
    ptx_address(s, op);
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
                op->a = ptx_source(s, U32);
            return;
        }
    if (strcmp(s->part[0], "activemask") == 0 && take(s, "b32")) {
        all_taken(s);
        op->base = ACTIVEMASK;
        op->d = ptx_dest(s, B32);
        return;
    }
    unknown(s);
}

void ptx_instruction(struct parser *s, const char *opcode) {
    struct sim_function *f = s->f;
    struct op *op = &f->code[f->n_code - 1];
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
    else if (IS("dp4a")) dot(s, op, false);
    else if (IS("dp2a")) dot(s, op, true);
    else if (IS("lop3")) lop3(s, op);
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
    else if (IS("prefetch")) prefetch(s, op);
    else if (IS("bra")) bra(s, op);
    else other(s, op);
#undef IS
    if (!op->key)
        op->key = (uint16_t)KEY(op->base, op->type);
    ptx_expect(s, ';');
}
