#include "flow/flow.h"

#include <errno.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "flow/flow_priv.h"

#include "common/poison.h"

struct cv_flow {
    struct cv_session *session; /* borrowed; holds the egress */
    cv_flow_cb cb;
    void *arg;
    int64_t start_us; /* when the dial began */
    struct cv_target target;
    struct cv_dial dial;
};

static void on_dial_done(struct cv_dial *d);

/* One line from which the decision can be repeated with 'culvert explain'. */
static void log_decision(const struct cv_session *s, const struct cv_target *target)
{
    char text[CV_TARGET_STRLEN];
    cv_debug("flow",
             "decided session=%016llx user='%s' target=%s policy='%s' route=%d verdict='%s' "
             "snapshot=%llu sniffed='%s'",
             (unsigned long long)s->id, s->account->name->s, cv_target_format(target, text),
             cv_rcstr_text(s->policy_id), (int)s->route, s->decision->s,
             (unsigned long long)s->snapshot_version, cv_rcstr_text(s->sniffed_host));
}

/* Everything about the verdict comes from this one policy, whose version is kept with it. */
void cv_flow_keep_verdict(struct cv_session *s, const struct cv_snapshot *snapshot,
                          const struct cv_verdict *v)
{
    s->snapshot_version = cv_snapshot_version(snapshot);
    s->route = v->route;
    s->by_sniffed = v->by_sniffed;
    cv_rcstr_unref(s->policy_id);
    s->policy_id =
        v->policy != UINT32_MAX ? cv_rcstr_ref(cv_snapshot_policy_id(snapshot, v->policy)) : NULL;
    cv_rcstr_unref(s->decision);
    s->decision = cv_rcstr_ref(cv_verdict_label(snapshot, v));
}

/* 0 when the session may be dialled by the verdict and holds a permit, else the stage and code. */
int cv_flow_admit(struct cv_session *s, const struct cv_user_def *user, const struct cv_verdict *v,
                  enum cv_stage *ret_stage)
{
    if (user != NULL && user->expire_day < cv_worker_today(s->worker)) {
        *ret_stage = CV_STAGE_AUTH;
        return CV_E_EXPIRED;
    }
    if (user == NULL || (v != NULL && v->action == CV_ACTION_BLOCK)) {
        *ret_stage = CV_STAGE_POLICY;
        return CV_E_POLICY;
    }
    if (!s->permit && !cv_account_permit(s->account, user->max_connections)) {
        *ret_stage = CV_STAGE_LIMIT;
        return CV_E_LIMIT;
    }
    s->permit = true;
    return 0;
}

static void dial(struct cv_flow *f, struct cv_egress *egress, const struct cv_verdict *v)
{
    struct cv_session *s = f->session;
    int64_t timeout = s->worker->settings->connect_timeout_ms;
    s->egress = cv_egress_ref(egress);
    s->egress_stats = egress->stats;
    f->dial.names_special = v->names_special;
    f->dial.special = v->special;
    f->dial.client = s->client;
    f->dial.deadline_ms = timeout > 0 ? cv_loop_now(s->worker->loop) + timeout : INT64_MAX / 2;
    f->start_us = cv_clock_mono_us();
    cv_dial_start(egress, &f->dial);
}

/* The verdict of the policy in force. The user is looked up again: the policy may have changed
 * since the login, and the verdict must follow the one in force now, and only that one. */
static const struct cv_user_def *decide(struct cv_session *s, struct cv_active *active,
                                        const struct cv_target *target, struct cv_verdict *ret_v)
{
    struct cv_host sniffed;
    uint32_t index =
        cv_snapshot_user_find(active->snapshot, s->account->name->s, s->account->name->len);

    s->sniff_routes = s->sniffed_host != NULL;
    cv_decide(active->snapshot, index, &target->host, cv_session_sniffed(s, &sniffed), ret_v);
    cv_flow_keep_verdict(s, active->snapshot, ret_v);
    if (CV_LOG_DEBUG <= cv_log_level())
        log_decision(s, target);
    return index != CV_USER_NONE ? cv_snapshot_user(active->snapshot, index) : NULL;
}

int cv_flow_screen(struct cv_session *s, const struct cv_target *target)
{
    struct cv_verdict v;
    enum cv_stage stage = CV_STAGE_NONE;
    const struct cv_user_def *user = decide(s, cv_active_get(s->worker->node->active), target, &v);
    /* For an address that only the default action blocks, a name may say otherwise. */
    if (v.route < 0 && cv_host_is_ip(&target->host))
        v.action = CV_ACTION_DIRECT;
    int err = cv_flow_admit(s, user, &v, &stage);
    cv_session_fail(s, stage, err);
    return err;
}

int cv_flow_permit(struct cv_session *s)
{
    const struct cv_snapshot *snapshot = cv_active_get(s->worker->node->active)->snapshot;
    uint32_t index = cv_snapshot_user_find(snapshot, s->account->name->s, s->account->name->len);
    enum cv_stage stage = CV_STAGE_NONE;
    int err = cv_flow_admit(s, index != CV_USER_NONE ? cv_snapshot_user(snapshot, index) : NULL,
                            NULL, &stage);
    cv_session_fail(s, stage, err);
    return err;
}

int cv_flow_open(struct cv_session *s, const struct cv_target *target, cv_flow_cb cb, void *arg,
                 struct cv_flow **ret_flow)
{
    CV_ASSERT(s->account != NULL && s->egress == NULL);
    struct cv_flow *f = cv_try_alloc(sizeof(*f));
    if (f == NULL)
        return -ENOMEM;
    f->session = s;
    f->cb = cb;
    f->arg = arg;
    f->start_us = 0;
    f->target = *target;
    f->dial = (struct cv_dial){.worker = s->worker, .target = &f->target, .done = on_dial_done};
    s->state = CV_SESSION_DIAL;

    struct cv_active *active = cv_active_get(s->worker->node->active);
    struct cv_verdict v;
    const struct cv_user_def *user = decide(s, active, target, &v);
    enum cv_stage stage = CV_STAGE_NONE;
    int err = cv_flow_admit(s, user, &v, &stage);
    if (err != 0)
        cv_dial_fail_later(&f->dial, stage, err);
    else
        dial(f, v.action == CV_ACTION_DIRECT ? active->direct : active->egresses[v.egress], &v);
    *ret_flow = f;
    return 0;
}

static void keep_connection(struct cv_session *s, const struct cv_dial *d, int64_t took_us)
{
    if (d->stats != NULL)
        s->egress_stats = d->stats;
    s->outlet = cv_rcstr_ref(d->outlet != NULL ? d->outlet : s->egress->label);
    s->member = cv_rcstr_ref(d->member);
    s->peer = d->peer;
    s->dial_us = CV_MAX(took_us, 1);
    s->state = CV_SESSION_RELAY;
    cv_gauge_add(&s->egress_stats->row.active, 1);
    cv_counter_add(&s->egress_stats->row.sessions, 1);
    cv_histogram_observe_us(&s->egress_stats->dial, (uint64_t)s->dial_us);
}

static void on_dial_done(struct cv_dial *d)
{
    struct cv_flow *f = CV_CONTAINER_OF(d, struct cv_flow, dial);
    struct cv_session *s = f->session;
    cv_flow_cb cb = f->cb;
    void *arg = f->arg;
    int err = d->err;
    struct cv_stream *stream = err == 0 ? d->stream : NULL;
    struct cv_endpoint local = d->local;

    s->attempts = d->attempts;
    if (err == 0) {
        keep_connection(s, d, cv_clock_mono_us() - f->start_us);
    } else {
        s->peer = d->peer;
        cv_session_fail(s, d->stage, err);
    }
    cv_free(f);
    cb(arg, err, stream, &local);
}

void cv_flow_cancel(struct cv_flow *f)
{
    if (f == NULL)
        return;
    f->session->attempts = f->dial.attempts;
    cv_dial_cancel(f->session->egress, &f->dial);
    cv_free(f);
}
