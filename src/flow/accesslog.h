/* The access log: one JSON line per session and periodic stats lines, written by a thread of its
 * own so that a stalled disk or pipe never stops a worker.
 *
 * Each worker formats into a chunk of its own; full chunks, and chunks older than 100 ms, go to the
 * writer by a bounded queue. What finds the queue full is dropped and counted (a warning a minute).
 * To a file: "<file>" is opened for append, renamed to "<file>.YYYY-MM-DD" when the local day
 * changes, and files older than retention_days are removed. "-" is standard output, "" is off. */
#pragma once

#include "common/buf.h"
#include "flow/stats.h"
#include "net/loop.h"

struct cv_alog;        /* the writer, shared */
struct cv_alog_stream; /* one per thread that logs */

struct cv_alog_conf {
    const char *file;
    uint32_t retention_days; /* 0 = keep all */
};

int cv_alog_new(const struct cv_alog_conf *conf, struct cv_node_stats *stats,
                struct cv_alog **ret_alog) CV_MUST_CHECK;
/* Write what is queued, end the thread, free. All streams are closed before. */
void cv_alog_free(struct cv_alog *alog);
/* Change file and retention, and reopen the file (SIGHUP after an external rotation). */
int cv_alog_reopen(struct cv_alog *alog, const struct cv_alog_conf *conf) CV_MUST_CHECK;
bool cv_alog_is_on(const struct cv_alog *alog);

int cv_alog_stream_open(struct cv_alog *alog, struct cv_loop *loop,
                        struct cv_alog_stream **ret_stream) CV_MUST_CHECK;
void cv_alog_stream_close(struct cv_alog_stream *s); /* hands over what it has */
/* Append one line (without newline; it is added). */
void cv_alog_line(struct cv_alog_stream *s, const char *line, size_t len);
