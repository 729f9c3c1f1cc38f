/* The program as a row of units (stage.h): as if it were cut into what stands before the split repeat, its first copy,
 * its other copies, and what stands after it, each on a rank of its own. The programs of these ranks are made by
 * stage_emit and go through the passes that follow like any other, so that a unit's cost is that of the kernels it
 * comes to. Copies are alike, and one of them is looked at however many there are. */
#include "passes/cost.h"
#include "passes/overlap_room.h"
#include "passes/passes.h"
#include "passes/schedule.h"
#include "passes/stage.h"
#include "passes/stage_cost.h"

#include <math.h>
#include <string.h>

enum { BEFORE, COPY, AFTER, UNITS };

/* What lies all through a step and stands outside of the split repeat. */
typedef struct held_item {
    dtm_op from; /* in the whole program */
    double bytes;
    bool summed; /* by each stage for itself */
} held_item;

typedef struct unit_cost {
    dtm_stage_cost cost;
    double gradients; /* bytes */
    double rest;      /* bytes of the arena beside what is held and kept */
    held_item *items;
    size_t n_items, cap_items;
} unit_cost;

static void add_items(const stages *cut, const dtm_module *program, unit_cost *unit) {
    for (size_t i = 0; i < cut->n_origins; i++) {
        stage_origin origin = cut->origins[i];
        if (cut->around[origin.from]) continue;
        bool summed = dtm_op_get(program, origin.made)->kind == DTM_OP_ACCUMULATE;
        held_item item = {origin.from, dtm_bytes_of_copies(program, origin.made), summed};
        DTM_PUSH(cut->scratch, unit->items, unit->n_items, unit->cap_items, item);
    }
}

static unit_cost measure(stages *cut, int rank, const dtm_mesh *mesh, bool divided) {
    dtm_arena *arena = dtm_arena_create();
    dtm_stage_cost *costs = dtm_arena_alloc(arena, (size_t)cut->count * sizeof *costs);
    dtm_module *program = stage_emit(cut, rank);
    unit_cost unit = {0};
    add_items(cut, program, &unit);
    dtm_module_compact(program);
    /* their only fault could be the program's own, and is then found in it */
    if (divided) schedule_split(program);
    dtm_pass_fuse_collectives(program);
    dtm_pass_fuse(program);
    dtm_pass_memory(program);
    program->settings.mesh = *mesh;
    dtm_stage_costs_read(program, costs);
    unit.gradients = dtm_stage_gradients(program);
    unit.cost = costs[rank];
    unit.rest = fmax(0, (double)program->arena_bytes - unit.cost.held - (divided ? fmax(unit.cost.kept, unit.cost.kept_for_weight) : unit.cost.kept));
    dtm_module_destroy(program);
    dtm_arena_destroy(arena);
    return unit;
}

static bool has_item(const unit_cost *unit, dtm_op from) {
    for (size_t i = 0; i < unit->n_items; i++)
        if (unit->items[i].from == from) return true;
    return false;
}

/* Takes out of what units hold what several have: a weight that stands before the repeat and is read after it too, or by each copy.
 * What the same units have is counted together. */
static void find_shared(unit_cost *units, dtm_arena *arena, dtm_timeline_problem *p) {
    dtm_shared_bytes by_units[1 << UNITS] = {{0}};
    for (int u = 0; u < UNITS; u++)
        for (size_t i = 0; i < units[u].n_items; i++) {
            const held_item *item = &units[u].items[i];
            int having = 0;
            for (int k = 0; k < UNITS; k++) having |= has_item(&units[k], item->from) << k;
            if (having == 1 << BEFORE || having == 1 << AFTER) continue;
            units[u].cost.held -= item->bytes;
            units[u].gradients -= item->summed ? item->bytes : 0;
            if (having >> u == 1) *(item->summed ? &by_units[having].stage : &by_units[having].rank) += item->bytes; /* once */
        }
    dtm_shared_bytes *shared = dtm_arena_alloc(arena, sizeof by_units);
    for (int having = 1; having < 1 << UNITS; having++) {
        if (by_units[having].rank <= 0 && by_units[having].stage <= 0) continue;
        for (int u = 0; u < UNITS; u++) units[u].cost.shares |= (uint32_t)(having >> u & 1) << p->n_shared;
        shared[p->n_shared++] = by_units[having];
    }
    p->shared = shared;
}

/* A pipeline of so many ranks over the same program. */
static stages as_if(const stages *s, dtm_module *module, dtm_arena *scratch, int ranks) {
    *module = *s->module; /* read only: with another number of ranks along the axis */
    module->settings.mesh.axes[s->rule->axis].size = ranks;
    stages cut = {.module = module,
                  .scratch = scratch,
                  .rule = &module->settings.pipeline,
                  .n_ranks = ranks,
                  .chunks = 1,
                  .count = ranks,
                  .loop = s->loop,
                  .good = true,
                  .quiet = true};
    cut.places = dtm_timeline_create(scratch, "units", DTM_PLACE_LOOP, ranks, 1, 1);
    cut.first = dtm_arena_alloc(scratch, ((size_t)ranks + 1) * sizeof *cut.first);
    stage_prepare(&cut);
    return cut;
}

static void set_limits(const stages *s, double rest, dtm_timeline_problem *p) {
    const dtm_module *module = s->module;
    dtm_link link = dtm_link_of(module, (uint16_t)(1 << s->rule->axis));
    double room = dtm_room_of(module), memory = isfinite(room) ? room : 0;
    int64_t microbatches = dtm_op_get(module, s->loop)->attributes.copies / (s->rule->rounds ? s->rule->rounds : 1);
    p->ranks = s->n_ranks;
    p->microbatches = microbatches < INT32_MAX ? (int)microbatches : INT32_MAX;
    p->latency = link.latency;
    p->bandwidth = link.bandwidth;
    p->memory = memory <= 0 ? 0 : memory > rest ? memory - rest : 1;
    p->chunks = (int)s->rule->chunks;
    p->span = s->rule->span;
}

bool stage_units(stages *s, int64_t copies, dtm_arena *arena, dtm_timeline_problem *p) {
    dtm_arena *scratch = dtm_arena_create();
    dtm_module module;
    const dtm_mesh *mesh = &s->module->settings.mesh;
    const char *schedule = dtm_string_text(s->module->context, s->rule->schedule);
    bool searched = strcmp(schedule, "auto") == 0, divided = dtm_timeline_splits(schedule) || searched;
    bool single = s->n_ranks == 1 && s->rule->chunks <= 1;
    int ranks = single ? 1 : copies > 1 ? 4 : 3;
    stages cut = as_if(s, &module, scratch, ranks);
    for (int k = COPY + 1; k <= ranks; k++) cut.first[k] = k == COPY + 1 && !single ? 1 : copies;
    if (single) cut.first[1] = copies;
    bool good = stage_find(&cut);
    if (good && single) {
        unit_cost all = measure(&cut, 0, mesh, divided);
        *p = (dtm_timeline_problem){.units = 1, .layers = 1};
        dtm_stage_cost *unit = dtm_arena_alloc(arena, sizeof *unit);
        *unit = all.cost;
        p->unit = unit;
        set_limits(s, all.rest, p);
    } else if (good) {
        unit_cost of[UNITS] = {measure(&cut, BEFORE, mesh, divided), measure(&cut, COPY, mesh, divided),
                               measure(&cut, ranks - 1, mesh, divided)};
        int layers = searched ? (int)copies : 1; /* only the search asks for each of them */
        *p = (dtm_timeline_problem){.units = layers + 2, .first_layer = 1, .layers = layers};
        dtm_stage_cost *unit = dtm_arena_alloc(arena, (size_t)p->units * sizeof *unit);
        find_shared(of, arena, p);
        unit[0] = of[BEFORE].cost;
        for (int u = 1; u <= layers; u++) unit[u] = of[COPY].cost;
        unit[layers + 1] = of[AFTER].cost;
        p->unit = unit;
        for (int u = 0; u < UNITS; u++) s->gradients[u] = of[u].gradients;
        set_limits(s, fmax(of[BEFORE].rest, fmax(of[COPY].rest, of[AFTER].rest)), p);
    }
    dtm_arena_destroy(scratch);
    return good;
}
