/* OpenVPN's packets, without any wrapping: the first byte, and control packets.
 *
 * A packet's first byte is its opcode and the number of the key that it belongs to. Control packets
 * carry acknowledgements, an id, and a piece of a TLS stream. Data packets are datakey.h's. */
#pragma once

#include "common/defs.h"

enum cv_wire_op {
    CV_WIRE_SOFT_RESET = 3,
    CV_WIRE_CONTROL = 4,
    CV_WIRE_ACK = 5,
    CV_WIRE_DATA_V1 = 6,
    CV_WIRE_RESET_CLIENT = 7,
    CV_WIRE_RESET_SERVER = 8,
    CV_WIRE_DATA_V2 = 9,
    CV_WIRE_RESET_CLIENT_V3 = 10, /* tls-crypt-v2: with the wrapped key */
    CV_WIRE_CONTROL_WKC = 11,     /* CONTROL with the wrapped key */
};

#define CV_WIRE_SID_LEN 8
/* Most acknowledgements that we send: SoftEther drops any packet with more than 4. */
#define CV_WIRE_ACKS_SENT 4
/* Most that are accepted. */
#define CV_WIRE_ACKS_MAX 8
/* Longest TLS piece in one control packet of ours; with all headers it stays below 1280 bytes. */
#define CV_WIRE_PIECE_MAX 1150
/* Longest packet of any kind that is accepted over TCP. */
#define CV_WIRE_PACKET_MAX 4096

struct cv_wire_ctl {
    enum cv_wire_op op;
    uint8_t key_id;
    uint8_t sid[CV_WIRE_SID_LEN]; /* the sender's */
    uint8_t n_acks;
    uint32_t acks[CV_WIRE_ACKS_MAX];
    uint8_t peer_sid[CV_WIRE_SID_LEN]; /* the receiver's; with n_acks > 0 */
    uint32_t id;                       /* not of ACK */
    const uint8_t *piece;              /* borrowed from the packet */
    size_t piece_len;
};

static inline unsigned cv_wire_op(uint8_t first)
{
    return first >> 3;
}
static inline unsigned cv_wire_key_id(uint8_t first)
{
    return first & 7;
}
static inline bool cv_wire_is_data(uint8_t first)
{
    return first >> 3 == CV_WIRE_DATA_V1 || first >> 3 == CV_WIRE_DATA_V2;
}

/* A control packet in plain. 0 or CV_E_PROTO. */
int cv_wire_decode(const uint8_t *data, size_t len, struct cv_wire_ctl *ret);
/* 0 or CV_E_LIMIT when it does not fit. */
int cv_wire_encode(const struct cv_wire_ctl *c, uint8_t *out, size_t cap, size_t *ret_len);
