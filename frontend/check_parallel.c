/* check: the rules of `parallel`. They are read before the model, so names of its repeats and values are looked up in the
 * syntax tree. A dump's rules name what the source had and passes may have removed since: there such names stand as
 * they are. */
#include "frontend/sections.h"
#include "ir/timeline.h"

#include <float.h>
#include <string.h>

/* ---- names of the model ---- */

typedef struct model_name {
    dtm_string region, name; /* region: the innermost repeat; 0: outside of all */
    bool is_repeat, in_def;  /* in a def: it can be called in any region */
} model_name;

typedef struct model_names {
    model_name *items;
    size_t count, capacity;
} model_names;

static void collect(dtm_checker *c, const dtm_ast_block *block, dtm_string region, bool in_def, model_names *names) {
    for (size_t i = 0; i < block->count; i++) {
        const dtm_statement *s = block->items[i];
        bool repeat = s->kind == DTM_STATEMENT_REPEAT;
        for (size_t t = 0; t < s->targets.count; t++)
            DTM_PUSH(c->arena, names->items, names->count, names->capacity,
                     ((model_name){region, s->targets.items[t].name.text, false, in_def}));
        if (repeat)
            DTM_PUSH(c->arena, names->items, names->count, names->capacity,
                     ((model_name){region, s->name.text, true, in_def}));
        if (s->block) collect(c, s->block, repeat ? s->name.text : region, in_def, names);
    }
}

static model_names names_of_model(dtm_checker *c) {
    model_names names = {0};
    if (c->dump) return names;
    collect(c, c->model->block, 0, false, &names);
    for (size_t i = 0; i < c->n_defs; i++) collect(c, c->defs[i]->block, 0, true, &names);
    return names;
}

static bool is_repeat(const model_names *names, dtm_string name) {
    for (size_t i = 0; i < names->count; i++)
        if (names->items[i].is_repeat && names->items[i].name == name) return true;
    return false;
}

static bool is_set_in(const model_names *names, dtm_string region, dtm_string name) {
    for (size_t i = 0; i < names->count; i++) {
        const model_name *n = &names->items[i];
        if (!n->is_repeat && n->name == name && (n->region == region || n->in_def)) return true;
    }
    return false;
}

/* The nearest name of the repeats, or of the values set in a region. */
static dtm_string nearest_of(dtm_checker *c, const model_names *names, bool repeats, dtm_string region, dtm_string name) {
    dtm_string *candidates = dtm_arena_alloc(c->arena, (names->count + 4) * sizeof *candidates);
    size_t n = 0;
    for (size_t i = 0; i < names->count; i++) {
        const model_name *m = &names->items[i];
        if (m->is_repeat == repeats && (repeats || m->region == region)) candidates[n++] = m->name;
    }
    if (repeats && !region)
        for (int i = 0; i < 3; i++)
            candidates[n++] = dtm_string_of(c->context, (const char *[]){"forward", "backward", "update"}[i]);
    return dtm_string_nearest(c->context, dtm_checker_text(c, name), candidates, n);
}

/* What splits a dimension has no settings: with them, or of a repeat, the rule is a pipeline. */
static bool dim_as_repeat(dtm_checker *c, const model_names *names, dtm_name axis, dtm_name dim) {
    dtm_text list = {.arena = c->arena};
    const char *first = NULL;
    int count = 0;
    for (size_t i = 0; i < names->count; i++) {
        bool again = false; /* a def's repeat may bear the name of another */
        for (size_t j = 0; j < i; j++) again |= names->items[j].is_repeat && names->items[j].name == names->items[i].name;
        if (!names->items[i].is_repeat || again) continue;
        const char *repeat = dtm_checker_text(c, names->items[i].name);
        dtm_text_printf(&list, "%s%s", count++ ? ", " : "", repeat);
        if (!first) first = repeat;
    }
    const char *of = dtm_checker_text(c, dim.text), *by = dtm_checker_text(c, axis.text);
    dtm_error(c->context, dim.span, 234, "`%s` is a dimension, and a pipeline splits a repeat", of);
    if (count > 1) dtm_help(c->context, "the repeats are %s: %s splits %s with ..; or, without `with`, %s splits %s", list.data, by, first, by, of);
    else if (count) dtm_help(c->context, "%s splits %s with ..; or, without `with`, %s splits %s", by, first, by, of);
    else dtm_help(c->context, "the model has no repeat: leave out `with` and its settings, %s splits %s", by, of);
    return false;
}

static bool unknown_repeat(dtm_checker *c, const model_names *names, dtm_span span, dtm_string name) {
    dtm_error(c->context, span, 234, "the model has no repeat `%s`", dtm_checker_text(c, name));
    dtm_string nearest = nearest_of(c, names, true, 0, name);
    if (nearest) dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
    return false;
}

/* ---- microbatches ---- */

enum { MOST_MICROBATCHES = 1 << 20 };

static bool read_microbatches(dtm_checker *c, const dtm_expr *value, dtm_span span) {
    dtm_settings *settings = &c->module->settings;
    if (!dtm_section_whole(c, value, "`microbatches`", 1, &settings->microbatches)) return false;
    settings->microbatches_span = span;
    if (settings->microbatches <= MOST_MICROBATCHES) return true;
    dtm_error(c->context, value->span, 409, "at most %d microbatches are possible, not %lld", MOST_MICROBATCHES,
              (long long)settings->microbatches);
    return false;
}

/* A pipeline's timeline has a task for each microbatch, stage and pass: too many are refused before any work. */
static bool few_enough(dtm_checker *c, const dtm_pipeline_rule *rule, int64_t microbatches, dtm_span span) {
    int64_t stages = c->module->settings.mesh.axes[rule->axis].size * (rule->chunks ? rule->chunks : 1);
    int64_t most = DTM_TIMELINE_TASKS / 3 / stages;
    if (most >= DTM_TIMELINE_MICROBATCHES) most = DTM_TIMELINE_MICROBATCHES;
    int64_t rounds = rule->rounds ? rule->rounds : 1;
    if (rounds <= most / microbatches) return true;
    if (rule->rounds)
        dtm_error(c->context, span, 409, "a pipeline of %lld stage%s has at most %lld microbatches in all rounds, not %lld rounds of %lld",
                  (long long)stages, dtm_plural(stages), (long long)most, (long long)rounds, (long long)microbatches);
    else
        dtm_error(c->context, span, 409, "a pipeline of %lld stage%s has at most %lld microbatches, not %lld", (long long)stages,
                  dtm_plural(stages), (long long)most, (long long)microbatches);
    dtm_help(c->context, "%s = %lld at most: a few times as many as ranks keep these busy", rule->rounds ? "rounds times microbatches" : "microbatches",
             (long long)most);
    return false;
}

/* ---- AXIS splits REPEAT with SETTINGS ---- */

static const char *const pipeline_words[] = {"schedule", "microbatches", "chunks", "stages"};
static const char *const schedule_names[] = {"sequential", "gpipe",    "1f1b",      "interleaved", "zbh1",
                                             "zbv",        "dualpipe", "dualpipev", "auto"};

static bool read_schedule(dtm_checker *c, const dtm_expr *value, dtm_pipeline_rule *rule) {
    dtm_string name = value->kind == DTM_EXPR_NAME || value->kind == DTM_EXPR_NUMBER ? value->text : 0;
    for (size_t i = 0; name && i < DTM_COUNT(schedule_names); i++)
        if (strcmp(dtm_checker_text(c, name), schedule_names[i]) == 0) {
            rule->schedule = name;
            return true;
        }
    dtm_error(c->context, value->span, 232, "this is no schedule of a pipeline");
    dtm_section_help(c, name ? name : dtm_string_of(c->context, ""), schedule_names, DTM_COUNT(schedule_names));
    return false;
}

/* Whether a rank may have any number of stages, so that the list says how many. */
static bool takes_chunks(dtm_checker *c, const dtm_pipeline_rule *rule) {
    const char *schedule = dtm_checker_text(c, rule->schedule);
    return strcmp(schedule, "interleaved") == 0 || strcmp(schedule, "sequential") == 0 || strcmp(schedule, "auto") == 0;
}

/* How many stages a schedule has, `stage` knows and says; `auto` takes as many as are given, the same number on all ranks. */
static bool read_stages(dtm_checker *c, const dtm_expr *list, dtm_pipeline_rule *rule) {
    int64_t ranks = c->module->settings.mesh.axes[rule->axis].size, count = (int64_t)list->count;
    const char *help = dtm_arena_printf(c->arena, "give the copies of `%s` in each stage, or leave it out: stages are then balanced by cost",
                                        dtm_checker_text(c, rule->repeat));
    if (list->kind != DTM_EXPR_LIST || !count) {
        dtm_error(c->context, list->span, 413, "`stages` is a list: a number of copies for each stage");
        dtm_help(c->context, "%s", help);
        return false;
    }
    if (strcmp(dtm_checker_text(c, rule->schedule), "auto") == 0 && count % ranks) {
        dtm_error(c->context, list->span, 413, "`stages` has %lld entr%s, and with auto %lld ranks have %lld stages or a multiple of them", (long long)count,
                  count == 1 ? "y" : "ies", (long long)ranks, (long long)ranks);
        dtm_help(c->context, "%s", help);
        return false;
    }
    if (!rule->chunks && count > ranks && count % ranks == 0 && takes_chunks(c, rule)) rule->chunks = count / ranks;
    rule->stages = dtm_arena_alloc(c->module->arena, (size_t)count * sizeof *rule->stages);
    rule->n_stages = (size_t)count;
    rule->stages_span = list->span;
    for (int64_t i = 0; i < count; i++)
        if (!dtm_section_whole(c, list->items[i], "a stage", 0, &rule->stages[i])) return false;
    return true;
}

/* `microbatches K` beside a pipeline of M: K rounds of M. */
static bool take_rounds(dtm_checker *c, dtm_pipeline_rule *rule, int64_t rounds, dtm_span span) {
    dtm_settings *settings = &c->module->settings;
    rule->rounds = rounds;
    rule->rounds_span = span;
    if (!few_enough(c, rule, settings->microbatches, span)) return false;
    settings->microbatches *= rounds;
    return true;
}

static bool read_pipeline(dtm_checker *c, const dtm_statement *s, const model_names *names, const dtm_entries *sets) {
    dtm_settings *settings = &c->module->settings;
    dtm_pipeline_rule rule = {.present = true, .span = s->span, .repeat = s->names.items[0].text};
    dtm_entries entries = {0};
    rule.place = c->dump ? (dtm_place){s->suffix.file, s->suffix.line} : dtm_checker_place(c, s->span);
    rule.axis = dtm_checker_axis(c, s->name);
    if (rule.axis == DTM_NO_AXIS) return false;
    if (settings->pipeline.present) {
        dtm_error(c->context, s->span, 405, "a second pipeline");
        dtm_note(c->context, settings->pipeline.span, "the first is here");
        return false;
    }
    if (s->names.count != 1) {
        dtm_error(c->context, s->names.items[1].span, 405, "a pipeline splits one repeat, and nothing else");
        return false;
    }
    bool unknown = !c->dump && !is_repeat(names, rule.repeat);
    if (unknown && dtm_dim_find(c->module, rule.repeat)) return dim_as_repeat(c, names, s->name, s->names.items[0]);
    if (unknown) return unknown_repeat(c, names, s->names.items[0].span, rule.repeat);
    for (size_t i = 0; i < s->bindings.count; i++)
        dtm_entries_add(c, &entries, s->bindings.items[i].name, s->bindings.items[i].value);
    dtm_entries_override(c, &entries, sets, pipeline_words, DTM_COUNT(pipeline_words));
    if (!dtm_entries_check(c, &entries, "a pipeline", pipeline_words, DTM_COUNT(pipeline_words))) return false;
    const dtm_expr *schedule = dtm_entries_find(c, &entries, "schedule");
    const dtm_expr *microbatches = dtm_entries_find(c, &entries, "microbatches");
    const dtm_expr *chunks = dtm_entries_find(c, &entries, "chunks"), *stages = dtm_entries_find(c, &entries, "stages");
    if (!schedule || !microbatches) {
        dtm_error(c->context, s->span, 233, "a pipeline needs its `%s`", schedule ? "microbatches" : "schedule");
        dtm_help(c->context, "%s splits %s with schedule = 1f1b, microbatches = 8", dtm_checker_text(c, s->name.text),
                 dtm_checker_text(c, rule.repeat));
        return false;
    }
    int64_t rounds = settings->microbatches;
    dtm_span rounds_span = settings->microbatches_span;
    if (!read_schedule(c, schedule, &rule) || !dtm_section_whole(c, microbatches, "`microbatches`", 1, &settings->microbatches)) return false;
    settings->microbatches_span = s->span;
    if (chunks && !dtm_section_whole(c, chunks, "`chunks`", 1, &rule.chunks)) return false;
    int64_t ranks = settings->mesh.axes[rule.axis].size;
    if (ranks > DTM_TIMELINE_RANKS) {
        const char *axis = dtm_checker_text(c, s->name.text);
        dtm_error(c->context, s->span, 413, "a pipeline has at most %d ranks, and the axis `%s` has %lld", DTM_TIMELINE_RANKS,
                  axis, (long long)ranks);
        dtm_help(c->context, "make `%s` shorter, %s = %d at most; another axis that splits the batch can have the other ranks",
                 axis, axis, DTM_TIMELINE_RANKS);
        return false;
    }
    if (rule.chunks > DTM_TIMELINE_RANKS / ranks) {
        dtm_error(c->context, s->span, 413, "a pipeline has at most %d stages, not %lld rank%s with %lld each",
                  DTM_TIMELINE_RANKS, (long long)ranks, dtm_plural(ranks), (long long)rule.chunks);
        dtm_help(c->context, "chunks = %lld at most", (long long)(DTM_TIMELINE_RANKS / ranks));
        return false;
    }
    if (stages && !read_stages(c, stages, &rule)) return false;
    if (!few_enough(c, &rule, settings->microbatches, microbatches->span)) {
        settings->microbatches = rounds; /* a line `microbatches K` that follows is no second one */
        settings->microbatches_span = rounds_span;
        return false;
    }
    if (rounds_span.file && !take_rounds(c, &rule, rounds, rounds_span)) return false;
    settings->pipeline = rule;
    return true;
}

/* ---- AXIS splits DIM, .. ---- */

/* Whether the rule splits a repeat, or has what only such a rule has. */
static bool is_pipeline(dtm_checker *c, const dtm_statement *s, const model_names *names) {
    for (size_t i = 0; i < s->names.count; i++)
        if (!dtm_dim_find(c->module, s->names.items[i].text) && (is_repeat(names, s->names.items[i].text) || s->bindings.count))
            return true;
    return s->bindings.count > 0;
}

static bool refuse_splits(dtm_checker *c, const dtm_statement *s) {
    if (s->zigzag) return dtm_checker_refuse(c, s->using.span, "the order `zigzag`", "leave it out");
    if (s->using.text && strcmp(dtm_checker_text(c, s->using.text), "ring") == 0)
        return dtm_checker_refuse(c, s->using.span, "`using ring`", "using alltoall, or using gather");
    return true;
}

static bool read_dims(dtm_checker *c, const dtm_statement *s, dtm_splits_rule *rule) {
    for (size_t i = 0; i < s->names.count; i++) {
        dtm_name name = s->names.items[i];
        dtm_dim dim = dtm_checker_dim(c, name);
        if (!dim) return false;
        for (int k = 0; k < rule->count; k++) {
            if (rule->dims[k] != dim) continue;
            dtm_error(c->context, name.span, 405, "%s stands twice in this list", dtm_dim_name(c->module, dim));
            dtm_help(c->context, "remove one: an operator is split along the first of the list that it has");
            return false;
        }
        if (rule->count == DTM_COUNT(rule->dims)) {
            dtm_error(c->context, name.span, 405, "a list has at most %d dimensions", (int)DTM_COUNT(rule->dims));
            return false;
        }
        rule->dims[rule->count] = dim;
        rule->dim_spans[rule->count++] = name.span;
    }
    return true;
}

static bool read_splits(dtm_checker *c, const dtm_statement *s, const model_names *names, const dtm_entries *sets) {
    dtm_settings *settings = &c->module->settings;
    if (is_pipeline(c, s, names)) return read_pipeline(c, s, names, sets);
    if (!refuse_splits(c, s)) return false;
    dtm_splits_rule rule = {.axis = dtm_checker_axis(c, s->name), .by_cost = s->by_cost, .span = s->span};
    rule.place = c->dump ? (dtm_place){s->suffix.file, s->suffix.line} : dtm_checker_place(c, s->span);
    if (rule.axis == DTM_NO_AXIS) return false;
    for (size_t i = 0; i < settings->n_splits; i++) {
        if (settings->splits[i].axis != rule.axis) continue;
        const char *axis = dtm_checker_text(c, s->name.text);
        dtm_error(c->context, s->span, 405, "a second rule for the axis `%s`", axis);
        dtm_note(c->context, settings->splits[i].span, "the first is here");
        dtm_help(c->context, "make one list of the two, in the order in which %s shall choose", axis);
        return false;
    }
    if (!read_dims(c, s, &rule)) return false;
    const char *using = dtm_checker_text(c, s->using.text);
    if (strcmp(using, "alltoall") == 0) rule.using = DTM_USING_ALLTOALL;
    if (strcmp(using, "gather") == 0) rule.using = DTM_USING_GATHER;
    DTM_PUSH(c->arena, settings->splits, settings->n_splits, settings->cap_splits, rule);
    return true;
}

/* ---- keep [REGION.]VALUE as [..] ---- */

static bool check_regions(dtm_checker *c, const dtm_statement *s, const model_names *names, dtm_keep_rule *rule) {
    const char *text = dtm_checker_text(c, s->name.text), *dot;
    for (; (dot = strchr(text, '.')); text = dot + 1) {
        rule->region = dtm_string_intern(c->context, text, (size_t)(dot - text));
        if (c->dump || is_repeat(names, rule->region)) continue;
        dtm_error(c->context, s->name.span, 234, "the model has no repeat `%s`", dtm_checker_text(c, rule->region));
        dtm_string nearest = nearest_of(c, names, true, rule->region, rule->region);
        if (nearest) dtm_help(c->context, "did you mean `%s.%s`?", dtm_checker_text(c, nearest), dot + 1);
        else if (!strchr(dot + 1, '.')) dtm_help(c->context, "`keep %s` names a value outside of all repeats", dot + 1);
        return false;
    }
    rule->value = dtm_string_of(c->context, text);
    return true;
}

static bool not_set(dtm_checker *c, const dtm_statement *s, const model_names *names, const dtm_keep_rule *rule) {
    const char *value = dtm_checker_text(c, rule->value), *region = dtm_checker_text(c, rule->region);
    if (rule->region) dtm_error(c->context, s->name.span, 235, "`%s` is not set in the repeat `%s`", value, region);
    else dtm_error(c->context, s->name.span, 235, "`%s` is not set outside of all repeats", value);
    for (size_t i = 0; i < names->count; i++) {
        const model_name *n = &names->items[i];
        if (n->is_repeat || n->name != rule->value) continue;
        if (n->region) dtm_help(c->context, "did you mean `%s.%s`?", dtm_checker_text(c, n->region), value);
        else dtm_help(c->context, "did you mean `%s`, without a repeat?", value);
        return false;
    }
    dtm_string nearest = nearest_of(c, names, false, rule->region, rule->value);
    if (nearest)
        dtm_help(c->context, "did you mean `%s%s%s`?", region, rule->region ? "." : "", dtm_checker_text(c, nearest));
    return false;
}

/* `outer.layer.x`: the value x of the repeat layer. */
static bool read_kept_name(dtm_checker *c, const dtm_statement *s, const model_names *names, dtm_keep_rule *rule) {
    return check_regions(c, s, names, rule) &&
           (c->dump || is_set_in(names, rule->region, rule->value) || not_set(c, s, names, rule));
}

static bool add_kept_axis(dtm_checker *c, const dtm_axis_use *use, dtm_keep_rule *rule) {
    uint8_t axis = dtm_checker_axis(c, use->name), last = (uint8_t)(rule->count - 1);
    if (axis == DTM_NO_AXIS) return false;
    if (use->multiple) {
        dtm_error(c->context, use->name.span, 407, "`keep` names axes alone: the size of blocks follows from the operators");
        dtm_help(c->context, "write %s@%s", dtm_dim_name(c->module, rule->dims[last].dim), dtm_checker_text(c, use->name.text));
        return false;
    }
    for (int d = 0; d <= last; d++)
        for (int a = 0; a < rule->dims[d].n_axes; a++) {
            if (rule->dims[d].axes[a] != axis) continue;
            const char *name = dtm_checker_text(c, use->name.text), *dim = dtm_dim_name(c->module, rule->dims[d].dim);
            if (d == last) dtm_error(c->context, use->name.span, 406, "the axis `%s` splits %s twice", name, dim);
            else
                dtm_error(c->context, use->name.span, 406, "the axis `%s` cannot split both %s and %s of one tensor", name, dim,
                          dtm_dim_name(c->module, rule->dims[last].dim));
            dtm_help(c->context, "remove one `@%s`: each rank of an axis holds one block of the tensor", name);
            return false;
        }
    rule->dims[last].axes[rule->dims[last].n_axes++] = axis;
    return true;
}

static bool add_kept_dim(dtm_checker *c, const dtm_dim_use *use, dtm_keep_rule *rule) {
    dtm_dim dim = dtm_checker_dim(c, use->name);
    if (!dim) return false;
    for (int d = 0; d < rule->count; d++) {
        if (rule->dims[d].dim != dim) continue;
        dtm_error(c->context, use->span, 406, "%s stands twice in this layout", dtm_dim_name(c->module, dim));
        dtm_help(c->context, "remove one of the two");
        return false;
    }
    if (rule->count == DTM_MAX_RANK) {
        dtm_error(c->context, use->span, 303, "a tensor has at most %d dimensions", DTM_MAX_RANK);
        return false;
    }
    if (use->has_size) {
        dtm_error(c->context, use->span, 407, "`keep` says which axes split a dimension, not its size");
        dtm_help(c->context, "leave `= %llu` out", (unsigned long long)use->size);
        return false;
    }
    if (use->order.text) return dtm_checker_refuse(c, use->span, "the order `zigzag`", "leave it out");
    rule->dims[rule->count].dim = dim;
    rule->dims[rule->count++].whole = use->whole;
    for (size_t a = 0; a < use->axes.count; a++)
        if (!add_kept_axis(c, &use->axes.items[a], rule)) return false;
    return true;
}

static bool read_keep(dtm_checker *c, const dtm_statement *s, const model_names *names) {
    dtm_settings *settings = &c->module->settings;
    dtm_keep_rule rule = {.span = s->span};
    if (!read_kept_name(c, s, names, &rule)) return false;
    for (size_t i = 0; i < s->layout->n_dims; i++)
        if (!add_kept_dim(c, &s->layout->dims[i], &rule)) return false;
    for (size_t i = 0; i < settings->n_keeps; i++) {
        if (settings->keeps[i].region != rule.region || settings->keeps[i].value != rule.value) continue;
        dtm_error(c->context, s->span, 406, "a second `keep` for `%s`", dtm_checker_text(c, s->name.text));
        dtm_note(c->context, settings->keeps[i].span, "the first is here");
        dtm_help(c->context, "make one layout of the two");
        return false;
    }
    DTM_PUSH(c->arena, settings->keeps, settings->n_keeps, settings->cap_keeps, rule);
    return true;
}

/* ---- expect [PLACE] { .. } ---- */

static bool check_place(dtm_checker *c, const dtm_statement *s, const model_names *names) {
    const char *place = dtm_checker_text(c, s->name.text);
    if (c->dump || !s->name.text || is_repeat(names, s->name.text)) return true;
    if (strcmp(place, "forward") == 0 || strcmp(place, "backward") == 0 || strcmp(place, "update") == 0) return true;
    return unknown_repeat(c, names, s->name.span, s->name.text);
}

static bool read_collective(dtm_checker *c, const dtm_expectation *e, dtm_expect_rule *rule) {
    static const char *const words[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute",
                                        "memory",     "bubble",     "send",           "recv",       "broadcast"};
    const char *what = dtm_checker_text(c, e->what.text);
    for (dtm_op_kind kind = DTM_OP_ALL_REDUCE; kind <= DTM_OP_PERMUTE; kind++)
        if (strcmp(dtm_op_rows[kind].name, what) == 0) {
            rule->collective = kind;
            int64_t bound;
            if (!dtm_section_whole(c, e->value, dtm_arena_printf(c->arena, "the number of `%s`", what), 0, &bound))
                return false;
            rule->bound = (double)bound;
            return true;
        }
    for (int i = 7; i < 10; i++)
        if (strcmp(words[i], what) == 0)
            return dtm_checker_refuse(c, e->span, dtm_arena_printf(c->arena, "`expect { %s .. }`", what), "leave it out");
    dtm_error(c->context, e->what.span, 232, "there is no collective `%s`", what);
    dtm_section_help(c, e->what.text, words, 7);
    return false;
}

static bool read_memory(dtm_checker *c, const dtm_expectation *e, dtm_expect_rule *rule) {
    rule->kind = DTM_EXPECT_MEMORY;
    if (rule->place)
        return dtm_checker_refuse(c, e->span, "`memory` of a part of the step", "expect { memory <= 80 GB }");
    if (e->axes.count || !e->at_most) {
        dtm_error(c->context, e->span, 408, "`memory` bounds what each rank allocates");
        dtm_help(c->context, "expect { memory <= 80 GB }");
        return false;
    }
    return dtm_section_number(c, e->value, "the bound of `memory`", DTM_UNIT_BYTES, dtm_range_not_negative, &rule->bound);
}

static bool read_bubble(dtm_checker *c, const dtm_expectation *e, dtm_expect_rule *rule) {
    rule->kind = DTM_EXPECT_BUBBLE;
    if (rule->place || e->axes.count || !e->at_most) {
        dtm_error(c->context, e->span, 408, "`bubble` bounds the share of time that the ranks of a pipeline are idle");
        dtm_help(c->context, "expect { bubble <= 0.15 }");
        return false;
    }
    if (!dtm_section_number(c, e->value, "the bound of `bubble`", DTM_UNIT_NONE, dtm_range_not_negative, &rule->bound)) return false;
    if (rule->bound <= 1) return true;
    dtm_text meant = {.arena = c->arena};
    dtm_text_number(&meant, rule->bound <= 100 ? rule->bound / 100 : 0.15);
    dtm_error(c->context, e->value->span, 408, "`bubble` is a share of time, which is never above 1");
    dtm_help(c->context, "expect { bubble <= %s }", meant.data);
    return false;
}

/* Rules may come in any order: whether there is a pipeline is known after the last. */
static bool check_bubbles(dtm_checker *c) {
    const dtm_settings *settings = &c->module->settings;
    for (size_t i = 0; i < settings->n_expects && !settings->pipeline.present; i++) {
        if (settings->expects[i].kind != DTM_EXPECT_BUBBLE) continue;
        dtm_error(c->context, settings->expects[i].span, 408, "`bubble` of a program without a pipeline");
        dtm_help(
            c->context,
            "leave it out, or let an axis split a repeat: `pp splits layer with schedule = 1f1b, microbatches = 8`");
        return false;
    }
    return true;
}

static bool read_expectation(dtm_checker *c, dtm_string place, const dtm_expectation *e) {
    dtm_settings *settings = &c->module->settings;
    dtm_expect_rule rule = {.place = place, .at_most = e->at_most, .span = e->span};
    for (size_t a = 0; a < e->axes.count; a++) {
        uint8_t axis = dtm_checker_axis(c, e->axes.items[a].name);
        if (axis == DTM_NO_AXIS) return false;
        rule.axes |= (uint16_t)(1 << axis);
    }
    bool memory = strcmp(dtm_checker_text(c, e->what.text), "memory") == 0;
    bool bubble = strcmp(dtm_checker_text(c, e->what.text), "bubble") == 0;
    if (!(memory ? read_memory(c, e, &rule) : bubble ? read_bubble(c, e, &rule) : read_collective(c, e, &rule))) return false;
    DTM_PUSH(c->arena, settings->expects, settings->n_expects, settings->cap_expects, rule);
    return true;
}

static bool read_expect(dtm_checker *c, const dtm_statement *s, const model_names *names) {
    if (!check_place(c, s, names)) return false;
    bool good = true;
    for (size_t i = 0; i < s->expectations.count; i++) good &= read_expectation(c, s->name.text, &s->expectations.items[i]);
    return good;
}

/* ---- microbatches: the time axis ---- */

/* Microbatches are an axis of the mesh, in time and last; it bears a name that no other axis may have then. */
static bool add_time_axis(dtm_checker *c) {
    dtm_settings *settings = &c->module->settings;
    dtm_mesh *mesh = &settings->mesh;
    dtm_string name = dtm_string_of(c->context, "microbatch");
    uint8_t taken = dtm_axis_find(c->module, name);
    if (taken != DTM_NO_AXIS) {
        dtm_error(c->context, mesh->axes[taken].span, 409, "with `microbatches`, no axis of the mesh is called `microbatch`");
        dtm_note(c->context, settings->microbatches_span, "there are %lld microbatches", (long long)settings->microbatches);
        dtm_help(c->context, "give the axis another name");
        return false;
    }
    if (mesh->count == DTM_MAX_AXES) {
        dtm_error(c->context, settings->microbatches_span, 409, "with `microbatches`, a mesh has at most %d axes",
                  DTM_MAX_AXES - 1);
        dtm_help(c->context, "make one axis of two that split the same dimensions");
        return false;
    }
    mesh->axes[mesh->count++] = (dtm_axis_data){name, settings->microbatches, true, settings->microbatches_span};
    return true;
}

/* ---- all rules ---- */

/* An axis has one stage. */
static bool add_zero_axis(dtm_checker *c, dtm_name name, dtm_zero_rule *rule) {
    const dtm_settings *settings = &c->module->settings;
    const char *text = dtm_checker_text(c, name.text);
    uint8_t axis = dtm_checker_axis(c, name);
    if (axis == DTM_NO_AXIS) return false;
    bool again = rule->axes >> axis & 1;
    for (size_t i = 0; i < settings->n_zeros; i++)
        if (settings->zeros[i].axes >> axis & 1) {
            dtm_error(c->context, name.span, 405, "a second `zero` for the axis `%s`", text);
            dtm_note(c->context, settings->zeros[i].span, "the first is here");
            dtm_help(c->context, "leave `%s` out of one of them", text);
            return false;
        }
    if (again) {
        dtm_error(c->context, name.span, 405, "the axis `%s` stands twice in this rule", text);
        dtm_help(c->context, "remove one of the two");
        return false;
    }
    rule->axes |= (uint16_t)(1 << axis);
    return true;
}

static bool read_zero(dtm_checker *c, const dtm_statement *s) {
    dtm_settings *settings = &c->module->settings;
    dtm_zero_rule rule = {.span = s->span, .place = c->dump ? (dtm_place){s->suffix.file, s->suffix.line} : dtm_checker_place(c, s->span)};
    int64_t stage = 0;
    if (!dtm_section_whole(c, s->value, "`zero`", 1, &stage)) return false;
    if (stage > 3) {
        dtm_error(c->context, s->value->span, 409, "`zero` has the stages 1, 2 and 3, not %lld", (long long)stage);
        dtm_help(c->context, "zero 1 splits optimizer state, 2 gradients too, 3 the weights too");
        return false;
    }
    rule.stage = (uint8_t)stage;
    for (size_t i = 0; i < s->names.count; i++)
        if (!add_zero_axis(c, s->names.items[i], &rule)) return false;
    DTM_PUSH(c->arena, settings->zeros, settings->n_zeros, settings->cap_zeros, rule);
    return true;
}

static bool read_recompute(dtm_checker *c, const dtm_statement *s) {
    bool none = s->value->kind == DTM_EXPR_NAME && strcmp(dtm_checker_text(c, s->value->text), "none") == 0;
    return none || dtm_checker_refuse(c, s->span, "`recompute`", "recompute none, or remove the line");
}

static bool read_rule(dtm_checker *c, const dtm_statement *s, const model_names *names, const dtm_entries *sets) {
    dtm_settings *settings = &c->module->settings;
    switch (s->kind) {
    case DTM_STATEMENT_SPLITS: return read_splits(c, s, names, sets);
    case DTM_STATEMENT_KEEP: return read_keep(c, s, names);
    case DTM_STATEMENT_EXPECT: return read_expect(c, s, names);
    case DTM_STATEMENT_ZERO: return read_zero(c, s);
    case DTM_STATEMENT_RECOMPUTE: return read_recompute(c, s);
    case DTM_STATEMENT_MICROBATCHES:
        if (!settings->microbatches_span.file) return read_microbatches(c, s->value, s->span);
        if (settings->pipeline.present && !settings->pipeline.rounds_span.file) {
            int64_t rounds = 1;
            return dtm_section_whole(c, s->value, "`microbatches`", 1, &rounds) &&
                   take_rounds(c, &settings->pipeline, rounds, s->span);
        }
        if (settings->pipeline.present) settings->microbatches_span = settings->pipeline.rounds_span;
        dtm_error(c->context, s->span, 207, "`microbatches` is set twice");
        dtm_note(c->context, settings->microbatches_span, "first here");
        dtm_help(c->context, "remove one of the two");
        return false;
    default: return false; /* the parser said so */
    }
}

/* An axis beside the pipeline's that a `keep` may name instead of it, or one that the mesh does not have yet. */
static void help_other_axis(dtm_checker *c, const dtm_keep_rule *keep) {
    const dtm_settings *settings = &c->module->settings;
    static const char *const usual[] = {"tp", "dp", "cp", "ep"};
    const char *of = dtm_checker_text(c, settings->mesh.axes[settings->pipeline.axis].name);
    for (int a = 0; keep && a < settings->mesh.count; a++) {
        bool taken = a == settings->pipeline.axis || settings->mesh.axes[a].time;
        for (int d = 0; d < keep->count; d++)
            for (int i = 0; i < keep->dims[d].n_axes; i++) taken |= keep->dims[d].axes[i] == a;
        if (taken) continue;
        dtm_help(c->context, "leave `%s` out, or name another axis, `%s`", of, dtm_checker_text(c, settings->mesh.axes[a].name));
        return;
    }
    for (size_t i = 0; i < DTM_COUNT(usual); i++) {
        if (dtm_axis_find(c->module, dtm_string_of(c->context, usual[i])) != DTM_NO_AXIS) continue;
        dtm_help(c->context, "%sgive the mesh another axis for it: `mesh { .., %s = 2 }`", keep ? "leave it out, or " : "", usual[i]);
        return;
    }
    dtm_help(c->context, "remove the line, or give the mesh another axis for it");
}

/* The ranks of a pipeline have programs of their own: its axis splits no dimension, and no value is held across it. */
static bool check_pipeline_alone(dtm_checker *c) {
    const dtm_settings *settings = &c->module->settings;
    const dtm_pipeline_rule *pipeline = &settings->pipeline;
    const dtm_keep_rule *keep = NULL;
    dtm_span also = {0, 0, 0};
    for (size_t i = 0; i < settings->n_splits; i++)
        if (settings->splits[i].axis == pipeline->axis) also = settings->splits[i].span;
    for (size_t i = 0; i < settings->n_keeps; i++)
        for (int d = 0; d < settings->keeps[i].count; d++)
            for (int a = 0; a < settings->keeps[i].dims[d].n_axes; a++)
                if (settings->keeps[i].dims[d].axes[a] == pipeline->axis) keep = &settings->keeps[i], also = keep->span;
    for (size_t i = 0; i < settings->n_zeros; i++)
        if (settings->zeros[i].axes >> pipeline->axis & 1) also = settings->zeros[i].span;
    if (!pipeline->present || !also.file) return true;
    dtm_error(c->context, also, 405, "a pipeline splits one repeat, and nothing else");
    dtm_note(c->context, pipeline->span, "the pipeline is here");
    help_other_axis(c, keep);
    return false;
}

bool dtm_section_parallel(dtm_checker *c, const dtm_entries *sets) {
    dtm_settings *settings = &c->module->settings;
    model_names names = names_of_model(c);
    bool good = true;
    settings->microbatches = 1;
    for (size_t p = 0; p < c->n_parallels; p++)
        for (size_t i = 0; i < c->parallels[p]->block->count; i++)
            good &= read_rule(c, c->parallels[p]->block->items[i], &names, sets);
    const dtm_expr *set = dtm_entries_find(c, sets, "microbatches");
    /* of a pipeline that is wrong itself it was read with that */
    if (set && good && !settings->pipeline.present) good &= read_microbatches(c, set, set->span);
    for (size_t i = 0; i < DTM_COUNT(pipeline_words) && good && !settings->pipeline.present; i++) {
        const dtm_expr *of_pipeline = dtm_entries_find(c, sets, pipeline_words[i]);
        if (!of_pipeline || of_pipeline == set) continue;
        dtm_error(c->context, of_pipeline->span, 236, "--set %s: the program has no pipeline", pipeline_words[i]);
        dtm_help(c->context, "let an axis split a repeat: `pp splits layer with schedule = 1f1b, microbatches = 8`");
        good = false;
    }
    good = good && check_pipeline_alone(c) && check_bubbles(c);
    return good && settings->microbatches > 1 ? add_time_axis(c) : good;
}
