/* What moves elements: rope, rows of tables, and operators of shape. */
#include "passes/interpret_nest.h"

#include <math.h>
#include <string.h>

/* ---- rope ---- */

/* The angle a pair of width i of r turns by at one position. */
static double rope_frequency(const double *number, int64_t i, int64_t r) {
    double frequency = pow(number[DTM_ROPE_BASE], -2.0 * (double)i / (double)r);
    double factor = number[DTM_ROPE_FACTOR], original = number[DTM_ROPE_ORIGINAL];
    if (number[DTM_ROPE_SCALE_KIND] == 1) return frequency / factor;
    if (number[DTM_ROPE_SCALE_KIND] != 2) return frequency;
    /* llama3: long waves are stretched by the factor, short ones kept, those between blended */
    double turns = original * frequency / (2 * 3.14159265358979323846);
    double low = number[DTM_ROPE_LOW], high = number[DTM_ROPE_HIGH];
    if (turns < low) return frequency / factor;
    if (turns > high) return frequency;
    double smooth = (turns - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

bool dtm_interpret_ROPE(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim width = attributes->over[0], positions = attributes->at;
    int64_t size = dtm_call_size(call, width), turned = (int64_t)attributes->number[DTM_ROPE_PART];
    if (!turned) turned = size;
    if (!dtm_call_need_whole(call, &call->operands[0], width) || !dtm_call_need_whole(call, &call->results[0], width))
        return false;
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add_but(&n, &call->results[0], &width, 1);
    dtm_nest_add_but(&n, &call->operands[0], &width, 1);
    dtm_nest_add_position(&n, positions);
    if (!dtm_nest_close(&n)) return false;
    int64_t first = dtm_nest_begin_of(&n, positions), strides[2][DTM_MAX_RANK], step[2];
    const dtm_tile *tiles[2] = {&call->results[0], &call->operands[0]};
    for (int t = 0; t < 2; t++) {
        dtm_tile_strides(tiles[t], strides[t]);
        int d = dtm_tile_dim(tiles[t]->type, width);
        step[t] = d < 0 ? 0 : strides[t][d];
    }
    bool pairs = attributes->flags & DTM_ROPE_INTERLEAVED;
    double direction = attributes->flags & DTM_ROPE_INVERSE ? -1 : 1;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double *y = call->results[0].data + c.offset[0] + i * STEP(n, 0);
            const double *x = call->operands[0].data + c.offset[1] + i * STEP(n, 1);
            double position = (double)(first + c.offset[2] + i * STEP(n, 2));
            for (int64_t k = turned; k < size; k++) y[k * step[0]] = x[k * step[1]];
            for (int64_t k = 0; k < turned / 2; k++) {
                int64_t a = pairs ? 2 * k : k, b = pairs ? 2 * k + 1 : k + turned / 2;
                double angle = direction * position * rope_frequency(attributes->number, k, turned);
                double u = x[a * step[1]], v = x[b * step[1]];
                y[a * step[0]] = u * cos(angle) - v * sin(angle);
                y[b * step[0]] = v * cos(angle) + u * sin(angle);
            }
        }
    }
    return true;
}

/* ---- rows ---- */

/* A row that another rank holds reads as 0: the result is then a term. */
bool dtm_interpret_GATHER(dtm_call *call) {
    dtm_dim over = call->op->attributes.over[0];
    const dtm_tile *table = &call->operands[0];
    int d = dtm_tile_dim(table->type, over);
    if (d < 0) return dtm_call_error(call, "its table lacks", over);
    int64_t begin = table->extent->begin[d], size = table->extent->size[d], step = dtm_tile_stride(table, over);
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->results[0]);
    dtm_nest_add(&n, &call->operands[1]);
    dtm_nest_add_but(&n, table, &over, 1);
    if (!dtm_nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double id = call->operands[1].data[c.offset[1] + i * STEP(n, 1)];
            if (!(id >= 0 && id < (double)dtm_call_size(call, over))) return !dtm_call_bad_index(call, id, over);
            int64_t row = (int64_t)id - begin;
            double y = row < 0 || row >= size ? 0 : table->data[c.offset[2] + i * STEP(n, 2) + row * step];
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = y;
        }
    }
    return true;
}

bool dtm_interpret_SCATTER(dtm_call *call) {
    dtm_dim over = call->op->attributes.over[0];
    dtm_tile *table = &call->results[0];
    int d = dtm_tile_dim(table->type, over);
    if (d < 0) return dtm_call_error(call, "its result lacks", over);
    int64_t begin = table->extent->begin[d], size = table->extent->size[d], step = dtm_tile_stride(table, over);
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->operands[0]);
    dtm_nest_add(&n, &call->operands[1]);
    dtm_nest_add_but(&n, table, &over, 1);
    if (!dtm_nest_close(&n)) return false;
    dtm_tile_fill(table, 0);
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            double id = call->operands[0].data[c.offset[0] + i * STEP(n, 0)];
            if (!(id >= 0 && id < (double)dtm_call_size(call, over))) return !dtm_call_bad_index(call, id, over);
            int64_t row = (int64_t)id - begin;
            if (row < 0 || row >= size) continue;
            table->data[c.offset[2] + i * STEP(n, 2) + row * step] +=
                call->operands[1].data[c.offset[1] + i * STEP(n, 1)];
        }
    }
    return true;
}

/* ---- shape ---- */

/* Copies between two tensors of which one has the dimension `joined` where the other has the dimensions `parts`, the
 * major one first: element (i, j) of the parts is i * size(j) + j of the joined one. */
static bool regroup(dtm_call *call, const dtm_tile *whole, const dtm_tile *apart, dtm_dim joined, const dtm_dim *parts,
                    int n_parts, double *to, const double *from, bool from_whole) {
    int w = dtm_tile_dim(whole->type, joined), major = dtm_tile_dim(apart->type, parts[0]);
    if (w < 0 || major < 0) return dtm_call_error(call, "lacks a dimension", 0);
    int64_t minor = 1;
    for (int i = 1; i < n_parts; i++) {
        if (!dtm_call_need_whole(call, apart, parts[i])) return false;
        minor *= dtm_call_size(call, parts[i]);
    }
    if (whole->extent->begin[w] != apart->extent->begin[major] * minor ||
        whole->extent->size[w] != apart->extent->size[major] * minor)
        return dtm_call_error(call, "reads outside its block, along", joined);
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, apart);
    dtm_nest_add_but(&n, whole, &joined, 1);
    int64_t stride = dtm_tile_stride(whole, joined);
    for (int i = n_parts - 1; i >= 0; i--) {
        for (int l = 0; l < n.rank; l++)
            if (n.dims[l] == parts[i]) n.strides[1][l] = stride;
        stride *= dtm_call_size(call, parts[i]);
    }
    if (!dtm_nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            int64_t a = c.offset[0] + i * STEP(n, 0), b = c.offset[1] + i * STEP(n, 1);
            if (from_whole)
                to[a] = from[b];
            else
                to[b] = from[a];
        }
    }
    return true;
}

bool dtm_interpret_SPLIT(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    return regroup(call, &call->operands[0], &call->results[0], attributes->over[0], attributes->as, attributes->n_as,
                   call->results[0].data, call->operands[0].data, true);
}

bool dtm_interpret_MERGE(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    return regroup(call, &call->results[0], &call->operands[0], attributes->as[0], attributes->over, attributes->n_over,
                   call->results[0].data, call->operands[0].data, false);
}

/* Copies elements [from, from + count) along `a` of the operand to those from `to` on along `b` of the result. */
static bool copy_stretch(dtm_call *call, const dtm_tile *operand, dtm_dim a, int64_t from, dtm_dim b, int64_t to,
                         int64_t count) {
    dtm_tile *result = &call->results[0];
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add_but(&n, result, &b, 1);
    dtm_nest_add_but(&n, operand, &a, 1);
    if (n.rank > result->type->rank) return dtm_call_error(call, "its result lacks a dimension", 0);
    int64_t a_step = dtm_tile_stride(operand, a), b_step = dtm_tile_stride(result, b);
    if (!dtm_nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++) {
            const double *x = operand->data + c.offset[1] + i * STEP(n, 1) + from * a_step;
            double *y = result->data + c.offset[0] + i * STEP(n, 0) + to * b_step;
            for (int64_t k = 0; k < count; k++) y[k * b_step] = x[k * a_step];
        }
    }
    return true;
}

bool dtm_interpret_RENAME(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    const dtm_tile *x = &call->operands[0];
    dtm_type_data renamed = *x->type;
    for (int i = 0; i < attributes->n_over; i++) {
        int d = dtm_tile_dim(x->type, attributes->over[i]);
        if (d >= 0) renamed.dims[d] = attributes->as[i];
    }
    dtm_tile operand = {&renamed, x->extent, x->data};
    dtm_nest n = dtm_nest_begin(call);
    dtm_nest_add(&n, &call->results[0]);
    dtm_nest_add(&n, &operand);
    if (!dtm_nest_close(&n)) return false;
    FOR_ROWS(n, c) {
        for (int64_t i = 0; i < ROW(n); i++)
            call->results[0].data[c.offset[0] + i * STEP(n, 0)] = x->data[c.offset[1] + i * STEP(n, 1)];
    }
    return true;
}

bool dtm_interpret_CONCAT(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim a = attributes->over[0], b = attributes->over[1], joined = attributes->as[0];
    if (!dtm_call_need_whole(call, &call->operands[0], a) || !dtm_call_need_whole(call, &call->operands[1], b) ||
        !dtm_call_need_whole(call, &call->results[0], joined))
        return false;
    return copy_stretch(call, &call->operands[0], a, 0, joined, 0, dtm_call_size(call, a)) &&
           copy_stretch(call, &call->operands[1], b, 0, joined, dtm_call_size(call, a), dtm_call_size(call, b));
}

bool dtm_interpret_SLICE(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim over = attributes->over[0], as = attributes->as[0];
    if (!dtm_call_need_whole(call, &call->operands[0], over) || !dtm_call_need_whole(call, &call->results[0], as))
        return false;
    if (attributes->from < 0 || attributes->to > dtm_call_size(call, over) ||
        attributes->to - attributes->from != dtm_call_size(call, as))
        return dtm_call_error(call, "its stretch does not fit", over);
    return copy_stretch(call, &call->operands[0], over, attributes->from, as, 0, dtm_call_size(call, as));
}

bool dtm_interpret_PAD(dtm_call *call) {
    const dtm_attributes *attributes = &call->op->attributes;
    dtm_dim over = attributes->over[0], as = attributes->as[0];
    if (!dtm_call_need_whole(call, &call->operands[0], over) || !dtm_call_need_whole(call, &call->results[0], as))
        return false;
    if (attributes->from < 0 || attributes->to > dtm_call_size(call, as) ||
        attributes->to - attributes->from != dtm_call_size(call, over))
        return dtm_call_error(call, "its stretch does not fit", as);
    dtm_tile_fill(&call->results[0], 0);
    return copy_stretch(call, &call->operands[0], over, 0, as, attributes->from, dtm_call_size(call, over));
}
