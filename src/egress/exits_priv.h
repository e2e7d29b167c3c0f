/* What the files of the tunnel egress share. */
#pragma once

#include "egress/exits.h"

struct cv_exits {
    struct cv_loop *loop;   /* borrowed */
    struct cv_netstack *ns; /* borrowed */
    struct cv_list exits;
};

struct cv_exit {
    struct cv_list node; /* in exits.exits */
    struct cv_exits *exits;
    enum cv_exit_state state;
    struct cv_netif *nif;         /* owned */
    struct cv_resolver *resolver; /* owned */
    struct cv_list dials;         /* struct cv_exit_dial on their way */
    struct cv_list flows;         /* struct flow of exit_udp.c */
    size_t n_dials;
    char name[];
};

/* A dial on its way: told by a worker, answered by the stack thread. */
struct cv_exit_dial {
    struct cv_list node; /* in exit.dials */
    struct cv_dial *d;   /* the worker's; NULL: given up */
    struct cv_exits *exits;
    struct cv_loop *worker_loop;
    struct cv_task start, cancel, answer;
    _Atomic unsigned refs;
    bool udp, started, resolving, answered; /* stack thread */
    struct cv_exit *exit;
    struct cv_target target;
    enum cv_family prefer;
    int64_t deadline_ms;
    struct cv_timer timer; /* of the whole, or of one attempt */
    struct cv_resolve q4, q6;
    int dns_err;
    struct cv_ip ips[32];
    unsigned n_ips, next_ip;
    struct cv_net_connect connect;
    int connect_err;
    /* The answer. */
    int err;
    enum cv_stage stage;
    enum cv_blame blame;
    struct cv_crossing *crossing;
    struct cv_crossing_udp *crossing_udp;
    struct cv_endpoint local, peer;
    char name[];
};

/* exit_dial.c */
void cv_exit_dial_connect(struct cv_egress *e, struct cv_dial *d, struct cv_exits *x,
                          const char *name, bool udp);
void cv_exit_dial_cancel(struct cv_dial *d);
/* The exit's state has changed. */
void cv_exit_dials_look(struct cv_exit *e);
/* The exit goes away. */
void cv_exit_dials_refuse(struct cv_exit *e);
/* exit_udp.c */
int cv_exit_udp_open(struct cv_exit *e, struct cv_loop *worker_loop,
                     struct cv_crossing_udp **ret_crossing);
void cv_exit_flows_end(struct cv_exit *e);
/* 0, or CV_E_GUARD. */
int cv_exit_guard(const struct cv_ip *ip);
