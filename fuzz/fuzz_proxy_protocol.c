/* The PROXY protocol on arbitrary bytes. What is checked beside memory: that the bytes in pieces
 * give the same as the bytes at once, that what was asked for suffices, and that what decode
 * understood is written and read back as the same. */
#include "proto/proxy_protocol.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* On a copy of exact size. */
static int decode(const uint8_t *in, size_t len, struct cv_proxy_protocol *ret_h, size_t *ret_used)
{
    uint8_t *p = cv_alloc(len > 0 ? len : 1);
    if (len > 0)
        memcpy(p, in, len);
    int ret = cv_proxy_protocol_decode(p, len, ret_h, ret_used);
    if (ret == 0) {
        size_t n = 0;
        for (unsigned type = 0; type < 256; type++) {
            const uint8_t *v = cv_proxy_protocol_tlv(ret_h, (uint8_t)type, &n);
            CV_ASSERT(v == NULL || (v >= p && v + n <= p + len));
        }
        ret_h->tlvs = NULL;
    }
    cv_free(p);
    return ret;
}

static bool same(const struct cv_proxy_protocol *a, const struct cv_proxy_protocol *b)
{
    return a->kind == b->kind && cv_ip_equal(&a->src.ip, &b->src.ip) &&
           cv_ip_equal(&a->dst.ip, &b->dst.ip) && a->src.port == b->src.port &&
           a->dst.port == b->dst.port;
}

static void round_trip(const struct cv_proxy_protocol *h)
{
    for (int version = 1; version <= 2; version++) {
        struct cv_proxy_protocol in = *h, out;
        uint8_t buf[CV_PROXY_PROTOCOL_OUT_MAX];
        size_t used;
        in.version = (enum cv_proxy_protocol_version)version;
        size_t n = cv_proxy_protocol_encode(buf, &in);
        CV_ASSERT(n <= sizeof(buf));
        CV_ASSERT(decode(buf, n, &out, &used) == 0 && used == n);
        if (version == 1 && in.kind == CV_PROXY_PROTOCOL_LOCAL)
            in.kind = CV_PROXY_PROTOCOL_UNKNOWN;
        CV_ASSERT(same(&in, &out));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cv_proxy_protocol whole = {0}, part;
    size_t used = 0, n = 0;
    if (size > CV_PROXY_PROTOCOL_MAX + 64)
        return 0;
    int ret = decode(data, size, &whole, &used);
    CV_ASSERT(ret != CV_E_MORE || size < CV_PROXY_PROTOCOL_MAX);
    size_t step = size > 512 ? 61 : 1;
    int at = CV_E_MORE;
    for (size_t have = 0; at == CV_E_MORE && have <= size; have += step)
        at = decode(data, have, &part, &n);
    if (at == CV_E_MORE)
        at = decode(data, size, &part, &n);
    CV_ASSERT(at == ret);
    if (ret == 0) {
        CV_ASSERT(n == used && used <= size && same(&whole, &part));
        round_trip(&whole);
    }
    return 0;
}
