#include "flow/active.h"

#include <pthread.h>
#include <stdatomic.h>

#include "flow_util.h"
#include "policy/decide.h"

#define POLICY(version, user, selector, action)                                                    \
    "{\"schema_version\":1,\"version\":" version                                                   \
    ",\"users\":{\"both\":{\"password\":\"p\",\"policy\":\"r\"},\"" user                           \
    "\":{\"password\":\"p\",\"policy\":\"r\"}},"                                                   \
    "\"routing_policies\":{\"r\":{\"routes\":[{\"selectors\":[\"" selector                         \
    "\"],\"action\":{\"type\":\"" action "\"}}],\"default_action\":{\"type\":\"block\"}}},"        \
    "\"egresses\":{\"x\":{\"type\":\"upstream\",\"backend\":{\"kind\":\"socks5\","                 \
    "\"addr\":\"192.0.2.1:1080\"}}}}"

static const char odd[] = POLICY("1", "odd", "a.test", "direct");
static const char even[] = POLICY("2", "even", "a.test", "block");

static void test_starts_empty(void)
{
    struct test_node n;
    test_node_start(&n);
    struct cv_active *a = cv_active_get(n.node.active);
    T_INT_EQ(cv_snapshot_version(a->snapshot), 0);
    T_INT_EQ(a->n_users, 0);
    T_OK(a->direct != NULL);
    T_INT_EQ(cv_snapshot_user_find(a->snapshot, "u", 1), CV_USER_NONE);
    test_node_end(&n);
    cv_active_holder_free(NULL);
}

static void test_binds_and_keeps_accounts(void)
{
    struct test_node n;
    test_node_start(&n);
    test_policy(&n, odd);
    struct cv_active *a = cv_active_get(n.node.active);
    T_INT_EQ(a->n_users, 2);
    T_INT_EQ(a->n_egresses, 1);
    T_STR_EQ(a->egresses[0]->label->s, "upstream:192.0.2.1:1080");
    uint32_t u = cv_snapshot_user_find(a->snapshot, "both", 4);
    T_STR_EQ(a->accounts[u]->name->s, "both");
    struct cv_account *both = a->accounts[u];
    T_OK(cv_account_permit(both, 0));

    /* A swap keeps what happened to the user, and lets go of the old policy. */
    test_policy(&n, even);
    cv_active_barrier();
    T_INT_EQ(__atomic_load_n(&fake.live, __ATOMIC_ACQUIRE), 2); /* one direct, one upstream */
    a = cv_active_get(n.node.active);
    u = cv_snapshot_user_find(a->snapshot, "both", 4);
    T_OK(a->accounts[u] == both);
    T_INT_EQ(cv_gauge_get(&both->active), 1);
    T_INT_EQ(cv_snapshot_user_find(a->snapshot, "odd", 3), CV_USER_NONE);
    cv_account_release(both);
    test_node_end(&n);
}

/* Who holds a reference keeps the whole policy, and its last unref does not do the work itself. */
static void test_reference_outlives_swap(void)
{
    struct test_node n;
    test_node_start(&n);
    test_policy(&n, odd);
    struct cv_active *a = cv_active_ref(cv_active_get(n.node.active));
    test_policy(&n, even);
    cv_active_barrier();
    T_INT_EQ(cv_snapshot_version(a->snapshot), 1);
    T_INT_EQ(__atomic_load_n(&fake.live, __ATOMIC_ACQUIRE), 4);
    cv_active_unref(a);
    cv_active_barrier();
    T_INT_EQ(__atomic_load_n(&fake.live, __ATOMIC_ACQUIRE), 2);
    cv_active_unref(NULL);
    test_node_end(&n);
}

#define READERS 3
#define SWAPS   400

struct reader {
    struct test_node *n;
    struct cv_loop *loop;
    struct cv_task task;
    pthread_t thread;
    uint64_t looks, wrong, versions[3];
    atomic_bool stop;
    struct cv_active *kept;
};

/* Within one turn everything must belong together: version, users, accounts and verdict. */
static void look(struct cv_task *task)
{
    struct reader *r = CV_CONTAINER_OF(task, struct reader, task);
    struct cv_active *a = cv_active_get(r->n->node.active);
    uint64_t version = cv_snapshot_version(a->snapshot);
    const char *name = version == 1 ? "odd" : "even";
    uint32_t user = cv_snapshot_user_find(a->snapshot, name, strlen(name));
    r->looks++;
    r->versions[version]++;
    if (user == CV_USER_NONE || strcmp(a->accounts[user]->name->s, name) != 0) {
        r->wrong++;
    } else {
        struct cv_host host;
        struct cv_verdict v;
        (void)cv_host_parse("www.a.test", 10, &host);
        cv_decide(a->snapshot, user, &host, NULL, &v);
        if (v.action != (version == 1 ? CV_ACTION_DIRECT : CV_ACTION_BLOCK) || v.route != 0)
            r->wrong++;
    }
    /* Now and then keep one over several turns. */
    if (r->looks % 7 == 0) {
        cv_active_unref(r->kept);
        r->kept = cv_active_ref(a);
    }
    if (!atomic_load(&r->stop))
        cv_loop_next(r->loop, &r->task);
    else
        cv_loop_stop(r->loop);
}

static void *read_all_the_time(void *arg)
{
    struct reader *r = arg;
    cv_active_thread_join(r->loop);
    cv_loop_next(r->loop, &r->task);
    cv_loop_run(r->loop);
    cv_active_unref(r->kept);
    cv_active_thread_leave();
    return NULL;
}

/* A loop that is never idle, so that the grace periods depend on more than sleeping. */
static void test_swap_race(void)
{
    struct test_node n;
    static struct reader readers[READERS];
    test_node_start(&n);
    struct cv_snapshot *s[2] = {test_snapshot(odd), test_snapshot(even)};
    T_INT_EQ(cv_active_swap(n.node.active, cv_snapshot_ref(s[0])), 0);
    for (int i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.n = &n, .task = {.fn = look}};
        if (cv_loop_new(&readers[i].loop) != 0 ||
            pthread_create(&readers[i].thread, NULL, read_all_the_time, &readers[i]) != 0)
            abort();
    }
    for (int i = 0; i < SWAPS; i++) {
        T_INT_EQ(cv_active_swap(n.node.active, cv_snapshot_ref(s[(i + 1) % 2])), 0);
        if (i % 16 == 0)
            cv_active_barrier(); /* let the readers see this one */
    }
    for (int i = 0; i < READERS; i++)
        atomic_store(&readers[i].stop, true);
    uint64_t versions = 0;
    for (int i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        T_OK(readers[i].looks > 0);
        T_INT_EQ(readers[i].wrong, 0);
        versions |= (readers[i].versions[1] > 0 ? 1u : 0) | (readers[i].versions[2] > 0 ? 2u : 0);
        cv_loop_free(readers[i].loop);
    }
    T_INT_EQ(versions, 3);
    cv_active_barrier();
    cv_active_barrier();
    T_INT_EQ(__atomic_load_n(&fake.live, __ATOMIC_ACQUIRE), 2);
    cv_snapshot_unref(s[0]);
    cv_snapshot_unref(s[1]);
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_starts_empty);
    T_RUN(test_binds_and_keeps_accounts);
    T_RUN(test_reference_outlives_swap);
    T_RUN(test_swap_race);
    return t_done();
}
