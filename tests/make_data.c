/* Makes data for a test: make_data FILE.safetensors SPEC..
 *
 *     tokens=i32[3,8,16]:0..63       whole numbers from 0 to 63, drawn
 *     targets=i32[3,8,16]:0..63~4    the same, one in 4 of them -100
 *     tokens=i32[3,8,16]:1,40        1 and 40 in turn
 *     x=f32[3,8,4]                   drawn from -1 to 1
 *     x=f32[3,8,4]:1                 all ones (any list, in turn)
 *
 * The first number in brackets are the steps. The same command makes the same bytes. */
#include "runtime/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 16, MOST_VALUES = 4096 };

static uint64_t state = 1;

static uint32_t next(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void misused(const char *spec) {
    fprintf(stderr, "make_data: what is `%s`?\n", spec);
    exit(2);
}

/* NAME=TYPE[A,B,..]: returns what follows the bracket. */
static char *read_type(char *spec, dtm_stored_tensor *out) {
    char *equals = strchr(spec, '='), *at = equals ? strchr(equals, '[') : NULL;
    if (!at) misused(spec);
    *equals = 0;
    out->name = spec;
    out->dtype = strncmp(equals + 1, "f32", 3) == 0 ? DTM_STORED_F32 : DTM_STORED_I32;
    out->rank = 0;
    while (*at != ']' && *at && out->rank < DTM_STORED_RANK) out->shape[out->rank++] = strtoll(at + 1, &at, 10);
    if (*at != ']') misused(spec);
    return at + 1;
}

static void fill(const char *values, bool floats, void *data, int64_t n) {
    double list[MOST_VALUES];
    int count = 0, low = 0, high = 0, one_in = 0;
    bool range = strstr(values, "..") != NULL;
    if (range && sscanf(values, ":%d..%d~%d", &low, &high, &one_in) < 2) misused(values);
    for (const char *at = values; !range && *at && count < MOST_VALUES;) {
        char *end;
        list[count++] = strtod(at + 1, &end);
        if (end == at + 1) misused(values);
        at = end;
    }
    for (int64_t i = 0; i < n; i++) {
        double value;
        if (range) value = low + (double)(next() % (uint32_t)(high - low + 1));
        else value = count ? list[i % count] : (double)(next() % 2001) / 1000 - 1;
        if (one_in && next() % (uint32_t)one_in == 0) value = -100;
        if (floats) ((float *)data)[i] = (float)value;
        else ((int32_t *)data)[i] = (int32_t)value;
    }
}

int main(int argc, char **argv) {
    dtm_stored_tensor tensors[MOST_TENSORS];
    const char *values[MOST_TENSORS];
    int count = argc - 2;
    if (count < 1 || count > MOST_TENSORS) misused("");
    for (int i = 0; i < count; i++) values[i] = read_type(argv[i + 2], &tensors[i]);
    dtm_status status = {0};
    dtm_safetensors_layout *layout = NULL;
    dtm_safetensors_writer *writer = NULL;
    bool good = dtm_safetensors_lay_out(tensors, count, NULL, &layout, &status) &&
                dtm_safetensors_create(argv[1], layout, &writer, &status);
    for (int i = 0; good && i < count; i++) {
        int64_t n = 1, begin[DTM_STORED_RANK] = {0};
        for (int k = 0; k < tensors[i].rank; k++) n *= tensors[i].shape[k];
        void *data = calloc((size_t)n + 1, 4);
        if (!data) return 2;
        fill(values[i], tensors[i].dtype == DTM_STORED_F32, data, n);
        good = dtm_safetensors_write(writer, i, begin, tensors[i].shape, data, &status);
        free(data);
    }
    good = good && dtm_safetensors_writer_close(writer, &status) && dtm_safetensors_commit(argv[1], &status);
    dtm_safetensors_layout_free(layout);
    if (!good) fprintf(stderr, "make_data: %s\n", status.message);
    return !good;
}
