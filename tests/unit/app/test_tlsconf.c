#include "app/tlsconf.h"

#include "common/alloc.h"
#include "tap.h"

#define W(s) ((char *)(uintptr_t)(s))

static void test_plain(void)
{
    struct cv_registry *r = cv_registry_new();
    static const struct {
        int protocol;
        enum cv_listener_protocol want;
        const char *name;
    } rows[] = {{CV_CONFIG_SOCKS5, CV_LISTENER_SOCKS5, "socks5"},
                {CV_CONFIG_HTTP, CV_LISTENER_HTTP, "http"},
                {CV_CONFIG_MIXED, CV_LISTENER_MIXED, "mixed"},
                {CV_CONFIG_SNI, CV_LISTENER_SNI, "sni"}};
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_config_listener l = {.name = W(rows[i].name),
                                       .protocol = rows[i].protocol,
                                       .listen = W("127.0.0.1:1"),
                                       .no_auth_user = W(i == 0 ? "guest" : ""),
                                       .udp_advertise = W(""),
                                       .identity = W(""),

                                       .unix_mode = 0600};
        struct cv_listener_conf *c = NULL;
        char *text = NULL;
        T_INT_EQ(cv_tlsconf_listener(&l, r, NULL, &text, &c), 0);
        T_INT_EQ(c->protocol, rows[i].want);
        T_STR_EQ(c->name, rows[i].name);
        T_STR_EQ(c->stats->protocol, rows[i].name);
        T_STR_EQ(c->listen, "127.0.0.1:1");
        T_STR_EQ(c->no_auth_user, i == 0 ? "guest" : NULL);
        T_INT_EQ(c->unix_mode, 0600);
        T_OK(c->tls == NULL && text == NULL);
        cv_listener_conf_unref(c);
    }
    cv_registry_free(r);
}

static void test_sniff_and_sni(void)
{
    struct cv_registry *r = cv_registry_new();
    char *origins[] = {W("a.test"), W("b.test")};
    struct cv_config_listener l = {.name = W("gw"),
                                   .protocol = CV_CONFIG_SNI,
                                   .listen = W("127.0.0.1:1"),
                                   .no_auth_user = W(""),
                                   .udp_advertise = W(""),
                                   .identity = W("gate"),
                                   .origin_port = 443,
                                   .sniff = {.mode = 2, .timeout = 250, .max_bytes = 4096}};
    struct cv_listener_conf *c = NULL;
    char *text = NULL;
    l.origins.v = origins;
    l.origins.n = 2;
    T_INT_EQ(cv_tlsconf_listener(&l, r, NULL, &text, &c), 0);
    T_STR_EQ(c->identity, "gate");
    T_INT_EQ(c->n_origins, 2);
    T_STR_EQ(c->origins[0], "a.test");
    T_STR_EQ(c->origins[1], "b.test");
    T_INT_EQ(c->origin_port, 443);
    T_INT_EQ(c->sniff.mode, CV_SNIFF_ROUTE);
    T_INT_EQ(c->sniff.timeout_ms, 250);
    T_INT_EQ(c->sniff.max_bytes, 4096);
    cv_listener_conf_unref(c);
    cv_registry_free(r);
}

static void test_missing(void)
{
    struct cv_registry *r = cv_registry_new();
    struct cv_config_tls tls = {.cert = W("/nonexistent/a.pem"),
                                .key = W("/nonexistent/a.key"),
                                .client_ca = W(""),
                                .client_crl = W("")};
    struct cv_config_listener l = {.name = W("x"),
                                   .listen = W("127.0.0.1:1"),
                                   .no_auth_user = W(""),
                                   .identity = W(""),
                                   .udp_advertise = W(""),
                                   .tls = &tls};
    struct cv_listener_conf *c = NULL;
    char *text = NULL;
    T_OK(cv_tlsconf_listener(&l, r, NULL, &text, &c) < 0);
    T_OK(c == NULL);
    T_OK(text != NULL && strstr(text, "/nonexistent/a.pem") != NULL);
    cv_free(text);
    cv_registry_free(r);
}

int main(void)
{
    T_RUN(test_plain);
    T_RUN(test_sniff_and_sni);
    T_RUN(test_missing);
    return t_done();
}
