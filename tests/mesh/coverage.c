/* See coverage.h. */
#include "coverage.h"

#include <string.h>

static const char *const rules[] = {
    "",
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand) #factors,
#include "ir/ops.def"
#undef OP
};
static const bool expands[] = {
    false,
#define OP(kind, name, least, most, results, factors, linear, numbers, flags, gradient, expand) #expand[0] != 'n',
#include "ir/ops.def"
#undef OP
};

/* What random programs cannot or need not have: operators not executed yet, numbers without dimensions, and `expand`,
 * which canonicalize removes. */
static const dtm_op_kind exempt[] = {DTM_OP_TOP,           DTM_OP_EXPERTS,         DTM_OP_FILL,
                                     DTM_OP_LEARNING_RATE, DTM_OP_BIAS_CORRECTION, DTM_OP_EXPAND};

static bool follows(int kind, const char *rule) { return strcmp(rules[kind], rule) == 0; }

/* ---- what modules show ---- */

static void count_one(dtm_module *module, dtm_op op, void *state) { ((long *)state)[dtm_op_get(module, op)->kind]++; }

void coverage_count(dtm_module *module, long counts[DTM_OP_KINDS]) {
    memset(counts, 0, DTM_OP_KINDS * sizeof *counts);
    dtm_walk(module, count_one, counts);
}

void coverage_add_expanded(coverage *c, const long before[DTM_OP_KINDS], const long after[DTM_OP_KINDS]) {
    for (int kind = 0; kind < DTM_OP_KINDS; kind++)
        if (expands[kind] && after[kind] < before[kind]) c->met[kind][SPLIT_NORMALISED] += before[kind] - after[kind];
}

static unsigned blocks_of(const dtm_module *module, const dtm_type_data *type, int index) {
    const dtm_mesh *mesh = &module->settings.mesh;
    int64_t most = 0, least = INT64_MAX, coordinates[DTM_MAX_AXES];
    for (int64_t rank = 0; rank < dtm_mesh_ranks(mesh); rank++) {
        int64_t begin, size;
        dtm_mesh_coordinates(mesh, rank, coordinates);
        dtm_block(module, type, index, coordinates, &begin, &size);
        if (size > most) most = size;
        if (size < least) least = size;
    }
    return 1u << (least == most ? SPLIT_EVEN : least ? SPLIT_UNEVEN : SPLIT_EMPTY);
}

static bool is_named(const dtm_module *module, const dtm_factor *f, const char *name) {
    for (int i = 0; i < f->n_names; i++)
        if (strcmp(dtm_dim_name(module, f->names[i]), name) == 0) return true;
    return false;
}

/* How a factor is split, as bits of split_kind; 0 if it is not. */
static unsigned kinds_of_factor(const dtm_module *module, const dtm_op_data *op, const dtm_factor *f) {
    unsigned kinds = 0;
    for (uint32_t i = 0; i < op->n_operands + op->n_results; i++) {
        bool operand = i < op->n_operands;
        int index = operand ? f->operand_dim[i] : f->result_dim[i - op->n_operands];
        const dtm_type_data *type =
            dtm_value_type(module, operand ? op->operands[i] : op->results[i - op->n_operands]);
        if (index >= 0 && type->layout[index].count) kinds |= blocks_of(module, type, index);
    }
    if (!kinds || f->kind == DTM_FACTOR_FIXED) return 0;
    bool attends = op->kind == DTM_OP_ATTENTION || op->kind == DTM_OP_ATTENTION_BACKWARD;
    if (attends && f->positions) kinds |= 1u << SPLIT_POSITIONS;
    if (attends && (is_named(module, f, "H") || is_named(module, f, "G"))) kinds |= 1u << SPLIT_HEADS;
    /* the gradient of a norm's input carries what that of its scale sums away */
    if (follows(op->kind, "norm_backward")) kinds |= 1u << SPLIT_CARRIED;
    return kinds | 1u << (f->kind == DTM_FACTOR_REDUCED ? SPLIT_REDUCED : SPLIT_CARRIED);
}

/* Whether an axis of size 1 would split it. */
static bool meets_one(const dtm_module *module, const dtm_factor *f) {
    const dtm_settings *s = &module->settings;
    for (size_t r = 0; r < s->n_splits; r++) {
        if (s->mesh.axes[s->splits[r].axis].size != 1) continue;
        for (int d = 0; d < s->splits[r].count; d++)
            for (int i = 0; i < f->n_names; i++)
                if (f->names[i] == s->splits[r].dims[d]) return true;
    }
    return false;
}

static void add_one(dtm_module *module, dtm_op at, void *state) {
    const dtm_op_data *op = dtm_op_get(module, at);
    dtm_factor factors[DTM_MAX_FACTORS];
    size_t count = dtm_factors(module, at, factors);
    unsigned kinds = 0;
    for (size_t i = 0; i < count; i++) {
        kinds |= kinds_of_factor(module, op, &factors[i]);
        if (meets_one(module, &factors[i])) kinds |= 1u << SPLIT_ONE;
    }
    if (!(kinds & ~(1u << SPLIT_ONE))) kinds |= 1u << SPLIT_ALIKE;
    for (int k = 0; k < SPLIT_KINDS; k++)
        if (kinds & 1u << k) ((coverage *)state)->met[op->kind][k]++;
}

void coverage_add(coverage *c, dtm_module *module) { dtm_walk(module, add_one, c); }

/* ---- microbatches ---- */

typedef struct microbatch_look {
    uint16_t within, besides; /* axes that split samples of a microbatch; axes that split something else */
    int64_t least, most;      /* samples in a microbatch */
    int loops;
} microbatch_look;

static void look_at_layout(const dtm_module *module, const dtm_type_data *type, int index, microbatch_look *look) {
    const dtm_mesh *mesh = &module->settings.mesh;
    dtm_dim_layout first = type->layout[index];
    bool in_time = first.count && mesh->axes[first.splits[0].axis].time;
    for (int s = in_time; s < first.count; s++)
        *(in_time ? &look->within : &look->besides) |= (uint16_t)(1 << first.splits[s].axis);
    if (!in_time) return;
    first.count = 1;
    for (int64_t m = 0; m < mesh->axes[first.splits[0].axis].size; m++) {
        int64_t coordinates[DTM_MAX_AXES] = {0}, begin, size;
        coordinates[first.splits[0].axis] = m;
        dtm_block_of(mesh, module->dims[type->dims[index]].size, &first, coordinates, &begin, &size);
        if (size < look->least) look->least = size;
        if (size > look->most) look->most = size;
    }
}

static void look_at(dtm_module *module, dtm_op op, void *state) {
    microbatch_look *look = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    look->loops += data->kind == DTM_OP_MICROBATCH;
    for (uint32_t r = 0; r < data->n_results; r++) {
        const dtm_type_data *type = dtm_value_type(module, data->results[r]);
        for (int d = 0; d < type->rank; d++) look_at_layout(module, type, d, look);
    }
}

void coverage_add_microbatches(coverage *c, dtm_module *module) {
    microbatch_look look = {.least = INT64_MAX};
    dtm_walk(module, look_at, &look);
    if (!look.loops) return;
    c->microbatches[MICROBATCHES]++;
    c->microbatches[MICROBATCHES_UNEVEN] += look.least < look.most;
    c->microbatches[MICROBATCHES_EMPTY] += look.least == 0;
    c->microbatches[MICROBATCHES_SHARED] += (look.within & look.besides) != 0;
    c->microbatches[MICROBATCHES_EARLY] += look.loops > 1;
}

void coverage_merge(coverage *into, const coverage *from) {
    for (int k = 0; k < MICROBATCH_KINDS; k++) into->microbatches[k] += from->microbatches[k];
    for (int f = 0; f < FEATURES; f++) into->features[f] += from->features[f];
    for (int i = 0; i < DTM_OP_KINDS; i++)
        for (int k = 0; k < SPLIT_KINDS; k++) into->met[i][k] += from->met[i][k];
}

/* ---- what must be met ---- */

/* Whether an operator is one that computes, and can be split. */
static bool required(int kind) {
    static const char *const others[] = {"", "none", "sink", "layout", "identity", NULL};
    for (int k = 0; others[k]; k++)
        if (follows(kind, others[k])) return false;
    for (size_t k = 0; k < sizeof exempt / sizeof *exempt; k++)
        if (kind == (int)exempt[k]) return false;
    return true;
}

static bool can_meet(int kind, int split) {
    bool attends = follows(kind, "attention");
    switch (split) {
    case SPLIT_ALIKE: return false;
    case SPLIT_REDUCED:
        return follows(kind, "dot") || follows(kind, "reduce") || follows(kind, "gather") || follows(kind, "scatter") ||
               follows(kind, "norm_backward") || kind == DTM_OP_ATTENTION_BACKWARD;
    case SPLIT_NORMALISED: return expands[kind];
    case SPLIT_HEADS:
    case SPLIT_POSITIONS: return attends;
    default: return true;
    }
}

int coverage_print(const coverage *c, FILE *out) {
    static const char *const kinds[] = {"alike",     "carried", "reduced", "normalised", "heads",
                                        "positions", "even",    "uneven",  "empty",      "one"};
    int missing = 0;
    fprintf(out, "%-22s", "operator");
    for (int k = 0; k < SPLIT_KINDS; k++) fprintf(out, " %10s", kinds[k]);
    fputc('\n', out);
    for (int i = 0; i < DTM_OP_KINDS; i++) {
        if (!required(i)) continue;
        fprintf(out, "%-22s", dtm_op_rows[i].name);
        for (int k = 0; k < SPLIT_KINDS; k++) {
            if (can_meet(i, k) || c->met[i][k]) fprintf(out, " %10ld", c->met[i][k]);
            else fprintf(out, " %10s", "-");
        }
        for (int k = 0; k < SPLIT_KINDS; k++)
            if (can_meet(i, k) && !c->met[i][k]) fprintf(out, "  never %s", kinds[k]), missing++;
        fputc('\n', out);
    }
    static const char *const with[] = {"in all", "uneven", "some empty", "whose samples an axis splits beside other dimensions",
                                       "after sums of inputs"};
    fprintf(out, "microbatches:");
    for (int k = 0; k < MICROBATCH_KINDS; k++) {
        fprintf(out, "%s %ld %s", k ? "," : "", c->microbatches[k], with[k]);
        if (!c->microbatches[k]) fprintf(out, " (never)"), missing++;
    }
    fputc('\n', out);
    for (int f = 0; f < FEATURES; f++) {
        fprintf(out, "%6ld with %s%s\n", c->features[f], feature_texts[f], c->features[f] ? "" : " (never)");
        missing += !c->features[f];
    }
    return missing;
}
