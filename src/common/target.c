#include "common/target.h"

#include <string.h>

#include "common/err.h"

#include "common/poison.h"

/* The last label of a canonical name. */
static const char *last_label(const char *name, size_t len, size_t *ret_len)
{
    const char *dot = memrchr(name, '.', len);
    const char *label = dot != NULL ? dot + 1 : name;
    *ret_len = len - (size_t)(label - name);
    return label;
}

/* The WHATWG URL standard's "ends in a number": such a host is an IPv4 address or nothing. The
 * name is canonical, so in lower case and without a trailing dot. */
static bool ends_in_number(const char *name, size_t len)
{
    size_t n;
    const char *label = last_label(name, len, &n);
    if (label[0] < '0' || label[0] > '9')
        return false;
    if (label[0] == '0' && n >= 2 && label[1] == 'x')
        return strspn(label + 2, "0123456789abcdef") == n - 2;
    return strspn(label, "0123456789") == n;
}

void cv_host_from_ip(struct cv_host *ret_host, const struct cv_ip *ip)
{
    ret_host->ip = *ip;
    cv_ip_fold_mapped(&ret_host->ip);
    cv_ip_format(&ret_host->ip, ret_host->name);
    ret_host->name_len = (uint8_t)strlen(ret_host->name);
}

static int parse_ip6(const char *s, size_t len, struct cv_host *ret_host)
{
    struct cv_ip ip;
    if (cv_ip_parse(s, len, &ip) != 0 || ip.family != CV_AF_IP6)
        return CV_E_PARSE;
    cv_host_from_ip(ret_host, &ip);
    return 0;
}

static bool is_bracketed(const char *s, size_t len)
{
    return len > 2 && s[0] == '[' && s[len - 1] == ']';
}

int cv_host_parse(const char *s, size_t len, struct cv_host *ret_host)
{
    if (len == 0)
        return CV_E_PARSE;
    if (is_bracketed(s, len))
        return parse_ip6(s + 1, len - 2, ret_host);
    if (memchr(s, ':', len) != NULL)
        return parse_ip6(s, len, ret_host);

    /* Canonical first, then the look for an address: full-width digits and ideographic full stops
     * only show what they are once they are mapped. */
    struct cv_host h;
    size_t name_len;
    int ret = cv_name_canon(s, len, h.name, &name_len);
    if (ret != 0)
        return ret;
    if (ends_in_number(h.name, name_len)) {
        struct cv_ip ip;
        if (cv_ip_parse_any(h.name, name_len, &ip) != 0)
            return CV_E_PARSE;
        cv_host_from_ip(ret_host, &ip);
        return 0;
    }
    ret_host->ip = (struct cv_ip){.family = CV_AF_NONE};
    ret_host->name_len = (uint8_t)name_len;
    memcpy(ret_host->name, h.name, name_len + 1);
    return 0;
}

static bool parse_port(const char *s, size_t len, uint16_t *ret_port)
{
    if (len == 0 || len > 5)
        return false;
    unsigned port = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        port = port * 10 + (unsigned)(s[i] - '0');
    }
    *ret_port = (uint16_t)port;
    return port >= 1 && port <= UINT16_MAX;
}

int cv_target_parse(const char *s, size_t len, uint16_t default_port, struct cv_target *ret_target)
{
    if (len == 0)
        return CV_E_PARSE;
    const char *host_end; /* where ":port" or nothing follows */
    if (s[0] == '[') {
        const char *close = memchr(s, ']', len);
        if (close == NULL)
            return CV_E_PARSE;
        host_end = close + 1;
    } else {
        const char *colon = memchr(s, ':', len);
        host_end = colon != NULL ? colon : s + len;
    }
    size_t host_len = (size_t)(host_end - s);
    uint16_t port = default_port;
    if (host_len < len &&
        (*host_end != ':' || !parse_port(host_end + 1, len - host_len - 1, &port)))
        return CV_E_PARSE;
    if (port == 0)
        return CV_E_PARSE;
    int ret = cv_host_parse(s, host_len, &ret_target->host);
    if (ret == 0)
        ret_target->port = port;
    return ret;
}

char *cv_target_format(const struct cv_target *t, char out[CV_TARGET_STRLEN])
{
    const struct cv_host *h = &t->host;
    bool brackets = h->ip.family == CV_AF_IP6;
    char *p = out;
    if (brackets)
        *p++ = '[';
    memcpy(p, h->name, h->name_len);
    p += h->name_len;
    if (brackets)
        *p++ = ']';
    *p++ = ':';
    char digits[5];
    size_t n = 0;
    for (unsigned v = t->port; v > 0 || n == 0; v /= 10)
        digits[n++] = (char)('0' + v % 10);
    while (n > 0)
        *p++ = digits[--n];
    *p = '\0';
    return out;
}
