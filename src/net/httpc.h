/* An HTTP client for the control thread: one libcurl multi handle on our loop. For what a node asks
 * of the outside now and then (snapshots, lists), not for clients' traffic.
 *
 * A request is a GET. Nothing on it can hang: it has a time limit for all of it, however slowly
 * bytes drip; its answer has a size limit, which holds for what it unpacks to (gzip, zstd ... are
 * accepted). Redirects are answers like any other, so that a token goes nowhere but where it was
 * meant to.
 *
 * Life: cv_httpc_new(), cv_httpc_get() for each request, whose callback comes exactly once, never
 * from inside the call, unless it was cancelled first; cv_httpc_free() after the last one. */
#pragma once

#include "net/loop.h"

struct cv_httpc;
struct cv_httpc_call;

struct cv_httpc_request {
    const char *url;
    const char *const *headers; /* "Name: value", each a secret; copied */
    size_t n_headers;
    int64_t timeout_ms;
    size_t max_bytes;        /* of the body, unpacked */
    const char *ca_file;     /* "" or NULL: the system's authorities */
    const char *client_cert; /* PEM file; "" or NULL: none */
    const char *client_key;  /* likewise; NULL or "": within client_cert */
};

/* What came. Borrowed during the callback; the body is cleared afterwards, it may hold secrets. */
struct cv_httpc_answer {
    /* 0: there is a status. CV_E_LIMIT: the body is too large. -ETIMEDOUT; CV_E_DNS_FAIL;
     * CV_E_TLS; CV_E_PROTO; -ECONNREFUSED and so on: see 'text'. */
    int err;
    const char *text; /* a sentence about 'err', for people */
    unsigned status;
    const char *body;
    size_t body_len;
    struct cv_httpc_call *call; /* for cv_httpc_header() */
};

/* The call is over: it is not to be cancelled any more. May not free the client. */
typedef void (*cv_httpc_cb)(void *arg, const struct cv_httpc_answer *a);

/* 0 or a negative code. */
int cv_httpc_new(struct cv_loop *loop, struct cv_httpc **ret_client) CV_MUST_CHECK;
/* Cancels what runs. NULL is accepted. */
void cv_httpc_free(struct cv_httpc *c);

/* Ask. 0 and *ret_call, valid until the callback or the cancel; CV_E_INVALID: no http(s) URL;
 * -ENOMEM. Everything of 'r' is copied. */
int cv_httpc_get(struct cv_httpc *c, const struct cv_httpc_request *r, cv_httpc_cb cb, void *arg,
                 struct cv_httpc_call **ret_call) CV_MUST_CHECK;
void cv_httpc_cancel(struct cv_httpc_call *call); /* NULL is accepted */
/* Value of a field of the answer's head; NULL: it has none. Borrowed; valid until the next call. */
const char *cv_httpc_header(struct cv_httpc_call *call, const char *name);
