/* A two-way byte stream: TCP or Unix socket, TLS over one of these, later a tunnel's connection or
 * a mux stream. Whoever holds the pointer owns the stream and ends it with cv_stream_close().
 *
 * Readiness is edge-triggered: on_ready(events) says that something may have changed, the owner
 * then calls recv or send until -EAGAIN. After creation both directions count as ready, so an owner
 * may try at once. Callbacks come from the loop only, never from inside a call on the stream.
 *
 * Life: created by cv_tcp_adopt(), cv_tcp_connect(), cv_tls_server() ..., events set with
 * cv_stream_set_cb(), moved between loops with detach and attach, closed once. Closing takes the
 * callback away at once and releases memory at the end of the loop's turn. */
#pragma once

#include <sys/uio.h>

#include "common/defs.h"

struct cv_stream;
struct cv_loop;

enum {
    CV_STREAM_READ = 1,  /* recv may give bytes, end of stream or an error */
    CV_STREAM_WRITE = 2, /* send may take bytes */
    CV_STREAM_HUP = 4,   /* both directions are over: reset, error, or closed by the peer */
};
typedef void (*cv_stream_cb)(void *arg, struct cv_stream *s, unsigned events);

struct cv_stream_ops {
    const char *name;
    /* 0 and bytes; 0 and *ret_n == 0 at the end of the stream; -EAGAIN; other negative code. */
    int (*recv)(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n);
    /* 0 and *ret_n > 0 bytes taken (maybe not all); -EAGAIN; other negative code. */
    int (*send)(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n);
    /* Say that no more bytes will come (FIN, close_notify). 0; -EAGAIN: call again when writable.
     */
    int (*shutdown_send)(struct cv_stream *s);
    /* 'abort': the peer shall see a reset, where the transport has one. */
    void (*close)(struct cv_stream *s, bool abort);
    /* The socket whose raw bytes are this stream's bytes, for splice; -1 when there is none. */
    int (*raw_fd)(const struct cv_stream *s);
    /* Leave the current loop / join another; attach reports both directions ready. */
    void (*detach)(struct cv_stream *s);
    int (*attach)(struct cv_stream *s, struct cv_loop *loop);
    /* The socket below, whatever is layered on it, for addresses and options; -1 when none. */
    int (*socket_fd)(const struct cv_stream *s);
};

struct cv_stream {
    const struct cv_stream_ops *ops;
    struct cv_loop *loop; /* borrowed; NULL while detached */
    cv_stream_cb _cb;     /* NULL: events are not wanted */
    void *_arg;
};

static inline void cv_stream_set_cb(struct cv_stream *s, cv_stream_cb cb, void *arg)
{
    s->_cb = cb;
    s->_arg = arg;
}
/* For implementations: deliver events. The callback may close the stream. */
static inline void cv_stream_notify(struct cv_stream *s, unsigned events)
{
    if (s->_cb != NULL)
        s->_cb(s->_arg, s, events);
}

static inline int cv_stream_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    return s->ops->recv(s, buf, cap, ret_n);
}
static inline int cv_stream_send(struct cv_stream *s, const void *data, size_t len, size_t *ret_n)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    return s->ops->send(s, &iov, 1, ret_n);
}
static inline int cv_stream_sendv(struct cv_stream *s, const struct iovec *iov, int iovcnt,
                                  size_t *ret_n)
{
    return s->ops->send(s, iov, iovcnt, ret_n);
}
static inline int cv_stream_shutdown_send(struct cv_stream *s)
{
    return s->ops->shutdown_send(s);
}
static inline int cv_stream_raw_fd(const struct cv_stream *s)
{
    return s->ops->raw_fd(s);
}
static inline int cv_stream_socket_fd(const struct cv_stream *s)
{
    return s->ops->socket_fd(s);
}
/* NULL is accepted. */
static inline void cv_stream_close(struct cv_stream *s, bool abort)
{
    if (s != NULL)
        s->ops->close(s, abort);
}
