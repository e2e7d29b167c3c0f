/* Pool of pipes for splice(2), one per thread. A pipe is taken when a direction of a relay turns
 * bulky and goes back empty; a pipe with bytes left in it is closed instead. */
#pragma once

#include "common/defs.h"

struct cv_pipe {
    int rd, wr;
    size_t len; /* bytes inside, kept by whoever splices: EAGAIN from splice has two meanings */
};

struct cv_pipe_pool;
/* Keep at most 'max_idle' unused pipes; create pipes of 'size' bytes (the kernel may give less). */
int cv_pipe_pool_new(size_t size, size_t max_idle, struct cv_pipe_pool **ret_pool) CV_MUST_CHECK;
void cv_pipe_pool_free(struct cv_pipe_pool *pool);
/* 0, or -errno (EMFILE, ENFILE; ENOBUFS when the kernel gives only a tiny pipe, as it does beyond
 * the user's share of pipe memory): the caller goes on copying. After a failure the next calls that
 * would have to make a pipe fail at once, for a while. */
int cv_pipe_get(struct cv_pipe_pool *pool, struct cv_pipe *ret_pipe) CV_MUST_CHECK;
/* Give back; the descriptors in 'pipe' become -1. rd < 0: nothing. */
void cv_pipe_put(struct cv_pipe_pool *pool, struct cv_pipe *pipe);
/* Pipes that wait in the pool. */
size_t cv_pipe_pool_idle(const struct cv_pipe_pool *pool);
