/* The SNI gateway on a real loop with sockets; only the way out is played by the test. */
#include "../proto/hello_samples.h"
#include "flow/relay.h"
#include "inbound/linger.h"
#include "inbound_util.h"

void cv_http_serve(const struct cv_inbound *in)
{
    cv_stream_close(in->stream, false);
}

static struct rig *gateway(const char *identity, uint16_t port)
{
    static const char *const origins[] = {"curl.example", "python.example", "blocked.test"};
    struct rig *g = rig_new();
    g->conf->protocol = CV_LISTENER_SNI;
    g->conf->identity = cv_strdup(identity);
    g->conf->origin_port = port;
    g->conf->sniff.max_bytes = 16384;
    g->conf->origins = cv_zalloc(sizeof(origins));
    for (size_t i = 0; i < CV_ARRAY_SIZE(origins); i++)
        g->conf->origins[g->conf->n_origins++] = cv_strdup(origins[i]);
    return g;
}

static int client(struct rig *g)
{
    int fds[2];
    rig_tcp_pair(fds);
    struct cv_inbound in = rig_inbound(g, rig_adopt(g, fds[0]));
    cv_sni_serve(&in);
    return fds[1];
}

static int client_dialling(struct rig *g)
{
    int fd = client(g);
    say(fd, hello_curl, sizeof(hello_curl));
    TURN_UNTIL(g, g->dial != NULL);
    return fd;
}

#define ALERT(n) "\x15\x03\x03\x00\x02\x02" n

static void test_relay(void)
{
    struct rig *g = gateway("u", 443);
    int fd = client_dialling(g);
    T_STR_EQ(g->dialled, "curl.example:443");
    HEAR_NOTHING(g, fd);
    SAY(fd, "early");
    int origin = rig_dial_ok(g);
    T_OK(hear(g, origin, hello_curl, sizeof(hello_curl)));
    HEAR(g, origin, "early");
    SAY(origin, "answer");
    HEAR(g, fd, "answer");
    close(fd);
    close(origin);
    TURN_UNTIL(g, alog_lines == 1);
    T_OK(log_has("\"protocol\":\"sni\""));
    T_OK(log_has("\"username\":\"u\""));
    T_OK(log_has("\"target_host\":\"curl.example\",\"target_port\":443"));
    T_OK(log_has("\"bytes_up\":522,\"bytes_down\":6"));
    rig_free(g);
}

/* Without a port of its own it dials the one that the client came to. */
static void test_port(void)
{
    struct rig *g = gateway("u", 0);
    int fd = client_dialling(g);
    struct sockaddr_in sa;
    socklen_t len = sizeof(sa);
    char want[64];
    T_INT_EQ(getpeername(fd, (struct sockaddr *)&sa, &len), 0);
    snprintf(want, sizeof(want), "curl.example:%u", ntohs(sa.sin_port));
    T_STR_EQ(g->dialled, want);

    /* A connection to that very place would come back here. */
    struct cv_dial *d = g->dial;
    int fds[2];
    rig_pair(fds);
    d->err = 0;
    d->stream = rig_adopt(g, fds[0]);
    cv_endpoint_from_sockaddr(&d->peer, (struct sockaddr *)&sa);
    g->dial = NULL;
    cv_dial_done(d);
    HEAR(g, fd, ALERT("\x50"));
    T_INT_EQ(hear_end(g, fds[1], false), 0);
    close(fds[1]);
    close(fd);
    TURN_UNTIL(g, alog_lines == 1);
    T_OK(log_has("\"failure_stage\":\"dial\",\"message\":\"origin leads back to this listener\""));
    rig_free(g);
}

static void test_dial_fails(void)
{
    struct rig *g = gateway("u", 443);
    int fd = client_dialling(g);
    rig_dial_fail(g, CV_STAGE_DIAL, -ECONNREFUSED);
    HEAR(g, fd, ALERT("\x50"));
    HEAR_END(g, fd);
    close(fd);
    rig_free(g);
    T_OK(log_has("\"message\":\"connection refused\""));
}

/* One byte of the name changed: 'openssl.example' is none of the origins, and so on. */
static void test_refused(void)
{
    struct rig *g = gateway("u", 443);
    int fd = client(g);
    say(fd, hello_openssl, sizeof(hello_openssl));
    HEAR(g, fd, ALERT("\x70"));
    HEAR_END(g, fd);
    close(fd);
    T_INT_EQ(rig_refused(g, CV_STAGE_SNI_ALLOWLIST), 1);

    fd = client(g);
    say(fd, hello_openssl_noname, sizeof(hello_openssl_noname));
    HEAR(g, fd, ALERT("\x6d"));
    close(fd);
    T_INT_EQ(rig_refused(g, CV_STAGE_SNI), 1);

    fd = client(g); /* "python.example" becomes "blocked.test" with a longer extension name */
    uint8_t hello[sizeof(hello_python)];
    memcpy(hello, hello_python, sizeof(hello));
    uint8_t *name = memmem(hello, sizeof(hello), "python.example", 14);
    T_REQUIRE(name != NULL);
    memcpy(name, "a.blocked.test", 14);
    say(fd, hello, sizeof(hello));
    HEAR(g, fd, ALERT("\x70"));
    close(fd);
    T_INT_EQ(rig_refused(g, CV_STAGE_SNI_ALLOWLIST), 2);
    T_INT_EQ(g->dials, 0);
    rig_free(g);
}

/* A client that leaves ends its dial. */
static void test_leaves(void)
{
    struct rig *g = gateway("u", 443);
    int fd = client_dialling(g);
    struct linger reset = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(g->cancels, 1);
    T_INT_EQ(rig_refused(g, CV_STAGE_DIAL), 1);

    fd = client(g); /* said nothing: no trace */
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    fd = client(g); /* in the middle of a hello */
    say(fd, hello_curl, 100);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(alog_lines, 2);
    T_INT_EQ(rig_refused(g, CV_STAGE_SNI_READ), 1);
    rig_free(g);
}

static void test_identity(void)
{
    struct rig *g = gateway("nobody", 443);
    int fd = client(g);
    HEAR_END(g, fd);
    close(fd);
    T_OK(log_has("\"username\":\"nobody\""));
    T_OK(log_has("\"message\":\"identity is not in the snapshot\""));
    rig_free(g);
    g = gateway("old", 443);
    fd = client(g);
    HEAR_END(g, fd);
    close(fd);
    T_OK(log_has("\"message\":\"user expired\""));
    rig_free(g);
    g = gateway("one", 443); /* one permit, taken before a byte was read */
    int first = client(g), second = client(g);
    HEAR_END(g, second);
    HEAR_NOTHING(g, first);
    T_INT_EQ(rig_refused(g, CV_STAGE_LIMIT), 1);
    close(first);
    close(second);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    fd = client(g);
    HEAR_NOTHING(g, fd);
    close(fd);
    rig_free(g);
}

/* What was read before it came here: all of a hello, or its beginning. */
static void test_early(void)
{
    struct rig *g = gateway("u", 443);
    for (size_t early = 1; early <= sizeof(hello_curl); early += 86) {
        int fds[2];
        rig_tcp_pair(fds);
        struct cv_inbound in = rig_inbound(g, rig_adopt(g, fds[0]));
        in.early = hello_curl;
        in.early_len = early;
        say(fds[1], hello_curl + early, sizeof(hello_curl) - early);
        cv_sni_serve(&in);
        TURN_UNTIL(g, g->dial != NULL);
        int origin = rig_dial_ok(g);
        T_OK(hear(g, origin, hello_curl, sizeof(hello_curl)));
        close(fds[1]);
        close(origin);
        TURN_UNTIL(g, g->w->n_sessions == 0);
    }
    T_INT_EQ(g->dials, 7);
    rig_free(g);
}

/* Ended by an operator in each state. */
static void test_kill(void)
{
    struct rig *g = gateway("u", 443);
    int idle = client(g), dialling = client_dialling(g);
    cv_session_kill_all(g->w, CV_E_KILLED);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    T_INT_EQ(alog_lines, 1);
    T_OK(log_has("\"message\":\"ended by an operator\""));
    close(idle);
    close(dialling);
    int fd = client_dialling(g), origin = rig_dial_ok(g);
    T_OK(hear(g, origin, hello_curl, sizeof(hello_curl)));
    cv_session_kill_all(g->w, CV_E_KILLED);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    close(fd);
    close(origin);
    rig_free(g);
}

int main(void)
{
    T_RUN(test_relay);
    T_RUN(test_port);
    T_RUN(test_early);
    T_RUN(test_dial_fails);
    T_RUN(test_refused);
    T_RUN(test_leaves);
    T_RUN(test_identity);
    T_RUN(test_kill);
    return t_done();
}
