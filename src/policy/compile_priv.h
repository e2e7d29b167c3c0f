/* Turning a decoded document into a snapshot, in the order: overrides, egresses, policies, users.
 * Each part checks what it refers to, reports the first fault with its path, and fills its tables
 * of the snapshot. */
#pragma once

#include "policy/document_priv.h"
#include "policy/snapshot_priv.h"

struct cv_compile {
    struct cv_document doc;
    struct cv_snapshot *s;         /* owned until it is handed out */
    struct cv_snapshot_error *err; /* borrowed */
    struct cv_symtab egress_index; /* ids of s->egresses */
    struct cv_symtab policy_index; /* ids of s->policies */
};

/* A place in the document, built from the root on; used where it was begun, never copied. */
struct cv_compile_path {
    struct cv_json_at at[10]; /* the first is the root */
    unsigned n;               /* frames below the root */
};

void cv_compile_path_init(struct cv_compile_path *p);
/* Go one level down: to a member by its name, or an element by its number. They return 'p'. */
struct cv_compile_path *cv_compile_path_key(struct cv_compile_path *p, const char *key);
struct cv_compile_path *cv_compile_path_str(struct cv_compile_path *p, struct cv_json_str key);
struct cv_compile_path *cv_compile_path_nth(struct cv_compile_path *p, size_t index);

/* Record what is wrong and where ('p' may be NULL: nowhere). Returns 'err'. */
int cv_compile_fail(struct cv_compile *c, int err, const struct cv_compile_path *p, const char *fmt,
                    ...) CV_PRINTF(4, 5);
int cv_compile_no_memory(struct cv_compile *c);

struct cv_json_str cv_compile_trim(struct cv_json_str s);
/* A cleared table of 'n' elements in *ret_table; NULL when n is 0. */
int cv_compile_table(struct cv_compile *c, size_t n, size_t size, void *ret_table) CV_MUST_CHECK;
/* A new string in *ret_str; NULL when 's' is absent. */
int cv_compile_str(struct cv_compile *c, struct cv_json_str s,
                   struct cv_rcstr **ret_str) CV_MUST_CHECK;
/* The same for what nobody may find in freed memory: passwords, uuids that stand for one. */
int cv_compile_secret(struct cv_compile *c, struct cv_json_str s,
                      struct cv_rcstr **ret_str) CV_MUST_CHECK;
/* CV_E_LIMIT when 's' is longer than CV_SNAPSHOT_MAX_TEXT. */
int cv_compile_check_length(struct cv_compile *c, struct cv_json_str s,
                            const struct cv_compile_path *p) CV_MUST_CHECK;

int cv_compile_egresses(struct cv_compile *c) CV_MUST_CHECK;
int cv_compile_policies(struct cv_compile *c) CV_MUST_CHECK;
int cv_compile_users(struct cv_compile *c) CV_MUST_CHECK;
