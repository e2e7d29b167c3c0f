#include "net/tls.h"
#include "tls_util.h"

#include "common/poison.h"

static struct test_cert base, multi, wild, rsa, inter, chained;

/* The common name of the certificate that a client with this SNI is shown. */
static const char *shown(struct cv_tls_server_ctx *ctx, const char *sni, bool *ret_resumed)
{
    static char cn[64];
    static SSL_SESSION *last;
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *s;
    raw_init(&client, 0);
    raw_connect(&client, sni, ret_resumed != NULL ? last : NULL);
    mem_init(&below);
    if (cv_tls_server(ctx, &below.super, NULL, 0, &s) != 0)
        abort();
    snprintf(cn, sizeof(cn), "failed");
    if (raw_handshake(&client, &below, s, SIZE_MAX) == 0) {
        X509 *x = SSL_get1_peer_certificate(client.ssl);
        X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, cn, sizeof(cn));
        X509_free(x);
        char byte;
        (void)raw_read(&client, &byte, 1); /* takes up the tickets */
    }
    if (ret_resumed != NULL)
        *ret_resumed = cv_tls_is_resumed(s);
    SSL_SESSION_free(last);
    last = client.session;
    client.session = NULL;
    cv_stream_close(s, false);
    mem_done(&below);
    raw_done(&client);
    if (ret_resumed == NULL) {
        SSL_SESSION_free(last);
        last = NULL;
    }
    return cn;
}

static struct cv_tls_server_ctx *ctx_of(const struct cv_tls_cert *certs, size_t n)
{
    struct cv_tls_server_ctx *ctx = NULL;
    char *text = NULL;
    if (cv_tls_server_ctx_new(certs, n, &text, &ctx) != 0) {
        printf("# %s\n", text);
        abort();
    }
    return ctx;
}

static void certificate_by_name(void)
{
    const char *const base_names[] = {"base.example"};
    const char *const multi_names[] = {"one.example", "TWO.example.", "b\303\274cher.example"};
    const char *const wild_names[] = {"*.wild.example"};
    const char *const rsa_names[] = {"exact.wild.example"};
    const struct cv_tls_cert certs[] = {
        {base.cert_file, base.key_file, base_names, 1},
        {multi.cert_file, multi.key_file, multi_names, 3},
        {wild.cert_file, wild.key_file, wild_names, 1},
        {rsa.cert_file, rsa.key_file, rsa_names, 1},
    };
    static const struct {
        const char *sni, *want;
    } cases[] = {
        {NULL, "base"},
        {"base.example", "base"},
        {"one.example", "multi"},
        {"ONE.Example", "multi"},
        {"two.example", "multi"},
        {"xn--bcher-kva.example", "multi"},
        {"three.example", "base"}, /* in the certificate, but not declared */
        {"a.wild.example", "wild"},
        {"exact.wild.example", "rsa"}, /* exact before wildcard */
        {"a.b.wild.example", "base"},  /* one label only */
        {"wild.example", "base"},
        {"*.wild.example", "base"},
        {"unknown.example", "base"},
        {"localhost", "base"},
        {"127.0.0.1", "base"},
        {"not a name", "base"},
    };
    struct cv_tls_server_ctx *ctx = ctx_of(certs, 4);
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++)
        if (!T_OK(strcmp(shown(ctx, cases[i].sni, NULL), cases[i].want) == 0))
            printf("#   %s\n", cases[i].sni);
    /* Tickets also work for what SNI chose. */
    bool resumed;
    T_STR_EQ(shown(ctx, "one.example", &resumed), "multi");
    T_OK(!resumed);
    T_STR_EQ(shown(ctx, "one.example", &resumed), "multi");
    T_OK(resumed);
    (void)shown(ctx, NULL, NULL);
    cv_tls_server_ctx_unref(ctx);
}

static void chain_is_sent(void)
{
    struct cv_tls_server_ctx *ctx = test_server_ctx(&chained);
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *s;
    raw_init(&client, 0);
    raw_connect(&client, NULL, NULL);
    mem_init(&below);
    T_REQUIRE(cv_tls_server(ctx, &below.super, NULL, 0, &s) == 0);
    cv_tls_server_ctx_unref(ctx); /* the stream has its own reference */
    T_INT_EQ(raw_handshake(&client, &below, s, SIZE_MAX), 0);
    T_INT_EQ(sk_X509_num(SSL_get_peer_cert_chain(client.ssl)), 2);
    cv_stream_close(s, false);
    mem_done(&below);
    raw_done(&client);
}

static void refused(const char *what, const struct cv_tls_cert *certs, size_t n, int err,
                    const char *part)
{
    struct cv_tls_server_ctx *ctx = NULL;
    char *text = NULL;
    int ret = cv_tls_server_ctx_new(certs, n, &text, &ctx);
    if (ret != err || text == NULL || strstr(text, part) == NULL)
        T_FAIL("%s: %d '%s', wanted %d '%s'", what, ret, text, err, part);
    else
        T_OK(ctx == NULL);
    cv_free(text);
    T_INT_EQ(cv_tls_server_ctx_new(certs, n, NULL, &ctx), err); /* nobody asks for the text */
}

static void faults_are_named(void)
{
    static const char *const one[] = {"one.example"}, *const none[] = {"other.example"},
                             *const cn_only[] = {"multi"}, *const twice[] = {"one.example"},
                             *const bad[] = {"a b"}, *const address[] = {"*."},
                             *const wide[] = {"*.example"}, *const inner[] = {"a.*.example"};
    char empty[96], text[96], half[96];
    snprintf(empty, sizeof(empty), "%s", test_text_file(""));
    snprintf(text, sizeof(text), "%s", test_text_file("this is no PEM\n"));
    snprintf(half, sizeof(half), "%s",
             test_text_file("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"));
    const struct cv_tls_cert good = {base.cert_file, base.key_file, NULL, 0};
    const struct {
        const char *what;
        struct cv_tls_cert cert;
        int err;
        const char *part;
    } cases[] = {
        {"no such file", {"/nonexistent/x", base.key_file, NULL, 0}, -ENOENT, "/nonexistent/x"},
        {"no such key", {base.cert_file, "/nonexistent/k", NULL, 0}, -ENOENT, "/nonexistent/k"},
        {"a directory", {test_dir, base.key_file, NULL, 0}, -EISDIR, test_dir},
        {"empty", {empty, base.key_file, NULL, 0}, CV_E_INVALID, empty},
        {"text", {text, base.key_file, NULL, 0}, CV_E_INVALID, "no start line"},
        {"half a certificate", {half, base.key_file, NULL, 0}, CV_E_INVALID, half},
        {"empty key", {base.cert_file, empty, NULL, 0}, CV_E_INVALID, empty},
        {"a certificate as key",
         {base.cert_file, base.cert_file, NULL, 0},
         CV_E_INVALID,
         "key file"},
        {"another one's key",
         {base.cert_file, multi.key_file, NULL, 0},
         CV_E_INVALID,
         "does not belong to"},
        {"another kind of key",
         {base.cert_file, rsa.key_file, NULL, 0},
         CV_E_INVALID,
         "does not belong to"},
        {"name not covered",
         {multi.cert_file, multi.key_file, none, 1},
         CV_E_INVALID,
         "'other.example' is not covered"},
        {"name only as common name",
         {multi.cert_file, multi.key_file, cn_only, 1},
         CV_E_INVALID,
         "'multi' is not covered"},
        {"wildcard not covered",
         {multi.cert_file, multi.key_file, wide, 1},
         CV_E_INVALID,
         "'*.example' is not covered"},
        {"not a name", {multi.cert_file, multi.key_file, bad, 1}, CV_E_INVALID, "not a host name"},
        {"only a star",
         {multi.cert_file, multi.key_file, address, 1},
         CV_E_INVALID,
         "not a host name"},
        {"star inside",
         {multi.cert_file, multi.key_file, inner, 1},
         CV_E_INVALID,
         "not a host name"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        refused(cases[i].what, &cases[i].cert, 1, cases[i].err, cases[i].part);
        struct cv_tls_cert two[] = {good, cases[i].cert};
        if (cases[i].cert.n_server_names > 0)
            refused(cases[i].what, two, 2, cases[i].err, cases[i].part);
    }
    struct cv_tls_cert nameless[] = {good, {multi.cert_file, multi.key_file, NULL, 0}};
    refused("second without names", nameless, 2, CV_E_INVALID, "needs a server name");
    struct cv_tls_cert doubled[] = {good,
                                    {multi.cert_file, multi.key_file, one, 1},
                                    {multi.cert_file, multi.key_file, twice, 1}};
    refused("name used twice", doubled, 3, CV_E_INVALID, "'one.example' is used twice");
    refused("no certificate", &good, 0, CV_E_INVALID, "1 to");
}

/* Neither a prompt on the terminal nor the key's text in the message. */
static void encrypted_key(void)
{
    char path[96];
    snprintf(path, sizeof(path), "%s", test_text_file(""));
    FILE *f = fopen(path, "w");
    PEM_write_PrivateKey(f, base.key, EVP_aes_128_cbc(), (const unsigned char *)"pass", 4, NULL,
                         NULL);
    fclose(f);
    struct cv_tls_cert cert = {base.cert_file, path, NULL, 0};
    refused("encrypted", &cert, 1, CV_E_INVALID, path);
}

static void references(void)
{
    struct cv_tls_server_ctx *ctx = test_server_ctx(&base);
    T_OK(cv_tls_server_ctx_ref(ctx) == ctx);
    cv_tls_server_ctx_unref(ctx);
    T_STR_EQ(shown(ctx, NULL, NULL), "base");
    cv_tls_server_ctx_unref(ctx);
    cv_tls_server_ctx_unref(NULL);
}

static struct cv_tls_server_ctx *ctx_with(const struct test_cert *c,
                                          const struct cv_tls_server_opts *o)
{
    struct cv_tls_cert cert = {.cert_file = c->cert_file, .key_file = c->key_file};
    struct cv_tls_server_ctx *ctx = NULL;
    char *text = NULL;
    if (cv_tls_server_ctx_new_with(&cert, 1, o, &text, &ctx) != 0) {
        printf("# %s\n", text);
        abort();
    }
    return ctx;
}

/* What a client with this offer gets: a protocol, "" or "failed". 'version' 0: any. */
static const char *negotiated(const struct cv_tls_server_opts *o, int version, const char *offer)
{
    static char out[32];
    struct cv_tls_server_ctx *ctx = ctx_with(&base, o);
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *s;
    raw_init(&client, version);
    if (offer != NULL)
        SSL_CTX_set_alpn_protos(client.ctx, (const unsigned char *)offer, (unsigned)strlen(offer));
    raw_connect(&client, "base.example", NULL);
    mem_init(&below);
    if (cv_tls_server(ctx, &below.super, NULL, 0, &s) != 0)
        abort();
    cv_tls_server_ctx_unref(ctx);
    snprintf(out, sizeof(out), "failed");
    if (raw_handshake(&client, &below, s, SIZE_MAX) == 0) {
        size_t len;
        const uint8_t *p = cv_tls_alpn(s, &len);
        snprintf(out, sizeof(out), "%.*s", (int)len, p != NULL ? (const char *)p : "");
    }
    cv_stream_close(s, false);
    mem_done(&below);
    raw_done(&client);
    return out;
}

static void alpn_and_version(void)
{
    const struct cv_tls_server_opts none = {0}, lenient = {.alpn = "http/1.1"},
                                    strict = {.alpn = "http/1.1", .alpn_strict = true},
                                    new_only = {.only_tls13 = true};
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (size_t i = 0; i < 2; i++) {
        int v = versions[i];
        T_STR_EQ(negotiated(&none, v, "\x08http/1.1"), "");
        T_STR_EQ(negotiated(&lenient, v, NULL), "");
        T_STR_EQ(negotiated(&lenient, v, "\x02h2\x08http/1.1"), "http/1.1");
        T_STR_EQ(negotiated(&lenient, v, "\x02h2"), "");
        T_STR_EQ(negotiated(&strict, v, NULL), "");
        T_STR_EQ(negotiated(&strict, v, "\x02h2\x08http/1.1"), "http/1.1");
        T_STR_EQ(negotiated(&strict, v, "\x02h2"), "failed");
        T_STR_EQ(negotiated(&new_only, v, NULL), v == TLS1_3_VERSION ? "" : "failed");
    }
}

/* A client that sends a greeting as early data, although no ticket of ours allows that: the
 * greeting is thrown away, the handshake is finished, and what comes then is heard. */
static void early_data_is_not_heard(void)
{
    struct cv_tls_server_ctx *ctx = test_server_ctx(&base);
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *s;
    uint8_t buf[64];
    size_t n;
    raw_init(&client, TLS1_3_VERSION);
    raw_connect(&client, NULL, NULL);
    mem_init(&below);
    T_REQUIRE(cv_tls_server(ctx, &below.super, NULL, 0, &s) == 0);
    T_INT_EQ(raw_handshake(&client, &below, s, SIZE_MAX), 0);
    (void)raw_read(&client, buf, 1); /* takes up the ticket */
    T_REQUIRE(client.session != NULL);
    T_INT_EQ(SSL_SESSION_get_max_early_data(client.session), 0);
    cv_stream_close(s, false);
    mem_done(&below);

    /* The client believes what is not so. */
    SSL_SESSION *forged = SSL_SESSION_dup(client.session);
    SSL_SESSION_set_max_early_data(forged, 1000);
    raw_connect(&client, NULL, forged);
    mem_init(&below);
    T_REQUIRE(cv_tls_server(ctx, &below.super, NULL, 0, &s) == 0);
    T_INT_EQ(SSL_write_early_data(client.ssl, "\x05\x01\x00", 3, &n), 1);
    raw_shuttle(&client, &below, SIZE_MAX);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), -EAGAIN);
    T_INT_EQ(raw_handshake(&client, &below, s, SIZE_MAX), 0);
    T_OK(cv_tls_is_resumed(s));
    T_INT_EQ(SSL_get_early_data_status(client.ssl), SSL_EARLY_DATA_REJECTED);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), -EAGAIN);
    T_INT_EQ(SSL_write(client.ssl, "late", 4), 4);
    raw_shuttle(&client, &below, SIZE_MAX);
    T_INT_EQ(cv_stream_recv(s, buf, sizeof(buf), &n), 0);
    T_INT_EQ(n, 4);
    T_MEM_EQ(buf, "late", 4);
    SSL_SESSION_free(forged);
    cv_stream_close(s, false);
    cv_tls_server_ctx_unref(ctx);
    mem_done(&below);
    raw_done(&client);
}

static void files_and_dates(void)
{
    struct test_cert c;
    test_cert_make(&c, &(struct test_cert_opts){.cn = "c", .san = "DNS:c.example"});
    struct cv_tls_server_ctx *ctx =
        ctx_with(&c, &(struct cv_tls_server_opts){.client_ca = base.cert_file});
    struct cv_tls_cert_info info;
    T_INT_EQ(cv_tls_server_ctx_count(ctx), 1);
    T_INT_EQ(cv_tls_server_ctx_files(ctx), 3);
    cv_tls_server_ctx_cert(ctx, 0, &info);
    T_STR_EQ(info.cert_file, c.cert_file);
    T_INT_EQ(info.not_after_s - info.not_before_s, 86400 * 11);
    int64_t now = time(NULL);
    T_OK(info.not_after_s > now + 86400 - 100 && info.not_after_s <= now + 86400);
    uint64_t loaded = cv_tls_server_ctx_loaded(ctx);
    T_OK(cv_tls_server_ctx_look(ctx) == loaded);
    const char *const files[] = {c.cert_file, c.key_file};
    for (size_t i = 0; i < 2; i++) {
        char aside[128];
        snprintf(aside, sizeof(aside), "%s.x", files[i]);
        T_INT_EQ(rename(files[i], aside), 0);
        T_OK(cv_tls_server_ctx_look(ctx) != loaded);
        T_INT_EQ(rename(aside, files[i]), 0);
        T_OK(cv_tls_server_ctx_look(ctx) == loaded);
    }
    FILE *f = fopen(c.key_file, "a");
    fputs("\n", f);
    fclose(f);
    T_OK(cv_tls_server_ctx_look(ctx) != loaded);
    T_OK(cv_tls_server_ctx_loaded(ctx) == loaded);
    cv_tls_server_ctx_unref(ctx);
    test_cert_done(&c);
}

int main(void)
{
    test_dir_begin();
    test_cert_make(&base, &(struct test_cert_opts){.cn = "base", .san = "DNS:base.example"});
    test_cert_make(&multi,
                   &(struct test_cert_opts){.cn = "multi",
                                            .san = "DNS:one.example,DNS:two.example,DNS:three."
                                                   "example,DNS:xn--bcher-kva.example"});
    test_cert_make(&wild, &(struct test_cert_opts){.cn = "wild", .san = "DNS:*.wild.example"});
    test_cert_make(&rsa, &(struct test_cert_opts){
                             .cn = "rsa", .san = "DNS:exact.wild.example", .rsa_bits = 2048});
    struct test_cert root;
    test_cert_make(&root, &(struct test_cert_opts){.cn = "root", .is_ca = true});
    test_cert_make(&inter, &(struct test_cert_opts){.cn = "inter", .is_ca = true, .issuer = &root});
    test_cert_make(&chained, &(struct test_cert_opts){
                                 .cn = "chained", .san = "DNS:c.example", .issuer = &inter});
    T_RUN(certificate_by_name);
    T_RUN(chain_is_sent);
    T_RUN(faults_are_named);
    T_RUN(encrypted_key);
    T_RUN(references);
    T_RUN(alpn_and_version);
    T_RUN(early_data_is_not_heard);
    T_RUN(files_and_dates);
    struct test_cert *all[] = {&base, &multi, &wild, &rsa, &root, &inter, &chained};
    for (size_t i = 0; i < CV_ARRAY_SIZE(all); i++)
        test_cert_done(all[i]);
    test_dir_end();
    return t_done();
}
