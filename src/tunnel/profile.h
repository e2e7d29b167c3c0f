/* An OpenVPN profile (.ovpn): text in, one immutable struct out.
 *
 * The parser knows the directives by a table. A few are taken; many have no meaning for a client
 * that has no network interface of its own and are passed over in silence (verb, persist-tun) or
 * with a note (route, dhcp-option of the host); what would run a program, load code, open a
 * management port or write files is never obeyed: noted, or an error when 'strict' is set; what
 * would change the way to the server or its security and is not supported here (http-proxy, secret,
 * dev tap) is an error, since to leave it out would do something else than the user asked for. A
 * directive that nobody knows gets a note.
 *
 * Files that a profile names are read only from the profile's own folder and below. */
#pragma once

#include "common/defs.h"

#define CV_PROFILE_MAX_BYTES   (1u << 20)
#define CV_PROFILE_MAX_FILE    (256u << 10) /* an inline or external file */
#define CV_PROFILE_REMOTES_MAX 64
#define CV_PROFILE_NOTES_MAX   64
#define CV_PROFILE_CIPHERS_MAX 16
#define CV_PROFILE_PRINTS_MAX  16
#define CV_PROFILE_FILTERS_MAX 32
#define CV_PROFILE_DNS_MAX     8

enum cv_profile_net {
    CV_PROFILE_NET_ANY = 0,
    CV_PROFILE_NET_IP4,
    CV_PROFILE_NET_IP6,
};

struct cv_profile_remote {
    char host[256];
    uint16_t port;
    bool tcp;
    enum cv_profile_net net;
};

enum cv_profile_comp {
    CV_COMP_NONE = 0,
    CV_COMP_LZO,     /* comp-lzo, compress lzo: one byte before the packet */
    CV_COMP_STUB,    /* compress, compress stub, compress lz4: a byte that trades places */
    CV_COMP_STUB_V2, /* compress stub-v2, lz4-v2: two bytes, only where needed */
};

enum cv_profile_name_kind {
    CV_PROFILE_NAME_NONE = 0,
    CV_PROFILE_NAME_SUBJECT, /* the whole subject */
    CV_PROFILE_NAME_CN,      /* "name": the common name */
    CV_PROFILE_NAME_PREFIX,  /* "name-prefix": the beginning of the common name */
};

enum cv_profile_filter_action {
    CV_PROFILE_FILTER_ACCEPT = 0,
    CV_PROFILE_FILTER_IGNORE,
    CV_PROFILE_FILTER_REJECT,
};

struct cv_profile_filter {
    enum cv_profile_filter_action action;
    char text[128];
};

struct cv_profile_note {
    uint32_t line;
    char text[160];
};

struct cv_profile {
    struct cv_profile_remote remotes[CV_PROFILE_REMOTES_MAX];
    size_t n_remotes; /* >= 1 */
    bool remote_random;

    /* PEM texts; owned, NULL = none. */
    char *ca, *cert, *key, *extra_certs, *crl;
    char *tls_auth, *tls_crypt, *tls_crypt_v2;
    int key_direction; /* -1 none, 0, 1 */

    char cipher[32];                          /* as written; "" = not given */
    char fallback[32];                        /* data-ciphers-fallback */
    char ciphers[CV_PROFILE_CIPHERS_MAX][24]; /* data-ciphers, upper case */
    size_t n_ciphers;                         /* 0 = the defaults */
    char auth[24];                            /* digest, upper case; "SHA1" */

    bool auth_user_pass; /* user and password are wanted */
    char *username;      /* owned; NULL = not in the profile */
    char *password;      /* owned secret */

    enum cv_profile_name_kind verify_name_kind;
    char verify_name[256];
    bool remote_cert_tls;                      /* the certificate must be one for servers */
    char remote_eku[64];                       /* remote-cert-eku; "" = none */
    uint8_t prints[CV_PROFILE_PRINTS_MAX][32]; /* peer-fingerprint: SHA-256 of the certificate */
    size_t n_prints;

    int tls_min, tls_max;                             /* 10, 11, 12, 13; 0 = not given */
    char *tls_cipher, *tls_ciphersuites, *tls_groups; /* OpenVPN's spelling; owned, NULL = none */
    int security_level; /* by tls-cert-profile: 0 insecure, 1 legacy, 2 preferred; -1 = default */

    enum cv_profile_comp comp;
    uint32_t fragment; /* 0 = off */
    int32_t mssfix;    /* -1 = default (1492), 0 = off */
    bool mssfix_mtu;   /* with the headers of the outer packet ("mtu") */
    bool mssfix_fixed; /* the MSS itself ("fixed") */
    uint32_t tun_mtu;

    int32_t ping, ping_restart, ping_exit;     /* s; -1 = not given */
    int64_t reneg_sec;                         /* -1 = default (3600); 0 = never */
    uint64_t reneg_bytes, reneg_pkts;          /* 0 = no limit */
    uint32_t hand_window, tran_window;         /* s */
    uint32_t connect_retry, connect_retry_max; /* s between attempts; most s */
    uint32_t connect_timeout;                  /* s; 0 = not given */
    uint32_t exit_notify;                      /* packets; 0 = none */
    uint32_t replay_window;
    bool push_peer_info;
    bool pull;
    char ifconfig_local[48], ifconfig_remote[48]; /* without pull */
    char dns[CV_PROFILE_DNS_MAX][48];             /* dhcp-option DNS of the profile itself */
    size_t n_dns;
    struct cv_profile_filter filters[CV_PROFILE_FILTERS_MAX];
    size_t n_filters;

    struct cv_profile_note notes[CV_PROFILE_NOTES_MAX];
    size_t n_notes;
    size_t n_notes_left_out;
};

struct cv_profile_error {
    uint32_t line; /* 0: about the profile as a whole */
    char directive[64];
    char text[256];
};

/* Parse a text. 'dir' is the folder that named files may be in; NULL = none may be read. 'strict'
 * makes an error of every directive that would run programs or touch files or the host. 0;
 * CV_E_PARSE, CV_E_INVALID, CV_E_UNSUPPORTED or CV_E_LIMIT with *reterr filled; -ENOMEM. */
int cv_profile_parse(const char *text, size_t len, const char *dir, bool strict,
                     struct cv_profile_error *reterr,
                     struct cv_profile **ret_profile) CV_MUST_CHECK;
/* Read a file and parse it; its folder is the one that named files may be in. Also -errno. */
int cv_profile_load(const char *path, bool strict, struct cv_profile_error *reterr,
                    struct cv_profile **ret_profile) CV_MUST_CHECK;
/* "PATH:LINE: directive 'x': ..." */
char *cv_profile_error_format(const struct cv_profile_error *e, const char *path, char *out,
                              size_t cap);
void cv_profile_free(struct cv_profile *p); /* NULL is accepted */
