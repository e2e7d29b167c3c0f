/* The first flight of a QUIC client (RFC 9000, version 2: RFC 9369) as an onlooker sees it: long
 * headers, the frames of an Initial packet, and the CRYPTO stream put together out of them. Packet
 * protection is not here: whoever owns a cryptographic library takes it off (net/quicsniff.h).
 * No I/O, no clock, no log.
 *
 * A datagram holds one or more packets; cv_quic_packet_parse() takes the next one off. The payload
 * of an Initial packet, once it is in the clear, goes to cv_quic_crypto_take(), in any order of
 * packets and frames, overlapping or not: clients cut a ClientHello into pieces and mix them. What
 * is first said about a byte of the stream holds. */
#pragma once

#include "common/defs.h"

#define CV_QUIC_V1         0x00000001u
#define CV_QUIC_V2         0x6b3343cfu
#define CV_QUIC_CID_MAX    20u
#define CV_QUIC_CRYPTO_MAX (16u << 10) /* of the CRYPTO stream: CV_E_LIMIT above */

enum cv_quic_type {
    CV_QUIC_INITIAL = 1,
    CV_QUIC_0RTT,
    CV_QUIC_HANDSHAKE,
    CV_QUIC_RETRY, /* servers only */
};

struct cv_quic_packet {
    enum cv_quic_type type;
    uint32_t version;
    const uint8_t *data; /* borrowed: the packet within the datagram */
    size_t len;          /* of the packet; what follows is the next one */
    size_t pn_off;       /* where the protected packet number begins; not for RETRY */
    const uint8_t *dcid; /* borrowed: Destination Connection ID */
    uint8_t dcid_len;    /* 0..20 */
};

/* Take the first packet off a datagram, or off what is left of it. 0; CV_E_UNSUPPORTED for a short
 * header and for versions other than 1 and 2; CV_E_PROTO. */
int cv_quic_packet_parse(const void *data, size_t len,
                         struct cv_quic_packet *ret_packet) CV_MUST_CHECK;

/* The CRYPTO stream of one client. */
struct cv_quic_crypto {
    uint8_t *_buf;  /* owned: CV_QUIC_CRYPTO_MAX bytes and a bit for each; NULL: nothing came */
    uint32_t _have; /* so many of the first bytes are there */
};

void cv_quic_crypto_init(struct cv_quic_crypto *c);
void cv_quic_crypto_done(struct cv_quic_crypto *c);
/* Take the frames of one Initial packet. 0, CV_E_PROTO, CV_E_LIMIT or -ENOMEM. */
int cv_quic_crypto_take(struct cv_quic_crypto *c, const void *payload, size_t len) CV_MUST_CHECK;
/* The first handshake message, if it is whole: 0; CV_E_MORE; CV_E_PROTO when it is no ClientHello;
 * CV_E_LIMIT when it is longer than the stream may be. */
int cv_quic_crypto_hello(const struct cv_quic_crypto *c, const uint8_t **ret_message,
                         size_t *ret_len) CV_MUST_CHECK;
