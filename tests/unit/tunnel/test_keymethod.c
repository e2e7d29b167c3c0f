#include "tunnel/keymethod.h"

#include <openssl/sha.h>

#include "common/err.h"
#include "hex.h"

#include "tap.h"

static struct cv_profile *profile(const char *more)
{
    char text[1024];
    struct cv_profile_error e;
    struct cv_profile *p = NULL;
    snprintf(text, sizeof(text), "client\nremote a\n<ca>\nx\n</ca>\n%s", more);
    if (cv_profile_parse(text, strlen(text), NULL, false, &e, &p) != 0)
        T_FAIL("%s", e.text);
    return p;
}

static void test_options(void)
{
    static const struct {
        const char *more;
        bool tcp;
        const char *options, *ciphers;
    } cases[] = {
        {"cipher AES-128-CBC\nauth SHA1\n", true,
         "V4,dev-type tun,link-mtu 1559,tun-mtu 1500,proto TCPv4_CLIENT,cipher AES-128-CBC,auth "
         "SHA1,"
         "keysize 128,key-method 2,tls-client",
         "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305:AES-128-CBC"},
        {"", false,
         "V4,dev-type tun,link-mtu 1541,tun-mtu 1500,proto UDPv4,cipher AES-256-GCM,auth "
         "[null-digest],keysize 256,key-method 2,tls-client",
         "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305"},
        {"comp-lzo\nfragment 1200\ndata-ciphers AES-128-GCM:BF-CBC\ndata-ciphers-fallback "
         "AES-256-CBC\n"
         "auth SHA256\nkey-direction 1\n<tls-auth>\nx\n</tls-auth>\n",
         false,
         "V4,dev-type tun,link-mtu 1557,tun-mtu 1500,proto UDPv4,comp-lzo,mtu-dynamic,keydir "
         "1,cipher "
         "AES-256-CBC,auth SHA256,keysize 256,tls-auth,key-method 2,tls-client",
         "AES-128-GCM:AES-256-CBC"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_profile *p = profile(cases[i].more);
        char out[512];
        T_INT_EQ(cv_keymethod_options(p, cases[i].tcp, false, out, sizeof(out)), 0);
        T_STR_EQ(out, cases[i].options);
        T_INT_EQ(cv_keymethod_ciphers(p, out, sizeof(out)), 0);
        T_STR_EQ(out, cases[i].ciphers);
        T_INT_EQ(cv_keymethod_options(p, false, false, out, 40), CV_E_LIMIT);
        T_INT_EQ(cv_keymethod_peer_info(p, out, sizeof(out)), 0);
        T_OK(strstr(out, "IV_PROTO=414\n") != NULL);
        cv_profile_free(p);
    }
}

static void test_messages(void)
{
    struct cv_keymethod_random own, got;
    uint8_t out[CV_KEYMETHOD_MAX], server[256];
    char options[16];
    size_t n = 0, used = 0;
    memset(&own, 7, sizeof(own));
    T_INT_EQ(cv_keymethod_encode(&own, "opt", "", "pw", "i", out, sizeof(out), &n), 0);
    T_INT_EQ(n, 5 + 48 + 64 + 6 + 2 + 5 + 4);
    T_MEM_EQ(out + 117, "\0\4opt\0\0\0\0\3pw\0\0\2i\0", 17);
    T_INT_EQ(cv_keymethod_encode(&own, "opt", "u", "p", "i", out, 100, &n), CV_E_LIMIT);
    /* The server's: all strings, then with the trailing ones left out, then in pieces. */
    memset(server, 0, sizeof(server));
    server[4] = 2;
    memset(server + 5, 1, 32);
    memset(server + 37, 2, 32);
    memcpy(server + 69, "\0\4V4,", 6);
    server[74] = 0;
    static const size_t lens[] = {75, 77, 81};
    for (size_t i = 0; i < CV_ARRAY_SIZE(lens); i++) {
        T_INT_EQ(cv_keymethod_decode(server, lens[i], &got, options, sizeof(options), &used), 0);
        T_INT_EQ(used, lens[i]);
        T_STR_EQ(options, "V4,");
        T_OK(got.r1[31] == 1 && got.r2[0] == 2);
    }
    for (size_t i = 0; i < 75; i++)
        T_INT_EQ(cv_keymethod_decode(server, i, &got, options, sizeof(options), &used), CV_E_MORE);
    server[4] = 1;
    T_INT_EQ(cv_keymethod_decode(server, 75, &got, options, sizeof(options), &used), CV_E_PROTO);
}

static void test_derive(void)
{
    struct cv_keymethod_random c, s = {0};
    uint8_t out[256], md[32], wanted[32];
    for (int i = 0; i < 48; i++)
        c.pre[i] = (uint8_t)i;
    memset(c.r1, 1, 32);
    memset(c.r2, 2, 32);
    memset(s.r1, 3, 32);
    memset(s.r2, 4, 32);
    T_INT_EQ(
        cv_keymethod_derive(&c, &s, (const uint8_t *)"CLIENTID", (const uint8_t *)"SERVERID", out),
        0);
    SHA256(out, sizeof(out), md);
    unhex("34141ac6b3e1e5aedee72b6ed7b9d0946ecf866c75cf207b770aa019ea119889", wanted, 32);
    T_MEM_EQ(md, wanted, 32);
}

int main(void)
{
    T_RUN(test_options);
    T_RUN(test_messages);
    T_RUN(test_derive);
    return t_done();
}
