#include "runtime/checkpoint.h"

#include "runtime/cuda/device.h"
#include "runtime/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The tensors of a file: those weights that `wanted` chooses, of all ranks' plans, copy by copy. By weight of this rank's
 * plan: the index of its first copy, and whether a rank before this one on a pipeline's axis holds it too. */
typedef struct tensor_list {
    dtm_stored_tensor *tensors;
    int64_t count, *first;
    bool *held_before;
} tensor_list;

static bool is_weight(const dtm_plan_weight *w) {
    return !w->state;
}

static bool has_gradient(const dtm_plan_weight *w) {
    return !w->state && w->gradient;
}

static void free_list(tensor_list *list) {
    for (int64_t i = 0; i < list->count; i++) free((char *)list->tensors[i].name);
    free(list->tensors);
    free(list->first);
    free(list->held_before);
}

static bool add_weight(const dtm_plan *plan, const dtm_plan_weight *w, tensor_list *list) {
    for (int64_t copy = 0; copy < dtm_weight_copies(plan, w); copy++) {
        char name[512];
        dtm_weight_name(plan, w, copy, name, sizeof name);
        dtm_stored_tensor *tensor = &list->tensors[list->count];
        *tensor = (dtm_stored_tensor){.name = strdup(name), .dtype = DTM_STORED_F32, .rank = w->rank};
        if (!tensor->name) return false;
        list->count++;
        for (int d = 0; d < w->rank; d++) tensor->shape[d] = w->dims[d].size;
    }
    return true;
}

static int64_t find_tensor(const tensor_list *list, const char *name) {
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->tensors[i].name, name) == 0) return i;
    return -1;
}

/* Weights of one plan that are not in the list yet; `own`: it is this rank's. */
static bool list_plan(const dtm_plan *plan, bool own, bool (*wanted)(const dtm_plan_weight *), tensor_list *list) {
    int64_t earlier = list->count;
    bool ok = true;
    for (uint32_t w = 0; ok && w < plan->n_weights; w++) {
        char name[512];
        dtm_weight_name(plan, &plan->weights[w], 0, name, sizeof name);
        int64_t known = earlier ? find_tensor(list, name) : -1;
        if (own) list->first[w] = known >= 0 ? known : list->count;
        if (own) list->held_before[w] = known >= 0;
        if (known < 0 && wanted(&plan->weights[w])) ok = add_weight(plan, &plan->weights[w], list);
    }
    return ok;
}

static bool list_tensors(const dtm_plan *plan, bool (*wanted)(const dtm_plan_weight *), tensor_list *list,
                         dtm_status *status) {
    int64_t most = 1;
    uint32_t plans = plan->n_stages ? plan->n_stages : 1;
    for (uint32_t s = 0; s < plans; s++) {
        const dtm_plan *of = plan->n_stages ? plan->stages[s] : plan;
        for (uint32_t w = 0; w < of->n_weights; w++) most += dtm_weight_copies(of, &of->weights[w]);
    }
    *list = (tensor_list){.tensors = calloc((size_t)most, sizeof *list->tensors),
                          .first = calloc((size_t)plan->n_weights + 1, sizeof *list->first),
                          .held_before = calloc((size_t)plan->n_weights + 1, sizeof *list->held_before)};
    bool ok = list->tensors && list->first && list->held_before;
    for (uint32_t s = 0; ok && s < plans; s++) {
        const dtm_plan *of = plan->n_stages ? plan->stages[s] : plan;
        ok = list_plan(of, of == plan, wanted, list);
    }
    return ok || dtm_status_fail(status, "out of memory for the names of the weights");
}

static void bounds_of(const dtm_box *box, int64_t *begin, int64_t *end) {
    for (int d = 0; d < box->rank; d++) {
        begin[d] = box->spans[d].begin;
        end[d] = begin[d] + box->spans[d].size;
    }
}

/* ---- loading ---- */

static void describe_stored(const dtm_stored_tensor *tensor, char *text, size_t size) {
    size_t length = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < tensor->rank && length < size; d++)
        length += (size_t)snprintf(text + length, size - length, "%s%lld", d ? ", " : "", (long long)tensor->shape[d]);
    if (length < size) snprintf(text + length, size - length, "]");
}

/* "[D = 8, V = 64] (line 5)" */
static void describe_weight(const dtm_plan_weight *w, char *text, size_t size) {
    size_t length = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < w->rank && length < size; d++)
        length += (size_t)snprintf(text + length, size - length, "%s%s = %lld", d ? ", " : "", w->dims[d].name,
                                   (long long)w->dims[d].size);
    if (length < size) length += (size_t)snprintf(text + length, size - length, "]");
    if (length < size && w->line) snprintf(text + length, size - length, " (line %u)", w->line);
}

static const dtm_stored_tensor *find(const dtm_safetensors *file, const dtm_plan_weight *weight,
                                     const dtm_stored_tensor *wanted, dtm_status *status) {
    const dtm_stored_tensor *found = dtm_safetensors_find(file, wanted->name);
    char wants[256], has[256];
    describe_weight(weight, wants, sizeof wants);
    if (!found) {
        dtm_status_fail(status, "%s has no weight `%s`: the program wants f32 %s", dtm_safetensors_path(file),
                        wanted->name, wants);
        return NULL;
    }
    describe_stored(found, has, sizeof has);
    bool same = found->rank == wanted->rank;
    for (int d = 0; same && d < found->rank; d++) same = found->shape[d] == wanted->shape[d];
    if (!same)
        dtm_status_fail(status, "%s: weight `%s` has the shape %s, the program wants %s", dtm_safetensors_path(file),
                        wanted->name, has, wants);
    else if (found->dtype != DTM_STORED_F32)
        dtm_status_fail(status, "%s: weight `%s` is %s, the program wants F32", dtm_safetensors_path(file),
                        wanted->name, dtm_stored_name(found->dtype));
    return status->failed ? NULL : found;
}

/* All are looked for before one is read: what is wrong with a file is said at once. */
static bool load_from(dtm_rank *rank, const dtm_safetensors *file, const tensor_list *list, dtm_status *status) {
    for (uint32_t w = 0; w < rank->plan->n_weights; w++) {
        const dtm_plan_weight *weight = &rank->plan->weights[w];
        int64_t copies = weight->state ? 0 : dtm_weight_copies(rank->plan, weight);
        for (int64_t copy = 0; copy < copies; copy++)
            if (!find(file, weight, &list->tensors[list->first[w] + copy], status)) return false;
    }
    for (uint32_t w = 0; w < rank->plan->n_weights; w++) {
        const dtm_plan_weight *weight = &rank->plan->weights[w];
        if (weight->state) continue;
        dtm_box box = dtm_rank_box(rank, weight->buffer);
        int64_t begin[DTM_PLAN_RANK], end[DTM_PLAN_RANK], copies = dtm_weight_copies(rank->plan, weight);
        bounds_of(&box, begin, end);
        for (int64_t copy = 0; copy < copies && dtm_box_elements(&box); copy++) {
            const dtm_stored_tensor *found = dtm_safetensors_find(file, list->tensors[list->first[w] + copy].name);
            int64_t bytes = dtm_box_elements(&box) * (int64_t)sizeof(float);
            void *at = dtm_rank_buffer_copy(rank, weight->buffer, copy), *to = dtm_rank_open(rank, at, bytes, status);
            if (!to || !dtm_safetensors_read(file, found, begin, end, to, status) || !dtm_rank_write(rank, at, to, bytes, status)) return false;
        }
    }
    return true;
}

static void mention_unused(const dtm_rank *rank, const dtm_safetensors *file, const tensor_list *list) {
    int64_t unused = dtm_safetensors_count(file) - list->count;
    if (unused > 0 && dtm_comm_rank(rank->comm) == 0)
        fprintf(stderr, "note: %s holds more than the weights of the program: %lld other tensor%s, not read\n",
                dtm_safetensors_path(file), (long long)unused, unused == 1 ? "" : "s");
}

/* Another algorithm adds in another order. */
static void mention_choices(dtm_rank *rank, const dtm_safetensors *file) {
    const char *there = dtm_safetensors_metadata(file, "dtm_products");
    char here[96];
    if (!there || !rank->device || dtm_comm_rank(rank->comm) != 0) return;
    dtm_device_choices(rank->device, here);
    if (strcmp(there, here) != 0)
        fprintf(stderr, "note: %s is of a run whose products went by %s, this one's go by %s: the last bits will be others than that run's\n",
                dtm_safetensors_path(file), there, here);
}

bool dtm_weights_load(dtm_rank *rank, const char *path, dtm_status *status) {
    dtm_safetensors *file = NULL;
    tensor_list list;
    bool ok = list_tensors(rank->plan, is_weight, &list, status) && dtm_safetensors_open(path, &file, status) &&
              load_from(rank, file, &list, status);
    if (ok) mention_unused(rank, file, &list);
    if (ok) mention_choices(rank, file);
    if (file) dtm_safetensors_close(file);
    free_list(&list);
    return dtm_comm_agree(rank->comm, status);
}

/* ---- what is half-written ---- */

enum { OPEN_FILES = 8 };
static char open_files[OPEN_FILES][PATH_MAX];

void dtm_partial_remember(const char *path) {
    for (int i = 0; i < OPEN_FILES; i++) {
        if (open_files[i][0]) continue;
        snprintf(open_files[i], sizeof open_files[i], "%.4000s.partial", path);
        return;
    }
}

void dtm_partial_forget(const char *path) {
    size_t length = strlen(path);
    for (int i = 0; i < OPEN_FILES; i++)
        if (!strncmp(open_files[i], path, length) && !strcmp(open_files[i] + length, ".partial")) open_files[i][0] = 0;
}

void dtm_checkpoint_discard_all(void) {
    for (int i = 0; i < OPEN_FILES; i++)
        if (open_files[i][0]) unlink(open_files[i]);
}

bool dtm_check_writable(const char *path, dtm_status *status) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) /* it would be replaced */
        return dtm_status_fail(status, "cannot write %s: it is %s; name a file", path,
                               S_ISDIR(there.st_mode) ? "a folder" : "no regular file");
    char partial[PATH_MAX];
    snprintf(partial, sizeof partial, "%.4000s.partial", path);
    int descriptor = open(partial, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return dtm_status_fail_errno(status, errno, "cannot write %s", path);
    close(descriptor);
    unlink(partial);
    return true;
}

/* ---- saving ---- */

typedef struct output {
    const char *path;
    tensor_list list;
    dtm_safetensors_layout *layout;
    dtm_safetensors_writer *writer;
    bool created; /* by this rank */
} output;

/* One rank creates the file, then the others join it. */
static bool begin_output(dtm_rank *rank, const char *path, bool (*wanted)(const dtm_plan_weight *), output *out,
                         dtm_status *status) {
    bool first = dtm_comm_rank(rank->comm) == 0;
    *out = (output){.path = path};
    char choices[96];
    const char *metadata[] = {"dtm_products", choices, NULL};
    if (rank->device) dtm_device_choices(rank->device, choices);
    bool ok = list_tensors(rank->plan, wanted, &out->list, status) &&
              dtm_safetensors_lay_out(out->list.tensors, out->list.count, rank->device ? metadata : NULL, &out->layout, status);
    if (ok && first) {
        dtm_partial_remember(path);
        out->created = dtm_safetensors_create(path, out->layout, &out->writer, status);
    }
    if (!dtm_comm_agree(rank->comm, status)) return false;
    if (!first) dtm_safetensors_join(path, out->layout, &out->writer, status);
    return dtm_comm_agree(rank->comm, status);
}

/* Commits if all wrote all of theirs (status says of this rank), else removes what there is. */
static bool end_output(dtm_rank *rank, output *out, dtm_status *status) {
    dtm_status closing = {0};
    if (out->writer && !dtm_safetensors_writer_close(out->writer, &closing) && !status->failed) *status = closing;
    bool ok = dtm_comm_agree(rank->comm, status);
    if (out->created && ok) ok = dtm_safetensors_commit(out->path, status);
    if (out->created && !ok) dtm_safetensors_discard(out->path);
    if (dtm_comm_rank(rank->comm) == 0) dtm_partial_forget(out->path);
    if (out->layout) dtm_safetensors_layout_free(out->layout);
    free_list(&out->list);
    return dtm_comm_agree(rank->comm, status);
}

static bool save_weight(dtm_rank *rank, output *out, uint32_t index, dtm_status *status) {
    const dtm_plan_weight *w = &rank->plan->weights[index];
    dtm_box box = dtm_rank_box(rank, w->buffer);
    int64_t begin[DTM_PLAN_RANK], end[DTM_PLAN_RANK];
    if (w->state || out->list.held_before[index] || !dtm_rank_owns(rank, w->buffer) || dtm_box_elements(&box) == 0) return true;
    int64_t bytes = dtm_box_elements(&box) * (int64_t)sizeof(float);
    bounds_of(&box, begin, end);
    for (int64_t copy = 0; copy < dtm_weight_copies(rank->plan, w); copy++) {
        const void *data = dtm_rank_read(rank, dtm_rank_buffer_copy(rank, w->buffer, copy), bytes, status);
        if (!data || !dtm_safetensors_write(out->writer, out->list.first[index] + copy, begin, end, data, status)) return false;
    }
    return true;
}

bool dtm_weights_save(dtm_rank *rank, const char *path, dtm_status *status) {
    output out;
    if (begin_output(rank, path, is_weight, &out, status))
        for (uint32_t w = 0; w < rank->plan->n_weights && !status->failed; w++) save_weight(rank, &out, w, status);
    return end_output(rank, &out, status);
}

/* ---- gradients ---- */

struct dtm_gradient_file {
    output out;
};

bool dtm_gradients_begin(dtm_rank *rank, const char *path, dtm_status *status) {
    rank->gradients = calloc(1, sizeof *rank->gradients);
    if (!rank->gradients) dtm_status_fail(status, "out of memory for the gradients' file");
    if (!dtm_comm_agree(rank->comm, status)) return false;
    if (begin_output(rank, path, has_gradient, &rank->gradients->out, status)) return true;
    return dtm_gradients_end(rank, status);
}

/* The block of a gradient that lacks dimensions of its weight, as it is alike along them, with them put in. */
typedef struct spread {
    dtm_box box;
    int64_t strides[DTM_PLAN_RANK]; /* in the gradient's block; 0: it lacks this one */
} spread;

static bool spread_of(dtm_rank *rank, const dtm_plan_weight *w, uint32_t buffer, spread *out) {
    const dtm_plan_buffer *b = &rank->plan->buffers[buffer];
    dtm_box box = dtm_rank_box(rank, buffer);
    bool lacks = w->rank != b->rank;
    *out = (spread){.box = {.rank = w->rank}};
    for (int d = 0; d < w->rank; d++) {
        out->box.spans[d] = (dtm_span){0, w->dims[d].size};
        int64_t stride = 1;
        for (int e = b->rank - 1; e >= 0; stride *= box.spans[e--].size) {
            if (strcmp(rank->plan->extents[b->dims[e]].dim, w->dims[d].name) != 0) continue;
            out->box.spans[d] = box.spans[e];
            out->strides[d] = stride;
            lacks = lacks || e != d;
        }
    }
    return lacks;
}

static float *spread_out(const spread *s, const float *from, dtm_status *status) {
    int64_t elements = dtm_box_elements(&s->box);
    float *to = malloc((size_t)elements * sizeof *to + 1);
    if (!to) dtm_status_fail(status, "out of memory for a gradient of %lld elements", (long long)elements);
    for (int64_t i = 0; to && i < elements; i++) {
        int64_t rest = i, at = 0;
        for (int d = s->box.rank - 1; d >= 0; d--) {
            at += rest % s->box.spans[d].size * s->strides[d];
            rest /= s->box.spans[d].size;
        }
        to[i] = from[at];
    }
    return to;
}

bool dtm_gradient_write(dtm_rank *rank, const dtm_plan_io *gradient, dtm_status *status) {
    const dtm_plan_weight *w = &rank->plan->weights[gradient->index];
    output *out = &rank->gradients->out;
    dtm_box held = dtm_rank_box(rank, gradient->buffer);
    float *made = NULL;
    spread s;
    if (out->list.held_before[gradient->index] || !dtm_rank_owns(rank, gradient->buffer)) return true;
    bool lacks = spread_of(rank, w, gradient->buffer, &s);
    if (dtm_box_elements(&s.box) == 0) return true;
    const void *data = dtm_rank_read(rank, dtm_rank_buffer(rank, gradient->buffer), dtm_box_elements(&held) * (int64_t)sizeof(float), status);
    if (lacks && data) data = made = spread_out(&s, data, status);
    int64_t begin[DTM_PLAN_RANK], end[DTM_PLAN_RANK], copy = rank->copies[rank->plan->buffers[w->buffer].loop];
    bounds_of(&s.box, begin, end);
    bool ok =
        data && dtm_safetensors_write(out->writer, out->list.first[gradient->index] + copy, begin, end, data, status);
    free(made);
    return ok;
}

bool dtm_gradients_end(dtm_rank *rank, dtm_status *status) {
    bool ok = end_output(rank, &rank->gradients->out, status);
    free(rank->gradients);
    rank->gradients = NULL;
    return ok;
}

void dtm_gradients_drop(dtm_rank *rank) {
    if (!rank->gradients) return;
    output *out = &rank->gradients->out;
    dtm_status ignored = {0};
    if (out->writer) dtm_safetensors_writer_close(out->writer, &ignored);
    if (out->created) dtm_safetensors_discard(out->path);
    if (out->layout) dtm_safetensors_layout_free(out->layout);
    free_list(&out->list);
    free(rank->gradients);
    rank->gradients = NULL;
}
