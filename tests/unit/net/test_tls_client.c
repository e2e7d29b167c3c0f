#include "net/tls.h"

#include <pthread.h>

#include "net/tls_priv.h"
#include "tls_util.h"

#include "common/poison.h"

static struct test_cert root, good, expired, foreign, cn_only, wild, address;

struct meeting {
    struct mem_stream a, b; /* below the server, below the client */
    struct cv_stream *server, *client;
};

static struct cv_tls_client_ctx *client_ctx(const struct cv_tls_client_conf *conf)
{
    struct cv_tls_client_ctx *ctx = NULL;
    char *text = NULL;
    if (cv_tls_client_ctx_new(conf, &text, &ctx) != 0) {
        printf("# %s\n", text);
        abort();
    }
    return ctx;
}

static struct cv_tls_client_ctx *trusting_root(void)
{
    return client_ctx(&(struct cv_tls_client_conf){.ca_file = root.cert_file});
}

static void meet(struct meeting *m, struct cv_tls_server_ctx *server, struct cv_tls_client_ctx *ctx,
                 const char *host, uint16_t port)
{
    struct cv_target target = {.port = port};
    mem_init(&m->a);
    mem_init(&m->b);
    if (cv_host_parse(host, strlen(host), &target.host) != 0 ||
        cv_tls_server(server, &m->a.super, NULL, 0, &m->server) != 0 ||
        cv_tls_client(ctx, &m->b.super, &target, &m->client) != 0)
        abort();
}

/* The client's result. */
static int shake(struct meeting *m, size_t split)
{
    int ret = -EAGAIN;
    do {
        if (ret == -EAGAIN)
            ret = cv_tls_handshake(m->client);
        (void)cv_tls_handshake(m->server);
    } while (mem_shuttle(&m->a, &m->b, split));
    return ret;
}

static void part(struct meeting *m)
{
    cv_stream_close(m->client, false);
    cv_stream_close(m->server, false);
    mem_done(&m->a);
    mem_done(&m->b);
}

static int send_text(struct cv_stream *s, const char *text)
{
    size_t n;
    return cv_stream_send(s, text, strlen(text), &n);
}

static const char *recv_text(struct cv_stream *s)
{
    static char buf[256];
    size_t n = 0;
    int ret = cv_stream_recv(s, buf, sizeof(buf) - 1, &n);
    buf[n] = '\0';
    return ret == -EAGAIN ? "EAGAIN" : ret != 0 ? cv_err_text(ret) : n == 0 ? "END" : buf;
}

static void talk(struct meeting *m)
{
    T_INT_EQ(send_text(m->client, "ping"), 0);
    while (mem_shuttle(&m->a, &m->b, SIZE_MAX))
        ;
    T_STR_EQ(recv_text(m->server), "ping");
    T_INT_EQ(send_text(m->server, "pong"), 0);
    while (mem_shuttle(&m->a, &m->b, SIZE_MAX))
        ;
    T_STR_EQ(recv_text(m->client), "pong");
}

static void who_is_trusted(void)
{
    static const struct {
        const char *what;
        const struct test_cert *cert;
        const char *host;
        const char *fault; /* NULL: accepted */
    } cases[] = {
        {"its name", &good, "good.example", NULL},
        {"its name in capitals", &good, "GOOD.example.", NULL},
        {"another name of it", &good, "also.example", NULL},
        {"not its name", &good, "bad.example", "hostname mismatch"},
        {"a name below its name", &good, "a.good.example", "hostname mismatch"},
        {"its address, which is not in it", &good, "127.0.0.1", "IP address mismatch"},
        {"expired", &expired, "expired.example", "certificate has expired"},
        {"of someone else", &foreign, "foreign.example", "self-signed certificate"},
        {"common name only", &cn_only, "cn.example", "hostname mismatch"},
        {"wildcard", &wild, "a.wild.example", NULL},
        {"wildcard is one label", &wild, "a.b.wild.example", "hostname mismatch"},
        {"wildcard is one label, not none", &wild, "wild.example", "hostname mismatch"},
        {"address", &address, "192.0.2.1", NULL},
        {"address, v6", &address, "[2001:db8::1]", NULL},
        {"another address", &address, "192.0.2.2", "IP address mismatch"},
        {"an address as a name", &address, "name.example", "hostname mismatch"},
    };
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_client_ctx *credulous =
        client_ctx(&(struct cv_tls_client_conf){.no_verify = true});
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_tls_server_ctx *server = test_server_ctx(cases[i].cert);
        struct meeting m;
        meet(&m, server, ctx, cases[i].host, 443);
        int ret = shake(&m, SIZE_MAX);
        const char *fault = cv_tls_fault(m.client);
        bool accepted = ret == 0 && cv_tls_is_established(m.client);
        if (accepted != (cases[i].fault == NULL) ||
            (!accepted &&
             (ret != CV_E_TLS || fault == NULL || strstr(fault, cases[i].fault) == NULL)))
            T_FAIL("%s: %d '%s'", cases[i].what, ret, fault);
        if (accepted) {
            talk(&m);
        } else {
            T_INT_EQ(send_text(m.client, "secret"), CV_E_TLS); /* never to the wrong one */
            T_OK(!cv_tls_is_established(m.client));
        }
        part(&m);
        meet(&m, server, credulous, cases[i].host, 443);
        T_INT_EQ(shake(&m, SIZE_MAX), 0);
        talk(&m);
        part(&m);
        cv_tls_server_ctx_unref(server);
    }
    cv_tls_client_ctx_unref(ctx);
    cv_tls_client_ctx_unref(credulous);
}

static void system_does_not_trust_it(void)
{
    struct cv_tls_client_ctx *ctx = client_ctx(&(struct cv_tls_client_conf){0});
    struct cv_tls_server_ctx *server = test_server_ctx(&good);
    struct meeting m;
    meet(&m, server, ctx, "good.example", 443);
    T_INT_EQ(shake(&m, SIZE_MAX), CV_E_TLS);
    T_OK(cv_tls_fault(m.client) != NULL);
    part(&m);
    cv_tls_server_ctx_unref(server);
    cv_tls_client_ctx_unref(ctx);
}

static void names_are_sent_and_addresses_are_not(void)
{
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_server_ctx *server = test_server_ctx(&address);
    struct meeting m;
    meet(&m, server, ctx, "192.0.2.1", 443);
    T_INT_EQ(shake(&m, 1), 0);
    T_OK(cv_tls_sni(m.server) == NULL);
    T_OK(cv_tls_sni(m.client) == NULL);
    part(&m);
    cv_tls_server_ctx_unref(server);
    server = test_server_ctx(&good);
    meet(&m, server, ctx, "good.example", 443);
    T_INT_EQ(shake(&m, 1), 0);
    T_STR_EQ(cv_tls_sni(m.server), "good.example");
    talk(&m);
    part(&m);
    cv_tls_server_ctx_unref(server);
    cv_tls_client_ctx_unref(ctx);
}

static bool resumes(struct cv_tls_server_ctx *server, struct cv_tls_client_ctx *ctx,
                    const char *host, uint16_t port, bool abort_it)
{
    struct meeting m;
    meet(&m, server, ctx, host, port);
    T_INT_EQ(shake(&m, SIZE_MAX), 0);
    bool resumed = cv_tls_is_resumed(m.client);
    T_OK(resumed == cv_tls_is_resumed(m.server));
    talk(&m);
    if (abort_it) {
        cv_stream_close(m.client, true);
        cv_stream_close(m.server, true);
        mem_done(&m.a);
        mem_done(&m.b);
    } else {
        part(&m);
    }
    return resumed;
}

static void sessions_are_resumed(void)
{
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_server_ctx *server = test_server_ctx(&good), *other = test_server_ctx(&good);
    T_OK(!resumes(server, ctx, "good.example", 443, false));
    T_OK(resumes(server, ctx, "good.example", 443, false));
    T_OK(resumes(server, ctx, "good.example", 443, true)); /* an aborted one spoils nothing */
    T_OK(resumes(server, ctx, "good.example", 443, false));
    T_OK(!resumes(server, ctx, "good.example", 444, false)); /* another server, maybe */
    T_OK(!resumes(server, ctx, "also.example", 443, false));
    T_OK(resumes(server, ctx, "good.example", 443, false));
    T_OK(!resumes(other, ctx, "good.example", 443, false)); /* does not know it: full handshake */
    T_OK(resumes(other, ctx, "good.example", 443, false));
    struct cv_tls_client_ctx *fresh = trusting_root();
    T_OK(!resumes(other, fresh, "good.example", 443, false));
    cv_tls_client_ctx_unref(fresh);
    cv_tls_server_ctx_unref(server);
    cv_tls_server_ctx_unref(other);
    cv_tls_client_ctx_unref(ctx);
}

/* Each has its own sessions, but one idea of whom to trust. */
static void contexts_alike(void)
{
    struct cv_tls_client_ctx *base = trusting_root();
    struct cv_tls_client_ctx *a = cv_tls_client_ctx_like(base), *b = cv_tls_client_ctx_like(base);
    struct cv_tls_client_ctx *of_a = cv_tls_client_ctx_like(a);
    struct cv_tls_server_ctx *server = test_server_ctx(&good);
    cv_tls_client_ctx_unref(base); /* they hold it */
    T_OK(!resumes(server, a, "good.example", 443, false));
    T_OK(resumes(server, a, "good.example", 443, false));
    T_OK(!resumes(server, b, "good.example", 443, false));
    T_OK(!resumes(server, of_a, "good.example", 443, false));
    T_OK(resumes(server, a, "good.example", 443, false));
    struct meeting m;
    meet(&m, server, b, "other.example", 443);
    T_INT_EQ(shake(&m, SIZE_MAX), CV_E_TLS);
    part(&m);
    struct cv_tls_client_ctx *unused = cv_tls_client_ctx_like(b);
    cv_tls_client_ctx_unref(unused);
    cv_tls_client_ctx_unref(of_a);
    cv_tls_client_ctx_unref(a);
    cv_tls_client_ctx_unref(b);
    cv_tls_server_ctx_unref(server);
}

static void a_failed_handshake_forgets_the_session(void)
{
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_server_ctx *server = test_server_ctx(&good);
    T_OK(!resumes(server, ctx, "good.example", 443, false));
    struct meeting m;
    meet(&m, server, ctx, "good.example", 443);
    (void)cv_tls_handshake(m.client);
    mem_put(&m.b.in, "HTTP/1.1 400 Bad Request\r\n", 26);
    T_INT_EQ(cv_tls_handshake(m.client), CV_E_TLS);
    part(&m);
    T_OK(!resumes(server, ctx, "good.example", 443, false));
    T_OK(resumes(server, ctx, "good.example", 443, false));
    cv_tls_server_ctx_unref(server);
    cv_tls_client_ctx_unref(ctx);
}

static void session_cache_is_bounded(void)
{
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_server_ctx *server = test_server_ctx(&good);
    for (int i = 0; i < 129; i++)
        T_OK(!resumes(server, ctx, "good.example", (uint16_t)(1000 + i), false));
    T_OK(!resumes(server, ctx, "good.example", 1000, false)); /* the oldest had to go */
    T_OK(resumes(server, ctx, "good.example", 1128, false));
    T_OK(resumes(server, ctx, "good.example", 1002, false));
    cv_tls_server_ctx_unref(server);
    cv_tls_client_ctx_unref(ctx);
}

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                       const unsigned char *in, unsigned in_len, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl;
    (void)arg;
    return SSL_select_next_proto((unsigned char **)(uintptr_t)out, out_len, ours, 9, in, in_len) ==
                   OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_NOACK;
}

/* The server is plain OpenSSL here: ours speaks no ALPN. */
static void alpn(void)
{
    static const char *const two[] = {"h2", "http/1.1"}, *const one[] = {"h2"};
    for (int round = 0; round < 2; round++) {
        struct cv_tls_client_ctx *ctx = client_ctx(&(struct cv_tls_client_conf){
            .ca_file = root.cert_file, .alpn = round ? one : two, .n_alpn = round ? 1 : 2});
        struct cv_target target = {.port = 443, .host = {.name = "good.example", .name_len = 12}};
        struct mem_stream below;
        struct cv_stream *s;
        mem_init(&below);
        T_REQUIRE(cv_tls_client(ctx, &below.super, &target, &s) == 0);
        struct raw_client server = {.ctx = SSL_CTX_new(TLS_server_method())};
        SSL_CTX_use_certificate(server.ctx, good.x509);
        SSL_CTX_use_PrivateKey(server.ctx, good.key);
        SSL_CTX_set_alpn_select_cb(server.ctx, choose_alpn, NULL);
        raw_connect(&server, NULL, NULL);
        SSL_set_accept_state(server.ssl);
        T_INT_EQ(raw_handshake(&server, &below, s, SIZE_MAX), 0);
        size_t len;
        const uint8_t *p = cv_tls_alpn(s, &len);
        if (round == 0)
            T_OK(p != NULL && len == 8 && memcmp(p, "http/1.1", 8) == 0);
        else
            T_OK(p == NULL && len == 0);
        cv_stream_close(s, false);
        mem_done(&below);
        raw_done(&server);
        cv_tls_client_ctx_unref(ctx);
    }
}

static void half_close(void)
{
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_server_ctx *server = test_server_ctx(&good);
    struct meeting m;
    meet(&m, server, ctx, "good.example", 443);
    T_INT_EQ(shake(&m, SIZE_MAX), 0);
    T_INT_EQ(send_text(m.client, "request"), 0);
    T_INT_EQ(cv_stream_shutdown_send(m.client), 0);
    while (mem_shuttle(&m.a, &m.b, 7))
        ;
    T_STR_EQ(recv_text(m.server), "request");
    T_STR_EQ(recv_text(m.server), "END");
    T_INT_EQ(send_text(m.server, "response"), 0);
    T_INT_EQ(cv_stream_shutdown_send(m.server), 0);
    T_OK(m.a.out_fin && !m.b.out_fin);
    while (mem_shuttle(&m.a, &m.b, 7))
        ;
    T_STR_EQ(recv_text(m.client), "response");
    T_STR_EQ(recv_text(m.client), "END");
    T_OK(m.b.out_fin);
    part(&m);
    cv_tls_server_ctx_unref(server);
    cv_tls_client_ctx_unref(ctx);
}

static void dead_and_plain_servers(void)
{
    static const char *const texts[] = {"HTTP/1.1 400 Bad Request\r\n\r\n", "220 smtp ready\r\n",
                                        ""};
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_target target = {.port = 443, .host = {.name = "good.example", .name_len = 12}};
    for (size_t i = 0; i < CV_ARRAY_SIZE(texts); i++) {
        struct mem_stream below;
        struct cv_stream *s;
        mem_init(&below);
        T_REQUIRE(cv_tls_client(ctx, &below.super, &target, &s) == 0);
        T_INT_EQ(send_text(s, "x"), -EAGAIN);
        T_OK(below.out.len > 100); /* the ClientHello is out */
        mem_put(&below.in, texts[i], strlen(texts[i]));
        below.in_fin = true;
        T_STR_EQ(recv_text(s), cv_err_text(CV_E_TLS));
        T_OK(cv_tls_fault(s) != NULL);
        cv_stream_close(s, false);
        T_OK(below.closed);
        mem_done(&below);
    }
    cv_tls_client_ctx_unref(ctx);
}

static void faults_of_the_context(void)
{
    static const char *const blank[] = {""};
    char longer[300];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    const char *const too_long[] = {longer};
    const struct {
        struct cv_tls_client_conf conf;
        const char *part;
    } cases[] = {
        {{.ca_file = "/nonexistent/ca"}, "/nonexistent/ca"},
        {{.ca_file = test_text_file("no PEM")}, "text"},
        {{.no_verify = true, .alpn = blank, .n_alpn = 1}, "alpn"},
        {{.no_verify = true, .alpn = too_long, .n_alpn = 1}, "alpn"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_tls_client_ctx *ctx = NULL;
        char *text = NULL;
        T_INT_EQ(cv_tls_client_ctx_new(&cases[i].conf, &text, &ctx), CV_E_INVALID);
        if (text == NULL || strstr(text, cases[i].part) == NULL)
            T_FAIL("'%s'", text);
        T_OK(ctx == NULL);
        cv_free(text);
    }
    struct cv_tls_client_ctx *ctx = trusting_root();
    T_OK(cv_tls_client_ctx_ref(ctx) == ctx);
    cv_tls_client_ctx_unref(ctx);
    cv_tls_client_ctx_unref(ctx);
    cv_tls_client_ctx_unref(NULL);
}

struct party {
    pthread_t thread;
    struct cv_tls_server_ctx *server;
    struct cv_tls_client_ctx *client;
    int good, resumed;
};

static void *party_run(void *arg)
{
    struct party *p = arg;
    for (int i = 0; i < 20; i++) {
        struct meeting m;
        meet(&m, p->server, p->client, "good.example", (uint16_t)(1 + i % 3));
        p->good += shake(&m, SIZE_MAX) == 0;
        p->resumed += cv_tls_is_resumed(m.client);
        size_t n;
        (void)cv_stream_send(m.server, "x", 1, &n);
        while (mem_shuttle(&m.a, &m.b, SIZE_MAX))
            ;
        char byte;
        (void)cv_stream_recv(m.client, &byte, 1, &n); /* the ticket comes on the way */
        part(&m);
    }
    return NULL;
}

/* Contexts are shared by all workers. */
static void contexts_are_shared_by_threads(void)
{
    struct party parties[4];
    struct cv_tls_client_ctx *ctx = trusting_root();
    struct cv_tls_server_ctx *server = test_server_ctx(&good);
    for (size_t i = 0; i < CV_ARRAY_SIZE(parties); i++) {
        parties[i] = (struct party){.server = server, .client = ctx};
        T_REQUIRE(pthread_create(&parties[i].thread, NULL, party_run, &parties[i]) == 0);
    }
    for (size_t i = 0; i < CV_ARRAY_SIZE(parties); i++) {
        pthread_join(parties[i].thread, NULL);
        T_INT_EQ(parties[i].good, 20);
        T_OK(parties[i].resumed >= 17);
    }
    cv_tls_server_ctx_unref(server);
    cv_tls_client_ctx_unref(ctx);
}

int main(void)
{
    test_dir_begin();
    test_cert_make(&root, &(struct test_cert_opts){.cn = "root", .is_ca = true});
#define LEAF(c, ...) test_cert_make(&c, &(struct test_cert_opts){.issuer = &root, __VA_ARGS__})
    LEAF(good, .cn = "good", .san = "DNS:good.example,DNS:also.example");
    LEAF(expired, .cn = "expired", .san = "DNS:expired.example", .expired = true);
    LEAF(cn_only, .cn = "cn.example");
    LEAF(wild, .cn = "wild", .san = "DNS:*.wild.example");
    LEAF(address, .cn = "address", .san = "IP:192.0.2.1,IP:2001:db8::1");
    test_cert_make(&foreign,
                   &(struct test_cert_opts){.cn = "foreign", .san = "DNS:foreign.example"});
    T_RUN(who_is_trusted);
    T_RUN(system_does_not_trust_it);
    T_RUN(names_are_sent_and_addresses_are_not);
    T_RUN(sessions_are_resumed);
    T_RUN(contexts_alike);
    T_RUN(a_failed_handshake_forgets_the_session);
    T_RUN(session_cache_is_bounded);
    T_RUN(alpn);
    T_RUN(half_close);
    T_RUN(dead_and_plain_servers);
    T_RUN(faults_of_the_context);
    T_RUN(contexts_are_shared_by_threads);
    struct test_cert *all[] = {&root, &good, &expired, &foreign, &cn_only, &wild, &address};
    for (size_t i = 0; i < CV_ARRAY_SIZE(all); i++)
        test_cert_done(all[i]);
    test_dir_end();
    return t_done();
}
