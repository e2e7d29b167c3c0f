/* Long answers of known length, moved from socket to socket within the kernel: their bytes are not
 * looked at, so that only their number has to be kept. */
#include <errno.h>
#include <fcntl.h>

#include "common/err.h"
#include "common/sys.h"
#include "inbound/http_priv.h"

#include "common/poison.h"

#define SPLICE_BYTES (256u << 10)
#define SPLICE_WORTH (16u << 10) /* below this a splice costs more than a copy */
#define SPLICE_LEFT  (64u << 10) /* a shorter rest is copied */

bool cv_http_splice_is_on(struct http_conn *c)
{
    struct http_work *w = c->work;

    if (w->pipe.rd >= 0 && w->pipe.len > 0)
        return true;
    return w->x.bulk && !w->unspliceable && cv_http1_body_left(&w->x.down) >= SPLICE_LEFT &&
           cv_buf_is_empty(&w->origin.in) && cv_stream_raw_fd(w->origin.stream) >= 0 &&
           cv_stream_raw_fd(w->client.stream) >= 0 &&
           (w->pipe.rd >= 0 || cv_pipe_get(c->super.worker->pipes, &w->pipe) == 0);
}

void cv_http_splice_done(struct http_conn *c)
{
    struct cv_pipe *pipe = &c->work->pipe;

    if (pipe->rd >= 0)
        cv_pipe_put(c->super.worker->pipes, pipe);
    *pipe = (struct cv_pipe){.rd = -1, .wr = -1};
}

/* The pipe is empty, so -EAGAIN can only mean that the origin has nothing. */
int cv_http_splice_read(struct http_conn *c, size_t max)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    size_t want = CV_MIN(SPLICE_BYTES, max), n = 0;

    if (w->pipe.len > 0)
        return 0;
    if (cv_http1_body_left(&x->down) < want)
        want = (size_t)cv_http1_body_left(&x->down);
    int ret = cv_sys_splice(cv_stream_raw_fd(w->origin.stream), w->pipe.wr, want,
                            SPLICE_F_MOVE | SPLICE_F_NONBLOCK, &n);
    if (ret == -EINVAL || ret == -ENOSYS || ret == -EOPNOTSUPP) {
        w->unspliceable = true;
        ret = 0;
    } else if (ret == 0 && n == 0) {
        w->origin.eof = true;
        ret = CV_E_CANCELED;
    } else if (ret == 0) {
        cv_http1_body_skip(&x->down, n);
        w->pipe.len = n;
        x->bulk = n >= SPLICE_WORTH;
    }
    if (w->pipe.len == 0)
        cv_http_splice_done(c);
    return ret;
}

int cv_http_splice_send(struct http_conn *c, size_t *ret_n)
{
    struct http_work *w = c->work;

    *ret_n = 0;
    if (w->pipe.rd < 0)
        return 0;
    if (w->client_blocked)
        return -EAGAIN;
    int ret = cv_sys_splice(w->pipe.rd, cv_stream_raw_fd(w->client.stream), w->pipe.len,
                            SPLICE_F_MOVE | SPLICE_F_NONBLOCK, ret_n);
    if (ret == -EAGAIN || (ret == 0 && *ret_n == 0)) {
        w->client_blocked = true;
        return -EAGAIN;
    }
    if (ret != 0)
        return ret;
    w->pipe.len -= *ret_n;
    if (w->pipe.len == 0)
        cv_http_splice_done(c);
    return 0;
}
