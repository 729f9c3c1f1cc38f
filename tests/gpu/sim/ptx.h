/* What the parser makes of PTX, and the interpreter runs. A register is a row: 32 lanes of 32 or of 64 bits in the file of a
 * warp, named by its offset in words of 32 bits. Predicates are one word, a bit a lane. Immediates and special registers are
 * rows too, so that an operand is always a row:
 *
 *     file of a warp:  | constants | %tid, %laneid, %ctaid .. | registers of 64 bits | of 32 bits and below | predicates |
 */
#ifndef PTX_H
#define PTX_H
#include "sim.h"

enum type {
    T_NONE, PRED, B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16X2, BF16, BF16X2, F32, F64, E4M3, E5M2, E4M3X2,
    E5M2X2, TF32, N_TYPES
};
enum base {
    NOP, ABS, ADD, AND, OR, XOR, NOT, CNOT, NEG, SUB, MUL_LO, MUL_HI, MUL_WIDE, MUL, MAD_LO, MAD_HI, MAD_WIDE, FMA, DIV, REM, MIN, MAX, SHL,
    SHR, BFI, BFE, POPC, CLZ, BREV, BFIND, COPYSIGN, SELP, SETP, SET, MOV, PACK, UNPACK, CVT, COPY_ADDRESS, EX2, LG2, RCP, RSQRT, SQRT, SIN,
    COS, TANH, BRA, BRX, RET, LD, ST, LD_PARAM, LDMATRIX, CP_ASYNC, CP_COMMIT, CP_WAIT, MMA, BAR, BAR_ARRIVE, BAR_RED, BAR_WARP, FENCE, SHFL, VOTE,
    MATCH, REDUX, ATOM, PRMT, LOP3, SHF, DP4A, ACTIVEMASK, NANOSLEEP, TRAP, TESTP, N_BASES
};
/* What the interpreter switches on. */
#define KEY(base, type) ((base) * N_TYPES + (type))

enum { RN, RZ, RM, RP };                               /* rounding; of integers rni, rzi, rmi, rpi */
enum { FTZ = 1, SAT = 2, NANS = 4, APPROX = 8, LEFT = 16, CLAMP = 32, TRANS = 64, SIGNED_RESULT = 128, TOINT = 256, RELU = 512, FULL = 1024 };
enum space { GENERIC, GLOBAL, SHARED, LOCAL, CONSTANT };
enum { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_, LO, LS, HI, HS };
enum { A_ADD, A_MIN, A_MAX, A_EXCH, A_CAS, A_AND, A_OR, A_XOR, A_INC, A_DEC };
enum { ACQUIRE = 1, RELEASE = 2, STRONG = 4 };
enum { R_POPC, R_AND, R_OR };
enum { V_ALL, V_ANY, V_UNI, V_BALLOT };
enum { S_UP, S_DOWN, S_BFLY, S_IDX };

struct op {
    uint16_t key;
    uint8_t base, type, from; /* from: cvt's source, mma's factors, atom's nothing */
    uint8_t round, space, vector, how, order, guarded, inverted, wide;
    uint16_t mods;
    int32_t guard; /* row of the predicate */
    int32_t d, d2, a, b, c, e;
    int64_t immediate; /* of an address; bytes of cp.async; group of a wait */
    uint32_t operands; /* first of longer lists in function.operands */
    uint32_t target;
    int32_t line, loc;
};

struct loc { int file, line, column, parent; };
struct variable { char *name; enum space space; uint32_t align; uint64_t size, at; char *bytes; int scope; bool external; };
struct constant { int32_t row; uint64_t value; bool wide; };

enum special {
    TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, LANEID, WARPID, NWARPID, SMID,
    LANEMASK_EQ, LANEMASK_LT, LANEMASK_LE, LANEMASK_GT, LANEMASK_GE, GRIDID, DYNAMIC_SHARED, TOTAL_SHARED, N_SPECIALS
};

struct sim_function {
    struct sim_module *module;
    char *name;
    struct op *code;
    int n_code;
    int32_t *operands;
    int n_operands;
    struct constant *constants;
    int n_constants;
    int32_t specials[N_SPECIALS]; /* rows */
    int32_t words;                /* of the file */
    struct sim_param *params;
    char **param_names;
    int n_params;
    uint32_t static_shared, local, max_threads, min_blocks;
    bool exact_threads, dynamic_shared;
    struct loc *locs;
    int n_locs;
    struct sim_function *next;
};
struct sim_module {
    int architecture;
    struct sim_function *functions;
    struct variable *variables;
    int n_variables;
    char **files; /* by the number of .file */
    int n_files;
};

/* Where shared and local memory begin: small offsets are then outside; and their windows in generic addresses, where no
 * address of the host lies. */
#define MEMORY_START 1024
#define SHARED_WINDOW (UINT64_C(1) << 56)
#define LOCAL_WINDOW (UINT64_C(2) << 56)
#define PARAM_WINDOW (UINT64_C(3) << 56)

int type_bytes(int type);
#endif
