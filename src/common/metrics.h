/* Counters, gauges and histograms that any thread may change and any thread may read. They are
 * plain relaxed atomics: exact in sum, without order between each other. */
#pragma once

#include <stdatomic.h>

#include "common/defs.h"

struct cv_counter {
    _Atomic uint64_t v;
};
struct cv_gauge {
    _Atomic int64_t v;
};

static inline void cv_counter_add(struct cv_counter *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->v, n, memory_order_relaxed);
}
/* For a counter that only one thread writes: no locked instruction. */
static inline void cv_counter_add_owned(struct cv_counter *c, uint64_t n)
{
    uint64_t v = atomic_load_explicit(&c->v, memory_order_relaxed);
    atomic_store_explicit(&c->v, v + n, memory_order_relaxed);
}
static inline uint64_t cv_counter_get(const struct cv_counter *c)
{
    return atomic_load_explicit(&c->v, memory_order_relaxed);
}
static inline void cv_gauge_add(struct cv_gauge *g, int64_t n)
{
    atomic_fetch_add_explicit(&g->v, n, memory_order_relaxed);
}
static inline int64_t cv_gauge_get(const struct cv_gauge *g)
{
    return atomic_load_explicit(&g->v, memory_order_relaxed);
}

/* Latency in ms: upper bounds 1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 and +Inf. */
#define CV_HISTOGRAM_BUCKETS 14
struct cv_histogram {
    struct cv_counter bucket[CV_HISTOGRAM_BUCKETS]; /* not cumulative */
    struct cv_counter sum_us;
};
extern const uint32_t cv_histogram_bounds_ms[CV_HISTOGRAM_BUCKETS - 1];
void cv_histogram_observe_us(struct cv_histogram *h, uint64_t us);
