/* What the tests of TLS share: certificates made at run time, a stream in memory whose every byte
 * and fault is under control, and a client that is plain OpenSSL. */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/err.h"
#include "net/stream.h"
#include "net/tls.h"
#include "tap.h"

/* ---- certificates ---- */

struct test_cert {
    X509 *x509;
    EVP_PKEY *key;
    char cert_file[96]; /* the chain, without the root */
    char key_file[96];
};

struct test_cert_opts {
    const char *cn;
    const char *san;                /* "DNS:a.example,IP:127.0.0.1"; NULL = none */
    const struct test_cert *issuer; /* NULL = self-signed */
    bool is_ca;
    bool expired;
    int rsa_bits; /* 0 = an elliptic curve */
};

static char test_dir[64];
static int test_serial = 1;

static inline void test_dir_begin(void)
{
    snprintf(test_dir, sizeof(test_dir), "/tmp/cv-tls-XXXXXX");
    if (mkdtemp(test_dir) == NULL)
        abort();
}

static inline void test_dir_end(void)
{
    char path[96];
    static const char *const kinds[] = {"cert", "key", "text"};
    for (int i = 0; i < test_serial; i++)
        for (size_t k = 0; k < CV_ARRAY_SIZE(kinds); k++) {
            snprintf(path, sizeof(path), "%s/%s%d", test_dir, kinds[k], i);
            unlink(path);
        }
    if (rmdir(test_dir) != 0)
        abort();
}

/* A file with this text; the path is good until the next call. */
static inline const char *test_text_file(const char *text)
{
    static char path[96];
    snprintf(path, sizeof(path), "%s/text%d", test_dir, test_serial++);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return path;
}

static inline void test_ext(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    if (e == NULL || X509_add_ext(x, e, -1) != 1)
        abort();
    X509_EXTENSION_free(e);
}

static inline void test_cert_make(struct test_cert *c, const struct test_cert_opts *o)
{
    c->key = o->rsa_bits > 0 ? EVP_RSA_gen((unsigned)o->rsa_bits) : EVP_EC_gen("P-256");
    X509 *x = c->x509 = X509_new();
    X509 *issuer = o->issuer != NULL ? o->issuer->x509 : x;
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), test_serial);
    X509_gmtime_adj(X509_getm_notBefore(x), -86400 * 10);
    X509_gmtime_adj(X509_getm_notAfter(x), o->expired ? -86400 : 86400);
    X509_set_pubkey(x, c->key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8,
                               (const unsigned char *)o->cn, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(issuer));
    test_ext(x, issuer, NID_basic_constraints, o->is_ca ? "critical,CA:TRUE" : "CA:FALSE");
    test_ext(x, issuer, NID_subject_key_identifier, "hash");
    if (o->san != NULL)
        test_ext(x, issuer, NID_subject_alt_name, o->san);
    if (X509_sign(x, o->issuer != NULL ? o->issuer->key : c->key, EVP_sha256()) == 0)
        abort();
    snprintf(c->cert_file, sizeof(c->cert_file), "%s/cert%d", test_dir, test_serial);
    snprintf(c->key_file, sizeof(c->key_file), "%s/key%d", test_dir, test_serial);
    test_serial++;
    FILE *f = fopen(c->cert_file, "w");
    PEM_write_X509(f, x);
    /* An issuer that is not self-signed belongs to the chain. */
    if (o->issuer != NULL && X509_self_signed(issuer, 0) != 1)
        PEM_write_X509(f, issuer);
    fclose(f);
    f = fopen(c->key_file, "w");
    PEM_write_PrivateKey(f, c->key, NULL, NULL, 0, NULL, NULL);
    fclose(f);
}

static inline void test_cert_done(struct test_cert *c)
{
    X509_free(c->x509);
    EVP_PKEY_free(c->key);
}

static inline struct cv_tls_server_ctx *test_server_ctx(const struct test_cert *c)
{
    struct cv_tls_cert cert = {.cert_file = c->cert_file, .key_file = c->key_file};
    struct cv_tls_server_ctx *ctx = NULL;
    char *text = NULL;
    if (cv_tls_server_ctx_new(&cert, 1, &text, &ctx) != 0) {
        printf("# %s\n", text);
        abort();
    }
    return ctx;
}

/* ---- a stream in memory ---- */

struct mem_buf {
    uint8_t *b;
    size_t len, cap;
};

static inline void mem_put(struct mem_buf *m, const void *p, size_t n)
{
    if (m->len + n > m->cap) {
        /* By the allocator that the torture build lets be. */
        uint8_t *b = cv_alloc(m->cap = (m->len + n) * 2);
        if (m->len > 0)
            memcpy(b, m->b, m->len);
        cv_free(m->b);
        m->b = b;
    }
    if (n > 0)
        memcpy(m->b + m->len, p, n);
    m->len += n;
}

static inline void mem_take(struct mem_buf *m, size_t n)
{
    m->len -= n;
    memmove(m->b, m->b + n, m->len);
}

struct mem_stream {
    struct cv_stream super;
    struct mem_buf in;  /* what recv gives */
    struct mem_buf out; /* what send took */
    bool in_fin;        /* after 'in' comes the end */
    bool out_fin;
    bool closed, aborted;
    int recv_err, send_err; /* after 'in'; at once */
    size_t room;            /* of 'out'; more is -EAGAIN */
    size_t chunk;           /* most bytes per call */
    int recvs, sends;       /* calls that moved bytes */
    int detached, attached;
};

static inline struct mem_stream *mem_of(const struct cv_stream *s)
{
    return CV_CONTAINER_OF((struct cv_stream *)(uintptr_t)s, struct mem_stream, super);
}

static inline int mem_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct mem_stream *m = mem_of(s);
    size_t n = CV_MIN(CV_MIN(cap, m->in.len), m->chunk);
    if (n == 0 && m->recv_err != 0)
        return m->recv_err;
    if (n == 0 && !m->in_fin)
        return -EAGAIN;
    if (n > 0) {
        memcpy(buf, m->in.b, n);
        mem_take(&m->in, n);
        m->recvs++;
    }
    *ret_n = n;
    return 0;
}

static inline int mem_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct mem_stream *m = mem_of(s);
    size_t sum = 0;
    if (m->send_err != 0)
        return m->send_err;
    for (int i = 0; i < iovcnt; i++) {
        size_t room = m->room > m->out.len ? m->room - m->out.len : 0;
        size_t n = CV_MIN(CV_MIN(iov[i].iov_len, room), m->chunk - sum);
        mem_put(&m->out, iov[i].iov_base, n);
        sum += n;
    }
    if (sum == 0)
        return -EAGAIN;
    m->sends++;
    *ret_n = sum;
    return 0;
}

static inline int mem_shutdown_send(struct cv_stream *s)
{
    mem_of(s)->out_fin = true;
    return 0;
}

static inline void mem_close(struct cv_stream *s, bool abort_it)
{
    mem_of(s)->closed = true;
    mem_of(s)->aborted = abort_it;
}

static inline int mem_fd(const struct cv_stream *s)
{
    (void)s;
    return 77;
}

static inline void mem_detach(struct cv_stream *s)
{
    mem_of(s)->detached++;
    s->loop = NULL;
}

static inline int mem_attach(struct cv_stream *s, struct cv_loop *loop)
{
    (void)loop;
    mem_of(s)->attached++;
    return 0;
}

static const struct cv_stream_ops mem_ops = {
    .name = "mem",
    .recv = mem_recv,
    .send = mem_send,
    .shutdown_send = mem_shutdown_send,
    .close = mem_close,
    .raw_fd = mem_fd,
    .detach = mem_detach,
    .attach = mem_attach,
    .socket_fd = mem_fd,
};

static inline void mem_init(struct mem_stream *m)
{
    *m = (struct mem_stream){.super.ops = &mem_ops, .room = SIZE_MAX, .chunk = SIZE_MAX};
}

static inline void mem_done(struct mem_stream *m)
{
    cv_free(m->in.b);
    cv_free(m->out.b);
}

static inline void mem_event(struct mem_stream *m, unsigned events)
{
    cv_stream_notify(&m->super, events);
}

/* Bytes between two streams in memory, at most 'most' in each direction. True if any moved. */
static inline bool mem_shuttle(struct mem_stream *a, struct mem_stream *b, size_t most)
{
    struct mem_stream *side[2] = {a, b};
    bool moved = false;
    for (int i = 0; i < 2; i++) {
        struct mem_stream *from = side[i], *to = side[!i];
        size_t n = CV_MIN(from->out.len, most);
        if (n > 0) {
            mem_put(&to->in, from->out.b, n);
            mem_take(&from->out, n);
            moved = true;
        }
        if (from->out_fin && from->out.len == 0 && !to->in_fin) {
            to->in_fin = true;
            moved = true;
        }
    }
    if (moved) {
        mem_event(a, CV_STREAM_READ | CV_STREAM_WRITE);
        mem_event(b, CV_STREAM_READ | CV_STREAM_WRITE);
    }
    return moved;
}

/* ---- a client that is plain OpenSSL ---- */

struct raw_client {
    SSL_CTX *ctx;
    SSL *ssl;
    BIO *rd, *wr;         /* borrowed from ssl */
    SSL_SESSION *session; /* the last one that came */
    int sessions;
};

static inline int raw_on_session(SSL *ssl, SSL_SESSION *s)
{
    struct raw_client *c = SSL_get_app_data(ssl);
    SSL_SESSION_free(c->session);
    c->session = s;
    c->sessions++;
    return 1;
}

/* As after an orderly end; else OpenSSL would not let the session be resumed. */
static inline void raw_hang_up(struct raw_client *c)
{
    if (c->ssl != NULL)
        SSL_set_shutdown(c->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    SSL_free(c->ssl);
    c->ssl = NULL;
}

static inline void raw_connect(struct raw_client *c, const char *sni, SSL_SESSION *session)
{
    raw_hang_up(c);
    c->ssl = SSL_new(c->ctx);
    c->rd = BIO_new(BIO_s_mem());
    c->wr = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(c->rd, -1);
    SSL_set_bio(c->ssl, c->rd, c->wr);
    SSL_set_app_data(c->ssl, c);
    if (sni != NULL)
        SSL_ctrl(c->ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                 (void *)(uintptr_t)sni);
    if (session != NULL)
        SSL_set_session(c->ssl, session);
    SSL_set_connect_state(c->ssl);
}

static inline void raw_init(struct raw_client *c, int version)
{
    *c = (struct raw_client){.ctx = SSL_CTX_new(TLS_client_method())};
    if (version != 0) {
        SSL_CTX_set_min_proto_version(c->ctx, version);
        SSL_CTX_set_max_proto_version(c->ctx, version);
    }
    SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(c->ctx, raw_on_session);
}

static inline void raw_done(struct raw_client *c)
{
    SSL_SESSION_free(c->session);
    raw_hang_up(c);
    SSL_CTX_free(c->ctx);
    ERR_clear_error();
}

/* Bytes between the client and the stream below the server, at most 'most' in each direction. */
static inline bool raw_shuttle(struct raw_client *c, struct mem_stream *m, size_t most)
{
    bool moved = false;
    uint8_t tmp[4096];
    size_t left = most;
    while (left > 0) {
        int n = BIO_read(c->wr, tmp, (int)CV_MIN(left, sizeof(tmp)));
        if (n <= 0)
            break;
        mem_put(&m->in, tmp, (size_t)n);
        left -= (size_t)n;
        moved = true;
    }
    size_t n = CV_MIN(m->out.len, most);
    if (n > 0) {
        BIO_write(c->rd, m->out.b, (int)n);
        mem_take(&m->out, n);
        moved = true;
    }
    if (moved && !m->closed)
        mem_event(m, CV_STREAM_READ | CV_STREAM_WRITE);
    return moved;
}

/* Both sides shake hands until neither moves; 'split' bytes at a time. The server's result. */
static inline int raw_handshake(struct raw_client *c, struct mem_stream *m,
                                struct cv_stream *server, size_t split)
{
    int ret = -EAGAIN;
    for (;;) {
        ERR_clear_error();
        if (!SSL_is_init_finished(c->ssl))
            (void)SSL_do_handshake(c->ssl);
        if (ret == -EAGAIN)
            ret = cv_tls_handshake(server);
        if (!raw_shuttle(c, m, split))
            break;
    }
    return ret;
}

/* Reads what is there; the number of bytes, 0 at close_notify, -1 when there is nothing. */
static inline int raw_read(struct raw_client *c, void *buf, size_t cap)
{
    ERR_clear_error();
    int n = SSL_read(c->ssl, buf, (int)cap);
    if (n > 0)
        return n;
    return SSL_get_error(c->ssl, n) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}
