/* TCP and Unix-socket streams over the loop: adopt an accepted descriptor, connect to one address,
 * create listening sockets. Names and races between addresses are happy.h. */
#pragma once

#include "common/addr.h"
#include "net/loop.h"
#include "net/stream.h"

/* Make a stream of a connected, non-blocking descriptor; takes ownership of it, also on failure. */
int cv_tcp_adopt(struct cv_loop *loop, int fd, struct cv_stream **ret_stream) CV_MUST_CHECK;

/* Keepalive and TCP_USER_TIMEOUT so that a dead peer is noticed by default: first probe after 60 s,
 * 4 probes 15 s apart, 120 s for unacknowledged data. Costs five system calls, so it is called once
 * a session has lived for a while. Not a TCP socket: nothing. */
void cv_tcp_keepalive(int fd);

/* A connect to one address in progress; embedded. */
struct cv_tcp_connect;
/* err 0: 'stream' belongs to the callee. Else -errno and NULL. */
typedef void (*cv_tcp_connect_cb)(struct cv_tcp_connect *c, int err, struct cv_stream *stream);
struct cv_tcp_connect {
    struct cv_loop *_loop;
    struct cv_stream *_stream; /* owned until handed over */
    struct cv_task _task;      /* posts a result that is known at once */
    int _err;
    bool _running;
    cv_tcp_connect_cb cb; /* set before start */
};
/* Start; the result always comes by callback, later. No time limit of its own. */
void cv_tcp_connect_start(struct cv_tcp_connect *c, struct cv_loop *loop,
                          const struct cv_sockaddr *sa);
/* Give up: no callback will come, the socket is closed. Not running: nothing. */
void cv_tcp_connect_cancel(struct cv_tcp_connect *c);

struct cv_tcp_listen_opts {
    bool reuse_port;  /* one socket per thread on the same address */
    mode_t unix_mode; /* of the socket file; 0 = as the umask leaves it */
    bool packets;     /* Unix: SOCK_SEQPACKET (packet.h) */
};
/* Create a bound, listening, non-blocking socket. [::] is dual stack. TCP_NODELAY is set, and
 * inherited by what is accepted. A stale Unix socket file that nobody answers on is replaced.
 * 0 or -errno. */
int cv_tcp_listen(const struct cv_sockaddr *sa, const struct cv_tcp_listen_opts *opts,
                  int *ret_fd) CV_MUST_CHECK;
/* Make a listening socket that was handed to this process (socket activation) equal to one of
 * cv_tcp_listen(): non-blocking, close-on-exec, TCP_NODELAY. 0; -EINVAL when it does not listen;
 * -errno. The descriptor stays the caller's. */
int cv_tcp_listen_inherit(int fd) CV_MUST_CHECK;
