/* Bytes of vectors. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "common/base64.h"

static inline size_t unhex(const char *hex, uint8_t *out, size_t cap)
{
    size_t n = 0;
    if (cv_hex_decode(hex, strlen(hex), out, cap, &n) != 0)
        abort();
    return n;
}
