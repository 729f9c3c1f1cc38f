/* check: mesh, machine, `--mesh` and `--set`, and what all sections share (sections.h). */
#include "frontend/sections.h"

#include "frontend/words.h"

#include <ctype.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

static const dtm_span nowhere = {0, 0, 0};

const dtm_range dtm_range_positive = {DBL_MIN, DBL_MAX, "more than 0"};
const dtm_range dtm_range_not_negative = {0, DBL_MAX, "at least 0"};
const dtm_range dtm_range_fraction = {0, 1 - DBL_EPSILON / 2, "at least 0 and less than 1"};

/* ---- entries ---- */

void dtm_entries_add(dtm_checker *c, dtm_entries *entries, dtm_name key, const dtm_expr *value) {
    DTM_PUSH(c->arena, entries->items, entries->count, entries->capacity, ((dtm_entry){key, value}));
}

static dtm_entry *find_entry(const dtm_entries *entries, dtm_string key) {
    for (size_t i = 0; i < entries->count; i++)
        if (entries->items[i].key.text == key) return &entries->items[i];
    return NULL;
}

const dtm_expr *dtm_entries_find(dtm_checker *c, const dtm_entries *entries, const char *key) {
    const dtm_entry *entry = find_entry(entries, dtm_string_of(c->context, key));
    return entry ? entry->value : NULL;
}

static bool is_among(const char *name, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(words[i], name) == 0) return true;
    return false;
}

void dtm_section_help(dtm_checker *c, dtm_string name, const char *const *words, size_t n) {
    dtm_string candidates[32];
    dtm_text list = {.arena = c->arena};
    for (size_t i = 0; i < n && i < 32; i++) {
        candidates[i] = dtm_string_of(c->context, words[i]);
        dtm_text_printf(&list, "%s%s", i ? ", " : "", words[i]);
    }
    dtm_string nearest = dtm_string_nearest(c->context, dtm_checker_text(c, name), candidates, n < 32 ? n : 32);
    if (nearest) dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    else dtm_help(c->context, "there %s %s", n == 1 ? "is" : "are", list.data);
}

bool dtm_entries_check(dtm_checker *c, const dtm_entries *entries, const char *of, const char *const *words, size_t n) {
    bool good = true;
    for (size_t i = 0; i < entries->count; i++) {
        dtm_name key = entries->items[i].key;
        const char *name = dtm_checker_text(c, key.text);
        const dtm_entry *earlier = find_entry(entries, key.text);
        if (!is_among(name, words, n)) {
            dtm_error(c->context, key.span, 209, "%s has no setting `%s`", of, name);
            dtm_section_help(c, key.text, words, n);
            good = false;
        } else if (earlier != &entries->items[i]) {
            dtm_error(c->context, key.span, 207, "`%s` is set twice", name);
            dtm_note(c->context, earlier->key.span, "first here");
            dtm_help(c->context, "remove one of the two");
            good = false;
        }
    }
    return good;
}

void dtm_entries_override(dtm_checker *c, dtm_entries *entries, const dtm_entries *sets, const char *const *words,
                          size_t n) {
    for (size_t i = 0; i < sets->count; i++) {
        dtm_entry set = sets->items[i];
        if (!is_among(dtm_checker_text(c, set.key.text), words, n)) continue;
        dtm_entry *entry = find_entry(entries, set.key.text);
        if (entry) {
            dtm_source_override_by(c->context, dtm_span_join(entry->key.span, entry->value->span), set.key.span);
            *entry = set;
        }
        else dtm_entries_add(c, entries, set.key, set.value);
    }
}

bool dtm_entries_of_call(dtm_checker *c, const dtm_expr *expr, const char *first, dtm_entries *entries) {
    const dtm_call *call = expr->call;
    const char *callee = dtm_checker_text(c, call->callee.text);
    if (call->count > 1 || call->body) {
        dtm_error(c->context, call->count > 1 ? call->clauses[1].span : expr->span, 232,
                  "`%s` takes settings alone: %s(NAME = VALUE, ..)", callee, callee);
        return false;
    }
    for (size_t i = 0; i < call->clauses[0].count; i++) {
        dtm_argument argument = call->clauses[0].arguments[i];
        if (!argument.key.text && (i || !first)) {
            dtm_error(c->context, argument.value->span, 232, "this value of `%s` needs its name", callee);
            dtm_help(c->context, "write NAME = VALUE, as in %s", first ? "cosine(peak = 1e-3, warmup = 20)" : "adamw(lr = 1e-3)");
            return false;
        }
        if (!argument.key.text) argument.key = (dtm_name){dtm_string_of(c->context, first), argument.value->span};
        dtm_entries_add(c, entries, argument.key, argument.value);
    }
    return true;
}

/* ---- numbers and their units ---- */

static const struct {
    const char *name, *example;
} units[] = {
    [DTM_UNIT_NONE] = {"a number without a unit", "1"},
    [DTM_UNIT_BYTES] = {"bytes", "80 GB"},
    [DTM_UNIT_BYTES_PER_SECOND] = {"bytes a second", "900 GB/s"},
    [DTM_UNIT_SECONDS] = {"seconds", "5 us"},
    [DTM_UNIT_FLOPS_PER_SECOND] = {"operations a second", "60 TFLOP/s"},
    [DTM_UNIT_HERTZ] = {"hertz", "2 GHz"},
    [DTM_UNIT_WATTS] = {"watts", "700 W"},
};

enum { NO_ONE_UNIT = -1 };

/* The unit of an expression: sums of one unit keep it, products with plain numbers too. */
static int unit_of(const dtm_expr *expr) {
    if (expr->kind == DTM_EXPR_NUMBER) return expr->unit;
    if (expr->kind == DTM_EXPR_NEGATE) return unit_of(expr->left);
    if (expr->kind != DTM_EXPR_BINARY) return DTM_UNIT_NONE;
    int left = unit_of(expr->left), right = unit_of(expr->right);
    bool sum = expr->operator == DTM_OPERATOR_ADD || expr->operator == DTM_OPERATOR_SUBTRACT;
    if (right == DTM_UNIT_NONE && (left == DTM_UNIT_NONE || !sum)) return left;
    if (left == DTM_UNIT_NONE && expr->operator == DTM_OPERATOR_MULTIPLY) return right;
    if (left != right || left == NO_ONE_UNIT) return NO_ONE_UNIT;
    return sum ? left : expr->operator == DTM_OPERATOR_DIVIDE ? (int)DTM_UNIT_NONE : NO_ONE_UNIT;
}

static bool check_unit(dtm_checker *c, const dtm_expr *expr, const char *what, dtm_unit wanted) {
    int unit = unit_of(expr);
    if (unit == (int)wanted || (c->dump && unit == DTM_UNIT_NONE)) return true;
    if (wanted == DTM_UNIT_NONE)
        dtm_error(c->context, expr->span, 231, "%s is a number without a unit", what);
    else
        dtm_error(c->context, expr->span, 231, "%s is measured in %s, not in %s", what, units[wanted].name,
                  unit == NO_ONE_UNIT     ? "a mixture of units"
                  : unit == DTM_UNIT_NONE ? "plain numbers"
                                          : units[unit].name);
    if (wanted == DTM_UNIT_NONE) dtm_help(c->context, "leave the unit out");
    else dtm_help(c->context, "write it like %s", units[wanted].example);
    return false;
}

bool dtm_section_number(dtm_checker *c, const dtm_expr *expr, const char *what, dtm_unit unit, dtm_range range,
                        double *value) {
    if (!dtm_checker_number(c, expr, value) || !check_unit(c, expr, what, unit)) return false;
    if (*value >= range.least && *value <= range.most) return true; /* no NaN passes */
    dtm_text text = {.arena = c->arena};
    dtm_text_number(&text, *value);
    dtm_error(c->context, expr->span, 230, "%s must be %s, it is %s", what, range.text,
              *value == *value ? text.data : "no number");
    return false;
}

bool dtm_section_whole(dtm_checker *c, const dtm_expr *expr, const char *what, int64_t least, int64_t *value) {
    return check_unit(c, expr, what, DTM_UNIT_NONE) && dtm_checker_integer(c, expr, least, what, value);
}

/* ---- mesh ---- */

static const double most_ranks = INT32_MAX; /* MPI counts ranks in int */

static bool add_axis(dtm_checker *c, dtm_mesh *mesh, dtm_string name, int64_t size, dtm_span span) {
    const char *text = dtm_checker_text(c, name);
    for (int a = 0; a < mesh->count; a++) {
        if (mesh->axes[a].name != name) continue;
        dtm_error(c->context, span, 402, "the mesh has two axes `%s`", text);
        if (mesh->axes[a].span.file) dtm_note(c->context, mesh->axes[a].span, "first here");
        dtm_help(c->context, "give one of them another name, or make them one axis");
        return false;
    }
    if (dtm_word_keyword(c->context, name, DTM_SECTION_PARALLEL)) {
        dtm_error(c->context, span, 402, "an axis cannot be called `%s`: in `parallel` a line begins with it", text);
        dtm_help(c->context, "give it another name, such as dp or tp");
        return false;
    }
    if (mesh->count == DTM_MAX_AXES) {
        dtm_error(c->context, span, 402, "a mesh has at most %d axes", DTM_MAX_AXES);
        dtm_help(c->context, "make one axis of two that split the same dimensions");
        return false;
    }
    mesh->axes[mesh->count++] = (dtm_axis_data){name, size, false, span};
    return true;
}

static bool read_mesh(dtm_checker *c, dtm_mesh *mesh) {
    bool good = true;
    for (size_t i = 0; i < c->mesh->bindings.count; i++) {
        const dtm_binding *b = &c->mesh->bindings.items[i];
        const char *what = dtm_arena_printf(c->arena, "the size of axis %s", dtm_checker_text(c, b->name.text));
        int64_t size;
        good &= dtm_section_whole(c, b->value, what, 1, &size) && add_axis(c, mesh, b->name.text, size, b->name.span);
    }
    return good;
}

static bool rule_names_axis(const dtm_checker *c, dtm_string axis) {
    for (size_t p = 0; p < c->n_parallels; p++)
        for (size_t i = 0; i < c->parallels[p]->block->count; i++) {
            const dtm_statement *s = c->parallels[p]->block->items[i];
            if (s->kind == DTM_STATEMENT_SPLITS && s->name.text == axis) return true;
        }
    return false;
}

/* One `AXIS=N` of --mesh, up to a comma or the end; NULL if it is not well formed. */
static const char *read_axis_option(dtm_checker *c, const char *text, dtm_string *name, int64_t *size) {
    const char *end = text;
    while (isalnum((unsigned char)*end) || *end == '_') end++;
    if (end == text || isdigit((unsigned char)*text) || *end != '=' || !isdigit((unsigned char)end[1])) return NULL;
    *name = dtm_string_intern(c->context, text, (size_t)(end - text));
    char *rest;
    *size = strtoll(end + 1, &rest, 10); /* what does not fit becomes the largest, which is refused later */
    return *rest && *rest != ',' ? NULL : rest;
}

/* A program with a mesh has the axes it has, and those its rules speak of; any other is a mistyped one. */
static bool check_axis_option(dtm_checker *c, const dtm_mesh *mesh, dtm_string name) {
    dtm_string names[DTM_MAX_AXES];
    for (int a = 0; a < mesh->count; a++) {
        if (mesh->axes[a].name == name) return true;
        names[a] = mesh->axes[a].name;
    }
    if (!c->mesh || rule_names_axis(c, name)) return true;
    dtm_error(c->context, nowhere, 202, "--mesh: the program's mesh has no axis `%s`", dtm_checker_text(c, name));
    dtm_string nearest = dtm_string_nearest(c->context, dtm_checker_text(c, name), names, mesh->count);
    if (nearest) dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    else dtm_help(c->context, "add it to the program: mesh { .., %s = 1 }", dtm_checker_text(c, name));
    return false;
}

/* --mesh gives sizes and order; axes of the program that it does not name follow with size 1. */
static bool override_mesh(dtm_checker *c, dtm_mesh *mesh) {
    dtm_mesh given = {0};
    const char *text = c->options->mesh;
    for (bool more = true; more; text++) {
        dtm_string name;
        int64_t size;
        text = read_axis_option(c, text, &name, &size);
        if (!text || size < 1) {
            dtm_error(c->context, nowhere, 404, "--mesh %s: this is no list of axes and their sizes", c->options->mesh);
            dtm_help(c->context, "--mesh dp=4,tp=2");
            return false;
        }
        if (!check_axis_option(c, mesh, name) || !add_axis(c, &given, name, size, nowhere)) return false;
        more = *text == ',';
    }
    for (int a = 0; a < mesh->count; a++) {
        bool named = false;
        for (int g = 0; g < given.count; g++) {
            if (given.axes[g].name != mesh->axes[a].name) continue;
            named = true;
            given.axes[g].span = mesh->axes[a].span;
            if (given.axes[g].size != mesh->axes[a].size)
                dtm_source_override(c->context, mesh->axes[a].span, dtm_arena_printf(c->arena, "--mesh %s", c->options->mesh));
        }
        if (!named && !add_axis(c, &given, mesh->axes[a].name, 1, mesh->axes[a].span)) return false;
    }
    *mesh = given;
    return true;
}

static bool check_ranks(dtm_checker *c, const dtm_mesh *mesh) {
    double ranks = 1;
    for (int a = 0; a < mesh->count; a++) ranks *= (double)mesh->axes[a].size;
    if (ranks <= most_ranks) return true;
    dtm_text text = {.arena = c->arena};
    for (int a = 0; a < mesh->count; a++)
        dtm_text_printf(&text, "%s%s = %lld", a ? ", " : "", dtm_checker_text(c, mesh->axes[a].name),
                        (long long)mesh->axes[a].size);
    dtm_text_printf(&text, " } has ");
    dtm_text_number(&text, ranks);
    dtm_error(c->context, c->mesh && !c->options->mesh ? c->mesh->keyword : nowhere, 403,
              "the mesh { %s ranks; at most %.0f are possible", text.data, most_ranks);
    dtm_help(c->context, "the ranks are the product of the sizes of all axes");
    return false;
}

bool dtm_checker_mesh(dtm_checker *c) {
    dtm_mesh *mesh = &c->module->settings.mesh;
    if (c->mesh && !read_mesh(c, mesh)) return false;
    if (c->options->mesh && c->dump) {
        dtm_error(c->context, nowhere, 404, "--mesh %s: the program is a dump, made for the mesh that it names",
                  c->options->mesh);
        dtm_help(c->context, "give --mesh where the dump is made: dtmc ir FILE --mesh %s --after %s", c->options->mesh,
                 dtm_checker_text(c, c->module->after));
        return false;
    }
    return (!c->options->mesh || override_mesh(c, mesh)) && check_ranks(c, mesh);
}

/* ---- machine ---- */

typedef struct machine_row {
    const char *key;
    dtm_unit unit;
    size_t offset; /* of a double in dtm_machine */
} machine_row;

static const machine_row machine_rows[] = {
    {"flops_f32", DTM_UNIT_FLOPS_PER_SECOND, offsetof(dtm_machine, flops_f32)},
    {"flops_bf16", DTM_UNIT_FLOPS_PER_SECOND, offsetof(dtm_machine, flops_bf16)},
    {"memory_bandwidth", DTM_UNIT_BYTES_PER_SECOND, offsetof(dtm_machine, memory_bandwidth)},
    {"memory", DTM_UNIT_BYTES, offsetof(dtm_machine, memory)},
};
static const machine_row node_rows[] = {
    {"bandwidth", DTM_UNIT_BYTES_PER_SECOND, offsetof(dtm_machine, node_bandwidth)},
    {"latency", DTM_UNIT_SECONDS, offsetof(dtm_machine, node_latency)},
};
static const machine_row network_rows[] = {
    {"bandwidth", DTM_UNIT_BYTES_PER_SECOND, offsetof(dtm_machine, network_bandwidth)},
    {"latency", DTM_UNIT_SECONDS, offsetof(dtm_machine, network_latency)},
};

/* A dump prints 0 for what the program does not say. */
static bool read_rows(dtm_checker *c, const dtm_entries *entries, const machine_row *rows, size_t n) {
    dtm_machine *machine = &c->module->settings.machine;
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        const dtm_expr *value = dtm_entries_find(c, entries, rows[i].key);
        if (!value) continue;
        good &= dtm_section_number(c, value, dtm_arena_printf(c->arena, "`%s`", rows[i].key), rows[i].unit,
                                   c->dump ? dtm_range_not_negative : dtm_range_positive,
                                   (double *)((char *)machine + rows[i].offset));
    }
    return good;
}

/* The lines of a block; groups, which only the outer one has, as entries without a value. */
static dtm_entries entries_of_block(dtm_checker *c, const dtm_ast_block *block) {
    dtm_entries entries = {0};
    for (size_t i = 0; i < block->count; i++) {
        const dtm_statement *s = block->items[i];
        if (s->kind == DTM_STATEMENT_ASSIGN) dtm_entries_add(c, &entries, s->targets.items[0].name, s->value);
        if (s->kind == DTM_STATEMENT_GROUP) dtm_entries_add(c, &entries, s->name, NULL);
    }
    return entries;
}

/* Groups are blocks, and nothing else is. */
static bool check_groups(dtm_checker *c, const dtm_entries *entries) {
    static const char *const groups[] = {"node", "network"};
    for (size_t i = 0; i < entries->count; i++) {
        const dtm_entry *entry = &entries->items[i];
        const char *name = dtm_checker_text(c, entry->key.text);
        bool group = is_among(name, groups, DTM_COUNT(groups));
        if (group == !entry->value) continue;
        dtm_error(c->context, entry->key.span, 209, group ? "`%s` of a machine is a block" : "`%s` is no block", name);
        if (group) dtm_help(c->context, "%s { bandwidth = 450 GB/s; latency = 3 us }", name);
        else dtm_help(c->context, "%s = VALUE", name);
        return false;
    }
    return true;
}

static bool read_group(dtm_checker *c, const dtm_statement *group) {
    static const char *const words[] = {"bandwidth", "latency"};
    bool node = strcmp(dtm_checker_text(c, group->name.text), "node") == 0;
    dtm_entries entries = entries_of_block(c, group->block);
    return dtm_entries_check(c, &entries, node ? "`node`" : "`network`", words, DTM_COUNT(words)) &&
           check_groups(c, &entries) && read_rows(c, &entries, node ? node_rows : network_rows, 2);
}

static bool read_machine(dtm_checker *c) {
    static const char *const words[] = {"name",   "devices_per_node", "flops_f32", "flops_bf16", "memory_bandwidth",
                                        "memory", "node",             "network"};
    dtm_machine *machine = &c->module->settings.machine;
    dtm_entries entries = entries_of_block(c, c->machine->block);
    if (!dtm_entries_check(c, &entries, "`machine`", words, DTM_COUNT(words)) || !check_groups(c, &entries)) return false;
    machine->present = true;
    machine->span = c->machine->keyword;
    bool good = read_rows(c, &entries, machine_rows, DTM_COUNT(machine_rows));
    const dtm_expr *name = dtm_entries_find(c, &entries, "name");
    const dtm_expr *devices = dtm_entries_find(c, &entries, "devices_per_node");
    if (name) machine->name = name->text;
    if (name && name->kind != DTM_EXPR_STRING) {
        dtm_error(c->context, name->span, 232, "the name of a machine is a text in quotes");
        dtm_help(c->context, "name = \"DGX H100\"");
        good = false;
    }
    if (devices)
        good &= dtm_section_whole(c, devices, "`devices_per_node`", c->dump ? 0 : 1, &machine->devices_per_node);
    for (size_t i = 0; i < c->machine->block->count; i++)
        if (c->machine->block->items[i]->kind == DTM_STATEMENT_GROUP) good &= read_group(c, c->machine->block->items[i]);
    return good;
}

/* ---- --set ---- */

static const char *const set_words[] = {
    "steps", "seed",  "clip",     "lr",     "microbatches", "precision", "reduce", "optimizer", "beta1",  "beta2", "eps",
    "decay", "momentum", "peak",  "warmup", "floor",        "schedule",  "chunks",    "stages", "zero",  "recompute"};
enum { REFUSED_SETS = 2 }; /* the last ones: the language has them, this version does not */

static const char *const set_of_pipeline[] = {"schedule", "chunks", "stages"};

/* The same of a pipeline: read as one of its settings. */
static bool parse_set_of_pipeline(dtm_checker *c, const char *option, const char *key, const char *value, dtm_entries *sets) {
    static const char before[] = "parallel { pp splits layer with ";
    const char *text = dtm_arena_printf(c->arena, "%s%s=%s }\n", before, key, value);
    size_t errors = dtm_error_count(c->context);
    const dtm_ast *ast = dtm_parse(c->context, dtm_source_add_option(c->context, "--set", option, before, text));
    if (dtm_error_count(c->context) != errors) return false;
    const dtm_statement *parallel = ast && ast->block->count == 1 ? ast->block->items[0] : NULL;
    const dtm_statement *s = parallel && parallel->block && parallel->block->count == 1 ? parallel->block->items[0] : NULL;
    if (!s || s->kind != DTM_STATEMENT_SPLITS || s->bindings.count != 1) {
        dtm_error(c->context, nowhere, 236, "--set %s: this is no value of one setting", option);
        dtm_help(c->context, "--set schedule=1f1b, one for each setting");
        return false;
    }
    dtm_entries_add(c, sets, s->bindings.items[0].name, s->bindings.items[0].value);
    return true;
}

/* Read as a line of `train`, so that a value may be whatever stands there. */
static bool parse_set(dtm_checker *c, const char *option, const char *key, const char *value, dtm_entries *sets) {
    static const char before[] = "train { ";
    const char *text = dtm_arena_printf(c->arena, "%s%s %s }\n", before, key, value);
    size_t errors = dtm_error_count(c->context);
    const dtm_ast *ast = dtm_parse(c->context, dtm_source_add_option(c->context, "--set", option, before, text));
    if (dtm_error_count(c->context) != errors) return false;
    const dtm_statement *train = ast && ast->block->count == 1 ? ast->block->items[0] : NULL;
    const dtm_statement *s = train && train->block && train->block->count == 1 ? train->block->items[0] : NULL;
    if (!s || s->kind != DTM_STATEMENT_SETTING) {
        dtm_error(c->context, nowhere, 236, "--set %s: this is no value of one setting", option);
        dtm_help(c->context, "--set steps=20, one for each setting");
        return false;
    }
    dtm_entries_add(c, sets, s->name, s->value);
    return true;
}

static bool read_set(dtm_checker *c, const char *option, dtm_entries *sets) {
    size_t n = DTM_COUNT(set_words), refused = n - REFUSED_SETS;
    const char *equal = strchr(option, '=');
    char *key = dtm_arena_strdup(c->arena, option);
    key[strcspn(key, "=")] = 0;
    if (!is_among(key, set_words, n)) {
        dtm_error(c->context, nowhere, 209, "--set %s: there is no setting `%s`", option, key);
        dtm_section_help(c, dtm_string_of(c->context, key), set_words, refused);
        return false;
    }
    if (!is_among(key, set_words, refused))
        return dtm_checker_refuse(c, nowhere, dtm_arena_printf(c->arena, "--set %s", option), "leave it out");
    if (!equal || !equal[1]) {
        dtm_error(c->context, nowhere, 236, "--set %s: the value is missing", option);
        dtm_help(c->context, "--set %s=VALUE", key);
        return false;
    }
    if (c->dump && strcmp(key, "steps") != 0 && strcmp(key, "seed") != 0) {
        dtm_error(c->context, nowhere, 236, "--set %s: the program is a dump, in which `%s` has done its work", option, key);
        dtm_help(c->context, "give --set where the dump is made; `steps` and `seed` can be set here");
        return false;
    }
    if (find_entry(sets, dtm_string_of(c->context, key))) {
        dtm_error(c->context, nowhere, 207, "--set %s: `%s` is set twice on the command line", option, key);
        dtm_help(c->context, "remove one of the two");
        return false;
    }
    if (is_among(key, set_of_pipeline, DTM_COUNT(set_of_pipeline)))
        return parse_set_of_pipeline(c, option, key, equal + 1, sets);
    return parse_set(c, option, key, equal + 1, sets);
}

bool dtm_checker_settings(dtm_checker *c) {
    dtm_entries sets = {0};
    bool good = true;
    for (size_t i = 0; i < c->options->n_sets; i++) good &= read_set(c, c->options->sets[i], &sets);
    good &= dtm_section_parallel(c, &sets);
    good &= dtm_section_train(c, &sets);
    return (!c->machine || read_machine(c)) && good;
}
