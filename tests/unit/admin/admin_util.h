/* What the tests of this module share: a node with real worker threads and made-up sessions, and a
 * view on it. The test's own thread is the control thread. */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "admin/admin.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/json.h"
#include "flow/session.h"
#include "tap.h"

#define WORKERS 2

/* Turn the loop until 'cond' holds; a test that would hang fails after ten seconds. */
#define TURN_UNTIL(loop, cond)                                                                     \
    do {                                                                                           \
        int64_t end_ = cv_clock_mono_ms() + 60000;                                                 \
        while (!(cond) && cv_clock_mono_ms() < end_)                                               \
            cv_loop_turn((loop), 20);                                                              \
        T_OK(cond);                                                                                \
    } while (0)

static struct {
    char dir[64], snapshot[96];
    struct cv_loop *loop; /* control */
    struct cv_node node;
    struct cv_accounts *accounts;
    struct cv_registry *registry;
    struct cv_settings *settings;
    struct cv_source *source;
    struct cv_worker *worker[WORKERS];
    pthread_t thread[WORKERS];
    struct cv_listener_stats *listener;
    struct cv_egress *egress;
    struct cv_readiness readiness;
    struct cv_member_info *members;
    int n_members;
    _Atomic int killed, last_kill_err;
} t;

/* -- an egress that is never dialled -- */

static inline void never_connect(struct cv_egress *e, struct cv_dial *d)
{
    (void)e;
    (void)d;
    abort();
}

static inline void never_free(struct cv_egress *e)
{
    cv_free(e);
}

static const struct cv_egress_ops never_ops = {
    .kind = "never", .connect = never_connect, .cancel = never_connect, .free = never_free};

static inline struct cv_egress *never_new(void *arg, const struct cv_egress_def *def)
{
    struct cv_rcstr *label = def != NULL ? cv_rcstr_ref(def->label) : cv_rcstr_new("direct", 6);
    struct cv_egress *e = cv_zalloc(sizeof(*e));
    (void)arg;
    cv_egress_init(e, &never_ops, label, cv_registry_egress(t.registry, label->s));
    cv_rcstr_unref(label);
    return e;
}

/* -- work on a worker's thread -- */

struct errand {
    struct cv_task task;
    struct cv_worker *worker;
    void (*fn)(struct cv_worker *w, void *arg);
    void *arg;
    sem_t done;
};

static inline void on_errand(struct cv_task *task)
{
    struct errand *e = CV_CONTAINER_OF(task, struct errand, task);
    e->fn(e->worker, e->arg);
    sem_post(&e->done);
}

/* Run 'fn' on the worker and wait for it. */
static inline void on_worker(unsigned i, void (*fn)(struct cv_worker *w, void *arg), void *arg)
{
    struct errand e = {.task.fn = on_errand, .worker = t.worker[i], .fn = fn, .arg = arg};
    sem_init(&e.done, 0, 0);
    cv_loop_post(e.worker->loop, &e.task);
    while (sem_wait(&e.done) != 0)
        ;
    sem_destroy(&e.done);
}

/* A worker that is busy until it is let go. */
struct block {
    struct cv_task task;
    sem_t entered, go, left;
};

static inline void on_block(struct cv_task *task)
{
    struct block *b = CV_CONTAINER_OF(task, struct block, task);
    sem_post(&b->entered);
    while (sem_wait(&b->go) != 0)
        ;
    sem_post(&b->left);
}

static inline void block_start(struct block *b, unsigned i)
{
    sem_init(&b->entered, 0, 0);
    sem_init(&b->go, 0, 0);
    sem_init(&b->left, 0, 0);
    b->task.fn = on_block;
    cv_loop_post(t.worker[i]->loop, &b->task);
    while (sem_wait(&b->entered) != 0)
        ;
}

static inline void block_end(struct block *b)
{
    sem_post(&b->go);
    while (sem_wait(&b->left) != 0)
        ;
    sem_destroy(&b->entered);
    sem_destroy(&b->go);
    sem_destroy(&b->left);
}

/* -- sessions -- */

static inline void fake_kill(struct cv_session *s, int err)
{
    atomic_fetch_add(&t.killed, 1);
    atomic_store(&t.last_kill_err, err);
    cv_session_fail(s, CV_STAGE_SPLICE, err);
    cv_session_end(s);
    cv_free(s);
}

static const struct cv_session_ops fake_session_ops = {.kill = fake_kill};

struct wish {
    const char *user;
    struct cv_account *account;
    size_t n;
    uint64_t first_id; /* answer */
};

static inline void on_make_sessions(struct cv_worker *w, void *arg)
{
    struct wish *wish = arg;
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {192, 0, 2, 1}}, .port = 4000};
    struct cv_target target;
    if (cv_target_parse("example.org:443", 15, 0, &target) != 0)
        abort();
    for (size_t i = 0; i < wish->n; i++) {
        struct cv_session *s = cv_alloc(sizeof(*s));
        cv_session_begin(s, w, &fake_session_ops, "socks5", t.listener, &client);
        struct cv_rcstr *name = cv_rcstr_new(wish->user, strlen(wish->user));
        cv_session_set_user(s, name, wish->account);
        cv_rcstr_unref(name);
        if (cv_session_set_target(s, &target) != 0)
            abort();
        s->outlet = cv_rcstr_ref(t.egress->label);
        s->egress_stats = t.egress->stats;
        cv_gauge_add(&s->egress_stats->row.active, 1);
        s->state = CV_SESSION_RELAY;
        cv_session_count_up(s, 10);
        cv_session_count_down(s, 20);
        if (i == 0)
            wish->first_id = s->id;
    }
}

/* 'n' live sessions of 'user' on worker 'i'; returns the id of the first. */
static inline uint64_t make_sessions(unsigned i, const char *user, size_t n)
{
    struct cv_rcstr *name = cv_rcstr_new(user, strlen(user));
    struct wish wish = {.user = user, .account = cv_accounts_get(t.accounts, name), .n = n};
    on_worker(i, on_make_sessions, &wish);
    cv_account_unref(wish.account);
    cv_rcstr_unref(name);
    return wish.first_id;
}

static inline void on_kill_sessions(struct cv_worker *w, void *arg)
{
    (void)arg;
    cv_session_kill_all(w, CV_E_DRAINING);
}

/* -- the node -- */

static inline void *worker_main(void *arg)
{
    struct cv_worker *w = arg;
    cv_active_thread_join(w->loop);
    cv_loop_run(w->loop);
    cv_active_thread_leave();
    return NULL;
}

static inline int on_snapshot(void *arg, struct cv_snapshot *s)
{
    (void)arg;
    return cv_active_swap(t.node.active, s);
}

static inline void write_snapshot(const char *text)
{
    if (cv_file_write_atomic(t.snapshot, text, strlen(text), 0600) != 0)
        abort();
}

#define GOOD_SNAPSHOT                                                                              \
    "{\"schema_version\":1,\"version\":7,\"users\":{\"alice\":{\"password\":\"pw\",\"policy\":"    \
    "\"p\"}},\"routing_policies\":{\"p\":{\"routes\":[],\"default_action\":{\"type\":\"direct\"}"  \
    "}},\"egresses\":{}}"

static inline void node_start(const char *snapshot)
{
    memset(&t, 0, sizeof(t));
    signal(SIGPIPE, SIG_IGN);
    snprintf(t.dir, sizeof(t.dir), "/tmp/cv-admin-XXXXXX");
    if (mkdtemp(t.dir) == NULL || cv_loop_new(&t.loop) != 0)
        abort();
    snprintf(t.snapshot, sizeof(t.snapshot), "%s/snapshot.json", t.dir);
    write_snapshot(snapshot);
    t.accounts = cv_accounts_new();
    t.registry = cv_registry_new();
    t.settings = cv_settings_new();
    t.node.active = cv_active_holder_new(t.accounts, never_new, NULL);
    t.listener = cv_registry_listener(t.registry, "main", "mixed");
    t.egress = never_new(NULL, NULL);
    t.readiness = (struct cv_readiness){.status = CV_STATUS_READY};
    struct cv_source_conf conf = {.file = t.snapshot,
                                  .cache = "",
                                  .node_id = "node-1",
                                  .on_snapshot = on_snapshot,
                                  .stats = &t.node.stats};
    if (cv_source_new(t.loop, &conf, &t.source) != 0)
        abort();
    for (unsigned i = 0; i < WORKERS; i++)
        if (cv_worker_new(i, &t.node, t.settings, &t.worker[i]) != 0 ||
            pthread_create(&t.thread[i], NULL, worker_main, t.worker[i]) != 0)
            abort();
}

/* End the threads; what they were given and have not done stays in their loops. */
static inline void node_join(void)
{
    for (unsigned i = 0; i < WORKERS; i++)
        on_worker(i, on_kill_sessions, NULL);
    for (unsigned i = 0; i < WORKERS; i++)
        cv_loop_stop(t.worker[i]->loop);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(t.thread[i], NULL);
}

static inline void node_end(void)
{
    node_join();
    cv_source_free(t.source);
    for (unsigned i = 0; i < WORKERS; i++)
        cv_worker_free(t.worker[i]);
    cv_egress_unref(t.egress);
    cv_active_holder_free(t.node.active);
    cv_accounts_free(t.accounts);
    cv_registry_free(t.registry);
    cv_settings_unref(t.settings);
    /* What workers handed back after the API had stopped is released here. */
    cv_loop_turn(t.loop, 0);
    T_INT_EQ(cv_loop_io_count(t.loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(t.loop)), 0);
    cv_loop_free(t.loop);
    T_INT_EQ(cv_gauge_get(&t.node.stats.sessions), 0);
    (void)unlink(t.snapshot);
    T_INT_EQ(rmdir(t.dir), 0);
}

static inline void say_readiness(void *arg, struct cv_readiness *ret)
{
    (void)arg;
    *ret = t.readiness;
}

static inline void say_listeners(void *arg, cv_admin_listener_cb fn, void *fn_arg)
{
    (void)arg;
    fn(fn_arg, &(struct cv_admin_listener){
                   .name = "main", .protocol = "mixed", .address = "127.0.0.1:1080"});
}

static inline void say_members(void *arg, cv_member_cb fn, void *fn_arg)
{
    (void)arg;
    for (int i = 0; i < t.n_members; i++)
        fn(fn_arg, &t.members[i]);
}

/* Members of the chain "fo": a is up, b is down. */
static inline void make_members(struct cv_members *ms, struct cv_member_info info[2])
{
    struct cv_rcstr *egress = cv_rcstr_new("fo", 2), *addr = cv_rcstr_new("192.0.2.1:1080", 14);
    struct cv_rcstr *label = cv_rcstr_new("upstream:192.0.2.1:1080", 23);
    struct cv_rcstr *secret = cv_rcstr_new("secret-word", 11);
    for (uint32_t i = 0; i < 2; i++) {
        struct cv_rcstr *id = cv_rcstr_new(i == 0 ? "a" : "b", 1);
        struct cv_chain_member def = {.id = id,
                                      .backend = {.kind = CV_BACKEND_SOCKS5,
                                                  .addr = addr,
                                                  .username = secret,
                                                  .password = secret,
                                                  .label = label}};
        struct cv_member *m = cv_members_get(ms, egress, &def, 0);
        struct cv_vital_try try;
        if (m == NULL || !cv_member_begin(m, cv_member_word(m), CV_VITAL_IN_TURN, 0, 0, &try))
            abort();
        if (i == 0)
            cv_counter_add(&m->established, 1);
        else
            cv_counter_add(&m->failed[CV_BLAME_EGRESS], 1);
        cv_member_end(m, &try, i == 0 ? CV_VITAL_WORKS : CV_VITAL_FAILED, CV_STAGE_TLS,
                      i == 0 ? 0 : CV_E_TLS, 0, 8000, 8000);
        cv_member_describe(m, 10 * i, 0, &info[i]);
        cv_rcstr_unref(id);
    }
    cv_rcstr_unref(egress);
    cv_rcstr_unref(addr);
    cv_rcstr_unref(label);
    cv_rcstr_unref(secret);
    t.members = info;
    t.n_members = 2;
}

static inline void free_members(struct cv_members *ms, struct cv_member_info info[2])
{
    t.n_members = 0;
    for (int i = 0; i < 2; i++)
        cv_member_unref((struct cv_member *)(uintptr_t)info[i].member);
    cv_members_free(ms);
}

static inline struct cv_admin_view node_view(void)
{
    return (struct cv_admin_view){.node = &t.node,
                                  .workers = t.worker,
                                  .n_workers = WORKERS,
                                  .registry = t.registry,
                                  .accounts = t.accounts,
                                  .source = t.source,
                                  .node_id = "node-1",
                                  .started_ms = cv_clock_unix_ms() - 5000,
                                  .readiness = say_readiness,
                                  .each_listener = say_listeners,
                                  .each_member = say_members};
}

/* True if the text is a JSON document. */
static inline bool is_json(const char *text, size_t len)
{
    struct cv_json_error e;
    struct cv_json_doc *doc = NULL;
    int ret = cv_json_parse(text, len, &e, &doc);
    if (ret != 0)
        printf("# line %u column %u: %s\n", e.line, e.column, e.text);
    cv_json_free(doc);
    return ret == 0;
}

/* Without strstr(), which looks at the whole text each time under the address sanitizer. */
static inline size_t count_of(const char *text, const char *what)
{
    size_t n = 0, len = strlen(what);
    for (const char *p = text; *p != '\0'; p++)
        n += *p == what[0] && strncmp(p, what, len) == 0;
    return n;
}
