/* The words of the language: which begin statements of which section, which join clauses, which are units. */
#ifndef DTM_WORDS_H
#define DTM_WORDS_H

#include "frontend/ast.h"

/* What a block's statements are. */
typedef enum dtm_section {
    DTM_SECTION_FILE,
    DTM_SECTION_BODY, /* of a model, def, repeat or region */
    DTM_SECTION_PARALLEL,
    DTM_SECTION_SETTINGS, /* train, generate: any word begins a statement */
    DTM_SECTION_MACHINE,
    DTM_SECTION_ANY,
} dtm_section;

/* The token kind of a word as the first of a statement in the section (in DTM_SECTION_ANY: of any), or 0. */
int dtm_word_keyword(const dtm_context *context, dtm_string word, dtm_section section);
/* The token kind of a word after an operand, or 0. */
int dtm_word_clause(const dtm_context *context, dtm_string word);
/* Where a keyword of a source, or of a dump, stands ("in `parallel`"), or NULL for what is none. */
const char *dtm_word_home(const dtm_context *context, dtm_string word, bool dump);
/* The keyword nearest to a mistyped word, or 0. */
dtm_string dtm_word_nearest(dtm_context *context, dtm_string word, bool dump);
const char *dtm_section_text(dtm_section section);

#endif
