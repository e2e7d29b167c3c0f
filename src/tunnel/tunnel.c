#include "tunnel/tunnel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/rand.h"
#include "common/secret.h"
#include "common/target.h"
#include "tunnel/client.h"

#include "common/poison.h"

#define LOG                "tunnel"
#define CONNECT_TIMEOUT_MS 20000
#define PAUSE_FIRST_MS     1000
#define PAUSE_MAX_MS       30000
#define STABLE_MS          60000 /* up for so long: the next pause is the first one again */
#define AUTH_TRIES         3     /* refusals in a row after which a tunnel that was up gives up */

struct cv_tunnel {
    struct cv_pktif pktif;
    struct cv_loop *loop;          /* borrowed */
    const struct cv_profile *p;    /* borrowed */
    struct cv_dns *dns;            /* borrowed; NULL */
    char *name;                    /* owned */
    char *user, *password, *token; /* owned secrets; token NULL = none */
    struct cv_tlschan_ctx *tls;    /* owned */
    struct cv_wrap wrap;
    int64_t connect_timeout_ms;
    struct cv_ip own_dns[CV_TUNNEL_DNS_MAX];
    size_t n_own_dns;

    enum cv_tunnel_state state;
    bool freed, was_up;
    struct cv_client *client; /* owned; NULL while none */
    struct cv_dns_query query;
    struct cv_task ask6_task; /* a query does not start from within another's callback */
    struct cv_timer timer;    /* the pause before the next attempt */
    struct cv_task free_task, notify_task;
    bool notify_posted, ask6_posted;
    bool asked6;      /* of this attempt's name */
    size_t remote;    /* index of the one that is tried */
    size_t tried;     /* remotes in a row without success */
    size_t untrusted; /* of which the certificate was not good */
    unsigned auth_refused;
    int64_t pause_ms; /* the next one */
    int64_t up_ms, attempt_ms;
    struct cv_tunnel_net net;
    struct cv_tunnel_stats stats;
    struct cv_tunnel_error error;
    struct cv_list watches;
    cv_tunnel_step_cb on_step;
    void *step_arg;
};

static void attempt(struct cv_tunnel *t);
static const struct cv_client_ops client_ops;

static const char *const state_names[] = {"down", "connecting", "up", "reconnecting", "failed"};
static const char *const step_names[] = {"start", "resolve", "connect", "reset",
                                         "tls",   "keys",    "push",    "up"};

const char *cv_tunnel_state_name(enum cv_tunnel_state s)
{
    return (size_t)s < CV_ARRAY_SIZE(state_names) ? state_names[s] : "?";
}

const char *cv_tunnel_step_name(enum cv_tunnel_step s)
{
    return (size_t)s < CV_ARRAY_SIZE(step_names) ? step_names[s] : "?";
}

static void gauge_set(struct cv_gauge *g, int64_t v)
{
    atomic_store_explicit(&g->v, v, memory_order_relaxed);
}

/* ---- states ---- */

static void on_notify(struct cv_task *task)
{
    struct cv_tunnel *t = CV_CONTAINER_OF(task, struct cv_tunnel, notify_task);
    struct cv_list *it, todo;
    t->notify_posted = false;
    /* Watches may come and go meanwhile: each is moved over before it is told. */
    cv_list_init(&todo);
    cv_list_splice(&todo, &t->watches);
    while (!cv_list_is_empty(&todo)) {
        it = todo.next;
        cv_list_del(it);
        cv_list_add_tail(&t->watches, it);
        struct cv_tunnel_watch *w = CV_CONTAINER_OF(it, struct cv_tunnel_watch, _node);
        w->cb(w, t->state);
    }
}

static void go(struct cv_tunnel *t, enum cv_tunnel_state s)
{
    if (t->state == s)
        return;
    cv_debug(LOG, "tunnel '%s' is %s, was %s", t->name, state_names[s], state_names[t->state]);
    t->state = s;
    gauge_set(&t->stats.state, s);
    gauge_set(&t->stats.up_since_ms, s == CV_TUNNEL_UP ? cv_clock_unix_ms() : 0);
    t->pktif.up = s == CV_TUNNEL_UP;
    if (s != CV_TUNNEL_UP)
        gauge_set(&t->stats.key_since_ms, 0);
    if (!t->notify_posted && !t->freed) {
        t->notify_posted = true;
        cv_loop_next(t->loop, &t->notify_task);
    }
}

static void tell_step(struct cv_tunnel *t, enum cv_tunnel_step s, const char *detail)
{
    gauge_set(&t->stats.step, s);
    if (t->on_step != NULL)
        t->on_step(t->step_arg, s, detail);
}

static void note_error(struct cv_tunnel *t, int err, enum cv_tunnel_step step, const char *text)
{
    t->error.err = err;
    t->error.step = step;
    snprintf(t->error.text, sizeof(t->error.text), "%.255s", text);
}

/* No connection runs after this. */
static void hang_up(struct cv_tunnel *t, bool bye)
{
    cv_loop_timer_stop(t->loop, &t->timer);
    cv_dns_query_cancel(&t->query);
    if (t->ask6_posted)
        (void)cv_loop_next_cancel(t->loop, &t->ask6_task);
    t->ask6_posted = false;
    cv_client_close(t->client, bye);
    t->client = NULL;
    gauge_set(&t->stats.step, CV_TUNNEL_STEP_NONE);
}

/* The attempt has failed, or the connection has ended: what now? */
static void next(struct cv_tunnel *t, bool advance, int64_t at_least_ms)
{
    const struct cv_profile *p = t->p;
    int64_t first = p->connect_retry > 0 ? p->connect_retry * (int64_t)1000 : PAUSE_FIRST_MS;
    int64_t max = p->connect_retry_max > 0 ? p->connect_retry_max * (int64_t)1000 : PAUSE_MAX_MS;
    int64_t pause = 0;
    hang_up(t, false);
    go(t, t->was_up ? CV_TUNNEL_RECONNECTING : CV_TUNNEL_CONNECTING);
    if (advance) {
        t->remote = (t->remote + 1) % p->n_remotes;
        t->tried++;
    }
    /* All remotes once without a pause, then with pauses that grow. */
    if (!advance || t->tried % p->n_remotes == 0) {
        t->pause_ms = t->pause_ms == 0 ? first : CV_MIN(2 * t->pause_ms, CV_MAX(max, first));
        pause = t->pause_ms - cv_rand_below((uint32_t)(t->pause_ms / 4 + 1));
    }
    cv_loop_timer(t->loop, &t->timer, CV_MAX(pause, at_least_ms));
}

static void give_up(struct cv_tunnel *t)
{
    hang_up(t, false);
    go(t, CV_TUNNEL_FAILED);
}

/* ---- the client's calls ---- */

static void on_step(void *arg, enum cv_tunnel_step s, const char *detail)
{
    struct cv_tunnel *t = arg;
    tell_step(t, s, detail);
}

static void take_addresses(struct cv_tunnel *t, const struct cv_push *push)
{
    struct cv_tunnel_net *n = &t->net;
    if (n->generation == 0 || !cv_ip_equal(&n->ip4, &push->ip4) ||
        !cv_ip_equal(&n->ip6, &push->ip6))
        n->generation++;
    n->ip4 = push->ip4;
    n->ip6 = push->ip6;
    n->n_dns = 0;
    if (t->n_own_dns > 0) {
        memcpy(n->dns, t->own_dns, sizeof(t->own_dns));
        n->n_dns = t->n_own_dns;
        return;
    }
    for (size_t i = 0; i < push->n_dns && n->n_dns < CV_TUNNEL_DNS_MAX; i++)
        n->dns[n->n_dns++] = push->dns[i];
    for (size_t i = 0; push->n_dns == 0 && i < t->p->n_dns && n->n_dns < CV_TUNNEL_DNS_MAX; i++)
        if (cv_ip_parse(t->p->dns[i], strlen(t->p->dns[i]), &n->dns[n->n_dns]) == 0)
            n->n_dns++;
}

static void on_up(void *arg, const struct cv_push *push, uint32_t mtu, uint32_t mss)
{
    struct cv_tunnel *t = arg;
    take_addresses(t, push);
    if (push->auth_token[0] != '\0') {
        cv_secret_free(t->token);
        t->token = cv_try_strndup(push->auth_token, strlen(push->auth_token));
    }
    t->pktif.mtu = mtu;
    t->pktif.mss_max = mss;
    t->tried = t->untrusted = 0;
    t->auth_refused = 0;
    t->was_up = true;
    t->up_ms = cv_loop_now(t->loop);
    t->error.err = 0;
    cv_counter_add_owned(&t->stats.ups, 1);
    go(t, CV_TUNNEL_UP);
    cv_pktif_changed(&t->pktif);
}

static void on_packets(void *arg, struct cv_pkt_in *pkts, size_t n)
{
    struct cv_tunnel *t = arg;
    cv_pktif_input(&t->pktif, pkts, n);
}

static void on_writable(void *arg)
{
    struct cv_tunnel *t = arg;
    cv_pktif_writable(&t->pktif);
}

static void auth_refused(struct cv_tunnel *t)
{
    /* One that was up with this password may have met a server that is full or half started. */
    if (!t->was_up || ++t->auth_refused >= AUTH_TRIES)
        give_up(t);
    else
        next(t, true, 0);
}

static void on_end(void *arg, enum cv_client_end end, int err, enum cv_tunnel_step step,
                   const char *text, uint32_t backoff_s)
{
    struct cv_tunnel *t = arg;
    bool up = t->state == CV_TUNNEL_UP;
    cv_log(CV_LOG_DEBUG, LOG, "tunnel '%s' step=%s: %s", t->name, step_names[step], text);
    note_error(t, err, step, text);
    if (up && cv_loop_now(t->loop) - t->up_ms >= STABLE_MS)
        t->pause_ms = 0;
    t->untrusted = end == CV_CLIENT_END_TRUST ? t->untrusted + 1 : 0;
    int64_t wait = CV_MIN(backoff_s, 3600u) * (int64_t)1000;
    switch (end) {
    case CV_CLIENT_END_AUTH:
        auth_refused(t);
        break;
    case CV_CLIENT_END_HALT:
        give_up(t);
        break;
    case CV_CLIENT_END_TRUST:
        if (t->untrusted >= t->p->n_remotes && !t->was_up)
            give_up(t);
        else
            next(t, true, wait);
        break;
    case CV_CLIENT_END_TOKEN:
        cv_secret_free(t->token);
        t->token = NULL;
        next(t, false, wait);
        break;
    case CV_CLIENT_END_RETRY:
        /* What was up is tried again first: its addresses, and so the connections inside, may live
         * on. */
        next(t, !up, wait);
        break;
    case CV_CLIENT_END_NEXT:
        next(t, true, wait);
        break;
    }
}

static const struct cv_client_ops client_ops = {
    .on_step = on_step,
    .on_up = on_up,
    .on_packets = on_packets,
    .on_writable = on_writable,
    .on_end = on_end,
};

/* ---- attempts ---- */

static void dial(struct cv_tunnel *t, const struct cv_ip *ip)
{
    const struct cv_profile_remote *r = &t->p->remotes[t->remote];
    struct cv_endpoint ep = {.ip = *ip, .port = r->port};
    char text[CV_ENDPOINT_STRLEN];
    int64_t spent = cv_loop_now(t->loop) - t->attempt_ms;
    struct cv_client_conf conf = {
        .profile = t->p,
        .tls = t->tls,
        .stats = &t->stats,
        .wrap = &t->wrap,
        .user = t->user,
        .password = t->token != NULL ? t->token : t->password,
        .password_is_token = t->token != NULL,
        .tcp = r->tcp,
        .timeout_ms = CV_MAX(t->connect_timeout_ms - spent, (int64_t)1),
    };
    cv_sockaddr_from_ip(&conf.to, ip, r->port);
    tell_step(t, CV_TUNNEL_STEP_RESOLVE, cv_endpoint_format(&ep, text));
    int ret = cv_client_open(t->loop, &conf, &client_ops, t, &t->client);
    if (ret != 0) {
        note_error(t, ret, CV_TUNNEL_STEP_SOCKET, cv_err_text(ret));
        next(t, true, 0);
    }
}

static void ask(struct cv_tunnel *t, enum cv_family family);

static void on_ask6(struct cv_task *task)
{
    struct cv_tunnel *t = CV_CONTAINER_OF(task, struct cv_tunnel, ask6_task);
    t->ask6_posted = false;
    ask(t, CV_AF_IP6);
}

static void on_resolved(struct cv_dns_query *q, int err, const struct cv_ip *ips, size_t n)
{
    struct cv_tunnel *t = CV_CONTAINER_OF(q, struct cv_tunnel, query);
    const struct cv_profile_remote *r = &t->p->remotes[t->remote];
    char text[256];
    if (err == 0) {
        dial(t, &ips[cv_rand_below((uint32_t)n)]);
        return;
    }
    if (r->net == CV_PROFILE_NET_ANY && !t->asked6) {
        t->asked6 = t->ask6_posted = true;
        cv_loop_next(t->loop, &t->ask6_task);
        return;
    }
    snprintf(text, sizeof(text), "the server's name '%.150s': %s", r->host, cv_err_text(err));
    note_error(t, err, CV_TUNNEL_STEP_RESOLVE, text);
    next(t, true, 0);
}

static void ask(struct cv_tunnel *t, enum cv_family family)
{
    const struct cv_profile_remote *r = &t->p->remotes[t->remote];
    struct cv_host host;
    if (cv_host_parse(r->host, strlen(r->host), &host) != 0)
        return;
    t->query.cb = on_resolved;
    cv_dns_query_start(&t->query, t->dns, host.name, family);
}

static void attempt(struct cv_tunnel *t)
{
    const struct cv_profile_remote *r = &t->p->remotes[t->remote];
    struct cv_host host;
    cv_counter_add_owned(&t->stats.connects, 1);
    t->attempt_ms = cv_loop_now(t->loop);
    if (cv_host_parse(r->host, strlen(r->host), &host) != 0) {
        note_error(t, CV_E_INVALID, CV_TUNNEL_STEP_RESOLVE, "the remote is no name and no address");
        next(t, true, 0);
    } else if (cv_host_is_ip(&host)) {
        dial(t, &host.ip);
    } else if (t->dns == NULL) {
        note_error(t, CV_E_UNAVAILABLE, CV_TUNNEL_STEP_RESOLVE, "there is no resolver for names");
        next(t, true, 0);
    } else {
        t->asked6 = r->net == CV_PROFILE_NET_IP6;
        ask(t, t->asked6 ? CV_AF_IP6 : CV_AF_IP4);
    }
}

static void on_pause_over(struct cv_timer *timer)
{
    attempt(CV_CONTAINER_OF(timer, struct cv_tunnel, timer));
}

/* ---- the packet interface ---- */

static size_t send_packets(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n)
{
    struct cv_tunnel *t = CV_CONTAINER_OF(pi, struct cv_tunnel, pktif);
    return t->client != NULL ? cv_client_send(t->client, pkts, n) : CV_PKTIF_DOWN;
}

static const struct cv_pktif_ops pktif_ops = {.send = send_packets};

/* ---- life ---- */

static int init_wrap(struct cv_tunnel *t, char **reterr)
{
    const struct cv_profile *p = t->p;
    static const char *const names[] = {"", "tls-auth", "tls-crypt", "tls-crypt-v2"};
    enum cv_wrap_kind kind = p->tls_auth != NULL       ? CV_WRAP_AUTH
                             : p->tls_crypt != NULL    ? CV_WRAP_CRYPT
                             : p->tls_crypt_v2 != NULL ? CV_WRAP_CRYPT_V2
                                                       : CV_WRAP_NONE;
    const char *text = kind == CV_WRAP_AUTH    ? p->tls_auth
                       : kind == CV_WRAP_CRYPT ? p->tls_crypt
                                               : p->tls_crypt_v2;
    int ret = cv_wrap_init(&t->wrap, kind, text, p->key_direction, p->auth, 0);
    if (ret == 0)
        return 0;
    size_t cap = 80;
    *reterr = cv_try_alloc(cap);
    if (*reterr != NULL)
        snprintf(*reterr, cap, "'%s' holds no OpenVPN key", names[kind]);
    return CV_E_INVALID;
}

static void free_now(struct cv_task *task)
{
    struct cv_tunnel *t = CV_CONTAINER_OF(task, struct cv_tunnel, free_task);
    cv_tlschan_ctx_free(t->tls);
    cv_wrap_done(&t->wrap);
    cv_free(t->name);
    cv_secret_free(t->user);
    cv_secret_free(t->password);
    cv_secret_free(t->token);
    cv_free(t);
}

static char *copy(const char *first, const char *second)
{
    const char *s = first != NULL ? first : second != NULL ? second : "";
    return cv_try_strndup(s, strlen(s));
}

int cv_tunnel_new(struct cv_loop *loop, const struct cv_tunnel_conf *conf, char **reterr,
                  struct cv_tunnel **ret_tunnel)
{
    *reterr = NULL;
    struct cv_tunnel *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL)
        return -ENOMEM;
    t->loop = loop;
    t->p = conf->profile;
    t->dns = conf->dns;
    t->pktif.ops = &pktif_ops;
    t->pktif.mtu = 1400;
    t->free_task.fn = free_now;
    t->notify_task.fn = on_notify;
    t->ask6_task.fn = on_ask6;
    cv_timer_init(&t->timer, on_pause_over);
    cv_list_init(&t->watches);
    t->connect_timeout_ms = conf->connect_timeout_ms > 0 ? conf->connect_timeout_ms
                            : conf->profile->connect_timeout > 0
                                ? conf->profile->connect_timeout * (int64_t)1000
                                : CONNECT_TIMEOUT_MS;
    t->n_own_dns = CV_MIN(conf->n_own_dns, (size_t)CV_TUNNEL_DNS_MAX);
    if (t->n_own_dns > 0)
        memcpy(t->own_dns, conf->own_dns, t->n_own_dns * sizeof(t->own_dns[0]));
    if (conf->profile->remote_random)
        t->remote = cv_rand_below((uint32_t)conf->profile->n_remotes);
    t->name = copy(conf->name, NULL);
    t->user = copy(conf->username, conf->profile->username);
    t->password = copy(conf->password, conf->profile->password);
    int ret = t->name != NULL && t->user != NULL && t->password != NULL ? 0 : -ENOMEM;
    if (ret == 0)
        ret = init_wrap(t, reterr);
    if (ret == 0)
        ret = cv_tlschan_ctx_new(conf->profile, reterr, &t->tls);
    if (ret != 0) {
        free_now(&t->free_task);
        return ret;
    }
    *ret_tunnel = t;
    return 0;
}

void cv_tunnel_start(struct cv_tunnel *t)
{
    if (t->state != CV_TUNNEL_DOWN && t->state != CV_TUNNEL_FAILED)
        return;
    t->was_up = false;
    t->tried = t->untrusted = 0;
    t->auth_refused = 0;
    t->pause_ms = 0;
    go(t, CV_TUNNEL_CONNECTING);
    cv_loop_timer(t->loop, &t->timer, 0);
}

void cv_tunnel_stop(struct cv_tunnel *t)
{
    hang_up(t, true);
    go(t, CV_TUNNEL_DOWN);
}

void cv_tunnel_restart(struct cv_tunnel *t)
{
    if (t->state != CV_TUNNEL_UP && t->state != CV_TUNNEL_RECONNECTING)
        return;
    hang_up(t, true);
    go(t, CV_TUNNEL_RECONNECTING);
    t->pause_ms = 0;
    cv_loop_timer(t->loop, &t->timer, 0);
}

void cv_tunnel_free(struct cv_tunnel *t)
{
    if (t == NULL || t->freed)
        return;
    CV_ASSERT(!cv_pktif_is_attached(&t->pktif) && cv_list_is_empty(&t->watches));
    t->freed = true;
    hang_up(t, true);
    if (t->notify_posted)
        (void)cv_loop_next_cancel(t->loop, &t->notify_task);
    cv_loop_defer(t->loop, &t->free_task);
}

/* ---- what it knows ---- */

const char *cv_tunnel_name(const struct cv_tunnel *t)
{
    return t->name;
}

enum cv_tunnel_state cv_tunnel_state(const struct cv_tunnel *t)
{
    return (enum cv_tunnel_state)cv_gauge_get(&t->stats.state);
}

struct cv_pktif *cv_tunnel_pktif(struct cv_tunnel *t)
{
    return &t->pktif;
}

const struct cv_tunnel_net *cv_tunnel_net(const struct cv_tunnel *t)
{
    return &t->net;
}

struct cv_tunnel_stats *cv_tunnel_stats(struct cv_tunnel *t)
{
    return &t->stats;
}

const struct cv_tunnel_error *cv_tunnel_last_error(const struct cv_tunnel *t)
{
    return &t->error;
}

void cv_tunnel_set_step_cb(struct cv_tunnel *t, cv_tunnel_step_cb cb, void *arg)
{
    t->on_step = cb;
    t->step_arg = arg;
}

void cv_tunnel_watch(struct cv_tunnel *t, struct cv_tunnel_watch *w)
{
    cv_list_init(&w->_node);
    cv_list_add_tail(&t->watches, &w->_node);
}

void cv_tunnel_unwatch(struct cv_tunnel_watch *w)
{
    if (w->_node.next != NULL)
        cv_list_del(&w->_node);
}
