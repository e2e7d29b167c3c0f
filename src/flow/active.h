/* The policy in force: a snapshot bound to run-time state (accounts, egresses), published by one
 * pointer exchange and read without locks (liburcu, QSBR: a loop turn is a quiescent state).
 *
 * The control thread swaps; a worker calls cv_active_get() and may use the result until the end of
 * its loop turn, or takes a reference. Every thread that reads joins first; the control thread
 * alone, which is the only one that swaps, may read without. What is replaced is released by
 * liburcu's own thread, so that freeing 100,000 users stalls neither a worker nor control. */
#pragma once

#include "flow/account.h"
#include "flow/egress.h"
#include "policy/snapshot.h"

struct cv_active_rcu;

struct cv_active {
    uint32_t _refs;
    uint32_t n_users, n_egresses;
    uint64_t generation; /* differs from that of any other one of this node; never 0 */
    struct cv_snapshot *snapshot;
    struct cv_account **accounts; /* by user index */
    struct cv_egress **egresses;  /* by egress index */
    struct cv_egress *direct;
    struct cv_active_rcu *_rcu; /* owned; what liburcu needs to release it later */
};

struct cv_active_holder;

/* Starts with the empty snapshot. */
struct cv_active_holder *cv_active_holder_new(struct cv_accounts *accounts,
                                              cv_egress_factory_cb factory, void *factory_arg);
/* After all threads that read have left. Returns when everything that was replaced is released. */
void cv_active_holder_free(struct cv_active_holder *h);
/* Wait until everything that was replaced so far and that no session holds is released; for tests.
 */
void cv_active_barrier(void);

/* Make 'snapshot' (ownership of one reference moves) the one in force. Control thread only. Does
 * not wait for readers: the old one is released when the last may have left it. 0 or -ENOMEM, then
 * the old one stays. */
int cv_active_swap(struct cv_active_holder *h, struct cv_snapshot *snapshot);

/* The policy in force; borrowed until the end of this loop turn. */
struct cv_active *cv_active_get(struct cv_active_holder *h);
struct cv_active *cv_active_ref(struct cv_active *a);
void cv_active_unref(struct cv_active *a);

/* A thread with a loop reads the active policy between these two. Joining sets the sleep hooks of
 * the loop. Leave before the loop is freed, when it no longer runs. */
void cv_active_thread_join(struct cv_loop *loop);
void cv_active_thread_leave(void);
/* For a turn that never sleeps: nothing that was got before is used after. The hooks do it. */
void cv_active_thread_quiesce(void);
