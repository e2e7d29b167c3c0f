#include "proto/quic_initial.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/rd.h"

#include "common/poison.h"

#define LONG_HEADER 0x80
#define FIXED_BIT   0x40

#define CLIENT_HELLO   1
#define MESSAGE_HEADER 4u

enum frame { /* RFC 9000 section 19; those that section 12.4 lets an Initial packet hold */
             FRAME_PADDING = 0x00,
             FRAME_PING = 0x01,
             FRAME_ACK = 0x02,
             FRAME_ACK_ECN = 0x03,
             FRAME_CRYPTO = 0x06,
             FRAME_CONNECTION_CLOSE = 0x1c,
};

/* RFC 9000 section 16. */
static uint64_t varint(struct cv_rd *r)
{
    uint8_t first = cv_rd_u8(r);
    size_t more = ((size_t)1 << (first >> 6)) - 1;
    uint64_t v = first & 0x3f;
    const uint8_t *p = cv_rd_bytes(r, more);
    for (size_t i = 0; p != NULL && i < more; i++)
        v = v << 8 | p[i];
    return r->err == 0 ? v : 0;
}

/* Version 2 has other numbers for the same types (RFC 9369 section 3.2). */
static enum cv_quic_type type_of(uint32_t version, uint8_t first)
{
    static const enum cv_quic_type v1[] = {CV_QUIC_INITIAL, CV_QUIC_0RTT, CV_QUIC_HANDSHAKE,
                                           CV_QUIC_RETRY};
    unsigned bits = first >> 4 & 3;
    return v1[version == CV_QUIC_V2 ? (bits + 3) % 4 : bits];
}

int cv_quic_packet_parse(const void *data, size_t len, struct cv_quic_packet *ret_packet)
{
    struct cv_quic_packet p = {.data = data};
    struct cv_rd r;

    cv_rd_init(&r, data, len);
    uint8_t first = cv_rd_u8(&r);
    p.version = cv_rd_u32(&r);
    if (r.err != 0 || !(first & LONG_HEADER) || !(first & FIXED_BIT) ||
        (p.version != CV_QUIC_V1 && p.version != CV_QUIC_V2))
        return CV_E_UNSUPPORTED;
    p.type = type_of(p.version, first);
    p.dcid_len = cv_rd_u8(&r);
    p.dcid = cv_rd_bytes(&r, p.dcid_len);
    uint8_t scid_len = cv_rd_u8(&r);
    (void)cv_rd_bytes(&r, scid_len);
    if (r.err != 0 || p.dcid_len > CV_QUIC_CID_MAX || scid_len > CV_QUIC_CID_MAX)
        return CV_E_PROTO;
    p.len = len;
    if (p.type != CV_QUIC_RETRY) {
        if (p.type == CV_QUIC_INITIAL) {
            uint64_t token = varint(&r);
            if (token > r.left)
                return CV_E_PROTO;
            (void)cv_rd_bytes(&r, (size_t)token);
        }
        uint64_t rest = varint(&r);
        if (r.err != 0 || rest > r.left)
            return CV_E_PROTO;
        p.pn_off = len - r.left;
        p.len = p.pn_off + (size_t)rest;
    }
    *ret_packet = p;
    return 0;
}

/* ---- the stream ---- */

void cv_quic_crypto_init(struct cv_quic_crypto *c)
{
    *c = (struct cv_quic_crypto){0};
}

void cv_quic_crypto_done(struct cv_quic_crypto *c)
{
    CV_FREE(c->_buf);
    c->_have = 0;
}

static bool bit_get(const uint8_t *bits, size_t i)
{
    return bits[i / 8] >> (i % 8) & 1;
}

static int store(struct cv_quic_crypto *c, uint64_t off, const uint8_t *p, uint64_t len)
{
    if (off > CV_QUIC_CRYPTO_MAX || len > CV_QUIC_CRYPTO_MAX - off)
        return CV_E_LIMIT;
    if (c->_buf == NULL)
        c->_buf = cv_try_zalloc(CV_QUIC_CRYPTO_MAX + CV_QUIC_CRYPTO_MAX / 8);
    if (c->_buf == NULL)
        return -ENOMEM;
    uint8_t *bits = c->_buf + CV_QUIC_CRYPTO_MAX;
    for (size_t i = 0; i < len; i++) {
        size_t at = (size_t)off + i;
        if (bit_get(bits, at))
            continue;
        c->_buf[at] = p[i];
        bits[at / 8] |= (uint8_t)(1u << (at % 8));
    }
    while (c->_have < CV_QUIC_CRYPTO_MAX && bit_get(bits, c->_have))
        c->_have++;
    return 0;
}

/* RFC 9000 section 19.3; what is acknowledged does not matter here. */
static void skip_ack(struct cv_rd *r, bool ecn)
{
    (void)varint(r); /* largest */
    (void)varint(r); /* delay */
    uint64_t ranges = varint(r);
    (void)varint(r); /* first range */
    for (uint64_t i = 0; i < ranges && r->err == 0; i++) {
        (void)varint(r);
        (void)varint(r);
    }
    for (int i = 0; ecn && i < 3; i++)
        (void)varint(r);
}

static int take_crypto(struct cv_quic_crypto *c, struct cv_rd *r)
{
    uint64_t off = varint(r), len = varint(r);
    if (r->err != 0 || len > r->left)
        return CV_E_PROTO;
    return store(c, off, cv_rd_bytes(r, (size_t)len), len);
}

static void skip_close(struct cv_rd *r)
{
    (void)varint(r); /* error */
    (void)varint(r); /* frame type */
    uint64_t reason = varint(r);
    if (reason > r->left)
        cv_rd_fail(r);
    else
        (void)cv_rd_bytes(r, (size_t)reason);
}

int cv_quic_crypto_take(struct cv_quic_crypto *c, const void *payload, size_t len)
{
    struct cv_rd r;
    int ret = 0;

    cv_rd_init(&r, payload, len);
    while (ret == 0 && r.err == 0 && r.left > 0) {
        switch (varint(&r)) {
        case FRAME_PADDING:
        case FRAME_PING:
            break;
        case FRAME_ACK:
            skip_ack(&r, false);
            break;
        case FRAME_ACK_ECN:
            skip_ack(&r, true);
            break;
        case FRAME_CRYPTO:
            ret = take_crypto(c, &r);
            break;
        case FRAME_CONNECTION_CLOSE:
            skip_close(&r);
            break;
        default:
            ret = CV_E_PROTO;
            break;
        }
    }
    return ret != 0 ? ret : r.err != 0 ? CV_E_PROTO : 0;
}

int cv_quic_crypto_hello(const struct cv_quic_crypto *c, const uint8_t **ret_message,
                         size_t *ret_len)
{
    const uint8_t *p = c->_buf;

    if (c->_have >= 1 && p[0] != CLIENT_HELLO)
        return CV_E_PROTO;
    if (c->_have < MESSAGE_HEADER)
        return CV_E_MORE;
    size_t want = MESSAGE_HEADER + ((size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3]);
    if (want > CV_QUIC_CRYPTO_MAX)
        return CV_E_LIMIT;
    if (c->_have < want)
        return CV_E_MORE;
    *ret_message = p;
    *ret_len = want;
    return 0;
}
