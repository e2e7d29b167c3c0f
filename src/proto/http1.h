/* HTTP/1.0 and HTTP/1.1 messages (RFC 9112) as a proxy sees them: bytes in, values out, and heads
 * written anew for the other side. No I/O, no clock, no log, no allocation.
 *
 * A head is read in two steps. cv_http1_scan() looks for its end in a growing buffer, remembers how
 * far it got, and enforces the size limits, so that any splitting of the input costs one pass. Then
 * cv_http1_request_parse() or cv_http1_response_parse() takes the whole head apart; what they
 * return points into the buffer. A body is taken apart by cv_http1_body_decode(), which gives
 * payload without its framing: what is forwarded is always framed again by us, so that no two
 * parsers can disagree about where a message ends.
 *
 * Parsing is strict where leniency has led to request smuggling: CRLF only, no folded fields, no
 * blank before a colon in requests, no control bytes, one Content-Length of digits only,
 * "chunked" as the only transfer coding, never both. What is refused is refused with the status and
 * a sentence for the client in struct cv_http1_fault.
 *
 * Example, server side: scan until 0, parse, answer or forward with cv_http1_request_write(), then
 * cv_http1_body_init() with the request's framing and decode until cv_http1_body_is_done().
 *
 * It does not judge credentials, targets or policies, and does not know which way bytes go. */
#pragma once

#include "common/buf.h"

#define CV_HTTP1_LINE_MAX       (16u << 10) /* request line, without CRLF: 414 above */
#define CV_HTTP1_REQUEST_MAX    (32u << 10) /* whole request head: 431 above */
#define CV_HTTP1_RESPONSE_MAX   (64u << 10) /* whole response head */
#define CV_HTTP1_FIELDS_MAX     200         /* fields of a head: 431 above */
#define CV_HTTP1_TOKENS_MAX     32          /* elements of all Connection fields together */
#define CV_HTTP1_CHUNK_LINE_MAX 4096        /* chunk size with its extensions */
#define CV_HTTP1_EXTENSIONS_MAX (64u << 10) /* all chunk extensions of a body together */
#define CV_HTTP1_TRAILER_MAX    (8u << 10)  /* whole trailer section */

/* Why a message was refused; for a request 'status' is what the client is told. */
struct cv_http1_fault {
    unsigned status;
    const char *text; /* constant; a sentence without a full stop */
};

enum cv_http1_kind {
    CV_HTTP1_REQUEST = 1,
    CV_HTTP1_RESPONSE,
    CV_HTTP1_TRAILER,
};

/* How far a growing head was searched; all zero at the beginning of each message. */
struct cv_http1_scan {
    uint32_t _pos;   /* bytes already searched */
    uint32_t _line;  /* where the current line begins */
    uint32_t _start; /* where the message begins, after an empty line before it */
    uint32_t _lines; /* lines that have ended */
};

/* Look for the end of the head in 'data', which holds all bytes since its beginning. 0 and the
 * length of the head with its last CRLF; CV_E_MORE; CV_E_PROTO with *reterr. The outcome does not
 * depend on how the bytes were split into calls. */
int cv_http1_scan(struct cv_http1_scan *s, enum cv_http1_kind kind, const void *data, size_t len,
                  size_t *ret_len, struct cv_http1_fault *reterr) CV_MUST_CHECK;

/* Fields that mean something to a proxy. */
enum cv_http1_name {
    CV_HTTP1_OTHER = 0,
    CV_HTTP1_HOST,
    CV_HTTP1_CONTENT_LENGTH,
    CV_HTTP1_TRANSFER_ENCODING,
    CV_HTTP1_CONNECTION,
    CV_HTTP1_KEEP_ALIVE,
    CV_HTTP1_TE,
    CV_HTTP1_TRAILER_FIELD,
    CV_HTTP1_UPGRADE,
    CV_HTTP1_EXPECT,
    CV_HTTP1_ACCEPT,
    CV_HTTP1_MAX_FORWARDS,
    CV_HTTP1_PROXY_AUTHORIZATION,
    CV_HTTP1_PROXY_CONNECTION,
    CV_HTTP1_PROXY_OTHER, /* any other name that begins with "proxy-" */
    CV_HTTP1_NAMES
};

struct cv_http1_str {
    const char *p; /* borrowed from the buffer that was parsed; not NUL-terminated */
    uint32_t len;
};

struct cv_http1_field {
    struct cv_http1_str name;
    struct cv_http1_str value; /* without blanks around it */
    uint8_t id;                /* enum cv_http1_name */
    bool hop;                  /* named by Connection: ends here */
};

/* What both kinds of head have. About 8 KiB: for the stack, not for keeping. */
struct cv_http1_head {
    uint32_t n_fields;
    uint8_t minor; /* 0 or 1 */
    bool close;    /* Connection said so */
    bool keep_alive;
    bool upgrade;                  /* Connection named Upgrade, and there is such a field */
    uint8_t count[CV_HTTP1_NAMES]; /* fields by enum cv_http1_name */
    uint8_t last[CV_HTTP1_NAMES];  /* index of the last one; only where count is not 0 */
    struct cv_http1_field fields[CV_HTTP1_FIELDS_MAX];
};

enum cv_http1_framing {
    CV_HTTP1_EMPTY = 0, /* no body */
    CV_HTTP1_LENGTH,
    CV_HTTP1_CHUNKED,
    CV_HTTP1_CLOSE, /* responses: until the connection ends */
};

enum cv_http1_method {
    CV_HTTP1_METHOD_OTHER = 0,
    CV_HTTP1_GET,
    CV_HTTP1_HEAD,
    CV_HTTP1_POST,
    CV_HTTP1_PUT,
    CV_HTTP1_DELETE,
    CV_HTTP1_OPTIONS,
    CV_HTTP1_TRACE,
    CV_HTTP1_CONNECT,
};

enum cv_http1_form {
    CV_HTTP1_FORM_AUTHORITY = 1, /* CONNECT host:port */
    CV_HTTP1_FORM_ABSOLUTE,      /* GET http://host/path */
    CV_HTTP1_FORM_ORIGIN,        /* GET /path, or OPTIONS *: not what a proxy is asked */
};

struct cv_http1_request {
    struct cv_http1_str method;
    enum cv_http1_method kind;
    enum cv_http1_form form;
    struct cv_http1_str authority; /* "host" or "host:port" as given; empty for ORIGIN */
    struct cv_http1_str path;      /* with the query; may lack its "/", see 'path_prefix' */
    const char *path_prefix;       /* "", "/" or "*" to be put before 'path' */
    enum cv_http1_framing framing;
    uint64_t length; /* for LENGTH */
    bool persistent; /* the client wants the connection to go on */
    bool expect;     /* Expect: 100-continue */
    bool html;       /* Accept names text/html */
    struct cv_http1_head head;
};

struct cv_http1_response {
    unsigned status;
    struct cv_http1_str reason;
    enum cv_http1_framing framing;
    bool has_length; /* also when there is no body (HEAD, 304) */
    uint64_t length;
    bool persistent;
    struct cv_http1_head head;
};

/* Take a whole head apart ('len' as scan gave it). 0, or CV_E_PROTO with *reterr; then only
 * 'method', 'kind', 'head.minor' and 'html' may be used, as far as they were reached. */
int cv_http1_request_parse(struct cv_http1_request *r, const char *data, size_t len,
                           struct cv_http1_fault *reterr) CV_MUST_CHECK;
/* 'asked' is the method of the request that this answers. */
int cv_http1_response_parse(struct cv_http1_response *r, const char *data, size_t len,
                            enum cv_http1_method asked,
                            struct cv_http1_fault *reterr) CV_MUST_CHECK;

/* User and password of "Basic <base64>", split at the first colon, NUL-terminated in 'out'. 0;
 * CV_E_PARSE for another scheme or bad base64; CV_E_LIMIT when longer than 'cap'. The caller clears
 * 'out', also after a failure. */
int cv_http1_basic_parse(struct cv_http1_str value, char *out, size_t cap,
                         struct cv_http1_str *ret_user, struct cv_http1_str *ret_pass);

/* May a request of this method be sent again when its first sending was lost? (RFC 9110 9.2.2) */
bool cv_http1_method_is_idempotent(enum cv_http1_method m);

/* ---- Heads for the other side ---- */

/* Append the head of 'r' for an origin server: origin-form, 'host' as Host, hop-by-hop fields and
 * everything for proxies left out, framing written anew, Expect and Upgrade passed when asked.
 * 'upgrade': let the client's wish to upgrade through. 0, CV_E_LIMIT or -ENOMEM. */
int cv_http1_request_write(struct cv_buf *out, const struct cv_http1_request *r, const char *host,
                           bool upgrade) CV_MUST_CHECK;

struct cv_http1_reply_opts {
    enum cv_http1_framing framing; /* how the body will be sent */
    unsigned minor;                /* of the client */
    bool close;                    /* say that the connection ends after this message */
    bool upgrade;                  /* 101: pass Upgrade */
};
/* Append the head of 'r' for a client. */
int cv_http1_response_write(struct cv_buf *out, const struct cv_http1_response *r,
                            const struct cv_http1_reply_opts *opts) CV_MUST_CHECK;
/* Append the fields of a trailer section that may be forwarded (without the empty line). */
int cv_http1_trailer_write(struct cv_buf *out, const char *data, size_t len) CV_MUST_CHECK;

/* Write "<hex>\r\n" for a chunk of 'n' bytes; returns its length. */
#define CV_HTTP1_CHUNK_HEAD_MAX 18
size_t cv_http1_chunk_head(char out[CV_HTTP1_CHUNK_HEAD_MAX], uint64_t n);

/* ---- Bodies ---- */

struct cv_http1_body {
    uint8_t _framing; /* enum cv_http1_framing */
    uint8_t _state;   /* enum in http1_body.c */
    uint8_t _digits;
    uint16_t _line;       /* bytes of the current chunk line */
    uint32_t _extensions; /* bytes of chunk extensions so far */
    uint64_t _left;       /* bytes until the end of the body, or of the chunk */
    struct cv_http1_scan _scan;
};

struct cv_http1_piece {
    size_t used;         /* bytes that are dealt with */
    uint8_t *data;       /* payload, somewhere within the input */
    size_t data_len;     /* 0: none in this piece */
    const char *trailer; /* trailer section with its last empty line, within the input; or NULL */
    size_t trailer_len;
};

void cv_http1_body_init(struct cv_http1_body *b, enum cv_http1_framing framing, uint64_t length);
/* Take the framing off. The payload of several chunks is moved together within 'src', which is why
 * it is not const. Bytes beyond 'used' are behind the body or, while it is not done, part of an
 * unfinished trailer section: those are given again, with more, in the next call. Framing CLOSE is
 * ended by the caller. 0 or CV_E_PROTO. */
int cv_http1_body_decode(struct cv_http1_body *b, uint8_t *src, size_t len,
                         struct cv_http1_piece *ret_piece,
                         struct cv_http1_fault *reterr) CV_MUST_CHECK;
/* 'n' payload bytes of a body with framing LENGTH were moved unseen; not more than are left. */
void cv_http1_body_skip(struct cv_http1_body *b, size_t n);
bool cv_http1_body_is_done(const struct cv_http1_body *b);
/* Bytes that are certainly still to come (payload only). */
uint64_t cv_http1_body_left(const struct cv_http1_body *b);
