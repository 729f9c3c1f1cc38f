/* Random programs and placements: see program.h. */
#include "program.h"

#include "runtime/safetensors.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* What is being written. */
typedef struct writer {
    draws *d;
    program *p;
    char weights[8192], body[8192]; /* of the repeat, or of the model's end */
    char shared[2048];  /* weights of all copies */
    int block;          /* numbers the weights */
} writer;

__attribute__((format(printf, 3, 4))) static void put(char *text, size_t capacity, const char *format, ...) {
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, capacity - length, format, arguments);
    va_end(arguments);
}
enum { DECK_BLOCKS, DECK_SHAPES, DECK_POOLS, DECK_FORMS, DECK_ACTIVATIONS, DECK_RULES, DECK_SOFTMAX };
#define SAY(w, ...) put((w)->body, sizeof(w)->body, __VA_ARGS__)

/* Declares a weight of this block, in the repeat or, now and then, one for all copies. */
static void weight(writer *w, const char *name, const char *dims, const char *init) {
    bool shared = draw_chance(w->d, 10);
    char *text = shared ? w->shared : w->weights;
    size_t capacity = shared ? sizeof w->shared : sizeof w->weights;
    put(text, capacity, "        weight %s%d : [%s] = %s\n", name, w->block, dims, init);
}

/* ---- blocks: each reads and sets x : [B, S, D], by way of h ---- */

static void norm(writer *w) {
    switch (draw(w->d, 4)) {
    case 0: SAY(w, "        h = x\n"); break;
    case 1:
        weight(w, "scale", "D", "uniform(0.5, 1.5)");
        SAY(w, "        h = rmsnorm(x, scale%d over D)\n", w->block);
        break;
    case 2:
        weight(w, "scale", "D", "uniform(0.5, 1.5)");
        weight(w, "shift", "D", "normal(0.1)");
        SAY(w, "        h = layernorm(x, scale%d, shift%d over D, eps = 1e-4)\n", w->block, w->block);
        break;
    case 3:
        weight(w, "scale", "D", "uniform(0.5, 1.5)");
        SAY(w, "        h = layernorm(x, scale%d over D)\n", w->block);
        break;
    }
}

static const char *activation(writer *w) {
    static const char *const words[] = {"silu", "gelu_tanh", "gelu", "relu", "tanh", "sigmoid", "erf", "square",
                                        "softplus"};
    return words[draw_dealt(w->d, DECK_ACTIVATIONS, 1, sizeof words / sizeof *words)];
}

static void feed_forward(writer *w) {
    int n = w->block;
    weight(w, "up", "D, F", "normal(0.25)");
    weight(w, "down", "F, D", "normal(0.25)");
    const char *f = activation(w);
    switch (draw(w->d, 3)) {
    case 0: SAY(w, "        x = x + dot(%s(dot(h, up%d over D)), down%d over F)\n", f, n, n); break;
    case 1:
        weight(w, "bias", "F", "normal(0.2), no decay");
        weight(w, "out", "D", "normal(0.2)");
        SAY(w, "        x = x + dot(%s(dot(h, up%d over D) + bias%d), down%d over F) + out%d\n", f, n, n, n, n);
        break;
    case 2:
        weight(w, "gate", "D, F", "normal(0.25)");
        SAY(w, "        x = x + dot(%s(dot(h, gate%d over D)) * dot(h, up%d over D), down%d over F)\n", f, n, n, n);
        break;
    }
}

/* q, k, v : H, G and K wide, k and v from `keys`, whose positions are `at`. */
static void projections(writer *w, const char *keys, bool rope) {
    int n = w->block;
    const char *groups = w->p->has_groups ? "D, G, K" : "D, K";
    weight(w, "wq", "D, H, K", "normal(0.25)");
    weight(w, "wk", groups, "normal(0.25)");
    weight(w, "wv", groups, "normal(0.25)");
    weight(w, "wo", "H, K, D", "normal(0.25)");
    static const char *const turns[] = {"", ", base = 500", ", interleaved", ", part = 2", NULL};
    const char *turn = rope && draw_chance(w->d, 60) ? draw_word(w->d, turns) : NULL;
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "k" : "q", *from = i ? keys : "h";
        if (turn) SAY(w, "        %s = rope(dot(%s, w%s%d over D) over K at S%s)\n", name, from, name, n, turn);
        else SAY(w, "        %s = dot(%s, w%s%d over D)\n", name, from, name, n);
    }
    SAY(w, "        v = dot(%s, wv%d over D)\n", keys, n);
}

static void self_attention(writer *w) {
    projections(w, "h", true);
    static const char *const flags[] = {", causal", "", ", causal, window = 2", ", causal, scale = 0.3", NULL};
    SAY(w, "        x = x + dot(attention(q, k, v over S, K%s), wo%d over H, K)\n", draw_word(w->d, flags), w->block);
}

static void cross_attention(writer *w) {
    w->p->context = true;
    projections(w, "c", false);
    SAY(w, "        x = x + dot(attention(q, k, v over T, K at S), wo%d over H, K)\n", w->block);
}

/* Attention written out: the scores are a tensor, positions of the keys have a dimension of their own. */
static void plain_attention(writer *w) {
    int n = w->block;
    weight(w, "wq", "D, K", "normal(0.25)");
    weight(w, "wk", "D, K", "normal(0.25)");
    SAY(w, "        s%d = dot(dot(h, wq%d over D), rename(dot(h, wk%d over D), S as U) over K)\n", n, n, n);
    const char *how = draw_dealt(w->d, DECK_SOFTMAX, 1, 2) ? "exp(log_softmax(%s over U))" : "softmax(%s over U)";
    char scores[64], weights[128];
    snprintf(scores, sizeof scores, "s%d * 0.5", n);
    if (draw_chance(w->d, 50))
        snprintf(scores, sizeof scores, "where(positions(U) <= positions(S), s%d, -30)", n);
    snprintf(weights, sizeof weights, how, scores);
    SAY(w, "        x = x + dot(%s, rename(h, S as U) over U)\n", weights);
}

static void shapes(writer *w) {
    int n = w->block;
    switch (draw_dealt(w->d, DECK_SHAPES, 1, 3)) {
    case 0:
        weight(w, "part", "A", "normal(0.5)");
        SAY(w, "        x = x + merge(split(h, D as A, C) * part%d, A, C as D)\n", n);
        break;
    case 1:
        SAY(w, "        x = x + concat(slice(h, D = %d..%d as N), slice(h, D = 0..%d as R) over N, R as D)\n", w->p->R,
            w->p->D, w->p->R);
        break;
    case 2:
        weight(w, "mix", "A, C", "normal(0.5)");
        SAY(w, "        x = x + merge(softmax(split(h, D as A, C) * mix%d over A), A, C as D)\n", n);
        break;
    }
}

/* Means and maxima over tokens, broadcast back; a gate of one number a token; sums of inputs over the batch. */
static void pools(writer *w) {
    int n = w->block;
    switch (draw_dealt(w->d, DECK_POOLS, 1, 7)) {
    case 0: SAY(w, "        x = x + mean(h over S)\n"); break;
    case 1: SAY(w, "        x = x + 0.1 * sum(h over S)\n"); break;
    case 2: SAY(w, "        x = x + max(h over S) * 0.5\n"); break;
    case 3:
        weight(w, "gate", "D", "normal(0.25)");
        SAY(w, "        x = x + h * sigmoid(dot(h, gate%d over D))\n", n);
        break;
    case 4: SAY(w, "        x = x + mean(h over S where tokens >= %d)\n", w->p->V / 2); break;
    case 5: SAY(w, "        x = x + h / (1 + sum(cast(tokens >= %d, f32) over B, S))\n", w->p->V / 2); break;
    case 6: /* two sums over the batch, one of the other */
        SAY(w, "        n%d = mean(cast(tokens, f32) over B, S)\n", n);
        SAY(w, "        x = x + 0.1 * h * rsqrt(1 + mean(square(cast(tokens, f32) - n%d) over B, S))\n", n);
        break;
    }
}

/* Every operator of one element; continuous, so that rounding decides nothing. */
static void elementwise(writer *w) {
    static const char *const forms[] = {
        "h * 0.5", "where(h > 0, h, 0.1 * h)", "max(h, 0.2 * x)", "min(h, x * x)", "log(1 + square(h))",
        "sqrt(1 + square(h))", "h * rsqrt(1 + square(h))", "exp(min(h, 1))", "abs(h)", "h / (2 + tanh(x))", "-h",
        "where(h < 0, 0.3 * h, h)", "where(h >= 0, h, 0.2 * h)", "where(h <= 0, h, 0.4 * h)",
        "where(tokens != 1, h, 0.5 * h)", "where(tokens == 2, 2 * h, h)", "h * cast(tokens > 1, f32)", "relu(h)",
        "sigmoid(h)", "erf(h)", "gelu(h)", "gelu_tanh(h)", "silu(h) - h", "softplus(h)", "h - dropout(h, 0.25)"};
    enum { FORMS = sizeof forms / sizeof *forms };
    for (int count = draw_between(w->d, 1, 2); count > 0; count--)
        SAY(w, "        x = x + 0.5 * (%s)\n", forms[draw_dealt(w->d, DECK_FORMS, 3, FORMS)]);
}

/* A product by one-hot rows, another by log-probabilities. */
static void odd_products(writer *w) {
    int n = w->block;
    if (draw_chance(w->d, 50)) {
        weight(w, "table", "V, D", "normal(0.25)");
        SAY(w, "        x = x + dot(cast(tokens == positions(V), f32), table%d over V)\n", n);
    } else {
        weight(w, "up", "D, F", "normal(0.25)");
        weight(w, "down", "F, D", "normal(0.1)");
        weight(w, "inner", "F", "uniform(0.5, 1.5)");
        SAY(w, "        x = x + dot(rmsnorm(dot(h, up%d over D), inner%d over F), down%d over F)\n", n, n, n);
    }
}

/* Two branches that read the same h. */
static void branches(writer *w) {
    int n = w->block;
    weight(w, "up", "D, F", "normal(0.25)");
    weight(w, "down", "F, D", "normal(0.25)");
    weight(w, "left", "D, H, K", "normal(0.25)");
    weight(w, "right", "H, K, D", "normal(0.25)");
    SAY(w, "        x = x + dot(%s(dot(h, up%d over D)), down%d over F) + dot(dot(h, left%d over D), right%d over H, K)\n",
        activation(w), n, n, n, n);
}

static void block(writer *w) {
    static void (*const kinds[])(writer *) = {feed_forward, self_attention, elementwise, pools,          shapes,
                                              branches,     odd_products,   plain_attention, cross_attention, plain_attention};
    w->block++;
    norm(w);
    /* the two that matter most, nearly half of the time */
    if (draw_chance(w->d, 40)) kinds[draw(w->d, 2)](w);
    else kinds[draw_dealt(w->d, DECK_BLOCKS, 1, 10)](w);
    if (draw_chance(w->d, 80)) elementwise(w);
}

/* ---- the whole ---- */

static void draw_sizes(draws *d, program *p) {
    p->B = draw_between(d, 1, 6);
    p->S = draw_between(d, 2, 9);
    p->V = draw_between(d, 5, 13);
    p->A = draw_between(d, 1, 3);
    p->C = 2 * draw_between(d, 1, 3);
    p->D = p->A * p->C;
    p->R = draw_between(d, 1, p->D - 1);
    p->N = p->D - p->R;
    p->F = draw_between(d, 2, 9);
    p->has_groups = draw_chance(d, 80);
    p->G = draw_between(d, 1, 3);
    p->H = p->G * draw_between(d, 1, 3);
    p->K = 2 * draw_between(d, 1, 2);
    p->T = draw_between(d, 2, 6);
}

static void write_head(writer *w, char *out, size_t capacity, bool tied) {
    draws *d = w->d;
    static const char *const losses[] = {
        "mean(cross_entropy(logits, targets over V) over B, S)",
        "mean(cross_entropy(logits, targets over V) over B, S where targets >= 0)",
        "mean(cross_entropy(logits, targets over V, smooth = 0.1) over B, S where targets >= 0)",
        "mean(cross_entropy(logits, targets over V) over B, S) + 0.01 * mean(square(x) over B, S, D)",
        "0.05 * sum(cross_entropy(logits, targets over V) over B, S where targets >= 0)", NULL};
    if (draw_chance(d, 60)) put(out, capacity, "    weight last : [D] = ones\n    x = rmsnorm(x, last over D)\n");
    if (tied) put(out, capacity, "    logits = dot(x, embed over D)\n");
    else put(out, capacity, "    weight head : [D, V] = normal(0.3)\n    logits = dot(x, head over D)\n");
    const char *loss = draw_word(d, losses);
    w->p->masked = draw_chance(d, 50);
    if (draw_chance(d, 20)) put(out, capacity, "    report spread = mean(abs(x) over B, S, D)\n");
    put(out, capacity, "    loss = %s\n}\n\n", loss);
}

static void write_model(draws *d, program *p) {
    writer w = {.d = d, .p = p};
    char *out = p->model, head[4096] = "", input[1024] = "";
    size_t capacity = sizeof p->model;
    int layers = p->layers = draw_between(d, 1, 3), blocks = draw_between(d, 1, 3);
    bool tied = draw_chance(d, 40), positions = draw_chance(d, 30);
    p->features = draw_chance(d, 20);
    for (int i = 0; i < blocks; i++) block(&w);
    write_head(&w, head, sizeof head, tied);
    if (p->context) put(input, sizeof input, "    input context : i32[B, T]\n");
    if (p->features) put(input, sizeof input, "    input features : f32[B, S, D]\n");
    put(out, capacity, "dim B = %d, S = %d, U = S, V = %d, D = %d, F = %d\n", p->B, p->S, p->V, p->D, p->F);
    put(out, capacity, "dim H = %d, G = %d, K = %d, T = %d, A = %d, C = %d, N = %d, R = %d, P = %d\n\n", p->H, p->G, p->K, p->T,
        p->A, p->C, p->N, p->R, p->S + 1);
    put(out, capacity, "model random {\n    input tokens, targets : i32[B, S]\n%s", input);
    put(out, capacity, "    weight embed : [V, D] = normal(0.5)\n    x = gather(embed, tokens over V)\n");
    if (positions)
        put(out, capacity, "    weight pos : [P, D] = normal(0.3)\n    x = x + gather(pos, positions(S) over P)\n");
    if (p->features) put(out, capacity, "    x = x + features\n");
    if (p->context) put(out, capacity, "    c = gather(embed, context over V)\n");
    put(out, capacity, "%s    repeat layer = %d {\n%s%s    }\n%s", w.shared, layers, w.weights, w.body, head);
    /* an eps that rounding cannot climb over: a gradient that is zero but for rounding must not move its weight */
    static const char *const optimizers[] = {"adamw(lr = 1e-3, eps = 1e-3, decay = 0.1)", "sgd(lr = 0.01)",
                                             "adamw(lr = linear(peak = 2e-3, steps = 4, floor = 0), eps = 1e-3)", NULL};
    put(out, capacity, "train {\n    optimizer %s\n", draw_word(d, optimizers));
    if (draw_chance(d, 60)) put(out, capacity, "    clip %s\n", draw_chance(d, 50) ? "0.1" : "100.0");
    put(out, capacity, "    steps 3\n}\n");
}

/* An axis' list: what is usual, or anything in any order. */
static void write_rule(draws *d, program *p, const char *axis) {
    static const char *const usual[] = {"B", "H, G, F, V", "H, G, F, V, S", "S using alltoall", "S using gather", "F, V",
                                        "V", "B, S", "H, G, F, S by cost", "D", "H, G, B, S", "V, F, B"};
    static const char *const all[] = {"B", "S", "V", "D", "F", "H", "G", "K", "T", "A", "C", "U", "N", "R"};
    enum { ALL = sizeof all / sizeof *all };
    put(p->placement, sizeof p->placement, "    %s splits ", axis);
    if (!draw_chance(d, 40)) {
        put(p->placement, sizeof p->placement, "%s\n", usual[draw_dealt(d, DECK_RULES, 2, sizeof usual / sizeof *usual)]);
        return;
    }
    bool taken[ALL] = {false};
    int count = draw_between(d, 1, 5);
    for (int i = 0; i < count; i++) {
        int which = draw(d, ALL);
        while (taken[which]) which = (which + 1) % ALL;
        taken[which] = true;
        put(p->placement, sizeof p->placement, "%s%s", i ? ", " : "", all[which]);
    }
    put(p->placement, sizeof p->placement, "\n");
}

/* A value pinned on some axes, several of them in one dimension in any order, and some dimension pinned whole. */
static void write_keep(draws *d, program *p, const char *const *names, int axes) {
    static const char *const values[] = {"layer.x", "x", "logits"};
    int value = draw(d, 3), dims[3], first = draw(d, axes);
    for (int a = 0; a < axes; a++) dims[a] = draw(d, 4); /* 3: left free */
    bool whole = draw_chance(d, 20);
    put(p->placement, sizeof p->placement, "    keep %s as [", values[value]);
    for (int i = 0; i < 3; i++) {
        put(p->placement, sizeof p->placement, "%s%s", i ? ", " : "", i == 0 ? "B" : i == 1 ? "S" : value == 2 ? "V" : "D");
        const char *mark = "@";
        for (int k = 0; k < axes; k++) {
            int axis = (first + k) % axes;
            if (dims[axis] != i) continue;
            put(p->placement, sizeof p->placement, "%s%s", mark, names[axis]);
            mark = ".";
        }
        if (whole && *mark == '@') put(p->placement, sizeof p->placement, "@-");
    }
    put(p->placement, sizeof p->placement, "]\n");
}

/* A pipeline along pp: of any schedule that there is for so many ranks; stages as given, empty ones too, or as they are balanced;
 * up to three a rank, where the schedule leaves it open. */
static void write_pipeline(draws *d, program *p, int ranks) {
    static const struct {
        const char *name;
        int chunks, microbatches; /* 0: drawn; the least number of microbatches, times ranks */
    } schedules[] = {{"sequential", 0, 0}, {"zbh1", 1, 0},      {"zbv", 2, 0},         {"1f1b", 1, 0},    {"gpipe", 1, 0},
                     {"auto", 0, 0},       {"dualpipev", 2, 2}, {"interleaved", 0, 0}, {"dualpipe", 2, 2}};
    enum { INTERLEAVED = 7, DUALPIPE, SCHEDULES }; /* dualpipe is for an even number of ranks */
    int schedule = draw(d, ranks % 2 ? DUALPIPE : SCHEDULES), least = schedules[schedule].microbatches * ranks;
    int chunks = schedules[schedule].chunks ? schedules[schedule].chunks : draw_between(d, schedule == INTERLEAVED ? 2 : 1, 3);
    int microbatches = draw_between(d, 1, p->B + 1), left = p->layers, stages = ranks * chunks;
    if (schedule == DUALPIPE) stages = ranks, microbatches += microbatches % 2; /* a stage is on two ranks */
    put(p->placement, sizeof p->placement, "    pp splits layer with schedule = %s, microbatches = %d", schedules[schedule].name,
        microbatches > least ? microbatches : least);
    if (chunks > 1) put(p->placement, sizeof p->placement, ", chunks = %d", chunks);
    if (draw_chance(d, 50)) {
        for (int s = 0; s < stages; s++) {
            int size = s + 1 < stages ? draw(d, left + 1) : left;
            put(p->placement, sizeof p->placement, "%s%d", s ? ", " : ", stages = [", size);
            left -= size;
        }
        put(p->placement, sizeof p->placement, "]");
    }
    put(p->placement, sizeof p->placement, "\n");
}

/* The pipeline is drawn last, so that all else is as it would be without. Its axis is any of the mesh; where microbatches were
 * drawn, they are its rounds. */
static void write_placement(draws *d, program *p) {
    static const char *const names[] = {"tp", "dp", "cp"};
    int axes = draw_between(d, 1, 3), sizes[3];
    char rules[sizeof p->placement], mesh[200] = "";
    p->ranks = 1;
    for (int i = 0; i < axes; i++) {
        int most = 8 / p->ranks < 4 ? 8 / p->ranks : 4;
        static const int likely[] = {2, 1, 3, 4};
        sizes[i] = likely[draw(d, 4)];
        if (sizes[i] > most) sizes[i] = most;
        p->ranks *= sizes[i];
    }
    for (int i = 0; i < axes; i++) write_rule(d, p, names[i]);
    int microbatches = draw_chance(d, 30) ? draw_between(d, 1, p->B + 1) : 0;
    if (draw_chance(d, 25)) write_keep(d, p, names, axes);
    int stages = draw_chance(d, 40) ? draw_between(d, 1, 4) : 0, at = -1;
    if (stages > 8 / p->ranks) stages = 8 / p->ranks;
    p->ranks *= stages ? stages : 1;
    if (microbatches) put(p->placement, sizeof p->placement, "    microbatches %d\n", microbatches);
    if (stages) {
        write_pipeline(d, p, stages);
        at = draw(d, axes + 1);
    }
    for (int i = 0; i <= axes; i++) {
        const char *comma = *mesh ? ", " : "";
        if (i == at) put(mesh, sizeof mesh, "%spp = %d%s", comma, stages, i < axes ? ", " : "");
        if (i < axes) put(mesh, sizeof mesh, "%s%s = %d", i == at ? "" : comma, names[i], sizes[i]);
    }
    snprintf(rules, sizeof rules, "%s", p->placement);
    p->placement[0] = 0;
    put(p->placement, sizeof p->placement, "mesh { %s }\n\nparallel {\n%s}\n", mesh, rules);
}

void program_draw_model(draws *d, program *out) {
    memset(out, 0, sizeof *out);
    draw_sizes(d, out);
    write_model(d, out);
}

void program_draw_placement(draws *d, program *out) {
    out->placement[0] = 0;
    write_placement(d, out);
}

/* ---- data ---- */

static void fill(const program *p, draws *d, int input, float *floats, int32_t *whole, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int token = draw(d, p->V);
        if (input == 3) floats[i] = (float)(draw(d, 2001) - 1000) / 1000;
        else whole[i] = input == 1 && p->masked && draw(d, 3) == 0 ? -100 : token;
    }
}

bool program_write_data(const program *p, uint64_t seed, const char *path) {
    draws d;
    draws_seed(&d, seed, 0);
    static const char *const names[] = {"tokens", "targets", "context", "features"};
    const bool there[] = {true, true, p->context, p->features};
    dtm_stored_tensor tensors[4];
    int which[4], count = 0;
    for (int i = 0; i < 4; i++) {
        if (!there[i]) continue;
        dtm_stored_tensor t = {.name = names[i], .dtype = i == 3 ? DTM_STORED_F32 : DTM_STORED_I32, .rank = i == 3 ? 4 : 3,
                               .shape = {DATA_STEPS, p->B, i == 2 ? p->T : p->S, p->D}};
        tensors[count] = t;
        which[count++] = i;
    }
    dtm_status status = {0};
    dtm_safetensors_layout *layout = NULL;
    dtm_safetensors_writer *writer = NULL;
    bool good = dtm_safetensors_lay_out(tensors, count, NULL, &layout, &status) &&
                dtm_safetensors_create(path, layout, &writer, &status);
    for (int i = 0; good && i < count; i++) {
        int64_t n = 1, begin[DTM_STORED_RANK] = {0};
        for (int k = 0; k < tensors[i].rank; k++) n *= tensors[i].shape[k];
        void *data = calloc((size_t)n, 4);
        good = data != NULL;
        if (good) fill(p, &d, which[i], data, data, n);
        good = good && dtm_safetensors_write(writer, i, begin, tensors[i].shape, data, &status);
        free(data);
    }
    good = good && dtm_safetensors_writer_close(writer, &status) && dtm_safetensors_commit(path, &status);
    dtm_safetensors_layout_free(layout);
    if (!good) fprintf(stderr, "%s: %s\n", path, status.message);
    return good;
}
