/* Opening a session's way out: decide on the policy in force, take the user's permit, dial the
 * decided egress. The one place where a verdict becomes a connection. */
#pragma once

#include "flow/session.h"

struct cv_flow;
/* The session's stage and err tell a failure (err != 0), its fields are filled in. On success the
 * callee owns 'stream', and 'local' is the BND address (family CV_AF_NONE when unknown). The flow
 * is gone after this. */
typedef void (*cv_flow_cb)(void *arg, int err, struct cv_stream *stream,
                           const struct cv_endpoint *local);

/* Start. The session has an account and a target; a sniffed host that it has takes part in the
 * decision, but what is dialled is the target. The result comes by callback, never from inside
 * this call. -ENOMEM: nothing was started and no callback comes. */
int cv_flow_open(struct cv_session *s, const struct cv_target *target, cv_flow_cb cb, void *arg,
                 struct cv_flow **ret_flow) CV_MUST_CHECK;
/* Ask the policy before the client's first bytes are looked at: take the user's permit, and refuse
 * what no sniffed name could change. 0, or the code that the session was failed with. The session
 * has an account and a target; cv_flow_open() decides anew. */
int cv_flow_screen(struct cv_session *s, const struct cv_target *target) CV_MUST_CHECK;
/* Take the user's permit while the target is not known yet. 0, or the code that the session was
 * failed with. */
int cv_flow_permit(struct cv_session *s) CV_MUST_CHECK;
/* Give up; no callback comes; the permit stays with the session until it ends. */
void cv_flow_cancel(struct cv_flow *f);
