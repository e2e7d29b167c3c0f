/* TLS (1.2 and 1.3) over any stream, by OpenSSL, as a stream of its own.
 *
 * OpenSSL reads from and writes to the stream below directly; only what that does not take is kept
 * here, so bytes that send() took are never asked for again and an idle session has no buffers.
 * The handshake runs inside the first recv and send calls; a failed one is CV_E_TLS from them. A
 * close_notify from the peer is the end of stream, a bare FIN is CV_E_TLS (truncation), an error of
 * the stream below (a reset) keeps its code. Each event below is reported as both directions ready,
 * since either may have waited for the other one.
 *
 * shutdown_send sends close_notify, returns 0 when all bytes have been taken below, and leaves
 * receiving as it is; a FIN follows when the stream is closed or both sides are done. Closing does
 * not wait: whoever wants the last bytes to arrive calls shutdown_send until it is 0 before.
 *
 * Server side: a context holds the default certificate and those chosen by SNI. Client side: a
 * context holds the trusted authorities and remembers sessions, to resume them. Both are immutable
 * for their users and reference-counted, from any thread: a reload builds a new one, streams keep
 * theirs. */
#pragma once

#include "common/target.h"
#include "net/stream.h"

struct cv_tls_cert {
    const char *cert_file; /* PEM chain */
    const char *key_file;
    const char *const *server_names; /* exact, or "*.example.com"; NULL for the default one */
    size_t n_server_names;
};

/* Where in a client's certificate the name of its user is. Exact bytes are compared with the names
 * of users; of the alternative names there must be exactly one of the kind, and one common name. */
enum cv_tls_user_from {
    CV_TLS_USER_CN = 0,
    CV_TLS_USER_EMAIL, /* subject alternative names: rfc822Name, */
    CV_TLS_USER_DNS,   /* ... dNSName, as it is written there, */
    CV_TLS_USER_URI,   /* ... uniformResourceIdentifier */
};
#define CV_TLS_USER_MAX 255

struct cv_tls_tickets;
/* All zero: the defaults. */
struct cv_tls_server_opts {
    bool only_tls13;
    /* The one protocol that is chosen when the client offers it by ALPN; NULL: ALPN is ignored. */
    const char *alpn;
    bool alpn_strict;      /* a client that offers others only is refused (RFC 7301 section 3.2) */
    const char *client_ca; /* PEM file of authorities; NULL: clients are asked for no certificate */
    const char *client_crl; /* PEM file with a list for each of the authorities, or NULL */
    bool client_required;   /* no certificate, no handshake */
    enum cv_tls_user_from user_from;
    struct cv_tls_tickets *tickets; /* a reference is taken; NULL: the context has its own */
    const char *scope;              /* sessions are resumed in contexts of the same scope only */
};

struct cv_tls_server_ctx;
/* With options; else as cv_tls_server_ctx_new(). */
int cv_tls_server_ctx_new_with(const struct cv_tls_cert *certs, size_t n_certs,
                               const struct cv_tls_server_opts *opts, char **reterr_text,
                               struct cv_tls_server_ctx **ret_ctx) CV_MUST_CHECK;
/* 'certs[0]' is the default, the only one that needs no names. 0, or a code with a sentence in
 * *reterr_text (cv_free) that names the file and the fault: unreadable, key does not match, name
 * not covered by the certificate, name used twice. */
int cv_tls_server_ctx_new(const struct cv_tls_cert *certs, size_t n_certs, char **reterr_text,
                          struct cv_tls_server_ctx **ret_ctx) CV_MUST_CHECK;
struct cv_tls_server_ctx *cv_tls_server_ctx_ref(struct cv_tls_server_ctx *ctx);
void cv_tls_server_ctx_unref(struct cv_tls_server_ctx *ctx); /* NULL: nothing */

struct cv_tls_cert_info {
    const char *cert_file;
    int64_t not_before_s, not_after_s; /* unix time, of the certificate itself */
};
size_t cv_tls_server_ctx_count(const struct cv_tls_server_ctx *ctx);
/* 'i' < count; valid while the context lives. */
void cv_tls_server_ctx_cert(const struct cv_tls_server_ctx *ctx, size_t i,
                            struct cv_tls_cert_info *ret);
/* Digests of what stat(2) tells of all files: when they were read, and now. If they differ, a new
 * context from the same files may be another one. */
uint64_t cv_tls_server_ctx_loaded(const struct cv_tls_server_ctx *ctx);
uint64_t cv_tls_server_ctx_look(const struct cv_tls_server_ctx *ctx);
size_t cv_tls_server_ctx_files(const struct cv_tls_server_ctx *ctx); /* how many that are */

/* Wrap 'below' (ownership moves, also on failure: it is closed). Refs the context. 'early' are
 * bytes that were already read from 'below'; they are copied. 0 or -ENOMEM. */
int cv_tls_server(struct cv_tls_server_ctx *ctx, struct cv_stream *below, const void *early,
                  size_t early_len, struct cv_stream **ret_stream) CV_MUST_CHECK;
/* SNI that the client sent, in canonical form, or NULL; valid while the stream lives. */
const char *cv_tls_sni(const struct cv_stream *s);
/* Whom the client's certificate names, once the handshake is done. 0; CV_E_NOTFOUND: it has shown
 * none; CV_E_AUTH: the name is not there, not unique, or no text that could be a user's name (NUL,
 * control characters, an encoding other than UTF-8, too long). */
int cv_tls_peer_user(const struct cv_stream *s, char out[CV_TLS_USER_MAX + 1]) CV_MUST_CHECK;

struct cv_tls_client_conf {
    const char *ca_file;     /* PEM file of trusted authorities; NULL = those of the system */
    bool no_verify;          /* accept any certificate */
    const char *const *alpn; /* protocols to offer, best first; NULL = no ALPN */
    size_t n_alpn;
};

struct cv_tls_client_ctx;
/* As for the server: 0, or a code with a sentence in *reterr_text (cv_free). */
int cv_tls_client_ctx_new(const struct cv_tls_client_conf *conf, char **reterr_text,
                          struct cv_tls_client_ctx **ret_ctx) CV_MUST_CHECK;
/* A context that trusts what 'base' trusts (without its ALPN) and remembers sessions of its own. It
 * costs a few hundred bytes until its first stream, so there may be one for each of many servers.
 * NULL: no memory. Refs 'base'. */
struct cv_tls_client_ctx *cv_tls_client_ctx_like(struct cv_tls_client_ctx *base) CV_MUST_CHECK;
struct cv_tls_client_ctx *cv_tls_client_ctx_ref(struct cv_tls_client_ctx *ctx);
void cv_tls_client_ctx_unref(struct cv_tls_client_ctx *ctx); /* NULL: nothing */

/* Wrap 'below' (ownership moves, also on failure: it is closed) as the client of 'server'. Refs the
 * context. A name is sent as SNI and must be in the certificate's subject alternative names; an
 * address must be there as an address. A session of an earlier connection to the same name and port
 * is resumed. 0 or -ENOMEM. */
int cv_tls_client(struct cv_tls_client_ctx *ctx, struct cv_stream *below,
                  const struct cv_target *server, struct cv_stream **ret_stream) CV_MUST_CHECK;

/* For streams of both kinds. */

/* Drive the handshake without moving data. 0 when it is done, -EAGAIN, or why it failed. */
int cv_tls_handshake(struct cv_stream *s);
bool cv_tls_is_established(const struct cv_stream *s);
bool cv_tls_is_resumed(const struct cv_stream *s);
/* "TLSv1.3"; NULL before the handshake is done. */
const char *cv_tls_version(const struct cv_stream *s);
/* The protocol that ALPN chose, or NULL. Not terminated by NUL. */
const uint8_t *cv_tls_alpn(const struct cv_stream *s, size_t *ret_len);
/* Why TLS failed, for a log line: "certificate has expired"; NULL if it did not. A constant. */
const char *cv_tls_fault(const struct cv_stream *s);
