/* The PROXY protocol, versions 1 and 2 (haproxy.org, proxy-protocol.txt): a header that a proxy
 * puts before the first byte of a connection to say whose connection it is. Both directions, no
 * I/O.
 *
 * cv_proxy_protocol_decode() looks at the beginning of a byte string and keeps no state: on
 * CV_E_MORE the caller gathers more bytes and asks again from the same start; CV_PROXY_PROTOCOL_MAX
 * bytes always suffice. What follows the header belongs to the connection. The outcome does not
 * depend on how the bytes were split. Version and signature are judged at the first byte that is
 * wrong, so a peer that speaks something else is refused and not waited for; the fields of a line
 * of version 1 are judged when the line is whole.
 *
 * Example, a listener that wants a header from its load balancer:
 *
 *   "PROXY TCP4 192.0.2.7 198.51.100.1 51000 443\r\n\x05\x01\x02"
 *       decode: 0, used 45; version 1, PROXY, src 192.0.2.7:51000, dst 198.51.100.1:443;
 *       05 01 02 is the first message of the client
 *
 * A header says only what its sender claims: the caller decides from which peers it believes one. A
 * peer of whom a header is wanted and who sends none is refused (CV_E_PROTO), never taken for its
 * own client. */
#pragma once

#include "common/addr.h"

#define CV_PROXY_PROTOCOL_V1_MAX  107  /* the longest line, with CRLF */
#define CV_PROXY_PROTOCOL_V2_HEAD 16   /* signature, version and command, family, length */
#define CV_PROXY_PROTOCOL_V2_BODY 4096 /* most bytes of addresses and TLVs that are accepted */
#define CV_PROXY_PROTOCOL_MAX     (CV_PROXY_PROTOCOL_V2_HEAD + CV_PROXY_PROTOCOL_V2_BODY)
#define CV_PROXY_PROTOCOL_OUT_MAX 107 /* longest header that we write */

enum cv_proxy_protocol_version {
    CV_PROXY_PROTOCOL_NONE = 0, /* no header; not a value that decode gives */
    CV_PROXY_PROTOCOL_V1,
    CV_PROXY_PROTOCOL_V2,
};

enum cv_proxy_protocol_kind {
    /* The connection is that of 'src', which had meant 'dst'. */
    CV_PROXY_PROTOCOL_PROXY = 1,
    /* It is somebody's, but the header has no address of a kind that is known here (UNKNOWN,
     * AF_UNSPEC, AF_UNIX): the addresses of the connection itself are the best there is. */
    CV_PROXY_PROTOCOL_UNKNOWN,
    /* The sender speaks for itself (a health check): the addresses of the connection are right.
     * Version 2 only; version 1 says UNKNOWN for it. */
    CV_PROXY_PROTOCOL_LOCAL,
};

struct cv_proxy_protocol {
    enum cv_proxy_protocol_version version;
    enum cv_proxy_protocol_kind kind;
    /* Both known for PROXY, else of no family. IPv4-mapped IPv6 is decoded as IPv4, so the two may
     * be of different families. */
    struct cv_endpoint src, dst;
    const uint8_t *tlvs; /* version 2, well-formed; points into the bytes that were decoded */
    size_t tlvs_len;     /* 0: none */
};

/* 0 and the length of the header; CV_E_MORE; CV_E_PROTO: no header of either version, or one that
 * is malformed or whose checksum (CRC-32C, if there is one) is wrong; CV_E_LIMIT: a body longer
 * than CV_PROXY_PROTOCOL_V2_BODY; CV_E_UNSUPPORTED: it is about datagrams. */
int cv_proxy_protocol_decode(const uint8_t *in, size_t len, struct cv_proxy_protocol *ret_header,
                             size_t *ret_used) CV_MUST_CHECK;

/* Types of TLVs that may be of use; all others are skipped. */
enum {
    CV_PROXY_PROTOCOL_TLV_ALPN = 0x01,
    CV_PROXY_PROTOCOL_TLV_AUTHORITY = 0x02, /* the name that the client asked for (SNI) */
    CV_PROXY_PROTOCOL_TLV_CRC32C = 0x03,    /* checked by decode */
    CV_PROXY_PROTOCOL_TLV_UNIQUE_ID = 0x05,
};
/* The value of the first TLV of this type, or NULL. */
const uint8_t *cv_proxy_protocol_tlv(const struct cv_proxy_protocol *header, uint8_t type,
                                     size_t *ret_len);

/* Write the header that 'header' describes (its TLVs are not written) and return its length. PROXY
 * needs both addresses, else it becomes UNKNOWN; addresses of two families are written as IPv6, the
 * IPv4 one mapped. LOCAL of version 1 is UNKNOWN. */
size_t cv_proxy_protocol_encode(uint8_t out[CV_PROXY_PROTOCOL_OUT_MAX],
                                const struct cv_proxy_protocol *header);
