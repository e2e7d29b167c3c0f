#include "flow/settings.h"

#include "common/alloc.h"
#include "tap.h"

static void test_defaults(void)
{
    struct cv_settings *s = cv_settings_new();
    T_INT_EQ(s->max_sessions, 20000);
    T_INT_EQ(s->handshake_timeout_ms, 10000);
    T_INT_EQ(s->connect_timeout_ms, 10000);
    T_INT_EQ(s->idle_timeout_ms, 0);
    T_INT_EQ(s->half_close_timeout_ms, 60000);
    T_INT_EQ(s->drain_grace_ms, 30000);
    T_INT_EQ(s->direct_prefer, CV_AF_IP4);
    T_INT_EQ(s->n_direct_allow, 0);
    T_INT_EQ(s->n_dns_servers, 0);
    T_INT_EQ(s->dns_cache_size, 4096);
    T_INT_EQ(s->stats_interval_ms, 60000);
    T_INT_EQ(s->chain_attempt_timeout_ms, 10000);
    T_INT_EQ(s->chain_total_timeout_ms, 30000);
    T_INT_EQ(s->chain_backoff_ms, 5000);
    T_INT_EQ(s->chain_backoff_max_ms, 120000);
    cv_settings_unref(s);
}

/* Everything that it owns goes with the last reference (the leak checker watches). */
static void test_references(void)
{
    struct cv_settings *s = cv_settings_new();
    s->direct_allow = cv_zalloc(2 * sizeof(*s->direct_allow));
    s->n_direct_allow = 2;
    s->dns_servers = cv_zalloc(2 * sizeof(*s->dns_servers));
    s->dns_servers[0] = cv_strdup("192.0.2.1");
    s->dns_servers[1] = cv_strdup("192.0.2.2");
    s->n_dns_servers = 2;
    T_OK(cv_settings_ref(s) == s);
    cv_settings_unref(s);
    T_STR_EQ(s->dns_servers[1], "192.0.2.2");
    cv_settings_unref(s);
    cv_settings_unref(NULL);
}

int main(void)
{
    T_RUN(test_defaults);
    T_RUN(test_references);
    return t_done();
}
