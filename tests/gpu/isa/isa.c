/* Runs cases of single opcodes on the simulated GPU. A case is a file:
 *
 *     form add.rn.f32 $d, $a, $b; | f32 | b32 b32
 *     0x3f800000 0x40000000 = 0x40400000
 *     bound 0x1p-22 0               of the form's results: relative and absolute, when .approx errors are drawn
 *     refused add.frob.s32 $d, $a, $b; | b32 | b32 b32      must not load
 *
 * $a $b $c .. are the inputs, $d $e2 $e3 $e4 the results; a form may be several instructions, in braces. Every row is a thread of one
 * block, so that shuffles see the rows as lanes. Values are bits; `nan` is any of the type. The text that is run is PTX that
 * ptxas takes: `isa --text FOLDER CASE..` writes it.
 *
 *     isa CASE..
 *     isa --device CASE..    on device 0 of libcuda, where the hardware says what is right: results within the bounds */
#include "../sim/sim.h"
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 1024, MAX_VALUES = 16 };
struct form {
    char text[2048], out[MAX_VALUES][8], in[MAX_VALUES][8];
    int n_out, n_in, n_rows, line;
    uint64_t input[MAX_ROWS][MAX_VALUES], right[MAX_ROWS][MAX_VALUES];
    bool any_nan[MAX_ROWS][MAX_VALUES], refused;
    double relative, absolute;
};
static const char *const in_names[MAX_VALUES] = {"a", "b", "c", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "q", "s", "t"};
static const char *const out_names[] = {"d", "e2", "e3", "e4"};
static const char *folder, *file;
static int failures, forms, rows_run, refusals; /* refusals: forms that the device's driver does not take */
static bool on_device;
static int architecture = 90;

static int bytes_of(const char *type) {
    return strcmp(type, "pred") == 0 ? 4 : strstr(type, "64") ? 8 : strstr(type, "32") || strstr(type, "x2") ? 4 : 2;
}
static bool is_pred(const char *type) { return strcmp(type, "pred") == 0; }

/* The PTX of a form. */
static char *ptx(const struct form *f) {
    size_t size = 1 << 16, n = 0;
    char *t = malloc(size);
    if (!t)
        exit(1);
#define ADD(...) (n += (size_t)snprintf(t + n, size - n, __VA_ARGS__))
    ADD(".version 8.4\n.target sm_%d\n.address_size 64\n.visible .entry isa(.param .u64 isa_0, .param .u64 isa_1)\n{\n", architecture);
    ADD(".reg .b64 %%in, %%out;\n.reg .b32 %%thread, %%w;\n.reg .b64 %%at;\n");
    for (int i = 0; i < f->n_in + f->n_out; i++) {
        const char *type = i < f->n_in ? f->in[i] : f->out[i - f->n_in], *name = i < f->n_in ? in_names[i] : out_names[i - f->n_in];
        ADD(".reg .%s%s %%%s;\n", is_pred(type) ? "pred" : "b", is_pred(type) ? "" : bytes_of(type) == 8 ? "64" : bytes_of(type) == 4 ? "32" : "16", name);
    }
    ADD("ld.param.u64 %%in, [isa_0];\nld.param.u64 %%out, [isa_1];\nmov.u32 %%thread, %%tid.x;\n");
    ADD("mad.wide.u32 %%in, %%thread, %d, %%in;\nmad.wide.u32 %%out, %%thread, %d, %%out;\n", MAX_VALUES * 8, MAX_VALUES * 8);
    for (int i = 0; i < f->n_in; i++)
        if (is_pred(f->in[i]))
            ADD("ld.global.b32 %%w, [%%in+%d];\nsetp.ne.s32 %%%s, %%w, 0;\n", i * 8, in_names[i]);
        else
            ADD("ld.global.b%d %%%s, [%%in+%d];\n", bytes_of(f->in[i]) * 8, in_names[i], i * 8);
    for (const char *at = f->text; *at; at++)
        t[n++] = *at == '$' ? '%' : *at;
    ADD("\n");
    for (int i = 0; i < f->n_out; i++)
        if (is_pred(f->out[i]))
            ADD("selp.b32 %%w, 1, 0, %%%s;\nst.global.b32 [%%out+%d], %%w;\n", out_names[i], i * 8);
        else
            ADD("st.global.b%d [%%out+%d], %%%s;\n", bytes_of(f->out[i]) * 8, i * 8, out_names[i]);
    ADD("ret;\n}\n");
#undef ADD
    return t;
}

static double real(const char *type, uint64_t bits) {
    if (bytes_of(type) == 8) {
        double x;
        memcpy(&x, &bits, 8);
        return x;
    }
    float x;
    uint32_t low = (uint32_t)bits;
    memcpy(&x, &low, 4);
    return (double)x;
}
static bool not_a_number(const char *type, uint64_t bits) {
    if (*type != 'f' && *type != 'b')
        return false;
    if (strcmp(type, "f16") == 0)
        return (bits & 0x7fff) > 0x7c00;
    if (strcmp(type, "bf16") == 0)
        return (bits & 0x7fff) > 0x7f80;
    return isnan(real(type, bits));
}
static void fails(const struct form *f, const char *what, const char *detail) {
    printf("%s:%d: %s: %s: %s\n", file, f->line, f->text, what, detail);
    failures++;
}

static uint64_t in[MAX_ROWS][MAX_VALUES], out[MAX_ROWS][MAX_VALUES];
static void compare(const struct form *f, bool perturbed) {
    for (int r = 0; r < f->n_rows; r++)
        for (int i = 0; i < f->n_out; i++) {
            uint64_t got = out[r][i], want = f->right[r][i];
            bool good = f->any_nan[r][i] ? not_a_number(f->out[i], got) : got == want;
            if (perturbed && !good) {
                double x = real(f->out[i], got), y = real(f->out[i], want);
                good = fabs(x - y) <= f->relative * fabs(y) + f->absolute;
            }
            if (!good) {
                char detail[160];
                snprintf(detail, sizeof detail, "row %d, result %d: 0x%llx, and 0x%llx is right%s", r, i, (unsigned long long)got,
                         (unsigned long long)want, perturbed ? " within the bound" : "");
                fails(f, "wrong", detail);
                return;
            }
        }
}

static void run_on_device(const struct form *f) {
    char error[256] = "", *text = ptx(f);
    bool loads = false;
    forms++, rows_run += f->n_rows;
    memcpy(in, f->input, sizeof in);
    if (isa_device_run(text, f->n_rows, in, out, sizeof in, &loads, error, sizeof error)) compare(f, true);
    else if (loads) fails(f, "does not run", error);
    else refusals++, printf("%s:%d: %s: not taken: %s\n", file, f->line, f->text, error);
    free(text);
}

static void run(const struct form *f) {
    static const struct sim_launch orders[] = {
        {.warps = SIM_FORWARD}, {.warps = SIM_RANDOM, .random_groups = true, .seed = 3}, {.warps = SIM_REVERSE, .perturb = true, .seed = 9}};
    char error[256], *text = ptx(f);
    forms++, rows_run += f->n_rows;
    struct sim_module *module = sim_module_load(text, strlen(text), error, sizeof error);
    if (f->refused != !module)
        fails(f, f->refused ? "loads" : "does not load", module ? "and must not" : error);
    for (int k = 0; module && !f->refused && k < 3; k++) {
        static struct sim_reports reports;
        memset(&reports, 0, sizeof reports);
        memcpy(in, f->input, sizeof in);
        memset(out, 0, sizeof out);
        struct sim_memory *memory = sim_memory_new();
        sim_memory_add(memory, in, sizeof in), sim_memory_define(memory, in, sizeof in, true);
        sim_memory_add(memory, out, sizeof out), sim_memory_define(memory, out, sizeof out, true);
        void *params[] = {in, out};
        struct sim_launch l = orders[k];
        l.function = sim_function_find(module, "isa"), l.params = params, l.params_size = sizeof params;
        l.grid[0] = l.grid[1] = l.grid[2] = l.block[1] = l.block[2] = 1, l.block[0] = (uint32_t)f->n_rows;
        bool ended = sim_launch_run(memory, &l, &reports);
        if (!ended || reports.total)
            fails(f, "reports", reports.n ? reports.report[0].text : "none");
        compare(f, l.perturb);
        sim_memory_free(memory);
    }
    if (folder && !f->refused) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.ptx", folder, forms);
        FILE *to = fopen(path, "w");
        if (to)
            fprintf(to, "// %s\n%s", f->text, text), fclose(to);
    }
    sim_module_free(module);
    free(text);
}

/* What must not load is for the simulator alone: a driver knows more. */
static void run_form(const struct form *f) {
    if (!on_device) run(f);
    else if (!f->refused) run_on_device(f);
}

static int words(char *text, char to[MAX_VALUES][8]) {
    int n = 0;
    for (char *w = strtok(text, " \n"); w && n < MAX_VALUES; w = strtok(NULL, " \n"))
        snprintf(to[n++], 8, "%s", w);
    return n;
}
static void header(struct form *f, char *line, int number, bool refused) {
    memset(f, 0, sizeof *f);
    char *types = strstr(line, " | "), *inputs = types ? strstr(types + 3, " | ") : NULL;
    if (!inputs) {
        printf("%s:%d: no types\n", file, number);
        exit(1);
    }
    *types = *inputs = 0, types += 3, inputs += 3;
    if (strlen(line) >= sizeof f->text) {
        printf("%s:%d: too long\n", file, number);
        exit(1);
    }
    strcpy(f->text, line);
    f->n_out = words(types, f->out), f->n_in = words(inputs, f->in);
    f->line = number, f->refused = refused;
}
static void row(struct form *f, char *line) {
    int i = 0, side = 0, r = f->n_rows++;
    for (char *w = strtok(line, " \n"); w; w = strtok(NULL, " \n")) {
        if (*w == '=') {
            side = 1, i = 0;
        } else if (i < MAX_VALUES && side) {
            f->any_nan[r][i] = strcmp(w, "nan") == 0;
            f->right[r][i] = f->any_nan[r][i] ? 0 : strtoull(w, NULL, 0);
            i++;
        } else if (i < MAX_VALUES) {
            f->input[r][i++] = strtoull(w, NULL, 0);
        }
    }
    if (!side || i != f->n_out) {
        printf("%s: a row of %d results: %s\n", file, i, f->text);
        exit(1);
    }
}
static void run_file(void) {
    static struct form f;
    static char line[8192];
    FILE *from = fopen(file, "r");
    if (!from) {
        printf("%s: cannot be read\n", file);
        exit(1);
    }
    bool open = false;
    for (int number = 1; fgets(line, sizeof line, from); number++) {
        bool form = strncmp(line, "form ", 5) == 0, refused = strncmp(line, "refused ", 8) == 0;
        if (form || refused) {
            if (open)
                run_form(&f);
            header(&f, line + (form ? 5 : 8), number, refused);
            open = true;
        } else if (strncmp(line, "bound ", 6) == 0) {
            sscanf(line + 6, "%la %la", &f.relative, &f.absolute);
        } else if (*line != '#' && *line != '\n' && f.n_rows < MAX_ROWS) {
            row(&f, line);
        }
    }
    if (open)
        run_form(&f);
    fclose(from);
}

int main(int n, char **arguments) {
    int first = 1;
    if (n > 3 && strcmp(arguments[1], "--text") == 0)
        folder = arguments[2], first = 3;
    if (n > 2 && strcmp(arguments[1], "--device") == 0) {
        char said[512];
        on_device = isa_device_open(said, sizeof said, &architecture);
        printf("%s%s\n", on_device ? "on " : "", said);
        if (!on_device) return 77;
        architecture = architecture > 90 ? 90 : architecture; /* the newest that the cases are of */
        first = 2;
    }
    for (int i = first; i < n; i++) {
        file = arguments[i];
        run_file();
    }
    if (refusals) printf("%d forms are not for this device\n", refusals);
    printf("%d forms, %d rows: %s\n", forms, rows_run, failures ? "some are wrong" : "all right");
    return failures || !(forms || on_device);
}
