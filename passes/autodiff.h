/* What autodiff, its rules (gradients.c) and the optimizer share; nobody else includes this.
 *
 * Reverse mode, region by region. Every reader of a value contributes a gradient to it; when its definition is reached,
 * walking backwards, all contributions are known and their sum is its gradient. Contributions of a repeat's body are
 * kept apart from those outside it (a scope each), since a value made outside gets one from every copy. A gradient may
 * lack dimensions of its value: it is then the same along them. It may even be a constant. */
#ifndef DTM_PASSES_AUTODIFF_H
#define DTM_PASSES_AUTODIFF_H

#include "ir/ir.h"

typedef struct dtm_contributions {
    dtm_value *items;
    size_t count, capacity;
} dtm_contributions;

typedef struct dtm_scope {
    struct dtm_scope *outer;
    dtm_contributions *of; /* by value of the forward program */
} dtm_scope;

typedef struct dtm_autodiff {
    dtm_module *module;
    dtm_arena *arena;
    size_t n_values;     /* of the forward program */
    bool *wanted;        /* by value: a trained weight reaches it, and it reaches the loss */
    dtm_value *gradient; /* by value: the whole gradient of each wanted weight */
    dtm_scope *scope;
    dtm_builder at;      /* where backward operators go, with the place of the forward operator */
    const char *part;    /* the name of what a rule makes on the way: "d_y.part" */
    /* Of a loss that is scaled, scalars of the step (loss_scale.c); 0: it is not */
    dtm_value scale, inverse, taken, steps, finite;
} dtm_autodiff;

/* Contributes the gradients of op's operands, given that of its first result. */
typedef void dtm_gradient_rule(dtm_autodiff *a, const dtm_op_data *op, dtm_value dy);
extern dtm_gradient_rule *const dtm_gradient_rules[DTM_OP_KINDS]; /* NULL: no operand has a gradient */

bool dtm_gradient_wanted(const dtm_autodiff *a, dtm_value value);
/* One more gradient of a value; ignored if it is not wanted. */
void dtm_gradient_contribute(dtm_autodiff *a, dtm_value value, dtm_value gradient);
/* The gradient in exactly the given type: constants are filled, dimensions that it lacks added, put in order. */
dtm_value dtm_gradient_like(dtm_autodiff *a, dtm_value gradient, dtm_type type, const char *name);

/* The update region: norm, clip and optimizer of module->settings.train, for the weights that have a gradient.
 * `forward` is the region of the forward program. */
void dtm_optimizer_build(dtm_autodiff *a, dtm_region forward);
/* `gradient(w, d_w)` for each such weight, at the end of a region: where there is nothing to update. */
void dtm_optimizer_mark_gradients(dtm_autodiff *a, dtm_region forward, dtm_region region);

/* Of a loss that is scaled (loss_scale.c), at the builder's place. In backward: the gradient of the loss. */
dtm_value dtm_loss_scale_begin(dtm_autodiff *a, dtm_builder *b);
/* In the update: the number of this step, from 1, among those that were taken; its learning rate and bias corrections. */
dtm_value dtm_loss_scale_steps(dtm_autodiff *a, dtm_builder *b);
dtm_value dtm_loss_scale_rate(dtm_autodiff *a, dtm_builder *b);
dtm_value dtm_loss_scale_correction(dtm_autodiff *a, dtm_builder *b, const char *name, double beta);
/* Says by the norm whether the step is taken, and what scale the next one has. */
void dtm_loss_scale_end(dtm_autodiff *a, dtm_builder *b, dtm_value grad_norm);
/* What is kept of a weight or a state: the next value, of a step that is not taken the old one. */
dtm_value dtm_loss_scale_kept(dtm_autodiff *a, dtm_builder *b, const char *name, dtm_value next, dtm_value old);

/* Whether a value may come out of its operator as a term of a sum (products, lookups and sums, and what is linear in
 * one). A rule of structure alone, used where sums are put in order: such values are added first. */
bool dtm_may_be_term(const dtm_module *module, dtm_value value);

#endif
