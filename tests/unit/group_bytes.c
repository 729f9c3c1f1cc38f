/* What a group of ranks sends, and which sizes blocks have, is reckoned from cuts, without going through the ranks: against
 * going through them, on random layouts, uneven and in units, with an axis in time. And of a mesh of 2^31 - 1 ranks in no
 * time. */
#include "passes/cost_bytes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;

static void expect(int64_t got, int64_t wanted, const char *what) {
    if (got == wanted) return;
    printf("failed: %s is %lld, not %lld\n", what, (long long)got, (long long)wanted);
    failures++;
}

static uint64_t state = 1;

static int draw(int below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)below);
}

static dtm_module *make(dtm_context *context, const int64_t *axes, int n_axes, bool time, const int64_t *sizes, int n_sizes,
                        dtm_dim *dims) {
    dtm_module *m = dtm_module_create(context);
    for (int a = 0; a < n_axes; a++)
        m->settings.mesh.axes[m->settings.mesh.count++] =
            (dtm_axis_data){dtm_string_printf(context, "%c", 'a' + a), axes[a], time && a == n_axes - 1, {0, 0, 0}};
    for (int d = 0; d < n_sizes; d++)
        dims[d] = dtm_dim_add(m, dtm_string_printf(context, "%c", 'A' + d), sizes[d], (dtm_span){0, 0, 0});
    return m;
}

/* The axis in time, the last, comes before all others. */
static dtm_type_data random_type(dtm_module *m, const dtm_dim *dims, int rank) {
    dtm_type_data type = *dtm_type_get(m, dtm_type_make(m, DTM_F32, (uint8_t)rank, dims));
    int count = m->settings.mesh.count, first = draw(count - 1);
    for (int i = 0; i < count; i++) {
        int axis = i ? (first + i) % (count - 1) : count - 1, to = draw(rank + 1);
        if (to == rank) continue;
        type.layout[to].splits[type.layout[to].count++] = (dtm_split){(uint8_t)axis, (uint32_t)(1 + draw(3))};
    }
    return *dtm_type_get(m, dtm_type_intern(m, &type));
}

/* ---- one after another ---- */

enum { RANKS = 64 };

typedef struct block {
    int64_t begin[2], size[2];
} block;

static int members(const dtm_module *m, uint16_t axes, int64_t at[RANKS][DTM_MAX_AXES]) {
    const dtm_mesh *mesh = &m->settings.mesh;
    int n = 1;
    memset(at[0], 0, sizeof at[0]);
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time) at[0][a] = mesh->axes[a].size - 1;
    for (int a = 0; a < mesh->count; a++) {
        if (!(axes >> a & 1)) continue;
        int64_t size = mesh->axes[a].size;
        for (int i = n - 1; i >= 0; i--) /* from behind: what is read is not yet written over */
            for (int64_t c = size - 1; c >= 0; c--) {
                memmove(at[i * size + c], at[i], sizeof at[0]);
                at[i * size + c][a] = c;
            }
        n *= (int)size;
    }
    return n;
}

static block block_at(const dtm_module *m, const dtm_type_data *type, const int64_t *at) {
    block b;
    for (int d = 0; d < 2; d++) dtm_block(m, type, d, at, &b.begin[d], &b.size[d]);
    return b;
}

static int64_t most_by_rank(const dtm_module *m, dtm_op_kind kind, uint16_t axes, const dtm_type_data *from,
                            const dtm_type_data *to, dtm_algorithm algorithm) {
    static int64_t at[RANKS][DTM_MAX_AXES];
    int n = members(m, axes, at);
    int64_t most = 0, counts[RANKS];
    for (int i = 0; i < n; i++) {
        block b = block_at(m, kind == DTM_OP_REDUCE_SCATTER ? to : from, at[i]);
        counts[i] = b.size[0] * b.size[1];
    }
    for (int i = 0; i < n; i++) {
        int64_t sent = 0;
        if (kind == DTM_OP_ALL_GATHER || kind == DTM_OP_REDUCE_SCATTER)
            sent = dtm_collective_sent_bytes(kind == DTM_OP_ALL_GATHER ? DTM_COLLECTIVE_ALL_GATHER
                                                                       : DTM_COLLECTIVE_REDUCE_SCATTER,
                                             algorithm, n, i, counts, 4);
        for (int j = 0; j < n && kind == DTM_OP_PERMUTE; j++) {
            bool sends = i != j;
            for (int a = 0; a < m->settings.mesh.count; a++) /* the one of those that have it that agrees with who needs it */
                if (axes >> a & 1 && dtm_type_axis_dim(from, (uint8_t)a) < 0 && at[i][a] != at[j][a]) sends = false;
            block have = block_at(m, from, at[i]), want = block_at(m, to, at[j]);
            int64_t elements = sends ? 4 : 0;
            for (int d = 0; d < 2; d++) {
                int64_t low = have.begin[d] > want.begin[d] ? have.begin[d] : want.begin[d];
                int64_t a = have.begin[d] + have.size[d], b = want.begin[d] + want.size[d], high = a < b ? a : b;
                elements *= high > low ? high - low : 0;
            }
            sent += elements;
        }
        if (sent > most) most = sent;
    }
    return most;
}

static void check_bytes(dtm_context *context) {
    static const dtm_op_kind kinds[] = {DTM_OP_ALL_GATHER, DTM_OP_REDUCE_SCATTER, DTM_OP_PERMUTE};
    dtm_dim dims[2];
    for (int round = 0; round < 4000; round++) {
        int64_t sizes[] = {1 + draw(24), 1 + draw(24)};
        dtm_module *m = make(context, (int64_t[]){2, 3, 2, 2, 3}, 5, true, sizes, 2, dims);
        dtm_type_data from = random_type(m, dims, 2), to = random_type(m, dims, 2);
        uint16_t axes = (uint16_t)(1 + draw(15));
        for (int k = 0; k < 3; k++)
            for (int way = 0; way < (k < 2 ? 3 : 1); way++) {
                static const dtm_algorithm ways[] = {DTM_ALGORITHM_PAIRWISE, DTM_ALGORITHM_RING, DTM_ALGORITHM_BOTH_WAYS};
                dtm_algorithm algorithm = ways[way];
                expect(dtm_most_sent(m, kinds[k], axes, &from, &to, 0, algorithm),
                       most_by_rank(m, kinds[k], axes, &from, &to, algorithm), dtm_op_rows[kinds[k]].name);
            }
        dtm_module_destroy(m);
    }
}

/* ---- sizes of blocks, and units ---- */

static bool is_among(int64_t size, const int64_t *sizes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (sizes[i] == size) return true;
    return false;
}

static void check_sizes(dtm_context *context) {
    dtm_dim dim;
    for (int round = 0; round < 2000; round++) {
        int64_t n = 1 + draw(60);
        dtm_module *m = make(context, (int64_t[]){2, 3, 5, 4}, 4, true, &n, 1, &dim);
        dtm_type_data type = random_type(m, &dim, 1);
        int64_t sizes[DTM_MAX_BLOCK_SIZES], at[DTM_MAX_AXES], begin, size, seen[DTM_MAX_BLOCK_SIZES];
        size_t count = dtm_block_sizes(&m->settings.mesh, n, &type.layout[0], sizes), n_seen = 0;
        for (int i = 0; i < 2 * 3 * 5 * 4; i++) {
            at[0] = i % 2, at[1] = i / 2 % 3, at[2] = i / 6 % 5, at[3] = i / 30;
            dtm_block(m, &type, 0, at, &begin, &size);
            if (size && !is_among(size, sizes, count)) expect(size, sizes[0], "a block's size");
            if (size && !is_among(size, seen, n_seen)) seen[n_seen++] = size;
        }
        expect((int64_t)count, (int64_t)n_seen, "the number of sizes");
        /* A unit was kept where it changes a block, and nowhere else. */
        for (int s = 0; s < type.layout[0].count; s++) {
            if (type.layout[0].splits[s].unit == 1) continue;
            dtm_dim_layout first = type.layout[0], plain;
            first.count = (uint8_t)(s + 1);
            plain = first;
            plain.splits[s].unit = 1;
            int changed = 0;
            for (int i = 0; i < 2 * 3 * 5 * 4; i++) {
                int64_t b0, s0, b1, s1;
                at[0] = i % 2, at[1] = i / 2 % 3, at[2] = i / 6 % 5, at[3] = i / 30;
                dtm_block_of(&m->settings.mesh, n, &first, at, &b0, &s0);
                dtm_block_of(&m->settings.mesh, n, &plain, at, &b1, &s1);
                changed += s0 != s1 || (s0 && b0 != b1);
            }
            if (!changed) expect(0, 1, "the blocks that a unit changes");
        }
        dtm_module_destroy(m);
    }
}

/* ---- a large mesh ---- */

static void check_large(dtm_context *context) {
    dtm_dim dims[2];
    dtm_module *m = make(context, (int64_t[]){65536, 32767, 1}, 3, false, (int64_t[]){3000000007, 1000003}, 2, dims);
    dtm_type_data from = *dtm_type_get(m, dtm_type_make(m, DTM_F32, 2, dims)), to = from;
    from.layout[0] = (dtm_dim_layout){2, {{0, 1}, {1, 7}}};
    to.layout[0] = (dtm_dim_layout){1, {{0, 1}}};
    to.layout[1] = (dtm_dim_layout){1, {{1, 3}}};
    clock_t start = clock();
    int64_t sent = dtm_most_sent(m, DTM_OP_PERMUTE, 3, &from, &to, 0, DTM_ALGORITHM_PAIRWISE);
    int64_t block = 7 * 1000003LL * 4, own = 7 * 33LL * 4; /* ceil(45777 / 7 / 32767) units of 7; 33: 31 in units of 3 */
    expect(sent, block - own, "what is sent on a large mesh");
    if ((double)(clock() - start) > CLOCKS_PER_SEC) expect(1, 0, "the time of a large mesh");
    dtm_module_destroy(m);
}

int main(void) {
    dtm_context *context = dtm_context_create();
    check_bytes(context);
    check_sizes(context);
    check_large(context);
    dtm_context_destroy(context);
    return failures > 0;
}
