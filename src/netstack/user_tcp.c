/* Connections of the engine 'user': a cv_stream over a PCB of lwIP.
 *
 * What has come lies in a list of lwIP's buffers until the reader takes it; only then the window is
 * given back (tcp_recved). The window starts at CV_USER_WND_FIRST and doubles whenever the reader
 * has taken half of it within one round trip, up to TCP_WND and as long as the stack's budget
 * lasts.
 *
 * What is written is copied into segments at once, but never more than twice the congestion window
 * waits: a buffer that is larger fills the queue of the slowest link before the path can say so. */
#include <errno.h>
#include <string.h>

#include <lwip/priv/tcp_priv.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "netstack/user_priv.h"

#include "common/poison.h"

#define PORT_FIRST 16384u
#define PORT_LAST  65535u
#define PORT_TRIES 4096
#define SMALL      512  /* payload of a segment that is better joined with others */
#define JOIN_AFTER 16   /* buffers in the list from which on small ones are joined */
#define JOIN_SIZE  4096 /* size of what they are joined in */
#define ORPHAN_TICKS                                                                               \
    250 /* without progress: slow ticks of 100 ms until a closed connection ends                   \
         */

struct stream {
    struct cv_stream super;
    struct cv_user_sock sock;
    struct tcp_pcb *pcb;       /* NULL: over */
    struct pbuf *rx, *rx_last; /* a list of single buffers */
    unsigned rx_n;             /* buffers in it */
    uint16_t rx_off;           /* bytes of the first that are taken */
    uint16_t rx_room;          /* bytes that fit behind what the last has */
    bool eof;                  /* the peer has sent its last byte, which is in the list */
    bool hungry;               /* send was refused */
    bool fin;                  /* shutdown_send was called */
    int err;                   /* why it is over */
    uint32_t wnd;              /* the window that was granted in all */
    uint32_t taken;            /* by the reader since 'since_ms' */
    int32_t rtt_ms;            /* of the handshake, at least 1 */
    int64_t since_ms;
    union {
        struct cv_net_connect *connecting; /* NULL: established */
        struct cv_task release;
    };
};

static const struct cv_stream_ops stream_ops;

static struct stream *stream_of(struct cv_stream *s)
{
    return CV_CONTAINER_OF(s, struct stream, super);
}

static int err_of(err_t err, bool connecting)
{
    switch (err) {
    case ERR_RST:
        return connecting ? -ECONNREFUSED : -ECONNRESET;
    case ERR_ABRT:
        return -ETIMEDOUT;
    case ERR_MEM:
        return -ENOMEM;
    case ERR_CLSD:
        return 0;
    default:
        return -ECONNABORTED;
    }
}

static void rx_clear(struct stream *t)
{
    while (t->rx != NULL) {
        struct pbuf *next = t->rx->next;
        t->rx->next = NULL;
        pbuf_free(t->rx);
        t->rx = next;
    }
    t->rx_last = NULL;
    t->rx_n = 0;
    t->rx_off = t->rx_room = 0;
}

static void ungrant(struct stream *t)
{
    if (t->wnd > CV_USER_WND_FIRST)
        t->sock.user->granted -= t->wnd - CV_USER_WND_FIRST;
    t->wnd = 0;
}

/* The PCB is not ours any more. */
static void lose_pcb(struct stream *t, int err)
{
    if (t->pcb == NULL)
        return;
    t->pcb = NULL;
    if (t->err == 0)
        t->err = err;
    ungrant(t);
    if (t->sock.nif != NULL)
        cv_gauge_add(&t->sock.nif->super.stats->tcp, -1);
}

static void forget_callbacks(struct tcp_pcb *pcb)
{
    tcp_arg(pcb, NULL);
    tcp_recv(pcb, NULL);
    tcp_sent(pcb, NULL);
    tcp_err(pcb, NULL);
}

/* -- lwIP's callbacks -- */

/* Tiny segments would each cost a buffer of their own: memory many times the window. */
static bool join(struct stream *t, struct pbuf *p)
{
    if (t->rx_n < JOIN_AFTER || p->next != NULL || p->len >= SMALL)
        return false;
    if (t->rx_room < p->len) {
        struct pbuf *big = pbuf_alloc(PBUF_RAW, JOIN_SIZE, PBUF_RAM);
        if (big == NULL)
            return false;
        big->len = 0;
        t->rx_room = JOIN_SIZE;
        t->rx_last->next = big;
        t->rx_last = big;
        t->rx_n++;
    }
    memcpy((uint8_t *)t->rx_last->payload + t->rx_last->len, p->payload, p->len);
    t->rx_last->len = (u16_t)(t->rx_last->len + p->len);
    t->rx_room = (uint16_t)(t->rx_room - p->len);
    pbuf_free(p);
    return true;
}

static err_t on_recv(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    struct stream *t = arg;
    (void)pcb;
    (void)err;
    if (p == NULL) {
        t->eof = true;
    } else if (t->rx == NULL || !join(t, p)) {
        if (t->rx == NULL)
            t->rx = p;
        else
            t->rx_last->next = p;
        t->rx_n++;
        for (; p->next != NULL; p = p->next)
            t->rx_n++;
        t->rx_last = p;
        t->rx_room = 0;
    }
    cv_user_sock_event(&t->sock, CV_STREAM_READ);
    return ERR_OK;
}

/* What may still be written. */
static size_t room(const struct stream *t)
{
    size_t queued = TCP_SND_BUF - t->pcb->snd_buf;
    size_t limit = CV_MIN((size_t)TCP_SND_BUF, (size_t)t->pcb->cwnd * 2 + CV_USER_SND_FIRST);
    return queued < limit ? limit - queued : 0;
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t len)
{
    struct stream *t = arg;
    (void)pcb;
    (void)len;
    if (t->hungry && room(t) >= CV_USER_SND_FIRST / 2) {
        t->hungry = false;
        cv_user_sock_event(&t->sock, CV_STREAM_WRITE);
    }
    return ERR_OK;
}

static void on_err(void *arg, err_t err)
{
    struct stream *t = arg;
    bool clean = err == ERR_CLSD;
    lose_pcb(t, err_of(err, t->connecting != NULL));
    if (clean)
        t->eof = true;
    else if (t->connecting == NULL)
        rx_clear(t);
    cv_user_sock_event(&t->sock, CV_STREAM_READ | CV_STREAM_WRITE | CV_STREAM_HUP);
}

/* A connection that was closed and makes no progress: the peer takes nothing, or is gone. */
static err_t on_orphan_poll(void *arg, struct tcp_pcb *pcb)
{
    (void)arg;
    tcp_abort(pcb);
    return ERR_ABRT;
}

static void note_rtt(struct stream *t)
{
    struct cv_netif_stats *st = t->sock.nif->super.stats;
    int64_t rtt = CV_MAX(t->sock.user->now(t->sock.user) - t->since_ms, 1);
    t->rtt_ms = (int32_t)CV_MIN(rtt, 10000);
    int64_t old = (int64_t)cv_counter_get(&st->rtt_us), us = rtt * 1000;
    atomic_store_explicit(&st->rtt_us.v, (uint64_t)(old == 0 ? us : old + (us - old) / 8),
                          memory_order_relaxed);
}

static void start_window(struct stream *t)
{
    struct tcp_pcb *pcb = t->pcb;
    if (pcb->rcv_wnd > CV_USER_WND_FIRST)
        pcb->rcv_wnd = pcb->rcv_ann_wnd = CV_USER_WND_FIRST;
    t->wnd = pcb->rcv_wnd;
    t->since_ms = t->sock.user->now(t->sock.user);
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t err)
{
    struct stream *t = arg;
    (void)pcb;
    (void)err;
    note_rtt(t);
    start_window(t);
    cv_counter_add_owned(&t->sock.nif->super.stats->connects, 1);
    cv_user_sock_event(&t->sock, CV_STREAM_WRITE);
    return ERR_OK;
}

static void adopt_callbacks(struct stream *t, struct tcp_pcb *pcb)
{
    t->pcb = pcb;
    cv_gauge_add(&t->sock.nif->super.stats->tcp, 1);
    tcp_arg(pcb, t);
    tcp_recv(pcb, on_recv);
    tcp_sent(pcb, on_sent);
    tcp_err(pcb, on_err);
    tcp_nagle_disable(pcb);
    ip_set_option(pcb, SOF_KEEPALIVE);
    pcb->keep_idle = 60000;
    pcb->keep_intvl = 15000;
    pcb->keep_cnt = 4;
}

/* -- events -- */

static void finish_connect(struct stream *t)
{
    struct cv_net_connect *c = t->connecting;
    t->connecting = NULL;
    c->_running = false;
    if (t->pcb != NULL) {
        cv_user_from_lwip(&c->local.ip, &t->pcb->local_ip);
        c->local.port = t->pcb->local_port;
        /* What came with the handshake is told to the new owner, who tries at once. */
        c->cb(c, 0, &t->super);
        return;
    }
    int err = t->err != 0 ? t->err : -ECONNRESET;
    cv_stream_close(&t->super, true);
    c->cb(c, err, NULL);
}

static void deliver(struct cv_user_sock *s, unsigned events)
{
    struct stream *t = CV_CONTAINER_OF(s, struct stream, sock);
    if (t->connecting != NULL)
        finish_connect(t);
    else
        cv_stream_notify(&t->super, events);
}

static void down(struct cv_user_sock *s, int err, bool v4, bool v6)
{
    struct stream *t = CV_CONTAINER_OF(s, struct stream, sock);
    if (t->pcb == NULL || (IP_IS_V6_VAL(t->pcb->local_ip) ? !v6 : !v4))
        return;
    struct tcp_pcb *pcb = t->pcb;
    forget_callbacks(pcb);
    lose_pcb(t, err);
    tcp_abandon(pcb, 0);
    rx_clear(t);
    if (s->nif != NULL)
        cv_counter_add_owned(&s->nif->super.stats->resets, 1);
    cv_user_sock_event(s, CV_STREAM_READ | CV_STREAM_WRITE | CV_STREAM_HUP);
}

/* -- the stream -- */

/* The reader keeps up: more may be under way at a time. */
static void grow_window(struct stream *t, size_t n)
{
    struct cv_user *u = t->sock.user;
    int64_t now = u->now(u);
    t->taken = (uint32_t)CV_MIN((uint64_t)t->taken + n, UINT32_MAX);
    if (now - t->since_ms < t->rtt_ms)
        return;
    bool busy = t->taken >= t->wnd / 2 && now - t->since_ms < (int64_t)t->rtt_ms * 2 + 20;
    t->taken = 0;
    t->since_ms = now;
    uint32_t more = CV_MIN(t->wnd, TCP_WND_MAX(t->pcb) > t->wnd ? TCP_WND_MAX(t->pcb) - t->wnd : 0);
    if (!busy || more == 0 || u->granted + more > CV_USER_WND_ALL)
        return;
    u->granted += more;
    t->wnd += more;
    t->pcb->rcv_wnd += more;
}

static void give_back(struct stream *t, size_t n)
{
    if (t->pcb == NULL)
        return;
    grow_window(t, n);
    for (size_t left = n; left > 0;) {
        u16_t part = (u16_t)CV_MIN(left, 65535u);
        tcp_recved(t->pcb, part);
        left -= part;
    }
    cv_user_soon(t->sock.user);
}

static int stream_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct stream *t = stream_of(s);
    size_t n = 0;
    while (t->rx != NULL && n < cap) {
        size_t part = CV_MIN((size_t)t->rx->len - t->rx_off, cap - n);
        memcpy((uint8_t *)buf + n, (const uint8_t *)t->rx->payload + t->rx_off, part);
        n += part;
        t->rx_off = (uint16_t)(t->rx_off + part);
        if (t->rx_off < t->rx->len)
            break;
        struct pbuf *done = t->rx;
        t->rx = done->next;
        done->next = NULL;
        pbuf_free(done);
        t->rx_off = 0;
        t->rx_n--;
        if (t->rx == NULL) {
            t->rx_last = NULL;
            t->rx_room = 0;
        }
    }
    if (n > 0) {
        give_back(t, n);
    } else if (cap > 0 && !t->eof) {
        return t->pcb != NULL ? -EAGAIN : t->err != 0 ? t->err : -ECONNRESET;
    }
    *ret_n = n;
    return 0;
}

static int stream_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct stream *t = stream_of(s);
    if (t->pcb == NULL)
        return t->err != 0 ? t->err : -EPIPE;
    if (t->fin)
        return -EPIPE;
    size_t n = 0, want = 0;
    for (int i = 0; i < iovcnt; i++)
        want += iov[i].iov_len;
    bool full = false;
    for (int i = 0; i < iovcnt && !full; i++) {
        for (size_t off = 0; off < iov[i].iov_len && !full;) {
            size_t part = CV_MIN(iov[i].iov_len - off, CV_MIN(room(t), (size_t)32768));
            u8_t flags = TCP_WRITE_FLAG_COPY;
            if (n + part < want)
                flags |= TCP_WRITE_FLAG_MORE;
            full = part == 0 || tcp_write(t->pcb, (const uint8_t *)iov[i].iov_base + off,
                                          (u16_t)part, flags) != ERR_OK;
            if (!full) {
                off += part;
                n += part;
            }
        }
    }
    if (n > 0) {
        (void)tcp_output(t->pcb);
        cv_user_soon(t->sock.user);
    }
    t->hungry = n < want;
    *ret_n = n;
    /* Nothing waits to be acknowledged, so nothing would tell when to go on: memory is short. */
    if (t->hungry && n == 0 && t->pcb->unacked == NULL && t->pcb->unsent == NULL)
        return -ENOBUFS;
    return n > 0 || want == 0 ? 0 : -EAGAIN;
}

static int stream_shutdown_send(struct cv_stream *s)
{
    struct stream *t = stream_of(s);
    if (t->fin || t->pcb == NULL)
        return 0;
    t->fin = true;
    (void)tcp_shutdown(t->pcb, 0, 1);
    cv_user_soon(t->sock.user);
    return 0;
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct stream, release));
}

static void stream_close(struct cv_stream *s, bool abort)
{
    struct stream *t = stream_of(s);
    struct tcp_pcb *pcb = t->pcb;
    bool unread = t->rx != NULL;
    rx_clear(t);
    if (pcb != NULL) {
        lose_pcb(t, 0);
        forget_callbacks(pcb);
        /* As sockets do it: who closes without having read everything resets. */
        if (abort || unread) {
            tcp_abort(pcb);
        } else {
            /* lwIP takes a window that is not whole for unread data. */
            pcb->rcv_wnd = TCP_WND_MAX(pcb);
            tcp_poll(pcb, on_orphan_poll, ORPHAN_TICKS);
            if (tcp_close(pcb) != ERR_OK)
                tcp_abort(pcb);
        }
        cv_user_soon(t->sock.user);
    }
    cv_stream_set_cb(s, NULL, NULL);
    cv_user_sock_done(&t->sock);
    t->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(t->sock.user->super.loop, &t->release);
}

static int stream_no_fd(const struct cv_stream *s)
{
    (void)s;
    return -1;
}

/* The stack has one thread: its streams stay there. */
static void stream_detach(struct cv_stream *s)
{
    s->loop = NULL;
}

static int stream_attach(struct cv_stream *s, struct cv_loop *loop)
{
    struct stream *t = stream_of(s);
    CV_ASSERT(loop == t->sock.user->super.loop);
    s->loop = loop;
    cv_user_sock_event(&t->sock, CV_STREAM_READ | CV_STREAM_WRITE);
    return 0;
}

static const struct cv_stream_ops stream_ops = {
    .name = "netstack",
    .recv = stream_recv,
    .send = stream_send,
    .shutdown_send = stream_shutdown_send,
    .close = stream_close,
    .raw_fd = stream_no_fd,
    .detach = stream_detach,
    .attach = stream_attach,
    .socket_fd = stream_no_fd,
};

static struct stream *stream_new(struct cv_user_netif *nif)
{
    struct stream *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL)
        return NULL;
    t->super.ops = &stream_ops;
    t->super.loop = nif->user->super.loop;
    t->sock.deliver = deliver;
    t->sock.down = down;
    t->rtt_ms = 1;
    cv_user_sock_init(&t->sock, nif);
    return t;
}

int cv_user_tcp_adopt(struct cv_user_netif *nif, struct tcp_pcb *pcb, struct cv_stream **ret)
{
    struct stream *t = stream_new(nif);
    if (t == NULL)
        return -ENOMEM;
    adopt_callbacks(t, pcb);
    start_window(t);
    t->rtt_ms = 50;
    *ret = &t->super;
    return 0;
}

/* -- connecting -- */

/* A port that is free for this destination; the same port may serve many destinations. */
static u16_t choose_port(const struct tcp_pcb *pcb, const ip_addr_t *to, u16_t port)
{
    uint32_t span = PORT_LAST - PORT_FIRST + 1, at = cv_rand_below(span);
    for (unsigned i = 0; i < PORT_TRIES; i++) {
        u16_t local = (u16_t)(PORT_FIRST + (at + i) % span);
        if (tcp_hash_find(pcb->netif_idx, &pcb->local_ip, local, to, port) == NULL)
            return local;
    }
    return 0;
}

static int start(struct stream *t, struct cv_user_netif *nif, const struct cv_endpoint *to)
{
    const struct cv_ip *from =
        to->ip.family == CV_AF_IP4 ? &nif->super.addresses.ip4 : &nif->super.addresses.ip6;
    if (from->family == CV_AF_NONE)
        return -EAFNOSUPPORT;
    ip_addr_t dst;
    cv_user_to_lwip(&dst, &to->ip);
    struct tcp_pcb *pcb =
        tcp_new_ip_type(to->ip.family == CV_AF_IP4 ? IPADDR_TYPE_V4 : IPADDR_TYPE_V6);
    if (pcb == NULL)
        return -ENOMEM;
    cv_user_to_lwip(&pcb->local_ip, from);
    tcp_bind_netif(pcb, &nif->netif);
    if ((pcb->local_port = choose_port(pcb, &dst, to->port)) == 0) {
        tcp_abort(pcb);
        return -EADDRNOTAVAIL;
    }
    adopt_callbacks(t, pcb);
    /* lwIP takes a PCB with a port for one on the list of bound ones. */
    TCP_REG(&tcp_bound_pcbs, pcb);
    err_t err = tcp_connect(pcb, &dst, to->port, on_connected);
    if (err != ERR_OK) {
        forget_callbacks(pcb);
        lose_pcb(t, 0);
        tcp_abort(pcb);
        return err == ERR_MEM || err == ERR_BUF ? -ENOMEM : -ENETUNREACH;
    }
    cv_user_need_timer(nif->user);
    cv_user_soon(nif->user);
    return 0;
}

static void on_failed(struct cv_task *task)
{
    struct cv_net_connect *c = CV_CONTAINER_OF(task, struct cv_net_connect, _task);
    c->_running = false;
    c->cb(c, c->_err, NULL);
}

void cv_user_connect(struct cv_netif *base, struct cv_net_connect *c, const struct cv_endpoint *to)
{
    struct cv_user_netif *nif = CV_CONTAINER_OF(base, struct cv_user_netif, super);
    struct stream *t = stream_new(nif);
    c->_running = true;
    c->_loop = nif->user->super.loop;
    c->_impl = t;
    c->_err = -ENOMEM;
    if (t != NULL) {
        t->connecting = c;
        t->since_ms = nif->user->now(nif->user);
        if ((c->_err = start(t, nif, to)) == 0)
            return;
        t->connecting = NULL;
        cv_stream_close(&t->super, true);
        c->_impl = NULL;
    }
    c->_task = (struct cv_task){.fn = on_failed};
    cv_loop_next(c->_loop, &c->_task);
}

void cv_user_cancel(struct cv_net_connect *c)
{
    struct stream *t = c->_impl;
    c->_running = false;
    if (t == NULL) {
        (void)cv_loop_next_cancel(c->_loop, &c->_task);
        return;
    }
    t->connecting = NULL;
    cv_stream_close(&t->super, true);
}
