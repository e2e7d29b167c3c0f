/* Users and their credentials for other front ends. */
#include "policy/compile_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/secret.h"
#include "policy/passwd.h"

#include "common/poison.h"

static int fail_user(struct cv_compile *c, const struct cv_document_user *u, const char *member,
                     const char *fmt, ...) CV_PRINTF(4, 5);

/* "user NAME: ..." at a member of the user. */
static int fail_user(struct cv_compile *c, const struct cv_document_user *u, const char *member,
                     const char *fmt, ...)
{
    struct cv_compile_path p;
    char text[256], name[CV_JSON_SHOWN];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    cv_compile_path_init(&p);
    cv_compile_path_str(cv_compile_path_key(&p, "users"), u->name);
    cv_compile_path_key(&p, member);
    return cv_compile_fail(c, CV_E_INVALID, &p, "user %s: %s", cv_json_show(u->name, name), text);
}

static int compile_policy_of(struct cv_compile *c, const struct cv_document_user *in,
                             struct cv_user_def *out)
{
    char shown[CV_JSON_SHOWN];

    if (cv_compile_trim(in->policy).len == 0)
        return fail_user(c, in, "policy", "policy is required");
    out->policy = cv_symtab_find(&c->policy_index, in->policy.s, in->policy.len);
    if (out->policy == CV_SYMTAB_NONE)
        return fail_user(c, in, "policy", "unknown policy \"%s\"", cv_json_show(in->policy, shown));
    return 0;
}

static int compile_expire(struct cv_compile *c, const struct cv_document_user *in,
                          struct cv_user_def *out)
{
    struct cv_json_str s = cv_compile_trim(in->expire);
    char shown[CV_JSON_SHOWN];

    out->expire_day = INT32_MAX;
    if (s.len == 0)
        return 0;
    if (cv_date_parse(s.s, s.len, &out->expire_day) != 0)
        return fail_user(c, in, "expire",
                         "bad expire \"%s\": must be a date of the calendar, YYYY-MM-DD",
                         cv_json_show(s, shown));
    return 0;
}

static int compile_frontends(struct cv_compile *c, const struct cv_document_user *in, uint32_t user)
{
    const struct cv_document_frontend *f = c->doc.frontends.base;
    struct cv_snapshot *s = c->s;

    for (uint32_t i = in->first_frontend; i < in->first_frontend + in->n_frontends; i++) {
        struct cv_frontend_def *out = &s->frontends[i];
        struct cv_json_str uuid = cv_compile_trim(f[i].uuid);
        int ret;
        out->user = user;
        /* Nearly always the same protocol as the one before: share the text. */
        if (i > 0 && s->frontends[i - 1].proto->len == f[i].proto.len &&
            memcmp(s->frontends[i - 1].proto->s, f[i].proto.s, f[i].proto.len) == 0)
            out->proto = cv_rcstr_ref(s->frontends[i - 1].proto);
        else if ((ret = cv_compile_str(c, f[i].proto, &out->proto)) != 0)
            return ret;
        if (uuid.len > 0 && (ret = cv_compile_secret(c, uuid, &out->uuid)) != 0)
            return ret;
        for (size_t j = 0; j < uuid.len; j++) {
            char *p = &out->uuid->s[j];
            if (*p >= 'A' && *p <= 'Z')
                *p = (char)(*p + ('a' - 'A'));
        }
        if ((ret = cv_compile_secret(c, f[i].password, &out->password)) != 0)
            return ret;
    }
    return 0;
}

static int compile_user(struct cv_compile *c, const struct cv_document_user *in, uint32_t index)
{
    struct cv_user_def *out = &c->s->users[index];
    struct cv_compile_path p;
    enum cv_passwd_kind kind;
    int ret;

    cv_compile_path_init(&p);
    cv_compile_path_str(cv_compile_path_key(&p, "users"), in->name);
    if ((ret = cv_compile_check_length(c, in->name, &p)) != 0 ||
        (ret = compile_policy_of(c, in, out)) != 0 || (ret = compile_expire(c, in, out)) != 0)
        return ret;
    if (cv_passwd_kind(in->password.s, in->password.len, &kind) != 0)
        return fail_user(c, in, "password",
                         "begins like a hashed password but is not one that this node takes: "
                         "sha256:<salt hex>:<hash hex> or $argon2id$v=19$m=,t=,p=$salt$hash");
    out->up_rate = in->up_rate;
    out->down_rate = in->down_rate;
    out->max_connections = in->max_connections;
    if ((ret = cv_compile_str(c, in->name, &out->name)) != 0 ||
        (ret = cv_compile_secret(c, in->password, &out->password)) != 0)
        return ret;
    (void)cv_symtab_add(&c->s->user_index, out->name->s, out->name->len);
    return compile_frontends(c, in, index);
}

static int fail_claimed(struct cv_compile *c, uint32_t a, uint32_t b)
{
    const struct cv_frontend_def *fa = &c->s->frontends[a], *fb = &c->s->frontends[b];
    const struct cv_document_user *users = c->doc.users.base;
    struct cv_json_str proto = {fb->proto->s, fb->proto->len}, uuid = {fb->uuid->s, fb->uuid->len};
    char ps[CV_JSON_SHOWN], us[CV_JSON_SHOWN], na[CV_JSON_SHOWN], nb[CV_JSON_SHOWN];
    struct cv_compile_path p;

    cv_compile_path_init(&p);
    cv_compile_path_str(cv_compile_path_key(&p, "users"), users[fb->user].name);
    cv_compile_path_str(cv_compile_path_key(&p, "frontends"), proto);
    cv_compile_path_key(&p, "uuid");
    return cv_compile_fail(c, CV_E_INVALID, &p, "frontend %s uuid %s claimed by both %s and %s",
                           cv_json_show(proto, ps), cv_json_show(uuid, us),
                           cv_json_show(users[fa->user].name, na),
                           cv_json_show(users[fb->user].name, nb));
}

/* No two users have the same uuid in one protocol. */
static int check_uuids(struct cv_compile *c)
{
    struct cv_snapshot *s = c->s;
    struct cv_symtab seen = {0};
    uint32_t *owner = NULL, n = 0;
    char *keys = NULL;
    size_t len = 0;

    for (uint32_t i = 0; i < s->n_frontends; i++) {
        if (s->frontends[i].uuid != NULL)
            len += s->frontends[i].proto->len + 1 + s->frontends[i].uuid->len;
    }
    int ret = cv_compile_table(c, len, 1, &keys);
    if (ret == 0)
        ret = cv_compile_table(c, s->n_frontends, sizeof(*owner), &owner);
    if (ret == 0 && cv_symtab_init(&seen, s->n_frontends) != 0)
        ret = cv_compile_no_memory(c);
    len = 0;
    for (uint32_t i = 0; i < s->n_frontends && ret == 0; i++) {
        const struct cv_frontend_def *f = &s->frontends[i];
        if (f->uuid == NULL)
            continue;
        /* A text of the document has no NUL, so it separates. */
        char *key = keys + len;
        memcpy(key, f->proto->s, f->proto->len + 1);
        memcpy(key + f->proto->len + 1, f->uuid->s, f->uuid->len);
        size_t key_len = f->proto->len + 1 + f->uuid->len;
        len += key_len;
        uint32_t at = cv_symtab_add(&seen, key, key_len);
        if (at < n)
            ret = fail_claimed(c, owner[at], i);
        else
            owner[n++] = i;
    }
    cv_symtab_done(&seen);
    cv_free(owner);
    cv_secret_clear(keys, len);
    cv_free(keys);
    return ret;
}

int cv_compile_users(struct cv_compile *c)
{
    const struct cv_document_user *in = c->doc.users.base;
    struct cv_snapshot *s = c->s;
    uint32_t n = (uint32_t)c->doc.users.n;

    int ret = cv_compile_table(c, n, sizeof(*s->users), &s->users);
    if (ret == 0)
        ret = cv_compile_table(c, c->doc.frontends.n, sizeof(*s->frontends), &s->frontends);
    if (ret != 0)
        return ret;
    if (cv_symtab_init(&s->user_index, n) != 0)
        return cv_compile_no_memory(c);
    s->n_users = n;
    s->n_frontends = (uint32_t)c->doc.frontends.n;
    for (uint32_t i = 0; i < n; i++) {
        ret = compile_user(c, &in[i], i);
        if (ret != 0)
            return ret;
    }
    return s->n_frontends > 0 ? check_uuids(c) : 0;
}
