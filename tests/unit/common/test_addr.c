#include "tap.h"

#include <arpa/inet.h>
#include <stdlib.h>

#include "common/addr.h"
#include "common/err.h"

static struct cv_ip ip_of(const char *s)
{
    struct cv_ip ip = {0};
    if (cv_ip_parse(s, strlen(s), &ip) != 0)
        T_FAIL("'%s' does not parse", s);
    return ip;
}

static struct cv_prefix prefix_of(const char *s)
{
    struct cv_prefix p = {0};
    if (cv_prefix_parse(s, strlen(s), &p) != 0)
        T_FAIL("'%s' does not parse", s);
    return p;
}

static void canonical_forms(void)
{
    static const struct {
        const char *in;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"1.2.3.4", "1.2.3.4"},
        {"0.0.0.0", "0.0.0.0"},
        {"255.255.255.255", "255.255.255.255"},
        {"::", "::"},
        {"::1", "::1"},
        {"1::", "1::"},
        {"2001:DB8::A", "2001:db8::a"},
        {"2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1"},
        {"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"},
        {"1:0:3:0:0:6:0:0", "1:0:3::6:0:0"},
        {"1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"},
        {"::2:3:4:5:6:7:8", "0:2:3:4:5:6:7:8"},
        {"1::3:4:5:6:7:8", "1:0:3:4:5:6:7:8"},
        {"::ffff:1.2.3.4", "::ffff:1.2.3.4"},
        {"::ffff:102:304", "::ffff:1.2.3.4"},
        {"64:ff9b::1.2.3.4", "64:ff9b::102:304"},
        {"1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:102:304"},
        {"0000:0000:0000:0000:0000:ffff:255.255.255.255", "::ffff:255.255.255.255"},
        {"", NULL},
        {"1.2.3", NULL},
        {"1.2.3.4.", NULL},
        {".1.2.3.4", NULL},
        {"1..2.3", NULL},
        {"1.2.3.4.5", NULL},
        {"1.2.3.256", NULL},
        {"1.2.3.04", NULL},
        {"01.2.3.4", NULL},
        {"1.2.3.0x4", NULL},
        {"1.2.3.4 ", NULL},
        {" 1.2.3.4", NULL},
        {"+1.2.3.4", NULL},
        {"1.2.3.-4", NULL},
        {"1.2.3.1234567", NULL},
        {":", NULL},
        {":::", NULL},
        {"::1::", NULL},
        {"1:2:3:4:5:6:7", NULL},
        {"1:2:3:4:5:6:7:8:9", NULL},
        {"1:2:3:4:5:6:7:8::", NULL},
        {"::1:2:3:4:5:6:7:8", NULL},
        {"1:2:3:4::5:6:7:8", NULL},
        {"1:2:3:4:5:6:7:", NULL},
        {":1:2:3:4:5:6:7", NULL},
        {"1:2:3:4:5:6:7:1.2.3.4", NULL},
        {"::1.2.3", NULL},
        {"::1.2.3.4:5", NULL},
        {"::01.2.3.4", NULL},
        {"::12345", NULL},
        {"::00001", NULL},
        {"::g", NULL},
        {"::1%lo", NULL},
        {"::1%25lo", NULL},
        {"fe80::1%eth0", NULL},
        {"[::1]", NULL},
        {"::1/64", NULL},
        {"localhost", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_ip ip;
        char out[CV_IP_STRLEN];
        int ret = cv_ip_parse(cases[i].in, strlen(cases[i].in), &ip);
        bool ok = cases[i].out == NULL
                      ? T_INT_EQ(ret, CV_E_PARSE)
                      : T_INT_EQ(ret, 0) && T_STR_EQ(cv_ip_format(&ip, out), cases[i].out);
        if (!ok)
            printf("#   text '%s'\n", cases[i].in);
    }
    struct cv_ip ip;
    T_INT_EQ(cv_ip_parse("1.2.3.4\0", 8, &ip), CV_E_PARSE);
    T_INT_EQ(cv_ip_parse("1.2.3.45", 7, &ip), 0);
    T_INT_EQ(ip.b[3], 4);
    T_OK(ip.b[4] == 0 && ip.b[15] == 0);
}

static void mutated_text_parses_as_in_libc(void)
{
    static const char alphabet[] = "0123456789abcdefF::..x%";
    static const char *const seeds[] = {"192.168.10.1", "2001:db8::1:0:0:a", "::ffff:1.2.3.4",
                                        "::", "1:2:3:4:5:6:7:8"};
    srand(17);
    int accepted = 0;
    bool same = true;
    for (int i = 0; i < 200000 && same; i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s", seeds[(size_t)rand() % CV_ARRAY_SIZE(seeds)]);
        size_t len = strlen(text);
        for (int edits = rand() % 4; edits > 0; edits--) {
            size_t at = (size_t)rand() % len;
            char c = alphabet[(size_t)rand() % (sizeof(alphabet) - 1)];
            if (rand() % 2 == 0) {
                text[at] = c;
            } else {
                memmove(text + at + 1, text + at, len - at + 1);
                text[at] = c;
                len++;
            }
        }
        struct cv_ip ip;
        uint8_t want[16] = {0};
        uint8_t family = inet_pton(AF_INET, text, want) == 1    ? CV_AF_IP4
                         : inet_pton(AF_INET6, text, want) == 1 ? CV_AF_IP6
                                                                : CV_AF_NONE;
        int ret = cv_ip_parse(text, len, &ip);
        same = (ret == 0) == (family != CV_AF_NONE) &&
               (ret != 0 || (ip.family == family && memcmp(ip.b, want, 16) == 0));
        accepted += ret == 0;
        if (!same)
            printf("# text '%s'\n", text);
    }
    T_OK(same);
    T_OK(accepted > 1000);
}

static void random_addresses_format_as_in_libc(void)
{
    srand(18);
    bool same = true;
    for (int i = 0; i < 50000 && same; i++) {
        struct cv_ip ip = {.family = rand() % 4 == 0 ? CV_AF_IP4 : CV_AF_IP6};
        for (int j = 0; j < (ip.family == CV_AF_IP4 ? 4 : 16); j++)
            ip.b[j] = rand() % 3 == 0 ? (uint8_t)rand() : 0;
        if (ip.family == CV_AF_IP6)
            ip.b[0] |= 0x20; /* libc writes some low addresses in the mixed form */
        char got[CV_IP_STRLEN], want[INET6_ADDRSTRLEN];
        inet_ntop(ip.family == CV_AF_IP4 ? AF_INET : AF_INET6, ip.b, want, sizeof(want));
        cv_ip_format(&ip, got);
        struct cv_ip back;
        same = strcmp(got, want) == 0 && cv_ip_parse(got, strlen(got), &back) == 0 &&
               cv_ip_equal(&ip, &back);
        if (!same)
            printf("# got '%s', libc '%s'\n", got, want);
    }
    T_OK(same);
}

static void every_spelling_of_an_address(void)
{
    static const struct {
        const char *in;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"127.0.0.1", "127.0.0.1"},
        {"0x7f.1", "127.0.0.1"},
        {"0X7F.1", "127.0.0.1"},
        {"127.1", "127.0.0.1"},
        {"127.0.1", "127.0.0.1"},
        {"017700000001", "127.0.0.1"},
        {"2130706433", "127.0.0.1"},
        {"0x7f000001", "127.0.0.1"},
        {"0x7f.0x0.0x0.0x1", "127.0.0.1"},
        {"0177.0.0.01", "127.0.0.1"},
        {"0177.0x0.0.1", "127.0.0.1"},
        {"00000000000000177.0000.0.1", "127.0.0.1"},
        {"0x00000000000000000000007f.1", "127.0.0.1"},
        {"127.65535", "127.0.255.255"},
        {"127.16777215", "127.255.255.255"},
        {"1.2.65535", "1.2.255.255"},
        {"0", "0.0.0.0"},
        {"00", "0.0.0.0"},
        {"0x", "0.0.0.0"},
        {"0x.0x", "0.0.0.0"},
        {"1", "0.0.0.1"},
        {"4294967295", "255.255.255.255"},
        {"0xffffffff", "255.255.255.255"},
        {"037777777777", "255.255.255.255"},
        {"169.254.169.254", "169.254.169.254"},
        {"0xa9fea9fe", "169.254.169.254"},
        {"169.16689662", "169.254.169.254"},
        {"2852039166", "169.254.169.254"},
        {"0251.0376.0251.0376", "169.254.169.254"},
        {"[::1]", "::1"},
        {"[::ffff:127.0.0.1]", "::ffff:127.0.0.1"},
        {"::1", "::1"},
        {"", NULL},
        {"4294967296", NULL},
        {"0x100000000", NULL},
        {"040000000000", NULL},
        {"99999999999999999999999999", NULL},
        {"18446744073709551617", NULL}, /* 2^64 + 1 */
        {"256.1", NULL},
        {"127.16777216", NULL},
        {"1.2.65536", NULL},
        {"1.2.3.256", NULL},
        {"1.2.256.4", NULL},
        {"1.2.3.4.5", NULL},
        {"1.2.3.4.", NULL},
        {"127..1", NULL},
        {".127.1", NULL},
        {"08", NULL},
        {"09.1", NULL},
        {"0xg", NULL},
        {"1x2", NULL},
        {"7f.1", NULL},
        {"-1", NULL},
        {"+1", NULL},
        {"1 ", NULL},
        {" 1", NULL},
        {"1e3", NULL},
        {"0b1", NULL},
        {"0o17", NULL},
        {"127.1%00", NULL},
        {"[1.2.3.4]", NULL},
        {"[127.1]", NULL},
        {"[::1", NULL},
        {"::1]", NULL},
        {"[]", NULL},
        {"[[::1]]", NULL},
        {"[::1%25lo]", NULL},
        {"localhost", NULL},
        {"a.1", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_ip ip;
        char out[CV_IP_STRLEN];
        int ret = cv_ip_parse_any(cases[i].in, strlen(cases[i].in), &ip);
        bool ok = cases[i].out == NULL
                      ? T_INT_EQ(ret, CV_E_PARSE)
                      : T_INT_EQ(ret, 0) && T_STR_EQ(cv_ip_format(&ip, out), cases[i].out);
        if (!ok)
            printf("#   text '%s'\n", cases[i].in);
    }
}

/* libc is more lenient at the end of the text (blanks); otherwise both must agree. */
static void random_spellings_parse_as_in_libc(void)
{
    static const char alphabet[] = "0123456789abcdefxX....";
    srand(19);
    int accepted = 0;
    bool same = true;
    for (int i = 0; i < 300000 && same; i++) {
        char text[24];
        size_t len = 1 + (size_t)rand() % 14;
        for (size_t j = 0; j < len; j++)
            text[j] = rand() % 3 == 0 ? alphabet[(size_t)rand() % (sizeof(alphabet) - 1)]
                                      : "01.7x"[rand() % 5];
        text[len] = '\0';
        struct cv_ip ip;
        struct in_addr want;
        bool libc = inet_aton(text, &want) != 0;
        bool ours = cv_ip_parse_any(text, len, &ip) == 0;
        accepted += ours;
        /* Not taken by this libc, but by browsers: a lone 0x. */
        bool lone_0x = false;
        for (const char *p = text; (p = strpbrk(p, "xX")) != NULL; p++)
            lone_0x = lone_0x || p[1] == '.' || p[1] == '\0';
        same = lone_0x || (libc == ours && (!ours || memcmp(ip.b, &want, 4) == 0));
        if (!same)
            printf("# text '%s', libc %d\n", text, libc);
    }
    T_OK(same);
    T_OK(accepted > 1000);
}

static void prefixes(void)
{
    static const struct {
        const char *in;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"10.0.0.0/8", "10.0.0.0/8"},
        {"10.1.2.3/8", "10.0.0.0/8"},
        {"10.1.2.3", "10.1.2.3/32"},
        {"255.255.255.255/1", "128.0.0.0/1"},
        {"1.2.3.4/0", "0.0.0.0/0"},
        {"1.2.3.255/31", "1.2.3.254/31"},
        {"2001:db8:ffff::1/33", "2001:db8:8000::/33"},
        {"::1", "::1/128"},
        {"ffff::/0", "::/0"},
        {"::ffff:10.0.0.0/104", "::ffff:10.0.0.0/104"},
        {"", NULL},
        {"/8", NULL},
        {"10.0.0.0/", NULL},
        {"10.0.0.0/33", NULL},
        {"10.0.0.0/08", NULL},
        {"10.0.0.0/+8", NULL},
        {"10.0.0.0/-1", NULL},
        {"10.0.0.0/8 ", NULL},
        {"10.0.0.0/8/8", NULL},
        {"10.0.0.0/255.0.0.0", NULL},
        {"10/8", NULL},
        {"::/129", NULL},
        {"::/999999999999", NULL},
        {"::1%lo/64", NULL},
        {"[::1]/64", NULL},
        {"example.com/8", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_prefix p;
        char out[CV_PREFIX_STRLEN];
        int ret = cv_prefix_parse(cases[i].in, strlen(cases[i].in), &p);
        bool ok = cases[i].out == NULL
                      ? T_INT_EQ(ret, CV_E_PARSE)
                      : T_INT_EQ(ret, 0) && T_STR_EQ(cv_prefix_format(&p, out), cases[i].out);
        if (!ok)
            printf("#   text '%s'\n", cases[i].in);
    }
}

static bool contains_bit_by_bit(const struct cv_prefix *p, const struct cv_ip *ip)
{
    if (p->ip.family != ip->family)
        return false;
    for (unsigned i = 0; i < p->len; i++) {
        if (((p->ip.b[i / 8] ^ ip->b[i / 8]) >> (7 - i % 8) & 1) != 0)
            return false;
    }
    return true;
}

static void contains_and_covers(void)
{
    srand(23);
    bool same = true;
    for (int i = 0; i < 100000 && same; i++) {
        struct cv_prefix p = {.ip.family = rand() % 2 == 0 ? CV_AF_IP4 : CV_AF_IP6};
        unsigned bits = p.ip.family == CV_AF_IP4 ? 32 : 128;
        struct cv_ip ip = {.family = rand() % 20 == 0 ? CV_AF_IP4 : p.ip.family};
        p.len = (uint8_t)((unsigned)rand() % (bits + 1));
        unsigned flip = (unsigned)rand() % bits;
        for (unsigned j = 0; j < bits / 8; j++) {
            p.ip.b[j] = (uint8_t)rand();
            ip.b[j] = p.ip.b[j];
        }
        ip.b[flip / 8] ^= (uint8_t)(0x80 >> flip % 8);
        struct cv_prefix inner = {ip, (uint8_t)((unsigned)rand() % (bits + 1))};
        same = cv_prefix_contains(&p, &ip) == contains_bit_by_bit(&p, &ip) &&
               cv_prefix_covers(&p, &inner) ==
                   (p.len <= inner.len && contains_bit_by_bit(&p, &inner.ip));
    }
    T_OK(same);
}

static void embedded_addresses(void)
{
    static const struct {
        const char *in;
        const char *out;  /* NULL: none */
        const char *also; /* a second one, or NULL */
    } cases[] = {
        {"::ffff:127.0.0.1", "127.0.0.1"},
        {"::ffff:7f00:1", "127.0.0.1"},
        {"::127.0.0.1", "127.0.0.1"},
        {"::2", "0.0.0.2"},
        {"::ffff:0:10.1.2.3", "10.1.2.3"},
        {"64:ff9b::7f00:1", "127.0.0.1"},
        {"64:ff9b::8.8.8.8", "8.8.8.8"},
        {"64:ff9b:1::", "0.0.0.0", "0.0.0.0"},
        {"64:ff9b:1:7f00:0:100::", "127.0.0.1"},
        {"64:ff9b:1:a9fe:a9:fe00::", "169.254.169.254"},
        /* A /96 under the prefix for local use, by itself and with the other layout in it. */
        {"64:ff9b:1::7f00:1", "127.0.0.1"},
        {"64:ff9b:1::8.8.8.8", "8.8.8.8"},
        {"64:ff9b:1:1::10.0.0.1", "10.0.0.1"},
        {"64:ff9b:1:abcd::10.0.0.1", "171.205.0.0", "10.0.0.1"},
        {"64:ff9b:1:7f00:0:100:808:808", "127.0.0.1", "8.8.8.8"},
        {"64:ff9b:1:808:8:800:7f00:1", "8.8.8.8", "127.0.0.1"},
        {"64:ff9b:1:7f00:0:100::1", "127.0.0.1"},
        {"2002:7f00:1::", "127.0.0.1"},
        {"2002:a9fe:a9fe:1::2", "169.254.169.254"},
        {"2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.2.45"}, /* RFC 4380's example */
        {"2001:0:808:808::80ff:fffe", "127.0.0.1"},
        {"fe80::5efe:10.0.0.1", "10.0.0.1"},
        {"fe80::200:5efe:10.0.0.1", "10.0.0.1"},
        {"2001:db8:1:2:0:5efe:192.168.0.1", "192.168.0.1"},
        /* Both at once. */
        {"2002:808:808::5efe:127.0.0.1", "8.8.8.8", "127.0.0.1"},
        {"2002:7f00:1::5efe:8.8.8.8", "127.0.0.1", "8.8.8.8"},
        {"::", NULL},
        {"::1", NULL},
        {"2001:db8::1", NULL},
        {"2606:4700::1111", NULL},
        {"64:ff9b:2::1", NULL},
        {"65:ff9b::7f00:1", NULL},
        {"2003:7f00:1::", NULL},
        {"2001:1:808:808::80ff:fffe", NULL},
        {"fe80::300:5efe:10.0.0.1", NULL},
        {"fe80::100:5efe:10.0.0.1", NULL},
        {"::ffff:1:10.1.2.3", NULL},
        {"::1:ffff:10.1.2.3", NULL},
        {"127.0.0.1", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_ip ip = ip_of(cases[i].in), inner[CV_IP_EMBEDDED_MAX];
        char out[CV_IP_STRLEN];
        size_t n = cv_ip_embedded4(&ip, inner);
        bool ok = T_INT_EQ(n, (cases[i].out != NULL) + (cases[i].also != NULL));
        if (ok && n > 0)
            ok = T_STR_EQ(cv_ip_format(&inner[0], out), cases[i].out);
        if (ok && n > 1)
            ok = T_STR_EQ(cv_ip_format(&inner[1], out), cases[i].also);
        if (!ok)
            printf("#   address '%s'\n", cases[i].in);
    }
}

static void only_mapped_is_folded(void)
{
    struct cv_ip ip = ip_of("::ffff:10.0.0.1");
    cv_ip_fold_mapped(&ip);
    struct cv_ip want = ip_of("10.0.0.1");
    T_OK(cv_ip_equal(&ip, &want));
    static const char *const same[] = {"::10.0.0.1", "64:ff9b::10.0.0.1",
                                       "2002:a00:1::", "10.0.0.1"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(same); i++) {
        ip = want = ip_of(same[i]);
        cv_ip_fold_mapped(&ip);
        T_OK(cv_ip_equal(&ip, &want));
    }
    T_OK(!cv_ip_equal(&(struct cv_ip){.family = CV_AF_IP4}, &(struct cv_ip){.family = CV_AF_IP6}));
}

static void address_classes(void)
{
    /* The edges of each range of the registries, inside and outside. */
    static const struct {
        const char *ip;
        enum cv_ip_class cls;
    } cases[] = {
        {"0.0.0.0", CV_IP_UNSPECIFIED},
        {"0.255.255.255", CV_IP_UNSPECIFIED},
        {"1.0.0.0", CV_IP_GLOBAL},
        {"9.255.255.255", CV_IP_GLOBAL},
        {"10.0.0.0", CV_IP_PRIVATE},
        {"10.255.255.255", CV_IP_PRIVATE},
        {"11.0.0.0", CV_IP_GLOBAL},
        {"100.63.255.255", CV_IP_GLOBAL},
        {"100.64.0.0", CV_IP_CGNAT},
        {"100.127.255.255", CV_IP_CGNAT},
        {"100.128.0.0", CV_IP_GLOBAL},
        {"126.255.255.255", CV_IP_GLOBAL},
        {"127.0.0.0", CV_IP_LOOPBACK},
        {"127.255.255.255", CV_IP_LOOPBACK},
        {"128.0.0.0", CV_IP_GLOBAL},
        {"169.253.255.255", CV_IP_GLOBAL},
        {"169.254.0.0", CV_IP_LINK_LOCAL},
        {"169.254.169.254", CV_IP_LINK_LOCAL},
        {"169.255.0.0", CV_IP_GLOBAL},
        {"172.15.255.255", CV_IP_GLOBAL},
        {"172.16.0.0", CV_IP_PRIVATE},
        {"172.31.255.255", CV_IP_PRIVATE},
        {"172.32.0.0", CV_IP_GLOBAL},
        {"191.255.255.255", CV_IP_GLOBAL},
        {"192.0.0.0", CV_IP_RESERVED},
        {"192.0.0.255", CV_IP_RESERVED},
        {"192.0.1.0", CV_IP_GLOBAL},
        {"192.0.2.1", CV_IP_RESERVED},
        {"192.0.3.0", CV_IP_GLOBAL},
        {"192.88.99.1", CV_IP_RESERVED},
        {"192.167.255.255", CV_IP_GLOBAL},
        {"192.168.0.0", CV_IP_PRIVATE},
        {"192.168.255.255", CV_IP_PRIVATE},
        {"192.169.0.0", CV_IP_GLOBAL},
        {"198.17.255.255", CV_IP_GLOBAL},
        {"198.18.0.0", CV_IP_RESERVED},
        {"198.19.255.255", CV_IP_RESERVED},
        {"198.20.0.0", CV_IP_GLOBAL},
        {"198.51.100.7", CV_IP_RESERVED},
        {"203.0.113.7", CV_IP_RESERVED},
        {"223.255.255.255", CV_IP_GLOBAL},
        {"224.0.0.0", CV_IP_MULTICAST},
        {"239.255.255.255", CV_IP_MULTICAST},
        {"240.0.0.0", CV_IP_RESERVED},
        {"255.255.255.255", CV_IP_RESERVED},
        {"8.8.8.8", CV_IP_GLOBAL},

        {"::", CV_IP_UNSPECIFIED},
        {"::1", CV_IP_LOOPBACK},
        {"::2", CV_IP_UNSPECIFIED},
        {"::127.0.0.1", CV_IP_LOOPBACK},
        {"::8.8.8.8", CV_IP_RESERVED},
        {"::ffff:127.0.0.1", CV_IP_LOOPBACK},
        {"::ffff:0.0.0.0", CV_IP_UNSPECIFIED},
        {"::ffff:169.254.169.254", CV_IP_LINK_LOCAL},
        {"::ffff:8.8.8.8", CV_IP_GLOBAL},
        {"::ffff:0:8.8.8.8", CV_IP_RESERVED},
        {"64:ff9b::7f00:1", CV_IP_LOOPBACK},
        {"64:ff9b::10.0.0.1", CV_IP_PRIVATE},
        {"64:ff9b::100.64.0.1", CV_IP_CGNAT},
        {"64:ff9b::8.8.8.8", CV_IP_GLOBAL},
        {"64:ff9b:1::", CV_IP_UNSPECIFIED},
        {"64:ff9b:1:7f00:0:100::", CV_IP_LOOPBACK},
        {"64:ff9b:1:808:8:800::", CV_IP_RESERVED},
        {"100::", CV_IP_RESERVED},
        {"100:0:0:1::", CV_IP_RESERVED},
        {"1fff:ffff::", CV_IP_RESERVED},
        {"2000::", CV_IP_GLOBAL},
        {"2001::", CV_IP_RESERVED},
        {"2001:0:808:808::f7f7:f7f7", CV_IP_RESERVED},
        {"2001:0:808:808::80ff:fffe", CV_IP_LOOPBACK},
        {"2001:1::1", CV_IP_GLOBAL},
        {"2001:1::4", CV_IP_RESERVED},
        {"2001:2::1", CV_IP_RESERVED},
        {"2001:3::1", CV_IP_GLOBAL},
        {"2001:4:112::1", CV_IP_GLOBAL},
        {"2001:10::1", CV_IP_RESERVED},
        {"2001:20::1", CV_IP_GLOBAL},
        {"2001:1ff:ffff::", CV_IP_RESERVED},
        {"2001:200::", CV_IP_GLOBAL},
        {"2001:db8::1", CV_IP_RESERVED},
        {"2001:db9::1", CV_IP_GLOBAL},
        {"2002:7f00:1::", CV_IP_LOOPBACK},
        {"2002:c0a8:1::", CV_IP_PRIVATE},
        {"2002:808:808::1", CV_IP_GLOBAL},
        {"2002:808:808::5efe:127.0.0.1", CV_IP_LOOPBACK},
        {"2606:4700:4700::1111", CV_IP_GLOBAL},
        {"2606:4700::5efe:10.0.0.1", CV_IP_PRIVATE},
        {"3ffe:ffff::", CV_IP_GLOBAL},
        {"3fff::", CV_IP_RESERVED},
        {"3fff:fff::", CV_IP_RESERVED},
        {"3fff:1000::", CV_IP_GLOBAL},
        {"4000::", CV_IP_RESERVED},
        {"5f00::1", CV_IP_RESERVED},
        {"fbff::", CV_IP_RESERVED},
        {"fc00::", CV_IP_PRIVATE},
        {"fdff::1", CV_IP_PRIVATE},
        {"fe00::", CV_IP_RESERVED},
        {"fe80::1", CV_IP_LINK_LOCAL},
        {"febf::1", CV_IP_LINK_LOCAL},
        {"fec0::1", CV_IP_LINK_LOCAL},
        {"feff::1", CV_IP_LINK_LOCAL},
        {"ff00::", CV_IP_MULTICAST},
        {"ff02::1", CV_IP_MULTICAST},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_ip ip = ip_of(cases[i].ip);
        if (!T_STR_EQ(cv_ip_class_name(cv_ip_class(&ip)), cv_ip_class_name(cases[i].cls)))
            printf("#   address '%s'\n", cases[i].ip);
    }
    T_INT_EQ(cv_ip_class(&(struct cv_ip){0}), CV_IP_RESERVED);
    T_STR_EQ(cv_ip_class_name((enum cv_ip_class)99), "unknown");
    char text[CV_IP_STRLEN];
    T_STR_EQ(cv_ip_format(&(struct cv_ip){0}, text), "-");
    T_OK(cv_prefix_is_special(&(struct cv_prefix){.len = 0}));
}

static void special_prefixes(void)
{
    static const struct {
        const char *prefix;
        bool special;
    } cases[] = {
        {"127.0.0.0/8", true},
        {"127.1.2.3", true},
        {"126.0.0.0/7", false},
        {"10.0.0.0/8", true},
        {"10.0.0.0/7", false},
        {"0.0.0.0/0", false},
        {"224.0.0.0/3", true}, /* multicast and reserved together */
        {"192.0.0.0/2", false},
        {"192.0.2.0/23", false},
        {"192.0.2.0/25", true},
        {"198.18.0.0/15", true},
        {"169.254.169.254", true},
        {"8.8.8.0/24", false},
        {"::/0", false},
        {"::1", true},
        {"::/128", true},
        {"::/8", false},  /* NAT64 carries global addresses */
        {"::/64", false}, /* so does IPv4-mapped */
        {"0:0:0:1::/64", true},
        {"100::/8", true},
        {"fc00::/7", true},
        {"e000::/3", true},
        {"8000::/1", true},
        {"4000::/2", true},
        {"2000::/3", false},
        {"2001:db8::/32", true},
        {"2001:db8::/31", false},
        {"2001::/23", false},
        {"2001::/32", true},
        {"2002:7f00::/24", true},
        {"2002:a00::/24", true},
        {"2002:a00::/23", false},
        {"2002::/16", false},
        {"2002:c0a8:101::/64", true},
        {"::ffff:10.0.0.0/104", true},
        {"::ffff:10.0.0.0/103", false},
        {"::ffff:0.0.0.0/96", false},
        {"64:ff9b::7f00:0/104", true},
        {"64:ff9b::/96", false},
        {"64:ff9b:1::/48", true},
        {"2606:4700::5efe:10.0.0.0/104", true},
        {"2606:4700::5efe:8.0.0.0/104", false},
        {"2606:4700::/64", false},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_prefix p = prefix_of(cases[i].prefix);
        if (!T_INT_EQ(cv_prefix_is_special(&p), cases[i].special))
            printf("#   prefix '%s'\n", cases[i].prefix);
    }
}

/* A special prefix holds no global address; one that is not special holds one, and for /24 and
 * longer every address can be looked at. */
static void special_prefixes_by_counting(void)
{
    srand(29);
    static const char *const near[] = {"192.0.0.0",    "198.51.100.0",  "203.0.113.0", "100.64.0.0",
                                       "172.31.255.0", "223.255.255.0", "8.8.8.0"};
    bool same = true;
    for (int i = 0; i < 3000 && same; i++) {
        struct cv_prefix p = {ip_of(near[(size_t)rand() % CV_ARRAY_SIZE(near)]),
                              (uint8_t)(22 + rand() % 11)};
        p.ip.b[2] = (uint8_t)(p.ip.b[2] + rand() % 3 - 1);
        p.ip.b[3] = (uint8_t)rand();
        char text[CV_PREFIX_STRLEN];
        cv_prefix_format(&p, text);
        p = prefix_of(text);
        bool all = true;
        for (uint32_t n = 0; n < 1U << (32 - p.len); n++) {
            struct cv_ip ip = p.ip;
            ip.b[2] |= (uint8_t)(n >> 8);
            ip.b[3] |= (uint8_t)n;
            all = all && cv_ip_class(&ip) != CV_IP_GLOBAL;
        }
        same = cv_prefix_is_special(&p) == all;
        if (!same)
            printf("# prefix '%s'\n", text);
    }
    T_OK(same);
}

static void socket_addresses(void)
{
    static const struct {
        const char *in;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"127.0.0.1:1080", "127.0.0.1:1080"},
        {"127.0.0.1:0", "127.0.0.1:0"},
        {"[::1]:65535", "[::1]:65535"},
        {"[::]:80", "[::]:80"},
        {":80", "[::]:80"},
        {"[::ffff:1.2.3.4]:80", "1.2.3.4:80"},
        {"unix:/run/culvert.sock", "unix:/run/culvert.sock"},
        {"unix:sock", "unix:sock"},
        {"", NULL},
        {":", NULL},
        {"80", NULL},
        {"127.0.0.1", NULL},
        {"127.0.0.1:", NULL},
        {"127.0.0.1:65536", NULL},
        {"127.0.0.1:080", NULL},
        {"127.0.0.1:-1", NULL},
        {"127.0.0.1:80x", NULL},
        {"127.0.0.1: 80", NULL},
        {"127.1:80", NULL},
        {"localhost:80", NULL},
        {"*:80", NULL},
        {"::1:80", NULL},
        {"[::1]", NULL},
        {"[::1]80", NULL},
        {"[127.0.0.1]:80", NULL},
        {"[]:80", NULL},
        {"[::1%lo]:80", NULL},
        {"unix:", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_sockaddr sa;
        char out[CV_SOCKADDR_STRLEN];
        int ret = cv_sockaddr_parse(cases[i].in, &sa);
        bool ok = cases[i].out == NULL
                      ? T_INT_EQ(ret, CV_E_PARSE)
                      : T_INT_EQ(ret, 0) && T_STR_EQ(cv_sockaddr_format(&sa, out), cases[i].out);
        if (!ok)
            printf("#   text '%s'\n", cases[i].in);
    }
}

static void unix_paths_of_every_length(void)
{
    char text[5 + 110];
    memcpy(text, "unix:", 5);
    for (size_t len = 1; len < 110; len++) {
        memset(text + 5, 'p', len);
        text[5 + len] = '\0';
        struct cv_sockaddr sa;
        char out[CV_SOCKADDR_STRLEN];
        int ret = cv_sockaddr_parse(text, &sa);
        T_INT_EQ(ret, len < sizeof(sa.un.sun_path) ? 0 : CV_E_PARSE);
        if (ret == 0)
            T_STR_EQ(cv_sockaddr_format(&sa, out), text);
    }
    /* As the kernel may hand it out: the whole field used, no NUL; and no name at all. */
    struct cv_sockaddr sa = {.len = sizeof(sa.un), .un.sun_family = AF_UNIX};
    memset(sa.un.sun_path, 'q', sizeof(sa.un.sun_path));
    char out[CV_SOCKADDR_STRLEN];
    T_INT_EQ(strlen(cv_sockaddr_format(&sa, out)), 5 + sizeof(sa.un.sun_path));
    sa.len = sizeof(sa_family_t);
    T_STR_EQ(cv_sockaddr_format(&sa, out), "unix:");
    sa.sa.sa_family = AF_UNSPEC;
    T_STR_EQ(cv_sockaddr_format(&sa, out), "unknown");
}

static void endpoints(void)
{
    char out[CV_ENDPOINT_STRLEN];
    struct cv_sockaddr sa;
    struct cv_endpoint ep;
    struct cv_ip ip = ip_of("2001:db8::1");
    cv_sockaddr_from_ip(&sa, &ip, 443);
    T_INT_EQ(sa.len, sizeof(struct sockaddr_in6));
    cv_endpoint_from_sockaddr(&ep, &sa.sa);
    T_OK(cv_ip_equal(&ep.ip, &ip) && ep.port == 443);
    T_STR_EQ(cv_endpoint_format(&ep, out), "[2001:db8::1]:443");

    ip = ip_of("::ffff:10.0.0.1");
    cv_sockaddr_from_ip(&sa, &ip, 65535);
    cv_endpoint_from_sockaddr(&ep, &sa.sa);
    T_STR_EQ(cv_endpoint_format(&ep, out), "10.0.0.1:65535");

    T_INT_EQ(cv_sockaddr_parse("unix:/x", &sa), 0);
    cv_endpoint_from_sockaddr(&ep, &sa.sa);
    T_INT_EQ(ep.ip.family, CV_AF_NONE);
    T_STR_EQ(cv_endpoint_format(&ep, out), "unix");

    ep = (struct cv_endpoint){ip_of("1111:1111:1111:1111:1111:1111:1111:1111"), 65535};
    T_INT_EQ(strlen(cv_endpoint_format(&ep, out)), 39 + 8);
}

int main(void)
{
    T_RUN(canonical_forms);
    T_RUN(mutated_text_parses_as_in_libc);
    T_RUN(random_addresses_format_as_in_libc);
    T_RUN(every_spelling_of_an_address);
    T_RUN(random_spellings_parse_as_in_libc);
    T_RUN(prefixes);
    T_RUN(contains_and_covers);
    T_RUN(embedded_addresses);
    T_RUN(only_mapped_is_folded);
    T_RUN(address_classes);
    T_RUN(special_prefixes);
    T_RUN(special_prefixes_by_counting);
    T_RUN(socket_addresses);
    T_RUN(unix_paths_of_every_length);
    T_RUN(endpoints);
    return t_done();
}
