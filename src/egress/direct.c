#include <errno.h>

#include "common/alloc.h"
#include "common/err.h"
#include "egress/direct_priv.h"
#include "egress/egress.h"
#include "flow/worker.h"
#include "net/happy.h"

#include "common/poison.h"

/* One dial is one cv_happy, kept in cv_dial._impl. It gets the loop's clock and the addresses that
 * were really resolved, so what the guard sees is what is dialled. */

static int on_candidate(struct cv_happy *h, const struct cv_ip *ip)
{
    const struct cv_dial *d = cv_happy_arg(h);
    const struct cv_settings *s = d->worker->settings;
    return cv_egress_guard(ip, s->direct_allow, s->n_direct_allow, d->names_special, &d->special);
}

static enum cv_stage stage_of(int err, enum cv_happy_stage stage)
{
    if (err == CV_E_GUARD)
        return CV_STAGE_POLICY;
    return stage == CV_HAPPY_DNS ? CV_STAGE_DNS : CV_STAGE_DIAL;
}

/* BND for the client's reply. */
static void local_endpoint(struct cv_endpoint *ret_ep, const struct cv_stream *stream)
{
    struct cv_sockaddr sa = {.len = sizeof(sa.in6)};
    int fd = cv_stream_socket_fd(stream);
    if (fd >= 0 && getsockname(fd, &sa.sa, &sa.len) == 0)
        cv_endpoint_from_sockaddr(ret_ep, &sa.sa);
}

static void on_connected(struct cv_happy *h, int err, enum cv_happy_stage stage,
                         struct cv_stream *stream, const struct cv_endpoint *peer)
{
    struct cv_dial *d = cv_happy_arg(h);
    d->_impl = NULL;
    d->err = err;
    if (err != 0) {
        d->stage = stage_of(err, stage);
    } else {
        d->stream = stream;
        d->peer = *peer;
        local_endpoint(&d->local, stream);
    }
    cv_dial_done(d);
}

static void direct_connect(struct cv_egress *e, struct cv_dial *d)
{
    struct cv_worker *w = d->worker;
    struct cv_happy_conf conf = {
        .dns = w->dns,
        .prefer = w->settings->direct_prefer,
        .timeout_ms = CV_MAX(d->deadline_ms - cv_loop_now(w->loop), 1),
    };
    struct cv_happy *h;
    int err = cv_happy_start(w->loop, &conf, d->target, on_candidate, on_connected, d, &h);
    if (err != 0)
        cv_dial_fail_later(d, CV_STAGE_DIAL, err);
    else
        d->_impl = h;
}

static void direct_cancel(struct cv_egress *e, struct cv_dial *d)
{
    cv_happy_cancel(d->_impl);
    d->_impl = NULL;
}

/* There is but one way out of this machine, whatever the snapshot. */
static bool direct_same(const struct cv_egress *a, const struct cv_egress *b)
{
    return true;
}

static void direct_free(struct cv_egress *e)
{
    cv_free(e);
}

static const struct cv_egress_ops direct_ops = {
    .kind = "direct",
    .connect = direct_connect,
    .open_udp = cv_direct_open_udp,
    .same = direct_same,
    .cancel = direct_cancel,
    .free = direct_free,
};

/* Never released: the first reference is its own. */
static struct cv_rcstr direct_label = {._refs = 1, .len = sizeof("direct") - 1, .s = "direct"};

struct cv_egress *cv_egress_direct_new(struct cv_egress_stats *stats)
{
    struct cv_egress *e = cv_try_zalloc(sizeof(*e));
    if (e != NULL)
        cv_egress_init(e, &direct_ops, &direct_label, stats);
    return e;
}
