#include "egress/exits.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "egress/exits_priv.h"

#include "common/poison.h"

int cv_exits_new(struct cv_loop *loop, struct cv_netstack *ns, struct cv_exits **ret_exits)
{
    struct cv_exits *x = cv_try_zalloc(sizeof(*x));
    if (x == NULL)
        return -ENOMEM;
    x->loop = loop;
    x->ns = ns;
    cv_list_init(&x->exits);
    *ret_exits = x;
    return 0;
}

void cv_exits_free(struct cv_exits *x)
{
    if (x == NULL)
        return;
    while (!cv_list_is_empty(&x->exits))
        cv_exit_remove(CV_CONTAINER_OF(x->exits.next, struct cv_exit, node));
    cv_free(x);
}

struct cv_exit *cv_exit_find(const struct cv_exits *x, const char *name)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &x->exits) {
        struct cv_exit *e = CV_CONTAINER_OF(it, struct cv_exit, node);
        if (strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

int cv_exit_add(struct cv_exits *x, const char *name, struct cv_pktif *pi,
                struct cv_netif_stats *stats, struct cv_exit **ret_exit)
{
    static const struct cv_net_addresses none;
    size_t len = strlen(name);
    if (cv_exit_find(x, name) != NULL)
        return CV_E_EXISTS;
    struct cv_exit *e = cv_try_zalloc(sizeof(*e) + len + 1);
    if (e == NULL)
        return -ENOMEM;
    memcpy(e->name, name, len + 1);
    e->exits = x;
    cv_list_init(&e->dials);
    cv_list_init(&e->flows);
    int ret = cv_netif_open(x->ns, pi, &none, stats, &e->nif);
    if (ret == 0 && (ret = cv_resolver_new(e->nif, &e->resolver)) != 0)
        cv_netif_close(e->nif);
    if (ret != 0) {
        cv_free(e);
        return ret;
    }
    cv_list_add_tail(&x->exits, &e->node);
    *ret_exit = e;
    return 0;
}

void cv_exit_update(struct cv_exit *e, enum cv_exit_state state,
                    const struct cv_net_addresses *addresses, const struct cv_endpoint *dns,
                    size_t n_dns)
{
    e->state = state;
    if (state == CV_EXIT_UP) {
        cv_netif_set_addresses(e->nif, addresses);
        cv_resolver_set_servers(e->resolver, dns, n_dns);
    }
    cv_exit_dials_look(e);
}

void cv_exit_remove(struct cv_exit *e)
{
    if (e == NULL)
        return;
    cv_list_del(&e->node);
    e->state = CV_EXIT_DOWN;
    cv_exit_dials_refuse(e);
    cv_exit_flows_end(e);
    cv_resolver_free(e->resolver);
    cv_netif_close(e->nif);
    cv_free(e);
}

struct cv_netif *cv_exit_netif(struct cv_exit *e)
{
    return e->nif;
}

struct cv_resolver *cv_exit_resolver(struct cv_exit *e)
{
    return e->resolver;
}

int cv_exit_guard(const struct cv_ip *ip)
{
    switch (cv_ip_class(ip)) {
    case CV_IP_UNSPECIFIED:
    case CV_IP_LOOPBACK:
    case CV_IP_MULTICAST:
        return CV_E_GUARD;
    default:
        return 0;
    }
}
