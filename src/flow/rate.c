#include "flow/rate.h"

#include "common/poison.h"

#define NS_PER_MS    1000000ll
#define NS_PER_S     1000000000ull
#define BURST_NS     (CV_RATE_BURST_MS * NS_PER_MS)
#define QUANTA_PER_S 32
/* Nothing is reserved so far ahead: the clock has gone back. */
#define AHEAD_MAX_NS (86400ll * (int64_t)NS_PER_S)
#define WANT_MIN     1024
#define WANT_STEP    8          /* how much more is asked for when all was used */
#define BYTES_MAX    (1u << 30) /* of one reservation */

void cv_rate_set(struct cv_rate *r, uint64_t bytes_per_s)
{
    if (atomic_load_explicit(&r->_bytes_per_s, memory_order_relaxed) == bytes_per_s)
        return;
    atomic_store_explicit(&r->_bytes_per_s, bytes_per_s, memory_order_relaxed);
    /* What waits is priced by the old rate; it asks again. */
    atomic_store_explicit(&r->_paid_ns, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->_epoch, 1, memory_order_relaxed);
}

static uint32_t quantum(uint64_t bytes_per_s)
{
    return (uint32_t)CV_MAX(1, CV_MIN(bytes_per_s / QUANTA_PER_S, CV_RATE_QUANTUM_MAX));
}

uint32_t cv_rate_quantum(const struct cv_rate *r)
{
    return quantum(cv_rate_get(r));
}

static int64_t price(uint64_t bytes_per_s, uint32_t n)
{
    uint64_t total = n * NS_PER_S; /* below 2^60 */
    return (int64_t)(total / bytes_per_s + (total % bytes_per_s != 0));
}

/* Pay for 'n' bytes; return from when on they may be moved. */
static int64_t reserve(struct cv_rate *r, uint64_t bytes_per_s, uint32_t n, int64_t now_ns)
{
    int64_t cost = price(bytes_per_s, n), from;
    int64_t paid = atomic_load_explicit(&r->_paid_ns, memory_order_relaxed);
    do {
        from = paid < now_ns || paid - now_ns > AHEAD_MAX_NS ? now_ns : paid;
    } while (!atomic_compare_exchange_weak_explicit(&r->_paid_ns, &paid, from + cost,
                                                    memory_order_relaxed, memory_order_relaxed));
    return from - BURST_NS;
}

static void give_back(struct cv_rate *r, const struct cv_rate_place *p, uint32_t n)
{
    uint64_t bytes_per_s = cv_rate_get(r);
    if (n > 0 && bytes_per_s > 0 && !cv_rate_is_stale(p, r))
        atomic_fetch_sub_explicit(&r->_paid_ns, price(bytes_per_s, n), memory_order_relaxed);
}

bool cv_rate_is_stale(const struct cv_rate_place *p, const struct cv_rate *r)
{
    return p->_epoch != atomic_load_explicit(&r->_epoch, memory_order_relaxed);
}

/* Let go of what was reserved under another rate. */
static void refresh(struct cv_rate_place *p, const struct cv_rate *r)
{
    if (cv_rate_is_stale(p, r)) {
        p->left = p->asked = p->_given = p->_want = 0;
        p->_epoch = atomic_load_explicit(&r->_epoch, memory_order_relaxed);
    }
}

static void ask(struct cv_rate_place *p, struct cv_rate *r, uint64_t bytes_per_s, size_t n,
                int64_t now_ns)
{
    p->asked = (uint32_t)CV_MIN(n, BYTES_MAX);
    p->due_ns = reserve(r, bytes_per_s, p->asked, now_ns);
}

/* Its turn has come? */
static void advance(struct cv_rate_place *p, int64_t now_ns)
{
    if (p->asked > 0 && p->due_ns <= now_ns) {
        p->left += p->asked;
        p->_given = p->left;
        p->asked = 0;
    }
}

size_t cv_rate_allow(struct cv_rate_place *p, struct cv_rate *r, int64_t now_ms,
                     int64_t *ret_due_ms)
{
    uint64_t bytes_per_s = cv_rate_get(r);
    int64_t now_ns = now_ms * NS_PER_MS;
    refresh(p, r);
    if (bytes_per_s == 0)
        return SIZE_MAX;
    if (p->left == 0 && p->asked == 0) {
        uint32_t most = quantum(bytes_per_s);
        if (p->_given > 0) /* and all of it was used */
            p->_want = CV_MIN(p->_given, most) * WANT_STEP;
        p->_want = CV_MIN(CV_MAX(p->_want, CV_MAX(WANT_MIN, most / WANT_STEP)), most);
        ask(p, r, bytes_per_s, p->_want, now_ns);
    }
    advance(p, now_ns);
    if (p->left == 0)
        *ret_due_ms = (p->due_ns + NS_PER_MS - 1) / NS_PER_MS;
    return p->left;
}

void cv_rate_used(struct cv_rate_place *p, struct cv_rate *r, size_t n, int64_t now_ms)
{
    uint64_t bytes_per_s = cv_rate_get(r);
    refresh(p, r);
    uint32_t paid = (uint32_t)CV_MIN(n, p->left);
    p->left -= paid;
    n -= paid;
    if (n > 0 && bytes_per_s > 0)
        (void)reserve(r, bytes_per_s, (uint32_t)CV_MIN(n, BYTES_MAX), now_ms * NS_PER_MS);
}

void cv_rate_rest(struct cv_rate_place *p, struct cv_rate *r)
{
    if (p->left == 0)
        return;
    give_back(r, p, p->left);
    p->_want = 2 * (p->_given - p->left);
    p->left = p->_given = 0;
}

void cv_rate_leave(struct cv_rate_place *p, struct cv_rate *r)
{
    give_back(r, p, p->left);
    give_back(r, p, p->asked);
    p->left = p->asked = p->_given = 0;
}

bool cv_rate_take(struct cv_rate_place *p, struct cv_rate *r, size_t n, int64_t now_ms)
{
    uint64_t bytes_per_s = cv_rate_get(r);
    int64_t now_ns = now_ms * NS_PER_MS;
    refresh(p, r);
    if (bytes_per_s == 0)
        return true;
    advance(p, now_ns);
    if (p->left < n && p->asked == 0) {
        ask(p, r, bytes_per_s, CV_MAX(n - p->left, quantum(bytes_per_s)), now_ns);
        advance(p, now_ns);
    }
    if (p->left < n)
        return false;
    p->left -= (uint32_t)n;
    return true;
}
