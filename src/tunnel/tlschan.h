/* The TLS connection within the control channel: OpenSSL over memory, one for each key, with the
 * profile's rules about versions, ciphers and the server's certificate. */
#pragma once

#include "common/defs.h"
#include "tunnel/profile.h"

struct cv_tlschan_ctx;
struct cv_tlschan;

/* Certificates, key and rules of the profile, which is borrowed and outlives it. 0; CV_E_TLS with a
 * text in *reterr (cv_free); -ENOMEM. */
int cv_tlschan_ctx_new(const struct cv_profile *p, char **reterr,
                       struct cv_tlschan_ctx **ret_ctx) CV_MUST_CHECK;
void cv_tlschan_ctx_free(struct cv_tlschan_ctx *ctx); /* NULL is accepted */

/* 0 or -ENOMEM. 'ctx' is borrowed and outlives it. */
int cv_tlschan_new(struct cv_tlschan_ctx *ctx, struct cv_tlschan **ret_chan) CV_MUST_CHECK;
void cv_tlschan_free(struct cv_tlschan *c); /* NULL is accepted */

/* Bytes of the server's TLS stream. 0 or CV_E_LIMIT. */
int cv_tlschan_feed(struct cv_tlschan *c, const void *data, size_t len) CV_MUST_CHECK;
/* Take the handshake on. 0: it is done and the certificate is good; CV_E_MORE; CV_E_TLS, with a
 * reason in cv_tlschan_error(). */
int cv_tlschan_step(struct cv_tlschan *c);
bool cv_tlschan_is_done(const struct cv_tlschan *c);
/* One message in one record. 0 or CV_E_TLS. */
int cv_tlschan_write(struct cv_tlschan *c, const void *data, size_t len) CV_MUST_CHECK;
/* The next record's plaintext (or what fits of it). 0 and bytes; CV_E_MORE; -EPIPE at close_notify;
 * CV_E_TLS. */
int cv_tlschan_read(struct cv_tlschan *c, void *buf, size_t cap, size_t *ret_n);
/* Bytes to send to the server, up to 'cap'; 0 = none. */
size_t cv_tlschan_pull(struct cv_tlschan *c, void *buf, size_t cap);
size_t cv_tlschan_pending(const struct cv_tlschan *c);
/* Keying material of RFC 5705, no context. 0 or CV_E_TLS. */
int cv_tlschan_export(struct cv_tlschan *c, const char *label, void *out, size_t len);

const char *cv_tlschan_error(const struct cv_tlschan *c); /* "" = none */
/* True if it failed for a reason that does not mend by trying again: the server's certificate. */
bool cv_tlschan_is_untrusted(const struct cv_tlschan *c);
/* "TLSv1.3 TLS_AES_256_GCM_SHA384, CN=..." */
char *cv_tlschan_describe(const struct cv_tlschan *c, char *out, size_t cap);
