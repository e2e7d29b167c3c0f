/* Whole sessions with the Nth allocation or system call failing, for every N until a run in which
 * nothing failed: real listener, real protocols, real egresses, a real origin. What may
 * happen is that the client is refused or cut off; what may not is a crash, a leak, a descriptor or
 * a timer that stays, a permit that is not given back, or a node that serves nobody afterwards. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/torture.h"
#include "egress/egress.h"
#include "egress/member.h"
#include "flow/registry.h"
#include "inbound/listener.h"
#include "net/tcp.h"
#include "tap.h"

#define LOGIN_BASIC "Proxy-Authorization: Basic dTpw\r\n"

static struct {
    struct cv_node node;
    struct cv_accounts *accounts;
    struct cv_registry *registry;
    struct cv_settings *settings;
    struct cv_members *members;
    struct cv_worker *worker;
    struct cv_listener_conf *conf;
    struct cv_listener_port *port;
    uint16_t port_number;
    int origin; /* listening; served by serve_origin() between turns */
    uint16_t origin_port;
    int origin_conn;
    char origin_in[4096];
    size_t origin_len;
} rig;

static struct cv_egress *factory(void *arg, const struct cv_egress_def *def)
{
    struct cv_egress_stats *stats =
        cv_registry_egress(rig.registry, def != NULL ? def->label->s : "direct");
    (void)arg;
    if (def != NULL && def->is_chain)
        return cv_egress_chain_new(def, stats, rig.members, factory, NULL, cv_clock_mono_ms());
    struct cv_upstream_opts opts = {.proxy_protocol = CV_PROXY_PROTOCOL_NONE};
    return def != NULL ? cv_egress_upstream_new(&def->members[0].backend, &opts, stats)
                       : cv_egress_direct_new(stats);
}

static int listen_loopback(uint16_t *ret_port)
{
    struct cv_sockaddr sa;
    struct sockaddr_in in;
    socklen_t len = sizeof(in);
    struct cv_tcp_listen_opts opts = {0};
    int fd = -1;
    if (cv_sockaddr_parse("127.0.0.1:0", &sa) != 0 || cv_tcp_listen(&sa, &opts, &fd) != 0 ||
        getsockname(fd, (struct sockaddr *)&in, &len) != 0)
        abort();
    *ret_port = ntohs(in.sin_port);
    return fd;
}

/* User u goes out directly; s and h through upstreams, which are this node again, as user u; c by
 * a chain whose first member is nobody and whose second is this node again. */
static const char document[] =
    "{\"schema_version\":1,\"version\":1,\"users\":{"
    "\"u\":{\"password\":\"p\",\"policy\":\"d\",\"max_connections\":1},"
    "\"s\":{\"password\":\"p\",\"policy\":\"s\",\"max_connections\":1},"
    "\"h\":{\"password\":\"p\",\"policy\":\"h\",\"max_connections\":1},"
    "\"c\":{\"password\":\"p\",\"policy\":\"c\",\"max_connections\":1}},"
    "\"routing_policies\":{\"d\":{},"
    "\"s\":{\"default_action\":{\"type\":\"egress\",\"egress\":\"s\"}},"
    "\"h\":{\"default_action\":{\"type\":\"egress\",\"egress\":\"h\"}},"
    "\"c\":{\"default_action\":{\"type\":\"egress\",\"egress\":\"c\"}}},"
    "\"egresses\":{\"s\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"socks5\","
    "\"addr\":\"127.0.0.1:%u\",\"username\":\"u\",\"password\":\"p\"}},"
    "\"h\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"http\","
    "\"addr\":\"127.0.0.1:%u\",\"username\":\"u\",\"password\":\"p\"}},"
    "\"c\":{\"type\":\"chain\",\"members\":["
    "{\"id\":\"dead\",\"priority\":1,\"backend\":{\"kind\":\"http\",\"addr\":\"127.0.0.1:1\"}},"
    "{\"id\":\"good\",\"priority\":2,\"backend\":{\"kind\":\"socks5\","
    "\"addr\":\"127.0.0.1:%u\",\"username\":\"u\",\"password\":\"p\"}}]}}}";

static void rig_start(void)
{
    char doc[sizeof(document) + 24];
    int fd = listen_loopback(&rig.port_number);
    int len =
        snprintf(doc, sizeof(doc), document, rig.port_number, rig.port_number, rig.port_number);
    struct cv_snapshot_error e;
    struct cv_snapshot *s = NULL;
    rig.accounts = cv_accounts_new();
    rig.members = cv_members_new();
    rig.registry = cv_registry_new();
    rig.settings = cv_settings_new();
    rig.settings->handshake_timeout_ms = 3000;
    rig.settings->connect_timeout_ms = 3000;
    rig.settings->chain_backoff_ms = rig.settings->chain_backoff_max_ms = 1;
    rig.settings->direct_allow = cv_alloc(sizeof(struct cv_prefix));
    rig.settings->n_direct_allow = 1;
    T_INT_EQ(cv_prefix_parse("127.0.0.0/8", 11, rig.settings->direct_allow), 0);
    rig.node.active = cv_active_holder_new(rig.accounts, factory, NULL);
    if (cv_snapshot_compile(doc, (size_t)len, "n", &e, &s) != 0 ||
        cv_active_swap(rig.node.active, s) != 0 ||
        cv_worker_new(0, &rig.node, rig.settings, &rig.worker) != 0)
        abort();
    rig.conf = cv_listener_conf_new();
    rig.conf->protocol = CV_LISTENER_MIXED;
    rig.conf->stats = cv_registry_listener(rig.registry, "main", "mixed");
    if (cv_listener_port_open(rig.worker, rig.conf, fd, false, &rig.port) != 0)
        abort();
    rig.origin = listen_loopback(&rig.origin_port);
    rig.origin_conn = -1;
}

static void rig_end(void)
{
    cv_listener_port_close(rig.port);
    cv_listener_conf_unref(rig.conf);
    cv_worker_free(rig.worker);
    cv_active_holder_free(rig.node.active);
    cv_members_free(rig.members);
    cv_accounts_free(rig.accounts);
    cv_settings_unref(rig.settings);
    cv_registry_free(rig.registry);
    close(rig.origin);
}

/* The origin: echoes, or answers an HTTP request head, and closes after the client's end. */
static void serve_origin(void)
{
    if (rig.origin_conn < 0) {
        rig.origin_conn = accept4(rig.origin, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        rig.origin_len = 0;
        if (rig.origin_conn < 0)
            return;
    }
    char *end = rig.origin_in + rig.origin_len;
    ssize_t n = read(rig.origin_conn, end, sizeof(rig.origin_in) - rig.origin_len - 1);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        close(rig.origin_conn);
        rig.origin_conn = -1;
        return;
    }
    if (n < 0)
        return;
    rig.origin_len += (size_t)n;
    rig.origin_in[rig.origin_len] = '\0';
    bool http = strncmp(rig.origin_in, "GET ", 4) == 0;
    const char *answer = http ? "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nreply" : "reply";
    if ((http && strstr(rig.origin_in, "\r\n\r\n") != NULL) || (!http && rig.origin_len >= 5)) {
        rig.origin_len = 0;
        if (write(rig.origin_conn, answer, strlen(answer)) < 0) {
            close(rig.origin_conn);
            rig.origin_conn = -1;
        }
    }
}

static int client_connect(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(rig.port_number),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 && errno != EINPROGRESS))
        abort();
    return fd;
}

/* Say 'wish', then wait for the answer that ends in "reply", or for the end. True: it came. */
static bool talk(const char *wish, size_t len)
{
    char got[4096];
    size_t have = 0;
    bool said = false, good = false;
    int fd = client_connect();
    int64_t end = cv_clock_mono_ms() + 20000;
    while (cv_clock_mono_ms() < end) {
        cv_loop_turn(rig.worker->loop, 1);
        serve_origin();
        if (!said)
            said = write(fd, wish, len) == (ssize_t)len;
        ssize_t n = read(fd, got + have, sizeof(got) - have);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            break;
        have += n > 0 ? (size_t)n : 0;
        if (have >= 5 && memcmp(got + have - 5, "reply", 5) == 0) {
            good = true;
            break;
        }
    }
    T_OK(cv_clock_mono_ms() < end);
    close(fd);
    return good;
}

/* Turn until every session has gone. */
static void settle(void)
{
    int64_t end = cv_clock_mono_ms() + 20000;
    do {
        cv_loop_turn(rig.worker->loop, 1);
        serve_origin();
    } while ((rig.worker->n_sessions > 0 || rig.origin_conn >= 0) && cv_clock_mono_ms() < end);
    T_INT_EQ(rig.worker->n_sessions, 0);
    T_INT_EQ(cv_gauge_get(&rig.node.stats.sessions), 0);
    T_INT_EQ(cv_gauge_get(&rig.conf->stats->row.active), 0);
}

typedef bool (*talk_fn)(const char *wish, size_t len);

/* 'wish' with each fallible call failing in turn; afterwards an untouched run must succeed. */
static void torture_by(talk_fn talk_by, const char *wish, size_t len)
{
    T_OK(talk_by(wish, len));
    settle();
    size_t ios = cv_loop_io_count(rig.worker->loop);
    uint64_t nth = 0, refused = 0;
    bool touched = true;
    while (touched && nth < 5000) {
        cv_torture_arm(++nth);
        bool good = talk_by(wish, len);
        settle();
        touched = cv_torture_count() >= nth;
        cv_torture_arm(0);
        refused += !good;
        T_OK(good || touched);
        if (!good) {
            /* The accept may be pausing; the node must come back by itself. */
            T_OK(talk_by(wish, len));
            settle();
        }
        T_INT_EQ(cv_loop_io_count(rig.worker->loop), ios);
    }
    T_OK(nth > 10 && nth < 5000);
    T_OK(refused > 3);
    printf("# %ju calls, %ju of them end the session\n", (uintmax_t)nth - 1, (uintmax_t)refused);
}

static void torture(const char *wish, size_t len)
{
    torture_by(talk, wish, len);
}

/* The wish of a client that says all at once; the origin's port is known after rig_start(). */
static size_t socks5_wish(char *out)
{
    static const char head[] = "\x05\x01\x02\x01\x01u\x01p\x05\x01\x00\x01\x7f\x00\x00\x01";
    size_t len = sizeof(head) - 1;
    memcpy(out, head, len);
    out[len++] = (char)(rig.origin_port >> 8);
    out[len++] = (char)(rig.origin_port & 0xff);
    memcpy(out + len, "hello", 5);
    return len + 5;
}

static size_t connect_wish(char *out, size_t cap)
{
    return (size_t)snprintf(out, cap,
                            "CONNECT 127.0.0.1:%u HTTP/1.1\r\nHost: x\r\n" LOGIN_BASIC "\r\nhello",
                            rig.origin_port);
}

static size_t forward_wish(char *out, size_t cap)
{
    return (size_t)snprintf(out, cap,
                            "GET http://127.0.0.1:%u/ HTTP/1.1\r\nHost: x\r\n" LOGIN_BASIC
                            "Connection: close\r\n\r\n",
                            rig.origin_port);
}

static void test_socks5(void)
{
    char wish[256];
    rig_start();
    torture(wish, socks5_wish(wish));
    rig_end();
}

static void test_connect(void)
{
    char wish[256];
    rig_start();
    torture(wish, connect_wish(wish, sizeof(wish)));
    rig_end();
}

static void test_forward(void)
{
    char wish[256];
    rig_start();
    torture(wish, forward_wish(wish, sizeof(wish)));
    rig_end();
}

/* What fails may be on the side of the client's session or of the proxy's: both are here. */
static void test_upstream_socks5(void)
{
    char wish[256];
    rig_start();
    size_t len = socks5_wish(wish);
    wish[5] = 's';
    torture(wish, len);
    rig_end();
}

static void test_upstream_http(void)
{
    char wish[256];
    rig_start();
    size_t len = socks5_wish(wish);
    wish[5] = 'h';
    torture(wish, len);
    rig_end();
}

/* Each time the dead member is tried first, as its back-off is over at once. */
static void test_chain(void)
{
    char wish[256];
    rig_start();
    size_t len = socks5_wish(wish);
    wish[5] = 'c';
    torture(wish, len);
    rig_end();
}

static void test_sniffed(enum cv_sniff_mode mode, bool socks)
{
    char wish[256], all[512];
    rig_start();
    rig.conf->sniff = (struct cv_sniff_conf){mode, 3000, 4096};
    size_t len = socks ? socks5_wish(wish) : connect_wish(wish, sizeof(wish));
    static const char request[] = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    memcpy(all, wish, len - 5); /* in place of "hello" */
    memcpy(all + len - 5, request, sizeof(request) - 1);
    torture(all, len - 5 + sizeof(request) - 1);
    rig_end();
}

static void test_socks5_route(void)
{
    test_sniffed(CV_SNIFF_ROUTE, true);
}

static void test_connect_route(void)
{
    test_sniffed(CV_SNIFF_ROUTE, false);
}

static void test_socks5_observe(void)
{
    test_sniffed(CV_SNIFF_OBSERVE, true);
}

static void test_connect_observe(void)
{
    test_sniffed(CV_SNIFF_OBSERVE, false);
}

/* A hello for "localhost", which the origin takes for five bytes of anything. */
static void test_sni(void)
{
    static const char hello[] =
        "\x16\x03\x01\x00\x45\x01\x00\x00\x41\x03\x03"
        "0123456789012345678901234567890\x01\x00\x00\x02\x13\x01\x01\x00\x00\x16"
        "\x00\x00\x00\x0e\x00\x0c\x00\x00\x09localhost\x3a\x3a\x00\x00";
    rig_start();
    rig.conf->protocol = CV_LISTENER_SNI;
    rig.conf->sniff.max_bytes = 4096;
    rig.conf->identity = cv_strdup("u");
    rig.conf->origins = cv_zalloc(sizeof(char *));
    rig.conf->origins[rig.conf->n_origins++] = cv_strdup("localhost");
    rig.conf->origin_port = rig.origin_port;
    torture(hello, sizeof(hello) - 1);
    rig_end();
}

/* -- UDP: an association whose datagram is sent again until its answer comes -- */

static int udp_loopback(uint16_t *ret_port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        abort();
    *ret_port = ntohs(sa.sin_port);
    return fd;
}

static void echo(int fd)
{
    struct sockaddr_in from;
    socklen_t len = sizeof(from);
    char data[256];
    ssize_t n = recvfrom(fd, data, sizeof(data), 0, (struct sockaddr *)&from, &len);
    if (n >= 0)
        (void)sendto(fd, data, (size_t)n, 0, (struct sockaddr *)&from, len);
}

/* Read the answers to greeting, login and request. False: the connection is over, or refused. */
struct answers {
    uint8_t got[14];
    size_t have;
};
static bool associated(struct answers *a, int control, struct sockaddr_in *ret_relay,
                       bool *ret_over)
{
    ssize_t n = read(control, a->got + a->have, sizeof(a->got) - a->have);
    *ret_over = n == 0 || (n < 0 && errno != EAGAIN);
    a->have += n > 0 ? (size_t)n : 0;
    if (a->have < sizeof(a->got))
        return false;
    *ret_relay = (struct sockaddr_in){.sin_family = AF_INET};
    memcpy(&ret_relay->sin_addr, a->got + 8, 4);
    memcpy(&ret_relay->sin_port, a->got + 12, 2);
    *ret_over = a->got[5] != 0;
    return a->got[5] == 0;
}

static bool talk_udp(const char *wish, size_t len)
{
    uint16_t origin_port, own_port;
    int origin = udp_loopback(&origin_port), fd = udp_loopback(&own_port);
    int control = client_connect();
    struct answers answers = {0};
    struct sockaddr_in relay;
    uint8_t dgram[] = "\0\0\0\x01\x7f\0\0\x01\0\0hello";
    bool said = false, ready = false, over = false, good = false;
    int64_t end = cv_clock_mono_ms() + 20000, again = 0;
    dgram[8] = (uint8_t)(origin_port >> 8);
    dgram[9] = (uint8_t)origin_port;
    while (!over && !good && cv_clock_mono_ms() < end) {
        cv_loop_turn(rig.worker->loop, 1);
        echo(origin);
        if (!said)
            said = write(control, wish, len) == (ssize_t)len;
        if (!ready) {
            ready = associated(&answers, control, &relay, &over);
            continue;
        }
        if (cv_clock_mono_ms() >= again) {
            (void)sendto(fd, dgram, sizeof(dgram) - 1, 0, (struct sockaddr *)&relay, sizeof(relay));
            again = cv_clock_mono_ms() + 50;
        }
        uint8_t reply[64];
        ssize_t n = recv(fd, reply, sizeof(reply), 0);
        good = n == (ssize_t)sizeof(dgram) - 1 && memcmp(reply, dgram, (size_t)n) == 0;
        char c;
        n = read(control, &c, 1);
        over = n == 0 || (n < 0 && errno != EAGAIN);
    }
    T_OK(cv_clock_mono_ms() < end);
    close(control);
    close(fd);
    close(origin);
    return good;
}

static void test_udp(void)
{
    static const char wish[] = "\x05\x01\x02\x01\x01u\x01p\x05\x03\x00\x01\0\0\0\0\0\0";
    rig_start();
    torture_by(talk_udp, wish, sizeof(wish) - 1);
    T_INT_EQ(rig.worker->dgram_budget.used, 0);
    T_INT_EQ(cv_gauge_get(&rig.node.stats.udp_associations), 0);
    rig_end();
}

int main(void)
{
    cv_log_configure(CV_LOG_ERROR, CV_LOG_TEXT);
    T_RUN(test_socks5);
    T_RUN(test_connect);
    T_RUN(test_forward);
    T_RUN(test_upstream_socks5);
    T_RUN(test_upstream_http);
    T_RUN(test_chain);
    T_RUN(test_socks5_route);
    T_RUN(test_connect_route);
    T_RUN(test_socks5_observe);
    T_RUN(test_connect_observe);
    T_RUN(test_sni);
    T_RUN(test_udp);
    return t_done();
}
