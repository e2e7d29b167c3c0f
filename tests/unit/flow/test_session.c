#include "flow/session.h"

#include "flow_util.h"

static const char policy[] =
    "{\"schema_version\":1,\"version\":5,\"users\":{"
    "\"a\":{\"password\":\"p\",\"policy\":\"r\"},\"b\":{\"password\":\"p\",\"policy\":\"r\"},"
    "\"c\":{\"password\":\"p\",\"policy\":\"r\"}},\"routing_policies\":{\"r\":{\"routes\":[]}}}";
/* 'a' is gone, 'b' has expired, 'c' is the same. */
static const char later[] =
    "{\"schema_version\":1,\"version\":6,\"users\":{"
    "\"b\":{\"password\":\"p\",\"policy\":\"r\",\"expire\":\"2001-01-01\"},"
    "\"c\":{\"password\":\"new\",\"policy\":\"r\"}},\"routing_policies\":{\"r\":{\"routes\":[]}}}";

struct one {
    struct cv_session s;
    bool ended;
    int killed;
    bool lazy;         /* ends later */
    struct one *buddy; /* ends with this one */
};

static void kill(struct cv_session *s, int err)
{
    struct one *o = CV_CONTAINER_OF(s, struct one, s);
    o->killed = err;
    if (o->lazy)
        return;
    cv_session_fail(s, CV_STAGE_SPLICE, err);
    cv_session_end(s);
    o->ended = true;
    if (o->buddy != NULL && !o->buddy->ended) {
        cv_session_end(&o->buddy->s);
        o->buddy->ended = true;
    }
}

static const struct cv_session_ops ops = {.kill = kill};

static const struct cv_endpoint client = {
    .ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 7}},
    .port = 999,
};

static void begin(struct test_node *n, struct one *o, const char *user)
{
    *o = (struct one){0};
    cv_session_begin(&o->s, n->worker, &ops, "socks5", n->listener, &client);
    if (user == NULL)
        return;
    struct cv_active *a = cv_active_get(n->node.active);
    uint32_t u = cv_snapshot_user_find(a->snapshot, user, strlen(user));
    cv_session_set_user(&o->s, a->accounts[u]->name, a->accounts[u]);
}

static void test_life(void)
{
    struct test_node n;
    struct one o;
    struct cv_target t = {.port = 443};
    test_node_start(&n);
    test_policy(&n, policy);
    begin(&n, &o, NULL);
    T_INT_EQ(o.s.id >> 56, 3); /* the worker */
    T_INT_EQ(o.s.state, CV_SESSION_HANDSHAKE);
    T_INT_EQ(n.worker->n_sessions, 1);
    T_INT_EQ(cv_gauge_get(&n.node.stats.sessions), 1);
    T_INT_EQ(cv_gauge_get(&n.listener->row.active), 1);
    T_OK(cv_session_find(n.worker, o.s.id) == &o.s);
    T_OK(cv_session_find(n.worker, o.s.id + 1) == NULL);

    /* Bytes before there is an account or an egress count for the listener. */
    cv_session_count_up(&o.s, 7);
    T_INT_EQ(cv_counter_get(&n.listener->row.bytes_up), 7);

    /* A wrong login has a name, but no account; the right one replaces it. */
    struct cv_rcstr *wrong = cv_rcstr_new("wrong", 5);
    cv_session_set_user(&o.s, wrong, NULL);
    T_STR_EQ(o.s.username->s, "wrong");
    cv_rcstr_unref(wrong);
    struct cv_account *a = cv_active_get(n.node.active)->accounts[0];
    cv_session_set_user(&o.s, a->name, a);
    T_OK(o.s.account == a);
    T_INT_EQ(cv_host_parse("X.test", 6, &t.host), 0);
    T_INT_EQ(cv_session_set_target(&o.s, &t), 0);
    T_INT_EQ(cv_session_set_target(&o.s, &t), 0);
    T_STR_EQ(o.s.target_host->s, "x.test");

    cv_session_fail(&o.s, CV_STAGE_DIAL, -ECONNREFUSED);
    cv_session_fail(&o.s, CV_STAGE_SPLICE, -EIO); /* the first one wins */
    T_INT_EQ(o.s.stage, CV_STAGE_DIAL);
    T_INT_EQ(o.s.err, -ECONNREFUSED);
    cv_session_end(&o.s);
    T_INT_EQ(o.s.state, CV_SESSION_ENDED);
    T_INT_EQ(n.worker->n_sessions, 0);
    T_INT_EQ(cv_counter_get(&n.listener->row.sessions), 1);
    T_INT_EQ(cv_counter_get(&n.listener->row.refused[CV_STAGE_DIAL]), 1);

    /* A drop leaves no trace in the counters. */
    begin(&n, &o, "a");
    cv_session_drop(&o.s);
    T_INT_EQ(cv_counter_get(&n.listener->row.sessions), 1);
    T_INT_EQ(cv_gauge_get(&n.listener->row.active), 0);
    test_node_end(&n);
}

static void test_kill_all(void)
{
    struct test_node n;
    static struct one o[6];
    test_node_start(&n);
    test_policy(&n, policy);
    for (int i = 0; i < 6; i++)
        begin(&n, &o[i], i % 2 ? "a" : NULL);
    o[0].buddy = &o[1]; /* ends the next one as well */
    o[2].lazy = true;
    o[4].buddy = &o[0]; /* has ended by then */
    cv_session_kill_all(n.worker, CV_E_DRAINING);
    for (int i = 0; i < 6; i++) {
        T_INT_EQ(o[i].killed, i == 1 ? 0 : CV_E_DRAINING);
        T_OK(o[i].ended || i == 2);
    }
    T_INT_EQ(n.worker->n_sessions, 1);
    T_OK(cv_session_find(n.worker, o[2].s.id) == &o[2].s);
    o[2].lazy = false;
    cv_session_kill_all(n.worker, CV_E_KILLED);
    T_INT_EQ(o[2].killed, CV_E_KILLED);
    test_node_end(&n);
}

static uint64_t credential(struct test_node *n, const char *user)
{
    const struct cv_snapshot *s = cv_active_get(n->node.active)->snapshot;
    return cv_session_credential(cv_snapshot_user(s, cv_snapshot_user_find(s, user, strlen(user))));
}

static uint64_t revoked(struct test_node *n)
{
    return cv_counter_get(&n->node.stats.revoked);
}

static void test_recheck(void)
{
    struct test_node n;
    static struct one o[5];
    test_node_start(&n);
    test_policy(&n, policy);
    static const char *const users[] = {"a", "b", "c", NULL, "c"};
    for (int i = 0; i < 5; i++) {
        begin(&n, &o[i], users[i]);
        if (users[i] != NULL && i != 4)
            o[i].s.credential = credential(&n, users[i]);
    }
    cv_session_recheck(n.worker);
    T_INT_EQ(revoked(&n), 0);
    test_policy(&n, later);
    cv_session_recheck(n.worker);
    T_INT_EQ(o[0].killed, CV_E_NOTFOUND);
    T_INT_EQ(o[1].killed, CV_E_EXPIRED);
    T_INT_EQ(o[2].killed, CV_E_REVOKED);
    T_INT_EQ(o[3].killed, 0);
    T_INT_EQ(o[4].killed, 0); /* did not log in by password */
    T_INT_EQ(revoked(&n), 3);
    cv_session_recheck(n.worker);
    T_INT_EQ(revoked(&n), 3);
    cv_session_end(&o[3].s);
    cv_session_end(&o[4].s);
    test_node_end(&n);
}

static void decided(struct one *o, const char *host)
{
    struct cv_target t = {.port = 443};
    T_INT_EQ(cv_host_parse(host, strlen(host), &t.host), 0);
    T_INT_EQ(cv_session_set_target(&o->s, &t), 0);
    o->s.decision = cv_rcstr_new("direct", 6);
    o->s.state = CV_SESSION_RELAY;
}

/* Targets that a new policy blocks, only if the node wants that. */
static void test_recheck_targets(void)
{
    static const char blocking[] =
        "{\"schema_version\":1,\"version\":9,\"users\":{\"a\":{\"password\":\"p\",\"policy\":\"r\"}"
        "},"
        "\"routing_policies\":{\"r\":{\"routes\":[{\"selectors\":[\"bad.test\",\"192.0.2.0/24\","
        "\"2001:db8::/32\"],\"action\":{\"type\":\"block\"}}]}}}";
    struct test_node n;
    static struct one o[5];
    test_node_start(&n);
    test_policy(&n, policy);
    for (int i = 0; i < 5; i++)
        begin(&n, &o[i], "a");
    decided(&o[0], "www.bad.test");
    decided(&o[1], "192.0.2.9");
    decided(&o[2], "2001:db8::7");
    decided(&o[3], "good.test");
    decided(&o[4], "198.51.100.1");
    o[4].s.sniffed_host = cv_rcstr_new("bad.test", 8); /* observed only, at first */
    test_policy(&n, blocking);
    cv_session_recheck(n.worker);
    T_INT_EQ(revoked(&n), 0);
    n.settings->recheck_targets = true;
    cv_session_recheck(n.worker);
    for (int i = 0; i < 5; i++)
        T_INT_EQ(o[i].killed, i < 3 ? CV_E_POLICY : 0);
    o[4].s.sniff_routes = true;
    cv_session_recheck(n.worker);
    T_INT_EQ(o[4].killed, CV_E_POLICY);
    T_INT_EQ(o[3].killed, 0);
    cv_session_end(&o[3].s);
    test_node_end(&n);
}

/* A name that decided along goes on to do so: it may block what it allowed, or still allow what the
 * default blocks. One that was only observed does not, and what waits for its first bytes will be
 * decided yet. */
static void test_recheck_sniffed(void)
{
    static const char narrow[] =
        "{\"schema_version\":1,\"version\":9,\"users\":{\"a\":{\"password\":\"p\",\"policy\":\"r\"}"
        "},\"routing_policies\":{\"r\":{\"routes\":["
        "{\"selectors\":[\"bad.test\"],\"action\":{\"type\":\"block\"}},"
        "{\"selectors\":[\"good.test\",\"192.0.2.1\"],\"action\":{\"type\":\"direct\"}}],"
        "\"default_action\":{\"type\":\"block\"}}}}";
    static const struct {
        const char *target, *sniffed;
        bool routes, waits;
        int killed;
    } cases[] = {
        {"198.51.100.1", "good.test", true, false, 0},
        {"198.51.100.1", "other.test", true, false, CV_E_POLICY},
        {"192.0.2.1", "bad.test", true, false, CV_E_POLICY},
        {"192.0.2.1", "bad.test", false, false, 0},
        {"198.51.100.1", "good.test", false, false, CV_E_POLICY},
        {"198.51.100.1", NULL, false, true, 0},
    };
    struct test_node n;
    static struct one o[CV_ARRAY_SIZE(cases)];
    test_node_start(&n);
    test_policy(&n, policy);
    n.settings->recheck_targets = true;
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        struct cv_host host;
        begin(&n, &o[i], "a");
        decided(&o[i], cases[i].target);
        o[i].s.sniff_routes = cases[i].routes;
        if (cases[i].waits)
            o[i].s.state = CV_SESSION_HANDSHAKE;
        if (cases[i].sniffed == NULL)
            continue;
        T_INT_EQ(cv_host_parse(cases[i].sniffed, strlen(cases[i].sniffed), &host), 0);
        T_INT_EQ(cv_session_set_sniffed(&o[i].s, CV_SNIFF_TLS, &host), 0);
    }
    test_policy(&n, narrow);
    cv_session_recheck(n.worker);
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        if (!T_INT_EQ(o[i].killed, cases[i].killed))
            printf("#   case %zu\n", i);
        if (o[i].killed == 0)
            cv_session_end(&o[i].s);
    }
    test_node_end(&n);
}

/* Many sessions are looked at a part at a time, while others come, go and the policy changes. */
static void test_recheck_in_parts(void)
{
    enum { N = 20000 };
    struct test_node n;
    struct one *o = cv_zalloc((N + 100) * sizeof(*o));
    test_node_start(&n);
    test_policy(&n, policy);
    for (int i = 0; i < N; i++)
        begin(&n, &o[i], i % 4 == 0 ? "a" : "c");
    test_policy(&n, later);
    int64_t longest = 0;
    cv_session_recheck(n.worker);
    T_OK(revoked(&n) > 0 && revoked(&n) <= 64);
    uint64_t before = revoked(&n);
    for (int turn = 0; turn < 100; turn++) { /* new ones come in between */
        begin(&n, &o[N + turn], "c");
        int64_t start = cv_clock_mono_us();
        cv_loop_turn(n.worker->loop, 0);
        longest = CV_MAX(longest, cv_clock_mono_us() - start);
        T_OK(revoked(&n) - before <= 64);
        before = revoked(&n);
        if (turn == 20) /* and another policy: all are looked at again */
            cv_session_recheck(n.worker);
        if (turn == 30) {
            cv_session_drop(&o[1].s);
            o[1].ended = true;
        }
        before = revoked(&n);
    }
    printf("# the longest turn took %lld us\n", (long long)longest);
    T_INT_EQ(revoked(&n), N / 4);
    cv_loop_turn(n.worker->loop, 0);
    T_INT_EQ(revoked(&n), N / 4);
    for (int i = 0; i < N + 100; i++) {
        bool gone = i < N && i % 4 == 0;
        if (gone ? o[i].killed != CV_E_NOTFOUND : o[i].killed != 0)
            T_FAIL("session %d: %d", i, o[i].killed);
        if (!gone && !o[i].ended)
            cv_session_drop(&o[i].s);
    }
    test_node_end(&n);
    cv_free(o);
}

static int32_t today;

static int32_t test_date(void)
{
    return today;
}

/* Whoever was valid to the end of a day is not at the beginning of the next. */
static void test_recheck_at_midnight(void)
{
    static const char dated[] =
        "{\"schema_version\":1,\"version\":9,\"users\":{"
        "\"a\":{\"password\":\"p\",\"policy\":\"r\",\"expire\":\"2026-03-29\"},"
        "\"b\":{\"password\":\"p\",\"policy\":\"r\",\"expire\":\"2026-03-30\"}},"
        "\"routing_policies\":{\"r\":{\"routes\":[]}}}";
    struct test_node n;
    static struct one o[2];
    test_node_start(&n);
    n.worker->date = test_date;
    T_INT_EQ(cv_date_parse("2026-03-29", 10, &today), 0);
    test_policy(&n, dated);
    begin(&n, &o[0], "a");
    begin(&n, &o[1], "b");
    cv_session_recheck(n.worker);
    T_INT_EQ(revoked(&n), 0);
    T_INT_EQ(cv_worker_today(n.worker), today);
    today++; /* within the second for which the worker remembers the date */
    cv_session_recheck(n.worker);
    T_INT_EQ(o[0].killed, CV_E_EXPIRED);
    T_INT_EQ(o[1].killed, 0);
    today++;
    cv_session_recheck(n.worker);
    T_INT_EQ(o[1].killed, CV_E_EXPIRED);
    test_node_end(&n);
}

static int empties;

static void on_empty(struct cv_worker *w)
{
    T_INT_EQ(w->n_sessions, 0);
    empties++;
}

static void test_on_empty(void)
{
    struct test_node n;
    struct one o[2];
    test_node_start(&n);
    n.worker->on_empty = on_empty;
    begin(&n, &o[0], NULL);
    begin(&n, &o[1], NULL);
    cv_session_end(&o[0].s);
    T_INT_EQ(empties, 0);
    cv_session_drop(&o[1].s);
    T_INT_EQ(empties, 1);
    test_node_end(&n);
}

static void test_describe(void)
{
    struct test_node n;
    struct one o;
    struct cv_buf buf;
    struct cv_jsonw w;
    test_node_start(&n);
    test_policy(&n, policy);
    begin(&n, &o, "a");
    struct cv_target t = {.port = 443};
    T_INT_EQ(cv_host_parse("[2001:db8::1]", 13, &t.host), 0);
    T_INT_EQ(cv_session_set_target(&o.s, &t), 0);
    cv_buf_init(&buf, 4096);
    cv_jsonw_init(&w, &buf);
    cv_session_describe(&w, NULL, &o.s);
    T_INT_EQ(cv_jsonw_end(&w), 0);
    T_INT_EQ(cv_buf_append(&buf, "", 1), 0);
    T_STR_EQ((const char *)cv_buf_data(&buf),
             "{\"id\":\"0300000000000001\",\"state\":\"handshake\",\"listener\":\"main\","
             "\"protocol\":\"socks5\",\"client\":\"198.51.100.7:999\",\"user\":\"a\","
             "\"target\":\"[2001:db8::1]:443\",\"age_ms\":0,\"bytes_up\":0,\"bytes_down\":0}");
    cv_buf_done(&buf);
    cv_session_end(&o.s);
    T_STR_EQ(cv_session_state_name(CV_SESSION_RELAY), "relay");
    T_STR_EQ(cv_session_state_name((enum cv_session_state)99), "");
    T_STR_EQ(cv_session_state_name((enum cv_session_state)0), "");
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_life);
    T_RUN(test_kill_all);
    T_RUN(test_recheck);
    T_RUN(test_recheck_targets);
    T_RUN(test_recheck_sniffed);
    T_RUN(test_recheck_in_parts);
    T_RUN(test_recheck_at_midnight);
    T_RUN(test_on_empty);
    T_RUN(test_describe);
    return t_done();
}
