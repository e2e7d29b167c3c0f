#include "flow/throttle.h"

#include <errno.h>

#include "common/alloc.h"

#include "common/poison.h"

struct cv_throttle {
    struct cv_list node; /* in worker._throttled while it waits */
    struct cv_worker *worker;
    struct cv_rate *rate; /* borrowed (outlives) */
    struct cv_rate_place place;
    struct cv_timer timer; /* armed while it waits */
    cv_throttle_cb cb;
    void *arg;
};

static void on_timer(struct cv_timer *timer)
{
    struct cv_throttle *t = CV_CONTAINER_OF(timer, struct cv_throttle, timer);
    cv_list_del(&t->node);
    t->cb(t->arg);
}

int cv_throttle_new(struct cv_worker *w, struct cv_rate *rate, cv_throttle_cb cb, void *arg,
                    struct cv_throttle **ret_throttle)
{
    struct cv_throttle *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    cv_list_init(&t->node);
    t->worker = w;
    t->rate = rate;
    cv_timer_init(&t->timer, on_timer);
    t->cb = cb;
    t->arg = arg;
    *ret_throttle = t;
    return 0;
}

static void stop_waiting(struct cv_throttle *t)
{
    if (!cv_timer_is_armed(&t->timer))
        return;
    cv_loop_timer_stop(t->worker->loop, &t->timer);
    cv_list_del(&t->node);
}

void cv_throttle_free(struct cv_throttle *t)
{
    if (t == NULL)
        return;
    stop_waiting(t);
    cv_rate_leave(&t->place, t->rate);
    cv_free(t);
}

size_t cv_throttle_allow(struct cv_throttle *t)
{
    int64_t due;
    size_t n = cv_rate_allow(&t->place, t->rate, cv_loop_now(t->worker->loop), &due);
    if (n > 0) {
        stop_waiting(t);
        return n;
    }
    if (!cv_timer_is_armed(&t->timer))
        cv_list_add_tail(&t->worker->_throttled, &t->node);
    cv_timer_start(cv_loop_timers(t->worker->loop), &t->timer, due);
    return 0;
}

void cv_throttle_used(struct cv_throttle *t, size_t n)
{
    cv_rate_used(&t->place, t->rate, n, cv_loop_now(t->worker->loop));
}

void cv_throttle_rest(struct cv_throttle *t)
{
    cv_rate_rest(&t->place, t->rate);
}

bool cv_throttle_is_waiting(const struct cv_throttle *t)
{
    return t != NULL && cv_timer_is_armed(&t->timer);
}

void cv_throttle_recheck(struct cv_worker *w)
{
    struct cv_list *it;
    int64_t now = cv_loop_now(w->loop);
    CV_LIST_FOREACH (it, &w->_throttled) {
        struct cv_throttle *t = CV_CONTAINER_OF(it, struct cv_throttle, node);
        if (cv_rate_is_stale(&t->place, t->rate))
            cv_timer_start(cv_loop_timers(w->loop), &t->timer, now);
    }
}
