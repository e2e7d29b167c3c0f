/* What is known about whether a member of a chain works: a small state machine, pure, in one 64-bit
 * word, so that all workers share it by compare-and-swap and none ever waits.
 *
 * UP: the member is tried in its turn. A failure of its own takes it DOWN for a back-off, in which
 * it is tried last, after everything else. When the back-off is over one dial at a time may try it
 * in its turn again (PROBING); that dial's result brings it UP or takes it DOWN for twice as long,
 * up to a maximum, less up to a quarter at random. A member that fails again soon after it came
 * back goes on doubling from where it was.
 *
 * What keeps the order from flapping:
 *  - every change of state begins a new epoch, and a result counts only in the epoch in which its
 *    dial began: a hundred dials that fail together are one failure, and late news is no news;
 *  - before the back-off is over only a success as the last resort brings a member UP, that is when
 *    every other way had failed;
 *  - a failure that may be the target's is a strike: it takes CV_VITAL_STRIKES of them for
 *    different targets and without a success in between to be a failure of the member. One target
 *    that does not answer, however often it is asked for, moves nothing.
 *
 * Times are milliseconds of CLOCK_MONOTONIC. Threads may be a few milliseconds apart. */
#pragma once

#include "common/defs.h"

#define CV_VITAL_STRIKES 3

enum cv_vital_state {
    CV_VITAL_UP = 0,
    CV_VITAL_DOWN,    /* we are here while the back-off runs, and after it until somebody probes */
    CV_VITAL_PROBING, /* ... while one dial has been let through */
};

/* The word, taken apart. */
struct cv_vital {
    enum cv_vital_state state;
    unsigned level;   /* failures in a row without having been UP for long; 0..15 */
    unsigned strikes; /* UP: 0..CV_VITAL_STRIKES - 1 */
    unsigned tag;     /* UP: of the target of the last strike */
    unsigned epoch;   /* counts changes of state; wraps at 1024 */
    int64_t at_ms;    /* UP: since when; DOWN: when the back-off ends; PROBING: since when */
};

/* How a dial came to try the member. */
enum cv_vital_way {
    CV_VITAL_IN_TURN = 1, /* it was UP */
    CV_VITAL_PROBE,       /* the back-off was over and this dial claimed the probe */
    CV_VITAL_LAST,        /* it was not UP and everything else had failed */
    CV_VITAL_CHECK,       /* not a client's: an active health check */
};

enum cv_vital_event {
    CV_VITAL_WORKS = 1, /* it connected, or said itself that the target cannot be had */
    CV_VITAL_FAILED,    /* it does not work */
    CV_VITAL_UNSURE,    /* no answer, and it may be the target */
    CV_VITAL_LEFT,      /* the client left after a while in which nothing had come */
    CV_VITAL_NOTHING,   /* nothing was learnt: the client left at once, or this node is short of
                           something */
};

/* One attempt, as it began. */
struct cv_vital_try {
    enum cv_vital_way way;
    unsigned epoch; /* of the word at that moment; of a probe, of the word with the claim */
    unsigned tag;   /* of the target, see cv_vital_tag() */
};

struct cv_vital_conf {
    int64_t backoff_ms, backoff_max_ms;
    uint32_t random; /* anew for each event */
};

uint64_t cv_vital_pack(const struct cv_vital *v);
struct cv_vital cv_vital_unpack(uint64_t word);
/* 8 bits of any hash of the target. */
unsigned cv_vital_tag(uint64_t hash);

/* UP, nothing known. */
uint64_t cv_vital_new(int64_t now_ms);
/* DOWN, and the back-off is over. */
bool cv_vital_is_due(uint64_t word, int64_t now_ms);
/* The word with the probe claimed; it must be due. */
uint64_t cv_vital_claim(uint64_t word, int64_t now_ms);
/* The word after 'event' of an attempt; the same word when it changes nothing. */
uint64_t cv_vital_next(uint64_t word, const struct cv_vital_try *try, enum cv_vital_event event,
                       int64_t now_ms, const struct cv_vital_conf *conf);
/* The whole back-off of the n-th failure in a row (from 1), without its random part. */
int64_t cv_vital_backoff(unsigned level, const struct cv_vital_conf *conf);
