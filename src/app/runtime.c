#include "app/runtime.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "admin/admin.h"
#include "app/config.h"
#include "app/crew.h"
#include "app/front.h"
#include "app/signals.h"
#include "app/systemd.h"
#include "app/tunnels.h"
#include "app/upgrade.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "control/source.h"
#include "control/sync.h"
#include "control/watch.h"
#include "egress/check.h"
#include "egress/egress.h"
#include "egress/tls_pool.h"
#include "flow/admission.h"
#include "flow/backoff.h"
#include "flow/session.h"
#include "flow/statslog.h"

#include "common/poison.h"

#define DOMAIN           "node"
#define TICK_MS          1000
#define RECHECK_AFTER_MS 300  /* several swaps in a row are one check */
#define SWEEP_EVERY      60   /* ticks */
#define ASK_WITHIN_MS    1000 /* what a client that has not asked yet gets of a drain */
#define ADMIN_WAIT_MS    2000 /* for requests that a node which was replaced has accepted */
#define ADMIN_LOOK_MS    20
#define LAST_WAIT_MS     3000 /* for sessions that were told to end */
#define FDS_SPARE        64   /* beside those of sessions */
#define OFFLOAD_THREADS  2    /* an argon2id check takes tens of MiB and milliseconds */
#define OFFLOAD_QUEUE    256

enum run_state {
    RUN_STATE_INIT = 0, /* we are here until all listeners are open */
    RUN_STATE_SERVING,
    RUN_STATE_DRAINING, /* ... while sessions may go on, nothing is accepted */
    RUN_STATE_KILLING,  /* ... what is left was told to end */
    RUN_STATE_ENDED,    /* the loop is leaving */
};

/* Tells the control thread that a worker has no sessions any more. */
struct empty_note {
    struct cv_task task;
    struct runtime *rt;
    atomic_bool posted; /* a task may be in one queue only */
};

struct runtime {
    struct cv_node node; /* what all threads share */
    enum run_state state;
    const char *config_path;
    struct cv_systemd systemd;
    struct cv_config *config;     /* owned; the one in force */
    struct cv_settings *settings; /* a reference */
    struct cv_loop *loop;         /* owned, as all of the following */
    struct cv_registry *registry;
    struct cv_members *members;
    struct cv_checks *checks; /* NULL until the workers run */
    struct cv_tls_pool *tls_pool;
    struct cv_accounts *accounts;
    struct cv_crew *crew;
    struct cv_tunnels *tunnels; /* NULL: the config has had none yet */
    struct cv_front *front;
    struct cv_source *source;
    struct cv_sync *sync;   /* NULL: the snapshot is a file */
    struct cv_admin *admin; /* NULL: off */
    struct cv_alog_stream *stats_stream;
    struct cv_statslog *statslog;
    struct cv_signals signals;
    struct cv_upgrade upgrade;
    struct cv_watch config_watch;
    struct cv_timer tick, stats, recheck, grace, idle, watchdog, linger;
    int64_t linger_until_ms; /* loop clock */
    struct empty_note empty[CV_WORKERS_MAX];
    uint32_t ticks;
    int32_t today;
    int64_t started_ms; /* unix */
    bool taking_over;   /* from a running node, at start */
    bool reload_due;    /* when no takeover is on its way any more */
    bool handed_over;   /* to a new node */
    bool failed;        /* the node before this one goes on in our place */
    bool unclean;       /* sessions were left over */
};

static int start(struct runtime *rt);
static void on_signal(struct cv_signals *s, int signo);
static void on_config_change(struct cv_watch *w);
static void reload(struct runtime *rt, bool by_signal);
static void drain(struct runtime *rt);
static void kill_rest(struct runtime *rt, const char *why);
static void check_empty(struct runtime *rt);
static void stop(struct runtime *rt);

/* ---- what others call ---- */

/* The proxy of one backend of 'def'. */
static struct cv_egress *make_upstream(struct runtime *rt, const struct cv_egress_def *def,
                                       const struct cv_backend *b)
{
    const struct cv_config_egress *conf = cv_config_egress(rt->config, def->id->s);
    struct cv_upstream_opts opts = {
        .proxy_protocol = conf != NULL ? (enum cv_proxy_protocol_version)conf->proxy_protocol : 0,
    };
    struct cv_egress_stats *stats = cv_registry_egress(rt->registry, b->label->s);
    struct cv_target server;
    if (cv_egress_upstream_addr(b->addr, &server) != 0)
        cv_warn(DOMAIN, "egress '%s' has the address '%s', which is not host:port, its dials fail",
                def->id->s, b->addr->s);
    if (b->tls) {
        char *why;
        int ret = cv_tls_pool_get(rt->tls_pool, def->id, b, conf != NULL ? conf->tls_ca : "", &why,
                                  &opts.tls);
        if (ret == -ENOMEM)
            return NULL;
        if (ret != 0) {
            cv_error(DOMAIN, "egress '%s' is not available: %s", def->id->s, why);
            cv_free(why);
            return cv_egress_unavailable_new(def, stats);
        }
    }
    return cv_egress_upstream_new(b, &opts, stats);
}

static bool has_tunnel(const struct runtime *rt, const char *name)
{
    for (size_t i = 0; i < rt->config->tunnels.n; i++)
        if (strcmp(rt->config->tunnels.v[i].name, name) == 0)
            return true;
    return false;
}

static struct cv_egress *make_egress(void *arg, const struct cv_egress_def *def)
{
    struct runtime *rt = arg;
    if (def == NULL)
        return cv_egress_direct_new(cv_registry_egress(rt->registry, "direct"));
    const struct cv_backend *b = &def->members[0].backend;
    struct cv_egress_stats *stats = cv_registry_egress(rt->registry, def->label->s);
    if (def->is_chain)
        return cv_egress_chain_new(def, stats, rt->members, make_egress, rt, cv_loop_now(rt->loop));
    if (b->kind == CV_BACKEND_HTTP || b->kind == CV_BACKEND_SOCKS5)
        return make_upstream(rt, def, b);
    if (b->kind == CV_BACKEND_TUNNEL) {
        if (!has_tunnel(rt, b->addr->s))
            cv_warn(DOMAIN,
                    "egress '%s' names the tunnel '%s', which the config does not have, its "
                    "dials fail",
                    def->id->s, b->addr->s);
        return cv_egress_tunnel_new(def, cv_tunnels_exits(rt->tunnels), b->addr->s, stats);
    }
    return cv_egress_unavailable_new(def, stats);
}

static bool has_egress(const struct cv_snapshot *s, const char *id)
{
    for (uint32_t i = 0; i < cv_snapshot_n_egresses(s); i++)
        if (strcmp(cv_snapshot_egress(s, i)->id->s, id) == 0)
            return true;
    return false;
}

static void bind_checks(struct runtime *rt)
{
    size_t n = 0;
    if (rt->checks == NULL)
        return;
    struct cv_check_conf *confs = cv_alloc((rt->config->egresses.n + 1) * sizeof(*confs));
    for (size_t i = 0; i < rt->config->egresses.n; i++) {
        const struct cv_config_egress *e = &rt->config->egresses.v[i];
        if (e->health == NULL)
            continue;
        confs[n] = (struct cv_check_conf){.egress_id = e->id,
                                          .interval_ms = e->health->interval,
                                          .timeout_ms = e->health->timeout};
        int ret =
            cv_target_parse(e->health->target, strlen(e->health->target), 0, &confs[n].target);
        CV_ASSERT(ret == 0); /* the config has checked it */
        n++;
    }
    cv_checks_bind(rt->checks, cv_active_get(rt->node.active), confs, n);
    cv_free(confs);
}

/* A swap, and what depends on which egresses there are. */
static int put_in_force(struct runtime *rt, struct cv_snapshot *snapshot)
{
    cv_members_sweep(rt->members);
    int ret = cv_active_swap(rt->node.active, snapshot);
    if (ret != 0)
        return ret;
    bind_checks(rt);
    cv_tls_pool_sweep(rt->tls_pool);
    for (size_t i = 0; i < rt->config->egresses.n; i++)
        if (!has_egress(snapshot, rt->config->egresses.v[i].id))
            cv_warn(DOMAIN, "config option 'egresses[%zu]': the snapshot has no egress '%s'", i,
                    rt->config->egresses.v[i].id);
    return 0;
}

static int on_snapshot(void *arg, struct cv_snapshot *snapshot)
{
    struct runtime *rt = arg;
    int ret = put_in_force(rt, snapshot);
    if (ret == 0 && !cv_timer_is_armed(&rt->recheck))
        cv_loop_timer(rt->loop, &rt->recheck, RECHECK_AFTER_MS);
    return ret;
}

static bool sync_status(void *arg, struct cv_sync_status *ret)
{
    struct runtime *rt = arg;
    if (rt->sync != NULL)
        cv_sync_status(rt->sync, ret);
    return rt->sync != NULL;
}

static void readiness(void *arg, struct cv_readiness *ret)
{
    struct runtime *rt = arg;
    struct cv_source_status st;
    cv_source_status(rt->source, &st);
    cv_status_judge(
        &(struct cv_status_facts){
            .draining = rt->state >= RUN_STATE_DRAINING,
            .snapshot_loaded = st.loaded,
            .users = st.users,
            .listeners_wanted = (uint32_t)rt->config->listeners.n,
            .listeners_up = (uint32_t)cv_front_count(rt->front),
        },
        ret);
}

static void each_listener(void *arg, cv_admin_listener_cb fn, void *fn_arg)
{
    struct runtime *rt = arg;
    for (size_t i = 0; i < cv_front_count(rt->front); i++) {
        struct cv_front_entry e;
        cv_front_get(rt->front, i, &e);
        fn(fn_arg, &(struct cv_admin_listener){.name = e.name,
                                               .protocol = e.protocol,
                                               .address = e.address,
                                               .tls = e.tls,
                                               .tls_ctx = e.tls_ctx,
                                               .tls_error = e.tls_error});
    }
}

static void each_member(void *arg, cv_member_cb fn, void *fn_arg)
{
    struct runtime *rt = arg;
    const struct cv_active *active = cv_active_get(rt->node.active);
    int64_t now = cv_loop_now(rt->loop);
    for (uint32_t i = 0; i < active->n_egresses; i++) {
        const struct cv_egress *e = active->egresses[i];
        for (unsigned k = 0; k < cv_egress_chain_count(e); k++) {
            struct cv_member_info info;
            struct cv_member *m;
            uint32_t priority;
            (void)cv_egress_chain_get(e, k, &m, &priority);
            cv_member_describe(m, priority, now, &info);
            fn(fn_arg, &info);
        }
    }
    cv_checks_each_single(rt->checks, now, fn, fn_arg);
}

struct tunnel_fn {
    cv_admin_tunnel_cb fn;
    void *arg;
};

static void on_tunnel(void *arg, const struct cv_tunnels_info *i)
{
    struct tunnel_fn *f = arg;
    f->fn(f->arg, &(struct cv_admin_tunnel){
                      .name = i->name, .state = i->state, .net = i->net, .stats = i->stats});
}

static void each_tunnel(void *arg, cv_admin_tunnel_cb fn, void *fn_arg)
{
    struct runtime *rt = arg;
    cv_tunnels_each(rt->tunnels, on_tunnel, &(struct tunnel_fn){.fn = fn, .arg = fn_arg});
}

/* ---- timers ---- */

static void on_recheck_worker(struct cv_worker *w, void *arg)
{
    (void)arg;
    cv_session_recheck(w);
}

static void on_recheck(struct cv_timer *t)
{
    struct runtime *rt = CV_CONTAINER_OF(t, struct runtime, recheck);
    cv_crew_post(rt->crew, on_recheck_worker, NULL);
}

static void on_tick(struct cv_timer *t)
{
    struct runtime *rt = CV_CONTAINER_OF(t, struct runtime, tick);
    int32_t today = cv_date_today();
    cv_loop_timer(rt->loop, &rt->tick, TICK_MS);
    if (today != rt->today) {
        rt->today = today;
        cv_crew_post(rt->crew, on_recheck_worker, NULL);
    }
    if (rt->state == RUN_STATE_SERVING)
        cv_front_tick(rt->front, rt->config);
    if (++rt->ticks % SWEEP_EVERY == 0)
        cv_accounts_sweep(rt->accounts);
}

static void write_stats(struct runtime *rt)
{
    cv_statslog_write(rt->statslog, rt->stats_stream, rt->settings->node_id,
                      cv_clock_unix_ms() / 1000);
}

static void on_stats(struct cv_timer *t)
{
    struct runtime *rt = CV_CONTAINER_OF(t, struct runtime, stats);
    cv_loop_timer(rt->loop, &rt->stats, rt->settings->stats_interval_ms);
    write_stats(rt);
}

static void on_watchdog(struct cv_timer *t)
{
    struct runtime *rt = CV_CONTAINER_OF(t, struct runtime, watchdog);
    cv_systemd_notify(&rt->systemd, "WATCHDOG=1");
    cv_loop_timer(rt->loop, &rt->watchdog, rt->systemd.watchdog_ms);
}

/* End the sessions that ask for nothing: connections that are kept alive between two requests, and
 * clients that have connected and are silent. A kill may end other sessions, too, so the list is
 * taken off and each session put back before it is looked at. */
static void on_kill_idle(struct cv_worker *w, void *arg)
{
    struct cv_list todo;
    (void)arg;
    cv_list_init(&todo);
    cv_list_splice(&todo, &w->sessions);
    while (!cv_list_is_empty(&todo)) {
        struct cv_session *s = CV_CONTAINER_OF(todo.next, struct cv_session, _node);
        cv_list_del(&s->_node);
        cv_list_add_tail(&w->sessions, &s->_node);
        if (s->state == CV_SESSION_HANDSHAKE)
            s->ops->kill(s, CV_E_DRAINING);
    }
}

static void on_idle(struct cv_timer *t)
{
    struct runtime *rt = CV_CONTAINER_OF(t, struct runtime, idle);
    cv_crew_post(rt->crew, on_kill_idle, NULL);
}

static void on_linger(struct cv_timer *t)
{
    check_empty(CV_CONTAINER_OF(t, struct runtime, linger));
}

static void on_grace(struct cv_timer *t)
{
    struct runtime *rt = CV_CONTAINER_OF(t, struct runtime, grace);
    if (rt->state == RUN_STATE_DRAINING) {
        kill_rest(rt, "drain_grace is over");
        return;
    }
    cv_error(DOMAIN, "sessions do not end, leaving them count=%lld",
             (long long)cv_gauge_get(&rt->node.stats.sessions));
    rt->state = RUN_STATE_ENDED;
    cv_loop_stop(rt->loop);
}

/* ---- start ---- */

static void raise_fd_limit(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &lim);
    }
}

static void check_fd_limit(const struct cv_config *c)
{
    struct rlimit lim;
    uint64_t need = c->limits.max_sessions * 2 + FDS_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY ||
        lim.rlim_cur >= need)
        return;
    cv_warn(DOMAIN,
            "max_sessions=%llu needs %llu file descriptors, the limit is %llu: raise LimitNOFILE= "
            "or lower limits.max_sessions",
            (unsigned long long)c->limits.max_sessions, (unsigned long long)need,
            (unsigned long long)lim.rlim_cur);
}

static void configure_log(const struct cv_config *c)
{
    cv_log_configure((enum cv_log_level)c->log.level, (enum cv_log_format)c->log.format);
}

static struct cv_alog_conf alog_conf(const struct cv_config *c)
{
    return (struct cv_alog_conf){.file = c->access_log.file,
                                 .retention_days = (uint32_t)c->access_log.retention_days};
}

CV_PRINTF(3, 4)
static int start_failed(struct runtime *rt, int err, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    cv_error(DOMAIN, "cannot start: %s", text);
    cv_upgrade_abort(&rt->upgrade, text);
    return err;
}

static int start_shared(struct runtime *rt)
{
    struct cv_alog_conf ac = alog_conf(rt->config);
    int ret = cv_alog_new(&ac, &rt->node.stats, &rt->node.alog);
    if (ret != 0)
        return start_failed(rt, ret, "the access log '%s' cannot be opened: %s",
                            rt->config->access_log.file, cv_err_text(ret));
    ret = cv_offload_new(OFFLOAD_THREADS, OFFLOAD_QUEUE, &rt->node.offload);
    if (ret != 0)
        return start_failed(rt, ret, "threads cannot be made: %s", cv_err_text(ret));
    rt->node.backoff = cv_backoff_new();
    rt->node.admission = cv_admission_new();
    rt->registry = cv_registry_new();
    rt->accounts = cv_accounts_new();
    rt->members = cv_members_new();
    rt->tls_pool = cv_tls_pool_new();
    rt->node.active = cv_active_holder_new(rt->accounts, make_egress, rt);
    rt->statslog = cv_statslog_new(rt->registry);
    ret = cv_alog_stream_open(rt->node.alog, rt->loop, &rt->stats_stream);
    if (ret != 0)
        return start_failed(rt, ret, "%s", cv_err_text(ret));
    return 0;
}

static int start_admin(struct runtime *rt)
{
    const struct cv_config *c = rt->config;
    struct cv_listen listen;
    char why[200];
    if (c->admin.listen[0] == '\0')
        return 0;
    /* The config has checked it. */
    CV_ASSERT(cv_listen_parse(c->admin.listen, &listen, why, sizeof(why)) == 0);
    struct cv_admin_conf conf = {.listen = listen.sa, .token = c->admin.token};
    cv_upgrade_admin(&rt->upgrade, c->admin.listen, &conf);
    struct cv_admin_view view = {
        .node = &rt->node,
        .workers = cv_crew_workers(rt->crew),
        .n_workers = cv_crew_count(rt->crew),
        .registry = rt->registry,
        .accounts = rt->accounts,
        .source = rt->source,
        .node_id = rt->settings->node_id,
        .started_ms = rt->started_ms,
        .arg = rt,
        .readiness = readiness,
        .each_listener = each_listener,
        .each_member = each_member,
        .each_tunnel = each_tunnel,
        .sync = sync_status,
    };
    int ret = cv_admin_start(rt->loop, &conf, &view, &rt->admin);
    if (ret != 0)
        return start_failed(rt, ret, "the admin API cannot listen on '%s': %s", c->admin.listen,
                            cv_err_text(ret));
    rt->upgrade.admin = rt->admin;
    cv_info(DOMAIN, "admin listening address='%s' token=%s", cv_admin_address(rt->admin),
            c->admin.token[0] != '\0' ? "yes" : "no");
    return 0;
}

static void start_timers(struct runtime *rt)
{
    rt->today = cv_date_today();
    cv_loop_timer(rt->loop, &rt->tick, TICK_MS);
    if (rt->settings->stats_interval_ms > 0)
        cv_loop_timer(rt->loop, &rt->stats, rt->settings->stats_interval_ms);
    if (rt->systemd.watchdog_ms > 0)
        cv_loop_timer(rt->loop, &rt->watchdog, rt->systemd.watchdog_ms);
}

/* To systemd; a node that takes over is heard only after the old one has named it. */
static void notify_ready(struct runtime *rt)
{
    struct cv_readiness r;
    char state[256];
    readiness(rt, &r);
    snprintf(state, sizeof(state), "READY=1\nSTATUS=%s%s%s", cv_status_name(r.status),
             r.reason[0] != '\0' ? ": " : "", r.reason);
    cv_systemd_notify(&rt->systemd, state);
}

static void announce(struct runtime *rt)
{
    struct cv_readiness r;
    readiness(rt, &r);
    cv_info(DOMAIN, "culvert: ready to accept status='%s'%s%s%s", cv_status_name(r.status),
            r.reason[0] != '\0' ? " reason='" : "", r.reason, r.reason[0] != '\0' ? "'" : "");
    if (!cv_upgrade_is_taking(&rt->upgrade)) {
        notify_ready(rt);
        cv_upgrade_listen(&rt->upgrade, rt->config->takeover.socket);
    }
}

/* The last steps before accepting, in place of the old node. */
static int start_taking(struct runtime *rt)
{
    char why[512];
    int ret = start_admin(rt);
    if (ret != 0)
        return ret;
    ret = cv_upgrade_commit(&rt->upgrade, rt->config->takeover.socket, why, sizeof(why));
    return ret == 0 ? 0 : start_failed(rt, ret, "%s", why);
}

/* Listeners and admin API. With a takeover nothing is accepted before the old node has agreed; it
 * may go on as if nothing had happened until then. */
static int start_front(struct runtime *rt)
{
    char why[512];
    struct cv_front_change *change;
    struct cv_source_status st;
    bool taking = cv_upgrade_is_taking(&rt->upgrade);
    cv_source_status(rt->source, &st);
    if (taking && !st.loaded)
        return start_failed(rt, CV_E_INVALID,
                            "the running node is not replaced by one that has no "
                            "snapshot");
    rt->front = cv_front_new(rt->crew, rt->registry, &rt->systemd);
    rt->upgrade.front = rt->front;
    cv_upgrade_inherit(&rt->upgrade);
    int ret = cv_front_prepare(rt->front, rt->config, &change, why, sizeof(why));
    if (ret != 0)
        return start_failed(rt, ret, "%s", why);
    if (taking && (ret = start_taking(rt)) != 0) {
        cv_front_cancel(change);
        return ret;
    }
    ret = cv_front_finish(rt->front, change, why, sizeof(why));
    if (ret != 0)
        return start_failed(rt, ret, "%s", why);
    if (!taking)
        return start_admin(rt);
    ret = cv_upgrade_confirm(&rt->upgrade);
    return ret == 0 ? 0 : start_failed(rt, ret, "%s", cv_err_text(ret));
}

/* A sync as the config says; *ret_sync NULL when it says none. 0 or a code, with a message. */
static int sync_new(struct runtime *rt, const struct cv_config *c, struct cv_sync **ret_sync)
{
    struct cv_sync_conf conf = {
        .url = c->control_plane.snapshot_url,
        .token = c->control_plane.token,
        .token_file = c->control_plane.token_file,
        .ca = c->control_plane.ca,
        .client_cert = c->control_plane.client_cert,
        .client_key = c->control_plane.client_key,
        .verify_key = c->control_plane.verify_key,
        .poll_ms = c->control_plane.poll_interval,
        .timeout_ms = c->control_plane.timeout,
    };
    *ret_sync = NULL;
    if (conf.url[0] == '\0')
        return 0;
    int ret = cv_sync_new(rt->loop, &conf, rt->source, ret_sync);
    if (ret == CV_E_PARSE)
        cv_error(DOMAIN, "control_plane.verify_key '%s' holds no Ed25519 public key in PEM",
                 conf.verify_key);
    else if (ret != 0 && conf.verify_key[0] != '\0')
        cv_error(DOMAIN, "control_plane.verify_key '%s': %s", conf.verify_key, cv_err_text(ret));
    else if (ret != 0)
        cv_error(DOMAIN, "control_plane: %s", cv_err_text(ret));
    else if (strncasecmp(conf.url, "http://", 7) == 0 &&
             (conf.token[0] != '\0' || conf.token_file[0] != '\0'))
        cv_warn(DOMAIN,
                "control_plane.snapshot_url is plain http, the token can be read on the way");
    return ret;
}

static int start_source(struct runtime *rt)
{
    const struct cv_config *c = rt->config;
    bool fetched = c->control_plane.snapshot_url[0] != '\0';
    char *shown = cv_sync_shown_url(c->control_plane.snapshot_url);
    struct cv_source_conf sc = {.file = fetched ? NULL : c->snapshot.file,
                                .origin = shown,
                                .cache = c->snapshot.cache,
                                .node_id = c->node_id,
                                .on_snapshot = on_snapshot,
                                .arg = rt,
                                .stats = &rt->node.stats};
    int ret = cv_source_new(rt->loop, &sc, &rt->source);
    cv_free(shown);
    if (ret != 0)
        return start_failed(rt, ret, "%s", cv_err_text(ret));
    ret = sync_new(rt, c, &rt->sync);
    return ret == 0 ? 0 : start_failed(rt, ret, "the snapshot cannot be fetched");
}

static int start(struct runtime *rt)
{
    char why[512];
    int ret = cv_loop_new(&rt->loop);
    if (ret != 0)
        return start_failed(rt, ret, "%s", cv_err_text(ret));
    /* Before any thread, which inherits the mask. */
    ret = cv_signals_start(&rt->signals, rt->loop, on_signal);
    if (ret != 0)
        return start_failed(rt, ret, "signals: %s", cv_err_text(ret));
    unsigned workers = cv_config_workers(rt->config);
    cv_info(DOMAIN, "culvert %s starts config='%s' node_id='%s' workers=%u pid=%d", CV_VERSION,
            rt->config_path, rt->config->node_id, workers, (int)getpid());
    raise_fd_limit();
    check_fd_limit(rt->config);
    rt->upgrade.loop = rt->loop;
    rt->upgrade.admin_listen = rt->config->admin.listen;
    if (rt->taking_over &&
        (ret = cv_upgrade_fetch(&rt->upgrade, rt->config->takeover.socket, why, sizeof(why))) != 0)
        return start_failed(rt, ret, "%s", why);
    if ((ret = start_shared(rt)) != 0)
        return ret;
    rt->settings = cv_config_settings(rt->config);
    ret = cv_crew_start(workers, &rt->node, rt->settings, &rt->crew);
    if (ret != 0)
        return start_failed(rt, ret, "workers: %s", cv_err_text(ret));
    if ((ret = cv_tunnels_apply(&rt->tunnels, rt->config)) != 0)
        return start_failed(rt, ret, "tunnels: %s", cv_err_text(ret));
    rt->checks =
        cv_checks_new(rt->loop, cv_crew_workers(rt->crew), cv_crew_count(rt->crew), rt->members);
    if ((ret = start_source(rt)) != 0 || (ret = start_front(rt)) != 0)
        return ret;
    cv_watch_start(&rt->config_watch, rt->loop, rt->config_path, 0, on_config_change);
    start_timers(rt);
    rt->state = RUN_STATE_SERVING;
    announce(rt);
    return 0;
}

/* ---- reload ---- */

static void on_set_settings(struct cv_worker *w, void *arg)
{
    cv_worker_set_settings(w, arg);
}

static void warn_restart(const char *key)
{
    cv_warn(DOMAIN, "config option '%s' has changed, which takes a restart, ignoring", key);
}

/* What needs a restart keeps its value in the new config, too. */
static void keep_fixed(struct runtime *rt, struct cv_config *next)
{
    struct cv_config *now = rt->config;
    if (strcmp(now->node_id, next->node_id) != 0) {
        warn_restart("node_id");
        cv_free(next->node_id);
        next->node_id = cv_strdup(now->node_id);
    }
    if (now->workers != next->workers) {
        warn_restart("workers");
        next->workers = now->workers;
    }
    if ((now->control_plane.snapshot_url[0] != '\0') !=
        (next->control_plane.snapshot_url[0] != '\0')) {
        warn_restart("control_plane.snapshot_url");
        cv_free(next->control_plane.snapshot_url);
        next->control_plane.snapshot_url = cv_strdup(now->control_plane.snapshot_url);
    }
    if (strcmp(now->takeover.socket, next->takeover.socket) != 0) {
        warn_restart("takeover.socket");
        cv_free(next->takeover.socket);
        next->takeover.socket = cv_strdup(now->takeover.socket);
    }
    if (strcmp(now->admin.listen, next->admin.listen) != 0) {
        /* The new token may be none, which was checked against the new address only. */
        warn_restart("admin.listen");
        char *listen = next->admin.listen, *token = next->admin.token;
        next->admin.listen = now->admin.listen;
        next->admin.token = now->admin.token;
        now->admin.listen = listen;
        now->admin.token = token;
    }
}

static void apply_settings(struct runtime *rt)
{
    int64_t before = rt->settings->stats_interval_ms;
    struct cv_settings *old = rt->settings;
    rt->settings = cv_config_settings(rt->config);
    cv_crew_run(rt->crew, on_set_settings, rt->settings);
    cv_settings_unref(old);
    if (rt->settings->stats_interval_ms == before)
        return;
    cv_loop_timer_stop(rt->loop, &rt->stats);
    if (rt->settings->stats_interval_ms > 0)
        cv_loop_timer(rt->loop, &rt->stats, rt->settings->stats_interval_ms);
}

static bool same_control_plane(const struct cv_config *a, const struct cv_config *b)
{
    return strcmp(a->control_plane.snapshot_url, b->control_plane.snapshot_url) == 0 &&
           strcmp(a->control_plane.token, b->control_plane.token) == 0 &&
           strcmp(a->control_plane.token_file, b->control_plane.token_file) == 0 &&
           strcmp(a->control_plane.ca, b->control_plane.ca) == 0 &&
           strcmp(a->control_plane.client_cert, b->control_plane.client_cert) == 0 &&
           strcmp(a->control_plane.client_key, b->control_plane.client_key) == 0 &&
           strcmp(a->control_plane.verify_key, b->control_plane.verify_key) == 0 &&
           a->control_plane.poll_interval == b->control_plane.poll_interval &&
           a->control_plane.timeout == b->control_plane.timeout;
}

/* Another server or another key: a new sync. The old one goes on when there can be no new one. */
static void apply_sync(struct runtime *rt, const struct cv_config *old, bool by_signal)
{
    struct cv_sync *next;
    if (same_control_plane(old, rt->config)) {
        if (by_signal)
            cv_sync_now(rt->sync);
        return;
    }
    if (sync_new(rt, rt->config, &next) != 0)
        return;
    cv_sync_succeed(next, rt->sync);
    cv_sync_free(rt->sync);
    rt->sync = next;
}

static void apply_sources(struct runtime *rt, const struct cv_config *old, bool by_signal)
{
    const struct cv_config *c = rt->config;
    if (rt->sync != NULL) {
        apply_sync(rt, old, by_signal);
        return;
    }
    if (strcmp(old->snapshot.file, c->snapshot.file) != 0 ||
        strcmp(old->snapshot.cache, c->snapshot.cache) != 0) {
        if (cv_source_set_paths(rt->source, c->snapshot.file, c->snapshot.cache) != 0)
            cv_error(DOMAIN, "out of memory, the snapshot file stays '%s'", old->snapshot.file);
    } else if (by_signal) {
        cv_source_reload(rt->source);
    }
}

/* The egresses are made anew of the snapshot in force and the new config. By a signal the
 * authorities are read again, too. */
static void apply_egresses(struct runtime *rt, bool by_signal)
{
    if (by_signal)
        cv_tls_pool_clear(rt->tls_pool);
    struct cv_snapshot *s = cv_snapshot_ref(cv_active_get(rt->node.active)->snapshot);
    if (put_in_force(rt, s) != 0)
        cv_error(DOMAIN, "out of memory, the egresses stay as they were");
}

/* Without a signal the access log is left alone unless its options have changed: reopening is for
 * files that were moved away. */
static void apply_access_log(struct runtime *rt, const struct cv_config *old, bool by_signal)
{
    const struct cv_config *c = rt->config;
    struct cv_alog_conf ac = alog_conf(c);
    if (!by_signal && strcmp(old->access_log.file, c->access_log.file) == 0 &&
        old->access_log.retention_days == c->access_log.retention_days)
        return;
    int ret = cv_alog_reopen(rt->node.alog, &ac);
    if (ret != 0)
        cv_error(DOMAIN, "the access log '%s' cannot be opened, the old one goes on: %s",
                 c->access_log.file, cv_err_text(ret));
}

static void refuse_reload(const char *text)
{
    cv_error(DOMAIN, "config refused, the old one stays in force: %s", text);
}

static void load_again(struct runtime *rt)
{
    if (rt->sync != NULL)
        cv_sync_now(rt->sync);
    else
        cv_source_reload(rt->source);
}

static void reload(struct runtime *rt, bool by_signal)
{
    struct cv_config_error e;
    struct cv_config *next = NULL;
    char text[1024];

    if (cv_upgrade_is_busy(&rt->upgrade)) {
        cv_info(DOMAIN, "a takeover is on its way, the reload waits for its end");
        rt->reload_due = true;
        return;
    }
    if (cv_config_load(rt->config_path, &e, &next) != 0) {
        refuse_reload(cv_config_error_format(&e, rt->config_path, text, sizeof(text)));
        if (by_signal)
            load_again(rt);
        return;
    }
    /* The one step that can fail comes first. */
    if (cv_front_apply(rt->front, next, text, sizeof(text)) != 0) {
        refuse_reload(text);
        cv_config_free(next);
        if (by_signal)
            load_again(rt);
        return;
    }
    keep_fixed(rt, next);
    struct cv_config *old = rt->config;
    rt->config = next;
    rt->upgrade.admin_listen = next->admin.listen;
    configure_log(next);
    apply_settings(rt);
    apply_access_log(rt, old, by_signal);
    if (cv_tunnels_apply(&rt->tunnels, next) != 0)
        cv_error(DOMAIN, "tunnels cannot be started, sessions that need one are refused");
    apply_egresses(rt, by_signal);
    apply_sources(rt, old, by_signal);
    if (rt->admin != NULL && strcmp(old->admin.token, next->admin.token) != 0)
        cv_admin_set_token(rt->admin, next->admin.token);
    if (old->limits.max_sessions != next->limits.max_sessions)
        check_fd_limit(next);
    cv_config_free(old);
    cv_info(DOMAIN, "config reloaded config='%s' listeners=%zu by='%s'", rt->config_path,
            next->listeners.n, by_signal ? "signal" : "changed file");
}

static void on_config_change(struct cv_watch *w)
{
    reload(CV_CONTAINER_OF(w, struct runtime, config_watch), false);
}

static void on_hangup(struct runtime *rt)
{
    char state[96];
    if (rt->state != RUN_STATE_SERVING)
        return;
    snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%lld",
             (long long)cv_clock_mono_us());
    cv_systemd_notify(&rt->systemd, state);
    reload(rt, true);
    cv_systemd_notify(&rt->systemd, "READY=1");
}

static void on_signal(struct cv_signals *s, int signo)
{
    struct runtime *rt = CV_CONTAINER_OF(s, struct runtime, signals);
    if (signo == SIGHUP) {
        on_hangup(rt);
        return;
    }
    if (signo == SIGCHLD) {
        cv_upgrade_reap(&rt->upgrade);
        return;
    }
    if (signo == SIGUSR2) {
        cv_info(DOMAIN, "SIGUSR2 received");
        if (rt->state == RUN_STATE_SERVING)
            cv_upgrade_spawn(&rt->upgrade, rt->config_path);
        return;
    }
    cv_info(DOMAIN, "%s received", signo == SIGTERM ? "SIGTERM" : "SIGINT");
    if (rt->state == RUN_STATE_SERVING)
        drain(rt);
    else if (rt->state == RUN_STATE_DRAINING)
        kill_rest(rt, "a second signal came");
}

/* ---- replacing, and being replaced ---- */

static bool may_give(void *arg)
{
    struct runtime *rt = arg;
    return rt->state == RUN_STATE_SERVING;
}

static void reload_if_due(struct runtime *rt)
{
    if (rt->reload_due && rt->state == RUN_STATE_SERVING) {
        rt->reload_due = false;
        reload(rt, true);
    }
}

static void on_takeover_failed(void *arg)
{
    reload_if_due(arg);
}

static void on_given(void *arg)
{
    struct runtime *rt = arg;
    rt->handed_over = true;
    rt->linger_until_ms = cv_loop_now(rt->loop) + ADMIN_WAIT_MS;
    drain(rt);
}

static void on_settled(void *arg, enum cv_taker_end end)
{
    struct runtime *rt = arg;
    if (rt->state != RUN_STATE_SERVING)
        return;
    if (end == CV_TAKER_ABORTED) {
        rt->failed = true;
        if (rt->admin != NULL)
            cv_admin_leave(rt->admin);
        drain(rt);
        return;
    }
    cv_front_complete(rt->front);
    notify_ready(rt);
    cv_upgrade_listen(&rt->upgrade, rt->config->takeover.socket);
    reload_if_due(rt);
}

static const struct cv_upgrade_ops upgrade_ops = {
    .may_give = may_give, .failed = on_takeover_failed, .given = on_given, .settled = on_settled};

/* ---- the end ---- */

/* On a worker, from inside the end of its last session. */
static void on_worker_empty(struct cv_worker *w)
{
    struct runtime *rt = CV_CONTAINER_OF(w->node, struct runtime, node);
    struct empty_note *note = &rt->empty[w->index];
    if (!atomic_exchange(&note->posted, true))
        cv_loop_post(rt->loop, &note->task);
}

static void on_empty_note(struct cv_task *task)
{
    struct empty_note *note = CV_CONTAINER_OF(task, struct empty_note, task);
    /* First the flag, then the look: a worker that empties in between posts again. */
    atomic_store(&note->posted, false);
    check_empty(note->rt);
}

static void on_watch_empty(struct cv_worker *w, void *arg)
{
    (void)arg;
    w->on_empty = on_worker_empty;
}

static void on_kill_all(struct cv_worker *w, void *arg)
{
    (void)arg;
    cv_session_kill_all(w, CV_E_DRAINING);
}

static void drain(struct runtime *rt)
{
    rt->state = RUN_STATE_DRAINING;
    atomic_store(&rt->node.draining, true);
    /* The service goes on when another process is its main one now. */
    if (!rt->handed_over && !rt->failed)
        cv_systemd_notify(&rt->systemd, "STOPPING=1\nSTATUS=draining");
    cv_watch_stop(&rt->config_watch);
    if (!rt->handed_over)
        cv_upgrade_refuse(&rt->upgrade);
    /* After this no worker takes a connection any more. */
    cv_front_close(rt->front);
    cv_crew_run(rt->crew, on_watch_empty, NULL);
    cv_info(DOMAIN, "draining sessions=%lld grace_ms=%lld",
            (long long)cv_gauge_get(&rt->node.stats.sessions),
            (long long)rt->settings->drain_grace_ms);
    cv_loop_timer(rt->loop, &rt->grace, rt->settings->drain_grace_ms);
    /* With a new node in place nobody waits for this one, so that clients may take their time. */
    cv_loop_timer(rt->loop, &rt->idle,
                  rt->handed_over ? rt->settings->handshake_timeout_ms : ASK_WITHIN_MS);
    check_empty(rt);
}

static void kill_rest(struct runtime *rt, const char *why)
{
    rt->state = RUN_STATE_KILLING;
    cv_info(DOMAIN, "ending the sessions that are left count=%lld because %s",
            (long long)cv_gauge_get(&rt->node.stats.sessions), why);
    cv_crew_run(rt->crew, on_kill_all, NULL);
    cv_loop_timer(rt->loop, &rt->grace, LAST_WAIT_MS);
    check_empty(rt);
}

static void check_empty(struct runtime *rt)
{
    if ((rt->state != RUN_STATE_DRAINING && rt->state != RUN_STATE_KILLING) ||
        cv_gauge_get(&rt->node.stats.sessions) > 0)
        return;
    /* Nobody who has asked the admin API is to notice that the node was replaced. */
    if (rt->state == RUN_STATE_DRAINING && rt->admin != NULL && rt->handed_over &&
        cv_loop_now(rt->loop) < rt->linger_until_ms && cv_admin_connections(rt->admin) > 0) {
        cv_loop_timer(rt->loop, &rt->linger, ADMIN_LOOK_MS);
        return;
    }
    rt->state = RUN_STATE_ENDED;
    cv_loop_stop(rt->loop);
}

static void stop_timers(struct runtime *rt)
{
    struct cv_timer *const timers[] = {&rt->tick, &rt->stats,    &rt->recheck, &rt->grace,
                                       &rt->idle, &rt->watchdog, &rt->linger};
    for (size_t i = 0; i < CV_ARRAY_SIZE(timers); i++)
        cv_loop_timer_stop(rt->loop, timers[i]);
}

/* Undo start(), in reverse, from wherever it came to. */
static void stop(struct runtime *rt)
{
    if (rt->loop == NULL)
        return;
    stop_timers(rt);
    cv_watch_stop(&rt->config_watch);
    if (rt->admin != NULL && cv_upgrade_is_taking(&rt->upgrade))
        cv_admin_leave(rt->admin);
    cv_upgrade_done(&rt->upgrade);
    cv_admin_stop(rt->admin);
    cv_front_free(rt->front);
    cv_sync_free(rt->sync);
    cv_source_free(rt->source);
    if (rt->checks != NULL) {
        cv_checks_stop(rt->checks);
        cv_crew_run(rt->crew, cv_checks_cancel, rt->checks);
        cv_checks_free(rt->checks);
    }
    rt->unclean = !cv_crew_join(rt->crew);
    cv_tunnels_stop(rt->tunnels);
    if (rt->stats_stream != NULL && rt->settings != NULL && rt->settings->stats_interval_ms > 0)
        write_stats(rt);
    cv_alog_stream_close(rt->stats_stream);
    cv_statslog_free(rt->statslog);
    if (rt->unclean)
        return; /* what is left over may still use the rest */
    cv_offload_free(rt->node.offload);
    cv_crew_free(rt->crew);
    cv_tunnels_free(rt->tunnels);
    cv_alog_free(rt->node.alog);
    cv_active_holder_free(rt->node.active);
    cv_tls_pool_free(rt->tls_pool);
    cv_backoff_free(rt->node.backoff);
    cv_admission_free(rt->node.admission);
    cv_accounts_free(rt->accounts);
    cv_registry_free(rt->registry);
    cv_settings_unref(rt->settings);
    cv_signals_stop(&rt->signals);
    cv_loop_free(rt->loop); /* what checks are left come back here */
    cv_members_free(rt->members);
}

static void init(struct runtime *rt, const char *config_path)
{
    rt->config_path = config_path;
    rt->started_ms = cv_clock_unix_ms();
    cv_timer_init(&rt->tick, on_tick);
    cv_timer_init(&rt->stats, on_stats);
    cv_timer_init(&rt->recheck, on_recheck);
    cv_timer_init(&rt->grace, on_grace);
    cv_timer_init(&rt->idle, on_idle);
    cv_timer_init(&rt->watchdog, on_watchdog);
    cv_timer_init(&rt->linger, on_linger);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rt->empty); i++) {
        rt->empty[i].task.fn = on_empty_note;
        rt->empty[i].rt = rt;
    }
    cv_systemd_init(&rt->systemd);
    cv_upgrade_init(&rt->upgrade, &rt->systemd, &upgrade_ops, rt);
}

int cv_runtime_main(const char *config_path, bool takeover)
{
    struct cv_config_error e;
    char text[1024];
    struct runtime *rt = cv_zalloc(sizeof(*rt));

    init(rt, config_path);
    rt->taking_over = takeover;
    if (cv_config_load(config_path, &e, &rt->config) != 0) {
        fprintf(stderr, "culvert: %s\n",
                cv_config_error_format(&e, config_path, text, sizeof(text)));
        cv_free(rt);
        return 1;
    }
    configure_log(rt->config);
    int ret = start(rt);
    if (ret == 0)
        cv_loop_run(rt->loop);
    stop(rt);
    if (rt->unclean)
        _exit(1);
    if (ret == 0)
        cv_info(DOMAIN, "culvert has ended");
    if (rt->failed)
        ret = 1;
    cv_config_free(rt->config);
    cv_free(rt);
    return ret == 0 ? 0 : 1;
}
