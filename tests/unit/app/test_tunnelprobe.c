#include "app/tunnelprobe.h"

#include <string.h>

#include "../net/loop_util.h"
#include "common/err.h"

#include "tap.h"

static const struct cv_ip from = {CV_AF_IP4, {10, 0, 0, 2}}, to = {CV_AF_IP4, {10, 0, 0, 1}};
static unsigned sent, answers;
static int64_t rtt = -1;

/* Make a request its reply. */
static void turn_round(uint8_t *p)
{
    uint8_t ip[4];
    memcpy(ip, p + 12, 4);
    memcpy(p + 12, p + 16, 4);
    memcpy(p + 16, ip, 4);
    p[20] = 0;
    unsigned sum = (unsigned)(p[22] << 8 | p[23]) + 0x0800;
    sum = (sum & 0xffff) + (sum >> 16);
    p[22] = (uint8_t)(sum >> 8);
    p[23] = (uint8_t)sum;
}

static uint8_t last[84];

static size_t send_packets(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n)
{
    sent++;
    T_INT_EQ(pkts[0].len, sizeof(last));
    memcpy(last, pkts[0].iov[0].iov_base, sizeof(last));
    return n;
}

static void on_answer(void *arg, int err, int64_t rtt_us)
{
    T_INT_EQ(err, 0);
    answers++;
    rtt = rtt_us;
}

static void test_codec(void)
{
    uint8_t p[40];
    uint16_t seq = 0;
    cv_tunnelprobe_encode(&from, &to, 0x1234, 7, p, sizeof(p));
    T_OK(!cv_tunnelprobe_is_reply(p, sizeof(p), &to, 0x1234, &seq)); /* a request is none */
    turn_round(p);
    T_OK(cv_tunnelprobe_is_reply(p, sizeof(p), &to, 0x1234, &seq));
    T_INT_EQ(seq, 7);
    T_OK(!cv_tunnelprobe_is_reply(p, sizeof(p), &to, 0x1235, &seq));
    T_OK(!cv_tunnelprobe_is_reply(p, sizeof(p), &from, 0x1234, &seq));
    for (size_t i = 0; i < sizeof(p); i++)
        T_OK(!cv_tunnelprobe_is_reply(p, i, &to, 0x1234, &seq));
    p[30] ^= 1;
    T_OK(!cv_tunnelprobe_is_reply(p, sizeof(p), &to, 0x1234, &seq));
}

static void test_probe(void)
{
    static const struct cv_pktif_ops ops = {.send = send_packets};
    struct cv_pktif pi = {.ops = &ops, .mtu = 1400, .up = true};
    struct cv_loop *loop = test_loop();
    struct cv_tunnelprobe *p = NULL;
    static const struct cv_ip none;
    T_INT_EQ(cv_tunnelprobe_start(loop, &pi, &none, &to, false, on_answer, NULL, &p), CV_E_INVALID);
    T_REQUIRE(cv_tunnelprobe_start(loop, &pi, &from, &to, false, on_answer, NULL, &p) == 0);
    TURN_UNTIL(loop, sent == 2); /* it asks again */
    turn_round(last);
    struct cv_pkt_in in = {last, sizeof(last)};
    cv_pktif_input(&pi, &in, 1);
    cv_pktif_input(&pi, &in, 1);
    T_INT_EQ(answers, 1);
    T_OK(rtt >= 0);
    cv_tunnelprobe_free(p);
    /* It goes on, from another address. */
    static const struct cv_ip other = {CV_AF_IP4, {10, 0, 0, 9}};
    T_REQUIRE(cv_tunnelprobe_start(loop, &pi, &from, &to, true, on_answer, NULL, &p) == 0);
    cv_tunnelprobe_set_from(p, &other);
    for (unsigned i = 1; i <= 2; i++) {
        TURN_UNTIL(loop, cv_tunnelprobe_sent(p) == i);
        T_INT_EQ(last[15], 9);
        turn_round(last);
        cv_pktif_input(&pi, &in, 1);
        T_INT_EQ(answers, 1 + i);
    }
    cv_tunnelprobe_free(p);
    cv_tunnelprobe_free(NULL);
    T_OK(!cv_pktif_is_attached(&pi));
    test_loop_end(loop);
}

int main(void)
{
    T_RUN(test_codec);
    T_RUN(test_probe);
    return t_done();
}
