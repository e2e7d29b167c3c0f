/* Egresses: kinds, credentials, chains. */
#include "policy/compile_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/poison.h"

/* The backend that is being compiled: for messages. */
struct place {
    const struct cv_document_egress *egress;
    const struct cv_document_member *member;
    size_t index; /* of the member in its chain */
};

static const struct {
    const char *name;
    enum cv_backend_kind kind;
} kinds[] = {
    {"http", CV_BACKEND_HTTP},       {"https", CV_BACKEND_HTTP},
    {"socks5", CV_BACKEND_SOCKS5},   {"socks", CV_BACKEND_SOCKS5},
    {"reverse", CV_BACKEND_REVERSE}, {"subnetra", CV_BACKEND_SUBNETRA},
    {"tunnel", CV_BACKEND_TUNNEL},
};

static void egress_path(struct cv_compile *c, const struct cv_document_egress *e,
                        struct cv_compile_path *p)
{
    cv_compile_path_init(p);
    if (e->is_override) {
        cv_compile_path_key(p, "node_overrides");
        cv_compile_path_str(p, c->doc.node_id);
    }
    cv_compile_path_key(p, "egresses");
    cv_compile_path_str(p, e->id);
}

static void member_path(struct cv_compile *c, const struct place *at, struct cv_compile_path *p)
{
    egress_path(c, at->egress, p);
    if (at->egress->is_chain)
        cv_compile_path_nth(cv_compile_path_key(p, "members"), at->index);
}

static int fail_backend(struct cv_compile *c, const struct place *at, const char *member,
                        const char *fmt, ...) CV_PRINTF(4, 5);

/* "egress ID: ..." or "chain ID member MID: ...", at a member of the backend. */
static int fail_backend(struct cv_compile *c, const struct place *at, const char *member,
                        const char *fmt, ...)
{
    struct cv_compile_path p;
    char text[256], id[CV_JSON_SHOWN], mid[CV_JSON_SHOWN];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    member_path(c, at, &p);
    cv_compile_path_key(cv_compile_path_key(&p, "backend"), member);
    cv_json_show(at->egress->id, id);
    if (!at->egress->is_chain)
        return cv_compile_fail(c, CV_E_INVALID, &p, "egress %s: %s", id, text);
    return cv_compile_fail(c, CV_E_INVALID, &p, "chain %s member %s: %s", id,
                           cv_json_show(cv_compile_trim(at->member->id), mid), text);
}

static int parse_kind(struct cv_compile *c, const struct place *at, enum cv_backend_kind *ret_kind)
{
    struct cv_json_str k = at->member->kind;
    char id[CV_JSON_SHOWN], mid[CV_JSON_SHOWN], shown[CV_JSON_SHOWN];

    for (size_t i = 0; i < CV_ARRAY_SIZE(kinds); i++) {
        if (strcasecmp(k.s, kinds[i].name) == 0) {
            *ret_kind = kinds[i].kind;
            return 0;
        }
    }
    if (strcasecmp(k.s, "chain") != 0)
        return fail_backend(
            c, at, "kind",
            "unsupported upstream kind \"%s\" (http, https, socks5, socks, reverse, "
            "subnetra or tunnel)",
            cv_json_show(k, shown));
    if (!at->egress->is_chain)
        return fail_backend(c, at, "kind",
                            "upstream backend must not be a chain (use \"type\":\"chain\")");
    struct cv_compile_path p;
    member_path(c, at, &p);
    cv_compile_path_key(cv_compile_path_key(&p, "backend"), "kind");
    return cv_compile_fail(
        c, CV_E_INVALID, &p, "chain %s: member %s backend must not be another chain",
        cv_json_show(at->egress->id, id), cv_json_show(cv_compile_trim(at->member->id), mid));
}

/* What a kind that does not dial a proxy must not have. */
static int check_bare(struct cv_compile *c, const struct place *at, const char *kind,
                      const char *why_no_login, const char *why_no_tls)
{
    const struct cv_document_member *m = at->member;

    if (m->username.s != NULL || m->password.s != NULL)
        return fail_backend(c, at, m->username.s != NULL ? "username" : "password",
                            "%s upstream must not set username/password (%s)", kind, why_no_login);
    if (m->tls || m->skip_cert_verify)
        return fail_backend(c, at, m->tls ? "tls" : "skip_cert_verify",
                            "%s upstream must not set tls/skip_cert_verify (%s)", kind, why_no_tls);
    return 0;
}

/* Only lengths: an address that cannot be dialled is Rove's business at dial time, and ours. */
static int check_proxy(struct cv_compile *c, const struct place *at)
{
    const struct cv_document_member *m = at->member;

    if (m->username.len > CV_BACKEND_MAX_CREDENTIAL)
        return fail_backend(c, at, "username", "longer than %d bytes", CV_BACKEND_MAX_CREDENTIAL);
    if (m->password.len > CV_BACKEND_MAX_CREDENTIAL)
        return fail_backend(c, at, "password", "longer than %d bytes", CV_BACKEND_MAX_CREDENTIAL);
    return 0;
}

static int check_backend(struct cv_compile *c, const struct place *at, enum cv_backend_kind kind)
{
    const struct cv_document_member *m = at->member;
    bool has_addr = cv_compile_trim(m->addr).len > 0;

    if (m->addr.len > CV_SNAPSHOT_MAX_TEXT)
        return fail_backend(c, at, "addr", "too long: %zu > %d bytes", m->addr.len,
                            CV_SNAPSHOT_MAX_TEXT);
    switch (kind) {
    case CV_BACKEND_HTTP:
    case CV_BACKEND_SOCKS5:
        return check_proxy(c, at);
    case CV_BACKEND_REVERSE:
        if (!has_addr)
            return fail_backend(c, at, "addr",
                                "reverse upstream requires a non-empty hop_id in addr");
        return check_bare(c, at, "reverse", "auth is the hop session token",
                          "QUIC transport already encrypts");
    case CV_BACKEND_TUNNEL:
        if (!has_addr)
            return fail_backend(c, at, "addr",
                                "tunnel upstream requires the name of a pool or tunnel in addr");
        return check_bare(c, at, "tunnel", "the node's own configuration has them",
                          "the tunnel already encrypts");
    case CV_BACKEND_SUBNETRA:
        return check_bare(c, at, "subnetra", "the overlay has its own keys",
                          "the overlay already encrypts");
    }
    return 0;
}

/* The name of the way out in logs and metrics. */
static int make_label(struct cv_compile *c, const char *prefix, const struct cv_rcstr *name,
                      struct cv_rcstr **ret_label)
{
    char text[16 + CV_SNAPSHOT_MAX_TEXT];
    int n = snprintf(text, sizeof(text), "%s%s", prefix, cv_rcstr_text(name));

    return cv_compile_str(c, (struct cv_json_str){text, (size_t)n}, ret_label);
}

static int compile_backend(struct cv_compile *c, const struct place *at, struct cv_backend *b)
{
    static const char *const label[] = {
        [CV_BACKEND_HTTP] = "upstream:",    [CV_BACKEND_SOCKS5] = "upstream:",
        [CV_BACKEND_REVERSE] = "reverse:",  [CV_BACKEND_TUNNEL] = "tunnel:",
        [CV_BACKEND_SUBNETRA] = "subnetra",
    };
    const struct cv_document_member *m = at->member;
    struct cv_json_str addr = m->addr;

    int ret = parse_kind(c, at, &b->kind);
    if (ret == 0)
        ret = check_backend(c, at, b->kind);
    if (ret != 0)
        return ret;
    b->tls = m->tls;
    b->skip_cert_verify = m->skip_cert_verify;
    if (b->kind == CV_BACKEND_REVERSE || b->kind == CV_BACKEND_TUNNEL)
        addr = cv_compile_trim(addr);
    ret = cv_compile_str(c, addr, &b->addr);
    if (ret == 0)
        ret = cv_compile_str(c, m->username, &b->username);
    if (ret == 0)
        ret = cv_compile_secret(c, m->password, &b->password);
    if (ret == 0)
        ret = make_label(c, label[b->kind], b->kind == CV_BACKEND_SUBNETRA ? NULL : b->addr,
                         &b->label);
    return ret;
}

/* Id and priority of member 'at' are new among the members before it. */
static int check_member(struct cv_compile *c, const struct place *at,
                        const struct cv_document_member *first)
{
    struct cv_json_str id = cv_compile_trim(at->member->id);
    char shown[CV_JSON_SHOWN], mid[CV_JSON_SHOWN];
    struct cv_compile_path p;

    cv_json_show(at->egress->id, shown);
    member_path(c, at, &p);
    if (id.len == 0)
        return cv_compile_fail(c, CV_E_INVALID, cv_compile_path_key(&p, "id"),
                               "chain %s: member id is required", shown);
    for (size_t i = 0; i < at->index; i++) {
        struct cv_json_str other = cv_compile_trim(first[i].id);
        if (other.len == id.len && memcmp(other.s, id.s, id.len) == 0)
            return cv_compile_fail(c, CV_E_INVALID, cv_compile_path_key(&p, "id"),
                                   "chain %s: duplicate member id \"%s\"", shown,
                                   cv_json_show(id, mid));
        if (first[i].priority == at->member->priority)
            return cv_compile_fail(c, CV_E_INVALID, cv_compile_path_key(&p, "priority"),
                                   "chain %s: duplicate member priority %" PRIu64, shown,
                                   at->member->priority);
    }
    return cv_compile_check_length(c, id, cv_compile_path_key(&p, "id"));
}

static int check_chain(struct cv_compile *c, const struct cv_document_egress *e)
{
    char id[CV_JSON_SHOWN];
    struct cv_compile_path p;

    egress_path(c, e, &p);
    cv_compile_path_key(&p, "members");
    if (e->n_members == 0)
        return cv_compile_fail(c, CV_E_INVALID, &p, "chain %s: must have at least one member",
                               cv_json_show(e->id, id));
    if (e->n_members > CV_CHAIN_MAX_MEMBERS)
        return cv_compile_fail(c, CV_E_LIMIT, &p, "chain %s: too many members: %" PRIu32 " > %d",
                               cv_json_show(e->id, id), e->n_members, CV_CHAIN_MAX_MEMBERS);
    return 0;
}

static void sort_members(struct cv_chain_member *m, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        struct cv_chain_member x = m[i];
        size_t j = i;
        for (; j > 0 && m[j - 1].priority > x.priority; j--)
            m[j] = m[j - 1];
        m[j] = x;
    }
}

static int compile_members(struct cv_compile *c, const struct cv_document_egress *e,
                           struct cv_chain_member *out)
{
    const struct cv_document_member *in = c->doc.members.base;

    for (uint32_t i = 0; i < e->n_members; i++) {
        struct place at = {e, &in[e->first_member + i], i};
        int ret = 0;
        if (e->is_chain) {
            ret = check_member(c, &at, &in[e->first_member]);
            if (ret == 0)
                ret = cv_compile_str(c, cv_compile_trim(at.member->id), &out[i].id);
            out[i].priority = (uint32_t)at.member->priority;
        }
        if (ret == 0)
            ret = compile_backend(c, &at, &out[i].backend);
        if (ret != 0)
            return ret;
    }
    sort_members(out, e->n_members);
    return 0;
}

static int compile_egress(struct cv_compile *c, const struct cv_document_egress *in,
                          struct cv_egress_def *out, struct cv_chain_member *members)
{
    struct cv_compile_path p;
    int ret;

    egress_path(c, in, &p);
    if (cv_compile_trim(in->id).len == 0)
        return cv_compile_fail(c, CV_E_INVALID, &p, "egress id is required");
    if ((ret = cv_compile_check_length(c, in->id, &p)) != 0 ||
        (in->is_chain && (ret = check_chain(c, in)) != 0))
        return ret;
    out->is_chain = in->is_chain;
    out->n_members = in->n_members;
    out->members = members;
    if ((ret = cv_compile_str(c, in->id, &out->id)) != 0 ||
        (ret = compile_members(c, in, members)) != 0)
        return ret;
    if (in->is_chain)
        return make_label(c, "chain:", out->id, &out->label);
    out->label = cv_rcstr_ref(members[0].backend.label);
    return 0;
}

int cv_compile_egresses(struct cv_compile *c)
{
    const struct cv_document_egress *in = c->doc.egresses.base;
    struct cv_snapshot *s = c->s;
    uint32_t n = (uint32_t)c->doc.egresses.n, used = 0;
    size_t n_members = 0;

    for (uint32_t i = 0; i < n; i++)
        n_members += in[i].n_members;
    if (cv_symtab_init(&c->egress_index, n) != 0)
        return cv_compile_no_memory(c);
    int ret = cv_compile_table(c, n, sizeof(*s->egresses), &s->egresses);
    if (ret == 0)
        ret = cv_compile_table(c, CV_MAX(n_members, 1u), sizeof(*s->members), &s->members);
    if (ret != 0)
        return ret;
    s->n_egresses = n;
    s->n_members = (uint32_t)n_members;
    for (uint32_t i = 0; i < n; i++) {
        ret = compile_egress(c, &in[i], &s->egresses[i], s->members + used);
        if (ret != 0)
            return ret;
        used += in[i].n_members;
        (void)cv_symtab_add(&c->egress_index, in[i].id.s, in[i].id.len);
    }
    return 0;
}
