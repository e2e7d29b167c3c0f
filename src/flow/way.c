#include "flow/way.h"

#include <string.h>

#include "flow/flow_priv.h"

#include "common/poison.h"

static uint32_t decide(const struct cv_session *s, const struct cv_active *active,
                       const struct cv_target *target, struct cv_verdict *ret_v)
{
    const struct cv_rcstr *name = s->account->name;
    uint32_t user = cv_snapshot_user_find(active->snapshot, name->s, name->len);
    cv_decide(active->snapshot, user, &target->host, NULL, ret_v);
    return user;
}

/* The guard of the direct egress looks at what the matched selector names, so that is part of what
 * a connection is opened under. It is asked of the same policy that cv_flow_open() decides on; if
 * another one came into force in between, the connection will serve this one session only. */
int cv_way_open(struct cv_way *way, struct cv_session *s, const struct cv_target *target,
                cv_flow_cb cb, void *arg, struct cv_flow **ret_flow)
{
    struct cv_active_holder *holder = s->worker->node->active;
    struct cv_active *active = cv_active_get(holder);
    struct cv_verdict v;

    CV_ASSERT(way->host == NULL);
    (void)decide(s, active, target, &v);
    int ret = cv_flow_open(s, target, cb, arg, ret_flow);
    way->names_special = v.names_special;
    way->special = v.special;
    way->lasting = active == cv_active_get(holder);
    return ret;
}

void cv_way_keep(struct cv_way *way, const struct cv_session *s)
{
    way->host = cv_rcstr_ref(s->target_host);
    way->port = s->target_port;
    way->outlet = cv_rcstr_ref(s->outlet);
    way->member = cv_rcstr_ref(s->member);
    way->egress = cv_egress_ref(s->egress);
    way->account = cv_account_ref(s->account);
    way->stats = s->egress_stats;
    way->peer = s->peer;
}

/* Does the policy send the session the way on which the connection was opened? */
static bool fits(const struct cv_way *way, const struct cv_active *active,
                 const struct cv_verdict *v)
{
    if (v->action == CV_ACTION_BLOCK)
        return false;
    const struct cv_egress *egress =
        v->action == CV_ACTION_DIRECT ? active->direct : active->egresses[v->egress];
    return egress == way->egress && v->names_special == way->names_special &&
           (!v->names_special ||
            (v->special.len == way->special.len && cv_ip_equal(&v->special.ip, &way->special.ip)));
}

bool cv_way_join(const struct cv_way *way, struct cv_session *s, const struct cv_target *target)
{
    if (way->host == NULL || !way->lasting || way->account != s->account ||
        way->port != s->target_port || way->host->len != s->target_host->len ||
        memcmp(way->host->s, s->target_host->s, way->host->len) != 0)
        return false;
    struct cv_active *active = cv_active_get(s->worker->node->active);
    enum cv_stage stage;
    struct cv_verdict v;
    uint32_t user = decide(s, active, target, &v);
    if (user == CV_USER_NONE || !fits(way, active, &v) ||
        cv_flow_admit(s, cv_snapshot_user(active->snapshot, user), &v, &stage) != 0)
        return false;

    cv_flow_keep_verdict(s, active->snapshot, &v);
    s->egress = cv_egress_ref(way->egress);
    s->egress_stats = way->stats;
    s->outlet = cv_rcstr_ref(way->outlet);
    s->member = cv_rcstr_ref(way->member);
    s->peer = way->peer;
    s->state = CV_SESSION_RELAY;
    cv_gauge_add(&s->egress_stats->row.active, 1);
    cv_counter_add(&s->egress_stats->row.sessions, 1);
    return true;
}

void cv_way_leave(struct cv_session *s)
{
    cv_gauge_add(&s->egress_stats->row.active, -1);
    cv_egress_unref(s->egress);
    cv_rcstr_unref(s->outlet);
    cv_rcstr_unref(s->member);
    s->egress = NULL;
    s->egress_stats = NULL;
    s->outlet = s->member = NULL;
}

void cv_way_done(struct cv_way *way)
{
    cv_rcstr_unref(way->host);
    cv_rcstr_unref(way->outlet);
    cv_rcstr_unref(way->member);
    cv_egress_unref(way->egress);
    cv_account_unref(way->account);
    *way = (struct cv_way){0};
}
