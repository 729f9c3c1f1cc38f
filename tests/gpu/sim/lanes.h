/* Between the instructions (lanes.c) and what moves warps (ptx_exec.c). */
#ifndef LANES_H
#define LANES_H
#include "run.h"

void run_warp_plain(struct run *, struct warp *, int64_t turn);
void run_warp_fma(struct run *, struct warp *, int64_t turn);
void run_mma_plain(struct run *, struct warp *, const struct op *);
void run_mma_fma(struct run *, struct warp *, const struct op *);

/* The running group joins the others; another, as the launch's order has it, is taken up: false if the warp has ended. */
void set_down(struct warp *);
bool pick_up(struct run *, struct warp *);
/* Lanes that end. */
void leave(struct run *, struct warp *, uint32_t mask);
/* A group comes to an instruction that lanes of `row` (its mask; -1: all that live) execute together. True: *m do, and are
 * the group that runs. False: it waits, and another group is to be taken up. */
bool come_together(struct run *, struct warp *, const struct op *, uint32_t *m, int32_t row);
/* A warp comes to a barrier; true: it stands there, and its turn is over. */
bool arrive(struct run *, struct warp *, const struct op *, uint32_t m);
static inline void break_turn(struct warp *w, int64_t *left) {
    if (w->state != RUNNING)
        *left = *left > 0 ? 0 : *left;
}
#endif
