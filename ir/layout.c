/* Types, their interning, and the block law of layouts (ir.h, opening comment). */
#include "ir/ir.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t bytes;
    double least;
} dtypes[DTM_DTYPES] = {{"f32", 4, -INFINITY}, {"f16", 2, -INFINITY}, {"bf16", 2, -INFINITY},
                        {"i32", 4, INT32_MIN}, {"u8", 1, 0},          {"bool", 1, 0}};

const char *dtm_dtype_name(dtm_dtype dtype) {
    return dtypes[dtype].name;
}
bool dtm_dtype_is_half(dtm_dtype dtype) { return dtype == DTM_F16 || dtype == DTM_BF16; }
bool dtm_dtype_is_float(dtm_dtype dtype) { return dtype == DTM_F32 || dtm_dtype_is_half(dtype); }

int64_t dtm_dtype_bytes(dtm_dtype dtype) {
    return dtypes[dtype].bytes;
}
double dtm_least(dtm_dtype dtype) {
    return dtypes[dtype].least;
}

/* ---- blocks ---- */

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Cuts [*begin, *begin + *size) to block `index` of `parts`. */
static void cut(int64_t parts, int64_t unit, int64_t index, bool balanced, int64_t *begin, int64_t *size) {
    int64_t n = *size, low, high;
    if (balanced) { /* a time axis: sizes differ by at most one unit */
        int64_t units = ceil_div(n, unit);
        low = least(n, index * units / parts * unit);
        high = least(n, (index + 1) * units / parts * unit);
    } else {
        int64_t block = ceil_div(ceil_div(n, unit), parts) * unit;
        low = least(n, index * block);
        high = least(n, (index + 1) * block);
    }
    *begin += low;
    *size = high - low;
}

void dtm_block_of(const dtm_mesh *mesh, int64_t n, const dtm_dim_layout *layout, const int64_t *coordinates,
                  int64_t *begin, int64_t *size) {
    *begin = 0;
    *size = n;
    for (int i = 0; i < layout->count; i++) {
        const dtm_axis_data *axis = &mesh->axes[layout->splits[i].axis];
        cut(axis->size, layout->splits[i].unit, coordinates[layout->splits[i].axis], axis->time, begin, size);
    }
}

void dtm_block(const dtm_module *module, const dtm_type_data *type, int index, const int64_t *coordinates,
               int64_t *begin, int64_t *size) {
    dtm_block_of(&module->settings.mesh, module->dims[type->dims[index]].size, &type->layout[index], coordinates, begin,
                 size);
}

static size_t add_size(int64_t *sizes, size_t count, int64_t size) {
    for (size_t i = 0; i < count; i++)
        if (sizes[i] == size) return count;
    if (size) sizes[count++] = size;
    return count;
}

/* The sizes of blocks that one cut of n elements makes, but for empty ones. */
static size_t sizes_of_cut(int64_t n, int64_t parts, int64_t unit, bool balanced, int64_t *sizes) {
    int64_t units = ceil_div(n, unit), missing = units * unit - n; /* from the last unit */
    if (!balanced) {
        int64_t block = ceil_div(units, parts) * unit;
        if (block > n) return add_size(sizes, 0, n);
        return add_size(sizes, add_size(sizes, 0, block), n % block);
    }
    int64_t less = units / parts, more = units % parts; /* so many blocks have a unit more, the last among them */
    size_t count = add_size(sizes, 0, (less + (more > 0)) * unit - missing);
    if (more > 1) count = add_size(sizes, count, (less + 1) * unit);
    if (more ? parts > more : parts > 1) count = add_size(sizes, count, less * unit);
    return count;
}

size_t dtm_block_sizes(const dtm_mesh *mesh, int64_t n, const dtm_dim_layout *layout, int64_t sizes[DTM_MAX_BLOCK_SIZES]) {
    size_t count = add_size(sizes, 0, n);
    for (int i = 0; i < layout->count; i++) {
        int64_t next[DTM_MAX_BLOCK_SIZES], made[3];
        size_t n_next = 0;
        const dtm_axis_data *axis = &mesh->axes[layout->splits[i].axis];
        for (size_t k = 0; k < count; k++) {
            size_t n_made = sizes_of_cut(sizes[k], axis->size, layout->splits[i].unit, axis->time, made);
            for (size_t m = 0; m < n_made; m++) n_next = add_size(next, n_next, made[m]);
        }
        memcpy(sizes, next, n_next * sizeof *next);
        count = n_next;
    }
    return count;
}

/* Coordinates 0 have the largest ceil-block; of balanced (time) blocks the last is the largest. */
int64_t dtm_block_max(const dtm_module *module, const dtm_type_data *type, int index) {
    int64_t coordinates[DTM_MAX_AXES] = {0}, begin, size;
    const dtm_mesh *mesh = &module->settings.mesh;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].time) coordinates[a] = mesh->axes[a].size - 1;
    dtm_block(module, type, index, coordinates, &begin, &size);
    return size;
}

int64_t dtm_local_elements_max(const dtm_module *module, dtm_type type) {
    const dtm_type_data *data = dtm_type_get(module, type);
    int64_t elements = 1;
    for (int i = 0; i < data->rank; i++) elements *= dtm_block_max(module, data, i);
    return elements;
}

int64_t dtm_local_bytes_max(const dtm_module *module, dtm_type type) {
    return dtm_local_elements_max(module, type) * dtm_dtype_bytes(dtm_type_get(module, type)->dtype);
}

const char *dtm_dims_text(const dtm_module *module, dtm_arena *arena, const dtm_dim *dims, int rank, const char *between) {
    dtm_text text = {.arena = arena};
    for (int d = 0; d < rank; d++)
        dtm_text_printf(&text, "%s%s = %lld", d ? between : "", dtm_dim_name(module, dims[d]),
                        (long long)module->dims[dims[d]].size);
    return rank ? text.data : "";
}

bool dtm_dims_countable(const dtm_module *module, const dtm_dim *dims, int rank) {
    int64_t elements = 1;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(elements, module->dims[dims[i]].size, &elements)) return false;
    return elements <= (int64_t)1 << 60;
}

int64_t dtm_type_elements(const dtm_module *module, dtm_type type) {
    const dtm_type_data *data = dtm_type_get(module, type);
    int64_t elements = 1;
    for (int i = 0; i < data->rank; i++) elements *= module->dims[data->dims[i]].size;
    return elements;
}

/* ---- the mesh ---- */

int64_t dtm_mesh_ranks(const dtm_mesh *mesh) {
    int64_t ranks = 1;
    for (int a = 0; a < mesh->count; a++)
        if (!mesh->axes[a].time) ranks *= mesh->axes[a].size;
    return ranks;
}

void dtm_mesh_coordinates(const dtm_mesh *mesh, int64_t rank, int64_t *coordinates) {
    for (int a = mesh->count - 1; a >= 0; a--) {
        coordinates[a] = mesh->axes[a].time ? 0 : rank % mesh->axes[a].size;
        if (!mesh->axes[a].time) rank /= mesh->axes[a].size;
    }
}

uint8_t dtm_axis_find(const dtm_module *module, dtm_string name) {
    const dtm_mesh *mesh = &module->settings.mesh;
    for (uint8_t a = 0; a < mesh->count; a++)
        if (mesh->axes[a].name == name) return a;
    return DTM_NO_AXIS;
}

/* ---- types ---- */

/* Whether blocks of n elements are others in units of `unit` than in units of 1. */
static bool unit_matters_in(int64_t n, const dtm_axis_data *axis, int64_t unit) {
    int64_t parts = axis->size, b0, s0, b1, s1;
    if (!axis->time) /* the first block says it, unless it is all there is */
        return n > 1 && ceil_div(n, parts) != ceil_div(ceil_div(n, unit), parts) * unit;
    if (n % unit == 0 && n / unit % parts == 0) return false;
    for (int64_t i = 0; i < parts; i++) {
        b0 = b1 = 0, s0 = s1 = n;
        cut(parts, 1, i, true, &b0, &s0);
        cut(parts, unit, i, true, &b1, &s1);
        if (s0 != s1 || (s0 && b0 != b1)) return true;
    }
    return false;
}

/* The same of parts that may themselves be uneven blocks of the axes before it: it depends on nothing but their sizes. */
static bool unit_matters(const dtm_mesh *mesh, int64_t n, const dtm_dim_layout *layout, int index) {
    int64_t sizes[DTM_MAX_BLOCK_SIZES];
    dtm_dim_layout before = *layout;
    before.count = (uint8_t)index;
    size_t count = dtm_block_sizes(mesh, n, &before, sizes);
    for (size_t i = 0; i < count; i++)
        if (unit_matters_in(sizes[i], &mesh->axes[layout->splits[index].axis], layout->splits[index].unit)) return true;
    return false;
}

static dtm_type_data normalised(const dtm_module *module, const dtm_type_data *data) {
    const dtm_mesh *mesh = &module->settings.mesh;
    dtm_type_data type;
    memset(&type, 0, sizeof type);
    type.dtype = data->dtype;
    type.rank = data->rank;
    for (int a = 0; a < mesh->count; a++)
        if (mesh->axes[a].size > 1) {
            type.sum |= data->sum & (uint16_t)(1 << a);
            type.max |= data->max & (uint16_t)(1 << a);
        }
    for (int i = 0; i < data->rank; i++) {
        type.dims[i] = data->dims[i];
        dtm_dim_layout *layout = &type.layout[i];
        for (int s = 0; s < data->layout[i].count; s++) {
            dtm_split split = data->layout[i].splits[s];
            if (mesh->axes[split.axis].size == 1) continue;
            layout->splits[layout->count].axis = split.axis;
            layout->splits[layout->count].unit = split.unit;
            layout->count++;
            if (split.unit != 1 && !unit_matters(mesh, module->dims[data->dims[i]].size, layout, layout->count - 1))
                layout->splits[layout->count - 1].unit = 1;
        }
    }
    return type;
}

/* By words: there are many zeros to go through. */
static size_t type_hash(const dtm_type_data *type) {
    uint64_t hash = 1469598103934665603u, word;
    _Static_assert(sizeof *type % sizeof word == 0, "a type is a whole number of words");
    for (size_t i = 0; i < sizeof *type / sizeof word; i++) {
        memcpy(&word, (const unsigned char *)type + i * sizeof word, sizeof word);
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return (size_t)hash;
}

static void grow_type_table(dtm_module *module) {
    size_t size = module->type_table_size ? module->type_table_size * 2 : 256;
    uint32_t *table = dtm_arena_alloc(module->arena, size * sizeof *table);
    for (dtm_type t = 1; t < module->n_types; t++) {
        size_t slot = type_hash(&module->types[t]) & (size - 1);
        while (table[slot]) slot = (slot + 1) & (size - 1);
        table[slot] = t;
    }
    module->type_table = table;
    module->type_table_size = size;
}

dtm_type dtm_type_intern(dtm_module *module, const dtm_type_data *data) {
    dtm_type_data type = normalised(module, data);
    if (module->n_types * 2 >= module->type_table_size) grow_type_table(module);
    size_t slot = type_hash(&type) & (module->type_table_size - 1);
    for (; module->type_table[slot]; slot = (slot + 1) & (module->type_table_size - 1))
        if (memcmp(&module->types[module->type_table[slot]], &type, sizeof type) == 0) return module->type_table[slot];
    DTM_PUSH(module->arena, module->types, module->n_types, module->cap_types, type);
    module->type_table[slot] = (uint32_t)(module->n_types - 1);
    return module->type_table[slot];
}

dtm_type dtm_type_make(dtm_module *module, dtm_dtype dtype, uint8_t rank, const dtm_dim *dims) {
    dtm_type_data data;
    memset(&data, 0, sizeof data);
    data.dtype = (uint8_t)dtype;
    data.rank = rank;
    for (int i = 0; i < rank; i++) data.dims[i] = dims[i];
    return dtm_type_intern(module, &data);
}

dtm_type dtm_type_scalar(dtm_module *module, dtm_dtype dtype) {
    return dtm_type_make(module, dtype, 0, NULL);
}

dtm_type dtm_type_whole(dtm_module *module, dtm_type type) {
    dtm_type_data data = *dtm_type_get(module, type);
    return dtm_type_make(module, (dtm_dtype)data.dtype, data.rank, data.dims);
}

int dtm_type_dim_index(const dtm_type_data *type, dtm_dim dim) {
    for (int i = 0; i < type->rank; i++)
        if (type->dims[i] == dim) return i;
    return -1;
}

bool dtm_type_same_shape(const dtm_type_data *a, const dtm_type_data *b) {
    return a->dtype == b->dtype && a->rank == b->rank && memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}

uint16_t dtm_type_split_axes(const dtm_type_data *type) {
    uint16_t axes = 0;
    for (int i = 0; i < type->rank; i++)
        for (int s = 0; s < type->layout[i].count; s++) axes |= (uint16_t)(1 << type->layout[i].splits[s].axis);
    return axes;
}

int dtm_type_axis_dim(const dtm_type_data *type, uint8_t axis) {
    for (int i = 0; i < type->rank; i++)
        for (int s = 0; s < type->layout[i].count; s++)
            if (type->layout[i].splits[s].axis == axis) return i;
    return -1;
}

static void print_axes(const dtm_module *module, const char *word, uint16_t axes, dtm_text *out) {
    const char *before = word;
    for (int a = 0; a < module->settings.mesh.count; a++)
        if (axes & (1 << a)) {
            dtm_text_printf(out, "%s%s", before, dtm_string_text(module->context, module->settings.mesh.axes[a].name));
            before = ".";
        }
}

void dtm_type_print(const dtm_module *module, dtm_type type, bool with_layout, dtm_text *out) {
    const dtm_type_data *data = dtm_type_get(module, type);
    dtm_text_printf(out, "%s[", dtm_dtype_name((dtm_dtype)data->dtype));
    for (int i = 0; i < data->rank; i++) {
        dtm_text_printf(out, "%s%s", i ? ", " : "", dtm_dim_name(module, data->dims[i]));
        if (!with_layout) continue;
        dtm_text_printf(out, "=%lld", (long long)module->dims[data->dims[i]].size);
        for (int s = 0; s < data->layout[i].count; s++) {
            dtm_split split = data->layout[i].splits[s];
            dtm_text_printf(out, "%s%s", s ? "." : "@",
                            dtm_string_text(module->context, module->settings.mesh.axes[split.axis].name));
            if (split.unit > 1) dtm_text_printf(out, ":%u", split.unit);
        }
    }
    dtm_text_printf(out, "]");
    if (data->sum) print_axes(module, " sum@", data->sum, out);
    if (data->max) print_axes(module, " max@", data->max, out);
}
