#include "common/metrics.h"

#include "common/poison.h"

const uint32_t cv_histogram_bounds_ms[CV_HISTOGRAM_BUCKETS - 1] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000,
};

void cv_histogram_observe_us(struct cv_histogram *h, uint64_t us)
{
    size_t i = 0;
    while (i < CV_HISTOGRAM_BUCKETS - 1 && us > (uint64_t)cv_histogram_bounds_ms[i] * 1000)
        i++;
    cv_counter_add(&h->bucket[i], 1);
    cv_counter_add(&h->sum_us, us);
}
