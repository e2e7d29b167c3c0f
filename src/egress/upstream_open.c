#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"
#include "common/secret.h"
#include "egress/upstream_priv.h"
#include "flow/worker.h"
#include "net/happy.h"
#include "net/replay.h"
#include "proto/http_connect.h"

#include "common/poison.h"

#define DOMAIN  "upstream"
#define IN_MAX  CV_HTTP_CONNECT_REPLY_MAX
#define IN_STEP 512 /* most replies fit */
#define OUT_MAX CV_HTTP_CONNECT_REQUEST_MAX

enum open_state {
    OPEN_STATE_DIAL = 0, /* we are here until there is a connection to the proxy */
    OPEN_STATE_HEADER,   /* ... the PROXY protocol header is on its way */
    OPEN_STATE_TLS,      /* ... the handshake runs */
    OPEN_STATE_TALK,     /* ... the proxy has not answered */
    OPEN_STATE_LAST,     /* ... it has, before all that we had to say was out */
    OPEN_STATE_DONE,     /* the callback runs */
};

struct cv_upstream_open {
    const struct cv_upstream *u;               /* borrowed */
    const struct cv_upstream_request *request; /* borrowed */
    cv_upstream_cb cb;
    void *arg;
    enum open_state state;
    struct cv_happy *happy;   /* in DIAL */
    struct cv_stream *stream; /* owned; from HEADER on */
    struct cv_timer timer;    /* the deadline, from HEADER on; before, it is that of 'happy' */
    struct cv_endpoint peer;
    union {
        struct cv_socks5_client socks;
        struct cv_http_connect http;
    };
    struct cv_buf in; /* what the proxy sent and nobody used yet */
    size_t out_off, out_len;
    uint8_t out[OUT_MAX]; /* to be sent; may hold the login */
};

_Static_assert(CV_SOCKS5_CLIENT_OUT_MAX <= OUT_MAX, "what SOCKS5 sends fits");
_Static_assert(CV_PROXY_PROTOCOL_OUT_MAX <= OUT_MAX, "a PROXY protocol header fits");

static void on_timer(struct cv_timer *t);
static void on_stream(void *arg, struct cv_stream *s, unsigned events);

/* ---- the end ---- */

static struct cv_loop *loop_of(const struct cv_upstream_open *o)
{
    return o->request->worker->loop;
}

static void release(struct cv_upstream_open *o)
{
    cv_loop_timer_stop(loop_of(o), &o->timer);
    cv_buf_done(&o->in);
    cv_secret_clear(o->out, sizeof(o->out));
    cv_free(o);
}

static void finish(struct cv_upstream_open *o, enum cv_stage stage, int err,
                   const struct cv_endpoint *bnd)
{
    struct cv_upstream_answer a = {.err = err, .stage = stage, .peer = o->peer};
    cv_upstream_cb cb = o->cb;
    void *arg = o->arg;
    o->state = OPEN_STATE_DONE;
    if (err == 0) {
        cv_stream_set_cb(o->stream, NULL, NULL);
        a.stream = o->stream;
        a.bnd = *bnd;
    } else {
        cv_stream_close(o->stream, false);
    }
    release(o);
    cb(arg, &a);
}

static enum cv_stage stage_now(const struct cv_upstream_open *o)
{
    switch (o->state) {
    case OPEN_STATE_DIAL:
        return CV_STAGE_DIAL;
    case OPEN_STATE_TLS:
        return CV_STAGE_TLS;
    default:
        return CV_STAGE_OUTBOUND;
    }
}

static void fail(struct cv_upstream_open *o, int err)
{
    finish(o, stage_now(o), err, NULL);
}

static void on_timer(struct cv_timer *t)
{
    fail(CV_CONTAINER_OF(t, struct cv_upstream_open, timer), -ETIMEDOUT);
}

/* ---- bytes; each returns 0, -EAGAIN, or why the connection is of no use ---- */

static int flush(struct cv_upstream_open *o)
{
    while (o->out_off < o->out_len) {
        size_t n;
        int ret = cv_stream_send(o->stream, o->out + o->out_off, o->out_len - o->out_off, &n);
        if (ret != 0)
            return ret;
        o->out_off += n;
    }
    o->out_off = o->out_len = 0;
    return 0;
}

static int fill(struct cv_upstream_open *o)
{
    uint8_t *p;
    size_t room, n;
    int ret = cv_buf_reserve(&o->in, CV_MIN(cv_buf_room(&o->in), (size_t)IN_STEP), &p, &room);
    if (ret == 0 && room == 0)
        ret = CV_E_LIMIT;
    if (ret == 0)
        ret = cv_stream_recv(o->stream, p, room, &n);
    if (ret != 0)
        return ret;
    if (n == 0)
        return -ECONNRESET; /* closed without an answer; for a client it is the same */
    cv_buf_commit(&o->in, n);
    return 0;
}

/* ---- the proxy's protocol ---- */

static int talk_begin(struct cv_upstream_open *o)
{
    const struct cv_upstream *u = o->u;
    const char *user = u->user != NULL ? u->user->s : NULL;
    size_t user_len = u->user != NULL ? u->user->len : 0;
    size_t pass_len = u->pass != NULL ? u->pass->len : 0;
    o->state = OPEN_STATE_TALK;
    if (u->kind == CV_BACKEND_SOCKS5)
        return cv_socks5_client_init(&o->socks, o->request->cmd, user, user_len,
                                     cv_rcstr_text(u->pass), pass_len, o->request->target);
    o->http = (struct cv_http_connect){0};
    o->out_len = cv_http_connect_request((char *)o->out, o->request->target, user, user_len,
                                         cv_rcstr_text(u->pass), pass_len);
    return 0;
}

static void set_blame(struct cv_upstream_open *o, enum cv_blame blame)
{
    if (o->request->blame != NULL)
        *o->request->blame = blame;
}

/* Whose fault a refusal is that the proxy gave a reason for. "Refused", "not allowed" and "not this
 * kind of address" are about the target: the proxy has gone to it or has looked at it. That a
 * network, a host or anything else cannot be reached is said by a proxy that has lost its own
 * network, too. */
static enum cv_blame refusal_blame(int err)
{
    switch (err) {
    case CV_E_POLICY:
    case -ECONNREFUSED:
    case -EAFNOSUPPORT:
        return CV_BLAME_TARGET;
    case CV_E_AUTH:
    case CV_E_UNSUPPORTED:
        return CV_BLAME_EGRESS;
    default:
        return CV_BLAME_UNSURE;
    }
}

static int refused(struct cv_upstream_open *o, int err)
{
    set_blame(o, refusal_blame(err));
    return err;
}

static int socks_step(struct cv_upstream_open *o, size_t *ret_used)
{
    int ret = cv_socks5_client_step(&o->socks, cv_buf_data(&o->in), cv_buf_len(&o->in), ret_used,
                                    o->out, &o->out_len);
    /* It has chosen a method and let us in: it lives, and dials. */
    if (ret == CV_E_MORE && o->socks.state == CV_SOCKS5_CLIENT_STATE_REPLY)
        set_blame(o, CV_BLAME_UNSURE);
    return ret == CV_E_UNAVAILABLE ? refused(o, cv_socks5_rep_err(o->socks.reply.rep)) : ret;
}

static int http_step(struct cv_upstream_open *o, size_t *ret_used)
{
    int ret = cv_http_connect_step(&o->http, cv_buf_data(&o->in), cv_buf_len(&o->in), ret_used);
    /* Until the reply there is no sign from the proxy, only from its kernel or its TLS. */
    if (ret == CV_E_MORE)
        set_blame(o, CV_BLAME_UNSURE);
    return ret == CV_E_UNAVAILABLE ? refused(o, cv_http_connect_status_err(o->http.status)) : ret;
}

/* 0: the proxy has done what was asked; -EAGAIN; other codes. */
static int talk(struct cv_upstream_open *o)
{
    bool socks = o->u->kind == CV_BACKEND_SOCKS5;
    int ret = flush(o);
    while (ret == 0 && o->state == OPEN_STATE_TALK) {
        size_t used = 0;
        ret = socks ? socks_step(o, &used) : http_step(o, &used);
        cv_buf_consume(&o->in, used);
        if (ret == 0)
            o->state = OPEN_STATE_LAST;
        else if (ret != CV_E_MORE) {
            if (ret == CV_E_PROTO || ret == CV_E_LIMIT || ret == CV_E_AUTH)
                set_blame(o, CV_BLAME_EGRESS);
            return ret;
        }
        bool more = ret == CV_E_MORE;
        ret = flush(o);
        if (ret == 0 && more)
            ret = fill(o);
    }
    return ret;
}

/* Hand the stream over, with what came behind the reply before it. */
static void done(struct cv_upstream_open *o)
{
    struct cv_endpoint none = {0};
    const struct cv_endpoint *bnd = o->u->kind == CV_BACKEND_SOCKS5 ? &o->socks.reply.bnd : &none;
    if (!cv_buf_is_empty(&o->in)) {
        struct cv_stream *below = o->stream;
        o->stream = NULL;
        int ret = cv_replay_open(below, cv_buf_data(&o->in), cv_buf_len(&o->in), &o->stream);
        if (ret != 0) {
            fail(o, ret);
            return;
        }
    }
    finish(o, CV_STAGE_NONE, 0, bnd);
}

/* ---- the way to it ---- */

static void header_begin(struct cv_upstream_open *o)
{
    struct cv_proxy_protocol h = {
        .version = o->u->proxy_protocol,
        .kind = CV_PROXY_PROTOCOL_PROXY,
        .src = o->request->client,
        .dst = o->peer,
    };
    o->state = OPEN_STATE_HEADER;
    if (h.version != CV_PROXY_PROTOCOL_NONE)
        o->out_len = cv_proxy_protocol_encode(o->out, &h);
}

static int tls_begin(struct cv_upstream_open *o)
{
    struct cv_stream *below = o->stream;
    o->state = OPEN_STATE_TLS;
    o->stream = NULL;
    int ret = cv_tls_client(o->u->tls, below, &o->u->server, &o->stream);
    if (ret == 0)
        cv_stream_set_cb(o->stream, on_stream, o);
    return ret;
}

static int tls_step(struct cv_upstream_open *o)
{
    int ret = cv_tls_handshake(o->stream);
    if (ret == CV_E_TLS) {
        char name[CV_TARGET_STRLEN];
        const char *fault = cv_tls_fault(o->stream);
        cv_debug(DOMAIN, "tls handshake failed server='%s' error='%s'",
                 cv_target_format(&o->u->server, name), fault != NULL ? fault : "closed");
    }
    return ret;
}

/* Go as far as the connection lets us. */
static void advance(struct cv_upstream_open *o)
{
    int ret = 0;
    if (o->state == OPEN_STATE_HEADER && (ret = flush(o)) == 0)
        ret = o->u->tls != NULL ? tls_begin(o) : talk_begin(o);
    if (ret == 0 && o->state == OPEN_STATE_TLS && (ret = tls_step(o)) == 0)
        ret = talk_begin(o);
    if (ret == 0 && (ret = talk(o)) == 0)
        done(o);
    else if (ret != -EAGAIN)
        fail(o, ret);
}

static void on_stream(void *arg, struct cv_stream *s, unsigned events)
{
    (void)s;
    (void)events;
    advance(arg);
}

static void on_dialled(struct cv_happy *h, int err, enum cv_happy_stage stage,
                       struct cv_stream *stream, const struct cv_endpoint *peer)
{
    struct cv_upstream_open *o = cv_happy_arg(h);
    o->happy = NULL;
    if (err != 0) {
        finish(o, stage == CV_HAPPY_DNS ? CV_STAGE_DNS : CV_STAGE_DIAL, err, NULL);
        return;
    }
    o->stream = stream;
    o->peer = *peer;
    cv_stream_set_cb(stream, on_stream, o);
    cv_loop_timer(loop_of(o), &o->timer,
                  CV_MAX(o->request->deadline_ms - cv_loop_now(loop_of(o)), 1));
    header_begin(o);
    advance(o);
}

int cv_upstream_open(const struct cv_upstream *u, const struct cv_upstream_request *request,
                     cv_upstream_cb cb, void *arg, struct cv_upstream_open **ret_open)
{
    struct cv_worker *w = request->worker;
    if (u->server.port == 0)
        return CV_E_INVALID;
    if (u->kind == CV_BACKEND_HTTP && request->cmd != CV_SOCKS5_CMD_CONNECT)
        return CV_E_UNSUPPORTED;
    struct cv_upstream_open *o = cv_try_zalloc(sizeof(*o));
    if (o == NULL)
        return -ENOMEM;
    o->u = u;
    o->request = request;
    o->cb = cb;
    o->arg = arg;
    cv_timer_init(&o->timer, on_timer);
    cv_buf_init(&o->in, IN_MAX);
    struct cv_happy_conf conf = {
        .dns = w->dns,
        .prefer = w->settings->direct_prefer,
        .timeout_ms = CV_MAX(request->deadline_ms - cv_loop_now(w->loop), 1),
    };
    int ret = cv_happy_start(w->loop, &conf, &u->server, NULL, on_dialled, o, &o->happy);
    if (ret != 0) {
        cv_free(o);
        return ret;
    }
    *ret_open = o;
    return 0;
}

enum cv_stage cv_upstream_open_stage(int err)
{
    return err == CV_E_UNSUPPORTED ? CV_STAGE_OUTBOUND : CV_STAGE_DIAL;
}

void cv_upstream_cancel(struct cv_upstream_open *o)
{
    if (o == NULL || o->state == OPEN_STATE_DONE)
        return;
    cv_happy_cancel(o->happy);
    cv_stream_close(o->stream, false);
    release(o);
}
