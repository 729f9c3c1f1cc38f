/* What is on its way while others run, after memory: collectives that are carried out apart, and what the strands of a pair keep in
 * their workspaces. The interpreter carries each out at once, where it stands; from where it would start to the first that touches
 * what it makes it only asks that nothing comes in between:
 *
 *     starts     its workspace is its own from here on; what it makes may be written at any time
 *     stands     up to here nothing else may read or write where that lies; its operand is what it was
 *     touched    up to here nothing may write over the operand; the workspace is still its own
 *
 * A unit of one strand of a pair keeps its workspace for a turn, in which the others may go on. */
#include "ir/storage.h"
#include "passes/interpret_state.h"

#include <string.h>

typedef struct dtm_on_its_way {
    dtm_op op;
    size_t start;            /* the same for all tensors of one start, which are waited for together */
    dtm_value operand, result;
    size_t to;               /* slot of the result */
    int64_t in, out;         /* where operand and result lie */
    int64_t in_bytes, out_bytes;
    bool stands, is_touched; /* where it stands has been passed; something will touch what it makes, and waits for it */
} on_its_way;

static dtm_op op_of(const dtm_run *run, const dtm_op_data *op) { return (dtm_op)(op - run->module->ops); }

/* Nothing meets what has no bytes. */
static bool meet(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes) {
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

/* Of an empty microbatch nothing comes, but it is waited for. */
static bool is_nothing_of(const on_its_way *w, int64_t begin, int64_t bytes) { return !bytes && !w->out_bytes && w->stands && begin == w->out; }

static bool refuse(dtm_run *run, const dtm_op_data *op, const char *format, const char *a, const char *b) {
    if (!run->failed) dtm_error(run->context, op ? op->span : (dtm_span){0, 0, 0}, DTM_INTERPRET_STORAGE, format, a, b);
    return !(run->failed = true);
}

/* ---- workspaces ---- */

void dtm_apart_begin(dtm_run *run) {
    const dtm_module *module = run->module;
    run->apart_offset = dtm_arena_alloc(run->arena, module->n_ops * sizeof *run->apart_offset);
    run->workspace = dtm_workspace_begin(module);
    int64_t all = dtm_workspace_of_apart(module, run->apart_offset) + dtm_workspace_of_pairs(module);
    for (dtm_op op = 1; op < module->n_ops; op++) run->apart_offset[op] += run->workspace - all;
}

/* Beyond those of slots. */
static uint32_t owner_of(const dtm_run *run, dtm_op op) { return (uint32_t)(run->n_slots + 1 + op); }

static void claim(dtm_run *run, dtm_op op, int64_t at) {
    int64_t bytes = dtm_workspace_bytes(run->module, op);
    for (int64_t i = 0; i < bytes; i++) run->owners[at + i] = owner_of(run, op);
}

static bool keeps(dtm_run *run, dtm_op op, int64_t at) {
    int64_t bytes = dtm_workspace_bytes(run->module, op);
    for (int64_t i = 0; i < bytes; i++) {
        uint32_t owner = run->owners[at + i];
        if (owner == owner_of(run, op)) continue;
        const dtm_op_data *other = owner > run->n_slots ? &run->module->ops[owner - run->n_slots - 1] : NULL, *data = &run->module->ops[op];
        return refuse(run, data, "the workspace of `%s` is written over by that of `%s` while both are on their way",
                      dtm_op_rows[data->kind].name, other ? dtm_op_rows[other->kind].name : "a value");
    }
    return true;
}

bool dtm_workspace_take(dtm_run *run, dtm_op op, int64_t aside) {
    if (!run->owners || !dtm_workspace_bytes(run->module, op)) return false;
    claim(run, op, run->workspace - aside);
    return true;
}

bool dtm_workspace_kept(dtm_run *run, dtm_op op, int64_t aside) { return keeps(run, op, run->workspace - aside); }

/* ---- starts ---- */

/* Whether something waits for a value within the loops around what makes it: carries and `last` only name it. */
static bool is_touched(const dtm_module *module, dtm_value value) {
    for (dtm_op op = 1; op < module->n_ops; op++) {
        const dtm_op_data *data = &module->ops[op];
        for (uint32_t i = 0; data->region && i < data->n_operands; i++) {
            if (data->operands[i] != value || data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST) continue;
            if (!dtm_is_alias(module, op) || is_touched(module, data->results[0])) return true;
        }
    }
    return false;
}

bool dtm_apart_start(dtm_run *run, dtm_op self, bool stands) {
    const dtm_op_data *op = &run->module->ops[self];
    size_t start = ++run->n_starts;
    for (uint32_t i = 0; i < op->n_results; i++) {
        size_t from = dtm_run_slot(run, op, op->operands[i]), to = dtm_run_slot(run, op, op->results[i]);
        if (from == SIZE_MAX || to == SIZE_MAX) return false;
        on_its_way w = {self, start, op->operands[i], op->results[i], to, dtm_storage_address(run, op->operands[i], from),
                        dtm_storage_address(run, op->results[i], to), dtm_storage_bytes(run, op->operands[i]),
                        dtm_storage_bytes(run, op->results[i]), stands, is_touched(run->module, op->results[i])};
        DTM_PUSH(run->arena, run->on_their_way, run->n_on_their_way, run->cap_on_their_way, w);
    }
    claim(run, self, run->apart_offset[self]);
    return true;
}

bool dtm_apart_stands(dtm_run *run, const dtm_op_data *op) {
    for (size_t i = 0; i < run->n_on_their_way; i++) {
        on_its_way *w = &run->on_their_way[i];
        for (uint32_t r = 0; r < op->n_results; r++)
            if (w->result == op->results[r] && w->to == dtm_run_slot(run, op, op->results[r])) w->stands = true;
    }
    return keeps(run, op_of(run, op), run->apart_offset[op_of(run, op)]);
}

/* ---- touched ---- */

/* It is waited for: all tensors of that copy of the collective have come. */
static bool end(dtm_run *run, size_t at) {
    on_its_way ended = run->on_their_way[at];
    size_t kept = 0;
    for (size_t i = 0; i < run->n_on_their_way; i++)
        if (run->on_their_way[i].start != ended.start) run->on_their_way[kept++] = run->on_their_way[i];
    run->n_on_their_way = kept;
    return keeps(run, ended.op, run->apart_offset[ended.op]);
}

bool dtm_apart_read(dtm_run *run, const dtm_op_data *op, dtm_value value, int64_t begin, int64_t bytes) {
    if (op && dtm_is_alias(run->module, op_of(run, op))) return true; /* it names the bytes */
    for (size_t i = run->n_on_their_way; i-- > 0;) {
        const on_its_way *w = &run->on_their_way[i];
        if (!meet(begin, bytes, w->out, w->out_bytes) && !is_nothing_of(w, begin, bytes)) continue;
        if (!w->stands && op && dtm_comes_after(run->module, w->op, op_of(run, op))) continue; /* its own operand */
        if (!w->stands)
            return refuse(run, op, "`%s` is read, but `%s` may have come in its place: that has been started", dtm_value_name(run->module, value),
                          dtm_value_name(run->module, w->result));
        if (!end(run, i)) return false;
        i = run->n_on_their_way;
    }
    return true;
}

bool dtm_apart_write(dtm_run *run, dtm_value value, size_t slot, int64_t begin, int64_t bytes) {
    const dtm_op_data *op = &run->module->ops[run->module->values[value].def];
    for (size_t i = run->n_on_their_way; i-- > 0;) {
        const on_its_way *w = &run->on_their_way[i];
        if (w->result == value && w->to == slot) continue;
        bool out = meet(begin, bytes, w->out, w->out_bytes), in = meet(begin, bytes, w->in, w->in_bytes);
        if ((!in && !out) || dtm_comes_after(run->module, w->op, run->module->values[value].def)) continue;
        if (out ? !w->stands : w->is_touched)
            return refuse(run, op, out ? "`%s` is written where `%s` may have come: that has been started"
                                       : "`%s` is written over the operand of `%s`, which is on its way",
                          dtm_value_name(run->module, value), dtm_value_name(run->module, w->result));
        if (!end(run, i)) return false;
        i = run->n_on_their_way;
    }
    return true;
}

bool dtm_apart_end_step(dtm_run *run) {
    while (run->n_on_their_way)
        if (!end(run, run->n_on_their_way - 1)) return false;
    return true;
}
