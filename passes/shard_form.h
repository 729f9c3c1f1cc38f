/* A search as it is given (shard_search.c) and as it is worked on (shard_form.c): what the files of the search share beside
 * shard_work.h. */
#ifndef DTM_PASSES_SHARD_FORM_H
#define DTM_PASSES_SHARD_FORM_H

#include "passes/shard_search.h"
#include "passes/shard_work.h"

/* Variables, each once, in rising order. */
typedef struct scope {
    uint32_t count, vars[MAX_SCOPE];
} scope;

/* Of its table only scope and costs are of use: these are by values. */
typedef struct given {
    table t;
    shard_measure measure;
} given;

/* Variables decided together. A value of the bundle stands for one of each, the last fastest. */
typedef struct bundle {
    uint32_t count, *variables, size;
} bundle;

struct shard_search {
    dtm_arena *arena;
    uint32_t *sizes, *groups; /* by variable */
    given *tables;
    bundle *bundles;
    size_t n_variables, cap_variables, n_groups, cap_groups, n_tables, cap_tables, n_bundles, cap_bundles;
};

/* ---- shard_search.c ---- */
void shard_scope_add(scope *sc, uint32_t v);
#define FREE UINT32_MAX
#define IGNORED (UINT32_MAX - 1)
/* The search in which a variable has all its values (FREE), one (that value), or none: what it costs at least stands in its
 * place in each table (IGNORED). Both of the latter have one value left. `allowed` as in the options. */
shard_search *shard_search_part(const shard_search *search, const bool *const *allowed, const uint32_t *state,
                                dtm_arena *arena);

/* ---- shard_form.c ---- */
/* The variables of the work: bundles, and the variables given that are in none. */
typedef struct form {
    const shard_search *s;
    dtm_arena *arena;
    uint32_t n;
    uint32_t *of;     /* by variable given: the one of the work it is in */
    uint32_t *size;   /* by variable of the work */
    uint32_t *stride; /* by variable given: its values' in those of the one it is in */
} form;

form shard_form_of(const shard_search *search);
work shard_form_begin(const form *f, const shard_search_options *options);
/* What an assignment of the work's variables means for those given. */
void shard_form_assign(const form *f, const uint32_t *found, uint32_t *assignment);

#endif
