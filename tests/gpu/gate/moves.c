/* The templates that move elements, on the simulated GPU against plain C, bit for bit:
 *     moves SOURCE_ROOT PACKAGES
 * What lies between and behind what they write stays as it was. Skipped (77) without NVRTC. */
#include "tests/gpu/gate/simulated.h"

/* ---- strided copies ---- */

typedef struct box {
    const void *from;
    void *to;
    int64_t size[8], from_step[8], to_step[8];
} box;

static int64_t units_of(const box *b) {
    int64_t units = 1;
    for (int d = 0; d < 8; d++) units *= b->size[d];
    return units;
}

/* What a step says: elements of both sides from the first to the last. */
static int64_t extent(const box *b, const int64_t *step) {
    int64_t most = 1;
    for (int d = 0; d < 8; d++) most += (b->size[d] - 1) * step[d];
    return units_of(b) ? most : 1;
}

static void copy_plainly(const box *b, const unsigned char *from, unsigned char *to, int bytes) {
    for (int64_t u = 0; u < units_of(b); u++) {
        int64_t rest = u, at = 0, into = 0;
        for (int d = 7; d >= 0; d--) {
            at += rest % b->size[d] * b->from_step[d];
            into += rest % b->size[d] * b->to_step[d];
            rest /= b->size[d];
        }
        memcpy(to + into * bytes, from + at * bytes, (size_t)bytes);
    }
}

static void test_copy(int a, box b, int bytes, int grid, int order) {
    launch l = {.order = order};
    size_t from_bytes = (size_t)(extent(&b, b.from_step) * bytes), to_bytes = (size_t)(extent(&b, b.to_step) * bytes);
    unsigned char *from = memory(&l, "from", from_bytes, SIM_READ), *to = memory(&l, "to", to_bytes, SIM_READ | SIM_WRITE);
    unsigned char *wanted = malloc(to_bytes);
    if (!wanted) abort();
    for (size_t i = 0; i < from_bytes; i++) from[i] = (unsigned char)(draw() >> 16);
    for (size_t i = 0; i < to_bytes; i++) wanted[i] = to[i] = (unsigned char)(draw() >> 16);
    b.from = from, b.to = to;
    memcpy(l.params, &b, l.bytes = sizeof b);
    char entry[40];
    snprintf(entry, sizeof entry, "dtm_copy_box_%d", bytes);
    run(&l, a, entry, grid, 1, 256, (uint64_t)(bytes + grid));
    copy_plainly(&b, from, wanted, bytes);
    CHECK(!memcmp(to, wanted, to_bytes));
    free(wanted);
    release(&l);
}

/* Dimensions in the order of `to`, dense there; `order` is theirs in `from`, outermost first. `from` is a part of a larger one. */
static box box_of(const int64_t size[8], const int order[8], int64_t more, int64_t gap) {
    box b = {0};
    int64_t from = 1, to = 1;
    for (int i = 7; i >= 0; i--) {
        b.size[i] = size[i];
        b.to_step[i] = to;
        to *= size[i] + (i == 7 ? gap : 0);
        b.from_step[order[i]] = from;
        from *= size[order[i]] + more;
    }
    return b;
}

static void test_copies(int a) {
    static const int straight[8] = {0, 1, 2, 3, 4, 5, 6, 7}, turned[8] = {0, 1, 2, 3, 4, 5, 7, 6}, far[8] = {7, 6, 5, 4, 3, 2, 1, 0},
                     rolled[8] = {0, 1, 2, 3, 5, 6, 7, 4};
    static const int64_t boxes[][8] = {{1, 1, 1, 1, 1, 1, 1, 1},    {1, 1, 1, 1, 1, 1, 1, 31}, {1, 1, 1, 1, 1, 3, 33, 31}, {1, 1, 1, 1, 2, 1, 32, 32},
                                       {1, 1, 1, 1, 1, 1, 70, 65}, {2, 3, 2, 1, 2, 3, 2, 5},  {1, 1, 1, 4, 0, 2, 3, 1},   {1, 1, 1, 1, 7, 1, 1, 97}};
    static const int bytes[] = {1, 2, 4, 8, 16};
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++)
        for (int k = 0; k < 5; k++) {
            int n = (int)i + k;
            test_copy(a, box_of(boxes[i], straight, n % 2, n % 3), bytes[k], 1 + n % 4, n % 3);
            test_copy(a, box_of(boxes[i], turned, n % 2, n % 3), bytes[k], 1 + n % 4, (n + 1) % 3);
            test_copy(a, box_of(boxes[i], i % 2 ? far : rolled, n % 2, n % 3), bytes[k], 1 + n % 4, (n + 2) % 3);
        }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    root = argv[1];
    dtm_cuda *cuda = open_nvrtc(argv[2]);
    if (!cuda) return 77;
    jit = open_jit(cuda);
    load("copies.cu");
    for (int a = 0; a < ARCHITECTURES; a++) test_copies(a);
    for (int a = 0; a < ARCHITECTURES; a++) sim_module_free(modules[a]);
    dtm_jit_destroy(jit);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
