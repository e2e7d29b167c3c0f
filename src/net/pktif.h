/* The packet interface: where a carrier of IP packets (a tunnel) and a TCP/IP stack meet. Neither
 * knows the other's headers.
 *
 * A struct cv_pktif belongs to the carrier, which embeds it, fills in the ops, 'mtu' and 'mss_max',
 * and outlives the stack's use of it. The stack attaches with cv_pktif_attach() and leaves with
 * cv_pktif_detach(). Both live on one loop; no call crosses threads.
 *
 * Packets go in batches, in both directions, and the bytes stay where they are:
 *
 *   out: the stack calls cv_pktif_send() with packets that are lists of pieces of its own buffers
 *        (headers, payload). They are the stack's and unchanged during the call; the carrier reads
 *        them there, once (it encrypts from them into its datagrams), and keeps no pointer. What it
 *        does not take is sent again by the stack once on_writable was called.
 *   in:  the carrier calls cv_pktif_input() with packets that lie whole in its own buffers (where
 *        it has decrypted them). They are the carrier's; the stack may write to them during the
 * call (it parses in place), copies the payload that it keeps, and keeps no pointer.
 *
 * So there is no copy on the way out and one on the way in.
 *
 * The stack sends from its timers, from calls of its users, and from inside on_input (ACKs); the
 * carrier may be called back from within cv_pktif_input(), but never calls on_input from within
 * cv_pktif_send(). A carrier that is not up takes no packet and says so with CV_PKTIF_DOWN; the
 * stack drops what it would have sent, for IP may lose packets. A carrier that reconnects keeps its
 * pktif: when it is up again it calls cv_pktif_changed(). */
#pragma once

#include <sys/uio.h>

#include "common/defs.h"

/* Most packets in one call, either way. */
#define CV_PKTIF_BATCH 64
/* Most pieces of one packet that is sent. */
#define CV_PKTIF_PIECES 4

struct cv_pktif;

/* A packet to send: an IPv4 or IPv6 packet with its checksums done. */
struct cv_pkt_out {
    struct iovec iov[CV_PKTIF_PIECES];
    unsigned iovcnt; /* at least 1; the first piece holds at least the whole IP header and, of TCP
                        and UDP, that header too */
    size_t len;      /* of all pieces; at most 'mtu' */
};

/* A packet received: not yet checked in any way. */
struct cv_pkt_in {
    uint8_t *data;
    size_t len;
};

#define CV_PKTIF_DOWN SIZE_MAX

struct cv_pktif_ops {
    /* The number of packets taken, from the front; the carrier's queue is full when it is less than
     * n, and it calls cv_pktif_writable() when there is room again. CV_PKTIF_DOWN: the carrier is
     * not up. 1 <= n <= CV_PKTIF_BATCH. */
    size_t (*send)(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n);
};

/* The stack's side. Any of them may detach. */
struct cv_pktif_user {
    /* Packets have come. 1 <= n <= CV_PKTIF_BATCH. */
    void (*on_input)(void *arg, struct cv_pkt_in *pkts, size_t n);
    /* Never from inside cv_pktif_send(). */
    void (*on_writable)(void *arg);
    /* 'mtu', 'mss_max' or 'up' may have changed. */
    void (*on_changed)(void *arg);
};

struct cv_pktif {
    const struct cv_pktif_ops *ops;
    uint32_t mtu;     /* longest IP packet, bytes; at least 576 (1280 for IPv6 to work) */
    uint32_t mss_max; /* largest TCP payload that the path carries well (mssfix), both directions;
                         0: what 'mtu' gives */
    bool up;          /* packets travel now */
    const struct cv_pktif_user *_user; /* NULL: nobody is attached */
    void *_arg;
};

static inline void cv_pktif_attach(struct cv_pktif *pi, const struct cv_pktif_user *user, void *arg)
{
    pi->_user = user;
    pi->_arg = arg;
}
static inline void cv_pktif_detach(struct cv_pktif *pi)
{
    pi->_user = NULL;
}
static inline bool cv_pktif_is_attached(const struct cv_pktif *pi)
{
    return pi->_user != NULL;
}

/* For the stack. */
static inline size_t cv_pktif_send(struct cv_pktif *pi, const struct cv_pkt_out *pkts, size_t n)
{
    return pi->up ? pi->ops->send(pi, pkts, n) : CV_PKTIF_DOWN;
}

/* For the carrier; nothing happens while nobody is attached. */
static inline void cv_pktif_input(struct cv_pktif *pi, struct cv_pkt_in *pkts, size_t n)
{
    if (pi->_user != NULL)
        pi->_user->on_input(pi->_arg, pkts, n);
}
static inline void cv_pktif_writable(struct cv_pktif *pi)
{
    if (pi->_user != NULL)
        pi->_user->on_writable(pi->_arg);
}
static inline void cv_pktif_changed(struct cv_pktif *pi)
{
    if (pi->_user != NULL)
        pi->_user->on_changed(pi->_arg);
}
