#include "policy/snapshot.h"

#include "common/alloc.h"
#include "policy/snapshot_priv.h"

#include "common/poison.h"

struct cv_snapshot *cv_snapshot_new_empty(void)
{
    struct cv_snapshot *s = cv_zalloc(sizeof(*s));

    s->refs = 1;
    return s;
}

struct cv_snapshot *cv_snapshot_ref(struct cv_snapshot *s)
{
    __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
    return s;
}

void cv_snapshot_unref(struct cv_snapshot *s)
{
    if (s != NULL && __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) == 0)
        cv_snapshot_free(s);
}

static void free_users(struct cv_snapshot *s)
{
    for (uint32_t i = 0; s->users != NULL && i < s->n_users; i++) {
        cv_rcstr_unref(s->users[i].name);
        cv_rcstr_unref(s->users[i].password);
    }
    for (uint32_t i = 0; s->frontends != NULL && i < s->n_frontends; i++) {
        cv_rcstr_unref(s->frontends[i].proto);
        cv_rcstr_unref(s->frontends[i].uuid);
        cv_rcstr_unref(s->frontends[i].password);
    }
    cv_symtab_done(&s->user_index);
    cv_free(s->users);
    cv_free(s->frontends);
}

static void free_egresses(struct cv_snapshot *s)
{
    for (uint32_t i = 0; s->egresses != NULL && i < s->n_egresses; i++) {
        cv_rcstr_unref(s->egresses[i].id);
        cv_rcstr_unref(s->egresses[i].label);
    }
    for (uint32_t i = 0; s->members != NULL && i < s->n_members; i++) {
        struct cv_chain_member *m = &s->members[i];
        cv_rcstr_unref(m->id);
        cv_rcstr_unref(m->backend.addr);
        cv_rcstr_unref(m->backend.username);
        cv_rcstr_unref(m->backend.password);
        cv_rcstr_unref(m->backend.label);
    }
    cv_free(s->egresses);
    cv_free(s->members);
}

void cv_snapshot_free(struct cv_snapshot *s)
{
    if (s == NULL)
        return;
    free_users(s);
    free_egresses(s);
    for (uint32_t i = 0; s->policies != NULL && i < s->n_policies; i++)
        cv_rcstr_unref(s->policies[i].id);
    cv_free(s->policies);
    cv_free(s->routes);
    cv_free(s->selector_texts);
    cv_free(s->selector_text);
    cv_index_done(&s->index);
    cv_free(s);
}

uint64_t cv_snapshot_version(const struct cv_snapshot *s)
{
    return s->version;
}

uint32_t cv_snapshot_n_users(const struct cv_snapshot *s)
{
    return s->n_users;
}

uint32_t cv_snapshot_n_policies(const struct cv_snapshot *s)
{
    return s->n_policies;
}

uint32_t cv_snapshot_n_egresses(const struct cv_snapshot *s)
{
    return s->n_egresses;
}

uint32_t cv_snapshot_n_selectors(const struct cv_snapshot *s)
{
    return s->n_selectors;
}

const struct cv_user_def *cv_snapshot_user(const struct cv_snapshot *s, uint32_t index)
{
    CV_ASSERT(index < s->n_users);
    return &s->users[index];
}

const struct cv_egress_def *cv_snapshot_egress(const struct cv_snapshot *s, uint32_t index)
{
    CV_ASSERT(index < s->n_egresses);
    return &s->egresses[index];
}

struct cv_rcstr *cv_snapshot_policy_id(const struct cv_snapshot *s, uint32_t policy)
{
    CV_ASSERT(policy < s->n_policies);
    return s->policies[policy].id;
}

uint32_t cv_snapshot_n_frontends(const struct cv_snapshot *s)
{
    return s->n_frontends;
}

const struct cv_frontend_def *cv_snapshot_frontend(const struct cv_snapshot *s, uint32_t index)
{
    CV_ASSERT(index < s->n_frontends);
    return &s->frontends[index];
}

uint32_t cv_snapshot_user_find(const struct cv_snapshot *s, const char *name, size_t len)
{
    return cv_symtab_find(&s->user_index, name, len);
}

static size_t rcstr_bytes(const struct cv_rcstr *r)
{
    return r != NULL ? sizeof(*r) + r->len + 1 : 0;
}

size_t cv_snapshot_bytes(const struct cv_snapshot *s)
{
    size_t n = sizeof(*s) + s->n_users * sizeof(*s->users) +
               s->n_frontends * sizeof(*s->frontends) + s->n_egresses * sizeof(*s->egresses) +
               s->n_members * sizeof(*s->members) + s->n_policies * sizeof(*s->policies) +
               s->n_routes * sizeof(*s->routes) + s->n_selector_texts * sizeof(*s->selector_texts) +
               s->selector_text_len + cv_symtab_bytes(&s->user_index) + cv_index_bytes(&s->index);

    for (uint32_t i = 0; i < s->n_users; i++)
        n += rcstr_bytes(s->users[i].name) + rcstr_bytes(s->users[i].password);
    for (uint32_t i = 0; i < s->n_frontends; i++)
        n += rcstr_bytes(s->frontends[i].uuid) + rcstr_bytes(s->frontends[i].password);
    for (uint32_t i = 0; i < s->n_egresses; i++)
        n += rcstr_bytes(s->egresses[i].id) + rcstr_bytes(s->egresses[i].label);
    for (uint32_t i = 0; i < s->n_members; i++)
        n += rcstr_bytes(s->members[i].id) + rcstr_bytes(s->members[i].backend.addr) +
             rcstr_bytes(s->members[i].backend.label);
    for (uint32_t i = 0; i < s->n_policies; i++)
        n += rcstr_bytes(s->policies[i].id);
    return n;
}
