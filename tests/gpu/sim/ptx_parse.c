/* PTX text into flat code (ptx.h). Both dialects that NVRTC writes: NVVM 7's for sm_80 and sm_90, NVVM 20's for sm_100. A
 * form (an opcode with its modifiers and types) that the interpreter does not run is an error here, with its line. */
#include "parse.h"

static int declared_type(struct parser *s) {
    char name[128];
    ptx_expect(s, '.');
    int type = ptx_type_named(ptx_word(s, "", name));
    if (!type)
        ptx_fail(s, "unknown type .%s", name);
    return type;
}

static void reg(struct parser *s) {
    char name[128];
    int type = declared_type(s);
    do {
        ptx_word(s, "", name);
        struct family *f = PUSH(s->families, s->n_families);
        *f = (struct family){.name = strdup(name), .count = 1, .type = type, .scope = s->scope};
        if (ptx_accept(s, '<')) {
            int64_t count = ptx_number(s).whole;
            if (count < 0 || count > 1 << 20)
                ptx_fail(s, "%lld registers", (long long)count);
            f->count = (int)count, f->numbered = true;
            ptx_expect(s, '>');
        }
        f->row = ptx_rows(s, type, f->count);
    } while (ptx_accept(s, ','));
    ptx_expect(s, ';');
}

/* The initial value of a variable: `= 5`, `= {1, 2}`. */
static void initial(struct parser *s, struct variable *v, int type) {
    bool several = ptx_accept(s, '{');
    uint64_t at = 0;
    int bytes = type_bytes(type);
    do {
        if (!ptx_at_number(s))
            ptx_fail(s, "a variable that holds an address");
        uint64_t bits = ptx_number_as(s, type);
        if (at + (uint64_t)bytes > v->size)
            ptx_fail(s, "more values than `%s` has", v->name);
        memcpy(v->bytes + at, &bits, (size_t)bytes);
        at += (uint64_t)bytes;
    } while (several && ptx_accept(s, ','));
    if (several)
        ptx_expect(s, '}');
}

/* .shared, .local, .global, .const: `.align 4 .b8 name[32]`, after the space. */
static void variable(struct parser *s, enum space space, bool external) {
    char name[128];
    uint32_t align = 0;
    while (ptx_peek(s) == '.' && strncmp(s->p, ".align", 6) == 0) {
        s->p += 6;
        align = (uint32_t)ptx_number(s).whole;
        if (!align || align & (align - 1) || align > 4096)
            ptx_fail(s, "an alignment of %u", align);
    }
    int type = declared_type(s);
    uint64_t count = 1;
    bool open = false;
    ptx_word(s, "", name);
    while (ptx_accept(s, '[')) {
        if (ptx_accept(s, ']')) {
            open = true;
            continue;
        }
        int64_t n = ptx_number(s).whole;
        if (n < 0 || n > 1 << 28 || count * (uint64_t)n > 1 << 28)
            ptx_fail(s, "an array of %lld", (long long)n);
        count *= (uint64_t)n;
        ptx_expect(s, ']');
    }
    struct variable *v = PUSH(s->module->variables, s->module->n_variables);
    *v = (struct variable){.name = strdup(name), .space = space, .scope = s->f ? s->scope : -1, .external = open || external};
    v->align = align ? align : (uint32_t)type_bytes(type);
    v->size = open ? 0 : count * (uint64_t)type_bytes(type);
    if (space == GLOBAL || space == CONSTANT) {
        v->bytes = aligned_alloc(4096, (v->size + 4096) / 4096 * 4096);
        if (!v->bytes)
            abort();
        memset(v->bytes, 0, v->size);
        if (ptx_accept(s, '='))
            initial(s, v, type);
    }
    ptx_expect(s, ';');
    if (s->f && (space == SHARED || space == LOCAL) && !v->external) {
        uint32_t *used = space == SHARED ? &s->f->static_shared : &s->f->local;
        if (*used + v->size > (space == SHARED ? 1 << 20 : 1 << 19))
            ptx_fail(s, "%llu bytes of .%s", (unsigned long long)(*used + v->size), space == SHARED ? "shared" : "local");
        *used = (*used + v->align - 1) / v->align * v->align;
        v->at = MEMORY_START + *used;
        *used += (uint32_t)v->size;
    }
}

static int loc_like(const struct sim_function *f, struct loc l) {
    for (int i = f->n_locs - 1; i >= 0; i--)
        if (f->locs[i].file == l.file && f->locs[i].line == l.line && f->locs[i].column == l.column)
            return i;
    return -1;
}
static void loc(struct parser *s) {
    struct loc l = {.parent = -1};
    char name[128];
    l.file = (int)ptx_number(s).whole, l.line = (int)ptx_number(s).whole, l.column = (int)ptx_number(s).whole;
    struct loc at = {.parent = -1};
    while (ptx_accept(s, ',')) {
        ptx_word(s, "", name);
        while (*name == 'i' && strcmp(name, "inlined_at") != 0)
            ptx_word(s, "", name);
        if (strcmp(name, "function_name") == 0) {
            ptx_word(s, "", name);
            if (ptx_accept(s, '+'))
                ptx_number(s);
        }
        if (ptx_peek(s) == 'i' || strcmp(name, "inlined_at") == 0) {
            if (strcmp(name, "inlined_at") != 0)
                ptx_word(s, "", name);
            at.file = (int)ptx_number(s).whole, at.line = (int)ptx_number(s).whole, at.column = (int)ptx_number(s).whole;
            l.parent = loc_like(s->f, at);
            if (l.parent < 0) {
                l.parent = s->f->n_locs;
                *PUSH(s->f->locs, s->f->n_locs) = at;
            }
        }
    }
    if (l.line) { /* line 0 says that there is none: the one before stays */
        s->loc = s->f->n_locs;
        *PUSH(s->f->locs, s->f->n_locs) = l;
    }
}

static void skip_block(struct parser *s) {
    ptx_expect(s, '{');
    while (s->p < s->end && *s->p != '}')
        s->line += *s->p++ == '\n';
    ptx_expect(s, '}');
}

static void file(struct parser *s) {
    int64_t index = ptx_number(s).whole;
    ptx_expect(s, '"');
    const char *from = s->p;
    while (s->p < s->end && *s->p != '"' && *s->p != '\n')
        s->p++;
    if (index < 0 || index > 4096)
        ptx_fail(s, "file %lld", (long long)index);
    while (s->module->n_files <= index)
        PUSH(s->module->files, s->module->n_files);
    free(s->module->files[index]);
    s->module->files[index] = strndup(from, (size_t)(s->p - from));
    ptx_expect(s, '"');
    while (ptx_accept(s, ','))
        ptx_number(s);
}
static void pragma(struct parser *s) {
    ptx_expect(s, '"');
    while (s->p < s->end && *s->p != '"')
        s->p++;
    ptx_expect(s, '"'), ptx_expect(s, ';');
}

static void label_here(struct parser *s, const char *name) {
    for (int i = 0; i < s->n_labels; i++)
        if (s->labels[i].scope == s->scope && strcmp(s->labels[i].name, name) == 0)
            ptx_fail(s, "a second label `%s`", name);
    *PUSH(s->labels, s->n_labels) = (struct label){.name = strdup(name), .at = s->f->n_code, .scope = s->scope};
}

static void body_directive(struct parser *s) {
    char name[128];
    s->p++;
    ptx_word(s, "", name);
    if (strcmp(name, "reg") == 0) reg(s);
    else if (strcmp(name, "loc") == 0) loc(s);
    else if (strcmp(name, "shared") == 0) variable(s, SHARED, false);
    else if (strcmp(name, "local") == 0) variable(s, LOCAL, false);
    else if (strcmp(name, "global") == 0) variable(s, GLOBAL, false);
    else if (strcmp(name, "const") == 0) variable(s, CONSTANT, false);
    else if (strcmp(name, "pragma") == 0) pragma(s);
    else ptx_fail(s, "unknown directive .%s", name);
}

static void statement(struct parser *s) {
    char name[128];
    struct op op = {.guard = -1, .d2 = -1};
    if (ptx_accept(s, '@')) {
        op.guarded = 1;
        op.inverted = ptx_accept(s, '!');
        op.guard = ptx_source(s, PRED);
    }
    ptx_peek(s);
    op.line = s->line;
    op.loc = s->loc;
    ptx_word(s, ".:", name);
    size_t n = strlen(name);
    if (!op.guarded && name[n - 1] == ':') {
        name[n - 1] = 0;
        label_here(s, name);
        return;
    }
    if (!op.guarded && ptx_peek(s) == ':') {
        s->p++;
        label_here(s, name);
        return;
    }
    *PUSH(s->f->code, s->f->n_code) = op;
    ptx_instruction(s, name);
}

static void body(struct parser *s) {
    int depth = 1;
    ptx_expect(s, '{');
    while (depth) {
        char c = ptx_peek(s);
        if (!c)
            ptx_fail(s, "the function does not end");
        if (c == '{') {
            s->p++, depth++;
            if (s->n_scopes == 4096)
                ptx_fail(s, "more than 4096 scopes");
            s->parents[s->n_scopes] = s->scope;
            s->scope = s->n_scopes++;
        } else if (c == '}') {
            s->p++, depth--;
            if (depth)
                s->scope = s->parents[s->scope];
        } else if (c == ';') {
            s->p++;
        } else if (c == '.') {
            body_directive(s);
        } else {
            statement(s);
        }
    }
}

static void resolve(struct parser *s) {
    for (int i = 0; i < s->n_fixups; i++) {
        const struct fixup *f = &s->fixups[i];
        int found = -1;
        for (int scope = f->scope; found < 0; scope = s->parents[scope]) {
            for (int j = 0; j < s->n_labels; j++)
                if (s->labels[j].scope == scope && strcmp(s->labels[j].name, f->name) == 0)
                    found = s->labels[j].at;
            if (!scope)
                break;
        }
        if (found < 0) {
            s->line = f->line;
            ptx_fail(s, "no label `%s`", f->name);
        }
        s->f->code[f->op].target = (uint32_t)found;
    }
}

/* Shared variables of the module are every function's. */
static void place_static(struct parser *s) {
    struct sim_function *f = s->f;
    for (int i = 0; i < s->module->n_variables; i++) {
        struct variable *v = &s->module->variables[i];
        if (v->space != SHARED || v->scope >= 0 || v->external)
            continue;
        if (f->static_shared + v->size > 1 << 20)
            ptx_fail(s, "%llu bytes of .shared", (unsigned long long)(f->static_shared + v->size));
        f->static_shared = (f->static_shared + v->align - 1) / v->align * v->align;
        v->at = MEMORY_START + f->static_shared, f->static_shared += (uint32_t)v->size;
    }
}
/* Those that are extern all begin after what is static, in the greatest alignment. True if there are any. */
static bool place_extern(struct parser *s, int n) {
    uint32_t align = 16;
    bool any = false;
    for (int i = 0; i < n; i++) {
        const struct variable *v = &s->module->variables[i];
        any |= v->space == SHARED && v->external;
        if (v->space == SHARED && v->external && v->align > align)
            align = v->align;
    }
    for (int i = 0; i < n; i++)
        if (s->module->variables[i].space == SHARED && s->module->variables[i].external)
            s->module->variables[i].at = MEMORY_START + (s->f->static_shared + align - 1) / align * align;
    s->f->dynamic_shared = any;
    return any;
}
static void begin_body(struct parser *s) {
    for (int i = 0; i < N_SPECIALS; i++)
        s->f->specials[i] = -1;
    s->scope = 0, s->n_scopes = 1, s->loc = -1;
    s->f->words = 0;
    s->sink = ptx_rows(s, B64, 1);
}

static void params(struct parser *s) {
    char name[128];
    struct sim_function *f = s->f;
    uint32_t at = 0;
    if (!ptx_accept(s, '(') || ptx_accept(s, ')'))
        return;
    do {
        ptx_expect(s, '.');
        if (strcmp(ptx_word(s, "", name), "param") != 0)
            ptx_fail(s, ".param expected");
        uint32_t align = 0;
        int type = T_NONE;
        while (ptx_accept(s, '.')) { /* .align 8 .b8, .u64 .ptr .global .align 1 */
            ptx_word(s, "", name);
            if (strcmp(name, "align") == 0) {
                uint32_t n = (uint32_t)ptx_number(s).whole;
                if (!type)
                    align = n;
            } else if (ptx_type_named(name)) {
                type = ptx_type_named(name);
            } else if (strcmp(name, "ptr") != 0 && strcmp(name, "global") != 0 && strcmp(name, "shared") != 0 &&
                       strcmp(name, "const") != 0 && strcmp(name, "local") != 0) {
                ptx_fail(s, "a parameter with .%s", name);
            }
        }
        ptx_word(s, "", name);
        uint64_t size = (uint64_t)type_bytes(type);
        if (!align)
            align = (uint32_t)size;
        if (ptx_accept(s, '[')) {
            size *= (uint64_t)ptx_number(s).whole;
            ptx_expect(s, ']');
        }
        if (!align || align & (align - 1) || size > 4096 * 8)
            ptx_fail(s, "the parameter `%s`", name);
        at = (at + align - 1) / align * align;
        int n = f->n_params;
        f->param_names = ptx_more(f->param_names, n, sizeof *f->param_names);
        f->param_names[n] = strdup(name);
        *PUSH(f->params, f->n_params) = (struct sim_param){.offset = at, .size = (uint32_t)size};
        at += (uint32_t)size;
    } while (ptx_accept(s, ','));
    ptx_expect(s, ')');
}

/* .maxntid 256, 1, 1 and the like, between parameters and body. */
static void tuning(struct parser *s) {
    char name[128];
    while (ptx_accept(s, '.')) {
        ptx_word(s, "", name);
        uint64_t product = 1;
        if (strcmp(name, "pragma") == 0) {
            pragma(s);
            continue;
        }
        while (ptx_at_number(s)) {
            product *= (uint64_t)ptx_number(s).whole;
            if (!ptx_accept(s, ','))
                break;
        }
        if (strcmp(name, "maxntid") == 0 || strcmp(name, "reqntid") == 0)
            s->f->max_threads = (uint32_t)product, s->f->exact_threads = *name == 'r';
        else if (strcmp(name, "minnctapersm") == 0)
            s->f->min_blocks = (uint32_t)product;
        else if (strcmp(name, "maxnreg") != 0)
            ptx_fail(s, "unknown directive .%s", name);
    }
}

static void forget_names(struct parser *s) {
    for (int i = 0; i < s->n_families; i++)
        free(s->families[i].name);
    for (int i = 0; i < s->n_labels; i++)
        free(s->labels[i].name);
    for (int i = 0; i < s->n_fixups; i++)
        free(s->fixups[i].name);
    free(s->families), free(s->labels), free(s->fixups);
    s->families = NULL, s->labels = NULL, s->fixups = NULL;
    s->n_families = s->n_labels = s->n_fixups = 0;
}
static void forget_variable(struct variable *v) { free(v->name), free(v->bytes); }

static void entry(struct parser *s) {
    char name[128];
    struct sim_function *f = calloc(1, sizeof *f), **end = &s->module->functions;
    if (!f)
        abort();
    while (*end)
        end = &(*end)->next;
    *end = s->f = f;
    f->module = s->module;
    f->name = strdup(ptx_word(s, "", name));
    s->scope = 0, s->n_scopes = 1;
    params(s);
    tuning(s);
    place_static(s);
    const char *at = s->p;
    int line = s->line, n_variables = s->module->n_variables;
    uint32_t first_static = f->static_shared;
    begin_body(s);
    body(s);
    if (place_extern(s, n_variables)) { /* now that their addresses are known, once more */
        while (s->module->n_variables > n_variables)
            forget_variable(&s->module->variables[--s->module->n_variables]);
        forget_names(s);
        free(f->code), free(f->operands), free(f->constants), free(f->locs);
        f->code = NULL, f->operands = NULL, f->constants = NULL, f->locs = NULL;
        f->n_code = f->n_operands = f->n_constants = f->n_locs = 0;
        f->static_shared = first_static, f->local = 0;
        s->p = at, s->line = line;
        begin_body(s);
        body(s);
    }
    resolve(s);
    *PUSH(f->code, f->n_code) = (struct op){.base = RET, .key = KEY(RET, T_NONE), .guard = -1, .line = s->line, .loc = -1};
    s->f = NULL;
    for (int i = n_variables; i < s->module->n_variables; i++) /* seen in this function alone */
        s->module->variables[i].scope = 1 << 30;
    forget_names(s);
}

static void top(struct parser *s) {
    char name[128];
    bool external = false;
    ptx_expect(s, '.');
    for (;;) { /* linkage stands before */
        ptx_word(s, "", name);
        if (strcmp(name, "visible") != 0 && strcmp(name, "weak") != 0 && strcmp(name, "extern") != 0)
            break;
        external |= strcmp(name, "extern") == 0;
        ptx_expect(s, '.');
    }
    if (strcmp(name, "version") == 0) {
        ptx_word(s, ".", name);
    } else if (strcmp(name, "target") == 0) {
        do {
            ptx_word(s, "", name);
            if (strncmp(name, "sm_", 3) == 0)
                s->module->architecture = atoi(name + 3);
        } while (ptx_accept(s, ','));
    } else if (strcmp(name, "address_size") == 0) {
        if (ptx_number(s).whole != 64)
            ptx_fail(s, "addresses of other than 64 bits");
    } else if (strcmp(name, "entry") == 0) {
        entry(s);
    } else if (strcmp(name, "shared") == 0) {
        variable(s, SHARED, external);
    } else if (strcmp(name, "global") == 0 || strcmp(name, "const") == 0) {
        variable(s, *name == 'g' ? GLOBAL : CONSTANT, external);
    } else if (strcmp(name, "file") == 0) {
        file(s);
    } else if (strcmp(name, "section") == 0) {
        ptx_word(s, ".", name);
        skip_block(s);
    } else if (strcmp(name, "pragma") == 0) {
        pragma(s);
    } else {
        ptx_fail(s, "unknown directive .%s", name);
    }
}

struct sim_module *sim_module_load(const char *text, size_t length, char *error, size_t error_size) {
    struct parser *s = calloc(1, sizeof *s);
    struct sim_module *module = calloc(1, sizeof *module);
    if (!s || !module)
        abort();
    *s = (struct parser){.start = text, .p = text, .end = text + length, .line = 1, .error = error, .error_size = error_size,
                         .module = module};
    if (setjmp(s->failed)) {
        forget_names(s);
        sim_module_free(s->module);
        free(s);
        return NULL;
    }
    while (ptx_peek(s))
        top(s);
    struct sim_module *made = s->module;
    free(s);
    return made;
}

void sim_module_free(struct sim_module *m) {
    if (!m)
        return;
    for (struct sim_function *f = m->functions, *next; f; f = next) {
        next = f->next;
        for (int i = 0; i < f->n_params; i++)
            free(f->param_names[i]);
        free(f->name), free(f->code), free(f->operands), free(f->constants), free(f->params), free(f->param_names), free(f->locs);
        free(f);
    }
    for (int i = 0; i < m->n_variables; i++)
        forget_variable(&m->variables[i]);
    for (int i = 0; i < m->n_files; i++)
        free(m->files[i]);
    free(m->variables), free(m->files), free(m);
}

int sim_module_architecture(const struct sim_module *m) { return m->architecture; }
const struct sim_function *sim_function_find(const struct sim_module *m, const char *name) {
    const struct sim_function *f = m->functions;
    while (f && strcmp(f->name, name) != 0)
        f = f->next;
    return f;
}
const struct sim_function *sim_function_at(const struct sim_module *m, int index) {
    const struct sim_function *f = m->functions;
    while (f && index--)
        f = f->next;
    return f;
}
void *sim_module_variable(const struct sim_module *m, const char *name, size_t *size) {
    for (int i = 0; i < m->n_variables; i++)
        if (m->variables[i].scope < 0 && m->variables[i].bytes && strcmp(m->variables[i].name, name) == 0) {
            *size = m->variables[i].size;
            return m->variables[i].bytes;
        }
    return NULL;
}
struct sim_attributes sim_function_attributes(const struct sim_function *f) {
    struct sim_attributes a = {.name = f->name, .static_shared = f->static_shared, .local = f->local, .max_threads = f->max_threads,
                               .exact_threads = f->exact_threads, .min_blocks = f->min_blocks, .dynamic_shared = f->dynamic_shared,
                               .n_params = f->n_params, .params = f->params};
    if (f->n_params)
        a.params_size = f->params[f->n_params - 1].offset + f->params[f->n_params - 1].size;
    return a;
}
