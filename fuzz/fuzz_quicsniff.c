/* QUIC datagrams of a client, with their protection on: each is a length of two bytes and so many
 * bytes. A host that comes out is a plain name. */
#include "net/quicsniff.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cv_quicsniff *q = cv_quicsniff_new();
    enum cv_sniff_outcome o = CV_SNIFF_NONE;
    struct cv_host h;
    int ret = CV_E_MORE;
    while (size >= 2 && ret == CV_E_MORE) {
        size_t n = CV_MIN((size_t)data[0] << 8 | data[1], size - 2);
        uint8_t *exact = cv_alloc(n + 1);
        memcpy(exact, data + 2, n);
        ret = cv_quicsniff_look(q, exact, n, &o, &h);
        cv_free(exact);
        data += 2 + n;
        size -= 2 + n;
    }
    if (ret == 0 && cv_sniff_is_match(o))
        CV_ASSERT(!cv_host_is_ip(&h) && strlen(h.name) == h.name_len);
    cv_quicsniff_free(q);
    return 0;
}
