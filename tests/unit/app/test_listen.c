#include "app/listen.h"

#include "tap.h"

static void test_good(void)
{
    static const struct {
        const char *text;
        enum cv_listen_kind kind;
        const char *shown;
        bool local;
    } rows[] = {
        {"127.0.0.1:1080", CV_LISTEN_ADDRESS, "127.0.0.1:1080", true},
        {"127.9.9.9:1", CV_LISTEN_ADDRESS, "127.9.9.9:1", true},
        {"[::1]:1080", CV_LISTEN_ADDRESS, "[::1]:1080", true},
        {"[::]:1080", CV_LISTEN_ADDRESS, "[::]:1080", false},
        {":1080", CV_LISTEN_ADDRESS, "[::]:1080", false},
        {"0.0.0.0:65535", CV_LISTEN_ADDRESS, "0.0.0.0:65535", false},
        {"192.168.1.1:0", CV_LISTEN_ADDRESS, "192.168.1.1:0", false},
        {"unix:/run/x.sock", CV_LISTEN_UNIX, "unix:/run/x.sock", true},
        {"fd:web", CV_LISTEN_FD, NULL, false},
        {"fd:3", CV_LISTEN_FD, NULL, false},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_listen l;
        char why[200], text[CV_SOCKADDR_STRLEN];
        T_INT_EQ(cv_listen_parse(rows[i].text, &l, why, sizeof(why)), 0);
        T_STR_EQ(why, "");
        T_INT_EQ(l.kind, rows[i].kind);
        T_INT_EQ(cv_listen_is_local(&l), rows[i].local);
        if (rows[i].shown != NULL)
            T_STR_EQ(cv_sockaddr_format(&l.sa, text), rows[i].shown);
        else
            T_STR_EQ(l.fd_name, rows[i].text + 3);
    }
}

static void test_bad(void)
{
    static const char *const rows[] = {"",      "1080",         "localhost:1", "127.0.0.1",
                                       "::1:1", "127.0.0.1:",   ":65536",      "unix:",
                                       "fd:",   "fd:a b",       "fd:a:b",      "[::1]",
                                       ":",     "[::1%25lo]:1", "1.2.3.4:1x",  "http://x:1"};
    struct cv_listen l;
    char why[200], longer[200];
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        T_OK(cv_listen_parse(rows[i], &l, why, sizeof(why)) != 0);
        T_OK(why[0] != '\0');
    }
    memset(longer, 'a', sizeof(longer));
    memcpy(longer, "unix:/", 6);
    longer[sizeof(longer) - 1] = '\0';
    T_OK(cv_listen_parse(longer, &l, why, sizeof(why)) != 0);
    T_STR_EQ(why, "the path of a Unix socket has at most 107 bytes");
}

int main(void)
{
    T_RUN(test_good);
    T_RUN(test_bad);
    return t_done();
}
