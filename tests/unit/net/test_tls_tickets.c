#include "net/tls_tickets.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tls_util.h"

#include "common/poison.h"

static struct test_cert cert;

static struct cv_tls_server_ctx *ctx_of(struct cv_tls_tickets *t, const char *scope)
{
    struct cv_tls_cert c = {.cert_file = cert.cert_file, .key_file = cert.key_file};
    struct cv_tls_server_ctx *ctx = NULL;
    struct cv_tls_server_opts o = {.tickets = t, .scope = scope};
    if (cv_tls_server_ctx_new_with(&c, 1, &o, NULL, &ctx) != 0)
        abort();
    return ctx;
}

/* Connect with 'session' (or NULL). True if it was resumed; the client's last ticket goes to
 * *ret_session, if that is wanted. */
static bool visit(struct cv_tls_server_ctx *ctx, int version, SSL_SESSION *session,
                  SSL_SESSION **ret_session)
{
    struct raw_client client;
    struct mem_stream below;
    struct cv_stream *s;
    char byte;
    raw_init(&client, version);
    /* A copy: OpenSSL uses each session of TLS 1.3 once only. */
    SSL_SESSION *copy = session != NULL ? SSL_SESSION_dup(session) : NULL;
    raw_connect(&client, "a.example", copy);
    SSL_SESSION_free(copy);
    mem_init(&below);
    if (cv_tls_server(ctx, &below.super, NULL, 0, &s) != 0)
        abort();
    int ret = raw_handshake(&client, &below, s, SIZE_MAX);
    bool resumed = ret == 0 && cv_tls_is_resumed(s);
    (void)raw_read(&client, &byte, 1);
    cv_stream_close(s, false);
    mem_done(&below);
    if (ret != 0)
        T_FAIL("handshake: %d", ret);
    if (ret_session != NULL) {
        /* OpenSSL tells of no new ticket when a session of TLS 1.2 was resumed. */
        *ret_session = version == TLS1_2_VERSION ? SSL_get1_session(client.ssl)
                                                 : SSL_SESSION_dup(client.session);
    }
    raw_done(&client);
    return resumed;
}

static void shared_and_rotated(void)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (size_t i = 0; i < 2; i++) {
        int v = versions[i];
        struct cv_tls_tickets *keys = cv_tls_tickets_new();
        struct cv_tls_server_ctx *a = ctx_of(keys, "main"), *b = ctx_of(keys, "main"),
                                 *other = ctx_of(keys, "other"), *own = ctx_of(NULL, "main");
        SSL_SESSION *first = NULL, *second = NULL;
        T_OK(!visit(a, v, NULL, &first));
        T_REQUIRE(first != NULL);
        T_OK(visit(a, v, first, NULL));
        T_OK(visit(b, v, first, NULL)); /* as after a reload, or on another listener's twin */
        T_OK(!visit(other, v, first, NULL));
        T_OK(!visit(own, v, first, NULL));
        cv_tls_tickets_rotate(keys);
        T_OK(visit(a, v, first, &second)); /* the key before the newest still opens it */
        T_REQUIRE(second != NULL);
        cv_tls_tickets_rotate(keys);
        T_OK(!visit(a, v, first, NULL));
        T_OK(visit(a, v, second, NULL)); /* which is why resuming brought another ticket */
        SSL_SESSION_free(first);
        SSL_SESSION_free(second);
        struct cv_tls_server_ctx *all[] = {a, b, other, own};
        for (size_t k = 0; k < CV_ARRAY_SIZE(all); k++)
            cv_tls_server_ctx_unref(all[k]);
        cv_tls_tickets_unref(keys);
    }
    cv_tls_tickets_unref(NULL);
}

/* -- from several threads -- */

static struct cv_tls_tickets *busy;
static atomic_bool stop;

static void *rotate_often(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop))
        cv_tls_tickets_rotate(busy);
    return NULL;
}

static void rotated_while_in_use(void)
{
    pthread_t thread;
    busy = cv_tls_tickets_new();
    struct cv_tls_server_ctx *ctx = ctx_of(busy, "main");
    atomic_store(&stop, false);
    if (pthread_create(&thread, NULL, rotate_often, NULL) != 0)
        abort();
    SSL_SESSION *session = NULL;
    for (int i = 0; i < 30; i++) {
        SSL_SESSION *next = NULL;
        (void)visit(ctx, i % 2 ? TLS1_2_VERSION : TLS1_3_VERSION, i % 3 ? session : NULL, &next);
        SSL_SESSION_free(session);
        session = next;
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    SSL_SESSION_free(session);
    cv_tls_server_ctx_unref(ctx);
    cv_tls_tickets_unref(busy);
    T_OK(true);
}

int main(void)
{
    test_dir_begin();
    test_cert_make(&cert, &(struct test_cert_opts){.cn = "a", .san = "DNS:a.example"});
    T_RUN(shared_and_rotated);
    T_RUN(rotated_while_in_use);
    test_cert_done(&cert);
    test_dir_end();
    return t_done();
}
