#include "flow/account.h"

#include <pthread.h>
#include <stdlib.h>

#include "tap.h"

static struct cv_rcstr *name(const char *s)
{
    struct cv_rcstr *r = cv_rcstr_new(s, strlen(s));
    if (r == NULL)
        abort();
    return r;
}

static struct cv_account *get(struct cv_accounts *t, const char *s)
{
    struct cv_rcstr *n = name(s);
    struct cv_account *a = cv_accounts_get(t, n);
    cv_rcstr_unref(n);
    return a;
}

static void test_permits(void)
{
    struct cv_accounts *t = cv_accounts_new();
    struct cv_account *a = get(t, "alice");
    T_OK(cv_account_permit(a, 2));
    T_OK(cv_account_permit(a, 2));
    T_OK(!cv_account_permit(a, 2));
    T_INT_EQ(cv_gauge_get(&a->active), 2);
    T_OK(cv_account_permit(a, 0)); /* unlimited */
    T_OK(!cv_account_permit(a, 3));
    T_OK(cv_account_permit(a, 4)); /* the limit of a newer policy */
    cv_account_release(a);
    cv_account_release(a);
    cv_account_release(a);
    T_OK(!cv_account_permit(a, 1)); /* lowered: those that run stay, no new one comes */
    cv_account_release(a);
    T_OK(cv_account_permit(a, 1));
    cv_account_release(a);
    T_INT_EQ(cv_gauge_get(&a->active), 0);
    cv_account_unref(a);
    cv_accounts_free(t);
}

#define THREADS 4
#define ROUNDS  40000
#define LIMIT   3

struct contest {
    struct cv_account *account;
    _Atomic int inside;
    _Atomic int most;
    _Atomic uint64_t taken, refused;
};

static void *contender(void *arg)
{
    struct contest *c = arg;
    for (int i = 0; i < ROUNDS; i++) {
        if (!cv_account_permit(c->account, LIMIT)) {
            atomic_fetch_add(&c->refused, 1);
            continue;
        }
        int now = atomic_fetch_add(&c->inside, 1) + 1;
        int most = atomic_load(&c->most);
        while (now > most && !atomic_compare_exchange_weak(&c->most, &most, now))
            ;
        atomic_fetch_add(&c->taken, 1);
        atomic_fetch_sub(&c->inside, 1);
        cv_account_release(c->account);
    }
    return NULL;
}

static void test_permits_never_overshoot(void)
{
    struct cv_accounts *t = cv_accounts_new();
    struct contest c = {.account = get(t, "alice")};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, contender, &c);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    T_OK(atomic_load(&c.most) >= 1 && atomic_load(&c.most) <= LIMIT);
    T_INT_EQ(atomic_load(&c.taken) + atomic_load(&c.refused), THREADS * ROUNDS);
    T_INT_EQ(cv_gauge_get(&c.account->active), 0);
    cv_account_unref(c.account);
    cv_accounts_free(t);
}

static void test_remembered_login(void)
{
    struct cv_accounts *t = cv_accounts_new();
    struct cv_account *a = get(t, "alice");
    struct cv_rcstr *stored = name("$argon2id$one"), *other = name("$argon2id$two");
    T_OK(!cv_account_login_known(a, stored, "secret", 6));
    cv_account_login_remember(a, stored, "secret", 6);
    T_OK(cv_account_login_known(a, stored, "secret", 6));
    T_OK(!cv_account_login_known(a, stored, "secret", 5));
    T_OK(!cv_account_login_known(a, stored, "Secret", 6));
    T_OK(!cv_account_login_known(a, stored, "", 0));
    T_OK(!cv_account_login_known(a, other, "secret", 6)); /* the password was changed */
    cv_account_login_remember(a, other, "new", 3);
    T_OK(!cv_account_login_known(a, stored, "secret", 6));
    T_OK(cv_account_login_known(a, other, "new", 3));
    cv_rcstr_unref(stored);
    cv_rcstr_unref(other);
    cv_account_unref(a);
    cv_accounts_free(t);
}

static void count(void *arg, struct cv_account *a)
{
    (void)a;
    (*(size_t *)arg)++;
}

static size_t size(struct cv_accounts *t)
{
    size_t n = 0;
    cv_accounts_each(t, count, &n);
    return n;
}

static void test_table(void)
{
    enum { N = 5000 };
    static struct cv_account *held[N];
    struct cv_accounts *t = cv_accounts_new();
    char text[32];
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "user-%d", i);
        held[i] = get(t, text);
        T_STR_EQ(held[i]->name->s, text);
    }
    T_INT_EQ(size(t), N);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "user-%d", i);
        struct cv_account *again = get(t, text);
        if (again != held[i])
            T_FAIL("'%s' is not the same any more", text);
        cv_account_unref(again);
    }
    /* Names are bytes: case and length count. */
    struct cv_account *odd = get(t, "USER-1");
    T_OK(odd != held[1]);

    /* Every third is let go and swept, the others stay what they were. */
    for (int i = 0; i < N; i += 3) {
        cv_account_unref(held[i]);
        held[i] = NULL;
    }
    cv_accounts_sweep(t);
    T_INT_EQ(size(t), N - (N + 2) / 3 + 1);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "user-%d", i);
        if (held[i] == NULL)
            continue;
        struct cv_account *again = get(t, text);
        if (again != held[i])
            T_FAIL("'%s' was lost by the sweep", text);
        cv_account_unref(again);
    }
    for (int i = 0; i < N; i++)
        cv_account_unref(held[i]);
    cv_account_unref(odd);
    cv_accounts_sweep(t);
    T_INT_EQ(size(t), 0);
    cv_accounts_sweep(t);
    struct cv_account *fresh = get(t, "user-1");
    T_INT_EQ(size(t), 1);
    /* Outlives the table. */
    cv_accounts_free(t);
    T_STR_EQ(fresh->name->s, "user-1");
    cv_account_unref(fresh);
    cv_account_unref(NULL);
    cv_accounts_free(NULL);
}

int main(void)
{
    T_RUN(test_permits);
    T_RUN(test_permits_never_overshoot);
    T_RUN(test_remembered_login);
    T_RUN(test_table);
    return t_done();
}
