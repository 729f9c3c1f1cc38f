/* What a device owns: ranges of the host's memory, sorted, with a bit a byte that says whether it was ever written. */
#include "check.h"

struct sim_memory *sim_memory_new(void) { return zeroed(1, sizeof(struct sim_memory)); }
struct range *range_of(const struct sim_memory *m, uint64_t at) {
    int low = 0, high = m->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uint64_t)(uintptr_t)m->ranges[middle].base + m->ranges[middle].size > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low < m->n && (uint64_t)(uintptr_t)m->ranges[low].base <= at ? &m->ranges[low] : NULL;
}
bool sim_memory_add(struct sim_memory *m, void *base, size_t size) { return sim_memory_add_at(m, base, base, size); }
bool sim_memory_add_at(struct sim_memory *m, void *base, void *bytes, size_t size) {
    int at = 0;
    while (at < m->n && (uintptr_t)m->ranges[at].base < (uintptr_t)base)
        at++;
    if (!size || (at && (uintptr_t)m->ranges[at - 1].base + m->ranges[at - 1].size > (uintptr_t)base) ||
        (at < m->n && (uintptr_t)base + size > (uintptr_t)m->ranges[at].base))
        return false;
    m->ranges = realloc(m->ranges, sizeof *m->ranges * (size_t)(m->n + 1));
    if (!m->ranges)
        abort();
    memmove(m->ranges + at + 1, m->ranges + at, sizeof *m->ranges * (size_t)(m->n++ - at));
    m->ranges[at] = (struct range){.base = base, .bytes = bytes, .size = size, .defined = zeroed(size / 64 + 1, 8)};
    return true;
}
bool sim_memory_remove(struct sim_memory *m, void *base) {
    for (int i = 0; i < m->n; i++)
        if (m->ranges[i].base == base) {
            free(m->ranges[i].defined);
            memmove(m->ranges + i, m->ranges + i + 1, sizeof *m->ranges * (size_t)(--m->n - i));
            return true;
        }
    return false;
}
void sim_memory_free(struct sim_memory *m) {
    while (m && m->n)
        sim_memory_remove(m, m->ranges[0].base);
    if (!m)
        return;
    for (struct page *p = m->spare, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    free(m->scratch), free(m->ranges), free(m);
}
bool sim_memory_define(struct sim_memory *m, const void *at, size_t size, bool defined) {
    struct range *r = range_of(m, (uintptr_t)at);
    if (!r || (size_t)((const char *)at - r->base) + size > r->size)
        return false;
    set_all(r->defined, (size_t)((const char *)at - r->base), size, defined);
    return true;
}
size_t sim_memory_defined(const struct sim_memory *m, const void *at, size_t size) {
    const struct range *r = range_of(m, (uintptr_t)at);
    if (!r)
        return 0;
    size_t from = (size_t)((const char *)at - r->base), n = 0;
    if (size > r->size - from)
        size = r->size - from;
    while (n + 64 <= size && all_set(r->defined, from + n, 64))
        n += 64;
    while (n < size && all_set(r->defined, from + n, 1))
        n++;
    return n;
}

char *memory_scratch(struct sim_memory *m, size_t size) {
    if (size > m->scratch_size) {
        free(m->scratch);
        m->scratch_size = (size + 4095) / 4096 * 4096;
        m->scratch = aligned_alloc(4096, m->scratch_size);
        if (!m->scratch)
            abort();
    }
    return m->scratch;
}
