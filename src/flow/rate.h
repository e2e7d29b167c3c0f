/* A rate in bytes per second, shared by any number of parties on any thread, without locks and
 * without a thread that fills anything: one atomic word says up to when all that was given out is
 * paid for (the generic cell rate algorithm, ITU-T I.371).
 *
 * Who wants to move bytes has a place (struct cv_rate_place) and reserves a quantum, a
 * thirty-second of a second's worth: that moves the word ahead, and what it was before tells from
 * when on the quantum may be used. So parties that want more than there is are served in the order
 * in which they asked, each with one quantum a round, however greedy one of them is. What turns out
 * not to be needed is given back.
 *
 * Time comes in as milliseconds of any clock that all parties share and that does not go back. Idle
 * time earns at most CV_RATE_BURST_MS worth, so the mean of any ten seconds is at most 0.9 % above
 * the rate. A rate of 0 is off, which costs its users one relaxed load.
 *
 * Example, a stream: 'allow' says how many bytes may be read now or when to ask again, 'used' how
 * many were, 'rest' that no more will follow for now. A datagram: 'take' it, or drop it. */
#pragma once

#include <stdatomic.h>

#include "common/defs.h"

#define CV_RATE_BURST_MS    60
#define CV_RATE_QUANTUM_MAX (256u << 10)

struct cv_rate {
    _Atomic uint64_t _bytes_per_s; /* 0: off */
    _Atomic int64_t _paid_ns;      /* up to when all is paid for */
    _Atomic uint32_t _epoch;       /* changes with the rate, so that waiting parties ask anew */
};

/* One party's place in line, zero at first. Belongs to one thread. */
struct cv_rate_place {
    uint32_t left;   /* bytes that may be moved now */
    uint32_t asked;  /* bytes that may be moved from 'due_ns' on; 0: none */
    uint32_t _given; /* of which 'left' is the rest */
    uint32_t _want;  /* to be asked for next time, at most a quantum */
    uint32_t _epoch; /* of the rate when they were reserved */
    int64_t due_ns;
};

/* Any thread, while others use it. Setting the rate that it has changes nothing. */
void cv_rate_set(struct cv_rate *r, uint64_t bytes_per_s);
static inline bool cv_rate_is_on(const struct cv_rate *r)
{
    return atomic_load_explicit(&r->_bytes_per_s, memory_order_relaxed) != 0;
}
static inline uint64_t cv_rate_get(const struct cv_rate *r)
{
    return atomic_load_explicit(&r->_bytes_per_s, memory_order_relaxed);
}
/* Bytes that a party gets at a time. */
uint32_t cv_rate_quantum(const struct cv_rate *r);

/* How many bytes may be moved now: SIZE_MAX when the rate is off. 0: none, *ret_due_ms is when to
 * ask again; the place in line is kept until then. */
size_t cv_rate_allow(struct cv_rate_place *p, struct cv_rate *r, int64_t now_ms,
                     int64_t *ret_due_ms);
/* 'n' bytes were moved. More than was allowed delays what comes after, of every party. */
void cv_rate_used(struct cv_rate_place *p, struct cv_rate *r, size_t n, int64_t now_ms);
/* Give back what is allowed now and not used; a place in line is kept. */
void cv_rate_rest(struct cv_rate_place *p, struct cv_rate *r);
/* Give back everything: the party ends. */
void cv_rate_leave(struct cv_rate_place *p, struct cv_rate *r);
/* The rate has changed since the place in line was taken: ask anew. */
bool cv_rate_is_stale(const struct cv_rate_place *p, const struct cv_rate *r);

/* For datagrams, which cannot wait: may 'n' bytes be moved now? True: they are paid for. False:
 * drop the datagram; its party stands in line meanwhile and gets its share beside streams that
 * wait. A datagram larger than a quantum passes as well, at its price. Use one place for each flow
 * of datagrams and direction, and leave at its end. */
bool cv_rate_take(struct cv_rate_place *p, struct cv_rate *r, size_t n, int64_t now_ms);
