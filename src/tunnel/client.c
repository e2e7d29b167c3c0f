#include "tunnel/client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/rand.h"
#include "common/secret.h"
#include "tunnel/frame.h"
#include "tunnel/keyslot.h"
#include "tunnel/mss.h"
#include "tunnel/transport.h"

#include "common/poison.h"

#define LOG "tunnel"
#define RESET_TIMEOUT_MS                                                                           \
    6000 /* UDP: an answer to the first packet; SoftEther never repeats its own */
#define PUSH_AGAIN_MS   3000
#define SWITCH_AFTER_MS 1500 /* from new keys to sending with them */
#define RENEG_RETRY_MS  60000
#define DATA_LIMIT      ((uint64_t)900 << 30) /* of one AEAD key; its limit is 2^36 blocks */
#define PACKET_ROOM     (CV_FRAME_HEAD_MAX + CV_DATAKEY_OVERHEAD)
#define CONTROL_ROOM    (CV_WIRE_PIECE_MAX + 128 + CV_WRAP_OVERHEAD + CV_WRAP_WKC_MAX)

struct cv_client {
    struct cv_loop *loop;
    const struct cv_profile *p;
    struct cv_tlschan_ctx *tls;
    struct cv_tunnel_stats *stats;
    const struct cv_client_ops *ops;
    void *arg;
    struct cv_transport *t; /* owned */
    struct cv_timer timer;
    struct cv_task free_task;
    char *user, *password; /* owned secrets */
    bool password_is_token, tcp, ip6, closed, up;
    enum cv_tunnel_step step;

    struct cv_wrap wrap;
    uint8_t sid[CV_WIRE_SID_LEN], peer_sid[CV_WIRE_SID_LEN];
    bool has_peer_sid;
    /* The newest key in use, the one before it, and the one that is being agreed on; owned. */
    struct cv_keyslot *cur, *old, *neg;
    bool send_with_old; /* the newest key is too new for the peer */
    uint8_t last_key_id;

    struct cv_push push;
    bool pushed;
    char cipher[32], auth[24];
    struct cv_frame *frame; /* owned */
    uint32_t mtu;

    int64_t deadline_ms;         /* of coming up; INT64_MAX once up */
    int64_t reset_limit_ms;      /* of the first answer */
    int64_t push_again_ms;       /* when to ask again */
    int64_t reneg_ms;            /* when to renegotiate; INT64_MAX never */
    int64_t reneg_hold_ms;       /* but not before */
    int64_t ping_ms, restart_ms; /* 0 = off */
    int64_t last_out_ms, last_in_ms;
    uint64_t counted_in, counted_out, counted_dropped, counted_again;

    struct cv_pkt_in batch[CV_PKTIF_BATCH];
    size_t n_batch;
    bool reading; /* within the transport's callback: pump later, once */
};

static void rearm(struct cv_client *c);
static void pump(struct cv_client *c);

static int64_t now(const struct cv_client *c)
{
    return cv_loop_now(c->loop);
}

static void gauge_set(struct cv_gauge *g, int64_t v)
{
    atomic_store_explicit(&g->v, v, memory_order_relaxed);
}

/* ---- ends and steps ---- */

CV_PRINTF(5, 6)
static void end(struct cv_client *c, enum cv_client_end how, int err, uint32_t backoff_s,
                const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (c->closed)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->ops->on_end(c->arg, how, err, c->step, text, backoff_s);
}

static void step(struct cv_client *c, enum cv_tunnel_step s, const char *detail)
{
    if (c->closed || s <= c->step)
        return;
    c->step = s;
    c->ops->on_step(c->arg, s, detail);
}

/* ---- control packets out ---- */

static void send_plain(struct cv_client *c, const struct cv_wire_ctl *ctl)
{
    uint8_t plain[CV_WIRE_PIECE_MAX + 128];
    size_t len = 0, n = 0;
    if (cv_wire_encode(ctl, plain, sizeof(plain), &len) != 0)
        return;
    uint8_t *out = cv_transport_reserve(c->t, CONTROL_ROOM);
    if (out == NULL) /* it is sent again when it is due */
        return;
    if (cv_wrap_seal(&c->wrap, plain, len, out, CONTROL_ROOM, &n) == 0)
        cv_transport_commit(c->t, n);
}

static void fill(struct cv_client *c, struct cv_keyslot *s, struct cv_wire_ctl *ctl)
{
    memcpy(ctl->sid, c->sid, CV_WIRE_SID_LEN);
    ctl->key_id = s->key_id;
    if (c->has_peer_sid) {
        ctl->n_acks = (uint8_t)cv_reliable_take_acks(&s->rel, ctl->acks, CV_WIRE_ACKS_SENT);
        memcpy(ctl->peer_sid, c->peer_sid, CV_WIRE_SID_LEN);
    }
}

static void pump_slot(struct cv_client *c, struct cv_keyslot *s)
{
    const struct cv_reliable_out *o;
    if (s == NULL)
        return;
    while ((o = cv_reliable_next(&s->rel, now(c))) != NULL) {
        struct cv_wire_ctl ctl = {.op = o->op, .id = o->id, .piece = o->data, .piece_len = o->len};
        fill(c, s, &ctl);
        send_plain(c, &ctl);
    }
    while (s->rel.n_pending > 0 && c->has_peer_sid && !s->wkc_next) {
        struct cv_wire_ctl ctl = {.op = CV_WIRE_ACK};
        fill(c, s, &ctl);
        send_plain(c, &ctl);
    }
}

static void pump(struct cv_client *c)
{
    if (c->closed || c->step < CV_TUNNEL_STEP_SOCKET)
        return;
    pump_slot(c, c->cur);
    pump_slot(c, c->old);
    pump_slot(c, c->neg);
    rearm(c);
}

/* ---- data out ---- */

static struct cv_keyslot *sending_slot(struct cv_client *c)
{
    if (c->send_with_old) {
        bool old_is_good = c->old != NULL && c->old->data.next_id < CV_DATAKEY_ID_RENEW;
        if (old_is_good && now(c) - c->cur->active_ms < SWITCH_AFTER_MS)
            return c->old;
        c->send_with_old = false;
    }
    return c->cur != NULL && c->cur->has_data ? c->cur : NULL;
}

/* Seal pieces into the output. 0; CV_E_LIMIT: no room; another code: not to be had. */
static int seal(struct cv_client *c, struct cv_keyslot *s, const struct iovec *pieces, size_t n,
                size_t len)
{
    size_t cap = len + PACKET_ROOM, got = 0;
    if (len > CV_FRAME_PACKET_MAX)
        return CV_E_INVALID;
    uint8_t *out = cv_transport_reserve(c->t, cap);
    if (out == NULL)
        return CV_E_LIMIT;
    int ret = cv_datakey_seal(&s->data, pieces, n, len, out, cap, &got);
    if (ret != 0)
        return CV_E_INVALID;
    cv_transport_commit(c->t, got);
    c->last_out_ms = now(c);
    return 0;
}

/* A packet that is larger than a fragment may be. */
static int send_fragments(struct cv_client *c, struct cv_keyslot *s, const uint8_t *data,
                          size_t len)
{
    size_t max = (c->p->fragment - 4) / 4 * 4, count = (len + max - 1) / max;
    size_t unit = ((len + count - 1) / count + 3) / 4 * 4;
    int ret = 0;
    for (unsigned i = 0; i < count && ret == 0; i++) {
        uint8_t head[4];
        size_t n = CV_MIN(unit, len - i * unit);
        cv_frame_fragment(c->frame, i, i + 1 == count, (uint32_t)unit, head);
        struct iovec iov[2] = {{head, 4}, {(void *)(uintptr_t)(data + i * unit), n}};
        ret = seal(c, s, iov, 2, n + 4);
    }
    c->frame->next_seq++;
    return ret;
}

static int send_framed(struct cv_client *c, struct cv_keyslot *s, const struct iovec *pieces,
                       size_t n, size_t len)
{
    struct iovec iov[CV_PKTIF_PIECES + 3];
    uint8_t head[CV_FRAME_HEAD_MAX];
    const uint8_t *first = pieces[0].iov_base;
    bool swap;
    if (c->frame->comp == CV_COMP_NONE && !c->frame->fragment)
        return seal(c, s, pieces, n, len);
    size_t head_len = cv_frame_head(c->frame, first[0], head, &swap), k = 0;
    if (c->frame->fragment && len + head_len > c->p->fragment) {
        uint8_t whole[CV_FRAME_PACKET_MAX + CV_FRAME_HEAD_MAX];
        size_t at = head_len - 4;
        if (len > CV_FRAME_PACKET_MAX)
            return CV_E_INVALID;
        memcpy(whole, head + 4, at);
        for (size_t i = 0; i < n; i++) {
            memcpy(whole + at, pieces[i].iov_base, pieces[i].iov_len);
            at += pieces[i].iov_len;
        }
        if (swap) {
            whole[at++] = first[0];
            memmove(whole + head_len - 4, whole + head_len - 3, at - (head_len - 3));
            at--;
        }
        return send_fragments(c, s, whole, at);
    }
    iov[k++] = (struct iovec){head, head_len};
    for (size_t i = 0; i < n; i++)
        iov[k++] = pieces[i];
    if (swap) {
        iov[1].iov_base = (uint8_t *)iov[1].iov_base + 1;
        iov[1].iov_len--;
        iov[k++] = (struct iovec){(void *)(uintptr_t)first, 1};
    }
    return seal(c, s, iov, k, len + head_len);
}

size_t cv_client_send(struct cv_client *c, const struct cv_pkt_out *pkts, size_t n)
{
    struct cv_keyslot *s = c->up && !c->closed ? sending_slot(c) : NULL;
    uint64_t packets = 0, bytes = 0;
    size_t i;
    if (s == NULL)
        return CV_PKTIF_DOWN;
    for (i = 0; i < n; i++) {
        int ret = send_framed(c, s, pkts[i].iov, pkts[i].iovcnt, pkts[i].len);
        if (ret == CV_E_LIMIT)
            break;
        if (ret == 0) {
            packets++;
            bytes += pkts[i].len;
        } else {
            cv_counter_add_owned(&c->stats->out_dropped, 1);
        }
    }
    cv_counter_add_owned(&c->stats->out_packets, packets);
    cv_counter_add_owned(&c->stats->out_bytes, bytes);
    return i;
}

static void send_raw(struct cv_client *c, const uint8_t *data, size_t len)
{
    struct cv_keyslot *s = c->up ? sending_slot(c) : NULL;
    struct iovec iov = {(void *)(uintptr_t)data, len};
    if (s != NULL)
        (void)send_framed(c, s, &iov, 1, len);
}

/* ---- coming up ---- */

static bool is_offered(const struct cv_client *c, const char *name)
{
    char list[512];
    size_t n = strlen(name);
    if (cv_keymethod_ciphers(c->p, list, sizeof(list)) != 0)
        return false;
    for (const char *p = list; *p != '\0';) {
        size_t k = strcspn(p, ":");
        if (k == n && strncmp(p, name, n) == 0)
            return true;
        p += k + (p[k] == ':');
    }
    /* A profile that says nothing about ciphers takes what a server without negotiation has. */
    return c->p->n_ciphers == 0 && c->p->cipher[0] == '\0' && c->p->fallback[0] == '\0';
}

/* The value of "name VALUE" in an options string. */
static bool told(const char *options, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    for (const char *p = options; *p != '\0';) {
        size_t k = strcspn(p, ",");
        if (k > n && strncmp(p, name, n) == 0 && p[n] == ' ' && k - n - 1 < cap) {
            snprintf(out, cap, "%.*s", (int)(k - n - 1), p + n + 1);
            return true;
        }
        p += k + (p[k] == ',');
    }
    return false;
}

/* Which cipher and digest the server means. 0 or a code after the end was told. */
static int choose_cipher(struct cv_client *c)
{
    char mine[512], name[32];
    snprintf(c->auth, sizeof(c->auth), "%s", c->p->auth);
    if (c->push.cipher[0] != '\0') {
        snprintf(c->cipher, sizeof(c->cipher), "%s", c->push.cipher);
        if (c->push.auth[0] != '\0')
            snprintf(c->auth, sizeof(c->auth), "%s", c->push.auth);
    } else {
        /* No negotiation: what its options string says, or what ours said. */
        if (cv_keymethod_options(c->p, c->tcp, c->ip6, mine, sizeof(mine)) == 0)
            (void)told(mine, "cipher", c->cipher, sizeof(c->cipher));
        if (told(c->cur->peer_options, "cipher", name, sizeof(name)) &&
            cv_datakey_cipher(name) != NULL)
            memcpy(c->cipher, name, sizeof(name));
        if (told(c->cur->peer_options, "auth", name, sizeof(name)) && name[0] != '[')
            snprintf(c->auth, sizeof(c->auth), "%.23s", name);
    }
    if (cv_datakey_cipher(c->cipher) != NULL && is_offered(c, c->cipher))
        return 0;
    end(c, CV_CLIENT_END_NEXT, CV_E_UNSUPPORTED, 0,
        "the server wants cipher '%.31s', which %s; 'data-ciphers' of the profile would admit it",
        c->cipher,
        cv_datakey_cipher(c->cipher) != NULL ? "the profile does not allow" : "is not known");
    return CV_E_UNSUPPORTED;
}

static int make_data(struct cv_client *c, struct cv_keyslot *s)
{
    int ret = cv_keyslot_make_data(s, c->cipher, c->auth, c->push.tls_ekm, c->sid, c->peer_sid,
                                   c->push.peer_id, now(c));
    if (ret != 0)
        end(c, CV_CLIENT_END_RETRY, ret, 0, "no keys for cipher '%.31s' and digest '%.23s'",
            c->cipher, c->auth);
    gauge_set(&c->stats->key_since_ms, cv_clock_unix_ms());
    return ret;
}

static void set_timers(struct cv_client *c)
{
    const struct cv_profile *p = c->p;
    int32_t ping = c->push.ping >= 0 ? c->push.ping : p->ping;
    int32_t restart = c->push.ping_restart >= 0 ? c->push.ping_restart
                      : p->ping_restart >= 0    ? p->ping_restart
                      : c->push.ping_exit > 0   ? c->push.ping_exit
                      : p->ping_exit > 0        ? p->ping_exit
                                                : 120;
    c->ping_ms = (ping >= 0 ? ping : 10) * (int64_t)1000;
    c->restart_ms = restart * (int64_t)1000;
    int64_t reneg = p->reneg_sec < 0 ? 3600 : p->reneg_sec;
    c->reneg_ms = reneg > 0 ? now(c) + reneg * 1000 : INT64_MAX;
    c->last_in_ms = c->last_out_ms = now(c);
}

static void set_sizes(struct cv_client *c, uint32_t *ret_mss)
{
    const struct cv_profile *p = c->p;
    struct cv_mss_input in = {
        .mssfix = p->mssfix >= 0 ? p->mssfix : c->push.mssfix,
        .is_mtu = p->mssfix_mtu,
        .is_fixed = p->mssfix_fixed,
        .fragment = p->fragment,
        .path_mtu = cv_transport_path_mtu(c->t),
        .tcp = c->tcp,
        .ip6 = c->ip6,
        .frame_len = (c->frame->fragment ? 4u : 0) + (c->frame->comp != CV_COMP_NONE ? 1u : 0),
        .tun_mtu = c->push.tun_mtu > 0 ? (uint32_t)c->push.tun_mtu : p->tun_mtu,
    };
    cv_mss_compute(&in, &c->cur->data, &c->mtu, ret_mss);
}

static void describe(const struct cv_client *c, char *out, size_t cap)
{
    char ip4[CV_IP_STRLEN] = "none", ip6[CV_IP_STRLEN] = "none";
    if (c->push.ip4.family != CV_AF_NONE)
        cv_ip_format(&c->push.ip4, ip4);
    if (c->push.ip6.family != CV_AF_NONE)
        cv_ip_format(&c->push.ip6, ip6);
    snprintf(out, cap, "IPv4 %s, IPv6 %s, %s%s%s, peer-id %d, %zu DNS", ip4, ip6, c->cipher,
             cv_datakey_cipher(c->cipher)->aead ? "" : "/",
             cv_datakey_cipher(c->cipher)->aead ? "" : c->auth, c->push.peer_id, c->push.n_dns);
}

/* The push reply is complete. */
static void come_up(struct cv_client *c)
{
    char text[256];
    uint32_t mss = 0;
    if (c->push.ip4.family == CV_AF_NONE && c->push.ip6.family == CV_AF_NONE) {
        end(c, CV_CLIENT_END_NEXT, CV_E_PROTO, 0, "the server gave no address");
        return;
    }
    if (choose_cipher(c) != 0 || make_data(c, c->cur) != 0)
        return;
    int comp = c->push.comp >= 0 ? c->push.comp : (int)c->p->comp;
    cv_frame_init(c->frame, (enum cv_profile_comp)comp, c->p->fragment > 0);
    c->pushed = c->up = true;
    c->deadline_ms = INT64_MAX;
    set_timers(c);
    set_sizes(c, &mss);
    describe(c, text, sizeof(text));
    step(c, CV_TUNNEL_STEP_PUSH, text);
    if (c->closed)
        return;
    step(c, CV_TUNNEL_STEP_UP, "");
    if (!c->closed)
        c->ops->on_up(c->arg, &c->push, c->mtu, mss);
    /* A stock UDP server takes data only once it has seen some: say something. */
    if (!c->closed)
        send_raw(c, cv_frame_ping, sizeof(cv_frame_ping));
}

/* Without 'pull': the profile has the addresses. */
static void come_up_unpushed(struct cv_client *c)
{
    const struct cv_profile *p = c->p;
    if (cv_ip_parse(p->ifconfig_local, strlen(p->ifconfig_local), &c->push.ip4) != 0)
        c->push.ip4.family = CV_AF_NONE;
    c->push.ip4_len = 32;
    come_up(c);
}

/* ---- control messages ---- */

static uint32_t word_number(const char *text, const char *word)
{
    const char *p = strstr(text, word);
    uint32_t v = 0;
    if (p == NULL)
        return 0;
    for (p += strlen(word); *p == ' '; p++)
        ;
    for (; *p >= '0' && *p <= '9' && v < 100000; p++)
        v = v * 10 + (uint32_t)(*p - '0');
    return v;
}

static void on_auth_failed(struct cv_client *c, const char *reason)
{
    if (*reason == ',')
        reason++;
    if (strncmp(reason, "TEMP", 4) == 0) {
        end(c, strstr(reason, "advance no") != NULL ? CV_CLIENT_END_RETRY : CV_CLIENT_END_NEXT,
            CV_E_BACKOFF, word_number(reason, "backoff"), "the server refuses for now: %.120s",
            reason);
    } else if (strncmp(reason, "SESSION", 7) == 0 || c->password_is_token) {
        end(c, CV_CLIENT_END_TOKEN, CV_E_AUTH, 0, "the session has expired");
    } else if (strncmp(reason, "CRV1", 4) == 0) {
        end(c, CV_CLIENT_END_AUTH, CV_E_UNSUPPORTED, 0,
            "the server asks for a one-time password, which is not supported");
    } else {
        end(c, CV_CLIENT_END_AUTH, CV_E_AUTH, 0, "authentication failed: %s%.120s",
            c->user[0] == '\0' ? "the server wants a user and password"
                               : "the server refuses the user or password",
            *reason != '\0' ? reason : "");
    }
}

static void on_push(struct cv_client *c, const char *text)
{
    if (c->pushed)
        return;
    int ret = cv_push_parse(&c->push, c->p, text, strlen(text));
    if (ret == 0)
        come_up(c);
    else if (ret != CV_E_MORE)
        end(c, CV_CLIENT_END_NEXT, CV_E_PROTO, 0, "the server pushed '%.60s', which %s",
            c->push.rejected, "cannot be done or is rejected by pull-filter");
}

static void on_text(struct cv_client *c, const char *text)
{
    cv_debug(LOG, "control message '%.20s'", text);
    if (strncmp(text, "PUSH_REPLY", 10) == 0) {
        on_push(c, text);
    } else if (strncmp(text, "AUTH_FAILED", 11) == 0) {
        on_auth_failed(c, text + 11);
    } else if (strncmp(text, "AUTH_PENDING", 12) == 0) {
        uint32_t s = word_number(text, "timeout");
        if (!c->up && s > 0)
            c->deadline_ms = CV_MAX(c->deadline_ms, now(c) + CV_MIN(s, 300u) * (int64_t)1000);
    } else if (strncmp(text, "RESTART", 7) == 0) {
        end(c, strstr(text, "[N]") != NULL ? CV_CLIENT_END_NEXT : CV_CLIENT_END_RETRY, -ECONNRESET,
            0, "the server asks for a restart: %.100s", text);
    } else if (strncmp(text, "HALT", 4) == 0) {
        end(c, CV_CLIENT_END_HALT, -ECONNRESET, 0, "the server ends the connection: %.100s", text);
    } else if (strcmp(text, "EXIT") == 0) {
        end(c, CV_CLIENT_END_RETRY, -ECONNRESET, 0, "the server goes away");
    } else if (strncmp(text, "INFO", 4) == 0) {
        cv_log_limited(CV_LOG_DEBUG, LOG, "the server says: '%.200s'", text);
    }
}

/* ---- keys ---- */

static void on_reset(struct cv_keyslot *s, const struct cv_reliable_in *in, void *arg)
{
    struct cv_client *c = arg;
    /* A TLV of tls-crypt-v2: type 1, length 2, flags; bit 0 wants the wrapped key again. */
    if (c->wrap.kind == CV_WRAP_CRYPT_V2 && in->len >= 6 && in->data[1] == 1 && in->data[3] == 2 &&
        (in->data[5] & 1) != 0) {
        s->wkc_next = true;
        s->first_piece_max = (uint16_t)(CV_WIRE_PIECE_MAX - c->wrap.wkc_len);
    }
    if (s == c->cur)
        step(c, CV_TUNNEL_STEP_RESET, "");
}

static int send_keys(struct cv_client *c, struct cv_keyslot *s)
{
    char options[512], info[1024] = "";
    int ret = cv_keymethod_options(c->p, c->tcp, c->ip6, options, sizeof(options));
    if (ret == 0)
        ret = cv_keymethod_peer_info(c->p, info, sizeof(info));
    return ret == 0 ? cv_keyslot_send_keys(s, options, c->user, c->password, info) : ret;
}

static void slot_failed(struct cv_client *c, struct cv_keyslot *s, int err)
{
    const char *why = s->tls != NULL ? cv_tlschan_error(s->tls) : "";
    bool untrusted = s->tls != NULL && cv_tlschan_is_untrusted(s->tls);
    if (s == c->cur)
        end(c, untrusted ? CV_CLIENT_END_TRUST : CV_CLIENT_END_RETRY, err, 0, "%.200s",
            why[0] != '\0' ? why : cv_err_text(err));
    else
        end(c, CV_CLIENT_END_RETRY, err, 0, "renegotiation failed: %.200s",
            why[0] != '\0' ? why : cv_err_text(err));
}

/* The new key is ready: it takes the place of the current one. */
static void promote(struct cv_client *c)
{
    cv_keyslot_free(c->old);
    c->old = c->cur;
    c->cur = c->neg;
    c->neg = NULL;
    c->send_with_old = true;
    cv_counter_add_owned(&c->stats->renegotiations, 1);
    int64_t reneg = c->p->reneg_sec < 0 ? 3600 : c->p->reneg_sec;
    c->reneg_ms = reneg > 0 ? now(c) + reneg * 1000 : INT64_MAX;
    cv_debug(LOG, "new key key_id=%u", c->cur->key_id);
}

/* The first slot's keys are agreed; the push is next. */
static void keys_agreed(struct cv_client *c)
{
    step(c, CV_TUNNEL_STEP_KEYS, c->cur->peer_options);
    if (c->closed)
        return;
    if (!c->p->pull) {
        come_up_unpushed(c);
        return;
    }
    (void)cv_keyslot_send_text(c->cur, "PUSH_REQUEST");
    c->push_again_ms = now(c) + PUSH_AGAIN_MS;
}

static void drive(struct cv_client *c, struct cv_keyslot *s)
{
    char text[CV_KEYSLOT_PLAIN_MAX];
    int ret = cv_keyslot_drive(s, c->tls, on_reset, c);
    if (!c->closed && ret == 0 && s->state == CV_KEYSLOT_TLS && cv_tlschan_is_done(s->tls)) {
        if (s == c->cur)
            step(c, CV_TUNNEL_STEP_TLS, cv_tlschan_describe(s->tls, text, sizeof(text)));
        ret = c->closed ? 0 : send_keys(c, s);
    }
    if (!c->closed && ret == 0 && s->state == CV_KEYSLOT_KEYS) {
        ret = cv_keyslot_take_keys(s);
        if (ret == CV_E_MORE)
            ret = 0;
        if (ret == 0 && s->state == CV_KEYSLOT_AGREED) {
            if (s == c->cur)
                keys_agreed(c);
            else if (make_data(c, s) == 0 && s == c->neg)
                promote(c);
        }
    }
    if (!c->closed && ret == 0 && s->state >= CV_KEYSLOT_AGREED)
        while (!c->closed && cv_keyslot_take_text(s, text, sizeof(text)) != NULL)
            on_text(c, text);
    cv_secret_clear(text, sizeof(text));
    if (!c->closed && ret != 0)
        slot_failed(c, s, ret);
}

static bool start_neg(struct cv_client *c, uint8_t key_id)
{
    c->neg = cv_keyslot_new(key_id, CV_WIRE_SOFT_RESET, c->tcp ? 6 : 1, now(c));
    if (c->neg == NULL)
        return false;
    c->last_key_id = key_id;
    return true;
}

void cv_client_renegotiate(struct cv_client *c)
{
    if (!c->up || c->closed || c->neg != NULL)
        return;
    (void)start_neg(c, (uint8_t)(c->last_key_id % 7 + 1));
    pump(c);
}

static struct cv_keyslot *slot_of(struct cv_client *c, unsigned key_id)
{
    if (c->neg != NULL && c->neg->key_id == key_id)
        return c->neg;
    if (c->cur != NULL && c->cur->key_id == key_id)
        return c->cur;
    if (c->old != NULL && c->old->key_id == key_id)
        return c->old;
    return NULL;
}

/* ---- packets in ---- */

static void on_control(struct cv_client *c, const uint8_t *data, size_t len)
{
    uint8_t plain[CV_WIRE_PACKET_MAX];
    struct cv_wire_ctl ctl;
    size_t n = 0;
    if (len > sizeof(plain) || cv_wrap_open(&c->wrap, data, len, plain, sizeof(plain), &n) != 0 ||
        cv_wire_decode(plain, n, &ctl) != 0) {
        cv_counter_add_owned(&c->stats->in_dropped, 1);
        return;
    }
    if (!c->has_peer_sid) {
        if (ctl.op != CV_WIRE_RESET_SERVER)
            return;
        memcpy(c->peer_sid, ctl.sid, CV_WIRE_SID_LEN);
        c->has_peer_sid = true;
    } else if (memcmp(c->peer_sid, ctl.sid, CV_WIRE_SID_LEN) != 0) {
        return;
    }
    if (ctl.n_acks > 0 && memcmp(ctl.peer_sid, c->sid, CV_WIRE_SID_LEN) != 0)
        return;
    struct cv_keyslot *s = slot_of(c, ctl.key_id);
    if (s == NULL && ctl.op == CV_WIRE_SOFT_RESET && ctl.key_id != 0 && ctl.id == 0 && c->up &&
        c->neg == NULL && start_neg(c, ctl.key_id))
        s = c->neg;
    if (s == NULL)
        return;
    c->last_in_ms = now(c);
    for (unsigned i = 0; i < ctl.n_acks; i++)
        cv_reliable_on_ack(&s->rel, ctl.acks[i], now(c));
    if (s->rel.srtt_ms >= 0)
        gauge_set(&c->stats->rtt_us, s->rel.srtt_ms * 1000);
    if (ctl.op != CV_WIRE_ACK)
        (void)cv_reliable_on_message(&s->rel, &ctl);
    drive(c, s);
}

static void deliver(struct cv_client *c)
{
    size_t n = c->n_batch;
    c->n_batch = 0;
    if (n > 0 && !c->closed)
        c->ops->on_packets(c->arg, c->batch, n);
}

static void on_data(struct cv_client *c, struct cv_pkt_in *pkt)
{
    struct cv_keyslot *s = slot_of(c, cv_wire_key_id(pkt->data[0]));
    uint8_t *plain = NULL;
    size_t len = 0;
    if (s == NULL || !s->has_data || !c->up ||
        cv_datakey_open(&s->data, pkt->data, pkt->len, &plain, &len) != 0) {
        cv_counter_add_owned(&c->stats->in_dropped, 1);
        return;
    }
    c->last_in_ms = now(c);
    if (s == c->cur)
        c->send_with_old = false; /* the peer uses the new key, so it takes it too */
    const uint8_t *in_place = plain;
    switch (cv_frame_open(c->frame, &plain, &len)) {
    case CV_FRAME_PACKET:
        cv_counter_add_owned(&c->stats->in_packets, 1);
        cv_counter_add_owned(&c->stats->in_bytes, len);
        c->batch[c->n_batch++] = (struct cv_pkt_in){.data = plain, .len = len};
        /* What lies in the frame's own buffer is gone with the next packet. */
        if (c->n_batch == CV_PKTIF_BATCH || plain < in_place || plain > in_place + 16)
            deliver(c);
        break;
    case CV_FRAME_EXIT:
        end(c, CV_CLIENT_END_RETRY, -ECONNRESET, 0, "the server goes away");
        break;
    case CV_FRAME_BAD:
        cv_counter_add_owned(&c->stats->in_dropped, 1);
        break;
    case CV_FRAME_NOTHING:
    case CV_FRAME_PING:
    case CV_FRAME_OCC:
        break;
    }
}

static void on_packets(void *arg, struct cv_pkt_in *pkts, size_t n)
{
    struct cv_client *c = arg;
    for (size_t i = 0; i < n && !c->closed; i++) {
        if (pkts[i].len < 1)
            continue;
        if (cv_wire_is_data(pkts[i].data[0])) {
            on_data(c, &pkts[i]);
        } else {
            deliver(c);
            if (!c->closed)
                on_control(c, pkts[i].data, pkts[i].len);
        }
    }
    deliver(c);
}

static void count(struct cv_client *c)
{
    struct cv_tunnel_stats *s = c->stats;
    uint64_t in = cv_transport_bytes_in(c->t), out = cv_transport_bytes_out(c->t);
    uint64_t dropped = cv_transport_dropped(c->t), again = 0;
    struct cv_keyslot *slots[] = {c->cur, c->old, c->neg};
    for (size_t i = 0; i < CV_ARRAY_SIZE(slots); i++) {
        if (slots[i] != NULL) {
            again += slots[i]->rel.retransmits;
            slots[i]->rel.retransmits = 0;
        }
    }
    cv_counter_add_owned(&s->wire_in_bytes, in - c->counted_in);
    cv_counter_add_owned(&s->wire_out_bytes, out - c->counted_out);
    cv_counter_add_owned(&s->out_dropped, dropped - c->counted_dropped);
    cv_counter_add_owned(&s->retransmits, again);
    c->counted_in = in;
    c->counted_out = out;
    c->counted_dropped = dropped;
}

static bool key_is_worn(const struct cv_client *c)
{
    const struct cv_datakey *k = &c->cur->data;
    uint64_t limit = c->p->reneg_bytes > 0 ? c->p->reneg_bytes : DATA_LIMIT;
    return k->next_id >= CV_DATAKEY_ID_RENEW || k->bytes >= limit ||
           (c->p->reneg_pkts > 0 && k->packets >= c->p->reneg_pkts);
}

static void renegotiate_if_due(struct cv_client *c)
{
    if (!c->up || c->closed || c->neg != NULL || now(c) < c->reneg_hold_ms)
        return;
    if (now(c) < c->reneg_ms && !key_is_worn(c))
        return;
    c->reneg_hold_ms = now(c) + RENEG_RETRY_MS;
    cv_client_renegotiate(c);
}

static void on_drained(void *arg)
{
    struct cv_client *c = arg;
    count(c);
    renegotiate_if_due(c);
    pump(c);
}

static void on_open(void *arg)
{
    struct cv_client *c = arg;
    step(c, CV_TUNNEL_STEP_SOCKET, c->tcp ? "TCP" : "UDP");
    pump(c);
}

static void on_writable(void *arg)
{
    struct cv_client *c = arg;
    if (c->up)
        c->ops->on_writable(c->arg);
}

static void on_error(void *arg, int err)
{
    struct cv_client *c = arg;
    if (c->tcp) {
        end(c, CV_CLIENT_END_RETRY, err, 0, "%s",
            err == -EPIPE ? "the server has closed the connection" : cv_err_text(err));
    } else if (!c->has_peer_sid &&
               (err == -ECONNREFUSED || err == -EHOSTUNREACH || err == -ENETUNREACH)) {
        /* Later it may be anybody's lie; silence decides then. */
        end(c, CV_CLIENT_END_RETRY, err, 0, "%s", cv_err_text(err));
    }
}

/* ---- time ---- */

static int64_t slot_due(const struct cv_client *c, const struct cv_keyslot *s)
{
    if (s == NULL)
        return INT64_MAX;
    int64_t due = cv_reliable_due(&s->rel, now(c));
    if (s == c->neg)
        due = CV_MIN(due, s->born_ms + c->p->hand_window * (int64_t)1000);
    return due;
}

static void rearm(struct cv_client *c)
{
    int64_t due = c->deadline_ms;
    if (c->closed)
        return;
    if (!c->has_peer_sid)
        due = CV_MIN(due, c->reset_limit_ms);
    if (c->step >= CV_TUNNEL_STEP_SOCKET) {
        due = CV_MIN(due, slot_due(c, c->cur));
        due = CV_MIN(due, slot_due(c, c->old));
        due = CV_MIN(due, slot_due(c, c->neg));
    }
    due = CV_MIN(due, c->push_again_ms);
    if (c->up) {
        due = CV_MIN(due, c->neg == NULL ? CV_MAX(c->reneg_ms, c->reneg_hold_ms) : INT64_MAX);
        if (c->ping_ms > 0)
            due = CV_MIN(due, c->last_out_ms + c->ping_ms);
        if (c->restart_ms > 0)
            due = CV_MIN(due, c->last_in_ms + c->restart_ms);
    }
    if (due == INT64_MAX)
        cv_loop_timer_stop(c->loop, &c->timer);
    else
        cv_timer_start(cv_loop_timers(c->loop), &c->timer, CV_MAX(due, now(c) + 1));
}

static const char *const waited_for[CV_TUNNEL_STEP_MAX] = {
    [CV_TUNNEL_STEP_NONE] = "the TCP connection was not accepted",
    [CV_TUNNEL_STEP_SOCKET] = "no answer to the first packet",
    [CV_TUNNEL_STEP_RESET] = "the TLS handshake did not end",
    [CV_TUNNEL_STEP_TLS] = "no answer to the key method message",
    [CV_TUNNEL_STEP_KEYS] = "no push reply",
};

/* What is over if it is not there by now. True: the session has ended. */
static bool check_limits(struct cv_client *c, int64_t t)
{
    if (t >= c->deadline_ms || (!c->has_peer_sid && t >= c->reset_limit_ms)) {
        const char *what = waited_for[c->step] != NULL ? waited_for[c->step] : "not up";
        end(c, CV_CLIENT_END_RETRY, -ETIMEDOUT, 0, "%s", what);
        return true;
    }
    if (c->up && c->restart_ms > 0 && t >= c->last_in_ms + c->restart_ms) {
        end(c, CV_CLIENT_END_RETRY, -ETIMEDOUT, 0, "nothing was heard for %lld s (ping-restart)",
            (long long)(c->restart_ms / 1000));
        return true;
    }
    if (c->neg != NULL && t >= c->neg->born_ms + c->p->hand_window * (int64_t)1000) {
        cv_keyslot_free(c->neg);
        c->neg = NULL;
        if (c->cur->data.next_id >= CV_DATAKEY_ID_RENEW) {
            end(c, CV_CLIENT_END_RETRY, -ETIMEDOUT, 0, "renegotiation did not end in time");
            return true;
        }
    }
    return false;
}

static void on_timer(struct cv_timer *timer)
{
    struct cv_client *c = CV_CONTAINER_OF(timer, struct cv_client, timer);
    int64_t t = now(c);
    if (check_limits(c, t))
        return;
    if (t >= c->push_again_ms) {
        c->push_again_ms = c->pushed ? INT64_MAX : t + PUSH_AGAIN_MS;
        if (!c->pushed)
            (void)cv_keyslot_send_text(c->cur, "PUSH_REQUEST");
    }
    if (c->up) {
        if (c->old != NULL && t >= c->cur->active_ms + c->p->tran_window * (int64_t)1000) {
            cv_keyslot_free(c->old);
            c->old = NULL;
        }
        if (c->ping_ms > 0 && t >= c->last_out_ms + c->ping_ms) {
            send_raw(c, cv_frame_ping, sizeof(cv_frame_ping));
            c->last_out_ms = t; /* also if there was no room: then something is on its way */
        }
        renegotiate_if_due(c);
    }
    count(c);
    pump(c);
}

/* ---- life ---- */

static const struct cv_transport_ops transport_ops = {
    .on_open = on_open,
    .on_packets = on_packets,
    .on_drained = on_drained,
    .on_writable = on_writable,
    .on_error = on_error,
};

static void free_now(struct cv_task *task)
{
    struct cv_client *c = CV_CONTAINER_OF(task, struct cv_client, free_task);
    cv_keyslot_free(c->cur);
    cv_keyslot_free(c->old);
    cv_keyslot_free(c->neg);
    cv_push_done(&c->push);
    cv_wrap_done(&c->wrap);
    cv_secret_free(c->user);
    cv_secret_free(c->password);
    cv_free(c->frame);
    cv_free(c);
}

int cv_client_open(struct cv_loop *loop, const struct cv_client_conf *conf,
                   const struct cv_client_ops *ops, void *arg, struct cv_client **ret_client)
{
    struct cv_client *c = cv_try_zalloc(sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->loop = loop;
    c->p = conf->profile;
    c->tls = conf->tls;
    c->stats = conf->stats;
    c->ops = ops;
    c->arg = arg;
    c->tcp = conf->tcp;
    c->ip6 = conf->to.sa.sa_family == AF_INET6;
    c->password_is_token = conf->password_is_token;
    c->free_task.fn = free_now;
    c->wrap = *conf->wrap;
    cv_wrap_restart(&c->wrap, (uint32_t)(cv_clock_unix_ms() / 1000));
    cv_timer_init(&c->timer, on_timer);
    cv_push_init(&c->push);
    cv_rand_bytes(c->sid, sizeof(c->sid));
    c->sid[0] |= 1; /* not zero */
    c->user = cv_try_strndup(conf->user, strlen(conf->user));
    c->password = cv_try_strndup(conf->password, strlen(conf->password));
    c->frame = cv_try_alloc(sizeof(*c->frame));
    enum cv_wire_op op =
        c->wrap.kind == CV_WRAP_CRYPT_V2 ? CV_WIRE_RESET_CLIENT_V3 : CV_WIRE_RESET_CLIENT;
    /* UDP: SoftEther does not put packets in order, so one is in flight at a time. */
    c->cur = cv_keyslot_new(0, op, c->tcp ? 6 : 1, cv_loop_now(loop));
    int ret = -ENOMEM;
    if (c->user != NULL && c->password != NULL && c->frame != NULL && c->cur != NULL)
        ret = cv_transport_open(loop, &conf->to, conf->tcp, &transport_ops, c, &c->t);
    if (ret != 0) {
        free_now(&c->free_task);
        return ret;
    }
    c->deadline_ms = now(c) + conf->timeout_ms;
    c->reset_limit_ms = c->tcp ? INT64_MAX : now(c) + RESET_TIMEOUT_MS;
    c->push_again_ms = c->reneg_ms = INT64_MAX;
    rearm(c);
    *ret_client = c;
    return 0;
}

static void say_bye(struct cv_client *c)
{
    if (c->push.cc_exit) {
        (void)cv_keyslot_send_text(c->cur, "EXIT");
        pump_slot(c, c->cur);
    } else if (!c->tcp) {
        for (uint32_t i = 0; i < CV_MAX(c->p->exit_notify, 1u) && i < 3; i++)
            send_raw(c, cv_frame_exit, sizeof(cv_frame_exit));
    }
}

void cv_client_close(struct cv_client *c, bool bye)
{
    if (c == NULL || c->closed)
        return;
    if (bye && c->up)
        say_bye(c);
    c->closed = true;
    cv_loop_timer_stop(c->loop, &c->timer);
    cv_transport_close(c->t);
    count(c);
    cv_loop_defer(c->loop, &c->free_task);
}
