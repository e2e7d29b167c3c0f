#include "egress/member.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/err.h"
#include "tap.h"

static struct cv_rcstr *str(const char *s)
{
    struct cv_rcstr *r = cv_rcstr_new(s, strlen(s));
    if (r == NULL)
        abort();
    return r;
}

struct def {
    struct cv_rcstr *egress;
    struct cv_chain_member m;
};

static struct def def_new(const char *egress, const char *id, const char *addr, const char *pass)
{
    return (struct def){.egress = str(egress),
                        .m = {.id = id != NULL ? str(id) : NULL,
                              .backend = {.kind = CV_BACKEND_SOCKS5,
                                          .addr = str(addr),
                                          .username = str("u"),
                                          .password = pass != NULL ? str(pass) : NULL,
                                          .label = str("upstream:x")}}};
}

static void def_done(struct def *d)
{
    cv_rcstr_unref(d->egress);
    cv_rcstr_unref(d->m.id);
    cv_rcstr_unref(d->m.backend.addr);
    cv_rcstr_unref(d->m.backend.username);
    cv_rcstr_unref(d->m.backend.password);
    cv_rcstr_unref(d->m.backend.label);
}

/* What makes a member the same one: ids and backend; its priority does not. */
static void test_identity(void)
{
    struct cv_members *ms = cv_members_new();
    struct def a = def_new("fo", "a", "x:1", "p");
    struct cv_member *first = cv_members_get(ms, a.egress, &a.m, 5);
    T_REQUIRE(first != NULL);
    a.m.priority = 9;
    struct cv_member *again = cv_members_get(ms, a.egress, &a.m, 6);
    T_OK(again == first);
    cv_member_unref(again);

    struct def others[] = {
        def_new("fo", "b", "x:1", "p"),  def_new("f", "a", "x:1", "p"),
        def_new("fo", "a", "x:2", "p"),  def_new("fo", "a", "x:1", "q"),
        def_new("fo", "a", "x:1", NULL), def_new("fo", NULL, "x:1", "p"),
        def_new("fo", "a", "x:1", "p"),  def_new("fo", "a", "x:1", "p"),
    };
    others[6].m.backend.tls = true;
    others[7].m.backend.kind = CV_BACKEND_HTTP;
    struct cv_member *m[CV_ARRAY_SIZE(others)];
    for (size_t i = 0; i < CV_ARRAY_SIZE(others); i++) {
        m[i] = cv_members_get(ms, others[i].egress, &others[i].m, 5);
        T_OK(m[i] != first);
        for (size_t k = 0; k < i; k++)
            T_OK(m[i] != m[k]);
    }
    T_INT_EQ(cv_members_count(ms), 9);
    cv_members_sweep(ms);
    T_INT_EQ(cv_members_count(ms), 9);
    for (size_t i = 0; i < CV_ARRAY_SIZE(others); i++) {
        cv_member_unref(m[i]);
        def_done(&others[i]);
    }
    cv_members_sweep(ms);
    T_INT_EQ(cv_members_count(ms), 1);
    cv_member_unref(first);
    cv_member_unref(NULL);
    def_done(&a);
    cv_members_free(ms);
    cv_members_free(NULL);
}

static void test_verdict(void)
{
    static const struct {
        int err;
        enum cv_blame blame;
        enum cv_vital_event event;
    } t[] = {
        {0, CV_BLAME_EGRESS, CV_VITAL_WORKS},
        {0, CV_BLAME_UNSURE, CV_VITAL_WORKS},
        {-ECONNREFUSED, CV_BLAME_EGRESS, CV_VITAL_FAILED},
        {-ETIMEDOUT, CV_BLAME_EGRESS, CV_VITAL_FAILED},
        {-ETIMEDOUT, CV_BLAME_UNSURE, CV_VITAL_UNSURE},
        {-ECONNREFUSED, CV_BLAME_TARGET, CV_VITAL_WORKS},
        {CV_E_TLS, CV_BLAME_EGRESS, CV_VITAL_FAILED},
        {CV_E_DNS_FAIL, CV_BLAME_EGRESS, CV_VITAL_FAILED},
        {CV_E_UNSUPPORTED, CV_BLAME_EGRESS, CV_VITAL_FAILED},
        {-ENOMEM, CV_BLAME_EGRESS, CV_VITAL_NOTHING},
        {-EMFILE, CV_BLAME_EGRESS, CV_VITAL_NOTHING},
        {-ENFILE, CV_BLAME_UNSURE, CV_VITAL_NOTHING},
        {-ENOBUFS, CV_BLAME_EGRESS, CV_VITAL_NOTHING},
        {-EADDRNOTAVAIL, CV_BLAME_EGRESS, CV_VITAL_NOTHING},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(t); i++)
        T_INT_EQ(cv_member_verdict(t[i].err, t[i].blame), t[i].event);
}

static void test_life(void)
{
    struct cv_members *ms = cv_members_new();
    struct def d = def_new("fo", "a", "x:1", "p");
    struct cv_member *m = cv_members_get(ms, d.egress, &d.m, 0);
    struct cv_member_info info;
    struct cv_vital_try try, late;
    T_OK(cv_member_begin(m, cv_member_word(m), CV_VITAL_IN_TURN, 1, 10, &try));
    late = try;
    cv_member_end(m, &try, CV_VITAL_FAILED, CV_STAGE_TLS, CV_E_TLS, 10, 1000, 8000);
    cv_member_end(m, &late, CV_VITAL_FAILED, CV_STAGE_DIAL, -ECONNREFUSED, 11, 1000, 8000);
    cv_member_describe(m, 7, 100, &info);
    T_INT_EQ(info.state, CV_VITAL_DOWN);
    T_STR_EQ(cv_member_state_name(info.state), "down");
    T_OK(info.retry_in_ms >= 650 && info.retry_in_ms <= 910);
    T_INT_EQ(info.priority, 7);
    T_INT_EQ(info.stage, CV_STAGE_DIAL);
    T_INT_EQ(info.err, -ECONNREFUSED);
    T_INT_EQ(cv_counter_get(&m->downs), 1);
    T_INT_EQ(cv_counter_get(&m->attempts), 1);
    /* A claim of a word that is not the member's any more. */
    uint64_t word = cv_member_word(m);
    T_OK(cv_member_begin(m, word, CV_VITAL_PROBE, 1, 2000, &try));
    T_OK(!cv_member_begin(m, word, CV_VITAL_PROBE, 1, 2000, &late));
    T_INT_EQ(cv_counter_get(&m->probes), 1);
    cv_member_describe(m, 7, 2000, &info);
    T_STR_EQ(cv_member_state_name(info.state), "probing");
    T_INT_EQ(info.retry_in_ms, 0);
    cv_member_end(m, &try, CV_VITAL_WORKS, CV_STAGE_NONE, 0, 2000, 1000, 8000);
    cv_member_describe(m, 7, 2000, &info);
    T_STR_EQ(cv_member_state_name(info.state), "up");
    T_INT_EQ(info.err, -ECONNREFUSED); /* the last failure is remembered */
    cv_member_unref(m);
    def_done(&d);
    cv_members_free(ms);
}

/* Threads that use one member as workers do: one probe at a time, and no change is lost. */
#define THREADS 4
#define ROUNDS  30000
static struct {
    struct cv_member *m;
    _Atomic int probing, overlaps;
    _Atomic int64_t now;
} race;

static void *race_thread(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg * 7919 + 1;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t now = atomic_fetch_add(&race.now, 1);
        struct cv_vital_try try;
        uint64_t word = cv_member_word(race.m);
        struct cv_member *held = cv_member_ref(race.m);
        seed = seed * 1103515245 + 12345;
        enum cv_vital_event event = 1 + (seed >> 16) % 5;
        if (cv_vital_unpack(word).state == CV_VITAL_UP) {
            (void)cv_member_begin(held, word, CV_VITAL_IN_TURN, seed & 3, now, &try);
            cv_member_end(held, &try, event, CV_STAGE_DIAL, -EIO, now, 4, 64);
        } else if (cv_vital_is_due(word, now) &&
                   cv_member_begin(held, word, CV_VITAL_PROBE, 0, now, &try)) {
            if (atomic_fetch_add(&race.probing, 1) != 0)
                atomic_fetch_add(&race.overlaps, 1);
            atomic_fetch_sub(&race.probing, 1);
            cv_member_end(held, &try, event, CV_STAGE_DIAL, -EIO, now, 4, 64);
        }
        cv_member_unref(held);
    }
    return NULL;
}

static void test_threads(void)
{
    struct cv_members *ms = cv_members_new();
    struct def d = def_new("fo", "a", "x:1", "p");
    pthread_t thread[THREADS];
    race.m = cv_members_get(ms, d.egress, &d.m, 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, race_thread, (void *)i) != 0)
            abort();
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    T_INT_EQ(race.overlaps, 0);
    T_OK(cv_counter_get(&race.m->probes) > 100);
    T_OK(cv_counter_get(&race.m->downs) > 100);
    /* Each time it went down it had come up by a probe, but for the first time. */
    T_OK(cv_counter_get(&race.m->downs) <= cv_counter_get(&race.m->probes) + 1);
    cv_member_unref(race.m);
    def_done(&d);
    cv_members_sweep(ms);
    T_INT_EQ(cv_members_count(ms), 0);
    cv_members_free(ms);
}

int main(void)
{
    T_RUN(test_identity);
    T_RUN(test_verdict);
    T_RUN(test_life);
    T_RUN(test_threads);
    return t_done();
}
