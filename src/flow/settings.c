#include "flow/settings.h"

#include "common/alloc.h"

#include "common/poison.h"

struct cv_settings *cv_settings_new(void)
{
    struct cv_settings *s = cv_zalloc(sizeof(*s));
    s->_refs = 1;
    s->max_sessions = 20000;
    s->max_tls_handshakes = 1000;
    s->login = (struct cv_login_settings){
        .failures = 10,
        .source_failures = 100,
        .window_ms = 60 * 1000,
        .backoff_ms = 1000,
        .backoff_max_ms = 300 * 1000,
    };
    s->handshake_timeout_ms = 10 * 1000;
    s->connect_timeout_ms = 10 * 1000;
    s->idle_timeout_ms = 0;
    s->half_close_timeout_ms = 60 * 1000;
    s->udp_timeout_ms = 300 * 1000;
    s->drain_grace_ms = 30 * 1000;
    s->direct_prefer = CV_AF_IP4;
    s->dns_timeout_ms = 2 * 1000;
    s->dns_attempts = 2;
    s->dns_cache_size = 4096;
    s->chain_attempt_timeout_ms = 10 * 1000;
    s->chain_total_timeout_ms = 30 * 1000;
    s->chain_backoff_ms = 5 * 1000;
    s->chain_backoff_max_ms = 2 * 60 * 1000;
    s->stats_interval_ms = 60 * 1000;
    return s;
}

struct cv_settings *cv_settings_ref(struct cv_settings *s)
{
    __atomic_fetch_add(&s->_refs, 1, __ATOMIC_RELAXED);
    return s;
}

void cv_settings_unref(struct cv_settings *s)
{
    if (s == NULL || __atomic_fetch_sub(&s->_refs, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    for (size_t i = 0; i < s->n_dns_servers; i++)
        cv_free(s->dns_servers[i]);
    cv_free(s->dns_servers);
    cv_free(s->direct_allow);
    cv_free(s);
}
