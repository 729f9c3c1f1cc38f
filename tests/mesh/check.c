/* Runs commands for one random pair: see check.h. */
#include "check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

const char *verdict_text(verdict v) {
    static const char *const texts[] = {
        "good", "the one-rank program does not compile", "the one-rank program does not run",
        "the placed program does not compile", "the placed program does not run", "the law of the mesh does not hold",
        "two runs differ in their bits", "a dump taken up again differs"};
    return texts[v];
}

/* Runs a command in the checker's folder, its output in `log`, for at most a minute. */
__attribute__((format(printf, 2, 3))) static bool command(const checker *c, const char *format, ...) {
    char text[4096];
    int length = snprintf(text, sizeof text, "cd %s && { ", c->folder);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    snprintf(text + length, sizeof text - (size_t)length, "; } >log 2>&1");
    int status = system(text);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void write_program(const checker *c, const char *name, const char *model, const char *placement) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", c->folder, name);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%s\n%s", model, placement) < 0 || fclose(file) != 0) perror(path), exit(2);
}

static char *read_file(const checker *c, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", c->folder, name);
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    size_t capacity = 4 << 20, length;
    char *text = malloc(capacity);
    if (!text) exit(2);
    length = fread(text, 1, capacity - 1, file);
    text[length] = 0;
    fclose(file);
    return text;
}

static bool build(const checker *c, const char *name, const char *flags) {
    if (c->interpret) return command(c, "timeout -k 1 120 %s check %s.dtm %s", c->dtmc, name, flags);
    return command(c, "CC='%s' timeout -k 1 120 %s build %s.dtm -o %s.program %s", c->cc, c->dtmc, name, name, flags);
}

/* Leaves log.jsonl, grads and weights in the folder `into`. */
static bool train(const checker *c, const char *name, const char *into) {
    return command(c, "rm -rf %s && mkdir %s && cd %s && timeout -k 1 60 ../%s.program train --local --threads 1 --seed 5 "
                      "--data ../data.safetensors --steps %d --log log.jsonl --save-grads grads.safetensors "
                      "--save-weights weights.safetensors", into, into, into, name, DATA_STEPS);
}

verdict check_one(checker *c, const program *p) {
    char path[512];
    snprintf(path, sizeof path, "%s/data.safetensors", c->folder);
    write_program(c, "one.dtm", p->model, "mesh { one = 1 }\n");
    if (!program_write_data(p, 7, path)) exit(2);
    if (!build(c, "one", c->interpret ? "--verify --validate" : "--verify")) return ONE_REFUSED;
    if (c->interpret) return GOOD;
    return train(c, "one", "one") ? GOOD : ONE_FAILED;
}

static void count(checker *c) {
    if (!command(c, "timeout 20 %s ir placed.dtm --after partition >dump", c->dtmc)) return;
    char *dump = read_file(c, "dump");
    if (dump) coverage_add_dump(c->coverage, dump);
    free(dump);
}

verdict check_placed(checker *c, const program *p, bool twice) {
    write_program(c, "placed.dtm", p->model, p->placement);
    if (!build(c, "placed", c->validate ? "--verify --validate" : "--verify")) return PLACED_REFUSED;
    if (c->coverage) count(c);
    if (c->interpret) return GOOD;
    if (!train(c, "placed", "placed")) return PLACED_FAILED;
    if (!command(c, "%s runs one placed", c->compare)) return DIFFERS;
    if (!twice) return GOOD;
    if (!train(c, "placed", "again")) return PLACED_FAILED;
    if (!command(c, "%s bits placed again", c->compare)) return BITS_DIFFER;
    bool same = command(c, "%s ir placed.dtm --after memory >whole && for p in canonicalize autodiff shard partition; do "
                           "%s ir placed.dtm --after $p | %s ir - --from $p --after memory | cmp - whole || exit 1; done",
                        c->dtmc, c->dtmc, c->dtmc);
    return same ? GOOD : TEXT_DIFFERS;
}

void check_print_log(const checker *c, FILE *out) {
    char *log = read_file(c, "log");
    char *line = log ? strstr(log, "error") : NULL; /* warnings come first */
    while (line && line > log && line[-1] != '\n') line--;
    if (!line) line = log;
    for (int n = 0; line && *line && n < 30; n++) {
        size_t length = strcspn(line, "\n");
        fprintf(out, "    %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    free(log);
}
