/* Counters by listener, egress and for the whole node. Rows are made by the control thread and live
 * until the node ends; any thread counts into them. */
#pragma once

#include "common/metrics.h"
#include "flow/stage.h"
#include "proto/sniff.h"

struct cv_row_stats { /* of a listener, an egress or a user */
    struct cv_gauge active;
    struct cv_counter sessions;
    struct cv_counter bytes_up, bytes_down;
    struct cv_counter refused[CV_STAGE_MAX];
};

struct cv_listener_stats {
    struct cv_row_stats row;
    char name[64];
    char protocol[16];
    struct cv_counter accepted;
    struct cv_counter rejected_full;       /* max_sessions was reached */
    struct cv_counter rejected_source;     /* no proxy whose PROXY header is believed */
    struct cv_counter rejected_handshakes; /* max_tls_handshakes was reached */
    struct cv_counter accept_pauses;       /* EMFILE and its kin */
    struct cv_counter sniff[CV_SNIFF_OUTCOMES];
};

struct cv_egress_stats {
    struct cv_row_stats row;
    struct cv_histogram dial; /* from the decision to the connection */
};

/* Why a datagram of a UDP association was dropped. */
enum cv_udp_drop {
    CV_UDP_DROP_MALFORMED = 0, /* its header, or the destination in it, is none */
    CV_UDP_DROP_FRAGMENT,
    CV_UDP_DROP_SOURCE, /* it is not from the client */
    CV_UDP_DROP_POLICY,
    CV_UDP_DROP_GUARD,
    CV_UDP_DROP_DNS,
    CV_UDP_DROP_EGRESS, /* there is no way out: not up, cannot carry UDP, or gone meanwhile */
    CV_UDP_DROP_LIMIT,  /* too many wait, or too many ways out */
    CV_UDP_DROP_RATE,   /* beyond the user's rate */
    CV_UDP_DROP_SEND,   /* the kernel did not take it: too large, no route, buffer full */
    CV_UDP_DROP_MAX
};
const char *cv_udp_drop_name(enum cv_udp_drop why); /* "policy" */

struct cv_node_stats {
    struct cv_gauge sessions;       /* live, over all threads; what max_sessions bounds */
    struct cv_gauge tls_handshakes; /* of clients, that are not over; bounded likewise */
    struct cv_counter auth_failed, auth_cached, auth_queue_full;
    struct cv_counter auth_backoff;      /* logins refused because too many before were wrong */
    struct cv_counter connections_limit; /* refused by the limits of connections per second */
    struct cv_counter revoked;           /* sessions ended because a policy no longer has them */
    struct cv_counter log_dropped;       /* access-log lines that found the queue full */
    struct cv_counter snapshot_swaps, snapshot_refused;
    struct cv_gauge udp_associations;
    struct cv_counter udp_up, udp_down; /* datagrams; up is from the client */
    struct cv_counter udp_dropped[CV_UDP_DROP_MAX];
};
