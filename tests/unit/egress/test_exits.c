/* The tunnel egress as a whole: exits, dials, datagrams; a worker's loop and the stack's. */
#include "../netstack/wire.h"

#include "egress/exits.h"
#include "egress_util.h"

static struct wire w;
static struct cv_loop *stack;
static struct cv_exits *exits;
static struct cv_exit *office;

static void turns(void)
{
    cv_loop_turn(stack, 0);
    cv_loop_turn(bench.worker->loop, 1);
}

static void wait_answer(void)
{
    int64_t end = cv_clock_mono_ms() + 60000;
    while (bench.answers == 0 && cv_clock_mono_ms() < end)
        turns();
    T_INT_EQ(bench.answers, 1);
}

static void update(enum cv_exit_state state)
{
    struct cv_net_addresses a = {.ip4 = wire_ip("10.8.0.2")};
    struct cv_endpoint dns = {.ip = wire_ip("10.8.0.1"), .port = w.dns_port};
    cv_exit_update(office, state, &a, &dns, 1);
}

static void set_up(const char *name)
{
    bench_open();
    if (cv_loop_new(&stack) != 0)
        abort();
    wire_open(&w, stack);
    T_INT_EQ(cv_exits_new(stack, w.ns, &exits), 0);
    T_INT_EQ(cv_exit_add(exits, "office", &w.a.pi, &w.stats[0], &office), 0);
    T_INT_EQ(cv_exit_add(exits, "office", &w.a.pi, &w.stats[0], &office), CV_E_EXISTS);
    struct cv_rcstr *label = cv_rcstr_new("tunnel:office", 13);
    struct cv_egress_def def = {.label = label};
    bench.egress = cv_egress_tunnel_new(&def, exits, name,
                                        cv_registry_egress(bench.registry, "tunnel:office"));
    cv_rcstr_unref(label);
}

static void tear_down(void)
{
    for (int i = 0; i < 20; i++)
        turns();
    cv_exits_free(exits);
    for (int i = 0; i < 4; i++)
        turns();
    wire_close(&w);
    bench_close();
    T_INT_EQ(cv_gauge_get(&w.stats[0].tcp), 0);
    T_INT_EQ(cv_gauge_get(&w.stats[0].udp), 0);
    cv_loop_free(stack);
}

static void dial(const char *host, uint16_t port, int64_t timeout_ms)
{
    dial_start(host, port, timeout_ms);
    wait_answer();
}

static void echo(struct cv_stream *s)
{
    size_t n = 0, got = 0;
    char buf[16];
    T_INT_EQ(cv_stream_send(s, "hello tunnel", 12, &n), 0);
    for (int i = 0; i < 5000 && got < 12; i++) {
        turns();
        if (cv_stream_recv(s, buf + got, sizeof(buf) - got, &n) == 0)
            got += n;
    }
    T_INT_EQ(got, 12);
    T_MEM_EQ(buf, "hello tunnel", 12);
    cv_stream_close(s, false);
}

static void test_connects(void)
{
    set_up("office");
    update(CV_EXIT_UP);
    dial("10.8.0.1", 7, 5000);
    T_INT_EQ(bench.dial.err, 0);
    T_INT_EQ(bench.dial.peer.port, 7);
    T_INT_EQ(bench.dial.local.ip.family, CV_AF_IP4);
    echo(bench.dial.stream);
    /* By a name that only the far side knows. */
    dial("known.test", 7, 5000);
    T_INT_EQ(bench.dial.err, 0);
    echo(bench.dial.stream);
    dial("unknown.test", 7, 5000);
    T_INT_EQ(bench.dial.err, CV_E_DNS_NXDOMAIN);
    T_INT_EQ(bench.dial.stage, CV_STAGE_DNS);
    T_INT_EQ(bench.dial.blame, CV_BLAME_TARGET);
    dial("10.8.0.1", 9, 5000);
    T_INT_EQ(bench.dial.err, -ECONNREFUSED);
    T_INT_EQ(bench.dial.stage, CV_STAGE_DIAL);
    dial("127.0.0.1", 7, 5000);
    T_INT_EQ(bench.dial.err, CV_E_GUARD);
    dial("2001:db8::1", 7, 5000);
    T_INT_EQ(bench.dial.err, -EAFNOSUPPORT);
    tear_down();
}

static void test_down(void)
{
    set_up("office");
    dial("10.8.0.1", 7, 5000);
    T_INT_EQ(bench.dial.err, CV_E_UNAVAILABLE);
    T_INT_EQ(bench.dial.stage, CV_STAGE_TUNNEL_DOWN);
    T_INT_EQ(bench.dial.blame, CV_BLAME_EGRESS);
    /* Coming up: waits, as long as it may. */
    update(CV_EXIT_COMING);
    dial("10.8.0.1", 7, 50);
    T_INT_EQ(bench.dial.stage, CV_STAGE_TUNNEL_DOWN);
    dial_start("10.8.0.1", 7, 10000);
    for (int i = 0; i < 10; i++)
        turns();
    T_INT_EQ(bench.answers, 0);
    update(CV_EXIT_UP);
    wait_answer();
    T_INT_EQ(bench.dial.err, 0);
    echo(bench.dial.stream);
    /* Given up while it waits, and while it is on its way. */
    update(CV_EXIT_COMING);
    dial_start("10.8.0.1", 7, 10000);
    turns();
    cv_dial_cancel(bench.egress, &bench.dial);
    update(CV_EXIT_UP);
    dial_start("10.8.0.1", 7, 10000);
    cv_loop_turn(stack, 0);
    cv_loop_turn(stack, 0);
    cv_dial_cancel(bench.egress, &bench.dial);
    for (int i = 0; i < 20; i++)
        turns();
    T_INT_EQ(bench.answers, 0);
    tear_down();
}

static void test_unknown(void)
{
    set_up("elsewhere");
    update(CV_EXIT_UP);
    dial("10.8.0.1", 7, 5000);
    T_INT_EQ(bench.dial.stage, CV_STAGE_TUNNEL_DOWN);
    T_INT_EQ(bench.dial.err, CV_E_UNAVAILABLE);
    tear_down();
}

static void test_removed(void)
{
    set_up("office");
    update(CV_EXIT_UP);
    dial("10.8.0.1", 7, 5000);
    T_INT_EQ(bench.dial.err, 0);
    struct cv_stream *s = bench.dial.stream;
    cv_exit_remove(office);
    for (int i = 0; i < 10; i++)
        turns();
    char b;
    size_t n;
    T_INT_EQ(cv_stream_recv(s, &b, 1, &n), -ENETDOWN);
    cv_stream_close(s, false);
    dial("10.8.0.1", 7, 5000);
    T_INT_EQ(bench.dial.stage, CV_STAGE_TUNNEL_DOWN);
    tear_down();
}

static int send_dgram(struct cv_dgram *d, const char *host, uint16_t port)
{
    struct cv_target to = {.port = port};
    if (cv_host_parse(host, strlen(host), &to.host) != 0)
        abort();
    struct cv_dgram_out m = {.to = &to, .data = (const uint8_t *)"ping", .len = 4};
    cv_dgram_send(d, &m, 1);
    return m.err;
}

static int drop_err;
static void on_drop(void *arg, struct cv_dgram *d, int err)
{
    (void)arg;
    (void)d;
    drop_err = err;
}

static bool await_dgram(struct cv_dgram *d, struct cv_dgram_in *in)
{
    size_t n = 0;
    for (int i = 0; i < 3000; i++) {
        turns();
        if (cv_dgram_recv(d, in, 1, &n) == 0 && n == 1)
            return true;
    }
    return false;
}

static void test_udp(void)
{
    uint8_t buf[2048];
    struct cv_dgram_in in = {.buf = buf, .cap = sizeof(buf)};
    set_up("office");
    update(CV_EXIT_UP);
    bench.answers = 0;
    bench.dial = (struct cv_dial){.worker = bench.worker,
                                  .deadline_ms = cv_loop_now(bench.worker->loop) + 5000,
                                  .done = on_dialled};
    cv_dial_start_udp(bench.egress, &bench.dial);
    wait_answer();
    T_REQUIRE(bench.dial.err == 0);
    struct cv_dgram *d = bench.dial.dgram;
    cv_dgram_set_cb(d, NULL, on_drop, NULL);
    T_INT_EQ(send_dgram(d, "10.8.0.1", w.udp_port), 0);
    T_OK(await_dgram(d, &in));
    T_INT_EQ(in.len, 4);
    T_INT_EQ(in.from.port, w.udp_port);
    in = (struct cv_dgram_in){.buf = buf, .cap = sizeof(buf)};
    T_INT_EQ(send_dgram(d, "known.test", w.udp_port), 0);
    T_OK(await_dgram(d, &in));
    T_MEM_EQ(in.data, "ping", 4);
    T_INT_EQ(send_dgram(d, "unknown.test", w.udp_port), 0);
    size_t n;
    for (int i = 0; i < 3000 && drop_err == 0; i++) {
        turns();
        (void)cv_dgram_recv(d, &in, 1, &n);
    }
    T_INT_EQ(drop_err, CV_E_DNS_NXDOMAIN);
    cv_exit_remove(office);
    for (int i = 0; i < 10; i++)
        turns();
    T_INT_EQ(cv_dgram_recv(d, &in, 1, &n), CV_E_UNAVAILABLE);
    cv_dgram_close(d);
    tear_down();
}

int main(void)
{
    T_RUN(test_connects);
    T_RUN(test_down);
    T_RUN(test_unknown);
    T_RUN(test_removed);
    T_RUN(test_udp);
    return t_done();
}
