/* Which statement may stand where, and what only dumps may have: what the grammar, one for all sections and for dumps,
 * leaves open. Runs over a tree just parsed. */
#ifndef DTM_PLACES_H
#define DTM_PLACES_H

#include "frontend/build.h"

void dtm_places_check(dtm_parser *parser);

#endif
