#include "policy/document_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/poison.h"

#define SCHEMA 1

struct decoder {
    struct cv_document *doc;
    struct cv_json_error *err;
};

/* Decode one value of a list or map. */
typedef int (*decode_cb)(struct decoder *d, const struct cv_json *v);

static int no_memory(struct decoder *d, const struct cv_json *v)
{
    return cv_json_fail(d->err, -ENOMEM, &v->at, "no memory");
}

static int each(struct decoder *d, const struct cv_json *v, decode_cb fn)
{
    struct cv_json_iter it;
    struct cv_json child;

    for (cv_json_iter_init(&it, v); cv_json_next(&it, &child);) {
        int ret = fn(d, &child);
        if (ret != 0)
            return ret;
    }
    return 0;
}

static struct cv_json_str key_of(const struct cv_json *v)
{
    return (struct cv_json_str){v->at.key, v->at.key_len};
}

static bool str_is(struct cv_json_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.s, text, s.len) == 0;
}

/* The place of a member that is missing, or must be. */
static struct cv_json_at member_at(const struct cv_json *obj, const char *name)
{
    return (struct cv_json_at){&obj->at, name, strlen(name), 0};
}

static int decode_frontend(struct decoder *d, const struct cv_json *v)
{
    static const struct cv_json_field fields[] = {
        {"uuid", CV_JSON_STR, offsetof(struct cv_document_frontend, uuid), .nullable = true},
        {"password", CV_JSON_STR, offsetof(struct cv_document_frontend, password),
         .nullable = true},
    };
    struct cv_document_frontend *f = cv_vec_add(&d->doc->frontends, 1, sizeof(*f));

    if (f == NULL)
        return no_memory(d, v);
    f->proto = key_of(v);
    return cv_json_read(v, fields, CV_ARRAY_SIZE(fields), false, f, d->err);
}

static int decode_user(struct decoder *d, const struct cv_json *v)
{
    struct user {
        struct cv_document_user u;
        struct cv_json frontends;
    } in = {.u = {.name = key_of(v)}};
    static const struct cv_json_field fields[] = {
        {"password", CV_JSON_STR, offsetof(struct user, u.password), .required = true},
        {"policy", CV_JSON_STR, offsetof(struct user, u.policy), .required = true},
        {"expire", CV_JSON_STR, offsetof(struct user, u.expire), .nullable = true},
        {"up_rate", CV_JSON_UINT, offsetof(struct user, u.up_rate), .max = INT64_MAX},
        {"down_rate", CV_JSON_UINT, offsetof(struct user, u.down_rate), .max = INT64_MAX},
        {"max_connections", CV_JSON_UINT, offsetof(struct user, u.max_connections),
         .max = INT64_MAX},
        {"frontends", CV_JSON_OBJECT, offsetof(struct user, frontends)},
    };

    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret != 0)
        return ret;
    in.u.first_frontend = (uint32_t)d->doc->frontends.n;
    in.u.n_frontends = (uint32_t)cv_json_size(&in.frontends);
    ret = each(d, &in.frontends, decode_frontend);
    if (ret != 0)
        return ret;
    struct cv_document_user *u = cv_vec_add(&d->doc->users, 1, sizeof(*u));
    if (u == NULL)
        return no_memory(d, v);
    *u = in.u;
    return 0;
}

static int decode_action(struct decoder *d, const struct cv_json *v,
                         struct cv_document_action *ret_action)
{
    struct action {
        struct cv_json_str type, egress;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"type", CV_JSON_STR, offsetof(struct action, type), .required = true},
        {"egress", CV_JSON_STR, offsetof(struct action, egress), .nullable = true},
    };

    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret != 0)
        return ret;

    struct cv_json_at type_at = member_at(v, "type"), egress_at = member_at(v, "egress");
    struct cv_document_action a = {.egress = in.egress};
    char shown[CV_JSON_SHOWN];
    if (str_is(in.type, "egress")) {
        a.type = CV_ACTION_EGRESS;
        if (in.egress.s == NULL)
            return cv_json_fail(d->err, CV_E_INVALID, &egress_at,
                                "action type \"egress\" requires an \"egress\" id");
    } else if (str_is(in.type, "direct") || str_is(in.type, "block")) {
        a.type = str_is(in.type, "direct") ? CV_ACTION_DIRECT : CV_ACTION_BLOCK;
        if (in.egress.s != NULL)
            return cv_json_fail(d->err, CV_E_INVALID, &egress_at,
                                "action type \"%s\" must not set \"egress\"", in.type.s);
    } else {
        return cv_json_fail(d->err, CV_E_INVALID, &type_at,
                            "unknown action type \"%s\" (\"egress\", \"direct\" or \"block\")",
                            cv_json_show(in.type, shown));
    }
    *ret_action = a;
    return 0;
}

static int decode_selector(struct decoder *d, const struct cv_json *v)
{
    struct cv_json_str *s = cv_vec_add(&d->doc->selectors, 1, sizeof(*s));

    return s != NULL ? cv_json_as_str(v, s, d->err) : no_memory(d, v);
}

static int decode_route(struct decoder *d, const struct cv_json *v)
{
    struct route {
        struct cv_json selectors, action;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"selectors", CV_JSON_ARRAY, offsetof(struct route, selectors)},
        {"action", CV_JSON_OBJECT, offsetof(struct route, action), .required = true},
    };
    struct cv_document_route *r = cv_vec_add(&d->doc->routes, 1, sizeof(*r));

    if (r == NULL)
        return no_memory(d, v);
    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret != 0)
        return ret;
    r->first_selector = (uint32_t)d->doc->selectors.n;
    r->n_selectors = (uint32_t)cv_json_size(&in.selectors);
    ret = decode_action(d, &in.action, &r->action);
    if (ret != 0)
        return ret;
    return each(d, &in.selectors, decode_selector);
}

static int decode_policy(struct decoder *d, const struct cv_json *v)
{
    struct policy {
        struct cv_json routes, default_action;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"routes", CV_JSON_ARRAY, offsetof(struct policy, routes)},
        {"default_action", CV_JSON_OBJECT, offsetof(struct policy, default_action),
         .nullable = true},
    };
    struct cv_document_policy *p = cv_vec_add(&d->doc->policies, 1, sizeof(*p));

    if (p == NULL)
        return no_memory(d, v);
    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret != 0)
        return ret;
    p->id = key_of(v);
    p->default_action.type = CV_ACTION_DIRECT;
    p->first_route = (uint32_t)d->doc->routes.n;
    p->n_routes = (uint32_t)cv_json_size(&in.routes);
    if (cv_json_is_present(&in.default_action)) {
        ret = decode_action(d, &in.default_action, &p->default_action);
        if (ret != 0)
            return ret;
    }
    return each(d, &in.routes, decode_route);
}

static int decode_backend(struct decoder *d, const struct cv_json *v, struct cv_document_member *m)
{
    static const struct cv_json_field fields[] = {
        {"kind", CV_JSON_STR, offsetof(struct cv_document_member, kind), .required = true},
        {"addr", CV_JSON_STR, offsetof(struct cv_document_member, addr), .required = true},
        {"username", CV_JSON_STR, offsetof(struct cv_document_member, username), .nullable = true},
        {"password", CV_JSON_STR, offsetof(struct cv_document_member, password), .nullable = true},
        {"tls", CV_JSON_BOOL, offsetof(struct cv_document_member, tls)},
        {"skip_cert_verify", CV_JSON_BOOL, offsetof(struct cv_document_member, skip_cert_verify)},
    };

    return cv_json_read(v, fields, CV_ARRAY_SIZE(fields), false, m, d->err);
}

static int decode_member(struct decoder *d, const struct cv_json *v)
{
    struct member {
        struct cv_json_str id;
        uint64_t priority;
        struct cv_json backend;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"id", CV_JSON_STR, offsetof(struct member, id), .required = true},
        {"priority", CV_JSON_UINT, offsetof(struct member, priority), .required = true,
         .max = UINT32_MAX},
        {"backend", CV_JSON_OBJECT, offsetof(struct member, backend), .required = true},
    };
    struct cv_document_member *m = cv_vec_add(&d->doc->members, 1, sizeof(*m));

    if (m == NULL)
        return no_memory(d, v);
    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), false, &in, d->err);
    if (ret != 0)
        return ret;
    m->id = in.id;
    m->priority = in.priority;
    return decode_backend(d, &in.backend, m);
}

/* "<type> requires <need>" and "<type> must not set <other>". */
static int check_union(struct decoder *d, const struct cv_json *v, const char *type,
                       const struct cv_json *need, const char *need_name, const char *article,
                       const struct cv_json *other, const char *other_name)
{
    struct cv_json_at need_at = member_at(v, need_name), other_at = member_at(v, other_name);

    if (!cv_json_is_present(need))
        return cv_json_fail(d->err, CV_E_INVALID, &need_at, "egress type \"%s\" requires %s\"%s\"",
                            type, article, need_name);
    if (cv_json_is_present(other))
        return cv_json_fail(d->err, CV_E_INVALID, &other_at,
                            "egress type \"%s\" must not set \"%s\"", type, other_name);
    return 0;
}

static int decode_egress(struct decoder *d, const struct cv_json *v, struct cv_vec *to)
{
    struct egress {
        struct cv_json_str type;
        struct cv_json backend, members;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"type", CV_JSON_STR, offsetof(struct egress, type), .required = true},
        {"backend", CV_JSON_OBJECT, offsetof(struct egress, backend), .nullable = true},
        {"members", CV_JSON_ARRAY, offsetof(struct egress, members), .nullable = true},
    };
    struct cv_document_egress *e = cv_vec_add(to, 1, sizeof(*e));

    if (e == NULL)
        return no_memory(d, v);
    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret != 0)
        return ret;
    e->id = key_of(v);
    e->first_member = (uint32_t)d->doc->members.n;
    if (str_is(in.type, "upstream")) {
        ret = check_union(d, v, "upstream", &in.backend, "backend", "a ", &in.members, "members");
        if (ret != 0)
            return ret;
        e->n_members = 1;
        struct cv_document_member *m = cv_vec_add(&d->doc->members, 1, sizeof(*m));
        return m != NULL ? decode_backend(d, &in.backend, m) : no_memory(d, v);
    }
    if (str_is(in.type, "chain")) {
        ret = check_union(d, v, "chain", &in.members, "members", "", &in.backend, "backend");
        if (ret != 0)
            return ret;
        e->is_chain = true;
        e->n_members = (uint32_t)cv_json_size(&in.members);
        return each(d, &in.members, decode_member);
    }
    struct cv_json_at at = member_at(v, "type");
    char shown[CV_JSON_SHOWN];
    return cv_json_fail(d->err, CV_E_INVALID, &at,
                        "unknown egress type \"%s\" (\"upstream\" or \"chain\")",
                        cv_json_show(in.type, shown));
}

static int decode_base_egress(struct decoder *d, const struct cv_json *v)
{
    return decode_egress(d, v, &d->doc->egresses);
}

static int decode_override_egress(struct decoder *d, const struct cv_json *v)
{
    int ret = decode_egress(d, v, &d->doc->overrides);

    if (ret == 0)
        ((struct cv_document_egress *)d->doc->overrides.base)[d->doc->overrides.n - 1].is_override =
            true;
    return ret;
}

/* All overrides must decode; only this node's is kept. */
static int decode_override(struct decoder *d, const struct cv_json *v)
{
    struct override {
        struct cv_json egresses;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"egresses", CV_JSON_OBJECT, offsetof(struct override, egresses)},
    };
    struct cv_document *doc = d->doc;
    size_t n_overrides = doc->overrides.n, n_members = doc->members.n;

    int ret = cv_json_read(v, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret == 0)
        ret = each(d, &in.egresses, decode_override_egress);
    if (ret != 0)
        return ret;
    if (doc->node_id.len != v->at.key_len ||
        memcmp(doc->node_id.s, v->at.key, v->at.key_len) != 0) {
        doc->overrides.n = n_overrides;
        doc->members.n = n_members;
    }
    return 0;
}

static int decode_root(struct decoder *d, const struct cv_json *root)
{
    struct top {
        uint64_t schema_version, version;
        struct cv_json users, policies, egresses, overrides;
    } in = {0};
    static const struct cv_json_field fields[] = {
        {"schema_version", CV_JSON_UINT, offsetof(struct top, schema_version), .required = true,
         .max = UINT32_MAX},
        {"version", CV_JSON_UINT, offsetof(struct top, version), .required = true,
         .max = INT64_MAX},
        {"users", CV_JSON_OBJECT, offsetof(struct top, users)},
        {"routing_policies", CV_JSON_OBJECT, offsetof(struct top, policies)},
        {"egresses", CV_JSON_OBJECT, offsetof(struct top, egresses)},
        {"node_overrides", CV_JSON_OBJECT, offsetof(struct top, overrides)},
    };

    /* Before the members, which another schema may name otherwise: say first what is the matter. */
    uint64_t schema;
    if (cv_json_peek_uint(root, "schema_version", &schema) && schema != SCHEMA) {
        struct cv_json_at at = member_at(root, "schema_version");
        return cv_json_fail(d->err, CV_E_INVALID, &at,
                            "unsupported snapshot schema_version %" PRIu64
                            " (this node supports 1..=%d)",
                            schema, SCHEMA);
    }
    int ret = cv_json_read(root, fields, CV_ARRAY_SIZE(fields), true, &in, d->err);
    if (ret != 0)
        return ret;
    d->doc->version = in.version;
    d->doc->n_node_overrides = cv_json_size(&in.overrides);
    ret = each(d, &in.users, decode_user);
    if (ret == 0)
        ret = each(d, &in.policies, decode_policy);
    if (ret == 0)
        ret = each(d, &in.egresses, decode_base_egress);
    if (ret == 0)
        ret = each(d, &in.overrides, decode_override);
    return ret;
}

int cv_document_decode(struct cv_document *doc, const char *json, size_t len, const char *node_id,
                       struct cv_json_error *reterr)
{
    *doc = (struct cv_document){.node_id = {node_id, strlen(node_id)}};

    int ret = cv_json_parse(json, len, reterr, &doc->_json);
    if (ret != 0)
        return ret;
    struct decoder d = {.doc = doc, .err = reterr};
    struct cv_json root;
    cv_json_root(doc->_json, &root);
    return decode_root(&d, &root);
}

void cv_document_done(struct cv_document *doc)
{
    cv_vec_done(&doc->users);
    cv_vec_done(&doc->frontends);
    cv_vec_done(&doc->policies);
    cv_vec_done(&doc->routes);
    cv_vec_done(&doc->selectors);
    cv_vec_done(&doc->egresses);
    cv_vec_done(&doc->overrides);
    cv_vec_done(&doc->members);
    cv_json_free(doc->_json);
    doc->_json = NULL;
}
