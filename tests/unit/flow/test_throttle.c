#include "flow/throttle.h"

#include "flow_util.h"

struct party {
    struct cv_throttle *t;
    int turns;
    int64_t at_ms; /* of the last turn */
};

static struct test_node n;

static void on_turn(void *arg)
{
    struct party *p = arg;
    p->turns++;
    p->at_ms = cv_loop_now(n.worker->loop);
}

static void begin(struct party *p, struct cv_rate *r)
{
    *p = (struct party){0};
    T_INT_EQ(cv_throttle_new(n.worker, r, on_turn, p, &p->t), 0);
}

static void test_off(void)
{
    struct cv_rate r = {0};
    struct party p;
    test_node_start(&n);
    begin(&p, &r);
    T_OK(cv_throttle_allow(p.t) == SIZE_MAX);
    cv_throttle_used(p.t, 1u << 30);
    cv_throttle_rest(p.t);
    T_OK(!cv_throttle_is_waiting(p.t));
    T_OK(!cv_throttle_is_waiting(NULL));
    cv_throttle_free(p.t);
    cv_throttle_free(NULL);
    test_node_end(&n);
}

/* The turn comes when it is due, and once. */
static void test_waits(void)
{
    struct cv_rate r = {0};
    struct party p;
    size_t may;
    test_node_start(&n);
    cv_rate_set(&r, 100000);
    begin(&p, &r);
    while ((may = cv_throttle_allow(p.t)) > 0)
        cv_throttle_used(p.t, may);
    T_OK(cv_throttle_is_waiting(p.t));
    T_INT_EQ(p.turns, 0);
    int64_t start = cv_loop_now(n.worker->loop);
    TURN_UNTIL(n.worker->loop, p.turns > 0);
    T_OK(!cv_throttle_is_waiting(p.t));
    T_OK(p.at_ms - start <= 1000);
    may = cv_throttle_allow(p.t);
    T_OK(may > 0 && may <= cv_rate_quantum(&r));
    cv_throttle_used(p.t, may);
    T_INT_EQ(p.turns, 1);
    cv_throttle_free(p.t);
    test_node_end(&n);
}

/* Whoever waits for long is woken when the rate changes, and only then. */
static void test_recheck(void)
{
    struct cv_rate r = {0}, other = {0};
    struct party p, q;
    test_node_start(&n);
    cv_rate_set(&r, 10);
    cv_rate_set(&other, 10);
    begin(&p, &r);
    begin(&q, &other);
    cv_throttle_used(p.t, 100000); /* hours */
    cv_throttle_used(q.t, 100000);
    T_INT_EQ(cv_throttle_allow(p.t), 0);
    T_INT_EQ(cv_throttle_allow(q.t), 0);
    cv_throttle_recheck(n.worker);
    cv_loop_turn(n.worker->loop, 20);
    T_INT_EQ(p.turns, 0);
    cv_rate_set(&r, 0);
    cv_throttle_recheck(n.worker);
    TURN_UNTIL(n.worker->loop, p.turns > 0);
    T_OK(cv_throttle_allow(p.t) == SIZE_MAX);
    T_INT_EQ(q.turns, 0);
    T_OK(cv_throttle_is_waiting(q.t));
    cv_throttle_free(q.t); /* while it waits */
    cv_throttle_free(p.t);
    T_OK(cv_list_is_empty(&n.worker->_throttled));
    test_node_end(&n);
}

/* One that ends gives its place back. */
static void test_end_gives_back(void)
{
    struct cv_rate r = {0};
    struct party p[20], last;
    size_t may;
    test_node_start(&n);
    cv_rate_set(&r, 1000000);
    for (int i = 0; i < 20; i++) {
        begin(&p[i], &r);
        while ((may = cv_throttle_allow(p[i].t)) > 0)
            cv_throttle_used(p[i].t, may);
    }
    for (int i = 0; i < 20; i++)
        cv_throttle_free(p[i].t);
    begin(&last, &r);
    int64_t start = cv_loop_now(n.worker->loop);
    while (cv_throttle_allow(last.t) == 0 && cv_clock_mono_ms() - start < 5000)
        cv_loop_turn(n.worker->loop, 20);
    T_OK(cv_loop_now(n.worker->loop) - start < 500);
    cv_throttle_free(last.t);
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_off);
    T_RUN(test_waits);
    T_RUN(test_recheck);
    T_RUN(test_end_gives_back);
    return t_done();
}
