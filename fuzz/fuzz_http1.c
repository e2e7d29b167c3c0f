/* HTTP/1 messages in random pieces against the same bytes in one piece. The first byte chooses what
 * the rest is (request, response, chunked body) and how it is cut. A difference between the two
 * aborts, and so does a forwarded head that our own parser would not take again. */
#include "proto/http1.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

struct cuts {
    uint32_t state;
};

static size_t cut(struct cuts *c, size_t left)
{
    c->state = c->state * 1664525u + 1013904223u;
    size_t n = 1 + (c->state >> 24) % 17;
    return n < left ? n : left;
}

static void check(bool ok)
{
    if (!ok)
        abort();
}

/* What was written for the other side parses, and says the same about the body. */
static void request_again(const struct cv_http1_request *r)
{
    struct cv_buf out;
    struct cv_http1_request again;
    struct cv_http1_scan s = {0};
    struct cv_http1_fault f;
    size_t n;

    if (r->form != CV_HTTP1_FORM_ABSOLUTE)
        return;
    cv_buf_init(&out, 1 << 20);
    check(cv_http1_request_write(&out, r, "h", true) == 0);
    int ret = cv_http1_scan(&s, CV_HTTP1_REQUEST, cv_buf_data(&out), cv_buf_len(&out), &n, &f);
    check(ret == 0 || f.status == 414 || f.status == 431);
    if (ret == 0) {
        check(n == cv_buf_len(&out));
        ret = cv_http1_request_parse(&again, (const char *)cv_buf_data(&out), n, &f);
        check(ret == 0);
        check(again.framing == r->framing);
        check(r->framing != CV_HTTP1_LENGTH || again.length == r->length);
        check(again.head.count[CV_HTTP1_PROXY_AUTHORIZATION] == 0);
        check(again.head.count[CV_HTTP1_HOST] == 1);
    }
    cv_buf_done(&out);
}

static void response_again(const struct cv_http1_response *r)
{
    struct cv_http1_reply_opts opts = {.framing = r->framing, .minor = 1};
    struct cv_buf out;
    struct cv_http1_response again;
    struct cv_http1_scan s = {0};
    struct cv_http1_fault f;
    size_t n;

    cv_buf_init(&out, 1 << 20);
    check(cv_http1_response_write(&out, r, &opts) == 0);
    int ret = cv_http1_scan(&s, CV_HTTP1_RESPONSE, cv_buf_data(&out), cv_buf_len(&out), &n, &f);
    check(ret == 0 || f.status == 431);
    if (ret == 0) {
        check(n == cv_buf_len(&out));
        ret = cv_http1_response_parse(&again, (const char *)cv_buf_data(&out), n, CV_HTTP1_GET, &f);
        check(ret == 0);
        check(again.framing == r->framing);
        check(r->framing != CV_HTTP1_LENGTH || again.length == r->length);
    }
    cv_buf_done(&out);
}

static void head(enum cv_http1_kind kind, const uint8_t *data, size_t len, struct cuts *c)
{
    struct cv_http1_scan whole = {0}, parts = {0};
    struct cv_http1_fault fw = {0}, fp = {0};
    size_t nw = 0, np = 0;
    int rw = cv_http1_scan(&whole, kind, data, len, &nw, &fw), rp = CV_E_MORE;

    for (size_t at = 0; rp == CV_E_MORE && at < len;) {
        at += cut(c, len - at);
        rp = cv_http1_scan(&parts, kind, data, at, &np, &fp);
    }
    check(rw == rp && nw == np && fw.status == fp.status && fw.text == fp.text);
    if (rw != 0)
        return;
    char *copy = cv_alloc(nw);
    memcpy(copy, data, nw);
    if (kind == CV_HTTP1_REQUEST) {
        struct cv_http1_request r;

        if (cv_http1_request_parse(&r, copy, nw, &fw) == 0)
            request_again(&r);
        else
            check(fw.status >= 400 && fw.text != NULL);
    } else {
        struct cv_http1_response r;

        if (cv_http1_response_parse(&r, copy, nw, CV_HTTP1_GET, &fw) == 0)
            response_again(&r);
        else
            check(fw.status == 502 && fw.text != NULL);
    }
    cv_free(copy);
}

/* Decode with or without cuts; what is forwarded goes to 'out'. */
static int body(const uint8_t *data, size_t len, struct cuts *c, struct cv_buf *out,
                size_t *ret_used, bool *ret_done)
{
    struct cv_http1_body b;
    uint8_t *work = cv_alloc(len + 1);
    size_t kept = 0, at = 0;
    int ret = 0;

    *ret_used = 0;
    cv_http1_body_init(&b, CV_HTTP1_CHUNKED, 0);
    while (ret == 0 && at < len && !cv_http1_body_is_done(&b)) {
        struct cv_http1_piece piece;
        struct cv_http1_fault f;
        size_t n = c != NULL ? cut(c, len - at) : len;

        memcpy(work + kept, data + at, n);
        kept += n;
        at += n;
        ret = cv_http1_body_decode(&b, work, kept, &piece, &f);
        if (ret != 0)
            break;
        check(cv_buf_append(out, piece.data_len > 0 ? piece.data : work, piece.data_len) == 0);
        if (piece.trailer != NULL)
            check(cv_http1_trailer_write(out, piece.trailer, piece.trailer_len) == 0);
        *ret_used += piece.used;
        kept -= piece.used;
        memmove(work, work + piece.used, kept);
    }
    *ret_done = cv_http1_body_is_done(&b);
    cv_free(work);
    return ret;
}

static void bodies(const uint8_t *data, size_t len, struct cuts *c)
{
    struct cv_buf whole, parts;
    size_t uw, up;
    bool dw, dp;

    cv_buf_init(&whole, len + 1);
    cv_buf_init(&parts, len + 1);
    int rw = body(data, len, NULL, &whole, &uw, &dw);
    int rp = body(data, len, c, &parts, &up, &dp);
    check(rw == rp);
    if (rw == 0) {
        check(uw == up && dw == dp && cv_buf_len(&whole) == cv_buf_len(&parts));
        check(cv_buf_len(&whole) == 0 ||
              memcmp(cv_buf_data(&whole), cv_buf_data(&parts), cv_buf_len(&whole)) == 0);
    }
    cv_buf_done(&whole);
    cv_buf_done(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < 1)
        return 0;
    struct cuts c = {.state = data[0] * 2654435761u};
    switch (data[0] & 3) {
    case 0:
    case 1:
        head(CV_HTTP1_REQUEST, data + 1, len - 1, &c);
        break;
    case 2:
        head(CV_HTTP1_RESPONSE, data + 1, len - 1, &c);
        break;
    default:
        bodies(data + 1, len - 1, &c);
    }
    return 0;
}
