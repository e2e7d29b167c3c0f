/* What the files of the HTTP server share.
 *
 * One struct http_conn is one client connection. It lives through requests, one after the other,
 * each with a session record of its own, and ends by closing or by becoming a tunnel:
 *
 *   HEAD -> (AUTH) -> DIAL -> FORWARD -> HEAD ...     absolute-form requests
 *                          -> TUNNEL                  CONNECT, and FORWARD answered with 101
 *                  -> SNIFF -> DIAL -> TUNNEL         CONNECT, where the first bytes decide along
 *        any of these      -> REPLY -> HEAD or end    answers of our own
 *
 * http.c reads heads, checks logins and answers by itself; http_forward.c moves one request and its
 * response; http_origin.c keeps an origin connection for the next request; http_tunnel.c hands over
 * to the relay; http_rate.c keeps to the user's rate; http_error.c writes pages; http_side.c moves
 * bytes of one stream.
 *
 * Everything runs from cv_http_run(), which is called by every event and returns when all that can
 * be done now is done. The memory of a connection is released at the end of the loop's turn, so
 * c->state may be read after any call. */
#pragma once

#include "common/buf.h"
#include "flow/auth.h"
#include "flow/flow.h"
#include "flow/relay.h"
#include "flow/way.h"
#include "inbound/listener.h"
#include "proto/http1.h"

#define CV_HTTP_TRIES_MAX       8            /* failed logins of one connection */
#define CV_HTTP_DRAIN_MAX       (1u << 20)   /* of a refused request's body */
#define CV_HTTP_KEEP_ALIVE_MS   60000        /* between two requests */
#define CV_HTTP_REPLY_MS        30000        /* to take our answer and send the refused body */
#define CV_HTTP_TUNE_MS         10000        /* an exchange of this age gets TCP keepalive */
#define CV_HTTP_AHEAD_MAX       (16u << 10)  /* read ahead of the current request */
#define CV_HTTP_IN_MAX          (160u << 10) /* a head and a full read behind it */
#define CV_HTTP_OUT_MAX         (256u << 10) /* a head, a full read, and framing */
#define CV_HTTP_INTERIM_MAX     16           /* 1xx responses to one request */
#define CV_HTTP_ROUNDS          32           /* reads in one go, then others get their turn */
#define CV_HTTP_CREDENTIALS_MAX 1024

enum http_state {
    HTTP_STATE_HEAD = 1, /* we are here while the request head is not whole */
    HTTP_STATE_AUTH,     /* ... the login is being checked on another thread */
    HTTP_STATE_SNIFF,    /* ... a CONNECT was answered and the client's first bytes are awaited */
    HTTP_STATE_DIAL,     /* ... the way out is being opened */
    HTTP_STATE_FORWARD,  /* ... a request goes up and its response comes down */
    HTTP_STATE_REPLY,    /* ... an answer of our own leaves, and a refused body is discarded */
    HTTP_STATE_TUNNEL,   /* ... the relay has both streams */
    HTTP_STATE_ENDED,    /* ... the turn is not over; the session is gone, memory goes next */
};

/* One stream with the bytes around it. */
struct http_side {
    struct cv_stream *stream; /* owned; NULL: none */
    struct cv_buf in;         /* read and not used yet */
    struct cv_buf out;        /* to be sent; not taken yet */
    bool eof;                 /* the peer has said that no more comes */
};

/* The current request and its response. Cleared when a head is awaited. */
struct http_exchange {
    enum cv_http1_method method;
    uint8_t minor;
    bool parsed;     /* the head was understood: it is known where the request ends */
    bool persistent; /* the client lets the connection go on */
    bool html;
    bool expect;
    bool upgrade;   /* the client's wish to upgrade was passed on */
    bool broken_up; /* the origin takes no more of the request */
    bool responded; /* the final response head has come */
    bool up_chunked;
    bool chunked;     /* the response leaves in chunks */
    bool until_close; /* ... or ends where the client's connection does */
    bool has_length;
    bool ends_by_close; /* it comes until the origin's connection ends */
    bool down_done;     /* the response has been taken apart to its end */
    bool close;         /* the client was told, or will see, that the connection ends */
    bool abort;         /* the response was cut off; the client shall see that */
    bool reused;        /* the origin connection has served a request before */
    bool heard;         /* the origin has sent a byte */
    bool keep_origin;
    bool bulk;                 /* the last read was a full one */
    bool up_stuck, down_stuck; /* what is buffered is of no use without more */
    uint8_t interim;           /* 1xx responses so far */
    uint32_t head_off;         /* bytes of the request head that were sent */
    struct cv_http1_body up, down;
    struct cv_http1_scan down_scan;
};

/* What is needed while the connection is no tunnel. */
struct http_work {
    struct http_conn *conn;        /* borrowed (owns this) */
    struct cv_listener_conf *conf; /* a reference */
    struct cv_rcstr *user;         /* a reference; whom the certificate names; or NULL */
    struct http_side client, origin;
    struct http_exchange x;
    struct cv_way way; /* of the origin's connection */
    struct cv_http1_scan scan;
    struct cv_target target;
    struct cv_buf head;                              /* the request head as the origin gets it */
    struct cv_auth *auth;                            /* in AUTH */
    struct cv_flow *flow;                            /* in DIAL */
    struct cv_pipe pipe;                             /* rd < 0: none */
    struct cv_throttle *throttle_up, *throttle_down; /* owned; NULL until a rate is on */
    struct cv_timer timer;
    struct cv_task again;
    bool posted;         /* 'again' waits */
    bool later;          /* a request was served before this one */
    bool seen;           /* a byte of this request has come */
    bool replied;        /* the client was told that its tunnel is there */
    bool timed;          /* the deadline of its head has been set */
    bool head_more;      /* what is buffered is no whole head */
    bool client_ready;   /* the client's stream may have something to read */
    bool client_blocked; /* it takes no bytes out of the pipe */
    bool unspliceable;
    bool tuned;            /* keepalive has been set */
    uint8_t tries;         /* failed logins */
    int64_t login_wait_ms; /* 0; or the login was refused for so long */
    int64_t armed_ms;      /* when 'timer' fires */
    int64_t due_ms;        /* when it is meant to; INT64_MAX: not at all */
    int64_t active_ms;     /* last time a byte moved */
    int64_t began_ms;      /* of the exchange */
    uint64_t drain_left;   /* bytes that may still be discarded */
};

struct http_conn {
    struct cv_session super; /* of the current request */
    enum http_state state;
    struct cv_sniffer *sniffer; /* owned; in SNIFF, or while a tunnel is observed; or NULL */
    uint32_t skip_down;         /* bytes of our own that the relay sends, not to be counted */
    struct cv_task release;
    struct http_work *work; /* owned; NULL in TUNNEL and after */
    struct cv_relay relay;  /* in TUNNEL */
};

enum http_step {
    HTTP_WAIT = 1, /* for an event */
    HTTP_AGAIN,    /* something moved, look again */
};

/* -- http.c -- */

#define CV_HTTP_CONNECTED "HTTP/1.1 200 Connection Established\r\n\r\n"

void cv_http_run(struct http_conn *c);
/* Open the way out of a CONNECT. */
void cv_http_dial_tunnel(struct http_conn *c);
void cv_http_on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local);
void cv_http_go(struct http_conn *c, enum http_state to);
/* Have the timer fire at 'due_ms', or not at all. */
void cv_http_arm(struct http_conn *c, int64_t due_ms);
/* Answer the current request with the status that belongs to a failure ... */
void cv_http_refuse(struct http_conn *c, enum cv_stage stage, int err);
/* ... or with one that says more. Both leave for REPLY. */
void cv_http_refuse_text(struct http_conn *c, enum cv_stage stage, int err, unsigned status,
                         const char *text);
/* The request is answered and the answer was taken: await the next one, or end. */
void cv_http_next(struct http_conn *c);
/* End the connection. 'linger': the client shall be able to read what it was sent. */
void cv_http_end(struct http_conn *c, bool linger, bool abort);
/* The client is gone, or its stream has failed with 'err'. */
void cv_http_client_gone(struct http_conn *c, int err);
/* Read ahead of what is needed now, to learn about the client's end. */
void cv_http_read_ahead(struct http_conn *c);
/* Release what the time before a tunnel needed; streams that are still here are closed. */
void cv_http_work_free(struct http_conn *c);
bool cv_http_is_draining(const struct http_conn *c);

/* -- http_side.c -- */

void cv_http_side_init(struct http_side *s);
void cv_http_side_close(struct http_side *s, bool abort);
/* Send what waits in 'out' and then 'iov'; what is not taken waits in 'out'. 0 and bytes taken in
 * *ret_n, or why the stream is broken. */
int cv_http_side_send(struct http_side *s, struct iovec *iov, int iovcnt, size_t *ret_n);

/* Bytes to look at: in the worker's scratch memory or in the side's buffer. */
struct http_view {
    uint8_t *p;
    size_t len;
    size_t kept; /* so many of the first bytes are still in 'in' as well */
};
/* Bytes of a head, from its beginning: what is buffered, or with 'more' what the stream adds to it,
 * of which at most 'max' (> 0) bytes are read. 0; -EAGAIN; CV_E_CANCELED at the end of the stream;
 * other codes. */
int cv_http_side_head(struct http_side *s, struct cv_worker *w, bool more, size_t max,
                      struct http_view *ret_v);
/* Bytes of a body, always in scratch memory, so that they may be changed; at most 'max' (> 0),
 * unless 'more' says that less than what is buffered is of no use. Same codes. */
int cv_http_side_body(struct http_side *s, struct cv_worker *w, bool more, size_t max,
                      struct http_view *ret_v);
/* The first 'used' bytes are dealt with; the others are kept. 0 or -ENOMEM, CV_E_LIMIT. */
int cv_http_side_used(struct http_side *s, const struct http_view *v, size_t used);

/* -- http_forward.c -- */

/* The origin connection of this session is there: begin. */
void cv_http_forward_start(struct http_conn *c);
enum http_step cv_http_forward_step(struct http_conn *c);
/* When the timer is to fire in FORWARD, and what to do then. */
int64_t cv_http_forward_due(const struct http_conn *c);
void cv_http_forward_timeout(struct http_conn *c);

/* -- http_splice.c -- */

/* Is the rest of the answer, or what is in the pipe, to be moved this way? Gets a pipe. */
bool cv_http_splice_is_on(struct http_conn *c);
/* Fill the pipe if it is empty, with at most 'max' bytes. 0; -EAGAIN; CV_E_CANCELED at the end of
 * the stream; other codes. */
int cv_http_splice_read(struct http_conn *c, size_t max);
/* Empty it into the client. 0 and bytes; -EAGAIN; other codes. */
int cv_http_splice_send(struct http_conn *c, size_t *ret_n);
void cv_http_splice_done(struct http_conn *c);

/* -- http_rate.c -- */

/* How many bytes of one direction of the current exchange may be read now. 0 and *ret_n, which is 0
 * when it has to wait; then cv_http_run() is called in time. -ENOMEM. */
int cv_http_rate_allow(struct http_conn *c, bool up, size_t *ret_n) CV_MUST_CHECK;
/* 'n' bytes were taken by the other side: count them, and pay for them. */
void cv_http_rate_moved(struct http_conn *c, bool up, size_t n);
/* Nothing more will be read for now. */
void cv_http_rate_rest(struct http_conn *c);
bool cv_http_rate_is_waiting(const struct http_conn *c);
/* The exchange is over; before its session ends. */
void cv_http_rate_done(struct http_conn *c);

/* -- http_origin.c -- */

/* Open a new connection for the current request; the one that is here is closed. */
int cv_http_origin_open(struct http_conn *c) CV_MUST_CHECK;
/* Take it. */
void cv_http_origin_set(struct http_conn *c, struct cv_stream *stream);
/* Decide the current request and, if it may go out on the connection that is here, fill in its
 * session and return true. False: it has to be opened by cv_flow_open(). */
bool cv_http_origin_reuse(struct http_conn *c);
/* Undo that, for a second try on a new connection. */
void cv_http_origin_unuse(struct http_conn *c);
void cv_http_origin_drop(struct http_conn *c, bool abort);
/* Something happened on a connection that serves no request. */
void cv_http_origin_check(struct http_conn *c);

/* -- http_tunnel.c -- */

/* Tell the client that its tunnel is there, and await its first bytes. */
void cv_http_sniff_start(struct http_conn *c);
enum http_step cv_http_sniff_step(struct http_conn *c);
/* Join client and origin; 'hello' is what the client is told first, the buffers of both sides what
 * was read too much. */
void cv_http_tunnel_start(struct http_conn *c, const char *hello);

/* -- http_error.c -- */

struct http_page {
    unsigned status;
    const char *title;   /* NULL: as the status says */
    const char *message; /* constant text */
    const char *stage;   /* "" : none */
    const char *target;  /* "" : none */
    uint64_t session;
    uint64_t retry_after_s; /* 0: not said */
    bool html;
    bool head;  /* to a HEAD request: no body */
    bool close; /* the connection ends */
};
/* Append a whole response. 0 or a negative code. */
int cv_http_error_write(struct cv_buf *out, const struct http_page *p) CV_MUST_CHECK;
const char *cv_http_error_reason(unsigned status);
