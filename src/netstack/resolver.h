/* Resolving names through an interface of the stack: the questions leave by the tunnel and nowhere
 * else. One resolver per interface, with a cache of its own, so that two tunnels may give different
 * answers for one name.
 *
 * A question goes to the first server over UDP, from a port of its own; without an answer in 1.5 s
 * to the next one, two rounds over all (then 3 s). A truncated answer is asked for again over TCP.
 * Answers are kept for their TTL (1 s to 1 h), "no such name" for 30 s, failures for 1 s; equal
 * questions in flight are one. */
#pragma once

#include "netstack/netstack.h"

#define CV_RESOLVER_SERVERS_MAX 8
#define CV_RESOLVER_CACHE       4096
#define CV_RESOLVER_FLYING      1024

struct cv_resolver;
struct cv_resolve;
/* err 0 with n >= 1 addresses (valid during the call), or CV_E_DNS_NXDOMAIN, CV_E_DNS_TIMEOUT,
 * CV_E_DNS_FAIL (also without any server, or with too many questions in flight). */
typedef void (*cv_resolve_cb)(struct cv_resolve *q, int err, const struct cv_ip *ips, size_t n);

/* Embedded in its owner, who sets 'cb'; zeroed before its first use. */
struct cv_resolve {
    struct cv_list _node;
    void *_entry; /* NULL while not running */
    cv_resolve_cb cb;
};

struct cv_resolver_stats {
    struct cv_counter queries, cache_hits, failures, timeouts, over_tcp;
};

/* The interface outlives the resolver. -ENOMEM. */
int cv_resolver_new(struct cv_netif *nif, struct cv_resolver **ret_resolver) CV_MUST_CHECK;
/* Questions in flight end without a callback. NULL is accepted. */
void cv_resolver_free(struct cv_resolver *r);
/* Other servers than before: the cache is emptied. Port 0 is 53. */
void cv_resolver_set_servers(struct cv_resolver *r, const struct cv_endpoint *servers, size_t n);
/* 'name' is canonical. The callback comes later, never from inside this call. */
void cv_resolve_start(struct cv_resolve *q, struct cv_resolver *r, const char *name,
                      enum cv_family family);
void cv_resolve_cancel(struct cv_resolve *q);
const struct cv_resolver_stats *cv_resolver_stats(const struct cv_resolver *r);
