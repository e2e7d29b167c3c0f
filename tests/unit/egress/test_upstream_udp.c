#include "egress/upstream_udp.h"

#include "egress/upstream_priv.h"
#include "net/udp.h"
#include "proto/socks5_udp.h"
#include "upstream_util.h"

static struct {
    struct fake proxy;
    int relay; /* the proxy's side of the datagrams */
    uint16_t relay_port;
    struct cv_dgram *flow;
    int hups, drops, last_drop;
} t;

static void on_event(void *arg, struct cv_dgram *d, unsigned events)
{
    (void)arg;
    if (events & CV_DGRAM_HUP) {
        t.hups++;
        T_INT_EQ(d->err, CV_E_UNAVAILABLE);
    }
}

static void on_dropped(void *arg, struct cv_dgram *d, int err)
{
    (void)arg;
    (void)d;
    t.drops++;
    t.last_drop = err;
}

static int udp_at(const char *at, uint16_t *ret_port)
{
    struct cv_sockaddr sa;
    int fd = -1;
    T_INT_EQ(cv_sockaddr_parse(at, &sa), 0);
    T_INT_EQ(cv_udp_open(&sa, &fd), 0);
    T_INT_EQ(getsockname(fd, &sa.sa, &sa.len), 0);
    *ret_port = ntohs(sa.in4.sin_port);
    return fd;
}

static struct cv_egress *egress_new(enum cv_backend_kind kind, const char *addr, const char *user)
{
    struct cv_backend b = {.kind = kind, .addr = text(addr), .label = text("upstream:test")};
    b.username = text(user);
    struct cv_upstream_opts opts = {0};
    struct cv_egress *e =
        cv_egress_upstream_new(&b, &opts, cv_registry_egress(bench.registry, "upstream:test"));
    cv_rcstr_unref(b.addr);
    cv_rcstr_unref(b.label);
    cv_rcstr_unref(b.username);
    return e;
}

static void open_bench(enum cv_backend_kind kind)
{
    char addr[32];
    memset(&t, 0, sizeof(t));
    bench_open();
    fake_open(&t.proxy);
    t.relay = udp_at("127.0.0.1:0", &t.relay_port);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", t.proxy.port);
    bench.egress = egress_new(kind, addr, NULL);
}

static void close_bench(void)
{
    cv_dgram_close(t.flow);
    fake_close(&t.proxy);
    close(t.relay);
    bench_close();
}

static void start(void)
{
    bench.answers = 0;
    bench.dial = (struct cv_dial){.worker = bench.worker,
                                  .deadline_ms = cv_loop_now(bench.worker->loop) + 3000,
                                  .done = on_dialled};
    cv_dial_start_udp(bench.egress, &bench.dial);
    T_INT_EQ(bench.answers, 0);
}

/* The handshake, with the relay's address as the proxy writes it (its port is put behind). */
static void associate(const char *bnd, size_t len, bool port)
{
    uint8_t reply[64] = "\x05\x00\x00";
    start();
    fake_accept(&t.proxy);
    fake_expect(&t.proxy, LIT("\x05\x01\x00"));
    fake_say(&t.proxy, "\x05\x00", 2, 1);
    fake_expect(&t.proxy, LIT("\x05\x03\x00\x01\0\0\0\0\0\0"));
    memcpy(reply + 3, bnd, len);
    reply[3 + len] = port ? (uint8_t)(t.relay_port >> 8) : 0;
    reply[4 + len] = port ? (uint8_t)t.relay_port : 0;
    fake_say(&t.proxy, reply, 5 + len, 2);
    dial_wait();
    t.flow = bench.dial.err == 0 ? bench.dial.dgram : NULL;
    if (t.flow != NULL)
        cv_dgram_set_cb(t.flow, on_event, on_dropped, NULL);
}
#define ASSOCIATE(bnd, port) associate(bnd, sizeof(bnd) - 1, port)

static int send_one(const char *to, const char *data)
{
    struct cv_target target;
    T_INT_EQ(cv_target_parse(to, strlen(to), 0, &target), 0);
    struct cv_dgram_out m = {.to = &target, .data = (const uint8_t *)data, .len = strlen(data)};
    cv_dgram_send(t.flow, &m, 1);
    return m.err;
}

/* What the relay has got; its sender is kept for the answer. */
static struct cv_sockaddr from;
static void relay_expect(const void *want, size_t len)
{
    char got[512];
    ssize_t n = -1;
    int64_t end = cv_clock_mono_ms() + 10000;
    while (n < 0 && cv_clock_mono_ms() < end) {
        from.len = sizeof(from.in6);
        n = recvfrom(t.relay, got, sizeof(got), 0, &from.sa, &from.len);
        if (n < 0)
            cv_loop_turn(bench.worker->loop, 5);
    }
    if (T_INT_EQ(n, len))
        T_MEM_EQ(got, want, len);
}

static void relay_say(int fd, const void *data, size_t len)
{
    T_INT_EQ(sendto(fd, data, len, 0, &from.sa, from.len), len);
}

static size_t receive(struct cv_dgram_in *msgs, int polls)
{
    size_t n = 0;
    T_INT_EQ(cv_worker_dgram_slots(bench.worker, msgs, CV_DGRAM_BATCH), 0);
    for (int i = 0; i < polls && n == 0; i++) {
        if (cv_dgram_recv(t.flow, msgs, CV_DGRAM_BATCH, &n) != 0)
            n = 0;
        cv_loop_turn(bench.worker->loop, 5);
    }
    return n;
}

static void test_datagrams(void)
{
    struct cv_dgram_in msgs[CV_DGRAM_BATCH];
    char text_[CV_ENDPOINT_STRLEN];
    uint16_t port;
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x01\x7f\0\0\x01", true);
    T_REQUIRE(bench.dial.err == 0);
    T_INT_EQ(send_one("1.2.3.4:53", "hello"), 0);
    relay_expect(LIT("\0\0\0\x01\x01\x02\x03\x04\x00\x35hello"));
    T_INT_EQ(send_one("a.test:53", ""), 0);
    relay_expect(LIT("\0\0\0\x03\x06"
                     "a.test\x00\x35"));
    /* Three that are good, and some that are not. */
    relay_say(t.relay, LIT("\0\0\0\x01\x09\x09\x09\x09\x00\x35one"));
    relay_say(t.relay, LIT("\0\0\x01\x01\x09\x09\x09\x09\x00\x35x"));
    relay_say(t.relay, LIT("\0\0\0\x03\x01"
                           "a\x00\x35x"));
    relay_say(t.relay, LIT("junk"));
    relay_say(t.relay, LIT("\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x08\x08\x08\x08\x00\x35two"));
    size_t n = receive(msgs, 100);
    T_REQUIRE(n == 3);
    T_STR_EQ(cv_endpoint_format(&msgs[0].from, text_), "9.9.9.9:53");
    T_OK(msgs[0].name == NULL && msgs[2].name == NULL);
    T_INT_EQ(msgs[0].len, 3);
    T_MEM_EQ(msgs[0].data, "one", 3);
    /* Known by the name that was sent to only. */
    T_INT_EQ(msgs[1].from.ip.family, CV_AF_NONE);
    T_INT_EQ(msgs[1].from.port, 53);
    T_OK(msgs[1].name_len == 1 && msgs[1].name[0] == 'a');
    T_INT_EQ(msgs[1].len, 1);
    T_STR_EQ(cv_endpoint_format(&msgs[2].from, text_), "8.8.8.8:53");
    T_MEM_EQ(msgs[2].data, "two", 3);
    T_OK(msgs[0].data - CV_DGRAM_HEADROOM >= bench.worker->dgram_slots);
    T_INT_EQ(t.drops, 2);
    T_INT_EQ(t.last_drop, CV_E_PROTO);
    /* Nobody else is heard. */
    int stranger = udp_at("127.0.0.1:0", &port);
    relay_say(stranger, LIT("\0\0\0\x01\x09\x09\x09\x09\x00\x35x"));
    T_INT_EQ(receive(msgs, 5), 0);
    close(stranger);
    close_bench();
}

/* Where the relay is when the proxy does not say so in a way that can be used. */
static void test_relay_addresses(void)
{
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x01\0\0\0\0", true);
    T_INT_EQ(send_one("1.2.3.4:53", "a"), 0);
    relay_expect(LIT("\0\0\0\x01\x01\x02\x03\x04\x00\x35"
                     "a"));
    close_bench();
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x03\x04"
              "name",
              true);
    T_INT_EQ(send_one("1.2.3.4:53", "b"), 0);
    relay_expect(LIT("\0\0\0\x01\x01\x02\x03\x04\x00\x35"
                     "b"));
    close_bench();
    /* Private addresses that are not its own lead to the proxy, not into this network. */
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x01\x0a\x01\x02\x03", true);
    T_INT_EQ(send_one("1.2.3.4:53", "c"), 0);
    relay_expect(LIT("\0\0\0\x01\x01\x02\x03\x04\x00\x35"
                     "c"));
    close_bench();
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x01\x7f\0\0\x01", false); /* port 0 */
    T_INT_EQ(bench.dial.err, CV_E_PROTO);
    T_INT_EQ(bench.dial.stage, CV_STAGE_OUTBOUND);
    close_bench();
}

static void test_control_ends(void)
{
    static char words[80000];
    struct cv_dgram_in msgs[CV_DGRAM_BATCH];
    size_t n;
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x01\0\0\0\0", true);
    T_INT_EQ(write(t.proxy.fd, "words", 5), 5); /* are ignored */
    for (int i = 0; i < 3; i++)
        cv_loop_turn(bench.worker->loop, 5);
    T_INT_EQ(t.hups, 0);
    fake_hang_up(&t.proxy);
    int64_t end = cv_clock_mono_ms() + 10000;
    while (t.hups == 0 && cv_clock_mono_ms() < end)
        cv_loop_turn(bench.worker->loop, 20);
    T_INT_EQ(t.hups, 1);
    T_INT_EQ(send_one("1.2.3.4:53", "x"), CV_E_UNAVAILABLE);
    T_INT_EQ(cv_worker_dgram_slots(bench.worker, msgs, CV_DGRAM_BATCH), 0);
    T_INT_EQ(cv_dgram_recv(t.flow, msgs, CV_DGRAM_BATCH, &n), CV_E_UNAVAILABLE);
    close_bench();

    /* A flood of words ends it as well. */
    open_bench(CV_BACKEND_SOCKS5);
    ASSOCIATE("\x01\0\0\0\0", true);
    end = cv_clock_mono_ms() + 10000;
    while (t.hups == 0 && cv_clock_mono_ms() < end) {
        (void)send(t.proxy.fd, words, sizeof(words), MSG_NOSIGNAL);
        cv_loop_turn(bench.worker->loop, 20);
    }
    T_INT_EQ(t.hups, 1);
    close_bench();
}

/* The end came together with the reply: no event tells of it any more. */
static void test_end_with_the_reply(void)
{
    open_bench(CV_BACKEND_SOCKS5);
    start();
    fake_accept(&t.proxy);
    fake_expect(&t.proxy, LIT("\x05\x01\x00"));
    fake_say(&t.proxy, "\x05\x00", 2, 2);
    fake_expect(&t.proxy, LIT("\x05\x03\x00\x01\0\0\0\0\0\0"));
    T_INT_EQ(write(t.proxy.fd, "\x05\x00\x00\x01\x7f\0\0\x01\x12\x34", 10), 10);
    fake_hang_up(&t.proxy);
    dial_wait();
    T_REQUIRE(bench.dial.err == 0);
    t.flow = bench.dial.dgram;
    cv_dgram_set_cb(t.flow, on_event, on_dropped, NULL);
    int64_t end = cv_clock_mono_ms() + 10000;
    while (t.hups == 0 && cv_clock_mono_ms() < end)
        cv_loop_turn(bench.worker->loop, 20);
    T_INT_EQ(t.hups, 1);
    close_bench();
}

static void test_refusals(void)
{
    open_bench(CV_BACKEND_HTTP);
    start();
    dial_wait();
    T_INT_EQ(bench.dial.err, -EPROTONOSUPPORT);
    T_INT_EQ(bench.dial.stage, CV_STAGE_EGRESS);
    close_bench();

    open_bench(CV_BACKEND_SOCKS5);
    start();
    fake_accept(&t.proxy);
    fake_expect(&t.proxy, LIT("\x05\x01\x00"));
    fake_say(&t.proxy, "\x05\x00", 2, 2);
    fake_expect(&t.proxy, LIT("\x05\x03\x00\x01\0\0\0\0\0\0"));
    fake_say(&t.proxy, "\x05\x07\x00\x01\0\0\0\0\0\0", 10, 10);
    dial_wait();
    T_INT_EQ(bench.dial.err, CV_E_UNSUPPORTED);
    T_INT_EQ(bench.dial.stage, CV_STAGE_OUTBOUND);
    fake_hang_up(&t.proxy);
    /* Given up in the middle. */
    start();
    fake_accept(&t.proxy);
    cv_dial_cancel(bench.egress, &bench.dial);
    cv_loop_turn(bench.worker->loop, 0);
    T_INT_EQ(bench.answers, 0);
    close_bench();
}

static void test_same(void)
{
    bench_open();
    struct cv_egress *a = egress_new(CV_BACKEND_SOCKS5, "P.test:1080", "u"),
                     *b = egress_new(CV_BACKEND_SOCKS5, "p.test:1080", "u"),
                     *user = egress_new(CV_BACKEND_SOCKS5, "p.test:1080", "v"),
                     *none = egress_new(CV_BACKEND_SOCKS5, "p.test:1080", NULL),
                     *port = egress_new(CV_BACKEND_SOCKS5, "p.test:1081", "u"),
                     *host = egress_new(CV_BACKEND_SOCKS5, "q.test:1080", "u"),
                     *kind = egress_new(CV_BACKEND_HTTP, "p.test:1080", "u");
    T_OK(cv_egress_same(a, a) && cv_egress_same(a, b));
    struct cv_egress *others[] = {user, none, port, host, kind};
    for (size_t i = 0; i < CV_ARRAY_SIZE(others); i++) {
        T_OK(!cv_egress_same(a, others[i]) && !cv_egress_same(others[i], a));
        cv_egress_unref(others[i]);
    }
    cv_egress_unref(a);
    cv_egress_unref(b);
    bench_close();
}

int main(void)
{
    T_RUN(test_datagrams);
    T_RUN(test_relay_addresses);
    T_RUN(test_control_ends);
    T_RUN(test_end_with_the_reply);
    T_RUN(test_refusals);
    T_RUN(test_same);
    return t_done();
}
