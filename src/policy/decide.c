#include "policy/decide.h"

#include <stdio.h>

#include "policy/selector.h"
#include "policy/snapshot_priv.h"

#include "common/poison.h"

/* Not part of any snapshot, so never released: the reference that they start with is kept. */
static struct cv_rcstr label_direct = {._refs = 1, .len = sizeof("direct") - 1, .s = "direct"};
static struct cv_rcstr label_block = {._refs = 1, .len = sizeof("block") - 1, .s = "block"};

static const struct cv_action *route_action(const struct cv_snapshot *s, uint32_t policy,
                                            const struct cv_index_hit *hit)
{
    return &s->routes[s->policies[policy].first_route + hit->route].action;
}

static bool hit_exists(const struct cv_index_hit *hit)
{
    return hit->route != UINT32_MAX;
}

static bool hit_blocks(const struct cv_snapshot *s, uint32_t policy, const struct cv_index_hit *hit)
{
    return hit_exists(hit) && route_action(s, policy, hit)->type == CV_ACTION_BLOCK;
}

/* The verdict is what route 'hit' of 'host' says. */
static void take(const struct cv_snapshot *s, const struct cv_host *host,
                 const struct cv_index_hit *hit, bool by_sniffed, struct cv_verdict *v)
{
    const struct cv_action *a = route_action(s, v->policy, hit);

    v->action = a->type;
    v->egress = a->egress;
    v->route = (int32_t)hit->route;
    v->by_sniffed = by_sniffed;
    if (cv_host_is_ip(host) && cv_prefix_is_special(&hit->prefix)) {
        v->names_special = true;
        v->special = hit->prefix;
    }
}

void cv_decide(const struct cv_snapshot *s, uint32_t user, const struct cv_host *requested,
               const struct cv_host *sniffed, struct cv_verdict *ret_verdict)
{
    struct cv_verdict *v = ret_verdict;

    *v = (struct cv_verdict){.action = CV_ACTION_BLOCK, .policy = UINT32_MAX, .route = -1};
    if (user >= s->n_users)
        return;

    uint32_t policy = v->policy = s->users[user].policy;
    struct cv_index_hit r, n = {.route = UINT32_MAX};
    cv_index_find(&s->index, policy, requested, &r);
    if (hit_blocks(s, policy, &r)) {
        take(s, requested, &r, false, v);
        return;
    }
    if (sniffed != NULL)
        cv_index_find(&s->index, policy, sniffed, &n);
    if (hit_exists(&n) && (hit_blocks(s, policy, &n) || cv_host_is_ip(requested))) {
        take(s, sniffed, &n, true, v);
    } else if (hit_exists(&r)) {
        take(s, requested, &r, false, v);
    } else {
        v->action = s->policies[policy].default_action.type;
        v->egress = s->policies[policy].default_action.egress;
    }
}

/* Which selector of 'route' matches: its position, or UINT32_MAX. */
static uint32_t match_route(const struct cv_snapshot *s, const struct cv_route_def *route,
                            const struct cv_host *host, struct cv_selector_match *ret_match)
{
    struct cv_selector sel;

    for (uint32_t i = 0; i < route->n_selectors; i++) {
        const struct cv_selector_text *t = &s->selector_texts[route->first_selector + i];
        const char *text = s->selector_text + t->off;
        if (cv_selector_parse(text, t->len, &sel) != 0 || !cv_selector_matches(&sel, host))
            continue;
        ret_match->kind = sel.kind;
        ret_match->index = i;
        snprintf(ret_match->text, sizeof(ret_match->text), "%.*s", (int)t->len, text);
        return i;
    }
    return UINT32_MAX;
}

int32_t cv_decide_explain(const struct cv_snapshot *s, uint32_t policy, const struct cv_host *host,
                          struct cv_selector_match *ret_match)
{
    *ret_match = (struct cv_selector_match){.kind = CV_SEL_NONE};
    if (policy >= s->n_policies)
        return -1;
    const struct cv_policy_def *p = &s->policies[policy];
    for (uint32_t i = 0; i < p->n_routes; i++) {
        if (match_route(s, &s->routes[p->first_route + i], host, ret_match) != UINT32_MAX)
            return (int32_t)i;
    }
    return -1;
}

/* True: no host has it as its name or as the end of its name. */
static bool is_dead(const struct cv_selector *sel)
{
    struct cv_host host;
    if (sel->is_blank || sel->kind == CV_SEL_PREFIX || sel->kind == CV_SEL_KEYWORD)
        return false;
    return sel->kind == CV_SEL_NONE || cv_host_parse(sel->text, sel->len, &host) != 0 ||
           cv_host_is_ip(&host);
}

void cv_decide_each_dead(const struct cv_snapshot *s, cv_decide_dead_cb cb, void *arg)
{
    for (uint32_t p = 0; p < s->n_policies; p++) {
        for (uint32_t r = 0; r < s->policies[p].n_routes; r++) {
            const struct cv_route_def *route = &s->routes[s->policies[p].first_route + r];
            for (uint32_t i = 0; i < route->n_selectors; i++) {
                const struct cv_selector_text *t = &s->selector_texts[route->first_selector + i];
                const char *text = s->selector_text + t->off;
                struct cv_selector sel;
                if (cv_selector_parse(text, t->len, &sel) != 0 || !is_dead(&sel))
                    continue;
                struct cv_selector_match m = {.kind = sel.kind, .index = i};
                snprintf(m.text, sizeof(m.text), "%.*s", (int)t->len, text);
                cb(arg, cv_rcstr_text(s->policies[p].id), r, &m);
            }
        }
    }
}

struct cv_rcstr *cv_verdict_label(const struct cv_snapshot *s, const struct cv_verdict *v)
{
    switch (v->action) {
    case CV_ACTION_DIRECT:
        return &label_direct;
    case CV_ACTION_EGRESS:
        return cv_snapshot_egress(s, v->egress)->label;
    case CV_ACTION_BLOCK:
        break;
    }
    return &label_block;
}
