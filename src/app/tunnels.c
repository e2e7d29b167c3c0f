#include "app/tunnels.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "common/secret.h"

#include "common/poison.h"

#define DOMAIN       "tunnel"
#define PASSWORD_MAX 4096
#define PROFILE_MAX  (1u << 20)
#define DRAIN_TURNS  64

/* One tunnel: made by the control thread, then the stack thread's but for what is marked. */
struct entry {
    struct cv_list node; /* control: in tunnels.entries */
    struct cv_tunnels *owner;
    struct cv_task add, remove;
    char *name;
    char *username, *password; /* NULL: those of the profile */
    char *text;                /* control: of the profile, to see a change */
    struct cv_profile *profile;
    int64_t connect_timeout_ms;
    struct cv_ip dns[CV_TUNNEL_DNS_MAX];
    size_t n_dns;
    struct cv_tunnel *_Atomic tunnel; /* any thread may look; NULL: not made */
    struct cv_exit *exit;
    struct cv_tunnel_watch watch;
    struct cv_netif_stats net; /* any thread */
};

struct cv_tunnels {
    struct cv_loop *loop;
    struct cv_netstack *ns;
    struct cv_exits *exits;
    struct cv_dns *dns; /* for the servers' names: not through a tunnel */
    struct cv_dns_stats dns_stats;
    struct cv_list entries;
    pthread_t thread;
    bool running;
};

static void entry_free(struct entry *e)
{
    if (e == NULL)
        return;
    cv_profile_free(e->profile);
    cv_free(e->name);
    cv_free(e->username);
    cv_secret_free(e->password);
    cv_secret_free(e->text);
    cv_free(e);
}

/* ---- the stack thread ---- */

static void log_state(struct entry *e, struct cv_tunnel *t, enum cv_tunnel_state state)
{
    const struct cv_tunnel_error *why = cv_tunnel_last_error(t);
    char ip4[CV_IP_STRLEN] = "", ip6[CV_IP_STRLEN] = "";
    const struct cv_tunnel_net *n = cv_tunnel_net(t);
    if (state == CV_TUNNEL_UP) {
        if (n->ip4.family != CV_AF_NONE)
            cv_ip_format(&n->ip4, ip4);
        if (n->ip6.family != CV_AF_NONE)
            cv_ip_format(&n->ip6, ip6);
        cv_info(DOMAIN, "tunnel is up name='%s' ip4='%s' ip6='%s' dns=%zu", e->name, ip4, ip6,
                n->n_dns);
    } else if (state == CV_TUNNEL_FAILED) {
        cv_error(DOMAIN, "tunnel has failed and is not tried again name='%s' step='%s' error='%s'",
                 e->name, cv_tunnel_step_name(why->step), why->text);
    } else if (state == CV_TUNNEL_RECONNECTING) {
        cv_warn(DOMAIN, "tunnel is down, reconnecting name='%s' error='%s'", e->name, why->text);
    } else {
        cv_info(DOMAIN, "tunnel name='%s' state='%s'", e->name, cv_tunnel_state_name(state));
    }
}

static void tell_exit(struct entry *e, struct cv_tunnel *t)
{
    enum cv_tunnel_state state = cv_tunnel_state(t);
    if (state != CV_TUNNEL_UP) {
        bool coming = state == CV_TUNNEL_CONNECTING || state == CV_TUNNEL_RECONNECTING;
        cv_exit_update(e->exit, coming ? CV_EXIT_COMING : CV_EXIT_DOWN, NULL, NULL, 0);
        return;
    }
    const struct cv_tunnel_net *n = cv_tunnel_net(t);
    struct cv_net_addresses a = {.ip4 = n->ip4, .ip6 = n->ip6};
    struct cv_endpoint dns[CV_TUNNEL_DNS_MAX];
    for (size_t i = 0; i < n->n_dns; i++)
        dns[i] = (struct cv_endpoint){.ip = n->dns[i], .port = 53};
    cv_exit_update(e->exit, CV_EXIT_UP, &a, dns, n->n_dns);
}

static void on_state(struct cv_tunnel_watch *w, enum cv_tunnel_state state)
{
    struct entry *e = CV_CONTAINER_OF(w, struct entry, watch);
    struct cv_tunnel *t = atomic_load(&e->tunnel);
    log_state(e, t, state);
    tell_exit(e, t);
}

static void on_add(struct cv_task *task)
{
    struct entry *e = CV_CONTAINER_OF(task, struct entry, add);
    struct cv_tunnels *x = e->owner;
    struct cv_tunnel_conf conf = {.name = e->name,
                                  .profile = e->profile,
                                  .username = e->username,
                                  .password = e->password,
                                  .connect_timeout_ms = e->connect_timeout_ms,
                                  .dns = x->dns,
                                  .own_dns = e->dns,
                                  .n_own_dns = e->n_dns};
    struct cv_tunnel *t = NULL;
    char *why = NULL;
    int ret = cv_tunnel_new(x->loop, &conf, &why, &t);
    if (ret == 0 &&
        (ret = cv_exit_add(x->exits, e->name, cv_tunnel_pktif(t), &e->net, &e->exit)) != 0)
        cv_tunnel_free(t);
    if (ret != 0) {
        cv_error(DOMAIN, "tunnel cannot be made name='%s' error='%s'", e->name,
                 why != NULL ? why : cv_err_text(ret));
        cv_free(why);
        return;
    }
    atomic_store(&e->tunnel, t);
    e->watch.cb = on_state;
    cv_tunnel_watch(t, &e->watch);
    cv_tunnel_start(t);
    tell_exit(e, t);
}

static void take_down(struct entry *e)
{
    struct cv_tunnel *t = atomic_load(&e->tunnel);
    if (t == NULL)
        return;
    cv_exit_remove(e->exit);
    cv_tunnel_unwatch(&e->watch);
    cv_tunnel_free(t);
    atomic_store(&e->tunnel, NULL);
}

/* The tunnel's memory goes at the end of the turn, and it borrows the profile until then. */
static void on_removed(struct cv_task *task)
{
    entry_free(CV_CONTAINER_OF(task, struct entry, add));
}

static void on_remove(struct cv_task *task)
{
    struct entry *e = CV_CONTAINER_OF(task, struct entry, remove);
    struct cv_loop *loop = e->owner->loop;
    take_down(e);
    e->add.fn = on_removed;
    cv_loop_next(loop, &e->add);
}

static void *stack_main(void *arg)
{
    struct cv_tunnels *x = arg;
    (void)pthread_setname_np(pthread_self(), "cv-stack");
    cv_loop_run(x->loop);
    return NULL;
}

/* ---- the control thread ---- */

static int load_password(const char *path, char **ret)
{
    size_t len = 0;
    int err = cv_file_read(path, PASSWORD_MAX, ret, &len);
    if (err == 0)
        (*ret)[strcspn(*ret, "\r\n")] = '\0';
    return err;
}

/* NULL: it was said why. */
static struct entry *load(struct cv_tunnels *x, const struct cv_config_tunnel *c)
{
    struct cv_profile_error pe;
    char text[600];
    size_t len = 0;
    struct entry *e = cv_zalloc(sizeof(*e));
    e->owner = x;
    e->name = cv_strdup(c->name);
    e->connect_timeout_ms = c->connect_timeout;
    e->add.fn = on_add;
    e->remove.fn = on_remove;
    cv_list_init(&e->node);
    if (c->username[0] != '\0')
        e->username = cv_strdup(c->username);
    for (size_t i = 0; i < c->dns.n && e->n_dns < CV_TUNNEL_DNS_MAX; i++)
        if (cv_ip_parse_any(c->dns.v[i], strlen(c->dns.v[i]), &e->dns[e->n_dns]) == 0)
            e->n_dns++;
    int ret = cv_file_read(c->profile, PROFILE_MAX, &e->text, &len);
    if (ret != 0) {
        cv_error(DOMAIN, "profile cannot be read name='%s' file='%s' error='%s'", c->name,
                 c->profile, cv_err_text(ret));
    } else if (c->password_file[0] != '\0' &&
               (ret = load_password(c->password_file, &e->password)) != 0) {
        cv_error(DOMAIN, "password_file cannot be read name='%s' file='%s' error='%s'", c->name,
                 c->password_file, cv_err_text(ret));
    } else if ((ret = cv_profile_load(c->profile, c->strict != 0, &pe, &e->profile)) != 0) {
        cv_error(DOMAIN, "profile is not accepted name='%s' error='%s'", c->name,
                 cv_profile_error_format(&pe, c->profile, text, sizeof(text)));
    }
    if (ret != 0) {
        entry_free(e);
        return NULL;
    }
    for (size_t i = 0; i < e->profile->n_notes; i++)
        cv_info(DOMAIN, "profile name='%s' line=%u note='%s'", c->name, e->profile->notes[i].line,
                e->profile->notes[i].text);
    return e;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same(const struct entry *a, const struct entry *b)
{
    if (a->n_dns != b->n_dns || a->connect_timeout_ms != b->connect_timeout_ms ||
        !same_text(a->username, b->username) || !same_text(a->password, b->password) ||
        !same_text(a->text, b->text))
        return false;
    for (size_t i = 0; i < a->n_dns; i++)
        if (!cv_ip_equal(&a->dns[i], &b->dns[i]))
            return false;
    return true;
}

static struct entry *find(struct cv_tunnels *x, const char *name)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &x->entries) {
        struct entry *e = CV_CONTAINER_OF(it, struct entry, node);
        if (strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

static void drop(struct entry *e)
{
    cv_list_del(&e->node);
    cv_loop_post(e->owner->loop, &e->remove);
}

static int start(const struct cv_config *c, struct cv_tunnels **ret)
{
    sigset_t all, old;
    struct cv_tunnels *x = cv_zalloc(sizeof(*x));
    struct cv_dns_conf dns = {.servers = (const char *const *)c->dns.servers.v,
                              .n_servers = c->dns.servers.n,
                              .timeout_ms = c->dns.timeout,
                              .attempts = (int)c->dns.attempts,
                              .cache_size = 64};
    cv_list_init(&x->entries);
    int err = cv_loop_new(&x->loop);
    if (err == 0)
        err = cv_netstack_user_new(x->loop, &x->ns);
    if (err == 0)
        err = cv_exits_new(x->loop, x->ns, &x->exits);
    if (err == 0)
        err = cv_dns_new(x->loop, &dns, &x->dns_stats, &x->dns);
    if (err == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        err = -pthread_create(&x->thread, NULL, stack_main, x);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (err != 0) {
        cv_tunnels_free(x);
        return err;
    }
    x->running = true;
    cv_info(DOMAIN, "the netstack runs engine='%s'", x->ns->ops->name);
    *ret = x;
    return 0;
}

int cv_tunnels_apply(struct cv_tunnels **t, const struct cv_config *c)
{
    if (*t == NULL && c->tunnels.n == 0)
        return 0;
    int err = *t == NULL ? start(c, t) : 0;
    if (err != 0)
        return err;
    struct cv_tunnels *x = *t;
    struct cv_list keep;
    cv_list_init(&keep);
    for (size_t i = 0; i < c->tunnels.n; i++) {
        struct entry *now = find(x, c->tunnels.v[i].name), *e = load(x, &c->tunnels.v[i]);
        if (now != NULL && (e == NULL || same(now, e))) {
            entry_free(e);
            cv_list_del(&now->node);
            cv_list_add_tail(&keep, &now->node);
            continue;
        }
        if (now != NULL)
            drop(now);
        if (e == NULL)
            continue;
        cv_list_add_tail(&keep, &e->node);
        cv_loop_post(x->loop, &e->add);
    }
    while (!cv_list_is_empty(&x->entries))
        drop(CV_CONTAINER_OF(x->entries.next, struct entry, node));
    cv_list_splice(&x->entries, &keep);
    return 0;
}

struct cv_exits *cv_tunnels_exits(struct cv_tunnels *t)
{
    return t != NULL ? t->exits : NULL;
}

void cv_tunnels_stop(struct cv_tunnels *t)
{
    if (t == NULL || !t->running)
        return;
    cv_loop_stop(t->loop);
    pthread_join(t->thread, NULL);
    t->running = false;
}

void cv_tunnels_free(struct cv_tunnels *t)
{
    if (t == NULL)
        return;
    if (t->loop == NULL) {
        cv_free(t);
        return;
    }
    cv_tunnels_stop(t);
    /* What sessions have closed comes here now; this thread is the stack thread from here on. */
    for (unsigned i = 0; i < DRAIN_TURNS; i++)
        cv_loop_turn(t->loop, 0);
    struct cv_list *it;
    CV_LIST_FOREACH (it, &t->entries)
        take_down(CV_CONTAINER_OF(it, struct entry, node));
    cv_exits_free(t->exits);
    for (unsigned i = 0; i < DRAIN_TURNS; i++)
        cv_loop_turn(t->loop, 0);
    cv_netstack_free(t->ns);
    cv_dns_free(t->dns);
    cv_loop_free(t->loop);
    while (!cv_list_is_empty(&t->entries)) {
        struct entry *e = CV_CONTAINER_OF(t->entries.next, struct entry, node);
        cv_list_del(&e->node);
        entry_free(e);
    }
    cv_free(t);
}

void cv_tunnels_each(struct cv_tunnels *t, cv_tunnels_cb fn, void *arg)
{
    struct cv_list *it;
    if (t == NULL)
        return;
    CV_LIST_FOREACH (it, &t->entries) {
        struct entry *e = CV_CONTAINER_OF(it, struct entry, node);
        struct cv_tunnel *tunnel = atomic_load(&e->tunnel);
        struct cv_tunnels_info info = {.name = e->name,
                                       .state = tunnel != NULL ? cv_tunnel_state(tunnel)
                                                               : CV_TUNNEL_FAILED,
                                       .net = &e->net,
                                       .stats = tunnel != NULL ? cv_tunnel_stats(tunnel) : NULL};
        fn(arg, &info);
    }
}
