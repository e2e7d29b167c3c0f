/* DNS messages (RFC 1035, RFC 3596) for resolving by one's own transport: a question for the
 * addresses of a name, and what the answer says. No I/O. */
#pragma once

#include "common/addr.h"

#define CV_DNSMSG_QUERY_MAX 300
#define CV_DNSMSG_ADDRS_MAX 16
#define CV_DNSMSG_UDP_SIZE  1232 /* said with EDNS(0): the longest answer over UDP */

/* Write a recursive question for A (CV_AF_IP4) or AAAA records of 'name', with EDNS(0). 0, or
 * CV_E_INVALID when the name cannot be asked for. */
int cv_dnsmsg_query(const char *name, enum cv_family family, uint16_t id,
                    uint8_t out[CV_DNSMSG_QUERY_MAX], size_t *ret_len) CV_MUST_CHECK;

struct cv_dnsmsg_answer {
    struct cv_ip ips[CV_DNSMSG_ADDRS_MAX];
    size_t n;
    uint32_t ttl_s; /* the shortest of them */
};
/* Read the answer to 'query' (as written above). 0 with addresses; CV_E_MORE: truncated, to be
 * asked again over TCP; CV_E_DNS_NXDOMAIN: no such name, or it has no such address; CV_E_DNS_FAIL:
 * the server refused or failed; CV_E_PROTO: this is no answer to that question, wait on. */
int cv_dnsmsg_answer(const uint8_t *query, size_t query_len, const uint8_t *msg, size_t len,
                     struct cv_dnsmsg_answer *ret_answer) CV_MUST_CHECK;
