/* A stream, or a flow of datagrams, that lives on one loop and is used on another.
 *
 * Two threads have an end each: the far end owns the inner stream (a connection of the netstack)
 * and moves its bytes; the near end is a cv_stream of its own for the session. Between them are two
 * queues of chunks, each written by one thread and read by the other without locks; a task is
 * posted when the other side may go on. What waits in a queue is bounded, so flow control reaches
 * through: a near reader that is slow stops the far reads, and with them the window of the
 * connection. An idle crossing holds no buffer. End, reset and half-close pass through in their
 * order.
 *
 * Both loops outlive the crossing and what is posted to them. */
#pragma once

#include "net/dgram.h"
#include "net/loop.h"
#include "net/stream.h"

struct cv_crossing;

/* On the far loop: put 'inner' (ownership moves, also on failure) behind a crossing to 'near_loop'.
 * -ENOMEM. */
int cv_crossing_new(struct cv_loop *near_loop, struct cv_stream *inner,
                    struct cv_crossing **ret_crossing) CV_MUST_CHECK;
/* On the near loop, once: the near end. */
struct cv_stream *cv_crossing_take(struct cv_crossing *c);
/* In place of cv_crossing_take(), on the near loop: nobody wants it. */
void cv_crossing_refuse(struct cv_crossing *c);

/* The same for datagrams. The near end's send takes any target; the far end gives each datagram to
 * 'send', on the far loop, which has to deliver it to 'inner' by itself (it may resolve names
 * first) and must not keep 'm'. */
struct cv_crossing_udp;
typedef void (*cv_crossing_send_cb)(void *arg, const struct cv_dgram_out *m);
/* The flow is over on the far side; 'arg' is not used after this. */
typedef void (*cv_crossing_end_cb)(void *arg);
int cv_crossing_udp_new(struct cv_loop *near_loop, struct cv_loop *far_loop, struct cv_dgram *inner,
                        cv_crossing_send_cb send, cv_crossing_end_cb end, void *arg,
                        struct cv_crossing_udp **ret_crossing) CV_MUST_CHECK;
struct cv_dgram *cv_crossing_udp_take(struct cv_crossing_udp *c);
void cv_crossing_udp_refuse(struct cv_crossing_udp *c);
/* On the far loop: tell the near end that a datagram was dropped. */
void cv_crossing_udp_dropped(struct cv_crossing_udp *c, int err);
