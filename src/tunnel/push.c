#include "tunnel/push.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/err.h"
#include "common/secret.h"

#include "common/poison.h"

#define WORDS_MAX  8
#define OPTION_MAX 1024

struct option {
    char text[OPTION_MAX]; /* words, each with its NUL */
    const char *word[WORDS_MAX];
    size_t n;
};

void cv_push_init(struct cv_push *p)
{
    memset(p, 0, sizeof(*p));
    p->ping = p->ping_restart = p->ping_exit = p->inactive = -1;
    p->peer_id = p->tun_mtu = p->mssfix = p->exit_notify = -1;
    p->comp = -1;
}

void cv_push_done(struct cv_push *p)
{
    cv_secret_clear(p, sizeof(*p));
}

static void split(struct option *o, const char *t, size_t len)
{
    size_t at = 0;
    char quote = '\0';
    bool in_word = false;
    o->n = 0;
    for (size_t i = 0; i < len && at + 2 < sizeof(o->text); i++) {
        if (!in_word) {
            if (isspace((unsigned char)t[i]))
                continue;
            if (o->n == WORDS_MAX)
                break;
            o->word[o->n++] = o->text + at;
            in_word = true;
        }
        if (quote == '\0' && isspace((unsigned char)t[i])) {
            o->text[at++] = '\0';
            in_word = false;
        } else if (quote != '\0' ? t[i] == quote : t[i] == '"' || t[i] == '\'') {
            quote = quote != '\0' ? '\0' : t[i];
        } else if (t[i] == '\\' && quote != '\'' && i + 1 < len) {
            o->text[at++] = t[++i];
        } else {
            o->text[at++] = t[i];
        }
    }
    o->text[at] = '\0';
}

static bool number(const char *t, int32_t max, int32_t *ret)
{
    int64_t v = 0;
    if (*t == '\0')
        return false;
    for (; *t >= '0' && *t <= '9'; t++) {
        v = v * 10 + (*t - '0');
        if (v > max)
            return false;
    }
    if (*t != '\0')
        return false;
    *ret = (int32_t)v;
    return true;
}

static bool ip(const char *t, enum cv_family family, struct cv_ip *ret)
{
    struct cv_ip v;
    if (cv_ip_parse(t, strlen(t), &v) != 0 || v.family != family)
        return false;
    *ret = v;
    return true;
}

/* The length of a netmask; 255 when it is none. */
static uint8_t mask_len(const struct cv_ip *m)
{
    uint32_t v =
        (uint32_t)m->b[0] << 24 | (uint32_t)m->b[1] << 16 | (uint32_t)m->b[2] << 8 | m->b[3];
    uint8_t n = 0;
    while (n < 32 && (v & (0x80000000u >> n)) != 0)
        n++;
    return n == 32 || (v << n) == 0 ? n : 255;
}

static void add_dns(struct cv_push *p, const char *t)
{
    struct cv_ip v;
    size_t n = strlen(t);
    /* "dns server 0 address [::1]:53" and the like: the port is not of use here. */
    if (t[0] == '[' && strchr(t, ']') != NULL) {
        n = strcspn(t, "]") - 1;
        t++;
    }
    if (cv_ip_parse(t, n, &v) != 0) {
        size_t k = strcspn(t, ":");
        if (cv_ip_parse(t, k, &v) != 0)
            return;
    }
    for (size_t i = 0; i < p->n_dns; i++)
        if (cv_ip_equal(&p->dns[i], &v))
            return;
    if (p->n_dns < CV_PUSH_DNS_MAX)
        p->dns[p->n_dns++] = v;
}

static void add_route(struct cv_push *p, const struct option *o)
{
    struct cv_ip net, mask;
    char text[CV_IP_STRLEN + 8];
    if (p->n_routes >= CV_PUSH_ROUTES_MAX || !ip(o->word[1], CV_AF_IP4, &net))
        return;
    uint8_t n = o->n > 2 && ip(o->word[2], CV_AF_IP4, &mask) ? mask_len(&mask) : 32;
    char ip_text[CV_IP_STRLEN];
    snprintf(text, sizeof(text), "%s/%u", cv_ip_format(&net, ip_text), n);
    if (n <= 32 && cv_prefix_parse(text, strlen(text), &p->routes[p->n_routes]) == 0)
        p->n_routes++;
}

static int comp(const struct option *o)
{
    const char *t = o->n > 1 ? o->word[1] : "";
    if (strcmp(o->word[0], "comp-lzo") == 0 || strcmp(t, "lzo") == 0)
        return CV_COMP_LZO;
    if (t[0] == '\0' || strcmp(t, "stub") == 0 || strcmp(t, "lz4") == 0)
        return CV_COMP_STUB;
    if (strcmp(t, "stub-v2") == 0 || strcmp(t, "lz4-v2") == 0)
        return CV_COMP_STUB_V2;
    return CV_COMP_NONE;
}

static void take_dns(struct cv_push *p, const struct option *o)
{
    /* dns server N address A [A ...] */
    if (o->n < 5 || strcmp(o->word[1], "server") != 0 || strcmp(o->word[3], "address") != 0)
        return;
    for (size_t i = 4; i < o->n; i++)
        add_dns(p, o->word[i]);
}

static void take_dhcp(struct cv_push *p, const struct option *o)
{
    if (o->n < 3)
        return;
    if (strcasecmp(o->word[1], "DNS") == 0 || strcasecmp(o->word[1], "DNS6") == 0)
        add_dns(p, o->word[2]);
    else if (strcasecmp(o->word[1], "DOMAIN") == 0)
        snprintf(p->domain, sizeof(p->domain), "%.127s", o->word[2]);
}

static void take_flags(struct cv_push *p, const struct option *o)
{
    for (size_t i = 1; i < o->n; i++) {
        if (strcmp(o->word[i], "tls-ekm") == 0)
            p->tls_ekm = true;
        else if (strcmp(o->word[i], "cc-exit") == 0)
            p->cc_exit = true;
        else if (strcmp(o->word[i], "aead-epoch") == 0 || strcmp(o->word[i], "dyn-tls-crypt") == 0)
            snprintf(p->rejected, sizeof(p->rejected), "protocol-flags %.40s", o->word[i]);
    }
}

static void take_ip6(struct cv_push *p, const char *t)
{
    struct cv_ip v;
    if (cv_ip_parse(t, strcspn(t, "/"), &v) == 0 && v.family == CV_AF_IP6)
        p->ip6 = v;
}

static void take_ifconfig(struct cv_push *p, const struct option *o)
{
    if (!ip(o->word[1], CV_AF_IP4, &p->ip4))
        snprintf(p->rejected, sizeof(p->rejected), "ifconfig %.40s", o->word[1]);
    if (o->n > 2)
        snprintf(p->ifconfig_remote, sizeof(p->ifconfig_remote), "%.47s", o->word[2]);
}

struct number_option {
    const char *name;
    size_t where;
    int32_t max;
};
static const struct number_option numbers[] = {
    {"ping", offsetof(struct cv_push, ping), 1 << 24},
    {"ping-restart", offsetof(struct cv_push, ping_restart), 1 << 24},
    {"ping-exit", offsetof(struct cv_push, ping_exit), 1 << 24},
    {"inactive", offsetof(struct cv_push, inactive), 1 << 30},
    {"peer-id", offsetof(struct cv_push, peer_id), 0xffffff},
    {"tun-mtu", offsetof(struct cv_push, tun_mtu), 65535},
    {"mssfix", offsetof(struct cv_push, mssfix), 65535},
    {"explicit-exit-notify", offsetof(struct cv_push, exit_notify), 100},
};

static void take(struct cv_push *p, const struct option *o)
{
    const char *name = o->word[0];
    for (size_t i = 0; i < CV_ARRAY_SIZE(numbers); i++) {
        if (strcmp(name, numbers[i].name) != 0)
            continue;
        int32_t *where = (int32_t *)(void *)((char *)p + numbers[i].where);
        if (o->n < 2 || !number(o->word[1], numbers[i].max, where))
            if (strcmp(name, "peer-id") == 0)
                snprintf(p->rejected, sizeof(p->rejected), "peer-id %.40s",
                         o->n > 1 ? o->word[1] : "");
        return;
    }
    if (strcmp(name, "comp-lzo") == 0 || strcmp(name, "compress") == 0)
        p->comp = comp(o);
    else if (strcmp(name, "redirect-gateway") == 0)
        p->redirect_gateway = true;
    if (o->n < 2)
        return;
    if (strcmp(name, "ifconfig") == 0)
        take_ifconfig(p, o);
    else if (strcmp(name, "ifconfig-ipv6") == 0)
        take_ip6(p, o->word[1]);
    else if (strcmp(name, "topology") == 0)
        p->topology_subnet = strcmp(o->word[1], "subnet") == 0;
    else if (strcmp(name, "route") == 0)
        add_route(p, o);
    else if (strcmp(name, "dhcp-option") == 0)
        take_dhcp(p, o);
    else if (strcmp(name, "dns") == 0)
        take_dns(p, o);
    else if (strcmp(name, "cipher") == 0)
        snprintf(p->cipher, sizeof(p->cipher), "%.31s", o->word[1]);
    else if (strcmp(name, "auth") == 0)
        snprintf(p->auth, sizeof(p->auth), "%.23s", o->word[1]);
    else if (strcmp(name, "auth-token") == 0)
        snprintf(p->auth_token, sizeof(p->auth_token), "%.511s", o->word[1]);
    else if (strcmp(name, "key-derivation") == 0 || strcmp(name, "protocol-flags") == 0)
        take_flags(p, o);
}

static enum cv_profile_filter_action filtered(const struct cv_profile *profile, const char *t,
                                              size_t len)
{
    for (size_t i = 0; profile != NULL && i < profile->n_filters; i++) {
        size_t n = strlen(profile->filters[i].text);
        if (n <= len && strncmp(profile->filters[i].text, t, n) == 0)
            return profile->filters[i].action;
    }
    return CV_PROFILE_FILTER_ACCEPT;
}

/* What depends on several options. */
static int complete(struct cv_push *p)
{
    struct cv_ip second;
    p->ip4_len = 32;
    if (p->topology_subnet && p->ip4.family != CV_AF_NONE &&
        ip(p->ifconfig_remote, CV_AF_IP4, &second) && mask_len(&second) <= 32)
        p->ip4_len = mask_len(&second);
    return p->rejected[0] != '\0' ? CV_E_PROTO : 0;
}

int cv_push_parse(struct cv_push *p, const struct cv_profile *profile, const char *text, size_t len)
{
    struct option o;
    bool more = false;
    if (len < 10 || memcmp(text, "PUSH_REPLY", 10) != 0 || (len > 10 && text[10] != ','))
        return CV_E_PROTO;
    for (size_t at = 11; at < len;) {
        const char *t = text + at;
        const char *comma = memchr(t, ',', len - at);
        size_t n = comma != NULL ? (size_t)(comma - t) : len - at;
        at += n + 1;
        while (n > 0 && isspace((unsigned char)*t)) {
            t++;
            n--;
        }
        enum cv_profile_filter_action action = filtered(profile, t, n);
        if (action == CV_PROFILE_FILTER_REJECT)
            snprintf(p->rejected, sizeof(p->rejected), "%.*s", (int)CV_MIN(n, (size_t)60), t);
        if (action != CV_PROFILE_FILTER_ACCEPT)
            continue;
        split(&o, t, n);
        if (o.n == 0)
            continue;
        if (strcmp(o.word[0], "push-continuation") == 0 && o.n > 1)
            more = strcmp(o.word[1], "2") == 0;
        else
            take(p, &o);
    }
    cv_secret_clear(&o, sizeof(o));
    return more ? CV_E_MORE : complete(p);
}
