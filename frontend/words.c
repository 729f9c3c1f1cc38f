/* Tables of words: see words.h. They are short, so they are searched in order. */
#include "frontend/words.h"

#include "frontend/parser.h"
#include "frontend/tokens.h"

#include <string.h>

typedef struct word_row {
    const char *text;
    int kind;
    dtm_section section;
} word_row;

static const word_row keywords[] = {
    {"after", AFTER, DTM_SECTION_FILE},
    {"use", USE, DTM_SECTION_FILE},
    {"dim", DIM, DTM_SECTION_FILE},
    {"const", CONST, DTM_SECTION_FILE},
    {"mesh", MESH, DTM_SECTION_FILE},
    {"machine", MACHINE, DTM_SECTION_FILE},
    {"def", DEF, DTM_SECTION_FILE},
    {"model", MODEL, DTM_SECTION_FILE},
    {"parallel", PARALLEL, DTM_SECTION_FILE},
    {"train", TRAIN, DTM_SECTION_FILE},
    {"generate", GENERATE, DTM_SECTION_FILE},
    {"input", INPUT, DTM_SECTION_BODY},
    {"weight", WEIGHT, DTM_SECTION_BODY},
    {"state", STATE, DTM_SECTION_BODY},
    {"loss", LOSS, DTM_SECTION_BODY},
    {"report", REPORT, DTM_SECTION_BODY},
    {"output", OUTPUT, DTM_SECTION_BODY},
    {"return", RETURN, DTM_SECTION_BODY},
    {"repeat", REPEAT, DTM_SECTION_BODY},
    {"microbatch", MICROBATCH, DTM_SECTION_BODY},
    {"forward", REGION, DTM_SECTION_BODY},
    {"backward", REGION, DTM_SECTION_BODY},
    {"update", REGION, DTM_SECTION_BODY},
    {"fused", REGION, DTM_SECTION_BODY},
    {"microbatches", MICROBATCHES, DTM_SECTION_PARALLEL},
    {"zero", ZERO, DTM_SECTION_PARALLEL},
    {"keep", KEEP, DTM_SECTION_PARALLEL},
    {"recompute", RECOMPUTE, DTM_SECTION_PARALLEL},
    {"expect", EXPECT, DTM_SECTION_PARALLEL},
};

static const word_row clauses[] = {
    {"over", OVER, 0},       {"at", AT, 0},         {"as", AS, 0},
    {"where", WHERE, 0},     {"on", ON, 0},         {"from", FROM, 0},
    {"with", WITH, 0},       {"using", USING, 0},   {"by", BY, 0},
    {"per", PER, 0},         {"storing", STORING, 0}, {"splits", SPLITS, 0},
    {"of", OF, 0},           {"named", NAMED, 0},   {"why", WHY, 0},
    {"reversed", REVERSED, 0},
};

/* Decimal and binary multiples; rates are per second. */
static const struct unit_row {
    const char *text;
    dtm_unit unit;
    double factor;
} units[] = {
    {"B", DTM_UNIT_BYTES, 1},
    {"kB", DTM_UNIT_BYTES, 1e3},
    {"KB", DTM_UNIT_BYTES, 1e3},
    {"MB", DTM_UNIT_BYTES, 1e6},
    {"GB", DTM_UNIT_BYTES, 1e9},
    {"TB", DTM_UNIT_BYTES, 1e12},
    {"KiB", DTM_UNIT_BYTES, 1024.0},
    {"MiB", DTM_UNIT_BYTES, 1048576.0},
    {"GiB", DTM_UNIT_BYTES, 1073741824.0},
    {"TiB", DTM_UNIT_BYTES, 1099511627776.0},
    {"B/s", DTM_UNIT_BYTES_PER_SECOND, 1},
    {"kB/s", DTM_UNIT_BYTES_PER_SECOND, 1e3},
    {"MB/s", DTM_UNIT_BYTES_PER_SECOND, 1e6},
    {"GB/s", DTM_UNIT_BYTES_PER_SECOND, 1e9},
    {"TB/s", DTM_UNIT_BYTES_PER_SECOND, 1e12},
    {"MiB/s", DTM_UNIT_BYTES_PER_SECOND, 1048576.0},
    {"GiB/s", DTM_UNIT_BYTES_PER_SECOND, 1073741824.0},
    {"Mbit/s", DTM_UNIT_BYTES_PER_SECOND, 1e6 / 8},
    {"Gbit/s", DTM_UNIT_BYTES_PER_SECOND, 1e9 / 8},
    {"s", DTM_UNIT_SECONDS, 1},
    {"ms", DTM_UNIT_SECONDS, 1e-3},
    {"us", DTM_UNIT_SECONDS, 1e-6},
    {"ns", DTM_UNIT_SECONDS, 1e-9},
    {"FLOP/s", DTM_UNIT_FLOPS_PER_SECOND, 1},
    {"MFLOP/s", DTM_UNIT_FLOPS_PER_SECOND, 1e6},
    {"GFLOP/s", DTM_UNIT_FLOPS_PER_SECOND, 1e9},
    {"TFLOP/s", DTM_UNIT_FLOPS_PER_SECOND, 1e12},
    {"PFLOP/s", DTM_UNIT_FLOPS_PER_SECOND, 1e15},
    {"Hz", DTM_UNIT_HERTZ, 1},
    {"MHz", DTM_UNIT_HERTZ, 1e6},
    {"GHz", DTM_UNIT_HERTZ, 1e9},
    {"W", DTM_UNIT_WATTS, 1},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const word_row *find(const word_row *rows, size_t count, const char *text, dtm_section section) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].text, text) == 0 && (section == DTM_SECTION_ANY || rows[i].section == section))
            return &rows[i];
    return NULL;
}

int dtm_word_keyword(const dtm_context *context, dtm_string word, dtm_section section) {
    const word_row *row = find(keywords, COUNT(keywords), dtm_string_text(context, word), section);
    return row ? row->kind : 0;
}

int dtm_word_clause(const dtm_context *context, dtm_string word) {
    const word_row *row = find(clauses, COUNT(clauses), dtm_string_text(context, word), DTM_SECTION_ANY);
    return row ? row->kind : 0;
}

const char *dtm_section_text(dtm_section section) {
    switch (section) {
    case DTM_SECTION_FILE: return "at the top of a file, outside all braces";
    case DTM_SECTION_BODY: return "inside a `model` or `def`";
    case DTM_SECTION_PARALLEL: return "inside `parallel`";
    case DTM_SECTION_SETTINGS: return "inside `train` or `generate`";
    case DTM_SECTION_MACHINE: return "inside `machine`";
    case DTM_SECTION_ANY: break;
    }
    return "here";
}

const char *dtm_word_home(const dtm_context *context, dtm_string word) {
    const word_row *row = find(keywords, COUNT(keywords), dtm_string_text(context, word), DTM_SECTION_ANY);
    return row ? dtm_section_text(row->section) : NULL;
}

dtm_string dtm_word_nearest(dtm_context *context, dtm_string word, dtm_section section) {
    dtm_string candidates[COUNT(keywords)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(keywords); i++)
        if (keywords[i].section == section) candidates[count++] = dtm_string_of(context, keywords[i].text);
    return dtm_string_nearest(context, dtm_string_text(context, word), candidates, count);
}

bool dtm_unit_find(const char *text, dtm_unit *unit, double *factor) {
    for (size_t i = 0; i < COUNT(units); i++) {
        if (strcmp(units[i].text, text) != 0) continue;
        *unit = units[i].unit;
        *factor = units[i].factor;
        return true;
    }
    return false;
}
