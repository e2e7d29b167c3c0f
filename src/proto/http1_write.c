#include "proto/http1.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/rd.h"
#include "proto/http1_priv.h"

#include "common/poison.h"

#define FRAMING_MAX 64 /* longest framing and connection lines that we add ourselves */

static void wr_str(struct cv_wr *w, const char *s)
{
    cv_wr_bytes(w, s, strlen(s));
}

static void wr_field(struct cv_wr *w, const struct cv_http1_field *f)
{
    cv_wr_bytes(w, f->name.p, f->name.len);
    cv_wr_bytes(w, ": ", 2);
    cv_wr_bytes(w, f->value.p, f->value.len);
    cv_wr_bytes(w, "\r\n", 2);
}

static void wr_number_field(struct cv_wr *w, const char *name, uint64_t n)
{
    char line[FRAMING_MAX];
    int len = snprintf(line, sizeof(line), "%s: %llu\r\n", name, (unsigned long long)n);

    cv_wr_bytes(w, line, (size_t)len);
}

static void wr_framing(struct cv_wr *w, enum cv_http1_framing framing, uint64_t length)
{
    if (framing == CV_HTTP1_CHUNKED)
        wr_str(w, "Transfer-Encoding: chunked\r\n");
    else if (framing == CV_HTTP1_LENGTH)
        wr_number_field(w, "Content-Length", length);
}

static void wr_upgrade(struct cv_wr *w, const struct cv_http1_head *h)
{
    wr_str(w, "Connection: Upgrade\r\n");
    for (uint32_t i = 0; i < h->n_fields; i++)
        if (h->fields[i].id == CV_HTTP1_UPGRADE)
            wr_field(w, &h->fields[i]);
}

/* Is this field between us and our peer only, or written anew by us? (RFC 9110 7.6.1) */
static bool field_stays(const struct cv_http1_field *f, bool chunked)
{
    switch ((enum cv_http1_name)f->id) {
    case CV_HTTP1_OTHER:
    case CV_HTTP1_ACCEPT:
    case CV_HTTP1_MAX_FORWARDS:
        return !f->hop;
    case CV_HTTP1_TRAILER_FIELD:
        return !f->hop && chunked; /* it announces what only chunked framing can carry */
    case CV_HTTP1_HOST:
    case CV_HTTP1_CONTENT_LENGTH:
    case CV_HTTP1_TRANSFER_ENCODING:
    case CV_HTTP1_CONNECTION:
    case CV_HTTP1_KEEP_ALIVE:
    case CV_HTTP1_TE:
    case CV_HTTP1_UPGRADE:
    case CV_HTTP1_EXPECT:
    case CV_HTTP1_PROXY_AUTHORIZATION:
    case CV_HTTP1_PROXY_CONNECTION:
    case CV_HTTP1_PROXY_OTHER:
    case CV_HTTP1_NAMES:
        break;
    }
    return false;
}

/* Room for every field of 'h' as it would be written, and 'extra' more. */
static int reserve(struct cv_buf *out, const struct cv_http1_head *h, size_t extra,
                   struct cv_wr *ret_wr)
{
    size_t want = extra + 4 * FRAMING_MAX;
    uint8_t *p;
    size_t room;

    for (uint32_t i = 0; i < h->n_fields; i++)
        want += (size_t)h->fields[i].name.len + h->fields[i].value.len + 4;
    int ret = cv_buf_reserve(out, want, &p, &room);
    if (ret == 0)
        cv_wr_init(ret_wr, p, room);
    return ret;
}

static int commit(struct cv_buf *out, struct cv_wr *w)
{
    if (w->err == 0)
        cv_buf_commit(out, w->len);
    return w->err;
}

/* RFC 9110 7.6.2: counted down by each proxy for these two methods. A value that is no number is
 * passed on as it is. */
static void wr_max_forwards(struct cv_wr *w, const struct cv_http1_request *r,
                            const struct cv_http1_field *f)
{
    uint64_t n = 0;
    uint32_t i = 0;

    if (r->kind == CV_HTTP1_OPTIONS || r->kind == CV_HTTP1_TRACE)
        for (; i < f->value.len && i < 9 && f->value.p[i] >= '0' && f->value.p[i] <= '9'; i++)
            n = n * 10 + (uint64_t)(f->value.p[i] - '0');
    if (i > 0 && i == f->value.len && n > 0)
        wr_number_field(w, "Max-Forwards", n - 1);
    else
        wr_field(w, f);
}

int cv_http1_request_write(struct cv_buf *out, const struct cv_http1_request *r, const char *host,
                           bool upgrade)
{
    const struct cv_http1_head *h = &r->head;
    struct cv_wr w;
    int ret = reserve(out, h, (size_t)r->method.len + r->path.len + strlen(host), &w);

    if (ret != 0)
        return ret;
    cv_wr_bytes(&w, r->method.p, r->method.len);
    cv_wr_u8(&w, ' ');
    wr_str(&w, r->path_prefix);
    cv_wr_bytes(&w, r->path.p, r->path.len);
    wr_str(&w, " HTTP/1.1\r\nHost: ");
    wr_str(&w, host);
    wr_str(&w, "\r\n");
    for (uint32_t i = 0; i < h->n_fields; i++) {
        const struct cv_http1_field *f = &h->fields[i];

        if (!field_stays(f, r->framing == CV_HTTP1_CHUNKED))
            continue;
        if (f->id == CV_HTTP1_MAX_FORWARDS)
            wr_max_forwards(&w, r, f);
        else
            wr_field(&w, f);
    }
    if (r->expect)
        wr_str(&w, "Expect: 100-continue\r\n");
    if (upgrade && h->upgrade)
        wr_upgrade(&w, h);
    wr_framing(&w, r->framing, r->length);
    wr_str(&w, "\r\n");
    return commit(out, &w);
}

int cv_http1_response_write(struct cv_buf *out, const struct cv_http1_response *r,
                            const struct cv_http1_reply_opts *opts)
{
    const struct cv_http1_head *h = &r->head;
    char line[32];
    struct cv_wr w;
    int ret = reserve(out, h, r->reason.len, &w);

    if (ret != 0)
        return ret;
    int n = snprintf(line, sizeof(line), "HTTP/1.1 %03u ", r->status);
    cv_wr_bytes(&w, line, (size_t)n);
    cv_wr_bytes(&w, r->reason.p, r->reason.len);
    wr_str(&w, "\r\n");
    for (uint32_t i = 0; i < h->n_fields; i++)
        if (field_stays(&h->fields[i], opts->framing == CV_HTTP1_CHUNKED))
            wr_field(&w, &h->fields[i]);
    if (opts->upgrade)
        wr_upgrade(&w, h);
    else if (opts->close)
        wr_str(&w, "Connection: close\r\n");
    if (opts->framing != CV_HTTP1_EMPTY)
        wr_framing(&w, opts->framing, r->length);
    else if (r->has_length && r->status >= 200 && r->status != 204)
        wr_framing(&w, CV_HTTP1_LENGTH, r->length); /* what a GET would have had */
    wr_str(&w, "\r\n");
    return commit(out, &w);
}

/* RFC 9110 6.5.1: nothing that frames, routes, authenticates or changes how the message is read may
 * be taken from a trailer, because not every recipient merges it. */
static bool trailer_stays(const struct cv_http1_field *f)
{
    static const char *const never[] = {
        "age",
        "authorization",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "cookie",
        "expires",
        "date",
        "location",
        "range",
        "retry-after",
        "set-cookie",
        "vary",
        "warning",
        "if-match",
        "if-none-match",
        "if-range",
        "if-modified-since",
        "pragma",
        "if-unmodified-since",
        "www-authenticate",
    };

    if (f->id != CV_HTTP1_OTHER)
        return false;
    for (size_t i = 0; i < CV_ARRAY_SIZE(never); i++)
        if (cv_http1_str_is(f->name, never[i]))
            return false;
    return true;
}

int cv_http1_trailer_write(struct cv_buf *out, const char *data, size_t len)
{
    const char *end = data + len;

    for (const char *p = data; p + 2 < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        struct cv_http1_fault fault;
        struct cv_http1_field f;
        uint8_t *room;
        size_t n;
        struct cv_wr w;

        if (nl == NULL || nl == p)
            return CV_E_PROTO;
        int ret = cv_http1_field_parse(p, (size_t)(nl - 1 - p), CV_HTTP1_TRAILER, &f, &fault);
        if (ret != 0)
            return ret;
        p = nl + 1;
        if (!trailer_stays(&f))
            continue;
        ret = cv_buf_reserve(out, (size_t)f.name.len + f.value.len + 4, &room, &n);
        if (ret != 0)
            return ret;
        cv_wr_init(&w, room, n);
        wr_field(&w, &f);
        ret = commit(out, &w);
        if (ret != 0)
            return ret;
    }
    return 0;
}
