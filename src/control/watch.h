/* Noticing that a file was replaced or rewritten: inotify on its directory, and stat(2) every
 * second beside it, because inotify is blind on network file systems, behind symbolic links into
 * other directories, and before the directory exists.
 *
 * What fires at once: a finished write to the file, a rename onto it, and anything renamed into the
 * directory that makes the file another one (the symbolic-link swap of Kubernetes). What the next
 * look of stat finds: everything else, deletion included, so that an editor which moves the old
 * file away before it writes the new one causes no false alarm. There is no debouncing: the owner
 * reads after each event, and an event that comes while it reads makes it read again, so the last
 * change is never lost. */
#pragma once

#include "common/file.h"
#include "net/loop.h"

struct cv_watch;
/* The file may have changed, appeared or gone: look at it now. May stop the watch. */
typedef void (*cv_watch_cb)(struct cv_watch *w);

struct cv_watch {
    struct cv_io _io;
    struct cv_timer _timer;
    struct cv_loop *_loop;
    cv_watch_cb _cb;
    char *_path;       /* owned */
    char *_dir;        /* owned */
    const char *_base; /* within _path */
    int _fd;           /* inotify; -1: none, stat only */
    int _wd;           /* -1: the directory is not watched (yet) */
    int64_t _poll_ms;
    bool _present;
    struct cv_file_stamp _stamp; /* of the last look */
    bool retry;                  /* set by the owner: call again at the next look in any case */
};

/* Start. The state of the file at this moment is what later changes are compared with, so the owner
 * reads after starting. Never fails: without inotify there is stat. 'poll_ms' 0 = 1000. */
void cv_watch_start(struct cv_watch *w, struct cv_loop *loop, const char *path, int64_t poll_ms,
                    cv_watch_cb cb);
/* Not started: nothing (a cleared struct is not started). */
void cv_watch_stop(struct cv_watch *w);
/* False: the kernel does not report changes, they are found by stat only. */
bool cv_watch_is_live(const struct cv_watch *w);
