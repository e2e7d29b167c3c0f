/* A queue of chunks between two threads: one puts, the other takes, no locks. */
#pragma once

#include <stdatomic.h>

#include "common/defs.h"

struct cv_chunk {
    struct cv_chunk *_Atomic _next;
    uint32_t off, len; /* what is left of 'data' */
    int kind;          /* of the users of the queue */
    int err;
    uint8_t data[];
};

struct cv_chunkq {
    struct cv_chunk *_head; /* of the taker: taken already; its successor is the first */
    struct cv_chunk *_tail; /* of the putter */
    _Atomic size_t bytes;   /* payload that waits */
};

/* -ENOMEM. */
int cv_chunkq_init(struct cv_chunkq *q) CV_MUST_CHECK;
void cv_chunkq_done(struct cv_chunkq *q); /* no other thread uses it any more */
/* With room for 'cap' bytes; NULL: no memory. */
struct cv_chunk *cv_chunk_new(size_t cap) CV_MUST_CHECK;
/* Takes ownership. The putting thread. */
void cv_chunkq_put(struct cv_chunkq *q, struct cv_chunk *c);
/* The first, which stays in the queue; NULL: empty. The taking thread. */
struct cv_chunk *cv_chunkq_first(struct cv_chunkq *q);
/* 'n' bytes of the first are done with. Returns what waits now. */
size_t cv_chunkq_consume(struct cv_chunkq *q, size_t n);
/* The first is done with; its bytes that are left, too. */
void cv_chunkq_pop(struct cv_chunkq *q);
