#include "tunnel/wrap.h"

#include <ctype.h>
#include <openssl/hmac.h>
#include <string.h>

#include "common/base64.h"
#include "common/err.h"
#include "common/secret.h"
#include "tunnel/wire.h"

#include "common/poison.h"

#define HEAD    9 /* first byte and session id */
#define REPLAY  8 /* id and time */
#define TAG     32
#define V2_BASE 0x0f000000u /* "I can send my wrapped key again" */

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

/* ---- key files ---- */

/* The lines between "-----BEGIN name" and "-----END". */
static const char *pem_body(const char *text, const char *name, const char **ret_end)
{
    const char *p = strstr(text, "-----BEGIN ");
    if (p == NULL || strncmp(p + 11, name, strlen(name)) != 0)
        return NULL;
    p = strchr(p, '\n');
    const char *end = p != NULL ? strstr(p, "-----END ") : NULL;
    *ret_end = end;
    return end != NULL ? p : NULL;
}

static int static_key(const char *text, uint8_t key[CV_WRAP_KEY_LEN])
{
    const char *end, *p = pem_body(text, "OpenVPN Static key V1", &end);
    char hex[2 * CV_WRAP_KEY_LEN];
    size_t n = 0, got = 0;
    if (p == NULL)
        return CV_E_PARSE;
    for (; p < end; p++) {
        if (isspace((unsigned char)*p))
            continue;
        if (n == sizeof(hex))
            return CV_E_PARSE;
        hex[n++] = (char)tolower((unsigned char)*p);
    }
    int ret = n == sizeof(hex) ? cv_hex_decode(hex, n, key, CV_WRAP_KEY_LEN, &got) : CV_E_PARSE;
    cv_secret_clear(hex, sizeof(hex));
    return ret == 0 && got == CV_WRAP_KEY_LEN ? 0 : CV_E_PARSE;
}

static int client_key_v2(struct cv_wrap *w, const char *text, uint8_t key[CV_WRAP_KEY_LEN])
{
    const char *end, *p = pem_body(text, "OpenVPN tls-crypt-v2 client key", &end);
    char b64[4 * (CV_WRAP_KEY_LEN + CV_WRAP_WKC_MAX) / 3 + 8];
    uint8_t raw[CV_WRAP_KEY_LEN + CV_WRAP_WKC_MAX];
    size_t n = 0, got = 0;
    if (p == NULL)
        return CV_E_PARSE;
    for (; p < end; p++) {
        if (isspace((unsigned char)*p))
            continue;
        if (n == sizeof(b64))
            return CV_E_PARSE;
        b64[n++] = *p;
    }
    int ret = cv_base64_decode(b64, n, raw, sizeof(raw), &got);
    /* The wrapped key ends with its own length. */
    if (ret == 0 && (got < CV_WRAP_KEY_LEN + 290 ||
                     (size_t)(raw[got - 2] << 8 | raw[got - 1]) != got - CV_WRAP_KEY_LEN))
        ret = CV_E_PARSE;
    if (ret == 0) {
        memcpy(key, raw, CV_WRAP_KEY_LEN);
        w->wkc_len = got - CV_WRAP_KEY_LEN;
        memcpy(w->wkc, raw + CV_WRAP_KEY_LEN, w->wkc_len);
    }
    cv_secret_clear(raw, sizeof(raw));
    cv_secret_clear(b64, sizeof(b64));
    return ret != 0 ? CV_E_PARSE : 0;
}

int cv_wrap_init(struct cv_wrap *w, enum cv_wrap_kind kind, const char *text, int direction,
                 const char *digest, uint32_t unix_s)
{
    uint8_t key[CV_WRAP_KEY_LEN];
    memset(w, 0, sizeof(*w));
    w->kind = kind;
    cv_wrap_restart(w, unix_s);
    if (kind == CV_WRAP_NONE)
        return 0;
    int ret = kind == CV_WRAP_CRYPT_V2 ? client_key_v2(w, text, key) : static_key(text, key);
    if (ret != 0)
        return ret;
    /* key0 is the first half; 0 sends with it, 1 receives with it, none does both. tls-crypt: a
     * client is always 1. */
    size_t out = 128, in = 0;
    if (kind == CV_WRAP_AUTH) {
        w->md = EVP_get_digestbyname(digest);
        if (w->md == NULL)
            ret = CV_E_UNSUPPORTED;
        out = direction == 1 ? 128 : 0;
        in = direction == 0 ? 128 : 0;
    }
    memcpy(w->out_cipher, key + out, sizeof(w->out_cipher));
    memcpy(w->out_hmac, key + out + 64, sizeof(w->out_hmac));
    memcpy(w->in_cipher, key + in, sizeof(w->in_cipher));
    memcpy(w->in_hmac, key + in + 64, sizeof(w->in_hmac));
    cv_secret_clear(key, sizeof(key));
    return ret;
}

void cv_wrap_restart(struct cv_wrap *w, uint32_t unix_s)
{
    w->next_id = w->kind == CV_WRAP_CRYPT_V2 ? V2_BASE + 1 : 1;
    w->time = unix_s;
    cv_idwindow_init(&w->seen);
}

void cv_wrap_done(struct cv_wrap *w)
{
    cv_secret_clear(w, sizeof(*w));
}

/* ---- packets ---- */

/* HMAC over up to three parts. */
static int hmac3(const EVP_MD *md, const uint8_t *key, size_t key_len, const struct iovec parts[3],
                 uint8_t out[EVP_MAX_MD_SIZE])
{
    uint8_t buf[REPLAY + HEAD + CV_WIRE_PACKET_MAX];
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        if (parts[i].iov_len > sizeof(buf) - n)
            return CV_E_LIMIT;
        if (parts[i].iov_len > 0)
            memcpy(buf + n, parts[i].iov_base, parts[i].iov_len);
        n += parts[i].iov_len;
    }
    unsigned len = 0;
    return HMAC(md, key, (int)key_len, buf, n, out, &len) != NULL ? 0 : CV_E_TLS;
}

static struct iovec part(const uint8_t *p, size_t n)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = n};
}

static int auth_mac(const struct cv_wrap *w, const uint8_t *key, const uint8_t *replay,
                    const uint8_t *head, const uint8_t *rest, size_t rest_len, uint8_t *out)
{
    struct iovec parts[3] = {part(replay, REPLAY), part(head, HEAD), part(rest, rest_len)};
    return hmac3(w->md, key, (size_t)EVP_MD_get_size(w->md), parts, out);
}

static int ctr(const uint8_t *key, const uint8_t *iv, const uint8_t *in, size_t len, uint8_t *out)
{
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int n = 0;
    bool ok = c != NULL && EVP_EncryptInit_ex(c, EVP_aes_256_ctr(), NULL, key, iv) == 1 &&
              EVP_EncryptUpdate(c, out, &n, in, (int)len) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok ? 0 : CV_E_TLS;
}

static int seal_crypt(struct cv_wrap *w, const uint8_t *plain, size_t len, uint8_t *out, size_t cap,
                      size_t *ret_len)
{
    unsigned op = cv_wire_op(plain[0]);
    bool with_key = op == CV_WIRE_RESET_CLIENT_V3 || op == CV_WIRE_CONTROL_WKC;
    size_t total = len + REPLAY + TAG + (with_key ? w->wkc_len : 0);
    uint8_t mac[EVP_MAX_MD_SIZE];
    if (cap < total)
        return CV_E_LIMIT;
    memcpy(out, plain, HEAD);
    put32(out + HEAD, w->next_id);
    put32(out + HEAD + 4, w->time);
    struct iovec parts[3] = {part(out, HEAD + REPLAY), part(plain + HEAD, len - HEAD)};
    int ret = hmac3(EVP_sha256(), w->out_hmac, 32, parts, mac);
    if (ret != 0)
        return ret;
    memcpy(out + HEAD + REPLAY, mac, TAG);
    ret = ctr(w->out_cipher, mac, plain + HEAD, len - HEAD, out + HEAD + REPLAY + TAG);
    if (ret == 0 && with_key)
        memcpy(out + HEAD + REPLAY + TAG + len - HEAD, w->wkc, w->wkc_len);
    *ret_len = total;
    return ret;
}

int cv_wrap_seal(struct cv_wrap *w, const uint8_t *plain, size_t len, uint8_t *out, size_t cap,
                 size_t *ret_len)
{
    CV_ASSERT(len >= HEAD);
    int ret;
    if (w->kind == CV_WRAP_NONE) {
        if (cap < len)
            return CV_E_LIMIT;
        memcpy(out, plain, len);
        *ret_len = len;
        return 0;
    }
    if (w->kind != CV_WRAP_AUTH) {
        ret = seal_crypt(w, plain, len, out, cap, ret_len);
    } else {
        size_t mac_len = (size_t)EVP_MD_get_size(w->md);
        uint8_t mac[EVP_MAX_MD_SIZE], *replay = out + HEAD + mac_len;
        if (cap < len + REPLAY + mac_len)
            return CV_E_LIMIT;
        memcpy(out, plain, HEAD);
        put32(replay, w->next_id);
        put32(replay + 4, w->time);
        ret = auth_mac(w, w->out_hmac, replay, plain, plain + HEAD, len - HEAD, mac);
        if (ret == 0) {
            memcpy(out + HEAD, mac, mac_len);
            memcpy(replay + REPLAY, plain + HEAD, len - HEAD);
        }
        *ret_len = len + REPLAY + mac_len;
    }
    w->next_id++;
    return ret;
}

int cv_wrap_open(struct cv_wrap *w, const uint8_t *data, size_t len, uint8_t *out, size_t cap,
                 size_t *ret_len)
{
    uint8_t mac[EVP_MAX_MD_SIZE];
    if (w->kind == CV_WRAP_NONE) {
        if (cap < len)
            return CV_E_PROTO;
        memcpy(out, data, len);
        *ret_len = len;
        return 0;
    }
    size_t mac_len = w->kind == CV_WRAP_AUTH ? (size_t)EVP_MD_get_size(w->md) : TAG;
    size_t over = REPLAY + mac_len;
    if (len < HEAD + over || len - over > cap)
        return CV_E_PROTO;
    const uint8_t *rest = data + HEAD + over, *tag, *replay;
    size_t rest_len = len - HEAD - over;
    memcpy(out, data, HEAD);
    int ret;
    if (w->kind == CV_WRAP_AUTH) {
        tag = data + HEAD;
        replay = tag + mac_len;
        memcpy(out + HEAD, rest, rest_len);
        ret = auth_mac(w, w->in_hmac, replay, data, rest, rest_len, mac);
    } else {
        replay = data + HEAD;
        tag = replay + REPLAY;
        ret = ctr(w->in_cipher, tag, rest, rest_len, out + HEAD);
        struct iovec parts[3] = {part(data, HEAD + REPLAY), part(out + HEAD, rest_len)};
        if (ret == 0)
            ret = hmac3(EVP_sha256(), w->in_hmac, 32, parts, mac);
    }
    uint64_t id = (uint64_t)get32(replay + 4) << 32 | get32(replay);
    if (ret != 0 || !cv_ct_equal(mac, mac_len, tag, mac_len) || !cv_idwindow_is_new(&w->seen, id))
        return CV_E_PROTO;
    cv_idwindow_note(&w->seen, id);
    *ret_len = len - over;
    return 0;
}
