#include "tunnel/keymethod.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/rd.h"
#include "common/secret.h"
#include "tunnel/datakey.h"

#include "common/poison.h"

#define DEFAULT_CIPHERS "AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305"

/* ---- texts ---- */

/* snprintf that says when it did not fit; *at grows. */
CV_PRINTF(4, 5)
static int add(char *out, size_t cap, size_t *at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out + *at, cap - *at, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= cap - *at)
        return CV_E_LIMIT;
    *at += (size_t)n;
    return 0;
}

/* The cipher that a server without negotiation is to take. */
static const char *told_cipher(const struct cv_profile *p)
{
    if (p->fallback[0] != '\0')
        return p->fallback;
    if (p->cipher[0] != '\0')
        return p->cipher;
    return p->n_ciphers > 0 ? p->ciphers[0] : "AES-256-GCM";
}

int cv_keymethod_options(const struct cv_profile *p, bool tcp, bool ip6, char *out, size_t cap)
{
    const char *name = told_cipher(p);
    const struct cv_datakey_cipher *c = cv_datakey_cipher(name);
    bool aead = c != NULL && c->aead;
    size_t at = 0;
    /* What a packet grows by; servers only compare it. */
    unsigned link = p->tun_mtu + (aead ? 41 : 57) + (tcp ? 2 : 0);
    int ret =
        add(out, cap, &at, "V4,dev-type tun,link-mtu %u,tun-mtu %u,proto %s", link, p->tun_mtu,
            tcp ? (ip6 ? "TCPv6_CLIENT" : "TCPv4_CLIENT") : (ip6 ? "UDPv6" : "UDPv4"));
    if (ret == 0 && p->comp != CV_COMP_NONE)
        ret = add(out, cap, &at, ",comp-lzo");
    if (ret == 0 && p->fragment > 0)
        ret = add(out, cap, &at, ",mtu-dynamic");
    if (ret == 0 && p->tls_auth != NULL && p->key_direction >= 0)
        ret = add(out, cap, &at, ",keydir %d", p->key_direction);
    if (ret == 0)
        ret = add(out, cap, &at, ",cipher %s,auth %s,keysize %u", name,
                  aead ? "[null-digest]" : p->auth, c != NULL ? c->key_len * 8 : 128);
    if (ret == 0 && p->tls_auth != NULL)
        ret = add(out, cap, &at, ",tls-auth");
    return ret == 0 ? add(out, cap, &at, ",key-method 2,tls-client") : ret;
}

int cv_keymethod_ciphers(const struct cv_profile *p, char *out, size_t cap)
{
    size_t at = 0;
    int ret = 0;
    bool have_told = false;
    out[0] = '\0';
    if (p->n_ciphers == 0)
        ret = add(out, cap, &at, "%s", DEFAULT_CIPHERS);
    for (size_t i = 0; ret == 0 && i < p->n_ciphers; i++) {
        if (cv_datakey_cipher(p->ciphers[i]) == NULL)
            continue;
        ret = add(out, cap, &at, "%s%s", at > 0 ? ":" : "", p->ciphers[i]);
        have_told = have_told || strcmp(p->ciphers[i], told_cipher(p)) == 0;
    }
    if (p->n_ciphers == 0)
        have_told = strstr(DEFAULT_CIPHERS, told_cipher(p)) != NULL;
    if (ret == 0 && !have_told && cv_datakey_cipher(told_cipher(p)) != NULL)
        ret = add(out, cap, &at, "%s%s", at > 0 ? ":" : "", told_cipher(p));
    return ret;
}

int cv_keymethod_peer_info(const struct cv_profile *p, char *out, size_t cap)
{
    char ciphers[512];
    size_t at = 0;
    int ret = cv_keymethod_ciphers(p, ciphers, sizeof(ciphers));
    if (ret == 0)
        ret = add(out, cap, &at,
                  "IV_VER=2.6.14\nIV_PLAT=linux\nIV_TCPNL=1\nIV_MTU=1600\nIV_NCP=2\nIV_CIPHERS=%s\n"
                  "IV_PROTO=%d\nIV_LZO_STUB=1\nIV_COMP_STUB=1\nIV_COMP_STUBv2=1\n",
                  ciphers, CV_KEYMETHOD_IV_PROTO);
    if (ret == 0 && p->push_peer_info)
        ret = add(out, cap, &at, "IV_GUI_VER=culvert_%s\n", CV_VERSION);
    return ret;
}

/* ---- messages ---- */

static void put_text(struct cv_wr *w, const char *s)
{
    size_t n = strlen(s);
    if (n == 0) {
        cv_wr_u16(w, 0);
        return;
    }
    if (n + 1 > UINT16_MAX) {
        w->err = CV_E_LIMIT;
        return;
    }
    cv_wr_u16(w, (uint16_t)(n + 1));
    cv_wr_bytes(w, s, n + 1);
}

int cv_keymethod_encode(const struct cv_keymethod_random *own, const char *options,
                        const char *user, const char *password, const char *peer_info, uint8_t *out,
                        size_t cap, size_t *ret_len)
{
    struct cv_wr w;
    cv_wr_init(&w, out, CV_MIN(cap, (size_t)CV_KEYMETHOD_MAX));
    cv_wr_bytes(&w, "\0\0\0\0\2", 5);
    cv_wr_bytes(&w, own->pre, sizeof(own->pre));
    cv_wr_bytes(&w, own->r1, sizeof(own->r1));
    cv_wr_bytes(&w, own->r2, sizeof(own->r2));
    put_text(&w, options);
    put_text(&w, user);
    put_text(&w, password);
    put_text(&w, peer_info);
    if (w.err != 0)
        return w.err;
    *ret_len = w.len;
    return 0;
}

int cv_keymethod_decode(const uint8_t *data, size_t len, struct cv_keymethod_random *ret,
                        char *options, size_t cap, size_t *ret_used)
{
    struct cv_rd r;
    cv_rd_init(&r, data, len);
    uint32_t zero = cv_rd_u32(&r);
    uint8_t method = cv_rd_u8(&r);
    if (r.err == 0 && (zero != 0 || (method & 0x0f) != 2))
        return CV_E_PROTO;
    const uint8_t *r1 = cv_rd_bytes(&r, CV_KEYMETHOD_RANDOM_LEN);
    const uint8_t *r2 = cv_rd_bytes(&r, CV_KEYMETHOD_RANDOM_LEN);
    uint16_t n = cv_rd_u16(&r);
    const uint8_t *text = cv_rd_bytes(&r, n);
    if (r.err != 0)
        return len > CV_KEYMETHOD_MAX ? CV_E_PROTO : CV_E_MORE;
    /* User, password, peer info: empty, and an old server leaves them out. All in one record. */
    for (int i = 0; i < 3 && r.left >= 2; i++) {
        struct cv_rd before = r;
        (void)cv_rd_bytes(&r, cv_rd_u16(&r));
        if (r.err != 0) {
            r = before;
            break;
        }
    }
    memcpy(ret->r1, r1, CV_KEYMETHOD_RANDOM_LEN);
    memcpy(ret->r2, r2, CV_KEYMETHOD_RANDOM_LEN);
    if (cap > 0) {
        size_t k = CV_MIN((size_t)n, cap - 1);
        if (k > 0)
            memcpy(options, text, k);
        options[k] = '\0';
    }
    *ret_used = len - r.left;
    return 0;
}

/* ---- keys ---- */

static int prf(const uint8_t *secret, size_t secret_len, const uint8_t *seed, size_t seed_len,
               uint8_t *out, size_t out_len)
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "TLS1-PRF", NULL);
    EVP_KDF_CTX *c = kdf != NULL ? EVP_KDF_CTX_new(kdf) : NULL;
    char digest[] = "MD5-SHA1";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SECRET, (void *)(uintptr_t)secret,
                                          secret_len),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, (void *)(uintptr_t)seed, seed_len),
        OSSL_PARAM_construct_end(),
    };
    int ok = c != NULL && EVP_KDF_derive(c, out, out_len, params) == 1;
    EVP_KDF_CTX_free(c);
    EVP_KDF_free(kdf);
    return ok ? 0 : CV_E_TLS;
}

int cv_keymethod_derive(const struct cv_keymethod_random *client,
                        const struct cv_keymethod_random *server, const uint8_t client_sid[8],
                        const uint8_t server_sid[8], uint8_t out[CV_KEYMETHOD_KEYS_LEN])
{
    uint8_t seed[128], master[48];
    struct cv_wr w;
    cv_wr_init(&w, seed, sizeof(seed));
    cv_wr_bytes(&w, "OpenVPN master secret", 21);
    cv_wr_bytes(&w, client->r1, sizeof(client->r1));
    cv_wr_bytes(&w, server->r1, sizeof(server->r1));
    int ret = prf(client->pre, sizeof(client->pre), seed, w.len, master, sizeof(master));
    cv_wr_init(&w, seed, sizeof(seed));
    cv_wr_bytes(&w, "OpenVPN key expansion", 21);
    cv_wr_bytes(&w, client->r2, sizeof(client->r2));
    cv_wr_bytes(&w, server->r2, sizeof(server->r2));
    cv_wr_bytes(&w, client_sid, 8);
    cv_wr_bytes(&w, server_sid, 8);
    if (ret == 0)
        ret = prf(master, sizeof(master), seed, w.len, out, CV_KEYMETHOD_KEYS_LEN);
    cv_secret_clear(seed, sizeof(seed));
    cv_secret_clear(master, sizeof(master));
    return ret;
}
