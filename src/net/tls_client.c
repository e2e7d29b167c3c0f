#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/list.h"
#include "net/tls.h"
#include "net/tls_priv.h"

#include "common/poison.h"

#define SESSIONS_MAX  128
#define ALPN_WIRE_MAX 1024

/* The last session with one server. */
struct session {
    struct cv_list node;
    SSL_SESSION *ssl; /* owned */
    char key[];       /* "name:port" */
};

struct cv_tls_client_ctx {
    atomic_uint refs;
    bool no_verify;
    struct cv_tls_client_ctx *base; /* a reference; whose authorities these are; NULL: its own */
    SSL_CTX *_Atomic ssl;           /* owned; NULL until the first stream, if there is a base */
    /* Streams of several threads share the sessions: two short visits per connection, beside a
     * handshake of some 100 us. */
    pthread_mutex_t lock;
    struct cv_list sessions; /* latest used first */
    size_t n_sessions;
};

/* ---- sessions ---- */

static struct session *session_find(struct cv_tls_client_ctx *ctx, const char *key)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &ctx->sessions) {
        struct session *s = CV_CONTAINER_OF(it, struct session, node);
        if (strcmp(s->key, key) == 0)
            return s;
    }
    return NULL;
}

static void session_drop(struct cv_tls_client_ctx *ctx, struct session *s)
{
    cv_list_del(&s->node);
    ctx->n_sessions--;
    SSL_SESSION_free(s->ssl);
    cv_free(s);
}

static void session_put(struct cv_tls_client_ctx *ctx, const char *key, SSL_SESSION *ssl)
{
    size_t len = strlen(key);
    struct session *s = cv_try_alloc(sizeof(*s) + len + 1);
    if (s == NULL) {
        SSL_SESSION_free(ssl);
        return;
    }
    s->ssl = ssl;
    memcpy(s->key, key, len + 1);
    pthread_mutex_lock(&ctx->lock);
    struct session *old = session_find(ctx, key);
    if (old == NULL && ctx->n_sessions >= SESSIONS_MAX)
        old = CV_CONTAINER_OF(ctx->sessions.prev, struct session, node);
    if (old != NULL)
        session_drop(ctx, old);
    cv_list_add_head(&ctx->sessions, &s->node);
    ctx->n_sessions++;
    pthread_mutex_unlock(&ctx->lock);
}

/* A copy of the session, or NULL. A copy, since OpenSSL marks a session of TLS 1.3 as used up once
 * it was resumed, and connections that start before the next ticket comes shall resume it as well.
 * (One use each is for clients that do not want to be recognised; here both ends are servers.) */
static SSL_SESSION *session_get(struct cv_tls_client_ctx *ctx, const char *key)
{
    SSL_SESSION *ssl = NULL;
    pthread_mutex_lock(&ctx->lock);
    struct session *s = session_find(ctx, key);
    if (s != NULL && !SSL_SESSION_is_resumable(s->ssl)) {
        session_drop(ctx, s);
    } else if (s != NULL) {
        cv_list_del(&s->node);
        cv_list_add_head(&ctx->sessions, &s->node);
        ssl = SSL_SESSION_dup(s->ssl);
    }
    pthread_mutex_unlock(&ctx->lock);
    return ssl;
}

void cv_tls_client_forget(struct cv_tls *t)
{
    struct cv_tls_client_ctx *ctx = t->ctx;
    pthread_mutex_lock(&ctx->lock);
    struct session *s = session_find(ctx, t->name);
    if (s != NULL)
        session_drop(ctx, s);
    pthread_mutex_unlock(&ctx->lock);
}

/* Tickets of TLS 1.3 come after the handshake, while data is read. */
static int on_session(SSL *ssl, SSL_SESSION *session)
{
    struct cv_tls *t = SSL_get_app_data(ssl);
    if (t == NULL || t->name == NULL)
        return 0;
    session_put(t->ctx, t->name, session);
    return 1;
}

/* ---- contexts ---- */

static int set_alpn(SSL_CTX *ssl, const struct cv_tls_client_conf *conf, char **reterr_text)
{
    uint8_t wire[ALPN_WIRE_MAX];
    size_t n = 0;
    for (size_t i = 0; i < conf->n_alpn; i++) {
        size_t len = strnlen(conf->alpn[i], 256);
        if (len == 0 || len > 255 || n + 1 + len > sizeof(wire))
            return cv_tls_say(CV_E_INVALID, reterr_text, false,
                              "alpn protocol '%.255s' is not valid", conf->alpn[i]);
        wire[n++] = (uint8_t)len;
        memcpy(wire + n, conf->alpn[i], len);
        n += len;
    }
    /* 0 is success here. */
    if (n > 0 && SSL_CTX_set_alpn_protos(ssl, wire, (unsigned)n) != 0)
        return cv_tls_say(-ENOMEM, reterr_text, true, "tls context");
    return 0;
}

static int set_trust(SSL_CTX *ssl, const struct cv_tls_client_conf *conf, char **reterr_text)
{
    if (conf->no_verify) {
        SSL_CTX_set_verify(ssl, SSL_VERIFY_NONE, NULL);
        return 0;
    }
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    ERR_clear_error();
    if (conf->ca_file != NULL) {
        if (SSL_CTX_load_verify_file(ssl, conf->ca_file) != 1)
            return cv_tls_say(CV_E_INVALID, reterr_text, true,
                              "authorities file '%s' is not usable", conf->ca_file);
    } else if (SSL_CTX_set_default_verify_paths(ssl) != 1) {
        return cv_tls_say(CV_E_INVALID, reterr_text, true, "authorities of the system");
    }
    ERR_clear_error();
    return 0;
}

static SSL_CTX *client_ssl_ctx(void)
{
    SSL_CTX *ssl = cv_tls_ssl_ctx_new(true);
    if (ssl == NULL)
        return NULL;
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(ssl, on_session);
    return ssl;
}

int cv_tls_client_ctx_new(const struct cv_tls_client_conf *conf, char **reterr_text,
                          struct cv_tls_client_ctx **ret_ctx)
{
    struct cv_tls_client_ctx *ctx = cv_zalloc(sizeof(*ctx));
    atomic_init(&ctx->refs, 1);
    cv_list_init(&ctx->sessions);
    pthread_mutex_init(&ctx->lock, NULL);
    ctx->no_verify = conf->no_verify;
    SSL_CTX *ssl = client_ssl_ctx();
    atomic_init(&ctx->ssl, ssl);
    int ret = ssl != NULL ? 0 : cv_tls_say(-ENOMEM, reterr_text, true, "tls context");
    if (ret == 0)
        ret = set_trust(ssl, conf, reterr_text);
    if (ret == 0)
        ret = set_alpn(ssl, conf, reterr_text);
    if (ret != 0) {
        cv_tls_client_ctx_unref(ctx);
        return ret;
    }
    *ret_ctx = ctx;
    return 0;
}

struct cv_tls_client_ctx *cv_tls_client_ctx_like(struct cv_tls_client_ctx *base)
{
    struct cv_tls_client_ctx *ctx = cv_try_zalloc(sizeof(*ctx));
    if (ctx == NULL)
        return NULL;
    atomic_init(&ctx->refs, 1);
    atomic_init(&ctx->ssl, NULL);
    cv_list_init(&ctx->sessions);
    pthread_mutex_init(&ctx->lock, NULL);
    ctx->no_verify = base->no_verify;
    ctx->base = cv_tls_client_ctx_ref(base);
    return ctx;
}

/* The context of OpenSSL, made now if it was not needed before; NULL without memory. Its
 * authorities are those of the base, which were read once: reading them takes some 50 ms. */
static SSL_CTX *ssl_ctx_of(struct cv_tls_client_ctx *ctx)
{
    SSL_CTX *ssl = atomic_load_explicit(&ctx->ssl, memory_order_acquire);
    if (ssl != NULL)
        return ssl;
    SSL_CTX *base = ssl_ctx_of(ctx->base);
    pthread_mutex_lock(&ctx->lock);
    ssl = atomic_load_explicit(&ctx->ssl, memory_order_acquire);
    if (ssl == NULL && base != NULL && (ssl = client_ssl_ctx()) != NULL) {
        SSL_CTX_set_verify(ssl, ctx->no_verify ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
        SSL_CTX_set1_cert_store(ssl, SSL_CTX_get_cert_store(base));
        atomic_store_explicit(&ctx->ssl, ssl, memory_order_release);
    }
    pthread_mutex_unlock(&ctx->lock);
    return ssl;
}

struct cv_tls_client_ctx *cv_tls_client_ctx_ref(struct cv_tls_client_ctx *ctx)
{
    atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
    return ctx;
}

void cv_tls_client_ctx_unref(struct cv_tls_client_ctx *ctx)
{
    if (ctx == NULL || atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) > 1)
        return;
    while (!cv_list_is_empty(&ctx->sessions))
        session_drop(ctx, CV_CONTAINER_OF(ctx->sessions.next, struct session, node));
    SSL_CTX_free(atomic_load_explicit(&ctx->ssl, memory_order_acquire));
    pthread_mutex_destroy(&ctx->lock);
    cv_tls_client_ctx_unref(ctx->base);
    cv_free(ctx);
}

static void unref(void *ctx)
{
    cv_tls_client_ctx_unref(ctx);
}

/* ---- streams ---- */

static bool set_peer(SSL *ssl, const struct cv_host *host)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT |
                                               X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    /* RFC 6066 section 3: an address is not sent as a server name. */
    if (cv_host_is_ip(host))
        return X509_VERIFY_PARAM_set1_ip(param, host->ip.b,
                                         host->ip.family == CV_AF_IP4 ? 4 : 16) == 1;
    /* What SSL_set_tlsext_host_name() does, but for its cast. */
    return SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                    (void *)(uintptr_t)host->name) == 1 &&
           X509_VERIFY_PARAM_set1_host(param, host->name, host->name_len) == 1;
}

int cv_tls_client(struct cv_tls_client_ctx *ctx, struct cv_stream *below,
                  const struct cv_target *server, struct cv_stream **ret_stream)
{
    struct cv_tls *t;
    SSL_CTX *ssl = ssl_ctx_of(ctx);
    if (ssl == NULL) {
        ERR_clear_error();
        cv_stream_close(below, false);
        return -ENOMEM;
    }
    int ret = cv_tls_open(ssl, true, below, cv_tls_client_ctx_ref(ctx), unref, &t);
    if (ret != 0)
        return ret;
    char key[CV_TARGET_STRLEN];
    cv_target_format(server, key);
    t->name = cv_try_strndup(key, strlen(key));
    if (t->name == NULL || !set_peer(t->ssl, &server->host)) {
        ERR_clear_error();
        cv_stream_close(&t->super, false);
        return -ENOMEM;
    }
    SSL_SESSION *session = session_get(ctx, key);
    if (session != NULL) {
        (void)SSL_set_session(t->ssl, session);
        SSL_SESSION_free(session);
    }
    ERR_clear_error();
    *ret_stream = &t->super;
    return 0;
}
