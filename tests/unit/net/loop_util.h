/* What the tests on a loop share: turning it until something has happened, sockets on free ports,
 * and the check that nothing is left. */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "net/loop.h"
#include "tap.h"

/* Turn the loop until 'cond' holds; a test that would hang fails after ten seconds. */
#define TURN_UNTIL(loop, cond)                                                                     \
    do {                                                                                           \
        int64_t end_ = cv_clock_mono_ms() + 60000;                                                 \
        while (!(cond) && cv_clock_mono_ms() < end_)                                               \
            cv_loop_turn((loop), 100);                                                             \
        T_OK(cond);                                                                                \
    } while (0)

static inline struct cv_loop *test_loop(void)
{
    struct cv_loop *loop = NULL;
    if (cv_loop_new(&loop) != 0)
        abort();
    return loop;
}

/* Free the loop after checking that no descriptor and no timer is left on it. */
static inline void test_loop_end(struct cv_loop *loop)
{
    T_INT_EQ(cv_loop_io_count(loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(loop)), 0);
    cv_loop_free(loop);
}

static inline int test_fd_count(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d == NULL)
        return -1;
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static inline void test_pair(int type, int fds[2])
{
    if (socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        abort();
}

/* A blocking client, connected to the port of 'listener' by 127.0.0.1. */
static inline int test_client(int listener)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    if (getsockname(listener, (struct sockaddr *)&ss, &len) != 0)
        abort();
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                           : ((struct sockaddr_in *)&ss)->sin_port;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0)
        abort();
    return fd;
}

/* A plain listening socket on a free port of 127.0.0.1, non-blocking. */
static inline int test_listener(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 || listen(fd, 512) != 0)
        abort();
    return fd;
}

/* A connected TCP pair over loopback; fds[0] is non-blocking, fds[1] blocks. */
static inline void test_tcp_pair(int fds[2])
{
    int listener = test_listener();
    fds[1] = test_client(listener);
    fds[0] = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fds[0] < 0)
        abort();
    close(listener);
}

static inline void test_write(int fd, const void *data, size_t len)
{
    if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
        abort();
}
