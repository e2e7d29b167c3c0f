/* Messages with descriptors between two processes of this machine, over a Unix socket of type
 * SOCK_SEQPACKET: the kernel keeps the bounds of messages, and descriptors travel with the message
 * they belong to (SCM_RIGHTS). All descriptors are non-blocking; who waits is the caller's
 * business. cv_tcp_listen() with 'packets' makes the listening side. */
#pragma once

#include <sys/types.h>

#include "common/defs.h"

#define CV_PACKET_FDS_MAX 253 /* SCM_MAX_FD of Linux: in one message */

/* Connect to a socket file. 0 or -errno: -ENOENT, -ECONNREFUSED when nobody listens, -EAGAIN when
 * the listener's queue is full. */
int cv_packet_connect(const char *path, int *ret_fd) CV_MUST_CHECK;

struct cv_packet_peer {
    pid_t pid;
    uid_t uid;
};
/* Who connected, or who listened, when the connection was made (SO_PEERCRED). 0 or -errno. */
int cv_packet_peer(int fd, struct cv_packet_peer *ret_peer) CV_MUST_CHECK;
/* True if a process of that user may tell this one what to do: the same user, or root. */
bool cv_packet_peer_is_trusted(const struct cv_packet_peer *peer);

/* Send one message, whole or not at all, with copies of the descriptors. 0; -EAGAIN; -ETOOMANYREFS
 * when too many descriptors of this user are on their way; -errno. */
int cv_packet_send(int fd, const void *data, size_t len, const int *fds,
                   size_t n_fds) CV_MUST_CHECK;
/* Receive one message. The descriptors belong to the caller, are close-on-exec, and are none unless
 * the result is 0. -EAGAIN; -EPIPE at the end; CV_E_PROTO when the message is larger than 'cap' or
 * has more than 'fds_cap' descriptors; -EMFILE when this process could not take them all. */
int cv_packet_recv(int fd, void *data, size_t cap, size_t *ret_len, int *fds, size_t fds_cap,
                   size_t *ret_n_fds) CV_MUST_CHECK;
