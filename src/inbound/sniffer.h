/* Looking at a client's first bytes for the name that it is after, between its handshake and the
 * opening of its way out ("route"), or beside the running relay ("observe").
 *
 * In route mode the protocol tells the client that it is connected before anything was dialled,
 * since only then does the client speak. It makes a sniffer that keeps the bytes, has it read the
 * client's stream on every event, and when the outcome is known, by the bytes or by time, takes the
 * bytes back and opens the flow, which decides with the name. The target is never rewritten.
 *
 *   cv_flow_screen() -> success to the client -> cv_sniffer_new(keep) -> cv_sniffer_add(early) ->
 *   cv_sniffer_read() ... -> cv_sniffer_take() -> cv_flow_open() -> relay, beginning with the bytes
 *
 * In observe mode a sniffer that keeps nothing is fed by the relay's tap. A hello that comes in one
 * piece is not copied.
 *
 * The outcome goes to the session once: by the bytes, by the time limit, or as incomplete when the
 * sniffer is freed before. */
#pragma once

#include "flow/session.h"
#include "net/stream.h"

enum cv_sniff_mode {
    CV_SNIFF_OFF = 0,
    CV_SNIFF_OBSERVE,
    CV_SNIFF_ROUTE,
};

#define CV_SNIFFER_EARLY_MAX (192u << 10) /* that a protocol may have read before */

/* Of one listener. */
struct cv_sniff_conf {
    enum cv_sniff_mode mode;
    uint32_t timeout_ms; /* 0: no limit */
    uint32_t max_bytes;  /* that are looked at, and kept */
};

struct cv_sniffer;
/* The time is over: the session has its outcome. Not called after one is known. */
typedef void (*cv_sniffer_cb)(void *arg);

/* The clock starts. 'session' outlives the sniffer. -ENOMEM. */
int cv_sniffer_new(struct cv_session *session, const struct cv_sniff_conf *conf, bool keep,
                   cv_sniffer_cb on_timeout, void *arg,
                   struct cv_sniffer **ret_sniffer) CV_MUST_CHECK;
/* NULL is accepted. Before cv_session_end(). */
void cv_sniffer_free(struct cv_sniffer *sn);

/* Look at bytes that were read already, up to CV_SNIFFER_EARLY_MAX of them (none: the client has
 * ended). 0: the outcome is known, now
 * or before; CV_E_MORE; -ENOMEM. */
int cv_sniffer_add(struct cv_sniffer *sn, const void *data, size_t len) CV_MUST_CHECK;
/* Read and look until the outcome is known or nothing more is there. 0; CV_E_MORE; CV_E_CANCELED
 * when the client has ended and said nothing at all; other codes: the stream has failed. */
int cv_sniffer_read(struct cv_sniffer *sn, struct cv_stream *stream) CV_MUST_CHECK;
/* All bytes that it was given, for the caller (cv_free); NULL when there are none. */
uint8_t *cv_sniffer_take(struct cv_sniffer *sn, size_t *ret_len) CV_MUST_CHECK;
/* Has the client said anything, and what first? -1: nothing. */
int cv_sniffer_first_byte(const struct cv_sniffer *sn);
