/* A two-way flow of datagrams through one way out: UDP sockets of this machine, a relay that a
 * SOCKS5 upstream opened for us, later a tunnel's sockets. Each datagram that is sent names its own
 * destination; each one that is received names its own sender. Whoever holds the pointer owns the
 * flow and ends it with cv_dgram_close().
 *
 * Datagrams may be lost, and a flow never makes its owner wait: cv_dgram_send() takes a datagram
 * (it may keep a copy while the name it goes to is being resolved) or says why it was dropped. What
 * is dropped after it was taken comes by on_drop. Nothing that a datagram meets on its way, also no
 * ICMP error and no stray sender, ends the flow; only CV_DGRAM_HUP does.
 *
 * Readiness is edge-triggered: on_event(CV_DGRAM_READ) says that datagrams may have come, the owner
 * then calls recv until -EAGAIN. Callbacks come from the loop only, never from inside a call on the
 * flow, except that on_drop may come from inside send and recv; on_drop must not close the flow.
 * After cv_dgram_close() none comes; memory is released at the end of the loop's turn. */
#pragma once

#include "common/target.h"

struct cv_dgram;

/* Most datagrams that are worth giving to one call. */
#define CV_DGRAM_BATCH 32
/* Longest payload: UDP over IPv4 without options. */
#define CV_DGRAM_MAX 65507

enum {
    CV_DGRAM_READ = 1, /* recv may give datagrams */
    CV_DGRAM_HUP =
        2, /* the flow is over (the relay of an upstream is gone); cv_dgram.err says why */
};

/* One datagram to send. */
struct cv_dgram_out {
    const struct cv_target *to;    /* borrowed during the call */
    const struct cv_prefix *grant; /* the special prefix that the policy's selector names itself; or
                                      NULL; borrowed likewise */
    const uint8_t *data;           /* borrowed likewise */
    size_t len;
    /* Set by send. 0: taken. CV_E_GUARD: the address is special and not allowed. CV_E_LIMIT: too
     * many wait already. CV_E_DNS_*: the name is known not to resolve. CV_E_UNAVAILABLE: the flow
     * is over. -EMSGSIZE, -EAGAIN (the socket is full), -ENETUNREACH, ...: as the kernel said. */
    int err;
};

/* One datagram received. */
struct cv_dgram_in {
    uint8_t *buf; /* in: where to put it; the payload may begin later than here */
    size_t cap;
    uint8_t *data; /* out: within 'buf' */
    size_t len;
    struct cv_endpoint from; /* out: who sent it; IPv4-mapped is folded. No family: see 'name' */
    /* Out: who sent it, where the far side tells only the name that was sent to, and the port is in
     * 'from'; else NULL. Lies in 'buf', with as much room before 'data' as it takes and
     * CV_DGRAM_HEADROOM. */
    const uint8_t *name;
    uint8_t name_len;
};

struct cv_dgram_ops {
    const char *name;
    void (*send)(struct cv_dgram *d, struct cv_dgram_out *msgs, size_t n);
    /* 0 and *ret_n >= 0 datagrams (what was received but is of no use is left out and counted by
     * on_drop, so 0 datagrams is no end); -EAGAIN: none is there; CV_E_UNAVAILABLE: it is over. */
    int (*recv)(struct cv_dgram *d, struct cv_dgram_in *msgs, size_t n, size_t *ret_n);
    void (*close)(struct cv_dgram *d);
};

typedef void (*cv_dgram_event_cb)(void *arg, struct cv_dgram *d, unsigned events);
/* A datagram that was taken is dropped after all (its name does not resolve, it waited too long),
 * or one that came in was of no use (CV_E_PROTO). Codes as of cv_dgram_out.err. */
typedef void (*cv_dgram_drop_cb)(void *arg, struct cv_dgram *d, int err);

struct cv_dgram {
    const struct cv_dgram_ops *ops;
    int err; /* valid with CV_DGRAM_HUP */
    cv_dgram_event_cb _on_event;
    cv_dgram_drop_cb _on_drop;
    void *_arg;
};

/* Both callbacks are NULL after creation; what comes before they are set is not reported, so the
 * owner tries recv once after setting them. */
static inline void cv_dgram_set_cb(struct cv_dgram *d, cv_dgram_event_cb on_event,
                                   cv_dgram_drop_cb on_drop, void *arg)
{
    d->_on_event = on_event;
    d->_on_drop = on_drop;
    d->_arg = arg;
}
/* For implementations: deliver events. The callback may close the flow. */
static inline void cv_dgram_notify(struct cv_dgram *d, unsigned events)
{
    if (d->_on_event != NULL)
        d->_on_event(d->_arg, d, events);
}
static inline void cv_dgram_dropped(struct cv_dgram *d, int err)
{
    if (d->_on_drop != NULL)
        d->_on_drop(d->_arg, d, err);
}

static inline void cv_dgram_send(struct cv_dgram *d, struct cv_dgram_out *msgs, size_t n)
{
    d->ops->send(d, msgs, n);
}
static inline int cv_dgram_recv(struct cv_dgram *d, struct cv_dgram_in *msgs, size_t n,
                                size_t *ret_n)
{
    return d->ops->recv(d, msgs, n, ret_n);
}
/* NULL is accepted. */
static inline void cv_dgram_close(struct cv_dgram *d)
{
    if (d != NULL)
        d->ops->close(d);
}
