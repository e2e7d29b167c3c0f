/* Inbound: how clients come in. A listening address with its protocol accepts, bounds, and hands
 * each connection to the protocol that its listener has, or for "mixed" to the one that its first
 * byte shows.
 *
 * The descriptor side belongs to the control thread; each worker has a port (struct
 * cv_listener_port) that accepts on its own loop. TCP addresses get one SO_REUSEPORT socket per
 * worker; Unix sockets and descriptors passed by systemd are shared by all workers.
 *
 * The life of a connection here: the acceptor gives a descriptor, the port refuses it when
 * max_sessions are live or it comes from where no PROXY header is believed, else makes a stream of
 * it. A plain "socks5", "http" or "sni" connection goes to its protocol at once. With a PROXY
 * header, with TLS, or when the protocol is still to be seen, detect.c holds it until the client's
 * first byte (after header and TLS handshake), as a session of its own, so that it is counted,
 * bounded and can be ended like any other. Then cv_socks5_serve(), cv_http_serve() or
 * cv_sni_serve() owns it.
 *
 * What this module does not do: open listening sockets, choose policies, dial. */
#pragma once

#include "flow/session.h"
#include "inbound/sniffer.h"
#include "net/acceptor.h"
#include "net/tls.h"

enum cv_listener_protocol {
    CV_LISTENER_SOCKS5 = 1,
    CV_LISTENER_HTTP,
    CV_LISTENER_MIXED,
    CV_LISTENER_SNI,
};

/* What one listener is; immutable, reference-counted, replaced by a reload (each port holds one).
 */
struct cv_listener_conf {
    uint32_t _refs;
    char name[64];
    enum cv_listener_protocol protocol;
    char *listen;       /* as in the config: "127.0.0.1:1080", "unix:/run/x", "fd:NAME"; owned */
    char *no_auth_user; /* NULL: a login is required; owned */
    /* A reference; NULL: plain. "socks5" and "http" then take TLS only, "mixed" takes both. */
    struct cv_tls_server_ctx *tls;
    bool tls_only;                /* "mixed" takes no plain clients either */
    bool proxy_protocol;          /* every connection begins with a PROXY header ... */
    struct cv_prefix *proxy_from; /* ... and comes from one of these, or a Unix socket; owned */
    size_t n_proxy_from;
    struct cv_sniff_conf sniff;
    /* "sni" only: whose policy applies, which names are relayed (canonical, owned), and to which
     * port (0: the one that the client came to). */
    char *identity;
    char **origins;
    size_t n_origins;
    uint16_t origin_port;
    uint32_t unix_mode; /* of a Unix socket; default 0660 */
    bool udp;           /* SOCKS5 UDP ASSOCIATE is served; default true */
    struct cv_ip
        udp_advertise; /* told to clients of its family as the relay's; none: the real one */
    struct cv_listener_stats *stats; /* borrowed (lives as long as the node) */
};
/* Cleared, one reference, defaults filled in. */
struct cv_listener_conf *cv_listener_conf_new(void);
struct cv_listener_conf *cv_listener_conf_ref(struct cv_listener_conf *c);
void cv_listener_conf_unref(struct cv_listener_conf *c); /* NULL is accepted */

/* One worker's side of a listener. */
struct cv_listener_port;
/* Start accepting on 'fd' (ownership moves unless 'shared', also on failure). On the worker's
 * thread. */
int cv_listener_port_open(struct cv_worker *w, struct cv_listener_conf *conf, int fd, bool shared,
                          struct cv_listener_port **ret_port) CV_MUST_CHECK;
/* For connections that are accepted from now on. Takes a reference. */
void cv_listener_port_set_conf(struct cv_listener_port *p, struct cv_listener_conf *conf);
/* Take what is in the backlog, then stop. Sessions that run go on. NULL is accepted. */
void cv_listener_port_close(struct cv_listener_port *p);
/* Stop at once and leave the backlog to another process that has the socket as well. NULL is
 * accepted. */
void cv_listener_port_leave(struct cv_listener_port *p);
/* Look at the backlog anew: another process that waited on the socket, too, may have been woken for
 * a connection and have died before it took it. 0 or -errno, then the port accepts no more. */
int cv_listener_port_rearm(struct cv_listener_port *p) CV_MUST_CHECK;
/* The descriptor it accepts on; the port's. Any thread, while the port stays open. */
int cv_listener_port_fd(const struct cv_listener_port *p);

/* Most bytes that a protocol is handed at its start. */
#define CV_INBOUND_EARLY_MAX 1024

/* What a protocol is given: a client's connection at its first byte. */
struct cv_inbound {
    struct cv_worker *worker;
    struct cv_listener_conf *conf; /* borrowed during the call */
    struct cv_stream *stream;      /* ownership moves */
    struct cv_endpoint client;
    /* Whom the client's certificate names; borrowed during the call; NULL: it has shown none. That
     * user needs no password, and nobody else can log in here. */
    struct cv_rcstr *user;
    /* Bytes already read, at most CV_INBOUND_EARLY_MAX. With none, the first event tells that there
     * is something to read; with some, more may wait already: read to -EAGAIN. */
    const void *early;
    size_t early_len;
    int64_t accepted_ms; /* loop clock; handshake_timeout counts from here */
};
/* Do the limits of connections per second let this client in? Asked once for each connection, as
 * soon as it is known whose it is. A refusal is counted and logged. */
bool cv_listener_admits(const struct cv_inbound *in);
/* socks5.c, http.c and sni.c: take over the connection; on any failure close it. */
void cv_socks5_serve(const struct cv_inbound *in);
void cv_http_serve(const struct cv_inbound *in);
void cv_sni_serve(const struct cv_inbound *in);
