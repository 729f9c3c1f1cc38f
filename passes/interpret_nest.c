/* Loop nests over named dimensions, and what operators ask of their tensors. */
#include "passes/interpret_nest.h"

#include <string.h>

/* ---- loop nests ---- */

/* Loops over named dimensions, outermost first, with each tensor's stride in every loop. */

static const char *dim_name(const dtm_call *call, dtm_dim dim) {
    return dtm_dim_name(call->run->module, dim);
}
int64_t dtm_call_size(const dtm_call *call, dtm_dim dim) {
    return call->run->module->dims[dim].size;
}

int dtm_tile_dim(const dtm_type_data *type, dtm_dim dim) {
    for (int d = 0; d < type->rank; d++)
        if (type->dims[d] == dim) return d;
    return -1;
}

bool dtm_call_over(const dtm_call *call, dtm_dim dim) {
    for (int i = 0; i < call->op->attributes.n_over; i++)
        if (call->op->attributes.over[i] == dim) return true;
    return false;
}

bool dtm_call_error(dtm_call *call, const char *text, dtm_dim dim) {
    return dtm_run_error(call->run, call->op, "`%s` on rank %lld: %s%s%s", dtm_op_rows[call->op->kind].name,
                         (long long)call->rank, text, dim ? " " : "", dim ? dim_name(call, dim) : "");
}

static int loop_of(dtm_nest *n, dtm_dim dim, int64_t begin, int64_t size) {
    for (int l = 0; l < n->rank; l++)
        if (n->dims[l] == dim) {
            if (n->begins[l] != begin || n->sizes[l] != size)
                if (!n->failed) n->failed = !dtm_call_error(n->call, "reads outside its block, along", dim);
            return l;
        }
    if (n->rank == DTM_NEST_DIMS) dtm_broken("interpret", "more than %d loops", DTM_NEST_DIMS);
    n->dims[n->rank] = dim;
    n->begins[n->rank] = begin;
    n->sizes[n->rank] = size;
    return n->rank++;
}

void dtm_tile_strides(const dtm_tile *tile, int64_t *strides) {
    int64_t stride = 1;
    for (int d = tile->type->rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= tile->extent->size[d];
    }
}

dtm_nest dtm_nest_begin(dtm_call *call) {
    return (dtm_nest){.call = call};
}

/* Adds a tensor with all its dimensions but those in `except`; returns its number. */
int dtm_nest_add_but(dtm_nest *n, const dtm_tile *tile, const dtm_dim *except, int n_except) {
    int64_t strides[DTM_MAX_RANK];
    dtm_tile_strides(tile, strides);
    for (int d = 0; d < tile->type->rank; d++) {
        bool skipped = false;
        for (int e = 0; e < n_except; e++) skipped |= except[e] == tile->type->dims[d];
        if (skipped) continue;
        int l = loop_of(n, tile->type->dims[d], tile->extent->begin[d], tile->extent->size[d]);
        n->strides[n->tensors][l] = strides[d];
    }
    return n->tensors++;
}

int dtm_nest_add(dtm_nest *n, const dtm_tile *tile) {
    return dtm_nest_add_but(n, tile, NULL, 0);
}

/* Adds the position along a dimension as if it were a tensor: its offset counts from the block's begin. */
int dtm_nest_add_position(dtm_nest *n, dtm_dim dim) {
    for (int l = 0; l < n->rank; l++)
        if (n->dims[l] == dim) n->strides[n->tensors][l] = 1;
    return n->tensors++;
}

int64_t dtm_nest_begin_of(const dtm_nest *n, dtm_dim dim) {
    for (int l = 0; l < n->rank; l++)
        if (n->dims[l] == dim) return n->begins[l];
    return 0;
}

/* A nest has at least one loop. Returns false where a tensor's block does not fit. */
bool dtm_nest_close(dtm_nest *n) {
    if (!n->rank) {
        n->sizes[0] = 1;
        n->rank = 1;
    }
    return !n->failed;
}

bool dtm_nest_empty(const dtm_nest *n) {
    for (int l = 0; l < n->rank; l++)
        if (n->sizes[l] == 0) return true;
    return false;
}

void dtm_nest_next(const dtm_nest *n, dtm_cursor *c) {
    for (int l = n->rank - 2; l >= 0; l--) {
        for (int t = 0; t < n->tensors; t++) c->offset[t] += n->strides[t][l];
        if (++c->index[l] < n->sizes[l]) return;
        for (int t = 0; t < n->tensors; t++) c->offset[t] -= n->strides[t][l] * n->sizes[l];
        c->index[l] = 0;
    }
    c->live = false;
}

dtm_cursor dtm_cursor_begin(const dtm_nest *n) {
    const int64_t none[DTM_NEST_TENSORS] = {0};
    return dtm_cursor_from(n, none);
}

dtm_cursor dtm_cursor_from(const dtm_nest *n, const int64_t *offsets) {
    dtm_cursor c; /* only what the nest has is set: this runs once an element of a product */
    c.live = !dtm_nest_empty(n);
    for (int l = 0; l < n->rank; l++) c.index[l] = 0;
    for (int t = 0; t < n->tensors; t++) c.offset[t] = offsets[t];
    return c;
}

void dtm_tile_fill(dtm_tile *tile, double number) {
    for (int64_t i = 0; i < tile->extent->elements; i++) tile->data[i] = number;
}

/* Whether a dimension is whole in a tensor's block; else an error. */
bool dtm_call_need_whole(dtm_call *call, const dtm_tile *tile, dtm_dim dim) {
    int d = dtm_tile_dim(tile->type, dim);
    if (d < 0 || tile->extent->size[d] == dtm_call_size(call, dim)) return true;
    return dtm_call_error(call, "needs the whole of", dim);
}

int64_t dtm_tile_stride(const dtm_tile *tile, dtm_dim dim) {
    int64_t strides[DTM_MAX_RANK];
    int d = dtm_tile_dim(tile->type, dim);
    dtm_tile_strides(tile, strides);
    return d < 0 ? 0 : strides[d];
}

bool dtm_call_bad_index(dtm_call *call, double index, dtm_dim dim) {
    return !dtm_run_error(call->run, call->op, "`%s`: %lld is not in %s = %lld", dtm_op_rows[call->op->kind].name,
                          (long long)index, dim_name(call, dim), (long long)dtm_call_size(call, dim));
}
