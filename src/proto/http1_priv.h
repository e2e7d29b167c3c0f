/* What the HTTP/1 files share: character classes and one field line. */
#pragma once

#include "common/err.h"
#include "proto/http1.h"

enum {
    CV_HTTP1_C_TOKEN = 1,  /* RFC 9110 tchar */
    CV_HTTP1_C_VALUE = 2,  /* field value: HTAB, SP, VCHAR, obs-text */
    CV_HTTP1_C_TARGET = 4, /* request target: VCHAR, obs-text */
    CV_HTTP1_C_HOST = 8,   /* what may stand in a Host field */
    CV_HTTP1_C_HEX = 16,
};
extern const uint8_t cv_http1_class[256];

static inline bool cv_http1_is(char c, unsigned cls)
{
    return (cv_http1_class[(uint8_t)c] & cls) != 0;
}

/* The length of the prefix of 's' whose bytes are all in 'cls'. */
size_t cv_http1_span(const char *s, size_t len, unsigned cls);
/* Equal but for ASCII case; 'lit' is a string. */
bool cv_http1_str_is(struct cv_http1_str s, const char *lit);
bool cv_http1_str_same(struct cv_http1_str a, struct cv_http1_str b);
/* The next element of a comma-separated list; false at its end. Empty elements are left out. */
bool cv_http1_list_next(struct cv_http1_str *rest, struct cv_http1_str *ret_elem);

/* One field line without its CRLF. */
int cv_http1_field_parse(const char *line, size_t len, enum cv_http1_kind kind,
                         struct cv_http1_field *ret_field, struct cv_http1_fault *reterr);
