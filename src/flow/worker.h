/* What one data-plane thread has: its loop, resolver, pipes, scratch memory, live sessions; and
 * what all of them share (struct cv_node). Session code reaches both through its worker and never
 * takes a lock. */
#pragma once

#include "flow/accesslog.h"
#include "flow/active.h"
#include "flow/settings.h"
#include "net/dgramq.h"
#include "net/dns.h"
#include "net/loop.h"
#include "net/offload.h"
#include "net/pipe.h"

struct cv_admission;
struct cv_backoff;

#define CV_WORKERS_MAX  64
#define CV_SCRATCH_SIZE (64u << 10)
/* A slot holds room for a header that is put before the payload, and the longest datagram. */
#define CV_DGRAM_HEADROOM 64u
#define CV_DGRAM_SLOT     (CV_DGRAM_HEADROOM + (64u << 10))
#define CV_DGRAM_WAIT_MAX (16u << 20) /* dgram_budget */

/* Shared by all threads of a node. */
struct cv_node {
    struct cv_active_holder *active;
    struct cv_node_stats stats;
    struct cv_dns_stats dns_stats;
    struct cv_offload *offload; /* password hashing */
    struct cv_alog *alog;
    struct cv_backoff *backoff;     /* NULL: failed logins are not counted */
    struct cv_admission *admission; /* NULL: connections per second are not limited */
    _Atomic bool draining;
};

struct cv_worker {
    unsigned index;
    struct cv_loop *loop;
    struct cv_node *node;         /* borrowed */
    struct cv_settings *settings; /* a reference; replaced between turns */
    struct cv_dns *dns;
    struct cv_pipe_pool *pipes;
    struct cv_alog_stream *alog;
    uint8_t *scratch;   /* CV_SCRATCH_SIZE bytes, for the duration of one callback */
    struct cv_buf line; /* for formatting one log line */
    /* CV_DGRAM_BATCH slots for datagrams, for the duration of one callback; NULL until the first
     * association. Pages are taken as datagrams fill them. */
    uint8_t *dgram_slots;
    struct cv_dgramq_budget dgram_budget; /* of all datagrams that wait in this worker */
    struct cv_list sessions;              /* struct cv_session, newest last */
    size_t n_sessions;
    uint64_t _next_seq;
    /* Set while draining: the last session has gone. It comes from inside cv_session_end(), so it
     * may post, but not free the worker. */
    void (*on_empty)(struct cv_worker *w);
    struct cv_list _retired_dns; /* resolvers that were replaced */
    uint32_t _recheck_round;     /* sessions that have another one are to be checked (session.c) */
    bool _rechecking;            /* the task waits */
    size_t _revoked;             /* sessions ended in this round */
    struct cv_task _recheck_task;
    struct cv_list _throttled; /* directions that wait for their user's rate (throttle.c) */
    struct cv_list _checks;    /* logins that are being checked (auth.c) */
    int32_t (*date)(void);     /* cv_date_today(), or a test's */
    int32_t _today;            /* days since 1970 */
    int64_t _today_until_ms;   /* loop clock; when to ask again */
};

/* Everything but the loop's thread. 0 or a negative code; the caller owns the worker. */
int cv_worker_new(unsigned index, struct cv_node *node, struct cv_settings *settings,
                  struct cv_worker **ret_worker) CV_MUST_CHECK;
/* No sessions are left. Frees the loop, too. */
void cv_worker_free(struct cv_worker *w);
/* Use new settings from now on (on the worker's thread); takes a reference. DNS servers that
 * changed give a new resolver; queries in flight on the old one end by their time limit. */
void cv_worker_set_settings(struct cv_worker *w, struct cv_settings *settings);
/* Point msgs[0..n) (n <= CV_DGRAM_BATCH) at the slots, behind their headroom. 0 or -ENOMEM. */
int cv_worker_dgram_slots(struct cv_worker *w, struct cv_dgram_in *msgs, size_t n) CV_MUST_CHECK;
/* Today in the local time zone, in days since 1970; at most a second late. */
int32_t cv_worker_today(struct cv_worker *w);
/* Ask for the date at the next use; to be called when it has changed. */
void cv_worker_forget_today(struct cv_worker *w);
