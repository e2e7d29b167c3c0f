#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/defs.h"
#include "common/sys.h"
#include "common/torture.h"

static bool is_set_up(int fd)
{
    return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

static int listener(struct sockaddr_in *ret_sa)
{
    int fd = cv_sys_socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    if (fd < 0 || cv_sys_bind(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0 ||
        cv_sys_listen(fd, 8) != 0 || getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        return -1;
    *ret_sa = sa;
    return fd;
}

static void a_connection_from_end_to_end(void)
{
    struct sockaddr_in sa;
    int lfd = listener(&sa);
    T_REQUIRE(lfd >= 0);
    T_OK(is_set_up(lfd));
    T_INT_EQ(cv_sys_accept(lfd, NULL, NULL), -EAGAIN);

    int cfd = cv_sys_socket(AF_INET, SOCK_STREAM, 0);
    int ret = cv_sys_connect(cfd, (struct sockaddr *)&sa, sizeof(sa));
    T_OK(ret == 0 || ret == -EINPROGRESS);
    int ep = cv_sys_epoll_create();
    T_OK(ep >= 0);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = lfd};
    T_INT_EQ(cv_sys_epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &ev), 0);
    T_INT_EQ(cv_sys_epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &ev), -EEXIST);
    T_INT_EQ(epoll_wait(ep, &ev, 1, 5000), 1);
    struct sockaddr_in peer;
    socklen_t peer_len = sizeof(peer);
    int afd = cv_sys_accept(lfd, (struct sockaddr *)&peer, &peer_len);
    T_REQUIRE(afd >= 0);
    T_OK(is_set_up(afd));
    T_INT_EQ(peer.sin_family, AF_INET);

    char in[16];
    size_t n = 77;
    T_INT_EQ(cv_sys_recv(afd, in, sizeof(in), 0, &n), -EAGAIN);
    T_INT_EQ(n, 77);
    struct iovec iov[2] = {{.iov_base = (char[]){'a', 'b'}, .iov_len = 2},
                           {.iov_base = (char[]){'c'}, .iov_len = 1}};
    T_INT_EQ(cv_sys_sendv(cfd, iov, 2, 0, &n), 0);
    T_INT_EQ(n, 3);
    T_INT_EQ(cv_sys_send(cfd, "de", 2, 0, &n), 0);
    ev = (struct epoll_event){.events = EPOLLIN};
    T_INT_EQ(cv_sys_epoll_ctl(ep, EPOLL_CTL_DEL, lfd, NULL), 0);
    T_INT_EQ(cv_sys_epoll_ctl(ep, EPOLL_CTL_ADD, afd, &ev), 0);
    T_INT_EQ(epoll_wait(ep, &ev, 1, 5000), 1);
    T_INT_EQ(cv_sys_recv(afd, in, sizeof(in), MSG_PEEK, &n), 0);
    T_OK(n >= 3);

    int pipefd[2];
    T_INT_EQ(cv_sys_pipe(pipefd), 0);
    T_OK(is_set_up(pipefd[0]) && is_set_up(pipefd[1]));
    T_INT_EQ(cv_sys_splice(afd, pipefd[1], 3, 0, &n), 0);
    T_INT_EQ(n, 3);
    T_INT_EQ(read(pipefd[0], in, sizeof(in)), 3);
    T_MEM_EQ(in, "abc", 3);

    shutdown(cfd, SHUT_WR);
    while (cv_sys_recv(afd, in, sizeof(in), 0, &n) == -EAGAIN || n > 0)
        epoll_wait(ep, &ev, 1, 1000);
    T_INT_EQ(n, 0); /* end of stream */
    cv_sys_close(pipefd[0]);
    cv_sys_close(pipefd[1]);
    cv_sys_close(afd);
    cv_sys_close(cfd);
    cv_sys_close(lfd);
    cv_sys_close(ep);
}

static void no_sigpipe(void)
{
    signal(SIGPIPE, SIG_DFL);
    int fds[2];
    T_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    cv_sys_close(fds[1]);
    size_t n;
    struct iovec iov = {.iov_base = (char[]){'x'}, .iov_len = 1};
    T_INT_EQ(cv_sys_send(fds[0], "x", 1, 0, &n), -EPIPE);
    T_INT_EQ(cv_sys_sendv(fds[0], &iov, 1, 0, &n), -EPIPE);
    cv_sys_close(fds[0]);
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* A call that a signal interrupts goes on: the timer fires while recv blocks, and the byte that
 * ends the wait comes from the second signal only. */
static int wake_fd = -1;
static int alarms;

static void on_timer(int sig)
{
    (void)sig;
    if (++alarms == 2 && write(wake_fd, "x", 1) != 1)
        alarms = -100;
}

static void interruption_is_retried(void)
{
    int fds[2];
    T_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    wake_fd = fds[1];
    struct sigaction sa = {.sa_handler = on_timer}; /* no SA_RESTART */
    sigaction(SIGALRM, &sa, NULL);
    ualarm(5000, 5000);
    char c = 0;
    size_t n = 0;
    T_INT_EQ(cv_sys_recv(fds[0], &c, 1, 0, &n), 0);
    ualarm(0, 0);
    T_INT_EQ(n, 1);
    T_OK(alarms >= 2);
    signal(SIGALRM, on_alarm);
    close(fds[0]);
    close(fds[1]);
}

static void errors_come_back_negative(void)
{
    size_t n;
    char c;
    T_INT_EQ(cv_sys_socket(-1, SOCK_STREAM, 0), -EAFNOSUPPORT);
    T_INT_EQ(cv_sys_bind(-1, NULL, 0), -EBADF);
    T_INT_EQ(cv_sys_listen(-1, 1), -EBADF);
    T_INT_EQ(cv_sys_connect(-1, NULL, 0), -EBADF);
    T_INT_EQ(cv_sys_setsockopt(-1, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)), -EBADF);
    T_INT_EQ(cv_sys_recv(-1, &c, 1, 0, &n), -EBADF);
    T_INT_EQ(cv_sys_send(-1, &c, 1, 0, &n), -EBADF);
    T_INT_EQ(cv_sys_splice(-1, -1, 1, 0, &n), -EBADF);
    T_INT_EQ(cv_sys_open("/nonexistent/file", O_RDONLY, 0), -ENOENT);
    cv_sys_close(-1);
}

static void other_descriptors(void)
{
    int fd = cv_sys_eventfd();
    T_REQUIRE(fd >= 0);
    T_OK(is_set_up(fd));
    eventfd_t v;
    T_OK(eventfd_read(fd, &v) == -1 && errno == EAGAIN);
    T_INT_EQ(eventfd_write(fd, 3), 0);
    T_INT_EQ(eventfd_read(fd, &v), 0);
    T_INT_EQ(v, 3);
    cv_sys_close(fd);
    fd = cv_sys_open("/dev/null", O_RDWR, 0);
    T_REQUIRE(fd >= 0);
    T_OK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    cv_sys_close(fd);
}

static void each_call_can_be_made_to_fail(void)
{
#ifdef CV_TORTURE
    size_t n;
    char c;
    int fds[2];
    struct epoll_event ev = {0};
#define FAILS(call)                                                                                \
    do {                                                                                           \
        cv_torture_arm(1);                                                                         \
        T_OK((call) < 0);                                                                          \
        T_INT_EQ(cv_torture_count(), 1);                                                           \
    } while (0)
    FAILS(cv_sys_socket(AF_INET, SOCK_STREAM, 0));
    FAILS(cv_sys_accept(0, NULL, NULL));
    FAILS(cv_sys_connect(0, NULL, 0));
    FAILS(cv_sys_bind(0, NULL, 0));
    FAILS(cv_sys_listen(0, 0));
    FAILS(cv_sys_setsockopt(0, 0, 0, NULL, 0));
    FAILS(cv_sys_epoll_create());
    FAILS(cv_sys_epoll_ctl(0, EPOLL_CTL_ADD, 0, &ev));
    FAILS(cv_sys_eventfd());
    FAILS(cv_sys_pipe(fds));
    FAILS(cv_sys_open("/dev/null", O_RDONLY, 0));
    FAILS(cv_sys_recv(0, &c, 1, 0, &n));
    FAILS(cv_sys_send(0, &c, 1, 0, &n));
    FAILS(cv_sys_sendv(0, NULL, 0, 0, &n));
    FAILS(cv_sys_splice(0, 1, 1, 0, &n));
    cv_torture_arm(0);
#else
    T_OK(!cv_torture_fail("call"));
#endif
}

int main(void)
{
    T_RUN(a_connection_from_end_to_end);
    T_RUN(no_sigpipe);
    T_RUN(interruption_is_retried);
    T_RUN(errors_come_back_negative);
    T_RUN(other_descriptors);
    T_RUN(each_call_can_be_made_to_fail);
    return t_done();
}
