#include "inbound/linger.h"

#include <errno.h>

#include "common/alloc.h"

#include "common/poison.h"

struct lingering {
    struct cv_session super;
    struct cv_stream *stream; /* owned; NULL when ended */
    struct cv_timer timer;
    size_t discarded;
    bool said_end; /* the sending side has been shut down */
    struct cv_task release;
};

static void on_ready(void *arg, struct cv_stream *stream, unsigned events);
static void on_timer(struct cv_timer *t);
static void on_kill(struct cv_session *s, int err);
static void on_release(struct cv_task *task);

static const struct cv_session_ops session_ops = {.kill = on_kill};

static void finish(struct lingering *l)
{
    struct cv_loop *loop = l->super.worker->loop;
    cv_stream_close(l->stream, false);
    l->stream = NULL;
    cv_loop_timer_stop(loop, &l->timer);
    cv_session_drop(&l->super);
    l->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(loop, &l->release);
}

/* False: the stream is through. */
static bool progress(struct lingering *l)
{
    if (!l->said_end) {
        int ret = cv_stream_shutdown_send(l->stream);
        if (ret != 0 && ret != -EAGAIN)
            return false;
        l->said_end = ret == 0;
    }
    while (l->discarded < CV_LINGER_MAX_BYTES) {
        size_t n;
        int ret = cv_stream_recv(l->stream, l->super.worker->scratch, CV_SCRATCH_SIZE, &n);
        if (ret == -EAGAIN)
            return true;
        if (ret < 0 || n == 0)
            return false;
        l->discarded += n;
    }
    return false;
}

void cv_linger_close(const struct cv_session *session, struct cv_stream *stream)
{
    struct lingering *l = cv_try_zalloc(sizeof(*l));
    if (l == NULL) {
        cv_stream_close(stream, false);
        return;
    }
    cv_session_begin(&l->super, session->worker, &session_ops, session->protocol, session->listener,
                     &session->client);
    l->stream = stream;
    cv_timer_init(&l->timer, on_timer);
    cv_loop_timer(session->worker->loop, &l->timer, CV_LINGER_TIMEOUT_MS);
    cv_stream_set_cb(stream, on_ready, l);
    if (!progress(l))
        finish(l);
}

static void on_ready(void *arg, struct cv_stream *stream, unsigned events)
{
    struct lingering *l = arg;
    if (!progress(l))
        finish(l);
}

static void on_timer(struct cv_timer *t)
{
    finish(CV_CONTAINER_OF(t, struct lingering, timer));
}

static void on_kill(struct cv_session *s, int err)
{
    struct lingering *l = CV_CONTAINER_OF(s, struct lingering, super);
    if (l->stream != NULL)
        finish(l);
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct lingering, release));
}
