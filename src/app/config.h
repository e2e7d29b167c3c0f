/* The node's own configuration: a YAML file, loaded as a whole or refused with a sentence.
 *
 * option.c has the one table of all options; libcyaml loads the text by a schema that is made from
 * that table; then each text becomes its value (durations, addresses, ranges) and the rules between
 * options are checked. An error names file, line, column, option, value and what would be right.
 * Unknown keys are errors. A struct cv_config is immutable after loading.
 *
 * Relative paths are relative to the folder of the config file. */
#pragma once

#include "app/listen.h"
#include "common/addr.h"
#include "flow/settings.h"

#define CV_CONFIG_MAX_BYTES     (1u << 20)
#define CV_CONFIG_MAX_EGRESSES  1000
#define CV_CONFIG_MAX_LISTENERS 1024
#define CV_CONFIG_MAX_TUNNELS   200

/* A list of values; the same layout for every type. */
#define CV_CONFIG_LIST(type)                                                                       \
    struct {                                                                                       \
        type *v; /* owned */                                                                       \
        size_t n;                                                                                  \
    }

enum cv_config_protocol { /* the order of the names in option.c */
                          CV_CONFIG_SOCKS5 = 0,
                          CV_CONFIG_HTTP,
                          CV_CONFIG_MIXED,
                          CV_CONFIG_SNI,
};

struct cv_config_certificate {
    CV_CONFIG_LIST(char *) server_names;
    char *cert, *key;
};

struct cv_config_tls {
    char *cert, *key;
    CV_CONFIG_LIST(struct cv_config_certificate) certificates;
    int min_version;              /* 0 TLS 1.2, 1 TLS 1.3 */
    char *client_ca, *client_crl; /* "" = none */
    int client_auth;              /* 0 require, 1 request */
    int user_from;                /* enum cv_tls_user_from */
};

struct cv_config_proxy_protocol {
    CV_CONFIG_LIST(struct cv_prefix) from;
};

struct cv_config_listener {
    char *name;
    int protocol;                                    /* enum cv_config_protocol */
    char *listen;                                    /* canonical: equal texts are equal places */
    struct cv_config_tls *tls;                       /* NULL: plain */
    struct cv_config_proxy_protocol *proxy_protocol; /* NULL: no header is wanted */
    char *no_auth_user;                              /* "": a login is required */
    int udp;                                         /* 0 on, 1 off */
    char *udp_advertise;                             /* "" or an IP address */
    struct {
        int mode; /* enum cv_sniff_mode */
        int64_t timeout;
        uint64_t max_bytes;
    } sniff;
    char *identity;                 /* "sni": the user; else "" */
    CV_CONFIG_LIST(char *) origins; /* "sni": canonical names */
    uint64_t origin_port;           /* 0 = that of the listener */
    uint64_t unix_mode;
};

struct cv_config_health {
    char *target; /* host:port */
    int64_t interval, timeout;
};

/* What this node adds to an egress of the snapshot. */
struct cv_config_egress {
    char *id;                        /* of the egress in the snapshot */
    int proxy_protocol;              /* enum cv_proxy_protocol_version */
    char *tls_ca;                    /* PEM file; "" = the system's authorities */
    struct cv_config_health *health; /* NULL: not checked */
};

/* A VPN connection of this node. */
struct cv_config_tunnel {
    char *name;
    char *profile;
    char *username;      /* "" = that of the profile */
    char *password_file; /* "" = none */
    int strict;          /* 0 false, 1 true */
    int64_t connect_timeout;
    CV_CONFIG_LIST(char *) dns;
};

/* Texts are never NULL; an option that is not set has its default. Durations are milliseconds. */
struct cv_config {
    char *path; /* as it was given */
    char *dir;  /* absolute, or relative to the working directory; without a slash at the end */
    char *node_id;
    uint64_t workers; /* 0 = chosen by the number of processors */
    struct {
        char *file;
        char *cache; /* "" = none */
    } snapshot;
    struct {
        char *snapshot_url; /* "" = the snapshot is a file */
        char *token;        /* a secret; "" = none */
        char *token_file;   /* "" = none */
        int64_t poll_interval, timeout;
        char *ca, *client_cert, *client_key, *verify_key; /* PEM files; "" = not set */
    } control_plane;
    CV_CONFIG_LIST(struct cv_config_listener) listeners;
    CV_CONFIG_LIST(struct cv_config_egress) egresses;
    CV_CONFIG_LIST(struct cv_config_tunnel) tunnels;
    struct {
        char *listen; /* "" = off */
        char *token;  /* a secret; "" = none */
    } admin;
    struct {
        char *socket; /* "" = off */
    } takeover;
    struct {
        char *file; /* "-" standard output, "" off */
        int64_t stats_interval;
        uint64_t retention_days;
    } access_log;
    struct {
        int level;  /* enum cv_log_level */
        int format; /* enum cv_log_format */
    } log;
    struct {
        uint64_t max_sessions, max_tls_handshakes;
        uint64_t connections_per_second, source_connections_per_second;
        int64_t handshake_timeout, connect_timeout, idle_timeout, half_close_timeout, drain_grace;
        int64_t udp_timeout;
    } limits;
    int recheck; /* 0 false, 1 true */
    struct {
        uint64_t failures, source_failures;
        int64_t window, backoff, backoff_max;
    } login;
    struct {
        CV_CONFIG_LIST(struct cv_prefix) allow;
        int prefer; /* 0 ipv4, 1 ipv6 */
    } direct;
    struct {
        CV_CONFIG_LIST(char *) servers;
        int64_t timeout;
        uint64_t attempts;
        uint64_t cache_size;
    } dns;
    struct {
        int64_t attempt_timeout, total_timeout, backoff, backoff_max;
    } chain;
};

struct cv_config_error {
    uint32_t line, column; /* 0: not about a place in the file */
    char path[256];        /* "limits.max_sessions"; "" */
    char text[512];        /* never holds a secret */
};

/* Read and check 'path'. 0; -ENOMEM, -errno of reading, CV_E_LIMIT, CV_E_PARSE or CV_E_INVALID with
 * *reterr filled in every case. */
int cv_config_load(const char *path, struct cv_config_error *reterr,
                   struct cv_config **ret_config) CV_MUST_CHECK;
/* The same for a text that is in memory; 'path' names it and gives the folder. */
int cv_config_parse(const char *path, const char *data, size_t len, struct cv_config_error *reterr,
                    struct cv_config **ret_config) CV_MUST_CHECK;
void cv_config_free(struct cv_config *c); /* NULL is accepted */

/* "culvert.yaml:12:5: limits.max_sessions: '0' is ..." Returns 'out'. */
char *cv_config_error_format(const struct cv_config_error *e, const char *path, char *out,
                             size_t cap);

/* What sessions need of it, for the workers; the caller owns a reference. */
struct cv_settings *cv_config_settings(const struct cv_config *c);
/* What the config says about an egress of the snapshot; NULL: nothing. */
const struct cv_config_egress *cv_config_egress(const struct cv_config *c, const char *id);
/* The number of workers to start. */
unsigned cv_config_workers(const struct cv_config *c);
