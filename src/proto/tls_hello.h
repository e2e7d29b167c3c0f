/* The beginning of a TLS connection as an onlooker sees it: records (RFC 8446 section 5.1) around a
 * ClientHello (section 4.1.2), of which only the server name (RFC 6066 section 3) is wanted.
 * Nothing here takes part in a handshake. No I/O, no clock, no log.
 *
 * Reading goes in two steps. cv_tls_hello_scan() walks over the records in a growing buffer and
 * says when the whole ClientHello is there; it remembers how far it got, so that any splitting of
 * the input costs one pass, and it takes any splitting of the hello into records.
 * cv_tls_hello_read() then takes the hello apart. In QUIC there are no records:
 * cv_tls_hello_parse() takes the message as CRYPTO frames carry it.
 *
 * Extensions, cipher suites and versions that are not known (RFC 8701 has clients invent some) are
 * skipped by their length. With Encrypted ClientHello the name is the one of the outer hello, the
 * public name; clients that only pretend to use it cannot be told apart. A hello that servers would
 * refuse as malformed is refused here as well, above all one with two server names. */
#pragma once

#include "common/defs.h"

#define CV_TLS_HELLO_MAX     (64u << 10) /* of the handshake message: CV_E_LIMIT above */
#define CV_TLS_RECORD_HEADER 5u

enum cv_tls_alert { /* RFC 8446 section 6 */
                    CV_TLS_ALERT_INTERNAL_ERROR = 80,
                    CV_TLS_ALERT_MISSING_EXTENSION = 109,
                    CV_TLS_ALERT_UNRECOGNIZED_NAME = 112,
};

struct cv_tls_hello {
    bool has_name;
    bool ech; /* encrypted_client_hello is there, real or made up */
    uint8_t name_len;
    char name[256]; /* as it was sent; not judged; NUL-terminated */
};

/* How far the records were walked; all zero at the beginning. */
struct cv_tls_hello_scan {
    uint32_t _pos;  /* where the next record begins */
    uint32_t _got;  /* bytes of the handshake message in the records before that */
    uint32_t _want; /* of the whole message with its header; 0: not known yet */
    uint8_t _head[4];
};

/* Look for the end of the ClientHello in 'data', which holds all bytes since the beginning. 0 when
 * it is whole; CV_E_MORE; CV_E_PROTO when this is no ClientHello; CV_E_LIMIT. */
int cv_tls_hello_scan(struct cv_tls_hello_scan *s, const void *data, size_t len) CV_MUST_CHECK;
/* Take the hello apart that scan has found whole in the same bytes. 0, CV_E_PROTO or -ENOMEM. */
int cv_tls_hello_read(const struct cv_tls_hello_scan *s, const void *data, size_t len,
                      struct cv_tls_hello *ret_hello) CV_MUST_CHECK;
/* The same for the handshake message itself, with its header, and nothing else. */
int cv_tls_hello_parse(const void *message, size_t len,
                       struct cv_tls_hello *ret_hello) CV_MUST_CHECK;

/* Write a fatal alert in a record of its own, as a server may answer a hello. Returns its length.
 */
#define CV_TLS_ALERT_LEN 7
size_t cv_tls_alert_encode(uint8_t out[CV_TLS_ALERT_LEN], enum cv_tls_alert alert);
