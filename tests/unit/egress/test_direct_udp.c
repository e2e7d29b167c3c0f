#include "../net/dns_server.h"

#include "egress/direct_priv.h"
#include "egress/egress.h"
#include "egress_util.h"
#include "net/udp.h"

/* One flow of the direct egress, a server on loopback, and what came of each. */
static struct {
    struct cv_dgram *flow;
    int drops, last_drop;
    int reads;
    int fd; /* the server */
    struct cv_endpoint ep;
    struct cv_prefix grant;
    bool granted;
} t;

static void on_event(void *arg, struct cv_dgram *d, unsigned events)
{
    (void)arg;
    (void)d;
    t.reads += (events & CV_DGRAM_READ) != 0;
}

static void on_dropped(void *arg, struct cv_dgram *d, int err)
{
    (void)arg;
    (void)d;
    t.drops++;
    t.last_drop = err;
}

static int server(const char *at, struct cv_endpoint *ret_ep)
{
    struct cv_sockaddr sa;
    int fd = -1;
    T_INT_EQ(cv_sockaddr_parse(at, &sa), 0);
    T_INT_EQ(cv_udp_open(&sa, &fd), 0);
    sa.len = sizeof(sa.in6);
    T_INT_EQ(getsockname(fd, &sa.sa, &sa.len), 0);
    cv_endpoint_from_sockaddr(ret_ep, &sa.sa);
    return fd;
}

static void open_flow(bool allow_loopback)
{
    memset(&t, 0, sizeof(t));
    bench_open();
    bench.egress = cv_egress_direct_new(cv_registry_egress(bench.registry, "direct"));
    if (allow_loopback) {
        bench.settings->direct_allow = cv_zalloc(2 * sizeof(struct cv_prefix));
        bench.settings->n_direct_allow = 2;
        T_INT_EQ(cv_prefix_parse("127.0.0.0/8", 11, &bench.settings->direct_allow[0]), 0);
        T_INT_EQ(cv_prefix_parse("::1", 3, &bench.settings->direct_allow[1]), 0);
    }
    bench.answers = 0;
    bench.dial = (struct cv_dial){.worker = bench.worker, .done = on_dialled};
    cv_dial_start_udp(bench.egress, &bench.dial);
    T_INT_EQ(bench.answers, 0);
    dial_wait();
    T_INT_EQ(bench.dial.err, 0);
    t.flow = bench.dial.dgram;
    cv_dgram_set_cb(t.flow, on_event, on_dropped, NULL);
    t.fd = server("127.0.0.1:0", &t.ep);
}

static void close_flow(void)
{
    cv_dgram_close(t.flow);
    close(t.fd);
    T_INT_EQ(bench.worker->dgram_budget.used, 0);
    bench_close();
}

/* What send says. */
static int send_one(const char *host, uint16_t port, const char *data)
{
    struct cv_target target;
    T_INT_EQ(cv_host_parse(host, strlen(host), &target.host), 0);
    target.port = port;
    struct cv_dgram_out m = {
        .to = &target,
        .grant = t.granted ? &t.grant : NULL,
        .data = (const uint8_t *)data,
        .len = strlen(data),
    };
    cv_dgram_send(t.flow, &m, 1);
    return m.err;
}

/* Turn until the server has a datagram; its length, and its sender's port. */
static ssize_t served(int fd, char *buf, size_t cap, uint16_t *ret_port)
{
    struct cv_sockaddr from = {.len = sizeof(from.in6)};
    struct cv_endpoint ep;
    int64_t end = cv_clock_mono_ms() + 10000;
    ssize_t n = -1;
    while (n < 0 && cv_clock_mono_ms() < end) {
        n = recvfrom(fd, buf, cap, 0, &from.sa, &from.len);
        if (n < 0)
            cv_loop_turn(bench.worker->loop, 5);
    }
    cv_endpoint_from_sockaddr(&ep, &from.sa);
    *ret_port = ep.port;
    return n;
}

static void expect(int fd, const char *want, uint16_t *ret_port)
{
    char buf[256];
    ssize_t n = served(fd, buf, sizeof(buf), ret_port);
    if (T_INT_EQ(n, strlen(want)))
        T_MEM_EQ(buf, want, (size_t)n);
}

static void answer(int fd, uint16_t port, const char *data)
{
    struct cv_sockaddr to;
    cv_sockaddr_from_ip(&to, &t.ep.ip, port);
    T_INT_EQ(sendto(fd, data, strlen(data), 0, &to.sa, to.len), strlen(data));
}

static size_t receive(struct cv_dgram_in *msgs)
{
    size_t n = 0;
    T_INT_EQ(cv_worker_dgram_slots(bench.worker, msgs, CV_DGRAM_BATCH), 0);
    int64_t end = cv_clock_mono_ms() + 10000;
    while (cv_dgram_recv(t.flow, msgs, CV_DGRAM_BATCH, &n) != 0 && cv_clock_mono_ms() < end)
        cv_loop_turn(bench.worker->loop, 5);
    return n;
}

static void test_one_port_for_all(void)
{
    struct cv_dgram_in msgs[CV_DGRAM_BATCH];
    struct cv_endpoint two_ep, six_ep, stranger_ep;
    uint16_t port, port2, port6;
    open_flow(true);
    size_t n = 77;
    T_INT_EQ(cv_dgram_recv(t.flow, msgs, CV_DGRAM_BATCH, &n), -EAGAIN); /* no socket yet */
    int two = server("127.0.0.1:0", &two_ep), six = server("[::1]:0", &six_ep);
    int stranger = server("127.0.0.1:0", &stranger_ep);
    T_INT_EQ(send_one("127.0.0.1", t.ep.port, "one"), 0);
    expect(t.fd, "one", &port);
    T_INT_EQ(send_one("127.0.0.1", two_ep.port, "two"), 0);
    expect(two, "two", &port2);
    T_INT_EQ(port, port2);
    T_INT_EQ(send_one("::1", six_ep.port, "six"), 0);
    expect(six, "six", &port6);

    answer(stranger, port, "hi");
    size_t got = receive(msgs);
    T_REQUIRE(got == 1);
    T_MEM_EQ(msgs[0].data, "hi", 2);
    T_INT_EQ(msgs[0].from.port, stranger_ep.port);
    T_INT_EQ(msgs[0].from.ip.family, CV_AF_IP4);
    T_OK(t.reads > 0);
    T_INT_EQ(cv_dgram_recv(t.flow, msgs, CV_DGRAM_BATCH, &n), -EAGAIN);
    close(two);
    close(six);
    close(stranger);
    close_flow();
}

static void test_guard(void)
{
    static const char *const hosts[] = {
        "127.0.0.1",       "::1",           "0.0.0.0",         "10.0.0.1",  "255.255.255.255",
        "169.254.169.254", "2002:7f00:1::", "64:ff9b::7f00:1", "239.1.2.3", "fe80::1"};
    uint16_t port;
    open_flow(false);
    for (size_t i = 0; i < CV_ARRAY_SIZE(hosts); i++) {
        printf("# %s\n", hosts[i]);
        T_INT_EQ(send_one(hosts[i], t.ep.port, "x"), CV_E_GUARD);
    }
    /* A name that is loopback: known at once or a turn later, and refused either way. */
    T_INT_EQ(send_one("localhost", t.ep.port, "x"), 0);
    TURN_UNTIL(bench.worker->loop, t.drops == 1);
    T_INT_EQ(t.last_drop, CV_E_GUARD);
    T_INT_EQ(send_one("localhost", t.ep.port, "x"), CV_E_GUARD);
    /* The grant comes with each datagram. */
    t.granted = true;
    T_INT_EQ(cv_prefix_parse("127.0.0.1", 9, &t.grant), 0);
    T_INT_EQ(send_one("127.0.0.1", t.ep.port, "granted"), 0);
    expect(t.fd, "granted", &port);
    T_INT_EQ(send_one("localhost", t.ep.port, "by name"), 0);
    expect(t.fd, "by name", &port);
    T_INT_EQ(send_one("127.0.0.2", t.ep.port, "x"), CV_E_GUARD);
    t.granted = false;
    T_INT_EQ(send_one("localhost", t.ep.port, "x"), CV_E_GUARD);
    close_flow();
}

/* -- names, of a server in this loop -- */

static struct dns_server *dns;

static void open_named(enum cv_family prefer)
{
    open_flow(true);
    dns = dns_server_new(bench.worker->loop);
    struct cv_settings *s = cv_settings_new();
    s->direct_allow = cv_zalloc(2 * sizeof(struct cv_prefix));
    s->n_direct_allow = 2;
    memcpy(s->direct_allow, bench.settings->direct_allow, 2 * sizeof(struct cv_prefix));
    s->dns_servers = cv_zalloc(sizeof(char *));
    s->dns_servers[0] = cv_strdup(dns->text);
    s->n_dns_servers = 1;
    s->dns_timeout_ms = 300;
    s->dns_attempts = 1;
    s->connect_timeout_ms = 2500;
    s->direct_prefer = prefer;
    cv_worker_set_settings(bench.worker, s);
    cv_settings_unref(bench.settings);
    bench.settings = s;
}

static void close_named(void)
{
    dns_server_free(dns);
    cv_dgram_close(t.flow);
    close(t.fd);
    T_INT_EQ(bench.worker->dgram_budget.used, 0);
    cv_egress_unref(bench.egress);
    cv_loop_turn(bench.worker->loop, 0);
    /* The resolver that was replaced has its timer until the end. */
    cv_worker_free(bench.worker);
    cv_settings_unref(bench.settings);
    cv_registry_free(bench.registry);
}

static void test_names(void)
{
    uint16_t port, port2;
    open_named(CV_AF_IP4);
    T_INT_EQ(send_one("a.127-0-0-1.a.test", t.ep.port, "one"), 0);
    T_INT_EQ(send_one("a.127-0-0-1.a.test", t.ep.port, "two"), 0);
    expect(t.fd, "one", &port);
    expect(t.fd, "two", &port2);
    T_INT_EQ(port, port2);
    int asked = dns->n_udp;
    T_INT_EQ(send_one("a.127-0-0-1.a.test", t.ep.port, "three"), 0);
    expect(t.fd, "three", &port);
    T_INT_EQ(dns->n_udp, asked); /* known in this flow */
    T_INT_EQ(send_one("nodata.test", t.ep.port, "x"), 0);
    TURN_UNTIL(bench.worker->loop, t.drops == 1);
    T_INT_EQ(t.last_drop, CV_E_DNS_NXDOMAIN);
    T_INT_EQ(send_one("nodata.test", t.ep.port, "x"), CV_E_DNS_NXDOMAIN); /* for a while */
    T_INT_EQ(send_one("a.10-0-0-1.a.test", t.ep.port, "x"), 0);
    TURN_UNTIL(bench.worker->loop, t.drops == 2);
    T_INT_EQ(t.last_drop, CV_E_GUARD);
    close_named();
}

/* The preferred family has nothing: the other one is asked. */
static void test_other_family(void)
{
    uint16_t port;
    open_named(CV_AF_IP6);
    T_INT_EQ(send_one("a.127-0-0-1.a.test", t.ep.port, "four"), 0);
    expect(t.fd, "four", &port);
    close_named();
}

static void test_silent_server(void)
{
    open_named(CV_AF_IP4);
    dns->silent = true;
    for (int i = 0; i < 16; i++)
        T_INT_EQ(send_one("slow.test", 9, "x"), 0);
    T_INT_EQ(send_one("slow.test", 9, "x"), CV_E_LIMIT);
    /* So many names at a time, none of which can make room. */
    char name[32];
    for (int i = 1; i < 32; i++) {
        snprintf(name, sizeof(name), "slow%d.test", i);
        T_INT_EQ(send_one(name, 9, "x"), 0);
    }
    T_INT_EQ(send_one("one-too-many.test", 9, "x"), CV_E_LIMIT);
    T_OK(bench.worker->dgram_budget.used > 0);
    TURN_UNTIL(bench.worker->loop, t.drops == 16 + 31);
    T_INT_EQ(t.last_drop, CV_E_DNS_TIMEOUT);
    T_INT_EQ(bench.worker->dgram_budget.used, 0);
    T_INT_EQ(send_one("fits-again.test", 9, "x"), 0);
    close_named(); /* while it is being asked for */
}

/* A resolver that goes away says nothing; the sweep does. */
static void test_resolver_goes(void)
{
    open_named(CV_AF_IP4);
    dns->silent = true;
    bench.settings->connect_timeout_ms = 200;
    T_INT_EQ(send_one("slow.test", 9, "x"), 0);
    cv_dns_free(bench.worker->dns);
    struct cv_dns_conf conf = {.servers = (const char *const *)bench.settings->dns_servers,
                               .n_servers = 1};
    T_INT_EQ(cv_dns_new(bench.worker->loop, &conf, &bench.node.dns_stats, &bench.worker->dns), 0);
    TURN_UNTIL(bench.worker->loop, t.drops == 1);
    T_INT_EQ(t.last_drop, CV_E_DNS_TIMEOUT);
    close_named();
}

/* More names than are remembered, one after the other: the oldest make room. */
static void test_many_names(void)
{
    char name[64];
    uint16_t port;
    open_named(CV_AF_IP4);
    for (int i = 0; i < 80; i++) {
        snprintf(name, sizeof(name), "n%d.127-0-0-1.a.test", i);
        T_INT_EQ(send_one(name, t.ep.port, "x"), 0);
        expect(t.fd, "x", &port);
    }
    T_INT_EQ(t.drops, 0);
    close_named();
}

static void test_cancel_and_same(void)
{
    bench_open();
    bench.egress = cv_egress_direct_new(cv_registry_egress(bench.registry, "direct"));
    struct cv_egress *other = cv_egress_direct_new(cv_registry_egress(bench.registry, "direct"));
    T_OK(cv_egress_same(bench.egress, other));
    bench.answers = 0;
    bench.dial = (struct cv_dial){.worker = bench.worker, .done = on_dialled};
    cv_dial_start_udp(bench.egress, &bench.dial);
    cv_dial_cancel(bench.egress, &bench.dial); /* the flow is closed with it */
    cv_loop_turn(bench.worker->loop, 0);
    T_INT_EQ(bench.answers, 0);
    cv_egress_unref(other);
    bench_close();
}

int main(void)
{
    T_RUN(test_one_port_for_all);
    T_RUN(test_guard);
    T_RUN(test_names);
    T_RUN(test_other_family);
    T_RUN(test_silent_server);
    T_RUN(test_resolver_goes);
    T_RUN(test_many_names);
    T_RUN(test_cancel_and_same);
    return t_done();
}
