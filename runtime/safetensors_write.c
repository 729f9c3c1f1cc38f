/* The writer of safetensors. */
#include "runtime/safetensors_format.h"

#include "runtime/json.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dtm_safetensors_layout {
    dtm_stored_tensor *tensors; /* as declared, names copied */
    int64_t count, bytes;
    char *header; /* the first bytes of the file, their length included */
    int64_t header_bytes;
};

struct dtm_safetensors_writer {
    const dtm_safetensors_layout *layout;
    char *path; /* of the partial file */
    int descriptor;
};

/* ---- the layout ---- */

static int compare_places(const void *a, const void *b) {
    const dtm_stored_tensor *x = *(dtm_stored_tensor *const *)a, *y = *(dtm_stored_tensor *const *)b;
    int64_t x_bytes = dtm_stored_bytes(x->dtype), y_bytes = dtm_stored_bytes(y->dtype);
    if (x_bytes != y_bytes) return x_bytes > y_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void write_entry(dtm_json_writer *writer, const dtm_stored_tensor *tensor) {
    dtm_json_key(writer, tensor->name);
    dtm_json_begin_object(writer);
    dtm_json_key(writer, "dtype");
    dtm_json_string(writer, dtm_stored_name(tensor->dtype));
    dtm_json_key(writer, "shape");
    dtm_json_begin_array(writer);
    for (int d = 0; d < tensor->rank; d++) dtm_json_whole(writer, tensor->shape[d]);
    dtm_json_end_array(writer);
    dtm_json_key(writer, "data_offsets");
    dtm_json_begin_array(writer);
    dtm_json_whole(writer, tensor->offset);
    dtm_json_whole(writer, tensor->offset + tensor->bytes);
    dtm_json_end_array(writer);
    dtm_json_end_object(writer);
}

static void write_metadata(dtm_json_writer *writer, const char *const *metadata) {
    if (!metadata || !metadata[0]) return;
    dtm_json_key(writer, "__metadata__");
    dtm_json_begin_object(writer);
    for (; metadata[0]; metadata += 2) {
        dtm_json_key(writer, metadata[0]);
        dtm_json_string(writer, metadata[1]);
    }
    dtm_json_end_object(writer);
}

/* Copies the tensors and gives them offsets relative to the data, in the order of `places`. */
static bool place(dtm_safetensors_layout *layout, const dtm_stored_tensor *tensors, int64_t count,
                  dtm_stored_tensor **places, dtm_status *status) {
    for (; layout->count < count; layout->count++) {
        dtm_stored_tensor *tensor = &layout->tensors[layout->count];
        *tensor = tensors[layout->count];
        tensor->bytes = dtm_stored_total_bytes(tensor);
        if (tensor->bytes < 0) return dtm_status_fail(status, "tensor %s is too large for a file", tensor->name);
        if (!(tensor->name = strdup(tensor->name))) return dtm_status_fail(status, "out of memory for a file's header");
        places[layout->count] = tensor;
    }
    qsort(places, (size_t)count, sizeof *places, compare_places);
    for (int64_t i = 0; i < count; i++) {
        places[i]->offset = layout->bytes;
        if (__builtin_add_overflow(layout->bytes, places[i]->bytes, &layout->bytes))
            return dtm_status_fail(status, "tensor %s is too large for a file", places[i]->name);
    }
    return true;
}

static bool make_header(dtm_safetensors_layout *layout, dtm_stored_tensor **places, const char *const *metadata,
                        dtm_status *status) {
    dtm_json_writer writer = {0};
    dtm_json_raw(&writer, "12345678"); /* room for the length */
    writer.wants_comma = false;
    dtm_json_begin_object(&writer);
    write_metadata(&writer, metadata);
    for (int64_t i = 0; i < layout->count; i++) write_entry(&writer, places[i]);
    dtm_json_end_object(&writer);
    while (writer.length % 8 && !writer.failed) {
        writer.wants_comma = false;
        dtm_json_raw(&writer, " ");
    }
    layout->header = writer.data;
    layout->header_bytes = (int64_t)writer.length;
    if (writer.failed) return dtm_status_fail(status, "out of memory for a file's header");
    for (int i = 0; i < 8; i++) writer.data[i] = (char)((uint64_t)(writer.length - 8) >> (8 * i));
    for (int64_t i = 0; i < layout->count; i++) layout->tensors[i].offset += layout->header_bytes;
    layout->bytes += layout->header_bytes;
    return true;
}

static bool check_names(dtm_stored_tensor *const *places, int64_t count, dtm_status *status) {
    for (int64_t i = 1; i < count; i++)
        if (strcmp(places[i - 1]->name, places[i]->name) == 0)
            return dtm_status_fail(status, "two tensors of a file are called %s", places[i]->name);
    return true;
}

bool dtm_safetensors_lay_out(const dtm_stored_tensor *tensors, int64_t count, const char *const *metadata,
                             dtm_safetensors_layout **out, dtm_status *status) {
    *out = NULL;
    dtm_safetensors_layout *layout = calloc(1, sizeof *layout);
    dtm_stored_tensor **places = calloc((size_t)count + 1, sizeof *places);
    if (layout) layout->tensors = calloc((size_t)count + 1, sizeof *layout->tensors);
    bool ok = (layout && places && layout->tensors) || dtm_status_fail(status, "out of memory for a file's header");
    ok = ok && place(layout, tensors, count, places, status) && check_names(places, count, status) &&
         make_header(layout, places, metadata, status);
    free(places);
    if (ok)
        *out = layout;
    else
        dtm_safetensors_layout_free(layout);
    return ok;
}

void dtm_safetensors_layout_free(dtm_safetensors_layout *layout) {
    if (!layout) return;
    for (int64_t i = 0; i < layout->count; i++) free((char *)layout->tensors[i].name);
    free(layout->tensors);
    free(layout->header);
    free(layout);
}

int64_t dtm_safetensors_layout_bytes(const dtm_safetensors_layout *layout) {
    return layout->bytes;
}

/* ---- the file ---- */

static char *partial_path(const char *path) {
    size_t length = strlen(path) + sizeof ".partial";
    char *result = malloc(length);
    if (result) snprintf(result, length, "%s.partial", path);
    return result;
}

static bool write_bytes(dtm_safetensors_writer *writer, int64_t offset, const void *data, int64_t bytes,
                        dtm_status *status) {
    for (const char *from = data; bytes > 0;) {
        ssize_t put = pwrite(writer->descriptor, from, (size_t)(bytes < 1 << 30 ? bytes : 1 << 30), offset);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return dtm_status_fail_errno(status, put < 0 ? errno : ENOSPC, "cannot write %s", writer->path);
        from += put;
        offset += put;
        bytes -= put;
    }
    return true;
}

static bool open_partial(const char *path, const dtm_safetensors_layout *layout, int flags,
                         dtm_safetensors_writer **out, dtm_status *status) {
    *out = NULL;
    dtm_safetensors_writer *writer = calloc(1, sizeof *writer);
    if (!writer || !(writer->path = partial_path(path))) {
        free(writer);
        return dtm_status_fail(status, "out of memory writing %s", path);
    }
    writer->layout = layout;
    writer->descriptor = open(writer->path, flags | O_WRONLY | O_CLOEXEC, 0666);
    *out = writer;
    return writer->descriptor >= 0 || dtm_status_fail_errno(status, errno, "cannot write %s", writer->path);
}

static void writer_free(dtm_safetensors_writer *writer) {
    if (writer->descriptor >= 0) close(writer->descriptor);
    free(writer->path);
    free(writer);
}

/* Space that cannot be had is known now; a file system that cannot reserve gives a file with holes. */
static bool reserve(dtm_safetensors_writer *writer, int64_t bytes, dtm_status *status) {
    int code;
    do code = fallocate(writer->descriptor, 0, 0, bytes);
    while (code != 0 && errno == EINTR);
    if (code != 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
        code = ftruncate(writer->descriptor, bytes);
    return code == 0 ||
           dtm_status_fail_errno(status, errno, "cannot write %s (%lld bytes)", writer->path, (long long)bytes);
}

bool dtm_safetensors_create(const char *path, const dtm_safetensors_layout *layout, dtm_safetensors_writer **out,
                            dtm_status *status) {
    bool opened = open_partial(path, layout, O_CREAT | O_TRUNC, out, status);
    if (opened && reserve(*out, layout->bytes, status) &&
        write_bytes(*out, 0, layout->header, layout->header_bytes, status))
        return true;
    if (*out) writer_free(*out);
    *out = NULL;
    if (opened) dtm_safetensors_discard(path);
    return false;
}

bool dtm_safetensors_join(const char *path, const dtm_safetensors_layout *layout, dtm_safetensors_writer **out,
                          dtm_status *status) {
    if (open_partial(path, layout, 0, out, status)) return true;
    if (*out) writer_free(*out);
    *out = NULL;
    return false;
}

bool dtm_safetensors_write(dtm_safetensors_writer *writer, int64_t index, const int64_t *begin, const int64_t *end,
                           const void *data, dtm_status *status) {
    dtm_stored_block block;
    if (!dtm_stored_block_begin(&writer->layout->tensors[index], begin, end, &block, status)) return false;
    const char *from = data;
    for (bool more = block.run_bytes > 0; more; from += block.run_bytes, more = dtm_stored_block_next(&block))
        if (!write_bytes(writer, block.offset, from, block.run_bytes, status)) return false;
    return true;
}

bool dtm_safetensors_writer_close(dtm_safetensors_writer *writer, dtm_status *status) {
    bool ok = fsync(writer->descriptor) == 0 || errno == EINVAL || errno == EROFS;
    if (ok) {
        int descriptor = writer->descriptor;
        writer->descriptor = -1;
        ok = close(descriptor) == 0;
    }
    if (!ok) dtm_status_fail_errno(status, errno, "cannot write %s", writer->path);
    writer_free(writer);
    return ok;
}

/* Flushes the directory, so that the new name outlives a crash; a file system that cannot do that is not in error. */
static void flush_directory(const char *path) {
    char *copy = strdup(path);
    int descriptor = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (descriptor >= 0) {
        fsync(descriptor);
        close(descriptor);
    }
    free(copy);
}

bool dtm_safetensors_commit(const char *path, dtm_status *status) {
    char *partial = partial_path(path);
    if (!partial) return dtm_status_fail(status, "out of memory writing %s", path);
    bool ok =
        rename(partial, path) == 0 || dtm_status_fail_errno(status, errno, "cannot rename %s to %s", partial, path);
    if (ok)
        flush_directory(path);
    else
        unlink(partial);
    free(partial);
    return ok;
}

void dtm_safetensors_discard(const char *path) {
    char *partial = partial_path(path);
    if (partial) unlink(partial);
    free(partial);
}
