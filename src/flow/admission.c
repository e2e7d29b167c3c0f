#include "flow/admission.h"

#include <stdatomic.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"

#include "common/poison.h"

#define WAYS      8
#define BUCKETS   (CV_ADMISSION_ENTRIES / WAYS)
#define TICKS_MS  64 /* ticks of a millisecond */
#define TICKS_S   (1000ull * TICKS_MS)
#define BURST_S   2
#define TIME_BITS 44 /* of ticks: nine years */
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)

/* The generic cell rate algorithm, as in rate.c: a word says up to when all is paid for. That of a
 * source has the source's tag above the time. */
struct cv_admission {
    _Atomic uint64_t all;
    _Atomic uint64_t *sources; /* owned */
    _Atomic int64_t start_ms;  /* INT64_MIN until first used */
};

struct cv_admission *cv_admission_new(void)
{
    struct cv_admission *a = cv_zalloc(sizeof(*a));
    a->sources = cv_zalloc(CV_ADMISSION_ENTRIES * sizeof(*a->sources));
    atomic_init(&a->start_ms, INT64_MIN);
    return a;
}

void cv_admission_free(struct cv_admission *a)
{
    if (a == NULL)
        return;
    cv_free(a->sources);
    cv_free(a);
}

static uint64_t ticks(struct cv_admission *a, int64_t now_ms)
{
    int64_t start = atomic_load_explicit(&a->start_ms, memory_order_relaxed);
    if (start == INT64_MIN &&
        atomic_compare_exchange_strong_explicit(&a->start_ms, &start, now_ms, memory_order_relaxed,
                                                memory_order_relaxed))
        start = now_ms;
    return now_ms > start ? ((uint64_t)(now_ms - start) * TICKS_MS & TIME_MASK) + 1 : 1;
}

/* What 'paid' becomes by one connection more; false: it is one too many. */
static bool pay(uint64_t paid, uint64_t per_s, uint64_t now, uint64_t *ret_paid)
{
    uint64_t from = CV_MAX(paid, now);
    uint64_t cost = CV_MAX(TICKS_S / per_s, 1);
    *ret_paid = CV_MIN(from + cost, TIME_MASK);
    return from + cost <= now + BURST_S * TICKS_S;
}

static uint64_t source_hash(const struct cv_ip *client)
{
    struct cv_hash_key key = *cv_hash_process_key();
    struct cv_ip source = *client;
    cv_ip_fold_mapped(&source);
    if (source.family == CV_AF_IP6)
        memset(source.b + 8, 0, 8);
    key.k[0] ^= UINT64_C(0x61646d697373696f);
    return cv_hash_bytes(&key, &source, sizeof(source));
}

/* The word of a source, or the one of its bucket that is to become it. */
static _Atomic uint64_t *source_find(struct cv_admission *a, uint64_t hash, uint64_t *ret_word)
{
    _Atomic uint64_t *s = &a->sources[hash % BUCKETS * WAYS], *found = s;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < WAYS; i++) {
        uint64_t word = atomic_load_explicit(&s[i], memory_order_relaxed);
        if (word != 0 && word >> TIME_BITS == hash >> TIME_BITS) {
            *ret_word = word;
            return &s[i];
        }
        if ((word & TIME_MASK) < least) {
            least = word & TIME_MASK;
            found = &s[i];
            *ret_word = word;
        }
    }
    return found;
}

static bool take_source(struct cv_admission *a, uint64_t hash, uint64_t per_s, uint64_t now)
{
    uint64_t tag = hash >> TIME_BITS, word, paid;
    _Atomic uint64_t *s;
    do {
        s = source_find(a, hash, &word);
        if (!pay(word >> TIME_BITS == tag ? word & TIME_MASK : 0, per_s, now, &paid))
            return false;
    } while (!atomic_compare_exchange_strong_explicit(s, &word, tag << TIME_BITS | paid,
                                                      memory_order_relaxed, memory_order_relaxed));
    return true;
}

static bool take_all(struct cv_admission *a, uint64_t per_s, uint64_t now)
{
    uint64_t word = atomic_load_explicit(&a->all, memory_order_relaxed), paid;
    do {
        if (!pay(word, per_s, now, &paid))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&a->all, &word, paid, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool cv_admission_take(struct cv_admission *a, const struct cv_ip *client, uint64_t per_s,
                       uint64_t source_per_s, int64_t now_ms)
{
    if (per_s == 0 && source_per_s == 0)
        return true;
    uint64_t now = ticks(a, now_ms);
    /* The source first, so that what one of them has too much is not taken from all. */
    if (source_per_s != 0 && client->family != CV_AF_NONE &&
        !take_source(a, source_hash(client), source_per_s, now))
        return false;
    return per_s == 0 || take_all(a, per_s, now);
}
