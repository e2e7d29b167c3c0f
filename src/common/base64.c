#include "common/base64.h"

#include "common/err.h"

#include "common/poison.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int sextet(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+')
        return 62;
    return c == '/' ? 63 : -1;
}

/* Decode the four characters of a group with 'n' data bytes (1..3); false on any other text,
 * also when bits that padding leaves over are not zero (RFC 4648 section 3.5). */
static bool decode_group(const char *s, size_t n, uint8_t out[3])
{
    uint32_t v = 0;
    for (size_t i = 0; i < 4; i++) {
        int x = i <= n ? sextet(s[i]) : (s[i] == '=' ? 0 : -1);
        if (x < 0)
            return false;
        v = v << 6 | (uint32_t)x;
    }
    if ((v & ((1U << (8 * (3 - n))) - 1)) != 0)
        return false;
    out[0] = (uint8_t)(v >> 16);
    out[1] = (uint8_t)(v >> 8);
    out[2] = (uint8_t)v;
    return true;
}

int cv_base64_decode(const char *s, size_t len, uint8_t *out, size_t cap, size_t *ret_len)
{
    if (len % 4 != 0)
        return CV_E_PARSE;
    size_t pad = 0;
    if (len > 0 && s[len - 1] == '=')
        pad = s[len - 2] == '=' ? 2 : 1;
    size_t total = len / 4 * 3 - pad;
    if (total > cap)
        return CV_E_LIMIT;
    size_t done = 0;
    for (size_t i = 0; i < len; i += 4) {
        uint8_t group[3];
        size_t n = CV_MIN(total - done, (size_t)3);
        if (!decode_group(s + i, n, group))
            return CV_E_PARSE;
        for (size_t j = 0; j < n; j++)
            out[done++] = group[j];
    }
    *ret_len = done;
    return 0;
}

int cv_base64_encode(const void *data, size_t len, char *out, size_t cap)
{
    const uint8_t *p = data;
    size_t groups = len / 3 + (len % 3 != 0);
    size_t need;
    if (CV_MUL_OVERFLOW(groups, (size_t)4, &need) || need >= cap)
        return CV_E_LIMIT;
    for (size_t i = 0; i < len; i += 3) {
        size_t n = CV_MIN(len - i, (size_t)3);
        uint32_t v = (uint32_t)p[i] << 16;
        if (n > 1)
            v |= (uint32_t)p[i + 1] << 8;
        if (n > 2)
            v |= p[i + 2];
        *out++ = alphabet[v >> 18];
        *out++ = alphabet[v >> 12 & 63];
        *out++ = n > 1 ? alphabet[v >> 6 & 63] : '=';
        *out++ = n > 2 ? alphabet[v & 63] : '=';
    }
    *out = '\0';
    return 0;
}

void cv_hex_encode(const void *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) {
        *out++ = digits[p[i] >> 4];
        *out++ = digits[p[i] & 15];
    }
    *out = '\0';
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int cv_hex_decode(const char *s, size_t len, uint8_t *out, size_t cap, size_t *ret_len)
{
    if (len % 2 != 0)
        return CV_E_PARSE;
    if (len / 2 > cap)
        return CV_E_LIMIT;
    for (size_t i = 0; i < len; i += 2) {
        int hi = nibble(s[i]), lo = nibble(s[i + 1]);
        if (hi < 0 || lo < 0)
            return CV_E_PARSE;
        out[i / 2] = (uint8_t)(hi << 4 | lo);
    }
    *ret_len = len / 2;
    return 0;
}
