#include "app/crew.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "common/alloc.h"
#include "flow/active.h"

#include "common/poison.h"

struct cv_crew {
    unsigned n;       /* threads that run */
    unsigned created; /* workers that exist */
    struct cv_worker *worker[CV_WORKERS_MAX];
    pthread_t thread[CV_WORKERS_MAX];
};

/* Counts down; the control thread waits for zero. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t open;
    unsigned left;
};

struct call {
    struct cv_task task;
    struct cv_worker *worker;
    cv_crew_fn fn;
    void *arg;
    struct gate *gate; /* NULL: nobody waits, and the call was allocated */
};

static void *worker_main(void *arg)
{
    struct cv_worker *w = arg;
    char name[16];
    snprintf(name, sizeof(name), "cv-worker-%u", w->index % 100);
    (void)pthread_setname_np(pthread_self(), name);
    cv_active_thread_join(w->loop);
    cv_loop_run(w->loop);
    cv_active_thread_leave();
    return NULL;
}

int cv_crew_start(unsigned n, struct cv_node *node, struct cv_settings *settings,
                  struct cv_crew **ret_crew)
{
    CV_ASSERT(n >= 1 && n <= CV_WORKERS_MAX);
    struct cv_crew *crew = cv_zalloc(sizeof(*crew));
    sigset_t all, old;
    int ret = 0;

    for (unsigned i = 0; i < n && ret == 0; i++) {
        ret = cv_worker_new(i, node, settings, &crew->worker[i]);
        crew->created += ret == 0;
    }
    /* Signals are for the control thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (unsigned i = 0; i < n && ret == 0; i++) {
        ret = -pthread_create(&crew->thread[i], NULL, worker_main, crew->worker[i]);
        crew->n += ret == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (ret != 0) {
        (void)cv_crew_join(crew);
        cv_crew_free(crew);
        return ret;
    }
    *ret_crew = crew;
    return 0;
}

static void on_call(struct cv_task *task)
{
    struct call *c = CV_CONTAINER_OF(task, struct call, task);
    struct gate *gate = c->gate;
    c->fn(c->worker, c->arg);
    if (gate == NULL) {
        cv_free(c);
        return;
    }
    /* The waiting thread owns both; they may be gone once the lock is released. */
    pthread_mutex_lock(&gate->lock);
    if (--gate->left == 0)
        pthread_cond_signal(&gate->open);
    pthread_mutex_unlock(&gate->lock);
}

void cv_crew_run(struct cv_crew *crew, cv_crew_fn fn, void *arg)
{
    struct call calls[CV_WORKERS_MAX];
    struct gate gate = {.left = crew->n};
    pthread_mutex_init(&gate.lock, NULL);
    pthread_cond_init(&gate.open, NULL);
    for (unsigned i = 0; i < crew->n; i++) {
        calls[i] = (struct call){.task = {.fn = on_call},
                                 .worker = crew->worker[i],
                                 .fn = fn,
                                 .arg = arg,
                                 .gate = &gate};
        cv_loop_post(crew->worker[i]->loop, &calls[i].task);
    }
    pthread_mutex_lock(&gate.lock);
    while (gate.left > 0)
        pthread_cond_wait(&gate.open, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    pthread_cond_destroy(&gate.open);
    pthread_mutex_destroy(&gate.lock);
}

void cv_crew_post(struct cv_crew *crew, cv_crew_fn fn, void *arg)
{
    for (unsigned i = 0; i < crew->n; i++) {
        struct call *c = cv_alloc(sizeof(*c));
        *c =
            (struct call){.task = {.fn = on_call}, .worker = crew->worker[i], .fn = fn, .arg = arg};
        cv_loop_post(crew->worker[i]->loop, &c->task);
    }
}

bool cv_crew_join(struct cv_crew *crew)
{
    if (crew == NULL)
        return true;
    for (unsigned i = 0; i < crew->n; i++)
        cv_loop_stop(crew->worker[i]->loop);
    for (unsigned i = 0; i < crew->n; i++)
        pthread_join(crew->thread[i], NULL);
    crew->n = 0;
    for (unsigned i = 0; i < crew->created; i++)
        if (crew->worker[i]->n_sessions > 0)
            return false;
    return true;
}

void cv_crew_free(struct cv_crew *crew)
{
    if (crew == NULL)
        return;
    CV_ASSERT(crew->n == 0);
    for (unsigned i = 0; i < crew->created; i++)
        cv_worker_free(crew->worker[i]);
    cv_free(crew);
}

unsigned cv_crew_count(const struct cv_crew *crew)
{
    return crew->n;
}

struct cv_worker *const *cv_crew_workers(const struct cv_crew *crew)
{
    return crew->worker;
}
