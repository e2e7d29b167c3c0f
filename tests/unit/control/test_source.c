#include "control/source.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "tap.h"

/* One temporary directory, one loop, one source; the log goes to a counter. */
static char t_dir[64];
static char t_file[96], t_cache[96];
static struct cv_loop *t_loop;
static struct cv_source *t_source;
static struct cv_node_stats t_stats;
static uint64_t t_version;   /* of the snapshot that was handed over last */
static uint32_t t_swaps;     /* snapshots handed over */
static int t_apply_result;   /* what the owner answers */
static uint32_t t_log_lines; /* lines of level warn and error */
static char t_log_last[1024];

static void on_log(void *arg, const char *line, size_t len)
{
    (void)arg;
    if (strstr(line, "warn") != NULL || strstr(line, "error") != NULL) {
        t_log_lines++;
        snprintf(t_log_last, sizeof(t_log_last), "%.*s", (int)len, line);
    }
}

static int on_snapshot(void *arg, struct cv_snapshot *s)
{
    (void)arg;
    if (t_apply_result == 0) {
        t_version = cv_snapshot_version(s);
        t_swaps++;
    }
    cv_snapshot_unref(s);
    return t_apply_result;
}

static void begin(void)
{
    snprintf(t_dir, sizeof(t_dir), "/tmp/cv-source-XXXXXX");
    if (mkdtemp(t_dir) == NULL)
        abort();
    snprintf(t_file, sizeof(t_file), "%s/snapshot.json", t_dir);
    snprintf(t_cache, sizeof(t_cache), "%s/data/cache.json", t_dir);
    memset(&t_stats, 0, sizeof(t_stats));
    t_version = 0;
    t_swaps = 0;
    t_apply_result = 0;
    t_log_lines = 0;
    t_log_last[0] = '\0';
    cv_log_set_sink(on_log, NULL);
    if (cv_loop_new(&t_loop) != 0)
        abort();
}

static void open_source(void)
{
    struct cv_source_conf conf = {.file = t_file,
                                  .cache = t_cache,
                                  .node_id = "n1",
                                  .on_snapshot = on_snapshot,
                                  .stats = &t_stats,
                                  .poll_ms = 20};
    T_INT_EQ(cv_source_new(t_loop, &conf, &t_source), 0);
}

static void end(void)
{
    char cmd_file[128];
    cv_source_free(t_source);
    t_source = NULL;
    cv_loop_turn(t_loop, 0);
    T_INT_EQ(cv_loop_io_count(t_loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(t_loop)), 0);
    cv_loop_free(t_loop);
    cv_log_set_sink(NULL, NULL);
    unlink(t_file);
    unlink(t_cache);
    static const char *const left[] = {"other.json", "link.json", "new.json", "data", "v1", "v2"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(left); i++) {
        snprintf(cmd_file, sizeof(cmd_file), "%s/%s", t_dir, left[i]);
        if (remove(cmd_file) != 0 && errno != ENOENT)
            T_FAIL("%s is left over", cmd_file);
    }
    T_INT_EQ(rmdir(t_dir), 0);
}

/* Turn the loop until 'cond' holds; the loop sleeps in between, an event or its timer wakes it. */
#define WAIT(cond)                                                                                 \
    do {                                                                                           \
        int64_t until_ = cv_clock_mono_ms() + 5000;                                                \
        while (!(cond) && cv_clock_mono_ms() < until_)                                             \
            cv_loop_turn(t_loop, 50);                                                              \
        T_OK(cond);                                                                                \
    } while (0)

static const char *doc(unsigned version)
{
    static char text[256];
    snprintf(text, sizeof(text),
             "{\"schema_version\":1,\"version\":%u,\"users\":{\"a\":{\"password\":\"secret-pw\","
             "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{}}}",
             version);
    return text;
}

/* An editor's rename onto the file. */
static void replace(const char *path, const char *text)
{
    T_INT_EQ(cv_file_write_atomic(path, text, strlen(text), 0600), 0);
}

/* A writer that keeps the inode. */
static void rewrite(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    T_REQUIRE(f != NULL);
    fputs(text, f);
    fclose(f);
}

static struct cv_source_status status(void)
{
    struct cv_source_status st;
    cv_source_status(t_source, &st);
    return st;
}

static void test_start_good(void)
{
    begin();
    replace(t_file, doc(7));
    open_source();
    struct cv_source_status st = status();
    T_INT_EQ(t_version, 7);
    T_OK(st.loaded && !st.from_cache && !st.has_error);
    T_INT_EQ(st.version, 7);
    T_INT_EQ(st.users, 1);
    T_INT_EQ(st.failures, 0);
    T_STR_EQ(st.file, t_file);
    T_OK(st.loaded_ms > 0 && st.last_attempt_ms > 0);
    T_INT_EQ(cv_counter_get(&t_stats.snapshot_swaps), 1);

    struct stat sb;
    T_INT_EQ(stat(t_cache, &sb), 0);
    T_INT_EQ(sb.st_mode & 07777, 0600);
    char *data = NULL;
    size_t len = 0;
    T_INT_EQ(cv_file_read(t_cache, 1 << 20, &data, &len), 0);
    T_STR_EQ(data, doc(7));
    cv_free(data);
    end();
}

static void test_start_missing(void)
{
    begin();
    open_source();
    struct cv_source_status st = status();
    T_OK(!st.loaded && st.has_error);
    T_INT_EQ(st.version, 0);
    T_INT_EQ(t_swaps, 0);
    T_STR_EQ(st.error_text, "the file does not exist");
    T_INT_EQ(t_log_lines, 1);
    replace(t_file, doc(1));
    WAIT(t_version == 1);
    st = status();
    T_OK(st.loaded && !st.has_error);
    T_INT_EQ(st.failures, 0);
    end();
}

static void test_start_from_cache(void)
{
    static const char *const files[] = {NULL, "{ not json",
                                        "{\"schema_version\":1,\"version\":1,"
                                        "\"bad\":1}"};
    for (size_t i = 0; i < CV_ARRAY_SIZE(files); i++) {
        begin();
        replace(t_cache, doc(5));
        if (files[i] != NULL)
            replace(t_file, files[i]);
        open_source();
        struct cv_source_status st = status();
        T_INT_EQ(t_version, 5);
        T_OK(st.loaded && st.from_cache && st.has_error);
        /* The same content in the file is no new snapshot, but no longer "from the cache". */
        replace(t_file, doc(5));
        WAIT(!status().from_cache);
        T_INT_EQ(t_swaps, 1);
        T_OK(!status().has_error);
        end();
    }
}

static void test_start_bad_cache(void)
{
    begin();
    replace(t_cache, "[]");
    open_source();
    T_OK(!status().loaded);
    T_INT_EQ(t_swaps, 0);
    T_INT_EQ(t_log_lines, 2);
    T_OK(strstr(t_log_last, "is of no use") != NULL);
    end();
}

static void test_good_file_beats_cache(void)
{
    begin();
    replace(t_cache, doc(9));
    replace(t_file, doc(3));
    open_source();
    T_INT_EQ(t_version, 3);
    T_OK(!status().from_cache);
    end();
}

static void test_changes(void)
{
    begin();
    replace(t_file, doc(1));
    open_source();
    replace(t_file, doc(2));
    WAIT(t_version == 2);
    rewrite(t_file, doc(3));
    WAIT(t_version == 3);
    /* An older version with another content is what the operator wants. */
    replace(t_file, doc(2));
    WAIT(t_version == 2);
    T_INT_EQ(t_swaps, 4);
    /* The same content again is not compiled again. */
    replace(t_file, doc(2));
    cv_source_reload(t_source);
    cv_loop_turn(t_loop, 50);
    cv_loop_turn(t_loop, 50);
    T_INT_EQ(t_swaps, 4);
    T_INT_EQ(t_log_lines, 0);
    end();
}

static void test_bad_keeps_old(void)
{
    begin();
    replace(t_file, doc(4));
    open_source();
    char *before = NULL;
    size_t before_len = 0;
    T_INT_EQ(cv_file_read(t_cache, 1 << 20, &before, &before_len), 0);

    rewrite(t_file, "{\"schema_version\":1,\"version\":5,\"users\":{\"a\":{\"password\":"
                    "\"secret-pw\",\"policy\":\"nope\"}}}");
    WAIT(status().has_error);
    struct cv_source_status st = status();
    T_INT_EQ(t_swaps, 1);
    T_INT_EQ(st.version, 4);
    T_OK(st.loaded);
    T_OK(strstr(st.error_path, "users.a") != NULL);
    T_OK(st.error_text[0] != '\0');
    T_INT_EQ(cv_counter_get(&t_stats.snapshot_refused), st.failures);
    T_OK(st.failures >= 1);
    T_INT_EQ(t_log_lines, 1);
    T_OK(strstr(t_log_last, "version 4 stays in force") != NULL);
    T_OK(strstr(t_log_last, "secret-pw") == NULL);

    /* The same fault is counted, not logged again. */
    uint32_t failures = st.failures;
    cv_source_reload(t_source);
    T_INT_EQ(status().failures, failures + 1);
    T_INT_EQ(t_log_lines, 1);

    /* No JSON at all: a line number. */
    rewrite(t_file, "{\n  \"schema_version\": 1,\n  oops\n}");
    WAIT(status().line > 0);
    T_INT_EQ(t_log_lines, 2);
    T_INT_EQ(t_swaps, 1);

    char *after = NULL;
    size_t after_len = 0;
    T_INT_EQ(cv_file_read(t_cache, 1 << 20, &after, &after_len), 0);
    T_INT_EQ(after_len, before_len);
    T_MEM_EQ(after, before, CV_MIN(before_len, after_len));
    cv_free(before);
    cv_free(after);

    /* Back to the document that is in force: good again, without a swap. */
    replace(t_file, doc(4));
    WAIT(!status().has_error);
    T_INT_EQ(t_swaps, 1);
    end();
}

static void test_deleted(void)
{
    begin();
    replace(t_file, doc(4));
    open_source();
    unlink(t_file);
    WAIT(status().has_error);
    T_STR_EQ(status().error_text, "the file does not exist");
    T_OK(status().loaded);
    T_INT_EQ(t_swaps, 1);
    T_INT_EQ(t_log_lines, 1);
    replace(t_file, doc(4));
    WAIT(!status().has_error);
    T_INT_EQ(t_swaps, 1);
    end();
}

static void test_too_big(void)
{
    begin();
    FILE *f = fopen(t_file, "w");
    T_REQUIRE(f != NULL);
    T_INT_EQ(ftruncate(fileno(f), CV_SNAPSHOT_MAX_BYTES + 1), 0);
    fclose(f);
    open_source();
    T_STR_EQ(status().error_text, "the file is larger than 8388608 bytes");
    T_INT_EQ(t_swaps, 0);
    end();
}

static void test_owner_refuses(void)
{
    begin();
    replace(t_file, doc(1));
    open_source();
    t_apply_result = -ENOMEM;
    replace(t_file, doc(2));
    WAIT(status().has_error);
    T_INT_EQ(status().version, 1);
    T_INT_EQ(t_swaps, 1);
    /* Tried again by itself: the document is not at fault. */
    t_apply_result = 0;
    WAIT(t_version == 2);
    T_OK(!status().has_error);
    end();
}

static void test_symlink_swap(void)
{
    char a[96], b[96], link[96], fresh[96];
    begin();
    snprintf(a, sizeof(a), "%s/v1", t_dir);
    snprintf(b, sizeof(b), "%s/v2", t_dir);
    snprintf(link, sizeof(link), "%s/link.json", t_dir);
    snprintf(fresh, sizeof(fresh), "%s/new.json", t_dir);
    replace(a, doc(1));
    replace(b, doc(2));
    T_INT_EQ(symlink("link.json", t_file), 0);
    T_INT_EQ(symlink("v1", link), 0);
    open_source();
    T_INT_EQ(t_version, 1);
    T_INT_EQ(symlink("v2", fresh), 0);
    T_INT_EQ(rename(fresh, link), 0);
    WAIT(t_version == 2);
    end();
}

static void test_many_changes(void)
{
    begin();
    replace(t_file, doc(1));
    open_source();
    /* The last change is never lost, however fast they come, and the cache gets it at the end. */
    for (unsigned v = 2; v <= 200; v++) {
        rewrite(t_file, doc(v));
        if (v % 7 == 0)
            cv_loop_turn(t_loop, 0);
    }
    WAIT(t_version == 200);
    T_INT_EQ(cv_counter_get(&t_stats.snapshot_swaps), t_swaps);
    cv_source_free(t_source);
    t_source = NULL;
    char *data = NULL;
    size_t len = 0;
    T_INT_EQ(cv_file_read(t_cache, 1 << 20, &data, &len), 0);
    T_STR_EQ(data, doc(200));
    cv_free(data);
    end();
}

static void test_set_paths(void)
{
    char other[96];
    begin();
    snprintf(other, sizeof(other), "%s/other.json", t_dir);
    replace(t_file, doc(1));
    open_source();
    /* A file that is missing: what is in force stays. */
    T_INT_EQ(cv_source_set_paths(t_source, other, ""), 0);
    T_INT_EQ(status().version, 1);
    T_OK(status().has_error);
    replace(other, doc(8));
    WAIT(t_version == 8);
    /* The old file is watched no more. */
    replace(t_file, doc(9));
    cv_loop_turn(t_loop, 50);
    cv_loop_turn(t_loop, 50);
    T_INT_EQ(t_version, 8);
    end();
}

static void test_cache_unwritable(void)
{
    begin();
    replace(t_file, doc(1));
    snprintf(t_cache, sizeof(t_cache), "%s/snapshot.json/cache", t_dir);
    open_source();
    T_INT_EQ(t_version, 1);
    T_OK(status().cache_error[0] != '\0');
    T_INT_EQ(t_log_lines, 1);
    end();
}

static char *copy(const char *text)
{
    return cv_strdup(text);
}

/* Documents that are fetched by somebody else: only newer ones count, the cache is where to begin.
 */
static void test_offered(void)
{
    begin();
    struct cv_source_conf conf = {.origin = "http://plane/",
                                  .cache = t_cache,
                                  .node_id = "n1",
                                  .on_snapshot = on_snapshot,
                                  .stats = &t_stats};
    T_INT_EQ(cv_source_new(t_loop, &conf, &t_source), 0);
    T_OK(!status().loaded && status().file == NULL);
    T_STR_EQ(status().origin, "http://plane/");
    cv_source_fail(t_source, "nobody answers");
    T_OK(status().has_error && status().failures == 1);
    T_INT_EQ(cv_source_offer(t_source, copy(doc(5)), strlen(doc(5))), 0);
    T_INT_EQ(t_version, 5);
    T_OK(!status().has_error && !status().from_cache);
    /* The same again is no news, another one must have a higher version. */
    T_INT_EQ(cv_source_offer(t_source, copy(doc(5)), strlen(doc(5))), 0);
    T_INT_EQ(t_swaps, 1);
    T_OK(cv_source_offer(t_source, copy(doc(4)), strlen(doc(4))) != 0);
    T_STR_EQ(status().error_path, "version");
    T_STR_EQ(status().error_text, "4 is not newer than 5, which is in force");
    T_OK(cv_source_offer(t_source, copy("{"), 1) != 0);
    T_INT_EQ(t_version, 5);
    cv_source_confirm(t_source);
    T_OK(!status().has_error);
    cv_source_free(t_source);
    /* A new start serves what the cache has, and an older one is refused all the same. */
    T_INT_EQ(cv_source_new(t_loop, &conf, &t_source), 0);
    T_INT_EQ(status().version, 5);
    T_OK(status().from_cache);
    T_OK(cv_source_offer(t_source, copy(doc(3)), strlen(doc(3))) != 0);
    T_INT_EQ(cv_source_offer(t_source, copy(doc(5)), strlen(doc(5))), 0);
    T_OK(!status().from_cache);
    end();
}

int main(void)
{
    T_RUN(test_start_good);
    T_RUN(test_start_missing);
    T_RUN(test_start_from_cache);
    T_RUN(test_start_bad_cache);
    T_RUN(test_good_file_beats_cache);
    T_RUN(test_changes);
    T_RUN(test_bad_keeps_old);
    T_RUN(test_deleted);
    T_RUN(test_too_big);
    T_RUN(test_owner_refuses);
    T_RUN(test_symlink_swap);
    T_RUN(test_many_changes);
    T_RUN(test_set_paths);
    T_RUN(test_cache_unwritable);
    T_RUN(test_offered); /* the last: lines of the log are rationed */
    return t_done();
}
