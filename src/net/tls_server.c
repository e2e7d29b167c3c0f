#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/name.h"
#include "common/secret.h"
#include "net/tls.h"
#include "net/tls_priv.h"
#include "net/tls_tickets.h"

#include "common/poison.h"

#define PEM_MAX   (1U << 20)
#define CERTS_MAX 1024
#define NAMES_MAX 65536

struct server_name {
    char *name; /* owned; canonical, or "*." and a canonical name */
    SSL_CTX *ssl;
};

/* A file as it was just before it was read. */
struct source {
    char *path; /* owned */
    bool present;
    struct cv_file_stamp stamp;
};

struct cv_tls_server_ctx {
    atomic_uint refs;
    SSL_CTX **ssl; /* owned, n of them; the first is the default */
    size_t n_ssl;
    struct source *sources; /* owned; certificate and key of each, then those of clients */
    size_t n_sources;
    struct cv_tls_tickets *tickets; /* a reference */
    struct cv_tls_trust trust;      /* without a store: clients are not asked */
    enum cv_tls_user_from user_from;
    char *alpn; /* owned; as it goes over the wire, with its length in front; NULL: none */
    bool alpn_strict;
    bool only_tls13;
    uint8_t scope[SSL_MAX_SID_CTX_LENGTH];
    struct server_name *names; /* owned; sorted once all are there */
    size_t n_names;
};

/* ---- certificates ---- */

static int read_pem(const char *path, const char *what, char **reterr_text, char **ret_data,
                    size_t *ret_len)
{
    int ret = cv_file_read(path, PEM_MAX, ret_data, ret_len);
    if (ret != 0)
        cv_tls_say(ret, reterr_text, false, "%s file '%s': %s", what, path, cv_err_text(ret));
    return ret;
}

static int use_chain(SSL_CTX *ssl, BIO *bio, X509 **ret_leaf)
{
    X509 *leaf = PEM_read_bio_X509_AUX(bio, NULL, cv_tls_no_passphrase, NULL);
    if (leaf == NULL)
        return CV_E_INVALID;
    if (SSL_CTX_use_certificate(ssl, leaf) != 1) {
        X509_free(leaf);
        return CV_E_INVALID;
    }
    X509 *next;
    while ((next = PEM_read_bio_X509(bio, NULL, cv_tls_no_passphrase, NULL)) != NULL) {
        if (SSL_CTX_add0_chain_cert(ssl, next) != 1) {
            X509_free(next);
            X509_free(leaf);
            return CV_E_INVALID;
        }
    }
    /* The only good reason to stop is the end of the file. */
    unsigned long e = ERR_peek_last_error();
    if (ERR_GET_LIB(e) != ERR_LIB_PEM || ERR_GET_REASON(e) != PEM_R_NO_START_LINE) {
        X509_free(leaf);
        return CV_E_INVALID;
    }
    ERR_clear_error();
    *ret_leaf = leaf;
    return 0;
}

static int load_chain(SSL_CTX *ssl, const char *path, char **reterr_text, X509 **ret_leaf)
{
    char *data = NULL;
    size_t len = 0;
    int ret = read_pem(path, "certificate", reterr_text, &data, &len);
    if (ret != 0)
        return ret;
    ERR_clear_error();
    BIO *bio = BIO_new_mem_buf(data, (int)len);
    ret = bio != NULL ? use_chain(ssl, bio, ret_leaf) : -ENOMEM;
    BIO_free(bio);
    cv_free(data);
    if (ret != 0)
        cv_tls_say(ret, reterr_text, true, "certificate file '%s' is not usable", path);
    return ret;
}

static int load_key(SSL_CTX *ssl, const struct cv_tls_cert *c, char **reterr_text)
{
    char *data = NULL;
    size_t len = 0;
    int ret = read_pem(c->key_file, "key", reterr_text, &data, &len);
    if (ret != 0)
        return ret;
    ERR_clear_error();
    BIO *bio = BIO_new_mem_buf(data, (int)len);
    EVP_PKEY *key = NULL;
    if (bio != NULL)
        key = PEM_read_bio_PrivateKey(bio, NULL, cv_tls_no_passphrase, NULL);
    BIO_free(bio);
    cv_secret_clear(data, len);
    cv_free(data);
    if (key == NULL)
        return cv_tls_say(CV_E_INVALID, reterr_text, true, "key file '%s' is not usable",
                          c->key_file);
    ret = SSL_CTX_use_PrivateKey(ssl, key) == 1 && SSL_CTX_check_private_key(ssl) == 1
              ? 0
              : CV_E_INVALID;
    EVP_PKEY_free(key);
    if (ret != 0)
        cv_tls_say(ret, reterr_text, true, "key file '%s' does not belong to certificate file '%s'",
                   c->key_file, c->cert_file);
    return ret;
}

/* ---- names ---- */

/* Canonical form of a declared name; a "*" as the first label stays. */
static int declared_name(const char *s, char out[CV_NAME_MAX + 3])
{
    size_t skip = s[0] == '*' && s[1] == '.' ? 2 : 0, len;
    memcpy(out, s, skip);
    int ret = cv_name_canon(s + skip, strnlen(s + skip, CV_NAME_MAX * 4), out + skip, &len);
    if (ret != 0 || skip + len > CV_NAME_MAX)
        return CV_E_INVALID;
    return 0;
}

static int add_name(struct cv_tls_server_ctx *ctx, SSL_CTX *ssl, const char *declared, X509 *leaf,
                    const struct cv_tls_cert *c, char **reterr_text)
{
    char name[CV_NAME_MAX + 3];
    if (declared_name(declared, name) != 0)
        return cv_tls_say(CV_E_INVALID, reterr_text, false,
                          "server name '%.300s' of certificate file '%s' is not a host name",
                          declared, c->cert_file);
    /* Clients look at alternative names only, not at the subject's common name. */
    if (X509_check_host(leaf, name, strlen(name),
                        X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS,
                        NULL) != 1)
        return cv_tls_say(CV_E_INVALID, reterr_text, false,
                          "server name '%s' is not covered by certificate file '%s'", name,
                          c->cert_file);
    if (ctx->n_names >= NAMES_MAX)
        return cv_tls_say(CV_E_LIMIT, reterr_text, false, "more than %d server names", NAMES_MAX);
    void *p = cv_try_realloc_array(ctx->names, ctx->n_names + 1, sizeof(ctx->names[0]));
    char *copy = cv_try_strndup(name, strlen(name));
    if (p != NULL)
        ctx->names = p;
    if (p == NULL || copy == NULL) {
        cv_free(copy);
        return cv_tls_say(-ENOMEM, reterr_text, false, "out of memory");
    }
    ctx->names[ctx->n_names++] = (struct server_name){.name = copy, .ssl = ssl};
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct server_name *)a)->name, ((const struct server_name *)b)->name);
}

static SSL_CTX *find_name(const struct cv_tls_server_ctx *ctx, char *name)
{
    struct server_name key = {.name = name};
    const struct server_name *found = NULL;
    if (ctx->n_names > 0)
        found = bsearch(&key, ctx->names, ctx->n_names, sizeof(key), compare_names);
    return found != NULL ? found->ssl : NULL;
}

static SSL_CTX *choose(const struct cv_tls_server_ctx *ctx, char *name)
{
    SSL_CTX *ssl = find_name(ctx, name);
    char *dot = strchr(name, '.');
    if (ssl != NULL || dot == NULL || dot == name)
        return ssl;
    /* The wildcard stands for exactly one label: "a.example.com" is asked for as "*.example.com".
     */
    char wild[CV_NAME_MAX + 2] = "*";
    memcpy(wild + 1, dot, strlen(dot) + 1);
    return find_name(ctx, wild);
}

static int on_servername(SSL *ssl, int *alert, void *arg)
{
    const struct cv_tls_server_ctx *ctx = arg;
    struct cv_tls *t = SSL_get_app_data(ssl);
    const char *sni = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    char name[CV_NAME_MAX + 1];
    size_t len;
    (void)alert;
    if (sni == NULL || cv_name_canon(sni, strlen(sni), name, &len) != 0)
        return SSL_TLSEXT_ERR_NOACK;
    cv_free(t->name);
    t->name = cv_try_strndup(name, len);
    SSL_CTX *chosen = choose(ctx, name);
    if (chosen != NULL && chosen != SSL_get_SSL_CTX(ssl))
        SSL_set_SSL_CTX(ssl, chosen);
    /* Also for the default certificate: the session then keeps the name, by which TLS 1.2 knows it
     * when it is resumed. */
    return SSL_TLSEXT_ERR_OK;
}

static int on_alpn(SSL *ssl, const unsigned char **ret, unsigned char *ret_len,
                   const unsigned char *offer, unsigned offer_len, void *arg)
{
    const struct cv_tls_server_ctx *ctx = arg;
    unsigned char *chosen;
    (void)ssl;
    if (SSL_select_next_proto(&chosen, ret_len, (const unsigned char *)ctx->alpn,
                              (unsigned)strlen(ctx->alpn), offer,
                              offer_len) == OPENSSL_NPN_NEGOTIATED) {
        *ret = chosen;
        return SSL_TLSEXT_ERR_OK;
    }
    return ctx->alpn_strict ? SSL_TLSEXT_ERR_ALERT_FATAL : SSL_TLSEXT_ERR_NOACK;
}

/* ---- contexts ---- */

static bool ssl_configure(struct cv_tls_server_ctx *ctx, SSL_CTX *ssl)
{
    if (ctx->only_tls13 && !SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION))
        return false;
    if (!SSL_CTX_set_session_id_context(ssl, ctx->scope, sizeof(ctx->scope)) ||
        !cv_tls_tickets_use(ctx->tickets, ssl))
        return false;
    /* A greeting in early data can be replayed, and with it a login. */
    if (!SSL_CTX_set_max_early_data(ssl, 0))
        return false;
    if (ctx->alpn != NULL)
        SSL_CTX_set_alpn_select_cb(ssl, on_alpn, ctx);
    return ctx->trust.store == NULL || cv_tls_trust_use(&ctx->trust, ssl) == 0;
}

static SSL_CTX *ssl_new(struct cv_tls_server_ctx *ctx)
{
    SSL_CTX *ssl = cv_tls_ssl_ctx_new(false);
    if (ssl == NULL)
        return NULL;
    SSL_CTX_set_default_passwd_cb(ssl, cv_tls_no_passphrase);
    /* Sessions are resumed by tickets: nothing is stored here, no lock is shared. */
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    /* Each ticket of TLS 1.3 is a write of its own, and a resumed session brings a fresh one. */
    SSL_CTX_set_num_tickets(ssl, 1);
    SSL_CTX_set_tlsext_servername_callback(ssl, on_servername);
    SSL_CTX_set_tlsext_servername_arg(ssl, ctx);
    if (!ssl_configure(ctx, ssl)) {
        SSL_CTX_free(ssl);
        return NULL;
    }
    return ssl;
}

static int add_cert(struct cv_tls_server_ctx *ctx, const struct cv_tls_cert *c, char **reterr_text)
{
    SSL_CTX *ssl = ssl_new(ctx);
    if (ssl == NULL)
        return cv_tls_say(-ENOMEM, reterr_text, true, "tls context");
    ctx->ssl[ctx->n_ssl++] = ssl;
    X509 *leaf = NULL;
    int ret = load_chain(ssl, c->cert_file, reterr_text, &leaf);
    if (ret == 0)
        ret = load_key(ssl, c, reterr_text);
    for (size_t i = 0; i < c->n_server_names && ret == 0; i++)
        ret = add_name(ctx, ssl, c->server_names[i], leaf, c, reterr_text);
    X509_free(leaf);
    return ret;
}

static int sort_names(struct cv_tls_server_ctx *ctx, char **reterr_text)
{
    if (ctx->n_names > 1)
        qsort(ctx->names, ctx->n_names, sizeof(ctx->names[0]), compare_names);
    for (size_t i = 1; i < ctx->n_names; i++)
        if (strcmp(ctx->names[i - 1].name, ctx->names[i].name) == 0)
            return cv_tls_say(CV_E_INVALID, reterr_text, false, "server name '%s' is used twice",
                              ctx->names[i].name);
    return 0;
}

/* ---- files ---- */

/* Before the file is read: what changes in between is seen later. */
static void note_source(struct cv_tls_server_ctx *ctx, const char *path)
{
    struct source *s = &ctx->sources[ctx->n_sources++];
    s->path = cv_strdup(path);
    s->present = cv_file_stamp(path, &s->stamp) == 0;
}

static void note_sources(struct cv_tls_server_ctx *ctx, const struct cv_tls_cert *certs, size_t n,
                         const struct cv_tls_server_opts *o)
{
    ctx->sources = cv_zalloc((n * 2 + 2) * sizeof(ctx->sources[0]));
    for (size_t i = 0; i < n; i++) {
        note_source(ctx, certs[i].cert_file);
        note_source(ctx, certs[i].key_file);
    }
    if (o->client_ca != NULL)
        note_source(ctx, o->client_ca);
    if (o->client_ca != NULL && o->client_crl != NULL)
        note_source(ctx, o->client_crl);
}

static uint64_t digest_add(uint64_t sum, bool present, const struct cv_file_stamp *stamp)
{
    const uint64_t v[] = {sum,
                          present,
                          present ? stamp->dev : 0,
                          present ? stamp->ino : 0,
                          present ? (uint64_t)stamp->size : 0,
                          present ? (uint64_t)stamp->mtime_ns : 0};
    return cv_hash_bytes(NULL, v, sizeof(v));
}

uint64_t cv_tls_server_ctx_loaded(const struct cv_tls_server_ctx *ctx)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ctx->n_sources; i++)
        sum = digest_add(sum, ctx->sources[i].present, &ctx->sources[i].stamp);
    return sum;
}

uint64_t cv_tls_server_ctx_look(const struct cv_tls_server_ctx *ctx)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ctx->n_sources; i++) {
        struct cv_file_stamp stamp;
        bool present = cv_file_stamp(ctx->sources[i].path, &stamp) == 0;
        sum = digest_add(sum, present, &stamp);
    }
    return sum;
}

size_t cv_tls_server_ctx_files(const struct cv_tls_server_ctx *ctx)
{
    return ctx->n_sources;
}

size_t cv_tls_server_ctx_count(const struct cv_tls_server_ctx *ctx)
{
    return ctx->n_ssl;
}

static int64_t unix_time(const ASN1_TIME *t)
{
    struct tm tm;
    return ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

void cv_tls_server_ctx_cert(const struct cv_tls_server_ctx *ctx, size_t i,
                            struct cv_tls_cert_info *ret)
{
    CV_ASSERT(i < ctx->n_ssl);
    const X509 *x = SSL_CTX_get0_certificate(ctx->ssl[i]);
    *ret = (struct cv_tls_cert_info){
        .cert_file = ctx->sources[i * 2].path,
        .not_before_s = unix_time(X509_get0_notBefore(x)),
        .not_after_s = unix_time(X509_get0_notAfter(x)),
    };
}

/* ---- life ---- */

static int take_opts(struct cv_tls_server_ctx *ctx, const struct cv_tls_server_opts *o,
                     char **reterr_text)
{
    const char *scope = o->scope != NULL ? o->scope : "";
    ctx->only_tls13 = o->only_tls13;
    ctx->alpn_strict = o->alpn_strict;
    ctx->user_from = o->user_from;
    ctx->tickets = o->tickets != NULL ? cv_tls_tickets_ref(o->tickets) : cv_tls_tickets_new();
    if (o->alpn != NULL) {
        size_t len = strlen(o->alpn);
        CV_ASSERT(len > 0 && len < 128);
        ctx->alpn = cv_zalloc(len + 2);
        ctx->alpn[0] = (char)len;
        memcpy(ctx->alpn + 1, o->alpn, len);
    }
    if (EVP_Digest(scope, strlen(scope), ctx->scope, NULL, EVP_sha256(), NULL) != 1)
        return cv_tls_say(-ENOMEM, reterr_text, true, "tls context");
    return o->client_ca != NULL ? cv_tls_trust_load(&ctx->trust, o, reterr_text) : 0;
}

int cv_tls_server_ctx_new_with(const struct cv_tls_cert *certs, size_t n_certs,
                               const struct cv_tls_server_opts *opts, char **reterr_text,
                               struct cv_tls_server_ctx **ret_ctx)
{
    if (n_certs == 0 || n_certs > CERTS_MAX)
        return cv_tls_say(CV_E_INVALID, reterr_text, false, "tls needs 1 to %d certificates",
                          CERTS_MAX);
    struct cv_tls_server_ctx *ctx = cv_zalloc(sizeof(*ctx));
    atomic_init(&ctx->refs, 1);
    ctx->ssl = cv_zalloc(n_certs * sizeof(ctx->ssl[0]));
    note_sources(ctx, certs, n_certs, opts);
    int ret = take_opts(ctx, opts, reterr_text);
    for (size_t i = 0; i < n_certs && ret == 0; i++) {
        if (i > 0 && certs[i].n_server_names == 0)
            ret = cv_tls_say(CV_E_INVALID, reterr_text, false,
                             "certificate file '%s' needs a server name", certs[i].cert_file);
        else
            ret = add_cert(ctx, &certs[i], reterr_text);
    }
    if (ret == 0)
        ret = sort_names(ctx, reterr_text);
    if (ret != 0) {
        cv_tls_server_ctx_unref(ctx);
        return ret;
    }
    *ret_ctx = ctx;
    return 0;
}

int cv_tls_server_ctx_new(const struct cv_tls_cert *certs, size_t n_certs, char **reterr_text,
                          struct cv_tls_server_ctx **ret_ctx)
{
    static const struct cv_tls_server_opts defaults;
    return cv_tls_server_ctx_new_with(certs, n_certs, &defaults, reterr_text, ret_ctx);
}

struct cv_tls_server_ctx *cv_tls_server_ctx_ref(struct cv_tls_server_ctx *ctx)
{
    atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
    return ctx;
}

void cv_tls_server_ctx_unref(struct cv_tls_server_ctx *ctx)
{
    if (ctx == NULL || atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (size_t i = 0; i < ctx->n_ssl; i++)
        SSL_CTX_free(ctx->ssl[i]);
    for (size_t i = 0; i < ctx->n_names; i++)
        cv_free(ctx->names[i].name);
    for (size_t i = 0; i < ctx->n_sources; i++)
        cv_free(ctx->sources[i].path);
    cv_free(ctx->ssl);
    cv_free(ctx->names);
    cv_free(ctx->sources);
    cv_free(ctx->alpn);
    cv_tls_trust_done(&ctx->trust);
    cv_tls_tickets_unref(ctx->tickets);
    cv_free(ctx);
}

static void unref(void *ctx)
{
    cv_tls_server_ctx_unref(ctx);
}

int cv_tls_server(struct cv_tls_server_ctx *ctx, struct cv_stream *below, const void *early,
                  size_t early_len, struct cv_stream **ret_stream)
{
    struct cv_tls *t;
    int ret = cv_tls_open(ctx->ssl[0], false, below, cv_tls_server_ctx_ref(ctx), unref, &t);
    if (ret != 0)
        return ret;
    if (early_len > 0) {
        t->early = cv_try_alloc(early_len);
        if (t->early == NULL) {
            cv_stream_close(&t->super, false);
            return -ENOMEM;
        }
        memcpy(t->early, early, early_len);
        t->early_len = early_len;
    }
    *ret_stream = &t->super;
    return 0;
}

int cv_tls_peer_user(const struct cv_stream *s, char out[CV_TLS_USER_MAX + 1])
{
    const struct cv_tls *t = cv_tls_of(s);
    const struct cv_tls_server_ctx *ctx = t->ctx;
    CV_ASSERT(!t->is_client);
    if (ctx->trust.store == NULL)
        return CV_E_NOTFOUND;
    /* Asked too early, nobody is known to be there or not to be. */
    if (!t->established || SSL_get_verify_result(t->ssl) != X509_V_OK)
        return CV_E_AUTH;
    const X509 *x = SSL_get0_peer_certificate(t->ssl);
    if (x == NULL)
        return ctx->trust.required ? CV_E_AUTH : CV_E_NOTFOUND;
    return cv_tls_name_of(x, ctx->user_from, out);
}
