/* What the memory pass and code generation must both know of a module that runs: the order of execution, which values lie
 * in memory, which operators move no bytes, what a kernel may overwrite, and what workspace it needs beside its operands
 * and results.
 *
 * Storage. A value of a loop (repeat, microbatch) has a slot a copy of its innermost loop, or shares one; dtm_storage
 * says where. `i` there is the copy's number, also in a reversed repeat; in a repeat inside repeats all copies are counted
 * through. The arena ends with one workspace that all
 * operators share, as they run one after another, of dtm_workspace_most bytes, and constants of dtm_constants_bytes. */
#ifndef DTM_STORAGE_H
#define DTM_STORAGE_H

#include "ir/ir.h"
#include "runtime/comm/algorithm.h"

enum { DTM_STORAGE_ALIGN = 64 };

static inline int64_t dtm_storage_round(int64_t bytes) {
    return (bytes + DTM_STORAGE_ALIGN - 1) / DTM_STORAGE_ALIGN * DTM_STORAGE_ALIGN;
}

static inline bool dtm_is_loop(dtm_op_kind kind) { return kind == DTM_OP_REPEAT || kind == DTM_OP_MICROBATCH; }

/* Positions of operators in execution order, by op. A loop covers [begin, end] of its body; a fused region and all that
 * stands in it have one position; elsewhere begin = end. */
typedef struct dtm_order {
    int64_t *begin, *end, length;
} dtm_order;
dtm_order dtm_order_of(const dtm_module *module, dtm_arena *arena);

/* The fused operator op stands in, or op itself: what runs as one. */
dtm_op dtm_unit_of(const dtm_module *module, dtm_op op);

/* By value: whether it lies in memory. Constants do not, nor does what is used only in the fused region that sets it, nor a
 * product that is only summed over microbatches: it is added where its sum lies. */
bool *dtm_stored(const dtm_module *module, dtm_arena *arena);

/* Whether the result is the operand's bytes, seen under another type: rename, split, merge, and a term along a pipeline (as_term
 * with `own`), which is what the rank has. */
bool dtm_is_alias(const dtm_module *module, dtm_op op);
/* The value whose bytes these are. */
dtm_value dtm_root_of(const dtm_module *module, dtm_value value);

/* Passes over a row that a fused kernel makes: a reduction's result is known one level after its operand. `levels` is by
 * index in the body; the value of body op i is computed in pass levels[i] (+ 1 for the readers of a reduction). */
int dtm_fused_levels(const dtm_module *module, dtm_op fused, int *levels);

bool dtm_is_reduction(dtm_op_kind kind);

/* Whether every element of the result comes from one element of each operand: the rows of the factor rule `pointwise`. */
bool dtm_is_elementwise(dtm_op_kind kind);

/* Whether it computes elements, in f32, and rounds them to the type of its result; what moves elements, or casts, keeps their type. */
bool dtm_computes(dtm_op_kind kind);

/* Whether it makes values of values and does nothing else: it may stand anywhere between what it reads and what reads it. */
bool dtm_only_computes(dtm_op_kind kind);

/* Whether a kernel computes it again rather than keep it: an operation or two for each element. */
bool dtm_is_cheap(dtm_op_kind kind);

/* Whether the kernel of `unit` reads each element of `operand` only before it writes the same element of `result`, so that
 * both may be one storage. */
bool dtm_may_overwrite(const dtm_module *module, dtm_op unit, dtm_value result, dtm_value operand);

/* The dimension along which the kernel of attention or rope runs in operand `index` (results count on), which has to be the
 * last there. 0: none, or it is the last. Such a tensor is packed in the workspace, or made there, in f32; and so is one of halves. */
dtm_dim dtm_packed_along(const dtm_module *module, dtm_op op, uint32_t index);
int64_t dtm_packed_bytes(const dtm_module *module, dtm_value value);

/* Elements of a sum over everything are added in this many chunks at most, each by one thread, then chunk by chunk. The
 * chunks of one sum lie in the workspace; in the update region each sum has a place of its own for them, a slot a copy, so
 * that those of all weights can be taken together. */
enum { DTM_CHUNKS = 256 };
/* Bytes of these places of a unit, in one copy, and how many copies there are; 0: its sums are none over everything, or not
 * of the update. */
int64_t dtm_update_chunk_bytes(const dtm_module *module, dtm_op unit, int64_t *copies);

/* Sums along columns: reductions over the first dimensions of a tensor, of which the last (`kept`) are left. A kernel runs
 * over the tensor row by row; its rows are cut into DTM_COLUMN_CHUNKS chunks at most, of DTM_COLUMN_ROWS at least, each
 * summed by one thread into a row of doubles in the workspace, then chunk by chunk. So the rest of the kernel may be
 * elementwise or reduce rows. */
enum { DTM_COLUMN_CHUNKS = 64, DTM_COLUMN_ROWS = 16 };
/* How many last dimensions of its operand the reduction leaves; 0: it is none along columns, or has too few rows. */
int dtm_column_kept(const dtm_module *module, dtm_op op);

/* What a collective packs its blocks into, in the workspace: bytes of one rank, -1 where they are in place already. An
 * exchange of one tensor packs what it sends in the memory of its result where that is large enough, and so needs three
 * blocks in all: operand, result, and what is received. */
typedef struct dtm_staging {
    int64_t in_bytes, out_bytes;
    bool in_place;   /* what it makes comes where it has packed its operands; out_bytes is then 0 */
    bool in_result;  /* in_bytes is then -1 */
    bool handed_on;  /* both are then -1: it works where another has packed what it takes (dtm_goes_on_from) */
} dtm_staging;
bool dtm_runs_collective(dtm_op_kind kind);
dtm_collective_kind dtm_collective_kind_of(dtm_op_kind kind);
/* The algorithm that memory has written down as a flag; where there is but one, that. */
dtm_algorithm dtm_collective_algorithm(const dtm_op_data *op);
/* Bytes of scratch that a collective takes, the most of any rank. */
int64_t dtm_collective_scratch(const dtm_module *module, dtm_op op, dtm_algorithm algorithm);
dtm_staging dtm_staging_of(const dtm_module *module, dtm_op op);

/* Streams are numbered from 1. The first has what only ranks with one program meet in, the others sums along a pipeline. */
enum { DTM_FIRST_STREAM_OF_SUMS = 2, DTM_STREAMS_OF_SUMS = DTM_STREAMS + 1 - DTM_FIRST_STREAM_OF_SUMS };
/* Whether a collective is carried out apart (`apart = 1`: on the stream 1), beside what follows it. It is started at dtm_early_place, else where it
 * stands; in a loop over microbatches always there, and what it makes is then touched before its copy of the loops around it ends. */
bool dtm_is_apart(const dtm_module *module, dtm_op op);
/* Where the operands of a collective after other regions are complete: the unit that makes the last of them, where all are made in
 * one region, in repeats like its own, or where the collective starts that it goes on from; it may stand in a loop over microbatches before the collective, and is then that of the
 * last one. 0: there is none, or it stands in the collective's own region. */
dtm_op dtm_early_place(const dtm_module *module, dtm_op op);
/* The collective, carried out apart in the same region, whose results are all that another takes: the other goes on from it without
 * the rank, if it is carried out apart too. So it is where there is one result and neither of both is packed; and where one bucket
 * takes all that another has, in its order, and nothing else reads that: as it is packed. 0: none. */
dtm_op dtm_goes_on_from(const dtm_module *module, dtm_op op);
/* The bucket, carried out apart, that takes what this one, carried out apart, has packed: it is not unpacked between. 0: none. */
dtm_op dtm_handed_on_to(const dtm_module *module, dtm_op op);
/* Whether an operator goes on so from another, perhaps through others, or is that one. */
bool dtm_comes_after(const dtm_module *module, dtm_op op, dtm_op from);
/* The position at which what a collective makes has been touched for sure, in the copy of the loops around it in which it was made;
 * -1: that copy may end before. */
int64_t dtm_touched_by(const dtm_module *module, const dtm_order *order, dtm_op op);
/* What reads an operand, or an alias of it, after a collective that may have its result in the same place has been started; 0:
 * nothing does. `users` as of dtm_users_of. */
dtm_op dtm_reader_after_start(const dtm_module *module, const dtm_order *order, dtm_op *const *users, dtm_op op, dtm_value operand);
/* The workspaces of what is carried out apart lie before that of pairs. Two share bytes only if they are never under way together:
 * from where they start (a loop's begin, if they start in one they do not stand in) to dtm_touched_by. */
int64_t dtm_workspace_of_apart(const dtm_module *module, int64_t *offsets); /* by op, where in it each begins; NULL: not asked for */

/* Whether a collective goes around a ring in steps with products: of an all_gather with those that stand right after it, of a
 * reduce_scatter with that right before it, or with those that are added up there. */
bool dtm_is_in_steps(const dtm_module *module, dtm_op op);
/* How many operators that are, where or not it does, with the additions between products, which are none of their own after fuse;
 * of none *first is 0. */
size_t dtm_products_in_steps(const dtm_module *module, dtm_op op, dtm_op *first);
/* Whether a product may be one of them, by the rows that it reads or makes, wherever it stands. */
bool dtm_may_step(const dtm_module *module, dtm_op collective, dtm_op product);

/* Whether each copy of the repeats around a collective has a workspace of its own: its ranks, or those of the one that works
 * there after it (dtm_handed_on_to), have programs of their own, so that one rank may come to the next copy long before others have come
 * to this one. How many copies; 1: they share one. */
int64_t dtm_workspace_copies(const dtm_module *module, dtm_op op);
/* Bytes of workspace for one operator (a fused one: as a whole), and how many of them are for communication. */
int64_t dtm_workspace_bytes(const dtm_module *module, dtm_op op);
int64_t dtm_workspace_most(const dtm_module *module, bool communication_only);
/* Of a loop with pairs of calls (ir/calls.h): the other part of a pair, and what fills (ir/fills.h), have workspaces of their own, which
 * lie before that of all others. */
int64_t dtm_workspace_of_pairs(const dtm_module *module);
/* Where in the arena the one that all others share begins. */
int64_t dtm_workspace_begin(const dtm_module *module);

/* Behind the workspace lies what a program makes once, seed and step (for dropout), the tables of rope; then the chunks of
 * sums of the update. */
int64_t dtm_constants_bytes(const dtm_module *module);
int64_t dtm_update_chunks_offset(const dtm_module *module); /* where in it these begin */
/* Where in it the table of a rope lies; *first says whether no rope before it has the same. */
int64_t dtm_rope_table_offset(const dtm_module *module, dtm_op rope, bool *first);

/* peak.c, after memory: what lives by kind at the moment of a step when most does (of equals the first), and where that is.
 * `workspace` has what the operator there takes beside its operands and results, and what lies behind the workspace;
 * `communication` what it takes if it is a collective, and the workspaces of what is carried out apart and of pairs. `fragmentation` is what the arena is larger than that: gaps between
 * what lives at one time, and the part of the workspace that others need. All together are arena_bytes. */
typedef struct dtm_memory_account {
    int64_t weights, gradients, optimizer, activations, workspace, communication, fragmentation;
    dtm_op peak;  /* the operator that runs then; 0: the begin of the step */
    int64_t copy; /* of the innermost repeat around it; -1: in none */
} dtm_memory_account;
dtm_memory_account dtm_memory_account_of(const dtm_module *module);
/* "d_x.mul = dot, backward layer 3, line 28"; the file of the line, where it is another than the program's, only if asked for:
 * a plan does not say where its source lay. */
const char *dtm_peak_text(const dtm_module *module, const dtm_memory_account *account, bool files, dtm_arena *arena);

/* The laws of storage, part of dtm_module_verify after the pass memory: what lies in the arena lies within it, and
 * collectives have the scratch they take; what one makes in place of its operand is started when all else has read that; what
 * `store` keeps for the next step takes the place of the old value only after all that reads that, by the order of operators. That values do not overlay each other while they live is seen by interpreting
 * (E0597). Errors are counted by the context. */
void dtm_storage_verify(dtm_module *module, dtm_arena *scratch);

#endif
