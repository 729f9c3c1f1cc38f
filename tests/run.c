/* Runs cases of exact text. A case is one file:
 *
 *     # run: dtmc ir % --after shard          what is run by `sh -e` (several lines: one after the other)
 *     # limit: 60                             seconds it may take, 20 if not said
 *     # processor: 1                          seconds of processor time that each of its processes may take
 *     # memory: 200                           megabytes of address space that each may have
 *     # the rule that is tested, in words
 *     dim B = 8 ...                           the program: `%` is a file of this text, NAME.dtm for NAME.case
 *     ---- file other.dtm                     further files beside it, as many as needed
 *     ...
 *     ---- expect                             what comes on stdout and stderr together
 *     ...
 *     ---- exit 1                             the exit status, if it is not 0
 *
 * The first lines stay in NAME.dtm, so line numbers are those of the case. A command runs in an empty folder with the
 * files of the case; programs of the --bin folders are on PATH, $SOURCE is the repository, and where either folder is
 * printed it is written $SOURCE or $HERE.
 *
 * The limits are of programs as they are built for users. Built with sanitizers, this program knows that those it runs are
 * too: it then waits longer, and leaves out what bounds time and memory of the processes.
 *
 *     run --bin DIR.. --source DIR [--rewrite] [--times] FILE|FOLDER..
 *
 * The last line is `N passed, N failed`, the status 1 if one failed. --rewrite writes what came into the cases that differ.
 * --times prints what each case took: seconds of all its processes' processor time, seconds that passed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MAX_OUTPUT = 16 << 20, PATIENCE = SANITIZED ? 10 : 1 };

static const char *source_folder;
static char scratch[PATH_MAX]; /* where commands run */
static bool rewrite, times;
static int passed, failed;

static void die(const char *what) {
    perror(what);
    exit(2);
}

/* ---- text ---- */

typedef struct text {
    char *data;
    size_t length, capacity;
} text;

static void append(text *t, const char *data, size_t length) {
    if (length > SIZE_MAX / 4) die("length");
    if (t->length + length + 1 > t->capacity) {
        t->capacity = 2 * (t->length + length + 1);
        t->data = realloc(t->data, t->capacity);
        if (!t->data) die("memory");
    }
    memcpy(t->data + t->length, data, length);
    t->length += length;
    t->data[t->length] = 0;
}

static void append_string(text *t, const char *string) { append(t, string, strlen(string)); }

static bool read_all(const char *path, text *out) {
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    char block[65536];
    size_t got;
    append(out, "", 0);
    while ((got = fread(block, 1, sizeof block, file)) > 0) append(out, block, got);
    return fclose(file) == 0;
}

static void write_all(const char *path, const char *data, size_t length) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, length, file) != length || fclose(file) != 0) die(path);
}

/* Every `from` becomes `to`. */
static text replaced(const char *in, const char *from, const char *to) {
    text out = {0};
    append(&out, "", 0);
    size_t n = strlen(from);
    for (const char *at; n && (at = strstr(in, from)); in = at + n) {
        append(&out, in, (size_t)(at - in));
        append_string(&out, to);
    }
    append_string(&out, in);
    return out;
}

/* ---- a case ---- */

typedef struct test_case {
    const char *path;
    char name[256];  /* NAME of NAME.case */
    text all;        /* the file */
    text script;     /* the commands */
    size_t program;  /* end of what is the program and its files */
    char *expected;  /* NULL: no `---- expect` */
    int status, limit;
    int processor, memory; /* limits of each process, 0: none */
} test_case;

static bool starts(const char *line, const char *with) { return strncmp(line, with, strlen(with)) == 0; }

static const char *next_line(const char *line) {
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* Reads the commands of the head; `%` becomes NAME.dtm. */
static void read_head(test_case *c) {
    for (const char *line = c->all.data; *line == '#'; line = next_line(line)) {
        const char *end = next_line(line);
        if (starts(line, "# limit: ")) c->limit = atoi(line + 9);
        if (starts(line, "# processor: ")) c->processor = atoi(line + 13);
        if (starts(line, "# memory: ")) c->memory = atoi(line + 10);
        if (!starts(line, "# run: ")) continue;
        for (const char *at = line + 7; at < end; at++) {
            bool lone = *at == '%' && (at[1] == ' ' || at[1] == '\n' || at[1] == 0);
            if (!lone) append(&c->script, at, 1);
            else append_string(&c->script, c->name), append_string(&c->script, ".dtm");
        }
    }
}

/* Writes the program and its further files into the scratch folder, and finds what is expected. */
static void read_sections(test_case *c) {
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s.dtm", scratch, c->name);
    const char *begin = c->all.data, *line = begin;
    bool expect = false;
    text wanted = {0};
    append(&wanted, "", 0);
    for (;; line = next_line(line)) {
        bool mark = starts(line, "---- file ") || starts(line, "---- expect\n") || starts(line, "---- exit ");
        if (*line && !mark) continue;
        if (expect) append(&wanted, begin, (size_t)(line - begin));
        else write_all(path, begin, (size_t)(line - begin)), c->program = (size_t)(line - c->all.data);
        if (!*line) break;
        begin = next_line(line);
        if (starts(line, "---- file ")) {
            snprintf(path, sizeof path, "%s/%.*s", scratch, (int)strcspn(line + 10, "\n"), line + 10);
        } else if (starts(line, "---- expect")) {
            expect = true;
        } else {
            c->status = atoi(line + 10);
            break;
        }
    }
    if (expect) c->expected = wanted.data;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Processor time of all that was run and waited for so far. */
static double used(void) {
    struct rusage u;
    if (getrusage(RUSAGE_CHILDREN, &u)) die("getrusage");
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void set_limit(int resource, rlim_t most) {
    if (!SANITIZED && most && setrlimit(resource, &(struct rlimit){most, most})) _exit(126);
}

/* Runs the commands; their output, and the exit status, 128 + the signal, or -1 where the time was up. */
static int run_script(const test_case *c, text *output) {
    char log[2 * PATH_MAX];
    snprintf(log, sizeof log, "%s.out", scratch);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        setpgid(0, 0);
        int in = open("/dev/null", O_RDONLY), out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
        if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 || chdir(scratch)) _exit(126);
        set_limit(RLIMIT_CPU, (rlim_t)c->processor);
        set_limit(RLIMIT_AS, (rlim_t)c->memory * 1000000);
        execl("/bin/sh", "sh", "-e", "-c", c->script.data, (char *)NULL);
        _exit(127);
    }
    setpgid(child, child);
    double end = now() + c->limit * PATIENCE;
    int status = 0;
    bool late = false;
    for (useconds_t nap = 500; waitpid(child, &status, WNOHANG) == 0; nap = nap < 20000 ? nap * 2 : nap) {
        if (now() > end) {
            late = true;
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            break;
        }
        usleep(nap);
    }
    text raw = {0};
    if (!read_all(log, &raw)) die(log);
    unlink(log);
    if (raw.length > MAX_OUTPUT) raw.data[MAX_OUTPUT] = 0;
    *output = replaced(raw.data, scratch, "$HERE");
    free(raw.data);
    raw = *output;
    *output = replaced(raw.data, source_folder, "$SOURCE");
    free(raw.data);
    if (output->length && output->data[output->length - 1] != '\n') append_string(output, "\n(no newline)\n");
    if (late) return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void empty_folder(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char inner[2 * PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        struct stat at;
        if (lstat(inner, &at) == 0 && S_ISDIR(at.st_mode)) {
            empty_folder(inner);
            rmdir(inner);
        } else {
            unlink(inner);
        }
    }
    closedir(folder);
}

static void show_difference(const char *expected, const char *actual) {
    char wanted[2 * PATH_MAX], came[2 * PATH_MAX], command[8 * PATH_MAX];
    snprintf(wanted, sizeof wanted, "%s/expected", scratch);
    snprintf(came, sizeof came, "%s/actual", scratch);
    write_all(wanted, expected, strlen(expected));
    write_all(came, actual, strlen(actual));
    snprintf(command, sizeof command, "cd '%s' && diff -u expected actual | tail -n +3 | head -n 100", scratch);
    fflush(stdout);
    if (system(command) < 0) die("diff");
}

static void write_case(const test_case *c, const char *output, int status) {
    text file = {0};
    append(&file, c->all.data, c->program);
    if (c->program && file.data[c->program - 1] != '\n') append_string(&file, "\n");
    append_string(&file, "---- expect\n");
    append_string(&file, output);
    char line[40];
    snprintf(line, sizeof line, "---- exit %d\n", status);
    if (status) append_string(&file, line);
    write_all(c->path, file.data, file.length);
    free(file.data);
}

static void run_case(const char *path) {
    test_case c = {.path = path, .limit = 20};
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    snprintf(c.name, sizeof c.name, "%.*s", (int)(strlen(base) - strlen(".case")), base);
    if (!read_all(path, &c.all)) die(path);
    empty_folder(scratch);
    read_head(&c);
    read_sections(&c);
    text output = {0};
    if (!c.script.length) {
        printf("FAILED %s: it has no line `# run: ..`\n", path);
        failed++;
    } else {
        double began = now(), before = used();
        int status = run_script(&c, &output);
        if (times) printf("%7.2f %7.2f %s\n", used() - before, now() - began, path);
        bool good = c.expected && status == c.status && strcmp(c.expected, output.data) == 0;
        if (!good && rewrite && status >= 0 && status < 128) {
            write_case(&c, output.data, status);
            printf("rewrote %s\n", path);
            good = true;
        }
        if (good) passed++;
        else failed++;
        if (!good) {
            printf("FAILED %s: ", path);
            if (status < 0) printf("not done within %d s", c.limit * PATIENCE);
            else if (status >= 128) printf("ended by signal %d", status - 128);
            else if (status != c.status) printf("exit status %d, not %d", status, c.status);
            else printf("%s", c.expected ? "other text" : "it has no `---- expect`");
            printf("\n%s", c.script.data);
            show_difference(c.expected ? c.expected : "", output.data);
        }
    }
    free(output.data);
    free(c.expected);
    free(c.script.data);
    free(c.all.data);
}

/* ---- folders ---- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_case(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".case") == 0;
}

/* A file, or all cases in a folder and the folders in it, by name. */
static void run_path(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) {
        if (errno == ENOTDIR) run_case(path);
        else die(path);
        return;
    }
    char **names = NULL;
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        char inner[2 * PATH_MAX];
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        struct stat at;
        if (stat(inner, &at) != 0 || !(S_ISDIR(at.st_mode) || is_case(inner))) continue;
        names = realloc(names, (count + 1) * sizeof *names);
        if (!names || !(names[count++] = strdup(inner))) die("memory");
    }
    closedir(folder);
    if (count) qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        run_path(names[i]);
        free(names[i]);
    }
    free(names);
}

/* The folders come first on PATH. */
static void set_up(const char *const *bins, int count) {
    char absolute[PATH_MAX];
    text path = {0};
    for (int i = 0; i < count; i++) {
        if (!realpath(bins[i], absolute)) die(bins[i]);
        append_string(&path, absolute);
        append_string(&path, ":");
    }
    append_string(&path, getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");
    setenv("PATH", path.data, 1);
    setenv("SOURCE", source_folder, 1);
    setenv("LC_ALL", "C", 1);
    free(path.data);
    const char *temporary = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    snprintf(scratch, sizeof scratch, "%s/dtm-case-XXXXXX", temporary);
    if (!mkdtemp(scratch)) die(scratch);
}

int main(int argc, char **argv) {
    const char *bins[8], **paths = calloc((size_t)argc, sizeof *paths);
    char source[PATH_MAX] = "";
    int n_bins = 0, count = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--rewrite") == 0) rewrite = true;
        else if (strcmp(argv[i], "--times") == 0) times = true;
        else if (strcmp(argv[i], "--bin") == 0 && i + 1 < argc && n_bins < 8) bins[n_bins++] = argv[++i];
        else if (strcmp(argv[i], "--source") == 0 && i + 1 < argc) {
            if (!realpath(argv[++i], source)) die(argv[i]);
        } else if (argv[i][0] != '-' && paths) {
            paths[count++] = argv[i];
        }
    }
    if (!count) {
        fprintf(stderr, "usage: run --bin DIR.. --source DIR [--rewrite] [--times] FILE|FOLDER..\n");
        return 2;
    }
    source_folder = source;
    set_up(bins, n_bins);
    for (int i = 0; i < count; i++) run_path(paths[i]);
    empty_folder(scratch);
    rmdir(scratch);
    free(paths);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
