#include "egress/vital.h"

#include "common/poison.h"

/* The fields of the word, from the lowest bit. 38 bits of milliseconds last eight years. */
#define STATE_BITS   2
#define STRIKES_BITS 2
#define LEVEL_BITS   4
#define TAG_BITS     8
#define EPOCH_BITS   10
#define AT_BITS      38

#define LEVEL_MAX ((1u << LEVEL_BITS) - 1)
#define MASK(n)   ((UINT64_C(1) << (n)) - 1)

_Static_assert(STATE_BITS + STRIKES_BITS + LEVEL_BITS + TAG_BITS + EPOCH_BITS + AT_BITS == 64,
               "the word is full");
_Static_assert(CV_VITAL_STRIKES <= 1 << STRIKES_BITS, "strikes fit");

static uint64_t push(uint64_t word, unsigned bits, uint64_t v)
{
    return word << bits | (v & MASK(bits));
}

static uint64_t pop(uint64_t *word, unsigned bits)
{
    uint64_t v = *word & MASK(bits);
    *word >>= bits;
    return v;
}

uint64_t cv_vital_pack(const struct cv_vital *v)
{
    uint64_t w = push(0, AT_BITS, (uint64_t)v->at_ms);
    w = push(w, EPOCH_BITS, v->epoch);
    w = push(w, TAG_BITS, v->tag);
    w = push(w, LEVEL_BITS, v->level);
    w = push(w, STRIKES_BITS, v->strikes);
    return push(w, STATE_BITS, (uint64_t)v->state);
}

struct cv_vital cv_vital_unpack(uint64_t word)
{
    struct cv_vital v;
    v.state = (enum cv_vital_state)pop(&word, STATE_BITS);
    v.strikes = (unsigned)pop(&word, STRIKES_BITS);
    v.level = (unsigned)pop(&word, LEVEL_BITS);
    v.tag = (unsigned)pop(&word, TAG_BITS);
    v.epoch = (unsigned)pop(&word, EPOCH_BITS);
    v.at_ms = (int64_t)word;
    return v;
}

unsigned cv_vital_tag(uint64_t hash)
{
    return (unsigned)(hash & MASK(TAG_BITS));
}

uint64_t cv_vital_new(int64_t now_ms)
{
    return cv_vital_pack(&(struct cv_vital){.state = CV_VITAL_UP, .at_ms = now_ms});
}

bool cv_vital_is_due(uint64_t word, int64_t now_ms)
{
    struct cv_vital v = cv_vital_unpack(word);
    return v.state == CV_VITAL_DOWN && now_ms >= v.at_ms;
}

int64_t cv_vital_backoff(unsigned level, const struct cv_vital_conf *conf)
{
    int64_t ms = CV_MIN(conf->backoff_ms, conf->backoff_max_ms);
    for (unsigned i = 1; i < level && ms < conf->backoff_max_ms; i++)
        ms = CV_MIN(ms * 2, conf->backoff_max_ms);
    return ms;
}

/* The only writer of the state: each change is a new epoch. */
static uint64_t go(struct cv_vital v, enum cv_vital_state state, int64_t at_ms)
{
    v.state = state;
    v.strikes = 0;
    v.tag = 0;
    v.epoch = (v.epoch + 1) & (unsigned)MASK(EPOCH_BITS);
    v.at_ms = at_ms;
    return cv_vital_pack(&v);
}

static uint64_t go_down(struct cv_vital v, unsigned level, int64_t now_ms,
                        const struct cv_vital_conf *conf)
{
    v.level = CV_MIN(level, LEVEL_MAX);
    int64_t whole = cv_vital_backoff(v.level, conf);
    int64_t part = whole / 4;
    return go(v, CV_VITAL_DOWN, now_ms + whole - (int64_t)(conf->random % (uint64_t)(part + 1)));
}

uint64_t cv_vital_claim(uint64_t word, int64_t now_ms)
{
    CV_ASSERT(cv_vital_is_due(word, now_ms));
    return go(cv_vital_unpack(word), CV_VITAL_PROBING, now_ms);
}

/* The level of a failure after having been UP: it begins anew when that had lasted. */
static unsigned level_after(const struct cv_vital *v, int64_t now_ms,
                            const struct cv_vital_conf *conf)
{
    bool lasted = now_ms - v->at_ms >= 2 * cv_vital_backoff(v->level, conf);
    return v->level == 0 || lasted ? 1 : v->level + 1;
}

static uint64_t strike(struct cv_vital v, unsigned tag, bool any_target, int64_t now_ms,
                       const struct cv_vital_conf *conf)
{
    if (!any_target && v.strikes > 0 && v.tag == tag)
        return cv_vital_pack(&v);
    if (v.strikes + 1 >= CV_VITAL_STRIKES)
        return go_down(v, level_after(&v, now_ms, conf), now_ms, conf);
    v.strikes++;
    v.tag = tag;
    return cv_vital_pack(&v);
}

static uint64_t next_up(struct cv_vital v, const struct cv_vital_try *try,
                        enum cv_vital_event event, int64_t now_ms, const struct cv_vital_conf *conf)
{
    switch (event) {
    case CV_VITAL_WORKS:
        v.strikes = 0;
        v.tag = 0;
        break;
    case CV_VITAL_FAILED:
        return go_down(v, level_after(&v, now_ms, conf), now_ms, conf);
    case CV_VITAL_UNSURE:
        return strike(v, try->tag, false, now_ms, conf);
    case CV_VITAL_LEFT:
        /* It had shown no sign of life, so the target has nothing to do with it. */
        return strike(v, try->tag, true, now_ms, conf);
    case CV_VITAL_NOTHING:
        break;
    }
    return cv_vital_pack(&v);
}

static uint64_t next_down(struct cv_vital v, const struct cv_vital_try *try,
                          enum cv_vital_event event, int64_t now_ms,
                          const struct cv_vital_conf *conf)
{
    bool check = try->way == CV_VITAL_CHECK && now_ms >= v.at_ms;
    if (event == CV_VITAL_WORKS && (try->way == CV_VITAL_LAST || check))
        return go(v, CV_VITAL_UP, now_ms);
    if (check && event != CV_VITAL_NOTHING && event != CV_VITAL_WORKS)
        return go_down(v, v.level + 1, now_ms, conf);
    return cv_vital_pack(&v);
}

static uint64_t next_probing(struct cv_vital v, const struct cv_vital_try *try,
                             enum cv_vital_event event, int64_t now_ms,
                             const struct cv_vital_conf *conf)
{
    if (event == CV_VITAL_WORKS)
        return go(v, CV_VITAL_UP, now_ms);
    if (try->way != CV_VITAL_PROBE)
        return cv_vital_pack(&v);
    if (event == CV_VITAL_FAILED || event == CV_VITAL_UNSURE)
        return go_down(v, v.level + 1, now_ms, conf);
    if (event == CV_VITAL_NOTHING)
        return go(v, CV_VITAL_DOWN, now_ms);
    /* Not at once: clients that are less patient than the probe is slow would all be probes. */
    return go(v, CV_VITAL_DOWN, now_ms + cv_vital_backoff(1, conf));
}

uint64_t cv_vital_next(uint64_t word, const struct cv_vital_try *try, enum cv_vital_event event,
                       int64_t now_ms, const struct cv_vital_conf *conf)
{
    struct cv_vital v = cv_vital_unpack(word);
    if (try->epoch != v.epoch)
        return word;
    if (v.state == CV_VITAL_UP)
        return next_up(v, try, event, now_ms, conf);
    if (v.state == CV_VITAL_DOWN)
        return next_down(v, try, event, now_ms, conf);
    return next_probing(v, try, event, now_ms, conf);
}
