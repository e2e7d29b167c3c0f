#include "proto/sniff.h"

#include "common/alloc.h"
#include "common/err.h"
#include "hello_samples.h"
#include "tap.h"

/* Look at 'p' in pieces of 'step' bytes, each time in memory of exact size. */
static enum cv_sniff_outcome look(const void *p, size_t len, size_t step, struct cv_host *host)
{
    struct cv_sniff s = {0};
    enum cv_sniff_outcome outcome = CV_SNIFF_NONE;
    host->name[0] = '\0';
    for (size_t n = CV_MIN(step, len);; n = CV_MIN(n + step, len)) {
        uint8_t *exact = cv_alloc(n);
        memcpy(exact, p, n);
        int ret = cv_sniff_look(&s, exact, n, &outcome, host);
        cv_free(exact);
        if (ret == 0 || n == len)
            return ret == 0 ? outcome : CV_SNIFF_NONE;
    }
}

#define NO  CV_SNIFF_UNSUPPORTED
#define BAD CV_SNIFF_MALFORMED
#define ON  CV_SNIFF_NONE /* more is awaited */

static const struct {
    const char *in, *host; /* NULL: none */
    enum cv_sniff_outcome outcome;
} cases[] = {
    {"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "a.test", CV_SNIFF_HTTP},
    {"GET / HTTP/1.1\r\nAccept: */*\r\nhOST:  WWW.A.Test.:8080 \r\n\r\n", "www.a.test",
     CV_SNIFF_HTTP},
    {"POST /x?y HTTP/1.0\r\nHost: a.test:80\r\n\r\n", "a.test", CV_SNIFF_HTTP},
    {"M-SEARCH * HTTP/1.1\r\nHost: a\r\n\r\n", "a", CV_SNIFF_HTTP},
    {"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", "a.test", CV_SNIFF_HTTP},
    {"GET http://b.test:81/x HTTP/1.1\r\nHost: a.test\r\n\r\n", "b.test", CV_SNIFF_HTTP},
    {"CONNECT c.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", "c.test", CV_SNIFF_HTTP},
    {"GET / HTTP/1.1\r\nHost: xn--mnchen-3ya.test\r\n\r\n", "xn--mnchen-3ya.test", CV_SNIFF_HTTP},
    {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nbody", "localhost", CV_SNIFF_HTTP},
    {"GET / HTTP/1.0\r\n\r\n", NULL, NO},
    {"GET / HTTP/1.1\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\nHost: a.test\n\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: 10.0.0.1:80\r\n\r\n", NULL, NO},
    {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", NULL, NO},
    {"GET / HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", NULL, NO},
    {"GET / HTTP/1.1\r\nHost: a..test\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: a_b.test\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: -a.test\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: a.test:80:80\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: :80\r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: \r\n\r\n", NULL, BAD},
    {"GET / HTTP/1.1\r\nHost: u@a.test\r\n\r\n", NULL, BAD},
    {"GET / HTTP/2.0\r\n\r\n", NULL, NO},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NULL, NO},
    {"SSH-2.0-OpenSSH_9.2\r\n", NULL, NO},
    {"EHLO a.test\r\n", NULL, NO},
    {" GET / HTTP/1.1\r\n\r\n", NULL, NO},
    {"GET /HTTP/1.1\r\n\r\n", NULL, NO},
    {"GET  HTTP/1.1\r\n\r\n", NULL, BAD},
    {"\x05\x01", NULL, NO},
    {"\x80\x2e\x01", NULL, NO},
    {"GET /\x01", NULL, NO},
    {"THIS-IS-NO-METHOD-BUT-MUCH-TOO-LONG", NULL, NO},
    {"GET / HTTP/1.1\r\nHost: a.test\r\n", NULL, ON},
    {"G", NULL, ON},
    {"\x16", NULL, ON},
    {"\x16\x03\x01\x00\x01\x02", NULL, BAD},
    {"\x16\x03\x01\x00", NULL, ON},
};

static void test_cases(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        /* The NUL within "\x16..." cases is part of them. */
        size_t len = strlen(cases[i].in);
        if (cases[i].in[0] == 0x16 && len > 1)
            len = cases[i].outcome == BAD ? 6 : 4;
        for (size_t step = 1; step <= len; step++) {
            struct cv_host h;
            enum cv_sniff_outcome o = look(cases[i].in, len, step, &h);
            bool ok = T_INT_EQ(o, cases[i].outcome);
            if (cv_sniff_is_match(o))
                ok = T_STR_EQ(h.name, cases[i].host) && ok;
            if (!ok) {
                printf("#   case %zu in steps of %zu: %s\n", i, step, cases[i].in);
                break;
            }
        }
    }
}

static void test_tls(void)
{
    struct cv_host h;
    for (size_t step = 1; step <= sizeof(hello_curl); step += 13) {
        T_INT_EQ(look(hello_curl, sizeof(hello_curl), step, &h), CV_SNIFF_TLS);
        T_STR_EQ(h.name, "curl.example");
    }
    T_INT_EQ(look(hello_openssl_noname, sizeof(hello_openssl_noname), 1000, &h), NO);
}

static void test_large_heads(void)
{
    static char buf[40000] = "GET / HTTP/1.1\r\nX: ";
    struct cv_host h;
    size_t n = strlen(buf);
    memset(buf + n, 'a', sizeof(buf) - n);
    T_INT_EQ(look(buf, 30000, 30000, &h), ON);
    T_INT_EQ(look(buf, sizeof(buf), sizeof(buf), &h), CV_SNIFF_LIMIT);
    memset(buf, 'a', sizeof(buf));
    memcpy(buf, "GET /", 5);
    T_INT_EQ(look(buf, 10000, 10000, &h), ON);
    T_INT_EQ(look(buf, 30000, 30000, &h), NO);
}

static void test_hosts(void)
{
    static const struct {
        const char *in, *out;
        int ret;
    } hosts[] = {
        {"Example.COM", "example.com", 0},
        {"example.com.", "example.com", 0},
        {"a", "a", 0},
        {"1a.2b", "1a.2b", 0},
        {"xn--mnchen-3ya.de", "xn--mnchen-3ya.de", 0},
        {"127.0.0.1", NULL, CV_E_NOTFOUND},
        {"127.1", NULL, CV_E_NOTFOUND},
        {"0x7f000001", NULL, CV_E_NOTFOUND},
        {"017700000001", NULL, CV_E_NOTFOUND},
        {"2130706433", NULL, CV_E_NOTFOUND},
        {"::1", NULL, CV_E_NOTFOUND},
        {"[::1]", NULL, CV_E_NOTFOUND},
        {"::ffff:127.0.0.1", NULL, CV_E_NOTFOUND},
        {"", NULL, CV_E_PARSE},
        {".", NULL, CV_E_PARSE},
        {"a..b", NULL, CV_E_PARSE},
        {"a.b..", NULL, CV_E_PARSE},
        {".a", NULL, CV_E_PARSE},
        {"a_b.c", NULL, CV_E_PARSE},
        {"-a.b", NULL, CV_E_PARSE},
        {"a-.b", NULL, CV_E_PARSE},
        {"a.b-", NULL, CV_E_PARSE},
        {"a b", NULL, CV_E_PARSE},
        {"a/b", NULL, CV_E_PARSE},
        {"a.test:443", NULL, CV_E_PARSE},
        {"*.test", NULL, CV_E_PARSE},
        {"m\xc3\xbcnchen.de", NULL, CV_E_PARSE}, /* the wire has A-labels */
        {"1.2.3", NULL, CV_E_NOTFOUND},
        {"a.1", NULL, CV_E_PARSE},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(hosts); i++) {
        struct cv_host h;
        int ret = cv_sniff_host(hosts[i].in, strlen(hosts[i].in), &h);
        if (!T_INT_EQ(ret, hosts[i].ret))
            printf("#   '%s'\n", hosts[i].in);
        if (ret == 0)
            T_STR_EQ(h.name, hosts[i].out);
    }
    struct cv_host h;
    T_INT_EQ(cv_sniff_host("a\0b", 3, &h), CV_E_PARSE);
}

static void test_names(void)
{
    for (int o = 0; o <= CV_SNIFF_OUTCOMES; o++) {
        enum cv_sniff_outcome x = (enum cv_sniff_outcome)o;
        bool real = o != CV_SNIFF_NONE && o != CV_SNIFF_OUTCOMES;
        T_INT_EQ(cv_sniff_outcome_name(x)[0] != '\0', real);
        T_INT_EQ(cv_sniff_outcome_label(x)[0] != '\0', real);
        T_INT_EQ(cv_sniff_protocol_name(x) != NULL, cv_sniff_is_match(x));
    }
}

int main(void)
{
    T_RUN(test_cases);
    T_RUN(test_tls);
    T_RUN(test_large_heads);
    T_RUN(test_hosts);
    T_RUN(test_names);
    return t_done();
}
