#include "app/tunnelfetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "netstack/resolver.h"

#include "common/poison.h"

#define HEAD_MAX 64 /* of the answer: as much as the status line's beginning */

struct cv_tunnelfetch {
    struct cv_netstack *ns; /* owned */
    struct cv_netif *nif;   /* owned */
    struct cv_netif_stats stats;
    struct cv_resolver *resolver; /* owned; NULL: the URL has an address */
    struct cv_resolve question;
    struct cv_net_connect connect;
    struct cv_stream *stream; /* owned; NULL until connected */
    struct cv_tunnelfetch_url url;
    cv_tunnelfetch_cb cb;
    cv_tunnelfetch_dns_cb on_dns;
    void *arg;
    char request[CV_TUNNELFETCH_PATH_MAX + 256];
    size_t len, sent;
    char head[HEAD_MAX + 1];
    size_t head_len;
    uint64_t bytes;
    bool done;
};

int cv_tunnelfetch_parse(const char *url, struct cv_tunnelfetch_url *ret_url)
{
    if (strncmp(url, "http://", 7) != 0)
        return CV_E_UNSUPPORTED;
    const char *host = url + 7, *path = host + strcspn(host, "/?#");
    size_t n = strlen(path);
    if (n + 2 > sizeof(ret_url->path) || path[0] == '?' || path[0] == '#')
        return CV_E_PARSE;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] <= ' ' || path[i] == 0x7f)
            return CV_E_PARSE;
    if (cv_target_parse(host, (size_t)(path - host), 80, &ret_url->target) != 0)
        return CV_E_PARSE;
    snprintf(ret_url->path, sizeof(ret_url->path), "%s", n > 0 ? path : "/");
    return 0;
}

static void finish(struct cv_tunnelfetch *f, int err)
{
    int status = 0;
    if (f->done)
        return;
    f->done = true;
    /* "HTTP/1.1 200" (RFC 9112 section 4) */
    const char *h = f->head;
    if (err == 0 && f->head_len >= 12 && strncmp(h, "HTTP/1.", 7) == 0 && h[8] == ' ')
        for (int i = 9; i < 12; i++)
            status = h[i] >= '0' && h[i] <= '9' ? status * 10 + h[i] - '0' : 0;
    f->cb(f->arg, err == 0 && status < 100 ? CV_E_PROTO : err, status, f->bytes);
}

static int send_more(struct cv_tunnelfetch *f)
{
    while (f->sent < f->len) {
        size_t n = 0;
        int ret = cv_stream_send(f->stream, f->request + f->sent, f->len - f->sent, &n);
        if (ret != 0)
            return ret == -EAGAIN ? 0 : ret;
        f->sent += n;
    }
    return 0;
}

static void on_event(void *arg, struct cv_stream *s, unsigned events)
{
    struct cv_tunnelfetch *f = arg;
    char buf[8192];
    int ret = f->done ? -EAGAIN : send_more(f);
    while (ret == 0) {
        size_t n = 0;
        ret = cv_stream_recv(s, buf, sizeof(buf), &n);
        if (ret == 0 && n == 0) {
            finish(f, 0);
            return;
        }
        if (ret != 0)
            break;
        size_t k = CV_MIN(n, HEAD_MAX - f->head_len);
        memcpy(f->head + f->head_len, buf, k);
        f->head_len += k;
        f->bytes += n;
    }
    if (ret != -EAGAIN)
        finish(f, ret);
}

static void on_connect(struct cv_net_connect *c, int err, struct cv_stream *stream)
{
    struct cv_tunnelfetch *f = CV_CONTAINER_OF(c, struct cv_tunnelfetch, connect);
    if (err != 0) {
        finish(f, err);
        return;
    }
    f->stream = stream;
    cv_stream_set_cb(stream, on_event, f);
    on_event(f, stream, CV_STREAM_WRITE);
}

static void dial(struct cv_tunnelfetch *f, const struct cv_ip *ip)
{
    struct cv_endpoint to = {.ip = *ip, .port = f->url.target.port};
    cv_netif_connect(f->nif, &f->connect, &to);
}

static void on_resolved(struct cv_resolve *q, int err, const struct cv_ip *ips, size_t n)
{
    struct cv_tunnelfetch *f = CV_CONTAINER_OF(q, struct cv_tunnelfetch, question);
    if (err != 0) {
        finish(f, err);
        return;
    }
    f->on_dns(f->arg, &ips[0]);
    dial(f, &ips[0]);
}

static int resolve(struct cv_tunnelfetch *f, const struct cv_ip *dns, size_t n_dns)
{
    struct cv_endpoint servers[CV_RESOLVER_SERVERS_MAX];
    size_t n = CV_MIN(n_dns, (size_t)CV_RESOLVER_SERVERS_MAX);
    for (size_t i = 0; i < n; i++)
        servers[i] = (struct cv_endpoint){.ip = dns[i], .port = 53};
    int ret = cv_resolver_new(f->nif, &f->resolver);
    if (ret != 0)
        return ret;
    cv_resolver_set_servers(f->resolver, servers, n);
    f->question.cb = on_resolved;
    cv_resolve_start(&f->question, f->resolver, f->url.target.host.name,
                     f->nif->addresses.ip4.family != CV_AF_NONE ? CV_AF_IP4 : CV_AF_IP6);
    return 0;
}

int cv_tunnelfetch_start(struct cv_loop *loop, struct cv_pktif *pi,
                         const struct cv_net_addresses *own, const struct cv_tunnelfetch_url *url,
                         const struct cv_ip *dns, size_t n_dns, cv_tunnelfetch_dns_cb on_dns,
                         cv_tunnelfetch_cb cb, void *arg, struct cv_tunnelfetch **ret_fetch)
{
    struct cv_tunnelfetch *f = cv_try_zalloc(sizeof(*f));
    char host[CV_TARGET_STRLEN];
    if (f == NULL)
        return -ENOMEM;
    f->url = *url;
    f->cb = cb;
    f->on_dns = on_dns;
    f->arg = arg;
    f->connect.cb = on_connect;
    int n =
        snprintf(f->request, sizeof(f->request),
                 "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: culvert\r\nConnection: close\r\n\r\n",
                 url->path, cv_target_format(&url->target, host));
    f->len = (size_t)n;
    int ret = cv_netstack_user_new(loop, &f->ns);
    if (ret == 0)
        ret = cv_netif_open(f->ns, pi, own, &f->stats, &f->nif);
    if (ret != 0) {
        cv_tunnelfetch_free(f);
        return ret;
    }
    if (cv_host_is_ip(&url->target.host))
        dial(f, &url->target.host.ip);
    else
        ret = resolve(f, dns, n_dns);
    if (ret != 0) {
        cv_tunnelfetch_free(f);
        return ret;
    }
    *ret_fetch = f;
    return 0;
}

void cv_tunnelfetch_free(struct cv_tunnelfetch *f)
{
    if (f == NULL)
        return;
    if (f->nif != NULL)
        cv_netif_cancel(f->nif, &f->connect);
    cv_stream_close(f->stream, true);
    cv_resolver_free(f->resolver);
    cv_netif_close(f->nif);
    cv_netstack_free(f->ns);
    cv_free(f);
}
