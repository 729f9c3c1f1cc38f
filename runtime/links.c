#include "runtime/links.h"

#include "runtime/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 16 };

typedef struct reader {
    const char *path, *at;
    int line;
    char word[64];
    dtm_status *status;
} reader;

static bool fail(const reader *r, const char *what) {
    return dtm_status_fail(r->status, "%s:%d: %s", r->path, r->line, what);
}

/* ---- words: a name, a number, a text in quotes or a single sign; a new line is no sign ---- */

static void skip_space(reader *r) {
    for (; *r->at; r->at++) {
        if (*r->at == '#')
            while (r->at[1] && r->at[1] != '\n') r->at++;
        else if (*r->at == '\n')
            r->line++;
        else if (!isspace((unsigned char)*r->at) && *r->at != ';')
            return;
    }
}

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '/' || c == '-' || c == '+';
}

/* The empty word is the end of the file. */
static const char *next(reader *r) {
    size_t length = 0;
    skip_space(r);
    if (*r->at == '"') {
        do
            if (length + 2 < sizeof r->word) r->word[length++] = *r->at;
        while (*++r->at && *r->at != '"' && *r->at != '\n');
        if (*r->at == '"') r->at++;
    } else if (*r->at && !is_word(*r->at)) {
        r->word[length++] = *r->at++;
    } else {
        while (is_word(*r->at)) {
            if (length + 1 < sizeof r->word) r->word[length++] = *r->at;
            r->at++;
        }
    }
    r->word[length] = 0;
    return r->word;
}

static bool expect(reader *r, const char *word) {
    char what[160];
    if (strcmp(next(r), word) == 0) return true;
    snprintf(what, sizeof what, "`%s` is expected here, not `%s`", word, *r->word ? r->word : "the end of the file");
    return fail(r, what);
}

/* ---- numbers ---- */

typedef struct unit {
    const char *name;
    double factor;
} unit;
/* Those of a program's `machine` section (frontend/words.c); that all of them are here is tested. */
static const unit bandwidths[] = {{"B/s", 1},
                                  {"kB/s", 1e3},
                                  {"MB/s", 1e6},
                                  {"GB/s", 1e9},
                                  {"TB/s", 1e12},
                                  {"MiB/s", 1048576},
                                  {"GiB/s", 1073741824},
                                  {"Mbit/s", 1e6 / 8},
                                  {"Gbit/s", 1e9 / 8},
                                  {NULL, 0}};
static const unit times[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {NULL, 0}};

/* A number with a unit, "25 GB/s" or "3us". */
static bool read_quantity(reader *r, const unit *units, const char *example, double *out) {
    char what[200];
    double number;
    const char *end = dtm_number_read(next(r), &number);
    const char *name = end && !*end ? next(r) : end;
    for (const unit *u = units; end && u->name; u++)
        if (!strcmp(u->name, name)) {
            *out = number * u->factor;
            bool fits = isfinite(*out) && (units == times ? *out >= 0 : *out > 0);
            return fits || fail(r, "the number is out of range");
        }
    snprintf(what, sizeof what, "a number like `%s` is expected here, not `%s`", example, r->word);
    return fail(r, what);
}

/* ---- settings ---- */

/* A setting stands once in its section. */
static bool once(const reader *r, unsigned *seen, unsigned bit) {
    char what[160];
    bool again = (*seen & bit) != 0;
    *seen |= bit;
    snprintf(what, sizeof what, "`%s` is given twice", r->word);
    return !again || fail(r, what);
}

/* Node and network: bandwidth = X, latency = Y. */
static bool read_link(reader *r, double *bandwidth, double *latency) {
    char what[160];
    unsigned seen = 0;
    if (!expect(r, "{")) return false;
    while (strcmp(next(r), "}") != 0) {
        bool width = !strcmp(r->word, "bandwidth"), late = !strcmp(r->word, "latency");
        snprintf(what, sizeof what, "a link has a bandwidth and a latency, not `%s`", r->word);
        if (!width && !late) return fail(r, what);
        if (!once(r, &seen, width ? 1 : 2) || !expect(r, "=")) return false;
        if (width ? !read_quantity(r, bandwidths, "25 GB/s", bandwidth) : !read_quantity(r, times, "5 us", latency))
            return false;
    }
    return (*bandwidth > 0 && *latency >= 0) || fail(r, "a link wants both: { bandwidth = 25 GB/s; latency = 5 us }");
}

static bool read_devices(reader *r, int64_t *out) {
    char *end;
    if (!expect(r, "=")) return false;
    errno = 0;
    long long devices = strtoll(next(r), &end, 10);
    *out = devices;
    return (!errno && end != r->word && !*end && devices > 0) || fail(r, "devices_per_node is a whole number from 1");
}

/* What a machine has beside: its name, FLOPs and memory. It says nothing of links, and is passed over. */
static bool pass_over(reader *r, unsigned *seen) {
    static const char *const others[] = {"name", "flops_f32", "flops_bf16", "memory_bandwidth", "memory"};
    char what[160];
    const size_t n = sizeof others / sizeof *others;
    size_t which = 0;
    while (which < n && strcmp(r->word, others[which]) != 0) which++;
    snprintf(what, sizeof what, "a machine has no `%s`: node { .. }, network { .. } and devices_per_node are read here",
             r->word);
    if (which == n) return fail(r, what);
    if (!once(r, seen, 8u << which) || !expect(r, "=")) return false;
    while (*r->at && *r->at != '\n' && *r->at != ';' && *r->at != '#' && *r->at != '}') r->at++;
    return true;
}

static bool read_machine(reader *r, dtm_links *out) {
    unsigned seen = 0; /* bits 0 to 2, and from 3 those that are passed over */
    if (!expect(r, "machine") || !expect(r, "{")) return false;
    while (strcmp(next(r), "}") != 0) {
        bool good;
        if (!strcmp(r->word, "node"))
            good = once(r, &seen, 1) && read_link(r, &out->node_bandwidth, &out->node_latency);
        else if (!strcmp(r->word, "network"))
            good = once(r, &seen, 2) && read_link(r, &out->network_bandwidth, &out->network_latency);
        else if (!strcmp(r->word, "devices_per_node"))
            good = once(r, &seen, 4) && read_devices(r, &out->devices_per_node);
        else
            good = *r->word ? pass_over(r, &seen) : fail(r, "the `machine` section does not end: a `}` is missing");
        if (!good) return false;
    }
    return !*next(r) || fail(r, "a file of links holds one `machine` section and nothing else");
}

bool dtm_links_read(const char *path, int64_t ranks, dtm_links *out, dtm_status *status) {
    static char text[MOST_BYTES]; /* read once, by the process' first thread */
    FILE *file = fopen(path, "r");
    if (!file) return dtm_status_fail_errno(status, errno, "cannot open %s", path);
    size_t length = fread(text, 1, sizeof text - 1, file);
    int error = ferror(file) ? errno : 0;
    bool whole = feof(file) != 0;
    fclose(file);
    if (error) return dtm_status_fail_errno(status, error, "cannot read %s", path);
    if (!whole) return dtm_status_fail(status, "%s is no file of a machine: it has more than %d bytes", path, MOST_BYTES);
    text[length] = 0;
    reader r = {.path = path, .at = text, .line = 1, .status = status};
    *out = (dtm_links){.node_latency = -1, .network_latency = -1, .devices_per_node = INT64_MAX};
    if (!read_machine(&r, out)) return false;
    if (out->node_bandwidth <= 0)
        return dtm_status_fail(
            status, "%s says nothing of the links within a node: node { bandwidth = 4 GB/s; latency = 3 us }", path);
    if (out->network_bandwidth <= 0 && out->devices_per_node < ranks)
        return dtm_status_fail(status,
                               "%s has nodes of %lld rank%s, there are %lld, and it says nothing of the links between "
                               "nodes: network { bandwidth = 1 GB/s; latency = 30 us }",
                               path, (long long)out->devices_per_node, out->devices_per_node == 1 ? "" : "s",
                               (long long)ranks);
    return true;
}
