#include "flow/way.h"

#include "flow_util.h"

/* 'old' has expired; 10.0.0.0/8 is named by a rule; 'up.test' has an egress of its own. */
static const char form[] =
    "{\"schema_version\":1,\"version\":%d,\"users\":{"
    "\"alice\":{\"password\":\"p\",\"policy\":\"pol\",\"max_connections\":2%s},"
    "\"bob\":{\"password\":\"p\",\"policy\":\"pol\"}},"
    "\"routing_policies\":{\"pol\":{\"routes\":[%s"
    "{\"selectors\":[\"10.0.0.0/8\"],\"action\":{\"type\":\"direct\"}}],"
    "\"default_action\":{\"type\":\"%s\"}}}}";

struct one {
    struct cv_session s;
    struct cv_flow *flow;
    struct cv_stream *stream;
    int answers, err;
};

static struct test_node n;
static int version;

static void on_flow(void *arg, int err, struct cv_stream *stream, const struct cv_endpoint *local)
{
    struct one *o = arg;
    (void)local;
    o->answers++;
    o->err = err;
    o->stream = stream;
}

static const struct cv_session_ops ops;

static void install(const char *more, const char *routes, const char *action)
{
    static char json[2048];
    snprintf(json, sizeof(json), form, ++version, more, routes, action);
    test_policy(&n, json);
}

static struct cv_target target(const char *host)
{
    struct cv_target t = {.port = 80};
    T_INT_EQ(cv_host_parse(host, strlen(host), &t.host), 0);
    return t;
}

static void begin(struct one *o, const char *user, const char *host)
{
    static const struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 7}}};
    struct cv_target t = target(host);
    struct cv_active *a = cv_active_get(n.node.active);
    uint32_t u = cv_snapshot_user_find(a->snapshot, user, strlen(user));
    *o = (struct one){.err = 1};
    cv_session_begin(&o->s, n.worker, &ops, "http", n.listener, &client);
    cv_session_set_user(&o->s, a->accounts[u]->name, a->accounts[u]);
    T_INT_EQ(cv_session_set_target(&o->s, &t), 0);
}

static void open_way(struct cv_way *way, struct one *o, const char *user, const char *host)
{
    struct cv_target t = target(host);
    begin(o, user, host);
    T_INT_EQ(cv_way_open(way, &o->s, &t, on_flow, o, &o->flow), 0);
    TURN_UNTIL(n.worker->loop, o->answers == 1);
    T_INT_EQ(o->err, 0);
    cv_way_keep(way, &o->s);
    cv_session_end(&o->s);
}

static bool join(const struct cv_way *way, struct one *o, const char *user, const char *host)
{
    struct cv_target t = target(host);
    begin(o, user, host);
    return cv_way_join(way, &o->s, &t);
}

static void finish(struct cv_way *way, struct one *o)
{
    cv_way_done(way);
    cv_stream_close(o->stream, false);
    close(fake.peer_fd);
    fake.peer_fd = -1;
    cv_loop_turn(n.worker->loop, 0);
    test_node_end(&n);
}

static void test_join(void)
{
    struct cv_way way = {0};
    struct one o, p;
    test_node_start(&n);
    install("", "", "direct");
    T_OK(!join(&way, &p, "alice", "a.test")); /* none is open */
    cv_session_drop(&p.s);
    open_way(&way, &o, "alice", "a.test");
    struct cv_egress_stats *row = cv_registry_egress(n.registry, "direct");
    T_INT_EQ(cv_gauge_get(&row->row.active), 0);
    T_INT_EQ(cv_counter_get(&row->row.sessions), 1);

    T_OK(join(&way, &p, "alice", "A.test."));
    T_INT_EQ(p.s.state, CV_SESSION_RELAY);
    T_OK(p.s.permit);
    T_STR_EQ(p.s.outlet->s, "direct");
    T_STR_EQ(p.s.decision->s, "direct");
    T_STR_EQ(p.s.policy_id->s, "pol");
    T_INT_EQ(p.s.snapshot_version, version);
    T_INT_EQ(p.s.peer.port, 80);
    T_INT_EQ(cv_gauge_get(&p.s.account->active), 1);
    T_INT_EQ(cv_gauge_get(&row->row.active), 1);
    T_INT_EQ(cv_counter_get(&row->row.sessions), 2);
    T_INT_EQ(fake.dials, 1);
    /* A second try: it is dialled as if it had never joined, with the permit it has. */
    cv_way_leave(&p.s);
    T_INT_EQ(cv_gauge_get(&row->row.active), 0);
    T_OK(p.s.permit && p.s.egress == NULL && p.s.outlet == NULL);
    cv_session_end(&p.s);
    finish(&way, &o);
}

static void test_does_not_fit(void)
{
    static const struct {
        const char *user, *host;
        bool fits;
    } rows[] = {
        {"alice", "a.test", true},    {"bob", "a.test", false},     {"alice", "b.test", false},
        {"alice", "a.test.b", false}, {"alice", "10.0.0.1", false},
    };
    struct cv_way way = {0};
    struct one o, p;
    test_node_start(&n);
    fake.dials = 0;
    install("", "", "direct");
    open_way(&way, &o, "alice", "a.test");
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        printf("# row %zu\n", i);
        T_OK(join(&way, &p, rows[i].user, rows[i].host) == rows[i].fits);
        T_OK(p.s.permit == rows[i].fits);
        T_OK((p.s.egress != NULL) == rows[i].fits);
        cv_session_end(&p.s);
    }
    T_INT_EQ(fake.dials, 1);
    finish(&way, &o);
}

/* Every request is decided by the policy in force. */
static void test_policy_changes(void)
{
    struct cv_way way = {0};
    struct one o, p;
    test_node_start(&n);
    install("", "", "direct");
    open_way(&way, &o, "alice", "a.test");
    install("", "{\"selectors\":[\"a.test\"],\"action\":{\"type\":\"block\"}},", "direct");
    T_OK(!join(&way, &p, "alice", "a.test"));
    T_OK(!p.s.permit);
    cv_session_drop(&p.s);
    install(",\"expire\":\"2001-01-01\"", "", "direct");
    T_OK(!join(&way, &p, "alice", "a.test"));
    cv_session_drop(&p.s);
    begin(&p, "alice", "a.test");
    T_INT_EQ(cv_active_swap(n.node.active, cv_snapshot_new_empty()), 0);
    struct cv_target t = target("a.test");
    T_OK(!cv_way_join(&way, &p.s, &t));
    cv_session_drop(&p.s);
    finish(&way, &o);
}

/* No more at a time than the user may have. */
static void test_permits(void)
{
    struct cv_way way = {0};
    struct one o, p[3];
    test_node_start(&n);
    install("", "", "direct");
    open_way(&way, &o, "alice", "a.test");
    T_OK(join(&way, &p[0], "alice", "a.test"));
    T_OK(join(&way, &p[1], "alice", "a.test"));
    T_OK(!join(&way, &p[2], "alice", "a.test"));
    for (int i = 0; i < 3; i++)
        cv_session_end(&p[i].s);
    T_OK(join(&way, &p[2], "alice", "a.test"));
    cv_session_end(&p[2].s);
    finish(&way, &o);
}

int main(void)
{
    T_RUN(test_join);
    T_RUN(test_does_not_fit);
    T_RUN(test_policy_changes);
    T_RUN(test_permits);
    return t_done();
}
