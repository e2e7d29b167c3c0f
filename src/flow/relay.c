#include "flow/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"
#include "net/tcp.h"

#include "common/poison.h"

#define TURN_BYTES     (256u << 10) /* of one direction, before others get their share */
#define TURN_ROUNDS    16
#define SPLICE_BYTES   (256u << 10)
#define SPLICE_WORTH   (16u << 10) /* below this a splice costs more than a copy */
#define TUNE_AFTER_MS  10000
#define LINGER_MS      5000 /* for the kernel to get the last bytes across before a reset */
#define LINGER_STEP_MS 20
#define LAST_WORDS_MS  1000 /* for the end of a side that refuses to be sent to */

enum dir_state {
    DIR_OPEN = 1,  /* we are here while src is read and dst takes it */
    DIR_LAST,      /* src cannot be sent to any more; it is read until it ends, then a reset */
    DIR_ENDING,    /* src has ended; what it gave is being delivered, the end follows */
    DIR_RESETTING, /* src has failed; what it gave is being delivered, a reset follows */
    DIR_DONE,      /* nothing more goes this way */
};

static void run(struct cv_relay *r);

static struct cv_relay_dir *opposite(struct cv_relay *r, const struct cv_relay_dir *d)
{
    return d == &r->_dir[0] ? &r->_dir[1] : &r->_dir[0];
}

static bool is_reading(const struct cv_relay_dir *d)
{
    return d->state == DIR_OPEN || d->state == DIR_LAST;
}

static bool has_undelivered(const struct cv_relay_dir *d)
{
    return d->pending_len > 0 || d->pipe.len > 0;
}

static int64_t now_ms(const struct cv_relay *r)
{
    return cv_loop_now(r->_worker->loop);
}

/* -- time -- */

static bool is_half_closed(const struct cv_relay *r)
{
    return r->_dir[0].state != DIR_OPEN || r->_dir[1].state != DIR_OPEN;
}

static int64_t silence_limit(const struct cv_relay *r)
{
    int64_t idle = r->_worker->settings->idle_timeout_ms;
    int64_t half = r->_worker->settings->half_close_timeout_ms;
    int64_t limit = idle > 0 ? idle : INT64_MAX / 2;
    if (is_half_closed(r) && half > 0)
        limit = CV_MIN(limit, half);
    return limit;
}

static bool is_throttled(const struct cv_relay *r)
{
    return cv_throttle_is_waiting(r->_dir[0].throttle) ||
           cv_throttle_is_waiting(r->_dir[1].throttle);
}

/* No timer work is done for bytes: the timer fires when silence might have lasted long enough, and
 * is set again if it has not. */
static void arm(struct cv_relay *r)
{
    int64_t limit = silence_limit(r);
    int64_t due = limit < INT64_MAX / 2 ? r->_active_ms + limit : INT64_MAX;
    if (!r->_tuned)
        due = CV_MIN(due, r->_born_ms + TUNE_AFTER_MS);
    if (r->_linger_ms != 0)
        due = CV_MIN(due, r->_linger_step ? now_ms(r) + LINGER_STEP_MS : r->_linger_ms);
    if (due == INT64_MAX || (cv_timer_is_armed(&r->_timer) && r->_due_ms <= due))
        return;
    r->_due_ms = due;
    cv_timer_start(cv_loop_timers(r->_worker->loop), &r->_timer, due);
}

/* -- ends -- */

static void drop_undelivered(struct cv_relay *r, struct cv_relay_dir *d)
{
    CV_FREE(d->pending);
    d->pending_off = d->pending_len = 0;
    cv_pipe_put(r->_worker->pipes, &d->pipe); /* closes it if there is something inside */
    d->pipe.len = 0;
}

/* Close everything; on_end comes from the task, never from inside the call that led here. */
static void end(struct cv_relay *r, int err)
{
    if (r->_ended)
        return;
    r->_ended = 1;
    r->_err = err;
    cv_loop_timer_stop(r->_worker->loop, &r->_timer);
    for (int i = 0; i < 2; i++) {
        drop_undelivered(r, &r->_dir[i]);
        cv_throttle_free(r->_dir[i].throttle);
        r->_dir[i].throttle = NULL;
        r->_dir[i].state = DIR_DONE;
    }
    cv_stream_close(r->_dir[0].src, err != 0);
    cv_stream_close(r->_dir[0].dst, err != 0);
    if (!r->_queued) {
        r->_queued = true;
        cv_loop_defer(r->_worker->loop, &r->_task);
    }
}

static void keep_error(struct cv_relay *r, int err)
{
    /* EPIPE only says that sending failed; why comes with the next receive. */
    if (r->_err == 0 || r->_err == -EPIPE)
        r->_err = err;
}

/* The source of 'd' has failed: nothing can be sent to it either. */
static void src_failed(struct cv_relay *r, struct cv_relay_dir *d, int err)
{
    struct cv_relay_dir *back = opposite(r, d);
    keep_error(r, err);
    drop_undelivered(r, back);
    back->state = DIR_DONE;
    if (d->state != DIR_DONE)
        d->state = DIR_RESETTING;
    r->_linger_ms = 0;
    arm(r);
}

/* The destination of 'd' takes nothing any more. It may have said something before, an error page
 * for a request that it did not want to read to the end: that is still passed on. */
static void dst_failed(struct cv_relay *r, struct cv_relay_dir *d, int err)
{
    struct cv_relay_dir *back = opposite(r, d);
    keep_error(r, err);
    drop_undelivered(r, d);
    d->state = DIR_DONE;
    if (back->state == DIR_OPEN) {
        back->state = DIR_LAST;
        back->src_ready = true;
        r->_linger_ms = now_ms(r) + LAST_WORDS_MS;
    } else if (back->state == DIR_ENDING) {
        back->state = DIR_RESETTING;
    }
    arm(r);
}

static void src_ended(struct cv_relay *r, struct cv_relay_dir *d)
{
    if (d->state == DIR_LAST) {
        d->state = DIR_RESETTING;
        r->_linger_ms = 0;
    } else {
        d->state = DIR_ENDING;
    }
    r->_active_ms = now_ms(r);
    arm(r);
}

/* All that 'd' had is delivered and its source has ended: say so to the destination. */
static void pass_end(struct cv_relay *r, struct cv_relay_dir *d)
{
    /* The last one: closing the socket sends the same FIN. Its receive queue is empty to the end,
     * so that closing does not become a reset. */
    if (opposite(r, d)->state == DIR_DONE && cv_stream_raw_fd(d->dst) >= 0) {
        d->state = DIR_DONE;
        return;
    }
    if (cv_stream_shutdown_send(d->dst) == -EAGAIN) {
        d->dst_ready = false;
        return;
    }
    d->state = DIR_DONE; /* if it failed, receiving from it tells why */
}

/* All that 'd' had is handed to the destination's kernel. A reset makes that kernel forget what is
 * not across yet, so wait for it, but not for ever. */
static void pass_reset(struct cv_relay *r, struct cv_relay_dir *d)
{
    int fd = cv_stream_socket_fd(d->dst);
    int unsent = 0;
    if (!r->_linger_step) {
        r->_linger_step = true;
        r->_linger_ms = now_ms(r) + LINGER_MS;
    }
    if (fd >= 0 && now_ms(r) < r->_linger_ms && ioctl(fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) {
        arm(r);
        return;
    }
    end(r, r->_err);
}

/* -- bytes -- */

static void moved(struct cv_relay *r, struct cv_relay_dir *d, size_t n)
{
    r->_active_ms = now_ms(r);
    r->on_bytes(r, d == &r->_dir[0], n);
}

/* Give 'len' bytes to the destination; *ret_n = how many it took before it was full or failed. */
static void send_some(struct cv_relay *r, struct cv_relay_dir *d, const uint8_t *p, size_t len,
                      size_t *ret_n)
{
    size_t done = 0;
    while (done < len && d->dst_ready) {
        size_t n = 0;
        int err = cv_stream_send(d->dst, p + done, len - done, &n);
        if (err == 0) {
            done += n;
            moved(r, d, n);
        } else if (err == -EAGAIN) {
            d->dst_ready = false;
        } else {
            dst_failed(r, d, err);
            break;
        }
    }
    *ret_n = done;
}

/* Send, and keep what is not taken. 0 or -ENOMEM. */
static int deliver(struct cv_relay *r, struct cv_relay_dir *d, const uint8_t *p, size_t len)
{
    size_t n;
    send_some(r, d, p, len, &n);
    if (n == len || d->state == DIR_DONE)
        return 0;
    d->pending = cv_try_alloc(len - n);
    if (d->pending == NULL)
        return -ENOMEM;
    memcpy(d->pending, p + n, len - n);
    d->pending_off = 0;
    d->pending_len = (uint32_t)(len - n);
    return 0;
}

static void flush_pending(struct cv_relay *r, struct cv_relay_dir *d)
{
    size_t n;
    send_some(r, d, d->pending + d->pending_off, d->pending_len, &n);
    if (d->pending == NULL)
        return; /* the destination failed */
    d->pending_off += (uint32_t)n;
    d->pending_len -= (uint32_t)n;
    if (d->pending_len == 0)
        CV_FREE(d->pending);
}

/* Bytes are in the pipe, so -EAGAIN can only mean that the destination is full. */
static void flush_pipe(struct cv_relay *r, struct cv_relay_dir *d)
{
    size_t n = 0;
    int err = cv_sys_splice(d->pipe.rd, cv_stream_socket_fd(d->dst), d->pipe.len,
                            SPLICE_F_MOVE | SPLICE_F_NONBLOCK, &n);
    if (err == -EAGAIN || (err == 0 && n == 0)) {
        d->dst_ready = false;
    } else if (err != 0) {
        dst_failed(r, d, err);
    } else {
        d->pipe.len -= n;
        moved(r, d, n);
    }
}

/* True: somebody looks at what goes this way, and goes on to. */
static bool look(struct cv_relay *r, struct cv_relay_dir *d, const void *data, size_t len)
{
    if (r->tap == NULL || d != &r->_dir[0])
        return false;
    r->tap(r, data, len);
    return r->tap != NULL;
}

/* -- the user's rate -- */

static void on_turn(void *arg)
{
    struct cv_relay *r = arg;
    run(r);
}

/* How much may be read now; 0: not until on_turn(), or the relay has ended. */
static size_t allowance(struct cv_relay *r, struct cv_relay_dir *d)
{
    if (d->throttle == NULL) {
        if (d->rate == NULL || !cv_rate_is_on(d->rate))
            return SIZE_MAX;
        if (cv_throttle_new(r->_worker, d->rate, on_turn, r, &d->throttle) != 0) {
            end(r, -ENOMEM);
            return 0;
        }
    }
    return cv_throttle_allow(d->throttle);
}

static void was_read(struct cv_relay_dir *d, size_t n, size_t *budget)
{
    *budget -= CV_MIN(n, *budget);
    if (d->throttle != NULL)
        cv_throttle_used(d->throttle, n);
}

/* What was read before the relay began cannot wait, but it counts. */
static void charge_early(struct cv_relay *r, struct cv_relay_dir *d, size_t n)
{
    struct cv_rate_place none = {0};
    if (d->rate != NULL && n > 0)
        cv_rate_used(&none, d->rate, n, now_ms(r));
}

static void read_copy(struct cv_relay *r, struct cv_relay_dir *d, size_t may, size_t *budget)
{
    uint8_t *scratch = r->_worker->scratch;
    size_t n = 0;
    int err = cv_stream_recv(d->src, scratch, CV_MIN(may, CV_SCRATCH_SIZE), &n);
    if (err == -EAGAIN) {
        d->src_ready = false;
    } else if (err != 0) {
        src_failed(r, d, err);
    } else if (n == 0) {
        (void)look(r, d, scratch, 0);
        src_ended(r, d);
    } else {
        was_read(d, n, budget);
        d->bulk = !look(r, d, scratch, n) && n == CV_SCRATCH_SIZE && !d->unspliceable;
        if (deliver(r, d, scratch, n) != 0)
            end(r, -ENOMEM);
    }
}

/* The pipe is empty, so -EAGAIN can only mean that the source has nothing. */
static void read_splice(struct cv_relay *r, struct cv_relay_dir *d, int src_fd, size_t may,
                        size_t *budget)
{
    size_t n = 0;
    int err = cv_sys_splice(src_fd, d->pipe.wr, CV_MIN(may, SPLICE_BYTES),
                            SPLICE_F_MOVE | SPLICE_F_NONBLOCK, &n);
    if (err == -EAGAIN) {
        d->src_ready = false;
    } else if (err == -EINVAL || err == -ENOSYS || err == -EOPNOTSUPP) {
        d->unspliceable = true;
        d->bulk = false;
    } else if (err != 0) {
        src_failed(r, d, err);
    } else if (n == 0) {
        src_ended(r, d);
    } else {
        was_read(d, n, budget);
        d->splices++;
        d->pipe.len += n;
        d->bulk = n >= SPLICE_WORTH;
    }
}

/* The client is gone for good, so nobody waits for what it has sent. An origin's last words are
 * another matter: the client is there to hear them. */
static void give_up_waiting(struct cv_relay *r, struct cv_relay_dir *d)
{
    int fd = cv_stream_socket_fd(d->src), err = 0;
    socklen_t len = sizeof(err);
    if (d == &r->_dir[0] && d->src_hup && fd >= 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err != 0)
        src_failed(r, d, -err);
}

static void read_some(struct cv_relay *r, struct cv_relay_dir *d, size_t *budget)
{
    size_t may = allowance(r, d);
    if (may == 0) {
        if (!r->_ended)
            give_up_waiting(r, d);
        return;
    }
    int src_fd = d->bulk ? cv_stream_raw_fd(d->src) : -1;
    if (src_fd >= 0 && cv_stream_raw_fd(d->dst) >= 0 &&
        (d->pipe.rd >= 0 || cv_pipe_get(r->_worker->pipes, &d->pipe) == 0))
        read_splice(r, d, src_fd, may, budget);
    else
        read_copy(r, d, may, budget);
}

static bool pump_on(struct cv_relay *r, struct cv_relay_dir *d)
{
    size_t budget = TURN_BYTES;
    for (int rounds = 0; !r->_ended && d->state != DIR_DONE;) {
        if (has_undelivered(d)) {
            if (!d->dst_ready)
                return false;
            if (d->pending_len > 0)
                flush_pending(r, d);
            else
                flush_pipe(r, d);
        } else if (!is_reading(d)) {
            if (d->state == DIR_RESETTING)
                pass_reset(r, d);
            else if (d->dst_ready)
                pass_end(r, d);
            return false;
        } else if (!d->src_ready) {
            return false;
        } else if (budget == 0 || rounds++ == TURN_ROUNDS) {
            return true;
        } else {
            read_some(r, d, &budget);
            if (is_reading(d) && cv_throttle_is_waiting(d->throttle))
                return false;
        }
    }
    return false;
}

/* Do what can be done for one direction now. True: it has used up its share and wants more. */
static bool pump(struct cv_relay *r, struct cv_relay_dir *d)
{
    bool more = pump_on(r, d);
    if (!more && d->throttle != NULL)
        cv_throttle_rest(d->throttle);
    return more;
}

/* An idle direction holds no pipe. */
static void put_pipe(struct cv_relay *r, struct cv_relay_dir *d)
{
    if (d->pipe.rd >= 0 && d->pipe.len == 0)
        cv_pipe_put(r->_worker->pipes, &d->pipe);
}

static unsigned states(const struct cv_relay *r)
{
    return (unsigned)r->_dir[0].state << 8 | r->_dir[1].state;
}

static void run(struct cv_relay *r)
{
    unsigned before;
    bool more;
    do {
        /* The end of one direction may give the other something to do. States only go forward. */
        before = states(r);
        more = pump(r, &r->_dir[0]);
        more |= pump(r, &r->_dir[1]);
    } while (!more && !r->_ended && states(r) != before);

    if (r->_ended)
        return;
    if (r->_dir[0].state == DIR_DONE && r->_dir[1].state == DIR_DONE) {
        end(r, r->_err);
        return;
    }
    put_pipe(r, &r->_dir[0]);
    put_pipe(r, &r->_dir[1]);
    if (more && !r->_queued) {
        r->_queued = true;
        cv_loop_next(r->_worker->loop, &r->_task);
    }
}

/* -- events -- */

/* Both directions of this stream are over. If we have not ended ours, it takes nothing any more. */
static void on_hup(struct cv_relay *r, struct cv_relay_dir *in)
{
    struct cv_relay_dir *back = opposite(r, in);
    if (back->state == DIR_DONE)
        return;
    if (!is_reading(in)) {
        /* Its end was read before, so no later read will tell. */
        size_t n = 0;
        int err = cv_stream_recv(in->src, r->_worker->scratch, CV_SCRATCH_SIZE, &n);
        src_failed(r, in, err < 0 && err != -EAGAIN ? err : -ECONNRESET);
    } else if (has_undelivered(in)) {
        /* It will be read to its end, which tells how it ended, when the other side has taken what
         * is before that. Which must not last for ever. */
        drop_undelivered(r, back);
        back->state = DIR_DONE;
        r->_active_ms = now_ms(r);
        arm(r);
    }
}

static void on_ready(void *arg, struct cv_stream *s, unsigned events)
{
    struct cv_relay *r = arg;
    struct cv_relay_dir *in = s == r->_dir[0].src ? &r->_dir[0] : &r->_dir[1];
    if (events & (CV_STREAM_READ | CV_STREAM_HUP))
        in->src_ready = true;
    if (events & (CV_STREAM_WRITE | CV_STREAM_HUP))
        opposite(r, in)->dst_ready = true;
    if (events & CV_STREAM_HUP) {
        in->src_hup = true;
        on_hup(r, in);
    }
    run(r);
}

static void on_task(struct cv_task *task)
{
    struct cv_relay *r = CV_CONTAINER_OF(task, struct cv_relay, _task);
    r->_queued = false;
    if (r->_ended)
        r->on_end(r, r->_err);
    else
        run(r);
}

/* Dead peers are to be noticed, but the five system calls for it are for sessions that last. */
static void tune(struct cv_relay *r)
{
    r->_tuned = true;
    for (int i = 0; i < 2; i++) {
        int fd = cv_stream_socket_fd(r->_dir[i].src);
        if (fd >= 0)
            cv_tcp_keepalive(fd);
    }
}

static void on_timer(struct cv_timer *t)
{
    struct cv_relay *r = CV_CONTAINER_OF(t, struct cv_relay, _timer);
    int64_t now = now_ms(r);
    if (is_throttled(r))
        r->_active_ms = now; /* it is not silent, it is kept from speaking */
    if (now - r->_active_ms >= silence_limit(r)) {
        end(r, r->_err != 0 ? r->_err : -ETIMEDOUT);
        return;
    }
    if (!r->_tuned && now - r->_born_ms >= TUNE_AFTER_MS)
        tune(r);
    if (r->_linger_ms != 0) {
        for (int i = 0; i < 2; i++) {
            struct cv_relay_dir *d = &r->_dir[i];
            if (d->state == DIR_LAST && cv_throttle_is_waiting(d->throttle)) {
                r->_linger_ms = now + LAST_WORDS_MS;
            } else if (d->state == DIR_LAST && now >= r->_linger_ms) {
                d->state = DIR_RESETTING;
                r->_linger_ms = 0;
            }
        }
        run(r);
    }
    if (!r->_ended)
        arm(r);
}

static void dir_init(struct cv_relay_dir *d, struct cv_stream *src, struct cv_stream *dst,
                     struct cv_rate *rate)
{
    *d = (struct cv_relay_dir){
        .src = src,
        .dst = dst,
        .rate = rate,
        .pipe = {.rd = -1, .wr = -1},
        .state = DIR_OPEN,
        .src_ready = true,
        .dst_ready = true,
    };
}

int cv_relay_start(struct cv_relay *r, struct cv_worker *w, struct cv_stream *a,
                   struct cv_stream *b, const void *up_early, size_t up_len, const void *down_early,
                   size_t down_len)
{
    r->_worker = w;
    dir_init(&r->_dir[0], a, b, r->account != NULL ? &r->account->up : NULL);
    dir_init(&r->_dir[1], b, a, r->account != NULL ? &r->account->down : NULL);
    charge_early(r, &r->_dir[0], up_len);
    charge_early(r, &r->_dir[1], down_len);
    cv_timer_init(&r->_timer, on_timer);
    r->_task = (struct cv_task){.fn = on_task};
    r->_active_ms = r->_born_ms = now_ms(r);
    r->_due_ms = r->_linger_ms = 0;
    r->_tuned = r->_queued = r->_linger_step = false;
    r->_ended = 0;
    r->_err = 0;
    cv_stream_set_cb(a, on_ready, r);
    cv_stream_set_cb(b, on_ready, r);

    if (up_len > 0)
        (void)look(r, &r->_dir[0], up_early, up_len);
    if ((up_len > 0 && deliver(r, &r->_dir[0], up_early, up_len) != 0) ||
        (down_len > 0 && deliver(r, &r->_dir[1], down_early, down_len) != 0)) {
        cv_loop_timer_stop(w->loop, &r->_timer);
        drop_undelivered(r, &r->_dir[0]);
        cv_stream_close(a, true);
        cv_stream_close(b, true);
        return -ENOMEM;
    }
    arm(r);
    run(r);
    return 0;
}

void cv_relay_abort(struct cv_relay *r, int err)
{
    end(r, err != 0 ? err : CV_E_CANCELED);
}
