/* Getting the snapshot from a control plane by HTTP: Rove's poll, and a little more where the
 * server can do it.
 *
 *     GET <snapshot_url>?since=<version in force>[&wait=<seconds>]
 *     Authorization: Bearer <token>
 *     If-None-Match: <ETag of the last answer>
 *
 * 304 or 204: nothing newer. 200: a document, which goes to the source (source.h) and is taken if
 * its version is newer and it compiles. Everything else, an answer that is too large, too slow or
 * cut off, and a document without a right signature where a key is set, is a failure: what is in
 * force stays, and the status says why. A plain file server will do as a control plane.
 *
 * Long poll: a server that can hold a request until there is news says so by the field
 * "Culvert-Wait: <seconds>" in an answer; later requests carry wait=.
 *
 * Signature: "Culvert-Signature: <base64>", Ed25519 over the document's bytes as they are before
 * any Content-Encoding.
 *
 * After a success the next poll follows after poll_ms, after n failures in a row after
 * poll_ms * 2^min(n, 5), at most five minutes (or poll_ms, if that is longer); both vary by chance,
 * so that a fleet does not come all at once. Only one request runs at a time. Control thread only.
 */
#pragma once

#include "control/source.h"
#include "net/httpc.h"

struct cv_sync;

/* Texts are copied; "" or NULL: not set. */
struct cv_sync_conf {
    const char *url;
    const char *token;       /* a secret */
    const char *token_file;  /* read anew for each request; blanks around it are taken off */
    const char *ca;          /* PEM file */
    const char *client_cert; /* PEM file */
    const char *client_key;
    const char *verify_key; /* PEM file; documents must be signed */
    int64_t poll_ms;
    int64_t timeout_ms; /* of one request, without the wait of a long poll */
};

/* Times are unix milliseconds, 0 = never. */
struct cv_sync_status {
    const char *url; /* without user information and query; borrowed */
    bool busy;       /* a request is on its way */
    bool waits;      /* the server holds requests */
    bool is_signed;  /* documents must be signed */
    unsigned last_http_status;
    int64_t last_success_ms; /* of an answer that was good, news or not */
    uint64_t requests, updates, failures;
    uint32_t failures_in_a_row;
    int64_t next_in_ms; /* -1: a request is on its way */
};

/* Begin; the first request follows at once. 'source' is borrowed (outlives). 0; CV_E_INVALID: no
 * http(s) URL; or what cv_verify_key_load() says of the key. */
int cv_sync_new(struct cv_loop *loop, const struct cv_sync_conf *conf, struct cv_source *source,
                struct cv_sync **ret_sync) CV_MUST_CHECK;
void cv_sync_free(struct cv_sync *s); /* NULL is accepted */
/* Read the key anew, which stays as it is if that fails, and ask now; a request that is on its way
 * is left alone, unless the server may hold it. */
void cv_sync_now(struct cv_sync *s);
/* Go on with the counts of one that 's' takes the place of. */
void cv_sync_succeed(struct cv_sync *s, const struct cv_sync *before);
void cv_sync_status(const struct cv_sync *s, struct cv_sync_status *ret);

/* How long to wait after 'failures' in a row (0: after a success). 'random' is any number. */
int64_t cv_sync_pause_ms(int64_t poll_ms, uint32_t failures, uint32_t random);
/* 'url' without user information, query and fragment, for people. Owned by the caller. */
char *cv_sync_shown_url(const char *url);
