/* Holding a connection until it shows what it is: the PROXY header and the TLS handshake where the
 * listener wants them, whom the client's certificate names, and for "mixed" the protocol by its
 * first byte (0x05 SOCKS5, a letter HTTP, 0x16 TLS). */
#pragma once

#include "inbound/listener.h"

/* Take over a connection of which nothing was read. It ends up with its protocol, or closed. */
void cv_detect_start(const struct cv_inbound *in);
