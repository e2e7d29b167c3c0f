#include "proto/http1.h"

#include <string.h>
#include <strings.h>

#include "common/base64.h"
#include "proto/http1_priv.h"

#include "common/poison.h"

#define T CV_HTTP1_C_TOKEN
#define V CV_HTTP1_C_VALUE
#define U CV_HTTP1_C_TARGET
#define H CV_HTTP1_C_HOST
#define X CV_HTTP1_C_HEX

/* clang-format off */
const uint8_t cv_http1_class[256] = {
    ['\t'] = V, [' '] = V,
    ['!'] = T|V|U|H, ['"'] = V|U, ['#'] = T|V|U, ['$'] = T|V|U|H, ['%'] = T|V|U|H,
    ['&'] = T|V|U|H, ['\''] = T|V|U|H, ['('] = V|U|H, [')'] = V|U|H, ['*'] = T|V|U|H,
    ['+'] = T|V|U|H, [','] = V|U|H, ['-'] = T|V|U|H, ['.'] = T|V|U|H, ['/'] = V|U,
    ['0' ... '9'] = T|V|U|H|X,
    [':'] = V|U|H, [';'] = V|U|H, ['<'] = V|U, ['='] = V|U|H, ['>'] = V|U, ['?'] = V|U,
    ['@'] = V|U,
    ['A' ... 'F'] = T|V|U|H|X, ['G' ... 'Z'] = T|V|U|H,
    ['['] = V|U|H, ['\\'] = V|U, [']'] = V|U|H, ['^'] = T|V|U, ['_'] = T|V|U|H, ['`'] = T|V|U,
    ['a' ... 'f'] = T|V|U|H|X, ['g' ... 'z'] = T|V|U|H,
    ['{'] = V|U, ['|'] = T|V|U, ['}'] = V|U, ['~'] = T|V|U|H,
    [0x80 ... 0xff] = V|U|H,
};
/* clang-format on */

#undef T
#undef V
#undef U
#undef H
#undef X

static int fault(struct cv_http1_fault *reterr, unsigned status, const char *text)
{
    *reterr = (struct cv_http1_fault){.status = status, .text = text};
    return CV_E_PROTO;
}

size_t cv_http1_span(const char *s, size_t len, unsigned cls)
{
    size_t i = 0;

    while (i < len && cv_http1_is(s[i], cls))
        i++;
    return i;
}

bool cv_http1_str_is(struct cv_http1_str s, const char *lit)
{
    return s.len == strlen(lit) && strncasecmp(s.p, lit, s.len) == 0;
}

bool cv_http1_str_same(struct cv_http1_str a, struct cv_http1_str b)
{
    return a.len == b.len && strncasecmp(a.p, b.p, a.len) == 0;
}

static struct cv_http1_str str_trim(const char *p, size_t len)
{
    while (len > 0 && (p[0] == ' ' || p[0] == '\t'))
        p++, len--;
    while (len > 0 && (p[len - 1] == ' ' || p[len - 1] == '\t'))
        len--;
    return (struct cv_http1_str){.p = p, .len = (uint32_t)len};
}

bool cv_http1_list_next(struct cv_http1_str *rest, struct cv_http1_str *ret_elem)
{
    while (rest->len > 0) {
        const char *comma = memchr(rest->p, ',', rest->len);
        size_t n = comma != NULL ? (size_t)(comma - rest->p) : rest->len;
        size_t step = comma != NULL ? n + 1 : n;

        *ret_elem = str_trim(rest->p, n);
        rest->p += step;
        rest->len -= (uint32_t)step;
        if (ret_elem->len > 0)
            return true;
    }
    return false;
}

/* ---- Finding the end ---- */

static size_t scan_max(enum cv_http1_kind kind)
{
    switch (kind) {
    case CV_HTTP1_REQUEST:
        return CV_HTTP1_REQUEST_MAX;
    case CV_HTTP1_RESPONSE:
        return CV_HTTP1_RESPONSE_MAX;
    case CV_HTTP1_TRAILER:
        break;
    }
    return CV_HTTP1_TRAILER_MAX;
}

/* Limits look at positions only, and at the same ones whether the line end at 'end' was seen or
 * (end == len) is yet to come, so that the outcome does not depend on how bytes arrive. */
static int scan_limits(const struct cv_http1_scan *s, enum cv_http1_kind kind, size_t end,
                       struct cv_http1_fault *reterr)
{
    if (kind == CV_HTTP1_REQUEST && s->_lines == 0 && end - s->_line > CV_HTTP1_LINE_MAX + 1)
        return fault(reterr, 414, "the request line is longer than 16 KiB");
    if (end - s->_start >= scan_max(kind))
        return fault(reterr, 431,
                     kind == CV_HTTP1_REQUEST ? "the request head is longer than 32 KiB"
                                              : "the head is too long");
    return 0;
}

/* A line has ended: an empty one ends the head, or came before it. */
static int scan_line(struct cv_http1_scan *s, enum cv_http1_kind kind, size_t end, bool *ret_done,
                     struct cv_http1_fault *reterr)
{
    bool empty = end - s->_line == 1;

    *ret_done = false;
    if (empty && (s->_lines > 0 || kind == CV_HTTP1_TRAILER)) {
        *ret_done = true;
    } else if (empty) {
        /* RFC 9112 2.2: a client may have sent one more CRLF after a body. */
        if (kind != CV_HTTP1_REQUEST || s->_start > 0)
            return fault(reterr, 400, "empty lines before the first line");
        s->_start = (uint32_t)end + 1;
    } else {
        s->_lines++;
        if (s->_lines - (kind == CV_HTTP1_TRAILER ? 0 : 1) > CV_HTTP1_FIELDS_MAX)
            return fault(reterr, 431, "more than 200 header fields");
    }
    s->_line = (uint32_t)end + 1;
    return 0;
}

int cv_http1_scan(struct cv_http1_scan *s, enum cv_http1_kind kind, const void *data, size_t len,
                  size_t *ret_len, struct cv_http1_fault *reterr)
{
    const char *d = data;

    /* Nothing beyond the largest head is ever looked at, and positions fit 32 bits. */
    len = CV_MIN(len, (size_t)CV_HTTP1_RESPONSE_MAX + 16);
    for (;;) {
        if (kind != CV_HTTP1_TRAILER && s->_lines == 0 && len > s->_start && d[s->_start] != '\r' &&
            d[s->_start] != '\n' && !cv_http1_is(d[s->_start], CV_HTTP1_C_TOKEN))
            return fault(reterr, 400, "this is not HTTP");

        const char *nl = len > s->_pos ? memchr(d + s->_pos, '\n', len - s->_pos) : NULL;
        size_t end = nl != NULL ? (size_t)(nl - d) : len;
        bool done;
        int ret = scan_limits(s, kind, end, reterr);

        if (ret != 0)
            return ret;
        if (nl == NULL) {
            s->_pos = (uint32_t)len;
            return CV_E_MORE;
        }
        if (end == s->_line || d[end - 1] != '\r')
            return fault(reterr, 400, "a line ends without CR");
        ret = scan_line(s, kind, end, &done, reterr);
        if (ret != 0)
            return ret;
        s->_pos = (uint32_t)end + 1;
        if (done) {
            *ret_len = end + 1;
            return 0;
        }
    }
}

/* ---- Fields ---- */

static enum cv_http1_name name_id(struct cv_http1_str n)
{
    static const struct {
        const char *name;
        uint8_t len;
        uint8_t id;
    } known[] = {
        {"host", 4, CV_HTTP1_HOST},
        {"accept", 6, CV_HTTP1_ACCEPT},
        {"connection", 10, CV_HTTP1_CONNECTION},
        {"content-length", 14, CV_HTTP1_CONTENT_LENGTH},
        {"transfer-encoding", 17, CV_HTTP1_TRANSFER_ENCODING},
        {"keep-alive", 10, CV_HTTP1_KEEP_ALIVE},
        {"te", 2, CV_HTTP1_TE},
        {"trailer", 7, CV_HTTP1_TRAILER_FIELD},
        {"upgrade", 7, CV_HTTP1_UPGRADE},
        {"expect", 6, CV_HTTP1_EXPECT},
        {"max-forwards", 12, CV_HTTP1_MAX_FORWARDS},
        {"proxy-authorization", 19, CV_HTTP1_PROXY_AUTHORIZATION},
        {"proxy-connection", 16, CV_HTTP1_PROXY_CONNECTION},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(known); i++)
        if (known[i].len == n.len && strncasecmp(n.p, known[i].name, n.len) == 0)
            return known[i].id;
    if (n.len >= 6 && strncasecmp(n.p, "proxy-", 6) == 0)
        return CV_HTTP1_PROXY_OTHER;
    return CV_HTTP1_OTHER;
}

int cv_http1_field_parse(const char *line, size_t len, enum cv_http1_kind kind,
                         struct cv_http1_field *ret_field, struct cv_http1_fault *reterr)
{
    size_t n = cv_http1_span(line, len, CV_HTTP1_C_TOKEN);
    size_t colon = n;

    /* RFC 9112 5.1: blanks before the colon are refused in a request and removed from a response.
     */
    if (kind == CV_HTTP1_RESPONSE && n > 0)
        while (colon < len && (line[colon] == ' ' || line[colon] == '\t'))
            colon++;
    if (len > 0 && (line[0] == ' ' || line[0] == '\t'))
        return fault(reterr, 400, "a header field is folded over several lines");
    if (n == 0 || colon == len || line[colon] != ':')
        return fault(reterr, 400, "malformed header field name");

    const char *value = line + colon + 1;
    size_t value_len = len - colon - 1;
    if (cv_http1_span(value, value_len, CV_HTTP1_C_VALUE) != value_len)
        return fault(reterr, 400, "control characters in a header field");

    ret_field->name = (struct cv_http1_str){.p = line, .len = (uint32_t)n};
    ret_field->value = str_trim(value, value_len);
    ret_field->id = (uint8_t)name_id(ret_field->name);
    ret_field->hop = false;
    return 0;
}

/* One element of a Connection field. */
static int connection_option(struct cv_http1_head *h, const struct cv_http1_field *from,
                             struct cv_http1_str opt, struct cv_http1_fault *reterr)
{
    if (cv_http1_span(opt.p, opt.len, CV_HTTP1_C_TOKEN) != opt.len)
        return fault(reterr, 400, "malformed Connection field");
    if (cv_http1_str_is(opt, "close"))
        h->close = true;
    else if (cv_http1_str_is(opt, "keep-alive"))
        h->keep_alive = true;
    if (from->id != CV_HTTP1_CONNECTION)
        return 0;
    if (cv_http1_str_is(opt, "upgrade"))
        h->upgrade = true;
    for (uint32_t i = 0; i < h->n_fields; i++) {
        struct cv_http1_field *f = &h->fields[i];

        if (!cv_http1_str_same(f->name, opt))
            continue;
        /* Taking one of these away would change where the message ends. */
        if (f->id == CV_HTTP1_CONTENT_LENGTH || f->id == CV_HTTP1_TRANSFER_ENCODING ||
            f->id == CV_HTTP1_HOST)
            return fault(reterr, 400, "Connection names a field that frames the message");
        f->hop = true;
    }
    return 0;
}

static int connection_parse(struct cv_http1_head *h, struct cv_http1_fault *reterr)
{
    unsigned n = 0;

    if (h->count[CV_HTTP1_CONNECTION] + h->count[CV_HTTP1_PROXY_CONNECTION] == 0)
        return 0;
    for (uint32_t i = 0; i < h->n_fields; i++) {
        const struct cv_http1_field *f = &h->fields[i];
        struct cv_http1_str rest = f->value, opt;

        if (f->id != CV_HTTP1_CONNECTION && f->id != CV_HTTP1_PROXY_CONNECTION)
            continue;
        while (cv_http1_list_next(&rest, &opt)) {
            if (++n > CV_HTTP1_TOKENS_MAX)
                return fault(reterr, 400, "too many elements in Connection");
            int ret = connection_option(h, f, opt, reterr);
            if (ret != 0)
                return ret;
        }
    }
    h->upgrade = h->upgrade && h->count[CV_HTTP1_UPGRADE] > 0;
    return 0;
}

/* All field lines up to the empty line; 'p' is at the first one. */
static int fields_parse(struct cv_http1_head *h, const char *p, const char *end,
                        enum cv_http1_kind kind, struct cv_http1_fault *reterr)
{
    while (p < end && p[0] != '\r') {
        const char *nl = memchr(p, '\n', (size_t)(end - p));

        if (nl == NULL || nl[-1] != '\r' || h->n_fields == CV_HTTP1_FIELDS_MAX)
            return fault(reterr, 400, "malformed header");
        struct cv_http1_field *f = &h->fields[h->n_fields];
        int ret = cv_http1_field_parse(p, (size_t)(nl - 1 - p), kind, f, reterr);
        if (ret != 0)
            return ret;
        h->count[f->id]++;
        h->last[f->id] = (uint8_t)h->n_fields;
        h->n_fields++;
        p = nl + 1;
    }
    if (p + 2 != end || p[1] != '\n')
        return fault(reterr, 400, "malformed header");
    return connection_parse(h, reterr);
}

/* RFC 9112 6.3: digits only, once. A list of equal values is refused, too. */
static int length_parse(const struct cv_http1_head *h, uint64_t *ret_length,
                        struct cv_http1_fault *reterr)
{
    struct cv_http1_str v = h->fields[h->last[CV_HTTP1_CONTENT_LENGTH]].value;
    uint64_t n = 0;

    if (h->count[CV_HTTP1_CONTENT_LENGTH] > 1)
        return fault(reterr, 400, "more than one Content-Length");
    if (v.len == 0 || v.len > 19)
        return fault(reterr, 400, "malformed Content-Length");
    for (uint32_t i = 0; i < v.len; i++) {
        if (v.p[i] < '0' || v.p[i] > '9')
            return fault(reterr, 400, "malformed Content-Length");
        n = n * 10 + (uint64_t)(v.p[i] - '0');
    }
    if (n > INT64_MAX)
        return fault(reterr, 400, "malformed Content-Length");
    *ret_length = n;
    return 0;
}

/* "chunked" and nothing else. Blanks around it are legal as spaces; a tab there has made parsers
 * disagree and nobody needs it. */
static int coding_parse(const struct cv_http1_head *h, struct cv_http1_fault *reterr)
{
    struct cv_http1_str v = h->fields[h->last[CV_HTTP1_TRANSFER_ENCODING]].value;
    struct cv_http1_str rest = v, coding = {0};
    unsigned n = 0;

    if (h->minor == 0)
        return fault(reterr, 400, "Transfer-Encoding in an HTTP/1.0 message");
    if (h->count[CV_HTTP1_CONTENT_LENGTH] > 0)
        return fault(reterr, 400, "both Transfer-Encoding and Content-Length");
    if (h->count[CV_HTTP1_TRANSFER_ENCODING] > 1)
        return fault(reterr, 400, "more than one Transfer-Encoding");
    if (v.p[-1] == '\t' || v.p[v.len] == '\t')
        return fault(reterr, 400, "malformed Transfer-Encoding");
    if (cv_http1_str_is(v, "chunked"))
        return 0;
    while (cv_http1_list_next(&rest, &coding))
        n++;
    /* RFC 9112 6.1 and 6.3: unknown codings are 501, but without chunked as the last one the end of
     * the body cannot be found at all. */
    if (n > 1 && cv_http1_str_is(coding, "chunked") && strncasecmp(v.p, "chunked", 7) != 0)
        return fault(reterr, 501, "a transfer coding other than chunked");
    return fault(reterr, 400, "malformed Transfer-Encoding");
}

/* ---- Requests ---- */

bool cv_http1_method_is_idempotent(enum cv_http1_method m)
{
    return m == CV_HTTP1_GET || m == CV_HTTP1_HEAD || m == CV_HTTP1_OPTIONS || m == CV_HTTP1_PUT ||
           m == CV_HTTP1_DELETE || m == CV_HTTP1_TRACE;
}

static enum cv_http1_method method_kind(struct cv_http1_str m)
{
    static const struct {
        const char *name;
        enum cv_http1_method kind;
    } known[] = {
        {"GET", CV_HTTP1_GET},         {"HEAD", CV_HTTP1_HEAD},     {"POST", CV_HTTP1_POST},
        {"PUT", CV_HTTP1_PUT},         {"DELETE", CV_HTTP1_DELETE}, {"OPTIONS", CV_HTTP1_OPTIONS},
        {"CONNECT", CV_HTTP1_CONNECT}, {"TRACE", CV_HTTP1_TRACE},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(known); i++)
        if (m.len == strlen(known[i].name) && memcmp(m.p, known[i].name, m.len) == 0)
            return known[i].kind;
    return CV_HTTP1_METHOD_OTHER;
}

/* "HTTP/1.1" at 'p' of 'len' bytes. */
static int version_parse(const char *p, size_t len, uint8_t *ret_minor,
                         struct cv_http1_fault *reterr)
{
    if (len != 8 || memcmp(p, "HTTP/", 5) != 0 || p[5] < '0' || p[5] > '9' || p[6] != '.' ||
        p[7] < '0' || p[7] > '9')
        return fault(reterr, 400, "malformed HTTP version");
    if (p[5] != '1' || p[7] > '1')
        return fault(reterr, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    *ret_minor = (uint8_t)(p[7] - '0');
    return 0;
}

/* "http://host:port/path?query" in 't'. */
static int absolute_parse(struct cv_http1_request *r, struct cv_http1_str t,
                          struct cv_http1_fault *reterr)
{
    const char *end = t.p + t.len;
    const char *colon = memchr(t.p, ':', t.len);

    if (colon == NULL || end - colon < 3 || memcmp(colon, "://", 3) != 0)
        return fault(reterr, 400, "the request target is no absolute URI");
    struct cv_http1_str scheme = {.p = t.p, .len = (uint32_t)(colon - t.p)};
    if (cv_http1_str_is(scheme, "https"))
        return fault(reterr, 400, "https:// is reached with CONNECT");
    if (!cv_http1_str_is(scheme, "http"))
        return fault(reterr, 400, "only http:// targets are forwarded");
    if (memchr(t.p, '#', t.len) != NULL)
        return fault(reterr, 400, "the request target has a fragment");

    const char *p = colon + 3, *q = p;
    while (q < end && *q != '/' && *q != '?')
        q++;
    r->authority = (struct cv_http1_str){.p = p, .len = (uint32_t)(q - p)};
    if (r->authority.len == 0)
        return fault(reterr, 400, "the request target has no host");
    if (memchr(p, '@', r->authority.len) != NULL)
        return fault(reterr, 400, "the request target has user information");
    r->path = (struct cv_http1_str){.p = q, .len = (uint32_t)(end - q)};
    r->path_prefix = "";
    if (q == end) /* RFC 9112 3.2.4: OPTIONS without a path asks about the server as a whole */
        r->path_prefix = r->kind == CV_HTTP1_OPTIONS ? "*" : "/";
    else if (*q == '?')
        r->path_prefix = "/";
    r->form = CV_HTTP1_FORM_ABSOLUTE;
    return 0;
}

/* The request line, without CRLF. Single spaces only. */
static int request_line_parse(struct cv_http1_request *r, const char *p, size_t len,
                              struct cv_http1_fault *reterr)
{
    size_t n = cv_http1_span(p, len, CV_HTTP1_C_TOKEN);
    int ret;

    if (n == 0 || n == len || p[n] != ' ')
        return fault(reterr, 400, "malformed request line");
    r->method = (struct cv_http1_str){.p = p, .len = (uint32_t)n};
    r->kind = method_kind(r->method);

    struct cv_http1_str t = {.p = p + n + 1};
    t.len = (uint32_t)cv_http1_span(t.p, len - n - 1, CV_HTTP1_C_TARGET);
    size_t at = n + 1 + t.len; /* of the space behind the target */
    if (t.len == 0 || at == len || p[at] != ' ')
        return fault(reterr, 400, "malformed request line");
    ret = version_parse(p + at + 1, len - at - 1, &r->head.minor, reterr);
    if (ret != 0)
        return ret;

    if (r->kind == CV_HTTP1_CONNECT) {
        r->form = CV_HTTP1_FORM_AUTHORITY;
        r->authority = t;
    } else if (t.p[0] == '/' || (t.len == 1 && t.p[0] == '*')) {
        r->form = CV_HTTP1_FORM_ORIGIN;
        r->path = t;
        r->path_prefix = "";
    } else {
        return absolute_parse(r, t, reterr);
    }
    return 0;
}

/* RFC 9112 3.2. A CONNECT without Host names its target all the same, and old clients send it. */
static int host_check(const struct cv_http1_request *r, struct cv_http1_fault *reterr)
{
    const struct cv_http1_head *h = &r->head;

    if (h->count[CV_HTTP1_HOST] > 1)
        return fault(reterr, 400, "more than one Host field");
    if (h->count[CV_HTTP1_HOST] == 0) {
        if (h->minor > 0 && r->kind != CV_HTTP1_CONNECT)
            return fault(reterr, 400, "no Host field");
        return 0;
    }
    struct cv_http1_str v = h->fields[h->last[CV_HTTP1_HOST]].value;
    if (cv_http1_span(v.p, v.len, CV_HTTP1_C_HOST) != v.len)
        return fault(reterr, 400, "malformed Host field");
    return 0;
}

static int request_framing(struct cv_http1_request *r, struct cv_http1_fault *reterr)
{
    const struct cv_http1_head *h = &r->head;
    int ret;

    r->framing = CV_HTTP1_EMPTY;
    if (h->count[CV_HTTP1_TRANSFER_ENCODING] > 0) {
        ret = coding_parse(h, reterr);
        if (ret != 0)
            return ret;
        r->framing = CV_HTTP1_CHUNKED;
    } else if (h->count[CV_HTTP1_CONTENT_LENGTH] > 0) {
        ret = length_parse(h, &r->length, reterr);
        if (ret != 0)
            return ret;
        r->framing = CV_HTTP1_LENGTH;
    }
    /* RFC 9110 9.3.6: CONNECT has no content; what follows belongs to the tunnel. */
    if (r->kind == CV_HTTP1_CONNECT && (r->framing == CV_HTTP1_CHUNKED || r->length > 0))
        return fault(reterr, 400, "CONNECT with a body");
    return 0;
}

static bool value_names(struct cv_http1_str v, const char *lit)
{
    size_t n = strlen(lit);

    for (size_t i = 0; i + n <= v.len; i++)
        if (strncasecmp(v.p + i, lit, n) == 0)
            return true;
    return false;
}

static int expect_parse(struct cv_http1_request *r, struct cv_http1_fault *reterr)
{
    const struct cv_http1_head *h = &r->head;

    for (uint32_t i = 0; i < h->n_fields && h->count[CV_HTTP1_ACCEPT] > 0; i++)
        if (h->fields[i].id == CV_HTTP1_ACCEPT && value_names(h->fields[i].value, "text/html"))
            r->html = true;
    if (h->count[CV_HTTP1_EXPECT] == 0 || h->minor == 0)
        return 0; /* RFC 9110 10.1.1: an HTTP/1.0 client cannot expect anything */
    if (h->count[CV_HTTP1_EXPECT] > 1 ||
        !cv_http1_str_is(h->fields[h->last[CV_HTTP1_EXPECT]].value, "100-continue"))
        return fault(reterr, 417, "an expectation other than 100-continue");
    r->expect = true;
    return 0;
}

int cv_http1_request_parse(struct cv_http1_request *r, const char *data, size_t len,
                           struct cv_http1_fault *reterr)
{
    memset(r, 0, offsetof(struct cv_http1_request, head.fields));
    r->path_prefix = "";
    if (len >= 2 && data[0] == '\r' && data[1] == '\n')
        data += 2, len -= 2;

    const char *nl = memchr(data, '\n', len);
    if (nl == NULL || nl == data || nl[-1] != '\r')
        return fault(reterr, 400, "malformed request line");
    int ret = request_line_parse(r, data, (size_t)(nl - 1 - data), reterr);
    if (ret == 0)
        ret = fields_parse(&r->head, nl + 1, data + len, CV_HTTP1_REQUEST, reterr);
    if (ret != 0)
        return ret;
    r->persistent = r->head.minor > 0 && !r->head.close;
    if (r->head.minor == 0)
        r->head.upgrade = false;
    ret = expect_parse(r, reterr);
    if (ret == 0)
        ret = host_check(r, reterr);
    if (ret == 0)
        ret = request_framing(r, reterr);
    if (ret == 0 && r->head.count[CV_HTTP1_PROXY_AUTHORIZATION] > 1)
        ret = fault(reterr, 400, "more than one Proxy-Authorization");
    if (ret == 0 && r->framing == CV_HTTP1_EMPTY)
        r->expect = false; /* nothing to wait for */
    return ret;
}

int cv_http1_basic_parse(struct cv_http1_str v, char *out, size_t cap,
                         struct cv_http1_str *ret_user, struct cv_http1_str *ret_pass)
{
    size_t n;

    if (v.len < 7 || strncasecmp(v.p, "basic ", 6) != 0)
        return CV_E_PARSE;
    struct cv_http1_str b = str_trim(v.p + 6, v.len - 6);
    int ret = cv_base64_decode(b.p, b.len, (uint8_t *)out, cap - 1, &n);
    if (ret != 0)
        return ret;
    out[n] = '\0';
    for (size_t i = 0; i < n; i++) /* RFC 7617 2: no control characters */
        if ((uint8_t)out[i] < 0x20 || out[i] == 0x7f)
            return CV_E_PARSE;
    char *colon = memchr(out, ':', n);
    if (colon == NULL)
        return CV_E_PARSE;
    *colon = '\0';
    *ret_user = (struct cv_http1_str){.p = out, .len = (uint32_t)(colon - out)};
    *ret_pass = (struct cv_http1_str){.p = colon + 1, .len = (uint32_t)(n - ret_user->len - 1)};
    return 0;
}

/* ---- Responses ---- */

static int status_line_parse(struct cv_http1_response *r, const char *p, size_t len,
                             struct cv_http1_fault *reterr)
{
    if (len < 12 || p[8] != ' ')
        return fault(reterr, 502, "malformed status line");
    int ret = version_parse(p, 8, &r->head.minor, reterr);
    if (ret != 0)
        return ret;
    for (size_t i = 9; i < 12; i++) {
        if (p[i] < '0' || p[i] > '9')
            return fault(reterr, 502, "malformed status line");
        r->status = r->status * 10 + (unsigned)(p[i] - '0');
    }
    /* The space before an empty reason is often left out. */
    if (r->status < 100 || (len > 12 && p[12] != ' '))
        return fault(reterr, 502, "malformed status line");
    if (len > 13)
        r->reason = (struct cv_http1_str){.p = p + 13, .len = (uint32_t)(len - 13)};
    if (cv_http1_span(r->reason.p, r->reason.len, CV_HTTP1_C_VALUE) != r->reason.len)
        return fault(reterr, 502, "control characters in the status line");
    return 0;
}

/* RFC 9112 6.3. */
static int response_framing(struct cv_http1_response *r, enum cv_http1_method asked,
                            struct cv_http1_fault *reterr)
{
    const struct cv_http1_head *h = &r->head;
    bool bodyless = r->status < 200 || r->status == 204 || r->status == 304 ||
                    asked == CV_HTTP1_HEAD ||
                    (asked == CV_HTTP1_CONNECT && r->status >= 200 && r->status < 300);
    int ret;

    if (h->count[CV_HTTP1_CONTENT_LENGTH] > 0) {
        ret = length_parse(h, &r->length, reterr);
        if (ret != 0)
            return ret;
        r->has_length = true;
    }
    if (bodyless) {
        r->framing = CV_HTTP1_EMPTY;
    } else if (h->count[CV_HTTP1_TRANSFER_ENCODING] > 0) {
        ret = coding_parse(h, reterr);
        if (ret != 0)
            return ret;
        r->framing = CV_HTTP1_CHUNKED;
    } else {
        r->framing = r->has_length ? CV_HTTP1_LENGTH : CV_HTTP1_CLOSE;
    }
    return 0;
}

int cv_http1_response_parse(struct cv_http1_response *r, const char *data, size_t len,
                            enum cv_http1_method asked, struct cv_http1_fault *reterr)
{
    memset(r, 0, offsetof(struct cv_http1_response, head.fields));
    const char *nl = memchr(data, '\n', len);
    if (nl == NULL || nl == data || nl[-1] != '\r')
        return fault(reterr, 502, "malformed status line");
    int ret = status_line_parse(r, data, (size_t)(nl - 1 - data), reterr);
    if (ret == 0)
        ret = fields_parse(&r->head, nl + 1, data + len, CV_HTTP1_RESPONSE, reterr);
    if (ret == 0)
        ret = response_framing(r, asked, reterr);
    if (ret != 0) {
        reterr->status = 502; /* whatever the fault, it is the origin's */
        return ret;
    }
    r->persistent =
        r->framing != CV_HTTP1_CLOSE && !r->head.close && (r->head.minor > 0 || r->head.keep_alive);
    return 0;
}
