/* Two interfaces of one stack joined by a wire, in real time: the near end is under test, the far
 * end has servers: a TCP echo, a UDP echo, a name server that knows "known.test". */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "netstack/user_priv.h"
#include "tap.h"

struct wire;
struct wire_end {
    struct cv_pktif pi;
    struct wire *wire;
    struct wire_end *to;
    struct cv_task task;
    bool posted, cut;
    struct {
        uint8_t *data;
        size_t len;
    } q[4096];
    size_t n;
};

struct wire {
    struct cv_loop *loop;
    struct cv_netstack *ns;
    struct wire_end a, b;
    struct cv_netif *far;
    struct cv_netif_stats stats[2];
    struct tcp_pcb *listener;
    struct cv_dgram *udp_echo, *dns;
    uint16_t udp_port, dns_port;
    unsigned dns_asked;
    bool dns_truncates, dns_silent;
};

static inline struct cv_ip wire_ip(const char *s)
{
    struct cv_ip ip;
    if (cv_ip_parse(s, strlen(s), &ip) != 0)
        abort();
    return ip;
}

static inline void wire_deliver(struct cv_task *task)
{
    struct wire_end *e = CV_CONTAINER_OF(task, struct wire_end, task);
    size_t n = e->n;
    e->posted = false;
    for (size_t i = 0; i < n; i++) {
        struct cv_pkt_in in = {.data = e->q[i].data, .len = e->q[i].len};
        cv_pktif_input(&e->to->pi, &in, 1);
        cv_free(in.data);
    }
    memmove(e->q, e->q + n, (e->n - n) * sizeof(e->q[0]));
    e->n -= n;
    if (e->n > 0 && !e->posted) {
        e->posted = true;
        cv_loop_next(e->wire->loop, &e->task);
    }
}

static inline size_t wire_send(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n)
{
    struct wire_end *e = CV_CONTAINER_OF(pi, struct wire_end, pi);
    for (size_t i = 0; i < n && !e->cut && e->n < CV_ARRAY_SIZE(e->q); i++) {
        uint8_t *p = cv_alloc(pkts[i].len);
        size_t off = 0;
        for (unsigned k = 0; k < pkts[i].iovcnt; k++) {
            memcpy(p + off, pkts[i].iov[k].iov_base, pkts[i].iov[k].iov_len);
            off += pkts[i].iov[k].iov_len;
        }
        e->q[e->n].data = p;
        e->q[e->n++].len = pkts[i].len;
    }
    if (!e->posted && e->n > 0) {
        e->posted = true;
        cv_loop_next(e->wire->loop, &e->task);
    }
    return n;
}

/* -- servers -- */

static inline err_t wire_on_recv(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    (void)arg;
    (void)err;
    if (p == NULL) {
        (void)tcp_shutdown(pcb, 0, 1);
        return ERR_OK;
    }
    for (struct pbuf *q = p; q != NULL; q = q->next)
        (void)tcp_write(pcb, q->payload, q->len, TCP_WRITE_FLAG_COPY);
    tcp_recved(pcb, p->tot_len);
    pbuf_free(p);
    return ERR_OK;
}

static inline err_t wire_on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    if (err != ERR_OK)
        return err;
    tcp_recv(pcb, wire_on_recv);
    return ERR_OK;
}

/* The answer to a question, in place; returns its length. */
static inline size_t wire_answer(uint8_t *m, size_t len, bool truncate)
{
    static const uint8_t rec[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 8, 0, 1};
    size_t end = len - 11; /* without EDNS */
    bool known = memcmp(m + 12, "\5known", 6) == 0, a = m[end - 3] == 1;
    m[2] = (uint8_t)(0x81 | (truncate ? 2 : 0));
    m[3] = known ? 0x80 : 0x83;
    m[11] = 0;
    if (known && a && !truncate) {
        m[7] = 1;
        memcpy(m + end, rec, sizeof(rec));
        end += sizeof(rec);
    }
    return end;
}

static inline void wire_on_udp(void *arg, struct cv_dgram *d, unsigned events)
{
    struct wire *w = arg;
    uint8_t buf[2048];
    struct cv_dgram_in in = {.buf = buf, .cap = sizeof(buf)};
    size_t n;
    (void)events;
    while (cv_dgram_recv(d, &in, 1, &n) == 0 && n == 1) {
        struct cv_target to = {.port = in.from.port};
        struct cv_dgram_out m = {.to = &to, .data = in.data, .len = in.len};
        cv_host_from_ip(&to.host, &in.from.ip);
        if (d == w->dns) {
            w->dns_asked++;
            if (w->dns_silent)
                continue;
            m.len = wire_answer(in.data, in.len, w->dns_truncates);
        }
        cv_dgram_send(d, &m, 1);
    }
}

static inline err_t wire_on_dns_tcp(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
    uint8_t m[600];
    (void)arg;
    (void)err;
    if (p == NULL) {
        (void)tcp_close(pcb);
        return ERR_OK;
    }
    size_t len = pbuf_copy_partial(p, m, 512, 0);
    tcp_recved(pcb, p->tot_len);
    pbuf_free(p);
    len = wire_answer(m + 2, len - 2, false);
    m[0] = (uint8_t)(len >> 8);
    m[1] = (uint8_t)len;
    (void)tcp_write(pcb, m, (u16_t)(len + 2), TCP_WRITE_FLAG_COPY);
    (void)tcp_output(pcb);
    return ERR_OK;
}

static inline err_t wire_on_dns_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    (void)arg;
    if (err == ERR_OK)
        tcp_recv(pcb, wire_on_dns_tcp);
    return err;
}

static inline struct tcp_pcb *wire_listen(struct wire *w, uint16_t port, tcp_accept_fn fn)
{
    struct cv_user_netif *nif = CV_CONTAINER_OF(w->far, struct cv_user_netif, super);
    ip_addr_t ip;
    cv_user_to_lwip(&ip, &w->far->addresses.ip4);
    struct tcp_pcb *pcb = tcp_new_ip_type(IPADDR_TYPE_V4);
    tcp_bind_netif(pcb, &nif->netif);
    if (tcp_bind(pcb, &ip, port) != ERR_OK)
        abort();
    pcb = tcp_listen(pcb);
    tcp_accept(pcb, fn);
    return pcb;
}

/* A flow of the far end, and the port it was bound to: that of the newest IPv4 PCB. */
static inline struct cv_dgram *wire_udp(struct wire *w, uint16_t *ret_port)
{
    struct cv_dgram *d;
    if (cv_netif_udp(w->far, &d) != 0)
        abort();
    struct udp_pcb *pcb = udp_pcbs;
    while (IP_IS_V6_VAL(pcb->local_ip))
        pcb = pcb->next;
    *ret_port = pcb->local_port;
    cv_dgram_set_cb(d, wire_on_udp, NULL, w);
    return d;
}

/* 'w' is large: static. The near end is w->a.pi, which should have the address 10.8.0.2. */
static inline void wire_open(struct wire *w, struct cv_loop *loop)
{
    static const struct cv_pktif_ops ops = {.send = wire_send};
    struct cv_net_addresses far = {.ip4 = wire_ip("10.8.0.1")};
    memset(w, 0, sizeof(*w));
    w->loop = loop;
    if (cv_netstack_user_new(loop, &w->ns) != 0)
        abort();
    w->a = (struct wire_end){.pi = {.ops = &ops, .mtu = 1500, .up = true}, .wire = w, .to = &w->b};
    w->b = (struct wire_end){.pi = {.ops = &ops, .mtu = 1500, .up = true}, .wire = w, .to = &w->a};
    w->a.task.fn = w->b.task.fn = wire_deliver;
    if (cv_netif_open(w->ns, &w->b.pi, &far, &w->stats[1], &w->far) != 0)
        abort();
    w->listener = wire_listen(w, 7, wire_on_accept);
    w->udp_echo = wire_udp(w, &w->udp_port);
    w->dns = wire_udp(w, &w->dns_port);
}

/* The near interface is closed already. */
static inline void wire_close(struct wire *w)
{
    cv_dgram_close(w->udp_echo);
    cv_dgram_close(w->dns);
    (void)tcp_close(w->listener);
    cv_netif_close(w->far);
    for (int i = 0; i < 4; i++)
        cv_loop_turn(w->loop, 0);
    cv_netstack_free(w->ns);
}
