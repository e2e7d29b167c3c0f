#include "proto/http1.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/err.h"
#include "tap.h"

static char big[200000];

/* Scan and parse 'in' as a request that has arrived whole. */
static int request(const char *in, size_t len, struct cv_http1_request *r, size_t *ret_len,
                   struct cv_http1_fault *f)
{
    struct cv_http1_scan s = {0};

    *f = (struct cv_http1_fault){0};
    int ret = cv_http1_scan(&s, CV_HTTP1_REQUEST, in, len, ret_len, f);
    return ret != 0 ? ret : cv_http1_request_parse(r, in, *ret_len, f);
}

static int response(const char *in, size_t len, enum cv_http1_method asked,
                    struct cv_http1_response *r, size_t *ret_len, struct cv_http1_fault *f)
{
    struct cv_http1_scan s = {0};

    *f = (struct cv_http1_fault){0};
    int ret = cv_http1_scan(&s, CV_HTTP1_RESPONSE, in, len, ret_len, f);
    return ret != 0 ? ret : cv_http1_response_parse(r, in, *ret_len, asked, f);
}

/* ---- What is refused ---- */

#define H "Host: a\r\n"
#define G "GET http://a/ HTTP/1.1\r\n"
#define P "POST http://a/ HTTP/1.1\r\n" H

static const struct {
    const char *in;
    unsigned status;
} refused[] = {
    /* line ends */
    {"GET http://a/ HTTP/1.1\n" H "\r\n", 400},
    {G "Host: a\n\r\n", 400},
    {G H "\n", 400},
    {G H "X: a\rb\r\n\r\n", 400},
    {G H "X: a\r\r\n\r\n", 400},
    {"\r\n\r\n" G H "\r\n", 400},
    {"\n" G H "\r\n", 400},
    /* request line */
    {"GET  http://a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://a/  HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://a/ HTTP/1.1 \r\n" H "\r\n", 400},
    {"GET http://a/ b HTTP/1.1\r\n" H "\r\n", 400},
    {"GET\thttp://a/ HTTP/1.1\r\n" H "\r\n", 400},
    {" GET http://a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"G(T http://a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://a/\x01 HTTP/1.1\r\n" H "\r\n", 400},
    {"GET /\r\n\r\n", 400},
    {"GET\r\n\r\n", 400},
    {"GET http://a/ http/1.1\r\n" H "\r\n", 400},
    {"GET http://a/ HTTP/1.10\r\n" H "\r\n", 400},
    {"GET http://a/ HTTP/11\r\n" H "\r\n", 400},
    {"GET http://a/ HTTP/1.2\r\n" H "\r\n", 505},
    {"GET http://a/ HTTP/0.9\r\n" H "\r\n", 505},
    {"PRI * HTTP/2.0\r\n\r\n", 505},
    {"\x16\x03\x01\x02", 400},
    /* targets */
    {"GET a HTTP/1.1\r\n" H "\r\n", 400},
    {"GET a:80 HTTP/1.1\r\n" H "\r\n", 400},
    {"GET https://a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"GET ftp://a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http:/a HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http:///x HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://?x HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://u@a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://u:p@a/ HTTP/1.1\r\n" H "\r\n", 400},
    {"GET http://a/#x HTTP/1.1\r\n" H "\r\n", 400},
    {"GET ://a/ HTTP/1.1\r\n" H "\r\n", 400},
    /* fields */
    {G H "X : a\r\n\r\n", 400},
    {G H "X\t: a\r\n\r\n", 400},
    {G H "X\r\n\r\n", 400},
    {G H ": a\r\n\r\n", 400},
    {G H "X Y: a\r\n\r\n", 400},
    {G H "X(: a\r\n\r\n", 400},
    {G H "X: a\r\n b\r\n\r\n", 400},
    {G " " H "\r\n", 400},
    {G H "X: a\x7f\r\n\r\n", 400},
    {G H "X: a\x01\r\n\r\n", 400},
    /* Host */
    {G "\r\n", 400},
    {G H H "\r\n", 400},
    {"CONNECT a:443 HTTP/1.1\r\n" H H "\r\n", 400},
    {G "Host: a b\r\n\r\n", 400},
    {G "Host: a/b\r\n\r\n", 400},
    {G "Host: u@a\r\n\r\n", 400},
    /* framing */
    {P "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {P "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400},
    {P "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
    {P "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
    {P "Content-Length: 5, 5\r\n\r\n", 400},
    {P "Content-Length: 5,6\r\n\r\n", 400},
    {P "Content-Length: +5\r\n\r\n", 400},
    {P "Content-Length: -1\r\n\r\n", 400},
    {P "Content-Length: 0x5\r\n\r\n", 400},
    {P "Content-Length: 5 5\r\n\r\n", 400},
    {P "Content-Length:\r\n\r\n", 400},
    {P "Content-Length: 18446744073709551616\r\n\r\n", 400},
    {P "Content-Length: 9223372036854775808\r\n\r\n", 400},
    {P "Content-Length: 00000000000000000005\r\n\r\n", 400},
    {P "Transfer-Encoding : chunked\r\n\r\n", 400},
    {P "Transfer-Encoding: chunked\t\r\n\r\n", 400},
    {P "Transfer-Encoding:\tchunked\r\n\r\n", 400},
    {P "Transfer-Encoding: \x0b"
       "chunked\r\n\r\n",
     400},
    {P "Transfer-Encoding: xchunked\r\n\r\n", 400},
    {P "Transfer-Encoding: chunkedx\r\n\r\n", 400},
    {P "Transfer-Encoding: chunked;a=b\r\n\r\n", 400},
    {P "Transfer-Encoding: \"chunked\"\r\n\r\n", 400},
    {P "Transfer-Encoding:\r\n\r\n", 400},
    {P "Transfer-Encoding: identity\r\n\r\n", 400},
    {P "Transfer-Encoding: chunked, identity\r\n\r\n", 400},
    {P "Transfer-Encoding: chunked, chunked\r\n\r\n", 400},
    {P "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {P "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {P "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n", 400},
    {"CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {P "Content-Length: 5\r\nConnection: content-length\r\n\r\n", 400},
    {P "Connection: close, Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {P "Connection: a b\r\n\r\n", 400},
    {P "Connection: a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,a,b,c,d,e,f,g\r\n\r\n",
     400},
    /* others */
    {P "Expect: more\r\n\r\n", 417},
    {P "Expect: 100-continue\r\nExpect: 100-continue\r\n\r\n", 417},
    {G H "Proxy-Authorization: Basic dTpw\r\nproxy-authorization: Basic dTpw\r\n\r\n", 400},
};

static void refused_table(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(refused); i++) {
        struct cv_http1_request r;
        struct cv_http1_fault f;
        size_t n;

        int ret = request(refused[i].in, strlen(refused[i].in), &r, &n, &f);
        if (!T_INT_EQ(ret, CV_E_PROTO) || !T_INT_EQ(f.status, refused[i].status))
            printf("#   in row %zu: %s\n", i, refused[i].in);
        T_OK(ret == 0 || f.text != NULL);
    }
}

/* ---- What is accepted ---- */

static const struct {
    const char *in;
    enum cv_http1_form form;
    const char *authority, *prefix, *path;
    enum cv_http1_framing framing;
    uint64_t length;
    bool persistent;
} accepted[] = {
    {G H "\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/", CV_HTTP1_EMPTY, 0, true},
    {"\r\n" G H "\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/", CV_HTTP1_EMPTY, 0, true},
    {"GET HTTP://a HTTP/1.1\r\n" H "\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "/", "", CV_HTTP1_EMPTY, 0,
     true},
    {"OPTIONS http://a:8 HTTP/1.1\r\n" H "\r\n", CV_HTTP1_FORM_ABSOLUTE, "a:8", "*", "",
     CV_HTTP1_EMPTY, 0, true},
    {"GET http://a?b HTTP/1.1\r\n" H "\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "/", "?b", CV_HTTP1_EMPTY,
     0, true},
    {"GET http://[::1]:80/x?http://u@b/ HTTP/1.1\r\n" H "\r\n", CV_HTTP1_FORM_ABSOLUTE, "[::1]:80",
     "", "/x?http://u@b/", CV_HTTP1_EMPTY, 0, true},
    {"GET / HTTP/1.1\r\n" H "\r\n", CV_HTTP1_FORM_ORIGIN, "", "", "/", CV_HTTP1_EMPTY, 0, true},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", CV_HTTP1_FORM_ORIGIN, "", "", "*", CV_HTTP1_EMPTY, 0, true},
    {"CONNECT a:443 HTTP/1.1\r\n\r\n", CV_HTTP1_FORM_AUTHORITY, "a:443", "", "", CV_HTTP1_EMPTY, 0,
     true},
    {"CONNECT a:443 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", CV_HTTP1_FORM_AUTHORITY, "a:443", "",
     "", CV_HTTP1_LENGTH, 0, true},
    {"CONNECT a:443 HTTP/1.0\r\n\r\n", CV_HTTP1_FORM_AUTHORITY, "a:443", "", "", CV_HTTP1_EMPTY, 0,
     false},
    {"GET http://a/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "",
     "/", CV_HTTP1_EMPTY, 0, false},
    {G H "Connection: a,, Close\r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/", CV_HTTP1_EMPTY, 0,
     false},
    {G H "Proxy-Connection: close\r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/", CV_HTTP1_EMPTY, 0,
     false},
    {P "Content-Length:  5 \r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/", CV_HTTP1_LENGTH, 5,
     true},
    {P "content-LENGTH: 9223372036854775807\r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/",
     CV_HTTP1_LENGTH, INT64_MAX, true},
    {P "Transfer-Encoding:   CHUNKED  \r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/",
     CV_HTTP1_CHUNKED, 0, true},
    {P "X: \xc3\xa9\t b\r\nY:\r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "", "/", CV_HTTP1_EMPTY, 0,
     true},
    {"PURGE http://a/\xc3\xa9 HTTP/1.1\r\nHost:\r\n\r\n", CV_HTTP1_FORM_ABSOLUTE, "a", "",
     "/\xc3\xa9", CV_HTTP1_EMPTY, 0, true},
};

static bool is_str(struct cv_http1_str s, const char *want)
{
    return s.len == strlen(want) && memcmp(s.p != NULL ? s.p : "", want, s.len) == 0;
}

static void accepted_table(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(accepted); i++) {
        struct cv_http1_request r;
        struct cv_http1_fault f;
        size_t n = 0, len = strlen(accepted[i].in);
        bool ok = T_INT_EQ(request(accepted[i].in, len, &r, &n, &f), 0);

        if (ok) {
            ok = T_INT_EQ(n, len);
            ok &= T_INT_EQ(r.form, accepted[i].form);
            ok &= T_OK(is_str(r.authority, accepted[i].authority));
            ok &= T_STR_EQ(r.path_prefix, accepted[i].prefix);
            ok &= T_OK(is_str(r.path, accepted[i].path));
            ok &= T_INT_EQ(r.framing, accepted[i].framing);
            ok &= T_INT_EQ(r.length, accepted[i].length);
            ok &= T_INT_EQ(r.persistent, accepted[i].persistent);
        }
        if (!ok)
            printf("#   in row %zu: %s\n", i, accepted[i].in);
    }
}

/* Every prefix of a good head wants more, every prefix of a bad one wants more or is refused with
 * the same fault, and so when it is fed in pieces of any size. */
static void splits_do_not_matter(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(refused) + CV_ARRAY_SIZE(accepted); i++) {
        bool good = i >= CV_ARRAY_SIZE(refused);
        const char *in = good ? accepted[i - CV_ARRAY_SIZE(refused)].in : refused[i].in;
        size_t len = strlen(in);
        size_t whole_len = 0;
        struct cv_http1_fault whole_fault = {0};
        struct cv_http1_scan s = {0};
        int whole = cv_http1_scan(&s, CV_HTTP1_REQUEST, in, len, &whole_len, &whole_fault);

        for (size_t step = 1; step <= 3 && step <= len; step++) {
            struct cv_http1_scan t = {0};
            struct cv_http1_fault f = {0};
            size_t n = 0, at = 0;
            int ret = CV_E_MORE;

            while (ret == CV_E_MORE && at < len) {
                at = CV_MIN(at + step, len);
                char *copy = cv_alloc(at); /* exact, so that the sanitizer sees any overrun */
                memcpy(copy, in, at);
                ret = cv_http1_scan(&t, CV_HTTP1_REQUEST, copy, at, &n, &f);
                cv_free(copy);
            }
            bool ok = T_INT_EQ(ret, whole);
            ok = ok && T_INT_EQ(f.status, whole_fault.status) && T_STR_EQ(f.text, whole_fault.text);
            ok = ok && T_INT_EQ(n, whole_len);
            if (!ok)
                printf("#   step %zu of: %s\n", step, in);
        }
    }
}

static void head_stops_at_its_end(void)
{
    static const char two[] = G H "\r\nGET http://b/ HTTP/1.1\r\n";
    struct cv_http1_request r;
    struct cv_http1_fault f;
    size_t n;

    T_REQUIRE(request(two, strlen(two), &r, &n, &f) == 0);
    T_INT_EQ(n, strlen(G H "\r\n"));
}

/* ---- Limits ---- */

static size_t put(size_t at, const char *s)
{
    memcpy(big + at, s, strlen(s));
    return at + strlen(s);
}
static size_t fill(size_t at, size_t n)
{
    memset(big + at, 'x', n);
    return at + n;
}

/* Whole, and in pieces of 1000 bytes. */
static void check_limit(size_t len, int want, unsigned status)
{
    struct cv_http1_request r;
    struct cv_http1_fault f;
    struct cv_http1_scan s = {0};
    size_t n = 0;

    T_INT_EQ(request(big, len, &r, &n, &f), want);
    T_INT_EQ(f.status, status);

    int ret = CV_E_MORE;
    f = (struct cv_http1_fault){0};
    for (size_t at = 0; ret == CV_E_MORE && at < len;) {
        at = CV_MIN(at + 1000, len);
        ret = cv_http1_scan(&s, CV_HTTP1_REQUEST, big, at, &n, &f);
    }
    T_INT_EQ(ret, want);
    T_INT_EQ(f.status, status);
}

static void line_limit(void)
{
    for (int over = 0; over <= 1; over++) {
        size_t at = put(0, "GET http://a/");
        at = fill(at, CV_HTTP1_LINE_MAX - at - strlen(" HTTP/1.1") + (size_t)over);
        at = put(at, " HTTP/1.1\r\n" H "\r\n");
        check_limit(at, over ? CV_E_PROTO : 0, over ? 414 : 0);
    }
    check_limit(fill(put(0, "GET http://a/"), 65536), CV_E_PROTO, 414);
    check_limit(fill(put(0, "GET http://a/"), 10000), CV_E_MORE, 0);
}

static void head_limit(void)
{
    for (int over = 0; over <= 1; over++) {
        size_t at = put(0, G H "X: ");
        at = fill(at, CV_HTTP1_REQUEST_MAX - at - 4 + (size_t)over);
        at = put(at, "\r\n\r\n");
        check_limit(at, over ? CV_E_PROTO : 0, over ? 431 : 0);
    }
    check_limit(fill(put(0, G H "X: "), 65536), CV_E_PROTO, 431);
}

static void field_limit(void)
{
    for (unsigned fields = 199; fields <= 201; fields++) {
        size_t at = put(0, G H);
        for (unsigned i = 1; i < fields; i++)
            at = put(at, "X:\r\n");
        at = put(at, "\r\n");
        check_limit(at, fields > 200 ? CV_E_PROTO : 0, fields > 200 ? 431 : 0);
    }
    size_t at = put(0, G H);
    for (unsigned i = 1; i < 10000; i++)
        at = put(at, "X: y\r\n");
    check_limit(at, CV_E_PROTO, 431);
}

/* ---- Basic ---- */

static void basic_credentials(void)
{
    static const struct {
        const char *value, *user, *pass; /* user NULL: refused */
    } rows[] = {
        {"Basic dTpw", "u", "p"},
        {"bAsIc   dTpw", "u", "p"},
        {"Basic dTpwOnE=", "u", "p:q"},
        {"Basic Og==", "", ""},
        {"Basic dTo=", "u", ""},
        {"Basic OnA=", "", "p"},
        {"Basic dTp", NULL, NULL},   /* no padding */
        {"Basic dTpw=", NULL, NULL}, /* too much */
        {"Basic dT pw", NULL, NULL}, /* blank inside */
        {"Basic dXA=", NULL, NULL},  /* no colon */
        {"Basic", NULL, NULL},
        {"Basic ", NULL, NULL},
        {"Basicx dTpw", NULL, NULL},
        {"Bearer dTpw", NULL, NULL},
        {"Basic dTpwAA==", NULL, NULL}, /* NUL in the password */
        {"Basic dTpwCg==", NULL, NULL}, /* line feed */
        {"", NULL, NULL},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_http1_str v = {.p = rows[i].value, .len = (uint32_t)strlen(rows[i].value)};
        struct cv_http1_str user, pass;
        char out[64];
        int ret = cv_http1_basic_parse(v, out, sizeof(out), &user, &pass);

        if (rows[i].user == NULL) {
            if (!T_INT_EQ(ret, CV_E_PARSE))
                printf("#   %s\n", rows[i].value);
        } else if (T_INT_EQ(ret, 0)) {
            T_STR_EQ(user.p, rows[i].user);
            T_INT_EQ(user.len, strlen(rows[i].user));
            T_STR_EQ(pass.p, rows[i].pass);
            T_INT_EQ(pass.len, strlen(rows[i].pass));
        }
    }
    char out[4];
    struct cv_http1_str user, pass, v = {.p = "Basic dTpwcXI=", .len = 14};
    T_INT_EQ(cv_http1_basic_parse(v, out, sizeof(out), &user, &pass), CV_E_LIMIT);
}

/* ---- Rewriting ---- */

static const struct {
    const char *in, *out;
    bool upgrade;
} rewritten[] = {
    {"GET http://a:8080/x?y HTTP/1.1\r\nHost: other\r\nUser-Agent: t\r\n\r\n",
     "GET /x?y HTTP/1.1\r\nHost: h\r\nUser-Agent: t\r\n\r\n", false},
    {G H "proxy-AUTHORIZATION: Basic dTpw\r\nProxy-Connection: keep-alive\r\nProxy-Foo: 1\r\n"
         "Keep-Alive: 5\r\nTE: trailers\r\nConnection: TE, x-hop\r\nX-Hop: 1\r\nX-Stays: 2\r\n\r\n",
     "GET / HTTP/1.1\r\nHost: h\r\nX-Stays: 2\r\n\r\n", false},
    {G H "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: k\r\n\r\n",
     "GET / HTTP/1.1\r\nHost: h\r\nSec-WebSocket-Key: k\r\nConnection: Upgrade\r\n"
     "Upgrade: websocket\r\n\r\n",
     true},
    {G H "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
     false},
    {G H "Upgrade: websocket\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
    {P "Content-Length: 007\r\nExpect: 100-Continue\r\nX:  y \r\n\r\n",
     "POST / HTTP/1.1\r\nHost: h\r\nX: y\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n",
     false},
    {P "Transfer-Encoding: Chunked\r\nTrailer: X-Sum\r\n\r\n",
     "POST / HTTP/1.1\r\nHost: h\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n", false},
    {P "Content-Length: 0\r\nTrailer: X-Sum\r\n\r\n",
     "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false},
    {"POST http://a/ HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n",
     "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n", false},
    {"OPTIONS http://a HTTP/1.1\r\n" H "Max-Forwards: 3\r\n\r\n",
     "OPTIONS * HTTP/1.1\r\nHost: h\r\nMax-Forwards: 2\r\n\r\n", false},
    {G H "Max-Forwards: 3\r\n\r\n", "GET / HTTP/1.1\r\nHost: h\r\nMax-Forwards: 3\r\n\r\n", false},
};

static void requests_are_rewritten(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(rewritten); i++) {
        struct cv_http1_request r;
        struct cv_http1_fault f;
        struct cv_buf out;
        size_t n;

        cv_buf_init(&out, 4096);
        bool ok = T_INT_EQ(request(rewritten[i].in, strlen(rewritten[i].in), &r, &n, &f), 0);
        ok = ok && T_INT_EQ(cv_http1_request_write(&out, &r, "h", rewritten[i].upgrade), 0);
        ok = ok && T_INT_EQ(cv_buf_append(&out, "", 1), 0);
        ok = ok && T_STR_EQ((const char *)cv_buf_data(&out), rewritten[i].out);
        if (!ok)
            printf("#   row %zu\n", i);
        cv_buf_done(&out);
    }
}

#define R "HTTP/1.1 200 OK\r\n"
static const struct {
    const char *in;
    enum cv_http1_method asked;
    enum cv_http1_framing framing; /* as parsed */
    struct cv_http1_reply_opts opts;
    const char *out; /* NULL: 502 */
} replies[] = {
    {R "Content-Length: 5\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_LENGTH,
     {CV_HTTP1_LENGTH, 1, false, false},
     R "Content-Length: 5\r\n\r\n"},
    {R "Content-Length: 5\r\n\r\n",
     CV_HTTP1_HEAD,
     CV_HTTP1_EMPTY,
     {CV_HTTP1_EMPTY, 1, true, false},
     R "Connection: close\r\nContent-Length: 5\r\n\r\n"},
    {"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_EMPTY,
     {CV_HTTP1_EMPTY, 1, false, false},
     "HTTP/1.1 204 No\r\n\r\n"},
    {"HTTP/1.1 304\r\nETag: x\r\nContent-Length: 5\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_EMPTY,
     {CV_HTTP1_EMPTY, 1, false, false},
     "HTTP/1.1 304 \r\nETag: x\r\nContent-Length: 5\r\n\r\n"},
    {R "Transfer-Encoding: chunked\r\nTrailer: X\r\nConnection: keep-alive, foo\r\nFoo: 1\r\n"
       "Keep-Alive: 5\r\nProxy-Authenticate: x\r\nVia: y\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_CHUNKED,
     {CV_HTTP1_CHUNKED, 1, false, false},
     R "Trailer: X\r\nVia: y\r\nTransfer-Encoding: chunked\r\n\r\n"},
    {R "Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_CHUNKED,
     {CV_HTTP1_CLOSE, 0, true, false},
     R "Connection: close\r\n\r\n"},
    {"HTTP/1.0 200 OK\r\nX : y\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_CLOSE,
     {CV_HTTP1_CHUNKED, 1, false, false},
     R "X: y\r\nTransfer-Encoding: chunked\r\n\r\n"},
    {"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
     CV_HTTP1_GET,
     CV_HTTP1_EMPTY,
     {CV_HTTP1_EMPTY, 1, false, true},
     "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"},
    {"HTTP/1.1 100 Continue\r\n\r\n",
     CV_HTTP1_POST,
     CV_HTTP1_EMPTY,
     {CV_HTTP1_EMPTY, 1, false, false},
     "HTTP/1.1 100 Continue\r\n\r\n"},
    {R "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {R "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {R "Transfer-Encoding: gzip\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {R "X: a\r\n b\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {R "X: a\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"HTTP/1.1 99 OK\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"HTTP/1.1 0200 OK\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"HTTP/2.0 200 OK\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"ICY 200 OK\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"\r\n" R "\r\n", CV_HTTP1_GET, 0, {0}, NULL},
    {"SSH-2.0-OpenSSH\r\n\r\n", CV_HTTP1_GET, 0, {0}, NULL},
};

static void responses_are_rewritten(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(replies); i++) {
        struct cv_http1_response r;
        struct cv_http1_fault f;
        struct cv_buf out;
        size_t n;

        cv_buf_init(&out, 4096);
        int ret = response(replies[i].in, strlen(replies[i].in), replies[i].asked, &r, &n, &f);
        bool ok = T_INT_EQ(ret, replies[i].out != NULL ? 0 : CV_E_PROTO);
        if (ok && ret == 0) {
            ok = T_INT_EQ(r.framing, replies[i].framing);
            ok &= T_INT_EQ(cv_http1_response_write(&out, &r, &replies[i].opts), 0);
            ok &= T_INT_EQ(cv_buf_append(&out, "", 1), 0);
            ok &= T_STR_EQ((const char *)cv_buf_data(&out), replies[i].out);
        }
        if (!ok)
            printf("#   row %zu: %s\n", i, replies[i].in);
        cv_buf_done(&out);
    }
}

static void persistence_of_origins(void)
{
    static const struct {
        const char *in;
        bool persistent;
    } rows[] = {
        {R "Content-Length: 5\r\n\r\n", true},
        {R "Content-Length: 5\r\nConnection: close\r\n\r\n", false},
        {R "Transfer-Encoding: chunked\r\n\r\n", true},
        {R "\r\n", false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n\r\n", true},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_http1_response r;
        struct cv_http1_fault f;
        size_t n;

        T_INT_EQ(response(rows[i].in, strlen(rows[i].in), CV_HTTP1_GET, &r, &n, &f), 0);
        T_INT_EQ(r.persistent, rows[i].persistent);
    }
}

/* ---- Bodies ---- */

/* Decode 'in' given in pieces of 'step' bytes (0: random sizes), keeping what was not used as a
 * caller does. Returns the outcome; payload and trailer are appended to 'out'. */
static int decode(const char *in, size_t len, size_t step, struct cv_buf *out, size_t *ret_used,
                  bool *ret_done)
{
    struct cv_http1_body b;
    struct cv_http1_piece piece = {0};
    struct cv_http1_fault f;
    size_t kept = 0, at = 0, used = 0;
    uint8_t *work = cv_alloc(len + 1);
    int ret = 0;

    cv_http1_body_init(&b, CV_HTTP1_CHUNKED, 0);
    while (ret == 0 && at < len && !cv_http1_body_is_done(&b)) {
        size_t n = step > 0 ? step : 1 + (size_t)rand() % 40;
        n = CV_MIN(n, len - at);
        memcpy(work + kept, in + at, n);
        kept += n;
        at += n;
        ret = cv_http1_body_decode(&b, work, kept, &piece, &f);
        if (ret != 0)
            break;
        T_INT_EQ(cv_buf_append(out, piece.data_len > 0 ? piece.data : work, piece.data_len), 0);
        if (piece.trailer != NULL)
            T_INT_EQ(cv_http1_trailer_write(out, piece.trailer, piece.trailer_len), 0);
        used += piece.used;
        kept -= piece.used;
        memmove(work, work + piece.used, kept);
    }
    *ret_done = cv_http1_body_is_done(&b);
    *ret_used = used;
    cv_free(work);
    return ret;
}

static const struct {
    const char *in;
    const char *out; /* NULL: refused */
    bool unfinished;
    size_t behind; /* bytes that follow the body */
} chunked[] = {
    {"0\r\n\r\n", "", false, 0},
    {"5\r\nhello\r\n0\r\n\r\n", "hello", false, 0},
    {"1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n000\r\n\r\nGET", "hello", false, 3},
    {"5;a=b;c=\"d e\"\r\nhello\r\n0;x\r\n\r\n", "hello", false, 0},
    {"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789", false, 0},
    {"0000000000000005\r\nhello\r\n0\r\n\r\n", "hello", false, 0},
    {"2\r\nhi\r\n0\r\nX-Sum: 1\r\nContent-Length: 7\r\nAuthorization: x\r\nY:\r\n\r\nrest",
     "hiX-Sum: 1\r\nY: \r\n", false, 4},
    {"5\r\nhel", "hel", true, 0},
    {"5\r\nhello\r\n0\r\nX: y\r\n", "hello", true, 6},
    {"00000000000000005\r\nhello\r\n0\r\n\r\n", NULL, false, 0}, /* 17 digits */
    {"0x5\r\nhello\r\n0\r\n\r\n", NULL, false, 0},
    {"ffffffffffffffff\r\n", NULL, false, 0},
    {"-5\r\nhello\r\n", NULL, false, 0},
    {"+5\r\nhello\r\n", NULL, false, 0},
    {" 5\r\nhello\r\n", NULL, false, 0},
    {"5 \r\nhello\r\n", NULL, false, 0},
    {"5\t;a\r\nhello\r\n", NULL, false, 0},
    {"g\r\n", NULL, false, 0},
    {";a\r\n", NULL, false, 0},
    {"\r\n", NULL, false, 0},
    {"5\nhello\r\n0\r\n\r\n", NULL, false, 0},
    {"5\r\nhello\n0\r\n\r\n", NULL, false, 0},
    {"5\r\nhelloX\r\n0\r\n\r\n", NULL, false, 0},
    {"5\r\nhello0\r\n\r\n", NULL, false, 0},
    {"5;a\rb\r\nhello\r\n", NULL, false, 0},
    {"5;a\x01\r\nhello\r\n", NULL, false, 0},
    {"0\r\nX : y\r\n\r\n", NULL, false, 0},
    {"0\r\nX: y\n\r\n", NULL, false, 0},
    {"0\r\n folded\r\n\r\n", NULL, false, 0},
    {"0\r\nGET / HTTP/1.1\r\n\r\n", NULL, false, 0},
};

static void chunked_table(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(chunked); i++) {
        size_t len = strlen(chunked[i].in);

        for (size_t step = 1; step <= len; step++) {
            struct cv_buf out;
            size_t used = 0;
            bool done = false;

            cv_buf_init(&out, 4096);
            int ret = decode(chunked[i].in, len, step, &out, &used, &done);
            bool ok = T_INT_EQ(ret, chunked[i].out != NULL ? 0 : CV_E_PROTO);
            if (ok && ret == 0) {
                ok = T_INT_EQ(done, !chunked[i].unfinished);
                ok &= T_INT_EQ(cv_buf_append(&out, "", 1), 0);
                ok &= T_STR_EQ((const char *)cv_buf_data(&out), chunked[i].out);
                ok &= T_INT_EQ(used, len - chunked[i].behind);
            }
            if (!ok)
                printf("#   row %zu step %zu: %s\n", i, step, chunked[i].in);
            cv_buf_done(&out);
        }
    }
}

static void chunk_limits(void)
{
    struct cv_buf out;
    size_t used, at;
    bool done;

    cv_buf_init(&out, sizeof(big));
    /* one long line: 4096 bytes with its CRLF are the most */
    for (int over = 0; over <= 1; over++) {
        at = fill(put(0, "1;"), CV_HTTP1_CHUNK_LINE_MAX - 4 + (size_t)over);
        at = put(at, "\r\nx\r\n0\r\n\r\n");
        T_INT_EQ(decode(big, at, 0, &out, &used, &done), over ? CV_E_PROTO : 0);
    }
    /* many of them: small payload with much around it */
    at = 0;
    for (unsigned i = 0; i < 40; i++)
        at = put(fill(put(at, "1;"), 2000), "\r\nx\r\n");
    T_INT_EQ(decode(big, at, 0, &out, &used, &done), CV_E_PROTO);
    /* trailers */
    for (int over = 0; over <= 1; over++) {
        at = put(0, "0\r\nX:");
        at = fill(at, CV_HTTP1_TRAILER_MAX - 6 + (size_t)over);
        at = put(at, "\r\n\r\n");
        T_INT_EQ(decode(big, at, 0, &out, &used, &done), over ? CV_E_PROTO : 0);
    }
    cv_buf_done(&out);
}

/* Random payloads in random chunks, decoded in random pieces, give the payload again. */
static void chunked_random(void)
{
    srand(1);
    for (unsigned round = 0; round < 300; round++) {
        struct cv_buf wire, want, out;
        size_t used;
        bool done;

        cv_buf_init(&wire, 1 << 20);
        cv_buf_init(&want, 1 << 20);
        cv_buf_init(&out, 1 << 20);
        for (int chunks = rand() % 20; chunks > 0; chunks--) {
            char head[CV_HTTP1_CHUNK_HEAD_MAX], data[300];
            size_t n = 1 + (size_t)rand() % sizeof(data);

            for (size_t i = 0; i < n; i++)
                data[i] = (char)rand();
            T_INT_EQ(cv_buf_append(&wire, head, cv_http1_chunk_head(head, n)), 0);
            T_INT_EQ(cv_buf_append(&wire, data, n), 0);
            T_INT_EQ(cv_buf_append_str(&wire, "\r\n"), 0);
            T_INT_EQ(cv_buf_append(&want, data, n), 0);
        }
        T_INT_EQ(cv_buf_append_str(&wire, "0\r\n\r\ntail"), 0);
        T_INT_EQ(decode((const char *)cv_buf_data(&wire), cv_buf_len(&wire), 0, &out, &used, &done),
                 0);
        T_OK(done);
        T_INT_EQ(used, cv_buf_len(&wire) - 4);
        if (T_INT_EQ(cv_buf_len(&out), cv_buf_len(&want)))
            T_MEM_EQ(cv_buf_data(&out), cv_buf_data(&want), cv_buf_len(&want));
        cv_buf_done(&wire);
        cv_buf_done(&want);
        cv_buf_done(&out);
    }
}

static void length_and_close(void)
{
    struct cv_http1_body b;
    struct cv_http1_piece piece;
    struct cv_http1_fault f;
    uint8_t data[] = "0123456789";

    cv_http1_body_init(&b, CV_HTTP1_EMPTY, 0);
    T_OK(cv_http1_body_is_done(&b));
    cv_http1_body_init(&b, CV_HTTP1_LENGTH, 0);
    T_OK(cv_http1_body_is_done(&b));

    cv_http1_body_init(&b, CV_HTTP1_LENGTH, 12);
    T_INT_EQ(cv_http1_body_decode(&b, data, 10, &piece, &f), 0);
    T_INT_EQ(piece.used, 10);
    T_INT_EQ(piece.data_len, 10);
    T_OK(piece.data == data);
    T_INT_EQ(cv_http1_body_left(&b), 2);
    T_OK(!cv_http1_body_is_done(&b));
    T_INT_EQ(cv_http1_body_decode(&b, data, 10, &piece, &f), 0);
    T_INT_EQ(piece.used, 2);
    T_OK(cv_http1_body_is_done(&b));

    cv_http1_body_init(&b, CV_HTTP1_LENGTH, 12);
    cv_http1_body_skip(&b, 11);
    T_INT_EQ(cv_http1_body_left(&b), 1);
    T_OK(!cv_http1_body_is_done(&b));
    cv_http1_body_skip(&b, 1);
    T_OK(cv_http1_body_is_done(&b));

    cv_http1_body_init(&b, CV_HTTP1_CLOSE, 0);
    T_INT_EQ(cv_http1_body_decode(&b, data, 10, &piece, &f), 0);
    T_INT_EQ(piece.data_len, 10);
    T_OK(!cv_http1_body_is_done(&b));
}

static void chunk_heads(void)
{
    static const struct {
        uint64_t n;
        const char *text;
    } rows[] = {{0, "0\r\n"},
                {15, "f\r\n"},
                {16, "10\r\n"},
                {65536, "10000\r\n"},
                {UINT64_MAX, "ffffffffffffffff\r\n"}};

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char out[CV_HTTP1_CHUNK_HEAD_MAX + 1] = "";
        size_t n = cv_http1_chunk_head(out, rows[i].n);

        out[n] = '\0';
        T_STR_EQ(out, rows[i].text);
    }
}

int main(void)
{
    T_RUN(refused_table);
    T_RUN(accepted_table);
    T_RUN(splits_do_not_matter);
    T_RUN(head_stops_at_its_end);
    T_RUN(line_limit);
    T_RUN(head_limit);
    T_RUN(field_limit);
    T_RUN(basic_credentials);
    T_RUN(requests_are_rewritten);
    T_RUN(responses_are_rewritten);
    T_RUN(persistence_of_origins);
    T_RUN(chunked_table);
    T_RUN(chunk_limits);
    T_RUN(chunked_random);
    T_RUN(length_and_close);
    T_RUN(chunk_heads);
    return t_done();
}
