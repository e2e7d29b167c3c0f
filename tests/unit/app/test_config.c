#include "app/config.h"

#include <stdlib.h>

#include "common/log.h"
#include "tap.h"

#define HEAD "node_id: n\nlisteners:\n  - { name: main, listen: \"127.0.0.1:1080\" }\n"

static struct cv_config *parse(const char *text, struct cv_config_error *e)
{
    struct cv_config *c = NULL;
    int ret = cv_config_parse("/etc/culvert/culvert.yaml", text, strlen(text), e, &c);
    T_OK((ret == 0) == (c != NULL));
    return c;
}

static void test_defaults(void)
{
    struct cv_config_error e;
    struct cv_config *c = parse(HEAD, &e);
    T_REQUIRE(c != NULL);
    T_STR_EQ(c->node_id, "n");
    T_STR_EQ(c->dir, "/etc/culvert");
    T_INT_EQ(c->workers, 0);
    T_STR_EQ(c->snapshot.file, "/etc/culvert/snapshot.json");
    T_STR_EQ(c->snapshot.cache, "/etc/culvert/data/snapshot.cache.json");
    T_INT_EQ(c->listeners.n, 1);
    T_STR_EQ(c->listeners.v[0].name, "main");
    T_INT_EQ(c->listeners.v[0].protocol, CV_CONFIG_MIXED);
    T_STR_EQ(c->listeners.v[0].listen, "127.0.0.1:1080");
    T_OK(c->listeners.v[0].tls == NULL);
    T_STR_EQ(c->listeners.v[0].no_auth_user, "");
    T_INT_EQ(c->listeners.v[0].unix_mode, 0660);
    T_STR_EQ(c->admin.listen, "127.0.0.1:9090");
    T_STR_EQ(c->admin.token, "");
    T_STR_EQ(c->access_log.file, "-");
    T_INT_EQ(c->access_log.stats_interval, 60000);
    T_INT_EQ(c->access_log.retention_days, 7);
    T_INT_EQ(c->log.level, CV_LOG_INFO);
    T_INT_EQ(c->log.format, CV_LOG_TEXT);
    T_INT_EQ(c->limits.max_sessions, 20000);
    T_INT_EQ(c->limits.connections_per_second, 0);
    T_INT_EQ(c->limits.source_connections_per_second, 0);
    T_INT_EQ(c->recheck, 0);
    T_INT_EQ(c->login.failures, 10);
    T_INT_EQ(c->login.source_failures, 100);
    T_INT_EQ(c->login.window, 60000);
    T_INT_EQ(c->login.backoff, 1000);
    T_INT_EQ(c->login.backoff_max, 300000);
    T_INT_EQ(c->limits.handshake_timeout, 10000);
    T_INT_EQ(c->limits.connect_timeout, 10000);
    T_INT_EQ(c->limits.idle_timeout, 0);
    T_INT_EQ(c->limits.half_close_timeout, 60000);
    T_INT_EQ(c->limits.drain_grace, 30000);
    T_INT_EQ(c->egresses.n, 0);
    T_OK(cv_config_egress(c, "px") == NULL);
    T_INT_EQ(c->direct.allow.n, 0);
    T_INT_EQ(c->direct.prefer, 0);
    T_INT_EQ(c->dns.servers.n, 0);
    T_INT_EQ(c->dns.timeout, 2000);
    T_INT_EQ(c->dns.attempts, 2);
    T_INT_EQ(c->dns.cache_size, 4096);
    unsigned workers = cv_config_workers(c);
    T_OK(workers >= 1 && workers <= 4);
    cv_config_free(c);
}

static void test_egresses(void)
{
    static const struct {
        const char *text, *fault;
    } bad[] = {
        {"egresses: [{ id: a }, { id: b }, { id: a }]\n",
         "egresses[2].id: is the id of egresses[0] already, ids must differ"},
        {"egresses: [{ id: a, proxy_protocol: v3 }]\n",
         "egresses[0].proxy_protocol: 'v3' is not accepted, wanted off, v1 or v2"},
        {"egresses: [{ proxy_protocol: v1 }]\n", "egresses[0]: 'id' is missing"},
        {"egresses: [{ id: '' }]\n",
         "egresses[0].id: '' is not accepted, wanted a text of at most 1024 bytes"},
    };
    struct cv_config_error e;
    char line[600];
    struct cv_config *c = parse(HEAD "egresses:\n"
                                     "  - { id: px, proxy_protocol: v2 }\n"
                                     "  - id: \"any text / at all\"\n"
                                     "  - { id: q, proxy_protocol: v1 }\n",
                                &e);
    T_REQUIRE(c != NULL);
    T_INT_EQ(c->egresses.n, 3);
    T_INT_EQ(cv_config_egress(c, "px")->proxy_protocol, 2);
    T_INT_EQ(cv_config_egress(c, "any text / at all")->proxy_protocol, 0);
    T_INT_EQ(cv_config_egress(c, "q")->proxy_protocol, 1);
    T_OK(cv_config_egress(c, "p") == NULL);
    cv_config_free(c);
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad); i++) {
        char text[300];
        snprintf(text, sizeof(text), "%s%s", HEAD, bad[i].text);
        T_OK(parse(text, &e) == NULL);
        cv_config_error_format(&e, "c", line, sizeof(line));
        if (!T_OK(strstr(line, bad[i].fault) != NULL))
            printf("#   %s\n", line);
    }
}

static void test_everything(void)
{
    static const char text[] =
        "node_id: edge-a.example:1\n"
        "workers: 3\n"
        "snapshot: { file: /srv/policy.json, cache: \"\" }\n"
        "listeners:\n"
        "  - name: plain\n"
        "    protocol: socks5\n"
        "    listen: ':1080'\n"
        "    no_auth_user: guest\n"
        "  - name: secure\n"
        "    protocol: http\n"
        "    listen: \"[::1]:8443\"\n"
        "    tls:\n"
        "      cert: tls/a.pem\n"
        "      key: /abs/a.key\n"
        "      certificates:\n"
        "        - { server_names: [b.example, \"*.c.example\"], cert: b.pem, key: b.key }\n"
        "  - { name: local, listen: \"unix:run/culvert.sock\", unix_mode: 0600 }\n"
        "  - { name: passed, listen: \"fd:web\" }\n"
        "  - { name: any1, listen: \"127.0.0.1:0\" }\n"
        "  - { name: any2, listen: \"127.0.0.1:0\" }\n"
        "admin: { listen: \"0.0.0.0:9090\", token: abc }\n"
        "access_log: { file: log/access, stats_interval: 1m30s, retention_days: 0 }\n"
        "log: { level: debug, format: json }\n"
        "limits: { max_sessions: 5, handshake_timeout: 500ms, connect_timeout: 2s,\n"
        "          idle_timeout: 1h, half_close_timeout: 5s, drain_grace: 0,\n"
        "          connections_per_second: 7, source_connections_per_second: 6 }\n"
        "recheck: true\n"
        "login: { failures: 1, source_failures: 2, window: 3s, backoff: 4s, backoff_max: 5s }\n"
        "direct: { allow: [10.1.2.3/8, \"::1\"], prefer: ipv6 }\n"
        "dns: { servers: [1.1.1.1, \"1.1.1.1:5353\", \"[::1]:53\", \"::1\"], timeout: 1s, "
        "attempts: 1, cache_size: 0 }\n"
        "chain: { attempt_timeout: 1s, total_timeout: 4s, backoff: 300ms, backoff_max: 1m }\n"
        "egresses:\n"
        "  - { id: fo, health: { target: \"[2001:db8::1]:443\", interval: 1m } }\n"
        "  - { id: \"b c\" }\n";
    struct cv_config_error e;
    char buf[CV_PREFIX_STRLEN];
    struct cv_config *c = parse(text, &e);
    if (c == NULL) {
        T_FAIL("%u:%u %s: %s", e.line, e.column, e.path, e.text);
        return;
    }
    T_STR_EQ(c->snapshot.file, "/srv/policy.json");
    T_STR_EQ(c->snapshot.cache, "");
    T_INT_EQ(cv_config_workers(c), 3);
    T_INT_EQ(c->listeners.n, 6);
    T_INT_EQ(c->listeners.v[0].protocol, CV_CONFIG_SOCKS5);
    T_STR_EQ(c->listeners.v[0].listen, "[::]:1080");
    T_STR_EQ(c->listeners.v[0].no_auth_user, "guest");
    T_INT_EQ(c->listeners.v[1].protocol, CV_CONFIG_HTTP);
    T_REQUIRE(c->listeners.v[1].tls != NULL);
    T_STR_EQ(c->listeners.v[1].tls->cert, "/etc/culvert/tls/a.pem");
    T_STR_EQ(c->listeners.v[1].tls->key, "/abs/a.key");
    T_INT_EQ(c->listeners.v[1].tls->certificates.n, 1);
    T_INT_EQ(c->listeners.v[1].tls->certificates.v[0].server_names.n, 2);
    T_STR_EQ(c->listeners.v[1].tls->certificates.v[0].server_names.v[1], "*.c.example");
    T_STR_EQ(c->listeners.v[1].tls->certificates.v[0].cert, "/etc/culvert/b.pem");
    T_STR_EQ(c->listeners.v[2].listen, "unix:/etc/culvert/run/culvert.sock");
    T_INT_EQ(c->listeners.v[2].unix_mode, 0600);
    T_STR_EQ(c->listeners.v[3].listen, "fd:web");
    T_STR_EQ(c->access_log.file, "/etc/culvert/log/access");
    T_INT_EQ(c->access_log.stats_interval, 90000);
    T_INT_EQ(c->log.level, CV_LOG_DEBUG);
    T_INT_EQ(c->log.format, CV_LOG_JSON);

    struct cv_settings *s = cv_config_settings(c);
    T_INT_EQ(s->connections_per_s, 7);
    T_INT_EQ(s->source_connections_per_s, 6);
    T_OK(s->recheck_targets);
    T_INT_EQ(s->login.failures, 1);
    T_INT_EQ(s->login.source_failures, 2);
    T_INT_EQ(s->login.window_ms, 3000);
    T_INT_EQ(s->login.backoff_ms, 4000);
    T_INT_EQ(s->login.backoff_max_ms, 5000);
    T_STR_EQ(s->node_id, "edge-a.example:1");
    T_INT_EQ(s->max_sessions, 5);
    T_INT_EQ(s->handshake_timeout_ms, 500);
    T_INT_EQ(s->connect_timeout_ms, 2000);
    T_INT_EQ(s->idle_timeout_ms, 3600000);
    T_INT_EQ(s->half_close_timeout_ms, 5000);
    T_INT_EQ(s->drain_grace_ms, 0);
    T_INT_EQ(s->direct_prefer, CV_AF_IP6);
    T_INT_EQ(s->n_direct_allow, 2);
    T_STR_EQ(cv_prefix_format(&s->direct_allow[0], buf), "10.0.0.0/8");
    T_INT_EQ(s->n_dns_servers, 4);
    T_STR_EQ(s->dns_servers[1], "1.1.1.1:5353");
    T_INT_EQ(s->dns_timeout_ms, 1000);
    T_INT_EQ(s->dns_attempts, 1);
    T_INT_EQ(s->dns_cache_size, 0);
    T_INT_EQ(s->chain_attempt_timeout_ms, 1000);
    T_INT_EQ(s->chain_total_timeout_ms, 4000);
    T_INT_EQ(s->chain_backoff_ms, 300);
    T_INT_EQ(s->chain_backoff_max_ms, 60000);
    T_INT_EQ(c->egresses.n, 2);
    T_STR_EQ(c->egresses.v[0].id, "fo");
    T_REQUIRE(c->egresses.v[0].health != NULL);
    T_STR_EQ(c->egresses.v[0].health->target, "[2001:db8::1]:443");
    T_INT_EQ(c->egresses.v[0].health->interval, 60000);
    T_INT_EQ(c->egresses.v[0].health->timeout, 5000);
    T_OK(c->egresses.v[1].health == NULL);
    T_INT_EQ(s->stats_interval_ms, 90000);
    cv_config_free(c);
    cv_settings_unref(s); /* independent of the config */
}

/* Values that are written as null, or sections with everything in comments, are the defaults. */
static void test_nulls(void)
{
    struct cv_config_error e;
    struct cv_config *c = parse(HEAD "limits:\nlog: ~\ndirect: { allow: , prefer: null }\n"
                                     "workers:\ndns: { servers: ~ }\nadmin: { listen: \"\" }\n",
                                &e);
    if (c == NULL) {
        T_FAIL("%u:%u %s: %s", e.line, e.column, e.path, e.text);
        return;
    }
    T_INT_EQ(c->limits.max_sessions, 20000);
    T_INT_EQ(c->direct.allow.n, 0);
    T_STR_EQ(c->admin.listen, "");
    cv_config_free(c);
}

/* Each bad config gives exactly this sentence. */
static const struct {
    const char *text;
    const char *want;
} bad_rows[] = {
    {"", "c.yaml: the file is empty, 'node_id' and 'listeners' are required"},
    {"# nothing\n", "c.yaml: the file is empty, 'node_id' and 'listeners' are required"},
    {"- a\n", "c.yaml:1:1: the file must be a list of 'key: value' lines"},
    {"node_id: n\n", "c.yaml:1:1: 'listeners' is missing"},
    {"node_id:\nlisteners: []\n",
     "c.yaml:1:9: node_id: has no value, wanted 1 to 128 letters, digits and . _ - :"},
    {"node_id: a b\nlisteners: []\n",
     "c.yaml:1:10: node_id: 'a b' is not accepted, wanted 1 to 128 letters, digits and . _ - :"},
    {"node_id: n\nlisteners: []\n", "c.yaml:2:12: listeners: needs at least one entry"},
    {"node_id: n\nlisteners: {}\n",
     "c.yaml:2:12: listeners: is a section, wanted a list of sections (- key: value)"},
    {"node_id: n\nlisteners: [a]\n", "c.yaml:2:13: listeners[0]: must be a section (key: value)"},
    {"node_id: n\nlisteners:\n  - { listen: \":1\" }\n",
     "c.yaml:3:5: listeners[0]: 'name' is missing"},
    {"node_id: n\nlisteners:\n  - { name: a }\n", "c.yaml:3:5: listeners[0]: 'listen' is missing"},
    {HEAD "node-id: x\n", "c.yaml:4:1: node-id: unknown key, did you mean 'node_id'?"},
    {HEAD "limits: { max_session: 5 }\n",
     "c.yaml:4:11: limits.max_session: unknown key, did you mean 'max_sessions'?"},
    {HEAD "log:\n  level: info\n  colour: red\n",
     "c.yaml:6:3: log.colour: unknown key, known here are level, format"},
    {HEAD "node_id: m\n", "c.yaml:4:1: node_id: appears twice, first in line 1"},
    {HEAD "workers: x\n",
     "c.yaml:4:10: workers: 'x' is not accepted, wanted a whole number from 0 to 64"},
    {HEAD "workers: 65\n",
     "c.yaml:4:10: workers: '65' is not accepted, wanted a whole number from 0 to 64"},
    {HEAD "workers: -1\n",
     "c.yaml:4:10: workers: '-1' is not accepted, wanted a whole number from 0 to 64"},
    {HEAD "workers: 99999999999999999999\n",
     "c.yaml:4:10: workers: '99999999999999999999' is not accepted, wanted a whole number from 0 "
     "to 64"},
    {HEAD "workers: [1]\n", "c.yaml:4:10: workers: is a list, wanted a whole number from 0 to 64"},
    {HEAD "limits: { max_sessions: 0 }\n",
     "c.yaml:4:25: limits.max_sessions: '0' is not accepted, wanted a whole number from 1 to "
     "10000000"},
    {HEAD "limits: { connect_timeout: 10 }\n",
     "c.yaml:4:28: limits.connect_timeout: '10' is not accepted, wanted a duration such as 500ms, "
     "10s or 1m30s, from 100ms to 1h"},
    {HEAD "limits: { handshake_timeout: 0s }\n",
     "c.yaml:4:30: limits.handshake_timeout: '0s' is not accepted, wanted a duration such as "
     "500ms, 10s or 1m30s, from 100ms to 1h"},
    {HEAD "limits: { idle_timeout: 31d }\n",
     "c.yaml:4:25: limits.idle_timeout: '31d' is not accepted, wanted a duration such as 500ms, "
     "10s or 1m30s, from 0s to 30d"},
    {HEAD "limits: 5\n", "c.yaml:4:9: limits: is a single value, wanted a section (key: value)"},
    {HEAD "log: { level: loud }\n",
     "c.yaml:4:15: log.level: 'loud' is not accepted, wanted error, warn, info, debug or trace"},
    {HEAD "log: { format: \"te\\x07xt\" }\n",
     "c.yaml:4:16: log.format: 'te?xt' is not accepted, wanted text or json"},
    {HEAD "direct: { allow: 10.0.0.0/8 }\n",
     "c.yaml:4:18: direct.allow: is a single value, wanted a list of addresses and ranges such as "
     "10.0.0.5 or 10.0.0.0/8"},
    {HEAD "direct: { allow: [10.0.0.0/8, 10.0.0.0/33] }\n",
     "c.yaml:4:31: direct.allow[1]: '10.0.0.0/33' is not accepted, wanted a list of addresses and "
     "ranges such as 10.0.0.5 or 10.0.0.0/8"},
    {HEAD "direct: { allow: [[a]] }\n", "c.yaml:4:19: direct.allow[0]: must be a single value"},
    {HEAD "direct: { prefer: ipv5 }\n",
     "c.yaml:4:19: direct.prefer: 'ipv5' is not accepted, wanted ipv4 or ipv6"},
    {HEAD "dns: { servers: [dns.example] }\n",
     "c.yaml:4:18: dns.servers[0]: 'dns.example' is not accepted, wanted a list of addresses such "
     "as 1.1.1.1, 1.1.1.1:5353 or [::1]:53"},
    {HEAD "dns: { servers: [\":53\"] }\n",
     "c.yaml:4:18: dns.servers[0]: ':53' is not accepted, wanted a list of addresses such as "
     "1.1.1.1, 1.1.1.1:5353 or [::1]:53"},
    {HEAD "dns: { servers: [1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,"
          "1.1.1.1] }\n",
     "c.yaml:4:17: dns.servers: has 9 entries, at most 8 are allowed"},
    {HEAD "chain: { attempt_timeout: 10s, total_timeout: 5s }\n",
     "c.yaml:4:47: chain.total_timeout: total_timeout is shorter than attempt_timeout, so no "
     "attempt would get its time"},
    {HEAD "chain: { attempt_timeout: 40s }\n", "c.yaml:4:8: chain: total_timeout is shorter than "
                                               "attempt_timeout, so no attempt would get its "
                                               "time"},
    {HEAD "chain: { backoff: 5s, backoff_max: 4s }\n",
     "c.yaml:4:36: chain.backoff_max: backoff_max is shorter than backoff"},
    {HEAD "chain: { backoff: 0s }\n",
     "c.yaml:4:19: chain.backoff: '0s' is not accepted, wanted a duration such as 500ms, 10s or "
     "1m30s, from 100ms to 1d"},
    {HEAD "egresses:\n  - { id: x }\n  - { id: y, health: { target: \"a:0\" } }\n",
     "c.yaml:6:32: egresses[1].health.target: 'a:0' is not accepted, wanted host:port such as "
     "example.com:443"},
    {HEAD "egresses:\n  - { id: x, health: { interval: 5s } }\n",
     "c.yaml:5:22: egresses[0].health: 'target' is missing"},
    {HEAD "admin: { listen: \"0.0.0.0:9090\" }\n",
     "c.yaml:4:18: admin.listen: '0.0.0.0:9090' can be reached by other machines, so admin.token "
     "must be set, or listen on 127.0.0.1"},
    {HEAD "admin: { listen: \":9090\" }\n",
     "c.yaml:4:18: admin.listen: '[::]:9090' can be reached by other machines, so admin.token "
     "must be set, or listen on 127.0.0.1"},
    {HEAD "admin: { listen: \"fd:x\" }\n",
     "c.yaml:4:18: admin.listen: 'fd:x': a socket of systemd is not accepted here"},
    {HEAD "snapshot: { cache: snapshot.json }\n",
     "c.yaml:4:20: snapshot.cache: is the same file as snapshot.file, the cache needs one of its "
     "own"},
    {HEAD "snapshot: { file: \"\" }\n",
     "c.yaml:4:19: snapshot.file: '' is not accepted, wanted a path"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"1080\" }\n",
     "c.yaml:3:24: listeners[0].listen: '1080': an address is missing, write 127.0.0.1:1080 or "
     ":1080"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"localhost:1080\" }\n",
     "c.yaml:3:24: listeners[0].listen: 'localhost:1080': a name is not accepted, write an "
     "address such as 127.0.0.1:1080"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"127.0.0.1\" }\n",
     "c.yaml:3:24: listeners[0].listen: '127.0.0.1': a port is missing, write for example "
     "127.0.0.1:1080"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"::1:80\" }\n",
     "c.yaml:3:24: listeners[0].listen: '::1:80': an IPv6 address is written in brackets, for "
     "example [::1]:1080"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"127.0.0.1:70000\" }\n",
     "c.yaml:3:24: listeners[0].listen: '127.0.0.1:70000': wanted 127.0.0.1:1080, [::]:1080, "
     ":1080, unix:/path or fd:NAME"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"unix:\" }\n",
     "c.yaml:3:24: listeners[0].listen: 'unix:': after 'unix:' comes a path"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"fd:\" }\n",
     "c.yaml:3:24: listeners[0].listen: 'fd:': after 'fd:' comes the name of a socket of systemd, "
     "or its number"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \":1\" }\n  - { name: a, listen: \":2\" }\n",
     "c.yaml:4:13: listeners[1].name: 'a' is the name of listeners[0] already, names must differ"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \":1\" }\n  - { name: b, listen: \"[::]:1\" "
     "}\n",
     "c.yaml:4:24: listeners[1].listen: '[::]:1' is where listeners[0] listens already"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \":1\", unix_mode: 0600 }\n",
     "c.yaml:3:41: listeners[0].unix_mode: is for listeners on 'unix:' only"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \"unix:/x\", unix_mode: 0888 }\n",
     "c.yaml:3:46: listeners[0].unix_mode: '0888' is not accepted, wanted octal permission bits "
     "such as 0660, at most 0777"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \":1\", tls: { cert: a.pem } }\n",
     "c.yaml:3:35: listeners[0].tls: 'key' is missing"},
    {"node_id: n\nlisteners:\n  - { name: a, listen: \":1\", tls: { cert: a, key: b,\n"
     "      certificates: [{ server_names: [], cert: a, key: b }] } }\n",
     "c.yaml:4:38: listeners[0].tls.certificates[0].server_names: must not be empty"},
    {HEAD "log:\n\tlevel: info\n", "c.yaml:5:1: found character that cannot start any token"},
    {HEAD "log: [\n", "c.yaml:5:1: did not find expected node content"},
    {HEAD "---\nnode_id: m\n", "c.yaml:4:1: a second document begins here, only one is allowed"},
    {"node_id: &a n\n", "c.yaml:1:10: anchors and aliases are not supported"},
    {"node_id: *a\n", "c.yaml:1:10: anchors and aliases are not supported"},
    {"node_id: !!str n\n", "c.yaml:1:10: tags are not supported"},
    {"node_id: \"a\\0b\"\n", "c.yaml:1:10: a NUL byte is not allowed"},
    {"? [a]\n: b\n", "c.yaml:1:3: a key must be a plain word"},
    {"a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n", "c.yaml:1:19: this is nested too deeply"},
};

static void test_bad(void)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(bad_rows); i++) {
        struct cv_config_error e;
        char text[1024];
        struct cv_config *c = parse(bad_rows[i].text, &e);
        if (c != NULL) {
            T_FAIL("accepted: %s", bad_rows[i].text);
            cv_config_free(c);
            continue;
        }
        T_STR_EQ(cv_config_error_format(&e, "c.yaml", text, sizeof(text)), bad_rows[i].want);
    }
}

/* The token never shows, whatever is wrong with it. */
static void test_secret(void)
{
    struct cv_config_error e;
    char text[1400];
    int len = snprintf(text, sizeof(text), HEAD "admin: { token: ");
    memset(text + len, 'S', 1100);
    snprintf(text + len + 1100, sizeof(text) - (size_t)len - 1100, " }\n");
    struct cv_config *c = parse(text, &e);
    T_OK(c == NULL);
    T_STR_EQ(e.path, "admin.token");
    T_OK(strstr(e.text, "SSS") == NULL);
    T_OK(strstr(e.text, "(secret)") != NULL);
    cv_config_free(c);
}

static void test_files(void)
{
    struct cv_config_error e;
    struct cv_config *c = NULL;
    char text[1024], path[512];
    T_OK(cv_config_load("/nonexistent/c.yaml", &e, &c) != 0);
    T_STR_EQ(cv_config_error_format(&e, "c.yaml", text, sizeof(text)),
             "c.yaml: the file cannot be read: No such file or directory");
    const char *root = getenv("CV_SOURCE_ROOT");
    T_REQUIRE(root != NULL);
    static const char *const examples[] = {"culvert", "sni-gateway"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(examples); i++) {
        c = NULL;
        snprintf(path, sizeof(path), "%s/examples/%s.yaml", root, examples[i]);
        if (cv_config_load(path, &e, &c) != 0)
            T_FAIL("%s", cv_config_error_format(&e, path, text, sizeof(text)));
        cv_config_free(c);
    }
}

int main(void)
{
    T_RUN(test_defaults);
    T_RUN(test_egresses);
    T_RUN(test_everything);
    T_RUN(test_nulls);
    T_RUN(test_bad);
    T_RUN(test_secret);
    T_RUN(test_files);
    return t_done();
}
