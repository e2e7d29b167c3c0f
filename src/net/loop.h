/* The event loop of one thread: edge-triggered epoll, timers, tasks.
 *
 * One loop per thread and nothing on it blocks. A descriptor is registered once for both directions
 * and stays so until it is removed: whoever owns it reads and writes until -EAGAIN and remembers
 * what is left. Other threads speak to a loop only through cv_loop_post().
 *
 * A turn: run what was posted, fire timers, wait, take the time, dispatch I/O. Deferred tasks run
 * before the wait and after the dispatch, where no callback is on the stack and no event is in
 * hand: memory that an event of this turn may still point to is released by cv_loop_defer().
 *
 * Example: a worker creates its loop, adds a listening socket with cv_io_add(), and calls
 * cv_loop_run(), which returns after cv_loop_stop() was called from any thread. */
#pragma once

#include "common/defs.h"
#include "net/timer.h"

struct cv_loop;
struct cv_io;
struct cv_task;

enum {
    CV_IO_IN = 1,   /* readable, or the peer has closed its side */
    CV_IO_OUT = 2,  /* writable, or a connect has ended */
    CV_IO_HUP = 4,  /* both directions are dead: error or hang-up */
    CV_IO_EOF = 8,  /* the peer has sent its last byte; comes with CV_IO_IN */
    CV_IO_PRI = 16, /* urgent (out-of-band) data is in the stream */
};
typedef void (*cv_io_cb)(struct cv_io *io, unsigned events);
typedef void (*cv_task_cb)(struct cv_task *task);

/* A registered descriptor; embedded in its owner, which must stay in memory to the end of the turn
 * in which it was removed (cv_loop_defer). */
struct cv_io {
    cv_io_cb cb;
    struct cv_loop *_loop; /* NULL while not registered */
    int fd;                /* owned by the user of this struct */
};

/* A unit of work; embedded in its owner. May be in one queue at a time. */
struct cv_task {
    struct cv_task *_next;
    cv_task_cb fn;
};

int cv_loop_new(struct cv_loop **ret_loop);
/* Run what is deferred and posted, then free. CV_ASSERTs that no descriptor and no timer is left.
 */
void cv_loop_free(struct cv_loop *loop);

/* Run until cv_loop_stop(). */
void cv_loop_run(struct cv_loop *loop);
void cv_loop_stop(struct cv_loop *loop); /* any thread */
/* One turn that waits at most 'max_wait_ms'; for tests. */
void cv_loop_turn(struct cv_loop *loop, int64_t max_wait_ms);

/* Called before and after each wait that may sleep, on the loop's thread: a reader of RCU data
 * goes offline and online there. A loop that never gets to sleep calls them every 32 turns. */
void cv_loop_set_sleep_hooks(struct cv_loop *loop, void (*before)(void *arg),
                             void (*after)(void *arg), void *arg);

/* Milliseconds of CLOCK_MONOTONIC, taken once per turn. */
int64_t cv_loop_now(const struct cv_loop *loop);
struct cv_timers *cv_loop_timers(struct cv_loop *loop);
/* Start a timer 'after_ms' from now. */
void cv_loop_timer(struct cv_loop *loop, struct cv_timer *t, int64_t after_ms);
void cv_loop_timer_stop(struct cv_loop *loop, struct cv_timer *t);

/* Register 'fd' for both directions, edge-triggered. 0 or -errno. */
int cv_io_add(struct cv_loop *loop, struct cv_io *io, int fd, cv_io_cb cb) CV_MUST_CHECK;
/* Register a listening socket that several loops share: level-triggered, one of them is woken. */
int cv_io_add_listener(struct cv_loop *loop, struct cv_io *io, int fd, cv_io_cb cb) CV_MUST_CHECK;
/* No callback comes after this, also none of the running turn. Does not close the descriptor; 'fd'
 * stays as it is. Not registered: nothing. */
void cv_io_del(struct cv_io *io);
/* As cv_io_del(), but without the system call: for a descriptor that is closed before this turn
 * ends and of which no duplicate exists in any process, so that closing removes it from epoll. */
void cv_io_forget(struct cv_io *io);

/* Run 'task' on the loop's thread in its next turn. Any thread; never fails, never blocks. Tasks of
 * one thread run in the order in which they were posted. The loop must outlive the call. */
void cv_loop_post(struct cv_loop *loop, struct cv_task *task);
/* Run 'task' in the next turn, before the loop sleeps. The loop's thread only. */
void cv_loop_next(struct cv_loop *loop, struct cv_task *task);
/* Take back a task of cv_loop_next() that has not run yet. The loop's thread only. The cost grows
 * with the number of waiting tasks, so it is for rare paths. False: it was not waiting. */
bool cv_loop_next_cancel(struct cv_loop *loop, struct cv_task *task);
/* Run 'task' at the end of this turn. The loop's thread only. */
void cv_loop_defer(struct cv_loop *loop, struct cv_task *task);

size_t cv_loop_io_count(const struct cv_loop *loop);
/* Number of turns so far. */
uint64_t cv_loop_turns(const struct cv_loop *loop);
