/* One OpenVPN session with one server: from the first packet to the last, on a transport of its
 * own. It never tries again; the tunnel (tunnel.h) makes another one. */
#pragma once

#include "net/loop.h"
#include "net/pktif.h"
#include "tunnel/push.h"
#include "tunnel/tlschan.h"
#include "tunnel/tunnel.h"
#include "tunnel/wrap.h"

struct cv_client;

/* Why a session ended, for whoever decides about the next one. */
enum cv_client_end {
    CV_CLIENT_END_RETRY = 0, /* may be better next time */
    CV_CLIENT_END_AUTH,      /* the user or password was refused */
    CV_CLIENT_END_TRUST,     /* the server's certificate is not good */
    CV_CLIENT_END_HALT,      /* the server does not want us to come again */
    CV_CLIENT_END_TOKEN,     /* the token was refused: again with the password */
    CV_CLIENT_END_NEXT,      /* go on to the next server */
};

struct cv_client_ops {
    void (*on_step)(void *arg, enum cv_tunnel_step step, const char *detail);
    /* Packets travel; 'push' is valid during the call. */
    void (*on_up)(void *arg, const struct cv_push *push, uint32_t mtu, uint32_t mss);
    void (*on_packets)(void *arg, struct cv_pkt_in *pkts, size_t n);
    void (*on_writable)(void *arg);
    /* It is over; the callee calls cv_client_close(). 'backoff_s' > 0: the server's wish. */
    void (*on_end)(void *arg, enum cv_client_end end, int err, enum cv_tunnel_step step,
                   const char *text, uint32_t backoff_s);
};

struct cv_client_conf {
    const struct cv_profile *profile; /* borrowed for its life, as are the next two */
    struct cv_tlschan_ctx *tls;
    struct cv_tunnel_stats *stats;
    const struct cv_wrap *wrap;  /* keys; copied */
    const char *user, *password; /* copied; "" = none */
    bool password_is_token;
    struct cv_sockaddr to;
    bool tcp;
    int64_t timeout_ms; /* from now to up */
};

/* 0 or -errno; the result comes by callback. */
int cv_client_open(struct cv_loop *loop, const struct cv_client_conf *conf,
                   const struct cv_client_ops *ops, void *arg,
                   struct cv_client **ret_client) CV_MUST_CHECK;
/* End; 'bye': tell the server. No callback after this. NULL is accepted. Memory goes at the end of
 * the turn. */
void cv_client_close(struct cv_client *c, bool bye);
/* As cv_pktif_ops.send. */
size_t cv_client_send(struct cv_client *c, const struct cv_pkt_out *pkts, size_t n);
/* Start a renegotiation now, if none runs. */
void cv_client_renegotiate(struct cv_client *c);
