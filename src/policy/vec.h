/* Growable array for what a document holds; the document's size bounds it. */
#pragma once

#include <string.h>

#include "common/alloc.h"

struct cv_vec {
    void *base; /* owned */
    size_t n;
    size_t _cap;
};

/* 'count' more elements of 'size' bytes at the end, cleared. NULL: no memory. */
static inline void *cv_vec_add(struct cv_vec *v, size_t count, size_t size)
{
    if (v->_cap - v->n < count) {
        size_t cap = v->_cap + v->_cap / 2 + count + 16;
        void *base = cv_try_realloc_array(v->base, cap, size);
        if (base == NULL)
            return NULL;
        v->base = base;
        v->_cap = cap;
    }
    void *p = (char *)v->base + v->n * size;
    memset(p, 0, count * size);
    v->n += count;
    return p;
}

static inline void cv_vec_done(struct cv_vec *v)
{
    cv_free(v->base);
    *v = (struct cv_vec){0};
}
