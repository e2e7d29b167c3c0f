#include "common/err.h"
#include "egress/egress.h"
#include "tap.h"

static struct cv_ip ip(const char *s)
{
    struct cv_ip r = {0};
    if (cv_ip_parse(s, strlen(s), &r) != 0)
        printf("# '%s' does not parse\n", s);
    return r;
}

static struct cv_prefix prefix(const char *s)
{
    struct cv_prefix r = {0};
    if (cv_prefix_parse(s, strlen(s), &r) != 0)
        printf("# '%s' does not parse\n", s);
    return r;
}

/* Every class of address, and every way to write an IPv4 address within an IPv6 one. */
static const char *const refused[] = {
    /* unspecified, "this network" */
    "0.0.0.0", "0.1.2.3", "::",
    /* loopback */
    "127.0.0.1", "127.255.255.254", "::1",
    /* link-local; cloud metadata */
    "169.254.169.254", "fe80::1", "fec0::1",
    /* private */
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1",
    /* carrier-grade NAT */
    "100.64.0.1", "100.127.255.255",
    /* multicast */
    "224.0.0.1", "239.255.255.250", "ff02::1",
    /* reserved, broadcast, documentation, benchmarking */
    "240.0.0.1", "255.255.255.255", "192.0.0.8", "192.0.2.1", "198.51.100.1", "203.0.113.1",
    "198.18.0.1", "100::1", "2001:db8::1",
    /* IPv4 within IPv6 */
    "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1",
    "64:ff9b:1::", "2002:7f00:1::", "2002:a00:1::1", "2001::80ff:fffe", /* Teredo of 127.0.0.1 */
    "2001:0:808:808:0:0:f5ff:fffe",                                     /* Teredo client 10.0.0.1 */
    "2606:4700::5efe:7f00:1",                                           /* ISATAP */
    "2606:4700::200:5efe:a00:1",                                        /* ISATAP, global token */
};

static const char *const allowed[] = {
    "1.1.1.1",         "8.8.8.8",         "172.15.255.255", "172.32.0.1",      "100.63.255.255",
    "100.128.0.1",     "126.255.255.255", "128.0.0.1",      "223.255.255.255", "192.167.0.1",
    "2606:4700::1111", "2a00:1450::1",    "::ffff:8.8.8.8",
};

static void test_classes(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(refused); i++) {
        struct cv_ip a = ip(refused[i]);
        if (cv_egress_guard(&a, NULL, 0, false, NULL) != CV_E_GUARD)
            T_FAIL("'%s' was allowed", refused[i]);
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(allowed); i++) {
        struct cv_ip a = ip(allowed[i]);
        if (cv_egress_guard(&a, NULL, 0, false, NULL) != 0)
            T_FAIL("'%s' was refused", allowed[i]);
    }
    T_OK(true);
}

static void test_grants(void)
{
    static const struct {
        const char *ip;
        const char *allow;   /* of the node's config, or NULL */
        const char *special; /* named by the policy's selector, or NULL */
        bool ok;
    } rows[] = {
        {"127.0.0.1", "127.0.0.0/8", NULL, true},
        {"127.0.0.1", "10.0.0.0/8", NULL, false},
        {"10.0.0.5", NULL, "10.0.0.5/32", true},
        {"10.0.0.6", NULL, "10.0.0.5/32", false},
        {"10.9.9.9", NULL, "10.0.0.0/8", true},
        {"192.168.0.1", NULL, "10.0.0.0/8", false},
        {"::1", "127.0.0.0/8", NULL, false},
        {"::1", "::1/128", NULL, true},
        {"fd00::5", NULL, "fd00::/8", true},
        /* IPv4-mapped is the IPv4 address. */
        {"::ffff:127.0.0.1", "127.0.0.0/8", NULL, true},
        {"::ffff:10.0.0.1", NULL, "10.0.0.0/8", true},
        {"::ffff:10.0.0.1", NULL, "11.0.0.0/8", false},
        /* A grant for the inner address does not open what embeds it, nor the other way round. */
        {"2002:7f00:1::", "127.0.0.0/8", NULL, false},
        {"2002:7f00:1::", "2002::/16", NULL, false},
        {"64:ff9b::7f00:1", "127.0.0.0/8", NULL, false},
        {"64:ff9b::7f00:1", "64:ff9b::/96", NULL, false},
        {"64:ff9b::7f00:1", "64:ff9b::/96", "127.0.0.0/8", true},
        {"::127.0.0.1", "127.0.0.0/8", NULL, false},
        {"::127.0.0.1", "::/0", NULL, false},
        /* A NAT64 of this network, for public addresses only. */
        {"64:ff9b:1:808:8:800::", "64:ff9b:1::/48", NULL, true},
        /* ... also one that took a /96; whatever the layout, no grant for it opens loopback. */
        {"64:ff9b:1::808:808", "64:ff9b:1::/96", NULL, true},
        {"64:ff9b:1::7f00:1", "64:ff9b:1::/48", NULL, false},
        {"64:ff9b:1:7f00:0:100::", "64:ff9b:1::/48", NULL, false},
        {"64:ff9b:1:7f00:0:100:808:808", "64:ff9b:1::/48", NULL, false},
        {"64:ff9b:1:808:8:800:7f00:1", "64:ff9b:1::/48", NULL, false},
        {"64:ff9b:1:808:8:800:7f00:1", "64:ff9b:1::/48", "127.0.0.0/8", true},
        /* What is public needs no grant. */
        {"8.8.8.8", NULL, "10.0.0.0/8", true},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_ip a = ip(rows[i].ip);
        struct cv_prefix allow = {0}, special = {0};
        if (rows[i].allow != NULL)
            allow = prefix(rows[i].allow);
        if (rows[i].special != NULL)
            special = prefix(rows[i].special);
        int err =
            cv_egress_guard(&a, &allow, rows[i].allow != NULL, rows[i].special != NULL, &special);
        if ((err == 0) != rows[i].ok)
            T_FAIL("'%s' allow '%s' special '%s'", rows[i].ip, rows[i].allow ? rows[i].allow : "",
                   rows[i].special ? rows[i].special : "");
        T_OK(err == 0 || err == CV_E_GUARD);
        /* A prefix that the selector does not name as special grants nothing. */
        if (rows[i].allow == NULL && cv_ip_class(&a) != CV_IP_GLOBAL)
            T_INT_EQ(cv_egress_guard(&a, NULL, 0, false, &special), CV_E_GUARD);
    }
}

int main(void)
{
    T_RUN(test_classes);
    T_RUN(test_grants);
    return t_done();
}
