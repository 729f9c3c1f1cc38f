/* Reads the tables of places of a loop over microbatches (calls.h). */
#include "ir/calls.h"

#include <string.h>

static const char *skip(const char *at) { return at + strspn(at, " "); }

/* A number, or `-`; NULL: neither. */
static const char *read_place(const char *at, uint32_t *place) {
    const char *from = at;
    *place = DTM_NO_PLACE;
    if (*at == '-') return at + 1;
    for (*place = 0; *at >= '0' && *at <= '9' && at - from < 9; at++) *place = *place * 10 + (uint32_t)(*at - '0');
    return at > from && !(*at >= '0' && *at <= '9') ? at : NULL;
}

static const char *read_table(const char **text, dtm_arena *arena, const dtm_loop_places *places, uint32_t *table) {
    size_t count = 0;
    for (const char *at = skip(*text);; at = skip(at), count++) {
        uint32_t place;
        *text = at;
        if (!*at || *at == ';') break;
        if (!(at = read_place(at, &place)))
            return dtm_arena_printf(arena, "`%.*s` is no place: a whole number, or `-`", (int)strcspn(*text, " ;"), *text);
        if (count < places->n_microbatches) table[count] = place;
    }
    if (count == places->n_microbatches) return NULL;
    return dtm_arena_printf(arena, "table %d of places has %d, for %d microbatch%s", (int)places->count + 1, (int)count, (int)places->n_microbatches,
                            places->n_microbatches == 1 ? "" : "es");
}

const char *dtm_loop_places_of(const dtm_module *module, dtm_op loop, dtm_arena *arena, dtm_loop_places *out) {
    *out = (dtm_loop_places){0};
    if (!loop || !dtm_op_get(module, loop)->attributes.places) return NULL;
    const char *text = dtm_string_text(module->context, dtm_op_get(module, loop)->attributes.places), *wrong = NULL;
    size_t tables = 1;
    for (const char *at = text; *at; at++) tables += *at == ';';
    out->n_microbatches = (size_t)dtm_op_get(module, loop)->attributes.copies;
    out->items = dtm_arena_alloc(arena, (tables * out->n_microbatches + 1) * sizeof *out->items);
    for (;; text++) {
        wrong = read_table(&text, arena, out, out->items + out->count * out->n_microbatches);
        if (wrong) return wrong;
        out->count++;
        if (!*text) return NULL;
    }
}
