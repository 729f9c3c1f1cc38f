/* What the tests of the CPU kernels share: random numbers, buffers, and running a kernel whole and in parts.
 *
 * Buffers are allocated to the byte, workspaces too, filled with NaN: reading what was not written, or beyond an end
 * (with a sanitizer), shows. Every kernel is run whole and again in random parts, which must give the same bits. */
#ifndef DTM_TEST_KERNELS_H
#define DTM_TEST_KERNELS_H

#include "kernels/cpu/library.h"
#include "kernels/cpu/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int failures, checks;
extern uint64_t state; /* of the random numbers, through all tests */

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition), printf(__VA_ARGS__), printf("\n");                  \
        }                                                                                                              \
    } while (0)

static inline uint32_t roll(void) {
    return dtm_random_bits(7, 7, state++);
}
static inline int64_t below(int64_t n) {
    return (int64_t)(roll() % (uint64_t)n);
}
static inline float number(void) {
    return dtm_random_unit(roll()) * 2 - 1;
}

static inline float *fresh(int64_t count) {
    float *x = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    for (int64_t i = 0; i < count; i++) x[i] = NAN;
    return x;
}
static inline float *numbers(int64_t count) {
    float *x = fresh(count);
    for (int64_t i = 0; i < count; i++) x[i] = number();
    return x;
}

/* The largest difference, by the largest magnitude and `floor`; NaN anywhere gives NaN, which no tolerance passes. */
static inline double distance_over(const float *got, const double *want, int64_t count, double floor) {
    double most = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs(got[i] - want[i]);
        if (got[i] == want[i]) continue; /* infinities too */
        if (!(d <= most)) most = d;
        if (fabs(want[i]) > size) size = fabs(want[i]);
    }
    return most == 0 ? 0 : most / (size + floor);
}
static inline double distance(const float *got, const double *want, int64_t count) {
    return distance_over(got, want, count, 1e-3);
}

/* ---- running a kernel ---- */

static inline dtm_kernel_args with_scratch(dtm_kernel_args args, int64_t bytes) {
    args.scratch = NULL;
    if (bytes > 0) {
        args.scratch = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
        memset(args.scratch, 0xFF, (size_t)(bytes + 63) / 64 * 64);
    }
    return args;
}

static inline void run_whole(const dtm_kernel_entry *kernel, dtm_kernel_args args) {
    args = with_scratch(args, kernel->scratch_bytes(args.sizes));
    kernel->run(&args, 0, kernel->extent(args.sizes));
    free(args.scratch);
}

/* In parts of random sizes, the last first. */
static inline void run_parts(const dtm_kernel_entry *kernel, dtm_kernel_args args) {
    int64_t end = kernel->extent(args.sizes);
    while (end > 0) {
        const int64_t begin = end - 1 - below(end);
        dtm_kernel_args part = with_scratch(args, kernel->scratch_bytes(args.sizes));
        kernel->run(&part, begin, end);
        free(part.scratch);
        end = begin;
    }
}

/* Runs whole into `out` and in parts into a second buffer, and compares the bits. */
static inline void run_twice(const dtm_kernel_entry *kernel, dtm_kernel_args args, void **buffers, const int *outs, int count,
                      const int64_t *elements) {
    void *copies[16], *first[16];
    for (int i = 0; i < count; i++) {
        const size_t bytes = (size_t)elements[i] * sizeof(float);
        copies[i] = malloc(bytes + 1);
        memcpy(copies[i], buffers[outs[i]], bytes);
    }
    run_whole(kernel, args);
    for (int i = 0; i < count; i++) first[i] = buffers[outs[i]], buffers[outs[i]] = copies[i];
    run_parts(kernel, args);
    for (int i = 0; i < count; i++) {
        CHECK(!memcmp(first[i], copies[i], (size_t)elements[i] * sizeof(float)), "%s: output %d depends on the parts",
              kernel->name, i);
        buffers[outs[i]] = first[i];
        free(copies[i]);
    }
}

#define ENTRY(name)                                                                                                    \
    { #name, name, name##_extent, name##_scratch_bytes }

/* By subject; test_kernels.c runs them. */
void test_prelude(void);
void test_halves(void);
void test_philox(void);
void test_matmul(const char *backend);
void test_attention(int rounds);
void test_attention_extremes(void);
void test_rows(void);
void test_rope(void);
void test_pack(void);

#endif
