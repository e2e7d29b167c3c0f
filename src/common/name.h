/* Host names in the one form in which they are compared, resolved and logged: ASCII A-labels in
 * lower case, without the trailing dot, at most 253 bytes, labels of 1..63 bytes. */
#pragma once

#include "common/defs.h"

#define CV_NAME_MAX 253

/* Write the canonical form of the host name 's' to 'out' (NUL-terminated). One trailing dot goes;
 * UTF-8 is converted by IDNA 2008 with UTS 46 non-transitional mapping; labels may contain letters,
 * digits, hyphen and underscore; a label with "xn--" must be Punycode for something that is not
 * ASCII. At most 1024 bytes are looked at. 0; CV_E_PARSE for anything else (empty, too long, empty
 * label, blanks, control bytes, '/', '@', ':' and so on). Does not look for IP literals:
 * cv_host_parse() in target.h does. */
int cv_name_canon(const char *s, size_t len, char out[CV_NAME_MAX + 1], size_t *ret_len);
