/* Modules from PTX, functions and their attributes, launches. A cubin is refused as one of another GPU would be, after its architecture and
 * entries were looked at: the caller's fallback to PTX is what runs. */
#include "driver.h"

#include <elf.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

struct module { struct object object; struct sim_module *code; int references; };
struct function { struct object object; struct module *module; const struct sim_function *code; struct sim_attributes about; int dynamic_shared; struct form { uint64_t hash; long launches; } *forms; int n_forms; };
static _Thread_local struct extent *declared;
static _Thread_local int n_declared; /* -1: nothing was said, as 0 */
static _Thread_local bool has_declared;
enum { MOST_NAMES = 256 };
static _Thread_local char cubin_names[MOST_NAMES][128]; /* of the cubin that the thread tried last */
static _Thread_local int n_cubin_names;

/* What a thread has declared goes with it. */
static pthread_key_t declared_key;
static void make_key(void) { pthread_key_create(&declared_key, free); }

EXPORT void dtm_sim_declare(const dtm_sim_buffer *buffers, int n) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    free(declared);
    declared = fresh((size_t)n, sizeof *declared);
    pthread_setspecific(declared_key, declared);
    n_declared = n, has_declared = true;
    for (int i = 0; i < n; i++) {
        declared[i] = (struct extent){.at = buffers[i].at, .bytes = buffers[i].bytes, .direction = buffers[i].direction};
        snprintf(declared[i].name, sizeof declared[i].name, "%s", buffers[i].name ? buffers[i].name : "?");
    }
}

/* Whether work lies in what was declared for it, if anything was. */
bool hold_declared(const struct task *t) {
    bool right = true;
    for (int i = 0; has_declared && i < t->n_extents && right; i++) {
        const struct extent *e = &t->extents[i];
        int left = e->bytes ? e->direction & 3 : 0;
        for (int k = 0; k < n_declared; k++)
            if (e->at >= declared[k].at && e->at + e->bytes <= declared[k].at + declared[k].bytes)
                left &= ~declared[k].direction;
        if (left)
            say("%s: %s %s (0x%llx, %zu bytes), which was not declared", t->name, left & DTM_SIM_WRITE ? "writes" : "reads", e->name,
                (unsigned long long)e->at, e->bytes);
        right = !left;
    }
    has_declared = false;
    return right;
}

/* ---- modules ---- */

static void note_cubin(const char *image) {
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    int architecture = (int)(head.e_flags >> 8 & 255);
    if (architecture != sim.architecture)
        say("cuModuleLoadDataEx: a cubin for sm_%d on a device of sm_%d", architecture, sim.architecture);
    n_cubin_names = 0;
    const char *names = NULL;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < head.e_shnum; i++) {
            Elf64_Shdr s;
            memcpy(&s, image + head.e_shoff + (size_t)i * head.e_shentsize, sizeof s);
            if (!pass && i == head.e_shstrndx)
                names = image + s.sh_offset;
            if (pass && names && !strncmp(names + s.sh_name, ".text.", 6) && n_cubin_names < MOST_NAMES)
                snprintf(cubin_names[n_cubin_names++], sizeof cubin_names[0], "%s", names + s.sh_name + 6);
        }
    if (!n_cubin_names)
        say("cuModuleLoadDataEx: a cubin without kernels");
}
static void hold_names(const struct sim_module *code) {
    for (int i = 0; i < n_cubin_names; i++)
        if (!sim_function_find(code, cubin_names[i]))
            say("cuModuleLoadDataEx: the cubin before had the kernel %s, this PTX has not", cubin_names[i]);
    n_cubin_names = 0;
}
/* What follows a directive at the beginning of a line. */
static const char *directive(const char *text, const char *name) {
    for (const char *p = text; (p = strstr(p, name)); p++)
        if (p == text || p[-1] == '\n')
            return p + strlen(name);
    return "";
}
static int check_target(const char *text, char *error, size_t size) {
    int major = 0, minor = 0, target = 0;
    char suffix = 0;
    sscanf(directive(text, ".version "), "%d.%d", &major, &minor);
    if (major > 9 || (major == 9 && minor > 0))
        return snprintf(error, size, "PTX version %d.%d", major, minor), PTX_TOO_NEW;
    sscanf(directive(text, ".target "), "sm_%d%c", &target, &suffix);
    bool own = suffix == 'a' || suffix == 'f';
    if (target > sim.architecture || (own && target != sim.architecture))
        return snprintf(error, size, "PTX for sm_%d%s on a device of sm_%d", target, own ? "a" : "", sim.architecture), INVALID_PTX;
    return OK;
}
static void log_error(unsigned count, const dtm_cu_jit_option *options, void **values, const char *text) {
    char *to = NULL;
    size_t size = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == DTM_CU_JIT_ERROR_LOG)
            to = values[i];
        if (options[i] == DTM_CU_JIT_ERROR_LOG_BYTES)
            size = (size_t)(uintptr_t)values[i];
    }
    if (to && size)
        snprintf(to, size, "%s", text);
}
dtm_cu_result fake_ModuleLoadDataEx(dtm_cu_module *out, const void *image, unsigned count, dtm_cu_jit_option *options, void **values) {
    int error = enter_unsafe();
    char text[400] = "";
    struct sim_module *code = NULL;
    if (!error && !memcmp(image, ELFMAG, SELFMAG)) {
        note_cubin(image);
        error = NO_BINARY;
    }
    if (!error)
        error = check_target(image, text, sizeof text);
    if (!error) {
        code = sim_module_load(image, strlen(image), text, sizeof text);
        error = code ? OK : INVALID_PTX;
    }
    if (*text) {
        log_error(count, options, values, text);
        say("cuModuleLoadDataEx: %s", text);
    }
    if (code) {
        hold_names(code);
        struct module *m = object_new(MODULE, sizeof *m);
        m->code = code, m->references = 1;
        *out = (dtm_cu_module)(void *)m;
    }
    unlock();
    return error;
}
static void module_release(struct module *m) {
    if (--m->references == 0)
        sim_module_free(m->code);
}
dtm_cu_result fake_ModuleUnload(dtm_cu_module module) {
    int error = enter_unsafe();
    struct module *m = error ? NULL : object_of(module, MODULE, "cuModuleUnload", false);
    for (struct op *op = pending; m && op; op = op->next_pending)
        if (op->task->doing == LAUNCHES && op->task->code.function->module == m) {
            say("cuModuleUnload: '%s' of stream %d is not done", op->task->name, op->stream->number);
            break;
        }
    if (m) {
        m->object.dead = true;
        for (struct object *o = sim.objects; o; o = o->next)
            if (o->kind == FUNCTION && ((struct function *)(void *)o)->module == m)
                o->dead = true;
        module_release(m);
    }
    unlock();
    return error ? error : m ? OK : INVALID_HANDLE;
}
dtm_cu_result fake_ModuleGetFunction(dtm_cu_function *out, dtm_cu_module module, const char *name) {
    int error = enter();
    struct module *m = error ? NULL : object_of(module, MODULE, "cuModuleGetFunction", false);
    if (!error && !m)
        error = INVALID_HANDLE;
    const struct sim_function *code = error ? NULL : sim_function_find(m->code, name);
    if (!error && !code)
        error = NOT_FOUND;
    if (!error) {
        struct function *f = NULL;
        for (struct object *o = sim.objects; o && !f; o = o->next)
            if (o->kind == FUNCTION && ((struct function *)(void *)o)->code == code && !o->dead)
                f = (struct function *)(void *)o;
        if (!f) {
            f = object_new(FUNCTION, sizeof *f);
            f->module = m, f->code = code, f->about = sim_function_attributes(code);
            f->dynamic_shared = (48 << 10) - (int)f->about.static_shared;
        }
        *out = (dtm_cu_function)(void *)f;
    }
    unlock();
    return error;
}

/* ---- attributes ---- */

static int most_shared(void) {
    int value = 0;
    fake_DeviceGetAttribute(&value, DTM_CU_SHARED_OPTIN_BYTES, 0);
    return value;
}
dtm_cu_result fake_FuncSetAttribute(dtm_cu_function function, dtm_cu_function_attribute attribute, int value) {
    int error = enter();
    struct function *f = error ? NULL : object_of(function, FUNCTION, "cuFuncSetAttribute", false);
    if (!error && !f)
        error = INVALID_HANDLE;
    if (!error && dtm_sim_mutated("optin", f->about.name)) {
        error = OK;
    } else if (!error && attribute == 9) { /* how much of the cache it would like */
        error = value < -1 || value > 100 ? INVALID_VALUE : OK;
    } else if (!error) {
        bool right = attribute == DTM_CU_FUNCTION_SHARED_DYNAMIC && value >= 0 && value + (int)f->about.static_shared <= most_shared();
        error = right ? OK : INVALID_VALUE;
        if (right)
            f->dynamic_shared = value;
    }
    unlock();
    return error;
}
enum { REGISTERS = 32 }; /* PTX does not say: enough for full occupancy */
dtm_cu_result fake_FuncGetAttribute(int *value, dtm_cu_function_attribute attribute, dtm_cu_function function) {
    int error = enter();
    struct function *f = error ? NULL : object_of(function, FUNCTION, "cuFuncGetAttribute", false);
    if (!error && !f)
        error = INVALID_HANDLE;
    if (!error)
        switch (attribute) {
        case 0: *value = f->about.max_threads ? (int)f->about.max_threads : 1024; break;
        case DTM_CU_FUNCTION_SHARED_STATIC: *value = (int)f->about.static_shared; break;
        case DTM_CU_FUNCTION_LOCAL: *value = (int)f->about.local; break;
        case DTM_CU_FUNCTION_REGISTERS: *value = f->about.registers ? f->about.registers : REGISTERS; break;
        case DTM_CU_FUNCTION_SHARED_DYNAMIC: *value = f->dynamic_shared; break;
        default: error = INVALID_VALUE;
        }
    unlock();
    return error;
}
dtm_cu_result fake_OccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, dtm_cu_function function, int threads, size_t shared) {
    int error = enter();
    struct function *f = error ? NULL : object_of(function, FUNCTION, "cuOccupancyMaxActiveBlocksPerMultiprocessor", false);
    if (!error && (!f || threads <= 0 || threads > 1024))
        error = f ? INVALID_VALUE : INVALID_HANDLE;
    if (!error) {
        int warps = (threads + 31) / 32 * 32, by_threads = 2048 / warps, by_registers = 65536 / (REGISTERS * warps);
        int by_shared = (most_shared() + 1024) / ((int)shared + (int)f->about.static_shared + 1024);
        int n = by_threads < by_registers ? by_threads : by_registers;
        n = n < by_shared ? n : by_shared;
        *blocks = shared > (size_t)f->dynamic_shared || (f->about.max_threads && threads > (int)f->about.max_threads) ? 0 : n > 32 ? 32 : n;
    }
    unlock();
    return error;
}
dtm_cu_result fake_TensorMapEncodeTiled(dtm_cu_tensor_map *out, dtm_cu_tensor_type type, uint32_t rank, void *at, const uint64_t *sizes,
                                        const uint64_t *strides, const uint32_t *box, const uint32_t *steps, dtm_cu_tensor_interleave interleave,
                                        dtm_cu_tensor_swizzle swizzle, dtm_cu_tensor_promotion promotion, dtm_cu_tensor_fill fill) {
    (void)out, (void)type, (void)rank, (void)at, (void)sizes, (void)strides, (void)box, (void)steps, (void)interleave, (void)swizzle;
    (void)promotion, (void)fill;
    return NOT_SUPPORTED;
}

/* ---- launches ---- */

static int check_launch(const dtm_cu_launch *l, const struct function *f, const struct stream *s, void **arguments, void **extra) {
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    const char *name = f->about.name;
    if (s->object.device != f->object.device)
        return say("%s: the kernel and stream %d are of two contexts", name, s->number), INVALID_HANDLE;
    if (!l->grid[0] || !l->grid[1] || !l->grid[2] || l->grid[0] > INT32_MAX || l->grid[1] > 65535 || l->grid[2] > 65535)
        return say("%s: a grid of %u x %u x %u blocks", name, l->grid[0], l->grid[1], l->grid[2]), INVALID_VALUE;
    if (!threads || threads > 1024 || l->block[2] > 64 || (f->about.max_threads && threads > f->about.max_threads) ||
        (f->about.exact_threads && threads != f->about.max_threads))
        return say("%s: blocks of %llu threads; it was compiled for %u", name, (unsigned long long)threads, f->about.max_threads), INVALID_VALUE;
    if (l->shared_bytes > (unsigned)f->dynamic_shared)
        return say("%s: %u bytes of dynamic shared memory, of %d that it may have (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)", name,
                   l->shared_bytes, f->dynamic_shared), INVALID_VALUE;
    if (extra || (!arguments && f->about.n_params))
        return say("%s: parameters in another way than as an array", name), INVALID_VALUE;
    for (unsigned i = 0; i < l->n_attributes; i++)
        if (l->attributes[i].id != DTM_CU_LAUNCH_PRIORITY && l->attributes[i].id != 0)
            return say("%s: attribute %d of a launch, which the stand-in does not know", name, l->attributes[i].id), NOT_SUPPORTED;
    if (sim.checks > 1 && !has_declared)
        return say("%s: nobody has declared what it touches", name), INVALID_VALUE;
    return OK;
}
/* The addresses of a block of parameters, as the words of it look. */
static void mutate_addresses(char *params, size_t size, const char *name) {
    bool base = dtm_sim_mutated("base", name), swap = dtm_sim_mutated("swap", name);
    uint64_t at[16], n = 0;
    for (size_t i = 0; i + 8 <= size && (base || swap); i += 8) {
        uint64_t x;
        memcpy(&x, params + i, 8);
        if (!device_at(x)) {
            if (n)
                swap = false; /* those in a row are of one tuple: each has got its neighbour's place */
            continue;
        }
        if (base)
            x += 64;
        memcpy(params + i, &x, 8);
        if (!swap)
            continue;
        at[n++ % 16] = x;
        if (n > 1)
            memcpy(params + i - 8, &x, 8), memcpy(params + i, &at[0], 8);
    }
}
static int by_address(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : 0;
}
/* What was declared, each extent once. */
static void take_declared(struct task *t, const char *name) {
    int writes = 0;
    while (writes < n_declared && !(declared[writes].direction & SIM_WRITE))
        writes++;
    if (writes < n_declared && dtm_sim_mutated("undeclared", name))
        declared[writes].direction = SIM_READ;
    if (n_declared)
        qsort(declared, (size_t)n_declared, sizeof *declared, by_address);
    for (int i = 0; i < n_declared; i++) {
        struct extent *last = t->n_extents ? &t->extents[t->n_extents - 1] : NULL;
        if (!declared[i].bytes)
            continue;
        if (last && !by_address(last, &declared[i]))
            last->direction |= declared[i].direction;
        else
            task_touch(t, declared[i].name, declared[i].at, declared[i].bytes, declared[i].direction);
    }
    t->code.declared = true;
}
dtm_cu_result fake_LaunchKernelEx(const dtm_cu_launch *launch, dtm_cu_function function, void **arguments, void **extra) {
    int error = enter();
    struct function *f = error ? NULL : object_of(function, FUNCTION, "cuLaunchKernelEx", false);
    const char *name = f ? f->about.name : "?";
    bool lost = dtm_sim_mutated("launch", name);
    dtm_cu_launch changed = *launch;
    changed.grid[0] -= changed.grid[0] > 1 && dtm_sim_mutated("grid", name);
    changed.shared_bytes /= changed.shared_bytes && dtm_sim_mutated("shared", name) ? 2 : 1;
    changed.stream = dtm_sim_mutated("legacy", name) ? NULL : changed.stream;
    launch = &changed;
    struct stream *s = error ? NULL : object_of(launch->stream, STREAM, "cuLaunchKernelEx", false);
    struct object *other = s ? sim.objects : NULL; /* another stream of the device */
    while (other && (other == &s->object || other->kind != STREAM || other->device != s->object.device || other->dead))
        other = other->next;
    if (other && dtm_sim_mutated("stream", name))
        s = (struct stream *)(void *)other;
    if (!error)
        error = !f || !s ? INVALID_HANDLE : check_launch(launch, f, s, arguments, extra);
    if (!error && !lost) {
        struct task *t = task_new(LAUNCHES, s->object.device, f->about.name);
        struct code *c = &t->code;
        *c = (struct code){.function = f, .shared = launch->shared_bytes, .params_size = f->about.params_size};
        memcpy(c->grid, launch->grid, sizeof c->grid), memcpy(c->block, launch->block, sizeof c->block);
        c->params = fresh(1, c->params_size);
        for (int i = 0; i < f->about.n_params; i++)
            memcpy(c->params + f->about.params[i].offset, arguments[i], f->about.params[i].size);
        mutate_addresses(c->params, c->params_size, name);
        f->module->references++;
        if (has_declared)
            take_declared(t, name);
        error = enqueue(s, t);
    }
    has_declared = false;
    unlock();
    return error;
}
void code_release(struct task *t) {
    free(t->code.params);
    module_release(t->code.function->module);
}
static int error_of(const struct sim_reports *reports) {
    enum sim_check first = reports->n ? reports->report[0].check : SIM_LIMIT;
    return first == SIM_ALIGNMENT ? MISALIGNED : first == SIM_TRAP ? LAUNCH_FAILED : first == SIM_DEADLOCK ? LAUNCH_TIMEOUT : ILLEGAL_ADDRESS;
}
static void say_reports(const struct sim_reports *reports) {
    for (int i = 0; i < reports->n; i++) {
        char *text = NULL;
        size_t size;
        FILE *to = open_memstream(&text, &size);
        sim_report_print(&reports->report[i], to);
        fclose(to);
        say("%.*s", (int)(size ? size - 1 : 0), text);
        free(text);
    }
}
/* Whether races within the launch are looked for: in the first two of a kernel with that grid, then in one of so many. */
static bool looks_for_races(struct function *f, const struct code *c) {
    uint64_t hash = ((uint64_t)c->grid[0] << 40) ^ ((uint64_t)c->grid[1] << 24) ^ ((uint64_t)c->grid[2] << 12) ^ c->shared;
    if (!sim.checks || sim.sample <= 1)
        return sim.checks;
    lock();
    int i = 0;
    while (i < f->n_forms && f->forms[i].hash != hash)
        i++;
    if (i == f->n_forms) {
        f->forms = realloc(f->forms, sizeof *f->forms * (size_t)(i + 1));
        if (!f->forms)
            abort();
        f->forms[f->n_forms++] = (struct form){hash, 0};
    }
    bool yes = f->forms[i].launches++ < 2 || drawn((uint64_t)sim.sample) == 0;
    unlock();
    return yes;
}
int run_launch(struct op *op) {
    const struct task *t = op->task;
    const struct code *c = &t->code;
    struct sim_buffer *buffers = fresh((size_t)t->n_extents, sizeof *buffers);
    for (int i = 0; i < t->n_extents; i++)
        buffers[i] = (struct sim_buffer){t->extents[i].name, (const void *)(uintptr_t)t->extents[i].at, t->extents[i].bytes, t->extents[i].direction & 3};
    uint64_t lot = (op->number * UINT64_C(0x9e3779b97f4a7c15)) ^ (sim.seed * UINT64_C(0xbf58476d1ce4e5b9));
    lot ^= lot >> 31;
    struct sim_launch launch = {.function = c->function->code, .dynamic_shared = c->shared, .params = c->params, .params_size = c->params_size,
                                .buffers = c->declared ? buffers : NULL, .n_buffers = t->n_extents, .name = t->name, .seed = lot,
                                .warps = (enum sim_order)(lot % 3), .random_groups = lot >> 8 & 1, .blocks = (enum sim_order)((lot >> 16) % 3),
                                .resident = 1 + (int)((lot >> 24) % 3), .copies = (enum sim_copies)((lot >> 32) % 3), .unchecked = !looks_for_races(c->function, c)};
    memcpy(launch.grid, c->grid, sizeof launch.grid), memcpy(launch.block, c->block, sizeof launch.block);
    struct sim_reports *reports = fresh(1, sizeof *reports);
    bool right = sim_launch_run(t->device->memory, &launch, reports) && !reports->total;
    say_reports(reports);
    int error = right ? OK : error_of(reports);
    free(reports), free(buffers);
    return error;
}
