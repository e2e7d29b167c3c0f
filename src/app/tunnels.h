/* The tunnels of the config: the stack thread, and on it an OpenVPN client (tunnel/tunnel.h) and an
 * exit (egress/exits.h) for each. All calls are the control thread's; what concerns a tunnel itself
 * is posted to the stack thread, which exists from the first tunnel on. */
#pragma once

#include "app/config.h"
#include "egress/exits.h"
#include "tunnel/tunnel.h"

struct cv_tunnels;

/* Read the profiles and passwords of 'c' and bring up what is new or has changed, and down what is
 * gone; what is the same is not touched. One that cannot be read is logged and left out: sessions
 * that need it are refused. *t is NULL as long as there was no tunnel. 0, or why there is no stack
 * thread. */
int cv_tunnels_apply(struct cv_tunnels **t, const struct cv_config *c) CV_MUST_CHECK;
/* What egresses dial by; NULL for NULL. */
struct cv_exits *cv_tunnels_exits(struct cv_tunnels *t);
/* Say good-bye to the servers and end the thread. Workers have been joined. NULL is accepted. */
void cv_tunnels_stop(struct cv_tunnels *t);
/* After the workers were freed. NULL is accepted. */
void cv_tunnels_free(struct cv_tunnels *t);

struct cv_tunnels_info {
    const char *name;
    enum cv_tunnel_state state;
    const struct cv_netif_stats *net;
    const struct cv_tunnel_stats *stats; /* NULL: it could not be made */
};
typedef void (*cv_tunnels_cb)(void *arg, const struct cv_tunnels_info *info);
void cv_tunnels_each(struct cv_tunnels *t, cv_tunnels_cb fn, void *arg);
