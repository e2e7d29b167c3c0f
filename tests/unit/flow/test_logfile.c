#include "flow/logfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/file.h"
#include "tap.h"

static char dir[64];
static char path[128];

static void begin(void)
{
    snprintf(dir, sizeof(dir), "/tmp/cv-logfile-XXXXXX");
    if (mkdtemp(dir) == NULL)
        abort();
    snprintf(path, sizeof(path), "%s/access.log", dir);
}

static void each_file(void (*fn)(const char *file))
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char file[512];
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(file, sizeof(file), "%s/%s", dir, e->d_name);
        fn(file);
    }
    closedir(d);
}

static void remove_file(const char *file)
{
    if (unlink(file) != 0)
        rmdir(file);
}

static void end(void)
{
    each_file(remove_file);
    rmdir(dir);
}

static int n_files;
static void count_file(const char *file)
{
    (void)file;
    n_files++;
}
static int files(void)
{
    n_files = 0;
    each_file(count_file);
    return n_files;
}

static const char *content(const char *name)
{
    static char text[4096];
    char file[256];
    char *data;
    size_t len;
    snprintf(file, sizeof(file), "%s/%s", dir, name);
    if (cv_file_read(file, sizeof(text) - 1, &data, &len) != 0)
        return NULL;
    memcpy(text, data, len + 1);
    cv_free(data);
    return text;
}

static void make(const char *name, const char *text)
{
    char file[256];
    snprintf(file, sizeof(file), "%s/%s", dir, name);
    T_INT_EQ(cv_file_write_atomic(file, text, strlen(text), 0600), 0);
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}
static bool at_once(void *arg)
{
    ++*(int *)arg;
    return true;
}

static void put(struct cv_logfile *f, const char *text)
{
    size_t n;
    T_INT_EQ(cv_logfile_write(f, text, strlen(text), never, NULL, &n), 0);
    T_INT_EQ(n, strlen(text));
}

#define DAY 20500 /* 2026-02-16 */

static void test_rotates_daily(void)
{
    struct cv_logfile *f;
    begin();
    T_INT_EQ(cv_logfile_open(path, 0, DAY, &f), 0);
    struct stat st;
    T_OK(stat(path, &st) == 0 && (st.st_mode & 0777 & ~0640) == 0);
    put(f, "one\n");
    T_INT_EQ(cv_logfile_tick(f, DAY), 0);
    T_INT_EQ(files(), 1);
    T_INT_EQ(cv_logfile_tick(f, DAY + 1), 0);
    put(f, "two\n");
    T_STR_EQ(content("access.log.2026-02-16"), "one\n");
    T_STR_EQ(content("access.log"), "two\n");
    /* The name is taken: nothing is overwritten. */
    make("access.log.2026-02-17", "precious\n");
    T_INT_EQ(cv_logfile_tick(f, DAY + 2), 0);
    T_STR_EQ(content("access.log.2026-02-17"), "precious\n");
    T_STR_EQ(content("access.log.2026-02-17.1"), "two\n");
    /* Nothing was written: no file for that day. */
    T_INT_EQ(cv_logfile_tick(f, DAY + 3), 0);
    T_OK(content("access.log.2026-02-18") == NULL);
    cv_logfile_close(f);
    end();
}

/* The node was down at midnight. */
static void test_rotates_at_start(void)
{
    struct cv_logfile *f;
    begin();
    make("access.log", "old\n");
    struct timespec t[2] = {{.tv_sec = (time_t)(DAY - 3) * 86400 + 43200}, {0}};
    t[1] = t[0];
    utimensat(AT_FDCWD, path, t, 0);
    T_INT_EQ(cv_logfile_open(path, 0, DAY, &f), 0);
    put(f, "new\n");
    T_STR_EQ(content("access.log.2026-02-13"), "old\n");
    T_STR_EQ(content("access.log"), "new\n");
    cv_logfile_close(f);
    /* The same day: appended. */
    T_INT_EQ(cv_logfile_open(path, 0, cv_date_today(), &f), 0);
    put(f, "more\n");
    T_STR_EQ(content("access.log"), "new\nmore\n");
    cv_logfile_close(f);
    end();
}

static void test_retention(void)
{
    struct cv_logfile *f;
    begin();
    make("access.log.2026-02-09", "");   /* 7 days */
    make("access.log.2026-02-08", "");   /* 8 days */
    make("access.log.2026-02-08.2", ""); /* 8 days */
    make("access.log.2026-02-08.gz", "");
    make("access.log.2026-02-08.", "");
    make("access.log.2026-02-30", ""); /* no such day */
    make("access.log.2025-13-01", "");
    make("access.log.bak", "");
    make("other.log.2020-01-01", "");
    T_INT_EQ(cv_logfile_open(path, 7, DAY, &f), 0);
    T_OK(content("access.log.2026-02-09") != NULL);
    T_OK(content("access.log.2026-02-08") == NULL);
    T_OK(content("access.log.2026-02-08.2") == NULL);
    T_INT_EQ(files(), 8);
    put(f, "x\n");
    T_INT_EQ(cv_logfile_tick(f, DAY + 1), 0);
    T_OK(content("access.log.2026-02-09") == NULL);
    T_OK(content("access.log.2026-02-16") != NULL);
    cv_logfile_close(f);
    end();
}

/* Somebody else (logrotate) moved the file away. */
static void test_external_rotation(void)
{
    struct cv_logfile *f;
    char moved[160];
    begin();
    T_INT_EQ(cv_logfile_open(path, 0, DAY, &f), 0);
    put(f, "one\n");
    snprintf(moved, sizeof(moved), "%s.1", path);
    T_INT_EQ(rename(path, moved), 0);
    put(f, "two\n"); /* still to the file that was moved */
    T_INT_EQ(cv_logfile_tick(f, DAY + 1), 0);
    put(f, "three\n");
    T_STR_EQ(content("access.log.1"), "one\ntwo\n");
    T_STR_EQ(content("access.log"), "three\n");
    T_OK(content("access.log.2026-02-16") == NULL);
    cv_logfile_close(f);
    end();
}

static void test_open_failures(void)
{
    struct cv_logfile *f = NULL;
    begin();
    T_INT_EQ(cv_logfile_open(dir, 0, DAY, &f), -EISDIR);
    make("file", "x");
    char below[200];
    snprintf(below, sizeof(below), "%s/file/access.log", dir);
    T_INT_EQ(cv_logfile_open(below, 0, DAY, &f), -ENOTDIR);
    /* Missing directories are made. */
    snprintf(below, sizeof(below), "%s/sub/access.log", dir);
    T_INT_EQ(cv_logfile_open(below, 0, DAY, &f), 0);
    cv_logfile_close(f);
    unlink(below);
    cv_logfile_close(NULL);
    end();
}

/* A pipe that nobody reads: it is asked whether to go on, and nothing blocks. */
static void test_stalled_pipe(void)
{
    struct cv_logfile *f;
    begin();
    char fifo[160];
    snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
    T_INT_EQ(mkfifo(fifo, 0600), 0);
    int rd = open(fifo, O_RDONLY | O_NONBLOCK);
    T_INT_EQ(cv_logfile_open(fifo, 7, DAY, &f), 0);
    static char text[1 << 18];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = i % 100 == 99 ? '\n' : 'x';
    size_t n;
    int asked = 0;
    T_INT_EQ(cv_logfile_write(f, text, sizeof(text), at_once, &asked, &n), -ETIMEDOUT);
    T_INT_EQ(asked, 1);
    T_OK(n > 0 && n < sizeof(text));
    T_INT_EQ(n % 100, 0); /* whole lines only */
    /* A day's end means nothing to a pipe. */
    T_INT_EQ(cv_logfile_tick(f, DAY + 1), 0);
    size_t got = 0;
    ssize_t r;
    static char sink[1 << 16];
    while ((r = read(rd, sink, sizeof(sink))) > 0)
        got += (size_t)r;
    T_INT_EQ(got, n);
    put(f, "again\n");
    close(rd);
    T_INT_EQ(cv_logfile_write(f, "x\n", 2, never, NULL, &n), -EPIPE);
    T_INT_EQ(n, 0);
    cv_logfile_close(f);
    end();
}

/* What a full disk cut off does not swallow the next line. */
#define SHARED_DAYS 200

/* Both processes come to each midnight at the same moment. */
static void write_days(int in, int out, char who)
{
    struct cv_logfile *f = NULL;
    size_t n;
    char line[32], token = 0;
    if (cv_logfile_open(path, 0, DAY, &f) != 0)
        abort();
    for (int32_t day = 0; day < SHARED_DAYS; day++) {
        if (write(out, &token, 1) != 1 || read(in, &token, 1) != 1)
            abort();
        if (cv_logfile_tick(f, DAY + day) != 0)
            abort();
        int len = snprintf(line, sizeof(line), "%c%03d\n", who, (int)day);
        if (cv_logfile_write(f, line, (size_t)len, never, NULL, &n) != 0)
            abort();
    }
    cv_logfile_close(f);
}

static int shared_lines, shared_bad, shared_names;
static void check_shared(const char *file)
{
    char *data = NULL, day[16];
    size_t len;
    if (cv_file_read(file, 1 << 20, &data, &len) != 0)
        abort();
    shared_names++;
    shared_bad += strlen(file) > strlen(path) + 11; /* "access.log.YYYY-MM-DD.1" */
    for (char *p = data; p < data + len; p += 5) {
        shared_lines++;
        /* The day that the file is named after, or the next one while the other process renamed. */
        int32_t at = SHARED_DAYS - 1, line = (int32_t)strtol(p + 1, NULL, 10);
        snprintf(day, sizeof(day), "%.10s", file + CV_MIN(strlen(file), strlen(path) + 1));
        if (strlen(file) > strlen(path) && cv_date_parse(day, 10, &at) == 0)
            at -= DAY;
        shared_bad += p[4] != '\n' || (line != at && line != at + 1);
    }
    cv_free(data);
}

/* A node and the one that takes over from it write one file: no line is lost, and what one has
 * started anew the other does not move away. */
static void test_two_processes(void)
{
    int there[2], back[2], status = 1;
    begin();
    if (pipe(there) != 0 || pipe(back) != 0)
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        write_days(there[0], back[1], 'c');
        _exit(0);
    }
    write_days(back[0], there[1], 'p');
    T_INT_EQ(waitpid(pid, &status, 0), pid);
    T_INT_EQ(status, 0);
    each_file(check_shared);
    T_INT_EQ(shared_lines, 2 * SHARED_DAYS);
    T_INT_EQ(shared_bad, 0);
    T_OK(shared_names <= SHARED_DAYS);
    for (int i = 0; i < 2; i++) {
        close(there[i]);
        close(back[i]);
    }
    end();
}

static void test_torn_line(void)
{
    struct cv_logfile *f;
    struct rlimit old, small = {0};
    begin();
    T_INT_EQ(cv_logfile_open(path, 0, DAY, &f), 0);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 10;
    setrlimit(RLIMIT_FSIZE, &small);
    size_t n;
    T_INT_EQ(cv_logfile_write(f, "0123456789abcdef\n", 17, never, NULL, &n), -EFBIG);
    T_INT_EQ(n, 10);
    setrlimit(RLIMIT_FSIZE, &old);
    put(f, "whole\n");
    T_STR_EQ(content("access.log"), "0123456789\nwhole\n");
    cv_logfile_close(f);
    end();
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    T_RUN(test_rotates_daily);
    T_RUN(test_rotates_at_start);
    T_RUN(test_retention);
    T_RUN(test_external_rotation);
    T_RUN(test_open_failures);
    T_RUN(test_stalled_pipe);
    T_RUN(test_two_processes);
    T_RUN(test_torn_line);
    return t_done();
}
