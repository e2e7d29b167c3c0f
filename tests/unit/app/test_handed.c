#include "app/handed.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "tap.h"

static struct cv_takeover_item item(enum cv_takeover_kind kind, const char *listen,
                                    const char *name, uint16_t n)
{
    struct cv_takeover_item i = {.kind = kind, .n_fds = n};
    snprintf(i.listen, sizeof(i.listen), "%s", listen);
    snprintf(i.name, sizeof(i.name), "%s", name);
    return i;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void test_take(void)
{
    struct cv_handed h = {.owned = true};
    int fds[3] = {dup(2), dup(2), dup(2)}, got[CV_TAKEOVER_FDS_MAX];
    struct cv_takeover_item a = item(CV_TAKEOVER_ADDRESS, "127.0.0.1:0", "a", 2);
    struct cv_takeover_item b = item(CV_TAKEOVER_ADDRESS, "127.0.0.1:0", "b", 1);
    T_INT_EQ(cv_handed_add(&h, &a, fds), 0);
    T_INT_EQ(cv_handed_add(&h, &b, fds + 2), 0);
    T_INT_EQ(h.v[1]->about.index, 1);
    T_OK(cv_handed_find(&h, CV_TAKEOVER_ADMIN, "127.0.0.1:0", NULL) == NULL);
    T_OK(cv_handed_find(&h, CV_TAKEOVER_ADDRESS, "127.0.0.1:0", "b") == h.v[1]);
    struct cv_handed_item *first = cv_handed_find(&h, CV_TAKEOVER_ADDRESS, "127.0.0.1:0", NULL);
    T_OK(first == h.v[0]);
    T_INT_EQ(cv_handed_take(first, got), 2);
    T_OK(got[0] == fds[0] && got[1] == fds[1]);
    T_OK(cv_handed_find(&h, CV_TAKEOVER_ADDRESS, "127.0.0.1:0", "a") == NULL);
    cv_handed_done(&h);
    /* What was taken stays open, the rest does not. */
    T_OK(is_open(fds[0]) && is_open(fds[1]) && !is_open(fds[2]));
    close(fds[0]);
    close(fds[1]);
    cv_handed_done(&h);
}

static void test_borrowed(void)
{
    struct cv_handed h = {0};
    int fd = dup(2);
    struct cv_takeover_item a = item(CV_TAKEOVER_PASSED, "fd:x", "x", 1);
    T_INT_EQ(cv_handed_add(&h, &a, &fd), 0);
    cv_handed_done(&h);
    T_OK(is_open(fd));
    close(fd);
}

static void test_files(void)
{
    struct cv_handed h = {0};
    char path[] = "/tmp/cv-handed-XXXXXX", other[80];
    struct stat sb;
    int fd = mkstemp(path);
    T_INT_EQ(fstat(fd, &sb), 0);
    struct cv_takeover_item a = item(CV_TAKEOVER_UNIX, "unix:elsewhere", "x", 1);
    a.dev = sb.st_dev;
    a.ino = sb.st_ino;
    T_INT_EQ(cv_handed_add(&h, &a, &fd), 0);
    T_OK(cv_handed_find_file(&h, CV_TAKEOVER_UNIX, path) == h.v[0]);
    T_OK(cv_handed_find_file(&h, CV_TAKEOVER_CONTROL, path) == NULL);
    snprintf(other, sizeof(other), "%s.other", path);
    T_OK(cv_handed_find_file(&h, CV_TAKEOVER_UNIX, other) == NULL);
    T_INT_EQ(rename(path, other), 0);
    T_OK(cv_handed_find_file(&h, CV_TAKEOVER_UNIX, other) == h.v[0]);
    cv_handed_done(&h);
    unlink(other);
    close(fd);
}

static void test_full(void)
{
    struct cv_handed h = {0};
    int fd = 2;
    struct cv_takeover_item a = item(CV_TAKEOVER_ADDRESS, "x", "x", 1);
    for (int i = 0; i < CV_TAKEOVER_ITEMS_MAX; i++)
        T_INT_EQ(cv_handed_add(&h, &a, &fd), 0);
    T_INT_EQ(cv_handed_add(&h, &a, &fd), CV_E_LIMIT);
    cv_handed_done(&h);
}

int main(void)
{
    T_RUN(test_take);
    T_RUN(test_borrowed);
    T_RUN(test_files);
    T_RUN(test_full);
    return t_done();
}
