/* A plan written by hand, for three ranks: blocks of uneven size, collectives through stages, loops in both orders,
 * tuples of a kernel, once or in all copies of a loop, products with outer loops. And names, learning rates, flags. */
#include "kernels/cpu/matmul.h"
#include "runtime/rank.h"
#include "runtime/test_check.h"

#include <math.h>
#include <string.h>

/* ---- the plan ---- */

enum { R = 1, DA, D, E, EA, ONE, SIX, TIME, UNITS, EXTENTS }; /* extents: whole or split over the axis `a` */
static const dtm_plan_extent extents[EXTENTS] = {
    [R] = {"R", 2, 0, {{0, 0}}},     [DA] = {"D", 7, 1, {{0, 1}}},   [D] = {"D", 7, 0, {{0, 0}}},
    [E] = {"E", 4, 0, {{0, 0}}},     [EA] = {"E", 4, 1, {{0, 1}}},   [ONE] = {"one", 1, 0, {{0, 0}}},
    [SIX] = {"six", 6, 0, {{0, 0}}}, [TIME] = {"S", 5, 1, {{1, 1}}}, [UNITS] = {"U", 7, 1, {{0, 2}}},
};

enum { NUMBER = 1, Z_ONE, Z_TWO, Z_THREE, Z_ZERO, Z_SIX, SIZES };
static const dtm_plan_size sizes[SIZES] = {
    [NUMBER] = {0, 1, 1, {DTM_PLAN_COPY_NUMBER}},
    [Z_ONE] = {1, 0, 0, {0}},
    [Z_TWO] = {2, 0, 0, {0}},
    [Z_THREE] = {3, 0, 0, {0}},
    [Z_ZERO] = {0, 0, 0, {0}},
    [Z_SIX] = {6, 0, 0, {0}},
};

static const dtm_plan_loop loops[] = {{"", 0, 0, false}, {"layer", 3, 0, false}};

enum { BLOCK = 1, WHOLE, ROWS, COLUMNS, TRACE, STATE, SUM_A, SUM_B, PRODUCT, LAYERED, COPIES, BUFFERS };
#define AT(n) .offset = (n)*256, .modulus = 1
static const dtm_plan_buffer buffers[BUFFERS] = {
    [0] = {.modulus = 1},
    [BLOCK] = {"block", DTM_PLAN_F32, 2, {R, DA}, AT(0)},
    [WHOLE] = {"whole", DTM_PLAN_F32, 2, {R, D}, AT(1)},
    [ROWS] = {"rows", DTM_PLAN_F32, 2, {DA, E}, AT(2)},
    [COLUMNS] = {"columns", DTM_PLAN_F32, 2, {D, EA}, AT(3)},
    [TRACE] = {"trace", DTM_PLAN_F32, 1, {SIX}, AT(4)},
    [STATE] = {"state", DTM_PLAN_F32, 1, {ONE}, AT(5)},
    [SUM_A] = {"sum_a", DTM_PLAN_F32, 1, {D}, AT(6)},
    [SUM_B] = {"sum_b", DTM_PLAN_F32, 1, {E}, AT(7)},
    [PRODUCT] = {"product", DTM_PLAN_F32, 1, {SIX}, AT(8)},
    [LAYERED] = {"layered", DTM_PLAN_F32, 1, {ONE}, .offset = 9 * 256, .stride = 64, .modulus = 3, .loop = 1},
    [COPIES] = {"copies", DTM_PLAN_F32, 1, {E}, .offset = 10 * 256, .stride = 64, .modulus = 3, .loop = 1},
};

/* Appends the copy's number to a trace, whose length is in `state`. */
static void append(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    float *trace = args->buffers[0], *length = args->buffers[1], *layered = args->buffers[2];
    if (begin == end) return;
    trace[(int)(*length)++] = (float)args->sizes[0];
    *layered = (float)args->sizes[0];
}
static void set(const dtm_kernel_args *args, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) ((float *)args->buffers[0])[i] = (float)(args->sizes[0] + i);
}
static int64_t one(const int64_t *z) {
    return (void)z, 1;
}
static int64_t four(const int64_t *z) {
    return (void)z, 4;
}
static int64_t none(const int64_t *z) {
    return (void)z, 0;
}
static const dtm_plan_kernel kernels[] = {{"append", append, one, none, 1}, {"set", set, four, none, 2}};

#define LIST(...)                                                                                                      \
    {                                                                                                                  \
        sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (const uint32_t[]) {                                     \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }
#define COLLECTIVE(k, n, tensors, in, out)                                                                             \
    {                                                                                                                  \
        .kind = DTM_PLAN_COLLECTIVE, .name = "c", .collective = {                                                      \
            k,                                                                                                         \
            n,                                                                                                         \
            DTM_PLAN_F32,                                                                                              \
            false,                                                                                                     \
            1,                                                                                                         \
            sizeof(tensors) / sizeof *(tensors),                                                                       \
            tensors,                                                                                                   \
            in,                                                                                                        \
            out,                                                                                                       \
            -1                                                                                                         \
        }                                                                                                              \
    }
static const dtm_plan_tensor gathered[] = {{BLOCK, WHOLE}}, scattered[] = {{WHOLE, BLOCK}},
                             turned[] = {{ROWS, COLUMNS}}, summed[] = {{SUM_A, SUM_A}, {SUM_B, SUM_B}};
enum { STAGE = 4096 };

static const dtm_plan_instruction instructions[] = {
    COLLECTIVE(DTM_COLLECTIVE_ALL_GATHER, DTM_ALGORITHM_RING, gathered, -1, STAGE),
    COLLECTIVE(DTM_COLLECTIVE_REDUCE_SCATTER, DTM_ALGORITHM_RING, scattered, STAGE, -1),
    COLLECTIVE(DTM_COLLECTIVE_ALL_TO_ALL, DTM_ALGORITHM_PAIRWISE, turned, STAGE, STAGE + 512),
    COLLECTIVE(DTM_COLLECTIVE_ALL_REDUCE, DTM_ALGORITHM_RING, summed, STAGE, STAGE + 512),
    {.kind = DTM_PLAN_REPEAT, .repeat = {1, false, 7}},
    {.kind = DTM_PLAN_KERNEL, .name = "append", .kernel = {0, 1, LIST(TRACE, STATE, LAYERED), LIST(NUMBER), LIST(0), NULL, 0}},
    {.kind = DTM_PLAN_END, .repeat = {1, false, 4}},
    {.kind = DTM_PLAN_REPEAT, .phase = DTM_PLAN_BACKWARD, .repeat = {1, true, 10}},
    {.kind = DTM_PLAN_KERNEL,
     .phase = DTM_PLAN_BACKWARD,
     .name = "append",
     .kernel = {0, 1, LIST(TRACE, STATE, LAYERED), LIST(NUMBER), LIST(0), NULL, 0}},
    {.kind = DTM_PLAN_END, .phase = DTM_PLAN_BACKWARD, .repeat = {1, true, 7}},
    {.kind = DTM_PLAN_KERNEL,
     .name = "set",
     .kernel = {1, 3, LIST(SUM_A, COPIES, SUM_B), LIST(Z_TWO, Z_THREE, Z_SIX), LIST(0, 1, 0), NULL, 0}},
    /* product[i] (1 x 2, three of them) = the sum over two turns of sum_b[turn] * sum_a[2 i + ..] */
    {.kind = DTM_PLAN_MATMUL,
     .name = "product",
     .matmul = {.a = SUM_B,
                .b = SUM_A,
                .c = PRODUCT,
                .batch = Z_ONE,
                .m = Z_ONE,
                .n = Z_TWO,
                .k = Z_ONE,
                .a_batch = Z_ZERO,
                .a_row = Z_ONE,
                .a_col = Z_ONE,
                .b_batch = Z_ZERO,
                .b_row = Z_ONE,
                .b_col = Z_ONE,
                .c_batch = Z_ZERO,
                .c_row = Z_TWO,
                .n_outer = 2,
                .outer = {{Z_TWO, Z_ONE, Z_ONE, Z_ZERO, true}, {Z_THREE, Z_ZERO, Z_ONE, Z_TWO, false}}}},
};

static const dtm_plan_weight weight = {.path = "layer.{layer}.w", .buffer = LAYERED, .rank = 1, .dims = {{"one", 1}}};

static const dtm_plan plan = {
    .version = DTM_PLAN_FORMAT,
    .program = "by_hand",
    .hash = "0",
    .n_axes = 2,
    .axes = {{"a", 3, false}, {"m", 2, true}},
    .ranks = 3,
    .microbatches = 2,
    .arena_bytes = 8192,
    .kernels = {kernels, kernels, kernels},
    .n_kernels = 2,
    .n_extents = EXTENTS,
    .n_sizes = SIZES,
    .n_loops = 2,
    .n_buffers = BUFFERS,
    .n_instructions = sizeof instructions / sizeof *instructions,
    .extents = extents,
    .sizes = sizes,
    .loops = loops,
    .buffers = buffers,
    .weights = &weight,
    .instructions = instructions,
};

/* ---- blocks ---- */

static void check_blocks(void) {
    static const int64_t even[3][2] = {{0, 3}, {3, 3}, {6, 1}}, units[3][2] = {{0, 4}, {4, 3}, {7, 0}};
    int64_t at[DTM_PLAN_AXES];
    for (int r = 0; r < 3; r++) {
        dtm_coordinates_of(&plan, r, at);
        dtm_span a = dtm_extent_span(&plan, DA, at), u = dtm_extent_span(&plan, UNITS, at);
        CHECK(a.begin == even[r][0] && a.size == even[r][1]);
        CHECK(u.begin == units[r][0] && u.size == units[r][1]);
    }
    at[1] = 0;
    CHECK(dtm_extent_span(&plan, TIME, at).size == 2);
    at[1] = 1;
    CHECK(dtm_extent_span(&plan, TIME, at).begin == 2 && dtm_extent_span(&plan, TIME, at).size == 3);
    CHECK(dtm_buffer_axes(&plan, BLOCK) == 1 && dtm_buffer_axes(&plan, WHOLE) == 0);
    char name[64];
    dtm_weight_name(&plan, &weight, 2, name, sizeof name);
    CHECK(strcmp(name, "layer.2.w") == 0 && dtm_weight_copies(&plan, &weight) == 3);
}

/* ---- a run ---- */

/* Fills a rank's block of a buffer so that each element says its place in the whole. */
static void number_block(dtm_rank *rank, uint32_t buffer, float scale) {
    dtm_box box = dtm_rank_box(rank, buffer);
    const dtm_span *x = &box.spans[0], *y = &box.spans[1];
    float *to = dtm_rank_buffer(rank, buffer);
    for (int64_t i = 0; i < x->size; i++)
        for (int64_t j = 0; j < y->size; j++) to[i * y->size + j] = scale * (float)(10 * (x->begin + i) + y->begin + j);
}

static bool block_is(dtm_rank *rank, uint32_t buffer, float scale) {
    dtm_box box = dtm_rank_box(rank, buffer);
    const dtm_span *x = &box.spans[0], *y = &box.spans[1];
    const float *is = dtm_rank_buffer(rank, buffer);
    for (int64_t i = 0; i < x->size; i++)
        for (int64_t j = 0; j < y->size; j++)
            if (is[i * y->size + j] != scale * (float)(10 * (x->begin + i) + y->begin + j)) return false;
    return true;
}

static void check_collectives(dtm_rank *rank, dtm_status *status) {
    number_block(rank, BLOCK, 1);
    CHECK(dtm_run_collective(rank, 0, status) && block_is(rank, WHOLE, 1));
    memset(dtm_rank_buffer(rank, BLOCK), 0, 256);
    CHECK(dtm_run_collective(rank, 1, status) && block_is(rank, BLOCK, 3));
    number_block(rank, ROWS, 1);
    CHECK(dtm_run_collective(rank, 2, status) && block_is(rank, COLUMNS, 1));
    float *a = dtm_rank_buffer(rank, SUM_A), *b = dtm_rank_buffer(rank, SUM_B);
    for (int i = 0; i < 7; i++) a[i] = (float)i;
    for (int i = 0; i < 4; i++) b[i] = (float)-i;
    CHECK(dtm_run_collective(rank, 3, status) && a[6] == 18 && b[3] == -9);
}

static void check_step(dtm_rank *rank, bool forward_only, dtm_status *status) {
    static const float order[6] = {0, 1, 2, 2, 1, 0};
    const float *trace = dtm_rank_buffer(rank, TRACE), *a = dtm_rank_buffer(rank, SUM_A);
    const float *b = dtm_rank_buffer(rank, SUM_B), *product = dtm_rank_buffer(rank, PRODUCT);
    memset(dtm_rank_buffer(rank, STATE), 0, 4);
    memset(dtm_rank_buffer(rank, TRACE), 0, 24);
    rank->forward_only = forward_only;
    CHECK(dtm_rank_step(rank, 0, status));
    CHECK(*(const float *)dtm_rank_buffer(rank, STATE) == (forward_only ? 3 : 6));
    for (int i = 0; i < (forward_only ? 3 : 6); i++) CHECK(trace[i] == order[i]);
    for (int i = 0; i < 3; i++) CHECK(*(float *)dtm_rank_buffer_copy(rank, LAYERED, i) == (float)i);
    for (int i = 0; i < 4; i++) CHECK(a[i] == (float)(2 + i) && b[i] == (float)(6 + i));
    for (int i = 0; i < 12; i++)
        CHECK(((float *)dtm_rank_buffer_copy(rank, COPIES, i / 4))[i % 4] == (float)(3 + i % 4));
    for (int i = 0; i < 3; i++) CHECK(product[2 * i] == 6 * a[i] + 7 * a[i + 1]);
}

static bool run_rank(dtm_comm *comm, void *argument, dtm_status *status) {
    dtm_options options = {.threads = 2};
    dtm_rank rank;
    (void)argument;
    memset(&rank, 0, sizeof rank);
    bool ok = dtm_rank_load(&rank, &plan, &options, comm, status);
    CHECK(ok);
    if (ok) {
        check_collectives(&rank, status);
        check_step(&rank, false, status);
        check_step(&rank, true, status);
        CHECK(dtm_rank_owns(&rank, BLOCK) && dtm_rank_owns(&rank, WHOLE) == (dtm_comm_rank(comm) == 0));
    }
    dtm_rank_unload(&rank);
    return ok;
}

/* ---- numbers and flags ---- */

static void check_rates(void) {
    dtm_plan_train train = {.schedule = DTM_PLAN_COSINE, .peak = 1, .warmup = 10, .schedule_steps = 110, .floor = 0.1};
    CHECK(fabs(dtm_learning_rate(&train, 1) - 0.1) < 1e-15 && dtm_learning_rate(&train, 10) == 1);
    CHECK(fabs(dtm_learning_rate(&train, 60) - 0.55) < 1e-15 && fabs(dtm_learning_rate(&train, 500) - 0.1) < 1e-15);
    train.schedule = DTM_PLAN_LINEAR;
    CHECK(fabs(dtm_learning_rate(&train, 35) - 0.775) < 1e-15);
    train.schedule = DTM_PLAN_CONSTANT;
    CHECK(dtm_learning_rate(&train, 1000) == 1);
}

static bool parses(char *words[], int count, dtm_options *options, dtm_status *status) {
    *status = (dtm_status){0};
    return dtm_options_parse(count, words, options, status);
}

static void check_flags(void) {
    dtm_options o;
    dtm_status s;
    CHECK(parses((char *[]){"p", "train", "--data", "x", "--steps=7", "--local"}, 6, &o, &s) && o.steps == 7 &&
          o.local);
    CHECK(parses((char *[]){"p", "eval", "--data=x.safetensors"}, 3, &o, &s) && o.format == DTM_DATA_SAFETENSORS);
    CHECK(!parses((char *[]){"p", "train", "--data", "x", "--stepz", "7"}, 6, &o, &s) && strstr(s.message, "--steps"));
    CHECK(!parses((char *[]){"p", "train"}, 2, &o, &s) && strstr(s.message, "--data"));
    CHECK(!parses((char *[]){"p", "train", "--data", "x", "--steps", "0"}, 6, &o, &s));
    CHECK(!parses((char *[]){"p", "eval", "--data", "x", "--save-grads", "g"}, 6, &o, &s));
    CHECK(parses((char *[]){"p", "train", "--help"}, 3, &o, &s) && o.command == DTM_COMMAND_HELP);
}

int main(void) {
    dtm_status status = {0};
    check_blocks();
    check_rates();
    check_flags();
    CHECK_OK(dtm_local_run(3, run_rank, NULL, &status), &status);
    printf("%d checks, %d failures\n", (int)checks, (int)failures);
    return failures > 0;
}
