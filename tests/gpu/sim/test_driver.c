/* The stand-in for libcuda, opened as the runtime opens it: each rule of streams, events, memory, launches and captures, kept in many orders
 * and broken once.
 *     test_driver FOLDER FIXTURES      FOLDER: of the stand-in */
#include "declare.h"
#include "runtime/test_check.h"

#include "runtime/cuda/load.h"

#include <dlfcn.h>
#include <math.h>

static dtm_driver cu;
static dtm_sim_declare_function declare;
static int (*said)(void);
static const char *(*reports)(void);
static void (*again)(void);
static dtm_cu_context context;
static dtm_cu_module module;
static dtm_cu_function add, fill;
static const char *fixtures;

enum { N = 1000, GRANULE = 2 << 20 };
#define OK(call) check((call) == 0, __LINE__, #call, "")
#define IS(call, error)                                                                                                \
    do {                                                                                                               \
        int got = (call);                                                                                              \
        char text[40];                                                                                                 \
        snprintf(text, sizeof text, "gives %d", got);                                                                  \
        check(got == (error), __LINE__, #call, text);                                                                  \
    } while (0)
/* There was a report with these words; then all is well again. */
#define SAID(words)                                                                                                    \
    do {                                                                                                               \
        check(strstr(reports(), words) != NULL, __LINE__, "a report: " words, reports());                                    \
        again();                                                                                                       \
        check(said() > 0, __LINE__, "a report: " words, "there is none");                                              \
    } while (0)

/* ---- memory ---- */

static dtm_cu_allocation_properties on_device(int id) {
    return (dtm_cu_allocation_properties){.type = DTM_CU_ALLOCATION_PINNED, .location = {DTM_CU_LOCATION_DEVICE, id}};
}
typedef struct arena {
    dtm_cu_pointer at;
    size_t bytes;
    dtm_cu_allocation allocation;
} arena;
static arena arena_make(int device, size_t bytes) {
    arena a = {.bytes = bytes};
    dtm_cu_allocation_properties p = on_device(device);
    dtm_cu_access access = {p.location, DTM_CU_ACCESS_READ_WRITE};
    OK(cu.MemAddressReserve(&a.at, bytes, 0, 0, 0));
    OK(cu.MemCreate(&a.allocation, bytes, &p, 0));
    OK(cu.MemMap(a.at, bytes, 0, a.allocation, 0));
    OK(cu.MemSetAccess(a.at, bytes, &access, 1));
    return a;
}
static void arena_free(arena a) {
    OK(cu.MemUnmap(a.at, a.bytes));
    OK(cu.MemRelease(a.allocation));
    OK(cu.MemAddressFree(a.at, a.bytes));
}

/* ---- launches of the fixture ---- */

struct tuple {
    uint64_t b[3];
    uint64_t scratch;
    int64_t z[2];
};
struct tuples {
    struct tuple t[4];
    uint64_t error;
};
enum { DECLARE_ALL, DECLARE_SHORT, DECLARE_NOTHING };
static int launch(dtm_cu_function f, dtm_cu_stream stream, const struct tuples *p, unsigned n, unsigned shared, int how) {
    dtm_sim_buffer buffers[16];
    int count = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t bytes = (size_t)p->t[i].z[0] * 4 - (how == DECLARE_SHORT ? 4 : 0);
        buffers[count++] = (dtm_sim_buffer){"a", p->t[i].b[0], f == add ? bytes : 4, DTM_SIM_READ};
        if (f == add) buffers[count++] = (dtm_sim_buffer){"b", p->t[i].b[1], bytes, DTM_SIM_READ};
        buffers[count++] = (dtm_sim_buffer){"c", p->t[i].b[2], bytes, DTM_SIM_WRITE};
    }
    if (p->error) buffers[count++] = (dtm_sim_buffer){"error", p->error, 8, DTM_SIM_READ | DTM_SIM_WRITE};
    if (how != DECLARE_NOTHING) declare(buffers, count);
    dtm_cu_launch l = {.grid = {2, n, 1}, .block = {256, 1, 1}, .shared_bytes = shared, .stream = stream};
    if (f == fill) l.grid[0] = (unsigned)((p->t[0].z[0] + 255) / 256);
    void *arguments[] = {(void *)(uintptr_t)p};
    return cu.LaunchKernelEx(&l, f, arguments, NULL);
}
static struct tuples one(uint64_t a, uint64_t b, uint64_t c) { return (struct tuples){.t = {{.b = {a, b, c}, .z = {N, 0}}}}; }

static dtm_cu_stream stream_make(void) {
    dtm_cu_stream s = NULL;
    OK(cu.StreamCreateWithPriority(&s, DTM_CU_STREAM_NON_BLOCKING, 0));
    return s;
}
static dtm_cu_event event_make(void) {
    dtm_cu_event e = NULL;
    OK(cu.EventCreate(&e, DTM_CU_EVENT_UNTIMED));
    return e;
}
static float *pinned(size_t bytes) {
    void *p = NULL;
    OK(cu.MemHostAlloc(&p, bytes, DTM_CU_HOST_PORTABLE));
    return p;
}
static char *text_of(const char *name) {
    static char text[1 << 16];
    char path[1000];
    snprintf(path, sizeof path, "%s/%s", fixtures, name);
    FILE *f = fopen(path, "r");
    if (!f) abort();
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* ---- what works ---- */

#define FIRST(call) first = first ? first : (call)
/* A chain over two streams with events, captured or not, gives the numbers in every order. The first error, as one may come with any call. */
static int chain(dtm_cu_stream s, dtm_cu_stream other, dtm_cu_event fork, dtm_cu_event join, arena a, const float *in, float *out, bool ordered) {
    int first = 0;
    uint64_t x = a.at, y = a.at + 8192, z = a.at + 16384, u = a.at + 24576;
    struct tuples p = one(x, x, y), q = one(x, y, z), r = one(y, z, u);
    FIRST(cu.MemcpyHtoDAsync(x, in, N * 4, s));
    FIRST(launch(add, s, &p, 1, 0, DECLARE_ALL)); /* y = 2 x */
    FIRST(cu.EventRecord(fork, s));
    FIRST(cu.StreamWaitEvent(other, fork, 0));
    FIRST(launch(add, other, &q, 1, 0, DECLARE_ALL)); /* z = 3 x */
    if (ordered) {
        FIRST(cu.EventRecord(join, other));
        FIRST(cu.StreamWaitEvent(s, join, 0));
    }
    FIRST(launch(add, s, &r, 1, 0, DECLARE_ALL)); /* u = 5 x */
    FIRST(cu.MemcpyDtoHAsync(out, u, N * 4, s));
    return first;
}
static void expect(const float *in, const float *out, int line) {
    bool right = true;
    for (int i = 0; i < N; i++) right = right && out[i] == 5 * in[i];
    check(right, line, "5 x", "");
}
static void set(float *in, int seed) {
    for (int i = 0; i < N; i++) in[i] = (float)(i % 97 + seed);
}

static void test_streams(void) {
    arena a = arena_make(0, GRANULE);
    dtm_cu_stream s = stream_make(), other = stream_make();
    dtm_cu_event fork = event_make(), join = event_make();
    float *in = pinned(N * 4), *out = pinned(N * 4);
    for (int i = 0; i < 20; i++) {
        set(in, i);
        OK(chain(s, other, fork, join, a, in, out, true));
        OK(cu.StreamSynchronize(s));
        expect(in, out, __LINE__);
    }
    CHECK(said() == 0);
    /* queries come to it in the end */
    OK(chain(s, other, fork, join, a, in, out, true));
    OK(cu.EventRecord(fork, s));
    int asked = 0;
    while (cu.EventQuery(fork) == DTM_CU_NOT_READY) asked++;
    CHECK(asked < 1000);
    expect(in, out, __LINE__);
    CHECK(said() == 0);

    /* a lost event is found whichever came first */
    for (int i = 0; i < 8; i++) {
        int error = chain(s, other, fork, join, a, in, out, false);
        IS(error ? error : cu.CtxSynchronize(), DTM_CU_ILLEGAL_ADDRESS);
        IS(cu.StreamSynchronize(s), DTM_CU_ILLEGAL_ADDRESS); /* it stays */
        SAID("nothing orders them");
    }
    /* the host waited for it: that orders too */
    uint64_t x = a.at, y = a.at + 8192;
    struct tuples p = one(x, x, y);
    OK(launch(add, s, &p, 1, 0, DECLARE_ALL));
    OK(cu.StreamSynchronize(s));
    OK(launch(add, other, &p, 1, 0, DECLARE_ALL));
    OK(cu.StreamSynchronize(other));
    CHECK(said() == 0);

    /* a source that the host reuses too early; a result that it reads too early */
    int early = 0;
    for (int i = 0; i < 40; i++) {
        set(in, i);
        OK(cu.MemcpyHtoDAsync(x, in, N * 4, s));
        in[7] = -1;
        if (cu.StreamSynchronize(s)) {
            SAID("the host has changed the source");
            early++;
        }
    }
    CHECK(early > 10);
    set(in, 0);
    OK(cu.MemcpyHtoDAsync(x, in, N * 4, s));
    OK(cu.StreamSynchronize(s));
    int rubbish = 0;
    for (int i = 0; i < 40; i++) {
        OK(cu.MemcpyDtoHAsync(out, x, N * 4, s));
        rubbish += isnan(out[5]);
        OK(cu.StreamSynchronize(s));
        CHECK(out[5] == in[5]);
    }
    CHECK(rubbish > 10);
    OK(cu.StreamDestroy(s));
    IS(cu.StreamSynchronize(s), 400);
    SAID("destroyed");
    OK(cu.StreamDestroy(other));
    IS(cu.MemcpyHtoDAsync(x, in, 4, NULL), 400);
    SAID("legacy stream");
    OK(cu.EventDestroy(fork));
    OK(cu.EventDestroy(join));
    OK(cu.MemFreeHost(in));
    OK(cu.MemFreeHost(out));
    arena_free(a);
    CHECK(said() == 0);
}

static void test_graphs(void) {
    arena a = arena_make(0, GRANULE);
    dtm_cu_stream s = stream_make(), other = stream_make();
    dtm_cu_event fork = event_make(), join = event_make(), outside = event_make();
    float *in = pinned(N * 4), *out = pinned(N * 4);
    dtm_cu_graph graph = NULL;
    dtm_cu_graph_exec exec = NULL;
    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    OK(chain(s, other, fork, join, a, in, out, true));
    dtm_cu_capture_status status = 0;
    OK(cu.StreamIsCapturing(other, &status));
    CHECK(status == DTM_CU_CAPTURING);
    OK(cu.StreamEndCapture(s, &graph));
    OK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu.GraphDestroy(graph));
    OK(cu.GraphUpload(exec, s));
    for (int i = 0; i < 10; i++) { /* what changes lies in memory */
        set(in, i);
        OK(cu.GraphLaunch(exec, s));
        OK(cu.StreamSynchronize(s));
        expect(in, out, __LINE__);
    }
    OK(cu.GraphLaunch(exec, s)); /* two at a time: one after the other */
    OK(cu.GraphLaunch(exec, s));
    OK(cu.StreamSynchronize(s));
    expect(in, out, __LINE__);
    CHECK(said() == 0);
    OK(cu.GraphLaunch(exec, s)); /* another stream does not wait for it */
    struct tuples p = one(a.at, a.at, a.at + 8192);
    OK(launch(add, other, &p, 1, 0, DECLARE_ALL));
    IS(cu.CtxSynchronize(), DTM_CU_ILLEGAL_ADDRESS);
    SAID("nothing orders them");
    OK(cu.GraphExecDestroy(exec));
    IS(cu.GraphLaunch(exec, s), 400);
    SAID("destroyed");

    /* a race within a graph is found when it runs */
    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    OK(chain(s, other, fork, join, a, in, out, false));
    OK(cu.EventRecord(join, other));
    OK(cu.StreamWaitEvent(s, join, 0));
    OK(cu.StreamEndCapture(s, &graph));
    OK(cu.GraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu.GraphLaunch(exec, s));
    IS(cu.StreamSynchronize(s), DTM_CU_ILLEGAL_ADDRESS);
    SAID("nothing orders them");
    OK(cu.GraphExecDestroy(exec));
    OK(cu.GraphDestroy(graph));

    /* what a capture does not allow */
    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    IS(cu.StreamSynchronize(s), DTM_CU_CAPTURE_UNSUPPORTED);
    SAID("captures");
    IS(cu.StreamEndCapture(s, &graph), DTM_CU_CAPTURE_INVALIDATED);
    CHECK(!graph);

    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    IS(cu.StreamSynchronize(other), DTM_CU_CAPTURE_UNSUPPORTED);
    SAID("may synchronise");
    IS(cu.StreamEndCapture(s, &graph), DTM_CU_CAPTURE_INVALIDATED);

    dtm_cu_capture_mode mode = 2;
    OK(cu.ThreadExchangeStreamCaptureMode(&mode));
    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    OK(cu.StreamSynchronize(other));
    OK(cu.StreamEndCapture(s, &graph));
    OK(cu.GraphDestroy(graph));
    OK(cu.ThreadExchangeStreamCaptureMode(&mode));

    OK(cu.EventRecord(outside, s));
    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    IS(cu.StreamWaitEvent(s, outside, 0), 905);
    SAID("recorded before");
    IS(cu.StreamEndCapture(s, &graph), DTM_CU_CAPTURE_INVALIDATED);

    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    OK(cu.EventRecord(fork, s));
    OK(cu.StreamWaitEvent(other, fork, 0));
    OK(launch(add, other, &p, 1, 0, DECLARE_ALL));
    IS(cu.StreamEndCapture(s, &graph), 904);
    SAID("not waited for");

    float pageable[4] = {0};
    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    IS(cu.MemcpyHtoDAsync(a.at, pageable, 16, s), DTM_CU_CAPTURE_UNSUPPORTED);
    SAID("not pinned");
    IS(cu.StreamEndCapture(s, &graph), DTM_CU_CAPTURE_INVALIDATED);

    OK(cu.StreamBeginCapture(s, DTM_CU_CAPTURE_THREAD));
    OK(cu.EventRecord(fork, s));
    IS(cu.EventSynchronize(fork), 907);
    SAID("recorded in a capture");
    IS(cu.StreamEndCapture(s, &graph), DTM_CU_CAPTURE_INVALIDATED);

    OK(cu.CtxSynchronize());
    OK(cu.EventDestroy(fork));
    OK(cu.EventDestroy(join));
    OK(cu.EventDestroy(outside));
    OK(cu.StreamDestroy(s));
    OK(cu.StreamDestroy(other));
    OK(cu.MemFreeHost(in));
    OK(cu.MemFreeHost(out));
    arena_free(a);
    CHECK(said() == 0);
}

static void test_memory(void) {
    dtm_cu_allocation_properties p = on_device(0);
    dtm_cu_allocation big = 0;
    size_t granularity = 0, free_bytes = 0, total = 0;
    OK(cu.MemGetAllocationGranularity(&granularity, &p, DTM_CU_GRANULARITY_RECOMMENDED));
    CHECK(granularity == GRANULE);
    OK(cu.MemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == total);
    IS(cu.MemCreate(&big, total + GRANULE, &p, 0), DTM_CU_OUT_OF_MEMORY);
    IS(cu.MemCreate(&big, 4096, &p, 0), 1);

    arena a = arena_make(0, GRANULE);
    OK(cu.MemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == total - GRANULE);
    dtm_cu_stream s = stream_make();
    float *in = pinned(N * 4), back[N + 1] = {0};
    set(in, 3);
    IS(cu.MemcpyHtoDAsync(a.at + GRANULE - 4, in, 8, s), 1);
    SAID("not mapped");
    IS(cu.MemcpyHtoDAsync((dtm_cu_pointer)(uintptr_t)in, in, 8, s), 1);
    SAID("not mapped");
    OK(cu.MemcpyHtoDAsync(a.at, in, N * 4, s));
    OK(cu.MemcpyDtoDAsync(a.at + 8192, a.at, N * 4, s));
    OK(cu.MemcpyDtoHAsync(back, a.at + 8192, N * 4, s)); /* not pinned: is there when the call returns */
    CHECK(!memcmp(back, in, N * 4));
    OK(cu.MemsetD32Async(a.at, 0x3f800000, N, s));
    OK(cu.MemsetD8Async(a.at + 4, 0, 4, s));
    OK(cu.MemcpyDtoHAsync(back, a.at, N * 4, s));
    CHECK(back[0] == 1 && back[1] == 0 && back[2] == 1);
    dtm_cu_copy_2d c = {.source_kind = DTM_CU_KIND_DEVICE, .source_device = a.at + 8192, .source_pitch = 40, .target_kind = DTM_CU_KIND_HOST,
                        .target_host = back, .target_pitch = 8, .width = 8, .height = 3};
    OK(cu.Memcpy2DAsync(&c, s));
    CHECK(back[1] == in[1] && back[2] == in[10] && back[5] == in[21]);
    IS(cu.MemcpyDtoHAsync(back, a.at + 8192, N * 4 + 4, s), DTM_CU_ILLEGAL_ADDRESS);
    SAID("never written");
    OK(cu.MemcpyDtoDAsync(a.at + 16384, a.at + 8192, N * 4 + 4, s)); /* copied as it is: */
    IS(cu.MemcpyDtoHAsync(back, a.at + 16384 + N * 4, 4, s), DTM_CU_ILLEGAL_ADDRESS);
    SAID("never written");

    /* mapped host memory, and what stands in it */
    void *mapped = NULL;
    dtm_cu_pointer stamp = 0;
    IS(cu.MemHostGetDevicePointer(&stamp, in, 0), 1);
    SAID("not mapped");
    OK(cu.MemHostAlloc(&mapped, 64, DTM_CU_HOST_MAPPED));
    OK(cu.MemHostGetDevicePointer(&stamp, mapped, 0));
    OK(cu.StreamWriteValue32(s, stamp, 77, 0));
    OK(cu.StreamSynchronize(s));
    CHECK(*(uint32_t *)mapped == 77);
    OK(cu.MemsetD8Async(a.at, 0, 4, s));
    IS(cu.MemUnmap(a.at, a.bytes / 2), 1);
    OK(cu.StreamSynchronize(s));
    OK(cu.MemFreeHost(mapped));
    OK(cu.MemFreeHost(in));
    OK(cu.StreamDestroy(s));
    arena_free(a);
    IS(cu.MemRelease(a.allocation), 1);
    SAID("released");
    OK(cu.MemGetInfo(&free_bytes, &total));
    CHECK(free_bytes == total);
    CHECK(said() == 0);
}

static void test_launches(void) {
    arena a = arena_make(0, GRANULE);
    dtm_cu_stream s = stream_make();
    uint64_t x = a.at, y = a.at + 8192, z = a.at + 16384, w = a.at + 24576, error = a.at + 32768;
    float *host = pinned(4 * N);
    set(host, -50);
    OK(cu.MemcpyHtoDAsync(x, host, N * 4, s));
    /* two tuples of other lengths, and the least index of what is below zero */
    struct tuples p = {.t = {{.b = {x, x, y}, .z = {N, 0}}, {.b = {x, x, z}, .z = {300, 0}}}, .error = error};
    uint64_t bad = 0;
    OK(cu.MemsetD32Async(error, ~0u, 2, s));
    OK(launch(add, s, &p, 2, 0, DECLARE_ALL));
    OK(cu.MemcpyDtoHAsync(&bad, error, 8, s));
    CHECK(bad == 0);
    OK(cu.MemcpyDtoHAsync(host, z, 300 * 4, s));
    OK(cu.StreamSynchronize(s));
    CHECK(host[299] == 2 * (299 % 97 - 50));

    OK(launch(add, s, &p, 2, 0, DECLARE_SHORT));
    IS(cu.StreamSynchronize(s), DTM_CU_ILLEGAL_ADDRESS);
    CHECK(strstr(reports(), "tuples_add: bounds") && strstr(reports(), "PTX line"));
    SAID("bounds");
    struct tuples q = one(x, w, y); /* w was never written */
    q.error = error;
    OK(launch(add, s, &q, 1, 0, DECLARE_ALL));
    IS(cu.StreamSynchronize(s), DTM_CU_ILLEGAL_ADDRESS);
    SAID("never written");
    q.t[0].b[1] = x + 2;
    OK(launch(add, s, &q, 1, 0, DECLARE_ALL));
    IS(cu.StreamSynchronize(s), DTM_CU_MISALIGNED);
    SAID("alignment");
    q.t[0].b[1] = x, q.t[0].b[2] = a.at + GRANULE - 400; /* nobody said what it touches: the memory of the device bounds it */
    OK(launch(add, s, &q, 1, 0, DECLARE_NOTHING));
    IS(cu.StreamSynchronize(s), DTM_CU_ILLEGAL_ADDRESS);
    SAID("bounds");

    /* limits of a launch */
    q = one(x, x, y);
    OK(launch(fill, s, &q, 1, 1024, DECLARE_ALL));
    OK(cu.StreamSynchronize(s));
    OK(launch(fill, s, &q, 1, 512, DECLARE_ALL)); /* short by half */
    IS(cu.StreamSynchronize(s), DTM_CU_ILLEGAL_ADDRESS);
    SAID("bounds");
    IS(launch(fill, s, &q, 1, 49156, DECLARE_ALL), 1);
    SAID("dynamic shared memory");
    OK(cu.FuncSetAttribute(fill, DTM_CU_FUNCTION_SHARED_DYNAMIC, 65536));
    OK(launch(fill, s, &q, 1, 49156, DECLARE_ALL));
    OK(cu.StreamSynchronize(s));
    IS(cu.FuncSetAttribute(fill, DTM_CU_FUNCTION_SHARED_DYNAMIC, 1 << 20), 1);
    int value = 0, blocks = 0;
    OK(cu.FuncGetAttribute(&value, DTM_CU_FUNCTION_SHARED_DYNAMIC, fill));
    CHECK(value == 65536);
    OK(cu.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 256, 65536));
    CHECK(blocks == 2);
    void *arguments[] = {&q};
    dtm_cu_launch l = {.grid = {1, 65536, 1}, .block = {256, 1, 1}, .stream = s};
    IS(cu.LaunchKernelEx(&l, add, arguments, NULL), 1);
    SAID("a grid");
    l = (dtm_cu_launch){.grid = {1, 1, 1}, .block = {512, 1, 1}, .stream = s};
    IS(cu.LaunchKernelEx(&l, add, arguments, NULL), 1);
    SAID("512 threads");
    l.grid[0] = 0, l.block[0] = 256;
    IS(cu.LaunchKernelEx(&l, add, arguments, NULL), 1);
    SAID("a grid");
    OK(cu.MemFreeHost(host));
    OK(cu.StreamDestroy(s));
    arena_free(a);
    CHECK(said() == 0);
}

static void test_modules(void) {
    dtm_cu_module m = NULL;
    dtm_cu_function f = NULL;
    char log[200] = "";
    dtm_cu_jit_option options[] = {DTM_CU_JIT_ERROR_LOG, DTM_CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    IS(cu.ModuleLoadDataEx(&m, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f()\n{\n.reg .b32 %r<2>;\nfly.b32 %r1, %r1;\n}\n", 2,
                           options, values), 218);
    SAID("PTX line");
    CHECK(strstr(log, "fly"));
    IS(cu.ModuleLoadDataEx(&m, text_of("tuples.sm_100.ptx"), 0, NULL, NULL), 218);
    SAID("sm_100");
    IS(cu.ModuleLoadDataEx(&m, ".version 9.9\n.target sm_80\n", 0, NULL, NULL), DTM_CU_PTX_TOO_NEW);
    SAID("9.9");
    IS(cu.ModuleGetFunction(&f, module, "tuples_of_nothing"), DTM_CU_NOT_FOUND);
    OK(cu.ModuleLoadDataEx(&m, text_of("tuples.sm_80.ptx"), 0, NULL, NULL));
    OK(cu.ModuleGetFunction(&f, m, "tuples_add"));
    OK(cu.ModuleUnload(m));
    dtm_cu_stream s = stream_make();
    struct tuples p = {0};
    IS(launch(f, s, &p, 1, 0, DECLARE_NOTHING), 400);
    SAID("destroyed");
    OK(cu.StreamDestroy(s));
    CHECK(said() == 0);
}

/* Two devices, each with what is its own; what is left at the end is named. */
static void test_devices(void) {
    int n = 0, value = 0;
    dtm_cu_context second = NULL;
    dtm_cu_device device = 0;
    OK(cu.DeviceGetCount(&n));
    CHECK(n == 2);
    IS(cu.DeviceGet(&device, 2), 101);
    OK(cu.DeviceGet(&device, 1));
    OK(cu.DeviceGetAttribute(&value, DTM_CU_CAPABILITY_MAJOR, device));
    CHECK(value == 8);
    OK(cu.DevicePrimaryCtxRetain(&second, device));
    dtm_cu_stream s = stream_make();
    OK(cu.CtxSetCurrent(second));
    struct tuples p = {0};
    IS(launch(add, s, &p, 1, 0, DECLARE_NOTHING), 400);
    SAID("the context of device 1");
    arena a = arena_make(0, GRANULE), b = arena_make(1, GRANULE);
    dtm_cu_stream t = stream_make();
    float x = 5, y = 0;
    OK(cu.MemcpyHtoDAsync(a.at, &x, 4, t));
    OK(cu.MemcpyPeerAsync(b.at, second, a.at, context, 4, t));
    OK(cu.MemcpyDtoHAsync(&y, b.at, 4, t));
    CHECK(y == 5);
    IS(cu.MemcpyPeerAsync(b.at, context, a.at, context, 4, t), 1);
    SAID("not of the context");
    arena_free(a);
    arena_free(b);
    CHECK(said() == 0);
    OK(cu.DevicePrimaryCtxRelease(device));
    SAID("nobody has destroyed 1 of its streams");
    IS(cu.StreamSynchronize(t), 201);
    OK(cu.CtxSetCurrent(context));
    OK(cu.StreamDestroy(s));
    CHECK(said() == 0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    setenv("DTM_SIM_DEVICES", "2", 1);
    setenv("DTM_SIM_ARCH", "80", 1);
    dtm_status status = {0};
    dtm_cuda *cuda = NULL;
    char path[1000];
    fixtures = argv[2];
    if (!dtm_cuda_create(&(dtm_cuda_options){.folder = argv[1]}, &cuda, &status) || !dtm_cuda_driver(cuda, &status)) {
        fprintf(stderr, "%s\n", status.message);
        return 1;
    }
    cu = *dtm_cuda_driver(cuda, &status);
    snprintf(path, sizeof path, "%s/libcuda.so.1", argv[1]);
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD), *f;
#define TAKE(name, symbol) f = dlsym(handle, symbol), memcpy(&name, &f, sizeof f)
    TAKE(declare, "dtm_sim_declare");
    TAKE(said, "dtm_sim_said");
    TAKE(reports, "dtm_sim_reports");
    TAKE(again, "dtm_sim_again");
    int count = 0;
    IS(cu.DeviceGetCount(&count), 3);
    IS(cu.CtxSynchronize(), 3);
    OK(cu.Init(0));
    IS(cu.CtxSynchronize(), 201);
    OK(cu.DevicePrimaryCtxRetain(&context, 0));
    OK(cu.CtxSetCurrent(context));
    OK(cu.ModuleLoadDataEx(&module, text_of("tuples.sm_80.ptx"), 0, NULL, NULL));
    OK(cu.ModuleGetFunction(&add, module, "tuples_add"));
    OK(cu.ModuleGetFunction(&fill, module, "tuples_fill"));
    test_memory();
    test_launches();
    test_streams();
    test_graphs();
    test_modules();
    test_devices();
    OK(cu.ModuleUnload(module));
    OK(cu.DevicePrimaryCtxRelease(0));
    CHECK(said() == 0);
    dtm_cuda_destroy(cuda);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
