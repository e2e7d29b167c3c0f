/* One key of a session: its reliable message stream, the TLS connection in it, key method 2, and
 * the data keys. A session has one slot at first and a further one for each renegotiation. No I/O:
 * packets come in decoded, and what is to be sent is asked for. */
#pragma once

#include "tunnel/datakey.h"
#include "tunnel/keymethod.h"
#include "tunnel/reliable.h"
#include "tunnel/tlschan.h"

enum cv_keyslot_state {
    CV_KEYSLOT_RESET = 0, /* our reset is on its way, or is to be answered */
    CV_KEYSLOT_TLS,       /* handshake */
    CV_KEYSLOT_KEYS,      /* our key method message is out, theirs has not come */
    CV_KEYSLOT_AGREED,    /* both are there */
    CV_KEYSLOT_ACTIVE,    /* data keys are ready */
};

#define CV_KEYSLOT_PLAIN_MAX 4096

struct cv_keyslot {
    enum cv_keyslot_state state;
    uint8_t key_id;
    bool has_data; /* 'data' is set */
    bool wkc_next; /* the next message carries the wrapped key, and no ACK goes before it */
    uint16_t first_piece_max; /* room beside the wrapped key */
    int64_t born_ms, active_ms;
    struct cv_tlschan *tls; /* owned; NULL until the peer's reset has come */
    struct cv_keymethod_random own, peer;
    char peer_options[512];
    struct cv_datakey data;
    size_t plain_len;
    uint8_t plain[CV_KEYSLOT_PLAIN_MAX]; /* of the TLS stream, not yet used up */
    struct cv_reliable rel;
};

/* 'op' is the reset with which we begin or answer. NULL without memory. */
struct cv_keyslot *cv_keyslot_new(uint8_t key_id, enum cv_wire_op op, unsigned window,
                                  int64_t now_ms);
void cv_keyslot_free(struct cv_keyslot *s); /* NULL is accepted */

/* The peer's messages that are in order go to TLS, TLS goes on, and what it has to say is queued.
 * 'ctx' makes the TLS connection when the peer's reset comes; 'on_reset' is called for it with its
 * payload (NULL: nobody cares). 0; CV_E_TLS, CV_E_PROTO, CV_E_LIMIT, -ENOMEM, -EPIPE. */
int cv_keyslot_drive(struct cv_keyslot *s, struct cv_tlschan_ctx *ctx,
                     void (*on_reset)(struct cv_keyslot *s, const struct cv_reliable_in *in,
                                      void *arg),
                     void *arg);
/* Send our key method message; the handshake is done. 0 or a code. */
int cv_keyslot_send_keys(struct cv_keyslot *s, const char *options, const char *user,
                         const char *password, const char *peer_info);
/* The peer's key method message, if it is in s->plain: 0 and it is taken off; CV_E_MORE;
 * CV_E_PROTO.
 */
int cv_keyslot_take_keys(struct cv_keyslot *s);
/* The next control message in s->plain: up to a NUL, or all of a record without one. NULL: none.
 * Valid until the next call on 's'. */
const char *cv_keyslot_take_text(struct cv_keyslot *s, char *out, size_t cap);
/* Write a control message with its NUL. */
int cv_keyslot_send_text(struct cv_keyslot *s, const char *text);
/* Make the data keys. */
int cv_keyslot_make_data(struct cv_keyslot *s, const char *cipher, const char *auth, bool ekm,
                         const uint8_t own_sid[8], const uint8_t peer_sid[8], int32_t peer_id,
                         int64_t now_ms);
