#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "inbound/http_priv.h"

#include "common/poison.h"

#define READ_MORE  4096u /* at least so much room when a head is read on */
#define IOV_MAX_US 8     /* 'out' and what a caller adds */

void cv_http_side_init(struct http_side *s)
{
    cv_buf_init(&s->in, CV_HTTP_IN_MAX);
    cv_buf_init(&s->out, CV_HTTP_OUT_MAX);
}

void cv_http_side_close(struct http_side *s, bool abort)
{
    cv_stream_close(s->stream, abort);
    s->stream = NULL;
    s->eof = false;
    cv_buf_done(&s->in);
    cv_buf_done(&s->out);
}

/* 'taken' bytes of [out][iov...] are gone; the rest of 'iov' goes to the end of 'out'. */
static int keep_unsent(struct http_side *s, const struct iovec *iov, int iovcnt, size_t taken)
{
    size_t n = CV_MIN(taken, cv_buf_len(&s->out));

    cv_buf_consume(&s->out, n);
    taken -= n;
    for (int i = 0; i < iovcnt; i++) {
        n = CV_MIN(taken, iov[i].iov_len);
        taken -= n;
        int ret = cv_buf_append(&s->out, (const uint8_t *)iov[i].iov_base + n, iov[i].iov_len - n);
        if (ret != 0)
            return ret;
    }
    cv_buf_release(&s->out);
    return 0;
}

int cv_http_side_send(struct http_side *s, struct iovec *iov, int iovcnt, size_t *ret_n)
{
    struct iovec all[IOV_MAX_US];
    int n = 0;
    size_t taken = 0;

    *ret_n = 0;
    CV_ASSERT(iovcnt < IOV_MAX_US);
    if (!cv_buf_is_empty(&s->out))
        all[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)cv_buf_data(&s->out),
                                  .iov_len = cv_buf_len(&s->out)};
    for (int i = 0; i < iovcnt; i++)
        if (iov[i].iov_len > 0)
            all[n++] = iov[i];
    if (n == 0)
        return 0;
    int ret = cv_stream_sendv(s->stream, all, n, &taken);
    if (ret != 0 && ret != -EAGAIN)
        return ret;
    *ret_n = ret == 0 ? taken : 0;
    return keep_unsent(s, iov, iovcnt, *ret_n);
}

static int read_some(struct http_side *s, uint8_t *p, size_t cap, size_t *ret_n)
{
    if (s->eof)
        return CV_E_CANCELED;
    int ret = cv_stream_recv(s->stream, p, cap, ret_n);
    if (ret == 0 && *ret_n == 0) {
        s->eof = true;
        return CV_E_CANCELED;
    }
    return ret;
}

int cv_http_side_head(struct http_side *s, struct cv_worker *w, bool more, size_t max,
                      struct http_view *ret_v)
{
    size_t n = 0, room;
    uint8_t *p;
    int ret;

    if (cv_buf_is_empty(&s->in)) {
        ret = read_some(s, w->scratch, CV_MIN(CV_SCRATCH_SIZE, max), &n);
        if (ret == 0)
            *ret_v = (struct http_view){.p = w->scratch, .len = n};
        return ret;
    }
    if (more) {
        ret = cv_buf_reserve(&s->in, CV_MIN((size_t)READ_MORE, cv_buf_room(&s->in)), &p, &room);
        if (ret != 0 || room == 0)
            return ret != 0 ? ret : CV_E_LIMIT;
        ret = read_some(s, p, CV_MIN(room, max), &n);
        if (ret != 0)
            return ret;
        cv_buf_commit(&s->in, n);
    }
    n = cv_buf_len(&s->in);
    *ret_v =
        (struct http_view){.p = (uint8_t *)(uintptr_t)cv_buf_data(&s->in), .len = n, .kept = n};
    return 0;
}

int cv_http_side_body(struct http_side *s, struct cv_worker *w, bool more, size_t max,
                      struct http_view *ret_v)
{
    size_t have = cv_buf_len(&s->in), top = more ? SIZE_MAX : max;
    size_t kept = CV_MIN(have, CV_MIN(top, (size_t)CV_SCRATCH_SIZE)), n = 0;

    if (kept > 0)
        memcpy(w->scratch, cv_buf_data(&s->in), kept);
    if (have == 0 || (more && kept == have && kept < CV_SCRATCH_SIZE)) {
        int ret = read_some(s, w->scratch + kept, CV_MIN(CV_SCRATCH_SIZE - kept, max), &n);
        if (ret != 0)
            return ret;
    }
    *ret_v = (struct http_view){.p = w->scratch, .len = kept + n, .kept = kept};
    return 0;
}

int cv_http_side_used(struct http_side *s, const struct http_view *v, size_t used)
{
    size_t from = CV_MAX(used, v->kept); /* the first byte that is not in 'in' yet */
    int ret = 0;

    cv_buf_consume(&s->in, CV_MIN(used, v->kept));
    if (v->len > from)
        ret = cv_buf_append(&s->in, v->p + from, v->len - from);
    cv_buf_release(&s->in);
    return ret;
}
