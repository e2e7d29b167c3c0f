/* A few threads for work that would block a loop (password hashing). The queue is bounded: a full
 * queue is CV_E_LIMIT and the caller refuses.
 *
 * A job is embedded in what it works on and belongs to the pool from submit until done() runs, on
 * the loop that submitted it. There is no cancel: an owner that has lost interest marks the job and
 * frees it in done(). */
#pragma once

#include "common/list.h"
#include "net/loop.h"

struct cv_offload;
struct cv_job;
typedef void (*cv_job_cb)(struct cv_job *job);

struct cv_job {
    struct cv_list _node;
    struct cv_task _task;
    struct cv_loop *_loop;
    cv_job_cb work; /* runs on a pool thread; touches only the job */
    cv_job_cb done; /* runs on the loop that submitted it; always comes */
    bool worked;    /* for done(): work() has run; false if the pool ended first */
};

/* 0, -EAGAIN or -ENOMEM when a thread cannot be made. */
int cv_offload_new(size_t threads, size_t queue_max, struct cv_offload **ret_offload) CV_MUST_CHECK;
/* Jobs that wait are handed back (done) without work; blocks until running ones end. The loops that
 * submitted must still exist, and no submit may be under way. */
void cv_offload_free(struct cv_offload *o);
/* 0, or CV_E_LIMIT when queue_max jobs wait already: then done() does not come. */
int cv_offload_submit(struct cv_offload *o, struct cv_loop *loop, struct cv_job *job) CV_MUST_CHECK;
