/* Datagram flows of the engine 'user': a cv_dgram over a PCB per address family of lwIP. */
#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/rand.h"
#include "netstack/user_priv.h"

#include "common/poison.h"

#define QUEUE_MAX   256          /* datagrams that wait for the reader */
#define QUEUE_BYTES (256u << 10) /* and their size */
#define PORT_FIRST  16384u
#define PORT_TRIES  64

struct item {
    struct pbuf *p;
    struct cv_endpoint from;
};

struct flow {
    struct cv_dgram super;
    struct cv_user_sock sock;
    struct udp_pcb *pcb[2]; /* IPv4, IPv6; NULL: the interface has no such address */
    struct item *queue;     /* QUEUE_MAX, a ring; NULL until the first */
    unsigned head, n;
    size_t bytes;
    struct cv_task release;
};

static void on_recv(void *arg, struct udp_pcb *pcb, struct pbuf *p, const ip_addr_t *addr,
                    u16_t port)
{
    struct flow *f = arg;
    (void)pcb;
    if (f->queue == NULL)
        f->queue = cv_try_alloc(sizeof(*f->queue) * QUEUE_MAX);
    if (f->queue == NULL || f->n == QUEUE_MAX || f->bytes + p->tot_len > QUEUE_BYTES) {
        cv_counter_add_owned(&f->sock.nif->super.stats->dropped, 1);
        pbuf_free(p);
        return;
    }
    struct item *it = &f->queue[(f->head + f->n++) % QUEUE_MAX];
    it->p = p;
    cv_user_from_lwip(&it->from.ip, addr);
    it->from.port = port;
    f->bytes += p->tot_len;
    cv_user_sock_event(&f->sock, CV_DGRAM_READ);
}

static void deliver(struct cv_user_sock *s, unsigned events)
{
    cv_dgram_notify(&CV_CONTAINER_OF(s, struct flow, sock)->super, events);
}

static void remove_pcbs(struct flow *f)
{
    for (unsigned i = 0; i < 2; i++) {
        if (f->pcb[i] != NULL)
            udp_remove(f->pcb[i]);
        f->pcb[i] = NULL;
    }
    if (f->sock.nif != NULL)
        cv_gauge_add(&f->sock.nif->super.stats->udp, -1);
}

static void down(struct cv_user_sock *s, int err, bool v4, bool v6)
{
    struct flow *f = CV_CONTAINER_OF(s, struct flow, sock);
    if (f->super.err != 0 || !((v4 && f->pcb[0] != NULL) || (v6 && f->pcb[1] != NULL)))
        return;
    f->super.err = err;
    remove_pcbs(f);
    cv_user_sock_event(s, CV_DGRAM_HUP);
}

static int code_of(err_t err)
{
    switch (err) {
    case ERR_OK:
        return 0;
    case ERR_MEM:
    case ERR_BUF:
        return -EAGAIN;
    default:
        return -ENETUNREACH;
    }
}

static int send_one(struct flow *f, const struct cv_dgram_out *m)
{
    if (!cv_host_is_ip(&m->to->host))
        return CV_E_INVALID;
    struct udp_pcb *pcb = f->pcb[m->to->host.ip.family == CV_AF_IP6];
    if (pcb == NULL)
        return -EAFNOSUPPORT;
    if (m->len > CV_DGRAM_MAX)
        return -EMSGSIZE;
    if (m->to->port == 0)
        return CV_E_INVALID;
    struct pbuf *p = pbuf_alloc(PBUF_TRANSPORT, (u16_t)m->len, PBUF_RAM);
    if (p == NULL)
        return -ENOMEM;
    if (m->len > 0)
        memcpy(p->payload, m->data, m->len);
    ip_addr_t to;
    cv_user_to_lwip(&to, &m->to->host.ip);
    err_t err = udp_sendto_if_src(pcb, p, &to, m->to->port, &f->sock.nif->netif, &pcb->local_ip);
    pbuf_free(p);
    return code_of(err);
}

static void flow_send(struct cv_dgram *d, struct cv_dgram_out *msgs, size_t n)
{
    struct flow *f = CV_CONTAINER_OF(d, struct flow, super);
    for (size_t i = 0; i < n; i++)
        msgs[i].err = d->err != 0 ? CV_E_UNAVAILABLE : send_one(f, &msgs[i]);
    cv_user_soon(f->sock.user);
}

static int flow_recv(struct cv_dgram *d, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    struct flow *f = CV_CONTAINER_OF(d, struct flow, super);
    size_t got = 0;
    if (f->n == 0)
        return d->err != 0 ? CV_E_UNAVAILABLE : -EAGAIN;
    while (got < n && f->n > 0) {
        struct item *it = &f->queue[f->head];
        f->head = (f->head + 1) % QUEUE_MAX;
        f->n--;
        f->bytes -= it->p->tot_len;
        if (it->p->tot_len <= msgs[got].cap) {
            msgs[got].data = msgs[got].buf;
            msgs[got].len = pbuf_copy_partial(it->p, msgs[got].buf, it->p->tot_len, 0);
            msgs[got].from = it->from;
            msgs[got].name = NULL;
            msgs[got].name_len = 0;
            got++;
        } else {
            cv_dgram_dropped(d, -EMSGSIZE);
        }
        pbuf_free(it->p);
    }
    *ret_n = got;
    return 0;
}

static void on_release(struct cv_task *task)
{
    struct flow *f = CV_CONTAINER_OF(task, struct flow, release);
    cv_free(f->queue);
    cv_free(f);
}

static void flow_close(struct cv_dgram *d)
{
    struct flow *f = CV_CONTAINER_OF(d, struct flow, super);
    cv_dgram_set_cb(d, NULL, NULL, NULL);
    if (d->err == 0)
        remove_pcbs(f);
    for (; f->n > 0; f->n--) {
        pbuf_free(f->queue[f->head].p);
        f->head = (f->head + 1) % QUEUE_MAX;
    }
    cv_user_sock_done(&f->sock);
    f->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(f->sock.user->super.loop, &f->release);
}

static const struct cv_dgram_ops flow_ops = {
    .name = "netstack",
    .send = flow_send,
    .recv = flow_recv,
    .close = flow_close,
};

/* 0, -ENOMEM, -EADDRNOTAVAIL. */
static int bind_pcb(struct flow *f, struct cv_user_netif *nif, const struct cv_ip *ip, unsigned i)
{
    ip_addr_t local;
    if (ip->family == CV_AF_NONE)
        return 0;
    struct udp_pcb *pcb = udp_new_ip_type(i == 0 ? IPADDR_TYPE_V4 : IPADDR_TYPE_V6);
    if (pcb == NULL)
        return -ENOMEM;
    cv_user_to_lwip(&local, ip);
    udp_bind_netif(pcb, &nif->netif);
    err_t err = ERR_USE;
    for (unsigned tries = 0; tries < PORT_TRIES && err == ERR_USE; tries++)
        err = udp_bind(pcb, &local, (u16_t)(PORT_FIRST + cv_rand_below(65536 - PORT_FIRST)));
    if (err != ERR_OK) {
        udp_remove(pcb);
        return -EADDRNOTAVAIL;
    }
    udp_recv(pcb, on_recv, f);
    f->pcb[i] = pcb;
    return 0;
}

int cv_user_udp(struct cv_netif *base, struct cv_dgram **ret_dgram)
{
    struct cv_user_netif *nif = CV_CONTAINER_OF(base, struct cv_user_netif, super);
    struct flow *f = cv_try_zalloc(sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    f->super.ops = &flow_ops;
    f->sock.deliver = deliver;
    f->sock.down = down;
    cv_user_sock_init(&f->sock, nif);
    cv_gauge_add(&nif->super.stats->udp, 1);
    int ret = bind_pcb(f, nif, &base->addresses.ip4, 0);
    if (ret == 0)
        ret = bind_pcb(f, nif, &base->addresses.ip6, 1);
    if (ret != 0) {
        flow_close(&f->super);
        return ret;
    }
    cv_user_need_timer(nif->user);
    *ret_dgram = &f->super;
    return 0;
}
