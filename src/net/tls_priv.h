/* What the files of TLS share: the stream in tls.c, and contexts in tls_server.c and tls_client.c.
 */
#pragma once

#include <openssl/ssl.h>

#include "common/buf.h"
#include "net/loop.h"
#include "net/tls.h"

struct cv_tls {
    struct cv_stream super;
    struct cv_stream *below; /* owned; NULL once closed */
    SSL *ssl;                /* owned; NULL once closed */
    void *ctx;               /* a reference, given back by ctx_unref */
    void (*ctx_unref)(void *ctx);
    struct cv_buf out; /* ciphertext that 'below' did not take */
    uint8_t *early;    /* owned; bytes to be read before those of 'below'; NULL when used up */
    size_t early_len;
    size_t early_off;
    char *name;        /* owned; server: SNI or NULL; client: key of the session cache */
    const char *fault; /* constant, or NULL */
    int io_err;        /* of 'below', in the current call of OpenSSL */
    int recv_err;      /* fatal, for all further calls; 0 = none */
    int send_err;
    bool is_client;
    bool below_ended; /* a FIN came */
    bool established;
    bool peer_closed; /* close_notify came */
    bool close_sent;  /* our close_notify is written, or waits in 'out' */
    bool fin_sent;
    struct cv_task release;
};

static inline struct cv_tls *cv_tls_of(const struct cv_stream *s)
{
    return CV_CONTAINER_OF((struct cv_stream *)(uintptr_t)s, struct cv_tls, super);
}

/* A key that needs a pass phrase must not make OpenSSL ask the terminal for it. */
int cv_tls_no_passphrase(char *buf, int size, int rwflag, void *arg);

/* The authorities of clients. */
struct cv_tls_trust {
    X509_STORE *store;           /* owned */
    STACK_OF(X509_NAME) * names; /* owned */
    bool required;
};
/* Read what 'o' names into a cleared struct; done() also on failure. 0, or a code with a sentence.
 */
int cv_tls_trust_load(struct cv_tls_trust *t, const struct cv_tls_server_opts *o,
                      char **reterr_text) CV_MUST_CHECK;
/* Have servers of this context ask clients for certificates. 0 or -ENOMEM. */
int cv_tls_trust_use(const struct cv_tls_trust *t, SSL_CTX *ssl) CV_MUST_CHECK;
void cv_tls_trust_done(struct cv_tls_trust *t);
/* The user that a verified certificate names. 0 or CV_E_AUTH. */
int cv_tls_name_of(const X509 *x, enum cv_tls_user_from from,
                   char out[CV_TLS_USER_MAX + 1]) CV_MUST_CHECK;
/* Seal tickets of this context with these keys, which outlive it. */
bool cv_tls_tickets_use(struct cv_tls_tickets *t, SSL_CTX *ssl) CV_MUST_CHECK;

/* A context with what both sides have in common, or NULL. */
SSL_CTX *cv_tls_ssl_ctx_new(bool is_client);
/* Make the stream; takes 'below' and the reference 'ctx' also on failure. 0 or -ENOMEM. */
int cv_tls_open(SSL_CTX *ssl_ctx, bool is_client, struct cv_stream *below, void *ctx,
                void (*ctx_unref)(void *ctx), struct cv_tls **ret_tls) CV_MUST_CHECK;
/* Put a sentence where 'reterr_text' wants one, with OpenSSL's reason appended if 'with_reason' and
 * there is one; clears OpenSSL's error queue. Returns 'err'. */
int cv_tls_say(int err, char **reterr_text, bool with_reason, const char *fmt, ...) CV_PRINTF(4, 5);
/* Client: forget the session that was to be resumed, the handshake failed with it. */
void cv_tls_client_forget(struct cv_tls *t);
