#include "flow/stage.h"

#include <errno.h>

#include "common/err.h"
#include "tap.h"

static const struct {
    enum cv_stage stage;
    int err;
    uint8_t rep;
    unsigned status;
    const char *message;
} rows[] = {
    /* refused here */
    {CV_STAGE_POLICY, CV_E_POLICY, 2, 403, "blocked by policy"},
    {CV_STAGE_POLICY, CV_E_GUARD, 2, 403, "address is private and not allowed by name"},
    {CV_STAGE_DIAL, CV_E_GUARD, 2, 403, "address is private and not allowed by name"},
    {CV_STAGE_AUTH, CV_E_AUTH, 2, 407, "authentication failed"},
    {CV_STAGE_AUTH, CV_E_EXPIRED, 2, 403, "user expired"},
    {CV_STAGE_AUTH, CV_E_LIMIT, 1, 503, "too many logins are being checked"},
    {CV_STAGE_LIMIT, CV_E_LIMIT, 2, 429, "connection limit exceeded"},
    {CV_STAGE_PARSE, CV_E_UNSUPPORTED, 7, 501, "unsupported command"},
    {CV_STAGE_PARSE, -EAFNOSUPPORT, 8, 400, "unsupported address type"},
    {CV_STAGE_PARSE, CV_E_PROTO, 1, 400, "bad request"},
    {CV_STAGE_PARSE, -ETIMEDOUT, 6, 408, "handshake timed out"},
    {CV_STAGE_SPLICE, CV_E_DRAINING, 1, 503, "node is shutting down"},
    {CV_STAGE_SPLICE, CV_E_KILLED, 2, 403, "ended by an operator"},
    {CV_STAGE_SPLICE, CV_E_NOTFOUND, 2, 403, "user no longer exists"},
    {CV_STAGE_LISTENER, CV_E_LIMIT, 1, 503, "too many sessions"},
    /* names */
    {CV_STAGE_DNS, CV_E_DNS_NXDOMAIN, 4, 502, "name does not exist"},
    {CV_STAGE_DNS, CV_E_DNS_FAIL, 4, 502, "name could not be resolved"},
    {CV_STAGE_DNS, CV_E_DNS_TIMEOUT, 4, 504, "name servers did not answer"},
    /* connecting */
    {CV_STAGE_DIAL, -ECONNREFUSED, 5, 502, "connection refused"},
    {CV_STAGE_DIAL, -ENETUNREACH, 3, 502, "network unreachable"},
    {CV_STAGE_DIAL, -EAFNOSUPPORT, 3, 502, "address family not available here"},
    {CV_STAGE_DIAL, -EHOSTUNREACH, 4, 502, "host unreachable"},
    {CV_STAGE_DIAL, -ETIMEDOUT, 6, 504, "connection timed out"},
    {CV_STAGE_DIAL, -ECONNRESET, 1, 502, "connection reset"},
    {CV_STAGE_DIAL, -EMFILE, 1, 503, "out of descriptors"},
    {CV_STAGE_DIAL, -ENOMEM, 1, 503, "out of memory"},
    {CV_STAGE_DIAL, -EACCES, 1, 502, "connect failed"},
    {CV_STAGE_OUTBOUND, CV_E_PROTO, 1, 502, "upstream broke its protocol"},
    {CV_STAGE_OUTBOUND, CV_E_LIMIT, 1, 502, "upstream connect failed"},
    {CV_STAGE_OUTBOUND, CV_E_AUTH, 1, 502, "upstream refused the node's login"},
    {CV_STAGE_OUTBOUND, CV_E_POLICY, 2, 403, "upstream does not allow the target"},
    {CV_STAGE_OUTBOUND, -ENETUNREACH, 3, 502, "network unreachable"},
    {CV_STAGE_OUTBOUND, -EHOSTUNREACH, 4, 502, "host unreachable"},
    {CV_STAGE_OUTBOUND, -ECONNREFUSED, 5, 502, "connection refused"},
    {CV_STAGE_OUTBOUND, -ETIMEDOUT, 6, 504, "connection timed out"},
    {CV_STAGE_OUTBOUND, CV_E_UNSUPPORTED, 7, 502, "upstream does not have the command"},
    {CV_STAGE_OUTBOUND, -EAFNOSUPPORT, 8, 502, "upstream does not take this kind of address"},
    {CV_STAGE_OUTBOUND, CV_E_UNAVAILABLE, 1, 502, "upstream could not connect"},
    {CV_STAGE_OUTBOUND, -ECONNRESET, 1, 502, "upstream closed the connection"},
    {CV_STAGE_DIAL, CV_E_INVALID, 1, 502, "upstream address is not host:port"},
    {CV_STAGE_OUTBOUND, -ETIMEDOUT, 6, 504, "connection timed out"},
    {CV_STAGE_TLS, CV_E_TLS, 1, 502, "tls handshake failed"},
    {CV_STAGE_AUTH, CV_E_BACKOFF, 1, 429, "too many failed logins, try again later"},
    {CV_STAGE_SPLICE, CV_E_REVOKED, 2, 403, "password has changed"},
    {CV_STAGE_TUNNEL_DOWN, CV_E_UNAVAILABLE, 1, 503, "egress is not up"},
    {CV_STAGE_TUNNEL_DOWN, -EIO, 3, 503, "tunnel is down"},
    {CV_STAGE_EGRESS, CV_E_UNSUPPORTED, 1, 503, "egress kind is not available in this node"},
    {CV_STAGE_CHAIN_EXHAUSTED, CV_E_UNAVAILABLE, 1, 502, "every member of the chain failed"},
    {CV_STAGE_CHAIN_EXHAUSTED, -ECONNREFUSED, 5, 502, "connection refused"},
    {CV_STAGE_CHAIN_EXHAUSTED, -ETIMEDOUT, 6, 504, "connection timed out"},
    {CV_STAGE_CHAIN_EXHAUSTED, CV_E_PROTO, 1, 502, "every member of the chain failed"},
    /* later */
    {CV_STAGE_SPLICE, -ETIMEDOUT, 6, 504, "no data for too long"},
    {CV_STAGE_SPLICE, -EIO, 1, 502, "tunnel io failed"},
    {CV_STAGE_NONE, -EIO, 1, 502, "failed"},
};

static void test_table(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        printf("# row %zu\n", i);
        T_INT_EQ(cv_stage_socks_rep(rows[i].stage, rows[i].err), rows[i].rep);
        T_INT_EQ(cv_stage_http_status(rows[i].stage, rows[i].err), rows[i].status);
        T_STR_EQ(cv_stage_message(rows[i].stage, rows[i].err), rows[i].message);
    }
}

/* Whatever the pair: a valid reply, an error status, a sentence. Never success. */
static void test_every_pair(void)
{
    for (int stage = CV_STAGE_NONE; stage < CV_STAGE_MAX; stage++) {
        for (int err = -1030; err < 0; err++) {
            uint8_t rep = cv_stage_socks_rep((enum cv_stage)stage, err);
            unsigned status = cv_stage_http_status((enum cv_stage)stage, err);
            const char *message = cv_stage_message((enum cv_stage)stage, err);
            if (rep < 1 || rep > 8 || status < 400 || status > 599 || message[0] == '\0') {
                T_FAIL("stage %d err %d", stage, err);
                return;
            }
        }
    }
    T_OK(true);
}

static void test_names(void)
{
    T_STR_EQ(cv_stage_name(CV_STAGE_NONE), "");
    T_STR_EQ(cv_stage_name(CV_STAGE_CHAIN_EXHAUSTED), "chain_exhausted");
    T_STR_EQ(cv_stage_name(CV_STAGE_MAX), "");
    for (int a = 1; a < CV_STAGE_MAX; a++) {
        T_OK(cv_stage_name((enum cv_stage)a)[0] != '\0');
        for (int b = a + 1; b < CV_STAGE_MAX; b++)
            T_OK(strcmp(cv_stage_name((enum cv_stage)a), cv_stage_name((enum cv_stage)b)) != 0);
    }
}

int main(void)
{
    T_RUN(test_table);
    T_RUN(test_every_pair);
    T_RUN(test_names);
    return t_done();
}
