/* Inside the interpreter: what interpret*.c share. Values live in slots, one for each copy of each value (copies of all
 * enclosing repeats and microbatch loops, flattened); a slot has one block a rank. Blocks are allocated when first
 * written and written over by the next step. Nothing outside passes/interpret*.c includes this. */
#ifndef DTM_PASSES_INTERPRET_STATE_H
#define DTM_PASSES_INTERPRET_STATE_H

#include "ir/calls.h"
#include "passes/interpret.h"

enum {
    DTM_NO_LOOP = 255,
    DTM_MAX_LOOPS = 32, /* names of repeats in a module */
    DTM_MAX_DEPTH = 6,  /* loops in loops */
    DTM_NEST_DIMS = 20, /* loops of one operator */
    DTM_NEST_TENSORS = 12,
    DTM_INTERPRET_BUDGET = 596,
    DTM_INTERPRET_STORAGE = 597,
    DTM_INTERPRET_BROKEN = 598,
    DTM_INTERPRET_DIFFERS = 599,
};

/* The block of a tensor that one rank has. */
typedef struct dtm_extent {
    int64_t begin[DTM_MAX_RANK], size[DTM_MAX_RANK];
    int64_t elements;
} dtm_extent;

/* A block with its data and type. */
typedef struct dtm_tile {
    const dtm_type_data *type;
    const dtm_extent *extent;
    double *data;
} dtm_tile;

typedef struct dtm_loop {
    dtm_string name;
    int64_t copies;
    int64_t first;   /* the number of the first in names */
    int64_t current; /* -1: not inside */
} dtm_loop;

typedef struct dtm_slots {
    size_t base; /* the first of its slots */
    uint8_t depth;
    uint8_t loops[DTM_MAX_DEPTH]; /* outermost first */
} dtm_slots;

typedef struct dtm_pending_store {
    size_t slot; /* of the variable */
    dtm_type type;
    double **blocks; /* by rank */
} dtm_pending_store;

typedef struct dtm_kept {
    dtm_value value;
    size_t slot; /* at microbatch 0 */
} dtm_kept;

/* What a number computed in f32 is in a floating point dtype: to the nearest, ties to even; beyond the largest it is infinite. */
double dtm_round_to(dtm_dtype dtype, double x);

/* A tensor of a collective that is carried out apart. */
typedef struct dtm_on_its_way dtm_on_its_way;

/* The other ranks of a pipeline. */
typedef struct dtm_peers dtm_peers;

typedef struct dtm_run {
    const dtm_module *module;
    dtm_context *context;
    dtm_interpret_options options;
    dtm_interpretation *out;
    dtm_arena *arena;
    dtm_peers *peers; /* NULL: no pipeline */
    bool failed;
    int64_t step;

    int64_t ranks;
    int64_t *coordinates;               /* [rank][axis] */
    int64_t rank_strides[DTM_MAX_AXES]; /* how far ranks lie apart along an axis; 0 for a loop in time */
    int time_axis;                      /* an axis in time executed as a loop, or -1 */
    int64_t microbatches;               /* its size, or 1 */
    dtm_extent **extents;               /* [type], NULL until asked for: [microbatch][rank] */

    dtm_loop loops[DTM_MAX_LOOPS];
    size_t n_loops;
    uint8_t time_loop;    /* the microbatch loop, or DTM_NO_LOOP */
    dtm_op microbatch_op; /* the microbatch loop now executed, or 0 */
    bool first_call;      /* of its regions: sums over microbatches begin */
    dtm_loop_schedule *schedules; /* [op]: of a loop with an order, once it was run */
    double *sites;        /* [op]: of a dropout, its number; canonicalize counts in the same order */
    uint8_t *op_loops;    /* [op]: the loop that a repeat or microbatch operator is */
    dtm_slots *slots;     /* [value] */
    double **inputs;      /* [op]: whole inputs of this step */
    size_t n_slots;
    double **views;     /* [slot][rank]: the block to read */
    double **blocks;    /* [slot][rank]: the block it owns, to be written over by the next step */
    double **variables; /* [slot][rank]: weights and states, from step to step */

    dtm_pending_store *stores;
    size_t n_stores, cap_stores;
    dtm_kept *kept;
    size_t n_kept, cap_kept;
    bool *kept_before; /* [slot] */

    /* after memory: who wrote each byte of the arena last (slot + 1), and whose bytes a slot stands for */
    uint32_t *owners;
    dtm_loop_places places; /* of the loop with an order */
    uint32_t *owner_of;  /* [slot]: slot + 1, 0: not in the arena */
    int64_t *address_of; /* [slot]: where the bytes lie that it stands for */
    bool *stored;       /* [slot]: a variable whose new value has taken its place */
    dtm_op *early;      /* [op]: the last of the collectives that are started when this unit is done, or 0 */
    dtm_op *early_next; /* [op]: another one that is started with it, or 0 */
    dtm_on_its_way *on_their_way; /* interpret_apart.c */
    size_t n_on_their_way, cap_on_their_way, n_starts;
    int64_t *apart_offset;        /* [op]: where the workspace of what is carried out apart lies */
    int64_t workspace;            /* where that of all others lies */
    bool last_call;               /* of the region or loop over microbatches now executed: sums over them are complete */
    bool in_fused;      /* reads were checked where the region began, writes are marked where it ends */

    double *scratch; /* whole tensors of collectives */
    uint8_t *scratch_seen;
    int64_t scratch_elements;
} dtm_run;

/* One operator on one rank. */
typedef struct dtm_call {
    dtm_run *run;
    const dtm_op_data *op;
    int64_t rank;
    uint32_t n_operands, n_results;
    dtm_tile *operands, *results;
} dtm_call;

/* Fills the results' data. Reports an error and returns false where the operator cannot be executed. */
typedef bool dtm_interpret_rule(dtm_call *call);
/* By kind; NULL: interpret.c executes it itself. */
extern dtm_interpret_rule *const dtm_interpret_rules[DTM_OP_KINDS];

bool dtm_run_error(dtm_run *run, const dtm_op_data *op, const char *format, ...) DTM_PRINTF(3, 4);

/* ---- interpret_blocks.c: blocks, whole tensors, collectives ---- */

bool dtm_run_mesh(dtm_run *run); /* false: more ranks than max_elements */
void dtm_run_compute_extent(const dtm_run *run, const dtm_type_data *type, int64_t rank, int64_t microbatch,
                            dtm_extent *extent);
/* At the current microbatch of the loop over time, or at the one given. */
const dtm_extent *dtm_run_extent(dtm_run *run, dtm_type type, int64_t rank);
const dtm_extent *dtm_run_extent_at(dtm_run *run, dtm_type type, int64_t rank, int64_t microbatch);
int64_t dtm_run_elements(const dtm_run *run, const dtm_type_data *type);
/* The strides of the whole tensor, row-major. */
void dtm_whole_strides(const dtm_module *module, const dtm_type_data *type, int64_t *strides);
/* A rank's block cut from a whole tensor. */
void dtm_run_cut(const dtm_module *module, const dtm_type_data *type, const dtm_extent *extent, const double *whole,
                 double *block);
/* The axes that occur in the type: those of splits, and those it is pending on. */
uint16_t dtm_run_split_axes(const dtm_type_data *type);
/* The whole tensor of a value from the blocks of its ranks, terms summed; in `arena`. `slot` is that of microbatch 0
 * where the type depends on the axis in time, and its slots then lie `stride` apart. `seen`, if not NULL: by element, whether any rank
 * and microbatch had it, in `arena` too. */
double *dtm_run_assemble(dtm_run *run, dtm_type type, size_t slot, size_t stride, dtm_arena *arena, uint8_t **seen);
/* Whether all ranks that hold a value alike hold the same bits. */
bool dtm_run_check_alike(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot);
bool dtm_run_collective(dtm_run *run, const dtm_op_data *op);

/* ---- interpret_set_up.c ---- */

bool dtm_run_set_up(dtm_run *run);

/* ---- interpret_pipeline.c ---- */

/* One rank's program, as a thread of dtm_interpret_pipeline. */
dtm_interpretation *dtm_interpret_rank(const dtm_module *module, const dtm_interpret_options *options, dtm_peers *peers);
dtm_interpretation *dtm_interpret_pipeline(const dtm_module *module, const dtm_interpret_options *options);
bool dtm_run_send(dtm_run *run, const dtm_op_data *op);
bool dtm_run_receive(dtm_run *run, const dtm_op_data *op);
/* Whether a collective goes over the axis of a pipeline; executes it. */
bool dtm_run_meets(const dtm_run *run, const dtm_op_data *op);
bool dtm_run_meet(dtm_run *run, const dtm_op_data *op);

/* ---- interpret.c, for the others ---- */

static inline bool dtm_run_is_loop(dtm_op_kind kind) { return kind == DTM_OP_REPEAT || kind == DTM_OP_MICROBATCH; }
static inline const dtm_type_data *dtm_run_type_of(const dtm_run *run, dtm_value value) {
    return &run->module->types[run->module->values[value].type];
}

/* The slot of a value in the copies now executed; error: SIZE_MAX. */
size_t dtm_run_slot(dtm_run *run, const dtm_op_data *op, dtm_value value);
/* The block of a slot on a rank, for writing. */
double *dtm_run_block(dtm_run *run, size_t slot, dtm_type type, int64_t rank);

/* The slot of an operand, which must have been set; error: SIZE_MAX. */
size_t dtm_run_operand_slot(dtm_run *run, const dtm_op_data *op, dtm_value value);

/* Sets what a copy of a repeat begins with: carries, wherever they stand in its region. */
bool dtm_run_enter(dtm_run *run, dtm_region region);
/* An operator, and what starts when it is done. */
bool dtm_run_unit(dtm_run *run, dtm_op op);

/* ---- interpret_pairs.c ---- */

/* The calls of a pair, of which this is the first. */
bool dtm_run_pair(dtm_run *run, const dtm_loop_calls *calls, const dtm_loop_call *call);

/* ---- interpret_results.c: what is read and left behind, as whole tensors ---- */

/* The text of a name with `{layer}` replaced by the number of the copy. */
const char *dtm_run_path(dtm_run *run, dtm_string pattern);
/* Adds the whole tensor of a value, in the dimensions of another type, to a list of results. */
bool dtm_run_record(dtm_run *run, const dtm_op_data *op, dtm_tensors *list, const char *name, dtm_value value,
                    const dtm_type_data *as);
/* A value to be looked at after this step; all such values are then assembled. */
void dtm_run_keep(dtm_run *run, dtm_value value, size_t slot);
void dtm_run_assemble_kept(dtm_run *run);
/* Every copy of every weight and state: before the first step, and among the results after the last. */
void dtm_run_set_variables(dtm_run *run);
void dtm_run_save_variables(dtm_run *run);
/* `store`: takes effect when the step has ended. */
bool dtm_run_store(dtm_run *run, const dtm_op_data *op);
void dtm_run_take_stores(dtm_run *run);

/* ---- interpret_storage.c: who owns the bytes of the arena; nothing happens unless check_storage ---- */

bool dtm_storage_begin(dtm_run *run);
void dtm_storage_step(dtm_run *run);
void dtm_storage_write(dtm_run *run, dtm_value value, size_t slot);
/* What is carried out apart and starts after this unit, or is it: its results may be written from now on. */
bool dtm_storage_start(dtm_run *run, dtm_op unit);
/* Where it stands: what it wrote since then is still there. */
bool dtm_storage_started(dtm_run *run, const dtm_op_data *op);
/* `slot` stands for the bytes of `source` if they lie at the same address, else they are copied. */
bool dtm_storage_alias(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot, dtm_value source,
                       size_t source_slot);
bool dtm_storage_read(dtm_run *run, const dtm_op_data *op, dtm_value value, size_t slot);
bool dtm_storage_store(dtm_run *run, const dtm_op_data *op, dtm_value variable, size_t slot, dtm_value source,
                       size_t source_slot);

/* Where a value lies in the copies of its slot, and in how many bytes. */
int64_t dtm_storage_address(const dtm_run *run, dtm_value value, size_t slot);
int64_t dtm_storage_bytes(dtm_run *run, dtm_value value);

/* ---- interpret_apart.c: what is on its way meanwhile; called where storage is checked ---- */

void dtm_apart_begin(dtm_run *run);
/* A collective that is carried out apart starts, where it stands or ahead of that; then it stands here. */
bool dtm_apart_start(dtm_run *run, dtm_op op, bool stands);
bool dtm_apart_stands(dtm_run *run, const dtm_op_data *op);
/* Whether these bytes may be read by op, or be written by what makes a slot, now. */
bool dtm_apart_read(dtm_run *run, const dtm_op_data *op, dtm_value value, int64_t begin, int64_t bytes);
bool dtm_apart_write(dtm_run *run, dtm_value value, size_t slot, int64_t begin, int64_t bytes);
bool dtm_apart_end_step(dtm_run *run);
/* A unit of a pair takes its workspace, so far before that of all others; false: it needs none. And whether it has it still. */
bool dtm_workspace_take(dtm_run *run, dtm_op op, int64_t aside);
bool dtm_workspace_kept(dtm_run *run, dtm_op op, int64_t aside);

/* ---- interpret_rounding.c ---- */

/* Of what has been made, to its type or by lot, as the options say. */
void dtm_round_results(dtm_run *run, const dtm_op_data *op);
/* Up or down, with the odds that make the mean exact. */
void dtm_round_by_lot(const dtm_run *run, dtm_dtype dtype, int64_t elements, double *data);
/* What an operator of several steps, which rounds inside, may as well have read: each number up to so much of it more or less, by lot.
 * NULL: these are no numbers that are rounded. Freed by the caller. */
double *dtm_round_otherwise(const dtm_run *run, const dtm_tile *tile, double unit);

/* ---- interpret_data.c: weights, inputs, randomness ---- */

uint64_t dtm_hash_name(const char *name);
/* The first value of a weight or state, whole. */
void dtm_draw_variable(dtm_run *run, const dtm_op_data *op, const char *path, double *whole, int64_t elements);
void dtm_draw_input(dtm_run *run, const dtm_op_data *op, double *whole, int64_t elements);
/* Whether dropout keeps the element of the whole tensor. */
bool dtm_draw_keep(uint64_t seed, uint64_t site, int64_t step, int64_t copy, int64_t element, double p);
double dtm_learning_rate(const dtm_train *train, int64_t step);

#endif
