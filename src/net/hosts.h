/* The hosts(5) file as a table in memory, so that a lookup costs no system call. The resolver asks
 * cv_hosts_refresh() now and then; only a file that was replaced is read again. A name that the
 * file knows is known for good: an address family that is missing there is not asked from DNS. */
#pragma once

#include "common/addr.h"

struct cv_hosts;
/* 'path' is copied. The file is read by the first refresh. */
int cv_hosts_new(const char *path, struct cv_hosts **ret_hosts) CV_MUST_CHECK;
void cv_hosts_free(struct cv_hosts *h);
/* Read the file again if it is another one than before. True if the table has changed. A missing
 * file is an empty table; lines that do not parse are skipped; what is beyond 8 MiB or 262144
 * names leaves the old table in force. */
bool cv_hosts_refresh(struct cv_hosts *h);
/* True if the canonical 'name' is in the file; *ret_n addresses of 'family' (maybe 0, at most
 * 'cap') are in 'ips'. */
bool cv_hosts_find(const struct cv_hosts *h, const char *name, enum cv_family family,
                   struct cv_ip *ips, size_t cap, size_t *ret_n);
