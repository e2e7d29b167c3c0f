#include "flow/record.h"

#include <string.h>

#include "common/jsonw.h"

#include "common/poison.h"

/* What a peer or a policy chose is shown up to this many bytes. */
#define TEXT_SHOWN_MAX 1024

static void put(struct cv_record *r, const char *s, size_t len)
{
    uint8_t *p;
    size_t room;
    if (r->_err != 0)
        return;
    if ((r->_err = cv_buf_reserve(r->_buf, len, &p, &room)) != 0)
        return;
    memcpy(p, s, len);
    cv_buf_commit(r->_buf, len);
}

static void put_key(struct cv_record *r, const char *key)
{
    uint8_t *p;
    size_t room, len = strlen(key);
    if (r->_err != 0)
        return;
    if ((r->_err = cv_buf_reserve(r->_buf, len + 4, &p, &room)) != 0)
        return;
    uint8_t *q = p;
    if (r->_comma)
        *q++ = ',';
    *q++ = '"';
    memcpy(q, key, len);
    q += len;
    *q++ = '"';
    *q++ = ':';
    cv_buf_commit(r->_buf, (size_t)(q - p));
    r->_comma = true;
}

void cv_record_begin(struct cv_record *r, struct cv_buf *buf)
{
    *r = (struct cv_record){._buf = buf};
    put(r, "{", 1);
}

/* True if the text may stand between quotes as it is. */
static bool is_plain(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
            return false;
    }
    return true;
}

void cv_record_str(struct cv_record *r, const char *key, const char *val, size_t len)
{
    len = CV_MIN(len, (size_t)TEXT_SHOWN_MAX);
    put_key(r, key);
    if (r->_err != 0)
        return;
    if (!is_plain(val, len)) {
        struct cv_jsonw w;
        cv_jsonw_init(&w, r->_buf);
        cv_jsonw_strn(&w, NULL, val, len);
        r->_err = cv_jsonw_end(&w);
        return;
    }
    uint8_t *p;
    size_t room;
    if ((r->_err = cv_buf_reserve(r->_buf, len + 2, &p, &room)) != 0)
        return;
    p[0] = '"';
    memcpy(p + 1, val, len);
    p[len + 1] = '"';
    cv_buf_commit(r->_buf, len + 2);
}

/* Decimal digits of 'val'; returns how many. */
static size_t put_digits(char out[20], uint64_t val)
{
    char tmp[20];
    size_t n = 0;
    do {
        tmp[n++] = (char)('0' + val % 10);
        val /= 10;
    } while (val != 0);
    for (size_t i = 0; i < n; i++)
        out[i] = tmp[n - 1 - i];
    return n;
}

void cv_record_uint(struct cv_record *r, const char *key, uint64_t val)
{
    char digits[20];
    put_key(r, key);
    put(r, digits, put_digits(digits, val));
}

int cv_record_end(struct cv_record *r)
{
    put(r, "}", 1);
    return r->_err;
}

static void put_text(struct cv_record *r, const char *key, const char *val)
{
    cv_record_str(r, key, val, strlen(val));
}

static void put_rcstr(struct cv_record *r, const char *key, const struct cv_rcstr *val)
{
    if (val != NULL)
        cv_record_str(r, key, val->s, val->len);
}

static void put_id(struct cv_record *r, const char *key, uint64_t id)
{
    char hex[16];
    for (int i = 0; i < 16; i++)
        hex[i] = "0123456789abcdef"[id >> (60 - 4 * i) & 15];
    cv_record_str(r, key, hex, sizeof(hex));
}

static void put_endpoint(struct cv_record *r, const char *key, const struct cv_endpoint *ep)
{
    char text[CV_ENDPOINT_STRLEN];
    if (ep->ip.family != CV_AF_IP4) {
        put_text(r, key, cv_endpoint_format(ep, text));
        return;
    }
    size_t n = 0;
    for (int i = 0; i < 4; i++) {
        n += put_digits(text + n, ep->ip.b[i]);
        text[n++] = i < 3 ? '.' : ':';
    }
    n += put_digits(text + n, ep->port);
    cv_record_str(r, key, text, n);
}

static void put_sniffed(struct cv_record *r, const struct cv_session *s)
{
    const char *protocol = cv_sniff_protocol_name(s->sniff);
    if (s->sniff == CV_SNIFF_NONE)
        return;
    put_rcstr(r, "sniffed_host", s->sniffed_host);
    if (protocol != NULL)
        put_text(r, "sniff_protocol", protocol);
    put_text(r, "sniff_outcome", cv_sniff_outcome_name(s->sniff));
    if (s->decision != NULL)
        put_rcstr(r, "effective_policy_host", s->by_sniffed ? s->sniffed_host : s->target_host);
}

static void put_result(struct cv_record *r, const struct cv_session *s)
{
    put_text(r, "result", s->err == 0 ? "ok" : "error");
    if (s->err == 0 && s->note != NULL)
        put_text(r, "message", s->note);
    if (s->err == 0)
        return;
    if (s->stage != CV_STAGE_NONE)
        put_text(r, "failure_stage", cv_stage_name(s->stage));
    put_text(r, "message", cv_stage_message(s->stage, s->err));
}

int cv_record_session(struct cv_buf *buf, const struct cv_session *s, const char *node_id,
                      int64_t unix_s, int64_t duration_ms)
{
    struct cv_record r;
    cv_buf_consume(buf, cv_buf_len(buf));
    cv_record_begin(&r, buf);
    cv_record_uint(&r, "timestamp", (uint64_t)CV_MAX(unix_s, 0));
    put_text(&r, "node_id", node_id);
    put_text(&r, "kind", "connection");
    put_id(&r, "session_id", s->id);
    put_text(&r, "listener", s->listener->name);
    put_text(&r, "protocol", s->protocol);
    put_endpoint(&r, "client_addr", &s->client);
    put_rcstr(&r, "username", s->username);
    put_rcstr(&r, "target_host", s->target_host);
    if (s->target_host != NULL)
        cv_record_uint(&r, "target_port", s->target_port);
    put_sniffed(&r, s);
    put_rcstr(&r, "policy_id", s->policy_id);
    if (s->route >= 0)
        cv_record_uint(&r, "matched_route", (uint64_t)s->route);
    put_rcstr(&r, "decision", s->decision);
    put_rcstr(&r, "egress", s->outlet);
    put_rcstr(&r, "chain_member", s->member);
    if (s->attempts > 0)
        cv_record_uint(&r, "attempts", s->attempts);
    put_result(&r, s);
    if (s->decision != NULL)
        cv_record_uint(&r, "snapshot_version", s->snapshot_version);
    cv_record_uint(&r, "duration_ms", (uint64_t)CV_MAX(duration_ms, 0));
    cv_record_uint(&r, "bytes_up", cv_counter_get(&s->bytes_up));
    cv_record_uint(&r, "bytes_down", cv_counter_get(&s->bytes_down));
    if (s->udp != NULL) {
        cv_record_uint(&r, "datagrams_up", cv_counter_get(&s->udp->up));
        cv_record_uint(&r, "datagrams_down", cv_counter_get(&s->udp->down));
        cv_record_uint(&r, "datagrams_dropped", cv_counter_get(&s->udp->dropped));
    }
    return cv_record_end(&r);
}
