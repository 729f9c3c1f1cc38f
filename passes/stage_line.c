/* The cut of one order (stage_line.h): the one whose busiest rank has least to do among those that fit. The model of memory leaves out
 * what only the whole program shows: workspaces, what is in flight of one microbatch, what lies between others in the arena. After a
 * trial the cuts near it are taken to need beside the model about what it needed, rather less; so the cut that is chosen at last has been
 * seen to fit, and those that would be better not to. If none seems to fit, the one that needs least by what is known tells whether that
 * is so. */
#include "passes/stage_line.h"

#include <math.h>
#include <string.h>

stage_line stage_line_of(const stages *s, dtm_timeline *places, const dtm_timeline_problem *problem, int64_t copies, double memory) {
    stage_line line = {*s, problem, copies, memory, NULL, 0, 10};
    line.s.places = places;
    line.s.chunks = places->chunks;
    line.s.count = places->stages;
    line.s.first = dtm_arena_alloc(s->scratch, (size_t)(places->stages + 1) * sizeof *line.s.first);
    return line;
}

/* As given, or as even as it can be: of what cannot be cut, which is said later. */
static void cut_as_given(stage_line *l) {
    const dtm_pipeline_rule *rule = l->s.rule;
    for (int k = 0; k < l->s.count; k++)
        l->s.first[k + 1] = l->s.first[k] + (rule->n_stages ? rule->stages[k] : l->copies / l->s.count + (k < l->copies % l->s.count));
}

static int64_t *copies_of(const stage_line *l, dtm_arena *arena) {
    int64_t *copies = dtm_arena_alloc(arena, (size_t)l->s.count * sizeof *copies);
    for (int k = 0; k < l->s.count; k++) copies[k] = stage_copies(&l->s, k);
    return copies;
}

static const stage_seen *find_seen(const stage_line *l, const int64_t *copies) {
    for (const stage_seen *seen = l->seen; seen; seen = seen->before)
        if (memcmp(seen->copies, copies, (size_t)l->s.count * sizeof *copies) == 0) return seen;
    return NULL;
}

/* The last one seen that fits. */
static const stage_seen *fitting(const stage_line *l) {
    const stage_seen *seen = l->seen;
    while (seen && seen->most > l->memory) seen = seen->before;
    return seen;
}

/* What is modelled may be more than what there is, too: where I and W are one, less is written down between them. */
static const double MODEL_EXCEEDS = 1.25;

bool stage_line_is_hopeless(stage_line *l) {
    dtm_timeline_problem bare = *l->problem;
    bare.memory = MODEL_EXCEEDS * l->memory;
    if (l->memory <= 0 || l->s.rule->n_stages || bare.units <= 1) return false;
    return !stage_balance(&l->s, l->copies, &bare, NULL) && stage_least_memory(&l->s, l->copies, &bare, NULL) > bare.memory;
}

static double arena_of(const stage_seen *seen, int rank) { return seen->modelled[rank] + seen->beside[rank]; }

/* Of the cut seen that needs least, one with a copy less on the rank that needs most, and one more on the rank that needs least of those
 * for which it has not been seen; NULL: there is none. */
static int64_t *near_least(const stage_line *l, dtm_arena *arena) {
    const stage_seen *best = l->seen;
    for (const stage_seen *seen = l->seen; seen; seen = seen->before)
        if (seen->most < best->most) best = seen;
    if (!best) return NULL;
    int full = 0;
    for (int r = 1; r < l->s.n_ranks; r++)
        if (arena_of(best, r) > arena_of(best, full)) full = r;
    int64_t *cut = dtm_arena_alloc(arena, (size_t)l->s.count * sizeof *cut), *found = NULL;
    double least = INFINITY;
    for (int from = 0; from < l->s.chunks; from++)
        for (int r = 0; r < l->s.n_ranks; r++)
            for (int to = 0; to < l->s.chunks; to++) {
                int a = stage_at(&l->s, full, from), b = stage_at(&l->s, r, to);
                if (r == full || a == b || !best->copies[a] || arena_of(best, r) >= least) continue;
                memcpy(cut, best->copies, (size_t)l->s.count * sizeof *cut);
                cut[a]--;
                cut[b]++;
                if (find_seen(l, cut)) continue;
                least = arena_of(best, r);
                if (!found) found = dtm_arena_alloc(arena, (size_t)l->s.count * sizeof *found);
                memcpy(found, cut, (size_t)l->s.count * sizeof *cut);
            }
    return found;
}

stage_advice stage_line_next(stage_line *l, dtm_arena *arena, int64_t **copies) {
    if (l->s.rule->n_stages || l->problem->units <= 1) {
        cut_as_given(l);
        *copies = copies_of(l, arena);
        return STAGE_STANDS;
    }
    bool fits = stage_balance(&l->s, l->copies, l->problem, l->seen);
    *copies = copies_of(l, arena);
    if (l->memory <= 0 || (fits && find_seen(l, *copies))) return STAGE_STANDS;
    const stage_seen *good = fitting(l);
    int64_t *next = *copies;
    if (!fits) {
        if (stage_line_is_hopeless(l)) return STAGE_NONE;
        stage_least_memory(&l->s, l->copies, l->problem, l->seen);
        next = copies_of(l, arena);
        if (!good && find_seen(l, next)) next = near_least(l, arena);
    }
    if (next && l->n_seen < l->most && !find_seen(l, next)) {
        *copies = next;
        return STAGE_TRY;
    }
    if (!good) return STAGE_NONE;
    *copies = (int64_t *)good->copies;
    return STAGE_STANDS;
}

void stage_line_saw(stage_line *l, const int64_t *copies, const double *arena) {
    size_t ranks = (size_t)l->s.n_ranks;
    stage_seen *seen = dtm_arena_alloc(l->s.scratch, sizeof *seen);
    double *modelled = dtm_arena_alloc(l->s.scratch, ranks * sizeof *modelled), *beside = dtm_arena_alloc(l->s.scratch, ranks * sizeof *beside);
    *seen = (stage_seen){l->seen, copies, modelled, beside, 0};
    if (l->problem->units > 1) stage_modelled(&l->s, l->problem, copies, modelled);
    for (size_t r = 0; r < ranks; r++) {
        beside[r] = arena[r] - (l->memory - l->problem->memory) - modelled[r];
        seen->most = fmax(seen->most, arena[r]);
    }
    l->seen = seen;
    l->n_seen++;
}
