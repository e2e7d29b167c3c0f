#include "net/acceptor.h"

#include <errno.h>

#include "common/sys.h"

#include "common/poison.h"

/* A listening socket is level-triggered: what is left in the backlog is reported again in the next
 * turn. So it is enough to take one connection when one is there, and to save the accept() that
 * would only say -EAGAIN; but under load that would take one connection per turn. The burst starts
 * at one, doubles with each consecutive turn that finds something, and halves otherwise. */

static void accept_some(struct cv_acceptor *a, uint32_t max);
static void on_listener(struct cv_io *io, unsigned events);
static void on_resume(struct cv_timer *t);

int cv_acceptor_start(struct cv_acceptor *a, struct cv_loop *loop, int fd, bool shared)
{
    CV_ASSERT(a->_loop == NULL);
    int ret = cv_io_add_listener(loop, &a->_io, fd, on_listener);
    if (ret < 0)
        return ret;
    cv_timer_init(&a->_resume, on_resume);
    a->_fd = fd;
    a->_burst = 1;
    a->_burst_max = shared ? CV_ACCEPTOR_BATCH_SHARED : CV_ACCEPTOR_BATCH;
    a->_loop = loop;
    return 0;
}

static void on_resume(struct cv_timer *t)
{
    struct cv_acceptor *a = CV_CONTAINER_OF(t, struct cv_acceptor, _resume);
    if (cv_io_add_listener(a->_loop, &a->_io, a->_fd, on_listener) < 0)
        cv_loop_timer(a->_loop, &a->_resume, CV_ACCEPTOR_PAUSE_MS);
}

static void pause_accepting(struct cv_acceptor *a, int err)
{
    a->paused++;
    cv_io_del(&a->_io);
    cv_loop_timer(a->_loop, &a->_resume, CV_ACCEPTOR_PAUSE_MS);
    if (a->on_pause != NULL)
        a->on_pause(a, err);
}

/* Errors of the one connection that was to be accepted, not of the listening socket: Linux hands
 * pending network errors of the new socket to accept(2). */
static bool is_of_connection(int err)
{
    switch (-err) {
    case ECONNABORTED:
    case EPROTO:
    case EPERM: /* a firewall rule */
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case ETIMEDOUT:
    case ECONNRESET:
        return true;
    default:
        return false;
    }
}

static void on_listener(struct cv_io *io, unsigned events)
{
    struct cv_acceptor *a = CV_CONTAINER_OF(io, struct cv_acceptor, _io);
    uint64_t turn = cv_loop_turns(a->_loop);
    a->_burst = turn == a->_last_turn + 1 ? CV_MIN(a->_burst * 2, a->_burst_max)
                                          : CV_MAX(a->_burst / 2, 1u);
    a->_last_turn = turn;
    accept_some(a, a->_burst);
}

static void accept_some(struct cv_acceptor *a, uint32_t max)
{
    for (uint32_t i = 0; i < max; i++) {
        struct cv_sockaddr peer;
        peer.len = sizeof(peer.un);
        int fd = cv_sys_accept(a->_fd, &peer.sa, &peer.len);
        if (fd >= 0) {
            a->accepted++;
            a->on_accept(a, fd, &peer);
            if (a->_loop == NULL) /* stopped */
                return;
        } else if (fd == -EAGAIN) {
            return;
        } else if (!is_of_connection(fd)) {
            /* Descriptors or memory ran out, or something is wrong for good: in either case trying
             * again at once would spin. */
            pause_accepting(a, fd);
            return;
        }
    }
}

void cv_acceptor_stop(struct cv_acceptor *a, bool drain)
{
    if (a->_loop == NULL)
        return;
    if (drain && a->_io._loop != NULL) {
        /* Bounded by what a backlog can hold; new ones may come in all the time. */
        accept_some(a, 4096);
        if (a->_loop == NULL)
            return;
    }
    cv_loop_timer_stop(a->_loop, &a->_resume);
    cv_io_del(&a->_io);
    a->_loop = NULL;
}
