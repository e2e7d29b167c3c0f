/* The egress: what becomes of a backend, and of a dial. */
#include "egress/upstream_priv.h"
#include "upstream_util.h"

static struct cv_backend backend;

static void open_upstream(enum cv_backend_kind kind, const char *addr, const char *user,
                          const char *pass)
{
    bench_open();
    backend = (struct cv_backend){.kind = kind,
                                  .addr = text(addr),
                                  .username = text(user),
                                  .password = text(pass),
                                  .label = text("upstream:test")};
    struct cv_upstream_opts opts = {0};
    bench.egress = cv_egress_upstream_new(&backend, &opts,
                                          cv_registry_egress(bench.registry, "upstream:test"));
}

static void close_upstream(void)
{
    bench_close();
    cv_rcstr_unref(backend.addr);
    cv_rcstr_unref(backend.username);
    cv_rcstr_unref(backend.password);
    cv_rcstr_unref(backend.label);
}

static void open_at(enum cv_backend_kind kind, struct fake *f, const char *user, const char *pass)
{
    char addr[64];
    fake_open(f);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", f->port);
    open_upstream(kind, addr, user, pass);
}

static void test_addresses(void)
{
    static const struct {
        const char *addr;
        const char *server; /* NULL: not valid */
    } t[] = {
        {"px.test:1080", "px.test:1080"},
        {" PX.test.:1080\t", "px.test:1080"},
        {"[2001:db8::1]:3128", "[2001:db8::1]:3128"},
        {"127.0.0.1:80", "127.0.0.1:80"},
        {"px.test", NULL},
        {"px.test:0", NULL},
        {"px.test:65536", NULL},
        {"2001:db8::1:3128", NULL},
        {"http://px.test:80", NULL},
        {"u@px.test:80", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        char buf[CV_TARGET_STRLEN];
        open_upstream(CV_BACKEND_HTTP, t[i].addr, NULL, NULL);
        const struct cv_upstream *u = cv_upstream_of(bench.egress);
        T_REQUIRE(u != NULL);
        T_STR_EQ(u->server.port != 0 ? cv_target_format(&u->server, buf) : NULL, t[i].server);
        if (t[i].server == NULL) {
            T_INT_EQ(dial_host("target.test", 80), CV_E_INVALID);
            T_INT_EQ(bench.dial.stage, CV_STAGE_DIAL);
        }
        close_upstream();
    }
}

static void test_other_kinds(void)
{
    bench_open();
    bench.egress = cv_egress_direct_new(cv_registry_egress(bench.registry, "direct"));
    T_OK(cv_upstream_of(bench.egress) == NULL);
    bench_close();
}

/* No name, no login, whatever the password. */
static void test_logins(void)
{
    static const struct {
        const char *user, *pass;
        const char *first;
        size_t first_len;
    } t[] = {
        {NULL, NULL, LIT("\x05\x01\x00")}, {"", "", LIT("\x05\x01\x00")},
        {NULL, "p", LIT("\x05\x01\x00")},  {"u", NULL, LIT("\x05\x01\x02")},
        {"u", "p", LIT("\x05\x01\x02")},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct fake f;
        open_at(CV_BACKEND_SOCKS5, &f, t[i].user, t[i].pass);
        dial_start("192.0.2.1", 80, 5000);
        fake_accept(&f);
        fake_expect(&f, t[i].first, t[i].first_len);
        if (t[i].first[2] == 2) {
            fake_say(&f, "\x05\x02", 2, 1);
            if (t[i].pass == NULL)
                fake_expect(&f, LIT("\x01\x01u\x00"));
            else
                fake_expect(&f, LIT("\x01\x01u\x01p"));
        }
        cv_dial_cancel(bench.egress, &bench.dial);
        T_INT_EQ(bench.answers, 0);
        fake_close(&f);
        close_upstream();
    }
}

/* A good dial: what the proxy bound is BND, the proxy is the peer. */
static void test_dial(void)
{
    struct fake f;
    char buf[CV_ENDPOINT_STRLEN];
    open_at(CV_BACKEND_SOCKS5, &f, NULL, NULL);
    dial_start("name.test", 443, 5000);
    fake_accept(&f);
    fake_expect(&f, LIT("\x05\x01\x00"));
    fake_say(&f, "\x05\x00", 2, 2);
    fake_expect(&f, LIT("\x05\x01\x00\x03\x09name.test\x01\xbb"));
    fake_say(&f, LIT("\x05\x00\x00\x01\xc6\x33\x64\x07\x10\x00"), 4);
    dial_wait();
    T_INT_EQ(bench.dial.err, 0);
    T_STR_EQ(cv_endpoint_format(&bench.dial.local, buf), "198.51.100.7:4096");
    T_INT_EQ(bench.dial.peer.port, f.port);
    T_OK(bench.dial.outlet == NULL); /* the egress's own label */
    cv_stream_close(bench.dial.stream, false);
    fake_close(&f);
    close_upstream();
}

/* Refused where nobody listens; by the stage in which it ended. */
static void test_failures(void)
{
    struct fake f;
    open_at(CV_BACKEND_HTTP, &f, NULL, NULL);
    close(f.listener);
    T_INT_EQ(dial_host("name.test", 443), -ECONNREFUSED);
    T_INT_EQ(bench.dial.stage, CV_STAGE_DIAL);
    close_upstream();
}

/* Whose fault it is, at each point and for each answer. */
static void test_blame(void)
{
    static const struct {
        enum cv_backend_kind kind;
        const char *says; /* after the choice of a method, for SOCKS5 */
        size_t len;
        int err;
        enum cv_blame blame;
    } t[] = {
        {CV_BACKEND_SOCKS5, LIT("\x05\x01"), CV_E_UNAVAILABLE, CV_BLAME_UNSURE},
        {CV_BACKEND_SOCKS5, LIT("\x05\x02"), CV_E_POLICY, CV_BLAME_TARGET},
        {CV_BACKEND_SOCKS5, LIT("\x05\x03"), -ENETUNREACH, CV_BLAME_UNSURE},
        {CV_BACKEND_SOCKS5, LIT("\x05\x04"), -EHOSTUNREACH, CV_BLAME_UNSURE},
        {CV_BACKEND_SOCKS5, LIT("\x05\x05"), -ECONNREFUSED, CV_BLAME_TARGET},
        {CV_BACKEND_SOCKS5, LIT("\x05\x06"), -ETIMEDOUT, CV_BLAME_UNSURE},
        {CV_BACKEND_SOCKS5, LIT("\x05\x07"), CV_E_UNSUPPORTED, CV_BLAME_EGRESS},
        {CV_BACKEND_SOCKS5, LIT("\x05\x08"), -EAFNOSUPPORT, CV_BLAME_TARGET},
        {CV_BACKEND_SOCKS5, LIT("\x04\x00"), CV_E_PROTO, CV_BLAME_EGRESS},
        {CV_BACKEND_HTTP, LIT("HTTP/1.1 403 No\r\n\r\n"), CV_E_POLICY, CV_BLAME_TARGET},
        {CV_BACKEND_HTTP, LIT("HTTP/1.1 407 No\r\n\r\n"), CV_E_AUTH, CV_BLAME_EGRESS},
        {CV_BACKEND_HTTP, LIT("HTTP/1.1 503 No\r\n\r\n"), CV_E_UNAVAILABLE, CV_BLAME_UNSURE},
        {CV_BACKEND_HTTP, LIT("HTTP/1.1 504 No\r\n\r\n"), -ETIMEDOUT, CV_BLAME_UNSURE},
        {CV_BACKEND_HTTP, LIT("SSH-2.0-what\r\n\r\n"), CV_E_PROTO, CV_BLAME_EGRESS},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct fake f;
        open_at(t[i].kind, &f, NULL, NULL);
        dial_start("192.0.2.1", 80, 5000);
        T_INT_EQ(bench.dial.blame, CV_BLAME_EGRESS);
        fake_accept(&f);
        if (t[i].kind == CV_BACKEND_SOCKS5) {
            fake_expect(&f, LIT("\x05\x01\x00"));
            T_INT_EQ(bench.dial.blame, CV_BLAME_EGRESS);
            fake_say(&f, LIT("\x05\x00"), 2);
            fake_expect(&f, LIT("\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"));
        } else {
            fake_expect(&f, LIT("CONNECT "));
        }
        T_INT_EQ(bench.dial.blame, CV_BLAME_UNSURE);
        fake_say(&f, t[i].says, t[i].len, t[i].len);
        dial_wait();
        T_INT_EQ(bench.dial.err, t[i].err);
        T_INT_EQ(bench.dial.blame, t[i].blame);
        fake_close(&f);
        close_upstream();
    }
}

int main(void)
{
    T_RUN(test_addresses);
    T_RUN(test_other_kinds);
    T_RUN(test_logins);
    T_RUN(test_dial);
    T_RUN(test_failures);
    T_RUN(test_blame);
    return t_done();
}
