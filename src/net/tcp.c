#include "net/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/sys.h"

#include "common/poison.h"

#define BACKLOG 4096 /* the kernel lowers it to net.core.somaxconn */

/* One per connection side, so its size matters: one cache line. */
struct cv_tcp {
    struct cv_stream super;
    union {
        struct cv_io io;        /* until closed; 'fd' is kept while detached */
        struct cv_task release; /* afterwards */
    };
    bool drained; /* the receive queue was empty; an event tells when that changes */
    bool blocked; /* the send buffer was full; an event tells when that changes */
    bool eof;     /* a FIN or an error is in the receive queue: never answer from 'drained' */
    bool urgent;  /* out-of-band data was seen: a short read no longer means an empty queue */
};

static const struct cv_stream_ops tcp_ops;

static struct cv_tcp *tcp_of(struct cv_stream *s)
{
    return CV_CONTAINER_OF(s, struct cv_tcp, super);
}

static void on_io(struct cv_io *io, unsigned events)
{
    struct cv_tcp *t = CV_CONTAINER_OF(io, struct cv_tcp, io);
    unsigned ready = 0;
    if (events & CV_IO_IN) {
        t->drained = false;
        ready |= CV_STREAM_READ;
    }
    if (events & CV_IO_OUT) {
        t->blocked = false;
        ready |= CV_STREAM_WRITE;
    }
    if (events & (CV_IO_EOF | CV_IO_HUP)) {
        t->eof = true;
        if (events & CV_IO_HUP)
            ready |= CV_STREAM_HUP;
    }
    if (CV_UNLIKELY(events & CV_IO_PRI))
        t->urgent = true;
    cv_stream_notify(&t->super, ready);
}

int cv_tcp_adopt(struct cv_loop *loop, int fd, struct cv_stream **ret_stream)
{
    struct cv_tcp *t = cv_try_zalloc(sizeof(*t));
    int ret = t != NULL ? 0 : -ENOMEM;
    if (ret == 0)
        ret = cv_io_add(loop, &t->io, fd, on_io);
    if (ret < 0) {
        cv_free(t);
        cv_sys_close(fd);
        return ret;
    }
    t->super.ops = &tcp_ops;
    t->super.loop = loop;
    *ret_stream = &t->super;
    return 0;
}

/* Reads that need no system call.
 *
 * A stream socket gives less than was asked for only when its receive queue is empty, and then the
 * next recv would be -EAGAIN. All that can change this comes with a new edge: data that arrives
 * later, also data that the kernel keeps in the socket's backlog while recv holds its lock, wakes
 * the epoll entry when it is queued; so does a FIN or a reset. Had one of these been there before
 * the read, but unreported, then its edge is still to be reported and on_io() clears 'drained'; had
 * it been reported, 'eof' is set and recv is really called until it says so. The event that ends
 * a connect tells the same when it has no CV_IO_IN. Clearing too often costs a call, and 'drained'
 * is only ever set by what the kernel has just said.
 *
 * Two exceptions. At the urgent mark of TCP (and of Unix sockets) a read stops short with data
 * behind it; the event that announces it carries CV_IO_PRI, and such a stream always asks the
 * kernel. On Unix sockets a message with descriptors ends a read, too; no peer has a reason to send
 * one here, and if it does its own stream waits for the next bytes or the end.
 *
 * For sending the same holds: after a short send the kernel owes an edge (SOCK_NOSPACE is set). */
static int tcp_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct cv_tcp *t = tcp_of(s);
    if (t->drained && !t->eof && !t->urgent)
        return -EAGAIN;
    int ret = cv_sys_recv(t->io.fd, buf, cap, 0, ret_n);
    if (ret == 0)
        t->drained = *ret_n > 0 && *ret_n < cap;
    else if (ret == -EAGAIN)
        t->drained = true;
    return ret;
}

static int tcp_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct cv_tcp *t = tcp_of(s);
    if (t->blocked)
        return -EAGAIN;
    size_t want = 0;
    for (int i = 0; i < iovcnt; i++)
        want += iov[i].iov_len;
    if (want == 0) {
        *ret_n = 0;
        return 0;
    }
    size_t n = 0;
    int ret = iovcnt == 1 ? cv_sys_send(t->io.fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL, &n)
                          : cv_sys_sendv(t->io.fd, iov, iovcnt, MSG_NOSIGNAL, &n);
    if (ret == 0) {
        t->blocked = n < want;
        *ret_n = n;
    } else if (ret == -EAGAIN) {
        t->blocked = true;
    } else {
        t->drained = false; /* the kernel knows better now */
    }
    return ret;
}

static int tcp_shutdown_send(struct cv_stream *s)
{
    if (shutdown(tcp_of(s)->io.fd, SHUT_WR) == 0)
        return 0;
    /* ENOTCONN: the connection has ended already, and recv tells how. */
    return errno == ENOTCONN ? 0 : -errno;
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct cv_tcp, release));
}

static void tcp_close(struct cv_stream *s, bool abort)
{
    struct cv_tcp *t = tcp_of(s);
    struct cv_loop *loop = s->loop;
    int fd = t->io.fd;
    if (abort) {
        /* Closing with a linger time of zero sends a reset. */
        struct linger reset = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    cv_stream_set_cb(s, NULL, NULL);
    cv_io_forget(&t->io);
    cv_sys_close(fd);
    if (loop == NULL) {
        cv_free(t);
        return;
    }
    s->loop = NULL;
    t->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(loop, &t->release);
}

static int tcp_fd(const struct cv_stream *s)
{
    return CV_CONTAINER_OF((struct cv_stream *)(uintptr_t)s, struct cv_tcp, super)->io.fd;
}

/* splice(2) stops at the urgent mark as if nothing were there; recv(2) does not. */
static int tcp_raw_fd(const struct cv_stream *s)
{
    const struct cv_tcp *t =
        CV_CONTAINER_OF((struct cv_stream *)(uintptr_t)s, struct cv_tcp, super);
    return t->urgent ? -1 : t->io.fd;
}

static void tcp_detach(struct cv_stream *s)
{
    cv_io_del(&tcp_of(s)->io);
    s->loop = NULL;
}

static int tcp_attach(struct cv_stream *s, struct cv_loop *loop)
{
    struct cv_tcp *t = tcp_of(s);
    /* Registering reports all that is ready at that moment, as an edge. */
    t->drained = t->blocked = false;
    int ret = cv_io_add(loop, &t->io, t->io.fd, on_io);
    if (ret == 0)
        s->loop = loop;
    return ret;
}

static const struct cv_stream_ops tcp_ops = {
    .name = "tcp",
    .recv = tcp_recv,
    .send = tcp_send,
    .shutdown_send = tcp_shutdown_send,
    .close = tcp_close,
    .raw_fd = tcp_raw_fd,
    .detach = tcp_detach,
    .attach = tcp_attach,
    .socket_fd = tcp_fd,
};

static int set_int(int fd, int level, int name, int value)
{
    return cv_sys_setsockopt(fd, level, name, &value, sizeof(value));
}

void cv_tcp_keepalive(int fd)
{
    /* First an option that only TCP has. */
    if (set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60) < 0)
        return;
    /* If one of these fails, a dead peer is noticed later. */
    (void)set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 15);
    (void)set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    (void)set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 120 * 1000);
    (void)set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

/* -- connecting -- */

static void connect_end(struct cv_tcp_connect *c, int err)
{
    struct cv_stream *stream = c->_stream;
    c->_stream = NULL;
    c->_running = false;
    if (stream != NULL) {
        cv_stream_set_cb(stream, NULL, NULL);
        if (err != 0) {
            cv_stream_close(stream, false);
            stream = NULL;
        }
    }
    c->cb(c, err, stream);
}

static void on_connect_task(struct cv_task *task)
{
    struct cv_tcp_connect *c = CV_CONTAINER_OF(task, struct cv_tcp_connect, _task);
    connect_end(c, c->_err);
}

static void on_connect_ready(void *arg, struct cv_stream *s, unsigned events)
{
    struct cv_tcp_connect *c = arg;
    if (events & CV_STREAM_HUP) {
        int err = 0;
        socklen_t len = sizeof(err);
        if (getsockopt(cv_stream_socket_fd(s), SOL_SOCKET, SO_ERROR, &err, &len) < 0)
            err = errno;
        /* No error: it was connected, and closed by the peer since. The owner will read that. */
        connect_end(c, -err);
    } else if (events & CV_STREAM_WRITE) {
        /* Nothing to read was reported with it, so the owner's first read needs no call. */
        if (!(events & CV_STREAM_READ))
            tcp_of(s)->drained = true;
        connect_end(c, 0);
    }
}

static int connect_open(struct cv_tcp_connect *c, const struct cv_sockaddr *sa)
{
    int fd = cv_sys_socket(sa->sa.sa_family, SOCK_STREAM, 0);
    if (fd < 0)
        return fd;
    if (sa->sa.sa_family != AF_UNIX)
        (void)set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    /* Before it is registered: epoll reports a socket that is not connecting as hung up. */
    int rc = cv_sys_connect(fd, &sa->sa, sa->len);
    if (rc < 0 && rc != -EINPROGRESS) {
        cv_sys_close(fd);
        /* The backlog of a Unix socket is full, or route entries ran out; not "try again". */
        return rc == -EAGAIN ? -ENOBUFS : rc;
    }
    int ret = cv_tcp_adopt(c->_loop, fd, &c->_stream);
    return ret < 0 ? ret : rc;
}

void cv_tcp_connect_start(struct cv_tcp_connect *c, struct cv_loop *loop,
                          const struct cv_sockaddr *sa)
{
    c->_loop = loop;
    c->_stream = NULL;
    c->_running = true;
    c->_err = connect_open(c, sa);
    if (c->_err == -EINPROGRESS) {
        cv_stream_set_cb(c->_stream, on_connect_ready, c);
        return;
    }
    c->_task = (struct cv_task){.fn = on_connect_task};
    cv_loop_next(loop, &c->_task);
}

void cv_tcp_connect_cancel(struct cv_tcp_connect *c)
{
    if (!c->_running)
        return;
    c->_running = false;
    if (c->_err != -EINPROGRESS)
        (void)cv_loop_next_cancel(c->_loop, &c->_task);
    cv_stream_close(c->_stream, false);
    c->_stream = NULL;
}

/* -- listening -- */

/* True if 'sa' is the path of a Unix socket on which nobody listens any more. */
static bool is_stale_unix(const struct cv_sockaddr *sa)
{
    struct stat st;
    if (sa->un.sun_path[0] == '\0' || lstat(sa->un.sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = cv_sys_socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return false;
    int rc = cv_sys_connect(fd, &sa->sa, sa->len);
    cv_sys_close(fd);
    return rc == -ECONNREFUSED;
}

static int listen_unix(int fd, const struct cv_sockaddr *sa, mode_t mode)
{
    int ret = cv_sys_bind(fd, &sa->sa, sa->len);
    if (ret == -EADDRINUSE && is_stale_unix(sa) && unlink(sa->un.sun_path) == 0)
        ret = cv_sys_bind(fd, &sa->sa, sa->len);
    if (ret < 0 || sa->un.sun_path[0] == '\0')
        return ret;
    /* Nobody can connect before listen(), so there is no moment with the wrong mode. */
    if (mode != 0 && chmod(sa->un.sun_path, mode) < 0) {
        ret = -errno;
        (void)unlink(sa->un.sun_path);
    }
    return ret;
}

static int listen_inet(int fd, const struct cv_sockaddr *sa, bool reuse_port)
{
    int ret = set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (ret == 0 && reuse_port)
        ret = set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (ret == 0 && sa->sa.sa_family == AF_INET6)
        ret = set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (ret == 0)
        ret = set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (ret == 0)
        ret = cv_sys_bind(fd, &sa->sa, sa->len);
    return ret;
}

int cv_tcp_listen(const struct cv_sockaddr *sa, const struct cv_tcp_listen_opts *opts, int *ret_fd)
{
    struct cv_sockaddr any4 = {.len = sizeof(any4.in4), .in4.sin_family = AF_INET};
    int fd = cv_sys_socket(sa->sa.sa_family, opts->packets ? SOCK_SEQPACKET : SOCK_STREAM, 0);
    if (fd == -EAFNOSUPPORT && sa->sa.sa_family == AF_INET6 &&
        IN6_IS_ADDR_UNSPECIFIED(&sa->in6.sin6_addr)) {
        /* A kernel without IPv6: "any address" is then any IPv4 address. */
        any4.in4.sin_port = sa->in6.sin6_port;
        sa = &any4;
        fd = cv_sys_socket(AF_INET, SOCK_STREAM, 0);
    }
    if (fd < 0)
        return fd;
    bool is_unix = sa->sa.sa_family == AF_UNIX;
    int ret =
        is_unix ? listen_unix(fd, sa, opts->unix_mode) : listen_inet(fd, sa, opts->reuse_port);
    if (ret == 0) {
        ret = cv_sys_listen(fd, BACKLOG);
        if (ret < 0 && is_unix && sa->un.sun_path[0] != '\0')
            (void)unlink(sa->un.sun_path);
    }
    if (ret < 0) {
        cv_sys_close(fd);
        return ret;
    }
    *ret_fd = fd;
    return 0;
}

int cv_tcp_listen_inherit(int fd)
{
    int listening = 0, domain = 0;
    socklen_t len = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0)
        return -errno;
    len = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0)
        return -errno;
    if (!listening)
        return -EINVAL;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    return domain == AF_UNIX ? 0 : set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}
