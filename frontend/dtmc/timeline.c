/* dtmc timeline: what each rank of a pipeline does and when, proved and drawn. */
#include "frontend/dtmc/commands.h"

#include "passes/pipeline.h"
#include "passes/stage_choice.h"
#include "passes/stage_cost.h"
#include "passes/step_time.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct drawing {
    const dtm_options *options;
    dtm_context *context;
    dtm_arena *arena;
    dtm_module *module; /* the program that costs are of; NULL: none */
    const dtm_timeline *timeline;
    bool own; /* it is the program's: its memory is known, to the byte */
    dtm_timeline_costs costs; /* in seconds and bytes; without a program in units */
    dtm_text out;
} drawing;

static bool has_format(const drawing *d, const char *name) {
    return strcmp(d->options->format ? d->options->format : "text", name) == 0;
}

/* ---- what there is to draw ---- */

static bool compile(drawing *d, const char *file, const char *text, size_t length) {
    dtm_options options = *d->options;
    options.file = file;
    options.check.text = text;
    options.check.length = length;
    d->module = dtm_compile(d->context, &options, "memory");
    if (!d->module) return false;
    if (!d->module->settings.pipeline.present) {
        dtm_error(d->context, (dtm_span){0, 0, 0}, 233, "%s has no pipeline", file);
        dtm_help(d->context, "let an axis split a repeat: `pp splits layer with schedule = 1f1b, microbatches = 8`");
        return false;
    }
    /* a dump of this very pass comes back as it was written */
    if (!dtm_module_verify(d->module) || !dtm_pipeline_prove(d->module)) return false;
    d->timeline = dtm_stage_timeline(d->module, d->arena);
    d->own = true;
    d->costs = dtm_stage_costs(d->module, d->arena);
    return true;
}

static void unit_costs(drawing *d) {
    int stages = d->timeline->stages;
    dtm_stage_cost *stage = dtm_arena_alloc(d->arena, (size_t)stages * sizeof *stage);
    for (int s = 0; s < stages; s++) stage[s] = (dtm_stage_cost){1, 1, 1, .kept = 1, .kept_for_weight = 1};
    d->costs = (dtm_timeline_costs){stages, stage, 0, 0, NULL};
}

/* The program with this order instead of its own, once it is proved: what it costs and what memory it takes is then known. Communication
 * that is written out, or a program that was not cut here, has only the model. */
static bool use_order(drawing *d) {
    const dtm_stage_choice *own = d->module->choice;
    dtm_options options = *d->options;
    options.file = d->options->model;
    if (!own || d->timeline->groups) return true;
    dtm_stage_choice *choice = dtm_arena_alloc(d->arena, sizeof *choice);
    *choice = (dtm_stage_choice){d->timeline, own->n_stages, d->timeline->chunks, own->copies, NULL};
    dtm_module *module = dtm_compile(d->context, &options, "microbatch");
    if (!module) return false;
    module->choice = choice;
    dtm_module_destroy(d->module);
    d->module = module;
    if (!dtm_pipeline_run(module, &(dtm_pipeline_options){.until = "memory"})) return false;
    d->own = true;
    d->costs = dtm_stage_costs(module, d->arena);
    return true;
}

/* An order of its own, under the costs of a program that is cut like it. */
static bool read_orders(drawing *d, const char *text, size_t length) {
    dtm_timeline *t =
        dtm_timeline_parse(d->context, d->arena, dtm_source_add(d->context, d->options->file, text, length));
    if (!t) return false;
    d->timeline = t;
    if (!d->options->model) {
        unit_costs(d);
        return true;
    }
    if (!compile(d, d->options->model, NULL, 0)) return false;
    const dtm_timeline *of = d->timeline;
    bool same = of->ranks == t->ranks && of->chunks == t->chunks && of->microbatches == t->microbatches &&
                (of->placement == t->placement || t->chunks == 1);
    d->timeline = t;
    d->own = false;
    d->costs.slots = d->costs.buffers = d->costs.n_sums = 0; /* those of the program are for its own order; this one would get as many as it takes */
    if (same) return true;
    dtm_error(d->context, (dtm_span){0, 0, 0}, 901,
              "%s is of P=%d M=%d V=%d placement=%s, the pipeline of %s of P=%d M=%d V=%d placement=%s",
              d->options->file, t->ranks, t->microbatches, t->chunks, dtm_placement_name(t->placement),
              d->options->model, of->ranks, of->microbatches, of->chunks, dtm_placement_name(of->placement));
    dtm_help(d->context,
             "--mesh, --set microbatches=%d, --set schedule=.. and --set chunks=%d give the program another",
             t->microbatches, t->chunks);
    return false;
}

/* When everything happens, under costs in which a byte is so large; what ranks need is what their arenas take where there are such. */
static dtm_timeline_times *simulated(const drawing *d, const dtm_timeline_costs *costs, double byte) {
    dtm_timeline_times *times = dtm_timeline_simulate(d->arena, d->timeline, costs);
    if (!d->own) return times;
    times->memory = 0;
    for (size_t r = 0; r < d->module->n_ranks; r++) {
        times->rank[r].memory = (double)d->module->ranks[r]->arena_bytes * byte;
        times->memory = fmax(times->memory, times->rank[r].memory);
    }
    return times;
}

/* ---- text ---- */

typedef struct unit {
    double size;
    const char *name;
} unit;

static unit unit_for(double most, const unit *units) {
    while (units[1].name && most < units[0].size) units++;
    return units[0];
}

static const unit seconds[] = {{10, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {0}};
static const unit bytes[] = {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {0}};

static unit time_unit(double most) {
    unit u = unit_for(most, seconds);
    return u.size > 1 ? (unit){1, u.name} : u;
}

/* The costs as they are printed, in units that make readable figures of them. */
static dtm_timeline_costs scaled(const drawing *d, unit time, unit memory) {
    dtm_timeline_costs costs = d->costs;
    dtm_stage_cost *stage = dtm_arena_alloc(d->arena, (size_t)costs.stages * sizeof *stage);
    for (int s = 0; s < costs.stages; s++) {
        const dtm_stage_cost *c = &d->costs.stage[s];
        stage[s] = (dtm_stage_cost){
            c->forward / time.size,           c->input / time.size, c->weight / time.size, c->hidden / time.size,
            c->hidden_input / time.size,      c->later / time.size, c->forward_bytes,      c->backward_bytes,
            c->kept / memory.size,            c->kept_for_weight / memory.size,            c->held / memory.size,
            .forward_links = c->forward_links / time.size, .input_links = c->input_links / time.size,
            .weight_links = c->weight_links / time.size};
    }
    costs.stage = stage;
    dtm_timeline_sum *sums = dtm_arena_alloc(d->arena, (size_t)costs.n_sums * sizeof *sums);
    for (int k = 0; k < costs.n_sums; k++) {
        const dtm_timeline_sum *of = &costs.sums[k];
        sums[k] = *of;
        sums[k].before = dtm_arena_alloc(d->arena, (size_t)of->members * sizeof *of->before);
        for (int i = 0; i < of->members; i++) sums[k].before[i] = of->before[i] / time.size;
        sums[k].span /= time.size, sums[k].time /= time.size, sums[k].way /= time.size;
    }
    costs.sums = sums;
    costs.latency /= time.size;
    costs.bandwidth *= time.size;
    return costs;
}

static int columns_of(const drawing *d) {
    struct winsize size;
    if (d->options->columns) return (int)d->options->columns;
    if (!d->options->output && isatty(1) && ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col) return size.ws_col;
    return 100;
}

static double share_less(double bound, double time) {
    return time > 0 ? fmax(0, 100 * (1 - bound / time)) : 0;
}

/* How others fare on the program as the search sees it, cut into units. */
static void print_search(drawing *d, const dtm_timeline_answer *a, unit time, unit memory) {
    dtm_text_printf(&d->out, "\n");
    size_t from = d->out.length;
    dtm_text_printf(&d->out, "%-25s chunks  %9s  %9s\n", "by costs of single layers", time.name, memory.name);
    dtm_timeline_wrap(&d->out, from, columns_of(d));
    for (int i = 0; i < a->n_rivals; i++) {
        const dtm_timeline_rival *r = &a->rivals[i];
        static const char *const cuts[] = {[DTM_CUT_EVEN] = "", [DTM_CUT_BALANCED] = "  stages balanced", [DTM_CUT_OWN] = "  stages as without auto"};
        bool same = false; /* as with another cut, which comes before */
        for (int k = 1; k <= (int)r->cut; k++) same |= r[-k].makespan == r->makespan && r[-k].memory == r->memory;
        if (r->makespan == INFINITY || same) continue;
        from = d->out.length;
        dtm_text_printf(&d->out, "%-25s %6d  %9.6g  %9.4g%s", r->name, r->chunks, r->makespan / time.size, r->memory / memory.size,
                        cuts[r->cut]);
        if (r->added > 0) dtm_text_printf(&d->out, "  and %.4g %s to add up gradients", r->added / time.size, time.name);
        dtm_text_printf(&d->out, "\n");
        dtm_timeline_wrap(&d->out, from, columns_of(d));
    }
    from = d->out.length;
    dtm_text_printf(&d->out, "%-25s %6d  %9.6g  %9.4g\n", "auto", a->timeline->chunks, a->times->makespan / time.size,
                    a->times->memory / memory.size);
    dtm_timeline_wrap(&d->out, from, columns_of(d));
    from = d->out.length;
    dtm_text_printf(&d->out,
                    "no order of these stages takes less than %.6g %s (%.1f%% less), no other cut or placement less "
                    "than %.6g (%.1f%% less)\n",
                    a->bound / time.size, time.name, share_less(a->bound, a->times->makespan), a->least / time.size,
                    share_less(a->least, a->times->makespan));
    dtm_timeline_wrap(&d->out, from, columns_of(d));
}

/* What was compiled of that, and what came of it. */
static void print_tried(drawing *d, const dtm_stage_choice *c, unit time, unit memory) {
    if (!c->n_tried) return;
    dtm_text_printf(&d->out, "\n");
    size_t from = d->out.length;
    dtm_text_printf(&d->out, "%-25s chunks  %9s  %9s\n", "compiled, a whole step", time.name, memory.name);
    dtm_timeline_wrap(&d->out, from, columns_of(d));
    for (int i = 0; i < c->n_tried; i++) {
        const dtm_stage_result *r = &c->tried[i];
        from = d->out.length;
        dtm_text_printf(&d->out, "%-25s %6d  %9.6g  %9.4g%s\n", r->name, r->chunks, r->step / time.size, r->memory / memory.size,
                        r->fits ? "" : r->open ? "  fits at most with less started ahead" : "  does not fit");
        dtm_timeline_wrap(&d->out, from, columns_of(d));
    }
}

/* How many copies of the split repeat a stage has: those of the repeat in its forward region. */
static long long copies_of(const drawing *d, int stage) {
    int rank, chunk;
    dtm_timeline_place(d->timeline, stage, 0, &rank, &chunk);
    const dtm_module *m = d->module->ranks[rank];
    const char *repeat = dtm_string_text(d->context, d->module->settings.pipeline.repeat);
    const char *name = chunk ? dtm_arena_printf(d->arena, "%s_%d", repeat, chunk + 1) : repeat;
    for (dtm_op op = 1; op < m->n_ops; op++) {
        const dtm_op_data *data = dtm_op_get(m, op);
        dtm_op around = data->region && data->kind == DTM_OP_REPEAT ? dtm_enclosing(m, op, DTM_OP_FORWARD) : 0;
        if (around && strcmp(dtm_string_text(d->context, data->attributes.name), name) == 0)
            return data->attributes.copies;
    }
    return 0;
}

enum { STAGE_LABEL = 19, FIGURE = 11, FIGURES = 7 };

/* As many figures beside each other as fit, the others below. */
static void print_stages(drawing *d, unit time, unit memory) {
    static const char *const names[FIGURES] = {"F", "I", "W", "sends", "back", "keeps", "for W"};
    const char *repeat = dtm_string_text(d->context, d->module->settings.pipeline.repeat);
    int fit = (columns_of(d) - STAGE_LABEL) / FIGURE;
    for (int first = 0, last; first < FIGURES; first = last) {
        last = first + fit < FIGURES ? first + fit : FIGURES;
        dtm_text_printf(&d->out, "\nstage  rank  %6s", repeat);
        for (int k = first; k < last; k++) dtm_text_printf(&d->out, "  %9s", names[k]);
        for (int s = 0; s < d->costs.stages; s++) {
            const dtm_stage_cost *c = &d->costs.stage[s];
            const double figures[FIGURES] = {c->forward / time.size,          c->input / time.size,
                                             c->weight / time.size,           c->forward_bytes / memory.size,
                                             c->backward_bytes / memory.size, c->kept / memory.size,
                                             c->kept_for_weight / memory.size};
            int rank, chunk;
            dtm_timeline_place(d->timeline, s, 0, &rank, &chunk);
            dtm_text_printf(&d->out, "\n%5d  %4d  %6lld", s, rank, copies_of(d, s));
            for (int k = first; k < last; k++) dtm_text_printf(&d->out, "  %9.4g", figures[k]);
        }
        dtm_text_printf(&d->out, "\n");
    }
}

/* What the timeline is a part of. */
static void print_step(drawing *d, unit time) {
    dtm_timeline_times *times = dtm_timeline_simulate(d->arena, d->timeline, &d->costs);
    dtm_step_times step = dtm_step_predict(d->module, d->timeline, times);
    size_t from = d->out.length;
    dtm_text_printf(&d->out, "step %.6g %s: %.4g before the microbatches, %.4g after\n", step.all / time.size, time.name,
                    step.before / time.size, step.after / time.size);
    dtm_timeline_wrap(&d->out, from, columns_of(d));
}

static void draw_figures(drawing *d) {
    dtm_timeline_times *times = simulated(d, &d->costs, 1);
    unit time = {1, NULL}, memory = {1, NULL};
    if (d->module) time = time_unit(times->makespan), memory = unit_for(times->memory, bytes);
    dtm_timeline_costs costs = scaled(d, time, memory);
    times = simulated(d, &costs, 1 / memory.size);
    times->time_unit = time.name;
    times->memory_unit = memory.name;
    if (has_format(d, "svg")) {
        dtm_timeline_draw_svg(d->timeline, &costs, times, &d->out);
        return;
    }
    bool colour = !d->options->output && isatty(1);
    dtm_timeline_draw_text(d->timeline, &costs, times, columns_of(d), colour, &d->out);
    if (!d->module) return;
    print_step(d, time);
    print_stages(d, time, memory);
    if (d->module->searched) print_search(d, d->module->searched, time, memory);
    if (d->module->choice && d->module->searched) print_tried(d, d->module->choice, time, memory);
}

/* ---- all of it ---- */

static bool draw(drawing *d) {
    dtm_timeline_proof proof;
    bool good = dtm_timeline_prove(d->context, d->arena, d->timeline, &d->costs, &(dtm_timeline_limits){0}, &proof);
    if (!good || (d->module && !d->own && !use_order(d))) return false;
    if (has_format(d, "orders"))
        dtm_timeline_print(d->timeline, &d->out);
    else if (has_format(d, "json")) {
        dtm_timeline_times *times = simulated(d, &d->costs, 1);
        dtm_timeline_draw_json(d->timeline, &d->costs, times, 1e6, &d->out);
    } else
        draw_figures(d);
    return true;
}

static bool write_out(const drawing *d) {
    const char *path = d->options->output;
    FILE *file = path ? fopen(path, "wb") : stdout;
    bool good = file && fwrite(d->out.data, 1, d->out.length, file) == d->out.length;
    if (path && file) good = fclose(file) == 0 && good;
    if (!good) fprintf(stderr, "dtmc timeline: %s: %s\n", path ? path : "standard output", strerror(errno));
    return good;
}

/* The first option given that is about a program; NULL: there is none. */
static const char *of_a_program(const dtm_options *o) {
    const char *names[] = {o->check.n_defines ? "-D" : NULL, o->check.mesh ? "--mesh" : NULL, o->check.n_sets ? "--set" : NULL,
                           o->from ? "--from" : NULL,        o->verify ? "--verify" : NULL,   o->validate ? "--validate" : NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i]) return names[i];
    return NULL;
}

/* 0 where the options go together and with what the file is. */
static int check_options(const drawing *d, bool orders) {
    const dtm_options *o = d->options;
    if (!has_format(d, "text") && !has_format(d, "svg") && !has_format(d, "json") && !has_format(d, "orders"))
        return dtm_misuse("timeline: no format `%s`; there are text, svg, json and orders", o->format);
    if (o->columns && !has_format(d, "text")) return dtm_misuse("timeline: --columns is of text, and the format is %s", o->format);
    if (o->model && !orders)
        return dtm_misuse("timeline: %s is a program, and has costs of its own; --model is for a file of orders", o->file);
    if (orders && !o->model && of_a_program(o))
        return dtm_misuse("timeline: %s is for a program, and %s is a file of orders without one; "
                          "--model FILE.dtm gives it a program's costs",
                          of_a_program(o), o->file);
    return 0;
}

/* Says what `build` says of a file that is not there. */
static int unreadable(const char *path, int error) {
    dtm_context *context = dtm_context_create();
    dtm_error(context, (dtm_span){0, 0, 0}, 205, "cannot read %s: %s", path, strerror(error));
    dtm_report(context);
    dtm_context_destroy(context);
    return 1;
}

int dtm_command_timeline(const dtm_options *options) {
    drawing d = {.options = options};
    size_t length;
    FILE *file = strcmp(options->file, "-") == 0 ? stdin : fopen(options->file, "rb");
    char *text = file ? dtm_read_stream(file, &length) : NULL;
    int error = errno;
    if (file && file != stdin) fclose(file);
    if (!text) return unreadable(options->file, error);
    int status = check_options(&d, dtm_timeline_is_text(text, length));
    if (status) {
        free(text);
        return status;
    }
    d.context = dtm_context_create();
    d.out.arena = d.arena = dtm_context_arena(d.context);
    bool orders = dtm_timeline_is_text(text, length);
    bool good = orders ? read_orders(&d, text, length) : compile(&d, options->file, text, length);
    good = good && draw(&d);
    if (good && d.module && !orders) good = dtm_bubble_check(d.module);
    if (good || d.out.length) good = dtm_spares_sources(d.context, options, "timeline") && write_out(&d) && good;
    good = !dtm_report(d.context) && good;
    dtm_module_destroy(d.module);
    dtm_context_destroy(d.context);
    free(text);
    return !good;
}
