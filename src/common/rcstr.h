/* Immutable, reference-counted string; shared between threads. Sessions keep the names that a
 * snapshot gave them in this form, so that a log line outlives the snapshot. */
#pragma once

#include "common/defs.h"

struct cv_rcstr {
    uint32_t _refs; /* and the mark of a secret */
    uint32_t len;
    char s[]; /* NUL-terminated */
};

struct cv_rcstr *cv_rcstr_new(const char *s, size_t len) CV_MUST_CHECK; /* NULL: no memory */
/* The same for a secret: it is cleared when the last reference goes. */
struct cv_rcstr *cv_rcstr_new_secret(const char *s, size_t len) CV_MUST_CHECK;
struct cv_rcstr *cv_rcstr_ref(struct cv_rcstr *r); /* NULL is accepted */
void cv_rcstr_unref(struct cv_rcstr *r);           /* NULL is accepted */

/* The text, or "" for NULL. */
static inline const char *cv_rcstr_text(const struct cv_rcstr *r)
{
    return r != NULL ? r->s : "";
}
