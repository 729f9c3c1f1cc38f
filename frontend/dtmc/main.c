/* dtmc: the command line. One table of subcommands and one of flags; each flag says which subcommands take it. */
#include "frontend/dtmc/commands.h"

#include "frontend/dtmc/help.h"
#include "passes/timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef enum command_bit {
    BUILD = 1,
    CHECK = 2,
    FMT = 4,
    IR = 8,
    EXPLAIN = 16,
    RUN = 32,
    PASSES = 64,
    TIMELINE = 128,
    COMPILES = BUILD | CHECK | IR | EXPLAIN | RUN | TIMELINE,
} command_bit;

static const struct {
    const char *name;
    int bit;
    int (*run)(const dtm_options *);
} commands[] = {
    {"build", BUILD, dtm_command_build},
    {"check", CHECK, dtm_command_check},
    {"fmt", FMT, dtm_command_fmt},
    {"ir", IR, dtm_command_ir},
    {"explain", EXPLAIN, dtm_command_explain},
    {"run", RUN, dtm_command_run},
    {"timeline", TIMELINE, dtm_command_timeline},
    {"passes", PASSES, dtm_command_passes},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* ---- flags ---- */

static void set_define(dtm_options *o, const char *value) {
    if (o->check.n_defines <= DTM_MOST_OPTIONS) o->defines[o->check.n_defines++] = value;
}
static void set_set(dtm_options *o, const char *value) {
    if (o->check.n_sets <= DTM_MOST_OPTIONS) o->sets[o->check.n_sets++] = value;
}
static void set_mesh(dtm_options *o, const char *value) {
    o->check.mesh = value;
}
static void set_output(dtm_options *o, const char *value) {
    o->output = value;
}
static void set_emit(dtm_options *o, const char *value) {
    o->emit = value;
}
static void set_target(dtm_options *o, const char *value) {
    o->target = value;
}
static void set_after(dtm_options *o, const char *value) {
    o->after = value;
}
static void set_from(dtm_options *o, const char *value) {
    o->from = value;
}
static void set_only(dtm_options *o, const char *value) {
    o->only = value;
}
static void set_value(dtm_options *o, const char *value) {
    o->value = value;
}
static void set_steps(dtm_options *o, const char *value) {
    o->steps = strtoll(value, NULL, 10);
}
static void set_seed(dtm_options *o, const char *value) {
    o->seed = strtoull(value, NULL, 10);
    o->seed_given = true;
}
static void set_format(dtm_options *o, const char *value) {
    o->format = value;
}
static void set_model(dtm_options *o, const char *value) {
    o->model = value;
}
static void set_columns(dtm_options *o, const char *value) {
    o->columns = strtoll(value, NULL, 10);
}
static void set_check(dtm_options *o, const char *value) {
    (void)value, o->check_only = true;
}
static void set_write(dtm_options *o, const char *value) {
    (void)value, o->write = true;
}
static void set_json(dtm_options *o, const char *value) {
    (void)value, o->json = true;
}
static void set_verify(dtm_options *o, const char *value) {
    (void)value, o->verify = true;
}
static void set_validate(dtm_options *o, const char *value) {
    (void)value, o->validate = true;
}
static void set_diff(dtm_options *o, const char *value) {
    (void)value, o->diff = true;
}
static void set_draft(dtm_options *o, const char *value) {
    (void)value, o->draft = true;
}

typedef struct flag {
    const char *name;
    int commands;
    bool takes_value;
    void (*set)(dtm_options *, const char *);
    unsigned long long least, most; /* of a number */
} flag;

static const flag flags[] = {
    {"-D", COMPILES, true, set_define, 0, 0},
    {"--mesh", COMPILES, true, set_mesh, 0, 0},
    {"--set", COMPILES, true, set_set, 0, 0},
    {"-o", BUILD | TIMELINE, true, set_output, 0, 0},
    {"--emit", BUILD, true, set_emit, 0, 0},
    {"--target", BUILD, true, set_target, 0, 0},
    {"--after", IR | RUN, true, set_after, 0, 0},
    {"--from", COMPILES, true, set_from, 0, 0},
    {"--only", IR, true, set_only, 0, 0},
    {"--diff", IR, false, set_diff, 0, 0},
    {"--format", TIMELINE, true, set_format, 0, 0},
    {"--columns", TIMELINE, true, set_columns, DTM_TIMELINE_NARROWEST, 10000},
    {"--model", TIMELINE, true, set_model, 0, 0},
    {"--value", RUN, true, set_value, 0, 0},
    {"--steps", RUN, true, set_steps, 1, INT32_MAX},
    {"--seed", RUN, true, set_seed, 0, UINT64_MAX},
    {"--check", FMT, false, set_check, 0, 0},
    {"--write", FMT, false, set_write, 0, 0},
    {"--json", EXPLAIN, false, set_json, 0, 0},
    {"--draft", BUILD, false, set_draft, 0, 0},
    {"--verify", COMPILES, false, set_verify, 0, 0},
    {"--validate", COMPILES, false, set_validate, 0, 0},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static int misuse(const char *command, const char *format, const char *what) {
    fprintf(stderr, "dtmc%s%s: ", *command ? " " : "", command);
    fprintf(stderr, format, what);
    fprintf(stderr, "; `dtmc %s%s--help` tells more\n", command, *command ? " " : "");
    return 2;
}

/* What is not there, and what it may be a slip of. */
static int not_there(const char *command, const char *kind, const char *what, const char *const *words, size_t n) {
    dtm_context *context = dtm_context_create();
    dtm_string names[N_FLAGS + (size_t)N_COMMANDS];
    for (size_t i = 0; i < n; i++) names[i] = dtm_string_of(context, words[i]);
    dtm_string near = dtm_string_nearest(context, what, names, n);
    char why[160];
    if (near) snprintf(why, sizeof why, "no %s `%%s`, did you mean `%.64s`?", kind, dtm_string_text(context, near));
    else snprintf(why, sizeof why, "no %s `%%s`", kind);
    dtm_context_destroy(context);
    return misuse(command, why, what);
}

static int no_flag(const char *command, int bit, const char *argument) {
    const char *words[N_FLAGS];
    size_t n = 0;
    for (int i = 0; i < N_FLAGS; i++)
        if (flags[i].commands & bit) words[n++] = flags[i].name;
    char name[64]; /* of --formt=svg the part that is wrong */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(argument, "="), argument);
    return not_there(command, "flag", name, words, n);
}

static int no_command(const char *argument) {
    const char *words[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) words[i] = commands[i].name;
    return not_there("", "command", argument, words, N_COMMANDS);
}

/* The flag an argument names (`--mesh dp=2`, `--mesh=dp=2`, `-DS=4`), and its value if it stands in the same word. */
static const flag *find_flag(const char *argument, int command, const char **value) {
    for (int i = 0; i < N_FLAGS; i++) {
        size_t length = strlen(flags[i].name);
        if (!(flags[i].commands & command) || strncmp(argument, flags[i].name, length) != 0) continue;
        const char *rest = argument + length;
        bool is_short = length == 2;
        if (*rest && !(flags[i].takes_value && (is_short || *rest == '='))) continue;
        *value = *rest ? rest + (*rest == '=') : NULL;
        return &flags[i];
    }
    return NULL;
}

/* A whole number within the flag's limits, else misused. */
static int check_number(const char *command, const flag *f, const char *text) {
    errno = 0;
    unsigned long long number = *text && !text[strspn(text, "0123456789")] ? strtoull(text, NULL, 10) : (errno = EINVAL, 0);
    if (!errno && number >= f->least && number <= f->most) return 0;
    char why[96];
    snprintf(why, sizeof why, "`%s` wants a whole number from %llu to %llu, not `%%s`", f->name, f->least, f->most);
    return misuse(command, why, text);
}

static int parse_flags(int index, int argc, char **argv, dtm_options *options) {
    const char *command = commands[index].name;
    for (int i = 2; i < argc; i++) {
        const char *argument = argv[i], *value = NULL;
        if (argument[0] != '-' || !argument[1]) {
            if (options->file) return misuse(command, "one file at a time, what is `%s`?", argument);
            options->file = argument;
            continue;
        }
        const flag *f = find_flag(argument, commands[index].bit, &value);
        if (!f) return no_flag(command, commands[index].bit, argument);
        if (f->takes_value && !value) {
            if (i + 1 == argc) return misuse(command, "`%s` needs a value", argument);
            value = argv[++i];
        }
        int status = f->most ? check_number(command, f, value) : 0;
        if (status) return status;
        f->set(options, value);
        if (!options->first_flag) options->first_flag = f->name;
        if (options->check.n_defines + options->check.n_sets > DTM_MOST_OPTIONS) return misuse(command, "too many `%s`", f->name);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        dtm_help_print(argc < 2 ? stderr : stdout, "");
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("dtmc %s\n", DTM_VERSION);
        return 0;
    }
    int index = 0;
    while (index < N_COMMANDS && strcmp(argv[1], commands[index].name) != 0) index++;
    if (index == N_COMMANDS) return no_command(argv[1]);
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            dtm_help_print(stdout, commands[index].name);
            return 0;
        }
    dtm_options options = {.seed = 0};
    options.check.defines = options.defines;
    options.check.sets = options.sets;
    int status = parse_flags(index, argc, argv, &options);
    if (status) return status;
    if (options.file && commands[index].bit == PASSES) return misuse("passes", "it takes no file, what is `%s`?", options.file);
    if (!options.file && commands[index].bit != PASSES) return misuse(commands[index].name, "%s", "which file?");
    status = commands[index].run(&options);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "dtmc %s: cannot write what it prints: %s\n", commands[index].name, strerror(errno));
    return 1;
}
