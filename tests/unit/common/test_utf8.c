#include "tap.h"

#include "common/utf8.h"

static size_t encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(0xf00 >> n | cp);
    return n;
}

static void every_code_point(void)
{
    bool same = true;
    for (uint32_t cp = 0; cp < 0x111000 && same; cp++) {
        char s[4];
        size_t n = encode(cp, s);
        uint32_t got = UINT32_MAX;
        bool valid = cp <= 0x10ffff && (cp < 0xd800 || cp > 0xdfff);
        same = cv_utf8_decode(s, n, &got) == (valid ? n : 0) && (!valid || got == cp) &&
               cv_utf8_decode(s, n - 1, &got) == 0;
    }
    T_OK(same);
}

static void malformed(void)
{
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc2",
                                      "\xc2\x41",
                                      "\xe0\x9f\xbf",
                                      "\xe2\x82",
                                      "\xe2\x82\x41",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xfe",
                                      "\xf8\x88\x80\x80\x80"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++) {
        uint32_t cp;
        T_INT_EQ(cv_utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
    }
}

int main(void)
{
    T_RUN(every_code_point);
    T_RUN(malformed);
    return t_done();
}
