/* The data channel's keys and packets: AEAD (AES-GCM, ChaCha20-Poly1305) and AES-CBC with HMAC,
 * with or without a peer id (DATA_V2, DATA_V1).
 *
 * Nothing here allocates per packet: contexts are made with the key. Sealing reads the plaintext
 * where it is, in pieces, and writes the packet once; opening decrypts in place. */
#pragma once

#include <openssl/evp.h>
#include <sys/uio.h>

#include "tunnel/idwindow.h"

struct cv_datakey_cipher {
    const char *name; /* OpenVPN's and OpenSSL's */
    uint8_t key_len;
    bool aead;
};
/* NULL: not known. Upper case. */
const struct cv_datakey_cipher *cv_datakey_cipher(const char *name);

/* Most that a packet grows by: head, tag or HMAC, IV, id, padding. */
#define CV_DATAKEY_OVERHEAD (4 + 64 + 16 + 4 + 16)
/* No id above this is used: a new key is due long before. */
#define CV_DATAKEY_ID_RENEW 0xff000000u
#define CV_DATAKEY_ID_MAX   0xfffffff0u

struct cv_datakey {
    const struct cv_datakey_cipher *cipher;
    EVP_CIPHER_CTX *enc, *dec;     /* owned */
    EVP_MAC_CTX *mac_out, *mac_in; /* owned; CBC */
    EVP_MAC *mac;
    size_t mac_len;
    uint8_t iv_out[8], iv_in[8]; /* AEAD: the fixed part of the nonce */
    uint8_t head[4];             /* first byte and peer id */
    size_t head_len;             /* 1 or 4 */
    uint32_t next_id;
    struct cv_idwindow seen;
    uint64_t bytes; /* both directions */
    uint64_t packets;
    uint8_t iv_pool[16 * 32]; /* random IVs for CBC, made in bulk */
    size_t iv_left;
};

/* 'keys' are the 256 bytes of key method 2. 'peer_id' < 0: DATA_V1. 'auth' is of CBC. 0,
 * CV_E_UNSUPPORTED, CV_E_TLS. */
int cv_datakey_init(struct cv_datakey *k, const char *cipher, const char *auth,
                    const uint8_t keys[256], unsigned key_id, int32_t peer_id);
void cv_datakey_done(struct cv_datakey *k);
/* What a packet of 'len' bytes grows to. */
size_t cv_datakey_sealed_len(const struct cv_datakey *k, size_t len);

/* Seal the concatenation of the pieces (len bytes together) into 'out'. 0 and *ret_len;
 * CV_E_LIMIT when there is no room or the ids are used up; CV_E_TLS. */
int cv_datakey_seal(struct cv_datakey *k, const struct iovec *pieces, size_t n, size_t len,
                    uint8_t *out, size_t cap, size_t *ret_len) CV_MUST_CHECK;
/* Open a packet (from its first byte on) in place. 0 and where the plaintext is; CV_E_PROTO when it
 * is not authentic, replayed or malformed. */
int cv_datakey_open(struct cv_datakey *k, uint8_t *data, size_t len, uint8_t **ret_plain,
                    size_t *ret_len) CV_MUST_CHECK;
