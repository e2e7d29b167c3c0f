#include "net/chunkq.h"

#include <errno.h>

#include "common/alloc.h"

#include "common/poison.h"

struct cv_chunk *cv_chunk_new(size_t cap)
{
    struct cv_chunk *c = cv_try_alloc(sizeof(*c) + cap);
    if (c != NULL) {
        atomic_init(&c->_next, NULL);
        c->off = c->len = 0;
        c->kind = c->err = 0;
    }
    return c;
}

int cv_chunkq_init(struct cv_chunkq *q)
{
    atomic_init(&q->bytes, 0);
    q->_head = q->_tail = cv_chunk_new(0);
    return q->_head != NULL ? 0 : -ENOMEM;
}

void cv_chunkq_done(struct cv_chunkq *q)
{
    while (q->_head != NULL) {
        struct cv_chunk *next = atomic_load_explicit(&q->_head->_next, memory_order_acquire);
        cv_free(q->_head);
        q->_head = next;
    }
    q->_tail = NULL;
}

void cv_chunkq_put(struct cv_chunkq *q, struct cv_chunk *c)
{
    struct cv_chunk *last = q->_tail;
    atomic_fetch_add_explicit(&q->bytes, c->len, memory_order_relaxed);
    q->_tail = c;
    /* From here on the taker may see the chunk, and free 'last'. */
    atomic_store_explicit(&last->_next, c, memory_order_release);
}

struct cv_chunk *cv_chunkq_first(struct cv_chunkq *q)
{
    return atomic_load_explicit(&q->_head->_next, memory_order_acquire);
}

size_t cv_chunkq_consume(struct cv_chunkq *q, size_t n)
{
    struct cv_chunk *c = cv_chunkq_first(q);
    CV_ASSERT(c != NULL && n <= c->len);
    c->off += (uint32_t)n;
    c->len -= (uint32_t)n;
    return atomic_fetch_sub_explicit(&q->bytes, n, memory_order_seq_cst) - n;
}

void cv_chunkq_pop(struct cv_chunkq *q)
{
    struct cv_chunk *c = cv_chunkq_first(q);
    if (c->len > 0)
        (void)cv_chunkq_consume(q, c->len);
    cv_free(q->_head);
    q->_head = c;
}
