/* Which ranks along a pipeline's axis take part in a sum, as a text: "0, 3-5". One set has one text: ascending, and what is
 * adjacent is one range. */
#include "ir/ir.h"

#include <stdlib.h>

/* Takes the next range off the text; false: there is none, and `*at` is its end or what is no range. */
static bool next_range(const char **at, int64_t *first, int64_t *last) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    *first = *last = strtoll(*at, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtoll(end + 1, &end, 10);
    bool more = end[0] == ',' && end[1] == ' ' && end[2] >= '0' && end[2] <= '9';
    *at = more ? end + 2 : end;
    return true;
}

static const char *text_of(const dtm_module *module, const dtm_op_data *op) {
    return op->attributes.members ? dtm_string_text(module->context, op->attributes.members) : "";
}

dtm_string dtm_members_of(dtm_context *context, dtm_arena *scratch, const bool *members, int64_t ranks) {
    dtm_text text = {scratch, NULL, 0, 0};
    for (int64_t r = 0, last; r < ranks; r = last + 1) {
        last = r;
        if (!members[r]) continue;
        while (last + 1 < ranks && members[last + 1]) last++;
        dtm_text_printf(&text, "%s%lld", text.length ? ", " : "", (long long)r);
        if (last > r) dtm_text_printf(&text, "-%lld", (long long)last);
    }
    return dtm_string_of(context, text.length ? text.data : "");
}

int64_t dtm_members_below(const dtm_module *module, const dtm_op_data *op, int64_t rank) {
    const char *at = text_of(module, op);
    int64_t count = 0, first, last;
    while (next_range(&at, &first, &last))
        if (first < rank) count += (last < rank ? last + 1 : rank) - first;
    return count;
}

int64_t dtm_collective_members(const dtm_module *module, const dtm_op_data *op) {
    return op->attributes.members ? dtm_members_below(module, op, INT64_MAX) : 0;
}

bool dtm_is_member(const dtm_module *module, const dtm_op_data *op, int64_t rank) {
    return !op->attributes.members || dtm_members_below(module, op, rank + 1) > dtm_members_below(module, op, rank);
}

bool dtm_members_are_good(const dtm_module *module, const dtm_op_data *op, int64_t ranks) {
    const char *at = text_of(module, op);
    int64_t before = -2, first, last, count = 0;
    while (next_range(&at, &first, &last)) {
        if (first < before + 2 || last < first || last >= ranks) return false;
        before = last;
        count++;
    }
    return count && !*at;
}
