#include "tunnel/tlschan.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/secret.h"

#include "common/poison.h"

#define STREAM_MAX (256u << 10) /* bytes of TLS that may wait in memory */

struct cv_tlschan_ctx {
    SSL_CTX *ssl;               /* owned */
    const struct cv_profile *p; /* borrowed */
};

struct cv_tlschan {
    SSL *ssl;      /* owned, with its two memory BIOs */
    BIO *in, *out; /* of 'ssl' */
    const struct cv_profile *p;
    bool done, untrusted;
    char error[224];
};

/* ---- texts ---- */

CV_PRINTF(2, 3)
static int ctx_fail(char **reterr, const char *fmt, ...)
{
    char text[400], why[160] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    unsigned long e = ERR_peek_last_error();
    if (e != 0)
        snprintf(why, sizeof(why), ": %s",
                 ERR_reason_error_string(e) != NULL ? ERR_reason_error_string(e)
                                                    : "unknown reason");
    ERR_clear_error();
    if (*reterr == NULL) {
        size_t n = strlen(text) + strlen(why) + 1;
        *reterr = cv_try_alloc(n);
        if (*reterr != NULL)
            snprintf(*reterr, n, "%s%s", text, why);
    }
    return CV_E_TLS;
}

/* ---- the context ---- */

static X509 *next_cert(BIO *b)
{
    return PEM_read_bio_X509(b, NULL, NULL, NULL);
}

static int load_ca(SSL_CTX *ssl, const struct cv_profile *p, char **reterr)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ssl);
    BIO *b = BIO_new_mem_buf(p->ca, -1);
    X509 *x;
    size_t n = 0;
    while (b != NULL && (x = next_cert(b)) != NULL) {
        n += X509_STORE_add_cert(store, x) == 1;
        X509_free(x);
    }
    BIO_free(b);
    ERR_clear_error(); /* "no start line" at the end */
    if (n == 0)
        return ctx_fail(reterr, "'ca' holds no certificate");
    if (p->crl == NULL)
        return 0;
    b = BIO_new_mem_buf(p->crl, -1);
    X509_CRL *crl;
    n = 0;
    while (b != NULL && (crl = PEM_read_bio_X509_CRL(b, NULL, NULL, NULL)) != NULL) {
        n += X509_STORE_add_crl(store, crl) == 1;
        X509_CRL_free(crl);
    }
    BIO_free(b);
    ERR_clear_error();
    if (n == 0)
        return ctx_fail(reterr, "'crl-verify' holds no revocation list");
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    return 0;
}

static int add_chain(SSL_CTX *ssl, const char *pem, bool skip_first)
{
    BIO *b = BIO_new_mem_buf(pem, -1);
    X509 *x;
    int ret = b != NULL ? 0 : -ENOMEM;
    while (ret == 0 && (x = next_cert(b)) != NULL) {
        if (skip_first || SSL_CTX_add0_chain_cert(ssl, x) != 1)
            X509_free(x);
        skip_first = false;
    }
    BIO_free(b);
    ERR_clear_error();
    return ret;
}

static int no_password(char *buf, int size, int rwflag, void *arg)
{
    return 0;
}

static int load_cert(SSL_CTX *ssl, const struct cv_profile *p, char **reterr)
{
    if (p->cert == NULL)
        return 0;
    BIO *b = BIO_new_mem_buf(p->cert, -1);
    X509 *x = b != NULL ? next_cert(b) : NULL;
    BIO_free(b);
    if (x == NULL)
        return ctx_fail(reterr, "'cert' holds no certificate");
    int ok = SSL_CTX_use_certificate(ssl, x);
    X509_free(x);
    if (ok != 1)
        return ctx_fail(reterr,
                        "'cert' cannot be used (tls-cert-profile insecure admits weak ones)");
    if (add_chain(ssl, p->cert, true) != 0 ||
        (p->extra_certs != NULL && add_chain(ssl, p->extra_certs, false) != 0))
        return -ENOMEM;
    b = BIO_new_mem_buf(p->key, -1);
    EVP_PKEY *key = b != NULL ? PEM_read_bio_PrivateKey(b, NULL, no_password, NULL) : NULL;
    BIO_free(b);
    if (key == NULL)
        return ctx_fail(reterr, "'key' holds no private key without a password");
    ok = SSL_CTX_use_PrivateKey(ssl, key);
    EVP_PKEY_free(key);
    if (ok != 1 || SSL_CTX_check_private_key(ssl) != 1)
        return ctx_fail(reterr, "'key' does not belong to 'cert'");
    return 0;
}

static int version(int v)
{
    return v == 10   ? TLS1_VERSION
           : v == 11 ? TLS1_1_VERSION
           : v == 13 ? TLS1_3_VERSION
                     : TLS1_2_VERSION;
}

/* OpenVPN's names ("TLS-ECDHE-RSA-WITH-AES-256-GCM-SHA384") in OpenSSL's list. */
static void cipher_list(const char *list, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    while (*list != '\0') {
        char name[128];
        size_t n = strcspn(list, ":");
        snprintf(name, sizeof(name), "%.*s", (int)CV_MIN(n, sizeof(name) - 1), list);
        list += n + (list[n] == ':');
        char std[128];
        snprintf(std, sizeof(std), "%s", name);
        for (char *c = std; *c != '\0'; c++)
            if (*c == '-')
                *c = '_';
        const char *ossl = strncmp(name, "TLS-", 4) == 0 ? OPENSSL_cipher_name(std) : NULL;
        if (ossl == NULL || strcmp(ossl, "(NONE)") == 0)
            ossl = name;
        int k = snprintf(out + at, cap - at, "%s%s", at > 0 ? ":" : "", ossl);
        if (k < 0 || (size_t)k >= cap - at)
            return;
        at += (size_t)k;
    }
}

static int set_rules(SSL_CTX *ssl, const struct cv_profile *p, char **reterr)
{
    char list[2048];
    /* As OpenVPN does: its "legacy" is level 1, so that old servers can be reached; the profile may
     * ask for more or less. TLS before 1.2 needs level 0. */
    int level = p->security_level >= 0 ? p->security_level : 1;
    int min = p->tls_min != 0 ? p->tls_min : 12;
    if (p->tls_max != 0 && p->tls_max < min)
        min = p->tls_max;
    if (min < 12)
        level = 0;
    SSL_CTX_set_security_level(ssl, level);
    SSL_CTX_set_min_proto_version(ssl, version(min));
    if (p->tls_max != 0)
        SSL_CTX_set_max_proto_version(ssl, version(p->tls_max));
    if (p->tls_cipher != NULL) {
        cipher_list(p->tls_cipher, list, sizeof(list));
        if (SSL_CTX_set_cipher_list(ssl, list) != 1)
            return ctx_fail(reterr, "'tls-cipher' names no cipher that is known");
    }
    if (p->tls_ciphersuites != NULL) {
        snprintf(list, sizeof(list), "%.2000s", p->tls_ciphersuites);
        for (char *c = list; *c != '\0'; c++)
            if (*c == '-')
                *c = '_';
        if (SSL_CTX_set_ciphersuites(ssl, list) != 1)
            return ctx_fail(reterr, "'tls-ciphersuites' names no cipher suite that is known");
    }
    if (p->tls_groups != NULL && SSL_CTX_set1_groups_list(ssl, p->tls_groups) != 1)
        return ctx_fail(reterr, "'tls-groups' names no group that is known");
    return 0;
}

/* With fingerprints and no authority the certificate itself is what is known: see check_print(). */
static int accept_any(int ok, X509_STORE_CTX *c)
{
    return 1;
}

int cv_tlschan_ctx_new(const struct cv_profile *p, char **reterr, struct cv_tlschan_ctx **ret_ctx)
{
    *reterr = NULL;
    struct cv_tlschan_ctx *ctx = cv_try_zalloc(sizeof(*ctx));
    if (ctx == NULL)
        return -ENOMEM;
    ctx->p = p;
    ctx->ssl = SSL_CTX_new(TLS_client_method());
    int ret = ctx->ssl != NULL ? set_rules(ctx->ssl, p, reterr) : -ENOMEM;
    if (ret == 0 && p->ca != NULL)
        ret = load_ca(ctx->ssl, p, reterr);
    if (ret == 0)
        ret = load_cert(ctx->ssl, p, reterr);
    if (ret == 0) {
        SSL_CTX_set_verify(ctx->ssl, SSL_VERIFY_PEER, p->ca == NULL ? accept_any : NULL);
        SSL_CTX_set_session_cache_mode(ctx->ssl, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(ctx->ssl,
                            SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_mode(ctx->ssl, SSL_MODE_RELEASE_BUFFERS);
        /* The purpose is checked by the profile's words, as OpenVPN does. */
        X509_VERIFY_PARAM_set_purpose(SSL_CTX_get0_param(ctx->ssl), X509_PURPOSE_ANY);
        *ret_ctx = ctx;
        return 0;
    }
    cv_tlschan_ctx_free(ctx);
    return ret;
}

void cv_tlschan_ctx_free(struct cv_tlschan_ctx *ctx)
{
    if (ctx == NULL)
        return;
    SSL_CTX_free(ctx->ssl);
    cv_free(ctx);
}

/* ---- one connection ---- */

int cv_tlschan_new(struct cv_tlschan_ctx *ctx, struct cv_tlschan **ret_chan)
{
    struct cv_tlschan *c = cv_try_zalloc(sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->p = ctx->p;
    c->ssl = SSL_new(ctx->ssl);
    c->in = BIO_new(BIO_s_mem());
    c->out = BIO_new(BIO_s_mem());
    if (c->ssl == NULL || c->in == NULL || c->out == NULL) {
        BIO_free(c->in);
        BIO_free(c->out);
        SSL_free(c->ssl);
        cv_free(c);
        return -ENOMEM;
    }
    BIO_set_mem_eof_return(c->in, -1);
    BIO_set_mem_eof_return(c->out, -1);
    SSL_set_bio(c->ssl, c->in, c->out);
    SSL_set_connect_state(c->ssl);
    *ret_chan = c;
    return 0;
}

void cv_tlschan_free(struct cv_tlschan *c)
{
    if (c == NULL)
        return;
    SSL_free(c->ssl);
    cv_free(c);
}

int cv_tlschan_feed(struct cv_tlschan *c, const void *data, size_t len)
{
    if (len == 0)
        return 0;
    if (BIO_ctrl_pending(c->in) + len > STREAM_MAX)
        return CV_E_LIMIT;
    return BIO_write(c->in, data, (int)len) == (int)len ? 0 : CV_E_LIMIT;
}

CV_PRINTF(3, 4)
static int fail(struct cv_tlschan *c, bool untrusted, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->error, sizeof(c->error), fmt, ap);
    va_end(ap);
    c->untrusted = untrusted;
    return CV_E_TLS;
}

/* ---- the server's certificate, beyond its chain ---- */

static bool check_print(const struct cv_profile *p, X509 *x)
{
    uint8_t md[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (X509_digest(x, EVP_sha256(), md, &n) != 1 || n != 32)
        return false;
    for (size_t i = 0; i < p->n_prints; i++)
        if (cv_ct_equal(md, 32, p->prints[i], 32))
            return true;
    return false;
}

/* "C=JP, O=x, CN=y", as OpenVPN writes subjects. */
static bool subject_text(X509 *x, char *out, size_t cap)
{
    BIO *b = BIO_new(BIO_s_mem());
    char *text = NULL;
    bool ok = false;
    if (b != NULL &&
        X509_NAME_print_ex(b, X509_get_subject_name(x), 0,
                           XN_FLAG_SEP_CPLUS_SPC | XN_FLAG_FN_SN | ASN1_STRFLGS_UTF8_CONVERT |
                               ASN1_STRFLGS_ESC_CTRL) >= 0) {
        long n = BIO_get_mem_data(b, &text);
        ok = n >= 0 && (size_t)n < cap;
        snprintf(out, cap, "%.*s", (int)CV_MAX(n, 0), text);
    }
    BIO_free(b);
    return ok;
}

static bool common_name(X509 *x, char *out, size_t cap)
{
    X509_NAME *name = X509_get_subject_name(x);
    int last = -1, i;
    while ((i = X509_NAME_get_index_by_NID(name, NID_commonName, last)) >= 0)
        last = i;
    if (last < 0)
        return false;
    unsigned char *utf8 = NULL;
    int n = ASN1_STRING_to_UTF8(&utf8, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, last)));
    bool ok = n >= 0 && (size_t)n < cap && memchr(utf8, '\0', (size_t)n) == NULL;
    if (ok)
        snprintf(out, cap, "%.*s", n, (const char *)utf8);
    OPENSSL_free(utf8);
    return ok;
}

static bool check_name(const struct cv_profile *p, X509 *x)
{
    char text[1024];
    const char *want = p->verify_name;
    switch (p->verify_name_kind) {
    case CV_PROFILE_NAME_NONE:
        return true;
    case CV_PROFILE_NAME_SUBJECT:
        return subject_text(x, text, sizeof(text)) && strcmp(text, want) == 0;
    case CV_PROFILE_NAME_CN:
        return common_name(x, text, sizeof(text)) && strcmp(text, want) == 0;
    case CV_PROFILE_NAME_PREFIX:
        return common_name(x, text, sizeof(text)) && strncmp(text, want, strlen(want)) == 0;
    }
    return false;
}

static bool has_eku(X509 *x, const char *want)
{
    EXTENDED_KEY_USAGE *eku = X509_get_ext_d2i(x, NID_ext_key_usage, NULL, NULL);
    bool found = false;
    for (int i = 0; eku != NULL && !found && i < sk_ASN1_OBJECT_num(eku); i++) {
        char oid[80];
        ASN1_OBJECT *o = sk_ASN1_OBJECT_value(eku, i);
        int nid = OBJ_obj2nid(o);
        OBJ_obj2txt(oid, sizeof(oid), o, 1);
        found = strcmp(oid, want) == 0 ||
                (nid != NID_undef &&
                 (strcmp(OBJ_nid2ln(nid), want) == 0 || strcasecmp(OBJ_nid2sn(nid), want) == 0));
    }
    sk_ASN1_OBJECT_pop_free(eku, ASN1_OBJECT_free);
    return found;
}

static int check_peer(struct cv_tlschan *c)
{
    const struct cv_profile *p = c->p;
    X509 *x = SSL_get1_peer_certificate(c->ssl);
    int ret = 0;
    char cn[256] = "?";
    if (x == NULL)
        return fail(c, true, "the server has shown no certificate");
    common_name(x, cn, sizeof(cn));
    if (p->n_prints > 0 && !check_print(p, x))
        ret = fail(c, true, "the server's certificate has none of the peer-fingerprints");
    else if (!check_name(p, x))
        ret = fail(c, true,
                   "the server's certificate is for '%.80s', not as verify-x509-name wants", cn);
    else if (p->remote_cert_tls &&
             (!has_eku(x, "serverAuth") || (X509_get_extension_flags(x) & EXFLAG_KUSAGE) == 0))
        ret = fail(c, true, "the certificate of '%.80s' is not one for servers (remote-cert-tls)",
                   cn);
    else if (p->remote_eku[0] != '\0' && !has_eku(x, p->remote_eku))
        ret =
            fail(c, true, "the certificate of '%.80s' lacks the key usage of remote-cert-eku", cn);
    X509_free(x);
    return ret;
}

static int handshake_failed(struct cv_tlschan *c)
{
    long v = SSL_get_verify_result(c->ssl);
    unsigned long e = ERR_peek_last_error();
    const char *why = e != 0 ? ERR_reason_error_string(e) : NULL;
    ERR_clear_error();
    if (v != X509_V_OK && c->p->ca != NULL)
        return fail(c, true, "the server's certificate does not verify: %s",
                    X509_verify_cert_error_string(v));
    return fail(c, false, "the TLS handshake failed: %s", why != NULL ? why : "unknown reason");
}

int cv_tlschan_step(struct cv_tlschan *c)
{
    if (c->done)
        return 0;
    if (c->error[0] != '\0')
        return CV_E_TLS;
    ERR_clear_error();
    int n = SSL_do_handshake(c->ssl);
    if (n != 1)
        return SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_READ ? CV_E_MORE : handshake_failed(c);
    int ret = check_peer(c);
    c->done = ret == 0;
    return ret;
}

bool cv_tlschan_is_done(const struct cv_tlschan *c)
{
    return c->done;
}

int cv_tlschan_write(struct cv_tlschan *c, const void *data, size_t len)
{
    ERR_clear_error();
    if (!c->done || BIO_ctrl_pending(c->out) > STREAM_MAX)
        return CV_E_TLS;
    return SSL_write(c->ssl, data, (int)len) == (int)len ? 0 : CV_E_TLS;
}

int cv_tlschan_read(struct cv_tlschan *c, void *buf, size_t cap, size_t *ret_n)
{
    ERR_clear_error();
    int n = SSL_read(c->ssl, buf, (int)cap);
    if (n > 0) {
        *ret_n = (size_t)n;
        return 0;
    }
    switch (SSL_get_error(c->ssl, n)) {
    case SSL_ERROR_WANT_READ:
        return CV_E_MORE;
    case SSL_ERROR_ZERO_RETURN:
        return -EPIPE;
    default:
        return handshake_failed(c);
    }
}

size_t cv_tlschan_pull(struct cv_tlschan *c, void *buf, size_t cap)
{
    int n = BIO_read(c->out, buf, (int)cap);
    return n > 0 ? (size_t)n : 0;
}

size_t cv_tlschan_pending(const struct cv_tlschan *c)
{
    return BIO_ctrl_pending(c->out);
}

int cv_tlschan_export(struct cv_tlschan *c, const char *label, void *out, size_t len)
{
    return SSL_export_keying_material(c->ssl, out, len, label, strlen(label), NULL, 0, 0) == 1
               ? 0
               : CV_E_TLS;
}

const char *cv_tlschan_error(const struct cv_tlschan *c)
{
    return c->error;
}

bool cv_tlschan_is_untrusted(const struct cv_tlschan *c)
{
    return c->untrusted;
}

char *cv_tlschan_describe(const struct cv_tlschan *c, char *out, size_t cap)
{
    char cn[200] = "?";
    X509 *x = SSL_get0_peer_certificate(c->ssl);
    if (x != NULL)
        common_name(x, cn, sizeof(cn));
    snprintf(out, cap, "%s %s, certificate of '%s'", SSL_get_version(c->ssl),
             SSL_get_cipher_name(c->ssl), cn);
    return out;
}
