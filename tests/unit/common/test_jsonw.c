#include "tap.h"

#include "common/err.h"
#include "common/jsonw.h"

static struct cv_buf buf;
static struct cv_jsonw w;

static void begin(size_t max)
{
    cv_buf_init(&buf, max);
    cv_jsonw_init(&w, &buf);
}

static void expect(const char *want)
{
    T_INT_EQ(cv_jsonw_end(&w), 0);
    T_INT_EQ(cv_buf_append(&buf, "", 1), 0);
    T_STR_EQ((const char *)cv_buf_data(&buf), want);
    cv_buf_done(&buf);
}

static void nested_structures(void)
{
    begin(1000);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_str(&w, "a", "x");
    cv_jsonw_array(&w, "list");
    cv_jsonw_int(&w, NULL, -1);
    cv_jsonw_array(&w, NULL);
    cv_jsonw_array_end(&w);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_object_end(&w);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_null(&w, "n");
    cv_jsonw_object_end(&w);
    cv_jsonw_array_end(&w);
    cv_jsonw_bool(&w, "yes", true);
    cv_jsonw_bool(&w, "no", false);
    cv_jsonw_str(&w, "nothing", NULL);
    cv_jsonw_object_end(&w);
    expect("{\"a\":\"x\",\"list\":[-1,[],{},{\"n\":null}],\"yes\":true,\"no\":false,"
           "\"nothing\":null}");
}

static void top_level_values(void)
{
    begin(100);
    cv_jsonw_str(&w, NULL, "alone");
    expect("\"alone\"");
    begin(100);
    cv_jsonw_array(&w, NULL);
    cv_jsonw_array_end(&w);
    expect("[]");
}

static void numbers(void)
{
    begin(1000);
    cv_jsonw_array(&w, NULL);
    cv_jsonw_int(&w, NULL, 0);
    cv_jsonw_int(&w, NULL, INT64_MIN);
    cv_jsonw_int(&w, NULL, INT64_MAX);
    cv_jsonw_uint(&w, NULL, UINT64_MAX);
    cv_jsonw_uint(&w, NULL, 10);
    cv_jsonw_array_end(&w);
    expect("[0,-9223372036854775808,9223372036854775807,18446744073709551615,10]");
}

static void strings_are_escaped(void)
{
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } cases[] = {
        {"", 0, "\"\""},
        {"plain", 5, "\"plain\""},
        {"q\"b\\s/", 6, "\"q\\\"b\\\\s/\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"a\nb\tc\r", 6, "\"a\\u000ab\\u0009c\\u000d\""},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff", 1, "\"\\ufffd\""},
        {"a\xc3", 2, "\"a\\ufffd\""},
        {"\xc3(", 2, "\"\\ufffd(\""},
        {"\xc0\x80", 2, "\"\\ufffd\\ufffd\""},                       /* overlong NUL */
        {"\xe0\x80\xaf", 3, "\"\\ufffd\\ufffd\\ufffd\""},            /* overlong slash */
        {"\xed\xa0\x80", 3, "\"\\ufffd\\ufffd\\ufffd\""},            /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\"\\ufffd\\ufffd\\ufffd\\ufffd\""}, /* above U+10FFFF */
        {"\xf4\x8f\xbf\xbf", 4, "\"\xf4\x8f\xbf\xbf\""},
        {"\xe2\x82", 2, "\"\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        begin(200);
        cv_jsonw_strn(&w, NULL, cases[i].in, cases[i].len);
        expect(cases[i].out);
    }
    begin(200);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_int(&w, "k\"ey\n", 1);
    cv_jsonw_object_end(&w);
    expect("{\"k\\\"ey\\u000a\":1}");
}

static void a_full_buffer_sticks(void)
{
    for (size_t max = 0; max < 20; max++) {
        begin(max);
        cv_jsonw_object(&w, NULL);
        cv_jsonw_str(&w, "key", "some text");
        cv_jsonw_object_end(&w);
        T_INT_EQ(cv_jsonw_end(&w), max < strlen("{\"key\":\"some text\"}") ? CV_E_LIMIT : 0);
        T_OK(cv_buf_len(&buf) <= max);
        cv_buf_done(&buf);
    }
}

int main(void)
{
    T_RUN(nested_structures);
    T_RUN(top_level_values);
    T_RUN(numbers);
    T_RUN(strings_are_escaped);
    T_RUN(a_full_buffer_sticks);
    return t_done();
}
