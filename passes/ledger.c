/* The ledger of collectives and the contracts on it: see ledger.h. */
#include "passes/ledger.h"

#include "ir/storage.h"
#include "passes/explain.h"

#include <string.h>

typedef struct collector {
    dtm_ledger ledger;
    dtm_arena *arena;
} collector;

static void collect(dtm_module *module, dtm_op op, void *state) {
    collector *c = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (!dtm_is_collective(data->kind)) return;
    dtm_ledger_entry entry = {.op = op, .kind = data->kind, .axes = data->attributes.axes, .copies = 1, .count = 1};
    entry.cost = dtm_collective_cost_of(module, op);
    if (!entry.cost.sends || entry.cost.sent == 0) return;
    entry.tensors = data->n_operands;
    for (dtm_op at = dtm_enclosing(module, op, DTM_OP_NONE); at; at = dtm_enclosing(module, at, DTM_OP_NONE)) {
        const dtm_op_data *around = dtm_op_get(module, at);
        if (around->kind == DTM_OP_REPEAT || around->kind == DTM_OP_MICROBATCH)
            entry.count *= around->attributes.copies;
        if (around->kind == DTM_OP_MICROBATCH) entry.copies *= around->attributes.copies;
        if (around->kind == DTM_OP_REPEAT && !entry.repeat) entry.repeat = around->attributes.name;
        if (around->kind >= DTM_OP_FORWARD && around->kind <= DTM_OP_UPDATE && !entry.phase) entry.phase = around->kind;
    }
    c->ledger.collectives += entry.count;
    c->ledger.sent += entry.count * entry.cost.sent;
    c->ledger.time += (double)entry.count * entry.cost.time;
    DTM_PUSH(c->arena, c->ledger.entries, c->ledger.count, c->ledger.capacity, entry);
}

dtm_ledger dtm_ledger_of(dtm_module *module, dtm_arena *arena) {
    collector c = {{0}, arena};
    dtm_walk(module, collect, &c);
    return c.ledger;
}

static void add_time(dtm_module *module, dtm_op op, void *state) {
    const dtm_op_data *data = dtm_op_get(module, op);
    if (data->body) return;
    double count = 1;
    for (dtm_op at = dtm_enclosing(module, op, DTM_OP_NONE); at; at = dtm_enclosing(module, at, DTM_OP_NONE)) {
        const dtm_op_data *around = dtm_op_get(module, at);
        if (around->kind == DTM_OP_REPEAT || around->kind == DTM_OP_MICROBATCH)
            count *= (double)around->attributes.copies;
    }
    bool collective = dtm_is_collective(data->kind);
    *(double *)state += count * (collective ? dtm_collective_cost_of(module, op).time : dtm_op_time(module, op));
}

double dtm_step_time(dtm_module *module) {
    double time = 0;
    dtm_walk(module, add_time, &time);
    return time;
}

const char *dtm_axes_text(const dtm_module *module, uint16_t axes, dtm_arena *arena) {
    dtm_text text = {arena, NULL, 0, 0};
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (axes >> a & 1)
            dtm_text_printf(&text, "%s%s", text.length ? "." : "",
                            dtm_string_text(module->context, module->settings.mesh.axes[a].name));
    return text.length ? text.data : "-";
}

/* ---- contracts ---- */

/* Whether an entry lies in the place a contract names; a repeat's name means one copy, forward and backward. */
static bool in_place(const dtm_module *module, const dtm_expect_rule *rule, const dtm_ledger_entry *entry) {
    if (!rule->place) return true;
    const char *place = dtm_string_text(module->context, rule->place);
    if (strcmp(place, dtm_op_rows[entry->phase].name) == 0) return true;
    return entry->repeat == rule->place && entry->phase != DTM_OP_UPDATE;
}

static bool is_repeat_place(const dtm_module *module, const dtm_expect_rule *rule) {
    const char *place = dtm_string_text(module->context, rule->place);
    return rule->place && strcmp(place, "forward") && strcmp(place, "backward") && strcmp(place, "update");
}

static bool meets(const dtm_module *module, const dtm_expect_rule *rule, const dtm_ledger_entry *entry) {
    if (rule->kind != DTM_EXPECT_COLLECTIVE || entry->kind != rule->collective) return false;
    if (rule->axes && (entry->axes & rule->axes) == 0) return false;
    return in_place(module, rule, entry);
}

static bool check_contract(dtm_module *module, const dtm_ledger *ledger, const dtm_expect_rule *rule) {
    int64_t count = 0;
    for (size_t i = 0; i < ledger->count; i++)
        if (meets(module, rule, &ledger->entries[i]))
            count += is_repeat_place(module, rule) ? 1 : ledger->entries[i].count;
    if (rule->at_most ? (double)count <= rule->bound : (double)count == rule->bound) return true;
    dtm_error(module->context, rule->span, 701, "expected %s%lld %s%s%s, there are %lld",
              rule->at_most ? "at most " : "", (long long)rule->bound, dtm_op_rows[rule->collective].name,
              rule->place ? " in " : "", dtm_string_text(module->context, rule->place), (long long)count);
    int named = 0;
    for (size_t i = 0; i < ledger->count && named < 4; i++) {
        if (!meets(module, rule, &ledger->entries[i])) continue;
        const dtm_op_data *op = dtm_op_get(module, ledger->entries[i].op);
        named++;
        dtm_note(module->context, op->span, "%s%s%s", dtm_value_name(module, op->results[0]), op->why ? ": " : "",
                 dtm_string_text(module->context, op->why));
    }
    return false;
}

static bool check_memory(dtm_module *module, const dtm_expect_rule *rule) {
    double bytes = (double)module->arena_bytes;
    if (rule->at_most ? bytes <= rule->bound : bytes == rule->bound) return true;
    dtm_memory_account m = dtm_memory_account_of(module);
    dtm_error(module->context, rule->span, 702, "expected %s%.0f bytes of memory a rank, it needs %.0f",
              rule->at_most ? "at most " : "", rule->bound, bytes);
    dtm_note(module->context, (dtm_span){0, 0, 0},
             "weights %lld, gradients %lld, optimizer %lld, activations %lld, workspace %lld, communication %lld bytes",
             (long long)m.weights, (long long)m.gradients, (long long)m.optimizer, (long long)m.activations,
             (long long)m.workspace, (long long)m.communication);
    return false;
}

bool dtm_ledger_check(dtm_module *module, const dtm_ledger *ledger) {
    bool good = true;
    for (size_t i = 0; i < module->settings.n_expects; i++) {
        const dtm_expect_rule *rule = &module->settings.expects[i];
        if (rule->kind == DTM_EXPECT_COLLECTIVE)
            good &= check_contract(module, ledger, rule);
        else if (module->arena_bytes)
            good &= check_memory(module, rule);
    }
    return good;
}

/* ---- an axis over the slower link that carries more than one over the faster ---- */

static double sent_on(const dtm_ledger *ledger, int axis) {
    double sent = 0;
    for (size_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].axes == 1u << axis)
            sent += (double)ledger->entries[i].cost.sent * (double)ledger->entries[i].count;
    return sent;
}

static const char *bytes_text(const dtm_module *module, double bytes) {
    dtm_text text = {module->arena, NULL, 0, 0};
    dtm_text_bytes(&text, bytes);
    return text.data;
}

void dtm_ledger_warn(dtm_module *module, const dtm_ledger *ledger) {
    const dtm_mesh *mesh = &module->settings.mesh;
    for (int slow = 0; slow < mesh->count; slow++)
        for (int fast = slow + 1; fast < mesh->count; fast++) {
            dtm_link a = dtm_link_of(module, (uint16_t)(1 << slow)), b = dtm_link_of(module, (uint16_t)(1 << fast));
            double on_slow = sent_on(ledger, slow), on_fast = sent_on(ledger, fast);
            bool sized = mesh->axes[slow].size > 1 && mesh->axes[fast].size > 1;
            if (!sized || mesh->axes[fast].time || a.bandwidth >= b.bandwidth || on_slow <= 2 * on_fast) continue;
            const char *x = dtm_string_text(module->context, mesh->axes[slow].name);
            const char *y = dtm_string_text(module->context, mesh->axes[fast].name);
            dtm_warning(module->context, mesh->axes[slow].span, 810,
                        "axis %s sends %s a rank and step over the %s, axis %s %s over the faster %s", x,
                        bytes_text(module, on_slow), a.name, y, bytes_text(module, on_fast), b.name);
            dtm_help(module->context, "the mesh has its slowest links first: put %s after %s", x, y);
        }
}
