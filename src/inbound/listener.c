#include "inbound/listener.h"

#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "common/sys.h"
#include "flow/admission.h"
#include "inbound/detect.h"
#include "net/tcp.h"

#include "common/poison.h"

#define DOMAIN        "listener"
#define WARN_EVERY_MS 60000

struct cv_listener_port {
    struct cv_acceptor acceptor;
    struct cv_worker *worker;      /* borrowed (outlives the port) */
    struct cv_listener_conf *conf; /* a reference */
    int fd;                        /* owned unless 'shared' */
    bool shared;
    int64_t warn_after_ms; /* loop clock; before this a pause is not logged */
    struct cv_task release;
};

struct cv_listener_conf *cv_listener_conf_new(void)
{
    struct cv_listener_conf *c = cv_zalloc(sizeof(*c));
    c->_refs = 1;
    c->unix_mode = 0660;
    c->udp = true;
    return c;
}

/* Ports of several workers hold the same one. */
struct cv_listener_conf *cv_listener_conf_ref(struct cv_listener_conf *c)
{
    __atomic_add_fetch(&c->_refs, 1, __ATOMIC_RELAXED);
    return c;
}

void cv_listener_conf_unref(struct cv_listener_conf *c)
{
    if (c == NULL || __atomic_sub_fetch(&c->_refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    cv_tls_server_ctx_unref(c->tls);
    cv_free(c->listen);
    cv_free(c->no_auth_user);
    cv_free(c->proxy_from);
    cv_free(c->identity);
    for (size_t i = 0; i < c->n_origins; i++)
        cv_free(c->origins[i]);
    cv_free(c->origins);
    cv_free(c);
}

static bool is_full(const struct cv_worker *w)
{
    uint64_t max = w->settings->max_sessions;
    int64_t live = cv_gauge_get(&w->node->stats.sessions);
    return max > 0 && live > 0 && (uint64_t)live >= max;
}

/* Whoever may open a Unix socket has been chosen by its permission bits. */
static bool is_trusted_proxy(const struct cv_listener_conf *c, const struct cv_endpoint *peer)
{
    bool found = peer->ip.family == CV_AF_NONE;
    for (size_t i = 0; i < c->n_proxy_from && !found; i++)
        found = cv_prefix_contains(&c->proxy_from[i], &peer->ip);
    return found;
}

static void refuse_source(struct cv_listener_port *p, const struct cv_endpoint *peer, int fd)
{
    char text[CV_ENDPOINT_STRLEN];
    cv_counter_add(&p->conf->stats->rejected_source, 1);
    cv_log_limited(CV_LOG_WARN, DOMAIN,
                   "not from a listed proxy, refusing listener='%s' client='%s'", p->conf->name,
                   cv_endpoint_format(peer, text));
    cv_sys_close(fd);
}

bool cv_listener_admits(const struct cv_inbound *in)
{
    struct cv_node *node = in->worker->node;
    const struct cv_settings *settings = in->worker->settings;
    char client[CV_ENDPOINT_STRLEN];
    if (node->admission == NULL ||
        cv_admission_take(node->admission, &in->client.ip, settings->connections_per_s,
                          settings->source_connections_per_s, cv_loop_now(in->worker->loop)))
        return true;
    cv_counter_add(&node->stats.connections_limit, 1);
    cv_counter_add(&in->conf->stats->row.refused[CV_STAGE_LISTENER], 1);
    cv_log_limited(CV_LOG_WARN, DOMAIN,
                   "connections come too fast, refusing listener='%s' client='%s'", in->conf->name,
                   cv_endpoint_format(&in->client, client));
    return false;
}

static void on_accept(struct cv_acceptor *a, int fd, const struct cv_sockaddr *peer)
{
    struct cv_listener_port *p = CV_CONTAINER_OF(a, struct cv_listener_port, acceptor);
    struct cv_listener_conf *conf = p->conf;
    cv_counter_add(&conf->stats->accepted, 1);
    if (is_full(p->worker)) {
        cv_counter_add(&conf->stats->rejected_full, 1);
        cv_log_limited(CV_LOG_WARN, DOMAIN, "too many sessions, refusing listener='%s' max=%llu",
                       conf->name, (unsigned long long)p->worker->settings->max_sessions);
        cv_sys_close(fd);
        return;
    }
    struct cv_inbound in = {
        .worker = p->worker,
        .conf = conf,
        .accepted_ms = cv_loop_now(p->worker->loop),
    };
    cv_endpoint_from_sockaddr(&in.client, &peer->sa);
    if (conf->proxy_protocol && !is_trusted_proxy(conf, &in.client)) {
        refuse_source(p, &in.client, fd);
        return;
    }
    /* Behind a proxy it is not known yet whose connection this is. */
    if (!conf->proxy_protocol && !cv_listener_admits(&in)) {
        cv_sys_close(fd);
        return;
    }
    int ret = cv_tcp_adopt(p->worker->loop, fd, &in.stream);
    if (ret < 0) {
        cv_log_limited(CV_LOG_WARN, DOMAIN, "connection dropped listener='%s' error='%s'",
                       conf->name, cv_err_text(ret));
        return;
    }
    if (conf->proxy_protocol || conf->tls != NULL || conf->protocol == CV_LISTENER_MIXED)
        cv_detect_start(&in);
    else if (conf->protocol == CV_LISTENER_SOCKS5)
        cv_socks5_serve(&in);
    else if (conf->protocol == CV_LISTENER_SNI)
        cv_sni_serve(&in);
    else
        cv_http_serve(&in);
}

static void on_pause(struct cv_acceptor *a, int err)
{
    struct cv_listener_port *p = CV_CONTAINER_OF(a, struct cv_listener_port, acceptor);
    int64_t now = cv_loop_now(p->worker->loop);
    cv_counter_add(&p->conf->stats->accept_pauses, 1);
    if (now < p->warn_after_ms)
        return;
    p->warn_after_ms = now + WARN_EVERY_MS;
    cv_warn(DOMAIN, "accepting pauses listener='%s' error='%s', retrying", p->conf->name,
            cv_err_text(err));
}

int cv_listener_port_open(struct cv_worker *w, struct cv_listener_conf *conf, int fd, bool shared,
                          struct cv_listener_port **ret_port)
{
    struct cv_listener_port *p = cv_zalloc(sizeof(*p));
    p->worker = w;
    p->conf = cv_listener_conf_ref(conf);
    p->fd = fd;
    p->shared = shared;
    p->acceptor.on_accept = on_accept;
    p->acceptor.on_pause = on_pause;
    int ret = cv_acceptor_start(&p->acceptor, w->loop, fd, shared);
    if (ret < 0) {
        if (!shared)
            cv_sys_close(fd);
        cv_listener_conf_unref(p->conf);
        cv_free(p);
        return ret;
    }
    *ret_port = p;
    return 0;
}

void cv_listener_port_set_conf(struct cv_listener_port *p, struct cv_listener_conf *conf)
{
    struct cv_listener_conf *old = p->conf;
    p->conf = cv_listener_conf_ref(conf);
    cv_listener_conf_unref(old);
}

static void on_release(struct cv_task *task)
{
    struct cv_listener_port *p = CV_CONTAINER_OF(task, struct cv_listener_port, release);
    cv_listener_conf_unref(p->conf);
    cv_free(p);
}

int cv_listener_port_fd(const struct cv_listener_port *p)
{
    return p->fd;
}

int cv_listener_port_rearm(struct cv_listener_port *p)
{
    cv_acceptor_stop(&p->acceptor, false);
    return cv_acceptor_start(&p->acceptor, p->worker->loop, p->fd, p->shared);
}

static void port_stop(struct cv_listener_port *p, bool drain)
{
    if (p == NULL)
        return;
    cv_acceptor_stop(&p->acceptor, drain);
    if (!p->shared)
        cv_sys_close(p->fd);
    p->release = (struct cv_task){.fn = on_release};
    cv_loop_defer(p->worker->loop, &p->release);
}

void cv_listener_port_close(struct cv_listener_port *p)
{
    /* Clients in the backlog have connected as far as they know: they get their answer. */
    port_stop(p, true);
}

void cv_listener_port_leave(struct cv_listener_port *p)
{
    port_stop(p, false);
}
