#include "net/quicsniff.h"

#include "common/alloc.h"
#include "common/err.h"
#include "quic_samples.h"
#include "tap.h"

#define MORE CV_SNIFF_NONE

/* The outcome of one datagram, given in memory of exact size; MORE when there is none yet. */
static enum cv_sniff_outcome look(struct cv_quicsniff *q, const void *p, size_t len,
                                  struct cv_host *h)
{
    enum cv_sniff_outcome o = MORE;
    uint8_t *exact = cv_alloc(len + 1);
    memcpy(exact, p, len);
    int ret = cv_quicsniff_look(q, exact, len, &o, h);
    cv_free(exact);
    T_OK(ret == 0 || (ret == CV_E_MORE && o == MORE));
    return o;
}

static enum cv_sniff_outcome look_once(const void *p, size_t len, struct cv_host *h)
{
    struct cv_quicsniff *q = cv_quicsniff_new();
    enum cv_sniff_outcome o = look(q, p, len, h);
    cv_quicsniff_free(q);
    return o;
}

static void test_published_packets(void)
{
    struct cv_host h;
    T_OK(cv_quicsniff_is_initial(quic_v1, sizeof(quic_v1)));
    T_INT_EQ(look_once(quic_v1, sizeof(quic_v1), &h), CV_SNIFF_QUIC);
    T_STR_EQ(h.name, "example.com");
    T_OK(cv_quicsniff_is_initial(quic_v2, sizeof(quic_v2)));
    T_INT_EQ(look_once(quic_v2, sizeof(quic_v2), &h), CV_SNIFF_QUIC);
    T_STR_EQ(h.name, "example.com");
}

static void test_real_client(void)
{
    struct cv_host h;
    T_INT_EQ(look_once(quic_ngtcp2, sizeof(quic_ngtcp2), &h), CV_SNIFF_QUIC);
    T_STR_EQ(h.name, "localhost");
}

/* Three packets in two datagrams, frames mixed; either datagram may come first. */
static void test_flight(void)
{
    struct cv_host h;
    for (int swap = 0; swap < 2; swap++) {
        struct cv_quicsniff *q = cv_quicsniff_new();
        T_INT_EQ(look(q, swap ? quic_mixed2 : quic_mixed1,
                      swap ? sizeof(quic_mixed2) : sizeof(quic_mixed1), &h),
                 MORE);
        T_INT_EQ(look(q, "\x40short header", 13, &h), MORE);
        T_INT_EQ(look(q, swap ? quic_mixed1 : quic_mixed2,
                      swap ? sizeof(quic_mixed1) : sizeof(quic_mixed2), &h),
                 CV_SNIFF_QUIC);
        T_STR_EQ(h.name, "example.com");
        cv_quicsniff_free(q);
    }
}

static void test_early_data_before(void)
{
    struct cv_host h;
    T_INT_EQ(look_once(quic_zerortt, sizeof(quic_zerortt), &h), CV_SNIFF_QUIC);
    T_STR_EQ(h.name, "example.com");
}

/* New keys after a Retry, or with a new connection; a packet that nobody can open changes nothing.
 */
static void test_retry(void)
{
    struct cv_host h;
    uint8_t forged[sizeof(quic_retry2)];
    struct cv_quicsniff *q = cv_quicsniff_new();
    T_INT_EQ(look(q, quic_retry1, sizeof(quic_retry1), &h), MORE);
    memcpy(forged, quic_retry2, sizeof(forged));
    forged[sizeof(forged) - 1] ^= 1;
    T_INT_EQ(look(q, forged, sizeof(forged), &h), MORE);
    T_INT_EQ(look(q, quic_retry2, sizeof(quic_retry2), &h), CV_SNIFF_QUIC);
    T_STR_EQ(h.name, "example.com");
    cv_quicsniff_free(q);

    q = cv_quicsniff_new();
    T_INT_EQ(look(q, quic_mixed1, sizeof(quic_mixed1), &h), MORE);
    T_INT_EQ(look(q, forged, sizeof(forged), &h), MORE);
    T_INT_EQ(look(q, quic_mixed2, sizeof(quic_mixed2), &h), CV_SNIFF_QUIC);
    cv_quicsniff_free(q);
}

static void test_no_name(void)
{
    struct cv_host h;
    T_INT_EQ(look_once(quic_noname, sizeof(quic_noname), &h), CV_SNIFF_UNSUPPORTED);
    T_INT_EQ(look_once(quic_long, sizeof(quic_long), &h), CV_SNIFF_LIMIT);
    T_INT_EQ(look_once(quic_badframe, sizeof(quic_badframe), &h), CV_SNIFF_MALFORMED);
    T_INT_EQ(look_once(quic_nothello, sizeof(quic_nothello), &h), CV_SNIFF_MALFORMED);
    T_INT_EQ(look_once("\0\1\2", 3, &h), CV_SNIFF_UNSUPPORTED);
    T_INT_EQ(look_once("", 0, &h), CV_SNIFF_UNSUPPORTED);
    T_OK(!cv_quicsniff_is_initial("\0\1\2", 3));
}

/* Every bit is authenticated: none may be changed, none may be missing. */
static void test_authentic(void)
{
    static uint8_t copy[sizeof(quic_v1)];
    struct cv_host h;
    for (size_t i = 0; i < sizeof(copy); i += i < 40 ? 1 : 97) {
        memcpy(copy, quic_v1, sizeof(copy));
        copy[i] ^= 0x01;
        T_OK(look_once(copy, sizeof(copy), &h) != CV_SNIFF_QUIC);
    }
    for (size_t n = 0; n < sizeof(copy); n += 41)
        T_OK(look_once(quic_v1, n, &h) != CV_SNIFF_QUIC);
}

static void test_bounded(void)
{
    struct cv_host h;
    struct cv_quicsniff *q = cv_quicsniff_new();
    int n = 0;
    while (n < 100 && look(q, quic_retry1, sizeof(quic_retry1), &h) == MORE)
        n++;
    T_INT_EQ(n, CV_QUICSNIFF_PACKETS_MAX);
    cv_quicsniff_free(q);
    cv_quicsniff_free(NULL);
}

int main(void)
{
    T_RUN(test_published_packets);
    T_RUN(test_real_client);
    T_RUN(test_flight);
    T_RUN(test_early_data_before);
    T_RUN(test_retry);
    T_RUN(test_no_name);
    T_RUN(test_authentic);
    T_RUN(test_bounded);
    return t_done();
}
