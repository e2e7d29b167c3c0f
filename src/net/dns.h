/* Resolving host names, without blocking, by c-ares: one resolver per loop, with a bounded cache.
 *
 * A query asks for one family. Answers are cached for their TTL (at least 1 s, at most 1 h), "no
 * such name" and "no such record" for 30 s, failures for 1 s; equal queries in flight are joined.
 * hosts(5) is honoured. When the cache is full the entries that end first go.
 *
 * Names are absolute: no search domain is ever appended. "localhost" and what ends in ".localhost"
 * is loopback without asking anyone (RFC 6761). A changed hosts file or, when the servers are those
 * of the system, a changed resolv.conf is taken up within seconds; questions in flight are then
 * asked again of the new servers. */
#pragma once

#include "common/addr.h"
#include "common/metrics.h"
#include "net/loop.h"

#define CV_DNS_ADDRS_MAX 16

struct cv_dns_conf {
    const char *const
        *servers;       /* "1.1.1.1", "1.1.1.1:5353", "[::1]:53"; borrowed during the call */
    size_t n_servers;   /* 0 = those of the system */
    int64_t timeout_ms; /* of one attempt; doubled in each round over the servers; 0 = 2000 */
    int attempts;       /* per server; 0 = 2 */
    size_t cache_size;  /* entries; 0 = no cache */
};

struct cv_dns_stats {
    struct cv_counter queries;    /* started */
    struct cv_counter cache_hits; /* answered by the cache */
    struct cv_counter failures;   /* questions that ended in CV_E_DNS_FAIL */
    struct cv_counter timeouts;   /* questions that ended in CV_E_DNS_TIMEOUT */
};

struct cv_dns;
/* 'stats' is borrowed (outlives the resolver) and may be shared between threads. 0, CV_E_INVALID
 * when a server does not parse, -ENOMEM. */
int cv_dns_new(struct cv_loop *loop, const struct cv_dns_conf *conf, struct cv_dns_stats *stats,
               struct cv_dns **ret_dns) CV_MUST_CHECK;
/* Queries in flight end without a callback. May be called from a query's callback. */
void cv_dns_free(struct cv_dns *dns);

struct cv_dns_query;
/* err 0 with n >= 1 addresses (valid during the call), or CV_E_DNS_NXDOMAIN, CV_E_DNS_TIMEOUT,
 * CV_E_DNS_FAIL. */
typedef void (*cv_dns_cb)(struct cv_dns_query *q, int err, const struct cv_ip *ips, size_t n);

/* Embedded in its owner, zeroed before its first use. */
struct cv_dns_query {
    struct cv_list _node;
    void *_flight; /* NULL while not running */
    cv_dns_cb cb;  /* set before start */
};
/* 'name' is canonical (common/name.h). The callback comes later, never from inside this call. */
void cv_dns_query_start(struct cv_dns_query *q, struct cv_dns *dns, const char *name,
                        enum cv_family family);
/* No callback will come. Not running: nothing. */
void cv_dns_query_cancel(struct cv_dns_query *q);
