/* From the plan to a rank that can step: what must be alike is compared, what depends on the rank is evaluated, memory
 * and threads are made. */
#include "ir/fault.h"
#include "runtime/comm/verbs.h"
#include "runtime/cuda/device.h"
#include "runtime/plan_hash.h"
#include "runtime/rank.h"

#include "kernels/cpu/matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Arenas from here on ask for huge pages: below, one huge page would be a good part of it. */
static const int64_t HUGE_PAGES_FROM = (int64_t)64 << 20;
/* Scratch does so early: products pack their operands there and read them again and again. */
static const int64_t HUGE_SCRATCH_FROM = (int64_t)4 << 20;

/* ---- what must be alike on all ranks ---- */

static dtm_algorithm small_sum(int ranks) {
    bool fits = dtm_algorithm_fits(DTM_COLLECTIVE_ALL_REDUCE, DTM_ALGORITHM_DOUBLING, ranks);
    return fits ? DTM_ALGORITHM_DOUBLING : DTM_ALGORITHM_GATHER;
}

static bool least_of_all(dtm_comm *comm, int32_t *values, int count, dtm_status *status) {
    int32_t negated[8];
    for (int i = 0; i < count; i++) negated[i] = -values[i];
    dtm_group *world = dtm_comm_world(comm);
    dtm_group_label(world, "agreement on threads and instruction sets");
    bool ok = dtm_all_reduce(world, small_sum(dtm_comm_size(comm)), DTM_REDUCTION_MAX, DTM_REDUCE_I32, negated, negated,
                             count, NULL, status);
    dtm_group_label(world, NULL);
    for (int i = 0; i < count; i++) values[i] = -negated[i];
    return ok;
}

/* What a rank says of a part of its plan, while two look for the first that differs. */
typedef struct part_note {
    uint64_t hash;
    char text[184];
} part_note;

/* The parts of a plan in the order of search: instructions by what they do, weights, instructions by where they lie. */
enum { INSTRUCTIONS, WEIGHTS, PLACES, PARTS };

static int64_t parts_of(const dtm_plan *plan, int kind) {
    return kind == WEIGHTS ? plan->n_weights : plan->n_instructions;
}

static void say_part(part_note *note, const char *what, const char *name, uint32_t line) {
    char place[32] = "";
    if (line) snprintf(place, sizeof place, " (line %u)", line);
    snprintf(note->text, sizeof note->text, "%s `%.100s`%s", what, name, place);
}

static part_note note_of(const dtm_plan *plan, int kind, int64_t index) {
    part_note note = {0};
    if (index >= parts_of(plan, kind)) {
        snprintf(note.text, sizeof note.text, "none");
    } else if (kind == WEIGHTS) {
        note.hash = dtm_plan_weight_hash(plan, (uint32_t)index);
        say_part(&note, "weight", plan->weights[index].path, plan->weights[index].line);
    } else {
        const dtm_plan_instruction *i = &plan->instructions[index];
        note.hash = dtm_plan_instruction_hash(plan, (uint32_t)index,
                                              kind == PLACES ? DTM_PLAN_PLACES : DTM_PLAN_MEANING);
        char what[40];
        snprintf(what, sizeof what, "operation %lld,", (long long)index);
        say_part(&note, what, i->name ? i->name : "?", i->line);
    }
    return note;
}

/* Two ranks tell each other the notes of their parts; *here and *there are the first that differ. */
static bool find_in_plan(const dtm_plan *plan, dtm_group *world, int partner, part_note *here, part_note *there,
                            bool *found, dtm_status *status) {
    *found = false;
    for (int kind = 0; kind < PARTS; kind++) {
        int64_t mine = parts_of(plan, kind), theirs = 0;
        if (!dtm_send_receive(world, partner, &mine, sizeof mine, partner, &theirs, sizeof theirs, status)) return false;
        for (int64_t i = 0; i < mine || i < theirs; i++) {
            *here = note_of(plan, kind, i);
            if (!dtm_send_receive(world, partner, here, sizeof *here, partner, there, sizeof *there, status))
                return false;
            *found = here->hash != there->hash;
            if (*found) return true;
        }
    }
    return true;
}

/* The same in all plans of a pipeline. Ranks with unlike numbers of them have gone apart in the first. */
static bool find_difference(const dtm_plan *plan, dtm_group *world, int partner, part_note *here, part_note *there,
                            bool *found, dtm_status *status) {
    if (!plan->n_stages) return find_in_plan(plan, world, partner, here, there, found, status);
    uint32_t mine = plan->n_stages, theirs = 0;
    if (!dtm_send_receive(world, partner, &mine, sizeof mine, partner, &theirs, sizeof theirs, status)) return false;
    for (uint32_t s = 0; s < mine && s < theirs; s++)
        if (!find_in_plan(plan->stages[s], world, partner, here, there, found, status) || *found) return !status->failed;
    return true;
}

/* Of all plans of a pipeline. */
static uint64_t hash_of_program(const dtm_plan *plan) {
    uint64_t hash = 0xcbf29ce484222325u;
    if (!plan->n_stages) return dtm_plan_hash(plan);
    for (uint32_t s = 0; s < plan->n_stages; s++) hash = (hash ^ dtm_plan_hash(plan->stages[s])) * 0x100000001b3u;
    return hash;
}

/* Rank 0 and the first rank that differs look for the place; the latter says it. */
static bool explain_difference(const dtm_plan *plan, dtm_comm *comm, int other, dtm_status *status) {
    int me = dtm_comm_rank(comm);
    part_note here, there;
    bool found;
    if (me != 0 && me != other) return dtm_status_echo(status);
    if (!find_difference(plan, dtm_comm_world(comm), me ? 0 : other, &here, &there, &found, status)) return false;
    if (me == 0) return dtm_status_echo(status);
    if (!found)
        return dtm_status_fail(status,
                               "rank %d runs another program than rank 0: the same operations with other settings; all "
                               "ranks need the executable of one build",
                               me);
    bool alike = !strcmp(here.text, there.text);
    return dtm_status_fail(status,
                           "rank %d runs another program than rank 0: they differ first at %s%s%s; all ranks need the "
                           "executable of one build",
                           me, there.text, alike ? "" : ", here ", alike ? "" : here.text);
}

static bool same_plan(const dtm_plan *plan, dtm_comm *comm, dtm_status *status) {
    int ranks = dtm_comm_size(comm);
    uint64_t *all = malloc((size_t)ranks * sizeof *all);
    int64_t *bytes = malloc((size_t)ranks * sizeof *bytes);
    bool ok = all && bytes;
    if (!ok) dtm_status_fail(status, "out of memory comparing the plans of %d ranks", ranks);
    for (int r = 0; ok && r < ranks; r++) bytes[r] = sizeof *all;
    dtm_group_label(dtm_comm_world(comm), "comparison of plans");
    uint64_t own = hash_of_program(plan);
    ok = ok && dtm_all_gather(dtm_comm_world(comm), DTM_ALGORITHM_RING, &own, all, bytes, status);
    dtm_group_label(dtm_comm_world(comm), NULL);
    int other = 0;
    for (int r = ranks - 1; ok && r > 0; r--)
        if (all[r] != all[0]) other = r;
    free(all);
    free(bytes);
    return ok && (!other || explain_difference(plan, comm, other, status));
}

/* ---- threads and kernels ---- */

static int table_of(int level) {
    return level >= 4 ? DTM_PLAN_V4 : level == 3 ? DTM_PLAN_V3 : DTM_PLAN_V1;
}

/* The instruction set of this machine, or a lesser one that DTM_ISA asks for: to be the node that has not the others'. */
static bool machine_level(int32_t *level, dtm_status *status) {
    const char *wanted = getenv("DTM_ISA");
    *level = dtm_kernel_level();
    if (!wanted) return true;
    int number = wanted[0] == 'v' && strchr("134", wanted[1]) && wanted[1] && !wanted[2] ? wanted[1] - '0' : 0;
    if (!number) return dtm_status_fail(status, "DTM_ISA=%s: an instruction set is v1, v3 or v4", wanted);
    if (number > *level)
        return dtm_status_fail(status, "DTM_ISA=%s: this machine has no more than x86-64-v%d", wanted, (int)*level);
    *level = number;
    return true;
}

/* What oneDNN's products of bf16 depend on here; 0 where it has no instructions for them, or DTM_BF16 asks for the tiles. */
static bool machine_bf16(int level, int32_t *host, dtm_status *status) {
    const char *wanted = getenv("DTM_BF16");
    *host = level >= 4 ? dtm_matmul_bf16_host() : 0;
    if (!wanted || (!strcmp(wanted, "onednn") && *host)) return true;
    if (!strcmp(wanted, "tiles")) return *host = 0, true;
    if (strcmp(wanted, "onednn")) return dtm_status_fail(status, "DTM_BF16=%s: what multiplies bf16 is tiles or onednn", wanted);
    return dtm_status_fail(status, "DTM_BF16=onednn: this machine has no instructions for bf16");
}

/* By oneDNN where all machines are of one kind, so that bits are the same on all ranks. */
static bool choose_bf16(int32_t least, int32_t most, dtm_status *status) {
    const char *wanted = getenv("DTM_BF16");
    bool alike = least && least == most;
    dtm_matmul_init_bf16(alike ? "onednn" : "tiles");
    return alike || !wanted || strcmp(wanted, "onednn") || dtm_status_fail(status, "DTM_BF16=onednn: the machines of the ranks are not all of one kind");
}

/* Drafts have kernels for one instruction set alone. */
static int level_of_kernels(const dtm_plan *plan, int level) {
    if (level >= 4 && !plan->kernels[DTM_PLAN_V4]) level = 3;
    if (level == 3 && !plan->kernels[DTM_PLAN_V3]) level = 1;
    return level;
}

/* Results below the least normal number become 0: where gradients vanish, moments would sink through the subnormal ones
 * for hundreds of steps, at a hundredth of the speed. Threads inherit it. */
static void flush_subnormals(void) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
}

static bool make_threads(dtm_rank *rank, dtm_status *status) {
    dtm_comm *comm = rank->comm;
    int nodes_ranks = dtm_comm_node_size(comm);
    int32_t least[4] = {rank->options->threads, 0, 0, 0};
    if (!machine_level(&least[1], status) || !machine_bf16(least[1], &least[2], status)) status->failed = true;
    least[3] = -least[2];
    if (!dtm_comm_agree(comm, status)) return false;
    if (!least[0]) least[0] = dtm_pool_default_threads(nodes_ranks);
    if (!least_of_all(comm, least, 4, status)) return false;
    rank->threads = least[0];
    rank->level = rank->plan->cuda ? least[1] : level_of_kernels(rank->plan, least[1]); /* the same on all ranks, and so are the bits */
    rank->kernels = rank->plan->kernels[table_of(rank->level)];
    rank->pack = dtm_kernel_find_at(rank->level, "dtm_pack");
    flush_subnormals();
    dtm_matmul_init(NULL, least[1]);
    bool ok = choose_bf16(least[2], -least[3], status);
    ok = ok && (rank->pack || dtm_status_fail(status, "the library has no kernel `dtm_pack`"));
    ok = ok && dtm_pool_create(rank->threads, dtm_comm_node_index(comm), nodes_ranks, &rank->pool, status);
    if (!ok) status->failed = true;
    return dtm_comm_agree(comm, status);
}

/* ---- extents and sizes ---- */

static int64_t atom_value(const dtm_rank *rank, uint32_t atom) {
    if (atom == DTM_PLAN_LATER) return rank->later;
    if (atom == DTM_PLAN_COPY_NUMBER) return rank->copy_number;
    const dtm_span *span = &rank->extents[atom & ~DTM_PLAN_BEGIN];
    return atom & DTM_PLAN_BEGIN ? span->begin : span->size;
}

static void evaluate_size(dtm_rank *rank, uint32_t index) {
    const dtm_plan_size *size = &rank->plan->sizes[index];
    int64_t product = size->factor;
    for (uint32_t a = 0; a < size->count; a++) product *= atom_value(rank, size->atoms[a]);
    rank->sizes[index] = size->base + product;
}

void dtm_rank_set_microbatch(dtm_rank *rank, int64_t microbatch, bool later, bool last) {
    rank->microbatch = microbatch;
    rank->later = later;
    rank->last = last;
    if (rank->time_axis < 0) return;
    rank->coordinates[rank->time_axis] = microbatch;
    for (uint32_t i = 0; i < rank->microbatch_extents.count; i++) {
        uint32_t extent = rank->microbatch_extents.items[i];
        rank->extents[extent] = dtm_extent_span(rank->plan, extent, rank->coordinates);
    }
    for (uint32_t i = 0; i < rank->microbatch_sizes.count && !dtm_fault(49); i++) evaluate_size(rank, rank->microbatch_sizes.items[i]);
}

void dtm_rank_set_copy(dtm_rank *rank, int64_t copy_number) {
    rank->copy_number = copy_number;
    for (uint32_t i = 0; i < rank->copy_sizes.count; i++) evaluate_size(rank, rank->copy_sizes.items[i]);
}

static bool has_atom(const dtm_rank *rank, const dtm_plan_size *size, bool of_copies) {
    for (uint32_t a = 0; a < size->count; a++) {
        uint32_t atom = size->atoms[a];
        if (atom == DTM_PLAN_COPY_NUMBER || atom == DTM_PLAN_LATER) {
            if (of_copies == (atom == DTM_PLAN_COPY_NUMBER)) return true;
        } else if (!of_copies && dtm_extent_changes(rank->plan, atom & ~DTM_PLAN_BEGIN)) {
            return true;
        }
    }
    return false;
}

static void add_index(dtm_indices *list, uint32_t index) {
    list->items[list->count++] = index;
}

static bool evaluate(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    rank->extents = calloc((size_t)plan->n_extents + 1, sizeof *rank->extents);
    rank->sizes = calloc((size_t)plan->n_sizes + 1, sizeof *rank->sizes);
    rank->copies = calloc((size_t)plan->n_loops + 1, sizeof *rank->copies);
    rank->pair_copies = calloc(3 * ((size_t)plan->n_loops + 1), sizeof *rank->pair_copies);
    rank->microbatch_extents.items = calloc((size_t)plan->n_extents + 1, sizeof(uint32_t));
    rank->microbatch_sizes.items = calloc((size_t)plan->n_sizes + 1, sizeof(uint32_t));
    rank->copy_sizes.items = calloc((size_t)plan->n_sizes + 1, sizeof(uint32_t));
    if (!rank->extents || !rank->sizes || !rank->copies || !rank->pair_copies || !rank->microbatch_extents.items ||
        !rank->microbatch_sizes.items || !rank->copy_sizes.items)
        return dtm_status_fail(status, "out of memory for the plan's sizes");
    dtm_coordinates_of(plan, dtm_comm_rank(rank->comm), rank->coordinates);
    rank->time_axis = dtm_time_axis(plan);
    for (uint32_t e = 1; e < plan->n_extents; e++) {
        rank->extents[e] = dtm_extent_span(plan, e, rank->coordinates);
        if (dtm_extent_changes(plan, e)) add_index(&rank->microbatch_extents, e);
    }
    for (uint32_t s = 1; s < plan->n_sizes; s++) {
        evaluate_size(rank, s);
        if (has_atom(rank, &plan->sizes[s], false)) add_index(&rank->microbatch_sizes, s);
        if (has_atom(rank, &plan->sizes[s], true)) add_index(&rank->copy_sizes, s);
    }
    return true;
}

/* ---- memory ---- */

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t launch_scratch(dtm_rank *rank, const dtm_plan_launch *launch) {
    int64_t bytes = 0;
    uint32_t each = launch->sizes.count / launch->tuples;
    for (uint32_t t = 0; t < launch->tuples; t++) {
        for (uint32_t i = 0; i < each; i++) rank->values[i] = rank->sizes[launch->sizes.items[t * each + i]];
        bytes = most(bytes, rank->kernels[launch->kernel].scratch_bytes(rank->values));
    }
    return bytes;
}

static int64_t matmul_scratch(const dtm_rank *rank, const dtm_plan_matmul *m) {
    dtm_matmul_sizes sizes = {
        .batch = rank->sizes[m->batch], .m = rank->sizes[m->m], .n = rank->sizes[m->n], .k = rank->sizes[m->k],
        .a_type = dtm_matmul_type_of(rank, m->a), .b_type = dtm_matmul_type_of(rank, m->b), .c_type = dtm_matmul_type_of(rank, m->c)};
    return dtm_matmul_scratch_bytes((const int64_t *)&sizes);
}

/* The greatest scratch of any instruction, in any microbatch. */
static int64_t scratch_needed(dtm_rank *rank) {
    int64_t bytes = 0, microbatches = rank->microbatch_sizes.count ? rank->plan->microbatches : 1;
    for (int64_t b = 0; b < microbatches; b++) {
        dtm_rank_set_microbatch(rank, b, b > 0, false);
        for (uint32_t i = 0; i < rank->plan->n_instructions; i++) {
            const dtm_plan_instruction *at = &rank->plan->instructions[i];
            if (at->kind == DTM_PLAN_KERNEL) bytes = most(bytes, launch_scratch(rank, &at->kernel));
            if (at->kind == DTM_PLAN_MATMUL) bytes = most(bytes, matmul_scratch(rank, &at->matmul));
        }
    }
    dtm_rank_set_microbatch(rank, 0, false, false);
    return dtm_scratch_round(bytes);
}

static bool make_arguments(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    size_t buffers = 1, sizes = 1, runs = 1, reports = 1;
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        reports += at->kind == DTM_PLAN_REPORT;
        if (at->kind != DTM_PLAN_KERNEL) continue;
        size_t here = 0, tuples = at->kernel.tuples;
        for (uint32_t t = 0; t < tuples; t++) here += (size_t)dtm_loop_copies(plan, at->kernel.loops.items[t]);
        if (here * at->kernel.buffers.count / tuples > buffers) buffers = here * at->kernel.buffers.count / tuples;
        if (here * at->kernel.sizes.count / tuples > sizes) sizes = here * at->kernel.sizes.count / tuples;
        if (here > runs) runs = here;
    }
    rank->buffers = calloc(buffers, sizeof *rank->buffers);
    rank->values = calloc(sizes, sizeof *rank->values);
    rank->ends = calloc(runs, sizeof *rank->ends);
    rank->reports = calloc(reports, sizeof *rank->reports);
    if (rank->options->profile) rank->profile = calloc((size_t)plan->n_instructions + 1, sizeof *rank->profile);
    if (rank->buffers && rank->values && rank->ends && rank->reports && (rank->profile || !rank->options->profile))
        return true;
    return dtm_status_fail(status, "out of memory for kernels' arguments");
}

static void *map(int64_t bytes, int64_t huge_pages_from) {
    if (bytes == 0) bytes = 1;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    if (bytes >= huge_pages_from) madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    return memory;
}

/* What is simulated needs no device. */
static bool is_on_device(const dtm_rank *rank) { return rank->plan->cuda && !rank->options->simulate; }

static bool make_memory(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    if (!make_arguments(rank, status)) return false;
    if (is_on_device(rank)) return true; /* which makes its own, when all ranks have come so far */
    rank->arena = map(plan->arena_bytes, HUGE_PAGES_FROM);
    if (!rank->arena)
        return dtm_status_fail(status,
                               "rank %d needs %.1f MiB of memory, and the system does not give it: shard more, or "
                               "take more microbatches or smaller dimensions",
                               dtm_comm_rank(rank->comm), (double)plan->arena_bytes / 1048576);
    rank->scratch_bytes = plan->cuda ? 0 : scratch_needed(rank);
    rank->scratch = map(rank->scratch_bytes * rank->threads, HUGE_SCRATCH_FROM);
    if (rank->scratch) return true;
    return dtm_status_fail(status, "out of memory for the scratch of %d threads", rank->threads);
}

/* ---- places ---- */

void *dtm_rank_buffer_copy(const dtm_rank *rank, uint32_t buffer, int64_t copy) {
    const dtm_plan_buffer *b = &rank->plan->buffers[buffer];
    int64_t slot = b->modulus > 1 ? (copy + b->shift) % b->modulus : 0;
    int64_t batch = b->places ? rank->plan->places[(b->places - 1) * rank->plan->microbatches + rank->microbatch] * b->batch_stride : 0;
    return rank->arena + b->offset + slot * b->stride + batch;
}

void *dtm_rank_buffer(const dtm_rank *rank, uint32_t buffer) {
    return dtm_rank_buffer_copy(rank, buffer, rank->copies[rank->plan->buffers[buffer].loop]);
}

dtm_box dtm_rank_box(const dtm_rank *rank, uint32_t buffer) {
    const dtm_plan_buffer *b = &rank->plan->buffers[buffer];
    dtm_box box = {.rank = b->rank};
    for (int d = 0; d < b->rank; d++) box.spans[d] = rank->extents[b->dims[d]];
    return box;
}

bool dtm_rank_owns(const dtm_rank *rank, uint32_t buffer) {
    uint16_t axes = dtm_buffer_axes(rank->plan, buffer);
    for (uint32_t a = 0; a < rank->plan->n_axes; a++)
        if (!(axes >> a & 1) && !rank->plan->axes[a].time && rank->coordinates[a] != 0 &&
            !(rank->plan->n_stages && a == rank->plan->stage_axis)) /* there another rank may not have it at all */
            return false;
    return true;
}

/* ---- all of it ---- */

static bool check_plan(const dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        if (at->kind != DTM_PLAN_COLLECTIVE) continue;
        bool sums =
            at->collective.kind == DTM_COLLECTIVE_ALL_REDUCE || at->collective.kind == DTM_COLLECTIVE_REDUCE_SCATTER;
        if (sums && (at->collective.dtype == DTM_PLAN_U8 || at->collective.dtype == DTM_PLAN_BOOL))
            return dtm_status_fail(status, "`%s`: this version sums numbers of f32, bf16, f16 and i32 over ranks, no others",
                                   at->name);
    }
    return true;
}

/* Of a pipeline the plan of the rank's coordinate on its axis. */
static const dtm_plan *plan_of_rank(const dtm_plan *plan, int rank) {
    int64_t coordinates[DTM_PLAN_AXES];
    if (!plan->n_stages) return plan;
    dtm_coordinates_of(plan, rank, coordinates);
    return plan->stages[coordinates[plan->stage_axis]];
}

bool dtm_rank_load(dtm_rank *rank, const dtm_plan *plan, const dtm_options *options, dtm_comm *comm,
                   dtm_status *status) {
    rank->plan = plan_of_rank(plan, dtm_comm_rank(comm));
    rank->options = options;
    rank->comm = comm;
    rank->seed = options->seed_given ? options->seed : plan->train.seed;
    rank->error = DTM_KERNEL_OK;
    if (options->deadline_given) dtm_comm_set_deadline(comm, options->deadline);
    if (!same_plan(rank->plan, comm, status) || !make_threads(rank, status)) return false;
    bool ok =
        check_plan(rank, status) && evaluate(rank, status) && dtm_rank_make_groups(rank, status) && make_memory(rank, status);
    if (!ok) status->failed = true;
    return dtm_comm_agree(comm, status) && (!is_on_device(rank) || dtm_device_open(rank, status)) &&
           (!options->verbs || dtm_rank_open_verbs(rank, status));
}

void dtm_rank_unload(dtm_rank *rank) {
    if (!rank->plan) return;
    /* A step may have failed with messages under way; those that cannot be given up keep their memory to the end. */
    if (rank->comm && !dtm_comm_quiet(rank->comm)) return;
    bool on_device = rank->device != NULL;
    dtm_verbs_net_close(rank->verbs);
    dtm_device_close(rank);
    dtm_pool_destroy(rank->pool);
    dtm_data_close(rank->data);
    for (uint32_t i = 0; rank->transfers && i < rank->plan->n_instructions; i++) {
        free(rank->transfers[i].sent);
        free(rank->transfers[i].requests);
        free(rank->transfers[i].started);
        free(rank->transfers[i].apart);
        free(rank->transfers[i].apart_copies);
    }
    if (rank->arena && !on_device) munmap(rank->arena, (size_t)most(rank->plan->arena_bytes, 1));
    if (rank->scratch) munmap(rank->scratch, (size_t)most(rank->scratch_bytes * rank->threads, 1));
    void *const owned[] = {rank->transfers,
                           rank->groups,
                           rank->events,
                           rank->extents,
                           rank->sizes,
                           rank->copies,
                           rank->pair_copies,
                           rank->microbatch_extents.items,
                           rank->microbatch_sizes.items,
                           rank->copy_sizes.items,
                           rank->buffers,
                           rank->values,
                           rank->ends,
                           rank->reports,
                           rank->profile};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}
