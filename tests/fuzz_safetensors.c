/* libFuzzer's target for files of weights: whatever the bytes, the reader ends with tensors or with an error. */
#include "runtime/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    dtm_safetensors_fuzz(data, size);
    return 0;
}
