/* The timeline and the loops of the ranks: each loop over microbatches gets its rank's line of the timeline as its order, and
 * the orders of a module, whoever wrote them, are proved together before anything is made of them. */
#include "ir/calls.h"
#include "passes/schedule.h"
#include "passes/timeline.h"

#include <limits.h>
#include <math.h>

/* A result goes on its way while the next is made; a message arrives while the one before it is used. */
enum { SEND_BUFFERS = 2, LEAST_SLOTS = 2 };

static dtm_string line_of(const dtm_module *module, const dtm_timeline *timeline, int rank, dtm_arena *arena) {
    dtm_text text = {arena, NULL, 0, 0};
    const dtm_rank_order *order = &timeline->order[rank];
    for (size_t i = 0; i < order->count; i++) {
        const dtm_operation *o = &order->operations[i];
        if (o->kind == DTM_OPERATION_GROUP) continue; /* messages follow from the order */
        if (text.length) dtm_text_printf(&text, " ");
        if (o->kind == DTM_OPERATION_PAIR) dtm_text_printf(&text, "(");
        dtm_task_print(timeline, o->tasks[0], &text);
        if (o->kind == DTM_OPERATION_PAIR) {
            dtm_text_printf(&text, "+");
            dtm_task_print(timeline, o->tasks[1], &text);
            dtm_text_printf(&text, ")");
        }
    }
    return dtm_string_of(module->context, text.length ? text.data : "");
}

bool schedule_order(dtm_module *module) {
    dtm_timeline_limits limits = {.send_buffers = SEND_BUFFERS};
    dtm_timeline_proof proof;
    dtm_arena *scratch = dtm_arena_create();
    bool good = dtm_timeline_prove(module->context, scratch, module->timeline, NULL, &limits, &proof);
    for (size_t r = 0; good && r < module->n_ranks; r++) {
        dtm_op loop = dtm_rank_loop(module->ranks[r]);
        if (!loop) continue;
        dtm_attributes *a = &dtm_op_get(module->ranks[r], loop)->attributes;
        a->order = line_of(module, module->timeline, (int)r, scratch);
        a->number[DTM_MICROBATCH_SLOTS] = proof.slots > LEAST_SLOTS ? proof.slots : LEAST_SLOTS;
        a->number[DTM_MICROBATCH_BUFFERS] = SEND_BUFFERS;
    }
    dtm_arena_destroy(scratch);
    return good;
}

/* ---- the other way ---- */

/* The last chunk of any rank. */
static int chunks_of(const dtm_module *module) {
    int chunks = 1;
    for (size_t r = 0; r < module->n_ranks; r++) {
        const dtm_module *rank = module->ranks[r];
        dtm_op loop = dtm_rank_loop(rank);
        const dtm_region_data *body = loop ? &rank->regions[dtm_op_get(rank, loop)->body] : NULL;
        for (size_t i = 0; body && i < body->n_ops; i++) {
            int chunk = (int)dtm_op_get(rank, body->ops[i])->attributes.number[DTM_REGION_CHUNK];
            if (chunk >= chunks) chunks = chunk + 1;
        }
    }
    return chunks;
}

static dtm_placement placement_of(const dtm_module *module) {
    dtm_placement most = DTM_PLACE_SINGLE;
    for (size_t r = 0; r < module->n_ranks; r++) {
        dtm_op loop = dtm_rank_loop(module->ranks[r]);
        dtm_placement one = loop ? dtm_loop_placement(module->ranks[r], loop) : DTM_PLACE_SINGLE;
        /* a rank may have nothing of its other chunks, and in the middle of a loop it has what it has in a V */
        if (one != DTM_PLACE_SINGLE && most != DTM_PLACE_LOOP) most = one;
    }
    return most;
}

static bool add_rank(const dtm_module *module, dtm_timeline *timeline, int rank, dtm_arena *arena) {
    const dtm_module *own = module->ranks[rank];
    dtm_op loop = dtm_rank_loop(own);
    const dtm_op_data *data = dtm_op_get(own, loop);
    const dtm_region_data *body = &own->regions[data->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *region = dtm_op_get(own, body->ops[i]);
        int stage = (int)region->attributes.number[DTM_REGION_STAGE], chunk = (int)region->attributes.number[DTM_REGION_CHUNK];
        if (stage == dtm_timeline_stage(timeline, rank, chunk)) continue;
        dtm_error(module->context, region->span, 512, "chunk %d of rank %d is stage %d where stages lie so, not %d", chunk, rank,
                  dtm_timeline_stage(timeline, rank, chunk), stage);
        return false;
    }
    dtm_loop_tasks tasks;
    const char *wrong = dtm_loop_tasks_of(own, loop, arena, &tasks);
    if (wrong) {
        dtm_error(module->context, data->span, 512, "%s", wrong);
        return false;
    }
    for (size_t i = 0; i < tasks.count; i++) {
        const dtm_operation *o = &tasks.items[i];
        dtm_timeline_add_operation(timeline, rank, *o);
        timeline->order[rank].operations[i].span = data->span;
    }
    return true;
}

bool schedule_timeline(const dtm_module *module, dtm_arena *arena, dtm_timeline **timeline) {
    dtm_op first = module->n_ranks ? dtm_rank_loop(module->ranks[0]) : 0;
    bool any = false, all = true, good = true;
    *timeline = NULL;
    for (size_t r = 0; r < module->n_ranks; r++) {
        dtm_op loop = dtm_rank_loop(module->ranks[r]);
        bool ordered = loop && dtm_loop_is_ordered(module->ranks[r], loop);
        any |= ordered;
        all &= ordered;
    }
    if (!any) return true;
    if (!all) {
        dtm_error(module->context, dtm_op_get(module->ranks[0], first)->span, 512, "of the ranks of a pipeline all have an order, or none");
        return false;
    }
    const dtm_attributes *loop = &dtm_op_get(module->ranks[0], first)->attributes;
    *timeline = dtm_timeline_create(arena, dtm_string_text(module->context, module->settings.pipeline.schedule),
                                    placement_of(module), (int)module->n_ranks, (int)loop->copies, chunks_of(module));
    for (size_t r = 0; good && r < module->n_ranks; r++) good = add_rank(module, *timeline, (int)r, arena);
    return good;
}

bool schedule_prove(const dtm_module *module) {
    dtm_arena *scratch = dtm_arena_create();
    dtm_timeline *timeline;
    bool good = schedule_messages(module) && schedule_sums(module) && schedule_timeline(module, scratch, &timeline);
    if (good && timeline) {
        dtm_timeline_limits limits = {.receive_slots = INT_MAX, .send_buffers = INT_MAX};
        for (size_t r = 0; r < module->n_ranks; r++) { /* edited ones may differ */
            const double *number = dtm_op_get(module->ranks[r], dtm_rank_loop(module->ranks[r]))->attributes.number;
            limits.receive_slots = (int)fmin(limits.receive_slots, number[DTM_MICROBATCH_SLOTS]);
            limits.send_buffers = (int)fmin(limits.send_buffers, number[DTM_MICROBATCH_BUFFERS]);
        }
        dtm_timeline_proof proof;
        good = dtm_timeline_prove(module->context, scratch, timeline, NULL, &limits, &proof) && schedule_walk(module, scratch);
    }
    dtm_arena_destroy(scratch);
    return good;
}
