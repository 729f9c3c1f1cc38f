/* Draws and how they shrink: see draw.h. */
#include "draw.h"

#include <string.h>

void draws_seed(draws *d, uint64_t seed, uint64_t turn) {
    memset(d, 0, sizeof *d);
    d->state = seed;
    d->turn = turn;
}

void draws_replay(draws *d) {
    d->replays = true;
    memset(d->dealt, 0, sizeof d->dealt);
    d->used = 0;
}

/* splitmix64 */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t next(draws *d) { return mix(d->state += 0x9e3779b97f4a7c15u); }

/* The next of the record, or a new one. */
static int take(draws *d, int fresh, int n) {
    int value = fresh;
    if (d->replays) value = d->used < d->count ? d->record[d->used] % n : 0;
    if (d->used < MOST_DRAWS) d->record[d->used++] = value;
    if (!d->replays) d->count = d->used;
    return value;
}

int draw(draws *d, int n) { return take(d, d->replays ? 0 : (int)(next(d) % (uint64_t)n), n); }

/* Each round of the deck begins at another card, so that two decks do not go in step. */
int draw_dealt(draws *d, int deck, int each, int n) {
    uint64_t at = d->turn * (uint64_t)each + (uint64_t)d->dealt[deck]++;
    uint64_t shift = mix(at / (uint64_t)n * MOST_DECKS + (uint64_t)deck);
    return take(d, (int)((at + shift % (uint64_t)n) % (uint64_t)n), n);
}

int draw_between(draws *d, int low, int high) { return low + draw(d, high - low + 1); }

bool draw_chance(draws *d, int percent) { return draw(d, 100) >= 100 - percent; }

const char *draw_word(draws *d, const char *const *words) {
    int n = 0;
    while (words[n]) n++;
    return words[draw(d, n)];
}

static int least(int a, int b) { return a < b ? a : b; }

/* Tries a smaller record; keeps it if it still fails. */
static bool keep_if_failing(draws *d, const draws *smaller, bool fails(draws *, void *), void *state, int *tries) {
    if (*tries <= 0) return false;
    draws attempt = *smaller;
    --*tries;
    draws_replay(&attempt);
    if (!fails(&attempt, state)) return false;
    attempt.count = least(attempt.used, MOST_DRAWS); /* what was drawn is the record from now on */
    *d = attempt;
    return true;
}

static bool without_span(draws *d, int at, int length, bool fails(draws *, void *), void *state, int *tries) {
    draws smaller = *d;
    memmove(smaller.record + at, smaller.record + at + length, (size_t)(d->count - at - length) * sizeof(int));
    smaller.count -= length;
    return keep_if_failing(d, &smaller, fails, state, tries);
}

static bool zeroed_span(draws *d, int at, int length, bool fails(draws *, void *), void *state, int *tries) {
    draws smaller = *d;
    bool any = false;
    for (int i = at; i < at + length; i++) any |= smaller.record[i] != 0, smaller.record[i] = 0;
    return any && keep_if_failing(d, &smaller, fails, state, tries);
}

static bool lowered(draws *d, int at, bool fails(draws *, void *), void *state, int *tries) {
    draws smaller = *d;
    smaller.record[at] /= 2;
    if (d->record[at] > 1 && keep_if_failing(d, &smaller, fails, state, tries)) return true;
    smaller = *d;
    smaller.record[at]--;
    return d->record[at] > 0 && keep_if_failing(d, &smaller, fails, state, tries);
}

void draws_shrink(draws *d, bool fails(draws *d, void *state), void *state, int tries) {
    d->count = least(d->count, MOST_DRAWS);
    for (bool better = true; better && tries > 0;) {
        better = false;
        for (int length = d->count; length > 0; length /= 2)
            for (int at = 0; at + length <= d->count; at += length) {
                better |= zeroed_span(d, at, length, fails, state, &tries);
                if (at + length <= d->count) better |= without_span(d, at, length, fails, state, &tries);
            }
        for (int at = 0; at < d->count; at++)
            while (at < d->count && lowered(d, at, fails, state, &tries)) better = true;
    }
}
