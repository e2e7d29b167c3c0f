/* One request on its way up and its response on its way down, at the same time.
 *
 * Each direction holds what its receiver has not taken in 'out' and does not read its sender until
 * that is gone, so a slow side stops the other one by flow control. Bodies pass through the
 * worker's scratch memory; nothing is kept of them but such a rest, or the beginning of a trailer
 * section. */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "inbound/http_priv.h"
#include "net/tcp.h"

#include "common/poison.h"

#define TRAILER_OUT_MAX (16u << 10)

/* What a piece of a body looks like on the wire. */
struct frames {
    struct iovec iov[5];
    int n;
    char chunk[CV_HTTP1_CHUNK_HEAD_MAX];
    struct cv_buf tail; /* owned: last chunk and trailers */
};

static void add(struct frames *f, const void *p, size_t len)
{
    f->iov[f->n++] = (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = len};
}

/* Frame the payload of 'piece', and the end of the body when it is 'done'. */
static int frame(struct frames *f, const struct cv_http1_piece *piece, bool chunked, bool done)
{
    int ret = 0;

    f->n = 0;
    cv_buf_init(&f->tail, TRAILER_OUT_MAX);
    if (piece->data_len > 0) {
        if (chunked)
            add(f, f->chunk, cv_http1_chunk_head(f->chunk, piece->data_len));
        add(f, piece->data, piece->data_len);
        if (chunked)
            add(f, "\r\n", 2);
    }
    if (!chunked || !done)
        return 0;
    if (piece->trailer == NULL || piece->trailer_len <= 2) {
        add(f, "0\r\n\r\n", 5);
        return 0;
    }
    ret = cv_buf_append(&f->tail, "0\r\n", 3);
    if (ret == 0)
        ret = cv_http1_trailer_write(&f->tail, piece->trailer, piece->trailer_len);
    if (ret == 0)
        ret = cv_buf_append(&f->tail, "\r\n", 2);
    add(f, cv_buf_data(&f->tail), cv_buf_len(&f->tail));
    return ret;
}

static void moved(struct http_conn *c)
{
    c->work->active_ms = cv_loop_now(c->super.worker->loop);
}

/* ---- Failures ---- */

/* The way to the origin is broken or makes no sense. Before the response has begun the client is
 * told so; after that it can only see it end. */
static void origin_failed(struct http_conn *c, enum cv_stage stage, int err, const char *text)
{
    struct http_work *w = c->work;

    cv_http_origin_drop(c, true);
    if (!w->x.responded) {
        cv_http_refuse_text(c, stage, err, cv_stage_http_status(stage, err),
                            text != NULL ? text : cv_stage_message(stage, err));
        return;
    }
    cv_session_fail(&c->super, stage, err);
    w->x.close = true;
    w->x.abort = true;
    w->x.down_done = true; /* what was read before is delivered, then it ends */
}

static bool may_retry(const struct http_exchange *x)
{
    return x->reused && !x->heard && cv_http1_method_is_idempotent(x->method) &&
           cv_http1_body_is_done(&x->up);
}

/* The origin closed a kept connection as we used it: that says nothing about the request, which is
 * sent again on a new one (RFC 9112 9.3.1). Only requests that may be repeated are ever sent on a
 * kept connection. */
static void retry(struct http_conn *c)
{
    struct http_exchange *x = &c->work->x;

    cv_http_origin_unuse(c);
    x->reused = false;
    x->broken_up = false;
    x->head_off = 0;
    x->down_scan = (struct cv_http1_scan){0};
    cv_http_go(c, HTTP_STATE_DIAL);
    int ret = cv_http_origin_open(c);
    if (ret != 0)
        cv_http_refuse(c, CV_STAGE_DIAL, ret);
}

/* recv on the origin said 'err' or its end before the response was complete. */
static void origin_ended(struct http_conn *c, int err)
{
    struct http_exchange *x = &c->work->x;
    bool ended = err == CV_E_CANCELED;

    if (!x->responded && may_retry(x)) {
        retry(c);
        return;
    }
    if (ended && !x->responded)
        origin_failed(c, CV_STAGE_SPLICE, -ECONNRESET,
                      "the origin closed the connection without an answer");
    else
        origin_failed(c, CV_STAGE_SPLICE, ended ? -ECONNRESET : err, NULL);
}

/* ---- Up ---- */

static void up_failed(struct http_conn *c, int err, const char *text)
{
    struct http_work *w = c->work;

    cv_http_origin_drop(c, true);
    if (w->x.responded || text == NULL) {
        cv_http_client_gone(c, err);
        return;
    }
    w->x.parsed = false; /* where the request ends is not known any more */
    cv_http_refuse_text(c, CV_STAGE_PARSE, err, 400, text);
}

/* Read at most 'may' bytes of the request's body and frame them for the origin. HTTP_WAIT: there is
 * none, or the state was left. */
static enum http_step up_read(struct http_conn *c, size_t may, struct frames *f)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct cv_http1_fault fault;
    struct cv_http1_piece piece;
    struct http_view v;

    int ret = cv_http_side_body(&w->client, c->super.worker, x->up_stuck, may, &v);
    if (ret == -EAGAIN)
        return HTTP_WAIT;
    if (ret == 0) {
        ret = cv_http1_body_decode(&x->up, v.p, v.len, &piece, &fault);
        if (ret == CV_E_PROTO) {
            up_failed(c, ret, fault.text);
            return HTTP_WAIT;
        }
    }
    if (ret == 0) {
        x->up_stuck = piece.used < v.len;
        ret = frame(f, &piece, x->up_chunked, cv_http1_body_is_done(&x->up));
    }
    /* The frames point into scratch memory or the tail, not into what is put back here. */
    if (ret == 0)
        ret = cv_http_side_used(&w->client, &v, piece.used);
    if (ret != 0) {
        up_failed(c, ret, NULL);
        return HTTP_WAIT;
    }
    return HTTP_AGAIN;
}

/* Send the head, as far as it has not gone, and 'f'. True: something was taken, or nothing will be
 * any more. */
static bool up_send(struct http_conn *c, struct frames *f)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    size_t head_len = cv_buf_len(&w->head) - x->head_off, n = 0;
    struct iovec iov[6];
    int cnt = 0;

    /* The head stays where it is until the origin has answered, for a second try; the body behind
     * it is only ever kept in 'out'. */
    if (head_len > 0)
        iov[cnt++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)(cv_buf_data(&w->head) + x->head_off),
                           .iov_len = head_len};
    for (int i = 0; i < f->n; i++)
        iov[cnt++] = f->iov[i];
    if (cnt == 0 && cv_buf_is_empty(&w->origin.out))
        return false;

    int ret;
    if (head_len > 0) {
        ret = cv_stream_sendv(w->origin.stream, iov, cnt, &n);
        size_t of_head = ret == 0 ? CV_MIN(n, head_len) : 0, of_body = n - of_head;
        x->head_off += (uint32_t)of_head;
        for (int i = head_len > 0; i < cnt && (ret == 0 || ret == -EAGAIN); i++) {
            size_t gone = CV_MIN(of_body, iov[i].iov_len);
            of_body -= gone;
            int err = cv_buf_append(&w->origin.out, (uint8_t *)iov[i].iov_base + gone,
                                    iov[i].iov_len - gone);
            if (err != 0)
                ret = err;
        }
        ret = ret == -EAGAIN ? 0 : ret;
    } else {
        ret = cv_http_side_send(&w->origin, iov, cnt, &n);
    }
    if (n > 0) {
        moved(c);
        cv_http_rate_moved(c, true, n);
    }
    /* The origin may have answered before it closed: what it said is still to be read. */
    if (ret != 0)
        x->broken_up = true;
    return n > 0 || ret != 0;
}

static bool up_is_empty(const struct http_work *w)
{
    return w->x.head_off == cv_buf_len(&w->head) && cv_buf_is_empty(&w->origin.out);
}

static bool up_is_done(const struct http_work *w)
{
    return cv_http1_body_is_done(&w->x.up) && up_is_empty(w);
}

static enum http_step up_step(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct frames f = {.n = 0};
    enum http_step step = HTTP_WAIT;
    size_t may;

    if (x->broken_up || w->origin.stream == NULL)
        return HTTP_WAIT;
    if (up_is_done(w)) {
        cv_http_read_ahead(c);
        return HTTP_WAIT;
    }
    cv_buf_init(&f.tail, 0);
    /* The first piece of a body leaves together with the head. */
    bool fresh = x->head_off == 0 && cv_buf_is_empty(&w->origin.out);
    if (!fresh && !up_is_empty(w))
        return up_send(c, &f) ? HTTP_AGAIN : HTTP_WAIT;
    int ret = cv_http_rate_allow(c, true, &may);
    if (ret != 0)
        origin_failed(c, CV_STAGE_SPLICE, ret, NULL);
    if (ret != 0 || may == 0)
        return HTTP_WAIT;
    if (!cv_http1_body_is_done(&x->up))
        step = up_read(c, may, &f);
    if (c->state == HTTP_STATE_FORWARD && (f.n > 0 || fresh) && up_send(c, &f))
        step = HTTP_AGAIN;
    cv_buf_done(&f.tail);
    return step;
}

/* ---- Down ---- */

/* How the body leaves: what has no length of its own gets chunks, so that the connection can go on
 * and a cut is seen; an HTTP/1.0 client gets neither. */
static enum cv_http1_framing down_framing(const struct http_exchange *x,
                                          const struct cv_http1_response *r)
{
    if (r->framing != CV_HTTP1_CHUNKED && r->framing != CV_HTTP1_CLOSE)
        return r->framing;
    return x->minor > 0 ? CV_HTTP1_CHUNKED : CV_HTTP1_CLOSE;
}

static int down_final(struct http_conn *c, const struct cv_http1_response *r)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct cv_http1_reply_opts opts = {.framing = down_framing(x, r), .minor = x->minor};

    x->responded = true;
    x->chunked = opts.framing == CV_HTTP1_CHUNKED;
    x->until_close = opts.framing == CV_HTTP1_CLOSE;
    x->ends_by_close = r->framing == CV_HTTP1_CLOSE;
    x->has_length = r->framing == CV_HTTP1_LENGTH;
    x->keep_origin = r->persistent;
    /* A request whose body has not come yet may never be read to its end. */
    x->close = !x->persistent || x->until_close || !cv_http1_body_is_done(&x->up) ||
               cv_http_is_draining(c);
    opts.close = x->close;
    cv_http1_body_init(&x->down, r->framing, r->length);
    x->down_done = cv_http1_body_is_done(&x->down);
    if (x->head_off == cv_buf_len(&w->head)) { /* no second try from here on */
        cv_buf_done(&w->head);
        x->head_off = 0;
    }
    return cv_http1_response_write(&w->client.out, r, &opts);
}

/* A whole response head of 'len' bytes. 0, or a code; CV_E_PROTO with *ret_text. */
static int down_head(struct http_conn *c, const uint8_t *p, size_t len, bool *ret_switch,
                     const char **ret_text)
{
    struct http_exchange *x = &c->work->x;
    struct cv_http1_response r;
    struct cv_http1_fault fault;
    struct cv_http1_reply_opts opts = {.framing = CV_HTTP1_EMPTY, .minor = x->minor};

    int ret = cv_http1_response_parse(&r, (const char *)p, len, x->method, &fault);
    if (ret != 0) {
        *ret_text = fault.text;
        return ret;
    }
    if (r.status >= 200)
        return down_final(c, &r);
    if (r.status == 101) {
        if (!x->upgrade || !r.head.upgrade) {
            *ret_text = "the origin switched protocols without being asked";
            return CV_E_PROTO;
        }
        *ret_switch = true;
        opts.upgrade = true;
        return cv_http1_response_write(&c->work->client.out, &r, &opts);
    }
    if (++x->interim > CV_HTTP_INTERIM_MAX) {
        *ret_text = "the origin sends too many interim responses";
        return CV_E_PROTO;
    }
    x->down_scan = (struct cv_http1_scan){0};
    /* RFC 9110 15.2: never to an HTTP/1.0 client. */
    return x->minor > 0 ? cv_http1_response_write(&c->work->client.out, &r, &opts) : 0;
}

/* Send what is in 'out' and then 'f' to the client. False: the client is gone. */
static bool down_send(struct http_conn *c, struct frames *f)
{
    size_t n;
    int ret = cv_http_side_send(&c->work->client, f->iov, f->n, &n);

    if (n > 0) {
        moved(c);
        cv_http_rate_moved(c, false, n);
    }
    if (ret != 0)
        cv_http_client_gone(c, ret);
    return ret == 0;
}

/* Take the body apart that is in the view from 'at' on, and send it. */
static enum http_step down_body(struct http_conn *c, struct http_view *v, size_t at)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct cv_http1_fault fault;
    struct cv_http1_piece piece = {0};
    struct frames f = {.n = 0};

    cv_buf_init(&f.tail, 0);
    int ret = cv_http1_body_decode(&x->down, v->p + at, v->len - at, &piece, &fault);
    if (ret == 0) {
        x->down_stuck = piece.used < v->len - at;
        x->down_done = cv_http1_body_is_done(&x->down);
        ret = frame(&f, &piece, x->chunked, x->down_done);
    }
    if (ret == 0)
        ret = cv_http_side_used(&w->origin, v, at + piece.used);
    if (ret != 0)
        origin_failed(c, CV_STAGE_SPLICE, ret, NULL);
    else
        (void)down_send(c, &f);
    cv_buf_done(&f.tail);
    return HTTP_AGAIN;
}

/* The origin has nothing to read. If it cannot be written to either, that was all it said: no
 * event is sure to follow. */
static enum http_step down_wait(struct http_conn *c)
{
    if (!c->work->x.broken_up)
        return HTTP_WAIT;
    origin_ended(c, -ECONNRESET);
    return HTTP_AGAIN;
}

static enum http_step down_read_head(struct http_conn *c, size_t may)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct cv_http1_fault fault;
    struct http_view v;
    const char *text = NULL;
    bool switched = false;
    size_t n;

    int ret = cv_http_side_head(&w->origin, c->super.worker, x->down_stuck, may, &v);
    if (ret == -EAGAIN)
        return down_wait(c);
    if (ret != 0) {
        origin_ended(c, ret);
        return HTTP_AGAIN;
    }
    x->heard = true;
    moved(c);
    ret = cv_http1_scan(&x->down_scan, CV_HTTP1_RESPONSE, v.p, v.len, &n, &fault);
    x->down_stuck = ret == CV_E_MORE;
    if (ret == CV_E_MORE) {
        ret = cv_http_side_used(&w->origin, &v, 0);
        if (ret != 0)
            origin_failed(c, CV_STAGE_SPLICE, ret, NULL);
        return HTTP_AGAIN;
    }
    if (ret == 0)
        ret = down_head(c, v.p, n, &switched, &text);
    else
        text = fault.text;
    if (ret != 0) {
        origin_failed(c, CV_STAGE_SPLICE, ret,
                      text != NULL ? text : "the answer could not be passed on");
        return HTTP_AGAIN;
    }
    /* What came with the head leaves with it, unless it lies in the buffer and must not change. */
    if (x->responded && !x->down_done && v.kept == 0 && n < v.len)
        return down_body(c, &v, n);
    ret = cv_http_side_used(&w->origin, &v, n);
    if (ret != 0)
        origin_failed(c, CV_STAGE_SPLICE, ret, NULL);
    else if (switched)
        cv_http_tunnel_start(c, "");
    return HTTP_AGAIN;
}

/* The origin has ended the connection while its body was being read. */
static void down_end(struct http_conn *c, int err)
{
    struct http_exchange *x = &c->work->x;

    if (err == CV_E_CANCELED && x->ends_by_close) {
        struct frames f = {.n = 0};
        x->down_done = true;
        if (x->chunked)
            add(&f, "0\r\n\r\n", 5);
        (void)down_send(c, &f);
    } else {
        origin_ended(c, err);
    }
}

static enum http_step down_splice(struct http_conn *c, size_t may)
{
    struct http_work *w = c->work;
    size_t n;

    int ret = cv_http_splice_read(c, may);
    if (ret == -EAGAIN)
        return down_wait(c);
    if (ret != 0) {
        origin_ended(c, ret);
        return HTTP_AGAIN;
    }
    ret = cv_http_splice_send(c, &n);
    if (ret == -EAGAIN)
        return HTTP_WAIT;
    if (ret != 0) {
        cv_http_client_gone(c, ret);
        return HTTP_AGAIN;
    }
    if (n > 0) {
        moved(c);
        cv_http_rate_moved(c, false, n);
    }
    w->x.down_done = w->pipe.rd < 0 && cv_http1_body_is_done(&w->x.down);
    return HTTP_AGAIN;
}

static enum http_step down_step(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct frames none = {.n = 0};
    struct http_view v;
    size_t may;

    if (!cv_buf_is_empty(&w->client.out) && !down_send(c, &none))
        return HTTP_AGAIN;
    /* While the client does not take what it has been sent, its origin is not read. An interim
     * response or a head alone may wait for what comes with it. */
    if (!cv_buf_is_empty(&w->client.out))
        return HTTP_WAIT;
    if (x->down_done)
        return HTTP_WAIT;
    /* What is in the pipe has been allowed already. */
    if (w->pipe.rd >= 0 && w->pipe.len > 0)
        return down_splice(c, 0);
    int ret = cv_http_rate_allow(c, false, &may);
    if (ret != 0)
        origin_failed(c, CV_STAGE_SPLICE, ret, NULL);
    if (ret != 0 || may == 0)
        return HTTP_WAIT;
    if (!x->responded)
        return down_read_head(c, may);
    if (cv_http_splice_is_on(c))
        return down_splice(c, may);
    ret = cv_http_side_body(&w->origin, c->super.worker, x->down_stuck, may, &v);
    if (ret == -EAGAIN)
        return down_wait(c);
    moved(c);
    x->bulk = ret == 0 && x->has_length && v.kept == 0 && v.len == CV_SCRATCH_SIZE;
    if (ret != 0)
        down_end(c, ret);
    else
        (void)down_body(c, &v, 0);
    return HTTP_AGAIN;
}

/* ---- Both ---- */

void cv_http_forward_start(struct http_conn *c)
{
    struct http_work *w = c->work;

    w->began_ms = w->active_ms = cv_loop_now(c->super.worker->loop);
    w->tuned = false;
    cv_http_go(c, HTTP_STATE_FORWARD);
    cv_http_arm(c, cv_http_forward_due(c));
}

/* Everything was passed on in both directions. */
static void finish(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    bool complete = up_is_done(w);

    if (w->origin.stream != NULL) {
        if (!x->keep_origin || !complete || x->broken_up || w->origin.eof ||
            !cv_buf_is_empty(&w->origin.in))
            cv_http_origin_drop(c, !complete);
    }
    if (x->close || !complete)
        cv_http_end(c, !(x->abort && x->until_close), x->abort && x->until_close);
    else
        cv_http_next(c);
}

enum http_step cv_http_forward_step(struct http_conn *c)
{
    enum http_step up = up_step(c), down = HTTP_AGAIN;

    if (c->state == HTTP_STATE_FORWARD)
        down = down_step(c);
    if (c->state != HTTP_STATE_FORWARD)
        return HTTP_AGAIN;
    if (c->work->x.down_done && cv_buf_is_empty(&c->work->client.out)) {
        finish(c);
        return HTTP_AGAIN;
    }
    if (up == HTTP_AGAIN || down == HTTP_AGAIN)
        return HTTP_AGAIN;
    cv_http_rate_rest(c);
    return HTTP_WAIT;
}

/* When the exchange is over if nothing moves; INT64_MAX: never. */
static int64_t silent_until(const struct http_conn *c)
{
    const struct cv_settings *settings = c->super.worker->settings;
    int64_t due = INT64_MAX;

    if (settings->idle_timeout_ms > 0)
        due = c->work->active_ms + settings->idle_timeout_ms;
    if (c->work->client.eof && settings->half_close_timeout_ms > 0)
        due = CV_MIN(due, c->work->active_ms + settings->half_close_timeout_ms);
    return due;
}

int64_t cv_http_forward_due(const struct http_conn *c)
{
    int64_t due = silent_until(c);

    return c->work->tuned ? due : CV_MIN(due, c->work->began_ms + CV_HTTP_TUNE_MS);
}

void cv_http_forward_timeout(struct http_conn *c)
{
    struct http_work *w = c->work;
    int64_t now = cv_loop_now(c->super.worker->loop);

    if (cv_http_rate_is_waiting(c))
        w->active_ms = now; /* it is not silent, it is kept from speaking */
    if (now >= silent_until(c)) {
        cv_http_origin_drop(c, true);
        if (!w->x.responded) {
            cv_http_refuse(c, CV_STAGE_SPLICE, -ETIMEDOUT);
            cv_http_run(c);
        } else {
            cv_session_fail(&c->super, CV_STAGE_SPLICE, -ETIMEDOUT);
            cv_http_end(c, false, true);
        }
        return;
    }
    if (!w->tuned && now >= w->began_ms + CV_HTTP_TUNE_MS) {
        w->tuned = true;
        cv_tcp_keepalive(cv_stream_socket_fd(w->client.stream));
        if (w->origin.stream != NULL)
            cv_tcp_keepalive(cv_stream_socket_fd(w->origin.stream));
    }
    cv_http_arm(c, cv_http_forward_due(c));
}
