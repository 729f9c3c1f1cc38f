/* Attention and its gradient, without the scores of more than one query at a time. */
#include "ir/fault.h"
#include "passes/interpret_nest.h"

#include <math.h>
#include <string.h>

/* ---- attention ---- */

/* The roles of dimensions, and for a query the tensors' places. Queries are walked by a nest over q's dimensions but
 * the width; keys and values are then reached by their strides along heads, positions and widths. */
typedef struct attention {
    dtm_dim queries, keys, width, value_width, q_heads, kv_heads;
    int64_t shift;  /* added to a query's position to compare it with a key's */
    int64_t per_kv; /* query heads that share a kv head; 0: heads named alike, or one kv head for all */
    int64_t width_size, value_size;
    int64_t key_begin, key_size;
    double scale;
    int64_t window;
    bool causal;
} attention;

static dtm_dim other_dim(const dtm_tile *a, const dtm_tile *b, const dtm_dim *known, int n_known, int *count) {
    dtm_dim found = 0;
    for (int d = 0; d < a->type->rank; d++) {
        bool skip = b && dtm_tile_dim(b->type, a->type->dims[d]) >= 0;
        for (int i = 0; i < n_known; i++) skip |= known[i] == a->type->dims[d];
        if (skip) continue;
        found = a->type->dims[d];
        ++*count;
    }
    return found;
}

static bool attention_roles(dtm_call *call, attention *a) {
    const dtm_attributes *attributes = &call->op->attributes;
    const dtm_tile *q = &call->operands[0], *k = &call->operands[1], *v = &call->operands[2];
    *a = (attention){.keys = attributes->over[0], .width = attributes->over[1]};
    a->queries = dtm_tile_dim(q->type, a->keys) >= 0 ? a->keys : attributes->at;
    dtm_dim known[4] = {a->queries, a->keys, a->width};
    int q_left = 0, k_left = 0, v_left = 0;
    a->q_heads = other_dim(q, k, known, 3, &q_left);
    a->kv_heads = other_dim(k, q, known, 3, &k_left);
    if (q_left > 1 || k_left > 1 || (k_left && !q_left))
        return dtm_call_error(call, "its heads are not one dimension", 0);
    known[3] = a->kv_heads;
    a->value_width = other_dim(v, q, known, a->kv_heads ? 4 : 3, &v_left);
    if (!v_left) a->value_width = a->width;
    if (v_left > 1 || dtm_tile_dim(v->type, a->value_width) < 0)
        return dtm_call_error(call, "v has no width of its own", 0);
    if (k_left) {
        if (dtm_call_size(call, a->q_heads) % dtm_call_size(call, a->kv_heads))
            return dtm_call_error(call, "heads do not divide:", a->q_heads);
        a->per_kv = dtm_call_size(call, a->q_heads) / dtm_call_size(call, a->kv_heads);
    }
    a->shift = dtm_call_size(call, a->keys) - dtm_call_size(call, a->queries);
    a->width_size = dtm_call_size(call, a->width);
    a->value_size = dtm_call_size(call, a->value_width);
    double scale = attributes->number[DTM_ATTENTION_SCALE];
    a->scale = scale != 0 ? scale : 1 / sqrt((double)a->width_size);
    a->window = (int64_t)attributes->number[DTM_ATTENTION_WINDOW];
    a->causal = attributes->flags & DTM_ATTENTION_CAUSAL;
    int kd = dtm_tile_dim(k->type, a->keys), vd = dtm_tile_dim(v->type, a->keys);
    if (kd < 0 || vd < 0) return dtm_call_error(call, "keys or values lack", a->keys);
    a->key_begin = k->extent->begin[kd];
    a->key_size = k->extent->size[kd];
    if (v->extent->begin[vd] != a->key_begin || v->extent->size[vd] != a->key_size)
        return dtm_call_error(call, "keys and values differ in their block of", a->keys);
    for (uint32_t o = 0; o < call->n_operands; o++)
        if (!dtm_call_need_whole(call, &call->operands[o], a->width) ||
            !dtm_call_need_whole(call, &call->operands[o], a->value_width))
            return false;
    return true;
}

/* The keys [*from, *to) that a query at a global position sees, in the whole tensor. */
static void visible(const attention *a, int64_t all, int64_t query, int64_t *from, int64_t *to) {
    int64_t position = query + a->shift;
    *from = 0;
    *to = all;
    if (a->causal || a->window) *to = position + 1 < all ? position + 1 : all;
    if (a->window && position + 1 - a->window > 0) *from = position + 1 - a->window;
    if (*to < *from) *to = *from;
}

/* A tensor of attention: where query, key and head lead in it. */
typedef struct reach {
    double *data;
    int64_t head, key, width; /* strides along kv heads, key positions, its width */
} reach;

static reach reach_of(const dtm_tile *tile, const attention *a, dtm_dim width) {
    return (reach){.data = tile->data,
                   .head = a->kv_heads ? dtm_tile_stride(tile, a->kv_heads) : 0,
                   .key = dtm_tile_stride(tile, a->keys),
                   .width = dtm_tile_stride(tile, width)};
}

/* Nest over q's dimensions but the width, with every tensor of the operator joined: tensors 0.. are operands, then
 * results, then the position of the query, then that of the query's head. Along key positions k, v, dk, dv do not move.
 */
static bool attention_nest(dtm_call *call, const attention *a, dtm_nest *n) {
    *n = dtm_nest_begin(call);
    const dtm_dim not_of_keys[4] = {a->keys, a->width, a->value_width, a->kv_heads};
    const dtm_dim not_of_queries[2] = {a->width, a->value_width};
    for (uint32_t t = 0; t < call->n_operands + call->n_results; t++) {
        const dtm_tile *tile = t < call->n_operands ? &call->operands[t] : &call->results[t - call->n_operands];
        bool of_keys = t == 1 || t == 2 || (t >= call->n_operands && call->n_results == 3 && t > call->n_operands);
        if (of_keys)
            dtm_nest_add_but(n, tile, not_of_keys, a->kv_heads ? 4 : 3);
        else
            dtm_nest_add_but(n, tile, not_of_queries, 2);
    }
    dtm_nest_add_position(n, a->queries);
    dtm_nest_add_position(n, a->q_heads ? a->q_heads : a->width);
    return dtm_nest_close(n);
}

/* The local kv head of a query's head: an error if another rank has it. */
static bool kv_head(dtm_call *call, const attention *a, int64_t head, const dtm_tile *k, int64_t *local) {
    *local = 0;
    if (!a->per_kv) return true;
    int d = dtm_tile_dim(k->type, a->kv_heads);
    if (d < 0) return true;
    *local = (dtm_fault(20) ? head % dtm_call_size(call, a->kv_heads) : head / a->per_kv) - k->extent->begin[d];
    if (*local >= 0 && *local < k->extent->size[d]) return true;
    return dtm_call_error(call, "reads outside its block, along", a->kv_heads);
}

/* One query: its visible keys in the local block, and its kv head in k and v. */
typedef struct query {
    int64_t from, to, k_head, v_head;
} query;

static bool query_at(dtm_call *call, const attention *a, int64_t position, int64_t head, query *q) {
    visible(a, dtm_call_size(call, a->keys), position, &q->from, &q->to);
    q->from -= a->key_begin;
    q->to -= a->key_begin;
    if (q->from < q->to && (q->from < 0 || q->to > a->key_size))
        return dtm_call_error(call, "needs keys outside its block, along", a->keys);
    return kv_head(call, a, head, &call->operands[1], &q->k_head) &&
           kv_head(call, a, head, &call->operands[2], &q->v_head);
}

static double dot_along(const double *a, int64_t step_a, const double *b, int64_t step_b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i * step_a] * b[i * step_b];
    return sum;
}

/* One query's output row and the logarithm of its sum of exp; without visible keys 0 and -inf. */
static double attend(const attention *a, const query *at, const double *q, int64_t q_step, const double *k, reach keys,
                     const double *v, reach values, double *o, int64_t o_step, double *scores) {
    double top = -INFINITY, sum = 0;
    for (int64_t j = at->from; j < at->to; j++) {
        scores[j] = a->scale * dot_along(q, q_step, k + j * keys.key, keys.width, a->width_size);
        if (!(scores[j] <= top)) top = scores[j];
    }
    for (int64_t w = 0; w < a->value_size; w++) o[w * o_step] = 0;
    for (int64_t j = at->from; j < at->to; j++) sum += exp(scores[j] - top);
    for (int64_t j = at->from; j < at->to; j++) {
        double p = exp(scores[j] - top) / sum;
        for (int64_t w = 0; w < a->value_size; w++) o[w * o_step] += p * v[j * values.key + w * values.width];
    }
    return at->from < at->to ? top + log(sum) : -INFINITY;
}

bool dtm_interpret_ATTENTION(dtm_call *call) {
    attention a;
    dtm_nest n;
    if (!attention_roles(call, &a) || !attention_nest(call, &a, &n)) return false;
    reach keys = reach_of(&call->operands[1], &a, a.width), values = reach_of(&call->operands[2], &a, a.value_width);
    int64_t q_step = dtm_tile_stride(&call->operands[0], a.width),
            o_step = dtm_tile_stride(&call->results[0], a.value_width);
    double *scores = dtm_arena_alloc(call->run->arena, (size_t)(a.key_size + 1) * sizeof *scores);
    int64_t first = dtm_nest_begin_of(&n, a.queries), first_head = dtm_nest_begin_of(&n, a.q_heads);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t at[7];
            for (int t = 0; t < 7; t++) at[t] = c.offset[t] + i * STEP(n, t);
            query query;
            if (!query_at(call, &a, first + at[5], first_head + at[6], &query)) return false;
            const double *k = keys.data + at[1] + query.k_head * keys.head;
            const double *v = values.data + at[2] + query.v_head * values.head;
            call->results[1].data[at[4]] = attend(&a, &query, call->operands[0].data + at[0], q_step, k, keys, v,
                                                  values, call->results[0].data + at[3], o_step, scores);
        }
    }
    return true;
}

/* With p the probabilities: dv += p do; ds = p (do v - do o); dq += scale ds k; dk += scale ds q. */
bool dtm_interpret_ATTENTION_BACKWARD(dtm_call *call) {
    attention a;
    dtm_nest n;
    if (!attention_roles(call, &a) || !attention_nest(call, &a, &n)) return false;
    reach keys = reach_of(&call->operands[1], &a, a.width), values = reach_of(&call->operands[2], &a, a.value_width);
    reach dkeys = reach_of(&call->results[1], &a, a.width), dvalues = reach_of(&call->results[2], &a, a.value_width);
    int64_t q_step = dtm_tile_stride(&call->operands[0], a.width),
            dq_step = dtm_tile_stride(&call->results[0], a.width);
    int64_t o_step = dtm_tile_stride(&call->operands[3], a.value_width);
    int64_t do_step = dtm_tile_stride(&call->operands[5], a.value_width);
    int64_t first = dtm_nest_begin_of(&n, a.queries), first_head = dtm_nest_begin_of(&n, a.q_heads);
    for (int i = 0; i < 3; i++) dtm_tile_fill(&call->results[i], 0);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t at[11], dk_head, dv_head;
            for (int t = 0; t < 11; t++) at[t] = c.offset[t] + i * STEP(n, t);
            query query;
            if (!query_at(call, &a, first + at[9], first_head + at[10], &query)) return false;
            if (!kv_head(call, &a, first_head + at[10], &call->results[1], &dk_head) ||
                !kv_head(call, &a, first_head + at[10], &call->results[2], &dv_head))
                return false;
            const double *q = call->operands[0].data + at[0], *o = call->operands[3].data + at[3];
            const double *dout = call->operands[5].data + at[5];
            double *dq = call->results[0].data + at[6], lse = call->operands[4].data[at[4]];
            double inner = dot_along(dout, do_step, o, o_step, a.value_size);
            for (int64_t j = query.from; j < query.to; j++) {
                const double *k = keys.data + at[1] + query.k_head * keys.head + j * keys.key;
                const double *v = values.data + at[2] + query.v_head * values.head + j * values.key;
                double *dk = dkeys.data + at[7] + dk_head * dkeys.head + j * dkeys.key;
                double *dv = dvalues.data + at[8] + dv_head * dvalues.head + j * dvalues.key;
                double p = exp(a.scale * dot_along(q, q_step, k, keys.width, a.width_size) - lse);
                double ds = a.scale * p * (dot_along(dout, do_step, v, values.width, a.value_size) - inner);
                for (int64_t w = 0; w < a.value_size; w++) dv[w * dvalues.width] += p * dout[w * do_step];
                for (int64_t w = 0; w < a.width_size; w++) {
                    dq[w * dq_step] += ds * k[w * keys.width];
                    dk[w * dkeys.width] += ds * q[w * q_step];
                }
            }
        }
    }
    return true;
}
