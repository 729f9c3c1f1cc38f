/* The module: dimensions, values, names, operators and regions; building and walking. */
#include "ir/ir.h"
#include "ir/timeline.h"

#include <stdlib.h>
#include <string.h>

/* ---- names: an open-addressing set of the value names in use, and for each base the next number to try ---- */

typedef struct name_entry {
    dtm_string name;
    uint32_t next;
} name_entry;

struct dtm_name_table {
    name_entry *entries;
    size_t count, size;
};

static name_entry *name_slot(struct dtm_name_table *table, dtm_string name) {
    size_t slot = (name * 2654435761u) & (table->size - 1);
    while (table->entries[slot].name && table->entries[slot].name != name) slot = (slot + 1) & (table->size - 1);
    return &table->entries[slot];
}

static name_entry *name_add(dtm_module *module, dtm_string name) {
    struct dtm_name_table *table = module->names;
    if (table->count * 2 >= table->size) {
        struct dtm_name_table grown = {NULL, table->count, table->size ? table->size * 2 : 256};
        grown.entries = dtm_arena_alloc(module->arena, grown.size * sizeof *grown.entries);
        for (size_t i = 0; i < table->size; i++)
            if (table->entries[i].name) *name_slot(&grown, table->entries[i].name) = table->entries[i];
        *table = grown;
    }
    name_entry *entry = name_slot(table, name);
    if (!entry->name) {
        *entry = (name_entry){name, 2};
        table->count++;
    }
    return entry;
}

static bool name_used(const dtm_module *module, dtm_string name) {
    return module->names->size && name_slot(module->names, name)->name;
}

dtm_string dtm_name_unique(dtm_module *module, const char *wanted) {
    if (!*wanted) wanted = "t";
    dtm_string name = dtm_string_of(module->context, wanted);
    if (!name_used(module, name)) {
        name_add(module, name);
        return name;
    }
    for (;;) {
        uint32_t number = name_slot(module->names, name)->next++;
        dtm_string numbered = dtm_string_printf(module->context, "%s.%u", wanted, number);
        if (!name_used(module, numbered)) {
            name_add(module, numbered);
            return numbered;
        }
    }
}

const char *dtm_value_name(const dtm_module *module, dtm_value value) {
    return dtm_string_text(module->context, module->values[value].name);
}

void dtm_value_rename(dtm_module *module, dtm_value value, const char *wanted) {
    if (strcmp(dtm_value_name(module, value), wanted) == 0) return;
    module->values[value].name = dtm_name_unique(module, wanted);
}

dtm_string dtm_value_source_name(const dtm_module *module, dtm_value value) {
    const char *name = dtm_value_name(module, value), *dot = strchr(name, '.');
    if (!dot) return module->values[value].name;
    if (dot[1 + strspn(dot + 1, "0123456789")]) return 0;
    return dtm_string_intern(module->context, name, (size_t)(dot - name));
}

/* ---- creation, cloning ---- */

/* In a growing array of operators or values the old place is dead: poisoned, so that a pointer kept over a build is
 * found out at once. */
#define PUSH_MOVING(module, array, count, capacity, element)                                                           \
    do {                                                                                                               \
        void *old_place = (module)->array;                                                                             \
        size_t old_bytes = (module)->count * sizeof *(module)->array;                                                  \
        DTM_PUSH((module)->arena, (module)->array, (module)->count, (module)->capacity, element);                      \
        if (old_place && old_place != (void *)(module)->array) memset(old_place, 0xDB, old_bytes);                     \
    } while (0)

static dtm_region add_region(dtm_module *module, dtm_op parent) {
    dtm_region_data region = {parent, NULL, 0, 0};
    PUSH_MOVING(module, regions, n_regions, cap_regions, region);
    return (dtm_region)(module->n_regions - 1);
}

void dtm_module_begin(dtm_module *module) {
    dtm_arena *arena = module->arena;
    module->names = dtm_arena_alloc(arena, sizeof *module->names);
    DTM_PUSH(arena, module->types, module->n_types, module->cap_types, (dtm_type_data){0});
    DTM_PUSH(arena, module->values, module->n_values, module->cap_values, (dtm_value_data){0});
    DTM_PUSH(arena, module->ops, module->n_ops, module->cap_ops, (dtm_op_data){0});
    DTM_PUSH(arena, module->regions, module->n_regions, module->cap_regions, (dtm_region_data){0});
    module->body = add_region(module, 0);
}

void dtm_names_refresh(dtm_module *module) {
    module->names = dtm_arena_alloc(module->arena, sizeof *module->names);
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; module->ops[op].region && i < module->ops[op].n_results; i++)
            name_add(module, module->values[module->ops[op].results[i]].name);
}

dtm_module *dtm_module_create(dtm_context *context) {
    dtm_arena *arena = dtm_arena_create();
    dtm_module *module = dtm_arena_alloc(arena, sizeof *module);
    module->context = context;
    module->arena = arena;
    module->settings.microbatches = 1;
    DTM_PUSH(arena, module->dims, module->n_dims, module->cap_dims, (dtm_dim_data){0});
    dtm_module_begin(module);
    return module;
}

void dtm_module_destroy(dtm_module *module) {
    if (!module) return;
    dtm_arena *outer = module->outer;
    for (size_t i = 0; i < module->n_ranks; i++) dtm_module_destroy(module->ranks[i]);
    dtm_arena_destroy(module->arena);
    dtm_arena_destroy(outer);
}

void dtm_module_become(dtm_module *module, dtm_module *other) {
    dtm_arena *outer = module->outer ? module->outer : module->arena, *own = module->outer ? module->arena : NULL;
    for (size_t i = 0; i < module->n_ranks; i++) dtm_module_destroy(module->ranks[i]);
    *module = *other;
    module->outer = outer; /* the other struct lies in the arena that is taken over, or in its own outer one */
    dtm_arena_destroy(own);
    dtm_arena_destroy(other->outer);
}

static void *copy_of(dtm_arena *arena, const void *array, size_t bytes) {
    if (!bytes) return NULL;
    void *copy = dtm_arena_alloc(arena, bytes);
    memcpy(copy, array, bytes);
    return copy;
}

#define CLONE_ARRAY(arena, holder, array, count, capacity)                                                             \
    do {                                                                                                               \
        (holder)->array = copy_of(arena, (holder)->array, (holder)->count * sizeof *(holder)->array);                  \
        (holder)->capacity = (holder)->count;                                                                          \
    } while (0)

static void clone_settings(dtm_arena *arena, dtm_settings *s) {
    CLONE_ARRAY(arena, s, splits, n_splits, cap_splits);
    CLONE_ARRAY(arena, s, zeros, n_zeros, cap_zeros);
    CLONE_ARRAY(arena, s, keeps, n_keeps, cap_keeps);
    CLONE_ARRAY(arena, s, expects, n_expects, cap_expects);
    s->pipeline.stages = copy_of(arena, s->pipeline.stages, s->pipeline.n_stages * sizeof *s->pipeline.stages);
}

dtm_module *dtm_module_like(const dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_module *like = dtm_arena_alloc(arena, sizeof *like);
    *like = (dtm_module){.context = module->context, .arena = arena, .name = module->name, .after = module->after,
                         .source_hash = module->source_hash, .settings = module->settings,
                         .dims = module->dims, .n_dims = module->n_dims};
    clone_settings(arena, &like->settings);
    CLONE_ARRAY(arena, like, dims, n_dims, cap_dims);
    dtm_module_begin(like);
    like->types = copy_of(arena, module->types, module->n_types * sizeof *module->types);
    like->n_types = like->cap_types = module->n_types;
    like->type_table = copy_of(arena, module->type_table, module->type_table_size * sizeof *module->type_table);
    like->type_table_size = module->type_table_size;
    return like;
}

dtm_module *dtm_module_clone(const dtm_module *module) {
    dtm_arena *arena = dtm_arena_create();
    dtm_module *clone = copy_of(arena, module, sizeof *module);
    clone->arena = arena;
    clone->outer = NULL;
    CLONE_ARRAY(arena, clone, dims, n_dims, cap_dims);
    CLONE_ARRAY(arena, clone, types, n_types, cap_types);
    CLONE_ARRAY(arena, clone, values, n_values, cap_values);
    CLONE_ARRAY(arena, clone, constants, n_constants, cap_constants);
    CLONE_ARRAY(arena, clone, ops, n_ops, cap_ops);
    CLONE_ARRAY(arena, clone, regions, n_regions, cap_regions);
    clone_settings(arena, &clone->settings);
    clone->ranks = copy_of(arena, module->ranks, module->n_ranks * sizeof *module->ranks);
    for (size_t i = 0; i < module->n_ranks; i++) clone->ranks[i] = dtm_module_clone(module->ranks[i]);
    if (module->timeline) clone->timeline = dtm_timeline_copy(arena, module->timeline);
    for (size_t i = 1; i < clone->n_ops; i++) {
        dtm_op_data *op = &clone->ops[i];
        op->operands = copy_of(arena, op->operands, op->n_operands * sizeof *op->operands);
        op->results = copy_of(arena, op->results, op->n_results * sizeof *op->results);
    }
    for (size_t i = 1; i < clone->n_regions; i++) CLONE_ARRAY(arena, &clone->regions[i], ops, n_ops, cap_ops);
    clone->type_table = copy_of(arena, module->type_table, module->type_table_size * sizeof *module->type_table);
    clone->names = copy_of(arena, module->names, sizeof *module->names);
    clone->names->entries =
        copy_of(arena, module->names->entries, module->names->size * sizeof *module->names->entries);
    return clone;
}

/* ---- dimensions ---- */

dtm_dim dtm_dim_add(dtm_module *module, dtm_string name, int64_t size, dtm_span span) {
    DTM_PUSH(module->arena, module->dims, module->n_dims, module->cap_dims, ((dtm_dim_data){name, size, span}));
    return (dtm_dim)(module->n_dims - 1);
}

dtm_dim dtm_dim_find(const dtm_module *module, dtm_string name) {
    for (dtm_dim d = 1; d < module->n_dims; d++)
        if (module->dims[d].name == name) return d;
    return 0;
}

const char *dtm_dim_name(const dtm_module *module, dtm_dim dim) {
    return dtm_string_text(module->context, module->dims[dim].name);
}

/* ---- values ---- */

static dtm_value add_value(dtm_module *module, dtm_string name, dtm_type type, dtm_op def, uint32_t result) {
    dtm_value_data value = {name, type, def, result, 0, {-1, 0, 1, 0}};
    PUSH_MOVING(module, values, n_values, cap_values, value);
    return (dtm_value)(module->n_values - 1);
}

bool dtm_value_is_constant(const dtm_module *module, dtm_value value) {
    return value && !module->values[value].def;
}

/* Constants are few: a linear search is as fast as any table. */
dtm_value dtm_constant(dtm_module *module, dtm_dtype dtype, double number) {
    dtm_type type = dtm_type_scalar(module, dtype);
    for (size_t i = 0; i < module->n_constants; i++) {
        const dtm_value_data *constant = &module->values[module->constants[i]];
        if (constant->type == type && memcmp(&constant->number, &number, sizeof number) == 0) return module->constants[i];
    }
    dtm_value value = add_value(module, 0, type, 0, 0);
    module->values[value].number = number;
    DTM_PUSH(module->arena, module->constants, module->n_constants, module->cap_constants, value);
    return value;
}

/* ---- building ---- */

dtm_builder dtm_builder_at_end(dtm_module *module, dtm_region region) {
    return (dtm_builder){module, region, -1, {0, 0, 0}, {0, 0}, 0};
}

static dtm_builder builder_at(dtm_module *module, dtm_op op, int64_t distance) {
    const dtm_op_data *data = dtm_op_get(module, op);
    return (dtm_builder){module, data->region, dtm_op_position(module, op) + distance, data->span, data->place, 0};
}

dtm_builder dtm_builder_before(dtm_module *module, dtm_op op) {
    return builder_at(module, op, 0);
}
dtm_builder dtm_builder_after(dtm_module *module, dtm_op op) {
    return builder_at(module, op, 1);
}

static void insert_op(dtm_module *module, dtm_region region, int64_t at, dtm_op op) {
    dtm_region_data *data = &module->regions[region];
    DTM_PUSH(module->arena, data->ops, data->n_ops, data->cap_ops, op);
    if (at < 0) return;
    memmove(data->ops + at + 1, data->ops + at, (data->n_ops - 1 - (size_t)at) * sizeof *data->ops);
    data->ops[at] = op;
}

/* Results after the first: `o.lse` of attention and cross_entropy; a pass that makes others renames them. */
static dtm_string second_name(dtm_module *module, dtm_op_kind kind, const char *name, uint32_t result) {
    char wanted[256];
    if (kind == DTM_OP_ATTENTION || kind == DTM_OP_CROSS_ENTROPY)
        snprintf(wanted, sizeof wanted, "%s.lse", name);
    else
        snprintf(wanted, sizeof wanted, "%s.result%u", name, result + 1);
    return dtm_name_unique(module, wanted);
}

dtm_op dtm_build_op(dtm_builder *builder, dtm_op_kind kind, const dtm_value *operands, uint32_t n_operands,
                    const dtm_attributes *attributes, const dtm_type *types, uint32_t n_results, const char *name) {
    dtm_module *module = builder->module;
    dtm_op_data data;
    memset(&data, 0, sizeof data);
    data.kind = kind;
    data.region = builder->region;
    data.n_operands = n_operands;
    data.n_results = n_results;
    data.operands = copy_of(module->arena, operands, n_operands * sizeof *operands);
    data.results = n_results ? dtm_arena_alloc(module->arena, n_results * sizeof *data.results) : NULL;
    data.attributes = attributes ? *attributes : dtm_attributes_default(kind);
    data.span = builder->span;
    data.place = builder->place;
    data.why = builder->why;
    PUSH_MOVING(module, ops, n_ops, cap_ops, data);
    dtm_op op = (dtm_op)(module->n_ops - 1);
    for (uint32_t i = 0; i < n_results; i++) {
        dtm_string unique = !name ? 0 : i ? second_name(module, kind, name, i) : dtm_name_unique(module, name);
        dtm_value value = add_value(module, unique, types[i], op, i);
        module->ops[op].results[i] = value;
    }
    insert_op(module, builder->region, builder->at, op);
    if (builder->at >= 0) builder->at++;
    return op;
}

dtm_value dtm_build(dtm_builder *builder, dtm_op_kind kind, const char *name, const dtm_value *operands,
                    uint32_t n_operands, const dtm_attributes *attributes) {
    dtm_attributes defaults = dtm_attributes_default(kind);
    if (!attributes) attributes = &defaults;
    dtm_type types[4];
    if (!dtm_infer(builder->module, kind, operands, n_operands, attributes, builder->span, types))
        dtm_broken("building", "%s has operands that do not fit", dtm_op_rows[kind].name);
    dtm_op op = dtm_build_op(builder, kind, operands, n_operands, attributes, types, dtm_op_rows[kind].results, name);
    return dtm_result(builder->module, op, 0);
}

dtm_value dtm_build_unary(dtm_builder *builder, dtm_op_kind kind, const char *name, dtm_value a) {
    return dtm_build(builder, kind, name, &a, 1, NULL);
}

dtm_value dtm_build_binary(dtm_builder *builder, dtm_op_kind kind, const char *name, dtm_value a, dtm_value b) {
    dtm_value operands[2] = {a, b};
    return dtm_build(builder, kind, name, operands, 2, NULL);
}

dtm_value dtm_build_over(dtm_builder *builder, dtm_op_kind kind, const char *name, const dtm_value *operands,
                         uint32_t n_operands, const dtm_dim *over, uint8_t n_over) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.n_over = n_over;
    for (int i = 0; i < n_over; i++) attributes.over[i] = over[i];
    return dtm_build(builder, kind, name, operands, n_operands, &attributes);
}

dtm_op dtm_build_region(dtm_builder *builder, dtm_op_kind kind, const dtm_attributes *attributes) {
    dtm_op op = dtm_build_op(builder, kind, NULL, 0, attributes, NULL, 0, "");
    dtm_region body = add_region(builder->module, op);
    builder->module->ops[op].body = body;
    return op;
}

int64_t dtm_op_position(const dtm_module *module, dtm_op op) {
    const dtm_region_data *region = &module->regions[module->ops[op].region];
    for (size_t i = 0; i < region->n_ops; i++)
        if (region->ops[i] == op) return (int64_t)i;
    dtm_broken("regions", "an operator is not in its region");
}

void dtm_op_remove(dtm_module *module, dtm_op op) {
    dtm_region_data *region = &module->regions[module->ops[op].region];
    size_t at = (size_t)dtm_op_position(module, op);
    memmove(region->ops + at, region->ops + at + 1, (region->n_ops - at - 1) * sizeof *region->ops);
    region->n_ops--;
    module->ops[op].region = 0;
}

void dtm_op_move(dtm_module *module, dtm_op op, dtm_region region, int64_t at) {
    if (module->ops[op].region) {
        if (module->ops[op].region == region && at > dtm_op_position(module, op)) at--;
        dtm_op_remove(module, op);
    }
    module->ops[op].region = region;
    insert_op(module, region, at, op);
}

void dtm_replace_uses(dtm_module *module, dtm_value from, dtm_value to) {
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; i < module->ops[op].n_operands; i++)
            if (module->ops[op].operands[i] == from) module->ops[op].operands[i] = to;
}

void dtm_drop_invariant_carries(dtm_module *module) {
    for (dtm_op carry = 1; carry < module->n_ops; carry++) {
        const dtm_op_data *data = &module->ops[carry];
        if (!data->region || data->kind != DTM_OP_CARRY || data->operands[1] != data->results[0]) continue;
        dtm_value carried = data->results[0], first = data->operands[0];
        bool handed = false; /* what another carry hands on is made in the repeat */
        for (dtm_op op = 1; op < module->n_ops; op++) {
            const dtm_op_data *other = &module->ops[op];
            handed |= op != carry && other->region && other->kind == DTM_OP_CARRY && other->operands[1] == carried;
        }
        if (handed) continue;
        for (dtm_op op = 1; op < module->n_ops; op++) {
            const dtm_op_data *last = &module->ops[op];
            if (!last->region || last->kind != DTM_OP_LAST || last->operands[0] != carried) continue;
            dtm_replace_uses(module, last->results[0], first);
            dtm_op_remove(module, op);
        }
        dtm_replace_uses(module, carried, first);
        dtm_op_remove(module, carry);
    }
}

void dtm_value_take_place(dtm_module *module, dtm_value made, dtm_value of, dtm_op first) {
    dtm_op def = module->values[made].def;
    if (!def || def < first) {
        dtm_replace_uses(module, of, made);
        module->values[made].name = module->values[of].name;
        return;
    }
    uint32_t result = module->values[made].result;
    module->ops[def].results[result] = of;
    module->values[of].def = def;
    module->values[of].result = result;
    module->values[of].type = module->values[made].type;
    for (dtm_op op = first; op < module->n_ops; op++)
        for (uint32_t i = 0; i < module->ops[op].n_operands; i++)
            if (module->ops[op].operands[i] == made) module->ops[op].operands[i] = of;
}

/* ---- walking ---- */

static void walk_region(dtm_module *module, dtm_region region, dtm_visit *visit, void *state) {
    for (size_t i = 0; i < module->regions[region].n_ops; i++) {
        dtm_op op = module->regions[region].ops[i];
        visit(module, op, state);
        if (module->ops[op].body) walk_region(module, module->ops[op].body, visit, state);
    }
}

void dtm_walk(dtm_module *module, dtm_visit *visit, void *state) {
    walk_region(module, module->body, visit, state);
}

typedef struct listing {
    dtm_op_list list;
    dtm_arena *arena;
} listing;

static void list_op(dtm_module *module, dtm_op op, void *state) {
    (void)module;
    listing *l = state;
    DTM_PUSH(l->arena, l->list.items, l->list.count, l->list.capacity, op);
}

dtm_op_list dtm_ops_in_order(dtm_module *module, dtm_arena *arena) {
    listing l = {.arena = arena};
    dtm_walk(module, list_op, &l);
    return l.list;
}

uint32_t *dtm_use_counts(const dtm_module *module, dtm_arena *arena) {
    uint32_t *uses = dtm_arena_alloc(arena, module->n_values * sizeof *uses);
    for (dtm_op op = 1; op < module->n_ops; op++) {
        if (!module->ops[op].region) continue;
        for (uint32_t i = 0; i < module->ops[op].n_operands; i++) uses[module->ops[op].operands[i]]++;
    }
    return uses;
}

dtm_op **dtm_users_of(const dtm_module *module, dtm_arena *arena) {
    uint32_t *counts = dtm_use_counts(module, arena), *filled = dtm_arena_alloc(arena, module->n_values * sizeof *filled);
    dtm_op **users = dtm_arena_alloc(arena, module->n_values * sizeof *users);
    for (size_t v = 1; v < module->n_values; v++) users[v] = dtm_arena_alloc(arena, (counts[v] + 1) * sizeof **users);
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; module->ops[op].region && i < module->ops[op].n_operands; i++)
            users[module->ops[op].operands[i]][filled[module->ops[op].operands[i]]++] = op;
    return users;
}

dtm_value dtm_gradient_made(const dtm_module *module, dtm_op gradient) {
    dtm_value value = module->ops[gradient].operands[1];
    dtm_op def = module->values[value].def;
    bool one = def && (module->ops[def].kind == DTM_OP_MUL || module->ops[def].kind == DTM_OP_CAST);
    return one && dtm_enclosing(module, def, DTM_OP_UPDATE) ? module->ops[def].operands[0] : value;
}

dtm_op dtm_enclosing(const dtm_module *module, dtm_op op, dtm_op_kind kind) {
    for (dtm_op at = module->regions[module->ops[op].region].parent; at;
         at = module->regions[module->ops[at].region].parent)
        if (kind == DTM_OP_NONE || module->ops[at].kind == kind) return at;
    return 0;
}

bool dtm_same_copies(const dtm_module *module, dtm_op a, dtm_op b) {
    const dtm_attributes *x = &module->ops[a].attributes, *y = &module->ops[b].attributes;
    return module->ops[a].kind == module->ops[b].kind && x->name == y->name && x->copies == y->copies && x->from == y->from;
}

bool dtm_along_pipeline(const dtm_module *module, const dtm_op_data *op) {
    return module->of_ranks && op->attributes.axes >> module->settings.pipeline.axis & 1;
}

/* What `accumulate` gives is one value for all microbatches. */
static bool multiplies(const dtm_module *module, dtm_op around, dtm_op def) {
    dtm_op_kind kind = module->ops[around].kind;
    return kind == DTM_OP_REPEAT || (kind == DTM_OP_MICROBATCH && module->ops[def].kind != DTM_OP_ACCUMULATE);
}

dtm_op dtm_value_repeat(const dtm_module *module, dtm_value value) {
    dtm_op def = module->values[value].def, at = def;
    while (at && (at = dtm_enclosing(module, at, DTM_OP_NONE)))
        if (multiplies(module, at, def)) return at;
    return 0;
}

int64_t dtm_copies(const dtm_module *module, dtm_value value) {
    int64_t copies = 1;
    dtm_op def = module->values[value].def;
    for (dtm_op at = def; at; at = dtm_enclosing(module, at, DTM_OP_NONE))
        if (multiplies(module, at, def)) copies *= module->ops[at].attributes.copies;
    return copies;
}
