/* A simulated GPU: executes PTX text, thread by thread, and says where a kernel breaks the rules.
 *
 * A module is PTX text made into flat code; a function is one of its entries. Memory is what a device owns: ranges of the
 * host's memory, whose addresses are the device's, with a bit a byte that says whether it was ever written. A launch
 * declares the buffers that it may touch, each with direction and extent, and runs to its end in the caller's thread: one
 * launch on one memory at a time. Everything random is drawn from the launch's seed, so a report comes again.
 *
 *     struct sim_module *module = sim_module_load(text, strlen(text), error, sizeof error);
 *     const struct sim_function *function = sim_function_find(module, "saxpy");
 *     struct sim_launch launch = {.function = function, .grid = {4, 1, 1}, .block = {256, 1, 1}, .params = params, ..};
 *     sim_launch_run(memory, &launch, reports);
 *
 * Streams, events and copies are the caller's (a driver's) affair. Nothing here exits or prints. */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- modules and functions ---- */

/* NULL, and a line "PTX line N: .." in `error`, if the text has a form that is not known. Module variables (.global,
 * .const) live in the module, at sim_module_variable's address. */
struct sim_module *sim_module_load(const char *text, size_t length, char *error, size_t error_size);
void sim_module_free(struct sim_module *);
int sim_module_architecture(const struct sim_module *); /* 80 of `.target sm_80`; 90 of sm_90a */
const struct sim_function *sim_function_find(const struct sim_module *, const char *name);
const struct sim_function *sim_function_at(const struct sim_module *, int index); /* NULL past the last */
void *sim_module_variable(const struct sim_module *, const char *name, size_t *size);

struct sim_param { uint32_t offset, size; };
struct sim_attributes {
    const char *name;
    int registers;         /* 0: PTX does not say */
    uint32_t static_shared; /* bytes */
    uint32_t local;        /* bytes a thread */
    uint32_t max_threads;  /* product of .maxntid or .reqntid; 0 if there is none */
    bool exact_threads;    /* .reqntid */
    uint32_t min_blocks;   /* .minnctapersm, 0 if there is none */
    bool dynamic_shared;   /* declares `.extern .shared` */
    int n_params;
    const struct sim_param *params;
    uint32_t params_size;  /* up to the last parameter's end */
};
struct sim_attributes sim_function_attributes(const struct sim_function *);

/* ---- memory ---- */

struct sim_memory *sim_memory_new(void);
void sim_memory_free(struct sim_memory *); /* the ranges' bytes stay the caller's */
/* Ranges must not overlap: false if they do. Bytes are taken as undefined. */
bool sim_memory_add(struct sim_memory *, void *base, size_t size);
/* The same, of addresses that are none of the host's: their bytes lie at `bytes`. */
bool sim_memory_add_at(struct sim_memory *, void *base, void *bytes, size_t size);
bool sim_memory_remove(struct sim_memory *, void *base);
/* Says that bytes were written (a copy from the host) or are rubbish from now on; false outside all ranges. */
bool sim_memory_define(struct sim_memory *, const void *at, size_t size, bool defined);
/* How many bytes from `at` on are defined, at most `size`. */
size_t sim_memory_defined(const struct sim_memory *, const void *at, size_t size);

/* ---- launches ---- */

enum { SIM_READ = 1, SIM_WRITE = 2 };
struct sim_buffer {
    const char *name;
    const void *base;
    size_t size;
    int direction; /* SIM_WRITE alone: undefined before the launch, must be whole after */
};

enum sim_order { SIM_FORWARD, SIM_REVERSE, SIM_RANDOM };
enum sim_copies { SIM_AT_ISSUE, SIM_AT_WAIT, SIM_BY_LOT }; /* when cp.async's bytes land */

struct sim_launch {
    const struct sim_function *function;
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared; /* bytes */
    const void *params;      /* the parameter block, as sim_attributes lays it out */
    size_t params_size;
    const struct sim_buffer *buffers; /* NULL: every range, both ways (nothing is checked but that it exists) */
    int n_buffers;
    const char *name; /* in reports; NULL: the function's */
    uint64_t seed;
    enum sim_order warps;   /* which warp of a block goes first; random ones take turns */
    bool random_groups;     /* of diverged lanes any goes first, else those at the lowest pc */
    enum sim_order blocks;  /* in which order blocks start */
    int resident;           /* blocks at a time, 0: 2 */
    enum sim_copies copies;
    bool perturb;           /* .approx results are off by as much as the ISA allows, by seed */
    bool unchecked;         /* no race check (bounds and alignment stay): for measuring */
    uint64_t patience;      /* warp instructions without a store or an end until it is a deadlock; 0: 50 million */
    uint64_t limit;         /* warp instructions in all; 0: none */
    bool count;             /* sectors and conflicts of banks too */
    uint8_t *ran;           /* NULL, or a byte a line of the PTX, up to n_lines: 1 where an instruction ran */
    int n_lines;
    struct sim_extent *touched; /* NULL, or one for each buffer: filled */
};

struct sim_counts { /* what a launch did */
    uint64_t instructions;            /* of warps */
    uint64_t read_bytes, write_bytes; /* of global memory, as asked by lanes */
    uint64_t mma, barriers;
    /* with sim_launch.count alone */
    uint64_t read_sectors, write_sectors;     /* of 32 bytes of global memory, each warp's access by itself */
    uint64_t shared_accesses, shared_repeats; /* repeats: for conflicts of banks */
    uint64_t copy_repeats;                    /* those of ldmatrix and cp.async */
};
/* What of a buffer was touched, as offsets; high is 0 where nothing was. */
struct sim_extent { size_t read_low, read_high, write_low, write_high; };

enum sim_check {
    SIM_BOUNDS, SIM_ALIGNMENT, SIM_DEFINED, SIM_RACE, SIM_GRID_RACE, SIM_BARRIER, SIM_MASK, SIM_DEADLOCK, SIM_ASYNC, SIM_TRAP,
    SIM_LIMIT, SIM_CHECKS
};
const char *sim_check_name(enum sim_check);

/* One access: who, where in the PTX, where in the source. `source` is a chain "file:line < file:line" of inlining. */
struct sim_access {
    uint32_t block[3], thread[3];
    int line; /* of the PTX, 0: none */
    char source[160];
};
struct sim_report {
    enum sim_check check;
    char launch[64];
    char text[224];
    struct sim_access access, other; /* other.line = 0: there is none */
    uint64_t times;                  /* how often the same instruction met it */
};
enum { SIM_MAX_REPORTS = 32 };
struct sim_reports {
    int n;
    struct sim_report report[SIM_MAX_REPORTS]; /* later ones are only counted */
    uint64_t total;
    struct sim_counts counts; /* of the last launch */
};

/* Runs a launch to its end: true if it came there. False after a barrier that cannot be met, a trap, or limits broken
 * (threads, parameters). Reports are added to `reports`; a launch is right if it returns true and adds none. */
bool sim_launch_run(struct sim_memory *, const struct sim_launch *, struct sim_reports *reports);
void sim_report_print(const struct sim_report *, FILE *);

#endif
