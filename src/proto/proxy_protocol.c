#include "proto/proxy_protocol.h"

#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/rd.h"

#include "common/poison.h"

#define V2_SIGNATURE_LEN 12
#define V2_COMMAND_LOCAL 0x20
#define V2_COMMAND_PROXY 0x21

/* Address family in the high half, transport in the low half. */
enum {
    V2_UNSPEC = 0x00,
    V2_TCP4 = 0x11,
    V2_UDP4 = 0x12,
    V2_TCP6 = 0x21,
    V2_UDP6 = 0x22,
    V2_UNIX_STREAM = 0x31,
    V2_UNIX_DGRAM = 0x32,
};
#define V2_UNIX_LEN 216

static const uint8_t v2_signature[V2_SIGNATURE_LEN] = {0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d,
                                                       0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a};
static const char v1_prefix[] = "PROXY ";
#define V1_PREFIX_LEN (sizeof(v1_prefix) - 1)

/* ---- version 1 ---- */

/* The word up to the next blank or the end; the cursor moves behind the blank. */
struct words {
    const char *p, *end;
};

static bool next_word(struct words *w, const char **ret_word, size_t *ret_len)
{
    if (w->p > w->end)
        return false;
    const char *blank = memchr(w->p, ' ', (size_t)(w->end - w->p));
    const char *stop = blank != NULL ? blank : w->end;
    *ret_word = w->p;
    *ret_len = (size_t)(stop - w->p);
    w->p = stop + 1;
    return true;
}

static bool word_is(const char *word, size_t len, const char *text)
{
    return len == strlen(text) && memcmp(word, text, len) == 0;
}

static bool take_ip(struct words *w, enum cv_family family, struct cv_ip *ret_ip)
{
    const char *word;
    size_t len;
    return next_word(w, &word, &len) && cv_ip_parse(word, len, ret_ip) == 0 &&
           ret_ip->family == family;
}

/* Decimal, 0..65535, no zero in front. */
static bool take_port(struct words *w, uint16_t *ret_port)
{
    const char *word;
    size_t len;
    unsigned v = 0;
    if (!next_word(w, &word, &len) || len == 0 || len > 5 || (len > 1 && word[0] == '0'))
        return false;
    for (size_t i = 0; i < len; i++) {
        if (word[i] < '0' || word[i] > '9')
            return false;
        v = v * 10 + (unsigned)(word[i] - '0');
    }
    *ret_port = (uint16_t)v;
    return v <= UINT16_MAX;
}

/* The line without its CRLF. */
static int decode_line(const char *line, size_t len, struct cv_proxy_protocol *h)
{
    struct words w = {line + V1_PREFIX_LEN, line + len};
    const char *word;
    size_t n;
    if (!next_word(&w, &word, &n))
        return CV_E_PROTO;
    if (word_is(word, n, "UNKNOWN")) { /* whatever follows is to be ignored */
        h->kind = CV_PROXY_PROTOCOL_UNKNOWN;
        return 0;
    }
    enum cv_family family = word_is(word, n, "TCP4")   ? CV_AF_IP4
                            : word_is(word, n, "TCP6") ? CV_AF_IP6
                                                       : CV_AF_NONE;
    if (family == CV_AF_NONE || !take_ip(&w, family, &h->src.ip) ||
        !take_ip(&w, family, &h->dst.ip) || !take_port(&w, &h->src.port) ||
        !take_port(&w, &h->dst.port) || w.p <= w.end)
        return CV_E_PROTO;
    h->kind = CV_PROXY_PROTOCOL_PROXY;
    return 0;
}

static int decode_v1(const uint8_t *in, size_t len, struct cv_proxy_protocol *h, size_t *ret_used)
{
    size_t have = CV_MIN(len, (size_t)CV_PROXY_PROTOCOL_V1_MAX);
    for (size_t i = V1_PREFIX_LEN; i < have; i++) {
        if (in[i] == '\r') {
            if (i + 1 == CV_PROXY_PROTOCOL_V1_MAX || (i + 1 < len && in[i + 1] != '\n'))
                return CV_E_PROTO;
            if (i + 1 == len)
                return CV_E_MORE;
            *ret_used = i + 2;
            return decode_line((const char *)in, i, h);
        }
        if (in[i] < ' ' || in[i] > '~')
            return CV_E_PROTO;
    }
    return have == CV_PROXY_PROTOCOL_V1_MAX ? CV_E_PROTO : CV_E_MORE;
}

/* ---- version 2 ---- */

static uint32_t crc32c_byte(uint32_t crc, uint8_t b)
{
    crc ^= b;
    for (unsigned i = 0; i < 8; i++)
        crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    return crc;
}

/* Over the whole header, with the checksum's own four bytes, at 'value', taken as zero. */
static bool checksum_is_right(const uint8_t *in, size_t len, const uint8_t *value)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < len; i++)
        crc = crc32c_byte(crc, in + i >= value && in + i < value + 4 ? 0 : in[i]);
    crc = ~crc;
    return value[0] == crc >> 24 && value[1] == (crc >> 16 & 0xff) &&
           value[2] == (crc >> 8 & 0xff) && value[3] == (crc & 0xff);
}

/* Each TLV lies within the header; a checksum is right. */
static int check_tlvs(const uint8_t *in, size_t len, const struct cv_rd *tlvs)
{
    struct cv_rd r = *tlvs;
    while (r.left > 0) {
        uint8_t type = cv_rd_u8(&r);
        uint16_t n = cv_rd_u16(&r);
        const uint8_t *value = cv_rd_bytes(&r, n);
        if (value == NULL)
            return CV_E_PROTO;
        if (type == CV_PROXY_PROTOCOL_TLV_CRC32C && (n != 4 || !checksum_is_right(in, len, value)))
            return CV_E_PROTO;
    }
    return 0;
}

static void take_addresses(struct cv_rd *r, enum cv_family family, struct cv_proxy_protocol *h)
{
    size_t n = family == CV_AF_IP4 ? 4 : 16;
    const uint8_t *src = cv_rd_bytes(r, n), *dst = cv_rd_bytes(r, n);
    if (dst == NULL)
        return;
    h->src.ip.family = h->dst.ip.family = family;
    memcpy(h->src.ip.b, src, n);
    memcpy(h->dst.ip.b, dst, n);
    h->src.port = cv_rd_u16(r);
    h->dst.port = cv_rd_u16(r);
    h->kind = CV_PROXY_PROTOCOL_PROXY;
}

static int decode_body(const uint8_t *in, size_t len, struct cv_proxy_protocol *h)
{
    struct cv_rd r;
    cv_rd_init(&r, in + CV_PROXY_PROTOCOL_V2_HEAD, len - CV_PROXY_PROTOCOL_V2_HEAD);
    h->kind = CV_PROXY_PROTOCOL_UNKNOWN;
    if (in[12] == V2_COMMAND_LOCAL) {
        h->kind = CV_PROXY_PROTOCOL_LOCAL;
        return 0; /* what follows, its family included, is to be ignored */
    }
    switch (in[13]) {
    case V2_UNSPEC:
        return 0;
    case V2_TCP4:
        take_addresses(&r, CV_AF_IP4, h);
        break;
    case V2_TCP6:
        take_addresses(&r, CV_AF_IP6, h);
        break;
    default:
        (void)cv_rd_bytes(&r, V2_UNIX_LEN);
        break;
    }
    if (r.err != 0)
        return CV_E_PROTO;
    h->tlvs = r.p;
    h->tlvs_len = r.left;
    return check_tlvs(in, len, &r);
}

static int check_family(uint8_t command, uint8_t family)
{
    if (command == V2_COMMAND_LOCAL)
        return 0;
    switch (family) {
    case V2_UNSPEC:
    case V2_TCP4:
    case V2_TCP6:
    case V2_UNIX_STREAM:
        return 0;
    case V2_UDP4:
    case V2_UDP6:
    case V2_UNIX_DGRAM:
        return CV_E_UNSUPPORTED;
    default:
        return CV_E_PROTO;
    }
}

static int decode_v2(const uint8_t *in, size_t len, struct cv_proxy_protocol *h, size_t *ret_used)
{
    struct cv_rd r;
    cv_rd_init(&r, in + V2_SIGNATURE_LEN, len - V2_SIGNATURE_LEN);
    uint8_t command = cv_rd_u8(&r);
    if (r.err == 0 && command != V2_COMMAND_LOCAL && command != V2_COMMAND_PROXY)
        return CV_E_PROTO;
    uint8_t family = cv_rd_u8(&r);
    int ret = r.err == 0 ? check_family(command, family) : 0;
    if (ret != 0)
        return ret;
    uint16_t body = cv_rd_u16(&r);
    if (body > CV_PROXY_PROTOCOL_V2_BODY)
        return CV_E_LIMIT;
    if (cv_rd_bytes(&r, body) == NULL)
        return CV_E_MORE;
    *ret_used = CV_PROXY_PROTOCOL_V2_HEAD + (size_t)body;
    return decode_body(in, *ret_used, h);
}

int cv_proxy_protocol_decode(const uint8_t *in, size_t len, struct cv_proxy_protocol *ret_header,
                             size_t *ret_used)
{
    struct cv_proxy_protocol h = {0};
    size_t used;
    int ret;
    if (len == 0)
        return CV_E_MORE;
    if (in[0] == (uint8_t)v1_prefix[0]) {
        h.version = CV_PROXY_PROTOCOL_V1;
        if (memcmp(in, v1_prefix, CV_MIN(len, V1_PREFIX_LEN)) != 0)
            return CV_E_PROTO;
        ret = len < V1_PREFIX_LEN ? CV_E_MORE : decode_v1(in, len, &h, &used);
    } else {
        h.version = CV_PROXY_PROTOCOL_V2;
        if (memcmp(in, v2_signature, CV_MIN(len, (size_t)V2_SIGNATURE_LEN)) != 0)
            return CV_E_PROTO;
        ret = len < V2_SIGNATURE_LEN ? CV_E_MORE : decode_v2(in, len, &h, &used);
    }
    if (ret != 0)
        return ret;
    cv_ip_fold_mapped(&h.src.ip);
    cv_ip_fold_mapped(&h.dst.ip);
    *ret_header = h;
    *ret_used = used;
    return 0;
}

const uint8_t *cv_proxy_protocol_tlv(const struct cv_proxy_protocol *header, uint8_t type,
                                     size_t *ret_len)
{
    struct cv_rd r;
    cv_rd_init(&r, header->tlvs, header->tlvs_len);
    while (r.left > 0 && r.err == 0) {
        uint8_t t = cv_rd_u8(&r);
        uint16_t n = cv_rd_u16(&r);
        const uint8_t *value = cv_rd_bytes(&r, n);
        if (value != NULL && t == type) {
            *ret_len = n;
            return value;
        }
    }
    return NULL;
}

/* ---- writing ---- */

/* As IPv6 if 'mapped'. */
static struct cv_ip as_written(const struct cv_ip *ip, bool mapped)
{
    if (!mapped || ip->family == CV_AF_IP6)
        return *ip;
    struct cv_ip v6 = {.family = CV_AF_IP6, .b = {[10] = 0xff, [11] = 0xff}};
    memcpy(v6.b + 12, ip->b, 4);
    return v6;
}

static size_t encode_v1(uint8_t *out, const struct cv_ip *src, uint16_t src_port,
                        const struct cv_ip *dst, uint16_t dst_port)
{
    char line[CV_PROXY_PROTOCOL_OUT_MAX + 1], s[CV_IP_STRLEN], d[CV_IP_STRLEN];
    int n;
    if (src == NULL)
        n = snprintf(line, sizeof(line), "PROXY UNKNOWN\r\n");
    else
        n = snprintf(line, sizeof(line), "PROXY %s %s %s %u %u\r\n",
                     src->family == CV_AF_IP4 ? "TCP4" : "TCP6", cv_ip_format(src, s),
                     cv_ip_format(dst, d), src_port, dst_port);
    CV_ASSERT(n > 0 && (size_t)n <= CV_PROXY_PROTOCOL_OUT_MAX);
    memcpy(out, line, (size_t)n);
    return (size_t)n;
}

static size_t encode_v2(uint8_t *out, bool local, const struct cv_ip *src, uint16_t src_port,
                        const struct cv_ip *dst, uint16_t dst_port)
{
    struct cv_wr w;
    cv_wr_init(&w, out, CV_PROXY_PROTOCOL_OUT_MAX);
    cv_wr_bytes(&w, v2_signature, sizeof(v2_signature));
    cv_wr_u8(&w, local ? V2_COMMAND_LOCAL : V2_COMMAND_PROXY);
    if (src == NULL) {
        cv_wr_u8(&w, V2_UNSPEC);
        cv_wr_u16(&w, 0);
    } else {
        size_t n = src->family == CV_AF_IP4 ? 4 : 16;
        cv_wr_u8(&w, n == 4 ? V2_TCP4 : V2_TCP6);
        cv_wr_u16(&w, (uint16_t)(2 * n + 4));
        cv_wr_bytes(&w, src->b, n);
        cv_wr_bytes(&w, dst->b, n);
        cv_wr_u16(&w, src_port);
        cv_wr_u16(&w, dst_port);
    }
    CV_ASSERT(w.err == 0);
    return w.len;
}

size_t cv_proxy_protocol_encode(uint8_t out[CV_PROXY_PROTOCOL_OUT_MAX],
                                const struct cv_proxy_protocol *header)
{
    const struct cv_endpoint *s = &header->src, *d = &header->dst;
    bool known = header->kind == CV_PROXY_PROTOCOL_PROXY && s->ip.family != CV_AF_NONE &&
                 d->ip.family != CV_AF_NONE;
    bool mixed = s->ip.family != d->ip.family;
    struct cv_ip src = as_written(&s->ip, mixed), dst = as_written(&d->ip, mixed);
    if (header->version == CV_PROXY_PROTOCOL_V1)
        return encode_v1(out, known ? &src : NULL, s->port, &dst, d->port);
    return encode_v2(out, header->kind == CV_PROXY_PROTOCOL_LOCAL, known ? &src : NULL, s->port,
                     &dst, d->port);
}
