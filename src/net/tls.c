#include "net/tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "net/tls_priv.h"

#include "common/poison.h"

#define RECORD_MAX 16384U
/* A record that was cut short, and small ones (alerts, key updates, tickets) that OpenSSL adds. */
#define OUT_MAX 65536U
#define CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20"

static const struct cv_stream_ops tls_ops;

/* ---- the library ---- */

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
static BIO_METHOD *bio_method; /* lives as long as the process; NULL without memory */

static int bio_read(BIO *bio, char *buf, size_t cap, size_t *ret_n);
static int bio_write(BIO *bio, const char *data, size_t len, size_t *ret_n);
static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr);

static void init_library(void)
{
    /* Without a handler at exit: other threads may still be inside of OpenSSL then. */
    (void)OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_LOAD_SSL_STRINGS, NULL);
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "culvert stream");
    if (m == NULL)
        return;
    if (BIO_meth_set_read_ex(m, bio_read) && BIO_meth_set_write_ex(m, bio_write) &&
        BIO_meth_set_ctrl(m, bio_ctrl))
        bio_method = m;
    else
        BIO_meth_free(m);
}

SSL_CTX *cv_tls_ssl_ctx_new(bool is_client)
{
    (void)pthread_once(&library_once, init_library);
    if (bio_method == NULL)
        return NULL;
    SSL_CTX *c = SSL_CTX_new(is_client ? TLS_client_method() : TLS_server_method());
    if (c == NULL)
        return NULL;
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                               SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    /* After a partial write the rest may come from elsewhere; buffers go when they are empty. */
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1); /* one read per record in place of two */
    if (!SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) || !SSL_CTX_set_cipher_list(c, CIPHERS)) {
        SSL_CTX_free(c);
        return NULL;
    }
    return c;
}

int cv_tls_no_passphrase(char *buf, int size, int rwflag, void *arg)
{
    (void)buf;
    (void)size;
    (void)rwflag;
    (void)arg;
    return -1;
}

int cv_tls_say(int err, char **reterr_text, bool with_reason, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    const char *reason = NULL;
    if (with_reason)
        reason = ERR_reason_error_string(ERR_peek_last_error());
    if (reason != NULL && n >= 0 && (size_t)n < sizeof(text))
        snprintf(text + n, sizeof(text) - (size_t)n, ": %s", reason);
    ERR_clear_error();
    if (reterr_text != NULL)
        *reterr_text = cv_strdup(text);
    return err;
}

/* ---- what OpenSSL sees of the stream below ---- */

static size_t take_early(struct cv_tls *t, void *buf, size_t cap)
{
    size_t n = CV_MIN(cap, t->early_len - t->early_off);
    memcpy(buf, t->early + t->early_off, n);
    t->early_off += n;
    if (t->early_off == t->early_len)
        CV_FREE(t->early);
    return n;
}

static int bio_read(BIO *bio, char *buf, size_t cap, size_t *ret_n)
{
    struct cv_tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    *ret_n = 0;
    if (cap == 0)
        return 0;
    if (t->early != NULL) {
        *ret_n = take_early(t, buf, cap);
        return 1;
    }
    size_t n = 0;
    int ret = cv_stream_recv(t->below, buf, cap, &n);
    if (ret == -EAGAIN) {
        BIO_set_retry_read(bio);
        return 0;
    }
    if (ret != 0) {
        t->io_err = ret;
        return 0;
    }
    t->below_ended = n == 0;
    *ret_n = n;
    return n > 0;
}

static int flush(struct cv_tls *t)
{
    while (!cv_buf_is_empty(&t->out)) {
        size_t n = 0;
        int ret = cv_stream_send(t->below, cv_buf_data(&t->out), cv_buf_len(&t->out), &n);
        if (ret != 0)
            return ret;
        cv_buf_consume(&t->out, n);
    }
    cv_buf_release(&t->out);
    return 0;
}

/* Whole records are taken or none (only one that is longer than any record would be split), so
 * OpenSSL never holds one back whose plaintext it would want to see again. */
static int bio_write(BIO *bio, const char *data, size_t len, size_t *ret_n)
{
    struct cv_tls *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    *ret_n = 0;
    size_t n = 0;
    int ret = flush(t);
    if (ret == 0)
        ret = cv_stream_send(t->below, data, len, &n);
    if (ret != 0 && ret != -EAGAIN) {
        t->io_err = ret;
        return 0;
    }
    if (len - n > cv_buf_room(&t->out)) {
        *ret_n = n;
        if (n == 0)
            BIO_set_retry_write(bio);
        return n > 0;
    }
    if (n < len && (ret = cv_buf_append(&t->out, data + n, len - n)) != 0) {
        t->io_err = ret;
        return 0;
    }
    *ret_n = len;
    return 1;
}

static long bio_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
    struct cv_tls *t = BIO_get_data(bio);
    (void)num;
    (void)ptr;
    switch (cmd) {
    case BIO_CTRL_FLUSH:
        return 1;
    case BIO_CTRL_EOF:
        return t->below_ended;
    default:
        return 0;
    }
}

/* ---- calls of OpenSSL ---- */

static void before(struct cv_tls *t)
{
    ERR_clear_error();
    t->io_err = 0;
}

static void check_established(struct cv_tls *t)
{
    if (!t->established)
        t->established = SSL_is_init_finished(t->ssl);
}

static const char *fault_text(const struct cv_tls *t)
{
    if ((SSL_get_verify_mode(t->ssl) & SSL_VERIFY_PEER) != 0) {
        long v = SSL_get_verify_result(t->ssl);
        if (v != X509_V_OK)
            return X509_verify_cert_error_string(v);
    }
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return reason != NULL ? reason : "protocol failure";
}

/* What a call that did not succeed means: -EAGAIN, or a code that is also kept. 'kept' is the
 * direction in which it was; a failure of TLS itself or of the handshake ends both. */
static int outcome(struct cv_tls *t, int *kept)
{
    int e = SSL_get_error(t->ssl, 0);
    if (t->io_err == 0 && (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE))
        return -EAGAIN;
    int err = t->io_err;
    if (err == 0) {
        err = CV_E_TLS;
        t->fault = fault_text(t);
    }
    if (!t->established && t->is_client)
        cv_tls_client_forget(t);
    if (err == CV_E_TLS || !t->established)
        t->recv_err = t->send_err = err;
    else
        *kept = err;
    ERR_clear_error();
    return err;
}

static int handshake(struct cv_tls *t, int *kept)
{
    if (t->established)
        return 0;
    if (*kept != 0)
        return *kept;
    before(t);
    if (SSL_do_handshake(t->ssl) != 1)
        return outcome(t, kept);
    check_established(t);
    return 0;
}

/* Both sides have said that they are done: nothing will be sent any more, so end the stream below
 * as well. If that has to wait, closing will do it. */
static void fin(struct cv_tls *t)
{
    if (!t->fin_sent && t->close_sent && t->peer_closed && cv_buf_is_empty(&t->out))
        t->fin_sent = cv_stream_shutdown_send(t->below) == 0;
}

static int tls_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct cv_tls *t = cv_tls_of(s);
    uint8_t *p = buf;
    size_t n = 0;
    int ret = t->recv_err;
    while (ret == 0 && n < cap && !t->peer_closed) {
        size_t got = 0;
        before(t);
        int ok = SSL_read_ex(t->ssl, p + n, cap - n, &got);
        check_established(t);
        if (ok == 1) {
            n += got;
            /* Further records that are here already; the one who calls asks for the others. */
            if (!SSL_has_pending(t->ssl))
                break;
        } else if (SSL_get_error(t->ssl, 0) == SSL_ERROR_ZERO_RETURN) {
            t->peer_closed = true;
            fin(t);
        } else {
            ret = outcome(t, &t->recv_err);
        }
    }
    /* What came before an end or an error is delivered first; the next call meets it again. */
    if (n == 0 && ret != 0)
        return ret;
    *ret_n = n;
    return 0;
}

/* Small pieces that belong together make one record: a head and its body, say. */
static size_t gather(const struct iovec *iov, int iovcnt, size_t off, uint8_t out[RECORD_MAX])
{
    size_t n = 0;
    for (int i = 0; i < iovcnt && n < RECORD_MAX; i++, off = 0) {
        size_t part = CV_MIN(iov[i].iov_len - off, RECORD_MAX - n);
        memcpy(out + n, (const uint8_t *)iov[i].iov_base + off, part);
        n += part;
    }
    return n;
}

static int write_record(struct cv_tls *t, const void *data, size_t len, size_t *ret_n)
{
    before(t);
    int ok = SSL_write_ex(t->ssl, data, CV_MIN(len, RECORD_MAX), ret_n);
    check_established(t);
    return ok == 1 ? 0 : outcome(t, &t->send_err);
}

/* From 'off' of iov[0] on; writes one record. */
static int write_some(struct cv_tls *t, const struct iovec *iov, int iovcnt, size_t off,
                      size_t *ret_n)
{
    size_t left = iov[0].iov_len - off;
    if (iovcnt == 1 || left >= RECORD_MAX)
        return write_record(t, (const uint8_t *)iov[0].iov_base + off, left, ret_n);
    uint8_t joined[RECORD_MAX];
    return write_record(t, joined, gather(iov, iovcnt, off, joined), ret_n);
}

static int tls_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct cv_tls *t = cv_tls_of(s);
    if (t->send_err != 0)
        return t->send_err;
    if (t->close_sent)
        return -EPIPE;
    int ret = flush(t);
    if (ret != 0 && ret != -EAGAIN)
        t->send_err = ret;
    size_t sum = 0, off = 0;
    while (ret == 0 && cv_buf_is_empty(&t->out)) {
        for (; iovcnt > 0 && off >= iov->iov_len; iov++, iovcnt--)
            off -= iov->iov_len;
        if (iovcnt == 0)
            break;
        size_t n = 0;
        ret = write_some(t, iov, iovcnt, off, &n);
        if (ret == 0) {
            sum += n;
            off += n;
        }
    }
    if (sum == 0 && ret != 0)
        return ret;
    if (sum == 0 && !cv_buf_is_empty(&t->out))
        return -EAGAIN;
    *ret_n = sum;
    return 0;
}

static int tls_shutdown_send(struct cv_stream *s)
{
    struct cv_tls *t = cv_tls_of(s);
    if (t->send_err != 0)
        return t->send_err;
    int ret = handshake(t, &t->send_err);
    if (ret != 0)
        return ret;
    if (!t->close_sent) {
        before(t);
        if (SSL_shutdown(t->ssl) < 0)
            return outcome(t, &t->send_err);
        t->close_sent = true;
    }
    ret = flush(t);
    if (ret != 0) {
        if (ret != -EAGAIN)
            t->send_err = ret;
        return ret;
    }
    fin(t);
    return 0;
}

static void on_below(void *arg, struct cv_stream *below, unsigned events)
{
    struct cv_tls *t = arg;
    (void)below;
    if (!cv_buf_is_empty(&t->out)) {
        int ret = flush(t);
        if (ret == 0)
            fin(t);
        else if (ret != -EAGAIN)
            t->send_err = ret;
    }
    cv_stream_notify(&t->super, CV_STREAM_READ | CV_STREAM_WRITE | (events & CV_STREAM_HUP));
}

/* ---- life ---- */

static void tls_free(struct cv_tls *t)
{
    if (t->ssl != NULL) {
        /* A connection that ended without close_notify would spoil its session for resuming. */
        if (t->established && t->recv_err != CV_E_TLS && t->send_err != CV_E_TLS)
            SSL_set_shutdown(t->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        SSL_free(t->ssl);
    }
    cv_buf_done(&t->out);
    cv_free(t->early);
    cv_free(t->name);
    t->ctx_unref(t->ctx);
    cv_free(t);
}

static void on_release(struct cv_task *task)
{
    tls_free(CV_CONTAINER_OF(task, struct cv_tls, release));
}

static void tls_close(struct cv_stream *s, bool abort)
{
    struct cv_tls *t = cv_tls_of(s);
    struct cv_loop *loop = s->loop;
    cv_stream_set_cb(s, NULL, NULL);
    cv_stream_set_cb(t->below, NULL, NULL);
    if (!abort && t->established && t->send_err == 0 && !t->close_sent) {
        before(t);
        (void)SSL_shutdown(t->ssl);
        ERR_clear_error();
    }
    if (!abort)
        (void)flush(t); /* also of an alert */
    cv_stream_close(t->below, abort);
    t->below = NULL;
    s->loop = NULL;
    if (loop == NULL) {
        tls_free(t);
        return;
    }
    t->release.fn = on_release;
    cv_loop_defer(loop, &t->release);
}

static int tls_raw_fd(const struct cv_stream *s)
{
    (void)s;
    return -1;
}

static int tls_socket_fd(const struct cv_stream *s)
{
    return cv_stream_socket_fd(cv_tls_of(s)->below);
}

static void tls_detach(struct cv_stream *s)
{
    struct cv_tls *t = cv_tls_of(s);
    t->below->ops->detach(t->below);
    s->loop = NULL;
}

static int tls_attach(struct cv_stream *s, struct cv_loop *loop)
{
    struct cv_tls *t = cv_tls_of(s);
    int ret = t->below->ops->attach(t->below, loop);
    if (ret == 0)
        s->loop = loop;
    return ret;
}

int cv_tls_open(SSL_CTX *ssl_ctx, bool is_client, struct cv_stream *below, void *ctx,
                void (*ctx_unref)(void *ctx), struct cv_tls **ret_tls)
{
    struct cv_tls *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL) {
        cv_stream_close(below, false);
        ctx_unref(ctx);
        return -ENOMEM;
    }
    t->super.ops = &tls_ops;
    t->super.loop = below->loop;
    t->below = below;
    t->ctx = ctx;
    t->ctx_unref = ctx_unref;
    t->is_client = is_client;
    cv_buf_init(&t->out, OUT_MAX);
    t->ssl = SSL_new(ssl_ctx);
    BIO *bio = t->ssl != NULL ? BIO_new(bio_method) : NULL;
    if (bio == NULL) {
        ERR_clear_error();
        cv_stream_close(below, false);
        tls_free(t);
        return -ENOMEM;
    }
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    if (is_client)
        SSL_set_connect_state(t->ssl);
    else
        SSL_set_accept_state(t->ssl);
    cv_stream_set_cb(below, on_below, t);
    *ret_tls = t;
    return 0;
}

/* ---- questions ---- */

int cv_tls_handshake(struct cv_stream *s)
{
    struct cv_tls *t = cv_tls_of(s);
    int ret = handshake(t, &t->send_err);
    if (ret == 0 && !cv_buf_is_empty(&t->out)) {
        ret = flush(t);
        if (ret == -EAGAIN)
            return 0; /* the rest goes out by itself */
        if (ret != 0)
            t->send_err = ret;
    }
    return ret;
}

bool cv_tls_is_established(const struct cv_stream *s)
{
    return cv_tls_of(s)->established;
}

bool cv_tls_is_resumed(const struct cv_stream *s)
{
    const struct cv_tls *t = cv_tls_of(s);
    return t->established && SSL_session_reused(t->ssl);
}

const char *cv_tls_version(const struct cv_stream *s)
{
    const struct cv_tls *t = cv_tls_of(s);
    return t->established ? SSL_get_version(t->ssl) : NULL;
}

const uint8_t *cv_tls_alpn(const struct cv_stream *s, size_t *ret_len)
{
    const unsigned char *p = NULL;
    unsigned len = 0;
    SSL_get0_alpn_selected(cv_tls_of(s)->ssl, &p, &len);
    *ret_len = len;
    return len > 0 ? p : NULL;
}

const char *cv_tls_sni(const struct cv_stream *s)
{
    const struct cv_tls *t = cv_tls_of(s);
    return t->is_client ? NULL : t->name;
}

const char *cv_tls_fault(const struct cv_stream *s)
{
    return cv_tls_of(s)->fault;
}

static const struct cv_stream_ops tls_ops = {
    .name = "tls",
    .recv = tls_recv,
    .send = tls_send,
    .shutdown_send = tls_shutdown_send,
    .close = tls_close,
    .raw_fd = tls_raw_fd,
    .detach = tls_detach,
    .attach = tls_attach,
    .socket_fd = tls_socket_fd,
};
