#include "egress/member.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/rand.h"

#include "common/poison.h"

#define DOMAIN  "chain"
#define BUCKETS 1024

struct cv_members {
    size_t n;
    struct cv_member *bucket[BUCKETS]; /* owned, linked by _next */
};

struct cv_members *cv_members_new(void)
{
    return cv_zalloc(sizeof(struct cv_members));
}

static void member_free(struct cv_member *m)
{
    cv_rcstr_unref(m->egress_id);
    cv_rcstr_unref(m->id);
    cv_rcstr_unref(m->label);
    cv_free(m);
}

void cv_members_free(struct cv_members *ms)
{
    if (ms == NULL)
        return;
    cv_members_sweep(ms);
    CV_ASSERT(ms->n == 0);
    cv_free(ms);
}

static uint64_t mix(uint64_t h, const void *data, size_t len)
{
    uint64_t in[2] = {h, cv_hash_bytes(NULL, data, len)};
    return cv_hash_bytes(NULL, in, sizeof(in));
}

static uint64_t mix_str(uint64_t h, const struct cv_rcstr *s)
{
    return s != NULL ? mix(h, s->s, s->len) : mix(h, "\1none", 5);
}

/* Everything that makes it that proxy and no other. The hash has the key of this process, so
 * nothing of the password can be learnt from it. */
static uint64_t fingerprint(const struct cv_backend *b)
{
    const uint8_t flags[3] = {(uint8_t)b->kind, b->tls, b->skip_cert_verify};
    uint64_t h = mix(0, flags, sizeof(flags));
    h = mix_str(h, b->addr);
    h = mix_str(h, b->username);
    return mix_str(h, b->password);
}

static bool same_text(const struct cv_rcstr *a, const struct cv_rcstr *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->len == b->len && memcmp(a->s, b->s, a->len) == 0;
}

struct cv_member *cv_members_get(struct cv_members *ms, struct cv_rcstr *egress_id,
                                 const struct cv_chain_member *def, int64_t now_ms)
{
    uint64_t backend = fingerprint(&def->backend);
    uint64_t h = mix_str(mix_str(backend, egress_id), def->id);
    struct cv_member **head = &ms->bucket[h % BUCKETS];
    for (struct cv_member *m = *head; m != NULL; m = m->_next)
        if (m->backend == backend && same_text(m->egress_id, egress_id) &&
            same_text(m->id, def->id))
            return cv_member_ref(m);
    struct cv_member *m = cv_try_zalloc(sizeof(*m));
    if (m == NULL)
        return NULL;
    m->egress_id = cv_rcstr_ref(egress_id);
    m->id = cv_rcstr_ref(def->id);
    m->label = cv_rcstr_ref(def->backend.label);
    m->backend = backend;
    m->_word = cv_vital_new(now_ms);
    m->_refs = 1;
    m->_next = *head;
    *head = m;
    ms->n++;
    return m;
}

void cv_members_sweep(struct cv_members *ms)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct cv_member **at = &ms->bucket[i];
        while (*at != NULL) {
            struct cv_member *m = *at;
            /* Only this thread raises it from 0, so nobody can hold it again meanwhile. */
            if (atomic_load_explicit(&m->_refs, memory_order_acquire) > 0) {
                at = &m->_next;
                continue;
            }
            *at = m->_next;
            member_free(m);
            ms->n--;
        }
    }
}

size_t cv_members_count(const struct cv_members *ms)
{
    return ms->n;
}

struct cv_member *cv_member_ref(struct cv_member *m)
{
    atomic_fetch_add_explicit(&m->_refs, 1, memory_order_relaxed);
    return m;
}

void cv_member_unref(struct cv_member *m)
{
    if (m != NULL)
        atomic_fetch_sub_explicit(&m->_refs, 1, memory_order_release);
}

bool cv_member_begin(struct cv_member *m, uint64_t word, enum cv_vital_way way, unsigned tag,
                     int64_t now_ms, struct cv_vital_try *ret_try)
{
    if (way == CV_VITAL_PROBE) {
        uint64_t claimed = cv_vital_claim(word, now_ms);
        if (!atomic_compare_exchange_strong_explicit(&m->_word, &word, claimed,
                                                     memory_order_relaxed, memory_order_relaxed))
            return false;
        word = claimed;
        cv_counter_add(&m->probes, 1);
    }
    if (way != CV_VITAL_CHECK)
        cv_counter_add(&m->attempts, 1);
    *ret_try = (struct cv_vital_try){.way = way, .epoch = cv_vital_unpack(word).epoch, .tag = tag};
    return true;
}

enum cv_vital_event cv_member_verdict(int err, enum cv_blame blame)
{
    switch (err) {
    case 0:
        return CV_VITAL_WORKS;
    case -ENOMEM:
    case -ENOBUFS:
    case -EMFILE:
    case -ENFILE:
    case -EADDRNOTAVAIL:
    case -EPROTONOSUPPORT:
        return CV_VITAL_NOTHING;
    default:
        return blame == CV_BLAME_EGRESS   ? CV_VITAL_FAILED
               : blame == CV_BLAME_UNSURE ? CV_VITAL_UNSURE
                                          : CV_VITAL_WORKS;
    }
}

/* Limited: a node may have thousands of members, and one cause may take all of them. */
static void log_change(const struct cv_member *m, const struct cv_vital *old,
                       const struct cv_vital *new, enum cv_stage stage, int err, int64_t now_ms)
{
    if (new->state == CV_VITAL_DOWN && old->state == CV_VITAL_UP)
        cv_log_limited(CV_LOG_WARN, DOMAIN,
                       "member does not work, it is tried last egress='%s' member='%s' outlet='%s' "
                       "stage='%s' error='%s' for_ms=%lld",
                       m->egress_id->s, cv_rcstr_text(m->id), m->label->s, cv_stage_name(stage),
                       cv_err_text(err), (long long)(new->at_ms - now_ms));
    else if (new->state == CV_VITAL_DOWN)
        cv_debug(DOMAIN,
                 "member still does not work egress='%s' member='%s' stage='%s' error='%s' "
                 "for_ms=%lld",
                 m->egress_id->s, cv_rcstr_text(m->id), cv_stage_name(stage), cv_err_text(err),
                 (long long)(new->at_ms - now_ms));
    else if (new->state == CV_VITAL_UP)
        cv_log_limited(CV_LOG_INFO, DOMAIN,
                       "member works again egress='%s' member='%s' outlet='%s'", m->egress_id->s,
                       cv_rcstr_text(m->id), m->label->s);
}

void cv_member_end(struct cv_member *m, const struct cv_vital_try *try, enum cv_vital_event event,
                   enum cv_stage stage, int err, int64_t now_ms, int64_t backoff_ms,
                   int64_t backoff_max_ms)
{
    uint64_t word = cv_member_word(m), next;
    struct cv_vital_conf conf = {backoff_ms, backoff_max_ms, 0};
    if (event != CV_VITAL_WORKS)
        conf.random = cv_rand_below(UINT32_MAX);
    if (err != 0)
        atomic_store_explicit(&m->_last, (uint64_t)(uint32_t)stage << 32 | (uint32_t)err,
                              memory_order_relaxed);
    do {
        next = cv_vital_next(word, try, event, now_ms, &conf);
        if (next == word)
            return;
    } while (!atomic_compare_exchange_weak_explicit(&m->_word, &word, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    struct cv_vital old = cv_vital_unpack(word), new = cv_vital_unpack(next);
    if (old.epoch == new.epoch)
        return;
    if (err == 0 && event != CV_VITAL_WORKS) { /* a strike that was held back */
        uint64_t last = atomic_load_explicit(&m->_last, memory_order_relaxed);
        stage = (enum cv_stage)(last >> 32);
        err = (int)(uint32_t)last;
    }
    if (old.state == CV_VITAL_UP)
        cv_counter_add(&m->downs, 1);
    log_change(m, &old, &new, stage, err, now_ms);
}

void cv_member_describe(const struct cv_member *m, uint32_t priority, int64_t now_ms,
                        struct cv_member_info *ret_info)
{
    struct cv_vital v = cv_vital_unpack(cv_member_word(m));
    uint64_t last = atomic_load_explicit(&m->_last, memory_order_relaxed);
    *ret_info = (struct cv_member_info){
        .member = m,
        .priority = priority,
        .state = v.state,
        .retry_in_ms = v.state == CV_VITAL_DOWN ? CV_MAX(v.at_ms - now_ms, 0) : 0,
        .stage = (enum cv_stage)(last >> 32),
        .err = (int)(uint32_t)last,
    };
}

const char *cv_member_state_name(enum cv_vital_state state)
{
    return state == CV_VITAL_UP ? "up" : state == CV_VITAL_DOWN ? "down" : "probing";
}
