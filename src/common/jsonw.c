#include "common/jsonw.h"

#include <stdio.h>
#include <string.h>

#include "common/utf8.h"

#include "common/poison.h"

static void put(struct cv_jsonw *w, const char *s, size_t len)
{
    if (w->_err == 0)
        w->_err = cv_buf_append(w->_buf, s, len);
}

/* The text of 's' within its quotes. Most strings have nothing to escape: take runs as they are. */
static void put_text(struct cv_jsonw *w, const char *s, size_t len)
{
    size_t run = 0;
    while (run < len) {
        uint32_t cp;
        size_t n = cv_utf8_decode(s + run, len - run, &cp);
        if (n > 0 && cp >= 0x20 && cp != '"' && cp != '\\') {
            run += n;
            continue;
        }
        put(w, s, run);
        char esc[8];
        if (n == 0) {
            put(w, "\\ufffd", 6);
            n = 1;
        } else if (cp < 0x20) {
            put(w, esc, (size_t)snprintf(esc, sizeof(esc), "\\u%04x", (unsigned)cp));
        } else {
            esc[0] = '\\';
            esc[1] = (char)cp;
            put(w, esc, 2);
        }
        s += run + n;
        len -= run + n;
        run = 0;
    }
    put(w, s, len);
}

static void put_quoted(struct cv_jsonw *w, const char *s, size_t len)
{
    put(w, "\"", 1);
    put_text(w, s, len);
    put(w, "\"", 1);
}

/* What stands before a value: the comma after its elder sibling, and its name. */
static void begin_value(struct cv_jsonw *w, const char *key)
{
    if (w->_comma)
        put(w, ",", 1);
    w->_comma = true;
    if (key != NULL) {
        put_quoted(w, key, strlen(key));
        put(w, ":", 1);
    }
}

void cv_jsonw_init(struct cv_jsonw *w, struct cv_buf *buf)
{
    *w = (struct cv_jsonw){._buf = buf};
}

int cv_jsonw_end(struct cv_jsonw *w)
{
    return w->_err;
}

void cv_jsonw_object(struct cv_jsonw *w, const char *key)
{
    begin_value(w, key);
    put(w, "{", 1);
    w->_comma = false;
}

void cv_jsonw_object_end(struct cv_jsonw *w)
{
    put(w, "}", 1);
    w->_comma = true;
}

void cv_jsonw_array(struct cv_jsonw *w, const char *key)
{
    begin_value(w, key);
    put(w, "[", 1);
    w->_comma = false;
}

void cv_jsonw_array_end(struct cv_jsonw *w)
{
    put(w, "]", 1);
    w->_comma = true;
}

void cv_jsonw_strn(struct cv_jsonw *w, const char *key, const char *val, size_t len)
{
    begin_value(w, key);
    put_quoted(w, val, len);
}

void cv_jsonw_str(struct cv_jsonw *w, const char *key, const char *val)
{
    if (val == NULL)
        cv_jsonw_null(w, key);
    else
        cv_jsonw_strn(w, key, val, strlen(val));
}

/* Decimal digits of 'val' at the end of 'end'; the first one. */
static char *digits_before(char *end, uint64_t val)
{
    do
        *--end = (char)('0' + val % 10);
    while ((val /= 10) != 0);
    return end;
}

void cv_jsonw_uint(struct cv_jsonw *w, const char *key, uint64_t val)
{
    char text[24], *end = text + sizeof(text);
    char *p = digits_before(end, val);
    begin_value(w, key);
    put(w, p, (size_t)(end - p));
}

void cv_jsonw_int(struct cv_jsonw *w, const char *key, int64_t val)
{
    char text[24], *end = text + sizeof(text);
    char *p = digits_before(end, val < 0 ? -(uint64_t)val : (uint64_t)val);
    if (val < 0)
        *--p = '-';
    begin_value(w, key);
    put(w, p, (size_t)(end - p));
}

void cv_jsonw_bool(struct cv_jsonw *w, const char *key, bool val)
{
    begin_value(w, key);
    put(w, val ? "true" : "false", val ? 4 : 5);
}

void cv_jsonw_null(struct cv_jsonw *w, const char *key)
{
    begin_value(w, key);
    put(w, "null", 4);
}
