#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "flow/auth.h"
#include "flow/flow.h"
#include "flow/relay.h"
#include "inbound/linger.h"
#include "inbound/listener.h"
#include "proto/tls_hello.h"

#include "common/poison.h"

#define DOMAIN         "sni"
#define FIRST_BYTE_TLS 0x16

enum sni_state {
    SNI_STATE_HELLO = 1, /* we are here while the ClientHello is not whole */
    SNI_STATE_DIAL,      /* ... the way out is being opened */
    SNI_STATE_RELAY,     /* ... bytes flow */
    SNI_STATE_ENDED,     /* ... the turn is not over; the session is gone, memory goes next */
};

struct sni {
    struct cv_session super;
    enum sni_state state;
    struct cv_stream *client;      /* owned; NULL once the relay has it */
    struct cv_listener_conf *conf; /* a reference; NULL in RELAY and after */
    struct cv_sniffer *sniffer;    /* owned; in HELLO */
    struct cv_flow *flow;          /* in DIAL */
    struct cv_endpoint local;      /* where the client has connected to; in DIAL */
    uint8_t *hello;                /* owned; what the client has said, in DIAL */
    size_t hello_len;
    struct cv_task release;
    struct cv_relay relay; /* in RELAY */
};

static void on_client(void *arg, struct cv_stream *stream, unsigned events);
static void on_timeout(void *arg);
static void on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local);
static void on_relay_bytes(struct cv_relay *r, bool up, size_t n);
static void on_relay_end(struct cv_relay *r, int err);
static void on_kill(struct cv_session *super, int err);
static void on_release(struct cv_task *task);

static const struct cv_session_ops session_ops = {.kill = on_kill};

static const char *state_name(enum sni_state state)
{
    static const char *const names[] = {
        [SNI_STATE_HELLO] = "hello",
        [SNI_STATE_DIAL] = "dial",
        [SNI_STATE_RELAY] = "relay",
        [SNI_STATE_ENDED] = "ended",
    };
    return names[state];
}

static void sni_go(struct sni *c, enum sni_state to)
{
    CV_ASSERT(to == c->state + 1 || (to == SNI_STATE_ENDED && c->state < to));
    cv_log(CV_LOG_TRACE, DOMAIN, "session=%016llx state='%s' after='%s'",
           (unsigned long long)c->super.id, state_name(to), state_name(c->state));
    c->state = to;
}

/* ---- the end ---- */

/* Release what the time before the relay needs. */
static void before_done(struct sni *c)
{
    cv_sniffer_free(c->sniffer);
    c->sniffer = NULL;
    cv_flow_cancel(c->flow);
    c->flow = NULL;
    CV_FREE(c->hello);
    cv_listener_conf_unref(c->conf);
    c->conf = NULL;
}

/* The session's line, and the end of the object. The client's stream has been dealt with. 'silent':
 * nothing happened that is worth a line. */
static void finish(struct sni *c, bool silent)
{
    before_done(c);
    sni_go(c, SNI_STATE_ENDED);
    if (silent)
        cv_session_drop(&c->super);
    else
        cv_session_end(&c->super);
    c->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(c->super.worker->loop, &c->release);
}

static void hang_up(struct sni *c, enum cv_stage stage, int err)
{
    cv_session_fail(&c->super, stage, err);
    cv_stream_close(c->client, false);
    c->client = NULL;
    finish(c, false);
}

/* The client has failed, or has ended before it was understood. One that said nothing leaves no
 * trace. */
static void client_gone(struct sni *c, int err)
{
    if (c->state == SNI_STATE_HELLO && cv_sniffer_first_byte(c->sniffer) < 0) {
        cv_stream_close(c->client, false);
        c->client = NULL;
        finish(c, true);
        return;
    }
    hang_up(c, c->state == SNI_STATE_HELLO ? CV_STAGE_SNI_READ : CV_STAGE_DIAL,
            err == -ENOMEM ? err : CV_E_CANCELED);
}

/* Tell a client that speaks TLS why, and close such that it can read it. The alert is seven bytes
 * to a socket that was never written to; if even that has no room the client goes without. */
static void refuse(struct sni *c, enum cv_stage stage, int err, enum cv_tls_alert alert)
{
    uint8_t record[CV_TLS_ALERT_LEN];
    size_t n;

    cv_session_fail(&c->super, stage, err);
    size_t len = cv_tls_alert_encode(record, alert);
    if (cv_stream_send(c->client, record, len, &n) == 0)
        cv_linger_close(&c->super, c->client);
    else
        cv_stream_close(c->client, false);
    c->client = NULL;
    finish(c, false);
}

/* ---- the hello ---- */

static bool is_origin(const struct cv_listener_conf *conf, const struct cv_rcstr *host)
{
    for (size_t i = 0; i < conf->n_origins; i++)
        if (strcmp(conf->origins[i], host->s) == 0)
            return true;
    return false;
}

/* Where the client has connected to. Not an IP socket: family CV_AF_NONE. */
static void learn_local(struct sni *c)
{
    struct cv_sockaddr sa = {.len = sizeof(sa.un)};
    int fd = cv_stream_socket_fd(c->client);
    if (fd >= 0 && getsockname(fd, &sa.sa, &sa.len) == 0)
        cv_endpoint_from_sockaddr(&c->local, &sa.sa);
}

/* The name is good: it is the target. */
static void open_flow(struct sni *c)
{
    struct cv_target target;
    const struct cv_rcstr *host = c->super.sniffed_host;

    learn_local(c);
    target.port = c->conf->origin_port != 0 ? c->conf->origin_port : c->local.port;
    if (target.port == 0) {
        refuse(c, CV_STAGE_LISTENER, CV_E_INVALID, CV_TLS_ALERT_INTERNAL_ERROR);
        return;
    }
    int ret = cv_host_parse(host->s, host->len, &target.host);
    if (ret == 0)
        ret = cv_session_set_target(&c->super, &target);
    if (ret == 0)
        ret = cv_flow_open(&c->super, &target, on_flow, c, &c->flow);
    if (ret != 0) {
        refuse(c, CV_STAGE_DIAL, ret, CV_TLS_ALERT_INTERNAL_ERROR);
        return;
    }
    c->hello = cv_sniffer_take(c->sniffer, &c->hello_len);
    cv_sniffer_free(c->sniffer);
    c->sniffer = NULL;
    sni_go(c, SNI_STATE_DIAL);
}

/* The outcome is known. Everything but a ClientHello with the name of an origin is refused. */
static void judge(struct sni *c)
{
    bool tls = cv_sniffer_first_byte(c->sniffer) == FIRST_BYTE_TLS;

    switch (c->super.sniff) {
    case CV_SNIFF_TLS:
        if (is_origin(c->conf, c->super.sniffed_host))
            open_flow(c);
        else
            refuse(c, CV_STAGE_SNI_ALLOWLIST, CV_E_POLICY, CV_TLS_ALERT_UNRECOGNIZED_NAME);
        return;
    case CV_SNIFF_TIMEOUT:
        if (cv_sniffer_first_byte(c->sniffer) < 0)
            client_gone(c, -ETIMEDOUT);
        else
            hang_up(c, CV_STAGE_SNI_READ, -ETIMEDOUT);
        return;
    case CV_SNIFF_INCOMPLETE:
        client_gone(c, CV_E_CANCELED);
        return;
    default:
        break;
    }
    int err = c->super.sniff == CV_SNIFF_LIMIT ? CV_E_LIMIT : CV_E_PROTO;
    if (!tls)
        hang_up(c, CV_STAGE_SNI, err);
    else
        refuse(c, CV_STAGE_SNI, err,
               c->super.sniff == CV_SNIFF_UNSUPPORTED ? CV_TLS_ALERT_MISSING_EXTENSION
                                                      : CV_TLS_ALERT_UNRECOGNIZED_NAME);
}

static void read_hello(struct sni *c)
{
    int ret = cv_sniffer_read(c->sniffer, c->client);
    if (ret == 0)
        judge(c);
    else if (ret != CV_E_MORE)
        client_gone(c, ret);
}

/* ---- the beginning ---- */

/* Who the client counts as is known without asking it: the policy and the limits of this user hold.
 * 0, or the session was failed. */
static int identify(struct sni *c)
{
    struct cv_account *account;
    int ret = cv_auth_trust(&c->super, c->conf->identity, &account);
    if (ret != 0) {
        struct cv_rcstr *name = cv_rcstr_new(c->conf->identity, strlen(c->conf->identity));
        cv_session_set_user(&c->super, name, NULL);
        cv_rcstr_unref(name);
        cv_session_fail(&c->super, CV_STAGE_AUTH, ret == CV_E_AUTH ? CV_E_NOTFOUND : ret);
        return ret;
    }
    cv_session_set_user(&c->super, account->name, account);
    return cv_flow_permit(&c->super);
}

void cv_sni_serve(const struct cv_inbound *in)
{
    struct cv_worker *w = in->worker;
    struct sni *c = cv_try_zalloc(sizeof(*c));
    if (c == NULL) {
        cv_stream_close(in->stream, false);
        return;
    }
    cv_session_begin(&c->super, w, &session_ops, "sni", in->conf->stats, &in->client);
    c->state = SNI_STATE_HELLO;
    c->client = in->stream;
    c->conf = cv_listener_conf_ref(in->conf);
    cv_stream_set_cb(c->client, on_client, c);

    /* Here the hello is the handshake, so it has the time of one. */
    int64_t limit = w->settings->handshake_timeout_ms;
    int64_t left = in->accepted_ms + limit - cv_loop_now(w->loop);
    const struct cv_sniff_conf conf = {
        .mode = CV_SNIFF_ROUTE,
        .timeout_ms = limit > 0 ? (uint32_t)CV_MAX(left, (int64_t)1) : 0,
        .max_bytes = c->conf->sniff.max_bytes,
    };
    int ret = identify(c);
    if (ret == 0)
        ret = cv_sniffer_new(&c->super, &conf, true, on_timeout, c, &c->sniffer);
    if (ret == 0 && in->early_len > 0)
        ret = cv_sniffer_add(c->sniffer, in->early, in->early_len);
    else if (ret == 0)
        return; /* the first event tells that there is something to read */
    if (ret == 0)
        judge(c);
    else if (ret == CV_E_MORE)
        read_hello(c);
    else
        hang_up(c, CV_STAGE_LISTENER, ret);
}

/* ---- events ---- */

static void on_client(void *arg, struct cv_stream *stream, unsigned events)
{
    struct sni *c = arg;
    if (events & CV_STREAM_HUP)
        client_gone(c, CV_E_CANCELED);
    else if ((events & CV_STREAM_READ) && c->state == SNI_STATE_HELLO)
        read_hello(c);
}

static void on_timeout(void *arg)
{
    judge(arg);
}

/* A name that resolves to the address of this listener would send the client round in circles. */
static bool is_loop(const struct sni *c)
{
    return c->local.ip.family != CV_AF_NONE && c->super.peer.port == c->local.port &&
           cv_ip_equal(&c->super.peer.ip, &c->local.ip);
}

static void on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local)
{
    struct sni *c = arg;
    c->flow = NULL;
    if (err != 0) {
        refuse(c, c->super.stage, c->super.err,
               c->super.stage == CV_STAGE_POLICY ? CV_TLS_ALERT_UNRECOGNIZED_NAME
                                                 : CV_TLS_ALERT_INTERNAL_ERROR);
        return;
    }
    if (is_loop(c)) {
        cv_stream_close(stream, true);
        refuse(c, CV_STAGE_DIAL, -ELOOP, CV_TLS_ALERT_INTERNAL_ERROR);
        return;
    }
    struct cv_stream *client = c->client;
    uint8_t *hello = c->hello;
    c->client = NULL;
    c->hello = NULL;
    before_done(c);
    sni_go(c, SNI_STATE_RELAY);
    c->relay = (struct cv_relay){
        .account = c->super.account, .on_bytes = on_relay_bytes, .on_end = on_relay_end};
    int ret =
        cv_relay_start(&c->relay, c->super.worker, client, stream, hello, c->hello_len, NULL, 0);
    cv_free(hello);
    if (ret != 0) {
        cv_session_fail(&c->super, CV_STAGE_SPLICE, ret);
        finish(c, false);
    }
}

static void on_relay_bytes(struct cv_relay *r, bool up, size_t n)
{
    struct sni *c = CV_CONTAINER_OF(r, struct sni, relay);
    if (up)
        cv_session_count_up(&c->super, n);
    else
        cv_session_count_down(&c->super, n);
}

static void on_relay_end(struct cv_relay *r, int err)
{
    struct sni *c = CV_CONTAINER_OF(r, struct sni, relay);
    cv_session_fail(&c->super, CV_STAGE_SPLICE, err);
    finish(c, false);
}

static void on_kill(struct cv_session *super, int err)
{
    struct sni *c = CV_CONTAINER_OF(super, struct sni, super);
    if (c->state == SNI_STATE_RELAY) {
        cv_relay_abort(&c->relay, err); /* on_end comes */
    } else if (c->state != SNI_STATE_ENDED) {
        bool silent = c->state == SNI_STATE_HELLO && cv_sniffer_first_byte(c->sniffer) < 0;
        if (!silent)
            cv_session_fail(super, CV_STAGE_LISTENER, err);
        cv_stream_close(c->client, true);
        c->client = NULL;
        finish(c, silent);
    }
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct sni, release));
}
