#include "egress/egress.h"
#include "egress_util.h"

static int listener(uint16_t *ret_port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        abort();
    *ret_port = ntohs(sa.sin_port);
    return fd;
}

static void open_direct(bool allow_loopback)
{
    bench_open();
    bench.egress = cv_egress_direct_new(cv_registry_egress(bench.registry, "direct"));
    if (!allow_loopback)
        return;
    bench.settings->direct_allow = cv_zalloc(2 * sizeof(struct cv_prefix));
    bench.settings->n_direct_allow = 2;
    T_INT_EQ(cv_prefix_parse("127.0.0.0/8", 11, &bench.settings->direct_allow[0]), 0);
    T_INT_EQ(cv_prefix_parse("::1", 3, &bench.settings->direct_allow[1]), 0);
}

static void test_connects(void)
{
    uint16_t port;
    char text[CV_ENDPOINT_STRLEN];
    int l = listener(&port);
    open_direct(true);
    T_STR_EQ(bench.egress->label->s, "direct");
    T_INT_EQ(dial_host("127.0.0.1", port), 0);
    struct cv_stream *s = bench.dial.stream;
    T_OK(s != NULL);
    int fd = accept(l, NULL, NULL);
    struct sockaddr_in far;
    socklen_t len = sizeof(far);
    T_INT_EQ(getpeername(fd, (struct sockaddr *)&far, &len), 0);
    /* BND is what the origin sees. */
    T_INT_EQ(bench.dial.local.port, ntohs(far.sin_port));
    T_INT_EQ(bench.dial.local.ip.family, CV_AF_IP4);
    T_INT_EQ(bench.dial.peer.port, port);
    T_OK(strncmp(cv_endpoint_format(&bench.dial.peer, text), "127.0.0.1:", 10) == 0);
    size_t n;
    T_INT_EQ(cv_stream_send(s, "hi", 2, &n), 0);
    char got[2];
    T_INT_EQ(read(fd, got, 2), 2);
    cv_stream_close(s, false);
    close(fd);

    /* By name: resolved once, and the address is the one that was checked. */
    T_INT_EQ(dial_host("localhost", port), 0);
    T_INT_EQ(bench.dial.peer.ip.family, CV_AF_IP4);
    cv_stream_close(bench.dial.stream, false);
    close(l);
    bench_close();
}

static void test_refused_by_the_guard(void)
{
    uint16_t port;
    int l = listener(&port);
    open_direct(false);
    static const char *const hosts[] = {
        "127.0.0.1",       "::1",           "localhost",      "0.0.0.0", "10.0.0.1",
        "169.254.169.254", "2002:7f00:1::", "64:ff9b::7f00:1"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(hosts); i++) {
        printf("# %s\n", hosts[i]);
        T_INT_EQ(dial_host(hosts[i], port), CV_E_GUARD);
        T_INT_EQ(bench.dial.stage, CV_STAGE_POLICY);
        T_OK(bench.dial.stream == NULL);
    }
    /* The selector names it: allowed, but nothing beside it. */
    bench.dial.names_special = true;
    T_INT_EQ(cv_prefix_parse("127.0.0.1", 9, &bench.dial.special), 0);
    T_INT_EQ(dial_host("127.0.0.1", port), 0);
    cv_stream_close(bench.dial.stream, false);
    T_INT_EQ(dial_host("127.0.0.2", port), CV_E_GUARD);
    close(l);
    bench_close();
}

static void test_failures(void)
{
    uint16_t port;
    int l = listener(&port);
    close(l); /* a port where nobody listens */
    open_direct(true);
    T_INT_EQ(dial_host("127.0.0.1", port), -ECONNREFUSED);
    T_INT_EQ(bench.dial.stage, CV_STAGE_DIAL);
    bench_close();
}

/* The resolver of this worker is a socket that never answers. */
static void test_dns_timeout_and_cancel(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(udp, (struct sockaddr *)&sa, sizeof(sa)) != 0 ||
        getsockname(udp, (struct sockaddr *)&sa, &len) != 0)
        abort();
    open_direct(true);
    struct cv_settings *s = cv_settings_new();
    s->dns_servers = cv_zalloc(sizeof(char *));
    s->dns_servers[0] = cv_zalloc(64);
    snprintf(s->dns_servers[0], 64, "127.0.0.1:%u", ntohs(sa.sin_port));
    s->n_dns_servers = 1;
    s->dns_timeout_ms = 100;
    s->dns_attempts = 1;
    s->connect_timeout_ms = 1;
    cv_worker_set_settings(bench.worker, s);
    cv_settings_unref(s);

    T_INT_EQ(dial_host("silent.test", 80), CV_E_DNS_TIMEOUT);
    T_INT_EQ(bench.dial.stage, CV_STAGE_DNS);

    /* The dial's own limit is shorter than the resolver's. */
    dial_start("silent2.test", 80, 20);
    int64_t began = cv_clock_mono_ms();
    dial_wait();
    T_OK(bench.dial.err == -ETIMEDOUT || bench.dial.err == CV_E_DNS_TIMEOUT);
    T_OK(cv_clock_mono_ms() - began < 95);

    dial_start("silent3.test", 80, 5000);
    cv_dial_cancel(bench.egress, &bench.dial);
    for (int i = 0; i < 3; i++)
        cv_loop_turn(bench.worker->loop, 1);
    T_INT_EQ(bench.answers, 0);

    /* While it connects, or the refusal is on its way. */
    dial_start("10.0.0.1", 80, 5000);
    cv_dial_cancel(bench.egress, &bench.dial);
    dial_start("127.0.0.1", 1, 5000);
    cv_dial_cancel(bench.egress, &bench.dial);
    for (int i = 0; i < 3; i++)
        cv_loop_turn(bench.worker->loop, 1);
    T_INT_EQ(bench.answers, 0);
    close(udp);
    /* The replaced resolver waits for queries that may still run on it; not here. */
    cv_worker_free(bench.worker);
    if (cv_worker_new(0, &bench.node, bench.settings, &bench.worker) != 0)
        abort();
    bench_close();
}

int main(void)
{
    T_RUN(test_connects);
    T_RUN(test_refused_by_the_guard);
    T_RUN(test_failures);
    T_RUN(test_dns_timeout_and_cancel);
    return t_done();
}
