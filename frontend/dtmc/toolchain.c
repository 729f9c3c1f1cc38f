/* Runs the system compiler: see toolchain.h. */
#include "frontend/dtmc/toolchain.h"

#include "dtm_config.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

bool dtm_toolchain_find(dtm_toolchain *toolchain) {
    toolchain->draft = toolchain->cuda = false;
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = 0;
        const char *folder = dirname(self);
        char library[5000];
        snprintf(library, sizeof library, "%s/../lib/dtm/libdtm_rt.a", folder);
        if (access(library, R_OK) == 0) {
            snprintf(toolchain->include, sizeof toolchain->include, "%.4000s/../include/dtm", folder);
            snprintf(toolchain->libraries, sizeof toolchain->libraries, "%.4000s/../lib/dtm", folder);
            return true;
        }
    }
    snprintf(toolchain->include, sizeof toolchain->include, "%s", DTM_CONFIG_SOURCE);
    snprintf(toolchain->libraries, sizeof toolchain->libraries, "%s", DTM_CONFIG_LIBRARIES);
    return true;
}

enum { MOST_WORDS = 96 };

typedef struct command {
    char *words[MOST_WORDS];
    int count;
    char *text; /* backs the words of split strings */
} command;

static void add(command *c, const char *word) {
    if (c->count < MOST_WORDS - 1) c->words[c->count++] = strdup(word);
}

static void add_split(command *c, const char *words) {
    char *copy = strdup(words);
    for (char *word = strtok(copy, " ;"); word; word = strtok(NULL, " ;")) add(c, word);
    free(copy);
}

static void addf(command *c, const char *format, const char *a, const char *b) {
    char word[8500];
    snprintf(word, sizeof word, format, a, b);
    add(c, word);
}

static void clear(command *c) {
    for (int i = 0; i < c->count; i++) free(c->words[i]);
}

/* Starts a command, its messages going to `messages`; -1 if it cannot be started. */
static pid_t start(command *c, const char *messages) {
    c->words[c->count] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, messages, O_WRONLY | O_CREAT | O_APPEND, 0666);
    pid_t child = -1;
    int failed = posix_spawnp(&child, c->words[0], &actions, NULL, c->words, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (!failed) return child;
    fprintf(stderr,
            "dtmc build: cannot run the C compiler `%s`: %s\n   help: install one (on Debian: apt-get install gcc), or "
            "name one in the environment variable CC\n",
            c->words[0], strerror(failed));
    return -1;
}

static void show(const char *path) {
    FILE *file = fopen(path, "r");
    char line[1024];
    for (int n = 0; file && n < 40 && fgets(line, sizeof line, file); n++) fputs(line, stderr);
    if (file) fclose(file);
}

static const char *compiler(void) {
    const char *named = getenv("CC");
    return named && *named ? named : DTM_CONFIG_CC;
}

static bool succeeds(pid_t child) {
    int status;
    if (child < 0) return false;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool finish(pid_t child, const char *messages) {
    if (child < 0) return false; /* which start has said */
    if (succeeds(child)) return true;
    fprintf(stderr, "dtmc build: the C compiler `%s` failed:\n", compiler());
    show(messages);
    return false;
}

static void compile_command(command *c, const dtm_toolchain *t, const char *folder, const char *source,
                            const char *object, const char *flags) {
    add_split(c, compiler());
    add_split(c, "-std=c11 -w -c");
    add_split(c, flags);
    add_split(c, DTM_CONFIG_SANITIZE);
    addf(c, "-I%s%s", t->include, "");
    addf(c, "%s/%s", folder, source);
    add(c, "-o");
    addf(c, "%s/%s", folder, object);
}

/* What is compiled: the plan, and the kernels once for each instruction set; as a draft the kernels once, plain and
 * hardly optimised; for GPUs what the host does for them. */
typedef struct unit {
    const char *source, *object, *flags;
} unit;

#define PLAN_FLAGS "-O0 -DDTM_VERSION=\"" DTM_VERSION "\""

static const unit draft[] = {
    {"plan.c", "plan.o", PLAN_FLAGS},
    {"kernels.c", "kernels_v1.o", "-DDTM_ISA=v1 -O1 -fno-math-errno -fno-trapping-math"},
};

static const unit of_gpus[] = {
    {"plan.c", "plan.o", PLAN_FLAGS},
    {"kernels.c", "kernels.o", "-O1"},
};

static const unit finished[] = {
#if defined(__x86_64__)
    {"plan.c", "plan.o", PLAN_FLAGS " -DDTM_ISAS"},
    {"kernels.c", "kernels_v1.o", "-DDTM_ISA=v1 " DTM_CONFIG_KERNEL_FLAGS},
    {"kernels.c", "kernels_v3.o", "-DDTM_ISA=v3 -march=x86-64-v3 " DTM_CONFIG_KERNEL_FLAGS},
    {"kernels.c", "kernels_v4.o",
     "-DDTM_ISA=v4 -march=x86-64-v4 -mprefer-vector-width=512 " DTM_CONFIG_KERNEL_FLAGS},
#else
    {"plan.c", "plan.o", PLAN_FLAGS},
    {"kernels.c", "kernels_v1.o", "-DDTM_ISA=v1 " DTM_CONFIG_KERNEL_FLAGS},
#endif
};

enum { MOST_UNITS = 8 };

static int units_of(const dtm_toolchain *t, const unit **units) {
    *units = t->cuda ? of_gpus : t->draft ? draft : finished;
    return t->cuda ? (int)(sizeof of_gpus / sizeof *of_gpus) : t->draft ? (int)(sizeof draft / sizeof *draft) : (int)(sizeof finished / sizeof *finished);
}

bool dtm_toolchain_compile(const dtm_toolchain *t, const char *folder) {
    const unit *units;
    int n = units_of(t, &units);
    char messages[4200];
    snprintf(messages, sizeof messages, "%s/messages", folder);
    pid_t children[MOST_UNITS];
    int started = 0;
    for (bool runs = true; runs && started < n; started += runs) {
        int i = started;
        command c = {.count = 0};
        compile_command(&c, t, folder, units[i].source, units[i].object, units[i].flags);
        children[i] = start(&c, messages);
        runs = children[i] >= 0;
        clear(&c);
    }
    bool good = started == n;
    for (int i = 0; i < started; i++) good = good ? finish(children[i], messages) : (succeeds(children[i]), false);
    return good;
}

bool dtm_toolchain_link(const dtm_toolchain *t, const char *folder, const char *output) {
    const unit *units;
    int n = units_of(t, &units);
    command c = {.count = 0};
    char messages[4200];
    snprintf(messages, sizeof messages, "%s/messages", folder);
    add_split(&c, compiler());
    add(&c, "-o");
    add(&c, output);
    for (int i = 0; i < n; i++) addf(&c, "%s/%s", folder, units[i].object);
    addf(&c, "-L%s%s", t->libraries, "");
    add_split(&c, "-ldtm_rt -ldtm_kernels");
    add_split(&c, DTM_CONFIG_LINK);
    pid_t child = start(&c, messages);
    clear(&c);
    return finish(child, messages);
}
