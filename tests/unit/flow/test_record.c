#include "flow/record.h"

#include "common/json.h"
#include "flow_util.h"

static void kill(struct cv_session *s, int err)
{
    (void)s;
    (void)err;
}
static const struct cv_session_ops ops = {.kill = kill};

static struct cv_rcstr *str(const char *s)
{
    return cv_rcstr_new(s, strlen(s));
}

static void begin(struct test_node *n, struct cv_session *s)
{
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 200}},
                                 .port = 65535};
    cv_session_begin(s, n->worker, &ops, "socks5", n->listener, &client);
}

/* NUL-terminated; valid until the next. */
static const char *line(struct cv_buf *buf, const struct cv_session *s)
{
    T_INT_EQ(cv_record_session(buf, s, "node-1", 1700000000, 12), 0);
    T_INT_EQ(cv_buf_append(buf, "", 1), 0);
    return (const char *)cv_buf_data(buf);
}

static void test_all_fields(void)
{
    struct test_node n;
    struct cv_session s;
    struct cv_buf buf;
    test_node_start(&n);
    cv_buf_init(&buf, 65536);
    begin(&n, &s);
    s.username = str("alice");
    s.target_host = str("example.test");
    s.target_port = 443;
    s.policy_id = str("pol");
    s.route = 0;
    s.decision = str("chain:fo");
    s.outlet = str("reverse:hop");
    s.egress_stats = cv_registry_egress(n.registry, "reverse:hop");
    cv_gauge_add(&s.egress_stats->row.active, 1);
    s.member = str("m1");
    s.attempts = 2;
    s.snapshot_version = 18446744073709551615u;
    cv_counter_add_owned(&s.bytes_up, 1000);
    cv_counter_add_owned(&s.bytes_down, 20000000000);
    T_STR_EQ(line(&buf, &s),
             "{\"timestamp\":1700000000,\"node_id\":\"node-1\",\"kind\":\"connection\","
             "\"session_id\":\"0300000000000001\",\"listener\":\"main\",\"protocol\":\"socks5\","
             "\"client_addr\":\"198.51.100.200:65535\",\"username\":\"alice\","
             "\"target_host\":\"example.test\",\"target_port\":443,\"policy_id\":\"pol\","
             "\"matched_route\":0,\"decision\":\"chain:fo\",\"egress\":\"reverse:hop\","
             "\"chain_member\":\"m1\",\"attempts\":2,\"result\":\"ok\","
             "\"snapshot_version\":18446744073709551615,\"duration_ms\":12,\"bytes_up\":1000,"
             "\"bytes_down\":20000000000}");
    cv_session_fail(&s, CV_STAGE_SPLICE, -ECONNRESET);
    T_OK(strstr(line(&buf, &s), "\"result\":\"error\",\"failure_stage\":\"splice\","
                                "\"message\":\"connection reset by one side\"") != NULL);
    cv_session_end(&s);
    cv_buf_done(&buf);
    test_node_end(&n);
}

/* What was sniffed, beside what was asked for. */
static void test_sniffed(void)
{
    struct test_node n;
    struct cv_session s;
    struct cv_buf buf;
    struct cv_host host = {.name_len = 7, .name = "in.test"};
    test_node_start(&n);
    cv_buf_init(&buf, 65536);
    begin(&n, &s);
    s.target_host = str("192.0.2.1");
    s.decision = str("direct");
    T_OK(strstr(line(&buf, &s), "sniff") == NULL);
    T_OK(strstr(line(&buf, &s), "effective") == NULL);
    T_INT_EQ(cv_session_set_sniffed(&s, CV_SNIFF_TLS, &host), 0);
    T_INT_EQ(cv_counter_get(&n.listener->sniff[CV_SNIFF_TLS]), 1);
    T_OK(strstr(line(&buf, &s), "\"target_port\":0,\"sniffed_host\":\"in.test\","
                                "\"sniff_protocol\":\"tls\",\"sniff_outcome\":\"matched\","
                                "\"effective_policy_host\":\"192.0.2.1\",") != NULL);
    s.by_sniffed = true;
    T_OK(strstr(line(&buf, &s), "\"effective_policy_host\":\"in.test\"") != NULL);
    cv_session_end(&s);
    begin(&n, &s);
    T_INT_EQ(cv_session_set_sniffed(&s, CV_SNIFF_TIMEOUT, NULL), 0);
    T_OK(strstr(line(&buf, &s), "\"sniff_outcome\":\"timeout\",\"result\"") != NULL);
    cv_session_end(&s);
    cv_buf_done(&buf);
    test_node_end(&n);
}

/* What is not known is left out. */
static void test_early_failure(void)
{
    struct test_node n;
    struct cv_session s;
    struct cv_buf buf;
    test_node_start(&n);
    cv_buf_init(&buf, 65536);
    begin(&n, &s);
    s.client.ip = (struct cv_ip){.family = CV_AF_IP6, .b = {0x20, 1, 0xd, 0xb8, [15] = 1}};
    cv_session_fail(&s, CV_STAGE_AUTH, CV_E_AUTH);
    T_STR_EQ(line(&buf, &s),
             "{\"timestamp\":1700000000,\"node_id\":\"node-1\",\"kind\":\"connection\","
             "\"session_id\":\"0300000000000001\",\"listener\":\"main\",\"protocol\":\"socks5\","
             "\"client_addr\":\"[2001:db8::1]:65535\",\"result\":\"error\","
             "\"failure_stage\":\"auth\",\"message\":\"authentication failed\","
             "\"duration_ms\":12,\"bytes_up\":0,\"bytes_down\":0}");
    s.client.ip = (struct cv_ip){0};
    T_OK(strstr(line(&buf, &s), "\"client_addr\":\"unix\"") != NULL);
    cv_session_end(&s);
    cv_buf_done(&buf);
    test_node_end(&n);
}

/* A client may call itself whatever it likes: the line stays one line of JSON. */
static void test_hostile_names(void)
{
    static const char *const names[] = {
        "a\"b", "back\\slash", "new\nline", "\x01\x7f", "caf\xc3\xa9", "\xff\xfe", "\xc3", "",
    };
    struct test_node n;
    struct cv_session s;
    struct cv_buf buf;
    test_node_start(&n);
    cv_buf_init(&buf, 65536);
    for (size_t i = 0; i < CV_ARRAY_SIZE(names); i++) {
        begin(&n, &s);
        s.username = str(names[i]);
        const char *text = line(&buf, &s);
        T_OK(strchr(text, '\n') == NULL);
        T_OK(strstr(text, "\"username\":\"") != NULL);
        struct cv_json_error e;
        struct cv_json_doc *doc = NULL;
        T_INT_EQ(cv_json_parse(text, strlen(text), &e, &doc), 0);
        cv_json_free(doc);
        cv_session_end(&s);
    }
    /* Longest things: cut, not lost, and the buffer's maximum is never reached. */
    begin(&n, &s);
    static char big[100000];
    memset(big, '\xff', sizeof(big) - 1);
    s.username = str(big);
    s.policy_id = str(big);
    s.decision = str(big);
    s.member = str(big);
    s.target_host = str(big);
    const char *text = line(&buf, &s);
    T_OK(strlen(text) > 5 * 6 * 1024 && strlen(text) < 65536);
    T_OK(text[strlen(text) - 1] == '}');
    cv_session_end(&s);
    cv_buf_done(&buf);
    test_node_end(&n);
}

static void test_no_room(void)
{
    struct test_node n;
    struct cv_session s;
    struct cv_buf buf;
    test_node_start(&n);
    for (size_t max = 1; max < 300; max += 13) {
        cv_buf_init(&buf, max);
        begin(&n, &s);
        T_OK(cv_record_session(&buf, &s, "node-1", 1700000000, 12) != 0 || max > 200);
        cv_session_end(&s);
        cv_buf_done(&buf);
    }
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_all_fields);
    T_RUN(test_early_failure);
    T_RUN(test_sniffed);
    T_RUN(test_hostile_names);
    T_RUN(test_no_room);
    return t_done();
}
