/* Times that depend on earlier times by `the later of` and `so long after` alone: each is the greatest of its beginnings, each with
 * something added. So a state of n times that goes on by such steps does what an n by n matrix says, whose product takes the
 * greatest of sums, and many copies of a row of steps do what a power of it says: as exact as to walk copy by copy, and its cost
 * grows with the number of digits of the copies. */
#ifndef DTM_PASSES_MAX_PLUS_H
#define DTM_PASSES_MAX_PLUS_H

#include "ir/base.h"

#include <stddef.h>
#include <stdint.h>

/* A time as the greatest of `width` beginnings plus what each has here, -INFINITY: it does not depend on that one. Of width 1 it is
 * simply a time. */
typedef double *dtm_form;

dtm_form dtm_form_create(dtm_arena *arena, size_t width); /* depends on nothing */
void dtm_form_add(dtm_form form, size_t width, double time);
void dtm_form_join(dtm_form form, size_t width, const double *other); /* the later of both */

/* The times `state`, `count` forms of `width`, after `copies` of what the `count` forms of width `count` in `once` say of one copy. */
void dtm_max_plus_apply(dtm_form *once, size_t count, int64_t copies, dtm_form *state, size_t width);

#endif
