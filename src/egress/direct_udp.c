#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"
#include "egress/direct_priv.h"
#include "egress/egress.h"
#include "flow/worker.h"
#include "net/udp.h"

#include "common/poison.h"

/* UDP of this machine for one association: at most one socket of each family, opened when the first
 * datagram of that family leaves, never connected. So one outside address and port serve all
 * destinations, and whoever knows it may send to the client ("full cone": endpoint-independent
 * mapping and filtering, RFC 4787 sections 4.1 and 5).
 *
 * Names are resolved here, once for the flow: as long as a name is in use its address stays, since
 * the other end knows the conversation by address. Every datagram's address passes the guard, also
 * when the name is known: the grant comes with the datagram. */

#define NAMES_MAX      32
#define NAME_WAIT_N    16
#define NAME_WAIT_SIZE (32u << 10)
#define NAME_KEEP_MS   (60 * 1000) /* unused for so long: resolved again */
#define NAME_FAIL_MS   1000        /* a failure is remembered for so long */
#define SWEEP_MS       1000

/* What one batch names is never what has to go for another name of that batch. */
_Static_assert(NAMES_MAX >= CV_DGRAM_BATCH, "a batch may name as many");

enum name_state {
    NAME_STATE_ASKING = 1, /* datagrams wait while the resolver works */
    NAME_STATE_KNOWN,      /* there is at least one address */
    NAME_STATE_FAILED,     /* 'err' says why, until 'until_ms' */
};

struct name {
    struct cv_list node; /* in direct_udp.names, last used first */
    struct direct_udp *owner;
    enum name_state state;
    enum cv_family family; /* that is being asked for, or was last */
    bool both;             /* no family is left to ask for */
    int err;
    int64_t until_ms; /* KNOWN: unless used again; ASKING: the resolver is given up then */
    struct cv_dns_query query;
    struct cv_dgramq wait;
    uint8_t n_ips;
    struct cv_ip ips[CV_DNS_ADDRS_MAX];
    size_t len;
    char text[];
};

struct sock {
    struct cv_io io;
    bool open;
    bool drained; /* -EAGAIN was the last answer; an event clears it */
};

struct direct_udp {
    struct cv_dgram super;
    struct cv_worker *worker;
    struct sock v4, v6;
    struct cv_list names;
    size_t n_names, n_asking;
    struct cv_timer sweep; /* armed while a name is being asked for */
    struct cv_task release;
};

static void udp_send(struct cv_dgram *super, struct cv_dgram_out *msgs, size_t n);
static int udp_recv(struct cv_dgram *super, struct cv_dgram_in *msgs, size_t n, size_t *ret_n);
static void udp_close(struct cv_dgram *super);
static void on_answer(struct cv_dns_query *q, int err, const struct cv_ip *ips, size_t n);
static void on_sweep(struct cv_timer *t);

static const struct cv_dgram_ops udp_ops = {
    .name = "direct",
    .send = udp_send,
    .recv = udp_recv,
    .close = udp_close,
};

static struct direct_udp *udp_of(struct cv_dgram *super)
{
    return CV_CONTAINER_OF(super, struct direct_udp, super);
}

/* -- sockets -- */

static void on_v4(struct cv_io *io, unsigned events)
{
    struct direct_udp *u = CV_CONTAINER_OF(io, struct direct_udp, v4.io);
    if (events & (CV_IO_IN | CV_IO_HUP)) {
        u->v4.drained = false;
        cv_dgram_notify(&u->super, CV_DGRAM_READ);
    }
}

static void on_v6(struct cv_io *io, unsigned events)
{
    struct direct_udp *u = CV_CONTAINER_OF(io, struct direct_udp, v6.io);
    if (events & (CV_IO_IN | CV_IO_HUP)) {
        u->v6.drained = false;
        cv_dgram_notify(&u->super, CV_DGRAM_READ);
    }
}

static int sock_open(struct direct_udp *u, struct sock *s)
{
    if (s->open)
        return 0;
    struct cv_sockaddr any = {.len = sizeof(any.in4), .in4.sin_family = AF_INET};
    if (s == &u->v6)
        any = (struct cv_sockaddr){.len = sizeof(any.in6), .in6.sin6_family = AF_INET6};
    int fd;
    int ret = cv_udp_open(&any, &fd);
    if (ret != 0)
        return ret;
    ret = cv_io_add(u->worker->loop, &s->io, fd, s == &u->v4 ? on_v4 : on_v6);
    if (ret != 0) {
        cv_sys_close(fd);
        return ret;
    }
    s->open = true;
    s->drained = true; /* the event of what comes will say so */
    return 0;
}

static void sock_close(struct sock *s)
{
    if (!s->open)
        return;
    cv_io_forget(&s->io);
    cv_sys_close(s->io.fd);
    s->open = false;
}

/* -- names -- */

static void name_end(struct name *e)
{
    struct direct_udp *u = e->owner;
    if (e->state == NAME_STATE_ASKING)
        u->n_asking--;
    cv_dns_query_cancel(&e->query);
    cv_dgramq_clear(&e->wait);
    cv_list_del(&e->node);
    u->n_names--;
    cv_free(e);
}

static void name_ask(struct name *e, enum cv_family family)
{
    struct direct_udp *u = e->owner;
    struct cv_worker *w = u->worker;
    if (e->state != NAME_STATE_ASKING)
        u->n_asking++;
    e->state = NAME_STATE_ASKING;
    e->family = family;
    e->until_ms = cv_loop_now(w->loop) + w->settings->connect_timeout_ms;
    cv_dns_query_start(&e->query, w->dns, e->text, family);
    if (!cv_timer_is_armed(&u->sweep))
        cv_loop_timer(w->loop, &u->sweep, SWEEP_MS);
}

/* Ask for the family that has not been asked for. False: there is none. */
static bool name_ask_other(struct name *e)
{
    if (e->both)
        return false;
    e->both = true;
    name_ask(e, e->family == CV_AF_IP4 ? CV_AF_IP6 : CV_AF_IP4);
    return true;
}

static void name_known(struct name *e)
{
    e->owner->n_asking--;
    e->state = NAME_STATE_KNOWN;
    e->until_ms = cv_loop_now(e->owner->worker->loop) + NAME_KEEP_MS;
}

static void name_failed(struct name *e, int err)
{
    struct direct_udp *u = e->owner;
    cv_dns_query_cancel(&e->query);
    e->owner->n_asking--;
    e->state = NAME_STATE_FAILED;
    e->err = err;
    e->until_ms = cv_loop_now(u->worker->loop) + NAME_FAIL_MS;
    for (size_t n = cv_dgramq_clear(&e->wait); n > 0; n--)
        cv_dgram_dropped(&u->super, err);
}

/* Make room for one more name: the one that was used least recently goes. */
static bool names_have_room(struct direct_udp *u)
{
    struct cv_list *it;
    if (u->n_names < NAMES_MAX)
        return true;
    for (it = u->names.prev; it != &u->names; it = it->prev) {
        struct name *e = CV_CONTAINER_OF(it, struct name, node);
        if (e->state != NAME_STATE_ASKING) {
            name_end(e);
            return true;
        }
    }
    return false;
}

static int name_new(struct direct_udp *u, const struct cv_host *h, struct name **ret_name)
{
    if (!names_have_room(u))
        return CV_E_LIMIT;
    struct name *e = cv_try_zalloc(sizeof(*e) + h->name_len + 1u);
    if (e == NULL)
        return -ENOMEM;
    e->owner = u;
    e->len = h->name_len;
    memcpy(e->text, h->name, h->name_len);
    e->query.cb = on_answer;
    cv_dgramq_init(&e->wait, NAME_WAIT_N, NAME_WAIT_SIZE, &u->worker->dgram_budget);
    cv_list_add_head(&u->names, &e->node);
    u->n_names++;
    name_ask(e, u->worker->settings->direct_prefer);
    *ret_name = e;
    return 0;
}

/* The entry of a name, made if there is none that is still good. */
static int name_get(struct direct_udp *u, const struct cv_host *h, struct name **ret_name)
{
    int64_t now = cv_loop_now(u->worker->loop);
    struct cv_list *it;
    CV_LIST_FOREACH (it, &u->names) {
        struct name *e = CV_CONTAINER_OF(it, struct name, node);
        if (e->len != h->name_len || memcmp(e->text, h->name, e->len) != 0)
            continue;
        if (e->state != NAME_STATE_ASKING && now >= e->until_ms) {
            name_end(e);
            break;
        }
        if (e->state == NAME_STATE_KNOWN)
            e->until_ms = now + NAME_KEEP_MS;
        cv_list_del(&e->node);
        cv_list_add_head(&u->names, &e->node);
        *ret_name = e;
        return 0;
    }
    return name_new(u, h, ret_name);
}

static int guard(const struct direct_udp *u, const struct cv_dgram_out *m, const struct cv_ip *ip)
{
    const struct cv_settings *s = u->worker->settings;
    return cv_egress_guard(ip, s->direct_allow, s->n_direct_allow, m->grant != NULL, m->grant);
}

/* The address for a datagram to a known name. The first that is allowed, always in the same order.
 * CV_E_GUARD: none is. */
static int name_address(const struct name *e, const struct cv_dgram_out *m, struct cv_ip *ret_ip)
{
    for (size_t i = 0; i < e->n_ips; i++) {
        if (guard(e->owner, m, &e->ips[i]) == 0) {
            *ret_ip = e->ips[i];
            return 0;
        }
    }
    return CV_E_GUARD;
}

/* -- sending -- */

/* Where 'm' goes. 0 and the endpoint; -EINPROGRESS: it waits for its name; else it is dropped. */
static int locate(struct direct_udp *u, const struct cv_dgram_out *m, struct cv_endpoint *ret_to,
                  struct name **ret_name)
{
    const struct cv_host *h = &m->to->host;
    *ret_name = NULL;
    ret_to->port = m->to->port;
    if (cv_host_is_ip(h)) {
        ret_to->ip = h->ip;
        return guard(u, m, &h->ip);
    }
    struct name *e;
    int ret = name_get(u, h, &e);
    if (ret != 0)
        return ret;
    if (e->state == NAME_STATE_FAILED)
        return e->err;
    *ret_name = e;
    if (e->state == NAME_STATE_KNOWN) {
        ret = name_address(e, m, &ret_to->ip);
        if (ret == 0 || !name_ask_other(e))
            return ret;
    }
    ret = cv_dgramq_push(&e->wait, m);
    return ret == 0 ? -EINPROGRESS : ret;
}

static bool is_unreachable(int err)
{
    return err == -ENETUNREACH || err == -EHOSTUNREACH || err == -EADDRNOTAVAIL ||
           err == -EAFNOSUPPORT;
}

/* This machine has no way to an address of the name: forget it. If it was the last one the datagram
 * waits for those of the other family; else it is lost, and the next datagram goes to the next. */
static int name_retry(struct name *e, const struct cv_ip *bad, const struct cv_dgram_out *m)
{
    for (size_t i = 0; i < e->n_ips; i++) {
        if (!cv_ip_equal(&e->ips[i], bad))
            continue;
        e->n_ips--;
        memmove(&e->ips[i], &e->ips[i + 1], (e->n_ips - i) * sizeof(e->ips[0]));
        break;
    }
    if (e->state == NAME_STATE_KNOWN && e->n_ips == 0 && !name_ask_other(e)) {
        e->owner->n_asking++; /* as if the answer had just come */
        name_failed(e, -ENETUNREACH);
    }
    return e->state == NAME_STATE_ASKING ? cv_dgramq_push(&e->wait, m) : -ENETUNREACH;
}

/* Datagrams of one family on their way to its socket. */
struct pack {
    struct cv_udp_out out[CV_DGRAM_BATCH];
    struct cv_endpoint to[CV_DGRAM_BATCH];
    struct name *name[CV_DGRAM_BATCH]; /* borrowed; NULL: the target is an address */
    struct cv_dgram_out *msg[CV_DGRAM_BATCH];
    size_t n;
};

static void pack_send(struct direct_udp *u, struct sock *s, struct pack *p)
{
    int ret = p->n > 0 ? sock_open(u, s) : 0;
    if (ret == 0 && p->n > 0)
        cv_udp_send(s->io.fd, p->out, p->n);
    for (size_t i = 0; i < p->n; i++) {
        struct cv_dgram_out *m = p->msg[i];
        m->err = ret != 0 ? ret : p->out[i].err;
        if (is_unreachable(m->err) && p->name[i] != NULL)
            m->err = name_retry(p->name[i], &p->to[i].ip, m);
    }
}

static void send_batch(struct direct_udp *u, struct cv_dgram_out *msgs, size_t n)
{
    struct pack v4, v6;
    v4.n = v6.n = 0;
    for (size_t i = 0; i < n; i++) {
        struct cv_endpoint to;
        struct name *e;
        int ret = locate(u, &msgs[i], &to, &e);
        msgs[i].err = ret == -EINPROGRESS ? 0 : ret;
        if (ret != 0)
            continue;
        struct pack *p = to.ip.family == CV_AF_IP4 ? &v4 : &v6;
        p->to[p->n] = to;
        p->name[p->n] = e;
        p->msg[p->n] = &msgs[i];
        p->out[p->n] = (struct cv_udp_out){
            .to = &p->to[p->n],
            .iov[0] = {.iov_base = (void *)(uintptr_t)msgs[i].data, .iov_len = msgs[i].len},
        };
        p->n++;
    }
    pack_send(u, &u->v4, &v4);
    pack_send(u, &u->v6, &v6);
}

static void udp_send(struct cv_dgram *super, struct cv_dgram_out *msgs, size_t n)
{
    struct direct_udp *u = udp_of(super);
    for (size_t off = 0; off < n; off += CV_DGRAM_BATCH)
        send_batch(u, msgs + off, CV_MIN(n - off, (size_t)CV_DGRAM_BATCH));
}

/* What has waited for the name goes out, unless it turns out that it has to wait again. */
static void name_flush(struct name *e)
{
    struct direct_udp *u = e->owner;
    uint32_t n = e->wait.n;
    while (n-- > 0) {
        struct cv_dgramq_item *item = cv_dgramq_pop(&e->wait);
        if (item == NULL)
            return;
        send_batch(u, &item->out, 1);
        if (item->out.err != 0)
            cv_dgram_dropped(&u->super, item->out.err);
        cv_dgramq_item_free(item);
    }
}

static bool has_address(void *arg, const struct cv_dgram_out *m)
{
    struct cv_ip ip;
    return name_address(arg, m, &ip) == 0;
}

static void on_answer(struct cv_dns_query *q, int err, const struct cv_ip *ips, size_t n)
{
    struct name *e = CV_CONTAINER_OF(q, struct name, query);
    for (size_t i = 0; err == 0 && i < n && e->n_ips < CV_DNS_ADDRS_MAX; i++)
        e->ips[e->n_ips++] = ips[i];
    bool serves = e->n_ips > 0 && (e->wait.n == 0 || cv_dgramq_any(&e->wait, has_address, e));
    if (!serves && name_ask_other(e))
        return;
    if (e->n_ips == 0) {
        name_failed(e, err != 0 ? err : CV_E_DNS_NXDOMAIN);
        return;
    }
    name_known(e);
    name_flush(e);
}

/* A resolver that was replaced ends its queries without a word. */
static void on_sweep(struct cv_timer *t)
{
    struct direct_udp *u = CV_CONTAINER_OF(t, struct direct_udp, sweep);
    int64_t now = cv_loop_now(u->worker->loop);
    struct cv_list *it;
    CV_LIST_FOREACH (it, &u->names) {
        struct name *e = CV_CONTAINER_OF(it, struct name, node);
        if (e->state == NAME_STATE_ASKING && now >= e->until_ms)
            name_failed(e, CV_E_DNS_TIMEOUT);
    }
    if (u->n_asking > 0)
        cv_loop_timer(u->worker->loop, &u->sweep, SWEEP_MS);
}

/* -- receiving, the end -- */

static int sock_recv(struct sock *s, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    if (!s->open || s->drained)
        return -EAGAIN;
    int ret = cv_udp_recv(s->io.fd, msgs, n, ret_n);
    s->drained = ret == -EAGAIN;
    return ret;
}

static int udp_recv(struct cv_dgram *super, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    struct direct_udp *u = udp_of(super);
    n = CV_MIN(n, (size_t)CV_DGRAM_BATCH);
    int ret = sock_recv(&u->v4, msgs, n, ret_n);
    return ret == -EAGAIN ? sock_recv(&u->v6, msgs, n, ret_n) : ret;
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct direct_udp, release));
}

static void udp_close(struct cv_dgram *super)
{
    struct direct_udp *u = udp_of(super);
    struct cv_loop *loop = u->worker->loop;
    cv_dgram_set_cb(super, NULL, NULL, NULL);
    while (!cv_list_is_empty(&u->names))
        name_end(CV_CONTAINER_OF(u->names.next, struct name, node));
    cv_loop_timer_stop(loop, &u->sweep);
    sock_close(&u->v4);
    sock_close(&u->v6);
    u->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(loop, &u->release);
}

void cv_direct_open_udp(struct cv_egress *e, struct cv_dial *d)
{
    struct direct_udp *u = cv_try_zalloc(sizeof(*u));
    (void)e;
    if (u == NULL) {
        cv_dial_fail_later(d, CV_STAGE_DIAL, -ENOMEM);
        return;
    }
    u->super.ops = &udp_ops;
    u->worker = d->worker;
    cv_list_init(&u->names);
    cv_timer_init(&u->sweep, on_sweep);
    d->dgram = &u->super;
    cv_dial_done_later(d);
}
