/* The ledger as a person reads it, and as JSON: see explain.h. */
#include "passes/explain.h"

#include "ir/calls.h"
#include "ir/storage.h"
#include "passes/alternatives.h"

#include <math.h>
#include <string.h>

void dtm_text_bytes(dtm_text *out, double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 5) bytes /= 1024, unit++;
    dtm_text_printf(out, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

void dtm_text_seconds(dtm_text *out, double seconds) {
    if (seconds < 1e-3)
        dtm_text_printf(out, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        dtm_text_printf(out, "%.1f ms", seconds * 1e3);
    else
        dtm_text_printf(out, "%.2f s", seconds);
}

typedef struct explainer {
    dtm_module *module;
    const dtm_explained_messages *messages; /* of a pipeline's rank */
    const dtm_explain_options *options;
    dtm_ledger ledger;
    double step_time;
    dtm_alternative *alternatives;
    size_t n_alternatives;
    dtm_arena *scratch;
    dtm_text *out;
} explainer;

static const char *string_text(const explainer *e, dtm_string s) {
    return dtm_string_text(e->module->context, s);
}

static const char *bytes_text(const explainer *e, double bytes) {
    dtm_text text = {e->scratch, NULL, 0, 0};
    dtm_text_bytes(&text, bytes);
    return text.data;
}

static const char *seconds_text(const explainer *e, double seconds) {
    dtm_text text = {e->scratch, NULL, 0, 0};
    dtm_text_seconds(&text, seconds);
    return text.data;
}

static const char *place_text(const explainer *e, const dtm_ledger_entry *entry) {
    if (!entry->repeat) return dtm_op_rows[entry->phase].name;
    return dtm_arena_printf(e->scratch, "%s %s", dtm_op_rows[entry->phase].name, string_text(e, entry->repeat));
}

static const char *axis_column(const explainer *e, const dtm_ledger_entry *entry) {
    return dtm_arena_printf(e->scratch, "%s %lld", dtm_axes_text(e->module, entry->axes, e->scratch),
                            (long long)entry->cost.group);
}

static const char *mesh_text(const explainer *e) {
    dtm_text text = {e->scratch, NULL, 0, 0};
    const dtm_mesh *mesh = &e->module->settings.mesh;
    int printed = 0;
    dtm_text_printf(&text, "{");
    for (int a = 0; a < mesh->count; a++)
        if (!mesh->axes[a].time)
            dtm_text_printf(&text, "%s %s = %lld", printed++ ? "," : "", string_text(e, mesh->axes[a].name),
                            (long long)mesh->axes[a].size);
    dtm_text_printf(&text, "%s}", printed ? " " : "");
    return text.data;
}

/* ---- the table ---- */

enum { COLUMNS = 10 };

/* Of the calls of the region op stands in, those that run beside another. */
static const char *hidden_by_pairs(const explainer *e, dtm_op loop, dtm_op region) {
    dtm_loop_calls calls;
    size_t all = 0, paired = 0;
    if (dtm_loop_calls_of(e->module, loop, e->scratch, &calls)) return "nothing";
    for (size_t i = 0; i < calls.count; i++) {
        all += calls.items[i].region == region;
        paired += calls.items[i].region == region && calls.items[i].end > calls.items[i].begin;
    }
    if (!paired) return "nothing";
    return dtm_arena_printf(e->scratch, "the pass of another microbatch, in %zu of %zu call%s", paired, all, dtm_plural((int64_t)all));
}

/* "2 products that read it, in steps both ways" */
static const char *hidden_in_steps(const explainer *e, dtm_op op) {
    size_t count;
    dtm_time_of_products(e->module, op, &count);
    bool both = dtm_collective_algorithm(dtm_op_get(e->module, op)) == DTM_ALGORITHM_BOTH_WAYS;
    const char *ways = both ? "in steps both ways" : "in steps";
    const char *what = dtm_op_get(e->module, op)->kind == DTM_OP_REDUCE_SCATTER ? "make" : "read";
    if (count == 1) return dtm_arena_printf(e->scratch, "the product that %ss it, %s", what, ways);
    return dtm_arena_printf(e->scratch, "%zu products that %s it, %s", count, what, ways);
}

/* Of what a stage sends: what the rank that gets it does meanwhile. */
static const char *hidden_by_calls(const explainer *e, dtm_op region) {
    const dtm_op_data *data = dtm_op_get(e->module, region);
    int stage = (int)data->attributes.number[DTM_REGION_STAGE];
    double waited = dtm_messages_waited(e->messages, (int)e->module->rank, stage, data->kind == DTM_OP_FORWARD);
    if (waited < 0.005) return "the calls that follow";
    if (waited > 0.995) return "nothing";
    return dtm_arena_printf(e->scratch, "the calls that follow, %.0f%% of its time", 100 * (1 - waited));
}

static const char *hidden_by(const explainer *e, dtm_op op) {
    const dtm_op_data *data = &e->module->ops[op];
    dtm_op loop = dtm_ordered_loop(e->module, op), region = loop ? dtm_called_region(e->module, op) : 0;
    if (dtm_is_apart(e->module, op)) {
        dtm_op from = op, before;
        while ((before = dtm_goes_on_from(e->module, from))) from = before;
        dtm_value last = dtm_root_of(e->module, e->module->ops[from].operands[e->module->ops[from].n_operands - 1]);
        return dtm_arena_printf(e->scratch, "what follows %s", dtm_value_name(e->module, last));
    }
    if (dtm_is_in_steps(e->module, op)) return hidden_in_steps(e, op);
    if (region && data->kind == DTM_OP_SEND) return hidden_by_calls(e, region);
    return region ? hidden_by_pairs(e, loop, region) : "nothing";
}

static void cells_of(const explainer *e, size_t index, const char *cells[COLUMNS]) {
    const dtm_ledger_entry *entry = &e->ledger.entries[index];
    cells[0] = dtm_arena_printf(e->scratch, "%zu", index + 1);
    cells[1] = place_text(e, entry);
    cells[2] = dtm_op_rows[entry->kind].name;
    cells[3] = axis_column(e, entry);
    cells[4] = dtm_arena_printf(e->scratch, "%lld", (long long)entry->count);
    cells[5] = bytes_text(e, (double)entry->cost.payload);
    cells[6] = bytes_text(e, (double)entry->sent);
    cells[7] = entry->cost.link.name;
    cells[8] = seconds_text(e, entry->cost.time * (double)entry->count);
    cells[9] = hidden_by(e, entry->op);
}

static void print_table(const explainer *e) {
    static const char *const head[COLUMNS] = {"#",       "when",        "what", "axis", "count",
                                              "payload", "sent a rank", "link", "time", "hidden by"};
    static const bool right[COLUMNS] = {true, false, false, false, true, true, true, false, true, false};
    size_t rows = e->ledger.count + 1, widths[COLUMNS] = {0};
    const char *(*cells)[COLUMNS] = dtm_arena_alloc(e->scratch, rows * sizeof *cells);
    memcpy(cells[0], head, sizeof head);
    for (size_t i = 0; i < e->ledger.count; i++) cells_of(e, i, cells[i + 1]);
    for (size_t r = 0; r < rows; r++)
        for (int c = 0; c < COLUMNS; c++)
            if (strlen(cells[r][c]) > widths[c]) widths[c] = strlen(cells[r][c]);
    for (size_t r = 0; r < rows; r++) {
        for (int c = 0; c < COLUMNS; c++) {
            if (c == COLUMNS - 1)
                dtm_text_printf(e->out, "  %s", cells[r][c]);
            else
                dtm_text_printf(e->out, right[c] ? "  %*s" : "  %-*s", (int)widths[c], cells[r][c]);
        }
        dtm_text_printf(e->out, "\n");
    }
}

/* ---- reasons ---- */

/* The first name of what a collective moves, as the source has it: "p" of p.term. */
static const char *subject_of(const explainer *e, const dtm_op_data *op) {
    const char *name = dtm_value_name(e->module, op->n_results ? op->results[0] : op->operands[0]);
    size_t length = strcspn(name, ".");
    if (length == 0) length = strlen(name);
    return dtm_arena_printf(e->scratch, "%.*s", (int)length, name);
}

static const char *line_text(const explainer *e, const dtm_op_data *op) {
    if (!op->place.line) return "";
    if (op->place.file) return dtm_arena_printf(e->scratch, ", %s:%u", string_text(e, op->place.file), op->place.line);
    return dtm_arena_printf(e->scratch, ", line %u", op->place.line);
}

static void print_reason(const explainer *e, size_t index) {
    const dtm_ledger_entry *entry = &e->ledger.entries[index];
    const dtm_op_data *op = dtm_op_get(e->module, entry->op);
    dtm_text_printf(e->out, "  %2zu  %s%s", index + 1, subject_of(e, op), line_text(e, op));
    if (entry->tensors > 1) dtm_text_printf(e->out, " and %u more", entry->tensors - 1);
    if (op->why) dtm_text_printf(e->out, ": %s", string_text(e, op->why));
    dtm_text_printf(e->out, "\n");
}

/* ---- the cheapest change that would remove a line: one line a change, with all that it removes ---- */

static void print_numbers(const explainer *e, const dtm_alternative **without, const dtm_alternative *edit) {
    const char *before = "";
    for (size_t i = 0; i < e->ledger.count; i++) {
        if (without[i] != edit) continue;
        size_t end = i;
        while (end + 1 < e->ledger.count && without[end + 1] == edit) end++;
        if (end == i)
            dtm_text_printf(e->out, "%s%zu", before, i + 1);
        else
            dtm_text_printf(e->out, "%s%zu-%zu", before, i + 1, end + 1);
        before = ", ";
        i = end;
    }
}

static void print_advice(const explainer *e) {
    const dtm_alternative **without = dtm_arena_alloc(e->scratch, (e->ledger.count + 1) * sizeof *without);
    for (size_t i = 0; i < e->ledger.count; i++)
        without[i] = dtm_alternative_without(e->module, &e->ledger.entries[i], e->alternatives, e->n_alternatives);
    for (size_t a = 0; a < e->n_alternatives; a++) {
        const dtm_alternative *edit = &e->alternatives[a];
        bool used = false;
        for (size_t i = 0; i < e->ledger.count; i++) used |= without[i] == edit;
        if (!used) continue;
        dtm_text_printf(e->out, "  gone with  %s: ", edit->edit);
        print_numbers(e, without, edit);
        dtm_text_printf(e->out, "; then %s sent instead of %s, a step of %s instead of %s\n",
                        bytes_text(e, (double)edit->ledger.sent), bytes_text(e, (double)e->ledger.sent),
                        seconds_text(e, edit->step_time), seconds_text(e, e->step_time));
    }
}

/* What the choice of least time, instead of the first dimension listed, would save: where that is worth a word. */
static double saved_by(const explainer *e, const dtm_alternative *by_cost) {
    double saved = e->step_time - by_cost->step_time;
    return saved < 0.005 * e->step_time ? 0 : saved;
}

static void print_by_cost(const explainer *e, const dtm_module *source) {
    size_t count = 0;
    dtm_alternative *all = source ? dtm_alternatives_by_cost(source, e->scratch, &count) : NULL;
    for (size_t i = 0; i < count; i++) {
        double saved = saved_by(e, &all[i]);
        if (saved == 0) continue;
        const char *differences = dtm_alternative_differences(e->module, &all[i], e->scratch);
        dtm_text_printf(e->out, "  by cost would save %s of %s a step: %s%s%s%s\n", seconds_text(e, saved),
                        seconds_text(e, e->step_time), all[i].edit, differences ? " (laid out in another way: " : "",
                        differences ? differences : "", differences ? ")" : "");
    }
    dtm_alternatives_destroy(all, count);
}

/* ---- totals ---- */

static void print_totals(const explainer *e) {
    uint16_t done[64];
    size_t n_done = 0;
    for (size_t i = 0; i < e->ledger.count; i++) {
        uint16_t axes = e->ledger.entries[i].axes;
        bool seen = false;
        for (size_t j = 0; j < n_done; j++) seen |= done[j] == axes;
        if (seen || n_done == 64) continue;
        done[n_done++] = axes;
        int64_t count = 0;
        double sent = (double)dtm_ledger_sent_on(&e->ledger, axes), time = 0;
        for (size_t j = i; j < e->ledger.count; j++) {
            const dtm_ledger_entry *entry = &e->ledger.entries[j];
            if (entry->axes != axes) continue;
            count += entry->count;
            time += entry->cost.time * (double)entry->count;
        }
        dtm_text_printf(e->out, "  total on %-8s %lld collective%s, %s sent a rank, %s over the %s\n",
                        dtm_axes_text(e->module, axes, e->scratch), (long long)count, dtm_plural(count), bytes_text(e, sent),
                        seconds_text(e, time), e->ledger.entries[i].cost.link.name);
    }
}

static const char *machine_name(const explainer *e) {
    dtm_machine machine = dtm_machine_of(e->module);
    return machine.name ? string_text(e, machine.name) : "two CPU cores (no `machine` section)";
}

/* ---- memory ---- */

static void print_memory(const explainer *e) {
    if (!e->module->arena_bytes) return;
    dtm_memory_account m = dtm_memory_account_of(e->module);
    dtm_text_printf(e->out,
                    "\n  memory a rank   %s: weights %s, gradients %s, optimizer %s, activations %s, workspace %s, "
                    "communication %s\n",
                    bytes_text(e, (double)e->module->arena_bytes), bytes_text(e, (double)m.weights),
                    bytes_text(e, (double)m.gradients), bytes_text(e, (double)m.optimizer),
                    bytes_text(e, (double)m.activations), bytes_text(e, (double)m.workspace),
                    bytes_text(e, (double)m.communication));
    dtm_text_printf(e->out, "                  and %s of fragmentation\n", bytes_text(e, (double)m.fragmentation));
    int64_t beside = dtm_workspace_of_apart(e->module, NULL) + dtm_workspace_of_pairs(e->module);
    if (beside)
        dtm_text_printf(e->out, "                  of communication %s are for what is under way beside others\n", bytes_text(e, (double)beside));
    dtm_text_printf(e->out, "                  most lives at %s\n", dtm_peak_text(e->module, &m, true, e->scratch));
    dtm_machine machine = dtm_machine_of(e->module);
    if (machine.memory > 0 && (double)e->module->arena_bytes > machine.memory)
        dtm_text_printf(e->out, "                  more than the machine's %s a device\n",
                        bytes_text(e, machine.memory));
}

static void explain_text(const explainer *e, const dtm_module *source) {
    dtm_text_printf(e->out, "%s on %s, machine: %s\n", e->options->file, mesh_text(e), machine_name(e));
    if (e->module->of_ranks)
        dtm_text_printf(e->out, "ranks with %s = %lld: ", string_text(e, e->module->settings.mesh.axes[e->module->settings.pipeline.axis].name),
                        (long long)e->module->rank);
    dtm_text_printf(e->out, "%lld collective%s%s a step, %s sent by each rank\n", (long long)e->ledger.collectives,
                    dtm_plural(e->ledger.collectives), e->module->of_ranks ? " and messages" : "", bytes_text(e, (double)e->ledger.sent));
    if (e->ledger.count) {
        dtm_text_printf(e->out, "\n");
        print_table(e);
        dtm_text_printf(e->out, "\n");
        print_totals(e);
        dtm_text_printf(e->out, "\n");
        for (size_t i = 0; i < e->ledger.count; i++) print_reason(e, i);
        dtm_text_printf(e->out, "\n");
    }
    size_t before = e->out->length;
    if (e->ledger.count) print_advice(e);
    print_by_cost(e, source);
    if (e->ledger.count && e->out->length == before) e->out->length--; /* no advice: not two empty lines */
    print_memory(e);
}

/* ---- JSON ---- */

static void print_json_string(dtm_text *out, const char *text) {
    dtm_text_printf(out, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            dtm_text_printf(out, "\\%c", c);
        else if (c < 0x20)
            dtm_text_printf(out, "\\u%04x", c);
        else
            dtm_text_append(out, text, 1);
    }
    dtm_text_printf(out, "\"");
}

static void print_json_number(dtm_text *out, const char *key, double number) {
    dtm_text_printf(out, ",\"%s\":", key);
    if (isfinite(number))
        dtm_text_number(out, number);
    else
        dtm_text_printf(out, "null");
}

/* A change of one line: what is sent then by a rank, and how long a step takes. */
static void print_json_edit(const explainer *e, const dtm_alternative *edit) {
    dtm_text_printf(e->out, "{\"edit\":");
    print_json_string(e->out, edit->edit);
    print_json_number(e->out, "sent", (double)edit->ledger.sent);
    print_json_number(e->out, "step_seconds", edit->step_time);
    dtm_text_printf(e->out, "}");
}

static void explain_json_entry(const explainer *e, size_t index) {
    const dtm_ledger_entry *entry = &e->ledger.entries[index];
    const dtm_op_data *op = dtm_op_get(e->module, entry->op);
    dtm_text_printf(e->out, "%s{\"phase\":\"%s\",\"repeat\":", index ? "," : "", dtm_op_rows[entry->phase].name);
    print_json_string(e->out, string_text(e, entry->repeat));
    dtm_text_printf(e->out, ",\"collective\":\"%s\",\"axes\":\"%s\"", dtm_op_rows[entry->kind].name,
                    dtm_axes_text(e->module, entry->axes, e->scratch));
    print_json_number(e->out, "ranks", (double)entry->cost.group);
    print_json_number(e->out, "count", (double)entry->count);
    print_json_number(e->out, "payload", (double)entry->cost.payload);
    print_json_number(e->out, "sent", (double)entry->sent);
    dtm_text_printf(e->out, ",\"link\":\"%s\"", entry->cost.link.name);
    dtm_text_printf(e->out, ",\"hidden_by\":\"%s\"", hidden_by(e, entry->op));
    print_json_number(e->out, "seconds", entry->cost.time * (double)entry->count);
    print_json_number(e->out, "tensors", entry->tensors);
    dtm_text_printf(e->out, ",\"value\":");
    print_json_string(e->out, dtm_value_name(e->module, op->n_results ? op->results[0] : op->operands[0]));
    print_json_number(e->out, "line", op->place.line);
    dtm_text_printf(e->out, ",\"why\":");
    print_json_string(e->out, string_text(e, op->why));
    const dtm_alternative *edit = dtm_alternative_without(e->module, entry, e->alternatives, e->n_alternatives);
    dtm_text_printf(e->out, ",\"gone_with\":");
    if (edit) print_json_edit(e, edit);
    else dtm_text_printf(e->out, "null");
    dtm_text_printf(e->out, "}");
}

static void explain_json_by_cost(const explainer *e, const dtm_module *source) {
    size_t count = 0, printed = 0;
    dtm_alternative *all = source ? dtm_alternatives_by_cost(source, e->scratch, &count) : NULL;
    dtm_text_printf(e->out, ",\"by_cost\":[");
    for (size_t i = 0; i < count; i++) {
        if (saved_by(e, &all[i]) == 0) continue;
        if (printed++) dtm_text_printf(e->out, ",");
        print_json_edit(e, &all[i]);
    }
    dtm_text_printf(e->out, "]");
    dtm_alternatives_destroy(all, count);
}

static void explain_json(const explainer *e, const dtm_module *source) {
    dtm_text_printf(e->out, "{\"file\":");
    print_json_string(e->out, e->options->file);
    dtm_text_printf(e->out, ",\"mesh\":{");
    const dtm_mesh *mesh = &e->module->settings.mesh;
    int printed = 0;
    for (int a = 0; a < mesh->count; a++)
        if (!mesh->axes[a].time)
            dtm_text_printf(e->out, "%s\"%s\":%lld", printed++ ? "," : "", string_text(e, mesh->axes[a].name),
                            (long long)mesh->axes[a].size);
    dtm_text_printf(e->out, "}");
    if (e->module->of_ranks)
        dtm_text_printf(e->out, ",\"ranks\":{\"%s\":%lld}", string_text(e, mesh->axes[e->module->settings.pipeline.axis].name),
                        (long long)e->module->rank);
    dtm_text_printf(e->out, ",\"machine\":");
    print_json_string(e->out, machine_name(e));
    print_json_number(e->out, "collectives", (double)e->ledger.collectives);
    print_json_number(e->out, "sent", (double)e->ledger.sent);
    print_json_number(e->out, "step_seconds", e->step_time);
    dtm_text_printf(e->out, ",\"entries\":[");
    for (size_t i = 0; i < e->ledger.count; i++) explain_json_entry(e, i);
    dtm_text_printf(e->out, "]");
    explain_json_by_cost(e, source);
    dtm_memory_account m = e->module->arena_bytes ? dtm_memory_account_of(e->module) : (dtm_memory_account){0};
    dtm_text_printf(e->out, ",\"memory\":{\"arena\":%lld", (long long)e->module->arena_bytes);
    print_json_number(e->out, "weights", (double)m.weights);
    print_json_number(e->out, "gradients", (double)m.gradients);
    print_json_number(e->out, "optimizer", (double)m.optimizer);
    print_json_number(e->out, "activations", (double)m.activations);
    print_json_number(e->out, "workspace", (double)m.workspace);
    print_json_number(e->out, "communication", (double)m.communication);
    print_json_number(e->out, "fragmentation", (double)m.fragmentation);
    if (e->module->arena_bytes) {
        dtm_text_printf(e->out, ",\"peak\":");
        print_json_string(e->out, dtm_peak_text(e->module, &m, true, e->scratch));
    }
    dtm_text_printf(e->out, "}}\n");
}

static void explain_one(const dtm_module *source, dtm_module *module, const dtm_explained_messages *messages,
                        const dtm_explain_options *options, dtm_text *out) {
    explainer e = {.module = module, .messages = messages, .options = options, .scratch = dtm_arena_create(), .out = out};
    e.ledger = dtm_ledger_of(module, e.scratch);
    e.step_time = dtm_step_time(module);
    e.alternatives = source ? dtm_alternatives_of(source, e.scratch, &e.n_alternatives) : NULL;
    if (options->json) explain_json(&e, source);
    else explain_text(&e, source);
    dtm_alternatives_destroy(e.alternatives, e.n_alternatives);
    dtm_arena_destroy(e.scratch);
}

/* Of a pipeline for each coordinate on its axis; no changes are tried. */
void dtm_explain(const dtm_module *source, dtm_module *module, const dtm_explain_options *options, dtm_text *out) {
    dtm_arena *arena = dtm_arena_create();
    const dtm_explained_messages *messages = module->n_ranks ? dtm_explained_messages_of(module, arena) : NULL;
    if (!module->n_ranks) explain_one(source, module, NULL, options, out);
    for (size_t r = 0; r < module->n_ranks; r++) {
        if (r && !options->json) dtm_text_printf(out, "\n");
        if (options->json) dtm_text_printf(out, r ? "," : "[");
        explain_one(NULL, module->ranks[r], messages, options, out);
    }
    if (module->n_ranks && options->json) dtm_text_printf(out, "]\n");
    dtm_arena_destroy(arena);
}
