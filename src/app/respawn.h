/* Starting this program once more, from the file that it was started from: an upgrade has put the
 * new version there. */
#pragma once

#include <sys/types.h>

#include "common/defs.h"

/* The path of this program's file, to be asked for at start: later its name may be another file.
 * Returns 'out', "" when unknown. */
char *cv_respawn_path(char *out, size_t cap);
/* Start 'path' with 'argv' (ends with NULL), our environment and folder, no descriptors but the
 * standard ones, and no signal blocked or ignored. 0 and the child, which is to be waited for; or
 * -errno. */
int cv_respawn(const char *path, char *const argv[], pid_t *ret_pid) CV_MUST_CHECK;
