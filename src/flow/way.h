/* A way out that stays open between sessions: the origin connection that an HTTP client's next
 * request may use. Each request is a session of its own and is decided, and takes its permit, anew;
 * it joins the way only if the policy in force would send it exactly there. */
#pragma once

#include "flow/flow.h"

/* All zero: none. */
struct cv_way {
    struct cv_rcstr *host;         /* a reference; NULL: none is open */
    struct cv_rcstr *outlet;       /* a reference */
    struct cv_rcstr *member;       /* a reference, or NULL */
    struct cv_egress *egress;      /* a reference */
    struct cv_account *account;    /* a reference */
    struct cv_egress_stats *stats; /* borrowed (lives as long as the node) */
    struct cv_endpoint peer;
    uint16_t port;
    bool lasting; /* what follows belongs to the policy that was decided on */
    bool names_special;
    struct cv_prefix special;
};

/* As cv_flow_open(), and note in 'way' (empty) under what it is opened. */
int cv_way_open(struct cv_way *way, struct cv_session *s, const struct cv_target *target,
                cv_flow_cb cb, void *arg, struct cv_flow **ret_flow) CV_MUST_CHECK;
/* It was opened, by 's'. */
void cv_way_keep(struct cv_way *way, const struct cv_session *s);
/* Decide 's' and, if it may go this way, take its permit, fill it in and return true. False:
 * nothing has changed, it has to be opened by cv_way_open(), which also tells what a refusal is due
 * to. */
bool cv_way_join(const struct cv_way *way, struct cv_session *s, const struct cv_target *target);
/* Undo that, for a second try; the permit stays. */
void cv_way_leave(struct cv_session *s);
/* It is closed. */
void cv_way_done(struct cv_way *way);
