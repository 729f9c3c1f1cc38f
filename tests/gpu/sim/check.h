/* What the checks share: memory (memory.c), races (race.c), and where an access may go (check.c). */
#ifndef CHECK_H
#define CHECK_H
#include "run.h"

#include <stdlib.h>
#include <string.h>

/* clock: 26 bits, lane 5, warp 5, atomic 1, pending 1, block 26 */
typedef uint64_t stamp;
#define CLOCK(s) ((uint32_t)((s) & 0x3ffffff))
#define LANE(s) ((int)((s) >> 26 & 31))
#define WARP(s) ((int)((s) >> 31 & 31))
#define ATOMIC (UINT64_C(1) << 36)
#define PENDING (UINT64_C(1) << 37)
#define BLOCK(s) ((s) >> 38)

/* Of what was not read by one warp alone: what each warp of one block read last, and one reader of another block. */
struct reader { uint32_t clock, lanes, op; };
struct readers { uint64_t block; stamp foreign; uint32_t foreign_op, next_free; struct reader warp[]; };
/* The last write; readers since, all of strong reads or none. `many`: `read` is an index into readers. */
struct cell { stamp write, read; uint32_t write_op, read_op, read_lanes; bool many, strong; };
enum { PAGE = 4096 };
struct page { int shift; struct page *next; struct cell cells[]; };
struct shadow { struct page **pages; size_t n; };

struct range { char *base, *bytes; size_t size; uint64_t *defined; struct shadow shadow; };
struct sim_memory { struct range *ranges; int n; struct page *spare; /* of four bytes a cell, used again */ char *scratch; size_t scratch_size; };
struct sync { uint64_t address; uint32_t *seen; struct sync *next; };
struct buffer { const char *name; uint64_t low, high; int direction; bool tracked; struct range *range; };
struct checks {
    struct buffer *buffers;
    int n_buffers, last;
    char *readers; /* by index; those that are free are a list */
    size_t readers_size;
    uint32_t n_readers, free_readers; /* the list's first, plus 1 */
    struct sync *syncs;
    size_t n_warps;
    struct sim_memory *memory;
};

struct range *range_of(const struct sim_memory *, uint64_t at);
void shadow_begin(struct shadow *, size_t bytes);
void shadow_clear(struct checks *, struct shadow *);
void shadow_end(struct sim_memory *, struct shadow *);
/* A plain read by some lanes of the same bytes. */
void touch_same(struct run *, struct warp *, uint32_t lanes, const struct op *, struct shadow *, size_t at, int size);
/* An access of a lane, or of all lanes in a row (of a multiple of four bytes each), at an offset of the shadow. */
void touch(struct run *, struct warp *, int lane, const struct op *, struct shadow *, size_t at, int size, enum access);
void touch_row(struct run *, struct warp *, const struct op *, struct shadow *, size_t at, int size, enum access);
/* Before an atomic or strong access that writes, and after one that reads. */
void publish(struct run *, struct warp *, const struct op *, uint64_t address);
void acquire(struct run *, struct warp *, const struct op *, uint64_t address);

/* A bit a byte. */
static inline bool all_set(const uint64_t *bits, size_t at, size_t n) {
    while (n) {
        size_t in = at & 63, now = n < 64 - in ? n : 64 - in;
        uint64_t want = (now == 64 ? UINT64_MAX : (UINT64_C(1) << now) - 1) << in;
        if ((bits[at >> 6] & want) != want)
            return false;
        at += now, n -= now;
    }
    return true;
}
static inline void set_all(uint64_t *bits, size_t at, size_t n, bool value) {
    while (n) {
        size_t in = at & 63, now = n < 64 - in ? n : 64 - in;
        uint64_t which = (now == 64 ? UINT64_MAX : (UINT64_C(1) << now) - 1) << in;
        bits[at >> 6] = value ? bits[at >> 6] | which : bits[at >> 6] & ~which;
        at += now, n -= now;
    }
}
static inline void *zeroed(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort();
    return p;
}
#endif
