#include "control/watch.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "tap.h"

static char t_dir[64], t_sub[96], t_file[128], t_other[128];
static struct cv_loop *t_loop;
static struct cv_watch t_watch;
static unsigned t_fired;

static void on_change(struct cv_watch *w)
{
    (void)w;
    t_fired++;
}

static void on_change_stop(struct cv_watch *w)
{
    t_fired++;
    cv_watch_stop(w);
}

static void begin(void)
{
    snprintf(t_dir, sizeof(t_dir), "/tmp/cv-watch-XXXXXX");
    if (mkdtemp(t_dir) == NULL || cv_loop_new(&t_loop) != 0)
        abort();
    snprintf(t_sub, sizeof(t_sub), "%s/sub", t_dir);
    snprintf(t_file, sizeof(t_file), "%s/sub/file", t_dir);
    snprintf(t_other, sizeof(t_other), "%s/sub/other", t_dir);
    t_fired = 0;
}

static void end(void)
{
    cv_watch_stop(&t_watch);
    cv_watch_stop(&t_watch); /* twice is fine */
    cv_loop_turn(t_loop, 0);
    T_INT_EQ(cv_loop_io_count(t_loop), 0);
    T_INT_EQ(cv_timers_count(cv_loop_timers(t_loop)), 0);
    cv_loop_free(t_loop);
    unlink(t_file);
    unlink(t_other);
    rmdir(t_sub);
    T_INT_EQ(rmdir(t_dir), 0);
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    T_REQUIRE(f != NULL);
    fputs(text, f);
    fclose(f);
}

#define WAIT(cond)                                                                                 \
    do {                                                                                           \
        int64_t until_ = cv_clock_mono_ms() + 5000;                                                \
        while (!(cond) && cv_clock_mono_ms() < until_)                                             \
            cv_loop_turn(t_loop, 50);                                                              \
        T_OK(cond);                                                                                \
    } while (0)

/* The poll is an hour away in the first cases, so what fires is inotify. */
static void test_events(void)
{
    begin();
    T_INT_EQ(mkdir(t_sub, 0700), 0);
    cv_watch_start(&t_watch, t_loop, t_file, 3600000, on_change);
    T_OK(cv_watch_is_live(&t_watch));
    put(t_file, "a");
    WAIT(t_fired == 1);
    put(t_other, "x"); /* of no concern */
    cv_loop_turn(t_loop, 0);
    T_INT_EQ(t_fired, 1);
    T_INT_EQ(rename(t_other, t_file), 0);
    WAIT(t_fired == 2);
    end();
}

static void test_stop_inside(void)
{
    begin();
    T_INT_EQ(mkdir(t_sub, 0700), 0);
    cv_watch_start(&t_watch, t_loop, t_file, 3600000, on_change_stop);
    put(t_file, "a");
    WAIT(t_fired == 1);
    put(t_file, "b");
    cv_loop_turn(t_loop, 0);
    T_INT_EQ(t_fired, 1);
    end();
}

/* A directory that comes later, a deletion, a directory that is replaced: stat sees them. */
static void test_poll(void)
{
    begin();
    cv_watch_start(&t_watch, t_loop, t_file, 5, on_change);
    T_OK(!cv_watch_is_live(&t_watch));
    T_INT_EQ(mkdir(t_sub, 0700), 0);
    WAIT(cv_watch_is_live(&t_watch));
    T_INT_EQ(t_fired, 0);
    put(t_file, "a");
    WAIT(t_fired >= 1);
    unsigned fired = t_fired;
    unlink(t_file);
    WAIT(t_fired == fired + 1);
    T_INT_EQ(rmdir(t_sub), 0);
    WAIT(!cv_watch_is_live(&t_watch));
    T_INT_EQ(mkdir(t_sub, 0700), 0);
    WAIT(cv_watch_is_live(&t_watch));
    fired = t_fired;
    put(t_file, "abc");
    WAIT(t_fired > fired);
    end();
}

static void test_retry(void)
{
    begin();
    cv_watch_start(&t_watch, t_loop, t_file, 5, on_change);
    t_watch.retry = true;
    WAIT(t_fired >= 3);
    t_watch.retry = false;
    unsigned fired = t_fired;
    for (int i = 0; i < 3; i++)
        cv_loop_turn(t_loop, 10);
    T_INT_EQ(t_fired, fired);
    end();
}

int main(void)
{
    T_RUN(test_events);
    T_RUN(test_stop_inside);
    T_RUN(test_poll);
    T_RUN(test_retry);
    return t_done();
}
