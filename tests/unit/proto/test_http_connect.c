/* The client side of CONNECT: what is asked, and answers of every kind at every split point. */
#include "proto/http_connect.h"

#include <errno.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/err.h"
#include "tap.h"

static struct cv_target target(const char *host, uint16_t port)
{
    struct cv_target t = {.port = port};
    T_INT_EQ(cv_host_parse(host, strlen(host), &t.host), 0);
    return t;
}

static void test_request(void)
{
    static const struct {
        const char *host;
        uint16_t port;
        const char *user, *pass, *out;
    } t[] = {
        {"example.test", 443, NULL, NULL,
         "CONNECT example.test:443 HTTP/1.1\r\nHost: example.test:443\r\n"
         "Proxy-Connection: keep-alive\r\n\r\n"},
        {"192.0.2.1", 80, NULL, NULL,
         "CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: 192.0.2.1:80\r\n"
         "Proxy-Connection: keep-alive\r\n\r\n"},
        {"2001:db8::1", 443, NULL, NULL,
         "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n"
         "Proxy-Connection: keep-alive\r\n\r\n"},
        {"a.test", 1, "Aladdin", "open sesame",
         "CONNECT a.test:1 HTTP/1.1\r\nHost: a.test:1\r\n"
         "Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n"
         "Proxy-Connection: keep-alive\r\n\r\n"},
        {"a.test", 1, "u", "",
         "CONNECT a.test:1 HTTP/1.1\r\nHost: a.test:1\r\n"
         "Proxy-Authorization: Basic dTo=\r\nProxy-Connection: keep-alive\r\n\r\n"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        char out[CV_HTTP_CONNECT_REQUEST_MAX + 1];
        struct cv_target to = target(t[i].host, t[i].port);
        size_t n = cv_http_connect_request(out, &to, t[i].user, t[i].user ? strlen(t[i].user) : 0,
                                           t[i].pass, t[i].pass ? strlen(t[i].pass) : 0);
        out[n] = '\0';
        T_STR_EQ(out, t[i].out);
    }
}

/* The longest of everything fits, and our own parser reads it back. */
static void test_longest_request(void)
{
    char name[254], user[255], pass[255], out[CV_HTTP_CONNECT_REQUEST_MAX], login[600];
    memset(name, 'a', sizeof(name));
    for (size_t i = 63; i < sizeof(name); i += 64)
        name[i] = '.';
    name[253] = '\0';
    memset(user, 'A', sizeof(user));
    memset(pass, 'B', sizeof(pass));
    struct cv_target to = target(name, 65535);
    size_t n = cv_http_connect_request(out, &to, user, 255, pass, 255);
    static struct cv_http1_request r;
    struct cv_http1_fault fault;
    struct cv_http1_str u, p;
    T_INT_EQ(cv_http1_request_parse(&r, out, n, &fault), 0);
    T_INT_EQ(r.kind, CV_HTTP1_CONNECT);
    T_INT_EQ(r.authority.len, 253 + 6);
    T_REQUIRE(r.head.count[CV_HTTP1_PROXY_AUTHORIZATION] == 1);
    struct cv_http1_str v = r.head.fields[r.head.last[CV_HTTP1_PROXY_AUTHORIZATION]].value;
    T_INT_EQ(cv_http1_basic_parse(v, login, sizeof(login), &u, &p), 0);
    T_INT_EQ(u.len, 255);
    T_INT_EQ(p.len, 255);
    T_MEM_EQ(u.p, user, 255);
    T_MEM_EQ(p.p, pass, 255);
}

/* Run a whole answer with the first 'first' bytes in one piece and the rest in pieces of 'step';
 * each call sees memory of exact size. Returns the result; *ret_used in total. */
static int talk(const char *in, size_t len, size_t first, size_t step, struct cv_http_connect *c,
                size_t *ret_used)
{
    size_t have = CV_MIN(first, len), off = 0;
    *c = (struct cv_http_connect){0};
    for (;;) {
        size_t used;
        uint8_t *p = cv_alloc(have - off + 1);
        memcpy(p, in + off, have - off);
        int ret = cv_http_connect_step(c, p, have - off, &used);
        cv_free(p);
        off += used;
        *ret_used = off;
        if (ret != CV_E_MORE || have == len)
            return ret;
        have = CV_MIN(have + step, len);
    }
}

static void test_answers(void)
{
    static const struct {
        const char *in; /* '|' marks where the head ends; what follows is payload */
        int ret;
        unsigned status;
    } t[] = {
        {"HTTP/1.1 200 Connection established\r\n\r\n|", 0, 200},
        {"HTTP/1.1 200 Connection established\r\n\r\n|SSH-2.0-x\r\n\r\n", 0, 200},
        {"HTTP/1.0 200 OK\r\nProxy-Agent: x\r\n\r\n|", 0, 200},
        {"HTTP/1.1 200\r\n\r\n|", 0, 200},
        {"HTTP/1.1 204 No Content\r\n\r\n|x", 0, 204},
        {"HTTP/1.1 299 Odd\r\n\r\n|x", 0, 299},
        /* RFC 9110 9.3.6: these mean nothing in a good answer to CONNECT. */
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n|hello", 0, 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n|5\r\nhello", 0, 200},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Wait\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n|B",
         0, 200},
        {"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n"
         "Content-Length: 3\r\n\r\n|who",
         CV_E_UNAVAILABLE, 407},
        {"HTTP/1.1 403 Forbidden\r\n\r\n|", CV_E_UNAVAILABLE, 403},
        {"HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n|", CV_E_UNAVAILABLE, 503},
        {"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n|", CV_E_UNAVAILABLE, 302},
        {"HTTP/1.1 999 Odd\r\n\r\n|", CV_E_UNAVAILABLE, 999},
        {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n|",
         CV_E_PROTO, 101},
        {"HTTP/2 200 OK\r\n\r\n", CV_E_PROTO, 0},
        {"HTTP/1.1 20 OK\r\n\r\n", CV_E_PROTO, 0},
        {"HTTP/1.1 099 OK\r\n\r\n", CV_E_PROTO, 0},
        {"ICY 200 OK\r\n\r\n", CV_E_PROTO, 0},
        {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", CV_E_PROTO, 0},
        {"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", CV_E_PROTO, 0},
        {"HTTP/1.1 200 OK\r\nA: b\x01\r\n\r\n", CV_E_PROTO, 0},
        {"HTTP/1.1 200 OK\n\n", CV_E_PROTO, 0},
        {"\x05\x00\x05\x00\r\n\r\n", CV_E_PROTO, 0},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        char in[400];
        const char *bar = strchr(t[i].in, '|');
        size_t head = bar != NULL ? (size_t)(bar - t[i].in) : strlen(t[i].in);
        size_t len = strlen(t[i].in) - (bar != NULL);
        memcpy(in, t[i].in, head);
        if (bar != NULL)
            memcpy(in + head, bar + 1, len - head);
        for (size_t first = 0; first <= len; first++) {
            struct cv_http_connect c;
            size_t used;
            int ret = talk(in, len, first, first % 3 == 0 ? 1 : len, &c, &used);
            if (!T_INT_EQ(ret, t[i].ret))
                printf("#   row %zu first %zu\n", i, first);
            if (ret == CV_E_PROTO && t[i].status == 0)
                continue;
            T_INT_EQ(used, head);
            T_INT_EQ(c.status, t[i].status);
        }
        /* Cut short, a good beginning is waited for. */
        for (size_t cut = 0; t[i].ret == 0 && cut < head; cut++) {
            struct cv_http_connect c;
            size_t used;
            T_INT_EQ(talk(in, cut, cut, 1, &c, &used), CV_E_MORE);
        }
    }
}

/* Endless heads end: one long one, and many short ones. */
static void test_limits(void)
{
    static char in[3 * CV_HTTP_CONNECT_REPLY_MAX];
    static const size_t steps[] = {1, 7, 512, sizeof(in)};
    struct cv_http_connect c;
    size_t used;
    for (size_t i = 0; i < CV_ARRAY_SIZE(steps); i++) {
        memset(in, 'x', sizeof(in));
        memcpy(in, "HTTP/1.1 200 OK\r\nA: ", 20);
        T_INT_EQ(talk(in, sizeof(in), steps[i], steps[i], &c, &used), CV_E_LIMIT);
        /* Exactly the limit is good. */
        memcpy(in + CV_HTTP_CONNECT_REPLY_MAX - 4, "\r\n\r\n", 4);
        T_INT_EQ(talk(in, sizeof(in), steps[i], steps[i], &c, &used), 0);
        T_INT_EQ(used, CV_HTTP_CONNECT_REPLY_MAX);
        memcpy(in + CV_HTTP_CONNECT_REPLY_MAX - 4, "x\r\n\r\n", 5);
        T_INT_EQ(talk(in, sizeof(in), steps[i], steps[i], &c, &used), CV_E_LIMIT);
        static const char wait[] = "HTTP/1.1 100 \r\n\r\n";
        for (size_t at = 0; at + sizeof(wait) < sizeof(in); at += sizeof(wait) - 1)
            memcpy(in + at, wait, sizeof(wait) - 1);
        T_INT_EQ(talk(in, sizeof(in), steps[i], steps[i], &c, &used), CV_E_LIMIT);
    }
}

static void test_status_err(void)
{
    T_INT_EQ(cv_http_connect_status_err(407), CV_E_AUTH);
    T_INT_EQ(cv_http_connect_status_err(401), CV_E_AUTH);
    T_INT_EQ(cv_http_connect_status_err(403), CV_E_POLICY);
    T_INT_EQ(cv_http_connect_status_err(504), -ETIMEDOUT);
    T_INT_EQ(cv_http_connect_status_err(502), CV_E_UNAVAILABLE);
    T_INT_EQ(cv_http_connect_status_err(503), CV_E_UNAVAILABLE);
    T_INT_EQ(cv_http_connect_status_err(302), CV_E_UNAVAILABLE);
}

int main(void)
{
    T_RUN(test_request);
    T_RUN(test_longest_request);
    T_RUN(test_answers);
    T_RUN(test_limits);
    T_RUN(test_status_err);
    return t_done();
}
