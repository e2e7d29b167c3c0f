#include "net/replay.h"

#include "loop_util.h"
#include "net/tcp.h"

static unsigned seen;
static struct cv_stream *seen_stream;

static void on_events(void *arg, struct cv_stream *s, unsigned events)
{
    (void)arg;
    seen |= events;
    seen_stream = s;
}

static struct cv_stream *make(struct cv_loop *loop, int *ret_far, const char *text)
{
    int fds[2];
    struct cv_stream *below, *s = NULL;
    test_pair(SOCK_STREAM, fds);
    *ret_far = fds[1];
    T_INT_EQ(cv_tcp_adopt(loop, fds[0], &below), 0);
    T_INT_EQ(cv_replay_open(below, text, strlen(text), &s), 0);
    return s;
}

/* First the bytes that were put before, whatever the pieces; then those of the stream below; the
 * raw descriptor only then; the end last. */
static void test_order(void)
{
    struct cv_loop *loop = test_loop();
    int far;
    struct cv_stream *s = make(loop, &far, "BANNER");
    char buf[16];
    size_t n = 0;
    T_INT_EQ(write(far, "rest", 4), 4);
    T_INT_EQ(shutdown(far, SHUT_WR), 0);
    T_INT_EQ(cv_stream_raw_fd(s), -1);
    T_OK(cv_stream_socket_fd(s) >= 0);
    T_INT_EQ(cv_stream_recv(s, buf, 4, &n), 0);
    T_INT_EQ(n, 4);
    T_MEM_EQ(buf, "BANN", 4);
    T_INT_EQ(cv_stream_raw_fd(s), -1);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 2);
    T_MEM_EQ(buf, "ER", 2);
    T_OK(cv_stream_raw_fd(s) >= 0);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 4);
    T_MEM_EQ(buf, "rest", 4);
    TURN_UNTIL(loop, cv_stream_recv(s, buf, sizeof(buf), &n) == 0);
    T_INT_EQ(n, 0);
    cv_stream_close(s, false);
    close(far);
    test_loop_end(loop);
}

/* Sending, half-close and events pass through, under the name of this stream. */
static void test_passes_through(void)
{
    struct cv_loop *loop = test_loop();
    int far;
    struct cv_stream *s = make(loop, &far, "x");
    char buf[16];
    size_t n = 0;
    cv_stream_set_cb(s, on_events, NULL);
    T_INT_EQ(cv_stream_send(s, "up", 2, &n), 0);
    T_INT_EQ(n, 2);
    T_INT_EQ(cv_stream_shutdown_send(s), 0);
    T_INT_EQ(read(far, buf, sizeof(buf)), 2);
    T_INT_EQ(read(far, buf, sizeof(buf)), 0);
    cv_loop_turn(loop, 0);
    seen = 0;
    T_INT_EQ(write(far, "y", 1), 1);
    TURN_UNTIL(loop, (seen & CV_STREAM_READ) != 0);
    T_OK(seen_stream == s);
    cv_stream_close(s, false);
    /* No event after closing, and the far side sees the end. */
    seen = 0;
    close(far);
    cv_loop_turn(loop, 0);
    T_INT_EQ(seen, 0);
    test_loop_end(loop);
}

/* Moved to another loop with bytes left, and closed while it belongs to none. */
static void test_moves(void)
{
    struct cv_loop *a = test_loop(), *b = test_loop();
    int far;
    struct cv_stream *s = make(a, &far, "x");
    char buf[16];
    size_t n = 0;
    s->ops->detach(s);
    T_OK(s->loop == NULL);
    T_INT_EQ(cv_loop_io_count(a), 0);
    T_INT_EQ(s->ops->attach(s, b), 0);
    T_OK(s->loop == b);
    cv_stream_set_cb(s, on_events, NULL);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 1);
    seen = 0;
    T_INT_EQ(write(far, "y", 1), 1);
    TURN_UNTIL(b, (seen & CV_STREAM_READ) != 0);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    s->ops->detach(s);
    cv_stream_close(s, false);
    T_INT_EQ(read(far, buf, sizeof(buf)), 0);
    close(far);
    cv_stream_close(NULL, false);
    test_loop_end(a);
    test_loop_end(b);
}

int main(void)
{
    T_RUN(test_order);
    T_RUN(test_passes_through);
    T_RUN(test_moves);
    return t_done();
}
