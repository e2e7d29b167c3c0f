#include "egress/tls_pool.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"
#include "net/tls.h"

#include "common/poison.h"

#define BUCKETS 4096 /* for at most 10,000 egresses */

struct entry {
    struct entry *next;
    struct cv_tls_client_ctx *ctx; /* a reference */
    struct cv_rcstr *egress_id;    /* references */
    struct cv_rcstr *addr;
    char *ca_file; /* owned; "": the system's authorities */
    bool skip_cert_verify;
    bool used; /* since the last sweep */
};

struct cv_tls_pool {
    struct cv_tls_client_ctx *base[2]; /* references; [1] verifies nothing; NULL: not needed yet */
    struct entry *buckets[BUCKETS];
    size_t n;
};

struct cv_tls_pool *cv_tls_pool_new(void)
{
    return cv_zalloc(sizeof(struct cv_tls_pool));
}

static void entry_free(struct entry *e)
{
    cv_tls_client_ctx_unref(e->ctx);
    cv_rcstr_unref(e->egress_id);
    cv_rcstr_unref(e->addr);
    cv_free(e->ca_file);
    cv_free(e);
}

static void drop(struct cv_tls_pool *p, bool all)
{
    for (size_t i = 0; i < BUCKETS && p->n > 0; i++) {
        struct entry **at = &p->buckets[i];
        while (*at != NULL) {
            struct entry *e = *at;
            if (e->used && !all) {
                e->used = false;
                at = &e->next;
                continue;
            }
            *at = e->next;
            entry_free(e);
            p->n--;
        }
    }
}

void cv_tls_pool_sweep(struct cv_tls_pool *p)
{
    drop(p, false);
}

void cv_tls_pool_clear(struct cv_tls_pool *p)
{
    drop(p, true);
    for (size_t i = 0; i < CV_ARRAY_SIZE(p->base); i++) {
        cv_tls_client_ctx_unref(p->base[i]);
        p->base[i] = NULL;
    }
}

void cv_tls_pool_free(struct cv_tls_pool *p)
{
    if (p == NULL)
        return;
    cv_tls_pool_clear(p);
    cv_free(p);
}

size_t cv_tls_pool_count(const struct cv_tls_pool *p)
{
    return p->n;
}

static bool same(const struct cv_rcstr *a, const struct cv_rcstr *b)
{
    return a->len == b->len && memcmp(a->s, b->s, a->len) == 0;
}

static struct entry *find(struct entry *e, const struct cv_rcstr *id, const struct cv_backend *b,
                          const char *ca_file)
{
    while (e != NULL &&
           !(same(e->egress_id, id) && same(e->addr, b->addr) &&
             e->skip_cert_verify == b->skip_cert_verify && strcmp(e->ca_file, ca_file) == 0))
        e = e->next;
    return e;
}

static int base_get(struct cv_tls_pool *p, bool no_verify, char **reterr_text)
{
    if (p->base[no_verify] != NULL)
        return 0;
    struct cv_tls_client_conf conf = {.no_verify = no_verify};
    return cv_tls_client_ctx_new(&conf, reterr_text, &p->base[no_verify]);
}

/* A context of its own: sessions are resumed with the server that they were made with. */
static int context_new(struct cv_tls_pool *p, bool no_verify, const char *ca_file,
                       char **reterr_text, struct cv_tls_client_ctx **ret_ctx)
{
    if (ca_file[0] != '\0' && !no_verify) {
        struct cv_tls_client_conf conf = {.ca_file = ca_file};
        return cv_tls_client_ctx_new(&conf, reterr_text, ret_ctx);
    }
    int ret = base_get(p, no_verify, reterr_text);
    if (ret != 0)
        return ret;
    *ret_ctx = cv_tls_client_ctx_like(p->base[no_verify]);
    return *ret_ctx != NULL ? 0 : -ENOMEM;
}

int cv_tls_pool_get(struct cv_tls_pool *p, struct cv_rcstr *egress_id, const struct cv_backend *b,
                    const char *ca_file, char **reterr_text, struct cv_tls_client_ctx **ret_ctx)
{
    size_t i = cv_hash_bytes(NULL, egress_id->s, egress_id->len) % BUCKETS;
    struct entry *e = find(p->buckets[i], egress_id, b, ca_file);
    *reterr_text = NULL;
    if (e == NULL) {
        struct cv_tls_client_ctx *ctx = NULL;
        int ret = context_new(p, b->skip_cert_verify, ca_file, reterr_text, &ctx);
        if (ret != 0)
            return ret;
        e = cv_try_zalloc(sizeof(*e));
        if (e == NULL) {
            cv_tls_client_ctx_unref(ctx);
            return -ENOMEM;
        }
        e->ctx = ctx;
        e->egress_id = cv_rcstr_ref(egress_id);
        e->addr = cv_rcstr_ref(b->addr);
        e->ca_file = cv_strdup(ca_file);
        e->skip_cert_verify = b->skip_cert_verify;
        e->next = p->buckets[i];
        p->buckets[i] = e;
        p->n++;
    }
    e->used = true;
    *ret_ctx = e->ctx;
    return 0;
}
