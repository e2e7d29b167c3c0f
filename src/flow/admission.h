/* How many new connections a second the node takes, in all and from one source (an IPv4 address, or
 * the /64 of an IPv6 address). Twice as many as a second allows may come at once.
 *
 * Asked when a connection is accepted, before anything is spent on it. Memory is fixed: a table of
 * CV_ADMISSION_ENTRIES sources in which a new one takes the place of the one of eight that has been
 * quiet for longest. Any thread, no locks. */
#pragma once

#include "common/addr.h"

#define CV_ADMISSION_ENTRIES 65536

struct cv_admission;

struct cv_admission *cv_admission_new(void);
void cv_admission_free(struct cv_admission *a); /* NULL: nothing */

/* May a connection of 'client' come in? 0 = no such limit. A client without an address (a Unix
 * socket) counts for the node only. */
bool cv_admission_take(struct cv_admission *a, const struct cv_ip *client, uint64_t per_s,
                       uint64_t source_per_s, int64_t now_ms);
