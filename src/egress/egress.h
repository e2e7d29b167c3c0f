/* The kinds of egress that this node has. direct.c dials by itself; upstream.c goes through an HTTP
 * or SOCKS5 proxy; chain.c tries others, one after another; kinds that are not built yet are
 * represented by unavailable.c, whose every dial fails with CV_STAGE_EGRESS: what a policy sends to
 * them is refused, never sent another way. */
#pragma once

#include "flow/egress.h"
#include "proto/proxy_protocol.h"

struct cv_tls_client_ctx;

/* The direct egress: resolve, check each address, connect by Happy Eyeballs. Takes settings
 * (prefer, allow, timeouts) and the resolver from the dial's worker. NULL: no memory, for both. */
struct cv_egress *cv_egress_direct_new(struct cv_egress_stats *stats);

/* What the snapshot does not say about an upstream. */
struct cv_upstream_opts {
    struct cv_tls_client_ctx *tls; /* where the backend says 'tls'; the egress takes a reference */
    enum cv_proxy_protocol_version proxy_protocol; /* header that the proxy wants of us */
};
/* Where the proxy is: "host:port" with an IPv6 address in brackets; blanks around it are taken off,
 * as around other texts of the document. 0 or CV_E_PARSE. */
int cv_egress_upstream_addr(const struct cv_rcstr *addr, struct cv_target *ret_server);
/* The proxy of a backend of kind HTTP or SOCKS5. One whose address is not host:port fails at each
 * dial. NULL: no memory. */
struct cv_egress *cv_egress_upstream_new(const struct cv_backend *backend,
                                         const struct cv_upstream_opts *opts,
                                         struct cv_egress_stats *stats);

/* Stands for what this node does not have. */
struct cv_egress *cv_egress_unavailable_new(const struct cv_egress_def *def,
                                            struct cv_egress_stats *stats);

struct cv_member;
struct cv_members;
/* The failover chain of 'def': its members are made by 'factory', as egresses of their own, and
 * tried one after another (order.h) within the time limits of the worker's settings. Only
 * establishment fails over. When all have failed the dial fails with CV_STAGE_CHAIN_EXHAUSTED;
 * nothing else is ever tried. The members' state is found in 'members', which outlives it. 'now_ms'
 * is the loops' clock. NULL: no memory. */
struct cv_egress *cv_egress_chain_new(const struct cv_egress_def *def,
                                      struct cv_egress_stats *stats, struct cv_members *members,
                                      cv_egress_factory_cb factory, void *factory_arg,
                                      int64_t now_ms);
/* The number of members; 0 for an egress of another kind. */
unsigned cv_egress_chain_count(const struct cv_egress *e);
/* The i-th member by priority; all borrowed from 'e'. */
struct cv_egress *cv_egress_chain_get(const struct cv_egress *e, unsigned i,
                                      struct cv_member **ret_member, uint32_t *ret_priority);

/* 0 when 'ip' may be dialled: global, or covered by 'allow', or within the special prefix that the
 * policy's selector names. Else CV_E_GUARD. Pure; exposed for tests and for explain. An IPv6
 * address that embeds a special IPv4 address must be granted for both: a grant for 127.0.0.0/8 does
 * not open 2002:7f00:1::. IPv4-mapped addresses are the IPv4 address. */
int cv_egress_guard(const struct cv_ip *ip, const struct cv_prefix *allow, size_t n_allow,
                    bool names_special, const struct cv_prefix *special);
