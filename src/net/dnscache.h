/* The table behind the resolver: what is being asked and what is known, by name and family. Known
 * answers are also kept in the order of their end (a binary heap), so that the one that ends first
 * goes when the table is full. Pure data: no clock, no I/O; entries belong to the resolver. */
#pragma once

#include "common/addr.h"
#include "common/list.h"

enum cv_dnsentry_state {
    CV_DNSENTRY_LOOSE = 0, /* not in the table; lives as long as someone waits for its answer */
    CV_DNSENTRY_FLYING,    /* in the table; a query is on its way */
    CV_DNSENTRY_HELD,      /* in the table and in order of end; the answer is known */
};

struct cv_dnsentry {
    struct cv_dnsentry *_next;
    uint64_t _hash;
    size_t _pos;            /* in the heap, valid while HELD */
    int64_t end_ms;         /* the answer is good before this time */
    struct cv_list waiters; /* queries that wait for the answer */
    struct cv_list due;     /* linked while the answer is to be delivered */
    void *owner;            /* borrowed: the resolver */
    struct cv_ip *ips;      /* owned; NULL when n is 0 */
    size_t n;
    int err; /* 0 or CV_E_DNS_* */
    uint8_t state;
    uint8_t family;
    uint8_t name_len;
    char name[];
};

struct cv_dnscache {
    struct cv_dnsentry **_heads; /* owned */
    size_t _n_heads;             /* a power of two */
    struct cv_dnsentry **_heap;  /* owned */
    size_t _cap;
    size_t _max;
    size_t n_held;
    size_t n_flying;
};

/* 'max' answers are held, 0 = none. 0 or -ENOMEM. */
int cv_dnscache_init(struct cv_dnscache *c, size_t max) CV_MUST_CHECK;
void cv_dnscache_done(struct cv_dnscache *c); /* nothing is in it */

/* A loose entry, or NULL without memory. 'name' is at most 253 bytes. */
struct cv_dnsentry *cv_dnsentry_new(const char *name, enum cv_family family) CV_MUST_CHECK;
void cv_dnsentry_free(struct cv_dnsentry *e); /* loose, nobody waits */

struct cv_dnsentry *cv_dnscache_find(const struct cv_dnscache *c, const char *name,
                                     enum cv_family family);
/* Loose -> flying. No entry of this name and family is in the table. */
void cv_dnscache_add(struct cv_dnscache *c, struct cv_dnsentry *e);
/* Flying -> held until 'end_ms', or loose when the table holds nothing or memory is short. Returns
 * the entry that had to go for it, now loose, or NULL. */
struct cv_dnsentry *cv_dnscache_hold(struct cv_dnscache *c, struct cv_dnsentry *e, int64_t end_ms);
/* Flying or held -> loose. */
void cv_dnscache_drop(struct cv_dnscache *c, struct cv_dnsentry *e);
/* The held entry that ends first, or NULL. */
struct cv_dnsentry *cv_dnscache_first(const struct cv_dnscache *c);
/* Any entry, or NULL when the table is empty. '*from' is 0 at first and spares a walk over buckets
 * already found empty: for taking the table down. */
struct cv_dnsentry *cv_dnscache_any(const struct cv_dnscache *c, size_t *from);
