/* SHA-256. The compiler names plans by it, the runtime the kernels of its cache. */
#ifndef DTM_SHA256_H
#define DTM_SHA256_H

#include <stddef.h>
#include <stdint.h>

void dtm_sha256(const void *data, size_t bytes, unsigned char digest[32]);

#endif
