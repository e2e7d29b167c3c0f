#include "tunnel/push.h"

#include "common/err.h"

#include "tap.h"

static int parse(struct cv_push *p, const char *text)
{
    return cv_push_parse(p, NULL, text, strlen(text));
}

static const char *ip_text(const struct cv_ip *ip)
{
    static char out[CV_IP_STRLEN];
    return ip->family == CV_AF_NONE ? "none" : cv_ip_format(ip, out);
}

static void test_stock(void)
{
    struct cv_push p;
    cv_push_init(&p);
    T_INT_EQ(
        parse(&p,
              "PUSH_REPLY,route 198.18.0.1 255.255.255.255,dhcp-option DNS 10.8.1.1,dns server 0 "
              "address 10.8.1.1 10.8.1.2:5353 [fd00::1]:53,tun-ipv6,route-gateway 10.8.1.1,"
              "topology subnet,ping 10,ping-restart 60,ifconfig-ipv6 fd08:1::1000/64 fd08:1::1,"
              "ifconfig 10.8.1.2 255.255.255.0,peer-id 5,cipher AES-256-GCM,protocol-flags "
              "cc-exit tls-ekm,tun-mtu 1500,auth-token SESS_ID_x,what ever"),
        0);
    T_STR_EQ(ip_text(&p.ip4), "10.8.1.2");
    T_INT_EQ(p.ip4_len, 24);
    T_STR_EQ(ip_text(&p.ip6), "fd08:1::1000");
    T_INT_EQ(p.n_dns, 3);
    T_STR_EQ(ip_text(&p.dns[1]), "10.8.1.2");
    T_STR_EQ(ip_text(&p.dns[2]), "fd00::1");
    T_OK(p.ping == 10 && p.ping_restart == 60 && p.peer_id == 5 && p.tun_mtu == 1500);
    T_OK(p.tls_ekm && p.cc_exit && p.n_routes == 1 && p.comp == -1);
    T_STR_EQ(p.cipher, "AES-256-GCM");
    T_STR_EQ(p.auth_token, "SESS_ID_x");
    cv_push_done(&p);
    T_INT_EQ(p.auth_token[0], 0);
}

static void test_softether(void)
{
    struct cv_push p;
    cv_push_init(&p);
    T_INT_EQ(
        parse(&p,
              "PUSH_REPLY,ping 3,ping-restart 10,ifconfig 10.211.1.49 10.211.1.50,dhcp-option DNS "
              "10.211.254.254,dhcp-option DNS 8.8.8.8,route-gateway 10.211.1.50,redirect-gateway "
              "def1"),
        0);
    T_INT_EQ(p.ip4_len, 32);
    T_OK(p.n_dns == 2 && p.redirect_gateway && p.peer_id == -1 && !p.tls_ekm);
}

static void test_continuation(void)
{
    struct cv_push p;
    cv_push_init(&p);
    T_INT_EQ(parse(&p, "PUSH_REPLY,ifconfig 10.0.0.2 10.0.0.1,push-continuation 2"), CV_E_MORE);
    T_INT_EQ(parse(&p, "PUSH_REPLY,compress stub-v2,peer-id 0,push-continuation 1"), 0);
    T_OK(p.ip4.family == CV_AF_IP4 && p.peer_id == 0 && p.comp == CV_COMP_STUB_V2);
}

static void test_filters(void)
{
    struct cv_profile profile = {.n_filters = 2};
    struct cv_push p;
    static const char text[] = "PUSH_REPLY,ifconfig 10.0.0.2 10.0.0.1,dhcp-option DNS 1.1.1.1";
    profile.filters[0] = (struct cv_profile_filter){CV_PROFILE_FILTER_IGNORE, "dhcp-option"};
    profile.filters[1] = (struct cv_profile_filter){CV_PROFILE_FILTER_REJECT, "ifconfig 10.0"};
    cv_push_init(&p);
    T_INT_EQ(cv_push_parse(&p, &profile, text, strlen(text)), CV_E_PROTO);
    T_STR_EQ(p.rejected, "ifconfig 10.0.0.2 10.0.0.1");
    T_INT_EQ(p.n_dns, 0);
    profile.filters[1].action = CV_PROFILE_FILTER_ACCEPT;
    cv_push_init(&p);
    T_INT_EQ(cv_push_parse(&p, &profile, text, strlen(text)), 0);
}

static void test_odd(void)
{
    struct cv_push p;
    static const struct {
        const char *text;
        int err;
    } cases[] = {
        {"PUSH_REPLY", 0},
        {"PUSH_REPLY,", 0},
        {"PUSH_REPLY,,,", 0},
        {"PUSH_REPLYX", CV_E_PROTO},
        {"PUSH", CV_E_PROTO},
        {"PUSH_REPLY,ifconfig x y", CV_E_PROTO},
        {"PUSH_REPLY,peer-id 16777216", CV_E_PROTO},
        {"PUSH_REPLY,peer-id", CV_E_PROTO},
        {"PUSH_REPLY,protocol-flags aead-epoch", CV_E_PROTO},
        {"PUSH_REPLY,ping x,ping-restart 99999999999", 0},
        {"PUSH_REPLY,dhcp-option DNS nonsense,dhcp-option,dns,route", 0},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        cv_push_init(&p);
        if (!T_INT_EQ(parse(&p, cases[i].text), cases[i].err))
            printf("# %s\n", cases[i].text);
    }
    T_OK(p.ping == -1 && p.n_dns == 0);
}

int main(void)
{
    T_RUN(test_stock);
    T_RUN(test_softether);
    T_RUN(test_continuation);
    T_RUN(test_filters);
    T_RUN(test_odd);
    return t_done();
}
