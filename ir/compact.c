/* Renumbers a module in the order of its text: operators, values, constants, types and regions as a reader of its dump
 * would make them, names in use as they stand there. What a later pass does then depends on the text alone, so that a
 * dump re-entered gives the same plan, byte for byte. */
#include "ir/ir.h"

#include <string.h>

typedef struct compactor {
    dtm_module *module;
    dtm_module old;    /* the arrays as they were */
    dtm_value *values; /* by old handle */
    dtm_type *types;   /* by old handle; 0: not met yet */
} compactor;

static dtm_type new_type(compactor *c, dtm_type type) {
    if (!c->types[type]) c->types[type] = dtm_type_intern(c->module, &c->old.types[type]);
    return c->types[type];
}

static dtm_value new_operand(compactor *c, dtm_value value) {
    const dtm_value_data *data = &c->old.values[value];
    if (!value || data->def) return value; /* settled when all definitions are numbered */
    dtm_type type = new_type(c, data->type);
    dtm_value constant = dtm_constant(c->module, (dtm_dtype)c->module->types[type].dtype, data->number);
    c->values[value] = constant;
    return value;
}

static void copy_region(compactor *c, dtm_region from, dtm_region to);

static void copy_op(compactor *c, dtm_op op, dtm_region region) {
    dtm_op_data data = c->old.ops[op];
    dtm_builder builder = {c->module, region, -1, data.span, data.place, data.why};
    if (data.body) {
        dtm_op made = dtm_build_region(&builder, data.kind, &data.attributes);
        copy_region(c, data.body, c->module->ops[made].body);
        return;
    }
    dtm_type few[16],
        *types = data.n_results <= 16 ? few : dtm_arena_alloc(c->module->arena, data.n_results * sizeof *types);
    for (uint32_t i = 0; i < data.n_results; i++) types[i] = new_type(c, c->old.values[data.results[i]].type);
    for (uint32_t i = 0; i < data.n_operands; i++) new_operand(c, data.operands[i]);
    dtm_op made =
        dtm_build_op(&builder, data.kind, data.operands, data.n_operands, &data.attributes, types, data.n_results, NULL);
    for (uint32_t i = 0; i < data.n_results; i++) {
        dtm_value value = c->module->ops[made].results[i];
        const dtm_value_data *old = &c->old.values[data.results[i]];
        c->values[data.results[i]] = value;
        c->module->values[value].name = old->name;
        c->module->values[value].storage = old->storage;
    }
}

static void copy_region(compactor *c, dtm_region from, dtm_region to) {
    for (size_t i = 0; i < c->old.regions[from].n_ops; i++) copy_op(c, c->old.regions[from].ops[i], to);
}

static void forget(dtm_module *module) {
    module->types = NULL;
    module->values = NULL;
    module->constants = NULL;
    module->n_constants = module->cap_constants = 0;
    module->ops = NULL;
    module->regions = NULL;
    module->n_types = module->cap_types = module->n_values = module->cap_values = 0;
    module->n_ops = module->cap_ops = module->n_regions = module->cap_regions = 0;
    module->type_table = NULL;
    module->type_table_size = 0;
    module->names = NULL;
}

/* There will be no more than there were. */
static void reserve(dtm_module *module, const dtm_module *old) {
    module->ops = dtm_arena_alloc(module->arena, old->n_ops * sizeof *module->ops);
    module->values = dtm_arena_alloc(module->arena, old->n_values * sizeof *module->values);
    module->cap_ops = old->n_ops;
    module->cap_values = old->n_values;
}

void dtm_module_compact(dtm_module *module) {
    compactor c = {.module = module, .old = *module};
    dtm_arena *scratch = dtm_arena_create();
    c.types = dtm_arena_alloc(scratch, module->n_types * sizeof *c.types);
    c.values = dtm_arena_alloc(scratch, module->n_values * sizeof *c.values);
    forget(module);
    reserve(module, &c.old);
    dtm_module_begin(module);
    copy_region(&c, c.old.body, module->body);
    for (dtm_op op = 1; op < module->n_ops; op++)
        for (uint32_t i = 0; i < module->ops[op].n_operands; i++)
            module->ops[op].operands[i] = c.values[module->ops[op].operands[i]];
    dtm_names_refresh(module);
    dtm_arena_destroy(scratch);
}
