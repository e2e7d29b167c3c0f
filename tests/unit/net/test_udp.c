#include "net/udp.h"

#include <poll.h>

#include "loop_util.h"

struct slots {
    uint8_t buf[CV_DGRAM_BATCH][2048];
    struct cv_dgram_in msgs[CV_DGRAM_BATCH];
};

static struct slots slots;

static struct cv_dgram_in *fresh(size_t cap)
{
    for (size_t i = 0; i < CV_DGRAM_BATCH; i++)
        slots.msgs[i] = (struct cv_dgram_in){.buf = slots.buf[i], .cap = cap};
    return slots.msgs;
}

static int open_at(const char *text, struct cv_endpoint *ret_ep)
{
    struct cv_sockaddr sa;
    int fd = -1;
    T_INT_EQ(cv_sockaddr_parse(text, &sa), 0);
    T_INT_EQ(cv_udp_open(&sa, &fd), 0);
    sa.len = sizeof(sa.in6);
    T_INT_EQ(getsockname(fd, &sa.sa, &sa.len), 0);
    cv_endpoint_from_sockaddr(ret_ep, &sa.sa);
    return fd;
}

static void await(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    T_INT_EQ(poll(&p, 1, 5000), 1);
}

static struct cv_udp_out out_of(const struct cv_endpoint *to, const char *a, const char *b)
{
    return (struct cv_udp_out){
        .to = to,
        .iov[0] = {.iov_base = (void *)(uintptr_t)a, .iov_len = strlen(a)},
        .iov[1] = {.iov_base = (void *)(uintptr_t)b, .iov_len = strlen(b)},
    };
}

static void test_batch(void)
{
    struct cv_endpoint a_ep, b_ep;
    int a = open_at("127.0.0.1:0", &a_ep), b = open_at("127.0.0.1:0", &b_ep);
    struct cv_udp_out out[4];
    size_t n = 99;
    T_INT_EQ(cv_udp_recv(b, fresh(2048), CV_DGRAM_BATCH, &n), -EAGAIN);
    out[0] = out_of(&b_ep, "one", "");
    out[1] = out_of(&b_ep, "two:", "payload");
    out[2] = out_of(&b_ep, "", "");
    out[3] = out_of(&b_ep, "four", "");
    cv_udp_send(a, out, 4);
    for (int i = 0; i < 4; i++)
        T_INT_EQ(out[i].err, 0);
    await(b);
    T_INT_EQ(cv_udp_recv(b, fresh(2048), CV_DGRAM_BATCH, &n), 0);
    T_REQUIRE(n == 4);
    static const char *const want[] = {"one", "two:payload", "", "four"};
    for (size_t i = 0; i < n; i++) {
        const struct cv_dgram_in *m = &slots.msgs[i];
        T_INT_EQ(m->len, strlen(want[i]));
        T_MEM_EQ(m->data, want[i], m->len);
        T_OK(cv_ip_equal(&m->from.ip, &a_ep.ip) && m->from.port == a_ep.port);
    }
    close(a);
    close(b);
}

static void test_what_does_not_fit_is_left_out(void)
{
    struct cv_endpoint a_ep, b_ep;
    int a = open_at("127.0.0.1:0", &a_ep), b = open_at("127.0.0.1:0", &b_ep);
    static const char longer[] = "much longer than eight bytes";
    struct cv_udp_out out[3] = {out_of(&b_ep, longer, ""), out_of(&b_ep, "short", ""),
                                out_of(&b_ep, longer, "")};
    size_t n = 0;
    cv_udp_send(a, out, 3);
    await(b);
    T_INT_EQ(cv_udp_recv(b, fresh(8), CV_DGRAM_BATCH, &n), 0);
    T_REQUIRE(n == 1);
    T_MEM_EQ(slots.msgs[0].data, "short", 5);
    /* Each buffer is still in one message. */
    for (size_t i = 0; i < CV_DGRAM_BATCH; i++)
        for (size_t j = 0; j < i; j++)
            if (slots.msgs[i].buf == slots.msgs[j].buf)
                T_FAIL("%zu and %zu share a buffer", i, j);
    close(a);
    close(b);
}

static void test_one_failure_stops_nobody(void)
{
    static char big[70000];
    struct cv_endpoint a_ep, b_ep;
    int a = open_at("127.0.0.1:0", &a_ep), b = open_at("127.0.0.1:0", &b_ep);
    struct cv_udp_out out[4];
    size_t n = 0;
    out[0] = (struct cv_udp_out){.to = &b_ep, .iov[0] = {.iov_base = big, .iov_len = sizeof(big)}};
    out[1] = out_of(&b_ep, "b", "");
    out[2] = out[0];
    out[3] = out_of(&b_ep, "d", "");
    cv_udp_send(a, out, 4);
    T_INT_EQ(out[0].err, -EMSGSIZE);
    T_INT_EQ(out[1].err, 0);
    T_INT_EQ(out[2].err, -EMSGSIZE);
    T_INT_EQ(out[3].err, 0);
    await(b);
    T_INT_EQ(cv_udp_recv(b, fresh(2048), CV_DGRAM_BATCH, &n), 0);
    T_INT_EQ(n, 2);
    close(a);
    close(b);
}

/* A connected socket whose peer's port is closed: ICMP errors come back, and the socket goes on. */
static void test_old_errors(void)
{
    struct cv_endpoint a_ep, b_ep;
    struct cv_sockaddr to;
    int a = open_at("127.0.0.1:0", &a_ep), b = open_at("127.0.0.1:0", &b_ep);
    size_t n = 0;
    cv_sockaddr_from_ip(&to, &b_ep.ip, b_ep.port);
    T_INT_EQ(connect(a, &to.sa, to.len), 0);
    close(b);
    struct cv_udp_out out[2] = {out_of(NULL, "nobody", ""), out_of(NULL, "home", "")};
    for (int i = 0; i < 5; i++) {
        cv_udp_send(a, out, 2);
        T_INT_EQ(out[0].err, 0);
        T_INT_EQ(out[1].err, 0);
    }
    T_INT_EQ(cv_udp_recv(a, fresh(2048), CV_DGRAM_BATCH, &n), -EAGAIN);
    T_INT_EQ(cv_udp_open(&to, &b), 0); /* the port is free again */
    cv_udp_send(a, out, 1);
    T_INT_EQ(out[0].err, 0);
    await(b);
    T_INT_EQ(cv_udp_recv(b, fresh(2048), CV_DGRAM_BATCH, &n), 0);
    T_INT_EQ(n, 1);
    close(a);
    close(b);
}

static void test_ipv6(void)
{
    struct cv_endpoint a_ep, b_ep;
    struct cv_sockaddr any = {.len = sizeof(any.in6), .in6.sin6_family = AF_INET6};
    int six = -1;
    size_t n = 0;
    T_INT_EQ(cv_udp_open(&any, &six), 0);
    any.len = sizeof(any.in6);
    T_INT_EQ(getsockname(six, &any.sa, &any.len), 0);
    cv_endpoint_from_sockaddr(&b_ep, &any.sa);
    T_INT_EQ(cv_ip_parse("::1", 3, &b_ep.ip), 0);
    int a = open_at("[::1]:0", &a_ep);
    struct cv_udp_out out = out_of(&b_ep, "six", "");
    cv_udp_send(a, &out, 1);
    T_INT_EQ(out.err, 0);
    await(six);
    T_INT_EQ(cv_udp_recv(six, fresh(2048), 1, &n), 0);
    T_INT_EQ(n, 1);
    T_INT_EQ(slots.msgs[0].from.ip.family, CV_AF_IP6);
    /* It takes no IPv4: the same port is free there. */
    struct cv_sockaddr four = {.len = sizeof(four.in4), .in4.sin_family = AF_INET};
    four.in4.sin_port = htons(b_ep.port);
    int fd = -1;
    T_INT_EQ(cv_udp_open(&four, &fd), 0);
    int other = -1;
    T_INT_EQ(cv_udp_open(&four, &other), -EADDRINUSE);
    T_INT_EQ(other, -1);
    close(fd);
    close(a);
    close(six);
}

int main(void)
{
    T_RUN(test_batch);
    T_RUN(test_what_does_not_fit_is_left_out);
    T_RUN(test_one_failure_stops_nobody);
    T_RUN(test_old_errors);
    T_RUN(test_ipv6);
    return t_done();
}
