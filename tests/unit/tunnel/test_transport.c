#include "tunnel/transport.h"

#include "../net/loop_util.h"
#include "common/err.h"

#include "tap.h"

struct seen {
    unsigned opened, packets, bytes, errors, writable;
    int err;
    uint8_t next; /* expected first byte */
    bool in_order;
};

static void on_open(void *arg)
{
    ((struct seen *)arg)->opened++;
}
static void on_packets(void *arg, struct cv_pkt_in *pkts, size_t n)
{
    struct seen *s = arg;
    for (size_t i = 0; i < n; i++) {
        s->packets++;
        s->bytes += (unsigned)pkts[i].len;
        s->in_order = s->in_order && pkts[i].data[0] == s->next++;
    }
}
static void on_drained(void *arg)
{
}
static void on_writable(void *arg)
{
    ((struct seen *)arg)->writable++;
}
static void on_error(void *arg, int err)
{
    struct seen *s = arg;
    s->errors++;
    s->err = err;
}
static const struct cv_transport_ops ops = {
    .on_open = on_open,
    .on_packets = on_packets,
    .on_drained = on_drained,
    .on_writable = on_writable,
    .on_error = on_error,
};

static struct cv_sockaddr address_of(int fd)
{
    struct cv_sockaddr sa;
    sa.len = sizeof(sa.in6);
    if (getsockname(fd, &sa.sa, &sa.len) != 0)
        abort();
    return sa;
}

static int udp_socket(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0)
        abort();
    return fd;
}

static void put(struct cv_transport *t, uint8_t first, size_t len)
{
    uint8_t *p = cv_transport_reserve(t, len + 100);
    T_REQUIRE(p != NULL);
    memset(p, first, len);
    cv_transport_commit(t, len);
}

static void test_udp(void)
{
    struct cv_loop *loop = test_loop();
    struct seen s = {.in_order = true};
    struct cv_transport *t = NULL;
    int fd = udp_socket();
    struct cv_sockaddr to = address_of(fd), back = {.len = sizeof(back.in6)};
    T_REQUIRE(cv_transport_open(loop, &to, false, &ops, &s, &t) == 0);
    TURN_UNTIL(loop, s.opened == 1);
    /* Runs of equal lengths, which leave as one, and odd ones between them. */
    static const size_t lens[] = {1000, 1000, 1000, 400, 400, 1200, 1, 1000, 1000};
    for (uint8_t i = 0; i < CV_ARRAY_SIZE(lens); i++)
        put(t, i, lens[i]);
    cv_loop_turn(loop, 0);
    for (uint8_t i = 0; i < CV_ARRAY_SIZE(lens); i++) {
        uint8_t buf[2000];
        ssize_t n = recvfrom(fd, buf, sizeof(buf), 0, &back.sa, &back.len);
        T_INT_EQ(n, lens[i]);
        T_OK(n > 0 && buf[0] == i && buf[n - 1] == i);
    }
    T_INT_EQ(cv_transport_bytes_out(t), 7001);
    for (uint8_t i = 0; i < 100; i++) {
        uint8_t buf[300];
        memset(buf, i, sizeof(buf));
        T_INT_EQ(sendto(fd, buf, 200 + i, 0, &back.sa, back.len), 200 + i);
    }
    TURN_UNTIL(loop, s.packets == 100);
    T_OK(s.in_order);
    T_OK(cv_transport_path_mtu(t) > 1000);
    close(fd);
    put(t, 1, 10);
    TURN_UNTIL(loop, s.errors > 0);
    T_INT_EQ(s.err, -ECONNREFUSED);
    cv_transport_close(t);
    cv_transport_close(NULL);
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

static void test_tcp(void)
{
    struct cv_loop *loop = test_loop();
    struct seen s = {.in_order = true};
    struct cv_transport *t = NULL;
    int l = test_listener();
    struct cv_sockaddr to = address_of(l);
    T_REQUIRE(cv_transport_open(loop, &to, true, &ops, &s, &t) == 0);
    TURN_UNTIL(loop, s.opened == 1);
    int fd = accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    T_REQUIRE(fd >= 0);
    put(t, 7, 300);
    cv_loop_turn(loop, 0);
    uint8_t buf[400];
    T_INT_EQ(recv(fd, buf, sizeof(buf), 0), 302);
    T_OK(buf[0] == 1 && buf[1] == 44 && buf[2] == 7);
    /* Frames in pieces of 7 bytes. */
    uint8_t frame[102] = {0, 100};
    for (uint8_t i = 0; i < 20; i++) {
        memset(frame + 2, i, 100);
        for (size_t at = 0; at < sizeof(frame); at += 7) {
            T_OK(send(fd, frame + at, CV_MIN((size_t)7, sizeof(frame) - at), 0) > 0);
            cv_loop_turn(loop, 0);
        }
    }
    TURN_UNTIL(loop, s.packets == 20);
    T_OK(s.in_order && s.bytes == 2000);
    /* A reader that does not read: the buffer fills, has an end, and empties again. */
    unsigned taken = 0;
    uint8_t *p;
    while (taken < 100000 && (p = cv_transport_reserve(t, 1500)) != NULL) {
        memset(p, 1, 1400);
        cv_transport_commit(t, 1400);
        taken++;
        cv_loop_turn(loop, 0);
    }
    T_OK(taken > 100 && taken < 100000);
    T_INT_EQ(s.writable, 0);
    static uint8_t sink[65536];
    int64_t end = cv_clock_mono_ms() + 60000;
    while (s.writable == 0 && cv_clock_mono_ms() < end) {
        (void)!recv(fd, sink, sizeof(sink), 0);
        cv_loop_turn(loop, 0);
    }
    T_INT_EQ(s.writable, 1);
    close(fd);
    TURN_UNTIL(loop, s.errors > 0);
    cv_transport_close(t);
    cv_loop_turn(loop, 0);
    close(l);
    test_loop_end(loop);
}

static void test_tcp_faults(void)
{
    struct cv_loop *loop = test_loop();
    int l = test_listener();
    struct cv_sockaddr to = address_of(l);
    static const char *const bad[] = {"\0\0", "\xff\xff"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++) {
        struct seen s = {0};
        struct cv_transport *t = NULL;
        T_REQUIRE(cv_transport_open(loop, &to, true, &ops, &s, &t) == 0);
        TURN_UNTIL(loop, s.opened == 1);
        int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        T_INT_EQ(send(fd, bad[i], 2, 0), 2);
        TURN_UNTIL(loop, s.errors == 1);
        T_INT_EQ(s.err, CV_E_PROTO);
        cv_transport_close(t);
        close(fd);
    }
    close(l);
    struct seen s = {0};
    struct cv_transport *t = NULL;
    if (cv_transport_open(loop, &to, true, &ops, &s, &t) == 0) {
        TURN_UNTIL(loop, s.errors == 1);
        T_INT_EQ(s.err, -ECONNREFUSED);
        cv_transport_close(t);
    }
    cv_loop_turn(loop, 0);
    test_loop_end(loop);
}

int main(void)
{
    T_RUN(test_udp);
    T_RUN(test_tcp);
    T_RUN(test_tcp_faults);
    return t_done();
}
