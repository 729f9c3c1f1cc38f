/* The CPU kernels against plain loops in double precision (test_prelude.c and so on, by subject). Built once for each
 * instruction set. */
#include "kernels/test_kernels.h"

int failures, checks;
uint64_t state = 1;

static void test_library(void) {
    static const char *const names[] = {
        "dtm_attention_forward", "dtm_attention_backward", "dtm_matmul", "dtm_pack",
        "dtm_rows_gather",       "dtm_rows_scatter",       "dtm_rope",   "dtm_rope_table"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) CHECK(dtm_kernel_find(names[i]), "%s", names[i]);
    CHECK(!dtm_kernel_find("dtm_nothing"), "an unknown kernel is not found");
}

/* Called by main (test_main.c), which sees first whether this machine has the instruction set. */
int test_kernels(void);
int test_kernels(void) {
    test_prelude();
    test_halves();
    test_philox();
    test_matmul("tiles");
    test_matmul("onednn");
    test_attention(250);
    test_attention_extremes();
    test_rows();
    test_rope();
    test_pack();
    test_library();
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
