#include "tunnel/frame.h"

#include <string.h>

#include "common/err.h"
#include "tunnel/expand.h"

#include "common/poison.h"

#define LZO_COMPRESSED   0x66
#define LZ4_COMPRESSED   0x69
#define NOT_COMPRESSED   0xfa
#define NOT_COMPRESSED_S 0xfb /* with the first byte moved */
#define V2_MARK          0x50
#define V2_LZ4           0x01

const uint8_t cv_frame_ping[16] = {0x2a, 0x18, 0x7b, 0xf3, 0x64, 0x1e, 0xb4, 0xcb,
                                   0x07, 0xed, 0x2d, 0x0a, 0x98, 0x1f, 0xc7, 0x48};
const uint8_t cv_frame_exit[17] = {0x28, 0x7f, 0x34, 0x6b, 0xd4, 0xef, 0x7a, 0x81, 0x2d,
                                   0x56, 0xb8, 0xd3, 0xaf, 0xc5, 0x45, 0x9c, 6};

void cv_frame_init(struct cv_frame *f, enum cv_profile_comp comp, bool fragment)
{
    f->comp = comp;
    f->fragment = fragment;
    f->next_seq = 0;
    f->clock = 0;
    for (size_t i = 0; i < CV_FRAME_PARTIALS; i++)
        f->partial[i].used = false;
}

/* ---- out ---- */

size_t cv_frame_head(const struct cv_frame *f, uint8_t first, uint8_t head[CV_FRAME_HEAD_MAX],
                     bool *ret_swap)
{
    size_t n = 0;
    *ret_swap = false;
    if (f->fragment) {
        memset(head, 0, 4); /* whole */
        n = 4;
    }
    switch (f->comp) {
    case CV_COMP_NONE:
        break;
    case CV_COMP_LZO:
        head[n++] = NOT_COMPRESSED;
        break;
    case CV_COMP_STUB:
        head[n++] = NOT_COMPRESSED_S;
        *ret_swap = true;
        break;
    case CV_COMP_STUB_V2:
        if (first == V2_MARK) {
            head[n++] = V2_MARK;
            head[n++] = 0;
        }
        break;
    }
    return n;
}

void cv_frame_fragment(const struct cv_frame *f, unsigned number, bool last, uint32_t unit,
                       uint8_t head[4])
{
    uint32_t v = (last ? 2u : 1u) | (uint32_t)f->next_seq << 2 | (number & 31) << 10;
    if (last)
        v |= (unit / 4 & 0x3fff) << 15;
    head[0] = (uint8_t)(v >> 24);
    head[1] = (uint8_t)(v >> 16);
    head[2] = (uint8_t)(v >> 8);
    head[3] = (uint8_t)v;
}

/* ---- in ---- */

static struct cv_frame_partial *partial(struct cv_frame *f, uint8_t seq)
{
    struct cv_frame_partial *oldest = &f->partial[0];
    f->clock++;
    for (size_t i = 0; i < CV_FRAME_PARTIALS; i++) {
        struct cv_frame_partial *p = &f->partial[i];
        /* Sequence ids come again after 256 packets: what is older than that is another packet. */
        if (p->used && p->seq == seq && f->clock - p->stamp < 256) {
            p->stamp = f->clock;
            return p;
        }
        if (oldest->used && (!p->used || p->stamp < oldest->stamp))
            oldest = p;
    }
    memset(oldest, 0, offsetof(struct cv_frame_partial, data));
    oldest->used = true;
    oldest->seq = seq;
    oldest->last = UINT32_MAX;
    oldest->stamp = f->clock;
    return oldest;
}

static enum cv_frame_kind defragment(struct cv_frame *f, uint8_t **data, size_t *len)
{
    const uint8_t *d = *data;
    if (*len < 4)
        return CV_FRAME_BAD;
    uint32_t v = (uint32_t)d[0] << 24 | (uint32_t)d[1] << 16 | (uint32_t)d[2] << 8 | d[3];
    unsigned type = v & 3, number = v >> 10 & 31;
    size_t n = *len - 4;
    *data += 4;
    *len = n;
    if (type == 0)
        return CV_FRAME_PACKET;
    if (type == 3 || n == 0)
        return CV_FRAME_BAD;
    struct cv_frame_partial *p = partial(f, (uint8_t)(v >> 2));
    uint32_t unit = type == 2 ? (v >> 15 & 0x3fff) * 4 : (uint32_t)n;
    if (unit == 0 || (p->unit != 0 && p->unit != unit) ||
        (size_t)unit * number + n > sizeof(p->data)) {
        p->used = false;
        return CV_FRAME_BAD;
    }
    p->unit = unit;
    memcpy(p->data + (size_t)unit * number, d + 4, n);
    p->have |= 1u << number;
    if (type == 2) {
        p->last = number;
        p->last_len = (uint32_t)n;
    }
    if (p->last == UINT32_MAX || p->have != (p->last == 31 ? UINT32_MAX : (2u << p->last) - 1))
        return CV_FRAME_NOTHING;
    p->used = false;
    *data = p->data;
    *len = (size_t)unit * p->last + p->last_len;
    return CV_FRAME_PACKET;
}

/* Take the moved byte back to the front. */
static void unswap(uint8_t *d, size_t len)
{
    d[0] = d[len - 1];
}

static enum cv_frame_kind decompress(struct cv_frame *f, uint8_t **data, size_t *len, bool lz4)
{
    size_t got = 0;
    int ret = lz4 ? cv_expand_lz4(*data, *len, f->whole, sizeof(f->whole), &got)
                  : cv_expand_lzo(*data, *len, f->whole, sizeof(f->whole), &got);
    if (ret != 0)
        return CV_FRAME_BAD;
    *data = f->whole;
    *len = got;
    return CV_FRAME_PACKET;
}

static enum cv_frame_kind uncompress(struct cv_frame *f, uint8_t **data, size_t *len)
{
    uint8_t *d = *data, mark;
    if (f->comp == CV_COMP_NONE)
        return CV_FRAME_PACKET;
    if (*len < 1)
        return CV_FRAME_BAD;
    mark = d[0];
    if (f->comp == CV_COMP_STUB_V2) {
        if (mark != V2_MARK)
            return CV_FRAME_PACKET;
        if (*len < 2 || d[1] > V2_LZ4)
            return CV_FRAME_BAD;
        *data += 2;
        *len -= 2;
        return d[1] == V2_LZ4 ? decompress(f, data, len, true) : CV_FRAME_PACKET;
    }
    if (mark == NOT_COMPRESSED || mark == LZO_COMPRESSED) {
        ++*data;
        --*len;
        return mark == LZO_COMPRESSED ? decompress(f, data, len, false) : CV_FRAME_PACKET;
    }
    if (mark == NOT_COMPRESSED_S || mark == LZ4_COMPRESSED) {
        if (*len < 2)
            return CV_FRAME_BAD;
        unswap(d, *len);
        --*len;
        return mark == LZ4_COMPRESSED ? decompress(f, data, len, true) : CV_FRAME_PACKET;
    }
    return CV_FRAME_BAD;
}

enum cv_frame_kind cv_frame_open(struct cv_frame *f, uint8_t **data, size_t *len)
{
    enum cv_frame_kind kind = f->fragment ? defragment(f, data, len) : CV_FRAME_PACKET;
    if (kind == CV_FRAME_PACKET)
        kind = uncompress(f, data, len);
    if (kind != CV_FRAME_PACKET)
        return kind;
    const uint8_t *d = *data;
    if (*len == sizeof(cv_frame_ping) && memcmp(d, cv_frame_ping, sizeof(cv_frame_ping)) == 0)
        return CV_FRAME_PING;
    if (*len > 16 && memcmp(d, cv_frame_exit, 16) == 0)
        return d[16] == cv_frame_exit[16] ? CV_FRAME_EXIT : CV_FRAME_OCC;
    return *len > 0 && (d[0] >> 4 == 4 || d[0] >> 4 == 6) ? CV_FRAME_PACKET : CV_FRAME_BAD;
}
