/* Joining two streams until both directions have ended.
 *
 * Half-close passes through in both directions; a reset of one side resets the other; what was read
 * before is delivered before either. A direction copies through the worker's scratch buffer; when a
 * read fills it and both sides have raw descriptors it goes over to splice through a pooled pipe,
 * and back when a splice moves less than 16 KiB (facts: doc/benchmarks.md). Bytes that the receiver
 * does not take are kept in a buffer of at most CV_SCRATCH_SIZE or in the pipe, and the sender is
 * not read until they are gone, so a slow reader stops its own sender by flow control. An idle
 * relay holds no buffer and no pipe.
 *
 * Ends: both directions shut down; an error; no byte in either direction for idle_timeout_ms; one
 * direction closed and the other silent for half_close_timeout_ms.
 *
 * With an account whose rate is on, a direction reads only what its user may move now (throttle.h).
 * While it waits for its turn it is not idle, and keeps nothing. A client that resets the
 * connection meanwhile ends it at once: what it had sent is not delivered at the rate, which might
 * take hours.
 *
 * A failed side (reset, send refused, TLS fault) is read to its end if it still can be, what was
 * read from it is delivered, the other side's kernel is given up to 5 s to get it across, and then
 * the other side is reset. What was on its way to the failed side is dropped. */
#pragma once

#include "flow/throttle.h"

struct cv_relay;
/* Both streams are closed already. 'err' 0: both sides ended properly; -ECONNRESET and such: as the
 * side that failed said; -ETIMEDOUT: idle or half-close timer. The callee frees what embeds it. */
typedef void (*cv_relay_cb)(struct cv_relay *r, int err);
/* Bytes that were taken by the receiving side; 'up' = from a (client) to b (origin). May come from
 * inside cv_relay_start(); must not abort the relay. */
typedef void (*cv_relay_count_cb)(struct cv_relay *r, bool up, size_t n);

/* Bytes that were read from a (the client), before b gets them; none: a has ended. May clear 'tap',
 * then it is not called again; must not do anything else to the relay. */
typedef void (*cv_relay_tap_cb)(struct cv_relay *r, const void *data, size_t len);

struct cv_relay_dir {
    struct cv_stream *src, *dst;  /* owned by the relay */
    struct cv_rate *rate;         /* borrowed (of the account); NULL: none */
    struct cv_throttle *throttle; /* owned; NULL until the rate is on */
    uint8_t *pending;             /* owned; NULL when nothing waits */
    uint32_t pending_off, pending_len;
    struct cv_pipe pipe; /* rd < 0: none */
    uint32_t splices;    /* splice calls that read something; for tests */
    uint8_t state;       /* enum in relay.c */
    bool bulk;           /* splice when possible */
    bool unspliceable;   /* the kernel refused this pair */
    bool src_ready;      /* an event came since recv said -EAGAIN */
    bool src_hup;        /* both directions of the source are over */
    bool dst_ready;      /* an event came since send said -EAGAIN */
};

struct cv_relay {
    struct cv_worker *_worker;
    struct cv_relay_dir _dir[2]; /* 0 = up */
    struct cv_timer _timer;
    struct cv_task _task;
    int64_t _active_ms; /* last time a byte moved or a direction ended */
    int64_t _born_ms;
    int64_t _due_ms;    /* of the timer, while armed */
    int64_t _linger_ms; /* a failed side is given up then; 0: no such time is set */
    bool _tuned;        /* keepalive has been set */
    bool _queued;       /* the task is in a queue of the loop */
    bool _linger_step;  /* the last bytes are on their way to the side that will be reset */
    uint8_t _ended;
    int _err;
    struct cv_account *account; /* borrowed to the end; set before start; NULL: no rates */
    cv_relay_cb on_end;         /* set before start */
    cv_relay_count_cb on_bytes; /* set before start */
    cv_relay_tap_cb tap;        /* set before start; NULL: nobody looks. While set, no splice up */
};

/* Join 'a' and 'b' (ownership moves). 'up_early' are bytes already read from 'a' that belong to
 * 'b', 'down_early' the reverse; both are copied. -ENOMEM: both are closed and no callback comes.
 */
int cv_relay_start(struct cv_relay *r, struct cv_worker *w, struct cv_stream *a,
                   struct cv_stream *b, const void *up_early, size_t up_len, const void *down_early,
                   size_t down_len) CV_MUST_CHECK;
/* End now, resetting both sides; on_end comes later with 'err'. */
void cv_relay_abort(struct cv_relay *r, int err);
