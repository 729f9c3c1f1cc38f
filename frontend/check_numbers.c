/* Constant expressions: numbers, the sizes of dims, consts, arithmetic. */
#include "frontend/checker.h"

#include <math.h>
#include <string.h>

static const dtm_const *find_const(const dtm_checker *c, dtm_string name) {
    for (size_t i = 0; i < c->n_consts; i++)
        if (c->consts[i].name == name) return &c->consts[i];
    return NULL;
}

static bool is_inf(const dtm_checker *c, dtm_string name) {
    return strcmp(dtm_checker_text(c, name), "inf") == 0;
}

bool dtm_checker_is_number(dtm_checker *c, const dtm_expr *expr) {
    switch (expr->kind) {
    case DTM_EXPR_NUMBER:
        return true;
    case DTM_EXPR_NEGATE:
        return dtm_checker_is_number(c, expr->left);
    case DTM_EXPR_BINARY:
        return dtm_checker_is_number(c, expr->left) && dtm_checker_is_number(c, expr->right);
    case DTM_EXPR_NAME:
        return find_const(c, expr->text) || dtm_dim_find(c->module, expr->text) || is_inf(c, expr->text);
    default:
        return false;
    }
}

static bool fold(dtm_checker *c, const dtm_expr *expr, double a, double b, double *value) {
    switch (expr->operator) {
    case DTM_OPERATOR_ADD:
        *value = a + b;
        return true;
    case DTM_OPERATOR_SUBTRACT:
        *value = a - b;
        return true;
    case DTM_OPERATOR_MULTIPLY:
        *value = a * b;
        return true;
    case DTM_OPERATOR_DIVIDE:
        *value = a / b;
        break;
    case DTM_OPERATOR_REMAINDER:
        *value = fmod(a, b);
        break;
    case DTM_OPERATOR_EQUAL:
        *value = a == b;
        return true;
    case DTM_OPERATOR_NOT_EQUAL:
        *value = a != b;
        return true;
    case DTM_OPERATOR_LESS:
        *value = a < b;
        return true;
    case DTM_OPERATOR_LESS_EQUAL:
        *value = a <= b;
        return true;
    case DTM_OPERATOR_GREATER:
        *value = a > b;
        return true;
    case DTM_OPERATOR_GREATER_EQUAL:
        *value = a >= b;
        return true;
    }
    if (b != 0) return true;
    dtm_error(c->context, expr->span, 309, "division by zero");
    return false;
}

bool dtm_checker_number(dtm_checker *c, const dtm_expr *expr, double *value) {
    double a, b;
    switch (expr->kind) {
    case DTM_EXPR_NUMBER:
        *value = expr->value;
        return true;
    case DTM_EXPR_NEGATE:
        if (!dtm_checker_number(c, expr->left, &a)) return false;
        *value = -a;
        return true;
    case DTM_EXPR_BINARY:
        return dtm_checker_number(c, expr->left, &a) && dtm_checker_number(c, expr->right, &b) &&
               fold(c, expr, a, b, value);
    case DTM_EXPR_NAME: {
        const dtm_const *known = find_const(c, expr->text);
        dtm_dim dim = dtm_dim_find(c->module, expr->text);
        if (known || dim || is_inf(c, expr->text)) {
            *value = known ? known->value : dim ? (double)c->module->dims[dim].size : INFINITY;
            return true;
        }
        dtm_string names[512];
        size_t n = 0;
        for (size_t i = 0; i < c->n_consts && n < 256; i++) names[n++] = c->consts[i].name;
        for (dtm_dim d = 1; d < c->module->n_dims && n < 512; d++) names[n++] = c->module->dims[d].name;
        dtm_error(c->context, expr->span, 201, "`%s` is no dim and no const", dtm_checker_text(c, expr->text));
        dtm_string nearest = dtm_string_nearest(c->context, dtm_checker_text(c, expr->text), names, n);
        if (nearest) dtm_help(c->context, "did you mean `%s`?", dtm_checker_text(c, nearest));
        return false;
    }
    case DTM_EXPR_ERROR:
        return false;
    default:
        dtm_error(c->context, expr->span, 308, "a number is wanted here, known when the program is compiled");
        return false;
    }
}

/* "D = 64", or a number alone where no name stands for it. */
static const char *with_name(dtm_checker *c, const dtm_expr *expr, double value) {
    dtm_text text = {.arena = c->arena};
    if (expr->kind == DTM_EXPR_NAME) dtm_text_printf(&text, "%s = ", dtm_checker_text(c, expr->text));
    dtm_text_number(&text, value);
    return text.data;
}

bool dtm_checker_integer(dtm_checker *c, const dtm_expr *expr, int64_t least, const char *what, int64_t *value) {
    double number;
    if (expr->kind == DTM_EXPR_BINARY && expr->operator== DTM_OPERATOR_DIVIDE) {
        double a, b;
        if (!dtm_checker_number(c, expr->left, &a) || !dtm_checker_number(c, expr->right, &b)) return false;
        if (b != 0 && fmod(a, b) != 0) {
            dtm_error(c->context, expr->span, 310, "%s: %s is no multiple of %s", what, with_name(c, expr->left, a),
                      with_name(c, expr->right, b));
            return false;
        }
    }
    if (!dtm_checker_number(c, expr, &number)) return false;
    if (number != floor(number) || number < (double)least || number > 9e15) {
        dtm_text text = {.arena = c->arena};
        dtm_text_number(&text, number);
        dtm_error(c->context, expr->span, 310, "%s must be a whole number of at least %lld, it is %s", what,
                  (long long)least, text.data);
        return false;
    }
    *value = (int64_t)number;
    return true;
}

/* Slots by copy are counted in 32 bits, one more than there are copies. */
static const int64_t MOST_COPIES = INT32_MAX;

bool dtm_checker_copies(dtm_checker *c, const dtm_expr *expr, int64_t *copies) {
    if (!dtm_checker_integer(c, expr, 1, "a repeat's count", copies)) return false;
    int64_t all = *copies;
    for (dtm_op at = c->module->regions[c->region].parent; at; at = dtm_enclosing(c->module, at, DTM_OP_NONE))
        if (dtm_op_get(c->module, at)->kind == DTM_OP_REPEAT &&
            __builtin_mul_overflow(all, dtm_op_get(c->module, at)->attributes.copies, &all))
            all = INT64_MAX;
    if (all <= MOST_COPIES) return true;
    dtm_error(c->context, expr->span, 310, "a repeat has at most %lld copies, those of repeats around it counted; these are %lld",
              (long long)MOST_COPIES, (long long)all);
    return false;
}
