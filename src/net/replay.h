/* A stream that first gives bytes that were read ahead from the stream below, then those of the
 * stream below. Everything else passes through; once the bytes are used up, so does the raw
 * descriptor, and the relay may splice.
 *
 * For whoever speaks a protocol at the beginning of a connection and hands the rest to somebody
 * who is not to know of it: an upstream proxy's reply and the first bytes of the origin often come
 * in one read. */
#pragma once

#include "net/stream.h"

/* Put 'len' > 0 bytes (copied) before 'below' (ownership moves, also on failure: it is closed). 0
 * or -ENOMEM. */
int cv_replay_open(struct cv_stream *below, const void *data, size_t len,
                   struct cv_stream **ret_stream) CV_MUST_CHECK;
