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

/* Stages that a rank holds; stage writes them into the rule where it is not one. */
static int chunks_of(const dtm_module *module) {
    int64_t chunks = module->settings.pipeline.chunks;
    return chunks > 1 ? (int)chunks : 1;
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

bool schedule_places(const dtm_module *module, const dtm_timeline *timeline) {
    for (size_t r = 0; r < module->n_ranks; r++) {
        const dtm_module *rank = module->ranks[r];
        dtm_op loop = dtm_rank_loop(rank);
        const dtm_region_data *body = loop ? &rank->regions[dtm_op_get(rank, loop)->body] : NULL;
        bool both_ways = timeline->placement == DTM_PLACE_BIDIRECTIONAL;
        if (loop && ((dtm_op_get(rank, loop)->attributes.flags & DTM_MICROBATCH_BOTH_WAYS) != 0) != both_ways) {
            dtm_error(module->context, dtm_op_get(rank, loop)->span, 512, "microbatches pass the pipeline %s, and the loop of rank %zu %s",
                      both_ways ? "both ways" : "one way", r, both_ways ? "is not `both_ways`" : "is `both_ways`");
            return false;
        }
        for (size_t i = 0; body && i < body->n_ops; i++) {
            const dtm_op_data *region = dtm_op_get(rank, body->ops[i]);
            double stage = region->attributes.number[DTM_REGION_STAGE], chunk = region->attributes.number[DTM_REGION_CHUNK];
            if (!region->body || stage < 0) continue; /* of no stage */
            bool there = chunk < timeline->chunks;
            if (there && stage == dtm_timeline_stage(timeline, (int)r, (int)chunk)) continue;
            if (!there)
                dtm_error(module->context, region->span, 512, "chunk %.0f of a pipeline whose ranks hold %d stage%s each, counted from 0", chunk,
                          timeline->chunks, dtm_plural(timeline->chunks));
            else
                dtm_error(module->context, region->span, 512, "chunk %.0f of rank %zu is stage %d where stages lie so, not %.0f", chunk, r,
                          dtm_timeline_stage(timeline, (int)r, (int)chunk), stage);
            return false;
        }
    }
    return true;
}

/* Whether a timeline has such a task. */
static bool has_task(const dtm_module *module, const dtm_timeline *t, dtm_task task, dtm_span span) {
    int passing = task.chunk < t->chunks ? dtm_timeline_passing(t, task.chunk) : 0;
    if ((int64_t)task.microbatch < passing) return true;
    char letter = DTM_TASK_LETTERS[task.kind];
    if (task.chunk >= t->chunks)
        dtm_error(module->context, span, 512, "the order has %c%u.%u, and ranks hold %d stage%s each: chunks count from 0", letter,
                  task.microbatch, task.chunk, t->chunks, dtm_plural(t->chunks));
    else
        dtm_error(module->context, span, 512, "the order has %c%u.%u, and %d microbatch%s %s there: they count from 0", letter, task.microbatch,
                  task.chunk, passing, passing == 1 ? "" : "es", passing == 1 ? "passes" : "pass");
    return false;
}

static bool add_rank(const dtm_module *module, dtm_timeline *timeline, int rank, dtm_arena *arena) {
    const dtm_module *own = module->ranks[rank];
    dtm_op loop = dtm_rank_loop(own);
    const dtm_op_data *data = dtm_op_get(own, loop);
    dtm_loop_tasks tasks;
    const char *wrong = dtm_loop_tasks_of(own, loop, arena, &tasks);
    if (wrong) {
        dtm_error(module->context, data->span, 512, "%s", wrong);
        return false;
    }
    for (size_t i = 0; i < tasks.count; i++) {
        dtm_operation o = tasks.items[i];
        o.span = data->span;
        for (int k = 0; k < (o.kind == DTM_OPERATION_PAIR ? 2 : 1); k++)
            if (!has_task(module, timeline, o.tasks[k], data->span)) return false;
        dtm_timeline_add_operation(timeline, rank, o);
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
    const dtm_settings *settings = &module->settings;
    dtm_placement placement = placement_of(module);
    int chunks = chunks_of(module);
    if (placement == DTM_PLACE_SINGLE && chunks > 1) placement = DTM_PLACE_LOOP; /* no rank has anything of its other chunks */
    if (placement == DTM_PLACE_BIDIRECTIONAL && chunks != 2) {
        dtm_error(module->context, settings->pipeline.span, 512, "stages in both directions are 2 a rank, not %d", chunks);
        return false;
    }
    *timeline = dtm_timeline_create(arena, dtm_string_text(module->context, settings->pipeline.schedule), placement, (int)module->n_ranks,
                                    (int)settings->microbatches, chunks);
    good = schedule_places(module, *timeline);
    for (size_t r = 0; good && r < module->n_ranks; r++) good = add_rank(module, *timeline, (int)r, arena);
    return good;
}

bool schedule_prove(const dtm_module *module) {
    dtm_arena *scratch = dtm_arena_create();
    dtm_timeline *timeline = NULL;
    bool good = schedule_copies(module, scratch) && schedule_messages(module) && schedule_weights(module, scratch) &&
                schedule_timeline(module, scratch, &timeline);
    if (good && timeline) {
        dtm_timeline_limits limits = {.receive_slots = INT_MAX, .send_buffers = INT_MAX};
        for (size_t r = 0; r < module->n_ranks; r++) { /* edited ones may differ */
            const double *number = dtm_op_get(module->ranks[r], dtm_rank_loop(module->ranks[r]))->attributes.number;
            limits.receive_slots = (int)fmin(limits.receive_slots, number[DTM_MICROBATCH_SLOTS]);
            limits.send_buffers = (int)fmin(limits.send_buffers, number[DTM_MICROBATCH_BUFFERS]);
        }
        dtm_timeline_proof proof;
        good = dtm_timeline_prove(module->context, scratch, timeline, NULL, &limits, &proof);
    }
    good = good && schedule_walk(module, scratch);
    dtm_arena_destroy(scratch);
    return good;
}
