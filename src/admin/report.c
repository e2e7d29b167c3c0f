#include "admin/report.h"

#include <stdio.h>
#include <unistd.h>

#include "admin/tunnels.h"
#include "common/clock.h"
#include "common/err.h"
#include "control/sync.h"

#include "common/poison.h"

#define MEMBERS_MAX 2000 /* in one answer */

struct listeners {
    const struct cv_admin_view *view;
    struct cv_jsonw *w;
    uint32_t n;
};

static void count_listener(void *arg, const struct cv_admin_listener *l)
{
    struct listeners *ls = arg;
    (void)l;
    ls->n++;
}

/* Names of readiness and of what it is made of, shared by the probes and the status. */
static void put_readiness(struct cv_jsonw *w, const struct cv_readiness *r)
{
    cv_jsonw_str(w, "status", cv_status_name(r->status));
    cv_jsonw_bool(w, "ready", r->status == CV_STATUS_READY);
    if (r->reason[0] != '\0')
        cv_jsonw_str(w, "reason", r->reason);
    cv_jsonw_str(w, "version", CV_VERSION);
}

int cv_report_probe(const struct cv_admin_view *v, struct cv_buf *buf, bool *ret_ready)
{
    struct cv_jsonw w;
    struct cv_readiness r;
    struct cv_source_status st;
    struct listeners ls = {0};

    v->readiness(v->arg, &r);
    cv_source_status(v->source, &st);
    v->each_listener(v->arg, count_listener, &ls);
    cv_jsonw_init(&w, buf);
    cv_jsonw_object(&w, NULL);
    put_readiness(&w, &r);
    cv_jsonw_object(&w, "snapshot");
    cv_jsonw_bool(&w, "loaded", st.loaded);
    cv_jsonw_uint(&w, "version", st.version);
    cv_jsonw_uint(&w, "schema_version", 1);
    cv_jsonw_object_end(&w);
    cv_jsonw_object(&w, "data_plane");
    cv_jsonw_bool(&w, "required", true);
    cv_jsonw_uint(&w, "active_listeners", ls.n);
    cv_jsonw_object_end(&w);
    cv_jsonw_object_end(&w);
    *ret_ready = r.status == CV_STATUS_READY;
    return cv_jsonw_end(&w);
}

/* Unix milliseconds as text, null for never. */
static void put_time(struct cv_jsonw *w, const char *key, int64_t unix_ms)
{
    char text[CV_CLOCK_STRLEN];
    cv_jsonw_str(w, key, unix_ms != 0 ? cv_clock_format(unix_ms, text) : NULL);
}

static void put_error(struct cv_jsonw *w, const struct cv_source_status *st)
{
    if (!st->has_error) {
        cv_jsonw_null(w, "last_error");
        return;
    }
    char where[40];
    snprintf(where, sizeof(where), "line %u, column %u", st->line, st->column);
    cv_jsonw_object(w, "last_error");
    cv_jsonw_str(w, "where", st->line != 0 ? where : st->error_path);
    cv_jsonw_str(w, "path", st->error_path);
    cv_jsonw_str(w, "text", st->error_text);
    cv_jsonw_uint(w, "line", st->line);
    cv_jsonw_uint(w, "column", st->column);
    put_time(w, "since", st->last_error_ms);
    cv_jsonw_object_end(w);
}

static void put_sync(struct cv_jsonw *w, const struct cv_admin_view *v)
{
    struct cv_sync_status st;
    if (v->sync == NULL || !v->sync(v->arg, &st)) {
        cv_jsonw_null(w, "control_plane");
        return;
    }
    cv_jsonw_object(w, "control_plane");
    cv_jsonw_str(w, "url", st.url);
    cv_jsonw_bool(w, "busy", st.busy);
    cv_jsonw_bool(w, "long_poll", st.waits);
    cv_jsonw_bool(w, "signed", st.is_signed);
    cv_jsonw_uint(w, "http_status", st.last_http_status);
    put_time(w, "last_success", st.last_success_ms);
    cv_jsonw_uint(w, "requests", st.requests);
    cv_jsonw_uint(w, "updates", st.updates);
    cv_jsonw_uint(w, "failures", st.failures);
    cv_jsonw_uint(w, "failures_in_a_row", st.failures_in_a_row);
    cv_jsonw_int(w, "next_in_ms", st.next_in_ms);
    cv_jsonw_object_end(w);
}

static void put_snapshot(struct cv_jsonw *w, const struct cv_admin_view *v)
{
    struct cv_source_status st;
    cv_source_status(v->source, &st);
    cv_jsonw_object(w, "snapshot");
    cv_jsonw_bool(w, "loaded", st.loaded);
    cv_jsonw_uint(w, "version", st.version);
    cv_jsonw_uint(w, "users", st.users);
    cv_jsonw_uint(w, "policies", st.policies);
    cv_jsonw_uint(w, "egresses", st.egresses);
    cv_jsonw_uint(w, "selectors", st.selectors);
    cv_jsonw_str(w, "file", st.file);
    cv_jsonw_str(w, "cache", st.cache[0] != '\0' ? st.cache : NULL);
    cv_jsonw_bool(w, "from_cache", st.from_cache);
    put_time(w, "loaded_at", st.loaded_ms);
    put_time(w, "last_attempt", st.last_attempt_ms);
    cv_jsonw_int(w, "compile_us", st.last_compile_us);
    cv_jsonw_uint(w, "failures", st.failures);
    put_error(w, &st);
    cv_jsonw_str(w, "cache_error", st.cache_error[0] != '\0' ? st.cache_error : NULL);
    put_sync(w, v);
    cv_jsonw_object_end(w);
}

static void put_row(struct cv_jsonw *w, const struct cv_row_stats *row)
{
    cv_jsonw_int(w, "active", cv_gauge_get(&row->active));
    cv_jsonw_uint(w, "sessions", cv_counter_get(&row->sessions));
    cv_jsonw_uint(w, "bytes_up", cv_counter_get(&row->bytes_up));
    cv_jsonw_uint(w, "bytes_down", cv_counter_get(&row->bytes_down));
}

static void put_certificates(struct cv_jsonw *w, const struct cv_admin_listener *l)
{
    cv_jsonw_array(w, "certificates");
    for (size_t i = 0; i < cv_tls_server_ctx_count(l->tls_ctx); i++) {
        struct cv_tls_cert_info info;
        cv_tls_server_ctx_cert(l->tls_ctx, i, &info);
        cv_jsonw_object(w, NULL);
        cv_jsonw_str(w, "file", info.cert_file);
        put_time(w, "not_before", info.not_before_s * 1000);
        put_time(w, "not_after", info.not_after_s * 1000);
        cv_jsonw_object_end(w);
    }
    cv_jsonw_array_end(w);
    cv_jsonw_str(w, "tls_error", l->tls_error);
}

static void put_listener(void *arg, const struct cv_admin_listener *l)
{
    struct listeners *ls = arg;
    const struct cv_listener_stats *s =
        cv_registry_listener(ls->view->registry, l->name, l->protocol);
    cv_jsonw_object(ls->w, NULL);
    cv_jsonw_str(ls->w, "name", l->name);
    cv_jsonw_str(ls->w, "protocol", l->protocol);
    cv_jsonw_str(ls->w, "address", l->address);
    cv_jsonw_bool(ls->w, "tls", l->tls);
    if (l->tls_ctx != NULL)
        put_certificates(ls->w, l);
    put_row(ls->w, &s->row);
    cv_jsonw_uint(ls->w, "accepted", cv_counter_get(&s->accepted));
    cv_jsonw_uint(ls->w, "rejected_full", cv_counter_get(&s->rejected_full));
    cv_jsonw_uint(ls->w, "rejected_source", cv_counter_get(&s->rejected_source));
    cv_jsonw_uint(ls->w, "rejected_handshakes", cv_counter_get(&s->rejected_handshakes));
    cv_jsonw_object_end(ls->w);
}

static void put_egress(void *arg, const char *label, struct cv_egress_stats *s)
{
    struct cv_jsonw *w = arg;
    cv_jsonw_object(w, NULL);
    cv_jsonw_str(w, "label", label);
    put_row(w, &s->row);
    cv_jsonw_object_end(w);
}

struct members {
    struct cv_jsonw *w;
    size_t n, left_out;
};

static void put_last_failure(struct cv_jsonw *w, const struct cv_member_info *i)
{
    if (i->err == 0)
        return;
    cv_jsonw_object(w, "last_failure");
    cv_jsonw_str(w, "stage", cv_stage_name(i->stage));
    cv_jsonw_str(w, "text", cv_err_text(i->err));
    cv_jsonw_object_end(w);
}

static void put_member(void *arg, const struct cv_member_info *i)
{
    struct members *ms = arg;
    struct cv_jsonw *w = ms->w;
    const struct cv_member *m = i->member;
    if (ms->n == MEMBERS_MAX) {
        ms->left_out++;
        return;
    }
    ms->n++;
    cv_jsonw_object(w, NULL);
    cv_jsonw_str(w, "egress", m->egress_id->s);
    if (m->id != NULL) {
        cv_jsonw_str(w, "member", m->id->s);
        cv_jsonw_uint(w, "priority", i->priority);
    }
    cv_jsonw_str(w, "label", m->label->s);
    cv_jsonw_str(w, "state", cv_member_state_name(i->state));
    if (i->state == CV_VITAL_DOWN)
        cv_jsonw_int(w, "retry_in_ms", i->retry_in_ms);
    cv_jsonw_bool(w, "checked", atomic_load_explicit(&m->checked, memory_order_relaxed));
    cv_jsonw_uint(w, "attempts", cv_counter_get(&m->attempts));
    cv_jsonw_uint(w, "established", cv_counter_get(&m->established));
    cv_jsonw_uint(w, "failed", cv_counter_get(&m->failed[CV_BLAME_EGRESS]));
    cv_jsonw_uint(w, "failed_unsure", cv_counter_get(&m->failed[CV_BLAME_UNSURE]));
    cv_jsonw_uint(w, "failed_target", cv_counter_get(&m->failed[CV_BLAME_TARGET]));
    cv_jsonw_uint(w, "probes", cv_counter_get(&m->probes));
    cv_jsonw_uint(w, "downs", cv_counter_get(&m->downs));
    cv_jsonw_uint(w, "checks", cv_counter_get(&m->checks));
    cv_jsonw_uint(w, "checks_failed", cv_counter_get(&m->checks_failed));
    put_last_failure(w, i);
    cv_jsonw_object_end(w);
}

static void put_members(struct cv_jsonw *w, const struct cv_admin_view *v)
{
    struct members ms = {.w = w};
    cv_jsonw_array(w, "members");
    v->each_member(v->arg, put_member, &ms);
    cv_jsonw_array_end(w);
    if (ms.left_out > 0)
        cv_jsonw_uint(w, "members_left_out", ms.left_out);
}

struct totals {
    uint64_t sessions, bytes_up, bytes_down;
};

/* Over all listeners that ever were, so that totals never fall. */
static void add_listener(void *arg, struct cv_listener_stats *s)
{
    struct totals *t = arg;
    t->sessions += cv_counter_get(&s->row.sessions);
    t->bytes_up += cv_counter_get(&s->row.bytes_up);
    t->bytes_down += cv_counter_get(&s->row.bytes_down);
}

static void put_totals(struct cv_jsonw *w, const struct cv_admin_view *v)
{
    struct totals t = {0};
    cv_registry_each_listener(v->registry, add_listener, &t);
    cv_jsonw_object(w, "totals");
    cv_jsonw_int(w, "active", cv_gauge_get(&v->node->stats.sessions));
    cv_jsonw_uint(w, "sessions", t.sessions);
    cv_jsonw_uint(w, "bytes_up", t.bytes_up);
    cv_jsonw_uint(w, "bytes_down", t.bytes_down);
    cv_jsonw_uint(w, "auth_failed", cv_counter_get(&v->node->stats.auth_failed));
    cv_jsonw_uint(w, "access_log_dropped", cv_counter_get(&v->node->stats.log_dropped));
    cv_jsonw_uint(w, "bugs", cv_bug_count());
    cv_jsonw_object_end(w);
}

int cv_report_status(const struct cv_admin_view *v, struct cv_buf *buf)
{
    struct cv_jsonw w;
    struct cv_readiness r;
    struct listeners ls = {.view = v, .w = &w};

    v->readiness(v->arg, &r);
    cv_jsonw_init(&w, buf);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_str(&w, "node_id", v->node_id);
    put_readiness(&w, &r);
    put_time(&w, "started", v->started_ms);
    cv_jsonw_int(&w, "uptime_s", CV_MAX(cv_clock_unix_ms() - v->started_ms, 0) / 1000);
    cv_jsonw_int(&w, "pid", getpid());
    cv_jsonw_uint(&w, "workers", v->n_workers);
    put_snapshot(&w, v);
    cv_jsonw_array(&w, "listeners");
    v->each_listener(v->arg, put_listener, &ls);
    cv_jsonw_array_end(&w);
    cv_jsonw_array(&w, "egresses");
    cv_registry_each_egress(v->registry, put_egress, &w);
    cv_jsonw_array_end(&w);
    put_members(&w, v);
    cv_admin_tunnels_report(&w, v);
    put_totals(&w, v);
    cv_jsonw_object_end(&w);
    return cv_jsonw_end(&w);
}
