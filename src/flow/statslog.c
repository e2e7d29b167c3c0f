#include "flow/statslog.h"

#include <string.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "flow/record.h"

#include "common/poison.h"

#define LINE_MAX_BYTES (16u << 10)

/* What a row had the last time. Rows are never removed and listed in the order in which they were
 * made, so their place in that order names them. */
struct last {
    uint64_t up, down;
};

struct lasts {
    struct last *v; /* owned */
    size_t n;
};

struct cv_statslog {
    struct cv_registry *registry;
    struct lasts listeners, egresses;
    struct cv_buf line;

    /* During one write. */
    struct cv_alog_stream *out;
    const char *node_id;
    int64_t unix_s;
    size_t at;
};

struct cv_statslog *cv_statslog_new(struct cv_registry *registry)
{
    struct cv_statslog *sl = cv_zalloc(sizeof(*sl));
    sl->registry = registry;
    cv_buf_init(&sl->line, LINE_MAX_BYTES);
    return sl;
}

void cv_statslog_free(struct cv_statslog *sl)
{
    if (sl == NULL)
        return;
    cv_free(sl->listeners.v);
    cv_free(sl->egresses.v);
    cv_buf_done(&sl->line);
    cv_free(sl);
}

/* The place for row 'at'; NULL without memory, then its deltas are those since the start. */
static struct last *last_of(struct lasts *l, size_t at)
{
    if (at >= l->n) {
        size_t n = CV_MAX(2 * l->n, at + 8);
        struct last *v = cv_try_realloc_array(l->v, n, sizeof(*v));
        if (v == NULL)
            return NULL;
        memset(v + l->n, 0, (n - l->n) * sizeof(*v));
        l->v = v;
        l->n = n;
    }
    return &l->v[at];
}

/* What was sniffed, by outcome; the protocols of a match in one number. */
static void put_sniffed(struct cv_record *r, const struct cv_counter *sniff)
{
    static const char *const keys[CV_SNIFF_OUTCOMES] = {
        [CV_SNIFF_UNSUPPORTED] = "sniff_unsupported_total",
        [CV_SNIFF_TIMEOUT] = "sniff_timeout_total",
        [CV_SNIFF_MALFORMED] = "sniff_malformed_total",
        [CV_SNIFF_LIMIT] = "sniff_limit_exceeded_total",
        [CV_SNIFF_INCOMPLETE] = "sniff_incomplete_total",
    };
    cv_record_uint(r, "sniff_matched_total",
                   cv_counter_get(&sniff[CV_SNIFF_TLS]) + cv_counter_get(&sniff[CV_SNIFF_HTTP]) +
                       cv_counter_get(&sniff[CV_SNIFF_QUIC]));
    for (size_t i = 0; i < CV_SNIFF_OUTCOMES; i++)
        if (keys[i] != NULL)
            cv_record_uint(r, keys[i], cv_counter_get(&sniff[i]));
}

/* 'sniff' NULL: nothing is sniffed there. */
static void write_row(struct cv_statslog *sl, struct lasts *lasts, const char *kind,
                      const char *key, const char *name, const struct cv_row_stats *row,
                      const struct cv_counter *sniff)
{
    uint64_t up = cv_counter_get(&row->bytes_up), down = cv_counter_get(&row->bytes_down);
    int64_t active = cv_gauge_get(&row->active);
    struct last zero = {0}, *last = last_of(lasts, sl->at++);
    if (last == NULL)
        last = &zero;

    struct cv_record r;
    cv_buf_consume(&sl->line, cv_buf_len(&sl->line));
    cv_record_begin(&r, &sl->line);
    cv_record_uint(&r, "timestamp", (uint64_t)CV_MAX(sl->unix_s, 0));
    cv_record_str(&r, "node_id", sl->node_id, strlen(sl->node_id));
    cv_record_str(&r, "kind", kind, strlen(kind));
    cv_record_str(&r, key, name, strlen(name));
    cv_record_uint(&r, "active_connections", (uint64_t)CV_MAX(active, 0));
    cv_record_uint(&r, "bytes_up_total", up);
    cv_record_uint(&r, "bytes_down_total", down);
    cv_record_uint(&r, "bytes_up_delta", up - last->up);
    cv_record_uint(&r, "bytes_down_delta", down - last->down);
    last->up = up;
    last->down = down;
    if (sniff != NULL)
        put_sniffed(&r, sniff);
    if (cv_record_end(&r) == 0)
        cv_alog_line(sl->out, (const char *)cv_buf_data(&sl->line), cv_buf_len(&sl->line));
}

static void on_listener(void *arg, struct cv_listener_stats *s)
{
    struct cv_statslog *sl = arg;
    write_row(sl, &sl->listeners, "stats", "listener", s->name, &s->row, s->sniff);
}

static bool was_used(const struct cv_row_stats *row)
{
    uint64_t n = cv_counter_get(&row->sessions);
    for (size_t i = 0; i < CV_STAGE_MAX; i++)
        n += cv_counter_get(&row->refused[i]);
    return n > 0;
}

static void on_egress(void *arg, const char *label, struct cv_egress_stats *s)
{
    struct cv_statslog *sl = arg;
    if (was_used(&s->row))
        write_row(sl, &sl->egresses, "egress_stats", "egress", label, &s->row, NULL);
    else
        sl->at++;
}

void cv_statslog_write(struct cv_statslog *sl, struct cv_alog_stream *out, const char *node_id,
                       int64_t unix_s)
{
    sl->out = out;
    sl->node_id = node_id;
    sl->unix_s = unix_s;
    sl->at = 0;
    cv_registry_each_listener(sl->registry, on_listener, sl);
    sl->at = 0;
    cv_registry_each_egress(sl->registry, on_egress, sl);
}
