#include "proto/sniff.h"

#include <errno.h>
#include <string.h>

#include "common/err.h"

#include "common/poison.h"

#define FIRST_BYTE_TLS 0x16
#define METHOD_MAX     32

enum sniff_state {
    SNIFF_STATE_INIT = 0, /* we are here while no byte was looked at */
    SNIFF_STATE_TLS,      /* ... the ClientHello is not whole */
    SNIFF_STATE_LINE,     /* ... what may be a request line is not whole */
    SNIFF_STATE_HEAD,     /* ... the head of an HTTP/1 request is not whole */
};

static const struct {
    const char *name, *protocol, *label;
} outcomes[CV_SNIFF_OUTCOMES] = {
    [CV_SNIFF_NONE] = {"", NULL, ""},
    [CV_SNIFF_TLS] = {"matched", "tls", "tls_sni"},
    [CV_SNIFF_HTTP] = {"matched", "http", "http_host"},
    [CV_SNIFF_QUIC] = {"matched", "quic", "quic_sni"},
    [CV_SNIFF_UNSUPPORTED] = {"unsupported", NULL, "unsupported"},
    [CV_SNIFF_TIMEOUT] = {"timeout", NULL, "timeout"},
    [CV_SNIFF_MALFORMED] = {"malformed", NULL, "malformed"},
    [CV_SNIFF_LIMIT] = {"limit_exceeded", NULL, "limit_exceeded"},
    [CV_SNIFF_INCOMPLETE] = {"incomplete", NULL, "incomplete"},
};

const char *cv_sniff_outcome_name(enum cv_sniff_outcome o)
{
    return (unsigned)o < CV_SNIFF_OUTCOMES ? outcomes[o].name : "";
}

const char *cv_sniff_protocol_name(enum cv_sniff_outcome o)
{
    return (unsigned)o < CV_SNIFF_OUTCOMES ? outcomes[o].protocol : NULL;
}

const char *cv_sniff_outcome_label(enum cv_sniff_outcome o)
{
    return (unsigned)o < CV_SNIFF_OUTCOMES ? outcomes[o].label : "";
}

/* ---- names ---- */

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.';
}

/* The labels of a canonical name neither begin nor end with a hyphen (RFC 952, RFC 1123). */
static bool hyphens_are_inside(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (s[i] == '-' && (i == 0 || i + 1 == len || s[i - 1] == '.' || s[i + 1] == '.'))
            return false;
    return true;
}

int cv_sniff_host(const char *s, size_t len, struct cv_host *ret_host)
{
    struct cv_host host;

    if (cv_host_parse(s, len, &host) != 0)
        return CV_E_PARSE;
    if (cv_host_is_ip(&host))
        return CV_E_NOTFOUND;
    for (size_t i = 0; i < len; i++)
        if (!is_name_byte(s[i]))
            return CV_E_PARSE;
    if (!hyphens_are_inside(host.name, host.name_len))
        return CV_E_PARSE;
    *ret_host = host;
    return 0;
}

static enum cv_sniff_outcome judge(const char *s, size_t len, enum cv_sniff_outcome match,
                                   struct cv_host *ret_host)
{
    int ret = cv_sniff_host(s, len, ret_host);
    if (ret == 0)
        return match;
    return ret == CV_E_NOTFOUND ? CV_SNIFF_UNSUPPORTED : CV_SNIFF_MALFORMED;
}

enum cv_sniff_outcome cv_sniff_hello(const struct cv_tls_hello *h, enum cv_sniff_outcome match,
                                     struct cv_host *ret_host)
{
    if (!h->has_name)
        return CV_SNIFF_UNSUPPORTED;
    return judge(h->name, h->name_len, match, ret_host);
}

/* ---- TLS ---- */

static int look_tls(struct cv_sniff *s, const uint8_t *data, size_t len,
                    enum cv_sniff_outcome *ret_outcome, struct cv_host *ret_host)
{
    struct cv_tls_hello hello;

    int ret = cv_tls_hello_scan(&s->_tls, data, len);
    if (ret == 0)
        ret = cv_tls_hello_read(&s->_tls, data, len, &hello);
    if (ret == CV_E_MORE || ret == -ENOMEM)
        return ret;
    if (ret == 0)
        *ret_outcome = cv_sniff_hello(&hello, CV_SNIFF_TLS, ret_host);
    else
        *ret_outcome = ret == CV_E_LIMIT ? CV_SNIFF_LIMIT : CV_SNIFF_MALFORMED;
    return 0;
}

/* ---- HTTP/1 ---- */

/* tchar of RFC 9110 section 5.6.2. */
static bool is_token_byte(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Does what is there of the first line look like "METHOD target HTTP/1.x"? Protocols of lines, SSH
 * and SMTP and others, are told apart here and not by a time limit. 0: the line is whole and does;
 * CV_E_MORE; CV_E_UNSUPPORTED. */
static int look_line(struct cv_sniff *s, const uint8_t *data, size_t len)
{
    for (; s->_pos < len; s->_pos++) {
        uint8_t c = data[s->_pos];
        if (c == '\n')
            break;
        if ((c < ' ' && c != '\r') || c == 0x7f)
            return CV_E_UNSUPPORTED;
        if (s->_space == 0 && c == ' ' && s->_pos > 0)
            s->_space = s->_pos;
        else if (s->_space == 0 && (!is_token_byte(c) || s->_pos >= METHOD_MAX))
            return CV_E_UNSUPPORTED;
    }
    if (s->_pos == len)
        return len > CV_HTTP1_LINE_MAX ? CV_E_UNSUPPORTED : CV_E_MORE;
    size_t end = s->_pos;
    if (end > 0 && data[end - 1] == '\r')
        end--;
    /* The version is eight bytes behind a space that is not the one behind the method. */
    if (s->_space == 0 || end < s->_space + 10u || memcmp(data + end - 9, " HTTP/1.", 8) != 0)
        return CV_E_UNSUPPORTED;
    return 0;
}

/* The host of "host" or "host:port"; what is left of it is judged by others. */
static struct cv_http1_str host_of(struct cv_http1_str v)
{
    uint32_t n = v.len;
    while (n > 0 && v.p[n - 1] >= '0' && v.p[n - 1] <= '9')
        n--;
    if (n > 1 && v.p[n - 1] == ':' && v.len - n <= 5)
        v.len = n - 1;
    return v;
}

static enum cv_sniff_outcome judge_request(const char *data, size_t len, struct cv_host *ret_host)
{
    struct cv_http1_request r;
    struct cv_http1_fault fault;

    if (cv_http1_request_parse(&r, data, len, &fault) != 0)
        return CV_SNIFF_MALFORMED;
    struct cv_http1_str host = r.authority;
    if (r.form == CV_HTTP1_FORM_ORIGIN) {
        if (r.head.count[CV_HTTP1_HOST] == 0)
            return CV_SNIFF_UNSUPPORTED; /* HTTP/1.0 */
        host = r.head.fields[r.head.last[CV_HTTP1_HOST]].value;
    }
    host = host_of(host);
    return judge(host.p, host.len, CV_SNIFF_HTTP, ret_host);
}

static int look_head(struct cv_sniff *s, const uint8_t *data, size_t len,
                     enum cv_sniff_outcome *ret_outcome, struct cv_host *ret_host)
{
    struct cv_http1_fault fault;
    size_t head;

    int ret = cv_http1_scan(&s->_http, CV_HTTP1_REQUEST, data, len, &head, &fault);
    if (ret == CV_E_MORE)
        return ret;
    if (ret != 0)
        *ret_outcome = fault.status == 400 ? CV_SNIFF_MALFORMED : CV_SNIFF_LIMIT;
    else
        *ret_outcome = judge_request((const char *)data, head, ret_host);
    return 0;
}

int cv_sniff_look(struct cv_sniff *s, const void *data, size_t len,
                  enum cv_sniff_outcome *ret_outcome, struct cv_host *ret_host)
{
    const uint8_t *p = data;

    CV_ASSERT(len > 0);
    if (s->_state == SNIFF_STATE_INIT)
        s->_state = p[0] == FIRST_BYTE_TLS ? SNIFF_STATE_TLS : SNIFF_STATE_LINE;
    if (s->_state == SNIFF_STATE_TLS)
        return look_tls(s, p, len, ret_outcome, ret_host);
    if (s->_state == SNIFF_STATE_LINE) {
        int ret = look_line(s, p, len);
        if (ret == CV_E_UNSUPPORTED) {
            *ret_outcome = CV_SNIFF_UNSUPPORTED;
            return 0;
        }
        if (ret != 0)
            return ret;
        s->_state = SNIFF_STATE_HEAD;
    }
    return look_head(s, p, len, ret_outcome, ret_host);
}
