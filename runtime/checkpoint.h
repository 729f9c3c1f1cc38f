/* Weights and gradients in safetensors files, whole tensors under their names in the program ("layer.3.wq"), whatever
 * the mesh: equal weights make equal files. Each rank reads its blocks. Each block is written by one of the ranks that
 * hold it; the file appears under its name when all have written. All functions but dtm_gradient_write are for all
 * ranks together, and fail on all if one fails. */
#ifndef DTM_CHECKPOINT_H
#define DTM_CHECKPOINT_H

#include "runtime/rank.h"

/* Every weight of the program must be there, in f32 and in its shape. */
bool dtm_weights_load(dtm_rank *rank, const char *path, dtm_status *status);
bool dtm_weights_save(dtm_rank *rank, const char *path, dtm_status *status);

/* Gradients go to the file as the step computes them: between begin and end rank->gradients is set. */
bool dtm_gradients_begin(dtm_rank *rank, const char *path, dtm_status *status);
bool dtm_gradient_write(dtm_rank *rank, const dtm_plan_io *gradient, dtm_status *status);
bool dtm_gradients_end(dtm_rank *rank, dtm_status *status);
/* Instead of it, on a rank that failed. */
void dtm_gradients_drop(dtm_rank *rank);

/* Whether a file could be created at this path: to fail before the first step, not after the last. Leaves nothing. */
bool dtm_check_writable(const char *path, dtm_status *status);

/* Around the writing of a file, which is PATH.partial until it is whole. */
void dtm_partial_remember(const char *path);
void dtm_partial_forget(const char *path);
/* Removes what is half-written; async-signal-safe. */
void dtm_checkpoint_discard_all(void);

#endif
