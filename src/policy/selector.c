#include "policy/selector.h"

#include <string.h>

#include "common/err.h"

#include "common/poison.h"

/* Bytes of the White_Space character of Unicode at 's', 0 if it is none. */
static size_t space_at(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;

    if (len >= 1 && ((p[0] >= 0x09 && p[0] <= 0x0d) || p[0] == 0x20))
        return 1;
    if (len >= 2 && p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0)) /* U+0085, U+00A0 */
        return 2;
    if (len < 3)
        return 0;
    if (p[0] == 0xe1 && p[1] == 0x9a && p[2] == 0x80) /* U+1680 */
        return 3;
    if (p[0] == 0xe2 && p[1] == 0x80 && /* U+2000..200A, U+2028, U+2029, U+202F */
        ((p[2] >= 0x80 && p[2] <= 0x8a) || p[2] == 0xa8 || p[2] == 0xa9 || p[2] == 0xaf))
        return 3;
    if (p[0] == 0xe2 && p[1] == 0x81 && p[2] == 0x9f) /* U+205F */
        return 3;
    if (p[0] == 0xe3 && p[1] == 0x80 && p[2] == 0x80) /* U+3000 */
        return 3;
    return 0;
}

void cv_selector_trim(const char **s, size_t *len)
{
    size_t n;

    while ((n = space_at(*s, *len)) > 0) {
        *s += n;
        *len -= n;
    }
    for (;;) {
        for (n = 1; n <= 3 && n <= *len && space_at(*s + *len - n, n) != n; n++)
            ;
        if (n > 3 || n > *len)
            return;
        *len -= n;
    }
}

static bool starts_with(const char *s, size_t len, const char *prefix)
{
    size_t n = strlen(prefix);
    return len >= n && memcmp(s, prefix, n) == 0;
}

static int parse_book(const char *s, size_t len)
{
    for (size_t i = strlen("book:"); i < len; i++) {
        if (s[i] != '/' && space_at(s + i, len - i) == 0)
            return CV_E_UNSUPPORTED;
    }
    return CV_E_INVALID;
}

/* Hosts that are IPv4-mapped arrive as IPv4, so a selector for such addresses means IPv4 too. */
static void fold_mapped_prefix(struct cv_prefix *p)
{
    struct cv_ip ip = p->ip;

    if (p->ip.family != CV_AF_IP6 || p->len < 96)
        return;
    cv_ip_fold_mapped(&ip);
    if (ip.family == CV_AF_IP4)
        *p = (struct cv_prefix){.ip = ip, .len = (uint8_t)(p->len - 96)};
}

/* Normalise a pattern into sel->text. False if no host can match it. */
static bool normalise(struct cv_selector *sel, const char *s, size_t len)
{
    cv_selector_trim(&s, &len);
    while (len > 0 && *s == '.') {
        s++;
        len--;
    }
    while (len > 0 && s[len - 1] == '.')
        len--;
    if (sel->kind == CV_SEL_SUFFIX && starts_with(s, len, "*.")) {
        s += 2;
        len -= 2;
    }

    bool ascii = true;
    for (size_t i = 0; i < len && ascii; i++)
        ascii = (unsigned char)s[i] < 0x80;
    if (!ascii) {
        size_t n;
        if (cv_name_canon(s, len, sel->text, &n) != 0)
            return false;
        sel->len = (uint8_t)n;
        return true;
    }
    if (len == 0 || len > CV_NAME_MAX)
        return false;
    for (size_t i = 0; i < len; i++)
        sel->text[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] + ('a' - 'A') : s[i]);
    sel->text[len] = '\0';
    sel->len = (uint8_t)len;
    return true;
}

int cv_selector_parse(const char *s, size_t len, struct cv_selector *ret_selector)
{
    struct cv_selector *sel = ret_selector;

    sel->kind = CV_SEL_NONE;
    sel->len = 0;
    sel->text[0] = '\0';
    cv_selector_trim(&s, &len);
    sel->is_blank = len == 0;
    if (len == 0)
        return 0;
    if (starts_with(s, len, "book:"))
        return parse_book(s, len);
    if (cv_prefix_parse(s, len, &sel->prefix) == 0) {
        sel->kind = CV_SEL_PREFIX;
        fold_mapped_prefix(&sel->prefix);
        return 0;
    }

    const char *colon = memchr(s, ':', len);
    sel->kind = CV_SEL_SUFFIX;
    if (colon != NULL) {
        if (starts_with(s, len, "full:"))
            sel->kind = CV_SEL_FULL;
        else if (starts_with(s, len, "keyword:"))
            sel->kind = CV_SEL_KEYWORD;
        len -= (size_t)(colon + 1 - s);
        s = colon + 1;
    }
    if (!normalise(sel, s, len))
        sel->kind = CV_SEL_NONE;
    return 0;
}

static bool name_matches(const struct cv_selector *s, const struct cv_host *host)
{
    size_t n = host->name_len;

    switch (s->kind) {
    case CV_SEL_FULL:
        return n == s->len && memcmp(host->name, s->text, n) == 0;
    case CV_SEL_SUFFIX:
        return n >= s->len && memcmp(host->name + n - s->len, s->text, s->len) == 0 &&
               (n == s->len || host->name[n - s->len - 1] == '.');
    case CV_SEL_KEYWORD:
        return memmem(host->name, n, s->text, s->len) != NULL;
    case CV_SEL_NONE:
    case CV_SEL_PREFIX:
        break;
    }
    return false;
}

bool cv_selector_matches(const struct cv_selector *s, const struct cv_host *host)
{
    struct cv_ip ip4[CV_IP_EMBEDDED_MAX];

    if (!cv_host_is_ip(host))
        return name_matches(s, host);
    if (s->kind != CV_SEL_PREFIX)
        return false;
    if (cv_prefix_contains(&s->prefix, &host->ip))
        return true;
    size_t n = cv_ip_embedded4(&host->ip, ip4);
    for (size_t i = 0; i < n; i++)
        if (cv_prefix_contains(&s->prefix, &ip4[i]))
            return true;
    return false;
}
