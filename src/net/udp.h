/* UDP sockets, many datagrams to a system call.
 *
 * A UDP socket reports what happened to datagrams that it sent earlier (ICMP errors) by failing
 * some later call that has nothing to do with them. Such an error is taken off and the call made
 * again: it neither ends the socket nor costs the datagram at hand.
 *
 * What this file does not do: register with a loop, resolve names, choose who may send. */
#pragma once

#include "net/dgram.h"

/* A non-blocking socket bound to 'sa' (port 0: the kernel chooses); [::] takes IPv6 only. 0 or
 * -errno. */
int cv_udp_open(const struct cv_sockaddr *sa, int *ret_fd) CV_MUST_CHECK;

/* Receive up to 'n' (<= CV_DGRAM_BATCH) datagrams with their senders. 0 and *ret_n datagrams, which
 * may be fewer than there are, even none; -EAGAIN: there are none, an event will tell of the next.
 * One that does not fit into its buffer is left out. */
int cv_udp_recv(int fd, struct cv_dgram_in *msgs, size_t n, size_t *ret_n);

struct cv_udp_out {
    const struct cv_endpoint *to; /* NULL: the socket is connected */
    struct iovec iov[2];          /* header and payload; iov[1].iov_len 0: the first is all */
    int err;                      /* set by send: 0 or -errno */
};
/* Send each of 'n' (<= CV_DGRAM_BATCH) datagrams; one that fails does not stop those behind it. */
void cv_udp_send(int fd, struct cv_udp_out *msgs, size_t n);
