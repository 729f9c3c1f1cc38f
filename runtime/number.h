/* Numbers as people write them: digits, a point, an exponent. strtod takes more, 0x10 and infinity, which is a slip where it
 * stands in a flag or in a file of links. */
#ifndef DTM_NUMBER_H
#define DTM_NUMBER_H

#include <stdlib.h>
#include <string.h>

/* Where the number ends that `text` begins with; NULL: it begins with none. */
static inline const char *dtm_number_read(const char *text, double *out) {
    size_t sign = *text == '-' || *text == '+', digits = strspn(text + sign, "0123456789.");
    char after = text[sign + digits], *end;
    if (!digits || after == 'x' || after == 'X') return NULL;
    *out = strtod(text, &end);
    return end == text ? NULL : end;
}

#endif
