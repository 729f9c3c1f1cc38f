#include "runtime/options.h"

#include "runtime/number.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- help ---- */

static const char overview[] =
    "%s: a program compiled by dtmc. It carries the plan of what each rank does, and the kernels.\n"
    "\n"
    "    mpirun -n N %s train --data corpus.txt      N is the product of the mesh's axes\n"
    "    %s train --data corpus.txt --local          all ranks as threads of this process\n"
    "\n"
    "commands\n"
    "    train     train, from the program's initial weights or those of a file\n"
    "    eval      the mean loss over the data, forward only\n"
    "    info      the program, its mesh, parameters, memory of a rank, hash of the plan\n"
    "    probe     the RDMA ports of this machine, or of all that mpirun starts it on, and what is wrong with them\n"
    "\n"
    "`%s COMMAND --help` tells more; --version prints versions.\n"
    "\n"
    "The exit status is 0 if all went well, else 1 with one line on stderr that says what was wrong. A rank that "
    "fails\n"
    "ends all. Files appear under their names only when they are complete.\n";

static const char train_text[] =
    "%s train: trains for as many steps as the program says, or --steps.\n"
    "\n"
    "At each step it reads a batch, computes the loss and its gradient, and updates the weights. On a terminal a line\n"
    "shows step, loss, gradient norm, tokens a second and the time left.\n"
    "\n"
    "data\n"
    "    --data F               bytes as tokens; with --tokens, a flat file of tokens; or, if its name ends in\n"
    "                           .safetensors, a tensor for each input of the program under its name, steps first\n"
    "    --tokens u16|u32       F is a flat file of such tokens, little endian\n"
    "    --seed N               of first weights, order of the data, dropout (default: the program's)\n"
    "    --steps N              how many steps\n"
    "\n"
    "    The order of a flat file's samples depends on seed and step alone, never on the number of ranks. No sample "
    "is\n"
    "    left out or comes twice in an epoch. Each rank reads only its part.\n"
    "\n"
    "weights\n"
    "    --load F.safetensors           begin with these: every weight of the program, whole, under its name\n"
    "    --save-weights F.safetensors   the weights after the last step, whole, whatever the mesh\n"
    "    --save-grads F.safetensors     the gradients of the last step, before clipping\n"
    "\n"
    "to try a machine that is not there\n"
    "    --simulate             with --local: kernels do not compute but sleep for the time that the program's machine\n"
    "                           needs by the cost model; losses mean nothing. With --links, two cores show how many\n"
    "                           ranks would spend their time\n"
    "\n"
    "what it tells\n"
    "    --log F.jsonl          one JSON object a line: a header that records the run, then one a step\n"
    "    --profile              at the end, where the time went: by kind of work, beside what the cost model predicts for\n"
    "                           the program's machine, and by operator\n"
    "    --trace F.json         what every rank did when, and what it sent: for Perfetto or Chrome's tracing, all ranks\n"
    "                           on one clock\n"
    "    --trace-steps A-B      of these steps alone, counted from 1\n"
    "    --quiet                no progress on stderr\n"
    "\n";

static const char eval_text[] =
    "%s eval: the mean loss over the data, forward only, in the file's order; prints it on stdout.\n"
    "\n"
    "    --data F               as for train; a flat file is read once, to its last whole batch\n"
    "    --tokens u16|u32       F is a flat file of such tokens, little endian\n"
    "    --load F.safetensors   the weights; without it, the program's initial ones\n"
    "    --steps N              only the first N batches; there must be as many\n"
    "    --seed N               of the initial weights\n"
    "    --log F.jsonl          a header, then the loss of each batch\n"
    "    --profile              at the end, where the time went\n"
    "    --trace F.json, --trace-steps A-B   as for train\n"
    "    --quiet                no progress on stderr\n"
    "\n";

static const char shared_text[] =
    "how it runs\n"
    "    --local                ranks are threads of this process; without mpirun\n"
    "    --links F              with --local: messages take as long as the `machine { .. }` section of F says, by the\n"
    "                           bandwidth and latency of its node and network\n"
    "    --threads N            threads of a rank; by default the node's cores are shared among its ranks, and pinned\n"
    "    --timeout S            seconds after which an operation between ranks counts as hung: it is named, with the\n"
    "                           ranks that came and those that did not, and the run ends (default 600; 0: never)\n"
    "    --check-replicas       a debugging aid: after every step, what several ranks hold alike is compared bit for "
    "bit\n"
    "    --disturb N            a debugging aid, with --local: messages come late, by times drawn by N, and who does not\n"
    "                           wait for them is found out\n"
    "\n"
    "links between nodes (RDMA: InfiniBand, RoCE)\n"
    "    --p2p verbs            messages of a pipeline go by RDMA writes through libibverbs, from arena to arena; else they go\n"
    "                           as everything does (default)\n"
    "    --require-links        a port that is not as it should be (`probe --help`) is an error; else, where there are several\n"
    "                           nodes, it is a warning\n"
    "    --verbs-lib DIR        the folder with libibverbs.so.1; by default the loader finds it\n"
    "\n"
    "of a program built with --target cuda\n"
    "    --cuda-libs DIR        the folder with libcuda, libnvrtc, libcublasLt and libnccl; by default the loader finds them,\n"
    "                           or they are in /usr/local/cuda/lib64\n"
    "    --cache DIR            the folder that keeps compiled kernels (default ~/.cache/dtm)\n"
    "    --no-graph             launch each kernel of each step by itself; else the second step is captured as a graph, and\n"
    "                           later ones are launches of that\n"
    "    --tune                 measure at the start which algorithm of libcublasLt is the fastest for each product; the choice is\n"
    "                           kept with the compiled kernels. It changes the last bits: log and weights name it\n"
    "    --generated-products   matrix products by dtm's own kernel rather than by libcublasLt, to compare the two\n";

static const char info_text[] =
    "%s info: prints the program, its mesh, parameters, memory of a rank by kind, settings, and the plan's hash.\n"
    "\n"
    "    --json                 the same as one JSON object\n"
    "    --devices              instead, what --target cuda would find here: the libraries, each with its path, version and\n"
    "                           build-id, and the GPUs; what is missing, and what would serve. The exit status is 1 if\n"
    "                           anything is missing\n"
    "    --cuda-libs DIR        with --devices: the folder with libcuda, libnvrtc, libcublasLt and libnccl; by default the\n"
    "                           loader finds them, or they are in /usr/local/cuda/lib64\n"
    "\n"
    "It needs no mpirun and no data.\n";

static const char probe_text[] =
    "%s probe: what libibverbs and sysfs tell of each port of each RDMA adapter: state, rate, GIDs, errors, and how far each\n"
    "GPU is from it over PCI (PIX, PXB, PHB, NODE, SYS, as nvidia-smi has them). With mpirun, of all nodes.\n"
    "\n"
    "A port that is not active, or slower than the fastest of its peers (same vendor, part and link layer, on any node), or\n"
    "whose error counters rise, or that has no usable GID, is one warning on stderr.\n"
    "\n"
    "    --json                 one JSON object\n"
    "    --interval S           error counters are read twice, so many seconds apart (default 1)\n"
    "    --require-links        a warning is an error, and no adapter is one\n"
    "    --verbs-lib DIR        the folder with libibverbs.so.1; by default the loader finds it\n"
    "    --sysfs DIR            a debugging aid: another folder than /sys\n";

void dtm_options_help(const dtm_options *options) {
    const char *name = options->program, *about = options->about;
    if (!about)
        printf(overview, name, name, name, name);
    else if (!strcmp(about, "train"))
        printf(train_text, name);
    else if (!strcmp(about, "eval"))
        printf(eval_text, name);
    else if (!strcmp(about, "probe"))
        printf(probe_text, name);
    else
        printf(info_text, name);
    if (about && strcmp(about, "info") != 0 && strcmp(about, "probe") != 0) fputs(shared_text, stdout);
}

/* ---- flags ---- */

typedef enum flag_kind {
    FLAG_SWITCH,
    FLAG_TEXT,
    FLAG_FOLDER,
    FLAG_WHOLE,
    FLAG_SEED,
    FLAG_THREADS,
    FLAG_SECONDS,
    FLAG_INTERVAL,
    FLAG_P2P,
    FLAG_STEPS,
    FLAG_TOKENS
} flag_kind;

enum { FOR_TRAIN = 1, FOR_EVAL = 2, FOR_INFO = 4, FOR_PROBE = 8, FOR_RUN = FOR_TRAIN | FOR_EVAL };

typedef struct flag {
    const char *name;
    flag_kind kind;
    int commands;
    void *target;
} flag;

enum { FLAGS = 32 };

static void flags_of(dtm_options *o, flag flags[FLAGS]) {
    const flag all[FLAGS] = {
        {"--data", FLAG_TEXT, FOR_RUN, &o->data},
        {"--tokens", FLAG_TOKENS, FOR_RUN, NULL},
        {"--steps", FLAG_WHOLE, FOR_RUN, &o->steps},
        {"--seed", FLAG_SEED, FOR_RUN, NULL},
        {"--threads", FLAG_THREADS, FOR_RUN, NULL},
        {"--local", FLAG_SWITCH, FOR_RUN, &o->local},
        {"--log", FLAG_TEXT, FOR_RUN, &o->log},
        {"--load", FLAG_TEXT, FOR_RUN, &o->load},
        {"--save-weights", FLAG_TEXT, FOR_TRAIN, &o->save_weights},
        {"--save-grads", FLAG_TEXT, FOR_TRAIN, &o->save_grads},
        {"--profile", FLAG_SWITCH, FOR_RUN, &o->profile},
        {"--quiet", FLAG_SWITCH, FOR_RUN, &o->quiet},
        {"--check-replicas", FLAG_SWITCH, FOR_RUN, &o->check_replicas},
        {"--disturb", FLAG_WHOLE, FOR_RUN, &o->disturb},
        {"--timeout", FLAG_SECONDS, FOR_RUN, NULL},
        {"--trace", FLAG_TEXT, FOR_RUN, &o->trace},
        {"--trace-steps", FLAG_STEPS, FOR_RUN, NULL},
        {"--links", FLAG_TEXT, FOR_RUN, &o->links},
        {"--simulate", FLAG_SWITCH, FOR_TRAIN, &o->simulate},
        {"--json", FLAG_SWITCH, FOR_INFO | FOR_PROBE, &o->json},
        {"--devices", FLAG_SWITCH, FOR_INFO, &o->devices},
        {"--cuda-libs", FLAG_FOLDER, FOR_RUN | FOR_INFO, &o->cuda_libs},
        {"--cache", FLAG_FOLDER, FOR_RUN, &o->cache},
        {"--no-graph", FLAG_SWITCH, FOR_RUN, &o->no_graph},
        {"--generated-products", FLAG_SWITCH, FOR_RUN, &o->generated_products},
        {"--p2p", FLAG_P2P, FOR_RUN, NULL},
        {"--tune", FLAG_SWITCH, FOR_RUN, &o->tune},
        {"--require-links", FLAG_SWITCH, FOR_RUN | FOR_PROBE, &o->require_links},
        {"--interval", FLAG_INTERVAL, FOR_PROBE, NULL},
        {"--verbs-lib", FLAG_FOLDER, FOR_RUN | FOR_INFO | FOR_PROBE, &o->verbs_lib},
        {"--sysfs", FLAG_FOLDER, FOR_RUN | FOR_INFO | FOR_PROBE, &o->sysfs},
        {NULL, FLAG_SWITCH, 0, NULL},
    };
    memcpy(flags, all, sizeof all);
}

static bool whole(const char *text, int64_t least, int64_t most, int64_t *out) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most) return false;
    *out = value;
    return true;
}

/* "3" or "3-5". */
static bool steps(const char *text, int64_t *first, int64_t *last) {
    char begin[24];
    const char *dash = strchr(text, '-');
    size_t length = dash ? (size_t)(dash - text) : strlen(text);
    snprintf(begin, sizeof begin, "%.*s", (int)length, text);
    if (length >= sizeof begin || !whole(begin, 1, INT64_MAX / 2, first)) return false;
    *last = *first;
    return !dash || whole(dash + 1, *first, INT64_MAX / 2, last);
}

static bool seed(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-') return false;
    *out = value;
    return true;
}

static bool set(dtm_options *o, const flag *f, const char *value, dtm_status *status) {
    int64_t number;
    double *seconds;
    const char *end;
    switch (f->kind) {
    case FLAG_SWITCH:
        *(bool *)f->target = true;
        return true;
    case FLAG_TEXT:
        *(const char **)f->target = value;
        return *value || dtm_status_fail(status, "%s wants the name of a file", f->name);
    case FLAG_FOLDER:
        *(const char **)f->target = value;
        return *value || dtm_status_fail(status, "%s wants the name of a folder", f->name);
    case FLAG_WHOLE:
        if (whole(value, 1, INT64_MAX / 2, f->target)) return true;
        return dtm_status_fail(status, "%s wants a whole number from 1, not `%s`", f->name, value);
    case FLAG_SEED:
        o->seed_given = true;
        if (seed(value, &o->seed)) return true;
        return dtm_status_fail(status, "%s wants a whole number from 0 to 2^64 - 1, not `%s`", f->name, value);
    case FLAG_THREADS:
        if (!whole(value, 1, 1024, &number))
            return dtm_status_fail(status, "%s wants a whole number from 1 to 1024, not `%s`", f->name, value);
        o->threads = (int)number;
        return true;
    case FLAG_P2P:
        o->verbs = !strcmp(value, "verbs");
        if (o->verbs || !strcmp(value, "default")) return true;
        return dtm_status_fail(status, "%s wants verbs or default, not `%s`", f->name, value);
    case FLAG_STEPS:
        if (steps(value, &o->trace_first, &o->trace_last)) return true;
        return dtm_status_fail(status, "%s wants a step or steps, 3 or 3-5, counted from 1, not `%s`", f->name, value);
    case FLAG_SECONDS:
    case FLAG_INTERVAL:
        seconds = f->kind == FLAG_SECONDS ? &o->deadline : &o->interval;
        end = dtm_number_read(value, seconds);
        *(f->kind == FLAG_SECONDS ? &o->deadline_given : &o->interval_given) = true;
        if (end && !*end && *seconds >= 0 && isfinite(*seconds)) return true;
        return dtm_status_fail(status, "%s wants a number of seconds, not `%s`", f->name, value);
    default:
        o->format_given = true;
        o->format = !strcmp(value, "u32") ? DTM_DATA_U32 : DTM_DATA_U16;
        if (!strcmp(value, "u16") || !strcmp(value, "u32")) return true;
        return dtm_status_fail(status, "%s wants u16 or u32, not `%s`", f->name, value);
    }
}

/* Edits that make one word of the other: what a mistyped flag is matched by. */
static int distance(const char *a, const char *b) {
    enum { MOST = 24 };
    int row[MOST + 1], n = (int)strlen(a), m = (int)strlen(b);
    if (n > MOST || m > MOST) return MOST;
    for (int j = 0; j <= m; j++) row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < step ? change : step;
        }
    }
    return row[m];
}

static bool unknown(const char *word, const flag *flags, int commands, dtm_status *status) {
    const char *nearest = NULL;
    int least = 4;
    for (const flag *f = flags; f->name; f++)
        if ((f->commands & commands) && distance(word, f->name) < least) least = distance(word, nearest = f->name);
    if (nearest) return dtm_status_fail(status, "there is no flag `%s`: did you mean %s?", word, nearest);
    return dtm_status_fail(status, "`%s` is not understood here: --help lists the flags", word);
}

/* Takes the flag at argv[*at], "--steps 5" or "--steps=5". */
static bool take(dtm_options *o, const flag *flags, int commands, int *at, dtm_status *status) {
    char *word = o->argv[*at], *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    for (const flag *f = flags; f->name; f++) {
        if (strlen(f->name) != length || strncmp(f->name, word, length) != 0) continue;
        if (!(f->commands & commands))
            return dtm_status_fail(status, "%s does not go with the command `%s`", f->name, o->argv[1]);
        if (f->kind == FLAG_SWITCH)
            return equals ? dtm_status_fail(status, "%s takes no value", f->name) : set(o, f, NULL, status);
        if (equals) return set(o, f, equals + 1, status);
        if (*at + 1 >= o->argc) return dtm_status_fail(status, "%s wants a value", f->name);
        return set(o, f, o->argv[++*at], status);
    }
    return unknown(word, flags, commands, status);
}

/* Whether two paths are one file, also one that is not there yet. */
static bool is_one_file(const char *a, const char *b) {
    struct stat x, y;
    if (!strcmp(a, b)) return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Nothing is written over what is read, or over what else is written. --load may be what --save-weights replaces: it has been
 * read by then. */
static bool check_files(const dtm_options *o, dtm_status *status) {
    const struct {
        const char *name, *path;
        bool written;
    } files[] = {{"--data", o->data, false},
                 {"--links", o->links, false},
                 {"this program", "/proc/self/exe", false},
                 {"--log", o->log, true},
                 {"--save-weights", o->save_weights, true},
                 {"--save-grads", o->save_grads, true},
                 {"--trace", o->trace, true}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (size_t k = 0; k < i && files[i].written; k++)
            if (files[i].path && files[k].path && is_one_file(files[i].path, files[k].path))
                return dtm_status_fail(status, "%s would write over %s, which is %s; name another file", files[i].name, files[i].path,
                                       files[k].name);
    return true;
}

static bool finish(dtm_options *o, dtm_status *status) {
    if ((o->verbs_lib || o->sysfs) && o->command == DTM_COMMAND_INFO && !o->devices)
        return dtm_status_fail(status, "%s is for --devices: add it", o->verbs_lib ? "--verbs-lib" : "--sysfs");
    if (o->cuda_libs && o->command == DTM_COMMAND_INFO && !o->devices) return dtm_status_fail(status, "--cuda-libs is for --devices: add it");
    if (o->command != DTM_COMMAND_TRAIN && o->command != DTM_COMMAND_EVAL) return true;
    if (o->tune && o->generated_products) return dtm_status_fail(status, "--tune chooses among algorithms of libcublasLt, which --generated-products does without");
    if (o->trace_first && !o->trace)
        return dtm_status_fail(status, "--trace-steps chooses steps of --trace F.json, which is not there");
    if (o->links && !o->local)
        return dtm_status_fail(status, "--links is for --local: with mpirun messages go over the links that there are");
    const char *timed = o->links ? "--links" : o->disturb ? "--disturb" : o->simulate ? "--simulate" : NULL;
    if (o->verbs && timed) return dtm_status_fail(status, "with --p2p verbs messages take the time of an adapter: leave out %s", timed);
    if (o->disturb && !o->local) return dtm_status_fail(status, "--disturb is for --local: add it");
    if (o->simulate && !o->local) return dtm_status_fail(status, "--simulate is for --local: add it");
    if (o->simulate && o->threads) return dtm_status_fail(status, "with --simulate nothing is computed: leave out --threads");
    const char *file = o->load ? "--load" : o->save_weights ? "--save-weights" : o->save_grads ? "--save-grads" : NULL;
    const char *aid = file ? file : o->check_replicas ? "--check-replicas" : o->disturb ? "--disturb" : NULL;
    if (o->simulate && aid) return dtm_status_fail(status, "with --simulate nothing is computed: leave out %s", aid);
    if (!o->data) return dtm_status_fail(status, "%s wants --data F: a text, or tokens (--help)", o->argv[1]);
    bool tensors = dtm_data_is_safetensors(o->data);
    if (tensors && o->format_given)
        return dtm_status_fail(status, "--tokens is for flat files; %s says itself what it holds", o->data);
    if (tensors) o->format = DTM_DATA_SAFETENSORS;
    return check_files(o, status);
}

bool dtm_options_parse(int argc, char **argv, dtm_options *out, dtm_status *status) {
    static const struct {
        const char *name;
        dtm_command command;
        int bit;
    } commands[] = {{"train", DTM_COMMAND_TRAIN, FOR_TRAIN}, {"eval", DTM_COMMAND_EVAL, FOR_EVAL},
                    {"info", DTM_COMMAND_INFO, FOR_INFO},    {"probe", DTM_COMMAND_PROBE, FOR_PROBE}, {"help", DTM_COMMAND_HELP, 0},
                    {"--help", DTM_COMMAND_HELP, 0},         {"-h", DTM_COMMAND_HELP, 0},
                    {"--version", DTM_COMMAND_VERSION, 0}};
    memset(out, 0, sizeof *out);
    out->program = argc > 0 ? argv[0] : "program";
    out->steps = -1;
    out->argc = argc;
    out->argv = argv;
    if (argc < 2) return dtm_status_fail(status, "say what to do: train, eval, info or probe (--help tells more)");
    int bit = -1;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name)) out->command = commands[i].command, bit = commands[i].bit;
    if (bit < 0) return dtm_status_fail(status, "there is no command `%s`: say train, eval, info or probe", argv[1]);
    flag flags[FLAGS];
    flags_of(out, flags);
    for (int i = 2; i < argc && bit; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            out->command = DTM_COMMAND_HELP;
            out->about = argv[1];
            return true;
        }
        if (!take(out, flags, bit, &i, status)) return false;
    }
    if (!bit && argc > 2) {
        for (int i = 0; i < 4 && out->command == DTM_COMMAND_HELP; i++)
            if (!strcmp(argv[2], commands[i].name)) out->about = argv[2];
        const char *extra = !out->about ? argv[2] : argc > 3 ? argv[3] : NULL;
        if (extra) return dtm_status_fail(status, "`%s` is not understood after `%s`", extra, out->about ? out->about : argv[1]);
    }
    return finish(out, status);
}
