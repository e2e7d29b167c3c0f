/* The whole HTTP inbound on a real loop with sockets; only the way out is played by the test. */
#include "inbound_util.h"

#include "common/log.h"
#include "common/rand.h"
#include "common/torture.h"
#include "inbound/http_priv.h"

#define AUTH               "Proxy-Authorization: Basic dTpw\r\n" /* u:p */
#define WRONG              "Proxy-Authorization: Basic dTpx\r\n"
#define GET(host, path)    "GET http://" host path " HTTP/1.1\r\nHost: " host "\r\n" AUTH "\r\n"
#define SEEN(host, path)   "GET " path " HTTP/1.1\r\nHost: " host "\r\n\r\n"
#define POST(host, more)   "POST http://" host "/ HTTP/1.1\r\nHost: " host "\r\n" AUTH more "\r\n"
#define POSTED(host, more) "POST / HTTP/1.1\r\nHost: " host "\r\n" more "\r\n"
#define OK(body, len)      "HTTP/1.1 200 OK\r\nContent-Length: " len "\r\n\r\n" body
#define ESTABLISHED        "HTTP/1.1 200 Connection Established\r\n\r\n"

void cv_socks5_serve(const struct cv_inbound *in)
{
    cv_stream_close(in->stream, false);
}

/* Whom the certificates of new clients name. */
static struct cv_rcstr *certificate_user;

static int serve_fd(struct rig *g, const int fds[2])
{
    struct cv_inbound in = rig_inbound(g, rig_adopt(g, fds[0]));
    in.user = certificate_user;
    cv_http_serve(&in);
    return fds[1];
}

static int client(struct rig *g)
{
    int fds[2];
    rig_pair(fds);
    return serve_fd(g, fds);
}

static int tcp_client(struct rig *g)
{
    int fds[2];
    rig_tcp_pair(fds);
    return serve_fd(g, fds);
}

static struct http_conn *only_conn(struct rig *g)
{
    return CV_CONTAINER_OF(g->w->sessions.prev, struct http_conn, super._node);
}

/* ---- Reading whole answers ---- */

static char answer[64 << 10]; /* head and body of the last one, NUL-terminated */
static const char *answer_body;

/* Read one response with a Content-Length (none when 'head'), and check its status. */
static bool hear_status(struct rig *g, int fd, unsigned status, bool head)
{
    size_t n = 0, need = SIZE_MAX;
    int64_t end = cv_clock_mono_ms() + 60000;

    answer_body = "";
    while (n < need && n + 1 < sizeof(answer) && cv_clock_mono_ms() < end) {
        ssize_t rc = recv(fd, answer + n, 1, 0);
        if (rc == 0 || (rc < 0 && errno != EAGAIN))
            break;
        if (rc < 0) {
            cv_loop_turn(g->w->loop, 5);
            continue;
        }
        answer[++n] = '\0';
        if (need == SIZE_MAX && n > 4 && memcmp(answer + n - 4, "\r\n\r\n", 4) == 0) {
            const char *cl = strstr(answer, "Content-Length: ");
            answer_body = answer + n;
            need = n + (cl != NULL && !head ? strtoul(cl + 16, NULL, 10) : 0);
        }
    }
    answer[n] = '\0';
    char want[32];
    snprintf(want, sizeof(want), "HTTP/1.1 %u ", status);
    bool ok = n == need && strncmp(answer, want, strlen(want)) == 0;
    if (!ok)
        printf("#   wanted %u, got: %s\n", status, answer);
    return ok;
}
#define HEAR_STATUS(g, fd, status) T_OK(hear_status((g), (fd), (status), false))
#define ANSWER_HAS(text)           T_OK(strstr(answer, text) != NULL)
#define ANSWER_LACKS(text)         T_OK(strstr(answer, text) == NULL)

/* Everything that comes until the end of the stream. */
static size_t hear_all(struct rig *g, int fd, uint8_t *buf, size_t cap)
{
    size_t n = 0;
    int64_t end = cv_clock_mono_ms() + 60000;

    while (n < cap && cv_clock_mono_ms() < end) {
        ssize_t rc = recv(fd, buf + n, cap - n, 0);
        if (rc > 0)
            n += (size_t)rc;
        else if (rc == 0 || errno != EAGAIN)
            break;
        else
            cv_loop_turn(g->w->loop, 5);
    }
    return n;
}

/* An origin connection for the dial that waits. */
static int accept_dial(struct rig *g, const char *target)
{
    TURN_UNTIL(g, g->dial != NULL);
    T_STR_EQ(g->dialled, target);
    return rig_dial_ok(g);
}

/* ---- CONNECT ---- */

static void test_connect(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "CONNECT Example.TEST:443 HTTP/1.1\r\nHost: x\r\n" AUTH "\r\n");
    TURN_UNTIL(g, g->dial != NULL);
    HEAR_NOTHING(g, fd);
    int origin = accept_dial(g, "example.test:443");
    HEAR(g, fd, ESTABLISHED);
    SAY(fd, "up");
    HEAR(g, origin, "up");
    SAY(origin, "down!");
    HEAR(g, fd, "down!");
    T_OK(only_conn(g)->work == NULL); /* a tunnel keeps nothing of the handshake */
    T_OK(sizeof(struct http_conn) < 800);
    shutdown(fd, SHUT_WR);
    HEAR_END(g, origin);
    SAY(origin, "more");
    HEAR(g, fd, "more");
    close(origin);
    HEAR_END(g, fd);
    close(fd);
    TURN_UNTIL(g, alog_lines == 1);
    T_OK(log_has("\"protocol\":\"http\""));
    T_OK(log_has("\"username\":\"u\""));
    T_OK(log_has("\"target_host\":\"example.test\""));
    T_OK(log_has("\"target_port\":443"));
    T_OK(log_has("\"result\":\"ok\""));
    T_OK(log_has("\"bytes_up\":2"));
    T_OK(log_has("\"bytes_down\":9"));
    rig_free(g);
}

/* At each split point, and byte by byte; what follows the head reaches the origin once. */
static void test_connect_splits(void)
{
    static const char hello[] = "CONNECT 1.2.3.4:80 HTTP/1.1\r\n" AUTH "\r\n\x16\x03\x01hello";
    const size_t len = sizeof(hello) - 1;
    struct rig *g = rig_new();

    for (size_t cut = 0; cut < len; cut++) {
        int fd = client(g);

        for (size_t i = 0; cut == 0 && i < len; i++) {
            say(fd, hello + i, 1);
            rig_settle(g);
        }
        if (cut > 0) {
            say(fd, hello, cut);
            rig_settle(g);
            say(fd, hello + cut, len - cut);
        }
        int origin = accept_dial(g, "1.2.3.4:80");
        HEAR(g, fd, ESTABLISHED);
        HEAR(g, origin, "\x16\x03\x01hello");
        HEAR_NOTHING(g, origin);
        close(fd);
        close(origin);
        TURN_UNTIL(g, g->w->n_sessions == 0);
    }
    rig_free(g);
}

static void test_authorities(void)
{
    static const struct {
        const char *authority, *dialled; /* NULL: 400 */
    } rows[] = {
        {"[::1]:443", "[::1]:443"},
        {"[::ffff:127.0.0.1]:80", "127.0.0.1:80"},
        {"Host.EXAMPLE.:80", "host.example:80"},
        {"0x7f.1:80", "127.0.0.1:80"},
        {"[::1]", NULL},
        {"::1:443", NULL},
        {"[::1%25lo]:443", NULL},
        {"h", NULL},
        {"h:", NULL},
        {"h:0", NULL},
        {"h:65536", NULL},
        {"h:80x", NULL},
        {"u@h:80", NULL},
        {"http://h:80/", NULL},
        {"/", NULL},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = client(g);
        char head[256];
        int n =
            snprintf(head, sizeof(head), "CONNECT %s HTTP/1.1\r\n" AUTH "\r\n", rows[i].authority);

        say(fd, head, (size_t)n);
        if (rows[i].dialled != NULL) {
            int origin = accept_dial(g, rows[i].dialled);
            HEAR(g, fd, ESTABLISHED);
            close(origin);
        } else {
            HEAR_STATUS(g, fd, 400);
            T_INT_EQ(g->dials, 0);
            TURN_UNTIL(g, alog_lines == 1);
            T_OK(log_has("\"failure_stage\":\"parse\""));
        }
        close(fd);
        rig_free(g);
    }
}

/* What follows a refused CONNECT in the same write was meant for a tunnel. */
static void test_connect_refused_glued(void)
{
    static const struct {
        const char *head;
        unsigned status;
    } rows[] = {
        {"CONNECT a.test:1 HTTP/1.1\r\n\r\n", 407},
        {"CONNECT blocked.test:1 HTTP/1.1\r\n" AUTH "\r\n", 403},
        {"CONNECT a.test:1 HTTP/1.1\r\n" AUTH "\r\n", 502},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        for (int glued = 0; glued <= 1; glued++) {
            struct rig *g = rig_new();
            int fd = tcp_client(g);
            char text[512];
            int n = snprintf(text, sizeof(text), "%s%s", rows[i].head,
                             glued ? GET("evil.test", "/") : "");

            say(fd, text, (size_t)n);
            if (rows[i].status == 502) {
                TURN_UNTIL(g, g->dial != NULL);
                rig_dial_fail(g, CV_STAGE_DIAL, -ECONNREFUSED);
            }
            HEAR_STATUS(g, fd, rows[i].status);
            if (glued) {
                ANSWER_HAS("Connection: close\r\n");
                HEAR_END(g, fd);
            } else {
                ANSWER_LACKS("Connection: close");
                HEAR_NOTHING(g, fd);
                SAY(fd, "CONNECT b.test:2 HTTP/1.1\r\n" AUTH "\r\n");
                int origin = accept_dial(g, "b.test:2");
                HEAR(g, fd, ESTABLISHED);
                close(origin);
            }
            T_INT_EQ(g->dials, (rows[i].status == 502) + !glued);
            close(fd);
            rig_free(g);
        }
    }
}

/* ---- Logins ---- */

static void test_login_again(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n");
    HEAR_STATUS(g, fd, 407);
    ANSWER_HAS("Proxy-Authenticate: Basic realm=\"culvert\"\r\n");
    ANSWER_HAS("Content-Length: ");
    ANSWER_LACKS("Connection: close");
    T_OK(log_has("\"failure_stage\":\"auth\""));
    SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n" WRONG "\r\n");
    HEAR_STATUS(g, fd, 407);
    T_OK(log_has("\"username\":\"u\""));
    SAY(fd, "HEAD http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n");
    T_OK(hear_status(g, fd, 407, true));
    HEAR_NOTHING(g, fd); /* no body */
    SAY(fd, GET("a.test", "/"));
    int origin = accept_dial(g, "a.test:80");
    HEAR(g, origin, SEEN("a.test", "/"));
    SAY(origin, OK("hi", "2"));
    HEAR(g, fd, OK("hi", "2"));
    close(origin);
    close(fd);
    rig_free(g);
}

static void test_login_tries(void)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);

    for (int i = 1; i <= CV_HTTP_TRIES_MAX; i++) {
        SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\n" WRONG "\r\n");
        HEAR_STATUS(g, fd, 407);
        T_INT_EQ(strstr(answer, "Connection: close") != NULL, i == CV_HTTP_TRIES_MAX);
    }
    HEAR_END(g, fd);
    close(fd);
    T_INT_EQ(rig_refused(g, CV_STAGE_AUTH), CV_HTTP_TRIES_MAX);
    rig_free(g);
}

static void test_login_rejects(void)
{
    static const struct {
        const char *fields;
        unsigned status;
    } rows[] = {
        {"Proxy-Authorization: Basic bzpw\r\n", 407},     /* unknown user */
        {"Proxy-Authorization: Basic b2xkOnA=\r\n", 403}, /* expired */
        {"Proxy-Authorization: Basic Og==\r\n", 407},
        {"Proxy-Authorization: Basic dTo=\r\n", 407},
        {"Proxy-Authorization: Basic dTpw=\r\n", 407},
        {"Proxy-Authorization: Bearer dTpw\r\n", 407},
        {"Authorization: Basic dTpw\r\n", 407},
        {AUTH AUTH, 400},
        {AUTH WRONG, 400},
        {"Proxy-Authorization: Basic\r\n dTpw\r\n", 400}, /* folded */
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = client(g);
        char text[512];
        int n = snprintf(text, sizeof(text),
                         "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n%s\r\n", rows[i].fields);

        say(fd, text, (size_t)n);
        if (!T_OK(hear_status(g, fd, rows[i].status, false)))
            printf("#   %s", rows[i].fields);
        T_INT_EQ(strstr(answer, "Proxy-Authenticate") != NULL, rows[i].status == 407);
        T_INT_EQ(g->dials, 0);
        close(fd);
        rig_free(g);
    }
}

static void test_login_schemes(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\npRoXy-aUtHoRiZaTiOn:bAsIc   dTpw \r\n\r\n");
    close(accept_dial(g, "a.test:443"));
    HEAR(g, fd, ESTABLISHED);
    close(fd);
    rig_free(g);
}

/* The refused body is taken off the connection, which then goes on. */
static void test_login_with_body(void)
{
    enum { MIB = 1 << 20 };
    static const struct {
        size_t len;
        bool chunked, expect, goes_on;
    } rows[] = {
        {MIB, false, false, true}, {MIB + 1, false, false, false}, {5, false, false, true},
        {5, false, true, false},   {200000, true, false, true},    {2 * MIB, true, false, false},
    };
    static char body[4096];
    memset(body, 'b', sizeof(body));

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g);
        char head[256], framing[64];

        snprintf(framing, sizeof(framing),
                 rows[i].chunked ? "Transfer-Encoding: chunked\r\n" : "Content-Length: %zu\r\n",
                 rows[i].len);
        int n = snprintf(head, sizeof(head), "POST http://a.test/ HTTP/1.1\r\nHost: a\r\n%s%s\r\n",
                         framing, rows[i].expect ? "Expect: 100-continue\r\n" : "");
        say(fd, head, (size_t)n);
        bool dead = false;
        for (size_t left = rows[i].len; left > 0 && !dead;) {
            char piece[5000];
            size_t want = CV_MIN(left, sizeof(body));
            int len = rows[i].chunked ? snprintf(piece, sizeof(piece), "%zx;x=y\r\n%.*s\r\n", want,
                                                 (int)want, body)
                                      : snprintf(piece, sizeof(piece), "%.*s", (int)want, body);
            for (int at = 0; at < len && !dead;) {
                ssize_t rc = send(fd, piece + at, (size_t)(len - at), MSG_NOSIGNAL);
                if (rc > 0)
                    at += (int)rc;
                else if (errno == EAGAIN)
                    cv_loop_turn(g->w->loop, 1);
                else
                    dead = true;
            }
            left -= want;
        }
        if (rows[i].chunked && !dead)
            (void)!send(fd, "0\r\nX: y\r\n\r\n", 11, MSG_NOSIGNAL);
        T_OK(!dead || !rows[i].goes_on);
        HEAR_STATUS(g, fd, 407);
        bool says_close = strstr(answer, "Connection: close") != NULL;
        /* The length of a chunked body shows too late for saying so. */
        T_INT_EQ(says_close, !rows[i].goes_on && !rows[i].chunked);
        if (rows[i].goes_on) {
            SAY(fd, GET("a.test", "/"));
            int origin = accept_dial(g, "a.test:80");
            HEAR(g, origin, SEEN("a.test", "/"));
            SAY(origin, OK("", "0"));
            HEAR(g, fd, OK("", "0"));
            close(origin);
        } else {
            T_OK(hear_end(g, fd, false) <= 0);
        }
        close(fd);
        rig_free(g);
    }
}

static void test_no_auth_user(void)
{
    struct rig *g = rig_new();
    g->conf->no_auth_user = cv_strdup("u");
    int fd = client(g);

    SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\n" WRONG "\r\n");
    HEAR_STATUS(g, fd, 407); /* what is given is checked */
    SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\n\r\n");
    close(accept_dial(g, "a.test:443"));
    HEAR(g, fd, ESTABLISHED);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_OK(log_has("\"username\":\"u\""));
    rig_free(g);
}

static void test_certificate(void)
{
    static const struct {
        const char *user; /* of the certificate */
        const char *login;
        unsigned status; /* 0: it goes out */
    } t[] = {
        {"u", "", 0},
        {"u", AUTH, 0},
        {"u", WRONG, 407},
        {"u", "Proxy-Authorization: Basic b25lOnA=\r\n", 407}, /* one:p, who is another user */
        {"u", "Proxy-Authorization: Bearer x\r\n", 407},
        {"nobody", "", 403}, /* not the listener's user */
        {"nobody", AUTH, 407},
        {"old", "", 403},
    };
    char request[200];
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct rig *g = rig_new();
        int before = t_case_failed;
        g->conf->no_auth_user = cv_strdup("one");
        certificate_user = cv_rcstr_new(t[i].user, strlen(t[i].user));
        int fd = client(g);
        cv_rcstr_unref(certificate_user); /* the connection has its own */
        certificate_user = NULL;
        snprintf(request, sizeof(request), "CONNECT a.test:443 HTTP/1.1\r\n%s\r\n", t[i].login);
        for (int k = 0; k < 2 && t[i].status != 0; k++) { /* it holds for all of a connection */
            say(fd, request, strlen(request));
            HEAR_STATUS(g, fd, t[i].status);
        }
        if (t[i].status == 0) {
            say(fd, request, strlen(request));
            close(accept_dial(g, "a.test:443"));
            HEAR(g, fd, ESTABLISHED);
        }
        close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_OK(t[i].status != 0 || log_has("\"username\":\"u\""));
        rig_free(g);
        if (t_case_failed != before)
            printf("#   row %zu\n", i);
    }
}

/* A password whose check takes its time on another thread. */
static void argon_policy(struct rig *g)
{
    char hash[256], json[1024];

    T_INT_EQ(cv_passwd_hash(CV_PASSWD_ARGON2ID, "p", 1, hash, sizeof(hash)), 0);
    snprintf(json, sizeof(json),
             "{\"schema_version\":1,\"version\":8,\"users\":{\"u\":{\"password\":\"%s\","
             "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{}}}",
             hash);
    rig_policy(g, json);
}

static void test_login_slow(void)
{
    struct rig *g = rig_new();
    argon_policy(g);
    int fd = client(g);

    SAY(fd, "CONNECT a.test:443 HTTP/1.1\r\n" AUTH "\r\nearly");
    TURN_UNTIL(g, only_conn(g)->state == HTTP_STATE_AUTH);
    SAY(fd, " bird");
    int origin = accept_dial(g, "a.test:443");
    HEAR(g, fd, ESTABLISHED);
    HEAR(g, origin, "early bird");
    close(origin);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);

    fd = client(g); /* a wrong one, then the client leaves while the next is checked */
    SAY(fd, "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n" WRONG "\r\n");
    HEAR_STATUS(g, fd, 407);
    SAY(fd, "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n" WRONG "\r\n");
    TURN_UNTIL(g, only_conn(g)->state == HTTP_STATE_AUTH);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_OK(log_has("\"failure_stage\":\"auth\""));
    rig_free(g);
}

/* ---- Forwarding ---- */

static void test_forward(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "GET http://Example.TEST:8080/x?y=z HTTP/1.1\r\nHost: other\r\nUser-Agent: t\r\n" AUTH
            "Proxy-Connection: keep-alive\r\nConnection: X-Hop\r\nX-Hop: 1\r\nCookie: c\r\n\r\n");
    int origin = accept_dial(g, "example.test:8080");
    HEAR(g, origin,
         "GET /x?y=z HTTP/1.1\r\nHost: example.test:8080\r\nUser-Agent: t\r\n"
         "Cookie: c\r\n\r\n");
    HEAR_NOTHING(g, origin);
    SAY(origin, "HTTP/1.1 200 Fine\r\nServer: s\r\nKeep-Alive: timeout=5\r\n"
                "Connection: keep-alive\r\nContent-Length: 5\r\nSet-Cookie: a\r\n"
                "Set-Cookie: b\r\n\r\nhe");
    HEAR(g, fd,
         "HTTP/1.1 200 Fine\r\nServer: s\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
         "Content-Length: 5\r\n\r\nhe");
    SAY(origin, "llo");
    HEAR(g, fd, "llo");
    TURN_UNTIL(g, alog_lines == 1);
    T_OK(log_has("\"protocol\":\"http\""));
    T_OK(log_has("\"target_host\":\"example.test\""));
    T_OK(log_has("\"target_port\":8080"));
    T_OK(log_has("\"result\":\"ok\""));
    T_OK(log_has("\"snapshot_version\":7"));
    close(origin);
    close(fd);
    rig_free(g);
    T_INT_EQ(alog_lines, 1); /* waiting for a request that never came is no session */
}

/* Each request to its own origin, each decided afresh. */
static void test_forward_each_its_own(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/1"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/1"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    SAY(fd, GET("blocked.test", "/2"));
    HEAR_STATUS(g, fd, 403);
    T_OK(log_has("\"failure_stage\":\"policy\""));
    T_OK(log_has("\"decision\":\"block\""));
    SAY(fd, GET("b.test", "/3"));
    int b = accept_dial(g, "b.test:80");
    HEAR(g, b, SEEN("b.test", "/3"));
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    HEAR_END(g, a); /* one origin connection per client */
    SAY(fd, GET("a.test", "/4"));
    int a2 = accept_dial(g, "a.test:80");
    HEAR(g, a2, SEEN("a.test", "/4"));
    SAY(a2, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    T_INT_EQ(g->dials, 3);
    TURN_UNTIL(g, alog_lines == 4);
    close(a), close(b), close(a2), close(fd);
    rig_free(g);
}

static void test_forward_reuse(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/1"));
    int a = accept_dial(g, "a.test:80");
    for (int i = 0; i < 5; i++) {
        HEAR(g, a, SEEN("a.test", "/1"));
        SAY(a, OK("A", "1"));
        HEAR(g, fd, OK("A", "1"));
        if (i < 4)
            SAY(fd, GET("a.test", "/1"));
    }
    T_INT_EQ(g->dials, 1);
    T_INT_EQ(alog_lines, 5);
    T_OK(log_has("\"egress\":\"direct\""));
    T_OK(log_has("\"snapshot_version\":7"));

    /* A request that may not be repeated gets a connection of its own. */
    SAY(fd, POST("a.test", "Content-Length: 1\r\n") "x");
    int b = accept_dial(g, "a.test:80");
    HEAR(g, b, POSTED("a.test", "Content-Length: 1\r\n") "x");
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    HEAR_END(g, a);
    close(a);

    /* That serves the next one, until the origin closes it. */
    SAY(fd, GET("a.test", "/2"));
    HEAR(g, b, SEEN("a.test", "/2"));
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    close(b);
    rig_settle(g);
    SAY(fd, GET("a.test", "/3"));
    int c = accept_dial(g, "a.test:80");
    HEAR(g, c, SEEN("a.test", "/3"));
    SAY(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nC");
    HEAR(g, fd, OK("C", "1"));
    HEAR_END(g, c);
    close(c);
    T_INT_EQ(g->dials, 3);
    T_INT_EQ(cv_gauge_get(&cv_registry_egress(g->registry, "direct")->row.active), 0);
    T_INT_EQ(cv_counter_get(&cv_registry_egress(g->registry, "direct")->row.sessions), 8);
    close(fd);
    rig_free(g);
}

/* The policy is asked again for each request, also when a connection would be there. */
static void test_forward_reuse_follows_policy(void)
{
    static const char blocked[] =
        "{\"schema_version\":1,\"version\":9,\"users\":{\"u\":{\"password\":\"p\","
        "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{\"routes\":[{\"selectors\":[\"a.test\"],"
        "\"action\":{\"type\":\"block\"}}]}}}";
    static const char special[] =
        "{\"schema_version\":1,\"version\":10,\"users\":{\"u\":{\"password\":\"p\","
        "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{\"routes\":[{\"selectors\":[\"10.1.1.1\"],"
        "\"action\":{\"type\":\"direct\"}}]}}}";
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    rig_policy(g, blocked);
    SAY(fd, GET("a.test", "/"));
    HEAR_STATUS(g, fd, 403);
    T_OK(log_has("\"snapshot_version\":9"));
    rig_policy(g, special);
    SAY(fd, GET("10.1.1.1", "/"));
    int b = accept_dial(g, "10.1.1.1:80");
    HEAR(g, b, SEEN("10.1.1.1", "/"));
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    SAY(fd, GET("10.1.1.1", "/2"));
    HEAR(g, b, SEEN("10.1.1.1", "/2"));
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    T_INT_EQ(g->dials, 2);
    /* Still direct, but the rule no longer names that address: the guard has to see it again. */
    rig_policy(g, "{\"schema_version\":1,\"version\":11,\"users\":{\"u\":{\"password\":\"p\","
                  "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{}}}");
    SAY(fd, GET("10.1.1.1", "/3"));
    TURN_UNTIL(g, g->dial != NULL);
    rig_dial_fail(g, CV_STAGE_DIAL, CV_E_GUARD);
    HEAR_STATUS(g, fd, 403);
    T_INT_EQ(hear_end(g, b, true), 0);
    close(a), close(b), close(fd);
    rig_free(g);
}

/* Another user on the same client connection does not inherit the origin connection. */
static void test_forward_reuse_by_user(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    SAY(fd, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
            "Proxy-Authorization: Basic b25lOnA=\r\n\r\n"); /* one:p */
    int b = accept_dial(g, "a.test:80");
    HEAR_END(g, a);
    HEAR(g, b, SEEN("a.test", "/"));
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    TURN_UNTIL(g, alog_lines == 2);
    T_OK(log_has("\"username\":\"one\""));

    /* Its one permit: held during a request, not between two. */
    int fd2 = client(g);
    SAY(fd2, "CONNECT a.test:443 HTTP/1.1\r\nProxy-Authorization: Basic b25lOnA=\r\n\r\n");
    int c = accept_dial(g, "a.test:443");
    HEAR(g, fd2, ESTABLISHED);
    SAY(fd, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
            "Proxy-Authorization: Basic b25lOnA=\r\n\r\n");
    HEAR_STATUS(g, fd, 429);
    T_OK(log_has("\"failure_stage\":\"limit\""));
    close(a), close(b), close(c), close(fd), close(fd2);
    rig_free(g);
}

/* The origin closed the kept connection at the moment it was used. */
static void test_forward_retry(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/1"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/1"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    SAY(fd, GET("a.test", "/2"));
    HEAR(g, a, SEEN("a.test", "/2"));
    close(a);
    int b = accept_dial(g, "a.test:80");
    HEAR(g, b, SEEN("a.test", "/2"));
    SAY(b, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    TURN_UNTIL(g, alog_lines == 2);
    T_OK(log_has("\"result\":\"ok\""));

    SAY(fd, GET("a.test", "/3")); /* once only, and then the failure counts */
    HEAR(g, b, SEEN("a.test", "/3"));
    close(b);
    int c = accept_dial(g, "a.test:80");
    HEAR(g, c, SEEN("a.test", "/3"));
    close(c);
    HEAR_STATUS(g, fd, 502);
    SAY(fd, GET("a.test", "/4"));
    int d = accept_dial(g, "a.test:80");
    HEAR(g, d, SEEN("a.test", "/4"));
    SAY(d, OK("D", "1"));
    HEAR(g, fd, OK("D", "1"));
    SAY(fd, GET("a.test", "/5")); /* not when a part of the answer has come */
    HEAR(g, d, SEEN("a.test", "/5"));
    SAY(d, "HTTP/1.1 2");
    rig_settle(g);
    close(d);
    HEAR_STATUS(g, fd, 502);
    T_INT_EQ(g->dials, 4);
    T_INT_EQ(cv_gauge_get(&cv_registry_egress(g->registry, "direct")->row.active), 0);
    close(fd);
    rig_free(g);
}

static void test_pipelining(void)
{
    static const char two[] = GET("a.test", "/1") GET("b.test", "/2") GET("b.test", "/3");
    struct rig *g = rig_new();

    for (size_t cut = 1; cut < sizeof(two) - 1; cut += 7) {
        int fd = client(g);

        say(fd, two, cut);
        rig_settle(g);
        say(fd, two + cut, sizeof(two) - 1 - cut);
        int a = accept_dial(g, "a.test:80");
        HEAR(g, a, SEEN("a.test", "/1"));
        HEAR_NOTHING(g, a);
        SAY(a, OK("A", "1"));
        int b = accept_dial(g, "b.test:80");
        HEAR(g, b, SEEN("b.test", "/2"));
        HEAR_NOTHING(g, b);
        SAY(b, OK("B", "1"));
        HEAR(g, b, SEEN("b.test", "/3"));
        SAY(b, OK("C", "1"));
        HEAR(g, fd, OK("A", "1") OK("B", "1") OK("C", "1"));
        HEAR_NOTHING(g, fd);
        close(a), close(b), close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
    }
    rig_free(g);
}

/* ---- Bodies ---- */

static void test_body_length(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, POST("a.test", "Content-Length: 5\r\n") "he");
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, POSTED("a.test", "Content-Length: 5\r\n") "he");
    SAY(fd, "lloGET ht"); /* and the beginning of the next request */
    HEAR(g, a, "llo");
    HEAR_NOTHING(g, a);
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    SAY(fd, "tp://a.test/ HTTP/1.1\r\nHost: a\r\n" AUTH "\r\n");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    close(a), close(fd);
    rig_free(g);
}

static void test_body_chunked(void)
{
    static const char up[] =
        POST("a.test", "Transfer-Encoding: chunked\r\n") "3;ext=1\r\nabc\r\n1\r\nd\r\n00\r\nX-Sum: "
                                                         "1\r\nContent-Length: 9\r\n\r\n";
    static const char down[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "2;x\r\nhe\r\n3\r\nllo\r\n0\r\nX-Out: 2\r\nProxy-X: 1\r\n\r\n";
    struct rig *g = rig_new();

    for (size_t cut = 1; cut < CV_MAX(sizeof(up), sizeof(down)); cut += 3) {
        int fd = client(g);
        size_t first = CV_MIN(cut, sizeof(up) - 1);

        say(fd, up, first);
        rig_settle(g);
        say(fd, up + first, sizeof(up) - 1 - first);
        int a = accept_dial(g, "a.test:80");
        /* The chunks are ours; what they hold and the trailer are the client's. */
        uint8_t got[512];
        size_t n = 0;
        int64_t end = cv_clock_mono_ms() + 60000;
        while ((n < 5 || memcmp(got + n - 5, "1\r\n\r\n", 5) != 0) && cv_clock_mono_ms() < end) {
            ssize_t rc = recv(a, got + n, sizeof(got) - 1 - n, 0);
            if (rc > 0)
                n += (size_t)rc;
            else
                cv_loop_turn(g->w->loop, 1);
        }
        got[n] = '\0';
        const char *head = POSTED("a.test", "Transfer-Encoding: chunked\r\n");
        T_OK(n > strlen(head) && memcmp(got, head, strlen(head)) == 0);
        T_OK(strstr((char *)got, "ext=") == NULL && strstr((char *)got, "Content-Length") == NULL);
        T_OK(strstr((char *)got, "\r\n0\r\nX-Sum: 1\r\n\r\n") != NULL);

        first = CV_MIN(cut, sizeof(down) - 1);
        say(a, down, first);
        rig_settle(g);
        say(a, down + first, sizeof(down) - 1 - first);
        n = 0;
        while ((n < 5 || memcmp(got + n - 5, "2\r\n\r\n", 5) != 0) && cv_clock_mono_ms() < end) {
            ssize_t rc = recv(fd, got + n, sizeof(got) - 1 - n, 0);
            if (rc > 0)
                n += (size_t)rc;
            else
                cv_loop_turn(g->w->loop, 1);
        }
        got[n] = '\0';
        T_OK(strstr((char *)got, "\r\n0\r\nX-Out: 2\r\n\r\n") != NULL);
        T_OK(strstr((char *)got, "Proxy-X") == NULL);

        SAY(fd, GET("a.test", "/next")); /* both connections go on */
        HEAR(g, a, SEEN("a.test", "/next"));
        close(a), close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
    }
    rig_free(g);
}

/* A body that is no body: refused in the middle, and nothing of what follows gets anywhere. */
static void test_body_malformed(void)
{
    static const char *const rows[] = {
        "0x3\r\nabc\r\n0\r\n\r\n",
        "00000000000000003\r\nabc\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "-1\r\n",
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g);

        SAY(fd, POST("a.test", "Transfer-Encoding: chunked\r\n"));
        say(fd, rows[i], strlen(rows[i]));
        SAY(fd, GET("evil.test", "/"));
        int a = accept_dial(g, "a.test:80");
        HEAR_STATUS(g, fd, 400);
        ANSWER_HAS("Connection: close");
        HEAR_END(g, fd);
        uint8_t got[512];
        size_t n = hear_all(g, a, got, sizeof(got) - 1);
        got[n] = '\0';
        T_OK(strstr((char *)got, "evil") == NULL);
        T_INT_EQ(g->dials, 1);
        close(a), close(fd);
        rig_free(g);
    }
}

/* An answer that ends with the connection gets chunks, or for HTTP/1.0 the end of its own. */
static void test_body_until_close(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, "HTTP/1.0 200 OK\r\n\r\nhello");
    HEAR(g, fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    close(a);
    HEAR(g, fd, "0\r\n\r\n");
    SAY(fd, "GET http://a.test/ HTTP/1.0\r\n" AUTH "Connection: keep-alive\r\n\r\n");
    a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n");
    HEAR(g, fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello");
    HEAR_END(g, fd);
    close(a), close(fd);
    rig_free(g);
}

static void test_no_body(void)
{
    static const struct {
        const char *method, *down, *seen;
    } rows[] = {
        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
         "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"},
        {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
         "HTTP/1.1 200 OK\r\n\r\n"},
        {"GET", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
        {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
         "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"},
    };
    struct rig *g = rig_new();
    int fd = client(g), a = -1;

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char text[256];
        int n = snprintf(text, sizeof(text),
                         "%s http://a.test/ HTTP/1.1\r\nHost: a\r\n" AUTH "\r\n", rows[i].method);
        say(fd, text, (size_t)n);
        if (a < 0)
            a = accept_dial(g, "a.test:80");
        n = snprintf(text, sizeof(text), "%s / HTTP/1.1\r\nHost: a.test\r\n\r\n", rows[i].method);
        T_OK(hear(g, a, text, (size_t)n));
        say(a, rows[i].down, strlen(rows[i].down));
        T_OK(hear(g, fd, rows[i].seen, strlen(rows[i].seen)));
        HEAR_NOTHING(g, fd);
    }
    T_INT_EQ(g->dials, 1);
    close(a), close(fd);
    rig_free(g);
}

static void test_expect(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, POST("a.test", "Expect: 100-continue\r\nContent-Length: 2\r\n"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, POSTED("a.test", "Expect: 100-continue\r\nContent-Length: 2\r\n"));
    SAY(a, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
    HEAR(g, fd, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
    SAY(fd, "ab");
    HEAR(g, a, "ab");
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));

    /* A final answer in place of the go-ahead: nobody knows whether the body will come. */
    SAY(fd, POST("a.test", "Expect: 100-continue\r\nContent-Length: 2\r\n"));
    int b = accept_dial(g, "a.test:80");
    HEAR(g, b, POSTED("a.test", "Expect: 100-continue\r\nContent-Length: 2\r\n"));
    SAY(b, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n");
    HEAR(g, fd, "HTTP/1.1 417 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    HEAR_END(g, fd);
    close(a), close(b), close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);

    /* An HTTP/1.0 client cannot expect anything, and gets no interim responses. */
    fd = client(g);
    SAY(fd, "POST http://a.test/ HTTP/1.0\r\n" AUTH "Expect: 100-continue\r\n"
            "Content-Length: 1\r\n\r\nx");
    a = accept_dial(g, "a.test:80");
    HEAR(g, a, POSTED("a.test", "Content-Length: 1\r\n") "x");
    SAY(a, "HTTP/1.1 100 Continue\r\n\r\n" OK("A", "1"));
    HEAR(g, fd, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nA");
    HEAR_END(g, fd);
    close(a), close(fd);
    rig_free(g);
}

/* The answer comes while the body is still on its way. */
static void test_early_answer(void)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);

    SAY(fd, POST("a.test", "Content-Length: 1000\r\n") "part");
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, POSTED("a.test", "Content-Length: 1000\r\n") "part");
    SAY(a, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
    HEAR(g, fd, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
    SAY(fd, GET("evil.test", "/")); /* still a part of the body */
    HEAR_END(g, fd);
    T_INT_EQ(g->dials, 1);
    close(a), close(fd);
    rig_free(g);
}

/* ---- Upgrade ---- */

static void test_upgrade(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "GET http://a.test/ws HTTP/1.1\r\nHost: a.test\r\n" AUTH
            "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\nUP1");
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a,
         "GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\n"
         "Upgrade: websocket\r\n\r\n");
    HEAR_NOTHING(g, a); /* what follows waits for the answer */
    SAY(a, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           "Sec-WebSocket-Accept: x\r\n\r\nDOWN1");
    HEAR(g, fd,
         "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n"
         "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nDOWN1");
    HEAR(g, a, "UP1");
    SAY(fd, "UP2");
    HEAR(g, a, "UP2");
    SAY(a, "DOWN2");
    HEAR(g, fd, "DOWN2");
    T_OK(only_conn(g)->work == NULL);
    close(a), close(fd);
    rig_free(g);
}

static void test_upgrade_declined(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "GET http://a.test/ws HTTP/1.1\r\nHost: a.test\r\n" AUTH
            "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a,
         "GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\n"
         "Upgrade: websocket\r\n\r\n");
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    SAY(fd, GET("a.test", "/")); /* 101 without being asked */
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n");
    HEAR_STATUS(g, fd, 502);
    close(a), close(fd);
    rig_free(g);
}

/* ---- Refusals ---- */

static void test_framing_conflicts(void)
{
    static const char *const rows[] = {
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: chunked\t\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 5\n",
        "Host: b\r\n",
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g);
        char text[1024];
        int n = snprintf(text, sizeof(text),
                         "POST http://a.test/ HTTP/1.1\r\nHost: a\r\n" AUTH "%s\r\n0\r\n\r\n%s",
                         rows[i], GET("evil.test", "/"));

        say(fd, text, (size_t)n);
        HEAR_STATUS(g, fd, 400);
        ANSWER_HAS("Connection: close");
        HEAR_END(g, fd);
        T_INT_EQ(g->dials, 0);
        T_INT_EQ(alog_lines, 1);
        T_OK(log_has("\"failure_stage\":\"parse\""));
        close(fd);
        rig_free(g);
    }
}

static void test_head_limits(void)
{
    static const struct {
        size_t path, field, fields;
        unsigned status; /* 0: dialled */
    } rows[] = {
        {4000, 0, 0, 0},    {8000, 0, 0, 0},    {65536, 0, 0, 414}, {0, 16000, 0, 0},
        {0, 65536, 0, 431}, {0, 0, 10000, 431}, {0, 0, 190, 0},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g);
        struct cv_buf b;
        static char fill[65536];

        memset(fill, 'x', sizeof(fill));
        cv_buf_init(&b, 1 << 20);
        T_INT_EQ(cv_buf_printf(&b, "GET http://a.test/%.*s HTTP/1.1\r\nHost: a\r\n" AUTH,
                               (int)rows[i].path, fill),
                 0);
        T_INT_EQ(cv_buf_printf(&b, "X: %.*s\r\n", (int)rows[i].field, fill), 0);
        for (size_t k = 0; k < rows[i].fields; k++)
            T_INT_EQ(cv_buf_append_str(&b, "Y: z\r\n"), 0);
        T_INT_EQ(cv_buf_append_str(&b, "\r\n"), 0);
        while (!cv_buf_is_empty(&b)) {
            ssize_t n = send(fd, cv_buf_data(&b), CV_MIN(cv_buf_len(&b), 3000), MSG_NOSIGNAL);
            if (n > 0)
                cv_buf_consume(&b, (size_t)n);
            else if (errno != EAGAIN)
                break;
            cv_loop_turn(g->w->loop, 1);
        }
        cv_buf_done(&b);
        if (rows[i].status != 0) {
            HEAR_STATUS(g, fd, rows[i].status);
            HEAR_END(g, fd);
            T_INT_EQ(g->dials, 0);
        } else {
            close(accept_dial(g, "a.test:80"));
            HEAR_STATUS(g, fd, 502);
        }
        close(fd);
        rig_free(g);
    }
}

static void test_slow_head(void)
{
    struct rig *g = rig_new();
    g->settings->handshake_timeout_ms = 60;
    int fd = tcp_client(g);
    char c;
    static const char head[] = "GET http://a.test/ HTTP/1.1\r\nX: ";
    int64_t start = cv_clock_mono_ms();

    for (size_t i = 0; recv(fd, &c, 1, MSG_PEEK) < 0 && cv_clock_mono_ms() < start + 5000; i++) {
        (void)!send(fd, i < sizeof(head) - 1 ? &head[i] : "x", 1, MSG_NOSIGNAL);
        cv_loop_turn(g->w->loop, 3);
    }
    HEAR_STATUS(g, fd, 408);
    T_OK(cv_clock_mono_ms() - start < 2000);
    T_OK(log_has("\"failure_stage\":\"parse\""));
    close(fd);

    fd = tcp_client(g); /* one that says nothing gets nothing, and no line */
    HEAR_END(g, fd);
    T_INT_EQ(alog_lines, 1);
    close(fd);

    /* The clock of a later request starts with its first byte. */
    fd = tcp_client(g);
    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    int64_t end = cv_clock_mono_ms() + 150;
    while (cv_clock_mono_ms() < end)
        cv_loop_turn(g->w->loop, 10);
    SAY(fd, "GET");
    HEAR_STATUS(g, fd, 408);
    HEAR_END(g, fd);
    close(a), close(fd);
    rig_free(g);
}

static void test_stages(void)
{
    static const struct {
        enum cv_stage stage;
        int err;
        unsigned status;
    } rows[] = {
        {CV_STAGE_DIAL, -ECONNREFUSED, 502},    {CV_STAGE_DIAL, -ETIMEDOUT, 504},
        {CV_STAGE_DNS, CV_E_DNS_NXDOMAIN, 502}, {CV_STAGE_DNS, CV_E_DNS_TIMEOUT, 504},
        {CV_STAGE_DIAL, CV_E_GUARD, 403},       {CV_STAGE_EGRESS, CV_E_UNSUPPORTED, 503},
    };
    struct rig *g = rig_new();
    int fd = client(g);

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        SAY(fd, GET("a.test", "/"));
        TURN_UNTIL(g, g->dial != NULL);
        rig_dial_fail(g, rows[i].stage, rows[i].err);
        HEAR_STATUS(g, fd, rows[i].status);
        ANSWER_HAS(cv_stage_message(rows[i].stage, rows[i].err));
        ANSWER_LACKS("Connection: close");
    }
    T_INT_EQ(alog_lines, CV_ARRAY_SIZE(rows));
    close(fd);
    rig_free(g);
}

static void test_pages(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, "GET http://blocked.test/<script> HTTP/1.1\r\nHost: blocked.test\r\n"
            "Accept: text/html,*/*\r\n" AUTH "\r\n");
    HEAR_STATUS(g, fd, 403);
    ANSWER_HAS("Content-Type: text/html");
    ANSWER_HAS("prefers-color-scheme:dark");
    ANSWER_HAS("blocked by policy");
    ANSWER_HAS("<dd>blocked.test:80</dd>");
    ANSWER_HAS("<dd>policy</dd>");
    ANSWER_LACKS("<script>");
    ANSWER_LACKS(CV_VERSION);
    T_INT_EQ(strlen(answer_body), strtoul(strstr(answer, "Content-Length: ") + 16, NULL, 10));
    SAY(fd,
        "GET http://blocked.test/ HTTP/1.1\r\nHost: blocked.test\r\nAccept: */*\r\n" AUTH "\r\n");
    HEAR_STATUS(g, fd, 403);
    ANSWER_HAS("Content-Type: text/plain");
    SAY(fd, "GET / HTTP/1.1\r\nHost: proxy.test:1080\r\nAccept: text/html\r\n\r\n");
    HEAR_STATUS(g, fd, 400);
    ANSWER_HAS("This is a proxy");
    ANSWER_HAS("Connection: close");
    HEAR_END(g, fd);
    close(fd);
    fd = client(g);
    SAY(fd, "GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n" AUTH "\r\n");
    HEAR_STATUS(g, fd, 400);
    ANSWER_HAS("CONNECT");
    close(fd);
    fd = client(g);
    SAY(fd, "OPTIONS http://a.test HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 0\r\n" AUTH "\r\n");
    HEAR_STATUS(g, fd, 200);
    SAY(fd, "TRACE http://a.test/ HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 0\r\n" AUTH "\r\n");
    HEAR_STATUS(g, fd, 501);
    T_INT_EQ(g->dials, 0);
    close(fd);
    rig_free(g);
}

static void test_page_escaping(void)
{
    struct http_page p = {.status = 502,
                          .message = "a<b>&\"'",
                          .stage = "dial",
                          .target = "<x>",
                          .session = 0xabcdef,
                          .html = true};
    struct cv_buf b;

    cv_buf_init(&b, 1 << 16);
    T_INT_EQ(cv_http_error_write(&b, &p), 0);
    T_INT_EQ(cv_buf_append(&b, "", 1), 0);
    T_OK(strstr((const char *)cv_buf_data(&b), "a&lt;b&gt;&amp;&quot;&#39;") != NULL);
    T_OK(strstr((const char *)cv_buf_data(&b), "<dd>&lt;x&gt;</dd>") != NULL);
    T_OK(strstr((const char *)cv_buf_data(&b), "0000000000abcdef") != NULL);
    cv_buf_done(&b);
}

/* ---- Origins that misbehave ---- */

static void test_bad_origins(void)
{
    static const char *const rows[] = {
        "",
        "SSH-2.0-x\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y",
        "HTTP/1.1 100 Continue\r\n\r\n",
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = client(g);

        SAY(fd, GET("a.test", "/"));
        int a = accept_dial(g, "a.test:80");
        HEAR(g, a, SEEN("a.test", "/"));
        say(a, rows[i], strlen(rows[i]));
        rig_settle(g);
        close(a);
        if (strstr(rows[i], "100 Continue") != NULL)
            HEAR(g, fd, "HTTP/1.1 100 Continue\r\n\r\n");
        HEAR_STATUS(g, fd, 502);
        T_OK(log_has("\"failure_stage\":\"splice\""));
        SAY(fd, GET("b.test", "/")); /* the client's connection is in order */
        int b = accept_dial(g, "b.test:80");
        HEAR(g, b, SEEN("b.test", "/"));
        close(b);
        close(fd);
        rig_free(g);
    }
}

/* 200 interim responses, and a head without end. */
static void test_endless_origins(void)
{
    struct rig *g = rig_new();
    int fd = client(g);
    static char head[100000];

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    for (int i = 0; i < 200; i++)
        (void)!send(a, "HTTP/1.1 102 Processing\r\n\r\n", 27, MSG_NOSIGNAL);
    for (int i = 0; i < CV_HTTP_INTERIM_MAX; i++)
        HEAR(g, fd, "HTTP/1.1 102 Processing\r\n\r\n");
    HEAR_STATUS(g, fd, 502);
    close(a);
    SAY(fd, GET("a.test", "/"));
    a = accept_dial(g, "a.test:80");
    memset(head, 'x', sizeof(head));
    SAY(a, "HTTP/1.1 200 OK\r\nX: ");
    for (size_t at = 0; at < sizeof(head);) {
        ssize_t n = send(a, head + at, CV_MIN(sizeof(head) - at, 5000), MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break;
        at += n > 0 ? (size_t)n : 0;
        cv_loop_turn(g->w->loop, 1);
    }
    HEAR_STATUS(g, fd, 502);
    close(a), close(fd);
    rig_free(g);
}

/* A cut answer must not look complete. */
static void test_cut_answers(void)
{
    static const struct {
        const char *minor, *down, *seen;
    } rows[] = {
        {"1", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
         "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"},
        {"1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"},
        {"1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g);

        SAY(fd, GET("a.test", "/"));
        int a = accept_dial(g, "a.test:80");
        HEAR(g, a, SEEN("a.test", "/"));
        say(a, rows[i].down, strlen(rows[i].down));
        close(a);
        T_OK(hear(g, fd, rows[i].seen, strlen(rows[i].seen)));
        T_INT_EQ(hear_end(g, fd, false), 0);
        T_OK(log_has("\"result\":\"error\""));
        T_OK(log_has("\"failure_stage\":\"splice\""));
        close(fd);
        rig_free(g);
    }
    /* Without any framing only a reset can tell. */
    struct rig *g = rig_new();
    int fd = tcp_client(g);
    SAY(fd, "GET http://a.test/ HTTP/1.0\r\n" AUTH "\r\n");
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    close(a);
    HEAR(g, fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello");
    T_INT_EQ(hear_end(g, fd, false), -ECONNRESET);
    close(fd);
    rig_free(g);
}

/* Bytes behind an answer belong to nothing: that connection is not used again. */
static void test_unasked_bytes(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, OK("A", "1") "HTTP/1.1 200 Forged\r\n\r\n");
    HEAR(g, fd, OK("A", "1"));
    HEAR_END(g, a);
    close(a);
    SAY(fd, GET("a.test", "/"));
    a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    SAY(a, "HTTP/1.1 200 Forged\r\n\r\n"); /* the same while it is idle */
    T_OK(hear_end(g, a, false) <= 0);
    close(a), close(fd);
    rig_free(g);
}

/* ---- Ends ---- */

static void test_half_close(void)
{
    struct rig *g = rig_new();
    int fd = client(g);

    SAY(fd, GET("a.test", "/1") GET("a.test", "/2"));
    shutdown(fd, SHUT_WR);
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/1"));
    SAY(a, OK("A", "1"));
    HEAR(g, fd, OK("A", "1"));
    HEAR(g, a, SEEN("a.test", "/2"));
    SAY(a, OK("B", "1"));
    HEAR(g, fd, OK("B", "1"));
    HEAR_END(g, fd);
    close(a), close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(alog_lines, 2);

    /* With a silent origin the half-closed one goes after half_close_timeout. */
    g->settings->half_close_timeout_ms = 50;
    fd = client(g);
    SAY(fd, GET("a.test", "/1"));
    shutdown(fd, SHUT_WR);
    a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/1"));
    HEAR_STATUS(g, fd, 504);
    HEAR_END(g, fd);
    close(a), close(fd);
    rig_free(g);
}

static void test_idle_timeout(void)
{
    struct rig *g = rig_new();
    g->settings->idle_timeout_ms = 50;
    int fd = tcp_client(g);

    SAY(fd, GET("a.test", "/1"));
    int a = accept_dial(g, "a.test:80");
    HEAR_STATUS(g, fd, 504);
    close(a);
    SAY(fd, GET("a.test", "/1"));
    a = accept_dial(g, "a.test:80");
    SAY(a, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    HEAR(g, fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    T_OK(hear_end(g, fd, false) <= 0);
    close(a), close(fd);
    rig_free(g);
}

/* The client leaves in each state. */
static void test_client_leaves(void)
{
    enum { IN_HEAD, IN_DIAL, IN_CONNECT_DIAL, IN_REQUEST, IN_ANSWER, PLACES };

    for (int place = 0; place < PLACES; place++) {
        struct rig *g = rig_new();
        int fd = client(g), a = -1;

        switch (place) {
        case IN_HEAD:
            SAY(fd, "GET http://a.te");
            rig_settle(g);
            break;
        case IN_DIAL:
            SAY(fd, GET("a.test", "/"));
            TURN_UNTIL(g, g->dial != NULL);
            break;
        case IN_CONNECT_DIAL:
            SAY(fd, "CONNECT a.test:1 HTTP/1.1\r\n" AUTH "\r\n");
            TURN_UNTIL(g, g->dial != NULL);
            break;
        case IN_REQUEST:
            SAY(fd, POST("a.test", "Content-Length: 10\r\n") "x");
            a = accept_dial(g, "a.test:80");
            HEAR(g, a, POSTED("a.test", "Content-Length: 10\r\n") "x");
            break;
        default:
            SAY(fd, GET("a.test", "/"));
            a = accept_dial(g, "a.test:80");
            HEAR(g, a, SEEN("a.test", "/"));
            SAY(a, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
            HEAR(g, fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        }
        close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_INT_EQ(g->cancels, place == IN_DIAL || place == IN_CONNECT_DIAL);
        T_INT_EQ(alog_lines, 1);
        T_OK(log_has("client went away"));
        if (a >= 0)
            T_OK(hear_end(g, a, false) <= 0);
        close(a);
        rig_free(g);
    }
}

/* An operator ends the session in each state. */
static void test_kill(void)
{
    for (int place = 0; place < 6; place++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g), a = -1;

        if (place == 1) {
            SAY(fd, "GET htt");
        } else if (place == 2) {
            SAY(fd, GET("a.test", "/"));
            TURN_UNTIL(g, g->dial != NULL);
        } else if (place == 3) {
            SAY(fd, GET("a.test", "/"));
            a = accept_dial(g, "a.test:80");
        } else if (place == 4) {
            SAY(fd, "CONNECT a.test:1 HTTP/1.1\r\n" AUTH "\r\n");
            a = accept_dial(g, "a.test:1");
            HEAR(g, fd, ESTABLISHED);
        } else if (place == 5) { /* discarding a body */
            SAY(fd, "POST http://a.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
            HEAR_STATUS(g, fd, 407);
        }
        rig_settle(g);
        T_INT_EQ(g->w->n_sessions, 1);
        cv_session_kill_all(g->w, CV_E_KILLED);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_OK(hear_end(g, fd, false) <= 0);
        T_INT_EQ(alog_lines, place > 0);
        close(fd);
        close(a);
        rig_free(g);
    }
}

/* While the node drains, each answer is the last one of its connection. */
static void test_draining(void)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    atomic_store(&g->node.draining, true);
    SAY(a, OK("A", "1"));
    HEAR(g, fd, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nA");
    HEAR_END(g, fd);
    HEAR_END(g, a);
    close(a), close(fd);
    rig_free(g);
}

/* ---- Bulk ---- */

/* Push 'len' pseudo-random bytes through both ways in pieces of random size, and compare. */
static void bulk(bool up_chunked, bool down_chunked, size_t len)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);
    uint8_t *data = cv_alloc(len), *got = cv_alloc(2 * len + 65536);
    char head[256];
    struct cv_http1_body body;
    size_t sent = 0, n = 0, head_len = 0;

    cv_rand_bytes(data, len);
    char framing[64];
    snprintf(framing, sizeof(framing),
             up_chunked ? "Transfer-Encoding: chunked\r\n" : "Content-Length: %zu\r\n", len);
    int h = snprintf(head, sizeof(head), POST("a.test", "%s"), framing);
    say(fd, head, (size_t)h);
    int a = accept_dial(g, "a.test:80");
    for (int way = 0; way < 2; way++) {
        int from = way == 0 ? fd : a, to = way == 0 ? a : fd;
        bool chunked = way == 0 ? up_chunked : down_chunked;
        bool done = false;
        int64_t end = cv_clock_mono_ms() + 20000;

        if (way == 1) {
            snprintf(framing, sizeof(framing),
                     chunked ? "Transfer-Encoding: chunked\r\n" : "Content-Length: %zu\r\n", len);
            h = snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\n%s\r\n", framing);
            say(from, head, (size_t)h);
        }
        struct cv_buf wire;
        cv_buf_init(&wire, 2 * len + 1000);
        for (size_t at = 0; at < len;) {
            size_t piece = 1 + cv_rand_below(30000);
            piece = CV_MIN(piece, len - at);
            char ch[CV_HTTP1_CHUNK_HEAD_MAX];
            if (chunked)
                T_INT_EQ(cv_buf_append(&wire, ch, cv_http1_chunk_head(ch, piece)), 0);
            T_INT_EQ(cv_buf_append(&wire, data + at, piece), 0);
            if (chunked)
                T_INT_EQ(cv_buf_append_str(&wire, "\r\n"), 0);
            at += piece;
        }
        if (chunked)
            T_INT_EQ(cv_buf_append_str(&wire, "0\r\n\r\n"), 0);
        sent = n = head_len = 0;
        cv_http1_body_init(&body, chunked ? CV_HTTP1_CHUNKED : CV_HTTP1_LENGTH, len);
        size_t total = 0;
        while (!done && cv_clock_mono_ms() < end) {
            size_t piece = 1 + cv_rand_below(70000);
            piece = CV_MIN(piece, cv_buf_len(&wire) - sent);
            ssize_t rc = piece > 0 ? send(from, cv_buf_data(&wire) + sent, piece, MSG_NOSIGNAL) : 0;
            sent += rc > 0 ? (size_t)rc : 0;
            cv_loop_turn(g->w->loop, piece > 0 ? 0 : 5);
            rc = recv(to, got + n, 1 + cv_rand_below(50000), 0);
            n += rc > 0 ? (size_t)rc : 0;
            if (head_len == 0) {
                uint8_t *e = memmem(got, n, "\r\n\r\n", 4);
                if (e == NULL)
                    continue;
                head_len = (size_t)(e - got) + 4;
                memmove(got, e + 4, n - head_len);
                n -= head_len;
            }
            struct cv_http1_piece p;
            struct cv_http1_fault f;
            if (!T_OK(cv_http1_body_decode(&body, got + total, n - total, &p, &f) == 0))
                break;
            memmove(got + total, p.data != NULL ? p.data : got + total, p.data_len);
            memmove(got + total + p.data_len, got + total + p.used, n - total - p.used);
            n -= p.used - p.data_len;
            total += p.data_len;
            done = cv_http1_body_is_done(&body);
        }
        T_OK(done);
        T_INT_EQ(total, len);
        T_MEM_EQ(got, data, len);
        cv_buf_done(&wire);
    }
    TURN_UNTIL(g, alog_lines == 1);
    close(fd), close(a);
    rig_free(g);
    cv_free(data);
    cv_free(got);
}

static void test_bulk(void)
{
    for (int i = 0; i < 4; i++)
        bulk(i & 1, i & 2, 300000);
    bulk(false, false, 4000000); /* far more than the sockets hold: splice, with full pipes */
}

/* A client that reads nothing stops its origin; what is held for it is bounded. */
static void test_slow_reader(void)
{
    struct rig *g = rig_new();
    int fd = client(g);
    static char data[65536];
    size_t taken = 0;

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    SAY(a, "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
    for (int idle = 0; idle < 20 && taken < 100000000;) {
        ssize_t n = send(a, data, sizeof(data), MSG_NOSIGNAL);
        idle = n > 0 ? 0 : idle + 1;
        taken += n > 0 ? (size_t)n : 0;
        cv_loop_turn(g->w->loop, 0);
    }
    T_OK(taken < 4 << 20);
    struct http_work *w = only_conn(g)->work;
    T_OK(cv_buf_len(&w->client.out) + w->pipe.len > 0);
    T_OK(cv_buf_len(&w->client.out) <= CV_HTTP_OUT_MAX && w->pipe.len <= 256u << 10);
    T_INT_EQ(cv_buf_len(&w->origin.in), 0);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    close(a);

    /* The other way round. */
    fd = client(g);
    SAY(fd, POST("a.test", "Content-Length: 100000000\r\n"));
    a = accept_dial(g, "a.test:80");
    taken = 0;
    for (int idle = 0; idle < 20 && taken < 100000000;) {
        ssize_t n = send(fd, data, sizeof(data), MSG_NOSIGNAL);
        idle = n > 0 ? 0 : idle + 1;
        taken += n > 0 ? (size_t)n : 0;
        cv_loop_turn(g->w->loop, 0);
    }
    T_OK(taken < 4 << 20);
    w = only_conn(g)->work;
    T_OK(cv_buf_len(&w->origin.out) > 0 && cv_buf_len(&w->origin.out) <= CV_HTTP_OUT_MAX);
    close(fd), close(a);
    rig_free(g);
}

/* The end of a long answer, however it comes, while it moves through a pipe. */
static void test_long_answer_ends(void)
{
    enum { WHOLE, CUT, CLIENT_LEAVES, KILLED, ENDS };
    enum { LEN = 6000000 };
    static char data[65536];

    for (int way = 0; way < ENDS; way++) {
        struct rig *g = rig_new();
        int fd = client(g);
        size_t sent = 0, got = 0, limit = way == CUT ? LEN / 2 : LEN;
        bool spliced = false;

        SAY(fd, GET("a.test", "/"));
        int a = accept_dial(g, "a.test:80");
        HEAR(g, a, SEEN("a.test", "/"));
        SAY(a, "HTTP/1.1 200 OK\r\nContent-Length: 6000000\r\n\r\n");
        HEAR(g, fd, "HTTP/1.1 200 OK\r\nContent-Length: 6000000\r\n\r\n");
        int64_t end = cv_clock_mono_ms() + 60000;
        while (got < limit && cv_clock_mono_ms() < end) {
            ssize_t n =
                sent < limit ? send(a, data, CV_MIN(sizeof(data), limit - sent), MSG_NOSIGNAL) : 0;
            sent += n > 0 ? (size_t)n : 0;
            if (sent == limit && way == CUT && a >= 0) {
                close(a);
                a = -1;
            }
            cv_loop_turn(g->w->loop, n > 0 ? 0 : 1);
            spliced = spliced || only_conn(g)->work->pipe.len > 0;
            if (way >= CLIENT_LEAVES && spliced)
                break;
            static char sink[30000];
            if (!spliced)
                continue; /* let it fill up first */
            n = recv(fd, sink, sizeof(sink), 0);
            got += n > 0 ? (size_t)n : 0;
        }
        T_OK(spliced);
        if (way == WHOLE) {
            T_INT_EQ(got, LEN);
            SAY(fd, GET("a.test", "/next"));
            HEAR(g, a, SEEN("a.test", "/next"));
            SAY(a, OK("A", "1"));
            HEAR(g, fd, OK("A", "1"));
        } else if (way == CUT) {
            T_INT_EQ(got, LEN / 2);
            T_INT_EQ(hear_end(g, fd, false), 0);
            T_OK(log_has("\"failure_stage\":\"splice\""));
            T_OK(log_has("\"bytes_down\":3000044"));
        } else if (way == CLIENT_LEAVES) {
            close(fd);
            fd = -1;
            TURN_UNTIL(g, g->w->n_sessions == 0);
        } else {
            cv_session_kill_all(g->w, CV_E_KILLED);
        }
        close(fd);
        close(a);
        rig_free(g);
    }
}

/* Pipelined requests that nobody answers yet wait in the socket, not in memory. */
static void test_pipeline_is_bounded(void)
{
    static const char more[] = GET("b.test", "/");
    struct rig *g = rig_new();
    int fd = client(g);
    size_t taken = 0;

    SAY(fd, GET("a.test", "/"));
    int a = accept_dial(g, "a.test:80");
    HEAR(g, a, SEEN("a.test", "/"));
    for (int idle = 0; idle < 20 && taken < 10000000;) {
        ssize_t n = send(fd, more, sizeof(more) - 1, MSG_NOSIGNAL);
        idle = n > 0 ? 0 : idle + 1;
        taken += n > 0 ? (size_t)n : 0;
        cv_loop_turn(g->w->loop, 0);
    }
    T_OK(taken < 1 << 20);
    T_OK(cv_buf_len(&only_conn(g)->work->client.in) <= 2 * CV_HTTP_AHEAD_MAX);
    close(fd), close(a);
    rig_free(g);
}

/* No password in any line of the log, at any level. */
static char log_text[1 << 20];
static size_t log_len;
static void log_sink(void *arg, const char *line, size_t len)
{
    if (len < sizeof(log_text) - log_len) {
        memcpy(log_text + log_len, line, len);
        log_len += len;
    }
}

static void test_no_secrets(void)
{
    struct rig *g = rig_new();
    rig_policy(g, "{\"schema_version\":1,\"version\":12,\"users\":{\"u\":{\"password\":"
                  "\"geheim-xyz\",\"policy\":\"p\"}},\"routing_policies\":{\"p\":{}}}");
    cv_log_configure(CV_LOG_TRACE, CV_LOG_TEXT);
    cv_log_set_sink(log_sink, NULL);
    int fd = client(g);
    SAY(fd, "CONNECT a.test:1 HTTP/1.1\r\nProxy-Authorization: Basic dTpnZWhlaW0teHl6\r\n\r\n");
    TURN_UNTIL(g, g->dial != NULL);
    rig_dial_fail(g, CV_STAGE_DIAL, -ECONNREFUSED);
    HEAR_STATUS(g, fd, 502);
    SAY(fd, "CONNECT a.test:1 HTTP/1.1\r\nProxy-Authorization: Basic dTpnZWhlaW0teHl6eA==\r\n\r\n");
    HEAR_STATUS(g, fd, 407);
    close(fd);
    rig_free(g);
    cv_log_set_sink(NULL, NULL);
    cv_log_configure(CV_LOG_WARN, CV_LOG_TEXT);
    T_OK(memmem(log_text, log_len, "geheim", 6) == NULL);
    T_OK(memmem(log_text, log_len, "dTpn", 4) == NULL);
    T_OK(strstr(alog_text, "geheim") == NULL && strstr(alog_text, "dTpn") == NULL);
}

#ifdef CV_TORTURE
/* One connection through all that it can do, while the nth fallible call fails. Whatever the
 * client sees, nothing may crash, hang or be left behind. True: there was an nth call. */
static bool torture(uint64_t nth)
{
    static const char requests[] = "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n" POST(
        "a.test",
        "Transfer-Encoding: chunked\r\n") "3\r\nabc\r\n0\r\nX: y\r\n\r\n"
                                          "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n" AUTH
                                          "X: y\r\n\r\n" GET(
                                              "blocked.test",
                                              "/") "CONNECT b.test:1 HTTP/1.1\r\n" AUTH "\r\n";
    static const char answers[] =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nZ: y\r\n\r\n";
    struct rig *g = rig_new();
    int fds[2], origins[3];
    struct cv_stream *streams[3], *stream;
    size_t sent = 0, used = 0, answered = 0;

    rig_pair(fds);
    stream = rig_adopt(g, fds[0]);
    for (size_t i = 0; i < 3; i++) {
        int pair[2];
        rig_pair(pair);
        streams[i] = rig_adopt(g, pair[0]);
        origins[i] = pair[1];
    }
    struct cv_inbound in = rig_inbound(g, stream);
    cv_torture_arm(nth);
    cv_http_serve(&in);
    for (int turn = 0; turn < 400 && g->w->n_sessions > 0; turn++) {
        char sink[4096];
        size_t piece = CV_MIN(sizeof(requests) - 1 - sent, (size_t)37);
        ssize_t n = piece > 0 ? send(fds[1], requests + sent, piece, MSG_NOSIGNAL) : 0;
        sent += n > 0 ? (size_t)n : 0;
        cv_loop_turn(g->w->loop, 0);
        if (g->dial != NULL && used < 3) {
            struct cv_dial *d = g->dial;
            d->err = 0;
            d->stream = streams[used++];
            g->dial = NULL;
            answered = 0;
            cv_dial_done(d);
        }
        n = used > 0 ? recv(origins[used - 1], sink, sizeof(sink), 0) : 0;
        if (n > 5 && memcmp(sink + n - 5, "y\r\n\r\n", 5) == 0)
            answered = 1; /* a whole request has come */
        if (answered > 0 && answered < sizeof(answers)) {
            piece = CV_MIN(sizeof(answers) - answered, (size_t)11);
            n = send(origins[used - 1], answers + answered - 1, piece, MSG_NOSIGNAL);
            answered += n > 0 ? (size_t)n : 0;
        }
        (void)!recv(fds[1], sink, sizeof(sink), 0);
    }
    bool hit = cv_torture_count() >= nth;
    cv_torture_arm(0);
    cv_session_kill_all(g->w, CV_E_KILLED);
    for (size_t i = used; i < 3; i++)
        cv_stream_close(streams[i], false);
    for (size_t i = 0; i < 3; i++)
        close(origins[i]);
    close(fds[1]);
    if (!hit) {
        T_OK(sent == sizeof(requests) - 1);
        T_INT_EQ(used, 2);
    }
    rig_free(g);
    return hit;
}

static void test_torture(void)
{
    uint64_t nth = 1;

    while (torture(nth) && nth < 2000)
        nth++;
    printf("# %d fallible calls\n", (int)nth - 1);
    T_OK(nth > 10 && nth < 2000);
}
#endif

int main(void)
{
    cv_log_configure(CV_LOG_WARN, CV_LOG_TEXT);
    T_RUN(test_connect);
    T_RUN(test_connect_splits);
    T_RUN(test_authorities);
    T_RUN(test_connect_refused_glued);
    T_RUN(test_login_again);
    T_RUN(test_login_tries);
    T_RUN(test_login_rejects);
    T_RUN(test_login_schemes);
    T_RUN(test_login_with_body);
    T_RUN(test_no_auth_user);
    T_RUN(test_certificate);
    T_RUN(test_login_slow);
    T_RUN(test_forward);
    T_RUN(test_forward_each_its_own);
    T_RUN(test_forward_reuse);
    T_RUN(test_forward_reuse_follows_policy);
    T_RUN(test_forward_reuse_by_user);
    T_RUN(test_forward_retry);
    T_RUN(test_pipelining);
    T_RUN(test_body_length);
    T_RUN(test_body_chunked);
    T_RUN(test_body_malformed);
    T_RUN(test_body_until_close);
    T_RUN(test_no_body);
    T_RUN(test_expect);
    T_RUN(test_early_answer);
    T_RUN(test_upgrade);
    T_RUN(test_upgrade_declined);
    T_RUN(test_framing_conflicts);
    T_RUN(test_head_limits);
    T_RUN(test_slow_head);
    T_RUN(test_stages);
    T_RUN(test_pages);
    T_RUN(test_page_escaping);
    T_RUN(test_bad_origins);
    T_RUN(test_endless_origins);
    T_RUN(test_cut_answers);
    T_RUN(test_unasked_bytes);
    T_RUN(test_half_close);
    T_RUN(test_idle_timeout);
    T_RUN(test_client_leaves);
    T_RUN(test_kill);
    T_RUN(test_draining);
    T_RUN(test_bulk);
    T_RUN(test_slow_reader);
    T_RUN(test_long_answer_ends);
    T_RUN(test_pipeline_is_bounded);
    T_RUN(test_no_secrets);
#ifdef CV_TORTURE
    T_RUN(test_torture);
#endif
    return t_done();
}
