#include "runtime/log.h"

#include "runtime/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Where stderr is no terminal, a line is printed for the first and the last step, and in between this often. */
static const double PLAIN_SECONDS = 1.0;
/* Weight of the newest step in the mean speed from which the time left is told. */
static const double SPEED_WEIGHT = 0.1;

struct dtm_log {
    FILE *file;
    char *path;
    bool quiet, terminal, open_line;
    double printed;      /* when the last plain line was */
    double step_seconds; /* smoothed */
    int64_t steps_seen;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

char *dtm_log_line(const dtm_log_step *step) {
    dtm_json_writer writer = {0};
    dtm_json_begin_object(&writer);
    dtm_json_key(&writer, "step");
    dtm_json_whole(&writer, step->step);
    dtm_json_key(&writer, "loss");
    dtm_json_number(&writer, step->loss);
    if (step->trains) {
        dtm_json_key(&writer, "grad_norm");
        dtm_json_number(&writer, step->grad_norm);
        dtm_json_key(&writer, "lr");
        dtm_json_number(&writer, step->lr);
    }
    char rounded[32];
    if (step->tokens > 0 && step->seconds > 0) {
        snprintf(rounded, sizeof rounded, "%.1f", step->tokens / step->seconds);
        dtm_json_key(&writer, "tokens_per_s");
        dtm_json_number(&writer, strtod(rounded, NULL));
    }
    snprintf(rounded, sizeof rounded, "%.3f", step->seconds * 1e3);
    dtm_json_key(&writer, "ms");
    dtm_json_number(&writer, strtod(rounded, NULL));
    for (int i = 0; i < step->report_count; i++) {
        dtm_json_key(&writer, step->reports[i].name);
        dtm_json_number(&writer, step->reports[i].value);
    }
    dtm_json_end_object(&writer);
    if (!writer.failed) return writer.data;
    free(writer.data);
    return NULL;
}

static bool put_line(dtm_log *log, const char *line, dtm_status *status) {
    if (!log->file) return true;
    if (fputs(line, log->file) != EOF && fputc('\n', log->file) != EOF && fflush(log->file) == 0) return true;
    return dtm_status_fail_errno(status, errno, "cannot write the log %s", log->path);
}

bool dtm_log_open(const char *path, const char *header, bool append, bool quiet, dtm_log **out, dtm_status *status) {
    *out = NULL;
    dtm_log *log = calloc(1, sizeof *log);
    if (!log) return dtm_status_fail(status, "out of memory for the log");
    log->quiet = quiet;
    log->terminal = isatty(STDERR_FILENO);
    log->printed = -PLAIN_SECONDS;
    bool ok = true;
    if (path) {
        log->path = strdup(path);
        log->file = fopen(path, append ? "ae" : "we");
        ok = log->path && log->file;
        if (!ok) dtm_status_fail_errno(status, errno, "cannot write the log %s", path);
        ok = ok && put_line(log, header, status);
    }
    if (ok) {
        *out = log;
        return true;
    }
    if (log->file) fclose(log->file);
    free(log->path);
    free(log);
    return false;
}

static void describe_left(char *text, size_t size, double seconds) {
    long long s = (long long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%lld:%02lld:%02lld left", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, size, "%lld:%02lld left", s / 60, s % 60);
}

/* "step 12/200   loss 5.1032   norm 1.93   24731 tokens/s   1:12 left" */
static void describe(const dtm_log *log, const dtm_log_step *step, char *text, size_t size) {
    char of[32] = "", norm[48] = "", speed[48] = "", left[48] = "";
    if (step->steps > 0) snprintf(of, sizeof of, "/%lld", (long long)step->steps);
    if (step->trains) snprintf(norm, sizeof norm, "   grad norm %.4g", step->grad_norm);
    if (step->tokens > 0 && step->seconds > 0)
        snprintf(speed, sizeof speed, "   %.0f tokens/s", step->tokens / step->seconds);
    if (step->steps > step->step) {
        memcpy(left, "   ", 3);
        describe_left(left + 3, sizeof left - 3, (double)(step->steps - step->step) * log->step_seconds);
    }
    snprintf(text, size, "step %lld%s   loss %.4f%s%s%s", (long long)step->step, of, step->loss, norm, speed, left);
}

static void show(dtm_log *log, const dtm_log_step *step) {
    bool last = step->step == step->steps;
    double time = now();
    if (!log->terminal && !last && time - log->printed < PLAIN_SECONDS) return;
    log->printed = time;
    char text[256];
    describe(log, step, text, sizeof text);
    if (log->terminal)
        fprintf(stderr, "\r%s\x1b[K%s", text, last ? "\n" : "");
    else
        fprintf(stderr, "%s\n", text);
    fflush(stderr);
    log->open_line = log->terminal && !last;
}

bool dtm_log_write(dtm_log *log, const dtm_log_step *step, dtm_status *status) {
    /* The first step warms up and tells little about the others. */
    double weight = log->steps_seen <= 1 ? 1 : SPEED_WEIGHT;
    log->step_seconds += weight * (step->seconds - log->step_seconds);
    log->steps_seen++;
    if (log->file) {
        char *line = dtm_log_line(step);
        if (!line) return dtm_status_fail(status, "out of memory for the log");
        bool ok = put_line(log, line, status);
        free(line);
        if (!ok) return false;
    }
    if (!log->quiet) show(log, step);
    return true;
}

void dtm_log_pause(dtm_log *log) {
    if (log && log->open_line) fputc('\n', stderr);
    if (log) log->open_line = false;
}

bool dtm_log_close(dtm_log *log, dtm_status *status) {
    if (!log) return true;
    dtm_log_pause(log);
    bool ok = !log->file || fclose(log->file) == 0;
    if (!ok) dtm_status_fail_errno(status, errno, "cannot write the log %s", log->path);
    free(log->path);
    free(log);
    return ok;
}
