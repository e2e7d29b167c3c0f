/* The parts of the direct egress. */
#pragma once

#include "flow/egress.h"

/* ops->open_udp: sockets of this machine (direct_udp.c). */
void cv_direct_open_udp(struct cv_egress *e, struct cv_dial *d);
