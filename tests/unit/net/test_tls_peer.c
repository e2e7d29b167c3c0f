#include "net/tls_priv.h"
#include "tls_util.h"

#include "common/poison.h"

static struct test_cert server, root, alice, stranger;

/* -- names -- */

struct part {
    int type; /* of ASN.1; GEN_... for alternative names */
    const char *text;
    int len; /* 0: strlen */
};

static X509 *subject_of(const struct part *parts, size_t n)
{
    X509 *x = X509_new();
    for (size_t i = 0; i < n; i++)
        if (X509_NAME_add_entry_by_NID(X509_get_subject_name(x), NID_commonName, parts[i].type,
                                       (const unsigned char *)parts[i].text,
                                       parts[i].len > 0 ? parts[i].len : -1, -1, 0) != 1)
            abort();
    return x;
}

static void common_names(void)
{
    static char longest[256], too_long[257];
    memset(longest, 'a', 255);
    memset(too_long, 'a', 256);
    static const struct {
        struct part parts[2];
        size_t n;
        const char *want; /* NULL: refused */
    } rows[] = {
        {{{V_ASN1_UTF8STRING, "alice"}}, 1, "alice"},
        {{{V_ASN1_PRINTABLESTRING, "alice"}}, 1, "alice"},
        {{{V_ASN1_IA5STRING, "alice@x"}}, 1, "alice@x"},
        {{{V_ASN1_UTF8STRING, "b\303\274cher"}}, 1, "b\303\274cher"},
        {{{V_ASN1_UTF8STRING, " alice "}}, 1, " alice "}, /* nothing is tidied up */
        {{{0}}, 0, NULL},
        {{{V_ASN1_UTF8STRING, "alice"}, {V_ASN1_UTF8STRING, "bob"}}, 2, NULL},
        {{{V_ASN1_UTF8STRING, "alice\0.evil", 11}}, 1, NULL},
        {{{V_ASN1_UTF8STRING, "\0", 1}}, 1, NULL},
        {{{V_ASN1_UTF8STRING, "alice\n"}}, 1, NULL},
        {{{V_ASN1_UTF8STRING, "alice\x7f"}}, 1, NULL},
        {{{V_ASN1_UTF8STRING, "a\302\205"}}, 1, NULL}, /* C1 */
        {{{V_ASN1_UTF8STRING, "a\377"}}, 1, NULL},
        {{{V_ASN1_UTF8STRING, "\300\200"}}, 1, NULL}, /* NUL, the long way */
        {{{V_ASN1_IA5STRING, "b\303\274cher"}}, 1, NULL},
        {{{V_ASN1_T61STRING, "alice"}}, 1, NULL},
        {{{V_ASN1_BMPSTRING, "\0a\0b", 4}}, 1, NULL},
        {{{V_ASN1_UTF8STRING, longest}}, 1, longest},
        {{{V_ASN1_UTF8STRING, too_long}}, 1, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char out[CV_TLS_USER_MAX + 1] = "";
        X509 *x = subject_of(rows[i].parts, rows[i].n);
        int ret = cv_tls_name_of(x, CV_TLS_USER_CN, out);
        if (rows[i].want == NULL ? !T_INT_EQ(ret, CV_E_AUTH) : !T_STR_EQ(out, rows[i].want))
            printf("#   row %zu\n", i);
        X509_free(x);
    }
}

static void add_alternatives(X509 *x, const struct part *parts, size_t n, int flags)
{
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    for (size_t i = 0; i < n; i++) {
        GENERAL_NAME *name = GENERAL_NAME_new();
        ASN1_IA5STRING *s = ASN1_IA5STRING_new();
        int len = parts[i].len > 0 ? parts[i].len : (int)strlen(parts[i].text);
        ASN1_STRING_set(s, parts[i].text, len);
        GENERAL_NAME_set0_value(name, parts[i].type, s);
        sk_GENERAL_NAME_push(names, name);
    }
    if (X509_add1_ext_i2d(x, NID_subject_alt_name, names, 0, (unsigned long)flags) != 1)
        abort();
    GENERAL_NAMES_free(names);
}

static void alternative_names(void)
{
    static const struct {
        enum cv_tls_user_from from;
        struct part parts[3];
        size_t n;
        const char *want;
    } rows[] = {
        {CV_TLS_USER_EMAIL, {{GEN_EMAIL, "a@x"}, {GEN_DNS, "b"}, {GEN_URI, "c:"}}, 3, "a@x"},
        {CV_TLS_USER_DNS, {{GEN_EMAIL, "a@x"}, {GEN_DNS, "b"}, {GEN_URI, "c:"}}, 3, "b"},
        {CV_TLS_USER_URI, {{GEN_EMAIL, "a@x"}, {GEN_DNS, "b"}, {GEN_URI, "c:"}}, 3, "c:"},
        {CV_TLS_USER_DNS, {{GEN_DNS, "B.Example"}}, 1, "B.Example"},
        {CV_TLS_USER_EMAIL, {{GEN_DNS, "a@x"}}, 1, NULL},
        {CV_TLS_USER_DNS, {{GEN_DNS, "b"}, {GEN_DNS, "b"}}, 2, NULL},
        {CV_TLS_USER_URI, {{GEN_URI, "c:"}, {GEN_URI, "d:"}}, 2, NULL},
        {CV_TLS_USER_DNS, {{GEN_DNS, "b\0c", 3}}, 1, NULL},
        {CV_TLS_USER_EMAIL, {{GEN_EMAIL, ""}}, 1, NULL},
        {CV_TLS_USER_EMAIL, {{GEN_EMAIL, "\303\274@x"}}, 1, NULL},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        char out[CV_TLS_USER_MAX + 1] = "";
        X509 *x = subject_of(NULL, 0);
        T_INT_EQ(cv_tls_name_of(x, rows[i].from, out), CV_E_AUTH); /* without the extension */
        add_alternatives(x, rows[i].parts, rows[i].n, 0);
        int ret = cv_tls_name_of(x, rows[i].from, out);
        if (rows[i].want == NULL ? !T_INT_EQ(ret, CV_E_AUTH) : !T_STR_EQ(out, rows[i].want))
            printf("#   row %zu\n", i);
        /* The extension twice is nobody's. */
        add_alternatives(x, rows[i].parts, rows[i].n, X509V3_ADD_APPEND);
        T_INT_EQ(cv_tls_name_of(x, rows[i].from, out), CV_E_AUTH);
        X509_free(x);
    }
}

/* -- handshakes -- */

/* What the server says about a client with this certificate (NULL: none); a failed handshake is
 * CV_E_TLS. */
static int meet(const struct cv_tls_server_opts *o, int version, const struct test_cert *c,
                char out[CV_TLS_USER_MAX + 1], char fault[128])
{
    struct cv_tls_cert own = {.cert_file = server.cert_file, .key_file = server.key_file};
    struct cv_tls_server_ctx *ctx = NULL;
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *s;
    if (cv_tls_server_ctx_new_with(&own, 1, o, NULL, &ctx) != 0)
        abort();
    raw_init(&client, version);
    if (c != NULL &&
        (SSL_CTX_use_certificate_file(client.ctx, c->cert_file, SSL_FILETYPE_PEM) != 1 ||
         SSL_CTX_use_PrivateKey_file(client.ctx, c->key_file, SSL_FILETYPE_PEM) != 1))
        abort();
    raw_connect(&client, NULL, NULL);
    mem_init(&below);
    if (cv_tls_server(ctx, &below.super, NULL, 0, &s) != 0)
        abort();
    cv_tls_server_ctx_unref(ctx);
    if (o->client_ca != NULL)
        T_INT_EQ(cv_tls_peer_user(s, out), CV_E_AUTH); /* too early to tell */
    int ret = raw_handshake(&client, &below, s, SIZE_MAX);
    if (ret == 0) {
        ret = cv_tls_peer_user(s, out);
        if (o->client_ca != NULL) {
            char byte;
            (void)raw_read(&client, &byte, 1);
            T_INT_EQ(client.sessions, 0);
        }
    }
    snprintf(fault, 128, "%s", cv_tls_fault(s) != NULL ? cv_tls_fault(s) : "");
    cv_stream_close(s, false);
    mem_done(&below);
    raw_done(&client);
    return ret;
}

static void clients(void)
{
    struct cv_tls_server_opts off = {0}, request = {.client_ca = root.cert_file},
                              require = {.client_ca = root.cert_file, .client_required = true};
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    char out[CV_TLS_USER_MAX + 1], fault[128];
    for (size_t i = 0; i < 2; i++) {
        int v = versions[i];
        T_INT_EQ(meet(&off, v, &alice, out, fault), CV_E_NOTFOUND); /* was not asked */
        T_INT_EQ(meet(&request, v, NULL, out, fault), CV_E_NOTFOUND);
        T_INT_EQ(meet(&request, v, &alice, out, fault), 0);
        T_STR_EQ(out, "alice");
        T_INT_EQ(meet(&request, v, &stranger, out, fault), CV_E_TLS);
        T_STR_EQ(fault, "self-signed certificate");
        T_INT_EQ(meet(&require, v, NULL, out, fault), CV_E_TLS);
        T_STR_EQ(fault, "peer did not return a certificate");
        T_INT_EQ(meet(&require, v, &alice, out, fault), 0);
        T_INT_EQ(meet(&require, v, &stranger, out, fault), CV_E_TLS);
    }
}

static void files(void)
{
    struct cv_tls_cert own = {.cert_file = server.cert_file, .key_file = server.key_file};
    struct cv_tls_server_ctx *ctx = NULL;
    char empty[96];
    snprintf(empty, sizeof(empty), "%s", test_text_file("nothing\n"));
    const struct {
        const char *ca, *crl, *part;
        int err;
    } rows[] = {
        {"/nonexistent/ca", NULL, "client authority file '/nonexistent/ca'", -ENOENT},
        {empty, NULL, "must hold certificates", CV_E_INVALID},
        {root.key_file, NULL, "must hold certificates", CV_E_INVALID},
        {root.cert_file, "/nonexistent/crl", "revocation list file '/nonexistent/crl'", -ENOENT},
        {root.cert_file, empty, "must hold revocation lists", CV_E_INVALID},
        {root.cert_file, root.cert_file, "must hold revocation lists", CV_E_INVALID},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_tls_server_opts o = {.client_ca = rows[i].ca, .client_crl = rows[i].crl};
        char *text = NULL;
        int ret = cv_tls_server_ctx_new_with(&own, 1, &o, &text, &ctx);
        if (ret != rows[i].err || text == NULL || strstr(text, rows[i].part) == NULL)
            T_FAIL("row %zu: %d '%s'", i, ret, text != NULL ? text : "");
        cv_free(text);
    }
    T_OK(ctx == NULL);
}

int main(void)
{
    test_dir_begin();
    test_cert_make(&server, &(struct test_cert_opts){.cn = "server", .san = "DNS:s.example"});
    test_cert_make(&root, &(struct test_cert_opts){.cn = "root", .is_ca = true});
    test_cert_make(&alice, &(struct test_cert_opts){.cn = "alice", .issuer = &root});
    test_cert_make(&stranger, &(struct test_cert_opts){.cn = "alice"});
    T_RUN(common_names);
    T_RUN(alternative_names);
    T_RUN(clients);
    T_RUN(files);
    struct test_cert *all[] = {&server, &root, &alice, &stranger};
    for (size_t i = 0; i < CV_ARRAY_SIZE(all); i++)
        test_cert_done(all[i]);
    test_dir_end();
    return t_done();
}
