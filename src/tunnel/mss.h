/* How large packets inside a tunnel may be, so that what carries them fits the path. */
#pragma once

#include "tunnel/datakey.h"

struct cv_mss_input {
    int32_t mssfix;     /* bytes of an outer packet; -1 = the default, 0 = off */
    bool is_mtu;        /* it counts the outer IP and UDP or TCP headers */
    bool is_fixed;      /* it is the MSS itself */
    uint32_t fragment;  /* 0 = off */
    uint32_t path_mtu;  /* of the route to the server; 0 = not known */
    bool tcp, ip6;      /* of the outer connection */
    uint32_t frame_len; /* framing within the encrypted part */
    uint32_t tun_mtu;
};

/* *ret_mtu: longest IP packet to send; *ret_mss: largest TCP payload over IPv4 (0: what the MTU
 * gives). At least 576 and 536. */
void cv_mss_compute(const struct cv_mss_input *in, const struct cv_datakey *k, uint32_t *ret_mtu,
                    uint32_t *ret_mss);
