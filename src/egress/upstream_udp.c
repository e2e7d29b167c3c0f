#include "egress/upstream_udp.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"
#include "egress/egress.h"
#include "egress/upstream_priv.h"
#include "flow/worker.h"
#include "net/tcp.h"
#include "net/udp.h"
#include "proto/socks5_udp.h"

#include "common/poison.h"

/* One association with the proxy: a control connection, on which nothing is said and whose end is
 * the end of it, and a socket that is connected to the proxy's relay, so that the kernel keeps
 * strangers away. Names go to the proxy as they are; an address in the answer is who the proxy says
 * has sent it. */

/* Most that the proxy may say on the control connection; it has no reason to say anything. */
#define CONTROL_MAX_BYTES (64u << 10)

struct upstream_udp {
    struct cv_dgram super;
    struct cv_worker *worker;
    struct cv_stream *control; /* owned */
    struct cv_io io;           /* of the socket */
    uint32_t said;
    bool drained; /* -EAGAIN was the last answer; an event clears it */
    bool over;
    bool queued;          /* 'first' is */
    struct cv_task first; /* looks at the control connection once, for what came with the reply */
    struct cv_task release;
};

/* While it is being opened; kept in cv_dial._impl. */
struct attempt {
    struct cv_dial *dial; /* borrowed */
    struct cv_target from;
    struct cv_upstream_request request;
    struct cv_upstream_open *open;
};

static void udp_send(struct cv_dgram *super, struct cv_dgram_out *msgs, size_t n);
static int udp_recv(struct cv_dgram *super, struct cv_dgram_in *msgs, size_t n, size_t *ret_n);
static void udp_close(struct cv_dgram *super);

static const struct cv_dgram_ops udp_ops = {
    .name = "upstream",
    .send = udp_send,
    .recv = udp_recv,
    .close = udp_close,
};

static struct upstream_udp *udp_of(struct cv_dgram *super)
{
    return CV_CONTAINER_OF(super, struct upstream_udp, super);
}

/* -- while it lives -- */

static void on_io(struct cv_io *io, unsigned events)
{
    struct upstream_udp *u = CV_CONTAINER_OF(io, struct upstream_udp, io);
    if (!(events & (CV_IO_IN | CV_IO_HUP)) || u->over)
        return;
    u->drained = false;
    cv_dgram_notify(&u->super, CV_DGRAM_READ);
}

static void on_control(void *arg, struct cv_stream *stream, unsigned events)
{
    struct upstream_udp *u = arg;
    size_t n = 1;
    int ret = 0;
    while (ret == 0 && n > 0 && u->said < CONTROL_MAX_BYTES) {
        ret = cv_stream_recv(stream, u->worker->scratch, CV_SCRATCH_SIZE, &n);
        if (ret == 0)
            u->said += (uint32_t)n;
    }
    if (ret == -EAGAIN && !(events & CV_STREAM_HUP))
        return;
    u->over = true;
    u->super.err = CV_E_UNAVAILABLE;
    cv_stream_set_cb(stream, NULL, NULL);
    cv_dgram_notify(&u->super, CV_DGRAM_HUP);
}

static void on_first(struct cv_task *task)
{
    struct upstream_udp *u = CV_CONTAINER_OF(task, struct upstream_udp, first);
    u->queued = false;
    if (!u->over)
        on_control(u, u->control, CV_STREAM_READ);
}

static void send_batch(struct upstream_udp *u, struct cv_dgram_out *msgs, size_t n)
{
    uint8_t head[CV_DGRAM_BATCH][CV_SOCKS5_UDP_HEAD_MAX];
    struct cv_udp_out out[CV_DGRAM_BATCH];
    for (size_t i = 0; i < n; i++)
        out[i] = (struct cv_udp_out){
            .iov[0] = {.iov_base = head[i],
                       .iov_len = cv_socks5_dgram_encode_to(head[i], msgs[i].to)},
            .iov[1] = {.iov_base = (void *)(uintptr_t)msgs[i].data, .iov_len = msgs[i].len},
        };
    cv_udp_send(u->io.fd, out, n);
    for (size_t i = 0; i < n; i++)
        msgs[i].err = out[i].err;
}

static void udp_send(struct cv_dgram *super, struct cv_dgram_out *msgs, size_t n)
{
    struct upstream_udp *u = udp_of(super);
    for (size_t i = 0; u->over && i < n; i++)
        msgs[i].err = CV_E_UNAVAILABLE;
    for (size_t off = 0; !u->over && off < n; off += CV_DGRAM_BATCH)
        send_batch(u, msgs + off, CV_MIN(n - off, (size_t)CV_DGRAM_BATCH));
}

/* Take the proxy's header off. Some proxies write the name that was sent to in place of the address
 * of the sender (V2Ray). False: it is none. */
static bool unwrap(struct cv_dgram_in *m)
{
    struct cv_socks5_dgram d;
    if (cv_socks5_dgram_parse(m->data, m->len, &d) != 0)
        return false;
    cv_socks5_dgram_from(&d, &m->from);
    m->data += m->len - d.len;
    m->len = d.len;
    if (m->from.ip.family == CV_AF_NONE) {
        m->name = d.to.addr;
        m->name_len = d.to.addr_len;
    }
    return true;
}

static int udp_recv(struct cv_dgram *super, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    struct upstream_udp *u = udp_of(super);
    size_t got = 0, kept = 0;
    if (u->over || u->drained)
        return u->over ? CV_E_UNAVAILABLE : -EAGAIN;
    int ret = cv_udp_recv(u->io.fd, msgs, CV_MIN(n, (size_t)CV_DGRAM_BATCH), &got);
    u->drained = ret == -EAGAIN;
    if (ret != 0)
        return ret;
    for (size_t i = 0; i < got; i++) {
        if (!unwrap(&msgs[i])) {
            cv_dgram_dropped(super, CV_E_PROTO);
            continue;
        }
        /* Each buffer stays in one message. */
        struct cv_dgram_in m = msgs[i];
        msgs[i] = msgs[kept];
        msgs[kept++] = m;
    }
    *ret_n = kept;
    return 0;
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct upstream_udp, release));
}

static void udp_close(struct cv_dgram *super)
{
    struct upstream_udp *u = udp_of(super);
    cv_dgram_set_cb(super, NULL, NULL, NULL);
    u->over = true;
    if (u->queued)
        (void)cv_loop_next_cancel(u->worker->loop, &u->first);
    cv_stream_close(u->control, false);
    u->control = NULL;
    cv_io_forget(&u->io);
    cv_sys_close(u->io.fd);
    u->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(u->worker->loop, &u->release);
}

/* -- opening -- */

/* Where the relay is. A proxy that does not know its own address, or that knows only one which is
 * private to itself, is reached where its control connection is. So an answer cannot turn our
 * datagrams to an address within this network that the proxy is not at. */
static int relay_address(const struct cv_upstream_answer *a, const struct cv_settings *s,
                         struct cv_endpoint *ret_relay)
{
    *ret_relay = a->bnd;
    if (a->bnd.port == 0)
        return CV_E_PROTO;
    if (a->bnd.ip.family == CV_AF_NONE ||
        cv_egress_guard(&a->bnd.ip, s->direct_allow, s->n_direct_allow, false, NULL) != 0)
        ret_relay->ip = a->peer.ip;
    return ret_relay->ip.family != CV_AF_NONE ? 0 : CV_E_PROTO;
}

/* A socket for the relay, on the address from which the proxy knows us, if that is of its family.
 */
static int open_socket(int control, const struct cv_endpoint *relay, int *ret_fd)
{
    struct cv_sockaddr local = {.len = sizeof(local.in6)}, to;
    struct cv_endpoint ep;
    cv_sockaddr_from_ip(&to, &relay->ip, relay->port);
    if (control < 0 || getsockname(control, &local.sa, &local.len) < 0)
        return -ENOTCONN;
    cv_endpoint_from_sockaddr(&ep, &local.sa);
    if (ep.ip.family != relay->ip.family)
        ep.ip = (struct cv_ip){.family = relay->ip.family};
    cv_sockaddr_from_ip(&local, &ep.ip, 0);
    int fd;
    int ret = cv_udp_open(&local, &fd);
    if (ret != 0)
        return ret;
    ret = cv_sys_connect(fd, &to.sa, to.len);
    if (ret != 0) {
        cv_sys_close(fd);
        return ret;
    }
    *ret_fd = fd;
    return 0;
}

/* Takes the control connection. */
static int udp_new(struct cv_worker *w, const struct cv_upstream_answer *a,
                   struct cv_dgram **ret_dgram)
{
    struct cv_endpoint relay;
    int fd = -1, control = cv_stream_socket_fd(a->stream);
    struct upstream_udp *u = cv_try_zalloc(sizeof(*u));
    int ret = u != NULL ? relay_address(a, w->settings, &relay) : -ENOMEM;
    if (ret == 0)
        ret = open_socket(control, &relay, &fd);
    if (ret == 0)
        ret = cv_io_add(w->loop, &u->io, fd, on_io);
    if (ret != 0) {
        cv_sys_close(fd);
        cv_stream_close(a->stream, false);
        cv_free(u);
        return ret;
    }
    u->io.fd = fd;
    u->super.ops = &udp_ops;
    u->worker = w;
    u->drained = true;
    u->control = a->stream;
    cv_tcp_keepalive(control);
    cv_stream_set_cb(u->control, on_control, u);
    u->queued = true;
    u->first = (struct cv_task){.fn = on_first};
    cv_loop_next(w->loop, &u->first);
    *ret_dgram = &u->super;
    return 0;
}

static void on_opened(void *arg, const struct cv_upstream_answer *a)
{
    struct attempt *t = arg;
    struct cv_dial *d = t->dial;
    d->_impl = NULL;
    d->err = a->err;
    d->stage = a->stage;
    d->peer = a->peer;
    cv_free(t);
    if (d->err == 0) {
        d->err = udp_new(d->worker, a, &d->dgram);
        d->stage = d->err != 0 ? CV_STAGE_OUTBOUND : CV_STAGE_NONE;
    }
    cv_dial_done(d);
}

void cv_upstream_open_udp(struct cv_egress *e, struct cv_dial *d)
{
    const struct cv_upstream *conf = cv_upstream_of(e);
    if (conf->kind != CV_BACKEND_SOCKS5 || conf->tls != NULL) {
        cv_dial_fail_later(d, CV_STAGE_EGRESS, -EPROTONOSUPPORT);
        return;
    }
    struct attempt *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL) {
        cv_dial_fail_later(d, CV_STAGE_DIAL, -ENOMEM);
        return;
    }
    t->dial = d;
    /* What our datagrams come from is not known before the reply: 0.0.0.0:0. */
    cv_host_from_ip(&t->from.host, &(struct cv_ip){.family = CV_AF_IP4});
    t->request = (struct cv_upstream_request){
        .worker = d->worker,
        .cmd = CV_SOCKS5_CMD_UDP,
        .target = &t->from,
        .client = d->client,
        .deadline_ms = d->deadline_ms,
        .blame = &d->blame,
    };
    int ret = cv_upstream_open(conf, &t->request, on_opened, t, &t->open);
    if (ret != 0) {
        cv_free(t);
        cv_dial_fail_later(d, cv_upstream_open_stage(ret), ret);
        return;
    }
    d->_impl = t;
}

void cv_upstream_cancel_udp(struct cv_egress *e, struct cv_dial *d)
{
    struct attempt *t = d->_impl;
    (void)e;
    cv_upstream_cancel(t->open);
    cv_free(t);
    d->_impl = NULL;
}
