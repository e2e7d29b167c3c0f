#include "net/quicsniff.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "proto/quic_initial.h"

#include "common/poison.h"

#define SECRET_LEN 32u
#define KEY_LEN    16u
#define IV_LEN     12u
#define TAG_LEN    16u
#define SAMPLE_LEN 16u
#define PN_MAX     4u

/* What the two versions differ in. */
struct suite {
    uint32_t version;
    uint8_t salt[20];
    const char *key, *iv, *hp;
};

static const struct suite suites[] = {
    {CV_QUIC_V1, /* RFC 9001 section 5.2 */
     {0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17,
      0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a},
     "quic key",
     "quic iv",
     "quic hp"},
    {CV_QUIC_V2, /* RFC 9369 section 3.3 */
     {0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93,
      0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb, 0xf9, 0xbd, 0x2e, 0xd9},
     "quicv2 key",
     "quicv2 iv",
     "quicv2 hp"},
};

struct keys {
    uint8_t key[KEY_LEN], iv[IV_LEN], hp[KEY_LEN];
};

struct cv_quicsniff {
    bool begun; /* the keys are there */
    uint32_t version;
    uint8_t dcid_len;
    uint8_t dcid[CV_QUIC_CID_MAX]; /* what the keys were derived from */
    unsigned packets;              /* opened or tried */
    struct keys keys;
    struct cv_quic_crypto crypto;
};

/* ---- keys ---- */

static int hmac(const void *key, size_t key_len, const void *data, size_t len,
                uint8_t out[SECRET_LEN])
{
    unsigned n = 0;
    if (HMAC(EVP_sha256(), key, (int)key_len, data, len, out, &n) == NULL || n != SECRET_LEN)
        return -ENOMEM;
    return 0;
}

/* HKDF-Expand-Label of RFC 8446 section 7.1 without context; one block of output is enough. */
static int expand(const uint8_t secret[SECRET_LEN], const char *label, uint8_t *out, size_t len)
{
    uint8_t info[64], block[SECRET_LEN];
    size_t n = strlen(label);

    CV_ASSERT(n + 11 <= sizeof(info) && len <= SECRET_LEN);
    info[0] = 0;
    info[1] = (uint8_t)len;
    info[2] = (uint8_t)(6 + n);
    memcpy(info + 3, "tls13 ", 6);
    memcpy(info + 9, label, n);
    info[9 + n] = 0;
    info[10 + n] = 1;
    int ret = hmac(secret, SECRET_LEN, info, 11 + n, block);
    if (ret == 0)
        memcpy(out, block, len);
    return ret;
}

static const struct suite *suite_of(uint32_t version)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(suites); i++)
        if (suites[i].version == version)
            return &suites[i];
    return NULL; /* the parser lets no other version through */
}

static int derive(uint32_t version, const uint8_t *dcid, size_t len, struct keys *ret_keys)
{
    const struct suite *s = suite_of(version);
    uint8_t initial[SECRET_LEN], client[SECRET_LEN];

    CV_ASSERT(s != NULL);
    int ret = hmac(s->salt, sizeof(s->salt), dcid, len, initial);
    if (ret == 0)
        ret = expand(initial, "client in", client, sizeof(client));
    if (ret == 0)
        ret = expand(client, s->key, ret_keys->key, sizeof(ret_keys->key));
    if (ret == 0)
        ret = expand(client, s->iv, ret_keys->iv, sizeof(ret_keys->iv));
    if (ret == 0)
        ret = expand(client, s->hp, ret_keys->hp, sizeof(ret_keys->hp));
    return ret;
}

/* ---- packets ---- */

/* RFC 9001 section 5.4.3. */
static int mask_of(EVP_CIPHER_CTX *ctx, const uint8_t hp[KEY_LEN], const uint8_t *sample,
                   uint8_t mask[SAMPLE_LEN])
{
    int n = 0;
    if (EVP_EncryptInit_ex(ctx, EVP_aes_128_ecb(), NULL, hp, NULL) != 1 ||
        EVP_CIPHER_CTX_set_padding(ctx, 0) != 1 ||
        EVP_EncryptUpdate(ctx, mask, &n, sample, SAMPLE_LEN) != 1 || n != SAMPLE_LEN)
        return -ENOMEM;
    return 0;
}

/* Take the protection off the header in 'p', a copy of the packet; *ret_len = its length. */
static void unmask(uint8_t *p, size_t pn_off, const uint8_t *mask, size_t *ret_len,
                   uint8_t nonce[IV_LEN])
{
    p[0] ^= mask[0] & 0x0f;
    size_t pn_len = (p[0] & 3u) + 1;
    for (size_t i = 0; i < pn_len; i++) {
        p[pn_off + i] ^= mask[1 + i];
        nonce[IV_LEN - pn_len + i] ^= p[pn_off + i];
    }
    *ret_len = pn_off + pn_len;
}

/* RFC 9001 section 5.3: the header is authenticated along. CV_E_TLS: these are not the keys. */
static int decrypt(EVP_CIPHER_CTX *ctx, const struct keys *k, const uint8_t nonce[IV_LEN],
                   const uint8_t *p, size_t header, size_t len, uint8_t *out)
{
    size_t body = len - header - TAG_LEN;
    int n = 0;

    if (EVP_DecryptInit_ex(ctx, EVP_aes_128_gcm(), NULL, k->key, nonce) != 1 ||
        EVP_DecryptUpdate(ctx, NULL, &n, p, (int)header) != 1 ||
        EVP_DecryptUpdate(ctx, out, &n, p + header, (int)body) != 1 ||
        EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, TAG_LEN,
                            (void *)(uintptr_t)(p + header + body)) != 1)
        return -ENOMEM;
    return EVP_DecryptFinal_ex(ctx, out + body, &n) == 1 ? 0 : CV_E_TLS;
}

/* Open 'packet'; 'work' has room for twice its length, the payload is put into its second half.
 * 0; CV_E_TLS; CV_E_PROTO; -ENOMEM. */
static int open_packet(EVP_CIPHER_CTX *ctx, const struct keys *k,
                       const struct cv_quic_packet *packet, uint8_t *work, size_t *ret_len)
{
    uint8_t mask[SAMPLE_LEN], nonce[IV_LEN];
    size_t header;

    if (packet->len < packet->pn_off + PN_MAX + SAMPLE_LEN)
        return CV_E_PROTO;
    memcpy(work, packet->data, packet->len);
    memcpy(nonce, k->iv, sizeof(nonce));
    int ret = mask_of(ctx, k->hp, work + packet->pn_off + PN_MAX, mask);
    if (ret != 0)
        return ret;
    unmask(work, packet->pn_off, mask, &header, nonce);
    if (packet->len < header + TAG_LEN)
        return CV_E_PROTO;
    ret = decrypt(ctx, k, nonce, work, header, packet->len, work + packet->len);
    *ret_len = packet->len - header - TAG_LEN;
    return ret;
}

/* Is this the connection that the keys are for? */
static bool is_same(const struct cv_quicsniff *q, const struct cv_quic_packet *p)
{
    return q->begun && q->version == p->version && q->dcid_len == p->dcid_len &&
           memcmp(q->dcid, p->dcid, p->dcid_len) == 0;
}

/* A packet was opened with keys of its own: what went before belongs to something else. */
static void begin(struct cv_quicsniff *q, const struct cv_quic_packet *p, const struct keys *keys)
{
    q->begun = true;
    q->keys = *keys;
    q->version = p->version;
    q->dcid_len = p->dcid_len;
    memcpy(q->dcid, p->dcid, p->dcid_len);
    cv_quic_crypto_done(&q->crypto);
}

static int take_packet(struct cv_quicsniff *q, EVP_CIPHER_CTX *ctx,
                       const struct cv_quic_packet *packet)
{
    struct keys keys;
    size_t len = 0;
    int ret = CV_E_TLS;
    uint8_t *work = cv_try_alloc(2 * packet->len);
    if (work == NULL)
        return -ENOMEM;
    if (q->begun && q->version == packet->version)
        ret = open_packet(ctx, &q->keys, packet, work, &len);
    if (ret == CV_E_TLS && !is_same(q, packet)) {
        ret = derive(packet->version, packet->dcid, packet->dcid_len, &keys);
        if (ret == 0)
            ret = open_packet(ctx, &keys, packet, work, &len);
        if (ret == 0)
            begin(q, packet, &keys);
    }
    if (ret == 0)
        ret = cv_quic_crypto_take(&q->crypto, work + packet->len, len);
    cv_free(work);
    return ret;
}

/* Every Initial packet of a datagram. 0; CV_E_UNSUPPORTED when there is none; other codes. */
static int take_datagram(struct cv_quicsniff *q, EVP_CIPHER_CTX *ctx, const uint8_t *p, size_t len)
{
    struct cv_quic_packet packet;
    bool seen = false;
    int ret = 0;

    while (len > 0 && ret == 0) {
        ret = cv_quic_packet_parse(p, len, &packet);
        if (ret != 0)
            return seen ? 0 : ret; /* what follows an Initial packet may be anything */
        if (packet.type == CV_QUIC_INITIAL) {
            seen = true;
            if (++q->packets > CV_QUICSNIFF_PACKETS_MAX)
                return CV_E_LIMIT;
            ret = take_packet(q, ctx, &packet);
        }
        p += packet.len;
        len -= packet.len;
    }
    return ret == 0 && !seen ? CV_E_UNSUPPORTED : ret;
}

struct cv_quicsniff *cv_quicsniff_new(void)
{
    return cv_try_zalloc(sizeof(struct cv_quicsniff));
}

void cv_quicsniff_free(struct cv_quicsniff *q)
{
    if (q == NULL)
        return;
    cv_quic_crypto_done(&q->crypto);
    cv_free(q);
}

bool cv_quicsniff_is_initial(const void *datagram, size_t len)
{
    struct cv_quic_packet p;
    return cv_quic_packet_parse(datagram, len, &p) == 0 && p.type == CV_QUIC_INITIAL;
}

static enum cv_sniff_outcome outcome_of(int err)
{
    switch (err) {
    case CV_E_UNSUPPORTED:
        return CV_SNIFF_UNSUPPORTED;
    case CV_E_LIMIT:
        return CV_SNIFF_LIMIT;
    default:
        return CV_SNIFF_MALFORMED;
    }
}

int cv_quicsniff_look(struct cv_quicsniff *q, const void *datagram, size_t len,
                      enum cv_sniff_outcome *ret_outcome, struct cv_host *ret_host)
{
    const uint8_t *message;
    size_t message_len;
    struct cv_tls_hello hello;

    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    if (ctx == NULL)
        return -ENOMEM;
    int ret = take_datagram(q, ctx, datagram, len);
    EVP_CIPHER_CTX_free(ctx);
    ERR_clear_error();
    /* Later datagrams of the flight hold other packets as well, and may be no part of it. */
    if (q->begun && (ret == CV_E_TLS || ret == CV_E_UNSUPPORTED))
        ret = 0;
    if (ret == 0)
        ret = cv_quic_crypto_hello(&q->crypto, &message, &message_len);
    if (ret == 0)
        ret = cv_tls_hello_parse(message, message_len, &hello);
    if (ret == CV_E_MORE || ret == -ENOMEM)
        return ret;
    *ret_outcome = ret == 0 ? cv_sniff_hello(&hello, CV_SNIFF_QUIC, ret_host) : outcome_of(ret);
    return 0;
}
