#include "tunnel/expand.h"

#include <stdlib.h>

#include "common/err.h"
#include "hex.h"

#include "tap.h"

typedef int (*expand_cb)(const uint8_t *in, size_t len, uint8_t *out, size_t cap, size_t *ret_len);

static void check(expand_cb fn, const char *hex, const char *text)
{
    uint8_t in[512], out[1024];
    size_t len = unhex(hex, in, sizeof(in)), n = 0;
    T_INT_EQ(fn(in, len, out, sizeof(out), &n), 0);
    T_INT_EQ(n, strlen(text));
    T_MEM_EQ(out, text, strlen(text));
    /* No room, and every truncation. */
    T_INT_EQ(fn(in, len, out, strlen(text) - 1, &n), CV_E_PROTO);
    for (size_t i = 0; i < len; i++) {
        uint8_t *exact = malloc(i + 1);
        memcpy(exact, in, i);
        if (fn(exact, i, out, sizeof(out), &n) == 0)
            T_OK(n < strlen(text));
        free(exact);
    }
}

static void test_lz4(void)
{
    check(cv_expand_lz4,
          "50"
          "68656c6c6f",
          "hello");
    check(cv_expand_lz4,
          "3a"
          "616263"
          "0300"
          "50"
          "7878797a7a",
          "abcabcabcabcabcabxxyzz");
}

static void test_lzo(void)
{
    /* 5 literals and the end; then a run with a match of each kind. */
    check(cv_expand_lzo,
          "16"
          "68656c6c6f"
          "110000",
          "hello");
    check(cv_expand_lzo,
          "14"
          "616263"
          "2a0800"
          "110000",
          "abcabcabcabcabc");
    check(cv_expand_lzo,
          "14"
          "616263"
          "c800"
          "110000",
          "abcabcabca");
}

/* No input reads or writes beyond its bounds. */
static void test_noise(void)
{
    uint8_t out[300];
    size_t n = 0;
    srand(5);
    for (int i = 0; i < 200000; i++) {
        size_t len = (size_t)rand() % 40;
        uint8_t *in = malloc(len + 1);
        for (size_t k = 0; k < len; k++)
            in[k] = (uint8_t)(rand() % (i % 2 ? 256 : 40));
        if (cv_expand_lzo(in, len, out, sizeof(out), &n) == 0 && n > sizeof(out))
            T_FAIL("%zu bytes", n);
        if (cv_expand_lz4(in, len, out, sizeof(out), &n) == 0 && n > sizeof(out))
            T_FAIL("%zu bytes", n);
        free(in);
    }
    T_OK(true);
}

int main(void)
{
    T_RUN(test_lz4);
    T_RUN(test_lzo);
    T_RUN(test_noise);
    return t_done();
}
