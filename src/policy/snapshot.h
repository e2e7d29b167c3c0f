/* The compiled policy: users, routing policies, egresses; immutable, reference-counted, swapped
 * whole or not at all.
 *
 * cv_snapshot_compile() takes a document of Rove's snapshot schema 1 (a JSON object of at most
 * 8 MiB), decodes it strictly, merges this node's overrides, enforces every limit and reference,
 * and lays the result out in flat tables with one index over all policies (index.h), so that the
 * cost of a decision does not grow with the number of rules. Whatever is wrong is reported with its
 * JSON path, or line and column when it is no JSON at all, and nothing is kept.
 *
 * This module is pure: no files, no clock, no log. Run-time state of a user (permits, counters,
 * live sessions) lives in flow/account.h, keyed by name, and survives a swap.
 *
 * Worked example: control reads snapshot.json, calls cv_snapshot_compile(), hands the result to
 * cv_active_swap(); a worker finds the user with cv_snapshot_user_find(), checks the password with
 * cv_passwd_verify(), and calls cv_decide(). */
#pragma once

#include "common/err.h"
#include "common/rcstr.h"
#include "common/target.h"

#define CV_SNAPSHOT_MAX_BYTES     (8u << 20)
#define CV_SNAPSHOT_MAX_USERS     100000
#define CV_SNAPSHOT_MAX_POLICIES  10000
#define CV_SNAPSHOT_MAX_EGRESSES  10000
#define CV_SNAPSHOT_MAX_OVERRIDES 10000
#define CV_SNAPSHOT_MAX_SELECTORS 200000
#define CV_CHAIN_MAX_MEMBERS      16
#define CV_SNAPSHOT_MAX_TEXT      1024 /* bytes of a name, id or addr */
#define CV_BACKEND_MAX_CREDENTIAL 255  /* RFC 1929 has one byte for the length */

enum cv_backend_kind {
    CV_BACKEND_HTTP = 1, /* "http", "https": CONNECT; TLS only if 'tls' says so */
    CV_BACKEND_SOCKS5,   /* "socks5", "socks" */
    CV_BACKEND_REVERSE,  /* addr = hop id */
    CV_BACKEND_TUNNEL,   /* addr = pool or tunnel of the node's own config */
    CV_BACKEND_SUBNETRA, /* addr ignored */
};

struct cv_backend {
    enum cv_backend_kind kind;
    bool tls;
    bool skip_cert_verify;
    struct cv_rcstr *addr;
    struct cv_rcstr *username; /* NULL: none */
    struct cv_rcstr *password; /* NULL: none; a secret */
    struct cv_rcstr *label;    /* "upstream:<addr>", "reverse:<hop id>", "tunnel:<name>", ... */
};

struct cv_chain_member {
    struct cv_rcstr *id;
    uint32_t priority; /* members are sorted by it */
    struct cv_backend backend;
};

struct cv_egress_def {
    struct cv_rcstr *id;
    struct cv_rcstr *label; /* of the backend, or "chain:<id>" */
    bool is_chain;
    uint32_t n_members;              /* 1 for an upstream */
    struct cv_chain_member *members; /* for an upstream: one, with NULL id */
};

enum cv_action_type {
    CV_ACTION_DIRECT = 1,
    CV_ACTION_BLOCK,
    CV_ACTION_EGRESS,
};
struct cv_action {
    enum cv_action_type type;
    uint32_t egress; /* index into the snapshot's egresses, for CV_ACTION_EGRESS */
};

struct cv_user_def {
    struct cv_rcstr *name;
    struct cv_rcstr *password; /* as in the document: plain, sha256:..., $argon2id$...; a secret */
    int32_t expire_day;        /* last valid day (days since 1970), INT32_MAX = never */
    uint64_t up_rate;          /* bytes/s, 0 = unlimited */
    uint64_t down_rate;
    uint64_t max_connections; /* 0 = unlimited */
    uint32_t policy;          /* index */
};

struct cv_frontend_def { /* one credential of users.<name>.frontends.<proto> */
    struct cv_rcstr *proto;
    struct cv_rcstr *uuid;     /* trimmed, lower case; NULL: none */
    struct cv_rcstr *password; /* NULL: none; a secret */
    uint32_t user;             /* index */
};

struct cv_snapshot; /* opaque; accessors below */

/* Where and why a document was refused. */
enum cv_snapshot_stage {
    CV_SNAPSHOT_READ = 1, /* too big */
    CV_SNAPSHOT_DECODE,
    CV_SNAPSHOT_COMPILE,
};
struct cv_snapshot_error {
    enum cv_snapshot_stage stage;
    uint32_t line, column; /* 0 unless it is no JSON */
    char path[256];        /* "users.alice.expire", "routing_policies.p.routes[3].selectors[0]" */
    char text[512];        /* what is wrong and what would be right; never holds a secret */
};

/* Decode and compile. 'node_id' chooses the override. 0; CV_E_PARSE, CV_E_INVALID, CV_E_LIMIT or
 * -ENOMEM with *reterr filled. The caller owns one reference. */
int cv_snapshot_compile(const char *json, size_t len, const char *node_id,
                        struct cv_snapshot_error *reterr,
                        struct cv_snapshot **ret_snapshot) CV_MUST_CHECK;
/* The empty snapshot, version 0: every login fails. */
struct cv_snapshot *cv_snapshot_new_empty(void);
struct cv_snapshot *cv_snapshot_ref(struct cv_snapshot *s);
void cv_snapshot_unref(struct cv_snapshot *s);

uint64_t cv_snapshot_version(const struct cv_snapshot *s);
uint32_t cv_snapshot_n_users(const struct cv_snapshot *s);
uint32_t cv_snapshot_n_policies(const struct cv_snapshot *s);
uint32_t cv_snapshot_n_egresses(const struct cv_snapshot *s);
uint32_t cv_snapshot_n_selectors(const struct cv_snapshot *s);
size_t cv_snapshot_bytes(const struct cv_snapshot *s); /* of memory, without allocator overhead */
const struct cv_user_def *cv_snapshot_user(const struct cv_snapshot *s, uint32_t index);
const struct cv_egress_def *cv_snapshot_egress(const struct cv_snapshot *s, uint32_t index);
struct cv_rcstr *cv_snapshot_policy_id(const struct cv_snapshot *s, uint32_t policy); /* borrowed */
/* Credentials of the other front ends (TUIC): all of them, in the order of the document. */
uint32_t cv_snapshot_n_frontends(const struct cv_snapshot *s);
const struct cv_frontend_def *cv_snapshot_frontend(const struct cv_snapshot *s, uint32_t index);

#define CV_USER_NONE UINT32_MAX
/* Index of the user, or CV_USER_NONE. Case-sensitive. */
uint32_t cv_snapshot_user_find(const struct cv_snapshot *s, const char *name, size_t len);
