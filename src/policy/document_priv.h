/* The snapshot document as it was written: decoded strictly, nothing yet checked against anything
 * else. All texts are borrowed from the JSON tree, so the document lives only while it is compiled.
 * Lists are flat arrays; a parent holds the first index and the number of its children. */
#pragma once

#include "common/json.h"
#include "policy/snapshot.h"
#include "policy/vec.h"

struct cv_document_frontend {
    struct cv_json_str proto, uuid, password;
};

struct cv_document_user {
    struct cv_json_str name, password, expire, policy;
    uint64_t up_rate, down_rate, max_connections;
    uint32_t first_frontend, n_frontends;
};

struct cv_document_action {
    enum cv_action_type type;
    struct cv_json_str egress;
};

struct cv_document_route {
    struct cv_document_action action;
    uint32_t first_selector, n_selectors;
};

struct cv_document_policy {
    struct cv_json_str id;
    struct cv_document_action default_action;
    uint32_t first_route, n_routes;
};

struct cv_document_member {
    struct cv_json_str id; /* absent for an upstream */
    uint64_t priority;
    struct cv_json_str kind, addr, username, password;
    bool tls, skip_cert_verify;
};

struct cv_document_egress {
    struct cv_json_str id;
    bool is_chain;
    bool is_override; /* taken from node_overrides */
    uint32_t first_member, n_members;
};

struct cv_document {
    struct cv_json_doc *_json; /* owned */
    uint64_t version;
    uint64_t n_node_overrides;  /* entries, for any node */
    struct cv_json_str node_id; /* of this node */
    struct cv_vec users;        /* struct cv_document_user */
    struct cv_vec frontends;    /* struct cv_document_frontend */
    struct cv_vec policies;     /* struct cv_document_policy */
    struct cv_vec routes;       /* struct cv_document_route */
    struct cv_vec selectors;    /* struct cv_json_str */
    struct cv_vec egresses;     /* struct cv_document_egress */
    struct cv_vec overrides;    /* struct cv_document_egress: this node's */
    struct cv_vec members;      /* struct cv_document_member: of both */
};

/* Decode 'json'. 0; CV_E_PARSE, CV_E_INVALID or -ENOMEM with *reterr filled. On any result
 * cv_document_done() releases what was made. */
int cv_document_decode(struct cv_document *doc, const char *json, size_t len, const char *node_id,
                       struct cv_json_error *reterr) CV_MUST_CHECK;
void cv_document_done(struct cv_document *doc);
