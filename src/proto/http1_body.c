#include "proto/http1.h"

#include <string.h>

#include "proto/http1_priv.h"

#include "common/poison.h"

enum body_state {
    BODY_DATA = 0,  /* in a body without inner framing */
    BODY_SIZE,      /* in the digits of a chunk size */
    BODY_EXTENSION, /* behind them, up to the CR */
    BODY_SIZE_LF,   /* the CR of a chunk line was seen */
    BODY_CHUNK,     /* in a chunk's payload */
    BODY_CHUNK_CR,  /* behind it */
    BODY_CHUNK_LF,
    BODY_TRAILER, /* behind the last chunk's line */
    BODY_DONE,
};

void cv_http1_body_init(struct cv_http1_body *b, enum cv_http1_framing framing, uint64_t length)
{
    memset(b, 0, sizeof(*b));
    b->_framing = (uint8_t)framing;
    if (framing == CV_HTTP1_CHUNKED)
        b->_state = BODY_SIZE;
    else if (framing == CV_HTTP1_EMPTY || (framing == CV_HTTP1_LENGTH && length == 0))
        b->_state = BODY_DONE;
    else if (framing == CV_HTTP1_LENGTH)
        b->_left = length;
}

bool cv_http1_body_is_done(const struct cv_http1_body *b)
{
    return b->_state == BODY_DONE;
}

uint64_t cv_http1_body_left(const struct cv_http1_body *b)
{
    return b->_left;
}

void cv_http1_body_skip(struct cv_http1_body *b, size_t n)
{
    CV_ASSERT(b->_framing == CV_HTTP1_LENGTH && n <= b->_left);
    b->_left -= n;
    if (b->_left == 0)
        b->_state = BODY_DONE;
}

static int body_fault(struct cv_http1_fault *reterr, const char *text)
{
    *reterr = (struct cv_http1_fault){.status = 400, .text = text};
    return CV_E_PROTO;
}

static unsigned hex_value(uint8_t c)
{
    return c <= '9' ? c - (unsigned)'0' : (c | 0x20u) - 'a' + 10u;
}

/* One byte of a chunk-size line (RFC 9112 7.1): digits, perhaps extensions, CR, LF. */
static int chunk_line_byte(struct cv_http1_body *b, uint8_t c, struct cv_http1_fault *reterr)
{
    if (++b->_line > CV_HTTP1_CHUNK_LINE_MAX)
        return body_fault(reterr, "a chunk line is longer than 4 KiB");
    switch (b->_state) {
    case BODY_SIZE:
        if (cv_http1_is((char)c, CV_HTTP1_C_HEX)) {
            if (++b->_digits > 16)
                return body_fault(reterr, "a chunk size has more than 16 digits");
            b->_left = b->_left << 4 | hex_value(c);
            return 0;
        }
        if (b->_digits == 0 || (c != ';' && c != '\r'))
            return body_fault(reterr, "malformed chunk size");
        b->_state = c == ';' ? BODY_EXTENSION : BODY_SIZE_LF;
        return 0;
    case BODY_EXTENSION:
        if (c == '\r') {
            b->_state = BODY_SIZE_LF;
            return 0;
        }
        if (!cv_http1_is((char)c, CV_HTTP1_C_VALUE))
            return body_fault(reterr, "malformed chunk extension");
        if (++b->_extensions > CV_HTTP1_EXTENSIONS_MAX)
            return body_fault(reterr, "more than 64 KiB of chunk extensions");
        return 0;
    default: /* BODY_SIZE_LF */
        if (c != '\n')
            return body_fault(reterr, "malformed chunk size");
        if (b->_left > INT64_MAX)
            return body_fault(reterr, "a chunk is too large");
        b->_state = b->_left > 0 ? BODY_CHUNK : BODY_TRAILER;
        b->_line = 0;
        b->_digits = 0;
        return 0;
    }
}

static int chunk_end_byte(struct cv_http1_body *b, uint8_t c, struct cv_http1_fault *reterr)
{
    if (c != (b->_state == BODY_CHUNK_CR ? '\r' : '\n'))
        return body_fault(reterr, "a chunk does not end with CRLF");
    b->_state = b->_state == BODY_CHUNK_CR ? BODY_CHUNK_LF : BODY_SIZE;
    return 0;
}

/* Payload at 'p': joined to what this piece has already. */
static size_t take_payload(struct cv_http1_body *b, uint8_t *p, size_t avail,
                           struct cv_http1_piece *piece)
{
    size_t n = avail;

    if (b->_framing != CV_HTTP1_CLOSE && b->_left < n)
        n = (size_t)b->_left;
    if (piece->data_len == 0)
        piece->data = p;
    else if (n > 0)
        memmove(piece->data + piece->data_len, p, n);
    piece->data_len += n;
    if (b->_framing != CV_HTTP1_CLOSE)
        b->_left -= n;
    return n;
}

/* The trailer section is wanted whole, so it is used only when its end has come. */
static int take_trailer(struct cv_http1_body *b, const char *p, size_t len,
                        struct cv_http1_piece *piece, struct cv_http1_fault *reterr)
{
    size_t n;
    int ret = cv_http1_scan(&b->_scan, CV_HTTP1_TRAILER, p, len, &n, reterr);

    if (ret != 0)
        return ret;
    for (size_t at = 0; at + 2 < n;) {
        const char *nl = memchr(p + at, '\n', n - at);
        struct cv_http1_field f;

        if (nl == NULL)
            break;
        ret =
            cv_http1_field_parse(p + at, (size_t)(nl - 1 - (p + at)), CV_HTTP1_TRAILER, &f, reterr);
        if (ret != 0)
            return ret;
        at = (size_t)(nl - p) + 1;
    }
    piece->trailer = p;
    piece->trailer_len = n;
    piece->used += n;
    b->_state = BODY_DONE;
    return 0;
}

int cv_http1_body_decode(struct cv_http1_body *b, uint8_t *src, size_t len,
                         struct cv_http1_piece *ret_piece, struct cv_http1_fault *reterr)
{
    struct cv_http1_piece piece = {0};
    int ret = 0;

    while (ret == 0 && piece.used < len && b->_state != BODY_DONE) {
        switch (b->_state) {
        case BODY_DATA:
            piece.used += take_payload(b, src + piece.used, len - piece.used, &piece);
            if (b->_framing == CV_HTTP1_LENGTH && b->_left == 0)
                b->_state = BODY_DONE;
            break;
        case BODY_CHUNK:
            piece.used += take_payload(b, src + piece.used, len - piece.used, &piece);
            if (b->_left == 0)
                b->_state = BODY_CHUNK_CR;
            break;
        case BODY_CHUNK_CR:
        case BODY_CHUNK_LF:
            ret = chunk_end_byte(b, src[piece.used++], reterr);
            break;
        case BODY_TRAILER:
            ret = take_trailer(b, (const char *)src + piece.used, len - piece.used, &piece, reterr);
            break;
        default:
            ret = chunk_line_byte(b, src[piece.used++], reterr);
        }
    }
    if (ret != 0 && ret != CV_E_MORE)
        return ret;
    *ret_piece = piece;
    return 0;
}

size_t cv_http1_chunk_head(char out[CV_HTTP1_CHUNK_HEAD_MAX], uint64_t n)
{
    static const char digits[] = "0123456789abcdef";
    size_t len = 1;

    while (len < 16 && n >> (4 * len) != 0)
        len++;
    for (size_t i = len; i > 0; i--, n >>= 4)
        out[i - 1] = digits[n & 15];
    out[len] = '\r';
    out[len + 1] = '\n';
    return len + 2;
}
