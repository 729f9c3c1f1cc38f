/* The copies of the split repeat: those of a stage are the same wherever the stage lies and whatever part of it runs them, and
 * stages follow one another in them, from the first copy on. A dump that comes back may say otherwise. */
#include "ir/calls.h"
#include "passes/schedule.h"

#include <string.h>

typedef struct stage_copies {
    int64_t from, count; /* count 0: none found */
    dtm_span span;
} stage_copies;

/* As stage calls the split repeat of a chunk: `layer`, `layer_2`. */
static bool is_split(const dtm_module *rank, const dtm_op_data *op, int chunk) {
    dtm_string name = rank->settings.pipeline.repeat;
    if (chunk) name = dtm_string_printf(rank->context, "%s_%d", dtm_string_text(rank->context, name), chunk + 1);
    return op->kind == DTM_OP_REPEAT && op->attributes.name == name;
}

static bool take(const dtm_module *rank, const dtm_op_data *region, stage_copies *all) {
    int stage = (int)region->attributes.number[DTM_REGION_STAGE];
    const dtm_region_data *body = &rank->regions[region->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(rank, body->ops[i]);
        if (!is_split(rank, op, (int)region->attributes.number[DTM_REGION_CHUNK])) continue;
        const dtm_attributes *a = &op->attributes;
        stage_copies *known = &all[stage];
        if (!known->count) *known = (stage_copies){a->from, a->copies, op->span};
        if (known->from == a->from && known->count == a->copies) continue;
        dtm_error(rank->context, op->span, 413, "rank %lld runs %lld cop%s from %lld on in stage %d, elsewhere these are %lld from %lld on",
                  (long long)rank->rank, (long long)a->copies, a->copies == 1 ? "y" : "ies", (long long)a->from, stage,
                  (long long)known->count, (long long)known->from);
        dtm_note(rank->context, known->span, "there");
        return false;
    }
    return true;
}

static bool follow(const dtm_module *module, const stage_copies *all, int stages) {
    const dtm_pipeline_rule *rule = &module->settings.pipeline;
    int64_t next = 0;
    if (stages && rule->n_stages && rule->n_stages != (size_t)stages && rule->n_stages != module->n_ranks) {
        dtm_error(module->context, rule->stages_span, 413, "`stages` has %zu entr%s, and %zu ranks have %d stages", rule->n_stages,
                  rule->n_stages == 1 ? "y" : "ies", module->n_ranks, stages);
        return false;
    }
    for (int k = 0; k < stages; k++) {
        const stage_copies *c = &all[k];
        int64_t said = rule->n_stages == (size_t)stages ? rule->stages[k] : c->count;
        if (c->count && c->from != next) {
            dtm_error(module->context, c->span, 413, "stage %d runs copies from %lld on, and %lld stand%s before it", k, (long long)c->from,
                      (long long)next, next == 1 ? "s" : "");
            return false;
        }
        if (c->count && c->count != said) {
            dtm_error(module->context, c->span, 413, "stage %d runs %lld cop%s, where `stages` says %lld", k, (long long)c->count,
                      c->count == 1 ? "y" : "ies", (long long)said);
            return false;
        }
        next += said;
    }
    return true;
}

bool schedule_copies(const dtm_module *module, dtm_arena *scratch) {
    int64_t chunks = module->settings.pipeline.chunks > 1 ? module->settings.pipeline.chunks : 1;
    int stages = (int)((int64_t)module->n_ranks * chunks);
    stage_copies *all = dtm_arena_alloc(scratch, (size_t)stages * sizeof *all);
    for (size_t r = 0; r < module->n_ranks; r++) {
        const dtm_module *rank = module->ranks[r];
        dtm_op loop = dtm_rank_loop(rank);
        const dtm_region_data *body = loop ? &rank->regions[dtm_op_get(rank, loop)->body] : NULL;
        for (size_t i = 0; body && i < body->n_ops; i++) {
            const dtm_op_data *region = dtm_op_get(rank, body->ops[i]);
            bool of_stage = region->body && (region->kind == DTM_OP_FORWARD || region->kind == DTM_OP_BACKWARD);
            double stage = of_stage ? region->attributes.number[DTM_REGION_STAGE] : -1;
            if (stage >= stages) {
                dtm_error(module->context, region->span, 413, "stage %.0f of a pipeline that has %d at most, counted from 0", stage, stages);
                return false;
            }
            if (stage >= 0 && !take(rank, region, all)) return false;
        }
    }
    return follow(module, all, stages);
}
