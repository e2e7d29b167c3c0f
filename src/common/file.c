#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/rand.h"
#include "common/sys.h"
#include "common/torture.h"

#include "common/poison.h"

#define READ_CHUNK 16384

/* Read to the end of 'fd', at most 'max' bytes, into 'b' with a NUL behind them. */
static int read_all(int fd, size_t max, struct cv_buf *b)
{
    for (;;) {
        /* One byte above the maximum tells a file that is too long from one that just fits. */
        size_t left = max - cv_buf_len(b);
        size_t want = CV_MIN(left, (size_t)READ_CHUNK - 1) + 1;
        uint8_t *p;
        size_t room;
        int ret = cv_buf_reserve(b, want, &p, &room);
        if (ret != 0)
            return ret;
        ssize_t n = cv_torture_fail("read") ? (errno = EIO, -1) : read(fd, p, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) {
            *p = '\0'; /* the reserved byte; 'want' is never 0 */
            return 0;
        }
        if ((size_t)n > left)
            return CV_E_LIMIT;
        cv_buf_commit(b, (size_t)n);
    }
}

int cv_file_read(const char *path, size_t max, char **ret_data, size_t *ret_len)
{
    CV_ASSERT(max < SIZE_MAX / 2);
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : cv_sys_open(path, O_RDONLY | O_NOCTTY, 0);
    if (fd < 0)
        return fd;
    struct cv_buf b;
    cv_buf_init(&b, max + 1);
    int ret = read_all(fd, max, &b);
    if (!is_stdin)
        cv_sys_close(fd);
    if (ret == 0) {
        size_t len = cv_buf_len(&b);
        *ret_data = (char *)cv_buf_steal(&b);
        *ret_len = len;
    }
    cv_buf_done(&b);
    return ret;
}

int cv_file_make_parents(const char *path)
{
    char dir[PATH_MAX];
    size_t len = strlen(path);
    if (len >= sizeof(dir))
        return -ENAMETOOLONG;
    memcpy(dir, path, len + 1);
    for (char *p = dir + 1; *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
            /* A read-only or foreign parent that exists is fine. */
            int err = errno;
            struct stat st;
            if (stat(dir, &st) != 0)
                return -err;
        }
        *p = '/';
    }
    return 0;
}

static int sync_fd(int fd)
{
    if (cv_torture_fail("fsync"))
        return -EIO;
    return fsync(fd) == 0 ? 0 : -errno;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = cv_torture_fail("write") ? (errno = ENOSPC, -1) : write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Make the rename itself survive a crash. */
static int sync_parent(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == path)
        len = 1;
    if (len == 0) {
        dir[0] = '.';
        len = 1;
    } else {
        memcpy(dir, path, len);
    }
    dir[len] = '\0';
    int fd = cv_sys_open(dir, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return fd;
    int ret = sync_fd(fd);
    cv_sys_close(fd);
    /* Some file systems cannot do this for a directory and say so. */
    return ret == -EINVAL ? 0 : ret;
}

/* Write the whole file under its temporary name; 'fd' is closed in any case. */
static int fill(int fd, const void *data, size_t len, mode_t mode)
{
    int ret = write_all(fd, data, len);
    if (ret == 0 && fchmod(fd, mode) != 0) /* open() applied the umask */
        ret = -errno;
    if (ret == 0)
        ret = sync_fd(fd);
    if (close(fd) != 0 && ret == 0 && errno != EINTR)
        ret = -errno;
    return ret;
}

int cv_file_write_atomic(const char *path, const void *data, size_t len, mode_t mode)
{
    /* rename() would put a file in place of a device or a socket, and fails late on a directory. */
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    int ret = cv_file_make_parents(path);
    if (ret != 0)
        return ret;

    char tmp[PATH_MAX];
    int n = snprintf(tmp, sizeof(tmp), "%s.%016llx.tmp", path, (unsigned long long)cv_rand_u64());
    if (n < 0 || (size_t)n >= sizeof(tmp))
        return -ENAMETOOLONG;
    int fd = cv_sys_open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fd;
    ret = fill(fd, data, len, mode);
    if (ret == 0 && (cv_torture_fail("rename") ? (errno = EIO, -1) : rename(tmp, path)) != 0)
        ret = -errno;
    if (ret != 0) {
        unlink(tmp);
        return ret;
    }
    return sync_parent(path);
}

int cv_file_stamp(const char *path, struct cv_file_stamp *ret_stamp)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return -errno;
    *ret_stamp = (struct cv_file_stamp){
        .dev = st.st_dev,
        .ino = st.st_ino,
        .size = st.st_size,
        .mtime_ns = st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec,
    };
    return 0;
}

bool cv_file_stamp_equal(const struct cv_file_stamp *a, const struct cv_file_stamp *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns;
}
