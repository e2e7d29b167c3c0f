#include "app/crew.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "egress/egress.h"
#include "flow/account.h"
#include "flow/active.h"
#include "flow/registry.h"
#include "tap.h"

#define W(s) ((char *)(uintptr_t)(s))

static struct cv_node t_node;
static struct cv_settings *t_settings;
static struct cv_accounts *t_accounts;
static struct cv_registry *t_registry;

static struct cv_egress *make_egress(void *arg, const struct cv_egress_def *def)
{
    (void)arg;
    (void)def;
    return cv_egress_direct_new(cv_registry_egress(t_registry, "direct"));
}

static void begin(void)
{
    struct cv_alog_conf off = {.file = ""};
    memset(&t_node, 0, sizeof(t_node));
    t_settings = cv_settings_new();
    t_accounts = cv_accounts_new();
    t_registry = cv_registry_new();
    if (cv_alog_new(&off, &t_node.stats, &t_node.alog) != 0)
        abort();
    t_node.active = cv_active_holder_new(t_accounts, make_egress, NULL);
}

static void end(void)
{
    cv_alog_free(t_node.alog);
    cv_active_holder_free(t_node.active);
    cv_accounts_free(t_accounts);
    cv_registry_free(t_registry);
    cv_settings_unref(t_settings);
}

struct seen {
    atomic_uint mask, calls;
};

static void on_worker(struct cv_worker *w, void *arg)
{
    struct seen *s = arg;
    atomic_fetch_or(&s->mask, 1u << w->index);
    atomic_fetch_add(&s->calls, 1);
}

/* Everything that was asked for has run when run() returns, and posts keep their order with it. */
static void test_calls(void)
{
    static const unsigned counts[] = {1, 3};
    for (size_t i = 0; i < CV_ARRAY_SIZE(counts); i++) {
        struct cv_crew *crew = NULL;
        struct seen run = {0}, posted = {0};
        begin();
        T_INT_EQ(cv_crew_start(counts[i], &t_node, t_settings, &crew), 0);
        T_INT_EQ(cv_crew_count(crew), counts[i]);
        for (unsigned k = 0; k < counts[i]; k++)
            T_INT_EQ(cv_crew_workers(crew)[k]->index, k);
        for (int k = 0; k < 100; k++) {
            cv_crew_post(crew, on_worker, &posted);
            cv_crew_run(crew, on_worker, &run);
            T_INT_EQ(atomic_load(&run.calls), (k + 1) * counts[i]);
            T_INT_EQ(atomic_load(&posted.calls), (k + 1) * counts[i]);
        }
        T_INT_EQ(atomic_load(&run.mask), (1u << counts[i]) - 1);
        /* What is posted last still runs, at the latest when the loops are freed. */
        cv_crew_post(crew, on_worker, &posted);
        T_OK(cv_crew_join(crew));
        cv_crew_free(crew);
        T_INT_EQ(atomic_load(&posted.calls), 101 * counts[i]);
        end();
    }
    T_OK(cv_crew_join(NULL));
    cv_crew_free(NULL);
}

/* A worker that cannot be made: nothing is left of the others. */
static void test_failure(void)
{
    struct cv_crew *crew = NULL;
    begin();
    char *bad[] = {W("not an address")};
    t_settings->dns_servers = bad;
    t_settings->n_dns_servers = 1;
    T_OK(cv_crew_start(2, &t_node, t_settings, &crew) < 0);
    T_OK(crew == NULL);
    t_settings->dns_servers = NULL;
    t_settings->n_dns_servers = 0;
    end();
}

int main(void)
{
    T_RUN(test_calls);
    T_RUN(test_failure);
    return t_done();
}
