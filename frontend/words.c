/* Tables of words: see words.h. They are short, so they are searched in order. */
#include "frontend/words.h"

#include "frontend/parser.h"
#include "frontend/tokens.h"

#include <string.h>

typedef struct word_row {
    const char *text;
    int kind;
    dtm_section section;
    bool dumps_only;
} word_row;

static const word_row keywords[] = {
    {"after", AFTER, DTM_SECTION_FILE, true},
    {"use", USE, DTM_SECTION_FILE, false},
    {"dim", DIM, DTM_SECTION_FILE, false},
    {"const", CONST, DTM_SECTION_FILE, false},
    {"mesh", MESH, DTM_SECTION_FILE, false},
    {"machine", MACHINE, DTM_SECTION_FILE, false},
    {"def", DEF, DTM_SECTION_FILE, false},
    {"model", MODEL, DTM_SECTION_FILE, false},
    {"parallel", PARALLEL, DTM_SECTION_FILE, false},
    {"train", TRAIN, DTM_SECTION_FILE, false},
    {"generate", GENERATE, DTM_SECTION_FILE, false},
    {"input", INPUT, DTM_SECTION_BODY, false},
    {"weight", WEIGHT, DTM_SECTION_BODY, false},
    {"state", STATE, DTM_SECTION_BODY, true},
    {"loss", LOSS, DTM_SECTION_BODY, false},
    {"report", REPORT, DTM_SECTION_BODY, false},
    {"output", OUTPUT, DTM_SECTION_BODY, false},
    {"return", RETURN, DTM_SECTION_BODY, false},
    {"repeat", REPEAT, DTM_SECTION_BODY, false},
    {"microbatch", MICROBATCH, DTM_SECTION_BODY, true},
    {"forward", REGION, DTM_SECTION_BODY, true},
    {"backward", REGION, DTM_SECTION_BODY, true},
    {"update", REGION, DTM_SECTION_BODY, true},
    {"fused", REGION, DTM_SECTION_BODY, true},
    {"microbatches", MICROBATCHES, DTM_SECTION_PARALLEL, false},
    {"zero", ZERO, DTM_SECTION_PARALLEL, false},
    {"keep", KEEP, DTM_SECTION_PARALLEL, false},
    {"recompute", RECOMPUTE, DTM_SECTION_PARALLEL, false},
    {"expect", EXPECT, DTM_SECTION_PARALLEL, false},
};

static const word_row clauses[] = {
    {"over", OVER, 0, false},       {"at", AT, 0, false},         {"as", AS, 0, false},
    {"where", WHERE, 0, false},     {"on", ON, 0, false},         {"from", FROM, 0, false},
    {"with", WITH, 0, false},       {"using", USING, 0, false},   {"by", BY, 0, false},
    {"per", PER, 0, false},         {"storing", STORING, 0, false}, {"splits", SPLITS, 0, false},
    {"of", OF, 0, false},           {"named", NAMED, 0, false},   {"why", WHY, 0, false},
    {"reversed", REVERSED, 0, false},
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

const char *dtm_word_home(const dtm_context *context, dtm_string word, bool dump) {
    const word_row *row = find(keywords, COUNT(keywords), dtm_string_text(context, word), DTM_SECTION_ANY);
    return row && (dump || !row->dumps_only) ? dtm_section_text(row->section) : NULL;
}

dtm_string dtm_word_nearest(dtm_context *context, dtm_string word, bool dump) {
    dtm_string candidates[COUNT(keywords)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(keywords); i++)
        if (dump || !keywords[i].dumps_only) candidates[count++] = dtm_string_of(context, keywords[i].text);
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
