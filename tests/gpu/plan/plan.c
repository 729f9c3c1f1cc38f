/* Plans made here, run on the simulated GPU by the runtime: what programs hardly come to. Products in all layouts that a plan can ask
 * for, against sums in double; numbers in buffers of every type and size; boxes that are copied microbatch by microbatch; a kernel with
 * tuples in all copies of a loop, and one that meets a bad input. Each in steps that run as they are, that are captured, that are
 * launched as a graph.
 *
 *     plan cublaslt|generated */
#include "kernels/cpu/half.h"
#include "runtime/cuda/device.h"
#include "runtime/test_check.h"

#include <math.h>

enum { STEPS = 3, MOST = 400 };

/* ---- a plan in the making ---- */

static dtm_plan_extent extents[MOST];
static dtm_plan_size sizes[MOST];
static dtm_plan_buffer buffers[MOST];
static dtm_plan_instruction instructions[MOST];
static dtm_plan_loop loops[] = {{"", 0, 0, false, 0}, {"layer", 3, 0, false, 0}, {"m", 2, 0, true, 0}};
static dtm_plan plan;

static void begin_plan(void) {
    plan = (dtm_plan){.version = DTM_PLAN_FORMAT, .program = "by_hand", .hash = "0", .n_axes = 2, .axes = {{"a", 1, false}, {"m", 2, true}},
                      .ranks = 1, .microbatches = 2, .n_extents = 1, .n_sizes = 1, .n_loops = 3, .n_buffers = 1, .extents = extents, .sizes = sizes,
                      .loops = loops, .buffers = buffers, .instructions = instructions};
    buffers[0].modulus = 1;
}

static uint32_t number(int64_t value) {
    for (uint32_t i = 1; i < plan.n_sizes; i++)
        if (sizes[i].base == value && !sizes[i].count) return i;
    sizes[plan.n_sizes] = (dtm_plan_size){value, 0, 0, {0}};
    return plan.n_sizes++;
}

static uint32_t extent(int64_t whole, bool in_time) {
    extents[plan.n_extents] = (dtm_plan_extent){"d", whole, in_time, {{1, 1}}};
    return plan.n_extents++;
}

/* A buffer of one dimension, behind all others. */
static uint32_t buffer(dtm_plan_dtype dtype, int64_t elements, uint32_t loop) {
    int64_t bytes = (elements * dtm_plan_dtype_bytes(dtype) + 63) / 64 * 64;
    int copies = loop ? 3 : 1;
    buffers[plan.n_buffers] = (dtm_plan_buffer){.name = "buffer", .dtype = dtype, .rank = 1, .dims = {extent(elements, false)}, .offset = plan.arena_bytes,
                                                .stride = bytes, .modulus = (uint32_t)copies, .loop = loop};
    plan.arena_bytes += bytes * copies;
    return plan.n_buffers++;
}

static dtm_plan_instruction *instruction(dtm_plan_kind kind, const char *name) {
    instructions[plan.n_instructions] = (dtm_plan_instruction){.kind = kind, .name = name, .line = plan.n_instructions + 1};
    return &instructions[plan.n_instructions++];
}

/* ---- numbers ---- */

static uint64_t state = 7;
static int64_t draw(int64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % below;
}

static double get(dtm_plan_dtype dtype, const void *from, int64_t i) {
    if (dtype == DTM_PLAN_F32) return (double)((const float *)from)[i];
    uint16_t bits = ((const uint16_t *)from)[i];
    return (double)(dtype == DTM_PLAN_BF16 ? dtm_of_bf16(bits) : dtm_of_f16(bits));
}

/* ---- products ---- */

enum { PRODUCTS = 48, LOOPS = 2 };

typedef struct operand {
    dtm_plan_dtype dtype;
    uint32_t buffer;
    int64_t batch, row, column, outer[LOOPS], elements;
    void *before; /* its bytes before the first step */
} operand;

typedef struct product {
    int64_t batch, m, n, k, count[LOOPS];
    bool reduces[LOOPS];
    int n_outer;
    bool adds;
    operand of[3];
} product;

static product products[PRODUCTS];

/* Strides of a matrix, of a batch and of loops: dense in one of two orders, with holes, with no stride of 1, or with the batches between the rows. */
static void lay_out(operand *o, int64_t rows, int64_t columns, const product *p, int kind) {
    int64_t hole = kind == 2 ? 3 : 0, apart = kind == 3 ? 2 : 1;
    bool turned = kind == 1 || kind == 3;
    o->column = turned ? (rows + hole) * apart : apart;
    o->row = turned ? apart : (columns + hole) * apart;
    int64_t next = (rows ? (rows - 1) * o->row : 0) + (columns ? (columns - 1) * o->column : 0) + 1 + hole;
    o->batch = next;
    if (kind == 4) { /* rows of a batch beside those of the others: [m, batch, n] */
        o->batch = columns + 1;
        o->row = o->batch * p->batch;
        next = o->row * (rows ? rows : 1);
    } else
        next *= p->batch ? p->batch : 1;
    for (int l = p->n_outer - 1; l >= 0; l--) {
        o->outer[l] = o == &p->of[2] && p->reduces[l] ? 0 : next;
        if (o->outer[l]) next *= p->count[l] ? p->count[l] : 1;
    }
    o->elements = next;
}

static void make_product(product *p, int index) {
    static const int64_t lengths[] = {1, 2, 5, 16, 19, 33};
    static const dtm_plan_dtype types[][2] = {{DTM_PLAN_F32, DTM_PLAN_F32}, {DTM_PLAN_BF16, DTM_PLAN_F32}, {DTM_PLAN_BF16, DTM_PLAN_BF16}, {DTM_PLAN_F16, DTM_PLAN_F16}, {DTM_PLAN_F16, DTM_PLAN_F32}};
    *p = (product){.batch = index % 3 ? 1 : 2, .m = lengths[draw(6)], .n = lengths[draw(6)], .k = lengths[draw(6)], .n_outer = (int)draw(3), .adds = draw(2)};
    if (index == 11) p->k = 0;
    if (index == 13) p->m = 0;
    for (int l = 0; l < p->n_outer; l++) p->count[l] = 1 + draw(3), p->reduces[l] = draw(2);
    if (index == 17) p->n_outer = 1, p->count[0] = 0, p->reduces[0] = true;
    const dtm_plan_dtype *type = types[index % 5];
    p->of[0].dtype = p->of[1].dtype = type[0];
    p->of[2].dtype = type[1];
    lay_out(&p->of[0], p->m, p->k, p, (int)draw(5));
    lay_out(&p->of[1], p->k, p->n, p, (int)draw(5));
    lay_out(&p->of[2], p->m, p->n, p, 2 * (int)draw(3));
    for (int o = 0; o < 3; o++) p->of[o].buffer = buffer(p->of[o].dtype, p->of[o].elements, 0);
    dtm_plan_matmul *m = &instruction(DTM_PLAN_MATMUL, "product")->matmul;
    *m = (dtm_plan_matmul){.a = p->of[0].buffer, .b = p->of[1].buffer, .c = p->of[2].buffer, .batch = number(p->batch), .m = number(p->m), .n = number(p->n),
                           .k = number(p->k), .a_batch = number(p->of[0].batch), .a_row = number(p->of[0].row), .a_col = number(p->of[0].column),
                           .b_batch = number(p->of[1].batch), .b_row = number(p->of[1].row), .b_col = number(p->of[1].column),
                           .c_batch = number(p->of[2].batch), .c_row = number(p->of[2].row), .accumulate = p->adds ? DTM_PLAN_ADD : DTM_PLAN_SET,
                           .n_outer = (uint8_t)p->n_outer};
    for (int l = 0; l < p->n_outer; l++)
        m->outer[l] = (dtm_plan_outer){number(p->count[l]), number(p->of[0].outer[l]), number(p->of[1].outer[l]), number(p->of[2].outer[l]), p->reduces[l]};
}

static void fill_product(dtm_rank *rank, product *p, dtm_status *status) {
    for (int o = 0; o < 3; o++) {
        operand *of = &p->of[o];
        int64_t each = dtm_plan_dtype_bytes(of->dtype);
        of->before = zeroed(of->elements * each);
        for (int64_t i = 0; i < of->elements; i++) dtm_number_as(of->dtype, (double)(draw(33) - 16) / 16, (char *)of->before + i * each);
        CHECK(dtm_rank_write(rank, dtm_rank_buffer(rank, of->buffer), of->before, of->elements * each, status));
    }
}

/* One element of what a step adds up. */
static double sum_of(const product *p, int64_t b, int64_t i, int64_t j, const int64_t outer[LOOPS]) {
    double sum = 0;
    int64_t turns = 1, at[LOOPS] = {outer[0], outer[1]};
    for (int l = 0; l < p->n_outer; l++)
        if (p->reduces[l]) turns *= p->count[l];
    for (int64_t t = 0; t < turns; t++) {
        int64_t rest = t, x = b * p->of[0].batch + i * p->of[0].row, y = b * p->of[1].batch + j * p->of[1].column;
        for (int l = 0; l < p->n_outer; l++) {
            if (p->reduces[l]) at[l] = rest % p->count[l], rest /= p->count[l];
            x += at[l] * p->of[0].outer[l], y += at[l] * p->of[1].outer[l];
        }
        for (int64_t k = 0; k < p->k; k++)
            sum += get(p->of[0].dtype, p->of[0].before, x + k * p->of[0].column) * get(p->of[1].dtype, p->of[1].before, y + k * p->of[1].row);
    }
    return sum;
}

static void check_product(dtm_rank *rank, const product *p, int index, dtm_status *status) {
    const operand *c = &p->of[2];
    int64_t bytes = c->elements * dtm_plan_dtype_bytes(c->dtype), turns[LOOPS] = {1, 1}, at[LOOPS];
    const void *is = dtm_rank_read(rank, dtm_rank_buffer(rank, c->buffer), bytes, status);
    bool *written = zeroed(c->elements);
    double unit = c->dtype == DTM_PLAN_F32 ? 1e-6 : c->dtype == DTM_PLAN_F16 ? 1e-3 : 8e-3;
    int wrong = 0;
    CHECK(is != NULL);
    if (!is) return;
    for (int l = 0; l < p->n_outer; l++) turns[l] = p->reduces[l] ? 1 : p->count[l];
    for (at[0] = 0; at[0] < turns[0]; at[0]++)
        for (at[1] = 0; at[1] < turns[1]; at[1]++)
            for (int64_t e = 0; e < p->batch * p->m * p->n; e++) {
                int64_t j = e % p->n, i = e / p->n % p->m, b = e / p->n / p->m;
                int64_t place = b * c->batch + i * c->row + j;
                for (int l = 0; l < p->n_outer; l++) place += at[l] * c->outer[l];
                double once = sum_of(p, b, i, j, at), wants = p->adds ? get(c->dtype, c->before, place) + STEPS * once : once;
                written[place] = true;
                wrong += !(fabs(get(c->dtype, is, place) - wants) <= unit * (8 + 4 * fabs(wants) + (double)p->k));
            }
    for (int64_t i = 0; i < c->elements; i++) wrong += !written[i] && !(get(c->dtype, is, i) == get(c->dtype, c->before, i)); /* holes */
    if (wrong) fprintf(stderr, "product %d: %d elements are wrong\n", index, wrong);
    CHECK(!wrong);
    free(written);
}

/* ---- kernels ---- */

static const char source[] =
    "struct tuple { void *b[1]; void *scratch; long long z[1]; };\n"
    "struct tuples { tuple t[2]; unsigned long long *error; unsigned *mark, number; };\n"
    "extern \"C\" __global__ void __launch_bounds__(32) first(const __grid_constant__ tuples p) {\n"
    "    if (!(threadIdx.x | blockIdx.y)) *p.mark = p.number;\n"
    "    ((long long *)p.t[blockIdx.y].scratch)[threadIdx.x] = p.t[blockIdx.y].z[0] + threadIdx.x;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(32) second(const __grid_constant__ tuples p) {\n"
    "    if (!(threadIdx.x | blockIdx.y)) *p.mark = p.number;\n"
    "    float *to = (float *)p.t[blockIdx.y].b[0];\n"
    "    to[threadIdx.x] += (float)((long long *)p.t[blockIdx.y].scratch)[threadIdx.x];\n"
    "}\n";
static const char meets[] =
    "struct tuple { void *b[1]; void *scratch; long long z[1]; };\n"
    "struct tuples { tuple t[1]; unsigned long long *error; unsigned *mark, number; };\n"
    "extern \"C\" __global__ void __launch_bounds__(32) meet(const __grid_constant__ tuples p) {\n"
    "    if (!(threadIdx.x | blockIdx.y)) *p.mark = p.number;\n"
    "    if (((int *)p.t[0].b[0])[threadIdx.x] >= p.t[0].z[0]) atomicMin(p.error, (unsigned long long)threadIdx.x);\n"
    "}\n";

static int64_t one(const int64_t *z) { return (void)z, 1; }
static int64_t words(const int64_t *z) { return (void)z, 32 * 8; }
static const dtm_plan_cuda_launch add_launches[] = {{"first", 32, one, NULL}, {"second", 32, one, NULL}}, meet_launches[] = {{"meet", 32, one, NULL}};
static const dtm_plan_cuda_kernel kernels[] = {{"add", source, 2, add_launches, 1, 1, 2, words, 0, 1}, {"meet", meets, 1, meet_launches, 1, 1, 1, NULL, 1, 2}};

static uint32_t added, layered, indices;

static void add_kernels(void) {
    static uint32_t buffers_of[3], sizes_of[3], loops_of[] = {0, 1, 0}, index[1], limit[1], none[] = {0};
    added = buffer(DTM_PLAN_F32, 32, 0);
    layered = buffer(DTM_PLAN_F32, 32, 1);
    uint32_t again = buffer(DTM_PLAN_F32, 32, 0);
    buffers_of[0] = added, buffers_of[1] = layered, buffers_of[2] = again;
    for (int i = 0; i < 3; i++) sizes_of[i] = number(100 * (i + 1));
    instruction(DTM_PLAN_KERNEL, "add")->kernel = (dtm_plan_launch){0, 3, {3, buffers_of}, {3, sizes_of}, {3, loops_of}, NULL, 0};
    indices = buffer(DTM_PLAN_I32, 32, 0);
    index[0] = indices, limit[0] = number(1000);
    instruction(DTM_PLAN_KERNEL, "meet")->kernel = (dtm_plan_launch){1, 1, {1, index}, {1, limit}, {1, none}, "outside V", indices};
    plan.cuda = kernels;
    plan.n_cuda = plan.n_kernels = 2;
}

static void check_kernels(dtm_rank *rank, dtm_status *status) {
    for (int copy = 0; copy < 4; copy++) {
        void *at = copy < 3 ? dtm_rank_buffer_copy(rank, layered, copy) : dtm_rank_buffer(rank, added);
        const float *is = dtm_rank_read(rank, at, 128, status);
        for (int i = 0; is && i < 32; i++) CHECK(is[i] == (float)(STEPS * ((copy < 3 ? 200 : 100) + i)));
        CHECK(is != NULL);
    }
}

/* ---- numbers and boxes ---- */

enum { FILLS = 10 };
static uint32_t fills[FILLS], whole, block, gathered, told;

static void add_fills(void) {
    static const dtm_plan_dtype types[] = {DTM_PLAN_F32, DTM_PLAN_BF16, DTM_PLAN_F16, DTM_PLAN_U8, DTM_PLAN_I32};
    for (int i = 0; i < FILLS; i++) {
        fills[i] = buffer(types[i % 5], 1 + 6 * (i / 5), 0);
        instruction(DTM_PLAN_SCALAR, "fill")->scalar = (dtm_plan_scalar){DTM_PLAN_FILL, fills[i], i < 5 ? 3 : 258.0 / 2};
    }
    told = buffer(DTM_PLAN_F32, 1, 0);
    instruction(DTM_PLAN_SCALAR, "rate")->scalar = (dtm_plan_scalar){DTM_PLAN_LEARNING_RATE, told, 0};
    instruction(DTM_PLAN_REPORT, "told")->io = (dtm_plan_io){0, told, "told"};
}

static void check_fills(dtm_rank *rank, dtm_status *status) {
    for (int i = 0; i < FILLS; i++) {
        const dtm_plan_buffer *b = &buffers[fills[i]];
        int64_t each = dtm_plan_dtype_bytes(b->dtype), n = 1 + 6 * (i / 5);
        const char *is = dtm_rank_read(rank, dtm_rank_buffer(rank, fills[i]), n * each + 1, status);
        char wants[8];
        dtm_number_as(b->dtype, i < 5 ? 3 : 258.0 / 2, wants);
        for (int64_t e = 0; is && e < n; e++) CHECK(memcmp(is + e * each, wants, (size_t)each) == 0);
        CHECK(is && (n * each % 64 == 0 || is[n * each] == 0)); /* nothing behind it */
    }
}

/* whole[4, 7, 3] is cut along its 7 in time, and put together again. */
static void add_boxes(void) {
    uint32_t cut = extent(7, true), outer = extent(4, false), full = extent(7, false), inner = extent(3, false);
    whole = buffer(DTM_PLAN_BF16, 84, 0), block = buffer(DTM_PLAN_BF16, 84, 0), gathered = buffer(DTM_PLAN_BF16, 84, 0);
    for (int i = 0; i < 3; i++) {
        dtm_plan_buffer *b = &buffers[i == 0 ? whole : i == 1 ? block : gathered];
        b->rank = 3;
        b->dims[0] = outer, b->dims[1] = i == 1 ? cut : full, b->dims[2] = inner;
    }
    uint32_t begin = plan.n_instructions;
    instruction(DTM_PLAN_REPEAT, "m")->repeat = (dtm_plan_repeat){2, false, begin + 4};
    instruction(DTM_PLAN_COPY, "cut")->copy = (dtm_plan_copy){whole, block, 0};
    instruction(DTM_PLAN_COPY, "join")->copy = (dtm_plan_copy){block, gathered, 0};
    instruction(DTM_PLAN_END, "m")->repeat = (dtm_plan_repeat){2, false, begin};
}

/* ---- runs ---- */

static bool run_rank(dtm_comm *comm, void *argument, dtm_status *status) {
    dtm_options options = {.threads = 1, .generated_products = *(bool *)argument, .cache = "cache"};
    dtm_rank rank;
    memset(&rank, 0, sizeof rank);
    bool ok = dtm_rank_load(&rank, &plan, &options, comm, status);
    CHECK_OK(ok, status);
    char *zeros = zeroed(plan.arena_bytes); /* a device's memory is rubbish at first */
    ok = ok && dtm_rank_write(&rank, rank.arena, zeros, plan.arena_bytes, status);
    free(zeros);
    uint16_t box[84];
    for (int i = 0; i < 84; i++) box[i] = (uint16_t)(i + 1);
    for (int i = 0; ok && i < PRODUCTS; i++) fill_product(&rank, &products[i], status);
    ok = ok && dtm_rank_write(&rank, dtm_rank_buffer(&rank, whole), box, sizeof box, status);
    for (int step = 0; ok && step < STEPS; step++) {
        ok = dtm_rank_step(&rank, step, status) && dtm_rank_take_step(&rank, step, status);
        CHECK_OK(ok && rank.n_reports == 1 && rank.reports[0].value == (double)(float)rank.learning_rate, status);
        CHECK(rank.learning_rate == (step + 1) / 16.0);
    }
    for (int i = 0; ok && i < PRODUCTS; i++) check_product(&rank, &products[i], i, status);
    if (ok) check_kernels(&rank, status), check_fills(&rank, status);
    const void *is = ok ? dtm_rank_read(&rank, dtm_rank_buffer(&rank, gathered), sizeof box, status) : NULL;
    CHECK(is && memcmp(is, box, sizeof box) == 0);
    /* Elements 5 and 9 are bad; the message has the least, from the step in which it was. */
    int32_t bad[32] = {[5] = 1000, [9] = 1001};
    ok = ok && dtm_rank_write(&rank, dtm_rank_buffer(&rank, indices), bad, sizeof bad, status) && dtm_rank_step(&rank, STEPS, status);
    CHECK(ok);
    CHECK_FAILS(dtm_rank_take_step(&rank, STEPS, status), status, "step 4: element 5 of `buffer` is 1000, outside V");
    for (int i = 0; i < PRODUCTS; i++)
        for (int o = 0; o < 3; o++) free(products[i].of[o].before);
    dtm_rank_unload(&rank);
    *status = (dtm_status){0};
    return true;
}

int main(int argc, char **argv) {
    dtm_status status = {0};
    bool generated = argc > 1 && !strcmp(argv[1], "generated");
    dtm_cuda *cuda = NULL;
    dtm_cuda_options libraries = {NULL, false};
    if (!dtm_cuda_create(&libraries, &cuda, &status) || !dtm_cuda_nvrtc(cuda, &status)) {
        printf("skipped: %s\n", status.message);
        return 77;
    }
    begin_plan();
    plan.train = (dtm_plan_train){.present = true, .schedule = DTM_PLAN_CONSTANT, .peak = 1, .warmup = 16};
    for (int i = 0; i < PRODUCTS; i++) make_product(&products[i], i);
    add_kernels();
    add_fills();
    add_boxes();
    CHECK(plan.n_extents < MOST && plan.n_sizes < MOST && plan.n_buffers < MOST && plan.n_instructions < MOST);
    CHECK_OK(dtm_local_run(1, run_rank, &generated, &status), &status);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failures\n", (int)checks, (int)failures);
    return failures > 0;
}
