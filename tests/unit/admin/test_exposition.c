#include "admin/exposition.h"

#include "admin_util.h"

/* The text of /metrics, NUL-terminated; the caller frees it. */
static char *scrape(void)
{
    struct cv_admin_view v = node_view();
    struct cv_buf b;
    cv_buf_init(&b, 64u << 20);
    T_INT_EQ(cv_exposition_write(&v, &b), 0);
    T_INT_EQ(cv_buf_append(&b, "", 1), 0);
    return (char *)cv_buf_steal(&b);
}

static bool has_line(const char *text, const char *line)
{
    const char *p = text;
    size_t len = strlen(line);
    while ((p = strstr(p, line)) != NULL) {
        if ((p == text || p[-1] == '\n') && p[len] == '\n')
            return true;
        p++;
    }
    printf("# missing: %s\n", line);
    return false;
}

struct seen {
    char name[96];
    bool is_histogram;
};

static const struct seen *find(const struct seen *seen, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(seen[i].name) == len && memcmp(seen[i].name, name, len) == 0)
            return &seen[i];
    return NULL;
}

/* True if a sample called 'name' belongs to the family that was announced last. */
static bool belongs(const char *name, size_t len, const struct seen *family)
{
    size_t base = strlen(family->name);
    if (len < base || memcmp(name, family->name, base) != 0)
        return false;
    if (len == base)
        return !family->is_histogram;
    static const char *const suffixes[] = {"_bucket", "_sum", "_count"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(suffixes); i++)
        if (family->is_histogram && strlen(suffixes[i]) == len - base &&
            memcmp(name + base, suffixes[i], len - base) == 0)
            return true;
    return false;
}

static bool is_value(const char *s)
{
    char *end;
    (void)strtod(s, &end);
    return end > s && *end == '\0';
}

/* HELP, TYPE, then the samples of that family only; each family once. */
static void check_well_formed(char *text)
{
    static struct seen seen[200];
    size_t n = 0, samples = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            size_t len = strcspn(line + 7, " ");
            T_REQUIRE(n < CV_ARRAY_SIZE(seen) && len < sizeof(seen[0].name));
            T_OK(find(seen, n, line + 7, len) == NULL);
            seen[n] = (struct seen){0};
            memcpy(seen[n++].name, line + 7, len);
            T_OK(strlen(line + 7) > len + 5);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            size_t len = strcspn(line + 7, " ");
            T_REQUIRE(n > 0 && find(&seen[n - 1], 1, line + 7, len) != NULL);
            const char *type = line + 7 + len + 1;
            seen[n - 1].is_histogram = strcmp(type, "histogram") == 0;
            bool total = len > 6 && memcmp(line + 7 + len - 6, "_total", 6) == 0;
            T_INT_EQ(total, strcmp(type, "counter") == 0);
        } else {
            samples++;
            T_REQUIRE(n > 0);
            T_OK(belongs(line, strcspn(line, "{ "), &seen[n - 1]));
            T_OK(is_value(strrchr(line, ' ') + 1));
        }
    }
    T_OK(n > 30 && samples > n);
}

static void test_well_formed(void)
{
    node_start(GOOD_SNAPSHOT);
    make_sessions(0, "alice", 2);
    cv_histogram_observe_us(&t.egress->stats->dial, 1500);
    char *text = scrape();
    check_well_formed(text);
    cv_free(text);
    node_end();
}

static void test_members(void)
{
    struct cv_member_info info[2];
    struct cv_members *ms = cv_members_new();
    node_start(GOOD_SNAPSHOT);
    char *text = scrape();
    T_OK(strstr(text, "culvert_member") == NULL);
    cv_free(text);
    make_members(ms, info);
    text = scrape();
    static const char *const wanted[] = {
        "culvert_member_up{egress=\"fo\",member=\"a\"} 1\n",
        "culvert_member_up{egress=\"fo\",member=\"b\"} 0\n",
        "culvert_member_attempts_total{egress=\"fo\",member=\"a\"} 1\n",
        "culvert_member_established_total{egress=\"fo\",member=\"a\"} 1\n",
        "culvert_member_downs_total{egress=\"fo\",member=\"b\"} 1\n",
        "culvert_member_failed_total{egress=\"fo\",member=\"b\",blame=\"egress\"} 1\n",
        "culvert_member_failed_total{egress=\"fo\",member=\"b\",blame=\"target\"} 0\n",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(wanted); i++)
        if (!T_OK(strstr(text, wanted[i]) != NULL))
            printf("#   missing %s\n", wanted[i]);
    check_well_formed(text);
    cv_free(text);

    struct cv_member_info *many = cv_alloc(2001 * sizeof(*many));
    for (int i = 0; i < 2001; i++)
        many[i] = info[0];
    t.members = many;
    t.n_members = 2001;
    text = scrape();
    T_INT_EQ(count_of(text, "\nculvert_member_up{"), CV_EXPOSITION_MEMBERS);
    cv_free(text);
    cv_free(many);
    free_members(ms, info);
    node_end();
}

static void test_values(void)
{
    node_start(GOOD_SNAPSHOT);
    make_sessions(0, "alice", 2);
    make_sessions(1, "alice", 1);
    cv_counter_add(&t.listener->row.refused[CV_STAGE_AUTH], 4);
    cv_counter_add(&t.listener->accepted, 9);
    cv_counter_add(&t.listener->rejected_full, 2);
    cv_counter_add(&t.listener->sniff[CV_SNIFF_TLS], 3);
    cv_counter_add(&t.node.stats.auth_cached, 5);
    cv_counter_add(&t.node.stats.auth_backoff, 6);
    cv_counter_add(&t.node.stats.connections_limit, 7);
    cv_counter_add(&t.node.stats.revoked, 8);
    cv_counter_add(&t.egress->stats->row.refused[CV_STAGE_DIAL], 1);
    cv_histogram_observe_us(&t.egress->stats->dial, 1500);
    cv_histogram_observe_us(&t.egress->stats->dial, 20000000);
    char *text = scrape();
    static const char *const wanted[] = {
        "culvert_sessions_active{listener=\"main\"} 3",
        "culvert_bytes_total{listener=\"main\",direction=\"up\"} 30",
        "culvert_bytes_total{listener=\"main\",direction=\"down\"} 60",
        "culvert_refused_total{listener=\"main\",stage=\"auth\"} 4",
        "culvert_refused_total{listener=\"main\",stage=\"dns\"} 0",
        "culvert_listener_accepted_total{listener=\"main\"} 9",
        "culvert_listener_rejected_full_total{listener=\"main\"} 2",
        "culvert_listener_accept_pauses_total{listener=\"main\"} 0",
        "culvert_sniff_total{listener=\"main\",outcome=\"tls_sni\"} 3",
        "culvert_sniff_total{listener=\"main\",outcome=\"timeout\"} 0",
        "culvert_egress_active{egress=\"direct\"} 3",
        "culvert_egress_bytes_total{egress=\"direct\",direction=\"down\"} 60",
        "culvert_egress_refused_total{egress=\"direct\",stage=\"dial\"} 1",
        "culvert_egress_dial_seconds_bucket{egress=\"direct\",le=\"0.001\"} 0",
        "culvert_egress_dial_seconds_bucket{egress=\"direct\",le=\"0.002\"} 1",
        "culvert_egress_dial_seconds_bucket{egress=\"direct\",le=\"10.000\"} 1",
        "culvert_egress_dial_seconds_bucket{egress=\"direct\",le=\"+Inf\"} 2",
        "culvert_egress_dial_seconds_sum{egress=\"direct\"} 20.001500",
        "culvert_egress_dial_seconds_count{egress=\"direct\"} 2",
        "culvert_user_bytes_total{user=\"alice\",direction=\"up\"} 30",
        "culvert_user_refused_total{user=\"alice\"} 0",
        "culvert_snapshot_version 7",
        "culvert_snapshot_users 1",
        "culvert_snapshot_swaps_total 1",
        "culvert_snapshot_error 0",
        "culvert_auth_cached_total 5",
        "culvert_auth_backoff_total 6",
        "culvert_connections_limit_total 7",
        "culvert_sessions_revoked_total 8",
        "culvert_ready 1",
        "culvert_build_info{version=\"" CV_VERSION "\"} 1",
        "culvert_bugs_total 0",
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(wanted); i++)
        T_OK(has_line(text, wanted[i]));
    T_OK(strstr(text, "\nprocess_open_fds ") != NULL);
    T_OK(strstr(text, "\nprocess_resident_memory_bytes ") != NULL);
    T_OK(strstr(text, "\nprocess_cpu_seconds_total ") != NULL);
    T_OK(strstr(text, "stage=\"dns\"") != NULL);
    T_OK(strstr(text, "egress=\"direct\",stage=\"dns\"") == NULL);
    cv_free(text);
    node_end();
}

/* A listener that changed its protocol has two rows of counters, but may be one series only. */
static void test_one_series_for_each_name(void)
{
    node_start(GOOD_SNAPSHOT);
    cv_counter_add(&t.listener->accepted, 3);
    cv_counter_add(&cv_registry_listener(t.registry, "main", "http")->accepted, 4);
    char *text = scrape();
    T_OK(has_line(text, "culvert_listener_accepted_total{listener=\"main\"} 7"));
    T_INT_EQ(count_of(text, "culvert_listener_accepted_total{"), 1);
    cv_free(text);
    node_end();
}

static void test_idle_rows_are_left_out(void)
{
    node_start(GOOD_SNAPSHOT);
    char *text = scrape();
    T_OK(strstr(text, "alice") == NULL);
    T_OK(strstr(text, "egress=\"direct\"") == NULL);
    T_OK(has_line(text, "culvert_sessions_active{listener=\"main\"} 0"));
    cv_free(text);
    node_end();
}

static void test_rows_are_bounded(void)
{
    enum { MORE = 7 };
    static struct cv_account *accounts[CV_EXPOSITION_USERS + MORE];
    char name[32];
    node_start(GOOD_SNAPSHOT);
    for (size_t i = 0; i < CV_ARRAY_SIZE(accounts); i++) {
        snprintf(name, sizeof(name), "user-%zu", i);
        struct cv_rcstr *r = cv_rcstr_new(name, strlen(name));
        accounts[i] = cv_accounts_get(t.accounts, r);
        cv_counter_add(&accounts[i]->bytes_up, 1);
        cv_rcstr_unref(r);
    }
    for (size_t i = 0; i < CV_EXPOSITION_EGRESSES + MORE; i++) {
        snprintf(name, sizeof(name), "upstream:h%zu:1", i);
        cv_counter_add(&cv_registry_egress(t.registry, name)->row.sessions, 1);
    }
    char *text = scrape();
    T_INT_EQ(count_of(text, "culvert_user_sessions_total{"), CV_EXPOSITION_USERS + 1);
    T_OK(has_line(text, "culvert_user_bytes_total{user=\"\",direction=\"up\"} 7"));
    T_INT_EQ(count_of(text, "culvert_egress_sessions_total{"), CV_EXPOSITION_EGRESSES + 1);
    T_OK(has_line(text, "culvert_egress_sessions_total{egress=\"other\"} 7"));
    cv_free(text);
    for (size_t i = 0; i < CV_ARRAY_SIZE(accounts); i++)
        cv_account_unref(accounts[i]);
    node_end();
}

static void test_hostile_name(void)
{
    node_start(GOOD_SNAPSHOT);
    make_sessions(0, "q\"u\\x\nnext 1", 1);
    char *text = scrape();
    T_OK(has_line(text, "culvert_user_sessions_active{user=\"q\\\"u\\\\x\\nnext 1\"} 0"));
    check_well_formed(text);
    cv_free(text);
    node_end();
}

static void test_too_large(void)
{
    node_start(GOOD_SNAPSHOT);
    struct cv_admin_view v = node_view();
    struct cv_buf b;
    cv_buf_init(&b, 1000);
    T_INT_EQ(cv_exposition_write(&v, &b), CV_E_LIMIT);
    cv_buf_done(&b);
    node_end();
}

int main(void)
{
    T_RUN(test_well_formed);
    T_RUN(test_members);
    T_RUN(test_values);
    T_RUN(test_one_series_for_each_name);
    T_RUN(test_idle_rows_are_left_out);
    T_RUN(test_rows_are_bounded);
    T_RUN(test_hostile_name);
    T_RUN(test_too_large);
    return t_done();
}
