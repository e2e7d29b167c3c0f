#include "common/rand.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/poison.h"

/* Small numbers are taken from a per-thread stock: one system call for 32 of them. */
static __thread uint64_t stock[32];
static __thread unsigned stock_left;

void cv_rand_bytes(void *p, size_t len)
{
    uint8_t *b = p;
    while (len > 0) {
        ssize_t n = getrandom(b, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            /* No kernel that runs this program lacks it, and to go on would be unsafe. */
            perror("culvert: getrandom");
            abort();
        }
        b += n;
        len -= (size_t)n;
    }
}

/* A child of fork would otherwise hand out the same numbers as its parent. */
static void forget_stock(void)
{
    stock_left = 0;
}

static void register_fork_handler(void)
{
    pthread_atfork(NULL, NULL, forget_stock);
}

uint64_t cv_rand_u64(void)
{
    if (stock_left == 0) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, register_fork_handler);
        cv_rand_bytes(stock, sizeof(stock));
        stock_left = CV_ARRAY_SIZE(stock);
    }
    uint64_t v = stock[--stock_left];
    stock[stock_left] = 0; /* a number that was given out is nowhere else */
    return v;
}

/* Lemire, "Fast random integer generation in an interval" (2019): exact, seldom divides. */
uint32_t cv_rand_below(uint32_t bound)
{
    CV_ASSERT(bound > 0);
    uint64_t m = (uint64_t)(uint32_t)cv_rand_u64() * bound;
    if ((uint32_t)m < bound) {
        uint32_t threshold = -bound % bound;
        while ((uint32_t)m < threshold)
            m = (uint64_t)(uint32_t)cv_rand_u64() * bound;
    }
    return (uint32_t)(m >> 32);
}
