/* Faults 1, 5, 8 and 10: changes of layout. On meshes of up to three axes, of sizes that divide and that do not, a tensor is
 * brought from each layout (an axis may split either dimension, major or minor, hold it alike, or be pending) to each other.
 * What `partition` writes must verify and compute on all ranks what one rank does. It must never need more memory than the
 * larger of both ends, reduce whole what the end splits, or send more than reducing, gathering and cutting would; and where
 * blocks are even and links cost by the byte alone, it must be the cheapest of all sequences of collectives. */
#include "passes/interpret.h"
#include "passes/passes.h"
#include "passes/relayout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures;

__attribute__((format(printf, 1, 2))) static void failed(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("failed: ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    failures++;
}

/* ---- all layouts of one tensor ---- */

enum { MOST_LAYOUTS = 256 };

typedef struct layouts {
    dtm_module *m;
    dtm_type all[MOST_LAYOUTS];
    int count;
} layouts;

static uint16_t bit(int axis) { return (uint16_t)(1 << axis); }

/* Adds what comes of a type when axes from `axis` on are placed in every way. */
static void place(layouts *l, dtm_type_data type, int axis) {
    const dtm_mesh *mesh = &l->m->settings.mesh;
    if (axis == mesh->count) {
        if (l->count == MOST_LAYOUTS) dtm_broken("tests", "too many layouts");
        l->all[l->count++] = dtm_type_intern(l->m, &type);
        return;
    }
    place(l, type, axis + 1);
    if (mesh->axes[axis].size == 1) return; /* it never stands in a layout */
    dtm_type_data pending = type;
    pending.sum |= bit(axis);
    place(l, pending, axis + 1);
    for (int d = 0; d < type.rank; d++)
        for (int at = 0; at <= type.layout[d].count; at++) {
            dtm_type_data split = type;
            dtm_dim_layout *layout = &split.layout[d];
            for (int s = layout->count++; s > at; s--) layout->splits[s] = layout->splits[s - 1];
            memset(&layout->splits[at], 0, sizeof layout->splits[at]);
            layout->splits[at].axis = (uint8_t)axis;
            layout->splits[at].unit = 1;
            place(l, split, axis + 1);
        }
}

static uint64_t state = 1;

static int draw(int below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

/* For more axes than can be tried in every way. */
static dtm_type random_layout(dtm_module *m, int rank, const dtm_dim *list) {
    dtm_type_data type = *dtm_type_get(m, dtm_type_make(m, DTM_F32, (uint8_t)rank, list));
    int first = draw(m->settings.mesh.count), pending = 0;
    for (int i = 0; i < m->settings.mesh.count; i++) {
        int axis = (first + i) % m->settings.mesh.count, to = draw(rank + 2);
        if (to == rank && pending < DTM_MAX_SPLITS) type.sum |= bit(axis), pending++;
        if (to >= rank || type.layout[to].count == DTM_MAX_SPLITS) continue;
        dtm_split *split = &type.layout[to].splits[type.layout[to].count++];
        split->axis = (uint8_t)axis, split->unit = (uint32_t)(1 + draw(2));
    }
    return dtm_type_intern(m, &type);
}

static const char *text_of(dtm_module *m, dtm_type type) {
    dtm_text text = {m->arena, NULL, 0, 0};
    dtm_type_print(m, type, true, &text);
    return text.data;
}

static const char *path_text(dtm_module *m, const dtm_relayout_path *path) {
    dtm_text text = {m->arena, NULL, 0, 0};
    for (size_t i = 0; i < path->count; i++) {
        dtm_text_printf(&text, "%s%s on", i ? ", " : "", dtm_op_rows[path->steps[i].kind].name);
        for (int a = 0; a < m->settings.mesh.count; a++)
            if (path->steps[i].axes >> a & 1)
                dtm_text_printf(&text, " %s", dtm_string_text(m->context, m->settings.mesh.axes[a].name));
    }
    return path->count ? text.data : "nothing";
}

/* ---- the program: y = dot(a, w over F), whose terms differ, brought to every layout ---- */

static dtm_dim dims[3]; /* A, C, F */

static dtm_module *start(dtm_context *context, const int64_t *mesh, int axes, int64_t a, int64_t c) {
    dtm_module *m = dtm_module_create(context);
    static const char *const dim_names[] = {"A", "C", "F"};
    const int64_t sizes[] = {a, c, 9};
    for (int i = 0; i < axes; i++) {
        dtm_axis_data *axis = &m->settings.mesh.axes[m->settings.mesh.count++];
        *axis = (dtm_axis_data){dtm_string_printf(context, "%c", "xyzuvwabcdef"[i]), mesh[i], false, {0}};
    }
    for (int i = 0; i < 3; i++) dims[i] = dtm_dim_add(m, dtm_string_of(context, dim_names[i]), sizes[i], (dtm_span){0});
    return m;
}

static layouts all_of(dtm_module *m) {
    layouts l = {.m = m};
    place(&l, *dtm_type_get(m, dtm_type_make(m, DTM_F32, 2, dims)), 0);
    return l;
}

/* Besides, those in which a maximum is pending instead of a sum. */
static layouts with_maxima(dtm_module *m) {
    layouts l = all_of(m);
    for (int i = 0, n = l.count; i < n; i++) {
        dtm_type_data type = *dtm_type_get(m, l.all[i]);
        if (!type.sum) continue;
        type.max = type.sum, type.sum = 0;
        l.all[l.count++] = dtm_type_intern(m, &type);
    }
    return l;
}

static dtm_value build(dtm_builder *b, dtm_op_kind kind, dtm_value operand, dtm_type type, const char *name, uint16_t axes) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.name = dtm_string_of(b->module->context, name);
    attributes.axes = axes;
    return dtm_result(b->module, dtm_build_op(b, kind, &operand, operand != 0, &attributes, &type, 1, name), 0);
}

static void split(dtm_type_data *type, int d, uint16_t axes) {
    for (int a = 0; axes >> a; a++) {
        if (!(axes >> a & 1)) continue;
        dtm_split *split = &type->layout[d].splits[type->layout[d].count++];
        split->axis = (uint8_t)a, split->unit = 1;
    }
}

/* y = dot(a, w over F), or max(a over F), with F split where y is pending. */
static dtm_value pending_value(dtm_builder *b, dtm_type type) {
    dtm_module *m = b->module;
    dtm_type_data y = *dtm_type_get(m, type), left = y, right = y;
    dtm_attributes attributes = dtm_attributes_default(DTM_OP_DOT);
    attributes.over[attributes.n_over++] = dims[2];
    left.sum = left.max = right.sum = 0;
    if (y.max) {
        left.dims[left.rank++] = dims[2];
        split(&left, 2, y.max);
        dtm_value a = build(b, DTM_OP_INPUT, 0, dtm_type_intern(m, &left), "b", 0);
        return dtm_result(m, dtm_build_op(b, DTM_OP_REDUCE_MAX, &a, 1, &attributes, &type, 1, "y"), 0);
    }
    left.dims[1] = right.dims[0] = dims[2];
    memset(&left.layout[1], 0, sizeof left.layout[1]);
    memset(&right.layout[0], 0, sizeof right.layout[0]);
    split(&left, 1, y.sum);
    split(&right, 0, y.sum);
    dtm_value operands[2] = {build(b, DTM_OP_INPUT, 0, dtm_type_intern(m, &left), "a", 0),
                             build(b, DTM_OP_INPUT, 0, dtm_type_intern(m, &right), "w", 0)};
    return dtm_result(m, dtm_build_op(b, DTM_OP_DOT, operands, 2, &attributes, &type, 1, "y"), 0);
}

/* A maximum that is not pending cannot become so. */
static bool impossible(dtm_module *m, dtm_type from, dtm_type to) {
    return dtm_type_get(m, to)->max & ~dtm_type_get(m, from)->max;
}

/* y in the layout `from`, brought to each of `to`; what is then still pending is reduced before it is compared. */
static void write_program(dtm_module *m, dtm_type from, const layouts *to) {
    dtm_builder b = dtm_builder_at_end(m, m->body);
    dtm_value y = pending_value(&b, from);
    for (int i = 0; i < to->count; i++) {
        if (impossible(m, from, to->all[i])) continue;
        dtm_value z = build(&b, DTM_OP_RELAYOUT, y, to->all[i], "z", 0);
        dtm_type_data type = *dtm_type_get(m, to->all[i]);
        uint16_t pending = type.sum | type.max;
        type.sum = type.max = 0;
        if (pending) z = build(&b, DTM_OP_ALL_REDUCE, z, dtm_type_intern(m, &type), "z", pending);
        dtm_attributes attributes = dtm_attributes_default(DTM_OP_OUTPUT);
        attributes.name = dtm_string_printf(m->context, "z%d", i);
        dtm_build_op(&b, DTM_OP_OUTPUT, &z, 1, &attributes, NULL, 0, "");
    }
}

/* The same on one rank: y itself, as often. */
static dtm_module *on_one_rank(const dtm_module *m) {
    dtm_module *one = dtm_module_clone(m);
    for (int a = 0; a < one->settings.mesh.count; a++) one->settings.mesh.axes[a].size = 1;
    for (dtm_value v = 1; v < one->n_values; v++)
        if (one->values[v].def) one->values[v].type = dtm_type_whole(one, one->values[v].type);
    for (dtm_op op = 1; op < one->n_ops; op++)
        if (one->ops[op].kind == DTM_OP_ALL_REDUCE) {
            dtm_replace_uses(one, one->ops[op].results[0], one->ops[op].operands[0]);
            dtm_op_remove(one, op);
        }
    return one;
}

static bool has_relayout(const dtm_module *m) {
    for (dtm_op op = 1; op < m->n_ops; op++)
        if (m->ops[op].region && m->ops[op].kind == DTM_OP_RELAYOUT) return true;
    return false;
}

static void check_program(dtm_module *m, dtm_type from, const layouts *to, uint64_t seed) {
    write_program(m, from, to);
    dtm_module *one = on_one_rank(m);
    dtm_validate_options options = {.seed = seed};
    bool good = dtm_module_verify(one) && dtm_module_verify(m) && dtm_pass_partition(m) && dtm_module_verify(m) &&
                !has_relayout(m) && dtm_validate(one, m, "partition", &options);
    if (!good) {
        failed("from %s", text_of(m, from));
        dtm_diagnostics_print(m->context, stdout, false);
    }
    dtm_module_destroy(one);
}

static int count_layouts(const int64_t *mesh, int axes) {
    dtm_context *context = dtm_context_create();
    dtm_module *m = start(context, mesh, axes, 1, 1);
    int count = with_maxima(m).count;
    dtm_module_destroy(m);
    dtm_context_destroy(context);
    return count;
}

static void check_right(const int64_t *mesh, int axes, int64_t a, int64_t c) {
    int n = count_layouts(mesh, axes);
    for (int from = 0; from < n && failures < 5; from++) {
        dtm_context *context = dtm_context_create();
        dtm_module *m = start(context, mesh, axes, a, c);
        layouts l = with_maxima(m);
        check_program(m, l.all[from], &l, (uint64_t)from + 1);
        dtm_module_destroy(m);
        dtm_context_destroy(context);
    }
}

/* Four to six axes, in units too: some layouts from each of some. */
static void check_many_axes(void) {
    static const int64_t mesh[] = {2, 1, 3, 2, 2, 2};
    for (int trial = 0; trial < 24 && failures < 5; trial++) {
        dtm_context *context = dtm_context_create();
        dtm_module *m = start(context, mesh, 4 + trial % 3, 1 + draw(9), 1 + draw(9));
        layouts l = {.m = m};
        while (l.count < 12) l.all[l.count++] = random_layout(m, 2, dims);
        check_program(m, random_layout(m, 2, dims), &l, (uint64_t)trial + 1);
        dtm_module_destroy(m);
        dtm_context_destroy(context);
    }
}

/* As many axes and dimensions as there can be: there is a way. */
static void check_most_axes(void) {
    static const int64_t mesh[DTM_MAX_AXES] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
    dtm_context *context = dtm_context_create();
    dtm_module *m = start(context, mesh, DTM_MAX_AXES, 64, 64);
    dtm_dim list[DTM_MAX_RANK];
    for (int d = 0; d < DTM_MAX_RANK; d++)
        list[d] = dtm_dim_add(m, dtm_string_printf(context, "D%d", d), 8, (dtm_span){0});
    for (int trial = 0; trial < 5; trial++) {
        dtm_type from = random_layout(m, DTM_MAX_RANK, list), to = random_layout(m, DTM_MAX_RANK, list);
        dtm_relayout_path path = dtm_relayout_find(m, from, to);
        if (path.count && path.steps[path.count - 1].type != to) failed("the way to %s ends elsewhere", text_of(m, to));
    }
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

/* What is impossible is refused by name. */
static void check_refused(void) {
    dtm_context *context = dtm_context_create();
    dtm_module *m = start(context, (const int64_t[]){2}, 1, 4, 4);
    dtm_builder b = dtm_builder_at_end(m, m->body);
    layouts l = with_maxima(m);
    build(&b, DTM_OP_RELAYOUT, pending_value(&b, l.all[0]), l.all[l.count - 1], "z", 0);
    if (dtm_module_verify(m)) failed("%s is made of what is whole", text_of(m, l.all[l.count - 1]));
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) exit(2);
    dtm_diagnostics_print(context, out, false);
    fclose(out);
    if (!strstr(text, "E0505")) failed("E0505 was due, not\n%s", text);
    free(text);
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

/* ---- cost: the least of all sequences ---- */

/* What splits neither end splits nothing on the way: so there is a graph for each set of such axes. */
typedef struct graph {
    layouts *l;
    uint16_t whole; /* they split nothing */
    double *least; /* [from * count + to]: seconds */
} graph;

static uint16_t real_axes(const dtm_module *m) {
    uint16_t axes = 0;
    for (int a = 0; a < m->settings.mesh.count; a++)
        if (m->settings.mesh.axes[a].size > 1) axes |= bit(a);
    return axes;
}

static uint16_t splits(const layouts *l, int i) { return dtm_type_split_axes(dtm_type_get(l->m, l->all[i])); }

static int index_of(const layouts *l, const dtm_type_data *data) {
    dtm_type type = dtm_type_intern(l->m, data);
    for (int i = 0; i < l->count; i++)
        if (l->all[i] == type) return i;
    dtm_broken("tests", "a layout out of nowhere");
}

static void edge(graph *g, int from, dtm_op_kind kind, uint16_t axes, const dtm_type_data *made) {
    const layouts *l = g->l;
    int to = index_of(l, made);
    dtm_type_data a = *dtm_type_get(l->m, l->all[from]), b = *dtm_type_get(l->m, l->all[to]);
    double time = dtm_step_cost(l->m, kind, axes, &a, &b).time, *least = &g->least[from * l->count + to];
    if (time < *least) *least = time;
}

static void push(dtm_dim_layout *layout, int axis) {
    memset(&layout->splits[layout->count], 0, sizeof layout->splits[0]);
    layout->splits[layout->count].axis = (uint8_t)axis;
    layout->splits[layout->count++].unit = 1;
}

static int pop(dtm_dim_layout *layout) {
    int axis = layout->splits[--layout->count].axis;
    memset(&layout->splits[layout->count], 0, sizeof layout->splits[0]);
    return axis;
}

/* Appends axes of `free` to the splits of dimension d, in every order and number. */
static void append(graph *g, int from, dtm_op_kind kind, uint16_t axes, uint16_t free, dtm_type_data made, int d, bool all) {
    if (axes && !(all && free)) edge(g, from, kind, axes, &made);
    for (int a = 0; free >> a; a++) {
        if (!(free >> a & 1)) continue;
        dtm_type_data next = made;
        if (kind == DTM_OP_REDUCE_SCATTER) next.sum &= (uint16_t)~bit(a);
        push(&next.layout[d], a);
        append(g, from, kind, axes | bit(a), free & (uint16_t)~bit(a), next, d, all);
    }
}

static void edges(graph *g, int from) {
    const layouts *l = g->l;
    dtm_type_data here = *dtm_type_get(l->m, l->all[from]), made;
    uint16_t sum = here.sum, alike = real_axes(l->m) & (uint16_t)~(sum | splits(l, from));
    uint16_t may_split = (uint16_t)~g->whole;
    if (g->whole & splits(l, from)) return;
    for (uint16_t set = sum; set; set = (uint16_t)(set - 1) & sum) {
        made = here, made.sum &= (uint16_t)~set;
        edge(g, from, DTM_OP_ALL_REDUCE, set, &made);
    }
    for (uint16_t set = alike; set; set = (uint16_t)(set - 1) & alike) {
        made = here, made.sum |= set;
        edge(g, from, DTM_OP_AS_TERM, set, &made);
    }
    for (int d = 0; d < here.rank; d++) {
        append(g, from, DTM_OP_REDUCE_SCATTER, 0, sum & may_split, here, d, false);
        append(g, from, DTM_OP_SHARD, 0, alike & may_split, here, d, false);
        made = here;
        for (uint16_t axes = 0; made.layout[d].count;) {
            axes |= bit(pop(&made.layout[d]));
            edge(g, from, DTM_OP_ALL_GATHER, axes, &made);
            for (int e = 0; e < here.rank; e++)
                if (e != d) append(g, from, DTM_OP_ALL_TO_ALL, 0, axes, made, e, true);
        }
    }
    for (int to = 0; to < l->count; to++) {
        made = *dtm_type_get(l->m, l->all[to]);
        if (made.sum != sum || g->whole & splits(l, to)) continue;
        uint16_t moved = 0;
        for (int d = 0; d < here.rank; d++)
            if (memcmp(&made.layout[d], &here.layout[d], sizeof made.layout[d]))
                for (int k = 0; k < 4; k++) {
                    if (k < made.layout[d].count) moved |= bit(made.layout[d].splits[k].axis);
                    if (k < here.layout[d].count) moved |= bit(here.layout[d].splits[k].axis);
                }
        if (moved) edge(g, from, DTM_OP_PERMUTE, moved, &made);
    }
}

static graph graph_of(layouts *l, uint16_t whole) {
    int n = l->count;
    graph g = {l, whole, dtm_arena_alloc(l->m->arena, (size_t)(n * n) * sizeof *g.least)};
    for (int i = 0; i < n * n; i++) g.least[i] = i / n == i % n ? 0 : INFINITY;
    for (int i = 0; i < n; i++) edges(&g, i);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                double over = g.least[i * n + k] + g.least[k * n + j];
                if (over < g.least[i * n + j]) g.least[i * n + j] = over;
            }
    return g;
}

static double path_time(dtm_module *m, dtm_type from, const dtm_relayout_path *path) {
    double time = 0;
    for (size_t i = 0; i < path->count; i++) {
        dtm_type_data a = *dtm_type_get(m, from), b = *dtm_type_get(m, path->steps[i].type);
        time += dtm_step_cost(m, path->steps[i].kind, path->steps[i].axes, &a, &b).time;
        from = path->steps[i].type;
    }
    return time;
}

/* Reduces what is to be reduced, gathers whatever is split otherwise at the end, and cuts. Who has the largest block sends
 * it to all others. */
static double plain_time(dtm_module *m, dtm_type from, dtm_type to) {
    dtm_type_data here = *dtm_type_get(m, from), end = *dtm_type_get(m, to), made = here;
    uint16_t reduced = here.sum & (uint16_t)~end.sum;
    made.sum &= (uint16_t)~reduced;
    double time = reduced ? dtm_step_cost(m, DTM_OP_ALL_REDUCE, reduced, &here, &made).time : 0;
    for (int d = 0; d < here.rank; d++) {
        if (!memcmp(&here.layout[d], &end.layout[d], sizeof here.layout[d])) continue;
        here = made;
        uint16_t axes = 0;
        while (made.layout[d].count) axes |= bit(pop(&made.layout[d]));
        if (axes) time += (double)(dtm_group_size(m, axes) - 1) * (double)dtm_local_bytes_max(m, dtm_type_intern(m, &here));
    }
    return time;
}

static void check_path(dtm_module *m, dtm_type from, dtm_type to, const dtm_relayout_path *path, double bound) {
    uint16_t split_at_end = dtm_type_split_axes(dtm_type_get(m, to));
    double time = path_time(m, from, path);
    int64_t here = dtm_local_bytes_max(m, from), there = dtm_local_bytes_max(m, to), most = here > there ? here : there;
    bool wasteful = time > bound * (1 + 1e-6) + 1e-6, whole = false, large = false;
    for (size_t i = 0; i < path->count; i++) {
        whole |= path->steps[i].kind == DTM_OP_ALL_REDUCE && path->steps[i].axes & split_at_end;
        large |= dtm_local_bytes_max(m, path->steps[i].type) > most;
    }
    if (wasteful || whole || large)
        failed("from %s to %s: %s;%s%s takes %g of %g", text_of(m, from), text_of(m, to), path_text(m, path),
               whole ? " reduces what it splits;" : "", large ? " grows;" : "", time, bound);
}

/* Links cost by the byte. */
static dtm_module *start_costs(dtm_context *context, const int64_t *mesh, int axes, int64_t a, int64_t c) {
    dtm_module *m = start(context, mesh, axes, a, c);
    m->settings.machine = (dtm_machine){.present = true, .devices_per_node = 64, .node_bandwidth = 1, .node_latency = 1e-9,
                                        .memory_bandwidth = 1e15};
    return m;
}

static void check_least(const int64_t *mesh, int axes, int64_t a, int64_t c) {
    dtm_context *context = dtm_context_create();
    dtm_module *m = start_costs(context, mesh, axes, a, c);
    layouts l = all_of(m);
    graph graphs[8];
    for (int whole = 0; whole < 1 << axes; whole++) graphs[whole] = graph_of(&l, (uint16_t)whole);
    for (int i = 0; i < l.count; i++)
        for (int j = 0; j < l.count && failures < 5; j++) {
            dtm_relayout_path path = dtm_relayout_find(m, l.all[i], l.all[j]);
            const graph *g = &graphs[((1 << axes) - 1) & ~(splits(&l, i) | splits(&l, j))];
            check_path(m, l.all[i], l.all[j], &path, g->least[i * l.count + j]);
        }
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

static void check_bounded(const int64_t *mesh, int axes, int64_t a, int64_t c) {
    dtm_context *context = dtm_context_create();
    dtm_module *m = start_costs(context, mesh, axes, a, c);
    layouts l = all_of(m);
    for (int i = 0; i < l.count; i++)
        for (int j = 0; j < l.count && failures < 5; j++) {
            dtm_relayout_path path = dtm_relayout_find(m, l.all[i], l.all[j]);
            check_path(m, l.all[i], l.all[j], &path, plain_time(m, l.all[i], l.all[j]));
        }
    dtm_module_destroy(m);
    dtm_context_destroy(context);
}

int main(void) {
    static const struct {
        int axes;
        int64_t mesh[3], a, c;
    } cases[] = {
        {2, {2, 2}, 4, 4}, {3, {2, 2, 2}, 5, 3}, {3, {2, 3, 1}, 5, 7}, {3, {3, 1, 2}, 1, 4}, {1, {4}, 9, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_right(cases[i].mesh, cases[i].axes, cases[i].a, cases[i].c);
        check_bounded(cases[i].mesh, cases[i].axes, cases[i].a, cases[i].c);
    }
    check_refused();
    check_many_axes();
    check_most_axes();
    check_least(cases[0].mesh, 2, 4, 4);
    check_least(cases[1].mesh, 3, 8, 8);
    printf("%d failures\n", failures);
    return failures != 0;
}
