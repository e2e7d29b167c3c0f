/* A TCP/IP stack over packet interfaces: what makes a tunnel's packets connections.
 *
 * A stack belongs to one loop, and every call here is made on that loop's thread. A tunnel's
 * carrier (net/pktif.h) becomes an interface of the stack with cv_netif_open(); connections and
 * datagram flows are opened on an interface and never leave it: two tunnels may have the same
 * addresses, and each packet finds the connection of its own interface. Nothing is ever sent by
 * another way than the interface it was opened on.
 *
 * Engines stand behind the interface. 'user' is lwIP inside the process: it needs no privilege. A
 * process has at most one stack of this engine, for lwIP has one global state.
 *
 * Flow control is explicit: the window of a connection opens only by what its reader has taken, and
 * send takes no more than the congestion window makes useful, so that neither a slow reader nor a
 * slow network makes memory grow. The receive window grows on demand up to 4 MiB.
 *
 * An interface outlives the loss of its carrier. While pktif.up is false, connections wait; when it
 * is up again with the same addresses they go on, and lost segments are sent at once. With other
 * addresses (cv_netif_set_addresses()) they end with -ENETRESET.
 *
 * Example: a tunnel comes up; cv_netif_open() with the pushed addresses; cv_netif_connect() for
 * each session; the stream that comes is relayed as any other; cv_netif_close() when the tunnel is
 * gone for good. */
#pragma once

#include "common/addr.h"
#include "common/list.h"
#include "common/metrics.h"
#include "net/dgram.h"
#include "net/loop.h"
#include "net/pktif.h"
#include "net/stream.h"

struct cv_netstack;
struct cv_netif;
struct cv_net_connect;

struct cv_net_addresses {
    struct cv_ip ip4; /* no family: none */
    struct cv_ip ip6; /* no family: none */
};

/* Any thread may read them; they outlive the interface (owned by whoever opens it). */
struct cv_netif_stats {
    struct cv_counter packets_in, packets_out;
    struct cv_counter bytes_in, bytes_out; /* of IP packets */
    struct cv_counter dropped;             /* packets: carrier down, queue full, no memory */
    struct cv_counter retransmits;         /* TCP segments sent again */
    struct cv_counter connects;            /* TCP connections established */
    struct cv_counter resets;              /* connections ended by a change of addresses */
    struct cv_gauge tcp, udp;              /* open now */
    struct cv_counter rtt_us;              /* smoothed round trip of handshakes; 0: none yet */
};

/* err 0 and the stream, which the callee owns; -ECONNREFUSED, -ETIMEDOUT, -ENETRESET,
 * -EADDRNOTAVAIL (no port is left towards this destination), -EAFNOSUPPORT (the interface has no
 * such address), -ENETDOWN (it was closed), -ENOMEM. */
typedef void (*cv_net_connect_cb)(struct cv_net_connect *c, int err, struct cv_stream *stream);

/* One attempt; embedded in its owner, who sets 'cb'. */
struct cv_net_connect {
    cv_net_connect_cb cb;
    struct cv_endpoint local; /* valid with err 0 */
    void *_impl;
    struct cv_task _task;
    struct cv_loop *_loop;
    int _err;
    bool _running;
};

struct cv_netstack_ops {
    const char *name;
    void (*free)(struct cv_netstack *ns);
    int (*open)(struct cv_netstack *ns, struct cv_pktif *pi, const struct cv_net_addresses *a,
                struct cv_netif_stats *stats, struct cv_netif **ret_nif);
    void (*set_addresses)(struct cv_netif *nif, const struct cv_net_addresses *a);
    void (*close)(struct cv_netif *nif);
    void (*connect)(struct cv_netif *nif, struct cv_net_connect *c, const struct cv_endpoint *to);
    void (*cancel)(struct cv_net_connect *c);
    int (*udp)(struct cv_netif *nif, struct cv_dgram **ret_dgram);
};

struct cv_netstack {
    const struct cv_netstack_ops *ops;
    struct cv_loop *loop; /* borrowed (outlives the stack) */
};
struct cv_netif {
    struct cv_netstack *ns; /* borrowed */
    struct cv_net_addresses addresses;
    struct cv_netif_stats *stats; /* borrowed */
};

/* The engine inside the process. -EBUSY: there is one already; -ENOMEM. */
int cv_netstack_user_new(struct cv_loop *loop, struct cv_netstack **ret_ns) CV_MUST_CHECK;
/* No interface is open. NULL is accepted. */
static inline void cv_netstack_free(struct cv_netstack *ns)
{
    if (ns != NULL)
        ns->ops->free(ns);
}

/* Attach to 'pi', which outlives the interface. -EMFILE: too many interfaces; -ENOMEM. */
static inline int cv_netif_open(struct cv_netstack *ns, struct cv_pktif *pi,
                                const struct cv_net_addresses *a, struct cv_netif_stats *stats,
                                struct cv_netif **ret_nif)
{
    return ns->ops->open(ns, pi, a, stats, ret_nif);
}
/* The same: nothing happens. An address that is gone ends what was bound to it, -ENETRESET. */
static inline void cv_netif_set_addresses(struct cv_netif *nif, const struct cv_net_addresses *a)
{
    nif->ns->ops->set_addresses(nif, a);
}
/* Everything that is open on it ends with -ENETDOWN; streams and flows stay with their owners, who
 * close them. NULL is accepted. */
static inline void cv_netif_close(struct cv_netif *nif)
{
    if (nif != NULL)
        nif->ns->ops->close(nif);
}
/* The callback comes later, never from inside this call. */
static inline void cv_netif_connect(struct cv_netif *nif, struct cv_net_connect *c,
                                    const struct cv_endpoint *to)
{
    nif->ns->ops->connect(nif, c, to);
}
/* No callback comes. Not running: nothing. */
static inline void cv_netif_cancel(struct cv_netif *nif, struct cv_net_connect *c)
{
    if (c->_running)
        nif->ns->ops->cancel(c);
}
/* A flow of datagrams. It sends to addresses only (CV_E_INVALID for a name). -ENOMEM,
 * -EADDRNOTAVAIL. */
static inline int cv_netif_udp(struct cv_netif *nif, struct cv_dgram **ret_dgram)
{
    return nif->ns->ops->udp(nif, ret_dgram);
}
