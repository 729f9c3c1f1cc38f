/* What `dtmc --help` and `dtmc COMMAND --help` print. */
#include "frontend/dtmc/help.h"

#include <string.h>

static const char overview[] =
    "dtmc: compiles .dtm programs, distributed transformer programs, to executables.\n"
    "\n"
    "    dtmc build llama.dtm -o llama && mpirun -n 4 ./llama train --data corpus.txt\n"
    "\n"
    "A .dtm file says what a transformer computes, on which mesh of ranks, and which mesh axis splits which named\n"
    "dimensions. The compiler derives the rest: layouts, collectives, memory, kernels.\n"
    "\n"
    "commands\n"
    "    build     compile a program to an executable\n"
    "    check     read a program and say what is wrong with it\n"
    "    fmt       print a program in canonical style\n"
    "    ir        print the program after a pass: what is sharded, what is sent\n"
    "    explain   the ledger: every collective of a step, its bytes and its reason; or an error code\n"
    "    run       interpret a program, on all ranks of its mesh, in double precision\n"
    "    timeline  what each rank of a pipeline does and when, drawn before it runs\n"
    "    passes    list the passes in their order\n"
    "\n"
    "`dtmc COMMAND --help` tells more; `dtmc --version` prints the version.\n";

static const char common[] =
    "\n"
    "placing the program\n"
    "    -D NAME=VALUE     override a dim or a const: -D S=4096\n"
    "    --mesh A=N,B=M    override the mesh: --mesh dp=4,tp=2\n"
    "    --set KEY=VALUE   override a setting: --set steps=20, --set lr=1e-4, --set microbatches=4\n"
    "\n"
    "checking the compiler\n"
    "    --verify          run the verifier after every pass\n"
    "    --validate        interpret the program before and after every pass on small random inputs, and compare;\n"
    "                      it wants small sizes: make them small with -D\n";

static const struct {
    const char *command, *text;
    int compiles;
} texts[] = {
    {"build",
     "dtmc build FILE -o OUT: compiles a program to an executable for the CPUs of this machine's kind, or for GPUs.\n"
     "\n"
     "The executable carries its plan and its kernels. Run it with as many ranks as the mesh has:\n"
     "    mpirun -n 4 ./OUT train --data corpus.txt      or, all ranks in one process,  ./OUT train --local ..\n"
     "`./OUT --help` tells what it can do.\n"
     "\n"
     "    -o OUT            the executable to write\n"
     "    --emit DIR        also write the plan, the kernels and the last IR there, to be read\n"
     "    --target cpu      for CPUs of this machine's kind, or\n"
     "    --target cuda     for NVIDIA GPUs: kernels are CUDA C, compiled when the program starts; it never runs on the CPU instead\n"
     "    --draft           compile quickly what runs slowly: one plain set of kernels, for tests\n"
     "    --from PASS       FILE is a dump taken after PASS (the dump says so itself; this checks it)\n",
     1},
    {"check",
     "dtmc check FILE: takes a program through all that `dtmc build` does with it, short of compiling the kernels, and says\n"
     "what is wrong: each error with its line, its cause and a way out; then contracts (`expect`) that do not hold, and\n"
     "warnings. Nothing is written.\n"
     "\n"
     "    --from PASS       FILE is a dump taken after PASS\n",
     1},
    {"fmt",
     "dtmc fmt FILE: prints a program in canonical style; comments stay.\n"
     "\n"
     "    --check           print nothing; exit 1 if the file is not in canonical style\n"
     "    --write           write the file back instead of printing it\n"
     "FILE may be `-` for standard input.\n",
     0},
    {"ir",
     "dtmc ir FILE: prints the program as it is after a pass, in the .dtm language, with types and layouts written "
     "out:\n"
     "    f32[B=8@dp, S=256, F=704@tp] sum@cp      B split over dp, F over tp; a term of a sum over cp\n"
     "A dump can be edited and read again: dtmc ir x.dtm --after shard | dtmc ir - --from shard.\n"
     "\n"
     "    --after PASS      the pass to print after; without it, the last (`dtmc passes` lists them)\n"
     "    --from PASS       FILE is a dump taken after PASS\n"
     "    --only REGION     one region alone: a repeat's name, forward, backward, update\n"
     "    --diff            only what the pass changed: lines gone (-) and lines made (+)\n",
     1},
    {"explain",
     "dtmc explain FILE: the ledger of a step: every collective, when it runs, over which axis, how many bytes a rank\n"
     "sends, over which link, how long it takes by the machine model, the line and rule that forced it, and the "
     "cheapest\n"
     "change that would remove it; then what a rank holds in memory, by kind.\n"
     "\n"
     "    --json            the same for programs\n"
     "    --from PASS       FILE is a dump taken after PASS\n"
     "\n"
     "dtmc explain E0304: what an error means and how to get rid of it.\n",
     1},
    {"run",
     "dtmc run FILE: interprets the program on random inputs, on all ranks of its mesh in this process, by plain loops "
     "in\n"
     "double precision, and prints loss, gradient norm and gradients. It is the judge of every pass, slow and simple.\n"
     "\n"
     "    --after PASS      run it as it is after PASS\n"
     "    --from PASS       FILE is a dump taken after PASS\n"
     "    --steps N         training steps (1)\n"
     "    --seed N          of weights and inputs (that of `train`)\n"
     "    --value NAME      print this weight, gradient or value whole\n",
     1},
    {"timeline",
     "dtmc timeline FILE: what each rank of a pipeline does and when, by the machine model: a row a rank, time to the right,\n"
     "F forward, B backward, I and W its parts (gradients of the input, of the weights), numbers of microbatches, small\n"
     "letters for odd chunks, `.` idle, `~` idle while a message is on its way. Then the share of time that ranks are idle,\n"
     "communication that nothing hides, and memory; with schedule = auto how published schedules fare, and what none beats.\n"
     "\n"
     "    --format F        text (as wide as the terminal), svg, json (Chrome's and Perfetto's trace format), or orders:\n"
     "                      the order itself, a line a rank, that can be edited and given as FILE\n"
     "    --columns N       of text, at most; 46 at least\n"
     "    -o OUT            write it there\n"
     "    --from PASS       FILE is a dump taken after PASS\n"
     "\n"
     "    dtmc timeline llama.dtm --set schedule=zbh1 --set microbatches=16\n"
     "\n"
     "FILE may be orders, edited by hand or not: they are proved, and drawn with the costs of a program of as many stages,\n"
     "--model FILE.dtm, or without one as if F, I and W of each stage took 1.\n",
     1},
    {"passes", "dtmc passes: lists the passes in their order, with a line each.\n", 0},
};

void dtm_help_print(FILE *out, const char *command) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(texts[i].command, command) == 0) {
            fputs(texts[i].text, out);
            if (texts[i].compiles) fputs(common, out);
            return;
        }
    fputs(overview, out);
}
