#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "common/secret.h"
#include "inbound/http_priv.h"
#include "inbound/linger.h"

#include "common/poison.h"

#define DOMAIN "http"

static void on_client(void *arg, struct cv_stream *stream, unsigned events);
static void on_timer(struct cv_timer *t);
static void on_again(struct cv_task *task);
static void on_auth(void *arg, int err, struct cv_account *account);
static void on_kill(struct cv_session *s, int err);
static void on_release(struct cv_task *task);

static const struct cv_session_ops session_ops = {.kill = on_kill};

/* ---- State ---- */

static const char *state_name(enum http_state state)
{
    static const char *const names[] = {
        [HTTP_STATE_HEAD] = "head",       [HTTP_STATE_AUTH] = "auth",
        [HTTP_STATE_SNIFF] = "sniff",     [HTTP_STATE_DIAL] = "dial",
        [HTTP_STATE_FORWARD] = "forward", [HTTP_STATE_REPLY] = "reply",
        [HTTP_STATE_TUNNEL] = "tunnel",   [HTTP_STATE_ENDED] = "ended",
    };
    return names[state];
}

static bool can_follow(enum http_state from, enum http_state to)
{
    switch (to) {
    case HTTP_STATE_HEAD:
        return from == HTTP_STATE_FORWARD || from == HTTP_STATE_REPLY;
    case HTTP_STATE_AUTH:
        return from == HTTP_STATE_HEAD;
    case HTTP_STATE_SNIFF:
        return from == HTTP_STATE_HEAD || from == HTTP_STATE_AUTH;
    case HTTP_STATE_DIAL:
        return from == HTTP_STATE_HEAD || from == HTTP_STATE_AUTH || from == HTTP_STATE_SNIFF ||
               from == HTTP_STATE_FORWARD;
    case HTTP_STATE_FORWARD:
        return from == HTTP_STATE_HEAD || from == HTTP_STATE_AUTH || from == HTTP_STATE_DIAL;
    case HTTP_STATE_REPLY:
        return from < HTTP_STATE_REPLY;
    case HTTP_STATE_TUNNEL:
        return from == HTTP_STATE_DIAL || from == HTTP_STATE_FORWARD;
    case HTTP_STATE_ENDED:
        return from != HTTP_STATE_ENDED;
    }
    return false;
}

void cv_http_go(struct http_conn *c, enum http_state to)
{
    CV_ASSERT(can_follow(c->state, to));
    cv_log(CV_LOG_TRACE, DOMAIN, "session=%016llx state='%s' after='%s'",
           (unsigned long long)c->super.id, state_name(to), state_name(c->state));
    c->state = to;
}

static enum cv_stage stage_of(enum http_state state)
{
    switch (state) {
    case HTTP_STATE_AUTH:
        return CV_STAGE_AUTH;
    case HTTP_STATE_SNIFF:
        return CV_STAGE_SNIFF_READ;
    case HTTP_STATE_DIAL:
        return CV_STAGE_DIAL;
    case HTTP_STATE_FORWARD:
    case HTTP_STATE_TUNNEL:
        return CV_STAGE_SPLICE;
    default:
        return CV_STAGE_PARSE;
    }
}

bool cv_http_is_draining(const struct http_conn *c)
{
    return atomic_load_explicit(&c->super.worker->node->draining, memory_order_relaxed);
}

/* The timer is moved to an earlier time at once, to a later one when it fires, so that the usual
 * request does not touch it. */
void cv_http_arm(struct http_conn *c, int64_t due_ms)
{
    struct http_work *w = c->work;

    w->due_ms = due_ms;
    if (due_ms == INT64_MAX || (cv_timer_is_armed(&w->timer) && w->armed_ms <= due_ms))
        return;
    w->armed_ms = due_ms;
    cv_timer_start(cv_loop_timers(c->super.worker->loop), &w->timer, due_ms);
}

static void arm_in(struct http_conn *c, int64_t after_ms)
{
    cv_http_arm(c, cv_loop_now(c->super.worker->loop) + after_ms);
}

/* ---- The end ---- */

void cv_http_work_free(struct http_conn *c)
{
    struct http_work *w = c->work;

    if (w == NULL)
        return;
    cv_loop_timer_stop(c->super.worker->loop, &w->timer);
    if (w->posted)
        (void)cv_loop_next_cancel(c->super.worker->loop, &w->again);
    cv_auth_cancel(w->auth);
    cv_flow_cancel(w->flow);
    cv_http_splice_done(c);
    cv_http_rate_done(c);
    cv_http_origin_drop(c, c->state != HTTP_STATE_HEAD && c->state != HTTP_STATE_REPLY);
    cv_http_side_close(&w->client, false);
    cv_buf_done(&w->head);
    cv_listener_conf_unref(w->conf);
    cv_rcstr_unref(w->user);
    CV_FREE(c->work);
}

void cv_http_end(struct http_conn *c, bool linger, bool abort)
{
    struct http_work *w = c->work;
    bool silent = c->state == HTTP_STATE_HEAD && !w->seen;

    if (w != NULL) {
        struct cv_stream *client = w->client.stream;
        w->client.stream = NULL;
        if (linger)
            cv_linger_close(&c->super, client);
        else
            cv_stream_close(client, abort);
        cv_http_work_free(c);
    }
    cv_sniffer_free(c->sniffer);
    c->sniffer = NULL;
    cv_http_go(c, HTTP_STATE_ENDED);
    if (silent)
        cv_session_drop(&c->super);
    else
        cv_session_end(&c->super);
    c->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(c->super.worker->loop, &c->release);
}

void cv_http_client_gone(struct http_conn *c, int err)
{
    if (err == CV_E_TLS)
        cv_session_fail(&c->super, CV_STAGE_TLS, err);
    else if (c->state != HTTP_STATE_HEAD || c->work->seen)
        cv_session_fail(&c->super, stage_of(c->state),
                        err == -ENOMEM || err == CV_E_PROTO ? err : CV_E_CANCELED);
    cv_http_end(c, false, false);
}

static void await_head(struct http_conn *c)
{
    struct http_work *w = c->work;

    w->x = (struct http_exchange){0};
    w->scan = (struct cv_http1_scan){0};
    w->seen = w->timed = w->head_more = false;
    w->later = true;
    cv_buf_done(&w->head);
}

void cv_http_next(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct cv_session *s = &c->super;

    if (cv_http_is_draining(c)) {
        cv_http_end(c, true, false);
        return;
    }
    struct cv_worker *worker = s->worker;
    struct cv_listener_stats *stats = s->listener;
    struct cv_endpoint client = s->client;
    cv_http_rate_done(c);
    cv_session_end(s);
    cv_session_begin(s, worker, &session_ops, "http", stats, &client);
    await_head(c);
    cv_http_go(c, HTTP_STATE_HEAD);
    cv_buf_release(&w->client.in);
    arm_in(c, CV_HTTP_KEEP_ALIVE_MS);
}

/* ---- Answers of our own ---- */

/* Bytes behind a CONNECT that was refused were meant for its tunnel. They must not be taken for a
 * request, so the connection does not go on when there are any. */
static bool has_glued_bytes(struct http_conn *c)
{
    struct http_work *w = c->work;

    if (!cv_buf_is_empty(&w->client.in) || w->client.eof)
        return true;
    w->client_ready = true;
    cv_http_read_ahead(c);
    return c->state == HTTP_STATE_ENDED || !cv_buf_is_empty(&w->client.in) || w->client.eof;
}

/* Can the next request be found behind this one, at a bearable cost? */
static bool can_go_on(struct http_conn *c)
{
    const struct http_exchange *x = &c->work->x;

    if (!x->parsed || !x->persistent || x->responded || cv_http_is_draining(c) ||
        c->work->tries >= CV_HTTP_TRIES_MAX)
        return false;
    if (x->method == CV_HTTP1_CONNECT)
        return !has_glued_bytes(c);
    /* RFC 9110 10.1.1: a client that waited for our word may send the body or not. */
    if (x->expect && !cv_http1_body_is_done(&x->up))
        return false;
    return cv_http1_body_left(&x->up) <= CV_HTTP_DRAIN_MAX;
}

static void reply(struct http_conn *c, struct http_page *p)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    bool go_on = can_go_on(c);

    if (c->state == HTTP_STATE_ENDED)
        return;
    x->close = !go_on;
    p->close = x->close;
    p->head = x->method == CV_HTTP1_HEAD;
    p->html = x->html;
    p->session = c->super.id;
    w->drain_left = CV_HTTP_DRAIN_MAX;
    cv_http_go(c, HTTP_STATE_REPLY);
    arm_in(c, CV_HTTP_REPLY_MS);
    if (cv_http_error_write(&w->client.out, p) != 0)
        cv_http_end(c, false, false);
}

void cv_http_refuse_text(struct http_conn *c, enum cv_stage stage, int err, unsigned status,
                         const char *text)
{
    struct cv_session *s = &c->super;
    char target[CV_TARGET_STRLEN] = "";
    struct http_page p = {
        .status = status, .message = text, .stage = cv_stage_name(stage), .target = target};

    /* RFC 6585 s.4. A place among the user's connections may be free at any time. */
    if (status == 429)
        p.retry_after_s = (uint64_t)CV_MAX(1, (c->work->login_wait_ms + 999) / 1000);
    cv_session_fail(s, stage, err);
    if (s->target_host != NULL)
        cv_target_format(&c->work->target, target);
    reply(c, &p);
}

void cv_http_refuse(struct http_conn *c, enum cv_stage stage, int err)
{
    cv_http_refuse_text(c, stage, err, cv_stage_http_status(stage, err),
                        cv_stage_message(stage, err));
}

/* A browser was pointed at us as if we were a site. */
static void reply_about(struct http_conn *c)
{
    struct http_page p = {
        .status = 400,
        .title = "This is a proxy",
        .message = "Culvert forwards traffic. To use it, enter this address and port as HTTP or "
                   "SOCKS5 proxy in the settings of your program; it serves no pages itself.",
        .stage = "",
        .target = "",
    };

    c->work->x.persistent = false;
    cv_session_fail(&c->super, CV_STAGE_PARSE, CV_E_PROTO);
    reply(c, &p);
}

/* RFC 9110 7.6.2: a request that may not be forwarded any further. */
static void reply_as_last(struct http_conn *c)
{
    struct http_page p = {.status = 200, .message = "proxy", .stage = "", .target = ""};

    if (c->work->x.method == CV_HTTP1_OPTIONS)
        reply(c, &p);
    else
        cv_http_refuse_text(c, CV_STAGE_PARSE, CV_E_UNSUPPORTED, 501, "TRACE is not answered here");
}

/* Discard the body of a refused request. HTTP_WAIT also when it is through. */
static enum http_step drain_step(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    struct cv_http1_fault fault;
    struct cv_http1_piece piece;
    struct http_view v;

    int ret = cv_http_side_body(&w->client, c->super.worker, x->up_stuck, SIZE_MAX, &v);
    if (ret == -EAGAIN)
        return HTTP_WAIT;
    if (ret == 0)
        ret = cv_http1_body_decode(&x->up, v.p, v.len, &piece, &fault);
    if (ret == 0) {
        x->up_stuck = piece.used < v.len;
        ret = cv_http_side_used(&w->client, &v, piece.used);
    }
    if (ret != 0 || piece.used > w->drain_left) {
        cv_http_end(c, true, false);
        return HTTP_AGAIN;
    }
    w->drain_left -= piece.used;
    return HTTP_AGAIN;
}

static enum http_step reply_step(struct http_conn *c)
{
    struct http_work *w = c->work;
    size_t n;

    int ret = cv_http_side_send(&w->client, NULL, 0, &n);
    if (ret != 0) {
        cv_http_end(c, false, false);
        return HTTP_AGAIN;
    }
    if (!cv_buf_is_empty(&w->client.out))
        return HTTP_WAIT;
    if (w->x.close) {
        cv_http_end(c, true, false);
        return HTTP_AGAIN;
    }
    if (!cv_http1_body_is_done(&w->x.up))
        return drain_step(c);
    cv_http_next(c);
    return HTTP_AGAIN;
}

/* ---- One request ---- */

void cv_http_dial_tunnel(struct http_conn *c)
{
    struct http_work *w = c->work;

    int ret = cv_flow_open(&c->super, &w->target, cv_http_on_flow, c, &w->flow);
    if (ret != 0 && w->replied) {
        cv_session_fail(&c->super, CV_STAGE_DIAL, ret);
        cv_http_end(c, false, true);
    } else if (ret != 0) {
        cv_http_refuse(c, CV_STAGE_DIAL, ret);
    } else {
        cv_http_go(c, HTTP_STATE_DIAL);
        cv_http_arm(c, INT64_MAX); /* the dial has a limit of its own */
    }
}

static void dial(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    int ret;

    if (x->method == CV_HTTP1_CONNECT) {
        cv_http_origin_drop(c, false);
        if (w->conf->sniff.mode == CV_SNIFF_ROUTE)
            cv_http_sniff_start(c);
        else
            cv_http_dial_tunnel(c);
        return;
    }
    if (cv_http1_body_is_done(&x->up) && cv_http1_method_is_idempotent(x->method) &&
        cv_http_origin_reuse(c)) {
        x->reused = true;
        cv_http_forward_start(c);
        return;
    } else {
        ret = cv_http_origin_open(c);
    }
    if (ret != 0) {
        cv_http_refuse(c, CV_STAGE_DIAL, ret);
        return;
    }
    cv_http_go(c, HTTP_STATE_DIAL);
    cv_http_arm(c, INT64_MAX);
}

/* The login was judged. */
static void judge(struct http_conn *c, int err, struct cv_account *account)
{
    struct http_work *w = c->work;

    if (err == 0) {
        w->tries = 0;
        cv_session_set_user(&c->super, account->name, account);
        dial(c);
        return;
    }
    if (err == CV_E_AUTH)
        w->tries++;
    cv_http_refuse(c, CV_STAGE_AUTH, err);
}

static void note_user(struct http_conn *c, struct cv_http1_str user)
{
    struct cv_rcstr *name = cv_rcstr_new(user.p, user.len);

    cv_session_set_user(&c->super, name, NULL);
    cv_rcstr_unref(name);
}

/* A certificate that is good for nobody: asking for a password (407) would help no client. */
static void refuse_certificate(struct http_conn *c, int err)
{
    cv_session_set_user(&c->super, c->work->user, NULL);
    cv_http_refuse_text(c, CV_STAGE_AUTH, err, 403,
                        err == CV_E_EXPIRED ? "the user of the client certificate has expired"
                                            : "the client certificate names no user");
}

/* No login was sent. */
static void authenticate_without(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct cv_account *account = NULL;
    int ret = CV_E_AUTH;

    if (w->user != NULL)
        ret = cv_auth_trust(&c->super, w->user->s, &account);
    else if (w->conf->no_auth_user != NULL)
        ret = cv_auth_trust(&c->super, w->conf->no_auth_user, &account);
    if (ret != 0 && w->user != NULL)
        refuse_certificate(c, ret);
    else
        judge(c, ret, account);
}

static void authenticate(struct http_conn *c, const struct cv_http1_request *r)
{
    struct http_work *w = c->work;
    struct cv_account *account = NULL;
    char text[CV_HTTP_CREDENTIALS_MAX];
    struct cv_http1_str user, pass;
    int ret = CV_E_AUTH;

    if (r->head.count[CV_HTTP1_PROXY_AUTHORIZATION] == 0) {
        authenticate_without(c);
        return;
    }
    const struct cv_http1_field *f = &r->head.fields[r->head.last[CV_HTTP1_PROXY_AUTHORIZATION]];
    if (cv_http1_basic_parse(f->value, text, sizeof(text), &user, &pass) == 0) {
        ret = cv_auth_check_as(&c->super, w->user, user.p, user.len, pass.p, pass.len, on_auth, c,
                               &account, &w->auth);
        if (ret != 0)
            note_user(c, user);
        w->login_wait_ms = ret == CV_E_BACKOFF ? cv_auth_wait_ms(&c->super, user.p, user.len) : 0;
    }
    cv_secret_clear(text, sizeof(text));
    if (ret == -EINPROGRESS)
        cv_http_go(c, HTTP_STATE_AUTH);
    else
        judge(c, ret, account);
}

/* The Host that the origin gets: canonical, the usual port left out. */
static void host_format(const struct cv_target *t, char out[CV_TARGET_STRLEN])
{
    cv_target_format(t, out);
    if (t->port == 80) {
        char *colon = strrchr(out, ':');
        if (colon != NULL)
            *colon = '\0';
    }
}

static bool is_last_here(const struct cv_http1_request *r)
{
    const struct cv_http1_head *h = &r->head;

    if ((r->kind != CV_HTTP1_OPTIONS && r->kind != CV_HTTP1_TRACE) ||
        h->count[CV_HTTP1_MAX_FORWARDS] != 1)
        return false;
    struct cv_http1_str v = h->fields[h->last[CV_HTTP1_MAX_FORWARDS]].value;
    return v.len == 1 && v.p[0] == '0';
}

/* Keep what the exchange needs of a head that was understood; the head itself goes. */
static int take_request(struct http_conn *c, const struct cv_http1_request *r)
{
    struct http_work *w = c->work;
    struct http_exchange *x = &w->x;
    char host[CV_TARGET_STRLEN];

    x->upgrade = r->head.upgrade && cv_http1_body_is_done(&x->up);
    int ret = cv_target_parse(r->authority.p, r->authority.len,
                              r->kind == CV_HTTP1_CONNECT ? 0 : 80, &w->target);
    if (ret == 0)
        ret = cv_session_set_target(&c->super, &w->target);
    if (ret != 0 || r->kind == CV_HTTP1_CONNECT)
        return ret;
    host_format(&w->target, host);
    return cv_http1_request_write(&w->head, r, host, x->upgrade);
}

/* A whole head of 'len' bytes is at 'data'; what follows it is in the client's buffer already. */
static void begin(struct http_conn *c, const struct cv_http1_request *r)
{
    struct http_exchange *x = &c->work->x;

    x->parsed = true;
    x->persistent = r->persistent;
    x->expect = r->expect;
    x->up_chunked = r->framing == CV_HTTP1_CHUNKED;
    cv_http1_body_init(&x->up, r->framing, r->length);
    if (r->form == CV_HTTP1_FORM_ORIGIN) {
        reply_about(c);
        return;
    }
    int ret = take_request(c, r);
    if (ret != 0) {
        x->persistent = x->persistent && ret == CV_E_PARSE;
        cv_http_refuse_text(c, CV_STAGE_PARSE, ret, ret == -ENOMEM ? 503 : 400,
                            ret == -ENOMEM ? cv_stage_message(CV_STAGE_PARSE, ret)
                                           : "malformed host or port");
    } else if (is_last_here(r)) {
        reply_as_last(c);
    } else {
        authenticate(c, r);
    }
}

static void refuse_head(struct http_conn *c, const struct cv_http1_fault *f)
{
    int err = f->status == 414 || f->status == 431 ? CV_E_LIMIT : CV_E_PROTO;

    cv_http_refuse_text(c, CV_STAGE_PARSE, err, f->status, f->text);
}

/* ---- Heads ---- */

/* The first byte of a later request starts its clock. A head that is whole at once never looks at
 * it; that of a first request has run since the connection was accepted. */
static void head_incomplete(struct http_conn *c)
{
    struct http_work *w = c->work;
    int64_t limit = c->super.worker->settings->handshake_timeout_ms;

    if (!w->timed && limit > 0)
        arm_in(c, limit);
    w->timed = true;
}

static void take_head(struct http_conn *c, const struct http_view *v, size_t len)
{
    struct http_work *w = c->work;
    struct cv_http1_request r;
    struct cv_http1_fault fault;

    int ret = cv_http1_request_parse(&r, (const char *)v->p, len, &fault);
    w->x.method = r.kind;
    w->x.minor = r.head.minor;
    w->x.html = r.html;
    /* What 'r' points to stays in place until it was used: scratch memory, or the buffer's, of
     * which only the offset moves here. */
    if (v->kept > 0) {
        cv_buf_consume(&w->client.in, len);
    } else if (cv_http_side_used(&w->client, v, len) != 0) {
        cv_http_client_gone(c, -ENOMEM);
        return;
    }
    if (ret == 0)
        begin(c, &r);
    else
        refuse_head(c, &fault);
    if (c->work != NULL)
        cv_buf_release(&c->work->client.in);
}

static enum http_step head_step(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct cv_http1_fault fault;
    struct http_view v;
    size_t len;

    int ret = cv_http_side_head(&w->client, c->super.worker, w->head_more, SIZE_MAX, &v);
    if (ret == -EAGAIN)
        return HTTP_WAIT;
    if (ret != 0) {
        cv_http_client_gone(c, ret);
        return HTTP_AGAIN;
    }
    if (!w->seen && w->later)
        c->super.start_ms = cv_loop_now(c->super.worker->loop);
    w->seen = true;
    ret = cv_http1_scan(&w->scan, CV_HTTP1_REQUEST, v.p, v.len, &len, &fault);
    w->head_more = ret == CV_E_MORE;
    if (ret == 0) {
        take_head(c, &v, len);
    } else if (ret != CV_E_MORE) {
        refuse_head(c, &fault);
    } else if (cv_http_side_used(&w->client, &v, 0) != 0) {
        cv_http_client_gone(c, -ENOMEM);
    } else {
        head_incomplete(c);
    }
    return HTTP_AGAIN;
}

/* ---- Events ---- */

void cv_http_read_ahead(struct http_conn *c)
{
    struct http_work *w = c->work;
    struct http_side *s = &w->client;
    uint8_t *scratch = c->super.worker->scratch;

    while (w->client_ready && !s->eof && cv_buf_len(&s->in) < CV_HTTP_AHEAD_MAX) {
        size_t n;
        int ret = cv_stream_recv(s->stream, scratch, CV_HTTP_AHEAD_MAX, &n);

        if (ret == -EAGAIN) {
            w->client_ready = false;
            return;
        }
        if (ret == 0 && n == 0)
            s->eof = true;
        else if (ret == 0)
            ret = cv_buf_append(&s->in, scratch, n);
        if (ret != 0) {
            cv_http_client_gone(c, ret);
            return;
        }
        if (s->eof && c->state == HTTP_STATE_FORWARD)
            cv_http_arm(c, cv_http_forward_due(c));
    }
}

/* In AUTH and DIAL. A client that ends its side still gets its answer, but a tunnel into which it
 * will never say anything is of no use to it: most likely it has gone. */
static void wait_ahead(struct http_conn *c)
{
    cv_http_read_ahead(c);
    if (c->state != HTTP_STATE_ENDED && c->work->client.eof &&
        c->work->x.method == CV_HTTP1_CONNECT && cv_buf_is_empty(&c->work->client.in))
        cv_http_client_gone(c, CV_E_CANCELED);
}

static void run_again(struct http_conn *c)
{
    struct http_work *w = c->work;

    if (w == NULL || w->posted)
        return;
    w->posted = true;
    w->again = (struct cv_task){.fn = on_again};
    cv_loop_next(c->super.worker->loop, &w->again);
}

void cv_http_run(struct http_conn *c)
{
    for (unsigned rounds = 0; rounds < CV_HTTP_ROUNDS; rounds++) {
        enum http_step step = HTTP_WAIT;

        switch (c->state) {
        case HTTP_STATE_HEAD:
            step = head_step(c);
            break;
        case HTTP_STATE_AUTH:
        case HTTP_STATE_DIAL:
            wait_ahead(c);
            break;
        case HTTP_STATE_SNIFF:
            step = cv_http_sniff_step(c);
            break;
        case HTTP_STATE_FORWARD:
            step = cv_http_forward_step(c);
            break;
        case HTTP_STATE_REPLY:
            step = reply_step(c);
            break;
        case HTTP_STATE_TUNNEL:
        case HTTP_STATE_ENDED:
            break;
        }
        if (step == HTTP_WAIT)
            return;
    }
    run_again(c);
}

static void on_client(void *arg, struct cv_stream *stream, unsigned events)
{
    struct http_conn *c = arg;

    if (events & CV_STREAM_HUP) {
        cv_http_client_gone(c, CV_E_CANCELED);
        return;
    }
    if (events & CV_STREAM_READ)
        c->work->client_ready = true;
    if (events & CV_STREAM_WRITE)
        c->work->client_blocked = false;
    cv_http_run(c);
}

static void on_again(struct cv_task *task)
{
    struct http_work *w = CV_CONTAINER_OF(task, struct http_work, again);

    w->posted = false;
    cv_http_run(w->conn);
}

static void head_timeout(struct http_conn *c)
{
    if (!c->work->seen) {
        cv_http_end(c, false, false);
        return;
    }
    cv_http_refuse(c, CV_STAGE_PARSE, -ETIMEDOUT);
    cv_http_run(c);
}

static void auth_timeout(struct http_conn *c)
{
    struct http_work *w = c->work;

    cv_auth_cancel(w->auth);
    w->auth = NULL;
    w->x.persistent = false;
    cv_http_refuse(c, CV_STAGE_AUTH, -ETIMEDOUT);
    cv_http_run(c);
}

static void on_timer(struct cv_timer *t)
{
    struct http_work *w = CV_CONTAINER_OF(t, struct http_work, timer);
    struct http_conn *c = w->conn;

    if (cv_loop_now(c->super.worker->loop) < w->due_ms) {
        cv_http_arm(c, w->due_ms);
        return;
    }
    switch (c->state) {
    case HTTP_STATE_HEAD:
        head_timeout(c);
        break;
    case HTTP_STATE_AUTH:
        auth_timeout(c);
        break;
    case HTTP_STATE_FORWARD:
        cv_http_forward_timeout(c);
        break;
    case HTTP_STATE_REPLY:
        cv_http_end(c, false, false);
        break;
    case HTTP_STATE_SNIFF: /* the sniffer has a clock of its own */
    case HTTP_STATE_DIAL:
    case HTTP_STATE_TUNNEL:
    case HTTP_STATE_ENDED:
        break;
    }
}

static void on_auth(void *arg, int err, struct cv_account *account)
{
    struct http_conn *c = arg;

    c->work->auth = NULL;
    judge(c, err, account);
    cv_http_run(c);
}

void cv_http_on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local)
{
    struct http_conn *c = arg;
    struct http_work *w = c->work;

    w->flow = NULL;
    if (err != 0 && w->replied) {
        /* It was told that it is connected. A reset cannot be taken for the end of an answer. */
        cv_http_end(c, false, true);
    } else if (err != 0) {
        cv_http_refuse(c, c->super.stage, c->super.err);
    } else if (w->x.method == CV_HTTP1_CONNECT) {
        w->origin.stream = stream;
        cv_http_tunnel_start(c, w->replied ? "" : CV_HTTP_CONNECTED);
    } else {
        cv_http_origin_set(c, stream);
        cv_http_forward_start(c);
    }
    cv_http_run(c);
}

static void on_kill(struct cv_session *s, int err)
{
    struct http_conn *c = CV_CONTAINER_OF(s, struct http_conn, super);

    if (c->state == HTTP_STATE_TUNNEL) {
        cv_relay_abort(&c->relay, err);
    } else if (c->state != HTTP_STATE_ENDED) {
        if (c->state != HTTP_STATE_HEAD || c->work->seen)
            cv_session_fail(s, CV_STAGE_LISTENER, err);
        cv_http_end(c, false, true);
    }
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct http_conn, release));
}

/* ---- The beginning ---- */

void cv_http_serve(const struct cv_inbound *in)
{
    struct cv_worker *worker = in->worker;
    int64_t limit = worker->settings->handshake_timeout_ms;
    struct http_conn *c = cv_try_zalloc(sizeof(*c));
    struct http_work *w = cv_try_zalloc(sizeof(*w));

    if (c == NULL || w == NULL) {
        cv_free(c);
        cv_free(w);
        cv_stream_close(in->stream, false);
        return;
    }
    cv_session_begin(&c->super, worker, &session_ops, "http", in->conf->stats, &in->client);
    c->state = HTTP_STATE_HEAD;
    c->work = w;
    w->conn = c;
    w->conf = cv_listener_conf_ref(in->conf);
    w->user = cv_rcstr_ref(in->user);
    cv_http_side_init(&w->client);
    cv_http_side_init(&w->origin);
    cv_buf_init(&w->head, CV_HTTP_OUT_MAX);
    w->client.stream = in->stream;
    w->pipe = (struct cv_pipe){.rd = -1, .wr = -1};
    cv_timer_init(&w->timer, on_timer);
    w->timed = true;
    w->due_ms = INT64_MAX;
    cv_http_arm(c, limit > 0 ? in->accepted_ms + limit : INT64_MAX);
    cv_stream_set_cb(in->stream, on_client, c);
    if (in->early_len == 0)
        return;
    if (cv_buf_append(&w->client.in, in->early, in->early_len) != 0) {
        cv_http_end(c, false, false);
        return;
    }
    w->client_ready = true;
    cv_http_run(c);
}
