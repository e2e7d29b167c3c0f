#include "net/crossing.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "net/chunkq.h"

#include "common/poison.h"

#define QUEUE_MAX  (512u << 10) /* bytes that wait in one direction, about */
#define QUEUE_LOW  (QUEUE_MAX / 2)
#define CHUNK_SIZE (32u << 10)
#define CHUNK_KEEP (CHUNK_SIZE / 2) /* a chunk with less is shrunk */

enum {
    KIND_DATA = 0,
    KIND_END,   /* no more bytes in this direction */
    KIND_ERROR, /* of the inner stream: err */
    KIND_CLOSE, /* the near end is closed */
    KIND_ABORT, /* likewise, with a reset */
};

struct cv_crossing {
    /* The near thread's. */
    struct cv_stream near;
    bool over; /* an end or an error is first in 'down' and stays there */
    bool shut;
    bool closed;
    int send_err;
    struct cv_task near_task, near_gone;
    /* The far thread's. */
    struct cv_stream *inner; /* owned; NULL once closed */
    bool down_over;          /* its end or error is in 'down' */
    bool up_over;
    struct cv_task far_task;
    /* Both threads'. */
    struct cv_loop *near_loop, *far_loop; /* borrowed */
    struct cv_chunkq up, down;
    _Atomic unsigned refs;
    _Atomic bool near_posted, far_posted;
    _Atomic bool up_full;   /* the near end waits for room */
    _Atomic bool down_full; /* the far end waits for room */
    _Atomic bool failed;    /* the inner stream takes no more */
    _Atomic int fail_err;
};

static const struct cv_stream_ops near_ops;

static void unref(struct cv_crossing *c)
{
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    cv_chunkq_done(&c->up);
    cv_chunkq_done(&c->down);
    cv_free(c);
}

/* A posted task holds a reference. */
static void wake(struct cv_crossing *c, _Atomic bool *posted, struct cv_loop *loop,
                 struct cv_task *task)
{
    if (atomic_exchange_explicit(posted, true, memory_order_acq_rel))
        return;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    cv_loop_post(loop, task);
}

static void wake_near(struct cv_crossing *c)
{
    wake(c, &c->near_posted, c->near_loop, &c->near_task);
}

static void wake_far(struct cv_crossing *c)
{
    wake(c, &c->far_posted, c->far_loop, &c->far_task);
}

/* -- the far end -- */

static void far_close(struct cv_crossing *c, bool abort)
{
    if (c->inner == NULL)
        return;
    cv_stream_close(c->inner, abort);
    c->inner = NULL;
    atomic_store(&c->failed, true);
    unref(c);
}

static void far_fail(struct cv_crossing *c, int err)
{
    atomic_store(&c->fail_err, err);
    atomic_store(&c->failed, true);
    if (!c->down_over) {
        struct cv_chunk *k = cv_chunk_new(0);
        c->down_over = true;
        if (k != NULL) {
            k->kind = KIND_ERROR;
            k->err = err;
            cv_chunkq_put(&c->down, k);
        }
    }
    wake_near(c);
}

static void far_up(struct cv_crossing *c)
{
    struct cv_chunk *k;
    while (c->inner != NULL && (k = cv_chunkq_first(&c->up)) != NULL) {
        if (k->kind == KIND_DATA) {
            size_t n = 0;
            int ret = c->up_over ? -EPIPE : cv_stream_send(c->inner, k->data + k->off, k->len, &n);
            if (ret == -EAGAIN)
                return;
            if (ret != 0) {
                /* What follows cannot be delivered either; a close behind it counts still. */
                if (!c->up_over)
                    far_fail(c, ret);
                c->up_over = true;
                n = k->len;
            }
            size_t left = cv_chunkq_consume(&c->up, n);
            if (left < QUEUE_LOW && atomic_exchange(&c->up_full, false))
                wake_near(c);
            if (k->len > 0)
                continue;
        } else if (k->kind == KIND_END) {
            if (!c->up_over && cv_stream_shutdown_send(c->inner) == -EAGAIN)
                return;
        } else {
            bool abort = k->kind == KIND_ABORT;
            cv_chunkq_pop(&c->up);
            far_close(c, abort);
            return;
        }
        cv_chunkq_pop(&c->up);
    }
}

/* True if the queue was full at that moment and the near end will tell when it is not. */
static bool down_is_full(struct cv_crossing *c)
{
    if (atomic_load(&c->down.bytes) < QUEUE_MAX)
        return false;
    atomic_store(&c->down_full, true);
    /* The near end may have taken it all before it could see the flag. */
    return atomic_load(&c->down.bytes) >= QUEUE_LOW || !atomic_exchange(&c->down_full, false);
}

static void far_down(struct cv_crossing *c)
{
    bool any = false;
    while (c->inner != NULL && !c->down_over && !down_is_full(c)) {
        struct cv_chunk *k = cv_chunk_new(CHUNK_SIZE);
        size_t n = 0;
        int ret = k != NULL ? cv_stream_recv(c->inner, k->data, CHUNK_SIZE, &n) : -ENOMEM;
        if (ret == -EAGAIN) {
            cv_free(k);
            break;
        }
        if (ret != 0) {
            cv_free(k);
            far_fail(c, ret);
            break;
        }
        k->len = (uint32_t)n;
        k->kind = n > 0 ? KIND_DATA : KIND_END;
        c->down_over = n == 0;
        if (n < CHUNK_KEEP) {
            struct cv_chunk *small = cv_try_realloc_array(k, 1, sizeof(*k) + n);
            k = small != NULL ? small : k;
        }
        cv_chunkq_put(&c->down, k);
        any = true;
    }
    if (any)
        wake_near(c);
}

static void on_inner(void *arg, struct cv_stream *s, unsigned events)
{
    struct cv_crossing *c = arg;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    if (events & (CV_STREAM_WRITE | CV_STREAM_HUP))
        far_up(c);
    if (events & (CV_STREAM_READ | CV_STREAM_HUP))
        far_down(c);
    unref(c);
}

static void on_far_task(struct cv_task *task)
{
    struct cv_crossing *c = CV_CONTAINER_OF(task, struct cv_crossing, far_task);
    atomic_store(&c->far_posted, false);
    far_up(c);
    far_down(c);
    unref(c);
}

static void on_near_task(struct cv_task *task);

int cv_crossing_new(struct cv_loop *near_loop, struct cv_stream *inner,
                    struct cv_crossing **ret_crossing)
{
    struct cv_crossing *c = cv_try_zalloc(sizeof(*c));
    if (c == NULL || cv_chunkq_init(&c->up) != 0 || cv_chunkq_init(&c->down) != 0) {
        if (c != NULL) {
            cv_chunkq_done(&c->up);
            cv_free(c);
        }
        cv_stream_close(inner, true);
        return -ENOMEM;
    }
    c->near.ops = &near_ops;
    c->near_loop = near_loop;
    c->far_loop = inner->loop;
    c->near_task.fn = on_near_task;
    c->far_task.fn = on_far_task;
    c->inner = inner;
    atomic_init(&c->refs, 2);
    cv_stream_set_cb(inner, on_inner, c);
    /* What has come already is fetched in the next turn. */
    wake_far(c);
    *ret_crossing = c;
    return 0;
}

/* -- the near end -- */

static struct cv_crossing *near_of(struct cv_stream *s)
{
    return CV_CONTAINER_OF(s, struct cv_crossing, near);
}

static void on_near_task(struct cv_task *task)
{
    struct cv_crossing *c = CV_CONTAINER_OF(task, struct cv_crossing, near_task);
    atomic_store(&c->near_posted, false);
    unsigned events = CV_STREAM_READ | CV_STREAM_WRITE;
    if (atomic_load(&c->failed))
        events |= CV_STREAM_HUP;
    if (!c->closed && c->near.loop != NULL)
        cv_stream_notify(&c->near, events);
    unref(c);
}

struct cv_stream *cv_crossing_take(struct cv_crossing *c)
{
    c->near.loop = c->near_loop;
    return &c->near;
}

static int near_recv(struct cv_stream *s, void *buf, size_t cap, size_t *ret_n)
{
    struct cv_crossing *c = near_of(s);
    struct cv_chunk *k = NULL;
    size_t n = 0;
    while (n < cap && (k = cv_chunkq_first(&c->down)) != NULL && k->kind == KIND_DATA) {
        size_t part = CV_MIN((size_t)k->len, cap - n);
        memcpy((uint8_t *)buf + n, k->data + k->off, part);
        n += part;
        size_t left = cv_chunkq_consume(&c->down, part);
        if (k->len == 0)
            cv_chunkq_pop(&c->down);
        if (left < QUEUE_LOW && atomic_exchange(&c->down_full, false))
            wake_far(c);
    }
    *ret_n = n;
    if (n > 0 || cap == 0)
        return 0;
    if (k == NULL) {
        /* The far end had no memory to say so. */
        if (atomic_load(&c->failed) && cv_chunkq_first(&c->down) == NULL)
            return atomic_load(&c->fail_err) != 0 ? atomic_load(&c->fail_err) : -ECONNRESET;
        return -EAGAIN;
    }
    return k->kind == KIND_END ? 0 : k->err;
}

/* True if there is no room and the far end will tell when there is. */
static bool up_is_full(struct cv_crossing *c)
{
    if (atomic_load(&c->up.bytes) < QUEUE_MAX)
        return false;
    atomic_store(&c->up_full, true);
    return atomic_load(&c->up.bytes) >= QUEUE_LOW || !atomic_exchange(&c->up_full, false);
}

static int near_send(struct cv_stream *s, const struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct cv_crossing *c = near_of(s);
    size_t want = 0;
    for (int i = 0; i < iovcnt; i++)
        want += iov[i].iov_len;
    *ret_n = 0;
    if (c->shut)
        return -EPIPE;
    if (atomic_load(&c->failed)) {
        int err = atomic_load(&c->fail_err);
        return err != 0 ? err : -EPIPE;
    }
    if (want == 0)
        return 0;
    if (up_is_full(c))
        return -EAGAIN;
    size_t cap = CV_MIN(want, (size_t)QUEUE_MAX);
    struct cv_chunk *k = cv_chunk_new(cap);
    if (k == NULL)
        return -ENOMEM;
    for (int i = 0; i < iovcnt && k->len < cap; i++) {
        size_t part = CV_MIN(iov[i].iov_len, cap - k->len);
        memcpy(k->data + k->len, iov[i].iov_base, part);
        k->len += (uint32_t)part;
    }
    *ret_n = k->len;
    cv_chunkq_put(&c->up, k);
    wake_far(c);
    return 0;
}

static int put_mark(struct cv_crossing *c, int kind)
{
    struct cv_chunk *k = cv_chunk_new(0);
    if (k == NULL)
        return -ENOMEM;
    k->kind = kind;
    cv_chunkq_put(&c->up, k);
    wake_far(c);
    return 0;
}

static int near_shutdown_send(struct cv_stream *s)
{
    struct cv_crossing *c = near_of(s);
    if (c->shut)
        return 0;
    int ret = put_mark(c, KIND_END);
    c->shut = ret == 0;
    return ret;
}

static void on_near_gone(struct cv_task *task)
{
    unref(CV_CONTAINER_OF(task, struct cv_crossing, near_gone));
}

static void near_close(struct cv_stream *s, bool abort)
{
    struct cv_crossing *c = near_of(s);
    cv_stream_set_cb(s, NULL, NULL);
    c->closed = true;
    /* The mark is small and must not fail: the far end has no other way to know. */
    struct cv_chunk *k = cv_chunk_new(0);
    if (k == NULL)
        k = cv_alloc(sizeof(*k));
    *k = (struct cv_chunk){.kind = abort ? KIND_ABORT : KIND_CLOSE};
    cv_chunkq_put(&c->up, k);
    wake_far(c);
    c->near_gone = (struct cv_task){.fn = on_near_gone};
    cv_loop_defer(c->near_loop, &c->near_gone);
}

void cv_crossing_refuse(struct cv_crossing *c)
{
    near_close(cv_crossing_take(c), true);
}

static int near_no_fd(const struct cv_stream *s)
{
    return -1;
}

/* The loop that the far end wakes is fixed. */
static void near_detach(struct cv_stream *s)
{
    s->loop = NULL;
}

static int near_attach(struct cv_stream *s, struct cv_loop *loop)
{
    struct cv_crossing *c = near_of(s);
    CV_ASSERT(loop == c->near_loop);
    s->loop = loop;
    wake_near(c);
    return 0;
}

static const struct cv_stream_ops near_ops = {
    .name = "crossing",
    .recv = near_recv,
    .send = near_send,
    .shutdown_send = near_shutdown_send,
    .close = near_close,
    .raw_fd = near_no_fd,
    .detach = near_detach,
    .attach = near_attach,
    .socket_fd = near_no_fd,
};
