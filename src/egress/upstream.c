#include <errno.h>

#include "common/alloc.h"
#include "common/err.h"
#include "egress/egress.h"
#include "egress/upstream_priv.h"
#include "egress/upstream_udp.h"
#include "flow/worker.h"

#include "common/poison.h"

struct upstream {
    struct cv_egress super;
    struct cv_upstream conf;
};

/* One connection that is being opened; kept in cv_dial._impl. */
struct attempt {
    struct cv_dial *dial; /* borrowed */
    struct cv_upstream_request request;
    struct cv_upstream_open *open;
};

static struct upstream *upstream_of(struct cv_egress *e)
{
    return CV_CONTAINER_OF(e, struct upstream, super);
}

static void on_opened(void *arg, const struct cv_upstream_answer *a)
{
    struct attempt *t = arg;
    struct cv_dial *d = t->dial;
    d->_impl = NULL;
    d->err = a->err;
    d->stage = a->stage;
    d->stream = a->stream;
    d->peer = a->peer;
    if (a->bnd.ip.family != CV_AF_NONE)
        d->local = a->bnd;
    cv_free(t);
    cv_dial_done(d);
}

static void upstream_connect(struct cv_egress *e, struct cv_dial *d)
{
    struct attempt *t = cv_try_zalloc(sizeof(*t));
    if (t == NULL) {
        cv_dial_fail_later(d, CV_STAGE_DIAL, -ENOMEM);
        return;
    }
    t->dial = d;
    t->request = (struct cv_upstream_request){
        .worker = d->worker,
        .cmd = CV_SOCKS5_CMD_CONNECT,
        .target = d->target,
        .client = d->client,
        .deadline_ms = d->deadline_ms,
        .blame = &d->blame,
    };
    int ret = cv_upstream_open(&upstream_of(e)->conf, &t->request, on_opened, t, &t->open);
    if (ret != 0) {
        cv_free(t);
        cv_dial_fail_later(d, cv_upstream_open_stage(ret), ret);
        return;
    }
    d->_impl = t;
}

static void upstream_cancel(struct cv_egress *e, struct cv_dial *d)
{
    struct attempt *t = d->_impl;
    if (d->udp) {
        cv_upstream_cancel_udp(e, d);
        return;
    }
    cv_upstream_cancel(t->open);
    cv_free(t);
    d->_impl = NULL;
}

static bool same_text(const struct cv_rcstr *a, const struct cv_rcstr *b)
{
    return a == b ||
           (a != NULL && b != NULL && a->len == b->len && memcmp(a->s, b->s, a->len) == 0);
}

/* The proxy and what it is told are all that matters; the id under which a snapshot names it does
 * not. TLS contexts are kept across snapshots, so the same one is the same object. */
static bool upstream_same(const struct cv_egress *a, const struct cv_egress *b)
{
    const struct cv_upstream *x =
        &CV_CONTAINER_OF((void *)(uintptr_t)a, struct upstream, super)->conf;
    const struct cv_upstream *y =
        &CV_CONTAINER_OF((void *)(uintptr_t)b, struct upstream, super)->conf;
    return x->kind == y->kind && x->server.port == y->server.port &&
           strcmp(x->server.host.name, y->server.host.name) == 0 && same_text(x->user, y->user) &&
           same_text(x->pass, y->pass) && x->tls == y->tls &&
           x->proxy_protocol == y->proxy_protocol;
}

static void upstream_free(struct cv_egress *e)
{
    struct upstream *u = upstream_of(e);
    cv_rcstr_unref(u->conf.user);
    cv_rcstr_unref(u->conf.pass);
    cv_tls_client_ctx_unref(u->conf.tls);
    cv_free(u);
}

static const struct cv_egress_ops upstream_ops = {
    .kind = "upstream",
    .connect = upstream_connect,
    .open_udp = cv_upstream_open_udp,
    .same = upstream_same,
    .cancel = upstream_cancel,
    .free = upstream_free,
};

const struct cv_upstream *cv_upstream_of(struct cv_egress *e)
{
    return e->ops == &upstream_ops ? &upstream_of(e)->conf : NULL;
}

int cv_egress_upstream_addr(const struct cv_rcstr *addr, struct cv_target *ret_server)
{
    const char *s = addr->s;
    size_t len = addr->len;
    for (; len > 0 && (*s == ' ' || *s == '\t'); len--)
        s++;
    while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\t'))
        len--;
    return cv_target_parse(s, len, 0, ret_server);
}

struct cv_egress *cv_egress_upstream_new(const struct cv_backend *backend,
                                         const struct cv_upstream_opts *opts,
                                         struct cv_egress_stats *stats)
{
    CV_ASSERT(backend->kind == CV_BACKEND_HTTP || backend->kind == CV_BACKEND_SOCKS5);
    struct upstream *u = cv_try_zalloc(sizeof(*u));
    if (u == NULL)
        return NULL;
    cv_egress_init(&u->super, &upstream_ops, backend->label, stats);
    u->conf.kind = backend->kind;
    if (cv_egress_upstream_addr(backend->addr, &u->conf.server) != 0)
        u->conf.server = (struct cv_target){0};
    if (backend->username != NULL && backend->username->len > 0) {
        u->conf.user = cv_rcstr_ref(backend->username);
        u->conf.pass = cv_rcstr_ref(backend->password);
    }
    u->conf.tls = opts->tls != NULL ? cv_tls_client_ctx_ref(opts->tls) : NULL;
    CV_ASSERT(backend->tls == (u->conf.tls != NULL));
    u->conf.proxy_protocol = opts->proxy_protocol;
    return &u->super;
}
