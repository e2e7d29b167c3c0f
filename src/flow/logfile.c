#include "flow/logfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/sys.h"

#include "common/poison.h"

#define DAY_LEN    10 /* "YYYY-MM-DD" */
#define POLL_MS    200
#define SAME_DAY   1000 /* files of one day at most */
#define FILE_MODE  0640
#define DIR_MODE   0750
#define DAY_MS     (24LL * 3600 * 1000)
#define SUFFIX_MAX 24

struct cv_logfile {
    char *path; /* owned */
    uint32_t retention_days;
    int fd;       /* -1 only within a rotation; standard output is not closed */
    bool regular; /* rotates */
    bool torn;    /* the last write stopped within a line */
    int32_t day;  /* of what the file holds */
};

static void day_text(int32_t day, char out[DAY_LEN + 1])
{
    char text[CV_CLOCK_STRLEN];
    cv_clock_format((int64_t)day * DAY_MS, text);
    memcpy(out, text, DAY_LEN);
    out[DAY_LEN] = '\0';
}

static int32_t local_day(time_t t, int32_t otherwise)
{
    struct tm tm;
    char text[32];
    int32_t day;
    if (localtime_r(&t, &tm) == NULL || strftime(text, sizeof(text), "%Y-%m-%d", &tm) == 0 ||
        cv_date_parse(text, strlen(text), &day) != 0)
        return otherwise;
    return day;
}

static void make_parents(const char *path)
{
    char *copy = cv_strdup(path);
    for (char *p = copy + 1; *p != '\0'; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        (void)mkdir(copy, DIR_MODE); /* opening tells if it is not there */
        *p = '/';
    }
    cv_free(copy);
}

static int open_append(const char *path)
{
    return cv_sys_open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOCTTY, FILE_MODE);
}

/* -- rotation -- */

/* If 'name' is '<base>.YYYY-MM-DD' or '<base>.YYYY-MM-DD.N', its day. */
static bool parse_rotated(const char *name, const char *base, size_t base_len, int32_t *ret_day)
{
    if (strncmp(name, base, base_len) != 0 || name[base_len] != '.')
        return false;
    const char *date = name + base_len + 1;
    if (strlen(date) < DAY_LEN || cv_date_parse(date, DAY_LEN, ret_day) != 0)
        return false;
    const char *rest = date + DAY_LEN;
    if (*rest == '\0')
        return true;
    return *rest == '.' && rest[1] != '\0' && rest[1 + strspn(rest + 1, "0123456789")] == '\0';
}

static void sweep(const struct cv_logfile *f, int32_t today)
{
    if (f->retention_days == 0 || !f->regular)
        return;
    const char *slash = strrchr(f->path, '/');
    const char *base = slash != NULL ? slash + 1 : f->path;
    cv_auto_free char *dir_path = slash == NULL ? cv_strdup(".")
                                  : slash == f->path
                                      ? cv_strdup("/")
                                      : cv_strndup(f->path, (size_t)(slash - f->path));
    DIR *dir = opendir(dir_path);
    if (dir == NULL)
        return;
    struct dirent *e;
    while ((e = readdir(dir)) != NULL) {
        int32_t day;
        if (parse_rotated(e->d_name, base, strlen(base), &day) &&
            (int64_t)today - day > (int64_t)f->retention_days)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
    closedir(dir);
}

/* Give the file the name of its day. Never replaces a file: link(2) refuses an existing name. */
static int move_away(const struct cv_logfile *f)
{
    size_t size = strlen(f->path) + SUFFIX_MAX;
    cv_auto_free char *to = cv_alloc(size);
    char day[DAY_LEN + 1];
    day_text(f->day, day);
    for (int n = 0; n < SAME_DAY; n++) {
        if (n == 0)
            snprintf(to, size, "%s.%s", f->path, day);
        else
            snprintf(to, size, "%s.%s.%d", f->path, day, n);
        if (link(f->path, to) == 0)
            return unlink(f->path) == 0 ? 0 : -errno;
        if (errno == EEXIST)
            continue;
        if (errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK)
            return -errno;
        /* A file system without hard links. */
        if (access(to, F_OK) != 0)
            return rename(f->path, to) == 0 ? 0 : -errno;
    }
    return -EEXIST;
}

/* Replace the file. Another process may write the same one and see the same midnight (a node and
 * its successor): the lock on the open file lets one move it away, and the other then finds that
 * its file has another name already. Whoever finds it locked goes on with what it has and looks
 * again at its next line. */
static int rotate(struct cv_logfile *f, int32_t today)
{
    struct stat open_st, path_st;
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return 0;
    /* Whoever moved the file away, or emptied it, has rotated it already. */
    bool ours = fstat(f->fd, &open_st) == 0 && stat(f->path, &path_st) == 0 &&
                open_st.st_ino == path_st.st_ino && open_st.st_dev == path_st.st_dev;
    int ret = ours && open_st.st_size > 0 ? move_away(f) : 0;
    int fd = ret == 0 ? open_append(f->path) : ret;
    if (fd < 0) {
        (void)flock(f->fd, LOCK_UN);
        return fd;
    }
    cv_sys_close(f->fd); /* and the lock with it */
    f->fd = fd;
    f->day = today;
    return 0;
}

int cv_logfile_tick(struct cv_logfile *f, int32_t today)
{
    if (!f->regular || today == f->day)
        return 0;
    int ret = rotate(f, today);
    sweep(f, today);
    return ret;
}

/* -- life -- */

int cv_logfile_open(const char *path, uint32_t retention_days, int32_t today,
                    struct cv_logfile **ret_file)
{
    int ret = 0;
    struct stat st;
    struct cv_logfile *f = cv_zalloc(sizeof(*f));
    f->path = cv_strdup(path);
    f->retention_days = retention_days;
    f->fd = -1;
    f->day = today;
    if (strcmp(path, "-") == 0) {
        f->fd = STDOUT_FILENO;
        goto Exit;
    }
    make_parents(path);
    if ((ret = open_append(path)) < 0)
        goto Exit;
    f->fd = ret;
    ret = 0;
    if (fstat(f->fd, &st) < 0) {
        ret = -errno;
        goto Exit;
    }
    if (S_ISDIR(st.st_mode)) {
        ret = -EISDIR;
        goto Exit;
    }
    f->regular = S_ISREG(st.st_mode);
    if (f->regular && st.st_size > 0)
        f->day = local_day(st.st_mtime, today);
    if (f->day != today)
        ret = cv_logfile_tick(f, today);
    else
        sweep(f, today);
Exit:
    if (ret != 0) {
        cv_logfile_close(f);
        return ret;
    }
    *ret_file = f;
    return 0;
}

void cv_logfile_close(struct cv_logfile *f)
{
    if (f == NULL)
        return;
    if (f->fd != STDOUT_FILENO)
        cv_sys_close(f->fd);
    cv_free(f->path);
    cv_free(f);
}

/* -- writing -- */

static int write_all(int fd, const char *data, size_t len, size_t *ret_n)
{
    size_t done = 0;
    int ret = 0;
    while (done < len) {
        ssize_t n = write(fd, data + done, len - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR) {
            ret = -errno;
            break;
        }
    }
    *ret_n = done;
    return ret;
}

/* The longest piece of whole lines that a pipe takes at once when poll says it is writable. */
static size_t piece_len(const char *data, size_t len)
{
    if (len <= PIPE_BUF)
        return len;
    const char *end = memrchr(data, '\n', PIPE_BUF);
    return end != NULL ? (size_t)(end - data) + 1 : PIPE_BUF;
}

/* Standard output is shared with others, so it is not made non-blocking: a write of at most
 * PIPE_BUF bytes to a pipe that polls writable does not block. */
static int write_pieces(int fd, const char *data, size_t len, cv_logfile_give_up_cb give_up,
                        void *arg, size_t *ret_n)
{
    size_t done = 0;
    int ret = 0, wait_ms = 0;
    while (done < len && ret == 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int n = poll(&p, 1, wait_ms);
        if (n == 0 || (n < 0 && errno == EINTR)) {
            ret = give_up(arg) ? -ETIMEDOUT : 0; /* before waiting: there may be many to ask */
            wait_ms = POLL_MS;
            continue;
        }
        wait_ms = 0;
        size_t wrote;
        ret = write_all(fd, data + done, piece_len(data + done, len - done), &wrote);
        done += wrote;
        if (ret == -EAGAIN) /* somebody else made it non-blocking */
            ret = give_up(arg) ? -ETIMEDOUT : 0;
    }
    *ret_n = done;
    return ret;
}

int cv_logfile_write(struct cv_logfile *f, const char *data, size_t len,
                     cv_logfile_give_up_cb give_up, void *arg, size_t *ret_n)
{
    *ret_n = 0;
    size_t n = 0;
    if (f->torn) {
        /* What a full disk cut off stays a line of its own. */
        int ret = f->regular ? write_all(f->fd, "\n", 1, &n)
                             : write_pieces(f->fd, "\n", 1, give_up, arg, &n);
        if (ret != 0)
            return ret;
        f->torn = false;
    }
    int ret = f->regular ? write_all(f->fd, data, len, ret_n)
                         : write_pieces(f->fd, data, len, give_up, arg, ret_n);
    if (*ret_n > 0)
        f->torn = data[*ret_n - 1] != '\n';
    return ret;
}
