/* The subcommands other than build. */
#include "frontend/dtmc/commands.h"

#include "frontend/ast.h"
#include "frontend/format.h"
#include "passes/explain.h"
#include "passes/interpret.h"
#include "passes/pipeline.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int dtm_misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "dtmc ");
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return 2;
}

bool dtm_report(dtm_context *context) {
    fflush(stdout);
    dtm_diagnostics_print(context, stderr, isatty(2));
    return dtm_error_count(context) > 0;
}

char *dtm_read_file(const char *path, size_t *length) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = file ? dtm_read_stream(file, length) : NULL;
    if (!text) fprintf(stderr, "dtmc: %s: %s\n", path, strerror(errno));
    if (file && file != stdin) fclose(file);
    return text;
}

/* --from PASS says what the dump must say itself. */
static bool check_from(dtm_module *module, const dtm_options *options) {
    const char *after = dtm_string_text(module->context, module->after);
    if (!options->from || strcmp(options->from, after) == 0) return true;
    if (dtm_pass_find(module->context, options->from) < 0) return false;
    dtm_error(module->context, (dtm_span){0, 0, 0}, 204, "%s %s%s, not a dump taken after `%s`", options->file,
              *after ? "is a dump taken after " : "is a source program", after, options->from);
    return false;
}

static bool check_until(dtm_module *module, const char *until) {
    if (!until) return true;
    int wanted = dtm_pass_find(module->context, until);
    if (wanted < 0) return false;
    if (!module->after) return true;
    int been = dtm_pass_find(module->context, dtm_string_text(module->context, module->after));
    if (been <= wanted) return true;
    dtm_error(module->context, (dtm_span){0, 0, 0}, 204, "this dump has been through `%s`, which comes after `%s`",
              dtm_string_text(module->context, module->after), until);
    return false;
}

static bool run_passes(dtm_module *module, const dtm_options *options, const char *until) {
    bool source_only = until && !*until;
    if (!source_only && !check_until(module, until)) return false;
    bool there = !source_only && until && module->after && !strcmp(until, dtm_string_text(module->context, module->after));
    /* Passes and code generation trust a module: what a dump says is looked at before. */
    bool verify = (options->verify && !source_only) || (module->after && !there);
    if (verify && !dtm_module_verify(module)) return false;
    if (source_only || there) return true;
    dtm_pipeline_options pipeline = {
        .until = until, .verify = options->verify, .validate = options->validate, .seed = options->seed};
    return dtm_pipeline_run(module, &pipeline);
}

dtm_module *dtm_compile(dtm_context *context, const dtm_options *options, const char *until) {
    dtm_module *module = dtm_check(context, options->file, &options->check);
    if (!module) return NULL;
    if (check_from(module, options) && run_passes(module, options, until)) return module;
    dtm_module_destroy(module);
    return NULL;
}

static bool is_one_file(const struct stat *there, const char *path) {
    struct stat other;
    return path && stat(path, &other) == 0 && other.st_dev == there->st_dev && other.st_ino == there->st_ino;
}

bool dtm_spares_sources(dtm_context *context, const dtm_options *options, const char *command) {
    struct stat there;
    const char *read = NULL;
    if (!options->output || stat(options->output, &there) != 0 || !S_ISREG(there.st_mode)) return true;
    if (is_one_file(&there, options->file)) read = options->file;
    if (is_one_file(&there, options->model)) read = options->model;
    for (uint32_t i = 1; i <= dtm_source_count(context); i++)
        if (is_one_file(&there, dtm_source_name(context, i))) read = dtm_source_name(context, i);
    if (read) fprintf(stderr, "dtmc %s: -o %s would write over %s, which it reads; name another file\n", command, options->output, read);
    return !read;
}

/* ---- fmt ---- */

static bool write_back(const char *path, const dtm_text *out) {
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(out->data, 1, out->length, file) == out->length;
    if (file) good &= fclose(file) == 0;
    if (!good) fprintf(stderr, "dtmc fmt: %s: %s\n", path, strerror(errno));
    return good;
}

int dtm_command_fmt(const dtm_options *options) {
    size_t length;
    if (options->check_only && options->write) return dtm_misuse("fmt: --check writes nothing: leave out one of --check, --write");
    if (options->write && !strcmp(options->file, "-")) return dtm_misuse("fmt: --write writes a file back, and `-` is none");
    char *text = dtm_read_file(options->file, &length);
    if (!text) return 1;
    dtm_context *context = dtm_context_create();
    bool standard = strcmp(options->file, "-") == 0;
    const dtm_ast *ast =
        dtm_parse(context, dtm_source_add(context, standard ? "<stdin>" : options->file, text, length));
    bool failed = dtm_report(context) || !ast;
    if (!failed) {
        dtm_text out = {.arena = dtm_context_arena(context)};
        dtm_ast_format(context, ast, &out);
        bool same = out.length == length && (!length || memcmp(out.data, text, length) == 0);
        if (options->check_only && !same) {
            fprintf(stderr, "%s: not as `dtmc fmt` prints it\n", options->file);
            failed = true;
        } else if (options->write) {
            failed = !same && !write_back(options->file, &out);
        } else if (!options->check_only && out.length) {
            fwrite(out.data, 1, out.length, stdout);
        }
    }
    dtm_context_destroy(context);
    free(text);
    return failed;
}

/* ---- ir ---- */

/* Lines are equal if they differ in padding alone: columns move when a neighbour changes. */
static bool same_line(const char *a, const char *b) {
    for (;; a++, b++) {
        if (*a == ' ' && *b == ' ') {
            while (a[1] == ' ') a++;
            while (b[1] == ' ') b++;
        }
        if (*a != *b) return false;
        if (!*a) return true;
    }
}

/* The lines of two dumps: those only in the first with `-`, those only in the second with `+`, by a longest common
 * subsequence of lines. */
static void print_difference(dtm_arena *arena, char *before, char *after) {
    char **lines[2], *texts[2] = {before, after};
    size_t counts[2];
    for (int t = 0; t < 2; t++) {
        size_t capacity = 0;
        lines[t] = NULL;
        counts[t] = 0;
        for (char *line = strtok(texts[t], "\n"); line; line = strtok(NULL, "\n"))
            DTM_PUSH(arena, lines[t], counts[t], capacity, line);
    }
    size_t n = counts[0], m = counts[1], width = m + 1;
    uint32_t *best = calloc((n + 1) * width, sizeof *best);
    if (!best) return;
    for (size_t i = n; i-- > 0;)
        for (size_t j = m; j-- > 0;) {
            uint32_t skip = best[(i + 1) * width + j], take = best[i * width + j + 1];
            best[i * width + j] = same_line(lines[0][i], lines[1][j]) ? best[(i + 1) * width + j + 1] + 1
                                  : skip > take                         ? skip
                                                                        : take;
        }
    for (size_t i = 0, j = 0; i < n || j < m;) {
        if (i < n && j < m && same_line(lines[0][i], lines[1][j]))
            i++, j++;
        else if (j == m || (i < n && best[(i + 1) * width + j] >= best[i * width + j + 1]))
            printf("- %s\n", lines[0][i++]);
        else
            printf("+ %s\n", lines[1][j++]);
    }
    free(best);
}

static char *text_of(dtm_context *context, dtm_module *module, const dtm_options *options) {
    dtm_text out = {.arena = dtm_context_arena(context)};
    dtm_print_options print = {.only = options->only ? dtm_string_of(context, options->only) : 0, .local_shapes = true};
    dtm_module_print(module, &print, &out);
    return out.data ? out.data : "";
}

/* The pass before one, "" for the first. */
static const char *pass_before(const char *pass) {
    const char *last = dtm_passes[dtm_n_passes - 1].name;
    for (size_t i = 0; i < dtm_n_passes; i++)
        if (strcmp(dtm_passes[i].name, pass ? pass : last) == 0) return i ? dtm_passes[i - 1].name : "";
    return "";
}

/* The text after a pass, in an arena that outlives the context it was compiled in; NULL after errors. */
static char *dump_of(const dtm_options *options, const char *after, dtm_arena *arena) {
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_compile(context, options, after);
    char *text = module ? dtm_arena_strdup(arena, text_of(context, module, options)) : NULL;
    if (dtm_report(context)) text = NULL;
    dtm_module_destroy(module);
    dtm_context_destroy(context);
    return text;
}

int dtm_command_ir(const dtm_options *given) {
    dtm_options copy = *given;
    const dtm_options *options = &copy;
    char *source = NULL; /* of standard input, which may be compiled twice */
    if (given->diff && !strcmp(given->file, "-")) {
        copy.check.text = source = dtm_read_file("-", &copy.check.length);
        if (!source) return 1;
    }
    dtm_arena *arena = dtm_arena_create();
    char *text = dump_of(options, options->after, arena), *before = NULL;
    bool failed = !text;
    if (text && !*text) {
        fprintf(stderr, "dtmc ir: there is no region `%s`: --only takes the name of a repeat, forward, backward or update\n", options->only);
        failed = true;
    } else if (text && options->diff) {
        before = dump_of(options, pass_before(options->after), arena);
        failed = !before;
        if (before) print_difference(arena, before, text);
    } else if (text) {
        fputs(text, stdout);
    }
    dtm_arena_destroy(arena);
    free(source);
    return failed;
}

/* ---- explain ---- */

static int explain_code(const char *code) {
    long number = strtol(code + 1, NULL, 10);
    const char *text = number < 10000 ? dtm_error_explanation((int)number) : NULL;
    if (!text) {
        fprintf(stderr, "dtmc explain: there is no error `%s`\n", code);
        return 1;
    }
    printf("%c%04ld: %s\n", toupper((unsigned char)*code), number, text);
    return 0;
}

/* E0304, and as people type it: e304. */
static bool is_code(const char *text) {
    return *text && strchr("EWew", *text) && text[1] && !text[1 + strspn(text + 1, "0123456789")] && access(text, F_OK) != 0;
}

int dtm_command_explain(const dtm_options *options) {
    if (is_code(options->file) && options->first_flag)
        return dtm_misuse("explain: %s is of a program, and %s a code: leave out one of the two", options->first_flag, options->file);
    if (is_code(options->file)) return explain_code(options->file);
    dtm_context *context = dtm_context_create();
    dtm_module *source = dtm_compile(context, options, ""), *module = source ? dtm_module_clone(source) : NULL;
    dtm_pipeline_options pipeline = {.verify = options->verify, .validate = options->validate, .seed = options->seed};
    bool failed = !module || !dtm_pipeline_run(module, &pipeline);
    if (!failed) {
        dtm_text out = {.arena = dtm_context_arena(context)};
        dtm_explain_options explain = {.json = options->json, .file = options->file};
        dtm_explain(source->after ? NULL : source, module, &explain, &out);
        fputs(out.data, stdout);
        failed |= !dtm_keeps_contracts(module);
    }
    failed |= dtm_report(context);
    dtm_module_destroy(module);
    dtm_module_destroy(source);
    dtm_context_destroy(context);
    return failed;
}

/* ---- run, passes ---- */

int dtm_command_run(const dtm_options *options) {
    dtm_context *context = dtm_context_create();
    /* Random inputs are as the program wants them as it is written: after every pass the same. */
    dtm_module *source = dtm_check(context, options->file, &options->check);
    dtm_module *module = source && check_from(source, options) ? dtm_module_clone(source) : NULL;
    bool failed = !module || !run_passes(module, options, options->after ? options->after : "precision");
    if (!failed) {
        dtm_input_bound *bounds;
        size_t n_bounds = dtm_input_bounds(source, dtm_context_arena(context), &bounds);
        uint64_t seed = options->seed_given              ? options->seed
                        : module->settings.train.present ? module->settings.train.seed
                                                         : 1;
        dtm_interpret_options interpret = {.steps = options->steps,
                                           .seed = seed,
                                           .keep_step = options->value ? (options->steps ? options->steps : 1) : 0,
                                           .rounds = true,
                                           .check_storage = true,
                                           .bounds = bounds,
                                           .n_bounds = n_bounds};
        dtm_interpretation *result = dtm_interpret(module, &interpret);
        failed = !result;
        if (result) {
            dtm_text out = {.arena = dtm_context_arena(context)};
            dtm_interpretation_print(result, options->value, &out);
            if (out.data) fputs(out.data, stdout);
            else if (options->value) failed = true, fprintf(stderr, "dtmc run: there is no value `%s`\n", options->value);
            dtm_interpretation_destroy(result);
        }
    }
    failed |= dtm_report(context);
    dtm_module_destroy(module);
    dtm_module_destroy(source);
    dtm_context_destroy(context);
    return failed;
}

int dtm_command_passes(const dtm_options *options) {
    (void)options;
    for (size_t i = 0; i < dtm_n_passes; i++) printf("%-18s %s\n", dtm_passes[i].name, dtm_passes[i].summary);
    return 0;
}
