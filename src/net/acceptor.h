/* Accepting on one listening socket in one loop. Survives EMFILE, ENFILE, ENOBUFS and ENOMEM
 * without spinning: accepting pauses for 100 ms, is logged at most once a minute by the owner
 * through on_pause, and resumes by itself. At most CV_ACCEPTOR_BATCH connections are taken per turn
 * (CV_ACCEPTOR_BATCH_SHARED from a socket that others accept from, too) so that running sessions
 * keep their share and other loops theirs. */
#pragma once

#include "common/addr.h"
#include "net/loop.h"

#define CV_ACCEPTOR_BATCH        64
#define CV_ACCEPTOR_BATCH_SHARED 16
#define CV_ACCEPTOR_PAUSE_MS     100

struct cv_acceptor;
/* 'fd' belongs to the callee. */
typedef void (*cv_acceptor_cb)(struct cv_acceptor *a, int fd, const struct cv_sockaddr *peer);
typedef void (*cv_acceptor_pause_cb)(struct cv_acceptor *a, int err);

/* Zeroed before the first start. */
struct cv_acceptor {
    struct cv_io _io;
    struct cv_loop *_loop;
    struct cv_timer _resume;
    uint64_t _last_turn; /* in which there was something to accept */
    uint32_t _burst;     /* how many to take at most when there is, now */
    uint32_t _burst_max;
    int _fd;
    cv_acceptor_cb on_accept;      /* set before start; may stop the acceptor */
    cv_acceptor_pause_cb on_pause; /* set before start, or NULL; may stop the acceptor */
    uint64_t accepted;
    uint64_t paused; /* how often */
};
/* Start accepting on 'fd' (borrowed; must outlive). 'shared': other loops accept from it too.
 * 0 or -errno. */
int cv_acceptor_start(struct cv_acceptor *a, struct cv_loop *loop, int fd,
                      bool shared) CV_MUST_CHECK;
/* Stop; connections that already wait in the backlog are handed to on_accept first when 'drain'.
 * Memory must stay to the end of the turn. Not started: nothing. */
void cv_acceptor_stop(struct cv_acceptor *a, bool drain);
