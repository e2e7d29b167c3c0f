#include "admin/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "admin_util.h"

static struct cv_admin *t_admin;
static struct cv_sockaddr t_addr;

static int admin_open(const char *listen, const char *token)
{
    struct cv_admin_conf conf = {.token = token};
    struct cv_admin_view v = node_view();
    if (cv_sockaddr_parse(listen, &conf.listen) != 0)
        abort();
    int ret = cv_admin_start(t.loop, &conf, &v, &t_admin);
    if (ret == 0 && cv_sockaddr_parse(cv_admin_address(t_admin), &t_addr) != 0)
        abort();
    return ret;
}

static void begin(const char *token)
{
    node_start(GOOD_SNAPSHOT);
    T_INT_EQ(admin_open("127.0.0.1:0", token), 0);
}

static void end(void)
{
    cv_admin_stop(t_admin);
    t_admin = NULL;
    node_end();
}

/* -- a client -- */

static int dial(void)
{
    int fd = socket(t_addr.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, &t_addr.sa, t_addr.len) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        abort();
    return fd;
}

static void say(int fd, const char *text)
{
    size_t len = strlen(text);
    T_INT_EQ(send(fd, text, len, MSG_NOSIGNAL), (ssize_t)len);
}

struct reply {
    int status;      /* 0: the connection was closed without an answer */
    struct cv_buf b; /* all of it, NUL-terminated */
    const char *text, *body;
};

/* Read to the end of the stream while the API runs. */
static void hear(int fd, struct reply *r)
{
    bool open = true;
    int64_t end_ms = cv_clock_mono_ms() + 60000;
    *r = (struct reply){0};
    cv_buf_init(&r->b, 256u << 20);
    while (open && cv_clock_mono_ms() < end_ms) {
        uint8_t *p;
        size_t room;
        cv_loop_turn(t.loop, 5);
        if (cv_buf_reserve(&r->b, 65536, &p, &room) != 0)
            abort();
        ssize_t n = recv(fd, p, room, 0);
        if (n > 0)
            cv_buf_commit(&r->b, (size_t)n);
        open = n > 0 || (n < 0 && errno == EAGAIN);
    }
    T_OK(!open);
    close(fd);
    if (cv_buf_append(&r->b, "", 1) != 0)
        abort();
    r->text = (const char *)cv_buf_data(&r->b);
    r->status = strncmp(r->text, "HTTP/1.1 ", 9) == 0 ? (int)strtol(r->text + 9, NULL, 10) : 0;
    const char *blank = strstr(r->text, "\r\n\r\n");
    r->body = blank != NULL ? blank + 4 : "";
}

static void http(const char *method, const char *path, const char *headers, struct reply *r)
{
    char text[2048];
    int fd = dial();
    snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n",
             method, path, headers);
    say(fd, text);
    hear(fd, r);
}

static int http_status(const char *method, const char *path, const char *headers)
{
    struct reply r;
    http(method, path, headers, &r);
    cv_buf_done(&r.b);
    return r.status;
}

static bool has_header(const struct reply *r, const char *line)
{
    const char *p = strstr(r->text, line);
    return p != NULL && p < r->body;
}

/* Some turns, in which a request reaches the workers. */
static void turns(int n)
{
    for (int i = 0; i < n; i++)
        cv_loop_turn(t.loop, 2);
}

/* -- cases -- */

static void test_routes(void)
{
    static const struct {
        const char *method, *path;
        int status;
        const char *in_body;
    } rows[] = {
        {"GET", "/", 200, "\"path\":\"/sessions/{id}\""},
        {"GET", "/healthz", 200, "\"status\":\"ready\""},
        {"GET", "/healthz?x=1", 200, "\"status\":\"ready\""},
        {"GET", "/readyz", 200, "\"ready\":true"},
        {"GET", "/status", 200, "\"node_id\":\"node-1\""},
        {"GET", "/sessions", 200, "{\"sessions\":[],\"count\":0,\"truncated\":false"},
        {"GET", "/sessions?limit=3&user=alice", 200, "{\"sessions\":[]"},
        {"GET", "/sessions?limit=", 400, "{\"status\":\"bad_limit\"}"},
        {"GET", "/sessions?limit=-1", 400, "{\"status\":\"bad_limit\"}"},
        {"GET", "/sessions?limit=1x", 400, "{\"status\":\"bad_limit\"}"},
        {"GET", "/sessions?limit=99999999999999999999999", 200, "\"count\":0"},
        {"GET", "/nothing", 404, "{\"status\":\"not_found\"}"},
        {"GET", "/status/", 404, "{\"status\":\"not_found\"}"},
        {"GET", "/healthzz", 404, "{\"status\":\"not_found\"}"},
        {"DELETE", "/sessions/", 404, "{\"status\":\"not_found\"}"},
        {"DELETE", "/sessions/0000000000000001/x", 404, "{\"status\":\"not_found\"}"},
        {"DELETE", "/sessions/zzz", 400, "{\"status\":\"bad_session_id\"}"},
        {"DELETE", "/sessions/00000000000000001", 400, "{\"status\":\"bad_session_id\"}"},
        {"DELETE", "/sessions/000000000000000g", 400, "{\"status\":\"bad_session_id\"}"},
        {"DELETE", "/sessions/00000000000000ff", 404, "{\"status\":\"not_found\"}"},
        {"DELETE", "/sessions/01000000000000fF", 404, "{\"status\":\"not_found\"}"},
        {"DELETE", "/sessions/ff000000000000ff", 404, "{\"status\":\"not_found\"}"},
        {"GET", "/sessions/0000000000000001", 405, "{\"status\":\"method_not_allowed\"}"},
        {"POST", "/healthz", 405, "{\"status\":\"method_not_allowed\"}"},
        {"POST", "/status", 405, "{\"status\":\"method_not_allowed\"}"},
        {"DELETE", "/sessions", 405, "{\"status\":\"method_not_allowed\"}"},
        {"OPTIONS", "/metrics", 405, "{\"status\":\"method_not_allowed\"}"},
    };
    begin("");
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct reply r;
        http(rows[i].method, rows[i].path, "", &r);
        if (!T_INT_EQ(r.status, rows[i].status) || !T_OK(strstr(r.body, rows[i].in_body) != NULL))
            printf("#   %s %s: %s\n", rows[i].method, rows[i].path, r.text);
        T_OK(is_json(r.body, strlen(r.body)));
        T_OK(has_header(&r, "\r\nContent-Type: application/json\r\n"));
        T_OK(has_header(&r, "\r\nCache-Control: no-store\r\n"));
        if (r.status == 405)
            T_OK(has_header(&r, strncmp(rows[i].path, "/sessions/", 10) == 0
                                    ? "\r\nAllow: DELETE\r\n"
                                    : "\r\nAllow: GET, HEAD\r\n"));
        cv_buf_done(&r.b);
    }
    end();
}

static void test_list_of_routes(void)
{
    struct reply r;
    begin("t0ken");
    http("GET", "/", "Authorization: Bearer t0ken\r\n", &r);
    T_INT_EQ(count_of(r.body, "\"method\":"), 7);
    T_INT_EQ(count_of(r.body, "\"token\":true"), 5);
    T_INT_EQ(count_of(r.body, "\"help\":\""), 7);
    T_INT_EQ(count_of(r.body, "\"help\":\"\""), 0);
    T_INT_EQ(count_of(r.body, "null"), 0);
    cv_buf_done(&r.b);
    end();
}

static void test_head_and_metrics(void)
{
    struct reply r;
    begin("");
    static const char *const paths[] = {"/healthz", "/readyz", "/status", "/sessions", "/metrics"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(paths); i++) {
        http("HEAD", paths[i], "", &r);
        T_INT_EQ(r.status, 200);
        T_STR_EQ(r.body, "");
        T_OK(has_header(&r, "\r\nContent-Length: ") && !has_header(&r, "Content-Length: 0\r\n"));
        cv_buf_done(&r.b);
    }
    http("GET", "/metrics", "", &r);
    T_INT_EQ(r.status, 200);
    T_OK(has_header(&r, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    T_OK(strncmp(r.body, "# HELP culvert_", 15) == 0);
    cv_buf_done(&r.b);
    end();
}

static void test_not_ready(void)
{
    begin("");
    t.readiness = (struct cv_readiness){.status = CV_STATUS_DRAINING, .reason = "bye"};
    T_INT_EQ(http_status("GET", "/readyz", ""), 503);
    T_INT_EQ(http_status("HEAD", "/readyz", ""), 503);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
}

static void test_token(void)
{
    static const struct {
        const char *header;
        int status;
    } rows[] = {
        {"", 401},
        {"Authorization: Bearer t0ken\r\n", 200},
        {"authorization: bearer t0ken\r\n", 200},
        {"Authorization: Bearer  t0ken\r\n", 200},
        {"Authorization: Bearer t0keN\r\n", 401},
        {"Authorization: Bearer t0ke\r\n", 401},
        {"Authorization: Bearer t0kenn\r\n", 401},
        {"Authorization: Bearer\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Basic t0ken\r\n", 401},
        {"Authorization: t0ken\r\n", 401},
    };
    struct reply r;
    begin("t0ken");
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++)
        T_INT_EQ(http_status("GET", "/status", rows[i].header), rows[i].status);
    static const char *const closed[] = {"/", "/status", "/sessions", "/metrics", "/nothing"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(closed); i++)
        T_INT_EQ(http_status("GET", closed[i], ""), 401);
    T_INT_EQ(http_status("DELETE", "/sessions/0000000000000001", ""), 401);
    T_INT_EQ(http_status("POST", "/status", ""), 401);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    T_INT_EQ(http_status("GET", "/readyz", ""), 200);
    T_INT_EQ(http_status("POST", "/readyz", ""), 405);
    http("GET", "/status", "", &r);
    T_OK(has_header(&r, "\r\nWWW-Authenticate: Bearer realm=\"culvert\"\r\n"));
    T_STR_EQ(r.body, "{\"status\":\"unauthorized\"}\n");
    cv_buf_done(&r.b);

    cv_admin_set_token(t_admin, "other");
    T_INT_EQ(http_status("GET", "/status", "Authorization: Bearer t0ken\r\n"), 401);
    T_INT_EQ(http_status("GET", "/status", "Authorization: Bearer other\r\n"), 200);
    cv_admin_set_token(t_admin, "");
    T_INT_EQ(http_status("GET", "/status", ""), 200);
    end();
}

/* A page that had its name resolve to 127.0.0.1 reads nothing. */
static void test_host_without_token(void)
{
    static const struct {
        const char *host;
        int status;
    } rows[] = {
        {"127.0.0.1", 200},
        {"127.0.0.1:9090", 200},
        {"[::1]", 200},
        {"[::1]:9090", 200},
        {"localhost", 200},
        {"LOCALHOST:1", 200},
        {"evil.example", 403},
        {"evil.example:9090", 403},
        {"localhost.evil.example", 403},
        {"127.0.0.1.evil.example", 403},
    };
    char text[256];
    begin("");
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        static const char *const paths[] = {"/status", "/healthz"};
        for (size_t p = 0; p < 2; p++) {
            struct reply r;
            int fd = dial();
            snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                     paths[p], rows[i].host);
            say(fd, text);
            hear(fd, &r);
            if (!T_INT_EQ(r.status, p == 0 ? rows[i].status : 200))
                printf("#   %s\n", rows[i].host);
            cv_buf_done(&r.b);
        }
    }
    end();
    begin("t0ken");
    int fd = dial();
    struct reply r;
    say(fd, "GET /status HTTP/1.1\r\nHost: node.example\r\nConnection: close\r\n"
            "Authorization: Bearer t0ken\r\n\r\n");
    hear(fd, &r);
    T_INT_EQ(r.status, 200);
    cv_buf_done(&r.b);
    end();
}

static void test_bodies(void)
{
    static char body[70000];
    char head[200];
    struct reply r;
    begin("");
    memset(body, 'x', sizeof(body) - 1);

    T_INT_EQ(http_status("GET", "/healthz", "Content-Length: 70000\r\n"), 413);
    T_INT_EQ(http_status("GET", "/healthz", "Content-Length: 999999999999\r\n"), 413);

    int fd = dial();
    body[65536] = '\0';
    snprintf(head, sizeof(head),
             "POST /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
             "65536\r\n\r\n");
    say(fd, head);
    say(fd, body);
    hear(fd, &r);
    T_INT_EQ(r.status, 405);
    cv_buf_done(&r.b);

    fd = dial();
    say(fd, "POST /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Transfer-Encoding: chunked\r\n\r\n11170\r\n");
    body[65536] = 'x';
    say(fd, body);
    hear(fd, &r);
    T_INT_EQ(r.status, 0);
    cv_buf_done(&r.b);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
}

static void test_nonsense(void)
{
    static const struct {
        const char *text;
        int status; /* 0: the library goes on waiting, for the idle time at most */
    } rows[] = {
        {"\r\n\r\n\r\n", 0},
        {"\x16\x03\x01\x02\x01\x01\x01\xfc\x03\x03 tls hello\r\n\r\n", 0},
        {"", 0},
        {"GET /healthz HTTP/9.9\r\n\r\n", 505},
        {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
    };
    static char large[40000];
    struct reply r;
    begin("");
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        int fd = dial();
        say(fd, rows[i].text);
        if (rows[i].status == 0) {
            turns(5);
            close(fd);
            continue;
        }
        hear(fd, &r);
        T_INT_EQ(r.status, rows[i].status);
        cv_buf_done(&r.b);
    }
    /* A head that is larger than a connection may have. */
    int fd = dial();
    memset(large, 'a', sizeof(large) - 1);
    say(fd, "GET /status HTTP/1.1\r\nHost: localhost\r\nX: ");
    say(fd, large);
    hear(fd, &r);
    T_OK(r.status == 431 || r.status == 413 || r.status == 0);
    cv_buf_done(&r.b);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
}

static void test_pipelined(void)
{
    struct reply r;
    begin("");
    make_sessions(0, "alice", 2);
    int fd = dial();
    say(fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            "GET /sessions HTTP/1.1\r\nHost: localhost\r\n\r\n"
            "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
            "GET /sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    hear(fd, &r);
    T_INT_EQ(count_of(r.text, "HTTP/1.1 200"), 4);
    T_INT_EQ(count_of(r.text, "\"count\":2"), 2);
    cv_buf_done(&r.b);
    end();
}

static void test_sessions(void)
{
    struct reply r;
    begin("");
    make_sessions(0, "alice", 300);
    make_sessions(1, "bob", 2);
    http("GET", "/sessions", "", &r);
    T_INT_EQ(r.status, 200);
    T_OK(is_json(r.body, strlen(r.body)));
    T_INT_EQ(count_of(r.body, "\"id\":"), 302);
    T_OK(strstr(r.body, "],\"count\":302,\"truncated\":false,\"workers_missing\":0}\n") != NULL);
    static const char *const members[] = {"\"id\":\"0000000000000000\"",
                                          "\"state\":\"relay\"",
                                          "\"listener\":\"main\"",
                                          "\"protocol\":\"socks5\"",
                                          "\"client\":\"192.0.2.1:4000\"",
                                          "\"user\":\"alice\"",
                                          "\"egress\":\"direct\"",
                                          "\"age_ms\":",
                                          "\"bytes_up\":10",
                                          "\"bytes_down\":20",
                                          "example.org"};
    for (size_t i = 1; i < CV_ARRAY_SIZE(members); i++)
        if (!T_OK(strstr(r.body, members[i]) != NULL))
            printf("#   missing %s\n", members[i]);
    cv_buf_done(&r.b);

    http("GET", "/sessions?user=bob", "", &r);
    T_INT_EQ(count_of(r.body, "\"user\":\"bob\""), 2);
    T_OK(strstr(r.body, "alice") == NULL);
    cv_buf_done(&r.b);
    http("GET", "/sessions?user=%62ob&limit=1", "", &r);
    T_OK(strstr(r.body, "],\"count\":1,\"truncated\":true,") != NULL);
    cv_buf_done(&r.b);
    end();
}

static void test_kill(void)
{
    char path[64], wanted[64];
    struct reply r;
    begin("");
    uint64_t id = make_sessions(1, "bob", 3);
    snprintf(path, sizeof(path), "/sessions/%016llx", (unsigned long long)id + 1);
    snprintf(wanted, sizeof(wanted), "{\"killed\":\"%016llx\"}\n", (unsigned long long)id + 1);
    http("DELETE", path, "", &r);
    T_INT_EQ(r.status, 200);
    T_STR_EQ(r.body, wanted);
    cv_buf_done(&r.b);
    T_INT_EQ(atomic_load(&t.killed), 1);
    T_INT_EQ(atomic_load(&t.last_kill_err), CV_E_KILLED);
    T_INT_EQ(http_status("DELETE", path, ""), 404);
    http("GET", "/sessions", "", &r);
    T_OK(strstr(r.body, "\"count\":2") != NULL);
    cv_buf_done(&r.b);
    end();
}

static int ask_for_sessions(void)
{
    int fd = dial();
    say(fd, "GET /sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return fd;
}

static void test_client_leaves_while_workers_answer(void)
{
    struct block b;
    begin("");
    make_sessions(0, "alice", 500);
    block_start(&b, 1);
    int fd = ask_for_sessions();
    turns(10);
    struct linger now = {.l_onoff = 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
    turns(10);
    block_end(&b);
    /* Another one is served, and what was left is cleaned up meanwhile. */
    T_INT_EQ(http_status("GET", "/sessions", ""), 200);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
}

static void test_stop_while_workers_answer(void)
{
    struct block b;
    begin("");
    make_sessions(0, "alice", 500);
    make_sessions(1, "bob", 500);
    block_start(&b, 1);
    int list = ask_for_sessions();
    int kill = dial();
    say(kill, "DELETE /sessions/0100000000000001 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    turns(10);
    cv_admin_stop(t_admin);
    t_admin = NULL;
    turns(3);
    block_end(&b);
    turns(3);
    char c;
    T_OK(recv(list, &c, 1, 0) <= 0);
    T_OK(recv(kill, &c, 1, 0) <= 0);
    close(list);
    close(kill);
    node_end();
}

/* Stopping at every point of an answer's way. */
static void test_stop_at_any_time(void)
{
    for (int n = 0; n < 12; n++) {
        begin("");
        make_sessions(0, "alice", 300);
        int a = ask_for_sessions(), b = ask_for_sessions();
        for (int i = 0; i < n; i++)
            cv_loop_turn(t.loop, 1);
        end();
        close(a);
        close(b);
    }
    T_OK(true);
}

static void test_lists_at_once_are_bounded(void)
{
    int fd[6];
    int ok = 0, busy = 0;
    struct block b;
    begin("");
    block_start(&b, 0);
    for (size_t i = 0; i < CV_ARRAY_SIZE(fd); i++)
        fd[i] = ask_for_sessions();
    turns(20);
    block_end(&b);
    for (size_t i = 0; i < CV_ARRAY_SIZE(fd); i++) {
        struct reply r;
        hear(fd[i], &r);
        ok += r.status == 200;
        busy += r.status == 503 && has_header(&r, "\r\nRetry-After: 1\r\n");
        cv_buf_done(&r.b);
    }
    T_INT_EQ(ok, 4);
    T_INT_EQ(busy, 2);
    T_INT_EQ(http_status("GET", "/sessions", ""), 200);
    end();
}

/* An answer of many megabytes to a client that reads while it is written. */
static void test_large_answer(void)
{
    struct reply r;
    begin("");
    make_sessions(0, "alice", 12000);
    make_sessions(1, "bob", 12000);
    http("GET", "/sessions", "", &r);
    T_INT_EQ(r.status, 200);
    T_INT_EQ(count_of(r.body, "\"id\":"), 24000);
    T_OK(is_json(r.body, strlen(r.body)));
    cv_buf_done(&r.b);
    end();
}

/* More clients than connections: those in excess wait for their turn in the backlog. */
static void test_connection_limit(void)
{
    int idle[64];
    struct reply r;
    begin("");
    for (size_t i = 0; i < CV_ARRAY_SIZE(idle); i++)
        idle[i] = dial();
    turns(20);
    int late = dial();
    say(late, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    turns(20);
    char c;
    T_INT_EQ(recv(late, &c, 1, 0), -1);
    T_INT_EQ(errno, EAGAIN);
    close(idle[0]);
    hear(late, &r);
    T_INT_EQ(r.status, 200);
    cv_buf_done(&r.b);
    for (size_t i = 1; i < CV_ARRAY_SIZE(idle); i++)
        close(idle[i]);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
}

/* Many at once: the loop hears of the listening socket once only. */
static void test_burst(void)
{
    enum { N = 50 };
    int fd[N];
    begin("");
    for (size_t i = 0; i < N; i++) {
        fd[i] = dial();
        say(fd[i], "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    }
    for (size_t i = 0; i < N; i++) {
        struct reply r;
        hear(fd[i], &r);
        T_INT_EQ(r.status, 200);
        cv_buf_done(&r.b);
    }
    end();
}

/* Idle connections, with requests behind them or not, cost no turns of the loop. */
static void test_no_spinning(void)
{
    struct block b;
    begin("");
    int idle = dial(), half = dial();
    say(half, "GET /healthz HT");
    block_start(&b, 0);
    int waiting = ask_for_sessions();
    turns(20);
    uint64_t before = cv_loop_turns(t.loop);
    int64_t end_ms = cv_clock_mono_ms() + 300;
    while (cv_clock_mono_ms() < end_ms)
        cv_loop_turn(t.loop, 100);
    T_OK(cv_loop_turns(t.loop) - before < 20);
    block_end(&b);
    close(idle);
    close(half);
    close(waiting);
    turns(5);
    end();
}

static void test_descriptors_run_out(void)
{
    int fds[64], n = 0;
    struct rlimit old, few;
    struct reply r;
    begin("");
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    int client = dial();
    say(client, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    T_INT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){.rlim_cur = 60, .rlim_max = old.rlim_max};
    T_INT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (n < 64 && (fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        n++;
    uint64_t before = cv_loop_turns(t.loop);
    int64_t end_ms = cv_clock_mono_ms() + 600;
    while (cv_clock_mono_ms() < end_ms)
        cv_loop_turn(t.loop, 100);
    T_OK(cv_loop_turns(t.loop) - before < 150);
    while (n > 0)
        close(fds[--n]);
    T_INT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    hear(client, &r);
    T_INT_EQ(r.status, 200);
    cv_buf_done(&r.b);
    end();
}

static void test_unix_socket(void)
{
    char listen[128], path[120];
    struct stat sb;
    node_start(GOOD_SNAPSHOT);
    snprintf(path, sizeof(path), "%s/admin.sock", t.dir);
    snprintf(listen, sizeof(listen), "unix:%s", path);
    T_INT_EQ(admin_open(listen, ""), 0);
    T_STR_EQ(cv_admin_address(t_admin), listen);
    T_INT_EQ(stat(path, &sb), 0);
    T_INT_EQ(sb.st_mode & 07777, 0660);
    T_INT_EQ(http_status("GET", "/status", ""), 200);
    T_INT_EQ(http_status("GET", "/status", "Content-Length: 0\r\n"), 200);
    end();
    T_INT_EQ(stat(path, &sb), -1);
}

static void test_address_in_use(void)
{
    struct cv_admin *first;
    char address[CV_SOCKADDR_STRLEN];
    begin("");
    first = t_admin;
    t_admin = NULL;
    snprintf(address, sizeof(address), "%s", cv_admin_address(first));
    T_INT_EQ(admin_open(address, ""), -EADDRINUSE);
    T_OK(t_admin == NULL);
    cv_admin_stop(NULL);
    t_admin = first;
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
}

static int open_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Starting with one descriptor after the other missing: no descriptor stays, nothing is closed
 * twice. */
static void test_start_without_descriptors(void)
{
    struct rlimit old;
    int ret = -1;
    node_start(GOOD_SNAPSHOT);
    T_INT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    int before = open_fds();
    for (rlim_t more = 0; more < 10 && ret != 0; more++) {
        int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
        close(lowest);
        struct rlimit few = {.rlim_cur = (rlim_t)lowest + more, .rlim_max = old.rlim_max};
        T_INT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        ret = admin_open("127.0.0.1:0", "");
        T_INT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (ret != 0) {
            if (!T_INT_EQ(open_fds(), before))
                printf("#   with %d more, %s\n", (int)more, cv_err_text(ret));
            T_INT_EQ(ret, -EMFILE);
        }
    }
    T_INT_EQ(ret, 0);
    T_INT_EQ(http_status("GET", "/healthz", ""), 200);
    end();
    T_INT_EQ(open_fds() <= before, true);
}

int main(void)
{
    T_RUN(test_routes);
    T_RUN(test_list_of_routes);
    T_RUN(test_head_and_metrics);
    T_RUN(test_not_ready);
    T_RUN(test_token);
    T_RUN(test_host_without_token);
    T_RUN(test_bodies);
    T_RUN(test_nonsense);
    T_RUN(test_pipelined);
    T_RUN(test_sessions);
    T_RUN(test_kill);
    T_RUN(test_client_leaves_while_workers_answer);
    T_RUN(test_stop_while_workers_answer);
    T_RUN(test_stop_at_any_time);
    T_RUN(test_lists_at_once_are_bounded);
    T_RUN(test_large_answer);
    T_RUN(test_connection_limit);
    T_RUN(test_burst);
    T_RUN(test_no_spinning);
    T_RUN(test_descriptors_run_out);
    T_RUN(test_unix_socket);
    T_RUN(test_address_in_use);
    T_RUN(test_start_without_descriptors);
    return t_done();
}
