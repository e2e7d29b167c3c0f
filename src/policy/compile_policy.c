/* Routing policies: references to egresses, selectors, the index. */
#include "policy/compile_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "policy/selector.h"

#include "common/poison.h"

/* Where the selectors of all policies are gathered. */
struct gather {
    struct cv_index_rule *rules; /* owned */
    size_t n;
    struct cv_vec patterns; /* owned: the bytes of the rules */
    uint64_t counted;       /* selectors that are not blank */
};

static void route_path(const struct cv_document_policy *p, uint32_t route,
                       struct cv_compile_path *path)
{
    cv_compile_path_init(path);
    cv_compile_path_key(path, "routing_policies");
    cv_compile_path_str(path, p->id);
    cv_compile_path_nth(cv_compile_path_key(path, "routes"), route);
}

/* 'context' is "policy ID route I" or "policy ID default"; 'path' leads to the action. */
static int compile_action(struct cv_compile *c, const struct cv_document_action *in,
                          const char *context, struct cv_compile_path *path, struct cv_action *out)
{
    char shown[CV_JSON_SHOWN];

    *out = (struct cv_action){.type = in->type};
    if (in->type != CV_ACTION_EGRESS)
        return 0;
    struct cv_json_str id = cv_compile_trim(in->egress);
    cv_compile_path_key(path, "egress");
    if (id.len == 0)
        return cv_compile_fail(c, CV_E_INVALID, path, "%s: egress action requires an egress id",
                               context);
    out->egress = cv_symtab_find(&c->egress_index, id.s, id.len);
    if (out->egress == CV_SYMTAB_NONE)
        return cv_compile_fail(c, CV_E_INVALID, path, "%s: references unknown egress \"%s\"",
                               context, cv_json_show(id, shown));
    return 0;
}

/* Add a parsed selector to what the index is built from. */
static int add_rule(struct gather *g, uint32_t policy, uint32_t route,
                    const struct cv_selector *sel)
{
    size_t off = g->patterns.n;

    if (sel->kind == CV_SEL_NONE)
        return 0;
    if (sel->kind == CV_SEL_PREFIX) {
        int ret = cv_index_add_prefix(&g->patterns, &sel->prefix);
        if (ret != 0)
            return ret;
    } else {
        char *to = cv_vec_add(&g->patterns, sel->len, 1);
        if (to == NULL)
            return -ENOMEM;
        memcpy(to, sel->text, sel->len);
    }
    g->rules[g->n++] = (struct cv_index_rule){policy, route, (uint32_t)off, (uint8_t)sel->kind,
                                              (uint8_t)(g->patterns.n - off)};
    return 0;
}

static int compile_selector(struct cv_compile *c, struct gather *g, uint32_t policy, uint32_t route,
                            uint32_t index, bool *ret_blank)
{
    const struct cv_document_policy *p = (struct cv_document_policy *)c->doc.policies.base + policy;
    const struct cv_document_route *r =
        (struct cv_document_route *)c->doc.routes.base + p->first_route + route;
    struct cv_json_str text =
        ((struct cv_json_str *)c->doc.selectors.base)[r->first_selector + index];
    struct cv_selector sel;

    int ret = cv_selector_parse(text.s, text.len, &sel);
    if (ret == 0) {
        *ret_blank = sel.is_blank;
        return add_rule(g, policy, route, &sel) == 0 ? 0 : cv_compile_no_memory(c);
    }
    struct cv_compile_path path;
    char id[CV_JSON_SHOWN], shown[CV_JSON_SHOWN];
    route_path(p, route, &path);
    cv_compile_path_nth(cv_compile_path_key(&path, "selectors"), index);
    cv_json_show(p->id, id);
    if (ret == CV_E_INVALID)
        return cv_compile_fail(
            c, ret, &path, "policy %s route %" PRIu32 ": selectors: empty book: rule", id, route);
    return cv_compile_fail(c, CV_E_INVALID, &path,
                           "policy %s route %" PRIu32 ": selectors: \"%s\" needs an address book, "
                           "and this node has none",
                           id, route, cv_json_show(cv_compile_trim(text), shown));
}

static int compile_route(struct cv_compile *c, struct gather *g, uint32_t policy, uint32_t route,
                         struct cv_route_def *out)
{
    const struct cv_document_policy *p = (struct cv_document_policy *)c->doc.policies.base + policy;
    const struct cv_document_route *in =
        (struct cv_document_route *)c->doc.routes.base + p->first_route + route;
    struct cv_compile_path path;
    char id[CV_JSON_SHOWN], context[CV_JSON_SHOWN + 40];
    uint64_t before = g->counted;

    out->first_selector = in->first_selector;
    out->n_selectors = in->n_selectors;
    for (uint32_t i = 0; i < in->n_selectors; i++) {
        bool blank = false;
        int ret = compile_selector(c, g, policy, route, i, &blank);
        if (ret != 0)
            return ret;
        g->counted += !blank;
    }
    snprintf(context, sizeof(context), "policy %s route %" PRIu32, cv_json_show(p->id, id), route);
    route_path(p, route, &path);
    if (g->counted == before)
        return cv_compile_fail(c, CV_E_INVALID, cv_compile_path_key(&path, "selectors"),
                               "%s: at least one selector is required", context);
    cv_compile_path_key(&path, "action");
    return compile_action(c, &in->action, context, &path, &out->action);
}

static int compile_policy(struct cv_compile *c, struct gather *g, uint32_t policy)
{
    const struct cv_document_policy *in =
        (struct cv_document_policy *)c->doc.policies.base + policy;
    struct cv_policy_def *out = &c->s->policies[policy];
    struct cv_compile_path path;
    char id[CV_JSON_SHOWN], context[CV_JSON_SHOWN + 40];

    cv_compile_path_init(&path);
    cv_compile_path_key(&path, "routing_policies");
    cv_compile_path_str(&path, in->id);
    if (cv_compile_trim(in->id).len == 0)
        return cv_compile_fail(c, CV_E_INVALID, &path, "routing policy id is required");
    int ret = cv_compile_check_length(c, in->id, &path);
    if (ret == 0)
        ret = cv_compile_str(c, in->id, &out->id);
    if (ret != 0)
        return ret;
    (void)cv_symtab_add(&c->policy_index, in->id.s, in->id.len);
    out->first_route = in->first_route;
    out->n_routes = in->n_routes;
    for (uint32_t i = 0; i < in->n_routes; i++) {
        ret = compile_route(c, g, policy, i, &c->s->routes[in->first_route + i]);
        if (ret != 0)
            return ret;
    }
    snprintf(context, sizeof(context), "policy %s default", cv_json_show(in->id, id));
    cv_compile_path_key(&path, "default_action");
    return compile_action(c, &in->default_action, context, &path, &out->default_action);
}

/* Keep the selectors as they were written, for explain. */
static int keep_texts(struct cv_compile *c)
{
    const struct cv_json_str *in = c->doc.selectors.base;
    struct cv_snapshot *s = c->s;
    uint32_t n = (uint32_t)c->doc.selectors.n;
    size_t len = 0;

    for (uint32_t i = 0; i < n; i++)
        len += in[i].len;
    int ret = cv_compile_table(c, n, sizeof(*s->selector_texts), &s->selector_texts);
    if (ret == 0)
        ret = cv_compile_table(c, len, 1, &s->selector_text);
    if (ret != 0)
        return ret;
    s->n_selector_texts = n;
    s->selector_text_len = len;
    len = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->selector_texts[i] = (struct cv_selector_text){(uint32_t)len, (uint32_t)in[i].len};
        if (in[i].len > 0)
            memcpy(s->selector_text + len, in[i].s, in[i].len);
        len += in[i].len;
    }
    return 0;
}

/* Count before anything is allocated for them. */
static int check_selectors(struct cv_compile *c)
{
    const struct cv_json_str *in = c->doc.selectors.base;
    uint64_t n = 0;

    for (size_t i = 0; i < c->doc.selectors.n; i++)
        n += cv_compile_trim(in[i]).len > 0;
    c->s->n_selectors = (uint32_t)n;
    if (n <= CV_SNAPSHOT_MAX_SELECTORS)
        return 0;
    struct cv_compile_path path;
    cv_compile_path_init(&path);
    return cv_compile_fail(c, CV_E_LIMIT, cv_compile_path_key(&path, "routing_policies"),
                           "snapshot has too many policy rules: %" PRIu64 " > %d", n,
                           CV_SNAPSHOT_MAX_SELECTORS);
}

static int make_tables(struct cv_compile *c)
{
    struct cv_snapshot *s = c->s;

    if (cv_symtab_init(&c->policy_index, (uint32_t)c->doc.policies.n) != 0)
        return cv_compile_no_memory(c);
    int ret = cv_compile_table(c, c->doc.policies.n, sizeof(*s->policies), &s->policies);
    if (ret == 0)
        ret = cv_compile_table(c, c->doc.routes.n, sizeof(*s->routes), &s->routes);
    if (ret != 0)
        return ret;
    s->n_policies = (uint32_t)c->doc.policies.n;
    s->n_routes = (uint32_t)c->doc.routes.n;
    return 0;
}

int cv_compile_policies(struct cv_compile *c)
{
    struct gather g = {0};

    int ret = check_selectors(c);
    if (ret == 0)
        ret = make_tables(c);
    if (ret == 0)
        ret = cv_compile_table(c, c->s->n_selectors, sizeof(*g.rules), &g.rules);
    for (uint32_t i = 0; i < c->s->n_policies && ret == 0; i++)
        ret = compile_policy(c, &g, i);
    if (ret == 0)
        ret = keep_texts(c);
    if (ret == 0 && cv_index_build(&c->s->index, c->s->n_policies, g.rules, g.n, &g.patterns) != 0)
        ret = cv_compile_no_memory(c);
    cv_vec_done(&g.patterns);
    cv_free(g.rules);
    return ret;
}
