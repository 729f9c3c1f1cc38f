#include "frontend/ast.h"
void dtm_ast_format(dtm_context *context, const dtm_ast *ast, dtm_text *out) { (void)context; (void)ast; (void)out; }
