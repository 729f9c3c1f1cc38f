/* The safetensors file format: 8 bytes length of the header (little endian), a JSON header, the tensors' bytes.
 *
 *     | n : u64 | {"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ..} + spaces to 8 | data |
 *
 * The reader believes nothing: a file that opens is consistent, its tensors fill the data without gap or overlap, and
 * reads stay inside it. Blocks are read and written by offset, so that each rank touches its own part alone.
 *
 * Writing, one file by many ranks: all make the same layout; one creates the file (dtm_safetensors_create), then the
 * others join it, each writes its blocks and closes; when all have closed, the creator commits. Until then the bytes
 * stand in PATH.partial, and PATH is what it was. */
#ifndef DTM_SAFETENSORS_H
#define DTM_SAFETENSORS_H

#include "runtime/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum dtm_stored_dtype {
    DTM_STORED_BOOL,
    DTM_STORED_U8,
    DTM_STORED_I8,
    DTM_STORED_F8E4M3,
    DTM_STORED_F8E5M2,
    DTM_STORED_U16,
    DTM_STORED_I16,
    DTM_STORED_F16,
    DTM_STORED_BF16,
    DTM_STORED_U32,
    DTM_STORED_I32,
    DTM_STORED_F32,
    DTM_STORED_U64,
    DTM_STORED_I64,
    DTM_STORED_F64,
    DTM_STORED_DTYPES
} dtm_stored_dtype;

enum { DTM_STORED_RANK = 16 };

int64_t dtm_stored_bytes(dtm_stored_dtype dtype);
const char *dtm_stored_name(dtm_stored_dtype dtype); /* "F32" */

typedef struct dtm_stored_tensor {
    const char *name;
    dtm_stored_dtype dtype;
    int rank;
    int64_t shape[DTM_STORED_RANK];
    int64_t offset, bytes; /* in the file, from its beginning; a layout fills them in */
} dtm_stored_tensor;

/* ---- reading ---- */

typedef struct dtm_safetensors dtm_safetensors;

bool dtm_safetensors_open(const char *path, dtm_safetensors **out, dtm_status *status);
void dtm_safetensors_close(dtm_safetensors *file);
const char *dtm_safetensors_path(const dtm_safetensors *file);
/* Tensors in the order of their names. */
int64_t dtm_safetensors_count(const dtm_safetensors *file);
const dtm_stored_tensor *dtm_safetensors_at(const dtm_safetensors *file, int64_t index);
const dtm_stored_tensor *dtm_safetensors_find(const dtm_safetensors *file, const char *name);
/* The header's __metadata__, or NULL. */
const char *dtm_safetensors_metadata(const dtm_safetensors *file, const char *key);

/* Copies the block [begin[d], end[d]) of each dimension, packed, in the file's dtype. */
bool dtm_safetensors_read(const dtm_safetensors *file, const dtm_stored_tensor *tensor, const int64_t *begin,
                          const int64_t *end, void *out, dtm_status *status);

/* ---- writing ---- */

/* Which bytes go where; the same on every rank that makes it of the same tensors and metadata. */
typedef struct dtm_safetensors_layout dtm_safetensors_layout;

/* Declares all tensors (copied; in any order, which is that of dtm_safetensors_write's index). In the file they stand
 * by falling size of their elements, so that all are aligned, and by name. metadata: pairs of key and value, ended by
 * NULL, or NULL. */
bool dtm_safetensors_lay_out(const dtm_stored_tensor *tensors, int64_t count, const char *const *metadata,
                             dtm_safetensors_layout **out, dtm_status *status);
void dtm_safetensors_layout_free(dtm_safetensors_layout *layout);
int64_t dtm_safetensors_layout_bytes(const dtm_safetensors_layout *layout); /* of the whole file */

typedef struct dtm_safetensors_writer dtm_safetensors_writer;

/* Creates PATH.partial at full size, with its header; disk space is reserved here where the file system can. */
bool dtm_safetensors_create(const char *path, const dtm_safetensors_layout *layout, dtm_safetensors_writer **out,
                            dtm_status *status);
/* Opens PATH.partial, which another rank has created. */
bool dtm_safetensors_join(const char *path, const dtm_safetensors_layout *layout, dtm_safetensors_writer **out,
                          dtm_status *status);
/* Writes a block of tensor `index` of the layout, packed as dtm_safetensors_read gives it. */
bool dtm_safetensors_write(dtm_safetensors_writer *writer, int64_t index, const int64_t *begin, const int64_t *end,
                           const void *data, dtm_status *status);
/* Flushes what was written to the disk and frees the writer, in any case. */
bool dtm_safetensors_writer_close(dtm_safetensors_writer *writer, dtm_status *status);
/* After all have closed: PATH.partial becomes PATH, at once and lastingly. */
bool dtm_safetensors_commit(const char *path, dtm_status *status);
/* Instead of it: removes PATH.partial. */
void dtm_safetensors_discard(const char *path);

/* ---- for the fuzzer ---- */

/* Treats the bytes as a file, and reads every tensor of it if it is one. Always 0. */
int dtm_safetensors_fuzz(const uint8_t *data, size_t size);

#endif
