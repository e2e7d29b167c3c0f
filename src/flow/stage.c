#include "flow/stage.h"

#include <errno.h>

#include "common/err.h"

#include "common/poison.h"

#define ANY_STAGE CV_STAGE_MAX
#define ANY_ERR   0

static const char *const names[CV_STAGE_MAX] = {
    [CV_STAGE_NONE] = "",
    [CV_STAGE_PARSE] = "parse",
    [CV_STAGE_AUTH] = "auth",
    [CV_STAGE_LIMIT] = "limit",
    [CV_STAGE_POLICY] = "policy",
    [CV_STAGE_DNS] = "dns",
    [CV_STAGE_DIAL] = "dial",
    [CV_STAGE_TLS] = "tls",
    [CV_STAGE_OUTBOUND] = "outbound",
    [CV_STAGE_REVERSE_LOOKUP] = "reverse_lookup",
    [CV_STAGE_REVERSE_OPEN] = "reverse_open",
    [CV_STAGE_HOP_CONNECT] = "hop_connect",
    [CV_STAGE_TUNNEL_DOWN] = "tunnel_down",
    [CV_STAGE_CHAIN_EXHAUSTED] = "chain_exhausted",
    [CV_STAGE_EGRESS] = "egress",
    [CV_STAGE_SPLICE] = "splice",
    [CV_STAGE_LISTENER] = "listener",
    [CV_STAGE_SNIFF_READ] = "sniff_read",
    [CV_STAGE_SNI_READ] = "sni_read",
    [CV_STAGE_SNI] = "sni",
    [CV_STAGE_SNI_ALLOWLIST] = "sni_allowlist",
};

/* The reply codes of RFC 1928 section 6. */
enum {
    REP_FAILURE = 1,
    REP_NOT_ALLOWED = 2,
    REP_NET_UNREACHABLE = 3,
    REP_HOST_UNREACHABLE = 4,
    REP_REFUSED = 5,
    REP_TTL_EXPIRED = 6, /* the nearest that the protocol has to "timed out" */
    REP_COMMAND = 7,
    REP_ADDRESS_TYPE = 8,
};

struct answer {
    enum cv_stage stage;
    int err;
    uint8_t rep;
    uint16_t status;
    const char *message;
};

/* The first row that fits answers. A row for one stage and code stands before the row for the code
 * at any stage, and that before the row for the stage with any code. */
static const struct answer answers[] = {
    /* A code that means something else than usual at this stage. */
    {CV_STAGE_AUTH, CV_E_LIMIT, REP_FAILURE, 503, "too many logins are being checked"},
    {CV_STAGE_PARSE, CV_E_UNSUPPORTED, REP_COMMAND, 501, "unsupported command"},
    {CV_STAGE_PARSE, -EAFNOSUPPORT, REP_ADDRESS_TYPE, 400, "unsupported address type"},
    {CV_STAGE_PARSE, -ETIMEDOUT, REP_TTL_EXPIRED, 408, "handshake timed out"},
    {CV_STAGE_PARSE, CV_E_LIMIT, REP_FAILURE, 431, "request too large"},
    {CV_STAGE_AUTH, -ETIMEDOUT, REP_TTL_EXPIRED, 408, "login timed out"},
    {CV_STAGE_AUTH, CV_E_NOTFOUND, REP_NOT_ALLOWED, 403, "identity is not in the snapshot"},
    {CV_STAGE_POLICY, CV_E_AUTH, REP_NOT_ALLOWED, 403, "user no longer exists"},
    {CV_STAGE_SPLICE, -ETIMEDOUT, REP_TTL_EXPIRED, 504, "no data for too long"},
    {CV_STAGE_SPLICE, -ECONNRESET, REP_FAILURE, 502, "connection reset by one side"},
    {CV_STAGE_SPLICE, -EPIPE, REP_FAILURE, 502, "connection closed by the receiving side"},
    {CV_STAGE_SPLICE, CV_E_TLS, REP_FAILURE, 502, "tls record failed"},
    {CV_STAGE_CHAIN_EXHAUSTED, CV_E_UNAVAILABLE, REP_FAILURE, 502,
     "every member of the chain failed"},
    {CV_STAGE_LISTENER, CV_E_UNSUPPORTED, REP_COMMAND, 501, "listener does not carry udp"},
    {CV_STAGE_DIAL, -ELOOP, REP_HOST_UNREACHABLE, 502, "origin leads back to this listener"},
    {CV_STAGE_SNI_READ, -ETIMEDOUT, REP_TTL_EXPIRED, 408, "ClientHello did not come in time"},
    {CV_STAGE_SNI, CV_E_LIMIT, REP_FAILURE, 431, "ClientHello too large"},
    {CV_STAGE_LISTENER, CV_E_LIMIT, REP_FAILURE, 503, "too many sessions"},
    {CV_STAGE_DIAL, CV_E_INVALID, REP_FAILURE, 502, "upstream address is not host:port"},
    /* Its login is the operator's affair: the client, whose own was right, gets no 407. */
    {CV_STAGE_OUTBOUND, CV_E_AUTH, REP_FAILURE, 502, "upstream refused the node's login"},
    {CV_STAGE_OUTBOUND, CV_E_POLICY, REP_NOT_ALLOWED, 403, "upstream does not allow the target"},
    {CV_STAGE_OUTBOUND, CV_E_UNAVAILABLE, REP_FAILURE, 502, "upstream could not connect"},
    {CV_STAGE_OUTBOUND, CV_E_UNSUPPORTED, REP_COMMAND, 502, "upstream does not have the command"},
    {CV_STAGE_OUTBOUND, -EAFNOSUPPORT, REP_ADDRESS_TYPE, 502,
     "upstream does not take this kind of address"},
    {CV_STAGE_OUTBOUND, CV_E_PROTO, REP_FAILURE, 502, "upstream broke its protocol"},
    {CV_STAGE_OUTBOUND, -ECONNRESET, REP_FAILURE, 502, "upstream closed the connection"},

    /* Codes that mean the same wherever they occur. */
    {ANY_STAGE, -EPROTONOSUPPORT, REP_COMMAND, 501, "egress cannot carry udp"},
    {ANY_STAGE, CV_E_POLICY, REP_NOT_ALLOWED, 403, "blocked by policy"},
    {ANY_STAGE, CV_E_GUARD, REP_NOT_ALLOWED, 403, "address is private and not allowed by name"},
    {ANY_STAGE, CV_E_EXPIRED, REP_NOT_ALLOWED, 403, "user expired"},
    {ANY_STAGE, CV_E_DRAINING, REP_FAILURE, 503, "node is shutting down"},
    {ANY_STAGE, CV_E_KILLED, REP_NOT_ALLOWED, 403, "ended by an operator"},
    {ANY_STAGE, CV_E_NOTFOUND, REP_NOT_ALLOWED, 403, "user no longer exists"},
    {ANY_STAGE, CV_E_REVOKED, REP_NOT_ALLOWED, 403, "password has changed"},
    {ANY_STAGE, CV_E_BACKOFF, REP_FAILURE, 429, "too many failed logins, try again later"},
    {ANY_STAGE, CV_E_CANCELED, REP_FAILURE, 502, "client went away"},
    {ANY_STAGE, CV_E_UNAVAILABLE, REP_FAILURE, 503, "egress is not up"},
    {ANY_STAGE, CV_E_DNS_NXDOMAIN, REP_HOST_UNREACHABLE, 502, "name does not exist"},
    {ANY_STAGE, CV_E_DNS_FAIL, REP_HOST_UNREACHABLE, 502, "name could not be resolved"},
    {ANY_STAGE, CV_E_DNS_TIMEOUT, REP_HOST_UNREACHABLE, 504, "name servers did not answer"},
    {ANY_STAGE, -ENOMEM, REP_FAILURE, 503, "out of memory"},
    {ANY_STAGE, -EMFILE, REP_FAILURE, 503, "out of descriptors"},
    {ANY_STAGE, -ENFILE, REP_FAILURE, 503, "out of descriptors"},
    {ANY_STAGE, -EADDRNOTAVAIL, REP_FAILURE, 503, "no local address or port left"},
    {ANY_STAGE, -ECONNREFUSED, REP_REFUSED, 502, "connection refused"},
    {ANY_STAGE, -ENETUNREACH, REP_NET_UNREACHABLE, 502, "network unreachable"},
    {ANY_STAGE, -ENETDOWN, REP_NET_UNREACHABLE, 502, "network unreachable"},
    {ANY_STAGE, -EAFNOSUPPORT, REP_NET_UNREACHABLE, 502, "address family not available here"},
    {ANY_STAGE, -EHOSTUNREACH, REP_HOST_UNREACHABLE, 502, "host unreachable"},
    {ANY_STAGE, -EHOSTDOWN, REP_HOST_UNREACHABLE, 502, "host unreachable"},
    {ANY_STAGE, -ETIMEDOUT, REP_TTL_EXPIRED, 504, "connection timed out"},
    {ANY_STAGE, -ECONNRESET, REP_FAILURE, 502, "connection reset"},
    {ANY_STAGE, CV_E_TLS, REP_FAILURE, 502, "tls handshake failed"},

    /* What is left, by stage. */
    {CV_STAGE_PARSE, ANY_ERR, REP_FAILURE, 400, "bad request"},
    {CV_STAGE_AUTH, ANY_ERR, REP_NOT_ALLOWED, 407, "authentication failed"},
    {CV_STAGE_LIMIT, ANY_ERR, REP_NOT_ALLOWED, 429, "connection limit exceeded"},
    {CV_STAGE_POLICY, ANY_ERR, REP_NOT_ALLOWED, 403, "blocked by policy"},
    {CV_STAGE_DNS, ANY_ERR, REP_HOST_UNREACHABLE, 502, "name could not be resolved"},
    {CV_STAGE_DIAL, ANY_ERR, REP_FAILURE, 502, "connect failed"},
    {CV_STAGE_TLS, ANY_ERR, REP_FAILURE, 502, "tls handshake failed"},
    {CV_STAGE_OUTBOUND, ANY_ERR, REP_FAILURE, 502, "upstream connect failed"},
    {CV_STAGE_REVERSE_LOOKUP, ANY_ERR, REP_HOST_UNREACHABLE, 502, "hop is not connected"},
    {CV_STAGE_REVERSE_OPEN, ANY_ERR, REP_FAILURE, 502, "hop did not open a stream"},
    {CV_STAGE_HOP_CONNECT, ANY_ERR, REP_FAILURE, 502, "hop could not connect"},
    {CV_STAGE_TUNNEL_DOWN, ANY_ERR, REP_NET_UNREACHABLE, 503, "tunnel is down"},
    {CV_STAGE_CHAIN_EXHAUSTED, ANY_ERR, REP_FAILURE, 502, "every member of the chain failed"},
    {CV_STAGE_EGRESS, ANY_ERR, REP_FAILURE, 503, "egress kind is not available in this node"},
    {CV_STAGE_SPLICE, ANY_ERR, REP_FAILURE, 502, "tunnel io failed"},
    {CV_STAGE_LISTENER, ANY_ERR, REP_FAILURE, 503, "listener is not available"},
    {CV_STAGE_SNIFF_READ, ANY_ERR, REP_FAILURE, 502, "route sniff read failed"},
    {CV_STAGE_SNI_READ, ANY_ERR, REP_FAILURE, 400, "ClientHello read failed"},
    {CV_STAGE_SNI, ANY_ERR, REP_FAILURE, 400, "valid TLS SNI is required"},
    {CV_STAGE_SNI_ALLOWLIST, ANY_ERR, REP_NOT_ALLOWED, 403, "SNI is not an allowed origin"},
    {ANY_STAGE, ANY_ERR, REP_FAILURE, 502, "failed"},
};

static const struct answer *find(enum cv_stage stage, int err)
{
    const struct answer *a = answers;
    while ((a->stage != ANY_STAGE && a->stage != stage) || (a->err != ANY_ERR && a->err != err))
        a++; /* the last row fits all */
    return a;
}

const char *cv_stage_name(enum cv_stage stage)
{
    return (unsigned)stage < CV_STAGE_MAX ? names[stage] : "";
}

uint8_t cv_stage_socks_rep(enum cv_stage stage, int err)
{
    return find(stage, err)->rep;
}

unsigned cv_stage_http_status(enum cv_stage stage, int err)
{
    return find(stage, err)->status;
}

const char *cv_stage_message(enum cv_stage stage, int err)
{
    return find(stage, err)->message;
}
