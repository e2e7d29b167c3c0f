#include "app/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/faults.h"
#include "app/option.h"
#include "app/rawconf.h"
#include "app/yamlmap.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "common/secret.h"
#include "common/target.h"
#include "proto/sniff.h"

#include "common/poison.h"

/* The generic form of CV_CONFIG_LIST. */
struct list {
    void *v;
    size_t n;
};

struct loader {
    const char *dir;
    struct cv_yamlmap map;
    struct cv_config_error *err;
};

static int load_section(struct loader *l, const struct cv_section *s,
                        const struct cv_raw_slot *slots, uint32_t node, void *base);
static void free_section(const struct cv_section *s, void *base);
static int check_rules(struct loader *l, struct cv_config *c);

/* ---- texts to values ---- */

/* A value as a message may show it: short, printable, and not if it is a secret. */
static const char *shown(const struct cv_option *o, const char *text, char *out, size_t cap)
{
    size_t i = 0;
    if (o->flags & CV_OPTION_SECRET)
        return "(secret)";
    for (; text[i] != '\0' && i + 1 < cap && i < 64; i++)
        out[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i];
    out[i] = '\0';
    return out;
}

static bool parse_digits(const char *s, unsigned base, uint64_t *ret)
{
    uint64_t v = 0;
    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        unsigned digit = (unsigned)(unsigned char)*s - '0';
        if (digit >= base || CV_MUL_OVERFLOW(v, base, &v) || CV_ADD_OVERFLOW(v, digit, &v))
            return false;
    }
    *ret = v;
    return true;
}

static bool id_is_valid(const char *s)
{
    for (; *s != '\0'; s++) {
        bool ok = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                  (*s >= '0' && *s <= '9') || strchr("._-:", *s) != NULL;
        if (!ok)
            return false;
    }
    return true;
}

/* 'text' relative to the folder of the config; empty stays empty. */
static char *resolve_path(const char *dir, const char *text)
{
    size_t cap = strlen(dir) + strlen(text) + 2;
    char *out = cv_alloc(cap);
    if (text[0] == '\0' || text[0] == '/' || strcmp(dir, ".") == 0)
        snprintf(out, cap, "%s", text);
    else
        snprintf(out, cap, "%s%s%s", dir, strcmp(dir, "/") == 0 ? "" : "/", text);
    return out;
}

/* The canonical form of a listen address, so that equal places have equal texts. */
static bool parse_listen(const struct loader *l, const struct cv_option *o, const char *text,
                         char **ret, char *why, size_t why_cap)
{
    struct cv_listen listen;
    char buf[CV_SOCKADDR_STRLEN + 8];
    if (text[0] == '\0') {
        *ret = cv_strdup("");
        return true;
    }
    if (strncmp(text, "unix:", 5) == 0 && text[5] != '\0') {
        cv_auto_free char *path = resolve_path(l->dir, text + 5);
        size_t cap = strlen(path) + 6;
        char *full = cv_alloc(cap);
        snprintf(full, cap, "unix:%s", path);
        if (cv_listen_parse(full, &listen, why, why_cap) != 0) {
            cv_free(full);
            return false;
        }
        *ret = full;
        return true;
    }
    if (cv_listen_parse(text, &listen, why, why_cap) != 0)
        return false;
    if (listen.kind == CV_LISTEN_FD) {
        if (o->flags & CV_OPTION_NO_FD) {
            snprintf(why, why_cap, "a socket of systemd is not accepted here");
            return false;
        }
        *ret = cv_strdup(text);
        return true;
    }
    *ret = cv_strdup(cv_sockaddr_format(&listen.sa, buf));
    return true;
}

/* One text to its value at 'dst'. False with a sentence in 'why', or "" for the general one. */
static bool parse_scalar(const struct loader *l, const struct cv_option *o, const char *text,
                         void *dst, char *why, size_t why_cap)
{
    size_t len = strlen(text);
    uint64_t u = 0;
    int64_t ms = 0;

    why[0] = '\0';
    switch (o->type) {
    case CV_OPTION_ID:
        if (!id_is_valid(text))
            return false;
        __attribute__((fallthrough));
    case CV_OPTION_TEXT:
        if (len < (size_t)o->min || len > (size_t)o->max)
            return false;
        *(char **)dst = cv_strdup(text);
        return true;
    case CV_OPTION_PATH:
        if (len < (size_t)o->min || len > (size_t)o->max)
            return false;
        *(char **)dst = (o->flags & CV_OPTION_STDOUT) && strcmp(text, "-") == 0
                            ? cv_strdup(text)
                            : resolve_path(l->dir, text);
        return true;
    case CV_OPTION_LISTEN:
        if (len < (size_t)o->min || len > (size_t)o->max)
            return false;
        return parse_listen(l, o, text, dst, why, why_cap);
    case CV_OPTION_UINT:
    case CV_OPTION_MODE:
        if (!parse_digits(text, o->type == CV_OPTION_MODE ? 8 : 10, &u) || u < (uint64_t)o->min ||
            u > (uint64_t)o->max)
            return false;
        *(uint64_t *)dst = u;
        return true;
    case CV_OPTION_DURATION:
        if (cv_duration_parse(text, &ms) != 0 || ms < o->min || ms > o->max)
            return false;
        *(int64_t *)dst = ms;
        return true;
    case CV_OPTION_ENUM:
        for (int i = 0; o->names[i] != NULL; i++)
            if (strcmp(o->names[i], text) == 0) {
                *(int *)dst = i;
                return true;
            }
        return false;
    default:
        return false;
    }
}

static int fail(struct loader *l, uint32_t node, const char *text)
{
    cv_faults_set(l->err, &l->map, node, text);
    return CV_E_INVALID;
}

static int load_scalar(struct loader *l, const struct cv_option *o, const char *text, uint32_t node,
                       void *dst)
{
    char why[200], wanted[200], show[80], full[sizeof(l->err->text)];

    /* libcyaml takes a quoted "" or "null" for a null as well. */
    if (text == NULL && node != CV_YAMLMAP_NONE && !l->map.nodes[node].null)
        text = l->map.nodes[node].text;
    if (text == NULL && (o->flags & CV_OPTION_REQUIRED)) {
        snprintf(full, sizeof(full), "has no value, wanted %s",
                 cv_option_wanted(o, wanted, sizeof(wanted)));
        return fail(l, node, full);
    }
    if (parse_scalar(l, o, text != NULL ? text : o->def, dst, why, sizeof(why)))
        return 0;
    CV_ASSERT(text != NULL); /* a default of the table is good */
    if (why[0] != '\0')
        snprintf(full, sizeof(full), "'%s': %s", shown(o, text, show, sizeof(show)), why);
    else
        snprintf(full, sizeof(full), "'%s' is not accepted, wanted %s",
                 shown(o, text, show, sizeof(show)), cv_option_wanted(o, wanted, sizeof(wanted)));
    return fail(l, node, full);
}

static bool server_is_valid(const char *text)
{
    struct cv_ip ip;
    struct cv_sockaddr sa;
    if (cv_ip_parse(text, strlen(text), &ip) == 0)
        return true;
    return text[0] != ':' && strncmp(text, "unix:", 5) != 0 && cv_sockaddr_parse(text, &sa) == 0;
}

static int load_list(struct loader *l, const struct cv_option *o, const struct cv_raw_slot *slot,
                     uint32_t node, struct list *dst)
{
    char *const *texts = slot->p;
    size_t item = o->type == CV_OPTION_PREFIXES ? sizeof(struct cv_prefix) : sizeof(char *);
    char full[sizeof(l->err->text)], wanted[200], show[80];

    if (slot->n < (size_t)o->min)
        return fail(l, node, "must not be empty");
    if (slot->n == 0)
        return 0;
    dst->v = cv_zalloc(slot->n * item);
    for (uint32_t i = 0; i < slot->n; i++) {
        const char *text = texts[i];
        bool ok = text != NULL;
        if (ok && o->type == CV_OPTION_PREFIXES) {
            ok = cv_prefix_parse(text, strlen(text), (struct cv_prefix *)dst->v + i) == 0;
        } else if (ok) {
            ok = o->type == CV_OPTION_SERVERS ? server_is_valid(text)
                                              : text[0] != '\0' && strlen(text) < 1024;
            if (ok)
                ((char **)dst->v)[i] = cv_strdup(text);
        }
        dst->n = i + 1; /* what is freed, whatever happens next */
        if (!ok) {
            snprintf(full, sizeof(full), "'%s' is not accepted, wanted %s",
                     shown(o, text != NULL ? text : "", show, sizeof(show)),
                     cv_option_wanted(o, wanted, sizeof(wanted)));
            return fail(l, cv_yamlmap_item(&l->map, node, i), full);
        }
    }
    return 0;
}

static int load_sections(struct loader *l, const struct cv_option *o,
                         const struct cv_raw_slot *slot, uint32_t node, struct list *dst)
{
    const struct cv_section *s = o->section;
    int ret = 0;
    if (slot->n < (size_t)o->min)
        return fail(l, node, "needs at least one entry");
    if (slot->n == 0)
        return 0;
    dst->v = cv_zalloc(slot->n * s->size);
    for (uint32_t i = 0; i < slot->n && ret == 0; i++) {
        dst->n = i + 1;
        ret = load_section(l, s, (const struct cv_raw_slot *)slot->p + (size_t)i * s->n,
                           cv_yamlmap_item(&l->map, node, i), (char *)dst->v + i * s->size);
    }
    return ret;
}

static int load_option(struct loader *l, const struct cv_option *o, const struct cv_raw_slot *slot,
                       uint32_t node, void *base)
{
    void *dst = (char *)base + o->offset;
    switch (o->type) {
    case CV_OPTION_SECTION:
        return load_section(l, o->section, slot->p, node, base);
    case CV_OPTION_SECTION_PTR:
        if (slot->p == NULL)
            return 0;
        *(void **)dst = cv_zalloc(o->section->size);
        return load_section(l, o->section, slot->p, node, *(void **)dst);
    case CV_OPTION_SECTIONS:
        return load_sections(l, o, slot, node, dst);
    case CV_OPTION_TEXTS:
    case CV_OPTION_SERVERS:
    case CV_OPTION_PREFIXES:
        return load_list(l, o, slot, node, dst);
    default:
        return load_scalar(l, o, slot->p, node, dst);
    }
}

/* 'slots' NULL: nothing of this section was given. */
static int load_section(struct loader *l, const struct cv_section *s,
                        const struct cv_raw_slot *slots, uint32_t node, void *base)
{
    static const struct cv_raw_slot nothing;
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        uint32_t child =
            node != CV_YAMLMAP_NONE ? cv_yamlmap_child(&l->map, node, o->key) : CV_YAMLMAP_NONE;
        int ret = load_option(l, o, slots != NULL ? &slots[i] : &nothing, child, base);
        if (ret != 0)
            return ret;
    }
    return 0;
}

/* ---- whole files ---- */

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return cv_strdup(".");
    return slash == path ? cv_strdup("/") : cv_strndup(path, (size_t)(slash - path));
}

static int load_document(struct loader *l, const char *data, size_t len, struct cv_config *c)
{
    struct cv_yamlmap_error yaml_err;
    struct cv_rawconf *raw = NULL;
    const struct cv_raw_slot *slots = NULL;
    char why[256];

    int ret = cv_yamlmap_parse(data, len, &yaml_err, &l->map);
    if (ret == -ENOMEM) {
        snprintf(l->err->text, sizeof(l->err->text), "out of memory");
        return ret;
    }
    if (ret != 0) {
        l->err->line = yaml_err.line;
        l->err->column = yaml_err.column;
        snprintf(l->err->text, sizeof(l->err->text), "%s", yaml_err.text);
        return ret;
    }
    if (l->map.n == 0) {
        snprintf(l->err->text, sizeof(l->err->text),
                 "the file is empty, 'node_id' and 'listeners' are required");
        return CV_E_PARSE;
    }
    ret = cv_rawconf_load(&cv_option_root, data, len, why, sizeof(why), &raw, &slots);
    if (ret != 0) {
        if (ret == -ENOMEM || !cv_faults_find(&l->map, &cv_option_root, l->err))
            snprintf(l->err->text, sizeof(l->err->text), "%s",
                     ret == -ENOMEM ? "out of memory" : why);
        return ret;
    }
    ret = load_section(l, &cv_option_root, slots, 0, c);
    cv_rawconf_free(raw);
    return ret == 0 ? check_rules(l, c) : ret;
}

int cv_config_parse(const char *path, const char *data, size_t len, struct cv_config_error *reterr,
                    struct cv_config **ret_config)
{
    struct cv_config *c = cv_zalloc(sizeof(*c));
    struct loader l = {.err = reterr};

    *reterr = (struct cv_config_error){0};
    c->path = cv_strdup(path);
    c->dir = folder_of(path);
    l.dir = c->dir;
    int ret = load_document(&l, data, len, c);
    /* The map holds a copy of every value. */
    for (uint32_t i = 0; i < l.map.n; i++)
        if (l.map.nodes[i].text != NULL)
            cv_secret_clear(l.map.nodes[i].text, strlen(l.map.nodes[i].text));
    cv_yamlmap_done(&l.map);
    if (ret != 0) {
        cv_config_free(c);
        return ret;
    }
    *ret_config = c;
    return 0;
}

int cv_config_load(const char *path, struct cv_config_error *reterr, struct cv_config **ret_config)
{
    char *data = NULL;
    size_t len = 0;
    int ret = cv_file_read(path, CV_CONFIG_MAX_BYTES, &data, &len);
    if (ret != 0) {
        *reterr = (struct cv_config_error){0};
        if (ret == CV_E_LIMIT)
            snprintf(reterr->text, sizeof(reterr->text), "the file is larger than %u bytes",
                     CV_CONFIG_MAX_BYTES);
        else
            snprintf(reterr->text, sizeof(reterr->text), "the file cannot be read: %s",
                     cv_err_text(ret));
        return ret;
    }
    ret = cv_config_parse(path, data, len, reterr, ret_config);
    cv_secret_clear(data, len);
    cv_free(data);
    return ret;
}

char *cv_config_error_format(const struct cv_config_error *e, const char *path, char *out,
                             size_t cap)
{
    size_t len = (size_t)snprintf(out, cap, "%s", path);
    if (e->line > 0 && len < cap)
        len += (size_t)snprintf(out + len, cap - len, ":%u:%u", e->line, e->column);
    if (len < cap)
        snprintf(out + len, cap - len, ": %s%s%s", e->path, e->path[0] != '\0' ? ": " : "",
                 e->text);
    return out;
}

/* ---- rules between options ---- */

static uint32_t at(const struct loader *l, uint32_t node, const char *key)
{
    return node != CV_YAMLMAP_NONE ? cv_yamlmap_child(&l->map, node, key) : CV_YAMLMAP_NONE;
}

/* The node of 'key', or if it is not written, the one that would hold it. */
static uint32_t at_or(const struct loader *l, uint32_t node, const char *key)
{
    uint32_t child = at(l, node, key);
    return child != CV_YAMLMAP_NONE ? child : node;
}

static int check_client_auth(struct loader *l, const struct cv_config_listener *x, uint32_t node)
{
    static const char *const keys[] = {"client_crl", "client_auth", "user_from"};
    uint32_t tls = at(l, node, "tls");
    if (x->tls == NULL)
        return 0;
    if (x->tls->client_ca[0] != '\0') {
        if (x->tls->client_auth == 0 && x->no_auth_user[0] != '\0')
            return fail(l, at_or(l, node, "no_auth_user"),
                        "has no use where every client needs a certificate, remove it or set "
                        "tls.client_auth to 'request'");
        return 0;
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(keys); i++)
        if (at(l, tls, keys[i]) != CV_YAMLMAP_NONE)
            return fail(l, at(l, tls, keys[i]), "has no use without 'client_ca'");
    return 0;
}

static int check_proxy_protocol(struct loader *l, const struct cv_config_listener *x, uint32_t node)
{
    if (x->proxy_protocol == NULL)
        return 0;
    bool is_unix = strncmp(x->listen, "unix:", 5) == 0;
    uint32_t where = at(l, node, "proxy_protocol");
    if (!is_unix && x->proxy_protocol->from.n == 0)
        return fail(l, at_or(l, where, "from"),
                    "needs the addresses of the proxies that are believed");
    if (is_unix && x->proxy_protocol->from.n > 0)
        return fail(l, at_or(l, where, "from"),
                    "has no use on a Unix socket, 'unix_mode' says who may connect");
    return 0;
}

static int check_udp(struct loader *l, const struct cv_config_listener *x, uint32_t node)
{
    struct cv_ip ip;
    char text[400];
    uint32_t at_udp = at(l, node, "udp"), at_advertise = at(l, node, "udp_advertise");
    if ((x->protocol == CV_CONFIG_HTTP || x->protocol == CV_CONFIG_SNI) &&
        (at_udp != CV_YAMLMAP_NONE || x->udp_advertise[0] != '\0'))
        return fail(l, at_udp != CV_YAMLMAP_NONE ? at_udp : at_advertise,
                    "is for listeners that speak SOCKS5");
    if (x->udp_advertise[0] == '\0')
        return 0;
    if (strncmp(x->listen, "unix:", 5) == 0)
        return fail(l, at_advertise, "is not for listeners on 'unix:', which have no UDP");
    if (cv_ip_parse(x->udp_advertise, strlen(x->udp_advertise), &ip) == 0)
        return 0;
    snprintf(text, sizeof(text), "'%s' is not accepted, wanted an IPv4 or IPv6 address",
             x->udp_advertise);
    return fail(l, at_advertise, text);
}

/* Nothing is asked of these clients, so who they count as and where they may go is said here. */
static int check_sni(struct loader *l, struct cv_config_listener *x, uint32_t node)
{
    struct cv_host host;
    char text[400];
    uint32_t list = at(l, node, "origins");

    if (x->tls != NULL)
        return fail(l, at(l, node, "tls"), "protocol 'sni' relays TLS and does not terminate it");
    if (x->no_auth_user[0] != '\0')
        return fail(l, at(l, node, "no_auth_user"), "protocol 'sni' has 'identity' for that");
    if (x->identity[0] == '\0')
        return fail(l, at_or(l, node, "identity"), "is required with protocol 'sni'");
    if (x->origins.n == 0)
        return fail(l, at_or(l, node, "origins"), "is required with protocol 'sni'");
    if (strncmp(x->listen, "unix:", 5) == 0 && x->origin_port == 0)
        return fail(l, at_or(l, node, "origin_port"), "is required with a listener on 'unix:'");
    for (uint32_t i = 0; i < x->origins.n; i++) {
        char *origin = x->origins.v[i];
        uint32_t item = cv_yamlmap_item(&l->map, list, i);
        if (cv_sniff_host(origin, strlen(origin), &host) != 0) {
            snprintf(text, sizeof(text),
                     "'%.253s' is no host name (no address, wildcard, port or URL)", origin);
            return fail(l, item, text);
        }
        cv_free(origin);
        x->origins.v[i] = cv_strdup(host.name);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(x->origins.v[j], host.name) == 0) {
                snprintf(text, sizeof(text), "'%s' is origins[%u] already", host.name, j);
                return fail(l, item, text);
            }
    }
    return 0;
}

/* Options of a listener that mean nothing for its protocol are faults, not decoration. */
static int check_protocol(struct loader *l, struct cv_config_listener *x, uint32_t node)
{
    static const char *const sni_only[] = {"identity", "origins", "origin_port"};
    uint32_t sniff = at(l, node, "sniff");

    if (x->protocol == CV_CONFIG_SNI) {
        uint32_t mode = at(l, sniff, "mode"), timeout = at(l, sniff, "timeout");
        if (mode != CV_YAMLMAP_NONE || timeout != CV_YAMLMAP_NONE)
            return fail(l, mode != CV_YAMLMAP_NONE ? mode : timeout,
                        "is not for protocol 'sni', which always reads the name, within "
                        "limits.handshake_timeout");
        return check_sni(l, x, node);
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(sni_only); i++)
        if (at(l, node, sni_only[i]) != CV_YAMLMAP_NONE)
            return fail(l, at(l, node, sni_only[i]), "is for protocol 'sni' only");
    return 0;
}

static int check_listeners(struct loader *l, const struct cv_config *c)
{
    uint32_t list = at(l, 0, "listeners");
    char text[400];
    for (uint32_t i = 0; i < c->listeners.n; i++) {
        const struct cv_config_listener *x = &c->listeners.v[i];
        uint32_t node = cv_yamlmap_item(&l->map, list, i);
        for (uint32_t j = 0; j < i; j++) {
            const struct cv_config_listener *y = &c->listeners.v[j];
            if (strcmp(x->name, y->name) == 0) {
                snprintf(text, sizeof(text),
                         "'%s' is the name of listeners[%u] already, names must differ", x->name,
                         j);
                return fail(l, at(l, node, "name"), text);
            }
            const char *port = strrchr(x->listen, ':');
            if (strcmp(x->listen, y->listen) == 0 && strcmp(port, ":0") != 0) {
                snprintf(text, sizeof(text), "'%s' is where listeners[%u] listens already",
                         x->listen, j);
                return fail(l, at(l, node, "listen"), text);
            }
        }
        uint32_t mode = at(l, node, "unix_mode");
        if (mode != CV_YAMLMAP_NONE && strncmp(x->listen, "unix:", 5) != 0)
            return fail(l, mode, "is for listeners on 'unix:' only");
        int ret = check_client_auth(l, x, node);
        if (ret == 0)
            ret = check_proxy_protocol(l, x, node);
        if (ret == 0)
            ret = check_udp(l, x, node);
        if (ret != 0)
            return ret;
    }
    return 0;
}

static int check_health(struct loader *l, uint32_t node, const struct cv_config_health *h)
{
    struct cv_target target;
    char text[400];
    if (cv_target_parse(h->target, strlen(h->target), 0, &target) == 0)
        return 0;
    snprintf(text, sizeof(text),
             "'%.300s' is not accepted, wanted host:port such as example.com:443", h->target);
    return fail(l, at_or(l, at(l, node, "health"), "target"), text);
}

static int check_egresses(struct loader *l, const struct cv_config *c)
{
    uint32_t list = at(l, 0, "egresses");
    char text[160];
    for (uint32_t i = 0; i < c->egresses.n; i++) {
        uint32_t node = cv_yamlmap_item(&l->map, list, i);
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(c->egresses.v[i].id, c->egresses.v[j].id) != 0)
                continue;
            snprintf(text, sizeof(text), "is the id of egresses[%u] already, ids must differ", j);
            return fail(l, at(l, node, "id"), text);
        }
        const struct cv_config_health *h = c->egresses.v[i].health;
        int ret = h != NULL ? check_health(l, node, h) : 0;
        if (ret != 0)
            return ret;
    }
    return 0;
}

static int check_tunnels(struct loader *l, const struct cv_config *c)
{
    uint32_t list = at(l, 0, "tunnels");
    char text[200];
    for (uint32_t i = 0; i < c->tunnels.n; i++) {
        const struct cv_config_tunnel *t = &c->tunnels.v[i];
        uint32_t node = cv_yamlmap_item(&l->map, list, i);
        struct cv_ip ip;
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(t->name, c->tunnels.v[j].name) != 0)
                continue;
            snprintf(text, sizeof(text), "is the name of tunnels[%u] already, names must differ",
                     j);
            return fail(l, at(l, node, "name"), text);
        }
        for (size_t j = 0; j < t->dns.n; j++) {
            if (cv_ip_parse_any(t->dns.v[j], strlen(t->dns.v[j]), &ip) == 0)
                continue;
            snprintf(text, sizeof(text), "'%.80s' is not accepted, wanted an IP address",
                     t->dns.v[j]);
            return fail(l, at(l, node, "dns"), text);
        }
    }
    return 0;
}

static int check_chain(struct loader *l, const struct cv_config *c)
{
    uint32_t node = at(l, 0, "chain");
    if (c->chain.total_timeout < c->chain.attempt_timeout)
        return fail(
            l, at_or(l, node, "total_timeout"),
            "total_timeout is shorter than attempt_timeout, so no attempt would get its time");
    if (c->chain.backoff_max < c->chain.backoff)
        return fail(l, at_or(l, node, "backoff_max"), "backoff_max is shorter than backoff");
    return 0;
}

static int check_admin(struct loader *l, const struct cv_config *c)
{
    struct cv_listen listen;
    char why[200], text[400];
    uint32_t node = at(l, 0, "admin");
    if (c->admin.listen[0] == '\0' || c->admin.token[0] != '\0')
        return 0;
    if (cv_listen_parse(c->admin.listen, &listen, why, sizeof(why)) != 0 ||
        cv_listen_is_local(&listen))
        return 0;
    snprintf(text, sizeof(text),
             "'%s' can be reached by other machines, so admin.token must be set, or listen on "
             "127.0.0.1",
             c->admin.listen);
    return fail(l, at_or(l, node, "listen"), text);
}

static int check_control_plane(struct loader *l, const struct cv_config *c)
{
    uint32_t node = at(l, 0, "control_plane");
    const char *url = c->control_plane.snapshot_url;
    if (url[0] == '\0')
        return 0;
    if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0)
        return fail(l, at_or(l, node, "snapshot_url"),
                    "is no URL that begins with https:// or http://");
    if (c->control_plane.token[0] != '\0' && c->control_plane.token_file[0] != '\0')
        return fail(l, at_or(l, node, "token_file"), "has no use beside 'token', choose one");
    if (strpbrk(c->control_plane.token, " \t\r\n") != NULL)
        return fail(l, at_or(l, node, "token"), "has blanks in it, a token is one word");
    if (c->control_plane.client_key[0] != '\0' && c->control_plane.client_cert[0] == '\0')
        return fail(l, at_or(l, node, "client_key"), "has no use without 'client_cert'");
    return 0;
}

static int check_login(struct loader *l, const struct cv_config *c)
{
    uint32_t node = at(l, 0, "login");
    char text[200], first[32], most[32];
    if (c->login.backoff <= c->login.backoff_max)
        return 0;
    snprintf(text, sizeof(text), "%s is more than login.backoff_max, which is %s",
             cv_option_duration(c->login.backoff, first, sizeof(first)),
             cv_option_duration(c->login.backoff_max, most, sizeof(most)));
    return fail(l, at_or(l, node, "backoff"), text);
}

static int check_rules(struct loader *l, struct cv_config *c)
{
    int ret = check_listeners(l, c);
    uint32_t list = at(l, 0, "listeners");
    for (uint32_t i = 0; i < c->listeners.n && ret == 0; i++)
        ret = check_protocol(l, &c->listeners.v[i], cv_yamlmap_item(&l->map, list, i));
    if (ret == 0)
        ret = check_egresses(l, c);
    if (ret == 0)
        ret = check_tunnels(l, c);
    if (ret == 0)
        ret = check_login(l, c);
    if (ret == 0)
        ret = check_chain(l, c);
    if (ret == 0)
        ret = check_control_plane(l, c);
    if (ret == 0)
        ret = check_admin(l, c);
    if (ret == 0 && strcmp(c->snapshot.file, c->snapshot.cache) == 0)
        ret = fail(l, at_or(l, at(l, 0, "snapshot"), "cache"),
                   "is the same file as snapshot.file, the cache needs one of its own");
    return ret;
}

/* ---- the end, and what others need ---- */

static void free_list(const struct cv_option *o, struct list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        if (o->type == CV_OPTION_SECTIONS)
            free_section(o->section, (char *)list->v + i * o->section->size);
        else if (o->type != CV_OPTION_PREFIXES)
            cv_free(((char **)list->v)[i]);
    }
    CV_FREE(list->v);
    list->n = 0;
}

static void free_section(const struct cv_section *s, void *base)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        void *at_ptr = (char *)base + o->offset;
        switch (o->type) {
        case CV_OPTION_TEXT:
        case CV_OPTION_ID:
        case CV_OPTION_PATH:
        case CV_OPTION_LISTEN:
            if (o->flags & CV_OPTION_SECRET)
                cv_secret_free(*(char **)at_ptr);
            else
                cv_free(*(char **)at_ptr);
            break;
        case CV_OPTION_SECTION:
            free_section(o->section, base);
            break;
        case CV_OPTION_SECTION_PTR:
            if (*(void **)at_ptr != NULL)
                free_section(o->section, *(void **)at_ptr);
            cv_free(*(void **)at_ptr);
            break;
        case CV_OPTION_TEXTS:
        case CV_OPTION_SERVERS:
        case CV_OPTION_PREFIXES:
        case CV_OPTION_SECTIONS:
            free_list(o, at_ptr);
            break;
        default:
            break;
        }
    }
}

void cv_config_free(struct cv_config *c)
{
    if (c == NULL)
        return;
    free_section(&cv_option_root, c);
    cv_free(c->path);
    cv_free(c->dir);
    cv_free(c);
}

struct cv_settings *cv_config_settings(const struct cv_config *c)
{
    struct cv_settings *s = cv_settings_new();
    snprintf(s->node_id, sizeof(s->node_id), "%s", c->node_id);
    s->max_sessions = c->limits.max_sessions;
    s->max_tls_handshakes = c->limits.max_tls_handshakes;
    s->connections_per_s = c->limits.connections_per_second;
    s->source_connections_per_s = c->limits.source_connections_per_second;
    s->recheck_targets = c->recheck == 1;
    s->login = (struct cv_login_settings){
        .failures = (uint32_t)c->login.failures,
        .source_failures = (uint32_t)c->login.source_failures,
        .window_ms = c->login.window,
        .backoff_ms = c->login.backoff,
        .backoff_max_ms = c->login.backoff_max,
    };
    s->handshake_timeout_ms = c->limits.handshake_timeout;
    s->connect_timeout_ms = c->limits.connect_timeout;
    s->idle_timeout_ms = c->limits.idle_timeout;
    s->half_close_timeout_ms = c->limits.half_close_timeout;
    s->udp_timeout_ms = c->limits.udp_timeout;
    s->drain_grace_ms = c->limits.drain_grace;
    s->direct_prefer = c->direct.prefer == 1 ? CV_AF_IP6 : CV_AF_IP4;
    if (c->direct.allow.n > 0) {
        s->direct_allow = cv_alloc(c->direct.allow.n * sizeof(*s->direct_allow));
        memcpy(s->direct_allow, c->direct.allow.v, c->direct.allow.n * sizeof(*s->direct_allow));
        s->n_direct_allow = c->direct.allow.n;
    }
    if (c->dns.servers.n > 0) {
        s->dns_servers = cv_alloc(c->dns.servers.n * sizeof(*s->dns_servers));
        for (size_t i = 0; i < c->dns.servers.n; i++)
            s->dns_servers[i] = cv_strdup(c->dns.servers.v[i]);
        s->n_dns_servers = c->dns.servers.n;
    }
    s->dns_timeout_ms = c->dns.timeout;
    s->dns_attempts = (int)c->dns.attempts;
    s->dns_cache_size = c->dns.cache_size;
    s->chain_attempt_timeout_ms = c->chain.attempt_timeout;
    s->chain_total_timeout_ms = c->chain.total_timeout;
    s->chain_backoff_ms = c->chain.backoff;
    s->chain_backoff_max_ms = c->chain.backoff_max;
    s->stats_interval_ms = c->access_log.stats_interval;
    return s;
}

const struct cv_config_egress *cv_config_egress(const struct cv_config *c, const char *id)
{
    for (size_t i = 0; i < c->egresses.n; i++)
        if (strcmp(c->egresses.v[i].id, id) == 0)
            return &c->egresses.v[i];
    return NULL;
}

unsigned cv_config_workers(const struct cv_config *c)
{
    if (c->workers > 0)
        return (unsigned)c->workers;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : (unsigned)CV_MIN(cores, 4l);
}
