#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "net/chunkq.h"
#include "net/crossing.h"

#include "common/poison.h"

/* Bytes that wait in one direction, with the heads of datagrams. */
#define QUEUE_MAX (256u << 10)

enum {
    KIND_DATA = 0, /* a struct head, then the payload */
    KIND_DROPPED,  /* err */
    KIND_OVER,     /* the inner flow is over: err */
    KIND_CLOSE,    /* the near end is closed */
};

struct head {
    struct cv_target to;     /* up */
    struct cv_prefix grant;  /* up; family CV_AF_NONE: none */
    struct cv_endpoint from; /* down */
};

struct cv_crossing_udp {
    struct cv_dgram near; /* the near thread's */
    bool closed;
    struct cv_task near_task, near_gone;
    struct cv_dgram *inner; /* the far thread's, as are the next three; owned; NULL once closed */
    cv_crossing_send_cb send;
    cv_crossing_end_cb end;
    void *arg;
    struct cv_task far_task;
    uint8_t *buf; /* for one datagram */
    struct cv_loop *near_loop, *far_loop;
    struct cv_chunkq up, down;
    _Atomic unsigned refs;
    _Atomic bool near_posted, far_posted, over;
};

static const struct cv_dgram_ops near_ops;

static void unref(struct cv_crossing_udp *c)
{
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    cv_chunkq_done(&c->up);
    cv_chunkq_done(&c->down);
    cv_free(c->buf);
    cv_free(c);
}

static void wake(struct cv_crossing_udp *c, _Atomic bool *posted, struct cv_loop *loop,
                 struct cv_task *task)
{
    if (atomic_exchange_explicit(posted, true, memory_order_acq_rel))
        return;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    cv_loop_post(loop, task);
}

static struct cv_chunk *put_mark(struct cv_chunkq *q, int kind, int err)
{
    struct cv_chunk *k = cv_alloc(sizeof(*k));
    *k = (struct cv_chunk){.kind = kind, .err = err};
    cv_chunkq_put(q, k);
    return k;
}

/* -- the far end -- */

static void far_close(struct cv_crossing_udp *c)
{
    if (c->inner == NULL)
        return;
    cv_dgram_close(c->inner);
    c->inner = NULL;
    if (c->end != NULL)
        c->end(c->arg);
    unref(c);
}

static void on_far_task(struct cv_task *task)
{
    struct cv_crossing_udp *c = CV_CONTAINER_OF(task, struct cv_crossing_udp, far_task);
    struct cv_chunk *k;
    atomic_store(&c->far_posted, false);
    while ((k = cv_chunkq_first(&c->up)) != NULL) {
        if (k->kind == KIND_CLOSE) {
            cv_chunkq_pop(&c->up);
            far_close(c);
            break;
        }
        struct head h;
        memcpy(&h, k->data, sizeof(h));
        struct cv_dgram_out m = {.to = &h.to,
                                 .grant = h.grant.ip.family != CV_AF_NONE ? &h.grant : NULL,
                                 .data = k->data + sizeof(h),
                                 .len = k->len - sizeof(h)};
        if (c->inner != NULL)
            c->send(c->arg, &m);
        cv_chunkq_pop(&c->up);
    }
    unref(c);
}

void cv_crossing_udp_dropped(struct cv_crossing_udp *c, int err)
{
    /* Told while there is room; the count of drops is not worth more memory. */
    if (atomic_load(&c->down.bytes) >= QUEUE_MAX)
        return;
    (void)put_mark(&c->down, KIND_DROPPED, err);
    wake(c, &c->near_posted, c->near_loop, &c->near_task);
}

static void far_read(struct cv_crossing_udp *c)
{
    for (unsigned i = 0; i < 256; i++) {
        struct cv_dgram_in in = {.buf = c->buf, .cap = CV_DGRAM_MAX};
        size_t n = 0;
        int ret = cv_dgram_recv(c->inner, &in, 1, &n);
        if (ret != 0)
            break;
        if (n == 0)
            continue;
        struct head h = {.from = in.from};
        struct cv_chunk *k =
            atomic_load(&c->down.bytes) < QUEUE_MAX ? cv_chunk_new(sizeof(h) + in.len) : NULL;
        if (k == NULL)
            continue; /* a slow reader loses datagrams, as with any socket */
        memcpy(k->data, &h, sizeof(h));
        memcpy(k->data + sizeof(h), in.data, in.len);
        k->len = (uint32_t)(sizeof(h) + in.len);
        cv_chunkq_put(&c->down, k);
        wake(c, &c->near_posted, c->near_loop, &c->near_task);
    }
}

static void on_inner(void *arg, struct cv_dgram *d, unsigned events)
{
    struct cv_crossing_udp *c = arg;
    if (events & CV_DGRAM_READ)
        far_read(c);
    if (events & CV_DGRAM_HUP) {
        (void)put_mark(&c->down, KIND_OVER, d->err);
        atomic_store(&c->over, true);
        wake(c, &c->near_posted, c->near_loop, &c->near_task);
    }
}

static void on_near_task(struct cv_task *task)
{
    struct cv_crossing_udp *c = CV_CONTAINER_OF(task, struct cv_crossing_udp, near_task);
    atomic_store(&c->near_posted, false);
    struct cv_chunk *k = cv_chunkq_first(&c->down);
    if (!c->closed && k != NULL && k->kind == KIND_OVER) {
        c->near.err = k->err != 0 ? k->err : CV_E_UNAVAILABLE;
        cv_dgram_notify(&c->near, CV_DGRAM_READ | CV_DGRAM_HUP);
    } else if (!c->closed) {
        cv_dgram_notify(&c->near, CV_DGRAM_READ);
    }
    unref(c);
}

int cv_crossing_udp_new(struct cv_loop *near_loop, struct cv_loop *far_loop, struct cv_dgram *inner,
                        cv_crossing_send_cb send, cv_crossing_end_cb end, void *arg,
                        struct cv_crossing_udp **ret_crossing)
{
    struct cv_crossing_udp *c = cv_try_zalloc(sizeof(*c));
    if (c == NULL || (c->buf = cv_try_alloc(CV_DGRAM_MAX)) == NULL || cv_chunkq_init(&c->up) != 0 ||
        cv_chunkq_init(&c->down) != 0) {
        if (c != NULL) {
            cv_chunkq_done(&c->up);
            cv_free(c->buf);
            cv_free(c);
        }
        cv_dgram_close(inner);
        return -ENOMEM;
    }
    c->near.ops = &near_ops;
    c->near_loop = near_loop;
    c->far_loop = far_loop;
    c->near_task.fn = on_near_task;
    c->far_task.fn = on_far_task;
    c->inner = inner;
    c->send = send;
    c->end = end;
    c->arg = arg;
    atomic_init(&c->refs, 2);
    cv_dgram_set_cb(inner, on_inner, NULL, c);
    *ret_crossing = c;
    return 0;
}

/* -- the near end -- */

struct cv_dgram *cv_crossing_udp_take(struct cv_crossing_udp *c)
{
    return &c->near;
}

static int send_one(struct cv_crossing_udp *c, const struct cv_dgram_out *m)
{
    if (atomic_load(&c->over))
        return CV_E_UNAVAILABLE;
    if (m->len > CV_DGRAM_MAX)
        return -EMSGSIZE;
    if (atomic_load(&c->up.bytes) >= QUEUE_MAX)
        return -EAGAIN;
    struct cv_chunk *k = cv_chunk_new(sizeof(struct head) + m->len);
    if (k == NULL)
        return -ENOMEM;
    struct head h = {.to = *m->to};
    if (m->grant != NULL)
        h.grant = *m->grant;
    memcpy(k->data, &h, sizeof(h));
    if (m->len > 0)
        memcpy(k->data + sizeof(h), m->data, m->len);
    k->len = (uint32_t)(sizeof(h) + m->len);
    cv_chunkq_put(&c->up, k);
    return 0;
}

static void near_send(struct cv_dgram *d, struct cv_dgram_out *msgs, size_t n)
{
    struct cv_crossing_udp *c = CV_CONTAINER_OF(d, struct cv_crossing_udp, near);
    for (size_t i = 0; i < n; i++)
        msgs[i].err = send_one(c, &msgs[i]);
    wake(c, &c->far_posted, c->far_loop, &c->far_task);
}

static int near_recv(struct cv_dgram *d, struct cv_dgram_in *msgs, size_t n, size_t *ret_n)
{
    struct cv_crossing_udp *c = CV_CONTAINER_OF(d, struct cv_crossing_udp, near);
    struct cv_chunk *k = NULL;
    size_t got = 0;
    while (got < n && (k = cv_chunkq_first(&c->down)) != NULL && k->kind != KIND_OVER) {
        if (k->kind == KIND_DROPPED) {
            cv_dgram_dropped(d, k->err);
        } else {
            struct head h;
            size_t len = k->len - sizeof(h);
            memcpy(&h, k->data, sizeof(h));
            if (len <= msgs[got].cap) {
                msgs[got].data = msgs[got].buf;
                msgs[got].len = len;
                msgs[got].from = h.from;
                msgs[got].name = NULL;
                msgs[got].name_len = 0;
                if (len > 0)
                    memcpy(msgs[got].buf, k->data + sizeof(h), len);
                got++;
            } else {
                cv_dgram_dropped(d, -EMSGSIZE);
            }
        }
        cv_chunkq_pop(&c->down);
    }
    *ret_n = got;
    if (got > 0)
        return 0;
    if (k != NULL && k->kind == KIND_OVER) {
        d->err = k->err != 0 ? k->err : CV_E_UNAVAILABLE;
        return CV_E_UNAVAILABLE;
    }
    return -EAGAIN;
}

static void on_near_gone(struct cv_task *task)
{
    unref(CV_CONTAINER_OF(task, struct cv_crossing_udp, near_gone));
}

static void near_close(struct cv_dgram *d)
{
    struct cv_crossing_udp *c = CV_CONTAINER_OF(d, struct cv_crossing_udp, near);
    cv_dgram_set_cb(d, NULL, NULL, NULL);
    c->closed = true;
    (void)put_mark(&c->up, KIND_CLOSE, 0);
    wake(c, &c->far_posted, c->far_loop, &c->far_task);
    c->near_gone = (struct cv_task){.fn = on_near_gone};
    cv_loop_defer(c->near_loop, &c->near_gone);
}

void cv_crossing_udp_refuse(struct cv_crossing_udp *c)
{
    near_close(&c->near);
}

static const struct cv_dgram_ops near_ops = {
    .name = "crossing",
    .send = near_send,
    .recv = near_recv,
    .close = near_close,
};
