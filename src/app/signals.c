#include "app/signals.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/sys.h"

#include "common/poison.h"

static void on_readable(struct cv_io *io, unsigned events)
{
    struct cv_signals *s = CV_CONTAINER_OF(io, struct cv_signals, _io);
    struct signalfd_siginfo info;
    while (s->_fd >= 0) {
        ssize_t n = read(s->_fd, &info, sizeof(info));
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof(info))
            break;
        s->_cb(s, (int)info.ssi_signo);
    }
}

int cv_signals_start(struct cv_signals *s, struct cv_loop *loop, cv_signals_cb cb)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGCHLD);
    s->_cb = cb;
    s->_fd = -1;
    signal(SIGPIPE, SIG_IGN);
    int ret = -pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (ret != 0)
        return ret;
    s->_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->_fd < 0)
        return -errno;
    ret = cv_io_add(loop, &s->_io, s->_fd, on_readable);
    if (ret != 0) {
        cv_sys_close(s->_fd);
        s->_fd = -1;
    }
    return ret;
}

void cv_signals_stop(struct cv_signals *s)
{
    if (s->_cb == NULL || s->_fd < 0)
        return;
    cv_io_del(&s->_io);
    cv_sys_close(s->_fd);
    s->_fd = -1;
}
