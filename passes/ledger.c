/* The ledger of collectives and the contracts on it: see ledger.h. */
#include "passes/ledger.h"

#include "ir/storage.h"
#include "passes/cost_bytes.h"
#include "passes/explain.h"

#include <string.h>

typedef struct collector {
    dtm_ledger ledger;
    dtm_arena *arena;
    int64_t (*senders)[DTM_MAX_AXES]; /* their coordinates */
} collector;

/* ---- who sends ---- */

enum { SMALL_MESH = 64, MOST_SENDERS = 4096 };

/* Blocks shrink with the rank, and a ring passes on all of them but that of the next: along an axis of a large mesh it is the
 * first rank or one of the last two that sends most. Of a mesh of many axes the last but one is looked at only along the last
 * axes, those that count fastest in a group. Returns how many numbers there are. */
static int64_t numbers_along(const dtm_mesh *mesh, int axis, bool last_but_one, int64_t *numbers) {
    int64_t size = mesh->axes[axis].time ? 1 : mesh->axes[axis].size, count = 0;
    bool all = dtm_mesh_ranks(mesh) <= SMALL_MESH;
    for (int64_t i = 0; all && i < size; i++) numbers[count++] = i;
    if (all) return count;
    numbers[count++] = 0;
    if (size > 2 && last_but_one) numbers[count++] = size - 2;
    if (size > 1) numbers[count++] = size - 1;
    return count;
}

static void find_senders(collector *c, const dtm_mesh *mesh) {
    int64_t numbers[DTM_MAX_AXES][SMALL_MESH], counts[DTM_MAX_AXES], total = 1;
    for (int a = 0; a < mesh->count; a++) total *= counts[a] = numbers_along(mesh, a, false, numbers[a]);
    for (int a = mesh->count - 1; a >= 0; a--) {
        int64_t more = numbers_along(mesh, a, true, numbers[a]), others = total / counts[a];
        if (others * more > MOST_SENDERS) more = numbers_along(mesh, a, false, numbers[a]);
        total = others * (counts[a] = more);
    }
    c->ledger.senders = (size_t)total;
    c->senders = dtm_arena_alloc(c->arena, c->ledger.senders * sizeof *c->senders);
    for (int64_t i = 0; i < total; i++)
        for (int64_t a = mesh->count - 1, rest = i; a >= 0; rest /= counts[a--])
            c->senders[i][a] = numbers[a][rest % counts[a]];
}

/* ---- microbatches that differ in size ---- */

/* The sizes of a microbatch in whatever dimensions it is a block of, in one number: what is sent depends on nothing else. */
static int64_t microbatch_sizes(const dtm_module *module, const dtm_op_data *op, int axis, int64_t microbatch) {
    const dtm_mesh *mesh = &module->settings.mesh;
    int64_t sizes = 0, coordinates[DTM_MAX_AXES] = {0}, begin, size;
    coordinates[axis] = microbatch;
    for (uint32_t i = 0; i < op->n_operands; i++) {
        const dtm_type_data *type = dtm_value_type(module, op->operands[i]);
        for (int d = 0; d < type->rank; d++) {
            dtm_dim_layout first = type->layout[d];
            if (!first.count || first.splits[0].axis != axis) continue;
            first.count = 1;
            dtm_block_of(mesh, module->dims[type->dims[d]].size, &first, coordinates, &begin, &size);
            sizes = (int64_t)((uint64_t)sizes * 1000003 + (uint64_t)size + 1);
        }
    }
    return sizes;
}

static int time_axis(const dtm_mesh *mesh) {
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time) return a;
    return -1;
}

/* Microbatches of a size, and one of them. */
typedef struct alike {
    int64_t sizes, one, count;
} alike;

/* Balanced blocks have two sizes; in several dimensions there may be some more. */
static size_t group_microbatches(const collector *c, const dtm_module *module, const dtm_op_data *op, int64_t count,
                                 alike **out) {
    int axis = time_axis(&module->settings.mesh);
    size_t n = 0, capacity = 0;
    *out = NULL;
    for (int64_t m = 0; m < count; m++) {
        int64_t sizes = axis < 0 ? 0 : microbatch_sizes(module, op, axis, m);
        size_t i = 0;
        while (i < n && (*out)[i].sizes != sizes) i++;
        if (i == n) DTM_PUSH(c->arena, *out, n, capacity, ((alike){sizes, m, 0}));
        (*out)[i].count++;
    }
    return n;
}

static void count_sent(collector *c, dtm_module *module, dtm_ledger_entry *entry) {
    int axis = time_axis(&module->settings.mesh);
    alike *groups;
    size_t n = group_microbatches(c, module, dtm_op_get(module, entry->op), entry->copies, &groups);
    entry->sent_by = dtm_arena_alloc(c->arena, c->ledger.senders * sizeof *entry->sent_by);
    for (size_t s = 0; s < c->ledger.senders; s++) {
        for (size_t i = 0; i < n; i++) {
            if (axis >= 0) c->senders[s][axis] = groups[i].one;
            int64_t sent = dtm_bytes_times(groups[i].count * (entry->count / entry->copies),
                                           dtm_sent_by(module, entry->op, entry->cost.algorithm, c->senders[s]));
            entry->sent_by[s] = dtm_bytes_plus(entry->sent_by[s], sent);
        }
        if (entry->sent_by[s] > entry->sent) entry->sent = entry->sent_by[s];
    }
}

/* ---- entries ---- */

static void collect(dtm_module *module, dtm_op op, void *state) {
    collector *c = state;
    const dtm_op_data *data = dtm_op_get(module, op);
    if (!dtm_is_collective(data->kind) && data->kind != DTM_OP_SEND) return;
    dtm_ledger_entry entry = {.op = op, .kind = data->kind, .axes = data->attributes.axes, .copies = 1, .count = 1};
    entry.cost = dtm_collective_cost_of(module, op);
    if (!entry.cost.sends) return;
    entry.tensors = data->n_operands;
    for (dtm_op at = dtm_enclosing(module, op, DTM_OP_NONE); at; at = dtm_enclosing(module, at, DTM_OP_NONE)) {
        const dtm_op_data *around = dtm_op_get(module, at);
        if (around->kind == DTM_OP_REPEAT || around->kind == DTM_OP_MICROBATCH)
            entry.count *= around->attributes.copies;
        if (around->kind == DTM_OP_MICROBATCH) entry.copies *= around->attributes.copies;
        if (around->kind == DTM_OP_REPEAT && !entry.repeat) entry.repeat = around->attributes.name;
        if (around->kind >= DTM_OP_FORWARD && around->kind <= DTM_OP_UPDATE && !entry.phase) entry.phase = around->kind;
    }
    count_sent(c, module, &entry);
    if (!entry.sent) return;
    c->ledger.collectives += entry.count;
    c->ledger.time += (double)entry.count * entry.cost.time;
    DTM_PUSH(c->arena, c->ledger.entries, c->ledger.count, c->ledger.capacity, entry);
}

dtm_ledger dtm_ledger_of(dtm_module *module, dtm_arena *arena) {
    collector c = {.arena = arena};
    find_senders(&c, &module->settings.mesh);
    if (module->of_ranks) /* all of them have that coordinate */
        for (size_t s = 0; s < c.ledger.senders; s++) c.senders[s][module->settings.pipeline.axis] = module->rank;
    dtm_walk(module, collect, &c);
    for (size_t s = 0; s < c.ledger.senders; s++) {
        int64_t sent = 0;
        for (size_t i = 0; i < c.ledger.count; i++) sent = dtm_bytes_plus(sent, c.ledger.entries[i].sent_by[s]);
        if (sent > c.ledger.sent) c.ledger.sent = sent;
    }
    return c.ledger;
}

int64_t dtm_ledger_sent_on(const dtm_ledger *ledger, uint16_t axes) {
    int64_t most = 0;
    for (size_t s = 0; s < ledger->senders; s++) {
        int64_t sent = 0;
        for (size_t i = 0; i < ledger->count; i++)
            if (ledger->entries[i].axes == axes) sent = dtm_bytes_plus(sent, ledger->entries[i].sent_by[s]);
        if (sent > most) most = sent;
    }
    return most;
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

/* Of a pipeline, which of its ranks do not hold a contract: " on the ranks pp = 1". */
static const char *which_ranks(dtm_module *module) {
    const dtm_settings *s = &module->settings;
    if (!module->of_ranks) return "";
    return dtm_arena_printf(module->arena, " on the ranks %s = %lld", dtm_string_text(module->context, s->mesh.axes[s->pipeline.axis].name),
                            (long long)module->rank);
}

static bool check_contract(dtm_module *module, const dtm_ledger *ledger, const dtm_expect_rule *rule) {
    int64_t count = 0;
    for (size_t i = 0; i < ledger->count; i++)
        if (meets(module, rule, &ledger->entries[i]))
            count += is_repeat_place(module, rule) ? 1 : ledger->entries[i].count;
    if (rule->at_most ? (double)count <= rule->bound : (double)count == rule->bound) return true;
    dtm_error(module->context, rule->span, 701, "expected %s%lld %s%s%s, there are %lld%s",
              rule->at_most ? "at most " : "", (long long)rule->bound, dtm_op_rows[rule->collective].name,
              rule->place ? " in " : "", dtm_string_text(module->context, rule->place), (long long)count,
              which_ranks(module));
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

static void note_kinds(dtm_module *module, const dtm_memory_account *m) {
    dtm_note(module->context, (dtm_span){0, 0, 0},
             "weights %lld, gradients %lld, optimizer %lld, activations %lld, workspace %lld, communication %lld bytes, and "
             "%lld of fragmentation; most lives at %s",
             (long long)m->weights, (long long)m->gradients, (long long)m->optimizer, (long long)m->activations,
             (long long)m->workspace, (long long)m->communication, (long long)m->fragmentation,
             dtm_peak_text(module, m, true, module->arena));
}

static bool check_memory(dtm_module *module, const dtm_expect_rule *rule) {
    double bytes = (double)module->arena_bytes;
    if (rule->at_most ? bytes <= rule->bound : bytes == rule->bound) return true;
    dtm_memory_account m = dtm_memory_account_of(module);
    dtm_error(module->context, rule->span, 702, "expected %s%.0f bytes of memory a rank, it needs %.0f%s",
              rule->at_most ? "at most " : "", rule->bound, bytes, which_ranks(module));
    note_kinds(module, &m);
    return false;
}

bool dtm_ledger_check(dtm_module *module, const dtm_ledger *ledger) {
    bool good = true;
    for (size_t i = 0; i < module->settings.n_expects; i++) {
        const dtm_expect_rule *rule = &module->settings.expects[i];
        if (rule->kind == DTM_EXPECT_COLLECTIVE)
            good &= check_contract(module, ledger, rule);
        else if (rule->kind == DTM_EXPECT_MEMORY && module->arena_bytes)
            good &= check_memory(module, rule);
    }
    return good;
}

/* ---- an axis over the slower link that carries more than one over the faster ---- */

static const char *bytes_text(const dtm_module *module, double bytes) {
    dtm_text text = {module->arena, NULL, 0, 0};
    dtm_text_bytes(&text, bytes);
    return text.data;
}

/* What makes the largest kind of memory smaller. What is no weight at the peak of the update are its intermediates, as large as
 * the weights. */
static const char *help_memory(const dtm_module *module, const dtm_memory_account *m) {
    static const char weights[] = "an axis that splits the weights' largest dimensions would make it smaller";
    static const char batch[] = "more `microbatches`, a smaller batch, or an axis that splits it would make it smaller";
    bool in_update = m->peak && dtm_enclosing(module, m->peak, DTM_OP_UPDATE);
    int64_t of_weights = m->weights + m->gradients + m->optimizer;
    return in_update || of_weights > m->activations + m->workspace + m->communication ? weights : batch;
}

/* The machine is a model, and the program may run on another: so it is no error. */
void dtm_memory_warn(dtm_module *module) {
    const dtm_settings *settings = &module->settings;
    double has = settings->machine.memory;
    if (has <= 0 || (double)module->arena_bytes <= has) return;
    bool meshed = settings->mesh.count && settings->mesh.axes[0].span.file;
    dtm_memory_account m = dtm_memory_account_of(module);
    dtm_warning(module->context, meshed ? settings->mesh.axes[0].span : settings->train.span, 703,
                "a rank needs %s (%lld bytes) of memory%s, the machine has %s (%.0f bytes) a device",
                bytes_text(module, (double)module->arena_bytes), (long long)module->arena_bytes, which_ranks(module),
                bytes_text(module, has), has);
    dtm_note(module->context, settings->machine.span, "the machine is described here");
    note_kinds(module, &m);
    dtm_help(module->context, "%s", help_memory(module, &m));
}

void dtm_ledger_warn(dtm_module *module, const dtm_ledger *ledger) {
    const dtm_mesh *mesh = &module->settings.mesh;
    for (int slow = 0; slow < mesh->count; slow++)
        for (int fast = slow + 1; fast < mesh->count; fast++) {
            dtm_link a = dtm_link_of(module, (uint16_t)(1 << slow)), b = dtm_link_of(module, (uint16_t)(1 << fast));
            double on_slow = (double)dtm_ledger_sent_on(ledger, (uint16_t)(1 << slow));
            double on_fast = (double)dtm_ledger_sent_on(ledger, (uint16_t)(1 << fast));
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
