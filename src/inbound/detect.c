#include "inbound/detect.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "proto/proxy_protocol.h"

#include "common/poison.h"

#define DOMAIN            "listener"
#define FIRST_BYTE_SOCKS5 0x05
#define FIRST_BYTE_TLS    0x16 /* record type "handshake", RFC 8446 section 5.1 */

enum detect_state {
    DETECT_STATE_PROXY = 1, /* we are here while the PROXY header is not whole */
    DETECT_STATE_OUTER,     /* ... the client has sent nothing */
    DETECT_STATE_INNER,     /* ... the TLS handshake is not over or nothing came through it */
    DETECT_STATE_ENDED,     /* handed over or closed; memory goes at the end of the turn */
};

struct detect {
    struct cv_session super;
    enum detect_state state;
    struct cv_listener_conf *conf; /* a reference */
    struct cv_stream *stream;      /* owned */
    struct cv_timer timer;         /* handshake_timeout */
    int64_t accepted_ms;
    uint8_t *kept; /* owned; the beginning of a PROXY header; or NULL */
    size_t kept_len;
    bool handshaking;      /* counted as such */
    struct cv_rcstr *user; /* a reference; whom the certificate names; or NULL */
    struct cv_task release;
};

static void on_ready(void *arg, struct cv_stream *stream, unsigned events);
static void on_timer(struct cv_timer *t);
static void on_kill(struct cv_session *s, int err);
static void on_release(struct cv_task *task);

static const struct cv_session_ops session_ops = {.kill = on_kill};

/* The name for a line about a connection that got no further than this. */
static const char *protocol_name(const struct cv_listener_conf *conf)
{
    switch (conf->protocol) {
    case CV_LISTENER_SOCKS5:
        return "socks5";
    case CV_LISTENER_HTTP:
        return "http";
    case CV_LISTENER_SNI:
        return "sni";
    case CV_LISTENER_MIXED:
        break;
    }
    return "mixed";
}

void cv_detect_start(const struct cv_inbound *in)
{
    struct detect *d = cv_try_zalloc(sizeof(*d));
    if (d == NULL) {
        cv_stream_close(in->stream, false);
        return;
    }
    struct cv_worker *w = in->worker;
    cv_session_begin(&d->super, w, &session_ops, protocol_name(in->conf), in->conf->stats,
                     &in->client);
    d->state = in->conf->proxy_protocol ? DETECT_STATE_PROXY : DETECT_STATE_OUTER;
    d->conf = cv_listener_conf_ref(in->conf);
    d->stream = in->stream;
    d->accepted_ms = in->accepted_ms;
    cv_timer_init(&d->timer, on_timer);
    cv_timer_start(cv_loop_timers(w->loop), &d->timer,
                   in->accepted_ms + w->settings->handshake_timeout_ms);
    cv_stream_set_cb(d->stream, on_ready, d);
}

static void handshake_over(struct detect *d)
{
    if (d->handshaking)
        cv_gauge_add(&d->super.worker->node->stats.tls_handshakes, -1);
    d->handshaking = false;
}

/* Everything but the session and the stream, which the caller has dealt with. */
static void leave(struct detect *d)
{
    struct cv_loop *loop = d->super.worker->loop;
    d->state = DETECT_STATE_ENDED;
    handshake_over(d);
    cv_loop_timer_stop(loop, &d->timer);
    d->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(loop, &d->release);
}

static void refuse(struct detect *d, enum cv_stage stage, int err)
{
    cv_session_fail(&d->super, stage, err);
    cv_session_end(&d->super);
    cv_stream_close(d->stream, false);
    leave(d);
}

/* Nothing came from the client, so there is nothing to tell. */
static void drop(struct detect *d)
{
    cv_session_drop(&d->super);
    cv_stream_close(d->stream, false);
    leave(d);
}

static void serve(struct detect *d, enum cv_listener_protocol protocol, const uint8_t *early,
                  size_t len)
{
    struct cv_inbound in = {
        .worker = d->super.worker,
        .conf = d->conf,
        .stream = d->stream,
        .client = d->super.client,
        .user = d->user,
        .early = early,
        .early_len = len,
        .accepted_ms = d->accepted_ms,
    };
    cv_stream_set_cb(d->stream, NULL, NULL);
    if (protocol == CV_LISTENER_SOCKS5)
        cv_socks5_serve(&in);
    else if (protocol == CV_LISTENER_SNI)
        cv_sni_serve(&in);
    else
        cv_http_serve(&in);
    /* The protocol has begun a session of its own. In this order the worker is at no moment without
     * one: while draining, that would end it. */
    cv_session_drop(&d->super);
    leave(d);
}

/* RFC 9112 2.2: an empty line may stand before a request. */
static bool may_begin_http(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '\r' || c == '\n';
}

/* The first bytes of the application are here. */
static void choose(struct detect *d, const uint8_t *early, size_t len)
{
    if (d->conf->protocol != CV_LISTENER_MIXED)
        serve(d, d->conf->protocol, early, len);
    else if (early[0] == FIRST_BYTE_SOCKS5)
        serve(d, CV_LISTENER_SOCKS5, early, len);
    else if (may_begin_http(early[0]))
        serve(d, CV_LISTENER_HTTP, early, len);
    else
        refuse(d, CV_STAGE_PARSE, CV_E_PROTO);
}

static void tls_failed(struct detect *d, int err)
{
    const char *fault = cv_tls_fault(d->stream);
    char client[CV_ENDPOINT_STRLEN];
    cv_debug(DOMAIN, "tls failed listener='%s' client='%s' error='%s'", d->conf->name,
             cv_endpoint_format(&d->super.client, client),
             fault != NULL ? fault : cv_err_text(err));
    refuse(d, CV_STAGE_TLS, err);
}

/* Whom the certificate names, if there is one. A name that cannot be a user's is nobody's: it does
 * not make a client without a certificate of this one. */
static int identify(struct detect *d)
{
    char name[CV_TLS_USER_MAX + 1];
    int ret = cv_tls_peer_user(d->stream, name);
    if (ret == CV_E_NOTFOUND)
        return 0;
    if (ret != 0)
        return ret;
    d->user = cv_rcstr_new(name, strlen(name));
    return d->user != NULL ? 0 : -ENOMEM;
}

static void read_inner(struct detect *d)
{
    uint8_t early[CV_INBOUND_EARLY_MAX];
    size_t n;
    int ret = cv_stream_recv(d->stream, early, sizeof(early), &n);
    if (cv_tls_is_established(d->stream))
        handshake_over(d);
    if (ret == -EAGAIN)
        return;
    if (ret < 0)
        tls_failed(d, ret);
    else if ((ret = identify(d)) != 0)
        refuse(d, CV_STAGE_AUTH, ret);
    else if (n == 0)
        refuse(d, CV_STAGE_PARSE, CV_E_CANCELED);
    else
        choose(d, early, n);
}

/* A handshake costs the processor more than all that follows it, and memory while it lasts. */
static bool too_many_handshakes(struct detect *d)
{
    struct cv_worker *w = d->super.worker;
    int64_t now = cv_gauge_get(&w->node->stats.tls_handshakes);
    uint64_t max = w->settings->max_tls_handshakes;
    if (max == 0 || now < 0 || (uint64_t)now < max)
        return false;
    cv_counter_add(&d->conf->stats->rejected_handshakes, 1);
    cv_log_limited(CV_LOG_WARN, DOMAIN, "too many tls handshakes, refusing listener='%s' max=%llu",
                   d->conf->name, (unsigned long long)max);
    return true;
}

/* What came is the beginning of a TLS handshake. The handshake itself runs within recv. */
static void start_tls(struct detect *d, const uint8_t *early, size_t len)
{
    struct cv_stream *below = d->stream;
    if (too_many_handshakes(d)) {
        drop(d);
        return;
    }
    d->stream = NULL;
    cv_stream_set_cb(below, NULL, NULL);
    int ret = cv_tls_server(d->conf->tls, below, early, len, &d->stream);
    if (ret < 0) {
        refuse(d, CV_STAGE_TLS, ret);
        return;
    }
    d->state = DETECT_STATE_INNER;
    d->handshaking = true;
    cv_gauge_add(&d->super.worker->node->stats.tls_handshakes, 1);
    cv_stream_set_cb(d->stream, on_ready, d);
    read_inner(d);
}

/* The client's first bytes are here. */
static void take_outer(struct detect *d, const uint8_t *early, size_t n)
{
    const struct cv_listener_conf *c = d->conf;
    if (c->tls != NULL && early[0] == FIRST_BYTE_TLS)
        start_tls(d, early, n);
    else if (c->tls != NULL && (c->tls_only || c->protocol != CV_LISTENER_MIXED))
        refuse(d, CV_STAGE_TLS, CV_E_PROTO);
    else
        choose(d, early, n);
}

static void read_outer(struct detect *d)
{
    uint8_t early[CV_INBOUND_EARLY_MAX];
    size_t n;
    int ret = cv_stream_recv(d->stream, early, sizeof(early), &n);
    if (ret == -EAGAIN)
        return;
    if (ret < 0 || n == 0)
        drop(d);
    else
        take_outer(d, early, n);
}

static int keep(struct detect *d, const uint8_t *buf, size_t len)
{
    cv_free(d->kept);
    d->kept = len > 0 ? cv_try_alloc(len) : NULL;
    d->kept_len = len;
    if (len > 0 && d->kept == NULL)
        return -ENOMEM;
    if (len > 0)
        memcpy(d->kept, buf, len);
    return 0;
}

/* The header was whole; 'rest' followed it. */
static void proxy_done(struct detect *d, const struct cv_proxy_protocol *h, const uint8_t *rest,
                       size_t len)
{
    if (h->kind == CV_PROXY_PROTOCOL_PROXY)
        d->super.client = h->src;
    const struct cv_inbound in = {
        .worker = d->super.worker, .conf = d->conf, .client = d->super.client};
    if (!cv_listener_admits(&in)) {
        drop(d);
        return;
    }
    d->state = DETECT_STATE_OUTER;
    if (len > 0)
        take_outer(d, rest, len);
    else
        read_outer(d);
}

/* A read is never larger than what a protocol takes as early bytes: all but the last one were part
 * of the header. */
static void read_proxy(struct detect *d)
{
    uint8_t buf[CV_PROXY_PROTOCOL_MAX + CV_INBOUND_EARLY_MAX];
    struct cv_proxy_protocol header;
    size_t len = d->kept_len, used;
    int ret = CV_E_MORE;
    if (len > 0)
        memcpy(buf, d->kept, len);
    while (ret == CV_E_MORE) {
        size_t n;
        ret = cv_stream_recv(d->stream, buf + len, CV_INBOUND_EARLY_MAX, &n);
        if (ret == -EAGAIN)
            break;
        if (len == 0 && (ret < 0 || n == 0)) {
            drop(d); /* a look whether the port is open */
            return;
        }
        if (ret == 0 && n == 0)
            ret = CV_E_CANCELED;
        if (ret == 0) {
            len += n;
            ret = cv_proxy_protocol_decode(buf, len, &header, &used);
        }
    }
    if (ret == -EAGAIN)
        ret = keep(d, buf, len);
    else if (ret == 0) {
        proxy_done(d, &header, buf + used, len - used);
        return;
    }
    if (ret != 0)
        refuse(d, CV_STAGE_PARSE, ret);
}

static void on_ready(void *arg, struct cv_stream *stream, unsigned events)
{
    struct detect *d = arg;
    if (d->state == DETECT_STATE_PROXY)
        read_proxy(d);
    else if (d->state == DETECT_STATE_OUTER)
        read_outer(d);
    else if (d->state == DETECT_STATE_INNER)
        read_inner(d);
}

static void on_timer(struct cv_timer *t)
{
    struct detect *d = CV_CONTAINER_OF(t, struct detect, timer);
    if (d->state == DETECT_STATE_OUTER)
        drop(d);
    else
        refuse(d, CV_STAGE_PARSE, -ETIMEDOUT);
}

static void on_kill(struct cv_session *s, int err)
{
    struct detect *d = CV_CONTAINER_OF(s, struct detect, super);
    if (d->state == DETECT_STATE_OUTER || (d->state == DETECT_STATE_PROXY && d->kept_len == 0))
        drop(d);
    else if (d->state != DETECT_STATE_ENDED)
        refuse(d, CV_STAGE_LISTENER, err);
}

static void on_release(struct cv_task *task)
{
    struct detect *d = CV_CONTAINER_OF(task, struct detect, release);
    cv_listener_conf_unref(d->conf);
    cv_rcstr_unref(d->user);
    cv_free(d->kept);
    cv_free(d);
}
