/* What readers of the tree ask of it: see ast.h. */
#include "frontend/ast.h"

const dtm_clause *dtm_call_clause(const dtm_call *call, dtm_word word) {
    for (size_t i = 0; i < call->count; i++)
        if (call->clauses[i].word == word) return &call->clauses[i];
    return NULL;
}

const dtm_expr *dtm_call_keyed(const dtm_call *call, dtm_string key, dtm_span *key_span) {
    for (size_t i = 0; i < call->count; i++) {
        for (size_t j = 0; j < call->clauses[i].count; j++) {
            const dtm_argument *argument = &call->clauses[i].arguments[j];
            if (argument->key.text != key) continue;
            if (key_span) *key_span = argument->key.span;
            return argument->value;
        }
    }
    return NULL;
}

const char *dtm_word_text(dtm_word word) {
    static const char *const texts[DTM_WORD_COUNT] = {"",   "over", "at",   "as",    "where", "on",
                                                      "from", "with", "using", "by", "per"};
    return texts[word];
}

const char *dtm_operator_text(dtm_operator operator) {
    static const char *const texts[] = {"+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">="};
    return texts[operator];
}

const char *dtm_statement_kind_text(dtm_statement_kind kind) {
    switch (kind) {
    case DTM_STATEMENT_ERROR: return "error";
    case DTM_STATEMENT_USE: return "use";
    case DTM_STATEMENT_DIM: return "dim";
    case DTM_STATEMENT_CONST: return "const";
    case DTM_STATEMENT_MESH: return "mesh";
    case DTM_STATEMENT_MACHINE: return "machine";
    case DTM_STATEMENT_DEF: return "def";
    case DTM_STATEMENT_MODEL: return "model";
    case DTM_STATEMENT_PARALLEL: return "parallel";
    case DTM_STATEMENT_TRAIN: return "train";
    case DTM_STATEMENT_GENERATE: return "generate";
    case DTM_STATEMENT_INPUT: return "input";
    case DTM_STATEMENT_WEIGHT: return "weight";
    case DTM_STATEMENT_STATE: return "state";
    case DTM_STATEMENT_ASSIGN: return "assignment";
    case DTM_STATEMENT_CALL: return "call";
    case DTM_STATEMENT_LOSS: return "loss";
    case DTM_STATEMENT_REPORT: return "report";
    case DTM_STATEMENT_OUTPUT: return "output";
    case DTM_STATEMENT_RETURN: return "return";
    case DTM_STATEMENT_REPEAT: return "repeat";
    case DTM_STATEMENT_MICROBATCH: return "microbatch";
    case DTM_STATEMENT_REGION: return "region";
    case DTM_STATEMENT_GROUP: return "group";
    case DTM_STATEMENT_SETTING: return "setting";
    case DTM_STATEMENT_SPLITS: return "splits";
    case DTM_STATEMENT_MICROBATCHES: return "microbatches";
    case DTM_STATEMENT_ZERO: return "zero";
    case DTM_STATEMENT_KEEP: return "keep";
    case DTM_STATEMENT_RECOMPUTE: return "recompute";
    case DTM_STATEMENT_EXPECT: return "expect";
    }
    return "";
}
