/* The engine 'user': lwIP inside the process. This file has its life, its interfaces, its timers
 * and the way of packets; user_tcp.c and user_udp.c have what is opened on an interface. */
#include <errno.h>
#include <string.h>

#include <lwip/init.h>
#include <lwip/ip4_frag.h>
#include <lwip/ip6_frag.h>
#include <lwip/nd6.h>
#include <lwip/priv/tcp_priv.h>

#include "common/alloc.h"
#include "netstack/user_priv.h"

#include "common/poison.h"

#define TICK_MS     TCP_TMR_INTERVAL
#define IDLE_MS     1000 /* without connections: for pieces of datagrams */
#define FLAT_SIZE   65536
#define NETIFS_MAX  250
#define TICKS_IN_1S (1000 / TICK_MS)

struct cv_user *cv_user_instance;

static const struct cv_netstack_ops user_ops;

static int64_t loop_now(const struct cv_user *u)
{
    return cv_loop_now(u->super.loop);
}

void cv_user_to_lwip(ip_addr_t *ret, const struct cv_ip *ip)
{
    if (ip->family == CV_AF_IP4) {
        uint32_t v;
        memcpy(&v, ip->b, sizeof(v));
        ip_addr_set_ip4_u32(ret, v);
    } else {
        uint32_t w[4];
        memcpy(w, ip->b, sizeof(w));
        IP_ADDR6(ret, w[0], w[1], w[2], w[3]);
    }
}

void cv_user_from_lwip(struct cv_ip *ret, const ip_addr_t *ip)
{
    memset(ret, 0, sizeof(*ret));
    if (IP_IS_V6(ip)) {
        ret->family = CV_AF_IP6;
        memcpy(ret->b, ip_2_ip6(ip)->addr, 16);
    } else {
        uint32_t v = ip4_addr_get_u32(ip_2_ip4(ip));
        ret->family = CV_AF_IP4;
        memcpy(ret->b, &v, sizeof(v));
    }
}

/* -- events -- */

void cv_user_sock_init(struct cv_user_sock *s, struct cv_user_netif *nif)
{
    s->nif = nif;
    s->user = nif->user;
    s->events = 0;
    cv_list_init(&s->ready_node);
    cv_list_add_tail(&nif->socks, &s->node);
}

void cv_user_sock_done(struct cv_user_sock *s)
{
    cv_list_del(&s->node);
    cv_list_del(&s->ready_node);
    cv_list_init(&s->node);
    cv_list_init(&s->ready_node);
    s->events = 0;
}

void cv_user_sock_event(struct cv_user_sock *s, unsigned events)
{
    if (s->events == 0)
        cv_list_add_tail(&s->user->ready, &s->ready_node);
    s->events |= events;
    cv_user_soon(s->user);
}

static void flush(struct cv_user_netif *nif);

static void flush_all(struct cv_user *u)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &u->netifs)
        flush(CV_CONTAINER_OF(it, struct cv_user_netif, node));
}

/* An owner that is told may make others ready; these have their turn in the same call, but not
 * without end. */
static void deliver(struct cv_user *u)
{
    for (unsigned n = 0; n < 4096 && !cv_list_is_empty(&u->ready); n++) {
        struct cv_user_sock *s = CV_CONTAINER_OF(u->ready.next, struct cv_user_sock, ready_node);
        unsigned events = s->events;
        s->events = 0;
        cv_list_del(&s->ready_node);
        cv_list_init(&s->ready_node);
        s->deliver(s, events);
    }
}

static void on_next(struct cv_task *task)
{
    struct cv_user *u = CV_CONTAINER_OF(task, struct cv_user, next);
    u->posted = false;
    cv_user_begin(u);
    cv_user_end(u);
}

void cv_user_soon(struct cv_user *u)
{
    if (u->in_batch || u->posted)
        return;
    u->posted = true;
    cv_loop_next(u->super.loop, &u->next);
}

void cv_user_begin(struct cv_user *u)
{
    u->in_batch = true;
}

void cv_user_end(struct cv_user *u)
{
    deliver(u);
    u->in_batch = false;
    flush_all(u);
    if (!cv_list_is_empty(&u->ready))
        cv_user_soon(u);
}

/* -- timers -- */

void cv_user_tick(struct cv_user *u)
{
    cv_user_begin(u);
    struct cv_list *it;
    CV_LIST_FOREACH (it, &u->netifs) {
        struct cv_user_netif *nif = CV_CONTAINER_OF(it, struct cv_user_netif, node);
        /* Nobody is to blame for what was lost while the carrier was away. */
        for (struct tcp_pcb *pcb = nif->pi->up ? NULL : tcp_active_pcbs; pcb != NULL;
             pcb = pcb->next) {
            if (pcb->netif_idx == netif_get_index(&nif->netif) && pcb->state != SYN_SENT)
                pcb->nrtx = pcb->persist_probe = 0;
        }
    }
    tcp_tmr();
    if (++u->seconds >= TICKS_IN_1S) {
        u->seconds = 0;
        ip_reass_tmr();
        ip6_reass_tmr();
    }
    cv_user_end(u);
}

static void on_timer(struct cv_timer *t)
{
    struct cv_user *u = CV_CONTAINER_OF(t, struct cv_user, timer);
    u->ticking = 0;
    cv_user_tick(u);
    /* Datagrams in pieces need the timer, too, and say nothing; they may wait for it. */
    if (tcp_active_pcbs != NULL || tcp_tw_pcbs != NULL || u->n_netifs > 0)
        cv_user_need_timer(u);
}

void cv_user_need_timer(struct cv_user *u)
{
    bool busy = tcp_active_pcbs != NULL || tcp_tw_pcbs != NULL;
    int64_t wait = busy ? TICK_MS : IDLE_MS;
    if (u->now != loop_now || (u->ticking != 0 && u->ticking <= wait))
        return;
    u->ticking = wait;
    cv_loop_timer(u->super.loop, &u->timer, wait);
}

/* -- packets out -- */

static void txq_drop(struct cv_user_netif *nif)
{
    cv_counter_add_owned(&nif->super.stats->dropped, nif->tx_n);
    for (; nif->tx_n > 0; nif->tx_n--) {
        pbuf_free(nif->txq[nif->tx_head]);
        nif->tx_head = (nif->tx_head + 1) % CV_USER_TXQ;
    }
}

/* The pieces of a packet; false: it has too many and there is no memory to join them. */
static bool pieces(struct cv_user_netif *nif, struct pbuf *p, struct cv_pkt_out *out, size_t *flat)
{
    out->len = p->tot_len;
    out->iovcnt = 0;
    for (struct pbuf *q = p; q != NULL; q = q->next) {
        if (q->len == 0)
            continue;
        if (out->iovcnt == CV_PKTIF_PIECES)
            break;
        out->iov[out->iovcnt++] = (struct iovec){.iov_base = q->payload, .iov_len = q->len};
    }
    size_t len = 0;
    for (unsigned i = 0; i < out->iovcnt; i++)
        len += out->iov[i].iov_len;
    if (len == out->len && out->iov[0].iov_len >= CV_MIN(out->len, 60u))
        return true;
    if (nif->flat == NULL && (nif->flat = cv_try_alloc(FLAT_SIZE)) == NULL)
        return false;
    if (*flat + out->len > FLAT_SIZE)
        return false;
    (void)pbuf_copy_partial(p, nif->flat + *flat, p->tot_len, 0);
    out->iov[0] = (struct iovec){.iov_base = nif->flat + *flat, .iov_len = p->tot_len};
    out->iovcnt = 1;
    *flat += out->len;
    return true;
}

static void flush(struct cv_user_netif *nif)
{
    struct cv_netif_stats *st = nif->super.stats;
    while (nif->tx_n > 0 && !nif->blocked) {
        struct cv_pkt_out pkts[CV_PKTIF_BATCH];
        size_t n = 0, flat = 0, bytes = 0;
        while (n < CV_MIN(nif->tx_n, (unsigned)CV_PKTIF_BATCH) &&
               pieces(nif, nif->txq[(nif->tx_head + n) % CV_USER_TXQ], &pkts[n], &flat))
            n++;
        if (n == 0) {
            txq_drop(nif);
            return;
        }
        size_t taken = cv_pktif_send(nif->pi, pkts, n);
        if (taken == CV_PKTIF_DOWN) {
            txq_drop(nif);
            return;
        }
        for (size_t i = 0; i < taken; i++) {
            bytes += pkts[i].len;
            pbuf_free(nif->txq[nif->tx_head]);
            nif->tx_head = (nif->tx_head + 1) % CV_USER_TXQ;
        }
        nif->tx_n -= (unsigned)taken;
        cv_counter_add_owned(&st->packets_out, taken);
        cv_counter_add_owned(&st->bytes_out, bytes);
        nif->blocked = taken < n;
    }
}

static err_t out(struct netif *netif, struct pbuf *p)
{
    struct cv_user_netif *nif = netif->state;
    if (nif->pi == NULL || !nif->pi->up) {
        /* As lost on the way: TCP sends it again. */
        cv_counter_add_owned(&nif->super.stats->dropped, 1);
        return ERR_OK;
    }
    if (nif->tx_n >= CV_PKTIF_BATCH && !nif->blocked)
        flush(nif);
    /* TCP keeps the segment and tries again; a datagram is lost. */
    if (nif->tx_n == CV_USER_TXQ)
        return ERR_MEM;
    pbuf_ref(p);
    nif->txq[(nif->tx_head + nif->tx_n++) % CV_USER_TXQ] = p;
    cv_user_soon(nif->user);
    return ERR_OK;
}

static err_t out4(struct netif *netif, struct pbuf *p, const ip4_addr_t *to)
{
    (void)to;
    return out(netif, p);
}

static err_t out6(struct netif *netif, struct pbuf *p, const ip6_addr_t *to)
{
    (void)to;
    return out(netif, p);
}

/* -- packets in -- */

static void on_input(void *arg, struct cv_pkt_in *pkts, size_t n)
{
    struct cv_user_netif *nif = arg;
    struct cv_user *u = nif->user;
    size_t bytes = 0, dropped = 0;

    cv_user_begin(u);
    for (size_t i = 0; i < n; i++) {
        struct pbuf *p = pkts[i].len <= UINT16_MAX && pkts[i].len > 0
                             ? pbuf_alloc(PBUF_RAW, (u16_t)pkts[i].len, PBUF_RAM)
                             : NULL;
        bytes += pkts[i].len;
        if (p == NULL) {
            dropped++;
            continue;
        }
        memcpy(p->payload, pkts[i].data, pkts[i].len);
        if (nif->netif.input(p, &nif->netif) != ERR_OK)
            pbuf_free(p);
    }
    cv_counter_add_owned(&nif->super.stats->packets_in, n);
    cv_counter_add_owned(&nif->super.stats->bytes_in, bytes);
    if (dropped > 0)
        cv_counter_add_owned(&nif->super.stats->dropped, dropped);
    cv_user_end(u);
}

static void on_writable(void *arg)
{
    struct cv_user_netif *nif = arg;
    cv_user_begin(nif->user);
    nif->blocked = false;
    flush(nif);
    if (!nif->blocked)
        tcp_txnow();
    cv_user_end(nif->user);
}

/* What was lost while the carrier was away is sent again now, not when its timer says. */
void cv_user_kick(struct cv_user_netif *nif)
{
    for (struct tcp_pcb *pcb = tcp_active_pcbs; pcb != NULL; pcb = pcb->next) {
        if (pcb->netif_idx != netif_get_index(&nif->netif))
            continue;
        if (pcb->unacked != NULL) {
            pcb->nrtx = 0;
            pcb->rto = (s16_t)CV_MAX((pcb->sa >> 3) + pcb->sv, 1);
            pcb->rtime = pcb->rto;
        } else if (pcb->state >= ESTABLISHED) {
            /* Tell the peer where we are: its own timer may have backed off for long. */
            tcp_ack_now(pcb);
            (void)tcp_output(pcb);
        }
    }
}

static void on_changed(void *arg)
{
    struct cv_user_netif *nif = arg;
    cv_user_begin(nif->user);
    nif->netif.mtu = (u16_t)CV_MIN(CV_MAX(nif->pi->mtu, 576u), 65535u);
    nif->netif.mtu6 = nif->netif.mtu;
    nif->blocked = false;
    if (nif->pi->up && !nif->was_up)
        cv_user_kick(nif);
    else if (!nif->pi->up)
        txq_drop(nif);
    nif->was_up = nif->pi->up;
    cv_user_end(nif->user);
}

static const struct cv_pktif_user pktif_user = {
    .on_input = on_input,
    .on_writable = on_writable,
    .on_changed = on_changed,
};

/* -- interfaces -- */

static err_t netif_start(struct netif *netif)
{
    netif->name[0] = 'c';
    netif->name[1] = 'v';
    netif->output = out4;
    netif->output_ip6 = out6;
    return ERR_OK;
}

static void apply_addresses(struct cv_user_netif *nif, const struct cv_net_addresses *a)
{
    ip_addr_t ip;
    ip4_addr_t mask, none;
    ip4_addr_set_u32(&mask, PP_HTONL(0xffffffffu));
    ip4_addr_set_zero(&none);
    if (a->ip4.family == CV_AF_IP4) {
        cv_user_to_lwip(&ip, &a->ip4);
        netif_set_addr(&nif->netif, ip_2_ip4(&ip), &mask, &none);
    } else {
        netif_set_addr(&nif->netif, &none, &none, &none);
    }
    if (a->ip6.family == CV_AF_IP6) {
        cv_user_to_lwip(&ip, &a->ip6);
        netif_ip6_addr_set(&nif->netif, 0, ip_2_ip6(&ip));
        netif_ip6_addr_set_state(&nif->netif, 0, IP6_ADDR_PREFERRED);
    } else {
        netif_ip6_addr_set_state(&nif->netif, 0, IP6_ADDR_INVALID);
    }
    nif->super.addresses = *a;
}

static void socks_down(struct cv_user_netif *nif, int err, bool v4, bool v6)
{
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &nif->socks) {
        struct cv_user_sock *s = CV_CONTAINER_OF(it, struct cv_user_sock, node);
        s->down(s, err, v4, v6);
    }
}

static int user_open(struct cv_netstack *ns, struct cv_pktif *pi, const struct cv_net_addresses *a,
                     struct cv_netif_stats *stats, struct cv_netif **ret_nif)
{
    struct cv_user *u = CV_CONTAINER_OF(ns, struct cv_user, super);
    if (u->n_netifs == NETIFS_MAX)
        return -EMFILE;
    struct cv_user_netif *nif = cv_try_zalloc(sizeof(*nif));
    if (nif == NULL)
        return -ENOMEM;
    nif->super.ns = ns;
    nif->super.stats = stats;
    nif->user = u;
    nif->pi = pi;
    nif->was_up = pi->up;
    cv_list_init(&nif->socks);
    if (netif_add_noaddr(&nif->netif, nif, netif_start, ip_input) == NULL) {
        cv_free(nif);
        return -ENOMEM;
    }
    nif->netif.mtu = (u16_t)CV_MIN(CV_MAX(pi->mtu, 576u), 65535u);
    nif->netif.mtu6 = nif->netif.mtu;
    apply_addresses(nif, a);
    netif_set_up(&nif->netif);
    netif_set_link_up(&nif->netif);
    cv_list_add_tail(&u->netifs, &nif->node);
    u->n_netifs++;
    cv_pktif_attach(pi, &pktif_user, nif);
    cv_user_need_timer(u);
    *ret_nif = &nif->super;
    return 0;
}

static void user_set_addresses(struct cv_netif *base, const struct cv_net_addresses *a)
{
    struct cv_user_netif *nif = CV_CONTAINER_OF(base, struct cv_user_netif, super);
    bool v4 = !cv_ip_equal(&base->addresses.ip4, &a->ip4);
    bool v6 = !cv_ip_equal(&base->addresses.ip6, &a->ip6);
    if (!v4 && !v6)
        return;
    socks_down(nif, -ENETRESET, v4, v6);
    apply_addresses(nif, a);
    cv_user_soon(nif->user);
}

static void on_release(struct cv_task *task)
{
    struct cv_user_netif *nif = CV_CONTAINER_OF(task, struct cv_user_netif, release);
    cv_free(nif->flat);
    cv_free(nif);
}

/* Connections that have no owner any more (closed, still sending) go with the interface. */
static void abort_orphans(struct cv_user_netif *nif)
{
    for (unsigned list = 0; list < 2; list++) {
        struct tcp_pcb *pcb = list == 0 ? tcp_active_pcbs : tcp_tw_pcbs;
        while (pcb != NULL) {
            struct tcp_pcb *next = pcb->next;
            if (pcb->netif_idx == netif_get_index(&nif->netif))
                tcp_abandon(pcb, 0);
            pcb = next;
        }
    }
}

static void user_close(struct cv_netif *base)
{
    struct cv_user_netif *nif = CV_CONTAINER_OF(base, struct cv_user_netif, super);
    struct cv_user *u = nif->user;
    socks_down(nif, -ENETDOWN, true, true);
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &nif->socks) {
        struct cv_user_sock *s = CV_CONTAINER_OF(it, struct cv_user_sock, node);
        cv_list_del(&s->node);
        cv_list_init(&s->node);
        s->nif = NULL;
    }
    abort_orphans(nif);
    txq_drop(nif);
    cv_pktif_detach(nif->pi);
    nif->pi = NULL;
    netif_remove(&nif->netif);
    cv_list_del(&nif->node);
    u->n_netifs--;
    nif->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(u->super.loop, &nif->release);
}

/* -- the stack -- */

int cv_netstack_user_new(struct cv_loop *loop, struct cv_netstack **ret_ns)
{
    static bool initialised;
    if (cv_user_instance != NULL)
        return -EBUSY;
    struct cv_user *u = cv_try_zalloc(sizeof(*u));
    if (u == NULL)
        return -ENOMEM;
    u->super.ops = &user_ops;
    u->super.loop = loop;
    u->now = loop_now;
    cv_list_init(&u->ready);
    cv_list_init(&u->netifs);
    u->next.fn = on_next;
    cv_timer_init(&u->timer, on_timer);
    if (!initialised) {
        lwip_init();
        initialised = true;
    }
    cv_user_instance = u;
    *ret_ns = &u->super;
    return 0;
}

static void user_free(struct cv_netstack *ns)
{
    struct cv_user *u = CV_CONTAINER_OF(ns, struct cv_user, super);
    CV_ASSERT(cv_list_is_empty(&u->netifs));
    cv_loop_timer_stop(ns->loop, &u->timer);
    if (u->posted)
        (void)cv_loop_next_cancel(ns->loop, &u->next);
    cv_user_instance = NULL;
    cv_free(u);
}

static const struct cv_netstack_ops user_ops = {
    .name = "user",
    .free = user_free,
    .open = user_open,
    .set_addresses = user_set_addresses,
    .close = user_close,
    .connect = cv_user_connect,
    .cancel = cv_user_cancel,
    .udp = cv_user_udp,
};
