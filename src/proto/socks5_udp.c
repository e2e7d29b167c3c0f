#include "proto/socks5_udp.h"

#include "common/rd.h"

#include "common/poison.h"

#define PREFIX_LEN 3 /* RSV and FRAG */

/* Read ATYP, address and port. */
static void read_addr(struct cv_rd *r, struct cv_socks5_request *ret_to)
{
    uint8_t atyp = cv_rd_u8(r);
    size_t n = 0;
    switch (atyp) {
    case CV_SOCKS5_ATYP_IP4:
        n = 4;
        break;
    case CV_SOCKS5_ATYP_IP6:
        n = 16;
        break;
    case CV_SOCKS5_ATYP_NAME:
        n = cv_rd_u8(r);
        break;
    default:
        break;
    }
    if (n == 0)
        cv_rd_fail(r);
    const uint8_t *addr = cv_rd_bytes(r, n);
    *ret_to = (struct cv_socks5_request){
        .cmd = CV_SOCKS5_CMD_UDP,
        .atyp = (enum cv_socks5_atyp)atyp,
        .addr = addr,
        .addr_len = (uint8_t)n,
        .port = cv_rd_u16(r),
    };
}

int cv_socks5_dgram_parse(const uint8_t *in, size_t len, struct cv_socks5_dgram *ret_dgram)
{
    struct cv_socks5_dgram d;
    struct cv_rd r;
    cv_rd_init(&r, in, len);
    cv_rd_u16(&r); /* reserved */
    uint8_t frag = cv_rd_u8(&r);
    d.key = r.p;
    size_t before = r.left;
    read_addr(&r, &d.to);
    /* A datagram comes whole: there is no "more". */
    if (r.err != 0)
        return CV_E_PROTO;
    if (frag != 0)
        return CV_E_UNSUPPORTED;
    d.key_len = before - r.left;
    d.data = r.p;
    d.len = r.left;
    *ret_dgram = d;
    return 0;
}

int cv_socks5_dgram_target(const uint8_t *key, size_t key_len, struct cv_target *ret_target)
{
    struct cv_socks5_request to;
    struct cv_rd r;
    cv_rd_init(&r, key, key_len);
    read_addr(&r, &to);
    return r.err != 0 ? CV_E_PARSE : cv_socks5_request_target(&to, ret_target);
}

void cv_socks5_dgram_from(const struct cv_socks5_dgram *dgram, struct cv_endpoint *ret_from)
{
    const struct cv_socks5_request *q = &dgram->to;
    *ret_from = (struct cv_endpoint){.port = q->port};
    if (q->atyp == CV_SOCKS5_ATYP_NAME)
        return;
    ret_from->ip.family = q->atyp == CV_SOCKS5_ATYP_IP4 ? CV_AF_IP4 : CV_AF_IP6;
    memcpy(ret_from->ip.b, q->addr, q->addr_len);
    cv_ip_fold_mapped(&ret_from->ip);
}

static void write_ip(struct cv_wr *w, const struct cv_ip *ip)
{
    bool ip4 = ip->family == CV_AF_IP4;
    cv_wr_u8(w, ip4 ? CV_SOCKS5_ATYP_IP4 : CV_SOCKS5_ATYP_IP6);
    cv_wr_bytes(w, ip->b, ip4 ? 4 : 16);
}

size_t cv_socks5_dgram_encode_from(uint8_t out[CV_SOCKS5_UDP_FROM_MAX],
                                   const struct cv_endpoint *from)
{
    static const uint8_t prefix[PREFIX_LEN];
    struct cv_wr w;
    cv_wr_init(&w, out, CV_SOCKS5_UDP_FROM_MAX);
    cv_wr_bytes(&w, prefix, sizeof(prefix));
    write_ip(&w, &from->ip);
    cv_wr_u16(&w, from->port);
    return w.len;
}

size_t cv_socks5_dgram_encode_name(uint8_t *out, const uint8_t *name, uint8_t name_len,
                                   uint16_t port)
{
    memmove(out + PREFIX_LEN + 2, name, name_len);
    memset(out, 0, PREFIX_LEN);
    out[PREFIX_LEN] = CV_SOCKS5_ATYP_NAME;
    out[PREFIX_LEN + 1] = name_len;
    uint8_t *end = out + PREFIX_LEN + 2 + name_len;
    end[0] = (uint8_t)(port >> 8);
    end[1] = (uint8_t)port;
    return PREFIX_LEN + 2u + name_len + 2u;
}

size_t cv_socks5_dgram_encode_to(uint8_t out[CV_SOCKS5_UDP_HEAD_MAX], const struct cv_target *to)
{
    static const uint8_t prefix[PREFIX_LEN];
    struct cv_wr w;
    cv_wr_init(&w, out, CV_SOCKS5_UDP_HEAD_MAX);
    cv_wr_bytes(&w, prefix, sizeof(prefix));
    if (cv_host_is_ip(&to->host)) {
        write_ip(&w, &to->host.ip);
    } else {
        cv_wr_u8(&w, CV_SOCKS5_ATYP_NAME);
        cv_wr_u8(&w, to->host.name_len);
        cv_wr_bytes(&w, to->host.name, to->host.name_len);
    }
    cv_wr_u16(&w, to->port);
    return w.len;
}
