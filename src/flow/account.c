#include "flow/account.h"

#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"

#include "common/poison.h"

struct slot {
    uint64_t hash;
    struct cv_account *account; /* a reference; NULL: free */
};

struct cv_accounts {
    struct slot *slots; /* owned; linear probing, at most half full */
    size_t mask;
    size_t n;
};

struct cv_account *cv_account_ref(struct cv_account *a)
{
    __atomic_fetch_add(&a->_refs, 1, __ATOMIC_RELAXED);
    return a;
}

void cv_account_unref(struct cv_account *a)
{
    if (a == NULL || __atomic_fetch_sub(&a->_refs, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    cv_rcstr_unref(a->name);
    cv_free(a);
}

bool cv_account_permit(struct cv_account *a, uint64_t max)
{
    int64_t v = atomic_load_explicit(&a->active.v, memory_order_relaxed);
    do {
        if (max != 0 && v >= 0 && (uint64_t)v >= max)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&a->active.v, &v, v + 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

void cv_account_release(struct cv_account *a)
{
    int64_t before = atomic_fetch_sub_explicit(&a->active.v, 1, memory_order_relaxed);
    (void)CV_BUG_ON_ONCE(before <= 0);
}

/* A 64-bit keyed tag of the pair. The key is that of the process, set apart by a constant, so that
 * a tag is worth nothing outside of this process and cannot be computed from table hashes. Never 0.
 */
static uint64_t login_tag(const struct cv_rcstr *stored, const char *given, size_t len)
{
    struct cv_hash_key key = *cv_hash_process_key();
    key.k[0] ^= UINT64_C(0x6c6f67696e2d7631);
    uint64_t pair[3] = {
        cv_hash_bytes(&key, stored->s, stored->len),
        cv_hash_bytes(&key, given, len),
        len,
    };
    key.k[1] ^= UINT64_C(0x706169722d746167);
    uint64_t tag = cv_hash_bytes(&key, pair, sizeof(pair));
    return tag != 0 ? tag : 1;
}

bool cv_account_login_known(const struct cv_account *a, const struct cv_rcstr *stored,
                            const char *given, size_t len)
{
    uint64_t tag = login_tag(stored, given, len);
    return atomic_load_explicit(&a->_verified, memory_order_relaxed) == tag;
}

void cv_account_login_remember(struct cv_account *a, const struct cv_rcstr *stored,
                               const char *given, size_t len)
{
    atomic_store_explicit(&a->_verified, login_tag(stored, given, len), memory_order_relaxed);
}

#define SLOTS_MIN 64

struct cv_accounts *cv_accounts_new(void)
{
    struct cv_accounts *t = cv_zalloc(sizeof(*t));
    t->slots = cv_zalloc(SLOTS_MIN * sizeof(*t->slots));
    t->mask = SLOTS_MIN - 1;
    return t;
}

void cv_accounts_free(struct cv_accounts *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i <= t->mask; i++)
        cv_account_unref(t->slots[i].account);
    cv_free(t->slots);
    cv_free(t);
}

static struct slot *slot_find(struct cv_accounts *t, uint64_t hash, const struct cv_rcstr *name)
{
    size_t i = hash & t->mask;
    for (;; i = (i + 1) & t->mask) {
        struct slot *s = &t->slots[i];
        if (s->account == NULL)
            return s;
        if (s->hash == hash && s->account->name->len == name->len &&
            memcmp(s->account->name->s, name->s, name->len) == 0)
            return s;
    }
}

/* Move what is in use to a table of 'n_slots' (a power of two). */
static int rehash(struct cv_accounts *t, size_t n_slots)
{
    size_t size;
    if (CV_MUL_OVERFLOW(n_slots, sizeof(*t->slots), &size))
        return -1;
    struct slot *to = cv_try_zalloc(size);
    if (to == NULL)
        return -1;
    for (size_t i = 0; i <= t->mask; i++) {
        if (t->slots[i].account == NULL)
            continue;
        size_t j = t->slots[i].hash & (n_slots - 1);
        while (to[j].account != NULL)
            j = (j + 1) & (n_slots - 1);
        to[j] = t->slots[i];
    }
    cv_free(t->slots);
    t->slots = to;
    t->mask = n_slots - 1;
    return 0;
}

struct cv_account *cv_accounts_get(struct cv_accounts *t, struct cv_rcstr *name)
{
    uint64_t hash = cv_hash_bytes(cv_hash_process_key(), name->s, name->len);
    struct slot *s = slot_find(t, hash, name);
    if (s->account != NULL)
        return cv_account_ref(s->account);

    if (2 * (t->n + 1) > t->mask + 1) {
        if (rehash(t, 2 * (t->mask + 1)) != 0)
            return NULL;
        s = slot_find(t, hash, name);
    }
    struct cv_account *a = cv_try_zalloc(sizeof(*a));
    if (a == NULL)
        return NULL;
    a->_refs = 2; /* the table's and the caller's */
    a->name = cv_rcstr_ref(name);
    s->hash = hash;
    s->account = a;
    t->n++;
    return a;
}

void cv_accounts_sweep(struct cv_accounts *t)
{
    /* One reference left is the table's own. Nobody can take a new one meanwhile: references are
     * only made from a reference or by this thread. */
    size_t kept = 0;
    for (size_t i = 0; i <= t->mask; i++) {
        struct slot *s = &t->slots[i];
        if (s->account == NULL)
            continue;
        if (__atomic_load_n(&s->account->_refs, __ATOMIC_ACQUIRE) > 1) {
            kept++;
            continue;
        }
        cv_account_unref(s->account);
        s->account = NULL;
    }
    if (kept == t->n)
        return;
    t->n = kept;
    /* Removal broke the probe chains: lay out afresh, smaller when much has gone. */
    size_t want = SLOTS_MIN;
    while (want < 4 * kept)
        want *= 2;
    if (want > t->mask + 1)
        want = t->mask + 1;
    if (rehash(t, want) == 0)
        return;
    /* Without memory for a new layout, repair the chains in place: put each entry where a probe
     * finds it first, until none moves any more. Each move shortens a probe, so this ends. */
    bool again;
    do {
        again = false;
        for (size_t i = 0; i <= t->mask; i++) {
            struct slot entry = t->slots[i];
            if (entry.account == NULL)
                continue;
            t->slots[i].account = NULL;
            struct slot *to = slot_find(t, entry.hash, entry.account->name);
            *to = entry;
            again = again || to != &t->slots[i];
        }
    } while (again);
}

void cv_accounts_each(struct cv_accounts *t, void (*fn)(void *arg, struct cv_account *a), void *arg)
{
    for (size_t i = 0; i <= t->mask; i++) {
        if (t->slots[i].account != NULL)
            fn(arg, t->slots[i].account);
    }
}
