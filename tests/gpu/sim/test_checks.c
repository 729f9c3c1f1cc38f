/* Each check, on a few lines of PTX: what breaks its rule is reported in every order of warps, blocks and lanes, and by that
 * check alone; what keeps it is not reported in any. Also what a report says, and errors of loading. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, SIZE = 4096 };
static int failures;
static char all[4 * SIZE] __attribute__((aligned(256))), *const a = all, *const b = all + 2 * SIZE; /* nothing is beside a buffer */

struct rule {
    const char *name, *body;
    uint32_t grid, block;
    int check; /* NONE: nothing is reported */
};

#define OWN "mov.u32 %w, mem; mad.lo.u32 %x, %t, 4, %w; " /* %x: the thread's word; %y: another's */
#define OTHER(n) "xor.b32 %y, %t, " #n "; mad.lo.u32 %y, %y, 4, %w; "
#define PLACE "mad.wide.u32 %u, %t, 4, %a; "
#define TICKET(first, second)                                                                                                  \
    "mad.wide.u32 %u, %c, 4, %a; st.global.u32 [%u+1024], %c; " first " atom.global.add.u32 %x, [%a], 1; setp.ne.s32 %p, %x, 3; @%p ret; " \
    second " ld.global.u32 %x, [%a+1024]; ld.global.u32 %x, [%a+1028]; ld.global.u32 %x, [%a+1032]; ld.global.u32 %x, [%a+1036]; "

static const struct rule rules[] = {
    {"warps without a barrier", OWN OTHER(32) "st.shared.u32 [%x], %t; ld.shared.u32 %z, [%y];", 1, 64, SIM_RACE},
    {"warps with one", OWN OTHER(32) "st.shared.u32 [%x], %t; bar.sync 0; ld.shared.u32 %z, [%y];", 1, 64, NONE},
    {"a read, then another's write", OWN OTHER(32) "st.shared.u32 [%x], %t; bar.sync 0; ld.shared.u32 %z, [%y]; st.shared.u32 [%x], %z;", 1, 64, SIM_RACE},
    {"a read, a barrier, another's write",
     OWN OTHER(32) "st.shared.u32 [%x], %t; bar.sync 0; ld.shared.u32 %z, [%y]; bar.sync 0; st.shared.u32 [%x], %z;", 1, 64, NONE},
    {"lanes of a warp", OWN OTHER(1) "st.shared.u32 [%x], %t; ld.shared.u32 %z, [%y];", 1, 32, SIM_RACE},
    {"lanes with a shuffle between", OWN OTHER(1) "st.shared.u32 [%x], %t; shfl.sync.idx.b32 %z, %t, 0, 31, -1; ld.shared.u32 %z, [%y];", 1, 32,
     SIM_RACE},
    {"lanes with bar.warp.sync", OWN OTHER(1) "st.shared.u32 [%x], %t; bar.warp.sync -1; ld.shared.u32 %z, [%y];", 1, 32, NONE},
    {"half warps that meet apart", OWN OTHER(1) "st.shared.u32 [%x], %t; setp.lt.u32 %p, %t, 16; selp.b32 %z, 65535, 0xffff0000, %p; "
     "bar.warp.sync %z; ld.shared.u32 %z, [%y];", 1, 32, NONE},
    {"a lane of the other half", OWN OTHER(16) "setp.lt.u32 %p, %t, 16; selp.b32 %z, 65535, 0xffff0000, %p; st.shared.u32 [%x], %t; "
     "bar.warp.sync %z; ld.shared.u32 %z, [%y];", 1, 32, SIM_RACE},
    {"bytes side by side", "mov.u32 %w, mem; add.u32 %x, %w, %t; st.shared.u8 [%x], %t;", 1, 64, NONE},
    {"one byte twice", "mov.u32 %w, mem; shr.u32 %x, %t, 1; add.u32 %x, %w, %x; st.shared.u8 [%x], %t;", 1, 64, SIM_RACE},
    {"a word over another's byte", OWN "st.shared.u32 [%x], %t; add.u32 %x, %w, %t; st.shared.u8 [%x], %t;", 1, 64, SIM_RACE},
    {"atomics of one word", "st.shared.u32 [mem+128], 0; bar.sync 0; atom.shared.add.u32 %x, [mem], 1;", 1, 1, SIM_DEFINED},
    {"atomics of all threads", "setp.ne.s32 %p, %t, 0; @%p bra L; st.shared.u32 [mem], 0; L: bar.sync 0; red.shared.add.u32 [mem], 1; bar.sync 0; "
     "ld.shared.u32 %x, [mem];", 1, 64, NONE},
    {"an atomic and a read", "setp.ne.s32 %p, %t, 0; @%p bra L; st.shared.u32 [mem], 0; L: bar.sync 0; red.shared.add.u32 [mem], 1; ld.shared.u32 %x, [mem];",
     1, 64, SIM_RACE},
    {"a volatile read and a plain write", "setp.ne.s32 %p, %t, 0; @%p bra L; st.shared.u32 [mem], 0; L: bar.sync 0; setp.lt.u32 %q, %t, 32; @%q bra M; "
     "ld.volatile.shared.u32 %x, [mem]; M: @%p bra END; st.shared.u32 [mem], 1; END:", 1, 64, SIM_RACE},
    {"a volatile read and a volatile write", "setp.ne.s32 %p, %t, 0; @%p bra L; st.shared.u32 [mem], 0; L: bar.sync 0; setp.lt.u32 %q, %t, 32; @%q bra M; "
     "ld.volatile.shared.u32 %x, [mem]; M: @%p bra END; st.volatile.shared.u32 [mem], 1; END:", 1, 64, NONE},
    {"arrive orders what was before", "setp.lt.u32 %p, %t, 32; " OWN OTHER(32) "@%p bra L; bar.sync 1, 64; ld.shared.u32 %z, [%y]; bra END; "
     "L: st.shared.u32 [%x], %t; bar.arrive 1, 64; END:", 1, 64, NONE},
    {"arrive does not wait", "setp.lt.u32 %p, %t, 32; " OWN OTHER(32) "@%p bra L; st.shared.u32 [%x], %t; bar.sync 1, 64; bra END; "
     "L: bar.arrive 1, 64; ld.shared.u32 %z, [%y]; END:", 1, 64, SIM_RACE},
    {"blocks that write one place", "st.global.u32 [%a], %t;", 4, 1, SIM_GRID_RACE},
    {"blocks that write their own", "mad.wide.u32 %u, %c, 4, %a; st.global.u32 [%u], %c;", 4, 1, NONE},
    {"threads that write one place", "st.global.u32 [%a], %t;", 1, 2, SIM_RACE},
    {"a block that reads another's", "mad.wide.u32 %u, %c, 4, %a; st.global.u32 [%u], %c; ld.global.u32 %x, [%a];", 4, 1, SIM_GRID_RACE},
    {"the last block, with fences", TICKET("membar.gl;", "membar.gl;"), 4, 1, NONE},
    {"the last block, with acq_rel fences", TICKET("fence.acq_rel.gpu;", "fence.acq_rel.gpu;"), 4, 1, NONE},
    {"the last block, no fence before", TICKET("", "membar.gl;"), 4, 1, SIM_GRID_RACE},
    {"the last block, no fence after", TICKET("membar.gl;", ""), 4, 1, SIM_GRID_RACE},
    {"a flag with release and acquire", "setp.eq.s32 %p, %c, 0; @%p bra FIRST; AGAIN: ld.acquire.gpu.global.u32 %x, [%a]; setp.eq.s32 %p, %x, 0; @%p bra AGAIN; "
     "ld.global.u32 %x, [%a+512]; ret; FIRST: st.global.u32 [%a+512], 5; st.release.gpu.global.u32 [%a], 1;", 2, 1, NONE},
    {"a flag without order", "setp.eq.s32 %p, %c, 0; @%p bra FIRST; AGAIN: ld.relaxed.gpu.global.u32 %x, [%a]; setp.eq.s32 %p, %x, 0; @%p bra AGAIN; "
     "ld.global.u32 %x, [%a+512]; ret; FIRST: st.global.u32 [%a+512], 5; st.relaxed.gpu.global.u32 [%a], 1;", 2, 1, SIM_GRID_RACE},
    {"a flag that is never set", "AGAIN: ld.acquire.gpu.global.u32 %x, [%a]; setp.eq.s32 %p, %x, 0; @%p bra AGAIN;", 1, 1, SIM_DEADLOCK},
    {"a barrier of more than there are", "setp.lt.u32 %p, %t, 32; @%p bar.sync 1, 64;", 1, 64, SIM_DEADLOCK},
    {"lanes at two barriers", "setp.lt.u32 %p, %t, 16; @%p bra L; bar.sync 0; bra END; L: bar.sync 0; END:", 1, 64, SIM_BARRIER},
    {"a thread that has ended", "setp.eq.s32 %p, %t, 40; @%p ret; bar.sync 0;", 1, 64, SIM_BARRIER},
    {"a warp that has ended", "setp.lt.u32 %p, %t, 32; @%p ret; bar.sync 0;", 1, 64, SIM_BARRIER},
    {"all at the barrier after a branch", "setp.lt.u32 %p, %t, 16; @%p bra L; add.u32 %x, %t, 1; L: bar.sync 0;", 1, 64, NONE},
    {"the last warp in part", "bar.sync 0; shfl.sync.idx.b32 %x, %t, 0, 31, 0xff;", 1, 8, NONE},
    {"a lane that the mask lacks", "shfl.sync.idx.b32 %x, %t, 0, 31, 0xffff;", 1, 32, SIM_MASK},
    {"a value of a lane that is elsewhere", "setp.lt.u32 %p, %t, 16; @%p shfl.sync.idx.b32 %x, %t, 20, 31, 0xffff;", 1, 32, SIM_MASK},
    {"a lane that does not come", "setp.lt.u32 %p, %t, 16; @%p shfl.sync.idx.b32 %x, %t, 0, 31, -1;", 1, 32, SIM_MASK},
    {"a mask with lanes that ended", "setp.lt.u32 %p, %t, 16; @%p ret; vote.sync.any.pred %q, %p, -1;", 1, 32, SIM_MASK},
    {"shuffles that meet after a branch", "setp.lt.u32 %p, %t, 16; @%p bra L; add.u32 %x, %t, 1; L: shfl.sync.bfly.b32 %x, %t, 16, 31, -1;", 1, 32, NONE},
    {"shared memory that nobody wrote", "ld.shared.u32 %x, [mem];", 1, 1, SIM_DEFINED},
    {"half of it written", "st.shared.u16 [mem], 1; ld.shared.u32 %x, [mem];", 1, 1, SIM_DEFINED},
    {"global memory that nobody wrote", "ld.global.u32 %x, [%b+2048];", 1, 1, SIM_DEFINED},
    {"beyond a buffer", PLACE "ld.global.u32 %x, [%u+4080];", 1, 32, SIM_BOUNDS},
    {"before a buffer", "ld.global.u32 %x, [%b+-4];", 1, 1, SIM_BOUNDS},
    {"a vector over the end", "ld.global.v2.u32 {%x, %y}, [%a+4096];", 1, 1, SIM_BOUNDS},
    {"a write of what is read alone", "st.global.u32 [%b], 1;", 1, 1, SIM_BOUNDS},
    {"an atomic on what is read alone", "atom.global.add.u32 %x, [%b], 1;", 1, 1, SIM_BOUNDS},
    {"no address at all", "mov.b64 %u, 0; ld.global.u32 %x, [%u];", 1, 1, SIM_BOUNDS},
    {"beyond shared memory", "mov.u32 %x, mem; st.shared.u32 [%x+4096], 1;", 1, 1, SIM_BOUNDS},
    {"before shared memory", "mov.u32 %x, 0; st.shared.u32 [%x], 1;", 1, 1, SIM_BOUNDS},
    {"beyond local memory", "{ .local .align 4 .b8 depot[16]; st.local.u32 [depot+16], 1; }", 1, 1, SIM_BOUNDS},
    {"a global access to shared memory", "mov.u64 %u, mem; cvta.shared.u64 %u, %u; ld.global.u32 %x, [%u];", 1, 1, SIM_BOUNDS},
    {"a word between words", "ld.global.u32 %x, [%a+2];", 1, 1, SIM_ALIGNMENT},
    {"a vector between vectors", "ld.global.v4.u32 {%x, %y, %z, %w}, [%a+8];", 1, 1, SIM_ALIGNMENT},
    {"a row of ldmatrix", OWN "st.shared.u32 [%x], 0; bar.sync 0; add.u32 %w, %w, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%z}, [%w];", 1, 32,
     SIM_ALIGNMENT},
    {"ldmatrix of half a warp", OWN "st.shared.u32 [%x], 0; bar.sync 0; setp.lt.u32 %p, %t, 16; @%p ret; "
     "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%z}, [mem];", 1, 32, SIM_MASK},
    {"a copy that is read at once", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.commit_group; ld.shared.u32 %x, [mem];", 1, 1, SIM_ASYNC},
    {"a copy that is waited for", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 %x, [mem];", 1, 1,
     NONE},
    {"a wait for another group", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.commit_group; cp.async.ca.shared.global [mem+4], [%a], 4; "
     "cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %x, [mem+4];", 1, 1, SIM_ASYNC},
    {"a group that is not closed", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.wait_group 0; ld.shared.u32 %x, [mem];", 1, 1, SIM_ASYNC},
    {"wait_all of one that is not closed", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.wait_all; ld.shared.u32 %x, [mem];", 1, 1, NONE},
    {"a copy that is written over", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.commit_group; st.shared.u32 [mem], 3; cp.async.wait_all;", 1, 1,
     SIM_ASYNC},
    {"another's copy after a wait", OWN OTHER(32) "cp.async.ca.shared.global [%x], [%a], 4; cp.async.wait_all; ld.shared.u32 %z, [%y];", 1, 64, SIM_RACE},
    {"another's copy after its wait and a barrier", OWN OTHER(32) "cp.async.ca.shared.global [%x], [%a], 4; cp.async.wait_all; bar.sync 0; "
     "ld.shared.u32 %z, [%y];", 1, 64, NONE},
    {"another's copy after a barrier without wait", OWN OTHER(32) "cp.async.ca.shared.global [%x], [%a], 4; cp.async.commit_group; bar.sync 0; "
     "ld.shared.u32 %z, [%y];", 1, 64, SIM_ASYNC},
    {"a copy that nobody waits for", "cp.async.ca.shared.global [mem], [%a], 4; cp.async.commit_group;", 1, 1, SIM_ASYNC},
    {"a copy between words", "cp.async.ca.shared.global [mem+2], [%a], 4; cp.async.wait_all;", 1, 1, SIM_ALIGNMENT},
    {"a copy from beyond", "cp.async.ca.shared.global [mem], [%a+4096], 4; cp.async.wait_all;", 1, 1, SIM_BOUNDS},
    {"a copy of nothing from beyond", "cp.async.ca.shared.global [mem], [%a+4096], 4, 0; cp.async.wait_all; ld.shared.u32 %x, [mem];", 1, 1, NONE},
    {"trap", "setp.eq.s32 %p, %t, 3; @%p trap;", 1, 8, SIM_TRAP},
};

static struct sim_module *load(const char *body) {
    static char text[8192], error[256];
    snprintf(text, sizeof text,
             ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 k_0, .param .u64 k_1)\n{\n"
             ".reg .pred %%p, %%q;\n.reg .b32 %%t, %%c, %%w, %%x, %%y, %%z;\n.reg .b64 %%a, %%b, %%u, %%v;\n.shared .align 16 .b8 mem[4096];\n"
             "ld.param.u64 %%a, [k_0];\nld.param.u64 %%b, [k_1];\nmov.u32 %%t, %%tid.x;\nmov.u32 %%c, %%ctaid.x;\n%s\nret;\n}\n",
             body);
    struct sim_module *module = sim_module_load(text, strlen(text), error, sizeof error);
    if (!module) {
        printf("%s: %s\n", body, error);
        exit(1);
    }
    return module;
}
static bool launch(const struct rule *rule, struct sim_launch how, struct sim_reports *reports) {
    struct sim_module *module = load(rule->body);
    struct sim_memory *memory = sim_memory_new();
    memset(all, 0, sizeof all), memset(reports, 0, sizeof *reports);
    sim_memory_add(memory, a, SIZE), sim_memory_define(memory, a, SIZE, true);
    sim_memory_add(memory, b, SIZE), sim_memory_define(memory, b, SIZE / 2, true);
    const struct sim_buffer buffers[] = {{"a", a, SIZE, SIM_READ | SIM_WRITE}, {"b", b, SIZE, SIM_READ}};
    void *params[] = {a, b};
    how.function = sim_function_find(module, "k"), how.params = params, how.params_size = sizeof params;
    how.buffers = buffers, how.n_buffers = 2, how.patience = 100000;
    how.grid[0] = rule->grid, how.block[0] = rule->block, how.grid[1] = how.grid[2] = how.block[1] = how.block[2] = 1;
    bool ended = sim_launch_run(memory, &how, reports);
    sim_memory_free(memory), sim_module_free(module);
    return ended;
}

static void check(const struct rule *rule) {
    static const struct sim_launch orders[] = {
        {.copies = SIM_AT_WAIT},
        {.warps = SIM_REVERSE, .blocks = SIM_REVERSE, .resident = 4},
        {.warps = SIM_RANDOM, .blocks = SIM_RANDOM, .resident = 3, .seed = 1, .copies = SIM_BY_LOT},
        {.warps = SIM_RANDOM, .blocks = SIM_RANDOM, .resident = 2, .seed = 2, .random_groups = true, .copies = SIM_BY_LOT},
        {.random_groups = true, .seed = 3},
    };
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        static struct sim_reports reports;
        bool ended = launch(rule, orders[i], &reports), right = rule->check == NONE ? ended && !reports.n : false, only = true;
        bool early = rule->check == SIM_RACE || rule->check == SIM_ASYNC; /* then what is read may not be there yet */
        for (int n = 0; n < reports.n; n++) {
            right |= (int)reports.report[n].check == rule->check;
            only &= (int)reports.report[n].check == rule->check || (early && reports.report[n].check == SIM_DEFINED);
        }
        right &= only;
        if (right)
            continue;
        printf("%s, order %zu: %s is meant, and there are %d reports%s\n", rule->name, i,
               rule->check == NONE ? "nothing" : sim_check_name((enum sim_check)rule->check), reports.n, ended ? "" : "; it did not end");
        if (reports.n)
            sim_report_print(&reports.report[0], stdout);
        failures++;
    }
}

static void same(const char *what, const char *got, const char *want) {
    if (strcmp(got, want) != 0) {
        printf("%s: `%s`, and `%s` is right\n", what, got, want);
        failures++;
    }
}

/* What a report says: both accesses, PTX lines, and source lines through inlining. */
static void says(void) {
    static const struct rule race = {"", ".loc 1 12 3\n" OWN OTHER(32) "st.shared.u32 [%x], 1; bar.sync 0;\n.loc 1 5 1, function_name $L, inlined_at 1 12 3\nst.shared.u32 [%x], %t;\n"
                                         ".loc 2 40 1\nld.shared.u32 %z, [%y];", 1, 64, SIM_RACE};
    static struct sim_reports reports;
    launch(&race, (struct sim_launch){.name = "first"}, &reports);
    char text[1024] = "";
    FILE *to = fmemopen(text, sizeof text - 1, "w");
    if (reports.n)
        sim_report_print(&reports.report[0], to);
    fclose(to);
    same("report", text,
         "first: race: writes what another thread reads, and nothing orders them\n"
         "  block (0, 0, 0) thread (0, 0, 0), PTX line 17, ?:5 < ?:12\n"
         "  against block (0, 0, 0) thread (32, 0, 0), PTX line 19, ?:40\n"
         "  (32 times)\n");
}

static void load_errors(void) {
    static const struct { const char *text, *error; } wrong[] = {
        {".version 8.0\n.target sm_90\n.address_size 64\n.entry a()\n{\nret;\n}\n.entry b()\n{\n// one\nfrob.u32 %r1;\n}\n",
         "PTX line 11: unknown form `frob.u32`"},
        {".entry a()\n{\n.reg .b32 %r<3>;\nadd.s32 %r1, %r2, %r3;\n}\n", "PTX line 4: `%r3` is declared nowhere"},
        {".entry a()\n{\n.reg .b64 %r<3>;\nadd.s32 %r1, %r2, 1;\n}\n", "PTX line 4: `%r1` is a register of .b64 where .s32 is meant"},
        {".entry a()\n{\nbra L;\n}\n", "PTX line 3: no label `L`"},
        {".entry a()\n{\nret;\n", "PTX line 4: the function does not end"},
        {".func a()\n{\nret;\n}\n", "PTX line 1: unknown directive .func"},
        {".entry a(.param .u32 p)\n{\n.reg .b64 %r<3>;\nld.param.u64 %r1, [p];\n}\n", "PTX line 4: beyond the parameter `p`"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char error[256] = "";
        struct sim_module *module = sim_module_load(wrong[i].text, strlen(wrong[i].text), error, sizeof error);
        same("load", module ? "it loads" : error, wrong[i].error);
        sim_module_free(module);
    }
}

/* What a driver asks of a module. */
static void attributes(void) {
    static const char text[] =
        ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 dynamic[];\n.global .align 4 .b8 table[8] = {1, 2, 3};\n"
        ".visible .entry first(.param .u32 a, .param .align 8 .b8 b[12], .param .u64 c)\n.maxntid 128, 2, 1\n.minnctapersm 3\n{\n"
        ".shared .align 16 .b8 own[20];\n.local .align 8 .b8 depot[24];\n.reg .b64 %r<2>;\nmov.u64 %r1, dynamic;\nret;\n}\n"
        ".visible .entry second()\n.reqntid 64\n{\nret;\n}\n";
    char error[256];
    struct sim_module *module = sim_module_load(text, sizeof text - 1, error, sizeof error);
    if (!module) {
        printf("%s\n", error);
        failures++;
        return;
    }
    struct sim_attributes one = sim_function_attributes(sim_function_find(module, "first"));
    struct sim_attributes two = sim_function_attributes(sim_function_at(module, 1));
    size_t size = 0;
    const unsigned char *table = sim_module_variable(module, "table", &size);
    bool right = one.max_threads == 256 && !one.exact_threads && one.min_blocks == 3 && one.static_shared == 20 && one.local == 24 && one.n_params == 3 &&
                 one.params[1].offset == 8 && one.params[1].size == 12 && one.params[2].offset == 24 && one.params_size == 32 && one.dynamic_shared &&
                 strcmp(two.name, "second") == 0 && two.exact_threads && two.max_threads == 64 && two.params_size == 0 && size == 8 && table &&
                 table[2] == 3 && table[3] == 0 && sim_module_architecture(module) == 90 && !sim_function_at(module, 2) &&
                 !sim_function_find(module, "third");
    if (!right) {
        printf("attributes: shared %u, local %u, params %u, threads %u\n", one.static_shared, one.local, one.params_size, one.max_threads);
        failures++;
    }
    sim_module_free(module);
}

/* Parameters whose place is found at run time; beyond them nothing may be read. */
static void params_by_index(void) {
    static const char text[] =
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 k_0, .param .align 4 .b8 k_1[32])\n{\n"
        ".reg .b64 %u, %v;\n.reg .b32 %t, %x;\nld.param.u64 %u, [k_0];\nmov.u32 %t, %tid.x;\nmov.b64 %v, k_1;\nmad.wide.u32 %v, %t, 4, %v;\n"
        "ld.param.u32 %x, [%v+4];\nmad.wide.u32 %u, %t, 4, %u;\nst.global.u32 [%u], %x;\nret;\n}\n";
    char error[256] = "";
    struct { void *at; uint32_t numbers[8]; } params = {a, {10, 11, 12, 13, 14, 15, 16, 17}};
    struct sim_module *module = sim_module_load(text, sizeof text - 1, error, sizeof error);
    struct sim_memory *memory = sim_memory_new();
    sim_memory_add(memory, all, sizeof all);
    for (uint32_t n = 7; n <= 8 && module; n++) {
        static struct sim_reports reports;
        memset(&reports, 0, sizeof reports);
        struct sim_launch l = {.function = sim_function_find(module, "k"), .grid = {1, 1, 1}, .block = {n, 1, 1}, .params = &params,
                               .params_size = sizeof params};
        bool ran = sim_launch_run(memory, &l, &reports);
        uint32_t last = 0;
        memcpy(&last, a + 24, 4);
        if (!ran || last != 17 || reports.n != (n == 8) || (reports.n && reports.report[0].check != SIM_BOUNDS)) {
            printf("parameters of %u threads: %u, %d reports\n", n, last, reports.n);
            failures++;
        }
    }
    if (!module) {
        printf("%s\n", error);
        failures++;
    }
    sim_memory_free(memory), sim_module_free(module);
}

/* What a launch must be. */
static void launch_limits(void) {
    static const struct { uint32_t block, shared; size_t params; bool runs; } limits[] = {
        {1024, 0, 16, true}, {1025, 0, 16, false}, {0, 0, 16, false}, {32, 227 * 1024 - 4096, 16, true}, {32, 227 * 1024 - 4095, 16, false}, {32, 0, 15, false}};
    struct sim_module *module = load("");
    struct sim_memory *memory = sim_memory_new();
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        static struct sim_reports reports;
        memset(&reports, 0, sizeof reports);
        void *params[] = {a, b};
        struct sim_launch l = {.function = sim_function_find(module, "k"), .grid = {1, 1, 1}, .block = {limits[i].block, 1, 1}, .params = params,
                               .params_size = limits[i].params, .dynamic_shared = limits[i].shared};
        bool ran = sim_launch_run(memory, &l, &reports);
        if (ran != limits[i].runs || reports.n != !limits[i].runs || (reports.n && reports.report[0].check != SIM_LIMIT)) {
            printf("limit %zu: it %s\n", i, ran ? "runs" : "does not run");
            failures++;
        }
    }
    sim_memory_free(memory), sim_module_free(module);
}

/* What accesses cost, and what of a buffer they touch. */
static void counts(void) {
    static const struct { const char *name, *body; uint64_t read, write, accesses, repeats, copies; } costs[] = {
        {"words in a row", PLACE "ld.global.u32 %x, [%u]; st.global.u32 [%u+256], %x;", 4, 4, 0, 0, 0},
        {"words in a row, not from a sector on", PLACE "ld.global.u32 %x, [%u+4];", 5, 0, 0, 0, 0},
        {"a word of each sector", "mad.wide.u32 %u, %t, 32, %a; ld.global.u32 %x, [%u];", 32, 0, 0, 0, 0},
        {"vectors in a row", "mad.wide.u32 %u, %t, 16, %a; ld.global.v4.u32 {%x, %y, %z, %w}, [%u];", 16, 0, 0, 0, 0},
        {"one word", "ld.global.u32 %x, [%a];", 1, 0, 0, 0, 0},
        {"a row of banks", OWN "st.shared.u32 [%x], %t;", 0, 0, 1, 0, 0},
        {"one bank", "mov.u32 %w, mem; mad.lo.u32 %x, %t, 128, %w; st.shared.u32 [%x], %t;", 0, 0, 1, 31, 0},
        {"a column of 33", "mov.u32 %w, mem; mad.lo.u32 %x, %t, 132, %w; add.u32 %x, %x, -132; setp.eq.s32 %p, %t, 0; @%p mov.b32 %x, %w; "
         "@!%p st.shared.u32 [%x+4], %t;", 0, 0, 1, 0, 0},
        {"vectors", "mov.u32 %w, mem; mad.lo.u32 %x, %t, 16, %w; st.shared.v4.u32 [%x], {%t, %t, %t, %t};", 0, 0, 4, 0, 0},
        {"ldmatrix of rows of 128 bytes", "mov.u32 %w, mem; mad.lo.u32 %x, %t, 128, %w; st.shared.v4.u32 [%x], {%t, %t, %t, %t}; bar.sync 0; "
         "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%y, %z, %w, %c}, [%x];", 0, 0, 8, 56, 28},
    };
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        static struct sim_reports reports;
        struct sim_extent touched[2];
        struct rule rule = {costs[i].name, costs[i].body, 1, 32, NONE};
        launch(&rule, (struct sim_launch){.count = true, .touched = touched}, &reports);
        const struct sim_counts *c = &reports.counts;
        if (reports.n || c->read_sectors != costs[i].read || c->write_sectors != costs[i].write || c->shared_accesses != costs[i].accesses ||
            c->shared_repeats != costs[i].repeats || c->copy_repeats != costs[i].copies) {
            printf("%s: %llu and %llu sectors, %llu accesses, %llu and %llu repeats, %d reports\n", costs[i].name, (unsigned long long)c->read_sectors,
                   (unsigned long long)c->write_sectors, (unsigned long long)c->shared_accesses, (unsigned long long)c->shared_repeats,
                   (unsigned long long)c->copy_repeats, reports.n);
            failures++;
        }
        if (i == 0 && (touched[0].read_low != 0 || touched[0].read_high != 128 || touched[0].write_low != 256 || touched[0].write_high != 384 ||
                       touched[1].read_high || touched[1].write_high || c->read_bytes != 128 || c->write_bytes != 128)) {
            printf("%s: touched %zu to %zu, %zu to %zu\n", costs[i].name, touched[0].read_low, touched[0].read_high, touched[0].write_low,
                   touched[0].write_high);
            failures++;
        }
    }
    static const struct rule endless = {"", "AGAIN: st.global.u32 [%a], 1; bra AGAIN;", 1, 1, SIM_DEADLOCK};
    static struct sim_reports reports;
    if (launch(&endless, (struct sim_launch){.limit = 100000}, &reports) || reports.n != 1 || reports.report[0].check != SIM_DEADLOCK) {
        printf("a launch without end is not stopped\n");
        failures++;
    }
}

/* The same seed gives the same run; that of atomics' order differs by seed. */
static void seeds(void) {
    static const struct rule own = {"", "mad.lo.u32 %z, %c, 64, %t; mad.wide.u32 %u, %z, 4, %a; atom.global.add.u32 %x, [%a], 1; st.global.u32 [%u+256], %x;",
                                    2, 64, NONE};
    static char first[SIZE];
    static struct sim_reports reports;
    int differ = 0;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct sim_launch how = {.warps = SIM_RANDOM, .blocks = SIM_RANDOM, .random_groups = true, .seed = seed};
        launch(&own, how, &reports);
        memcpy(first, a, SIZE);
        launch(&own, how, &reports);
        if (memcmp(first, a, SIZE) != 0) {
            printf("seed %d gives two runs\n", (int)seed);
            failures++;
        }
        how.seed += 100;
        launch(&own, how, &reports);
        differ += memcmp(first, a, SIZE) != 0;
    }
    if (!differ) {
        printf("all seeds give the same order\n");
        failures++;
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        check(&rules[i]);
    says();
    load_errors();
    attributes();
    params_by_index();
    launch_limits();
    seeds();
    counts();
    printf("%zu rules: %s\n", sizeof rules / sizeof *rules, failures ? "some fail" : "all right");
    return failures != 0;
}
