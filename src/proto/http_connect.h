/* The client side of HTTP CONNECT (RFC 9110 section 9.3.6): what a proxy is asked, and what it
 * answers, without I/O.
 *
 * Example: "CONNECT name:443 HTTP/1.1" by cv_http_connect_request(), then cv_http_connect_step() on
 * the growing answer until it is 0; what is left behind the used bytes is the origin's first
 * payload. The head of an answer is parsed by the strict parser of http1.h; interim answers (1xx)
 * are skipped; all of it together may have CV_HTTP_CONNECT_REPLY_MAX bytes. The body of a refusal
 * is of no use here and is never read: a proxy that refuses is left. */
#pragma once

#include "common/target.h"
#include "proto/http1.h"

#define CV_HTTP_CONNECT_REPLY_MAX   8192 /* heads of all answers together */
#define CV_HTTP_CONNECT_REQUEST_MAX 1536

/* All zero at the beginning. */
struct cv_http_connect {
    struct cv_http1_scan _scan;
    uint32_t _taken; /* bytes of interim answers */
    unsigned status; /* of the last answer */
};

/* Write the request for 'target' and return its length. An IPv6 address is in brackets. 'user'
 * NULL: without Proxy-Authorization; else Basic (RFC 7617), at most 255 bytes each, which is the
 * caller's promise. 'out' holds a secret then. */
size_t cv_http_connect_request(char out[CV_HTTP_CONNECT_REQUEST_MAX],
                               const struct cv_target *target, const char *user, size_t user_len,
                               const char *pass, size_t pass_len);

/* Look at the bytes of the answer that were not used so far. *ret_used of them are dealt with, also
 * on CV_E_MORE.
 * 0: the tunnel stands. CV_E_MORE. CV_E_UNAVAILABLE: refused, c->status says how. CV_E_PROTO: no
 * valid answer. CV_E_LIMIT: too long. The outcome does not depend on how the bytes were split. */
int cv_http_connect_step(struct cv_http_connect *c, const uint8_t *in, size_t len,
                         size_t *ret_used) CV_MUST_CHECK;

/* The code of a refusal, as if we had dialled: CV_E_AUTH for 407 and 401, CV_E_POLICY for 403,
 * -ETIMEDOUT for 504, CV_E_UNAVAILABLE for all others: they do not say what was wrong. */
int cv_http_connect_status_err(unsigned status);
