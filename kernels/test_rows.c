/* Rows of tables gathered and scattered, rope, and packing, against plain loops. */
#include "kernels/test_kernels.h"

#include "kernels/cpu/pack.h"
#include "kernels/cpu/rows.h"

static const dtm_kernel_entry pack = ENTRY(dtm_pack), gather = ENTRY(dtm_rows_gather), scatter = ENTRY(dtm_rows_scatter),
                              rope = ENTRY(dtm_rope), rope_table = ENTRY(dtm_rope_table);

/* ---- rows ---- */

static void test_rows_case(int64_t batch, int64_t tokens, int64_t rows, int64_t width, int64_t first, int64_t gap) {
    const int64_t vocabulary = first + rows + 2;
    dtm_rows_sizes z = {.batch = batch,
                        .tokens = tokens,
                        .rows = rows,
                        .width = width,
                        .first = first,
                        .vocabulary = vocabulary,
                        .table_row = width + gap,
                        .ids_batch = tokens + gap,
                        .out_row = width + gap,
                        .accumulate = below(2)};
    z.table_batch = rows * z.table_row, z.out_batch = tokens * z.out_row;
    int64_t table_count = batch * z.table_batch, out_count = batch * z.out_batch;
    float *table = numbers(table_count), *out = numbers(out_count);
    int32_t *ids = calloc((size_t)(batch * z.ids_batch) + 1, sizeof *ids);
    for (int64_t i = 0; i < batch * z.ids_batch; i++) ids[i] = (int32_t)below(vocabulary);
    double *want = malloc((size_t)(out_count + table_count + 1) * sizeof *want), *sum = want + out_count;
    for (int64_t i = 0; i < out_count; i++) want[i] = out[i];
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t x = 0; x < width; x++) {
                const int64_t row = ids[b * z.ids_batch + t] - first;
                want[b * z.out_batch + t * z.out_row + x] =
                    row >= 0 && row < rows ? table[b * z.table_batch + row * z.table_row + x] : 0;
            }
    void *buffers[] = {table, ids, out};
    int64_t error = DTM_KERNEL_OK;
    const dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&z, .error = &error};
    run_twice(&gather, args, buffers, (int[]){DTM_ROWS_OUT}, 1, &out_count);
    CHECK(distance(out, want, out_count) == 0, "gather");
    CHECK(error == DTM_KERNEL_OK, "no id is bad");
    for (int64_t i = 0; i < table_count; i++) sum[i] = !z.accumulate && i % z.table_row < width ? 0 : table[i];
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t x = 0; x < width; x++) {
                const int64_t row = ids[b * z.ids_batch + t] - first;
                if (row >= 0 && row < rows)
                    sum[b * z.table_batch + row * z.table_row + x] += out[b * z.out_batch + t * z.out_row + x];
            }
    run_twice(&scatter, args, buffers, (int[]){DTM_ROWS_TABLE}, 1, &table_count);
    CHECK(distance(table, sum, table_count) <= 1e-6, "scatter");
    if (batch * tokens > 2) {
        ids[(batch - 1) * z.ids_batch + tokens - 1] = -1;
        ids[tokens > 1 ? 1 : z.ids_batch] = (int32_t)vocabulary;
        run_parts(&gather, args);
        CHECK(error == 1, "the first bad id is 1, not %d", (int)error);
        run_whole(&scatter, args); /* passes them over */
    }
    free(table), free(out), free(ids), free(want);
}

void test_rows(void) {
    static const int64_t sizes[] = {0, 1, 3, 5, 17, 65};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
            for (int k = 0; k < 6; k++)
                test_rows_case(below(4), sizes[i], sizes[j], sizes[k], below(2) * 7, below(2) * 3);
}

static void rope_want(const dtm_rope_sizes *z, int64_t offset, double base, const float *x, double *out) {
    for (int64_t b = 0; b < z->batch; b++)
        for (int64_t p = 0; p < z->positions; p++)
            for (int64_t h = 0; h < z->heads; h++) {
                const float *in = x + b * z->x_batch + p * z->x_position + h * z->x_head;
                double *to = out + b * z->out_batch + p * z->out_position + h * z->out_head;
                for (int64_t i = 0; i < z->width; i++) to[i] = in[i];
                for (int64_t i = 0; i < z->part / 2; i++) {
                    const double angle =
                        (double)(p + offset) * pow(base, -2.0 * (double)i / (double)z->part) * (z->inverse ? -1 : 1);
                    const int64_t a = z->interleaved ? 2 * i : i, c = z->interleaved ? 2 * i + 1 : i + z->part / 2;
                    to[a] = in[a] * cos(angle) - in[c] * sin(angle);
                    to[c] = in[c] * cos(angle) + in[a] * sin(angle);
                }
            }
}

static void test_rope_case(int64_t positions, int64_t heads, int64_t width, int64_t part, int64_t offset) {
    const int64_t row = width + below(3);
    dtm_rope_sizes z = {.batch = 2,
                        .positions = positions,
                        .heads = heads,
                        .width = width,
                        .part = part,
                        .interleaved = below(2),
                        .inverse = below(2),
                        .x_batch = positions * heads * row,
                        .x_position = heads * row,
                        .x_head = row,
                        .out_batch = positions * heads * row,
                        .out_position = row,
                        .out_head = positions * row};
    const dtm_rope_table_sizes table_sizes = {positions, part, offset};
    int64_t count = 2 * positions * heads * row, table_count = positions * part;
    float *x = numbers(count), *out = numbers(count), *table = fresh(table_count);
    double *want = malloc((size_t)(count + 1) * sizeof *want);
    const double base[] = {10000};
    void *table_buffers[] = {table}, *buffers[] = {x, table, out};
    run_twice(&rope_table,
              (dtm_kernel_args){.buffers = table_buffers, .sizes = (const int64_t *)&table_sizes, .numbers = base},
              table_buffers, (int[]){0}, 1, &table_count);
    for (int64_t i = 0; i < count; i++) want[i] = out[i];
    rope_want(&z, offset, base[0], x, want);
    const dtm_kernel_args args = {.buffers = buffers, .sizes = (const int64_t *)&z};
    run_twice(&rope, args, buffers, (int[]){DTM_ROPE_OUT}, 1, &count);
    const double err = distance(out, want, count);
    CHECK(err <= 1e-6, "rope: width %d part %d interleaved %d: %g", (int)width, (int)part, (int)z.interleaved, err);
    z.out_position = z.x_position, z.out_head = z.x_head; /* in place */
    for (int64_t i = 0; i < count; i++) want[i] = x[i];
    rope_want(&z, offset, base[0], x, want);
    buffers[DTM_ROPE_OUT] = x;
    run_parts(&rope, args);
    CHECK(distance(x, want, count) <= 1e-6, "rope in place");
    free(x), free(out), free(table), free(want);
}

void test_rope(void) {
    for (int64_t positions = 0; positions < 20; positions += 3)
        for (int64_t part = 0; part <= 34; part += 2)
            test_rope_case(positions, 1 + below(3), part + below(5), part, below(2) * 100000);
}

/* ---- pack ---- */

static void test_pack_case(int64_t bytes) {
    dtm_pack_sizes z = {.rank = below(6), .bytes = bytes, .from_offset = below(4), .to_offset = below(4)};
    static const int64_t some[] = {1, 1, 2, 3, 5, 17, 34, 65};
    int order[2][8];
    int64_t elements = 1, from_count = 1, to_count = 1;
    for (int i = 0; i < z.rank; i++) {
        z.size[i] = some[below(elements > 5000 ? 3 : 8)];
        if (!below(60)) z.size[i] = 0;
        elements *= z.size[i];
        for (int side = 0; side < 2; side++) { /* a random order of the dimensions on either side */
            const int at = below(3) ? i : (int)below(i + 1);
            for (int j = i; j > at; j--) order[side][j] = order[side][j - 1];
            order[side][at] = i;
        }
    }
    for (int i = (int)z.rank - 1; i >= 0; i--) {
        z.from[order[0][i]] = from_count,
        from_count = from_count * DTM_MAX(z.size[order[0][i]], 1) + (below(4) ? 0 : 2);
        z.to[order[1][i]] = to_count, to_count = to_count * DTM_MAX(z.size[order[1][i]], 1) + (below(4) ? 0 : 2);
    }
    from_count += z.from_offset, to_count += z.to_offset;
    int64_t words = (to_count * bytes + 3) / 4;
    unsigned char *from = malloc((size_t)(from_count * bytes)), *to = calloc(1, (size_t)(words * 4)),
                  *want = calloc(1, (size_t)(words * 4));
    for (int64_t i = 0; i < from_count * bytes; i++) from[i] = (unsigned char)roll();
    for (int64_t e = 0; e < elements; e++) {
        int64_t rest = e, f = z.from_offset, t = z.to_offset;
        for (int i = 0; i < z.rank; i++)
            f += rest % z.size[i] * z.from[i], t += rest % z.size[i] * z.to[i], rest /= z.size[i];
        memcpy(want + t * bytes, from + f * bytes, (size_t)bytes);
    }
    void *buffers[] = {from, to};
    run_twice(&pack, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&z}, buffers, (int[]){DTM_PACK_TO},
              1, &words);
    CHECK(!memcmp(to, want, (size_t)(words * 4)), "pack of rank %d, %d elements of %d bytes", (int)z.rank,
          (int)elements, (int)bytes);
    free(from), free(to), free(want);
}

void test_pack(void) {
    for (int round = 0; round < 600; round++) test_pack_case((int64_t[]){4, 4, 4, 1, 2, 8}[round % 6]);
    int64_t count = 100003; /* one long run, cut into pieces */
    float *from = numbers(count), *to = fresh(count);
    void *buffers[] = {from, to};
    const dtm_pack_sizes z = {.rank = 1, .bytes = 4, .size = {count}, .from = {1}, .to = {1}};
    CHECK(dtm_pack_extent((const int64_t *)&z) > 1, "a long run is cut");
    run_twice(&pack, (dtm_kernel_args){.buffers = buffers, .sizes = (const int64_t *)&z}, buffers, (int[]){DTM_PACK_TO},
              1, &count);
    CHECK(!memcmp(from, to, (size_t)count * 4), "a long run");
    free(from), free(to);
}
