/* Timers of one thread, embedded in their owners: a hierarchical wheel with millisecond ticks.
 * Start, stop and expiry cost the same however many timers there are. A timer fires once, never
 * before its time. The wheel has no clock of its own: time comes in through
 * cv_timers_advance(), so a test drives it by hand. */
#pragma once

#include "common/list.h"

struct cv_timer;
typedef void (*cv_timer_cb)(struct cv_timer *t);

struct cv_timer {
    struct cv_list _node;
    int64_t _due_ms;
    cv_timer_cb cb; /* set before start */
    bool _armed;
};

struct cv_timers;

int cv_timers_new(int64_t now_ms, struct cv_timers **ret_timers);
void cv_timers_free(struct cv_timers *ts); /* no timer may be armed */

static inline void cv_timer_init(struct cv_timer *t, cv_timer_cb cb)
{
    cv_list_init(&t->_node);
    t->cb = cb;
    t->_armed = false;
    t->_due_ms = 0;
}
static inline bool cv_timer_is_armed(const struct cv_timer *t)
{
    return t->_armed;
}

/* Fire 't' at 'due_ms' (absolute); an armed timer is moved. A past time fires at the next advance,
 * never from inside this call. */
void cv_timer_start(struct cv_timers *ts, struct cv_timer *t, int64_t due_ms);
void cv_timer_stop(struct cv_timers *ts, struct cv_timer *t); /* not armed: nothing */

/* When cv_timers_advance() should be called next; INT64_MAX without timers. May be early. */
int64_t cv_timers_next_ms(const struct cv_timers *ts);
/* Fire all that is due up to 'now_ms', in order of their ticks. Callbacks may start and stop any
 * timer. */
void cv_timers_advance(struct cv_timers *ts, int64_t now_ms);
size_t cv_timers_count(const struct cv_timers *ts);
