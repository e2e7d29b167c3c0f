#include "egress/check.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "common/rand.h"
#include "egress/egress.h"

#include "common/poison.h"

#define DOMAIN   "check"
#define FIRST_MS 5000 /* the first check comes within this, or the interval if that is shorter */
#define BUSY_MS  1000 /* too many are on their way: again within this */

enum job_state {
    JOB_WAITING = 1, /* we are here while the timer runs; all of it is control's */
    JOB_AWAY,        /* ... while it is with a worker */
    JOB_DROPPED,     /* the same, and it is not wanted any more when it comes back */
};

struct job {
    /* Control's at all times. */
    struct cv_list node; /* in checks.jobs, or nowhere when it is dropped */
    struct cv_checks *checks;
    struct cv_member *member; /* a reference */
    struct cv_egress *egress; /* a reference */
    struct cv_target target;
    int64_t interval_ms, timeout_ms;
    struct cv_timer timer;
    enum job_state state;
    bool single; /* of an egress that is no chain */
    bool seen;   /* while binding: it goes on */

    struct cv_task task; /* the way there and back */

    /* The worker's while it is away. */
    struct cv_worker *worker;
    struct cv_list running; /* in checks.running of the worker */
    struct cv_egress *via;  /* a reference */
    struct cv_target to;
    int64_t within_ms;
    struct cv_timer limit;
    struct cv_vital_try try;
    struct cv_dial dial;
};

struct cv_checks {
    struct cv_loop *loop;
    struct cv_worker *const *workers;
    size_t n_workers, next_worker;
    struct cv_members *members;
    struct cv_list jobs;
    size_t n_jobs, n_away;
    bool stopped, freed;
    struct cv_list running[CV_WORKERS_MAX]; /* each its worker's */
};

static void on_due(struct cv_timer *t);
static void on_there(struct cv_task *task);
static void on_dialled(struct cv_dial *d);
static void on_limit(struct cv_timer *t);
static void on_back(struct cv_task *task);

struct cv_checks *cv_checks_new(struct cv_loop *loop, struct cv_worker *const *workers, size_t n,
                                struct cv_members *members)
{
    struct cv_checks *cs = cv_zalloc(sizeof(*cs));
    CV_ASSERT(n > 0 && n <= CV_WORKERS_MAX);
    cs->loop = loop;
    cs->workers = workers;
    cs->n_workers = n;
    cs->members = members;
    cv_list_init(&cs->jobs);
    for (size_t i = 0; i < n; i++)
        cv_list_init(&cs->running[i]);
    return cs;
}

/* ---- the jobs, on the control thread ---- */

static int64_t spread(int64_t ms)
{
    return (int64_t)cv_rand_below((uint32_t)CV_MIN(ms, (int64_t)INT32_MAX) + 1);
}

static struct job *job_new(struct cv_checks *cs, struct cv_member *m, bool single)
{
    struct job *j = cv_try_zalloc(sizeof(*j));
    if (j == NULL)
        return NULL;
    j->checks = cs;
    j->member = cv_member_ref(m);
    j->single = single;
    j->state = JOB_WAITING;
    cv_timer_init(&j->timer, on_due);
    cv_timer_init(&j->limit, on_limit);
    cv_list_init(&j->running);
    cv_list_add_tail(&cs->jobs, &j->node);
    cs->n_jobs++;
    return j;
}

static void job_free(struct job *j)
{
    cv_member_unref(j->member);
    cv_egress_unref(j->egress);
    cv_free(j);
}

static void job_drop(struct job *j)
{
    cv_list_del(&j->node);
    j->checks->n_jobs--;
    atomic_store_explicit(&j->member->checked, false, memory_order_relaxed);
    if (j->state == JOB_WAITING) {
        cv_loop_timer_stop(j->checks->loop, &j->timer);
        job_free(j);
    } else {
        j->state = JOB_DROPPED;
    }
}

static void on_due(struct cv_timer *t)
{
    struct job *j = CV_CONTAINER_OF(t, struct job, timer);
    struct cv_checks *cs = j->checks;
    if (cs->n_away >= CV_CHECKS_RUNNING_MAX) {
        cv_loop_timer(cs->loop, t, 1 + spread(BUSY_MS));
        return;
    }
    j->state = JOB_AWAY;
    cs->n_away++;
    j->worker = cs->workers[cs->next_worker++ % cs->n_workers];
    j->via = cv_egress_ref(j->egress);
    j->to = j->target;
    j->within_ms = j->timeout_ms;
    j->task = (struct cv_task){.fn = on_there};
    cv_loop_post(j->worker->loop, &j->task);
}

static void on_back(struct cv_task *task)
{
    struct job *j = CV_CONTAINER_OF(task, struct job, task);
    struct cv_checks *cs = j->checks;
    cs->n_away--;
    if (j->state == JOB_DROPPED) {
        job_free(j);
    } else {
        j->state = JOB_WAITING;
        if (!cs->stopped)
            cv_loop_timer(cs->loop, &j->timer,
                          j->interval_ms - j->interval_ms / 10 + spread(j->interval_ms / 5));
    }
    if (cs->freed && cs->n_away == 0)
        cv_free(cs);
}

/* ---- a check, on a worker ---- */

static void on_there(struct cv_task *task)
{
    struct job *j = CV_CONTAINER_OF(task, struct job, task);
    struct cv_worker *w = j->worker;
    struct cv_member *m = j->member;
    int64_t now = cv_loop_now(w->loop);
    cv_list_add_tail(&j->checks->running[w->index], &j->running);
    (void)cv_member_begin(m, cv_member_word(m), CV_VITAL_CHECK, 0, now, &j->try);
    j->dial = (struct cv_dial){
        .worker = w, .target = &j->to, .deadline_ms = now + j->within_ms, .done = on_dialled};
    cv_loop_timer(w->loop, &j->limit, j->within_ms);
    cv_dial_start(j->via, &j->dial);
}

static void hand_back(struct job *j)
{
    cv_loop_timer_stop(j->worker->loop, &j->limit);
    cv_list_del(&j->running);
    cv_egress_unref(j->via);
    j->via = NULL;
    j->task = (struct cv_task){.fn = on_back};
    cv_loop_post(j->checks->loop, &j->task);
}

/* The target is known to be there, so whoever says that it is not is at fault himself. */
static void finish(struct job *j, enum cv_stage stage, int err)
{
    const struct cv_settings *s = j->worker->settings;
    struct cv_member *m = j->member;
    char text[CV_TARGET_STRLEN];
    cv_counter_add(&m->checks, 1);
    if (err != 0) {
        cv_counter_add(&m->checks_failed, 1);
        cv_debug(DOMAIN, "check failed egress='%s' member='%s' target='%s' stage='%s' error='%s'",
                 m->egress_id->s, cv_rcstr_text(m->id), cv_target_format(&j->to, text),
                 cv_stage_name(stage), cv_err_text(err));
    }
    cv_member_end(m, &j->try, cv_member_verdict(err, CV_BLAME_EGRESS), stage, err,
                  cv_loop_now(j->worker->loop), s->chain_backoff_ms, s->chain_backoff_max_ms);
    hand_back(j);
}

static void on_dialled(struct cv_dial *d)
{
    struct job *j = CV_CONTAINER_OF(d, struct job, dial);
    if (d->err == 0)
        cv_stream_close(d->stream, false);
    finish(j, d->stage, d->err);
}

static void on_limit(struct cv_timer *t)
{
    struct job *j = CV_CONTAINER_OF(t, struct job, limit);
    cv_dial_cancel(j->via, &j->dial);
    finish(j, CV_STAGE_DIAL, -ETIMEDOUT);
}

void cv_checks_cancel(struct cv_worker *w, void *arg)
{
    struct cv_checks *cs = arg;
    struct cv_list *it, *tmp;
    if (cs == NULL)
        return;
    CV_LIST_FOREACH_SAFE (it, tmp, &cs->running[w->index]) {
        struct job *j = CV_CONTAINER_OF(it, struct job, running);
        cv_dial_cancel(j->via, &j->dial);
        hand_back(j);
    }
}

/* ---- what is to be checked ---- */

static struct job *job_find(struct cv_checks *cs, const struct cv_member *m)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &cs->jobs) {
        struct job *j = CV_CONTAINER_OF(it, struct job, node);
        if (j->member == m)
            return j;
    }
    return NULL;
}

static void bind_member(struct cv_checks *cs, struct cv_member *m, struct cv_egress *e, bool single,
                        const struct cv_check_conf *conf)
{
    struct job *j = job_find(cs, m);
    bool fresh = j == NULL;
    if (fresh && cs->n_jobs < CV_CHECKS_JOBS_MAX)
        j = job_new(cs, m, single);
    if (j == NULL) {
        cv_warn(DOMAIN,
                "no room for the health check of a member, ignoring egress='%s' member='%s'",
                m->egress_id->s, cv_rcstr_text(m->id));
        return;
    }
    bool sooner = !fresh && conf->interval_ms < j->interval_ms && j->state == JOB_WAITING;
    cv_egress_unref(j->egress);
    j->egress = cv_egress_ref(e);
    j->target = conf->target;
    j->interval_ms = conf->interval_ms;
    j->timeout_ms = conf->timeout_ms;
    j->seen = true;
    atomic_store_explicit(&m->checked, true, memory_order_relaxed);
    if (fresh || sooner)
        cv_loop_timer(cs->loop, &j->timer,
                      1 + spread(CV_MIN(conf->interval_ms, (int64_t)FIRST_MS)));
}

static void bind_egress(struct cv_checks *cs, struct cv_egress *e, const struct cv_egress_def *def,
                        const struct cv_check_conf *conf)
{
    unsigned n = cv_egress_chain_count(e);
    struct cv_member *m;
    uint32_t priority;
    for (unsigned i = 0; i < n; i++) {
        struct cv_egress *link = cv_egress_chain_get(e, i, &m, &priority);
        bind_member(cs, m, link, false, conf);
    }
    if (n > 0)
        return;
    m = cv_members_get(cs->members, def->id, &def->members[0], cv_loop_now(cs->loop));
    if (m != NULL)
        bind_member(cs, m, e, true, conf);
    cv_member_unref(m);
}

void cv_checks_bind(struct cv_checks *cs, const struct cv_active *active,
                    const struct cv_check_conf *confs, size_t n)
{
    struct cv_list *it, *tmp;
    CV_ASSERT(!cs->stopped);
    CV_LIST_FOREACH (it, &cs->jobs)
        CV_CONTAINER_OF(it, struct job, node)->seen = false;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < active->n_egresses; k++) {
            const struct cv_egress_def *def = cv_snapshot_egress(active->snapshot, k);
            if (strcmp(def->id->s, confs[i].egress_id) != 0)
                continue;
            bind_egress(cs, active->egresses[k], def, &confs[i]);
            break;
        }
    }
    CV_LIST_FOREACH_SAFE (it, tmp, &cs->jobs) {
        struct job *j = CV_CONTAINER_OF(it, struct job, node);
        if (!j->seen)
            job_drop(j);
    }
}

void cv_checks_each_single(const struct cv_checks *cs, int64_t now_ms, cv_member_cb cb, void *arg)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &cs->jobs) {
        struct job *j = CV_CONTAINER_OF(it, struct job, node);
        struct cv_member_info info;
        if (!j->single)
            continue;
        cv_member_describe(j->member, 0, now_ms, &info);
        cb(arg, &info);
    }
}

/* ---- the end ---- */

void cv_checks_stop(struct cv_checks *cs)
{
    struct cv_list *it;
    if (cs == NULL)
        return;
    cs->stopped = true;
    CV_LIST_FOREACH (it, &cs->jobs)
        cv_loop_timer_stop(cs->loop, &CV_CONTAINER_OF(it, struct job, node)->timer);
}

void cv_checks_free(struct cv_checks *cs)
{
    struct cv_list *it, *tmp;
    if (cs == NULL)
        return;
    cs->stopped = true;
    CV_LIST_FOREACH_SAFE (it, tmp, &cs->jobs)
        job_drop(CV_CONTAINER_OF(it, struct job, node));
    cs->freed = true;
    if (cs->n_away == 0)
        cv_free(cs);
}
