#include <errno.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/hash.h"
#include "common/log.h"
#include "egress/egress.h"
#include "egress/member.h"
#include "egress/order.h"
#include "flow/worker.h"

#include "common/poison.h"

#define DOMAIN  "chain"
#define LEFT_MS 1000 /* a client that waited so long in vain says something about the member */

struct link {                 /* one member */
    struct cv_egress *egress; /* a reference */
    struct cv_member *member; /* a reference */
    uint32_t priority;
};

struct chain {
    struct cv_egress super; /* first */
    unsigned n;
    struct link links[]; /* by priority */
};

/* One dial through the chain: a dial of one member after another. */
struct pass {
    struct cv_dial dial;   /* of the member that is being tried */
    struct chain *chain;   /* borrowed: held by the caller of the outer dial */
    struct cv_dial *outer; /* borrowed until it is answered */
    struct cv_timer timer; /* of this attempt */
    struct cv_order order;
    struct link *link;       /* the member that is being tried */
    struct cv_vital_try try; /* likewise */
    unsigned tag;            /* of the target */
    int64_t end_ms;          /* of the whole pass */
    int64_t start_ms;        /* of this attempt */
    /* What all attempts so far have in common; err 0: nothing, or there was none. */
    int err;
    bool target;   /* each failed because of the target */
    bool starting; /* the outer dial's start is on the stack, from where no answer may come */
};

static void on_member_done(struct cv_dial *d);
static void on_attempt_timeout(struct cv_timer *t);
static bool next(struct pass *p);

/* ---- the life of a dial ---- */

static unsigned target_tag(const struct cv_target *t)
{
    if (t == NULL)
        return 0;
    return cv_vital_tag(cv_hash_bytes(NULL, t->host.name, t->host.name_len) + t->port);
}

/* Members that cannot carry UDP at all are no attempts. */
static void leave_out(struct pass *p)
{
    for (unsigned i = 0; i < p->chain->n; i++)
        if (p->chain->links[i].egress->ops->open_udp == NULL)
            p->order.tried |= UINT32_C(1) << i;
}

/* For connect() and open_udp(): d->udp says which. */
static void chain_start(struct cv_egress *e, struct cv_dial *d)
{
    struct chain *c = CV_CONTAINER_OF(e, struct chain, super);
    struct cv_loop *loop = d->worker->loop;
    struct pass *p = cv_try_alloc(sizeof(*p));
    if (p == NULL) {
        cv_dial_fail_later(d, CV_STAGE_CHAIN_EXHAUSTED, -ENOMEM);
        return;
    }
    *p = (struct pass){
        .chain = c,
        .outer = d,
        .tag = target_tag(d->target),
        .end_ms = cv_loop_now(loop) + d->worker->settings->chain_total_timeout_ms,
        .target = true,
        .starting = true,
    };
    cv_timer_init(&p->timer, on_attempt_timeout);
    d->_impl = p;
    if (d->udp)
        leave_out(p);
    if (next(p))
        p->starting = false;
}

/* Find who is next and begin the attempt on its state. False: all have been tried. */
static bool choose(struct pass *p, int64_t now)
{
    struct chain *c = p->chain;
    struct cv_order_choice choice;
    uint64_t words[CV_ORDER_MAX];
    /* Each round that another thread spoils has made a member PROBING that was not before, so this
     * ends; the limit is for a world in which that is wrong. */
    for (unsigned round = 0;; round++) {
        uint32_t quiet = 0;
        for (unsigned i = 0; i < c->n; i++) {
            struct cv_member *m = c->links[i].member;
            words[i] = cv_member_word(m);
            if (round > 2 * CV_ORDER_MAX || atomic_load_explicit(&m->checked, memory_order_relaxed))
                quiet |= UINT32_C(1) << i;
        }
        if (!cv_order_choose(&p->order, words, c->n, quiet, now, &choice))
            return false;
        p->link = &c->links[choice.index];
        if (cv_member_begin(p->link->member, words[choice.index], choice.way, p->tag, now, &p->try))
            break;
    }
    cv_order_take(&p->order, &choice);
    return true;
}

/* p->try has come to 'event'. */
static void tell(struct pass *p, struct link *l, enum cv_vital_event event, enum cv_stage stage,
                 int err)
{
    const struct cv_worker *w = p->outer->worker;
    cv_loop_timer_stop(w->loop, &p->timer);
    cv_member_end(l->member, &p->try, event, stage, err, cv_loop_now(w->loop),
                  w->settings->chain_backoff_ms, w->settings->chain_backoff_max_ms);
}

/* Give the outer dial its answer; the pass is gone after this. */
static void answer(struct pass *p)
{
    struct cv_dial *d = p->outer;
    unsigned index;
    if (cv_order_end(&p->order, d->err == 0, &index, &p->try))
        tell(p, &p->chain->links[index], CV_VITAL_UNSURE, CV_STAGE_NONE, 0);
    CV_ASSERT(!cv_timer_is_armed(&p->timer));
    d->_impl = NULL;
    cv_free(p);
    cv_dial_done(d);
}

/* What a client is told: the one reason that all members gave if it is about the target, that all
 * was too slow, or that the chain has failed. */
static int exhausted_err(const struct pass *p)
{
    if (p->outer->attempts == 0)
        return -EPROTONOSUPPORT; /* no member can carry UDP */
    if (p->err != 0 && (p->target || p->err == -ETIMEDOUT))
        return p->err;
    return CV_E_UNAVAILABLE;
}

static void exhausted(struct pass *p)
{
    struct cv_dial *d = p->outer;
    int err = exhausted_err(p);
    if (p->starting) {
        d->_impl = NULL;
        cv_free(p);
        cv_dial_fail_later(d, CV_STAGE_CHAIN_EXHAUSTED, err);
        return;
    }
    d->stage = CV_STAGE_CHAIN_EXHAUSTED;
    d->err = err;
    answer(p);
}

/* False: there was none, and the pass is gone. */
static bool next(struct pass *p)
{
    struct cv_dial *d = p->outer;
    struct cv_loop *loop = d->worker->loop;
    int64_t now = cv_loop_now(loop);
    if (now >= p->end_ms || !choose(p, now)) {
        exhausted(p);
        return false;
    }
    d->attempts++;
    p->start_ms = now;
    p->dial = (struct cv_dial){
        .worker = d->worker,
        .target = d->target,
        .names_special = d->names_special,
        .special = d->special,
        .client = d->client,
        .deadline_ms = CV_MIN(now + d->worker->settings->chain_attempt_timeout_ms, p->end_ms),
        .done = on_member_done,
    };
    /* The member keeps the deadline itself; this is for one that does not. */
    cv_loop_timer(loop, &p->timer, p->dial.deadline_ms - now);
    if (d->udp)
        cv_dial_start_udp(p->link->egress, &p->dial);
    else
        cv_dial_start(p->link->egress, &p->dial);
    return true;
}

/* What a failure says about the member: a proxy that does not relay datagrams may carry connections
 * very well. */
static enum cv_vital_event verdict(const struct pass *p, enum cv_stage stage, int err,
                                   enum cv_blame blame)
{
    if (p->outer->udp && stage == CV_STAGE_OUTBOUND && err == CV_E_UNSUPPORTED)
        return CV_VITAL_WORKS;
    if (p->outer->udp && blame == CV_BLAME_UNSURE)
        return CV_VITAL_NOTHING;
    return cv_member_verdict(err, blame);
}

static void attempt_failed(struct pass *p, enum cv_stage stage, int err, enum cv_blame blame)
{
    struct cv_member *m = p->link->member;
    cv_debug(DOMAIN, "attempt failed egress='%s' member='%s' outlet='%s' stage='%s' error='%s'",
             m->egress_id->s, cv_rcstr_text(m->id), m->label->s, cv_stage_name(stage),
             cv_err_text(err));
    cv_counter_add(&m->failed[blame], 1);
    unsigned index = (unsigned)(p->link - p->chain->links);
    enum cv_vital_event event =
        cv_order_failed(&p->order, index, &p->try, verdict(p, stage, err, blame));
    tell(p, p->link, event, stage, err);
    if (err == -EPROTONOSUPPORT) {
        p->outer->attempts--; /* as those that were left out */
    } else {
        p->err = p->outer->attempts == 1 || p->err == err ? err : 0;
        p->target = p->target && blame == CV_BLAME_TARGET;
    }
    (void)next(p);
}

static void on_member_done(struct cv_dial *in)
{
    struct pass *p = CV_CONTAINER_OF(in, struct pass, dial);
    struct cv_dial *d = p->outer;
    struct link *l = p->link;
    if (in->err != 0) {
        attempt_failed(p, in->stage, in->err, in->blame);
        return;
    }
    cv_counter_add(&l->member->established, 1);
    tell(p, l, CV_VITAL_WORKS, CV_STAGE_NONE, 0);
    d->err = 0;
    d->stage = CV_STAGE_NONE;
    d->stream = in->stream;
    d->dgram = in->dgram;
    d->local = in->local;
    d->peer = in->peer;
    d->outlet = in->outlet != NULL ? in->outlet : l->egress->label;
    d->member = l->member->id;
    d->stats = in->stats != NULL ? in->stats : l->egress->stats;
    answer(p);
}

static void on_attempt_timeout(struct cv_timer *t)
{
    struct pass *p = CV_CONTAINER_OF(t, struct pass, timer);
    enum cv_blame blame = p->dial.blame;
    cv_dial_cancel(p->link->egress, &p->dial);
    attempt_failed(p, CV_STAGE_DIAL, -ETIMEDOUT, blame);
}

static void chain_cancel(struct cv_egress *e, struct cv_dial *d)
{
    struct pass *p = d->_impl;
    enum cv_vital_event event = CV_VITAL_NOTHING;
    enum cv_blame blame = p->dial.blame;
    (void)e;
    if (cv_loop_now(d->worker->loop) - p->start_ms >= LEFT_MS && blame != CV_BLAME_TARGET)
        event = blame == CV_BLAME_EGRESS ? CV_VITAL_LEFT : CV_VITAL_UNSURE;
    cv_dial_cancel(p->link->egress, &p->dial);
    tell(p, p->link, event, CV_STAGE_DIAL, event != CV_VITAL_NOTHING ? CV_E_CANCELED : 0);
    d->_impl = NULL;
    cv_free(p);
}

/* ---- the egress ---- */

static void chain_free(struct cv_egress *e)
{
    struct chain *c = CV_CONTAINER_OF(e, struct chain, super);
    for (unsigned i = 0; i < c->n; i++) {
        cv_egress_unref(c->links[i].egress);
        cv_member_unref(c->links[i].member);
    }
    cv_free(c);
}

static bool chain_same(const struct cv_egress *a, const struct cv_egress *b)
{
    const struct chain *x = (const struct chain *)a, *y = (const struct chain *)b;
    bool same = x->n == y->n;
    for (unsigned i = 0; same && i < x->n; i++)
        same = x->links[i].member == y->links[i].member &&
               cv_egress_same(x->links[i].egress, y->links[i].egress);
    return same;
}

static const struct cv_egress_ops chain_ops = {
    .kind = "chain",
    .connect = chain_start,
    .open_udp = chain_start,
    .same = chain_same,
    .cancel = chain_cancel,
    .free = chain_free,
};

/* The i-th member as the definition of an egress, for the factory; it takes what it keeps. */
static int make_link(struct link *l, const struct cv_egress_def *def, unsigned i,
                     struct cv_members *members, cv_egress_factory_cb factory, void *factory_arg,
                     int64_t now_ms)
{
    const struct cv_egress_def one = {
        .id = def->id,
        .label = def->members[i].backend.label,
        .n_members = 1,
        .members = &def->members[i],
    };
    l->priority = def->members[i].priority;
    l->member = cv_members_get(members, def->id, &def->members[i], now_ms);
    if (l->member != NULL)
        l->egress = factory(factory_arg, &one);
    return l->egress != NULL ? 0 : -ENOMEM;
}

struct cv_egress *cv_egress_chain_new(const struct cv_egress_def *def,
                                      struct cv_egress_stats *stats, struct cv_members *members,
                                      cv_egress_factory_cb factory, void *factory_arg,
                                      int64_t now_ms)
{
    CV_ASSERT(def->is_chain && def->n_members > 0 && def->n_members <= CV_ORDER_MAX);
    struct chain *c = cv_try_zalloc(sizeof(*c) + def->n_members * sizeof(struct link));
    if (c == NULL)
        return NULL;
    cv_egress_init(&c->super, &chain_ops, def->label, stats);
    for (; c->n < def->n_members; c->n++) {
        if (make_link(&c->links[c->n], def, c->n, members, factory, factory_arg, now_ms) != 0) {
            cv_member_unref(c->links[c->n].member);
            cv_egress_unref(&c->super);
            return NULL;
        }
    }
    return &c->super;
}

unsigned cv_egress_chain_count(const struct cv_egress *e)
{
    /* The base is the first member. */
    return e->ops == &chain_ops ? ((const struct chain *)e)->n : 0;
}

struct cv_egress *cv_egress_chain_get(const struct cv_egress *e, unsigned i,
                                      struct cv_member **ret_member, uint32_t *ret_priority)
{
    const struct chain *c = (const struct chain *)e;
    CV_ASSERT(e->ops == &chain_ops && i < c->n);
    *ret_member = c->links[i].member;
    *ret_priority = c->links[i].priority;
    return c->links[i].egress;
}
