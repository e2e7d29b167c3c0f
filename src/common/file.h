/* Whole files: bounded reading and atomic writing. */
#pragma once

#include <sys/types.h>

#include "common/defs.h"

/* Read all of 'path' ("-" = standard input) into a new NUL-terminated buffer, owned by the caller
 * (cv_free). More than 'max' bytes: CV_E_LIMIT. Directories and unreadable files: -errno. */
int cv_file_read(const char *path, size_t max, char **ret_data, size_t *ret_len);

/* Replace 'path' by 'data' so that a reader or a crash sees the old file or the new one, never a
 * part: exclusive temporary file beside it, fsync, rename, fsync of the directory. Missing parent
 * directories are created (0700). A symbolic link is replaced, not followed; a directory, device,
 * FIFO or socket is refused. The mode is exact, whatever the umask. 0 or -errno; the temporary file
 * is gone on failure. An error of the last step leaves the new file in place, though perhaps not
 * yet on disk. */
int cv_file_write_atomic(const char *path, const void *data, size_t len, mode_t mode);

/* Create the directories that lead to 'path' (0700). 0 or -errno. */
int cv_file_make_parents(const char *path) CV_MUST_CHECK;

/* Identity of a file's content as stat tells it; two equal stamps = nothing was replaced. */
struct cv_file_stamp {
    uint64_t dev, ino;
    int64_t size;
    int64_t mtime_ns;
};
int cv_file_stamp(const char *path, struct cv_file_stamp *ret_stamp); /* 0 or -errno */
bool cv_file_stamp_equal(const struct cv_file_stamp *a, const struct cv_file_stamp *b);
