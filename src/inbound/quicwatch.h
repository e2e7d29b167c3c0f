/* Looking at the datagrams of a UDP association for the server name of its first QUIC connection,
 * where the listener's sniffing says "observe" or "route": the name is counted and told, it never
 * decides. What is no QUIC costs a look at five bytes. */
#pragma once

#include "flow/session.h"

struct cv_quicsniff;

struct cv_quicwatch {
    struct cv_quicsniff *_q; /* owned; while the outcome of a connection is not known */
};

void cv_quicwatch_init(struct cv_quicwatch *w);
/* A datagram from the client, as its destination gets it. The outcome goes to the session once. */
void cv_quicwatch_look(struct cv_quicwatch *w, struct cv_session *s, const void *data, size_t len);
/* Before cv_session_end(). */
void cv_quicwatch_done(struct cv_quicwatch *w, struct cv_session *s);
