/* The admin HTTP API: health, readiness, status, live sessions, metrics. It lives on the control
 * thread's loop and reads the node through the view that app gives it; nothing here is on the way
 * of a payload byte. */
#pragma once

#include "control/source.h"
#include "control/status.h"
#include "egress/member.h"
#include "flow/account.h"
#include "flow/registry.h"
#include "flow/worker.h"
#include "net/tls.h"

struct cv_admin_conf {
    struct cv_sockaddr listen; /* TCP or Unix */
    const char *token;         /* copied; "" = none is asked for */
    /* 'fd' listens there already: it came from another process. Ownership moves, also on failure.
     */
    bool inherited;
    int fd;
};

/* One listener as it is now. Borrowed during the callback. */
struct cv_admin_listener {
    const char *name;
    const char *protocol;
    const char *address; /* the real one: the port that the kernel chose, for port 0 */
    bool tls;
    const struct cv_tls_server_ctx *tls_ctx; /* its certificates; NULL: none */
    const char *tls_error; /* why changed certificates were not taken; NULL: all is well */
};
typedef void (*cv_admin_listener_cb)(void *arg, const struct cv_admin_listener *l);

struct cv_netif_stats;
struct cv_tunnel_stats;
/* One tunnel as it is now. Borrowed during the callback. */
struct cv_admin_tunnel {
    const char *name;
    int state; /* enum cv_tunnel_state */
    const struct cv_netif_stats *net;
    const struct cv_tunnel_stats *stats; /* NULL: it could not be made */
};
typedef void (*cv_admin_tunnel_cb)(void *arg, const struct cv_admin_tunnel *t);

/* What the API can see. Copied by cv_admin_start(), with the text of node_id; everything else that
 * it points to is borrowed and outlives the API. */
struct cv_sync_status;

struct cv_admin_view {
    struct cv_node *node;
    struct cv_worker *const *workers; /* reached by cv_loop_post() only */
    size_t n_workers;
    struct cv_registry *registry;
    struct cv_accounts *accounts;
    const struct cv_source *source;
    const char *node_id;
    int64_t started_ms; /* unix ms */
    void *arg;          /* for the callbacks below, which are called on the control thread */
    void (*readiness)(void *arg, struct cv_readiness *ret);
    void (*each_listener)(void *arg, cv_admin_listener_cb fn, void *fn_arg);
    /* The members of all chains in force, and other egresses that are checked. */
    void (*each_member)(void *arg, cv_member_cb fn, void *fn_arg);
    /* How the snapshot is fetched; false, or NULL: it is not. */
    bool (*sync)(void *arg, struct cv_sync_status *ret);
    /* NULL: the node has none. */
    void (*each_tunnel)(void *arg, cv_admin_tunnel_cb fn, void *fn_arg);
};

struct cv_admin;
/* Start answering on the loop of the control thread. 0 or a negative code (-EADDRINUSE ...). */
int cv_admin_start(struct cv_loop *loop, const struct cv_admin_conf *conf,
                   const struct cv_admin_view *view, struct cv_admin **ret_admin) CV_MUST_CHECK;
/* Stop and free. Answers that wait for a worker are given up; what workers still hold of them is
 * released when they hand it back, so the workers must run or have been joined. NULL is accepted.
 */
void cv_admin_stop(struct cv_admin *a);
/* The listening socket; it stays the API's. */
int cv_admin_fd(const struct cv_admin *a);
/* Connections that are open, idle ones included. */
unsigned cv_admin_connections(const struct cv_admin *a);
/* Accept no more, and leave the socket and its file to another process that has it as well. What
 * is connected goes on. */
void cv_admin_leave(struct cv_admin *a);
/* The address that is answered on (the real port, for port 0); valid while it runs. */
const char *cv_admin_address(const struct cv_admin *a);
/* Another token from now on; copied. */
void cv_admin_set_token(struct cv_admin *a, const char *token);
