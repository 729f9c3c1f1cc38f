/* Edits of the placement, tried by compiling again: see alternatives.h. An edit is one line that a user would change:
 *   - an axis is given up and its ranks are moved to another (`mesh { dp = 8 }` for `{ dp = 2, tp = 4 }`);
 *   - a dimension is added to an axis' list, or taken from it (`tp splits H, F, S`). */
#include "passes/alternatives.h"

#include "passes/passes.h"

#include <string.h>

typedef struct tries {
    const dtm_module *source;
    dtm_arena *arena;
    dtm_alternative *items;
    size_t count, capacity;
} tries;

enum { MOST_TRIES = 48 };

static bool compile(dtm_module *module) {
    return dtm_pass_canonicalize(module) && dtm_pass_autodiff(module) && dtm_pass_shard(module) &&
           dtm_pass_partition(module) && dtm_pass_microbatch(module) && dtm_pass_fuse_collectives(module);
}

/* Of the kernels that it comes to. */
static double step_time(const dtm_module *module) {
    dtm_module *fused = dtm_module_clone(module);
    dtm_pass_fuse(fused);
    double time = dtm_step_time(fused);
    dtm_module_destroy(fused);
    return time;
}

/* What a try reports is dropped. */
static void add_try(tries *t, dtm_module *module, const char *edit) {
    size_t mark = dtm_diagnostics_mark(module->context);
    dtm_alternative alternative = {edit, module, {0}};
    if (t->count < MOST_TRIES && compile(module)) {
        alternative.ledger = dtm_ledger_of(module, t->arena);
        alternative.step_time = step_time(module);
        DTM_PUSH(t->arena, t->items, t->count, t->capacity, alternative);
    } else {
        dtm_module_destroy(module);
    }
    dtm_diagnostics_rewind(t->source->context, mark);
}

static const char *mesh_text(const tries *t, const dtm_mesh *mesh) {
    dtm_text text = {t->arena, NULL, 0, 0};
    const char *before = "mesh { ";
    for (int a = 0; a < mesh->count; a++) {
        if (mesh->axes[a].time || mesh->axes[a].size == 1) continue;
        dtm_text_printf(&text, "%s%s = %lld", before, dtm_string_text(t->source->context, mesh->axes[a].name),
                        (long long)mesh->axes[a].size);
        before = ", ";
    }
    dtm_text_printf(&text, " }");
    return text.data;
}

static void try_meshes(tries *t) {
    const dtm_mesh *mesh = &t->source->settings.mesh;
    for (int from = 0; from < mesh->count; from++)
        for (int to = 0; to < mesh->count; to++) {
            if (from == to || mesh->axes[from].time || mesh->axes[to].time || mesh->axes[from].size == 1) continue;
            dtm_module *module = dtm_module_clone(t->source);
            module->settings.mesh.axes[to].size *= module->settings.mesh.axes[from].size;
            module->settings.mesh.axes[from].size = 1;
            add_try(t, module, mesh_text(t, &module->settings.mesh));
        }
}

static const char *rule_text(const tries *t, const dtm_module *module, const dtm_splits_rule *rule) {
    dtm_text text = {t->arena, NULL, 0, 0};
    dtm_text_printf(&text, "%s splits", dtm_string_text(module->context, module->settings.mesh.axes[rule->axis].name));
    for (int i = 0; i < rule->count; i++)
        dtm_text_printf(&text, "%s%s", i ? ", " : " ", dtm_dim_name(module, rule->dims[i]));
    if (!rule->count) dtm_text_printf(&text, " nothing");
    if (rule->by_cost) dtm_text_printf(&text, " by cost");
    return text.data;
}

/* Dimensions worth adding: those of the inputs, which sequence and data parallelism split. */
static void try_adding(tries *t, size_t index) {
    const dtm_splits_rule *rule = &t->source->settings.splits[index];
    dtm_dim dims[4 * DTM_MAX_RANK];
    size_t n_dims = 0;
    for (dtm_op op = 1; op < t->source->n_ops; op++) {
        const dtm_op_data *data = &t->source->ops[op];
        if (data->kind != DTM_OP_INPUT || !data->region) continue;
        const dtm_type_data *type = dtm_value_type(t->source, data->results[0]);
        for (int d = 0; d < type->rank; d++) {
            bool known = false;
            for (size_t i = 0; i < n_dims; i++) known |= dims[i] == type->dims[d];
            for (int i = 0; i < rule->count; i++) known |= rule->dims[i] == type->dims[d];
            if (!known && n_dims < 4 * DTM_MAX_RANK) dims[n_dims++] = type->dims[d];
        }
    }
    for (size_t i = 0; i < n_dims && rule->count < 32; i++) {
        dtm_module *module = dtm_module_clone(t->source);
        dtm_splits_rule *edited = &module->settings.splits[index];
        edited->dims[edited->count++] = dims[i];
        add_try(t, module, rule_text(t, module, edited));
    }
}

static void try_removing(tries *t, size_t index) {
    const dtm_splits_rule *rule = &t->source->settings.splits[index];
    for (int i = 0; rule->count > 1 && i < rule->count; i++) {
        dtm_module *module = dtm_module_clone(t->source);
        dtm_splits_rule *edited = &module->settings.splits[index];
        memmove(edited->dims + i, edited->dims + i + 1, (size_t)(edited->count - i - 1) * sizeof *edited->dims);
        edited->count--;
        add_try(t, module, rule_text(t, module, edited));
    }
}

dtm_alternative *dtm_alternatives_of(const dtm_module *source, dtm_arena *arena, size_t *count) {
    tries t = {source, arena, NULL, 0, 0};
    try_meshes(&t);
    for (size_t i = 0; i < source->settings.n_splits; i++) {
        try_adding(&t, i);
        try_removing(&t, i);
    }
    *count = t.count;
    return t.items;
}

dtm_alternative *dtm_alternatives_by_cost(const dtm_module *source, dtm_arena *arena, size_t *count) {
    tries t = {source, arena, NULL, 0, 0};
    for (size_t i = 0; i < source->settings.n_splits; i++) {
        const dtm_splits_rule *rule = &source->settings.splits[i];
        if (rule->count < 2 || rule->by_cost || source->settings.mesh.axes[rule->axis].size == 1) continue;
        dtm_module *module = dtm_module_clone(source);
        module->settings.splits[i].by_cost = true;
        add_try(&t, module, rule_text(&t, module, &module->settings.splits[i]));
    }
    *count = t.count;
    return t.items;
}

void dtm_alternatives_destroy(dtm_alternative *alternatives, size_t count) {
    for (size_t i = 0; i < count; i++) dtm_module_destroy(alternatives[i].module);
}

static bool same_layout(const dtm_type_data *a, const dtm_type_data *b) {
    return a->sum == b->sum && a->max == b->max && memcmp(a->layout, b->layout, sizeof a->layout) == 0;
}

const char *dtm_alternative_differences(const dtm_module *module, const dtm_alternative *alternative, dtm_arena *arena) {
    enum { NAMED = 6 };
    dtm_text text = {arena, NULL, 0, 0};
    const dtm_module *other = alternative->module;
    int found = 0;
    for (dtm_value v = 1, w = 1; v < module->n_values; v++) { /* both in the order of the text, which is nearly the same */
        dtm_op def = module->values[v].def;
        if (!def || !module->ops[def].region || !dtm_enclosing(module, def, DTM_OP_FORWARD)) continue;
        if (module->ops[def].kind == DTM_OP_WEIGHT || !dtm_value_source_name(module, v)) continue;
        for (size_t steps = 0; steps < other->n_values && other->values[w].name != module->values[v].name; steps++)
            w = w + 1 < other->n_values ? w + 1 : 1;
        if (other->values[w].name != module->values[v].name) continue;
        if (same_layout(dtm_value_type(module, v), dtm_value_type(other, w))) continue;
        if (++found <= NAMED) dtm_text_printf(&text, "%s%s", found > 1 ? ", " : "", dtm_value_name(module, v));
    }
    if (found > NAMED) dtm_text_printf(&text, " and %d more", found - NAMED);
    return found ? text.data : NULL;
}

static bool alike(const dtm_module *a, const dtm_ledger_entry *x, const dtm_module *b, const dtm_ledger_entry *y) {
    const dtm_op_data *p = &a->ops[x->op], *q = &b->ops[y->op];
    return x->kind == y->kind && x->phase == y->phase && (x->axes & y->axes) && p->place.line == q->place.line &&
           p->place.file == q->place.file;
}

const dtm_alternative *dtm_alternative_without(const dtm_module *module, const dtm_ledger_entry *entry,
                                               const dtm_alternative *alternatives, size_t count) {
    const dtm_alternative *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const dtm_alternative *a = &alternatives[i];
        bool gone = true;
        for (size_t j = 0; gone && j < a->ledger.count; j++)
            gone = !alike(module, entry, a->module, &a->ledger.entries[j]);
        if (!gone) continue;
        if (!best || a->step_time < best->step_time ||
            (a->step_time == best->step_time && a->ledger.sent < best->ledger.sent))
            best = a;
    }
    return best;
}
