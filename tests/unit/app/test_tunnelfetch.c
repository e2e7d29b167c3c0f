#include "app/tunnelfetch.h"

#include <string.h>

#include "../net/loop_util.h"
#include "common/err.h"

#include "tap.h"

static void test_parse(void)
{
    static const struct {
        const char *url;
        int err;
        uint16_t port;
        const char *path;
    } cases[] = {
        {"http://10.0.0.1", 0, 80, "/"},
        {"http://10.0.0.1:8080/a?b=c", 0, 8080, "/a?b=c"},
        {"http://[fd00::1]:81/", 0, 81, "/"},
        {"https://10.0.0.1/", CV_E_UNSUPPORTED, 0, NULL},
        {"http://Name.Example/", 0, 80, "/"},
        {"http:///x", CV_E_PARSE, 0, NULL},
        {"http://10.0.0.1?x", CV_E_PARSE, 0, NULL},
        {"http://10.0.0.1:0/", CV_E_PARSE, 0, NULL},
        {"http://10.0.0.1/a b", CV_E_PARSE, 0, NULL},
        {"http://10.0.0.1/a\r\nX: y", CV_E_PARSE, 0, NULL},
        {"", CV_E_UNSUPPORTED, 0, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_tunnelfetch_url u;
        if (!T_INT_EQ(cv_tunnelfetch_parse(cases[i].url, &u), cases[i].err))
            printf("# %s\n", cases[i].url);
        if (cases[i].err != 0)
            continue;
        T_INT_EQ(u.target.port, cases[i].port);
        T_STR_EQ(u.path, cases[i].path);
    }
}

static unsigned sent;
static uint8_t last[1500];

static size_t send_packets(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n)
{
    size_t at = 0;
    for (unsigned i = 0; i < pkts[0].iovcnt; i++) {
        memcpy(last + at, pkts[0].iov[i].iov_base, pkts[0].iov[i].iov_len);
        at += pkts[0].iov[i].iov_len;
    }
    sent++;
    return n;
}

static void on_answer(void *arg, int err, int status, uint64_t bytes)
{
    *(int *)arg = err;
}

static void on_dns(void *arg, const struct cv_ip *ip)
{
}

/* What it sends first is a SYN to the address of the URL; given up, nothing is left. */
static void test_syn(void)
{
    static const struct cv_pktif_ops ops = {.send = send_packets};
    struct cv_pktif pi = {.ops = &ops, .mtu = 1400, .up = true};
    struct cv_loop *loop = test_loop();
    struct cv_net_addresses own = {.ip4 = {CV_AF_IP4, {10, 0, 0, 2}}};
    struct cv_tunnelfetch_url u;
    struct cv_tunnelfetch *f = NULL;
    int result = 1;
    T_REQUIRE(cv_tunnelfetch_parse("http://10.0.0.1:8080/", &u) == 0);
    T_REQUIRE(cv_tunnelfetch_start(loop, &pi, &own, &u, NULL, 0, on_dns, on_answer, &result, &f) ==
              0);
    TURN_UNTIL(loop, sent > 0);
    T_OK(last[0] == 0x45 && last[9] == 6 && (last[33] & 0x3f) == 2);
    T_MEM_EQ(last + 12, "\x0a\0\0\2\x0a\0\0\1", 8);
    T_OK(last[22] == 8080 >> 8 && last[23] == (8080 & 255));
    cv_tunnelfetch_free(f);
    cv_tunnelfetch_free(NULL);
    cv_loop_turn(loop, 0);
    T_INT_EQ(result, 1);
    T_OK(!cv_pktif_is_attached(&pi));
    test_loop_end(loop);
}

/* A name is asked of the tunnel's DNS server, through the tunnel; without one it does not resolve.
 */
static void test_name(void)
{
    static const struct cv_pktif_ops ops = {.send = send_packets};
    static const struct cv_ip dns = {CV_AF_IP4, {10, 0, 0, 53}};
    for (size_t n_dns = 0; n_dns < 2; n_dns++) {
        struct cv_pktif pi = {.ops = &ops, .mtu = 1400, .up = true};
        struct cv_loop *loop = test_loop();
        struct cv_net_addresses own = {.ip4 = {CV_AF_IP4, {10, 0, 0, 2}}};
        struct cv_tunnelfetch_url u;
        struct cv_tunnelfetch *f = NULL;
        int result = 1;
        sent = 0;
        T_REQUIRE(cv_tunnelfetch_parse("http://name.example/", &u) == 0);
        T_REQUIRE(cv_tunnelfetch_start(loop, &pi, &own, &u, &dns, n_dns, on_dns, on_answer, &result,
                                       &f) == 0);
        if (n_dns == 0) {
            TURN_UNTIL(loop, result != 1);
            T_INT_EQ(result, CV_E_DNS_FAIL);
            T_INT_EQ(sent, 0);
        } else {
            TURN_UNTIL(loop, sent > 0);
            T_OK(last[9] == 17 && last[22] == 0 && last[23] == 53);
            T_MEM_EQ(last + 16, "\x0a\0\0\x35", 4);
        }
        cv_tunnelfetch_free(f);
        cv_loop_turn(loop, 0);
        test_loop_end(loop);
    }
}

int main(void)
{
    T_RUN(test_parse);
    T_RUN(test_syn);
    T_RUN(test_name);
    return t_done();
}
