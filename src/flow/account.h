/* Run-time state of a user: permits, counters, the remembered login. Kept outside of the snapshot,
 * by name, so that it survives a swap. The table belongs to the control thread; the accounts
 * themselves are atomics and used by any thread that holds a reference. */
#pragma once

#include "common/metrics.h"
#include "common/rcstr.h"
#include "flow/rate.h"

struct cv_account {
    uint32_t _refs;
    struct cv_rcstr *name;
    struct cv_gauge active; /* sessions that hold a permit */
    struct cv_counter sessions;
    struct cv_counter bytes_up, bytes_down; /* live, not only at the end of a session */
    struct cv_counter refused;
    struct cv_rate up,
        down; /* of all sessions of the user together; set when a policy takes force */
    _Atomic uint64_t _verified; /* keyed hash of (stored, given) of the last right login; 0 none */
};

struct cv_account *cv_account_ref(struct cv_account *a);
void cv_account_unref(struct cv_account *a);

/* Take one of 'max' permits (0 = unlimited). False when all are taken; then nothing was taken. */
bool cv_account_permit(struct cv_account *a, uint64_t max);
void cv_account_release(struct cv_account *a);

/* The remembered login: a right password is known again without hashing it. */
bool cv_account_login_known(const struct cv_account *a, const struct cv_rcstr *stored,
                            const char *given, size_t len);
void cv_account_login_remember(struct cv_account *a, const struct cv_rcstr *stored,
                               const char *given, size_t len);

struct cv_accounts; /* the table, control thread only */
struct cv_accounts *cv_accounts_new(void);
void cv_accounts_free(struct cv_accounts *t);
/* The account of a name, made if there is none; the caller owns a reference. NULL: no memory. */
struct cv_account *cv_accounts_get(struct cv_accounts *t, struct cv_rcstr *name);
/* Forget accounts that only the table still holds. */
void cv_accounts_sweep(struct cv_accounts *t);
/* Call 'fn' for each account. */
void cv_accounts_each(struct cv_accounts *t, void (*fn)(void *arg, struct cv_account *a),
                      void *arg);
