#include "proto/socks5.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "common/secret.h"
#include "flow/auth.h"
#include "flow/flow.h"
#include "flow/relay.h"
#include "inbound/linger.h"
#include "inbound/listener.h"
#include "inbound/socks5_udp.h"

#include "common/poison.h"

#define DOMAIN "socks5"
/* Most that a client may say on the control connection of an association. */
#define CONTROL_MAX_BYTES (64u << 10)

enum socks_state {
    SOCKS_STATE_GREETING = 1, /* we are here while the client has not named its methods */
    SOCKS_STATE_LOGIN,        /* ... has not sent its login */
    SOCKS_STATE_AUTH,         /* ... the login is being checked on another thread */
    SOCKS_STATE_REQUEST,      /* ... the client has not said where it wants to go */
    SOCKS_STATE_SNIFF,  /* ... it was told that it is connected; its first bytes are awaited */
    SOCKS_STATE_DIAL,   /* ... the way out is being opened */
    SOCKS_STATE_REFUSE, /* ... the last answer waits for room in the client's socket */
    SOCKS_STATE_RELAY,  /* ... bytes flow */
    SOCKS_STATE_UDP,    /* ... an association lives; the connection only says how long */
    SOCKS_STATE_ENDED,  /* ... the turn is not over; the session is gone, memory goes next */
};

/* What the time before the relay needs. It shares its memory with the relay, and bytes that were
 * read but not used are the only thing kept beside it, so an open session costs one allocation of
 * a few hundred bytes whatever state it is in. */
struct hello {
    struct cv_timer timer;         /* handshake_timeout, for all of the handshake */
    struct cv_listener_conf *conf; /* a reference; NULL when a login is required */
    struct cv_rcstr *user;         /* a reference; whom the certificate names; or NULL */
    struct cv_auth *auth;          /* in AUTH */
    struct cv_flow *flow;          /* in DIAL */
    struct cv_socks5_relay *udp;   /* in UDP */
    struct cv_ip advertise;        /* of the listener; no family: none */
    bool may_udp;                  /* the listener has UDP */
    uint32_t said;                 /* in UDP: bytes that came although nothing is to be said */
    uint8_t *kept;                 /* owned; the beginning of a message, or early data; or NULL */
    uint32_t kept_len;
    uint8_t out_len; /* answers that have not been sent */
    bool seen;       /* a byte has come from the client */
    bool replied;    /* it was told that it is connected */
    uint8_t out[2 + 2 + CV_SOCKS5_ANSWER_MAX];
};

struct socks {
    struct cv_session super;
    struct cv_stream *client; /* owned; NULL once the relay has it */
    enum socks_state state;
    struct cv_sniff_conf sniff;
    struct cv_sniffer *sniffer; /* owned; in SNIFF, or while the relay is observed; or NULL */
    struct cv_task release;
    union {
        struct hello hello;    /* until RELAY; in UDP */
        struct cv_relay relay; /* in RELAY and after */
    };
};

/* Bytes on their way through one callback: what was kept, then what is read. */
struct window {
    size_t off, len;
    size_t top; /* bytes of 'buf' that ever held something, to be cleared */
    uint8_t buf[CV_SOCKS5_HELLO_MAX];
};

static void on_client(void *arg, struct cv_stream *stream, unsigned events);
static void on_timer(struct cv_timer *t);
static void on_auth(void *arg, int err, struct cv_account *account);
static void on_sniff_timeout(void *arg);
static void on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local);
static void on_relay_bytes(struct cv_relay *r, bool up, size_t n);
static void on_relay_tap(struct cv_relay *r, const void *data, size_t len);
static void on_relay_end(struct cv_relay *r, int err);
static void on_kill(struct cv_session *super, int err);
static void on_release(struct cv_task *task);

static const struct cv_session_ops session_ops = {.kill = on_kill};

_Static_assert(CV_INBOUND_EARLY_MAX <= CV_SOCKS5_HELLO_MAX, "early bytes fit into the window");

/* -- state -- */

static const char *state_name(enum socks_state state)
{
    static const char *const names[] = {
        [SOCKS_STATE_GREETING] = "greeting", [SOCKS_STATE_LOGIN] = "login",
        [SOCKS_STATE_AUTH] = "auth",         [SOCKS_STATE_REQUEST] = "request",
        [SOCKS_STATE_SNIFF] = "sniff",       [SOCKS_STATE_DIAL] = "dial",
        [SOCKS_STATE_REFUSE] = "refuse",     [SOCKS_STATE_RELAY] = "relay",
        [SOCKS_STATE_UDP] = "udp",           [SOCKS_STATE_ENDED] = "ended",
    };
    return names[state];
}

static bool can_follow(enum socks_state from, enum socks_state to)
{
    switch (to) {
    case SOCKS_STATE_LOGIN:
        return from == SOCKS_STATE_GREETING;
    case SOCKS_STATE_AUTH:
        return from == SOCKS_STATE_LOGIN;
    case SOCKS_STATE_REQUEST:
        return from == SOCKS_STATE_GREETING || from == SOCKS_STATE_LOGIN ||
               from == SOCKS_STATE_AUTH;
    case SOCKS_STATE_SNIFF:
    case SOCKS_STATE_UDP:
        return from == SOCKS_STATE_REQUEST;
    case SOCKS_STATE_DIAL:
        return from == SOCKS_STATE_REQUEST || from == SOCKS_STATE_SNIFF;
    case SOCKS_STATE_REFUSE:
        return from < SOCKS_STATE_REFUSE;
    case SOCKS_STATE_RELAY:
        return from == SOCKS_STATE_DIAL;
    case SOCKS_STATE_ENDED:
        return from != SOCKS_STATE_ENDED;
    case SOCKS_STATE_GREETING:
        break;
    }
    return false;
}

static void socks_go(struct socks *s, enum socks_state to)
{
    CV_ASSERT(can_follow(s->state, to));
    cv_log(CV_LOG_TRACE, DOMAIN, "session=%016llx state='%s' after='%s'",
           (unsigned long long)s->super.id, state_name(to), state_name(s->state));
    s->state = to;
}

/* -- the end of the handshake, one way or the other -- */

/* Release what the handshake holds; the union is free for the relay then. */
static void hello_done(struct socks *s)
{
    struct hello *h = &s->hello;
    cv_loop_timer_stop(s->super.worker->loop, &h->timer);
    cv_auth_cancel(h->auth);
    cv_flow_cancel(h->flow);
    cv_socks5_relay_close(h->udp);
    cv_listener_conf_unref(h->conf);
    cv_rcstr_unref(h->user);
    if (h->kept != NULL) {
        cv_secret_clear(h->kept, h->kept_len);
        cv_free(h->kept);
    }
}

/* The session's line, if there is anything to tell, and the end of the object. The client's stream
 * has been dealt with. */
static void finish(struct socks *s)
{
    bool silent =
        s->state != SOCKS_STATE_RELAY && !s->hello.seen && s->super.stage == CV_STAGE_NONE;
    if (s->state != SOCKS_STATE_RELAY)
        hello_done(s);
    cv_sniffer_free(s->sniffer);
    s->sniffer = NULL;
    socks_go(s, SOCKS_STATE_ENDED);
    if (silent)
        cv_session_drop(&s->super);
    else
        cv_session_end(&s->super);
    s->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(s->super.worker->loop, &s->release);
}

static enum cv_stage stage_of(enum socks_state state)
{
    switch (state) {
    case SOCKS_STATE_AUTH:
        return CV_STAGE_AUTH;
    case SOCKS_STATE_SNIFF:
        return CV_STAGE_SNIFF_READ;
    case SOCKS_STATE_DIAL:
        return CV_STAGE_DIAL;
    case SOCKS_STATE_RELAY:
    case SOCKS_STATE_UDP:
        return CV_STAGE_SPLICE;
    default:
        return CV_STAGE_PARSE;
    }
}

/* The client is gone, or we give up on it without another word. A connection on which nothing was
 * said leaves no trace. */
static void hang_up(struct socks *s, enum cv_stage stage, int err)
{
    if (s->hello.seen || stage == CV_STAGE_TLS)
        cv_session_fail(&s->super, stage, err);
    cv_stream_close(s->client, false);
    s->client = NULL;
    finish(s);
}

static void client_gone(struct socks *s, int err)
{
    if (err == CV_E_TLS)
        hang_up(s, CV_STAGE_TLS, err);
    else
        hang_up(s, stage_of(s->state), err == -ENOMEM ? err : CV_E_CANCELED);
}

/* Send answers that wait. 0: none is left; -EAGAIN; other codes: the connection is broken. */
static int flush(struct socks *s)
{
    struct hello *h = &s->hello;
    while (h->out_len > 0) {
        size_t n;
        int ret = cv_stream_send(s->client, h->out, h->out_len, &n);
        if (ret < 0)
            return ret;
        h->out_len -= (uint8_t)n;
        memmove(h->out, h->out + n, h->out_len);
    }
    return 0;
}

static void put(struct socks *s, const void *answer, size_t len)
{
    struct hello *h = &s->hello;
    CV_ASSERT(len <= sizeof(h->out) - h->out_len); /* each answer is given once */
    memcpy(h->out + h->out_len, answer, len);
    h->out_len += (uint8_t)len;
}

/* In REFUSE: close when the last answer is out, such that the client can read it even if it has
 * sent more than was read. */
static void refuse_progress(struct socks *s)
{
    int ret = flush(s);
    if (ret == -EAGAIN) {
        struct cv_worker *w = s->super.worker;
        if (!cv_timer_is_armed(&s->hello.timer)) /* it was stopped for the dial */
            cv_loop_timer(w->loop, &s->hello.timer, w->settings->handshake_timeout_ms);
        return;
    }
    if (ret == 0)
        cv_linger_close(&s->super, s->client);
    else
        cv_stream_close(s->client, false);
    s->client = NULL;
    finish(s);
}

/* End the handshake with what put() has prepared (nothing: a silent close). */
static void refuse(struct socks *s, enum cv_stage stage, int err)
{
    cv_session_fail(&s->super, stage, err);
    socks_go(s, SOCKS_STATE_REFUSE);
}

static void refuse_request(struct socks *s, enum cv_stage stage, int err)
{
    uint8_t answer[CV_SOCKS5_ANSWER_MAX];
    size_t len = cv_socks5_reply_encode(answer, cv_stage_socks_rep(stage, err), NULL);
    put(s, answer, len);
    refuse(s, stage, err);
}

/* -- the three messages; each returns 0, CV_E_MORE, or 0 after leaving for another state -- */

static void accept_user(struct socks *s, struct cv_account *account)
{
    cv_session_set_user(&s->super, account->name, account);
    socks_go(s, SOCKS_STATE_REQUEST);
}

/* Who this is without a login: the certificate's user, whatever the listener lets others do, or the
 * listener's. */
static int trust(struct socks *s, struct cv_account **ret_account)
{
    struct hello *h = &s->hello;
    int ret = CV_E_AUTH;
    if (h->user != NULL) {
        ret = cv_auth_trust(&s->super, h->user->s, ret_account);
        if (ret != 0)
            cv_session_set_user(&s->super, h->user, NULL);
    } else if (h->conf != NULL) {
        ret = cv_auth_trust(&s->super, h->conf->no_auth_user, ret_account);
    }
    return ret;
}

static int take_greeting(struct socks *s, struct window *w)
{
    struct cv_socks5_greeting g;
    size_t used;
    int ret = cv_socks5_greeting_parse(w->buf + w->off, w->len - w->off, &g, &used);
    if (ret == CV_E_MORE)
        return ret;
    if (ret < 0) {
        refuse(s, CV_STAGE_PARSE, ret);
        return 0;
    }
    w->off += used;

    uint8_t answer[2];
    enum cv_socks5_method method = CV_SOCKS5_METHOD_REFUSED;
    struct cv_account *account;
    ret = g.none ? trust(s, &account) : CV_E_AUTH;
    if (ret == 0) {
        method = CV_SOCKS5_METHOD_NONE;
        accept_user(s, account);
    } else if (g.login && (s->hello.user == NULL || !g.none)) {
        method = CV_SOCKS5_METHOD_LOGIN;
        socks_go(s, SOCKS_STATE_LOGIN);
    }
    cv_socks5_method_encode(answer, method);
    put(s, answer, sizeof(answer));
    if (method == CV_SOCKS5_METHOD_REFUSED)
        refuse(s, CV_STAGE_AUTH, ret);
    return 0;
}

/* The name that the client gave, for the log line of a login that is not right (yet). */
static void note_user(struct socks *s, const struct cv_socks5_login *login)
{
    struct cv_rcstr *name = cv_rcstr_new(login->user, login->user_len);
    cv_session_set_user(&s->super, name, NULL);
    cv_rcstr_unref(name);
}

static void judge_login(struct socks *s, int err, struct cv_account *account)
{
    uint8_t answer[2];
    cv_socks5_login_reply_encode(answer, err == 0);
    put(s, answer, sizeof(answer));
    if (err == 0)
        accept_user(s, account);
    else
        refuse(s, CV_STAGE_AUTH, err);
}

static int take_login(struct socks *s, struct window *w)
{
    struct cv_socks5_login login;
    size_t used;
    int ret = cv_socks5_login_parse(w->buf + w->off, w->len - w->off, &login, &used);
    if (ret == CV_E_MORE)
        return ret;
    if (ret < 0) {
        refuse(s, CV_STAGE_PARSE, ret);
        return 0;
    }
    w->off += used;
    struct cv_account *account = NULL;
    const struct cv_rcstr *only = s->hello.user;
    ret = cv_auth_check_as(&s->super, only, login.user, login.user_len, login.pass, login.pass_len,
                           on_auth, s, &account, &s->hello.auth);
    if (ret != 0)
        note_user(s, &login);
    if (ret == -EINPROGRESS)
        socks_go(s, SOCKS_STATE_AUTH);
    else
        judge_login(s, ret, account);
    return 0;
}

/* -- its first bytes, when they are to be known before the dial -- */

/* The outcome is known: take the bytes along and dial. */
static int sniffed(struct socks *s)
{
    struct hello *h = &s->hello;
    struct cv_target target;
    size_t len;
    const struct cv_rcstr *host = s->super.target_host;
    /* It was parsed out of a request, and reads the same out of its canonical form. */
    if (CV_BUG_ON_ONCE(cv_host_parse(host->s, host->len, &target.host) != 0))
        return CV_E_PARSE;
    target.port = s->super.target_port;
    h->kept = cv_sniffer_take(s->sniffer, &len);
    h->kept_len = (uint32_t)len;
    cv_sniffer_free(s->sniffer);
    s->sniffer = NULL;
    int ret = cv_flow_open(&s->super, &target, on_flow, s, &h->flow);
    if (ret == 0)
        socks_go(s, SOCKS_STATE_DIAL);
    return ret;
}

/* Say that the client is connected, since only then does it speak, and give what has come behind
 * its request to the sniffer. */
static int begin_sniff(struct socks *s, const struct cv_target *target, struct window *w)
{
    uint8_t answer[CV_SOCKS5_ANSWER_MAX];
    if (cv_flow_screen(&s->super, target) != 0) {
        refuse_request(s, s->super.stage, s->super.err);
        return 0;
    }
    int ret = cv_sniffer_new(&s->super, &s->sniff, true, on_sniff_timeout, s, &s->sniffer);
    if (ret != 0)
        return ret;
    put(s, answer, cv_socks5_reply_encode(answer, CV_SOCKS5_REP_OK, NULL));
    s->hello.replied = true;
    cv_loop_timer_stop(s->super.worker->loop, &s->hello.timer);
    socks_go(s, SOCKS_STATE_SNIFF);
    if (w->off == w->len)
        return 0;
    ret = cv_sniffer_add(s->sniffer, w->buf + w->off, w->len - w->off);
    w->off = w->len;
    if (ret == 0)
        ret = sniffed(s);
    return ret == CV_E_MORE ? 0 : ret;
}

static void read_sniff(struct socks *s)
{
    int ret = cv_sniffer_read(s->sniffer, s->client);
    if (ret == 0)
        ret = sniffed(s);
    if (ret != 0 && ret != CV_E_MORE)
        client_gone(s, ret);
}

static void on_sniff_timeout(void *arg)
{
    struct socks *s = arg;
    int ret = 0;
    if (s->state == SOCKS_STATE_SNIFF) {
        ret = sniffed(s);
    } else {
        s->relay.tap = NULL;
        cv_sniffer_free(s->sniffer);
        s->sniffer = NULL;
    }
    if (ret != 0)
        client_gone(s, ret);
}

/* -- the request -- */

/* 0 when the dial has begun, or when the session has left for another state. */
static int open_flow(struct socks *s, const struct cv_socks5_request *request, struct window *w)
{
    struct cv_target target;
    int ret = cv_socks5_request_target(request, &target);
    if (ret == 0)
        ret = cv_session_set_target(&s->super, &target);
    if (ret == 0 && s->sniff.mode == CV_SNIFF_ROUTE)
        return begin_sniff(s, &target, w);
    if (ret == 0)
        ret = cv_flow_open(&s->super, &target, on_flow, s, &s->hello.flow);
    return ret;
}

static void on_idle(struct cv_session *super)
{
    hang_up(CV_CONTAINER_OF(super, struct socks, super), CV_STAGE_SPLICE, -ETIMEDOUT);
}

static void associate(struct socks *s, const struct cv_socks5_request *request)
{
    struct hello *h = &s->hello;
    struct cv_endpoint bnd;
    uint8_t answer[CV_SOCKS5_ANSWER_MAX];
    s->super.protocol = "socks5-udp";
    if (!h->may_udp)
        cv_session_fail(&s->super, CV_STAGE_LISTENER, CV_E_UNSUPPORTED);
    else if (cv_socks5_relay_open(&s->super, s->client, &h->advertise,
                                  s->sniff.mode != CV_SNIFF_OFF, request, on_idle, &bnd,
                                  &h->udp) == 0) {
        put(s, answer, cv_socks5_reply_encode(answer, CV_SOCKS5_REP_OK, &bnd));
        cv_loop_timer_stop(s->super.worker->loop, &h->timer);
        socks_go(s, SOCKS_STATE_UDP);
        return;
    }
    refuse_request(s, s->super.stage, s->super.err);
}

static int take_request(struct socks *s, struct window *w)
{
    struct cv_socks5_request request;
    size_t used;
    int ret = cv_socks5_request_parse(w->buf + w->off, w->len - w->off, &request, &used);
    if (ret == CV_E_MORE)
        return ret;
    if (ret == CV_E_PROTO) {
        refuse(s, CV_STAGE_PARSE, ret);
        return 0;
    }
    if (ret == 0) {
        w->off += used;
        if (request.cmd == CV_SOCKS5_CMD_UDP) {
            associate(s, &request);
            w->off = w->len; /* nothing more is said on this connection */
            return 0;
        }
        ret = open_flow(s, &request, w);
    }
    if (s->state != SOCKS_STATE_REQUEST)
        return ret; /* sniffing, or beyond that */
    if (ret < 0) {
        refuse_request(s, CV_STAGE_PARSE, ret);
        return 0;
    }
    cv_loop_timer_stop(s->super.worker->loop, &s->hello.timer);
    socks_go(s, SOCKS_STATE_DIAL);
    return 0;
}

/* -- reading -- */

/* Take all messages that are whole. CV_E_MORE, or 0 when something else is waited for. */
static int take_messages(struct socks *s, struct window *w)
{
    int ret = 0;
    while (ret == 0) {
        switch (s->state) {
        case SOCKS_STATE_GREETING:
            ret = take_greeting(s, w);
            break;
        case SOCKS_STATE_LOGIN:
            ret = take_login(s, w);
            break;
        case SOCKS_STATE_REQUEST:
            ret = take_request(s, w);
            break;
        default:
            return 0;
        }
    }
    return ret;
}

/* Add what the client has sent to the window. 0; -EAGAIN; CV_E_CANCELED at the end of the stream;
 * other codes. There is room: the window holds more than the longest message. */
static int fill(struct socks *s, struct window *w)
{
    if (w->off > 0) {
        memmove(w->buf, w->buf + w->off, w->len - w->off);
        w->len -= w->off;
        w->off = 0;
    }
    size_t n;
    int ret = cv_stream_recv(s->client, w->buf + w->len, sizeof(w->buf) - w->len, &n);
    if (ret < 0)
        return ret;
    if (n == 0)
        return CV_E_CANCELED;
    s->hello.seen = true;
    w->len += n;
    w->top = CV_MAX(w->top, w->len);
    return 0;
}

/* Keep what is left in the window for the next callback, or for the relay. */
static int keep(struct socks *s, const struct window *w)
{
    struct hello *h = &s->hello;
    size_t n = w->len - w->off;
    if (n == 0)
        return 0;
    CV_ASSERT(h->kept == NULL);
    h->kept = cv_try_alloc(n);
    if (h->kept == NULL)
        return -ENOMEM;
    memcpy(h->kept, w->buf + w->off, n);
    h->kept_len = (uint32_t)n;
    return 0;
}

/* Take what was kept back into the window. */
static void unkeep(struct socks *s, struct window *w)
{
    struct hello *h = &s->hello;
    w->off = 0;
    w->len = w->top = h->kept_len;
    if (h->kept == NULL)
        return;
    memcpy(w->buf, h->kept, h->kept_len);
    cv_secret_clear(h->kept, h->kept_len);
    CV_FREE(h->kept);
    h->kept_len = 0;
}

/* While an association lives nothing is said on its control connection. What comes all the same is
 * read and forgotten, up to a bound. The client's end of it is the end of the association (RFC 1928
 * section 7), and the proper one. */
static void read_control(struct socks *s)
{
    struct hello *h = &s->hello;
    size_t n = 1;
    int ret = 0;
    while (ret == 0 && n > 0 && h->said < CONTROL_MAX_BYTES) {
        ret = cv_stream_recv(s->client, s->super.worker->scratch, CV_SCRATCH_SIZE, &n);
        if (ret == 0)
            h->said += (uint32_t)n;
    }
    if (ret == 0 && n > 0)
        hang_up(s, CV_STAGE_SPLICE, CV_E_PROTO);
    else if (ret != -EAGAIN)
        hang_up(s, CV_STAGE_SPLICE, ret); /* 0: its proper end */
}

/* Go on with the handshake as far as the client's bytes lead. The window holds what there is
 * already. Answers to several messages that came at once leave in one piece. */
static void advance(struct socks *s, struct window *w)
{
    int ret = take_messages(s, w);
    while (ret == CV_E_MORE && (ret = fill(s, w)) == 0)
        ret = take_messages(s, w);
    if (ret == -EAGAIN)
        ret = 0;
    if (s->state == SOCKS_STATE_REFUSE) {
        refuse_progress(s);
    } else if (ret == 0) {
        ret = keep(s, w);
        if (ret == 0 && (ret = flush(s)) == -EAGAIN)
            ret = 0;
    }
    if (ret == 0 && s->state == SOCKS_STATE_SNIFF)
        read_sniff(s);
    cv_secret_clear(w->buf, w->top);
    if (ret < 0 && s->state != SOCKS_STATE_ENDED)
        client_gone(s, ret);
    /* The client's end may have come along with its request, and is not announced again. */
    else if (s->state == SOCKS_STATE_UDP)
        read_control(s);
}

static void read_hello(struct socks *s)
{
    struct window w;
    unkeep(s, &w);
    advance(s, &w);
}

/* While we dial, the client may send early data, which is kept as far as the window goes and left
 * in its socket beyond, and it may leave. A client that ends its side before it has sent any
 * payload has nothing to gain from the connection: most likely it was closed, so the dial is given
 * up. With payload it may just be one that says no more (a half-close), and the relay will find its
 * end. */
static void read_early(struct socks *s)
{
    struct window w;
    if (s->hello.kept_len >= sizeof(w.buf))
        return; /* it was sniffed and has said enough */
    unkeep(s, &w);
    int ret = 0;
    while (ret == 0 && w.len < sizeof(w.buf))
        ret = fill(s, &w);
    if (ret == -EAGAIN || (ret == CV_E_CANCELED && w.len > 0))
        ret = 0;
    if (ret == 0)
        ret = keep(s, &w);
    if (ret < 0)
        client_gone(s, ret);
}

void cv_socks5_serve(const struct cv_inbound *in)
{
    struct cv_worker *worker = in->worker;
    struct socks *s = cv_try_zalloc(sizeof(*s));
    if (s == NULL) {
        cv_stream_close(in->stream, false);
        return;
    }
    cv_session_begin(&s->super, worker, &session_ops, "socks5", in->conf->stats, &in->client);
    s->client = in->stream;
    s->state = SOCKS_STATE_GREETING;
    s->hello.may_udp = in->conf->udp;
    s->hello.advertise = in->conf->udp_advertise;
    s->sniff = in->conf->sniff;
    if (in->conf->no_auth_user != NULL)
        s->hello.conf = cv_listener_conf_ref(in->conf);
    s->hello.user = cv_rcstr_ref(in->user);
    cv_timer_init(&s->hello.timer, on_timer);
    cv_timer_start(cv_loop_timers(worker->loop), &s->hello.timer,
                   in->accepted_ms + worker->settings->handshake_timeout_ms);
    cv_stream_set_cb(s->client, on_client, s);
    if (in->early_len > 0) {
        struct window w;
        w.off = 0;
        w.len = w.top = in->early_len;
        memcpy(w.buf, in->early, in->early_len);
        s->hello.seen = true;
        advance(s, &w);
    }
}

/* -- events -- */

static void on_client(void *arg, struct cv_stream *stream, unsigned events)
{
    struct socks *s = arg;
    if (s->state == SOCKS_STATE_UDP && (events & CV_STREAM_HUP)) {
        read_control(s); /* finds out how it has ended */
        if (s->state == SOCKS_STATE_UDP)
            client_gone(s, CV_E_CANCELED);
        return;
    }
    if (events & CV_STREAM_HUP) {
        client_gone(s, CV_E_CANCELED);
        return;
    }
    if (s->state == SOCKS_STATE_REFUSE) {
        refuse_progress(s);
        return;
    }
    if ((events & CV_STREAM_WRITE) && s->hello.out_len > 0) {
        int ret = flush(s);
        if (ret < 0 && ret != -EAGAIN) {
            client_gone(s, ret);
            return;
        }
    }
    if (!(events & CV_STREAM_READ))
        return;
    if (s->state == SOCKS_STATE_UDP)
        read_control(s);
    else if (s->state == SOCKS_STATE_DIAL)
        read_early(s);
    else if (s->state == SOCKS_STATE_SNIFF)
        read_sniff(s);
    else if (s->state != SOCKS_STATE_AUTH) /* what comes meanwhile is read when that is over */
        read_hello(s);
}

static void on_timer(struct cv_timer *t)
{
    struct socks *s = CV_CONTAINER_OF(t, struct socks, hello.timer);
    hang_up(s, stage_of(s->state), -ETIMEDOUT);
}

static void on_auth(void *arg, int err, struct cv_account *account)
{
    struct socks *s = arg;
    s->hello.auth = NULL;
    judge_login(s, err, account);
    read_hello(s);
}

/* Have the relay looked at. It works as well if that cannot be done. */
static void observe(struct socks *s)
{
    if (s->sniff.mode == CV_SNIFF_OBSERVE &&
        cv_sniffer_new(&s->super, &s->sniff, false, on_sniff_timeout, s, &s->sniffer) == 0)
        s->relay.tap = on_relay_tap;
}

static void on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local)
{
    struct socks *s = arg;
    struct hello *h = &s->hello;
    h->flow = NULL;
    if (err != 0 && h->replied) {
        /* It was told that it is connected. A reset cannot be taken for the end of an answer. */
        cv_stream_close(s->client, true);
        s->client = NULL;
        finish(s);
        return;
    }
    if (err != 0) {
        refuse_request(s, s->super.stage, s->super.err);
        refuse_progress(s);
        return;
    }
    uint8_t answer[CV_SOCKS5_ANSWER_MAX];
    if (!h->replied)
        put(s, answer, cv_socks5_reply_encode(answer, CV_SOCKS5_REP_OK, local));
    int ret = flush(s);
    if (ret < 0 && ret != -EAGAIN) {
        cv_stream_close(stream, true);
        client_gone(s, ret);
        return;
    }

    /* The relay moves into the memory of the handshake: take along what it has to begin with. */
    struct cv_stream *client = s->client;
    uint8_t *early = h->kept;
    size_t early_len = h->kept_len, rest_len = h->out_len;
    uint8_t rest[sizeof(h->out)];
    memcpy(rest, h->out, rest_len);
    h->kept = NULL;
    hello_done(s);
    socks_go(s, SOCKS_STATE_RELAY);
    s->client = NULL;
    s->relay = (struct cv_relay){
        .account = s->super.account, .on_bytes = on_relay_bytes, .on_end = on_relay_end};
    observe(s);
    ret = cv_relay_start(&s->relay, s->super.worker, client, stream, early, early_len, rest,
                         rest_len);
    cv_free(early);
    if (ret < 0) {
        cv_session_fail(&s->super, CV_STAGE_SPLICE, ret);
        finish(s);
    }
}

static void on_relay_bytes(struct cv_relay *r, bool up, size_t n)
{
    struct socks *s = CV_CONTAINER_OF(r, struct socks, relay);
    if (up)
        cv_session_count_up(&s->super, n);
    else
        cv_session_count_down(&s->super, n);
}

static void on_relay_tap(struct cv_relay *r, const void *data, size_t len)
{
    struct socks *s = CV_CONTAINER_OF(r, struct socks, relay);
    if (cv_sniffer_add(s->sniffer, data, len) == CV_E_MORE)
        return;
    r->tap = NULL;
    cv_sniffer_free(s->sniffer);
    s->sniffer = NULL;
}

static void on_relay_end(struct cv_relay *r, int err)
{
    struct socks *s = CV_CONTAINER_OF(r, struct socks, relay);
    if (err != 0)
        cv_session_fail(&s->super, CV_STAGE_SPLICE, err);
    finish(s);
}

static void on_kill(struct cv_session *super, int err)
{
    struct socks *s = CV_CONTAINER_OF(super, struct socks, super);
    if (s->state == SOCKS_STATE_RELAY) {
        cv_relay_abort(&s->relay, err); /* on_end comes */
    } else if (s->state != SOCKS_STATE_ENDED) {
        if (s->hello.seen)
            cv_session_fail(&s->super,
                            s->state == SOCKS_STATE_UDP ? CV_STAGE_SPLICE : CV_STAGE_LISTENER, err);
        cv_stream_close(s->client, true);
        s->client = NULL;
        finish(s);
    }
}

static void on_release(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct socks, release));
}
