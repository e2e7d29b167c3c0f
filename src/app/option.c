#include "app/option.h"

#include <inttypes.h>
#include <string.h>

#include "app/config.h"

#include "common/poison.h"

#define SECOND 1000ll
#define MINUTE (60 * SECOND)
#define HOUR   (60 * MINUTE)
#define DAY    (24 * HOUR)

#define SECTION(rows, type, text)                                                                  \
    {.options = (rows), .n = CV_ARRAY_SIZE(rows), .size = sizeof(type), .help = (text)}
#define AT(type, member) .offset = offsetof(type, member)
#define LIST_MAX         256

static const char *const protocol_names[] = {"socks5", "http", "mixed", "sni", NULL};
static const char *const sniff_names[] = {"off", "observe", "route", NULL};
static const char *const level_names[] = {"error", "warn", "info", "debug", "trace", NULL};
static const char *const format_names[] = {"text", "json", NULL};
static const char *const proxy_protocol_names[] = {"off", "v1", "v2", NULL};
static const char *const version_names[] = {"1.2", "1.3", NULL};
static const char *const client_auth_names[] = {"require", "request", NULL};
static const char *const user_from_names[] = {"cn", "san-email", "san-dns", "san-uri", NULL};
static const char *const switch_names[] = {"on", "off", NULL};
static const char *const bool_names[] = {"false", "true", NULL};
static const char *const prefer_names[] = {"ipv4", "ipv6", NULL};

static const struct cv_option certificate_rows[] = {
    {.key = "server_names",
     .type = CV_OPTION_TEXTS,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = LIST_MAX,
     AT(struct cv_config_certificate, server_names),
     .help = "Names for which a client gets this certificate (SNI): exact, or `*.example.com`. "
             "The certificate must cover each of them."},
    {.key = "cert",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 4096,
     AT(struct cv_config_certificate, cert),
     .help = "PEM file with the certificate chain."},
    {.key = "key",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 4096,
     AT(struct cv_config_certificate, key),
     .help = "PEM file with the private key."},
};
static const struct cv_section certificate_section =
    SECTION(certificate_rows, struct cv_config_certificate,
            "Further certificates, chosen by the name that the client asks for.");

static const struct cv_option tls_rows[] = {
    {.key = "cert",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 4096,
     AT(struct cv_config_tls, cert),
     .help =
         "PEM file with the certificate chain that is sent when no other one fits, also to "
         "clients that ask for an unknown name. Read again when it changes, as are the others."},
    {.key = "key",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 4096,
     AT(struct cv_config_tls, key),
     .help = "PEM file with the private key."},
    {.key = "certificates",
     .type = CV_OPTION_SECTIONS,
     .max = LIST_MAX,
     .section = &certificate_section,
     AT(struct cv_config_tls, certificates),
     .help = "Further certificates by server name."},
    {.key = "min_version",
     .type = CV_OPTION_ENUM,
     .def = "1.2",
     .names = version_names,
     AT(struct cv_config_tls, min_version),
     .help = "The oldest version of TLS that is spoken."},
    {.key = "client_ca",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config_tls, client_ca),
     .help =
         "PEM file with the authorities that issue certificates of clients. A client with such a "
         "certificate is the user that it names and needs no password. Empty: clients are asked "
         "for none."},
    {.key = "client_crl",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config_tls, client_crl),
     .help =
         "PEM file with a revocation list of each authority in a client's chain; a certificate "
         "without one, or with one that is out of date, is refused. Empty: nothing is revoked."},
    {.key = "client_auth",
     .type = CV_OPTION_ENUM,
     .def = "require",
     .names = client_auth_names,
     AT(struct cv_config_tls, client_auth),
     .help =
         "With `client_ca`: `require` serves clients with a certificate only (a `mixed` listener "
         "then takes no plain ones), `request` lets the others log in by password."},
    {.key = "user_from",
     .type = CV_OPTION_ENUM,
     .def = "cn",
     .names = user_from_names,
     AT(struct cv_config_tls, user_from),
     .help =
         "With `client_ca`: what of the certificate is the user's name in the snapshot, byte by "
         "byte: the subject's only common name, or the only alternative name of that kind."},
};
static const struct cv_section tls_section =
    SECTION(tls_rows, struct cv_config_tls, "TLS towards clients. Without it a listener is plain.");

static const struct cv_option proxy_protocol_rows[] = {
    {.key = "from",
     .type = CV_OPTION_PREFIXES,
     .max = LIST_MAX,
     AT(struct cv_config_proxy_protocol, from),
     .help =
         "Addresses and ranges of the proxies that are believed; connections from elsewhere are "
         "closed. Required unless `listen` is a Unix socket, whose permission bits choose."},
};
static const struct cv_section proxy_protocol_section =
    SECTION(proxy_protocol_rows, struct cv_config_proxy_protocol,
            "The PROXY protocol, versions 1 and 2: the client's address is the one that the header "
            "tells, before TLS if there is any. A connection without a header is closed.");
/* These lie within struct cv_config_listener itself. */
static const struct cv_option sniff_rows[] = {
    {.key = "mode",
     .type = CV_OPTION_ENUM,
     .def = "off",
     .names = sniff_names,
     AT(struct cv_config_listener, sniff.mode),
     .help = "`observe`: the name that the client's first bytes ask for is logged and counted. "
             "`route`: it also takes part in the decision; the client of a CONNECT is then told "
             "that it is connected before anything was dialled, since only then does it speak."},
    {.key = "timeout",
     .type = CV_OPTION_DURATION,
     .def = "300ms",
     .min = 1,
     .max = 5 * SECOND,
     AT(struct cv_config_listener, sniff.timeout),
     .help = "How long the first bytes are awaited; then it goes on without a name. Where the "
             "server speaks first, `route` delays every connection by this. Not for `sni`, whose "
             "hello has `limits.handshake_timeout`."},
    {.key = "max_bytes",
     .type = CV_OPTION_UINT,
     .def = "16384",
     .min = 512,
     .max = 65536,
     AT(struct cv_config_listener, sniff.max_bytes),
     .help = "At most so many bytes are looked at, and held back."},
};
static const struct cv_section sniff_section =
    SECTION(sniff_rows, struct cv_config_listener,
            "Looking at a client's first bytes for a name: TLS server name or HTTP Host.");

static const struct cv_option listener_rows[] = {
    {.key = "name",
     .type = CV_OPTION_ID,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 63,
     AT(struct cv_config_listener, name),
     .help = "Names the listener in logs and metrics; unique."},
    {.key = "protocol",
     .type = CV_OPTION_ENUM,
     .def = "mixed",
     .names = protocol_names,
     AT(struct cv_config_listener, protocol),
     .help = "What clients speak. `mixed` tells SOCKS5 and HTTP apart by the first byte. `sni` is "
             "for clients that know of no proxy: TLS is relayed to the server that it names."},
    {.key = "listen",
     .type = CV_OPTION_LISTEN,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 256,
     AT(struct cv_config_listener, listen),
     .help = "Where: `127.0.0.1:1080`, `[::1]:1080`, `:1080` or `[::]:1080` (every address of the "
             "machine, IPv4 and IPv6), `unix:/path`, or `fd:NAME` for a socket that systemd passes "
             "(by `FileDescriptorName=`, or by number: `fd:3`). Port 0 lets the kernel choose."},
    {.key = "tls",
     .type = CV_OPTION_SECTION_PTR,
     .section = &tls_section,
     AT(struct cv_config_listener, tls),
     .help = "TLS towards clients."},
    {.key = "proxy_protocol",
     .type = CV_OPTION_SECTION_PTR,
     .section = &proxy_protocol_section,
     AT(struct cv_config_listener, proxy_protocol),
     .help = "Connections come through a load balancer that says whose they are."},
    {.key = "no_auth_user",
     .type = CV_OPTION_TEXT,
     .def = "",
     .max = 255,
     AT(struct cv_config_listener, no_auth_user),
     .help = "Whoever connects without a login is this user of the snapshot. Empty: a login is "
             "required."},
    {.key = "udp",
     .type = CV_OPTION_ENUM,
     .def = "on",
     .names = switch_names,
     AT(struct cv_config_listener, udp),
     .help = "SOCKS5 UDP ASSOCIATE. `off` answers it with 07, as a Unix socket always does."},
    {.key = "udp_advertise",
     .type = CV_OPTION_TEXT,
     .def = "",
     .max = 64,
     AT(struct cv_config_listener, udp_advertise),
     .help = "The address that a client of its family is told to send datagrams to, where clients "
             "reach this machine by another address than it has itself. The port is chosen by the "
             "kernel and must be passed on as it is. Empty: the address the client came in on."},
    {.key = "sniff",
     .type = CV_OPTION_SECTION,
     .section = &sniff_section,
     .help = "Looking at a client's first bytes for a name."},
    {.key = "identity",
     .type = CV_OPTION_TEXT,
     .def = "",
     .max = 255,
     AT(struct cv_config_listener, identity),
     .help =
         "`sni` only, and required there: the user of the snapshot whose policy and limits hold "
         "for everyone who connects."},
    {.key = "origins",
     .type = CV_OPTION_TEXTS,
     .max = LIST_MAX,
     AT(struct cv_config_listener, origins),
     .help = "`sni` only, and required there: the host names that clients may be relayed to, each "
             "in full. Any other name is refused."},
    {.key = "origin_port",
     .type = CV_OPTION_UINT,
     .def = "0",
     .min = 0,
     .max = 65535,
     AT(struct cv_config_listener, origin_port),
     .help = "`sni` only: the port that is dialled. 0: the one that the client connected to."},
    {.key = "unix_mode",
     .type = CV_OPTION_MODE,
     .def = "0660",
     .min = 0,
     .max = 0777,
     AT(struct cv_config_listener, unix_mode),
     .help = "Permission bits of a Unix socket, octal."},
};
static const struct cv_section listener_section = SECTION(
    listener_rows, struct cv_config_listener, "The places where clients come in; at least one.");

static const struct cv_option health_rows[] = {
    {.key = "target",
     .type = CV_OPTION_TEXT,
     .flags = CV_OPTION_REQUIRED,
     .min = 3,
     .max = 300,
     AT(struct cv_config_health, target),
     .help = "To which `host:port` a connection is opened through the egress, and closed at once; "
             "one that can always be reached."},
    {.key = "interval",
     .type = CV_OPTION_DURATION,
     .def = "30s",
     .min = 100,
     .max = DAY,
     AT(struct cv_config_health, interval),
     .help = "From the end of a check to the next one, more or less a tenth."},
    {.key = "timeout",
     .type = CV_OPTION_DURATION,
     .def = "5s",
     .min = 100,
     .max = HOUR,
     AT(struct cv_config_health, timeout),
     .help = "A check that takes longer has failed."},
};
static const struct cv_section health_section = SECTION(
    health_rows, struct cv_config_health,
    "Active check of an egress, or of each member of a chain. A member that fails is tried "
    "last until a check succeeds after its back-off; no client's connection is used to find "
    "out. The state is in `/status` and `/metrics`.");

static const struct cv_option egress_rows[] = {
    {.key = "id",
     .type = CV_OPTION_TEXT,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 1024,
     AT(struct cv_config_egress, id),
     .help =
         "The egress of the snapshot that is meant; unique. One that the snapshot does not have "
         "is a warning in the log."},
    {.key = "proxy_protocol",
     .type = CV_OPTION_ENUM,
     .def = "off",
     .names = proxy_protocol_names,
     AT(struct cv_config_egress, proxy_protocol),
     .help = "Header of the PROXY protocol, with the client's address, that is sent to an upstream "
             "(of a chain: to each) before anything else. The upstream must expect it."},
    {.key = "tls_ca",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config_egress, tls_ca),
     .help =
         "PEM file with the authorities that certificates of this upstream (of a chain: of each "
         "member) are checked against, in place of the system's. For backends with `tls`. Read "
         "again on SIGHUP."},
    {.key = "health",
     .type = CV_OPTION_SECTION_PTR,
     .section = &health_section,
     AT(struct cv_config_egress, health),
     .help = "Active check. Without it only connections of clients show whether it works."},
};
static const struct cv_section egress_section =
    SECTION(egress_rows, struct cv_config_egress,
            "What this node adds to egresses of the snapshot, by their ids.");

static const struct cv_option tunnel_rows[] = {
    {.key = "name",
     .type = CV_OPTION_ID,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 64,
     AT(struct cv_config_tunnel, name),
     .help = "What a backend of kind `tunnel` in the snapshot has as its `addr`; unique."},
    {.key = "profile",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = 4096,
     AT(struct cv_config_tunnel, profile),
     .help = "OpenVPN profile (`.ovpn`). Try it with `culvert tunnel test`. Read again on SIGHUP."},
    {.key = "username",
     .type = CV_OPTION_TEXT,
     .def = "",
     .max = 255,
     AT(struct cv_config_tunnel, username),
     .help = "For servers that want a login. Empty: as the profile says."},
    {.key = "password_file",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config_tunnel, password_file),
     .help = "File whose first line is the password. Read again on SIGHUP."},
    {.key = "strict",
     .type = CV_OPTION_ENUM,
     .def = "false",
     .names = bool_names,
     AT(struct cv_config_tunnel, strict),
     .help = "Refuse a profile with directives that would run programs or touch files or the host, "
             "in place of ignoring them."},
    {.key = "connect_timeout",
     .type = CV_OPTION_DURATION,
     .def = "20s",
     .min = 1000,
     .max = HOUR,
     AT(struct cv_config_tunnel, connect_timeout),
     .help = "Of one attempt on one server of the profile."},
    {.key = "dns",
     .type = CV_OPTION_TEXTS,
     .max = 8,
     AT(struct cv_config_tunnel, dns),
     .help = "Addresses of name servers that are asked through the tunnel, in place of those that "
             "the server pushes."},
};
static const struct cv_section tunnel_section = SECTION(
    tunnel_rows, struct cv_config_tunnel,
    "VPN connections that are kept up inside the process, without a network device and without "
    "privileges. Sessions that a policy sends to a tunnel that is not up wait for it, as long as "
    "`limits.connect_timeout` and at most 10 s, and are then refused.");

static const struct cv_option snapshot_rows[] = {
    {.key = "file",
     .type = CV_OPTION_PATH,
     .def = "snapshot.json",
     .min = 1,
     .max = 4096,
     AT(struct cv_config, snapshot.file),
     .help = "The policy document; watched and loaded again when it changes."},
    {.key = "cache",
     .type = CV_OPTION_PATH,
     .def = "data/snapshot.cache.json",
     .max = 4096,
     AT(struct cv_config, snapshot.cache),
     .help = "A copy of the last good document, used at start when the file is missing or bad. "
             "Empty: none."},
};
static const struct cv_option control_plane_rows[] = {
    {.key = "snapshot_url",
     .type = CV_OPTION_TEXT,
     .def = "",
     .max = 4096,
     AT(struct cv_config, control_plane.snapshot_url),
     .help = "Where the snapshot is fetched, `http://` or `https://`, in place of `snapshot.file`, "
             "which is then not read. `since=` and the version in force are appended. Empty: off. "
             "Turning it on or off takes a restart."},
    {.key = "token",
     .type = CV_OPTION_TEXT,
     .flags = CV_OPTION_SECRET,
     .def = "",
     .max = 4000,
     AT(struct cv_config, control_plane.token),
     .help = "Bearer token that is sent along."},
    {.key = "token_file",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config, control_plane.token_file),
     .help = "A file with the token, read for each request."},
    {.key = "poll_interval",
     .type = CV_OPTION_DURATION,
     .def = "30s",
     .min = 1000,
     .max = 86400000,
     AT(struct cv_config, control_plane.poll_interval),
     .help = "Time between two requests, a tenth more or less. Failures in a row double it, up to "
             "five minutes. A server that holds requests until there is news (`Culvert-Wait`) is "
             "asked again at once."},
    {.key = "timeout",
     .type = CV_OPTION_DURATION,
     .def = "15s",
     .min = 100,
     .max = 600000,
     AT(struct cv_config, control_plane.timeout),
     .help = "Time for one request from beginning to end."},
    {.key = "ca",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config, control_plane.ca),
     .help = "PEM file with the authorities that the server's certificate is checked against, in "
             "place of the system's."},
    {.key = "client_cert",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config, control_plane.client_cert),
     .help = "PEM file with a certificate to show to the server."},
    {.key = "client_key",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config, control_plane.client_key),
     .help = "PEM file with its key. Empty: it is in `client_cert`."},
    {.key = "verify_key",
     .type = CV_OPTION_PATH,
     .def = "",
     .max = 4096,
     AT(struct cv_config, control_plane.verify_key),
     .help = "PEM file with an Ed25519 public key. Documents must be signed with it "
             "(`Culvert-Signature`), others are refused."},
};
static const struct cv_option admin_rows[] = {
    {.key = "listen",
     .type = CV_OPTION_LISTEN,
     .flags = CV_OPTION_RESTART | CV_OPTION_NO_FD,
     .def = "127.0.0.1:9090",
     .max = 256,
     AT(struct cv_config, admin.listen),
     .help = "Where the admin API answers: an address or `unix:/path`. Empty: off."},
    {.key = "token",
     .type = CV_OPTION_TEXT,
     .flags = CV_OPTION_SECRET,
     .def = "",
     .max = 1024,
     AT(struct cv_config, admin.token),
     .help = "Bearer token that the API asks for. Required when other machines can reach it."},
};
static const struct cv_option takeover_rows[] = {
    {.key = "socket",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_RESTART,
     .def = "data/takeover.sock",
     .max = 4096,
     AT(struct cv_config, takeover.socket),
     .help = "Unix socket (mode 0600) on which `culvert run --takeover` and SIGUSR2 ask for the "
             "listening sockets. Old and new config must name the same. At most 107 bytes; where "
             "it cannot be made the node warns and runs without. Empty: off."},
};
static const struct cv_option access_log_rows[] = {
    {.key = "file",
     .type = CV_OPTION_PATH,
     .flags = CV_OPTION_STDOUT,
     .def = "-",
     .max = 4096,
     AT(struct cv_config, access_log.file),
     .help = "One JSON line per session. `-` is standard output, empty is off; a file is renamed "
             "to `FILE.YYYY-MM-DD` when the day changes."},
    {.key = "stats_interval",
     .type = CV_OPTION_DURATION,
     .def = "60s",
     .min = 0,
     .max = DAY,
     AT(struct cv_config, access_log.stats_interval),
     .help = "How often the counters of each listener and egress are written. 0: never."},
    {.key = "retention_days",
     .type = CV_OPTION_UINT,
     .def = "7",
     .min = 0,
     .max = 3650,
     AT(struct cv_config, access_log.retention_days),
     .help = "Rotated files that are older are removed. 0: none are."},
};
static const struct cv_option log_rows[] = {
    {.key = "level",
     .type = CV_OPTION_ENUM,
     .def = "info",
     .names = level_names,
     AT(struct cv_config, log.level),
     .help = "How much is said on standard error."},
    {.key = "format",
     .type = CV_OPTION_ENUM,
     .def = "text",
     .names = format_names,
     AT(struct cv_config, log.format),
     .help = "One line of text or one JSON object per event."},
};
static const struct cv_option limits_rows[] = {
    {.key = "max_sessions",
     .type = CV_OPTION_UINT,
     .def = "20000",
     .min = 1,
     .max = 10000000,
     AT(struct cv_config, limits.max_sessions),
     .help = "Sessions at a time; connections beyond are closed at once. Each takes two file "
             "descriptors."},
    {.key = "max_tls_handshakes",
     .type = CV_OPTION_UINT,
     .def = "1000",
     .min = 1,
     .max = 1000000,
     AT(struct cv_config, limits.max_tls_handshakes),
     .help = "TLS handshakes of clients at a time; connections beyond are closed. Each takes some "
             "50 KiB until it is over."},
    {.key = "connections_per_second",
     .type = CV_OPTION_UINT,
     .def = "0",
     .min = 0,
     .max = 1000000,
     AT(struct cv_config, limits.connections_per_second),
     .help = "New connections that all listeners together take in a second; twice as many may come "
             "at once, and those beyond are closed. 0: no limit."},
    {.key = "source_connections_per_second",
     .type = CV_OPTION_UINT,
     .def = "0",
     .min = 0,
     .max = 1000000,
     AT(struct cv_config, limits.source_connections_per_second),
     .help = "The same for one source: an IPv4 address, or the /64 of an IPv6 address. Many people "
             "may share one, so give it room. 0: no limit."},
    {.key = "handshake_timeout",
     .type = CV_OPTION_DURATION,
     .def = "10s",
     .min = 100,
     .max = HOUR,
     AT(struct cv_config, limits.handshake_timeout),
     .help = "From accept to the end of the request head, PROXY header and TLS included."},
    {.key = "connect_timeout",
     .type = CV_OPTION_DURATION,
     .def = "10s",
     .min = 100,
     .max = HOUR,
     AT(struct cv_config, limits.connect_timeout),
     .help = "To open the way out: resolving and connecting, all addresses together. Chains have "
             "time limits of their own."},
    {.key = "idle_timeout",
     .type = CV_OPTION_DURATION,
     .def = "0s",
     .min = 0,
     .max = 30 * DAY,
     AT(struct cv_config, limits.idle_timeout),
     .help = "A session that moves no byte for so long ends. 0: never; dead peers are found by "
             "keepalive."},
    {.key = "half_close_timeout",
     .type = CV_OPTION_DURATION,
     .def = "60s",
     .min = 100,
     .max = DAY,
     AT(struct cv_config, limits.half_close_timeout),
     .help = "One side has ended and the other is silent for so long: the session ends."},
    {.key = "udp_timeout",
     .type = CV_OPTION_DURATION,
     .def = "5m",
     .min = 1 * SECOND,
     .max = DAY,
     AT(struct cv_config, limits.udp_timeout),
     .help =
         "A way out of a UDP association that carries no datagram for so long is closed, and "
         "its port given back; the association goes on. RFC 4787 asks for two minutes or more."},
    {.key = "drain_grace",
     .type = CV_OPTION_DURATION,
     .def = "30s",
     .min = 0,
     .max = DAY,
     AT(struct cv_config, limits.drain_grace),
     .help = "How long running sessions may go on after SIGTERM."},
};
static const struct cv_option login_rows[] = {
    {.key = "failures",
     .type = CV_OPTION_UINT,
     .def = "10",
     .min = 0,
     .max = 400,
     AT(struct cv_config, login.failures),
     .help = "So many wrong logins of one user from one source, and its logins are refused for a "
             "while. Others are not affected. 0: never."},
    {.key = "source_failures",
     .type = CV_OPTION_UINT,
     .def = "100",
     .min = 0,
     .max = 400,
     AT(struct cv_config, login.source_failures),
     .help =
         "The same for one source, whoever it says to be: an IPv4 address, or the /64 of an IPv6 "
         "address. Who has logged in from there within the last hour is not held up. 0: never."},
    {.key = "window",
     .type = CV_OPTION_DURATION,
     .def = "60s",
     .min = SECOND,
     .max = DAY,
     AT(struct cv_config, login.window),
     .help = "After so long without a wrong login those of a user and source are forgotten. "
             "`source_failures` are forgotten one by one, all of them in this time."},
    {.key = "backoff",
     .type = CV_OPTION_DURATION,
     .def = "1s",
     .min = 100,
     .max = HOUR,
     AT(struct cv_config, login.backoff),
     .help = "How long logins are refused the first time; each further wrong one doubles it."},
    {.key = "backoff_max",
     .type = CV_OPTION_DURATION,
     .def = "5m",
     .min = 100,
     .max = DAY,
     AT(struct cv_config, login.backoff_max),
     .help = "The longest pause."},
};
static const struct cv_option direct_rows[] = {
    {.key = "allow",
     .type = CV_OPTION_PREFIXES,
     .max = LIST_MAX,
     AT(struct cv_config, direct.allow),
     .help = "Private or special addresses and ranges that direct connections may reach although "
             "no selector of the policy names them, for example `10.0.0.0/8`. All of loopback, "
             "link-local, private, shared and multicast space is refused otherwise."},
    {.key = "prefer",
     .type = CV_OPTION_ENUM,
     .def = "ipv4",
     .names = prefer_names,
     AT(struct cv_config, direct.prefer),
     .help = "Which family is tried first when a name has both."},
};
static const struct cv_option dns_rows[] = {
    {.key = "servers",
     .type = CV_OPTION_SERVERS,
     .max = 8,
     AT(struct cv_config, dns.servers),
     .help = "Servers to ask: `1.1.1.1`, `1.1.1.1:5353`, `[::1]:53`. Empty: those of the system."},
    {.key = "timeout",
     .type = CV_OPTION_DURATION,
     .def = "2s",
     .min = 100,
     .max = MINUTE,
     AT(struct cv_config, dns.timeout),
     .help = "Of one attempt."},
    {.key = "attempts",
     .type = CV_OPTION_UINT,
     .def = "2",
     .min = 1,
     .max = 10,
     AT(struct cv_config, dns.attempts),
     .help = "How often each server is asked."},
    {.key = "cache_size",
     .type = CV_OPTION_UINT,
     .def = "4096",
     .min = 0,
     .max = 1000000,
     AT(struct cv_config, dns.cache_size),
     .help = "Answers that each worker remembers. 0: no cache."},
};

static const struct cv_option chain_rows[] = {
    {.key = "attempt_timeout",
     .type = CV_OPTION_DURATION,
     .def = "10s",
     .min = 100,
     .max = HOUR,
     AT(struct cv_config, chain.attempt_timeout),
     .help = "For a connection through one member; then the next one is tried."},
    {.key = "total_timeout",
     .type = CV_OPTION_DURATION,
     .def = "30s",
     .min = 100,
     .max = HOUR,
     AT(struct cv_config, chain.total_timeout),
     .help = "For all attempts of one connection together."},
    {.key = "backoff",
     .type = CV_OPTION_DURATION,
     .def = "5s",
     .min = 100,
     .max = DAY,
     AT(struct cv_config, chain.backoff),
     .help = "A member that failed is tried last for so long, less up to a quarter at random. Each "
             "further failure in a row doubles it."},
    {.key = "backoff_max",
     .type = CV_OPTION_DURATION,
     .def = "2m",
     .min = 100,
     .max = DAY,
     AT(struct cv_config, chain.backoff_max),
     .help = "What it does not grow beyond."},
};

/* The members of these sections lie within struct cv_config itself, at their own offsets. */
static const struct cv_section snapshot_section =
    SECTION(snapshot_rows, struct cv_config, "Where the policy comes from.");
static const struct cv_section control_plane_section =
    SECTION(control_plane_rows, struct cv_config, "Fetching the snapshot from a server.");
static const struct cv_section admin_section =
    SECTION(admin_rows, struct cv_config, "The HTTP API for probes, metrics and operators.");
static const struct cv_section takeover_section = SECTION(
    takeover_rows, struct cv_config, "Replacing a running node without losing a connection.");
static const struct cv_section access_log_section =
    SECTION(access_log_rows, struct cv_config, "The record of sessions.");
static const struct cv_section log_section =
    SECTION(log_rows, struct cv_config, "The operator's log, on standard error.");
static const struct cv_section limits_section =
    SECTION(limits_rows, struct cv_config, "Bounds of sessions.");
static const struct cv_section login_section =
    SECTION(login_rows, struct cv_config, "What is done against guessing of passwords.");
static const struct cv_section direct_section =
    SECTION(direct_rows, struct cv_config, "Connections that this machine opens by itself.");
static const struct cv_section dns_section =
    SECTION(dns_rows, struct cv_config, "Resolving of names for direct connections.");
static const struct cv_section chain_section =
    SECTION(chain_rows, struct cv_config, "Failover chains: how long members are waited for.");

static const struct cv_option root_rows[] = {
    {.key = "node_id",
     .type = CV_OPTION_ID,
     .flags = CV_OPTION_REQUIRED | CV_OPTION_RESTART,
     .min = 1,
     .max = 128,
     AT(struct cv_config, node_id),
     .help = "Names this node: it chooses the override of the snapshot and is in every access-log "
             "line."},
    {.key = "workers",
     .type = CV_OPTION_UINT,
     .flags = CV_OPTION_RESTART,
     .def = "0",
     .min = 0,
     .max = 64,
     AT(struct cv_config, workers),
     .help = "Threads that carry sessions. 0: one per processor, at most 4."},
    {.key = "snapshot",
     .type = CV_OPTION_SECTION,
     .section = &snapshot_section,
     .help = "Where the policy comes from."},
    {.key = "control_plane",
     .type = CV_OPTION_SECTION,
     .section = &control_plane_section,
     .help = "Fetching the snapshot from a server."},
    {.key = "listeners",
     .type = CV_OPTION_SECTIONS,
     .flags = CV_OPTION_REQUIRED,
     .min = 1,
     .max = CV_CONFIG_MAX_LISTENERS,
     .section = &listener_section,
     AT(struct cv_config, listeners),
     .help = "The places where clients come in."},
    {.key = "egresses",
     .type = CV_OPTION_SECTIONS,
     .max = CV_CONFIG_MAX_EGRESSES,
     .section = &egress_section,
     AT(struct cv_config, egresses),
     .help = "What this node adds to egresses of the snapshot."},
    {.key = "tunnels",
     .type = CV_OPTION_SECTIONS,
     .max = CV_CONFIG_MAX_TUNNELS,
     .section = &tunnel_section,
     AT(struct cv_config, tunnels),
     .help = "VPN connections, by names that backends of kind `tunnel` refer to."},
    {.key = "admin",
     .type = CV_OPTION_SECTION,
     .section = &admin_section,
     .help = "The HTTP API for probes, metrics and operators."},
    {.key = "takeover",
     .type = CV_OPTION_SECTION,
     .section = &takeover_section,
     .help = "Replacing a running node."},
    {.key = "access_log",
     .type = CV_OPTION_SECTION,
     .section = &access_log_section,
     .help = "The record of sessions."},
    {.key = "log",
     .type = CV_OPTION_SECTION,
     .section = &log_section,
     .help = "The operator's log."},
    {.key = "limits",
     .type = CV_OPTION_SECTION,
     .section = &limits_section,
     .help = "Bounds of sessions."},
    {.key = "login",
     .type = CV_OPTION_SECTION,
     .section = &login_section,
     .help = "What is done against guessing of passwords."},
    {.key = "recheck",
     .type = CV_OPTION_ENUM,
     .def = "false",
     .names = bool_names,
     AT(struct cv_config, recheck),
     .help = "A new snapshot also ends the sessions whose target it blocks. Those of users who are "
             "gone, have expired or have another password end in any case."},
    {.key = "direct",
     .type = CV_OPTION_SECTION,
     .section = &direct_section,
     .help = "Connections that this machine opens by itself."},
    {.key = "dns",
     .type = CV_OPTION_SECTION,
     .section = &dns_section,
     .help = "Resolving of names."},
    {.key = "chain",
     .type = CV_OPTION_SECTION,
     .section = &chain_section,
     .help = "Failover chains."},
};
const struct cv_section cv_option_root =
    SECTION(root_rows, struct cv_config, "The top of the file.");

const struct cv_option *cv_option_find(const struct cv_section *section, const char *key)
{
    for (size_t i = 0; i < section->n; i++)
        if (strcmp(section->options[i].key, key) == 0)
            return &section->options[i];
    return NULL;
}

char *cv_option_duration(int64_t ms, char *out, size_t cap)
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{DAY, "d"}, {HOUR, "h"}, {MINUTE, "m"}, {SECOND, "s"}, {1, "ms"}};
    size_t len = 0;
    if (ms == 0) {
        snprintf(out, cap, "0s");
        return out;
    }
    out[0] = '\0';
    for (size_t i = 0; i < CV_ARRAY_SIZE(units) && len < cap; i++) {
        if (ms >= units[i].ms)
            len += (size_t)snprintf(out + len, cap - len, "%" PRId64 "%s", ms / units[i].ms,
                                    units[i].unit);
        ms %= units[i].ms;
    }
    return out;
}

static void join_names(const char *const *names, char *out, size_t cap)
{
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; names[i] != NULL && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s",
                                i == 0                 ? ""
                                : names[i + 1] == NULL ? " or "
                                                       : ", ",
                                names[i]);
}

char *cv_option_wanted(const struct cv_option *o, char *out, size_t cap)
{
    char lo[32], hi[32];
    switch (o->type) {
    case CV_OPTION_TEXT:
        snprintf(out, cap, "a text of at most %" PRId64 " bytes", o->max);
        break;
    case CV_OPTION_ID:
        snprintf(out, cap, "1 to %" PRId64 " letters, digits and . _ - :", o->max);
        break;
    case CV_OPTION_PATH:
        snprintf(out, cap, "a path");
        break;
    case CV_OPTION_LISTEN:
        snprintf(out, cap, "an address with a port%s",
                 o->flags & CV_OPTION_NO_FD ? " or unix:/path" : ", unix:/path or fd:NAME");
        break;
    case CV_OPTION_UINT:
        snprintf(out, cap, "a whole number from %" PRId64 " to %" PRId64, o->min, o->max);
        break;
    case CV_OPTION_MODE:
        snprintf(out, cap, "octal permission bits such as 0660, at most 0%" PRIo64,
                 (uint64_t)o->max);
        break;
    case CV_OPTION_DURATION:
        snprintf(out, cap, "a duration such as 500ms, 10s or 1m30s, from %s to %s",
                 cv_option_duration(o->min, lo, sizeof(lo)),
                 cv_option_duration(o->max, hi, sizeof(hi)));
        break;
    case CV_OPTION_ENUM:
        join_names(o->names, out, cap);
        break;
    case CV_OPTION_TEXTS:
        snprintf(out, cap, "a list of texts");
        break;
    case CV_OPTION_SERVERS:
        snprintf(out, cap, "a list of addresses such as 1.1.1.1, 1.1.1.1:5353 or [::1]:53");
        break;
    case CV_OPTION_PREFIXES:
        snprintf(out, cap, "a list of addresses and ranges such as 10.0.0.5 or 10.0.0.0/8");
        break;
    case CV_OPTION_SECTION:
    case CV_OPTION_SECTION_PTR:
        snprintf(out, cap, "a section (key: value)");
        break;
    case CV_OPTION_SECTIONS:
        snprintf(out, cap, "a list of sections (- key: value)");
        break;
    }
    return out;
}

/* ---- the reference page ---- */

static void reference_default(FILE *out, const struct cv_option *o)
{
    if (o->flags & CV_OPTION_REQUIRED)
        fprintf(out, "required");
    else if (o->type == CV_OPTION_SECTION)
        fprintf(out, "all defaults");
    else if (o->type == CV_OPTION_SECTION_PTR)
        fprintf(out, "none");
    else if (o->def == NULL)
        fprintf(out, "`[]`");
    else
        fprintf(out, "`%s`", o->def[0] != '\0' ? o->def : "\"\"");
}

static void reference_section(FILE *out, const char *path, const struct cv_section *s,
                              unsigned depth)
{
    char wanted[200], sub[128];
    fprintf(out, "\n## %s\n\n%s\n\n", depth == 0 ? "Top level" : path, s->help);
    fprintf(out, "| key | value | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        fprintf(out, "| `%s` | %s | ", o->key, cv_option_wanted(o, wanted, sizeof(wanted)));
        reference_default(out, o);
        fprintf(out, " | %s%s |\n", o->help,
                o->flags & CV_OPTION_RESTART ? " A change needs a restart." : "");
    }
    for (size_t i = 0; i < s->n; i++) {
        const struct cv_option *o = &s->options[i];
        if (o->section == NULL)
            continue;
        snprintf(sub, sizeof(sub), "%.80s%s%.40s%s", path, path[0] != '\0' ? "." : "", o->key,
                 o->type == CV_OPTION_SECTIONS ? "[]" : "");
        reference_section(out, sub, o->section, depth + 1);
    }
}

void cv_option_reference(FILE *out)
{
    fprintf(out,
            "# Node config: reference\n\n"
            "Made from the option table in `src/app/option.c` by `culvert config-reference`; a "
            "test fails when\nthis page and the table differ. A commented example is "
            "`examples/culvert.yaml`.\n\n"
            "The file is YAML: one document, no anchors, aliases or tags. Every key that is not "
            "listed here is an\nerror, and so is a key that appears twice. An error names file, "
            "line, column, key, value and what would\nbe right; `culvert check -c FILE` shows it "
            "without starting anything. Relative paths are relative to\nthe folder of the config "
            "file. Durations are written `500ms`, `10s`, `1m30s`, `2h`, `1d`.\n\n"
            "SIGHUP and a changed file load the config again: all of it is applied, but what is "
            "marked as needing\na restart, or nothing, with a line in the log that says why.\n");
    reference_section(out, "", &cv_option_root, 0);
}
