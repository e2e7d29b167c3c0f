#include "common/addr.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"

#include "common/poison.h"

/* --- parsing --- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Dotted quad without leading zeroes, the whole text. */
static bool parse_quad(const char *s, size_t len, uint8_t out[4])
{
    const char *end = s + len;
    for (int i = 0; i < 4; i++) {
        if (i > 0 && (s == end || *s++ != '.'))
            return false;
        const char *first = s;
        unsigned v = 0;
        while (s < end && is_digit(*s) && s - first < 3)
            v = v * 10 + (unsigned)(*s++ - '0');
        if (s == first || v > 255 || (*first == '0' && s - first > 1))
            return false;
        out[i] = (uint8_t)v;
    }
    return s == end;
}

/* RFC 4291 section 2.2, without a zone. */
static bool parse_ip6(const char *s, size_t len, uint8_t out[16])
{
    const char *end = s + len;
    uint8_t b[16] = {0};
    size_t n = 0;
    ptrdiff_t gap = -1; /* where "::" stands, in bytes */

    if (len >= 2 && s[0] == ':' && s[1] == ':') {
        gap = 0;
        s += 2;
    }
    while (s < end) {
        const char *group = s;
        unsigned v = 0;
        int digit;
        while (s < end && s - group < 4 && (digit = hex_value(*s)) >= 0) {
            v = v << 4 | (unsigned)digit;
            s++;
        }
        if (s < end && *s == '.') {
            if (n > 12 || !parse_quad(group, (size_t)(end - group), b + n))
                return false;
            n += 4;
            s = end;
            break;
        }
        if (s == group || n > 14)
            return false;
        b[n++] = (uint8_t)(v >> 8);
        b[n++] = (uint8_t)v;
        if (s == end)
            break;
        if (*s++ != ':' || s == end)
            return false;
        if (*s == ':') {
            if (gap >= 0)
                return false;
            gap = (ptrdiff_t)n;
            s++;
        }
    }
    if (gap < 0 ? n != 16 : n > 14)
        return false;
    size_t head = gap < 0 ? n : (size_t)gap;
    memset(out, 0, 16);
    memcpy(out, b, head);
    memcpy(out + 16 - (n - head), b + head, n - head);
    return true;
}

int cv_ip_parse(const char *s, size_t len, struct cv_ip *ret_ip)
{
    struct cv_ip ip = {0};
    if (parse_quad(s, len, ip.b))
        ip.family = CV_AF_IP4;
    else if (len >= 2 && len < CV_IP_STRLEN && parse_ip6(s, len, ip.b))
        ip.family = CV_AF_IP6;
    else
        return CV_E_PARSE;
    *ret_ip = ip;
    return 0;
}

/* One number of an address as inet_aton() and browsers take it: 0x.. and 0.. choose the base, a
 * lone "0x" is zero. False: not a number, or more than 32 bits. */
static bool parse_aton_number(const char *s, size_t len, uint32_t *ret_value)
{
    unsigned base = 10;
    if (len == 0)
        return false;
    if (len >= 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        base = 16;
        s += 2;
        len -= 2;
    } else if (len >= 2 && s[0] == '0') {
        base = 8;
        s++;
        len--;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        int digit = hex_value(s[i]);
        if (digit < 0 || (unsigned)digit >= base)
            return false;
        v = v * base + (unsigned)digit;
        if (v > UINT32_MAX)
            return false;
    }
    *ret_value = (uint32_t)v;
    return true;
}

/* One to four numbers; the last one fills all bytes that are left. */
static bool parse_aton(const char *s, size_t len, uint8_t out[4])
{
    uint32_t parts[4];
    size_t n = 0;
    const char *end = s + len;
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s));
        const char *stop = dot != NULL ? dot : end;
        if (n == 4 || !parse_aton_number(s, (size_t)(stop - s), &parts[n++]))
            return false;
        if (dot == NULL)
            break;
        s = dot + 1;
    }
    uint64_t limit = 1ULL << (8 * (5 - n));
    if (parts[n - 1] >= limit)
        return false;
    uint32_t v = parts[n - 1];
    for (size_t i = 0; i + 1 < n; i++) {
        if (parts[i] > 255)
            return false;
        v |= parts[i] << (24 - 8 * i);
    }
    out[0] = (uint8_t)(v >> 24);
    out[1] = (uint8_t)(v >> 16);
    out[2] = (uint8_t)(v >> 8);
    out[3] = (uint8_t)v;
    return true;
}

int cv_ip_parse_any(const char *s, size_t len, struct cv_ip *ret_ip)
{
    if (cv_ip_parse(s, len, ret_ip) == 0)
        return 0;
    struct cv_ip ip = {0};
    if (len > 2 && s[0] == '[' && s[len - 1] == ']') {
        if (cv_ip_parse(s + 1, len - 2, &ip) != 0 || ip.family != CV_AF_IP6)
            return CV_E_PARSE;
    } else if (len > 0 && parse_aton(s, len, ip.b)) {
        ip.family = CV_AF_IP4;
    } else {
        return CV_E_PARSE;
    }
    *ret_ip = ip;
    return 0;
}

/* --- prefixes --- */

static unsigned ip_bits(const struct cv_ip *ip)
{
    return ip->family == CV_AF_IP4 ? 32 : 128;
}

static void clear_host_bits(struct cv_prefix *p)
{
    for (unsigned i = 0; i < 16; i++) {
        unsigned first = i * 8;
        if (first >= p->len)
            p->ip.b[i] = 0;
        else if (first + 8 > p->len)
            p->ip.b[i] &= (uint8_t)(0xff << (first + 8 - p->len));
    }
}

/* "0".."max" in decimal without leading zeroes or signs. */
static bool parse_small(const char *s, size_t len, unsigned max, unsigned *ret_value)
{
    if (len == 0 || len > 5 || (s[0] == '0' && len > 1))
        return false;
    unsigned v = 0;
    for (size_t i = 0; i < len; i++) {
        if (!is_digit(s[i]))
            return false;
        v = v * 10 + (unsigned)(s[i] - '0');
    }
    *ret_value = v;
    return v <= max;
}

int cv_prefix_parse(const char *s, size_t len, struct cv_prefix *ret_prefix)
{
    const char *slash = len > 0 ? memchr(s, '/', len) : NULL;
    size_t ip_len = slash != NULL ? (size_t)(slash - s) : len;
    struct cv_prefix p;
    if (cv_ip_parse(s, ip_len, &p.ip) != 0)
        return CV_E_PARSE;
    unsigned bits = ip_bits(&p.ip);
    if (slash != NULL && !parse_small(slash + 1, len - ip_len - 1, bits, &bits))
        return CV_E_PARSE;
    p.len = (uint8_t)bits;
    clear_host_bits(&p);
    *ret_prefix = p;
    return 0;
}

/* True if the first 'bits' bits are the same. */
static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    unsigned bytes = bits / 8;
    if (memcmp(a, b, bytes) != 0)
        return false;
    unsigned rest = bits % 8;
    return rest == 0 || ((a[bytes] ^ b[bytes]) >> (8 - rest)) == 0;
}

bool cv_prefix_contains(const struct cv_prefix *p, const struct cv_ip *ip)
{
    return p->ip.family == ip->family && same_bits(p->ip.b, ip->b, p->len);
}

bool cv_prefix_covers(const struct cv_prefix *outer, const struct cv_prefix *inner)
{
    return outer->len <= inner->len && cv_prefix_contains(outer, &inner->ip);
}

bool cv_ip_equal(const struct cv_ip *a, const struct cv_ip *b)
{
    return a->family == b->family && memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

/* --- IPv4 within IPv6 --- */

static const struct cv_prefix mapped = {{CV_AF_IP6, {[10] = 0xff, 0xff}}, 96};

/* The ways to embed in which the IPv4 address is 'at' whole bytes behind a fixed prefix. */
static const struct {
    struct cv_prefix prefix;
    uint8_t at;
} embeddings[] = {
    {{{CV_AF_IP6, {[10] = 0xff, 0xff}}, 96}, 12},   /* IPv4-mapped */
    {{{CV_AF_IP6, {[8] = 0xff, 0xff}}, 96}, 12},    /* IPv4-translated, RFC 2765 */
    {{{CV_AF_IP6, {0, 0x64, 0xff, 0x9b}}, 96}, 12}, /* NAT64, RFC 6052 */
    {{{CV_AF_IP6, {0x20, 0x02}}, 16}, 2},           /* 6to4 */
    {{{CV_AF_IP6, {[0] = 0}}, 96}, 12},             /* IPv4-compatible */
};

static struct cv_ip ip4_from_bytes(const uint8_t b[4])
{
    struct cv_ip ip = {.family = CV_AF_IP4};
    memcpy(ip.b, b, 4);
    return ip;
}

/* ISATAP: any prefix of 64 bits, then [02]00:5efe and the address. */
static bool is_isatap(const struct cv_ip *ip)
{
    const uint8_t *b = ip->b;
    return (b[8] & ~0x02) == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe;
}

/* Under the prefix of RFC 8215 a network takes what length it likes for its own. These are the two
 * in use: all of it, in the layout of RFC 6052 section 2.2 for /48 (two bytes, the reserved byte,
 * two bytes), and some /96 within it. The address does not tell which, so both count. Of the two,
 * one in 0.0.0.0/8, which is no destination, is what zeroes of the other layout look like. */
static size_t find_nat64_local(const uint8_t *b, struct cv_ip out[2])
{
    const uint8_t v4[4] = {b[6], b[7], b[9], b[10]};
    struct cv_ip as48 = ip4_from_bytes(v4), as96 = ip4_from_bytes(b + 12);
    size_t n = 0;
    if (as48.b[0] != 0 || as96.b[0] == 0)
        out[n++] = as48;
    if (as96.b[0] != 0 || as48.b[0] == 0)
        out[n++] = as96;
    return n;
}

size_t cv_ip_embedded4(const struct cv_ip *ip, struct cv_ip out[CV_IP_EMBEDDED_MAX])
{
    const uint8_t *b = ip->b;
    size_t n = 0;
    if (ip->family != CV_AF_IP6)
        return 0;
    for (size_t i = 0; i < CV_ARRAY_SIZE(embeddings); i++) {
        if (!cv_prefix_contains(&embeddings[i].prefix, ip))
            continue;
        /* :: and ::1 are addresses of their own. */
        static const uint8_t zero[15];
        if (memcmp(b, zero, sizeof(zero)) == 0 && b[15] <= 1)
            continue;
        out[n++] = ip4_from_bytes(b + embeddings[i].at);
        break; /* the prefixes are disjoint */
    }
    static const uint8_t nat64_local[6] = {0, 0x64, 0xff, 0x9b, 0, 1};
    if (memcmp(b, nat64_local, sizeof(nat64_local)) == 0)
        n += find_nat64_local(b, out + n);
    static const uint8_t teredo[4] = {0x20, 0x01, 0, 0};
    if (memcmp(b, teredo, sizeof(teredo)) == 0) {
        /* The client; it is stored inverted (RFC 4380 section 4). */
        uint8_t v4[4] = {(uint8_t)~b[12], (uint8_t)~b[13], (uint8_t)~b[14], (uint8_t)~b[15]};
        out[n++] = ip4_from_bytes(v4);
    }
    if (is_isatap(ip))
        out[n++] = ip4_from_bytes(b + 12);
    return n;
}

/* --- classes --- */

struct class_entry {
    struct cv_prefix prefix;
    enum cv_ip_class cls;
};

#define P4(len, cls, ...) {{{CV_AF_IP4, {__VA_ARGS__}}, len}, cls}
#define P6(len, cls, ...) {{{CV_AF_IP6, {__VA_ARGS__}}, len}, cls}

/* Longest match wins. From the IANA special-purpose address registries; what they call globally
 * reachable is CV_IP_GLOBAL, "N/A" is not. */
static const struct class_entry classes4[] = {
    P4(0, CV_IP_GLOBAL, 0),
    P4(8, CV_IP_UNSPECIFIED, 0),
    P4(8, CV_IP_PRIVATE, 10),
    P4(10, CV_IP_CGNAT, 100, 64),
    P4(8, CV_IP_LOOPBACK, 127),
    P4(16, CV_IP_LINK_LOCAL, 169, 254),
    P4(12, CV_IP_PRIVATE, 172, 16),
    P4(24, CV_IP_RESERVED, 192, 0, 0),   /* IETF protocol assignments */
    P4(24, CV_IP_RESERVED, 192, 0, 2),   /* documentation */
    P4(24, CV_IP_RESERVED, 192, 88, 99), /* 6to4 relays, withdrawn by RFC 7526 */
    P4(16, CV_IP_PRIVATE, 192, 168),
    P4(15, CV_IP_RESERVED, 198, 18),      /* benchmarking */
    P4(24, CV_IP_RESERVED, 198, 51, 100), /* documentation */
    P4(24, CV_IP_RESERVED, 203, 0, 113),  /* documentation */
    P4(4, CV_IP_MULTICAST, 224),
    P4(4, CV_IP_RESERVED, 240), /* with broadcast */
};

/* Only 2000::/3 is given out for ordinary use. The forms that merely carry an IPv4 address
 * (mapped, NAT64, 6to4) count as global here: cv_ip_embedded4() decides them. */
static const struct class_entry classes6[] = {
    P6(0, CV_IP_RESERVED, 0),
    P6(128, CV_IP_UNSPECIFIED, 0),
    P6(128, CV_IP_LOOPBACK, [15] = 1),
    P6(96, CV_IP_GLOBAL, [10] = 0xff, 0xff),   /* IPv4-mapped */
    P6(96, CV_IP_GLOBAL, 0, 0x64, 0xff, 0x9b), /* NAT64 */
    P6(3, CV_IP_GLOBAL, 0x20),
    P6(23, CV_IP_RESERVED, 0x20, 0x01),                /* IETF assignments, Teredo */
    P6(128, CV_IP_GLOBAL, 0x20, 0x01, 0, 1, [15] = 1), /* PCP anycast */
    P6(128, CV_IP_GLOBAL, 0x20, 0x01, 0, 1, [15] = 2), /* TURN anycast */
    P6(128, CV_IP_GLOBAL, 0x20, 0x01, 0, 1, [15] = 3), /* DNS-SD SRP anycast */
    P6(32, CV_IP_GLOBAL, 0x20, 0x01, 0, 3),            /* AMT */
    P6(48, CV_IP_GLOBAL, 0x20, 0x01, 0, 4, 1, 0x12),   /* AS112 */
    P6(28, CV_IP_GLOBAL, 0x20, 0x01, 0, 0x20),         /* ORCHIDv2 */
    P6(28, CV_IP_GLOBAL, 0x20, 0x01, 0, 0x30),         /* drone remote identification */
    P6(32, CV_IP_RESERVED, 0x20, 0x01, 0x0d, 0xb8),    /* documentation */
    P6(20, CV_IP_RESERVED, 0x3f, 0xff),                /* documentation, RFC 9637 */
    P6(7, CV_IP_PRIVATE, 0xfc),                        /* unique local */
    P6(10, CV_IP_LINK_LOCAL, 0xfe, 0x80),
    P6(10, CV_IP_LINK_LOCAL, 0xfe, 0xc0), /* site-local, withdrawn */
    P6(8, CV_IP_MULTICAST, 0xff),
};

static const struct class_entry *class_table(uint8_t family, size_t *ret_n)
{
    *ret_n = family == CV_AF_IP4 ? CV_ARRAY_SIZE(classes4) : CV_ARRAY_SIZE(classes6);
    return family == CV_AF_IP4 ? classes4 : classes6;
}

/* The class of all of 'p' by the longest entry that covers it. */
static enum cv_ip_class table_class(const struct cv_prefix *p)
{
    size_t n;
    const struct class_entry *table = class_table(p->ip.family, &n);
    const struct class_entry *best = &table[0];
    for (size_t i = 1; i < n; i++) {
        if (table[i].prefix.len >= best->prefix.len && cv_prefix_covers(&table[i].prefix, p))
            best = &table[i];
    }
    return best->cls;
}

static bool is_known_family(const struct cv_ip *ip)
{
    return ip->family == CV_AF_IP4 || ip->family == CV_AF_IP6;
}

enum cv_ip_class cv_ip_class(const struct cv_ip *ip)
{
    if (!is_known_family(ip))
        return CV_IP_RESERVED;
    struct cv_ip inner[CV_IP_EMBEDDED_MAX];
    size_t n = cv_ip_embedded4(ip, inner);
    for (size_t i = 0; i < n; i++) {
        enum cv_ip_class cls = cv_ip_class(&inner[i]);
        if (cls != CV_IP_GLOBAL)
            return cls;
    }
    struct cv_prefix p = {*ip, (uint8_t)ip_bits(ip)};
    return table_class(&p);
}

void cv_ip_fold_mapped(struct cv_ip *ip)
{
    if (cv_prefix_contains(&mapped, ip))
        *ip = ip4_from_bytes(ip->b + 12);
}

const char *cv_ip_class_name(enum cv_ip_class c)
{
    static const char *const names[] = {
        [CV_IP_GLOBAL] = "global",       [CV_IP_UNSPECIFIED] = "unspecified",
        [CV_IP_LOOPBACK] = "loopback",   [CV_IP_LINK_LOCAL] = "link-local",
        [CV_IP_PRIVATE] = "private",     [CV_IP_CGNAT] = "cgnat",
        [CV_IP_MULTICAST] = "multicast", [CV_IP_RESERVED] = "reserved",
    };
    return (size_t)c < CV_ARRAY_SIZE(names) ? names[c] : "unknown";
}

/* The part of 'p' that lies within an embedded IPv4 address, if its IPv6 prefix is fixed. */
static bool embedded_prefix(const struct cv_prefix *p, struct cv_prefix *ret_p4)
{
    unsigned at = 0;
    if (p->ip.family != CV_AF_IP6)
        return false;
    for (size_t i = 0; i < CV_ARRAY_SIZE(embeddings) && at == 0; i++) {
        if (cv_prefix_covers(&embeddings[i].prefix, p))
            at = embeddings[i].at;
    }
    if (at == 0 && p->len >= 96 && is_isatap(&p->ip))
        at = 12;
    if (at == 0)
        return false;
    ret_p4->ip = ip4_from_bytes(p->ip.b + at);
    ret_p4->len = (uint8_t)CV_MIN(p->len - at * 8, 32U);
    return true;
}

bool cv_prefix_is_special(const struct cv_prefix *p)
{
    if (!is_known_family(&p->ip))
        return true;
    struct cv_prefix p4;
    if (embedded_prefix(p, &p4) && cv_prefix_is_special(&p4))
        return true;
    size_t n;
    const struct class_entry *table = class_table(p->ip.family, &n);
    bool divided = false;
    for (size_t i = 0; i < n && !divided; i++)
        divided = table[i].prefix.len > p->len && cv_prefix_covers(p, &table[i].prefix);
    if (!divided)
        return table_class(p) != CV_IP_GLOBAL;
    /* Entries of several classes are inside: both halves must be special. The depth is bounded by
     * the longest entry, and only halves with an entry inside are divided again. */
    struct cv_prefix half = {p->ip, (uint8_t)(p->len + 1)};
    if (!cv_prefix_is_special(&half))
        return false;
    half.ip.b[p->len / 8] |= (uint8_t)(0x80 >> (p->len % 8));
    return cv_prefix_is_special(&half);
}

/* --- text --- */

static char *put_decimal(char *p, unsigned v)
{
    char digits[5];
    int n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) != 0);
    while (n > 0)
        *p++ = digits[--n];
    return p;
}

static char *put_quad(char *p, const uint8_t b[4])
{
    for (int i = 0; i < 4; i++) {
        if (i > 0)
            *p++ = '.';
        p = put_decimal(p, b[i]);
    }
    return p;
}

static char *put_group(char *p, unsigned v)
{
    static const char digits[] = "0123456789abcdef";
    int shift = 12;
    while (shift > 0 && v >> shift == 0)
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *p++ = digits[v >> shift & 15];
    return p;
}

/* RFC 5952: the longest run of two or more zero groups, the first of equals, becomes "::". */
static char *put_ip6(char *p, const uint8_t b[16])
{
    unsigned groups[8];
    for (int i = 0; i < 8; i++)
        groups[i] = (unsigned)b[2 * i] << 8 | b[2 * i + 1];
    int best = -1, best_len = 1;
    for (int i = 0; i < 8;) {
        int n = 0;
        while (i + n < 8 && groups[i + n] == 0)
            n++;
        if (n > best_len) {
            best = i;
            best_len = n;
        }
        i += n + 1;
    }
    for (int i = 0; i < 8;) {
        if (i == best) {
            *p++ = ':';
            *p++ = ':';
            i += best_len;
            continue;
        }
        if (i > 0 && i != best + (best >= 0 ? best_len : 0))
            *p++ = ':';
        p = put_group(p, groups[i++]);
    }
    return p;
}

static char *put_ip(char *p, const struct cv_ip *ip)
{
    if (ip->family == CV_AF_IP4)
        return put_quad(p, ip->b);
    if (ip->family != CV_AF_IP6) {
        *p++ = '-';
        return p;
    }
    if (!cv_prefix_contains(&mapped, ip))
        return put_ip6(p, ip->b);
    memcpy(p, "::ffff:", 7);
    return put_quad(p + 7, ip->b + 12);
}

char *cv_ip_format(const struct cv_ip *ip, char out[CV_IP_STRLEN])
{
    *put_ip(out, ip) = '\0';
    return out;
}

char *cv_prefix_format(const struct cv_prefix *p, char out[CV_PREFIX_STRLEN])
{
    char *end = put_ip(out, &p->ip);
    *end++ = '/';
    *put_decimal(end, p->len) = '\0';
    return out;
}

/* --- socket addresses --- */

void cv_sockaddr_from_ip(struct cv_sockaddr *ret_sa, const struct cv_ip *ip, uint16_t port)
{
    memset(ret_sa, 0, sizeof(*ret_sa));
    if (ip->family == CV_AF_IP4) {
        ret_sa->in4.sin_family = AF_INET;
        ret_sa->in4.sin_port = htons(port);
        memcpy(&ret_sa->in4.sin_addr, ip->b, 4);
        ret_sa->len = sizeof(ret_sa->in4);
    } else {
        CV_ASSERT(ip->family == CV_AF_IP6);
        ret_sa->in6.sin6_family = AF_INET6;
        ret_sa->in6.sin6_port = htons(port);
        memcpy(&ret_sa->in6.sin6_addr, ip->b, 16);
        ret_sa->len = sizeof(ret_sa->in6);
    }
}

void cv_endpoint_from_sockaddr(struct cv_endpoint *ret_ep, const struct sockaddr *sa)
{
    *ret_ep = (struct cv_endpoint){0};
    /* Copies, since 'sa' may point into a buffer that is not aligned for the larger types. */
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in4;
        memcpy(&in4, sa, sizeof(in4));
        ret_ep->ip.family = CV_AF_IP4;
        memcpy(ret_ep->ip.b, &in4.sin_addr, 4);
        ret_ep->port = ntohs(in4.sin_port);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof(in6));
        ret_ep->ip.family = CV_AF_IP6;
        memcpy(ret_ep->ip.b, &in6.sin6_addr, 16);
        ret_ep->port = ntohs(in6.sin6_port);
        cv_ip_fold_mapped(&ret_ep->ip);
    }
}

static int parse_unix(const char *path, struct cv_sockaddr *ret_sa)
{
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(ret_sa->un.sun_path))
        return CV_E_PARSE;
    memset(ret_sa, 0, sizeof(*ret_sa));
    ret_sa->un.sun_family = AF_UNIX;
    memcpy(ret_sa->un.sun_path, path, len);
    ret_sa->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    return 0;
}

int cv_sockaddr_parse(const char *s, struct cv_sockaddr *ret_sa)
{
    if (strncmp(s, "unix:", 5) == 0)
        return parse_unix(s + 5, ret_sa);
    const char *colon = strrchr(s, ':');
    unsigned port;
    if (colon == NULL || !parse_small(colon + 1, strlen(colon + 1), UINT16_MAX, &port))
        return CV_E_PARSE;
    size_t len = (size_t)(colon - s);
    struct cv_ip ip = {.family = CV_AF_IP6}; /* ":port": any address */
    if (len > 0) {
        bool bracketed = s[0] == '[' && len > 2 && s[len - 1] == ']';
        int ret = bracketed ? cv_ip_parse(s + 1, len - 2, &ip) : cv_ip_parse(s, len, &ip);
        if (ret != 0 || bracketed != (ip.family == CV_AF_IP6))
            return CV_E_PARSE;
        cv_ip_fold_mapped(&ip);
    }
    cv_sockaddr_from_ip(ret_sa, &ip, (uint16_t)port);
    return 0;
}

char *cv_endpoint_format(const struct cv_endpoint *ep, char out[CV_ENDPOINT_STRLEN])
{
    if (!is_known_family(&ep->ip)) {
        memcpy(out, "unix", 5);
        return out;
    }
    bool brackets = ep->ip.family == CV_AF_IP6;
    char *p = out;
    if (brackets)
        *p++ = '[';
    p = put_ip(p, &ep->ip);
    if (brackets)
        *p++ = ']';
    *p++ = ':';
    *put_decimal(p, ep->port) = '\0';
    return out;
}

char *cv_sockaddr_format(const struct cv_sockaddr *sa, char out[CV_SOCKADDR_STRLEN])
{
    if (sa->sa.sa_family == AF_UNIX) {
        /* The kernel does not count a NUL when the path fills the whole field. */
        size_t head = offsetof(struct sockaddr_un, sun_path);
        size_t len = sa->len > head ? CV_MIN(sa->len - head, sizeof(sa->un.sun_path)) : 0;
        snprintf(out, CV_SOCKADDR_STRLEN, "unix:%.*s", (int)strnlen(sa->un.sun_path, len),
                 sa->un.sun_path);
        return out;
    }
    struct cv_endpoint ep;
    cv_endpoint_from_sockaddr(&ep, &sa->sa);
    if (!is_known_family(&ep.ip))
        snprintf(out, CV_SOCKADDR_STRLEN, "unknown");
    else
        cv_endpoint_format(&ep, out);
    return out;
}
