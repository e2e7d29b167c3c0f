/* Telling protocols apart by the first byte, with and without TLS. The protocols are played by the
 * test; so is TLS, by a stream that wants "\x16TLS" first and passes the rest through. */
#include "inbound_util.h"

#include "inbound/detect.h"

static struct {
    char protocol; /* 's', 'h', 'n' or 0 */
    struct cv_stream *stream;
    uint8_t early[CV_INBOUND_EARLY_MAX];
    size_t early_len;
    int64_t accepted_ms;
    struct cv_listener_conf *conf;
    char user[64];             /* "" : none */
    struct cv_session session; /* the protocols begin one */
} served;

static void on_kill_served(struct cv_session *s, int err)
{
    cv_session_drop(s);
}

static void serve_as(char protocol, const struct cv_inbound *in)
{
    static const struct cv_session_ops ops = {.kill = on_kill_served};
    T_OK(served.protocol == 0);
    served.protocol = protocol;
    served.stream = in->stream;
    served.early_len = in->early_len;
    served.accepted_ms = in->accepted_ms;
    served.conf = in->conf;
    T_REQUIRE(in->early_len <= sizeof(served.early));
    if (in->early_len > 0)
        memcpy(served.early, in->early, in->early_len);
    snprintf(served.user, sizeof(served.user), "%s", cv_rcstr_text(in->user));
    cv_session_begin(&served.session, in->worker, &ops, "test", in->conf->stats, &in->client);
}

void cv_socks5_serve(const struct cv_inbound *in)
{
    serve_as('s', in);
}

void cv_http_serve(const struct cv_inbound *in)
{
    serve_as('h', in);
}

void cv_sni_serve(const struct cv_inbound *in)
{
    serve_as('n', in);
}

static void served_end(void)
{
    if (served.protocol != 0) {
        cv_stream_close(served.stream, false);
        cv_session_drop(&served.session);
    }
    memset(&served, 0, sizeof(served));
}

/* -- TLS, played -- */

struct cv_tls_server_ctx {
    int refs;
};
static struct cv_tls_server_ctx tls_ctx;
static bool tls_fail_new;
static const char *tls_user; /* whom the certificate names */
static int tls_user_err = CV_E_NOTFOUND;

struct fake_tls {
    struct cv_stream super;
    struct cv_stream *below;
    struct cv_task release;
    uint8_t early[CV_INBOUND_EARLY_MAX];
    size_t early_len;
    bool is_open;
};

void cv_tls_server_ctx_unref(struct cv_tls_server_ctx *ctx)
{
    if (ctx != NULL)
        ctx->refs--;
}

static int fake_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct fake_tls *t = CV_CONTAINER_OF(s, struct fake_tls, super);
    for (;;) {
        if (!t->is_open && t->early_len >= 4) {
            if (memcmp(t->early, "\x16TLS", 4) != 0)
                return CV_E_TLS;
            t->early_len -= 4;
            memmove(t->early, t->early + 4, t->early_len);
            t->is_open = true;
        }
        if (t->is_open && t->early_len > 0) {
            *ret_n = CV_MIN(cap, t->early_len);
            memcpy(buf, t->early, *ret_n);
            t->early_len -= *ret_n;
            memmove(t->early, t->early + *ret_n, t->early_len);
            return 0;
        }
        size_t n;
        int ret =
            cv_stream_recv(t->below, t->early + t->early_len, sizeof(t->early) - t->early_len, &n);
        if (ret < 0)
            return ret;
        if (n == 0 && !t->is_open)
            return CV_E_TLS;
        if (n == 0) {
            *ret_n = 0;
            return 0;
        }
        t->early_len += n;
    }
}

bool cv_tls_is_established(const struct cv_stream *s)
{
    return CV_CONTAINER_OF((struct cv_stream *)(uintptr_t)s, struct fake_tls, super)->is_open;
}

const char *cv_tls_fault(const struct cv_stream *s)
{
    return "a fault";
}

int cv_tls_peer_user(const struct cv_stream *s, char out[CV_TLS_USER_MAX + 1])
{
    T_OK(cv_tls_is_established(s));
    if (tls_user_err == 0)
        snprintf(out, CV_TLS_USER_MAX + 1, "%s", tls_user);
    return tls_user_err;
}

static void fake_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct fake_tls, release));
}

static void fake_close(struct cv_stream *s, bool abort)
{
    struct fake_tls *t = CV_CONTAINER_OF(s, struct fake_tls, super);
    cv_stream_close(t->below, abort);
    cv_stream_set_cb(s, NULL, NULL);
    t->release = (struct cv_task){.fn = fake_release};
    cv_loop_defer(s->loop, &t->release);
}

static void fake_on_below(void *arg, struct cv_stream *s, unsigned events)
{
    struct fake_tls *t = arg;
    cv_stream_notify(&t->super, events);
}

static const struct cv_stream_ops fake_ops = {
    .name = "tls", .recv = fake_recv, .close = fake_close};

int cv_tls_server(struct cv_tls_server_ctx *ctx, struct cv_stream *below, const void *early,
                  size_t early_len, struct cv_stream **ret_stream)
{
    T_OK(ctx == &tls_ctx);
    if (tls_fail_new) {
        cv_stream_close(below, false);
        return -ENOMEM;
    }
    struct fake_tls *t = cv_zalloc(sizeof(*t));
    t->super = (struct cv_stream){.ops = &fake_ops, .loop = below->loop};
    t->below = below;
    t->early_len = early_len;
    memcpy(t->early, early, early_len);
    cv_stream_set_cb(below, fake_on_below, t);
    *ret_stream = &t->super;
    return 0;
}

/* -- tests -- */

static int on_empty_calls;

static void on_empty(struct cv_worker *w)
{
    on_empty_calls++;
}

static struct rig *detect_rig(enum cv_listener_protocol protocol, bool tls)
{
    struct rig *g = rig_new();
    g->conf->protocol = protocol;
    if (tls) {
        tls_ctx.refs++;
        g->conf->tls = &tls_ctx;
    }
    memset(&served, 0, sizeof(served));
    on_empty_calls = 0;
    g->w->on_empty = on_empty;
    return g;
}

static int client(struct rig *g)
{
    int fds[2];
    rig_pair(fds);
    struct cv_inbound in = rig_inbound(g, rig_adopt(g, fds[0]));
    in.accepted_ms -= 5;
    cv_detect_start(&in);
    return fds[1];
}

struct row {
    enum cv_listener_protocol listener;
    bool tls;
    size_t len;
    char in[32];
    char protocol;    /* that serves it; 0: refused */
    const char *rest; /* what it is handed */
    enum cv_stage stage;
    const char *log;
};

static const struct row rows[] = {
#define ROW(l, tls, in, ...) {CV_LISTENER_##l, tls, sizeof(in) - 1, in, __VA_ARGS__}
    ROW(MIXED, false, "\x05\x01", 's', "\x05\x01", 0, NULL),
    ROW(MIXED, false, "GET /", 'h', "GET /", 0, NULL),
    ROW(MIXED, false, "z", 'h', "z", 0, NULL),
    ROW(MIXED, false, "C", 'h', "C", 0, NULL),
    ROW(MIXED, false, "\x04\x01", 0, NULL, CV_STAGE_PARSE, "\"protocol\":\"mixed\""),
    ROW(MIXED, false, "\x16TLS\x05", 0, NULL, CV_STAGE_PARSE, NULL),
    ROW(MIXED, false, "\r\nGET /", 'h', "\r\nGET /", 0, NULL), /* RFC 9112 2.2 */
    ROW(MIXED, false, "\n", 'h', "\n", 0, NULL),
    ROW(MIXED, false, " GET", 0, NULL, CV_STAGE_PARSE, NULL),
    ROW(MIXED, false, "@", 0, NULL, CV_STAGE_PARSE, NULL),
    ROW(MIXED, false, "[", 0, NULL, CV_STAGE_PARSE, NULL),
    ROW(MIXED, false, "{", 0, NULL, CV_STAGE_PARSE, NULL),
    ROW(MIXED, false, "\xff", 0, NULL, CV_STAGE_PARSE, NULL),
    /* With TLS, "mixed" takes both, and the inner protocol is found the same way. */
    ROW(MIXED, true, "\x05\x01", 's', "\x05\x01", 0, NULL),
    ROW(MIXED, true, "GET /", 'h', "GET /", 0, NULL),
    ROW(MIXED, true, "\x16TLS\x05\x01", 's', "\x05\x01", 0, NULL),
    ROW(MIXED, true, "\x16TLSGET /", 'h', "GET /", 0, NULL),
    ROW(MIXED, true, "\x16TLS\x16TLS\x05", 0, NULL, CV_STAGE_PARSE, NULL),
    ROW(MIXED, true, "\x16nope", 0, NULL, CV_STAGE_TLS, "\"failure_stage\":\"tls\""),
    /* The others take nothing but TLS, and do not guess. */
    ROW(SOCKS5, true, "\x16TLS\x05\x01", 's', "\x05\x01", 0, NULL),
    ROW(SOCKS5, true, "\x16TLSGET /", 's', "GET /", 0, NULL),
    ROW(SOCKS5, true, "\x05\x01\x02", 0, NULL, CV_STAGE_TLS, "\"protocol\":\"socks5\""),
    ROW(HTTP, true, "\x16TLSGET /", 'h', "GET /", 0, NULL),
    ROW(HTTP, true, "GET / HTTP/1.1", 0, NULL, CV_STAGE_TLS, "\"protocol\":\"http\""),
    ROW(HTTP, true, "\x16nope", 0, NULL, CV_STAGE_TLS, NULL),
};

static void run_row(const struct row *r, bool bytewise)
{
    struct rig *g = detect_rig(r->listener, r->tls);
    int fd = client(g);
    for (size_t i = 0; bytewise && i < r->len && served.protocol == 0 && alog_lines == 0; i++) {
        say(fd, r->in + i, 1);
        rig_settle(g);
    }
    if (!bytewise)
        say(fd, r->in, r->len);
    TURN_UNTIL(g, served.protocol != 0 || alog_lines > 0);
    T_INT_EQ(served.protocol, r->protocol);
    if (r->protocol != 0) {
        T_OK(served.early_len >= 1);
        T_OK(bytewise || served.early_len == strlen(r->rest));
        T_MEM_EQ(served.early, r->rest, served.early_len);
        T_OK(served.accepted_ms <= cv_loop_now(g->w->loop) - 5);
        T_OK(served.conf == g->conf);
        T_INT_EQ(g->w->n_sessions, 1);
        T_INT_EQ(alog_lines, 0);
        T_INT_EQ(on_empty_calls, 0); /* not even for a moment without a session */
    } else {
        T_INT_EQ(rig_refused(g, r->stage), 1);
        T_OK(r->log == NULL || log_has(r->log));
        T_INT_EQ(g->w->n_sessions, 0);
    }
    close(fd);
    served_end();
    rig_free(g);
    T_INT_EQ(tls_ctx.refs, 0);
}

static void test_first_byte(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        int before = t_case_failed;
        run_row(&rows[i], false);
        run_row(&rows[i], true);
        if (t_case_failed != before)
            printf("#   row %zu\n", i);
    }
}

/* Who says nothing leaves no line. */
static void test_silent(void)
{
    for (int tls = 0; tls < 2; tls++) {
        struct rig *g = detect_rig(tls ? CV_LISTENER_HTTP : CV_LISTENER_MIXED, tls);
        g->settings->handshake_timeout_ms = 30;
        int fd = client(g);
        close(fd);
        TURN_UNTIL(g, g->w->n_sessions == 0);
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
}

/* TLS that begins and then stops, ends, is killed, or cannot be made. */
static void test_tls_stops(void)
{
    struct rig *g = detect_rig(CV_LISTENER_SOCKS5, true);
    g->settings->handshake_timeout_ms = 30;
    int fd = client(g);
    SAY(fd, "\x16T");
    HEAR_END(g, fd);
    close(fd);
    T_OK(log_has("handshake timed out"));
    fd = client(g);
    SAY(fd, "\x16TLS"); /* the handshake is over and nothing comes */
    HEAR_END(g, fd);
    close(fd);
    T_OK(log_has("handshake timed out"));
    fd = client(g);
    SAY(fd, "\x16TL");
    close(fd);
    TURN_UNTIL(g, alog_lines == 3);
    T_OK(log_has("\"failure_stage\":\"tls\""));
    fd = client(g);
    SAY(fd, "\x16TLS");
    shutdown(fd, SHUT_WR);
    HEAR_END(g, fd);
    close(fd);
    TURN_UNTIL(g, alog_lines == 4);
    T_OK(log_has("client went away"));
    fd = client(g);
    SAY(fd, "\x16TLS");
    cv_loop_turn(g->w->loop, 0);
    cv_session_kill_all(g->w, CV_E_KILLED);
    cv_session_kill_all(g->w, CV_E_KILLED);
    T_INT_EQ(alog_lines, 5);
    close(fd);
    tls_fail_new = true;
    fd = client(g);
    SAY(fd, "\x16TLS");
    HEAR_END(g, fd);
    close(fd);
    tls_fail_new = false;
    TURN_UNTIL(g, alog_lines == 6);
    T_OK(log_has("out of memory"));
    rig_free(g);
}

/* More than fits is left in the socket, and is the protocol's to read. */
static void test_early_bound(void)
{
    static uint8_t data[3000], rest[3000];
    struct rig *g = detect_rig(CV_LISTENER_MIXED, false);
    memset(data, 'x', sizeof(data));
    data[0] = 5;
    data[CV_INBOUND_EARLY_MAX] = 'y';
    int fd = client(g);
    say(fd, data, sizeof(data));
    TURN_UNTIL(g, served.protocol == 's');
    T_INT_EQ(served.early_len, CV_INBOUND_EARLY_MAX);
    size_t n;
    T_INT_EQ(cv_stream_recv(served.stream, rest, sizeof(rest), &n), 0);
    T_INT_EQ(n, sizeof(data) - CV_INBOUND_EARLY_MAX);
    T_INT_EQ(rest[0], 'y');
    close(fd);
    served_end();
    rig_free(g);
}

/* Whom a certificate names is known before the first byte is served; whom nobody knows is not taken
 * for a client without one. */
static void test_client_certificate(void)
{
    struct rig *g = detect_rig(CV_LISTENER_SOCKS5, true);
    int fd = client(g);
    SAY(fd, "\x16TLS\x05\x01");
    TURN_UNTIL(g, served.protocol == 's');
    T_STR_EQ(served.user, "");
    close(fd);
    served_end();
    tls_user = "alice";
    tls_user_err = 0;
    fd = client(g);
    SAY(fd, "\x16TLS\x05\x01");
    TURN_UNTIL(g, served.protocol == 's');
    T_STR_EQ(served.user, "alice");
    close(fd);
    served_end();
    tls_user_err = CV_E_AUTH;
    fd = client(g);
    SAY(fd, "\x16TLS\x05\x01");
    HEAR_END(g, fd);
    T_INT_EQ(served.protocol, 0);
    T_INT_EQ(rig_refused(g, CV_STAGE_AUTH), 1);
    T_OK(log_has("\"failure_stage\":\"auth\""));
    close(fd);
    tls_user_err = CV_E_NOTFOUND;
    rig_free(g);
}

/* Where every client needs a certificate, "mixed" has no plain way around it. */
static void test_tls_only(void)
{
    static const char *const plain[] = {"\x05\x01", "GET / HTTP/1.1"};
    struct rig *g = detect_rig(CV_LISTENER_MIXED, true);
    g->conf->tls_only = true;
    for (size_t i = 0; i < CV_ARRAY_SIZE(plain); i++) {
        int fd = client(g);
        say(fd, plain[i], strlen(plain[i]));
        HEAR_END(g, fd);
        T_INT_EQ(served.protocol, 0);
        T_INT_EQ(rig_refused(g, CV_STAGE_TLS), i + 1);
        close(fd);
    }
    int fd = client(g);
    SAY(fd, "\x16TLSGET");
    TURN_UNTIL(g, served.protocol == 'h');
    close(fd);
    served_end();
    rig_free(g);
}

/* The bound counts handshakes only while they last. */
static void test_handshake_bound(void)
{
    struct rig *g = detect_rig(CV_LISTENER_SOCKS5, true);
    g->settings->max_tls_handshakes = 2;
    int a = client(g), b = client(g), c = client(g);
    SAY(a, "\x16T");
    SAY(b, "\x16T");
    rig_settle(g);
    T_INT_EQ(cv_gauge_get(&g->node.stats.tls_handshakes), 2);
    SAY(c, "\x16T");
    HEAR_END(g, c);
    close(c);
    T_INT_EQ(cv_counter_get(&g->conf->stats->rejected_handshakes), 1);
    T_INT_EQ(alog_lines, 0); /* a flood is no reason to fill the disk */
    SAY(a, "LS");            /* this one is through, although nothing follows yet */
    rig_settle(g);
    T_INT_EQ(cv_gauge_get(&g->node.stats.tls_handshakes), 1);
    c = client(g);
    SAY(c, "\x16TLS\x05");
    TURN_UNTIL(g, served.protocol == 's');
    T_INT_EQ(cv_gauge_get(&g->node.stats.tls_handshakes), 1);
    served_end();
    close(b); /* one that breaks off gives its place back, too */
    TURN_UNTIL(g, cv_gauge_get(&g->node.stats.tls_handshakes) == 0);
    close(a);
    close(c);
    rig_free(g);
}

/* -- PROXY headers -- */

#define V2(cmd, fam, len) "\r\n\r\n\0\r\nQUIT\n" cmd fam len

struct proxy_row {
    const char *what;
    enum cv_listener_protocol listener;
    bool tls;
    size_t len;
    const char *in;
    char protocol;    /* that serves it; 0: refused */
    const char *rest; /* what it is handed */
    const char *client;
    int err; /* or, refused with it */
};

static const struct proxy_row proxy_rows[] = {
#define PR(what, l, tls, in, ...) {what, CV_LISTENER_##l, tls, sizeof(in) - 1, in, __VA_ARGS__}
    PR("v1", SOCKS5, false, "PROXY TCP4 203.0.113.9 10.0.0.1 5000 1080\r\n\x05\x01", 's',
       "\x05\x01", "203.0.113.9:5000"),
    PR("v1 of IPv6", HTTP, false, "PROXY TCP6 2001:db8::1 ::1 5000 1080\r\nGET", 'h', "GET",
       "[2001:db8::1]:5000"),
    PR("v1 unknown", SOCKS5, false, "PROXY UNKNOWN\r\n\x05", 's', "\x05", "192.0.2.1:4242"),
    PR("v2", MIXED, false,
       V2("\x21", "\x11", "\0\x0c") "\xcb\0\x71\x09\x0a\0\0\x01\x13\x88\x04\x38GET", 'h', "GET",
       "203.0.113.9:5000"),
    PR("v2 with TLVs", SOCKS5, false,
       V2("\x21", "\x11", "\0\x15") "\xcb\0\x71\x09\x0a\0\0\x01\x13\x88\x04\x38"
                                    "\x05\0\x01x\x04\0\x02\0\0\x05",
       's', "\x05", "203.0.113.9:5000"),
    PR("v2 local", SOCKS5, false, V2("\x20", "\0", "\0\0") "\x05", 's', "\x05", "192.0.2.1:4242"),
    PR("before TLS", HTTP, true, "PROXY TCP4 203.0.113.9 10.0.0.1 5000 1080\r\n\x16TLSGET", 'h',
       "GET", "203.0.113.9:5000"),
    PR("before an SNI listener's hello", SNI, false, "PROXY UNKNOWN\r\n\x16\x03\x01", 'n',
       "\x16\x03\x01", "192.0.2.1:4242"),
    PR("none", SOCKS5, false, "\x05\x01\x02", 0, NULL, "192.0.2.1:4242", CV_E_PROTO),
    PR("TLS without", SOCKS5, true, "\x16TLS", 0, NULL, "192.0.2.1:4242", CV_E_PROTO),
    PR("garbage", MIXED, false, "PROXY TCP4 203.0.113.9 10.0.0.1 5000\r\n\x05", 0, NULL,
       "192.0.2.1:4242", CV_E_PROTO),
    PR("twice", MIXED, false, "PROXY UNKNOWN\r\nPROXY UNKNOWN\r\n", 'h', "PROXY UNKNOWN\r\n",
       "192.0.2.1:4242"),
    PR("oversize", SOCKS5, false, V2("\x21", "\x11", "\x20\0"), 0, NULL, "192.0.2.1:4242",
       CV_E_LIMIT),
    PR("of datagrams", SOCKS5, false, V2("\x21", "\x12", "\0\x0c") "............", 0, NULL,
       "192.0.2.1:4242", CV_E_UNSUPPORTED),
    PR("broken off", SOCKS5, true, "PROXY TCP4 203", -1, NULL, "192.0.2.1:4242", CV_E_CANCELED),
};

static void run_proxy_row(const struct proxy_row *r, bool bytewise)
{
    char text[CV_ENDPOINT_STRLEN], quoted[80];
    struct rig *g = detect_rig(r->listener, r->tls);
    g->conf->proxy_protocol = true;
    int fd = client(g);
    for (size_t i = 0; i < r->len && served.protocol == 0 && alog_lines == 0;
         i += bytewise ? 1 : r->len) {
        say(fd, r->in + i, bytewise ? 1 : r->len);
        rig_settle(g);
    }
    if (r->protocol == (char)-1)
        shutdown(fd, SHUT_WR);
    TURN_UNTIL(g, served.protocol != 0 || alog_lines > 0);
    if (r->err == 0) {
        T_INT_EQ(served.protocol, r->protocol);
        T_OK(bytewise ? served.early_len <= 1 : served.early_len == strlen(r->rest));
        T_MEM_EQ(served.early, r->rest, served.early_len);
        T_STR_EQ(cv_endpoint_format(&served.session.client, text), r->client);
    } else {
        T_INT_EQ(served.protocol, 0);
        T_INT_EQ(rig_refused(g, CV_STAGE_PARSE), 1);
        snprintf(quoted, sizeof(quoted), "\"client_addr\":\"%s\"", r->client);
        T_OK(log_has(quoted));
        T_OK(log_has(cv_stage_message(CV_STAGE_PARSE, r->err)));
    }
    close(fd);
    served_end();
    rig_free(g);
}

static void test_proxy_header(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(proxy_rows); i++) {
        int before = t_case_failed;
        run_proxy_row(&proxy_rows[i], false);
        run_proxy_row(&proxy_rows[i], true);
        if (t_case_failed != before)
            printf("#   '%s'\n", proxy_rows[i].what);
    }
}

/* A header of many TLVs takes several reads; what follows it is handed on whole. */
static void test_long_proxy_header(void)
{
    static const char head[] =
        V2("\x21", "\x11", "\x0f\xa0") "\xcb\0\x71\x09\x0a\0\0\x01\x13\x88\x04\x38"
                                       "\xe0\x0f\x91";
    static uint8_t data[16 + 4000 + 2000];
    memset(data, 'x', sizeof(data));
    memcpy(data, head, sizeof(head) - 1);
    memset(data + 16 + 4000, 5, 2000);
    struct rig *g = detect_rig(CV_LISTENER_MIXED, false);
    g->conf->proxy_protocol = true;
    int fd = client(g);
    say(fd, data, sizeof(data));
    TURN_UNTIL(g, served.protocol == 's');
    size_t n = 0, got = served.early_len;
    T_OK(got > 0 && served.early[0] == 5 && served.early[got - 1] == 5);
    static uint8_t rest[3000];
    T_INT_EQ(cv_stream_recv(served.stream, rest, sizeof(rest), &n), 0);
    T_INT_EQ(got + n, 2000);
    close(fd);
    served_end();
    rig_free(g);
}

/* A look whether the port is open leaves no line; a proxy that holds its header back does. */
static void test_proxy_silent(void)
{
    struct rig *g = detect_rig(CV_LISTENER_SOCKS5, false);
    g->conf->proxy_protocol = true;
    g->settings->handshake_timeout_ms = 30;
    int fd = client(g);
    close(fd);
    TURN_UNTIL(g, g->w->n_sessions == 0);
    fd = client(g);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    close(fd);
    T_INT_EQ(alog_lines, 0);
    fd = client(g);
    HEAR_END(g, fd);
    close(fd);
    T_INT_EQ(alog_lines, 1);
    T_OK(log_has("handshake timed out"));
    fd = client(g);
    SAY(fd, "PROXY TCP4");
    HEAR_END(g, fd);
    close(fd);
    T_INT_EQ(alog_lines, 2);
    T_OK(log_has("handshake timed out"));
    fd = client(g);
    SAY(fd, "PROXY");
    cv_loop_turn(g->w->loop, 0);
    cv_session_kill_all(g->w, CV_E_KILLED);
    close(fd);
    T_INT_EQ(alog_lines, 3);
    fd = client(g); /* the header, and then nothing: as from any client */
    SAY(fd, "PROXY UNKNOWN\r\n");
    HEAR_END(g, fd);
    close(fd);
    T_INT_EQ(alog_lines, 3);
    rig_free(g);
}

int main(void)
{
    T_RUN(test_client_certificate);
    T_RUN(test_tls_only);
    T_RUN(test_handshake_bound);
    T_RUN(test_proxy_header);
    T_RUN(test_long_proxy_header);
    T_RUN(test_proxy_silent);
    T_RUN(test_first_byte);
    T_RUN(test_silent);
    T_RUN(test_tls_stops);
    T_RUN(test_early_bound);
    return t_done();
}
