/* IP addresses, prefixes and socket addresses.
 *
 * struct cv_ip holds one IPv4 or IPv6 address. cv_ip_parse() accepts the canonical spellings only;
 * cv_ip_parse_any() accepts every spelling that some resolver or browser takes for an IPv4 address
 * (0x7f.1, 127.1, 017700000001, 2130706433), so that no odd spelling of an address is ever taken
 * for a name. cv_ip_class() says what an address is for, by the IANA special-purpose registries
 * (RFC 6890 and its updates); cv_ip_embedded4() finds the IPv4 addresses within an IPv6 address
 * that embeds some: IPv4-mapped, IPv4-compatible, IPv4-translated (RFC 2765), NAT64 (RFC 6052
 * 64:ff9b::/96 and RFC 8215 64:ff9b:1::/48, as a whole or a /96 of it), 6to4 (RFC 3056), Teredo
 * (RFC 4380, the client's address), ISATAP (RFC 5214). Prefixes that one network chose for its own
 * NAT64 or 6rd cannot be known here.
 *
 * Nothing here allocates, blocks or asks a resolver. */
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/defs.h"

enum cv_family {
    CV_AF_NONE = 0,
    CV_AF_IP4 = 4,
    CV_AF_IP6 = 6,
};

struct cv_ip {
    uint8_t family; /* enum cv_family */
    uint8_t b[16];  /* network order; the first 4 for IPv4, the rest zero */
};

/* A prefix with its host bits cleared. */
struct cv_prefix {
    struct cv_ip ip;
    uint8_t len; /* 0..32 or 0..128 */
};

enum cv_ip_class {
    CV_IP_GLOBAL = 0,  /* ordinary unicast; everything else is special */
    CV_IP_UNSPECIFIED, /* 0.0.0.0/8, :: */
    CV_IP_LOOPBACK,    /* 127.0.0.0/8, ::1 */
    CV_IP_LINK_LOCAL,  /* 169.254.0.0/16 (cloud metadata lives here), fe80::/10, fec0::/10 */
    CV_IP_PRIVATE,     /* RFC 1918; unique local fc00::/7 */
    CV_IP_CGNAT,       /* 100.64.0.0/10 */
    CV_IP_MULTICAST,   /* 224.0.0.0/4, ff00::/8 */
    CV_IP_RESERVED,    /* 240.0.0.0/4 and broadcast, documentation, benchmarking, 192.0.0.0/24,
                          192.88.99.0/24; IPv6: discard 100::/64, 2001::/23 (with Teredo) but for
                          what the registry calls globally reachable, IPv4-compatible and
                          -translated, 64:ff9b:1::/48, and all outside of 2000::/3 that is none of
                          the above */
};

/* Parse the canonical forms (dotted quad without leading zeroes; RFC 4291 IPv6 without zone).
 * 0 or CV_E_PARSE. */
int cv_ip_parse(const char *s, size_t len, struct cv_ip *ret_ip);
/* Parse every known spelling, also "[v6]". 0 or CV_E_PARSE. */
int cv_ip_parse_any(const char *s, size_t len, struct cv_ip *ret_ip);
/* Parse "ADDR" or "ADDR/LEN"; host bits are cleared. 0 or CV_E_PARSE. */
int cv_prefix_parse(const char *s, size_t len, struct cv_prefix *ret_prefix);
bool cv_prefix_contains(const struct cv_prefix *p, const struct cv_ip *ip);
/* True if every address of 'inner' is in 'outer'. */
bool cv_prefix_covers(const struct cv_prefix *outer, const struct cv_prefix *inner);

bool cv_ip_equal(const struct cv_ip *a, const struct cv_ip *b);
#define CV_IP_EMBEDDED_MAX 4
/* The IPv4 addresses that 'ip', an IPv6 address, embeds; their number, 0 for any other. Several are
 * possible (ISATAP under 6to4, the two layouts of RFC 8215): whoever refuses one of them has to
 * refuse 'ip'. */
size_t cv_ip_embedded4(const struct cv_ip *ip, struct cv_ip out[CV_IP_EMBEDDED_MAX]);
/* Fold IPv4-mapped to IPv4 in place; nothing else changes. */
void cv_ip_fold_mapped(struct cv_ip *ip);
/* The class of the IPv4 address that 'ip' embeds if that is special, else of the address itself:
 * an IPv6 address is CV_IP_GLOBAL only if both are. No family: CV_IP_RESERVED. */
enum cv_ip_class cv_ip_class(const struct cv_ip *ip);
const char *cv_ip_class_name(enum cv_ip_class c); /* "loopback", "private", ... */
/* True if the whole prefix is special (no address in it is CV_IP_GLOBAL). */
bool cv_prefix_is_special(const struct cv_prefix *p);

#define CV_IP_STRLEN 46 /* longest text of cv_ip_format(), with the NUL */
/* RFC 5952 text. Returns 'out'. */
char *cv_ip_format(const struct cv_ip *ip, char out[CV_IP_STRLEN]);
#define CV_PREFIX_STRLEN (CV_IP_STRLEN + 4)
char *cv_prefix_format(const struct cv_prefix *p, char out[CV_PREFIX_STRLEN]);

/* A socket address of any family that is used here: IPv4, IPv6, Unix. */
struct cv_sockaddr {
    socklen_t len;
    union {
        struct sockaddr sa;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
    };
};

/* IPv4 and IPv6 only; 28 bytes in place of 110, for what each session keeps. */
struct cv_endpoint {
    struct cv_ip ip; /* family CV_AF_NONE: unknown, or a Unix socket */
    uint16_t port;
};

void cv_sockaddr_from_ip(struct cv_sockaddr *ret_sa, const struct cv_ip *ip, uint16_t port);
/* IPv4-mapped addresses are folded. A Unix or unknown address gives family CV_AF_NONE. */
void cv_endpoint_from_sockaddr(struct cv_endpoint *ret_ep, const struct sockaddr *sa);
/* Parse "host:port" with an IP literal, "[v6]:port", ":port" (any address, dual stack),
 * "unix:/path". IPv4-mapped becomes IPv4; port 0 is allowed, the kernel chooses. Names and
 * abstract Unix addresses are refused. 0 or CV_E_PARSE. */
int cv_sockaddr_parse(const char *s, struct cv_sockaddr *ret_sa);

#define CV_ENDPOINT_STRLEN (CV_IP_STRLEN + 8)
/* "1.2.3.4:80", "[::1]:80", "unix" when the family is CV_AF_NONE. Returns 'out'. */
char *cv_endpoint_format(const struct cv_endpoint *ep, char out[CV_ENDPOINT_STRLEN]);
#define CV_SOCKADDR_STRLEN 128
char *cv_sockaddr_format(const struct cv_sockaddr *sa, char out[CV_SOCKADDR_STRLEN]);
