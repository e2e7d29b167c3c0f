/* Ports: accepting, the bound on sessions, reload, closing. The protocols are played by the test.
 */
#include "inbound_util.h"

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "inbound/detect.h"

static struct {
    int socks, http, detect;
    struct cv_endpoint client;
    struct cv_session sessions[32];
    struct cv_stream *streams[32];
    int n;
} got;

static void on_kill(struct cv_session *s, int err)
{
    int i = (int)(s - got.sessions);
    cv_stream_close(got.streams[i], false);
    cv_session_drop(s);
}

static void take(const struct cv_inbound *in)
{
    static const struct cv_session_ops ops = {.kill = on_kill};
    T_REQUIRE(got.n < (int)CV_ARRAY_SIZE(got.sessions));
    T_INT_EQ(in->early_len, 0);
    T_INT_EQ(in->accepted_ms, cv_loop_now(in->worker->loop));
    got.client = in->client;
    got.streams[got.n] = in->stream;
    cv_session_begin(&got.sessions[got.n], in->worker, &ops, "test", in->conf->stats, &in->client);
    got.n++;
}

void cv_socks5_serve(const struct cv_inbound *in)
{
    got.socks++;
    take(in);
}

void cv_http_serve(const struct cv_inbound *in)
{
    got.http++;
    take(in);
}

void cv_detect_start(const struct cv_inbound *in)
{
    got.detect++;
    take(in);
}

static int listen_any(struct sockaddr_in *ret_sa)
{
    struct cv_sockaddr sa;
    struct cv_tcp_listen_opts opts = {.reuse_port = true};
    int fd;
    socklen_t len = sizeof(*ret_sa);
    if (cv_sockaddr_parse("127.0.0.1:0", &sa) != 0 || cv_tcp_listen(&sa, &opts, &fd) != 0 ||
        getsockname(fd, (struct sockaddr *)ret_sa, &len) != 0)
        abort();
    return fd;
}

static int dial(const struct sockaddr_in *sa)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) != 0)
        abort();
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static struct rig *port_rig(struct sockaddr_in *ret_sa, struct cv_listener_port **ret_port)
{
    struct rig *g = rig_new();
    memset(&got, 0, sizeof(got));
    if (cv_listener_port_open(g->w, g->conf, listen_any(ret_sa), false, ret_port) != 0)
        abort();
    return g;
}

static void test_accept(void)
{
    struct sockaddr_in sa, me;
    socklen_t len = sizeof(me);
    struct cv_listener_port *port;
    struct rig *g = port_rig(&sa, &port);
    int fd = dial(&sa);
    TURN_UNTIL(g, got.socks == 1);
    getsockname(fd, (struct sockaddr *)&me, &len);
    T_INT_EQ(got.client.ip.family, CV_AF_IP4);
    T_INT_EQ(got.client.port, ntohs(me.sin_port));
    T_INT_EQ(cv_counter_get(&g->conf->stats->accepted), 1);
    close(fd);
    cv_listener_port_close(port);
    T_INT_EQ(g->w->n_sessions, 1); /* what runs goes on */
    cv_session_kill_all(g->w, CV_E_DRAINING);
    rig_free(g);
}

/* A reload applies to connections that come after it. */
static void test_set_conf(void)
{
    static const struct {
        enum cv_listener_protocol protocol;
        int *count;
    } t[] = {
        {CV_LISTENER_HTTP, &got.http},
        {CV_LISTENER_MIXED, &got.detect},
        {CV_LISTENER_SOCKS5, &got.socks},
    };
    struct sockaddr_in sa;
    struct cv_listener_port *port;
    struct rig *g = port_rig(&sa, &port);
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_listener_conf *c = cv_listener_conf_new();
        c->protocol = t[i].protocol;
        c->stats = g->conf->stats;
        cv_listener_port_set_conf(port, c);
        cv_listener_conf_unref(c); /* the port has its own */
        int before = *t[i].count;
        int fd = dial(&sa);
        TURN_UNTIL(g, *t[i].count == before + 1);
        close(fd);
    }
    T_INT_EQ(got.n, 3);
    cv_listener_port_close(port);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    rig_free(g);
}

/* PROXY headers are believed from listed sources only. */
static void test_proxy_sources(void)
{
    static const char *const from[] = {"192.0.2.0/24", "127.0.0.0/8"};
    struct sockaddr_in sa;
    struct cv_listener_port *port;
    struct rig *g = port_rig(&sa, &port);
    g->conf->proxy_protocol = true;
    g->conf->proxy_from = cv_zalloc(2 * sizeof(*g->conf->proxy_from));
    for (size_t i = 0; i < 2; i++)
        T_INT_EQ(cv_prefix_parse(from[i], strlen(from[i]), &g->conf->proxy_from[i]), 0);
    for (size_t n = 0; n < 3; n++) {
        g->conf->n_proxy_from = n;
        int fd = dial(&sa);
        TURN_UNTIL(g, cv_counter_get(&g->conf->stats->accepted) == n + 1);
        T_INT_EQ(got.detect, n == 2);
        T_INT_EQ(cv_counter_get(&g->conf->stats->rejected_source), CV_MIN(n + 1, 2));
        if (n < 2)
            HEAR_END(g, fd);
        close(fd);
    }
    T_INT_EQ(got.socks, 0);
    cv_listener_port_close(port);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    rig_free(g);
}

static void test_max_sessions(void)
{
    struct sockaddr_in sa;
    struct cv_listener_port *port;
    struct rig *g = port_rig(&sa, &port);
    g->settings->max_sessions = 2;
    int fds[3];
    for (int i = 0; i < 3; i++)
        fds[i] = dial(&sa);
    TURN_UNTIL(g, cv_counter_get(&g->conf->stats->accepted) == 3);
    T_INT_EQ(got.n, 2);
    T_INT_EQ(cv_counter_get(&g->conf->stats->rejected_full), 1);
    HEAR_END(g, fds[2]);
    HEAR_NOTHING(g, fds[0]);
    /* A place that is free again is taken again. */
    cv_session_kill_all(g->w, CV_E_KILLED);
    close(fds[2]);
    fds[2] = dial(&sa);
    TURN_UNTIL(g, got.n == 3);
    g->settings->max_sessions = 0; /* no limit */
    int more = dial(&sa);
    TURN_UNTIL(g, got.n == 4);
    close(more);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    cv_listener_port_close(port);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    rig_free(g);
}

/* Clients that have connected but were not accepted yet are served, not reset. */
static void test_close_takes_backlog(void)
{
    struct sockaddr_in sa;
    struct cv_listener_port *port;
    struct rig *g = port_rig(&sa, &port);
    int fds[5];
    for (int i = 0; i < 5; i++)
        fds[i] = dial(&sa);
    cv_listener_port_close(port);
    T_INT_EQ(got.n, 5);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    T_OK(connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 && errno == ECONNREFUSED);
    close(fd);
    for (int i = 0; i < 5; i++) {
        HEAR_NOTHING(g, fds[i]);
        close(fds[i]);
    }
    cv_session_kill_all(g->w, CV_E_DRAINING);
    cv_listener_port_close(NULL);
    rig_free(g);
}

/* A shared descriptor stays open; a Unix socket has clients without an address. */
static void test_shared_unix(void)
{
    struct rig *g = rig_new();
    memset(&got, 0, sizeof(got));
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "culvert-test-%d", (int)getpid());
    int l = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    T_REQUIRE(bind(l, (struct sockaddr *)&un, sizeof(un)) == 0 && listen(l, 8) == 0);
    struct cv_listener_port *port;
    T_REQUIRE(cv_listener_port_open(g->w, g->conf, l, true, &port) == 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    T_REQUIRE(connect(fd, (struct sockaddr *)&un, sizeof(un)) == 0);
    TURN_UNTIL(g, got.n == 1);
    T_INT_EQ(got.client.ip.family, CV_AF_NONE);
    close(fd);
    cv_listener_port_close(port);
    T_OK(fcntl(l, F_GETFD) >= 0);
    close(l);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    rig_free(g);
}

/* What cannot be registered fails to open, and its descriptor is not left behind. */
static void test_open_fails(void)
{
    struct rig *g = rig_new();
    struct cv_listener_port *port = NULL;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC); /* a plain file: not for epoll */
    T_OK(cv_listener_port_open(g->w, g->conf, fd, false, &port) < 0);
    T_OK(fcntl(fd, F_GETFD) < 0);
    T_OK(port == NULL);
    rig_free(g);
}

/* Out of descriptors: counted, waited for, and over when there are some again. */
static void test_out_of_descriptors(void)
{
    struct sockaddr_in sa;
    struct cv_listener_port *port;
    struct rig *g = port_rig(&sa, &port);
    int fd = dial(&sa);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = 0; /* no new ones; those that are open stay */
    T_REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
    TURN_UNTIL(g, cv_counter_get(&g->conf->stats->accept_pauses) == 1);
    T_INT_EQ(got.n, 0);
    uint64_t turns = cv_loop_turns(g->w->loop);
    cv_loop_turn(g->w->loop, 50); /* sleeps, does not spin */
    T_INT_EQ(cv_loop_turns(g->w->loop), turns + 1);
    setrlimit(RLIMIT_NOFILE, &old);
    TURN_UNTIL(g, got.n == 1);
    close(fd);
    cv_listener_port_close(port);
    cv_session_kill_all(g->w, CV_E_DRAINING);
    rig_free(g);
}

static void test_conf(void)
{
    struct cv_listener_conf *c = cv_listener_conf_new();
    T_INT_EQ(c->unix_mode, 0660);
    T_OK(c->no_auth_user == NULL && c->tls == NULL);
    c->listen = cv_strdup("127.0.0.1:0");
    c->no_auth_user = cv_strdup("u");
    T_OK(cv_listener_conf_ref(c) == c);
    cv_listener_conf_unref(c);
    T_STR_EQ(c->no_auth_user, "u");
    cv_listener_conf_unref(c);
    cv_listener_conf_unref(NULL);
}

int main(void)
{
    T_RUN(test_conf);
    T_RUN(test_accept);
    T_RUN(test_set_conf);
    T_RUN(test_proxy_sources);
    T_RUN(test_max_sessions);
    T_RUN(test_close_takes_backlog);
    T_RUN(test_shared_unix);
    T_RUN(test_open_fails);
    T_RUN(test_out_of_descriptors);
    return t_done();
}
