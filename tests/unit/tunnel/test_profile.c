#include "tunnel/profile.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"

#include "tap.h"

#define HEAD "client\nremote vpn.example 1195\n<ca>\nCA\n</ca>\n"

static struct cv_profile_error err;

static struct cv_profile *good(const char *text)
{
    struct cv_profile *p = NULL;
    int ret = cv_profile_parse(text, strlen(text), NULL, false, &err, &p);
    if (ret != 0)
        T_FAIL("%u '%s': %s", err.line, err.directive, err.text);
    return p;
}

static void test_vpngate(void)
{
    static const char text[] =
        "\xef\xbb\xbf#\r\n# a comment\r\n;http-proxy-retry\r\n;http-proxy [proxy server] [port]\r\n"
        "dev tun\r\nproto tcp\r\nremote 219.100.37.1 443\r\n\r\ncipher AES-128-CBC\r\n"
        "data-ciphers AES-128-CBC\r\nauth SHA1\r\nresolv-retry "
        "infinite\r\nnobind\r\npersist-key\r\n"
        "persist-tun\r\nclient\r\nverb "
        "3\r\n#auth-user-pass\r\n<ca>\r\n-----BEGIN\r\nabc\r\n</ca>\r\n"
        "<cert>\r\nC\r\n</cert>\r\n<key>\r\nK\r\n</key>\r\n";
    struct cv_profile *p = good(text);
    T_REQUIRE(p != NULL);
    T_INT_EQ(p->n_remotes, 1);
    T_STR_EQ(p->remotes[0].host, "219.100.37.1");
    T_INT_EQ(p->remotes[0].port, 443);
    T_OK(p->remotes[0].tcp && p->pull && !p->auth_user_pass);
    T_STR_EQ(p->cipher, "AES-128-CBC");
    T_STR_EQ(p->auth, "SHA1");
    T_STR_EQ(p->ca, "-----BEGIN\r\nabc\r\n");
    T_STR_EQ(p->key, "K\r\n");
    T_INT_EQ(p->n_ciphers, 1);
    T_INT_EQ(p->n_notes, 0);
    cv_profile_free(p);
}

static void test_values(void)
{
    struct cv_profile *p = good(
        "proto udp6\nremote a 1\nremote b 2 tcp4\n<connection>\nremote c\nproto "
        "tcp\n</connection>\n"
        "port 99\nremote-random\n--verify-x509-name \"C=JP, CN=a b\" subject\nremote-cert-tls "
        "server\n"
        "data-ciphers aes-256-gcm:?CHACHA20-POLY1305\nauth sha512\ncomp-lzo no\nfragment 1200\n"
        "mssfix 1300 mtu\nkeepalive 5 20\nreneg-sec 0\nexplicit-exit-notify\n"
        "pull-filter ignore 'route '\nkey-direction 1\n<tls-auth>\nT\n</tls-auth>\n"
        "<auth-user-pass>\nme\nsec ret\n</auth-user-pass>\nsetenv opt tls-version-min 1.2\n"
        "setenv FOO bar\npeer-fingerprint "
        "00:11:22:33:44:55:66:77:88:99:AA:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99:AA:bb:cc:dd:"
        "ee:ff\n");
    T_REQUIRE(p != NULL);
    T_INT_EQ(p->n_remotes, 3);
    T_OK(!p->remotes[0].tcp && p->remotes[0].net == CV_PROFILE_NET_IP6 && p->remotes[0].port == 1);
    T_OK(p->remotes[1].tcp && p->remotes[1].net == CV_PROFILE_NET_IP4);
    T_OK(p->remotes[2].tcp && p->remotes[2].net == CV_PROFILE_NET_ANY);
    T_INT_EQ(p->remotes[2].port, 99);
    T_OK(p->remote_random && p->remote_cert_tls);
    T_STR_EQ(p->verify_name, "C=JP, CN=a b");
    T_INT_EQ(p->verify_name_kind, CV_PROFILE_NAME_SUBJECT);
    T_STR_EQ(p->ciphers[0], "AES-256-GCM");
    T_STR_EQ(p->ciphers[1], "CHACHA20-POLY1305");
    T_STR_EQ(p->auth, "SHA512");
    T_INT_EQ(p->comp, CV_COMP_LZO);
    T_INT_EQ(p->fragment, 1200);
    T_OK(p->mssfix == 1300 && p->mssfix_mtu && !p->mssfix_fixed);
    T_OK(p->ping == 5 && p->ping_restart == 20 && p->reneg_sec == 0 && p->exit_notify == 1);
    T_STR_EQ(p->filters[0].text, "route ");
    T_INT_EQ(p->key_direction, 1);
    T_STR_EQ(p->tls_auth, "T\n");
    T_STR_EQ(p->username, "me");
    T_STR_EQ(p->password, "sec ret");
    T_INT_EQ(p->tls_min, 12);
    T_OK(p->n_prints == 1 && p->prints[0][1] == 0x11 && p->prints[0][31] == 0xff);
    cv_profile_free(p);
}

static void test_dangerous(void)
{
    static const char *const lines[] = {
        "up /bin/sh",
        "down x",
        "script-security 2",
        "plugin x.so",
        "management 127.0.0.1 7505",
        "config other.ovpn",
        "route-up x",
        "tls-verify x",
        "log /tmp/x",
        "status /tmp/x",
        "writepid x",
        "ipchange x",
        "iproute x",
        "cd /",
        "chroot /",
        "engine x",
        "setenv opt up /bin/sh",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(lines); i++) {
        char text[512];
        snprintf(text, sizeof(text), HEAD "%s\n", lines[i]);
        struct cv_profile *p = good(text);
        T_REQUIRE(p != NULL);
        T_INT_EQ(p->n_notes, 1);
        T_INT_EQ(p->notes[0].line, 6);
        cv_profile_free(p);
        p = NULL;
        T_INT_EQ(cv_profile_parse(text, strlen(text), NULL, true, &err, &p), CV_E_UNSUPPORTED);
        T_INT_EQ(err.line, 6);
        T_OK(p == NULL);
    }
    struct cv_profile *p = good(HEAD "route 10.0.0.0 255.0.0.0\nno-such-thing 1\n");
    T_REQUIRE(p != NULL);
    T_INT_EQ(p->n_notes, 2);
    cv_profile_free(p);
}

static void test_bad(void)
{
    static const struct {
        const char *text;
        uint32_t line;
        const char *directive;
        int err;
    } cases[] = {
        {"client\n", 0, "", CV_E_INVALID},
        {"remote a\n", 0, "", CV_E_INVALID},
        {HEAD "remote b 70000\n", 6, "remote", CV_E_INVALID},
        {HEAD "remote b 0\n", 6, "remote", CV_E_INVALID},
        {HEAD "remote b 1x\n", 6, "remote", CV_E_INVALID},
        {HEAD "remote\n", 6, "remote", CV_E_INVALID},
        {HEAD "proto sctp\n", 6, "proto", CV_E_INVALID},
        {HEAD "dev tap\n", 6, "dev", CV_E_UNSUPPORTED},
        {HEAD "http-proxy a 1\n", 6, "http-proxy", CV_E_UNSUPPORTED},
        {HEAD "secret x\n", 6, "secret", CV_E_UNSUPPORTED},
        {HEAD "auth WHIRLPOOL\n", 6, "auth", CV_E_UNSUPPORTED},
        {HEAD "key-direction 2\n", 6, "key-direction", CV_E_INVALID},
        {HEAD "tls-version-min 1.4\n", 6, "tls-version-min", CV_E_INVALID},
        {HEAD "tls-version-min 1.3\ntls-version-max 1.2\n", 0, "", CV_E_INVALID},
        {HEAD "remote-cert-tls client\n", 6, "remote-cert-tls", CV_E_INVALID},
        {HEAD "ping 99999999999999999999999\n", 6, "ping", CV_E_INVALID},
        {HEAD "verify-x509-name \"a\n", 6, "verify-x509-name", CV_E_PARSE},
        {HEAD "<tls-crypt>\nx\n", 6, "<tls-crypt>", CV_E_PARSE},
        {HEAD "cert /etc/passwd\n", 6, "cert", CV_E_UNSUPPORTED},
        {HEAD "<cert>\nx\n</cert>\n", 0, "", CV_E_INVALID},
        {HEAD "peer-fingerprint 00:11\n", 6, "peer-fingerprint", CV_E_INVALID},
        {HEAD "<tls-crypt>\nx\n</tls-crypt>\n<tls-auth>\ny\n</tls-auth>\n", 0, "", CV_E_INVALID},
        {HEAD "pull-filter deny x\n", 6, "pull-filter", CV_E_INVALID},
        {HEAD "a b c d e f g h i j k l m n o p q r\n", 6, "a", CV_E_PARSE},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_profile *p = NULL;
        int ret = cv_profile_parse(cases[i].text, strlen(cases[i].text), NULL, false, &err, &p);
        if (!T_INT_EQ(ret, cases[i].err) || !T_INT_EQ(err.line, cases[i].line) ||
            !T_STR_EQ(err.directive, cases[i].directive) || !T_OK(err.text[0] != '\0'))
            printf("# case %zu\n", i);
        cv_profile_free(p);
    }
    static char big[CV_PROFILE_MAX_BYTES + 2];
    memset(big, '\n', sizeof(big));
    struct cv_profile *p = NULL;
    T_INT_EQ(cv_profile_parse(big, sizeof(big), NULL, false, &err, &p), CV_E_LIMIT);
    T_INT_EQ(cv_profile_parse("a\0b\n", 4, NULL, false, &err, &p), CV_E_PARSE);
}

static void test_files(void)
{
    char dir[] = "/tmp/test-profile-XXXXXX", path[256];
    T_REQUIRE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/ca.pem", dir);
    T_INT_EQ(cv_file_write_atomic(path, "PEM", 3, 0600), 0);
    snprintf(path, sizeof(path), "%s/p.ovpn", dir);
    static const struct {
        const char *name;
        int err;
    } cases[] = {
        {"ca.pem", 0},
        {"./ca.pem", 0},
        {"../ca.pem", CV_E_UNSUPPORTED},
        {"x/../../ca.pem", CV_E_UNSUPPORTED},
        {"/etc/passwd", CV_E_UNSUPPORTED},
        {"missing.pem", -2},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        char text[200];
        struct cv_profile *p = NULL;
        snprintf(text, sizeof(text), "remote a\nca %s\n", cases[i].name);
        T_INT_EQ(cv_file_write_atomic(path, text, strlen(text), 0600), 0);
        T_INT_EQ(cv_profile_load(path, false, &err, &p), cases[i].err);
        if (p != NULL)
            T_STR_EQ(p->ca, "PEM");
        else
            T_STR_EQ(err.directive, "ca");
        cv_profile_free(p);
    }
    char out[400];
    cv_profile_error_format(&err, "p.ovpn", out, sizeof(out));
    T_OK(strncmp(out, "p.ovpn:2: 'ca': ", 16) == 0);
    unlink(path);
    snprintf(path, sizeof(path), "%s/ca.pem", dir);
    unlink(path);
    rmdir(dir);
    struct cv_profile *p = NULL;
    T_INT_EQ(cv_profile_load("/no/such", false, &err, &p), -2);
}

int main(void)
{
    T_RUN(test_vpngate);
    T_RUN(test_values);
    T_RUN(test_dangerous);
    T_RUN(test_bad);
    T_RUN(test_files);
    return t_done();
}
