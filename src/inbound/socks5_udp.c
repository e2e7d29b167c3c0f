#include "inbound/socks5_udp.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"
#include "flow/assoc.h"
#include "inbound/quicwatch.h"
#include "net/tcp.h"
#include "net/udp.h"
#include "proto/socks5_udp.h"

#include "common/poison.h"

/* Batches that are read before others have their turn. */
#define BATCHES_PER_TURN 4

_Static_assert(CV_SOCKS5_UDP_FROM_MAX <= CV_DGRAM_HEADROOM, "our header fits before a payload");
_Static_assert(CV_SOCKS5_UDP_HEAD_MAX <= CV_ASSOC_KEY_MAX, "a key is part of a header");

struct cv_socks5_relay {
    struct cv_assoc assoc;
    struct cv_session *session; /* borrowed (outlives the relay) */
    struct cv_io io;
    struct cv_sockaddr peer;   /* of the control connection, with the scope of its address */
    struct cv_endpoint client; /* who may send; port 0: not fixed yet */
    bool fixed;                /* the socket is connected to 'client' */
    bool queued;               /* 'more' is */
    bool watched;              /* for the name of a QUIC connection */
    struct cv_quicwatch watch;
    struct cv_task more; /* goes on reading in the next turn */
    struct cv_task release;
    void (*on_idle)(struct cv_session *s);
};

static void on_io(struct cv_io *io, unsigned events);
static void on_more(struct cv_task *task);
static void on_release(struct cv_task *task);
static int assoc_target(const uint8_t *key, size_t key_len, struct cv_target *ret_target);
static void assoc_deliver(struct cv_assoc *a, struct cv_dgram_in *msgs, size_t n, size_t *ret_n,
                          size_t *ret_bytes);
static void assoc_idle(struct cv_assoc *a);

static const struct cv_assoc_ops assoc_ops = {
    .target = assoc_target,
    .deliver = assoc_deliver,
    .idle = assoc_idle,
};

/* -- opening -- */

/* Who may send, by the request: the host of the control connection, from the port that it states.
 * A client that does not know its port says zero. One that states another host's address means
 * something else by it, since no datagram from there would ever be taken: the address it has behind
 * a NAT, or where its datagrams shall go to (V2Ray). Neither says anything about its port, no more
 * than a name does. */
static void stated_client(const struct cv_socks5_request *q, const struct cv_ip *peer,
                          struct cv_endpoint *ret_client)
{
    static const uint8_t zero[16];
    struct cv_ip ip = {0};
    *ret_client = (struct cv_endpoint){.ip = *peer};
    if (q->atyp == CV_SOCKS5_ATYP_NAME)
        return;
    ip.family = q->atyp == CV_SOCKS5_ATYP_IP4 ? CV_AF_IP4 : CV_AF_IP6;
    memcpy(ip.b, q->addr, q->addr_len);
    cv_ip_fold_mapped(&ip);
    if (memcmp(ip.b, zero, sizeof(zero)) == 0 || cv_ip_equal(&ip, peer))
        ret_client->port = q->port;
}

/* Connect to the client. Its address is that of the control connection; only the port differs. */
static int fix_client(struct cv_socks5_relay *r, uint16_t port)
{
    struct cv_sockaddr to;
    struct cv_endpoint peer;
    cv_endpoint_from_sockaddr(&peer, &r->peer.sa);
    cv_sockaddr_from_ip(&to, &r->client.ip, port);
    /* A PROXY header may have said another address than that of the connection. */
    if (to.sa.sa_family == AF_INET6 && cv_ip_equal(&peer.ip, &r->client.ip))
        to.in6.sin6_scope_id = r->peer.in6.sin6_scope_id;
    int ret = cv_sys_connect(r->io.fd, &to.sa, to.len);
    if (ret != 0)
        return ret;
    r->client.port = port;
    r->fixed = true;
    return 0;
}

/* A socket on the address that the control connection came in on. */
static int bind_beside(int control, uint8_t family, int *ret_fd, struct cv_endpoint *ret_bnd)
{
    struct cv_sockaddr local = {.len = sizeof(local.in6)};
    struct cv_endpoint ep;
    if (getsockname(control, &local.sa, &local.len) < 0)
        return -errno;
    cv_endpoint_from_sockaddr(&ep, &local.sa);
    /* Not of the client's family: it is on the other side of a proxy that translates, and could not
     * reach us here. */
    if (ep.ip.family != family)
        return CV_E_UNSUPPORTED;
    if (ep.ip.family == CV_AF_IP4)
        cv_sockaddr_from_ip(&local, &ep.ip, 0);
    else
        local.in6.sin6_port = 0;
    int ret = cv_udp_open(&local, ret_fd);
    if (ret != 0)
        return ret;
    local.len = sizeof(local.in6);
    if (getsockname(*ret_fd, &local.sa, &local.len) < 0) {
        ret = -errno;
        cv_sys_close(*ret_fd);
        return ret;
    }
    cv_endpoint_from_sockaddr(ret_bnd, &local.sa);
    return 0;
}

static int open_socket(struct cv_socks5_relay *r, int control, struct cv_endpoint *ret_bnd)
{
    int fd;
    int ret = bind_beside(control, r->client.ip.family, &fd, ret_bnd);
    if (ret != 0)
        return ret;
    ret = cv_io_add(r->session->worker->loop, &r->io, fd, on_io);
    if (ret != 0) {
        cv_sys_close(fd);
        return ret;
    }
    r->io.fd = fd;
    if (r->client.port != 0)
        ret = fix_client(r, r->client.port);
    if (ret != 0) {
        cv_io_forget(&r->io);
        cv_sys_close(fd);
    }
    return ret;
}

int cv_socks5_relay_open(struct cv_session *s, struct cv_stream *control,
                         const struct cv_ip *advertise, bool watch,
                         const struct cv_socks5_request *request,
                         void (*on_idle)(struct cv_session *s), struct cv_endpoint *ret_bnd,
                         struct cv_socks5_relay **ret_relay)
{
    int fd = cv_stream_socket_fd(control);
    if (s->client.ip.family == CV_AF_NONE || fd < 0) {
        /* A Unix socket: it has no address beside which the relay could stand, and none of the
         * client's to know its datagrams by. */
        cv_session_fail(s, CV_STAGE_LISTENER, CV_E_UNSUPPORTED);
        return CV_E_UNSUPPORTED;
    }
    struct cv_socks5_relay *r = cv_try_zalloc(sizeof(*r));
    if (r == NULL) {
        cv_session_fail(s, CV_STAGE_LISTENER, -ENOMEM);
        return -ENOMEM;
    }
    r->session = s;
    r->watched = watch;
    cv_quicwatch_init(&r->watch);
    stated_client(request, &s->client.ip, &r->client);
    r->on_idle = on_idle;
    r->peer.len = sizeof(r->peer.in6);
    int ret = getpeername(fd, &r->peer.sa, &r->peer.len) < 0 ? -errno : 0;
    if (ret == 0)
        ret = open_socket(r, fd, ret_bnd);
    if (ret != 0) {
        cv_session_fail(s, CV_STAGE_LISTENER, ret);
        cv_free(r);
        return ret;
    }
    ret = cv_assoc_start(&r->assoc, s, &assoc_ops);
    if (ret != 0) {
        cv_socks5_relay_close(r);
        return ret;
    }
    /* The association lives as long as the control connection, on which nothing more is said: only
     * keepalive tells that the client is gone. */
    cv_tcp_keepalive(fd);
    if (advertise->family == ret_bnd->ip.family)
        ret_bnd->ip = *advertise;
    *ret_relay = r;
    return 0;
}

/* -- from the client -- */

/* True if 'm' is the client's; the first one that is fixes the port. */
static bool from_client(struct cv_socks5_relay *r, const struct cv_dgram_in *m)
{
    if (!cv_ip_equal(&m->from.ip, &r->client.ip))
        return false;
    if (r->fixed)
        return m->from.port == r->client.port;
    return fix_client(r, m->from.port) == 0;
}

static void take(struct cv_socks5_relay *r, const struct cv_dgram_in *msgs, size_t n)
{
    struct cv_assoc_msg out[CV_DGRAM_BATCH];
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        struct cv_socks5_dgram d;
        if (!from_client(r, &msgs[i])) {
            cv_assoc_dropped(&r->assoc, CV_UDP_DROP_SOURCE, 1);
            continue;
        }
        int ret = cv_socks5_dgram_parse(msgs[i].data, msgs[i].len, &d);
        if (ret != 0) {
            cv_assoc_dropped(&r->assoc,
                             ret == CV_E_UNSUPPORTED ? CV_UDP_DROP_FRAGMENT : CV_UDP_DROP_MALFORMED,
                             1);
            continue;
        }
        if (r->watched)
            cv_quicwatch_look(&r->watch, r->session, d.data, d.len);
        out[n_out++] = (struct cv_assoc_msg){
            .key = d.key,
            .key_len = d.key_len,
            .data = d.data,
            .len = d.len,
        };
    }
    if (n_out > 0)
        cv_assoc_send(&r->assoc, out, n_out);
}

static void read_client(struct cv_socks5_relay *r)
{
    struct cv_worker *w = r->session->worker;
    struct cv_dgram_in msgs[CV_DGRAM_BATCH];
    for (int i = 0; i < BATCHES_PER_TURN; i++) {
        size_t n = 0;
        if (cv_worker_dgram_slots(w, msgs, CV_DGRAM_BATCH) != 0 ||
            cv_udp_recv(r->io.fd, msgs, CV_DGRAM_BATCH, &n) != 0)
            return;
        take(r, msgs, n);
    }
    if (r->queued)
        return;
    r->queued = true;
    r->more = (struct cv_task){.fn = on_more};
    cv_loop_next(w->loop, &r->more);
}

static void on_io(struct cv_io *io, unsigned events)
{
    struct cv_socks5_relay *r = CV_CONTAINER_OF(io, struct cv_socks5_relay, io);
    /* An ICMP error (the client's port is closed just now) is an event, too; reading takes it off.
     */
    if ((events & (CV_IO_IN | CV_IO_HUP)) && !r->queued)
        read_client(r);
}

static void on_more(struct cv_task *task)
{
    struct cv_socks5_relay *r = CV_CONTAINER_OF(task, struct cv_socks5_relay, more);
    r->queued = false;
    read_client(r);
}

static int assoc_target(const uint8_t *key, size_t key_len, struct cv_target *ret_target)
{
    return cv_socks5_dgram_target(key, key_len, ret_target);
}

/* -- to the client -- */

/* Write the header before the payload. */
static uint8_t *put_head(const struct cv_dgram_in *m, size_t *ret_len)
{
    uint8_t head[CV_SOCKS5_UDP_FROM_MAX];
    if (m->name != NULL) {
        uint8_t *at = m->data - (CV_SOCKS5_UDP_HEAD_MAX - 255u + m->name_len);
        *ret_len = cv_socks5_dgram_encode_name(at, m->name, m->name_len, m->from.port);
        return at;
    }
    *ret_len = cv_socks5_dgram_encode_from(head, &m->from);
    memcpy(m->data - *ret_len, head, *ret_len);
    return m->data - *ret_len;
}

static void assoc_deliver(struct cv_assoc *a, struct cv_dgram_in *msgs, size_t n, size_t *ret_n,
                          size_t *ret_bytes)
{
    struct cv_socks5_relay *r = CV_CONTAINER_OF(a, struct cv_socks5_relay, assoc);
    struct cv_udp_out out[CV_DGRAM_BATCH];
    *ret_n = *ret_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        uint8_t *at = put_head(&msgs[i], &len);
        out[i] = (struct cv_udp_out){.iov[0] = {.iov_base = at, .iov_len = len + msgs[i].len}};
    }
    /* A way out is only opened by a datagram of the client, so the client is fixed. */
    cv_udp_send(r->io.fd, out, n);
    for (size_t i = 0; i < n; i++) {
        if (out[i].err != 0)
            continue;
        (*ret_n)++;
        *ret_bytes += msgs[i].len;
    }
}

/* -- the end -- */

static void assoc_idle(struct cv_assoc *a)
{
    struct cv_socks5_relay *r = CV_CONTAINER_OF(a, struct cv_socks5_relay, assoc);
    r->on_idle(r->session);
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct cv_socks5_relay, release));
}

void cv_socks5_relay_close(struct cv_socks5_relay *r)
{
    if (r == NULL)
        return;
    struct cv_loop *loop = r->session->worker->loop;
    if (r->queued)
        (void)cv_loop_next_cancel(loop, &r->more);
    cv_assoc_end(&r->assoc);
    cv_quicwatch_done(&r->watch, r->session);
    cv_io_forget(&r->io);
    cv_sys_close(r->io.fd);
    r->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(loop, &r->release);
}
