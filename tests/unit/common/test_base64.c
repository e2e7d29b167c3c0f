#include "tap.h"

#include <stdlib.h>

#include "common/base64.h"
#include "common/err.h"

/* RFC 4648 section 10, and bytes that use the whole alphabet. */
static const struct {
    const char *plain;
    size_t len;
    const char *text;
} pairs[] = {
    {"", 0, ""},
    {"f", 1, "Zg=="},
    {"fo", 2, "Zm8="},
    {"foo", 3, "Zm9v"},
    {"foob", 4, "Zm9vYg=="},
    {"fooba", 5, "Zm9vYmE="},
    {"foobar", 6, "Zm9vYmFy"},
    {"\0\0\0", 3, "AAAA"},
    {"\xff\xff\xff", 3, "////"},
    {"\xfb\xef\xbe", 3, "++++"},
    {"user:p\xc3\xa4ss", 10, "dXNlcjpww6Rzcw=="},
};

static void known_pairs(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(pairs); i++) {
        char text[32];
        uint8_t plain[32];
        size_t n = 99;
        T_INT_EQ(cv_base64_encode(pairs[i].plain, pairs[i].len, text, sizeof(text)), 0);
        T_STR_EQ(text, pairs[i].text);
        T_INT_EQ(cv_base64_decode(text, strlen(text), plain, sizeof(plain), &n), 0);
        T_INT_EQ(n, pairs[i].len);
        T_MEM_EQ(plain, pairs[i].plain, pairs[i].len);
    }
}

static void other_texts_are_refused(void)
{
    static const char *const bad[] = {
        "A",      "AA",       "AAA",      "AAAAA", "=",       "====", "A===",  "AA=A",
        "=AAA",   "AA==AAAA", "AAAA====", "AAA-",  "AA_A",    "AAA ", "AAA\n", " AAA",
        "AAAA\n", "AAAA=",    "Zh==",     "Zm9=",  "AAA\xc3", "A==A", "Z=g=",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++) {
        uint8_t out[16];
        size_t n = 99;
        if (!T_INT_EQ(cv_base64_decode(bad[i], strlen(bad[i]), out, sizeof(out), &n), CV_E_PARSE))
            printf("#   text '%s'\n", bad[i]);
        T_INT_EQ(n, 99);
    }
    uint8_t out[16];
    size_t n;
    T_INT_EQ(cv_base64_decode("AA\0A", 4, out, sizeof(out), &n), CV_E_PARSE);
}

static void exact_capacities(void)
{
    uint8_t out[4];
    size_t n;
    char text[16];
    T_INT_EQ(cv_base64_decode("Zm9vYg==", 8, out, 4, &n), 0);
    T_INT_EQ(n, 4);
    T_INT_EQ(cv_base64_decode("Zm9vYg==", 8, out, 3, &n), CV_E_LIMIT);
    T_INT_EQ(cv_base64_decode("", 0, NULL, 0, &n), 0);
    T_INT_EQ(n, 0);
    T_INT_EQ(cv_base64_encode("foob", 4, text, 9), 0);
    T_INT_EQ(cv_base64_encode("foob", 4, text, 8), CV_E_LIMIT);
    T_INT_EQ(cv_base64_encode("", 0, text, 0), CV_E_LIMIT);
    T_INT_EQ(cv_base64_encode("", 0, text, 1), 0);
    T_INT_EQ(cv_base64_encode(text, SIZE_MAX, text, SIZE_MAX), CV_E_LIMIT);
}

static void round_trips(void)
{
    srand(5);
    bool ok = true;
    for (size_t len = 0; len < 200 && ok; len++) {
        uint8_t in[200], out[200];
        char text[280], hex[401];
        size_t n;
        for (size_t i = 0; i < len; i++)
            in[i] = (uint8_t)rand();
        ok = cv_base64_encode(in, len, text, sizeof(text)) == 0 &&
             cv_base64_decode(text, strlen(text), out, sizeof(out), &n) == 0 && n == len &&
             memcmp(in, out, len) == 0;
        cv_hex_encode(in, len, hex);
        ok = ok && strlen(hex) == 2 * len && cv_hex_decode(hex, 2 * len, out, len, &n) == 0 &&
             n == len && memcmp(in, out, len) == 0;
    }
    T_OK(ok);
}

static void hex(void)
{
    char text[9];
    uint8_t out[4];
    size_t n = 99;
    cv_hex_encode("\x01\xab\xff\x00", 4, text);
    T_STR_EQ(text, "01abff00");
    T_INT_EQ(cv_hex_decode("01ABff00", 8, out, 4, &n), 0);
    T_INT_EQ(n, 4);
    T_MEM_EQ(out, "\x01\xab\xff\x00", 4);
    static const char *const bad[] = {"0", "0g", "g0", " 0", "0x", "012", "-1", "\xc3\xa4"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++)
        T_INT_EQ(cv_hex_decode(bad[i], strlen(bad[i]), out, 4, &n), CV_E_PARSE);
    T_INT_EQ(cv_hex_decode("0011223344", 10, out, 4, &n), CV_E_LIMIT);
    T_INT_EQ(cv_hex_decode("", 0, out, 0, &n), 0);
    T_INT_EQ(n, 0);
}

int main(void)
{
    T_RUN(known_pairs);
    T_RUN(other_texts_are_refused);
    T_RUN(exact_capacities);
    T_RUN(round_trips);
    T_RUN(hex);
    return t_done();
}
