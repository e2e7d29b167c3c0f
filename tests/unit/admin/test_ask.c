#include "admin/ask.h"

#include <errno.h>

#include "admin_util.h"

static struct cv_ask *t_ask;
static int t_called;

static void on_answer(void *arg, struct cv_ask *ask)
{
    T_OK(arg == &t);
    T_OK(ask == t_ask);
    t_called++;
}

static void begin(void)
{
    node_start(GOOD_SNAPSHOT);
    t_ask = NULL;
    t_called = 0;
}

static const struct cv_ask_filter all = {.limit = SIZE_MAX};

static void ask(const struct cv_ask_filter *filter, int64_t deadline_ms)
{
    t_called = 0;
    T_INT_EQ(cv_ask_sessions(t.loop, t.worker, WORKERS, filter, deadline_ms, on_answer, &t, &t_ask),
             0);
    T_INT_EQ(t_called, 0);
}

/* The rows as an array; the caller frees it. */
static char *take(struct cv_ask_rows *rows)
{
    struct cv_buf b;
    T_INT_EQ(cv_ask_take_rows(t_ask, rows), 0);
    cv_ask_release(t_ask);
    cv_buf_init(&b, 256u << 20);
    T_INT_EQ(cv_buf_append_str(&b, "{\"x\":["), 0);
    T_INT_EQ(cv_buf_append(&b, cv_buf_data(&rows->text), cv_buf_len(&rows->text)), 0);
    T_INT_EQ(cv_buf_append_str(&b, "]}"), 0);
    cv_buf_done(&rows->text);
    T_OK(is_json((const char *)cv_buf_data(&b), cv_buf_len(&b)));
    T_INT_EQ(cv_buf_append(&b, "", 1), 0);
    return (char *)cv_buf_steal(&b);
}

static char *sessions(const struct cv_ask_filter *filter, struct cv_ask_rows *rows)
{
    ask(filter, 10000);
    TURN_UNTIL(t.loop, t_called == 1);
    char *text = take(rows);
    T_INT_EQ(rows->count, count_of(text, "\"id\":"));
    T_INT_EQ(rows->workers_missing, 0);
    return text;
}

/* More than a slice, uneven, with nothing lost or twice. */
static void test_all_sessions_of_all_workers(void)
{
    struct cv_ask_rows rows;
    begin();
    uint64_t first = make_sessions(0, "alice", 1000);
    make_sessions(1, "bob", 3);
    char *text = sessions(&all, &rows);
    T_INT_EQ(rows.count, 1003);
    T_OK(!rows.truncated);
    for (uint64_t id = first; id < first + 1000; id++) {
        char wanted[32];
        snprintf(wanted, sizeof(wanted), "\"id\":\"%016llx\"", (unsigned long long)id);
        T_OK(count_of(text, wanted) == 1);
    }
    cv_free(text);
    node_end();
}

static void test_no_sessions(void)
{
    struct cv_ask_rows rows;
    begin();
    cv_free(sessions(&all, &rows));
    T_INT_EQ(rows.count, 0);
    T_OK(!rows.truncated);
    node_end();
}

static void test_filters(void)
{
    static const struct {
        const char *user;
        size_t limit, wanted;
        bool truncated;
    } rows[] = {
        {NULL, SIZE_MAX, 25, false}, {NULL, 25, 25, false},  {NULL, 24, 24, true},
        {NULL, 10, 10, true},        {NULL, 3, 3, true},     {NULL, 1, 1, true},
        {NULL, 0, 0, true},          {"bob", 15, 15, false}, {"bob", SIZE_MAX, 15, false},
        {"bob", 12, 12, true},       {"alice", 4, 4, true},  {"b", SIZE_MAX, 0, false},
        {"nobody", 5, 0, false},     {"", 5, 0, false},
    };
    begin();
    make_sessions(0, "alice", 5);
    make_sessions(0, "bob", 5);
    make_sessions(1, "bob", 10);
    make_sessions(1, "alice", 5);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_ask_rows got;
        struct cv_ask_filter f = {.user = rows[i].user,
                                  .user_len = rows[i].user != NULL ? strlen(rows[i].user) : 0,
                                  .limit = rows[i].limit};
        char *text = sessions(&f, &got);
        T_INT_EQ(got.count, rows[i].wanted);
        T_INT_EQ(got.truncated, rows[i].truncated);
        if (rows[i].user != NULL)
            T_INT_EQ(count_of(text, "\"user\":\"bob\""),
                     strcmp(rows[i].user, "bob") == 0 ? got.count : 0);
        cv_free(text);
    }
    node_end();
}

/* Names that JSON needs six bytes for each byte of make rows of more than 64 MiB in all. */
static void test_size_is_bounded(void)
{
    struct cv_ask_rows rows;
    static char name[200001];
    begin();
    memset(name, 1, sizeof(name) - 1);
    make_sessions(0, name, 50);
    make_sessions(1, name, 50);
    ask(&all, 60000);
    TURN_UNTIL(t.loop, t_called == 1);
    T_INT_EQ(cv_ask_take_rows(t_ask, &rows), 0);
    cv_ask_release(t_ask);
    T_OK(rows.truncated);
    T_OK(rows.count > 20 && rows.count < 60);
    T_OK(cv_buf_len(&rows.text) <= CV_ASK_BYTES_MAX);
    T_OK(cv_buf_data(&rows.text)[cv_buf_len(&rows.text) - 1] == '}');
    cv_buf_done(&rows.text);
    node_end();
}

static void test_deadline(void)
{
    struct cv_ask_rows rows;
    struct block b;
    begin();
    make_sessions(0, "alice", 2);
    make_sessions(1, "bob", 2);
    block_start(&b, 1);
    ask(&all, 100);
    TURN_UNTIL(t.loop, t_called == 1);
    char *text = take(&rows);
    T_INT_EQ(rows.count, 2);
    T_INT_EQ(rows.workers_missing, 1);
    T_OK(rows.truncated);
    T_OK(strstr(text, "alice") != NULL && strstr(text, "bob") == NULL);
    cv_free(text);
    block_end(&b);
    node_end();
    T_INT_EQ(t_called, 1);
}

static void test_release_before_the_answer(void)
{
    struct block b;
    begin();
    make_sessions(0, "alice", 600);
    block_start(&b, 1);
    ask(&all, 10000);
    cv_ask_release(t_ask);
    block_end(&b);
    /* Without any wait for the workers, too. */
    ask(&all, 10000);
    cv_ask_release(t_ask);
    node_end();
    T_INT_EQ(t_called, 0);
}

/* What lies in the loop of a worker that has ended is run by the one who frees the loop. */
static void test_worker_that_has_ended(void)
{
    begin();
    node_join();
    ask(&all, 10000);
    cv_ask_release(t_ask);
    for (unsigned i = 0; i < WORKERS; i++)
        if (pthread_create(&t.thread[i], NULL, worker_main, t.worker[i]) != 0)
            abort();
    node_end();
    T_INT_EQ(t_called, 0);
}

static int kill_session(unsigned worker, uint64_t id, int64_t deadline_ms)
{
    t_called = 0;
    T_INT_EQ(cv_ask_kill(t.loop, t.worker[worker], id, deadline_ms, on_answer, &t, &t_ask), 0);
    TURN_UNTIL(t.loop, t_called == 1);
    int ret = cv_ask_kill_result(t_ask);
    cv_ask_release(t_ask);
    return ret;
}

static void test_kill(void)
{
    struct block b;
    begin();
    uint64_t id = make_sessions(1, "alice", 3);
    T_INT_EQ(kill_session(1, id + 1, 10000), 0);
    T_INT_EQ(atomic_load(&t.killed), 1);
    T_INT_EQ(atomic_load(&t.last_kill_err), CV_E_KILLED);
    T_INT_EQ(kill_session(1, id + 1, 10000), CV_E_NOTFOUND);
    T_INT_EQ(kill_session(0, id, 10000), CV_E_NOTFOUND);
    T_INT_EQ(atomic_load(&t.killed), 1);
    block_start(&b, 1);
    T_INT_EQ(kill_session(1, id, 50), -ETIMEDOUT);
    block_end(&b);
    node_end();
}

int main(void)
{
    T_RUN(test_all_sessions_of_all_workers);
    T_RUN(test_no_sessions);
    T_RUN(test_filters);
    T_RUN(test_size_is_bounded);
    T_RUN(test_deadline);
    T_RUN(test_release_before_the_answer);
    T_RUN(test_worker_that_has_ended);
    T_RUN(test_kill);
    return t_done();
}
