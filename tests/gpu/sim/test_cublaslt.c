/* The stand-in for cuBLASLt, opened as the runtime opens it: products of all forms against plain C, and each mistake of a caller.
 *     test_cublaslt FOLDER      FOLDER: of the stand-ins */
#include "declare.h"
#include "numbers.h"
#include "runtime/test_check.h"

#include "runtime/cuda/load.h"

#include <dlfcn.h>

static dtm_driver cu;
static dtm_cublaslt lt;
static dtm_cublas_handle handle;
static dtm_cu_stream stream;
static dtm_cu_pointer arena;
static int (*said)(void);
static const char *(*reports)(void);
static void (*again)(void);

#define OK(call) check((call) == 0, __LINE__, #call, "")
static bool said_words(const char *words) {
    bool there = strstr(reports(), words) != NULL;
    again();
    return said() > 0 && there;
}
#define SAID(words) check(said_words(words), __LINE__, "a report: " words, reports())

/* ---- a problem: column-major, D[m,n] = alpha op(A) op(B) + beta C ---- */

enum { MOST = 1 << 14, A_AT = 0, B_AT = 1 << 18, C_AT = 2 << 18, D_AT = 3 << 18, BIAS_AT = 4 << 18, WORK_AT = 5 << 18, BYTES = 6 << 18 };
struct form { int m, n, k, batches, type, to, tf32, transposed[2], pad, epilogue; float alpha, beta; };
struct matmul {
    struct form f;
    dtm_cublas_desc desc;
    dtm_cublas_layout layout[4];
    dtm_cublas_preference preference;
    dtm_cublas_heuristic found[3];
    int count;
};
static int rows_of(const struct form *f, int i) { return i == 0 ? f->transposed[0] ? f->k : f->m : i == 1 ? f->transposed[1] ? f->n : f->k : f->m; }
static int columns_of(const struct form *f, int i) { return i == 0 ? f->transposed[0] ? f->m : f->k : i == 1 ? f->transposed[1] ? f->k : f->n : f->n; }
static int64_t ld_of(const struct form *f, int i) { return rows_of(f, i) + f->pad; }
static int64_t stride_of(const struct form *f, int i) { return ld_of(f, i) * columns_of(f, i) + 16 - ld_of(f, i) * columns_of(f, i) % 16; }
static struct matmul make(struct form f) {
    struct matmul it = {.f = f};
    OK(lt.MatmulDescCreate(&it.desc, f.tf32 ? DTM_CUBLAS_COMPUTE_TF32 : DTM_CUBLAS_COMPUTE_32F, DTM_CUBLAS_F32));
    OK(lt.MatmulDescSetAttribute(it.desc, DTM_CUBLAS_DESC_TRANSPOSE_A, &f.transposed[0], 4));
    OK(lt.MatmulDescSetAttribute(it.desc, DTM_CUBLAS_DESC_TRANSPOSE_B, &f.transposed[1], 4));
    int epilogue = f.epilogue ? f.epilogue : DTM_CUBLAS_EPILOGUE_DEFAULT;
    uint64_t bias = arena + BIAS_AT;
    OK(lt.MatmulDescSetAttribute(it.desc, DTM_CUBLAS_DESC_EPILOGUE, &epilogue, 4));
    if (epilogue & DTM_CUBLAS_EPILOGUE_BIAS) OK(lt.MatmulDescSetAttribute(it.desc, DTM_CUBLAS_DESC_BIAS, &bias, 8));
    for (int i = 0; i < 4; i++) {
        int64_t stride = stride_of(&f, i);
        OK(lt.MatrixLayoutCreate(&it.layout[i], i < 2 ? f.type : f.to, (uint64_t)rows_of(&f, i), (uint64_t)columns_of(&f, i), ld_of(&f, i)));
        OK(lt.MatrixLayoutSetAttribute(it.layout[i], DTM_CUBLAS_LAYOUT_BATCHES, &f.batches, 4));
        OK(lt.MatrixLayoutSetAttribute(it.layout[i], DTM_CUBLAS_LAYOUT_STRIDE, &stride, 8));
    }
    uint64_t limit = 1 << 20;
    uint32_t alignment = 16;
    OK(lt.MatmulPreferenceCreate(&it.preference));
    OK(lt.MatmulPreferenceSetAttribute(it.preference, DTM_CUBLAS_PREFER_WORKSPACE, &limit, 8));
    for (int i = 0; i < 4; i++) OK(lt.MatmulPreferenceSetAttribute(it.preference, DTM_CUBLAS_PREFER_ALIGNMENT_A + i, &alignment, 4));
    return it;
}
static int choose(struct matmul *it) {
    return lt.MatmulAlgoGetHeuristic(handle, it->desc, it->layout[0], it->layout[1], it->layout[2], it->layout[3], it->preference, 3, it->found,
                                     &it->count);
}
static int run(struct matmul *it, const dtm_cublas_algorithm *algorithm, uint64_t shift, size_t workspace) {
    return lt.Matmul(handle, it->desc, &it->f.alpha, (void *)(uintptr_t)(arena + A_AT + shift), it->layout[0], (void *)(uintptr_t)(arena + B_AT),
                     it->layout[1], &it->f.beta, (void *)(uintptr_t)(arena + C_AT), it->layout[2], (void *)(uintptr_t)(arena + D_AT), it->layout[3],
                     algorithm, (void *)(uintptr_t)(arena + WORK_AT), workspace, stream);
}
static void destroy(struct matmul *it) {
    OK(lt.MatmulDescDestroy(it->desc));
    OK(lt.MatmulPreferenceDestroy(it->preference));
    for (int i = 0; i < 4; i++) OK(lt.MatrixLayoutDestroy(it->layout[i]));
}

static float value_of(int type, const void *at, int64_t i) {
    const uint16_t *half = at;
    const float *single = at;
    return type == DTM_CUBLAS_F32 ? single[i] : type == DTM_CUBLAS_F16 ? f16_value(half[i]) : bf16_value(half[i]);
}
static void set_value(int type, void *at, int64_t i, float x) {
    uint16_t *half = at;
    float *single = at;
    if (type == DTM_CUBLAS_F32)
        single[i] = x;
    else
        half[i] = (uint16_t)(type == DTM_CUBLAS_F16 ? f16_nearest(x) : bf16_nearest(x));
}
static char host[5][1 << 18];
static uint32_t state = 1;
static float drawn(void) { return (float)(int)((state = state * 1664525u + 1013904223u) >> 8) / (1 << 22) - 2; }
/* Rubbish between columns: only what belongs to the matrix is ever written on the device. */
static void fill(const struct form *f) {
    static const int at[] = {A_AT, B_AT, C_AT, D_AT, BIAS_AT};
    for (int i = 0; i < 5; i++) {
        int type = i < 2 ? f->type : f->to;
        size_t size = type == DTM_CUBLAS_F32 ? 4 : 2;
        for (int64_t k = 0; k < MOST; k++) set_value(type, host[i], k, i == 3 ? 0 : drawn());
        for (int b = 0; b < f->batches && i < 3; b++)
            for (int c = 0; c < columns_of(f, i); c++) {
                int64_t from = b * stride_of(f, i) + c * ld_of(f, i);
                OK(cu.MemcpyHtoDAsync(arena + (unsigned)at[i] + (uint64_t)from * size, host[i] + (size_t)from * size, (size_t)rows_of(f, i) * size, stream));
            }
        if (i == 4) OK(cu.MemcpyHtoDAsync(arena + BIAS_AT, host[4], (size_t)f->m * size, stream));
    }
}
static float operand(const struct form *f, int i, int b, int outer, int inner) { /* op(A)[m,k], op(B)[n,k] */
    bool inner_first = i == 0 ? f->transposed[0] : !f->transposed[1];
    int64_t at = b * stride_of(f, i) + (inner_first ? outer * ld_of(f, i) + inner : inner * ld_of(f, i) + outer);
    float x = value_of(f->type, host[i], at);
    return f->tf32 ? float_of((bits_of(x) + 0x1000) & 0xffffe000) : x;
}
static void hold(const struct form *f, int line) {
    int bad = 0;
    size_t size = f->to == DTM_CUBLAS_F32 ? 4 : 2;
    for (int b = 0; b < f->batches; b++)
        for (int c = 0; c < f->n; c++) {
            int64_t first = b * stride_of(f, 3) + c * ld_of(f, 3);
            OK(cu.MemcpyDtoHAsync(host[3] + (size_t)first * size, arena + D_AT + (uint64_t)first * size, (size_t)f->m * size, stream));
            for (int r = 0; r < f->m; r++) {
                double sum = 0, most = 1;
                for (int k = 0; k < f->k; k++) sum += (double)operand(f, 0, b, r, k) * (double)operand(f, 1, b, c, k);
                sum *= (double)f->alpha;
                if (f->beta != 0) sum += (double)f->beta * (double)value_of(f->to, host[2], first + r);
                if (f->epilogue & DTM_CUBLAS_EPILOGUE_BIAS) sum += (double)value_of(f->to, host[4], r);
                if (f->epilogue & DTM_CUBLAS_EPILOGUE_RELU && sum < 0) sum = 0;
                most = fabs(sum) > most ? fabs(sum) : most;
                bad += !(fabs((double)value_of(f->to, host[3], first + r) - sum) <= most * (size == 4 ? 2e-5 : f->to == DTM_CUBLAS_F16 ? 1e-3 : 8e-3));
            }
        }
    char text[40];
    snprintf(text, sizeof text, "%d numbers", bad);
    check(bad == 0, line, "D", text);
}

/* ---- tests ---- */

static const struct form plain = {.m = 24, .n = 17, .k = 33, .batches = 1, .type = DTM_CUBLAS_F32, .to = DTM_CUBLAS_F32, .alpha = 1};

static void test_forms(void) {
    static const int types[][2] = {{DTM_CUBLAS_F32, DTM_CUBLAS_F32}, {DTM_CUBLAS_BF16, DTM_CUBLAS_BF16}, {DTM_CUBLAS_BF16, DTM_CUBLAS_F32},
                                   {DTM_CUBLAS_F16, DTM_CUBLAS_F16}};
    for (int i = 0; i < 16; i++)
        for (int t = 0; t < 4; t++) {
            struct form f = plain;
            f.type = types[t][0], f.to = types[t][1], f.transposed[0] = i & 1, f.transposed[1] = i >> 1 & 1;
            f.batches = i & 4 ? 3 : 1, f.pad = i & 8 ? 8 : 0, f.tf32 = t == 0 && i == 5;
            f.beta = i % 3 == 1 ? 1 : 0, f.alpha = i % 3 == 2 ? -0.5f : 1;
            f.epilogue = i % 5 == 0 ? DTM_CUBLAS_EPILOGUE_BIAS : i % 5 == 1 ? DTM_CUBLAS_EPILOGUE_RELU : 0;
            struct matmul it = make(f);
            fill(&f);
            OK(choose(&it));
            CHECK(it.count == 3);
            for (int k = 0; k < it.count; k++) {
                OK(run(&it, &it.found[k].algorithm, 0, 65536));
                hold(&f, __LINE__);
            }
            destroy(&it);
        }
    CHECK(said() == 0);
}
/* Another algorithm gives other bits; the same the same, in a graph too. */
static void test_bits(void) {
    static float first[17 * 24], other[17 * 24];
    struct form f = plain;
    f.k = 500;
    struct matmul it = make(f);
    fill(&f);
    OK(choose(&it));
    for (int k = 0, differ = 0; k < 3; k++) {
        OK(run(&it, &it.found[k].algorithm, 0, 65536));
        OK(cu.MemcpyDtoHAsync(k ? other : first, arena + D_AT, sizeof first, stream));
        differ += k && memcmp(first, other, sizeof first) != 0;
        CHECK(k < 2 || differ == 2);
    }
    dtm_cu_graph graph;
    dtm_cu_graph_exec exec;
    OK(cu.StreamBeginCapture(stream, DTM_CU_CAPTURE_THREAD));
    OK(cu.MemsetD8Async(arena + D_AT, 0, sizeof first, stream));
    OK(run(&it, &it.found[0].algorithm, 0, 65536));
    OK(cu.StreamEndCapture(stream, &graph));
    OK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu.GraphDestroy(graph));
    for (int k = 0; k < 3; k++) OK(cu.GraphLaunch(exec, stream));
    OK(cu.MemcpyDtoHAsync(other, arena + D_AT, sizeof first, stream));
    CHECK(!memcmp(first, other, sizeof first));
    OK(cu.GraphExecDestroy(exec));
    destroy(&it);
    CHECK(said() == 0);
}

static void test_mistakes(void) {
    struct form f = plain;
    f.batches = 2;
    struct matmul it = make(f), wrong;
    fill(&f);
    OK(choose(&it));
    const dtm_cublas_algorithm *first = &it.found[0].algorithm;
    int with_workspace = 0;
    while (with_workspace < 2 && !it.found[with_workspace].workspace_bytes) with_workspace++;
    CHECK(run(&it, &it.found[with_workspace].algorithm, 0, 65535) != 0);
    SAID("workspace");
    CHECK(run(&it, first, 4, 65536) != 0);
    SAID("less aligned than was claimed: A");
    CHECK(run(&it, NULL, 0, 65536) != 0);
    SAID("no algorithm");

    f.k = 32;
    wrong = make(f);
    CHECK(run(&wrong, first, 0, 65536) != 0);
    SAID("another problem");
    destroy(&wrong);
    f = it.f;
    f.m = it.f.n, f.n = it.f.m; /* rows and columns of the result */
    wrong = make(f);
    dtm_cublas_layout d = wrong.layout[3];
    wrong.layout[3] = it.layout[3];
    CHECK(choose(&wrong) != 0);
    SAID("differ");
    wrong.layout[3] = d;
    destroy(&wrong);
    f = it.f, f.transposed[0] = 1;
    wrong = make(f);
    int plain_operand = 0;
    OK(lt.MatmulDescSetAttribute(wrong.desc, DTM_CUBLAS_DESC_TRANSPOSE_A, &plain_operand, 4));
    CHECK(choose(&wrong) != 0);
    SAID("differ");
    destroy(&wrong);
    f = it.f, f.pad = -1;
    wrong = make(f);
    CHECK(choose(&wrong) != 0);
    SAID("leading dimension");
    destroy(&wrong);
    wrong = make(it.f);
    int64_t stride = 8;
    OK(lt.MatrixLayoutSetAttribute(wrong.layout[3], DTM_CUBLAS_LAYOUT_STRIDE, &stride, 8));
    CHECK(choose(&wrong) != 0);
    SAID("overlap");
    CHECK(lt.MatrixLayoutSetAttribute(wrong.layout[3], DTM_CUBLAS_LAYOUT_BATCHES, &stride, 8) != 0);
    SAID("of 8 bytes");
    stride = 4 * stride_of(&it.f, 1); /* of the operand: what lies there was never written */
    OK(lt.MatrixLayoutSetAttribute(wrong.layout[1], DTM_CUBLAS_LAYOUT_STRIDE, &stride, 8));
    stride = stride_of(&it.f, 3);
    OK(lt.MatrixLayoutSetAttribute(wrong.layout[3], DTM_CUBLAS_LAYOUT_STRIDE, &stride, 8));
    OK(choose(&wrong));
    OK(run(&wrong, &wrong.found[0].algorithm, 0, 65536));
    CHECK(cu.StreamSynchronize(stream) == DTM_CU_ILLEGAL_ADDRESS);
    SAID("was not all written");
    destroy(&wrong);

    /* one workspace, or result, on two streams */
    dtm_cu_stream s = stream;
    OK(run(&it, &it.found[with_workspace].algorithm, 0, 65536));
    OK(cu.StreamCreateWithPriority(&stream, DTM_CU_STREAM_NON_BLOCKING, 0));
    OK(run(&it, &it.found[with_workspace].algorithm, 0, 65536));
    CHECK(cu.CtxSynchronize() == DTM_CU_ILLEGAL_ADDRESS);
    SAID("nothing orders them");
    OK(cu.StreamDestroy(stream));
    stream = s;
    destroy(&it);
    CHECK(said() == 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    dtm_status status = {0};
    dtm_cuda *cuda = NULL;
    char path[1000];
    if (!dtm_cuda_create(&(dtm_cuda_options){.folder = argv[1]}, &cuda, &status) || !dtm_cuda_driver(cuda, &status) ||
        !dtm_cuda_cublaslt(cuda, &status)) {
        fprintf(stderr, "%s\n", status.message);
        return 1;
    }
    cu = *dtm_cuda_driver(cuda, &status), lt = *dtm_cuda_cublaslt(cuda, &status);
    snprintf(path, sizeof path, "%s/libcuda.so.1", argv[1]);
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD), *f;
#define TAKE(name, symbol) f = dlsym(library, symbol), memcpy(&name, &f, sizeof f)
    TAKE(said, "dtm_sim_said");
    TAKE(reports, "dtm_sim_reports");
    TAKE(again, "dtm_sim_again");
    dtm_cu_context context = NULL;
    OK(cu.Init(0));
    OK(cu.DevicePrimaryCtxRetain(&context, 0));
    OK(cu.CtxSetCurrent(context));
    dtm_cu_allocation_properties p = {.type = DTM_CU_ALLOCATION_PINNED, .location = {DTM_CU_LOCATION_DEVICE, 0}};
    dtm_cu_access access = {p.location, DTM_CU_ACCESS_READ_WRITE};
    dtm_cu_allocation memory = 0;
    OK(cu.MemAddressReserve(&arena, 2 << 20, 0, 0, 0));
    OK(cu.MemCreate(&memory, 2 << 20, &p, 0));
    OK(cu.MemMap(arena, 2 << 20, 0, memory, 0));
    OK(cu.MemSetAccess(arena, 2 << 20, &access, 1));
    OK(cu.StreamCreateWithPriority(&stream, DTM_CU_STREAM_NON_BLOCKING, 0));
    OK(lt.Create(&handle));
    test_mistakes(); /* first, while most of the memory was never written */
    test_forms();
    test_bits();
    OK(lt.Destroy(handle));
    OK(cu.StreamDestroy(stream));
    OK(cu.MemUnmap(arena, 2 << 20));
    OK(cu.MemRelease(memory));
    OK(cu.MemAddressFree(arena, 2 << 20));
    OK(cu.DevicePrimaryCtxRelease(0));
    CHECK(said() == 0);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
