#include <errno.h>

#include "common/err.h"
#include "inbound/http_priv.h"

#include "common/poison.h"

static void on_origin(void *arg, struct cv_stream *stream, unsigned events)
{
    struct http_conn *c = arg;

    if (c->state == HTTP_STATE_FORWARD)
        cv_http_run(c);
    else
        cv_http_origin_check(c);
}

int cv_http_origin_open(struct http_conn *c)
{
    struct http_work *w = c->work;

    cv_http_origin_drop(c, false);
    return cv_way_open(&w->way, &c->super, &w->target, cv_http_on_flow, c, &w->flow);
}

void cv_http_origin_set(struct http_conn *c, struct cv_stream *stream)
{
    CV_ASSERT(c->work->origin.stream == NULL);
    c->work->origin.stream = stream;
    cv_stream_set_cb(stream, on_origin, c);
    cv_way_keep(&c->work->way, &c->super);
}

void cv_http_origin_drop(struct http_conn *c, bool abort)
{
    cv_http_side_close(&c->work->origin, abort);
    cv_way_done(&c->work->way);
}

void cv_http_origin_check(struct http_conn *c)
{
    uint8_t byte;
    size_t n;

    /* Nothing is due on a connection that serves no request: a byte or an end makes it useless. */
    if (cv_stream_recv(c->work->origin.stream, &byte, 1, &n) != -EAGAIN)
        cv_http_origin_drop(c, false);
}

bool cv_http_origin_reuse(struct http_conn *c)
{
    struct http_work *w = c->work;

    return w->origin.stream != NULL && cv_way_join(&w->way, &c->super, &w->target);
}

void cv_http_origin_unuse(struct http_conn *c)
{
    cv_way_leave(&c->super);
    cv_http_origin_drop(c, false);
}
