#include "tap.h"

#include <pthread.h>

#include "common/metrics.h"

static struct cv_counter shared;
static struct cv_gauge gauge;

static void *add_many(void *arg)
{
    for (int i = 0; i < 10000; i++) {
        cv_counter_add(&shared, 2);
        cv_gauge_add(&gauge, i % 2 == 0 ? 5 : -5);
    }
    return arg;
}

static void sums_are_exact_over_threads(void)
{
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        T_INT_EQ(pthread_create(&threads[i], NULL, add_many, NULL), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    T_INT_EQ(cv_counter_get(&shared), 80000);
    T_INT_EQ(cv_gauge_get(&gauge), 0);
}

static void owned_counter_and_negative_gauge(void)
{
    struct cv_counter c = {0};
    cv_counter_add_owned(&c, 3);
    cv_counter_add_owned(&c, 4);
    T_INT_EQ(cv_counter_get(&c), 7);
    struct cv_gauge g = {0};
    cv_gauge_add(&g, -3);
    T_INT_EQ(cv_gauge_get(&g), -3);
}

static void histogram_bounds_are_inclusive(void)
{
    static const struct {
        uint64_t us;
        size_t bucket;
    } cases[] = {
        {0, 0},    {999, 0},    {1000, 0},   {1001, 1},      {2000, 1},      {4999, 2},
        {5001, 3}, {100000, 6}, {100001, 7}, {10000000, 12}, {10000001, 13}, {UINT64_MAX / 2, 13},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_histogram h = {0};
        cv_histogram_observe_us(&h, cases[i].us);
        for (size_t j = 0; j < CV_HISTOGRAM_BUCKETS; j++)
            T_INT_EQ(cv_counter_get(&h.bucket[j]), j == cases[i].bucket);
        T_INT_EQ(cv_counter_get(&h.sum_us), cases[i].us);
    }
}

static void histogram_adds_up(void)
{
    struct cv_histogram h = {0};
    for (uint64_t us = 0; us < 20000000; us += 100000)
        cv_histogram_observe_us(&h, us);
    uint64_t n = 0;
    for (size_t j = 0; j < CV_HISTOGRAM_BUCKETS; j++)
        n += cv_counter_get(&h.bucket[j]);
    T_INT_EQ(n, 200);
    T_INT_EQ(cv_counter_get(&h.sum_us), 100000LL * (199 * 200 / 2));
}

int main(void)
{
    T_RUN(sums_are_exact_over_threads);
    T_RUN(owned_counter_and_negative_gauge);
    T_RUN(histogram_bounds_are_inclusive);
    T_RUN(histogram_adds_up);
    return t_done();
}
