/* The PROXY protocol: good and bad headers of both versions at every split point, and what we write
 * read back. */
#include "proto/proxy_protocol.h"

#include "common/alloc.h"
#include "common/err.h"
#include "tap.h"

#define SIG "\r\n\r\n\0\r\nQUIT\n"

/* Decode a copy of exact length, so that a read beyond the end is seen by the sanitizer. */
static int decode(const void *in, size_t len, struct cv_proxy_protocol *ret_h, size_t *ret_used)
{
    uint8_t *p = cv_alloc(len > 0 ? len : 1);
    memcpy(p, in, len);
    int ret = cv_proxy_protocol_decode(p, len, ret_h, ret_used);
    if (ret == 0)
        ret_h->tlvs = NULL; /* the copy goes */
    cv_free(p);
    return ret;
}

static bool endpoint_is(const struct cv_endpoint *ep, const char *text)
{
    char buf[CV_ENDPOINT_STRLEN];
    return T_STR_EQ(ep->ip.family != CV_AF_NONE ? cv_endpoint_format(ep, buf) : "", text);
}

struct good {
    const char *in;
    size_t len;
    int version, kind;
    const char *src, *dst;
};
#define LIT(s) (s), sizeof(s) - 1
#define PROXY  CV_PROXY_PROTOCOL_PROXY
#define UNKNWN CV_PROXY_PROTOCOL_UNKNOWN
#define LOCAL  CV_PROXY_PROTOCOL_LOCAL

static const struct good goods[] = {
    {LIT("PROXY TCP4 192.0.2.7 198.51.100.1 51000 443\r\n"), 1, PROXY, "192.0.2.7:51000",
     "198.51.100.1:443"},
    {LIT("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"), 1, PROXY,
     "255.255.255.255:65535", "255.255.255.255:65535"},
    {LIT("PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n"), 1, PROXY, "0.0.0.0:0", "0.0.0.0:0"},
    {LIT("PROXY TCP6 2001:db8::1 ::1 1 2\r\n"), 1, PROXY, "[2001:db8::1]:1", "[::1]:2"},
    {LIT("PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff "
         "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"),
     1, PROXY, "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
     "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"},
    {LIT("PROXY TCP6 ::ffff:192.0.2.7 2001:db8::1 5 6\r\n"), 1, PROXY, "192.0.2.7:5",
     "[2001:db8::1]:6"},
    {LIT("PROXY UNKNOWN\r\n"), 1, UNKNWN, "", ""},
    {LIT("PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535 and more\r\n"), 1, UNKNWN, "",
     ""},
    {LIT(SIG "\x20\x00\x00\x00"), 2, LOCAL, "", ""},
    {LIT(SIG "\x20\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02"), 2, LOCAL, "", ""},
    {LIT(SIG "\x20\xff\x00\x01\x00"), 2, LOCAL, "", ""},
    {LIT(SIG "\x21\x00\x00\x00"), 2, UNKNWN, "", ""},
    {LIT(SIG "\x21\x00\x00\x03\x00\x00\x00"), 2, UNKNWN, "", ""},
    {LIT(SIG "\x21\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\x00\x50"), 2, PROXY,
     "1.2.3.4:258", "5.6.7.8:80"},
    {LIT(SIG "\x21\x21\x00\x24"
             "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01"
             "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02"
             "\x00\x07\x00\x08"),
     2, PROXY, "[2001:db8::1]:7", "[2001:db8::2]:8"},
    {LIT(SIG "\x21\x21\x00\x24"
             "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01"
             "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x02"
             "\x00\x07\x00\x08"),
     2, PROXY, "10.0.0.1:7", "10.0.0.2:8"},
};

/* The outcome of each good header is the same at every split, with and without bytes behind it. */
static void test_good(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(goods); i++) {
        const struct good *g = &goods[i];
        uint8_t more[300];
        struct cv_proxy_protocol h = {0};
        size_t used = 0;
        for (size_t cut = 0; cut < g->len; cut++)
            if (!T_INT_EQ(decode(g->in, cut, &h, &used), CV_E_MORE))
                printf("#   row %zu cut %zu\n", i, cut);
        memcpy(more, g->in, g->len);
        memcpy(more + g->len, "\r\n\r\n", 4);
        for (size_t extra = 0; extra <= 4; extra++) {
            if (!T_INT_EQ(decode(more, g->len + extra, &h, &used), 0))
                printf("#   row %zu\n", i);
            T_INT_EQ(used, g->len);
            T_INT_EQ(h.version, g->version);
            T_INT_EQ(h.kind, g->kind);
            endpoint_is(&h.src, g->src);
            endpoint_is(&h.dst, g->dst);
        }
    }
}

static void test_bad(void)
{
    static const struct {
        const char *in;
        size_t len;
        int ret;
        size_t first; /* the fault shows with so many bytes */
    } t[] = {
        {LIT("\x05\x01\x00"), CV_E_PROTO, 1},
        {LIT("GET / HTTP/1.1\r\n"), CV_E_PROTO, 1},
        {LIT("POST / HTTP/1.1\r\n"), CV_E_PROTO, 2},
        {LIT("proxy TCP4 1.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 1},
        {LIT("PROXY\tTCP4 1.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 6},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 1 1\n"), CV_E_PROTO, 31},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\r\n"), CV_E_PROTO, 32},
        {LIT("PROXY UNKNOWN a\tb\r\n"), CV_E_PROTO, 16},
        {LIT("PROXY UNKNOWN a\x80\r\n"), CV_E_PROTO, 16},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n"), CV_E_PROTO, 30},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n"), CV_E_PROTO, 33},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 1 1 1\r\n"), CV_E_PROTO, 34},
        {LIT("PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 33},
        {LIT("PROXY TCP4 1.2.3 1.2.3.4 1 1\r\n"), CV_E_PROTO, 30},
        {LIT("PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 33},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.256 1 1\r\n"), CV_E_PROTO, 34},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 01 1\r\n"), CV_E_PROTO, 33},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 +1 1\r\n"), CV_E_PROTO, 33},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n"), CV_E_PROTO, 36},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4 111111 1\r\n"), CV_E_PROTO, 37},
        {LIT("PROXY TCP4 1.2.3.4 1.2.3.4  1\r\n"), CV_E_PROTO, 31},
        {LIT("PROXY TCP4 ::1 ::1 1 1\r\n"), CV_E_PROTO, 24},
        {LIT("PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 32},
        {LIT("PROXY TCP6 ::1 fe80::1%lo 1 1\r\n"), CV_E_PROTO, 31},
        {LIT("PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 32},
        {LIT("PROXY UDP4 1.2.3.4 1.2.3.4 1 1\r\n"), CV_E_PROTO, 32},
        {LIT("PROXY UNKNOWNX\r\n"), CV_E_PROTO, 16},
        {LIT("PROXY \r\n"), CV_E_PROTO, 8},
        /* Longer than the longest line: nothing more is waited for. */
        {LIT("PROXY UNKNOWN 0123456789012345678901234567890123456789012345678901234567890123456789"
             "0123456789012345678901234567890123456789"),
         CV_E_PROTO, CV_PROXY_PROTOCOL_V1_MAX},
        {LIT("\r\n\r\nA"), CV_E_PROTO, 5},
        {LIT("\r\n\r\n\0\r\nQUIT\r"), CV_E_PROTO, 12},
        {LIT(SIG "\x11\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02"), CV_E_PROTO,
         13},
        {LIT(SIG "\x22\x11\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02"), CV_E_PROTO,
         13},
        {LIT(SIG "\x21\x10\x00\x00"), CV_E_PROTO, 14},
        {LIT(SIG "\x21\x01\x00\x00"), CV_E_PROTO, 14},
        {LIT(SIG "\x21\x13\x00\x00"), CV_E_PROTO, 14},
        {LIT(SIG "\x21\x41\x00\x00"), CV_E_PROTO, 14},
        {LIT(SIG "\x21\x12\x00\x00"), CV_E_UNSUPPORTED, 14},
        {LIT(SIG "\x21\x22\x00\x00"), CV_E_UNSUPPORTED, 14},
        {LIT(SIG "\x21\x32\x00\x00"), CV_E_UNSUPPORTED, 14},
        {LIT(SIG "\x21\x11\x10\x01"), CV_E_LIMIT, 16},
        {LIT(SIG "\x20\x00\xff\xff"), CV_E_LIMIT, 16},
        {LIT(SIG "\x21\x11\x00\x0b\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00"), CV_E_PROTO, 27},
        {LIT(SIG "\x21\x21\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02"), CV_E_PROTO,
         28},
        {LIT(SIG "\x21\x31\x00\x02//"), CV_E_PROTO, 18},
        /* TLVs: a header that is cut, a value that is cut, a checksum of the wrong size. */
        {LIT(SIG "\x21\x11\x00\x0e\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02\x04\x00"),
         CV_E_PROTO, 30},
        {LIT(SIG
             "\x21\x11\x00\x10\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02\x04\x00\x02\x00"),
         CV_E_PROTO, 32},
        {LIT(SIG
             "\x21\x11\x00\x10\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02\x03\x00\x01\x00"),
         CV_E_PROTO, 32},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_proxy_protocol h;
        size_t used;
        for (size_t n = 0; n <= t[i].len; n++) {
            int want = n < t[i].first ? CV_E_MORE : t[i].ret;
            if (!T_INT_EQ(decode(t[i].in, n, &h, &used), want))
                printf("#   row %zu, %zu bytes\n", i, n);
        }
    }
}

/* A line of exactly 107 bytes is the longest that is good. */
static void test_longest_line(void)
{
    struct cv_proxy_protocol h;
    size_t used;
    char line[CV_PROXY_PROTOCOL_V1_MAX + 1];
    memset(line, 'x', sizeof(line));
    memcpy(line, "PROXY UNKNOWN ", 14);
    memcpy(line + CV_PROXY_PROTOCOL_V1_MAX - 2, "\r\n", 2);
    T_INT_EQ(decode(line, CV_PROXY_PROTOCOL_V1_MAX, &h, &used), 0);
    T_INT_EQ(used, CV_PROXY_PROTOCOL_V1_MAX);
    memcpy(line + CV_PROXY_PROTOCOL_V1_MAX - 2, "x\r\n", 3);
    T_INT_EQ(decode(line, sizeof(line), &h, &used), CV_E_PROTO);
}

/* A checksum and what stands beside it. */
static void test_tlvs(void)
{
    static const uint8_t in[] = {
        0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51,
        0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0x00, 0x0c + 7 + 8, /* checksum, authority */
        10,   0,    0,    1,    10,   0,    0,    2,
        0x10, 0x00, 0x00, 0x50, 0x03, 0x00, 0x04, 0,
        0,    0,    0,    0x02, 0x00, 0x05, 'h',  '.',
        'e',  'x',  '!'};
    uint8_t buf[sizeof(in)];
    memcpy(buf, in, sizeof(in));
    /* CRC-32C of those bytes, by a table-driven implementation that shares nothing with ours. */
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++)
            v = v & 1 ? v >> 1 ^ 0x82f63b78u : v >> 1;
        table[i] = v;
    }
    for (size_t i = 0; i < sizeof(in); i++)
        crc = table[(crc ^ in[i]) & 0xff] ^ crc >> 8;
    crc = ~crc;
    for (int i = 0; i < 4; i++)
        buf[31 + i] = (uint8_t)(crc >> (24 - 8 * i));
    struct cv_proxy_protocol h;
    size_t used, len = 0;
    for (size_t n = 0; n < sizeof(buf); n++)
        T_INT_EQ(decode(buf, n, &h, &used), CV_E_MORE);
    T_INT_EQ(cv_proxy_protocol_decode(buf, sizeof(buf), &h, &used), 0);
    T_INT_EQ(used, sizeof(buf));
    T_INT_EQ(h.tlvs_len, 15);
    const uint8_t *v = cv_proxy_protocol_tlv(&h, CV_PROXY_PROTOCOL_TLV_AUTHORITY, &len);
    T_REQUIRE(v != NULL);
    T_INT_EQ(len, 5);
    T_MEM_EQ(v, "h.ex!", 5);
    T_OK(cv_proxy_protocol_tlv(&h, CV_PROXY_PROTOCOL_TLV_UNIQUE_ID, &len) == NULL);
    /* Any changed byte behind the signature is noticed. */
    for (size_t i = CV_PROXY_PROTOCOL_V2_HEAD; i < sizeof(buf); i++) {
        buf[i] ^= 1;
        int ret = cv_proxy_protocol_decode(buf, sizeof(buf), &h, &used);
        if (i != 28) /* the checksum's type: then it is another TLV */
            T_INT_EQ(ret, CV_E_PROTO);
        buf[i] ^= 1;
    }
}

/* The longest body that is accepted, and the AF_UNIX form. */
static void test_long(void)
{
    static uint8_t buf[CV_PROXY_PROTOCOL_MAX];
    struct cv_proxy_protocol h;
    size_t used;
    memcpy(buf, SIG "\x21\x31\x10\x00", 16);
    size_t tlv = CV_PROXY_PROTOCOL_V2_BODY - 216;
    buf[16 + 216] = 0x04;
    buf[16 + 216 + 1] = (uint8_t)((tlv - 3) >> 8);
    buf[16 + 216 + 2] = (uint8_t)(tlv - 3);
    T_INT_EQ(decode(buf, sizeof(buf) - 1, &h, &used), CV_E_MORE);
    T_INT_EQ(decode(buf, sizeof(buf), &h, &used), 0);
    T_INT_EQ(used, sizeof(buf));
    T_INT_EQ(h.kind, UNKNWN);
    T_INT_EQ(h.tlvs_len, tlv);
    endpoint_is(&h.src, "");
}

static struct cv_endpoint endpoint(const char *ip, uint16_t port)
{
    struct cv_endpoint ep = {.port = port};
    if (ip[0] != '\0')
        T_INT_EQ(cv_ip_parse(ip, strlen(ip), &ep.ip), 0);
    return ep;
}

static void test_encode(void)
{
    static const struct {
        int version, kind;
        const char *src, *dst; /* port 1000 and 80 */
        const char *out;
        size_t len;
    } t[] = {
        {1, PROXY, "10.0.0.1", "10.0.0.2", LIT("PROXY TCP4 10.0.0.1 10.0.0.2 1000 80\r\n")},
        {1, PROXY, "2001:db8::1", "::1", LIT("PROXY TCP6 2001:db8::1 ::1 1000 80\r\n")},
        {1, PROXY, "10.0.0.1", "2001:db8::1",
         LIT("PROXY TCP6 ::ffff:10.0.0.1 2001:db8::1 1000 80\r\n")},
        {1, PROXY, "", "10.0.0.2", LIT("PROXY UNKNOWN\r\n")},
        {1, PROXY, "10.0.0.2", "", LIT("PROXY UNKNOWN\r\n")},
        {1, UNKNWN, "10.0.0.1", "10.0.0.2", LIT("PROXY UNKNOWN\r\n")},
        {1, LOCAL, "10.0.0.1", "10.0.0.2", LIT("PROXY UNKNOWN\r\n")},
        {2, PROXY, "10.0.0.1", "10.0.0.2",
         LIT(SIG "\x21\x11\x00\x0c\x0a\0\0\x01\x0a\0\0\x02\x03\xe8\0\x50")},
        {2, PROXY, "::1", "10.0.0.2",
         LIT(SIG "\x21\x21\x00\x24\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\xff\xff"
                 "\x0a\0\0\x02\x03\xe8\0\x50")},
        {2, PROXY, "", "", LIT(SIG "\x21\x00\x00\x00")},
        {2, UNKNWN, "10.0.0.1", "10.0.0.2", LIT(SIG "\x21\x00\x00\x00")},
        {2, LOCAL, "10.0.0.1", "10.0.0.2", LIT(SIG "\x20\x00\x00\x00")},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_proxy_protocol h = {.version = (enum cv_proxy_protocol_version)t[i].version,
                                      .kind = (enum cv_proxy_protocol_kind)t[i].kind,
                                      .src = endpoint(t[i].src, 1000),
                                      .dst = endpoint(t[i].dst, 80)};
        uint8_t out[CV_PROXY_PROTOCOL_OUT_MAX];
        size_t n = cv_proxy_protocol_encode(out, &h);
        if (!T_INT_EQ(n, t[i].len))
            printf("#   row %zu\n", i);
        else
            T_MEM_EQ(out, t[i].out, n);
    }
}

/* The longest addresses fit, and come back. */
static void test_round_trip(void)
{
    const char *longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    for (int version = 1; version <= 2; version++) {
        struct cv_proxy_protocol h = {.version = (enum cv_proxy_protocol_version)version,
                                      .kind = CV_PROXY_PROTOCOL_PROXY,
                                      .src = endpoint(longest, 65535),
                                      .dst = endpoint(longest, 65535)};
        struct cv_proxy_protocol got = {0};
        uint8_t out[CV_PROXY_PROTOCOL_OUT_MAX];
        size_t used = 0, n = cv_proxy_protocol_encode(out, &h);
        T_INT_EQ(decode(out, n, &got, &used), 0);
        T_INT_EQ(used, n);
        T_INT_EQ(got.kind, h.kind);
        T_OK(cv_ip_equal(&got.src.ip, &h.src.ip) && got.src.port == h.src.port);
        T_OK(cv_ip_equal(&got.dst.ip, &h.dst.ip) && got.dst.port == h.dst.port);
    }
}

int main(void)
{
    T_RUN(test_good);
    T_RUN(test_bad);
    T_RUN(test_longest_line);
    T_RUN(test_tlvs);
    T_RUN(test_long);
    T_RUN(test_encode);
    T_RUN(test_round_trip);
    return t_done();
}
