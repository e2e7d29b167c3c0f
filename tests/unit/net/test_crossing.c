#include "net/crossing.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "net/tcp.h"
#include "tap.h"

static struct cv_loop *near_loop, *far_loop;
static int peer; /* the other end of the inner stream */

static struct cv_stream *set_up(void)
{
    int fds[2];
    struct cv_stream *inner;
    struct cv_crossing *c;
    if (cv_loop_new(&near_loop) != 0 || cv_loop_new(&far_loop) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0 ||
        cv_tcp_adopt(far_loop, fds[0], &inner) != 0 || cv_crossing_new(near_loop, inner, &c) != 0)
        abort();
    peer = fds[1];
    return cv_crossing_take(c);
}

static void turn(void)
{
    for (int i = 0; i < 4; i++) {
        cv_loop_turn(far_loop, 0);
        cv_loop_turn(near_loop, 0);
    }
}

static void tear_down(struct cv_stream *s, bool abort)
{
    cv_stream_close(s, abort);
    turn();
    T_INT_EQ(cv_loop_io_count(far_loop), 0);
    if (peer >= 0)
        close(peer);
    cv_loop_free(near_loop);
    cv_loop_free(far_loop);
}

static void test_both_ways(void)
{
    struct cv_stream *s = set_up();
    char buf[64];
    size_t n = 0;
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), -EAGAIN);
    T_INT_EQ(cv_stream_send(s, "hello", 5, &n), 0);
    T_INT_EQ(n, 5);
    turn();
    T_INT_EQ(read(peer, buf, sizeof(buf)), 5);
    T_INT_EQ(write(peer, "world!", 6), 6);
    turn();
    T_INT_EQ(cv_stream_recv(s, buf, 4, &n), 0);
    T_INT_EQ(n, 4);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 2);
    /* Half-close, first ours, then the peer's, with bytes before it. */
    T_INT_EQ(cv_stream_shutdown_send(s), 0);
    T_INT_EQ(cv_stream_send(s, "x", 1, &n), -EPIPE);
    turn();
    T_INT_EQ(read(peer, buf, sizeof(buf)), 0);
    T_INT_EQ(write(peer, "bye", 3), 3);
    shutdown(peer, SHUT_WR);
    turn();
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 3);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 0);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 0);
    tear_down(s, false);
}

static void test_bounds(void)
{
    struct cv_stream *s = set_up();
    static uint8_t block[65536];
    size_t n, sent = 0;
    int ret;
    while ((ret = cv_stream_send(s, block, sizeof(block), &n)) == 0) {
        sent += n;
        turn();
        if (sent > 64 << 20)
            break;
    }
    T_INT_EQ(ret, -EAGAIN);
    T_OK(sent < 4 << 20);
    /* The reader takes it all; then there is room again. */
    size_t got = 0;
    ssize_t k;
    for (int i = 0; i < 10000 && got < sent; i++) {
        while ((k = read(peer, block, sizeof(block))) > 0)
            got += (size_t)k;
        turn();
    }
    T_INT_EQ(got, sent);
    T_INT_EQ(cv_stream_send(s, block, 1, &n), 0);
    tear_down(s, true);
}

static void test_peer_gone(void)
{
    struct cv_stream *s = set_up();
    char buf[8];
    size_t n = 0;
    close(peer);
    peer = -1;
    turn();
    T_INT_EQ(cv_stream_send(s, "x", 1, &n), 0);
    turn();
    T_OK(cv_stream_send(s, "x", 1, &n) < 0);
    T_OK(cv_stream_recv(s, buf, sizeof(buf), &n) == 0 && n == 0);
    tear_down(s, false);
}

static void test_refused(void)
{
    int fds[2];
    struct cv_stream *inner;
    struct cv_crossing *c;
    if (cv_loop_new(&near_loop) != 0 || cv_loop_new(&far_loop) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0 ||
        cv_tcp_adopt(far_loop, fds[0], &inner) != 0 || cv_crossing_new(near_loop, inner, &c) != 0)
        abort();
    cv_crossing_refuse(c);
    turn();
    char b;
    T_INT_EQ(read(fds[1], &b, 1), 0);
    close(fds[1]);
    cv_loop_free(near_loop);
    cv_loop_free(far_loop);
}

/* -- with a thread for each loop: an echo of everything -- */

#define TOTAL (16u << 20)
static struct {
    size_t sent, got;
    bool wrong;
} t;

static void *far_main(void *arg)
{
    (void)arg;
    cv_loop_run(far_loop);
    return NULL;
}

static void *echo_main(void *arg)
{
    static uint8_t buf[65536];
    int fd = *(int *)arg;
    ssize_t n;
    while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
        for (ssize_t k, off = 0; off < n; off += k)
            if ((k = send(fd, buf + off, (size_t)(n - off), MSG_NOSIGNAL)) <= 0)
                return NULL;
    shutdown(fd, SHUT_WR);
    return NULL;
}

static void on_ready(void *arg, struct cv_stream *s, unsigned events)
{
    static uint8_t buf[40000];
    size_t n;
    (void)arg;
    (void)events;
    while (t.sent < TOTAL) {
        for (size_t i = 0; i < sizeof(buf); i++)
            buf[i] = (uint8_t)((t.sent + i) * 31 >> 3);
        if (cv_stream_send(s, buf, CV_MIN(sizeof(buf), TOTAL - t.sent), &n) != 0)
            break;
        t.sent += n;
        if (t.sent == TOTAL)
            (void)cv_stream_shutdown_send(s);
    }
    while (cv_stream_recv(s, buf, sizeof(buf), &n) == 0) {
        for (size_t i = 0; i < n; i++)
            t.wrong |= buf[i] != (uint8_t)((t.got + i) * 31 >> 3);
        t.got += n;
        if (n == 0) {
            cv_loop_stop(near_loop);
            return;
        }
    }
}

static void test_threads(void)
{
    struct cv_stream *s = set_up();
    pthread_t far, echo;
    if (fcntl(peer, F_SETFL, 0) < 0) /* the echo blocks */
        abort();
    if (pthread_create(&far, NULL, far_main, NULL) != 0 ||
        pthread_create(&echo, NULL, echo_main, &peer) != 0)
        abort();
    cv_stream_set_cb(s, on_ready, NULL);
    on_ready(NULL, s, 0);
    cv_loop_run(near_loop);
    cv_loop_stop(far_loop);
    pthread_join(far, NULL);
    pthread_join(echo, NULL);
    T_INT_EQ(t.got, TOTAL);
    T_OK(!t.wrong);
    tear_down(s, false);
}

int main(void)
{
    T_RUN(test_both_ways);
    T_RUN(test_bounds);
    T_RUN(test_peer_gone);
    T_RUN(test_refused);
    T_RUN(test_threads);
    return t_done();
}
