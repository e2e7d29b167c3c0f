/* Includes the .c to see when the pool has been told to end. */
#include <sched.h>
#include <semaphore.h>

#include "loop_util.h"

#include "net/offload.c"

struct job {
    struct cv_job job;
    unsigned in, out;
    pthread_t worked_on, done_on;
    bool worked;
    unsigned *n_done;
    sem_t *started, *hold; /* work() tells that it began, and waits */
};

static void on_work(struct cv_job *job)
{
    struct job *j = CV_CONTAINER_OF(job, struct job, job);
    j->out = j->in * j->in;
    j->worked_on = pthread_self();
    if (j->started != NULL)
        sem_post(j->started);
    while (j->hold != NULL && sem_wait(j->hold) != 0)
        ;
}

static void on_job_done(struct cv_job *job)
{
    struct job *j = CV_CONTAINER_OF(job, struct job, job);
    j->done_on = pthread_self();
    j->worked = job->worked;
    ++*j->n_done;
}

static struct job make(unsigned in, unsigned *n_done)
{
    return (struct job){.job = {.work = on_work, .done = on_job_done}, .in = in, .n_done = n_done};
}

static void test_jobs(void)
{
    enum { N = 500 };
    struct cv_loop *loop = test_loop();
    struct cv_offload *o = NULL;
    unsigned done = 0;
    struct job *jobs = cv_zalloc(N * sizeof(*jobs));
    T_INT_EQ(cv_offload_new(3, N, &o), 0);
    for (unsigned i = 0; i < N; i++) {
        jobs[i] = make(i, &done);
        T_INT_EQ(cv_offload_submit(o, loop, &jobs[i].job), 0);
    }
    T_INT_EQ(done, 0); /* only from the loop */
    TURN_UNTIL(loop, done == N);
    unsigned bad = 0;
    for (unsigned i = 0; i < N; i++) {
        bad += jobs[i].out != i * i || !jobs[i].worked;
        bad += pthread_equal(jobs[i].worked_on, pthread_self()) != 0;
        bad += pthread_equal(jobs[i].done_on, pthread_self()) == 0;
    }
    T_INT_EQ(bad, 0);
    cv_offload_free(o);
    cv_offload_free(NULL);
    cv_free(jobs);
    test_loop_end(loop);
}

static void test_full(void)
{
    struct cv_loop *loop = test_loop();
    struct cv_offload *o = NULL;
    unsigned done = 0;
    sem_t started, hold;
    sem_init(&started, 0, 0);
    sem_init(&hold, 0, 0);
    struct job running = make(1, &done), waiting[2] = {make(2, &done), make(3, &done)};
    struct job refused = make(4, &done);
    running.started = &started;
    running.hold = &hold;
    T_INT_EQ(cv_offload_new(1, 2, &o), 0);
    T_INT_EQ(cv_offload_submit(o, loop, &running.job), 0);
    while (sem_wait(&started) != 0)
        ;
    T_INT_EQ(cv_offload_submit(o, loop, &waiting[0].job), 0);
    T_INT_EQ(cv_offload_submit(o, loop, &waiting[1].job), 0);
    T_INT_EQ(cv_offload_submit(o, loop, &refused.job), CV_E_LIMIT);
    sem_post(&hold);
    TURN_UNTIL(loop, done == 3);
    T_OK(running.worked && waiting[0].worked && waiting[1].worked);
    T_INT_EQ(refused.out, 0);

    cv_offload_free(o);
    sem_destroy(&started);
    sem_destroy(&hold);
    test_loop_end(loop);
}

static struct cv_offload *ending;

/* Work that goes on until the pool has been told to end. */
static void on_work_to_end(struct cv_job *job)
{
    on_work(job);
    for (bool stopping = false; !stopping; sched_yield()) {
        pthread_mutex_lock(&ending->lock);
        stopping = ending->stopping;
        pthread_mutex_unlock(&ending->lock);
    }
}

/* What waits when the pool ends comes back without work; what runs is waited for. */
static void test_free(void)
{
    struct cv_loop *loop = test_loop();
    unsigned done = 0;
    sem_t started;
    sem_init(&started, 0, 0);
    struct job running = make(1, &done), waiting[2] = {make(2, &done), make(3, &done)};
    running.job.work = on_work_to_end;
    running.started = &started;
    T_INT_EQ(cv_offload_new(1, 8, &ending), 0);
    T_INT_EQ(cv_offload_submit(ending, loop, &running.job), 0);
    while (sem_wait(&started) != 0)
        ;
    T_INT_EQ(cv_offload_submit(ending, loop, &waiting[0].job), 0);
    T_INT_EQ(cv_offload_submit(ending, loop, &waiting[1].job), 0);
    cv_offload_free(ending);
    T_INT_EQ(running.out, 1);
    T_INT_EQ(done, 0);
    TURN_UNTIL(loop, done == 3);
    T_OK(running.worked);
    T_OK(!waiting[0].worked && !waiting[1].worked);
    T_INT_EQ(waiting[0].out + waiting[1].out, 0);
    sem_destroy(&started);
    test_loop_end(loop);
}

int main(void)
{
    T_RUN(test_jobs);
    T_RUN(test_full);
    T_RUN(test_free);
    return t_done();
}
