/* What the tests of the inbound protocols share: a node with one worker and a small policy,
 * egresses whose dials the test answers itself, an access log that is kept in memory, and clients
 * that speak raw bytes. Everything runs on one thread: the test turns the loop. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "flow/active.h"
#include "flow/registry.h"
#include "flow/session.h"
#include "inbound/listener.h"
#include "net/tcp.h"
#include "policy/passwd.h"
#include "tap.h"

/* -- the access log, kept in memory -- */

static char alog_text[64 << 10];
static size_t alog_len, alog_lines;

bool cv_alog_is_on(const struct cv_alog *alog)
{
    return true;
}

int cv_alog_stream_open(struct cv_alog *alog, struct cv_loop *loop,
                        struct cv_alog_stream **ret_stream)
{
    *ret_stream = (struct cv_alog_stream *)(void *)alog_text; /* only handed back */
    return 0;
}

void cv_alog_stream_close(struct cv_alog_stream *s)
{
}

void cv_alog_line(struct cv_alog_stream *s, const char *line, size_t len)
{
    alog_lines++;
    if (len + 2 > sizeof(alog_text) - alog_len)
        alog_len = 0;
    memcpy(alog_text + alog_len, line, len);
    alog_len += len;
    alog_text[alog_len++] = '\n';
    alog_text[alog_len] = '\0';
}

/* -- the node -- */

struct rig {
    struct cv_node node;
    struct cv_worker *w;
    struct cv_settings *settings;
    struct cv_accounts *accounts;
    struct cv_registry *registry;
    struct cv_listener_conf *conf;
    /* The dial that waits for an answer, if any, and what it asked for. */
    struct cv_dial *dial;
    char dialled[CV_TARGET_STRLEN];
    int dials, cancels;
};

struct rig_egress {
    struct cv_egress super;
    struct rig *rig;
};

static inline void rig_connect(struct cv_egress *e, struct cv_dial *d)
{
    struct rig *g = CV_CONTAINER_OF(e, struct rig_egress, super)->rig;
    g->dial = d;
    g->dials++;
    cv_target_format(d->target, g->dialled);
}

static inline void rig_cancel(struct cv_egress *e, struct cv_dial *d)
{
    struct rig *g = CV_CONTAINER_OF(e, struct rig_egress, super)->rig;
    g->cancels++;
    if (g->dial == d)
        g->dial = NULL;
}

static inline void rig_egress_free(struct cv_egress *e)
{
    cv_free(CV_CONTAINER_OF(e, struct rig_egress, super));
}

static const struct cv_egress_ops rig_egress_ops = {
    .kind = "test",
    .connect = rig_connect,
    .cancel = rig_cancel,
    .free = rig_egress_free,
};

static inline struct cv_egress *rig_factory(void *arg, const struct cv_egress_def *def)
{
    struct rig *g = arg;
    struct rig_egress *e = cv_zalloc(sizeof(*e));
    struct cv_rcstr *label = def != NULL ? cv_rcstr_ref(def->label) : cv_rcstr_new("direct", 6);
    cv_egress_init(&e->super, &rig_egress_ops, label, cv_registry_egress(g->registry, label->s));
    cv_rcstr_unref(label);
    e->rig = g;
    return &e->super;
}

static inline void rig_policy(struct rig *g, const char *json)
{
    struct cv_snapshot_error err;
    struct cv_snapshot *s;
    if (cv_snapshot_compile(json, strlen(json), "node", &err, &s) != 0) {
        printf("# policy: %s: %s\n", err.path, err.text);
        abort();
    }
    if (cv_active_swap(g->node.active, s) != 0)
        abort();
}

#define RIG_POLICY                                                                                 \
    "{\"schema_version\":1,\"version\":7,\"users\":{"                                              \
    "\"u\":{\"password\":\"p\",\"policy\":\"p\"},"                                                 \
    "\"old\":{\"password\":\"p\",\"policy\":\"p\",\"expire\":\"2020-01-01\"},"                     \
    "\"one\":{\"password\":\"p\",\"policy\":\"p\",\"max_connections\":1}},"                        \
    "\"routing_policies\":{\"p\":{\"routes\":[{\"selectors\":[\"blocked.test\",\"10.0.0.0/8\"],"   \
    "\"action\":{\"type\":\"block\"}}]}}}"

static inline struct rig *rig_new(void)
{
    struct rig *g = cv_zalloc(sizeof(*g));
    alog_len = alog_lines = 0;
    alog_text[0] = '\0';
    g->registry = cv_registry_new();
    g->accounts = cv_accounts_new();
    g->node.active = cv_active_holder_new(g->accounts, rig_factory, g);
    g->node.alog = (struct cv_alog *)(void *)alog_text; /* only compared with NULL */
    g->settings = cv_settings_new();
    snprintf(g->settings->node_id, sizeof(g->settings->node_id), "node");
    if (cv_offload_new(1, 4, &g->node.offload) != 0 ||
        cv_worker_new(0, &g->node, g->settings, &g->w) != 0)
        abort();
    cv_active_thread_join(g->w->loop);
    rig_policy(g, RIG_POLICY);
    g->conf = cv_listener_conf_new();
    snprintf(g->conf->name, sizeof(g->conf->name), "main");
    g->conf->protocol = CV_LISTENER_SOCKS5;
    g->conf->stats = cv_registry_listener(g->registry, "main", "socks5");
    return g;
}

/* Turn until 'cond' holds; a test that would hang fails after ten seconds. */
#define TURN_UNTIL(g, cond)                                                                        \
    do {                                                                                           \
        int64_t end_ = cv_clock_mono_ms() + 60000;                                                 \
        while (!(cond) && cv_clock_mono_ms() < end_)                                               \
            cv_loop_turn((g)->w->loop, 20);                                                        \
        T_OK(cond);                                                                                \
    } while (0)

/* Let everything happen that can happen at once. */
static inline void rig_settle(struct rig *g)
{
    for (int i = 0; i < 4; i++)
        cv_loop_turn(g->w->loop, 0);
}

/* Nothing may be left: no session, no descriptor, no timer, no permit. */
static inline void rig_free(struct rig *g)
{
    TURN_UNTIL(g, g->w->n_sessions == 0);
    rig_settle(g);
    T_INT_EQ(cv_gauge_get(&g->node.stats.sessions), 0);
    T_INT_EQ(cv_gauge_get(&g->conf->stats->row.active), 0);
    T_INT_EQ(cv_loop_io_count(g->w->loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(g->w->loop)), 0);
    T_OK(g->dial == NULL);
    cv_offload_free(g->node.offload);
    cv_active_thread_leave();
    cv_worker_free(g->w);
    cv_active_holder_free(g->node.active);
    cv_accounts_free(g->accounts);
    cv_settings_unref(g->settings);
    cv_listener_conf_unref(g->conf);
    cv_registry_free(g->registry);
    cv_free(g);
}

static inline uint64_t rig_refused(const struct rig *g, enum cv_stage stage)
{
    return cv_counter_get(&g->conf->stats->row.refused[stage]);
}

/* -- connections -- */

static inline void rig_pair(int fds[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        abort();
}

/* A connected TCP pair over loopback, both non-blocking. */
static inline void rig_tcp_pair(int fds[2])
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(l, (struct sockaddr *)&sa, len) != 0 || listen(l, 1) != 0 ||
        getsockname(l, (struct sockaddr *)&sa, &len) != 0)
        abort();
    fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fds[1], (struct sockaddr *)&sa, len) != 0)
        abort();
    fds[0] = accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    close(l);
}

static inline struct cv_inbound rig_inbound(struct rig *g, struct cv_stream *stream)
{
    return (struct cv_inbound){
        .worker = g->w,
        .conf = g->conf,
        .stream = stream,
        .client = {.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 1}}, .port = 4242},
        .accepted_ms = cv_loop_now(g->w->loop),
    };
}

static inline struct cv_stream *rig_adopt(struct rig *g, int fd)
{
    struct cv_stream *s;
    if (cv_tcp_adopt(g->w->loop, fd, &s) != 0)
        abort();
    return s;
}

/* Answer the dial that waits: success, with the other end of the connection as result. */
static inline int rig_dial_ok(struct rig *g)
{
    struct cv_dial *d = g->dial;
    int fds[2];
    if (d == NULL)
        return -1;
    rig_pair(fds);
    d->err = 0;
    d->stream = rig_adopt(g, fds[0]);
    d->local = (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {10, 9, 8, 7}}, .port = 513};
    d->peer = (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 1}}, .port = 80};
    g->dial = NULL;
    cv_dial_done(d);
    return fds[1];
}

static inline void rig_dial_fail(struct rig *g, enum cv_stage stage, int err)
{
    struct cv_dial *d = g->dial;
    if (!T_OK(d != NULL))
        return;
    d->err = err;
    d->stage = stage;
    g->dial = NULL;
    cv_dial_done(d);
}

static inline void say(int fd, const void *data, size_t len)
{
    ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
    T_INT_EQ(n, len);
}
#define SAY(fd, s) say((fd), (s), sizeof(s) - 1)

/* True if exactly these bytes come next. */
static inline bool hear(struct rig *g, int fd, const void *want, size_t len)
{
    uint8_t buf[4096];
    size_t got = 0;
    int64_t end = cv_clock_mono_ms() + 60000;
    while (got < len && cv_clock_mono_ms() < end) {
        ssize_t n = recv(fd, buf + got, len - got, 0);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || errno != EAGAIN)
            break;
        else
            cv_loop_turn(g->w->loop, 5);
    }
    return got == len && memcmp(buf, want, len) == 0;
}
#define HEAR(g, fd, s) T_OK(hear((g), (fd), (s), sizeof(s) - 1))

/* How the stream goes on when nothing more is expected: 0 = it ends properly, 1 = a byte came, else
 * -errno (-EAGAIN: it just stays open). */
static inline int hear_end(struct rig *g, int fd, bool stays)
{
    int64_t end = cv_clock_mono_ms() + 60000;
    for (int i = 0; cv_clock_mono_ms() < end && (!stays || i < 4); i++) {
        char c;
        ssize_t n = recv(fd, &c, 1, 0);
        if (n >= 0)
            return (int)n;
        if (errno != EAGAIN)
            return -errno;
        cv_loop_turn(g->w->loop, stays ? 0 : 5);
    }
    return -EAGAIN;
}
#define HEAR_END(g, fd)     T_INT_EQ(hear_end((g), (fd), false), 0)
#define HEAR_NOTHING(g, fd) T_INT_EQ(hear_end((g), (fd), true), -EAGAIN)

/* True if the last line of the access log contains 'text'. */
static inline bool log_has(const char *text)
{
    const char *line = alog_text, *next;
    while ((next = strchr(line, '\n')) != NULL && next[1] != '\0')
        line = next + 1;
    bool found = strstr(line, text) != NULL;
    if (!found)
        printf("#   log: %s", line);
    return found;
}
