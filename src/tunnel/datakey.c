#include "tunnel/datakey.h"

#include <openssl/core_names.h>
#include <openssl/params.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/rand.h"
#include "common/secret.h"
#include "tunnel/wire.h"

#include "common/poison.h"

#define TAG   16
#define BLOCK 16

static const struct cv_datakey_cipher ciphers[] = {
    {"AES-256-GCM", 32, true},       {"AES-192-GCM", 24, true},  {"AES-128-GCM", 16, true},
    {"AES-256-CBC", 32, false},      {"AES-192-CBC", 24, false}, {"AES-128-CBC", 16, false},
    {"CHACHA20-POLY1305", 32, true},
};

const struct cv_datakey_cipher *cv_datakey_cipher(const char *name)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(ciphers); i++)
        if (strcmp(ciphers[i].name, name) == 0)
            return &ciphers[i];
    return NULL;
}

static void put32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* ---- life ---- */

static EVP_MAC_CTX *mac_new(EVP_MAC *mac, const char *digest, const uint8_t *key, size_t len)
{
    EVP_MAC_CTX *c = mac != NULL ? EVP_MAC_CTX_new(mac) : NULL;
    char name[24];
    snprintf(name, sizeof(name), "%s", digest);
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name, 0),
                           OSSL_PARAM_construct_end()};
    if (c != NULL && EVP_MAC_init(c, key, len, params) == 1)
        return c;
    EVP_MAC_CTX_free(c);
    return NULL;
}

int cv_datakey_init(struct cv_datakey *k, const char *cipher, const char *auth,
                    const uint8_t keys[256], unsigned key_id, int32_t peer_id)
{
    memset(k, 0, sizeof(*k));
    k->cipher = cv_datakey_cipher(cipher);
    if (k->cipher == NULL)
        return CV_E_UNSUPPORTED;
    k->next_id = 1;
    k->head_len = peer_id >= 0 ? 4 : 1;
    put32(k->head, (uint32_t)peer_id);
    k->head[0] = (uint8_t)((peer_id >= 0 ? CV_WIRE_DATA_V2 : CV_WIRE_DATA_V1) << 3 | key_id);
    memcpy(k->iv_out, keys + 64, 8);
    memcpy(k->iv_in, keys + 192, 8);
    EVP_CIPHER *c = EVP_CIPHER_fetch(NULL, k->cipher->name, NULL);
    k->enc = EVP_CIPHER_CTX_new();
    k->dec = EVP_CIPHER_CTX_new();
    bool ok = c != NULL && k->enc != NULL && k->dec != NULL &&
              EVP_EncryptInit_ex2(k->enc, c, keys, NULL, NULL) == 1 &&
              EVP_DecryptInit_ex2(k->dec, c, keys + 128, NULL, NULL) == 1;
    EVP_CIPHER_free(c);
    if (ok && !k->cipher->aead) {
        const EVP_MD *md = EVP_get_digestbyname(auth);
        k->mac_len = md != NULL ? (size_t)EVP_MD_get_size(md) : 0;
        k->mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
        k->mac_out = md != NULL ? mac_new(k->mac, auth, keys + 64, k->mac_len) : NULL;
        k->mac_in = md != NULL ? mac_new(k->mac, auth, keys + 192, k->mac_len) : NULL;
        ok = k->mac_out != NULL && k->mac_in != NULL;
    }
    if (!ok)
        cv_datakey_done(k);
    return ok ? 0 : CV_E_TLS;
}

void cv_datakey_done(struct cv_datakey *k)
{
    EVP_CIPHER_CTX_free(k->enc);
    EVP_CIPHER_CTX_free(k->dec);
    EVP_MAC_CTX_free(k->mac_out);
    EVP_MAC_CTX_free(k->mac_in);
    EVP_MAC_free(k->mac);
    cv_secret_clear(k, sizeof(*k));
}

size_t cv_datakey_sealed_len(const struct cv_datakey *k, size_t len)
{
    if (k->cipher->aead)
        return k->head_len + 4 + TAG + len;
    return k->head_len + k->mac_len + BLOCK + (len + 4) / BLOCK * BLOCK + BLOCK;
}

/* ---- AEAD: head | id | tag | ciphertext ---- */

static int seal_aead(struct cv_datakey *k, const struct iovec *pieces, size_t n, size_t len,
                     uint8_t *out)
{
    uint8_t nonce[12], *id = out + k->head_len, *tag = id + 4, *at = tag + TAG;
    int got = 0;
    memcpy(out, k->head, k->head_len);
    put32(id, k->next_id);
    memcpy(nonce, id, 4);
    memcpy(nonce + 4, k->iv_out, 8);
    /* V2 covers the head, V1 does not. */
    const uint8_t *ad = k->head_len == 4 ? out : id;
    if (EVP_EncryptInit_ex2(k->enc, NULL, NULL, nonce, NULL) != 1 ||
        EVP_EncryptUpdate(k->enc, NULL, &got, ad, (int)(tag - ad)) != 1)
        return CV_E_TLS;
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].iov_len == 0)
            continue;
        if (EVP_EncryptUpdate(k->enc, at, &got, pieces[i].iov_base, (int)pieces[i].iov_len) != 1)
            return CV_E_TLS;
        at += got;
    }
    if (EVP_EncryptFinal_ex(k->enc, at, &got) != 1 ||
        EVP_CIPHER_CTX_ctrl(k->enc, EVP_CTRL_AEAD_GET_TAG, TAG, tag) != 1)
        return CV_E_TLS;
    return (size_t)(at - tag - TAG) == len ? 0 : CV_E_TLS;
}

static int open_aead(struct cv_datakey *k, uint8_t *data, size_t len, size_t head_len,
                     uint8_t **ret_plain, size_t *ret_len)
{
    if (len < head_len + 4 + TAG)
        return CV_E_PROTO;
    uint8_t nonce[12], *id = data + head_len, *tag = id + 4, *text = tag + TAG;
    size_t text_len = len - head_len - 4 - TAG;
    int got = 0, end = 0;
    if (!cv_idwindow_is_new(&k->seen, get32(id)))
        return CV_E_PROTO;
    memcpy(nonce, id, 4);
    memcpy(nonce + 4, k->iv_in, 8);
    const uint8_t *ad = head_len == 4 ? data : id;
    if (EVP_DecryptInit_ex2(k->dec, NULL, NULL, nonce, NULL) != 1 ||
        EVP_CIPHER_CTX_ctrl(k->dec, EVP_CTRL_AEAD_SET_TAG, TAG, tag) != 1 ||
        EVP_DecryptUpdate(k->dec, NULL, &got, ad, (int)(tag - ad)) != 1 ||
        EVP_DecryptUpdate(k->dec, text, &got, text, (int)text_len) != 1 ||
        EVP_DecryptFinal_ex(k->dec, text + got, &end) != 1)
        return CV_E_PROTO;
    cv_idwindow_note(&k->seen, get32(id));
    *ret_plain = text;
    *ret_len = text_len;
    return 0;
}

/* ---- CBC: head | HMAC | IV | ciphertext of (id | packet | padding) ---- */

static int mac(EVP_MAC_CTX *c, const uint8_t *data, size_t len, uint8_t *out)
{
    size_t n = 0;
    return EVP_MAC_init(c, NULL, 0, NULL) == 1 && EVP_MAC_update(c, data, len) == 1 &&
                   EVP_MAC_final(c, out, &n, EVP_MAX_MD_SIZE) == 1
               ? 0
               : CV_E_TLS;
}

static int seal_cbc(struct cv_datakey *k, const struct iovec *pieces, size_t n, size_t len,
                    uint8_t *out)
{
    uint8_t tag[EVP_MAX_MD_SIZE], *iv = out + k->head_len + k->mac_len, *text = iv + BLOCK;
    size_t pad = BLOCK - (len + 4) % BLOCK, total = len + 4 + pad;
    int got = 0;
    memcpy(out, k->head, k->head_len);
    if (k->iv_left == 0) {
        cv_rand_bytes(k->iv_pool, sizeof(k->iv_pool));
        k->iv_left = sizeof(k->iv_pool);
    }
    k->iv_left -= BLOCK;
    memcpy(iv, k->iv_pool + k->iv_left, BLOCK);
    put32(text, k->next_id);
    uint8_t *at = text + 4;
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].iov_len > 0)
            memcpy(at, pieces[i].iov_base, pieces[i].iov_len);
        at += pieces[i].iov_len;
    }
    memset(at, (int)pad, pad);
    if (EVP_EncryptInit_ex2(k->enc, NULL, NULL, iv, NULL) != 1 ||
        EVP_CIPHER_CTX_set_padding(k->enc, 0) != 1 ||
        EVP_EncryptUpdate(k->enc, text, &got, text, (int)total) != 1 || (size_t)got != total ||
        mac(k->mac_out, iv, BLOCK + total, tag) != 0)
        return CV_E_TLS;
    memcpy(out + k->head_len, tag, k->mac_len);
    return 0;
}

static int open_cbc(struct cv_datakey *k, uint8_t *data, size_t len, size_t head_len,
                    uint8_t **ret_plain, size_t *ret_len)
{
    if (len < head_len + k->mac_len + 2 * BLOCK || (len - head_len - k->mac_len) % BLOCK != 0)
        return CV_E_PROTO;
    uint8_t tag[EVP_MAX_MD_SIZE], *iv = data + head_len + k->mac_len, *text = iv + BLOCK;
    size_t text_len = len - head_len - k->mac_len - BLOCK;
    int got = 0;
    if (mac(k->mac_in, iv, BLOCK + text_len, tag) != 0 ||
        !cv_ct_equal(tag, k->mac_len, data + head_len, k->mac_len))
        return CV_E_PROTO;
    if (EVP_DecryptInit_ex2(k->dec, NULL, NULL, iv, NULL) != 1 ||
        EVP_CIPHER_CTX_set_padding(k->dec, 0) != 1 ||
        EVP_DecryptUpdate(k->dec, text, &got, text, (int)text_len) != 1 || (size_t)got != text_len)
        return CV_E_PROTO;
    /* Authentic from here on, so the padding tells nobody anything. */
    size_t pad = text[text_len - 1];
    uint32_t id = get32(text);
    if (pad < 1 || pad > BLOCK || text_len < 4 + pad || !cv_idwindow_is_new(&k->seen, id))
        return CV_E_PROTO;
    cv_idwindow_note(&k->seen, id);
    *ret_plain = text + 4;
    *ret_len = text_len - 4 - pad;
    return 0;
}

/* ---- both ---- */

int cv_datakey_seal(struct cv_datakey *k, const struct iovec *pieces, size_t n, size_t len,
                    uint8_t *out, size_t cap, size_t *ret_len)
{
    size_t total = cv_datakey_sealed_len(k, len);
    if (cap < total || k->next_id > CV_DATAKEY_ID_MAX)
        return CV_E_LIMIT;
    int ret =
        k->cipher->aead ? seal_aead(k, pieces, n, len, out) : seal_cbc(k, pieces, n, len, out);
    k->next_id++; /* also after a failure: a nonce is never used twice */
    k->bytes += len;
    k->packets++;
    *ret_len = total;
    return ret;
}

int cv_datakey_open(struct cv_datakey *k, uint8_t *data, size_t len, uint8_t **ret_plain,
                    size_t *ret_len)
{
    size_t head_len = len > 0 && cv_wire_op(data[0]) == CV_WIRE_DATA_V2 ? 4 : 1;
    int ret = k->cipher->aead ? open_aead(k, data, len, head_len, ret_plain, ret_len)
                              : open_cbc(k, data, len, head_len, ret_plain, ret_len);
    if (ret == 0) {
        k->bytes += *ret_len;
        k->packets++;
    }
    return ret;
}
