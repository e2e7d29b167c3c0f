/* The file behind the access log: append, daily rotation, retention. Used by one thread at a time;
 * several processes may write and rotate the same file.
 *
 * A regular file is renamed to "<path>.YYYY-MM-DD" (".1", ".2" ... behind it when that exists) when
 * the local day changes, also when that is noticed only at the next start. Pipes, terminals and
 * devices are written without rotation, in pieces that end with a line and that a pipe takes whole,
 * and without ever blocking for longer than the caller wants. */
#pragma once

#include "common/defs.h"

struct cv_logfile;

/* Opens, and rotates if the last line is of an earlier day. "-" is standard output. Missing parent
 * directories are created. 0 or -errno. */
int cv_logfile_open(const char *path, uint32_t retention_days, int32_t today,
                    struct cv_logfile **ret_file) CV_MUST_CHECK;
void cv_logfile_close(struct cv_logfile *f);

/* Asked now and then while a pipe takes nothing. */
typedef bool (*cv_logfile_give_up_cb)(void *arg);
/* Write whole lines. 0; -ETIMEDOUT when 'give_up' said so, -errno; *ret_n = bytes written in any
 * case. */
int cv_logfile_write(struct cv_logfile *f, const char *data, size_t len,
                     cv_logfile_give_up_cb give_up, void *arg, size_t *ret_n);
/* To be called before writing and now and then: rotate when the day has changed, and remove what
 * is too old then. 0, or -errno when the file could not be replaced: the old one goes on. */
int cv_logfile_tick(struct cv_logfile *f, int32_t today);
