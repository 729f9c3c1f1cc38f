/* Tests of the runtime's parts that need no communicator. --fuzz N SEED: N mutated safetensors files, nothing else. */
#include "runtime/data.h"
#include "runtime/json.h"
#include "runtime/log.h"
#include "runtime/safetensors.h"
#include "runtime/test_check.h"
#include "runtime/threads.h"

#include <math.h>
#include <unistd.h>

static uint64_t random_state = 1;
static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* ---- threads ---- */

typedef struct marks {
    int64_t *hits;
    int threads;
} marks;

static void mark(void *argument, int64_t begin, int64_t end, int thread) {
    marks *m = argument;
    if (thread < 0 || thread >= m->threads) CHECK(!"the thread is one of the pool's");
    for (int64_t i = begin; i < end; i++) m->hits[i]++;
}

static void test_threads(void) {
    dtm_status status = {0};
    CHECK(dtm_pool_default_threads(1) >= 1 && dtm_pool_default_threads(1000) == 1);
    for (int threads = 1; threads <= 5; threads++) {
        dtm_pool *pool;
        CHECK_OK(dtm_pool_create(threads, 0, 1, &pool, &status), &status);
        if (!pool) return;
        marks m = {.threads = threads};
        for (int round = 0; round < 300; round++) {
            int64_t extent = (int64_t)(random_bits() % 1000), grain = 1 + (int64_t)(random_bits() % 50);
            m.hits = zeroed(extent * 8);
            dtm_pool_run(pool, mark, &m, extent, grain);
            for (int64_t i = 0; i < extent; i++)
                if (m.hits[i] != 1) CHECK(!"each index is worked on once");
            free(m.hits);
            if (round % 100 == 99) usleep(2000); /* so that workers sleep */
        }
        dtm_pool_destroy(pool);
    }
    dtm_pool *none;
    CHECK_FAILS(dtm_pool_create(0, 0, 1, &none, &status), &status, "0 threads");
}

/* ---- JSON ---- */

static bool parses(const char *text) {
    dtm_json json;
    dtm_status status = {0};
    bool ok = dtm_json_parse(text, strlen(text), &json, &status);
    dtm_json_free(&json);
    return ok;
}

static void test_json(void) {
    static const char *const good[] = {
        "{}", " [1, -2.5e+3, true, false, null] ", "\"\\u00e9\\ud83d\\ude00\\n\"", "{\"a\":{\"b\":[[]]}}", "0", "-0"};
    static const char *const bad[] = {
        "",      "{",     "[1,]",     "{\"a\":1,}",   "{\"a\":1,\"a\":2}", "01",          "1.",  ".5",
        "+1",    "1 2",   "'a'",      "\"\\x\"",      "\"\\ud800\"",       "\"\t\"",      "nul", "NaN",
        "{a:1}", "[1 2]", "\"\xff\"", "\"\xc0\x80\"", "{\"a\"}",           "\"\\u0000\"", "]"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) check(parses(good[i]), __LINE__, "parses", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) check(!parses(bad[i]), __LINE__, "is refused", bad[i]);
    char deep[201];
    memset(deep, '[', 100);
    memset(deep + 100, ']', 100);
    deep[200] = 0;
    CHECK(!parses(deep));
    dtm_json_value number = {.type = DTM_JSON_NUMBER};
    int64_t whole = 0;
    number.text = "-9223372036854775808";
    CHECK(dtm_json_integer(&number, &whole) && whole == INT64_MIN);
    number.text = "9223372036854775807";
    CHECK(dtm_json_integer(&number, &whole) && whole == INT64_MAX);
    number.text = "9223372036854775808";
    CHECK(!dtm_json_integer(&number, &whole));
    number.text = "1.0";
    CHECK(!dtm_json_integer(&number, &whole));

    dtm_json_writer writer = {0};
    dtm_json_begin_object(&writer);
    dtm_json_key(&writer, "a\"b");
    dtm_json_begin_array(&writer);
    dtm_json_number(&writer, 0.1);
    dtm_json_number(&writer, 5e-05);
    dtm_json_number(&writer, NAN);
    dtm_json_whole(&writer, -7);
    dtm_json_string(&writer, "x\ny\x01\xff\xc3\xa9");
    dtm_json_bool(&writer, true);
    dtm_json_end_array(&writer);
    dtm_json_key(&writer, "b");
    dtm_json_begin_object(&writer);
    dtm_json_end_object(&writer);
    dtm_json_end_object(&writer);
    CHECK(!strcmp(writer.data, "{\"a\\\"b\":[0.1,5e-05,null,-7,\"x\\ny\\u0001\xEF\xBF\xBD\xc3\xa9\",true],\"b\":{}}"));
    CHECK(parses(writer.data));
    free(writer.data);
    for (int i = 0; i < 2000; i++) {
        double value;
        uint64_t bits = random_bits();
        memcpy(&value, &bits, 8);
        char text[32];
        if (!isfinite(value)) continue;
        dtm_shortest(value, text);
        if (strtod(text, NULL) != value) CHECK(!"a number reads back as itself");
    }
}

/* ---- safetensors ---- */

static char directory[] = "/tmp/dtm_test_XXXXXX";
static char *path_of(const char *name) {
    static _Thread_local char paths[4][256];
    static _Thread_local int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, 256, "%s/%s", directory, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static const dtm_stored_tensor declared[] = {{"z", DTM_STORED_F32, 3, {4, 6, 5}},
                                             {"a", DTM_STORED_U8, 1, {7}},
                                             {"scalar", DTM_STORED_F64, 0, {0}},
                                             {"empty", DTM_STORED_I32, 2, {0, 3}},
                                             {"m", DTM_STORED_F32, 2, {64, 50}}};
enum { DECLARED = sizeof declared / sizeof *declared };
static const char *const metadata[] = {"format", "dtm", NULL};

static float element(int tensor, int64_t i) {
    return (float)(tensor * 10000 + i);
}

/* Writes block number `part` of 2 along each tensor's last dimension (the first part has all of a scalar). */
static void write_part(dtm_safetensors_writer *writer, int part, dtm_status *status) {
    for (int t = 0; t < DECLARED; t++) {
        const dtm_stored_tensor *tensor = &declared[t];
        int64_t begin[4] = {0}, end[4], last = tensor->rank - 1, rows = 1;
        for (int d = 0; d < tensor->rank; d++) end[d] = tensor->shape[d];
        if (tensor->rank == 0 && part == 1) continue;
        int64_t width = tensor->rank ? tensor->shape[last] : 1, half = width / 2 + 1;
        if (half > width) half = width;
        if (tensor->rank) begin[last] = part ? half : 0, end[last] = part ? width : half;
        int64_t from = tensor->rank ? begin[last] : 0, until = tensor->rank ? end[last] : 1;
        for (int d = 0; d < last; d++) rows *= tensor->shape[d];
        char *block = zeroed(rows * (until - from) * 8), *at = block;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = from; c < until; c++, at += dtm_stored_bytes(tensor->dtype)) {
                float value = element(t, r * width + c);
                double wide = value;
                if (tensor->dtype == DTM_STORED_F32) memcpy(at, &value, 4);
                if (tensor->dtype == DTM_STORED_F64) memcpy(at, &wide, 8);
                if (tensor->dtype == DTM_STORED_U8) *at = (char)(int)value;
            }
        CHECK_OK(dtm_safetensors_write(writer, t, begin, end, block, status), status);
        free(block);
    }
}

static void write_sample(const char *path) {
    dtm_status status = {0};
    dtm_safetensors_layout *layout;
    dtm_safetensors_writer *first, *second;
    CHECK_OK(dtm_safetensors_lay_out(declared, DECLARED, metadata, &layout, &status), &status);
    CHECK_OK(dtm_safetensors_create(path, layout, &first, &status), &status);
    CHECK_OK(dtm_safetensors_join(path, layout, &second, &status), &status);
    write_part(second, 1, &status);
    write_part(first, 0, &status);
    CHECK_OK(dtm_safetensors_writer_close(first, &status) && dtm_safetensors_writer_close(second, &status), &status);
    CHECK(access(path, F_OK) != 0);
    CHECK_OK(dtm_safetensors_commit(path, &status), &status);
    CHECK(access(path, F_OK) == 0);
    dtm_safetensors_layout_free(layout);
}

static void test_round_trip(void) {
    dtm_status status = {0};
    char *path = path_of("a.safetensors");
    write_sample(path);
    dtm_safetensors *file;
    CHECK_OK(dtm_safetensors_open(path, &file, &status), &status);
    if (!file) return;
    CHECK(dtm_safetensors_count(file) == DECLARED && !strcmp(dtm_safetensors_at(file, 0)->name, "a"));
    CHECK(!strcmp(dtm_safetensors_metadata(file, "format"), "dtm") && !dtm_safetensors_metadata(file, "x"));
    CHECK(!dtm_safetensors_find(file, "nothing"));
    const dtm_stored_tensor *z = dtm_safetensors_find(file, "z");
    CHECK(z && z->rank == 3 && z->offset % 8 == 0);
    for (int round = 0; round < 200; round++) {
        int64_t begin[3], end[3], n = 0;
        for (int d = 0; d < 3; d++) {
            begin[d] = (int64_t)(random_bits() % (uint64_t)(z->shape[d] + 1));
            end[d] = begin[d] + (int64_t)(random_bits() % (uint64_t)(z->shape[d] - begin[d] + 1));
        }
        float out[120];
        CHECK_OK(dtm_safetensors_read(file, z, begin, end, out, &status), &status);
        for (int64_t i = begin[0]; i < end[0]; i++)
            for (int64_t j = begin[1]; j < end[1]; j++)
                for (int64_t k = begin[2]; k < end[2]; k++)
                    if (out[n++] != element(0, (i * 6 + j) * 5 + k)) CHECK(!"a block is read right");
    }
    int64_t begin[3] = {0, 0, 0}, end[3] = {4, 7, 5};
    CHECK_FAILS(dtm_safetensors_read(file, z, begin, end, NULL, &status), &status, "[0, 7) of dimension 1");
    double scalar;
    status = (dtm_status){0};
    CHECK_OK(dtm_safetensors_read(file, dtm_safetensors_find(file, "scalar"), NULL, NULL, &scalar, &status), &status);
    CHECK(scalar == 20000);
    dtm_safetensors_close(file);
}

static void test_bad_safetensors(void) {
    static const struct {
        const char *header;
        int data;
        const char *words;
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
         "ends at byte 8 of the data, but the file"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "the tensors end at byte"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
         "8 bytes of data, but its dtype and shape"},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype F99"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "exactly dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,9223372036854775807],\"data_offsets\":[0,8]}}", 8,
         "no file can hold"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},\"b\":{\"dtype\":\"U8\",\"shape\":[5],"
         "\"data_offsets\":[3,8]}}",
         8, "they overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
         "\"data_offsets\":[4,8]}}",
         8, "there is a gap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"a\":{\"dtype\":\"U8\",\"shape\":[0],"
         "\"data_offsets\":[8,8]}}",
         8, "stands twice"},
        {"{\"a\":[]}", 0, "exactly dtype"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
        {"[]", 0, "does not begin with `{`"},
        {"{\"a\"", 0, "bad header"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = strlen(cases[i].header);
        char *bytes = zeroed(8 + (int64_t)length + cases[i].data);
        bytes[0] = (char)(length & 255);
        bytes[1] = (char)(length >> 8);
        memcpy(bytes + 8, cases[i].header, length);
        char *path = path_of("bad.safetensors");
        write_file(path, bytes, 8 + length + (size_t)cases[i].data);
        free(bytes);
        dtm_status status = {0};
        dtm_safetensors *file;
        bool ok = dtm_safetensors_open(path, &file, &status);
        if (cases[i].words)
            CHECK_FAILS(ok, &status, cases[i].words);
        else
            CHECK_OK(ok, &status);
        dtm_safetensors_close(file);
    }
    dtm_status status = {0};
    dtm_safetensors *file;
    write_file(path_of("short"), "abc", 3);
    CHECK_FAILS(dtm_safetensors_open(path_of("short"), &file, &status), &status, "has 3 bytes");
    status.failed = false;
    write_file(path_of("long"), "\xff\xff\xff\xff\xff\xff\xff\x7fhello", 13);
    CHECK_FAILS(dtm_safetensors_open(path_of("long"), &file, &status), &status, "header's length");
    status.failed = false;
    CHECK_FAILS(dtm_safetensors_open(path_of("missing"), &file, &status), &status, "No such file");
    status.failed = false;
    dtm_safetensors_layout *layout;
    dtm_safetensors_writer *writer;
    dtm_stored_tensor twice[2] = {{"a", DTM_STORED_U8, 1, {1}}, {"a", DTM_STORED_U8, 1, {1}}};
    CHECK_FAILS(dtm_safetensors_lay_out(twice, 2, NULL, &layout, &status), &status, "are called a");
    status.failed = false;
    CHECK_OK(dtm_safetensors_lay_out(twice, 1, NULL, &layout, &status), &status);
    CHECK_FAILS(dtm_safetensors_create("/proc/nothing/x", layout, &writer, &status), &status, "cannot write /proc");
    dtm_safetensors_layout_free(layout);
}

/* Mutations of a good file: bytes changed, cut, digits of the header altered. */
static void fuzz_safetensors(int rounds) {
    char *path = path_of("seed.safetensors");
    write_sample(path);
    FILE *file = fopen(path, "rb");
    char *seed = zeroed(1 << 20), *copy;
    size_t size = file ? fread(seed, 1, 1 << 20, file) : 0;
    if (file) fclose(file);
    size_t header = 8 + (unsigned char)seed[0] + 256u * (unsigned char)seed[1];
    for (int round = 0; round < rounds; round++) {
        size_t length = round % 5 == 0 ? random_bits() % (size + 1) : size;
        copy = malloc(length + 1);
        if (!copy) abort();
        memcpy(copy, seed, length);
        for (uint64_t changes = random_bits() % 4; changes > 0 && length > 8; changes--) {
            size_t at = random_bits() % (header < length ? header : length);
            static const char likely[] = "0123456789{}[],:\"-\\eE. ";
            if (random_bits() % 3)
                copy[at] = likely[random_bits() % (sizeof likely - 1)];
            else
                copy[at] = (char)random_bits();
        }
        dtm_safetensors_fuzz((const uint8_t *)copy, length);
        free(copy);
    }
    free(seed);
}

/* ---- data ---- */

static void test_permutation(void) {
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1000, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s], moved = 0;
        char *seen = zeroed(n);
        for (int64_t i = 0; i < n; i++) {
            int64_t image = dtm_permute(11, 3, n, i);
            if (image < 0 || image >= n || seen[image]++) CHECK(!"the permutation is one");
            moved += image != dtm_permute(11, 4, n, i);
        }
        CHECK(n < 31 || moved > n / 2); /* another epoch, another order */
        free(seen);
    }
}

static dtm_data_input flat_inputs[2] = {{"tokens", false, 2, {6, 4}, 256, false, {NULL}, 0},
                                        {"targets", false, 2, {6, 4}, 256, true}};

/* Fault 60: ten samples, six a step, read by one rank and by three. */
static void test_flat(void) {
    uint8_t text[41 + 3];
    for (int i = 0; i < 44; i++) text[i] = (uint8_t)(i * 5);
    char *path = path_of("text");
    write_file(path, text, sizeof text);
    dtm_status status = {0};
    dtm_data *data;
    dtm_data_options options = {path, DTM_DATA_BYTES, flat_inputs, 2, .seed = 9, .steps = 100};
    CHECK_OK(dtm_data_open(&options, &data, &status), &status);
    if (!data) return;
    CHECK(dtm_data_samples(data) == 10);
    int seen[10] = {0};
    for (int64_t step = 0; step < 5; step++) { /* 30 positions: three epochs */
        int32_t whole[24], targets[24], part[24];
        int64_t begin[2] = {0, 0}, end[2] = {6, 4};
        CHECK_OK(dtm_data_read(data, step, 0, begin, end, whole, &status), &status);
        CHECK_OK(dtm_data_read(data, step, 1, begin, end, targets, &status), &status);
        for (int row = 0; row < 6; row++) {
            int64_t sample = dtm_data_sample(data, step * 6 + row);
            if (++seen[sample] > (step * 6 + row) / 10 + 1) CHECK(!"no sample is seen twice in an epoch");
            for (int c = 0; c < 4; c++)
                CHECK(whole[row * 4 + c] == text[sample * 4 + c] && targets[row * 4 + c] == text[sample * 4 + c + 1]);
        }
        for (int rank = 0; rank < 3; rank++) {
            int64_t from[2] = {rank * 2, 1}, until[2] = {rank * 2 + 2, 4};
            dtm_data_prefetch(data, step, 0, from, until);
            CHECK_OK(dtm_data_read(data, step, 0, from, until, part, &status), &status);
            for (int i = 0; i < 6; i++) CHECK(part[i] == whole[(rank * 2 + i / 3) * 4 + 1 + i % 3]);
        }
    }
    for (int i = 0; i < 10; i++) CHECK(seen[i] == 3);
    dtm_data_close(data);
}

/* Fault 61 and files that do not do. */
static void test_bad_data(void) {
    dtm_status status = {0};
    dtm_data *data;
    uint16_t tokens[30];
    for (int i = 0; i < 30; i++) tokens[i] = (uint16_t)i;
    tokens[13] = 65535;
    char *path = path_of("u16");
    write_file(path, tokens, sizeof tokens);
    dtm_data_options options = {path, DTM_DATA_U16, flat_inputs, 2, .in_order = true, .steps = 1};
    CHECK_OK(dtm_data_open(&options, &data, &status), &status);
    int32_t out[24];
    int64_t begin[2] = {0, 0}, end[2] = {6, 4};
    CHECK_FAILS(data && dtm_data_read(data, 0, 0, begin, end, out, &status), &status,
                "token 65535 at byte 26 is outside of the vocabulary, V = 256");
    dtm_data_close(data);
    status.failed = false;
    write_file(path, tokens, 8);
    CHECK_FAILS(dtm_data_open(&options, &data, &status), &status, "it has 4 tokens, a sample takes S + 1 = 5");
    status.failed = false;
    write_file(path, tokens, 9);
    CHECK_FAILS(dtm_data_open(&options, &data, &status), &status, "no whole number of 2-byte tokens");
    status.failed = false;
    options.path = "/nonexistent/file";
    CHECK_FAILS(dtm_data_open(&options, &data, &status), &status, "/nonexistent/file: No such file");
}

static void test_tensor_data(void) {
    dtm_status status = {0};
    dtm_stored_tensor tensors[2] = {{"tokens", DTM_STORED_I32, 3, {3, 2, 4}}, {"x", DTM_STORED_F32, 2, {3, 5}}};
    dtm_safetensors_layout *layout;
    dtm_safetensors_writer *writer;
    int32_t ids[24];
    float x[15];
    for (int i = 0; i < 24; i++) ids[i] = i - 1;
    for (int i = 0; i < 15; i++) x[i] = (float)i;
    char *path = path_of("data.safetensors");
    int64_t zero[3] = {0}, all[3] = {3, 2, 4}, all_x[2] = {3, 5};
    CHECK_OK(dtm_safetensors_lay_out(tensors, 2, NULL, &layout, &status), &status);
    CHECK_OK(dtm_safetensors_create(path, layout, &writer, &status), &status);
    CHECK_OK(dtm_safetensors_write(writer, 0, zero, all, ids, &status), &status);
    CHECK_OK(dtm_safetensors_write(writer, 1, zero, all_x, x, &status), &status);
    CHECK_OK(dtm_safetensors_writer_close(writer, &status) && dtm_safetensors_commit(path, &status), &status);
    dtm_safetensors_layout_free(layout);

    dtm_data_input inputs[2] = {{"tokens", false, 2, {2, 4}, 20, false, {NULL}, 0}, {"x", true, 1, {5}, 0, false, {NULL}, 0}};
    dtm_data_options options = {path, DTM_DATA_SAFETENSORS, inputs, 2, .steps = 3};
    dtm_data *data;
    CHECK(dtm_data_is_safetensors(path) && !dtm_data_is_safetensors("a.bin"));
    CHECK_OK(dtm_data_open(&options, &data, &status), &status);
    if (!data) return;
    int32_t got[4];
    float got_x[2];
    int64_t begin[2] = {1, 2}, end[2] = {2, 4}, begin_x[1] = {3}, end_x[1] = {5};
    CHECK_OK(dtm_data_read(data, 1, 0, begin, end, got, &status), &status);
    CHECK(got[0] == 13 && got[1] == 14);
    CHECK_OK(dtm_data_read(data, 2, 1, begin_x, end_x, got_x, &status), &status);
    CHECK(got_x[0] == 13 && got_x[1] == 14);
    int64_t first[2] = {0, 0}, row[2] = {1, 4};
    CHECK_FAILS(dtm_data_read(data, 0, 0, first, row, got, &status), &status, "token -1 at byte");
    status.failed = false;
    CHECK_FAILS(dtm_data_read(data, 2, 0, begin, end, got, &status), &status, "token 21 at byte");
    dtm_data_close(data);
    status.failed = false;
    options.steps = 4;
    CHECK_FAILS(dtm_data_open(&options, &data, &status), &status, "data for 3 steps, but 4 are to be done");
    status.failed = false;
    inputs[0].shape[1] = 5;
    CHECK_FAILS(dtm_data_open(&options, &data, &status), &status,
                "has the shape [3, 2, 4]; it should be the steps and then [2, 5]");
    status.failed = false;
    inputs[0].name = "y";
    CHECK_FAILS(dtm_data_open(&options, &data, &status), &status, "no tensor `y`");
}

/* ---- log ---- */

static void test_log(void) {
    dtm_status status = {0};
    dtm_log *log;
    dtm_log_report report = {"balance", 0.25};
    dtm_log_step step = {.step = 1,
                         .steps = 2,
                         .loss = 5.545,
                         .trains = true,
                         .grad_norm = 1.93,
                         .lr = 5e-05,
                         .tokens = 2048,
                         .seconds = 0.0828,
                         .reports = &report,
                         .report_count = 1};
    char *path = path_of("log.jsonl"), text[512] = "";
    CHECK_OK(dtm_log_open(path, "{\"program\":\"gpt\"}", false, true, &log, &status), &status);
    CHECK_OK(dtm_log_write(log, &step, &status) && dtm_log_close(log, &status), &status);
    FILE *file = fopen(path, "r");
    CHECK(file && fread(text, 1, sizeof text - 1, file) > 0);
    if (file) fclose(file);
    CHECK(!strcmp(text, "{\"program\":\"gpt\"}\n{\"step\":1,\"loss\":5.545,\"grad_norm\":1.93,\"lr\":5e-05,"
                        "\"tokens_per_s\":24734.3,\"ms\":82.8,\"balance\":0.25}\n"));
    CHECK_FAILS(dtm_log_open("/nonexistent/log", "{}", false, true, &log, &status), &status, "cannot write the log");
    if (access("/dev/full", W_OK) == 0) {
        status.failed = false;
        CHECK_FAILS(dtm_log_open("/dev/full", "{}", true, true, &log, &status), &status, "No space left");
    }
}

static void test_all(void) {
    test_json();
    test_round_trip();
    test_bad_safetensors();
    fuzz_safetensors(2000);
    test_permutation();
    test_flat();
    test_bad_data();
    test_tensor_data();
    test_log();
    test_threads();
}

int main(int argc, char **argv) {
    if (!mkdtemp(directory)) return 1;
    if (argc > 3 && !strcmp(argv[1], "--fuzz")) {
        random_state = strtoull(argv[3], NULL, 10) | 1;
        fuzz_safetensors(atoi(argv[2]));
    } else {
        test_all();
    }
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    if (system(command) != 0) return 1;
    printf("%d checks, %d failures\n", (int)checks, (int)failures);
    return failures > 0;
}
