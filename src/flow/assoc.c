#include "flow/assoc.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/hash.h"
#include "common/log.h"
#include "flow/flow_priv.h"

#include "common/poison.h"

#define DOMAIN "udp"

/* Batches that one way may deliver before others have their turn. */
#define BATCHES_PER_TURN 4
#define RETRY_MS         1000 /* after a failure, doubled up to RETRY_MAX_MS */
#define RETRY_MAX_MS     30000
#define FAILED_KEEP_MS   60000 /* a way that failed and is not asked for is forgotten */
#define SWEEP_MIN_MS     100
#define SWEEP_MAX_MS     15000

enum way_state {
    WAY_STATE_OPENING = 1, /* datagrams wait while the egress opens it */
    WAY_STATE_OPEN,
    WAY_STATE_FAILED, /* it cannot be opened, or was closed from outside; tried again later */
};

struct cv_assoc_way {
    struct cv_list node; /* in assoc._ways */
    struct cv_assoc *assoc;
    struct cv_egress *egress; /* a reference */
    enum way_state state;
    struct cv_dial dial; /* in OPENING */
    int64_t start_us;
    struct cv_dgram *dgram; /* owned; in OPEN */
    struct cv_egress_stats *stats;
    struct cv_dgramq wait; /* in OPENING */
    int64_t used_ms;       /* last datagram of either direction */
    int64_t retry_ms;      /* in FAILED: not before */
    uint32_t failures;     /* in a row */
    int err;               /* in FAILED */
    bool queued;           /* 'more' is */
    struct cv_task more;   /* goes on reading in the next turn */
    struct cv_task release;
};

/* What is known about a destination as it was written. */
struct cv_assoc_dest {
    struct cv_assoc_dest *next; /* in assoc._replaced */
    uint64_t hash;
    uint64_t generation; /* of the policy that 'verdict' is from */
    uint32_t used;
    struct cv_verdict verdict;
    struct cv_target target;
    uint16_t key_len;
    uint8_t key[];
};

static void on_dial(struct cv_dial *d);
static void on_event(void *arg, struct cv_dgram *d, unsigned events);
static void on_drop(void *arg, struct cv_dgram *d, int err);
static void on_more(struct cv_task *task);
static void on_timer(struct cv_timer *t);
static void on_release(struct cv_task *task);

const char *cv_udp_drop_name(enum cv_udp_drop why)
{
    static const char *const names[CV_UDP_DROP_MAX] = {
        [CV_UDP_DROP_MALFORMED] = "malformed", [CV_UDP_DROP_FRAGMENT] = "fragment",
        [CV_UDP_DROP_SOURCE] = "source",       [CV_UDP_DROP_POLICY] = "policy",
        [CV_UDP_DROP_GUARD] = "guard",         [CV_UDP_DROP_DNS] = "dns",
        [CV_UDP_DROP_EGRESS] = "egress",       [CV_UDP_DROP_LIMIT] = "limit",
        [CV_UDP_DROP_RATE] = "rate",           [CV_UDP_DROP_SEND] = "send",
    };
    return (unsigned)why < CV_UDP_DROP_MAX ? names[why] : "";
}

static struct cv_worker *worker_of(const struct cv_assoc *a)
{
    return a->_session->worker;
}

static int64_t now_of(const struct cv_assoc *a)
{
    return cv_loop_now(worker_of(a)->loop);
}

/* -- counting -- */

void cv_assoc_dropped(struct cv_assoc *a, enum cv_udp_drop why, size_t n)
{
    if (n == 0)
        return;
    cv_counter_add_owned(&a->counts.dropped, n);
    cv_counter_add(&worker_of(a)->node->stats.udp_dropped[why], n);
}

static enum cv_udp_drop reason_of(int err)
{
    switch (err) {
    case CV_E_POLICY:
        return CV_UDP_DROP_POLICY;
    case CV_E_GUARD:
        return CV_UDP_DROP_GUARD;
    case CV_E_DNS_NXDOMAIN:
    case CV_E_DNS_FAIL:
    case CV_E_DNS_TIMEOUT:
        return CV_UDP_DROP_DNS;
    case CV_E_LIMIT:
    case -ENOMEM:
        return CV_UDP_DROP_LIMIT;
    case CV_E_PROTO:
        return CV_UDP_DROP_MALFORMED;
    case CV_E_UNAVAILABLE:
        return CV_UDP_DROP_EGRESS;
    default:
        return CV_UDP_DROP_SEND;
    }
}

static enum cv_stage stage_of(int err)
{
    switch (reason_of(err)) {
    case CV_UDP_DROP_POLICY:
    case CV_UDP_DROP_GUARD:
        return CV_STAGE_POLICY;
    case CV_UDP_DROP_DNS:
        return CV_STAGE_DNS;
    default:
        return CV_STAGE_DIAL;
    }
}

/* The first failure is what the session says if nothing ever gets through. */
static void note_failure(struct cv_assoc *a, enum cv_stage stage, int err)
{
    if (a->_err != 0)
        return;
    a->_stage = stage;
    a->_err = err;
}

static void drop_one(struct cv_assoc *a, int err)
{
    cv_assoc_dropped(a, reason_of(err), 1);
    note_failure(a, stage_of(err), err);
}

/* -- the user's rate; the one place that both directions pass -- */

static struct cv_rate *rate_of(const struct cv_assoc *a, bool up)
{
    struct cv_account *account = a->_session->account;
    return up ? &account->up : &account->down;
}

static bool rate_allows(struct cv_assoc *a, bool up, size_t len)
{
    struct cv_rate *rate = rate_of(a, up);
    return !cv_rate_is_on(rate) ||
           cv_rate_take(&a->_place[up ? 0 : 1], rate, len, cv_loop_now(worker_of(a)->loop));
}

/* -- ways out -- */

static void way_open(struct cv_assoc_way *w)
{
    struct cv_worker *worker = worker_of(w->assoc);
    int64_t timeout = worker->settings->connect_timeout_ms;
    int64_t now = cv_loop_now(worker->loop);
    w->state = WAY_STATE_OPENING;
    w->start_us = cv_clock_mono_us();
    w->dial = (struct cv_dial){
        .worker = worker,
        .client = w->assoc->_session->client,
        .deadline_ms = timeout > 0 ? now + timeout : INT64_MAX / 2,
        .done = on_dial,
    };
    cv_dial_start_udp(w->egress, &w->dial);
}

static struct cv_assoc_way *way_new(struct cv_assoc *a, struct cv_egress *egress)
{
    struct cv_assoc_way *w = cv_try_zalloc(sizeof(*w));
    if (w == NULL)
        return NULL;
    w->assoc = a;
    w->egress = cv_egress_ref(egress);
    w->used_ms = now_of(a);
    cv_dgramq_init(&w->wait, CV_ASSOC_WAIT_N, CV_ASSOC_WAIT_SIZE, &worker_of(a)->dgram_budget);
    cv_list_add_tail(&a->_ways, &w->node);
    a->_n_ways++;
    way_open(w);
    return w;
}

/* What the way holds while it is open goes back. */
static void way_shut(struct cv_assoc_way *w)
{
    struct cv_loop *loop = worker_of(w->assoc)->loop;
    if (w->queued)
        (void)cv_loop_next_cancel(loop, &w->more);
    w->queued = false;
    if (w->dgram == NULL)
        return;
    cv_gauge_add(&w->stats->row.active, -1);
    cv_dgram_close(w->dgram);
    w->dgram = NULL;
}

static void way_free(struct cv_assoc_way *w)
{
    struct cv_assoc *a = w->assoc;
    if (w->state == WAY_STATE_OPENING)
        cv_dial_cancel(w->egress, &w->dial);
    cv_assoc_dropped(a, CV_UDP_DROP_EGRESS, cv_dgramq_clear(&w->wait));
    way_shut(w);
    cv_list_del(&w->node);
    a->_n_ways--;
    cv_egress_unref(w->egress);
    /* A callback of the flow may be on the stack. */
    w->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(worker_of(a)->loop, &w->release);
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct cv_assoc_way, release));
}

static void way_fail(struct cv_assoc_way *w, enum cv_stage stage, int err)
{
    struct cv_assoc *a = w->assoc;
    w->state = WAY_STATE_FAILED;
    w->err = err;
    w->retry_ms =
        now_of(a) + CV_MIN((int64_t)RETRY_MS << CV_MIN(w->failures, 5u), (int64_t)RETRY_MAX_MS);
    w->failures++;
    cv_assoc_dropped(a, CV_UDP_DROP_EGRESS, cv_dgramq_clear(&w->wait));
    note_failure(a, stage, err);
    cv_log_limited(CV_LOG_INFO, DOMAIN, "no way out egress='%s' stage='%s' error='%s'",
                   w->egress->label->s, cv_stage_name(stage), cv_stage_message(stage, err));
}

/* The way for a verdict: the one that is there, or a new one. NULL and the code: it is dropped. */
static struct cv_assoc_way *way_get(struct cv_assoc *a, struct cv_egress *egress, int *ret_err)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &a->_ways) {
        struct cv_assoc_way *w = CV_CONTAINER_OF(it, struct cv_assoc_way, node);
        if (!cv_egress_same(w->egress, egress))
            continue;
        if (w->state == WAY_STATE_FAILED) {
            *ret_err = CV_E_UNAVAILABLE;
            if (now_of(a) < w->retry_ms)
                return NULL;
            way_open(w);
        }
        return w;
    }
    *ret_err = CV_E_LIMIT;
    if (a->_n_ways >= CV_ASSOC_WAYS)
        return NULL;
    *ret_err = -ENOMEM;
    return way_new(a, egress);
}

/* -- destinations -- */

static struct cv_assoc_dest *dest_new(struct cv_assoc *a, const struct cv_assoc_msg *m,
                                      uint64_t hash)
{
    struct cv_assoc_dest *d = cv_try_alloc(sizeof(*d) + m->key_len);
    if (d == NULL)
        return NULL;
    if (a->_ops->target(m->key, m->key_len, &d->target) != 0) {
        cv_free(d);
        return NULL;
    }
    d->next = NULL;
    d->hash = hash;
    d->generation = 0;
    d->key_len = (uint16_t)m->key_len;
    memcpy(d->key, m->key, m->key_len);
    return d;
}

/* The entry of a destination; each has two places, and the one that was used less recently goes.
 * NULL: no such target, or no memory. */
static struct cv_assoc_dest *dest_get(struct cv_assoc *a, const struct cv_assoc_msg *m)
{
    CV_ASSERT(m->key_len <= CV_ASSOC_KEY_MAX);
    uint64_t hash = cv_hash_bytes(NULL, m->key, m->key_len);
    struct cv_assoc_dest **pair = &a->_dests[hash & (CV_ASSOC_DESTS - 2)];
    uint32_t use = ++a->_uses;
    for (int i = 0; i < 2; i++) {
        struct cv_assoc_dest *d = pair[i];
        if (d != NULL && d->hash == hash && d->key_len == m->key_len &&
            memcmp(d->key, m->key, m->key_len) == 0) {
            d->used = use;
            return d;
        }
    }
    struct cv_assoc_dest *d = dest_new(a, m, hash);
    if (d == NULL)
        return NULL;
    d->used = use;
    int i = pair[0] != NULL && (pair[1] == NULL || use - pair[1]->used > use - pair[0]->used);
    if (pair[i] != NULL) { /* a datagram of the running batch may point to it */
        pair[i]->next = a->_replaced;
        a->_replaced = pair[i];
    }
    pair[i] = d;
    return d;
}

static void replaced_free(struct cv_assoc *a)
{
    for (struct cv_assoc_dest *d = a->_replaced, *next; d != NULL; d = next) {
        next = d->next;
        cv_free(d);
    }
    a->_replaced = NULL;
}

static void decide(struct cv_assoc *a, struct cv_assoc_dest *d, const struct cv_active *active)
{
    const struct cv_session *s = a->_session;
    uint32_t user =
        cv_snapshot_user_find(active->snapshot, s->account->name->s, s->account->name->len);
    cv_decide(active->snapshot, user, &d->target.host, NULL, &d->verdict);
    d->generation = active->generation;
    if (CV_LOG_DEBUG <= cv_log_level()) {
        char text[CV_TARGET_STRLEN];
        cv_debug(DOMAIN, "decided session=%016llx target=%s route=%d verdict='%s' snapshot=%llu",
                 (unsigned long long)s->id, cv_target_format(&d->target, text),
                 (int)d->verdict.route, cv_verdict_label(active->snapshot, &d->verdict)->s,
                 (unsigned long long)cv_snapshot_version(active->snapshot));
    }
}

/* The way for a datagram to 'd', with the verdict that is in force; NULL and the code. */
static struct cv_assoc_way *route(struct cv_assoc *a, struct cv_assoc_dest *d, int *ret_err)
{
    struct cv_session *s = a->_session;
    const struct cv_active *active = cv_active_get(s->worker->node->active);
    bool fresh = d->generation != active->generation;
    if (fresh)
        decide(a, d, active);
    const struct cv_verdict *v = &d->verdict;
    bool blocked = v->action == CV_ACTION_BLOCK;
    /* The line tells the last decision that was for a way out, or a block if there was no other. */
    if (fresh && (!blocked || s->decision == NULL))
        cv_flow_keep_verdict(s, active->snapshot, v);
    *ret_err = CV_E_POLICY;
    if (blocked)
        return NULL;
    return way_get(a, v->action == CV_ACTION_DIRECT ? active->direct : active->egresses[v->egress],
                   ret_err);
}

/* -- from the client -- */

static void way_count_up(struct cv_assoc_way *w, size_t n, size_t bytes)
{
    struct cv_assoc *a = w->assoc;
    if (n == 0)
        return;
    cv_counter_add_owned(&a->counts.up, n);
    cv_counter_add(&worker_of(a)->node->stats.udp_up, n);
    cv_session_count_row(a->_session, &w->stats->row, bytes, 0);
}

static void way_send(struct cv_assoc_way *w, struct cv_dgram_out *out, size_t n)
{
    struct cv_assoc *a = w->assoc;
    size_t sent = 0, bytes = 0;
    cv_dgram_send(w->dgram, out, n);
    for (size_t i = 0; i < n; i++) {
        if (out[i].err != 0) {
            drop_one(a, out[i].err);
            continue;
        }
        sent++;
        bytes += out[i].len;
    }
    way_count_up(w, sent, bytes);
}

/* Send or keep datagrams that go the same way. */
static void way_take(struct cv_assoc_way *w, struct cv_dgram_out *out, size_t n)
{
    if (n == 0)
        return;
    w->used_ms = now_of(w->assoc);
    if (w->state == WAY_STATE_OPEN) {
        way_send(w, out, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int ret = cv_dgramq_push(&w->wait, &out[i]);
        if (ret != 0)
            drop_one(w->assoc, ret);
    }
}

void cv_assoc_send(struct cv_assoc *a, const struct cv_assoc_msg *msgs, size_t n)
{
    struct cv_dgram_out out[CV_DGRAM_BATCH];
    struct cv_assoc_way *way = NULL; /* that out[0..filled) go */
    size_t filled = 0;
    CV_ASSERT(n <= CV_DGRAM_BATCH);
    a->_active_ms = now_of(a);
    if (a->_dests == NULL &&
        (a->_dests = cv_try_zalloc(CV_ASSOC_DESTS * sizeof(struct cv_assoc_dest *))) == NULL) {
        cv_assoc_dropped(a, CV_UDP_DROP_LIMIT, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int err = 0;
        if (!rate_allows(a, true, msgs[i].len)) {
            cv_assoc_dropped(a, CV_UDP_DROP_RATE, 1);
            continue;
        }
        struct cv_assoc_dest *d = dest_get(a, &msgs[i]);
        if (d == NULL) {
            cv_assoc_dropped(a, CV_UDP_DROP_MALFORMED, 1);
            continue;
        }
        struct cv_assoc_way *w = route(a, d, &err);
        if (w == NULL) {
            drop_one(a, err);
            continue;
        }
        if (w != way) {
            if (filled > 0)
                way_take(way, out, filled);
            way = w;
            filled = 0;
        }
        out[filled++] = (struct cv_dgram_out){
            .to = &d->target,
            .grant = d->verdict.names_special ? &d->verdict.special : NULL,
            .data = msgs[i].data,
            .len = msgs[i].len,
        };
    }
    if (filled > 0)
        way_take(way, out, filled);
    replaced_free(a);
}

/* -- to the client -- */

/* Keep those that the user's rate allows; buffers stay each in one message. */
static size_t pass_rate(struct cv_assoc *a, struct cv_dgram_in *msgs, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (!rate_allows(a, false, msgs[i].len))
            continue;
        struct cv_dgram_in m = msgs[i];
        msgs[i] = msgs[kept];
        msgs[kept++] = m;
    }
    cv_assoc_dropped(a, CV_UDP_DROP_RATE, n - kept);
    return kept;
}

static void way_deliver(struct cv_assoc_way *w, struct cv_dgram_in *msgs, size_t n)
{
    struct cv_assoc *a = w->assoc;
    size_t sent = 0, bytes = 0;
    w->used_ms = a->_active_ms = now_of(a);
    n = pass_rate(a, msgs, n);
    if (n == 0)
        return;
    a->_ops->deliver(a, msgs, n, &sent, &bytes);
    cv_assoc_dropped(a, CV_UDP_DROP_SEND, n - sent);
    if (sent == 0)
        return;
    cv_counter_add_owned(&a->counts.down, sent);
    cv_counter_add(&worker_of(a)->node->stats.udp_down, sent);
    cv_session_count_row(a->_session, &w->stats->row, 0, bytes);
}

static void way_read(struct cv_assoc_way *w)
{
    struct cv_worker *worker = worker_of(w->assoc);
    struct cv_dgram_in msgs[CV_DGRAM_BATCH];
    for (int i = 0; i < BATCHES_PER_TURN; i++) {
        size_t n = 0;
        if (cv_worker_dgram_slots(worker, msgs, CV_DGRAM_BATCH) != 0 ||
            cv_dgram_recv(w->dgram, msgs, CV_DGRAM_BATCH, &n) != 0)
            return;
        if (n > 0)
            way_deliver(w, msgs, n);
    }
    if (w->queued)
        return;
    w->queued = true;
    w->more = (struct cv_task){.fn = on_more};
    cv_loop_next(worker->loop, &w->more);
}

static void on_more(struct cv_task *task)
{
    struct cv_assoc_way *w = CV_CONTAINER_OF(task, struct cv_assoc_way, more);
    w->queued = false;
    way_read(w);
}

static void on_event(void *arg, struct cv_dgram *d, unsigned events)
{
    struct cv_assoc_way *w = arg;
    if ((events & CV_DGRAM_READ) && !w->queued)
        way_read(w);
    if (events & CV_DGRAM_HUP) {
        int err = d->err != 0 ? d->err : CV_E_UNAVAILABLE;
        way_shut(w);
        way_fail(w, CV_STAGE_SPLICE, err);
    }
}

static void on_drop(void *arg, struct cv_dgram *d, int err)
{
    struct cv_assoc_way *w = arg;
    (void)d;
    w->assoc->_late += err != CV_E_PROTO; /* that is of one that came in */
    drop_one(w->assoc, err);
}

static void way_flush(struct cv_assoc_way *w)
{
    for (struct cv_dgramq_item *item; (item = cv_dgramq_pop(&w->wait)) != NULL;) {
        way_send(w, &item->out, 1);
        cv_dgramq_item_free(item);
    }
}

static void on_dial(struct cv_dial *d)
{
    struct cv_assoc_way *w = CV_CONTAINER_OF(d, struct cv_assoc_way, dial);
    struct cv_session *s = w->assoc->_session;
    w->stats = d->stats != NULL ? d->stats : w->egress->stats;
    s->attempts = d->attempts;
    if (d->err != 0) {
        cv_counter_add(&w->stats->row.refused[d->stage], 1);
        way_fail(w, d->stage, d->err);
        return;
    }
    w->state = WAY_STATE_OPEN;
    w->dgram = d->dgram;
    w->failures = 0;
    w->used_ms = now_of(w->assoc);
    cv_rcstr_unref(s->outlet);
    cv_rcstr_unref(s->member);
    s->outlet = cv_rcstr_ref(d->outlet != NULL ? d->outlet : w->egress->label);
    s->member = cv_rcstr_ref(d->member);
    cv_gauge_add(&w->stats->row.active, 1);
    cv_counter_add(&w->stats->row.sessions, 1);
    int64_t took_us = CV_MAX(cv_clock_mono_us() - w->start_us, 1);
    cv_histogram_observe_us(&w->stats->dial, (uint64_t)took_us);
    cv_dgram_set_cb(w->dgram, on_event, on_drop, w);
    way_flush(w);
    way_read(w);
}

/* -- life -- */

static int64_t sweep_ms(const struct cv_settings *s)
{
    int64_t t = s->udp_timeout_ms;
    if (s->idle_timeout_ms > 0)
        t = CV_MIN(t, s->idle_timeout_ms);
    return CV_MIN(CV_MAX(t / 4, (int64_t)SWEEP_MIN_MS), (int64_t)SWEEP_MAX_MS);
}

static void on_timer(struct cv_timer *t)
{
    struct cv_assoc *a = CV_CONTAINER_OF(t, struct cv_assoc, _timer);
    const struct cv_settings *settings = worker_of(a)->settings;
    int64_t now = now_of(a);
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &a->_ways) {
        struct cv_assoc_way *w = CV_CONTAINER_OF(it, struct cv_assoc_way, node);
        int64_t idle = now - w->used_ms;
        if ((w->state == WAY_STATE_OPEN && idle >= settings->udp_timeout_ms) ||
            (w->state == WAY_STATE_FAILED && idle >= FAILED_KEEP_MS))
            way_free(w);
    }
    if (settings->idle_timeout_ms > 0 && now - a->_active_ms >= settings->idle_timeout_ms) {
        a->_ops->idle(a);
        return;
    }
    cv_loop_timer(worker_of(a)->loop, t, sweep_ms(settings));
}

int cv_assoc_start(struct cv_assoc *a, struct cv_session *s, const struct cv_assoc_ops *ops)
{
    const struct cv_snapshot *snapshot = cv_active_get(s->worker->node->active)->snapshot;
    uint32_t user = cv_snapshot_user_find(snapshot, s->account->name->s, s->account->name->len);
    enum cv_stage stage = CV_STAGE_NONE;
    int ret = cv_flow_admit(s, user != CV_USER_NONE ? cv_snapshot_user(snapshot, user) : NULL, NULL,
                            &stage);
    if (ret != 0) {
        cv_session_fail(s, stage, ret);
        return ret;
    }
    *a = (struct cv_assoc){
        ._session = s,
        ._ops = ops,
        ._active_ms = cv_loop_now(s->worker->loop),
    };
    cv_list_init(&a->_ways);
    cv_timer_init(&a->_timer, on_timer);
    cv_loop_timer(s->worker->loop, &a->_timer, sweep_ms(s->worker->settings));
    cv_gauge_add(&s->worker->node->stats.udp_associations, 1);
    s->state = CV_SESSION_RELAY;
    s->udp = &a->counts;
    s->note = "udp association";
    return 0;
}

void cv_assoc_end(struct cv_assoc *a)
{
    struct cv_session *s = a->_session;
    if (s == NULL)
        return;
    cv_loop_timer_stop(s->worker->loop, &a->_timer);
    cv_rate_leave(&a->_place[0], rate_of(a, true));
    cv_rate_leave(&a->_place[1], rate_of(a, false));
    while (!cv_list_is_empty(&a->_ways))
        way_free(CV_CONTAINER_OF(a->_ways.next, struct cv_assoc_way, node));
    for (size_t i = 0; a->_dests != NULL && i < CV_ASSOC_DESTS; i++)
        cv_free(a->_dests[i]);
    CV_FREE(a->_dests);
    cv_gauge_add(&s->worker->node->stats.udp_associations, -1);
    if (a->_err != 0 && cv_counter_get(&a->counts.up) <= a->_late)
        cv_session_fail(s, a->_stage, a->_err);
    a->_session = NULL;
}
