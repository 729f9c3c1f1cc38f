/* The update follows its weights, not the rules: an operator is split as the largest of its operands is, and a weight's
 * moments as the weight. So nothing is sent for it but the gradients themselves; and sums over what is split (the norm of
 * all gradients) stay terms, counted once where they are alike, until something asks for the number. */
#include "ir/fault.h"
#include "passes/shard.h"

#include <string.h>

static shard_state weight_state(const shard *s, dtm_value weight, int axis) {
    dtm_op def = s->module->values[weight].def;
    return def && s->ops[def].choice[axis] != CHOICE_NONE ? shard_value_state(s, weight, axis) : STATE_ALIKE;
}

/* What the update finds of a value: its own values as they are made, gradients as their weights, all else alike. */
static shard_state found_state(const shard *s, dtm_value value, int axis) {
    dtm_op def = s->module->values[value].def;
    if (!def) return STATE_ALIKE;
    if (s->weight_of[value]) return weight_state(s, s->weight_of[value], axis);
    if (s->module->ops[def].kind == DTM_OP_WEIGHT) return weight_state(s, value, axis);
    return s->ops[def].phase == PHASE_UPDATE ? shard_value_state(s, value, axis) : STATE_ALIKE;
}

static shard_choice as_split_operand(const shard *s, dtm_op op, int axis) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    double largest = 0;
    shard_choice choice = CHOICE_NONE;
    for (uint32_t i = 0; i < data->n_operands; i++) {
        shard_state state = found_state(s, data->operands[i], axis);
        double elements = (double)dtm_type_elements(s->module, s->module->values[data->operands[i]].type);
        if (state < STATE_DIM || elements <= largest) continue;
        for (int f = 0; f < s->ops[op].n_factors; f++) {
            const dtm_factor *factor = &s->ops[op].factors[f];
            if (factor->kind == DTM_FACTOR_FIXED || factor->kind == DTM_FACTOR_NORMALISED) continue;
            if (factor->operand_dim[i] != (int)state - STATE_DIM) continue;
            largest = elements;
            choice = (shard_choice)(CHOICE_FACTOR + f);
        }
    }
    return choice;
}

/* Linear in a set of operands of which one at least is a term: the others of the set may be made terms for nothing. */
static shard_choice as_term(const shard *s, dtm_op op, int axis) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    for (int i = 0; i < s->ops[op].n_sets; i++) {
        bool some = false, fits = true;
        for (uint32_t k = 0; k < data->n_operands; k++) {
            bool in_set = s->ops[op].sets[i] >> k & 1;
            shard_state state = found_state(s, data->operands[k], axis);
            some |= in_set && state == STATE_SUM;
            if (in_set) fits &= !shard_is_constant(s, data->operands[k]) && state <= STATE_SUM;
        }
        if (some && fits) return (shard_choice)(CHOICE_TERM + i);
    }
    return CHOICE_ALIKE;
}

static shard_choice choice_of(const shard *s, dtm_op op, int axis) {
    const dtm_op_data *data = dtm_op_get(s->module, op);
    switch (data->kind) {
    case DTM_OP_STATE: {
        dtm_op weight = s->weight_of_state[op];
        return (shard_choice)(CHOICE_STATE + (weight ? weight_state(s, s->module->ops[weight].results[0], axis) : STATE_ALIKE));
    }
    case DTM_OP_STORE: {
        shard_state state = found_state(s, data->operands[0], axis);
        return (shard_choice)(CHOICE_STATE + state);
    }
    case DTM_OP_GRADIENT: return (shard_choice)(CHOICE_STATE + weight_state(s, data->operands[0], axis));
    case DTM_OP_CARRY: {
        shard_state first = found_state(s, data->operands[0], axis), next = found_state(s, data->operands[1], axis);
        return (shard_choice)(CHOICE_STATE + (next == STATE_MAX || dtm_fault(44) ? STATE_ALIKE : next != STATE_ALIKE ? next : first));
    }
    case DTM_OP_LAST: return (shard_choice)(CHOICE_STATE + found_state(s, data->operands[0], axis));
    case DTM_OP_REPORT: return CHOICE_ALIKE;
    default:
        if (shard_is_source(data->kind) || shard_is_identity(data->kind)) return CHOICE_STATE + STATE_ALIKE;
    }
    shard_choice split = as_split_operand(s, op, axis);
    return split != CHOICE_NONE ? split : as_term(s, op, axis);
}

void shard_update(shard *s) {
    for (int a = 0; a < s->module->settings.mesh.count; a++) {
        if (!(s->axes >> a & 1)) continue;
        for (size_t i = 0; i < s->n_order; i++)
            if (s->ops[s->order[i]].phase == PHASE_UPDATE || s->module->ops[s->order[i]].kind == DTM_OP_GRADIENT)
                s->ops[s->order[i]].choice[a] = CHOICE_STATE + STATE_ALIKE;
        /* A carried value becomes a term or split only once its successor is known to be. */
        bool changed = true;
        for (int round = 0; changed && round < 8; round++) {
            changed = false;
            for (size_t i = 0; i < s->n_order; i++) {
                dtm_op op = s->order[i];
                if (s->ops[op].phase != PHASE_UPDATE && s->module->ops[op].kind != DTM_OP_GRADIENT) continue;
                shard_choice choice = choice_of(s, op, a);
                changed |= choice != s->ops[op].choice[a];
                s->ops[op].choice[a] = choice;
            }
        }
    }
}
