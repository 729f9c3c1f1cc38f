/* The command line of an executable: which command, which flags. */
#ifndef DTM_OPTIONS_H
#define DTM_OPTIONS_H

#include "runtime/data.h"
#include "runtime/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum dtm_command {
    DTM_COMMAND_TRAIN,
    DTM_COMMAND_EVAL,
    DTM_COMMAND_INFO,
    DTM_COMMAND_PROBE,
    DTM_COMMAND_HELP,
    DTM_COMMAND_VERSION
} dtm_command;

typedef struct dtm_options {
    dtm_command command;
    const char *program; /* argv[0] */
    const char *about;   /* DTM_COMMAND_HELP: the command it was asked for, or NULL */
    const char *data, *load, *log, *save_weights, *save_grads;
    const char *links; /* of --local: the file of a machine */
    bool simulate;
    int64_t disturb; /* 0: not given */
    const char *trace;
    int64_t trace_first, trace_last; /* steps, from 1; 0: not given */
    dtm_data_format format;
    bool format_given, seed_given, deadline_given;
    int64_t steps; /* -1: not given */
    uint64_t seed;
    int threads; /* 0: not given */
    bool local, profile, json, quiet, check_replicas;
    bool devices;          /* of info */
    const char *cuda_libs; /* the folder of CUDA's libraries, or NULL */
    const char *cache;     /* the folder of compiled kernels, or NULL: ~/.cache/dtm */
    bool no_graph, generated_products, tune; /* on a GPU */
    double deadline; /* of the watchdog, seconds */
    bool verbs; /* messages of a pipeline go by it */
    bool require_links, interval_given;
    double interval;       /* of probe, seconds */
    const char *verbs_lib; /* the folder of libibverbs, or NULL */
    const char *sysfs;     /* another folder than /sys, or NULL */
    int argc;
    char **argv; /* for the log's header */
} dtm_options;

/* A failure says what is wrong and where to look. */
bool dtm_options_parse(int argc, char **argv, dtm_options *out, dtm_status *status);

/* What --help prints: in general, or of a command. */
void dtm_options_help(const dtm_options *options);

#endif
