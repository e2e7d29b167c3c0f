/* A question that the control thread asks workers: which sessions they have, or to end one.
 *
 * An ask has one part for each worker that is asked. A part travels: it is posted to the worker's
 * loop, does its work there on the sessions that this thread owns (in slices, so that 100,000
 * sessions stall no relay), and is posted back. Between the two posts it belongs to the worker, and
 * the control thread touches nothing of it but the flag that says nobody waits any more.
 *
 * The callback comes once, on the control thread, never from inside the start: when all parts are
 * back, or when the deadline has passed. Its receiver reads the result and lets go with
 * cv_ask_release(), which may also be called at any time before and then stops the callback. The
 * memory goes when nobody waits and the last part is back, so a worker that takes its time never
 * writes to freed memory. */
#pragma once

#include "flow/worker.h"

#define CV_ASK_DEADLINE_MS 5000
#define CV_ASK_BYTES_MAX   (64u << 20) /* of all rows of one answer */

struct cv_ask;
typedef void (*cv_ask_cb)(void *arg, struct cv_ask *ask);

struct cv_ask_filter {
    const char *user; /* this user's sessions only; copied; NULL: all */
    size_t user_len;
    size_t limit; /* at most so many rows; SIZE_MAX: all */
};

struct cv_ask_rows {
    struct cv_buf text; /* JSON objects with ",\n" between them; the caller's: cv_buf_done() */
    size_t count;
    bool truncated;         /* there are more sessions than rows */
    size_t workers_missing; /* that did not answer in time */
};

/* 0 or -ENOMEM, then nothing was started. */
int cv_ask_sessions(struct cv_loop *loop, struct cv_worker *const *workers, size_t n,
                    const struct cv_ask_filter *filter, int64_t deadline_ms, cv_ask_cb cb,
                    void *arg, struct cv_ask **ret_ask) CV_MUST_CHECK;
/* End the session 'id' of 'worker'. */
int cv_ask_kill(struct cv_loop *loop, struct cv_worker *worker, uint64_t id, int64_t deadline_ms,
                cv_ask_cb cb, void *arg, struct cv_ask **ret_ask) CV_MUST_CHECK;
/* After the callback of cv_ask_sessions(), once: the rows of the workers that answered. -ENOMEM. */
int cv_ask_take_rows(struct cv_ask *ask, struct cv_ask_rows *ret_rows) CV_MUST_CHECK;
/* After the callback of cv_ask_kill(): 0; CV_E_NOTFOUND; -ETIMEDOUT. */
int cv_ask_kill_result(const struct cv_ask *ask);
/* Let go. NULL is accepted. */
void cv_ask_release(struct cv_ask *ask);
