/* Streaming JSON writer into a cv_buf. Commas are its business; strings are escaped, and bytes that
 * are not UTF-8 become U+FFFD. The first failure (the buffer's maximum, no memory) sticks and is
 * returned by cv_jsonw_end(). */
#pragma once

#include "common/buf.h"

struct cv_jsonw {
    struct cv_buf *_buf; /* borrowed */
    int _err;
    bool _comma; /* the next member or element needs one before it */
};

void cv_jsonw_init(struct cv_jsonw *w, struct cv_buf *buf);
int cv_jsonw_end(struct cv_jsonw *w) CV_MUST_CHECK;

/* 'key' is NULL within an array and at the top. */
void cv_jsonw_object(struct cv_jsonw *w, const char *key);
void cv_jsonw_object_end(struct cv_jsonw *w);
void cv_jsonw_array(struct cv_jsonw *w, const char *key);
void cv_jsonw_array_end(struct cv_jsonw *w);
void cv_jsonw_str(struct cv_jsonw *w, const char *key, const char *val); /* NULL val: null */
void cv_jsonw_strn(struct cv_jsonw *w, const char *key, const char *val, size_t len);
void cv_jsonw_int(struct cv_jsonw *w, const char *key, int64_t val);
void cv_jsonw_uint(struct cv_jsonw *w, const char *key, uint64_t val);
void cv_jsonw_bool(struct cv_jsonw *w, const char *key, bool val);
void cv_jsonw_null(struct cv_jsonw *w, const char *key);
