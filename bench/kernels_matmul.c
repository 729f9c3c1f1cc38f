/* Matrix products of the models in bench/: GFLOP/s of dtm's back ends and of dnnl_sgemm with its own threads; then of products of bf16,
 * rounded to bf16, by the tiles and where the processor has instructions for them by oneDNN.
 *   cc -O2 -fopenmp -I. bench/kernels_matmul.c -o kernels_matmul libdtm_kernels.a -ldnnl -lm -lpthread
 *   ./kernels_matmul [threads]
 * With -DWITH_CBLAS, linked with an OpenBLAS or BLIS, it measures cblas_sgemm too. Forms as in a program's products:
 * nn, nt (b stored [n, k]), tn (a stored [k, m]: a weight's gradient). Interleaved rounds, the best of each. */
#define _POSIX_C_SOURCE 200809L
#include "kernels/cpu/half.h"
#include "kernels/cpu/library.h"
#include "kernels/cpu/matmul.h"
#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef WITH_CBLAS
void cblas_sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
#endif

/* One thread: its own processor time, so that other work on the machine counts little. */
static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct job {
    dtm_kernel_args args;
    int64_t begin, end;
} job;

/* Threads that stay, as those of a run: what a thread makes at first use is made once. */
static job jobs[64];
static pthread_barrier_t started, ended;

static void run_job(const job *j) {
    dtm_matmul(&j->args, j->begin, j->end);
}

static void *work(void *at) {
    for (;;) {
        pthread_barrier_wait(&started);
        run_job(at);
        pthread_barrier_wait(&ended);
    }
    return NULL;
}

static void start_threads(int threads) {
    pthread_t id;
    pthread_barrier_init(&started, NULL, (unsigned)threads);
    pthread_barrier_init(&ended, NULL, (unsigned)threads);
    for (int t = 1; t < threads; t++) pthread_create(&id, NULL, work, &jobs[t]);
}

/* Seconds of one call, of as many as take some time. */
static double run_dtm(const dtm_matmul_sizes *z, void **buffers, int threads, void **scratch) {
    const int64_t extent = dtm_matmul_extent((const int64_t *)z), flops = 2 * z->m * z->n * z->k, calls = 1 + 20000000 / (flops + 1);
    for (int t = 0; t < threads; t++)
        jobs[t] = (job){{.buffers = buffers, .sizes = (const int64_t *)z, .scratch = scratch[t]},
                        extent * t / threads,
                        extent * (t + 1) / threads};
    double start = now();
    for (int64_t i = 0; i < calls; i++) {
        if (threads > 1) pthread_barrier_wait(&started);
        run_job(&jobs[0]);
        if (threads > 1) pthread_barrier_wait(&ended);
    }
    return (now() - start) / (double)calls;
}

int main(int argc, char **argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : 2;
    static const struct {
        char form[3];
        int64_t m, n, k;
    } shapes[] = {
        {"nn", 1024, 1024, 1024}, {"nn", 2048, 768, 768},  {"nt", 2048, 768, 768},  {"tn", 768, 768, 2048},
        {"nn", 2048, 1536, 384},  {"nt", 2048, 1536, 384}, {"nn", 2048, 384, 1024}, {"tn", 384, 1024, 2048},
        {"nn", 2048, 384, 384},   {"nt", 512, 3072, 768},  {"nn", 512, 3072, 768},  {"nt", 512, 32000, 768},
        {"nn", 2048, 256, 256},   {"tn", 32000, 768, 512},
        {"nn", 192, 64, 32},    {"nt", 64, 64, 64},       {"nn", 32, 32, 32},     {"nn", 16, 16, 16},
        {"nn", 8, 8, 8},        {"nn", 2048, 768, 1},     {"nn", 2048, 1, 768},
    };
    start_threads(threads);
    if (threads == 1) clock_used = CLOCK_THREAD_CPUTIME_ID;
    void *scratch[64];
    for (int t = 0; t < threads; t++) scratch[t] = aligned_alloc(64, 1 << 23); /* more than any shape needs */
    printf("%-22s %8s %8s %8s", "shape", "tiles", "onednn", "dnnl-omp");
#ifdef WITH_CBLAS
    printf(" %8s", "cblas");
#endif
    printf(" %10s %11s   GFLOP/s, %d threads\n", "bf16-tiles", "bf16-onednn", threads);
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t m = shapes[s].m, n = shapes[s].n, k = shapes[s].k;
        const int ta = shapes[s].form[0] == 't', tb = shapes[s].form[1] == 't';
        float *a = aligned_alloc(64, (size_t)(4 * m * k + 63) / 64 * 64), *b = aligned_alloc(64, (size_t)(4 * k * n + 63) / 64 * 64),
              *c = aligned_alloc(64, (size_t)(4 * m * n + 63) / 64 * 64);
        uint16_t *half_a = aligned_alloc(64, (size_t)(2 * m * k + 63) / 64 * 64), *half_b = aligned_alloc(64, (size_t)(2 * k * n + 63) / 64 * 64),
                 *half_c = aligned_alloc(64, (size_t)(2 * m * n + 63) / 64 * 64);
        for (int64_t i = 0; i < m * k; i++) a[i] = (float)(i % 7) - 3, half_a[i] = dtm_to_bf16(a[i]);
        for (int64_t i = 0; i < k * n; i++) b[i] = (float)(i % 5) - 2, half_b[i] = dtm_to_bf16(b[i]);
        const dtm_matmul_sizes z = {.batch = 1,
                                    .m = m,
                                    .n = n,
                                    .k = k,
                                    .a_row = ta ? 1 : k,
                                    .a_col = ta ? m : 1,
                                    .b_row = tb ? 1 : n,
                                    .b_col = tb ? k : 1,
                                    .c_row = n};
        dtm_matmul_sizes half_z = z;
        half_z.a_type = half_z.b_type = half_z.c_type = DTM_MATMUL_BF16;
        void *buffers[] = {a, b, c}, *halves[] = {half_a, half_b, half_c};
        double best[6] = {1e9, 1e9, 1e9, 1e9, 1e9, 1e9}, from = now();
        for (int round = 0; round < 4 || now() - from < 1.0; round++) {
            double t;
            dtm_matmul_init("tiles", dtm_kernel_level());
            if ((t = run_dtm(&z, buffers, threads, scratch)) < best[0]) best[0] = t;
            dtm_matmul_init("onednn", dtm_kernel_level());
            if ((t = run_dtm(&z, buffers, threads, scratch)) < best[1]) best[1] = t;
            omp_set_num_threads(threads);
            t = now();
            dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, a, ta ? m : k, b, tb ? k : n, 0, c, n);
            if ((t = now() - t) < best[2]) best[2] = t;
#ifdef WITH_CBLAS
            t = now();
            cblas_sgemm(101, ta ? 112 : 111, tb ? 112 : 111, (int)m, (int)n, (int)k, 1, a, (int)(ta ? m : k), b,
                        (int)(tb ? k : n), 0, c, (int)n);
            if ((t = now() - t) < best[3]) best[3] = t;
#endif
            dtm_matmul_init("tiles", dtm_kernel_level());
            dtm_matmul_init_bf16("tiles");
            if ((t = run_dtm(&half_z, halves, threads, scratch)) < best[4]) best[4] = t;
            if (!dtm_matmul_init_bf16("onednn") && (t = run_dtm(&half_z, halves, threads, scratch)) < best[5]) best[5] = t;
        }
        printf("%s %6ldx%6ldx%5ld ", shapes[s].form, (long)m, (long)n, (long)k);
        for (int i = 0; i < 3; i++) printf(" %8.1f", 2e-9 * (double)m * (double)n * (double)k / best[i]);
#ifdef WITH_CBLAS
        printf(" %8.1f", 2e-9 * (double)m * (double)n * (double)k / best[3]);
#endif
        printf(" %10.1f %11.1f\n", 2e-9 * (double)m * (double)n * (double)k / best[4], 2e-9 * (double)m * (double)n * (double)k / best[5]); /* the latter 0 without */
        free(a), free(b), free(c), free(half_a), free(half_b), free(half_c);
    }
}
