/* Products in steps around the ring of a collective, which a stream carries out meanwhile:
 *
 *     gather, then products            products, then scatter
 *     own rows      | block 1 comes    rows for the member before  | are sent on
 *     rows of 1     | block 2 comes    rows for the one before it  | are added to what came, and sent on
 *     rows of 2     | ..               ..                          | ..
 *
 * Both ways blocks come from, and sums go to, the member before and the one after in turn (dtm_ring_member has the order).
 *
 * The rows of a product follow the dimension that the ring cuts, in blocks of it: [.., S, ..] has a block for each index
 * before S. Where rows do not lie so, or there is nobody to send to, the instructions run one after another. */
#include "ir/fault.h"
#include "runtime/rank.h"

#include <time.h>

typedef struct ring {
    uint32_t collective; /* the instruction */
    uint32_t whole;      /* the buffer that has all members' blocks */
    dtm_collective_kind kind;
    dtm_algorithm algorithm;
    int cut, size, index;
    int64_t origin; /* where the rows of all members begin in the dimension that is cut: another axis may cut it too */
    int64_t blocks, rows, inner; /* rows: of that dimension */
} ring;

static int64_t product_of(const dtm_box *box, int from, int to) {
    int64_t product = 1;
    for (int d = from; d < to; d++) product *= box->spans[d].size;
    return product;
}

/* The span of a member in the dimension that is cut, of what all members of the ring have. */
static dtm_span span_of(const dtm_rank *rank, const ring *r, int member) {
    const dtm_plan_collective *c = &rank->plan->instructions[r->collective].collective;
    uint32_t split = c->kind == DTM_COLLECTIVE_ALL_GATHER ? c->tensors[0].input : c->tensors[0].output;
    int64_t coordinates[DTM_PLAN_AXES];
    dtm_coordinates_of(rank->plan, dtm_group_rank(rank->transfers[r->collective].group, member), coordinates);
    if (rank->time_axis >= 0) coordinates[rank->time_axis] = rank->coordinates[rank->time_axis];
    dtm_span span = dtm_buffer_box(rank->plan, split, coordinates).spans[r->cut];
    return (dtm_span){span.begin - r->origin, span.size};
}

static bool find_ring(const dtm_rank *rank, uint32_t instruction, ring *r) {
    const dtm_plan_collective *c = &rank->plan->instructions[instruction].collective;
    const dtm_group *group = rank->transfers[instruction].group;
    bool gathers = c->kind == DTM_COLLECTIVE_ALL_GATHER;
    *r = (ring){.collective = instruction, .whole = gathers ? c->tensors[0].output : c->tensors[0].input,
                .kind = c->kind, .algorithm = c->algorithm, .cut = -1};
    r->size = dtm_group_members(group);
    r->index = dtm_group_index(group);
    dtm_box whole = dtm_rank_box(rank, r->whole), own = dtm_rank_box(rank, gathers ? c->tensors[0].input : c->tensors[0].output);
    for (int d = 0; d < whole.rank; d++) {
        if (whole.spans[d].begin == own.spans[d].begin && whole.spans[d].size == own.spans[d].size) continue;
        if (r->cut >= 0) return false;
        r->cut = d;
    }
    if (r->cut < 0 || r->size < 2 || c->algorithm == DTM_ALGORITHM_PAIRWISE || c->count != 1) return false;
    r->blocks = product_of(&whole, 0, r->cut);
    r->origin = whole.spans[r->cut].begin;
    r->rows = whole.spans[r->cut].size;
    r->inner = product_of(&whole, r->cut + 1, whole.rank);
    return r->blocks * r->rows * r->inner > 0;
}

/* Whether the rows of a product are those of the ring's tensor, each once. */
static bool has_rows(const dtm_rank *rank, const ring *r, uint32_t index, bool as_operand) {
    const dtm_plan_matmul *m = &rank->plan->instructions[index].matmul;
    const int64_t *z = rank->sizes;
    if (as_operand ? m->a != r->whole : dtm_rank_buffer(rank, m->c) != dtm_rank_buffer(rank, r->whole)) return false;
    if (z[m->batch] != 1 || m->n_outer || z[m->m] != r->blocks * r->rows) return false;
    return as_operand ? z[m->a_row] == r->inner && z[m->a_col] == 1 : z[m->c_row] == r->inner;
}

static void run_rows(dtm_rank *rank, const ring *r, uint32_t from, uint32_t to, int member) {
    dtm_span span = span_of(rank, r, member);
    for (uint32_t i = from; i < to; i++) dtm_run_rows(rank, i, r->blocks, r->rows, span.begin, span.size);
}

/* Whose rows are multiplied in a step: of a gather from 0 on, of a scatter from 1. */
static int member_at(const ring *r, int step) {
    if (dtm_fault(84) && step) step = r->size - step;
    return dtm_ring_member(r->kind, r->algorithm, r->size, r->index, step);
}

static bool gather_in_steps(dtm_rank *rank, const ring *r, uint32_t index, uint32_t end, dtm_status *status) {
    dtm_collective_request *request = &rank->transfers[index].request;
    const dtm_plan_collective *c = &rank->plan->instructions[index].collective;
    bool going, ok = dtm_start_collective(rank, index, request, true, &going, status);
    if (!ok) return false;
    if (c->stage_out >= 0) dtm_run_copy(rank, &(dtm_plan_copy){c->tensors[0].input, c->tensors[0].output, 0});
    for (int step = 0; ok && step < r->size; step++) {
        if (step && !(ok = dtm_collective_come(request, step, status))) break;
        if (step) dtm_move_member(rank, index, member_at(r, step), false);
        run_rows(rank, r, index + 1, end, member_at(r, step));
    }
    return ok && dtm_collective_wait(request, status);
}

/* Of several products each is added to what those before it have made, in the same rows. */
static bool scatter_in_steps(dtm_rank *rank, const ring *r, uint32_t first, dtm_status *status) {
    dtm_collective_request *request = &rank->transfers[r->collective].request;
    bool going;
    if (!dtm_start_collective(rank, r->collective, request, true, &going, status)) return false;
    for (int step = 1; step <= r->size; step++) {
        run_rows(rank, r, first, dtm_fault(105) ? first + 1 : r->collective, member_at(r, step));
        dtm_move_member(rank, r->collective, member_at(r, step), true);
        dtm_collective_give(request);
    }
    return dtm_finish_collective(rank, r->collective, request, status);
}

/* For --profile: the collective has the time in which nothing was multiplied. Called before (sign -1) and after. */
static void count_run(dtm_rank *rank, uint32_t index, uint32_t end, uint32_t collective, int sign) {
    struct timespec time;
    if (!rank->profile) return;
    clock_gettime(CLOCK_MONOTONIC, &time);
    double seconds = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    for (uint32_t i = index; i < end; i++) {
        if (i != collective) seconds -= rank->profile[i].seconds;
        rank->profile[i].runs += sign > 0;
    }
    rank->profile[collective].seconds += sign * seconds;
}

bool dtm_run_in_steps(dtm_rank *rank, uint32_t index, dtm_status *status) {
    const dtm_plan_instruction *at = &rank->plan->instructions[index];
    uint32_t end = index + 1 + at->steps;
    bool gathers = at->kind == DTM_PLAN_COLLECTIVE, fits;
    ring r;
    for (uint32_t i = index; i < end; i++)
        if (!dtm_wait_list(rank, &rank->plan->instructions[i].waits, status)) return false;
    fits = find_ring(rank, gathers ? index : end - 1, &r);
    for (uint32_t i = gathers ? index + 1 : index; fits && i < (gathers ? end : end - 1); i++) fits = has_rows(rank, &r, i, gathers);
    if (fits) {
        count_run(rank, index, end, r.collective, -1);
        bool ok = gathers ? gather_in_steps(rank, &r, index, end, status) : scatter_in_steps(rank, &r, index, status);
        count_run(rank, index, end, r.collective, 1);
        return ok;
    }
    for (uint32_t i = index; i < end; i++)
        if (!dtm_run_instruction(rank, i, status)) return false;
    return true;
}
