/* A tunnel: one OpenVPN connection that is kept up, as a packet interface (net/pktif.h).
 *
 * A tunnel lives on one loop, with its sockets and timers; all calls but those marked "any thread"
 * come from that loop's thread. It is made Down; cv_tunnel_start() makes it Connecting, and from
 * then on it connects, reconnects with growing pauses and goes through its profile's remotes, until
 * it is stopped or the server says something that trying again cannot mend (a wrong password, a
 * certificate that does not verify), which is Failed; cv_tunnel_start() tries again from there too.
 *
 * While it is Reconnecting, its pktif is attached still and keeps its addresses: TCP connections
 * inside live on if the next connection is given the same address. 'generation' of
 * cv_tunnel_net() tells: it grows whenever an address changed, and what was opened before is then
 * of no use.
 *
 * Example: an egress watches the tunnel (cv_tunnel_watch()), attaches a stack to
 * cv_tunnel_pktif(), and gives it the addresses of cv_tunnel_net() whenever the watch says Up. */
#pragma once

#include "common/addr.h"
#include "common/metrics.h"
#include "net/dns.h"
#include "net/loop.h"
#include "net/pktif.h"
#include "tunnel/profile.h"

#define CV_TUNNEL_DNS_MAX 8

enum cv_tunnel_state {
    CV_TUNNEL_DOWN = 0,     /* not started, or stopped */
    CV_TUNNEL_CONNECTING,   /* started, has not been up yet */
    CV_TUNNEL_UP,           /* packets travel */
    CV_TUNNEL_RECONNECTING, /* was up, and will be again */
    CV_TUNNEL_FAILED,       /* will not try again by itself */
};
const char *cv_tunnel_state_name(enum cv_tunnel_state s); /* "down", "connecting", ... */

/* The steps of one connection, in their order. */
enum cv_tunnel_step {
    CV_TUNNEL_STEP_NONE = 0,
    CV_TUNNEL_STEP_RESOLVE, /* the server's name */
    CV_TUNNEL_STEP_SOCKET,  /* TCP connect; a UDP socket is there at once */
    CV_TUNNEL_STEP_RESET,   /* the server has answered the first packet */
    CV_TUNNEL_STEP_TLS,     /* handshake and certificate */
    CV_TUNNEL_STEP_KEYS,    /* key method 2: the password goes there */
    CV_TUNNEL_STEP_PUSH,    /* the server's options: addresses, cipher */
    CV_TUNNEL_STEP_UP,
    CV_TUNNEL_STEP_MAX,
};
const char *cv_tunnel_step_name(enum cv_tunnel_step s);

/* What the server gave; valid while Up and Reconnecting. */
struct cv_tunnel_net {
    struct cv_ip ip4, ip6;               /* family CV_AF_NONE: none */
    struct cv_ip dns[CV_TUNNEL_DNS_MAX]; /* of the config, else pushed, else of the profile */
    size_t n_dns;
    uint32_t generation; /* 1 with the first Up; +1 whenever ip4 or ip6 changed */
};

/* Counted by the tunnel's thread, read by any. */
struct cv_tunnel_stats {
    struct cv_counter in_packets, in_bytes;          /* IP packets that came out of the tunnel */
    struct cv_counter out_packets, out_bytes;        /* IP packets that went into it */
    struct cv_counter wire_in_bytes, wire_out_bytes; /* what the socket carried */
    struct cv_counter in_dropped;                    /* not authentic, replayed, malformed */
    struct cv_counter out_dropped;                   /* the socket refused */
    struct cv_counter retransmits;                   /* control packets sent again */
    struct cv_counter connects, ups;                 /* attempts; those that came up */
    struct cv_counter renegotiations;                /* new keys after the first */
    struct cv_gauge state;                           /* enum cv_tunnel_state */
    struct cv_gauge step;         /* enum cv_tunnel_step of the running attempt */
    struct cv_gauge rtt_us;       /* of control packets, smoothed; 0 = not known */
    struct cv_gauge up_since_ms;  /* unix ms; 0 = not up */
    struct cv_gauge key_since_ms; /* unix ms of the newest key; 0 = none */
};

struct cv_tunnel_conf {
    const char *name;                 /* for logs */
    const struct cv_profile *profile; /* outlives the tunnel */
    const char *username, *password;  /* NULL: those of the profile */
    int64_t connect_timeout_ms;       /* of one attempt on one remote; 0 = 20 s */
    struct cv_dns *dns;               /* resolver for the server's name, of the same loop; borrowed;
                                         NULL: only addresses can be dialled */
    const struct cv_ip *own_dns;      /* in place of the pushed ones; copied */
    size_t n_own_dns;
};

struct cv_tunnel;

/* Texts of 'conf' are copied, also its credentials; profile and dns are borrowed. 0; CV_E_INVALID
 * or CV_E_TLS with a text in *reterr (cv_free) when keys, certificates or ciphers of the profile
 * are no good; -ENOMEM. */
int cv_tunnel_new(struct cv_loop *loop, const struct cv_tunnel_conf *conf, char **reterr,
                  struct cv_tunnel **ret_tunnel) CV_MUST_CHECK;
/* Connect; from Down and Failed. In other states: nothing. */
void cv_tunnel_start(struct cv_tunnel *t);
/* Tell the server good-bye and go Down. */
void cv_tunnel_stop(struct cv_tunnel *t);
/* Leave the server and connect again at once; for Up and Reconnecting. */
void cv_tunnel_restart(struct cv_tunnel *t);
/* Stop and release; nobody may be attached to its pktif or watch it. NULL is accepted. Memory goes
 * at the end of the turn. */
void cv_tunnel_free(struct cv_tunnel *t);

const char *cv_tunnel_name(const struct cv_tunnel *t);
enum cv_tunnel_state cv_tunnel_state(const struct cv_tunnel *t); /* any thread */
struct cv_pktif *cv_tunnel_pktif(struct cv_tunnel *t);
const struct cv_tunnel_net *cv_tunnel_net(const struct cv_tunnel *t);
struct cv_tunnel_stats *cv_tunnel_stats(struct cv_tunnel *t); /* any thread may read */

/* Why the last connection ended or could not be made. */
struct cv_tunnel_error {
    int err; /* 0: there was none */
    enum cv_tunnel_step step;
    char text[256];
};
const struct cv_tunnel_error *cv_tunnel_last_error(const struct cv_tunnel *t);

/* What happened within an attempt, for people: "TLSv1.3 TLS_AES_256_GCM_SHA384", the address. */
typedef void (*cv_tunnel_step_cb)(void *arg, enum cv_tunnel_step step, const char *detail);
void cv_tunnel_set_step_cb(struct cv_tunnel *t, cv_tunnel_step_cb cb, void *arg);

struct cv_tunnel_watch;
/* The state has changed; comes from the loop, never from inside a call on the tunnel but
 * cv_tunnel_free(), which tells nobody. The callback may start, stop, watch and unwatch. */
typedef void (*cv_tunnel_watch_cb)(struct cv_tunnel_watch *w, enum cv_tunnel_state state);
/* Embedded in its owner; 'cb' is set before cv_tunnel_watch(). */
struct cv_tunnel_watch {
    struct cv_list _node;
    cv_tunnel_watch_cb cb;
};
void cv_tunnel_watch(struct cv_tunnel *t, struct cv_tunnel_watch *w);
void cv_tunnel_unwatch(struct cv_tunnel_watch *w); /* not watching (all zero): nothing */
