/* The tables of a compiled snapshot, for the files of this module. */
#pragma once

#include "policy/index.h"
#include "policy/snapshot.h"
#include "policy/symtab.h"

struct cv_selector_text {
    uint32_t off, len; /* in selector_text */
};

struct cv_route_def {
    struct cv_action action;
    uint32_t first_selector, n_selectors; /* as in the document, with blank ones */
};

struct cv_policy_def {
    struct cv_rcstr *id;
    struct cv_action default_action;
    uint32_t first_route, n_routes;
};

/* Arrays are allocated cleared, so a half-built snapshot can be released. */
struct cv_snapshot {
    uint32_t refs;
    uint64_t version;

    struct cv_user_def *users; /* owned */
    struct cv_symtab user_index;
    struct cv_frontend_def *frontends;       /* owned */
    struct cv_egress_def *egresses;          /* owned */
    struct cv_chain_member *members;         /* owned; of all egresses */
    struct cv_policy_def *policies;          /* owned */
    struct cv_route_def *routes;             /* owned; of all policies */
    struct cv_selector_text *selector_texts; /* owned; of all routes */
    char *selector_text;                     /* owned */
    struct cv_index index;

    uint32_t n_users, n_frontends, n_egresses, n_members, n_policies, n_routes;
    uint32_t n_selectors;      /* that are not blank */
    uint32_t n_selector_texts; /* all */
    size_t selector_text_len;
};

void cv_snapshot_free(struct cv_snapshot *s);
