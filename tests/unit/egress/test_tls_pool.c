#include "egress/tls_pool.h"

#include "common/alloc.h"
#include "common/rcstr.h"
#include "net/tls.h"
#include "tap.h"

#include <stdlib.h>

static struct cv_rcstr *text(const char *s)
{
    struct cv_rcstr *r = cv_rcstr_new(s, strlen(s));
    if (r == NULL)
        abort();
    return r;
}

static struct cv_tls_client_ctx *get(struct cv_tls_pool *p, const char *id, const char *addr,
                                     bool skip)
{
    struct cv_backend b = {.kind = CV_BACKEND_HTTP, .tls = true, .skip_cert_verify = skip};
    struct cv_rcstr *key = text(id);
    struct cv_tls_client_ctx *ctx = NULL;
    char *why = NULL;
    b.addr = text(addr);
    T_INT_EQ(cv_tls_pool_get(p, key, &b, "", &why, &ctx), 0);
    T_OK(why == NULL);
    cv_rcstr_unref(key);
    cv_rcstr_unref(b.addr);
    return ctx;
}

static void test_one_per_backend(void)
{
    struct cv_tls_pool *p = cv_tls_pool_new();
    struct cv_tls_client_ctx *a = get(p, "a", "x:1", false);
    T_OK(a != NULL);
    T_OK(get(p, "a", "x:1", false) == a);
    /* Another egress, another server, another idea of trust: another context. */
    T_OK(get(p, "b", "x:1", false) != a);
    T_OK(get(p, "a", "x:2", false) != a);
    T_OK(get(p, "a", "x:1", true) != a);
    T_INT_EQ(cv_tls_pool_count(p), 4);
    cv_tls_pool_free(p);
    cv_tls_pool_free(NULL);
}

/* A context lives as long as each snapshot asks for it, and as long as somebody holds it. */
static void test_sweep(void)
{
    struct cv_tls_pool *p = cv_tls_pool_new();
    struct cv_tls_client_ctx *a = get(p, "a", "x:1", true), *b = get(p, "b", "x:1", true);
    cv_tls_pool_sweep(p);
    T_INT_EQ(cv_tls_pool_count(p), 2);
    T_OK(get(p, "a", "x:1", true) == a);
    cv_tls_client_ctx_ref(b);
    cv_tls_pool_sweep(p);
    T_INT_EQ(cv_tls_pool_count(p), 1);
    T_OK(get(p, "a", "x:1", true) == a);
    T_OK(get(p, "b", "x:1", true) != b);
    cv_tls_client_ctx_unref(b);
    cv_tls_pool_sweep(p);
    cv_tls_pool_sweep(p);
    T_INT_EQ(cv_tls_pool_count(p), 0);
    T_OK(get(p, "a", "x:1", true) != NULL);
    cv_tls_pool_clear(p);
    T_INT_EQ(cv_tls_pool_count(p), 0);
    cv_tls_pool_free(p);
}

/* Authorities of its own: a file of the config, kept beside the system's. */
static void test_ca_file(void)
{
    static const char bad[] = "/nonexistent/ca.pem";
    struct cv_tls_pool *p = cv_tls_pool_new();
    struct cv_backend b = {.kind = CV_BACKEND_HTTP, .tls = true};
    struct cv_tls_client_ctx *system, *ctx = NULL;
    struct cv_rcstr *id = text("a");
    char *why = NULL;
    b.addr = text("x:1");
    T_INT_EQ(cv_tls_pool_get(p, id, &b, "", &why, &system), 0);
    T_OK(cv_tls_pool_get(p, id, &b, bad, &why, &ctx) != 0);
    T_OK(why != NULL && strstr(why, bad) != NULL);
    cv_free(why);
    T_INT_EQ(cv_tls_pool_count(p), 1);
    /* Nothing is verified, so nothing is read. */
    b.skip_cert_verify = true;
    T_INT_EQ(cv_tls_pool_get(p, id, &b, bad, &why, &ctx), 0);
    T_OK(ctx != system);
    cv_rcstr_unref(id);
    cv_rcstr_unref(b.addr);
    cv_tls_pool_free(p);
}

static void test_many(void)
{
    struct cv_tls_pool *p = cv_tls_pool_new();
    char id[32];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 10000; i++) {
            snprintf(id, sizeof(id), "egress-%d", i);
            if (get(p, id, "x:1", false) == NULL)
                T_FAIL("no context for %s", id);
        }
        T_INT_EQ(cv_tls_pool_count(p), 10000);
        cv_tls_pool_sweep(p);
    }
    cv_tls_pool_free(p);
}

int main(void)
{
    T_RUN(test_one_per_backend);
    T_RUN(test_sweep);
    T_RUN(test_ca_file);
    T_RUN(test_many);
    return t_done();
}
