/* Which name do the first bytes of a client ask for? TLS tells by its server name, HTTP/1 by its
 * Host field or absolute target. A guess about bytes that belong to somebody else: they are looked
 * at and never changed. No I/O, no clock, no log.
 *
 * The caller keeps the bytes in one growing buffer and calls cv_sniff_look() whenever there are
 * more; the outcome does not depend on how they were split. Time and the size of the buffer are the
 * caller's bounds, with the outcomes CV_SNIFF_TIMEOUT, CV_SNIFF_LIMIT and CV_SNIFF_INCOMPLETE.
 *
 * A name counts only if it is a plain host name: letters, digits and hyphens in labels, no address
 * in any spelling. It comes in the canonical form in which rules are compared. */
#pragma once

#include "common/target.h"
#include "proto/http1.h"
#include "proto/tls_hello.h"

enum cv_sniff_outcome {
    CV_SNIFF_NONE = 0,    /* nothing was looked at, or it is not known yet */
    CV_SNIFF_TLS,         /* a name by TLS */
    CV_SNIFF_HTTP,        /* a name by HTTP/1 */
    CV_SNIFF_QUIC,        /* a name by QUIC */
    CV_SNIFF_UNSUPPORTED, /* another protocol, or one of these without a name */
    CV_SNIFF_TIMEOUT,     /* the client did not say enough in time */
    CV_SNIFF_MALFORMED,   /* it broke the protocol, or the name is none */
    CV_SNIFF_LIMIT,       /* it said more than is looked at */
    CV_SNIFF_INCOMPLETE,  /* it ended before it had said enough */
    CV_SNIFF_OUTCOMES
};

static inline bool cv_sniff_is_match(enum cv_sniff_outcome o)
{
    return o == CV_SNIFF_TLS || o == CV_SNIFF_HTTP || o == CV_SNIFF_QUIC;
}
/* "matched", "unsupported", ...; "" for NONE. */
const char *cv_sniff_outcome_name(enum cv_sniff_outcome o);
/* "tls", "http", "quic" for a match; NULL otherwise. */
const char *cv_sniff_protocol_name(enum cv_sniff_outcome o);
/* Both in one word: "tls_sni", "http_host", "quic_sni", "unsupported", ... */
const char *cv_sniff_outcome_label(enum cv_sniff_outcome o);

/* Judge a name that a client gave. 0 and its canonical form; CV_E_NOTFOUND for an address in any
 * spelling; CV_E_PARSE for anything else. */
int cv_sniff_host(const char *s, size_t len, struct cv_host *ret_host) CV_MUST_CHECK;
/* What a hello says: a match with its host, UNSUPPORTED or MALFORMED. 'match' is what a good name
 * is called. */
enum cv_sniff_outcome cv_sniff_hello(const struct cv_tls_hello *h, enum cv_sniff_outcome match,
                                     struct cv_host *ret_host);

/* All zero at the beginning. */
struct cv_sniff {
    uint8_t _state;  /* enum in sniff.c */
    uint32_t _pos;   /* bytes of the request line that were looked at */
    uint32_t _space; /* where the method ends, or 0 */
    struct cv_tls_hello_scan _tls;
    struct cv_http1_scan _http;
};

/* Look at 'data', all bytes since the beginning (not none). 0 and the outcome, with *ret_host for a
 * match; CV_E_MORE; -ENOMEM. */
int cv_sniff_look(struct cv_sniff *s, const void *data, size_t len,
                  enum cv_sniff_outcome *ret_outcome, struct cv_host *ret_host) CV_MUST_CHECK;
