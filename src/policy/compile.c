#include "policy/compile_priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "policy/selector.h"

#include "common/poison.h"

void cv_compile_path_init(struct cv_compile_path *p)
{
    p->n = 0;
    p->at[0] = (struct cv_json_at){0};
}

static struct cv_compile_path *push(struct cv_compile_path *p, const char *key, size_t len,
                                    size_t index)
{
    CV_ASSERT(p->n + 1 < CV_ARRAY_SIZE(p->at));
    p->at[p->n + 1] = (struct cv_json_at){&p->at[p->n], key, len, index};
    p->n++;
    return p;
}

struct cv_compile_path *cv_compile_path_key(struct cv_compile_path *p, const char *key)
{
    return push(p, key, strlen(key), 0);
}

struct cv_compile_path *cv_compile_path_str(struct cv_compile_path *p, struct cv_json_str key)
{
    return push(p, key.s, key.len, 0);
}

struct cv_compile_path *cv_compile_path_nth(struct cv_compile_path *p, size_t index)
{
    return push(p, NULL, 0, index);
}

int cv_compile_fail(struct cv_compile *c, int err, const struct cv_compile_path *p, const char *fmt,
                    ...)
{
    va_list ap;

    c->err->path[0] = '\0';
    if (p != NULL)
        cv_json_path_format(&p->at[p->n], c->err->path);
    va_start(ap, fmt);
    vsnprintf(c->err->text, sizeof(c->err->text), fmt, ap);
    va_end(ap);
    return err;
}

int cv_compile_no_memory(struct cv_compile *c)
{
    return cv_compile_fail(c, -ENOMEM, NULL, "no memory");
}

struct cv_json_str cv_compile_trim(struct cv_json_str s)
{
    cv_selector_trim(&s.s, &s.len);
    return s;
}

int cv_compile_table(struct cv_compile *c, size_t n, size_t size, void *ret_table)
{
    size_t bytes;
    void *p = NULL;

    if (CV_MUL_OVERFLOW(n, size, &bytes) || (n > 0 && (p = cv_try_zalloc(bytes)) == NULL))
        return cv_compile_no_memory(c);
    *(void **)ret_table = p;
    return 0;
}

int cv_compile_str(struct cv_compile *c, struct cv_json_str s, struct cv_rcstr **ret_str)
{
    struct cv_rcstr *r = s.s != NULL ? cv_rcstr_new(s.s, s.len) : NULL;

    if (r == NULL && s.s != NULL)
        return cv_compile_no_memory(c);
    *ret_str = r;
    return 0;
}

int cv_compile_secret(struct cv_compile *c, struct cv_json_str s, struct cv_rcstr **ret_str)
{
    struct cv_rcstr *r = s.s != NULL ? cv_rcstr_new_secret(s.s, s.len) : NULL;

    if (r == NULL && s.s != NULL)
        return cv_compile_no_memory(c);
    *ret_str = r;
    return 0;
}

int cv_compile_check_length(struct cv_compile *c, struct cv_json_str s,
                            const struct cv_compile_path *p)
{
    if (s.len <= CV_SNAPSHOT_MAX_TEXT)
        return 0;
    return cv_compile_fail(c, CV_E_LIMIT, p, "too long: %zu > %d bytes", s.len,
                           CV_SNAPSHOT_MAX_TEXT);
}

static int check_count(struct cv_compile *c, const char *member, const char *what, uint64_t n,
                       uint64_t max)
{
    struct cv_compile_path p;

    if (n <= max)
        return 0;
    cv_compile_path_init(&p);
    return cv_compile_fail(c, CV_E_LIMIT, cv_compile_path_key(&p, member),
                           "snapshot has too many %s: %llu > %llu", what, (unsigned long long)n,
                           (unsigned long long)max);
}

/* Put this node's overrides in the place of the egresses that they replace. */
static int merge_overrides(struct cv_compile *c)
{
    struct cv_document_egress *base = c->doc.egresses.base, *over = c->doc.overrides.base;

    if (c->doc.overrides.n == 0)
        return 0;
    struct cv_symtab ids;
    if (cv_symtab_init(&ids, (uint32_t)c->doc.egresses.n) != 0)
        return cv_compile_no_memory(c);
    for (size_t i = 0; i < c->doc.egresses.n; i++)
        (void)cv_symtab_add(&ids, base[i].id.s, base[i].id.len);

    int ret = 0;
    for (size_t i = 0; i < c->doc.overrides.n && ret == 0; i++) {
        struct cv_compile_path p;
        char id[CV_JSON_SHOWN];
        uint32_t at = cv_symtab_find(&ids, over[i].id.s, over[i].id.len);
        cv_compile_path_init(&p);
        cv_compile_path_key(&p, "node_overrides");
        cv_compile_path_str(&p, c->doc.node_id);
        cv_compile_path_key(&p, "egresses");
        cv_compile_path_str(&p, over[i].id);
        if (cv_compile_trim(over[i].id).len == 0)
            ret = cv_compile_fail(c, CV_E_INVALID, &p, "node override egress id is required");
        else if (at == CV_SYMTAB_NONE)
            ret = cv_compile_fail(c, CV_E_INVALID, &p,
                                  "node override egress \"%s\" does not replace an existing base "
                                  "egress",
                                  cv_json_show(over[i].id, id));
        else
            base[at] = over[i];
    }
    cv_symtab_done(&ids);
    return ret;
}

/* The order of the checks is that of Rove, so that of several faults the same one is reported. */
static int build(struct cv_compile *c)
{
    int ret = check_count(c, "users", "users", c->doc.users.n, CV_SNAPSHOT_MAX_USERS);

    if (ret == 0)
        ret = check_count(c, "routing_policies", "routing policies", c->doc.policies.n,
                          CV_SNAPSHOT_MAX_POLICIES);
    if (ret == 0)
        ret = check_count(c, "node_overrides", "node overrides", c->doc.n_node_overrides,
                          CV_SNAPSHOT_MAX_OVERRIDES);
    if (ret == 0)
        ret = merge_overrides(c);
    if (ret == 0)
        ret = check_count(c, "egresses", "egresses", c->doc.egresses.n, CV_SNAPSHOT_MAX_EGRESSES);
    if (ret == 0)
        ret = cv_compile_egresses(c);
    if (ret == 0)
        ret = cv_compile_policies(c);
    if (ret == 0)
        ret = cv_compile_users(c);
    return ret;
}

static int decode(struct cv_compile *c, const char *json, size_t len, const char *node_id)
{
    struct cv_json_error e = {0};
    int ret = cv_document_decode(&c->doc, json, len, node_id, &e);

    if (ret == 0)
        return 0;
    c->err->stage = CV_SNAPSHOT_DECODE;
    c->err->line = e.line;
    c->err->column = e.column;
    snprintf(c->err->path, sizeof(c->err->path), "%s", e.path);
    snprintf(c->err->text, sizeof(c->err->text), "%s", e.text);
    return ret;
}

int cv_snapshot_compile(const char *json, size_t len, const char *node_id,
                        struct cv_snapshot_error *reterr, struct cv_snapshot **ret_snapshot)
{
    struct cv_snapshot_error unused;
    struct cv_compile c = {.err = reterr != NULL ? reterr : &unused};

    *c.err = (struct cv_snapshot_error){0};
    if (len > CV_SNAPSHOT_MAX_BYTES) {
        c.err->stage = CV_SNAPSHOT_READ;
        return cv_compile_fail(&c, CV_E_LIMIT, NULL, "snapshot is too large: %zu > %u bytes", len,
                               CV_SNAPSHOT_MAX_BYTES);
    }
    int ret = decode(&c, json, len, node_id);
    if (ret == 0) {
        c.err->stage = CV_SNAPSHOT_COMPILE;
        c.s = cv_snapshot_new_empty();
        c.s->version = c.doc.version;
        ret = build(&c);
    }
    cv_document_done(&c.doc);
    cv_symtab_done(&c.egress_index);
    cv_symtab_done(&c.policy_index);
    if (ret != 0) {
        cv_snapshot_unref(c.s);
        return ret;
    }
    *c.err = (struct cv_snapshot_error){0};
    *ret_snapshot = c.s;
    return 0;
}
