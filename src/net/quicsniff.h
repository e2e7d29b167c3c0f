/* The server name that a QUIC client asks for, seen from its first datagrams. The keys of Initial
 * packets follow from what the packets themselves say (RFC 9001 section 5.2), so everyone on the
 * way can take their protection off; nothing is forged or changed.
 *
 * One object looks at the datagrams of one client towards one server. It derives the keys from the
 * Destination Connection ID of the first Initial packet, puts the ClientHello together out of as
 * many packets as it takes, and answers once. A packet that these keys do not open and that has
 * another connection ID begins anew: after a Retry, or when a new connection uses the same ports.
 * At most CV_QUICSNIFF_PACKETS_MAX packets are opened. It keeps up to 18 KiB until it is freed, so
 * free it as soon as it has answered.
 *
 * Packet numbers are taken as they are written, which is right for a first flight. */
#pragma once

#include "proto/sniff.h"

#define CV_QUICSNIFF_PACKETS_MAX 32

struct cv_quicsniff;

struct cv_quicsniff *cv_quicsniff_new(void);    /* NULL: no memory */
void cv_quicsniff_free(struct cv_quicsniff *q); /* NULL is accepted */

/* Can these be the first bytes of a client's connection? Cheap; to be asked before an object is
 * made. */
bool cv_quicsniff_is_initial(const void *datagram, size_t len);
/* Look at one datagram of the client. 0 and the outcome: CV_SNIFF_QUIC with *ret_host, or why there
 * will be no name; CV_E_MORE: the hello is not whole; -ENOMEM. */
int cv_quicsniff_look(struct cv_quicsniff *q, const void *datagram, size_t len,
                      enum cv_sniff_outcome *ret_outcome, struct cv_host *ret_host) CV_MUST_CHECK;
