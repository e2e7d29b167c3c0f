/* A session: one client connection (SOCKS5, CONNECT) or one forwarded HTTP request, from the moment
 * its handshake begins to its access-log line. This is the record; the sockets and the state
 * machine belong to the inbound protocol that embeds it.
 *
 * Order: cv_session_begin(), then as it becomes known cv_session_set_user() and
 * cv_session_set_target(), cv_flow_open() (decide, permit, dial; flow.h), a relay that counts into
 * bytes_up/down, and cv_session_end(), which writes the line, releases the permit and counts. */
#pragma once

#include "common/jsonw.h"
#include "common/list.h"
#include "flow/worker.h"

struct cv_session;
struct cv_udp_counts { /* datagrams of an association; written by the owning thread only */
    struct cv_counter up, down, dropped;
};
struct cv_session_ops {
    /* End this session now: it will call cv_session_end() in this call or soon after. 'err' says
     * why (CV_E_KILLED, CV_E_DRAINING, CV_E_EXPIRED, CV_E_NOTFOUND: the user is gone,
     * CV_E_REVOKED: the user has another password, CV_E_POLICY: the target is blocked now). */
    void (*kill)(struct cv_session *s, int err);
};

enum cv_session_state {
    CV_SESSION_HANDSHAKE = 1, /* reading the client's wish; checking the login */
    CV_SESSION_DIAL,          /* decided, the way out is being opened */
    CV_SESSION_RELAY,         /* bytes flow */
    CV_SESSION_ENDED,
};

struct cv_session {
    struct cv_list _node;
    const struct cv_session_ops *ops;
    struct cv_worker *worker;
    uint64_t id; /* worker index in the top byte; shown as 16 hex digits */
    enum cv_session_state state;
    const char *protocol;               /* "socks5", "http"; constant */
    struct cv_listener_stats *listener; /* borrowed (lives as long as the node) */
    struct cv_endpoint client;
    struct cv_rcstr *username;  /* as given by the client, NULL: none yet */
    struct cv_account *account; /* a reference; NULL until authenticated */
    uint64_t credential; /* cv_session_credential() of the password it is bound to; 0: none */
    uint32_t _round;     /* of cv_session_recheck() */
    struct cv_rcstr *target_host; /* canonical; NULL: not known yet */
    uint16_t target_port;
    bool permit;   /* holds one of the account */
    int32_t route; /* -1: none matched, or not decided */
    uint64_t snapshot_version;
    struct cv_rcstr *policy_id; /* NULL: not decided */
    /* What the client's first bytes say; NULL unless the outcome is a match. Set before
     * cv_flow_open() it takes part in the decision, set later it is only told. */
    struct cv_rcstr *sniffed_host;
    enum cv_sniff_outcome sniff;
    bool sniff_routes; /* the sniffed host took part in the decision, and does from now on */
    bool by_sniffed;   /* the sniffed host has decided */
    struct cv_rcstr *decision; /* "direct", "block", egress label; NULL: not decided */
    struct cv_egress *egress;  /* a reference; NULL until dialled */
    struct cv_rcstr *outlet;   /* what carries it; NULL until established */
    /* The row of the egress that carries it; borrowed (lives as long as the node). NULL until
     * dialled. */
    struct cv_egress_stats *egress_stats;
    struct cv_rcstr *member; /* chain member, or NULL */
    uint32_t attempts;
    struct cv_endpoint peer;                /* the address dialled */
    int64_t start_ms;                       /* loop clock */
    int64_t dial_us;                        /* how long the dial took, 0 until established */
    struct cv_counter bytes_up, bytes_down; /* written by the owning thread only */
    const struct cv_udp_counts *udp;        /* borrowed (of what embeds it); NULL: no UDP */
    const char *note;    /* message of a line without failure; constant or NULL */
    enum cv_stage stage; /* where it failed */
    int err;
};

void cv_session_begin(struct cv_session *s, struct cv_worker *w, const struct cv_session_ops *ops,
                      const char *protocol, struct cv_listener_stats *listener,
                      const struct cv_endpoint *client);
/* 'account' NULL: not authenticated. Takes its own references. */
void cv_session_set_user(struct cv_session *s, struct cv_rcstr *username,
                         struct cv_account *account);
int cv_session_set_target(struct cv_session *s, const struct cv_target *t) CV_MUST_CHECK;
/* The outcome of looking at the first bytes, with the host if it is a match; counted. Once. 0 or
 * -ENOMEM, then nothing has changed. */
int cv_session_set_sniffed(struct cv_session *s, enum cv_sniff_outcome outcome,
                           const struct cv_host *host) CV_MUST_CHECK;
/* The sniffed host if it takes part in decisions: 'buf', filled in; else NULL. */
const struct cv_host *cv_session_sniffed(const struct cv_session *s, struct cv_host *buf);
/* Count bytes of either direction: session, account, listener and egress, as they flow. */
void cv_session_count_up(struct cv_session *s, size_t n);
void cv_session_count_down(struct cv_session *s, size_t n);
/* Count for a session that has several ways out at a time, on the row of one of them. */
void cv_session_count_row(struct cv_session *s, struct cv_row_stats *row, size_t up, size_t down);
/* First failure wins; later calls change nothing. */
void cv_session_fail(struct cv_session *s, enum cv_stage stage, int err);
/* Log, release, unlink. The embedding object frees the memory. Ending twice is a bug. */
void cv_session_end(struct cv_session *s);
/* As cv_session_end(), but without a log line or counts: nothing worth a line happened (a client
 * that connected and left). */
void cv_session_drop(struct cv_session *s);

/* Find a live session of this worker. */
struct cv_session *cv_session_find(struct cv_worker *w, uint64_t id);
/* End all sessions of this worker. */
void cv_session_kill_all(struct cv_worker *w, int err);
/* End the sessions of this worker whose user is gone from the policy in force, has expired or has
 * another password, and with recheck_targets those whose target it blocks; and let those that wait
 * for their user's rate ask anew. To be called after a swap and when the day changes. Nobody else
 * notices. A part of the sessions is looked at in this call, the others in the next turns of the
 * loop, so that it does not stall. */
void cv_session_recheck(struct cv_worker *w);
/* What a session keeps of its user's password, never 0: a keyed hash of the stored form. */
uint64_t cv_session_credential(const struct cv_user_def *user);
/* Write what an operator may know about it, as one JSON object. On the session's thread. */
void cv_session_describe(struct cv_jsonw *w, const char *key, const struct cv_session *s);
const char *cv_session_state_name(enum cv_session_state state);
