/* A UDP association: the datagrams of one client to any number of destinations, each decided by the
 * policy on its own, and the ways out that they take. It belongs to a session, which is its line in
 * the access log; the inbound protocol owns both, the client's socket and the framing.
 *
 * The life of a datagram from the client: the protocol hands over its payload and its destination
 * as written (cv_assoc_send). A small table remembers the canonical target and the verdict for what
 * was written, for as long as the same policy is in force. The verdict names an egress; the first
 * datagram for an egress opens a way out through it (egress.h, a dial for UDP) and waits in a
 * bounded queue, later ones take the way that is open. What cannot go where the verdict says is
 * dropped and counted, never sent another way. From each way, datagrams of any sender come back
 * through ops->deliver().
 *
 * Bounds: CV_ASSOC_WAYS ways out, CV_ASSOC_DESTS remembered destinations, CV_ASSOC_WAIT_* for what
 * waits. A way that no datagram has used for udp_timeout_ms is closed, its outside port with it.
 *
 * Everything ends with cv_assoc_end(); nothing that a datagram meets ends it. */
#pragma once

#include "flow/session.h"

#define CV_ASSOC_WAYS      8
#define CV_ASSOC_DESTS     128 /* a power of two */
#define CV_ASSOC_KEY_MAX   262
#define CV_ASSOC_WAIT_N    32
#define CV_ASSOC_WAIT_SIZE (64u << 10)

struct cv_assoc;
struct cv_assoc_dest;
struct cv_assoc_way;

/* One datagram from the client. */
struct cv_assoc_msg {
    const uint8_t *key; /* its destination as written, at most CV_ASSOC_KEY_MAX bytes */
    size_t key_len;
    const uint8_t *data;
    size_t len;
};

struct cv_assoc_ops {
    /* The canonical target of a key. 0, or a code: no such target. */
    int (*target)(const uint8_t *key, size_t key_len, struct cv_target *ret_target);
    /* Bring datagrams to the client; there are CV_DGRAM_HEADROOM bytes that may be written before
     * each payload. Says how many were sent and their payload bytes; the others are counted as
     * dropped. Must not end the association. */
    void (*deliver)(struct cv_assoc *a, struct cv_dgram_in *msgs, size_t n, size_t *ret_n,
                    size_t *ret_bytes);
    /* No datagram for idle_timeout_ms: the owner ends the association. */
    void (*idle)(struct cv_assoc *a);
};

struct cv_assoc {
    struct cv_session *_session; /* borrowed; embeds or outlives it */
    const struct cv_assoc_ops *_ops;
    struct cv_assoc_dest **_dests;   /* owned; NULL until the first datagram */
    struct cv_assoc_dest *_replaced; /* to be freed at the end of the running send */
    struct cv_list _ways;
    struct cv_timer _timer;
    int64_t _active_ms;
    uint32_t _n_ways;
    uint32_t _uses;       /* counts look-ups, to tell which of two destinations is older */
    uint64_t _late;       /* datagrams that were counted as carried and dropped after all */
    enum cv_stage _stage; /* where the first datagram that failed did */
    int _err;             /* 0: none has */
    struct cv_udp_counts counts;
    struct cv_rate_place _place[2]; /* up, down; in the line of the user's rate */
};

/* Let the session's user have an association: it takes a permit, as a connection does. 0, or a code
 * with the session failed. The session is in state RELAY then. */
int cv_assoc_start(struct cv_assoc *a, struct cv_session *s,
                   const struct cv_assoc_ops *ops) CV_MUST_CHECK;
/* Send up to CV_DGRAM_BATCH datagrams on their ways. */
void cv_assoc_send(struct cv_assoc *a, const struct cv_assoc_msg *msgs, size_t n);
/* Count 'n' datagrams that were dropped by the protocol. */
void cv_assoc_dropped(struct cv_assoc *a, enum cv_udp_drop why, size_t n);
/* Close all ways; 'counts' stay readable. Where no datagram got through, the first reason becomes
 * the session's. Not started: nothing. */
void cv_assoc_end(struct cv_assoc *a);
