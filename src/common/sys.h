/* System calls that can fail for reasons outside of this program, as functions that return 0 or a
 * value >= 0, or -errno. The torture build counts them together with cv_try_alloc() and makes the
 * Nth one fail (see torture.h), so code that calls them is known to survive each failure. EINTR is
 * retried here. Descriptors are created close-on-exec and non-blocking, except that cv_sys_open()
 * adds close-on-exec only. Sending never raises SIGPIPE, but splice has no flag for that: the
 * program ignores the signal. */
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "common/defs.h"

int cv_sys_socket(int domain, int type, int proto);
int cv_sys_accept(int fd, struct sockaddr *sa, socklen_t *len);
int cv_sys_connect(int fd, const struct sockaddr *sa, socklen_t len); /* -EINPROGRESS is usual */
int cv_sys_bind(int fd, const struct sockaddr *sa, socklen_t len);
int cv_sys_listen(int fd, int backlog);
int cv_sys_setsockopt(int fd, int level, int name, const void *val, socklen_t len);
int cv_sys_epoll_create(void);
int cv_sys_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev);
int cv_sys_eventfd(void);
int cv_sys_pipe(int fds[2]);
int cv_sys_open(const char *path, int flags, mode_t mode);

/* Byte counts go to *ret_n; 0 bytes with result 0 means end of stream for the receiving ones. */
int cv_sys_recv(int fd, void *buf, size_t len, int flags, size_t *ret_n);
int cv_sys_send(int fd, const void *buf, size_t len, int flags, size_t *ret_n);
int cv_sys_sendv(int fd, const struct iovec *iov, int n, int flags, size_t *ret_n);
/* Several datagrams at once; *ret_n of them, at least one with result 0. */
struct mmsghdr;
int cv_sys_recvmmsg(int fd, struct mmsghdr *msgs, size_t n, size_t *ret_n);
int cv_sys_sendmmsg(int fd, struct mmsghdr *msgs, size_t n, size_t *ret_n);
/* Messages with descriptors. The flags of the received one are in msg->msg_flags; descriptors in it
 * are close-on-exec. */
int cv_sys_sendmsg(int fd, const struct msghdr *msg, int flags, size_t *ret_n);
int cv_sys_recvmsg(int fd, struct msghdr *msg, int flags, size_t *ret_n);
int cv_sys_splice(int fd_in, int fd_out, size_t len, unsigned flags, size_t *ret_n);

/* Close a descriptor; < 0 is accepted and ignored. */
void cv_sys_close(int fd);
