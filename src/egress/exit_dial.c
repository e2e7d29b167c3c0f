/* One dial through a tunnel: told by a worker, carried out on the stack thread, answered to the
 * worker. The object is freed when the answer has come and, if it was given up, that has come too.
 */
#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "egress/exits_priv.h"
#include "flow/worker.h"
#include "net/crossing.h"

#include "common/poison.h"

#define ATTEMPT_MS 3000 /* before the next address has its turn */

static void go(struct cv_exit_dial *t);
static void attempt(struct cv_exit_dial *t);

static void unref(struct cv_exit_dial *t)
{
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1)
        cv_free(t);
}

/* -- stack thread -- */

static void clear(struct cv_exit_dial *t)
{
    cv_loop_timer_stop(t->exits->loop, &t->timer);
    cv_resolve_cancel(&t->q4);
    cv_resolve_cancel(&t->q6);
    if (t->exit != NULL) {
        cv_netif_cancel(t->exit->nif, &t->connect);
        cv_list_del(&t->node);
        t->exit->n_dials--;
        t->exit = NULL;
    }
}

static void answer(struct cv_exit_dial *t, int err, enum cv_stage stage, enum cv_blame blame)
{
    if (t->answered)
        return;
    t->answered = true;
    clear(t);
    t->err = err;
    t->stage = stage;
    t->blame = blame;
    cv_loop_post(t->worker_loop, &t->answer);
}

static void refuse(struct cv_exit_dial *t)
{
    answer(t, CV_E_UNAVAILABLE, CV_STAGE_TUNNEL_DOWN, CV_BLAME_EGRESS);
}

static enum cv_blame blame_of(int err)
{
    return err == -ECONNREFUSED || err == CV_E_DNS_NXDOMAIN || err == CV_E_GUARD ? CV_BLAME_TARGET
                                                                                 : CV_BLAME_UNSURE;
}

static void on_connected(struct cv_net_connect *c, int err, struct cv_stream *s)
{
    struct cv_exit_dial *t = CV_CONTAINER_OF(c, struct cv_exit_dial, connect);
    if (err == 0) {
        t->local = c->local;
        t->peer = (struct cv_endpoint){.ip = t->ips[t->next_ip - 1], .port = t->target.port};
        err = cv_crossing_new(t->worker_loop, s, &t->crossing);
        answer(t, err, CV_STAGE_DIAL, CV_BLAME_TARGET);
        return;
    }
    if (err == -ENETDOWN || err == -ENETRESET) {
        /* The tunnel, not the target. */
        refuse(t);
        return;
    }
    if (t->connect_err == 0 || err == -ECONNREFUSED)
        t->connect_err = err;
    attempt(t);
}

static void on_timer(struct cv_timer *timer)
{
    struct cv_exit_dial *t = CV_CONTAINER_OF(timer, struct cv_exit_dial, timer);
    bool late = cv_loop_now(t->exits->loop) >= t->deadline_ms;
    if (!t->started) {
        refuse(t);
    } else if (t->resolving) {
        answer(t, CV_E_DNS_TIMEOUT, CV_STAGE_DNS, CV_BLAME_UNSURE);
    } else if (late) {
        answer(t, -ETIMEDOUT, CV_STAGE_DIAL, CV_BLAME_UNSURE);
    } else {
        cv_netif_cancel(t->exit->nif, &t->connect);
        t->connect_err = -ETIMEDOUT;
        attempt(t);
    }
}

/* The next address, or the end. */
static void attempt(struct cv_exit_dial *t)
{
    int64_t now = cv_loop_now(t->exits->loop);
    int err = 0;
    while (t->next_ip < t->n_ips) {
        struct cv_endpoint to = {.ip = t->ips[t->next_ip++], .port = t->target.port};
        if ((err = cv_exit_guard(&to.ip)) != 0) {
            t->connect_err = t->connect_err == 0 ? err : t->connect_err;
            continue;
        }
        bool last = t->next_ip == t->n_ips;
        int64_t left = t->deadline_ms - now;
        t->connect = (struct cv_net_connect){.cb = on_connected};
        cv_netif_connect(t->exit->nif, &t->connect, &to);
        cv_loop_timer(t->exits->loop, &t->timer,
                      CV_MAX(last ? left : CV_MIN(left, (int64_t)ATTEMPT_MS), 1));
        return;
    }
    err = t->connect_err != 0 ? t->connect_err : -ENETUNREACH;
    answer(t, err, err == CV_E_GUARD ? CV_STAGE_POLICY : CV_STAGE_DIAL, blame_of(err));
}

static void resolved(struct cv_exit_dial *t, int err, const struct cv_ip *ips, size_t n)
{
    if (err != 0 && (t->dns_err == 0 || err != CV_E_DNS_NXDOMAIN))
        t->dns_err = err;
    for (size_t i = 0; i < n && t->n_ips < CV_ARRAY_SIZE(t->ips); i++)
        t->ips[t->n_ips++] = ips[i];
    if (t->q4._entry != NULL || t->q6._entry != NULL)
        return;
    t->resolving = false;
    if (t->n_ips == 0) {
        err = t->dns_err != 0 ? t->dns_err : CV_E_DNS_NXDOMAIN;
        answer(t, err, CV_STAGE_DNS, blame_of(err));
        return;
    }
    /* The preferred family first, else in the order of the answers. */
    struct cv_ip sorted[CV_ARRAY_SIZE(t->ips)];
    unsigned k = 0;
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < t->n_ips; i++)
            if ((t->ips[i].family == t->prefer) == (pass == 0))
                sorted[k++] = t->ips[i];
    memcpy(t->ips, sorted, k * sizeof(sorted[0]));
    attempt(t);
}

static void on_q4(struct cv_resolve *q, int err, const struct cv_ip *ips, size_t n)
{
    resolved(CV_CONTAINER_OF(q, struct cv_exit_dial, q4), err, ips, n);
}

static void on_q6(struct cv_resolve *q, int err, const struct cv_ip *ips, size_t n)
{
    resolved(CV_CONTAINER_OF(q, struct cv_exit_dial, q6), err, ips, n);
}

/* The exit is up. */
static void go(struct cv_exit_dial *t)
{
    struct cv_exit *e = t->exit;
    t->started = true;
    if (t->udp) {
        int err = cv_exit_udp_open(e, t->worker_loop, &t->crossing_udp);
        answer(t, err, CV_STAGE_DIAL, CV_BLAME_TARGET);
        return;
    }
    if (cv_host_is_ip(&t->target.host)) {
        t->ips[0] = t->target.host.ip;
        t->n_ips = 1;
        attempt(t);
        return;
    }
    const struct cv_net_addresses *a = &e->nif->addresses;
    t->resolving = true;
    t->q4.cb = on_q4;
    t->q6.cb = on_q6;
    if (a->ip4.family != CV_AF_NONE)
        cv_resolve_start(&t->q4, e->resolver, t->target.host.name, CV_AF_IP4);
    if (a->ip6.family != CV_AF_NONE)
        cv_resolve_start(&t->q6, e->resolver, t->target.host.name, CV_AF_IP6);
    if (t->q4._entry == NULL && t->q6._entry == NULL)
        answer(t, -ENETUNREACH, CV_STAGE_DIAL, CV_BLAME_EGRESS);
    else
        cv_loop_timer(t->exits->loop, &t->timer,
                      CV_MAX(t->deadline_ms - cv_loop_now(t->exits->loop), 1));
}

void cv_exit_dials_look(struct cv_exit *e)
{
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &e->dials) {
        struct cv_exit_dial *t = CV_CONTAINER_OF(it, struct cv_exit_dial, node);
        if (t->started)
            continue;
        if (e->state == CV_EXIT_DOWN)
            refuse(t);
        else if (e->state == CV_EXIT_UP)
            go(t);
    }
}

void cv_exit_dials_refuse(struct cv_exit *e)
{
    while (!cv_list_is_empty(&e->dials))
        refuse(CV_CONTAINER_OF(e->dials.next, struct cv_exit_dial, node));
}

static void on_start(struct cv_task *task)
{
    struct cv_exit_dial *t = CV_CONTAINER_OF(task, struct cv_exit_dial, start);
    struct cv_exit *e = cv_exit_find(t->exits, t->name);
    int64_t now = cv_loop_now(t->exits->loop);
    if (e == NULL || e->state == CV_EXIT_DOWN || e->n_dials >= CV_EXIT_WAITING_MAX) {
        refuse(t);
        return;
    }
    t->exit = e;
    cv_list_add_tail(&e->dials, &t->node);
    e->n_dials++;
    if (e->state == CV_EXIT_UP)
        go(t);
    else
        cv_loop_timer(t->exits->loop, &t->timer,
                      CV_MAX(CV_MIN(t->deadline_ms - now, (int64_t)CV_EXIT_WAIT_MS), 1));
}

static void on_cancel(struct cv_task *task)
{
    struct cv_exit_dial *t = CV_CONTAINER_OF(task, struct cv_exit_dial, cancel);
    answer(t, CV_E_CANCELED, CV_STAGE_DIAL, CV_BLAME_UNSURE);
    unref(t);
}

/* -- the worker -- */

static void on_answer(struct cv_task *task)
{
    struct cv_exit_dial *t = CV_CONTAINER_OF(task, struct cv_exit_dial, answer);
    struct cv_dial *d = t->d;
    if (d == NULL) {
        if (t->crossing != NULL)
            cv_crossing_refuse(t->crossing);
        if (t->crossing_udp != NULL)
            cv_crossing_udp_refuse(t->crossing_udp);
        unref(t);
        return;
    }
    d->_impl = NULL;
    d->err = t->err;
    d->stage = t->stage;
    d->blame = t->blame;
    d->local = t->local;
    d->peer = t->peer;
    if (t->err == 0 && t->udp)
        d->dgram = cv_crossing_udp_take(t->crossing_udp);
    else if (t->err == 0)
        d->stream = cv_crossing_take(t->crossing);
    unref(t);
    cv_dial_done(d);
}

void cv_exit_dial_connect(struct cv_egress *e, struct cv_dial *d, struct cv_exits *x,
                          const char *name, bool udp)
{
    (void)e;
    size_t len = strlen(name);
    struct cv_exit_dial *t = x != NULL ? cv_try_zalloc(sizeof(*t) + len + 1) : NULL;
    if (t == NULL) {
        if (x == NULL)
            cv_dial_fail_later(d, CV_STAGE_TUNNEL_DOWN, CV_E_UNAVAILABLE);
        else
            cv_dial_fail_later(d, CV_STAGE_TUNNEL_DOWN, -ENOMEM);
        return;
    }
    memcpy(t->name, name, len + 1);
    t->d = d;
    t->exits = x;
    t->worker_loop = d->worker->loop;
    t->start.fn = on_start;
    t->cancel.fn = on_cancel;
    t->answer.fn = on_answer;
    atomic_init(&t->refs, 1);
    t->udp = udp;
    if (!udp)
        t->target = *d->target;
    t->prefer = d->worker->settings->direct_prefer;
    t->deadline_ms = d->deadline_ms;
    cv_list_init(&t->node);
    cv_timer_init(&t->timer, on_timer);
    d->_impl = t;
    cv_loop_post(x->loop, &t->start);
}

void cv_exit_dial_cancel(struct cv_dial *d)
{
    struct cv_exit_dial *t = d->_impl;
    if (t == NULL)
        return;
    d->_impl = NULL;
    t->d = NULL;
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    cv_loop_post(t->exits->loop, &t->cancel);
}
