/* Placement from end to end without a front end: gpt and llama, built by hand, taken through canonicalize, autodiff, shard
 * and partition on many meshes. After each pass the module verifies and computes what it did before; the collectives of a
 * layer are those of the table in sharding.md. Then the search against brute force. */
#include "passes/interpret.h"
#include "passes/passes.h"
#include "passes/shard.h"
#include "passes/shard_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int failures;
static bool verbose;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

/* ---- building a program ---- */

typedef struct program {
    dtm_context *context;
    dtm_module *m;
    dtm_builder b;
    uint32_t line;
} program;

static dtm_dim dim(program *p, const char *name) { return dtm_dim_find(p->m, dtm_string_of(p->context, name)); }

/* "B S D": dimensions by their names. */
static uint8_t dims_of(program *p, const char *names, dtm_dim *dims) {
    char text[64], *save = NULL;
    uint8_t n = 0;
    snprintf(text, sizeof text, "%s", names);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) dims[n++] = dim(p, word);
    return n;
}

static program start(void) {
    program p = {.context = dtm_context_create()};
    p.m = dtm_module_create(p.context);
    p.b = dtm_builder_at_end(p.m, p.m->body);
    return p;
}

/* "B=4 S=8" */
static void declare(program *p, const char *sizes) {
    char text[128], *save = NULL;
    snprintf(text, sizeof text, "%s", sizes);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = 0;
        dtm_dim_add(p->m, dtm_string_of(p->context, word), atoll(equals + 1), (dtm_span){0});
    }
}

static dtm_value source(program *p, dtm_op_kind kind, dtm_dtype dtype, const char *name, const char *dims, dtm_init init) {
    dtm_dim list[DTM_MAX_RANK];
    uint8_t n = dims_of(p, dims, list);
    dtm_type type = dtm_type_make(p->m, dtype, n, list);
    dtm_attributes a = dtm_attributes_default(kind);
    bool in_layer = p->b.region != p->m->body;
    a.name = kind == DTM_OP_WEIGHT && in_layer ? dtm_string_printf(p->context, "layer.{layer}.%s", name) : dtm_string_of(p->context, name);
    a.init = init;
    a.flags = kind == DTM_OP_WEIGHT && name[0] == 'b' ? DTM_WEIGHT_NO_DECAY : 0;
    a.init_a = init == DTM_INIT_NORMAL ? 0.3 : 0;
    p->b.place.line = ++p->line;
    return dtm_result(p->m, dtm_build_op(&p->b, kind, NULL, 0, &a, &type, 1, name), 0);
}

static dtm_value weight(program *p, const char *name, const char *dims) {
    return source(p, DTM_OP_WEIGHT, DTM_F32, name, dims, DTM_INIT_NORMAL);
}

static dtm_value over(program *p, dtm_op_kind kind, const char *name, const char *dims, int n, dtm_value a, dtm_value b, dtm_value c) {
    dtm_value operands[3] = {a, b, c};
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.n_over = dims_of(p, dims, attributes.over);
    if (kind == DTM_OP_ROPE) {
        attributes.n_over = 1;
        attributes.at = attributes.over[1];
        attributes.over[1] = 0;
    }
    if (kind == DTM_OP_ATTENTION) attributes.flags = DTM_ATTENTION_CAUSAL;
    p->b.place.line = ++p->line;
    return dtm_build(&p->b, kind, name, operands, (uint32_t)n, &attributes);
}

static dtm_value dot(program *p, const char *name, dtm_value a, dtm_value b, const char *dims) {
    return over(p, DTM_OP_DOT, name, dims, 2, a, b, 0);
}

static dtm_value add(program *p, const char *name, dtm_value a, dtm_value b) {
    p->b.place.line = ++p->line;
    return dtm_build_binary(&p->b, DTM_OP_ADD, name, a, b);
}

static void loss_of(program *p, dtm_value logits, dtm_value targets) {
    dtm_value losses = over(p, DTM_OP_CROSS_ENTROPY, "losses", "V", 2, logits, targets, 0);
    dtm_value loss = over(p, DTM_OP_MEAN, "loss", "B S", 1, losses, 0, 0);
    dtm_attributes a = dtm_attributes_default(DTM_OP_REPORT);
    a.name = dtm_string_of(p->context, "loss");
    dtm_build_op(&p->b, DTM_OP_REPORT, &loss, 1, &a, NULL, 0, "");
}

typedef struct layer {
    dtm_builder outside;
    dtm_op carry;
} layer;

static int64_t layers = 2;

static layer enter(program *p, dtm_value x, dtm_value *carried) {
    dtm_attributes a = dtm_attributes_default(DTM_OP_REPEAT);
    a.name = dtm_string_of(p->context, "layer");
    a.copies = layers;
    layer l = {.carry = 0};
    dtm_op repeat = dtm_build_region(&p->b, DTM_OP_REPEAT, &a);
    l.outside = p->b;
    p->b = dtm_builder_at_end(p->m, p->m->ops[repeat].body);
    dtm_value operands[2] = {x, x};
    dtm_type type = p->m->values[x].type;
    l.carry = dtm_build_op(&p->b, DTM_OP_CARRY, operands, 2, NULL, &type, 1, "x");
    *carried = dtm_result(p->m, l.carry, 0);
    return l;
}

static dtm_value leave(program *p, layer l, dtm_value next) {
    p->m->ops[l.carry].operands[1] = next;
    dtm_type type = p->m->values[next].type;
    p->b = l.outside;
    return dtm_result(p->m, dtm_build_op(&p->b, DTM_OP_LAST, &next, 1, NULL, &type, 1, "x"), 0);
}

static void gpt(program *p) {
    dtm_value tokens = source(p, DTM_OP_INPUT, DTM_I32, "tokens", "B S", 0), targets = source(p, DTM_OP_INPUT, DTM_I32, "targets", "B S", 0);
    dtm_value embed = weight(p, "embed", "V D"), pos = weight(p, "pos", "P D"), x;
    dtm_attributes a = dtm_attributes_default(DTM_OP_POSITIONS);
    a.n_over = 1;
    a.over[0] = dim(p, "S");
    dtm_value positions = dtm_build(&p->b, DTM_OP_POSITIONS, "positions", NULL, 0, &a);
    dtm_value e = over(p, DTM_OP_GATHER, "e", "V", 2, embed, tokens, 0);
    x = add(p, "x", e, over(p, DTM_OP_GATHER, "e.pos", "P", 2, pos, positions, 0));
    layer l = enter(p, x, &x);
    dtm_value h = over(p, DTM_OP_LAYERNORM, "h", "D", 3, x, weight(p, "norm1", "D"), weight(p, "norm1_bias", "D"));
    dtm_value q = add(p, "q", dot(p, "q.dot", h, weight(p, "wq", "D H K"), "D"), weight(p, "bq", "H K"));
    dtm_value k = add(p, "k", dot(p, "k.dot", h, weight(p, "wk", "D H K"), "D"), weight(p, "bk", "H K"));
    dtm_value v = add(p, "v", dot(p, "v.dot", h, weight(p, "wv", "D H K"), "D"), weight(p, "bv", "H K"));
    dtm_value o = over(p, DTM_OP_ATTENTION, "o", "S K", 3, q, k, v);
    x = add(p, "x", add(p, "x", x, dot(p, "attn", o, weight(p, "wo", "H K D"), "H K")), weight(p, "bo", "D"));
    h = over(p, DTM_OP_LAYERNORM, "h", "D", 3, x, weight(p, "norm2", "D"), weight(p, "norm2_bias", "D"));
    dtm_value u = add(p, "u", dot(p, "u.dot", h, weight(p, "up", "D F"), "D"), weight(p, "up_bias", "F"));
    u = dtm_build_unary(&p->b, DTM_OP_GELU_TANH, "u.gelu", u);
    x = add(p, "x", add(p, "x", x, dot(p, "mlp", u, weight(p, "down", "F D"), "F")), weight(p, "down_bias", "D"));
    x = leave(p, l, x);
    h = over(p, DTM_OP_LAYERNORM, "h", "D", 3, x, weight(p, "norm", "D"), weight(p, "norm_bias", "D"));
    loss_of(p, dot(p, "logits", h, embed, "D"), targets);
}

static void llama(program *p) {
    dtm_value tokens = source(p, DTM_OP_INPUT, DTM_I32, "tokens", "B S", 0), targets = source(p, DTM_OP_INPUT, DTM_I32, "targets", "B S", 0);
    dtm_value x = over(p, DTM_OP_GATHER, "x", "V", 2, weight(p, "embed", "V D"), tokens, 0);
    layer l = enter(p, x, &x);
    dtm_value h = over(p, DTM_OP_RMSNORM, "h", "D", 2, x, weight(p, "norm1", "D"), 0);
    dtm_value q = over(p, DTM_OP_ROPE, "q", "K S", 1, dot(p, "q.dot", h, weight(p, "wq", "D H K"), "D"), 0, 0);
    dtm_value k = over(p, DTM_OP_ROPE, "k", "K S", 1, dot(p, "k.dot", h, weight(p, "wk", "D G K"), "D"), 0, 0);
    dtm_value v = dot(p, "v", h, weight(p, "wv", "D G K"), "D");
    dtm_value o = over(p, DTM_OP_ATTENTION, "o", "S K", 3, q, k, v);
    x = add(p, "x", x, dot(p, "attn", o, weight(p, "wo", "H K D"), "H K"));
    h = over(p, DTM_OP_RMSNORM, "h", "D", 2, x, weight(p, "norm2", "D"), 0);
    dtm_value gate = dtm_build_unary(&p->b, DTM_OP_SILU, "gate.silu", dot(p, "gate", h, weight(p, "wgate", "D F"), "D"));
    dtm_value u = dtm_build_binary(&p->b, DTM_OP_MUL, "u", gate, dot(p, "up", h, weight(p, "wup", "D F"), "D"));
    x = add(p, "x", x, dot(p, "mlp", u, weight(p, "down", "F D"), "F"));
    x = leave(p, l, x);
    h = over(p, DTM_OP_RMSNORM, "h", "D", 2, x, weight(p, "norm", "D"), 0);
    loss_of(p, dot(p, "logits", h, weight(p, "head", "D V"), "D"), targets);
}

/* "dp=2 tp=2 : dp B : tp H G F V" and, for attention, "cp S gather". */
static void place(program *p, const char *text) {
    char copy[256], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    dtm_settings *settings = &p->m->settings;
    char *part = strtok_r(copy, ":", &save), *inner = NULL;
    for (char *word = strtok_r(part, " ", &inner); word; word = strtok_r(NULL, " ", &inner)) {
        char *equals = strchr(word, '=');
        *equals = 0;
        if (strcmp(word, "microbatches") == 0) settings->microbatches = atoll(equals + 1);
        else settings->mesh.axes[settings->mesh.count++] = (dtm_axis_data){dtm_string_of(p->context, word), atoll(equals + 1), false, {0}};
    }
    while ((part = strtok_r(NULL, ":", &save))) {
        inner = NULL;
        char *word = strtok_r(part, " ", &inner);
        if (!word) continue;
        dtm_splits_rule rule = {.axis = dtm_axis_find(p->m, dtm_string_of(p->context, word))};
        while ((word = strtok_r(NULL, " ", &inner))) {
            if (strcmp(word, "gather") == 0) rule.using = DTM_USING_GATHER;
            else if (strcmp(word, "alltoall") == 0) rule.using = DTM_USING_ALLTOALL;
            else if (strcmp(word, "cost") == 0) rule.by_cost = true;
            else if (dim(p, word)) rule.dims[rule.count++] = dim(p, word);
        }
        DTM_PUSH(p->m->arena, settings->splits, settings->n_splits, settings->cap_splits, rule);
    }
    settings->train = (dtm_train){.present = true, .optimizer = DTM_ADAMW, .schedule = DTM_LR_CONSTANT, .peak = 0.01, .beta1 = 0.9,
                                  .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .clip = 1, .steps = 2, .seed = 1};
}

/* ---- running it ---- */

static void print_module(dtm_module *m) {
    dtm_text text = {m->arena, NULL, 0, 0};
    dtm_print_options options = {0};
    dtm_module_print(m, &options, &text);
    printf("%s\n", text.data);
}

typedef bool pass(dtm_module *module);

static bool run_pass(program *p, pass *run, const char *name, bool validate, const char *title) {
    dtm_module *before = validate ? dtm_module_clone(p->m) : NULL;
    bool good = run(p->m);
    CHECK(good, "%s: %s failed", title, name);
    if (verbose && good && validate) print_module(p->m);
    if (good && !dtm_module_verify(p->m)) {
        good = false;
        CHECK(good, "%s: %s leaves what does not verify", title, name);
    }
    dtm_validate_options options = {.steps = 1, .seed = 1};
    if (good && before && !dtm_validate(before, p->m, name, &options)) {
        good = false;
        CHECK(good, "%s: %s changes what is computed", title, name);
    }
    dtm_module_destroy(before);
    if (!good || verbose) dtm_diagnostics_print(p->context, stderr, false);
    return good;
}

/* "AR=2 AG=0 ..|..": the big collectives of a layer, those whose value has both B and D or heads or F. */
typedef struct counts {
    program *p;
    int ar[2], ag[2], rs[2], a2a[2], permute[2], grad, grad_of_step;
    dtm_dim b;
} counts;

static void count(dtm_module *m, dtm_op op, void *state) {
    counts *c = state;
    const dtm_op_data *data = dtm_op_get(m, op);
    if (!dtm_is_collective(data->kind)) return;
    const dtm_type_data *type = dtm_value_type(m, data->operands[0]);
    if (dtm_enclosing(m, op, DTM_OP_UPDATE)) {
        if (type->rank) c->grad++;
        return;
    }
    bool big = dtm_type_dim_index(type, c->b) >= 0 && type->rank > 2;
    if (!big || !dtm_enclosing(m, op, DTM_OP_REPEAT)) return;
    int phase = dtm_enclosing(m, op, DTM_OP_BACKWARD) != 0;
    if (data->kind == DTM_OP_ALL_REDUCE) c->ar[phase]++;
    if (data->kind == DTM_OP_ALL_GATHER) c->ag[phase]++;
    if (data->kind == DTM_OP_REDUCE_SCATTER) c->rs[phase]++;
    if (data->kind == DTM_OP_ALL_TO_ALL) c->a2a[phase]++;
    if (data->kind == DTM_OP_PERMUTE) c->permute[phase]++;
}

static void whole(const char *model, const char *sizes, const char *placement, const char *expected) {
    program p = start();
    declare(&p, sizes);
    char title[300];
    snprintf(title, sizeof title, "%s %s on %s", model, sizes, placement);
    if (strcmp(model, "gpt") == 0) gpt(&p);
    else llama(&p);
    place(&p, placement);
    bool good = run_pass(&p, dtm_pass_canonicalize, "canonicalize", false, title) &&
                run_pass(&p, dtm_pass_autodiff, "autodiff", false, title) &&
                run_pass(&p, dtm_pass_shard, "shard", true, title) &&
                run_pass(&p, dtm_pass_partition, "partition", true, title) &&
                (p.m->settings.microbatches < 2 || !getenv("DTM_TEST_MICROBATCH") || run_pass(&p, dtm_pass_microbatch, "microbatch", true, title));
    if (good) {
        counts c = {.p = &p, .b = dim(&p, "B")};
        dtm_walk(p.m, count, &c);
        char text[200];
        int n = 0;
        for (int i = 0; i < 2; i++) {
            n += snprintf(text + n, sizeof text - (size_t)n, i ? "| " : "");
            const struct { const char *name; int count; } row[] = {{"AR", c.ar[i]}, {"AG", c.ag[i]}, {"RS", c.rs[i]}, {"A2A", c.a2a[i]}, {"P", c.permute[i]}};
            for (int k = 0; k < 5; k++)
                if (row[k].count) n += snprintf(text + n, sizeof text - (size_t)n, "%d %s ", row[k].count, row[k].name);
        }
        if (expected) CHECK(!*expected || strcmp(text, expected) == 0, "%s: layer has \"%s\", not \"%s\"", title, text, expected);
        else printf("%s: %s\n", title, text);
    }
    if (good && p.m->settings.microbatches < 2) run_pass(&p, dtm_pass_fuse_collectives, "fuse_collectives", true, title);
    dtm_module_destroy(p.m);
    dtm_context_destroy(p.context);
}

/* ---- the search against brute force ---- */

static uint32_t random_state = 1;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* Two or three axes, some of whose variables are decided together. */
static shard_search *random_search(dtm_arena *arena) {
    shard_search *s = shard_search_create(arena);
    uint32_t n = 2 + random_below(7), axes = 2 + random_below(2), together[3];
    for (uint32_t v = 0; v < n; v++) shard_search_variable(s, 1 + random_below(4), v % axes);
    for (uint32_t v = 0; v + axes <= n; v += axes) {
        for (uint32_t a = 0; a < axes; a++) together[a] = v + a;
        if (random_below(2)) shard_search_together(s, axes, together);
    }
    for (int t = 0; t < 18; t++) {
        double costs[64];
        for (int i = 0; i < 64; i++) costs[i] = t >= 14 || random_below(8) ? random_below(100) : INFINITY;
        uint32_t over[3] = {random_below(n), random_below(n), random_below(n)};
        shard_search_add(s, t < 14 ? SHARD_TIME : SHARD_MEMORY, 1 + random_below(t % 5 ? 2 : 3), over, costs);
    }
    return s;
}

/* A search that has to stop early says what it has proved. */
static void hurried(const shard_search *s, double least, int trial) {
    uint32_t found[9];
    for (double effort = 4; effort < 1e5; effort *= 3) {
        double left = effort, bound;
        shard_search_options options = {{1, 0}, NULL, 6, &left, INFINITY};
        double cost = shard_search_solve(s, &options, found, &bound);
        CHECK(bound <= least && cost >= least && (cost == INFINITY || shard_search_total(s, SHARD_TIME, found) == cost),
              "search %d with %g entries: %g, at least %g, brute force %g", trial, effort, cost, bound, least);
    }
}

static void searches(void) {
    for (int trial = 0; trial < 400; trial++) {
        dtm_arena *arena = dtm_arena_create();
        shard_search *s = random_search(arena);
        uint32_t found[9], again[9] = {0}, best[9];
        double bound, effort = 1e9;
        shard_search_options options = {{1, 0}, NULL, trial % 2 ? 1 << 16 : 6, &effort, INFINITY};
        double least = shard_search_brute_force(s, INFINITY, best), cost = shard_search_solve(s, &options, found, &bound);
        CHECK(bound == cost && cost == least && (cost == INFINITY || shard_search_total(s, SHARD_TIME, found) == least),
              "search %d: %g, brute force %g", trial, cost, least);
        bool same = shard_search_solve(s, &options, again, &bound) == cost;
        CHECK(same && (cost == INFINITY || memcmp(found, again, shard_search_size(s) * sizeof *found) == 0),
              "search %d: another answer the second time", trial);
        hurried(s, least, trial);
        for (double bytes = 40; bytes < 300; bytes += 65) {
            double gap;
            least = shard_search_brute_force(s, bytes, best);
            shard_outcome outcome = shard_search_within(s, bytes, trial % 2 ? 1 << 16 : 6, &effort, found, &gap);
            same = least == INFINITY ? outcome == SHARD_TOO_LARGE
                                     : outcome == SHARD_LEAST && shard_search_total(s, SHARD_TIME, found) == least &&
                                           shard_search_total(s, SHARD_MEMORY, found) <= bytes;
            CHECK(same, "search %d within %g: outcome %d, brute force %g", trial, bytes, outcome, least);
        }
        dtm_arena_destroy(arena);
    }
}

/* ---- by cost against trying every choice ---- */

typedef struct everything {
    shard *s;
    uint16_t axes;
    double bytes; /* no more than these count */
    double least;
    double fewest, most; /* bytes of all */
} everything;

static void try_all(everything *e, size_t at, int axis) {
    shard *s = e->s;
    if (axis == s->module->settings.mesh.count) at++, axis = 0;
    if (at == s->n_order) {
        double bytes = shard_memory(s), cost = bytes <= e->bytes ? shard_cost(s, e->axes) : INFINITY;
        if (cost < e->least) e->least = cost;
        if (bytes < e->fewest) e->fewest = bytes;
        if (bytes > e->most) e->most = bytes;
        return;
    }
    shard_op *o = &s->ops[s->order[at]];
    if (!(s->axes >> axis & 1) || !o->domain[axis].count) {
        try_all(e, at, axis + 1);
        return;
    }
    for (int i = 0; i < o->domain[axis].count; i++) {
        o->choice[axis] = o->domain[axis].choices[i];
        try_all(e, at, axis + 1);
    }
}

static void chosen(program *p, shard *s) {
    *s = (shard){.module = p->m, .arena = dtm_arena_create()};
    shard_rules(s);
    shard_describe(s);
    shard_expand(s);
    shard_domains(s);
    shard_choose(s);
}

/* y = x w, sum(y); or z = gelu(x w) v, sum(z); with the backward pass, whose values are saved, or without. Without a bound
 * on memory, and with bounds at which less and less fits. */
static void by_cost(const char *sizes, const char *placement, bool feed_forward, bool backward) {
    program p = start();
    declare(&p, sizes);
    dtm_value x = source(&p, DTM_OP_INPUT, DTM_F32, "x", "B D", 0);
    dtm_value y = dot(&p, "y", x, weight(&p, "w", "D F"), "D");
    if (feed_forward) y = dot(&p, "z", dtm_build_unary(&p.b, DTM_OP_GELU, "g", y), weight(&p, "v", "F D"), "F");
    if (backward) y = dtm_build_unary(&p.b, DTM_OP_TANH, "t", y);
    dtm_value sum = over(&p, DTM_OP_SUM, "sum", feed_forward ? "B D" : "B F", 1, y, 0, 0);
    dtm_attributes a = dtm_attributes_default(DTM_OP_REPORT);
    a.name = dtm_string_of(p.context, "loss");
    dtm_build_op(&p.b, DTM_OP_REPORT, &sum, 1, &a, NULL, 0, "");
    place(&p, placement);
    if (backward && !(dtm_pass_canonicalize(p.m) && dtm_pass_autodiff(p.m))) CHECK(false, "autodiff");
    shard s;
    chosen(&p, &s);
    everything e = {&s, shard_axes_by_cost(&s), INFINITY, INFINITY, INFINITY, 0};
    double found = shard_cost(&s, e.axes);
    try_all(&e, 0, 0);
    CHECK(fabs(found - e.least) <= 1e-9 + 1e-6 * e.least, "by cost %s on %s: %g s, the least is %g s", sizes, placement, found, e.least);
    for (int i = 0; i < 4; i++) {
        everything within = e;
        within.bytes = e.fewest + (e.most - e.fewest) * (double[]){0, 0.1, 0.3, 0.7}[i];
        within.least = INFINITY;
        p.m->settings.machine.memory = within.bytes;
        shard t;
        chosen(&p, &t);
        within.s = &t;
        double fits = shard_cost(&t, e.axes), bytes = shard_memory(&t);
        try_all(&within, 0, 0);
        CHECK(fabs(fits - within.least) <= 1e-9 + 1e-6 * within.least && bytes <= within.bytes,
              "by cost %s on %s within %.0f of %.0f to %.0f bytes: %g s, %.0f bytes, the least is %g s", sizes, placement,
              within.bytes, e.fewest, e.most, fits, bytes, within.least);
        if (verbose) printf("within %.0f: %g, %g; %.0f\n", within.bytes, fits, within.least, bytes);
        dtm_arena_destroy(t.arena);
    }
    if (verbose) printf("by cost %s on %s: %g %g\n", sizes, placement, found, e.least);
    dtm_arena_destroy(s.arena);
    dtm_module_destroy(p.m);
    dtm_context_destroy(p.context);
}

/* ---- the estimate of memory against what the memory pass allocates ---- */

/* Within `tolerance` of what is allocated, to either side. */
static void estimates(const char *model, const char *sizes, const char *placement, double tolerance) {
    program p = start();
    declare(&p, sizes);
    if (strcmp(model, "gpt") == 0) gpt(&p);
    else llama(&p);
    place(&p, placement);
    if (!(dtm_pass_canonicalize(p.m) && dtm_pass_autodiff(p.m))) CHECK(false, "autodiff");
    dtm_module *m = dtm_module_clone(p.m);
    shard s;
    chosen(&p, &s);
    double estimate = shard_memory(&s);
    bool good = dtm_pass_shard(m) && dtm_pass_partition(m) && dtm_pass_microbatch(m) && dtm_pass_fuse_collectives(m) &&
                dtm_pass_fuse(m) && dtm_pass_memory(m);
    double ratio = estimate / (double)m->arena_bytes;
    CHECK(good && fabs(ratio - 1) < tolerance, "%s %s on %s: %.0f bytes estimated, %lld allocated", model, sizes, placement,
          estimate, (long long)m->arena_bytes);
    if (verbose) printf("%s on %s: %.0f of %lld: %.2f\n", model, placement, estimate, (long long)m->arena_bytes, ratio);
    dtm_module_destroy(m);
    dtm_arena_destroy(s.arena);
    dtm_module_destroy(p.m);
    dtm_context_destroy(p.context);
}

/* ---- the body of a transformer by cost on two axes is decided exactly ---- */

static void is_exact(const char *model, const char *sizes, const char *placement) {
    program p = start();
    declare(&p, sizes);
    if (strcmp(model, "gpt") == 0) gpt(&p);
    else llama(&p);
    place(&p, placement);
    bool good = dtm_pass_canonicalize(p.m) && dtm_pass_autodiff(p.m) && dtm_pass_shard(p.m);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    dtm_diagnostics_print(p.context, file, false);
    fclose(file);
    CHECK(good && !strstr(text, "W0807"), "%s by cost on %s: %s", model, placement, text);
    free(text);
    dtm_module_destroy(p.m);
    dtm_context_destroy(p.context);
}

/* Three axes of seven dimensions each: exact, and no more work than this; work is counted, so it is the same everywhere. */
static void takes(const char *model, const char *sizes, const char *placement, double most) {
    program p = start();
    declare(&p, sizes);
    if (strcmp(model, "gpt") == 0) gpt(&p);
    else llama(&p);
    place(&p, placement);
    if (!(dtm_pass_canonicalize(p.m) && dtm_pass_autodiff(p.m))) CHECK(false, "autodiff");
    shard s;
    chosen(&p, &s);
    CHECK(s.effort > 0 && s.effort < most, "%s by cost on %s: %g entries looked at", model, placement, s.effort);
    if (verbose) printf("%s on %s: %g\n", model, placement, s.effort);
    dtm_arena_destroy(s.arena);
    dtm_module_destroy(p.m);
    dtm_context_destroy(p.context);
}

/* ---- random placements ---- */

static void random_placement(uint32_t seed) {
    random_state = seed * 2654435761u + 1;
    for (int i = 0; i < 4; i++) random_below(2);
    bool is_gpt = random_below(2);
    static const char *const names[] = {"B", "S", "V", "P", "D", "F", "H", "G", "K"};
    char sizes[128], text[256];
    int heads = (int[]){1, 2, 3, 4, 6}[random_below(5)], groups = heads % 2 == 0 && random_below(2) ? heads / 2 : heads;
    snprintf(sizes, sizeof sizes, "B=%u S=%u V=%u P=9 D=%u F=%u H=%d G=%d K=%d", 1 + random_below(5), 3 + random_below(5),
             7 + random_below(7), 4 + random_below(5), 1 + random_below(9), heads, groups, 2 * (1 + (int)random_below(2)));
    int axes = 1 + (int)random_below(3), n = 0, ranks = 1;
    for (int a = 0; a < axes; a++) {
        int size = 1 + (int)random_below(4);
        if (ranks * size > 8) size = 2;
        ranks *= size;
        n += snprintf(text + n, sizeof text - (size_t)n, "%c=%d ", "abc"[a], size);
    }
    if (random_below(4) == 0) n += snprintf(text + n, sizeof text - (size_t)n, "microbatches=%u ", 2 + random_below(2));
    for (int a = 0; a < axes; a++) {
        n += snprintf(text + n, sizeof text - (size_t)n, ": %c ", "abc"[a]);
        int left = 1 + (int)random_below(6);
        uint32_t seen = 0;
        while (left-- > 0) {
            uint32_t d = random_below(9);
            if (!(seen >> d & 1)) n += snprintf(text + n, sizeof text - (size_t)n, "%s ", names[d]);
            seen |= 1u << d;
        }
        static const char *const using[] = {"gather", "alltoall", "", "cost"};
        n += snprintf(text + n, sizeof text - (size_t)n, "%s ", using[random_below(4)]);
    }
    whole(is_gpt ? "gpt" : "llama", sizes, text, "");
}

static const char gpt_sizes[] = "B=4 S=8 V=13 P=8 D=8 F=12 H=4 K=2", llama_sizes[] = "B=4 S=8 V=13 D=8 F=12 H=4 G=2 K=2";

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "random") == 0) {
        for (int seed = atoi(argv[2]); seed < atoi(argv[3]); seed++) {
            int before = failures;
            random_placement((uint32_t)seed);
            if (failures > before) fprintf(stderr, "seed %d\n", seed);
        }
        printf("%s\n", failures ? "FAILED" : "ok");
        return failures != 0;
    }
    if (argc == 2 && strcmp(argv[1], "-v") == 0) verbose = true;
    if (argc > 3) {
        verbose = true;
        whole(argv[1], argv[2][0] ? argv[2] : strcmp(argv[1], "gpt") ? llama_sizes : gpt_sizes, argv[3], NULL);
        return failures != 0;
    }
    searches();
    by_cost("B=64 D=256 F=512", "a=4 : a B D F cost", true, false);
    by_cost("B=4096 D=64 F=64", "a=4 : a D B F cost", true, false);
    by_cost("B=64 D=4096 F=4096", "a=2 : a F D cost", true, false);
    by_cost("B=64 D=256 F=512", "a=2 b=4 : a B F cost : b B D cost", false, false);
    by_cost("B=64 D=512 F=512", "a=2 b=2 : a B D cost : b D F cost", false, false);
    by_cost("B=512 D=256 F=256", "a=4 : a B D F cost", false, true);
    by_cost("B=64 D=512 F=512", "a=2 b=2 c=4 : a B F cost : b D cost : c F B cost", false, false);
    static const char *const large[] = {"B=8 S=64 V=512 P=64 D=64 F=256 H=4 K=16", "B=8 S=64 V=512 D=64 F=192 H=4 G=2 K=16"};
    static const char *const meshes[] = {"dp=2 : dp B",
                                         "tp=2 : tp H G F V",
                                         "tp=2 : tp H G F V S",
                                         "dp=2 tp=2 : dp B : tp H G F V S",
                                         "dp=2 tp=2 microbatches=2 : dp B : tp H G F V S cost"};
    static const char *const models[] = {"gpt", "llama"}, *const sizes[] = {gpt_sizes, llama_sizes};
    is_exact("gpt", large[0], "tp=4 : tp H F V S B D K cost");
    is_exact("llama", large[1], "tp=4 : tp H G F V S B D cost");
    is_exact("gpt", large[0], "dp=2 tp=2 : dp B S D cost : tp H F V S cost");
    is_exact("llama", large[1], "dp=2 tp=4 : dp B S D cost : tp H G F V S D B cost");
    if (!DTM_SAMPLE) {
        takes("gpt", large[0], "dp=2 cp=2 tp=4 : dp B S H F V D K cost : cp B S H F V D K cost : tp B S H F V D K cost", 4e9);
        takes("llama", large[1], "dp=2 cp=2 tp=4 : dp B S H G F V D cost : cp B S H G F V D cost : tp B S H G F V D cost", 4e9);
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 5; k++) estimates(models[i], large[i], meshes[k], k < 4 ? 0.1 : 0.2);
    /* The examples: llama.dtm, gpt2.dtm, llama3-8b.dtm, llama3-70b.dtm. */
    layers = 4;
    estimates("llama", "B=16 S=128 V=256 D=128 F=352 H=4 G=2 K=32", meshes[3], 0.1);
    layers = 12;
    estimates("gpt", "B=4 S=1024 V=50257 P=1024 D=768 F=3072 H=12 K=64", meshes[3], 0.1);
    layers = 32;
    estimates("llama", "B=2 S=8192 V=128256 D=4096 F=14336 H=32 G=8 K=128", "dp=2 tp=4 : dp B : tp H G F V S", 0.1);
    layers = 80;
    estimates("llama", "B=1 S=8192 V=128256 D=8192 F=28672 H=64 G=8 K=128", "tp=8 : tp H G F V S", 0.1);
    layers = 2;
    for (int i = 0; i < 2; i++) {
        whole(models[i], sizes[i], "tp=2 : tp H G F V", "2 AR | 2 AR ");
        whole(models[i], sizes[i], "tp=2 : tp H G F V S", "2 AG 2 RS | 2 AG 2 RS ");
        whole(models[i], sizes[i], "dp=2 : dp B", "| ");
        whole(models[i], sizes[i], "cp=2 : cp S gather", "2 AG | 2 RS ");
        whole(models[i], sizes[i], "cp=2 : cp S alltoall", "4 A2A | 4 A2A ");
        whole(models[i], sizes[i], "dp=2 tp=2 : dp B : tp H G F V S", "2 AG 2 RS | 2 AG 2 RS ");
    }
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
