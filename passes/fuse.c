/* fuse (being widened): composite operators in smaller ones. */
#include "ir/storage.h"
#include "passes/passes.h"

static void expand_region(dtm_module *module, dtm_region region) {
    for (size_t i = 0; i < module->regions[region].n_ops; i++) {
        dtm_op op = module->regions[region].ops[i];
        if (dtm_op_get(module, op)->body) {
            expand_region(module, dtm_op_get(module, op)->body);
            continue;
        }
        size_t before = module->regions[region].n_ops;
        if (dtm_expand(module, op)) i += module->regions[region].n_ops - before;
    }
}

bool dtm_pass_fuse(dtm_module *module) {
    expand_region(module, module->body);
    module->after = dtm_string_of(module->context, "fuse");
    return true;
}
