/* A parser of PTX: words and operands (ptx_words.c), opcodes (ptx_opcodes.c), directives and modules (ptx_parse.c). It leaves by
 * longjmp at the first error. */
#ifndef PARSE_H
#define PARSE_H
#include "ptx.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

struct family { char *name; int count, type; int32_t row; int scope; bool numbered; }; /* %r<40>, or one register */
struct label { char *name; int at, scope; };
struct fixup { char *name; int op, scope, line; };
enum { MAX_PARTS = 16, MAX_DEPTH = 64 };
struct parser {
    const char *start, *p, *end;
    int line;
    char *error;
    size_t error_size;
    jmp_buf failed;
    struct sim_module *module;
    struct sim_function *f;
    struct family *families;
    int n_families;
    struct label *labels;
    int n_labels;
    struct fixup *fixups;
    int n_fixups;
    int scope, n_scopes, parents[4096];
    int32_t sink; /* row where `_` goes */
    int loc;
    char *part[MAX_PARTS]; /* of the opcode, between dots; NULL: consumed */
    int n_parts;
    char opcode[128];
    int row_type; /* of the operand read last: its register's type, T_NONE for immediates */
    bool row_wide; /* whether its row has 64 bits */
};

_Noreturn void ptx_fail(struct parser *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One more place in a list that grows by doubling. */
void *ptx_more(void *list, int n, size_t size);
#define PUSH(list, n) ((list) = ptx_more((list), (n), sizeof *(list)), memset(&(list)[n], 0, sizeof *(list)), &(list)[(n)++])

int ptx_type_named(const char *); /* T_NONE if there is none */
bool ptx_is_float(int type);
bool ptx_is_signed(int type);

/* Words: spaces and comments before them are skipped. */
char ptx_peek(struct parser *);
bool ptx_accept(struct parser *, char);
void ptx_expect(struct parser *, char);
/* A name, of the characters of names and those of `extra`. */
char *ptx_word(struct parser *, const char *extra, char out[128]);
struct number { bool is_float; int64_t whole; double real; };
bool ptx_at_number(struct parser *);
struct number ptx_number(struct parser *);
uint64_t ptx_number_as(struct parser *, int type); /* its bits */

/* Rows of operands. A source or result is of that type, or `loose`: of any width, which row_type tells. */
int32_t ptx_rows(struct parser *, int type, int count);
const struct family *ptx_register_named(struct parser *, const char *name, int *number_of);
const struct variable *ptx_variable_named(struct parser *, const char *name);
int32_t ptx_named_row(struct parser *, const char *name, bool wide);
int32_t ptx_source(struct parser *, int type);
int32_t ptx_source_of(struct parser *, int type, bool loose);
int32_t ptx_dest(struct parser *, int type);
int32_t ptx_dest_of(struct parser *, int type, bool loose);
int32_t ptx_constant(struct parser *, uint64_t value, bool wide);
int ptx_vector(struct parser *, int type, bool to, bool loose);
void ptx_address(struct parser *, struct op *);

/* An opcode with its operands, into the last op of the function. */
void ptx_instruction(struct parser *, const char *opcode);
#endif
