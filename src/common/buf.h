/* Growable byte buffer with a maximum that is given at creation. Reaching the maximum is a normal
 * error (CV_E_LIMIT), lack of memory is -ENOMEM. Bytes are appended at the end and consumed at the
 * front; an empty buffer owns no memory after cv_buf_done() or cv_buf_release(). */
#pragma once

#include "common/defs.h"

struct cv_buf {
    uint8_t *_base; /* owned; NULL while empty */
    size_t _off;    /* first unread byte */
    size_t _len;    /* unread bytes */
    size_t _cap;
    size_t _max;
};

void cv_buf_init(struct cv_buf *b, size_t max);
void cv_buf_done(struct cv_buf *b);    /* frees; 'b' may be reused after a new init */
void cv_buf_release(struct cv_buf *b); /* gives memory back when empty, else does nothing */

static inline const uint8_t *cv_buf_data(const struct cv_buf *b)
{
    return b->_base != NULL ? b->_base + b->_off : NULL;
}
static inline size_t cv_buf_len(const struct cv_buf *b)
{
    return b->_len;
}
static inline bool cv_buf_is_empty(const struct cv_buf *b)
{
    return b->_len == 0;
}
static inline size_t cv_buf_room(const struct cv_buf *b)
{
    return b->_max - b->_len;
}

int cv_buf_append(struct cv_buf *b, const void *data, size_t len) CV_MUST_CHECK;
int cv_buf_append_str(struct cv_buf *b, const char *s) CV_MUST_CHECK;
int cv_buf_printf(struct cv_buf *b, const char *fmt, ...) CV_PRINTF(2, 3) CV_MUST_CHECK;

/* Space for at least 'want' more bytes to be written in place, then cv_buf_commit(). */
int cv_buf_reserve(struct cv_buf *b, size_t want, uint8_t **ret_p, size_t *ret_room) CV_MUST_CHECK;
void cv_buf_commit(struct cv_buf *b, size_t len);

/* Drop 'len' bytes (<= cv_buf_len) from the front. */
void cv_buf_consume(struct cv_buf *b, size_t len);

/* Hand the memory to the caller (cv_free), its first byte the first unread one; NULL if the buffer
 * never grew. The buffer is empty afterwards. */
uint8_t *cv_buf_steal(struct cv_buf *b) CV_MUST_CHECK;
