/* TLS records and hellos on arbitrary bytes. What is checked beside memory: that pieces give the
 * same as the whole, and that the hello out of its records is the hello of its message.
 *
 * Input: bytes 0..3 seed the split points, the rest comes from the client. */
#include "proto/tls_hello.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Scan and read the first 'len' bytes in memory of exact size. */
static int step(struct cv_tls_hello_scan *s, const uint8_t *data, size_t len,
                struct cv_tls_hello *h)
{
    uint8_t *p = cv_alloc(len + 1);
    memcpy(p, data, len);
    int ret = cv_tls_hello_scan(s, p, len);
    if (ret == 0)
        ret = cv_tls_hello_read(s, p, len, h);
    if (ret == 0)
        CV_ASSERT(h->has_name ? h->name_len > 0 : h->name_len == 0);
    cv_free(p);
    return ret;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cv_tls_hello_scan once = {0}, pieces = {0};
    struct cv_tls_hello h1, h2;
    if (size < 4)
        return 0;
    uint32_t seed =
        (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
    data += 4;
    size -= 4;
    int want = step(&once, data, size, &h1), ret = CV_E_MORE;
    for (size_t n = 0; ret == CV_E_MORE && n < size;) {
        seed = seed * 1664525u + 1013904223u;
        n += CV_MIN(1 + (seed >> 16) % 50, size - n);
        ret = step(&pieces, data, n, &h2);
    }
    if (size == 0)
        return 0;
    CV_ASSERT(ret == want);
    if (ret == 0) {
        CV_ASSERT(h1.has_name == h2.has_name && h1.ech == h2.ech && h1.name_len == h2.name_len);
        CV_ASSERT(memcmp(h1.name, h2.name, h1.name_len) == 0);
    }
    (void)cv_tls_hello_parse(data, size, &h1);
    return 0;
}
