#include "flow/auth.h"

#include <time.h>

#include "flow/backoff.h"
#include "flow_util.h"
#include "policy/passwd.h"

struct bench {
    struct test_node n;
    struct cv_session session; /* whoever logs in */
    char argon[256], sha[256];
};

static struct bench bench;

struct login {
    struct cv_auth *auth;
    struct cv_account *account;
    int err;
    int answers;
};

static void on_auth(void *arg, int err, struct cv_account *account)
{
    struct login *l = arg;
    l->err = err;
    l->account = account;
    l->answers++;
}

static const struct cv_session_ops session_ops;

static int try(struct login *l, const char *user, const char *pass)
{
    *l = (struct login){.err = 1};
    return cv_auth_check(&bench.session, user, strlen(user), pass, strlen(pass), on_auth, l,
                         &l->account, &l->auth);
}

/* To the end, however long it takes. */
static int login(const char *user, const char *pass, const char **ret_account)
{
    struct login l;
    int err = try(&l, user, pass);
    if (err == -EINPROGRESS) {
        T_INT_EQ(l.answers, 0);
        TURN_UNTIL(bench.n.worker->loop, l.answers > 0);
        T_INT_EQ(l.answers, 1);
        err = l.err;
    }
    if (ret_account != NULL)
        *ret_account = err == 0 ? l.account->name->s : NULL;
    return err;
}

static const char form[] =
    "{\"schema_version\":1,\"version\":%d,\"users\":{"
    "\"plain\":{\"password\":\"open\",\"policy\":\"p\"},"
    "\"sha\":{\"password\":\"%s\",\"policy\":\"p\"},"
    "\"argon\":{\"password\":\"%s\",\"policy\":\"p\"},"
    "\"old\":{\"password\":\"open\",\"expire\":\"2001-01-01\",\"policy\":\"p\"},"
    "\"oldargon\":{\"password\":\"%s\",\"expire\":\"2001-01-01\",\"policy\":\"p\"}},"
    "\"routing_policies\":{\"p\":{\"routes\":[]}}}";

static void install(int version, const char *argon)
{
    static char json[4096];
    snprintf(json, sizeof(json), form, version, bench.sha, argon, bench.argon);
    test_policy(&bench.n, json);
}

static void begin(size_t queue)
{
    test_node_start(&bench.n);
    if (cv_offload_new(2, queue, &bench.n.node.offload) != 0)
        abort();
    struct cv_endpoint client = {.ip = {.family = CV_AF_IP4, .b = {198, 51, 100, 7}}, .port = 999};
    cv_session_begin(&bench.session, bench.n.worker, &session_ops, "socks5", bench.n.listener,
                     &client);
    install(1, bench.argon);
}

static void finish(void)
{
    cv_session_drop(&bench.session);
    cv_offload_free(bench.n.node.offload);
    test_node_end(&bench.n);
}

static uint64_t failed(void)
{
    return cv_counter_get(&bench.n.node.stats.auth_failed);
}

static void test_every_kind(void)
{
    static const struct {
        const char *user, *pass;
        int err;
    } rows[] = {
        {"plain", "open", 0},
        {"plain", "closed", CV_E_AUTH},
        {"plain", "", CV_E_AUTH},
        {"plain", "open ", CV_E_AUTH},
        {"Plain", "open", CV_E_AUTH},
        {"sha", "open", 0},
        {"sha", "Open", CV_E_AUTH},
        {"argon", "open", 0},
        {"argon", "open", 0}, /* known again */
        {"argon", "wrong", CV_E_AUTH},
        {"argon", "", CV_E_AUTH},
        /* Wrong comes before expired: only who knows the password learns that. */
        {"old", "wrong", CV_E_AUTH},
        {"old", "open", CV_E_EXPIRED},
        {"oldargon", "wrong", CV_E_AUTH},
        {"oldargon", "open", CV_E_EXPIRED},
        {"oldargon", "open", CV_E_EXPIRED},
        {"nobody", "open", CV_E_AUTH},
        {"", "", CV_E_AUTH},
        {"", "open", CV_E_AUTH},
    };
    begin(16);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        const char *account;
        printf("# '%s' '%s'\n", rows[i].user, rows[i].pass);
        uint64_t before = failed();
        T_INT_EQ(login(rows[i].user, rows[i].pass, &account), rows[i].err);
        if (rows[i].err == 0)
            T_STR_EQ(account, rows[i].user);
        T_INT_EQ(failed() - before, rows[i].err != 0);
    }
    T_INT_EQ(cv_counter_get(&bench.n.node.stats.auth_cached), 2);
    finish();
}

/* A name that nobody has is checked against somebody's password, on the same threads. */
static void test_unknown_user_takes_the_same_way(void)
{
    begin(16);
    int offloaded = 0;
    char name[16];
    for (int i = 0; i < 40; i++) {
        struct login l;
        snprintf(name, sizeof(name), "ghost-%d", i);
        int err = try(&l, name, "x");
        if (err == -EINPROGRESS) {
            offloaded++;
            TURN_UNTIL(bench.n.worker->loop, l.answers > 0);
            err = l.err;
        }
        T_INT_EQ(err, CV_E_AUTH);
        T_OK(l.account == NULL);
    }
    /* Two of the five stored passwords are argon2id. */
    T_OK(offloaded > 0 && offloaded < 40);
    /* The decoy's right password does not let a ghost in either. */
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "ghost-%d", i);
        T_INT_EQ(login(name, "open", NULL), CV_E_AUTH);
    }
    finish();
}

static void test_empty_policy(void)
{
    begin(4);
    T_INT_EQ(cv_active_swap(bench.n.node.active, cv_snapshot_new_empty()), 0);
    T_INT_EQ(login("plain", "open", NULL), CV_E_AUTH);
    T_INT_EQ(login("", "", NULL), CV_E_AUTH);
    struct cv_account *a;
    T_INT_EQ(cv_auth_trust(&bench.session, "plain", &a), CV_E_AUTH);
    finish();
}

/* A browser's hundred connections at once are one question, not a hundred jobs. */
static void test_equal_logins_share_one_check(void)
{
    enum { N = 100 };
    static struct login l[N];
    begin(1);
    for (int i = 0; i < N; i++)
        T_INT_EQ(try(&l[i], "argon", "open"), -EINPROGRESS);
    cv_auth_cancel(l[7].auth);
    for (int i = 0; i < N; i++) {
        if (i != 7)
            TURN_UNTIL(bench.n.worker->loop, l[i].answers == 1);
        T_INT_EQ(l[i].err, i == 7 ? 1 : 0);
    }
    T_INT_EQ(l[7].answers, 0);
    finish();
}

static void test_queue_full(void)
{
    enum { N = 8 };
    static struct login l[N];
    begin(1);
    int refused = 0, running = 0;
    char pass[16];
    for (int i = 0; i < N; i++) {
        snprintf(pass, sizeof(pass), "guess-%d", i);
        int err = try(&l[i], "argon", pass);
        refused += err == CV_E_LIMIT;
        running += err == -EINPROGRESS;
    }
    T_INT_EQ(refused + running, N);
    T_OK(refused > 0 && running > 0);
    T_INT_EQ(cv_counter_get(&bench.n.node.stats.auth_queue_full), refused);
    for (int i = 0; i < N; i++) {
        if (l[i].auth != NULL)
            TURN_UNTIL(bench.n.worker->loop, l[i].answers == 1);
    }
    /* Logins that need no check go on meanwhile. */
    T_INT_EQ(login("plain", "open", NULL), 0);
    finish();
}

static void test_cancel(void)
{
    begin(4);
    struct login l;
    T_INT_EQ(try(&l, "argon", "open"), -EINPROGRESS);
    cv_auth_cancel(l.auth);
    cv_auth_cancel(NULL);
    /* The check goes on without anybody, to its end at the latest when the node ends. */
    TURN_UNTIL(bench.n.worker->loop, cv_list_is_empty(&bench.n.worker->_checks));
    T_INT_EQ(l.answers, 0);
    T_INT_EQ(try(&l, "argon", "wrong"), -EINPROGRESS);
    cv_auth_cancel(l.auth);
    finish();
}

/* The policy is swapped while the password is checked. */
static void test_swap_meanwhile(void)
{
    char other[256];
    T_INT_EQ(cv_passwd_hash(CV_PASSWD_ARGON2ID, "open", 4, other, sizeof(other)), 0);
    begin(4);
    struct login l;
    T_INT_EQ(try(&l, "argon", "open"), -EINPROGRESS);
    install(2, other); /* same password, but not the one that was checked */
    TURN_UNTIL(bench.n.worker->loop, l.answers == 1);
    T_INT_EQ(l.err, CV_E_AUTH);

    T_INT_EQ(try(&l, "argon", "open"), -EINPROGRESS);
    install(3, other); /* nothing has changed for this user */
    TURN_UNTIL(bench.n.worker->loop, l.answers == 1);
    T_INT_EQ(l.err, 0);

    install(4, bench.argon); /* what was remembered is worth nothing now */
    T_INT_EQ(try(&l, "argon", "open"), -EINPROGRESS);
    T_INT_EQ(cv_active_swap(bench.n.node.active, cv_snapshot_new_empty()), 0);
    TURN_UNTIL(bench.n.worker->loop, l.answers == 1);
    T_INT_EQ(l.err, CV_E_AUTH);
    finish();
}

static void test_trust(void)
{
    begin(4);
    struct cv_account *a = NULL;
    T_INT_EQ(cv_auth_trust(&bench.session, "argon", &a), 0);
    T_STR_EQ(a->name->s, "argon");
    T_INT_EQ(cv_auth_trust(&bench.session, "old", &a), CV_E_EXPIRED);
    T_INT_EQ(cv_auth_trust(&bench.session, "nobody", &a), CV_E_AUTH);
    finish();
}

static void test_too_long(void)
{
    static char big[5000];
    begin(4);
    memset(big, 'x', sizeof(big) - 1);
    T_INT_EQ(login(big, "open", NULL), CV_E_AUTH);
    T_INT_EQ(login("argon", big, NULL), CV_E_AUTH);
    finish();
}

/* A session is bound to the password that it was checked against, if it was. */
static void test_credential(void)
{
    struct cv_account *a;
    const struct cv_snapshot *snapshot;
    begin(4);
    snapshot = cv_active_get(bench.n.node.active)->snapshot;
    static const char *const users[] = {"plain", "sha", "argon"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(users); i++) {
        bench.session.credential = 0;
        T_INT_EQ(login(users[i], "wrong", NULL), CV_E_AUTH);
        T_OK(bench.session.credential == 0);
        T_INT_EQ(login(users[i], "open", NULL), 0);
        uint32_t u = cv_snapshot_user_find(snapshot, users[i], strlen(users[i]));
        T_OK(bench.session.credential == cv_session_credential(cv_snapshot_user(snapshot, u)));
    }
    T_INT_EQ(cv_auth_trust(&bench.session, "plain", &a), 0);
    T_OK(bench.session.credential == 0);
    finish();
}

/* Too many wrong ones: refused without a check, whether right, wrong or unknown. */
static void test_backoff(void)
{
    char pass[16];
    begin(16);
    bench.n.node.backoff = cv_backoff_new();
    static const char *const users[] = {"plain", "argon", "ghost"};
    for (size_t k = 0; k < CV_ARRAY_SIZE(users); k++) {
        for (int i = 0; i < 10; i++) {
            snprintf(pass, sizeof(pass), "guess-%d", i);
            T_INT_EQ(login(users[k], pass, NULL), CV_E_AUTH);
        }
        struct login l;
        T_INT_EQ(try(&l, users[k], "open"), CV_E_BACKOFF); /* at once, also for argon2id */
        T_INT_EQ(try(&l, users[k], "wrong"), CV_E_BACKOFF);
    }
    T_INT_EQ(cv_counter_get(&bench.n.node.stats.auth_backoff), 6);
    T_INT_EQ(failed(), 30);
    T_INT_EQ(login("sha", "open", NULL), 0);
    bench.session.client.ip.b[3]++; /* from elsewhere */
    T_INT_EQ(login("plain", "open", NULL), 0);
    T_INT_EQ(login("argon", "open", NULL), 0);
    cv_backoff_free(bench.n.node.backoff);
    finish();
}

/* A browser with an old password: a hundred logins at once and again and again are one guess. */
static void test_repeated_guess(void)
{
    enum { N = 100 };
    static struct login l[N];
    begin(4);
    bench.n.node.backoff = cv_backoff_new();
    for (int i = 0; i < N; i++)
        T_INT_EQ(try(&l[i], "argon", "old"), -EINPROGRESS);
    for (int i = 0; i < N; i++) {
        TURN_UNTIL(bench.n.worker->loop, l[i].answers == 1);
        T_INT_EQ(l[i].err, CV_E_AUTH);
    }
    for (int i = 0; i < N; i++) /* answered without a check now */
        T_INT_EQ(try(&l[0], "argon", "old"), CV_E_AUTH);
    T_INT_EQ(login("argon", "open", NULL), 0);
    T_INT_EQ(cv_counter_get(&bench.n.node.stats.auth_backoff), 0);
    cv_backoff_free(bench.n.node.backoff);
    finish();
}

/* -- timing -- */

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

enum { SAMPLES = 50000 };

/* Medians of two kinds of wrong login, taken in turn, so that both see the same machine. */
static double ratio(const char *user_a, const char *pass_a, const char *user_b, const char *pass_b)
{
    static int64_t took[2][SAMPLES];
    const char *users[2] = {user_a, user_b}, *passes[2] = {pass_a, pass_b};
    size_t user_len[2] = {strlen(user_a), strlen(user_b)};
    size_t pass_len[2] = {strlen(pass_a), strlen(pass_b)};
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < 2; k++) {
            struct cv_account *account = NULL;
            struct cv_auth *auth = NULL;
            int64_t start = now_ns();
            int err = cv_auth_check(&bench.session, users[k], user_len[k], passes[k], pass_len[k],
                                    on_auth, NULL, &account, &auth);
            took[k][i] = now_ns() - start;
            if (err != CV_E_AUTH)
                T_FAIL("%s %s: %d", users[k], passes[k], err);
        }
    }
    for (int k = 0; k < 2; k++)
        qsort(took[k], SAMPLES, sizeof(took[k][0]), compare_ns);
    printf("# '%s' %lld ns, '%s' %lld ns\n", user_a, (long long)took[0][SAMPLES / 2], user_b,
           (long long)took[1][SAMPLES / 2]);
    return (double)took[1][SAMPLES / 2] / (double)took[0][SAMPLES / 2];
}

/* How long a wrong login takes tells neither who exists nor how much of a password is right. */
static void test_time_tells_nothing(void)
{
    static char json[1024], secret[65], wrong_first[65], wrong_last[65];
    begin(4);
    for (int i = 0; i < 64; i++)
        secret[i] = wrong_first[i] = wrong_last[i] = (char)('a' + i % 26);
    wrong_first[0] = '!';
    wrong_last[63] = '!';
    snprintf(json, sizeof(json),
             "{\"schema_version\":1,\"version\":9,\"users\":{"
             "\"alice\":{\"password\":\"%s\",\"policy\":\"p\"},"
             "\"annie\":{\"password\":\"%s\",\"policy\":\"p\"}},"
             "\"routing_policies\":{\"p\":{\"routes\":[]}}}",
             secret, secret);
    test_policy(&bench.n, json);
    double known = ratio("alice", wrong_first, "ghost", wrong_first);
    double prefix = ratio("alice", wrong_first, "alice", wrong_last);
    double length = ratio("annie", wrong_first, "annie", wrong_last);
    T_OK(known > 0.8 && known < 1.25);
    T_OK(prefix > 0.9 && prefix < 1.1);
    T_OK(length > 0.9 && length < 1.1);
    finish();
}

int main(void)
{
    if (cv_passwd_hash(CV_PASSWD_ARGON2ID, "open", 4, bench.argon, sizeof(bench.argon)) != 0 ||
        cv_passwd_hash(CV_PASSWD_SHA256, "open", 4, bench.sha, sizeof(bench.sha)) != 0)
        abort();
    T_RUN(test_every_kind);
    T_RUN(test_unknown_user_takes_the_same_way);
    T_RUN(test_empty_policy);
    T_RUN(test_equal_logins_share_one_check);
    T_RUN(test_queue_full);
    T_RUN(test_cancel);
    T_RUN(test_swap_meanwhile);
    T_RUN(test_trust);
    T_RUN(test_too_long);
    T_RUN(test_credential);
    T_RUN(test_backoff);
    T_RUN(test_repeated_guess);
    T_RUN(test_time_tells_nothing);
    return t_done();
}
