#include "net/loop.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "common/alloc.h"
#include "loop_util.h"

/* -- tasks -- */

static char order[64];
static size_t n_order;

static void note(char c)
{
    if (n_order < sizeof(order) - 1) {
        order[n_order++] = c;
        order[n_order] = '\0';
    }
}

struct letter {
    struct cv_task task;
    char c;
    struct cv_loop *loop;
    struct letter *then_next, *then_defer, *then_post, *then_cancel;
};

static void on_letter(struct cv_task *task)
{
    struct letter *l = CV_CONTAINER_OF(task, struct letter, task);
    note(l->c);
    if (l->then_next != NULL)
        cv_loop_next(l->loop, &l->then_next->task);
    if (l->then_defer != NULL)
        cv_loop_defer(l->loop, &l->then_defer->task);
    if (l->then_post != NULL)
        cv_loop_post(l->loop, &l->then_post->task);
    if (l->then_cancel != NULL)
        T_OK(cv_loop_next_cancel(l->loop, &l->then_cancel->task));
}

static struct letter letter(struct cv_loop *loop, char c)
{
    return (struct letter){.task.fn = on_letter, .c = c, .loop = loop};
}

static void test_queues(void)
{
    struct cv_loop *loop = test_loop();
    n_order = 0;
    struct letter a = letter(loop, 'a'), b = letter(loop, 'b'), c = letter(loop, 'c'),
                  d = letter(loop, 'd'), e = letter(loop, 'e'), f = letter(loop, 'f');
    a.then_next = &d;
    a.then_defer = &e;
    e.then_defer = &f; /* what a deferred task defers runs in the same turn */
    cv_loop_post(loop, &a.task);
    cv_loop_post(loop, &b.task);
    cv_loop_next(loop, &c.task);
    cv_loop_turn(loop, 1000); /* does not wait: 'd' waits for the next turn */
    T_STR_EQ(order, "abcef");
    cv_loop_turn(loop, 0);
    T_STR_EQ(order, "abcefd");
    test_loop_end(loop);
}

static void test_next_cancel(void)
{
    struct cv_loop *loop = test_loop();
    n_order = 0;
    struct letter a = letter(loop, 'a'), b = letter(loop, 'b'), c = letter(loop, 'c'),
                  d = letter(loop, 'd');
    T_OK(!cv_loop_next_cancel(loop, &a.task));
    cv_loop_next(loop, &a.task);
    cv_loop_next(loop, &b.task);
    cv_loop_next(loop, &c.task);
    T_OK(cv_loop_next_cancel(loop, &c.task)); /* the tail */
    cv_loop_next(loop, &d.task);
    T_OK(cv_loop_next_cancel(loop, &a.task)); /* the head */
    b.then_cancel = &d;                       /* in the batch that runs */
    cv_loop_turn(loop, 0);
    T_STR_EQ(order, "b");
    cv_loop_turn(loop, 0);
    T_STR_EQ(order, "b");
    test_loop_end(loop);
}

static void test_free_runs_all(void)
{
    struct cv_loop *loop = test_loop();
    n_order = 0;
    struct letter a = letter(loop, 'a'), b = letter(loop, 'b'), c = letter(loop, 'c'),
                  d = letter(loop, 'd');
    cv_loop_post(loop, &a.task);
    a.then_next = &b;
    b.then_post = &c;
    c.then_defer = &d;
    test_loop_end(loop);
    T_STR_EQ(order, "abcd");
    cv_loop_free(NULL);
}

/* -- posting from threads -- */

#define POSTERS 4
#define POSTS   20000

struct poster;
struct posted {
    struct cv_task task;
    struct poster *poster;
    unsigned seq;
};
struct poster {
    pthread_t thread;
    struct cv_loop *loop;
    struct posted *posts;
    unsigned expect; /* loop's thread */
    unsigned disorder;
    unsigned *left;
    sem_t *answer; /* ping-pong: wait for each before the next */
};

static void on_posted(struct cv_task *task)
{
    struct posted *p = CV_CONTAINER_OF(task, struct posted, task);
    struct poster *poster = p->poster;
    if (p->seq != poster->expect++)
        poster->disorder++;
    if (poster->answer != NULL)
        sem_post(poster->answer);
    if (--*poster->left == 0)
        cv_loop_stop(poster->loop);
}

static void *poster_main(void *arg)
{
    struct poster *p = arg;
    for (unsigned i = 0; i < POSTS; i++) {
        p->posts[i] = (struct posted){.task.fn = on_posted, .poster = p, .seq = i};
        cv_loop_post(p->loop, &p->posts[i].task);
        if (i % 97 == 0)
            sched_yield();
    }
    return NULL;
}

static void *pinger_main(void *arg)
{
    struct poster *p = arg;
    for (unsigned i = 0; i < POSTS / 4; i++) {
        p->posts[i] = (struct posted){.task.fn = on_posted, .poster = p, .seq = i};
        cv_loop_post(p->loop, &p->posts[i].task);
        while (sem_wait(p->answer) != 0)
            ;
    }
    return NULL;
}

static struct cv_loop *watched_loop;
static bool watchdog_bit;

static void on_watchdog(struct cv_timer *t)
{
    watchdog_bit = true;
    cv_loop_stop(watched_loop);
}

/* A lost wake-up leaves the loop asleep for ever; the watchdog turns that into a failure. */
static void run_watched(struct cv_loop *loop)
{
    struct cv_timer watchdog;
    watched_loop = loop;
    watchdog_bit = false;
    cv_timer_init(&watchdog, on_watchdog);
    cv_loop_timer(loop, &watchdog, 60000);
    cv_loop_run(loop);
    cv_loop_timer_stop(loop, &watchdog);
    T_OK(!watchdog_bit);
}

static void test_post_threads(void)
{
    struct cv_loop *loop = test_loop();
    struct poster posters[POSTERS];
    unsigned left = POSTERS * POSTS;
    for (size_t i = 0; i < POSTERS; i++) {
        posters[i] = (struct poster){.loop = loop, .left = &left};
        posters[i].posts = cv_zalloc(POSTS * sizeof(struct posted));
        T_INT_EQ(pthread_create(&posters[i].thread, NULL, poster_main, &posters[i]), 0);
    }
    run_watched(loop);
    for (size_t i = 0; i < POSTERS; i++) {
        pthread_join(posters[i].thread, NULL);
        T_INT_EQ(posters[i].expect, POSTS);
        T_INT_EQ(posters[i].disorder, 0);
        cv_free(posters[i].posts);
    }
    test_loop_end(loop);
}

static void test_post_wakes(void)
{
    struct cv_loop *loop = test_loop();
    struct poster posters[2];
    sem_t answer[2];
    unsigned left = 2 * (POSTS / 4);
    for (size_t i = 0; i < 2; i++) {
        sem_init(&answer[i], 0, 0);
        posters[i] = (struct poster){.loop = loop, .left = &left, .answer = &answer[i]};
        posters[i].posts = cv_zalloc(POSTS * sizeof(struct posted));
        T_INT_EQ(pthread_create(&posters[i].thread, NULL, pinger_main, &posters[i]), 0);
    }
    run_watched(loop);
    for (size_t i = 0; i < 2; i++) {
        pthread_join(posters[i].thread, NULL);
        T_INT_EQ(posters[i].expect, POSTS / 4);
        T_INT_EQ(posters[i].disorder, 0);
        cv_free(posters[i].posts);
        sem_destroy(&answer[i]);
    }
    test_loop_end(loop);
}

static void *stopper_main(void *arg)
{
    cv_loop_stop(arg);
    return NULL;
}

static void test_stop(void)
{
    struct cv_loop *loop = test_loop();
    pthread_t thread;
    T_INT_EQ(pthread_create(&thread, NULL, stopper_main, loop), 0);
    run_watched(loop);
    pthread_join(thread, NULL);
    cv_loop_stop(loop); /* before run: returns at once */
    run_watched(loop);
    test_loop_end(loop);
}

/* -- descriptors -- */

struct watch {
    struct cv_io io;
    unsigned calls;
    unsigned events; /* all that were seen */
    struct watch *del;
    struct watch *readd; /* del it and add it again, for 'readd_fd' */
    int readd_fd;
    struct cv_loop *loop;
    bool free_other;
    int64_t now_ms;
};

static void on_watch(struct cv_io *io, unsigned events)
{
    struct watch *w = CV_CONTAINER_OF(io, struct watch, io);
    w->calls++;
    w->events |= events;
    w->now_ms = cv_loop_now(io->_loop);
    if (w->del != NULL) {
        cv_io_del(&w->del->io);
        if (w->free_other)
            cv_free(w->del);
        w->del = NULL;
    }
    if (w->readd != NULL) {
        cv_io_del(&w->readd->io);
        T_INT_EQ(cv_io_add(w->loop, &w->readd->io, w->readd_fd, on_watch), 0);
        w->readd->readd = NULL;
        w->readd = NULL;
    }
}

static void test_edges(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    char buf[16];
    test_pair(SOCK_STREAM, fds);
    struct watch w = {.loop = loop};
    T_INT_EQ(cv_io_add(loop, &w.io, fds[0], on_watch), 0);
    T_INT_EQ(cv_loop_io_count(loop), 1);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 1); /* writable from the start */
    T_INT_EQ(w.events, CV_IO_OUT);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 1); /* nothing new */
    test_write(fds[1], "x", 1);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 2);
    T_INT_EQ(w.events, CV_IO_IN | CV_IO_OUT);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 2); /* unread, but reported once */
    test_write(fds[1], "y", 1);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 3);
    T_INT_EQ(read(fds[0], buf, sizeof(buf)), 2);
    shutdown(fds[1], SHUT_WR);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.events, CV_IO_IN | CV_IO_OUT | CV_IO_EOF);
    close(fds[1]);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.events, CV_IO_IN | CV_IO_OUT | CV_IO_EOF | CV_IO_HUP);
    cv_io_del(&w.io);
    cv_io_del(&w.io); /* not registered: nothing */
    T_INT_EQ(w.io.fd, fds[0]);
    close(fds[0]);
    T_INT_EQ(cv_io_add(loop, &w.io, fds[0], on_watch), -EBADF);
    test_loop_end(loop);
}

static void test_urgent(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    test_tcp_pair(fds);
    struct watch w = {.loop = loop};
    T_INT_EQ(cv_io_add(loop, &w.io, fds[0], on_watch), 0);
    T_INT_EQ(send(fds[1], "!", 1, MSG_OOB), 1);
    TURN_UNTIL(loop, (w.events & CV_IO_PRI) != 0);
    cv_io_del(&w.io);
    close(fds[0]);
    close(fds[1]);
    test_loop_end(loop);
}

/* Two descriptors are ready in one batch; whichever comes first removes the other. */
static void test_stale_del(void)
{
    for (int freed = 0; freed < 2; freed++) {
        struct cv_loop *loop = test_loop();
        int a[2], b[2];
        test_pair(SOCK_STREAM, a);
        test_pair(SOCK_STREAM, b);
        struct watch *wa = cv_zalloc(sizeof(*wa)), *wb = cv_zalloc(sizeof(*wb));
        T_INT_EQ(cv_io_add(loop, &wa->io, a[0], on_watch), 0);
        T_INT_EQ(cv_io_add(loop, &wb->io, b[0], on_watch), 0);
        wa->del = wb;
        wb->del = wa;
        wa->free_other = wb->free_other = freed;
        cv_loop_turn(loop, 0);
        T_INT_EQ(cv_loop_io_count(loop), 1);
        if (freed == 0) {
            T_INT_EQ(wa->calls + wb->calls, 1);
            cv_io_del(&wa->io);
            cv_io_del(&wb->io);
            cv_free(wa);
            cv_free(wb);
        } else {
            /* One is gone; epoll reported them in the order in which they were added. */
            cv_io_del(&wa->io);
            T_INT_EQ(wa->calls, 1);
            cv_free(wa);
        }
        close(a[0]);
        close(a[1]);
        close(b[0]);
        close(b[1]);
        test_loop_end(loop);
    }
}

/* The same struct is removed and registered again for another descriptor while an event for the old
 * one is in the batch: the new registration must not see it. */
static void test_stale_readd(void)
{
    struct cv_loop *loop = test_loop();
    int a[2], b[2], c[2];
    test_pair(SOCK_STREAM, a);
    test_pair(SOCK_STREAM, b);
    test_pair(SOCK_STREAM, c);
    struct watch wa = {.loop = loop, .readd_fd = c[0]}, wb = wa;
    close(a[1]); /* both are hung up, 'c' is not */
    close(b[1]);
    wa.readd = &wb;
    wb.readd = &wa;
    T_INT_EQ(cv_io_add(loop, &wa.io, a[0], on_watch), 0);
    T_INT_EQ(cv_io_add(loop, &wb.io, b[0], on_watch), 0);
    cv_loop_turn(loop, 0);
    T_INT_EQ(wa.calls + wb.calls, 1);
    cv_loop_turn(loop, 0);
    struct watch *first = wa.events & CV_IO_HUP ? &wa : &wb, *second = first == &wa ? &wb : &wa;
    T_INT_EQ(first->calls, 1);
    T_INT_EQ(second->calls, 1);
    T_INT_EQ(second->events, CV_IO_OUT);
    cv_io_del(&wa.io);
    cv_io_del(&wb.io);
    close(a[0]);
    close(b[0]);
    close(c[0]);
    close(c[1]);
    test_loop_end(loop);
}

static void test_forget(void)
{
    struct cv_loop *loop = test_loop();
    int fds[2];
    test_pair(SOCK_STREAM, fds);
    struct watch w = {.loop = loop};
    T_INT_EQ(cv_io_add(loop, &w.io, fds[0], on_watch), 0);
    cv_io_forget(&w.io);
    close(fds[0]);
    T_INT_EQ(cv_loop_io_count(loop), 0);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 0);
    cv_io_forget(&w.io);
    close(fds[1]);
    test_loop_end(loop);
}

static void test_listener_level(void)
{
    struct cv_loop *loop = test_loop();
    int listener = test_listener();
    struct watch w = {.loop = loop};
    T_INT_EQ(cv_io_add_listener(loop, &w.io, listener, on_watch), 0);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 0);
    int client = test_client(listener);
    cv_loop_turn(loop, 0);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 2); /* again and again until it is accepted */
    int fd = accept(listener, NULL, NULL);
    cv_loop_turn(loop, 0);
    T_INT_EQ(w.calls, 2);
    cv_io_del(&w.io);
    close(fd);
    close(client);
    close(listener);
    test_loop_end(loop);
}

/* More than one batch of ready descriptors: all get their event. */
static void test_many(void)
{
    enum { N = 600 };
    struct cv_loop *loop = test_loop();
    struct watch *w = cv_zalloc(N * sizeof(*w));
    int(*fds)[2] = cv_zalloc(N * sizeof(*fds));
    for (size_t i = 0; i < N; i++) {
        test_pair(SOCK_STREAM, fds[i]);
        T_INT_EQ(cv_io_add(loop, &w[i].io, fds[i][0], on_watch), 0);
    }
    for (int i = 0; i < 5; i++)
        cv_loop_turn(loop, 0);
    unsigned calls = 0;
    for (size_t i = 0; i < N; i++) {
        calls += w[i].calls;
        cv_io_del(&w[i].io);
        close(fds[i][0]);
        close(fds[i][1]);
    }
    T_INT_EQ(calls, N);
    cv_free(w);
    cv_free(fds);
    test_loop_end(loop);
}

/* -- time -- */

struct timed {
    struct cv_timer t;
    struct cv_loop *loop;
    struct letter *defer;
    int64_t due_ms, at_ms;
    unsigned calls;
};

static void on_timed(struct cv_timer *t)
{
    struct timed *timed = CV_CONTAINER_OF(t, struct timed, t);
    timed->calls++;
    timed->at_ms = cv_clock_mono_ms();
    if (timed->defer != NULL)
        cv_loop_defer(timed->loop, &timed->defer->task);
}

static void test_timers(void)
{
    struct cv_loop *loop = test_loop();
    for (int64_t after = -5; after <= 10; after += 5) {
        struct timed timed = {.loop = loop};
        cv_timer_init(&timed.t, on_timed);
        cv_loop_turn(loop, 0);
        timed.due_ms = cv_loop_now(loop) + CV_MAX(after, 0);
        cv_loop_timer(loop, &timed.t, after);
        T_INT_EQ(timed.calls, 0);
        uint64_t turns = cv_loop_turns(loop);
        TURN_UNTIL(loop, timed.calls > 0);
        T_INT_EQ(timed.calls, 1);
        T_OK(timed.at_ms >= timed.due_ms); /* never early */
        T_OK(cv_loop_turns(loop) - turns <= 3);
    }
    struct timed far = {.loop = loop};
    cv_timer_init(&far.t, on_timed);
    cv_loop_timer(loop, &far.t, INT64_MAX);
    cv_loop_turn(loop, 0);
    T_INT_EQ(far.calls, 0);
    cv_loop_timer_stop(loop, &far.t);
    test_loop_end(loop);
}

static void before_sleep(void *arg)
{
    note('(');
}

static void after_sleep(void *arg)
{
    note(')');
}

static void test_hooks(void)
{
    struct cv_loop *loop = test_loop();
    cv_loop_set_sleep_hooks(loop, before_sleep, after_sleep, NULL);
    n_order = 0;
    order[0] = '\0';
    cv_loop_turn(loop, 0); /* cannot sleep */
    T_STR_EQ(order, "");
    cv_loop_turn(loop, 1);
    T_STR_EQ(order, "()");

    /* What a timer defers runs before the loop sleeps, not after. */
    struct letter d = letter(loop, 'd');
    struct timed timed = {.loop = loop, .defer = &d};
    cv_timer_init(&timed.t, on_timed);
    cv_loop_timer(loop, &timed.t, 0);
    n_order = 0;
    cv_loop_turn(loop, 1);
    T_STR_EQ(order, "d()");

    /* Work for the next turn: no sleep. A post from inside as well. */
    struct letter a = letter(loop, 'a'), b = letter(loop, 'b'), c = letter(loop, 'c');
    a.then_next = &b;
    b.then_post = &c;
    cv_loop_post(loop, &a.task);
    n_order = 0;
    cv_loop_turn(loop, 10000);
    cv_loop_turn(loop, 10000);
    cv_loop_turn(loop, 1);
    T_STR_EQ(order, "abc()");

    /* A loop that is never idle calls them all the same, now and then. */
    n_order = 0;
    order[0] = '\0';
    for (int i = 0; i < 64; i++)
        cv_loop_turn(loop, 0);
    T_STR_EQ(order, "()()");
    test_loop_end(loop);
}

/* The time that an I/O callback sees is taken after the wait, not before it. */
static void test_now_after_wait(void)
{
    struct cv_loop *loop = test_loop();
    int64_t before = cv_clock_mono_ms();
    cv_loop_turn(loop, 15); /* nothing happens */
    T_OK(cv_loop_now(loop) >= before + 15);
    test_loop_end(loop);
}

int main(void)
{
    T_RUN(test_queues);
    T_RUN(test_next_cancel);
    T_RUN(test_free_runs_all);
    T_RUN(test_post_threads);
    T_RUN(test_post_wakes);
    T_RUN(test_stop);
    T_RUN(test_edges);
    T_RUN(test_urgent);
    T_RUN(test_stale_del);
    T_RUN(test_stale_readd);
    T_RUN(test_forget);
    T_RUN(test_listener_level);
    T_RUN(test_many);
    T_RUN(test_timers);
    T_RUN(test_hooks);
    T_RUN(test_now_after_wait);
    return t_done();
}
