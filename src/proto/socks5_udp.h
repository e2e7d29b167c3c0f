/* The header that SOCKS5 puts before each datagram (RFC 1928 section 7), both sides, without I/O:
 *
 *   RSV(2)  FRAG(1)  ATYP(1)  DST.ADDR  DST.PORT(2)  DATA
 *
 * Towards the proxy the address is the destination, towards the client it is the sender. Fragments
 * (FRAG other than 0) are not put together; section 7 leaves that to the implementation, and no
 * client in use sends them. RSV is not looked at. The control connection that such an association
 * hangs on is that of socks5.h. */
#pragma once

#include "proto/socks5.h"

#define CV_SOCKS5_UDP_HEAD_MAX 262 /* with a name of 255 bytes */
#define CV_SOCKS5_UDP_FROM_MAX 22  /* with an address: what we write before what a client gets */

struct cv_socks5_dgram {
    struct cv_socks5_request to; /* cmd is CV_SOCKS5_CMD_UDP; its address points into the input */
    const uint8_t *key;          /* ATYP, address and port as written: equal bytes, equal target */
    size_t key_len;
    const uint8_t *data; /* the payload, maybe empty */
    size_t len;
};
/* 'in' is a whole datagram. 0; CV_E_PROTO: cut short, or an unknown type of address, or a name
 * without a byte; CV_E_UNSUPPORTED: a fragment. */
int cv_socks5_dgram_parse(const uint8_t *in, size_t len, struct cv_socks5_dgram *ret_dgram);
/* The canonical target of a key that cv_socks5_dgram_parse() has returned. 0 or CV_E_PARSE: not a
 * host name, or port 0. */
int cv_socks5_dgram_target(const uint8_t *key, size_t key_len, struct cv_target *ret_target);

/* The sender of 'in' as a server tells it. Family CV_AF_NONE when it wrote a name. */
void cv_socks5_dgram_from(const struct cv_socks5_dgram *dgram, struct cv_endpoint *ret_from);

/* The header for a datagram that 'from' (an address) has sent. Returns its length. */
size_t cv_socks5_dgram_encode_from(uint8_t out[CV_SOCKS5_UDP_FROM_MAX],
                                   const struct cv_endpoint *from);
/* The same for a sender that is known by a name only; 'name' (1..255 bytes, as the far side wrote
 * it) may overlap 'out'. */
size_t cv_socks5_dgram_encode_name(uint8_t *out, const uint8_t *name, uint8_t name_len,
                                   uint16_t port);
/* The header for a datagram to 'to'. Returns its length. */
size_t cv_socks5_dgram_encode_to(uint8_t out[CV_SOCKS5_UDP_HEAD_MAX], const struct cv_target *to);
