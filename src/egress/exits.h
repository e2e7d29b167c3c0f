/* The tunnels of this node as ways out, by name: each exit is one tunnel's packet interface with an
 * interface of the netstack on it and a resolver that asks through it.
 *
 * All of it lives on the stack thread's loop. Workers reach it through the egress of kind tunnel
 * (cv_egress_tunnel_new()), which posts its dials there; what is connected comes back as a crossing
 * (net/crossing.h). A dial for an exit that is not up waits as long as the dial may take, at most
 * CV_EXIT_WAIT_MS, and is then refused with CV_STAGE_TUNNEL_DOWN; so is one for a name that this
 * node does not have. Nothing ever leaves another way.
 *
 * Names are resolved through the exit. Addresses of this machine itself (loopback, unspecified) and
 * multicast are refused: they mean nothing at the far end. */
#pragma once

#include "flow/egress.h"
#include "netstack/netstack.h"
#include "netstack/resolver.h"

#define CV_EXIT_WAIT_MS     10000
#define CV_EXIT_WAITING_MAX 4096 /* dials that wait for one exit */

struct cv_exits;
struct cv_exit;

enum cv_exit_state {
    CV_EXIT_DOWN = 0, /* and it will not come up by itself: dials are refused at once */
    CV_EXIT_COMING,   /* dials wait */
    CV_EXIT_UP,
};

/* 'loop' and 'ns' outlive it, and 'loop' all workers' loops. -ENOMEM. */
int cv_exits_new(struct cv_loop *loop, struct cv_netstack *ns,
                 struct cv_exits **ret_exits) CV_MUST_CHECK;
/* Removes what is left. No dial may be on its way. NULL is accepted. */
void cv_exits_free(struct cv_exits *x);

/* 'pi' and 'stats' outlive the exit. CV_E_EXISTS: the name is taken; -EMFILE; -ENOMEM. */
int cv_exit_add(struct cv_exits *x, const char *name, struct cv_pktif *pi,
                struct cv_netif_stats *stats, struct cv_exit **ret_exit) CV_MUST_CHECK;
/* What the tunnel says; 'addresses' and 'dns' are looked at when it is up, and borrowed during the
 * call. Addresses that differ from those before end what was open. */
void cv_exit_update(struct cv_exit *e, enum cv_exit_state state,
                    const struct cv_net_addresses *addresses, const struct cv_endpoint *dns,
                    size_t n_dns);
/* Everything that is open through it ends; dials that wait are refused. NULL is accepted. */
void cv_exit_remove(struct cv_exit *e);
struct cv_exit *cv_exit_find(const struct cv_exits *x, const char *name);
struct cv_netif *cv_exit_netif(struct cv_exit *e);
struct cv_resolver *cv_exit_resolver(struct cv_exit *e);

/* The egress of a backend of kind tunnel; 'exits' outlives it and NULL stands for a node without
 * tunnels. NULL: no memory. */
struct cv_egress *cv_egress_tunnel_new(const struct cv_egress_def *def, struct cv_exits *exits,
                                       const char *name, struct cv_egress_stats *stats);
