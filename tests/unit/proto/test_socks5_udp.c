#include "proto/socks5_udp.h"

#include "common/err.h"
#include "tap.h"

struct bytes {
    size_t len;
    const char *b;
};
#define B(s) {sizeof(s) - 1, s}

static void test_parse(void)
{
    static const struct {
        struct bytes in;
        int ret;
        const char *target; /* NULL: it has none */
        const char *data;
    } t[] = {
        {B("\0\0\0\x01\x01\x02\x03\x04\x00\x35hello"), 0, "1.2.3.4:53", "hello"},
        {B("\0\0\0\x01\x01\x02\x03\x04\x00\x35"), 0, "1.2.3.4:53", ""},
        /* RSV is not looked at. */
        {B("\x12\x34\0\x01\x01\x02\x03\x04\x00\x35x"), 0, "1.2.3.4:53", "x"},
        {B("\0\0\0\x03\x07"
           "A.test.\x01\xbbx"),
         0, "a.test:443", "x"},
        {B("\0\0\0\x03\x05"
           "127.1\x01\xbbx"),
         0, "127.0.0.1:443", "x"},
        {B("\0\0\0\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50x"), 0, "[2001:db8::1]:80",
         "x"},
        {B("\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\x00\x50x"), 0, "10.0.0.1:80", "x"},
        {B("\0\0\0\x01\x01\x02\x03\x04\x00\x00x"), 0, NULL, "x"},
        {B("\0\0\0\x03\x03"
           "a b\x00\x50x"),
         0, NULL, "x"},
        {B("\0\0\x01\x01\x01\x02\x03\x04\x00\x35x"), CV_E_UNSUPPORTED, NULL, NULL},
        {B("\0\0\x80\x01\x01\x02\x03\x04\x00\x35x"), CV_E_UNSUPPORTED, NULL, NULL},
        {B("\0\0\0\x02\x01\x02\x03\x04\x00\x35x"), CV_E_PROTO, NULL, NULL},
        {B("\0\0\0\x03\0\x00\x35x"), CV_E_PROTO, NULL, NULL},
        {B("\0\0\0\x03\xff"
           "abc\x00\x35"),
         CV_E_PROTO, NULL, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_dgram d;
        struct cv_target target;
        char text[CV_TARGET_STRLEN];
        printf("# %zu\n", i);
        int ret = cv_socks5_dgram_parse((const uint8_t *)t[i].in.b, t[i].in.len, &d);
        T_INT_EQ(ret, t[i].ret);
        if (ret != 0 || t[i].ret != 0)
            continue;
        T_INT_EQ(d.len, strlen(t[i].data));
        T_MEM_EQ(d.data, t[i].data, d.len);
        ret = cv_socks5_dgram_target(d.key, d.key_len, &target);
        if (t[i].target == NULL)
            T_INT_EQ(ret, CV_E_PARSE);
        else if (T_INT_EQ(ret, 0))
            T_STR_EQ(cv_target_format(&target, text), t[i].target);
    }
}

/* Cut anywhere, a header is none. */
static void test_every_length(void)
{
    static const struct bytes t[] = {
        B("\0\0\0\x01\x01\x02\x03\x04\x00\x35"),
        B("\0\0\0\x03\x03"
          "abc\x00\x35"),
        B("\0\0\0\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50"),
    };
    struct cv_socks5_dgram d;
    struct cv_target target;
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        const uint8_t *b = (const uint8_t *)t[i].b;
        for (size_t n = 0; n < t[i].len; n++) {
            T_INT_EQ(cv_socks5_dgram_parse(b, n, &d), CV_E_PROTO);
            if (n >= 3)
                T_INT_EQ(cv_socks5_dgram_target(b + 3, n - 3, &target), CV_E_PARSE);
        }
        T_INT_EQ(cv_socks5_dgram_parse(b, t[i].len, &d), 0);
        T_INT_EQ(d.key_len, t[i].len - 3);
        T_OK(d.key == b + 3 && d.len == 0);
    }
}

static void test_encode(void)
{
    uint8_t out[CV_SOCKS5_UDP_HEAD_MAX];
    struct cv_endpoint ep, got;
    struct cv_socks5_dgram d;
    struct cv_target target, back;
    char text[CV_ENDPOINT_STRLEN];
    static const char *const senders[] = {"1.2.3.4", "2001:db8::1", "::"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(senders); i++) {
        T_INT_EQ(cv_ip_parse(senders[i], strlen(senders[i]), &ep.ip), 0);
        ep.port = 0x1234;
        size_t n = cv_socks5_dgram_encode_from(out, &ep);
        T_INT_EQ(n, ep.ip.family == CV_AF_IP4 ? 10 : CV_SOCKS5_UDP_FROM_MAX);
        T_INT_EQ(cv_socks5_dgram_parse(out, n, &d), 0);
        cv_socks5_dgram_from(&d, &got);
        T_OK(cv_ip_equal(&got.ip, &ep.ip) && got.port == 0x1234);
    }
    static const char *const targets[] = {"1.2.3.4:53", "[2001:db8::1]:53", "a.test:53"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(targets); i++) {
        T_INT_EQ(cv_target_parse(targets[i], strlen(targets[i]), 0, &target), 0);
        size_t n = cv_socks5_dgram_encode_to(out, &target);
        T_INT_EQ(cv_socks5_dgram_parse(out, n, &d), 0);
        T_INT_EQ(d.len, 0);
        T_INT_EQ(cv_socks5_dgram_target(d.key, d.key_len, &back), 0);
        char a[CV_TARGET_STRLEN];
        T_STR_EQ(cv_target_format(&back, a), targets[i]);
    }
    /* The longest name there is. */
    target.host = (struct cv_host){.name_len = CV_NAME_MAX};
    memset(target.host.name, 'a', CV_NAME_MAX);
    T_INT_EQ(cv_socks5_dgram_encode_to(out, &target), 3 + 2 + CV_NAME_MAX + 2);

    /* A mapped sender is its IPv4 address, a name is nobody. */
    static const uint8_t mapped[] = "\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\x00\x50";
    T_INT_EQ(cv_socks5_dgram_parse(mapped, sizeof(mapped) - 1, &d), 0);
    cv_socks5_dgram_from(&d, &got);
    T_STR_EQ(cv_endpoint_format(&got, text), "10.0.0.1:80");
    static const uint8_t named[] = "\0\0\0\x03\x01"
                                   "a\x00\x50";
    T_INT_EQ(cv_socks5_dgram_parse(named, sizeof(named) - 1, &d), 0);
    cv_socks5_dgram_from(&d, &got);
    T_INT_EQ(got.ip.family, CV_AF_NONE);
    /* It is written as it came, also onto itself. */
    memcpy(out, named, sizeof(named) - 1);
    T_INT_EQ(cv_socks5_dgram_encode_name(out, out + 5, 1, 80), sizeof(named) - 1);
    T_MEM_EQ(out, named, sizeof(named) - 1);
    memmove(out + 20, out + 5, 1);
    T_INT_EQ(cv_socks5_dgram_encode_name(out, out + 20, 1, 80), sizeof(named) - 1);
    T_MEM_EQ(out, named, sizeof(named) - 1);
}

int main(void)
{
    T_RUN(test_parse);
    T_RUN(test_every_length);
    T_RUN(test_encode);
    return t_done();
}
