#include "flow/accesslog.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "flow/accesslog_priv.h"
#include "flow/logfile.h"

#include "common/poison.h"

#define CHUNK_SIZE      (32u << 10)
#define CHUNK_AGE_MS    100
#define QUEUE_MAX_BYTES (8u << 20)
#define LINE_MAX_BYTES  (256u << 10)
#define IDLE_TICK_S     60
#define WARN_EVERY_MS   60000
#define STOP_GRACE_MS   2000 /* for a pipe that takes nothing, when the node ends */

struct chunk {
    struct chunk *next;
    size_t len, cap;
    size_t lines;
    char data[];
};

struct cv_alog {
    struct cv_node_stats *stats; /* borrowed (outlives) */
    int32_t (*today)(void);
    atomic_bool on;
    atomic_bool closing;          /* the writer shall not wait for a pipe after 'stop_ms' */
    _Atomic int64_t stop_ms;      /* CLOCK_MONOTONIC */
    _Atomic int64_t next_warn_ms; /* CLOCK_MONOTONIC */
    _Atomic uint64_t unwarned;    /* lines dropped since the last warning */
    pthread_t thread;

    pthread_mutex_t lock; /* guards what follows; held for a few instructions, never for I/O */
    pthread_cond_t wake;  /* the writer has something to do */
    pthread_cond_t idle;  /* the writer has nothing to do; for cv_alog_flush() */
    struct chunk *head, **tail;
    size_t queued_bytes; /* with what is being written */
    bool busy, stopping;
    bool replace;                 /* 'next_file' is to be taken, it may be NULL */
    struct cv_logfile *next_file; /* owned */

    struct cv_logfile *file; /* owned; the writer's; NULL: off */
};

struct cv_alog_stream {
    struct cv_alog *alog;
    struct cv_loop *loop;
    struct chunk *chunk; /* owned; NULL while nothing waits */
    struct cv_timer timer;
};

/* -- dropping -- */

static void dropped(struct cv_alog *alog, size_t lines)
{
    if (lines == 0)
        return;
    cv_counter_add(&alog->stats->log_dropped, lines);
    atomic_fetch_add(&alog->unwarned, lines);
    int64_t now = cv_clock_mono_ms();
    int64_t due = atomic_load(&alog->next_warn_ms);
    if (now < due ||
        !atomic_compare_exchange_strong(&alog->next_warn_ms, &due, now + WARN_EVERY_MS))
        return;
    cv_warn("accesslog", "access log is behind or cannot be written, lines dropped=%llu",
            (unsigned long long)atomic_exchange(&alog->unwarned, 0));
}

static size_t count_lines(const char *data, size_t len)
{
    size_t n = 0;
    const char *p = data, *end = data + len;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
        n++;
        p++;
    }
    return n;
}

/* -- the writer -- */

static bool give_up(void *arg)
{
    struct cv_alog *alog = arg;
    if (atomic_load(&alog->closing) && cv_clock_mono_ms() >= atomic_load(&alog->stop_ms))
        return true;
    pthread_mutex_lock(&alog->lock);
    bool replace = alog->replace;
    pthread_mutex_unlock(&alog->lock);
    return replace;
}

static void take_file(struct cv_alog *alog)
{
    pthread_mutex_lock(&alog->lock);
    bool replace = alog->replace;
    struct cv_logfile *next = alog->next_file;
    alog->replace = false;
    alog->next_file = NULL;
    pthread_mutex_unlock(&alog->lock);
    if (!replace)
        return;
    cv_logfile_close(alog->file);
    alog->file = next;
}

static void tick(struct cv_alog *alog)
{
    int err = alog->file != NULL ? cv_logfile_tick(alog->file, alog->today()) : 0;
    if (err != 0)
        cv_log_limited(CV_LOG_WARN, "accesslog", "cannot rotate access log error='%s', continuing",
                       cv_err_text(err));
}

static void write_chunk(struct cv_alog *alog, const struct chunk *c)
{
    size_t done = 0;
    while (done < c->len) {
        take_file(alog);
        tick(alog);
        if (alog->file == NULL)
            return; /* switched off: not wanted, so not lost */
        size_t n;
        int err = cv_logfile_write(alog->file, c->data + done, c->len - done, give_up, alog, &n);
        done += n;
        bool replaced = err == -ETIMEDOUT && !(atomic_load(&alog->closing) &&
                                               cv_clock_mono_ms() >= atomic_load(&alog->stop_ms));
        if (err != 0 && !replaced) {
            dropped(alog, count_lines(c->data + done, c->len - done));
            return;
        }
    }
}

/* With the lock held: wait for work. */
static void wait_for_work(struct cv_alog *alog)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_TICK_S;
    int err = 0;
    alog->busy = false;
    pthread_cond_broadcast(&alog->idle);
    while (alog->head == NULL && !alog->replace && !alog->stopping && err != ETIMEDOUT)
        err = pthread_cond_timedwait(&alog->wake, &alog->lock, &until);
    alog->busy = true;
}

static void *writer(void *arg)
{
    struct cv_alog *alog = arg;
    pthread_mutex_lock(&alog->lock);
    for (;;) {
        wait_for_work(alog);
        struct chunk *c = alog->head;
        if (c == NULL && alog->stopping)
            break;
        if (c != NULL && (alog->head = c->next) == NULL)
            alog->tail = &alog->head;
        pthread_mutex_unlock(&alog->lock);
        if (c != NULL) {
            write_chunk(alog, c);
        } else {
            take_file(alog);
            tick(alog);
        }
        pthread_mutex_lock(&alog->lock);
        if (c != NULL)
            alog->queued_bytes -= c->cap;
        cv_free(c);
    }
    alog->busy = false;
    pthread_mutex_unlock(&alog->lock);
    return NULL;
}

/* -- the shared side -- */

static bool wants_file(const struct cv_alog_conf *conf)
{
    return conf->file != NULL && conf->file[0] != '\0';
}

static int start_thread(struct cv_alog *alog)
{
    /* No signal is handled there, and SIGPIPE becomes EPIPE. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&alog->thread, NULL, writer, alog);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return -err;
}

int cv_alog_new(const struct cv_alog_conf *conf, struct cv_node_stats *stats,
                struct cv_alog **ret_alog)
{
    struct cv_logfile *file = NULL;
    if (wants_file(conf)) {
        int err = cv_logfile_open(conf->file, conf->retention_days, cv_date_today(), &file);
        if (err != 0)
            return err;
    }
    struct cv_alog *alog = cv_zalloc(sizeof(*alog));
    alog->stats = stats;
    alog->today = cv_date_today;
    alog->file = file;
    alog->tail = &alog->head;
    atomic_store(&alog->on, file != NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&alog->lock, NULL);
    pthread_cond_init(&alog->wake, &attr);
    pthread_cond_init(&alog->idle, &attr);
    pthread_condattr_destroy(&attr);
    int err = start_thread(alog);
    if (err != 0) {
        cv_logfile_close(file);
        cv_free(alog);
        return err;
    }
    *ret_alog = alog;
    return 0;
}

void cv_alog_free(struct cv_alog *alog)
{
    if (alog == NULL)
        return;
    atomic_store(&alog->stop_ms, cv_clock_mono_ms() + STOP_GRACE_MS);
    atomic_store(&alog->closing, true);
    pthread_mutex_lock(&alog->lock);
    alog->stopping = true;
    pthread_cond_signal(&alog->wake);
    pthread_mutex_unlock(&alog->lock);
    pthread_join(alog->thread, NULL);
    cv_logfile_close(alog->next_file);
    cv_logfile_close(alog->file);
    pthread_cond_destroy(&alog->wake);
    pthread_cond_destroy(&alog->idle);
    pthread_mutex_destroy(&alog->lock);
    cv_free(alog);
}

int cv_alog_reopen(struct cv_alog *alog, const struct cv_alog_conf *conf)
{
    struct cv_logfile *file = NULL;
    if (wants_file(conf)) {
        int err = cv_logfile_open(conf->file, conf->retention_days, alog->today(), &file);
        if (err != 0)
            return err;
    }
    pthread_mutex_lock(&alog->lock);
    struct cv_logfile *unused = alog->next_file;
    alog->next_file = file;
    alog->replace = true;
    pthread_cond_signal(&alog->wake);
    pthread_mutex_unlock(&alog->lock);
    cv_logfile_close(unused);
    atomic_store(&alog->on, file != NULL);
    return 0;
}

bool cv_alog_is_on(const struct cv_alog *alog)
{
    return atomic_load_explicit(&alog->on, memory_order_relaxed);
}

void cv_alog_set_today(struct cv_alog *alog, int32_t (*today)(void))
{
    pthread_mutex_lock(&alog->lock);
    alog->today = today;
    pthread_mutex_unlock(&alog->lock);
}

void cv_alog_flush(struct cv_alog *alog)
{
    pthread_mutex_lock(&alog->lock);
    while (alog->busy || alog->head != NULL || alog->replace)
        pthread_cond_wait(&alog->idle, &alog->lock);
    pthread_mutex_unlock(&alog->lock);
}

/* -- one thread's side -- */

static void on_age(struct cv_timer *t);

int cv_alog_stream_open(struct cv_alog *alog, struct cv_loop *loop,
                        struct cv_alog_stream **ret_stream)
{
    struct cv_alog_stream *s = cv_zalloc(sizeof(*s));
    s->alog = alog;
    s->loop = loop;
    cv_timer_init(&s->timer, on_age);
    *ret_stream = s;
    return 0;
}

/* Queue the chunk. False when the queue is full: it stays here. */
static bool hand_over(struct cv_alog_stream *s)
{
    struct cv_alog *alog = s->alog;
    struct chunk *c = s->chunk;
    pthread_mutex_lock(&alog->lock);
    bool fits = alog->queued_bytes + c->cap <= QUEUE_MAX_BYTES;
    if (fits) {
        c->next = NULL;
        *alog->tail = c;
        alog->tail = &c->next;
        alog->queued_bytes += c->cap;
        pthread_cond_signal(&alog->wake);
    }
    pthread_mutex_unlock(&alog->lock);
    if (fits)
        s->chunk = NULL;
    return fits;
}

static void on_age(struct cv_timer *t)
{
    struct cv_alog_stream *s = CV_CONTAINER_OF(t, struct cv_alog_stream, timer);
    if (s->chunk != NULL && !hand_over(s))
        cv_loop_timer(s->loop, &s->timer, CHUNK_AGE_MS);
}

void cv_alog_stream_close(struct cv_alog_stream *s)
{
    if (s == NULL)
        return;
    cv_loop_timer_stop(s->loop, &s->timer);
    if (s->chunk != NULL && !hand_over(s)) {
        dropped(s->alog, s->chunk->lines);
        cv_free(s->chunk);
    }
    cv_free(s);
}

void cv_alog_line(struct cv_alog_stream *s, const char *line, size_t len)
{
    if (!cv_alog_is_on(s->alog))
        return;
    if (len > LINE_MAX_BYTES) {
        dropped(s->alog, 1);
        return;
    }
    struct chunk *c = s->chunk;
    if (c != NULL && c->cap - c->len < len + 1) {
        if (!hand_over(s)) {
            dropped(s->alog, 1);
            return;
        }
        c = NULL;
    }
    if (c == NULL) {
        size_t cap = CV_MAX(len + 1, (size_t)CHUNK_SIZE);
        c = cv_try_alloc(sizeof(*c) + cap);
        if (c == NULL) {
            dropped(s->alog, 1);
            return;
        }
        c->len = c->lines = 0;
        c->cap = cap;
        s->chunk = c;
        if (!cv_timer_is_armed(&s->timer))
            cv_loop_timer(s->loop, &s->timer, CHUNK_AGE_MS);
    }
    memcpy(c->data + c->len, line, len);
    c->data[c->len + len] = '\n';
    c->len += len + 1;
    c->lines++;
}
