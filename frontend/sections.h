/* What the readers of sections share: check_settings.c (mesh, machine, --set), check_parallel.c, check_train.c. A section is
 * a list of entries, names with values; `--set` replaces values before they are looked at, so that what it says is
 * checked, and reported, like what is written. */
#ifndef DTM_FRONTEND_SECTIONS_H
#define DTM_FRONTEND_SECTIONS_H

#include "frontend/checker.h"

typedef struct dtm_entry {
    dtm_name key;
    const dtm_expr *value;
} dtm_entry;

typedef struct dtm_entries {
    dtm_entry *items;
    size_t count, capacity;
} dtm_entries;

/* Bounds, both included, and how a message says them: "at least 0". */
typedef struct dtm_range {
    double least, most;
    const char *text;
} dtm_range;
extern const dtm_range dtm_range_positive, dtm_range_not_negative, dtm_range_fraction;

void dtm_entries_add(dtm_checker *c, dtm_entries *entries, dtm_name key, const dtm_expr *value);
/* The value under a name, or NULL. */
const dtm_expr *dtm_entries_find(dtm_checker *c, const dtm_entries *entries, const char *key);
/* Whether all names are among the words and none stands twice. `of`: "`train`". */
bool dtm_entries_check(dtm_checker *c, const dtm_entries *entries, const char *of, const char *const *words, size_t n);
/* Values of `sets` under one of the words replace those of entries, or are added. */
void dtm_entries_override(dtm_checker *c, dtm_entries *entries, const dtm_entries *sets, const char *const *words,
                          size_t n);
/* The arguments of a call without clause words. One without a name, which only the first may be, is called `first`. */
bool dtm_entries_of_call(dtm_checker *c, const dtm_expr *expr, const char *first, dtm_entries *entries);

/* "did you mean", or else which words there are. */
void dtm_section_help(dtm_checker *c, dtm_string name, const char *const *words, size_t n);
/* A number in the unit and range. A dump may leave the unit out: it prints numbers in base units. */
bool dtm_section_number(dtm_checker *c, const dtm_expr *expr, const char *what, dtm_unit unit, dtm_range range,
                        double *value);
/* A whole number without a unit. */
bool dtm_section_whole(dtm_checker *c, const dtm_expr *expr, const char *what, int64_t least, int64_t *value);

bool dtm_section_parallel(dtm_checker *c, const dtm_entries *sets);
bool dtm_section_train(dtm_checker *c, const dtm_entries *sets);

#define DTM_COUNT(array) (sizeof(array) / sizeof *(array))

#endif
