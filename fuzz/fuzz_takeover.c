/* A takeover message of arbitrary bytes: what is accepted is encoded again to the same bytes (but
 * an ABORT of another version, which gets ours). */
#include "app/takeover_msg.h"

#include <string.h>

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t again[CV_TAKEOVER_BYTES_MAX];
    struct cv_takeover_msg m;
    if (cv_takeover_decode(data, size, &m) != 0)
        return 0;
    size_t len = cv_takeover_encode(&m, again);
    CV_ASSERT(len == size && len >= 8);
    CV_ASSERT(memcmp(again, data, 4) == 0 && memcmp(again + 6, data + 6, len - 6) == 0);
    CV_ASSERT(m.type == CV_TAKEOVER_ABORT || memcmp(again + 4, data + 4, 2) == 0);
    return 0;
}
