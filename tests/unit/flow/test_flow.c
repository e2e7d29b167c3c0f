#include "flow/flow.h"

#include "common/log.h"
#include "flow_util.h"

static const char policy[] =
    "{\"schema_version\":1,\"version\":42,\"users\":{"
    "\"alice\":{\"password\":\"p\",\"policy\":\"pol\",\"max_connections\":2},"
    "\"old\":{\"password\":\"p\",\"policy\":\"pol\",\"expire\":\"2001-01-01\"}},"
    "\"routing_policies\":{\"pol\":{\"routes\":["
    "{\"selectors\":[\"blocked.test\"],\"action\":{\"type\":\"block\"}},"
    "{\"selectors\":[\"up.test\"],\"action\":{\"type\":\"egress\",\"egress\":\"px\"}},"
    "{\"selectors\":[\"10.0.0.0/8\"],\"action\":{\"type\":\"direct\"}}],"
    "\"default_action\":{\"type\":\"direct\"}}},"
    "\"egresses\":{\"px\":{\"type\":\"upstream\",\"backend\":"
    "{\"kind\":\"socks5\",\"addr\":\"192.0.2.1:1080\"}}}}";

/* The same users and names with the opposite verdicts. */
static const char opposite[] =
    "{\"schema_version\":1,\"version\":43,\"users\":{"
    "\"bob\":{\"password\":\"p\",\"policy\":\"pol2\"}},"
    "\"routing_policies\":{\"pol2\":{\"routes\":[],\"default_action\":{\"type\":\"block\"}}}}";

struct
try {
    struct cv_session s;
    struct cv_flow *flow;
    struct cv_stream *stream;
    struct cv_endpoint local;
    int err;
    int answers;
    struct cv_listener_stats *listener;
};

static void on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local)
{
    struct try *t = arg;
    t->answers++;
    t->err = err;
    t->stream = stream;
    t->local = *local;
}

static void kill(struct cv_session *s, int err)
{
    (void)s;
    (void)err;
}

static const struct cv_session_ops ops = {.kill = kill};

static struct cv_account *account(struct test_node *n, const char *user)
{
    struct cv_active *a = cv_active_get(n->node.active);
    uint32_t u = cv_snapshot_user_find(a->snapshot, user, strlen(user));
    return u != CV_USER_NONE ? a->accounts[u] : NULL;
}

static void open_flow(struct test_node *n, struct try *t, const char *user, const char *host)
{
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 7}}, .port = 999};
    struct cv_target target = {.port = 443};
    *t = (struct try){.err = 1};
    T_INT_EQ(cv_host_parse(host, strlen(host), &target.host), 0);
    cv_session_begin(&t->s, n->worker, &ops, "socks5", n->listener, &client);
    struct cv_account *a = account(n, user);
    cv_session_set_user(&t->s, a->name, a);
    T_INT_EQ(cv_session_set_target(&t->s, &target), 0);
    T_INT_EQ(cv_flow_open(&t->s, &target, on_flow, t, &t->flow), 0);
    T_INT_EQ(t->answers, 0); /* never from inside the call */
    T_INT_EQ(t->s.state, CV_SESSION_DIAL);
}

static void end(struct test_node *n, struct try *t)
{
    cv_stream_close(t->stream, false);
    if (fake.peer_fd >= 0)
        close(fake.peer_fd);
    fake.peer_fd = -1;
    cv_session_end(&t->s);
    cv_loop_turn(n->worker->loop, 0);
}

static void test_connects(void)
{
    struct test_node n;
    struct try t;
    test_node_start(&n);
    test_policy(&n, policy);
    fake.mode = FAKE_CONNECT;
    int64_t before = cv_loop_now(n.worker->loop);
    open_flow(&n, &t, "alice", "www.up.test");
    T_OK(fake.deadline_ms >= before + 10000 && fake.deadline_ms <= before + 11000);
    T_OK(!fake.names_special);
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    T_INT_EQ(t.err, 0);
    T_OK(t.stream != NULL);
    T_INT_EQ(t.local.port, 4321);
    T_INT_EQ(t.s.state, CV_SESSION_RELAY);
    T_STR_EQ(t.s.policy_id->s, "pol");
    T_STR_EQ(t.s.decision->s, "upstream:192.0.2.1:1080");
    T_STR_EQ(t.s.outlet->s, "upstream:192.0.2.1:1080");
    T_INT_EQ(t.s.route, 1);
    T_INT_EQ(t.s.snapshot_version, 42);
    T_INT_EQ(t.s.peer.port, 80);
    T_OK(t.s.member == NULL);
    T_OK(t.s.dial_us > 0);
    T_OK(t.s.permit);
    T_INT_EQ(cv_gauge_get(&account(&n, "alice")->active), 1);
    struct cv_egress_stats *row = cv_registry_egress(n.registry, "upstream:192.0.2.1:1080");
    T_INT_EQ(cv_gauge_get(&row->row.active), 1);
    T_INT_EQ(cv_counter_get(&row->row.sessions), 1);
    uint64_t dials = 0;
    for (int i = 0; i < CV_HISTOGRAM_BUCKETS; i++)
        dials += cv_counter_get(&row->dial.bucket[i]);
    T_INT_EQ(dials, 1);
    cv_session_count_up(&t.s, 10);
    cv_session_count_down(&t.s, 20);
    T_INT_EQ(cv_counter_get(&row->row.bytes_up), 10);
    T_INT_EQ(cv_counter_get(&account(&n, "alice")->bytes_down), 20);
    T_INT_EQ(cv_counter_get(&n.listener->row.bytes_down), 20);
    end(&n, &t);
    T_INT_EQ(cv_gauge_get(&row->row.active), 0);
    T_INT_EQ(cv_gauge_get(&account(&n, "alice")->active), 0);
    test_node_end(&n);
}

/* A chain: the member that carries it is named and counted. */
static void test_counts_under_the_member(void)
{
    struct test_node n;
    struct try t;
    test_node_start(&n);
    test_policy(&n, policy);
    fake.mode = FAKE_CONNECT;
    fake.member = cv_rcstr_new("m2", 2);
    fake.member_stats = cv_registry_egress(n.registry, "upstream:member");
    open_flow(&n, &t, "alice", "up.test");
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    T_STR_EQ(t.s.member->s, "m2");
    T_INT_EQ(t.s.attempts, 2);
    T_INT_EQ(cv_gauge_get(&fake.member_stats->row.active), 1);
    T_INT_EQ(cv_gauge_get(&cv_registry_egress(n.registry, "upstream:192.0.2.1:1080")->row.active),
             0);
    end(&n, &t);
    T_INT_EQ(cv_gauge_get(&fake.member_stats->row.active), 0);
    cv_rcstr_unref(fake.member);
    fake.member = NULL;
    fake.member_stats = NULL;
    test_node_end(&n);
}

static void test_refusals(void)
{
    static const struct {
        const char *user, *host;
        enum cv_stage stage;
        int err;
        const char *decision;
        int route;
    } rows[] = {
        {"alice", "blocked.test", CV_STAGE_POLICY, CV_E_POLICY, "block", 0},
        {"alice", "www.blocked.test", CV_STAGE_POLICY, CV_E_POLICY, "block", 0},
        {"old", "other.test", CV_STAGE_AUTH, CV_E_EXPIRED, "direct", -1},
        {"old", "blocked.test", CV_STAGE_AUTH, CV_E_EXPIRED, "block", 0},
    };
    struct test_node n;
    test_node_start(&n);
    test_policy(&n, policy);
    int dials = fake.dials;
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct try t;
        open_flow(&n, &t, rows[i].user, rows[i].host);
        TURN_UNTIL(n.worker->loop, t.answers == 1);
        T_INT_EQ(t.err, rows[i].err);
        T_OK(t.stream == NULL);
        T_INT_EQ(t.s.stage, rows[i].stage);
        T_INT_EQ(t.s.err, rows[i].err);
        T_STR_EQ(t.s.decision->s, rows[i].decision);
        T_INT_EQ(t.s.route, rows[i].route);
        T_OK(!t.s.permit && t.s.outlet == NULL && t.s.egress == NULL);
        end(&n, &t);
    }
    T_INT_EQ(fake.dials, dials); /* nothing was dialled */
    T_INT_EQ(cv_counter_get(&n.listener->row.refused[CV_STAGE_POLICY]), 2);
    T_INT_EQ(cv_counter_get(&n.listener->row.refused[CV_STAGE_AUTH]), 2);
    T_INT_EQ(cv_counter_get(&account(&n, "alice")->refused), 2);
    T_INT_EQ(cv_counter_get(&account(&n, "alice")->sessions), 2);
    test_node_end(&n);
}

static void test_max_connections(void)
{
    struct test_node n;
    struct try t[4];
    test_node_start(&n);
    test_policy(&n, policy);
    fake.mode = FAKE_HANG;
    for (int i = 0; i < 2; i++) {
        open_flow(&n, &t[i], "alice", "a.test");
        cv_flow_cancel(t[i].flow); /* the permit stays with the session */
        T_OK(t[i].s.permit);
    }
    open_flow(&n, &t[2], "alice", "a.test");
    TURN_UNTIL(n.worker->loop, t[2].answers == 1);
    T_INT_EQ(t[2].err, CV_E_LIMIT);
    T_INT_EQ(t[2].s.stage, CV_STAGE_LIMIT);
    T_OK(!t[2].s.permit);
    end(&n, &t[2]);
    end(&n, &t[0]);
    fake.mode = FAKE_FAIL;
    fake.stage = CV_STAGE_DIAL;
    fake.err = -ECONNREFUSED;
    open_flow(&n, &t[3], "alice", "a.test");
    TURN_UNTIL(n.worker->loop, t[3].answers == 1);
    T_INT_EQ(t[3].err, -ECONNREFUSED);
    T_INT_EQ(t[3].s.stage, CV_STAGE_DIAL);
    T_INT_EQ(t[3].s.state, CV_SESSION_DIAL);
    T_OK(t[3].s.outlet == NULL);
    end(&n, &t[1]);
    end(&n, &t[3]);
    T_INT_EQ(cv_gauge_get(&account(&n, "alice")->active), 0);
    struct cv_egress_stats *row = cv_registry_egress(n.registry, "direct");
    T_INT_EQ(cv_counter_get(&row->row.refused[CV_STAGE_DIAL]), 1);
    T_INT_EQ(cv_gauge_get(&row->row.active), 0);
    test_node_end(&n);
}

static void test_cancel(void)
{
    struct test_node n;
    struct try t;
    test_node_start(&n);
    test_policy(&n, policy);
    /* While it is dialled, while the answer is on its way, while a refusal is on its way. */
    static const enum fake_mode modes[] = {FAKE_HANG, FAKE_CONNECT, FAKE_FAIL};
    for (size_t i = 0; i < CV_ARRAY_SIZE(modes); i++) {
        fake.mode = modes[i];
        open_flow(&n, &t, "alice", "a.test");
        cv_flow_cancel(t.flow);
        for (int k = 0; k < 3; k++)
            cv_loop_turn(n.worker->loop, 0);
        T_INT_EQ(t.answers, 0);
        end(&n, &t);
    }
    open_flow(&n, &t, "alice", "blocked.test");
    cv_flow_cancel(t.flow);
    cv_flow_cancel(NULL);
    cv_loop_turn(n.worker->loop, 0);
    T_INT_EQ(t.answers, 0);
    end(&n, &t);
    test_node_end(&n);
}

/* What the selector itself names is passed to the egress with the verdict. */
static void test_special_prefix(void)
{
    struct test_node n;
    struct try t;
    char text[CV_PREFIX_STRLEN];
    test_node_start(&n);
    test_policy(&n, policy);
    fake.mode = FAKE_CONNECT;
    open_flow(&n, &t, "alice", "10.1.2.3");
    T_OK(fake.names_special);
    T_STR_EQ(cv_prefix_format(&fake.special, text), "10.0.0.0/8");
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    end(&n, &t);
    open_flow(&n, &t, "alice", "192.168.1.1");
    T_OK(!fake.names_special);
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    end(&n, &t);
    test_node_end(&n);
}

/* The user logged in under a policy that is gone: the verdict is the new one's, and says so. */
static void test_follows_the_policy_in_force(void)
{
    struct test_node n;
    struct try t = {.err = 1};
    struct cv_endpoint client = {0};
    struct cv_target target = {.port = 80};
    test_node_start(&n);
    test_policy(&n, policy);
    T_INT_EQ(cv_host_parse("up.test", 7, &target.host), 0);
    cv_session_begin(&t.s, n.worker, &ops, "http", n.listener, &client);
    cv_session_set_user(&t.s, account(&n, "alice")->name, account(&n, "alice"));
    test_policy(&n, opposite);
    cv_active_barrier();
    T_INT_EQ(cv_flow_open(&t.s, &target, on_flow, &t, &t.flow), 0);
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    T_INT_EQ(t.err, CV_E_POLICY);
    T_INT_EQ(t.s.stage, CV_STAGE_POLICY);
    T_INT_EQ(t.s.snapshot_version, 43);
    T_STR_EQ(t.s.decision->s, "block");
    T_OK(t.s.policy_id == NULL);
    end(&n, &t);

    /* And a session that was decided before goes on with what it had. */
    test_policy(&n, policy);
    fake.mode = FAKE_CONNECT;
    open_flow(&n, &t, "alice", "up.test");
    test_policy(&n, opposite);
    cv_active_barrier();
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    T_INT_EQ(t.err, 0);
    T_INT_EQ(t.s.snapshot_version, 42);
    T_STR_EQ(t.s.policy_id->s, "pol");
    end(&n, &t);
    test_node_end(&n);
}

static char logged[4096];

static void on_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    size_t at = strlen(logged);
    snprintf(logged + at, sizeof(logged) - at, "%.*s", (int)len, line);
}

/* At debug level one line says all that explain needs to repeat the decision. */
static void test_logs_the_decision(void)
{
    struct test_node n;
    struct try t;
    test_node_start(&n);
    test_policy(&n, policy);
    cv_log_set_sink(on_log, NULL);
    cv_log_configure(CV_LOG_DEBUG, CV_LOG_TEXT);
    fake.mode = FAKE_CONNECT;
    open_flow(&n, &t, "alice", "UP.test.");
    TURN_UNTIL(n.worker->loop, t.answers == 1);
    end(&n, &t);
    cv_log_configure(CV_LOG_INFO, CV_LOG_TEXT);
    cv_log_set_sink(NULL, NULL);
    T_OK(strstr(logged, "user='alice' target=up.test:443 policy='pol' route=1 "
                        "verdict='upstream:192.0.2.1:1080' snapshot=42") != NULL);
    T_OK(strstr(logged, "session ended") != NULL);
    test_node_end(&n);
}

/* The decision takes a sniffed name along; what is dialled is the target. Before it is known, what
 * no name could change is refused, and the permit is taken once. */
static const char sniffing[] =
    "{\"schema_version\":1,\"version\":44,\"users\":{"
    "\"open\":{\"password\":\"p\",\"policy\":\"open\"},"
    "\"shut\":{\"password\":\"p\",\"policy\":\"shut\",\"max_connections\":1},"
    "\"old\":{\"password\":\"p\",\"policy\":\"open\",\"expire\":\"2020-01-01\"}},"
    "\"routing_policies\":{\"open\":{\"routes\":[{\"selectors\":[\"bad.test\",\"203.0.113.0/24\"],"
    "\"action\":{\"type\":\"block\"}}]},"
    "\"shut\":{\"routes\":[{\"selectors\":[\"good.test\"],\"action\":{\"type\":\"direct\"}}],"
    "\"default_action\":{\"type\":\"block\"}}}}";

static const struct {
    const char *user, *target, *sniffed;
    int screen, open; /* what cv_flow_screen() says; what follows */
    const char *label;
    bool by_sniffed;
} sniffs[] = {
    {"open", "192.0.2.5", NULL, 0, 0, "direct", false},
    {"open", "192.0.2.5", "fine.test", 0, 0, "direct", false},
    {"open", "192.0.2.5", "bad.test", 0, CV_E_POLICY, "block", true},
    {"open", "192.0.2.5", "www.bad.test", 0, CV_E_POLICY, "block", true},
    {"open", "fine.test", "bad.test", 0, CV_E_POLICY, "block", true},
    {"open", "203.0.113.9", "fine.test", CV_E_POLICY, 0, "block", false},
    {"open", "bad.test", NULL, CV_E_POLICY, 0, "block", false},
    {"shut", "192.0.2.5", "good.test", 0, 0, "direct", true},
    {"shut", "192.0.2.5", "other.test", 0, CV_E_POLICY, "block", false},
    {"shut", "192.0.2.5", NULL, 0, CV_E_POLICY, "block", false},
    {"shut", "other.test", "good.test", CV_E_POLICY, 0, "block", false},
    {"old", "192.0.2.5", NULL, CV_E_EXPIRED, 0, "direct", false},
};

static void test_sniffed(void)
{
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 7}}, .port = 999};
    struct test_node n;
    test_node_start(&n);
    test_policy(&n, sniffing);
    fake.mode = FAKE_CONNECT;
    for (size_t i = 0; i < CV_ARRAY_SIZE(sniffs); i++) {
        struct cv_target target = {.port = 443};
        struct cv_host host;
        struct try t = {.err = 1};
        T_INT_EQ(cv_host_parse(sniffs[i].target, strlen(sniffs[i].target), &target.host), 0);
        cv_session_begin(&t.s, n.worker, &ops, "socks5", n.listener, &client);
        struct cv_account *a = account(&n, sniffs[i].user);
        cv_session_set_user(&t.s, a->name, a);
        T_INT_EQ(cv_session_set_target(&t.s, &target), 0);
        int before = fake.dials;
        bool ok = T_INT_EQ(cv_flow_screen(&t.s, &target), sniffs[i].screen);
        T_INT_EQ(t.s.err, sniffs[i].screen);
        T_INT_EQ(cv_gauge_get(&a->active), sniffs[i].screen == 0);
        if (sniffs[i].screen == 0) {
            if (sniffs[i].sniffed != NULL) {
                T_INT_EQ(cv_host_parse(sniffs[i].sniffed, strlen(sniffs[i].sniffed), &host), 0);
                T_INT_EQ(cv_session_set_sniffed(&t.s, CV_SNIFF_TLS, &host), 0);
            }
            T_INT_EQ(cv_flow_open(&t.s, &target, on_flow, &t, &t.flow), 0);
            TURN_UNTIL(n.worker->loop, t.answers == 1);
            ok = T_INT_EQ(t.err, sniffs[i].open) && ok;
            T_INT_EQ(cv_gauge_get(&a->active), 1);
        }
        bool dialled = sniffs[i].screen == 0 && sniffs[i].open == 0;
        ok = T_INT_EQ(fake.dials - before, dialled) && ok;
        T_INT_EQ(t.s.by_sniffed, sniffs[i].by_sniffed);
        if (!T_STR_EQ(t.s.decision->s, sniffs[i].label) || !ok)
            printf("#   case %zu\n", i);
        end(&n, &t);
        T_INT_EQ(cv_gauge_get(&a->active), 0);
    }
    test_node_end(&n);
}

static void test_permit(void)
{
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 7}}, .port = 999};
    struct test_node n;
    struct cv_session s[2];
    test_node_start(&n);
    test_policy(&n, sniffing);
    struct cv_account *a = account(&n, "shut"), *old = account(&n, "old");
    for (int i = 0; i < 2; i++) {
        cv_session_begin(&s[i], n.worker, &ops, "sni", n.listener, &client);
        cv_session_set_user(&s[i], a->name, a);
        T_INT_EQ(cv_flow_permit(&s[i]), i == 0 ? 0 : CV_E_LIMIT);
        T_INT_EQ(s[i].stage, i == 0 ? CV_STAGE_NONE : CV_STAGE_LIMIT);
    }
    cv_session_end(&s[1]);
    T_INT_EQ(cv_gauge_get(&a->active), 1);
    cv_session_end(&s[0]);
    T_INT_EQ(cv_gauge_get(&a->active), 0);
    cv_session_begin(&s[0], n.worker, &ops, "sni", n.listener, &client);
    cv_session_set_user(&s[0], old->name, old);
    T_INT_EQ(cv_flow_permit(&s[0]), CV_E_EXPIRED);
    test_policy(&n, opposite); /* the user is gone */
    cv_session_begin(&s[1], n.worker, &ops, "sni", n.listener, &client);
    cv_session_set_user(&s[1], s[0].username, s[0].account);
    T_INT_EQ(cv_flow_permit(&s[1]), CV_E_POLICY);
    cv_session_end(&s[0]);
    cv_session_end(&s[1]);
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_connects);
    T_RUN(test_counts_under_the_member);
    T_RUN(test_refusals);
    T_RUN(test_max_connections);
    T_RUN(test_cancel);
    T_RUN(test_special_prefix);
    T_RUN(test_follows_the_policy_in_force);
    T_RUN(test_logs_the_decision);
    T_RUN(test_sniffed);
    T_RUN(test_permit);
    return t_done();
}
