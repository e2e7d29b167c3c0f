#include "net/loop.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/sys.h"

#include "common/poison.h"

#define BATCH 256

/* A loop that is never idle must still pass through its sleep hooks: RCU grace periods wait for
 * it. */
#define HOOK_EVERY_TURNS 32

/* First in, first out; tasks are linked through _next. */
struct queue {
    struct cv_task *head, *tail;
};

struct cv_loop {
    int epoll_fd;
    int wake_fd; /* eventfd, edge-triggered, never read: each write is a new edge */
    int64_t now_ms;
    uint64_t turns;
    size_t n_io;
    struct cv_timers *timers; /* owned */
    struct queue run;         /* tasks of this turn */
    struct queue next;        /* tasks of the next turn */
    struct queue deferred;
    void (*before_sleep)(void *arg);
    void (*after_sleep)(void *arg);
    void *hook_arg;
    uint32_t turns_awake; /* since the hooks were called */

    /* The batch being dispatched. */
    int ev_at, ev_n;
    struct epoll_event ev[BATCH];

    /* Written by other threads: kept a cache line away from what the loop uses. */
    char pad_before[64];
    _Atomic(struct cv_task *) inbox;
    atomic_bool stopping;
    char pad_after[64];
};

/* Posting without a lock.
 *
 * 'inbox' is a stack of tasks, newest first. Producers push by compare-and-swap, the loop takes the
 * whole stack by one exchange and reverses it; since nothing is ever popped singly there is no ABA
 * problem, and reversing gives each producer's tasks in their order.
 *
 * Before it may sleep, the loop swaps an empty stack for the mark 'asleep'. This one word decides
 * everything, so no fence between two variables is needed: in the word's modification order a push
 * comes either before the mark, then the swap fails and the loop does not sleep, or after it, then
 * the push replaces the mark and this producer, and only this one, writes to the eventfd. The write
 * cannot be lost when it comes before epoll_wait(): it leaves the eventfd ready, and the edge is
 * reported by that wait. If the loop wakes for another reason and takes the task first, the late
 * write costs one empty turn.
 *
 * The push is a release and the exchange an acquire, so what a producer wrote before posting is
 * seen by the task. (A push that replaces another push continues its release sequence.) */
static struct cv_task asleep_mark;
#define ASLEEP (&asleep_mark)

static void push(struct queue *q, struct cv_task *task)
{
    task->_next = NULL;
    if (q->head == NULL)
        q->head = task;
    else
        q->tail->_next = task;
    q->tail = task;
}

static struct cv_task *pop(struct queue *q)
{
    struct cv_task *task = q->head;
    if (task != NULL) {
        q->head = task->_next;
        task->_next = NULL;
    }
    return task;
}

static bool queue_remove(struct queue *q, struct cv_task *task)
{
    struct cv_task *prev = NULL;
    for (struct cv_task *t = q->head; t != NULL; prev = t, t = t->_next) {
        if (t != task)
            continue;
        if (prev == NULL)
            q->head = t->_next;
        else
            prev->_next = t->_next;
        if (q->tail == t)
            q->tail = prev;
        t->_next = NULL;
        return true;
    }
    return false;
}

int cv_loop_new(struct cv_loop **ret_loop)
{
    struct cv_loop *loop = NULL;
    int ret = 0;

    loop = cv_zalloc(sizeof(*loop));
    loop->epoll_fd = loop->wake_fd = -1;
    loop->now_ms = cv_clock_mono_ms();
    atomic_init(&loop->inbox, NULL);
    atomic_init(&loop->stopping, false);
    if ((ret = cv_timers_new(loop->now_ms, &loop->timers)) != 0)
        goto Exit;
    if ((ret = cv_sys_epoll_create()) < 0)
        goto Exit;
    loop->epoll_fd = ret;
    if ((ret = cv_sys_eventfd()) < 0)
        goto Exit;
    loop->wake_fd = ret;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    if ((ret = cv_sys_epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &ev)) < 0)
        goto Exit;
    *ret_loop = loop;
    return 0;
Exit:
    cv_loop_free(loop);
    return ret;
}

static void wake(struct cv_loop *loop)
{
    uint64_t one = 1;
    /* Fails only when the counter is near 2^64, and then an edge was there before. */
    while (write(loop->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

void cv_loop_post(struct cv_loop *loop, struct cv_task *task)
{
    struct cv_task *head = atomic_load_explicit(&loop->inbox, memory_order_relaxed);
    do {
        task->_next = head == ASLEEP ? NULL : head;
    } while (!atomic_compare_exchange_weak_explicit(&loop->inbox, &head, task, memory_order_release,
                                                    memory_order_relaxed));
    /* 'task' may have run and be gone by now. */
    if (head == ASLEEP)
        wake(loop);
}

void cv_loop_stop(struct cv_loop *loop)
{
    atomic_store(&loop->stopping, true);
    wake(loop);
}

void cv_loop_next(struct cv_loop *loop, struct cv_task *task)
{
    push(&loop->next, task);
}

bool cv_loop_next_cancel(struct cv_loop *loop, struct cv_task *task)
{
    return queue_remove(&loop->next, task) || queue_remove(&loop->run, task);
}

void cv_loop_defer(struct cv_loop *loop, struct cv_task *task)
{
    push(&loop->deferred, task);
}

static void take_inbox(struct cv_loop *loop)
{
    /* The load spares the locked exchange in turns to which nobody posted. */
    if (atomic_load_explicit(&loop->inbox, memory_order_relaxed) == NULL)
        return;
    struct cv_task *task = atomic_exchange_explicit(&loop->inbox, NULL, memory_order_acquire);
    if (task == ASLEEP)
        return;
    struct queue q = {.tail = task};
    while (task != NULL) {
        struct cv_task *older = task->_next;
        task->_next = q.head;
        q.head = task;
        task = older;
    }
    if (loop->run.head == NULL)
        loop->run = q;
    else {
        loop->run.tail->_next = q.head;
        loop->run.tail = q.tail;
    }
}

static void run_tasks(struct cv_loop *loop)
{
    take_inbox(loop);
    if (loop->next.head != NULL) {
        if (loop->run.head == NULL)
            loop->run.head = loop->next.head;
        else
            loop->run.tail->_next = loop->next.head;
        loop->run.tail = loop->next.tail;
        loop->next.head = NULL;
    }
    struct cv_task *task;
    while ((task = pop(&loop->run)) != NULL)
        task->fn(task);
}

/* What a deferred task defers runs here as well: closing a layered stream takes several steps. */
static void run_deferred(struct cv_loop *loop)
{
    struct cv_task *task;
    while ((task = pop(&loop->deferred)) != NULL)
        task->fn(task);
}

static int wait_ms(const struct cv_loop *loop, int64_t max_wait_ms)
{
    if (loop->next.head != NULL || atomic_load_explicit(&loop->stopping, memory_order_relaxed))
        return 0;
    int64_t next = cv_timers_next_ms(loop->timers);
    int64_t wait = next == INT64_MAX ? INT64_MAX : CV_MAX(next - loop->now_ms, 0);
    if (max_wait_ms >= 0 && wait > max_wait_ms)
        wait = max_wait_ms;
    if (wait == INT64_MAX)
        return -1;
    return (int)CV_MIN(wait, (int64_t)INT_MAX);
}

static void wait_for_events(struct cv_loop *loop, int64_t max_wait_ms)
{
    int timeout = wait_ms(loop, max_wait_ms);
    bool marked = false;
    if (timeout != 0) {
        struct cv_task *empty = NULL;
        marked = atomic_compare_exchange_strong_explicit(
            &loop->inbox, &empty, ASLEEP, memory_order_relaxed, memory_order_relaxed);
        if (!marked)
            timeout = 0;
    }
    bool hooks =
        loop->before_sleep != NULL && (timeout != 0 || ++loop->turns_awake >= HOOK_EVERY_TURNS);
    if (hooks)
        loop->before_sleep(loop->hook_arg);

    int n = epoll_wait(loop->epoll_fd, loop->ev, BATCH, timeout);
    CV_ASSERT(n >= 0 || errno == EINTR);

    if (hooks) {
        loop->turns_awake = 0;
        loop->after_sleep(loop->hook_arg);
    }
    if (marked) {
        /* From here on nobody needs to wake us. Fails if something was posted: it stays. */
        struct cv_task *mark = ASLEEP;
        atomic_compare_exchange_strong_explicit(&loop->inbox, &mark, NULL, memory_order_relaxed,
                                                memory_order_relaxed);
    }
    loop->ev_n = CV_MAX(n, 0);
    loop->turns++;
    loop->now_ms = cv_clock_mono_ms();
}

static unsigned events_of(uint32_t ev)
{
    unsigned events = 0;
    if (ev & EPOLLIN)
        events |= CV_IO_IN;
    if (ev & EPOLLOUT)
        events |= CV_IO_OUT;
    if (ev & EPOLLRDHUP)
        events |= CV_IO_IN | CV_IO_EOF;
    if (CV_UNLIKELY(ev & EPOLLPRI))
        events |= CV_IO_IN | CV_IO_PRI;
    if (ev & (EPOLLERR | EPOLLHUP))
        events |= CV_IO_IN | CV_IO_OUT | CV_IO_HUP;
    return events;
}

static void dispatch(struct cv_loop *loop)
{
    for (loop->ev_at = 0; loop->ev_at < loop->ev_n; loop->ev_at++) {
        struct cv_io *io = loop->ev[loop->ev_at].data.ptr;
        if (io != NULL) /* NULL: the eventfd, or removed by a callback of this turn */
            io->cb(io, events_of(loop->ev[loop->ev_at].events));
    }
    loop->ev_n = 0;
}

static void turn(struct cv_loop *loop, int64_t max_wait_ms)
{
    run_tasks(loop);
    cv_timers_advance(loop->timers, loop->now_ms);
    run_deferred(loop);
    wait_for_events(loop, max_wait_ms);
    dispatch(loop);
    run_deferred(loop);
}

void cv_loop_run(struct cv_loop *loop)
{
    loop->now_ms = cv_clock_mono_ms();
    while (!atomic_load_explicit(&loop->stopping, memory_order_acquire))
        turn(loop, -1);
    atomic_store(&loop->stopping, false);
}

void cv_loop_turn(struct cv_loop *loop, int64_t max_wait_ms)
{
    loop->now_ms = cv_clock_mono_ms();
    turn(loop, max_wait_ms);
}

void cv_loop_set_sleep_hooks(struct cv_loop *loop, void (*before)(void *arg),
                             void (*after)(void *arg), void *arg)
{
    CV_ASSERT((before == NULL) == (after == NULL));
    loop->before_sleep = before;
    loop->after_sleep = after;
    loop->hook_arg = arg;
}

int64_t cv_loop_now(const struct cv_loop *loop)
{
    return loop->now_ms;
}

struct cv_timers *cv_loop_timers(struct cv_loop *loop)
{
    return loop->timers;
}

void cv_loop_timer(struct cv_loop *loop, struct cv_timer *t, int64_t after_ms)
{
    int64_t due;
    if (CV_ADD_OVERFLOW(loop->now_ms, CV_MAX(after_ms, 0), &due))
        due = INT64_MAX;
    cv_timer_start(loop->timers, t, due);
}

void cv_loop_timer_stop(struct cv_loop *loop, struct cv_timer *t)
{
    cv_timer_stop(loop->timers, t);
}

static int add(struct cv_loop *loop, struct cv_io *io, int fd, cv_io_cb cb, uint32_t events)
{
    CV_ASSERT(io->_loop == NULL);
    struct epoll_event ev = {.events = events, .data.ptr = io};
    int ret = cv_sys_epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &ev);
    if (ret < 0)
        return ret;
    io->cb = cb;
    io->fd = fd;
    io->_loop = loop;
    loop->n_io++;
    return 0;
}

int cv_io_add(struct cv_loop *loop, struct cv_io *io, int fd, cv_io_cb cb)
{
    return add(loop, io, fd, cb, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET);
}

int cv_io_add_listener(struct cv_loop *loop, struct cv_io *io, int fd, cv_io_cb cb)
{
    return add(loop, io, fd, cb, EPOLLIN | EPOLLEXCLUSIVE);
}

void cv_io_del(struct cv_io *io)
{
    if (io->_loop == NULL)
        return;
    /* Not through cv_sys_epoll_ctl(): removing cannot fail for lack of anything. */
    int rc = epoll_ctl(io->_loop->epoll_fd, EPOLL_CTL_DEL, io->fd, NULL);
    (void)CV_BUG_ON_ONCE(rc != 0);
    cv_io_forget(io);
}

void cv_io_forget(struct cv_io *io)
{
    struct cv_loop *loop = io->_loop;
    if (loop == NULL)
        return;
    io->_loop = NULL;
    loop->n_io--;
    /* Take the events back that this batch still holds for it. A mark in 'io' would not do: the
     * struct may be registered again, for another descriptor, before the batch is through. The scan
     * is over a few dozen entries under load; epoll names a descriptor once per batch. */
    for (int i = loop->ev_at + 1; i < loop->ev_n; i++) {
        if (loop->ev[i].data.ptr == io) {
            loop->ev[i].data.ptr = NULL;
            break;
        }
    }
}

size_t cv_loop_io_count(const struct cv_loop *loop)
{
    return loop->n_io;
}

uint64_t cv_loop_turns(const struct cv_loop *loop)
{
    return loop->turns;
}

void cv_loop_free(struct cv_loop *loop)
{
    if (loop == NULL)
        return;
    do {
        run_tasks(loop);
        run_deferred(loop);
    } while (loop->next.head != NULL ||
             atomic_load_explicit(&loop->inbox, memory_order_relaxed) != NULL);
    CV_ASSERT(loop->n_io == 0);
    cv_timers_free(loop->timers);
    cv_sys_close(loop->wake_fd);
    cv_sys_close(loop->epoll_fd);
    cv_free(loop);
}
