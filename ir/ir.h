/* The intermediate representation: one module type for the source program and every later stage. Its text is the .dtm
 * language (ir/print.c writes it, frontend reads it). A module owns dimensions, a mesh, interned types with layouts,
 * values and operators (in arrays; handles are 32-bit indices, 0 is "none") and a tree of regions.
 *
 *   module body -> [op, op, repeat layer -> [op, op, ..], op]            before autodiff
 *   module body -> [forward -> [..], backward -> [..], update -> [..]]   after
 *
 * Values are in static single assignment form; names are unique in the module: the source's name, then `.2`, `.3` where
 * the source sets it again; `NAME.SUFFIX` for what a nested expression or a pass adds (`q.dot`, `x.term`).
 *
 * `repeat` is one body for all its copies. A value set in it is one value a copy. Another region over the same repeat
 * (backward, update) may use it and sees that of its own copy. `x = carry(first, next)` is `first` (a value outside) in
 * the copy that runs first and else `next` (a value of this body) of the copy run before; `last(next)`, outside after
 * the repeat, is `next` of the copy that ran last. Nothing else crosses copies, but for `accumulate(x)` in a microbatch
 * loop: the sum (or maximum) of x over the microbatches, one value for all of them, complete after the loop.
 *
 * A type with a layout (language.md "Types", sharding.md): a dimension is split over axes, major first; a value is
 * pending, a term of a sum (or operand of a max), on other axes. On all remaining axes it is held alike. A mesh axis of
 * size 1 never occurs in a layout. Block i of a dimension of n elements, split p ways in units of u: c = ceil(ceil(n /
 * u) / p) units a block, [min(n, i c u), min(n, (i + 1) c u)); several axes split block within block. A unit is kept only
 * where it changes the blocks. */
#ifndef DTM_IR_H
#define DTM_IR_H

#include "ir/base.h"

typedef uint32_t dtm_dim;
typedef uint32_t dtm_type;
typedef uint32_t dtm_value;
typedef uint32_t dtm_op;
typedef uint32_t dtm_region;

enum {
    DTM_MAX_RANK = 8,     /* dimensions of a tensor */
    DTM_MAX_AXES = 12,    /* axes of a mesh */
    DTM_MAX_SPLITS = DTM_MAX_AXES, /* axes that split one dimension: any */
    DTM_MAX_NUMBERS = 8,  /* numeric attributes of an operator */
    DTM_MAX_FACTORS = 16, /* factors of an operator */
    DTM_MAX_BLOCK_SIZES = 3 << (DTM_MAX_AXES - 1), /* of blocks of one dimension */
    DTM_MANY = 255,
    DTM_SAME = 254,
    DTM_NO_AXIS = 255,
};

typedef enum dtm_dtype { DTM_F32, DTM_F16, DTM_BF16, DTM_I32, DTM_U8, DTM_BOOL, DTM_DTYPES } dtm_dtype;

const char *dtm_dtype_name(dtm_dtype dtype);
bool dtm_dtype_is_float(dtm_dtype dtype);
bool dtm_dtype_is_half(dtm_dtype dtype); /* bf16, f16: half the bytes of f32 */
int64_t dtm_dtype_bytes(dtm_dtype dtype);
/* What no element is less than: the maximum of none. */
double dtm_least(dtm_dtype dtype);

/* ---- types and layouts ---- */

typedef struct dtm_split {
    uint8_t axis;
    uint32_t unit; /* blocks are multiples of it; >= 1 */
} dtm_split;

typedef struct dtm_dim_layout {
    uint8_t count;
    dtm_split splits[DTM_MAX_SPLITS]; /* major first */
} dtm_dim_layout;

/* A type, as a plain value; unused entries are zero so that equal types are equal bytes. */
typedef struct dtm_type_data {
    uint8_t dtype, rank;
    uint16_t sum, max; /* bit a: pending on axis a */
    dtm_dim dims[DTM_MAX_RANK];
    dtm_dim_layout layout[DTM_MAX_RANK];
} dtm_type_data;

/* ---- operators ---- */

typedef enum dtm_op_kind {
    DTM_OP_NONE,
#define OP(kind, ...) DTM_OP_##kind,
#include "ir/ops.def"
#undef OP
    DTM_OP_KINDS
} dtm_op_kind;

typedef struct dtm_op_row {
    const char *name, *kind_name;
    uint8_t min_operands, max_operands, results;
    const char *linear, *numbers, *flags;
} dtm_op_row;
extern const dtm_op_row dtm_op_rows[DTM_OP_KINDS];

/* Bits of dtm_attributes.flags by operator: bit i is the i-th word of the row's `flags`. */
enum {
    DTM_WEIGHT_FROZEN = 1,
    DTM_WEIGHT_NO_DECAY = 2,
    DTM_WEIGHT_EXACT = 4, /* it says its dtype: no precision changes it */
    DTM_ROPE_INTERLEAVED = 1,
    DTM_ROPE_INVERSE = 2,
    DTM_ATTENTION_CAUSAL = 1,
    DTM_REPEAT_REVERSED = 1,
    DTM_BACKWARD_WEIGHTS = 1, /* of a pipeline's stage: what gradients of weights alone need */
    DTM_MICROBATCH_BOTH_WAYS = 1 /* chunk 0 has the first half of the microbatches, chunk 1, of the other direction, the rest */
};
/* dtm_attributes.number[] by operator: index of the row's `numbers`. */
enum {
    DTM_BIAS_CORRECTION_BETA = 0,
    DTM_DROPOUT_P = 0,
    DTM_DROPOUT_SITE = 1,
    DTM_NORM_EPS = 0,
    DTM_CROSS_ENTROPY_SMOOTH = 0,
    DTM_ROPE_BASE = 0,
    DTM_ROPE_PART = 1,       /* 0: the whole width */
    DTM_ROPE_SCALE_KIND = 2, /* 0 none, 1 linear(factor), 2 llama3(factor, low, high, original) */
    DTM_ROPE_FACTOR = 3,
    DTM_ROPE_LOW = 4,
    DTM_ROPE_HIGH = 5,
    DTM_ROPE_ORIGINAL = 6,
    DTM_ATTENTION_WINDOW = 0, /* 0: none */
    DTM_ATTENTION_SCALE = 1,  /* 0: 1 / sqrt(width) */
    DTM_MESSAGE_PEER = 0,     /* send, receive: the coordinate of the other rank on the axis */
    DTM_REGION_STAGE = 0,     /* forward, backward: the stage of a pipeline whose part it is; -1: none */
    DTM_MICROBATCH_SLOTS = 0,   /* of a loop with an order: receive slots of each channel, */
    DTM_MICROBATCH_BUFFERS = 1, /* and messages of one that may be on their way (ir/calls.h) */
    DTM_REGION_CHUNK = 1,     /* and which of its rank's stages that is */
    DTM_AS_TERM_OWN = 0,      /* not 0: this rank keeps it, whatever its coordinate; stage knows */
    DTM_COLLECTIVE_STEPS = 2,   /* 1: around a ring, in steps with the products that read or make what it moves; 0: not */
    DTM_COLLECTIVE_APART = 1,   /* not 0: started here (or where its sums over microbatches end) on the stream of this number,
                                   from 1, and waited for where it is read */
    DTM_COLLECTIVE_SCRATCH = 0, /* bytes its algorithm needs beside input and output; memory writes them down */
};

typedef enum dtm_init { DTM_INIT_ZEROS, DTM_INIT_ONES, DTM_INIT_NORMAL, DTM_INIT_UNIFORM, DTM_INIT_NUMBER } dtm_init;

/* All attributes an operator can have; the row and this comment say which it uses. */
typedef struct dtm_attributes {
    uint8_t n_over, n_as;
    dtm_dim over[DTM_MAX_RANK]; /* after `over`; shape operators: the dimensions taken */
    dtm_dim as[DTM_MAX_RANK];   /* after `as`: the dimensions made; all_to_all: the dimension split instead */
    dtm_dim at;                 /* after `at`: rope's positions, attention's query positions where they differ; 0 else */
    uint16_t axes;              /* after `on`: bit a, axis a */
    uint32_t flags;
    double number[DTM_MAX_NUMBERS];
    int64_t from, to; /* slice, pad: elements [from, to); repeat: `from` is the number its first copy has in names */
    dtm_dtype dtype;  /* cast */
    dtm_string name;  /* input: its name; weight, state: path ("layer.{layer}.wq"); report, output: its name;
                         repeat, microbatch: its name */
    int64_t copies;   /* repeat, microbatch: how many */
    dtm_string order; /* microbatch: the order of its calls (ir/calls.h), or 0 */
    dtm_string places; /* microbatch with an order, after memory: tables of places (ir/calls.h), or 0 */
    dtm_string members; /* all_reduce after stage: the ranks along a pipeline's axis that take part, "0, 3-5"; 0: all */
    dtm_init init;    /* weight, state */
    double init_a, init_b;
} dtm_attributes;

/* Where a line of the source lies: `@ 7` is line 7 of the root file (file 0), `@ "other.dtm":7` of another. */
typedef struct dtm_place {
    dtm_string file;
    uint32_t line; /* 0: none */
} dtm_place;

typedef struct dtm_op_data {
    dtm_op_kind kind;
    dtm_region region; /* the region it stands in */
    dtm_region body;   /* structure operators: their body */
    uint32_t n_operands, n_results;
    dtm_value *operands, *results;
    dtm_attributes attributes;
    dtm_span span;   /* where diagnostics point: the text this module was read from */
    dtm_place place; /* the source line, kept through dumps */
    dtm_string why;  /* if a pass made it or chose its layout: the reason */
} dtm_op_data;

/* Where the memory pass put a value: in copy i of its innermost repeat (in repeats of repeats, all copies counted through:
 * i of the outer one times the inner one's copies plus its own number), its first byte is at offset + ((i + shift) mod
 * modulus) * stride in the arena. modulus 1 for a single slot. What is kept from call to call of a loop with an order lies, all
 * that for microbatch m, places[m] * batch_stride further on, by one of the loop's tables (ir/calls.h). */
typedef struct dtm_storage {
    int64_t offset; /* -1: none yet */
    int64_t stride;
    uint32_t modulus, shift;
    int64_t batch_stride;
    uint32_t places; /* which table of the loop, from 1; 0: all microbatches lie in one place */
} dtm_storage;

typedef struct dtm_value_data {
    dtm_string name;
    dtm_type type;
    dtm_op def;      /* 0: a constant */
    uint32_t result; /* which result of def */
    double number;   /* a constant's value; its type is a scalar */
    dtm_storage storage;
} dtm_value_data;

typedef struct dtm_region_data {
    dtm_op parent; /* the structure operator whose body this is; 0 for the module's body */
    dtm_op *ops;
    size_t n_ops, cap_ops;
} dtm_region_data;

typedef struct dtm_dim_data {
    dtm_string name;
    int64_t size;
    dtm_span span;
} dtm_dim_data;

/* ---- mesh, placement, training, machine ---- */

typedef struct dtm_axis_data {
    dtm_string name;
    int64_t size;
    bool time;        /* microbatches: an axis in time, always the last */
    dtm_span span;
} dtm_axis_data;

/* Ranks count the last axis fastest. */
typedef struct dtm_mesh {
    uint8_t count;
    dtm_axis_data axes[DTM_MAX_AXES];
} dtm_mesh;

typedef enum dtm_using { DTM_USING_COST, DTM_USING_ALLTOALL, DTM_USING_GATHER, DTM_USING_RING } dtm_using;

/* `AXIS splits D1, D2, ... [by cost] [using ..]` */
typedef struct dtm_splits_rule {
    uint8_t axis;
    uint8_t count;
    dtm_dim dims[32];
    bool by_cost;
    dtm_using using;
    dtm_span span;
    dtm_place place; /* the source line, kept through dumps */
    dtm_span dim_spans[32];
} dtm_splits_rule;

/* `zero STAGE on AXIS, ..`: what of a weight lies in parts on the ranks of these axes between steps. */
typedef struct dtm_zero_rule {
    uint8_t stage; /* 1: optimizer state and the weight that it updates; 2: its gradient too; 3: the weight in use too */
    uint16_t axes;
    dtm_span span;
    dtm_place place;
} dtm_zero_rule;

/* `AXIS splits REPEAT with schedule = .., microbatches = .., chunks = .., stages = [..]`: a pipeline. Its microbatches are
 * those of the settings; beside `microbatches K` these are K rounds of as many. */
typedef struct dtm_pipeline_rule {
    bool present;
    uint8_t axis;
    dtm_string repeat, schedule;
    int64_t chunks; /* stages a rank holds; 0: as many as the schedule has by itself, which stage writes down */
    int64_t rounds; /* the microbatches of the settings pass in so many rounds, each through a timeline; 0 and 1: one */
    dtm_span rounds_span;
    int64_t *stages; /* copies of the repeat in each stage, if given: as many as the axis has ranks, times chunks */
    size_t n_stages;
    dtm_span stages_span;
    dtm_span span;
    dtm_place place;
} dtm_pipeline_rule;

/* `keep [region.]x as [B, S@tp, D@-]`: for each axis named, the dimension it splits or, with `-`, none. */
typedef struct dtm_keep_rule {
    dtm_string region, value;
    uint8_t count;
    struct {
        dtm_dim dim;
        bool whole;                    /* D@-: no axis splits it */
        uint8_t n_axes, axes[DTM_MAX_SPLITS]; /* none and not whole: free */
    } dims[DTM_MAX_RANK];
    dtm_span span;
} dtm_keep_rule;

typedef enum dtm_expect_kind { DTM_EXPECT_COLLECTIVE, DTM_EXPECT_MEMORY, DTM_EXPECT_BUBBLE } dtm_expect_kind;

typedef struct dtm_expect_rule {
    dtm_string place; /* repeat's name, forward, backward, update, or 0 for the whole step */
    dtm_expect_kind kind;
    dtm_op_kind collective;
    uint16_t axes; /* 0: on any */
    bool at_most;  /* <= N rather than = N */
    double bound;  /* count, bytes, or a share of the ranks' time */
    dtm_span span;
} dtm_expect_rule;

typedef enum dtm_schedule_kind { DTM_LR_CONSTANT, DTM_LR_LINEAR, DTM_LR_COSINE } dtm_schedule_kind;
typedef enum dtm_optimizer_kind { DTM_SGD, DTM_ADAMW } dtm_optimizer_kind;

#define DTM_LARGEST_LOSS_SCALE 4294967296.0 /* 2^32: it and its inverse times any gradient of f16 are far from the ends of f32 */

typedef struct dtm_train {
    bool present;
    dtm_optimizer_kind optimizer;
    dtm_schedule_kind schedule;
    double peak, warmup, schedule_steps, floor; /* constant(peak): the others 0; linear, cosine fall to floor at schedule_steps */
    double beta1, beta2, eps, decay, momentum;
    double clip; /* 0: none */
    dtm_dtype precision;
    dtm_dtype reduce; /* what gradients of weights are sent in: f32, bf16 */
    double scale, grow_after; /* of f16: the loss' first scale, and how many steps in a row double it; else 0 */
    int64_t steps;
    uint64_t seed;
    dtm_span span, optimizer_span;
} dtm_train;

/* `machine { .. }`: what the cost model reads. Bandwidths in bytes/s, latencies in s, rates in FLOP/s, memory in bytes. */
typedef struct dtm_machine {
    bool present;
    dtm_string name;
    int64_t devices_per_node;
    double flops_f32, flops_bf16, memory_bandwidth, memory;
    double node_bandwidth, node_latency;       /* a rank's link to others of its node */
    double network_bandwidth, network_latency; /* a rank's share of the link to other nodes */
    dtm_span span;
} dtm_machine;

typedef struct dtm_settings {
    dtm_mesh mesh;
    dtm_splits_rule *splits;
    dtm_keep_rule *keeps;
    dtm_expect_rule *expects;
    dtm_zero_rule *zeros;
    size_t n_zeros, cap_zeros;
    size_t n_splits, cap_splits, n_keeps, cap_keeps, n_expects, cap_expects;
    int64_t microbatches; /* 1: none */
    dtm_span microbatches_span;
    dtm_pipeline_rule pipeline;
    dtm_train train;
    dtm_machine machine;
    bool roomy; /* memory is looked at when all is done: nothing asks on the way whether there is enough (passes/stage_settle.c) */
} dtm_settings;

/* ---- the module ---- */

typedef struct dtm_module {
    dtm_context *context;
    dtm_arena *arena; /* the module's own */
    dtm_string name;
    uint64_t source_hash; /* of the text it was made of */
    dtm_string after; /* the pass it has been through ("shard"), 0 for a source program */
    dtm_settings settings;
    dtm_dim_data *dims;
    dtm_type_data *types;
    dtm_value_data *values;
    dtm_op_data *ops;
    dtm_region_data *regions;
    size_t n_dims, cap_dims, n_types, cap_types, n_values, cap_values, n_ops, cap_ops, n_regions, cap_regions;
    dtm_value *constants; /* those values that are numbers */
    size_t n_constants, cap_constants;
    dtm_region body;
    int64_t arena_bytes; /* after memory: what a rank allocates; 0 before */
    /* After stage, of a program with a pipeline: a module for each coordinate on its axis, which the passes that follow
     * work on one by one; the body of this one is then empty. They share context and settings. */
    struct dtm_module **ranks;
    size_t n_ranks;
    /* And what each of them does in which order (ir/timeline.h), in this module's arena; NULL: one microbatch after the
     * other, `schedule = sequential`. The modules of ranks have none. */
    struct dtm_timeline *timeline;
    const struct dtm_stage_choice *choice; /* where `stage` cuts, once that is settled (passes/stage_choice.h), in the context's arena */
    const struct dtm_timeline_answer *searched; /* schedule = auto: how it was found (passes/timeline.h), in the context's arena */
    bool of_ranks; /* it is such a module, */
    int64_t rank;  /* of the ranks of this coordinate */
    dtm_arena *outer; /* where this struct lies, if that is not its arena */
    uint32_t *type_table; /* interning: open addressing over types */
    size_t type_table_size;
    struct dtm_name_table *names; /* value names in use */
} dtm_module;

/* An empty module with its own arena and an empty body region. */
dtm_module *dtm_module_create(dtm_context *context);
void dtm_module_destroy(dtm_module *module);
/* A module without a body that has the same dimensions, types (by the same handles) and settings. */
dtm_module *dtm_module_like(const dtm_module *module);
/* A deep copy: handles mean the same in both. */
dtm_module *dtm_module_clone(const dtm_module *module);
/* The module becomes the other one, which is destroyed. */
void dtm_module_become(dtm_module *module, dtm_module *other);

/* Renumbers everything in the order of the text, drops what is no longer in it, and frees names no value bears. */
void dtm_module_compact(dtm_module *module);
/* For dtm_module_create and dtm_module_compact: the arrays' first entries and an empty body; the names in use. */
void dtm_module_begin(dtm_module *module);
void dtm_names_refresh(dtm_module *module);

dtm_dim dtm_dim_add(dtm_module *module, dtm_string name, int64_t size, dtm_span span);
dtm_dim dtm_dim_find(const dtm_module *module, dtm_string name); /* 0: none of that name */
const char *dtm_dim_name(const dtm_module *module, dtm_dim dim);
uint8_t dtm_axis_find(const dtm_module *module, dtm_string name); /* DTM_NO_AXIS: none */

/* Types. Interning normalises: axes of size 1 are dropped, units that change nothing become 1. */
dtm_type dtm_type_intern(dtm_module *module, const dtm_type_data *data);
dtm_type dtm_type_scalar(dtm_module *module, dtm_dtype dtype);
dtm_type dtm_type_make(dtm_module *module, dtm_dtype dtype, uint8_t rank, const dtm_dim *dims); /* no layout */
static inline const dtm_type_data *dtm_type_get(const dtm_module *module, dtm_type type) { return &module->types[type]; }
/* The same type held alike everywhere, nothing pending. */
dtm_type dtm_type_whole(dtm_module *module, dtm_type type);
int dtm_type_dim_index(const dtm_type_data *type, dtm_dim dim); /* -1: it has not that dimension */
bool dtm_type_same_shape(const dtm_type_data *a, const dtm_type_data *b); /* dtype and dims, layout apart */
/* "f32[B=8@dp, S=16, F=256@tp] sum@tp"; with sizes only if with_layout */
void dtm_type_print(const dtm_module *module, dtm_type type, bool with_layout, dtm_text *out);

/* Elements of the whole tensor. */
/* Their names and sizes, "P = 4 x Q = 7" with " x " between. */
const char *dtm_dims_text(const dtm_module *module, dtm_arena *arena, const dtm_dim *dims, int rank, const char *between);
bool dtm_dims_countable(const dtm_module *module, const dtm_dim *dims, int rank); /* at most 2^60 elements */
int64_t dtm_type_elements(const dtm_module *module, dtm_type type);
/* The block [*begin, *begin + *size) of dimension `index` of a type at mesh coordinates (one for each axis). */
void dtm_block(const dtm_module *module, const dtm_type_data *type, int index, const int64_t *coordinates, int64_t *begin,
               int64_t *size);
/* The same for a bare split list of a dimension of n elements. */
void dtm_block_of(const dtm_mesh *mesh, int64_t n, const dtm_dim_layout *layout, const int64_t *coordinates, int64_t *begin,
                  int64_t *size);
/* The sizes that blocks of a dimension of n elements have, each once and none of them 0, without going through all blocks: a
 * cut of n makes at most two of them, three along the time axis, which is the first. Returns how many there are. */
size_t dtm_block_sizes(const dtm_mesh *mesh, int64_t n, const dtm_dim_layout *layout, int64_t sizes[DTM_MAX_BLOCK_SIZES]);
/* The largest block any rank has (that of coordinates 0). */
int64_t dtm_block_max(const dtm_module *module, const dtm_type_data *type, int index);
int64_t dtm_local_elements_max(const dtm_module *module, dtm_type type);
int64_t dtm_local_bytes_max(const dtm_module *module, dtm_type type);
/* The axes that occur in the type's splits. */
uint16_t dtm_type_split_axes(const dtm_type_data *type);
/* Which dimension index an axis splits, or -1. */
int dtm_type_axis_dim(const dtm_type_data *type, uint8_t axis);
/* How many coordinates of a pipeline's axis take part in a collective, 0: all. */
int64_t dtm_collective_members(const dtm_module *module, const dtm_op_data *op);
bool dtm_is_member(const dtm_module *module, const dtm_op_data *op, int64_t rank);
/* Of those that are named the ones below a rank. */
int64_t dtm_members_below(const dtm_module *module, const dtm_op_data *op, int64_t rank);
/* Whether the text names some of so many ranks, and as it is written. */
bool dtm_members_are_good(const dtm_module *module, const dtm_op_data *op, int64_t ranks);
dtm_string dtm_members_of(dtm_context *context, dtm_arena *scratch, const bool *members, int64_t ranks);
/* Whether a collective goes along the axis of a pipeline, of which the module has one rank's program. */
bool dtm_along_pipeline(const dtm_module *module, const dtm_op_data *op);
int64_t dtm_mesh_ranks(const dtm_mesh *mesh); /* time axes apart */
void dtm_mesh_coordinates(const dtm_mesh *mesh, int64_t rank, int64_t *coordinates); /* time axes: 0 */

/* Values. A name wanted is made unique by `.2`, `.3`. */
static inline dtm_value_data *dtm_value_get(const dtm_module *module, dtm_value value) { return &module->values[value]; }
static inline dtm_op_data *dtm_op_get(const dtm_module *module, dtm_op op) { return &module->ops[op]; }
static inline const dtm_type_data *dtm_value_type(const dtm_module *module, dtm_value value) {
    return &module->types[module->values[value].type];
}
const char *dtm_value_name(const dtm_module *module, dtm_value value);
/* The source's name of a value: its name up to the first dot if the rest is digits ("h.2" -> h), else 0. */
dtm_string dtm_value_source_name(const dtm_module *module, dtm_value value);
dtm_string dtm_name_unique(dtm_module *module, const char *wanted);
void dtm_value_rename(dtm_module *module, dtm_value value, const char *wanted);
/* A constant (interned: one value for one number and dtype). */
dtm_value dtm_constant(dtm_module *module, dtm_dtype dtype, double number);
bool dtm_value_is_constant(const dtm_module *module, dtm_value value);

/* ---- building ---- */

/* Appends to `region`, or inserts before position `at` if at >= 0 (which then moves on). What it makes takes the place,
 * span and why that stand in it. */
typedef struct dtm_builder {
    dtm_module *module;
    dtm_region region;
    int64_t at; /* -1: append */
    dtm_span span;
    dtm_place place;
    dtm_string why;
} dtm_builder;

dtm_builder dtm_builder_at_end(dtm_module *module, dtm_region region);
/* Before op, with its place and span. */
dtm_builder dtm_builder_before(dtm_module *module, dtm_op op);
dtm_builder dtm_builder_after(dtm_module *module, dtm_op op);

/* An operator with results of the given types, named after `name` ("" : "t"; NULL: by the caller). attributes may be NULL. */
dtm_op dtm_build_op(dtm_builder *builder, dtm_op_kind kind, const dtm_value *operands, uint32_t n_operands,
                    const dtm_attributes *attributes, const dtm_type *types, uint32_t n_results, const char *name);
/* The same with types inferred (dtm_infer); the first result is returned. */
dtm_value dtm_build(dtm_builder *builder, dtm_op_kind kind, const char *name, const dtm_value *operands,
                    uint32_t n_operands, const dtm_attributes *attributes);
dtm_value dtm_build_unary(dtm_builder *builder, dtm_op_kind kind, const char *name, dtm_value a);
dtm_value dtm_build_binary(dtm_builder *builder, dtm_op_kind kind, const char *name, dtm_value a, dtm_value b);
dtm_value dtm_build_over(dtm_builder *builder, dtm_op_kind kind, const char *name, const dtm_value *operands,
                         uint32_t n_operands, const dtm_dim *over, uint8_t n_over);
/* A structure operator with an empty body, whose region is returned by dtm_op_get(op)->body. */
dtm_op dtm_build_region(dtm_builder *builder, dtm_op_kind kind, const dtm_attributes *attributes);
static inline dtm_value dtm_result(const dtm_module *module, dtm_op op, uint32_t index) {
    return module->ops[op].results[index];
}
/* Attributes with the row's defaults in number[]. */
dtm_attributes dtm_attributes_default(dtm_op_kind kind);

void dtm_op_remove(dtm_module *module, dtm_op op);                    /* from its region; its values must be unused */
void dtm_op_move(dtm_module *module, dtm_op op, dtm_region region, int64_t at); /* at -1: the end */
int64_t dtm_op_position(const dtm_module *module, dtm_op op);        /* in its region */
void dtm_replace_uses(dtm_module *module, dtm_value from, dtm_value to); /* in all operators */
/* What a repeat carries from copy to copy as it is, is what it begins with: no carry is left of it. */
void dtm_drop_invariant_carries(dtm_module *module);
/* What `made` is takes the place and the name of `of`: those who read `of` read it, and `of` is no longer what it was. Quick
 * where `made` was made after operator `first` was, and by then nothing but later operators read it. */
void dtm_value_take_place(dtm_module *module, dtm_value made, dtm_value of, dtm_op first);

/* ---- walking ---- */

/* Calls visit for every operator in execution order, a structure operator before its body. */
typedef void dtm_visit(dtm_module *module, dtm_op op, void *state);
void dtm_walk(dtm_module *module, dtm_visit *visit, void *state);
/* All operators in that order, so that regions may be changed on the way through them. */
typedef struct dtm_op_list {
    dtm_op *items;
    size_t count, capacity;
} dtm_op_list;
dtm_op_list dtm_ops_in_order(dtm_module *module, dtm_arena *arena);
/* How often each value is used as an operand: an array by value, in `arena`. */
uint32_t *dtm_use_counts(const dtm_module *module, dtm_arena *arena);
/* What reads each value, in order of their numbers, as often as it does: by value, each list ends with 0. */
dtm_op **dtm_users_of(const dtm_module *module, dtm_arena *arena);
/* What the backward pass makes of a weight's gradient: the second operand of `gradient`, or what the update makes that of, times a
 * number of the step or in another type. */
dtm_value dtm_gradient_made(const dtm_module *module, dtm_op gradient);
/* The structure operator of a kind that encloses op, innermost first, or 0. DTM_OP_NONE: of any kind. */
dtm_op dtm_enclosing(const dtm_module *module, dtm_op op, dtm_op_kind kind);
/* Whether two loops are over the same copies: one may read, copy by copy, what the other made. */
bool dtm_same_copies(const dtm_module *module, dtm_op a, dtm_op b);
/* The innermost repeat or microbatch around a value's definition: its per-copy multiplicity; 0: none. */
dtm_op dtm_value_repeat(const dtm_module *module, dtm_value value);
/* The n-th repeat of that name before/with the given op: two repeat operators with one name run over the same copies. */
int64_t dtm_copies(const dtm_module *module, dtm_value value); /* product of copies of all enclosing repeats */

/* ---- inference and factors ---- */

/* Types of an operator's results, layout apart, from operands' types and attributes (EXPAND, FILL, SCATTER, PAD, SPLIT..
 * read attributes.as/over; SCATTER and FILL need explicit types and are not inferred). On a misuse, reports one error
 * (E03xx, at span) and returns false. */
bool dtm_infer(dtm_module *module, dtm_op_kind kind, const dtm_value *operands, uint32_t n_operands,
               const dtm_attributes *attributes, dtm_span span, dtm_type *types);
/* index_range.c: the least and the greatest of whole numbers that are known when the program is compiled (positions, and
 * what is made of them), before layouts. false: they depend on inputs, or are not followed. */
bool dtm_index_range(const dtm_module *module, dtm_value value, int64_t *least, int64_t *most);

typedef enum dtm_factor_kind {
    DTM_FACTOR_CARRIED,    /* split alike in every operand and result that has it */
    DTM_FACTOR_REDUCED,    /* summed (or maximised) away: results without it become terms */
    DTM_FACTOR_NORMALISED, /* works split only once the operator is expanded (row's `expand`) */
    DTM_FACTOR_FIXED,      /* cannot be split along: as if the operator lacked it */
} dtm_factor_kind;

/* A factor: one index of the operator's loop nest, and where it stands in its operands and results. Dimensions of several
 * names can be one factor: H and G of attention, D and H of `split(x, D as H, K)`, S and T of `rename`. Splitting the
 * factor over an axis splits operand dimension operand_dim[i] in multiples of operand_unit[i]. */
typedef struct dtm_factor {
    dtm_factor_kind kind;
    bool is_max; /* REDUCED: by max instead of sum */
    bool positions; /* attention: query positions or key positions: how it may be split is for `using` to say */
    uint8_t n_names;
    dtm_dim names[4]; /* the dimensions it goes by in `splits` rules, in the operator's order */
    int8_t operand_dim[8], result_dim[4]; /* index in the operand's or result's type, -1: absent */
    uint32_t operand_unit[8], result_unit[4];
} dtm_factor;

/* The factors of an operator, in order of first appearance. Collectives and structure have none. For operators with more
 * than 8 operands (buckets) there are none either. */
size_t dtm_factors(const dtm_module *module, dtm_op op, dtm_factor factors[DTM_MAX_FACTORS]);
/* If an operator is linear in a set of operands: writes the sets as bit masks of operands, returns how many. */
size_t dtm_linear_sets(const dtm_module *module, dtm_op op, uint32_t sets[4]);

/* ---- text, verifier ---- */

typedef struct dtm_print_options {
    dtm_string only; /* print this region alone (a repeat's name, forward, ..); 0: all */
    bool local_shapes; /* `# local f32[..]` comments */
} dtm_print_options;
void dtm_module_print(dtm_module *module, const dtm_print_options *options, dtm_text *out);
/* Checks every law; reports E05xx for each break and returns whether there is none. */
bool dtm_module_verify(dtm_module *module);

#endif
