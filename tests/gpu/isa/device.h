/* The cases of isa.c on the device that libcuda has: a GPU, or the stand-in. */
#ifndef ISA_DEVICE_H
#define ISA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

/* *said: what it runs on, or why on nothing. *architecture: 90 of compute capability 9.0. */
bool isa_device_open(char *said, size_t size, int *architecture);
/* One block of `threads` of the entry `isa`, with the addresses of both tables as parameters; `bytes` of each. A failure is in `error`;
 * *loads says whether the driver took the text. */
bool isa_device_run(const char *text, int threads, const void *in, void *out, size_t bytes, bool *loads, char *error, size_t size);

#endif
