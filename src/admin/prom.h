/* Writer of the Prometheus text format 0.0.4 into a cv_buf. A family is announced once (HELP and
 * TYPE) and its samples follow it. Label values are escaped as the format asks. The first failure
 * (the buffer's maximum, no memory) sticks and is returned by cv_prom_end(). */
#pragma once

#include "common/buf.h"

struct cv_prom_label {
    const char *name; /* a constant that needs no escaping */
    const char *val;
    size_t len;
};

struct cv_prom {
    struct cv_buf *_buf; /* borrowed */
    const char *_family; /* borrowed; the name that samples get */
    int _err;
};

void cv_prom_init(struct cv_prom *p, struct cv_buf *buf);
int cv_prom_end(struct cv_prom *p) CV_MUST_CHECK;

/* 'type' is "counter", "gauge" or "histogram". 'help' is one line without a backslash. */
void cv_prom_family(struct cv_prom *p, const char *name, const char *type, const char *help);
/* One sample of the running family. 'suffix' is "" or "_bucket", "_sum", "_count". */
void cv_prom_uint(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                  size_t n, uint64_t val);
void cv_prom_int(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                 size_t n, int64_t val);
/* A value of seconds that is given in microseconds. */
void cv_prom_seconds(struct cv_prom *p, const char *suffix, const struct cv_prom_label *labels,
                     size_t n, uint64_t us);
