/* SOCKS5 on the wire: RFC 1928 and the user/password login of RFC 1929, both sides, without I/O.
 *
 * Parsers look at the beginning of a byte string. They return 0 and how many bytes the message took
 * (what follows belongs to the next message, or to the relay), CV_E_MORE when the bytes are a valid
 * beginning, or an error that no further byte could heal; an error is reported at the first byte
 * that shows it. They keep no state: on CV_E_MORE the caller gathers more bytes and asks again from
 * the same start. A message is at most CV_SOCKS5_LOGIN_MAX bytes, and each parse only steps over
 * its length fields, so a message that comes byte by byte is cheap, too.
 *
 * The server side reads greeting, login, request, and answers each; the client side is the struct
 * cv_socks5_client, which takes what the server sent and says what to send next, until the tunnel
 * stands. Worked example, with the bytes that a server reads and writes for user "u", password "p"
 * and the target 1.2.3.4:80:
 *
 *   05 01 02               cv_socks5_greeting_parse     05 02   cv_socks5_method_encode
 *   01 01 75 01 70         cv_socks5_login_parse        01 00   cv_socks5_login_reply_encode
 *   05 01 00 01 01020304 0050  cv_socks5_request_parse
 *                                     05 00 00 01 0a000001 c350   cv_socks5_reply_encode
 *
 * What this file does not do: judge host names or logins, choose reply codes for failures of the
 * network (flow/stage.h), GSSAPI, BIND, UDP datagrams. */
#pragma once

#include "common/target.h"

#define CV_SOCKS5_VERSION 0x05

#define CV_SOCKS5_GREETING_MAX 257 /* version, count, 255 methods */
#define CV_SOCKS5_LOGIN_MAX    513 /* version, two lengths, 255 bytes each */
#define CV_SOCKS5_REQUEST_MAX  262 /* with a name of 255 bytes */
#define CV_SOCKS5_REPLY_MAX    262
#define CV_SOCKS5_ANSWER_MAX   22 /* longest reply that we write: no names in it */
/* All that a client can send before the relay starts. */
#define CV_SOCKS5_HELLO_MAX      (CV_SOCKS5_GREETING_MAX + CV_SOCKS5_LOGIN_MAX + CV_SOCKS5_REQUEST_MAX)
#define CV_SOCKS5_CREDENTIAL_MAX 255 /* length of a user name or a password */

enum cv_socks5_method {
    CV_SOCKS5_METHOD_NONE = 0x00,
    CV_SOCKS5_METHOD_LOGIN = 0x02,
    CV_SOCKS5_METHOD_REFUSED = 0xff,
};

enum cv_socks5_cmd {
    CV_SOCKS5_CMD_CONNECT = 0x01,
    CV_SOCKS5_CMD_BIND = 0x02,
    CV_SOCKS5_CMD_UDP = 0x03,
};

enum cv_socks5_atyp {
    CV_SOCKS5_ATYP_IP4 = 0x01,
    CV_SOCKS5_ATYP_NAME = 0x03,
    CV_SOCKS5_ATYP_IP6 = 0x04,
};

enum cv_socks5_rep {
    CV_SOCKS5_REP_OK = 0x00,
    CV_SOCKS5_REP_FAILURE = 0x01,
    CV_SOCKS5_REP_POLICY = 0x02,
    CV_SOCKS5_REP_NETWORK = 0x03,
    CV_SOCKS5_REP_HOST = 0x04,
    CV_SOCKS5_REP_REFUSED = 0x05,
    CV_SOCKS5_REP_TTL = 0x06,
    CV_SOCKS5_REP_COMMAND = 0x07,
    CV_SOCKS5_REP_ADDRESS = 0x08,
};

/* Which of the methods that we know were offered; others are skipped, doubles are fine. */
struct cv_socks5_greeting {
    bool none;
    bool login;
};
/* 0; CV_E_MORE; CV_E_PROTO: not version 5. */
int cv_socks5_greeting_parse(const uint8_t *in, size_t len, struct cv_socks5_greeting *ret_greeting,
                             size_t *ret_used);

/* Points into the bytes that were parsed. RFC 1929 wants 1..255 bytes for each; empty ones come
 * through as such, for the caller to judge like any other login. */
struct cv_socks5_login {
    const char *user, *pass; /* no NUL at the end */
    uint8_t user_len, pass_len;
};
/* 0; CV_E_MORE; CV_E_PROTO: not version 1. */
int cv_socks5_login_parse(const uint8_t *in, size_t len, struct cv_socks5_login *ret_login,
                          size_t *ret_used);

struct cv_socks5_request {
    enum cv_socks5_cmd cmd; /* CONNECT or UDP */
    enum cv_socks5_atyp atyp;
    const uint8_t *addr; /* 4, 16 or 0..255 bytes; points into the bytes that were parsed */
    uint8_t addr_len;
    uint16_t port;
};
/* 0; CV_E_MORE; CV_E_PROTO: not version 5; CV_E_UNSUPPORTED: a command that nobody here serves
 * (BIND and what has no name); -EAFNOSUPPORT: an unknown address type. The reserved byte is not
 * looked at. */
int cv_socks5_request_parse(const uint8_t *in, size_t len, struct cv_socks5_request *ret_request,
                            size_t *ret_used);
/* The target in canonical form. 0; CV_E_PARSE: no valid name, or port 0. */
int cv_socks5_request_target(const struct cv_socks5_request *request, struct cv_target *ret_target);

void cv_socks5_method_encode(uint8_t out[2], enum cv_socks5_method method);
void cv_socks5_login_reply_encode(uint8_t out[2], bool ok);
/* 'bnd' NULL or of no family is written as 0.0.0.0:0. Returns the length. */
size_t cv_socks5_reply_encode(uint8_t out[CV_SOCKS5_ANSWER_MAX], uint8_t rep,
                              const struct cv_endpoint *bnd);

/* What a server answered to a request. */
struct cv_socks5_reply {
    uint8_t rep;
    struct cv_endpoint bnd; /* family CV_AF_NONE, but with its port, when the server wrote a name */
};
/* 0; CV_E_MORE; CV_E_PROTO: wrong version or address type. Its length follows from its own address
 * type. A refusal (rep != 0) is complete with its second byte: the server may write no more. */
int cv_socks5_reply_parse(const uint8_t *in, size_t len, struct cv_socks5_reply *ret_reply,
                          size_t *ret_used);

/* The client side of one handshake. */
enum cv_socks5_client_state {
    CV_SOCKS5_CLIENT_STATE_INIT = 0, /* nothing was sent */
    CV_SOCKS5_CLIENT_STATE_METHOD,   /* we are here while the server chooses a method */
    CV_SOCKS5_CLIENT_STATE_LOGIN,    /* ... judges the login */
    CV_SOCKS5_CLIENT_STATE_REPLY,    /* ... dials */
    CV_SOCKS5_CLIENT_STATE_DONE,
    CV_SOCKS5_CLIENT_STATE_FAILED,
};

/* Greeting, login and request together: a server that answers before it was asked gets all three.
 */
#define CV_SOCKS5_CLIENT_OUT_MAX (3 + CV_SOCKS5_LOGIN_MAX + CV_SOCKS5_REQUEST_MAX)

struct cv_socks5_client {
    const char *_user, *_pass;       /* borrowed until the end of the handshake; NULL: no login */
    const struct cv_target *_target; /* borrowed likewise */
    enum cv_socks5_cmd _cmd;
    uint8_t _user_len, _pass_len;
    enum cv_socks5_client_state state;
    struct cv_socks5_reply reply; /* valid in DONE; 'rep' also after CV_E_UNAVAILABLE */
};

/* What the protocol cannot carry is refused here, so that a config is refused when it is loaded and
 * not when it is used. 0, or CV_E_LIMIT: longer than 255 bytes; CV_E_INVALID: no user name. An
 * empty password is against RFC 1929, but there are servers with such users. */
int cv_socks5_credential_check(size_t user_len, size_t pass_len);

/* Ask for 'cmd' with 'target' (for CV_SOCKS5_CMD_UDP that is where datagrams will come from, or
 * 0.0.0.0:0). 'user' NULL: no login is offered. 0, or what cv_socks5_credential_check() says. */
int cv_socks5_client_init(struct cv_socks5_client *c, enum cv_socks5_cmd cmd, const char *user,
                          size_t user_len, const char *pass, size_t pass_len,
                          const struct cv_target *target);
/* Take the bytes that the server sent and were not used so far (none at first), write what has to
 * be sent now to 'out'.
 * CV_E_MORE: send out[0..*ret_out_len), gather more bytes after what is left unused, come again.
 * 0: the tunnel stands as soon as out[0..*ret_out_len) is sent (nothing, unless the server answered
 * before it was asked); what is left unused is its first payload.
 * CV_E_AUTH: the server wants a login that we do not have, none that we have, or refused it.
 * CV_E_UNAVAILABLE: it refused the target, c->reply.rep says why. CV_E_PROTO.
 * 'in' never needs more room than CV_SOCKS5_REPLY_MAX. *ret_used and *ret_out_len are always set.
 */
int cv_socks5_client_step(struct cv_socks5_client *c, const uint8_t *in, size_t len,
                          size_t *ret_used, uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX],
                          size_t *ret_out_len);
/* The code of a refusal, as if we had dialled: CV_E_POLICY for 02, -ENETUNREACH for 03, ...,
 * CV_E_UNSUPPORTED for 07, -EAFNOSUPPORT for 08, CV_E_UNAVAILABLE for what has no meaning of its
 * own. */
int cv_socks5_rep_err(uint8_t rep);
