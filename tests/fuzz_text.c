/* libFuzzer's target for programs and dumps: whatever the text, the parser, `fmt`, check and verifier end with a module
 * or with errors. Seeds: what `mutate --write` writes (dumps of programs after every pass, and dumps that break each rule
 * of the verifier), and the programs in examples. */
#include "frontend/ast.h"
#include "frontend/check.h"
#include "frontend/format.h"

#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse_and_format(const char *text, size_t size) {
    dtm_context *context = dtm_context_create();
    const dtm_ast *ast = dtm_parse(context, dtm_source_add(context, "fuzz.dtm", text, size));
    dtm_text out = {.arena = dtm_context_arena(context)};
    if (ast && !dtm_error_count(context)) dtm_ast_format(context, ast, &out);
    dtm_context_destroy(context);
}

static void check(const char *path) {
    static const dtm_check_options options;
    dtm_context *context = dtm_context_create();
    dtm_module *module = dtm_check(context, path, &options);
    if (module) dtm_module_verify(module);
    dtm_module_destroy(module);
    dtm_context_destroy(context);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int file = memfd_create("fuzz", 0);
    if (file < 0) return 0;
    if (write(file, data, size) == (ssize_t)size) {
        parse_and_format((const char *)data, size);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        check(path);
    }
    close(file);
    return 0;
}
