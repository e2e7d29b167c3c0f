/* The socket of one connection to a server: UDP or TCP, packets in batches.
 *
 * Packets to send are written straight into the output buffer: reserve, write, commit; they leave
 * together at the end of the loop's turn (or when the buffer is full), runs of equal length as one
 * GSO message. What a full socket does not take waits in the buffer; no room is the sender's sign
 * to wait for on_writable. Packets that come are handed over in batches, in the receive buffer,
 * where they may be changed. */
#pragma once

#include "common/addr.h"
#include "net/loop.h"
#include "net/pktif.h"

struct cv_transport;

struct cv_transport_ops {
    void (*on_open)(void *arg); /* TCP is connected; UDP: in the first turn */
    /* 1 <= n <= CV_PKTIF_BATCH. May close the transport. */
    void (*on_packets)(void *arg, struct cv_pkt_in *pkts, size_t n);
    /* All packets that are here for now were handed over. */
    void (*on_drained)(void *arg);
    void (*on_writable)(void *arg);
    /* -errno, -EPIPE at the end, CV_E_PROTO when what comes is no framing. UDP: an ICMP error,
     * which does not end it; TCP: it is over. */
    void (*on_error)(void *arg, int err);
};

/* 'ops' and 'arg' outlive it. The result comes by callback. 0 or -errno. */
int cv_transport_open(struct cv_loop *loop, const struct cv_sockaddr *to, bool tcp,
                      const struct cv_transport_ops *ops, void *arg,
                      struct cv_transport **ret_transport) CV_MUST_CHECK;
/* No callback comes after this; what waits is sent if the socket takes it at once. NULL is
 * accepted. Memory goes at the end of the turn. */
void cv_transport_close(struct cv_transport *t);

/* Room for a packet of up to 'len' bytes; NULL: the buffer is full, on_writable will come. Until
 * commit nothing else may be reserved. */
uint8_t *cv_transport_reserve(struct cv_transport *t, size_t len);
void cv_transport_commit(struct cv_transport *t, size_t len);
/* Send now what was committed. */
void cv_transport_flush(struct cv_transport *t);

/* What the route's MTU is now (bytes, with IP header), 0 = not known. */
uint32_t cv_transport_path_mtu(const struct cv_transport *t);
bool cv_transport_is_tcp(const struct cv_transport *t);
uint64_t cv_transport_bytes_in(const struct cv_transport *t);
uint64_t cv_transport_bytes_out(const struct cv_transport *t);
uint64_t cv_transport_dropped(const struct cv_transport *t); /* packets that the socket refused */
