/* One selector: classification, normalisation, matching. */
#include "common/err.h"
#include "policy_util.h"

static void classifies(void)
{
    static const struct {
        const char *text;
        enum cv_selector_kind kind;
        const char *normal; /* the pattern, or the prefix as text */
    } rows[] = {
        {"example.com", CV_SEL_SUFFIX, "example.com"},
        {" \t..Example.COM.. ", CV_SEL_SUFFIX, "example.com"},
        {"*.example.com", CV_SEL_SUFFIX, "example.com"},
        {"domain:*.Example.com.", CV_SEL_SUFFIX, "example.com"},
        {"domain: example.com ", CV_SEL_SUFFIX, "example.com"},
        {"full:WWW.Example.com.", CV_SEL_FULL, "www.example.com"},
        {"full:*.example.com", CV_SEL_FULL, "*.example.com"},
        {"keyword:.TRACK.", CV_SEL_KEYWORD, "track"},
        {"keyword:a:b", CV_SEL_KEYWORD, "a:b"},
        /* An unknown prefix does not switch the rule off. */
        {"domian:example.com", CV_SEL_SUFFIX, "example.com"},
        {"Full:example.com", CV_SEL_SUFFIX, "example.com"},
        {":example.com", CV_SEL_SUFFIX, "example.com"},
        {"example.com:443", CV_SEL_SUFFIX, "443"},
        {"Book:x", CV_SEL_SUFFIX, "x"},
        /* Unicode, also full width. */
        {"b\xc3\xbc"
         "cher.example",
         CV_SEL_SUFFIX, "xn--bcher-kva.example"},
        {"*.B\xc3\x9c"
         "CHER.example.",
         CV_SEL_SUFFIX, "xn--bcher-kva.example"},
        {"full:b\xc3\xbc"
         "cher.example",
         CV_SEL_FULL, "xn--bcher-kva.example"},
        {"\xe3\x80\x80"
         "example.com\xc2\xa0",
         CV_SEL_SUFFIX, "example.com"},
        /* Addresses. */
        {"192.0.2.7", CV_SEL_PREFIX, "192.0.2.7/32"},
        {" 192.0.2.7/24 ", CV_SEL_PREFIX, "192.0.2.0/24"},
        {"0.0.0.0/0", CV_SEL_PREFIX, "0.0.0.0/0"},
        {"2001:db8::1", CV_SEL_PREFIX, "2001:db8::1/128"},
        {"2001:DB8::1/33", CV_SEL_PREFIX, "2001:db8::/33"},
        {"::/0", CV_SEL_PREFIX, "::/0"},
        {"::ffff:192.0.2.7", CV_SEL_PREFIX, "192.0.2.7/32"},
        {"::ffff:a00:0/104", CV_SEL_PREFIX, "10.0.0.0/8"},
        {"::ffff:0:0/96", CV_SEL_PREFIX, "0.0.0.0/0"},
        {"::ffff:0:0/95", CV_SEL_PREFIX, "::fffe:0:0/95"},
        /* Not addresses, so names that no host has. */
        {"full:192.0.2.7", CV_SEL_FULL, "192.0.2.7"},
        {"192.0.2.0/33", CV_SEL_SUFFIX, "192.0.2.0/33"},
        {"127.1", CV_SEL_SUFFIX, "127.1"},
        /* Nothing left that could match. */
        {"", CV_SEL_NONE, ""},
        {" \t ", CV_SEL_NONE, ""},
        {"full:", CV_SEL_NONE, ""},
        {"keyword: ", CV_SEL_NONE, ""},
        {"...", CV_SEL_NONE, ""},
        {"*.", CV_SEL_SUFFIX, "*"},
        {"\xe2\x98\x83/x", CV_SEL_NONE, ""},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_selector sel;
        char text[CV_PREFIX_STRLEN];
        bool ok = T_INT_EQ(cv_selector_parse(rows[i].text, strlen(rows[i].text), &sel), 0);
        ok &= T_INT_EQ(sel.kind, rows[i].kind);
        if (sel.kind == CV_SEL_PREFIX)
            ok &= T_STR_EQ(cv_prefix_format(&sel.prefix, text), rows[i].normal);
        else if (sel.kind != CV_SEL_NONE)
            ok &= T_STR_EQ(sel.text, rows[i].normal) && T_INT_EQ(sel.len, strlen(sel.text));
        ok &= T_INT_EQ(sel.is_blank, strspn(rows[i].text, " \t") == strlen(rows[i].text));
        if (!ok)
            printf("#   for '%s'\n", rows[i].text);
    }
}

static void books_are_refused(void)
{
    struct cv_selector sel;

    T_INT_EQ(cv_selector_parse("book:cloud/x", 12, &sel), CV_E_UNSUPPORTED);
    T_INT_EQ(cv_selector_parse(" book:x ", 8, &sel), CV_E_UNSUPPORTED);
    T_INT_EQ(cv_selector_parse("book:", 5, &sel), CV_E_INVALID);
    T_INT_EQ(cv_selector_parse("book: // ", 9, &sel), CV_E_INVALID);
}

static void matches(void)
{
    static const struct {
        const char *selector, *host;
        bool yes;
    } rows[] = {
        {"example.com", "example.com", true},
        {"example.com", "a.b.example.com", true},
        {"example.com", "notexample.com", false},
        {"example.com", "example.com.evil.org", false},
        {"example.com", "com", false},
        {"EXAMPLE.com", "ExAmPlE.CoM.", true},
        {"full:example.com", "example.com", true},
        {"full:example.com", "a.example.com", false},
        {"keyword:xamp", "example.com", true},
        {"keyword:e.c", "example.com", true},
        {"keyword:examplf", "example.com", false},
        {"b\xc3\xbc"
         "cher.example",
         "www.B\xc3\x9c"
         "CHER.example",
         true},
        {"xn--bcher-kva.example",
         "b\xc3\xbc"
         "cher.example",
         true},
        {"keyword:b\xc3\xbc"
         "cher",
         "shop.b\xc3\xbc"
         "cher.example",
         true},
        {"10.0.0.0/8", "10.255.255.255", true},
        {"10.0.0.0/8", "11.0.0.0", false},
        {"10.0.0.0/8", "0xa.1", true},
        {"10.0.0.0/8", "::ffff:10.0.0.1", true},
        {"10.0.0.0/8", "[64:ff9b::a00:1]", true},
        {"10.0.0.0/8", "2002:a00:1::", true},
        {"10.0.0.0/8", "::10.0.0.1", true},
        {"::ffff:10.0.0.0/104", "10.0.0.1", true},
        {"10.0.0.0/8", "[64:ff9b:1::a00:1]", true},
        {"10.0.0.0/8", "[64:ff9b:1:a00:0:100:808:808]", true},
        {"64:ff9b::/96", "64:ff9b::a00:1", true},
        {"64:ff9b::/96", "10.0.0.1", false},
        {"::/0", "10.0.0.1", false},
        {"0.0.0.0/0", "2001:db8::1", false},
        /* A name meets names only, an address addresses only. */
        {"keyword:10", "10.0.0.1", false},
        {"full:10.0.0.1", "10.0.0.1", false},
        {"0.1", "10.0.0.1", false},
        {"0.0.0.0/0", "example.com", false},
        {"*.", "example.com", false},
        {"full:", "example.com", false},
    };

    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_selector sel;
        struct cv_host host = pu_host(rows[i].host);
        T_INT_EQ(cv_selector_parse(rows[i].selector, strlen(rows[i].selector), &sel), 0);
        if (!T_INT_EQ(cv_selector_matches(&sel, &host), rows[i].yes))
            printf("#   '%s' on '%s'\n", rows[i].selector, rows[i].host);
    }
}

static void trims_unicode_space(void)
{
    static const char *const spaces[] = {" ",
                                         "\t",
                                         "\r\n",
                                         "\xc2\x85",
                                         "\xc2\xa0",
                                         "\xe1\x9a\x80",
                                         "\xe2\x80\x80",
                                         "\xe2\x80\x8a",
                                         "\xe2\x80\xa8",
                                         "\xe2\x80\xaf",
                                         "\xe2\x81\x9f",
                                         "\xe3\x80\x80"};

    for (size_t i = 0; i < CV_ARRAY_SIZE(spaces); i++) {
        char text[32];
        const char *s = text;
        snprintf(text, sizeof(text), "%s%sx%s", spaces[i], spaces[i], spaces[i]);
        size_t len = strlen(text);
        cv_selector_trim(&s, &len);
        T_INT_EQ(len, 1);
        T_INT_EQ(*s, 'x');
        s = spaces[i];
        len = strlen(s);
        cv_selector_trim(&s, &len);
        T_INT_EQ(len, 0);
    }
    const char *zero_width = "\xe2\x80\x8bx"; /* U+200B is no white space */
    size_t len = 4;
    cv_selector_trim(&zero_width, &len);
    T_INT_EQ(len, 4);
}

int main(void)
{
    T_RUN(classifies);
    T_RUN(books_are_refused);
    T_RUN(matches);
    T_RUN(trims_unicode_space);
    return t_done();
}
