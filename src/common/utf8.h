/* Decoding of UTF-8 (RFC 3629), one code point at a time. */
#pragma once

#include "common/defs.h"

/* The number of bytes of the code point at 's' and the code point; 0 if none is valid there
 * (overlong forms, surrogates and code points above U+10FFFF are not). */
static inline size_t cv_utf8_decode(const char *s, size_t len, uint32_t *ret_cp)
{
    const uint8_t *p = (const uint8_t *)s;
    if (len == 0)
        return 0;
    if (p[0] < 0x80) {
        *ret_cp = p[0];
        return 1;
    }
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len < n)
        return 0;
    uint32_t cp = p[0] & (0x7fU >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        cp = cp << 6 | (p[i] & 0x3fU);
    }
    if ((n == 3 && (cp < 0x800 || (cp >= 0xd800 && cp <= 0xdfff))) ||
        (n == 4 && (cp < 0x10000 || cp > 0x10ffff)))
        return 0;
    *ret_cp = cp;
    return n;
}
