/* Writes a module in the .dtm language: what it prints parses back to the same module and prints the same bytes. */
#include "ir/ir.h"

#include <string.h>

typedef struct printer {
    dtm_module *module;
    const dtm_print_options *options;
    dtm_text *out;
} printer;

static const char *string_text(const printer *p, dtm_string s) {
    return dtm_string_text(p->module->context, s);
}

static void indent(const printer *p, int depth) {
    dtm_text_printf(p->out, "%*s", depth * 4, "");
}

static void print_quoted(dtm_text *out, const char *text) {
    dtm_text_append(out, "\"", 1);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') dtm_text_append(out, "\\", 1);
        dtm_text_append(out, text, 1);
    }
    dtm_text_append(out, "\"", 1);
}

static void print_dims(const printer *p, const char *word, const dtm_dim *dims, int count, dtm_text *out) {
    for (int i = 0; i < count; i++) dtm_text_printf(out, "%s%s", i ? ", " : word, dtm_dim_name(p->module, dims[i]));
}

static void print_axis_set(const printer *p, const char *word, uint16_t axes, dtm_text *out) {
    for (int a = 0; a < p->module->settings.mesh.count; a++)
        if (axes & (1 << a)) {
            dtm_text_printf(out, "%s%s", word, string_text(p, p->module->settings.mesh.axes[a].name));
            word = ".";
        }
}

/* ---- expressions ---- */

static void print_operand(const printer *p, dtm_value value, dtm_text *out) {
    if (!dtm_value_is_constant(p->module, value)) {
        dtm_text_printf(out, "%s", value ? dtm_value_name(p->module, value) : "?");
        return;
    }
    dtm_text_number(out, p->module->values[value].number);
    /* A literal takes its neighbours' dtype; alone it is f32. */
}

static void print_operands(const printer *p, const dtm_op_data *op, dtm_text *out) {
    for (uint32_t i = 0; i < op->n_operands; i++) {
        if (i) dtm_text_printf(out, ", ");
        print_operand(p, op->operands[i], out);
    }
}

/* Keyword attributes that differ from the row's defaults, and flags. */
static void print_keywords(const dtm_op_data *op, const char *separator, dtm_text *out) {
    const dtm_op_row *row = &dtm_op_rows[op->kind];
    dtm_attributes defaults = dtm_attributes_default(op->kind);
    const char *name = row->numbers;
    for (int i = 0; *name; i++) {
        size_t length = strcspn(name, "=");
        if (op->attributes.number[i] != defaults.number[i]) {
            dtm_text_printf(out, "%s%.*s = ", separator, (int)length, name);
            dtm_text_number(out, op->attributes.number[i]);
            separator = ", ";
        }
        name += strcspn(name, " ");
        name += *name == ' ';
    }
    const char *flag = row->flags;
    for (int i = 0; *flag; i++) {
        size_t length = strcspn(flag, " ");
        if (op->attributes.flags & (1u << i)) {
            dtm_text_printf(out, "%s%.*s", separator, (int)length, flag);
            separator = ", ";
        }
        flag += length + (flag[length] == ' ');
    }
}

static void print_shape_call(const printer *p, const dtm_op_data *op, dtm_text *out) {
    const dtm_attributes *a = &op->attributes;
    dtm_text_printf(out, "%s(", dtm_op_rows[op->kind].name);
    print_operands(p, op, out);
    if (op->kind == DTM_OP_SLICE || op->kind == DTM_OP_PAD) {
        bool pad = op->kind == DTM_OP_PAD;
        dtm_text_printf(out, ", %s = %lld..%lld as %s)", dtm_dim_name(p->module, pad ? a->as[0] : a->over[0]),
                        (long long)a->from, (long long)a->to, dtm_dim_name(p->module, pad ? a->over[0] : a->as[0]));
        return;
    }
    print_dims(p, op->kind == DTM_OP_CONCAT ? " over " : ", ", a->over, a->n_over, out);
    print_dims(p, " as ", a->as, a->n_as, out);
    dtm_text_printf(out, ")");
}

static void print_call(const printer *p, const dtm_op_data *op, dtm_text *out) {
    const dtm_attributes *a = &op->attributes;
    dtm_text_printf(out, "%s(", dtm_op_rows[op->kind].name);
    print_operands(p, op, out);
    if (op->kind == DTM_OP_CAST) dtm_text_printf(out, ", %s", dtm_dtype_name(a->dtype));
    print_dims(p, op->kind == DTM_OP_POSITIONS ? "" : " over ", a->over, a->n_over, out);
    print_dims(p, " as ", a->as, a->n_as, out);
    if (a->at) dtm_text_printf(out, " at %s", dtm_dim_name(p->module, a->at));
    print_axis_set(p, op->n_operands || a->n_over ? " on " : "on ", a->axes, out);
    if (a->members) {
        dtm_text_printf(out, ", members = ");
        print_quoted(out, string_text(p, a->members));
    }
    print_keywords(op, op->n_operands || a->n_over || a->axes ? ", " : "", out);
    dtm_text_printf(out, ")");
}

static bool is_infix(dtm_op_kind kind) {
    return (kind >= DTM_OP_ADD && kind <= DTM_OP_DIV) || (kind >= DTM_OP_LT && kind <= DTM_OP_NE);
}

static void print_init(const dtm_attributes *a, dtm_text *out) {
    switch (a->init) {
    case DTM_INIT_ZEROS:
        dtm_text_printf(out, "zeros");
        break;
    case DTM_INIT_ONES:
        dtm_text_printf(out, "ones");
        break;
    case DTM_INIT_NORMAL:
        dtm_text_printf(out, "normal(");
        dtm_text_number(out, a->init_a);
        dtm_text_printf(out, ")");
        break;
    case DTM_INIT_UNIFORM:
        dtm_text_printf(out, "uniform(");
        dtm_text_number(out, a->init_a);
        dtm_text_printf(out, ", ");
        dtm_text_number(out, a->init_b);
        dtm_text_printf(out, ")");
        break;
    case DTM_INIT_NUMBER:
        dtm_text_number(out, a->init_a);
        break;
    }
}

static void print_expression(const printer *p, const dtm_op_data *op, dtm_text *out) {
    switch (op->kind) {
    case DTM_OP_WEIGHT:
    case DTM_OP_STATE:
        print_init(&op->attributes, out);
        if (op->attributes.flags & DTM_WEIGHT_NO_DECAY) dtm_text_printf(out, ", no decay");
        if (op->attributes.flags & DTM_WEIGHT_FROZEN) dtm_text_printf(out, ", frozen");
        if (op->attributes.flags & DTM_WEIGHT_EXACT) dtm_text_printf(out, ", exact");
        return;
    case DTM_OP_NEG:
        dtm_text_printf(out, "-");
        print_operand(p, op->operands[0], out);
        return;
    case DTM_OP_SPLIT:
    case DTM_OP_MERGE:
    case DTM_OP_RENAME:
    case DTM_OP_CONCAT:
    case DTM_OP_SLICE:
    case DTM_OP_PAD:
        print_shape_call(p, op, out);
        return;
    default:
        break;
    }
    if (!is_infix(op->kind)) {
        print_call(p, op, out);
        return;
    }
    print_operand(p, op->operands[0], out);
    dtm_text_printf(out, " %s ", dtm_op_rows[op->kind].name);
    print_operand(p, op->operands[1], out);
}

/* ---- lines ---- */

/* A line in columns, padded over the block of consecutive lines it stands in. */
typedef struct line {
    dtm_text name, type, expression, suffix;
} line;

static void print_storage(const printer *p, dtm_value value, dtm_text *out) {
    const dtm_storage *s = &p->module->values[value].storage;
    if (s->offset < 0) return;
    dtm_text_printf(out, " at %lld", (long long)s->offset);
    if (s->modulus > 1) {
        dtm_op repeat = dtm_value_repeat(p->module, value);
        dtm_text_printf(out, " + (%s + %u) %% %u * %lld",
                        repeat ? string_text(p, dtm_op_get(p->module, repeat)->attributes.name) : "0", s->shift, s->modulus,
                        (long long)s->stride);
    }
    if (!s->places) return;
    dtm_op loop = dtm_enclosing(p->module, p->module->values[value].def, DTM_OP_MICROBATCH);
    dtm_text_printf(out, " + places(%s, %u) * %lld", loop ? string_text(p, dtm_op_get(p->module, loop)->attributes.name) : "0",
                    s->places, (long long)s->batch_stride);
}

static void print_place(const printer *p, dtm_place place, dtm_text *out) {
    if (!place.line) return;
    dtm_text_printf(out, "  @ ");
    if (place.file) {
        print_quoted(out, string_text(p, place.file));
        dtm_text_printf(out, ":");
    }
    dtm_text_printf(out, "%u", place.line);
}

static void print_suffix(const printer *p, const dtm_op_data *op, dtm_text *out) {
    if (op->kind == DTM_OP_WEIGHT || op->kind == DTM_OP_STATE || op->kind == DTM_OP_INPUT) {
        dtm_text_printf(out, " named ");
        print_quoted(out, string_text(p, op->attributes.name));
    }
    for (uint32_t i = 0; i < op->n_results; i++) print_storage(p, op->results[i], out);
    print_place(p, op->place, out);
    if (op->why) {
        dtm_text_printf(out, "  why ");
        print_quoted(out, string_text(p, op->why));
    }
}

static void print_local_shape(const printer *p, const dtm_op_data *op, dtm_text *out) {
    if (!p->options->local_shapes) return;
    for (uint32_t i = 0; i < op->n_results; i++) {
        const dtm_type_data *type = dtm_value_type(p->module, op->results[i]);
        if (!dtm_type_split_axes(type)) continue;
        dtm_text_printf(out, "  # local %s[", dtm_dtype_name((dtm_dtype)type->dtype));
        for (int d = 0; d < type->rank; d++)
            dtm_text_printf(out, "%s%lld", d ? ", " : "", (long long)dtm_block_max(p->module, type, d));
        dtm_text_printf(out, "]");
        return;
    }
}

static const char *keyword_of(dtm_op_kind kind) {
    switch (kind) {
    case DTM_OP_INPUT:
        return "input ";
    case DTM_OP_WEIGHT:
        return "weight ";
    case DTM_OP_STATE:
        return "state ";
    default:
        return "";
    }
}

static void fill_line(const printer *p, const dtm_op_data *op, line *l) {
    bool with_layout = p->module->after != 0;
    if (op->kind == DTM_OP_REPORT || op->kind == DTM_OP_OUTPUT) {
        dtm_text_printf(&l->name, "%s %s = %s", dtm_op_rows[op->kind].name, string_text(p, op->attributes.name),
                        dtm_value_name(p->module, op->operands[0]));
        if (dtm_value_is_constant(p->module, op->operands[0])) print_operand(p, op->operands[0], &l->name);
    } else if (!op->n_results) {
        print_call(p, op, &l->name);
    } else {
        dtm_text_printf(&l->name, "%s", keyword_of(op->kind));
        for (uint32_t i = 0; i < op->n_results; i++) {
            dtm_text *column = i ? &l->type : &l->name;
            if (i) dtm_text_printf(column, ", ");
            dtm_text_printf(column, "%s", dtm_value_name(p->module, op->results[i]));
            dtm_text_printf(&l->type, " : ");
            dtm_type_print(p->module, p->module->values[op->results[i]].type, with_layout, &l->type);
        }
        if (op->kind != DTM_OP_INPUT) {
            dtm_text_printf(&l->expression, " = ");
            print_expression(p, op, &l->expression);
        }
    }
    print_suffix(p, op, &l->suffix);
    print_local_shape(p, op, &l->suffix);
}

static size_t widest(size_t least, const dtm_text *text) {
    return text->length > least ? text->length : least;
}

static void print_column(dtm_text *out, const dtm_text *text, size_t width) {
    if (text->length) dtm_text_append(out, text->data, text->length);
    if (text->length < width) dtm_text_printf(out, "%*s", (int)(width - text->length), "");
}

static void print_block(const printer *p, const dtm_op *ops, size_t count, int depth) {
    dtm_arena *scratch = dtm_arena_create();
    line *lines = dtm_arena_alloc(scratch, count * sizeof *lines);
    size_t name = 0, type = 0, expression = 0;
    for (size_t i = 0; i < count; i++) {
        lines[i].name.arena = lines[i].type.arena = lines[i].expression.arena = lines[i].suffix.arena = scratch;
        fill_line(p, dtm_op_get(p->module, ops[i]), &lines[i]);
        if (lines[i].type.length) name = widest(name, &lines[i].name);
        /* One very wide type or expression does not push the others out of sight. */
        if (lines[i].type.length <= 60) type = widest(type, &lines[i].type);
        if (lines[i].expression.length <= 50) expression = widest(expression, &lines[i].expression);
    }
    for (size_t i = 0; i < count; i++) {
        bool suffix = lines[i].suffix.length;
        indent(p, depth);
        print_column(p->out, &lines[i].name, lines[i].type.length ? name : 0);
        print_column(p->out, &lines[i].type, lines[i].expression.length ? type : 0);
        print_column(p->out, &lines[i].expression, suffix && lines[i].expression.length ? expression : 0);
        print_column(p->out, &lines[i].suffix, 0);
        dtm_text_printf(p->out, "\n");
    }
    dtm_arena_destroy(scratch);
}

static void print_region_header(const printer *p, const dtm_op_data *op) {
    dtm_text_printf(p->out, "%s", dtm_op_rows[op->kind].name);
    if (op->kind == DTM_OP_REPEAT || op->kind == DTM_OP_MICROBATCH)
        dtm_text_printf(p->out, " %s = %lld", string_text(p, op->attributes.name), (long long)op->attributes.copies);
    if (op->kind == DTM_OP_MICROBATCH && op->attributes.order) {
        dtm_text_printf(p->out, ", order = ");
        print_quoted(p->out, string_text(p, op->attributes.order));
        print_keywords(op, ", ", p->out);
    }
    if (op->attributes.places) {
        dtm_text_printf(p->out, ", places = ");
        print_quoted(p->out, string_text(p, op->attributes.places));
    }
    if (op->kind == DTM_OP_REPEAT && op->attributes.from)
        dtm_text_printf(p->out, " from %lld", (long long)op->attributes.from);
    if (op->kind == DTM_OP_REPEAT && op->attributes.flags & DTM_REPEAT_REVERSED) dtm_text_printf(p->out, " reversed");
    if (op->kind == DTM_OP_FORWARD || op->kind == DTM_OP_BACKWARD) print_keywords(op, " ", p->out);
    print_place(p, op->place, p->out);
    dtm_text_printf(p->out, " {\n");
}

static bool is_selected(const printer *p, const dtm_op_data *op) {
    dtm_string only = p->options->only;
    return only == op->attributes.name || strcmp(string_text(p, only), dtm_op_rows[op->kind].name) == 0;
}

/* With a selection, lines outside it are passed over, and regions that hold it are shown. */
static void print_region(const printer *p, dtm_region region, int depth, bool selected) {
    const dtm_region_data *data = &p->module->regions[region];
    for (size_t i = 0; i < data->n_ops;) {
        size_t end = i;
        while (end < data->n_ops && !dtm_op_get(p->module, data->ops[end])->body) end++;
        if (end > i) {
            if (selected) print_block(p, data->ops + i, end - i, depth);
            i = end;
            continue;
        }
        const dtm_op_data *op = dtm_op_get(p->module, data->ops[i++]);
        bool inside = selected || is_selected(p, op);
        if (inside) {
            indent(p, depth);
            print_region_header(p, op);
        }
        print_region(p, op->body, depth + inside, inside);
        if (inside) {
            indent(p, depth);
            dtm_text_printf(p->out, "}\n");
        }
    }
}

/* ---- sections ---- */

static void print_number_setting(dtm_text *out, const char *key, double number) {
    dtm_text_printf(out, "%s = ", key);
    dtm_text_number(out, number);
}

static void print_dim_section(const printer *p) {
    size_t on_line = 0;
    for (dtm_dim d = 1; d < p->module->n_dims; d++) {
        dtm_text_printf(p->out, "%s%s = %lld", on_line ? ", " : (d > 1 ? "\ndim " : "dim "), dtm_dim_name(p->module, d),
                        (long long)p->module->dims[d].size);
        on_line = (on_line + 1) % 8;
    }
    if (p->module->n_dims > 1) dtm_text_printf(p->out, "\n\n");
}

static void print_mesh(const printer *p) {
    const dtm_mesh *mesh = &p->module->settings.mesh;
    const char *before = "\nmesh { ";
    int printed = 0;
    for (int a = 0; a < mesh->count; a++) {
        if (mesh->axes[a].time) continue;
        dtm_text_printf(p->out, "%s%s = %lld", before, string_text(p, mesh->axes[a].name),
                        (long long)mesh->axes[a].size);
        before = ", ";
        printed++;
    }
    if (printed) dtm_text_printf(p->out, " }\n");
}

static void print_machine(const printer *p) {
    const dtm_machine *m = &p->module->settings.machine;
    if (!m->present) return;
    dtm_text_printf(p->out, "\nmachine {\n    name = ");
    print_quoted(p->out, string_text(p, m->name));
    print_number_setting(p->out, "\n    devices_per_node", (double)m->devices_per_node);
    print_number_setting(p->out, "\n    flops_f32", m->flops_f32);
    print_number_setting(p->out, "\n    flops_bf16", m->flops_bf16);
    print_number_setting(p->out, "\n    memory_bandwidth", m->memory_bandwidth);
    print_number_setting(p->out, "\n    memory", m->memory);
    print_number_setting(p->out, "\n    node {\n        bandwidth", m->node_bandwidth);
    print_number_setting(p->out, "\n        latency", m->node_latency);
    print_number_setting(p->out, "\n    }\n    network {\n        bandwidth", m->network_bandwidth);
    print_number_setting(p->out, "\n        latency", m->network_latency);
    dtm_text_printf(p->out, "\n    }\n}\n");
}

static void print_splits(const printer *p, const dtm_splits_rule *rule) {
    static const char *const usings[] = {"", " using alltoall", " using gather", " using ring"};
    dtm_text_printf(p->out, "    %s splits", string_text(p, p->module->settings.mesh.axes[rule->axis].name));
    print_dims(p, " ", rule->dims, rule->count, p->out);
    dtm_text_printf(p->out, "%s%s", rule->by_cost ? " by cost" : "", usings[rule->using]);
    if (p->module->after) print_place(p, rule->place, p->out);
    dtm_text_printf(p->out, "\n");
}

static void print_keep(const printer *p, const dtm_keep_rule *rule) {
    dtm_text_printf(p->out, "    keep %s%s%s as [", string_text(p, rule->region), rule->region ? "." : "",
                    string_text(p, rule->value));
    for (int i = 0; i < rule->count; i++) {
        dtm_text_printf(p->out, "%s%s", i ? ", " : "", dtm_dim_name(p->module, rule->dims[i].dim));
        if (rule->dims[i].whole) dtm_text_printf(p->out, "@-");
        for (int a = 0; a < rule->dims[i].n_axes; a++)
            dtm_text_printf(p->out, "%s%s", a ? "." : "@",
                            string_text(p, p->module->settings.mesh.axes[rule->dims[i].axes[a]].name));
    }
    dtm_text_printf(p->out, "]\n");
}

static void print_expect(const printer *p, const dtm_expect_rule *rule) {
    dtm_text_printf(p->out, "    expect %s%s{ ", string_text(p, rule->place), rule->place ? " " : "");
    const char *what = dtm_op_rows[rule->collective].name;
    if (rule->kind != DTM_EXPECT_COLLECTIVE) what = rule->kind == DTM_EXPECT_MEMORY ? "memory" : "bubble";
    dtm_text_printf(p->out, "%s", what);
    print_axis_set(p, " on ", rule->axes, p->out);
    dtm_text_printf(p->out, rule->at_most ? " <= " : " = ");
    dtm_text_number(p->out, rule->bound);
    dtm_text_printf(p->out, " }\n");
}

static void print_pipeline(const printer *p, const dtm_settings *s) {
    const dtm_pipeline_rule *rule = &s->pipeline;
    dtm_text_printf(p->out, "    %s splits %s with schedule = %s, microbatches = %lld",
                    string_text(p, s->mesh.axes[rule->axis].name), string_text(p, rule->repeat),
                    string_text(p, rule->schedule), (long long)(s->microbatches / (rule->rounds ? rule->rounds : 1)));
    if (rule->chunks > 1 || (rule->chunks && !rule->n_stages)) dtm_text_printf(p->out, ", chunks = %lld", (long long)rule->chunks);
    for (size_t i = 0; i < rule->n_stages; i++)
        dtm_text_printf(p->out, "%s%lld", i ? ", " : ", stages = [", (long long)rule->stages[i]);
    if (rule->n_stages) dtm_text_printf(p->out, "]");
    if (p->module->after) print_place(p, rule->place, p->out);
    dtm_text_printf(p->out, "\n");
}

static void print_zero(const printer *p, const dtm_zero_rule *rule) {
    const char *between = " on ";
    dtm_text_printf(p->out, "    zero %d", rule->stage);
    for (int a = 0; a < p->module->settings.mesh.count; a++) {
        if (!(rule->axes >> a & 1)) continue;
        dtm_text_printf(p->out, "%s%s", between, string_text(p, p->module->settings.mesh.axes[a].name));
        between = ", ";
    }
    if (p->module->after) print_place(p, rule->place, p->out);
    dtm_text_printf(p->out, "\n");
}

static void print_parallel(const printer *p) {
    const dtm_settings *s = &p->module->settings;
    if (!s->n_splits && !s->n_zeros && !s->n_keeps && !s->n_expects && s->microbatches <= 1 && !s->pipeline.present) return;
    dtm_text_printf(p->out, "\nparallel {\n");
    for (size_t i = 0; i < s->n_splits; i++) print_splits(p, &s->splits[i]);
    if (s->pipeline.present && s->pipeline.rounds > 1)
        dtm_text_printf(p->out, "    microbatches %lld\n", (long long)s->pipeline.rounds);
    if (s->pipeline.present) print_pipeline(p, s);
    else if (s->microbatches > 1) dtm_text_printf(p->out, "    microbatches %lld\n", (long long)s->microbatches);
    for (size_t i = 0; i < s->n_zeros; i++) print_zero(p, &s->zeros[i]);
    for (size_t i = 0; i < s->n_keeps; i++) print_keep(p, &s->keeps[i]);
    for (size_t i = 0; i < s->n_expects; i++) print_expect(p, &s->expects[i]);
    dtm_text_printf(p->out, "}\n");
}

static void print_learning_rate(const printer *p, const dtm_train *t) {
    static const char *const schedules[] = {"constant", "linear", "cosine"};
    dtm_text_printf(p->out, "lr = %s(", schedules[t->schedule]);
    print_number_setting(p->out, "peak", t->peak);
    print_number_setting(p->out, ", warmup", t->warmup);
    if (t->schedule != DTM_LR_CONSTANT) {
        print_number_setting(p->out, ", steps", t->schedule_steps);
        print_number_setting(p->out, ", floor", t->floor);
    }
    dtm_text_printf(p->out, ")");
}

static void print_train(const printer *p) {
    const dtm_train *t = &p->module->settings.train;
    if (!t->present) return;
    dtm_text_printf(p->out, "\ntrain {\n    optimizer %s(", t->optimizer == DTM_ADAMW ? "adamw" : "sgd");
    print_learning_rate(p, t);
    if (t->optimizer == DTM_ADAMW) {
        print_number_setting(p->out, ", beta1", t->beta1);
        print_number_setting(p->out, ", beta2", t->beta2);
        print_number_setting(p->out, ", eps", t->eps);
    } else {
        print_number_setting(p->out, ", momentum", t->momentum);
    }
    print_number_setting(p->out, ", decay", t->decay);
    dtm_text_printf(p->out, ")\n");
    if (t->clip > 0) dtm_text_printf(p->out, "    clip "), dtm_text_number(p->out, t->clip);
    if (t->clip > 0) dtm_text_printf(p->out, "\n");
    if (t->precision != DTM_F32) dtm_text_printf(p->out, "    precision %s", dtm_dtype_name(t->precision));
    if (t->precision == DTM_F16) {
        print_number_setting(p->out, "(scale", t->scale);
        print_number_setting(p->out, ", grow_after", t->grow_after);
        dtm_text_printf(p->out, ")");
    }
    if (t->precision != DTM_F32) dtm_text_printf(p->out, "\n");
    if (t->reduce != DTM_F32) dtm_text_printf(p->out, "    reduce %s\n", dtm_dtype_name(t->reduce));
    dtm_text_printf(p->out, "    steps %lld\n    seed %llu\n}\n", (long long)t->steps, (unsigned long long)t->seed);
}

static const char *pipeline_axis(const printer *p) {
    const dtm_settings *s = &p->module->settings;
    return string_text(p, s->mesh.axes[s->pipeline.axis].name);
}

/* Of a pipeline, after stage: which ranks it is of. */
static void print_model(const printer *p) {
    dtm_text_printf(p->out, "model %s", string_text(p, p->module->name));
    if (p->module->of_ranks) dtm_text_printf(p->out, " %s = %lld", pipeline_axis(p), (long long)p->module->rank);
    if (p->module->of_ranks && p->module->arena_bytes)
        dtm_text_printf(p->out, ", arena = %lld", (long long)p->module->arena_bytes);
    dtm_text_printf(p->out, " {\n");
    print_region(p, p->module->body, 1, true);
    dtm_text_printf(p->out, "}\n");
}

void dtm_module_print(dtm_module *module, const dtm_print_options *options, dtm_text *out) {
    static const dtm_print_options defaults;
    printer p = {module, options ? options : &defaults, out};
    if (p.options->only) {
        if (!module->n_ranks) print_region(&p, module->body, 0, false);
        for (size_t i = 0; i < module->n_ranks; i++) {
            printer of_rank = {module->ranks[i], p.options, out};
            size_t before = out->length;
            dtm_text_printf(out, "%s# %s = %zu\n", before ? "\n" : "", pipeline_axis(&of_rank), i);
            size_t headed = out->length;
            print_region(&of_rank, module->ranks[i]->body, 0, false);
            if (out->length == headed) out->data[out->length = before] = 0; /* this rank has no such region */
        }
        return;
    }
    if (module->after) dtm_text_printf(out, "after %s\n", string_text(&p, module->after));
    if (module->after) dtm_text_printf(out, "source %llu\n", (unsigned long long)module->source_hash);
    if (module->arena_bytes) dtm_text_printf(out, "arena %lld\n", (long long)module->arena_bytes);
    if (module->after) dtm_text_printf(out, "\n");
    print_dim_section(&p);
    if (!module->n_ranks) print_model(&p);
    for (size_t i = 0; i < module->n_ranks; i++) {
        if (i) dtm_text_printf(out, "\n");
        print_model(&(printer){module->ranks[i], p.options, out});
    }
    print_mesh(&p);
    print_machine(&p);
    print_parallel(&p);
    print_train(&p);
}
