#include "flow/egress.h"

#include <errno.h>

#include "flow/worker.h"

#include "common/poison.h"

void cv_egress_init(struct cv_egress *e, const struct cv_egress_ops *ops, struct cv_rcstr *label,
                    struct cv_egress_stats *stats)
{
    e->ops = ops;
    e->_refs = 1;
    e->label = cv_rcstr_ref(label);
    e->stats = stats;
}

struct cv_egress *cv_egress_ref(struct cv_egress *e)
{
    __atomic_fetch_add(&e->_refs, 1, __ATOMIC_RELAXED);
    return e;
}

void cv_egress_unref(struct cv_egress *e)
{
    if (e == NULL || __atomic_fetch_sub(&e->_refs, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    struct cv_rcstr *label = e->label;
    e->ops->free(e);
    cv_rcstr_unref(label);
}

bool cv_egress_same(const struct cv_egress *a, const struct cv_egress *b)
{
    return a == b || (a->ops == b->ops && a->ops->same != NULL && a->ops->same(a, b));
}

static void prepare(struct cv_dial *d, bool udp)
{
    d->udp = udp;
    d->err = 0;
    d->stage = CV_STAGE_NONE;
    d->blame = CV_BLAME_EGRESS;
    d->stream = NULL;
    d->dgram = NULL;
    d->local = (struct cv_endpoint){0};
    d->peer = (struct cv_endpoint){0};
    d->outlet = NULL;
    d->member = NULL;
    d->attempts = 0;
    d->stats = NULL;
    d->_impl = NULL;
    d->_posted = false;
}

void cv_dial_start(struct cv_egress *e, struct cv_dial *d)
{
    prepare(d, false);
    e->ops->connect(e, d);
}

void cv_dial_start_udp(struct cv_egress *e, struct cv_dial *d)
{
    prepare(d, true);
    if (e->ops->open_udp != NULL)
        e->ops->open_udp(e, d);
    else
        cv_dial_fail_later(d, CV_STAGE_EGRESS, -EPROTONOSUPPORT);
}

void cv_dial_cancel(struct cv_egress *e, struct cv_dial *d)
{
    if (d->_posted) {
        (void)CV_BUG_ON_ONCE(!cv_loop_next_cancel(d->worker->loop, &d->_task));
        cv_stream_close(d->stream, true);
        cv_dgram_close(d->dgram);
        d->stream = NULL;
        d->dgram = NULL;
    } else {
        e->ops->cancel(e, d);
    }
    d->_posted = false;
}

static void answer_now(struct cv_task *task)
{
    struct cv_dial *d = CV_CONTAINER_OF(task, struct cv_dial, _task);
    d->_posted = false;
    cv_dial_done(d);
}

static void answer_later(struct cv_dial *d)
{
    d->_posted = true;
    d->_task = (struct cv_task){.fn = answer_now};
    cv_loop_next(d->worker->loop, &d->_task);
}

void cv_dial_fail_later(struct cv_dial *d, enum cv_stage stage, int err)
{
    CV_ASSERT(!d->_posted && err != 0);
    d->err = err;
    d->stage = stage;
    answer_later(d);
}

void cv_dial_done_later(struct cv_dial *d)
{
    CV_ASSERT(!d->_posted && d->err == 0);
    answer_later(d);
}
