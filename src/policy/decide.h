/* The decision: what happens to a user's wish to reach a host. A pure function of the snapshot.
 *
 * Rules of Rove's decide(): the smallest index of a matching route wins; a blocked requested host
 * or a blocked sniffed host is a block; for a requested IP literal an allowed sniffed name decides;
 * otherwise the requested host's route, otherwise the default action.
 *
 * A name meets domain selectors only, an address meets IP selectors only. An IPv6 address that
 * embeds an IPv4 address meets the rules of both, and the smaller route index wins, so that no
 * spelling of 10.0.0.1 dodges a rule for 10.0.0.0/8. */
#pragma once

#include "policy/snapshot.h"

enum cv_selector_kind {
    CV_SEL_NONE = 0, /* no rule matched: the default action */
    CV_SEL_SUFFIX,
    CV_SEL_FULL,
    CV_SEL_KEYWORD,
    CV_SEL_PREFIX, /* an address or CIDR */
};

struct cv_verdict {
    enum cv_action_type action;
    uint32_t egress; /* index, for CV_ACTION_EGRESS */
    uint32_t policy; /* index, or UINT32_MAX when the user is unknown */
    int32_t route;   /* 0-based, -1: none matched */
    bool by_sniffed; /* the sniffed host decided */
    /* The matched selector names special-purpose address space itself (its whole prefix is
     * special, e.g. 10.0.0.0/8 or 127.0.0.1): the direct egress may then dial that prefix. */
    bool names_special;
    struct cv_prefix special; /* that prefix */
};

/* 'user' is an index or CV_USER_NONE (block). 'sniffed' may be NULL. */
void cv_decide(const struct cv_snapshot *s, uint32_t user, const struct cv_host *requested,
               const struct cv_host *sniffed, struct cv_verdict *ret_verdict);

/* For people: the selector that a verdict's route was matched by. */
struct cv_selector_match {
    enum cv_selector_kind kind;
    uint32_t index; /* within the route, counting blank entries as the document does */
    char text[300]; /* as written in the document */
};
/* Find which selector of which route matches 'host' under the policy; kind CV_SEL_NONE if none.
 * Returns the route index or -1. Slower than cv_decide(); for explain and for tests. */
int32_t cv_decide_explain(const struct cv_snapshot *s, uint32_t policy, const struct cv_host *host,
                          struct cv_selector_match *ret_match);
/* A selector that can match no host, because it is none: an address with a typing error, say, which
 * counts as the suffix of names. 'route' and 'm->index' as in the document. */
typedef void (*cv_decide_dead_cb)(void *arg, const char *policy, uint32_t route,
                                  const struct cv_selector_match *m);
/* Name all of them; for people. */
void cv_decide_each_dead(const struct cv_snapshot *s, cv_decide_dead_cb cb, void *arg);
/* "direct", "block", or the egress label; borrowed from the snapshot. */
struct cv_rcstr *cv_verdict_label(const struct cv_snapshot *s, const struct cv_verdict *v);
