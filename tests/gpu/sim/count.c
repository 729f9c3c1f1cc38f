/* What accesses cost, where a launch asks for it: sectors of 32 bytes that a warp's access of global memory touches, and how
 * often a warp's access of shared memory must be repeated. Shared memory has 32 banks of 4 bytes: lanes whose words lie in one
 * bank, and are not the same word, wait for one another. An access of 16 bytes a lane is made by 8 lanes at a time (each matrix
 * of ldmatrix so), one of 8 bytes by 16. */
#include "run.h"

static uint64_t sectors(uint32_t mask, const uint64_t *address, int size) {
    uint64_t seen[2 * LANES];
    int n = 0;
    for (int l = 0; l < LANES; l++)
        for (uint64_t s = address[l] / 32; mask >> l & 1 && s <= (address[l] + (uint64_t)size - 1) / 32; s++) {
            int i = n;
            while (i && seen[i - 1] != s)
                i--;
            if (!i && n < 2 * LANES)
                seen[n++] = s;
        }
    return (uint64_t)n;
}

/* The most words of one bank among so many lanes; 0 if none takes part. */
static uint64_t repeats(uint32_t mask, const uint64_t *address, int size, int from, int to) {
    uint64_t words[LANES][LANES];
    int n[LANES] = {0}, most = 0;
    for (int l = from; l < to; l++)
        for (uint64_t w = address[l] / 4; mask >> l & 1 && w <= (address[l] + (uint64_t)size - 1) / 4; w++) {
            int bank = (int)(w % LANES), i = n[bank];
            while (i && words[bank][i - 1] != w)
                i--;
            if (!i && n[bank] < LANES)
                words[bank][n[bank]++] = w;
            if (n[bank] > most)
                most = n[bank];
        }
    return (uint64_t)most;
}

void count_access(struct run *r, const struct op *op, enum space space, uint32_t mask, const uint64_t *address, int size, bool writes) {
    struct sim_counts *c = &r->counts;
    if (space == GENERIC && mask)
        space = address[__builtin_ctz(mask)] >> 56 == 1 ? SHARED : address[__builtin_ctz(mask)] >> 56 ? LOCAL : GLOBAL;
    if (space == GLOBAL)
        *(writes ? &c->write_sectors : &c->read_sectors) += sectors(mask, address, size);
    if (space != SHARED)
        return;
    bool whole = op->base == LDMATRIX || op->base == CP_ASYNC;
    int lanes = size <= 4 ? LANES : 4 * LANES / size;
    for (int from = 0; from < LANES; from += lanes) {
        uint64_t most = repeats(mask, address, size, from, from + lanes);
        c->shared_accesses += most > 0;
        c->shared_repeats += most > 0 ? most - 1 : 0;
        c->copy_repeats += whole && most > 0 ? most - 1 : 0;
    }
}
