#include "net/packet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/addr.h"
#include "common/err.h"
#include "net/tcp.h"
#include "tap.h"

static void pair(int fds[2])
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        abort();
}

static int open_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 2048; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void test_messages(void)
{
    int p[2], fds[4];
    char data[16];
    size_t len, n;
    pair(p);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), -EAGAIN);
    T_INT_EQ(cv_packet_send(p[0], "one", 3, NULL, 0), 0);
    T_INT_EQ(cv_packet_send(p[0], "three", 5, NULL, 0), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), 0);
    T_INT_EQ(len, 3);
    T_INT_EQ(n, 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), 0);
    T_INT_EQ(len, 5);
    T_MEM_EQ(data, "three", 5);
    /* One that does not fit is gone, the next one is whole. */
    T_INT_EQ(cv_packet_send(p[0], "0123456789abcdefX", 17, NULL, 0), 0);
    T_INT_EQ(cv_packet_send(p[0], "next", 4, NULL, 0), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), CV_E_PROTO);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), 0);
    T_INT_EQ(len, 4);
    /* What was sent before the end is still read. */
    T_INT_EQ(cv_packet_send(p[0], "last", 4, NULL, 0), 0);
    close(p[0]);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), -EPIPE);
    T_INT_EQ(cv_packet_send(p[1], "x", 1, NULL, 0), -EPIPE);
    close(p[1]);
    /* The same when the side that closes has not read everything. */
    pair(p);
    T_INT_EQ(cv_packet_send(p[1], "unread", 6, NULL, 0), 0);
    T_INT_EQ(cv_packet_send(p[0], "last", 4, NULL, 0), 0);
    close(p[0]);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), 0);
    T_MEM_EQ(data, "last", 4);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, fds, 4, &n), -EPIPE);
    close(p[1]);
}

static void test_descriptors(void)
{
    int p[2], sent[CV_PACKET_FDS_MAX], got[CV_PACKET_FDS_MAX];
    char data[8];
    size_t len, n;
    int before = open_fds();
    pair(p);
    for (size_t i = 0; i < CV_PACKET_FDS_MAX; i++)
        sent[i] = i % 2 == 0 ? p[0] : STDERR_FILENO;
    T_INT_EQ(cv_packet_send(p[0], "x", 1, sent, CV_PACKET_FDS_MAX), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, got, CV_PACKET_FDS_MAX, &n), 0);
    T_INT_EQ(n, CV_PACKET_FDS_MAX);
    T_INT_EQ(open_fds(), before + 2 + CV_PACKET_FDS_MAX);
    T_OK((fcntl(got[252], F_GETFD) & FD_CLOEXEC) != 0);
    for (size_t i = 0; i < n; i++)
        close(got[i]);
    /* More than the caller takes: none is left open. */
    T_INT_EQ(cv_packet_send(p[0], "x", 1, sent, 3), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, got, 2, &n), CV_E_PROTO);
    T_INT_EQ(cv_packet_send(p[0], "x", 1, sent, 3), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, NULL, 0, &n), CV_E_PROTO);
    T_INT_EQ(open_fds(), before + 2);
    close(p[0]);
    close(p[1]);
}

/* A process that runs out of descriptors takes all of a message or nothing of it. */
static void test_no_room(void)
{
    int p[2], sent[20], got[20];
    char data[8];
    size_t len, n;
    struct rlimit old, low;
    pair(p);
    for (size_t i = 0; i < 20; i++)
        sent[i] = p[0];
    T_INT_EQ(cv_packet_send(p[0], "x", 1, sent, 20), 0);
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = (rlim_t)p[1] + 10;
    T_INT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    T_INT_EQ(cv_packet_recv(p[1], data, sizeof(data), &len, got, 20, &n), -EMFILE);
    T_INT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    T_OK(fcntl(p[1] + 2, F_GETFD) < 0);
    close(p[0]);
    close(p[1]);
}

static void test_socket_file(void)
{
    char dir[] = "/tmp/cv-packet-XXXXXX", path[64], text[80], longer[200];
    struct cv_sockaddr sa;
    struct cv_packet_peer peer;
    int listener, fd;
    if (mkdtemp(dir) == NULL)
        abort();
    snprintf(path, sizeof(path), "%s/s", dir);
    snprintf(text, sizeof(text), "unix:%s", path);
    T_INT_EQ(cv_packet_connect(path, &fd), -ENOENT);
    T_INT_EQ(cv_sockaddr_parse(text, &sa), 0);
    struct cv_tcp_listen_opts opts = {.packets = true, .unix_mode = 0600};
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &listener), 0);
    int other;
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &other), -EADDRINUSE);
    T_INT_EQ(cv_packet_connect(path, &fd), 0);
    T_INT_EQ(cv_packet_peer(fd, &peer), 0);
    T_INT_EQ(peer.pid, getpid());
    T_INT_EQ(peer.uid, geteuid());
    T_OK(cv_packet_peer_is_trusted(&peer));
    peer.uid = geteuid() + 1;
    T_OK(!cv_packet_peer_is_trusted(&peer));
    close(fd);
    close(listener);
    T_INT_EQ(cv_packet_connect(path, &fd), -ECONNREFUSED);
    /* A file that a dead process left behind is replaced. */
    T_INT_EQ(cv_tcp_listen(&sa, &opts, &listener), 0);
    close(listener);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    T_INT_EQ(cv_packet_connect(longer, &fd), -ENAMETOOLONG);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    T_RUN(test_messages);
    T_RUN(test_descriptors);
    T_RUN(test_no_room);
    T_RUN(test_socket_file);
    return t_done();
}
