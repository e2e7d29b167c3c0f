/* The SOCKS5 codec: every message at every split point, each malformed form, both sides. */
#include "proto/socks5.h"

#include <errno.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/rand.h"
#include "tap.h"

/* Bytes of a table row. */
struct bytes {
    size_t len;
    uint8_t b[32];
};
#define B(...)                                                                                     \
    {                                                                                              \
        sizeof((const uint8_t[]){__VA_ARGS__}),                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* Copy to memory of the exact length, so that a read beyond the end is seen by the sanitizer. */
static uint8_t *exact(const uint8_t *in, size_t len)
{
    uint8_t *p = cv_alloc(len > 0 ? len : 1);
    memcpy(p, in, len);
    return p;
}

static void test_greeting(void)
{
    static const struct {
        struct bytes in;
        int ret;
        size_t used;
        bool none, login;
    } t[] = {
        {B(5, 1, 0), 0, 3, true, false},
        {B(5, 1, 2), 0, 3, false, true},
        {B(5, 2, 0, 2), 0, 4, true, true},
        {B(5, 2, 2, 0), 0, 4, true, true},
        {B(5, 3, 2, 2, 2), 0, 5, false, true},
        {B(5, 0), 0, 2, false, false},
        {B(5, 2, 1, 0x80), 0, 4, false, false},
        {B(5, 1, 0xff), 0, 3, false, false},
        {B(5, 1, 1, 0, 2), 0, 3, false, false}, /* what follows is no method */
        {B(5, 0, 2), 0, 2, false, false},
        {B(4), CV_E_PROTO, 0, false, false},
        {B(4, 1, 0, 80, 1, 2, 3, 4, 0), CV_E_PROTO, 0, false, false},
        {B('G', 'E', 'T'), CV_E_PROTO, 0, false, false},
        {B(0x16, 3, 1), CV_E_PROTO, 0, false, false},
        {B(5), CV_E_MORE, 0, false, false},
        {B(5, 1), CV_E_MORE, 0, false, false},
        {B(5, 255, 2), CV_E_MORE, 0, false, false},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_greeting g = {0};
        size_t used = 0;
        uint8_t *in = exact(t[i].in.b, t[i].in.len);
        if (!T_INT_EQ(cv_socks5_greeting_parse(in, t[i].in.len, &g, &used), t[i].ret))
            printf("#   row %zu\n", i);
        T_INT_EQ(used, t[i].used);
        T_INT_EQ(g.none, t[i].none);
        T_INT_EQ(g.login, t[i].login);
        cv_free(in);
    }
    struct cv_socks5_greeting g;
    size_t used;
    T_INT_EQ(cv_socks5_greeting_parse(NULL, 0, &g, &used), CV_E_MORE);
    uint8_t all[CV_SOCKS5_GREETING_MAX] = {5, 255};
    for (size_t i = 0; i < 255; i++)
        all[2 + i] = (uint8_t)i;
    T_INT_EQ(cv_socks5_greeting_parse(all, sizeof(all), &g, &used), 0);
    T_INT_EQ(used, sizeof(all));
    T_OK(g.none && g.login);
}

static void test_login(void)
{
    static const struct {
        struct bytes in;
        int ret;
        size_t used;
        const char *user, *pass;
    } t[] = {
        {B(1, 1, 'u', 1, 'p'), 0, 5, "u", "p"},
        {B(1, 5, 'a', 'l', 'i', 'c', 'e', 2, 'p', 'w', 5, 1, 0), 0, 10, "alice", "pw"},
        /* Empty ones are logins like others, never a fault of form and never a wait. */
        {B(1, 0, 0), 0, 3, "", ""},
        {B(1, 1, 'u', 0), 0, 4, "u", ""},
        {B(1, 0, 1, 'p'), 0, 4, "", "p"},
        {B(5), CV_E_PROTO, 0, NULL, NULL},
        {B(0, 1, 'u', 1, 'p'), CV_E_PROTO, 0, NULL, NULL},
        {B(1), CV_E_MORE, 0, NULL, NULL},
        {B(1, 0), CV_E_MORE, 0, NULL, NULL},
        {B(1, 1), CV_E_MORE, 0, NULL, NULL},
        {B(1, 1, 'u'), CV_E_MORE, 0, NULL, NULL},
        {B(1, 1, 'u', 1), CV_E_MORE, 0, NULL, NULL},
        {B(1, 255, 'u', 1), CV_E_MORE, 0, NULL, NULL},
        {B(1, 1, 'u', 255, 'p'), CV_E_MORE, 0, NULL, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_login l = {0};
        size_t used = 0;
        uint8_t *in = exact(t[i].in.b, t[i].in.len);
        if (!T_INT_EQ(cv_socks5_login_parse(in, t[i].in.len, &l, &used), t[i].ret))
            printf("#   row %zu\n", i);
        T_INT_EQ(used, t[i].used);
        if (t[i].ret == 0) {
            T_INT_EQ(l.user_len, strlen(t[i].user));
            T_MEM_EQ(l.user, t[i].user, l.user_len);
            T_INT_EQ(l.pass_len, strlen(t[i].pass));
            T_MEM_EQ(l.pass, t[i].pass, l.pass_len);
        }
        cv_free(in);
    }
}

static void test_login_longest(void)
{
    uint8_t in[CV_SOCKS5_LOGIN_MAX];
    in[0] = 1;
    in[1] = 255;
    memset(in + 2, 'A', 255);
    in[257] = 255;
    memset(in + 258, 'B', 255);
    struct cv_socks5_login l;
    size_t used;
    for (size_t n = 0; n < sizeof(in); n++)
        T_INT_EQ(cv_socks5_login_parse(in, n, &l, &used), CV_E_MORE);
    T_REQUIRE(cv_socks5_login_parse(in, sizeof(in), &l, &used) == 0);
    T_INT_EQ(used, sizeof(in));
    T_INT_EQ(l.user_len, 255);
    T_INT_EQ(l.pass_len, 255);
    T_INT_EQ(l.pass[254], 'B');
}

static void test_request(void)
{
    static const struct {
        struct bytes in;
        int ret;
        size_t used;
        int cmd, atyp, addr_len;
        uint16_t port;
    } t[] = {
        {B(5, 1, 0, 1, 1, 2, 3, 4, 0, 80), 0, 10, 1, 1, 4, 80},
        {B(5, 1, 7, 1, 1, 2, 3, 4, 1, 0), 0, 10, 1, 1, 4, 256}, /* reserved byte */
        {B(5, 1, 0, 3, 2, 'a', 'b', 1, 187, 'x', 'y'), 0, 9, 1, 3, 2, 443},
        {B(5, 1, 0, 3, 0, 0, 80), 0, 7, 1, 3, 0, 80},
        {B(5, 1, 0, 4, 32, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 255, 255), 0, 22, 1, 4,
         16, 65535},
        {B(5, 3, 0, 1, 0, 0, 0, 0, 0, 0), 0, 10, 3, 1, 4, 0},
        {B(5, 3, 0, 3, 1, 'x', 255, 255), 0, 8, 3, 3, 1, 65535},
        {B(4), CV_E_PROTO, 0, 0, 0, 0, 0},
        {B(4, 1, 0, 1, 1, 2, 3, 4, 0, 80), CV_E_PROTO, 0, 0, 0, 0, 0},
        {B(5, 2), CV_E_UNSUPPORTED, 0, 0, 0, 0, 0},
        {B(5, 2, 0, 1, 1, 2, 3, 4, 0, 80), CV_E_UNSUPPORTED, 0, 0, 0, 0, 0},
        {B(5, 9, 0, 2), CV_E_UNSUPPORTED, 0, 0, 0, 0, 0}, /* the command is judged first */
        {B(5, 0), CV_E_UNSUPPORTED, 0, 0, 0, 0, 0},
        {B(5, 0xf0, 0, 1), CV_E_UNSUPPORTED, 0, 0, 0, 0, 0}, /* Tor's RESOLVE */
        {B(5, 1, 0, 2), -EAFNOSUPPORT, 0, 0, 0, 0, 0},
        {B(5, 1, 0, 0), -EAFNOSUPPORT, 0, 0, 0, 0, 0},
        {B(5, 1, 0, 255, 1, 2, 3), -EAFNOSUPPORT, 0, 0, 0, 0, 0},
        {B(5, 3, 0, 9), -EAFNOSUPPORT, 0, 0, 0, 0, 0},
        {B(5), CV_E_MORE, 0, 0, 0, 0, 0},
        {B(5, 1), CV_E_MORE, 0, 0, 0, 0, 0},
        {B(5, 1, 0), CV_E_MORE, 0, 0, 0, 0, 0},
        {B(5, 1, 0, 3), CV_E_MORE, 0, 0, 0, 0, 0},
        {B(5, 1, 0, 3, 255, 'a', 'b', 'c'), CV_E_MORE, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_request q = {0};
        size_t used = 0;
        uint8_t *in = exact(t[i].in.b, t[i].in.len);
        if (!T_INT_EQ(cv_socks5_request_parse(in, t[i].in.len, &q, &used), t[i].ret))
            printf("#   row %zu\n", i);
        T_INT_EQ(used, t[i].used);
        T_INT_EQ(q.cmd, t[i].cmd);
        T_INT_EQ(q.atyp, t[i].atyp);
        T_INT_EQ(q.addr_len, t[i].addr_len);
        T_INT_EQ(q.port, t[i].port);
        cv_free(in);
    }
}

/* Each shorter piece of a whole message asks for more and changes nothing. */
static void test_split_everywhere(void)
{
    static const uint8_t greeting[] = {5, 3, 0, 1, 2};
    static const uint8_t login[] = {1, 3, 'a', 'b', 'c', 2, 'x', 'y'};
    static const uint8_t requests[][22] = {
        {5, 1, 0, 1, 9, 8, 7, 6, 0, 80},
        {5, 1, 0, 3, 4, 'h', 'o', 's', 't', 1, 187},
        {5, 1, 0, 4, 32, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 187},
    };
    static const uint8_t sizes[] = {10, 11, 22};
    struct cv_socks5_greeting g;
    struct cv_socks5_login l;
    struct cv_socks5_request q;
    size_t used = 77;
    for (size_t n = 0; n < sizeof(greeting); n++)
        T_INT_EQ(cv_socks5_greeting_parse(greeting, n, &g, &used), CV_E_MORE);
    for (size_t n = 0; n < sizeof(login); n++)
        T_INT_EQ(cv_socks5_login_parse(login, n, &l, &used), CV_E_MORE);
    for (size_t i = 0; i < CV_ARRAY_SIZE(requests); i++)
        for (size_t n = 0; n < sizes[i]; n++)
            T_INT_EQ(cv_socks5_request_parse(requests[i], n, &q, &used), CV_E_MORE);
    T_INT_EQ(used, 77);
}

static void test_target(void)
{
    static const struct {
        const char *name;
        uint16_t port;
        int ret;
        const char *text; /* of cv_target_format() */
    } t[] = {
        {"example.com", 443, 0, "example.com:443"},
        {"EXAMPLE.com.", 443, 0, "example.com:443"},
        {"127.0.0.1", 80, 0, "127.0.0.1:80"},
        {"127.1", 80, 0, "127.0.0.1:80"},
        {"0x7f.1", 80, 0, "127.0.0.1:80"},
        {"017700000001", 80, 0, "127.0.0.1:80"},
        {"::1", 80, 0, "[::1]:80"},
        {"[::1]", 80, 0, "[::1]:80"},
        {"::ffff:10.0.0.1", 80, 0, "10.0.0.1:80"},
        {"2001:db8::1", 80, 0, "[2001:db8::1]:80"},
        {"", 80, CV_E_PARSE, NULL},
        {"a b", 80, CV_E_PARSE, NULL},
        {"a/b", 80, CV_E_PARSE, NULL},
        {"host:80", 80, CV_E_PARSE, NULL},
        {"1.2.3.999", 80, CV_E_PARSE, NULL},
        {"example.com", 0, CV_E_PARSE, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_request q = {
            .cmd = CV_SOCKS5_CMD_CONNECT,
            .atyp = CV_SOCKS5_ATYP_NAME,
            .addr = (const uint8_t *)t[i].name,
            .addr_len = (uint8_t)strlen(t[i].name),
            .port = t[i].port,
        };
        struct cv_target target;
        char text[CV_TARGET_STRLEN];
        if (!T_INT_EQ(cv_socks5_request_target(&q, &target), t[i].ret))
            printf("#   '%s'\n", t[i].name);
        else if (t[i].ret == 0)
            T_STR_EQ(cv_target_format(&target, text), t[i].text);
    }
    /* A NUL within the name ends nothing. */
    struct cv_socks5_request q = {.cmd = CV_SOCKS5_CMD_CONNECT,
                                  .atyp = CV_SOCKS5_ATYP_NAME,
                                  .addr = (const uint8_t *)"a.test\0.evil",
                                  .addr_len = 12,
                                  .port = 80};
    struct cv_target target;
    T_INT_EQ(cv_socks5_request_target(&q, &target), CV_E_PARSE);
}

static void test_target_binary(void)
{
    static const struct {
        int atyp;
        uint8_t addr[16];
        const char *text;
    } t[] = {
        {CV_SOCKS5_ATYP_IP4, {1, 2, 3, 4}, "1.2.3.4:8080"},
        {CV_SOCKS5_ATYP_IP6, {[15] = 1}, "[::1]:8080"},
        {CV_SOCKS5_ATYP_IP6, {[10] = 0xff, 0xff, 127, 0, 0, 1}, "127.0.0.1:8080"},
        {CV_SOCKS5_ATYP_IP6, {0x20, 1, 0xd, 0xb8, [15] = 9}, "[2001:db8::9]:8080"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_request q = {
            .cmd = CV_SOCKS5_CMD_CONNECT,
            .atyp = (enum cv_socks5_atyp)t[i].atyp,
            .addr = t[i].addr,
            .addr_len = t[i].atyp == CV_SOCKS5_ATYP_IP4 ? 4 : 16,
            .port = 8080,
        };
        struct cv_target target;
        char text[CV_TARGET_STRLEN];
        T_INT_EQ(cv_socks5_request_target(&q, &target), 0);
        T_OK(cv_host_is_ip(&target.host));
        T_STR_EQ(cv_target_format(&target, text), t[i].text);
    }
}

static void test_encode(void)
{
    uint8_t b[2];
    cv_socks5_method_encode(b, CV_SOCKS5_METHOD_LOGIN);
    T_MEM_EQ(b, "\x05\x02", 2);
    cv_socks5_method_encode(b, CV_SOCKS5_METHOD_REFUSED);
    T_MEM_EQ(b, "\x05\xff", 2);
    cv_socks5_login_reply_encode(b, true);
    T_MEM_EQ(b, "\x01\x00", 2);
    cv_socks5_login_reply_encode(b, false);
    T_MEM_EQ(b, "\x01\x01", 2);

    uint8_t out[CV_SOCKS5_ANSWER_MAX];
    T_INT_EQ(cv_socks5_reply_encode(out, 5, NULL), 10);
    T_MEM_EQ(out, "\x05\x05\x00\x01\0\0\0\0\0\0", 10);
    struct cv_endpoint ep = {.port = 4660};
    T_INT_EQ(cv_socks5_reply_encode(out, 0, &ep), 10); /* no family: nothing of it is written */
    T_MEM_EQ(out, "\x05\x00\x00\x01\0\0\0\0\0\0", 10);
    ep.ip = (struct cv_ip){.family = CV_AF_IP4, .b = {10, 0, 0, 1}};
    T_INT_EQ(cv_socks5_reply_encode(out, 0, &ep), 10);
    T_MEM_EQ(out, "\x05\x00\x00\x01\x0a\x00\x00\x01\x12\x34", 10);
    ep.ip = (struct cv_ip){.family = CV_AF_IP6, .b = {0x20, 1, [15] = 7}};
    T_INT_EQ(cv_socks5_reply_encode(out, 0, &ep), 22);
    T_MEM_EQ(out, "\x05\x00\x00\x04\x20\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\x12\x34", 22);
}

static void test_reply(void)
{
    static const struct {
        struct bytes in;
        int ret;
        size_t used;
        int rep;
        const char *bnd; /* "unix" = no address */
    } t[] = {
        {B(5, 0, 0, 1, 1, 2, 3, 4, 0, 80), 0, 10, 0, "1.2.3.4:80"},
        {B(5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80), 0, 22, 0,
         "[::1]:80"},
        {B(5, 0, 0, 3, 5, 'p', 'r', 'o', 'x', 'y', 0, 80), 0, 12, 0, "unix"},
        {B(5, 0, 0, 3, 0, 0, 80), 0, 7, 0, "unix"},
        {B(5, 5), 0, 2, 5, "unix"}, /* some servers stop here */
        {B(5, 1, 0, 9), 0, 2, 1, "unix"},
        {B(5, 0, 0, 1, 1, 2, 3, 4, 0, 80, 'B', 'A', 'N', 'N', 'E', 'R'), 0, 10, 0, "1.2.3.4:80"},
        {B(4), CV_E_PROTO, 0, 0, NULL},
        {B(0, 90), CV_E_PROTO, 0, 0, NULL},
        {B(5, 0, 0, 2), CV_E_PROTO, 0, 0, NULL},
        {B(5), CV_E_MORE, 0, 0, NULL},
        {B(5, 0, 0), CV_E_MORE, 0, 0, NULL},
        {B(5, 0, 0, 3), CV_E_MORE, 0, 0, NULL},
        {B(5, 0, 0, 3, 255, 'a'), CV_E_MORE, 0, 0, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        struct cv_socks5_reply reply = {0};
        size_t used = 0;
        uint8_t *in = exact(t[i].in.b, t[i].in.len);
        if (!T_INT_EQ(cv_socks5_reply_parse(in, t[i].in.len, &reply, &used), t[i].ret))
            printf("#   row %zu\n", i);
        T_INT_EQ(used, t[i].used);
        T_INT_EQ(reply.rep, t[i].rep);
        if (t[i].bnd != NULL) {
            char text[CV_ENDPOINT_STRLEN];
            T_STR_EQ(cv_endpoint_format(&reply.bnd, text), t[i].bnd);
        }
        cv_free(in);
    }
}

/* A scripted run of the client: the server's bytes come in pieces of which the n-th ends at the
 * n-th set bit of 'cuts' (every 'step' bytes when step > 0). */
struct talk {
    int ret;
    size_t out_len;
    uint8_t out[2048];
    char rest[64];
    size_t rest_len;
    struct cv_socks5_client c;
};

static void talk(struct talk *t, const char *user, const char *pass, const struct cv_target *target,
                 const uint8_t *in, size_t len, size_t first, size_t step)
{
    memset(t, 0, sizeof(*t));
    T_REQUIRE(cv_socks5_client_init(&t->c, CV_SOCKS5_CMD_CONNECT, user,
                                    user != NULL ? strlen(user) : 0, pass,
                                    pass != NULL ? strlen(pass) : 0, target) == 0);
    size_t have = 0, off = 0;
    for (size_t next = 0;; next = have == 0 ? first : have + step) {
        have = CV_MIN(next, len);
        size_t used, out_len;
        uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX];
        uint8_t *piece = exact(in + off, have - off);
        t->ret = cv_socks5_client_step(&t->c, piece, have - off, &used, out, &out_len);
        cv_free(piece);
        T_REQUIRE(used <= have - off && out_len <= sizeof(out));
        off += used;
        memcpy(t->out + t->out_len, out, out_len);
        t->out_len += out_len;
        if (t->ret != CV_E_MORE || (next > 0 && have == len))
            break;
    }
    t->rest_len = len - off;
    memcpy(t->rest, in + off, CV_MIN(t->rest_len, sizeof(t->rest)));
}

static struct cv_target target_of(const char *s)
{
    struct cv_target t = {0};
    T_INT_EQ(cv_target_parse(s, strlen(s), 0, &t), 0);
    return t;
}

/* The reply's length is told by its own address type and whatever follows is payload, at each split
 * and with each kind of target. */
static void test_client_banner(void)
{
    static const struct {
        struct bytes in;
    } replies[] = {
        {B(5, 0, 0, 1, 1, 2, 3, 4, 0, 80)},
        {B(5, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80)},
        {B(5, 0, 0, 3, 5, 'p', 'r', 'o', 'x', 'y', 0, 80)},
    };
    static const char *const targets[] = {"1.2.3.4:80", "[2001:db8::1]:80", "example.com:80"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(replies); i++) {
        uint8_t in[64] = {5, 2, 1, 0};
        memcpy(in + 4, replies[i].in.b, replies[i].in.len);
        memcpy(in + 4 + replies[i].in.len, "BANNER", 6);
        size_t len = 4 + replies[i].in.len + 6;
        for (size_t k = 0; k < CV_ARRAY_SIZE(targets); k++) {
            struct cv_target target = target_of(targets[k]);
            struct talk whole;
            talk(&whole, "u", "p", &target, in, len, len, len);
            T_INT_EQ(whole.ret, 0);
            T_INT_EQ(whole.rest_len, 6);
            T_MEM_EQ(whole.rest, "BANNER", 6);
            for (size_t cut = 1; cut < len; cut++) {
                struct talk t;
                talk(&t, "u", "p", &target, in, len, cut, len);
                T_INT_EQ(t.ret, 0);
                T_INT_EQ(t.out_len, whole.out_len);
                T_MEM_EQ(t.out, whole.out, whole.out_len);
                /* The first piece may end the handshake before the banner is there. */
                T_INT_EQ(t.rest_len, 6);
                T_MEM_EQ(t.rest, "BANNER", 6);
            }
            struct talk t;
            talk(&t, "u", "p", &target, in, len, 1, 1);
            T_INT_EQ(t.ret, 0);
            T_INT_EQ(t.out_len, whole.out_len);
            T_MEM_EQ(t.rest, "BANNER", 6);
        }
    }
}

static void test_client_bytes(void)
{
    struct cv_target ip4 = target_of("1.2.3.4:80");
    struct cv_target ip6 = target_of("[2001:db8::1]:443");
    struct cv_target name = target_of("Example.com:443");
    struct talk t;
    static const uint8_t with_login[] = {5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    talk(&t, "u", "p", &ip4, with_login, sizeof(with_login), 2, 2);
    T_INT_EQ(t.ret, 0);
    static const uint8_t want[] = {5, 1, 2, 1, 1, 'u', 1, 'p', 5, 1, 0, 1, 1, 2, 3, 4, 0, 80};
    T_INT_EQ(t.out_len, sizeof(want));
    T_MEM_EQ(t.out, want, sizeof(want));

    static const uint8_t no_login[] = {5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    talk(&t, NULL, NULL, &name, no_login, sizeof(no_login), 2, 10);
    T_INT_EQ(t.ret, 0);
    T_INT_EQ(t.out_len, 3 + 18);
    T_MEM_EQ(t.out,
             "\x05\x01\x00\x05\x01\x00\x03\x0b"
             "example.com\x01\xbb",
             21);
    talk(&t, NULL, NULL, &ip6, no_login, sizeof(no_login), 2, 10);
    T_INT_EQ(t.ret, 0);
    T_INT_EQ(t.out_len, 3 + 22);
    T_MEM_EQ(t.out + 3, "\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb", 22);
}

static void test_client_refusals(void)
{
    struct cv_target target = target_of("h.test:80");
    static const struct {
        struct bytes in;
        bool login;
        int ret;
        int rep;
    } t[] = {
        {B(5, 0xff), true, CV_E_AUTH, 0},
        {B(5, 0xff), false, CV_E_AUTH, 0},
        {B(5, 2), false, CV_E_AUTH, 0}, /* wants what we do not have */
        {B(5, 1), true, CV_E_PROTO, 0}, /* was not offered */
        {B(4), true, CV_E_PROTO, 0},
        {B('H', 'T', 'T', 'P'), true, CV_E_PROTO, 0},
        {B(5, 2, 1, 1), true, CV_E_AUTH, 0},
        {B(5, 2, 1, 0xff), true, CV_E_AUTH, 0},
        {B(5, 2, 2, 0), true, CV_E_PROTO, 0},
        {B(5, 2, 5, 0, 5, 2), true, CV_E_UNAVAILABLE, 2},
        {B(5, 2, 1, 0, 5, 5), true, CV_E_UNAVAILABLE, 5},
        {B(5, 0, 5, 4, 0, 1, 0, 0, 0, 0, 0, 0), true, CV_E_UNAVAILABLE, 4},
        {B(5, 2, 1, 0, 4, 0), true, CV_E_PROTO, 0},
        {B(5, 2, 1, 0, 5, 0, 0, 7), true, CV_E_PROTO, 0},
        {B(5, 2, 1, 0, 5, 0, 0, 1, 1), true, CV_E_MORE, 0},
        {B(5), true, CV_E_MORE, 0},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++) {
        for (size_t step = 1; step <= t[i].in.len; step++) {
            struct talk k;
            const char *who = t[i].login ? "u" : NULL;
            talk(&k, who, who, &target, t[i].in.b, t[i].in.len, step, step);
            if (!T_INT_EQ(k.ret, t[i].ret))
                printf("#   row %zu step %zu\n", i, step);
            T_INT_EQ(k.c.reply.rep, t[i].rep);
            if (t[i].ret != CV_E_MORE) {
                T_INT_EQ(k.c.state, CV_SOCKS5_CLIENT_STATE_FAILED);
                size_t used, n;
                uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX];
                T_INT_EQ(cv_socks5_client_step(&k.c, t[i].in.b, t[i].in.len, &used, out, &n),
                         CV_E_PROTO);
                T_INT_EQ(used, 0);
                T_INT_EQ(n, 0);
            }
        }
    }
}

static void test_client_limits(void)
{
    T_INT_EQ(cv_socks5_credential_check(255, 255), 0);
    T_INT_EQ(cv_socks5_credential_check(1, 1), 0);
    T_INT_EQ(cv_socks5_credential_check(256, 1), CV_E_LIMIT);
    T_INT_EQ(cv_socks5_credential_check(1, 256), CV_E_LIMIT);
    T_INT_EQ(cv_socks5_credential_check(0, 1), CV_E_INVALID);
    T_INT_EQ(cv_socks5_credential_check(1, 0), 0);

    char user[257], pass[257], name[400];
    memset(user, 'A', 256);
    memset(pass, 'B', 256);
    user[256] = pass[256] = 0;
    struct cv_target target = target_of("h.test:80");
    struct cv_socks5_client c;
    T_INT_EQ(cv_socks5_client_init(&c, CV_SOCKS5_CMD_CONNECT, user, 256, pass, 256, &target),
             CV_E_LIMIT);
    T_INT_EQ(cv_socks5_client_init(&c, CV_SOCKS5_CMD_CONNECT, user, 255, pass, 256, &target),
             CV_E_LIMIT);

    /* The longest of everything, and a server that answers all before it is asked. */
    user[255] = pass[255] = 0;
    size_t n = 0;
    for (int i = 0; i < 4; i++) {
        size_t label = i < 3 ? 63 : 61;
        memset(name + n, 'a' + i, label);
        n += label;
        name[n++] = '.';
    }
    memcpy(name + n - 1, ":65535", 7);
    target = target_of(name);
    T_INT_EQ(target.host.name_len, 253);
    static const uint8_t in[] = {5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 'x'};
    T_REQUIRE(cv_socks5_client_init(&c, CV_SOCKS5_CMD_CONNECT, user, 255, pass, 255, &target) == 0);
    uint8_t out[CV_SOCKS5_CLIENT_OUT_MAX];
    size_t used, out_len;
    T_INT_EQ(cv_socks5_client_step(&c, in, sizeof(in), &used, out, &out_len), 0);
    T_INT_EQ(used, sizeof(in) - 1);
    T_INT_EQ(out_len, 3 + 513 + 5 + 253 + 2);

    /* And this is what the server side reads from it. */
    struct cv_socks5_login login;
    struct cv_socks5_request q;
    struct cv_target got;
    T_REQUIRE(cv_socks5_login_parse(out + 3, out_len - 3, &login, &used) == 0);
    T_INT_EQ(login.user_len, 255);
    T_MEM_EQ(login.user, user, 255);
    T_MEM_EQ(login.pass, pass, 255);
    T_REQUIRE(cv_socks5_request_parse(out + 3 + used, out_len - 3 - used, &q, &used) == 0);
    T_REQUIRE(cv_socks5_request_target(&q, &got) == 0);
    T_STR_EQ(got.host.name, target.host.name);
    T_INT_EQ(got.port, 65535);
}

static void test_rep_err(void)
{
    static const struct {
        uint8_t rep;
        int err;
    } t[] = {
        {0, 0},
        {1, CV_E_UNAVAILABLE},
        {2, CV_E_POLICY},
        {3, -ENETUNREACH},
        {4, -EHOSTUNREACH},
        {5, -ECONNREFUSED},
        {6, -ETIMEDOUT},
        {7, CV_E_UNSUPPORTED},
        {8, -EAFNOSUPPORT},
        {9, CV_E_UNAVAILABLE},
        {255, CV_E_UNAVAILABLE},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++)
        T_INT_EQ(cv_socks5_rep_err(t[i].rep), t[i].err);
}

/* Random bytes: more bytes never change a verdict, and no parser takes more than it was given. */
static void test_random_prefixes(void)
{
    for (int round = 0; round < 3000; round++) {
        uint8_t in[40];
        cv_rand_bytes(in, sizeof(in));
        if (cv_rand_below(4) > 0)
            in[0] = cv_rand_below(2) > 0 ? 5 : 1;
        in[1] %= 12;
        in[3] %= 6;
        in[4] %= 30;
        int verdict[3] = {CV_E_MORE, CV_E_MORE, CV_E_MORE};
        size_t used_first[3] = {0};
        for (size_t n = 0; n <= sizeof(in); n++) {
            struct cv_socks5_greeting g;
            struct cv_socks5_login l;
            struct cv_socks5_request q;
            size_t used[3] = {0};
            uint8_t *p = exact(in, n);
            int ret[3] = {
                cv_socks5_greeting_parse(p, n, &g, &used[0]),
                cv_socks5_login_parse(p, n, &l, &used[1]),
                cv_socks5_request_parse(p, n, &q, &used[2]),
            };
            cv_free(p);
            for (int k = 0; k < 3; k++) {
                if (used[k] > n || (verdict[k] != CV_E_MORE && ret[k] != verdict[k]) ||
                    (verdict[k] == 0 && used[k] != used_first[k])) {
                    T_FAIL("parser %d, round %d, %zu bytes: %d after %d", k, round, n, ret[k],
                           verdict[k]);
                    return;
                }
                verdict[k] = ret[k];
                used_first[k] = used[k];
            }
        }
    }
    T_OK(true);
}

int main(void)
{
    T_RUN(test_greeting);
    T_RUN(test_login);
    T_RUN(test_login_longest);
    T_RUN(test_request);
    T_RUN(test_split_everywhere);
    T_RUN(test_target);
    T_RUN(test_target_binary);
    T_RUN(test_encode);
    T_RUN(test_reply);
    T_RUN(test_client_banner);
    T_RUN(test_client_bytes);
    T_RUN(test_client_refusals);
    T_RUN(test_client_limits);
    T_RUN(test_rep_err);
    T_RUN(test_random_prefixes);
    return t_done();
}
