#include "net/tcp.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/stat.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "common/torture.h"
#include "loop_util.h"
#include "net/acceptor.h"

/* What a stream's callback has seen. */
struct seen {
    struct cv_stream *s;
    unsigned calls;
    unsigned events;
    bool close_in_cb;
};

static void on_seen(void *arg, struct cv_stream *s, unsigned events)
{
    struct seen *seen = arg;
    seen->calls++;
    seen->events |= events;
    if (seen->close_in_cb) {
        cv_stream_close(s, false);
        cv_stream_set_cb(s, NULL, NULL); /* memory is there to the end of the turn */
        seen->s = NULL;
    }
}

static struct seen adopt(struct cv_loop *loop, int fd)
{
    struct seen seen = {0};
    T_INT_EQ(cv_tcp_adopt(loop, fd, &seen.s), 0);
    return seen;
}

static void watch(struct seen *seen)
{
    seen->events = 0;
    seen->calls = 0;
    cv_stream_set_cb(seen->s, on_seen, seen);
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 5000) == 1;
}

/* -- reading -- */

static void test_echo_and_eof(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    char buf[64];
    size_t n;
    test_tcp_pair(fds);
    struct seen a = adopt(loop, fds[0]);
    watch(&a);
    T_STR_EQ(a.s->ops->name, "tcp");
    T_INT_EQ(cv_stream_raw_fd(a.s), fds[0]);
    T_INT_EQ(cv_stream_socket_fd(a.s), fds[0]);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), -EAGAIN);

    test_write(fds[1], "hello", 5);
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 5);
    T_MEM_EQ(buf, "hello", 5);
    T_INT_EQ(cv_stream_send(a.s, "wor", 3, &n), 0);
    T_INT_EQ(n, 3);
    struct iovec iov[2] = {{.iov_base = buf + 3, .iov_len = 1}, {.iov_base = buf, .iov_len = 1}};
    T_INT_EQ(cv_stream_sendv(a.s, iov, 2, &n), 0);
    T_INT_EQ(n, 2);
    T_INT_EQ(cv_stream_send(a.s, "", 0, &n), 0);
    T_INT_EQ(n, 0);
    T_INT_EQ(recv(fds[1], buf, 5, MSG_WAITALL), 5);
    T_MEM_EQ(buf, "worlh", 5);

    /* Half-close, ours first, theirs later. */
    T_INT_EQ(cv_stream_shutdown_send(a.s), 0);
    T_INT_EQ(recv(fds[1], buf, sizeof(buf), 0), 0);
    test_write(fds[1], "late", 4);
    shutdown(fds[1], SHUT_WR);
    a.events = 0;
    TURN_UNTIL(loop, (a.events & CV_STREAM_HUP) != 0); /* both directions have ended */
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 4);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 0);
    cv_stream_close(a.s, false);
    close(fds[1]);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

/* After a short read the next one is answered without asking the kernel, until an event comes. */
static void test_short_read(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    char buf[64];
    size_t n;
    test_tcp_pair(fds);
    struct seen a = adopt(loop, fds[0]);
    watch(&a);
    test_write(fds[1], "one", 3);
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 3);
    test_write(fds[1], "three", 5);
    T_OK(is_readable(fds[0]));
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), -EAGAIN); /* not asked */
    a.events = 0;
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    /* A read that fills its buffer says nothing about the queue. */
    T_INT_EQ(cv_stream_recv(a.s, buf, 4, &n), 0);
    T_INT_EQ(n, 4);
    T_INT_EQ(cv_stream_recv(a.s, buf, 1, &n), 0);
    T_INT_EQ(n, 1);
    test_write(fds[1], "x", 1);
    T_OK(is_readable(fds[0]));
    T_INT_EQ(cv_stream_recv(a.s, buf, 2, &n), 0);
    T_INT_EQ(n, 1);

    /* The end that arrives after a short read is announced... */
    close(fds[1]);
    a.events = 0;
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 0);
    cv_stream_close(a.s, false);

    /* ... and one that was announced with the data is found without a further event. */
    test_tcp_pair(fds);
    a = adopt(loop, fds[0]);
    watch(&a);
    test_write(fds[1], "bye", 3);
    close(fds[1]);
    struct pollfd p = {.fd = fds[0], .events = POLLRDHUP};
    T_INT_EQ(poll(&p, 1, 5000), 1);
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 3);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 0);
    cv_stream_close(a.s, false);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

static void test_urgent_mark(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    char buf[64];
    size_t n;
    test_tcp_pair(fds);
    struct seen a = adopt(loop, fds[0]);
    watch(&a);
    test_write(fds[1], "before", 6);
    T_INT_EQ(send(fds[1], "!", 1, MSG_OOB), 1);
    test_write(fds[1], "after", 5);
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    struct pollfd p = {.fd = fds[0], .events = POLLPRI};
    T_INT_EQ(poll(&p, 1, 5000), 1);
    cv_loop_turn(loop, 0);
    /* The kernel stops short at the mark; what is behind it is read without a further event. */
    size_t got = 0;
    for (int i = 0; i < 10; i++)
        if (cv_stream_recv(a.s, buf + got, sizeof(buf) - got, &n) == 0)
            got += n;
    T_INT_EQ(got, 11);
    T_MEM_EQ(buf, "beforeafter", 11);
    cv_stream_close(a.s, false);
    close(fds[1]);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

/* Random writes, reads of random sizes, urgent bytes now and then: every byte arrives, and the end
 * does, although most reads that would say -EAGAIN are never made. The reader only reads when an
 * event told it to. */
struct random_run {
    struct cv_stream *s;
    uint64_t got;
    uint8_t bad;
    bool ended;
};

static void on_random(void *arg, struct cv_stream *s, unsigned events)
{
    struct random_run *r = arg;
    uint8_t buf[512];
    size_t n;
    if ((events & CV_STREAM_READ) == 0)
        return;
    while (!r->ended) {
        size_t cap = 1 + cv_rand_below(sizeof(buf));
        int rc = cv_stream_recv(s, buf, cap, &n);
        if (rc == -EAGAIN)
            return;
        r->ended = rc < 0 || n == 0;
        if (rc < 0)
            r->bad++;
        else
            for (size_t i = 0; i < n; i++)
                r->bad |= buf[i] != (uint8_t)(r->got++ * 7);
    }
}

static void random_run(int in, int out, bool urgent)
{
    struct cv_loop *loop = test_loop();
    struct random_run r = {0};
    uint64_t sent = 0;
    T_INT_EQ(cv_tcp_adopt(loop, in, &r.s), 0);
    cv_stream_set_cb(r.s, on_random, &r);
    for (int step = 0; step < 400; step++) {
        uint8_t buf[900];
        size_t len = 1 + cv_rand_below(sizeof(buf));
        for (size_t i = 0; i < len; i++)
            buf[i] = (uint8_t)((sent + i) * 7);
        test_write(out, buf, len);
        sent += len;
        if (urgent && step % 16 == 5)
            T_INT_EQ(send(out, "!", 1, MSG_OOB), 1);
        if (cv_rand_below(2) == 0)
            cv_loop_turn(loop, 0);
    }
    close(out);
    TURN_UNTIL(loop, r.ended);
    T_INT_EQ(r.got, sent);
    T_INT_EQ(r.bad, 0);
    cv_stream_close(r.s, false);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

static void test_random_reads(void)
{
    int fds[2];
    for (int i = 0; i < 5; i++) {
        test_tcp_pair(fds);
        random_run(fds[0], fds[1], false);
        test_tcp_pair(fds);
        random_run(fds[0], fds[1], true);
        test_pair(SOCK_STREAM, fds);
        fcntl(fds[1], F_SETFL, 0);
        random_run(fds[0], fds[1], false);
    }
}

/* -- sending and closing -- */

static void test_blocked_send(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    static char big[1 << 16];
    size_t n, sent = 0, got = 0;
    test_tcp_pair(fds);
    struct seen a = adopt(loop, fds[0]);
    watch(&a);
    int rc;
    while ((rc = cv_stream_send(a.s, big, sizeof(big), &n)) == 0) {
        T_OK(n > 0);
        sent += n;
    }
    T_INT_EQ(rc, -EAGAIN);
    cv_loop_turn(loop, 0); /* the event from the start may come late: it costs one try */
    while (cv_stream_send(a.s, big, sizeof(big), &n) == 0)
        sent += n;
    a.events = 0;
    while (got < sent) {
        ssize_t k = recv(fds[1], big, sizeof(big), 0);
        T_REQUIRE(k > 0);
        got += (size_t)k;
    }
    TURN_UNTIL(loop, (a.events & CV_STREAM_WRITE) != 0);
    T_INT_EQ(cv_stream_send(a.s, big, 10, &n), 0);
    T_INT_EQ(n, 10);
    cv_stream_close(a.s, false);
    close(fds[1]);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

static void test_reset(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    char buf[8];
    size_t n;
    /* Ours: the peer sees a reset. */
    test_tcp_pair(fds);
    struct seen a = adopt(loop, fds[0]);
    watch(&a);
    cv_stream_close(a.s, true);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    T_INT_EQ(recv(fds[1], buf, sizeof(buf), 0), -1);
    T_INT_EQ(errno, ECONNRESET);
    close(fds[1]);
    cv_loop_turn(loop, 0);
    T_INT_EQ(a.calls, 0); /* none after close */

    /* Theirs. */
    test_tcp_pair(fds);
    a = adopt(loop, fds[0]);
    watch(&a);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), -EAGAIN);
    struct linger reset = {.l_onoff = 1};
    setsockopt(fds[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fds[1]);
    TURN_UNTIL(loop, (a.events & CV_STREAM_HUP) != 0);
    T_OK((a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), -ECONNRESET);
    T_INT_EQ(cv_stream_send(a.s, "x", 1, &n), -EPIPE); /* and no signal */
    T_INT_EQ(cv_stream_shutdown_send(a.s), 0);
    cv_stream_close(a.s, false);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

static void test_close_in_callback(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2], before = test_fd_count();
    test_tcp_pair(fds);
    struct seen a = adopt(loop, fds[0]);
    a.close_in_cb = true;
    cv_stream_set_cb(a.s, on_seen, &a);
    test_write(fds[1], "x", 1);
    TURN_UNTIL(loop, a.calls > 0);
    T_INT_EQ(a.calls, 1);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    close(fds[1]);
    T_INT_EQ(test_fd_count(), before);
    cv_stream_close(NULL, true);
    test_loop_end(loop);
}

static void test_adopt_failure(void)
{
    struct cv_loop *loop = test_loop();
    int before = test_fd_count();
    struct cv_stream *s = NULL;
    /* epoll takes no regular file; the descriptor is closed all the same. */
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    T_INT_EQ(cv_tcp_adopt(loop, fd, &s), -EPERM);
    T_OK(s == NULL);
    T_INT_EQ(test_fd_count(), before);
    test_loop_end(loop);
}

static void test_move(void)
{
    struct cv_loop *one = test_loop(), *two = test_loop();
    int fds[2];
    char buf[16];
    size_t n;
    test_tcp_pair(fds);
    struct seen a = adopt(one, fds[0]);
    watch(&a);
    test_write(fds[1], "a", 1);
    TURN_UNTIL(one, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    a.s->ops->detach(a.s);
    T_OK(a.s->loop == NULL);
    T_INT_EQ(cv_loop_io_count(one), 0);
    test_write(fds[1], "b", 1); /* in between */
    T_OK(is_readable(fds[0]));
    T_INT_EQ(a.s->ops->attach(a.s, two), 0);
    T_INT_EQ(cv_loop_io_count(two), 1);
    watch(&a);
    TURN_UNTIL(two, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(a.events, CV_STREAM_READ | CV_STREAM_WRITE);
    T_INT_EQ(cv_stream_recv(a.s, buf, sizeof(buf), &n), 0);
    T_MEM_EQ(buf, "b", 1);
    a.s->ops->detach(a.s);
    cv_stream_close(a.s, false); /* detached: at once */
    T_INT_EQ(recv(fds[1], buf, sizeof(buf), 0), 0);
    close(fds[1]);
    test_loop_end(one);
    test_loop_end(two);
}

/* -- connecting -- */

struct result {
    struct cv_tcp_connect c;
    unsigned calls;
    int err;
    struct cv_stream *s;
};

static void on_result(struct cv_tcp_connect *c, int err, struct cv_stream *s)
{
    struct result *r = CV_CONTAINER_OF(c, struct result, c);
    r->calls++;
    r->err = err;
    r->s = s;
}

static struct cv_sockaddr loopback(uint16_t port)
{
    struct cv_sockaddr sa = {.len = sizeof(sa.in4), .in4.sin_family = AF_INET};
    sa.in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sa.in4.sin_port = port;
    return sa;
}

static struct cv_sockaddr address_of(int fd)
{
    struct cv_sockaddr sa = {.len = sizeof(sa.un)};
    if (getsockname(fd, &sa.sa, &sa.len) != 0)
        abort();
    return sa;
}

static struct cv_sockaddr unix_address(const char *path)
{
    struct cv_sockaddr sa = {.un.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len >= sizeof(sa.un.sun_path))
        abort();
    memcpy(sa.un.sun_path, path, len + 1);
    sa.len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    return sa;
}

static void test_connect(void)
{
    struct cv_loop *loop = test_loop();
    int listener = test_listener(), flag = 0;
    socklen_t len = sizeof(flag);
    char buf[8];
    size_t n;
    struct cv_sockaddr sa = address_of(listener);
    struct result r = {.c.cb = on_result};
    cv_tcp_connect_start(&r.c, loop, &sa);
    T_INT_EQ(r.calls, 0); /* never from inside */
    TURN_UNTIL(loop, r.calls > 0);
    T_INT_EQ(r.calls, 1);
    T_INT_EQ(r.err, 0);
    T_REQUIRE(r.s != NULL);
    T_INT_EQ(getsockopt(cv_stream_socket_fd(r.s), IPPROTO_TCP, TCP_NODELAY, &flag, &len), 0);
    T_INT_EQ(flag, 1);
    int peer = accept(listener, NULL, NULL);
    /* Both directions count as ready: the owner may try at once. */
    T_INT_EQ(cv_stream_send(r.s, "hi", 2, &n), 0);
    T_INT_EQ(recv(peer, buf, sizeof(buf), 0), 2);
    T_INT_EQ(cv_stream_recv(r.s, buf, sizeof(buf), &n), -EAGAIN);
    struct seen a = {.s = r.s};
    watch(&a);
    test_write(peer, "ho", 2);
    TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(r.s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 2);
    cv_tcp_connect_cancel(&r.c); /* not running any more: nothing */
    cv_stream_close(r.s, false);
    close(peer);

    /* Nobody listens. */
    close(listener);
    r = (struct result){.c.cb = on_result};
    cv_tcp_connect_start(&r.c, loop, &sa);
    T_INT_EQ(r.calls, 0);
    TURN_UNTIL(loop, r.calls > 0);
    T_INT_EQ(r.err, -ECONNREFUSED);
    T_OK(r.s == NULL);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

/* A server that speaks first, before and after the connect is reported. */
static void test_connect_banner(void)
{
    struct cv_loop *loop = test_loop();
    int listener = test_listener();
    struct cv_sockaddr sa = address_of(listener);
    for (int late = 0; late < 2; late++) {
        char buf[8];
        size_t n = 0;
        struct result r = {.c.cb = on_result};
        cv_tcp_connect_start(&r.c, loop, &sa);
        int peer = accept(listener, NULL, NULL);
        if (!late)
            test_write(peer, "220", 3);
        TURN_UNTIL(loop, r.calls > 0);
        T_REQUIRE(r.s != NULL);
        if (late)
            test_write(peer, "220", 3);
        struct seen a = {.s = r.s};
        watch(&a);
        /* Whether it is there at once or announced: it comes. */
        if (cv_stream_recv(r.s, buf, sizeof(buf), &n) == -EAGAIN) {
            T_OK(late);
            TURN_UNTIL(loop, (a.events & CV_STREAM_READ) != 0);
            T_INT_EQ(cv_stream_recv(r.s, buf, sizeof(buf), &n), 0);
        }
        T_INT_EQ(n, 3);
        cv_stream_close(r.s, false);
        close(peer);
    }
    close(listener);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

static void test_connect_at_once(void)
{
    struct cv_loop *loop = test_loop();
    int before = test_fd_count();
    /* Failures that connect(2) tells at once: a family that does not fit, a missing path. */
    struct cv_sockaddr broadcast = loopback(htons(9));
    broadcast.in4.sin_addr.s_addr = htonl(INADDR_BROADCAST);
    struct cv_sockaddr missing = unix_address("/nonexistent/socket");
    struct {
        const struct cv_sockaddr *sa;
        int err;
    } rows[] = {{&broadcast, -ENETUNREACH}, {&missing, -ENOENT}};
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct result r = {.c.cb = on_result};
        cv_tcp_connect_start(&r.c, loop, rows[i].sa);
        T_INT_EQ(r.calls, 0);
        TURN_UNTIL(loop, r.calls > 0);
        /* With a default route the broadcast address is refused for want of permission. */
        T_OK(r.err == rows[i].err || (i == 0 && r.err == -EACCES));
        T_OK(r.s == NULL);
        /* Given up before it was told. */
        r = (struct result){.c.cb = on_result};
        cv_tcp_connect_start(&r.c, loop, rows[i].sa);
        cv_tcp_connect_cancel(&r.c);
        cv_tcp_connect_cancel(&r.c);
        memset(&r, 0xee, sizeof(r)); /* its memory is not touched any more */
        cv_loop_turn(loop, 0);
    }
    T_INT_EQ(test_fd_count(), before);
    test_loop_end(loop);
}

static void test_connect_cancel(void)
{
    struct cv_loop *loop = test_loop();
    int listener = test_listener(), before = test_fd_count();
    struct cv_sockaddr sa = address_of(listener);
    struct result *r = cv_zalloc(sizeof(*r));
    r->c.cb = on_result;
    cv_tcp_connect_start(&r->c, loop, &sa);
    cv_tcp_connect_cancel(&r->c);
    cv_free(r);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    T_INT_EQ(test_fd_count(), before);
    cv_loop_turn(loop, 0);
    close(listener);
    test_loop_end(loop);
}

/* -- listening -- */

static const struct cv_tcp_listen_opts no_opts;

static void test_listen(void)
{
    struct cv_loop *loop = test_loop();
    struct cv_sockaddr sa = loopback(0);
    int fd = -1, flag = 0;
    socklen_t len = sizeof(flag);
    T_INT_EQ(cv_tcp_listen(&sa, &no_opts, &fd), 0);
    T_OK((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    T_OK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    /* What is accepted inherits TCP_NODELAY. */
    int client = test_client(fd);
    T_OK(is_readable(fd));
    int conn = accept(fd, NULL, NULL);
    T_INT_EQ(getsockopt(conn, IPPROTO_TCP, TCP_NODELAY, &flag, &len), 0);
    T_INT_EQ(flag, 1);
    close(conn);
    close(client);
    /* Taken. */
    int second = -1;
    struct cv_sockaddr taken = address_of(fd);
    T_INT_EQ(cv_tcp_listen(&taken, &no_opts, &second), -EADDRINUSE);
    T_INT_EQ(second, -1);
    close(fd);
    /* One per thread. */
    struct cv_tcp_listen_opts shared = {.reuse_port = true};
    T_INT_EQ(cv_tcp_listen(&sa, &shared, &fd), 0);
    taken = address_of(fd);
    T_INT_EQ(cv_tcp_listen(&taken, &shared, &second), 0);
    close(fd);
    close(second);
    /* An address that this machine does not have. */
    struct cv_sockaddr foreign = loopback(0);
    foreign.in4.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1 */
    T_INT_EQ(cv_tcp_listen(&foreign, &no_opts, &fd), -EADDRNOTAVAIL);
    test_loop_end(loop);
}

static void test_listen_dual_stack(void)
{
    struct cv_sockaddr any = {.len = sizeof(any.in6), .in6.sin6_family = AF_INET6};
    int fd = -1;
    T_INT_EQ(cv_tcp_listen(&any, &no_opts, &fd), 0);
    int client = test_client(fd); /* by IPv4; also where the kernel has no IPv6 at all */
    T_OK(is_readable(fd));
    close(client);
    close(fd);
}

static void test_listen_unix(void)
{
    char dir[] = "/tmp/cv_test_tcp_XXXXXX", path[64], file[64];
    T_REQUIRE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/s", dir);
    snprintf(file, sizeof(file), "%s/f", dir);
    struct cv_sockaddr sa = unix_address(path);
    struct cv_tcp_listen_opts opts = {.unix_mode = 0660};
    struct stat st;
    int fd = -1, second = -1;
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &fd), 0);
    T_INT_EQ(stat(path, &st), 0);
    T_INT_EQ(st.st_mode & 0777, 0660);
    /* Somebody answers: not replaced. */
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &second), -EADDRINUSE);
    /* A connect to a Unix socket ends at once, and is told by callback all the same. */
    struct cv_loop *loop = test_loop();
    struct result r = {.c.cb = on_result};
    cv_tcp_connect_start(&r.c, loop, &sa);
    T_INT_EQ(r.calls, 0);
    TURN_UNTIL(loop, r.calls > 0);
    T_INT_EQ(r.err, 0);
    cv_tcp_keepalive(cv_stream_socket_fd(r.s)); /* not TCP: nothing */
    cv_stream_close(r.s, false);
    cv_tcp_connect_start(&r.c, loop, &sa);
    cv_tcp_connect_cancel(&r.c);
    cv_loop_turn(loop, 0);
    T_INT_EQ(r.calls, 1);
    test_loop_end(loop);
    /* Left behind by a process that is gone: replaced. */
    close(fd);
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &fd), 0);
    close(fd);
    /* Something else under that name: refused and untouched. */
    FILE *f = fopen(file, "w");
    T_REQUIRE(f != NULL);
    fclose(f);
    struct cv_sockaddr on_file = unix_address(file);
    T_INT_EQ(cv_tcp_listen(&on_file, &opts, &fd), -EADDRINUSE);
    T_INT_EQ(stat(file, &st), 0);
    T_OK(S_ISREG(st.st_mode));
    unlink(path);
    unlink(file);
    rmdir(dir);
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &fd), -ENOENT);
}

static void test_listen_inherit(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), flag = 0;
    socklen_t len = sizeof(flag);
    T_INT_EQ(cv_tcp_listen_inherit(fd), -EINVAL);
    T_INT_EQ(listen(fd, 5), 0);
    T_INT_EQ(cv_tcp_listen_inherit(fd), 0);
    T_OK((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    T_OK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    T_INT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &flag, &len), 0);
    T_INT_EQ(flag, 1);
    close(fd);
    T_INT_EQ(cv_tcp_listen_inherit(fd), -EBADF);
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    T_INT_EQ(cv_tcp_listen_inherit(file), -ENOTSOCK);
    close(file);
}

static void test_keepalive(void)
{
    static const struct {
        int level, name, value;
    } rows[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},           {IPPROTO_TCP, TCP_KEEPIDLE, 60},
        {IPPROTO_TCP, TCP_KEEPINTVL, 15},        {IPPROTO_TCP, TCP_KEEPCNT, 4},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 120000},
    };
    int fds[2];
    test_tcp_pair(fds);
    cv_tcp_keepalive(fds[0]);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        int value = -1;
        socklen_t len = sizeof(value);
        T_INT_EQ(getsockopt(fds[0], rows[i].level, rows[i].name, &value, &len), 0);
        T_INT_EQ(value, rows[i].value);
    }
    close(fds[0]);
    close(fds[1]);
}

#ifdef CV_TORTURE
/* -- each fallible call fails once: nothing leaks and nothing hangs -- */

struct torture {
    struct cv_acceptor acceptor;
    struct cv_loop *loop;
    struct cv_stream *server;
    struct result client;
};

static void on_torture_accept(struct cv_acceptor *a, int fd, const struct cv_sockaddr *peer)
{
    struct torture *t = CV_CONTAINER_OF(a, struct torture, acceptor);
    struct cv_stream *s;
    if (cv_tcp_adopt(t->loop, fd, &s) != 0)
        return;
    cv_stream_close(t->server, false);
    t->server = s;
}

static bool echo_works(struct torture *t)
{
    char buf[8];
    size_t n = 0;
    if (cv_stream_send(t->client.s, "ping", 4, &n) != 0)
        return false;
    for (int i = 0; i < 20; i++) {
        cv_loop_turn(t->loop, 10);
        int rc = cv_stream_recv(t->server, buf, sizeof(buf), &n);
        if (rc != -EAGAIN)
            return rc == 0 && n == 4;
    }
    return false;
}

/* True if all of it worked. */
static bool torture_scene(void)
{
    struct torture t = {.client.c.cb = on_result};
    struct cv_sockaddr any = loopback(0);
    int listener = -1;
    bool good = false;
    if (cv_loop_new(&t.loop) != 0)
        return false;
    t.acceptor.on_accept = on_torture_accept;
    if (cv_tcp_listen(&any, &no_opts, &listener) == 0 &&
        cv_acceptor_start(&t.acceptor, t.loop, listener, false) == 0) {
        struct cv_sockaddr to = address_of(listener);
        cv_tcp_connect_start(&t.client.c, t.loop, &to);
        /* A paused acceptor comes back after 100 ms; give it that. */
        for (int i = 0; i < 40 && (t.client.calls == 0 || t.server == NULL); i++)
            cv_loop_turn(t.loop, 10);
        good = t.client.s != NULL && t.server != NULL && t.acceptor.paused == 0 && echo_works(&t);
    }
    cv_tcp_connect_cancel(&t.client.c);
    cv_stream_close(t.client.s, false);
    cv_stream_close(t.server, true);
    cv_acceptor_stop(&t.acceptor, false);
    if (listener >= 0)
        close(listener);
    cv_loop_turn(t.loop, 0);
    test_loop_end(t.loop);
    return good;
}

static void test_torture(void)
{
    int before = test_fd_count();
    uint64_t nth = 0;
    bool untouched = false;
    while (!untouched && nth < 1000) {
        cv_torture_arm(++nth);
        torture_scene();
        untouched = cv_torture_count() < nth; /* the Nth call did not come any more */
        T_INT_EQ(test_fd_count(), before);
    }
    cv_torture_arm(0);
    T_OK(untouched && nth > 15);
    T_OK(torture_scene());
    printf("# %ju calls were made to fail\n", (uintmax_t)nth - 1);
}
#endif

int main(void)
{
#ifdef CV_TORTURE
    T_RUN(test_torture);
#endif
    T_RUN(test_echo_and_eof);
    T_RUN(test_short_read);
    T_RUN(test_urgent_mark);
    T_RUN(test_random_reads);
    T_RUN(test_blocked_send);
    T_RUN(test_reset);
    T_RUN(test_close_in_callback);
    T_RUN(test_adopt_failure);
    T_RUN(test_move);
    T_RUN(test_connect);
    T_RUN(test_connect_banner);
    T_RUN(test_connect_at_once);
    T_RUN(test_connect_cancel);
    T_RUN(test_listen);
    T_RUN(test_listen_dual_stack);
    T_RUN(test_listen_unix);
    T_RUN(test_listen_inherit);
    T_RUN(test_keepalive);
    return t_done();
}
