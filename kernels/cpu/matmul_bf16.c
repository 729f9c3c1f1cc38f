#define _DEFAULT_SOURCE /* sysconf of caches */
#include "kernels/cpu/matmul_bf16.h"
#include "kernels/cpu/library.h"

#include <dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Of the OpenMP library oneDNN was built with; absent where it was built with another threading. */
extern void omp_set_num_threads(int threads) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));

void dtm_matmul_one_thread(void) {
    if (omp_get_max_threads && omp_set_num_threads && omp_get_max_threads() != 1) omp_set_num_threads(1);
}

int dtm_matmul_leading(int64_t rows, int64_t cols, int64_t row, int64_t col, char *form, int64_t *stride) {
    if (col == 1 && (row >= cols || rows == 1)) return *form = 'N', *stride = row >= cols ? row : cols, 1;
    if (row == 1 && (col >= rows || cols == 1)) return *form = 'T', *stride = col >= rows ? col : rows, 1;
    return 0;
}

/* ---- the machine ---- */

static uint32_t mix(uint32_t hash, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x01000193u;
    return hash;
}

int32_t dtm_matmul_bf16_host(void) {
#if defined(__x86_64__)
    const int isa = (int)dnnl_get_effective_cpu_isa();
    if (dtm_kernel_level() < 4 || (isa & dnnl_cpu_isa_avx512_core_bf16) != dnnl_cpu_isa_avx512_core_bf16) return 0;
    const dnnl_version_t *version = dnnl_version();
    const int known[] = {isa, version->major, version->minor, version->patch};
    uint32_t hash = mix(mix(0x811c9dc5u, known, sizeof known), version->hash, strlen(version->hash));
    for (unsigned leaf = 0; leaf < 2; leaf++) { /* maker, then family, model and stepping */
        unsigned a = 0, b = 0, c = 0, d = 0;
        __get_cpuid(leaf, &a, &b, &c, &d);
        const unsigned said[] = {a, leaf ? 0 : b, leaf ? 0 : c, leaf ? 0 : d};
        hash = mix(hash, said, sizeof said);
    }
    const long caches[] = {sysconf(_SC_LEVEL1_DCACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE)};
    return (int32_t)(mix(hash, caches, sizeof caches) >> 1 | 1);
#else
    return 0;
#endif
}

/* ---- primitives ---- */

enum { A, B, C, PAD, PARTS };

typedef struct shape {
    int64_t rows, cols, depth, a_stride, b_stride, c_stride, a_across, b_across, adds;
} shape;

typedef struct product {
    struct product *next;
    shape of;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[PARTS]; /* without memory: each call says where */
} product;

enum { BUCKETS = 256 };

/* A thread's own: calls take no lock. */
typedef struct own_products {
    dnnl_stream_t stream;
    void *pad;
    size_t pad_bytes;
    product *buckets[BUCKETS];
} own_products;

static _Thread_local own_products *own;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_exit_of_thread;
static dnnl_engine_t engine;

static void need(int well, const char *what) {
    if (well) return;
    fprintf(stderr, "error: oneDNN: no %s for a product of bf16: out of memory\n", what);
    abort(); /* a kernel has nobody to tell, and other sums would not be those of the other ranks */
}

static void drop(void *all) {
    own_products *mine = all;
    for (int i = 0; i < BUCKETS; i++)
        for (product *p = mine->buckets[i], *next; p; p = next) {
            next = p->next;
            for (int part = 0; part < PARTS; part++) dnnl_memory_destroy(p->memory[part]);
            dnnl_primitive_destroy(p->primitive);
            free(p);
        }
    dnnl_stream_destroy(mine->stream);
    free(mine->pad);
    free(mine);
}

static void start(void) {
    need(!pthread_key_create(&at_exit_of_thread, drop) && dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success, "engine");
}

static own_products *mine(void) {
    if (own) return own;
    pthread_once(&once, start);
    own = calloc(1, sizeof *own);
    need(own && !pthread_setspecific(at_exit_of_thread, own), "memory");
    need(dnnl_stream_create(&own->stream, engine, dnnl_stream_default_flags) == dnnl_success, "stream");
    return own;
}

static dnnl_memory_desc_t matrix(int64_t rows, int64_t cols, int64_t stride, int64_t across, dnnl_data_type_t type) {
    dnnl_memory_desc_t of;
    const dnnl_dims_t sizes = {rows, cols}, strides = {across ? 1 : stride, across ? stride : 1};
    need(dnnl_memory_desc_init_by_strides(&of, 2, sizes, type, strides) == dnnl_success, "description");
    return of;
}

static void make(product *p, own_products *all) {
    const shape *z = &p->of;
    const dnnl_memory_desc_t a = matrix(z->rows, z->depth, z->a_stride, z->a_across, dnnl_bf16),
                             b = matrix(z->depth, z->cols, z->b_stride, z->b_across, dnnl_bf16),
                             c = matrix(z->rows, z->cols, z->c_stride, 0, dnnl_f32);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    dnnl_primitive_desc_t chosen = NULL;
    int ok = dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c) == dnnl_success &&
             dnnl_primitive_attr_create(&attributes) == dnnl_success && dnnl_post_ops_create(&after) == dnnl_success;
    need(ok, "attributes");
    ok = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user) == dnnl_success &&
         (!z->adds || dnnl_post_ops_append_sum(after, 1) == dnnl_success) &&
         dnnl_primitive_attr_set_post_ops(attributes, after) == dnnl_success;
    need(ok && dnnl_primitive_desc_create(&chosen, &matmul, attributes, engine, NULL) == dnnl_success &&
             dnnl_primitive_create(&p->primitive, chosen) == dnnl_success, "primitive");
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
    const dnnl_memory_desc_t *of[PARTS] = {&a, &b, &c, pad};
    for (int part = 0; part < PARTS; part++)
        need(dnnl_memory_create(&p->memory[part], of[part], engine, DNNL_MEMORY_NONE) == dnnl_success, "memory");
    const size_t bytes = dnnl_memory_desc_get_size(pad);
    if (bytes > all->pad_bytes) {
        free(all->pad);
        all->pad_bytes = (bytes + DTM_KERNEL_ALIGN - 1) / DTM_KERNEL_ALIGN * DTM_KERNEL_ALIGN;
        need((all->pad = aligned_alloc(DTM_KERNEL_ALIGN, all->pad_bytes)) != NULL, "memory");
    }
    dnnl_primitive_desc_destroy(chosen);
    dnnl_post_ops_destroy(after);
    dnnl_primitive_attr_destroy(attributes);
}

static product *find(own_products *all, const shape *of) {
    product **bucket = &all->buckets[mix(0x811c9dc5u, of, sizeof *of) % BUCKETS];
    for (product *p = *bucket; p; p = p->next)
        if (!memcmp(&p->of, of, sizeof *of)) return p;
    product *p = calloc(1, sizeof *p);
    need(p != NULL, "memory");
    p->of = *of;
    make(p, all);
    p->next = *bucket;
    return *bucket = p;
}

void dtm_matmul_bf16(const dtm_matmul_block *m) {
    char a_form = 'N', b_form = 'N';
    shape of = {.rows = m->rows, .cols = m->cols, .depth = m->depth, .c_stride = m->c_row < m->cols ? m->cols : m->c_row, .adds = m->beta != 0};
    dtm_matmul_leading(m->rows, m->depth, m->a_row, m->a_col, &a_form, &of.a_stride);
    dtm_matmul_leading(m->depth, m->cols, m->b_row, m->b_col, &b_form, &of.b_stride);
    of.a_across = a_form == 'T', of.b_across = b_form == 'T';
    dtm_matmul_one_thread(); /* primitives are made for as many threads as there are then */
    own_products *all = mine();
    const product *p = find(all, &of);
    const void *const at[PARTS] = {m->a, m->b, m->c, all->pad};
    static const int names[PARTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t arguments[PARTS];
    for (int part = 0; part < PARTS; part++) {
        need(dnnl_memory_set_data_handle(p->memory[part], (void *)(uintptr_t)at[part]) == dnnl_success, "memory");
        arguments[part] = (dnnl_exec_arg_t){names[part], p->memory[part]};
    }
    need(dnnl_primitive_execute(p->primitive, all->stream, PARTS, arguments) == dnnl_success && dnnl_stream_wait(all->stream) == dnnl_success,
         "execution");
}
