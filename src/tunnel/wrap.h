/* The outer protection of control packets: none, tls-auth (HMAC), tls-crypt (encrypted with a
 * shared key), tls-crypt-v2 (with a key of this client, which the server gets wrapped). */
#pragma once

#include <openssl/evp.h>

#include <sys/uio.h>

#include "tunnel/idwindow.h"

enum cv_wrap_kind {
    CV_WRAP_NONE = 0,
    CV_WRAP_AUTH,
    CV_WRAP_CRYPT,
    CV_WRAP_CRYPT_V2,
};

#define CV_WRAP_KEY_LEN  256
#define CV_WRAP_WKC_MAX  1024
#define CV_WRAP_OVERHEAD (8 + 64) /* without the wrapped key */

struct cv_wrap {
    enum cv_wrap_kind kind;
    const EVP_MD *md; /* AUTH */
    uint8_t out_cipher[32], out_hmac[64], in_cipher[32], in_hmac[64];
    uint8_t wkc[CV_WRAP_WKC_MAX];
    size_t wkc_len;
    uint32_t next_id;
    uint32_t time; /* unix s, with the id in each packet */
    struct cv_idwindow seen;
};

/* 'text' is the key file; 'direction' -1, 0 or 1 and 'digest' are of tls-auth. 0, CV_E_PARSE when
 * it is no key, CV_E_UNSUPPORTED when the digest is not known. */
int cv_wrap_init(struct cv_wrap *w, enum cv_wrap_kind kind, const char *text, int direction,
                 const char *digest, uint32_t unix_s);
/* A new session with the same keys: ids start again. */
void cv_wrap_restart(struct cv_wrap *w, uint32_t unix_s);
void cv_wrap_done(struct cv_wrap *w); /* clears the keys */

/* Protect a plain control packet; 'out' has room for len + CV_WRAP_OVERHEAD, and CV_WRAP_WKC_MAX
 * more for those opcodes that carry the wrapped key. 0, CV_E_LIMIT, CV_E_TLS. */
int cv_wrap_seal(struct cv_wrap *w, const uint8_t *plain, size_t len, uint8_t *out, size_t cap,
                 size_t *ret_len) CV_MUST_CHECK;
/* The plain packet of a protected one; 'out' has room for len bytes. 0, CV_E_PROTO when it is not
 * authentic or a replay. */
int cv_wrap_open(struct cv_wrap *w, const uint8_t *data, size_t len, uint8_t *out, size_t cap,
                 size_t *ret_len) CV_MUST_CHECK;
