#include "netstack/resolver.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/rand.h"
#include "net/dnscache.h"
#include "net/dnsmsg.h"

#include "common/poison.h"

#define WAIT_MS     1500
#define TCP_WAIT_MS 5000
#define ROUNDS      2
#define TTL_MIN_S   1
#define TTL_MAX_S   3600
#define TTL_NAME_MS 30000
#define TTL_FAIL_MS 1000
#define TCP_MAX     (2 + 65535)

/* One question on its way; it belongs to one entry of the table. */
struct ask {
    struct cv_list node; /* in resolver.asks */
    struct cv_resolver *r;
    struct cv_dnsentry *entry;
    struct cv_timer timer;
    struct cv_dgram *udp; /* owned; NULL: none is open */
    struct cv_net_connect connect;
    bool connecting;
    struct cv_stream *tcp; /* owned; NULL: none is open */
    struct cv_target to;
    unsigned tries;
    int worst;                              /* what to say if no server has an answer */
    uint8_t query[2 + CV_DNSMSG_QUERY_MAX]; /* with the length of TCP in front */
    size_t query_len, sent;
    uint8_t *buf; /* owned: the answer over TCP */
    size_t got;
};

struct cv_resolver {
    struct cv_netif *nif;
    struct cv_loop *loop;
    struct cv_dnscache cache;
    struct cv_list asks;
    struct cv_list due; /* entries with an answer to deliver */
    struct cv_task task;
    bool posted;
    struct cv_endpoint servers[CV_RESOLVER_SERVERS_MAX];
    size_t n_servers;
    struct cv_resolver_stats stats;
};

static void try_next(struct ask *a);

static void post(struct cv_resolver *r)
{
    if (r->posted)
        return;
    r->posted = true;
    cv_loop_next(r->loop, &r->task);
}

static void ask_close(struct ask *a)
{
    cv_loop_timer_stop(a->r->loop, &a->timer);
    cv_dgram_close(a->udp);
    a->udp = NULL;
    if (a->connecting)
        cv_netif_cancel(a->r->nif, &a->connect);
    a->connecting = false;
    cv_stream_close(a->tcp, true);
    a->tcp = NULL;
}

static void ask_free(struct ask *a)
{
    ask_close(a);
    cv_list_del(&a->node);
    cv_free(a->buf);
    cv_free(a);
}

/* A loose entry lives as long as someone waits for it. */
static void entry_drop(struct cv_dnsentry *e)
{
    if (e != NULL && e->state == CV_DNSENTRY_LOOSE && cv_list_is_empty(&e->waiters) &&
        cv_list_is_empty(&e->due))
        cv_dnsentry_free(e);
}

static void settle(struct ask *a, int err, const struct cv_dnsmsg_answer *answer)
{
    struct cv_resolver *r = a->r;
    struct cv_dnsentry *e = a->entry;
    int64_t keep = TTL_FAIL_MS;
    ask_free(a);
    e->err = err;
    if (err == 0) {
        e->ips = cv_try_realloc_array(NULL, answer->n, sizeof(*e->ips));
        if (e->ips != NULL) {
            memcpy(e->ips, answer->ips, answer->n * sizeof(*e->ips));
            e->n = answer->n;
            uint32_t ttl = CV_MIN(CV_MAX(answer->ttl_s, (uint32_t)TTL_MIN_S), (uint32_t)TTL_MAX_S);
            keep = (int64_t)ttl * 1000;
        } else {
            e->err = CV_E_DNS_FAIL;
        }
    } else if (err == CV_E_DNS_NXDOMAIN) {
        keep = TTL_NAME_MS;
    }
    if (e->err == CV_E_DNS_TIMEOUT)
        cv_counter_add_owned(&r->stats.timeouts, 1);
    else if (e->err == CV_E_DNS_FAIL)
        cv_counter_add_owned(&r->stats.failures, 1);
    cv_list_add_tail(&r->due, &e->due);
    struct cv_dnsentry *gone = cv_dnscache_hold(&r->cache, e, cv_loop_now(r->loop) + keep);
    if (gone != e)
        entry_drop(gone);
    post(r);
}

/* True: the question is settled and 'a' is gone. */
static bool take_answer(struct ask *a, const uint8_t *msg, size_t len, bool tcp)
{
    struct cv_dnsmsg_answer answer;
    int ret = cv_dnsmsg_answer(a->query + 2, a->query_len, msg, len, &answer);
    if (ret == 0 || ret == CV_E_DNS_NXDOMAIN) {
        settle(a, ret, &answer);
        return true;
    }
    if (ret == CV_E_DNS_FAIL || (ret == CV_E_PROTO && tcp) || (ret == CV_E_MORE && tcp)) {
        a->worst = CV_E_DNS_FAIL;
        try_next(a);
        return true;
    }
    return false;
}

/* -- TCP, for what does not fit -- */

static void on_tcp(void *arg, struct cv_stream *s, unsigned events)
{
    struct ask *a = arg;
    int ret = 0;
    while (a->sent < 2 + a->query_len) {
        size_t n = 0;
        ret = cv_stream_send(s, a->query + a->sent, 2 + a->query_len - a->sent, &n);
        if (ret != 0)
            break;
        a->sent += n;
    }
    while (ret == 0 || ret == -EAGAIN) {
        size_t n = 0;
        ret = cv_stream_recv(s, a->buf + a->got, TCP_MAX - a->got, &n);
        if (ret == -EAGAIN)
            return;
        if (ret != 0 || n == 0)
            break;
        a->got += n;
        size_t want = a->got >= 2 ? 2 + ((size_t)a->buf[0] << 8 | a->buf[1]) : TCP_MAX;
        if (a->got >= want) {
            (void)take_answer(a, a->buf + 2, want - 2, true);
            return;
        }
    }
    try_next(a);
}

static void on_connected(struct cv_net_connect *c, int err, struct cv_stream *s)
{
    struct ask *a = CV_CONTAINER_OF(c, struct ask, connect);
    a->connecting = false;
    if (err != 0) {
        try_next(a);
        return;
    }
    a->tcp = s;
    cv_stream_set_cb(s, on_tcp, a);
    on_tcp(a, s, CV_STREAM_WRITE);
}

static void go_tcp(struct ask *a)
{
    struct cv_endpoint to = {.ip = a->to.host.ip, .port = a->to.port};
    ask_close(a);
    if (a->buf == NULL && (a->buf = cv_try_alloc(TCP_MAX)) == NULL) {
        settle(a, CV_E_DNS_FAIL, NULL);
        return;
    }
    cv_counter_add_owned(&a->r->stats.over_tcp, 1);
    a->sent = a->got = 0;
    a->connecting = true;
    a->connect = (struct cv_net_connect){.cb = on_connected};
    cv_netif_connect(a->r->nif, &a->connect, &to);
    cv_loop_timer(a->r->loop, &a->timer, TCP_WAIT_MS);
}

/* -- UDP -- */

static bool from_server(const struct ask *a, const struct cv_endpoint *from)
{
    return from->port == a->to.port && cv_ip_equal(&from->ip, &a->to.host.ip);
}

static void on_udp(void *arg, struct cv_dgram *d, unsigned events)
{
    struct ask *a = arg;
    uint8_t buf[4096];
    if (events & CV_DGRAM_HUP) {
        try_next(a);
        return;
    }
    for (;;) {
        struct cv_dgram_in in = {.buf = buf, .cap = sizeof(buf)};
        size_t n = 0;
        if (cv_dgram_recv(d, &in, 1, &n) != 0)
            return;
        /* Anyone may send to the port: only what answers the question is looked at. */
        if (n == 0 || !from_server(a, &in.from))
            continue;
        struct cv_dnsmsg_answer answer;
        if (cv_dnsmsg_answer(a->query + 2, a->query_len, in.data, in.len, &answer) == CV_E_MORE) {
            go_tcp(a);
            return;
        }
        if (take_answer(a, in.data, in.len, false))
            return;
    }
}

static void on_timeout(struct cv_timer *t)
{
    try_next(CV_CONTAINER_OF(t, struct ask, timer));
}

static void try_next(struct ask *a)
{
    struct cv_resolver *r = a->r;
    ask_close(a);
    while (a->tries < ROUNDS * r->n_servers) {
        const struct cv_endpoint *s = &r->servers[a->tries % r->n_servers];
        unsigned round = a->tries++ / (unsigned)r->n_servers;
        cv_host_from_ip(&a->to.host, &s->ip);
        a->to.port = s->port != 0 ? s->port : 53;
        uint16_t id = (uint16_t)cv_rand_u64();
        a->query[2] = (uint8_t)(id >> 8);
        a->query[3] = (uint8_t)id;
        if (cv_netif_udp(r->nif, &a->udp) != 0)
            break;
        cv_dgram_set_cb(a->udp, on_udp, NULL, a);
        struct cv_dgram_out m = {.to = &a->to, .data = a->query + 2, .len = a->query_len};
        cv_dgram_send(a->udp, &m, 1);
        if (m.err == 0) {
            cv_loop_timer(r->loop, &a->timer, (int64_t)WAIT_MS << round);
            return;
        }
        cv_dgram_close(a->udp);
        a->udp = NULL;
    }
    settle(a, a->worst, NULL);
}

static void ask_start(struct cv_resolver *r, struct cv_dnsentry *e)
{
    struct ask *a = cv_try_zalloc(sizeof(*a));
    if (a == NULL) {
        e->err = CV_E_DNS_FAIL;
        cv_dnscache_drop(&r->cache, e);
        cv_list_add_tail(&r->due, &e->due);
        post(r);
        return;
    }
    a->r = r;
    a->entry = e;
    a->worst = r->n_servers > 0 ? CV_E_DNS_TIMEOUT : CV_E_DNS_FAIL;
    cv_timer_init(&a->timer, on_timeout);
    cv_list_add_tail(&r->asks, &a->node);
    if (cv_dnsmsg_query(e->name, (enum cv_family)e->family, 0, a->query + 2, &a->query_len) != 0) {
        settle(a, CV_E_DNS_FAIL, NULL);
        return;
    }
    a->query[0] = (uint8_t)(a->query_len >> 8);
    a->query[1] = (uint8_t)a->query_len;
    try_next(a);
}

/* -- queries -- */

/* A callback may start and cancel queries, and free the resolver only from elsewhere. */
static void on_task(struct cv_task *task)
{
    struct cv_resolver *r = CV_CONTAINER_OF(task, struct cv_resolver, task);
    r->posted = false;
    while (!cv_list_is_empty(&r->due)) {
        struct cv_dnsentry *e = CV_CONTAINER_OF(r->due.next, struct cv_dnsentry, due);
        if (cv_list_is_empty(&e->waiters)) {
            cv_list_del(&e->due);
            entry_drop(e);
            continue;
        }
        struct cv_resolve *q = CV_CONTAINER_OF(e->waiters.next, struct cv_resolve, _node);
        cv_list_del(&q->_node);
        q->_entry = NULL;
        q->cb(q, e->err, e->ips, e->n);
    }
}

void cv_resolve_start(struct cv_resolve *q, struct cv_resolver *r, const char *name,
                      enum cv_family family)
{
    int64_t now = cv_loop_now(r->loop);
    cv_counter_add_owned(&r->stats.queries, 1);
    struct cv_dnsentry *e = cv_dnscache_find(&r->cache, name, family);
    if (e != NULL && e->state == CV_DNSENTRY_HELD && e->end_ms <= now) {
        cv_dnscache_drop(&r->cache, e);
        entry_drop(e);
        e = NULL;
    }
    bool fresh = e == NULL;
    if (fresh)
        e = cv_dnsentry_new(name, family);
    CV_ASSERT(e != NULL); /* small; as every allocation of ours of that kind */
    q->_entry = e;
    cv_list_add_tail(&e->waiters, &q->_node);
    if (!fresh && e->state == CV_DNSENTRY_HELD) {
        cv_counter_add_owned(&r->stats.cache_hits, 1);
        if (cv_list_is_empty(&e->due))
            cv_list_add_tail(&r->due, &e->due);
        post(r);
    } else if (fresh && r->cache.n_flying >= CV_RESOLVER_FLYING) {
        e->err = CV_E_DNS_FAIL;
        cv_list_add_tail(&r->due, &e->due);
        post(r);
    } else if (fresh) {
        cv_dnscache_add(&r->cache, e);
        ask_start(r, e);
    }
}

void cv_resolve_cancel(struct cv_resolve *q)
{
    struct cv_dnsentry *e = q->_entry;
    if (e == NULL)
        return;
    q->_entry = NULL;
    cv_list_del(&q->_node);
    entry_drop(e);
}

static void drop_all(struct cv_resolver *r)
{
    size_t from = 0;
    struct cv_dnsentry *e;
    while (!cv_list_is_empty(&r->asks))
        ask_free(CV_CONTAINER_OF(r->asks.next, struct ask, node));
    while ((e = cv_dnscache_any(&r->cache, &from)) != NULL) {
        cv_dnscache_drop(&r->cache, e);
        if (cv_list_is_empty(&e->due))
            cv_list_add_tail(&r->due, &e->due);
    }
    while (!cv_list_is_empty(&r->due)) {
        e = CV_CONTAINER_OF(r->due.next, struct cv_dnsentry, due);
        cv_list_del(&e->due);
        while (!cv_list_is_empty(&e->waiters)) {
            struct cv_resolve *q = CV_CONTAINER_OF(e->waiters.next, struct cv_resolve, _node);
            cv_list_del(&q->_node);
            q->_entry = NULL;
        }
        entry_drop(e);
    }
}

void cv_resolver_set_servers(struct cv_resolver *r, const struct cv_endpoint *servers, size_t n)
{
    n = CV_MIN(n, (size_t)CV_RESOLVER_SERVERS_MAX);
    bool same = n == r->n_servers;
    for (size_t i = 0; i < n && same; i++)
        same =
            servers[i].port == r->servers[i].port && cv_ip_equal(&servers[i].ip, &r->servers[i].ip);
    if (same)
        return;
    for (size_t i = 0; i < n; i++)
        r->servers[i] = servers[i];
    r->n_servers = n;
    /* What is known came from others; what is being asked goes on with the new ones. */
    struct cv_dnsentry *e;
    while ((e = cv_dnscache_first(&r->cache)) != NULL) {
        cv_dnscache_drop(&r->cache, e);
        entry_drop(e);
    }
}

int cv_resolver_new(struct cv_netif *nif, struct cv_resolver **ret_resolver)
{
    struct cv_resolver *r = cv_try_zalloc(sizeof(*r));
    if (r == NULL)
        return -ENOMEM;
    r->nif = nif;
    r->loop = nif->ns->loop;
    cv_list_init(&r->asks);
    cv_list_init(&r->due);
    r->task.fn = on_task;
    if (cv_dnscache_init(&r->cache, CV_RESOLVER_CACHE) != 0) {
        cv_free(r);
        return -ENOMEM;
    }
    *ret_resolver = r;
    return 0;
}

void cv_resolver_free(struct cv_resolver *r)
{
    if (r == NULL)
        return;
    drop_all(r);
    if (r->posted)
        (void)cv_loop_next_cancel(r->loop, &r->task);
    cv_dnscache_done(&r->cache);
    cv_free(r);
}

const struct cv_resolver_stats *cv_resolver_stats(const struct cv_resolver *r)
{
    return &r->stats;
}
