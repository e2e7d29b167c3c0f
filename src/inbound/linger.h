/* Closing a client's connection so that it can still read what it was told last.
 *
 * A socket that is closed while bytes wait in its receive queue is reset by the kernel, and the
 * reset makes the client's kernel drop what it has not read yet: the refusal that was sent just
 * before would be lost. So the sending side is ended, and what the client still sends is read and
 * discarded until it closes too, or until a limit of bytes or time is reached.
 *
 * While that goes on the connection is a session without a log line: max_sessions bounds it, a
 * drain waits for it, and cv_session_kill_all() ends it. */
#pragma once

#include "flow/session.h"
#include "net/stream.h"

#define CV_LINGER_TIMEOUT_MS 2000
#define CV_LINGER_MAX_BYTES  (256u << 10)

/* Take 'stream' over (ownership moves); all that the client shall read was taken by
 * cv_stream_send(). 'session' is the one that the stream belonged to; call this before it ends. */
void cv_linger_close(const struct cv_session *session, struct cv_stream *stream);
