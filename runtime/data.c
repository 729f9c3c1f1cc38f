#include "runtime/data.h"

#include "runtime/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 6 };

struct dtm_data {
    char *path;
    dtm_data_format format;
    dtm_data_input *inputs;
    int count;
    uint64_t seed;
    bool in_order;
    /* flat */
    int descriptor;
    int64_t tokens, samples, batch, sequence;
    /* safetensors */
    dtm_safetensors *file;
    int64_t steps;
};

/* ---- the order of an epoch ---- */

/* splitmix64's finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). */
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

int64_t dtm_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index) {
    int bits = 0;
    while (bits < 62 && ((int64_t)1 << bits) < n) bits++;
    int low_bits = bits / 2, high_bits = bits - low_bits;
    uint64_t low_mask = ((uint64_t)1 << low_bits) - 1, high_mask = ((uint64_t)1 << high_bits) - 1;
    uint64_t key = mix(mix(seed) ^ (uint64_t)epoch), x = (uint64_t)index;
    do {
        uint64_t low = x & low_mask, high = x >> low_bits;
        for (unsigned round = 0; round < ROUNDS; round++) {
            if (round % 2)
                low ^= mix(key + round + (high << 8)) & low_mask;
            else
                high ^= mix(key + round + (low << 8)) & high_mask;
        }
        x = high << low_bits | low;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t dtm_data_sample(const dtm_data *data, int64_t position) {
    int64_t epoch = position / data->samples, index = position % data->samples;
    return data->in_order ? index : dtm_permute(data->seed, epoch, data->samples, index);
}

/* ---- flat files ---- */

static int64_t token_bytes(dtm_data_format format) {
    return format == DTM_DATA_BYTES ? 1 : format == DTM_DATA_U16 ? 2 : 4;
}

/* 0 for tokens, 1 for targets, which are one further; -1 for others. */
static int shift_of(const dtm_data_input *input) {
    if (strcmp(input->name, "tokens") == 0) return 0;
    return strcmp(input->name, "targets") == 0 ? 1 : -1;
}

static bool check_flat_inputs(dtm_data *data, dtm_status *status) {
    for (int i = 0; i < data->count; i++) {
        const dtm_data_input *input = &data->inputs[i];
        if (shift_of(input) < 0 || input->is_f32 || input->rank != 2)
            return dtm_status_fail(status,
                                   "%s gives `tokens` and `targets`, i32[B, S], but the program has the input `%s`: "
                                   "that takes a .safetensors with a tensor of this name, steps first",
                                   data->path, input->name);
        if (i > 0 && (input->shape[0] != data->batch || input->shape[1] != data->sequence))
            return dtm_status_fail(status,
                                   "the inputs `%s` and `%s` have different shapes: a flat file cannot give both",
                                   data->inputs[0].name, input->name);
        data->batch = input->shape[0];
        data->sequence = input->shape[1];
    }
    return true;
}

static bool open_flat(dtm_data *data, dtm_status *status) {
    struct stat info;
    data->descriptor = open(data->path, O_RDONLY | O_CLOEXEC);
    if (data->descriptor < 0 || fstat(data->descriptor, &info) != 0)
        return dtm_status_fail_errno(status, errno, "cannot open the data file %s", data->path);
    if (!S_ISREG(info.st_mode)) return dtm_status_fail(status, "the data file %s is not a file", data->path);
    int64_t width = token_bytes(data->format);
    if (info.st_size % width)
        return dtm_status_fail(status, "%s has %lld bytes, which are no whole number of %lld-byte tokens", data->path,
                               (long long)info.st_size, (long long)width);
    data->tokens = info.st_size / width;
    if (!check_flat_inputs(data, status)) return false;
    if (data->count == 0 || data->batch < 1 || data->sequence < 1)
        return dtm_status_fail(status, "the program has no tokens to read from %s", data->path);
    data->samples = (data->tokens - 1) / data->sequence;
    if (data->tokens < data->sequence + 1)
        return dtm_status_fail(status, "%s is too short: it has %lld tokens, a sample takes S + 1 = %lld", data->path,
                               (long long)data->tokens, (long long)data->sequence + 1);
    data->steps = data->samples / data->batch;
    return true;
}

static bool read_at(dtm_data *data, int64_t offset, void *out, int64_t bytes, dtm_status *status) {
    for (char *to = out; bytes > 0;) {
        ssize_t got = pread(data->descriptor, to, (size_t)bytes, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return dtm_status_fail_errno(status, errno, "cannot read %s", data->path);
        if (got == 0)
            return dtm_status_fail(status, "%s ends at byte %lld: it was cut while it was read", data->path,
                                   (long long)offset);
        to += got;
        offset += got;
        bytes -= got;
    }
    return true;
}

static bool bad_token(const dtm_data *data, int64_t offset, int64_t id, const dtm_data_input *input,
                      dtm_status *status) {
    if (input->vocabulary > 0)
        return dtm_status_fail(status,
                               "%s: token %lld at byte %lld is outside of the vocabulary, V = %lld (input `%s`)",
                               data->path, (long long)id, (long long)offset, (long long)input->vocabulary, input->name);
    return dtm_status_fail(status, "%s: %lld at byte %lld does not fit in 32 bits (input `%s`)", data->path,
                           (long long)id, (long long)offset, input->name);
}

static int64_t token_at(const uint8_t *from, int64_t width) {
    uint32_t id = 0;
    for (int64_t i = 0; i < width; i++) id |= (uint32_t)from[i] << (8 * i);
    return id;
}

static bool read_flat(dtm_data *data, int64_t step, const dtm_data_input *input, const int64_t *begin,
                      const int64_t *end, int32_t *out, dtm_status *status) {
    int64_t width = token_bytes(data->format), columns = end[1] - begin[1];
    int64_t limit = input->vocabulary > 0 ? input->vocabulary : (int64_t)INT32_MAX + 1;
    for (int64_t row = begin[0]; row < end[0] && columns > 0; row++, out += columns) {
        int64_t sample = dtm_data_sample(data, step * data->batch + row);
        int64_t offset = (sample * data->sequence + begin[1] + shift_of(input)) * width;
        /* The packed tokens are read into the end of their row and widened from its front: no token is written over one
         * that is still to be read, as width <= 4. */
        uint8_t *packed = (uint8_t *)out + columns * (4 - width);
        if (!read_at(data, offset, packed, columns * width, status)) return false;
        for (int64_t i = 0; i < columns; i++) {
            int64_t id = token_at(packed + i * width, width);
            if (id >= limit) return bad_token(data, offset + i * width, id, input, status);
            out[i] = (int32_t)id;
        }
    }
    return true;
}

/* ---- safetensors ---- */

/* dims: names, or NULL. */
static void describe_shape(char *text, size_t size, int rank, const int64_t *shape, const char *const *dims) {
    size_t length = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < rank && length < size; d++) {
        const char *name = dims ? dims[d] : NULL;
        length += (size_t)snprintf(text + length, size - length, "%s%s%s%lld", d ? ", " : "", name ? name : "",
                                   name ? " = " : "", (long long)shape[d]);
    }
    if (length < size) snprintf(text + length, size - length, "]");
}

static bool check_tensor(dtm_data *data, const dtm_data_input *input, dtm_status *status) {
    const dtm_stored_tensor *tensor = dtm_safetensors_find(data->file, input->name);
    if (!tensor)
        return dtm_status_fail(status, "%s has no tensor `%s`, which the program takes as input", data->path,
                               input->name);
    bool right = input->is_f32 ? tensor->dtype == DTM_STORED_F32
                               : tensor->dtype == DTM_STORED_I32 || tensor->dtype == DTM_STORED_I64;
    if (!right)
        return dtm_status_fail(status, "%s: tensor `%s` is %s, the program takes %s", data->path, input->name,
                               dtm_stored_name(tensor->dtype), input->is_f32 ? "F32" : "I32");
    bool same = tensor->rank == input->rank + 1;
    for (int d = 0; same && d < input->rank; d++) same = tensor->shape[d + 1] == input->shape[d];
    if (!same) {
        char has[200], wants[200];
        char line[32] = "";
        describe_shape(has, sizeof has, tensor->rank, tensor->shape, NULL);
        describe_shape(wants, sizeof wants, input->rank, input->shape, input->dims);
        if (input->line) snprintf(line, sizeof line, " (line %u)", input->line);
        return dtm_status_fail(status, "%s: tensor `%s` has the shape %s; it should be the steps and then %s%s",
                               data->path, input->name, has, wants, line);
    }
    if (data->steps >= 0 && tensor->shape[0] != data->steps)
        return dtm_status_fail(status, "%s: tensor `%s` has %lld step%s, another input has %lld", data->path,
                               input->name, (long long)tensor->shape[0], tensor->shape[0] == 1 ? "" : "s", (long long)data->steps);
    data->steps = tensor->shape[0];
    return true;
}

static bool open_tensors(dtm_data *data, int64_t steps, dtm_status *status) {
    data->steps = -1;
    if (!dtm_safetensors_open(data->path, &data->file, status)) return false;
    for (int i = 0; i < data->count; i++)
        if (!check_tensor(data, &data->inputs[i], status)) return false;
    if (data->count > 0 && steps > data->steps)
        return dtm_status_fail(status, "%s has data for %lld step%s, but %lld are to be done: say --steps %lld",
                               data->path, (long long)data->steps, data->steps == 1 ? "" : "s", (long long)steps, (long long)data->steps);
    return true;
}

/* The byte in the file at which element `index` of a packed block stands: for messages. */
static int64_t offset_in_block(const dtm_stored_tensor *tensor, const int64_t *begin, const int64_t *end,
                               int64_t index) {
    int64_t offset = tensor->offset, stride = dtm_stored_bytes(tensor->dtype);
    for (int d = tensor->rank - 1; d >= 0; d--) {
        int64_t size = end[d] - begin[d];
        offset += (begin[d] + index % size) * stride;
        index /= size;
        stride *= tensor->shape[d];
    }
    return offset;
}

static bool narrow(dtm_data *data, const dtm_data_input *input, const dtm_stored_tensor *tensor, const int64_t *begin,
                   const int64_t *end, const void *values, int32_t *out, dtm_status *status) {
    int64_t count = 1, limit = input->vocabulary > 0 ? input->vocabulary : (int64_t)INT32_MAX + 1;
    int64_t least = input->vocabulary > 0 && !input->accepts_negative ? 0 : INT32_MIN;
    for (int d = 0; d < tensor->rank; d++) count *= end[d] - begin[d];
    for (int64_t i = 0; i < count; i++) {
        int64_t id = tensor->dtype == DTM_STORED_I64 ? ((const int64_t *)values)[i] : ((const int32_t *)values)[i];
        if (id >= limit || id < least)
            return bad_token(data, offset_in_block(tensor, begin, end, i), id, input, status);
        out[i] = (int32_t)id;
    }
    return true;
}

static bool read_tensor(dtm_data *data, int64_t step, const dtm_data_input *input, const int64_t *begin,
                        const int64_t *end, void *out, dtm_status *status) {
    const dtm_stored_tensor *tensor = dtm_safetensors_find(data->file, input->name);
    int64_t from[DTM_DATA_RANK + 1] = {step}, until[DTM_DATA_RANK + 1] = {step + 1}, count = 1;
    if (step >= data->steps)
        return dtm_status_fail(status, "%s has data for %lld step%s; step %lld was asked for", data->path,
                               (long long)data->steps, data->steps == 1 ? "" : "s", (long long)step + 1);
    for (int d = 0; d < input->rank; d++) {
        from[d + 1] = begin[d];
        until[d + 1] = end[d];
        count *= end[d] - begin[d];
    }
    bool wide = tensor->dtype == DTM_STORED_I64;
    void *values = wide ? malloc((size_t)count * 8 + 1) : out;
    if (!values) return dtm_status_fail(status, "out of memory reading %s", data->path);
    bool ok = dtm_safetensors_read(data->file, tensor, from, until, values, status) &&
              (input->is_f32 || narrow(data, input, tensor, from, until, values, out, status));
    if (wide) free(values);
    return ok;
}

/* ---- both ---- */

bool dtm_data_is_safetensors(const char *path) {
    size_t length = strlen(path), suffix = strlen(".safetensors");
    return length >= suffix && strcmp(path + length - suffix, ".safetensors") == 0;
}

static bool copy_options(dtm_data *data, const dtm_data_options *options, dtm_status *status) {
    data->descriptor = -1;
    data->format = options->format;
    data->seed = options->seed;
    data->in_order = options->in_order;
    data->path = strdup(options->path);
    data->inputs = calloc((size_t)options->count + 1, sizeof *data->inputs);
    if (!data->path || !data->inputs) return dtm_status_fail(status, "out of memory opening %s", options->path);
    for (; data->count < options->count; data->count++) {
        dtm_data_input *input = &data->inputs[data->count];
        *input = options->inputs[data->count];
        if (input->rank > DTM_DATA_RANK)
            return dtm_status_fail(status, "input `%s` has %d dimensions; data can have %d", input->name, input->rank,
                                   DTM_DATA_RANK);
        if (!(input->name = strdup(input->name))) return dtm_status_fail(status, "out of memory");
    }
    return true;
}

bool dtm_data_open(const dtm_data_options *options, dtm_data **out, dtm_status *status) {
    *out = NULL;
    dtm_data *data = calloc(1, sizeof *data);
    if (!data) return dtm_status_fail(status, "out of memory opening %s", options->path);
    bool ok = copy_options(data, options, status);
    if (ok)
        ok = options->format == DTM_DATA_SAFETENSORS ? open_tensors(data, options->steps, status)
                                                     : open_flat(data, status);
    if (ok)
        *out = data;
    else
        dtm_data_close(data);
    return ok;
}

void dtm_data_close(dtm_data *data) {
    if (!data) return;
    for (int i = 0; data->inputs && i < data->count; i++) free((char *)data->inputs[i].name);
    if (data->descriptor >= 0) close(data->descriptor);
    dtm_safetensors_close(data->file);
    free(data->inputs);
    free(data->path);
    free(data);
}

int64_t dtm_data_steps(const dtm_data *data) {
    return data->steps;
}
int64_t dtm_data_samples(const dtm_data *data) {
    return data->samples;
}

bool dtm_data_read(dtm_data *data, int64_t step, int input, const int64_t *begin, const int64_t *end, void *out,
                   dtm_status *status) {
    const dtm_data_input *wanted = &data->inputs[input];
    for (int d = 0; d < wanted->rank; d++)
        if (begin[d] < 0 || begin[d] > end[d] || end[d] > wanted->shape[d])
            return dtm_status_fail(
                status, "input `%s`: the block [%lld, %lld) of dimension %d is outside of its size %lld", wanted->name,
                (long long)begin[d], (long long)end[d], d, (long long)wanted->shape[d]);
    if (data->format == DTM_DATA_SAFETENSORS) return read_tensor(data, step, wanted, begin, end, out, status);
    return read_flat(data, step, wanted, begin, end, out, status);
}

void dtm_data_prefetch(dtm_data *data, int64_t step, int input, const int64_t *begin, const int64_t *end) {
    if (data->format == DTM_DATA_SAFETENSORS) return; /* read in order: the system reads ahead by itself */
    int64_t width = token_bytes(data->format);
    for (int64_t row = begin[0]; row < end[0]; row++) {
        int64_t first = dtm_data_sample(data, step * data->batch + row) * data->sequence + begin[1];
        int64_t count = end[1] - begin[1] + shift_of(&data->inputs[input]);
        posix_fadvise(data->descriptor, first * width, count * width, POSIX_FADV_WILLNEED);
    }
}
