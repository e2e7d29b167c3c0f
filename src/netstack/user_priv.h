/* The engine 'user': what its files share. lwIP's names are seen here only. */
#pragma once

#include <lwip-ready.h> /* generated; makes what includes this depend on our patches */
#include <lwip/ip.h>
#include <lwip/netif.h>
#include <lwip/pbuf.h>
#include <lwip/tcp.h>
#include <lwip/udp.h>

#include "netstack/netstack.h"

#define CV_USER_TXQ       512          /* packets that wait for the carrier */
#define CV_USER_WND_FIRST (256u << 10) /* receive window of a new connection */
#define CV_USER_WND_ALL   (512u << 20) /* of all connections above the first grant */
#define CV_USER_SND_FIRST (64u << 10)  /* least that may wait to be sent */

struct cv_user {
    struct cv_netstack super;
    struct cv_timer timer;
    int64_t ticking;     /* ms from one tick to the next; 0: the timer does not run */
    struct cv_task next; /* delivers and sends at the next turn */
    bool posted;
    bool in_batch;         /* within cv_user_begin() and cv_user_end() */
    struct cv_list ready;  /* objects with events to deliver */
    struct cv_list netifs; /* struct cv_user_netif */
    size_t granted;        /* bytes of receive windows beyond the first grant */
    unsigned n_netifs;
    uint32_t seconds;                        /* ticks towards the timers of reassembly */
    int64_t (*now)(const struct cv_user *u); /* ms; the loop's clock, or a test's */
    int64_t test_now;
};

struct cv_user_netif {
    struct cv_netif super;
    struct cv_user *user;
    struct cv_list node; /* in user.netifs */
    struct netif netif;
    struct cv_pktif *pi;           /* borrowed; NULL once closed */
    struct cv_list socks;          /* struct cv_user_sock, open */
    struct pbuf *txq[CV_USER_TXQ]; /* references; a ring */
    unsigned tx_head, tx_n;
    bool blocked; /* the carrier has taken less than was there */
    bool was_up;
    struct cv_task release;
    uint8_t *flat; /* for packets of too many pieces; CV_USER_FLAT bytes, or NULL */
};

/* What a stream and a flow have in common: membership and deferred events. */
struct cv_user_sock {
    struct cv_list node;       /* in netif.socks */
    struct cv_list ready_node; /* in user.ready */
    struct cv_user_netif *nif; /* NULL once the interface is closed */
    struct cv_user *user;
    void (*deliver)(struct cv_user_sock *s, unsigned events);
    void (*down)(struct cv_user_sock *s, int err, bool v4, bool v6);
    unsigned events;
};

/* The one stack of the process; NULL: none. */
extern struct cv_user *cv_user_instance;

/* Between these, events are gathered; the outermost end delivers them and sends what waits. From
 * the loop only, never from inside a call on a stream. */
void cv_user_begin(struct cv_user *u);
void cv_user_end(struct cv_user *u);
/* From inside a call on a stream: send and deliver in the next turn. */
void cv_user_soon(struct cv_user *u);
void cv_user_sock_init(struct cv_user_sock *s, struct cv_user_netif *nif);
void cv_user_sock_done(struct cv_user_sock *s);
void cv_user_sock_event(struct cv_user_sock *s, unsigned events);
/* Timers run while something needs them. */
void cv_user_need_timer(struct cv_user *u);
/* One tick of 50 ms; for tests with their own clock. */
void cv_user_tick(struct cv_user *u);
void cv_user_kick(struct cv_user_netif *nif);

void cv_user_to_lwip(ip_addr_t *ret, const struct cv_ip *ip);
void cv_user_from_lwip(struct cv_ip *ret, const ip_addr_t *ip);

/* user_tcp.c */
void cv_user_connect(struct cv_netif *nif, struct cv_net_connect *c, const struct cv_endpoint *to);
void cv_user_cancel(struct cv_net_connect *c);
/* Adopt a connection of lwIP that is established; for tests that listen. */
int cv_user_tcp_adopt(struct cv_user_netif *nif, struct tcp_pcb *pcb, struct cv_stream **ret);
/* user_udp.c */
int cv_user_udp(struct cv_netif *nif, struct cv_dgram **ret_dgram);
