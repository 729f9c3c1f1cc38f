/* The plan's tables: each entry once, in order of first use. */
#include "codegen/generator.h"
#include "ir/fault.h"

#include <string.h>

/* ---- extents ---- */

uint32_t dtm_extent_index(dtm_generator *g, const dtm_type_data *type, int index) {
    dtm_plan_extent extent;
    memset(&extent, 0, sizeof extent);
    extent.dim = dtm_dim_name(g->module, type->dims[index]);
    extent.whole = g->module->dims[type->dims[index]].size;
    extent.count = type->layout[index].count;
    for (int s = 0; s < extent.count; s++) {
        extent.splits[s].axis = type->layout[index].splits[s].axis;
        extent.splits[s].unit = type->layout[index].splits[s].unit;
    }
    for (uint32_t e = 1; e < g->n_extents; e++)
        if (memcmp(&g->extents[e], &extent, sizeof extent) == 0) return e;
    DTM_PUSH(g->arena, g->extents, g->n_extents, g->cap_extents, extent);
    return (uint32_t)(g->n_extents - 1);
}

bool dtm_extent_is_even(const dtm_generator *g, const dtm_type_data *type, int index, int64_t *size) {
    int64_t n = g->module->dims[type->dims[index]].size;
    for (int s = 0; s < type->layout[index].count; s++) {
        const dtm_split *split = &type->layout[index].splits[s];
        int64_t parts = g->module->settings.mesh.axes[split->axis].size;
        if (n % (parts * split->unit) != 0 && !dtm_fault(22)) return false;
        n = (n + parts - 1) / parts;
    }
    *size = n;
    return true;
}

/* ---- sizes ---- */

void dtm_product_times(dtm_generator *g, dtm_product *product, const dtm_type_data *type, int index) {
    int64_t size;
    if (dtm_extent_is_even(g, type, index, &size)) {
        product->factor *= size;
        return;
    }
    if (product->count == DTM_PLAN_ATOMS) dtm_broken("codegen", "a size of more than %d factors", DTM_PLAN_ATOMS);
    product->atoms[product->count++] = dtm_extent_index(g, type, index);
}

void dtm_product_times_product(dtm_product *product, const dtm_product *other) {
    product->factor *= other->factor;
    for (uint32_t i = 0; i < other->count; i++) {
        if (product->count == DTM_PLAN_ATOMS) dtm_broken("codegen", "a size of more than %d factors", DTM_PLAN_ATOMS);
        product->atoms[product->count++] = other->atoms[i];
    }
}

dtm_product dtm_product_begin(dtm_generator *g, const dtm_type_data *type, int index) {
    dtm_product product = {0, 1, 1, {0}};
    if (!type->layout[index].count) return (dtm_product){0, 0, 0, {0}};
    product.atoms[0] = dtm_extent_index(g, type, index) | DTM_PLAN_BEGIN;
    return product;
}

bool dtm_product_is_number(const dtm_product *product, int64_t *number) {
    *number = product->base + product->factor;
    return product->count == 0;
}

uint32_t dtm_size_index(dtm_generator *g, const dtm_product *product) {
    dtm_plan_size size;
    memset(&size, 0, sizeof size);
    size.base = product->base;
    size.factor = product->factor;
    size.count = product->count;
    memcpy(size.atoms, product->atoms, product->count * sizeof *size.atoms);
    for (uint32_t i = 1; i < size.count; i++) /* in order, so that equal products are one */
        for (uint32_t j = i; j && size.atoms[j - 1] > size.atoms[j]; j--) {
            uint32_t swapped = size.atoms[j];
            size.atoms[j] = size.atoms[j - 1];
            size.atoms[j - 1] = swapped;
        }
    if (size.count == 0) size.base += size.factor, size.factor = 0;
    for (uint32_t i = 1; i < g->n_sizes; i++)
        if (memcmp(&g->sizes[i], &size, sizeof size) == 0) return i;
    DTM_PUSH(g->arena, g->sizes, g->n_sizes, g->cap_sizes, size);
    return (uint32_t)(g->n_sizes - 1);
}

const char *dtm_size_text(dtm_generator *g, dtm_size_list *list, const dtm_product *size) {
    int64_t number;
    if (dtm_product_is_number(size, &number)) return dtm_arena_printf(g->arena, "%lld", (long long)number);
    uint32_t index = dtm_size_index(g, size);
    size_t i = 0;
    while (i < list->count && list->items[i] != index) i++;
    if (i == list->count) DTM_PUSH(g->arena, list->items, list->count, list->capacity, index);
    return dtm_arena_printf(g->arena, "z[%zu]", i);
}

const char *dtm_dim_size_text(dtm_generator *g, dtm_size_list *list, const dtm_type_data *type, int index) {
    dtm_product size = dtm_product_one();
    dtm_product_times(g, &size, type, index);
    return dtm_size_text(g, list, &size);
}

const char *dtm_dim_begin_text(dtm_generator *g, dtm_size_list *list, const dtm_type_data *type, int index) {
    dtm_product begin = dtm_product_begin(g, type, index);
    return dtm_size_text(g, list, &begin);
}

const char *dtm_dim_stride_text(dtm_generator *g, dtm_size_list *list, const dtm_type_data *type, int index) {
    dtm_product product = dtm_product_one();
    for (int i = index + 1; i < type->rank; i++) dtm_product_times(g, &product, type, i);
    return dtm_size_text(g, list, &product);
}

/* ---- loops and buffers ---- */

uint32_t dtm_loop_index(dtm_generator *g, dtm_op op) {
    if (!op) return 0;
    const dtm_op_data *data = dtm_op_get(g->module, op);
    dtm_plan_loop loop = {dtm_string_text(g->module->context, data->attributes.name), data->attributes.copies, 0,
                          data->kind == DTM_OP_MICROBATCH, data->attributes.from};
    dtm_op outer = dtm_enclosing(g->module, op, DTM_OP_REPEAT);
    if (!loop.microbatch && outer) loop.parent = dtm_loop_index(g, outer);
    for (uint32_t l = 1; l < g->n_loops; l++)
        if (strcmp(g->loops[l].name, loop.name) == 0 && g->loops[l].parent == loop.parent &&
            g->loops[l].microbatch == loop.microbatch)
            return l;
    DTM_PUSH(g->arena, g->loops, g->n_loops, g->cap_loops, loop);
    return (uint32_t)(g->n_loops - 1);
}

static dtm_plan_dtype plan_dtype(uint8_t dtype) {
    static const dtm_plan_dtype dtypes[DTM_DTYPES] = {[DTM_F32] = DTM_PLAN_F32, [DTM_F16] = DTM_PLAN_F16,
                                                      [DTM_BF16] = DTM_PLAN_BF16, [DTM_I32] = DTM_PLAN_I32,
                                                      [DTM_U8] = DTM_PLAN_U8, [DTM_BOOL] = DTM_PLAN_BOOL};
    return dtypes[dtype];
}

static uint32_t add_buffer(dtm_generator *g, const dtm_plan_buffer *buffer) {
    DTM_PUSH(g->arena, g->buffers, g->n_buffers, g->cap_buffers, *buffer);
    return (uint32_t)(g->n_buffers - 1);
}

uint32_t dtm_buffer_index(dtm_generator *g, dtm_value value) {
    if (g->buffer_of[value]) return g->buffer_of[value];
    const dtm_value_data *data = dtm_value_get(g->module, value);
    const dtm_type_data *type = dtm_value_type(g->module, value);
    if (data->storage.offset < 0)
        dtm_broken("codegen", "%s has no place in memory", dtm_value_name(g->module, value));
    dtm_plan_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.name = dtm_value_name(g->module, value);
    buffer.dtype = plan_dtype(type->dtype);
    buffer.rank = type->rank;
    for (int i = 0; i < type->rank; i++) buffer.dims[i] = dtm_extent_index(g, type, i);
    buffer.offset = data->storage.offset;
    buffer.modulus = 1;
    if (data->storage.modulus > 1) {
        buffer.stride = data->storage.stride;
        buffer.modulus = data->storage.modulus;
        buffer.shift = data->storage.shift;
        buffer.loop = dtm_loop_index(g, dtm_value_repeat(g->module, value));
    }
    if (data->storage.places) {
        buffer.places = data->storage.places;
        buffer.batch_stride = data->storage.batch_stride;
    }
    return g->buffer_of[value] = add_buffer(g, &buffer);
}

/* A dimension that no one can name, for what lies in the workspace. */
static uint32_t plain_extent(dtm_generator *g, int64_t elements) {
    dtm_plan_extent extent;
    memset(&extent, 0, sizeof extent);
    extent.dim = "";
    extent.whole = elements;
    for (uint32_t e = 1; e < g->n_extents; e++)
        if (memcmp(&g->extents[e], &extent, sizeof extent) == 0) return e;
    DTM_PUSH(g->arena, g->extents, g->n_extents, g->cap_extents, extent);
    return (uint32_t)(g->n_extents - 1);
}

uint32_t dtm_buffer_workspace(dtm_generator *g, const char *name, dtm_plan_dtype dtype, int64_t offset, int64_t elements) {
    dtm_plan_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.name = name;
    buffer.dtype = dtype;
    buffer.rank = 1;
    buffer.dims[0] = plain_extent(g, elements);
    buffer.offset = g->workspace + offset - (offset < g->workspace_bytes ? g->aside : 0);
    buffer.modulus = 1;
    for (uint32_t b = 1; b < g->n_buffers; b++)
        if (g->buffers[b].offset == buffer.offset && strcmp(g->buffers[b].name, name) == 0) return b;
    return add_buffer(g, &buffer);
}

uint32_t dtm_buffer_update_chunks(dtm_generator *g, dtm_op unit) {
    int64_t copies, bytes = dtm_update_chunk_bytes(g->module, unit, &copies);
    dtm_plan_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.name = "chunks";
    buffer.dtype = DTM_PLAN_U8;
    buffer.rank = 1;
    buffer.dims[0] = plain_extent(g, bytes);
    buffer.offset = g->workspace + g->workspace_bytes + dtm_update_chunks_offset(g->module) + g->update_chunks;
    buffer.modulus = 1;
    if (copies > 1) {
        buffer.stride = bytes;
        buffer.modulus = (uint32_t)copies;
        buffer.loop = dtm_loop_index(g, dtm_enclosing(g->module, unit, DTM_OP_REPEAT));
    }
    g->update_chunks += bytes * copies;
    return add_buffer(g, &buffer);
}

uint32_t dtm_buffer_packed(dtm_generator *g, const dtm_type_data *type, int64_t offset) {
    dtm_plan_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.name = "packed";
    buffer.dtype = plan_dtype(type->dtype);
    buffer.rank = type->rank;
    for (int i = 0; i < type->rank; i++) buffer.dims[i] = dtm_extent_index(g, type, i);
    buffer.offset = g->workspace + offset - g->aside;
    buffer.modulus = 1;
    for (uint32_t b = 1; b < g->n_buffers; b++)
        if (memcmp(&g->buffers[b], &buffer, sizeof buffer) == 0) return b;
    return add_buffer(g, &buffer);
}

dtm_plan_list dtm_list_of(dtm_generator *g, const uint32_t *items, size_t count) {
    uint32_t *copy = dtm_arena_alloc(g->arena, (count + 1) * sizeof *copy);
    if (count) memcpy(copy, items, count * sizeof *copy);
    return (dtm_plan_list){(uint32_t)count, copy};
}
