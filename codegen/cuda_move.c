/* Kernels of a few lines as CUDA C: sums over microbatches. */
#include "codegen/cuda_nest.h"

uint32_t dtm_cuda_accumulate(dtm_generator *g, dtm_dtype dtype, bool max) {
    const char *stored = dtm_cuda_stored_type(dtype), *number = nest_register_type(dtype);
    int width = 16 / (int)dtm_dtype_bytes(dtype) > 8 ? 8 : 16 / (int)dtm_dtype_bytes(dtype);
    dtm_cuda_text text = {.n_launches = 1};
    text.device = dtm_arena_printf(g->arena,
        "#include \"kernels/cuda/nest.cuh\"\n"
        "/* z: elements; 0 where the sum begins. */\n"
        "template <int W> DTM_DEVICE void @_at(const %s *x, %s *sum, bool later) {\n"
        "    %s more[W], so_far[W];\n"
        "    dtm_read<W>(more, x);\n"
        "    if (later) {\n"
        "        dtm_read<W>(so_far, sum);\n"
        "#pragma unroll\n"
        "        for (int k = 0; k < W; k++) more[k] = %s::join(so_far[k], more[k]);\n"
        "    }\n"
        "    dtm_write<W>(sum, more);\n"
        "}\n\n"
        "KERNEL(@, %d) {\n    dtm_begin(p.mark);\n"
        "    const tuple &t = p.t[TUPLE];\n"
        "    constexpr int W = %d;\n"
        "    const int64_t vectors = t.z[0] / W, self = (int64_t)blockIdx.x * %d + threadIdx.x;\n"
        "    const %s *x = (const %s *)t.b[0];\n"
        "    %s *sum = (%s *)t.b[1];\n"
        "    if (self < vectors) @_at<W>(x + self * W, sum + self * W, t.z[1] != 0);\n"
        "    else if (self - vectors < t.z[0] %% W) @_at<1>(x + vectors * W + (self - vectors), sum + vectors * W + (self - vectors), t.z[1] != 0);\n"
        "}\n",
        stored, stored, number, max ? "dtm_larger" : "dtm_add", CUDA_THREADS, width, CUDA_THREADS, stored, stored, stored, stored);
    text.launches[0] = (dtm_cuda_launch_text){"", CUDA_THREADS,
        dtm_arena_printf(g->arena, "(z[0] / %d + z[0] %% %d + %d) / %d", width, width, CUDA_THREADS - 1, CUDA_THREADS), NULL};
    uint32_t kernel = dtm_cuda_kernel_index(g, "accumulate", &text, 2, 2);
    g->kernels[kernel].read_only = 1;
    return kernel;
}
