/* dtmc: the command line. */
#include "frontend/ast.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The whole of a file or of standard input; NULL with a message if it cannot be read. */
static char *read_file(const char *path, size_t *length) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!file) {
        perror(path);
        return NULL;
    }
    size_t capacity = 65536, got;
    char *text = malloc(capacity);
    *length = 0;
    while (text && (got = fread(text + *length, 1, capacity - *length, file)) > 0) {
        *length += got;
        if (*length < capacity) continue;
        char *grown = realloc(text, capacity *= 2);
        if (!grown) free(text);
        text = grown;
    }
    if (file != stdin) fclose(file);
    return text;
}

/* dtmc fmt FILE|- [--check]: prints FILE in canonical style, or with --check exits 1 if it is not in it. */
static int run_fmt(const char *path, bool check) {
    size_t length;
    char *text = read_file(path, &length);
    if (!text) return 1;
    dtm_context *context = dtm_context_create();
    const dtm_ast *ast = dtm_parse(context, dtm_source_add(context, strcmp(path, "-") ? path : "<stdin>", text, length));
    bool failed = !ast || dtm_error_count(context) > 0;
    dtm_diagnostics_print(context, stderr, isatty(2));
    if (!failed) {
        dtm_text out = {.arena = dtm_context_arena(context)};
        dtm_ast_format(context, ast, &out);
        if (check) failed = out.length != length || (length && memcmp(out.data, text, length) != 0);
        else if (out.length) fwrite(out.data, 1, out.length, stdout);
        if (check && failed) fprintf(stderr, "%s: not as `dtmc fmt` prints it\n", path);
    }
    dtm_context_destroy(context);
    free(text);
    return failed;
}

int main(int argc, char **argv) {
    const char *path = NULL;
    bool check = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0) check = true;
        else path = argv[i];
    }
    if (argc > 2 && strcmp(argv[1], "fmt") == 0 && path) return run_fmt(path, check);
    fprintf(stderr, "usage: dtmc fmt FILE|- [--check]\n");
    return 2;
}
