#include "flow/relay.h"

#include <fcntl.h>
#include <poll.h>

#include "common/rand.h"
#include "flow_util.h"
#include "net/pipe.h"

/* The ends that a test holds are non-blocking: client <-> (a relay b) <-> origin. */
struct bench {
    struct test_node n;
    struct cv_relay relay;
    int client, origin;
    bool ended;
    int err;
    uint64_t up, down;
};

static void on_end(struct cv_relay *r, int err)
{
    struct bench *b = CV_CONTAINER_OF(r, struct bench, relay);
    b->ended = true;
    b->err = err;
}

static void on_bytes(struct cv_relay *r, bool up, size_t n)
{
    struct bench *b = CV_CONTAINER_OF(r, struct bench, relay);
    if (up)
        b->up += n;
    else
        b->down += n;
}

enum kind {
    UNIX,
    TCP,
};

static struct cv_stream *adopt(struct bench *b, enum kind kind, int *ret_far)
{
    int fds[2];
    struct cv_stream *s;
    if (kind == TCP)
        test_tcp_pair(fds);
    else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        abort();
    (void)fcntl(fds[1], F_SETFL, O_NONBLOCK);
    if (cv_tcp_adopt(b->n.worker->loop, fds[0], &s) != 0)
        abort();
    *ret_far = fds[1];
    return s;
}

static void start_early(struct bench *b, enum kind kind, const char *up, const char *down)
{
    b->ended = false;
    b->err = 1;
    b->up = b->down = 0;
    b->relay.on_end = on_end;
    b->relay.on_bytes = on_bytes;
    struct cv_stream *near = adopt(b, kind, &b->client);
    struct cv_stream *far = adopt(b, kind, &b->origin);
    T_INT_EQ(cv_relay_start(&b->relay, b->n.worker, near, far, up, strlen(up), down, strlen(down)),
             0);
}

static void start(struct bench *b, enum kind kind)
{
    start_early(b, kind, "", "");
}

static void shut_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void open_bench(struct bench *b)
{
    *b = (struct bench){.client = -1, .origin = -1};
    test_node_start(&b->n);
}

static void close_bench(struct bench *b)
{
    shut_fd(&b->client);
    shut_fd(&b->origin);
    test_node_end(&b->n);
}

static void reset_fd(int *fd)
{
    struct linger l = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(*fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
    shut_fd(fd);
}

static void put(int fd, const char *text)
{
    T_INT_EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Turn until 'fd' has given 'want', then the end of the stream if 'eof'. */
static void expect(struct bench *b, int fd, const char *want, bool eof)
{
    char got[256] = "";
    size_t n = 0, len = strlen(want);
    bool ended = false;
    int64_t end = cv_clock_mono_ms() + 60000;
    while ((n < len || (eof && !ended)) && cv_clock_mono_ms() < end) {
        cv_loop_turn(b->n.worker->loop, 5);
        ssize_t r = recv(fd, got + n, sizeof(got) - 1 - n, 0);
        if (r == 0)
            ended = true;
        else if (r > 0)
            n += (size_t)r;
        else if (errno != EAGAIN)
            break;
    }
    got[n] = '\0';
    T_STR_EQ(got, want);
    T_OK(ended == eof);
}

/* Turn until poll says that the connection of 'fd' was reset. */
static void expect_reset(struct bench *b, int fd)
{
    struct pollfd p = {.fd = fd};
    int64_t end = cv_clock_mono_ms() + 60000;
    while (!(p.revents & POLLERR) && cv_clock_mono_ms() < end) {
        cv_loop_turn(b->n.worker->loop, 5);
        poll(&p, 1, 0);
    }
    T_OK(p.revents & POLLERR);
}

/* Turn until a receive on 'fd' fails, after 'want'. Returns the errno. */
static int expect_error(struct bench *b, int fd, const char *want)
{
    char got[256] = "";
    size_t n = 0;
    int err = 0;
    int64_t end = cv_clock_mono_ms() + 60000;
    while (err == 0 && cv_clock_mono_ms() < end) {
        cv_loop_turn(b->n.worker->loop, 5);
        ssize_t r = recv(fd, got + n, sizeof(got) - 1 - n, 0);
        if (r > 0)
            n += (size_t)r;
        else if (r == 0)
            err = -1; /* an end, where an error was wanted */
        else if (errno != EAGAIN)
            err = errno;
    }
    got[n] = '\0';
    T_STR_EQ(got, want);
    return err;
}

static void test_both_ways(void)
{
    for (enum kind kind = UNIX; kind <= TCP; kind++) {
        struct bench b;
        open_bench(&b);
        start_early(&b, kind, "early up ", "early down ");
        put(b.client, "ping");
        expect(&b, b.origin, "early up ping", false);
        put(b.origin, "pong");
        expect(&b, b.client, "early down pong", false);
        T_INT_EQ(b.up, 13);
        T_INT_EQ(b.down, 15);

        /* An idle relay holds nothing. */
        for (int i = 0; i < 2; i++) {
            T_OK(b.relay._dir[i].pending == NULL);
            T_INT_EQ(b.relay._dir[i].pipe.rd, -1);
        }
        shutdown(b.client, SHUT_WR);
        expect(&b, b.origin, "", true);
        T_OK(!b.ended);
        put(b.origin, "answer after the half-close");
        expect(&b, b.client, "answer after the half-close", false);
        shutdown(b.origin, SHUT_WR);
        expect(&b, b.client, "", true);
        TURN_UNTIL(b.n.worker->loop, b.ended);
        T_INT_EQ(b.err, 0);
        close_bench(&b);
    }
}

static void test_half_close_of_origin(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    put(b.origin, "greeting");
    shutdown(b.origin, SHUT_WR);
    expect(&b, b.client, "greeting", true);
    T_OK(!b.ended);
    put(b.client, "still talking");
    expect(&b, b.origin, "still talking", false);
    shutdown(b.client, SHUT_WR);
    expect(&b, b.origin, "", true);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, 0);
    T_INT_EQ(b.up, 13);
    T_INT_EQ(b.down, 8);
    close_bench(&b);
}

static void test_reset_is_passed_on(void)
{
    for (int side = 0; side < 2; side++) {
        struct bench b;
        open_bench(&b);
        start(&b, TCP);
        int *resetting = side == 0 ? &b.client : &b.origin;
        int *other = side == 0 ? &b.origin : &b.client;
        put(*resetting, "last words");
        /* The relay must see both at once: the bytes, then the reset. */
        reset_fd(resetting);
        T_INT_EQ(expect_error(&b, *other, "last words"), ECONNRESET);
        TURN_UNTIL(b.n.worker->loop, b.ended);
        T_INT_EQ(b.err, -ECONNRESET);
        close_bench(&b);
    }
}

/* The reset comes when the end of that side was passed on long ago. */
static void test_reset_after_half_close(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    shutdown(b.client, SHUT_WR);
    expect(&b, b.origin, "", true);
    reset_fd(&b.client);
    expect_reset(&b, b.origin);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, -ECONNRESET);
    close_bench(&b);
}

/* An origin that refuses the rest of a request: it answers and closes with bytes unread, which
 * becomes a reset. Its answer must still arrive. */
static void test_answer_before_refusal(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    static char junk[300000];
    size_t sent = 0;
    for (int i = 0; i < 50; i++) {
        ssize_t n = send(b.client, junk, sizeof(junk), MSG_NOSIGNAL);
        if (n > 0)
            sent += (size_t)n;
        cv_loop_turn(b.n.worker->loop, 0);
    }
    T_OK(sent > sizeof(junk));
    put(b.origin, "413 too large");
    shut_fd(&b.origin); /* unread bytes: the kernel sends a reset */
    T_INT_EQ(expect_error(&b, b.client, "413 too large"), ECONNRESET);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_OK(b.err == -ECONNRESET || b.err == -EPIPE);
    close_bench(&b);
}

/* A side that closes while it is being sent to. */
static void test_send_refused(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, UNIX);
    shutdown(b.origin, SHUT_RD);
    put(b.client, "nobody reads this");
    int64_t began = cv_clock_mono_ms();
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, -EPIPE);
    /* It was given a second to say something itself. */
    T_OK(cv_clock_mono_ms() - began < 5000);
    T_INT_EQ(b.up, 0);
    close_bench(&b);
}

static void test_abort(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    put(b.client, "x");
    expect(&b, b.origin, "x", false);
    cv_relay_abort(&b.relay, CV_E_KILLED);
    T_OK(!b.ended); /* never from inside the call */
    cv_relay_abort(&b.relay, -EIO);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, CV_E_KILLED);
    T_INT_EQ(expect_error(&b, b.client, ""), ECONNRESET);
    T_INT_EQ(expect_error(&b, b.origin, ""), ECONNRESET);
    close_bench(&b);
}

/* -- bulk -- */

struct flow_test {
    int from, to;
    uint64_t want, sent, got;
    uint64_t sent_sum, got_sum; /* of position and byte, so that order counts */
    size_t write_max, read_max;
    bool shut, eof;
};

static uint64_t mix(uint64_t sum, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = sum * 1099511628211u + p[i];
    return sum;
}

static void push_some(struct flow_test *t)
{
    static uint8_t buf[1 << 20];
    while (t->sent < t->want) {
        size_t n = 1 + cv_rand_below((uint32_t)t->write_max);
        n = CV_MIN(n, t->want - t->sent);
        cv_rand_bytes(buf, CV_MIN(n, (size_t)64));
        ssize_t w = send(t->from, buf, n, MSG_NOSIGNAL);
        if (w <= 0)
            return;
        t->sent_sum = mix(t->sent_sum, buf, (size_t)w);
        t->sent += (size_t)w;
    }
    if (!t->shut)
        shutdown(t->from, SHUT_WR);
    t->shut = true;
}

static bool pull_some(struct flow_test *t)
{
    static uint8_t buf[1 << 20];
    size_t n = 1 + cv_rand_below((uint32_t)t->read_max);
    ssize_t r = recv(t->to, buf, n, 0);
    if (r == 0)
        t->eof = true;
    if (r <= 0)
        return false;
    t->got_sum = mix(t->got_sum, buf, (size_t)r);
    t->got += (size_t)r;
    return true;
}

static void run_flows(struct bench *b, struct flow_test *t, int n)
{
    int64_t end = cv_clock_mono_ms() + 60000;
    bool over = false;
    while (!over && cv_clock_mono_ms() < end) {
        over = true;
        bool moved = false;
        for (int i = 0; i < n; i++) {
            push_some(&t[i]);
            cv_loop_turn(b->n.worker->loop, 0);
            moved |= pull_some(&t[i]);
            over = over && t[i].eof;
        }
        if (!moved)
            cv_loop_turn(b->n.worker->loop, 1);
    }
    for (int i = 0; i < n; i++) {
        T_INT_EQ(t[i].got, t[i].want);
        T_OK(t[i].got_sum == t[i].sent_sum);
        T_OK(t[i].eof);
    }
}

static void test_random_chunks(void)
{
    static const struct {
        enum kind kind;
        size_t write_max, read_max;
    } rows[] = {
        {TCP, 1000, 1000},      {TCP, 100000, 100000}, {TCP, 1 << 20, 1 << 20},
        {UNIX, 100000, 100000}, {UNIX, 1 << 20, 4000}, {TCP, 3000, 1 << 20},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct bench b;
        open_bench(&b);
        start(&b, rows[i].kind);
        struct flow_test t[2] = {
            {.from = b.client, .to = b.origin, .want = 6 * rows[i].write_max + 300000},
            {.from = b.origin, .to = b.client, .want = 3 * rows[i].write_max + 700000},
        };
        for (int k = 0; k < 2; k++) {
            t[k].write_max = rows[i].write_max;
            t[k].read_max = rows[i].read_max;
        }
        run_flows(&b, t, 2);
        TURN_UNTIL(b.n.worker->loop, b.ended);
        T_INT_EQ(b.err, 0);
        T_INT_EQ(b.up, t[0].want);
        T_INT_EQ(b.down, t[1].want);
        close_bench(&b);
    }
}

/* Copying turns to splicing when reads are full, and back when they are small. */
static void test_splice_comes_and_goes(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    put(b.client, "small");
    expect(&b, b.origin, "small", false);
    T_INT_EQ(b.relay._dir[0].splices, 0);

    struct flow_test t = {.from = b.client,
                          .to = b.origin,
                          .want = 32 << 20,
                          .write_max = 1 << 20,
                          .read_max = 1 << 20};
    t.shut = true; /* keep it open */
    int64_t end = cv_clock_mono_ms() + 30000;
    while (t.got < t.want && cv_clock_mono_ms() < end) {
        push_some(&t);
        cv_loop_turn(b.n.worker->loop, 0);
        while (pull_some(&t))
            ;
    }
    T_INT_EQ(t.got, t.want);
    T_OK(t.got_sum == t.sent_sum);
    T_OK(b.relay._dir[0].splices > 0);
    T_INT_EQ(b.relay._dir[0].pipe.rd, -1); /* held only while bytes are in it */

    uint32_t splices = b.relay._dir[0].splices;
    for (int i = 0; i < 3; i++) {
        put(b.client, "small again");
        expect(&b, b.origin, "small again", false);
    }
    /* The first small one may still come by splice. */
    T_OK(b.relay._dir[0].splices <= splices + 1);
    T_OK(!b.relay._dir[0].bulk);
    T_INT_EQ(b.up, 5 + t.want + 33);
    shut_fd(&b.client);
    shut_fd(&b.origin);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, 0);
    close_bench(&b);
}

/* Splice stops at an urgent byte and says that nothing is there, with data behind it. The stream
 * takes its raw descriptor back when it sees one, so that the relay copies from then on. */
static void test_urgent_byte_in_bulk(void)
{
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    struct flow_test t = {.from = b.client,
                          .to = b.origin,
                          .want = 4 << 20,
                          .write_max = 1 << 20,
                          .read_max = 1 << 20,
                          .shut = true};
    int64_t end = cv_clock_mono_ms() + 30000;
    while (t.got < t.want && cv_clock_mono_ms() < end) {
        push_some(&t);
        cv_loop_turn(b.n.worker->loop, 0);
        while (pull_some(&t))
            ;
    }
    T_INT_EQ(t.got, t.want);
    b.relay._dir[0].bulk = true;
    T_INT_EQ(send(b.client, "before", 6, 0), 6);
    T_INT_EQ(send(b.client, "!", 1, MSG_OOB), 1);
    T_INT_EQ(send(b.client, "behind", 6, 0), 6);
    for (int i = 0; i < 5; i++)
        cv_loop_turn(b.n.worker->loop, 1);
    if (cv_stream_raw_fd(b.relay._dir[0].src) >= 0)
        printf("# skipped: this stream does not take its descriptor back\n");
    else
        expect(&b, b.origin, "beforebehind", false);
    cv_relay_abort(&b.relay, CV_E_KILLED);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    close_bench(&b);
}

/* No pipes are to be had: copying goes on. */
static void test_without_pipes(void)
{
    struct bench b;
    open_bench(&b);
    cv_pipe_pool_free(b.n.worker->pipes);
    T_INT_EQ(cv_pipe_pool_new(256 << 10, 0, &b.n.worker->pipes), 0);
    start(&b, TCP);
    /* A relay that was told once that this pair does not splice. */
    b.relay._dir[0].unspliceable = true;
    struct flow_test t = {.from = b.client,
                          .to = b.origin,
                          .want = 4 << 20,
                          .write_max = 1 << 20,
                          .read_max = 1 << 20};
    run_flows(&b, &t, 1);
    T_INT_EQ(b.relay._dir[0].splices, 0);
    shut_fd(&b.origin);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, 0);
    close_bench(&b);
}

/* So that a test need not send megabytes before somebody is blocked. */
static void limit_buffers(struct bench *b)
{
    int size = 128 << 10;
    (void)setsockopt(b->client, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    (void)setsockopt(b->origin, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    for (int i = 0; i < 2; i++) {
        int fd = cv_stream_socket_fd(b->relay._dir[i].src);
        (void)setsockopt(fd, SOL_SOCKET, i == 0 ? SO_RCVBUF : SO_SNDBUF, &size, sizeof(size));
    }
}

/* Once nothing is ready, turns that may wait do wait: three in a row, when the last events of a
 * busy machine have come in. */
static bool comes_to_rest(struct cv_loop *loop)
{
    int waited = 0;
    for (int i = 0; i < 200 && waited < 3; i++) {
        int64_t before = cv_clock_mono_ms();
        cv_loop_turn(loop, 20);
        waited = cv_clock_mono_ms() - before >= 15 ? waited + 1 : 0;
    }
    return waited == 3;
}

/* Segments of one MSS fill the slots of a pipe long before its bytes; a slow reader, then the end.
 * The tail must arrive, and a blocked relay must not spin. */
static void test_small_segments_slow_reader(void)
{
    static uint8_t segment[1448], sink[65536];
    struct bench b;
    open_bench(&b);
    for (int round = 0; round < 30; round++) {
        start(&b, TCP);
        limit_buffers(&b);
        uint64_t sent = 0, got = 0;
        int quiet = 0;
        /* Nobody reads until the writer is blocked. */
        while (quiet < 20 && sent < (8 << 20)) {
            ssize_t n = send(b.client, segment, sizeof(segment), MSG_NOSIGNAL);
            quiet = n > 0 ? 0 : quiet + 1;
            sent += n > 0 ? (uint64_t)n : 0;
            cv_loop_turn(b.n.worker->loop, 0);
        }
        bool full = quiet > 0;
        shutdown(b.client, SHUT_WR);
        for (int i = 0; i < 20; i++)
            cv_loop_turn(b.n.worker->loop, 0);
        if (round == 0 && full) {
            T_OK(b.up < sent);
            T_OK(comes_to_rest(b.n.worker->loop));
        }
        int64_t end = cv_clock_mono_ms() + 60000;
        bool eof = false;
        while (!eof && cv_clock_mono_ms() < end) {
            ssize_t n = recv(b.origin, sink, 1 + cv_rand_below(sizeof(sink) - 1), 0);
            if (n > 0)
                got += (size_t)n;
            eof = n == 0;
            cv_loop_turn(b.n.worker->loop, n > 0 ? 0 : 1);
        }
        T_OK(eof);
        T_INT_EQ(got, sent);
        T_INT_EQ(b.up, sent);
        shut_fd(&b.origin);
        TURN_UNTIL(b.n.worker->loop, b.ended);
        T_INT_EQ(b.err, 0);
        shut_fd(&b.client);
    }
    close_bench(&b);
}

/* A reader that reads nothing stops its sender: what the relay holds is bounded. */
static void test_slow_reader_is_bounded(void)
{
    static uint8_t junk[1 << 20];
    for (enum kind kind = UNIX; kind <= TCP; kind++) {
        struct bench b;
        open_bench(&b);
        start(&b, kind);
        uint64_t sent = 0;
        int quiet = 0;
        while (quiet < 50 && sent < (64 << 20)) {
            ssize_t n = send(b.origin, junk, sizeof(junk), MSG_NOSIGNAL);
            quiet = n > 0 ? 0 : quiet + 1;
            sent += n > 0 ? (uint64_t)n : 0;
            cv_loop_turn(b.n.worker->loop, 0);
        }
        T_OK(sent < (64 << 20)); /* the sender was stopped */
        struct cv_relay_dir *down = &b.relay._dir[1];
        T_OK(down->pending_len <= CV_SCRATCH_SIZE);
        T_OK(down->pipe.len <= 256 << 10);
        T_OK(down->pending_len + down->pipe.len > 0);
        T_OK(b.down < sent);
        cv_relay_abort(&b.relay, CV_E_KILLED);
        TURN_UNTIL(b.n.worker->loop, b.ended);
        close_bench(&b);
    }
}

/* One busy session must let others have their turn. */
static void test_share_per_turn(void)
{
    static uint8_t junk[1 << 20];
    struct bench b;
    open_bench(&b);
    start(&b, TCP);
    int big = 8 << 20;
    (void)setsockopt(b.client, SOL_SOCKET, SO_SNDBUF, &big, sizeof(big));
    uint64_t most = 0;
    for (int i = 0; i < 200; i++) {
        (void)!send(b.client, junk, sizeof(junk), MSG_NOSIGNAL);
        uint64_t before = b.up;
        cv_loop_turn(b.n.worker->loop, 0);
        most = CV_MAX(most, b.up - before);
        while (recv(b.origin, junk, sizeof(junk), 0) > 0)
            ;
    }
    T_OK(most > 0);
    /* Twice: once from the event and once from the task of the same turn. */
    T_OK(most <= 2 * ((256 << 10) + (256 << 10)));
    cv_relay_abort(&b.relay, CV_E_KILLED);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    close_bench(&b);
}

/* -- a layered stream: no raw descriptor, bytes of its own, an end that takes two calls -- */

struct layer {
    struct cv_stream super;
    struct cv_stream *below; /* owned */
    struct cv_task wake;
    uint8_t held[CV_SCRATCH_SIZE];
    size_t held_off, held_len;
    int shutdowns;
    bool aborted;
    bool closed;
};

static struct layer layer;

static int layer_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    (void)s;
    if (layer.held_len == 0) {
        int err = cv_stream_recv(layer.below, layer.held, sizeof(layer.held), &layer.held_len);
        layer.held_off = 0;
        if (err != 0 || layer.held_len == 0) {
            *ret_n = 0;
            layer.held_len = 0;
            return err;
        }
    }
    /* As records come: small pieces, with more of them inside and no event to say so. */
    size_t n = CV_MIN(CV_MIN(cap, layer.held_len), (size_t)1000);
    memcpy(buf, layer.held + layer.held_off, n);
    layer.held_off += n;
    layer.held_len -= n;
    *ret_n = n;
    return 0;
}

static int layer_send(struct cv_stream *s, const struct iovec *iov, int n, size_t *ret_n)
{
    (void)s;
    return cv_stream_sendv(layer.below, iov, n, ret_n);
}

static void layer_wake(struct cv_task *task)
{
    (void)task;
    if (!layer.closed)
        cv_stream_notify(&layer.super, CV_STREAM_WRITE);
}

static int layer_shutdown(struct cv_stream *s)
{
    (void)s;
    if (layer.shutdowns++ == 0) {
        layer.wake = (struct cv_task){.fn = layer_wake};
        cv_loop_next(layer.super.loop, &layer.wake);
        return -EAGAIN;
    }
    return cv_stream_shutdown_send(layer.below);
}

static void layer_close(struct cv_stream *s, bool abort)
{
    (void)s;
    layer.closed = true;
    layer.aborted = abort;
    cv_stream_close(layer.below, abort);
}

static int layer_raw_fd(const struct cv_stream *s)
{
    (void)s;
    return -1;
}

static int layer_socket_fd(const struct cv_stream *s)
{
    (void)s;
    return cv_stream_socket_fd(layer.below);
}

static void layer_ready(void *arg, struct cv_stream *below, unsigned events)
{
    (void)arg;
    (void)below;
    cv_stream_notify(&layer.super, events);
}

static const struct cv_stream_ops layer_ops = {
    .name = "layer",
    .recv = layer_recv,
    .send = layer_send,
    .shutdown_send = layer_shutdown,
    .close = layer_close,
    .raw_fd = layer_raw_fd,
    .socket_fd = layer_socket_fd,
};

static void test_layered_stream(void)
{
    struct bench b;
    open_bench(&b);
    layer = (struct layer){.super = {.ops = &layer_ops, .loop = b.n.worker->loop}};
    layer.below = adopt(&b, TCP, &b.client);
    cv_stream_set_cb(layer.below, layer_ready, NULL);
    struct cv_stream *far = adopt(&b, TCP, &b.origin);
    b.relay.on_end = on_end;
    b.relay.on_bytes = on_bytes;
    T_INT_EQ(cv_relay_start(&b.relay, b.n.worker, &layer.super, far, NULL, 0, NULL, 0), 0);
    struct flow_test t[2] = {
        {.from = b.client, .to = b.origin, .want = 5 << 20},
        {.from = b.origin, .to = b.client, .want = 5 << 20},
    };
    for (int i = 0; i < 2; i++)
        t[i].write_max = t[i].read_max = 1 << 20;
    run_flows(&b, t, 2);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, 0);
    T_INT_EQ(layer.shutdowns, 2); /* it was asked again, and ended although the other was over */
    T_OK(!layer.aborted);
    T_INT_EQ(b.relay._dir[0].splices + b.relay._dir[1].splices, 0);
    T_INT_EQ(b.up, 5 << 20);
    T_INT_EQ(b.down, 5 << 20);
    close_bench(&b);
}

/* -- time -- */

static void test_idle_timer(void)
{
    struct bench b;
    open_bench(&b);
    b.n.settings->idle_timeout_ms = 150;
    start(&b, TCP);
    int64_t began = cv_clock_mono_ms();
    for (int i = 0; i < 5; i++) { /* traffic keeps it alive */
        while (cv_clock_mono_ms() - began < 60 * (i + 1))
            cv_loop_turn(b.n.worker->loop, 5);
        T_OK(!b.ended);
        put(b.client, "x");
        expect(&b, b.origin, "x", false);
    }
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, -ETIMEDOUT);
    T_OK(cv_clock_mono_ms() - began >= 300 + 150 - 5);
    close_bench(&b);
}

static void test_half_close_timer(void)
{
    struct bench b;
    open_bench(&b);
    b.n.settings->half_close_timeout_ms = 120;
    start(&b, TCP);
    int64_t began = cv_clock_mono_ms();
    for (int i = 0; i < 20; i++)
        cv_loop_turn(b.n.worker->loop, 10); /* not half-closed: no limit */
    T_OK(!b.ended);
    shutdown(b.client, SHUT_WR);
    expect(&b, b.origin, "", true);
    began = cv_clock_mono_ms();
    put(b.origin, "more");
    expect(&b, b.client, "more", false);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, -ETIMEDOUT);
    int64_t took = cv_clock_mono_ms() - began;
    T_OK(took >= 115 && took < 3000);
    close_bench(&b);
}

/* One side has ended and the other never reads what is left for it. */
static void test_half_close_timer_bounds_delivery(void)
{
    static uint8_t junk[1 << 20];
    struct bench b;
    open_bench(&b);
    b.n.settings->half_close_timeout_ms = 100;
    start(&b, TCP);
    for (int i = 0; i < 200; i++) {
        (void)!send(b.client, junk, sizeof(junk), MSG_NOSIGNAL);
        cv_loop_turn(b.n.worker->loop, 0);
    }
    reset_fd(&b.client);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, -ETIMEDOUT);
    close_bench(&b);
}

static void test_early_end(void)
{
    /* Both sides are over before the relay begins: nothing is called back from inside start. */
    struct bench b;
    open_bench(&b);
    int client = -1, origin = -1;
    struct cv_stream *near = adopt(&b, TCP, &client), *far = adopt(&b, TCP, &origin);
    put(origin, "bye");
    shut_fd(&client);
    shut_fd(&origin);
    b.relay.on_end = on_end;
    b.relay.on_bytes = on_bytes;
    T_INT_EQ(cv_relay_start(&b.relay, b.n.worker, near, far, NULL, 0, NULL, 0), 0);
    T_OK(!b.ended);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    close_bench(&b);
}

/* Somebody looks at what goes up, from the early bytes on, until it has seen enough. */
struct tapped {
    struct bench b;
    size_t seen, enough;
    bool ended;
};

static void on_tap(struct cv_relay *r, const void *data, size_t len)
{
    struct tapped *t = CV_CONTAINER_OF(r, struct tapped, b.relay);
    t->ended |= len == 0;
    for (size_t i = 0; i < len; i++)
        T_OK(((const uint8_t *)data)[i] == (t->seen + i) % 251);
    t->seen += len;
    if (t->seen >= t->enough)
        r->tap = NULL;
}

static void test_tap(void)
{
    static uint8_t data[3 << 20], got[sizeof(data)];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i % 251);
    for (int whole = 0; whole < 2; whole++) {
        struct tapped t = {.enough = whole ? SIZE_MAX : 1000};
        open_bench(&t.b);
        t.b.ended = false;
        t.b.relay = (struct cv_relay){.on_end = on_end, .on_bytes = on_bytes, .tap = on_tap};
        struct cv_stream *near = adopt(&t.b, TCP, &t.b.client);
        struct cv_stream *far = adopt(&t.b, TCP, &t.b.origin);
        T_INT_EQ(cv_relay_start(&t.b.relay, t.b.n.worker, near, far, data, 10, "down", 4), 0);
        T_INT_EQ(t.seen, 10);
        size_t sent = 10, have = 0;
        int64_t end = cv_clock_mono_ms() + 20000;
        while (have < sizeof(data) && cv_clock_mono_ms() < end) {
            ssize_t n = send(t.b.client, data + sent, sizeof(data) - sent, MSG_NOSIGNAL);
            sent += n > 0 ? (size_t)n : 0;
            cv_loop_turn(t.b.n.worker->loop, 1);
            n = recv(t.b.origin, got + have, sizeof(got) - have, 0);
            have += n > 0 ? (size_t)n : 0;
        }
        T_INT_EQ(have, sizeof(data));
        T_MEM_EQ(got, data, sizeof(data));
        shutdown(t.b.client, SHUT_WR);
        TURN_UNTIL(t.b.n.worker->loop, t.b.relay._dir[0].state == 5); /* it is over */
        shut_fd(&t.b.client);
        shut_fd(&t.b.origin);
        TURN_UNTIL(t.b.n.worker->loop, t.b.ended);
        T_OK(whole ? t.seen == sizeof(data) : t.seen >= 1000 && t.seen < sizeof(data));
        T_INT_EQ(t.ended, whole);
        T_OK(whole ? t.b.relay._dir[0].splices == 0 : t.b.relay._dir[0].splices > 0);
        close_bench(&t.b);
    }
}

/* -- rates -- */

static void start_rated(struct bench *b, struct cv_account *a, enum kind kind)
{
    b->relay.account = a;
    start_early(b, kind, "", "");
}

/* What is throttled comes whole, not sooner than it may, and nobody is busy meanwhile. */
static void test_rate(void)
{
    static uint8_t data[120000], got[120000];
    for (enum kind kind = UNIX; kind <= TCP; kind++) {
        struct cv_account a = {0};
        struct bench b;
        size_t sent = 0, n = 0;
        open_bench(&b);
        cv_rand_bytes(data, sizeof(data));
        cv_rate_set(&a.up, 200000);
        start_rated(&b, &a, kind);
        int64_t begin = cv_clock_mono_ms();
        uint64_t turns = cv_loop_turns(b.n.worker->loop);
        int64_t end = begin + 10000;
        bool eof = false;
        while (!eof && cv_clock_mono_ms() < end) {
            if (sent < sizeof(data)) {
                ssize_t k = send(b.client, data + sent, sizeof(data) - sent, MSG_NOSIGNAL);
                sent += k > 0 ? (size_t)k : 0;
                if (sent == sizeof(data))
                    shutdown(b.client, SHUT_WR);
            }
            cv_loop_turn(b.n.worker->loop, 50);
            ssize_t k;
            while ((k = recv(b.origin, got + n, sizeof(got) - n + 1, MSG_DONTWAIT)) > 0)
                n += (size_t)k;
            eof = k == 0;
        }
        int64_t took = cv_clock_mono_ms() - begin;
        turns = cv_loop_turns(b.n.worker->loop) - turns;
        printf("# %lld ms, %llu turns\n", (long long)took, (unsigned long long)turns);
        T_OK(eof);
        T_INT_EQ(n, sizeof(data));
        T_MEM_EQ(got, data, sizeof(data));
        T_OK(took >= 600 - CV_RATE_BURST_MS - 2 * 1000 / 32);
        T_OK(turns < 500);
        T_INT_EQ(b.up, sizeof(data));
        shutdown(b.origin, SHUT_WR);
        TURN_UNTIL(b.n.worker->loop, b.ended);
        T_INT_EQ(b.err, 0);
        close_bench(&b);
    }
}

/* A direction that waits for its turn is not idle; what it waits for may come by a change. */
static void test_rate_is_not_idle(void)
{
    struct cv_account a = {0};
    struct bench b;
    open_bench(&b);
    b.n.settings->idle_timeout_ms = 100;
    cv_rate_set(&a.down, 10);
    start_rated(&b, &a, TCP);
    struct cv_rate_place debt = {0};
    cv_rate_used(&debt, &a.down, 10000, cv_loop_now(b.n.worker->loop)); /* a thousand seconds */
    put(b.origin, "hello");
    int64_t end = cv_clock_mono_ms() + 500;
    while (cv_clock_mono_ms() < end)
        cv_loop_turn(b.n.worker->loop, 20);
    T_OK(!b.ended);
    T_INT_EQ(b.down, 0);
    cv_rate_set(&a.down, 0);
    cv_throttle_recheck(b.n.worker);
    expect(&b, b.client, "hello", false);
    TURN_UNTIL(b.n.worker->loop, b.ended); /* now it is idle */
    T_INT_EQ(b.err, -ETIMEDOUT);
    close_bench(&b);
}

/* A client that resets does not keep its session for as long as its bytes would take. */
static void test_rate_and_reset(void)
{
    struct cv_account a = {0};
    struct bench b;
    open_bench(&b);
    cv_rate_set(&a.up, 10);
    start_rated(&b, &a, TCP);
    put(b.client, "many bytes that are due in some seconds only, one after the other");
    cv_loop_turn(b.n.worker->loop, 20);
    cv_loop_turn(b.n.worker->loop, 20);
    T_OK(!b.ended);
    int64_t before = cv_clock_mono_ms();
    reset_fd(&b.client);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_OK(cv_clock_mono_ms() - before < 2000);
    T_INT_EQ(b.err, -ECONNRESET);
    expect_reset(&b, b.origin);
    close_bench(&b);
}

/* An origin that resets: what it said before is delivered at the rate. */
static void test_rate_and_last_words(void)
{
    struct cv_account a = {0};
    struct bench b;
    open_bench(&b);
    cv_rate_set(&a.down, 100);
    start_rated(&b, &a, TCP);
    put(b.origin, "the last words of an origin that does not wait for them to be heard");
    reset_fd(&b.origin);
    expect(&b, b.client, "the last words of an origin that does not wait for them to be heard",
           false);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, -ECONNRESET);
    close_bench(&b);
}

/* Aborted while it waits; and early bytes are paid for. */
static void test_rate_abort(void)
{
    struct cv_account a = {0};
    struct bench b;
    int64_t due = 0;
    open_bench(&b);
    cv_rate_set(&a.up, 10);
    b.relay.account = &a;
    start_early(&b, TCP, "early bytes that cannot wait", "");
    expect(&b, b.origin, "early bytes that cannot wait", false);
    struct cv_rate_place p = {0};
    int64_t now = cv_loop_now(b.n.worker->loop);
    T_INT_EQ(cv_rate_allow(&p, &a.up, now, &due), 0);
    T_OK(due - now > 2000);
    cv_rate_leave(&p, &a.up);
    put(b.client, "more");
    cv_loop_turn(b.n.worker->loop, 20);
    T_INT_EQ(b.up, 28);
    cv_relay_abort(&b.relay, CV_E_NOTFOUND);
    TURN_UNTIL(b.n.worker->loop, b.ended);
    T_INT_EQ(b.err, CV_E_NOTFOUND);
    close_bench(&b);
}

int main(void)
{
    T_RUN(test_both_ways);
    T_RUN(test_half_close_of_origin);
    T_RUN(test_reset_is_passed_on);
    T_RUN(test_reset_after_half_close);
    T_RUN(test_answer_before_refusal);
    T_RUN(test_send_refused);
    T_RUN(test_abort);
    T_RUN(test_random_chunks);
    T_RUN(test_splice_comes_and_goes);
    T_RUN(test_urgent_byte_in_bulk);
    T_RUN(test_without_pipes);
    T_RUN(test_small_segments_slow_reader);
    T_RUN(test_slow_reader_is_bounded);
    T_RUN(test_share_per_turn);
    T_RUN(test_layered_stream);
    T_RUN(test_idle_timer);
    T_RUN(test_half_close_timer);
    T_RUN(test_half_close_timer_bounds_delivery);
    T_RUN(test_early_end);
    T_RUN(test_tap);
    T_RUN(test_rate);
    T_RUN(test_rate_is_not_idle);
    T_RUN(test_rate_and_reset);
    T_RUN(test_rate_and_last_words);
    T_RUN(test_rate_abort);
    return t_done();
}
