#include "common/name.h"

#include <string.h>

#include <idn2.h>

#include "common/err.h"

#include "common/poison.h"

#define LABEL_MAX 63
/* A longer text cannot become a name of 253 bytes: no mapping shortens a character to less than
 * nothing, but soft hyphens and the like vanish, so some slack is given. */
#define RAW_NAME_MAX  1024
#define MAX_CODEPOINT 0x10ffff

/* What each byte becomes in a canonical name; 0 = not allowed. */
static const char fold[256] = {
    ['-'] = '-', ['_'] = '_', ['0'] = '0', ['1'] = '1', ['2'] = '2', ['3'] = '3', ['4'] = '4',
    ['5'] = '5', ['6'] = '6', ['7'] = '7', ['8'] = '8', ['9'] = '9', ['a'] = 'a', ['b'] = 'b',
    ['c'] = 'c', ['d'] = 'd', ['e'] = 'e', ['f'] = 'f', ['g'] = 'g', ['h'] = 'h', ['i'] = 'i',
    ['j'] = 'j', ['k'] = 'k', ['l'] = 'l', ['m'] = 'm', ['n'] = 'n', ['o'] = 'o', ['p'] = 'p',
    ['q'] = 'q', ['r'] = 'r', ['s'] = 's', ['t'] = 't', ['u'] = 'u', ['v'] = 'v', ['w'] = 'w',
    ['x'] = 'x', ['y'] = 'y', ['z'] = 'z', ['A'] = 'a', ['B'] = 'b', ['C'] = 'c', ['D'] = 'd',
    ['E'] = 'e', ['F'] = 'f', ['G'] = 'g', ['H'] = 'h', ['I'] = 'i', ['J'] = 'j', ['K'] = 'k',
    ['L'] = 'l', ['M'] = 'm', ['N'] = 'n', ['O'] = 'o', ['P'] = 'p', ['Q'] = 'q', ['R'] = 'r',
    ['S'] = 's', ['T'] = 't', ['U'] = 'u', ['V'] = 'v', ['W'] = 'w', ['X'] = 'x', ['Y'] = 'y',
    ['Z'] = 'z',
};

/* RFC 3492 section 6.1. */
static uint32_t adapt(uint32_t delta, uint32_t points, bool first)
{
    delta = first ? delta / 700 : delta / 2;
    delta += delta / points;
    uint32_t k = 0;
    for (; delta > 455; k += 36)
        delta /= 35;
    return k + 36 * delta / (delta + 38);
}

/* The next generalised variable-length integer at *p; false if it is broken. */
static bool read_delta(const char **p, const char *end, uint32_t bias, uint32_t *ret_delta)
{
    uint32_t delta = 0, weight = 1;
    for (uint32_t k = 36;; k += 36) {
        if (*p == end)
            return false;
        char c = *(*p)++;
        uint32_t digit;
        if (c >= 'a' && c <= 'z')
            digit = (uint32_t)(c - 'a');
        else if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0') + 26;
        else
            return false;
        uint32_t t = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
        uint32_t term;
        if (CV_MUL_OVERFLOW(digit, weight, &term) || CV_ADD_OVERFLOW(delta, term, &delta))
            return false;
        if (digit < t) {
            *ret_delta = delta;
            return true;
        }
        if (CV_MUL_OVERFLOW(weight, 36 - t, &weight))
            return false;
    }
}

/* True if 's', the part of an A-label behind "xn--", is Punycode for at least one character that
 * is not ASCII. Punycode has one encoding for each text, so what decodes is also canonical. The
 * repertoire of IDNA 2008 is not asked for: registries delegate names outside of it (emoji). */
static bool is_punycode(const char *s, size_t len)
{
    const char *end = s + len;
    const char *hyphen = memrchr(s, '-', len);
    const char *p = hyphen != NULL ? hyphen + 1 : s;
    uint32_t points = hyphen != NULL ? (uint32_t)(hyphen - s) : 0;
    if (hyphen == s || p == end)
        return false;
    uint32_t codepoint = 0x80, i = 0, bias = 72;
    bool first = true;
    while (p < end) {
        uint32_t delta;
        if (!read_delta(&p, end, bias, &delta))
            return false;
        bias = adapt(delta, ++points, first);
        first = false;
        if (CV_ADD_OVERFLOW(i, delta, &i) || i / points > MAX_CODEPOINT - codepoint)
            return false;
        codepoint += i / points;
        i = i % points + 1;
        if (codepoint < 0xa0 || (codepoint >= 0xd800 && codepoint <= 0xdfff))
            return false;
    }
    return true;
}

static bool label_ok(const char *label, size_t len)
{
    if (len == 0 || len > LABEL_MAX)
        return false;
    if (CV_UNLIKELY(len >= 4 && memcmp(label, "xn--", 4) == 0))
        return is_punycode(label + 4, len - 4);
    return true;
}

/* The canonical form of a name that is ASCII. CV_E_UNSUPPORTED: it is not. */
static int canon_ascii(const char *s, size_t len, char out[CV_NAME_MAX + 1], size_t *ret_len)
{
    if (len > 0 && s[len - 1] == '.')
        len--;
    size_t label = 0; /* where the current label begins */
    int ret = len == 0 || len > CV_NAME_MAX ? CV_E_PARSE : 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c >= 0x80)
            return CV_E_UNSUPPORTED;
        if (ret != 0)
            continue;
        if (c == '.') {
            if (!label_ok(out + label, i - label))
                ret = CV_E_PARSE;
            label = i + 1;
            out[i] = '.';
        } else {
            out[i] = fold[c];
            if (out[i] == '\0')
                ret = CV_E_PARSE;
        }
    }
    if (ret != 0 || !label_ok(out + label, len - label))
        return CV_E_PARSE;
    out[len] = '\0';
    *ret_len = len;
    return 0;
}

int cv_name_canon(const char *s, size_t len, char out[CV_NAME_MAX + 1], size_t *ret_len)
{
    if (len > RAW_NAME_MAX)
        return CV_E_PARSE;
    int ret = canon_ascii(s, len, out, ret_len);
    if (CV_LIKELY(ret != CV_E_UNSUPPORTED))
        return ret;

    if (memchr(s, '\0', len) != NULL)
        return CV_E_PARSE;
    char text[RAW_NAME_MAX + 1];
    memcpy(text, s, len);
    text[len] = '\0';
    uint8_t *ascii = NULL;
    if (idn2_lookup_u8((const uint8_t *)text, &ascii, IDN2_NFC_INPUT | IDN2_NONTRANSITIONAL) !=
        IDN2_OK)
        return CV_E_PARSE;
    /* Mapping may have made any ASCII character of a lookalike, '/' of U+FF0F for one. */
    ret = canon_ascii((const char *)ascii, strlen((const char *)ascii), out, ret_len);
    idn2_free(ascii);
    return ret == 0 ? 0 : CV_E_PARSE;
}
