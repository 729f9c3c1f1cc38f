/* Matrix products on a device. cuBLASLt counts rows of a column fastest, the plan columns of a row; so that nothing is moved it is
 * asked for the transposed product, in which the operands change places:
 *
 *     C[m, n] = A[m, k] B[k, n]        row by row
 *     C'[n, m] = B'[n, k] A'[k, m]     the same bytes, column by column
 *
 * An operand of which neither stride is 1, operands of two types, and what the library has no algorithm for are multiplied by dtm's
 * own kernel (kernels/cuda/matmul.cuh). Algorithms are chosen at load, a choice for each shape, and the same on all ranks that have
 * the shape, by the lowest of them: what several ranks hold alike has to be alike in its bits. --tune measures (tune.c), else the library's
 * first is taken. */
#include "runtime/cuda/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A = DTM_A, B = DTM_B, C = DTM_C, OPERANDS = DTM_OPERANDS };
typedef dtm_product_shape shape;
typedef dtm_product_choice choice;
typedef dtm_product_told told;

/* ---- a product of the plan ---- */

typedef struct product {
    shape of;
    int64_t bytes[OPERANDS]; /* of an element */
    int outers, sums;        /* loops: those between products of their own first, then those that add up */
    struct {
        int64_t count, step[OPERANDS];
    } loops[DTM_PLAN_OUTER];
    int64_t products, turns;
} product;

static int32_t type_of(const dtm_rank *rank, uint32_t buffer) {
    dtm_plan_dtype dtype = rank->plan->buffers[buffer].dtype;
    return dtype == DTM_PLAN_BF16 ? DTM_CUBLAS_BF16 : dtype == DTM_PLAN_F16 ? DTM_CUBLAS_F16 : DTM_CUBLAS_F32;
}

static void add_loops(const dtm_rank *rank, product *p, const dtm_plan_matmul *m, bool reduces) {
    const int64_t *z = rank->sizes;
    for (int i = 0; i < m->n_outer; i++) {
        const dtm_plan_outer *o = &m->outer[i];
        if (o->reduces != reduces) continue;
        int at = p->outers + p->sums;
        p->loops[at].count = z[o->count];
        p->loops[at].step[A] = z[o->a];
        p->loops[at].step[B] = z[o->b];
        p->loops[at].step[C] = reduces ? 0 : z[o->c];
        if (reduces) p->sums++;
        else p->outers++;
    }
}

/* A loop between products takes the place of a batch that is not there: one call for all of its turns. */
static void batch_a_loop(product *p) {
    int best = -1;
    for (int l = 0; l < p->outers; l++)
        if (best < 0 || p->loops[l].count > p->loops[best].count) best = l;
    if (p->of.batch != 1 || best < 0) return;
    p->of.batch = p->loops[best].count;
    for (int o = A; o < OPERANDS; o++) p->of.stride[o] = p->loops[best].step[o];
    memmove(&p->loops[best], &p->loops[best + 1], (size_t)(p->outers + p->sums - best - 1) * sizeof p->loops[0]);
    p->outers--;
}

/* Blocks begin at multiples of DTM_KERNEL_ALIGN; the batch and loops move on from there. */
static int32_t alignment_of(const product *p, int operand) {
    uint64_t bits = DTM_KERNEL_ALIGN | (uint64_t)(p->of.stride[operand] * p->bytes[operand]);
    for (int l = 0; l < p->outers + p->sums; l++) bits |= (uint64_t)(p->loops[l].step[operand] * p->bytes[operand]);
    return (int32_t)(bits & (~bits + 1));
}

static void describe(const dtm_rank *rank, const dtm_plan_matmul *m, product *p) {
    const int64_t *z = rank->sizes;
    const uint32_t buffers[OPERANDS] = {m->a, m->b, m->c};
    memset(p, 0, sizeof *p);
    shape *s = &p->of;
    s->m = z[m->m], s->n = z[m->n], s->k = z[m->k], s->batch = z[m->batch];
    s->row[A] = z[m->a_row], s->column[A] = z[m->a_col], s->stride[A] = z[m->a_batch];
    s->row[B] = z[m->b_row], s->column[B] = z[m->b_col], s->stride[B] = z[m->b_batch];
    s->row[C] = z[m->c_row], s->column[C] = 1, s->stride[C] = z[m->c_batch];
    for (int o = A; o < OPERANDS; o++) {
        s->type[o] = type_of(rank, buffers[o]);
        p->bytes[o] = dtm_plan_dtype_bytes(rank->plan->buffers[buffers[o]].dtype);
    }
    add_loops(rank, p, m, false);
    add_loops(rank, p, m, true);
    batch_a_loop(p);
    if (s->batch == 1) s->stride[A] = s->stride[B] = s->stride[C] = 0;
    for (int o = A; o < OPERANDS; o++) s->alignment[o] = alignment_of(p, o);
    p->products = p->turns = 1;
    for (int l = 0; l < p->outers; l++) p->products *= p->loops[l].count;
    for (int l = p->outers; l < p->outers + p->sums; l++) p->turns *= p->loops[l].count;
}

static bool is_empty(const shape *s) { return !s->m || !s->n || !s->batch; }

/* ---- cuBLASLt ---- */

/* A matrix of rows x columns whose element (i, j) is at i down + j across: as it lies, or as the transpose of what lies there. */
typedef struct form {
    uint64_t rows, columns;
    int64_t ld;
    bool transposed;
} form;

static bool find_form(int64_t rows, int64_t columns, int64_t down, int64_t across, form *out) {
    int64_t ld = columns == 1 ? rows : across;
    if ((down == 1 || rows == 1) && ld >= rows) {
        *out = (form){(uint64_t)rows, (uint64_t)columns, ld, false};
        return true;
    }
    ld = rows == 1 ? columns : down;
    if ((across == 1 || columns == 1) && ld >= columns) {
        *out = (form){(uint64_t)columns, (uint64_t)rows, ld, true};
        return true;
    }
    return false;
}

/* Of the transposed product: what is told of the plan's A, B and C. */
static bool find_forms(const shape *s, form out[OPERANDS]) {
    return s->type[A] == s->type[B] && find_form(s->k, s->m, s->column[A], s->row[A], &out[A]) && find_form(s->n, s->k, s->column[B], s->row[B], &out[B]) &&
           find_form(s->n, s->m, 1, s->row[C], &out[C]) && !out[C].transposed;
}

static bool check(dtm_device *device, dtm_cublas_status result, const char *what, dtm_status *status) {
    if (result == DTM_CUBLAS_SUCCESS) return true;
    if (dtm_device_has_failed(device, status)) return false;
    const char *text = device->products->lt->GetStatusString(result);
    return dtm_status_fail(status, "rank %d, device %d (%s): cuBLASLt: %s: %s (status %d)", device->rank, device->ordinal, device->name, what, text ? text : "?",
                           (int)result);
}

static bool make_layout(dtm_device *device, const shape *s, int operand, const form *f, dtm_cublas_layout *out, dtm_status *status) {
    const dtm_cublaslt *lt = device->products->lt;
    int32_t batch = (int32_t)s->batch;
    dtm_cublas_status result = lt->MatrixLayoutCreate(out, s->type[operand], f->rows, f->columns, f->ld);
    if (!result && s->batch != 1) result = lt->MatrixLayoutSetAttribute(*out, DTM_CUBLAS_LAYOUT_BATCHES, &batch, sizeof batch);
    if (!result && s->batch != 1) result = lt->MatrixLayoutSetAttribute(*out, DTM_CUBLAS_LAYOUT_STRIDE, &s->stride[operand], sizeof s->stride[operand]);
    return check(device, result, "the layout of a matrix", status);
}

static bool make_description(dtm_device *device, choice *c, const form forms[OPERANDS], dtm_status *status) {
    const dtm_cublaslt *lt = device->products->lt;
    const int32_t operations[2] = {DTM_CUBLAS_PLAIN, DTM_CUBLAS_TRANSPOSED};
    dtm_cublas_status result = lt->MatmulDescCreate(&c->desc, DTM_CUBLAS_COMPUTE_32F, DTM_CUBLAS_F32);
    /* Its first operand is the plan's B. */
    if (!result) result = lt->MatmulDescSetAttribute(c->desc, DTM_CUBLAS_DESC_TRANSPOSE_A, &operations[forms[B].transposed], sizeof(int32_t));
    if (!result) result = lt->MatmulDescSetAttribute(c->desc, DTM_CUBLAS_DESC_TRANSPOSE_B, &operations[forms[A].transposed], sizeof(int32_t));
    if (!check(device, result, "the description of a product", status)) return false;
    for (int o = A; o < OPERANDS; o++)
        if (!make_layout(device, &c->of, o, &forms[o], &c->layouts[o], status)) return false;
    return true;
}

/* Whether the library has an algorithm; it need not. `wanted`: of how many it has. */
static bool ask(dtm_device *device, choice *c, int wanted, dtm_status *status) {
    const dtm_cublaslt *lt = device->products->lt;
    const struct {
        int attribute, operand;
    } alignments[] = {{DTM_CUBLAS_PREFER_ALIGNMENT_A, B}, {DTM_CUBLAS_PREFER_ALIGNMENT_B, A}, {DTM_CUBLAS_PREFER_ALIGNMENT_C, C}, {DTM_CUBLAS_PREFER_ALIGNMENT_D, C}};
    dtm_cublas_preference preference = NULL;
    dtm_cublas_heuristic found[DTM_CANDIDATES];
    uint64_t limit = (uint64_t)device->products->workspace_bytes;
    int count = 0;
    memset(found, 0, sizeof found);
    dtm_cublas_status result = lt->MatmulPreferenceCreate(&preference);
    if (!check(device, result, "preferences", status)) return false;
    result = lt->MatmulPreferenceSetAttribute(preference, DTM_CUBLAS_PREFER_WORKSPACE, &limit, sizeof limit);
    for (size_t i = 0; !result && i < sizeof alignments / sizeof *alignments; i++) {
        uint32_t bytes = (uint32_t)c->of.alignment[alignments[i].operand];
        result = lt->MatmulPreferenceSetAttribute(preference, alignments[i].attribute, &bytes, sizeof bytes);
    }
    bool ok = check(device, result, "preferences", status);
    if (ok) result = lt->MatmulAlgoGetHeuristic(device->products->handle, c->desc, c->layouts[B], c->layouts[A], c->layouts[C], c->layouts[C], preference, wanted, found, &count);
    lt->MatmulPreferenceDestroy(preference);
    if (!ok) return false;
    if (result && result != DTM_CUBLAS_NOT_SUPPORTED) return check(device, result, "the choice of an algorithm", status);
    c->found = !result && count > 0 && found[0].state == DTM_CUBLAS_SUCCESS;
    c->algorithm = found[0].algorithm;
    c->workspace = found[0].workspace_bytes;
    if (!c->found || wanted == 1) return true;
    c->n_candidates = count;
    c->candidates = malloc((size_t)count * sizeof *found);
    if (c->candidates) memcpy(c->candidates, found, (size_t)count * sizeof *found);
    return c->candidates || dtm_status_fail(status, "out of memory for algorithms of products");
}

/* ---- choices ---- */

static choice *find_choice(const dtm_device_products *p, const shape *s) {
    for (size_t i = 0; i < p->n_choices; i++)
        if (memcmp(&p->choices[i].of, s, sizeof *s) == 0) return &p->choices[i];
    return NULL;
}

static bool add_choice(dtm_rank *rank, const shape *s, const dtm_plan_matmul *m, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_device_products *p = device->products;
    form forms[OPERANDS];
    if (is_empty(s) || !s->k || find_choice(p, s)) return true;
    if (p->n_choices == p->cap_choices) {
        size_t more = 2 * p->cap_choices + 16;
        choice *moved = realloc(p->choices, more * sizeof *moved);
        if (!moved) return dtm_status_fail(status, "out of memory for the shapes of products");
        p->choices = moved;
        p->cap_choices = more;
    }
    choice *c = &p->choices[p->n_choices++];
    memset(c, 0, sizeof *c);
    c->of = *s;
    c->operands[A] = (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, m->a);
    c->operands[B] = (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, m->b);
    c->operands[C] = (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, m->c);
    c->fits = find_forms(s, forms);
    return !c->fits || (make_description(device, c, forms, status) && ask(device, c, rank->options->tune ? DTM_CANDIDATES : 1, status));
}

static bool has_products(const dtm_plan *plan) {
    for (uint32_t i = 0; i < plan->n_instructions; i++)
        if (plan->instructions[i].kind == DTM_PLAN_MATMUL) return true;
    return false;
}

bool dtm_device_products_measure(dtm_rank *rank, dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_device_products *p = device->products = calloc(1, sizeof *p);
    if (!p) return dtm_status_fail(status, "out of memory for products");
    if (!has_products(rank->plan) || rank->options->generated_products) return true;
    p->lt = dtm_cuda_cublaslt(device->cuda, status);
    if (!p->lt || !check(device, p->lt->Create(&p->handle), "its handle", status)) return false;
    p->workspace_bytes = (int64_t)(device->major >= 9 ? 32 : 4) << 20;
    p->workspace = dtm_device_reserve(device, p->workspace_bytes);
    return true;
}

static bool add_choices(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    bool ok = true;
    for (int64_t m = 0; ok && m < (rank->microbatch_sizes.count ? plan->microbatches : 1); m++) {
        dtm_rank_set_microbatch(rank, m, m > 0, false);
        for (uint32_t i = 0; ok && i < plan->n_instructions; i++) {
            product made;
            if (plan->instructions[i].kind != DTM_PLAN_MATMUL) continue;
            describe(rank, &plan->instructions[i].matmul, &made);
            ok = add_choice(rank, &made.of, &plan->instructions[i].matmul, status);
        }
    }
    dtm_rank_set_microbatch(rank, 0, false, false);
    return ok;
}

static bool has_algorithm(const told *t) { return t->workspace != UINT64_MAX; }

/* Takes the choice of the lowest rank that has the shape. One that has found none makes all multiply by themselves. */
static void take_first(dtm_device_products *p, const told *all, int64_t count) {
    for (size_t i = 0; i < p->n_choices; i++) {
        choice *c = &p->choices[i];
        for (int64_t t = 0; t < count; t++) {
            if (memcmp(&all[t].of, &c->of, sizeof c->of) != 0) continue;
            c->found = c->fits && has_algorithm(&all[t]);
            c->algorithm = all[t].algorithm;
            c->workspace = (size_t)all[t].workspace;
            break;
        }
    }
}

static bool exchange(dtm_rank *rank, dtm_status *status) {
    dtm_device_products *p = rank->device->products;
    int ranks = dtm_comm_size(rank->comm);
    dtm_group *world = dtm_comm_world(rank->comm);
    int64_t *bytes = calloc((size_t)ranks, sizeof *bytes), *each = calloc((size_t)ranks, sizeof *each), own = (int64_t)(p->n_choices * sizeof(told)), sum = 0;
    told *mine = calloc(p->n_choices + 1, sizeof *mine), *all = NULL;
    bool ok = bytes && each && mine;
    if (!ok) dtm_status_fail(status, "out of memory for the shapes of products");
    if (!dtm_comm_agree(rank->comm, status)) ok = false;
    for (int r = 0; ok && r < ranks; r++) each[r] = sizeof own;
    dtm_group_label(world, "choice of algorithms");
    ok = ok && dtm_all_gather(world, DTM_ALGORITHM_RING, &own, bytes, each, status);
    for (int r = 0; ok && r < ranks; r++) sum += bytes[r];
    all = ok ? malloc((size_t)sum + 1) : NULL;
    if (ok && !all) dtm_status_fail(status, "out of memory for the products of %d ranks", ranks);
    for (size_t i = 0; ok && i < p->n_choices; i++) {
        mine[i].of = p->choices[i].of;
        mine[i].algorithm = p->choices[i].algorithm;
        mine[i].workspace = p->choices[i].found ? (uint64_t)p->choices[i].workspace : UINT64_MAX;
    }
    ok = dtm_comm_agree(rank->comm, status) && dtm_all_gather(world, DTM_ALGORITHM_RING, mine, all, bytes, status);
    dtm_group_label(world, NULL);
    if (ok) take_first(p, all, sum / (int64_t)sizeof *all);
    if (ok) dtm_products_digest(all, sum / (int64_t)sizeof *all, p->digest);
    free(bytes), free(each), free(mine), free(all);
    return ok;
}

/* The name that the lowest rank gives of those that ask the library, else of rank 0: files of weights say it, and their ranks must not
 * differ in a byte of what they take a file's head to be. */
static bool agree_on_name(dtm_rank *rank, dtm_status *status) {
    dtm_device_products *p = rank->device->products;
    int ranks = dtm_comm_size(rank->comm), from = 0;
    struct {
        int asks;
        char name[sizeof p->name];
    } mine = {p->lt != NULL, "dtm's own kernel"}, *all = calloc((size_t)ranks, sizeof *all);
    int64_t *bytes = calloc((size_t)ranks, sizeof *bytes);
    if (!all || !bytes) dtm_status_fail(status, "out of memory for the names of %d ranks' products", ranks);
    if (p->lt) snprintf(mine.name, sizeof mine.name, "cuBLASLt %.50s", dtm_cuda_describe(rank->device->cuda, DTM_LIBCUBLASLT)->shown);
    bool ok = dtm_comm_agree(rank->comm, status);
    for (int r = 0; ok && r < ranks; r++) bytes[r] = sizeof mine;
    ok = ok && dtm_all_gather(dtm_comm_world(rank->comm), DTM_ALGORITHM_RING, &mine, all, bytes, status);
    while (ok && from < ranks && !all[from].asks) from++;
    if (ok) memcpy(p->name, all[from < ranks ? from : 0].name, sizeof p->name);
    free(all), free(bytes);
    return ok;
}

static void say_generated(const dtm_rank *rank) {
    const dtm_device_products *p = rank->device->products;
    size_t without = 0;
    for (size_t i = 0; i < p->n_choices; i++) without += !p->choices[i].found;
    if (without && !rank->options->quiet && dtm_comm_rank(rank->comm) == 0)
        fprintf(stderr, "note: cuBLASLt does not take %zu of %zu shapes of products: those are multiplied by dtm's own kernel\n", without, p->n_choices);
}

bool dtm_device_products_load(dtm_rank *rank, dtm_status *status) {
    dtm_device_products *p = rank->device->products;
    if (p->lt && add_choices(rank, status) && rank->options->tune) dtm_products_tune(rank, status);
    if (!dtm_comm_agree(rank->comm, status) || !exchange(rank, status) || !agree_on_name(rank, status)) return false;
    if (p->lt) say_generated(rank);
    return !p->lt || !rank->options->tune || dtm_products_keep(rank, status);
}

bool dtm_device_asks_library(const dtm_device *device) { return device->products && device->products->lt; }

void dtm_device_products_name(dtm_device *device, char out[64]) { memcpy(out, device->products->name, sizeof device->products->name); }

void dtm_device_choices(dtm_device *device, char out[96]) {
    snprintf(out, 96, "%s, algorithms %s", device->products->name, device->products->digest);
}

void dtm_device_products_free(dtm_device *device) {
    dtm_device_products *p = device->products;
    if (!p) return;
    for (size_t i = 0; i < p->n_choices; i++) {
        for (int o = A; o < OPERANDS; o++)
            if (p->choices[i].layouts[o]) p->lt->MatrixLayoutDestroy(p->choices[i].layouts[o]);
        if (p->choices[i].desc) p->lt->MatmulDescDestroy(p->choices[i].desc);
        free(p->choices[i].candidates);
    }
    if (p->handle) p->lt->Destroy(p->handle);
    free(p->choices);
    free(p);
    device->products = NULL;
}

/* ---- in a step ---- */

dtm_cublas_status dtm_product_call(dtm_device *device, const choice *c, const dtm_cu_pointer operands[OPERANDS], bool adds) {
    const dtm_device_products *p = device->products;
    const float one = 1, beta = adds ? 1 : 0;
    void *to = (void *)(uintptr_t)operands[C], *workspace = (void *)(uintptr_t)(device->memory + (dtm_cu_pointer)p->workspace);
    return p->lt->Matmul(p->handle, c->desc, &one, (const void *)(uintptr_t)operands[B], c->layouts[B], (const void *)(uintptr_t)operands[A], c->layouts[A],
                         &beta, to, c->layouts[C], to, c->layouts[C], &c->algorithm, workspace, c->workspace, device->compute);
}

static int64_t plain_type(int32_t type) { return type == DTM_CUBLAS_BF16 ? DTM_MATMUL_BF16 : type == DTM_CUBLAS_F16 ? DTM_MATMUL_F16 : DTM_MATMUL_F32; }

static bool generate(dtm_rank *rank, const dtm_plan_instruction *at, const product *p, const dtm_cu_pointer operands[OPERANDS], bool adds, dtm_status *status) {
    const shape *s = &p->of;
    const dtm_matmul_sizes sizes = {.batch = s->batch, .m = s->m, .n = s->n, .k = s->k, .a_batch = s->stride[A], .a_row = s->row[A], .a_col = s->column[A],
                                    .b_batch = s->stride[B], .b_row = s->row[B], .b_col = s->column[B], .c_batch = s->stride[C], .c_row = s->row[C],
                                    .a_type = plain_type(s->type[A]), .b_type = plain_type(s->type[B]), .c_type = plain_type(s->type[C]), .accumulate = adds};
    return dtm_device_product(rank->device, &sizes, operands[A], operands[B], operands[C], at->name, status);
}

/* Offsets of turn `turn` of loops [from, until), the last fastest. */
static void advance(const product *p, int from, int until, int64_t turn, dtm_cu_pointer operands[OPERANDS]) {
    for (int l = until - 1; l >= from; l--) {
        int64_t i = turn % p->loops[l].count;
        turn /= p->loops[l].count;
        for (int o = A; o < OPERANDS; o++) operands[o] += (dtm_cu_pointer)(i * p->loops[l].step[o] * p->bytes[o]);
    }
}

bool dtm_device_multiply(dtm_rank *rank, uint32_t instruction, double *work, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[instruction];
    const dtm_plan_matmul *m = &at->matmul;
    bool adds = m->accumulate == DTM_PLAN_ADD || (m->accumulate == DTM_PLAN_ADD_LATER && rank->later);
    const dtm_cu_pointer base[OPERANDS] = {(dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, m->a), (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, m->b),
                                           (dtm_cu_pointer)(uintptr_t)dtm_rank_buffer(rank, m->c)};
    product p;
    describe(rank, m, &p);
    if (!p.turns) p.turns = 1, p.sums = 0, p.of.k = 0; /* nothing to add up: c is 0, or stays */
    if (is_empty(&p.of) || !p.products || (!p.of.k && adds)) return true;
    const choice *c = p.of.k && rank->device->products->lt ? find_choice(rank->device->products, &p.of) : NULL;
    for (int64_t outer = 0; outer < p.products; outer++)
        for (int64_t turn = 0; turn < p.turns; turn++) {
            dtm_cu_pointer operands[OPERANDS] = {base[A], base[B], base[C]};
            advance(&p, 0, p.outers, outer, operands);
            advance(&p, p.outers, p.outers + p.sums, turn, operands);
            if (c && c->found && !dtm_mark_product(rank->device, status)) return false;
            bool ok = c && c->found ? check(rank->device, dtm_product_call(rank->device, c, operands, adds || turn), at->name, status) : generate(rank, at, &p, operands, adds || turn, status);
            if (!ok) return false;
        }
    *work = 2.0 * (double)(p.products * p.turns * p.of.batch) * (double)p.of.m * (double)p.of.n * (double)p.of.k;
    return true;
}
