#include "proto/tls_hello.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/err.h"
#include "hello_samples.h"
#include "tap.h"

/* ---- making hellos ---- */

struct bytes {
    size_t len;
    uint8_t p[70000];
};

static void add(struct bytes *b, const void *p, size_t len)
{
    memcpy(b->p + b->len, p, len);
    b->len += len;
}

static void add_u16(struct bytes *b, size_t v)
{
    const uint8_t p[] = {(uint8_t)(v >> 8), (uint8_t)v};
    add(b, p, 2);
}

static void add_ext(struct bytes *b, unsigned type, const void *p, size_t len)
{
    add_u16(b, type);
    add_u16(b, len);
    add(b, p, len);
}

/* A server_name extension with one entry. */
static void add_name(struct bytes *b, uint8_t type, const char *name)
{
    static struct bytes e;
    size_t n = strlen(name);
    e.len = 0;
    add_u16(&e, n + 3);
    add(&e, &type, 1);
    add_u16(&e, n);
    add(&e, name, n);
    add_ext(b, 0, e.p, e.len);
}

/* The handshake message with these extensions (NULL: none, not even a length). */
static struct bytes *message(const struct bytes *exts)
{
    static struct bytes m;
    static const uint8_t head[] = {1, 0, 0, 0, 3, 3};
    static const uint8_t rest[] = {0,    0,    4, 0x1a, 0x1a,
                                   0x13, 0x01, 1, 0}; /* the first suite: GREASE */
    uint8_t random[32] = {7};
    m.len = 0;
    add(&m, head, sizeof(head));
    add(&m, random, sizeof(random));
    add(&m, rest, sizeof(rest));
    if (exts != NULL) {
        add_u16(&m, exts->len);
        add(&m, exts->p, exts->len);
    }
    m.p[1] = (uint8_t)((m.len - 4) >> 16);
    m.p[2] = (uint8_t)((m.len - 4) >> 8);
    m.p[3] = (uint8_t)(m.len - 4);
    return &m;
}

static int parse(const struct bytes *exts, struct cv_tls_hello *h)
{
    const struct bytes *m = message(exts);
    uint8_t *exact = cv_alloc(m->len);
    memcpy(exact, m->p, m->len);
    int ret = cv_tls_hello_parse(exact, m->len, h);
    cv_free(exact);
    return ret;
}

/* The message in records of at most 'size' bytes. */
static struct bytes *records(const uint8_t *m, size_t len, size_t size)
{
    static struct bytes r;
    static const uint8_t head[] = {22, 3, 1};
    r.len = 0;
    for (size_t at = 0; at < len; at += size) {
        size_t n = CV_MIN(size, len - at);
        add(&r, head, sizeof(head));
        add_u16(&r, n);
        add(&r, m + at, n);
    }
    return &r;
}

/* Everything at once, in memory of exact size. */
static int read_whole(const uint8_t *p, size_t len, struct cv_tls_hello *h)
{
    struct cv_tls_hello_scan s = {0};
    uint8_t *exact = cv_alloc(len);
    memcpy(exact, p, len);
    int ret = cv_tls_hello_scan(&s, exact, len);
    if (ret == 0)
        ret = cv_tls_hello_read(&s, exact, len, h);
    cv_free(exact);
    return ret;
}

/* ---- what real clients send ---- */

static const struct {
    const char *what;
    const uint8_t *p;
    size_t len;
    const char *name;
} samples[] = {
    {"curl", hello_curl, sizeof(hello_curl), "curl.example"},
    {"curl 1.2", hello_curl12, sizeof(hello_curl12), "curl12.example"},
    {"openssl", hello_openssl, sizeof(hello_openssl), "openssl.example"},
    {"openssl without", hello_openssl_noname, sizeof(hello_openssl_noname), NULL},
    {"python", hello_python, sizeof(hello_python), "python.example"},
};

static void test_real_clients(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(samples); i++) {
        struct cv_tls_hello h;
        if (!T_INT_EQ(read_whole(samples[i].p, samples[i].len, &h), 0))
            printf("#   %s\n", samples[i].what);
        T_STR_EQ(h.has_name ? h.name : NULL, samples[i].name);
        T_OK(!h.ech);
    }
}

/* However it is split into reads: not whole until it is whole, then the same. */
static void test_every_split(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(samples); i++) {
        struct cv_tls_hello_scan s = {0};
        for (size_t n = 1; n < samples[i].len; n++) {
            uint8_t *exact = cv_alloc(n);
            memcpy(exact, samples[i].p, n);
            struct cv_tls_hello_scan fresh = {0};
            bool ok = cv_tls_hello_scan(&s, exact, n) == CV_E_MORE &&
                      cv_tls_hello_scan(&fresh, exact, n) == CV_E_MORE;
            cv_free(exact);
            T_REQUIRE(ok);
        }
        struct cv_tls_hello h;
        T_INT_EQ(cv_tls_hello_scan(&s, samples[i].p, samples[i].len), 0);
        T_INT_EQ(cv_tls_hello_read(&s, samples[i].p, samples[i].len, &h), 0);
        T_STR_EQ(h.has_name ? h.name : NULL, samples[i].name);
    }
}

/* However it is split into records, and what follows it. */
static void test_every_record_size(void)
{
    const uint8_t *m = hello_python + CV_TLS_RECORD_HEADER;
    size_t len = sizeof(hello_python) - CV_TLS_RECORD_HEADER;
    for (size_t size = 1; size <= len; size++) {
        struct bytes *r = records(m, len, size);
        struct cv_tls_hello_scan s = {0};
        struct cv_tls_hello h = {.has_name = false};
        int ret = CV_E_MORE;
        size_t n = 0;
        while (n < r->len && ret == CV_E_MORE)
            ret = cv_tls_hello_scan(&s, r->p, ++n);
        T_INT_EQ(ret, 0);
        T_INT_EQ(n, r->len);
        T_INT_EQ(cv_tls_hello_read(&s, r->p, n, &h), 0);
        add(r, "\x14\x03\x03", 3);
        T_INT_EQ(read_whole(r->p, r->len, &h), 0);
        if (!T_STR_EQ(h.name, "python.example"))
            return;
    }
}

/* ---- extensions ---- */

static void test_odd_but_good(void)
{
    static struct bytes e;
    struct cv_tls_hello h;
    T_INT_EQ(parse(NULL, &h), 0); /* TLS 1.2 without extensions */
    T_OK(!h.has_name);
    e.len = 0;
    T_INT_EQ(parse(&e, &h), 0);
    T_OK(!h.has_name);

    /* GREASE before, between and behind; an unknown extension of any length. */
    static uint8_t big[1000];
    add_ext(&e, 0x3a3a, "", 0);
    add_ext(&e, 0x0010, "\x00\x03\x02h2", 5);
    add_ext(&e, 0xabcd, big, sizeof(big));
    add_name(&e, 0, "A.Example");
    add_ext(&e, 0xfafa, "\0", 1);
    T_INT_EQ(parse(&e, &h), 0);
    T_STR_EQ(h.name, "A.Example"); /* as it was sent */
    T_INT_EQ(h.name_len, 9);
    T_OK(!h.ech);

    /* Encrypted ClientHello: the outer name. */
    add_ext(&e, 0xfe0d, big, 200);
    T_INT_EQ(parse(&e, &h), 0);
    T_STR_EQ(h.name, "A.Example");
    T_OK(h.ech);

    /* A name of a type that does not exist is not taken for a host. */
    e.len = 0;
    add_name(&e, 7, "not.a.host");
    T_INT_EQ(parse(&e, &h), 0);
    T_OK(!h.has_name);

    /* The longest that fits; its sense is not judged here. */
    char name[256];
    memset(name, 'a', 255);
    name[255] = '\0';
    e.len = 0;
    add_name(&e, 0, name);
    T_INT_EQ(parse(&e, &h), 0);
    T_STR_EQ(h.name, name);
    T_INT_EQ(h.name_len, 255);
}

static void test_refused(void)
{
    static struct bytes e;
    struct cv_tls_hello h;
    char name[257];

    memset(name, 'a', 256);
    name[256] = '\0';
    add_name(&e, 0, name);
    T_INT_EQ(parse(&e, &h), CV_E_PROTO);

    e.len = 0; /* two extensions */
    add_name(&e, 0, "a.test");
    add_name(&e, 0, "b.test");
    T_INT_EQ(parse(&e, &h), CV_E_PROTO);

    static const struct {
        const char *what, *p;
        size_t len;
    } names[] = {
        {"empty extension", "", 0},
        {"empty list", "\0\0", 2},
        {"empty name", "\0\3\0\0\0", 5},
        {"two hosts", "\0\x08\0\0\1a\0\0\1b", 10},
        {"list too long", "\0\x09\0\0\1a\0\0\1b", 10},
        {"name too long", "\0\4\0\0\2a", 6},
        {"bytes behind the list", "\0\4\0\0\1a\0", 7},
        {"list cut off", "\0", 1},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(names); i++) {
        e.len = 0;
        add_ext(&e, 0, names[i].p, names[i].len);
        if (!T_INT_EQ(parse(&e, &h), CV_E_PROTO))
            printf("#   %s\n", names[i].what);
    }

    e.len = 0; /* an extension that ends beyond the list */
    add(&e, "\x12\x34\x00\x05\x00", 5);
    T_INT_EQ(parse(&e, &h), CV_E_PROTO);
    struct bytes *m = message(NULL); /* a byte behind the extensions */
    add(m, "\0\0\0", 3);
    m->p[3] = (uint8_t)(m->p[3] + 3);
    T_INT_EQ(cv_tls_hello_parse(m->p, m->len, &h), CV_E_PROTO);
    m = message(NULL); /* a length that does not fit */
    T_INT_EQ(cv_tls_hello_parse(m->p, m->len - 1, &h), CV_E_PROTO);
    m->p[0] = 2; /* another message */
    T_INT_EQ(cv_tls_hello_parse(m->p, m->len, &h), CV_E_PROTO);
    T_INT_EQ(cv_tls_hello_parse("\1", 1, &h), CV_E_PROTO);
}

/* Each byte of a hello changed in each bit: no crash, no read beyond the end (by the sanitizers),
 * and whatever is taken for a name lies within its bounds. */
static void test_mutations(void)
{
    uint8_t copy[sizeof(hello_openssl)];
    size_t good = 0;
    for (size_t i = 0; i < sizeof(copy); i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct cv_tls_hello h;
            memcpy(copy, hello_openssl, sizeof(copy));
            copy[i] ^= (uint8_t)(1 << bit);
            if (read_whole(copy, sizeof(copy), &h) != 0)
                continue;
            good++;
            T_REQUIRE(h.has_name ? h.name_len > 0 && h.name[h.name_len] == '\0' : h.name_len == 0);
        }
    }
    T_OK(good > 1000); /* most bytes are random, keys, names of suites */
}

static void test_records_refused(void)
{
    static const struct {
        const char *p;
        size_t len;
        int ret;
    } cases[] = {
        {"\x16", 1, CV_E_MORE},
        {"\x15", 1, CV_E_PROTO},
        {"\x16\x02", 2, CV_E_PROTO},
        {"\x16\x03\x09", 3, CV_E_MORE},          /* the minor version is nobody's business */
        {"\x16\x03\x01\x00\x00", 5, CV_E_PROTO}, /* empty */
        {"\x16\x03\x01\x40\x01", 5, CV_E_PROTO}, /* longer than a record may be */
        {"\x16\x03\x01\x40\x00", 5, CV_E_MORE},
        {"\x16\x03\x01\x00\x04\x02", 6, CV_E_PROTO}, /* no ClientHello */
        {"\x16\x03\x01\x00\x04\x01\x01\x00\x00", 9, CV_E_LIMIT},
        {"\x16\x03\x01\x00\x01\x01\x17", 7, CV_E_PROTO}, /* another record in the middle */
        {"\x16\x03\x01\x00\x01\x01\x16\x03\x01\x00\x03\x00\xff\xfd", 14, CV_E_LIMIT},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_tls_hello_scan s = {0};
        if (!T_INT_EQ(cv_tls_hello_scan(&s, cases[i].p, cases[i].len), cases[i].ret))
            printf("#   case %zu\n", i);
    }
}

/* The largest hello that is read, in the largest and in the smallest records. */
static void test_largest(void)
{
    static struct bytes e;
    static uint8_t fill[CV_TLS_HELLO_MAX];
    struct cv_tls_hello h;
    add_name(&e, 0, "large.test");
    struct bytes *m = message(&e);
    add_ext(&e, 0x1234, fill, CV_TLS_HELLO_MAX - m->len - 4);
    m = message(&e);
    T_INT_EQ(m->len, CV_TLS_HELLO_MAX);
    struct bytes *r = records(m->p, m->len, 1u << 14);
    T_INT_EQ(read_whole(r->p, r->len, &h), 0);
    T_STR_EQ(h.name, "large.test");
}

static void test_alert(void)
{
    uint8_t out[CV_TLS_ALERT_LEN];
    T_INT_EQ(cv_tls_alert_encode(out, CV_TLS_ALERT_UNRECOGNIZED_NAME), 7);
    T_MEM_EQ(out, "\x15\x03\x03\x00\x02\x02\x70", 7);
}

int main(void)
{
    T_RUN(test_real_clients);
    T_RUN(test_every_split);
    T_RUN(test_every_record_size);
    T_RUN(test_odd_but_good);
    T_RUN(test_refused);
    T_RUN(test_mutations);
    T_RUN(test_records_refused);
    T_RUN(test_largest);
    T_RUN(test_alert);
    return t_done();
}
