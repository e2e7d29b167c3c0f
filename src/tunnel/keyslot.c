#include "tunnel/keyslot.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/rand.h"
#include "common/secret.h"

#include "common/poison.h"

struct cv_keyslot *cv_keyslot_new(uint8_t key_id, enum cv_wire_op op, unsigned window,
                                  int64_t now_ms)
{
    struct cv_keyslot *s = cv_try_alloc(sizeof(*s));
    if (s == NULL)
        return NULL;
    memset(s, 0, offsetof(struct cv_keyslot, rel));
    s->key_id = key_id;
    s->born_ms = now_ms;
    s->first_piece_max = CV_WIRE_PIECE_MAX;
    cv_reliable_init(&s->rel, window);
    (void)cv_reliable_push(&s->rel, op, NULL, 0);
    return s;
}

void cv_keyslot_free(struct cv_keyslot *s)
{
    if (s == NULL)
        return;
    cv_tlschan_free(s->tls);
    if (s->has_data)
        cv_datakey_done(&s->data);
    cv_secret_clear(s, sizeof(*s));
    cv_free(s);
}

/* Ciphertext of TLS to messages, as far as there is room. */
static void queue(struct cv_keyslot *s)
{
    uint8_t piece[CV_WIRE_PIECE_MAX];
    while (s->tls != NULL && cv_reliable_room(&s->rel) > 0) {
        size_t max = s->wkc_next ? s->first_piece_max : sizeof(piece);
        size_t n = cv_tlschan_pull(s->tls, piece, max);
        if (n == 0)
            return;
        enum cv_wire_op op = s->wkc_next ? CV_WIRE_CONTROL_WKC : CV_WIRE_CONTROL;
        s->wkc_next = false;
        (void)cv_reliable_push(&s->rel, op, piece, n);
    }
}

static int read_plain(struct cv_keyslot *s)
{
    while (s->plain_len < sizeof(s->plain)) {
        size_t n = 0;
        int ret =
            cv_tlschan_read(s->tls, s->plain + s->plain_len, sizeof(s->plain) - s->plain_len, &n);
        if (ret != 0)
            return ret == CV_E_MORE ? 0 : ret;
        s->plain_len += n;
        /* SoftEther leaves out the NUL of a repeated message: the record's end is the message's. */
        if (s->state >= CV_KEYSLOT_AGREED && s->plain_len < sizeof(s->plain) &&
            s->plain[s->plain_len - 1] != '\0')
            s->plain[s->plain_len++] = '\0';
    }
    return 0;
}

int cv_keyslot_drive(struct cv_keyslot *s, struct cv_tlschan_ctx *ctx,
                     void (*on_reset)(struct cv_keyslot *s, const struct cv_reliable_in *in,
                                      void *arg),
                     void *arg)
{
    const struct cv_reliable_in *in;
    int ret = 0;
    while (ret == 0 && (in = cv_reliable_peek(&s->rel)) != NULL) {
        bool is_reset = in->op == CV_WIRE_RESET_SERVER || in->op == CV_WIRE_SOFT_RESET;
        if (is_reset && s->tls == NULL) {
            ret = cv_tlschan_new(ctx, &s->tls);
            s->state = CV_KEYSLOT_TLS;
            if (on_reset != NULL)
                on_reset(s, in, arg);
        } else if (!is_reset && s->tls != NULL) {
            ret = cv_tlschan_feed(s->tls, in->data, in->len);
        }
        cv_reliable_shift(&s->rel);
    }
    if (ret != 0 || s->tls == NULL)
        return ret;
    if (!cv_tlschan_is_done(s->tls)) {
        ret = cv_tlschan_step(s->tls);
        queue(s);
        if (ret != 0)
            return ret == CV_E_MORE ? 0 : ret;
    }
    ret = read_plain(s);
    queue(s);
    return ret;
}

int cv_keyslot_send_keys(struct cv_keyslot *s, const char *options, const char *user,
                         const char *password, const char *peer_info)
{
    uint8_t msg[CV_KEYMETHOD_MAX];
    size_t len = 0;
    cv_rand_bytes(&s->own, sizeof(s->own));
    int ret =
        cv_keymethod_encode(&s->own, options, user, password, peer_info, msg, sizeof(msg), &len);
    if (ret == 0)
        ret = cv_tlschan_write(s->tls, msg, len);
    cv_secret_clear(msg, sizeof(msg));
    if (ret == 0)
        s->state = CV_KEYSLOT_KEYS;
    queue(s);
    return ret;
}

int cv_keyslot_take_keys(struct cv_keyslot *s)
{
    size_t used = 0;
    int ret = cv_keymethod_decode(s->plain, s->plain_len, &s->peer, s->peer_options,
                                  sizeof(s->peer_options), &used);
    if (ret != 0)
        return ret;
    memmove(s->plain, s->plain + used, s->plain_len - used);
    s->plain_len -= used;
    s->state = CV_KEYSLOT_AGREED;
    return 0;
}

const char *cv_keyslot_take_text(struct cv_keyslot *s, char *out, size_t cap)
{
    while (s->plain_len > 0) {
        const uint8_t *nul = memchr(s->plain, '\0', s->plain_len);
        if (nul == NULL && s->plain_len < sizeof(s->plain))
            return NULL;
        size_t n = nul != NULL ? (size_t)(nul - s->plain) : s->plain_len;
        size_t used = nul != NULL ? n + 1 : n, k = CV_MIN(n, cap - 1);
        if (k > 0)
            memcpy(out, s->plain, k);
        out[k] = '\0';
        memmove(s->plain, s->plain + used, s->plain_len - used);
        s->plain_len -= used;
        if (k > 0)
            return out;
    }
    return NULL;
}

int cv_keyslot_send_text(struct cv_keyslot *s, const char *text)
{
    int ret = s->tls != NULL ? cv_tlschan_write(s->tls, text, strlen(text) + 1) : CV_E_UNAVAILABLE;
    queue(s);
    return ret;
}

int cv_keyslot_make_data(struct cv_keyslot *s, const char *cipher, const char *auth, bool ekm,
                         const uint8_t own_sid[8], const uint8_t peer_sid[8], int32_t peer_id,
                         int64_t now_ms)
{
    uint8_t keys[CV_KEYMETHOD_KEYS_LEN];
    int ret = ekm ? cv_tlschan_export(s->tls, "EXPORTER-OpenVPN-datakeys", keys, sizeof(keys))
                  : cv_keymethod_derive(&s->own, &s->peer, own_sid, peer_sid, keys);
    if (ret == 0)
        ret = cv_datakey_init(&s->data, cipher, auth, keys, s->key_id, peer_id);
    cv_secret_clear(keys, sizeof(keys));
    if (ret != 0)
        return ret;
    cv_secret_clear(&s->own, sizeof(s->own));
    cv_secret_clear(&s->peer, sizeof(s->peer));
    s->has_data = true;
    s->state = CV_KEYSLOT_ACTIVE;
    s->active_ms = now_ms;
    return 0;
}
