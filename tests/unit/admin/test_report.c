#include "admin/report.h"

#include "admin_util.h"

static char *finish(struct cv_buf *b)
{
    T_OK(is_json((const char *)cv_buf_data(b), cv_buf_len(b)));
    T_INT_EQ(cv_buf_append(b, "", 1), 0);
    return (char *)cv_buf_steal(b);
}

static char *status(void)
{
    struct cv_admin_view v = node_view();
    struct cv_buf b;
    cv_buf_init(&b, 1u << 20);
    T_INT_EQ(cv_report_status(&v, &b), 0);
    return finish(&b);
}

static void test_probe(void)
{
    static const struct {
        enum cv_status status;
        const char *reason, *wanted;
        bool ready;
    } rows[] = {
        {CV_STATUS_READY, "", "{\"status\":\"ready\",\"ready\":true,\"version\"", true},
        {CV_STATUS_STARTING, "none", "{\"status\":\"starting\",\"ready\":false,\"reason\":\"none\"",
         false},
        {CV_STATUS_UNAVAILABLE, "none", "{\"status\":\"unavailable\",\"ready\":false", false},
        {CV_STATUS_DRAINING, "bye", "{\"status\":\"draining\",\"ready\":false", false},
    };
    node_start(GOOD_SNAPSHOT);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_admin_view v = node_view();
        struct cv_buf b;
        bool ready = !rows[i].ready;
        t.readiness.status = rows[i].status;
        snprintf(t.readiness.reason, sizeof(t.readiness.reason), "%s", rows[i].reason);
        cv_buf_init(&b, 4096);
        T_INT_EQ(cv_report_probe(&v, &b, &ready), 0);
        T_INT_EQ(ready, rows[i].ready);
        char *text = finish(&b);
        T_OK(strncmp(text, rows[i].wanted, strlen(rows[i].wanted)) == 0);
        T_OK(strstr(text, "\"snapshot\":{\"loaded\":true,\"version\":7,\"schema_version\":1}"));
        T_OK(strstr(text, "\"data_plane\":{\"required\":true,\"active_listeners\":1}"));
        cv_free(text);
    }
    node_end();
}

static void test_status(void)
{
    node_start(GOOD_SNAPSHOT);
    make_sessions(0, "alice", 2);
    char *text = status();
    static const char *const wanted[] = {
        "\"node_id\":\"node-1\"",
        "\"workers\":2",
        "\"uptime_s\":5",
        "\"snapshot\":{\"loaded\":true,\"version\":7,\"users\":1,\"policies\":1,\"egresses\":0",
        "\"last_error\":null",
        "\"cache\":null",
        "\"listeners\":[{\"name\":\"main\",\"protocol\":\"mixed\",\"address\":\"127.0.0.1:1080\"",
        "\"tls\":false,\"active\":2,\"sessions\":0,\"bytes_up\":20,\"bytes_down\":40",
        "\"egresses\":[{\"label\":\"direct\",\"active\":2",
        "\"totals\":{\"active\":2,\"sessions\":0,\"bytes_up\":20,\"bytes_down\":40",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(wanted); i++)
        if (!T_OK(strstr(text, wanted[i]) != NULL))
            printf("#   missing %s in %s\n", wanted[i], text);
    T_OK(strstr(text, "pw") == NULL);
    cv_free(text);
    node_end();
}

static void test_members(void)
{
    struct cv_member_info info[2];
    struct cv_members *ms = cv_members_new();
    node_start(GOOD_SNAPSHOT);
    char *text = status();
    T_OK(strstr(text, "\"members\":[]") != NULL);
    cv_free(text);
    make_members(ms, info);
    text = status();
    static const char *const wanted[] = {
        "{\"egress\":\"fo\",\"member\":\"a\",\"priority\":0,\"label\":\"upstream:192.0.2.1:1080\","
        "\"state\":\"up\",\"checked\":false,\"attempts\":1,\"established\":1,\"failed\":0,",
        "\"member\":\"b\",\"priority\":10,",
        "\"state\":\"down\",\"retry_in_ms\":",
        "\"established\":0,\"failed\":1,\"failed_unsure\":0,\"failed_target\":0,\"probes\":0,"
        "\"downs\":1,\"checks\":0,\"checks_failed\":0,"
        "\"last_failure\":{\"stage\":\"tls\",\"text\":\"TLS failure\"}}",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(wanted); i++)
        if (!T_OK(strstr(text, wanted[i]) != NULL))
            printf("#   missing %s in %s\n", wanted[i], text);
    T_OK(strstr(text, "secret-word") == NULL);
    cv_free(text);

    /* More than an answer takes. */
    struct cv_member_info *many = cv_alloc(2001 * sizeof(*many));
    for (int i = 0; i < 2001; i++)
        many[i] = info[0];
    t.members = many;
    t.n_members = 2001;
    text = status();
    T_OK(strstr(text, "],\"members_left_out\":1,") != NULL);
    T_INT_EQ(count_of(text, "\"member\":\"a\""), 2000);
    cv_free(text);
    cv_free(many);
    free_members(ms, info);
    node_end();
}

static void test_last_error(void)
{
    static const struct {
        const char *doc, *wanted;
    } rows[] = {
        {"{\n oops", "\"last_error\":{\"where\":\"line 2, column "},
        {"{\"schema_version\":1,\"version\":1,\"users\":{\"a\":{\"password\":\"secret\",\"policy\":"
         "\"nope\"}},\"routing_policies\":{},\"egresses\":{}}",
         "\"last_error\":{\"where\":\"users.a.policy\",\"path\":\"users.a.policy\",\"text\":\""},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        node_start(rows[i].doc);
        char *text = status();
        if (!T_OK(strstr(text, rows[i].wanted) != NULL))
            printf("#   %s\n", text);
        T_OK(strstr(text, "\"snapshot\":{\"loaded\":false,\"version\":0,") != NULL);
        T_OK(strstr(text, "\"loaded_at\":null") != NULL);
        T_OK(strstr(text, "secret") == NULL);
        cv_free(text);
        node_end();
    }
}

static void test_full_buffer(void)
{
    node_start(GOOD_SNAPSHOT);
    struct cv_admin_view v = node_view();
    struct cv_buf b;
    bool ready;
    cv_buf_init(&b, 50);
    T_INT_EQ(cv_report_status(&v, &b), CV_E_LIMIT);
    cv_buf_done(&b);
    cv_buf_init(&b, 50);
    T_INT_EQ(cv_report_probe(&v, &b, &ready), CV_E_LIMIT);
    cv_buf_done(&b);
    node_end();
}

int main(void)
{
    T_RUN(test_probe);
    T_RUN(test_status);
    T_RUN(test_members);
    T_RUN(test_last_error);
    T_RUN(test_full_buffer);
    return t_done();
}
