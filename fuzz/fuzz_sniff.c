/* The first bytes of any client. What is checked beside memory: that the outcome does not depend on
 * how the bytes are split, and that a host that comes out is canonical and a plain name.
 *
 * Input: bytes 0..3 seed the split points, the rest comes from the client. */
#include "proto/sniff.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int step(struct cv_sniff *s, const uint8_t *data, size_t len, enum cv_sniff_outcome *o,
                struct cv_host *h)
{
    uint8_t *p = cv_alloc(len);
    memcpy(p, data, len);
    int ret = cv_sniff_look(s, p, len, o, h);
    cv_free(p);
    return ret;
}

static void check_host(const struct cv_host *h)
{
    struct cv_host again;
    CV_ASSERT(!cv_host_is_ip(h) && strlen(h->name) == h->name_len);
    CV_ASSERT(cv_sniff_host(h->name, h->name_len, &again) == 0);
    CV_ASSERT(strcmp(again.name, h->name) == 0);
    CV_ASSERT(cv_host_parse(h->name, h->name_len, &again) == 0);
    CV_ASSERT(strcmp(again.name, h->name) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cv_sniff once = {0}, pieces = {0};
    enum cv_sniff_outcome o1 = CV_SNIFF_NONE, o2 = CV_SNIFF_NONE;
    struct cv_host h1, h2;
    if (size < 5)
        return 0;
    uint32_t seed =
        (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
    data += 4;
    size -= 4;
    int want = step(&once, data, size, &o1, &h1), ret = CV_E_MORE;
    for (size_t n = 0; ret == CV_E_MORE && n < size;) {
        seed = seed * 1664525u + 1013904223u;
        n += CV_MIN(1 + (seed >> 16) % 50, size - n);
        ret = step(&pieces, data, n, &o2, &h2);
    }
    CV_ASSERT(ret == want && o1 == o2);
    if (cv_sniff_is_match(o1)) {
        CV_ASSERT(strcmp(h1.name, h2.name) == 0);
        check_host(&h1);
    }
    return 0;
}
