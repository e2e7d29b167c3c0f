#include "app/tlsconf.h"

#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "net/tls.h"

#include "common/poison.h"

const char *cv_tlsconf_protocol_name(int protocol)
{
    switch (protocol) {
    case CV_CONFIG_SOCKS5:
        return "socks5";
    case CV_CONFIG_HTTP:
        return "http";
    case CV_CONFIG_SNI:
        return "sni";
    default:
        return "mixed";
    }
}

static enum cv_listener_protocol protocol_of(int protocol)
{
    switch (protocol) {
    case CV_CONFIG_SOCKS5:
        return CV_LISTENER_SOCKS5;
    case CV_CONFIG_HTTP:
        return CV_LISTENER_HTTP;
    case CV_CONFIG_SNI:
        return CV_LISTENER_SNI;
    default:
        return CV_LISTENER_MIXED;
    }
}

static const char *or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

/* HTTP/1.1 is all that this node speaks by a name of ALPN. Where SOCKS5 may come as well, which has
 * none, other offers are passed over. */
static struct cv_tls_server_opts opts_of(const struct cv_config_listener *l,
                                         struct cv_tls_tickets *tickets)
{
    return (struct cv_tls_server_opts){
        .only_tls13 = l->tls->min_version == 1,
        .alpn = l->protocol != CV_CONFIG_SOCKS5 ? "http/1.1" : NULL,
        .alpn_strict = l->protocol == CV_CONFIG_HTTP,
        .client_ca = or_null(l->tls->client_ca),
        .client_crl = or_null(l->tls->client_crl),
        .client_required = l->tls->client_auth == 0,
        .user_from = (enum cv_tls_user_from)l->tls->user_from,
        .tickets = tickets,
        .scope = l->name,
    };
}

int cv_tlsconf_load(const struct cv_config_listener *l, struct cv_tls_tickets *tickets,
                    char **reterr_text, struct cv_tls_server_ctx **ret_ctx)
{
    *reterr_text = NULL;
    if (l->tls == NULL) {
        *ret_ctx = NULL;
        return 0;
    }
    size_t n = 1 + l->tls->certificates.n;
    struct cv_tls_cert *certs = cv_zalloc(n * sizeof(*certs));
    certs[0] = (struct cv_tls_cert){.cert_file = l->tls->cert, .key_file = l->tls->key};
    for (size_t i = 1; i < n; i++) {
        const struct cv_config_certificate *c = &l->tls->certificates.v[i - 1];
        certs[i] = (struct cv_tls_cert){
            .cert_file = c->cert,
            .key_file = c->key,
            .server_names = (const char *const *)c->server_names.v,
            .n_server_names = c->server_names.n,
        };
    }
    struct cv_tls_server_opts opts = opts_of(l, tickets);
    int ret = cv_tls_server_ctx_new_with(certs, n, &opts, reterr_text, ret_ctx);
    cv_free(certs);
    return ret;
}

static void set_proxy_protocol(struct cv_listener_conf *c, const struct cv_config_proxy_protocol *p)
{
    c->proxy_protocol = p != NULL;
    if (p == NULL || p->from.n == 0)
        return;
    c->proxy_from = cv_alloc(p->from.n * sizeof(*c->proxy_from));
    memcpy(c->proxy_from, p->from.v, p->from.n * sizeof(*c->proxy_from));
    c->n_proxy_from = p->from.n;
}

static void set_sniff(struct cv_listener_conf *c, const struct cv_config_listener *l)
{
    c->sniff = (struct cv_sniff_conf){
        .mode = (enum cv_sniff_mode)l->sniff.mode,
        .timeout_ms = (uint32_t)l->sniff.timeout,
        .max_bytes = (uint32_t)l->sniff.max_bytes,
    };
    c->identity = l->identity[0] != '\0' ? cv_strdup(l->identity) : NULL;
    c->origin_port = (uint16_t)l->origin_port;
    if (l->origins.n == 0)
        return;
    c->origins = cv_zalloc(l->origins.n * sizeof(*c->origins));
    for (size_t i = 0; i < l->origins.n; i++)
        c->origins[c->n_origins++] = cv_strdup(l->origins.v[i]);
}

int cv_tlsconf_listener(const struct cv_config_listener *l, struct cv_registry *registry,
                        struct cv_tls_tickets *tickets, char **reterr_text,
                        struct cv_listener_conf **ret_conf)
{
    struct cv_tls_server_ctx *tls = NULL;
    int ret = cv_tlsconf_load(l, tickets, reterr_text, &tls);
    if (ret != 0)
        return ret;
    struct cv_listener_conf *c = cv_listener_conf_new();
    snprintf(c->name, sizeof(c->name), "%s", l->name);
    c->protocol = protocol_of(l->protocol);
    c->listen = cv_strdup(l->listen);
    c->no_auth_user = l->no_auth_user[0] != '\0' ? cv_strdup(l->no_auth_user) : NULL;
    c->tls = tls;
    c->tls_only = tls != NULL && l->tls->client_ca[0] != '\0' && l->tls->client_auth == 0;
    set_proxy_protocol(c, l->proxy_protocol);
    c->unix_mode = (uint32_t)l->unix_mode;
    c->udp = l->udp == 0;
    /* The config has checked it; "" leaves no family. */
    (void)cv_ip_parse(l->udp_advertise, strlen(l->udp_advertise), &c->udp_advertise);
    set_sniff(c, l);
    c->stats = cv_registry_listener(registry, l->name, cv_tlsconf_protocol_name(l->protocol));
    *ret_conf = c;
    return 0;
}
