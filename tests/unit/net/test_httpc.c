#include "net/httpc.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "net/tcp.h"
#include "tap.h"

/* One server that is driven between turns of the loop: it answers each connection's first request
 * with 'answer', in pieces of 'piece' bytes, one a turn. */
static struct {
    struct cv_loop *loop;
    struct cv_httpc *client;
    int listener, conn;
    char url[64];
    const char *answer;
    size_t len, at, piece;
    char request[2048];
    size_t request_len;
    /* What came. */
    unsigned answers;
    int err;
    unsigned status;
    char body[256], header[64];
} t;

static void begin(void)
{
    struct cv_sockaddr sa;
    struct sockaddr_in in;
    socklen_t len = sizeof(in);
    struct cv_tcp_listen_opts opts = {0};
    memset(&t, 0, sizeof(t));
    t.conn = -1;
    t.piece = SIZE_MAX;
    if (cv_loop_new(&t.loop) != 0 || cv_httpc_new(t.loop, &t.client) != 0 ||
        cv_sockaddr_parse("127.0.0.1:0", &sa) != 0 || cv_tcp_listen(&sa, &opts, &t.listener) != 0 ||
        getsockname(t.listener, (struct sockaddr *)&in, &len) != 0)
        abort();
    snprintf(t.url, sizeof(t.url), "http://127.0.0.1:%u/x", ntohs(in.sin_port));
}

static void end(void)
{
    cv_httpc_free(t.client);
    cv_loop_turn(t.loop, 0);
    T_INT_EQ(cv_loop_io_count(t.loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(t.loop)), 0);
    cv_loop_free(t.loop);
    if (t.conn >= 0)
        close(t.conn);
    close(t.listener);
}

static void serve(void)
{
    if (t.conn < 0) {
        t.conn = accept4(t.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        t.at = t.request_len = 0;
        return;
    }
    ssize_t n = read(t.conn, t.request + t.request_len, sizeof(t.request) - 1 - t.request_len);
    t.request_len += n > 0 ? (size_t)n : 0;
    t.request[t.request_len] = '\0';
    if (strstr(t.request, "\r\n\r\n") == NULL || t.answer == NULL)
        return;
    size_t k = CV_MIN(t.piece, t.len - t.at);
    n = k > 0 ? send(t.conn, t.answer + t.at, k, MSG_NOSIGNAL) : 0;
    t.at += n > 0 ? (size_t)n : 0;
    if (t.at == t.len || n < 0) {
        close(t.conn);
        t.conn = -1;
    }
}

static void on_answer(void *arg, const struct cv_httpc_answer *a)
{
    (void)arg;
    const char *h = cv_httpc_header(a->call, "X-Thing");
    t.answers++;
    t.err = a->err;
    t.status = a->status;
    T_OK(a->text != NULL);
    snprintf(t.body, sizeof(t.body), "%.*s", (int)a->body_len, a->body_len > 0 ? a->body : "");
    snprintf(t.header, sizeof(t.header), "%s", h != NULL ? h : "");
}

/* Ask and wait for the one answer. */
static void ask(const char *url, size_t max, int64_t timeout_ms)
{
    static const char *const headers[] = {"Authorization: Bearer x"};
    struct cv_httpc_request r = {
        .url = url, .headers = headers, .n_headers = 1, .timeout_ms = timeout_ms, .max_bytes = max};
    struct cv_httpc_call *call = NULL;
    unsigned before = t.answers;
    int64_t over = cv_clock_mono_ms() + 20000;
    T_INT_EQ(cv_httpc_get(t.client, &r, on_answer, NULL, &call), 0);
    T_INT_EQ(t.answers, before); /* never from inside */
    while (t.answers == before && cv_clock_mono_ms() < over) {
        cv_loop_turn(t.loop, 1);
        serve();
    }
    T_INT_EQ(t.answers, before + 1);
}

static void answer_with(const char *text)
{
    t.answer = text;
    t.len = strlen(text);
}

static void test_answer(void)
{
    begin();
    answer_with("HTTP/1.1 200 OK\r\nX-Thing: some\r\nContent-Length: 5\r\n\r\nhello");
    for (t.piece = 1; t.piece < 100; t.piece += 13) {
        ask(t.url, 100, 10000);
        T_INT_EQ(t.err, 0);
        T_INT_EQ(t.status, 200);
        T_STR_EQ(t.body, "hello");
        T_STR_EQ(t.header, "some");
        T_OK(strncmp(t.request, "GET /x HTTP/1.1\r\n", 17) == 0);
        T_OK(strstr(t.request, "\r\nAuthorization: Bearer x\r\n") != NULL);
    }
    end();
}

/* A redirect is an answer; nothing goes where it points. */
static void test_redirect(void)
{
    begin();
    answer_with("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
    ask(t.url, 100, 10000);
    T_INT_EQ(t.err, 0);
    T_INT_EQ(t.status, 302);
    end();
}

static void test_bounds(void)
{
    begin();
    answer_with("HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\nx");
    ask(t.url, 100, 10000);
    T_INT_EQ(t.err, CV_E_LIMIT);
    answer_with("HTTP/1.1 200 OK\r\n\r\n0123456789");
    ask(t.url, 9, 10000);
    T_INT_EQ(t.err, CV_E_LIMIT);
    answer_with("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123");
    ask(t.url, 100, 10000);
    T_OK(t.err != 0); /* cut off */
    answer_with("nonsense\r\n\r\n");
    ask(t.url, 100, 10000);
    T_OK(t.err != 0);
    t.answer = NULL; /* silence */
    ask(t.url, 100, 150);
    T_INT_EQ(t.err, -ETIMEDOUT);
    end();
}

static void test_refused(void)
{
    begin();
    close(t.listener);
    t.listener = -1;
    ask(t.url, 100, 10000);
    T_INT_EQ(t.err, -ECONNREFUSED);
    struct cv_httpc_call *call = NULL;
    struct cv_httpc_request r = {.url = "file:///etc/passwd", .timeout_ms = 100, .max_bytes = 10};
    T_INT_EQ(cv_httpc_get(t.client, &r, on_answer, NULL, &call), CV_E_INVALID);
    end();
}

static void test_cancel(void)
{
    begin();
    struct cv_httpc_request r = {.url = t.url, .timeout_ms = 10000, .max_bytes = 10};
    struct cv_httpc_call *calls[3];
    for (size_t i = 0; i < CV_ARRAY_SIZE(calls); i++)
        T_INT_EQ(cv_httpc_get(t.client, &r, on_answer, NULL, &calls[i]), 0);
    cv_httpc_cancel(calls[0]);
    cv_httpc_cancel(NULL);
    for (int i = 0; i < 20; i++) {
        cv_loop_turn(t.loop, 1);
        serve();
    }
    cv_httpc_cancel(calls[1]);
    T_INT_EQ(t.answers, 0);
    end(); /* with one that runs */
    T_INT_EQ(t.answers, 0);
}

int main(void)
{
    T_RUN(test_answer);
    T_RUN(test_redirect);
    T_RUN(test_bounds);
    T_RUN(test_refused);
    T_RUN(test_cancel);
    return t_done();
}
