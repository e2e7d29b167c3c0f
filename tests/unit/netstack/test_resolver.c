#include "common/err.h"
#include "netstack/resolver.h"
#include "wire.h"

static struct wire w;
static struct cv_loop *loop;
static struct cv_netif *near;
static struct cv_resolver *r;

struct query {
    struct cv_resolve q;
    int answers, err;
    size_t n;
    struct cv_ip ip;
};

static void on_answer(struct cv_resolve *rq, int err, const struct cv_ip *ips, size_t n)
{
    struct query *q = CV_CONTAINER_OF(rq, struct query, q);
    q->answers++;
    q->err = err;
    q->n = n;
    if (n > 0)
        q->ip = ips[0];
}

static void ask(struct query *q, const char *name, enum cv_family family)
{
    *q = (struct query){.q.cb = on_answer};
    cv_resolve_start(&q->q, r, name, family);
    T_INT_EQ(q->answers, 0);
}

static void await(struct query *q)
{
    int64_t end = cv_clock_mono_ms() + 60000;
    while (q->answers == 0 && cv_clock_mono_ms() < end)
        cv_loop_turn(loop, 10);
    T_INT_EQ(q->answers, 1);
}

static void set_up(void)
{
    struct cv_net_addresses a = {.ip4 = wire_ip("10.8.0.2")};
    if (cv_loop_new(&loop) != 0)
        abort();
    wire_open(&w, loop);
    if (cv_netif_open(w.ns, &w.a.pi, &a, &w.stats[0], &near) != 0 || cv_resolver_new(near, &r) != 0)
        abort();
    struct cv_endpoint server = {.ip = wire_ip("10.8.0.1"), .port = w.dns_port};
    cv_resolver_set_servers(r, &server, 1);
}

static void tear_down(void)
{
    cv_resolver_free(r);
    cv_netif_close(near);
    wire_close(&w);
    cv_loop_free(loop);
}

static void test_answers(void)
{
    struct query a, b, c;
    set_up();
    /* Equal questions are one; the answer is kept. */
    ask(&a, "known.test", CV_AF_IP4);
    ask(&b, "known.test", CV_AF_IP4);
    await(&a);
    await(&b);
    T_INT_EQ(a.err, 0);
    T_INT_EQ(b.n, 1);
    struct cv_ip want = wire_ip("10.8.0.1");
    T_OK(cv_ip_equal(&a.ip, &want));
    T_INT_EQ(w.dns_asked, 1);
    ask(&c, "known.test", CV_AF_IP4);
    await(&c);
    T_INT_EQ(c.err, 0);
    T_INT_EQ(w.dns_asked, 1);
    T_INT_EQ(cv_counter_get(&cv_resolver_stats(r)->cache_hits), 1);
    ask(&a, "known.test", CV_AF_IP6);
    await(&a);
    T_INT_EQ(a.err, CV_E_DNS_NXDOMAIN);
    ask(&a, "unknown.test", CV_AF_IP4);
    await(&a);
    T_INT_EQ(a.err, CV_E_DNS_NXDOMAIN);
    tear_down();
}

static void test_truncated(void)
{
    struct query a;
    set_up();
    struct tcp_pcb *l = wire_listen(&w, w.dns_port, wire_on_dns_accept);
    w.dns_truncates = true;
    ask(&a, "known.test", CV_AF_IP4);
    await(&a);
    T_INT_EQ(a.err, 0);
    T_INT_EQ(cv_counter_get(&cv_resolver_stats(r)->over_tcp), 1);
    (void)tcp_close(l);
    tear_down();
}

static void test_second_server(void)
{
    struct query a;
    set_up();
    struct cv_endpoint servers[] = {{.ip = wire_ip("10.8.0.77"), .port = 53},
                                    {.ip = wire_ip("10.8.0.1"), .port = w.dns_port}};
    cv_resolver_set_servers(r, servers, 2);
    ask(&a, "known.test", CV_AF_IP4);
    await(&a);
    T_INT_EQ(a.err, 0);
    tear_down();
}

static void test_silence(void)
{
    struct query a, b;
    set_up();
    w.dns_silent = true;
    ask(&a, "known.test", CV_AF_IP4);
    ask(&b, "known.test", CV_AF_IP4);
    cv_resolve_cancel(&b.q);
    await(&a);
    T_INT_EQ(a.err, CV_E_DNS_TIMEOUT);
    T_INT_EQ(b.answers, 0);
    T_INT_EQ(w.dns_asked, 2);
    cv_resolver_set_servers(r, NULL, 0);
    ask(&a, "other.test", CV_AF_IP4);
    await(&a);
    T_INT_EQ(a.err, CV_E_DNS_FAIL);
    /* One that is freed under a question says nothing. */
    struct cv_endpoint server = {.ip = wire_ip("10.8.0.1"), .port = w.dns_port};
    cv_resolver_set_servers(r, &server, 1);
    ask(&b, "third.test", CV_AF_IP4);
    tear_down();
    T_INT_EQ(b.answers, 0);
}

int main(void)
{
    T_RUN(test_answers);
    T_RUN(test_truncated);
    T_RUN(test_second_server);
    T_RUN(test_silence);
    return t_done();
}
