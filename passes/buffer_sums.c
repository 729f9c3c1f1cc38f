/* buffer, sums: what overlap starts in the last calls of a pipeline's loop, sums over other axes and sums along the pipeline, goes the
 * ways of messages if it goes over the same link. It may hold up one that another rank waits for:
 *
 *     rank 3    .. B7 | the sums of its layers, of each from its last B on      B7's result goes after those that were started
 *     rank 2    ..                                               B7 ..          before it ended, and so on up to rank 0
 *
 * So a step is predicted with all of them as they are, with those alone that go over other axes, and with none. The quickest is taken, of
 * equals the first; what it lacks stands where its line is. */
#include "passes/buffer_sums.h"
#include "ir/storage.h"
#include "passes/cost.h"
#include "passes/stage_cost.h"
#include "passes/step_time.h"

#include <string.h>

enum { ALL, OVER_OTHER_AXES, NONE, CHOICES };

typedef struct started {
    dtm_module *rank;
    dtm_op op;
    double stream;
    bool along; /* the pipeline */
} started;

typedef struct judge {
    dtm_module *module;
    dtm_arena *arena;
    const dtm_timeline *timeline;
    started *items;
    size_t count, n_along, capacity;
} judge;

static void find_started(judge *j) {
    const dtm_module *first = j->module->ranks[0];
    dtm_link messages = dtm_link_of(first, (uint16_t)(1 << first->settings.pipeline.axis));
    for (size_t r = 0; r < j->module->n_ranks; r++) {
        dtm_module *rank = j->module->ranks[r];
        for (dtm_op op = 1; op < rank->n_ops; op++) {
            if (!dtm_is_apart(rank, op) || !dtm_step_starts_in_loop(rank, op)) continue;
            const dtm_op_data *data = &rank->ops[op];
            if (strcmp(dtm_link_of(rank, data->attributes.axes).name, messages.name) != 0) continue;
            started s = {rank, op, data->attributes.number[DTM_COLLECTIVE_APART], dtm_along_pipeline(rank, data)};
            DTM_PUSH(j->arena, j->items, j->count, j->capacity, s);
            j->n_along += s.along;
        }
    }
}

static bool keeps(const started *s, int choice) { return choice == ALL || (choice == OVER_OTHER_AXES && !s->along); }

static void take(const judge *j, int choice) {
    for (size_t i = 0; i < j->count; i++) {
        const started *s = &j->items[i];
        s->rank->ops[s->op].attributes.number[DTM_COLLECTIVE_APART] = keeps(s, choice) ? s->stream : 0;
    }
}

static double step_of(const judge *j) {
    dtm_arena *arena = dtm_arena_create();
    dtm_timeline_costs costs = dtm_stage_costs(j->module, arena);
    costs.slots = costs.buffers = 0;
    double time = dtm_step_predict(j->module, j->timeline, dtm_timeline_simulate(arena, j->timeline, &costs)).all;
    dtm_arena_destroy(arena);
    return time;
}

static int quickest(const judge *j) {
    int best = ALL;
    double least = step_of(j);
    for (int choice = ALL + 1; choice < CHOICES; choice++) {
        if (choice == OVER_OTHER_AXES && (!j->n_along || j->n_along == j->count)) continue; /* it is ALL, or NONE */
        take(j, choice);
        double time = step_of(j);
        if (time < least) least = time, best = choice;
    }
    return best;
}

static void say(dtm_module *rank, dtm_op op) {
    static const char reason[] = "waited for where it stands: started ahead it would hold up messages";
    dtm_string why = rank->ops[op].why;
    rank->ops[op].why = why ? dtm_string_printf(rank->context, "%s; %s", dtm_string_text(rank->context, why), reason)
                            : dtm_string_of(rank->context, reason);
}

void dtm_buffer_sums(dtm_module *module, const dtm_timeline *timeline) {
    judge j = {.module = module, .arena = dtm_arena_create(), .timeline = timeline};
    find_started(&j);
    int best = j.count ? quickest(&j) : ALL;
    take(&j, best);
    for (size_t i = 0; i < j.count; i++)
        if (!keeps(&j.items[i], best)) say(j.items[i].rank, j.items[i].op);
    dtm_arena_destroy(j.arena);
}
