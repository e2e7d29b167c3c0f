/* What a server pushes: "PUSH_REPLY,option,option,..." in one or several messages, merged. */
#pragma once

#include "common/addr.h"
#include "tunnel/profile.h"

#define CV_PUSH_DNS_MAX    8
#define CV_PUSH_ROUTES_MAX 64

struct cv_push {
    struct cv_ip ip4, ip6; /* family CV_AF_NONE: not pushed */
    uint8_t ip4_len;       /* of its subnet; 32 with a peer address */
    struct cv_ip dns[CV_PUSH_DNS_MAX];
    size_t n_dns;
    char domain[128];
    struct cv_prefix routes[CV_PUSH_ROUTES_MAX];
    size_t n_routes;
    bool redirect_gateway;
    bool topology_subnet;
    int32_t ping, ping_restart, ping_exit; /* s; -1 = not pushed */
    int32_t inactive;                      /* s; -1 */
    int32_t peer_id;                       /* -1 */
    int32_t tun_mtu;                       /* -1 */
    int32_t mssfix;                        /* -1 */
    int32_t exit_notify;                   /* -1 */
    char cipher[32], auth[24];             /* "" = not pushed */
    char auth_token[512];                  /* a secret */
    bool tls_ekm, cc_exit;
    int comp;          /* enum cv_profile_comp; -1 = not pushed */
    char rejected[64]; /* an option that cannot be lived with or that pull-filter rejects; "" */
    char ifconfig_remote[48];
};

void cv_push_init(struct cv_push *p);
/* Add one message, from "PUSH_REPLY" on, without its NUL. 'filters' of the profile may leave
 * options out. 0: it is complete; CV_E_MORE: another message follows; CV_E_PROTO: not a push reply,
 * or an option that cannot be lived with ('rejected' says which). */
int cv_push_parse(struct cv_push *p, const struct cv_profile *profile, const char *text,
                  size_t len);
void cv_push_done(struct cv_push *p); /* clears the token */
