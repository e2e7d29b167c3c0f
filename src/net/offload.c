#include "net/offload.h"

#include <pthread.h>
#include <signal.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

struct cv_offload {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct cv_list queue; /* of cv_job._node, under 'lock' */
    size_t n_queued;      /* under 'lock' */
    size_t queue_max;
    bool stopping;    /* under 'lock' */
    size_t n_threads; /* that run */
    pthread_t threads[];
};

static void *thread_main(void *arg);

int cv_offload_new(size_t threads, size_t queue_max, struct cv_offload **ret_offload)
{
    CV_ASSERT(threads > 0 && threads <= 256);
    struct cv_offload *o = cv_zalloc(sizeof(*o) + threads * sizeof(o->threads[0]));
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->wake, NULL);
    cv_list_init(&o->queue);
    o->queue_max = queue_max;

    /* Signals are for the thread that waits for them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = 0;
    while (o->n_threads < threads && err == 0) {
        err = pthread_create(&o->threads[o->n_threads], NULL, thread_main, o);
        if (err == 0)
            pthread_setname_np(o->threads[o->n_threads++], "cv-offload");
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0) {
        cv_offload_free(o);
        return -err;
    }
    *ret_offload = o;
    return 0;
}

static struct cv_job *take(struct cv_offload *o)
{
    if (cv_list_is_empty(&o->queue))
        return NULL;
    struct cv_job *job = CV_CONTAINER_OF(o->queue.next, struct cv_job, _node);
    cv_list_del(&job->_node);
    o->n_queued--;
    return job;
}

static void on_done(struct cv_task *task)
{
    struct cv_job *job = CV_CONTAINER_OF(task, struct cv_job, _task);
    job->done(job);
}

static void hand_back(struct cv_job *job)
{
    job->_task = (struct cv_task){.fn = on_done};
    cv_loop_post(job->_loop, &job->_task);
}

static void *thread_main(void *arg)
{
    struct cv_offload *o = arg;
    pthread_mutex_lock(&o->lock);
    while (!o->stopping) {
        struct cv_job *job = take(o);
        if (job == NULL) {
            pthread_cond_wait(&o->wake, &o->lock);
            continue;
        }
        pthread_mutex_unlock(&o->lock);
        job->work(job);
        job->worked = true;
        hand_back(job);
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

int cv_offload_submit(struct cv_offload *o, struct cv_loop *loop, struct cv_job *job)
{
    int ret = CV_E_LIMIT;
    pthread_mutex_lock(&o->lock);
    if (o->n_queued < o->queue_max) {
        job->_loop = loop;
        job->worked = false;
        cv_list_add_tail(&o->queue, &job->_node);
        o->n_queued++;
        pthread_cond_signal(&o->wake);
        ret = 0;
    }
    pthread_mutex_unlock(&o->lock);
    return ret;
}

void cv_offload_free(struct cv_offload *o)
{
    if (o == NULL)
        return;
    pthread_mutex_lock(&o->lock);
    o->stopping = true;
    pthread_cond_broadcast(&o->wake);
    pthread_mutex_unlock(&o->lock);
    for (size_t i = 0; i < o->n_threads; i++)
        pthread_join(o->threads[i], NULL);
    struct cv_job *job;
    while ((job = take(o)) != NULL)
        hand_back(job);
    pthread_cond_destroy(&o->wake);
    pthread_mutex_destroy(&o->lock);
    cv_free(o);
}
