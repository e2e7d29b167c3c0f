/* One direction of a session that keeps to its user's rate: a place in line at the rate (rate.h),
 * and a timer that tells when its turn has come.
 *
 * Before it reads, the direction asks cv_throttle_allow() how much it may; after it has moved bytes
 * it says cv_throttle_used(); when it stops for another reason than the rate, cv_throttle_rest().
 * While it waits it does not read, so its sender is stopped by flow control and nothing is kept. */
#pragma once

#include "flow/rate.h"
#include "flow/worker.h"

struct cv_throttle;
/* The direction's turn has come, or the rate has changed: ask again. From the loop only. */
typedef void (*cv_throttle_cb)(void *arg);

/* 'rate' is borrowed (outlives). 0 or -ENOMEM. */
int cv_throttle_new(struct cv_worker *w, struct cv_rate *rate, cv_throttle_cb cb, void *arg,
                    struct cv_throttle **ret_throttle) CV_MUST_CHECK;
void cv_throttle_free(struct cv_throttle *t); /* NULL: nothing */

/* Bytes that may be moved now; SIZE_MAX: any number. 0: none, and 'cb' will come. */
size_t cv_throttle_allow(struct cv_throttle *t);
void cv_throttle_used(struct cv_throttle *t, size_t n);
void cv_throttle_rest(struct cv_throttle *t);
/* Waits for its turn. NULL: does not. */
bool cv_throttle_is_waiting(const struct cv_throttle *t);

/* Rates may have changed: wake the directions of this worker that wait for a turn at an old one. */
void cv_throttle_recheck(struct cv_worker *w);
