#include "app/systemd.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tap.h"

static void set_number(const char *name, long v)
{
    char text[32];
    snprintf(text, sizeof(text), "%ld", v);
    setenv(name, text, 1);
}

static void test_none(void)
{
    struct cv_systemd s;
    cv_systemd_init(&s);
    T_INT_EQ(s.n_fds, 0);
    T_INT_EQ(cv_systemd_fd(&s, "3"), -1);
    T_INT_EQ(s.notify.len, 0);
    T_INT_EQ(s.watchdog_ms, 0);
    cv_systemd_notify(&s, "READY=1"); /* goes nowhere */
}

static void test_fds(void)
{
    struct cv_systemd s;
    /* Two descriptors at 3 and 4, as systemd places them. */
    bool own3 = fcntl(3, F_GETFD) < 0 && dup2(STDERR_FILENO, 3) == 3;
    bool own4 = fcntl(4, F_GETFD) < 0 && dup2(STDERR_FILENO, 4) == 4;
    set_number("LISTEN_PID", getpid());
    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_FDNAMES", "web:proxy", 1);
    cv_systemd_init(&s);
    T_INT_EQ(s.n_fds, 2);
    T_INT_EQ(cv_systemd_fd(&s, "web"), 3);
    T_INT_EQ(cv_systemd_fd(&s, "proxy"), 4);
    T_INT_EQ(cv_systemd_fd(&s, "4"), 4);
    T_INT_EQ(cv_systemd_fd(&s, "5"), -1);
    T_INT_EQ(cv_systemd_fd(&s, "2"), -1);
    T_INT_EQ(cv_systemd_fd(&s, "none"), -1);
    T_OK(getenv("LISTEN_FDS") == NULL);
    T_OK((fcntl(4, F_GETFD) & FD_CLOEXEC) != 0);
    if (own3)
        close(3);
    if (own4)
        close(4);
}

/* Sockets that are meant for another process, or nonsense. */
static void test_not_ours(void)
{
    static const char *const pids[] = {"1", "", "x", "-1", "99999999999999999999999"};
    struct cv_systemd s;
    for (size_t i = 0; i < CV_ARRAY_SIZE(pids); i++) {
        setenv("LISTEN_PID", pids[i], 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("NOTIFY_SOCKET", "relative", 1);
        cv_systemd_init(&s);
        T_INT_EQ(s.n_fds, 0);
        T_INT_EQ(s.notify.len, 0);
    }
}

static void test_notify(void)
{
    struct cv_systemd s;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    char got[64] = "";
    /* An abstract address, so that no file is left. */
    int len = snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, "cv-notify-%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    T_INT_EQ(bind(fd, (struct sockaddr *)&sa,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)),
             0);
    char env[120];
    snprintf(env, sizeof(env), "@%s", sa.sun_path + 1);
    setenv("NOTIFY_SOCKET", env, 1);
    setenv("WATCHDOG_USEC", "3000000", 1);
    cv_systemd_init(&s);
    T_INT_EQ(s.watchdog_ms, 1500);
    cv_systemd_notify(&s, "READY=1\nSTATUS=ready");
    T_INT_EQ(recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT), 20);
    T_STR_EQ(got, "READY=1\nSTATUS=ready");
    close(fd);
    cv_systemd_notify(&s, "STOPPING=1"); /* nobody there any more */
}

int main(void)
{
    T_RUN(test_none);
    T_RUN(test_fds);
    T_RUN(test_not_ours);
    T_RUN(test_notify);
    return t_done();
}
