/* Dumps: every line is one operator with the types of its results; names are unique in the module and known from where
 * they are set to its end. */
#include "frontend/checker.h"

#include <math.h>
#include <string.h>

/* ---- suffixes ---- */

static const double MOST_BYTES = 0x1p52; /* whole numbers below it are exact, and so are their sums */

static bool is_whole(double number, double least, double most) {
    return number >= least && number <= most && number == floor(number);
}

static bool is_binary(const dtm_expr *e, dtm_operator operator) { return e->kind == DTM_EXPR_BINARY && e->operator== operator; }

/* places(MICROBATCH, TABLE) */
static bool take_table(dtm_checker *c, const dtm_expr *at, double *table) {
    const dtm_clause *plain = &at->call->clauses[0];
    bool good = strcmp(dtm_checker_text(c, at->call->callee.text), "places") == 0 && at->call->count == 1 && plain->count == 2 &&
                plain->arguments[0].value->kind == DTM_EXPR_NAME && dtm_checker_is_number(c, plain->arguments[1].value);
    if (good) return dtm_checker_number(c, plain->arguments[1].value, table);
    dtm_error(c->context, at->span, 222, "places by microbatch are `places(MICROBATCH, TABLE)`");
    return false;
}

/* A term of a place in storage: OFFSET, (REPEAT + SHIFT) % MODULUS * STRIDE or places(MICROBATCH, TABLE) * STRIDE. */
static bool take_term(dtm_checker *c, const dtm_expr *at, dtm_storage *storage) {
    double stride = 0, modulus = 1, shift = 0;
    bool slots = is_binary(at, DTM_OPERATOR_MULTIPLY) && is_binary(at->left, DTM_OPERATOR_REMAINDER) &&
                 is_binary(at->left->left, DTM_OPERATOR_ADD);
    bool batches = is_binary(at, DTM_OPERATOR_MULTIPLY) && at->left->kind == DTM_EXPR_CALL;
    if (batches) {
        if (!dtm_checker_number(c, at->right, &stride) || !take_table(c, at->left, &modulus)) return false;
    } else if (slots) {
        if (!dtm_checker_number(c, at->right, &stride) || !dtm_checker_number(c, at->left->right, &modulus) ||
            !dtm_checker_number(c, at->left->left->right, &shift))
            return false;
    } else if (!dtm_checker_is_number(c, at)) {
        dtm_error(c->context, at->span, 222,
                  "storage is `at OFFSET`, and then `+ (REPEAT + SHIFT) %% MODULUS * STRIDE` and `+ places(MICROBATCH, TABLE) * STRIDE`");
        return false;
    } else if (!dtm_checker_number(c, at, &stride)) {
        return false;
    }
    if (!is_whole(stride, 0, MOST_BYTES) || !is_whole(modulus, 1, UINT32_MAX) || !is_whole(shift, 0, UINT32_MAX)) {
        dtm_error(c->context, at->span, 222, "places in storage are whole numbers of at least 0, a modulus and a table of at least 1");
        return false;
    }
    if (!slots && !batches) {
        storage->offset = (int64_t)stride;
    } else if (slots) {
        storage->stride = (int64_t)stride;
        storage->modulus = (uint32_t)modulus;
        storage->shift = (uint32_t)shift;
    } else {
        storage->batch_stride = (int64_t)stride;
        storage->places = (uint32_t)modulus;
    }
    return true;
}

static bool take_terms(dtm_checker *c, const dtm_expr *at, dtm_storage *storage) {
    if (is_binary(at, DTM_OPERATOR_ADD) && !dtm_checker_is_number(c, at))
        return take_terms(c, at->left, storage) && take_term(c, at->right, storage);
    return take_term(c, at, storage);
}

static bool take_storage(dtm_checker *c, const dtm_expr *at, dtm_storage *storage) {
    *storage = (dtm_storage){.modulus = 1};
    return take_terms(c, at, storage);
}

/* Storage stands once for each result that has any, in their order; with fewer, the first ones have it. */
static bool take_suffix(dtm_checker *c, dtm_op op, const dtm_statement *s) {
    dtm_op_data *data = dtm_op_get(c->module, op);
    data->place.line = s->suffix.line;
    data->place.file = s->suffix.file;
    data->why = s->suffix.why;
    for (size_t i = 0; i < s->suffix.n_at && i < data->n_results; i++)
        if (!take_storage(c, s->suffix.at[i], &dtm_value_get(c->module, data->results[i])->storage)) return false;
    return true;
}

/* ---- lines ---- */

static dtm_builder builder_of(dtm_checker *c, const dtm_statement *s) {
    dtm_builder builder = dtm_builder_at_end(c->module, c->region);
    builder.span = s->span;
    return builder;
}

static bool take_types(dtm_checker *c, const dtm_statement *s, dtm_type *types) {
    for (size_t i = 0; i < s->targets.count; i++) {
        const dtm_target *target = &s->targets.items[i];
        if (!target->type) {
            dtm_error(c->context, target->name.span, 223, "a dump says the type of every result");
            return false;
        }
        if (dtm_scope_find(c->scope, target->name.text)) {
            dtm_error(c->context, target->name.span, 216, "`%s` is set twice; in a dump names are unique",
                      dtm_checker_text(c, target->name.text));
            return false;
        }
        if (!dtm_checker_type(c, target->type, DTM_F32, &types[i])) return false;
    }
    return true;
}

static bool bind_results(dtm_checker *c, dtm_op op, const dtm_statement *s) {
    for (uint32_t i = 0; i < dtm_op_get(c->module, op)->n_results; i++) {
        dtm_value value = dtm_op_get(c->module, op)->results[i];
        dtm_name name = s->targets.items[i].name;
        if (dtm_value_get(c->module, value)->name != name.text)
            dtm_name_unique(c->module, dtm_checker_text(c, name.text));
        dtm_value_get(c->module, value)->name = name.text;
        dtm_scope_set(c, name, value);
    }
    return take_suffix(c, op, s);
}

static dtm_op build_line(dtm_checker *c, const dtm_statement *s, dtm_op_kind kind, const dtm_value *operands,
                         uint32_t n, const dtm_attributes *attributes, const dtm_type *types) {
    dtm_builder builder = builder_of(c, s);
    uint32_t n_results = (uint32_t)s->targets.count;
    if (kind == DTM_OP_REPORT || kind == DTM_OP_OUTPUT) n_results = 0;
    /* Names are those of the text: reserve them as they are. */
    const char *name = n_results ? dtm_checker_text(c, s->targets.items[0].name.text) : "";
    return dtm_build_op(&builder, kind, operands, n, attributes, types, n_results, name);
}

static bool check_source_line(dtm_checker *c, const dtm_statement *s, dtm_op_kind kind) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    dtm_type types[1];
    if (s->targets.count != 1) {
        dtm_error(c->context, s->span, 223, "a dump declares one name a line");
        return false;
    }
    if (!take_types(c, s, types)) return false;
    attributes.name = s->suffix.named ? s->suffix.named : s->targets.items[0].name.text;
    if (kind != DTM_OP_INPUT && !dtm_checker_init(c, s, &attributes)) return false;
    if (s->no_decay) attributes.flags |= DTM_WEIGHT_NO_DECAY;
    if (s->frozen) attributes.flags |= DTM_WEIGHT_FROZEN;
    if (s->exact) attributes.flags |= DTM_WEIGHT_EXACT;
    return bind_results(c, build_line(c, s, kind, NULL, 0, &attributes, types), s);
}

static bool check_result_count(dtm_checker *c, const dtm_statement *s, const dtm_read_call *call) {
    uint32_t wanted = dtm_op_rows[call->kind].results;
    if (wanted == DTM_SAME) wanted = call->n_operands;
    if (wanted == DTM_MANY) return true;
    if (wanted == s->targets.count) return true;
    dtm_error(c->context, s->span, 219, "`%s` has %u result%s, here %s %zu name%s", dtm_op_rows[call->kind].name,
              wanted, dtm_plural(wanted), s->targets.count == 1 ? "is" : "are", s->targets.count, dtm_plural((int64_t)s->targets.count));
    return false;
}

static bool check_operand_count(dtm_checker *c, const dtm_statement *s, const dtm_read_call *call) {
    const dtm_op_row *row = &dtm_op_rows[call->kind];
    if (call->n_operands >= row->min_operands &&
        (row->max_operands == DTM_MANY || call->n_operands <= row->max_operands))
        return true;
    dtm_error(c->context, s->span, 307, "`%s` has %u operand%s here", row->name, call->n_operands,
              call->n_operands == 1 ? "" : "s");
    return false;
}

static bool check_line(dtm_checker *c, const dtm_statement *s) {
    dtm_type types[64];
    dtm_read_call call;
    if (s->targets.count > 64 || !take_types(c, s, types)) return false;
    dtm_dtype dtype = s->targets.count ? (dtm_dtype)dtm_type_get(c->module, types[0])->dtype : DTM_F32;
    if (s->value->kind != DTM_EXPR_CALL && s->value->kind != DTM_EXPR_BINARY && s->value->kind != DTM_EXPR_NEGATE) {
        dtm_error(c->context, s->value->span, 223, "a line of a dump is one operator");
        return false;
    }
    if (!dtm_checker_call(c, s->value, "", dtype, &call)) return false;
    if (call.kind == DTM_OP_CARRY) call.n_operands = 2;
    if (!check_operand_count(c, s, &call) || !check_result_count(c, s, &call)) return false;
    dtm_op op = build_line(c, s, call.kind, call.operands, call.n_operands, &call.attributes, types);
    if (call.kind == DTM_OP_CARRY)
        DTM_PUSH(c->arena, c->carries, c->n_carries, c->cap_carries, ((dtm_pending_carry){op, call.carried}));
    return bind_results(c, op, s);
}

static bool check_named_sink(dtm_checker *c, const dtm_statement *s, dtm_op_kind kind) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.name = s->targets.items[0].name.text;
    if (s->value->kind != DTM_EXPR_NAME && !dtm_checker_is_number(c, s->value)) {
        dtm_error(c->context, s->value->span, 223, "in a dump a value is made on a line of its own");
        return false;
    }
    dtm_value value = dtm_checker_value(c, s->value, "");
    return value && take_suffix(c, build_line(c, s, kind, &value, 1, &attributes, NULL), s);
}

/* forward stage = 1, chunk = 1 { .. }, backward stage = 1, weights { .. }, microbatch m = 4, both_ways, order = "F0 B0 .." { .. } */
static bool read_of(dtm_checker *c, const dtm_binding *of, dtm_op_kind kind, dtm_attributes *attributes) {
    const char *word = dtm_checker_text(c, of->name.text);
    bool staged = kind == DTM_OP_FORWARD || kind == DTM_OP_BACKWARD;
    if (kind == DTM_OP_BACKWARD && !of->value && strcmp(word, "weights") == 0) {
        attributes->flags |= DTM_BACKWARD_WEIGHTS;
        return true;
    }
    if (kind == DTM_OP_MICROBATCH && of->value && of->value->kind == DTM_EXPR_STRING && strcmp(word, "order") == 0) {
        attributes->order = of->value->text;
        if (*dtm_checker_text(c, of->value->text)) return true;
        dtm_error(c->context, of->value->span, 512, "the order of a loop has a task for each region and microbatch, this one has none");
        return false;
    }
    if (kind == DTM_OP_MICROBATCH && of->value && of->value->kind == DTM_EXPR_STRING && strcmp(word, "places") == 0) {
        attributes->places = of->value->text;
        return true;
    }
    if (kind == DTM_OP_MICROBATCH && !of->value && strcmp(word, "both_ways") == 0) {
        attributes->flags |= DTM_MICROBATCH_BOTH_WAYS;
        return true;
    }
    if (kind == DTM_OP_MICROBATCH && of->value && (strcmp(word, "slots") == 0 || strcmp(word, "buffers") == 0)) {
        int64_t count;
        if (!dtm_checker_integer(c, of->value, 1, "how many messages", &count)) return false;
        attributes->number[word[0] == 's' ? DTM_MICROBATCH_SLOTS : DTM_MICROBATCH_BUFFERS] = (double)count;
        return true;
    }
    int number = strcmp(word, "stage") == 0 ? DTM_REGION_STAGE : strcmp(word, "chunk") == 0 ? DTM_REGION_CHUNK : -1;
    if (!staged || !of->value || number < 0) {
        dtm_error(c->context, of->name.span, 217, "`%s` has no `%s`%s", dtm_op_rows[kind].name, word,
                  of->value ? "" : " without a value");
        if (staged) dtm_help(c->context, "%s stage = 0, chunk = 0 {", dtm_op_rows[kind].name);
        if (kind == DTM_OP_MICROBATCH) dtm_help(c->context, "order = \"F0 F1 B0 B1\", slots = 2, buffers = 2");
        return false;
    }
    int64_t value;
    if (!dtm_checker_integer(c, of->value, 0, "a stage or chunk", &value)) return false;
    attributes->number[number] = (double)value;
    return true;
}

static bool check_region(dtm_checker *c, const dtm_statement *s, dtm_op_kind kind) {
    dtm_attributes attributes = dtm_attributes_default(kind);
    attributes.name = kind == DTM_OP_REPEAT || kind == DTM_OP_MICROBATCH ? s->name.text : 0;
    if (s->reversed) attributes.flags |= DTM_REPEAT_REVERSED;
    if (s->first && !dtm_checker_integer(c, s->first, 0, "the number of the first copy", &attributes.from)) return false;
    for (size_t i = 0; i < s->bindings.count; i++)
        if (!read_of(c, &s->bindings.items[i], kind, &attributes)) return false;
    if (attributes.name && !dtm_checker_copies(c, s->value, &attributes.copies)) return false;
    dtm_builder builder = builder_of(c, s);
    builder.span = s->keyword;
    dtm_op op = dtm_build_region(&builder, kind, &attributes);
    if (!take_suffix(c, op, s)) return false;
    dtm_region outer = c->region;
    c->region = dtm_op_get(c->module, op)->body;
    bool good = dtm_checker_dump_block(c, s->block);
    c->region = outer;
    return good;
}

static dtm_op_kind region_kind(const dtm_checker *c, const dtm_statement *s) {
    const char *name = dtm_checker_text(c, s->name.text);
    if (strcmp(name, "forward") == 0) return DTM_OP_FORWARD;
    if (strcmp(name, "backward") == 0) return DTM_OP_BACKWARD;
    return strcmp(name, "update") == 0 ? DTM_OP_UPDATE : DTM_OP_FUSED;
}

static bool check_statement(dtm_checker *c, const dtm_statement *s) {
    switch (s->kind) {
    case DTM_STATEMENT_INPUT:
        return check_source_line(c, s, DTM_OP_INPUT);
    case DTM_STATEMENT_WEIGHT:
        return check_source_line(c, s, DTM_OP_WEIGHT);
    case DTM_STATEMENT_STATE:
        return check_source_line(c, s, DTM_OP_STATE);
    case DTM_STATEMENT_ASSIGN:
    case DTM_STATEMENT_CALL:
    case DTM_STATEMENT_LOSS:
        return check_line(c, s);
    case DTM_STATEMENT_REPORT:
        return check_named_sink(c, s, DTM_OP_REPORT);
    case DTM_STATEMENT_OUTPUT:
        return check_named_sink(c, s, DTM_OP_OUTPUT);
    case DTM_STATEMENT_REPEAT:
        return check_region(c, s, DTM_OP_REPEAT);
    case DTM_STATEMENT_MICROBATCH:
        return check_region(c, s, DTM_OP_MICROBATCH);
    case DTM_STATEMENT_REGION:
        return check_region(c, s, region_kind(c, s));
    default:
        dtm_error(c->context, s->span, 101, "this cannot stand in a dump");
        return false;
    }
}

bool dtm_checker_dump_block(dtm_checker *c, const dtm_ast_block *block) {
    for (size_t i = 0; i < block->count; i++)
        if (!check_statement(c, block->items[i])) return false;
    return true;
}

bool dtm_checker_finish_carries(dtm_checker *c) {
    for (size_t i = 0; i < c->n_carries; i++) {
        dtm_name name = c->carries[i].name;
        dtm_value value = dtm_scope_find(c->scope, name.text);
        if (!value) {
            dtm_error(c->context, name.span, 211, "`%s` has no value anywhere", dtm_checker_text(c, name.text));
            return false;
        }
        dtm_op_get(c->module, c->carries[i].op)->operands[1] = value;
    }
    return true;
}
