/* What connections (flow.c, way.c) and UDP associations (assoc.c) have in common. */
#pragma once

#include "flow/session.h"

/* Everything that the session tells about its verdict, from this one policy. */
void cv_flow_keep_verdict(struct cv_session *s, const struct cv_snapshot *snapshot,
                          const struct cv_verdict *v);
/* 0 when the session may use its verdict ('v' NULL: there is none yet) and holds a permit, else the
 * stage and the code. 'user' NULL: it is gone. */
int cv_flow_admit(struct cv_session *s, const struct cv_user_def *user, const struct cv_verdict *v,
                  enum cv_stage *ret_stage);
