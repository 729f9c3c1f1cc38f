/* Training data: which text a step reads, and how a rank reads its part of it.
 *
 * A flat file is a stream of tokens (bytes, u16 or u32, little endian). With sequences of S it holds n = (tokens - 1) /
 * S samples; sample i is tokens [i S, i S + S], its inputs the first S of these and its targets the last S. What is
 * left over at the end, fewer than S + 1 tokens, is never read. Epoch e takes all n samples once, in an order that
 * depends on (seed, e) alone. Position p of the endless stream is sample order(p / n, p % n), and step t (from 0) reads
 * positions [t B, t B + B). So a batch may straddle two epochs; no sample is dropped, or seen twice in an epoch, and
 * nothing depends on the ranks. Unshuffled data (for evaluation) is taken in the file's order.
 *
 * A safetensors file has a tensor for each input under its name, the steps first: step t reads tensor[t].
 *
 * Each rank reads only its block of an input. A token >= V, or a negative one, is an error that says where it stands.
 */
#ifndef DTM_DATA_H
#define DTM_DATA_H

#include "runtime/status.h"

#include <stdint.h>

typedef struct dtm_data dtm_data;

typedef enum dtm_data_format { DTM_DATA_BYTES, DTM_DATA_U16, DTM_DATA_U32, DTM_DATA_SAFETENSORS } dtm_data_format;

enum { DTM_DATA_RANK = 8 };

/* An input of the program, whole: `tokens` and `targets` are i32[B, S]. A flat file gives these two names. */
typedef struct dtm_data_input {
    const char *name;
    bool is_f32; /* else i32 */
    int rank;
    int64_t shape[DTM_DATA_RANK];
    int64_t vocabulary;    /* i32: values must be below it; 0: any */
    bool accepts_negative; /* targets: a negative one is left out of the loss */
    /* For messages; they stay the caller's: */
    const char *dims[DTM_DATA_RANK]; /* names, or NULL */
    uint32_t line;                   /* of the program; 0: none */
} dtm_data_input;

typedef struct dtm_data_options {
    const char *path;
    dtm_data_format format;
    const dtm_data_input *inputs; /* copied, names too */
    int count;
    uint64_t seed;
    bool in_order; /* flat files: not shuffled */
    int64_t steps; /* to be read, from step 0: a safetensors file must have as many; -1 if not known */
} dtm_data_options;

/* ".safetensors" at the end of a path tells that format. */
bool dtm_data_is_safetensors(const char *path);

/* Opens and checks all that can be without reading the tokens: shapes, dtypes, length. */
bool dtm_data_open(const dtm_data_options *options, dtm_data **out, dtm_status *status);
void dtm_data_close(dtm_data *data);

/* Steps the file holds: of a safetensors its first dimension; of a flat file the whole batches of an epoch, which are
 * not a limit. */
int64_t dtm_data_steps(const dtm_data *data);
int64_t dtm_data_samples(const dtm_data *data); /* of a flat file, an epoch; else 0 */
/* The sample at a position of a flat file's stream. */
int64_t dtm_data_sample(const dtm_data *data, int64_t position);

/* Reads the block [begin[d], end[d]) of input number `input` at a step, packed, as i32 or f32. */
bool dtm_data_read(dtm_data *data, int64_t step, int input, const int64_t *begin, const int64_t *end, void *out,
                   dtm_status *status);
/* Tells the system that this block will be read soon; never fails. */
void dtm_data_prefetch(dtm_data *data, int64_t step, int input, const int64_t *begin, const int64_t *end);

/* ---- the order of an epoch ---- */

/* The image of index (in [0, n)) under a permutation of [0, n) that (seed, epoch) choose: a Feistel network on the
 * least power of two that is not below n, walked until it is back in range. No memory, expected constant time. */
int64_t dtm_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index);

#endif
