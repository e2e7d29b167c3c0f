/* Decompression of what a server may send although it was told that nothing is: LZ4 blocks and
 * LZO1X. Bounded by the output's room, no allocation. */
#pragma once

#include "common/defs.h"

/* 0 and *ret_len; CV_E_PROTO when malformed or larger than 'cap'. */
int cv_expand_lz4(const uint8_t *in, size_t len, uint8_t *out, size_t cap, size_t *ret_len);
int cv_expand_lzo(const uint8_t *in, size_t len, uint8_t *out, size_t cap, size_t *ret_len);
