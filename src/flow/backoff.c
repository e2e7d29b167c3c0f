#include "flow/backoff.h"

#include <stdatomic.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"

#include "common/poison.h"

#define WAYS          8
#define BUCKETS       (CV_BACKOFF_ENTRIES / WAYS)
#define COUNT_MAX     511u
#define TICK_MS       100
#define GOOD_MS       (3600 * 1000)
#define GOOD_WEIGHT   2 /* a right login is worth as much as two wrong ones when room is needed */
#define GOOD_EVERY_MS 60000 /* a right login is noted again after this */

/* One key in one word: tag, whether its last login was right, failures, and the time of the last
 * login in ticks since the table was made. 0: free. */
#define TAG_SHIFT   42
#define GOOD_BIT    (UINT64_C(1) << 41)
#define COUNT_SHIFT 32

struct slot {
    _Atomic uint64_t state;
    _Atomic uint64_t wrong; /* the last wrong login; a hint, not in step with the state */
};

struct table {
    struct slot *slots; /* owned */
    /* Failures of a pair are forgotten together after a silent window; those of a source drain
     * away, as they are made by many who never fall silent all at once. */
    bool drains;
};

struct cv_backoff {
    struct table pairs, sources;
    _Atomic int64_t start_ms; /* INT64_MIN until first used */
};

/* What a word says at some time. */
struct view {
    uint32_t count;  /* failures that still count */
    int64_t wait_ms; /* until the next try is taken */
    int64_t rest_ms; /* too little for another failure to drain away */
    bool good;       /* the last login was right, and not long ago */
};

struct limit {
    uint32_t failures; /* 0: none */
    const struct cv_login_settings *conf;
};

struct cv_backoff *cv_backoff_new(void)
{
    struct cv_backoff *b = cv_zalloc(sizeof(*b));
    b->pairs.slots = cv_zalloc(CV_BACKOFF_ENTRIES * sizeof(struct slot));
    b->sources.slots = cv_zalloc(CV_BACKOFF_ENTRIES * sizeof(struct slot));
    b->sources.drains = true;
    atomic_init(&b->start_ms, INT64_MIN);
    return b;
}

void cv_backoff_free(struct cv_backoff *b)
{
    if (b == NULL)
        return;
    cv_free(b->pairs.slots);
    cv_free(b->sources.slots);
    cv_free(b);
}

struct cv_backoff_key cv_backoff_key(const struct cv_ip *client, const char *user, size_t len)
{
    struct cv_backoff_key k = {0};
    struct cv_ip source = *client;
    struct cv_hash_key key = *cv_hash_process_key();
    uint64_t both[2];
    cv_ip_fold_mapped(&source);
    if (source.family == CV_AF_NONE)
        return k;
    if (source.family == CV_AF_IP6)
        memset(source.b + 8, 0, 8);
    key.k[0] ^= UINT64_C(0x6261636b6f66662d);
    k.source = cv_hash_bytes(&key, &source, sizeof(source)) | 1;
    both[0] = k.source;
    both[1] = cv_hash_bytes(&key, user, len);
    k.pair = cv_hash_bytes(&key, both, sizeof(both)) | 1;
    return k;
}

/* -- words -- */

static uint32_t ticks(struct cv_backoff *b, int64_t now_ms)
{
    int64_t start = atomic_load_explicit(&b->start_ms, memory_order_relaxed);
    if (start == INT64_MIN &&
        atomic_compare_exchange_strong_explicit(&b->start_ms, &start, now_ms, memory_order_relaxed,
                                                memory_order_relaxed))
        start = now_ms;
    /* From 1, so that no word that is in use is 0; the clock of another thread may be behind. */
    return now_ms > start ? (uint32_t)((now_ms - start) / TICK_MS) + 1 : 1;
}

static uint64_t word(uint64_t hash, bool good, uint32_t count, uint32_t now)
{
    return hash >> TAG_SHIFT << TAG_SHIFT | (good ? GOOD_BIT : 0) |
           (uint64_t)CV_MIN(count, COUNT_MAX) << COUNT_SHIFT | now;
}

static bool is_of(uint64_t state, uint64_t hash)
{
    return state != 0 && state >> TAG_SHIFT == hash >> TAG_SHIFT;
}

static uint32_t count_of(uint64_t state)
{
    return (uint32_t)(state >> COUNT_SHIFT) & COUNT_MAX;
}

/* Pause after so many failures. */
static int64_t pause_ms(const struct limit *l, uint32_t count)
{
    int64_t ms = l->conf->backoff_ms;
    if (l->failures == 0 || count < l->failures)
        return 0;
    for (uint32_t i = l->failures; i < count && ms < l->conf->backoff_max_ms; i++)
        ms *= 2;
    return CV_MIN(ms, l->conf->backoff_max_ms);
}

static void drain(struct view *v, int64_t over, int64_t window, uint32_t failures)
{
    int64_t gone = over * failures / window;
    if (gone >= v->count) {
        v->count = 0;
        return;
    }
    v->count -= (uint32_t)gone;
    v->rest_ms = over - gone * window / failures;
}

static struct view look(const struct table *t, const struct limit *l, uint64_t state, uint32_t now)
{
    struct view v = {.count = count_of(state)};
    int64_t age = ((int64_t)now - (int64_t)(uint32_t)state) * TICK_MS;
    int64_t pause = pause_ms(l, v.count), window = CV_MAX(l->conf->window_ms, 1);
    if (state == 0)
        return v;
    v.wait_ms = age < pause ? pause - age : 0;
    v.good = (state & GOOD_BIT) != 0 && age < GOOD_MS;
    int64_t over = age - pause;
    if (over >= window)
        v.count = 0;
    else if (t->drains && over > 0 && l->failures > 0)
        drain(&v, over, window, l->failures);
    return v;
}

static struct slot *bucket(const struct table *t, uint64_t hash)
{
    return &t->slots[hash % BUCKETS * WAYS];
}

static struct slot *find(const struct table *t, uint64_t hash, uint64_t *ret_state)
{
    struct slot *s = bucket(t, hash);
    for (int i = 0; i < WAYS; i++) {
        *ret_state = atomic_load_explicit(&s[i].state, memory_order_relaxed);
        if (is_of(*ret_state, hash))
            return &s[i];
    }
    *ret_state = 0;
    return NULL;
}

/* Where a new key goes: what matters least, of equals the oldest. */
static struct slot *victim(const struct table *t, const struct limit *l, uint64_t hash,
                           uint32_t now, uint64_t *ret_state)
{
    struct slot *s = bucket(t, hash), *found = s;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < WAYS; i++) {
        uint64_t state = atomic_load_explicit(&s[i].state, memory_order_relaxed);
        struct view v = look(t, l, state, now);
        uint64_t weight = v.count + (v.good ? GOOD_WEIGHT : 0);
        uint64_t rank = weight << 32 | (uint32_t)state;
        if (rank < least) {
            least = rank;
            found = &s[i];
            *ret_state = state;
        }
    }
    return found;
}

/* Write the entry of a key anew; another thread's change in between is not lost but counted upon.
 * Returns the new count. */
static uint32_t note(struct table *t, const struct limit *l, uint64_t hash, bool right,
                     uint64_t wrong, uint32_t now)
{
    for (;;) {
        uint64_t state, next;
        struct slot *s = find(t, hash, &state);
        struct view v = look(t, l, state, now);
        if (s == NULL) {
            s = victim(t, l, hash, now, &state);
            v = (struct view){0};
        }
        uint32_t count = right ? 0 : v.count + 1;
        /* Below the limit the time is that up to which failures have drained away. */
        uint32_t at = count < l->failures ? now - (uint32_t)(v.rest_ms / TICK_MS) : now;
        next = word(hash, right || v.good, count, at);
        if (!atomic_compare_exchange_strong_explicit(&s->state, &state, next, memory_order_relaxed,
                                                     memory_order_relaxed))
            continue;
        atomic_store_explicit(&s->wrong, wrong, memory_order_relaxed);
        return CV_MIN(count, COUNT_MAX);
    }
}

/* -- what others call -- */

static struct limit pair_limit(const struct cv_login_settings *conf)
{
    return (struct limit){.failures = conf->failures, .conf = conf};
}

static struct limit source_limit(const struct cv_login_settings *conf)
{
    return (struct limit){.failures = conf->source_failures, .conf = conf};
}

int64_t cv_backoff_wait(struct cv_backoff *b, const struct cv_login_settings *conf,
                        const struct cv_backoff_key *key, int64_t now_ms)
{
    struct limit pl = pair_limit(conf), sl = source_limit(conf);
    uint32_t now = ticks(b, now_ms);
    uint64_t state;
    if (key->source == 0)
        return 0;
    (void)find(&b->pairs, key->pair, &state);
    struct view pair = look(&b->pairs, &pl, state, now);
    if (pair.wait_ms > 0 || pair.good)
        return pair.wait_ms;
    (void)find(&b->sources, key->source, &state);
    return look(&b->sources, &sl, state, now).wait_ms;
}

bool cv_backoff_is_repeated(struct cv_backoff *b, const struct cv_backoff_key *key, uint64_t wrong)
{
    uint64_t state;
    struct slot *s = key->source != 0 ? find(&b->pairs, key->pair, &state) : NULL;
    return s != NULL && count_of(state) > 0 &&
           atomic_load_explicit(&s->wrong, memory_order_relaxed) == wrong;
}

int64_t cv_backoff_failed(struct cv_backoff *b, const struct cv_login_settings *conf,
                          const struct cv_backoff_key *key, uint64_t wrong, int64_t now_ms)
{
    struct limit pl = pair_limit(conf), sl = source_limit(conf);
    uint32_t now = ticks(b, now_ms);
    if (key->source == 0 || cv_backoff_is_repeated(b, key, wrong))
        return 0;
    uint32_t pair = note(&b->pairs, &pl, key->pair, false, wrong, now);
    uint32_t source = note(&b->sources, &sl, key->source, false, 0, now);
    return CV_MAX(pause_ms(&pl, pair), pause_ms(&sl, source));
}

void cv_backoff_succeeded(struct cv_backoff *b, const struct cv_backoff_key *key, int64_t now_ms)
{
    static const struct cv_login_settings none = {.window_ms = GOOD_MS};
    struct limit l = {.conf = &none};
    uint32_t now = ticks(b, now_ms);
    uint64_t state;
    if (key->source == 0)
        return;
    if (find(&b->pairs, key->pair, &state) != NULL && (state & GOOD_BIT) != 0 &&
        count_of(state) == 0 && now - (uint32_t)state < GOOD_EVERY_MS / TICK_MS)
        return;
    (void)note(&b->pairs, &l, key->pair, true, 0, now);
}
