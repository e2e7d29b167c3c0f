#include "common/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/torture.h"

#include "common/poison.h"

/* Repeat 'call' while a signal interrupts it; its result, or -errno. */
#define RETRY(call)                                                                                \
    ({                                                                                             \
        int r_;                                                                                    \
        do                                                                                         \
            r_ = (call);                                                                           \
        while (r_ < 0 && errno == EINTR);                                                          \
        r_ < 0 ? -errno : r_;                                                                      \
    })

/* The same for calls that count bytes: 0 and the count, or -errno. */
#define RETRY_N(call, ret_n)                                                                       \
    ({                                                                                             \
        ssize_t n_;                                                                                \
        do                                                                                         \
            n_ = (call);                                                                           \
        while (n_ < 0 && errno == EINTR);                                                          \
        if (n_ >= 0)                                                                               \
            *(ret_n) = (size_t)n_;                                                                 \
        n_ < 0 ? -errno : 0;                                                                       \
    })

int cv_sys_socket(int domain, int type, int proto)
{
    if (cv_torture_fail("socket"))
        return -EMFILE;
    return RETRY(socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, proto));
}

int cv_sys_accept(int fd, struct sockaddr *sa, socklen_t *len)
{
    if (cv_torture_fail("accept"))
        return -EMFILE;
    return RETRY(accept4(fd, sa, len, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

int cv_sys_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
    if (cv_torture_fail("connect"))
        return -ENETUNREACH;
    if (connect(fd, sa, len) == 0)
        return 0;
    /* An interrupted connect goes on in the background; to call it again would give EALREADY. */
    return errno == EINTR ? -EINPROGRESS : -errno;
}

int cv_sys_bind(int fd, const struct sockaddr *sa, socklen_t len)
{
    if (cv_torture_fail("bind"))
        return -EADDRINUSE;
    return RETRY(bind(fd, sa, len));
}

int cv_sys_listen(int fd, int backlog)
{
    if (cv_torture_fail("listen"))
        return -EADDRINUSE;
    return RETRY(listen(fd, backlog));
}

int cv_sys_setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
    if (cv_torture_fail("setsockopt"))
        return -ENOBUFS;
    return RETRY(setsockopt(fd, level, name, val, len));
}

int cv_sys_epoll_create(void)
{
    if (cv_torture_fail("epoll_create"))
        return -EMFILE;
    return RETRY(epoll_create1(EPOLL_CLOEXEC));
}

int cv_sys_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev)
{
    /* Taking a descriptor out cannot run short of anything, and callers may rely on that. */
    if (op != EPOLL_CTL_DEL && cv_torture_fail("epoll_ctl"))
        return -ENOMEM;
    return RETRY(epoll_ctl(ep, op, fd, ev));
}

int cv_sys_eventfd(void)
{
    if (cv_torture_fail("eventfd"))
        return -EMFILE;
    return RETRY(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

int cv_sys_pipe(int fds[2])
{
    if (cv_torture_fail("pipe"))
        return -EMFILE;
    return RETRY(pipe2(fds, O_CLOEXEC | O_NONBLOCK));
}

int cv_sys_open(const char *path, int flags, mode_t mode)
{
    if (cv_torture_fail("open"))
        return -EMFILE;
    return RETRY(open(path, flags | O_CLOEXEC, mode));
}

int cv_sys_recv(int fd, void *buf, size_t len, int flags, size_t *ret_n)
{
    if (cv_torture_fail("recv"))
        return -ECONNRESET;
    return RETRY_N(recv(fd, buf, len, flags), ret_n);
}

int cv_sys_send(int fd, const void *buf, size_t len, int flags, size_t *ret_n)
{
    if (cv_torture_fail("send"))
        return -ECONNRESET;
    return RETRY_N(send(fd, buf, len, flags | MSG_NOSIGNAL), ret_n);
}

int cv_sys_sendv(int fd, const struct iovec *iov, int n, int flags, size_t *ret_n)
{
    if (cv_torture_fail("send"))
        return -ECONNRESET;
    /* sendmsg does not write to what msg_iov points to; the type is older than const. */
    struct msghdr msg = {
        .msg_iov = (struct iovec *)(uintptr_t)iov,
        .msg_iovlen = (size_t)n,
    };
    return RETRY_N(sendmsg(fd, &msg, flags | MSG_NOSIGNAL), ret_n);
}

int cv_sys_recvmmsg(int fd, struct mmsghdr *msgs, size_t n, size_t *ret_n)
{
    if (cv_torture_fail("recvmmsg"))
        return -ENOMEM;
    return RETRY_N(recvmmsg(fd, msgs, (unsigned)n, 0, NULL), ret_n);
}

int cv_sys_sendmmsg(int fd, struct mmsghdr *msgs, size_t n, size_t *ret_n)
{
    if (cv_torture_fail("sendmmsg"))
        return -ENOBUFS;
    return RETRY_N(sendmmsg(fd, msgs, (unsigned)n, MSG_NOSIGNAL), ret_n);
}

int cv_sys_sendmsg(int fd, const struct msghdr *msg, int flags, size_t *ret_n)
{
    if (cv_torture_fail("sendmsg"))
        return -ECONNRESET;
    return RETRY_N(sendmsg(fd, msg, flags | MSG_NOSIGNAL), ret_n);
}

int cv_sys_recvmsg(int fd, struct msghdr *msg, int flags, size_t *ret_n)
{
    if (cv_torture_fail("recvmsg"))
        return -ECONNRESET;
    return RETRY_N(recvmsg(fd, msg, flags | MSG_CMSG_CLOEXEC), ret_n);
}

int cv_sys_splice(int fd_in, int fd_out, size_t len, unsigned flags, size_t *ret_n)
{
    if (cv_torture_fail("splice"))
        return -ECONNRESET;
    return RETRY_N(splice(fd_in, NULL, fd_out, NULL, len, flags), ret_n);
}

void cv_sys_close(int fd)
{
    /* Never repeated: Linux has released the number even when close reports EINTR. */
    if (fd >= 0)
        close(fd);
}
