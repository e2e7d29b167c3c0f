#include "control/watch.h"

#include <errno.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/sys.h"

#include "common/poison.h"

#define WATCH_MASK                                                                                 \
    (IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK)

static void on_inotify(struct cv_io *io, unsigned events);
static void on_poll(struct cv_timer *t);
static void watch_dir(struct cv_watch *w);
static bool look(struct cv_watch *w);

void cv_watch_start(struct cv_watch *w, struct cv_loop *loop, const char *path, int64_t poll_ms,
                    cv_watch_cb cb)
{
    *w = (struct cv_watch){
        ._loop = loop, ._cb = cb, ._fd = -1, ._wd = -1, ._poll_ms = poll_ms > 0 ? poll_ms : 1000};
    w->_path = cv_strdup(path);
    char *slash = strrchr(w->_path, '/');
    w->_base = slash != NULL ? slash + 1 : w->_path;
    if (slash == NULL)
        w->_dir = cv_strdup(".");
    else
        w->_dir =
            slash == w->_path ? cv_strdup("/") : cv_strndup(w->_path, (size_t)(slash - w->_path));
    cv_timer_init(&w->_timer, on_poll);

    w->_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (w->_fd >= 0 && cv_io_add(loop, &w->_io, w->_fd, on_inotify) != 0) {
        cv_sys_close(w->_fd);
        w->_fd = -1;
    }
    watch_dir(w);
    (void)look(w);
    cv_loop_timer(loop, &w->_timer, w->_poll_ms);
}

static void watch_dir(struct cv_watch *w)
{
    if (w->_fd < 0)
        return;
    int wd = inotify_add_watch(w->_fd, w->_dir, WATCH_MASK);
    w->_wd = wd >= 0 ? wd : -1;
}

/* Take the stamp; true if it differs from the last one. */
static bool look(struct cv_watch *w)
{
    struct cv_file_stamp stamp = {0};
    bool present = cv_file_stamp(w->_path, &stamp) == 0;
    bool changed = present != w->_present || (present && !cv_file_stamp_equal(&stamp, &w->_stamp));
    w->_present = present;
    w->_stamp = stamp;
    return changed;
}

/* What one event says. */
enum news {
    NEWS_NONE = 0,
    NEWS_MAYBE, /* something else in the directory: ask stat */
    NEWS_FILE,  /* the file itself: read it, whatever stat says (time stamps are coarse) */
};

static enum news judge(struct cv_watch *w, const struct inotify_event *ev)
{
    if ((ev->mask & IN_Q_OVERFLOW) != 0)
        return NEWS_FILE;
    if (ev->wd != w->_wd)
        return NEWS_NONE; /* of a watch that was removed */
    if ((ev->mask & (IN_DELETE_SELF | IN_MOVE_SELF)) != 0) {
        /* The path may lead to another directory by now; the next look adds that one. */
        (void)inotify_rm_watch(w->_fd, w->_wd);
        w->_wd = -1;
        return NEWS_MAYBE;
    }
    if ((ev->mask & IN_IGNORED) != 0) {
        w->_wd = -1;
        return NEWS_NONE;
    }
    if ((ev->mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) == 0)
        return NEWS_NONE;
    return ev->len > 0 && strcmp(ev->name, w->_base) == 0 ? NEWS_FILE : NEWS_MAYBE;
}

static void on_inotify(struct cv_io *io, unsigned events)
{
    struct cv_watch *w = CV_CONTAINER_OF(io, struct cv_watch, _io);
    enum news news = NEWS_NONE;
    char buf[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    (void)events;
    for (;;) {
        ssize_t n = read(w->_fd, buf, sizeof(buf));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        for (size_t off = 0; off + sizeof(struct inotify_event) <= (size_t)n;) {
            const struct inotify_event *ev = (const void *)(buf + off);
            enum news one = judge(w, ev);
            news = CV_MAX(news, one);
            off += sizeof(*ev) + ev->len;
        }
    }
    bool changed = look(w);
    if (news == NEWS_FILE || (news == NEWS_MAYBE && changed))
        w->_cb(w);
}

static void on_poll(struct cv_timer *t)
{
    struct cv_watch *w = CV_CONTAINER_OF(t, struct cv_watch, _timer);
    cv_loop_timer(w->_loop, &w->_timer, w->_poll_ms);
    if (w->_wd < 0)
        watch_dir(w);
    if (look(w) || w->retry)
        w->_cb(w);
}

bool cv_watch_is_live(const struct cv_watch *w)
{
    return w->_wd >= 0;
}

void cv_watch_stop(struct cv_watch *w)
{
    if (w->_loop == NULL)
        return;
    cv_loop_timer_stop(w->_loop, &w->_timer);
    cv_io_del(&w->_io);
    cv_sys_close(w->_fd);
    w->_fd = -1;
    w->_wd = -1;
    w->_loop = NULL;
    CV_FREE(w->_path);
    CV_FREE(w->_dir);
}
