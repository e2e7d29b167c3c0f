/* The reliability of the control channel for one key: messages are numbered, each is acknowledged
 * by itself, and sent again with growing pauses until it is. No I/O, no clock: time comes in, and
 * the caller asks what is due. */
#pragma once

#include "tunnel/wire.h"

#define CV_RELIABLE_QUEUE   32   /* messages waiting to be sent or acknowledged */
#define CV_RELIABLE_WINDOW  12   /* ids ahead of the next one that are kept on receipt */
#define CV_RELIABLE_PENDING 32   /* ids to acknowledge */
#define CV_RELIABLE_IN_MAX  2048 /* longest piece received */

struct cv_reliable_out {
    enum cv_wire_op op;
    uint32_t id;
    uint16_t len;
    bool acked;
    uint8_t sends;     /* so far; capped at 255 */
    uint8_t overtaken; /* later ids that were acknowledged before it */
    int64_t sent_ms, due_ms;
    uint8_t data[CV_WIRE_PIECE_MAX];
};

struct cv_reliable_in {
    bool used;
    enum cv_wire_op op;
    uint16_t len;
    uint8_t data[CV_RELIABLE_IN_MAX];
};

struct cv_reliable {
    unsigned window; /* messages in flight at most */
    int64_t rto_ms;  /* of the first sending */
    int64_t srtt_ms; /* -1 = not known */
    uint32_t next_id;
    unsigned head, n; /* ring of messages to send: first index, number */
    uint32_t next_in;
    unsigned n_pending;
    uint32_t pending[CV_RELIABLE_PENDING];
    uint64_t retransmits;
    struct cv_reliable_out out[CV_RELIABLE_QUEUE];
    struct cv_reliable_in in[CV_RELIABLE_WINDOW];
};

void cv_reliable_init(struct cv_reliable *r, unsigned window);
/* Queue a message of at most CV_WIRE_PIECE_MAX bytes. 0 or CV_E_LIMIT. */
int cv_reliable_push(struct cv_reliable *r, enum cv_wire_op op, const void *data, size_t len);
/* Room for messages in the queue. */
static inline unsigned cv_reliable_room(const struct cv_reliable *r)
{
    return CV_RELIABLE_QUEUE - r->n;
}
/* The next message to send now, or NULL; it counts as sent. */
const struct cv_reliable_out *cv_reliable_next(struct cv_reliable *r, int64_t now_ms);
/* When cv_reliable_next() will have something; INT64_MAX: never without an acknowledgement. */
int64_t cv_reliable_due(const struct cv_reliable *r, int64_t now_ms);
/* The peer has acknowledged 'id'. */
void cv_reliable_on_ack(struct cv_reliable *r, uint32_t id, int64_t now_ms);
/* A message has come; it is to be acknowledged, unless it is too far ahead. False: it is of no use
 * (a repetition, or too far ahead or too long). */
bool cv_reliable_on_message(struct cv_reliable *r, const struct cv_wire_ctl *c);
/* The next message in order, or NULL; then cv_reliable_shift(). */
const struct cv_reliable_in *cv_reliable_peek(const struct cv_reliable *r);
void cv_reliable_shift(struct cv_reliable *r);
/* Take up to 'max' ids to acknowledge, oldest first. */
unsigned cv_reliable_take_acks(struct cv_reliable *r, uint32_t *out, unsigned max);
