/* UDP through a SOCKS5 proxy, by an UDP ASSOCIATE of our own (RFC 1928 section 7). */
#pragma once

#include "flow/egress.h"

/* The ops of an upstream egress for UDP. An HTTP proxy cannot carry it; one that is reached by TLS
 * could, but only the control connection would be in TLS, and what goes to such a proxy shall not
 * leave in the clear: both are refused with CV_STAGE_EGRESS and -EPROTONOSUPPORT. */
void cv_upstream_open_udp(struct cv_egress *e, struct cv_dial *d);
void cv_upstream_cancel_udp(struct cv_egress *e, struct cv_dial *d);
