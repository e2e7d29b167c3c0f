/* The relay of a SOCKS5 UDP ASSOCIATE (RFC 1928 section 7): the socket that the client sends its
 * datagrams to, and the association behind it (flow/assoc.h). The control connection stays with
 * socks5.c, which closes the relay when that connection ends.
 *
 * The socket is bound to the address on which the control connection came in. Only the host of that
 * connection may use it: the first datagram from its address fixes the port, unless the request has
 * stated one, and from then on the socket is connected, so that the kernel turns everyone else
 * away. What comes from elsewhere before that is dropped and counted. */
#pragma once

#include "flow/session.h"
#include "inbound/listener.h"
#include "proto/socks5.h"

struct cv_socks5_relay;

/* Open the relay for a request of the session's client, whose control connection is 'control'
 * (borrowed). 0: 'ret_bnd' is what the client is to send to. Else the session has failed with stage
 * and code. 'watch': tell the name of the first QUIC connection (quicwatch.h). 'ended' is called
 * once, from the loop, when no datagram came for idle_timeout_ms; the owner then closes the relay.
 */
int cv_socks5_relay_open(struct cv_session *s, struct cv_stream *control,
                         const struct cv_ip *advertise, bool watch,
                         const struct cv_socks5_request *request,
                         void (*on_idle)(struct cv_session *s), struct cv_endpoint *ret_bnd,
                         struct cv_socks5_relay **ret_relay) CV_MUST_CHECK;
/* End the association and close its sockets; memory goes at the end of the turn, so the session may
 * still be ended in this one. NULL is accepted. */
void cv_socks5_relay_close(struct cv_socks5_relay *r);
