/* The verifier's laws of storage (E0510), after the pass memory. */
#include "ir/calls.h"
#include "ir/storage.h"

typedef struct places {
    dtm_module *module;
    dtm_arena *scratch;
    const bool *stored;
    dtm_order order;
    dtm_op **users; /* by value, zero-terminated */
    int64_t top; /* where the workspace begins */
    dtm_op loop; /* the one with an order, or 0 */
    dtm_loop_places places;
} places;

#define BREAK(p, op, ...)                                                                                              \
    do {                                                                                                               \
        dtm_error((p)->module->context, (op)->span, 510, __VA_ARGS__);                                                 \
        return;                                                                                                        \
    } while (0)

/* The last place that a value has, in steps of its table. */
static int64_t furthest(const places *p, const dtm_storage *s) {
    int64_t most = 0;
    for (size_t m = 0; s->places && m < p->places.n_microbatches; m++) {
        uint32_t place = dtm_loop_place(&p->places, s, m);
        if (place != DTM_NO_PLACE && place > most) most = place;
    }
    return most;
}

static void check_place(const places *p, const dtm_op_data *op, dtm_value value) {
    const dtm_storage *s = &dtm_value_get(p->module, value)->storage;
    const char *name = dtm_value_name(p->module, value);
    int64_t bytes = dtm_local_bytes_max(p->module, dtm_value_get(p->module, value)->type);
    long long offset = s->offset, stride = s->stride, last;
    if (offset < 0) BREAK(p, op, "%s has no place in the arena", name);
    if (offset % DTM_STORAGE_ALIGN || stride % DTM_STORAGE_ALIGN)
        BREAK(p, op, "%s lies at byte %lld, slots %lld bytes apart: both are multiples of %d", name, offset, stride,
              DTM_STORAGE_ALIGN);
    if (s->modulus > 1 && !dtm_value_repeat(p->module, value))
        BREAK(p, op, "%s has %u slots by copy, but stands in no repeat", name, s->modulus);
    if (s->modulus > 1 && stride < bytes)
        BREAK(p, op, "%s has slots of %lld bytes, %lld bytes apart", name, (long long)bytes, stride);
    if (s->places && (!p->loop || dtm_ordered_loop(p->module, dtm_value_get(p->module, value)->def) != p->loop))
        BREAK(p, op, "%s has places by microbatch, but stands in no loop over microbatches with an order", name);
    if (s->places > p->places.count)
        BREAK(p, op, "%s lies by table %u of places, its loop has %u", name, s->places, (unsigned)p->places.count);
    if (s->places && s->batch_stride % DTM_STORAGE_ALIGN)
        BREAK(p, op, "%s lies by microbatch in steps of %lld bytes, no multiple of %d", name, (long long)s->batch_stride, DTM_STORAGE_ALIGN);
    long long more = 0;
    if (__builtin_mul_overflow((int64_t)s->modulus - 1, stride, &last) ||
        __builtin_mul_overflow(furthest(p, s), s->batch_stride, &more) ||
        __builtin_add_overflow(last, more, &last) ||
        __builtin_add_overflow(last, offset + bytes, &last) || last > p->top)
        BREAK(p, op, "%s, %lld bytes at byte %lld, reaches beyond byte %lld, where values end", name, (long long)bytes,
              offset, (long long)p->top);
}

static void check_scratch(const places *p, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(p->module, self);
    const char *name = dtm_op_rows[op->kind].name;
    int64_t group = 1, has = (int64_t)op->attributes.number[DTM_COLLECTIVE_SCRATCH];
    for (int a = 0; a < p->module->settings.mesh.count; a++)
        if (op->attributes.axes >> a & 1) group *= p->module->settings.mesh.axes[a].size;
    if (op->attributes.members) group = dtm_collective_members(p->module, op);
    dtm_algorithm algorithm = dtm_collective_algorithm(op);
    if (!dtm_algorithm_fits(dtm_collective_kind_of(op->kind), algorithm, (int)group))
        BREAK(p, op, "`%s` cannot be done by %s on %lld ranks", name, dtm_algorithm_name(algorithm), (long long)group);
    int64_t takes = dtm_collective_scratch(p->module, self, algorithm);
    if (has < takes)
        BREAK(p, op, "`%s` by %s on %lld ranks takes %lld bytes of scratch, not %lld", name,
              dtm_algorithm_name(algorithm), (long long)group, (long long)takes, (long long)has);
}

static bool same_place(const dtm_storage *a, const dtm_storage *b) {
    return a->offset == b->offset && a->stride == b->stride && a->modulus == b->modulus && a->shift == b->shift &&
           a->places == b->places && a->batch_stride == b->batch_stride;
}

/* Nothing reads the old value of what is stored once the new one lies in its place: from `writer` on, which makes the new one
 * there, or copies it. `value` is the old one, or that under another type. */
static void check_readers(const places *p, const dtm_op_data *store, dtm_op writer, dtm_value value) {
    for (dtm_op op = 1; op < p->module->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(p->module, op);
        bool sink = data->kind == DTM_OP_STORE || data->kind == DTM_OP_GRADIENT; /* name what they belong to first */
        for (uint32_t i = sink; data->region && i < data->n_operands; i++) {
            if (data->operands[i] != value || data == store) continue;
            if (dtm_is_alias(p->module, op)) check_readers(p, store, writer, data->results[0]);
            dtm_op unit = dtm_unit_of(p->module, op);
            bool within = unit == writer && data->kind != DTM_OP_CARRY;
            if (within ? dtm_may_overwrite(p->module, unit, store->operands[1], value) : p->order.begin[unit] < p->order.begin[writer])
                continue;
            BREAK(p, data, "%s is read after %s has been written in its place", dtm_value_name(p->module, store->operands[0]),
                  dtm_value_name(p->module, store->operands[1]));
        }
    }
}

static void check_store(const places *p, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(p->module, self);
    dtm_value old = op->operands[0], new = op->operands[1];
    dtm_op def = dtm_value_get(p->module, new)->def;
    bool in_place = def && same_place(&dtm_value_get(p->module, old)->storage, &dtm_value_get(p->module, new)->storage);
    if (dtm_enclosing(p->module, self, DTM_OP_MICROBATCH))
        BREAK(p, op, "%s is stored in a loop over microbatches, which all read it", dtm_value_name(p->module, old));
    check_readers(p, op, in_place ? dtm_unit_of(p->module, def) : self, old);
}

/* A collective in place of its operand changes it from where it starts, which may be ahead of where it stands. */
static void check_in_place(const places *p, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(p->module, self);
    for (uint32_t i = 0; i < op->n_operands && i < op->n_results; i++) {
        dtm_value operand = op->operands[i];
        if (!same_place(&dtm_value_get(p->module, operand)->storage, &dtm_value_get(p->module, op->results[i])->storage)) continue;
        dtm_op reader = dtm_reader_after_start(p->module, &p->order, p->users, self, operand);
        if (reader)
            BREAK(p, dtm_op_get(p->module, reader), "%s is read after `%s` has been started in its place, which makes %s",
                  dtm_value_name(p->module, operand), dtm_op_rows[op->kind].name, dtm_value_name(p->module, op->results[i]));
    }
}

/* Whether both lie in the same bytes in each copy of the repeats around them. */
static bool share_bytes(const places *p, dtm_value a, dtm_value b) {
    const dtm_module *m = p->module;
    const dtm_storage *s = &m->values[a].storage, *t = &m->values[b].storage;
    bool slots = s->modulus > 1 || t->modulus > 1, batches = s->places || t->places;
    if (s->offset < 0 || t->offset < 0 || batches) return false;
    if (slots && (s->modulus != t->modulus || s->stride != t->stride || s->shift != t->shift)) return false;
    dtm_op x = dtm_enclosing(m, m->values[a].def, DTM_OP_REPEAT), y = dtm_enclosing(m, m->values[b].def, DTM_OP_REPEAT);
    if (slots && (!x || !y || (x != y && !dtm_same_copies(m, x, y)))) return false;
    return s->offset < t->offset + dtm_local_bytes_max(m, m->values[b].type) && t->offset < s->offset + dtm_local_bytes_max(m, m->values[a].type);
}

/* What makes a value of its own. */
static bool writes(const places *p, dtm_op op) {
    dtm_op_kind kind = dtm_op_get(p->module, op)->kind;
    return kind != DTM_OP_CARRY && kind != DTM_OP_LAST && kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE && kind != DTM_OP_INPUT &&
           !dtm_is_alias(p->module, op);
}

/* Where the first that reads a value, or an alias of it, begins; INT64_MAX: nothing does. What is carried on is not followed: 0. */
static int64_t first_reader(const places *p, dtm_value value) {
    int64_t first = INT64_MAX;
    for (const dtm_op *user = p->users[value]; *user; user++) {
        const dtm_op_data *data = dtm_op_get(p->module, *user);
        bool alias = dtm_is_alias(p->module, *user), carried = data->kind == DTM_OP_CARRY || data->kind == DTM_OP_LAST;
        int64_t at = carried ? 0 : alias ? first_reader(p, data->results[0]) : p->order.begin[*user];
        if (at < first) first = at;
    }
    return first;
}

/* Nothing comes where a collective that is carried out apart has its operand or result, from its start on: up to where it stands,
 * and of the operand up to what touches the result. What is called in an order of its own, and what has slots of other copies in that
 * place, is seen by interpreting. */
static void check_on_its_way(const places *p, dtm_op self) {
    const dtm_op_data *op = dtm_op_get(p->module, self);
    dtm_op early = dtm_early_place(p->module, self), called = dtm_called_region(p->module, early ? early : self);
    int64_t from = p->order.begin[early ? early : self], stands = p->order.begin[self], touched = INT64_MAX;
    for (uint32_t i = 0; i < op->n_results; i++)
        if (first_reader(p, op->results[i]) < touched) touched = first_reader(p, op->results[i]);
    if (touched < stands || touched == INT64_MAX) touched = stands;
    for (dtm_op other = 1; other < p->module->n_ops; other++) {
        const dtm_op_data *data = dtm_op_get(p->module, other);
        if (!data->region || dtm_comes_after(p->module, self, other) || p->order.begin[other] <= from || !writes(p, other)) continue;
        if (dtm_ordered_loop(p->module, other) && dtm_called_region(p->module, other) != called) continue;
        for (uint32_t r = 0; r < data->n_results; r++)
            for (uint32_t i = 0; p->stored[data->results[r]] && i < op->n_operands; i++) {
                dtm_value moved[2] = {op->operands[i], op->results[i]};
                int64_t until[2] = {touched, stands};
                for (int k = 0; k < 2; k++)
                    if (p->order.begin[other] < until[k] && share_bytes(p, data->results[r], moved[k]))
                        BREAK(p, data, "%s is written over %s, which `%s` is on its way with", dtm_value_name(p->module, data->results[r]),
                              dtm_value_name(p->module, moved[k]), dtm_op_rows[op->kind].name);
            }
    }
}

static void check_op(dtm_module *module, dtm_op op, void *state) {
    const places *p = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    for (uint32_t i = 0; i < data->n_results; i++)
        if (p->stored[data->results[i]]) check_place(p, data, data->results[i]);
    if (dtm_runs_collective(data->kind)) check_scratch(p, op), check_in_place(p, op);
    if (dtm_is_apart(module, op)) check_on_its_way(p, op);
    if (data->kind == DTM_OP_STORE) check_store(p, op);
}

void dtm_storage_verify(dtm_module *module, dtm_arena *scratch) {
    places p = {module, scratch, dtm_stored(module, scratch), dtm_order_of(module, scratch), dtm_users_of(module, scratch), 0, 0, {0}};
    dtm_op loop = dtm_rank_loop(module);
    if (loop && dtm_loop_is_ordered(module, loop)) p.loop = loop;
    const char *wrong = dtm_loop_places_of(module, p.loop, scratch, &p.places);
    if (wrong) {
        dtm_error(module->context, dtm_op_get(module, p.loop)->span, 510, "%s", wrong);
        return;
    }
    p.top = dtm_workspace_begin(module) - dtm_workspace_of_pairs(module) - dtm_workspace_of_apart(module, NULL);
    if (p.top >= 0) {
        dtm_walk(module, check_op, &p);
        return;
    }
    dtm_error(module->context, (dtm_span){0, 0, 0}, 510, "an arena of %lld bytes: the workspace at its end takes %lld",
              (long long)module->arena_bytes, (long long)(module->arena_bytes - p.top));
}
