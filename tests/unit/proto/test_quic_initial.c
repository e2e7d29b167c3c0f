#include "proto/quic_initial.h"

#include "common/alloc.h"
#include "common/err.h"
#include "tap.h"

static int parse(const void *p, size_t len, struct cv_quic_packet *q)
{
    static uint8_t *exact;
    cv_free(exact);
    exact = cv_alloc(len + 1);
    memcpy(exact, p, len);
    return cv_quic_packet_parse(exact, len, q);
}
#define PARSE(s, q) parse((s), sizeof(s) - 1, (q))

#define V1 "\x00\x00\x00\x01"
#define V2 "\x6b\x33\x43\xcf"

static void test_headers(void)
{
    struct cv_quic_packet q;
    /* DCID of 2, SCID of 1, token of 3, length 4; two bytes of the next packet */
    T_INT_EQ(PARSE("\xc0" V1 "\x02\xaa\xbb\x01\xcc\x03tok\x04"
                   "1234"
                   "xx",
                   &q),
             0);
    T_INT_EQ(q.type, CV_QUIC_INITIAL);
    T_INT_EQ(q.version, CV_QUIC_V1);
    T_INT_EQ(q.pn_off, 15);
    T_INT_EQ(q.len, 19);
    T_INT_EQ(q.dcid_len, 2);
    T_MEM_EQ(q.dcid, "\xaa\xbb", 2);
    T_INT_EQ(PARSE("\xd0" V2 "\x00\x00\x00\x40\x01z", &q), 0); /* a length of two bytes */
    T_INT_EQ(q.type, CV_QUIC_INITIAL);
    T_INT_EQ(q.len, 11);

    static const struct {
        uint8_t first;
        enum cv_quic_type v1, v2;
    } types[] = {
        {0xc0, CV_QUIC_INITIAL, CV_QUIC_RETRY},
        {0xd0, CV_QUIC_0RTT, CV_QUIC_INITIAL},
        {0xe0, CV_QUIC_HANDSHAKE, CV_QUIC_0RTT},
        {0xf0, CV_QUIC_RETRY, CV_QUIC_HANDSHAKE},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(types); i++) {
        /* A token length of 0 for Initial, a length of 0 for others; enough for all. */
        uint8_t v1[] = {types[i].first, 0, 0, 0, 1, 0, 0, 0, 0};
        uint8_t v2[] = {types[i].first, 0x6b, 0x33, 0x43, 0xcf, 0, 0, 0, 0};
        T_INT_EQ(parse(v1, sizeof(v1), &q), 0);
        T_INT_EQ(q.type, types[i].v1);
        T_INT_EQ(parse(v2, sizeof(v2), &q), 0);
        T_INT_EQ(q.type, types[i].v2);
    }
}

static void test_headers_refused(void)
{
    struct cv_quic_packet q;
    T_INT_EQ(PARSE("", &q), CV_E_UNSUPPORTED);
    T_INT_EQ(PARSE("\x40" V1 "\x00\x00\x00\x00", &q), CV_E_UNSUPPORTED);   /* short header */
    T_INT_EQ(PARSE("\x80" V1 "\x00\x00\x00\x00", &q), CV_E_UNSUPPORTED);   /* no fixed bit */
    T_INT_EQ(PARSE("\xc0\x00\x00\x00\x00\x00\x00", &q), CV_E_UNSUPPORTED); /* negotiation */
    T_INT_EQ(PARSE("\xc0\xff\x00\x00\x1d\x00\x00\x00\x00", &q), CV_E_UNSUPPORTED); /* a draft */
    T_INT_EQ(PARSE("\xc0\x00\x00\x00", &q), CV_E_UNSUPPORTED);
    T_INT_EQ(PARSE("\xc0" V1 "\x15"
                   "123456789012345678901"
                   "\x00\x00\x00",
                   &q),
             CV_E_PROTO);
    T_INT_EQ(PARSE("\xc0" V1 "\x00\x15"
                   "123456789012345678901"
                   "\x00\x00",
                   &q),
             CV_E_PROTO);
    T_INT_EQ(PARSE("\xc0" V1 "\x04"
                   "123",
                   &q),
             CV_E_PROTO);
    T_INT_EQ(PARSE("\xc0" V1 "\x00\x00\x04"
                   "123",
                   &q),
             CV_E_PROTO); /* token */
    T_INT_EQ(PARSE("\xc0" V1 "\x00\x00\x00\x04"
                   "123",
                   &q),
             CV_E_PROTO); /* length */
    T_INT_EQ(PARSE("\xc0" V1 "\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff", &q), CV_E_PROTO);
    T_INT_EQ(PARSE("\xc0" V1 "\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff", &q), CV_E_PROTO);
    T_INT_EQ(PARSE("\xc0" V1 "\x00\x00", &q), CV_E_PROTO);
}

static int take(struct cv_quic_crypto *c, const void *p, size_t len)
{
    uint8_t *exact = cv_alloc(len + 1);
    memcpy(exact, p, len);
    int ret = cv_quic_crypto_take(c, exact, len);
    cv_free(exact);
    return ret;
}
#define TAKE(c, s) take((c), (s), sizeof(s) - 1)

static bool is_hello(const struct cv_quic_crypto *c, const char *want, size_t len)
{
    const uint8_t *p;
    size_t n;
    return cv_quic_crypto_hello(c, &p, &n) == 0 && n == len && memcmp(p, want, n) == 0;
}

/* Frames of any kind around it, in any order, overlapping; what was said first holds. */
static void test_stream(void)
{
    struct cv_quic_crypto c;
    const uint8_t *p;
    size_t n;
    cv_quic_crypto_init(&c);
    T_INT_EQ(cv_quic_crypto_hello(&c, &p, &n), CV_E_MORE);
    T_INT_EQ(TAKE(&c, "\x00\x00\x01\x02\x05\x01\x01\x03\x01\x01\x03\x05\x01\x00\x00\x01\x02\x03"),
             0);
    T_INT_EQ(TAKE(&c, "\x1c\x01\x02\x03why"), 0);
    T_INT_EQ(cv_quic_crypto_hello(&c, &p, &n), CV_E_MORE);
    T_INT_EQ(TAKE(&c, "\x06\x05\x03"
                      "bcd"
                      "\x00\x06\x02\x03\x00\x04"
                      "a"),
             0);
    T_INT_EQ(cv_quic_crypto_hello(&c, &p, &n), CV_E_MORE);
    T_INT_EQ(TAKE(&c, "\x06\x03\x05"
                      "\x04"
                      "XXXX"),
             0);
    T_INT_EQ(cv_quic_crypto_hello(&c, &p, &n), CV_E_MORE);
    T_INT_EQ(TAKE(&c, "\x06\x00\x00\x06\x00\x02\x01\x00"), 0);
    T_OK(is_hello(&c,
                  "\x01\x00\x00\x04"
                  "abcd",
                  8));
    T_INT_EQ(TAKE(&c, "\x06\x08\x04more"), 0); /* a second message does not matter */
    T_OK(is_hello(&c,
                  "\x01\x00\x00\x04"
                  "abcd",
                  8));
    cv_quic_crypto_done(&c);
    cv_quic_crypto_done(&c);
}

static void test_stream_refused(void)
{
    static const struct {
        const char *p;
        size_t len;
        int ret;
    } cases[] = {
        {"\x08\x00", 2, CV_E_PROTO},     /* STREAM */
        {"\x1d\x00\x00", 3, CV_E_PROTO}, /* close of the application */
        {"\x40\x06\x00\x01z", 5, 0},     /* a type that is longer than it need be */
        {"\x06", 1, CV_E_PROTO},
        {"\x06\x00\x02z", 4, CV_E_PROTO},
        {"\x06\x80\x00\x40\x00\x00", 6, 0}, /* nothing, at the very end */
        {"\x06\x80\x00\x40\x00\x01z", 7, CV_E_LIMIT},
        {"\x06\xff\xff\xff\xff\xff\xff\xff\xff\x01z", 11, CV_E_LIMIT},
        {"\x02\x01\x02", 3, CV_E_PROTO},
        {"\x02\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff\x00", 12, CV_E_PROTO},
        {"\x1c\x01\x02\x05why", 7, CV_E_PROTO},
        {"\xc0", 1, CV_E_PROTO},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_quic_crypto c;
        cv_quic_crypto_init(&c);
        if (!T_INT_EQ(take(&c, cases[i].p, cases[i].len), cases[i].ret))
            printf("#   case %zu\n", i);
        cv_quic_crypto_done(&c);
    }
    struct cv_quic_crypto c;
    const uint8_t *p;
    size_t n;
    cv_quic_crypto_init(&c);
    T_INT_EQ(TAKE(&c, "\x06\x00\x01\x02"), 0);
    T_INT_EQ(cv_quic_crypto_hello(&c, &p, &n), CV_E_PROTO); /* no ClientHello */
    cv_quic_crypto_done(&c);
    T_INT_EQ(TAKE(&c, "\x06\x00\x04\x01\x00\x40\x00"), 0);
    T_INT_EQ(cv_quic_crypto_hello(&c, &p, &n), CV_E_LIMIT); /* it would not fit */
    cv_quic_crypto_done(&c);
}

int main(void)
{
    T_RUN(test_headers);
    T_RUN(test_headers_refused);
    T_RUN(test_stream);
    T_RUN(test_stream_refused);
    return t_done();
}
