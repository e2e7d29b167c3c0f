#include "net/pipe.h"

#include <errno.h>
#include <fcntl.h>

#include "common/alloc.h"
#include "common/sys.h"

#include "common/poison.h"

/* Below this a splice costs more than copying. */
#define USEFUL_SIZE (64u << 10)

/* So many calls fail without trying after one that failed: making a pipe takes up to five system
 * calls, and a busy relay asks for each read that fills its buffer. */
#define BACK_OFF_CALLS 256

struct cv_pipe_pool {
    size_t size;
    size_t max_idle;
    size_t n_idle;
    uint32_t back_off;
    int err;               /* of the last failure */
    struct cv_pipe idle[]; /* the last one put is the first to be taken: its pages are warm */
};

int cv_pipe_pool_new(size_t size, size_t max_idle, struct cv_pipe_pool **ret_pool)
{
    size_t bytes;
    if (CV_MUL_OVERFLOW(max_idle, sizeof(struct cv_pipe), &bytes) ||
        CV_ADD_OVERFLOW(bytes, sizeof(struct cv_pipe_pool), &bytes))
        return -ENOMEM;
    struct cv_pipe_pool *pool = cv_try_zalloc(bytes);
    if (pool == NULL)
        return -ENOMEM;
    pool->size = size;
    pool->max_idle = max_idle;
    *ret_pool = pool;
    return 0;
}

static void close_pipe(struct cv_pipe *pipe)
{
    cv_sys_close(pipe->rd);
    cv_sys_close(pipe->wr);
    *pipe = (struct cv_pipe){.rd = -1, .wr = -1};
}

static int make_pipe(const struct cv_pipe_pool *pool, struct cv_pipe *ret_pipe)
{
    int fds[2];
    int ret = cv_sys_pipe(fds);
    if (ret < 0)
        return ret;
    struct cv_pipe pipe = {.rd = fds[0], .wr = fds[1]};
    /* Above pipe-max-size or the user's share the kernel refuses, and the pipe stays what it is:
     * 64 KiB as a rule, but one or two pages when the share is used up. */
    int size = fcntl(pipe.wr, F_SETPIPE_SZ, (int)CV_MIN(pool->size, (size_t)1 << 30));
    if (size < 0)
        size = fcntl(pipe.wr, F_GETPIPE_SZ);
    if (size < 0 || (size_t)size < CV_MIN(pool->size, (size_t)USEFUL_SIZE)) {
        close_pipe(&pipe);
        return -ENOBUFS;
    }
    *ret_pipe = pipe;
    return 0;
}

int cv_pipe_get(struct cv_pipe_pool *pool, struct cv_pipe *ret_pipe)
{
    if (pool->n_idle > 0) {
        *ret_pipe = pool->idle[--pool->n_idle];
        return 0;
    }
    if (pool->back_off > 0) {
        pool->back_off--;
        return pool->err;
    }
    int ret = make_pipe(pool, ret_pipe);
    if (ret < 0) {
        pool->err = ret;
        pool->back_off = BACK_OFF_CALLS;
    }
    return ret;
}

void cv_pipe_put(struct cv_pipe_pool *pool, struct cv_pipe *pipe)
{
    if (pipe->rd < 0)
        return;
    if (pipe->len == 0 && pool->n_idle < pool->max_idle) {
        pool->idle[pool->n_idle++] = *pipe;
        *pipe = (struct cv_pipe){.rd = -1, .wr = -1};
        return;
    }
    close_pipe(pipe);
}

size_t cv_pipe_pool_idle(const struct cv_pipe_pool *pool)
{
    return pool->n_idle;
}

void cv_pipe_pool_free(struct cv_pipe_pool *pool)
{
    if (pool == NULL)
        return;
    while (pool->n_idle > 0)
        close_pipe(&pool->idle[--pool->n_idle]);
    cv_free(pool);
}
