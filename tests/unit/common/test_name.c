#include "tap.h"

#include <stdlib.h>

#include "common/err.h"
#include "common/name.h"

#define L63 "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabc"
#define N253                                                                                       \
    L63 "." L63 "." L63 "."                                                                        \
        "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghija"

static const struct {
    const char *in;
    const char *out; /* NULL: refused */
} cases[] = {
    {"example.com", "example.com"},
    {"EXAMPLE.Com", "example.com"},
    {"GOOGLE.COM.", "google.com"},
    {"a", "a"},
    {"localhost", "localhost"},
    {"_dmarc.Example.com", "_dmarc.example.com"},
    {"r3---sn-4g5e6nz7.googlevideo.com", "r3---sn-4g5e6nz7.googlevideo.com"},
    {"-a-.example", "-a-.example"},
    {"127.0.0.1", "127.0.0.1"}, /* not this function's business */
    {L63 ".com", L63 ".com"},
    {N253, N253},
    {N253 ".", N253},

    {"", NULL},
    {".", NULL},
    {"..", NULL},
    {".a", NULL},
    {"a..", NULL},
    {"a..b", NULL},
    {"a b", NULL},
    {" a", NULL},
    {"a\n", NULL},
    {"a\t", NULL},
    {"a\x7f", NULL},
    {"a/b", NULL},
    {"a\\b", NULL},
    {"a@b", NULL},
    {"a:80", NULL},
    {"a%41", NULL},
    {"[::1]", NULL},
    {"a?b", NULL},
    {"a#b", NULL},
    {"*.example.com", NULL},
    {"a,b", NULL},
    {"a'b", NULL},
    {"x" L63 ".com", NULL},
    {"b" N253, NULL},
    {N253 "..", NULL},

    /* IDNA: UTS 46 non-transitional. */
    {"b\xc3\xbc"
     "cher.example",
     "xn--bcher-kva.example"},
    {"B\xc3\x9c"
     "CHER.EXAMPLE.",
     "xn--bcher-kva.example"},
    {"bu\xcc\x88"
     "cher.example",
     "xn--bcher-kva.example"}, /* decomposed */
    {"fa\xc3\x9f.de", "xn--fa-hia.de"},
    {"\xe4\xbe\x8b\xe3\x81\x88.jp", "xn--r8jz45g.jp"},
    {"\xef\xbd\x87\xef\xbd\x8f\xef\xbd\x8f\xef\xbd\x87\xef\xbd\x8c\xef\xbd\x85.com", "google.com"},
    {"google\xe3\x80\x82"
     "com",
     "google.com"}, /* ideographic full stop */
    {"google\xef\xbc\x8e"
     "com\xef\xbd\xa1",
     "google.com"},                           /* full-width, half-width ideographic */
    {"goo\xc2\xadgle.com", "google.com"},     /* soft hyphen */
    {"go\xe2\x80\x8bogle.com", "google.com"}, /* zero width space */
    {"a_b.b\xc3\xbc"
     "cher.de",
     "a_b.xn--bcher-kva.de"},
    {"\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1", "127.0.0.1"},
    {"\xe2\x91\xa0.com", "1.com"},
    {"b\xc3\xbc"
     "cher..de",
     NULL},
    {"b\xc3\xbc"
     "cher.de..",
     NULL},
    {"b\xc3\xbc"
     "cher.de.\xe3\x80\x82",
     NULL},
    {"\xc2\xad", NULL}, /* nothing is left */
    {"\xc2\xad.com", NULL},
    {"a\xef\xbc\x8f"
     "b.com",
     NULL}, /* full-width slash */
    {"a\xef\xbc\xa0"
     "b.com",
     NULL}, /* full-width at */
    {"a\xef\xbc\x9a"
     "80",
     NULL},                     /* full-width colon */
    {"\xe2\x84\x80.com", NULL}, /* U+2100 maps to a/c */
    {"b\xc3\xbc cher.de", NULL},
    {"b\xc3\xbc\n.de", NULL},
    {"\xff.com", NULL},
    {"\xc3.com", NULL},
    {"\xc0\xae.com", NULL},     /* overlong full stop */
    {"\xed\xa0\x80.com", NULL}, /* surrogate */
    {"a\xe2\x80\x8d"
     "b.com",
     NULL}, /* joiner out of context */

    /* A-labels. */
    {"XN--BCHER-KVA.de", "xn--bcher-kva.de"},
    {"xn--i-7iq.ws", "xn--i-7iq.ws"}, /* emoji: delegated, though not IDNA 2008 */
    {"xn--mgbh0fb.xn--kgbechtv", "xn--mgbh0fb.xn--kgbechtv"},
    {"xn--vermgensberatung-pwb.com", "xn--vermgensberatung-pwb.com"},
    {"xn--", NULL},
    {"xn--.com", NULL},
    {"xn--google-.com", NULL}, /* decodes to plain ASCII */
    {"xn---.com", NULL},
    {"xn--a.com", NULL}, /* a control character */
    {"xn--bcher-.com", NULL},
    {"xn--zzzzzzzzzzz99999.com", NULL},
    {"xn--99999999999999999999.com", NULL},
    {"xn--bcher-kv_.de", NULL},
    {"a.xn--google-", NULL},
};

static void table(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        char out[CV_NAME_MAX + 1];
        size_t len = 999;
        int ret = cv_name_canon(cases[i].in, strlen(cases[i].in), out, &len);
        bool ok = cases[i].out == NULL ? T_INT_EQ(ret, CV_E_PARSE) && T_INT_EQ(len, 999)
                                       : T_INT_EQ(ret, 0) && T_STR_EQ(out, cases[i].out) &&
                                             T_INT_EQ(len, strlen(cases[i].out));
        if (!ok)
            printf("#   name '%s'\n", cases[i].in);
    }
}

static void canonical_names_stay(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        char out[CV_NAME_MAX + 1];
        size_t len;
        if (cases[i].out == NULL)
            continue;
        T_INT_EQ(cv_name_canon(cases[i].out, strlen(cases[i].out), out, &len), 0);
        T_STR_EQ(out, cases[i].out);
    }
}

static void embedded_nul(void)
{
    char out[CV_NAME_MAX + 1];
    size_t len;
    T_INT_EQ(cv_name_canon("good.com\0.evil.com", 18, out, &len), CV_E_PARSE);
    T_INT_EQ(cv_name_canon("b\xc3\xbc"
                           "cher.de\0.evil.com",
                           19, out, &len),
             CV_E_PARSE);
    T_INT_EQ(cv_name_canon("example.comXXX", 11, out, &len), 0);
    T_STR_EQ(out, "example.com");
}

static void huge_inputs(void)
{
    static char big[70000];
    char out[CV_NAME_MAX + 1];
    size_t len;
    memset(big, 'a', sizeof(big));
    T_INT_EQ(cv_name_canon(big, sizeof(big), out, &len), CV_E_PARSE);
    memset(big, 0xc3, sizeof(big));
    T_INT_EQ(cv_name_canon(big, sizeof(big), out, &len), CV_E_PARSE);
    /* Many soft hyphens around a good name: still bounded. */
    for (size_t i = 0; i + 1 < sizeof(big); i += 2)
        memcpy(big + i, "\xc2\xad", 2);
    big[0] = big[1] = 'a';
    T_INT_EQ(cv_name_canon(big, 1000, out, &len), 0);
    T_STR_EQ(out, "aa");
    T_INT_EQ(cv_name_canon(big, 2000, out, &len), CV_E_PARSE);
}

/* Whatever goes in, what comes out is lower-case, bounded, and canonical itself. */
static void random_bytes(void)
{
    static const char *const parts[] = {"xn--",
                                        "a",
                                        "Z",
                                        ".",
                                        "-",
                                        "_",
                                        "9",
                                        "\xc3\xbc",
                                        "\xe3\x80\x82",
                                        "\xef\xbc\x91",
                                        "\xc2\xad",
                                        "kva",
                                        "\xf0\x9f\x98\x80",
                                        "/",
                                        "0x"};
    srand(31);
    bool ok = true;
    int accepted = 0;
    for (int i = 0; i < 50000 && ok; i++) {
        char text[300];
        size_t n = 0;
        for (int k = rand() % 12; k >= 0; k--) {
            const char *p = parts[(size_t)rand() % CV_ARRAY_SIZE(parts)];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        char out[CV_NAME_MAX + 1], again[CV_NAME_MAX + 1];
        size_t len, len2;
        if (cv_name_canon(text, n, out, &len) != 0)
            continue;
        accepted++;
        ok = len > 0 && len <= CV_NAME_MAX && strlen(out) == len &&
             strspn(out, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == len &&
             cv_name_canon(out, len, again, &len2) == 0 && strcmp(out, again) == 0;
        if (!ok)
            printf("# '%.*s' -> '%s'\n", (int)n, text, out);
    }
    T_OK(ok);
    T_OK(accepted > 1000);
}

int main(void)
{
    T_RUN(table);
    T_RUN(canonical_names_stay);
    T_RUN(embedded_nul);
    T_RUN(huge_inputs);
    T_RUN(random_bytes);
    return t_done();
}
