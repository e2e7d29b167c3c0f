/* The run-time state of a chain's members: whether each works (vital.h), and what it was tried for.
 *
 * A member is known by the ids of its egress and of itself and by its backend; as long as these
 * stay the same its state survives every swap of the snapshot, and a member that now means another
 * proxy starts anew. The control thread finds or makes members when it binds a snapshot. The
 * run-time egress holds a reference; any thread lets go of it. Members that nobody holds are
 * released by the control thread, later (cv_members_sweep()).
 *
 * Workers share the state by one atomic word and relaxed counters. */
#pragma once

#include "common/metrics.h"
#include "egress/vital.h"
#include "flow/egress.h"

struct cv_members;
struct cv_member {
    struct cv_rcstr *egress_id; /* a reference */
    struct cv_rcstr *id;        /* a reference; NULL: of an egress that is no chain */
    struct cv_rcstr *label;     /* a reference; of the backend */
    uint64_t backend;           /* fingerprint of its definition */
    /* Another part looks after it by active checks: dials do not probe it. */
    _Atomic bool checked;

    _Atomic uint64_t _word;
    _Atomic uint32_t _refs;
    _Atomic uint64_t _last; /* of the last failure: stage and code */
    struct cv_member *_next;

    struct cv_counter attempts;    /* dials that tried it */
    struct cv_counter established; /* ... and were answered with a connection */
    struct cv_counter failed[CV_BLAME_MAX];
    struct cv_counter probes; /* of the attempts */
    struct cv_counter downs;  /* how often it went from up to down */
    struct cv_counter checks, checks_failed;
};

struct cv_members *cv_members_new(void);
/* After all that held a member has let go. NULL is accepted. */
void cv_members_free(struct cv_members *ms);
/* The member of this definition, with a reference for the caller. 'now_ms' is the loop's clock.
 * Control thread. NULL: no memory. */
struct cv_member *cv_members_get(struct cv_members *ms, struct cv_rcstr *egress_id,
                                 const struct cv_chain_member *def, int64_t now_ms) CV_MUST_CHECK;
/* Release members that nobody holds. Control thread. */
void cv_members_sweep(struct cv_members *ms);
size_t cv_members_count(const struct cv_members *ms);

struct cv_member *cv_member_ref(struct cv_member *m);
/* Any thread. NULL is accepted. */
void cv_member_unref(struct cv_member *m);

static inline uint64_t cv_member_word(const struct cv_member *m)
{
    return atomic_load_explicit(&m->_word, memory_order_relaxed);
}
/* Begin an attempt on the state 'word' that was read before. False: another thread has the probe,
 * read again. */
bool cv_member_begin(struct cv_member *m, uint64_t word, enum cv_vital_way way, unsigned tag,
                     int64_t now_ms, struct cv_vital_try *ret_try);
/* What came of it. 'stage' and 'err' are remembered when it failed, for people; a change of state
 * is counted and logged. */
void cv_member_end(struct cv_member *m, const struct cv_vital_try *try, enum cv_vital_event event,
                   enum cv_stage stage, int err, int64_t now_ms, int64_t backoff_ms,
                   int64_t backoff_max_ms);

/* What a dial's end says about the member: by whose fault it was, and nothing when this node was
 * short of memory, descriptors or ports. */
enum cv_vital_event cv_member_verdict(int err, enum cv_blame blame);

/* A member as people may see it. */
struct cv_member_info {
    const struct cv_member *member; /* borrowed */
    uint32_t priority;
    enum cv_vital_state state;
    int64_t retry_in_ms; /* DOWN: until it may be probed; 0: now, or not down */
    enum cv_stage stage; /* of the last failure; CV_STAGE_NONE: there was none */
    int err;
};
typedef void (*cv_member_cb)(void *arg, const struct cv_member_info *info);
void cv_member_describe(const struct cv_member *m, uint32_t priority, int64_t now_ms,
                        struct cv_member_info *ret_info);
const char *cv_member_state_name(enum cv_vital_state state);
