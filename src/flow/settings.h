/* What the node's config says about sessions, in the form in which workers use it: immutable,
 * reference-counted, replaced as a whole by a reload. Durations are milliseconds, 0 = no limit
 * where the config allows that. */
#pragma once

#include "common/addr.h"

/* What is done against guessing of passwords (backoff.h). */
struct cv_login_settings {
    uint32_t failures;        /* of one user from one source; 0: not counted */
    uint32_t source_failures; /* of one source; 0: not counted */
    int64_t window_ms;
    int64_t backoff_ms, backoff_max_ms; /* the first pause; each further one is twice as long */
};

struct cv_settings {
    uint32_t _refs;
    char node_id[129];
    uint64_t max_sessions;
    uint64_t max_tls_handshakes;                          /* of clients, at a time */
    uint64_t connections_per_s, source_connections_per_s; /* 0 = no limit */
    bool recheck_targets; /* end sessions whose target a new policy blocks */
    struct cv_login_settings login;
    int64_t handshake_timeout_ms;
    int64_t connect_timeout_ms;
    int64_t idle_timeout_ms; /* 0 = none */
    int64_t half_close_timeout_ms;
    int64_t udp_timeout_ms; /* of a way out of a UDP association without a datagram */
    int64_t drain_grace_ms;
    enum cv_family direct_prefer;
    struct cv_prefix *direct_allow; /* owned */
    size_t n_direct_allow;
    char **dns_servers; /* owned */
    size_t n_dns_servers;
    int64_t dns_timeout_ms;
    int dns_attempts;
    size_t dns_cache_size;
    int64_t chain_attempt_timeout_ms, chain_total_timeout_ms;
    int64_t chain_backoff_ms, chain_backoff_max_ms;
    int64_t stats_interval_ms; /* 0 = no stats lines */
};

/* Cleared, one reference, defaults filled in. */
struct cv_settings *cv_settings_new(void);
struct cv_settings *cv_settings_ref(struct cv_settings *s);
void cv_settings_unref(struct cv_settings *s);
