/* dtmc: the command line. One table of subcommands and one of flags; each flag says which subcommands take it. */
#include "frontend/dtmc/commands.h"

#include "frontend/dtmc/help.h"

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
    if (o->check.n_defines < DTM_MOST_OPTIONS) o->defines[o->check.n_defines++] = value;
}
static void set_set(dtm_options *o, const char *value) {
    if (o->check.n_sets < DTM_MOST_OPTIONS) o->sets[o->check.n_sets++] = value;
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
static void set_memory(dtm_options *o, const char *value) {
    (void)value, o->memory = true;
}

typedef struct flag {
    const char *name;
    int commands;
    bool number, takes_value;
    void (*set)(dtm_options *, const char *);
} flag;

static const flag flags[] = {
    {"-D", COMPILES, false, true, set_define},
    {"--mesh", COMPILES, false, true, set_mesh},
    {"--set", COMPILES, false, true, set_set},
    {"-o", BUILD | TIMELINE, false, true, set_output},
    {"--emit", BUILD, false, true, set_emit},
    {"--target", BUILD, false, true, set_target},
    {"--after", IR | RUN, false, true, set_after},
    {"--from", BUILD | IR | RUN | EXPLAIN, false, true, set_from},
    {"--only", IR, false, true, set_only},
    {"--diff", IR, false, false, set_diff},
    {"--format", TIMELINE, false, true, set_format},
    {"--columns", TIMELINE, true, true, set_columns},
    {"--model", TIMELINE, false, true, set_model},
    {"--value", RUN, false, true, set_value},
    {"--steps", RUN, true, true, set_steps},
    {"--seed", RUN, true, true, set_seed},
    {"--check", FMT, false, false, set_check},
    {"--write", FMT, false, false, set_write},
    {"--json", EXPLAIN, false, false, set_json},
    {"--memory", EXPLAIN, false, false, set_memory},
    {"--draft", BUILD, false, false, set_draft},
    {"--verify", COMPILES, false, false, set_verify},
    {"--validate", COMPILES, false, false, set_validate},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static int misuse(const char *command, const char *format, const char *what) {
    fprintf(stderr, "dtmc %s: ", command);
    fprintf(stderr, format, what);
    fprintf(stderr, "; `dtmc %s%s--help` tells more\n", command, *command ? " " : "");
    return 2;
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

static bool is_number(const char *text) {
    return *text && !text[strspn(text, "0123456789")];
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
        if (!f) return misuse(command, "no flag `%s`", argument);
        if (f->takes_value && !value) {
            if (i + 1 == argc) return misuse(command, "`%s` needs a value", argument);
            value = argv[++i];
        }
        if (f->number && !is_number(value)) return misuse(command, "`%s` is no number", value);
        f->set(options, value);
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
    if (index == N_COMMANDS) return misuse("", "no command `%s`", argv[1]);
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
    if (!options.file && commands[index].bit != PASSES) return misuse(commands[index].name, "%s", "which file?");
    status = commands[index].run(&options);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "dtmc %s: cannot write what it prints: %s\n", commands[index].name, strerror(errno));
    return 1;
}
