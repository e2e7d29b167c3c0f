/* A network of two ends in one process with a virtual clock: delay, loss, reordering, duplication,
 * a rate with a drop-tail queue, each direction by itself, from a seed. What happens depends on the
 * seed alone, so a fault can be repeated.
 *
 * The near end is an interface of the stack under test; the far end is another interface of it with
 * a listener of lwIP's own behind (struct emu_end), or whatever a test puts there. */
#pragma once

#include <errno.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "netstack/user_priv.h"
#include "tap.h"

struct emu_path {
    int64_t delay_us;
    uint32_t loss_ppm, dup_ppm, reorder_ppm;
    int64_t reorder_us; /* how much later a reordered packet comes */
    uint64_t rate_bps;  /* 0: no limit */
    int64_t queue_us;   /* drop-tail: longest wait for the rate */
};

struct emu_packet {
    int64_t due_us;
    uint64_t seq;
    size_t len;
    uint8_t *data;
};

struct emu;
struct emu_dir {
    struct emu_path path;
    struct emu *emu;
    struct cv_pktif pi; /* where packets of this direction come from */
    struct cv_pktif *to;
    struct emu_packet *heap;
    size_t n, cap;
    int64_t free_us; /* when the line is free again */
    uint64_t sent, dropped, bytes;
    bool hold; /* take nothing: the carrier's queue is full */
};

struct emu {
    struct cv_loop *loop;
    struct cv_user *user;
    int64_t now_us, tick_us;
    uint64_t rnd, seq;
    struct emu_dir dir[4]; /* 0: near to far, 1: far to near; 2, 3: a second pair */
    struct cv_netif *near[2], *far[2];
    struct cv_netif_stats stats[4];
};

static uint64_t emu_rand(struct emu *e)
{
    e->rnd ^= e->rnd << 13;
    e->rnd ^= e->rnd >> 7;
    e->rnd ^= e->rnd << 17;
    return e->rnd;
}

static bool emu_chance(struct emu *e, uint32_t ppm)
{
    return ppm != 0 && emu_rand(e) % 1000000 < ppm;
}

static bool emu_before(const struct emu_packet *a, const struct emu_packet *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->seq < b->seq;
}

static void emu_push(struct emu_dir *d, struct emu_packet p)
{
    if (d->n == d->cap) {
        d->cap = d->cap ? d->cap * 2 : 64;
        d->heap = cv_try_realloc_array(d->heap, d->cap, sizeof(*d->heap));
        if (d->heap == NULL)
            abort();
    }
    size_t i = d->n++;
    while (i > 0 && emu_before(&p, &d->heap[(i - 1) / 2])) {
        d->heap[i] = d->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    d->heap[i] = p;
}

static struct emu_packet emu_pop(struct emu_dir *d)
{
    struct emu_packet top = d->heap[0], last = d->heap[--d->n];
    size_t i = 0;
    for (;;) {
        size_t c = i * 2 + 1;
        if (c >= d->n)
            break;
        if (c + 1 < d->n && emu_before(&d->heap[c + 1], &d->heap[c]))
            c++;
        if (emu_before(&last, &d->heap[c]))
            break;
        d->heap[i] = d->heap[c];
        i = c;
    }
    if (d->n > 0)
        d->heap[i] = last;
    return top;
}

static void emu_one(struct emu_dir *d, const struct cv_pkt_out *out)
{
    struct emu *e = d->emu;
    d->sent++;
    d->bytes += out->len;
    if (emu_chance(e, d->path.loss_ppm)) {
        d->dropped++;
        return;
    }
    int64_t at = e->now_us;
    if (d->path.rate_bps != 0) {
        int64_t begin = CV_MAX(d->free_us, e->now_us);
        if (begin - e->now_us > d->path.queue_us) {
            d->dropped++;
            return;
        }
        d->free_us = begin + (int64_t)((uint64_t)out->len * 8 * 1000000 / d->path.rate_bps);
        at = d->free_us;
    }
    for (int copies = emu_chance(e, d->path.dup_ppm) ? 2 : 1; copies > 0; copies--) {
        struct emu_packet p = {.due_us = at + d->path.delay_us, .seq = e->seq++, .len = out->len};
        if (emu_chance(e, d->path.reorder_ppm))
            p.due_us += d->path.reorder_us;
        p.data = cv_alloc(out->len);
        size_t off = 0;
        for (unsigned i = 0; i < out->iovcnt; i++) {
            memcpy(p.data + off, out->iov[i].iov_base, out->iov[i].iov_len);
            off += out->iov[i].iov_len;
        }
        if (off != out->len)
            abort();
        emu_push(d, p);
    }
}

static size_t emu_send(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n)
{
    struct emu_dir *d = CV_CONTAINER_OF(pi, struct emu_dir, pi);
    if (d->hold)
        return 0;
    for (size_t i = 0; i < n; i++)
        emu_one(d, &pkts[i]);
    return n;
}

static int64_t emu_now(const struct cv_user *u)
{
    return u->test_now;
}

static void emu_init(struct emu *e, uint64_t seed)
{
    static const struct cv_pktif_ops ops = {.send = emu_send};
    memset(e, 0, sizeof(*e));
    e->rnd = seed * 0x9e3779b97f4a7c15u + 1;
    struct cv_netstack *ns;
    if (cv_loop_new(&e->loop) != 0 || cv_netstack_user_new(e->loop, &ns) != 0)
        abort();
    e->user = CV_CONTAINER_OF(ns, struct cv_user, super);
    e->user->now = emu_now;
    e->now_us = e->tick_us = 1000000;
    e->user->test_now = 1000;
    for (unsigned i = 0; i < 4; i++) {
        e->dir[i].emu = e;
        e->dir[i].pi.ops = &ops;
        e->dir[i].pi.mtu = 1500;
        e->dir[i].pi.up = true;
        e->dir[i].to = &e->dir[i ^ 1].pi;
    }
}

static struct cv_ip emu_ip(const char *s)
{
    struct cv_ip ip;
    if (cv_ip_parse(s, strlen(s), &ip) != 0)
        abort();
    return ip;
}

/* Open both ends of pair 'k' with the addresses 10.8.0.2 and 10.8.0.1, fd00::2 and fd00::1. */
static void emu_open(struct emu *e, unsigned k, const struct emu_path *up,
                     const struct emu_path *down)
{
    struct cv_net_addresses near = {.ip4 = emu_ip("10.8.0.2"), .ip6 = emu_ip("fd00::2")};
    struct cv_net_addresses far = {.ip4 = emu_ip("10.8.0.1"), .ip6 = emu_ip("fd00::1")};
    e->dir[k * 2].path = *up;
    e->dir[k * 2 + 1].path = *down;
    if (cv_netif_open(&e->user->super, &e->dir[k * 2].pi, &near, &e->stats[k * 2], &e->near[k]) !=
            0 ||
        cv_netif_open(&e->user->super, &e->dir[k * 2 + 1].pi, &far, &e->stats[k * 2 + 1],
                      &e->far[k]) != 0)
        abort();
}

/* Go on to the next event; false when it would be after 'until_us'. */
static bool emu_step(struct emu *e, int64_t until_us)
{
    while (e->user->posted)
        cv_loop_turn(e->loop, 0);
    int64_t next = e->tick_us + 50000;
    for (unsigned i = 0; i < 4; i++)
        if (e->dir[i].n > 0)
            next = CV_MIN(next, e->dir[i].heap[0].due_us);
    if (next > until_us)
        return false;
    e->now_us = CV_MAX(next, e->now_us);
    e->user->test_now = e->now_us / 1000;
    for (unsigned i = 0; i < 4; i++) {
        struct emu_dir *d = &e->dir[i];
        struct cv_pkt_in in[CV_PKTIF_BATCH];
        size_t n = 0;
        while (n < CV_PKTIF_BATCH && d->n > 0 && d->heap[0].due_us <= e->now_us) {
            struct emu_packet p = emu_pop(d);
            in[n++] = (struct cv_pkt_in){.data = p.data, .len = p.len};
        }
        if (n > 0 && d->to->up)
            cv_pktif_input(d->to, in, n);
        for (size_t j = 0; j < n; j++)
            cv_free(in[j].data);
    }
    if (e->now_us >= e->tick_us + 50000) {
        e->tick_us += 50000;
        cv_user_tick(e->user);
    }
    do {
        cv_loop_turn(e->loop, 0);
    } while (e->user->posted);
    return true;
}

static void emu_run(struct emu *e, int64_t ms)
{
    int64_t until = e->now_us + ms * 1000;
    while (emu_step(e, until))
        ;
    e->now_us = until;
}

/* Asserts that nothing is left. */
static void emu_done(struct emu *e)
{
    for (unsigned k = 0; k < 2; k++) {
        cv_netif_close(e->near[k]);
        cv_netif_close(e->far[k]);
    }
    cv_loop_turn(e->loop, 0);
    T_OK(cv_list_is_empty(&e->user->netifs));
    T_INT_EQ(e->user->granted, 0);
    for (unsigned i = 0; i < 4; i++) {
        T_INT_EQ(cv_gauge_get(&e->stats[i].tcp), 0);
        T_INT_EQ(cv_gauge_get(&e->stats[i].udp), 0);
    }
    cv_netstack_free(&e->user->super);
    for (unsigned i = 0; i < 4; i++) {
        while (e->dir[i].n > 0)
            cv_free(emu_pop(&e->dir[i]).data);
        cv_free(e->dir[i].heap);
    }
    cv_loop_free(e->loop);
}

/* -- an end of a connection that sends a pattern and checks the one it gets -- */

struct emu_end {
    struct cv_stream *s;
    uint64_t salt_out, salt_in;
    uint64_t to_send, sent, got;
    bool shut, eof, paused;
    int err;
    bool wrong; /* a byte is not what it should be */
    int64_t done_us;
    struct emu *emu;
    uint8_t *out, *in;
};

#define EMU_CHUNK 65536

static uint8_t emu_byte(uint64_t salt, uint64_t i)
{
    uint64_t x = (i + salt) * 0x9e3779b97f4a7c15u;
    return (uint8_t)(x >> 56);
}

static void end_send(struct emu_end *t)
{
    while (t->sent < t->to_send) {
        size_t n = (size_t)CV_MIN(t->to_send - t->sent, (uint64_t)EMU_CHUNK);
        for (size_t i = 0; i < n; i++)
            t->out[i] = emu_byte(t->salt_out, t->sent + i);
        size_t done = 0;
        int ret = cv_stream_send(t->s, t->out, n, &done);
        if (ret == -EAGAIN)
            return;
        if (ret != 0) {
            t->err = ret;
            return;
        }
        t->sent += done;
        if (done < n)
            return;
    }
    if (!t->shut && t->to_send > 0) {
        t->shut = true;
        (void)cv_stream_shutdown_send(t->s);
    }
}

static void end_recv(struct emu_end *t)
{
    while (!t->paused && !t->eof) {
        size_t n = 0;
        int ret = cv_stream_recv(t->s, t->in, EMU_CHUNK, &n);
        if (ret == -EAGAIN)
            return;
        if (ret != 0) {
            t->err = ret;
            return;
        }
        if (n == 0) {
            t->eof = true;
            t->done_us = t->emu->now_us;
        }
        for (size_t i = 0; i < n; i++)
            t->wrong |= t->in[i] != emu_byte(t->salt_in, t->got + i);
        t->got += n;
    }
}

static void end_on_ready(void *arg, struct cv_stream *s, unsigned events)
{
    struct emu_end *t = arg;
    (void)s;
    if (events & (CV_STREAM_READ | CV_STREAM_HUP))
        end_recv(t);
    if (t->err == 0 && (events & CV_STREAM_WRITE))
        end_send(t);
}

static void end_init(struct emu_end *t, struct emu *e, uint64_t salt_out, uint64_t salt_in,
                     uint64_t to_send)
{
    memset(t, 0, sizeof(*t));
    t->emu = e;
    t->salt_out = salt_out;
    t->salt_in = salt_in;
    t->to_send = to_send;
    t->out = cv_alloc(EMU_CHUNK);
    t->in = cv_alloc(EMU_CHUNK);
}

static void end_start(struct emu_end *t, struct cv_stream *s)
{
    t->s = s;
    cv_stream_set_cb(s, end_on_ready, t);
    end_recv(t);
    end_send(t);
}

static void end_done(struct emu_end *t)
{
    cv_stream_close(t->s, false);
    t->s = NULL;
    cv_free(t->out);
    cv_free(t->in);
}

/* A listener on a far end whose connections are given to the ends in turn. */
struct emu_server {
    struct tcp_pcb *lpcb;
    struct cv_user_netif *nif;
    struct emu_end **ends;
    unsigned n, next;
};

static err_t server_on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
    struct emu_server *sv = arg;
    struct cv_stream *s;
    if (err != ERR_OK || sv->next == sv->n || cv_user_tcp_adopt(sv->nif, pcb, &s) != 0) {
        tcp_abort(pcb);
        return ERR_ABRT;
    }
    end_start(sv->ends[sv->next++], s);
    return ERR_OK;
}

static void server_open(struct emu_server *sv, struct cv_netif *nif, bool v6, uint16_t port,
                        struct emu_end **ends, unsigned n)
{
    ip_addr_t ip;
    sv->nif = CV_CONTAINER_OF(nif, struct cv_user_netif, super);
    sv->ends = ends;
    sv->n = n;
    sv->next = 0;
    cv_user_to_lwip(&ip, v6 ? &nif->addresses.ip6 : &nif->addresses.ip4);
    struct tcp_pcb *pcb = tcp_new_ip_type(v6 ? IPADDR_TYPE_V6 : IPADDR_TYPE_V4);
    tcp_bind_netif(pcb, &sv->nif->netif);
    if (tcp_bind(pcb, &ip, port) != ERR_OK)
        abort();
    sv->lpcb = tcp_listen(pcb);
    tcp_arg(sv->lpcb, sv);
    tcp_accept(sv->lpcb, server_on_accept);
}

static void server_close(struct emu_server *sv)
{
    (void)tcp_close(sv->lpcb);
}

/* A connect whose outcome is noted; the stream goes to 'end' if there is one. */
struct emu_connect {
    struct cv_net_connect c;
    bool done;
    int err;
    struct emu_end *end;
};

static void on_emu_connect(struct cv_net_connect *c, int err, struct cv_stream *s)
{
    struct emu_connect *ec = CV_CONTAINER_OF(c, struct emu_connect, c);
    ec->done = true;
    ec->err = err;
    if (err == 0 && ec->end != NULL)
        end_start(ec->end, s);
    else
        cv_stream_close(s, true);
}

static void emu_connect(struct emu_connect *ec, struct cv_netif *nif, const char *ip, uint16_t port,
                        struct emu_end *end)
{
    struct cv_endpoint to = {.ip = emu_ip(ip), .port = port};
    memset(ec, 0, sizeof(*ec));
    ec->end = end;
    ec->c.cb = on_emu_connect;
    cv_netif_connect(nif, &ec->c, &to);
}
