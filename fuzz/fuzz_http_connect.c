/* The answer to CONNECT on arbitrary bytes. What is checked beside memory: that the bytes in pieces
 * give the same as the bytes at once, that nothing is taken that was not given, and that the limit
 * holds.
 *
 * Input: bytes 0..3 seed the split points, the rest comes from the proxy. */
#include "proto/http_connect.h"

#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
    int ret;
    unsigned status;
    size_t used;
};

static size_t piece(uint32_t *seed, size_t left)
{
    *seed = *seed * 1664525u + 1013904223u;
    size_t n = (*seed >> 24) % 16 == 0 ? left : 1 + (*seed >> 16) % 24;
    return CV_MIN(n, left);
}

/* 'seed' NULL: at once. Each call sees memory of exact size. */
static void run(const uint8_t *in, size_t len, uint32_t *seed, struct outcome *o)
{
    struct cv_http_connect c = {0};
    size_t have = seed != NULL ? 0 : len;
    *o = (struct outcome){.ret = CV_E_MORE};
    for (;;) {
        size_t used = 0;
        uint8_t *p = cv_alloc(have - o->used + 1);
        if (have > o->used)
            memcpy(p, in + o->used, have - o->used);
        o->ret = cv_http_connect_step(&c, p, have - o->used, &used);
        cv_free(p);
        CV_ASSERT(used <= have - o->used);
        o->used += used;
        if (o->ret != CV_E_MORE || have == len)
            break;
        have += piece(seed, len - have);
    }
    o->status = c.status;
    CV_ASSERT(o->ret != 0 || o->used <= CV_HTTP_CONNECT_REPLY_MAX);
    CV_ASSERT(o->ret != CV_E_MORE || len < CV_HTTP_CONNECT_REPLY_MAX);
    CV_ASSERT(o->ret != 0 || (o->status >= 200 && o->status < 300));
    CV_ASSERT(o->ret != CV_E_UNAVAILABLE || o->status >= 300);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct outcome whole, parts;
    uint32_t seed;
    if (size < sizeof(seed) || size > 3 * CV_HTTP_CONNECT_REPLY_MAX)
        return 0;
    memcpy(&seed, data, sizeof(seed));
    run(data + 4, size - 4, NULL, &whole);
    run(data + 4, size - 4, &seed, &parts);
    CV_ASSERT(whole.ret == parts.ret && whole.used == parts.used && whole.status == parts.status);
    return 0;
}
