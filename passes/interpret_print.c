/* What `dtmc run` shows of an interpretation. */
#include "passes/interpret.h"

#include <math.h>
#include <string.h>

enum { FIRST_ELEMENTS = 4 };

static void print_number(dtm_text *out, double number) {
    if (isnan(number)) dtm_text_printf(out, "nan"); /* the sign of one says nothing, and is not that of every machine */
    else dtm_text_printf(out, "%.9g", number);
}

static void print_shape(const dtm_tensor *tensor, dtm_text *out) {
    dtm_text_printf(out, "[");
    for (int d = 0; d < tensor->rank; d++)
        dtm_text_printf(out, "%s%s=%lld", d ? ", " : "", tensor->dims[d], (long long)tensor->sizes[d]);
    dtm_text_printf(out, "]");
}

static double norm_of(const dtm_tensor *tensor) {
    double sum = 0;
    for (int64_t i = 0; i < tensor->elements; i++) sum += tensor->data[i] * tensor->data[i];
    return sqrt(sum);
}

/* "NAME[D=64]  norm 0.5  0.1 0.2 .." */
static void print_summary(const dtm_tensor *tensor, dtm_text *out) {
    dtm_text_printf(out, "  %s", tensor->name);
    print_shape(tensor, out);
    dtm_text_printf(out, "  norm ");
    print_number(out, norm_of(tensor));
    dtm_text_printf(out, " ");
    for (int64_t i = 0; i < tensor->elements && i < FIRST_ELEMENTS; i++) {
        dtm_text_printf(out, " ");
        print_number(out, tensor->data[i]);
    }
    dtm_text_printf(out, tensor->elements > FIRST_ELEMENTS ? " ..\n" : "\n");
}

/* All elements, a row of the last dimension a line. */
static void print_whole(const dtm_tensor *tensor, const char *what, dtm_text *out) {
    dtm_text_printf(out, "%s %s", what, tensor->name);
    print_shape(tensor, out);
    dtm_text_printf(out, " of step %lld\n", (long long)tensor->step);
    int64_t row = tensor->rank ? tensor->sizes[tensor->rank - 1] : 1;
    for (int64_t i = 0; i < tensor->elements; i++) {
        dtm_text_printf(out, i % row ? " " : "  ");
        print_number(out, tensor->data[i]);
        if (i % row == row - 1) dtm_text_printf(out, "\n");
    }
}

static bool is_named(const dtm_tensor *tensor, const char *name) {
    size_t length = strlen(name);
    return !strncmp(tensor->name, name, length) && (!tensor->name[length] || tensor->name[length] == '[');
}

static void print_selected(const dtm_tensors *tensors, const char *what, const char *name, dtm_text *out) {
    for (size_t i = 0; i < tensors->count; i++)
        if (is_named(&tensors->data[i], name)) print_whole(&tensors->data[i], what, out);
}

void dtm_interpretation_print(const dtm_interpretation *interpretation, const char *only, dtm_text *out) {
    if (only) {
        print_selected(&interpretation->reports, "report", only, out);
        print_selected(&interpretation->outputs, "output", only, out);
        print_selected(&interpretation->gradients, "gradient", only, out);
        print_selected(&interpretation->weights, "weight", only, out);
        print_selected(&interpretation->states, "state", only, out);
        print_selected(&interpretation->values, "value", only, out);
        return;
    }
    for (int64_t step = 1; step <= interpretation->steps; step++) {
        dtm_text_printf(out, "step %lld", (long long)step);
        for (size_t i = 0; i < interpretation->reports.count; i++) {
            const dtm_tensor *report = &interpretation->reports.data[i];
            if (report->step != step) continue;
            dtm_text_printf(out, "  %s ", report->name);
            print_number(out, report->data[0]);
        }
        dtm_text_printf(out, "\n");
    }
    const dtm_tensors *lists[2] = {&interpretation->outputs, &interpretation->gradients};
    const char *titles[2] = {"outputs", "gradients"};
    for (int l = 0; l < 2; l++) {
        bool titled = false;
        for (size_t i = 0; i < lists[l]->count; i++) {
            if (lists[l]->data[i].step != interpretation->steps) continue;
            if (!titled) dtm_text_printf(out, "%s of step %lld\n", titles[l], (long long)interpretation->steps);
            titled = true;
            print_summary(&lists[l]->data[i], out);
        }
    }
}
