/* The reader, and what both sides know of dtypes and blocks. */
#include "runtime/safetensors_format.h"

#include "runtime/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t MAX_HEADER_BYTES = 100000000; /* the reference's limit */
/* Runs shorter than this are read together, in windows of that. */
static const int64_t SHORT_RUN_BYTES = 1 << 16, WINDOW_BYTES = 1 << 20;

struct dtm_safetensors {
    char *path;
    int descriptor; /* or -1: then memory holds the file */
    const uint8_t *memory;
    int64_t size;
    dtm_json json; /* the header; names point into it */
    dtm_stored_tensor *tensors;
    int64_t count;
};

/* ---- dtypes and blocks ---- */

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[DTM_STORED_DTYPES] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                               {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
                               {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};

int64_t dtm_stored_bytes(dtm_stored_dtype dtype) {
    return dtypes[dtype].bytes;
}
const char *dtm_stored_name(dtm_stored_dtype dtype) {
    return dtypes[dtype].name;
}

int64_t dtm_stored_total_bytes(const dtm_stored_tensor *tensor) {
    int64_t total = dtypes[tensor->dtype].bytes;
    bool empty = false;
    for (int d = 0; d < tensor->rank; d++) {
        if (tensor->shape[d] < 0) return -1;
        if (tensor->shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(total, tensor->shape[d], &total))
            return -1;
    }
    return empty ? 0 : total;
}

bool dtm_stored_block_begin(const dtm_stored_tensor *tensor, const int64_t *begin, const int64_t *end,
                            dtm_stored_block *block, dtm_status *status) {
    *block = (dtm_stored_block){.offset = tensor->offset};
    bool joins = true, empty = false;
    for (int d = 0; d < tensor->rank; d++) {
        if (begin[d] < 0 || end[d] < begin[d] || end[d] > tensor->shape[d])
            return dtm_status_fail(
                status, "tensor %s: the block [%lld, %lld) of dimension %d is outside of its size %lld", tensor->name,
                (long long)begin[d], (long long)end[d], d, (long long)tensor->shape[d]);
        empty = empty || begin[d] == end[d];
    }
    if (empty) return true;
    int64_t stride = block->run_bytes = dtypes[tensor->dtype].bytes;
    block->runs = 1;
    for (int d = tensor->rank - 1; d >= 0; d--) {
        int64_t size = end[d] - begin[d];
        block->offset += begin[d] * stride;
        if (joins) {
            block->run_bytes *= size;
        } else {
            block->size[block->rank] = size;
            block->stride[block->rank++] = stride;
            block->runs *= size;
        }
        joins = joins && size == tensor->shape[d];
        stride *= tensor->shape[d];
    }
    return true;
}

bool dtm_stored_block_next(dtm_stored_block *block) {
    for (int d = 0; d < block->rank; d++) {
        block->offset += block->stride[d];
        if (++block->at[d] < block->size[d]) return true;
        block->offset -= block->at[d] * block->stride[d];
        block->at[d] = 0;
    }
    return false;
}

/* ---- the header ---- */

static bool bad(const dtm_safetensors *file, const char *name, const char *what, dtm_status *status) {
    return dtm_status_fail(status, "%s: tensor \"%.200s\" %s", file->path, name, what);
}

static bool read_shape(const dtm_safetensors *file, int64_t at, dtm_stored_tensor *tensor, dtm_status *status) {
    const dtm_json_value *values = file->json.values;
    if (values[at].type != DTM_JSON_ARRAY) return bad(file, tensor->name, "has a shape that is not a list", status);
    if (values[at].length > DTM_STORED_RANK) return bad(file, tensor->name, "has more than 16 dimensions", status);
    tensor->rank = (int)values[at].length;
    for (int d = 0; d < tensor->rank; d++)
        if (!dtm_json_integer(&values[at + 1 + d], &tensor->shape[d]) || tensor->shape[d] < 0)
            return bad(file, tensor->name, "has a dimension that is not a size", status);
    return true;
}

static bool read_dtype(const dtm_safetensors *file, int64_t at, dtm_stored_tensor *tensor, dtm_status *status) {
    const dtm_json_value *value = &file->json.values[at];
    for (int i = 0; i < DTM_STORED_DTYPES; i++) {
        if (!dtm_json_is(value, dtypes[i].name)) continue;
        tensor->dtype = (dtm_stored_dtype)i;
        return true;
    }
    return dtm_status_fail(status, "%s: tensor \"%.200s\" has the unknown dtype %.40s", file->path, tensor->name,
                           value->type == DTM_JSON_STRING ? value->text : "(not a string)");
}

/* Offsets are relative to the data, which begins at `data`. */
static bool read_offsets(const dtm_safetensors *file, int64_t at, int64_t data, dtm_stored_tensor *tensor,
                         dtm_status *status) {
    const dtm_json_value *values = file->json.values;
    int64_t begin, end, room = file->size - data;
    if (values[at].type != DTM_JSON_ARRAY || values[at].length != 2 || !dtm_json_integer(&values[at + 1], &begin) ||
        !dtm_json_integer(&values[at + 2], &end))
        return bad(file, tensor->name, "has data_offsets that are not two whole numbers", status);
    if (begin < 0 || end < begin)
        return dtm_status_fail(status, "%s: tensor \"%.200s\" has the data_offsets [%lld, %lld], which are no range",
                               file->path, tensor->name, (long long)begin, (long long)end);
    if (end > room)
        return dtm_status_fail(status,
                               "%s: tensor \"%.200s\" ends at byte %lld of the data, but the file holds %lld: it "
                               "is cut short or its header is wrong",
                               file->path, tensor->name, (long long)end, (long long)room);
    int64_t bytes = dtm_stored_total_bytes(tensor);
    if (bytes < 0)
        return dtm_status_fail(status, "%s: tensor \"%.200s\" has a shape that no file can hold", file->path, tensor->name);
    if (bytes != end - begin)
        return dtm_status_fail(status,
                               "%s: tensor \"%.200s\" has %lld bytes of data, but its dtype and shape need %lld",
                               file->path, tensor->name, (long long)(end - begin), (long long)bytes);
    tensor->offset = data + begin;
    tensor->bytes = bytes;
    return true;
}

static bool read_entry(dtm_safetensors *file, int64_t key, int64_t data, dtm_status *status) {
    const dtm_json *json = &file->json;
    dtm_stored_tensor *tensor = &file->tensors[file->count];
    tensor->name = json->values[key].text;
    int64_t entry = key + 1;
    int64_t dtype = dtm_json_find(json, entry, "dtype"), shape = dtm_json_find(json, entry, "shape");
    int64_t offsets = dtm_json_find(json, entry, "data_offsets");
    if (dtype < 0 || shape < 0 || offsets < 0 || json->values[entry].length != 3)
        return bad(file, tensor->name, "is not described by exactly dtype, shape and data_offsets", status);
    if (!read_dtype(file, dtype, tensor, status) || !read_shape(file, shape, tensor, status) ||
        !read_offsets(file, offsets, data, tensor, status))
        return false;
    file->count++;
    return true;
}

static bool check_metadata(const dtm_safetensors *file, int64_t at, dtm_status *status) {
    const dtm_json_value *values = file->json.values;
    bool ok = values[at].type == DTM_JSON_OBJECT;
    for (uint32_t i = 0; ok && i < values[at].length; i++) ok = values[at + 2 + 2 * (int64_t)i].type == DTM_JSON_STRING;
    return ok || dtm_status_fail(status, "%s: __metadata__ is not a list of strings by name", file->path);
}

static int compare_offsets(const void *a, const void *b) {
    const dtm_stored_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const dtm_stored_tensor *)a)->name, ((const dtm_stored_tensor *)b)->name);
}

/* The tensors must tile the data. Leaves them sorted by name. */
static bool check_tiling(dtm_safetensors *file, int64_t data, dtm_status *status) {
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
    int64_t at = data;
    for (int64_t i = 0; i < file->count; i++) {
        const dtm_stored_tensor *tensor = &file->tensors[i];
        if (tensor->offset != at)
            return dtm_status_fail(status,
                                   "%s: tensor \"%.200s\" begins at byte %lld of the data, but the tensor before it "
                                   "ends at %lld: %s",
                                   file->path, tensor->name, (long long)(tensor->offset - data), (long long)(at - data),
                                   tensor->offset < at ? "they overlap" : "there is a gap");
        at += tensor->bytes;
    }
    if (at != file->size)
        return dtm_status_fail(status, "%s: the tensors end at byte %lld, but the file has %lld", file->path,
                               (long long)at, (long long)file->size);
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_names);
    return true;
}

static bool read_header(dtm_safetensors *file, const char *header, int64_t length, dtm_status *status) {
    dtm_status inner = {0};
    if (length == 0 || header[0] != '{')
        return dtm_status_fail(status, "%s: the header does not begin with `{`: this is no safetensors file",
                               file->path);
    if (!dtm_json_parse(header, (size_t)length, &file->json, &inner))
        return dtm_status_fail(status, "%s: bad header: %s", file->path, inner.message);
    const dtm_json_value *values = file->json.values;
    file->tensors = calloc((size_t)values[0].length + 1, sizeof *file->tensors);
    if (!file->tensors) return dtm_status_fail(status, "%s: out of memory for its header", file->path);
    int64_t data = 8 + length, at = 1;
    for (uint32_t i = 0; i < values[0].length; i++) {
        bool metadata = dtm_json_is(&values[at], "__metadata__");
        if (metadata ? !check_metadata(file, at + 1, status) : !read_entry(file, at, data, status)) return false;
        at = values[at + 1].end;
    }
    return check_tiling(file, data, status);
}

/* ---- bytes ---- */

static bool read_bytes(const dtm_safetensors *file, int64_t offset, void *out, int64_t bytes, dtm_status *status) {
    if (file->descriptor < 0) {
        memcpy(out, file->memory + offset, (size_t)bytes);
        return true;
    }
    for (char *to = out; bytes > 0;) {
        ssize_t got = pread(file->descriptor, to, (size_t)(bytes < 1 << 30 ? bytes : 1 << 30), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dtm_status_fail_errno(status, errno, "cannot read %s", file->path);
        if (got == 0)
            return dtm_status_fail(status, "%s ends at byte %lld: it was cut while it was read", file->path,
                                   (long long)offset);
        to += got;
        offset += got;
        bytes -= got;
    }
    return true;
}

static bool check_size(const dtm_safetensors *file, const uint8_t *prefix, int64_t *length, dtm_status *status) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | prefix[i];
    if (n > (uint64_t)MAX_HEADER_BYTES || (int64_t)n > file->size - 8)
        return dtm_status_fail(status,
                               "%s: the header's length is given as %llu bytes, but the file has %lld: it is cut "
                               "short or no safetensors file",
                               file->path, (unsigned long long)n, (long long)file->size);
    *length = (int64_t)n;
    return true;
}

static bool load(dtm_safetensors *file, dtm_status *status) {
    uint8_t prefix[8];
    int64_t length = 0;
    if (file->size < 8)
        return dtm_status_fail(status, "%s has %lld bytes: too short for a safetensors file", file->path,
                               (long long)file->size);
    if (!read_bytes(file, 0, prefix, 8, status) || !check_size(file, prefix, &length, status)) return false;
    char *header = malloc((size_t)length + 1);
    if (!header) return dtm_status_fail(status, "%s: out of memory for its header", file->path);
    bool ok = read_bytes(file, 8, header, length, status) && read_header(file, header, length, status);
    free(header);
    return ok;
}

bool dtm_safetensors_open(const char *path, dtm_safetensors **out, dtm_status *status) {
    *out = NULL;
    dtm_safetensors *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        return dtm_status_fail(status, "out of memory opening %s", path);
    }
    struct stat info;
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = file->descriptor >= 0 && fstat(file->descriptor, &info) == 0;
    if (!ok) dtm_status_fail_errno(status, errno, "cannot open %s", path);
    if (ok && !S_ISREG(info.st_mode)) ok = dtm_status_fail(status, "%s is not a file", path);
    if (ok) file->size = info.st_size;
    if (ok && load(file, status)) {
        *out = file;
        return true;
    }
    dtm_safetensors_close(file);
    return false;
}

void dtm_safetensors_close(dtm_safetensors *file) {
    if (!file) return;
    if (file->descriptor >= 0) close(file->descriptor);
    dtm_json_free(&file->json);
    free(file->tensors);
    free(file->path);
    free(file);
}

const char *dtm_safetensors_path(const dtm_safetensors *file) {
    return file->path;
}
int64_t dtm_safetensors_count(const dtm_safetensors *file) {
    return file->count;
}
const dtm_stored_tensor *dtm_safetensors_at(const dtm_safetensors *file, int64_t index) {
    return &file->tensors[index];
}

const dtm_stored_tensor *dtm_safetensors_find(const dtm_safetensors *file, const char *name) {
    dtm_stored_tensor key = {.name = name};
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof key, compare_names);
}

const char *dtm_safetensors_metadata(const dtm_safetensors *file, const char *key) {
    int64_t metadata = dtm_json_find(&file->json, 0, "__metadata__");
    int64_t found = metadata < 0 ? -1 : dtm_json_find(&file->json, metadata, key);
    return found < 0 ? NULL : file->json.values[found].text;
}

/* Short runs: a window of the file is read at once and the runs copied out of it. */
static bool read_short_runs(const dtm_safetensors *file, const dtm_stored_tensor *tensor, dtm_stored_block *block,
                            char *out, dtm_status *status) {
    int64_t end = tensor->offset + tensor->bytes, from = 0, until = 0;
    char *window = malloc((size_t)WINDOW_BYTES);
    bool ok = window || dtm_status_fail(status, "%s: out of memory reading %s", file->path, tensor->name);
    bool more = ok && block->run_bytes > 0;
    for (; more; out += block->run_bytes, more = dtm_stored_block_next(block)) {
        if (block->offset < from || block->offset + block->run_bytes > until) {
            from = block->offset;
            until = from + WINDOW_BYTES < end ? from + WINDOW_BYTES : end;
            ok = read_bytes(file, from, window, until - from, status);
            if (!ok) break;
        }
        memcpy(out, window + (block->offset - from), (size_t)block->run_bytes);
    }
    free(window);
    return ok;
}

bool dtm_safetensors_read(const dtm_safetensors *file, const dtm_stored_tensor *tensor, const int64_t *begin,
                          const int64_t *end, void *out, dtm_status *status) {
    dtm_stored_block block;
    if (!dtm_stored_block_begin(tensor, begin, end, &block, status)) return false;
    if (block.runs > 1 && block.run_bytes < SHORT_RUN_BYTES) return read_short_runs(file, tensor, &block, out, status);
    char *to = out;
    for (bool more = block.run_bytes > 0; more; to += block.run_bytes, more = dtm_stored_block_next(&block))
        if (!read_bytes(file, block.offset, to, block.run_bytes, status)) return false;
    return true;
}

/* ---- for the fuzzer ---- */

static void read_all(const dtm_safetensors *file) {
    dtm_status status = {0};
    for (int64_t i = 0; i < file->count; i++) {
        const dtm_stored_tensor *tensor = &file->tensors[i];
        int64_t begin[DTM_STORED_RANK], end[DTM_STORED_RANK];
        for (int d = 0; d < tensor->rank; d++) begin[d] = tensor->shape[d] / 3, end[d] = tensor->shape[d];
        char *out = malloc((size_t)tensor->bytes + 1);
        if (out) dtm_safetensors_read(file, tensor, begin, end, out, &status);
        free(out);
        dtm_safetensors_find(file, tensor->name);
    }
    dtm_safetensors_metadata(file, "format");
}

int dtm_safetensors_fuzz(const uint8_t *data, size_t size) {
    dtm_status status = {0};
    dtm_safetensors *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup("fuzz"))) {
        free(file);
        return 0;
    }
    file->descriptor = -1;
    file->memory = data;
    file->size = (int64_t)size;
    if (load(file, &status)) read_all(file);
    dtm_safetensors_close(file);
    return 0;
}
