/* The messages of the stages in the loop over microbatches: what a region sends is what the region of the next stage (of the backward pass: of the one
 * before) receives, value by value. stage writes them so; a dump that comes back may say otherwise. */
#include "ir/calls.h"
#include "passes/schedule.h"

#include <string.h>

typedef struct side {
    const dtm_module *rank;
    const dtm_op_data *region;
    dtm_op send, receive; /* 0: none */
} side;

static const char *pass_name(const side *s) { return dtm_op_rows[s->region->kind].name; }
static int stage_of(const dtm_op_data *region) { return (int)region->attributes.number[DTM_REGION_STAGE]; }
static int peer_of(const dtm_module *rank, dtm_op message) { return (int)dtm_op_get(rank, message)->attributes.number[DTM_MESSAGE_PEER]; }

static bool takes_part(const dtm_op_data *region) {
    bool weights = region->kind == DTM_OP_BACKWARD && region->attributes.flags & DTM_BACKWARD_WEIGHTS;
    return (region->kind == DTM_OP_FORWARD || region->kind == DTM_OP_BACKWARD) && !weights && stage_of(region) >= 0;
}

/* False after an error. */
static bool find_messages(const dtm_module *rank, const dtm_op_data *region, side *s) {
    *s = (side){rank, region, 0, 0};
    const dtm_region_data *body = &rank->regions[region->body];
    for (size_t i = 0; i < body->n_ops; i++) {
        const dtm_op_data *op = dtm_op_get(rank, body->ops[i]);
        if (op->kind != DTM_OP_SEND && op->kind != DTM_OP_RECEIVE) continue;
        dtm_op *place = op->kind == DTM_OP_SEND ? &s->send : &s->receive;
        if (*place) {
            dtm_error(rank->context, op->span, 511, "`%s stage = %d` has a second `%s`", pass_name(s), stage_of(region),
                      dtm_op_rows[op->kind].name);
            return false;
        }
        *place = body->ops[i];
    }
    return true;
}

static const dtm_op_data *region_of(const dtm_module *rank, dtm_op_kind kind, int stage) {
    dtm_op loop = dtm_rank_loop(rank);
    const dtm_region_data *body = loop ? &rank->regions[dtm_op_get(rank, loop)->body] : NULL;
    for (size_t i = 0; body && i < body->n_ops; i++) {
        const dtm_op_data *region = dtm_op_get(rank, body->ops[i]);
        if (takes_part(region) && region->kind == kind && stage_of(region) == stage) return region;
    }
    return NULL;
}

bool schedule_same_type(const dtm_module *a, dtm_value x, const dtm_module *b, dtm_value y) {
    const dtm_type_data *p = dtm_value_type(a, x), *q = dtm_value_type(b, y);
    bool same = p->dtype == q->dtype && p->rank == q->rank && p->sum == q->sum && p->max == q->max;
    for (int d = 0; same && d < p->rank; d++)
        same = strcmp(dtm_dim_name(a, p->dims[d]), dtm_dim_name(b, q->dims[d])) == 0 &&
               memcmp(&p->layout[d], &q->layout[d], sizeof p->layout[d]) == 0;
    return same;
}

static const char *place_of(const dtm_module *rank, dtm_op message) {
    dtm_op around = dtm_enclosing(rank, message, DTM_OP_NONE);
    const dtm_op_data *region = dtm_op_get(rank, around);
    const char *pass = dtm_op_rows[region->kind].name;
    int stage = stage_of(region);
    return stage < 0 ? pass : dtm_string_text(rank->context, dtm_string_printf(rank->context, "%s stage = %d", pass, stage));
}

bool schedule_agree(const dtm_module *from, dtm_op sent, const dtm_module *to, dtm_op received) {
    dtm_context *context = from->context;
    const dtm_op_data *send = dtm_op_get(from, sent), *receive = dtm_op_get(to, received);
    if (send->n_operands != receive->n_results) {
        dtm_error(context, receive->span, 511, "`receive` of `%s` takes %u value%s, and %u come%s", place_of(to, received),
                  receive->n_results, receive->n_results == 1 ? "" : "s", send->n_operands, send->n_operands == 1 ? "s" : "");
        dtm_note(context, send->span, "sent here");
        return false;
    }
    for (uint32_t i = 0; i < send->n_operands; i++) {
        if (schedule_same_type(from, send->operands[i], to, receive->results[i])) continue;
        dtm_error(context, receive->span, 511, "`%s` comes as `%s`, of another type", dtm_value_name(to, receive->results[i]),
                  dtm_value_name(from, send->operands[i]));
        dtm_note(context, send->span, "sent here");
        return false;
    }
    return true;
}

/* The other side of a message, which must be there. */
static bool has_other(const dtm_module *module, int rank, const side *s, dtm_op message) {
    const dtm_op_data *data = dtm_op_get(s->rank, message);
    bool sends = data->kind == DTM_OP_SEND, forward = s->region->kind == DTM_OP_FORWARD;
    int stage = stage_of(s->region) + (sends == forward ? 1 : -1), peer = peer_of(s->rank, message);
    side other = {NULL, NULL, 0, 0};
    const dtm_op_data *region =
        peer >= 0 && (size_t)peer < module->n_ranks ? region_of(module->ranks[peer], s->region->kind, stage) : NULL;
    if (region && !find_messages(module->ranks[peer], region, &other)) return false;
    dtm_op match = sends ? other.receive : other.send;
    if (match && peer_of(other.rank, match) == rank) return !sends || schedule_agree(s->rank, message, other.rank, match);
    dtm_error(module->context, data->span, 511, "`%s stage = %d` of rank %d %s rank %d, where `%s stage = %d` %s", pass_name(s),
              stage_of(s->region), rank, sends ? "sends to" : "receives from", peer, pass_name(s), stage,
              !region ? "is not" : sends ? "does not receive it" : "does not send it");
    return false;
}

bool schedule_messages(const dtm_module *module) {
    bool good = true;
    for (size_t r = 0; r < module->n_ranks; r++) {
        const dtm_module *rank = module->ranks[r];
        dtm_op loop = dtm_rank_loop(rank);
        const dtm_region_data *body = loop ? &rank->regions[dtm_op_get(rank, loop)->body] : NULL;
        for (size_t i = 0; body && good && i < body->n_ops; i++) {
            side s;
            const dtm_op_data *region = dtm_op_get(rank, body->ops[i]);
            if (!takes_part(region)) continue;
            good = find_messages(rank, region, &s) && (!s.send || has_other(module, (int)r, &s, s.send)) &&
                   (!s.receive || has_other(module, (int)r, &s, s.receive));
        }
    }
    return good;
}
