/* Base64 of RFC 4648 section 4, strict: right padding, no blanks, no other alphabet. */
#pragma once

#include "common/defs.h"

/* Decode into 'out' of 'cap' bytes. 0; CV_E_PARSE; CV_E_LIMIT when 'cap' is too small. */
int cv_base64_decode(const char *s, size_t len, uint8_t *out, size_t cap, size_t *ret_len);
/* Encode with a NUL; 'cap' >= 4 * ceil(len / 3) + 1 or CV_E_LIMIT. */
int cv_base64_encode(const void *data, size_t len, char *out, size_t cap);
/* Lower-case hex. cv_hex_decode: 0 or CV_E_PARSE (odd length, other characters) or CV_E_LIMIT. */
void cv_hex_encode(const void *data, size_t len, char *out /* 2 * len + 1 */);
int cv_hex_decode(const char *s, size_t len, uint8_t *out, size_t cap, size_t *ret_len);
