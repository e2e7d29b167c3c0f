/* Key method 2: what client and server tell each other first in the TLS stream, and the data keys
 * that come of it. */
#pragma once

#include "common/defs.h"
#include "tunnel/profile.h"

#define CV_KEYMETHOD_PRE_LEN    48
#define CV_KEYMETHOD_RANDOM_LEN 32
#define CV_KEYMETHOD_MAX        2048 /* the whole message */
#define CV_KEYMETHOD_KEYS_LEN   256

/* IV_PROTO: DATA_V2, push without request, keys by TLS exporter, AUTH_PENDING words, exit by
 * control message and protocol-flags, temporary AUTH_FAILED. */
#define CV_KEYMETHOD_IV_PROTO (2 | 4 | 8 | 16 | 128 | 256)

struct cv_keymethod_random {
    uint8_t pre[CV_KEYMETHOD_PRE_LEN]; /* of the client only */
    uint8_t r1[CV_KEYMETHOD_RANDOM_LEN], r2[CV_KEYMETHOD_RANDOM_LEN];
};

/* The options string ("V4,dev-type tun,...") by which servers without negotiation know what we do.
 * 'tcp' and 'ip6' of the connection. 0 or CV_E_LIMIT. */
int cv_keymethod_options(const struct cv_profile *p, bool tcp, bool ip6, char *out, size_t cap);
/* The ciphers that we offer, "A:B:C". */
int cv_keymethod_ciphers(const struct cv_profile *p, char *out, size_t cap);
/* The peer info, "IV_VER=...\n...". */
int cv_keymethod_peer_info(const struct cv_profile *p, char *out, size_t cap);

/* The client's message. Texts may be "". 0 or CV_E_LIMIT. */
int cv_keymethod_encode(const struct cv_keymethod_random *own, const char *options,
                        const char *user, const char *password, const char *peer_info, uint8_t *out,
                        size_t cap, size_t *ret_len);
/* The server's message at the front of 'data'. 0 with *ret_used and the options string (cut at
 * 'cap'); CV_E_MORE; CV_E_PROTO. */
int cv_keymethod_decode(const uint8_t *data, size_t len, struct cv_keymethod_random *ret,
                        char *options, size_t cap, size_t *ret_used);

/* Data keys by the TLS 1.0 PRF over both sides' randoms. 0 or CV_E_TLS. */
int cv_keymethod_derive(const struct cv_keymethod_random *client,
                        const struct cv_keymethod_random *server, const uint8_t client_sid[8],
                        const uint8_t server_sid[8], uint8_t out[CV_KEYMETHOD_KEYS_LEN]);
