#include "tunnel/wire.h"

#include <string.h>

#include "common/err.h"
#include "common/rd.h"

#include "common/poison.h"

static bool is_control(unsigned op)
{
    switch (op) {
    case CV_WIRE_SOFT_RESET:
    case CV_WIRE_CONTROL:
    case CV_WIRE_ACK:
    case CV_WIRE_RESET_CLIENT:
    case CV_WIRE_RESET_SERVER:
    case CV_WIRE_RESET_CLIENT_V3:
    case CV_WIRE_CONTROL_WKC:
        return true;
    default:
        return false;
    }
}

int cv_wire_decode(const uint8_t *data, size_t len, struct cv_wire_ctl *ret)
{
    struct cv_rd r;
    struct cv_wire_ctl c = {0};
    cv_rd_init(&r, data, len);
    uint8_t first = cv_rd_u8(&r);
    const uint8_t *sid = cv_rd_bytes(&r, CV_WIRE_SID_LEN);
    c.n_acks = cv_rd_u8(&r);
    if (r.err != 0 || !is_control(cv_wire_op(first)) || c.n_acks > CV_WIRE_ACKS_MAX)
        return CV_E_PROTO;
    c.op = (enum cv_wire_op)cv_wire_op(first);
    c.key_id = (uint8_t)cv_wire_key_id(first);
    memcpy(c.sid, sid, CV_WIRE_SID_LEN);
    for (unsigned i = 0; i < c.n_acks; i++)
        c.acks[i] = cv_rd_u32(&r);
    if (c.n_acks > 0) {
        const uint8_t *peer = cv_rd_bytes(&r, CV_WIRE_SID_LEN);
        if (peer != NULL)
            memcpy(c.peer_sid, peer, CV_WIRE_SID_LEN);
    }
    if (c.op != CV_WIRE_ACK)
        c.id = cv_rd_u32(&r);
    if (r.err != 0)
        return CV_E_PROTO;
    if (c.op != CV_WIRE_ACK) {
        c.piece = r.p;
        c.piece_len = r.left;
    }
    *ret = c;
    return 0;
}

static void put_u32(struct cv_wr *w, uint32_t v)
{
    cv_wr_u16(w, (uint16_t)(v >> 16));
    cv_wr_u16(w, (uint16_t)v);
}

int cv_wire_encode(const struct cv_wire_ctl *c, uint8_t *out, size_t cap, size_t *ret_len)
{
    struct cv_wr w;
    cv_wr_init(&w, out, cap);
    cv_wr_u8(&w, (uint8_t)(c->op << 3 | (c->key_id & 7)));
    cv_wr_bytes(&w, c->sid, CV_WIRE_SID_LEN);
    cv_wr_u8(&w, c->n_acks);
    for (unsigned i = 0; i < c->n_acks; i++)
        put_u32(&w, c->acks[i]);
    if (c->n_acks > 0)
        cv_wr_bytes(&w, c->peer_sid, CV_WIRE_SID_LEN);
    if (c->op != CV_WIRE_ACK) {
        put_u32(&w, c->id);
        cv_wr_bytes(&w, c->piece, c->piece_len);
    }
    if (w.err != 0)
        return w.err;
    *ret_len = w.len;
    return 0;
}
