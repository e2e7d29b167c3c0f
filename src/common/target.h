/* Where a session wants to go: a canonical host name or an IP address, and a port.
 *
 * Everything that a client can write as a host passes through cv_host_parse() before any rule sees
 * it, so that case, a trailing dot, IDNA, an odd spelling of an address, brackets, or an address
 * sent as a name cannot dodge a rule. */
#pragma once

#include "common/addr.h"
#include "common/name.h"

struct cv_host {
    struct cv_ip ip; /* family CV_AF_NONE when it is a name */
    uint8_t name_len;
    char name[CV_NAME_MAX + 1]; /* the canonical name; for an address its text */
};

struct cv_target {
    struct cv_host host;
    uint16_t port;
};

static inline bool cv_host_is_ip(const struct cv_host *h)
{
    return h->ip.family != CV_AF_NONE;
}

/* Parse a host as clients write it: any spelling of an IPv4 address, IPv6 with or without
 * brackets, or a name. IPv4-mapped IPv6 becomes IPv4. A name whose last label is a number (in any
 * spelling) but that is no valid address is refused (WHATWG URL, "ends in a number").
 * 0 or CV_E_PARSE. */
int cv_host_parse(const char *s, size_t len, struct cv_host *ret_host);
void cv_host_from_ip(struct cv_host *ret_host, const struct cv_ip *ip);

/* Parse an authority "host:port" (RFC 3986): IPv6 must be in brackets, no zone, no userinfo, port
 * of 1..5 digits and 1..65535. 'default_port' is used when ":port" is absent; 0 = it is required.
 * 0 or CV_E_PARSE. */
int cv_target_parse(const char *s, size_t len, uint16_t default_port, struct cv_target *ret_target);

#define CV_TARGET_STRLEN (CV_NAME_MAX + 10)
/* "name:443", "[::1]:443". Returns 'out'. */
char *cv_target_format(const struct cv_target *t, char out[CV_TARGET_STRLEN]);
