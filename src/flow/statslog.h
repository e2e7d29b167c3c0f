/* Periodic lines of the access log: counters of each listener (kind "stats") and each egress that
 * was ever used (kind "egress_stats"), with what was added since the last time. Control thread. */
#pragma once

#include "flow/accesslog.h"
#include "flow/registry.h"

struct cv_statslog;

/* 'registry' is borrowed (outlives). */
struct cv_statslog *cv_statslog_new(struct cv_registry *registry);
void cv_statslog_free(struct cv_statslog *sl);
/* Write one line per row to 'out'. */
void cv_statslog_write(struct cv_statslog *sl, struct cv_alog_stream *out, const char *node_id,
                       int64_t unix_s);
