#include "net/udp.h"

#include <errno.h>

#include "common/sys.h"

#include "common/poison.h"

/* Old errors that one call takes off before it gives up for now. */
#define OLD_ERRORS_MAX 8

int cv_udp_open(const struct cv_sockaddr *sa, int *ret_fd)
{
    int fd = cv_sys_socket(sa->sa.sa_family, SOCK_DGRAM, 0);
    if (fd < 0)
        return fd;
    int ret = 0, on = 1;
    if (sa->sa.sa_family == AF_INET6)
        ret = cv_sys_setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (ret == 0)
        ret = cv_sys_bind(fd, &sa->sa, sa->len);
    if (ret < 0) {
        cv_sys_close(fd);
        return ret;
    }
    *ret_fd = fd;
    return 0;
}

/* True for what the network said about an earlier datagram. */
static bool is_old_error(int err)
{
    switch (err) {
    case -ECONNREFUSED:
    case -ECONNRESET:
    case -EHOSTUNREACH:
    case -EHOSTDOWN:
    case -ENETUNREACH:
    case -ENETDOWN:
    case -ENONET:
    case -EPROTO:
    case -ENOPROTOOPT:
    case -EOPNOTSUPP:
    case -EMSGSIZE:
    case -EACCES:
    case -EPERM:
    case -ETIMEDOUT:
        return true;
    default:
        return false;
    }
}

int cv_udp_recv(int fd, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    struct cv_sockaddr from[CV_DGRAM_BATCH];
    struct mmsghdr hdr[CV_DGRAM_BATCH];
    struct iovec iov[CV_DGRAM_BATCH];
    CV_ASSERT(n <= CV_DGRAM_BATCH);
    for (size_t i = 0; i < n; i++) {
        iov[i] = (struct iovec){.iov_base = msgs[i].buf, .iov_len = msgs[i].cap};
        hdr[i].msg_hdr = (struct msghdr){
            .msg_name = &from[i].sa,
            .msg_namelen = sizeof(from[i].in6),
            .msg_iov = &iov[i],
            .msg_iovlen = 1,
        };
    }
    size_t got = 0;
    int ret = 0;
    for (int i = 0; i < OLD_ERRORS_MAX; i++) {
        ret = cv_sys_recvmmsg(fd, hdr, n, &got);
        if (ret == 0 || !is_old_error(ret))
            break;
    }
    /* What is left is -EAGAIN or a lack of memory: either way the next datagram brings an event. */
    if (ret != 0 && !is_old_error(ret))
        return -EAGAIN;
    if (ret != 0)
        got = 0;
    size_t kept = 0;
    for (size_t i = 0; i < got; i++) {
        if (hdr[i].msg_hdr.msg_flags & MSG_TRUNC)
            continue;
        /* Buffers trade places, so that none is in two messages. */
        uint8_t *buf = msgs[i].buf;
        msgs[i].buf = msgs[kept].buf;
        msgs[kept].buf = msgs[kept].data = buf;
        msgs[kept].len = hdr[i].msg_len;
        msgs[kept].name = NULL;
        cv_endpoint_from_sockaddr(&msgs[kept].from, &from[i].sa);
        kept++;
    }
    *ret_n = kept;
    return 0;
}

/* Send msgs[0..n) until one fails; *ret_n went out. 0, or what the first of the rest met. */
static int send_some(int fd, struct mmsghdr *hdr, size_t n, size_t *ret_n)
{
    int ret = -EAGAIN;
    *ret_n = 0;
    for (int i = 0; i < OLD_ERRORS_MAX; i++) {
        ret = cv_sys_sendmmsg(fd, hdr, n, ret_n);
        /* -ECONNREFUSED is never about the datagram at hand. */
        if (ret != -ECONNREFUSED)
            break;
    }
    return ret;
}

void cv_udp_send(int fd, struct cv_udp_out *msgs, size_t n)
{
    struct cv_sockaddr to[CV_DGRAM_BATCH];
    struct mmsghdr hdr[CV_DGRAM_BATCH];
    CV_ASSERT(n <= CV_DGRAM_BATCH);
    for (size_t i = 0; i < n; i++) {
        struct cv_udp_out *m = &msgs[i];
        m->err = 0;
        hdr[i].msg_hdr = (struct msghdr){
            .msg_iov = m->iov,
            .msg_iovlen = m->iov[1].iov_len > 0 ? 2 : 1,
        };
        if (m->to == NULL)
            continue;
        cv_sockaddr_from_ip(&to[i], &m->to->ip, m->to->port);
        hdr[i].msg_hdr.msg_name = &to[i].sa;
        hdr[i].msg_hdr.msg_namelen = to[i].len;
    }
    size_t done = 0;
    while (done < n) {
        size_t sent;
        int ret = send_some(fd, hdr + done, n - done, &sent);
        if (ret == 0) {
            done += sent;
            continue;
        }
        msgs[done++].err = ret;
        if (ret == -EAGAIN) { /* the socket is full, for the rest as well */
            while (done < n)
                msgs[done++].err = ret;
        }
    }
}
