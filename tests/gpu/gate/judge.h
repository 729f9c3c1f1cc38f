/* What the compile gate judges a kernel by: what ptxas says of it, and its PTX. */
#ifndef DTM_TEST_JUDGE_H
#define DTM_TEST_JUDGE_H

#include "tests/gpu/gate/program.h"

/* ".maxntid 256, 1, 1" or ".maxntid 256" of this kernel's entry; 0 without. */
static inline int threads_of(const char *ptx, const char *kernel) {
    char entry[160];
    snprintf(entry, sizeof entry, ".entry %s(", kernel);
    const char *at = strstr(ptx, entry), *body = at ? strchr(at, '{') : NULL, *bound = at ? strstr(at, ".maxntid") : NULL;
    return bound && body && bound < body ? atoi(bound + 8) : 0;
}

/* An instruction of PTX whose opcode begins so and has `part` in it. */
static inline bool has_instruction(const char *ptx, const char *opcode, const char *part) {
    for (const char *line = ptx; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *at = line + strspn(line, " \t");
        if (*at == '@') at += strcspn(at, " \t"), at += strspn(at, " \t");
        size_t word = strcspn(at, " \t;\n");
        if (strncmp(at, opcode, strlen(opcode)) != 0) continue;
        const char *found = strstr(at, part);
        if (found && found < at + word) return true;
    }
    return false;
}

/* What is wrong, in words separated by "; ". */
static inline void find(const dtm_jit_code *code, text *out) {
    add(out, "%s", "");
    for (uint32_t i = 0; i < code->n_kernels; i++) {
        const dtm_jit_kernel *k = &code->kernels[i];
        int threads = threads_of(code->ptx, k->name);
        if (k->spill_stores || k->spill_loads) add(out, "%s spills %d bytes; ", k->name, k->spill_stores);
        if (k->stack) add(out, "%s has a stack of %d bytes; ", k->name, k->stack);
        if (!threads) add(out, "%s has no launch bounds; ", k->name);
        if ((k->registers + 7) / 8 * 8 * threads > 65536) add(out, "%s needs more registers than there are; ", k->name);
        if (k->shared > 48 << 10) add(out, "%s has %d bytes of static shared memory; ", k->name, k->shared);
    }
    if (!code->n_kernels) add(out, "no kernel; ");
    if (strstr(code->ptx, ".f64")) add(out, "f64; ");
    if (strstr(code->ptx, ".local")) add(out, "local memory; ");
    if (has_instruction(code->ptx, "call", "call")) add(out, "call; ");
    if (has_instruction(code->ptx, "atom", ".f") || has_instruction(code->ptx, "red", ".f")) add(out, "atomic on a float; ");
    if (strstr(code->log, "warning") || strstr(code->log, "Performance Loss")) add(out, "warning: %s; ", code->log);
}

/* ---- occupancy, by the sizes of a multiprocessor of sm_80, 90, 100 ---- */

/* Resident warps of 64: registers in units of 256 a warp, shared memory in 128 bytes and 1 KiB more a block. */
static inline int resident_warps(const char *arch, int threads, const dtm_jit_kernel *k) {
    int shared_all = !strncmp(arch, "sm_80", 5) ? 164 << 10 : 228 << 10;
    int warps = (threads + 31) / 32, registers = (k->registers * 32 + 255) / 256 * 256;
    int shared = (k->shared + 127) / 128 * 128 + 1024;
    int blocks = 64 / warps, by_registers = 65536 / registers / warps, by_shared = shared_all / shared;
    if (by_registers < blocks) blocks = by_registers;
    if (by_shared < blocks) blocks = by_shared;
    if (blocks > 32) blocks = 32;
    return blocks * warps;
}

static inline void add_rows(text *table, const char *arch, const dtm_jit_code *code) {
    for (uint32_t i = 0; i < code->n_kernels; i++) {
        const dtm_jit_kernel *k = &code->kernels[i];
        int threads = threads_of(code->ptx, k->name);
        add(table, "%-24s %-8s %7d %9d %6d %11d\n", k->name, arch, threads, k->registers, k->shared,
            threads ? resident_warps(arch, threads, k) : 0);
    }
}

#endif
