/* QUIC long headers, and the frames of Initial packets. What is checked beside memory: that packets
 * lie within their datagram, and that a hello that is there stays as it is whatever comes after.
 *
 * Input: byte 0 chooses between a datagram and payloads; these are 0xff-separated. */
#include "proto/quic_initial.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void packets(const uint8_t *data, size_t len)
{
    struct cv_quic_packet p;
    uint8_t *exact = cv_alloc(len + 1);
    memcpy(exact, data, len);
    for (size_t at = 0; at < len && cv_quic_packet_parse(exact + at, len - at, &p) == 0;) {
        CV_ASSERT(p.data == exact + at && p.len > 0 && p.len <= len - at);
        CV_ASSERT(p.dcid_len <= CV_QUIC_CID_MAX && p.pn_off <= p.len);
        CV_ASSERT(p.dcid >= p.data && p.dcid + p.dcid_len <= p.data + p.len);
        at += p.len;
    }
    cv_free(exact);
}

static void frames(const uint8_t *data, size_t len)
{
    struct cv_quic_crypto c;
    const uint8_t *hello;
    uint8_t *kept = NULL;
    size_t n, kept_len = 0;
    int ret = 0;
    cv_quic_crypto_init(&c);
    while (len > 0 && ret == 0) {
        const uint8_t *end = memchr(data, 0xff, len);
        size_t part = end != NULL ? (size_t)(end - data) : len;
        uint8_t *exact = cv_alloc(part + 1);
        memcpy(exact, data, part);
        ret = cv_quic_crypto_take(&c, exact, part);
        cv_free(exact);
        if (cv_quic_crypto_hello(&c, &hello, &n) == 0) {
            CV_ASSERT(kept == NULL || (kept_len == n && memcmp(kept, hello, n) == 0));
            if (kept == NULL) {
                kept = cv_alloc(n);
                kept_len = n;
                memcpy(kept, hello, n);
            }
        }
        part += end != NULL;
        data += part;
        len -= part;
    }
    cv_free(kept);
    cv_quic_crypto_done(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 0)
        packets(data + 1, size - 1);
    else
        frames(data + 1, size - 1);
    return 0;
}
