#include "net/replay.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "net/loop.h"

#include "common/poison.h"

struct replay {
    struct cv_stream super;
    struct cv_stream *below; /* owned; NULL once closed */
    uint8_t *data;           /* owned; NULL when used up */
    size_t len, off;
    struct cv_task release;
};

static const struct cv_stream_ops replay_ops;

static struct replay *replay_of(const struct cv_stream *s)
{
    return CV_CONTAINER_OF((struct cv_stream *)(uintptr_t)s, struct replay, super);
}

static void on_below(void *arg, struct cv_stream *below, unsigned events)
{
    struct replay *r = arg;
    (void)below;
    cv_stream_notify(&r->super, events);
}

int cv_replay_open(struct cv_stream *below, const void *data, size_t len,
                   struct cv_stream **ret_stream)
{
    struct replay *r = cv_try_zalloc(sizeof(*r));
    uint8_t *copy = r != NULL ? cv_try_alloc(len) : NULL;
    if (copy == NULL) {
        cv_free(r);
        cv_stream_close(below, false);
        return -ENOMEM;
    }
    memcpy(copy, data, len);
    r->super.ops = &replay_ops;
    r->super.loop = below->loop;
    r->below = below;
    r->data = copy;
    r->len = len;
    cv_stream_set_cb(below, on_below, r);
    *ret_stream = &r->super;
    return 0;
}

/* Bytes that are here are given alone: only the stream below knows about its end and its errors. */
static int replay_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct replay *r = replay_of(s);
    if (r->data == NULL)
        return cv_stream_recv(r->below, buf, cap, ret_n);
    size_t n = CV_MIN(cap, r->len - r->off);
    memcpy(buf, r->data + r->off, n);
    r->off += n;
    if (r->off == r->len)
        CV_FREE(r->data);
    *ret_n = n;
    return 0;
}

static int replay_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    return cv_stream_sendv(replay_of(s)->below, iov, iovcnt, ret_n);
}

static int replay_shutdown_send(struct cv_stream *s)
{
    return cv_stream_shutdown_send(replay_of(s)->below);
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct replay, release));
}

static void replay_close(struct cv_stream *s, bool abort)
{
    struct replay *r = replay_of(s);
    struct cv_loop *loop = s->loop;
    cv_stream_set_cb(s, NULL, NULL);
    cv_stream_close(r->below, abort);
    r->below = NULL;
    CV_FREE(r->data);
    s->loop = NULL;
    if (loop == NULL) {
        cv_free(r);
        return;
    }
    r->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(loop, &r->release);
}

static int replay_raw_fd(const struct cv_stream *s)
{
    const struct replay *r = replay_of(s);
    return r->data == NULL ? cv_stream_raw_fd(r->below) : -1;
}

static void replay_detach(struct cv_stream *s)
{
    struct replay *r = replay_of(s);
    r->below->ops->detach(r->below);
    s->loop = NULL;
}

static int replay_attach(struct cv_stream *s, struct cv_loop *loop)
{
    struct replay *r = replay_of(s);
    int ret = r->below->ops->attach(r->below, loop);
    if (ret == 0)
        s->loop = loop;
    return ret;
}

static int replay_socket_fd(const struct cv_stream *s)
{
    return cv_stream_socket_fd(replay_of(s)->below);
}

static const struct cv_stream_ops replay_ops = {
    .name = "replay",
    .recv = replay_recv,
    .send = replay_send,
    .shutdown_send = replay_shutdown_send,
    .close = replay_close,
    .raw_fd = replay_raw_fd,
    .detach = replay_detach,
    .attach = replay_attach,
    .socket_fd = replay_socket_fd,
};
