/* The account of memory against a step walked copy by copy, which knows nothing of values but where they lie: each 64
 * bytes of the arena live from the moment they are written to the last that reads them before they are written again. */
#include "frontend/check.h"
#include "ir/storage.h"
#include "passes/pipeline.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 8, GRANULE = DTM_STORAGE_ALIGN };

typedef struct walk {
    const dtm_module *module;
    const bool *stored;
    struct {
        dtm_op op;
        int64_t number;
    } loops[DEPTH];
    int depth;
    int64_t granules, *written, *last; /* by granule; written -1: nothing yet, -2: a weight or state */
    int64_t *changes, *workspace;      /* by moment */
    int64_t moments, capacity;
    dtm_op *ops;
} walk;

static const dtm_op_data *op_of(const walk *w, dtm_op op) { return &w->module->ops[op]; }

static void tick(walk *w, dtm_op op, int64_t workspace) {
    if (w->moments + 2 > w->capacity) {
        w->capacity = 2 * w->capacity + 64;
        w->changes = realloc(w->changes, (size_t)w->capacity * sizeof *w->changes);
        w->workspace = realloc(w->workspace, (size_t)w->capacity * sizeof *w->workspace);
        w->ops = realloc(w->ops, (size_t)w->capacity * sizeof *w->ops);
    }
    w->changes[w->moments] = w->changes[w->moments + 1] = 0;
    w->ops[w->moments] = op;
    w->workspace[w->moments++] = dtm_storage_round(workspace);
}

static bool lies(const walk *w, dtm_value v) {
    return w->module->values[v].def && w->stored[v] && w->module->values[v].storage.offset >= 0;
}

/* Where the value lies that the loops as they stand see; after its loop, that of the copy that ran last. */
static int64_t place_of(const walk *w, dtm_value v) {
    const dtm_storage *s = &w->module->values[v].storage;
    int64_t copy = 0, product = 1;
    for (dtm_op at = w->module->values[v].def; (at = dtm_enclosing(w->module, at, DTM_OP_REPEAT));) {
        const dtm_attributes *a = &op_of(w, at)->attributes;
        int64_t number = a->flags & DTM_REPEAT_REVERSED ? 0 : a->copies - 1;
        for (int i = 0; i < w->depth; i++) {
            const dtm_op_data *loop = op_of(w, w->loops[i].op);
            if (loop->kind == DTM_OP_REPEAT && loop->attributes.name == a->name) number = w->loops[i].number;
        }
        copy += number * product;
        product *= a->copies;
    }
    return s->modulus > 1 ? s->offset + (copy + s->shift) % s->modulus * s->stride : s->offset;
}

static int64_t granules_of(const walk *w, dtm_value v) {
    return (dtm_local_bytes_max(w->module, w->module->values[v].type) + GRANULE - 1) / GRANULE;
}

static void flush(walk *w, int64_t g, int64_t end) {
    if (w->written[g] < 0 || w->written[g] > end) return;
    w->changes[w->written[g]] += GRANULE;
    w->changes[end + 1] -= GRANULE;
}

static void reads_at(walk *w, dtm_value v, int64_t place) {
    for (int64_t g = place / GRANULE, n = granules_of(w, v); n--; g++) w->last[g] = w->moments - 1;
}

static void writes_at(walk *w, dtm_value v, int64_t place) {
    int64_t now = w->moments - 1;
    for (int64_t g = place / GRANULE, n = granules_of(w, v); n--; g++) {
        if (w->written[g] == -2 || w->written[g] == now) continue;
        flush(w, g, w->last[g] < now ? w->last[g] : now - 1);
        w->written[g] = w->last[g] = now;
    }
}

static void moved(walk *w, dtm_op op, dtm_value from, int64_t from_place, dtm_value to, int64_t to_place) {
    if (from && from_place == to_place) return;
    tick(w, op, 0);
    if (from) reads_at(w, from, from_place);
    writes_at(w, to, to_place);
}

static void carries(walk *w, dtm_region region, int64_t before, int64_t number) {
    for (size_t i = 0; i < w->module->regions[region].n_ops; i++) {
        const dtm_op_data *op = op_of(w, w->module->regions[region].ops[i]);
        if (op->kind == DTM_OP_FORWARD || op->kind == DTM_OP_BACKWARD) carries(w, op->body, before, number);
        if (op->kind != DTM_OP_CARRY) continue;
        dtm_value from = op->operands[before >= 0];
        int64_t from_place = 0;
        if (before < 0) w->depth--;
        else w->loops[w->depth - 1].number = before;
        if (lies(w, from)) from_place = place_of(w, from);
        if (before < 0) w->depth++;
        w->loops[w->depth - 1].number = number;
        moved(w, w->module->regions[region].ops[i], lies(w, from) ? from : 0, from_place, op->results[0],
              place_of(w, op->results[0]));
    }
}

static void results(walk *w, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_results; i++)
        if (lies(w, op->results[i])) writes_at(w, op->results[i], place_of(w, op->results[i]));
}

static void operands(walk *w, const dtm_op_data *op) {
    for (uint32_t i = 0; i < op->n_operands; i++)
        if (lies(w, op->operands[i])) reads_at(w, op->operands[i], place_of(w, op->operands[i]));
}

static int64_t microbatch_of(const walk *w) {
    for (int i = 0; i < w->depth; i++)
        if (op_of(w, w->loops[i].op)->kind == DTM_OP_MICROBATCH) return w->loops[i].number;
    return 0;
}

static void region_of(walk *w, dtm_region region) {
    for (size_t i = 0; i < w->module->regions[region].n_ops; i++) {
        dtm_op self = w->module->regions[region].ops[i];
        const dtm_op_data *op = op_of(w, self);
        if (dtm_is_loop(op->kind)) {
            w->loops[w->depth++].op = self;
            for (int64_t k = 0, before = -1; k < op->attributes.copies; k++) {
                int64_t number = op->attributes.flags & DTM_REPEAT_REVERSED ? op->attributes.copies - 1 - k : k;
                w->loops[w->depth - 1].number = number;
                carries(w, op->body, before, number);
                region_of(w, op->body);
                before = number;
            }
            w->depth--;
        } else if (op->kind == DTM_OP_FUSED) {
            const dtm_region_data *body = &w->module->regions[op->body];
            tick(w, self, dtm_workspace_bytes(w->module, self));
            for (size_t j = 0; j < body->n_ops; j++)
                for (uint32_t k = 0; k < op_of(w, body->ops[j])->n_operands; k++) {
                    dtm_value v = op_of(w, body->ops[j])->operands[k];
                    if (lies(w, v) && dtm_unit_of(w->module, w->module->values[v].def) != self) reads_at(w, v, place_of(w, v));
                }
            for (size_t j = 0; j < body->n_ops; j++) results(w, op_of(w, body->ops[j]));
        } else if (op->body) {
            region_of(w, op->body);
        } else if (op->kind == DTM_OP_LAST || dtm_is_alias(w->module, self)) {
            dtm_value from = lies(w, op->operands[0]) ? op->operands[0] : 0, to = op->results[0];
            if (lies(w, to)) moved(w, self, from, from ? place_of(w, from) : 0, to, place_of(w, to));
        } else if (op->kind != DTM_OP_CARRY && op->kind != DTM_OP_WEIGHT && op->kind != DTM_OP_STATE) {
            tick(w, self, dtm_is_apart(w->module, self) ? 0 : dtm_workspace_bytes(w->module, self)); /* it has its own */
            operands(w, op);
            if (op->kind == DTM_OP_ACCUMULATE && microbatch_of(w)) reads_at(w, op->results[0], place_of(w, op->results[0]));
            else results(w, op);
        }
    }
}

/* Bytes alive at the peak, and what is of weights and of the optimizer. */
static int64_t peak_of(dtm_module *module, dtm_arena *arena, int64_t *weights, int64_t *states, dtm_op *where) {
    walk w = {.module = module, .stored = dtm_stored(module, arena), .granules = module->arena_bytes / GRANULE + 1};
    w.written = malloc((size_t)w.granules * sizeof *w.written);
    w.last = malloc((size_t)w.granules * sizeof *w.last);
    for (int64_t g = 0; g < w.granules; g++) w.written[g] = w.last[g] = -1;
    *weights = *states = 0;
    for (dtm_value v = 1; v < module->n_values; v++) {
        dtm_op_kind kind = module->values[v].def && lies(&w, v) ? module->ops[module->values[v].def].kind : DTM_OP_NONE;
        if (kind != DTM_OP_WEIGHT && kind != DTM_OP_STATE) continue;
        const dtm_storage *s = &module->values[v].storage;
        for (int64_t i = 0; i < (s->modulus > 1 ? s->modulus : 1); i++)
            for (int64_t g = (s->offset + i * s->stride) / GRANULE, n = granules_of(&w, v); n--; g++) w.written[g] = -2;
        *(kind == DTM_OP_WEIGHT ? weights : states) += granules_of(&w, v) * GRANULE * (s->modulus > 1 ? s->modulus : 1);
    }
    tick(&w, 0, 0);
    region_of(&w, module->body);
    for (int64_t g = 0; g < w.granules; g++) flush(&w, g, w.last[g]);
    int64_t alive = *weights + *states + dtm_constants_bytes(module) + dtm_workspace_of_apart(module, NULL) + dtm_workspace_of_pairs(module), most = 0;
    for (int64_t m = 0; m < w.moments; m++) {
        alive += w.changes[m];
        if (alive + w.workspace[m] <= most) continue;
        most = alive + w.workspace[m];
        *where = w.ops[m];
    }
    free(w.written), free(w.last), free(w.changes), free(w.workspace), free(w.ops);
    return most;
}

static int failures, programs;

static void check(const char *path, const char *mesh, const char *rules, int64_t copies) {
    char name[] = "/tmp/dtm-peak-XXXXXX", here[4096];
    int file = mkstemp(name);
    if (file < 0 || !realpath(path, here)) abort();
    dprintf(file, "use \"%s\"\nparallel { %s }\n", here, rules);
    close(file);
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, name, &(dtm_check_options){.mesh = mesh});
    for (dtm_op op = 1; module && op < module->n_ops; op++)
        if (module->ops[op].region && module->ops[op].kind == DTM_OP_REPEAT && copies && module->ops[op].attributes.copies > 1)
            module->ops[op].attributes.copies = copies;
    if (module && dtm_pipeline_run(module, &(dtm_pipeline_options){0})) {
        int64_t weights, states;
        dtm_op where = 0;
        int64_t most = peak_of(module, dtm_context_arena(context), &weights, &states, &where);
        dtm_memory_account m = dtm_memory_account_of(module);
        int64_t sum = m.weights + m.gradients + m.optimizer + m.activations + m.workspace + m.communication;
        bool good = sum == most && sum + m.fragmentation == module->arena_bytes && m.fragmentation >= 0 && m.peak == where &&
                    m.weights == weights && m.optimizer == states && m.gradients >= 0 && m.activations >= 0;
        if (!good) {
            printf("failed: %s on %s with %lld copies: %lld bytes alive at %s, not %lld at operator %u; weights %lld (%lld), "
                   "optimizer %lld (%lld)\n", path, mesh, (long long)copies, (long long)sum,
                   dtm_peak_text(module, &m, true, dtm_context_arena(context)), (long long)most, where, (long long)m.weights,
                   (long long)weights, (long long)m.optimizer, (long long)states);
            failures++;
        }
        programs++;
    } else {
        dtm_diagnostics_print(context, stdout, false);
        failures++;
    }
    if (module) dtm_module_destroy(module);
    dtm_context_destroy(context);
    unlink(name);
}

int main(void) {
    static const char *const models[] = {"tests/golden/gpt/model.dtm", "tests/golden/llama/model.dtm",
                                         "tests/golden/llama-masked/model.dtm"};
    static const char *const meshes[][2] = {{"one=1", ""},
                                            {"one=1", "microbatches 3"},
                                            {"dp=2,tp=2", "dp splits B; tp splits H, F, V"},
                                            {"dp=2,tp=2", "dp splits B; tp splits H, F, V, S; microbatches 4"},
                                            {"dp=2", "dp splits B; microbatches 2"}};
    static const int64_t copies[] = {2, 7, 8, 9, 13};
    for (int i = 0; i < 3; i++)
        for (int m = 0; m < 5; m++)
            for (int c = 0; c < 5; c++) check(models[i], meshes[m][0], meshes[m][1], copies[c]);
    static const char *const operators[] = {"attention", "columns", "elementwise", "loops", "microbatches", "norms",
                                            "order",     "shapes",  "slots",       "uneven"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        char path[256];
        snprintf(path, sizeof path, "tests/codegen/operators/%s.dtm", operators[i]);
        for (int64_t c = 0; c < 3; c++) check(path, "one=1", "", c ? 7 + c : 0);
    }
    printf("%d programs, %d failures\n", programs, failures);
    return failures != 0;
}
