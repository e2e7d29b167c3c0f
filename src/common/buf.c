#include "common/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

#define BUF_MIN_CAP 256

void cv_buf_init(struct cv_buf *b, size_t max)
{
    *b = (struct cv_buf){._max = max};
}

void cv_buf_done(struct cv_buf *b)
{
    cv_free(b->_base);
    *b = (struct cv_buf){._max = b->_max};
}

void cv_buf_release(struct cv_buf *b)
{
    if (b->_len == 0)
        cv_buf_done(b);
}

static void move_to_front(struct cv_buf *b)
{
    if (b->_off > 0 && b->_len > 0)
        memmove(b->_base, b->_base + b->_off, b->_len);
    b->_off = 0;
}

/* Make room for 'want' bytes behind the unread ones; the caller checked that the maximum allows
 * it, so the sums below cannot overflow. */
static int grow(struct cv_buf *b, size_t want)
{
    if (b->_cap - b->_off - b->_len >= want)
        return 0;
    size_t need = b->_len + want;
    /* Moving pays when no more bytes move than were consumed before: each moves once at most. */
    if (need <= b->_cap && b->_off >= b->_len) {
        move_to_front(b);
        return 0;
    }
    size_t cap = b->_cap < b->_max / 2 ? b->_cap * 2 : b->_max;
    cap = CV_MAX(cap, CV_MIN((size_t)BUF_MIN_CAP, b->_max));
    cap = CV_MAX(cap, need);
    move_to_front(b);
    if (cap <= b->_cap)
        return 0;
    uint8_t *base = cv_try_realloc_array(b->_base, cap, 1);
    if (base == NULL)
        return need <= b->_cap ? 0 : -ENOMEM;
    b->_base = base;
    b->_cap = cap;
    return 0;
}

int cv_buf_reserve(struct cv_buf *b, size_t want, uint8_t **ret_p, size_t *ret_room)
{
    if (want > cv_buf_room(b))
        return CV_E_LIMIT;
    int ret = grow(b, want);
    if (ret != 0)
        return ret;
    *ret_p = b->_base != NULL ? b->_base + b->_off + b->_len : NULL;
    *ret_room = CV_MIN(b->_cap - b->_off - b->_len, cv_buf_room(b));
    return 0;
}

void cv_buf_commit(struct cv_buf *b, size_t len)
{
    CV_ASSERT(len <= b->_cap - b->_off - b->_len && len <= cv_buf_room(b));
    b->_len += len;
}

int cv_buf_append(struct cv_buf *b, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    if (len > cv_buf_room(b))
        return CV_E_LIMIT;
    int ret = grow(b, len);
    if (ret != 0)
        return ret;
    memcpy(b->_base + b->_off + b->_len, data, len);
    b->_len += len;
    return 0;
}

int cv_buf_append_str(struct cv_buf *b, const char *s)
{
    return cv_buf_append(b, s, strlen(s));
}

int cv_buf_printf(struct cv_buf *b, const char *fmt, ...)
{
    char small[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof(small), fmt, ap);
    va_end(ap);
    if (n < 0)
        return CV_E_INVALID;
    size_t len = (size_t)n;
    if (len < sizeof(small))
        return cv_buf_append(b, small, len);
    if (len > cv_buf_room(b))
        return CV_E_LIMIT;

    char *big = cv_try_alloc(len + 1);
    if (big == NULL)
        return -ENOMEM;
    va_start(ap, fmt);
    vsnprintf(big, len + 1, fmt, ap);
    va_end(ap);
    int ret = cv_buf_append(b, big, len);
    cv_free(big);
    return ret;
}

void cv_buf_consume(struct cv_buf *b, size_t len)
{
    CV_ASSERT(len <= b->_len);
    b->_len -= len;
    b->_off = b->_len == 0 ? 0 : b->_off + len;
}

uint8_t *cv_buf_steal(struct cv_buf *b)
{
    if (b->_off > 0)
        memmove(b->_base, b->_base + b->_off, b->_len);
    uint8_t *p = b->_base;
    *b = (struct cv_buf){._max = b->_max};
    return p;
}
