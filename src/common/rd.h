/* Sticky-error cursors over bytes: read or write all fields, check once at the end. After the first
 * fault every further call does nothing, reads give zero, and cv_rd_err()/cv_wr_err() tell. */
#pragma once

#include <string.h>

#include "common/defs.h"
#include "common/err.h"

struct cv_rd {
    const uint8_t *p;
    size_t left;
    int err; /* 0, CV_E_MORE when bytes ran out, CV_E_PROTO when marked by cv_rd_fail() */
};

static inline void cv_rd_init(struct cv_rd *r, const void *data, size_t len)
{
    *r = (struct cv_rd){.p = data, .left = len};
}

static inline const uint8_t *cv_rd_bytes(struct cv_rd *r, size_t n)
{
    if (r->err != 0 || r->left < n) {
        if (r->err == 0)
            r->err = CV_E_MORE;
        return NULL;
    }
    const uint8_t *p = r->p;
    r->p += n;
    r->left -= n;
    return p;
}

static inline uint8_t cv_rd_u8(struct cv_rd *r)
{
    const uint8_t *p = cv_rd_bytes(r, 1);
    return p != NULL ? p[0] : 0;
}

static inline uint16_t cv_rd_u16(struct cv_rd *r)
{
    const uint8_t *p = cv_rd_bytes(r, 2);
    return p != NULL ? (uint16_t)(p[0] << 8 | p[1]) : 0;
}

static inline uint32_t cv_rd_u32(struct cv_rd *r)
{
    const uint8_t *p = cv_rd_bytes(r, 4);
    return p != NULL ? (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3] : 0;
}

static inline void cv_rd_fail(struct cv_rd *r)
{
    if (r->err == 0)
        r->err = CV_E_PROTO;
}

struct cv_wr {
    uint8_t *p;
    size_t len; /* bytes written */
    size_t cap;
    int err; /* 0 or CV_E_LIMIT */
};

static inline void cv_wr_init(struct cv_wr *w, void *data, size_t cap)
{
    *w = (struct cv_wr){.p = data, .cap = cap};
}

static inline void cv_wr_bytes(struct cv_wr *w, const void *data, size_t n)
{
    if (w->err != 0 || w->cap - w->len < n) {
        w->err = CV_E_LIMIT;
        return;
    }
    if (n > 0)
        memcpy(w->p + w->len, data, n);
    w->len += n;
}

static inline void cv_wr_u8(struct cv_wr *w, uint8_t v)
{
    cv_wr_bytes(w, &v, 1);
}

static inline void cv_wr_u16(struct cv_wr *w, uint16_t v)
{
    uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};
    cv_wr_bytes(w, b, 2);
}
