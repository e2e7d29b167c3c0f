#include "net/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/err.h"
#include "common/sys.h"

#include "common/poison.h"

/* Aligned as the first header in it has to be. */
union control {
    struct cmsghdr head;
    char space[CMSG_SPACE(CV_PACKET_FDS_MAX * sizeof(int))];
};

int cv_packet_connect(const char *path, int *ret_fd)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(sa.sun_path))
        return -ENAMETOOLONG;
    memcpy(sa.sun_path, path, len);
    int fd = cv_sys_socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (fd < 0)
        return fd;
    int ret = cv_sys_connect(fd, (struct sockaddr *)&sa, sizeof(sa));
    if (ret != 0) {
        cv_sys_close(fd);
        return ret;
    }
    *ret_fd = fd;
    return 0;
}

int cv_packet_peer(int fd, struct cv_packet_peer *ret_peer)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
        return -errno;
    *ret_peer = (struct cv_packet_peer){.pid = cred.pid, .uid = cred.uid};
    return 0;
}

bool cv_packet_peer_is_trusted(const struct cv_packet_peer *peer)
{
    return peer->uid == 0 || peer->uid == geteuid();
}

int cv_packet_send(int fd, const void *data, size_t len, const int *fds, size_t n_fds)
{
    union control control;
    /* sendmsg does not write to what msg_iov points to; the type is older than const. */
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    size_t sent;
    CV_ASSERT(len > 0 && n_fds <= CV_PACKET_FDS_MAX);
    if (n_fds > 0) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    int ret = cv_sys_sendmsg(fd, &msg, 0, &sent);
    if (ret == 0 && sent != len)
        return -EMSGSIZE; /* the type of socket does not let this happen */
    return ret;
}

/* Take the descriptors out of a message; those beyond 'cap' are closed. False: there were some. */
static bool collect(struct msghdr *msg, int *fds, size_t cap, size_t *ret_n)
{
    size_t n = 0;
    bool all = true;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (n < cap) {
                fds[n++] = fd;
            } else {
                cv_sys_close(fd);
                all = false;
            }
        }
    }
    *ret_n = n;
    return all;
}

int cv_packet_recv(int fd, void *data, size_t cap, size_t *ret_len, int *fds, size_t fds_cap,
                   size_t *ret_n_fds)
{
    union control control;
    struct iovec iov = {.iov_base = data, .iov_len = cap};
    struct msghdr msg = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control),
    };
    size_t len, n;
    int ret = cv_sys_recvmsg(fd, &msg, 0, &len);
    /* The other side closed with a message of ours unread. That is told once, before what it had
     * sent itself. */
    if (ret == -ECONNRESET) {
        msg.msg_controllen = sizeof(control);
        ret = cv_sys_recvmsg(fd, &msg, 0, &len);
    }
    if (ret != 0)
        return ret == -ECONNRESET ? -EPIPE : ret;
    bool all = collect(&msg, fds, fds_cap, &n);
    if (msg.msg_flags & MSG_CTRUNC)
        ret = -EMFILE;
    else if (!all || (msg.msg_flags & MSG_TRUNC))
        ret = CV_E_PROTO;
    else if (len == 0)
        ret = -EPIPE;
    if (ret != 0) {
        for (size_t i = 0; i < n; i++)
            cv_sys_close(fds[i]);
        return ret;
    }
    *ret_len = len;
    *ret_n_fds = n;
    return 0;
}
