/* Active health checks of egresses: from time to time a connection to a known target is opened
 * through the egress, or through each member of a chain, and closed at once. The result goes to the
 * member's state (member.h), as a dial's would; while a member is checked, no client's dial probes
 * it.
 *
 * The control thread owns the jobs and their clock. A job that is due is posted to a worker, whose
 * loop and resolver the dial needs, and posted back with its result; in between it belongs to the
 * worker. At most CV_CHECKS_RUNNING_MAX are on their way, the others wait for the next round, and
 * the times are spread by chance, so that many checks are no burst.
 *
 * Life: cv_checks_new(); cv_checks_bind() after each swap of the policy and each reload of the
 * config; to end: cv_checks_stop() on the control thread, then cv_checks_cancel() on each worker
 * while it still runs, then cv_checks_free(). */
#pragma once

#include "egress/member.h"
#include "flow/active.h"
#include "flow/worker.h"

#define CV_CHECKS_RUNNING_MAX 32
#define CV_CHECKS_JOBS_MAX    4096 /* 256 entries of the config, 16 members each */

struct cv_check_conf {
    const char *egress_id; /* of the snapshot; borrowed during the call */
    struct cv_target target;
    int64_t interval_ms, timeout_ms;
};

struct cv_checks;
/* 'loop' is control's, 'workers' are reached by cv_loop_post() only; all borrowed. */
struct cv_checks *cv_checks_new(struct cv_loop *loop, struct cv_worker *const *workers, size_t n,
                                struct cv_members *members);
/* Check these egresses of 'active' from now on, and no others. A job that was there before keeps
 * its place in time. Ids that it does not have are ignored. Control thread. */
void cv_checks_bind(struct cv_checks *cs, const struct cv_active *active,
                    const struct cv_check_conf *confs, size_t n);
/* The members that are checked and belong to no chain. */
void cv_checks_each_single(const struct cv_checks *cs, int64_t now_ms, cv_member_cb cb, void *arg);
/* No check begins any more. Control thread. NULL is accepted. */
void cv_checks_stop(struct cv_checks *cs);
/* On a worker's thread: give up its checks; they are handed back to control. 'cs': a struct
 * cv_checks, or NULL. */
void cv_checks_cancel(struct cv_worker *w, void *cs);
/* Let go; the memory goes when the last job has come back to control's loop. NULL is accepted. */
void cv_checks_free(struct cv_checks *cs);
