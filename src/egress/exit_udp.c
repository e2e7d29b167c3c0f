/* Datagrams through a tunnel, on the stack thread: what a worker sends comes by a crossing and goes
 * to the netstack; names are resolved through the tunnel, and keep their address while they are in
 * use. */
#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "egress/exits_priv.h"
#include "net/crossing.h"

#include "common/poison.h"

#define NAMES_MAX    32
#define WAIT_MAX     16          /* datagrams that wait for one name */
#define WAIT_BYTES   (32u << 10) /* and their size */
#define NAME_KEEP_MS (60 * 1000)
#define NAME_FAIL_MS 1000

struct flow;
struct waiting {
    struct cv_list node;
    uint16_t port;
    size_t len;
    uint8_t data[];
};

struct name {
    struct cv_list node; /* in flow.names, last used first */
    struct flow *flow;
    struct cv_resolve query;
    bool second; /* the other family is being asked for, or there is none */
    int err;     /* 0 with an address, or why there is none */
    struct cv_ip ip;
    int64_t until_ms;
    struct cv_list wait;
    size_t n_wait, wait_bytes;
    char text[];
};

struct flow {
    struct cv_list node;  /* in exit.flows */
    struct cv_exit *exit; /* NULL: gone */
    struct cv_loop *loop;
    struct cv_dgram *inner; /* borrowed (of the crossing) */
    struct cv_crossing_udp *crossing;
    struct cv_list names;
    size_t n_names;
};

static void drop(struct flow *f, int err)
{
    cv_crossing_udp_dropped(f->crossing, err);
}

static void send_to(struct flow *f, const struct cv_ip *ip, uint16_t port, const uint8_t *data,
                    size_t len)
{
    struct cv_target to = {.port = port};
    cv_host_from_ip(&to.host, ip);
    struct cv_dgram_out m = {.to = &to, .data = data, .len = len, .err = cv_exit_guard(ip)};
    if (m.err == 0)
        cv_dgram_send(f->inner, &m, 1);
    if (m.err != 0)
        drop(f, m.err);
}

static void flush(struct name *n)
{
    while (!cv_list_is_empty(&n->wait)) {
        struct waiting *w = CV_CONTAINER_OF(n->wait.next, struct waiting, node);
        cv_list_del(&w->node);
        if (n->err == 0)
            send_to(n->flow, &n->ip, w->port, w->data, w->len);
        else
            drop(n->flow, n->err);
        cv_free(w);
    }
    n->n_wait = n->wait_bytes = 0;
}

static void name_free(struct name *n)
{
    cv_resolve_cancel(&n->query);
    n->err = CV_E_DNS_FAIL;
    while (!cv_list_is_empty(&n->wait)) {
        struct waiting *w = CV_CONTAINER_OF(n->wait.next, struct waiting, node);
        cv_list_del(&w->node);
        cv_free(w);
    }
    cv_list_del(&n->node);
    n->flow->n_names--;
    cv_free(n);
}

static void ask(struct name *n, enum cv_family family)
{
    cv_resolve_start(&n->query, n->flow->exit->resolver, n->text, family);
}

static void on_answer(struct cv_resolve *q, int err, const struct cv_ip *ips, size_t count)
{
    struct name *n = CV_CONTAINER_OF(q, struct name, query);
    int64_t now = cv_loop_now(n->flow->loop);
    if (err != 0 && !n->second) {
        n->second = true;
        ask(n, CV_AF_IP6);
        return;
    }
    n->err = err;
    if (err == 0 && count > 0)
        n->ip = ips[0];
    n->until_ms = now + (err == 0 ? NAME_KEEP_MS : NAME_FAIL_MS);
    flush(n);
}

static struct name *find(struct flow *f, const struct cv_target *to)
{
    int64_t now = cv_loop_now(f->loop);
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &f->names) {
        struct name *n = CV_CONTAINER_OF(it, struct name, node);
        if (n->query._entry == NULL && n->until_ms <= now) {
            name_free(n);
        } else if (strcmp(n->text, to->host.name) == 0) {
            cv_list_del(&n->node);
            cv_list_add_head(&f->names, &n->node);
            return n;
        }
    }
    while (f->n_names >= NAMES_MAX)
        name_free(CV_CONTAINER_OF(f->names.prev, struct name, node));
    size_t len = strlen(to->host.name);
    struct name *n = cv_try_zalloc(sizeof(*n) + len + 1);
    if (n == NULL)
        return NULL;
    memcpy(n->text, to->host.name, len + 1);
    n->flow = f;
    n->query.cb = on_answer;
    cv_list_init(&n->wait);
    cv_list_add_head(&f->names, &n->node);
    f->n_names++;
    const struct cv_net_addresses *a = &f->exit->nif->addresses;
    n->second = a->ip4.family == CV_AF_NONE || a->ip6.family == CV_AF_NONE;
    ask(n, a->ip4.family != CV_AF_NONE ? CV_AF_IP4 : CV_AF_IP6);
    return n;
}

static void on_send(void *arg, const struct cv_dgram_out *m)
{
    struct flow *f = arg;
    if (f->exit == NULL) {
        drop(f, CV_E_UNAVAILABLE);
        return;
    }
    if (cv_host_is_ip(&m->to->host)) {
        send_to(f, &m->to->host.ip, m->to->port, m->data, m->len);
        return;
    }
    struct name *n = find(f, m->to);
    if (n == NULL) {
        drop(f, -ENOMEM);
    } else if (n->query._entry == NULL) {
        n->until_ms = n->err == 0 ? cv_loop_now(f->loop) + NAME_KEEP_MS : n->until_ms;
        if (n->err == 0)
            send_to(f, &n->ip, m->to->port, m->data, m->len);
        else
            drop(f, n->err);
    } else {
        struct waiting *w = n->n_wait < WAIT_MAX && n->wait_bytes + m->len <= WAIT_BYTES
                                ? cv_try_alloc(sizeof(*w) + m->len)
                                : NULL;
        if (w == NULL) {
            drop(f, CV_E_LIMIT);
            return;
        }
        w->port = m->to->port;
        w->len = m->len;
        if (m->len > 0)
            memcpy(w->data, m->data, m->len);
        cv_list_add_tail(&n->wait, &w->node);
        n->n_wait++;
        n->wait_bytes += m->len;
    }
}

static void free_names(struct flow *f)
{
    while (!cv_list_is_empty(&f->names))
        name_free(CV_CONTAINER_OF(f->names.next, struct name, node));
}

static void on_end(void *arg)
{
    struct flow *f = arg;
    free_names(f);
    cv_list_del(&f->node);
    cv_free(f);
}

int cv_exit_udp_open(struct cv_exit *e, struct cv_loop *worker_loop,
                     struct cv_crossing_udp **ret_crossing)
{
    struct flow *f = cv_try_zalloc(sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    int ret = cv_netif_udp(e->nif, &f->inner);
    if (ret == 0)
        ret = cv_crossing_udp_new(worker_loop, e->exits->loop, f->inner, on_send, on_end, f,
                                  &f->crossing);
    if (ret != 0) {
        cv_free(f);
        return ret;
    }
    f->exit = e;
    f->loop = e->exits->loop;
    cv_list_init(&f->names);
    cv_list_add_tail(&e->flows, &f->node);
    *ret_crossing = f->crossing;
    return 0;
}

/* The netstack tells each flow that it is over; the flows themselves end when their owners close.
 */
void cv_exit_flows_end(struct cv_exit *e)
{
    while (!cv_list_is_empty(&e->flows)) {
        struct flow *f = CV_CONTAINER_OF(e->flows.next, struct flow, node);
        free_names(f);
        cv_list_del(&f->node);
        f->exit = NULL;
    }
}
