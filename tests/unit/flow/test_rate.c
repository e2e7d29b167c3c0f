/* Everything here runs on a clock that the test moves. */
#include "flow/rate.h"

#include <pthread.h>
#include <stdlib.h>

#include "tap.h"

#define PARTIES_MAX 1000

/* A party that always has something to move. */
struct party {
    struct cv_rate_place place;
    int64_t due_ms;
    uint64_t moved;
    uint32_t greed; /* bytes it moves at once, 0: all that it is allowed */
};

static struct party parties[PARTIES_MAX];

/* Let each party whose time has come move what it may, for 'ms' milliseconds. 'late_ms': how much
 * later than asked for it comes, at most (pseudo-random). */
static uint64_t run(struct cv_rate *r, size_t n, int64_t *now, int64_t ms, int64_t late_ms)
{
    uint64_t sum = 0;
    int64_t end = *now + ms;
    for (; *now < end; ++*now) {
        for (size_t i = 0; i < n; i++) {
            struct party *p = &parties[i];
            while (p->due_ms <= *now) {
                int64_t due = 0;
                size_t may = cv_rate_allow(&p->place, r, *now, &due);
                if (may == 0) {
                    T_OK(due > *now);
                    p->due_ms = due + (late_ms > 0 ? rand() % (late_ms + 1) : 0);
                    break;
                }
                if (p->greed != 0 && may > p->greed)
                    may = p->greed;
                cv_rate_used(&p->place, r, may, *now);
                p->moved += may;
                sum += may;
            }
        }
    }
    return sum;
}

static void reset_parties(size_t n)
{
    for (size_t i = 0; i < n; i++)
        parties[i] = (struct party){0};
}

static void leave_all(struct cv_rate *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cv_rate_leave(&parties[i].place, r);
}

static bool near(uint64_t got, uint64_t want, double share)
{
    double error = ((double)got - (double)want) / (double)want;
    if (error < 0)
        error = -error;
    if (error > share)
        printf("# got %llu, wanted %llu: off by %.3f %%\n", (unsigned long long)got,
               (unsigned long long)want, 100 * error);
    return error <= share;
}

static void test_off(void)
{
    struct cv_rate r = {0};
    struct cv_rate_place p = {0};
    int64_t due = 0;
    T_OK(!cv_rate_is_on(&r));
    T_OK(cv_rate_allow(&p, &r, 5, &due) == SIZE_MAX);
    cv_rate_used(&p, &r, 1u << 30, 5);
    T_OK(cv_rate_allow(&p, &r, 5, &due) == SIZE_MAX);
    T_OK(cv_rate_take(&p, &r, 65535, 5));
    cv_rate_rest(&p, &r);
    cv_rate_leave(&p, &r);
    T_INT_EQ(p.left, 0);
}

static void test_accuracy(void)
{
    static const uint64_t rates[] = {1024, 8192, 100000, 1000000, 5000000, 104857600, 1000000000};
    static const size_t counts[] = {1, 2, 10, 100};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
            struct cv_rate r = {0};
            int64_t now = 123456789;
            cv_rate_set(&r, rates[i]);
            reset_parties(counts[j]);
            T_OK(near(run(&r, counts[j], &now, 10000, 0), rates[i] * 10, 0.01));
            /* Once the start is over there is nothing but the rate, also when timers are late. */
            T_OK(near(run(&r, counts[j], &now, 10000, 25), rates[i] * 10, 0.01));
        }
    }
}

static void test_fairness(void)
{
    static const uint64_t rates[] = {8192, 200000, 5000000, 104857600};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct cv_rate r = {0};
        int64_t now = 1000;
        uint64_t least = UINT64_MAX, most = 0;
        cv_rate_set(&r, rates[i]);
        reset_parties(10);
        for (size_t k = 0; k < 10; k++) /* some move a little at a time */
            parties[k].greed = k % 2 == 0 ? 100 : 0;
        uint64_t sum = run(&r, 10, &now, 10000, 3);
        for (size_t k = 0; k < 10; k++) {
            least = parties[k].moved < least ? parties[k].moved : least;
            most = parties[k].moved > most ? parties[k].moved : most;
        }
        T_OK(near(sum, rates[i] * 10, 0.01));
        T_OK(near(least, sum / 10, 0.1));
        T_OK(near(most, sum / 10, 0.1));
    }
}

/* One that comes later waits for a round, not for what the others want in all. */
static void test_latecomer(void)
{
    struct cv_rate r = {0};
    int64_t now = 1000, due = 0;
    cv_rate_set(&r, 1000000);
    reset_parties(20);
    run(&r, 20, &now, 5000, 0);
    struct cv_rate_place late = {0};
    T_INT_EQ(cv_rate_allow(&late, &r, now, &due), 0);
    T_OK(due - now <= 20 * 1000 / 32 + CV_RATE_BURST_MS);
    T_INT_EQ(cv_rate_allow(&late, &r, due, &due), cv_rate_quantum(&r) / 8); /* little, at first */
}

/* What is reserved and not needed is not lost, and does not become more than it was. */
static void test_give_back(void)
{
    struct cv_rate r = {0};
    int64_t now = 1000;
    cv_rate_set(&r, 1000000);
    reset_parties(50);
    uint64_t sum = 0;
    for (int k = 0; k < 10000; k++, now++) {
        for (size_t i = 0; i < 50; i++) {
            struct party *p = &parties[i];
            int64_t due = 0;
            size_t may = now >= p->due_ms ? cv_rate_allow(&p->place, &r, now, &due) : 0;
            if (may == 0) {
                p->due_ms = due > p->due_ms ? due : p->due_ms;
                continue;
            }
            may = may < 777 ? may : 777;
            cv_rate_used(&p->place, &r, may, now);
            sum += may;
            cv_rate_rest(&p->place, &r);
        }
        if (k % 100 == 0) { /* some end while they wait, others come */
            cv_rate_leave(&parties[k / 100 % 50].place, &r);
            parties[k / 100 % 50] = (struct party){0};
        }
    }
    T_OK(near(sum, 10000000, 0.02));
    leave_all(&r, 50);
}

static void test_idle_earns_little(void)
{
    struct cv_rate r = {0};
    int64_t now = 1000;
    cv_rate_set(&r, 1000000);
    reset_parties(1);
    run(&r, 1, &now, 1000, 0);
    now += 86400000; /* also: the clock jumps forward */
    cv_rate_leave(&parties[0].place, &r);
    reset_parties(1);
    T_OK(run(&r, 1, &now, 1, 0) <= 1000000 / 1000 * (CV_RATE_BURST_MS + 1 + 1000 / 32));
}

static void test_clock_back(void)
{
    struct cv_rate r = {0};
    int64_t now = 1000000000, due = 0;
    cv_rate_set(&r, 1000000);
    reset_parties(2);
    run(&r, 2, &now, 1000, 0);
    /* Another thread's time is a little older. */
    struct cv_rate_place p = {0};
    if (cv_rate_allow(&p, &r, now - 50, &due) == 0)
        T_OK(due - now < 200);
    cv_rate_leave(&p, &r);
    /* A clock that has lost days does not stop everybody for days. */
    leave_all(&r, 2);
    reset_parties(2);
    now = 1000;
    T_OK(near(run(&r, 2, &now, 10000, 0), 10000000, 0.01));
}

static void test_extremes(void)
{
    static const uint64_t huge[] = {UINT64_MAX, INT64_MAX, UINT64_C(1) << 40};
    struct cv_rate_place p = {0};
    int64_t due = 0;
    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        struct cv_rate r = {0};
        cv_rate_set(&r, huge[i]);
        p = (struct cv_rate_place){0};
        T_INT_EQ(cv_rate_allow(&p, &r, 77, &due), CV_RATE_QUANTUM_MAX / 8);
        cv_rate_used(&p, &r, CV_RATE_QUANTUM_MAX / 8, 77);
        for (int k = 0; k < 1000; k++) {
            T_INT_EQ(cv_rate_allow(&p, &r, 77, &due), CV_RATE_QUANTUM_MAX);
            cv_rate_used(&p, &r, CV_RATE_QUANTUM_MAX, 77);
        }
    }
    struct cv_rate slow = {0};
    cv_rate_set(&slow, 1);
    int64_t now = 1;
    reset_parties(1);
    T_OK(near(run(&slow, 1, &now, 100000, 0), 100, 0.02));
    /* A debt that would last for years neither overflows nor lasts. */
    for (int k = 0; k < 100; k++)
        cv_rate_used(&p, &slow, SIZE_MAX, now);
    p = (struct cv_rate_place){0};
    size_t may = cv_rate_allow(&p, &slow, now, &due);
    T_OK(may > 0 || due > now);
}

static void test_overdraft(void)
{
    struct cv_rate r = {0};
    struct cv_rate_place a = {0}, b = {0};
    int64_t due = 0;
    cv_rate_set(&r, 1000);
    cv_rate_used(&a, &r, 5000, 1000); /* five seconds' worth */
    T_INT_EQ(cv_rate_allow(&b, &r, 1000, &due), 0);
    T_INT_EQ(due, 6000 - CV_RATE_BURST_MS);
}

static void test_change(void)
{
    struct cv_rate r = {0};
    int64_t now = 1000, due = 0;
    cv_rate_set(&r, 1000);
    reset_parties(100);
    run(&r, 100, &now, 100, 0); /* all but a few wait, some for seconds */
    T_OK(!cv_rate_is_stale(&parties[99].place, &r));
    cv_rate_set(&r, 1000); /* no change */
    T_OK(!cv_rate_is_stale(&parties[99].place, &r));
    cv_rate_set(&r, 1000000);
    T_OK(cv_rate_is_stale(&parties[99].place, &r));
    for (size_t i = 0; i < 100; i++) /* whoever waits asks anew */
        parties[i].due_ms = now;
    T_OK(near(run(&r, 100, &now, 10000, 0), 10000000, 0.01));
    cv_rate_set(&r, 0);
    T_OK(cv_rate_allow(&parties[0].place, &r, now, &due) == SIZE_MAX);
    cv_rate_set(&r, 1000);
    for (size_t i = 0; i < 100; i++)
        parties[i].due_ms = now;
    T_OK(near(run(&r, 100, &now, 10000, 0), 10000, 0.02));
    /* What was allowed at a high rate is not allowed at a low one. */
    cv_rate_set(&r, 1u << 30);
    parties[0].place = (struct cv_rate_place){0};
    T_INT_EQ(cv_rate_allow(&parties[0].place, &r, now, &due), CV_RATE_QUANTUM_MAX / 8);
    cv_rate_set(&r, 3200);
    T_INT_EQ(cv_rate_allow(&parties[0].place, &r, now, &due), 100);
}

static void test_datagrams(void)
{
    static const struct {
        uint64_t rate;
        size_t size;
    } rows[] = {{8192, 1200}, {100000, 100}, {1000000, 1400}, {104857600, 1400}, {20000, 65507}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct cv_rate r = {0};
        struct cv_rate_place p = {0};
        uint64_t sum = 0;
        cv_rate_set(&r, rows[i].rate);
        /* Three times as much comes as may pass, in equal steps of a hundredth of a ms. */
        uint64_t steps = 100 * 60000, credit = 0;
        for (uint64_t k = 0; k < steps; k++) {
            credit += 3 * rows[i].rate;
            while (credit >= rows[i].size * 100000) {
                credit -= rows[i].size * 100000;
                if (cv_rate_take(&p, &r, rows[i].size, (int64_t)(1000 + k / 100)))
                    sum += rows[i].size;
            }
        }
        T_OK(near(sum, rows[i].rate * 60, rows[i].size > 60000 ? 0.06 : 0.015));
    }
}

/* Datagrams get a share beside streams that take all they can get. */
static void test_datagrams_beside_streams(void)
{
    struct cv_rate r = {0};
    struct cv_rate_place p = {0};
    int64_t now = 1000;
    uint64_t sum = 0;
    cv_rate_set(&r, 1000000);
    reset_parties(4);
    for (int k = 0; k < 20000; k++) {
        run(&r, 4, &now, 1, 0);
        for (int j = 0; j < 4; j++)
            if (cv_rate_take(&p, &r, 500, now))
                sum += 500;
    }
    T_OK(near(sum, 20 * 1000000 / 5, 0.1));
}

/* -- threads -- */

struct shared {
    struct cv_rate rate;
    _Atomic int64_t now;
    _Atomic uint64_t sum;
};

static void *work(void *arg)
{
    struct shared *s = arg;
    struct cv_rate_place p = {0};
    int64_t due = 0, now;
    while ((now = atomic_load(&s->now)) < 11000) {
        size_t may = cv_rate_allow(&p, &s->rate, now, &due);
        if (may == SIZE_MAX)
            break;
        if (may > 0) {
            cv_rate_used(&p, &s->rate, may / 2 + 1, now);
            atomic_fetch_add(&s->sum, may / 2 + 1);
            cv_rate_rest(&p, &s->rate);
        }
    }
    cv_rate_leave(&p, &s->rate);
    return NULL;
}

static void test_threads(void)
{
    static struct shared s;
    pthread_t threads[4];
    cv_rate_set(&s.rate, 50000000);
    atomic_store(&s.now, 1000);
    for (int i = 0; i < 4; i++)
        T_INT_EQ(pthread_create(&threads[i], NULL, work, &s), 0);
    /* The clock goes on when what it allows has been used, so the threads are always busy. */
    for (int64_t now = 1000; now < 11000; now++) {
        uint64_t allowed = (uint64_t)(now - 1000) * 50000;
        for (int k = 0; k < 100000 && atomic_load(&s.sum) < allowed; k++)
            (void)0;
        atomic_store(&s.now, now + 1);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    /* Never more, and nothing to speak of is lost. */
    T_OK(atomic_load(&s.sum) <= 500000000ull / 1000 * 1010);
    printf("# threads moved %.2f %% of the rate\n", (double)atomic_load(&s.sum) / 5000000);
}

int main(void)
{
    srand(7);
    T_RUN(test_off);
    T_RUN(test_accuracy);
    T_RUN(test_fairness);
    T_RUN(test_latecomer);
    T_RUN(test_give_back);
    T_RUN(test_idle_earns_little);
    T_RUN(test_clock_back);
    T_RUN(test_extremes);
    T_RUN(test_overdraft);
    T_RUN(test_change);
    T_RUN(test_datagrams);
    T_RUN(test_datagrams_beside_streams);
    T_RUN(test_threads);
    return t_done();
}
