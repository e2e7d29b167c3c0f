#include "tunnel/profile.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/addr.h"
#include "common/alloc.h"
#include "common/base64.h"
#include "common/err.h"
#include "common/file.h"
#include "common/secret.h"

#include "common/poison.h"

#define ARGS_MAX     16
#define LINE_MAX_LEN 4096

struct parser {
    struct cv_profile *p;
    const char *dir; /* borrowed; NULL */
    bool strict;
    struct cv_profile_error *e;
    uint32_t line;
    /* The words of the directive at hand, in 'words'. */
    const char *argv[ARGS_MAX];
    size_t argc;
    char words[LINE_MAX_LEN];
    const char *inline_text; /* of <name>...</name>; NULL: not inline */
    size_t inline_len;
    /* Defaults that a later line may still set for the remotes above it. */
    uint16_t port;
    bool tcp;
    enum cv_profile_net net;
    struct {
        bool has_port, has_proto;
    } remote_set[CV_PROFILE_REMOTES_MAX];
    /* Within <connection>. */
    bool in_connection;
    size_t connection_first;
};

typedef int (*directive_cb)(struct parser *s);

enum kind {
    TAKEN,
    QUIET,   /* means nothing here */
    HOST,    /* would change the host's network */
    DANGER,  /* would run programs, load code, touch files */
    REFUSED, /* would change what the tunnel is */
};

struct directive {
    const char *name;
    enum kind kind;
    uint8_t min, max; /* arguments */
    directive_cb fn;
    const char *why; /* REFUSED: what to do instead */
};

/* ---- errors and notes ---- */

CV_PRINTF(3, 4)
static int fail(struct parser *s, int err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    s->e->line = s->line;
    snprintf(s->e->directive, sizeof(s->e->directive), "%.60s", s->argc > 0 ? s->argv[0] : "");
    vsnprintf(s->e->text, sizeof(s->e->text), fmt, ap);
    va_end(ap);
    return err;
}

CV_PRINTF(2, 3)
static void note(struct parser *s, const char *fmt, ...)
{
    struct cv_profile *p = s->p;
    if (p->n_notes >= CV_PROFILE_NOTES_MAX) {
        p->n_notes_left_out++;
        return;
    }
    struct cv_profile_note *n = &p->notes[p->n_notes++];
    va_list ap;
    va_start(ap, fmt);
    n->line = s->line;
    vsnprintf(n->text, sizeof(n->text), fmt, ap);
    va_end(ap);
}

/* ---- values ---- */

static const char *arg(const struct parser *s, size_t i)
{
    return i < s->argc ? s->argv[i] : NULL;
}

static int number(struct parser *s, size_t i, uint64_t min, uint64_t max, uint64_t *ret)
{
    const char *t = arg(s, i);
    uint64_t v = 0;
    if (t == NULL)
        return fail(s, CV_E_INVALID, "a number is missing");
    const char *c = t;
    for (; *c >= '0' && *c <= '9'; c++)
        if (CV_MUL_OVERFLOW(v, (uint64_t)10, &v) || CV_ADD_OVERFLOW(v, (uint64_t)(*c - '0'), &v))
            break;
    if (c == t || *c != '\0' || v < min || v > max)
        return fail(s, CV_E_INVALID, "'%.40s' is no number from %llu to %llu", t,
                    (unsigned long long)min, (unsigned long long)max);
    *ret = v;
    return 0;
}

static int number32(struct parser *s, size_t i, uint32_t min, uint32_t max, uint32_t *ret)
{
    uint64_t v = 0;
    int err = number(s, i, min, max, &v);
    if (err == 0)
        *ret = (uint32_t)v;
    return err;
}

static int text_into(struct parser *s, size_t i, char *out, size_t cap)
{
    size_t n = strlen(s->argv[i]);
    if (n >= cap)
        return fail(s, CV_E_INVALID, "the value is longer than %zu characters", cap - 1);
    memcpy(out, s->argv[i], n + 1);
    return 0;
}

static void upper(char *t)
{
    for (; *t != '\0'; t++)
        *t = (char)toupper((unsigned char)*t);
}

static int text_new(struct parser *s, const char *t, size_t len, char **ret)
{
    char *copy = cv_try_strndup(t, len);
    if (copy == NULL)
        return -ENOMEM;
    if (*ret != NULL) {
        cv_secret_free(*ret);
        note(s, "'%.40s' is given again; the last one counts", s->argv[0]);
    }
    *ret = copy;
    return 0;
}

/* ---- files ---- */

static bool is_below(const char *name)
{
    if (name[0] == '/' || name[0] == '\0')
        return false;
    for (const char *c = name; c != NULL; c = strchr(c, '/'), c = c != NULL ? c + 1 : NULL)
        if (strncmp(c, "..", 2) == 0 && (c[2] == '/' || c[2] == '\0'))
            return false;
    return true;
}

/* The text of the inline block, or of the file that the first argument names. */
static int file_text(struct parser *s, char **ret)
{
    if (s->inline_text != NULL)
        return text_new(s, s->inline_text, s->inline_len, ret);
    const char *name = arg(s, 1);
    if (name == NULL)
        return fail(s, CV_E_INVALID, "a file or an inline block <%.40s> is missing", s->argv[0]);
    if (strcmp(name, "[inline]") == 0)
        return 0;
    size_t dir_len = s->dir != NULL ? strlen(s->dir) : 0;
    if (dir_len > 0 && strncmp(name, s->dir, dir_len) == 0 && name[dir_len] == '/')
        name += dir_len + 1;
    if (s->dir == NULL || !is_below(name))
        return fail(s, CV_E_UNSUPPORTED,
                    "the file '%.80s' is not in the profile's folder and is not read", name);
    char path[LINE_MAX_LEN + 8];
    if (snprintf(path, sizeof(path), "%s/%s", s->dir, name) >= (int)sizeof(path))
        return fail(s, CV_E_INVALID, "the path is too long");
    char *data = NULL;
    size_t len = 0;
    int err = cv_file_read(path, CV_PROFILE_MAX_FILE, &data, &len);
    if (err != 0)
        return fail(s, err, "the file '%.80s' cannot be read: %s", name, cv_err_text(err));
    err = text_new(s, data, len, ret);
    cv_secret_clear(data, len);
    cv_free(data);
    return err;
}

#define FILE_DIRECTIVE(fn_name, member)                                                            \
    static int fn_name(struct parser *s)                                                           \
    {                                                                                              \
        return file_text(s, &s->p->member);                                                        \
    }
FILE_DIRECTIVE(take_ca, ca)
FILE_DIRECTIVE(take_cert, cert)
FILE_DIRECTIVE(take_key, key)
FILE_DIRECTIVE(take_extra_certs, extra_certs)
FILE_DIRECTIVE(take_tls_crypt, tls_crypt)
FILE_DIRECTIVE(take_tls_crypt_v2, tls_crypt_v2)

static int take_crl(struct parser *s)
{
    if (arg(s, 2) != NULL)
        return fail(s, CV_E_UNSUPPORTED,
                    "a directory of revocation lists is not supported, give one file");
    return file_text(s, &s->p->crl);
}

static int take_direction(struct parser *s, size_t i)
{
    uint32_t v;
    int err = number32(s, i, 0, 1, &v);
    if (err == 0)
        s->p->key_direction = (int)v;
    return err;
}

static int take_tls_auth(struct parser *s)
{
    int err = file_text(s, &s->p->tls_auth);
    return err == 0 && arg(s, 2) != NULL ? take_direction(s, 2) : err;
}

static int take_key_direction(struct parser *s)
{
    return take_direction(s, 1);
}

static int take_auth_user_pass(struct parser *s)
{
    s->p->auth_user_pass = true;
    if (s->inline_text == NULL && arg(s, 1) == NULL)
        return 0;
    char *text = NULL;
    int err = file_text(s, &text);
    if (err != 0 || text == NULL)
        return err;
    char *user_end = text + strcspn(text, "\r\n"), *pass = user_end;
    if (*pass == '\r')
        pass++;
    if (*pass == '\n')
        pass++;
    err = text_new(s, text, (size_t)(user_end - text), &s->p->username);
    if (err == 0 && *pass != '\0')
        err = text_new(s, pass, strcspn(pass, "\r\n"), &s->p->password);
    cv_secret_free(text);
    return err;
}

/* ---- where to ---- */

static int proto(struct parser *s, size_t i, bool *ret_tcp, enum cv_profile_net *ret_net)
{
    static const struct {
        const char *name;
        bool tcp;
        enum cv_profile_net net;
    } table[] = {
        {"udp", false, CV_PROFILE_NET_ANY},        {"udp4", false, CV_PROFILE_NET_IP4},
        {"udp6", false, CV_PROFILE_NET_IP6},       {"tcp", true, CV_PROFILE_NET_ANY},
        {"tcp4", true, CV_PROFILE_NET_IP4},        {"tcp6", true, CV_PROFILE_NET_IP6},
        {"tcp-client", true, CV_PROFILE_NET_ANY},  {"tcp4-client", true, CV_PROFILE_NET_IP4},
        {"tcp6-client", true, CV_PROFILE_NET_IP6},
    };
    for (size_t k = 0; k < CV_ARRAY_SIZE(table); k++) {
        if (strcasecmp(s->argv[i], table[k].name) == 0) {
            *ret_tcp = table[k].tcp;
            *ret_net = table[k].net;
            return 0;
        }
    }
    return fail(s, CV_E_INVALID,
                "'%.40s' is none of udp, udp4, udp6, tcp, tcp4, tcp6 and tcp-client", s->argv[i]);
}

static int take_remote(struct parser *s)
{
    struct cv_profile *p = s->p;
    if (p->n_remotes >= CV_PROFILE_REMOTES_MAX)
        return fail(s, CV_E_LIMIT, "more than %d remotes", CV_PROFILE_REMOTES_MAX);
    struct cv_profile_remote *r = &p->remotes[p->n_remotes];
    memset(r, 0, sizeof(*r));
    int err = text_into(s, 1, r->host, sizeof(r->host));
    if (err == 0 && r->host[0] == '\0')
        err = fail(s, CV_E_INVALID, "the host is empty");
    uint32_t port;
    if (err == 0 && arg(s, 2) != NULL) {
        err = number32(s, 2, 1, 65535, &port);
        if (err == 0) {
            r->port = (uint16_t)port;
            s->remote_set[p->n_remotes].has_port = true;
        }
    }
    if (err == 0 && arg(s, 3) != NULL) {
        err = proto(s, 3, &r->tcp, &r->net);
        s->remote_set[p->n_remotes].has_proto = true;
    }
    if (err == 0)
        p->n_remotes++;
    return err;
}

static int take_proto(struct parser *s)
{
    bool tcp = false;
    enum cv_profile_net net = CV_PROFILE_NET_ANY;
    int err = proto(s, 1, &tcp, &net);
    if (err != 0)
        return err;
    if (!s->in_connection) {
        s->tcp = tcp;
        s->net = net;
        return 0;
    }
    for (size_t i = s->connection_first; i < s->p->n_remotes; i++) {
        if (s->remote_set[i].has_proto)
            continue;
        s->p->remotes[i].tcp = tcp;
        s->p->remotes[i].net = net;
        s->remote_set[i].has_proto = true;
    }
    return 0;
}

static int take_port(struct parser *s)
{
    uint32_t v;
    int err = number32(s, 1, 1, 65535, &v);
    if (err == 0)
        s->port = (uint16_t)v;
    return err;
}

static int take_dev(struct parser *s)
{
    if (strncmp(s->argv[1], "tun", 3) == 0 ||
        (strcmp(s->argv[0], "dev") == 0 && strncmp(s->argv[1], "tap", 3) != 0))
        return 0;
    return fail(s, CV_E_UNSUPPORTED, "'%.40s': only 'tun' (IP packets) is supported, not Ethernet",
                s->argv[1]);
}

static int take_remote_random(struct parser *s)
{
    s->p->remote_random = true;
    return 0;
}

/* ---- ciphers ---- */

static int take_cipher(struct parser *s)
{
    int err = text_into(s, 1, s->p->cipher, sizeof(s->p->cipher));
    upper(s->p->cipher);
    return err;
}

static int take_fallback(struct parser *s)
{
    int err = text_into(s, 1, s->p->fallback, sizeof(s->p->fallback));
    upper(s->p->fallback);
    return err;
}

static int take_ciphers(struct parser *s)
{
    struct cv_profile *p = s->p;
    p->n_ciphers = 0;
    for (const char *c = s->argv[1]; *c != '\0';) {
        size_t n = strcspn(c, ":");
        if (p->n_ciphers >= CV_PROFILE_CIPHERS_MAX)
            return fail(s, CV_E_LIMIT, "more than %d ciphers", CV_PROFILE_CIPHERS_MAX);
        const char *from = c;
        size_t len = n;
        if (len > 0 && *from == '?') { /* "if it is known": so it is with all of them here */
            from++;
            len--;
        }
        if (len == 0 || len >= sizeof(p->ciphers[0]))
            return fail(s, CV_E_INVALID, "'%.60s' is no list of ciphers", s->argv[1]);
        if (!(len == 7 && strncasecmp(from, "DEFAULT", 7) == 0)) {
            memcpy(p->ciphers[p->n_ciphers], from, len);
            p->ciphers[p->n_ciphers][len] = '\0';
            upper(p->ciphers[p->n_ciphers++]);
        }
        c += n;
        if (*c == ':')
            c++;
    }
    return 0;
}

static int take_auth(struct parser *s)
{
    int err = text_into(s, 1, s->p->auth, sizeof(s->p->auth));
    upper(s->p->auth);
    static const char *const known[] = {"SHA1",   "SHA224", "SHA256", "SHA384",
                                        "SHA512", "MD5",    "NONE"};
    if (err != 0)
        return err;
    if (strncmp(s->p->auth, "SHA-", 4) == 0 || strncmp(s->p->auth, "RSA-", 4) == 0)
        memmove(s->p->auth + (s->p->auth[0] == 'S' ? 3 : 0), s->p->auth + 4,
                strlen(s->p->auth + 4) + 1);
    for (size_t i = 0; i < CV_ARRAY_SIZE(known); i++)
        if (strcmp(known[i], s->p->auth) == 0 && strcmp(known[i], "NONE") != 0)
            return 0;
    return fail(s, CV_E_UNSUPPORTED,
                "digest '%.40s': SHA1, SHA224, SHA256, SHA384, SHA512 and MD5 are supported",
                s->argv[1]);
}

/* ---- certificates and TLS ---- */

static int take_verify_name(struct parser *s)
{
    const char *kind = arg(s, 2);
    int err = text_into(s, 1, s->p->verify_name, sizeof(s->p->verify_name));
    if (err != 0)
        return err;
    if (kind == NULL || strcmp(kind, "subject") == 0)
        s->p->verify_name_kind = CV_PROFILE_NAME_SUBJECT;
    else if (strcmp(kind, "name") == 0)
        s->p->verify_name_kind = CV_PROFILE_NAME_CN;
    else if (strcmp(kind, "name-prefix") == 0)
        s->p->verify_name_kind = CV_PROFILE_NAME_PREFIX;
    else
        return fail(s, CV_E_INVALID, "'%.40s' is none of subject, name and name-prefix", kind);
    return 0;
}

static int take_remote_cert_tls(struct parser *s)
{
    if (strcmp(s->argv[1], "server") != 0)
        return fail(s, CV_E_INVALID, "'%.40s': a client's peer is a 'server'", s->argv[1]);
    s->p->remote_cert_tls = true;
    return 0;
}

static int take_remote_eku(struct parser *s)
{
    return text_into(s, 1, s->p->remote_eku, sizeof(s->p->remote_eku));
}

static int print_add(struct parser *s, const char *t, size_t len)
{
    struct cv_profile *p = s->p;
    if (p->n_prints >= CV_PROFILE_PRINTS_MAX)
        return fail(s, CV_E_LIMIT, "more than %d fingerprints", CV_PROFILE_PRINTS_MAX);
    char hex[65];
    size_t n = 0, got = 0;
    for (size_t i = 0; i < len; i++) {
        if (t[i] == ':')
            continue;
        if (n == 64)
            n = 65;
        if (n >= 64)
            break;
        hex[n++] = (char)tolower((unsigned char)t[i]);
    }
    if (n != 64 || cv_hex_decode(hex, 64, p->prints[p->n_prints], 32, &got) != 0)
        return fail(s, CV_E_INVALID,
                    "a fingerprint is 32 bytes in hexadecimal, separated by colons");
    p->n_prints++;
    return 0;
}

static int take_prints(struct parser *s)
{
    if (s->inline_text == NULL)
        return arg(s, 1) != NULL ? print_add(s, s->argv[1], strlen(s->argv[1]))
                                 : fail(s, CV_E_INVALID, "a fingerprint is missing");
    const char *c = s->inline_text, *end = c + s->inline_len;
    while (c < end) {
        size_t n = 0;
        while (c + n < end && c[n] != '\n' && c[n] != '\r')
            n++;
        size_t from = 0, to = n;
        while (from < to && isspace((unsigned char)c[from]))
            from++;
        while (to > from && isspace((unsigned char)c[to - 1]))
            to--;
        if (to > from && c[from] != '#' && c[from] != ';') {
            int err = print_add(s, c + from, to - from);
            if (err != 0)
                return err;
        }
        c += n < (size_t)(end - c) ? n + 1 : n;
    }
    return 0;
}

static int take_tls_version(struct parser *s)
{
    const char *t = s->argv[1];
    int v = strcmp(t, "1.0") == 0   ? 10
            : strcmp(t, "1.1") == 0 ? 11
            : strcmp(t, "1.2") == 0 ? 12
            : strcmp(t, "1.3") == 0 ? 13
                                    : 0;
    if (v == 0)
        return fail(s, CV_E_INVALID, "'%.40s' is none of 1.0, 1.1, 1.2 and 1.3", t);
    if (strcmp(s->argv[0], "tls-version-min") == 0)
        s->p->tls_min = v;
    else
        s->p->tls_max = v;
    return 0;
}

static int take_tls_list(struct parser *s)
{
    char **where = strcmp(s->argv[0], "tls-cipher") == 0         ? &s->p->tls_cipher
                   : strcmp(s->argv[0], "tls-ciphersuites") == 0 ? &s->p->tls_ciphersuites
                                                                 : &s->p->tls_groups;
    return text_new(s, s->argv[1], strlen(s->argv[1]), where);
}

static int take_cert_profile(struct parser *s)
{
    const char *t = s->argv[1];
    s->p->security_level = strcmp(t, "insecure") == 0 ? 0 : strcmp(t, "legacy") == 0 ? 1 : 2;
    if (s->p->security_level == 2 && strcmp(t, "preferred") != 0 && strcmp(t, "suiteb") != 0)
        return fail(s, CV_E_INVALID, "'%.40s' is none of insecure, legacy, preferred and suiteb",
                    t);
    return 0;
}

static int take_ns_cert_type(struct parser *s)
{
    note(s, "'ns-cert-type' is taken for 'remote-cert-tls server'");
    return take_remote_cert_tls(s);
}

/* ---- framing and sizes ---- */

static int take_comp_lzo(struct parser *s)
{
    s->p->comp = CV_COMP_LZO;
    return 0;
}

static int take_compress(struct parser *s)
{
    const char *t = arg(s, 1);
    if (t == NULL || strcmp(t, "stub") == 0 || strcmp(t, "lz4") == 0)
        s->p->comp = CV_COMP_STUB;
    else if (strcmp(t, "stub-v2") == 0 || strcmp(t, "lz4-v2") == 0)
        s->p->comp = CV_COMP_STUB_V2;
    else if (strcmp(t, "lzo") == 0)
        s->p->comp = CV_COMP_LZO;
    else if (strcmp(t, "migrate") == 0)
        s->p->comp = CV_COMP_NONE;
    else
        return fail(s, CV_E_INVALID,
                    "'%.40s' is none of stub, stub-v2, lzo, lz4, lz4-v2 and migrate", t);
    return 0;
}

static int take_fragment(struct parser *s)
{
    return number32(s, 1, 68, 65535, &s->p->fragment);
}

static int take_mssfix(struct parser *s)
{
    uint32_t v = 1492;
    int err = arg(s, 1) != NULL ? number32(s, 1, 0, 65535, &v) : 0;
    if (err != 0)
        return err;
    s->p->mssfix = (int32_t)v;
    s->p->mssfix_mtu = arg(s, 1) == NULL || (arg(s, 2) != NULL && strcmp(arg(s, 2), "mtu") == 0);
    s->p->mssfix_fixed = arg(s, 2) != NULL && strcmp(arg(s, 2), "fixed") == 0;
    return 0;
}

static int take_tun_mtu(struct parser *s)
{
    return number32(s, 1, 576, 65535, &s->p->tun_mtu);
}

/* ---- times ---- */

static int seconds(struct parser *s, size_t i, int32_t *ret)
{
    uint32_t v;
    int err = number32(s, i, 0, 1u << 24, &v);
    if (err == 0)
        *ret = (int32_t)v;
    return err;
}

static int take_ping(struct parser *s)
{
    return seconds(s, 1, &s->p->ping);
}
static int take_ping_restart(struct parser *s)
{
    return seconds(s, 1, &s->p->ping_restart);
}
static int take_ping_exit(struct parser *s)
{
    return seconds(s, 1, &s->p->ping_exit);
}
static int take_keepalive(struct parser *s)
{
    int err = seconds(s, 1, &s->p->ping);
    return err == 0 ? seconds(s, 2, &s->p->ping_restart) : err;
}
static int take_reneg_sec(struct parser *s)
{
    uint32_t v;
    int err = number32(s, 1, 0, 1u << 30, &v);
    if (err == 0)
        s->p->reneg_sec = v;
    return err;
}
static int take_reneg_bytes(struct parser *s)
{
    return number(s, 1, 0, UINT64_MAX, &s->p->reneg_bytes);
}
static int take_reneg_pkts(struct parser *s)
{
    return number(s, 1, 0, UINT64_MAX, &s->p->reneg_pkts);
}
static int take_hand_window(struct parser *s)
{
    return number32(s, 1, 1, 3600, &s->p->hand_window);
}
static int take_tran_window(struct parser *s)
{
    return number32(s, 1, 1, 1u << 24, &s->p->tran_window);
}
static int take_connect_retry(struct parser *s)
{
    int err = number32(s, 1, 1, 3600, &s->p->connect_retry);
    if (err == 0 && arg(s, 2) != NULL)
        err = number32(s, 2, 1, 86400, &s->p->connect_retry_max);
    return err;
}
static int take_connect_timeout(struct parser *s)
{
    return number32(s, 1, 1, 3600, &s->p->connect_timeout);
}
static int take_exit_notify(struct parser *s)
{
    s->p->exit_notify = 1;
    return arg(s, 1) != NULL ? number32(s, 1, 0, 100, &s->p->exit_notify) : 0;
}
static int take_replay_window(struct parser *s)
{
    return number32(s, 1, 0, 65536, &s->p->replay_window);
}

/* ---- the rest ---- */

static int take_client(struct parser *s)
{
    s->p->pull = true;
    return 0;
}

static int take_push_peer_info(struct parser *s)
{
    s->p->push_peer_info = true;
    return 0;
}

static int take_ifconfig(struct parser *s)
{
    struct cv_ip ip;
    for (size_t i = 1; i <= 2; i++)
        if (cv_ip_parse(s->argv[i], strlen(s->argv[i]), &ip) != 0 || ip.family != CV_AF_IP4)
            return fail(s, CV_E_INVALID, "'%.40s' is no IPv4 address", s->argv[i]);
    int err = text_into(s, 1, s->p->ifconfig_local, sizeof(s->p->ifconfig_local));
    return err == 0 ? text_into(s, 2, s->p->ifconfig_remote, sizeof(s->p->ifconfig_remote)) : err;
}

static int take_dhcp_option(struct parser *s)
{
    struct cv_ip ip;
    if (strcasecmp(s->argv[1], "DNS") != 0 && strcasecmp(s->argv[1], "DNS6") != 0)
        return 0;
    if (arg(s, 2) == NULL || cv_ip_parse(s->argv[2], strlen(s->argv[2]), &ip) != 0)
        return fail(s, CV_E_INVALID, "a DNS server is an IP address");
    if (s->p->n_dns >= CV_PROFILE_DNS_MAX)
        return fail(s, CV_E_LIMIT, "more than %d DNS servers", CV_PROFILE_DNS_MAX);
    return text_into(s, 2, s->p->dns[s->p->n_dns++], sizeof(s->p->dns[0]));
}

static int take_pull_filter(struct parser *s)
{
    struct cv_profile *p = s->p;
    if (p->n_filters >= CV_PROFILE_FILTERS_MAX)
        return fail(s, CV_E_LIMIT, "more than %d pull filters", CV_PROFILE_FILTERS_MAX);
    struct cv_profile_filter *f = &p->filters[p->n_filters];
    const char *t = s->argv[1];
    f->action = strcmp(t, "accept") == 0   ? CV_PROFILE_FILTER_ACCEPT
                : strcmp(t, "ignore") == 0 ? CV_PROFILE_FILTER_IGNORE
                                           : CV_PROFILE_FILTER_REJECT;
    if (f->action == CV_PROFILE_FILTER_REJECT && strcmp(t, "reject") != 0)
        return fail(s, CV_E_INVALID, "'%.40s' is none of accept, ignore and reject", t);
    int err = text_into(s, 2, f->text, sizeof(f->text));
    if (err == 0)
        p->n_filters++;
    return err;
}

static int run_directive(struct parser *s);

static int take_setenv(struct parser *s)
{
    /* "setenv opt X ...": X, if it is known. */
    if (strcmp(s->argv[1], "opt") != 0 || s->argc < 3)
        return 0;
    memmove(s->argv, s->argv + 2, (s->argc - 2) * sizeof(s->argv[0]));
    s->argc -= 2;
    return strcmp(s->argv[0], "setenv") == 0 ? 0 : run_directive(s);
}

/* ---- the table ---- */

#define ANY ARGS_MAX
/* clang-format off */
static const struct directive directives[] = {
    {"allow-compression", QUIET, 0, ANY, NULL, NULL},
    {"allow-pull-fqdn", HOST, 0, ANY, NULL, NULL},
    {"allow-recursive-routing", QUIET, 0, ANY, NULL, NULL},
    {"askpass", REFUSED, 0, ANY, NULL, "the key must not have a password"},
    {"auth", TAKEN, 1, 1, take_auth, NULL},
    {"auth-nocache", QUIET, 0, ANY, NULL, NULL},
    {"auth-retry", QUIET, 0, ANY, NULL, NULL},
    {"auth-token", QUIET, 0, ANY, NULL, NULL},
    {"auth-user-pass", TAKEN, 0, 1, take_auth_user_pass, NULL},
    {"auth-user-pass-verify", DANGER, 0, ANY, NULL, NULL},
    {"bind", QUIET, 0, ANY, NULL, NULL},
    {"block-ipv6", HOST, 0, ANY, NULL, NULL},
    {"block-outside-dns", QUIET, 0, ANY, NULL, NULL},
    {"ca", TAKEN, 0, 1, take_ca, NULL},
    {"capath", REFUSED, 0, ANY, NULL, "give the certificates as <ca>"},
    {"cd", DANGER, 0, ANY, NULL, NULL},
    {"cert", TAKEN, 0, 1, take_cert, NULL},
    {"chroot", DANGER, 0, ANY, NULL, NULL},
    {"cipher", TAKEN, 1, 1, take_cipher, NULL},
    {"client", TAKEN, 0, 0, take_client, NULL},
    {"client-connect", DANGER, 0, ANY, NULL, NULL},
    {"client-disconnect", DANGER, 0, ANY, NULL, NULL},
    {"client-nat", REFUSED, 0, ANY, NULL, "address translation is not supported"},
    {"comp-lzo", TAKEN, 0, 1, take_comp_lzo, NULL},
    {"comp-noadapt", QUIET, 0, ANY, NULL, NULL},
    {"compress", TAKEN, 0, 1, take_compress, NULL},
    {"config", DANGER, 0, ANY, NULL, NULL},
    {"connect-retry", TAKEN, 1, 2, take_connect_retry, NULL},
    {"connect-retry-max", QUIET, 0, ANY, NULL, NULL},
    {"connect-timeout", TAKEN, 1, 1, take_connect_timeout, NULL},
    {"crl-verify", TAKEN, 0, 2, take_crl, NULL},
    {"cryptoapicert", REFUSED, 0, ANY, NULL, "give the certificate as <cert> and <key>"},
    {"daemon", QUIET, 0, ANY, NULL, NULL},
    {"data-ciphers", TAKEN, 1, 1, take_ciphers, NULL},
    {"data-ciphers-fallback", TAKEN, 1, 1, take_fallback, NULL},
    {"dev", TAKEN, 1, 1, take_dev, NULL},
    {"dev-node", QUIET, 0, ANY, NULL, NULL},
    {"dev-type", TAKEN, 1, 1, take_dev, NULL},
    {"dh", QUIET, 0, ANY, NULL, NULL},
    {"dhcp-option", TAKEN, 1, ANY, take_dhcp_option, NULL},
    {"dhcp-release", QUIET, 0, ANY, NULL, NULL},
    {"dhcp-renew", QUIET, 0, ANY, NULL, NULL},
    {"disable-dco", QUIET, 0, ANY, NULL, NULL},
    {"disable-occ", QUIET, 0, ANY, NULL, NULL},
    {"down", DANGER, 0, ANY, NULL, NULL},
    {"down-pre", QUIET, 0, ANY, NULL, NULL},
    {"ecdh-curve", QUIET, 0, ANY, NULL, NULL},
    {"echo", QUIET, 0, ANY, NULL, NULL},
    {"engine", DANGER, 0, ANY, NULL, NULL},
    {"explicit-exit-notify", TAKEN, 0, 1, take_exit_notify, NULL},
    {"extra-certs", TAKEN, 0, 1, take_extra_certs, NULL},
    {"fast-io", QUIET, 0, ANY, NULL, NULL},
    {"float", QUIET, 0, ANY, NULL, NULL},
    {"fragment", TAKEN, 1, 2, take_fragment, NULL},
    {"group", QUIET, 0, ANY, NULL, NULL},
    {"hand-window", TAKEN, 1, 1, take_hand_window, NULL},
    {"http-proxy", REFUSED, 0, ANY, NULL, "reaching the server through a proxy is not supported"},
    {"http-proxy-option", QUIET, 0, ANY, NULL, NULL},
    {"http-proxy-retry", QUIET, 0, ANY, NULL, NULL},
    {"ifconfig", TAKEN, 2, 2, take_ifconfig, NULL},
    {"ifconfig-ipv6", HOST, 0, ANY, NULL, NULL},
    {"ifconfig-nowarn", QUIET, 0, ANY, NULL, NULL},
    {"ignore-unknown-option", QUIET, 0, ANY, NULL, NULL},
    {"inactive", HOST, 0, ANY, NULL, NULL},
    {"ip-win32", QUIET, 0, ANY, NULL, NULL},
    {"ipchange", DANGER, 0, ANY, NULL, NULL},
    {"iproute", DANGER, 0, ANY, NULL, NULL},
    {"iroute", QUIET, 0, ANY, NULL, NULL},
    {"keepalive", TAKEN, 2, 2, take_keepalive, NULL},
    {"key", TAKEN, 0, 1, take_key, NULL},
    {"key-derivation", QUIET, 0, ANY, NULL, NULL},
    {"key-direction", TAKEN, 1, 1, take_key_direction, NULL},
    {"key-method", QUIET, 0, ANY, NULL, NULL},
    {"keying-material-exporter", QUIET, 0, ANY, NULL, NULL},
    {"keysize", QUIET, 0, ANY, NULL, NULL},
    {"link-mtu", QUIET, 0, ANY, NULL, NULL},
    {"lladdr", HOST, 0, ANY, NULL, NULL},
    {"local", HOST, 0, ANY, NULL, NULL},
    {"log", DANGER, 0, ANY, NULL, NULL},
    {"log-append", DANGER, 0, ANY, NULL, NULL},
    {"lport", HOST, 0, ANY, NULL, NULL},
    {"machine-readable-output", QUIET, 0, ANY, NULL, NULL},
    {"management", DANGER, 0, ANY, NULL, NULL},
    {"management-client", DANGER, 0, ANY, NULL, NULL},
    {"management-external-cert", REFUSED, 0, ANY, NULL, "give the certificate as <cert>"},
    {"management-external-key", REFUSED, 0, ANY, NULL, "give the key as <key>"},
    {"management-hold", QUIET, 0, ANY, NULL, NULL},
    {"management-query-passwords", QUIET, 0, ANY, NULL, NULL},
    {"mark", HOST, 0, ANY, NULL, NULL},
    {"max-packet-size", QUIET, 0, ANY, NULL, NULL},
    {"mlock", QUIET, 0, ANY, NULL, NULL},
    {"mode", QUIET, 0, ANY, NULL, NULL},
    {"mssfix", TAKEN, 0, 2, take_mssfix, NULL},
    {"mtu-disc", QUIET, 0, ANY, NULL, NULL},
    {"mtu-test", QUIET, 0, ANY, NULL, NULL},
    {"multihome", QUIET, 0, ANY, NULL, NULL},
    {"mute", QUIET, 0, ANY, NULL, NULL},
    {"mute-replay-warnings", QUIET, 0, ANY, NULL, NULL},
    {"ncp-ciphers", TAKEN, 1, 1, take_ciphers, NULL},
    {"ncp-disable", QUIET, 0, ANY, NULL, NULL},
    {"nice", QUIET, 0, ANY, NULL, NULL},
    {"nobind", QUIET, 0, ANY, NULL, NULL},
    {"ns-cert-type", TAKEN, 1, 1, take_ns_cert_type, NULL},
    {"passtos", QUIET, 0, ANY, NULL, NULL},
    {"peer-fingerprint", TAKEN, 0, 1, take_prints, NULL},
    {"persist-key", QUIET, 0, ANY, NULL, NULL},
    {"persist-local-ip", QUIET, 0, ANY, NULL, NULL},
    {"persist-remote-ip", QUIET, 0, ANY, NULL, NULL},
    {"persist-tun", QUIET, 0, ANY, NULL, NULL},
    {"ping", TAKEN, 1, 1, take_ping, NULL},
    {"ping-exit", TAKEN, 1, 1, take_ping_exit, NULL},
    {"ping-restart", TAKEN, 1, 1, take_ping_restart, NULL},
    {"ping-timer-rem", QUIET, 0, ANY, NULL, NULL},
    {"pkcs11-id", REFUSED, 0, ANY, NULL, "tokens are not supported, give <cert> and <key>"},
    {"pkcs11-providers", DANGER, 0, ANY, NULL, NULL},
    {"pkcs12", REFUSED, 0, ANY, NULL, "give the parts as <ca>, <cert> and <key>"},
    {"plugin", DANGER, 0, ANY, NULL, NULL},
    {"port", TAKEN, 1, 1, take_port, NULL},
    {"proto", TAKEN, 1, 1, take_proto, NULL},
    {"proto-force", QUIET, 0, ANY, NULL, NULL},
    {"providers", DANGER, 0, ANY, NULL, NULL},
    {"pull", TAKEN, 0, 0, take_client, NULL},
    {"pull-filter", TAKEN, 2, 2, take_pull_filter, NULL},
    {"push-peer-info", TAKEN, 0, 0, take_push_peer_info, NULL},
    {"rcvbuf", QUIET, 0, ANY, NULL, NULL},
    {"redirect-gateway", QUIET, 0, ANY, NULL, NULL},
    {"redirect-private", QUIET, 0, ANY, NULL, NULL},
    {"register-dns", QUIET, 0, ANY, NULL, NULL},
    {"remap-usr1", QUIET, 0, ANY, NULL, NULL},
    {"remote", TAKEN, 1, 3, take_remote, NULL},
    {"remote-cert-eku", TAKEN, 1, 1, take_remote_eku, NULL},
    {"remote-cert-ku", TAKEN, 0, ANY, NULL, NULL},
    {"remote-cert-tls", TAKEN, 1, 1, take_remote_cert_tls, NULL},
    {"remote-random", TAKEN, 0, 0, take_remote_random, NULL},
    {"remote-random-hostname", REFUSED, 0, ANY, NULL, "names are looked up as they are written"},
    {"reneg-bytes", TAKEN, 1, 1, take_reneg_bytes, NULL},
    {"reneg-pkts", TAKEN, 1, 1, take_reneg_pkts, NULL},
    {"reneg-sec", TAKEN, 1, 2, take_reneg_sec, NULL},
    {"replay-persist", DANGER, 0, ANY, NULL, NULL},
    {"replay-window", TAKEN, 1, 2, take_replay_window, NULL},
    {"resolv-retry", QUIET, 0, ANY, NULL, NULL},
    {"route", HOST, 0, ANY, NULL, NULL},
    {"route-delay", QUIET, 0, ANY, NULL, NULL},
    {"route-gateway", HOST, 0, ANY, NULL, NULL},
    {"route-ipv6", HOST, 0, ANY, NULL, NULL},
    {"route-ipv6-gateway", HOST, 0, ANY, NULL, NULL},
    {"route-method", QUIET, 0, ANY, NULL, NULL},
    {"route-metric", QUIET, 0, ANY, NULL, NULL},
    {"route-noexec", QUIET, 0, ANY, NULL, NULL},
    {"route-nopull", QUIET, 0, ANY, NULL, NULL},
    {"route-pre-down", DANGER, 0, ANY, NULL, NULL},
    {"route-up", DANGER, 0, ANY, NULL, NULL},
    {"rport", TAKEN, 1, 1, take_port, NULL},
    {"script-security", DANGER, 0, ANY, NULL, NULL},
    {"secret", REFUSED, 0, ANY, NULL, "static keys without TLS are not supported"},
    {"server-poll-timeout", TAKEN, 1, 1, take_connect_timeout, NULL},
    {"service", QUIET, 0, ANY, NULL, NULL},
    {"setcon", DANGER, 0, ANY, NULL, NULL},
    {"setenv", TAKEN, 1, ANY, take_setenv, NULL},
    {"setenv-safe", QUIET, 0, ANY, NULL, NULL},
    {"show-net-up", QUIET, 0, ANY, NULL, NULL},
    {"sndbuf", QUIET, 0, ANY, NULL, NULL},
    {"socket-flags", QUIET, 0, ANY, NULL, NULL},
    {"socks-proxy", REFUSED, 0, ANY, NULL, "reaching the server through a proxy is not supported"},
    {"socks-proxy-retry", QUIET, 0, ANY, NULL, NULL},
    {"static-challenge", REFUSED, 0, ANY, NULL, "one-time passwords are not supported"},
    {"status", DANGER, 0, ANY, NULL, NULL},
    {"status-version", QUIET, 0, ANY, NULL, NULL},
    {"suppress-timestamps", QUIET, 0, ANY, NULL, NULL},
    {"syslog", QUIET, 0, ANY, NULL, NULL},
    {"tap-sleep", QUIET, 0, ANY, NULL, NULL},
    {"tcp-nodelay", QUIET, 0, ANY, NULL, NULL},
    {"tcp-queue-limit", QUIET, 0, ANY, NULL, NULL},
    {"tls-auth", TAKEN, 0, 2, take_tls_auth, NULL},
    {"tls-cert-profile", TAKEN, 1, 1, take_cert_profile, NULL},
    {"tls-cipher", TAKEN, 1, 1, take_tls_list, NULL},
    {"tls-ciphersuites", TAKEN, 1, 1, take_tls_list, NULL},
    {"tls-client", QUIET, 0, ANY, NULL, NULL},
    {"tls-crypt", TAKEN, 0, 1, take_tls_crypt, NULL},
    {"tls-crypt-v2", TAKEN, 0, 1, take_tls_crypt_v2, NULL},
    {"tls-exit", QUIET, 0, ANY, NULL, NULL},
    {"tls-groups", TAKEN, 1, 1, take_tls_list, NULL},
    {"tls-timeout", QUIET, 0, ANY, NULL, NULL},
    {"tls-verify", DANGER, 0, ANY, NULL, NULL},
    {"tls-version-max", TAKEN, 1, 1, take_tls_version, NULL},
    {"tls-version-min", TAKEN, 1, 2, take_tls_version, NULL},
    {"tmp-dir", DANGER, 0, ANY, NULL, NULL},
    {"topology", QUIET, 0, ANY, NULL, NULL},
    {"tran-window", TAKEN, 1, 1, take_tran_window, NULL},
    {"tun-ipv6", QUIET, 0, ANY, NULL, NULL},
    {"tun-mtu", TAKEN, 1, 2, take_tun_mtu, NULL},
    {"tun-mtu-extra", QUIET, 0, ANY, NULL, NULL},
    {"tun-mtu-max", QUIET, 0, ANY, NULL, NULL},
    {"txqueuelen", QUIET, 0, ANY, NULL, NULL},
    {"up", DANGER, 0, ANY, NULL, NULL},
    {"up-delay", QUIET, 0, ANY, NULL, NULL},
    {"up-restart", QUIET, 0, ANY, NULL, NULL},
    {"user", QUIET, 0, ANY, NULL, NULL},
    {"verb", QUIET, 0, ANY, NULL, NULL},
    {"verify-hash", REFUSED, 0, ANY, NULL, "use 'peer-fingerprint'"},
    {"verify-x509-name", TAKEN, 1, 2, take_verify_name, NULL},
    {"vlan-tagging", QUIET, 0, ANY, NULL, NULL},
    {"win-sys", QUIET, 0, ANY, NULL, NULL},
    {"windows-driver", QUIET, 0, ANY, NULL, NULL},
    {"writepid", DANGER, 0, ANY, NULL, NULL},
    {"x509-track", QUIET, 0, ANY, NULL, NULL},
    {"x509-username-field", QUIET, 0, ANY, NULL, NULL},
};
/* clang-format on */

static int compare(const void *key, const void *d)
{
    return strcmp(key, ((const struct directive *)d)->name);
}

static int run_directive(struct parser *s)
{
    const struct directive *d =
        bsearch(s->argv[0], directives, CV_ARRAY_SIZE(directives), sizeof(directives[0]), compare);
    if (d == NULL) {
        note(s, "'%.60s' is not known, ignoring it", s->argv[0]);
        return 0;
    }
    switch (d->kind) {
    case QUIET:
        return 0;
    case HOST:
        note(s, "'%s' is about the host's network or sockets, ignoring it", d->name);
        return 0;
    case DANGER:
        if (s->strict)
            return fail(s, CV_E_UNSUPPORTED,
                        "it would run programs or touch files, and the profile is to be strict");
        note(s, "'%s' would run programs or touch files, ignoring it", d->name);
        return 0;
    case REFUSED:
        return fail(s, CV_E_UNSUPPORTED, "%s", d->why);
    case TAKEN:
        break;
    }
    if (d->fn == NULL)
        return 0;
    if (s->argc - 1 < d->min)
        return fail(s, CV_E_INVALID, "%zu values, wanted at least %u", s->argc - 1, d->min);
    if (s->argc - 1 > d->max)
        return fail(s, CV_E_INVALID, "%zu values, wanted at most %u", s->argc - 1, d->max);
    return d->fn(s);
}

/* ---- lines ---- */

/* Split a line into words: blanks separate, quotes hold together, a backslash takes the next
 * character as it is, # and ; begin a comment where a word would begin. */
static int split(struct parser *s, const char *t, size_t len)
{
    size_t at = 0;
    char quote = '\0';
    bool in_word = false;
    s->argc = 0;
    for (size_t i = 0; i < len; i++) {
        char c = t[i];
        if (c == '\0')
            return fail(s, CV_E_PARSE, "a NUL byte in the line");
        if (!in_word) {
            if (isspace((unsigned char)c))
                continue;
            if (c == '#' || c == ';')
                break;
            if (s->argc >= ARGS_MAX)
                return fail(s, CV_E_PARSE, "more than %d words in the line", ARGS_MAX);
            s->argv[s->argc++] = s->words + at;
            in_word = true;
        }
        if (quote == '\0' && isspace((unsigned char)c)) {
            s->words[at++] = '\0';
            in_word = false;
        } else if (quote != '\0' ? c == quote : c == '"' || c == '\'') {
            quote = quote != '\0' ? '\0' : c;
        } else if (c == '\\' && quote != '\'' && i + 1 < len) {
            s->words[at++] = t[++i];
        } else {
            s->words[at++] = c;
        }
    }
    s->words[at] = '\0';
    if (quote != '\0')
        return fail(s, CV_E_PARSE, "a quote is not closed");
    if (s->argc > 0 && strncmp(s->argv[0], "--", 2) == 0)
        s->argv[0] += 2;
    return 0;
}

static int end_connection(struct parser *s)
{
    s->in_connection = false;
    return 0;
}

/* The line that begins at 't': its length without the line's end, and where the next one begins. */
static size_t line_len(const char *t, size_t left, size_t *ret_next)
{
    const char *nl = memchr(t, '\n', left);
    size_t n = nl != NULL ? (size_t)(nl - t) : left;
    *ret_next = nl != NULL ? n + 1 : n;
    while (n > 0 && (t[n - 1] == '\r' || t[n - 1] == ' ' || t[n - 1] == '\t'))
        n--;
    return n;
}

/* <name>: all lines to </name>. '*at' is behind the opening line. */
static int inline_block(struct parser *s, const char *text, size_t len, size_t *at)
{
    char name[40];
    size_t n = strlen(s->argv[0]);
    if (s->argc != 1 || n < 3 || n - 2 >= sizeof(name))
        return fail(s, CV_E_PARSE, "'%.40s' is no inline block", s->argv[0]);
    memcpy(name, s->argv[0] + 1, n - 2);
    name[n - 2] = '\0';
    if (strcmp(name, "connection") == 0) {
        s->in_connection = true;
        s->connection_first = s->p->n_remotes;
        return 0;
    }
    if (strcmp(name, "/connection") == 0)
        return end_connection(s);
    uint32_t opened = s->line;
    size_t start = *at;
    while (*at < len) {
        size_t next, k = line_len(text + *at, len - *at, &next), from = 0;
        const char *line = text + *at;
        s->line++;
        while (from < k && (line[from] == ' ' || line[from] == '\t'))
            from++;
        if (k - from == n + 1 && line[from] == '<' && line[from + 1] == '/' &&
            strncmp(line + from + 2, name, n - 2) == 0 && line[k - 1] == '>') {
            s->inline_text = text + start;
            s->inline_len = *at - start;
            *at += next;
            if (s->inline_len > CV_PROFILE_MAX_FILE)
                return fail(s, CV_E_LIMIT, "the block is larger than %u bytes",
                            CV_PROFILE_MAX_FILE);
            s->argv[0] = name;
            int err = run_directive(s);
            s->inline_text = NULL;
            return err;
        }
        *at += next;
    }
    s->line = opened;
    return fail(s, CV_E_PARSE, "the block is not closed by </%s>", name);
}

static int run_lines(struct parser *s, const char *text, size_t len)
{
    size_t at = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < len) {
        size_t next, n = line_len(text + at, len - at, &next);
        const char *line = text + at;
        at += next;
        s->line++;
        s->argc = 0;
        if (n >= LINE_MAX_LEN)
            return fail(s, CV_E_PARSE, "the line is longer than %d bytes", LINE_MAX_LEN - 1);
        int err = split(s, line, n);
        if (err != 0)
            return err;
        if (s->argc == 0)
            continue;
        size_t w = strlen(s->argv[0]);
        err = s->argv[0][0] == '<' && s->argv[0][w - 1] == '>' ? inline_block(s, text, len, &at)
                                                               : run_directive(s);
        if (err != 0)
            return err;
    }
    return 0;
}

/* ---- the whole ---- */

static int finish(struct parser *s)
{
    struct cv_profile *p = s->p;
    s->line = 0;
    s->argc = 0;
    if (p->n_remotes == 0)
        return fail(s, CV_E_INVALID, "it has no 'remote': which server is meant?");
    for (size_t i = 0; i < p->n_remotes; i++) {
        if (!s->remote_set[i].has_port)
            p->remotes[i].port = s->port;
        if (!s->remote_set[i].has_proto) {
            p->remotes[i].tcp = s->tcp;
            p->remotes[i].net = s->net;
        }
    }
    if (p->ca == NULL && p->n_prints == 0)
        return fail(s, CV_E_INVALID,
                    "it has neither 'ca' nor 'peer-fingerprint': the server could be anybody");
    if ((p->cert == NULL) != (p->key == NULL))
        return fail(s, CV_E_INVALID, "'cert' and 'key' go together, '%s' is missing",
                    p->cert == NULL ? "cert" : "key");
    int wraps = (p->tls_auth != NULL) + (p->tls_crypt != NULL) + (p->tls_crypt_v2 != NULL);
    if (wraps > 1)
        return fail(s, CV_E_INVALID,
                    "only one of tls-auth, tls-crypt and tls-crypt-v2 can be used");
    if (p->tls_min != 0 && p->tls_max != 0 && p->tls_min > p->tls_max)
        return fail(s, CV_E_INVALID, "tls-version-min is above tls-version-max");
    return 0;
}

int cv_profile_parse(const char *text, size_t len, const char *dir, bool strict,
                     struct cv_profile_error *reterr, struct cv_profile **ret_profile)
{
    memset(reterr, 0, sizeof(*reterr));
    struct parser *s = cv_try_zalloc(sizeof(*s));
    struct cv_profile *p = cv_try_zalloc(sizeof(*p));
    int ret = -ENOMEM;
    if (s == NULL || p == NULL)
        goto Exit;
    p->key_direction = -1;
    p->security_level = -1;
    p->mssfix = -1;
    p->ping = p->ping_restart = p->ping_exit = -1;
    p->reneg_sec = -1;
    p->hand_window = 60;
    p->tran_window = 3600;
    p->tun_mtu = 1500;
    memcpy(p->auth, "SHA1", 5);
    s->p = p;
    s->dir = dir;
    s->strict = strict;
    s->e = reterr;
    s->port = 1194;
    ret = len > CV_PROFILE_MAX_BYTES
              ? fail(s, CV_E_LIMIT, "larger than %u bytes", CV_PROFILE_MAX_BYTES)
              : run_lines(s, text, len);
    if (ret == 0)
        ret = finish(s);
Exit:
    if (ret == -ENOMEM)
        snprintf(reterr->text, sizeof(reterr->text), "out of memory");
    if (s != NULL)
        cv_secret_clear(s->words, sizeof(s->words));
    cv_free(s);
    if (ret == 0)
        *ret_profile = p;
    else
        cv_profile_free(p);
    return ret;
}

int cv_profile_load(const char *path, bool strict, struct cv_profile_error *reterr,
                    struct cv_profile **ret_profile)
{
    memset(reterr, 0, sizeof(*reterr));
    char *data = NULL;
    size_t len = 0;
    int ret = cv_file_read(path, CV_PROFILE_MAX_BYTES, &data, &len);
    if (ret != 0) {
        snprintf(reterr->text, sizeof(reterr->text), "cannot be read: %s", cv_err_text(ret));
        return ret;
    }
    const char *slash = strrchr(path, '/');
    cv_auto_free char *dir = slash == NULL   ? cv_strdup(".")
                             : slash == path ? cv_strdup("/")
                                             : cv_strndup(path, (size_t)(slash - path));
    ret = cv_profile_parse(data, len, dir, strict, reterr, ret_profile);
    cv_secret_clear(data, len);
    cv_free(data);
    return ret;
}

char *cv_profile_error_format(const struct cv_profile_error *e, const char *path, char *out,
                              size_t cap)
{
    char at[24] = "";
    if (e->line > 0)
        snprintf(at, sizeof(at), ":%u", e->line);
    if (e->directive[0] != '\0')
        snprintf(out, cap, "%s%s: '%s': %s", path, at, e->directive, e->text);
    else
        snprintf(out, cap, "%s%s: %s", path, at, e->text);
    return out;
}

void cv_profile_free(struct cv_profile *p)
{
    if (p == NULL)
        return;
    cv_free(p->ca);
    cv_free(p->cert);
    cv_secret_free(p->key);
    cv_free(p->extra_certs);
    cv_free(p->crl);
    cv_secret_free(p->tls_auth);
    cv_secret_free(p->tls_crypt);
    cv_secret_free(p->tls_crypt_v2);
    cv_free(p->username);
    cv_secret_free(p->password);
    cv_free(p->tls_cipher);
    cv_free(p->tls_ciphersuites);
    cv_free(p->tls_groups);
    cv_free(p);
}
