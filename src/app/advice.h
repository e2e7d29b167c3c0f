/* What is allowed and yet hardly meant: remarks on a config and a snapshot, for `culvert check`. */
#pragma once

#include <stdio.h>

#include "app/config.h"
#include "policy/snapshot.h"

/* Write a line for each remark, at most CV_ADVICE_MAX and how many were left out; 'path' names the
 * snapshot. 'config' may be NULL. Returns how many there are. */
#define CV_ADVICE_MAX 20
size_t cv_advice_write(FILE *out, const char *path, const struct cv_snapshot *s,
                       const char *config_path, const struct cv_config *config);
