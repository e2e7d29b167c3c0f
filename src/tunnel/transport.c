#include "tunnel/transport.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"
#include "tunnel/wire.h"

#include "common/poison.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define OUT_CAP      (256u << 10)
#define OUT_PACKETS  256
#define IN_MSGS      16
#define IN_CAP       (64u << 10)
#define SEND_MSGS    32
#define GSO_SEGMENTS 64
#define GSO_BYTES    65000
#define ROUNDS_MAX   8  /* receive calls in a row before other work has its turn */
#define QUICK_READS  64 /* whose TCP ACKs do not wait: the server's small writes wait for them */
#define SOCKET_BUF   (4 << 20)

struct cv_transport {
    struct cv_io io;
    struct cv_loop *loop; /* borrowed */
    const struct cv_transport_ops *ops;
    void *arg;
    struct cv_task open_task, flush_task, more_task, free_task;
    bool tcp, connecting, closed;
    bool open_posted, flush_posted, more_posted;
    bool gso, blocked, wants_writable;
    int family;
    unsigned reads;
    uint64_t bytes_in, bytes_out, dropped;

    /* Committed packets: 'out' from out_at to out_end; UDP also their lengths. */
    uint8_t *out; /* owned */
    size_t out_at, out_end;
    uint16_t lens[OUT_PACKETS];
    size_t n_lens, first_len;

    uint8_t *in; /* owned; UDP: IN_MSGS buffers; TCP: one, with in_len bytes */
    size_t in_len;
};

static void on_io(struct cv_io *io, unsigned events);

/* ---- life ---- */

static void on_open_task(struct cv_task *task)
{
    struct cv_transport *t = CV_CONTAINER_OF(task, struct cv_transport, open_task);
    t->open_posted = false;
    t->ops->on_open(t->arg);
}

static void free_now(struct cv_task *task)
{
    struct cv_transport *t = CV_CONTAINER_OF(task, struct cv_transport, free_task);
    cv_free(t->out);
    cv_free(t->in);
    cv_free(t);
}

static void set_buf(int fd, int name)
{
    int v = SOCKET_BUF;
    (void)cv_sys_setsockopt(fd, SOL_SOCKET, name, &v, sizeof(v));
}

static void set_options(struct cv_transport *t, int fd)
{
    int on = 1;
    if (t->tcp) {
        (void)cv_sys_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        return;
    }
    set_buf(fd, SO_RCVBUF);
    set_buf(fd, SO_SNDBUF);
    (void)cv_sys_setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
    /* Never "do not fragment": where a path is narrower than believed and says nothing, packets
     * arrive in pieces rather than not at all. */
    int off = t->family == AF_INET6 ? IPV6_PMTUDISC_DONT : IP_PMTUDISC_DONT;
    if (t->family == AF_INET6)
        (void)cv_sys_setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &off, sizeof(off));
    else
        (void)cv_sys_setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &off, sizeof(off));
}

int cv_transport_open(struct cv_loop *loop, const struct cv_sockaddr *to, bool tcp,
                      const struct cv_transport_ops *ops, void *arg,
                      struct cv_transport **ret_transport)
{
    struct cv_transport *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    *t = (struct cv_transport){.loop = loop, .ops = ops, .arg = arg, .tcp = tcp};
    t->family = to->sa.sa_family;
    t->io.fd = -1;
    t->gso = !tcp;
    t->open_task.fn = on_open_task;
    t->free_task.fn = free_now;
    t->out = cv_try_alloc(OUT_CAP);
    /* Pages are touched only as far as packets are long. */
    t->in = cv_try_alloc(tcp ? IN_CAP : IN_MSGS * (size_t)IN_CAP);
    int ret = t->out != NULL && t->in != NULL
                  ? cv_sys_socket(t->family, tcp ? SOCK_STREAM : SOCK_DGRAM, 0)
                  : -ENOMEM;
    if (ret >= 0) {
        t->io.fd = ret;
        set_options(t, t->io.fd);
        ret = cv_sys_connect(t->io.fd, &to->sa, to->len);
        t->connecting = tcp;
        if (ret == 0 || (tcp && ret == -EINPROGRESS))
            ret = cv_io_add(loop, &t->io, t->io.fd, on_io);
    }
    if (ret < 0) {
        cv_sys_close(t->io.fd);
        free_now(&t->free_task);
        return ret;
    }
    if (!tcp) {
        t->open_posted = true;
        cv_loop_next(loop, &t->open_task);
    }
    *ret_transport = t;
    return 0;
}

void cv_transport_close(struct cv_transport *t)
{
    if (t == NULL || t->closed)
        return;
    if (!t->connecting)
        cv_transport_flush(t);
    t->closed = true;
    if (t->open_posted)
        (void)cv_loop_next_cancel(t->loop, &t->open_task);
    if (t->more_posted)
        (void)cv_loop_next_cancel(t->loop, &t->more_task);
    cv_io_del(&t->io);
    cv_sys_close(t->io.fd);
    /* A flush that is deferred runs before this. */
    cv_loop_defer(t->loop, &t->free_task);
}

/* ---- out ---- */

static void on_flush_task(struct cv_task *task)
{
    struct cv_transport *t = CV_CONTAINER_OF(task, struct cv_transport, flush_task);
    t->flush_posted = false;
    if (!t->closed)
        cv_transport_flush(t);
}

static void compact(struct cv_transport *t)
{
    if (t->out_at == t->out_end) {
        t->out_at = t->out_end = 0;
        t->first_len = t->n_lens = 0;
    } else if (t->out_at > 0) {
        memmove(t->out, t->out + t->out_at, t->out_end - t->out_at);
        t->out_end -= t->out_at;
        t->out_at = 0;
        memmove(t->lens, t->lens + t->first_len, (t->n_lens - t->first_len) * sizeof(t->lens[0]));
        t->n_lens -= t->first_len;
        t->first_len = 0;
    }
}

static bool has_room(const struct cv_transport *t, size_t len)
{
    return OUT_CAP - t->out_end >= len && t->n_lens < OUT_PACKETS;
}

uint8_t *cv_transport_reserve(struct cv_transport *t, size_t len)
{
    size_t need = len + (t->tcp ? 2 : 0);
    if (!has_room(t, need) && !t->blocked && !t->connecting)
        cv_transport_flush(t);
    if (!has_room(t, need))
        compact(t);
    if (!has_room(t, need) || t->closed) {
        t->wants_writable = true;
        return NULL;
    }
    return t->out + t->out_end + (t->tcp ? 2 : 0);
}

void cv_transport_commit(struct cv_transport *t, size_t len)
{
    if (t->tcp) {
        t->out[t->out_end] = (uint8_t)(len >> 8);
        t->out[t->out_end + 1] = (uint8_t)len;
        t->out_end += len + 2;
    } else {
        t->out_end += len;
        t->lens[t->n_lens++] = (uint16_t)len;
    }
    if (!t->flush_posted && !t->blocked && !t->connecting) {
        t->flush_posted = true;
        t->flush_task.fn = on_flush_task;
        cv_loop_defer(t->loop, &t->flush_task);
    }
}

static int flush_tcp(struct cv_transport *t)
{
    while (t->out_at < t->out_end) {
        size_t n = 0;
        int ret = cv_sys_send(t->io.fd, t->out + t->out_at, t->out_end - t->out_at, 0, &n);
        if (ret != 0)
            return ret;
        t->out_at += n;
        t->bytes_out += n;
    }
    return 0;
}

struct burst {
    struct mmsghdr hdr[SEND_MSGS];
    struct iovec iov[SEND_MSGS];
    size_t packets[SEND_MSGS];
    union {
        char buf[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr align;
    } control[SEND_MSGS];
    size_t n;
};

/* The packets from 'at' on as messages: each a run of equal lengths, of which the last may be
 * shorter. */
static void gather(const struct cv_transport *t, struct burst *b)
{
    size_t i = t->first_len, off = t->out_at;
    b->n = 0;
    while (i < t->n_lens && b->n < SEND_MSGS) {
        size_t unit = t->lens[i], total = unit, n = 1;
        while (t->gso && i + n < t->n_lens && n < GSO_SEGMENTS && t->lens[i + n] <= unit &&
               total + t->lens[i + n] <= GSO_BYTES) {
            total += t->lens[i + n++];
            if (t->lens[i + n - 1] < unit)
                break;
        }
        struct msghdr *m = &b->hdr[b->n].msg_hdr;
        b->iov[b->n] = (struct iovec){.iov_base = t->out + off, .iov_len = total};
        *m = (struct msghdr){.msg_iov = &b->iov[b->n], .msg_iovlen = 1};
        if (n > 1) {
            m->msg_control = b->control[b->n].buf;
            m->msg_controllen = sizeof(b->control[b->n].buf);
            struct cmsghdr *c = CMSG_FIRSTHDR(m);
            uint16_t v = (uint16_t)unit;
            c->cmsg_level = IPPROTO_UDP;
            c->cmsg_type = UDP_SEGMENT;
            c->cmsg_len = CMSG_LEN(sizeof(v));
            memcpy(CMSG_DATA(c), &v, sizeof(v));
        }
        b->packets[b->n++] = n;
        i += n;
        off += total;
    }
}

static void sent(struct cv_transport *t, const struct burst *b, size_t from, size_t n)
{
    for (size_t i = from; i < from + n; i++) {
        t->out_at += b->iov[i].iov_len;
        t->first_len += b->packets[i];
    }
}

static int flush_udp(struct cv_transport *t)
{
    struct burst b;
    while (t->first_len < t->n_lens) {
        size_t n = 0;
        gather(t, &b);
        int ret = cv_sys_sendmmsg(t->io.fd, b.hdr, b.n, &n);
        if (ret == 0) {
            for (size_t i = 0; i < n; i++)
                t->bytes_out += b.iov[i].iov_len;
            sent(t, &b, 0, n);
        } else if (ret == -EAGAIN) {
            return -EAGAIN;
        } else if (ret == -ECONNREFUSED) {
            continue; /* about an earlier packet; it is reported on receipt too */
        } else if (t->gso &&
                   (ret == -EIO || ret == -EINVAL || ret == -EOPNOTSUPP || ret == -EMSGSIZE)) {
            t->gso = false; /* the device cannot do checksums, or a segment exceeds its MTU */
        } else {
            t->dropped += b.packets[0];
            sent(t, &b, 0, 1);
        }
    }
    return 0;
}

void cv_transport_flush(struct cv_transport *t)
{
    if (t->out_at == t->out_end || t->closed || t->connecting)
        return;
    int ret = t->tcp ? flush_tcp(t) : flush_udp(t);
    t->blocked = ret == -EAGAIN;
    if (ret != 0 && !t->blocked) /* TCP: receiving tells of the end */
        t->out_at = t->out_end;
    compact(t);
}

/* ---- in ---- */

/* Hand over the datagrams of one message, which GRO may have made of several. False: closed. */
static bool hand_over(struct cv_transport *t, uint8_t *data, size_t len, size_t unit,
                      struct cv_pkt_in *batch, size_t *n)
{
    while (len > 0) {
        size_t k = CV_MIN(unit, len);
        batch[(*n)++] = (struct cv_pkt_in){.data = data, .len = k};
        data += k;
        len -= k;
        if (*n == CV_PKTIF_BATCH) {
            t->ops->on_packets(t->arg, batch, *n);
            *n = 0;
            if (t->closed)
                return false;
        }
    }
    return true;
}

static size_t gro_unit(struct msghdr *m, size_t len)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
        int v;
        if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO)
            continue;
        memcpy(&v, CMSG_DATA(c), sizeof(v));
        return v > 0 ? (size_t)v : len;
    }
    return len;
}

/* 0; -EAGAIN when there is no more; -errno. */
static int read_udp(struct cv_transport *t)
{
    struct mmsghdr hdr[IN_MSGS];
    struct iovec iov[IN_MSGS];
    union {
        char buf[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control[IN_MSGS];
    struct cv_pkt_in batch[CV_PKTIF_BATCH];
    size_t got = 0, n = 0;
    for (size_t i = 0; i < IN_MSGS; i++) {
        iov[i] = (struct iovec){.iov_base = t->in + i * IN_CAP, .iov_len = IN_CAP};
        hdr[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i],
                                         .msg_iovlen = 1,
                                         .msg_control = control[i].buf,
                                         .msg_controllen = sizeof(control[i].buf)};
    }
    int ret = cv_sys_recvmmsg(t->io.fd, hdr, IN_MSGS, &got);
    if (ret != 0)
        return ret;
    for (size_t i = 0; i < got; i++) {
        size_t len = hdr[i].msg_len;
        t->bytes_in += len;
        if ((hdr[i].msg_hdr.msg_flags & MSG_TRUNC) != 0)
            continue;
        if (!hand_over(t, iov[i].iov_base, len, gro_unit(&hdr[i].msg_hdr, len), batch, &n))
            return 0;
    }
    if (n > 0)
        t->ops->on_packets(t->arg, batch, n);
    return 0;
}

static int read_tcp(struct cv_transport *t)
{
    struct cv_pkt_in batch[CV_PKTIF_BATCH];
    size_t got = 0, n = 0, at = 0;
    int ret = cv_sys_recv(t->io.fd, t->in + t->in_len, IN_CAP - t->in_len, 0, &got);
    if (ret != 0)
        return ret;
    if (got == 0)
        return -EPIPE;
    if (t->reads++ < QUICK_READS) {
        int on = 1; /* the kernel forgets it again by itself */
        (void)cv_sys_setsockopt(t->io.fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
    }
    t->bytes_in += got;
    t->in_len += got;
    while (t->in_len - at >= 2) {
        size_t len = (size_t)t->in[at] << 8 | t->in[at + 1];
        if (len == 0 || len > CV_WIRE_PACKET_MAX)
            return CV_E_PROTO;
        if (t->in_len - at - 2 < len)
            break;
        if (!hand_over(t, t->in + at + 2, len, len, batch, &n))
            return 0;
        at += 2 + len;
    }
    if (n > 0)
        t->ops->on_packets(t->arg, batch, n);
    if (t->closed)
        return 0;
    memmove(t->in, t->in + at, t->in_len - at);
    t->in_len -= at;
    return 0;
}

static void on_more(struct cv_task *task);

static void read_all(struct cv_transport *t)
{
    int ret = 0;
    for (int i = 0; i < ROUNDS_MAX && ret == 0 && !t->closed; i++) {
        ret = t->tcp ? read_tcp(t) : read_udp(t);
        if (ret != 0 && ret != -EAGAIN && !t->tcp && !t->closed) {
            t->ops->on_error(t->arg, ret); /* an ICMP error; more may be there */
            ret = 0;
        }
    }
    if (t->closed)
        return;
    t->ops->on_drained(t->arg);
    if (t->closed)
        return;
    if (ret == 0 && !t->more_posted) {
        t->more_posted = true;
        t->more_task.fn = on_more;
        cv_loop_next(t->loop, &t->more_task);
    } else if (ret != 0 && ret != -EAGAIN) {
        t->ops->on_error(t->arg, ret);
    }
}

static void on_more(struct cv_task *task)
{
    struct cv_transport *t = CV_CONTAINER_OF(task, struct cv_transport, more_task);
    t->more_posted = false;
    read_all(t);
}

static void on_connect(struct cv_transport *t)
{
    int err = 0;
    socklen_t len = sizeof(err);
    if (getsockopt(t->io.fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        err = errno;
    if (err != 0) {
        t->ops->on_error(t->arg, -err);
        return;
    }
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof(peer);
    if (getpeername(t->io.fd, (struct sockaddr *)&peer, &peer_len) != 0)
        return; /* not yet */
    t->connecting = false;
    t->ops->on_open(t->arg);
}

static void on_io(struct cv_io *io, unsigned events)
{
    struct cv_transport *t = CV_CONTAINER_OF(io, struct cv_transport, io);
    if (t->connecting) {
        on_connect(t);
        if (t->closed || t->connecting)
            return;
    }
    if ((events & CV_IO_OUT) != 0 && t->blocked) {
        t->blocked = false;
        cv_transport_flush(t);
    }
    if (t->wants_writable && !t->blocked && t->out_at == t->out_end) {
        t->wants_writable = false;
        t->ops->on_writable(t->arg);
        if (t->closed)
            return;
    }
    if ((events & (CV_IO_IN | CV_IO_HUP | CV_IO_EOF)) != 0 && !t->more_posted)
        read_all(t);
}

/* ---- what it knows ---- */

uint32_t cv_transport_path_mtu(const struct cv_transport *t)
{
    int v = 0;
    socklen_t len = sizeof(v);
    int ret = t->family == AF_INET6 ? getsockopt(t->io.fd, IPPROTO_IPV6, IPV6_MTU, &v, &len)
                                    : getsockopt(t->io.fd, IPPROTO_IP, IP_MTU, &v, &len);
    return ret == 0 && v > 0 ? (uint32_t)v : 0;
}

bool cv_transport_is_tcp(const struct cv_transport *t)
{
    return t->tcp;
}
uint64_t cv_transport_bytes_in(const struct cv_transport *t)
{
    return t->bytes_in;
}
uint64_t cv_transport_bytes_out(const struct cv_transport *t)
{
    return t->bytes_out;
}
uint64_t cv_transport_dropped(const struct cv_transport *t)
{
    return t->dropped;
}
