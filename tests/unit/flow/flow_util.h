/* What the tests of this module share: a node with one worker, policies from a few lines of JSON,
 * and an egress that answers as a test wants. */
#pragma once

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "flow/flow.h"
#include "flow/registry.h"
#include "flow/session.h"
#include "net/tcp.h"
#include "tap.h"

/* Turn the loop until 'cond' holds; a test that would hang fails after ten seconds. */
#define TURN_UNTIL(loop, cond)                                                                     \
    do {                                                                                           \
        int64_t end_ = cv_clock_mono_ms() + 60000;                                                 \
        while (!(cond) && cv_clock_mono_ms() < end_)                                               \
            cv_loop_turn((loop), 20);                                                              \
        T_OK(cond);                                                                                \
    } while (0)

/* -- an egress that does as it is told -- */

enum fake_mode {
    FAKE_CONNECT, /* one end of a socket pair; the other is fake.peer_fd */
    FAKE_FAIL,    /* later, with fake.stage and fake.err */
    FAKE_HANG,    /* never */
};

static struct {
    enum fake_mode mode;
    enum cv_stage stage;
    int err;
    int peer_fd; /* the test closes it */
    int live;    /* egress objects */
    int dials, cancels;
    bool names_special; /* of the last dial */
    struct cv_prefix special;
    int64_t deadline_ms;
    struct cv_task task;
    struct cv_dial *dial;
    struct cv_rcstr *member;
    struct cv_egress_stats *member_stats;
    struct cv_registry *registry;
} fake = {.peer_fd = -1};

static inline void fake_answer(struct cv_task *task)
{
    struct cv_dial *d = fake.dial;
    int fds[2];
    (void)task;
    fake.dial = NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0 ||
        cv_tcp_adopt(d->worker->loop, fds[0], &d->stream) != 0)
        abort();
    fake.peer_fd = fds[1];
    d->local = (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 1}}, .port = 4321};
    d->peer = (struct cv_endpoint){.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 9}}, .port = 80};
    d->member = fake.member;
    d->stats = fake.member_stats;
    d->attempts = fake.member != NULL ? 2 : 0;
    cv_dial_done(d);
}

static inline void fake_connect(struct cv_egress *e, struct cv_dial *d)
{
    (void)e;
    fake.dials++;
    fake.names_special = d->names_special;
    fake.special = d->special;
    fake.deadline_ms = d->deadline_ms;
    if (fake.mode == FAKE_FAIL) {
        cv_dial_fail_later(d, fake.stage, fake.err);
        return;
    }
    fake.dial = d;
    if (fake.mode == FAKE_CONNECT) {
        fake.task = (struct cv_task){.fn = fake_answer};
        cv_loop_next(d->worker->loop, &fake.task);
    }
}

static inline void fake_cancel(struct cv_egress *e, struct cv_dial *d)
{
    (void)e;
    fake.cancels++;
    (void)cv_loop_next_cancel(d->worker->loop, &fake.task);
    fake.dial = NULL;
}

static inline void fake_free(struct cv_egress *e)
{
    __atomic_fetch_sub(&fake.live, 1, __ATOMIC_ACQ_REL);
    cv_free(e);
}

static const struct cv_egress_ops fake_ops = {
    .kind = "fake",
    .connect = fake_connect,
    .cancel = fake_cancel,
    .free = fake_free,
};

static inline struct cv_egress *fake_factory(void *arg, const struct cv_egress_def *def)
{
    struct cv_rcstr *label =
        def != NULL ? cv_rcstr_ref(def->label) : cv_rcstr_new("direct", sizeof("direct") - 1);
    struct cv_egress *e = cv_zalloc(sizeof(*e));
    cv_egress_init(e, &fake_ops, label, cv_registry_egress(arg, label->s));
    cv_rcstr_unref(label);
    __atomic_fetch_add(&fake.live, 1, __ATOMIC_RELAXED);
    return e;
}

/* -- a node -- */

struct test_node {
    struct cv_node node;
    struct cv_accounts *accounts;
    struct cv_registry *registry;
    struct cv_settings *settings;
    struct cv_worker *worker; /* not joined to RCU: the test thread is the only one */
    struct cv_listener_stats *listener;
};

static inline struct cv_snapshot *test_snapshot(const char *json)
{
    struct cv_snapshot_error e;
    struct cv_snapshot *s = NULL;
    if (cv_snapshot_compile(json, strlen(json), "node-1", &e, &s) != 0) {
        printf("# %s: %s\n", e.path, e.text);
        abort();
    }
    return s;
}

static inline void test_policy(struct test_node *n, const char *json)
{
    T_INT_EQ(cv_active_swap(n->node.active, test_snapshot(json)), 0);
}

static inline void test_node_start(struct test_node *n)
{
    *n = (struct test_node){0};
    n->accounts = cv_accounts_new();
    n->registry = cv_registry_new();
    n->settings = cv_settings_new();
    snprintf(n->settings->node_id, sizeof(n->settings->node_id), "node-1");
    n->node.active = cv_active_holder_new(n->accounts, fake_factory, n->registry);
    n->listener = cv_registry_listener(n->registry, "main", "socks5");
    if (cv_worker_new(3, &n->node, n->settings, &n->worker) != 0)
        abort();
}

static inline void test_node_end(struct test_node *n)
{
    T_INT_EQ(cv_loop_io_count(n->worker->loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(n->worker->loop)), 0);
    T_INT_EQ(cv_gauge_get(&n->node.stats.sessions), 0);
    T_INT_EQ(cv_gauge_get(&n->listener->row.active), 0);
    cv_worker_free(n->worker);
    cv_active_holder_free(n->node.active);
    T_INT_EQ(__atomic_load_n(&fake.live, __ATOMIC_ACQUIRE), 0);
    cv_accounts_free(n->accounts);
    cv_settings_unref(n->settings);
    cv_registry_free(n->registry);
}

/* A connected pair over loopback TCP, both non-blocking. */
static inline void test_tcp_pair(int fds[2])
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    int one = 1;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&sa, sizeof(sa)) != 0 || listen(l, 4) != 0 ||
        getsockname(l, (struct sockaddr *)&sa, &len) != 0)
        abort();
    fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fds[1] < 0 || connect(fds[1], (struct sockaddr *)&sa, sizeof(sa)) != 0)
        abort();
    fds[0] = accept4(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fds[0] < 0)
        abort();
    for (int i = 0; i < 2; i++)
        (void)setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    close(l);
}
