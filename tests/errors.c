/* docs/errors.md, from the one list of errors: `errors` prints it, `errors FILE` fails where FILE is another text,
 * `errors --codes` prints the codes alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int code;
    const char *title, *text;
} errors[] = {
#define ERROR(code, title, text) {code, title, text},
#include "ir/errors.def"
#undef ERROR
};
enum { N_ERRORS = sizeof errors / sizeof *errors };

static const struct {
    int first;
    const char *title;
} groups[] = {
    {100, "E01: text"},
    {200, "E02: names"},
    {300, "E03: types and dimensions"},
    {400, "E04: mesh and placement"},
    {500, "E05: the verifier of the intermediate representation"},
    {600, "E06: not executed by this version"},
    {700, "E07: contracts and memory"},
    {800, "E08: warnings about placement"},
};

/* Words of text in lines of at most 118 columns. */
static void print_wrapped(FILE *out, const char *text) {
    size_t column = 0;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column && column + 1 + word > 118) fputc('\n', out), column = 0;
        if (column) fputc(' ', out), column++;
        fwrite(text, 1, word, out);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_page(FILE *out) {
    fputs("# Errors\n\n"
          "Every message of dtmc has a code that stays what it is. `dtmc explain E0304` prints the same text. (This page is made\n"
          "from `ir/errors.def`.)\n", out);
    size_t group = 0;
    for (int code = 0; code < 1000; code++)
        for (int i = 0; i < N_ERRORS; i++) {
            if (errors[i].code != code) continue;
            while (group < sizeof groups / sizeof *groups && code >= groups[group].first) {
                if (group + 1 == sizeof groups / sizeof *groups || code < groups[group + 1].first)
                    fprintf(out, "\n## %s\n", groups[group].title);
                group++;
            }
            fprintf(out, "\n**E%04d** %s.\n", code, errors[i].title);
            print_wrapped(out, errors[i].text);
        }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--codes") == 0) {
        for (int i = 0; i < N_ERRORS; i++) printf("E%04d\n", errors[i].code);
        return 0;
    }
    if (argc == 1) {
        print_page(stdout);
        return 0;
    }
    char *page = NULL;
    size_t length;
    FILE *memory = open_memstream(&page, &length), *file = fopen(argv[1], "rb");
    if (!memory || !file) return perror(argv[1]), 2;
    print_page(memory);
    fclose(memory);
    int differs = 0;
    for (size_t i = 0; i <= length && !differs; i++) differs = getc(file) != (i < length ? (unsigned char)page[i] : EOF);
    fclose(file);
    free(page);
    if (differs) printf("%s differs from ir/errors.def: make it anew with tests/errors > docs/errors.md\n", argv[1]);
    return differs;
}
