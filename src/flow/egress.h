/* A way out. Everything above this interface is blind to what kind it is; nothing ever falls back
 * to another egress than the one that was decided.
 *
 * A dial is one attempt to open a connection through an egress: the flow fills in the request and
 * calls ops->connect(); the egress answers exactly once with cv_dial_done(), never from inside the
 * connect call, unless it was cancelled first.
 *
 * A dial for UDP (ops->open_udp) is the same attempt with a cv_dgram as its answer: a flow over
 * which datagrams to any destination travel, each named when it is sent, so such a dial has no
 * target. An egress that cannot carry UDP leaves open_udp NULL, and the dial is refused. */
#pragma once

#include "common/rcstr.h"
#include "common/target.h"
#include "flow/stats.h"
#include "net/dgram.h"
#include "net/loop.h"
#include "net/stream.h"
#include "policy/decide.h"

struct cv_dial;
struct cv_egress;
struct cv_worker;

typedef void (*cv_dial_cb)(struct cv_dial *d);

/* Whose fault it is if a dial fails at this point. An egress that has a proxy, a hop or a tunnel
 * before the target says so as it gets on, so that it is also known of a dial that was cut off by a
 * time limit. A chain puts a member back for its own faults, never for those of one target. */
enum cv_blame {
    CV_BLAME_EGRESS = 0, /* the way out has not shown yet that it works */
    CV_BLAME_UNSURE,     /* it was reached, but it may be it or the target that does not answer */
    CV_BLAME_TARGET,     /* the way out works: it has said that this target cannot be had */
    CV_BLAME_MAX,
};

struct cv_dial {
    /* The request; borrowed, valid until done or cancelled. */
    struct cv_worker *worker;
    const struct cv_target *target; /* NULL: UDP, each datagram has its own */
    bool names_special;             /* the policy's selector names this special prefix itself */
    struct cv_prefix special;
    struct cv_endpoint client; /* who asks; no family: unknown. For the PROXY protocol */
    int64_t deadline_ms;       /* on the loop's clock; a chain has time limits of its own */
    cv_dial_cb done;

    /* The answer. */
    int err; /* 0 or why not */
    enum cv_stage stage;
    enum cv_blame blame;      /* valid from the start of the dial on */
    struct cv_stream *stream; /* owned by the receiver of 'done' when err is 0 */
    struct cv_dgram *dgram;   /* UDP: likewise, in place of a stream */
    struct cv_endpoint local; /* BND: our side of the connection, if known */
    struct cv_endpoint peer;  /* the address that was dialled, if any */
    struct cv_rcstr *outlet;  /* label of the egress that carries it; borrowed from the egress */
    struct cv_rcstr *member;  /* chain: id of the winning member; borrowed from the egress */
    uint32_t attempts;        /* chain: members tried */
    /* Where the connection is counted; borrowed (lives as long as the node). NULL: the egress's
     * own row. A chain says the row of the member that carries it. */
    struct cv_egress_stats *stats;

    void *_impl;          /* of the egress */
    struct cv_task _task; /* of cv_dial_fail_later() */
    bool _posted;         /* the answer is known and on its way */
    bool udp;             /* set by cv_dial_start_udp(); tells an egress's cancel what it cancels */
};

struct cv_egress_ops {
    const char *kind;
    void (*connect)(struct cv_egress *e, struct cv_dial *d);
    /* As connect(), but the answer is d->dgram. NULL: this kind cannot carry UDP. */
    void (*open_udp)(struct cv_egress *e, struct cv_dial *d);
    /* True if 'b', of the same ops, is the same way out as 'a' but from another snapshot: what
     * flows through 'a' may go on as if through 'b'. NULL: only the very same object is. Any
     * thread. */
    bool (*same)(const struct cv_egress *a, const struct cv_egress *b);
    /* Give up; no done() will come and every resource of the attempt is released. Not called for
     * a dial whose answer is known already. */
    void (*cancel)(struct cv_egress *e, struct cv_dial *d);
    /* From any thread: the last session or policy that held it has let go. */
    void (*free)(struct cv_egress *e);
};

struct cv_egress {
    const struct cv_egress_ops *ops;
    uint32_t _refs;
    struct cv_rcstr *label;        /* owned */
    struct cv_egress_stats *stats; /* borrowed (lives as long as the node) */
};

void cv_egress_init(struct cv_egress *e, const struct cv_egress_ops *ops, struct cv_rcstr *label,
                    struct cv_egress_stats *stats);
struct cv_egress *cv_egress_ref(struct cv_egress *e);
void cv_egress_unref(struct cv_egress *e);

/* Start the dial that 'd' describes. 'e' is held by the caller until the end of the dial. */
void cv_dial_start(struct cv_egress *e, struct cv_dial *d);
/* The same for UDP; d->target is not looked at. CV_STAGE_EGRESS and -EPROTONOSUPPORT when the
 * egress cannot carry it. */
void cv_dial_start_udp(struct cv_egress *e, struct cv_dial *d);
bool cv_egress_same(const struct cv_egress *a, const struct cv_egress *b);
/* Give up a dial that was started and has not answered; nothing comes, 'd' is the caller's again.
 */
void cv_dial_cancel(struct cv_egress *e, struct cv_dial *d);

/* For implementations: answer with a failure that is known at once, in the next turn. Needs no
 * memory. */
void cv_dial_fail_later(struct cv_dial *d, enum cv_stage stage, int err);
/* For implementations: answer in the next turn with what is in 'd' (err 0; d->stream or d->dgram,
 * which is closed if the dial is given up before). Needs no memory. */
void cv_dial_done_later(struct cv_dial *d);
/* For implementations: the answer is in 'd', which belongs to its owner from here on. */
static inline void cv_dial_done(struct cv_dial *d)
{
    d->done(d);
}

/* Makes the run-time egress of a definition; the stats row is found or made by its label. NULL def
 * = the direct egress. Given to the active policy by app. Control thread. NULL only without memory:
 * a kind that this node does not have yields an egress whose every dial fails with
 * CV_STAGE_EGRESS. */
typedef struct cv_egress *(*cv_egress_factory_cb)(void *arg, const struct cv_egress_def *def);
