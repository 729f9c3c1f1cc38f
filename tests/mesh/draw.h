/* Draws, by seed or from a record. Each is a number in [0, n), 0 the simplest of what it chooses among; a program is a
 * function of its draws, so that whatever makes the record smaller makes the program simpler: this is how failures are
 * shrunk, without a word about programs. */
#ifndef DTM_TESTS_DRAW_H
#define DTM_TESTS_DRAW_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_DRAWS = 1024, MOST_DECKS = 16 };

typedef struct draws {
    uint64_t state;
    bool replays; /* what is past the record is 0 */
    int count;    /* of the record */
    int used;     /* how many were drawn */
    int record[MOST_DRAWS];
    uint64_t turn;          /* programs before this one */
    int dealt[MOST_DECKS];  /* cards of each deck, in this program */
} draws;

void draws_seed(draws *d, uint64_t seed, uint64_t turn);
/* Starts over with the record as it is. */
void draws_replay(draws *d);
int draw(draws *d, int n);
/* What must come up, and soon, is dealt in turn rather than drawn: of n cards the next of this deck, and the next program
 * goes on after the `each` that one program is thought to take. */
int draw_dealt(draws *d, int deck, int each, int n);
/* Between low and high, both included. */
int draw_between(draws *d, int low, int high);
/* True in so many of a hundred cases. */
bool draw_chance(draws *d, int percent);
/* One of the strings up to NULL, the first the simplest. */
const char *draw_word(draws *d, const char *const *words);

/* Makes the record smaller as long as `fails` says so of the smaller one, at most `tries` times. */
void draws_shrink(draws *d, bool fails(draws *d, void *state), void *state, int tries);

#endif
