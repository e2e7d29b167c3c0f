#include "flow/accesslog.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/file.h"
#include "common/log.h"
#include "flow/accesslog_priv.h"
#include "tap.h"

static char dir[64];
static char path[128];
static struct cv_node_stats stats;

static void begin(void)
{
    stats = (struct cv_node_stats){0};
    snprintf(dir, sizeof(dir), "/tmp/cv-accesslog-XXXXXX");
    if (mkdtemp(dir) == NULL)
        abort();
    snprintf(path, sizeof(path), "%s/access.log", dir);
}

static void end(void)
{
    unlink(path);
    rmdir(dir);
}

static char *content(const char *file, size_t *ret_len)
{
    char *data = NULL;
    T_INT_EQ(cv_file_read(file, 64 << 20, &data, ret_len), 0);
    return data;
}

static struct cv_alog *open_log(const char *file)
{
    struct cv_alog_conf conf = {.file = file};
    struct cv_alog *alog = NULL;
    T_INT_EQ(cv_alog_new(&conf, &stats, &alog), 0);
    return alog;
}

static struct cv_loop *loop;

static struct cv_alog_stream *open_stream(struct cv_alog *alog)
{
    struct cv_alog_stream *s = NULL;
    if (cv_loop_new(&loop) != 0)
        abort();
    T_INT_EQ(cv_alog_stream_open(alog, loop, &s), 0);
    return s;
}

static void close_stream(struct cv_alog_stream *s)
{
    cv_alog_stream_close(s);
    T_INT_EQ(cv_timers_count(cv_loop_timers(loop)), 0);
    cv_loop_free(loop);
}

static void line(struct cv_alog_stream *s, const char *text)
{
    cv_alog_line(s, text, strlen(text));
}

static void expect(const char *file, const char *want)
{
    size_t len = 0;
    char *text = content(file, &len);
    T_STR_EQ(text, want);
    cv_free(text);
}

static void test_lines_go_out_by_age(void)
{
    begin();
    struct cv_alog *alog = open_log(path);
    T_OK(cv_alog_is_on(alog));
    struct cv_alog_stream *s = open_stream(alog);
    line(s, "one");
    line(s, "two");
    cv_alog_flush(alog);
    expect(path, ""); /* not yet */
    for (int i = 0; i < 100 && cv_timers_count(cv_loop_timers(loop)) > 0; i++)
        cv_loop_turn(loop, 20);
    cv_alog_flush(alog);
    expect(path, "one\ntwo\n");
    line(s, "three");
    close_stream(s); /* hands over what it has */
    cv_alog_free(alog);
    expect(path, "one\ntwo\nthree\n");
    T_INT_EQ(cv_counter_get(&stats.log_dropped), 0);
    end();
}

static void test_full_chunks_keep_order(void)
{
    enum { N = 20000 };
    char text[200];
    begin();
    struct cv_alog *alog = open_log(path);
    struct cv_alog_stream *s = open_stream(alog);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof(text), "%08d%*s", i, i % 150, "");
        line(s, text);
    }
    /* Longer than a chunk. */
    char *big = cv_zalloc(100001);
    memset(big, 'b', 100000);
    line(s, big);
    close_stream(s);
    cv_alog_free(alog);
    size_t len;
    char *all = content(path, &len), *p = all;
    int seen = 0;
    for (; seen < N; seen++) {
        if (strtol(p, NULL, 10) != seen)
            break;
        p = strchr(p, '\n') + 1;
    }
    T_INT_EQ(seen, N);
    T_INT_EQ(strlen(p), 100001);
    cv_free(all);
    cv_free(big);
    end();
}

static void test_off(void)
{
    begin();
    struct cv_alog *alog = open_log("");
    T_OK(!cv_alog_is_on(alog));
    struct cv_alog_stream *s = open_stream(alog);
    line(s, "into the void");
    T_INT_EQ(cv_timers_count(cv_loop_timers(loop)), 0);

    /* Switched on, to another file, and off again. */
    struct cv_alog_conf conf = {.file = path};
    T_INT_EQ(cv_alog_reopen(alog, &conf), 0);
    T_OK(cv_alog_is_on(alog));
    line(s, "seen");
    close_stream(s);
    cv_alog_flush(alog);
    expect(path, "seen\n");
    conf.file = NULL;
    T_INT_EQ(cv_alog_reopen(alog, &conf), 0);
    T_OK(!cv_alog_is_on(alog));
    cv_alog_free(alog);
    T_INT_EQ(cv_counter_get(&stats.log_dropped), 0);
    cv_alog_free(NULL);
    cv_alog_stream_close(NULL);
    end();
}

static void test_reopen(void)
{
    char moved[160];
    begin();
    struct cv_alog *alog = open_log(path);
    struct cv_alog_stream *s = open_stream(alog);
    snprintf(moved, sizeof(moved), "%s/moved", dir);
    line(s, "before");
    for (int i = 0; i < 100 && cv_timers_count(cv_loop_timers(loop)) > 0; i++)
        cv_loop_turn(loop, 20);
    cv_alog_flush(alog);
    T_INT_EQ(rename(path, moved), 0);
    struct cv_alog_conf conf = {.file = path};
    T_INT_EQ(cv_alog_reopen(alog, &conf), 0);
    cv_alog_flush(alog);
    line(s, "after");
    /* A file that cannot be opened: the old one goes on. */
    struct cv_alog_conf bad = {.file = dir};
    T_OK(cv_alog_reopen(alog, &bad) < 0);
    close_stream(s);
    cv_alog_free(alog);
    expect(moved, "before\n");
    expect(path, "after\n");
    unlink(moved);
    end();
}

static int32_t fake_day = 20500;
static int32_t today(void)
{
    return __atomic_load_n(&fake_day, __ATOMIC_RELAXED);
}

static void test_day_changes(void)
{
    char old[160];
    begin();
    struct cv_alog *alog = open_log("");
    cv_alog_set_today(alog, today);
    struct cv_alog_conf conf = {.file = path, .retention_days = 2};
    T_INT_EQ(cv_alog_reopen(alog, &conf), 0);
    struct cv_alog_stream *s = open_stream(alog);
    line(s, "monday");
    for (int i = 0; i < 100 && cv_timers_count(cv_loop_timers(loop)) > 0; i++)
        cv_loop_turn(loop, 20);
    cv_alog_flush(alog);
    __atomic_store_n(&fake_day, 20501, __ATOMIC_RELAXED);
    line(s, "tuesday");
    close_stream(s);
    cv_alog_free(alog);
    snprintf(old, sizeof(old), "%s.2026-02-16", path);
    expect(old, "monday\n");
    expect(path, "tuesday\n");
    unlink(old);
    end();
}

static int warnings;
static void on_log(void *arg, const char *text, size_t len)
{
    (void)arg;
    (void)len;
    if (strstr(text, "lines dropped") != NULL)
        warnings++;
}

/* Nobody reads the pipe: lines are dropped and counted, the thread that logs is never held up, and
 * the end of the node is not either. */
static void test_stalled_pipe(void)
{
    begin();
    T_INT_EQ(mkfifo(path, 0600), 0);
    int rd = open(path, O_RDONLY | O_NONBLOCK);
    cv_log_set_sink(on_log, NULL);
    struct cv_alog *alog = open_log(path);
    struct cv_alog_stream *s = open_stream(alog);
    char text[1000];
    memset(text, 'x', sizeof(text));
    enum { N = 12000 }; /* of 1001 bytes: more than the queue and the pipe hold */
    for (int i = 0; i < N; i++)
        cv_alog_line(s, text, sizeof(text));
    uint64_t early = cv_counter_get(&stats.log_dropped);
    T_OK(early > 1000 && early < N);
    T_INT_EQ(warnings, 1); /* one a minute */
    close_stream(s);
    cv_alog_free(alog); /* gives up after a while */
    uint64_t in_pipe = 0;
    ssize_t n;
    while ((n = read(rd, text, sizeof(text))) > 0)
        in_pipe += (uint64_t)n;
    T_INT_EQ(in_pipe % 1001, 0);
    T_INT_EQ(cv_counter_get(&stats.log_dropped), N - in_pipe / 1001);
    cv_log_set_sink(NULL, NULL);
    close(rd);
    end();
}

#define THREADS 3
#define LINES   5000

static struct cv_alog *shared;

static void *logger(void *arg)
{
    struct cv_loop *l;
    struct cv_alog_stream *s;
    if (cv_loop_new(&l) != 0 || cv_alog_stream_open(shared, l, &s) != 0)
        abort();
    char text[64];
    for (int i = 0; i < LINES; i++) {
        snprintf(text, sizeof(text), "thread-%d line-%06d", *(int *)arg, i);
        cv_alog_line(s, text, strlen(text));
        if (i % 500 == 0)
            cv_loop_turn(l, 0);
    }
    cv_alog_stream_close(s);
    cv_loop_free(l);
    return NULL;
}

static void test_threads(void)
{
    pthread_t t[THREADS];
    int ids[THREADS], next[THREADS] = {0};
    begin();
    shared = open_log(path);
    for (int i = 0; i < THREADS; i++) {
        ids[i] = i;
        pthread_create(&t[i], NULL, logger, &ids[i]);
    }
    for (int i = 0; i < 20; i++) {
        struct cv_alog_conf conf = {.file = path};
        T_INT_EQ(cv_alog_reopen(shared, &conf), 0);
        usleep(500);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    cv_alog_free(shared);
    size_t len;
    char *all = content(path, &len);
    int bad = 0;
    for (char *p = all; *p != '\0'; p = strchr(p, '\n') + 1) {
        int id = p[7] - '0';
        if (id < 0 || id >= THREADS || strtol(p + 14, NULL, 10) != next[id]++)
            bad++;
    }
    T_INT_EQ(bad, 0);
    for (int i = 0; i < THREADS; i++)
        T_INT_EQ(next[i], LINES);
    cv_free(all);
    end();
}

static void test_cannot_open(void)
{
    begin();
    struct cv_alog_conf conf = {.file = dir};
    struct cv_alog *alog = NULL;
    T_OK(cv_alog_new(&conf, &stats, &alog) < 0);
    T_OK(alog == NULL);
    end();
}

int main(void)
{
    T_RUN(test_lines_go_out_by_age);
    T_RUN(test_full_chunks_keep_order);
    T_RUN(test_off);
    T_RUN(test_reopen);
    T_RUN(test_day_changes);
    T_RUN(test_stalled_pipe);
    T_RUN(test_threads);
    T_RUN(test_cannot_open);
    return t_done();
}
