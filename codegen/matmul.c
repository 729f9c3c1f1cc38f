/* dot as matrix products. Local tensors are dense and row-major in the order of their types, so a dimension's stride is the
 * product of the sizes after it. The dimensions of a dot fall into four classes:
 *
 *     batch  in a, b and c        rows  in a and c        columns  in b and c        depth  in a and b
 *
 * Neighbours of a class that run on in every tensor that has them are one: dot(x[B, S, D], w[D, H, K] over D) is one
 * product of B S rows, H K columns, depth D. What is left of a class but its largest part becomes an outer loop; one over
 * depth adds up. c's last dimension must be columns: if it is rows, a and b change places. */
#include "codegen/generator.h"
#include "ir/fault.h"

#include <string.h>

enum { BATCH, ROWS, COLUMNS, DEPTH, CLASSES, A = 0, B = 1, C = 2 };

typedef struct part {
    int class;
    dtm_product size;
    int64_t most; /* its size on the rank that has most */
    bool has[3];
    dtm_product stride[3];
    bool last; /* ends c */
    dtm_dim first, dim; /* its first and its last dimension */
} part;

typedef struct product {
    dtm_generator *g;
    const dtm_type_data *types[3];
    part parts[2 * DTM_MAX_RANK];
    int n_parts;
} product;

static dtm_product stride_in(product *p, int tensor, int index) {
    dtm_product stride = dtm_product_one();
    for (int i = index + 1; i < p->types[tensor]->rank; i++) dtm_product_times(p->g, &stride, p->types[tensor], i);
    return stride;
}

static int class_of(const bool has[3]) {
    if (has[A] && has[B]) return has[C] ? BATCH : DEPTH;
    return has[A] ? ROWS : COLUMNS;
}

static void add_part(product *p, int tensor, int index) {
    dtm_dim dim = p->types[tensor]->dims[index];
    for (int i = 0; i < p->n_parts; i++)
        if (p->parts[i].dim == dim) return;
    part *made = &p->parts[p->n_parts++];
    memset(made, 0, sizeof *made);
    made->first = made->dim = dim;
    made->size = dtm_product_one();
    dtm_product_times(p->g, &made->size, p->types[tensor], index);
    made->most = dtm_block_max(p->g->module, p->types[tensor], index);
    for (int t = A; t <= C; t++) {
        int at = dtm_type_dim_index(p->types[t], dim);
        made->has[t] = at >= 0;
        if (at >= 0) made->stride[t] = stride_in(p, t, at);
        if (t == C) made->last = at >= 0 && at == p->types[C]->rank - 1;
    }
    made->class = class_of(made->has);
}

static bool runs_on(const product *p, const part *a, const part *b) {
    for (int t = A; t <= C; t++) {
        if (a->has[t] != b->has[t]) return false;
        if (a->has[t] && dtm_type_dim_index(p->types[t], b->first) != dtm_type_dim_index(p->types[t], a->dim) + 1) return false;
    }
    return true;
}

/* Joins b to a where b follows a in every tensor. */
static void join_parts(product *p) {
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < p->n_parts && !changed; i++)
            for (int j = 0; j < p->n_parts && !changed; j++) {
                part *a = &p->parts[i], *b = &p->parts[j];
                if (i == j || a->class != b->class || !runs_on(p, a, b)) continue;
                dtm_product_times_product(&a->size, &b->size);
                a->most *= b->most;
                memcpy(a->stride, b->stride, sizeof a->stride);
                a->last = b->last;
                a->dim = b->dim;
                memmove(b, b + 1, (size_t)(p->n_parts - j - 1) * sizeof *b);
                p->n_parts--;
                changed = true;
            }
    }
}

/* The part of a class that the product itself runs over: what ends c, else the largest. */
static const part *main_part(const product *p, int class) {
    const part *best = NULL;
    for (int i = 0; i < p->n_parts; i++) {
        const part *candidate = &p->parts[i];
        if (candidate->class != class) continue;
        if (!best || candidate->last || (!best->last && candidate->most > best->most)) best = candidate;
    }
    return best;
}

static uint32_t size_of(product *p, const dtm_product *size) { return dtm_size_index(p->g, size); }

static uint32_t number(product *p, int64_t value) {
    dtm_product size = {value, 0, 0, {0}};
    return dtm_size_index(p->g, &size);
}

static uint32_t part_size(product *p, const part *part) { return part ? size_of(p, &part->size) : number(p, 1); }
static uint32_t part_stride(product *p, const part *part, int tensor, int64_t otherwise) {
    return part && part->has[tensor] ? size_of(p, &part->stride[tensor]) : number(p, otherwise);
}

/* Where the value of the third operand, or the sum over microbatches, stands in c already. */
static bool same_place(const dtm_generator *g, dtm_value a, dtm_value b) {
    const dtm_storage *x = &g->module->values[a].storage, *y = &g->module->values[b].storage;
    return x->offset == y->offset && x->modulus == y->modulus && x->stride == y->stride && x->shift == y->shift &&
           x->places == y->places && x->batch_stride == y->batch_stride;
}

static void swap_operands(product *p) {
    const dtm_type_data *type = p->types[A];
    p->types[A] = p->types[B];
    p->types[B] = type;
    for (int i = 0; i < p->n_parts; i++) {
        part *part = &p->parts[i];
        bool has = part->has[A];
        dtm_product stride = part->stride[A];
        part->has[A] = part->has[B];
        part->stride[A] = part->stride[B];
        part->has[B] = has;
        part->stride[B] = stride;
        part->class = part->class == ROWS ? COLUMNS : part->class == COLUMNS ? ROWS : part->class;
    }
}

static void fill_outer(product *p, dtm_plan_matmul *m, const part *const mains[CLASSES]) {
    for (int i = 0; i < p->n_parts; i++) {
        const part *part = &p->parts[i];
        if (part == mains[part->class]) continue;
        if (m->n_outer == DTM_PLAN_OUTER) dtm_broken("codegen", "a product of too many loops");
        m->outer[m->n_outer++] =
            (dtm_plan_outer){part_size(p, part), part_stride(p, part, A, 0), part_stride(p, part, B, 0),
                             part_stride(p, part, C, 0), part->class == DEPTH};
    }
}

/* The sum over microbatches that the product is added to, where it has no place of its own (dtm_stored); else itself. */
static dtm_value sum_of(const dtm_generator *g, const dtm_op_data *dot) {
    const dtm_region_data *region = &g->module->regions[dot->region];
    for (size_t i = 0; !g->stored[dot->results[0]] && i < region->n_ops; i++) {
        const dtm_op_data *user = dtm_op_get(g->module, region->ops[i]);
        if (user->kind == DTM_OP_ACCUMULATE && user->operands[0] == dot->results[0]) return user->results[0];
    }
    return dot->results[0];
}

void dtm_lower_dot(dtm_generator *g, dtm_op op) {
    const dtm_op_data *data = dtm_op_get(g->module, op);
    dtm_value a = data->operands[0], b = data->operands[1], c = data->results[0];
    product p = {.g = g, .types = {dtm_value_type(g->module, a), dtm_value_type(g->module, b), dtm_value_type(g->module, c)}};
    for (int t = A; t <= C; t++)
        for (int i = 0; i < p.types[t]->rank; i++) add_part(&p, t, i);
    join_parts(&p);
    for (int i = 0; i < p.n_parts; i++)
        if (p.parts[i].last && p.parts[i].class == ROWS) {
            swap_operands(&p);
            dtm_value swapped = a;
            a = b;
            b = swapped;
            break;
        }
    const part *mains[CLASSES];
    for (int class = 0; class < CLASSES; class++) mains[class] = main_part(&p, class);
    if (data->n_operands == 3 && !dtm_fault(47) && !same_place(g, data->operands[2], c))
        dtm_emit_copy(g, op, dtm_buffer_index(g, data->operands[2]), dtm_buffer_index(g, c));
    dtm_value into = sum_of(g, data);
    dtm_plan_matmul m = {.a = dtm_buffer_index(g, a), .b = dtm_buffer_index(g, b), .c = dtm_buffer_index(g, into)};
    m.accumulate = into != c ? DTM_PLAN_ADD_LATER : data->n_operands == 3 ? DTM_PLAN_ADD : DTM_PLAN_SET;
    m.batch = part_size(&p, mains[BATCH]);
    m.m = part_size(&p, mains[ROWS]);
    m.n = part_size(&p, mains[COLUMNS]);
    m.k = part_size(&p, mains[DEPTH]);
    m.a_batch = part_stride(&p, mains[BATCH], A, 0);
    m.b_batch = part_stride(&p, mains[BATCH], B, 0);
    m.c_batch = part_stride(&p, mains[BATCH], C, 0);
    m.a_row = part_stride(&p, mains[ROWS], A, 1);
    m.a_col = part_stride(&p, mains[DEPTH], A, 1);
    m.b_row = part_stride(&p, mains[DEPTH], B, 1);
    m.b_col = part_stride(&p, mains[COLUMNS], B, 1);
    m.c_row = mains[ROWS] ? part_stride(&p, mains[ROWS], C, 1) : part_size(&p, mains[COLUMNS]);
    fill_outer(&p, &m, mains);
    dtm_emit(g, op, DTM_PLAN_MATMUL, DTM_PLAN_PRODUCT)->matmul = m;
}
