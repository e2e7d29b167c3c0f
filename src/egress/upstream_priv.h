/* Opening a connection through an upstream proxy: what CONNECT and, later, other commands of SOCKS5
 * have in common.
 *
 * An open goes through: the proxy's host is resolved and dialled by Happy Eyeballs; a PROXY
 * protocol header, if it wants one; TLS, if it has it; then the proxy's own protocol, until its
 * reply is there. All of that has one deadline: a proxy that sends a byte now and then gains
 * nothing by it. What came behind the reply is the first payload of the stream that is handed over.
 *
 * The target's name is not resolved here but sent to the proxy as it is; an address is sent as an
 * address. The address of the proxy itself is the operator's choice, so the guard of private
 * addresses is not asked about it. */
#pragma once

#include "common/rcstr.h"
#include "common/target.h"
#include "flow/egress.h"
#include "net/stream.h"
#include "net/tls.h"
#include "policy/snapshot.h"
#include "proto/proxy_protocol.h"
#include "proto/socks5.h"

struct cv_egress;
struct cv_worker;

/* How one proxy is reached and spoken to; immutable, part of its egress. */
struct cv_upstream {
    enum cv_backend_kind kind;     /* HTTP or SOCKS5 */
    struct cv_target server;       /* port 0: 'addr' was not host:port, every open fails */
    struct cv_rcstr *user;         /* a reference; NULL: no login */
    struct cv_rcstr *pass;         /* a reference; NULL: none, or empty */
    struct cv_tls_client_ctx *tls; /* a reference; NULL: plain */
    enum cv_proxy_protocol_version proxy_protocol;
};

/* What is wanted; borrowed until the answer or the cancel. */
struct cv_upstream_request {
    struct cv_worker *worker;
    enum cv_socks5_cmd cmd;         /* HTTP knows CONNECT only */
    const struct cv_target *target; /* UDP: 0.0.0.0:0, or where the datagrams will come from */
    struct cv_endpoint client;      /* for the PROXY protocol; no family: unknown */
    int64_t deadline_ms;            /* on the loop's clock */
    enum cv_blame *blame;           /* kept up to date as it gets on; NULL: not wanted */
};

struct cv_upstream_answer {
    int err;
    enum cv_stage stage;      /* where it failed: dns, dial, tls, outbound */
    struct cv_stream *stream; /* the receiver's when err is 0; for UDP the control connection */
    struct cv_endpoint bnd;   /* what the proxy said; no family: it did not, or wrote a name; 'port'
                                 is   valid then, too */
    struct cv_endpoint peer;  /* the proxy's address, if a connection was made */
};

struct cv_upstream_open;
/* Comes once, from the loop; the open is gone. */
typedef void (*cv_upstream_cb)(void *arg, const struct cv_upstream_answer *answer);

/* How the proxy of an upstream egress is reached; NULL for another kind of egress. */
const struct cv_upstream *cv_upstream_of(struct cv_egress *e);

/* 0, or a code when nothing was started: CV_E_INVALID (no valid address; stage dial),
 * CV_E_UNSUPPORTED (the proxy's protocol does not have the command; stage outbound), -ENOMEM. 'u'
 * and 'request' outlive it. */
int cv_upstream_open(const struct cv_upstream *u, const struct cv_upstream_request *request,
                     cv_upstream_cb cb, void *arg,
                     struct cv_upstream_open **ret_open) CV_MUST_CHECK;
/* The stage of a code that cv_upstream_open() itself gave. */
enum cv_stage cv_upstream_open_stage(int err);
/* Give up: no callback comes, everything is released. NULL: nothing. */
void cv_upstream_cancel(struct cv_upstream_open *o);
