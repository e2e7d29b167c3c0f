#include "tunnel/mss.h"

#include "common/poison.h"

#define DEFAULT_OUTER 1492
#define MTU_MIN       576
#define INNER_HEADERS 40 /* IPv4 and TCP */

/* The longest packet that, sealed, is at most 'room' bytes. */
static uint32_t inner_max(const struct cv_datakey *k, uint32_t room, uint32_t frame_len)
{
    uint32_t len = room;
    while (len > 0 && cv_datakey_sealed_len(k, len + frame_len) > room)
        len--;
    return len;
}

void cv_mss_compute(const struct cv_mss_input *in, const struct cv_datakey *k, uint32_t *ret_mtu,
                    uint32_t *ret_mss)
{
    uint32_t headers = (in->ip6 ? 40 : 20) + (in->tcp ? 20 + 2 : 8);
    uint32_t outer = DEFAULT_OUTER, mtu = in->tun_mtu;
    if (in->mssfix > 0 && !in->is_fixed)
        outer = (uint32_t)in->mssfix + (in->is_mtu ? 0 : headers);
    if (in->path_mtu > 0 && !in->tcp)
        outer = CV_MIN(outer, in->path_mtu);
    if (in->fragment > 0)
        outer = CV_MIN(outer, in->fragment + headers);
    if (in->mssfix != 0 && outer > headers) {
        uint32_t inner = inner_max(k, outer - headers, in->frame_len);
        mtu = CV_MIN(mtu, inner);
    }
    if (in->is_fixed && in->mssfix > 0)
        mtu = CV_MIN(mtu, (uint32_t)in->mssfix + INNER_HEADERS);
    *ret_mtu = CV_MAX(mtu, (uint32_t)MTU_MIN);
    *ret_mss = *ret_mtu - INNER_HEADERS;
}
