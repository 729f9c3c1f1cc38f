/* Entries of the cache as bytes and as files (jit.h says what is in one). */
#ifndef DTM_CUDA_JIT_ENTRY_H
#define DTM_CUDA_JIT_ENTRY_H

#include "runtime/cuda/jit.h"

/* Options of every compilation, after the architecture. */
extern const char *const dtm_jit_compile_options[];
enum { DTM_JIT_COMPILE_OPTIONS = 4 };

typedef struct dtm_jit_identity {
    unsigned char what[32]; /* of source, options, architecture */
    unsigned char key[32];  /* of that and of what compiles it */
} dtm_jit_identity;

/* nvrtc: its version and build-id; NULL: `what` alone. False if memory ran out. */
bool dtm_jit_identify(const dtm_jit_source *source, const dtm_cuda_library *nvrtc, dtm_jit_identity *out);
/* The same of other options. */
bool dtm_jit_identify_with(const dtm_jit_source *source, const char *const *options, int n_options, const dtm_cuda_library *nvrtc, dtm_jit_identity *out);

/* What NVRTC gave; ptx and log are zero-terminated. */
typedef struct dtm_jit_parts {
    const char *ptx, *log;
    const unsigned char *cubin;
    size_t cubin_bytes;
} dtm_jit_parts;

/* An allocated entry. */
bool dtm_jit_pack(const dtm_jit_identity *identity, const dtm_jit_parts *parts, unsigned char **out, size_t *bytes, dtm_status *status);
/* Takes over the entry, which is malloc'ed, if it is whole and has this identity (of `what` alone where any compiler will do);
 * else NULL, and the entry is still the caller's. */
dtm_jit_code *dtm_jit_open_entry(unsigned char *entry, size_t bytes, const dtm_jit_identity *identity, bool any_compiler);

typedef struct dtm_jit_folder {
    int fd; /* -1: there is none */
    char path[1024];
    char notice[1200];
} dtm_jit_folder;

typedef enum dtm_jit_found { DTM_JIT_ABSENT, DTM_JIT_FOUND, DTM_JIT_CORRUPT } dtm_jit_found;

/* path NULL: ~/.cache/dtm. Removes what killed processes left there long ago. */
void dtm_jit_folder_open(const char *path, dtm_jit_folder *out);
void dtm_jit_folder_close(dtm_jit_folder *folder);
dtm_jit_found dtm_jit_folder_read(const dtm_jit_folder *folder, const dtm_jit_identity *identity, dtm_jit_code **out);
/* 0, or the error number. */
int dtm_jit_folder_write(const dtm_jit_folder *folder, const dtm_jit_identity *identity, const unsigned char *entry, size_t bytes);
/* Where the source of a failed compilation was put; "" if nowhere. */
void dtm_jit_folder_save(const dtm_jit_folder *folder, const dtm_jit_identity *identity, const char *text, char out[1200]);

#endif
