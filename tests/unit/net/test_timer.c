#include "net/timer.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "tap.h"

static struct cv_timers *ts;
static char fired[64];
static size_t n_fired;

struct named {
    struct cv_timer t;
    char name;
    struct cv_timer *stop, *start; /* what the callback does */
    int64_t start_due;
};

static void on_named(struct cv_timer *t)
{
    struct named *n = CV_CONTAINER_OF(t, struct named, t);
    T_OK(!cv_timer_is_armed(t));
    if (n_fired < sizeof(fired) - 1)
        fired[n_fired++] = n->name;
    if (n->stop != NULL)
        cv_timer_stop(ts, n->stop);
    if (n->start != NULL) {
        struct cv_timer *start = n->start;
        n->start = NULL;
        cv_timer_start(ts, start, n->start_due);
    }
}

static void setup(int64_t now_ms, struct named *n, size_t count)
{
    T_INT_EQ(cv_timers_new(now_ms, &ts), 0);
    memset(fired, 0, sizeof(fired));
    n_fired = 0;
    for (size_t i = 0; i < count; i++) {
        n[i] = (struct named){.name = (char)('a' + i)};
        cv_timer_init(&n[i].t, on_named);
    }
}

static void teardown(void)
{
    T_INT_EQ(cv_timers_count(ts), 0);
    T_INT_EQ(cv_timers_next_ms(ts), INT64_MAX);
    cv_timers_free(ts);
}

static void test_order_and_time(void)
{
    struct named n[5];
    setup(1000, n, 5);
    cv_timer_start(ts, &n[0].t, 1070); /* the next slot of 64 */
    cv_timer_start(ts, &n[1].t, 1005);
    cv_timer_start(ts, &n[2].t, 1005);
    cv_timer_start(ts, &n[3].t, 100000);
    cv_timer_start(ts, &n[4].t, 1004);
    T_INT_EQ(cv_timers_count(ts), 5);
    T_INT_EQ(cv_timers_next_ms(ts), 1004);
    cv_timers_advance(ts, 1003);
    T_STR_EQ(fired, "");
    cv_timers_advance(ts, 1004);
    T_STR_EQ(fired, "e");
    cv_timers_advance(ts, 1069);
    T_STR_EQ(fired, "ebc");
    cv_timers_advance(ts, 1070);
    T_STR_EQ(fired, "ebca");
    T_INT_EQ(cv_timers_next_ms(ts), 100000); /* alone in its slot: known exactly */
    cv_timers_advance(ts, 99999);
    T_STR_EQ(fired, "ebca");
    cv_timers_advance(ts, 5000000);
    T_STR_EQ(fired, "ebcad");
    teardown();
}

static void test_past_time(void)
{
    struct named n[3];
    setup(500, n, 3);
    cv_timer_start(ts, &n[0].t, 500);
    cv_timer_start(ts, &n[1].t, -7);
    T_STR_EQ(fired, ""); /* not from inside of start */
    T_INT_EQ(cv_timers_next_ms(ts), 500);
    cv_timer_start(ts, &n[2].t, 501);
    cv_timers_advance(ts, 500); /* time has not moved, yet they fire */
    T_STR_EQ(fired, "ab");
    cv_timers_advance(ts, 400); /* a clock that goes back moves nothing */
    T_STR_EQ(fired, "ab");
    cv_timers_advance(ts, 501);
    T_STR_EQ(fired, "abc");
    teardown();
}

static void test_restart_and_stop(void)
{
    struct named n[2];
    setup(0, n, 2);
    cv_timer_stop(ts, &n[0].t); /* not armed: nothing */
    cv_timer_start(ts, &n[0].t, 10);
    cv_timer_start(ts, &n[0].t, 3000000);
    T_INT_EQ(cv_timers_count(ts), 1);
    T_INT_EQ(cv_timers_next_ms(ts), 3000000);
    cv_timers_advance(ts, 2999999);
    T_STR_EQ(fired, "");
    cv_timer_start(ts, &n[0].t, 3000005);
    cv_timers_advance(ts, 3000004);
    T_STR_EQ(fired, "");
    cv_timer_start(ts, &n[1].t, 3000005);
    cv_timer_stop(ts, &n[0].t);
    T_OK(!cv_timer_is_armed(&n[0].t));
    cv_timer_stop(ts, &n[0].t);
    cv_timers_advance(ts, 3000005);
    T_STR_EQ(fired, "b");
    teardown();
}

static void test_from_callbacks(void)
{
    struct named n[4];
    setup(0, n, 4);
    /* Two in one tick: the first stops the second. */
    cv_timer_start(ts, &n[0].t, 5);
    cv_timer_start(ts, &n[1].t, 5);
    n[0].stop = &n[1].t;
    cv_timers_advance(ts, 5);
    T_STR_EQ(fired, "a");
    n[0].stop = NULL;
    /* One that starts itself for a time that has come: the next advance, not this one. */
    n[0].start = &n[0].t;
    n[0].start_due = 6;
    cv_timer_start(ts, &n[0].t, 6);
    cv_timers_advance(ts, 6);
    T_STR_EQ(fired, "aa");
    T_OK(cv_timer_is_armed(&n[0].t));
    cv_timers_advance(ts, 6);
    T_STR_EQ(fired, "aaa");
    /* One that starts another within the span of this advance: this one. */
    n[2].start = &n[3].t;
    n[2].start_due = 900;
    cv_timer_start(ts, &n[2].t, 100);
    cv_timers_advance(ts, 1000);
    T_STR_EQ(fired, "aaacd");
    teardown();
}

static void test_far_times(void)
{
    struct named n[3];
    setup(0, n, 3);
    cv_timer_start(ts, &n[0].t, INT64_MAX);
    cv_timer_start(ts, &n[1].t, INT64_MAX - 1);
    cv_timer_start(ts, &n[2].t, (int64_t)1 << 60);
    cv_timers_advance(ts, ((int64_t)1 << 60) - 1);
    T_STR_EQ(fired, "");
    cv_timers_advance(ts, INT64_MAX - 2);
    T_STR_EQ(fired, "c");
    cv_timers_advance(ts, INT64_MAX);
    T_STR_EQ(fired, "cba");
    teardown();
}

/* -- comparison with a list that is searched for its smallest element -- */

#define N_MODEL 97

struct model_timer {
    struct cv_timer t;
    bool armed;
    bool later; /* overdue, and started in the advance that runs: not for this one */
    int64_t due;
    uint64_t seq;
};

static struct model_timer model[N_MODEL];
static int64_t model_now;
static int64_t model_target; /* of the advance that runs */
static bool model_advancing;
static uint64_t model_seq;
static unsigned model_faults;
static unsigned model_fired;

static struct model_timer *model_first(void)
{
    struct model_timer *best = NULL;
    for (size_t i = 0; i < N_MODEL; i++) {
        struct model_timer *m = &model[i];
        if (m->armed && !m->later &&
            (best == NULL || m->due < best->due || (m->due == best->due && m->seq < best->seq)))
            best = m;
    }
    return best;
}

static int64_t random_due(void)
{
    switch (cv_rand_below(8)) {
    case 0:
        return model_now - (int64_t)cv_rand_below(100);
    case 1:
    case 2:
        return model_now + (int64_t)cv_rand_below(8);
    case 3:
    case 4:
        return model_now + (int64_t)cv_rand_below(200);
    case 5:
        return model_now + (int64_t)cv_rand_below(70000);
    case 6:
        /* the edges of slots */
        return ((model_now >> 12) + (int64_t)cv_rand_below(3)) << 12;
    default:
        return model_now + (int64_t)(cv_rand_u64() >> (20 + cv_rand_below(40)));
    }
}

static void random_op(void)
{
    struct model_timer *m = &model[cv_rand_below(N_MODEL)];
    if (cv_rand_below(4) == 0) {
        m->armed = false;
        cv_timer_stop(ts, &m->t);
        return;
    }
    int64_t due = random_due();
    m->armed = true;
    m->later = model_advancing && due <= model_now;
    m->due = CV_MAX(due, model_now);
    m->seq = model_seq++;
    cv_timer_start(ts, &m->t, due);
}

static void on_model(struct cv_timer *t)
{
    struct model_timer *m = CV_CONTAINER_OF(t, struct model_timer, t);
    struct model_timer *want = model_first();
    model_fired++;
    if (m != want || m->due > model_target)
        model_faults++;
    m->armed = false;
    model_now = CV_MAX(model_now, m->due);
    for (uint32_t i = cv_rand_below(3); i > 0; i--)
        random_op();
}

static void model_advance(int64_t to)
{
    model_target = to;
    model_advancing = true;
    cv_timers_advance(ts, to);
    model_advancing = false;
    model_now = CV_MAX(model_now, to);
    const struct model_timer *left = model_first();
    if (left != NULL && left->due <= to)
        model_faults++; /* it should have fired */
    for (size_t i = 0; i < N_MODEL; i++)
        model[i].later = false;
}

static void check_next(void)
{
    const struct model_timer *first = model_first();
    int64_t next = cv_timers_next_ms(ts);
    if (first == NULL ? next != INT64_MAX : next > first->due && next > model_now)
        model_faults++;
    /* Early is allowed, but it must lead on. */
    if (first != NULL && first->due > model_now && next <= model_now)
        model_faults++;
}

static void test_against_list(void)
{
    for (int round = 0; round < 20; round++) {
        model_now = round == 0 ? 0 : (int64_t)(cv_rand_u64() >> (1 + cv_rand_below(50))) / 2;
        T_INT_EQ(cv_timers_new(model_now, &ts), 0);
        memset(model, 0, sizeof(model));
        for (size_t i = 0; i < N_MODEL; i++)
            cv_timer_init(&model[i].t, on_model);
        for (int step = 0; step < 3000; step++) {
            for (uint32_t i = cv_rand_below(6); i > 0; i--)
                random_op();
            check_next();
            int64_t next = cv_timers_next_ms(ts);
            switch (cv_rand_below(4)) {
            case 0:
                model_advance(next == INT64_MAX ? model_now : CV_MAX(next, model_now));
                break;
            case 1:
                model_advance(model_now + (int64_t)cv_rand_below(3));
                break;
            case 2:
                model_advance(model_now + (int64_t)cv_rand_below(300));
                break;
            default:
                model_advance(model_now + (int64_t)cv_rand_below(20000));
            }
        }
        size_t armed = 0;
        for (size_t i = 0; i < N_MODEL; i++)
            armed += model[i].armed;
        T_INT_EQ(cv_timers_count(ts), armed);
        for (size_t i = 0; i < N_MODEL; i++)
            cv_timer_stop(ts, &model[i].t);
        teardown();
    }
    T_INT_EQ(model_faults, 0);
    T_OK(model_fired > 10000);
    printf("# %u timers fired in the order of the list\n", model_fired);
}

int main(void)
{
    T_RUN(test_order_and_time);
    T_RUN(test_past_time);
    T_RUN(test_restart_and_stop);
    T_RUN(test_from_callbacks);
    T_RUN(test_far_times);
    T_RUN(test_against_list);
    return t_done();
}
