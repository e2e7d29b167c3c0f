/* The lines of the access log as JSON, written without printf: one is made for each session, so it
 * has to cost less than a system call. Field reference: doc/access-log.md. */
#pragma once

#include "common/buf.h"
#include "flow/session.h"

/* A JSON object under construction at the end of a buffer. Optional fields are left out by their
 * writers, never written as null. The first failure sticks. */
struct cv_record {
    struct cv_buf *_buf; /* borrowed */
    int _err;
    bool _comma;
};

void cv_record_begin(struct cv_record *r, struct cv_buf *buf);
/* 'key' is a constant that needs no escaping. */
void cv_record_str(struct cv_record *r, const char *key, const char *val, size_t len);
void cv_record_uint(struct cv_record *r, const char *key, uint64_t val);
/* 0, or why the line is not usable. */
int cv_record_end(struct cv_record *r) CV_MUST_CHECK;

/* Replace what 'buf' holds by the line of a session that has ended, without the newline. */
int cv_record_session(struct cv_buf *buf, const struct cv_session *s, const char *node_id,
                      int64_t unix_s, int64_t duration_ms) CV_MUST_CHECK;
