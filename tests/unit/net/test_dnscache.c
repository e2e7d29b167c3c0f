#include "net/dnscache.h"

#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "tap.h"

#include "common/poison.h"

#define NAMES 64
#define MAX   24

/* The trivial implementation: all names in an array. */
struct model {
    struct cv_dnsentry *e[NAMES][2];
};

static enum cv_family family_of(int i)
{
    return i == 0 ? CV_AF_IP4 : CV_AF_IP6;
}

static void name_of(int i, char out[32])
{
    snprintf(out, 32, "host%d.example", i);
}

static void forget(struct model *m, const struct cv_dnsentry *e)
{
    for (int i = 0; i < NAMES; i++)
        for (int f = 0; f < 2; f++)
            if (m->e[i][f] == e)
                m->e[i][f] = NULL;
}

static int64_t model_first(const struct model *m, size_t *ret_held)
{
    int64_t first = INT64_MAX;
    *ret_held = 0;
    for (int i = 0; i < NAMES; i++)
        for (int f = 0; f < 2; f++)
            if (m->e[i][f] != NULL && m->e[i][f]->state == CV_DNSENTRY_HELD) {
                (*ret_held)++;
                first = CV_MIN(first, m->e[i][f]->end_ms);
            }
    return first;
}

static void step(struct cv_dnscache *c, struct model *m)
{
    int i = (int)cv_rand_below(NAMES), f = (int)cv_rand_below(2);
    char name[32];
    name_of(i, name);
    struct cv_dnsentry *e = m->e[i][f];
    if (e == NULL) {
        e = cv_dnsentry_new(name, family_of(f));
        cv_dnscache_add(c, e);
        m->e[i][f] = e;
    } else if (e->state == CV_DNSENTRY_FLYING && cv_rand_below(4) > 0) {
        size_t held;
        int64_t first = model_first(m, &held);
        struct cv_dnsentry *gone = cv_dnscache_hold(c, e, (int64_t)cv_rand_below(50));
        T_OK((gone != NULL) == (held == MAX));
        if (gone != NULL) {
            T_INT_EQ(gone->end_ms, first);
            forget(m, gone);
            cv_dnsentry_free(gone);
        }
    } else {
        cv_dnscache_drop(c, e);
        forget(m, e);
        cv_dnsentry_free(e);
    }
}

static bool agrees(const struct cv_dnscache *c, const struct model *m)
{
    char name[32];
    for (int i = 0; i < NAMES; i++)
        for (int f = 0; f < 2; f++) {
            name_of(i, name);
            if (cv_dnscache_find(c, name, family_of(f)) != m->e[i][f])
                return false;
        }
    size_t held;
    int64_t first = model_first(m, &held);
    const struct cv_dnsentry *e = cv_dnscache_first(c);
    return held == c->n_held && (e == NULL ? held == 0 : e->end_ms == first);
}

static void equals_a_plain_array(void)
{
    struct cv_dnscache c;
    struct model m = {0};
    T_REQUIRE(cv_dnscache_init(&c, MAX) == 0);
    bool ok = true;
    for (int i = 0; i < 20000 && ok; i++) {
        step(&c, &m);
        ok = i % 16 != 0 || agrees(&c, &m);
    }
    T_OK(ok);
    struct cv_dnsentry *e;
    for (size_t from = 0; (e = cv_dnscache_any(&c, &from)) != NULL;) {
        cv_dnscache_drop(&c, e);
        cv_dnsentry_free(e);
    }
    T_INT_EQ(c.n_held, 0);
    T_INT_EQ(c.n_flying, 0);
    cv_dnscache_done(&c);
}

static void holds_nothing_when_told_so(void)
{
    struct cv_dnscache c;
    T_REQUIRE(cv_dnscache_init(&c, 0) == 0);
    struct cv_dnsentry *e = cv_dnsentry_new("a.example", CV_AF_IP4);
    T_REQUIRE(e != NULL);
    cv_dnscache_add(&c, e);
    T_INT_EQ(c.n_flying, 1);
    T_OK(cv_dnscache_hold(&c, e, 1000) == NULL);
    T_INT_EQ(e->state, CV_DNSENTRY_LOOSE);
    T_OK(cv_dnscache_find(&c, "a.example", CV_AF_IP4) == NULL);
    T_INT_EQ(c.n_flying, 0);
    cv_dnsentry_free(e);
    cv_dnscache_done(&c);
}

static void families_are_apart(void)
{
    struct cv_dnscache c;
    T_REQUIRE(cv_dnscache_init(&c, 8) == 0);
    struct cv_dnsentry *a = cv_dnsentry_new("a.example", CV_AF_IP4);
    struct cv_dnsentry *b = cv_dnsentry_new("a.example", CV_AF_IP6);
    cv_dnscache_add(&c, a);
    cv_dnscache_add(&c, b);
    T_OK(cv_dnscache_find(&c, "a.example", CV_AF_IP4) == a);
    T_OK(cv_dnscache_find(&c, "a.example", CV_AF_IP6) == b);
    T_OK(cv_dnscache_find(&c, "b.example", CV_AF_IP4) == NULL);
    cv_dnscache_drop(&c, a);
    cv_dnscache_drop(&c, b);
    cv_dnsentry_free(a);
    cv_dnsentry_free(b);
    cv_dnscache_done(&c);
}

int main(void)
{
    T_RUN(equals_a_plain_array);
    T_RUN(holds_nothing_when_told_so);
    T_RUN(families_are_apart);
    return t_done();
}
