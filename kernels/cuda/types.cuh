/* What generated text for CPUs takes from the headers of C, for the same text in CUDA C: names of integers, infinity and NaN, bits of
 * floats, and storage narrower than a register. */
#include "kernels/cuda/prelude.cuh"

#ifndef DTM_CUDA_TYPES
#define DTM_CUDA_TYPES

typedef int int32_t;
typedef dtm_i64 int64_t;
typedef unsigned char uint8_t;
typedef dtm_u16 uint16_t;
typedef dtm_u32 uint32_t;
typedef dtm_u64 uint64_t;

#define INFINITY dtm_infinity()
#define NAN __int_as_float(0x7fc00000)
#define INT32_MIN ((int32_t)0x80000000)

DTM_DEVICE int32_t dtm_bits(float x) { return __float_as_int(x); }
DTM_DEVICE float dtm_from_bits(int32_t i) { return __int_as_float(i); }

DTM_DEVICE float dtm_of_bf16(dtm_bf16 x) { return dtm_load_f32(x); }
DTM_DEVICE float dtm_of_f16(dtm_f16 x) { return dtm_load_f32(x); }
DTM_DEVICE dtm_bf16 dtm_to_bf16(float x) { return dtm_store_f32<dtm_bf16>(x); }
DTM_DEVICE dtm_f16 dtm_to_f16(float x) { return dtm_store_f32<dtm_f16>(x); }

#endif
