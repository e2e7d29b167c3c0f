#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/err.h"
#include "common/file.h"
#include "common/torture.h"

static char dir[] = "/tmp/culvert-test-file-XXXXXX";

static const char *in_dir(const char *name)
{
    static char paths[4][300];
    static unsigned next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof(paths[0]), "%s/%s", dir, name);
    return p;
}

static size_t count_entries(const char *path)
{
    DIR *d = opendir(path);
    size_t n = 0;
    struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    if (d != NULL)
        closedir(d);
    return n;
}

static void expect_content(const char *path, const char *want, size_t want_len)
{
    char *data = NULL;
    size_t len = 0;
    T_REQUIRE(cv_file_read(path, 1 << 20, &data, &len) == 0);
    T_INT_EQ(len, want_len);
    T_MEM_EQ(data, want, CV_MIN(len, want_len));
    T_INT_EQ(data[len], 0);
    cv_free(data);
}

static void write_then_read(void)
{
    const char *path = in_dir("a");
    T_INT_EQ(cv_file_write_atomic(path, "one", 3, 0600), 0);
    expect_content(path, "one", 3);
    T_INT_EQ(cv_file_write_atomic(path, "two\0x", 5, 0644), 0);
    expect_content(path, "two\0x", 5);
    T_INT_EQ(cv_file_write_atomic(path, NULL, 0, 0600), 0);
    expect_content(path, "", 0);
    T_INT_EQ(count_entries(dir), 1);
    unlink(path);
}

static void mode_is_exact_whatever_the_umask(void)
{
    const char *path = in_dir("m");
    struct stat st;
    mode_t old = umask(077);
    T_INT_EQ(cv_file_write_atomic(path, "x", 1, 0644), 0);
    umask(0);
    T_INT_EQ(stat(path, &st), 0);
    T_INT_EQ(st.st_mode & 07777, 0644);
    T_INT_EQ(cv_file_write_atomic(path, "x", 1, 0600), 0);
    umask(old);
    T_INT_EQ(stat(path, &st), 0);
    T_INT_EQ(st.st_mode & 07777, 0600);
    unlink(path);
}

static void limit_is_exact(void)
{
    const char *path = in_dir("l");
    char *big = cv_zalloc(40000), *data = NULL;
    size_t len;
    memset(big, 'q', 40000);
    T_INT_EQ(cv_file_write_atomic(path, big, 40000, 0600), 0);
    T_INT_EQ(cv_file_read(path, 39999, &data, &len), CV_E_LIMIT);
    T_INT_EQ(cv_file_read(path, 0, &data, &len), CV_E_LIMIT);
    T_OK(data == NULL);
    T_REQUIRE(cv_file_read(path, 40000, &data, &len) == 0);
    T_INT_EQ(len, 40000);
    T_MEM_EQ(data, big, 40000);
    cv_free(data);
    T_INT_EQ(cv_file_write_atomic(path, "", 0, 0600), 0);
    T_REQUIRE(cv_file_read(path, 0, &data, &len) == 0);
    T_INT_EQ(len, 0);
    cv_free(data);
    cv_free(big);
    unlink(path);
}

static void unreadable_things(void)
{
    char *data = NULL;
    size_t len;
    T_INT_EQ(cv_file_read(in_dir("none"), 10, &data, &len), -ENOENT);
    T_INT_EQ(cv_file_read(dir, 10, &data, &len), -EISDIR);
    T_OK(data == NULL);
}

static void standard_input(void)
{
    int fds[2], saved = dup(STDIN_FILENO);
    T_REQUIRE(pipe(fds) == 0);
    T_INT_EQ(write(fds[1], "from a pipe", 11), 11);
    close(fds[1]);
    dup2(fds[0], STDIN_FILENO);
    close(fds[0]);
    expect_content("-", "from a pipe", 11);
    if (saved >= 0) {
        dup2(saved, STDIN_FILENO);
        close(saved);
    }
}

static void parents_are_made(void)
{
    const char *path = in_dir("p/q/r/file");
    T_INT_EQ(cv_file_write_atomic(path, "deep", 4, 0600), 0);
    expect_content(path, "deep", 4);
    struct stat st;
    T_INT_EQ(stat(in_dir("p/q"), &st), 0);
    T_INT_EQ(st.st_mode & 07777, 0700);
    unlink(path);
    /* A file where a directory should be. */
    T_INT_EQ(cv_file_write_atomic(in_dir("p/f"), "x", 1, 0600), 0);
    T_INT_EQ(cv_file_write_atomic(in_dir("p/f/g"), "x", 1, 0600), -ENOTDIR);
    unlink(in_dir("p/f"));
    rmdir(in_dir("p/q/r"));
    rmdir(in_dir("p/q"));
    rmdir(in_dir("p"));
    T_INT_EQ(count_entries(dir), 0);
}

static void relative_path_and_bare_root(void)
{
    char cwd[4096];
    T_REQUIRE(getcwd(cwd, sizeof(cwd)) != NULL && chdir(dir) == 0);
    T_INT_EQ(cv_file_write_atomic("relative", "r", 1, 0600), 0);
    expect_content("relative", "r", 1);
    unlink("relative");
    T_INT_EQ(chdir(cwd), 0);
    T_INT_EQ(cv_file_write_atomic("/", "x", 1, 0600), -EISDIR);
    /* A parent that cannot be made: /proc takes no directories, whoever asks. */
    T_INT_EQ(cv_file_write_atomic("/proc/culvert-test/f", "x", 1, 0600), -ENOENT);
}

static void only_files_are_replaced(void)
{
    mkdir(in_dir("d"), 0700);
    T_INT_EQ(cv_file_write_atomic(in_dir("d"), "x", 1, 0600), -EISDIR);
    T_INT_EQ(cv_file_write_atomic(in_dir("d/"), "x", 1, 0600), -EISDIR);
    T_INT_EQ(count_entries(in_dir("d")), 0);
    rmdir(in_dir("d"));
    mkfifo(in_dir("fifo"), 0600);
    T_INT_EQ(cv_file_write_atomic(in_dir("fifo"), "x", 1, 0600), -EINVAL);
    unlink(in_dir("fifo"));
    T_INT_EQ(cv_file_write_atomic("/dev/null", "x", 1, 0600), -EINVAL);
    T_INT_EQ(cv_file_write_atomic("", "x", 1, 0600), -ENOENT);
    T_INT_EQ(count_entries(dir), 0);
}

static void symlink_is_replaced_not_followed(void)
{
    const char *victim = in_dir("victim"), *link = in_dir("link");
    T_INT_EQ(cv_file_write_atomic(victim, "untouched", 9, 0600), 0);
    T_INT_EQ(symlink(victim, link), 0);
    T_INT_EQ(cv_file_write_atomic(link, "new", 3, 0600), 0);
    expect_content(victim, "untouched", 9);
    expect_content(link, "new", 3);
    unlink(victim);
    unlink(link);
}

static void paths_that_are_too_long(void)
{
    char *path = cv_alloc(6000);
    memset(path, 'a', 5999);
    path[0] = '/';
    path[5999] = '\0';
    T_INT_EQ(cv_file_write_atomic(path, "x", 1, 0600), -ENAMETOOLONG);
    cv_free(path);
}

static void stamps_see_replacement(void)
{
    const char *path = in_dir("s");
    struct cv_file_stamp a, b;
    T_INT_EQ(cv_file_stamp(path, &a), -ENOENT);
    T_INT_EQ(cv_file_write_atomic(path, "one", 3, 0600), 0);
    T_INT_EQ(cv_file_stamp(path, &a), 0);
    T_INT_EQ(cv_file_stamp(path, &b), 0);
    T_OK(cv_file_stamp_equal(&a, &b));
    T_INT_EQ(a.size, 3);
    T_INT_EQ(cv_file_write_atomic(path, "two", 3, 0600), 0);
    T_INT_EQ(cv_file_stamp(path, &b), 0);
    T_OK(!cv_file_stamp_equal(&a, &b));
    unlink(path);
}

static void failures_leave_the_old_file_and_nothing_else(void)
{
#ifdef CV_TORTURE
    const char *path = in_dir("t");
    cv_torture_arm(0);
    T_INT_EQ(cv_file_write_atomic(path, "old", 3, 0600), 0);
    int ret;
    uint64_t n = 0;
    do {
        cv_torture_arm(++n);
        ret = cv_file_write_atomic(path, "new", 3, 0600);
        cv_torture_arm(0);
        T_INT_EQ(count_entries(dir), 1);
    } while (ret != 0 && n < 100);
    T_OK(n > 4 && n < 100);
    expect_content(path, "new", 3);

    n = 0;
    char *data = NULL;
    size_t len;
    do {
        cv_torture_arm(++n);
        ret = cv_file_read(path, 100, &data, &len);
    } while (ret != 0 && n < 100);
    cv_torture_arm(0);
    T_OK(n > 2 && n < 100);
    cv_free(data);
    unlink(path);
#else
    /* Without fault injection: a directory that takes no files. */
    if (geteuid() != 0) {
        mkdir(in_dir("ro"), 0500);
        T_INT_EQ(cv_file_write_atomic(in_dir("ro/f"), "x", 1, 0600), -EACCES);
        rmdir(in_dir("ro"));
    }
    T_INT_EQ(count_entries(dir), 0);
#endif
}

int main(void)
{
    if (mkdtemp(dir) == NULL)
        return 1;
    T_RUN(write_then_read);
    T_RUN(mode_is_exact_whatever_the_umask);
    T_RUN(limit_is_exact);
    T_RUN(unreadable_things);
    T_RUN(standard_input);
    T_RUN(parents_are_made);
    T_RUN(relative_path_and_bare_root);
    T_RUN(only_files_are_replaced);
    T_RUN(symlink_is_replaced_not_followed);
    T_RUN(paths_that_are_too_long);
    T_RUN(stamps_see_replacement);
    T_RUN(failures_leave_the_old_file_and_nothing_else);
    rmdir(dir);
    return t_done();
}
