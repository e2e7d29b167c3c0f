/* Hosts, targets, prefixes and socket addresses from arbitrary text.
 *
 * What is checked beside memory: the text of a parsed value parses again to the same value, holds
 * nothing that a canonical form may not hold, and whatever any resolver would take for an IPv4
 * address never comes back as a name. */
#include "common/target.h"

#include <arpa/inet.h>
#include <string.h>

#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ip(const struct cv_ip *ip)
{
    char text[CV_IP_STRLEN];
    struct cv_ip again, any, inner[CV_IP_EMBEDDED_MAX];
    cv_ip_format(ip, text);
    CV_ASSERT(strlen(text) < CV_IP_STRLEN);
    CV_ASSERT(cv_ip_parse(text, strlen(text), &again) == 0 && cv_ip_equal(ip, &again));
    CV_ASSERT(cv_ip_parse_any(text, strlen(text), &any) == 0 && cv_ip_equal(ip, &any));
    size_t n = cv_ip_embedded4(ip, inner);
    CV_ASSERT(n <= CV_IP_EMBEDDED_MAX);
    for (size_t i = 0; i < n; i++) {
        CV_ASSERT(ip->family == CV_AF_IP6 && inner[i].family == CV_AF_IP4);
        CV_ASSERT(cv_ip_class(ip) != CV_IP_GLOBAL || cv_ip_class(&inner[i]) == CV_IP_GLOBAL);
    }
    struct cv_prefix self = {*ip, ip->family == CV_AF_IP4 ? 32 : 128};
    CV_ASSERT(cv_prefix_is_special(&self) == (cv_ip_class(ip) != CV_IP_GLOBAL));
}

/* The widest reading of a name as an IPv4 address: this program's, libc's, and libc's without the
 * trailing dot, which a resolver drops. */
static bool some_reader_sees_ip4(const char *name, size_t len)
{
    struct cv_ip ip;
    struct in_addr in4;
    return cv_ip_parse_any(name, len, &ip) == 0 || inet_aton(name, &in4) != 0;
}

static void check_host(const struct cv_host *h)
{
    struct cv_host again;
    CV_ASSERT(h->name_len > 0 && h->name_len <= CV_NAME_MAX && strlen(h->name) == h->name_len);
    CV_ASSERT(cv_host_parse(h->name, h->name_len, &again) == 0);
    CV_ASSERT(cv_ip_equal(&h->ip, &again.ip) && strcmp(h->name, again.name) == 0);
    if (cv_host_is_ip(h)) {
        check_ip(&h->ip);
        CV_ASSERT(strspn(h->name, "0123456789abcdef.:") == h->name_len);
    } else {
        CV_ASSERT(strspn(h->name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == h->name_len);
        CV_ASSERT(!some_reader_sees_ip4(h->name, h->name_len));
    }
}

static void try_host(const char *s, size_t len)
{
    struct cv_host h;
    int ret = cv_host_parse(s, len, &h);
    CV_ASSERT(ret == 0 || ret == CV_E_PARSE);
    if (ret == 0)
        check_host(&h);
    struct cv_ip ip;
    if (cv_ip_parse_any(s, len, &ip) == 0) {
        check_ip(&ip);
        cv_ip_fold_mapped(&ip);
        /* A host is refused where a label is longer than names allow; it never becomes a name. */
        CV_ASSERT(ret != 0 || cv_ip_equal(&ip, &h.ip));
    }
}

static void try_target(const char *s, size_t len, uint16_t default_port)
{
    struct cv_target t, again;
    int ret = cv_target_parse(s, len, default_port, &t);
    CV_ASSERT(ret == 0 || ret == CV_E_PARSE);
    if (ret != 0)
        return;
    CV_ASSERT(t.port > 0);
    check_host(&t.host);
    char text[CV_TARGET_STRLEN];
    cv_target_format(&t, text);
    CV_ASSERT(strlen(text) < CV_TARGET_STRLEN);
    CV_ASSERT(cv_target_parse(text, strlen(text), 0, &again) == 0);
    CV_ASSERT(again.port == t.port && strcmp(again.host.name, t.host.name) == 0);
    CV_ASSERT(cv_ip_equal(&again.host.ip, &t.host.ip));
}

static void try_prefix(const char *s, size_t len)
{
    struct cv_prefix p, again;
    if (cv_prefix_parse(s, len, &p) != 0)
        return;
    char text[CV_PREFIX_STRLEN];
    cv_prefix_format(&p, text);
    CV_ASSERT(strlen(text) < CV_PREFIX_STRLEN);
    CV_ASSERT(cv_prefix_parse(text, strlen(text), &again) == 0);
    CV_ASSERT(again.len == p.len && cv_ip_equal(&again.ip, &p.ip));
    CV_ASSERT(cv_prefix_contains(&p, &p.ip) && cv_prefix_covers(&p, &p));
    check_ip(&p.ip);
    if (cv_prefix_is_special(&p))
        CV_ASSERT(cv_ip_class(&p.ip) != CV_IP_GLOBAL);
}

static void try_sockaddr(const char *s)
{
    struct cv_sockaddr sa, again;
    if (cv_sockaddr_parse(s, &sa) != 0)
        return;
    char text[CV_SOCKADDR_STRLEN];
    cv_sockaddr_format(&sa, text);
    CV_ASSERT(strlen(text) < CV_SOCKADDR_STRLEN);
    CV_ASSERT(cv_sockaddr_parse(text, &again) == 0);
    CV_ASSERT(again.len == sa.len && memcmp(&again.sa, &sa.sa, sa.len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4096)
        return 0;
    char s[4097];
    if (size > 0)
        memcpy(s, data, size);
    s[size] = '\0';
    try_host(s, size);
    try_target(s, size, 0);
    try_target(s, size, 443);
    try_prefix(s, size);
    try_sockaddr(s);
    return 0;
}
