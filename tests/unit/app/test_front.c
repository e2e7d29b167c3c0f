#include "app/front.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "egress/egress.h"
#include "flow/account.h"
#include "flow/active.h"
#include "flow/session.h"
#include "net/tcp.h"
#include "tap.h"

/* Two workers with the empty snapshot; listeners on ports of the kernel's choice. */
static struct cv_node t_node;
static struct cv_settings *t_settings;
static struct cv_accounts *t_accounts;
static struct cv_registry *t_registry;
static struct cv_loop *t_loop;
static struct cv_crew *t_crew;
static struct cv_front *t_front;
static struct cv_systemd t_systemd;
static char t_dir[64];

static void on_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    (void)line;
    (void)len;
}

static struct cv_egress *make_egress(void *arg, const struct cv_egress_def *def)
{
    (void)arg;
    (void)def;
    return cv_egress_direct_new(cv_registry_egress(t_registry, "direct"));
}

static void begin(void)
{
    struct cv_alog_conf off = {.file = ""};
    memset(&t_node, 0, sizeof(t_node));
    snprintf(t_dir, sizeof(t_dir), "/tmp/cv-front-XXXXXX");
    cv_log_set_sink(on_log, NULL);
    t_settings = cv_settings_new();
    t_accounts = cv_accounts_new();
    t_registry = cv_registry_new();
    if (mkdtemp(t_dir) == NULL || cv_loop_new(&t_loop) != 0 ||
        cv_alog_new(&off, &t_node.stats, &t_node.alog) != 0)
        abort();
    t_node.active = cv_active_holder_new(t_accounts, make_egress, NULL);
    T_INT_EQ(cv_crew_start(2, &t_node, t_settings, &t_crew), 0);
    T_INT_EQ(cv_crew_count(t_crew), 2);
    t_front = cv_front_new(t_crew, t_registry, &t_systemd);
}

static void on_kill_all(struct cv_worker *w, void *arg)
{
    (void)arg;
    cv_session_kill_all(w, -1);
}

static void end(void)
{
    cv_front_free(t_front);
    cv_crew_run(t_crew, on_kill_all, NULL);
    T_OK(cv_crew_join(t_crew));
    cv_crew_free(t_crew);
    cv_alog_free(t_node.alog);
    cv_active_holder_free(t_node.active);
    cv_accounts_free(t_accounts);
    cv_registry_free(t_registry);
    cv_settings_unref(t_settings);
    cv_loop_free(t_loop);
    cv_log_set_sink(NULL, NULL);
    T_INT_EQ(rmdir(t_dir), 0);
}

/* Apply a config with these lines of listeners; the sentence, or "" on success. */
static const char *apply(const char *listeners)
{
    static char why[512];
    char text[2048], path[128];
    struct cv_config_error e;
    struct cv_config *c = NULL;
    snprintf(path, sizeof(path), "%s/c.yaml", t_dir);
    snprintf(text, sizeof(text), "node_id: n\nlisteners:\n%s", listeners);
    if (cv_config_parse(path, text, strlen(text), &e, &c) != 0) {
        T_FAIL("%u: %s: %s", e.line, e.path, e.text);
        return "the config is bad";
    }
    why[0] = '\0';
    int ret = cv_front_apply(t_front, c, why, sizeof(why));
    T_OK((ret == 0) == (why[0] == '\0'));
    cv_config_free(c);
    return why;
}

static uint16_t port_of(size_t i)
{
    struct cv_front_entry e;
    cv_front_get(t_front, i, &e);
    const char *colon = strrchr(e.address, ':');
    return colon != NULL ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
}

static int connect_port(uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* True if something of ours answers: a greeting of SOCKS5 with a login. */
static bool answers(int fd)
{
    uint8_t reply[2] = {0};
    if (fd < 0)
        return false;
    struct timeval limit = {.tv_sec = 5};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    bool ok = send(fd, "\5\1\2", 3, MSG_NOSIGNAL) == 3 && recv(fd, reply, 2, MSG_WAITALL) == 2 &&
              reply[0] == 5 && reply[1] == 2;
    close(fd);
    return ok;
}

static void test_life(void)
{
    begin();
    T_STR_EQ(apply("  - { name: a, listen: \"127.0.0.1:0\" }\n"
                   "  - { name: b, listen: \"127.0.0.1:0\", protocol: socks5 }\n"),
             "");
    T_INT_EQ(cv_front_count(t_front), 2);
    uint16_t a = port_of(0), b = port_of(1);
    T_OK(a != 0 && b != 0 && a != b);
    for (int i = 0; i < 8; i++) /* both workers */
        T_OK(answers(connect_port(a)));
    T_OK(answers(connect_port(b)));

    /* What stays keeps its port, also with another protocol; what is gone is closed. */
    T_STR_EQ(apply("  - { name: b, listen: \"127.0.0.1:0\", protocol: http }\n"
                   "  - { name: c, listen: \"127.0.0.1:0\", protocol: socks5 }\n"),
             "");
    T_INT_EQ(cv_front_count(t_front), 2);
    T_INT_EQ(port_of(0), b);
    T_OK(answers(connect_port(port_of(1))));
    T_OK(connect_port(a) < 0);
    T_OK(!answers(connect_port(b))); /* speaks HTTP now */

    cv_front_close(t_front);
    T_INT_EQ(cv_front_count(t_front), 0);
    T_OK(connect_port(b) < 0);
    end();
}

/* A listener that is renamed keeps its sockets: its backlog loses nothing. */
static void test_rename(void)
{
    char line[200];
    begin();
    struct cv_sockaddr any = {.len = sizeof(any.in4), .in4.sin_family = AF_INET};
    int fd;
    any.in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    T_INT_EQ(cv_tcp_listen(&any, &(struct cv_tcp_listen_opts){0}, &fd), 0);
    T_INT_EQ(getsockname(fd, &any.sa, &any.len), 0);
    uint16_t port = ntohs(any.in4.sin_port);
    close(fd);
    snprintf(line, sizeof(line), "  - { name: old, listen: \"127.0.0.1:%u\" }\n", port);
    T_STR_EQ(apply(line), "");
    snprintf(line, sizeof(line), "  - { name: new, listen: \"127.0.0.1:%u\" }\n", port);
    T_STR_EQ(apply(line), "");
    struct cv_front_entry e;
    cv_front_get(t_front, 0, &e);
    T_STR_EQ(e.name, "new");
    T_OK(answers(connect_port(port)));
    end();
}

/* All or nothing: a place that is taken, a socket that was not passed, a certificate that is not
 * there; what was before goes on. */
static void test_refused(void)
{
    char line[300], want[200];
    begin();
    T_STR_EQ(apply("  - { name: a, listen: \"127.0.0.1:0\" }\n"), "");
    uint16_t a = port_of(0);

    struct cv_sockaddr any = {.len = sizeof(any.in4), .in4.sin_family = AF_INET};
    int fd;
    any.in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    /* Even another node of the same user, whose sockets would share the port. */
    T_INT_EQ(cv_tcp_listen(&any, &(struct cv_tcp_listen_opts){.reuse_port = true}, &fd), 0);
    T_INT_EQ(getsockname(fd, &any.sa, &any.len), 0);
    snprintf(line, sizeof(line),
             "  - { name: x, listen: \"127.0.0.1:0\" }\n  - { name: t, listen: "
             "\"127.0.0.1:%u\" }\n",
             ntohs(any.in4.sin_port));
    snprintf(want, sizeof(want),
             "listener 't' cannot listen on '127.0.0.1:%u': Address already in use",
             ntohs(any.in4.sin_port));
    T_STR_EQ(apply(line), want);
    close(fd);

    T_STR_EQ(apply("  - { name: p, listen: \"fd:web\" }\n"),
             "listener 'p' cannot listen on 'fd:web': no socket of this name was passed "
             "(LISTEN_FDNAMES)");
    const char *why = apply("  - { name: s, listen: \"127.0.0.1:0\", tls: { cert: no.pem, key: "
                            "no.key } }\n");
    T_OK(strncmp(why, "listener 's': ", 14) == 0 && strstr(why, "no.pem") != NULL);
    why = apply("  - { name: u, listen: \"unix:none/x.sock\" }\n");
    T_OK(strncmp(why, "listener 'u' cannot listen on 'unix:", 36) == 0);

    T_INT_EQ(cv_front_count(t_front), 1);
    T_INT_EQ(port_of(0), a);
    T_OK(answers(connect_port(a)));
    end();
}

static int connect_unix(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
        return fd;
    close(fd);
    return -1;
}

static void test_unix(void)
{
    char path[128];
    struct stat sb;
    begin();
    snprintf(path, sizeof(path), "%s/x.sock", t_dir);
    T_STR_EQ(apply("  - { name: u, listen: \"unix:x.sock\", unix_mode: 0600 }\n"), "");
    T_INT_EQ(stat(path, &sb), 0);
    T_INT_EQ(sb.st_mode & 0777, 0600);
    for (int i = 0; i < 4; i++)
        T_OK(answers(connect_unix(path)));
    ino_t ino = sb.st_ino;
    T_STR_EQ(apply("  - { name: u, listen: \"unix:x.sock\", unix_mode: 0666 }\n"), "");
    T_INT_EQ(stat(path, &sb), 0);
    T_INT_EQ(sb.st_mode & 0777, 0666);
    T_INT_EQ(sb.st_ino, ino);
    /* A file that somebody else has put there since is not removed. */
    T_INT_EQ(unlink(path), 0);
    FILE *f = fopen(path, "w");
    fclose(f);
    cv_front_close(t_front);
    T_INT_EQ(unlink(path), 0);
    T_STR_EQ(apply("  - { name: u, listen: \"unix:x.sock\" }\n"), "");
    cv_front_close(t_front);
    T_OK(stat(path, &sb) != 0);
    end();
}

/* A socket of systemd is used by all workers, and stays open when its listener goes. */
static void test_passed(void)
{
    struct cv_sockaddr any = {.len = sizeof(any.in4), .in4.sin_family = AF_INET};
    int fd;
    begin();
    any.in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    T_INT_EQ(cv_tcp_listen(&any, &(struct cv_tcp_listen_opts){0}, &fd), 0);
    T_INT_EQ(getsockname(fd, &any.sa, &any.len), 0);
    T_INT_EQ(cv_systemd_add(&t_systemd, "web", 3, fd), 0);
    for (int i = 0; i < 2; i++) {
        T_STR_EQ(apply("  - { name: p, listen: \"fd:web\" }\n"), "");
        T_INT_EQ(port_of(0), ntohs(any.in4.sin_port));
        for (int k = 0; k < 4; k++)
            T_OK(answers(connect_port(port_of(0))));
        cv_front_close(t_front);
    }
    close(fd);
    t_systemd = (struct cv_systemd){0};
    end();
}

/* From one front to the next as from process to process: duplicates of its sockets, of more than
 * there are workers. What waits in a backlog meanwhile is answered by the next one; a listener that
 * is not taken is closed. */
static void test_handed_over(void)
{
    struct cv_handed offer = {0}, received = {.owned = true};
    const char *both = "  - { name: a, listen: \"127.0.0.1:0\" }\n"
                       "  - { name: u, listen: \"unix:x.sock\" }\n"
                       "  - { name: gone, listen: \"127.0.0.1:0\" }\n";
    char path[128];
    int waiting[16];
    begin();
    snprintf(path, sizeof(path), "%s/x.sock", t_dir);
    T_STR_EQ(apply(both), "");
    uint16_t a = port_of(0), gone = port_of(2);
    T_INT_EQ(cv_front_offer(t_front, &offer), 0);
    T_INT_EQ(offer.n, 3);
    T_INT_EQ(offer.v[0]->about.n_fds, 2);
    for (size_t i = 0; i < 2; i++) {
        struct cv_takeover_item about = offer.v[i]->about;
        int fds[CV_TAKEOVER_FDS_MAX];
        for (int k = 0; k < about.n_fds; k++)
            fds[k] = dup(offer.v[i]->fd[k]);
        if (i == 0) {
            /* A third worker of the old node. */
            struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(a)};
            struct cv_sockaddr addr = {.len = sizeof(sa)};
            sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            memcpy(&addr.in4, &sa, sizeof(sa));
            T_INT_EQ(cv_tcp_listen(&addr, &(struct cv_tcp_listen_opts){.reuse_port = true},
                                   &fds[about.n_fds++]),
                     0);
        }
        T_INT_EQ(cv_handed_add(&received, &about, fds), 0);
        offer.v[i]->taken = true;
    }
    cv_front_hand_over(t_front, &offer);
    cv_handed_done(&offer);
    T_INT_EQ(cv_front_count(t_front), 0);
    T_OK(connect_port(gone) < 0);
    for (size_t i = 0; i < CV_ARRAY_SIZE(waiting); i++)
        waiting[i] = i % 4 == 0 ? connect_unix(path) : connect_port(a);

    cv_front_inherit(t_front, &received);
    T_STR_EQ(apply("  - { name: u, listen: \"unix:x.sock\" }\n"
                   "  - { name: a, listen: \"127.0.0.1:0\" }\n"),
             "");
    T_INT_EQ(port_of(1), a);
    T_OK(received.v[0]->taken && received.v[1]->taken);
    cv_front_inherit(t_front, NULL);
    cv_handed_done(&received);
    for (size_t i = 0; i < CV_ARRAY_SIZE(waiting); i++)
        T_OK(answers(waiting[i]));
    /* Until the old node has said its last word, the file is not ours to remove. */
    cv_front_close(t_front);
    T_INT_EQ(unlink(path), 0);
    end();
}

/* Fewer sockets than workers: the rest is opened when the old node has stopped, not before. */
static void test_completed(void)
{
    struct cv_handed offer = {0}, received = {.owned = true};
    begin();
    struct cv_takeover_item about = {
        .kind = CV_TAKEOVER_ADDRESS, .n_fds = 1, .listen = "127.0.0.1:0", .name = "a"};
    struct cv_sockaddr any = {.len = sizeof(any.in4), .in4.sin_family = AF_INET};
    int fd;
    any.in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    T_INT_EQ(cv_tcp_listen(&any, &(struct cv_tcp_listen_opts){.reuse_port = true}, &fd), 0);
    T_INT_EQ(cv_handed_add(&received, &about, &fd), 0);
    cv_front_inherit(t_front, &received);
    T_STR_EQ(apply("  - { name: a, listen: \"127.0.0.1:0\" }\n"), "");
    T_INT_EQ(cv_front_offer(t_front, &offer), 0);
    T_INT_EQ(offer.v[0]->about.n_fds, 1);
    cv_handed_done(&offer);
    cv_front_complete(t_front);
    T_INT_EQ(cv_front_offer(t_front, &offer), 0);
    T_INT_EQ(offer.v[0]->about.n_fds, 2);
    cv_handed_done(&offer);
    for (int i = 0; i < 16; i++)
        T_OK(answers(connect_port(port_of(0))));
    cv_front_rearm(t_front);
    for (int i = 0; i < 16; i++)
        T_OK(answers(connect_port(port_of(0))));
    cv_front_inherit(t_front, NULL);
    cv_handed_done(&received);
    end();
}

int main(void)
{
    T_RUN(test_life);
    T_RUN(test_rename);
    T_RUN(test_refused);
    T_RUN(test_unix);
    T_RUN(test_passed);
    T_RUN(test_handed_over);
    T_RUN(test_completed);
    return t_done();
}
