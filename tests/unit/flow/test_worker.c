#include "flow/worker.h"

#include "flow_util.h"

static void test_settings(void)
{
    struct test_node n;
    test_node_start(&n);
    struct cv_worker *w = n.worker;
    struct cv_dns *first = w->dns;

    cv_worker_set_settings(w, w->settings); /* the same: nothing */
    T_OK(w->dns == first);

    struct cv_settings *s = cv_settings_new();
    s->idle_timeout_ms = 5;
    cv_worker_set_settings(w, s);
    T_OK(w->settings == s);
    T_OK(w->dns == first); /* nothing changed for the resolver: its cache stays */
    cv_settings_unref(s);

    s = cv_settings_new();
    s->connect_timeout_ms = 1;
    s->dns_servers = cv_zalloc(sizeof(char *));
    s->dns_servers[0] = cv_strdup("127.0.0.1:53535");
    s->n_dns_servers = 1;
    cv_worker_set_settings(w, s);
    T_OK(w->dns != first);
    T_OK(!cv_list_is_empty(&w->_retired_dns)); /* queries may still run on it */
    cv_settings_unref(s);

    /* A server that does not parse: the resolver that works is kept. */
    struct cv_dns *second = w->dns;
    s = cv_settings_new();
    s->dns_servers = cv_zalloc(sizeof(char *));
    s->dns_servers[0] = cv_strdup("not an address");
    s->n_dns_servers = 1;
    cv_worker_set_settings(w, s);
    T_OK(w->dns == second);
    cv_settings_unref(s);
    struct cv_loop *loop = w->loop;
    T_INT_EQ(cv_timers_count(cv_loop_timers(loop)), 1); /* of the retired one */
    cv_worker_free(w);                                  /* releases it, too */
    T_INT_EQ(cv_worker_new(1, &n.node, n.settings, &n.worker), 0);
    test_node_end(&n);
}

static void test_today(void)
{
    struct test_node n;
    test_node_start(&n);
    int32_t today = cv_date_today();
    int32_t got = cv_worker_today(n.worker);
    T_OK(got == today || got == cv_date_today());
    /* It is asked again within a second of the loop's clock, not at each call. */
    n.worker->_today = 1;
    T_INT_EQ(cv_worker_today(n.worker), 1);
    n.worker->_today_until_ms = cv_loop_now(n.worker->loop);
    T_OK(cv_worker_today(n.worker) >= today);
    test_node_end(&n);
    cv_worker_free(NULL);
}

static void test_bad_dns_at_start(void)
{
    struct test_node n;
    test_node_start(&n);
    struct cv_settings *s = cv_settings_new();
    s->dns_servers = cv_zalloc(sizeof(char *));
    s->dns_servers[0] = cv_strdup("nonsense");
    s->n_dns_servers = 1;
    struct cv_worker *w = NULL;
    T_INT_EQ(cv_worker_new(1, &n.node, s, &w), CV_E_INVALID);
    T_OK(w == NULL);
    cv_settings_unref(s);
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_settings);
    T_RUN(test_today);
    T_RUN(test_bad_dns_at_start);
    return t_done();
}
