/* The groups of ranks that talk to each other, and what each collective and message of a plan keeps of its own: worked out once,
 * as a rank is loaded. */
#include "ir/fault.h"
#include "runtime/rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tags of groups that no collective has. */
enum { FORWARD_TAG = DTM_GROUP_TAG_MAX, BACKWARD_TAG = DTM_GROUP_TAG_MAX - 1, STAGE_TAG = DTM_GROUP_TAG_MAX - 2, ALONG_TAG = DTM_GROUP_TAG_MAX - 3, N_TAGS = ALONG_TAG };

static bool is_among(const dtm_plan_list *members, int64_t coordinate) {
    for (uint32_t i = 0; i < members->count; i++)
        if (members->items[i] == coordinate) return true;
    return members->count == 0;
}

/* The ranks that differ from this one on these axes alone, of those on a pipeline's axis the members. */
static bool make_group(dtm_rank *rank, uint16_t axes, dtm_plan_list members, int tag, dtm_group **group, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    int *ranks = malloc((size_t)plan->ranks * sizeof *ranks), count = 0;
    if (!ranks) return dtm_status_fail(status, "out of memory for the group of an axis");
    for (int64_t r = 0; r < plan->ranks; r++) {
        int64_t at[DTM_PLAN_AXES];
        bool in = true;
        dtm_coordinates_of(plan, r, at);
        for (uint32_t a = 0; a < plan->n_axes; a++)
            in = in && (plan->axes[a].time || (axes >> a & 1) || at[a] == rank->coordinates[a]);
        in = in && (!members.count || is_among(&members, at[plan->stage_axis]));
        if (in) ranks[count++] = (int)r;
    }
    char name[48] = "";
    for (uint32_t a = 0; a < plan->n_axes; a++) {
        size_t length = strlen(name);
        if (axes >> a & 1) snprintf(name + length, sizeof name - length, "%s%s", length ? "+" : "", plan->axes[a].name);
    }
    bool ok = dtm_group_create(rank->comm, name, ranks, count, tag, group, status);
    free(ranks);
    return ok;
}

static bool same_members(const dtm_plan_list *a, const dtm_plan_list *b) {
    return a->count == b->count && (!a->count || memcmp(a->items, b->items, a->count * sizeof *a->items) == 0);
}

/* Both in ascending order. */
static bool disjoint(const dtm_plan_list *a, const dtm_plan_list *b) {
    uint32_t i = 0, j = 0;
    while (i < a->count && j < b->count && a->items[i] != b->items[j]) a->items[i] < b->items[j] ? i++ : j++;
    return a->count && b->count && (i == a->count || j == b->count);
}

static dtm_axes_group *find_group(const dtm_rank *rank, uint16_t axes, const dtm_plan_list *members) {
    for (size_t g = 0; g < rank->n_groups; g++) {
        dtm_axes_group *group = &rank->groups[g];
        if ((group->axes == axes && same_members(&group->members, members)) || (dtm_fault(9) && (group->axes & axes) == group->axes))
            return group;
    }
    return NULL;
}

/* The least that none of the groups has which may have ranks in common with it. */
static int free_tag(const dtm_rank *rank, const dtm_axes_group *of) {
    bool used[N_TAGS] = {true};
    int tag = 0;
    for (size_t g = 0; g < rank->n_groups; g++)
        if (of->axes != rank->groups[g].axes || !disjoint(&of->members, &rank->groups[g].members)) used[rank->groups[g].tag] = true;
    while (tag < N_TAGS && used[tag]) tag++;
    return tag;
}

/* The groups of all collectives of a program, in the order of its plans: so tags are the same on all ranks. */
static bool list_groups(dtm_rank *rank, const dtm_plan *plan, dtm_status *status) {
    for (uint32_t i = 0; i < plan->n_instructions; i++) {
        if (plan->instructions[i].kind != DTM_PLAN_COLLECTIVE) continue;
        const dtm_plan_collective *c = &plan->instructions[i].collective;
        if (find_group(rank, c->axes, &c->members)) continue;
        dtm_axes_group made = {c->axes, c->members, 0, NULL};
        made.tag = free_tag(rank, &made);
        if (made.tag == N_TAGS)
            return dtm_status_fail(status, "a rank is in more than %d groups of ranks", N_TAGS - 1);
        if (rank->n_groups == rank->cap_groups) {
            size_t more = 2 * rank->cap_groups + 16;
            dtm_axes_group *moved = realloc(rank->groups, more * sizeof *moved);
            if (!moved) return dtm_status_fail(status, "out of memory for groups of ranks");
            rank->groups = moved;
            rank->cap_groups = more;
        }
        rank->groups[rank->n_groups++] = made;
    }
    return true;
}

static bool make_pipeline_groups(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    rank->stage = dtm_comm_world(rank->comm);
    if (!plan->n_stages) return true;
    uint16_t along = (uint16_t)(1 << plan->stage_axis), others = 0;
    dtm_plan_list all = {0, NULL};
    for (uint32_t a = 0; a < plan->n_axes; a++)
        if (!plan->axes[a].time && a != plan->stage_axis) others |= (uint16_t)(1 << a);
    return make_group(rank, along, all, FORWARD_TAG, &rank->forward, status) &&
           make_group(rank, along, all, BACKWARD_TAG, &rank->backward, status) &&
           make_group(rank, along, all, ALONG_TAG, &rank->along, status) &&
           make_group(rank, others, all, STAGE_TAG, &rank->stage, status);
}

static bool make_transfer(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    const dtm_plan_collective *c = &plan->instructions[instruction].collective;
    dtm_transfer *t = &rank->transfers[instruction];
    dtm_axes_group *among = find_group(rank, c->axes, &c->members);
    if (!among->group && !make_group(rank, among->axes, among->members, among->tag, &among->group, status)) return false;
    t->group = among->group;
    snprintf(t->label, sizeof t->label, "%s of %s", dtm_collective_kind_name(c->kind), plan->instructions[instruction].name);
    size_t members = (size_t)dtm_group_members(t->group);
    t->sent = calloc(2 * members, sizeof *t->sent);
    if (!t->sent) return dtm_status_fail(status, "out of memory for a collective of %zu ranks", members);
    t->received = t->sent + members;
    for (uint32_t n = 0; n < c->count; n++)
        t->changes = t->changes || dtm_buffer_changes(plan, c->tensors[n].input) || dtm_buffer_changes(plan, c->tensors[n].output);
    dtm_transfer_count(rank, instruction);
    return true;
}

static bool make_requests(dtm_rank *rank, uint32_t instruction, dtm_status *status) {
    size_t microbatches = (size_t)rank->plan->microbatches, buffers = rank->plan->instructions[instruction].message.buffers.count;
    dtm_transfer *t = &rank->transfers[instruction];
    t->requests = calloc(microbatches * buffers + 1, sizeof *t->requests);
    t->started = calloc(microbatches + 1, sizeof *t->started);
    return (t->requests && t->started) || dtm_status_fail(status, "out of memory for the messages of a pipeline");
}

/* What is needed to have it under way in all copies of its repeat. */
static bool make_apart(dtm_rank *rank, uint32_t instruction, uint32_t loop, dtm_status *status) {
    size_t copies = (size_t)dtm_loop_copies(rank->plan, loop);
    dtm_transfer *t = &rank->transfers[instruction];
    t->loop = loop;
    t->apart = calloc(copies + 1, sizeof *t->apart);
    t->apart_copies = calloc(copies + 1, sizeof *t->apart_copies);
    uint32_t event = rank->plan->instructions[instruction].records;
    if (event > rank->n_events) rank->n_events = event;
    if (t->apart && t->apart_copies && rank->events) {
        rank->events[event] = instruction;
        return true;
    }
    return dtm_status_fail(status, "out of memory for collectives under way");
}

bool dtm_rank_make_groups(dtm_rank *rank, dtm_status *status) {
    const dtm_plan *plan = rank->plan;
    enum { DEPTH = 16 };
    uint32_t loops[DEPTH];
    int depth = 0;
    rank->transfers = calloc((size_t)plan->n_instructions + 1, sizeof *rank->transfers);
    rank->events = calloc((size_t)plan->n_instructions + 1, sizeof *rank->events);
    if (!rank->transfers || !rank->events)
        return dtm_status_fail(status, "out of memory for groups of ranks");
    bool ok = make_pipeline_groups(rank, status);
    for (uint32_t s = 0; ok && s < plan->n_stages; s++) ok = list_groups(rank, plan->stages[s], status);
    if (ok && !plan->n_stages) ok = list_groups(rank, plan, status);
    for (uint32_t i = 0; ok && i < plan->n_instructions; i++) {
        const dtm_plan_instruction *at = &plan->instructions[i];
        if (at->kind == DTM_PLAN_REPEAT) loops[depth < DEPTH ? depth : DEPTH - 1] = at->repeat.loop, depth++;
        if (at->kind == DTM_PLAN_END) depth--;
        if (at->kind == DTM_PLAN_COLLECTIVE) ok = make_transfer(rank, i, status);
        uint32_t loop = depth ? loops[depth <= DEPTH ? depth - 1 : DEPTH - 1] : 0;
        if (ok && at->records) ok = make_apart(rank, i, plan->loops[loop].microbatch ? 0 : loop, status);
        if (at->kind == DTM_PLAN_SEND || at->kind == DTM_PLAN_RECEIVE) {
            ok = make_requests(rank, i, status);
            snprintf(rank->transfers[i].label, sizeof rank->transfers[i].label, "%s of %s",
                     at->kind == DTM_PLAN_SEND ? "send" : "receive", at->name);
        }
    }
    return ok;
}
