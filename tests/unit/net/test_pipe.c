#include "net/pipe.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "loop_util.h"

static void test_reuse(void)
{
    int before = test_fd_count();
    struct cv_pipe_pool *pool = NULL;
    struct cv_pipe a, b;
    T_INT_EQ(cv_pipe_pool_new(256 << 10, 1, &pool), 0);
    T_INT_EQ(cv_pipe_get(pool, &a), 0);
    T_INT_EQ(a.len, 0);
    T_OK(fcntl(a.rd, F_GETPIPE_SZ) >= 64 << 10);
    T_OK((fcntl(a.rd, F_GETFL) & O_NONBLOCK) != 0);
    T_OK((fcntl(a.wr, F_GETFL) & O_NONBLOCK) != 0);
    T_OK((fcntl(a.wr, F_GETFD) & FD_CLOEXEC) != 0);
    T_INT_EQ(cv_pipe_get(pool, &b), 0);
    T_OK(a.rd != b.rd);
    int rd = a.rd;
    cv_pipe_put(pool, &a);
    T_INT_EQ(a.rd, -1);
    T_INT_EQ(a.wr, -1);
    T_INT_EQ(cv_pipe_pool_idle(pool), 1);
    cv_pipe_put(pool, &a); /* has none: nothing */
    T_INT_EQ(cv_pipe_pool_idle(pool), 1);
    cv_pipe_put(pool, &b); /* one too many: closed */
    T_INT_EQ(cv_pipe_pool_idle(pool), 1);
    T_INT_EQ(test_fd_count(), before + 2);
    T_INT_EQ(cv_pipe_get(pool, &a), 0);
    T_INT_EQ(a.rd, rd);
    T_INT_EQ(cv_pipe_pool_idle(pool), 0);
    /* With bytes left in it, it is of no use to anybody else. */
    T_INT_EQ(write(a.wr, "x", 1), 1);
    a.len = 1;
    cv_pipe_put(pool, &a);
    T_INT_EQ(a.rd, -1);
    T_INT_EQ(cv_pipe_pool_idle(pool), 0);
    T_INT_EQ(test_fd_count(), before);
    T_INT_EQ(cv_pipe_get(pool, &a), 0);
    cv_pipe_put(pool, &a);
    cv_pipe_pool_free(pool);
    cv_pipe_pool_free(NULL);
    T_INT_EQ(test_fd_count(), before);
}

static void test_out_of_descriptors(void)
{
    struct cv_pipe_pool *pool = NULL;
    struct cv_pipe pipe;
    struct rlimit old, lim;
    T_INT_EQ(cv_pipe_pool_new(256 << 10, 4, &pool), 0);
    getrlimit(RLIMIT_NOFILE, &old);
    lim = old;
    lim.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &lim);
    T_INT_EQ(cv_pipe_get(pool, &pipe), -EMFILE);
    setrlimit(RLIMIT_NOFILE, &old);
    /* For a while it is not tried again, then it is. */
    int failed = 0;
    while (failed < 10000 && cv_pipe_get(pool, &pipe) == -EMFILE)
        failed++;
    T_OK(failed > 10 && failed < 10000);
    cv_pipe_put(pool, &pipe);
    cv_pipe_pool_free(pool);
}

static void test_sizes(void)
{
    int before = test_fd_count();
    struct cv_pipe_pool *pool = NULL;
    struct cv_pipe pipe;
    /* More than a user may have: what the kernel gives, or none. */
    T_INT_EQ(cv_pipe_pool_new((size_t)1 << 40, 4, &pool), 0);
    int rc = cv_pipe_get(pool, &pipe);
    T_OK(rc == 0 || rc == -ENOBUFS);
    if (rc == 0) {
        T_OK(fcntl(pipe.rd, F_GETPIPE_SZ) >= 64 << 10);
        cv_pipe_put(pool, &pipe);
    }
    cv_pipe_pool_free(pool);
    /* None is kept. */
    T_INT_EQ(cv_pipe_pool_new(4096, 0, &pool), 0);
    T_INT_EQ(cv_pipe_get(pool, &pipe), 0);
    cv_pipe_put(pool, &pipe);
    T_INT_EQ(cv_pipe_pool_idle(pool), 0);
    cv_pipe_pool_free(pool);
    T_INT_EQ(cv_pipe_pool_new(4096, SIZE_MAX / 2, &pool), -ENOMEM);
    T_INT_EQ(test_fd_count(), before);
}

int main(void)
{
    T_RUN(test_reuse);
    T_RUN(test_out_of_descriptors);
    T_RUN(test_sizes);
    return t_done();
}
