#include "tunnel/expand.h"

#include <string.h>

#include "common/err.h"

#include "common/poison.h"

/* Both ends with what is left; the first fault sticks. */
struct state {
    const uint8_t *in;
    size_t left;
    uint8_t *out;
    size_t at, cap;
    bool bad;
};

static uint8_t byte(struct state *s)
{
    if (s->left == 0) {
        s->bad = true;
        return 0;
    }
    s->left--;
    return *s->in++;
}

static void literals(struct state *s, size_t n)
{
    if (s->bad || n > s->left || n > s->cap - s->at) {
        s->bad = true;
        return;
    }
    if (n > 0)
        memcpy(s->out + s->at, s->in, n);
    s->in += n;
    s->left -= n;
    s->at += n;
}

/* Copy from 'back' bytes before; the two ranges may overlap, then the copy repeats itself. */
static void match(struct state *s, size_t back, size_t n)
{
    if (s->bad || back == 0 || back > s->at || n > s->cap - s->at) {
        s->bad = true;
        return;
    }
    for (size_t i = 0; i < n; i++, s->at++)
        s->out[s->at] = s->out[s->at - back];
}

static int result(const struct state *s, size_t *ret_len)
{
    if (s->bad)
        return CV_E_PROTO;
    *ret_len = s->at;
    return 0;
}

/* ---- LZ4 block format ---- */

static size_t lz4_length(struct state *s, size_t n)
{
    uint8_t b = 255;
    if (n != 15)
        return n;
    while (b == 255 && !s->bad && n <= s->cap) {
        b = byte(s);
        n += b;
    }
    return n;
}

int cv_expand_lz4(const uint8_t *in, size_t len, uint8_t *out, size_t cap, size_t *ret_len)
{
    struct state s = {.in = in, .left = len, .out = out, .cap = cap};
    while (!s.bad) {
        uint8_t token = byte(&s);
        literals(&s, lz4_length(&s, token >> 4));
        if (s.left == 0) /* the last sequence is literals only */
            break;
        size_t back = byte(&s);
        back |= (size_t)byte(&s) << 8;
        match(&s, back, lz4_length(&s, token & 15) + 4);
    }
    return result(&s, ret_len);
}

/* ---- LZO1X ---- */

/* A length that is 'bits' wide in the instruction, or 0 and continued: each zero byte adds 255. */
static size_t lzo_length(struct state *s, unsigned value, unsigned mask)
{
    size_t n = value & mask;
    if (n != 0)
        return n;
    n = mask;
    for (;;) {
        uint8_t b = byte(s);
        if (s->bad || n > s->cap) {
            s->bad = true;
            return 0;
        }
        if (b != 0)
            return n + b;
        n += 255;
    }
}

/* One match instruction; false at the end marker. *trail = literals that follow it. 'before' is the
 * number of literals before it, 4 standing for a run. */
static bool lzo_match(struct state *s, unsigned t, unsigned before, unsigned *trail)
{
    size_t back, n;
    *trail = t & 3;
    if (t >= 64) {
        n = (t >> 5) + 1;
        back = ((size_t)byte(s) << 3) + (t >> 2 & 7) + 1;
    } else if (t >= 32) {
        n = lzo_length(s, t, 31) + 2;
        unsigned lo = byte(s), hi = byte(s);
        back = (hi << 6) + (lo >> 2) + 1;
        *trail = lo & 3;
    } else if (t >= 16) {
        n = lzo_length(s, t, 7) + 2;
        unsigned lo = byte(s), hi = byte(s);
        back = ((size_t)(t & 8) << 11) + (hi << 6) + (lo >> 2);
        if (back == 0)
            return false;
        back += 0x4000;
        *trail = lo & 3;
    } else if (before == 4) {
        n = 3;
        back = ((size_t)byte(s) << 2) + (t >> 2) + 0x801;
    } else {
        n = 2;
        back = ((size_t)byte(s) << 2) + (t >> 2) + 1;
    }
    match(s, back, n);
    return true;
}

int cv_expand_lzo(const uint8_t *in, size_t len, uint8_t *out, size_t cap, size_t *ret_len)
{
    struct state s = {.in = in, .left = len, .out = out, .cap = cap};
    unsigned before = 0, trail = 0;
    if (len > 0 && in[0] > 17) {
        size_t n = byte(&s) - 17u;
        literals(&s, n);
        before = n < 4 ? (unsigned)n : 4;
    }
    while (!s.bad) {
        unsigned t = byte(&s);
        if (t < 16 && before == 0) { /* a run of literals */
            literals(&s, lzo_length(&s, t, 15) + 3);
            before = 4;
            continue;
        }
        if (!lzo_match(&s, t, before, &trail))
            break;
        literals(&s, trail);
        before = trail;
    }
    if (s.left != 0)
        s.bad = true;
    return result(&s, ret_len);
}
