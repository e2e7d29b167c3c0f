/* The header of SOCKS5 datagrams on arbitrary bytes. What is checked beside memory: that a header
 * and its payload are all of the datagram, that equal keys give equal targets, and that what we
 * write for a target or a sender is read back as the same. */
#include "proto/socks5_udp.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct cv_target *target)
{
    uint8_t out[CV_SOCKS5_UDP_HEAD_MAX];
    struct cv_socks5_dgram d;
    struct cv_target back;
    size_t n = cv_socks5_dgram_encode_to(out, target);
    CV_ASSERT(n <= sizeof(out));
    CV_ASSERT(cv_socks5_dgram_parse(out, n, &d) == 0 && d.len == 0 && d.key_len == n - 3);
    CV_ASSERT(cv_socks5_dgram_target(d.key, d.key_len, &back) == 0);
    CV_ASSERT(back.port == target->port && strcmp(back.host.name, target->host.name) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *exact = cv_alloc(size + 1);
    struct cv_socks5_dgram d;
    struct cv_target target;
    if (size > 0)
        memcpy(exact, data, size);
    int ret = cv_socks5_dgram_parse(exact, size, &d);
    CV_ASSERT(ret == 0 || ret == CV_E_PROTO || ret == CV_E_UNSUPPORTED);
    if (ret == 0) {
        CV_ASSERT(d.key == exact + 3 && d.data == d.key + d.key_len);
        CV_ASSERT(d.data + d.len == exact + size);
        ret = cv_socks5_dgram_target(d.key, d.key_len, &target);
        CV_ASSERT(ret == 0 || ret == CV_E_PARSE);
        if (ret == 0)
            round_trip(&target);
        struct cv_endpoint from, back;
        cv_socks5_dgram_from(&d, &from);
        if (from.ip.family != CV_AF_NONE) {
            uint8_t out[CV_SOCKS5_UDP_FROM_MAX];
            size_t n = cv_socks5_dgram_encode_from(out, &from);
            CV_ASSERT(cv_socks5_dgram_parse(out, n, &d) == 0);
            cv_socks5_dgram_from(&d, &back);
            CV_ASSERT(cv_ip_equal(&back.ip, &from.ip) && back.port == from.port);
        }
    }
    cv_free(exact);
    return 0;
}
