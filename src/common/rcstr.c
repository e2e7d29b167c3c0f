#include "common/rcstr.h"

#include <string.h>

#include "common/alloc.h"
#include "common/secret.h"

#include "common/poison.h"

#define SECRET (UINT32_C(1) << 31) /* in _refs */

struct cv_rcstr *cv_rcstr_new(const char *s, size_t len)
{
    size_t size;
    if (len > UINT32_MAX || CV_ADD_OVERFLOW(len, sizeof(struct cv_rcstr) + 1, &size))
        return NULL;
    struct cv_rcstr *r = cv_try_alloc(size);
    if (r == NULL)
        return NULL;
    r->_refs = 1;
    r->len = (uint32_t)len;
    if (len > 0)
        memcpy(r->s, s, len);
    r->s[len] = '\0';
    return r;
}

struct cv_rcstr *cv_rcstr_new_secret(const char *s, size_t len)
{
    struct cv_rcstr *r = cv_rcstr_new(s, len);
    if (r != NULL)
        r->_refs |= SECRET;
    return r;
}

struct cv_rcstr *cv_rcstr_ref(struct cv_rcstr *r)
{
    if (r != NULL)
        __atomic_fetch_add(&r->_refs, 1, __ATOMIC_RELAXED);
    return r;
}

void cv_rcstr_unref(struct cv_rcstr *r)
{
    /* Release and acquire: whoever frees must see the last use by every other thread. */
    if (r == NULL)
        return;
    uint32_t before = __atomic_fetch_sub(&r->_refs, 1, __ATOMIC_ACQ_REL);
    if ((before & ~SECRET) != 1)
        return;
    if (before & SECRET)
        cv_secret_clear(r->s, r->len);
    cv_free(r);
}
