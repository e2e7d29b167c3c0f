#include "tap.h"

#include "common/err.h"
#include "common/target.h"

static void hosts(void)
{
    static const struct {
        const char *in;
        const char *out; /* NULL: refused */
        enum cv_family family;
    } cases[] = {
        {"example.com", "example.com", CV_AF_NONE},
        {"GOOGLE.COM.", "google.com", CV_AF_NONE},
        {"b\xc3\xbc"
         "cher.de",
         "xn--bcher-kva.de", CV_AF_NONE},
        {"1.example", "1.example", CV_AF_NONE},
        {"a.1b", "a.1b", CV_AF_NONE},
        {"a.0xg", "a.0xg", CV_AF_NONE},
        {"7f", "7f", CV_AF_NONE},

        {"127.0.0.1", "127.0.0.1", CV_AF_IP4},
        {"127.0.0.1.", "127.0.0.1", CV_AF_IP4},
        {"0x7f.1", "127.0.0.1", CV_AF_IP4},
        {"0X7F.1.", "127.0.0.1", CV_AF_IP4},
        {"127.1", "127.0.0.1", CV_AF_IP4},
        {"017700000001", "127.0.0.1", CV_AF_IP4},
        {"2130706433", "127.0.0.1", CV_AF_IP4},
        {"0", "0.0.0.0", CV_AF_IP4},
        {"0x", "0.0.0.0", CV_AF_IP4},
        {"::1", "::1", CV_AF_IP6},
        {"[::1]", "::1", CV_AF_IP6},
        {"2001:DB8::1", "2001:db8::1", CV_AF_IP6},
        {"::ffff:127.0.0.1", "127.0.0.1", CV_AF_IP4},
        {"[::FFFF:7f00:1]", "127.0.0.1", CV_AF_IP4},
        {"::127.0.0.1", "::7f00:1", CV_AF_IP6},
        {"64:ff9b::7f00:1", "64:ff9b::7f00:1", CV_AF_IP6},
        /* Full-width digits, ideographic full stops, circled digits, soft hyphens. */
        {"\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1", "127.0.0.1", CV_AF_IP4},
        {"127\xe3\x80\x82"
         "0\xe3\x80\x82"
         "0\xe3\x80\x82"
         "1",
         "127.0.0.1", CV_AF_IP4},
        {"127\xef\xbc\x8e"
         "1",
         "127.0.0.1", CV_AF_IP4},
        {"\xe2\x91\xa0\xe2\x91\xa1\xe2\x91\xa6.1", "127.0.0.1", CV_AF_IP4},
        {"127.0.0.1\xe3\x80\x82", "127.0.0.1", CV_AF_IP4},
        {"12\xc2\xad"
         "7.0.0.1",
         "127.0.0.1", CV_AF_IP4},
        {"0\xef\xbd\x98"
         "7f.1",
         "127.0.0.1", CV_AF_IP4},

        {"", NULL, 0},
        {".", NULL, 0},
        {"127.0.0.1..", NULL, 0},
        {"1.2.3.4.5", NULL, 0},
        {"256.256.256.256", NULL, 0},
        {"1.2.3.256", NULL, 0},
        {"4294967296", NULL, 0},
        {"example.com.1", NULL, 0},
        {"example.0x7f", NULL, 0},
        {"example.0x", NULL, 0},
        {"foo.09", NULL, 0},
        {"08", NULL, 0},
        {"127..1", NULL, 0},
        {"[127.0.0.1]", NULL, 0},
        {"[example.com]", NULL, 0},
        {"[::1", NULL, 0},
        {"::1]", NULL, 0},
        {"[::1].", NULL, 0},
        {"[]", NULL, 0},
        {"[", NULL, 0},
        {"::1%lo", NULL, 0},
        {"[fe80::1%25eth0]", NULL, 0},
        {"[fe80::1%eth0]", NULL, 0},
        {"a:b", NULL, 0},
        {"127.0.0.1:80", NULL, 0},
        {"127.0.0.1%00", NULL, 0},
        {"\xef\xbc\x9a\xef\xbc\x9a"
         "1",
         NULL, 0},
        {"user@example.com", NULL, 0},
        {"example.com/", NULL, 0},
        {" example.com", NULL, 0},
        {"0x00000000000000000000000000000000000000000000000000000000000000000000007f.1", NULL, 0},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_host h;
        int ret = cv_host_parse(cases[i].in, strlen(cases[i].in), &h);
        bool ok;
        if (cases[i].out == NULL) {
            ok = T_INT_EQ(ret, CV_E_PARSE);
        } else {
            ok = T_INT_EQ(ret, 0) && T_STR_EQ(h.name, cases[i].out) &&
                 T_INT_EQ(h.name_len, strlen(cases[i].out)) &&
                 T_INT_EQ(h.ip.family, cases[i].family) &&
                 T_INT_EQ(cv_host_is_ip(&h), cases[i].family != CV_AF_NONE);
        }
        if (!ok)
            printf("#   host '%s'\n", cases[i].in);
    }
    struct cv_host h;
    T_INT_EQ(cv_host_parse("127.0.0.1\0.example.com", 22, &h), CV_E_PARSE);
}

static void failure_leaves_the_result_alone(void)
{
    struct cv_target t = {.port = 7, .host.name_len = 9}, before = t;
    T_INT_EQ(cv_host_parse("1.2.3.4.5", 9, &t.host), CV_E_PARSE);
    T_INT_EQ(cv_target_parse("exa mple.com:80", 15, 0, &t), CV_E_PARSE);
    T_INT_EQ(cv_target_parse("example.com:0", 13, 0, &t), CV_E_PARSE);
    T_MEM_EQ(&t, &before, sizeof(t));
}

static void targets(void)
{
    static const struct {
        const char *in;
        uint16_t default_port;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"[::1]:443", 0, "[::1]:443"},
        {"h:80", 0, "h:80"},
        {"H.:1", 0, "h:1"},
        {"h:65535", 0, "h:65535"},
        {"h:00080", 0, "h:80"},
        {"127.1:80", 0, "127.0.0.1:80"},
        {"[::ffff:127.0.0.1]:80", 0, "127.0.0.1:80"},
        {"[2001:DB8::1]:8080", 0, "[2001:db8::1]:8080"},
        {"h", 80, "h:80"},
        {"h:8080", 80, "h:8080"},
        {"[::1]", 80, "[::1]:80"},
        {"127.0.0.1", 443, "127.0.0.1:443"},

        {"", 0, NULL},
        {"", 80, NULL},
        {":80", 0, NULL},
        {":80", 80, NULL},
        {"h", 0, NULL},
        {"[::1]", 0, NULL},
        {"::1:443", 0, NULL},
        {"::1", 80, NULL},
        {"::1:443", 80, NULL},
        {"[::1%25lo]:443", 0, NULL},
        {"[::1%25lo]:443", 80, NULL},
        {"h:0", 0, NULL},
        {"h:0", 80, NULL},
        {"h:65536", 0, NULL},
        {"h:99999", 0, NULL},
        {"h:000080", 0, NULL},
        {"h:80x", 0, NULL},
        {"h:x80", 0, NULL},
        {"h:+80", 0, NULL},
        {"h:-80", 0, NULL},
        {"h: 80", 0, NULL},
        {"h:80 ", 0, NULL},
        {"h:0x50", 0, NULL},
        {"h:", 0, NULL},
        {"h:", 80, NULL},
        {"h:80:80", 0, NULL},
        {"u@h:80", 0, NULL},
        {"u:p@h:80", 0, NULL},
        {"u@h:80", 80, NULL},
        {"h/:80", 0, NULL},
        {"http://h:80", 0, NULL},
        {"[::1]x:80", 0, NULL},
        {"[::1]443", 0, NULL},
        {"[::1]:", 0, NULL},
        {"[::1", 80, NULL},
        {"x[::1]:80", 0, NULL},
        {"[127.0.0.1]:80", 0, NULL},
        {"[h]:80", 0, NULL},
        {"1.2.3.4.5:80", 0, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_target t;
        char out[CV_TARGET_STRLEN];
        int ret = cv_target_parse(cases[i].in, strlen(cases[i].in), cases[i].default_port, &t);
        bool ok = cases[i].out == NULL
                      ? T_INT_EQ(ret, CV_E_PARSE)
                      : T_INT_EQ(ret, 0) && T_STR_EQ(cv_target_format(&t, out), cases[i].out);
        if (!ok)
            printf("#   target '%s'\n", cases[i].in);
    }
}

static void longest_target_fits(void)
{
    char text[300];
    for (size_t i = 0; i < CV_NAME_MAX; i++)
        text[i] = i % 64 == 63 ? '.' : 'n';
    memcpy(text + CV_NAME_MAX, ":65535", 7);
    struct cv_target t;
    char out[CV_TARGET_STRLEN];
    T_REQUIRE(cv_target_parse(text, strlen(text), 0, &t) == 0);
    T_STR_EQ(cv_target_format(&t, out), text);
}

static void host_from_address(void)
{
    struct cv_host h;
    struct cv_ip ip = {.family = CV_AF_IP6, .b = {[10] = 0xff, 0xff, 10, 0, 0, 1}};
    cv_host_from_ip(&h, &ip);
    T_INT_EQ(h.ip.family, CV_AF_IP4);
    T_STR_EQ(h.name, "10.0.0.1");
    T_INT_EQ(h.name_len, 8);
}

int main(void)
{
    T_RUN(hosts);
    T_RUN(failure_leaves_the_result_alone);
    T_RUN(targets);
    T_RUN(longest_target_fits);
    T_RUN(host_from_address);
    return t_done();
}
