/* Random programs and placements: see program.h. */
#include "program.h"

#include "runtime/safetensors.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_READ = 6 };

/* What is being written: the model outside of its repeats, or a repeat. */
typedef struct writer {
    draws *d;
    program *p;
    char weights[8192], body[12288];
    char *shared;         /* weights outside of all repeats, SHARED_CAPACITY bytes */
    bool repeats;         /* a repeat is being written */
    struct writer *outer; /* that in which it stands, or NULL */
    char read[MOST_READ][16]; /* names of values [B, S, D] set outside of the repeat being written, or before in the model */
    int n_read;
    bool second;          /* y goes from copy to copy beside x */
    int block;            /* numbers the weights */
} writer;

enum { SHARED_CAPACITY = 4096 };

__attribute__((format(printf, 3, 4))) static void put(char *text, size_t capacity, const char *format, ...) {
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, capacity - length, format, arguments);
    va_end(arguments);
}

/* Moves lines of text to the right, or to the left. */
static void put_lines(char *text, size_t capacity, const char *lines, int by) {
    while (*lines) {
        size_t length = strcspn(lines, "\n"), skipped = by < 0 ? (size_t)-by : 0;
        if (skipped > length) skipped = length;
        put(text, capacity, "%*s%.*s\n", by > 0 ? by : 0, "", (int)(length - skipped), lines + skipped);
        lines += length + (lines[length] == '\n');
    }
}

enum { DECK_BLOCKS, DECK_SHAPES, DECK_POOLS, DECK_FORMS, DECK_ACTIVATIONS, DECK_RULES, DECK_SOFTMAX, DECK_REPEATS, DECK_AGAIN, DECK_BRANCHES, DECK_PRECISION };
#define SAY(w, ...) put((w)->body, sizeof(w)->body, __VA_ARGS__)

/* Declares a weight of this block, in the repeat or, now and then, one for all copies, or for those in one copy of the repeat around. */
static void weight(writer *w, const char *name, const char *dims, const char *init) {
    int where = draw(w->d, 10);
    bool shared = where == 9, outer = where == 8 && w->outer;
    char *text = shared ? w->shared : outer ? w->outer->weights : w->weights;
    size_t capacity = shared ? SHARED_CAPACITY : sizeof w->weights;
    put(text, capacity, "        weight %s%d : [%s] = %s\n", name, w->block, dims, init);
}

/* ---- blocks: each reads and sets x : [B, S, D], by way of h ---- */

static void norm(writer *w) {
    switch (draw(w->d, 4)) {
    case 0: /* what many blocks add up would make a softmax of it so sharp that rounding decides */
        SAY(w, w->block < 4 ? "        h = x\n" : "        h = tanh(x)\n");
        break;
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
    static const char *const words[] = {"silu", "gelu_tanh", "gelu", "relu", "tanh", "sigmoid", "erf", "abs",
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

/* A value that has its own number, from h or what else is given. */
static int branch(writer *w, const char *from) {
    int n = ++w->block;
    switch (draw(w->d, 5)) {
    case 0:
        weight(w, "up", "D, F", "normal(0.25)");
        weight(w, "down", "F, D", "normal(0.25)");
        SAY(w, "        b%d = dot(%s(dot(%s, up%d over D)), down%d over F)\n", n, activation(w), from, n, n);
        break;
    case 1:
        weight(w, "left", "D, H, K", "normal(0.25)");
        weight(w, "right", "H, K, D", "normal(0.25)");
        SAY(w, "        b%d = dot(dot(%s, left%d over D), right%d over H, K)\n", n, from, n, n);
        break;
    case 2:
        projections(w, from, true);
        SAY(w, "        b%d = dot(attention(q, k, v over S, K, causal), wo%d over H, K)\n", n, n);
        break;
    case 3:
        weight(w, "table", "V, D", "normal(0.25)");
        SAY(w, "        b%d = gather(table%d, tokens over V)\n", n, n);
        break;
    case 4:
        weight(w, "gate", "D", "normal(0.25)");
        SAY(w, "        b%d = %s * sigmoid(dot(%s, gate%d over D))\n", n, from, from, n);
        break;
    }
    return n;
}

/* Branches side by side: of which one can be computed while what another made is on its way. */
static void branches(writer *w) {
    char other[16];
    int first = branch(w, "h"), second, third;
    switch (draw_dealt(w->d, DECK_BRANCHES, 1, 5)) {
    case 0: second = branch(w, "h"), SAY(w, "        x = x + b%d + b%d\n", first, second); break;
    case 1: second = branch(w, "h"), SAY(w, "        x = x + b%d * tanh(b%d)\n", first, second); break;
    case 2: second = branch(w, "h"), third = branch(w, "h"), SAY(w, "        x = x + b%d + b%d + b%d\n", first, second, third); break;
    case 3: /* what follows one stands before the other */
        weight(w, "inner", "D", "uniform(0.5, 1.5)");
        SAY(w, "        e%d = rmsnorm(x + b%d, inner%d over D)\n", first, first, w->block);
        second = branch(w, "h"), SAY(w, "        x = x + e%d + b%d\n", first, second);
        break;
    case 4:
        weight(w, "inner", "D", "uniform(0.5, 1.5)");
        snprintf(other, sizeof other, "e%d", first);
        SAY(w, "        %s = rmsnorm(0.5 * x, inner%d over D)\n", other, w->block);
        second = branch(w, "h"), third = branch(w, other);
        SAY(w, "        x = x + b%d + b%d + b%d\n", first, second, third);
        break;
    }
}

/* What is cheap to make again in each kernel that reads it, with its dimensions in another order: [B, D, S]. */
static void made_again(writer *w) {
    int n = w->block;
    weight(w, "inner", "D", "uniform(0.5, 1.5)");
    switch (draw_dealt(w->d, DECK_AGAIN, 1, 4)) {
    case 0: SAY(w, "        x = x + rmsnorm(mean(h over S) + h, inner%d over D)\n", n); break;
    case 1:
        SAY(w, "        x = x + 0.4 * (mean(h over S where tokens >= %d) + h)\n", w->p->V / 2);
        SAY(w, "        x = x + 0.5 * rmsnorm(x, inner%d over D)\n", n);
        break;
    case 2:
        weight(w, "up", "D, F", "normal(0.25)");
        weight(w, "down", "F, D", "normal(0.25)");
        SAY(w, "        h = layernorm(0.5 * max(h over S) + h, inner%d over D)\n", n);
        SAY(w, "        x = x + dot(%s(dot(h, up%d over D)), down%d over F)\n", activation(w), n, n);
        break;
    case 3: SAY(w, "        x = x + softmax(0.3 * mean(h over S) + h * inner%d over D)\n", n); break;
    }
}

/* A weight outside of all repeats, used twice and wherever this block is drawn. */
static void tied_product(writer *w) {
    if (!strstr(w->shared, " tied :")) put(w->shared, SHARED_CAPACITY, "        weight tied : [D, F] = normal(0.25)\n");
    SAY(w, "        x = x + dot(%s(dot(x, tied over D)), tied over F)\n", activation(w));
}

static void block(writer *w) {
    static void (*const kinds[])(writer *) = {feed_forward, self_attention, elementwise,     pools,      shapes,
                                              branches,     odd_products,   plain_attention, made_again, cross_attention,
                                              branches,     tied_product,   plain_attention, pools};
    w->block++;
    norm(w);
    /* the two that matter most, nearly half of the time */
    if (draw_chance(w->d, 30)) kinds[draw(w->d, 2)](w);
    else kinds[draw_dealt(w->d, DECK_BLOCKS, 2, sizeof kinds / sizeof *kinds)](w);
    if (draw_chance(w->d, 60)) elementwise(w);
}

/* ---- repeats ---- */

/* What was made outside, or before, in every copy; a weight that others have, too. */
static void read_outside(writer *w) {
    if (w->n_read && draw_chance(w->d, 60)) {
        const char *name = w->read[draw(w->d, w->n_read)];
        SAY(w, draw_chance(w->d, 50) ? "        x = x + 0.3 * tanh(x) * %s\n" : "        x = x + 0.2 * %s\n", name);
    }
    if (draw_chance(w->d, 25)) tied_product(w);
    if (!w->second) return;
    if (draw_chance(w->d, 60)) SAY(w, "        y = y + 0.3 * tanh(x)\n");
    if (draw_chance(w->d, 60)) SAY(w, "        x = x + 0.3 * y\n");
}

/* A value that what follows in this region may read, also in copies of its repeats. */
static void set_outside(writer *w) {
    if (w->n_read == MOST_READ) return;
    snprintf(w->read[w->n_read], sizeof w->read[0], "z%d", ++w->block);
    SAY(w, "        %s = 0.5 * tanh(x)\n", w->read[w->n_read++]);
}

static void write_repeat(writer *around, const char *name, int copies, int blocks, bool nests) {
    writer w = *around;
    program *p = w.p;
    int at = nests ? draw(w.d, blocks + 1) : -1;
    w.weights[0] = w.body[0] = 0;
    w.repeats = true;
    w.outer = around->repeats ? around : NULL;
    p->repeats[p->n_repeats].name = name;
    p->repeats[p->n_repeats].copies = copies;
    p->repeats[p->n_repeats++].inner = around->repeats;
    for (int i = 0; i < blocks || i <= at; i++) {
        if (i == at) {
            if (draw_chance(w.d, 50)) set_outside(&w);
            write_repeat(&w, "inner", draw_chance(w.d, 70) ? 2 : 1, 1, false);
        }
        if (i < blocks) block(&w);
    }
    read_outside(&w);
    around->block = w.block;
    SAY(around, "        repeat %s = %d {\n", name, copies);
    put_lines(around->body, sizeof around->body, w.weights, 4);
    put_lines(around->body, sizeof around->body, w.body, 4);
    SAY(around, "        }\n");
}

static void write_between(writer *w) {
    switch (draw(w->d, 4)) {
    case 1: SAY(w, "        x = 0.9 * x + 0.1 * tanh(x)\n"); break;
    case 2: set_outside(w); break;
    case 3: block(w); break;
    }
}

/* One after another, one of them with one inside, with more or less between them. */
static void write_repeats(writer *w) {
    static const struct {
        int count, nests; /* nests: which has one inside; -1: none */
    } forms[] = {{1, -1}, {2, -1}, {1, 0}, {2, 1}, {3, -1}, {1, -1}, {2, -1}, {2, 0}};
    static const char *const names[] = {"layer", "second", "third"};
    int form = draw_dealt(w->d, DECK_REPEATS, 1, sizeof forms / sizeof *forms);
    int count = forms[form].count, nests = forms[form].nests;
    w->second = draw_chance(w->d, 25);
    if (w->second) SAY(w, "        y = 0.5 * x\n");
    if (draw_chance(w->d, count > 1 ? 60 : 30)) set_outside(w);
    for (int i = 0; i < count; i++) {
        int most = count == 1 && nests < 0 ? 3 : count < 3 ? 2 : 1;
        if (i) write_between(w);
        int copies = draw_between(w->d, 1, i == 0 ? 3 : 2), blocks = draw_between(w->d, 1, most);
        write_repeat(w, names[i], copies, blocks, i == nests);
    }
    if (w->second || draw_chance(w->d, 30)) read_outside(w);
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

/* Dealt, and last, so that all else is as it would be without. Scales by which nothing overflows, some values may, all do. */
static void write_precision(draws *d, program *p) {
    enum { F32, BF16 = 1, F16 = 2, REDUCED = 4 };
    static const int cards[] = {F32, F32, BF16, F32, F16, F32, REDUCED, F32, BF16 | REDUCED, F32, F16, F32, BF16, F16 | REDUCED};
    static const char *const scales[] = {"1024", "65536", "131072", "16384", "262144", "1048576", "4294967296", NULL};
    static const char *const rates[] = {"", ", grow_after = 1", ", grow_after = 2", NULL};
    int card = cards[draw_dealt(d, DECK_PRECISION, 1, sizeof cards / sizeof *cards)];
    p->reduced = card & REDUCED;
    p->halves = card != F32;
    if (card & BF16) put(p->model, sizeof p->model, "    precision bf16\n");
    if (card & F16) {
        const char *scale = draw_word(d, scales), *rate = draw_word(d, rates);
        put(p->model, sizeof p->model, "    precision f16(scale = %s%s)\n", scale, rate);
    }
    if (p->reduced) put(p->model, sizeof p->model, "    reduce bf16\n");
}

static void write_model(draws *d, program *p) {
    char *out = p->model, head[4096] = "", input[1024] = "", shared[SHARED_CAPACITY] = "";
    size_t capacity = sizeof p->model;
    writer w = {.d = d, .p = p, .shared = shared};
    bool tied = draw_chance(d, 40), positions = draw_chance(d, 30);
    p->features = draw_chance(d, 20);
    write_repeats(&w);
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
    put_lines(out, capacity, shared, -4);
    put_lines(out, capacity, w.weights, -4);
    put_lines(out, capacity, w.body, -4);
    put(out, capacity, "%s", head);
    /* an eps that rounding cannot climb over: a gradient that is zero but for rounding must not move its weight */
    static const char *const optimizers[] = {"adamw(lr = 1e-3, eps = 1e-3, decay = 0.1)", "sgd(lr = 0.01)",
                                             "adamw(lr = linear(peak = 2e-3, steps = 4, floor = 0), eps = 1e-3)", NULL};
    put(out, capacity, "train {\n    optimizer %s\n", draw_word(d, optimizers));
    if (draw_chance(d, 60)) put(out, capacity, "    clip %s\n", draw_chance(d, 50) ? "0.1" : "100.0");
    write_precision(d, p);
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
    static const char *const values[] = {"x", "x", "logits"};
    int value = draw(d, 3), dims[3], repeat = value ? -1 : draw(d, p->n_repeats), first = draw(d, axes);
    for (int a = 0; a < axes; a++) dims[a] = draw(d, 4); /* 3: left free */
    bool whole = draw_chance(d, 20);
    put(p->placement, sizeof p->placement, "    keep %s%s%s as [", repeat < 0 ? "" : p->repeats[repeat].name, repeat < 0 ? "" : ".",
        values[value]);
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

/* One of the repeats that stand in no other. */
static int split_repeat(draws *d, const program *p) {
    int which = draw(d, p->n_repeats);
    while (p->repeats[which].inner) which = (which + 1) % p->n_repeats;
    return which;
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
    int repeat = split_repeat(d, p), left = p->repeats[repeat].copies, stages = ranks * chunks;
    int microbatches = draw_chance(d, 25) ? 1 : draw_between(d, 1, p->B + 1);
    if (schedule == DUALPIPE) stages = ranks, microbatches += microbatches % 2; /* a stage is on two ranks */
    put(p->placement, sizeof p->placement, "    pp splits %s with schedule = %s, microbatches = %d", p->repeats[repeat].name,
        schedules[schedule].name, microbatches > least ? microbatches : least);
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

/* Links so slow that collectives are worth being hidden, taken apart and put together, or so quick that they are not; and memory, which
 * is found out when it is known what the program needs without a bound. */
static void write_machine(draws *d, program *p) {
    static const char *const rates[] = {"100 GFLOP/s", "1 GFLOP/s", "0.01 GFLOP/s", "0.001 GFLOP/s", NULL};
    static const char *const bandwidths[] = {"100 GB/s", "1 GB/s", "0.01 GB/s", NULL};
    static const char *const links[] = {"1 GB/s", "0.01 GB/s", "0.001 GB/s", "0.0002 GB/s", NULL};
    static const char *const latencies[] = {"2 us", "0.01 us", "100 us", NULL};
    p->machine[0] = 0;
    p->memory = 0;
    if (!draw_chance(d, 60)) return;
    put(p->machine, sizeof p->machine, "    devices_per_node = %d\n", 8 - draw(d, 8));
    put(p->machine, sizeof p->machine, "    flops_f32 = %s\n", draw_word(d, rates));
    put(p->machine, sizeof p->machine, "    memory_bandwidth = %s\n", draw_word(d, bandwidths));
    for (int i = 0; i < 2; i++) {
        put(p->machine, sizeof p->machine, "    %s { bandwidth = %s; ", i ? "network" : "node", draw_word(d, links));
        put(p->machine, sizeof p->machine, "latency = %s }\n", draw_word(d, latencies));
    }
    if (draw_chance(d, 40)) p->memory = 105 - draw(d, 31);
}

/* The pipeline is drawn last, so that all else is as it would be without. Its axis is any of the mesh; where microbatches were
 * drawn, they are its rounds. */
static const char *const axis_names[] = {"tp", "dp", "cp"};

static void write_placement(draws *d, int most_ranks, program *p) {
    const char *const *names = axis_names;
    int axes = draw_between(d, 1, 3), sizes[3];
    char rules[sizeof p->placement], mesh[200] = "";
    p->ranks = 1;
    p->axes = axes;
    for (int i = 0; i < axes; i++) {
        int most = most_ranks / p->ranks < 4 ? most_ranks / p->ranks : 4;
        static const int likely[] = {2, 1, 3, 4};
        sizes[i] = likely[draw(d, 4)];
        if (sizes[i] > most) sizes[i] = most;
        p->ranks *= sizes[i];
    }
    for (int i = 0; i < axes; i++) write_rule(d, p, names[i]);
    int microbatches = draw_chance(d, 30) ? draw_between(d, 1, p->B + 1) : 0;
    if (draw_chance(d, 25)) write_keep(d, p, names, axes);
    int stages = draw_chance(d, 40) ? draw_between(d, 1, 4) : 0, at = -1;
    if (stages > most_ranks / p->ranks) stages = most_ranks / p->ranks;
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

/* Where weights rest: on some axes, by a stage each. */
static void write_zero(draws *d, program *p) {
    p->zero[0] = 0;
    if (!draw_chance(d, 40)) return;
    for (int a = 0; a < p->axes && a < 3; a++)
        if (draw_chance(d, 70)) put(p->zero, sizeof p->zero, "    zero %d on %s\n", 3 - draw(d, 3), axis_names[a]);
}

void program_draw_model(draws *d, program *out) {
    memset(out, 0, sizeof *out);
    draw_sizes(d, out);
    write_model(d, out);
}

void program_draw_placement(draws *d, int most_ranks, program *out) {
    out->placement[0] = 0;
    write_placement(d, most_ranks, out);
    write_machine(d, out);
    write_zero(d, out); /* last, so that all else is as it would be without */
}

void program_print_placement(const program *p, int64_t memory, FILE *out) {
    fprintf(out, "%s", p->placement);
    if (*p->zero) fprintf(out, "\nparallel {\n%s}\n", p->zero);
    if (!*p->machine) return;
    fprintf(out, "\nmachine {\n%s", p->machine);
    if (memory) fprintf(out, "    memory = %lld B\n", (long long)memory);
    fprintf(out, "}\n");
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
