#include "flow/active.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include <urcu/urcu-qsbr.h>

#include "common/alloc.h"

#include "common/poison.h"

/* ThreadSanitizer does not see into liburcu. In its builds, what a grace period orders (every
 * quiescent state before the callbacks that waited for it) is said a second time with an atomic. */
#if defined(__SANITIZE_THREAD__)
#define TSAN_BUILD 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN_BUILD 1
#endif
#endif
#ifdef TSAN_BUILD
static _Atomic unsigned grace;
#define GRACE_RELEASE() atomic_fetch_add_explicit(&grace, 1, memory_order_acq_rel)
#define GRACE_ACQUIRE() (void)atomic_load_explicit(&grace, memory_order_acquire)
#else
#define GRACE_RELEASE() (void)0
#define GRACE_ACQUIRE() (void)0
#endif

/* How many callbacks liburcu still has, for cv_active_barrier(). Its own barrier would do, but the
 * sanitizer cannot follow it. */
static pthread_mutex_t waiting_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t waiting_none = PTHREAD_COND_INITIALIZER;
static size_t waiting;

static _Thread_local bool joined;

struct cv_active_rcu {
    struct rcu_head head;
    struct cv_active *active; /* borrowed: owns this */
};

struct cv_active_holder {
    /* Loaded with acquire order: on the machines that matter it costs as much as
     * rcu_dereference(), and every tool understands it. */
    struct cv_active *_Atomic current; /* holds one reference */
    struct cv_accounts *accounts;      /* borrowed (outlives) */
    cv_egress_factory_cb factory;
    void *factory_arg;
    uint64_t generation; /* of the newest; control thread only */
};

static void active_free(struct cv_active *a)
{
    for (uint32_t i = 0; a->accounts != NULL && i < a->n_users; i++)
        cv_account_unref(a->accounts[i]);
    for (uint32_t i = 0; a->egresses != NULL && i < a->n_egresses; i++)
        cv_egress_unref(a->egresses[i]);
    cv_egress_unref(a->direct);
    cv_free(a->accounts);
    cv_free(a->egresses);
    cv_snapshot_unref(a->snapshot);
    cv_free(a->_rcu);
    cv_free(a);
}

/* Fill in what 'snapshot' asks for; what is missing after a failure stays NULL. */
static int active_bind(struct cv_active *a, struct cv_active_holder *h,
                       const struct cv_snapshot *snapshot)
{
    a->n_users = cv_snapshot_n_users(snapshot);
    a->n_egresses = cv_snapshot_n_egresses(snapshot);
    a->_rcu = cv_try_zalloc(sizeof(*a->_rcu));
    /* One more than needed, so that an empty snapshot has arrays, too. */
    a->accounts = cv_try_zalloc(((size_t)a->n_users + 1) * sizeof(struct cv_account *));
    a->egresses = cv_try_zalloc(((size_t)a->n_egresses + 1) * sizeof(struct cv_egress *));
    if (a->_rcu == NULL || a->accounts == NULL || a->egresses == NULL)
        return -ENOMEM;
    a->_rcu->active = a;
    for (uint32_t i = 0; i < a->n_users; i++) {
        a->accounts[i] = cv_accounts_get(h->accounts, cv_snapshot_user(snapshot, i)->name);
        if (a->accounts[i] == NULL)
            return -ENOMEM;
    }
    for (uint32_t i = 0; i < a->n_egresses; i++) {
        a->egresses[i] = h->factory(h->factory_arg, cv_snapshot_egress(snapshot, i));
        if (a->egresses[i] == NULL)
            return -ENOMEM;
    }
    a->direct = h->factory(h->factory_arg, NULL);
    return a->direct != NULL ? 0 : -ENOMEM;
}

/* Takes the reference of 'snapshot', also on failure. */
static struct cv_active *active_new(struct cv_active_holder *h, struct cv_snapshot *snapshot)
{
    struct cv_active *a = cv_try_zalloc(sizeof(*a));
    if (a == NULL) {
        cv_snapshot_unref(snapshot);
        return NULL;
    }
    a->_refs = 1;
    a->generation = ++h->generation;
    a->snapshot = snapshot;
    if (active_bind(a, h, snapshot) != 0) {
        active_free(a);
        return NULL;
    }
    return a;
}

static void release_later(struct cv_active *a, void (*fn)(struct rcu_head *head))
{
    struct rcu_head *head = &a->_rcu->head;
    pthread_mutex_lock(&waiting_lock);
    waiting++;
    pthread_mutex_unlock(&waiting_lock);
    GRACE_RELEASE();
    urcu_qsbr_call_rcu(head, fn);
}

static void released(void)
{
    pthread_mutex_lock(&waiting_lock);
    if (--waiting == 0)
        pthread_cond_broadcast(&waiting_none);
    pthread_mutex_unlock(&waiting_lock);
}

static void on_unheld(struct rcu_head *head)
{
    GRACE_ACQUIRE();
    active_free(CV_CONTAINER_OF(head, struct cv_active_rcu, head)->active);
    released();
}

/* No reader can find it any more: only now the holder's reference goes, so that cv_active_ref()
 * of a reader that had found it just before the exchange still counted from one upwards. */
static void on_unreachable(struct rcu_head *head)
{
    GRACE_ACQUIRE();
    struct cv_active *a = CV_CONTAINER_OF(head, struct cv_active_rcu, head)->active;
    if (__atomic_fetch_sub(&a->_refs, 1, __ATOMIC_ACQ_REL) == 1)
        active_free(a);
    released();
}

struct cv_active_holder *cv_active_holder_new(struct cv_accounts *accounts,
                                              cv_egress_factory_cb factory, void *factory_arg)
{
    /* liburcu starts its thread here, so that it inherits a mask with all signals blocked. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    (void)urcu_qsbr_get_default_call_rcu_data();
    pthread_sigmask(SIG_SETMASK, &old, NULL);

    struct cv_active_holder *h = cv_zalloc(sizeof(*h));
    h->accounts = accounts;
    h->factory = factory;
    h->factory_arg = factory_arg;
    struct cv_snapshot *empty = cv_snapshot_new_empty();
    struct cv_active *a = active_new(h, empty);
    CV_ASSERT(a != NULL); /* a few hundred bytes at start */
    atomic_store_explicit(&h->current, a, memory_order_release);
    return h;
}

void cv_active_holder_free(struct cv_active_holder *h)
{
    if (h == NULL)
        return;
    release_later(atomic_load_explicit(&h->current, memory_order_acquire), on_unreachable);
    cv_active_barrier();
    cv_free(h);
}

void cv_active_barrier(void)
{
    /* A thread that reads holds up what it waits for. */
    if (joined)
        urcu_qsbr_thread_offline();
    GRACE_RELEASE();
    pthread_mutex_lock(&waiting_lock);
    while (waiting > 0)
        pthread_cond_wait(&waiting_none, &waiting_lock);
    pthread_mutex_unlock(&waiting_lock);
    if (joined)
        urcu_qsbr_thread_online();
}

/* Only when nothing can fail any more: the accounts are those of the old policy, too. */
static void set_rates(struct cv_active *a)
{
    for (uint32_t i = 0; i < a->n_users; i++) {
        const struct cv_user_def *user = cv_snapshot_user(a->snapshot, i);
        cv_rate_set(&a->accounts[i]->up, user->up_rate);
        cv_rate_set(&a->accounts[i]->down, user->down_rate);
    }
}

int cv_active_swap(struct cv_active_holder *h, struct cv_snapshot *snapshot)
{
    struct cv_active *a = active_new(h, snapshot);
    if (a == NULL)
        return -ENOMEM;
    struct cv_active *old = atomic_exchange_explicit(&h->current, a, memory_order_acq_rel);
    set_rates(a);
    release_later(old, on_unreachable);
    return 0;
}

struct cv_active *cv_active_get(struct cv_active_holder *h)
{
    return atomic_load_explicit(&h->current, memory_order_acquire);
}

struct cv_active *cv_active_ref(struct cv_active *a)
{
    __atomic_fetch_add(&a->_refs, 1, __ATOMIC_RELAXED);
    return a;
}

void cv_active_unref(struct cv_active *a)
{
    if (a == NULL || __atomic_fetch_sub(&a->_refs, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    /* The holder has let go of it earlier, so nobody can find it. liburcu's thread does the work,
     * not this one, which may be a worker. */
    release_later(a, on_unheld);
}

static void before_wait(void *arg)
{
    GRACE_RELEASE();
    urcu_qsbr_thread_offline();
}

static void after_wait(void *arg)
{
    urcu_qsbr_thread_online();
}

void cv_active_thread_join(struct cv_loop *loop)
{
    urcu_qsbr_register_thread();
    joined = true;
    cv_loop_set_sleep_hooks(loop, before_wait, after_wait, NULL);
}

void cv_active_thread_leave(void)
{
    GRACE_RELEASE();
    joined = false;
    urcu_qsbr_unregister_thread();
}

void cv_active_thread_quiesce(void)
{
    GRACE_RELEASE();
    urcu_qsbr_quiescent_state();
}
