/* The whole SOCKS5 inbound on a real loop with sockets; only the way out is played by the test. */
#include "inbound_util.h"

#include <malloc.h>

#include "common/rand.h"
#include "common/torture.h"
#include "flow/auth.h"
#include "flow/flow.h"
#include "flow/relay.h"
#include "inbound/linger.h"
#include "proto/socks5.h"

#include "inbound/socks5.c" /* for the size of a session and what it keeps */

#define G     "\x05\x01\x00"
#define GA    "\x05\x01\x02"
#define A     "\x01\x01u\x01p"
#define C4    "\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50"
#define OK4   "\x05\x00\x00\x01\x0a\x09\x08\x07\x02\x01"
#define NO(r) "\x05" r "\x00\x01\x00\x00\x00\x00\x00\x00"

void cv_http_serve(const struct cv_inbound *in)
{
    cv_stream_close(in->stream, false);
}

/* Whom the certificates of new clients name. */
static struct cv_rcstr *certificate_user;

static int serve_fd(struct rig *g, int fd)
{
    struct cv_inbound in = rig_inbound(g, rig_adopt(g, fd));
    in.user = certificate_user;
    cv_socks5_serve(&in);
    return fd;
}

/* A client at its first byte. */
static int client(struct rig *g)
{
    int fds[2];
    rig_pair(fds);
    serve_fd(g, fds[0]);
    return fds[1];
}

static int tcp_client(struct rig *g)
{
    int fds[2];
    rig_tcp_pair(fds);
    serve_fd(g, fds[0]);
    return fds[1];
}

static struct socks *only_session(struct rig *g)
{
    return CV_CONTAINER_OF(g->w->sessions.prev, struct socks, super._node);
}

/* A session that has come to the dial. */
static int client_dialling(struct rig *g)
{
    int fd = client(g);
    SAY(fd, GA A C4);
    HEAR(g, fd, "\x05\x02\x01\x00");
    TURN_UNTIL(g, g->dial != NULL);
    return fd;
}

static void test_relay(void)
{
    struct rig *g = rig_new();
    int fd = client(g);
    SAY(fd, GA);
    HEAR(g, fd, "\x05\x02");
    SAY(fd, A);
    HEAR(g, fd, "\x01\x00");
    SAY(fd, "\x05\x01\x00\x03\x0c"
            "Example.TEST\x01\xbb");
    TURN_UNTIL(g, g->dial != NULL);
    T_STR_EQ(g->dialled, "example.test:443");
    HEAR_NOTHING(g, fd); /* the answer comes after the dial */
    int origin = rig_dial_ok(g);
    HEAR(g, fd, OK4);
    SAY(fd, "up");
    HEAR(g, origin, "up");
    SAY(origin, "down!");
    HEAR(g, fd, "down!");
    /* The client says no more; the answer still comes. */
    shutdown(fd, SHUT_WR);
    HEAR_END(g, origin);
    SAY(origin, "more");
    HEAR(g, fd, "more");
    close(origin);
    HEAR_END(g, fd);
    close(fd);
    TURN_UNTIL(g, alog_lines == 1);
    T_OK(log_has("\"protocol\":\"socks5\""));
    T_OK(log_has("\"username\":\"u\""));
    T_OK(log_has("\"target_host\":\"example.test\""));
    T_OK(log_has("\"target_port\":443"));
    T_OK(log_has("\"result\":\"ok\""));
    T_OK(log_has("\"bytes_up\":2"));
    T_OK(log_has("\"bytes_down\":9"));
    rig_free(g);
}

/* The same replies at each split point, with time for the server in between, and byte by byte. */
static void test_splits(void)
{
    static const char hello[] = GA A C4 "early";
    const size_t len = sizeof(hello) - 1;
    struct rig *g = rig_new();
    for (size_t cut = 0; cut < len; cut++) {
        int fd = client(g);
        if (cut == 0) {
            for (size_t i = 0; i < len; i++) {
                say(fd, hello + i, 1);
                rig_settle(g);
            }
        } else {
            say(fd, hello, cut);
            rig_settle(g);
            say(fd, hello + cut, len - cut);
        }
        HEAR(g, fd, "\x05\x02\x01\x00");
        TURN_UNTIL(g, g->dial != NULL);
        T_STR_EQ(g->dialled, "1.2.3.4:80");
        int origin = rig_dial_ok(g);
        HEAR(g, fd, OK4);
        HEAR(g, origin, "early");
        close(fd);
        close(origin);
        TURN_UNTIL(g, g->w->n_sessions == 0);
    }
    T_INT_EQ(alog_lines, len);
    rig_free(g);
}

/* Far more early data than the handshake holds: it waits in the socket, and arrives in order. */
static void test_early_bulk(void)
{
    struct rig *g = rig_new();
    int fd = client(g);
    static uint8_t data[40000], got[40000];
    cv_rand_bytes(data, sizeof(data));
    SAY(fd, GA A C4);
    say(fd, data, 20000);
    TURN_UNTIL(g, g->dial != NULL);
    rig_settle(g);
    T_OK(only_session(g)->hello.kept_len <= CV_SOCKS5_HELLO_MAX);
    say(fd, data + 20000, 20000);
    rig_settle(g);
    T_OK(only_session(g)->hello.kept_len <= CV_SOCKS5_HELLO_MAX);
    HEAR(g, fd, "\x05\x02\x01\x00");
    int origin = rig_dial_ok(g);
    HEAR(g, fd, OK4);
    size_t n = 0;
    int64_t end = cv_clock_mono_ms() + 60000;
    while (n < sizeof(got) && cv_clock_mono_ms() < end) {
        ssize_t rc = recv(origin, got + n, sizeof(got) - n, 0);
        if (rc > 0)
            n += (size_t)rc;
        else
            cv_loop_turn(g->w->loop, 5);
    }
    T_INT_EQ(n, sizeof(data));
    T_MEM_EQ(got, data, sizeof(data));
    close(fd);
    close(origin);
    rig_free(g);
}

static void test_refusals(void)
{
    static const struct {
        struct {
            size_t len;
            char b[64];
        } in, out;
        enum cv_stage stage;
        const char *message; /* part of the log line */
    } t[] = {
#define R(in, out, stage, message) {{sizeof(in) - 1, in}, {sizeof(out) - 1, out}, stage, message}
        R("\x04\x01\x00\x50\x01\x02\x03\x04\x00", "", CV_STAGE_PARSE, "\"error\""),
        R("GET / HTTP/1.1\r\n\r\n", "", CV_STAGE_PARSE, "\"error\""),
        R(G, "\x05\xff", CV_STAGE_AUTH, "authentication failed"),
        R("\x05\x00", "\x05\xff", CV_STAGE_AUTH, "authentication failed"),
        R("\x05\x02\x00\x01", "\x05\xff", CV_STAGE_AUTH, "authentication failed"),
        R(GA "\x05", "\x05\x02", CV_STAGE_PARSE, "\"error\""),
        R(GA "\x01\x01u\x01q", "\x05\x02\x01\x01", CV_STAGE_AUTH, "\"username\":\"u\""),
        R(GA "\x01\x01x\x01p", "\x05\x02\x01\x01", CV_STAGE_AUTH, "\"username\":\"x\""),
        R(GA "\x01\x00\x00", "\x05\x02\x01\x01", CV_STAGE_AUTH, "authentication failed"),
        R(GA "\x01\x01u\x00", "\x05\x02\x01\x01", CV_STAGE_AUTH, "authentication failed"),
        R(GA "\x01\x00\x01p", "\x05\x02\x01\x01", CV_STAGE_AUTH, "authentication failed"),
        R(GA "\x01\x03old\x01p", "\x05\x02\x01\x01", CV_STAGE_AUTH, "user expired"),
        /* Nothing after a failed login is looked at. */
        R(GA "\x01\x01u\x01q" A C4, "\x05\x02\x01\x01", CV_STAGE_AUTH, "authentication failed"),
        R(GA A "\x04\x01", "\x05\x02\x01\x00", CV_STAGE_PARSE, "\"error\""),
        R(GA A "\x05\x02\x00\x01\x01\x02\x03\x04\x00\x50", "\x05\x02\x01\x00" NO("\x07"),
          CV_STAGE_PARSE, "unsupported command"),
        /* The client here is on a Unix socket. */
        R(GA A "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", "\x05\x02\x01\x00" NO("\x07"),
          CV_STAGE_LISTENER, "listener does not carry udp"),
        R(GA A "\x05\x03\x00\x09", "\x05\x02\x01\x00" NO("\x08"), CV_STAGE_PARSE,
          "unsupported address type"),
        R(GA A "\x05\x09", "\x05\x02\x01\x00" NO("\x07"), CV_STAGE_PARSE, "unsupported command"),
        R(GA A "\x05\x01\x00\x02", "\x05\x02\x01\x00" NO("\x08"), CV_STAGE_PARSE,
          "unsupported address type"),
        R(GA A "\x05\x01\x00\x03\x00\x00\x50", "\x05\x02\x01\x00" NO("\x01"), CV_STAGE_PARSE,
          "\"error\""),
        R(GA A "\x05\x01\x00\x03\x03"
               "a b\x00\x50",
          "\x05\x02\x01\x00" NO("\x01"), CV_STAGE_PARSE, "\"error\""),
        R(GA A "\x05\x01\x00\x01\x01\x02\x03\x04\x00\x00", "\x05\x02\x01\x00" NO("\x01"),
          CV_STAGE_PARSE, "\"error\""),
        R(GA A "\x05\x01\x00\x03\x0d"
               "Blocked.Test.\x00\x50",
          "\x05\x02\x01\x00" NO("\x02"), CV_STAGE_POLICY, "blocked by policy"),
        R(GA A "\x05\x01\x00\x03\x08"
               "0x0a.0.1\x00\x50",
          "\x05\x02\x01\x00" NO("\x02"), CV_STAGE_POLICY, "\"target_host\":\"10.0.0.1\""),
        R(GA A "\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x01\x02\x03\x00\x50",
          "\x05\x02\x01\x00" NO("\x02"), CV_STAGE_POLICY, "\"target_host\":\"10.1.2.3\""),
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct rig *g = rig_new();
        int fd = client(g);
        say(fd, t[i].in.b, t[i].in.len);
        bool ok = T_OK(hear(g, fd, t[i].out.b, t[i].out.len));
        ok &= T_INT_EQ(hear_end(g, fd, false), 0);
        close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        ok &= T_INT_EQ(rig_refused(g, t[i].stage), 1);
        ok &= T_INT_EQ(alog_lines, 1);
        ok &= T_OK(log_has(t[i].message));
        T_INT_EQ(g->dials, 0);
        rig_free(g);
        if (!ok)
            printf("#   row %zu\n", i);
    }
}

/* What the way out says becomes the reply code. */
static void test_dial_failures(void)
{
    static const struct {
        enum cv_stage stage;
        int err;
        const char *out;
    } t[] = {
        {CV_STAGE_DNS, CV_E_DNS_NXDOMAIN, NO("\x04")},
        {CV_STAGE_DNS, CV_E_DNS_TIMEOUT, NO("\x04")},
        {CV_STAGE_DIAL, -ECONNREFUSED, NO("\x05")},
        {CV_STAGE_DIAL, -ETIMEDOUT, NO("\x06")},
        {CV_STAGE_DIAL, -EHOSTUNREACH, NO("\x04")},
        {CV_STAGE_DIAL, -ENETUNREACH, NO("\x03")},
        {CV_STAGE_DIAL, CV_E_GUARD, NO("\x02")},
        {CV_STAGE_EGRESS, CV_E_UNSUPPORTED, NO("\x01")},
        {CV_STAGE_OUTBOUND, CV_E_PROTO, NO("\x01")},
    };
    struct rig *g = rig_new();
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        uint64_t before = rig_refused(g, t[i].stage);
        int fd = client_dialling(g);
        rig_dial_fail(g, t[i].stage, t[i].err);
        if (!T_OK(hear(g, fd, t[i].out, 10)))
            printf("#   row %zu\n", i);
        HEAR_END(g, fd);
        close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_INT_EQ(rig_refused(g, t[i].stage), before + 1);
        T_OK(log_has("\"result\":\"error\""));
    }
    rig_free(g);
}

/* The refusal is readable although the client has sent what nobody reads: no reset. */
static void test_refusal_readable(void)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);
    static char junk[60000];
    SAY(fd, GA A "\x05\x02\x00\x01");
    say(fd, junk, sizeof(junk));
    TURN_UNTIL(g, alog_lines == 1);
    rig_settle(g);
    (void)send(fd, junk, 1000, MSG_NOSIGNAL);
    rig_settle(g);
    HEAR(g, fd, "\x05\x02\x01\x00" NO("\x07"));
    HEAR_END(g, fd);
    close(fd);
    rig_free(g);
}

/* A client that stays after its refusal is closed in the end, and can be killed before. */
static void test_refusal_lingers(void)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);
    SAY(fd, G);
    HEAR(g, fd, "\x05\xff");
    HEAR_END(g, fd);
    T_INT_EQ(alog_lines, 1);
    T_INT_EQ(g->w->n_sessions, 1); /* its line is written, the descriptor is still bounded */
    cv_session_kill_all(g->w, CV_E_DRAINING);
    T_INT_EQ(g->w->n_sessions, 0);
    T_INT_EQ(alog_lines, 1);
    close(fd);
    rig_free(g);
}

static void test_no_auth_user(void)
{
    static const struct {
        const char *user; /* of the listener */
        size_t len;
        char greeting[8];
        const char *answer;
    } t[] = {
        {"u", 3, "\x05\x01\x00", "\x05\x00"},          {"u", 4, "\x05\x02\x00\x02", "\x05\x00"},
        {"u", 4, "\x05\x02\x02\x00", "\x05\x00"},      {"u", 3, "\x05\x01\x02", "\x05\x02"},
        {"u", 3, "\x05\x01\x01", "\x05\xff"},          {"nobody", 3, "\x05\x01\x00", "\x05\xff"},
        {"nobody", 4, "\x05\x02\x00\x02", "\x05\x02"}, {"old", 3, "\x05\x01\x00", "\x05\xff"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct rig *g = rig_new();
        g->conf->no_auth_user = cv_strdup(t[i].user);
        int fd = client(g);
        say(fd, t[i].greeting, t[i].len);
        if (!T_OK(hear(g, fd, t[i].answer, 2)))
            printf("#   row %zu\n", i);
        if (t[i].answer[1] == 0) {
            SAY(fd, C4);
            TURN_UNTIL(g, g->dial != NULL);
            int origin = rig_dial_ok(g);
            HEAR(g, fd, OK4);
            close(origin);
            HEAR_END(g, fd);
        }
        close(fd);
        TURN_UNTIL(g, alog_lines == 1);
        if (t[i].answer[1] == 0)
            T_OK(log_has("\"username\":\"u\""));
        rig_free(g);
    }
}

static void test_certificate(void)
{
    static const struct {
        const char *user; /* of the certificate */
        size_t len;
        char in[24];
        size_t n;
        const char *answer;
        const char *log;
    } t[] = {
        {"u", 3, "\x05\x01\x00", 2, "\x05\x00", "\"username\":\"u\""},
        {"u", 4, "\x05\x02\x02\x00", 2, "\x05\x00", "\"username\":\"u\""},
        {"u", 8, "\x05\x01\x02\x01\x01u\x01p", 4, "\x05\x02\x01\x00", "\"username\":\"u\""},
        {"u", 8, "\x05\x01\x02\x01\x01u\x01q", 4, "\x05\x02\x01\x01", "\"auth\""},
        {"u", 10, "\x05\x01\x02\x01\x03one\x01p", 4, "\x05\x02\x01\x01", "\"username\":\"one\""},
        {"u", 3, "\x05\x01\x01", 2, "\x05\xff", "\"auth\""},
        /* Nobody's certificate is not the listener's user either, nor does a login help. */
        {"nobody", 3, "\x05\x01\x00", 2, "\x05\xff", "\"username\":\"nobody\""},
        {"nobody", 4, "\x05\x02\x00\x02", 2, "\x05\xff", "\"username\":\"nobody\""},
        {"nobody", 8, "\x05\x01\x02\x01\x01u\x01p", 4, "\x05\x02\x01\x01", "\"auth\""},
        {"old", 4, "\x05\x02\x00\x02", 2, "\x05\xff", "expired"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct rig *g = rig_new();
        int before = t_case_failed;
        g->conf->no_auth_user = cv_strdup("one");
        certificate_user = cv_rcstr_new(t[i].user, strlen(t[i].user));
        int fd = client(g);
        cv_rcstr_unref(certificate_user); /* the session has its own */
        certificate_user = NULL;
        say(fd, t[i].in, t[i].len);
        T_OK(hear(g, fd, t[i].answer, t[i].n));
        if (t[i].answer[t[i].n - 1] != 0)
            HEAR_END(g, fd);
        close(fd);
        TURN_UNTIL(g, alog_lines == 1);
        T_OK(log_has(t[i].log));
        rig_free(g);
        if (t_case_failed != before)
            printf("#   row %zu\n", i);
    }
}

/* Without users every login fails, and "no login" is never offered in its place. */
static void test_empty_policy(void)
{
    struct rig *g = rig_new();
    rig_policy(g, "{\"schema_version\":1,\"version\":8}");
    int fd = client(g);
    SAY(fd, "\x05\x02\x00\x02");
    HEAR(g, fd, "\x05\x02");
    SAY(fd, A);
    HEAR(g, fd, "\x01\x01");
    HEAR_END(g, fd);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(cv_counter_get(&g->node.stats.auth_failed), 1);
    rig_free(g);
}

static void test_max_connections(void)
{
    static const char hello[] = GA "\x01\x03one\x01p" C4;
    struct rig *g = rig_new();
    int a = client(g), b = client(g);
    say(a, hello, sizeof(hello) - 1);
    TURN_UNTIL(g, g->dial != NULL);
    int origin = rig_dial_ok(g);
    HEAR(g, a, "\x05\x02\x01\x00" OK4);
    say(b, hello, sizeof(hello) - 1);
    HEAR(g, b, "\x05\x02\x01\x00" NO("\x02"));
    HEAR_END(g, b);
    close(b);
    T_INT_EQ(rig_refused(g, CV_STAGE_LIMIT), 1);
    close(a);
    HEAR_END(g, origin);
    close(origin);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    /* The permit is free again when the refusal of a failed dial can be read. */
    for (int i = 0; i < 2; i++) {
        b = client(g);
        say(b, hello, sizeof(hello) - 1);
        TURN_UNTIL(g, g->dial != NULL);
        rig_dial_fail(g, CV_STAGE_DIAL, -ECONNREFUSED);
        HEAR(g, b, "\x05\x02\x01\x00" NO("\x05"));
        close(b);
    }
    rig_free(g);
}

/* A login that is checked on another thread; what the client has sent ahead waits for it. */
static void argon_policy(struct rig *g)
{
    char stored[CV_PASSWD_STRLEN], json[1024];
    if (cv_passwd_hash(CV_PASSWD_ARGON2ID, "p", 1, stored, sizeof(stored)) != 0)
        abort();
    snprintf(json, sizeof(json),
             "{\"schema_version\":1,\"version\":9,\"users\":{\"u\":{\"password\":\"%s\","
             "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{}}}",
             stored);
    rig_policy(g, json);
}

static void test_slow_login(void)
{
    struct rig *g = rig_new();
    argon_policy(g);
    int fd = client(g), bad = client(g);
    SAY(fd, GA A C4 "early");
    SAY(bad, GA "\x01\x01u\x01q" C4);
    HEAR(g, fd, "\x05\x02\x01\x00");
    TURN_UNTIL(g, g->dial != NULL);
    int origin = rig_dial_ok(g);
    HEAR(g, fd, OK4);
    HEAR(g, origin, "early");
    HEAR(g, bad, "\x05\x02\x01\x01");
    HEAR_END(g, bad);
    close(fd);
    close(bad);
    close(origin);
    TURN_UNTIL(g, alog_lines == 2);
    rig_free(g);
}

/* Bytes that come while the login is checked are read afterwards. */
static void test_slow_login_then_more(void)
{
    struct rig *g = rig_new();
    argon_policy(g);
    int fd = client(g);
    SAY(fd, GA A);
    HEAR(g, fd, "\x05\x02");
    T_INT_EQ(only_session(g)->state, SOCKS_STATE_AUTH);
    SAY(fd, C4);
    cv_loop_turn(g->w->loop, 0);
    HEAR(g, fd, "\x01\x00");
    TURN_UNTIL(g, g->dial != NULL);
    close(rig_dial_ok(g));
    HEAR(g, fd, OK4);
    HEAR_END(g, fd);
    close(fd);
    rig_free(g);
}

/* The time is for all of the handshake, not for each read. */
static void test_timeout(void)
{
    struct rig *g = rig_new();
    g->settings->handshake_timeout_ms = 60;
    int fd = client(g);
    SAY(fd, GA "\x01\xff");
    int64_t start = cv_clock_mono_ms();
    int sent = 0;
    while (sent < 250 && alog_lines == 0) {
        if (cv_clock_mono_ms() - start >= 2 * sent) { /* each byte is soon enough by itself */
            (void)send(fd, "x", 1, MSG_NOSIGNAL);
            sent++;
        }
        cv_loop_turn(g->w->loop, 1);
    }
    T_OK(sent > 5 && sent < 250);
    T_OK(cv_clock_mono_ms() - start >= 50);
    HEAR(g, fd, "\x05\x02");
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(alog_lines, 1);
    T_OK(log_has("handshake timed out"));
    T_INT_EQ(rig_refused(g, CV_STAGE_PARSE), 1);

    /* The dial has a limit of its own. */
    fd = client_dialling(g);
    int64_t until = cv_clock_mono_ms() + 100;
    while (cv_clock_mono_ms() < until)
        cv_loop_turn(g->w->loop, 20);
    T_OK(g->dial != NULL);
    close(rig_dial_ok(g));
    HEAR(g, fd, OK4);
    close(fd);
    rig_free(g);
}

/* Who connects and says nothing leaves no line, however it ends. */
static void test_silent(void)
{
    struct rig *g = rig_new();
    g->settings->handshake_timeout_ms = 30;
    int fd = client(g);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    fd = tcp_client(g);
    struct linger reset = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    fd = tcp_client(g);
    shutdown(fd, SHUT_WR);
    HEAR_END(g, fd);
    close(fd);
    fd = client(g);
    HEAR_END(g, fd); /* by time */
    close(fd);
    fd = client(g);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    T_INT_EQ(g->w->n_sessions, 0);
    close(fd);
    T_INT_EQ(alog_lines, 0);
    T_INT_EQ(cv_counter_get(&g->conf->stats->row.sessions), 0);
    rig_free(g);
}

/* Who leaves in the middle does leave a line. */
static void test_left_in_handshake(void)
{
    static const char hello[] = GA A C4;
    struct rig *g = rig_new();
    for (size_t n = 1; n < sizeof(hello) - 1; n++) {
        int fd = n % 2 > 0 ? client(g) : tcp_client(g);
        say(fd, hello, n);
        rig_settle(g);
        close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_INT_EQ(alog_lines, n);
        T_OK(log_has("\"failure_stage\":\"parse\""));
        T_OK(log_has("client went away"));
    }
    rig_free(g);
}

/* The dial is given up when its client goes away: closed, reset, or ended with nothing to say. */
static void test_vanished_while_dialling(void)
{
    for (int how = 0; how < 4; how++) {
        struct rig *g = rig_new();
        int fd = how == 0 ? client(g) : tcp_client(g);
        SAY(fd, GA A C4);
        HEAR(g, fd, "\x05\x02\x01\x00");
        TURN_UNTIL(g, g->dial != NULL);
        if (how == 2) {
            struct linger reset = {.l_onoff = 1};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        }
        if (how == 3)
            shutdown(fd, SHUT_WR);
        else
            close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_INT_EQ(g->cancels, 1);
        T_INT_EQ(rig_refused(g, CV_STAGE_DIAL), 1);
        T_OK(log_has("client went away"));
        if (how == 3)
            close(fd);
        rig_free(g);
    }
}

/* Payload and then the end of the client's side, all before the dial is over: a half-close. */
static void test_half_close_while_dialling(void)
{
    for (int how = 0; how < 2; how++) {
        struct rig *g = rig_new();
        int fd = tcp_client(g);
        if (how == 0) {
            SAY(fd, GA A C4 "request");
            shutdown(fd, SHUT_WR);
            TURN_UNTIL(g, g->dial != NULL);
        } else {
            SAY(fd, GA A C4);
            TURN_UNTIL(g, g->dial != NULL);
            SAY(fd, "request");
            shutdown(fd, SHUT_WR);
        }
        rig_settle(g);
        T_INT_EQ(g->cancels, 0);
        int origin = rig_dial_ok(g);
        HEAR(g, origin, "request");
        HEAR_END(g, origin);
        SAY(origin, "answer");
        close(origin);
        HEAR(g, fd, "\x05\x02\x01\x00" OK4 "answer");
        HEAR_END(g, fd);
        close(fd);
        rig_free(g);
    }
}

/* A client that has sent its request and is gone before the dial began. */
static void test_gone_at_success(void)
{
    struct rig *g = rig_new();
    int fd = tcp_client(g);
    SAY(fd, GA A C4);
    close(fd); /* request and end come together */
    TURN_UNTIL(g, g->dial != NULL || alog_lines == 1);
    if (g->dial != NULL) {
        int origin = rig_dial_ok(g);
        close(origin);
    }
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(alog_lines, 1);
    rig_free(g);
}

static void test_kill(void)
{
    struct rig *g = rig_new();
    argon_policy(g);
    static const struct {
        size_t len;
        char b[32];
        enum socks_state state;
    } t[] = {
        {1, "\x05", SOCKS_STATE_GREETING}, {3, GA, SOCKS_STATE_LOGIN},
        {8, GA A, SOCKS_STATE_AUTH},       {8, GA A, SOCKS_STATE_REQUEST},
        {18, GA A C4, SOCKS_STATE_DIAL},   {18, GA A C4, SOCKS_STATE_RELAY},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        int fd = client(g), origin = -1;
        say(fd, t[i].b, t[i].len);
        struct socks *s = only_session(g);
        if (t[i].state == SOCKS_STATE_RELAY) {
            TURN_UNTIL(g, g->dial != NULL);
            origin = rig_dial_ok(g);
            HEAR(g, fd, "\x05\x02\x01\x00" OK4);
        }
        if (t[i].state == SOCKS_STATE_GREETING)
            rig_settle(g);
        TURN_UNTIL(g, s->state == t[i].state);
        cv_session_kill_all(g->w, CV_E_KILLED);
        cv_session_kill_all(g->w, CV_E_DRAINING); /* twice is once */
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_INT_EQ(alog_lines, i + 1);
        T_OK(log_has("ended by an operator"));
        T_INT_EQ(g->cancels, i >= 4 ? 1 : 0);
        close(fd);
        if (origin >= 0)
            close(origin);
    }
    rig_free(g);
}

/* -- a client whose socket takes nothing, or one byte at a time -- */

struct slow_stream {
    struct cv_stream super;
    struct cv_task release;
    const uint8_t *in;
    size_t in_len;
    uint8_t out[256];
    size_t out_len;
    size_t allow; /* how many bytes send takes before -EAGAIN */
    bool closed, said_end;
};

static int slow_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct slow_stream *q = CV_CONTAINER_OF(s, struct slow_stream, super);
    if (q->in_len == 0)
        return -EAGAIN;
    *ret_n = CV_MIN(cap, q->in_len);
    memcpy(buf, q->in, *ret_n);
    q->in += *ret_n;
    q->in_len -= *ret_n;
    return 0;
}

static int slow_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct slow_stream *q = CV_CONTAINER_OF(s, struct slow_stream, super);
    if (q->allow == 0)
        return -EAGAIN;
    size_t n = CV_MIN(iov[0].iov_len, q->allow);
    memcpy(q->out + q->out_len, iov[0].iov_base, n);
    q->out_len += n;
    q->allow -= n;
    *ret_n = n;
    return 0;
}

static int slow_shutdown(struct cv_stream *s)
{
    CV_CONTAINER_OF(s, struct slow_stream, super)->said_end = true;
    return 0;
}

static void slow_close(struct cv_stream *s, bool abort)
{
    CV_CONTAINER_OF(s, struct slow_stream, super)->closed = true;
    cv_stream_set_cb(s, NULL, NULL);
}

static int slow_fd(const struct cv_stream *s)
{
    return -1;
}

static const struct cv_stream_ops slow_ops = {
    .name = "slow",
    .recv = slow_recv,
    .send = slow_send,
    .shutdown_send = slow_shutdown,
    .close = slow_close,
    .raw_fd = slow_fd,
    .socket_fd = slow_fd,
};

static void slow_serve(struct rig *g, struct slow_stream *q, const void *in, size_t len)
{
    *q = (struct slow_stream){.super = {.ops = &slow_ops, .loop = g->w->loop}};
    struct cv_inbound inbound = rig_inbound(g, &q->super);
    inbound.early = in;
    inbound.early_len = len;
    cv_socks5_serve(&inbound);
}

static void test_slow_socket(void)
{
    struct rig *g = rig_new();
    struct slow_stream q;
    /* Answers pile up, then leave byte by byte, in order. */
    slow_serve(g, &q, GA A C4, 18);
    TURN_UNTIL(g, g->dial != NULL);
    T_INT_EQ(q.out_len, 0);
    while (q.out_len < 3) {
        q.allow = 1;
        cv_stream_notify(&q.super, CV_STREAM_WRITE);
    }
    int origin = rig_dial_ok(g); /* one byte of the login's answer is left, and the reply */
    T_INT_EQ(q.out_len, 3);
    SAY(origin, "!");
    rig_settle(g);
    for (int i = 0; i < 20; i++) {
        q.allow = 1;
        cv_stream_notify(&q.super, CV_STREAM_WRITE);
    }
    T_INT_EQ(q.out_len, 15);
    T_MEM_EQ(q.out, "\x05\x02\x01\x00" OK4 "!", 15);
    close(origin);
    cv_session_kill_all(g->w, CV_E_KILLED);
    rig_settle(g);
    T_OK(q.closed);
    rig_free(g);
}

static void test_slow_refusal(void)
{
    struct rig *g = rig_new();
    g->settings->handshake_timeout_ms = 40;
    struct slow_stream q;
    slow_serve(g, &q, G, 3);
    T_INT_EQ(only_session(g)->state, SOCKS_STATE_REFUSE);
    q.allow = 1;
    cv_stream_notify(&q.super, CV_STREAM_WRITE);
    T_INT_EQ(only_session(g)->state, SOCKS_STATE_REFUSE);
    q.allow = 1;
    cv_stream_notify(&q.super, CV_STREAM_WRITE);
    T_INT_EQ(q.out_len, 2);
    T_MEM_EQ(q.out, "\x05\xff", 2);
    T_OK(q.said_end);
    T_INT_EQ(alog_lines, 1);
    cv_session_kill_all(g->w, CV_E_KILLED);
    T_OK(q.closed);

    /* It never gets out: also this ends by time, before the dial and after it. */
    slow_serve(g, &q, G, 3);
    TURN_UNTIL(g, q.closed);
    slow_serve(g, &q, GA A C4, 18);
    rig_dial_fail(g, CV_STAGE_DIAL, -ECONNREFUSED);
    T_OK(!q.closed);
    TURN_UNTIL(g, q.closed);
    T_INT_EQ(alog_lines, 3);
    T_OK(log_has("connection refused"));
    slow_serve(g, &q, G, 3);
    cv_session_kill_all(g->w, CV_E_KILLED);
    T_OK(q.closed);
    rig_free(g);
}

/* The bytes that an idle session costs beside the kernel's. */
static void test_memory(void)
{
    struct rig *g = rig_new();
    int fd = client_dialling(g);
    struct socks *s = only_session(g);
    int origin = rig_dial_ok(g);
    HEAR(g, fd, OK4);
    SAY(fd, "x");
    HEAR(g, origin, "x");
    size_t session = malloc_usable_size(s);
    size_t streams =
        malloc_usable_size(s->relay._dir[0].src) + malloc_usable_size(s->relay._dir[0].dst);
    size_t target = malloc_usable_size(s->super.target_host);
    printf("# session %zu, streams %zu, target %zu bytes\n", session, streams, target);
    T_OK(session >= sizeof(struct socks));
    T_OK(session + streams + target + 4 * 16 < 1024); /* with the allocator's own share */
    T_OK(s->relay._dir[0].pending == NULL && s->relay._dir[1].pending == NULL);
    T_OK(s->relay._dir[0].pipe.rd < 0 && s->relay._dir[1].pipe.rd < 0);
    close(fd);
    close(origin);
    rig_free(g);
}

/* Many at once, in random pieces and orders, ended in random ways: everything is accounted for. */
static void test_random(void)
{
    static const char hello[] = GA A C4 "payload";
    struct rig *g = rig_new();
    for (int round = 0; round < 300; round++) {
        int fd = cv_rand_below(2) > 0 ? client(g) : tcp_client(g);
        size_t stop = cv_rand_below(4) > 0 ? sizeof(hello) - 1 : cv_rand_below(sizeof(hello) - 1);
        for (size_t at = 0; at < stop;) {
            size_t n = 1 + cv_rand_below((uint32_t)(stop - at));
            (void)send(fd, hello + at, n, MSG_NOSIGNAL);
            at += n;
            if (cv_rand_below(2) > 0)
                cv_loop_turn(g->w->loop, 0);
        }
        rig_settle(g);
        int origin = -1;
        if (g->dial != NULL) {
            if (cv_rand_below(3) == 0)
                rig_dial_fail(g, CV_STAGE_DIAL, -ECONNREFUSED);
            else if (cv_rand_below(8) > 0)
                origin = rig_dial_ok(g);
        }
        if (cv_rand_below(4) == 0)
            cv_session_kill_all(g->w, CV_E_KILLED);
        close(fd);
        if (origin >= 0)
            close(origin);
        TURN_UNTIL(g, g->w->n_sessions == 0);
        T_OK(g->dial == NULL);
    }
    rig_free(g);
}

/* Each fallible call in turn fails: whatever becomes of the session, nothing is left of it. */
#ifdef CV_TORTURE
static void tortured_session(struct rig *g, int fds[2])
{
    static const char hello[] = GA A "\x05\x01\x00\x03\x06"
                                     "h.test\x00\x50"
                                     "early";
    struct cv_stream *s, *way_out;
    int out[2];
    if (cv_tcp_adopt(g->w->loop, fds[0], &s) != 0)
        return;
    struct cv_inbound in = rig_inbound(g, s);
    cv_socks5_serve(&in);
    for (size_t i = 0; i < sizeof(hello) - 1; i += 7) {
        (void)send(fds[1], hello + i, CV_MIN(sizeof(hello) - 1 - i, (size_t)7), MSG_NOSIGNAL);
        rig_settle(g);
    }
    struct cv_dial *d = g->dial;
    if (d == NULL)
        return;
    rig_pair(out);
    d->err = cv_tcp_adopt(g->w->loop, out[0], &way_out);
    d->stage = d->err != 0 ? CV_STAGE_DIAL : CV_STAGE_NONE;
    d->stream = d->err == 0 ? way_out : NULL;
    g->dial = NULL;
    cv_dial_done(d);
    (void)send(out[1], "answer", 6, MSG_NOSIGNAL);
    rig_settle(g);
    close(out[1]);
}
#endif

static void test_torture(void)
{
#ifdef CV_TORTURE
    uint64_t nth = 0, calls = 0;
    do {
        struct rig *g = rig_new();
        int fds[2];
        rig_pair(fds);
        cv_torture_arm(++nth);
        tortured_session(g, fds);
        calls = cv_torture_count();
        cv_torture_arm(0);
        close(fds[1]);
        rig_settle(g);
        cv_session_kill_all(g->w, CV_E_KILLED);
        rig_free(g);
    } while (nth <= calls && nth < 500);
    printf("# %llu calls\n", (unsigned long long)calls);
    T_OK(calls > 20 && nth < 500);
#else
    T_OK(true); /* only in a build with -Dtorture=true */
#endif
}

int main(void)
{
    T_RUN(test_relay);
    T_RUN(test_splits);
    T_RUN(test_early_bulk);
    T_RUN(test_refusals);
    T_RUN(test_dial_failures);
    T_RUN(test_refusal_readable);
    T_RUN(test_refusal_lingers);
    T_RUN(test_no_auth_user);
    T_RUN(test_certificate);
    T_RUN(test_empty_policy);
    T_RUN(test_max_connections);
    T_RUN(test_slow_login);
    T_RUN(test_slow_login_then_more);
    T_RUN(test_timeout);
    T_RUN(test_silent);
    T_RUN(test_left_in_handshake);
    T_RUN(test_vanished_while_dialling);
    T_RUN(test_half_close_while_dialling);
    T_RUN(test_gone_at_success);
    T_RUN(test_kill);
    T_RUN(test_slow_socket);
    T_RUN(test_slow_refusal);
    T_RUN(test_memory);
    T_RUN(test_random);
    T_RUN(test_torture);
    return t_done();
}
