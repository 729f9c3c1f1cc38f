/* overlap: what is started ahead takes no memory that a rank does not have (overlap_room.h). While it is under way it has a workspace
 * and its operands for itself; so a program that fits the machine without is taken care not to outgrow it. */
#include "passes/overlap_room.h"
#include "ir/fault.h"
#include "ir/storage.h"
#include "passes/passes.h"

#include <math.h>

double dtm_room_of(const dtm_module *module) {
    const dtm_settings *settings = &module->settings;
    double room = settings->machine.memory > 0 ? settings->machine.memory : INFINITY;
    if (settings->roomy) return INFINITY;
    for (size_t i = 0; i < settings->n_expects; i++)
        if (settings->expects[i].kind == DTM_EXPECT_MEMORY) room = fmin(room, settings->expects[i].bound);
    return room;
}

/* More than it can be: of each operator as many tensors of its largest as it is ever written in, none in the place of another, a slot
 * for each copy and one for what is carried; sums in chunks; and a workspace for each collective. */
enum { MOST_PARTS = 16, BYTES_OF_CHUNKS = MOST_PARTS * DTM_CHUNKS * (int)sizeof(double) };

static double most_of(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    double largest = 0, scratch = 0, copies = 1;
    for (uint32_t i = 0; i < data->n_operands + data->n_results; i++) {
        dtm_value v = i < data->n_operands ? data->operands[i] : data->results[i - data->n_operands];
        largest = fmax(largest, (double)dtm_storage_round(dtm_local_bytes_max(module, module->values[v].type)));
    }
    for (int a = 0; dtm_runs_collective(data->kind) && a < DTM_ALGORITHMS; a++)
        scratch = fmax(scratch, (double)dtm_collective_scratch(module, op, (dtm_algorithm)a));
    for (dtm_op at = dtm_enclosing(module, op, DTM_OP_NONE); at; at = dtm_enclosing(module, at, DTM_OP_NONE))
        if (dtm_is_loop(module->ops[at].kind)) copies *= (double)module->ops[at].attributes.copies + 1;
    uint32_t parts = data->n_results > MOST_PARTS ? data->n_results : MOST_PARTS;
    return copies * (parts * largest + BYTES_OF_CHUNKS) + scratch + (double)dtm_workspace_bytes(module, op) * (double)dtm_workspace_copies(module, op);
}

static double most_bytes(const dtm_module *module) {
    double all = (double)dtm_constants_bytes(module);
    for (dtm_op op = 1; op < module->n_ops; op++)
        if (module->ops[op].region) all += most_of(module, op);
    return all;
}

static bool fits(const dtm_module *module, bool fused, double room) {
    if (room == INFINITY || dtm_fault(96) || most_bytes(module) <= room) return true;
    dtm_module *copy = dtm_module_clone(module);
    dtm_module_compact(copy);
    if (!fused) dtm_pass_fuse(copy);
    dtm_module_compact(copy);
    dtm_pass_memory(copy);
    bool within = (double)copy->arena_bytes <= room;
    dtm_module_destroy(copy);
    return within;
}

bool dtm_fits_in(const dtm_module *module, double room) { return fits(module, false, room); }
bool dtm_fits_fused_in(const dtm_module *module, double room) { return fits(module, true, room); }

/* ---- what is left ---- */

/* Of what a collective has for itself while it is under way, about: what it moves. */
static int64_t bytes_of(const dtm_module *module, dtm_op op) {
    const dtm_op_data *data = &module->ops[op];
    int64_t bytes = 0;
    for (uint32_t i = 0; i < data->n_operands; i++) bytes += dtm_local_bytes_max(module, module->values[data->operands[i]].type);
    for (uint32_t i = 0; i < data->n_results; i++) bytes += dtm_local_bytes_max(module, module->values[data->results[i]].type);
    return bytes;
}

dtm_op dtm_largest_moved(const dtm_module *module, const dtm_op_list *ops) {
    dtm_op largest = ops->items[0];
    for (size_t i = 1; i < ops->count; i++)
        if (bytes_of(module, ops->items[i]) > bytes_of(module, largest)) largest = ops->items[i];
    return largest;
}

void dtm_say_no_room(dtm_module *module, dtm_op op) {
    static const char reason[] = "waited for where it stands: started ahead, it would take more memory than there is";
    dtm_string why = module->ops[op].why;
    module->ops[op].why = why ? dtm_string_printf(module->context, "%s; %s", dtm_string_text(module->context, why), reason)
                              : dtm_string_of(module->context, reason);
}

/* Lets the first of a row stand where they do, so many of them, and starts the others ahead. */
static void leave(dtm_module *module, const dtm_op_list *row, size_t left) {
    for (size_t k = 0; k < row->count; k++) module->ops[row->items[k]].attributes.number[DTM_COLLECTIVE_APART] = k >= left;
}

bool dtm_leave_room(dtm_module *module, const dtm_op_list *ops, double room) {
    if (dtm_fits_in(module, room)) return true;
    dtm_arena *arena = dtm_arena_create();
    dtm_op_list row = {dtm_arena_alloc(arena, (ops->count + 1) * sizeof *row.items), 0, ops->count};
    for (size_t i = 0; i < ops->count; i++) { /* those that move most first */
        size_t at = row.count++;
        for (; at && bytes_of(module, row.items[at - 1]) < bytes_of(module, ops->items[i]); at--) row.items[at] = row.items[at - 1];
        row.items[at] = ops->items[i];
    }
    leave(module, &row, row.count);
    bool may_fit = dtm_fits_in(module, room);
    size_t low = 0, high = may_fit ? row.count : 0; /* with `low` of them left it does not fit; more of them left take less */
    while (high > low + 1) {
        size_t middle = low + (high - low) / 2;
        leave(module, &row, middle);
        if (dtm_fits_in(module, room)) high = middle;
        else low = middle;
    }
    leave(module, &row, high);
    for (size_t k = 0; k < high; k++) dtm_say_no_room(module, row.items[k]);
    dtm_arena_destroy(arena);
    return may_fit;
}
