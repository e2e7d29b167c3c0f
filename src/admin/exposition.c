#include "admin/exposition.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin/prom.h"
#include "admin/tunnels.h"
#include "common/alloc.h"
#include "common/err.h"
#include "common/sys.h"
#include "control/sync.h"

#include "common/poison.h"

/* The counters of one label, read once. */
struct row {
    const char *label; /* borrowed */
    size_t len;
    int64_t active;
    uint64_t sessions, bytes_up, bytes_down;
    uint64_t refused[CV_STAGE_MAX];
    uint64_t refused_all;                     /* of a user, whose stages are not counted */
    uint64_t accepted, rejected_full, pauses; /* of a listener */
    uint64_t rejected_source, rejected_handshakes;
    uint64_t sniff[CV_SNIFF_OUTCOMES];
    uint64_t bucket[CV_HISTOGRAM_BUCKETS], sum_us; /* of an egress */
};

struct table {
    struct row *rows; /* owned */
    size_t n, cap, max;
    struct row rest; /* the sum of those beyond 'max'; label NULL: there are none */
    const char *rest_label;
    int err;
};

static void table_init(struct table *t, size_t max, const char *rest_label)
{
    *t = (struct table){.max = max, .rest_label = rest_label};
}

static struct row *table_grow(struct table *t)
{
    if (t->n == t->cap) {
        size_t cap = CV_MIN(CV_MAX(t->cap * 2, (size_t)16), t->max);
        struct row *rows = cv_try_realloc_array(t->rows, cap, sizeof(*rows));
        if (rows == NULL) {
            t->err = -ENOMEM;
            return NULL;
        }
        t->rows = rows;
        t->cap = cap;
    }
    t->rows[t->n] = (struct row){0};
    return &t->rows[t->n++];
}

/* The row to add to: one of its own, or that of the rest. NULL: no memory. */
static struct row *table_row(struct table *t, const char *label, size_t len)
{
    struct row *r = t->n < t->max ? table_grow(t) : &t->rest;
    if (r == NULL)
        return NULL;
    r->label = r == &t->rest ? t->rest_label : label;
    r->len = r == &t->rest ? strlen(t->rest_label) : len;
    return r;
}

static const struct row *table_at(const struct table *t, size_t i)
{
    return i < t->n ? &t->rows[i] : &t->rest;
}

static size_t table_count(const struct table *t)
{
    return t->n + (t->rest.label != NULL);
}

/* ---- collecting ---- */

static void add_stats(struct row *r, const struct cv_row_stats *s)
{
    r->active += cv_gauge_get(&s->active);
    r->sessions += cv_counter_get(&s->sessions);
    r->bytes_up += cv_counter_get(&s->bytes_up);
    r->bytes_down += cv_counter_get(&s->bytes_down);
    for (size_t i = 0; i < CV_STAGE_MAX; i++)
        r->refused[i] += cv_counter_get(&s->refused[i]);
}

static void on_listener(void *arg, struct cv_listener_stats *s)
{
    struct table *t = arg;
    struct row *r = NULL;
    for (size_t i = 0; i < t->n && r == NULL; i++)
        if (strcmp(t->rows[i].label, s->name) == 0)
            r = &t->rows[i];
    if (r == NULL)
        r = table_row(t, s->name, strlen(s->name));
    if (r == NULL)
        return;
    add_stats(r, &s->row);
    r->accepted += cv_counter_get(&s->accepted);
    r->rejected_full += cv_counter_get(&s->rejected_full);
    r->rejected_source += cv_counter_get(&s->rejected_source);
    r->rejected_handshakes += cv_counter_get(&s->rejected_handshakes);
    r->pauses += cv_counter_get(&s->accept_pauses);
    for (size_t i = 0; i < CV_SNIFF_OUTCOMES; i++)
        r->sniff[i] += cv_counter_get(&s->sniff[i]);
}

static bool is_used(const struct cv_row_stats *s)
{
    if (cv_gauge_get(&s->active) != 0 || cv_counter_get(&s->sessions) != 0 ||
        cv_counter_get(&s->bytes_up) != 0 || cv_counter_get(&s->bytes_down) != 0)
        return true;
    for (size_t i = 0; i < CV_STAGE_MAX; i++)
        if (cv_counter_get(&s->refused[i]) != 0)
            return true;
    return false;
}

static uint64_t dials(const struct cv_histogram *h)
{
    uint64_t n = 0;
    for (size_t i = 0; i < CV_HISTOGRAM_BUCKETS; i++)
        n += cv_counter_get(&h->bucket[i]);
    return n;
}

static void on_egress(void *arg, const char *label, struct cv_egress_stats *s)
{
    struct table *t = arg;
    if (!is_used(&s->row) && dials(&s->dial) == 0)
        return;
    /* Labels beyond the maximum of the registry are a row "other" of their own: one series. */
    struct row *r =
        strcmp(label, t->rest_label) == 0 ? &t->rest : table_row(t, label, strlen(label));
    if (r == NULL)
        return;
    if (r == &t->rest) {
        r->label = t->rest_label;
        r->len = strlen(t->rest_label);
    }
    add_stats(r, &s->row);
    for (size_t i = 0; i < CV_HISTOGRAM_BUCKETS; i++)
        r->bucket[i] += cv_counter_get(&s->dial.bucket[i]);
    r->sum_us += cv_counter_get(&s->dial.sum_us);
}

static void on_account(void *arg, struct cv_account *a)
{
    struct table *t = arg;
    uint64_t up = cv_counter_get(&a->bytes_up), down = cv_counter_get(&a->bytes_down);
    uint64_t sessions = cv_counter_get(&a->sessions), refused = cv_counter_get(&a->refused);
    int64_t active = cv_gauge_get(&a->active);
    if ((up | down | sessions | refused) == 0 && active == 0)
        return;
    struct row *r = table_row(t, a->name->s, a->name->len);
    if (r == NULL)
        return;
    r->active += active;
    r->sessions += sessions;
    r->bytes_up += up;
    r->bytes_down += down;
    r->refused_all += refused;
}

/* ---- families with one value per row ---- */

/* What a family shows of each row: one member, or the two directions, or the stages. */
enum shape {
    SHAPE_UINT,
    SHAPE_INT,
    SHAPE_DIRECTIONS,
    SHAPE_STAGES, /* those that have ever happened */
    SHAPE_ALL_STAGES,
    SHAPE_SNIFF,
    SHAPE_HISTOGRAM,
};

struct family {
    const char *name, *type, *help;
    enum shape shape;
    size_t offset; /* in struct row, for SHAPE_UINT and SHAPE_INT */
};

static const struct family listener_families[] = {
    {"culvert_sessions_active", "gauge", "Live sessions.", SHAPE_INT, offsetof(struct row, active)},
    {"culvert_sessions_total", "counter", "Sessions that have ended.", SHAPE_UINT,
     offsetof(struct row, sessions)},
    {"culvert_bytes_total", "counter", "Payload bytes; up is from the client.", SHAPE_DIRECTIONS,
     0},
    {"culvert_refused_total", "counter", "Sessions that failed, by stage.", SHAPE_ALL_STAGES, 0},
    {"culvert_listener_accepted_total", "counter", "Connections accepted.", SHAPE_UINT,
     offsetof(struct row, accepted)},
    {"culvert_listener_rejected_full_total", "counter",
     "Connections closed at once because limits.max_sessions was reached.", SHAPE_UINT,
     offsetof(struct row, rejected_full)},
    {"culvert_listener_rejected_source_total", "counter",
     "Connections closed at once because they came from no proxy that is listed in "
     "proxy_protocol.from.",
     SHAPE_UINT, offsetof(struct row, rejected_source)},
    {"culvert_listener_rejected_handshakes_total", "counter",
     "Connections closed because limits.max_tls_handshakes was reached.", SHAPE_UINT,
     offsetof(struct row, rejected_handshakes)},
    {"culvert_listener_accept_pauses_total", "counter",
     "Pauses of accepting for lack of descriptors or memory.", SHAPE_UINT,
     offsetof(struct row, pauses)},
    {"culvert_sniff_total", "counter", "Sessions whose first bytes were looked at, by outcome.",
     SHAPE_SNIFF, 0},
};
static const struct family egress_families[] = {
    {"culvert_egress_active", "gauge", "Live sessions.", SHAPE_INT, offsetof(struct row, active)},
    {"culvert_egress_sessions_total", "counter", "Sessions that were established.", SHAPE_UINT,
     offsetof(struct row, sessions)},
    {"culvert_egress_bytes_total", "counter", "Payload bytes; up is from the client.",
     SHAPE_DIRECTIONS, 0},
    {"culvert_egress_refused_total", "counter", "Sessions that failed, by stage.", SHAPE_STAGES, 0},
    {"culvert_egress_dial_seconds", "histogram", "Time from the decision to the connection.",
     SHAPE_HISTOGRAM, 0},
};
static const struct family user_families[] = {
    {"culvert_user_sessions_active", "gauge", "Live sessions.", SHAPE_INT,
     offsetof(struct row, active)},
    {"culvert_user_sessions_total", "counter", "Sessions that have ended.", SHAPE_UINT,
     offsetof(struct row, sessions)},
    {"culvert_user_bytes_total", "counter", "Payload bytes; up is from the client.",
     SHAPE_DIRECTIONS, 0},
    {"culvert_user_refused_total", "counter", "Sessions that failed before they were established.",
     SHAPE_UINT, offsetof(struct row, refused_all)},
};

static void put_stages(struct cv_prom *p, struct cv_prom_label labels[2], const struct row *r,
                       bool all)
{
    labels[1].name = "stage";
    for (size_t i = CV_STAGE_NONE + 1; i < CV_STAGE_MAX; i++) {
        if (!all && r->refused[i] == 0)
            continue;
        labels[1].val = cv_stage_name((enum cv_stage)i);
        labels[1].len = strlen(labels[1].val);
        cv_prom_uint(p, "", labels, 2, r->refused[i]);
    }
}

static void put_directions(struct cv_prom *p, struct cv_prom_label labels[2], const struct row *r)
{
    labels[1] = (struct cv_prom_label){"direction", "up", 2};
    cv_prom_uint(p, "", labels, 2, r->bytes_up);
    labels[1] = (struct cv_prom_label){"direction", "down", 4};
    cv_prom_uint(p, "", labels, 2, r->bytes_down);
}

static void put_sniff(struct cv_prom *p, struct cv_prom_label labels[2], const struct row *r)
{
    labels[1].name = "outcome";
    for (size_t i = CV_SNIFF_NONE + 1; i < CV_SNIFF_OUTCOMES; i++) {
        labels[1].val = cv_sniff_outcome_label((enum cv_sniff_outcome)i);
        labels[1].len = strlen(labels[1].val);
        cv_prom_uint(p, "", labels, 2, r->sniff[i]);
    }
}

static void put_histogram(struct cv_prom *p, struct cv_prom_label labels[2], const struct row *r)
{
    char bound[32];
    uint64_t sum = 0;
    for (size_t i = 0; i < CV_HISTOGRAM_BUCKETS; i++) {
        if (i == CV_HISTOGRAM_BUCKETS - 1)
            snprintf(bound, sizeof(bound), "+Inf");
        else
            snprintf(bound, sizeof(bound), "%u.%03u", cv_histogram_bounds_ms[i] / 1000,
                     cv_histogram_bounds_ms[i] % 1000);
        sum += r->bucket[i];
        labels[1] = (struct cv_prom_label){"le", bound, strlen(bound)};
        cv_prom_uint(p, "_bucket", labels, 2, sum);
    }
    cv_prom_seconds(p, "_sum", labels, 1, r->sum_us);
    cv_prom_uint(p, "_count", labels, 1, sum);
}

static void put_row(struct cv_prom *p, const struct family *f, const char *label_name,
                    const struct row *r)
{
    struct cv_prom_label labels[2] = {{label_name, r->label, r->len}};
    const char *at = (const char *)r + f->offset;
    uint64_t u;
    int64_t i;
    switch (f->shape) {
    case SHAPE_UINT:
        memcpy(&u, at, sizeof(u));
        cv_prom_uint(p, "", labels, 1, u);
        break;
    case SHAPE_INT:
        memcpy(&i, at, sizeof(i));
        cv_prom_int(p, "", labels, 1, i);
        break;
    case SHAPE_DIRECTIONS:
        put_directions(p, labels, r);
        break;
    case SHAPE_STAGES:
    case SHAPE_ALL_STAGES:
        put_stages(p, labels, r, f->shape == SHAPE_ALL_STAGES);
        break;
    case SHAPE_SNIFF:
        put_sniff(p, labels, r);
        break;
    case SHAPE_HISTOGRAM:
        put_histogram(p, labels, r);
        break;
    }
}

/* Takes the table's rows. */
static int put_table(struct cv_prom *p, struct table *t, const char *label_name,
                     const struct family *families, size_t n)
{
    for (size_t f = 0; f < n && t->err == 0; f++) {
        cv_prom_family(p, families[f].name, families[f].type, families[f].help);
        for (size_t i = 0; i < table_count(t); i++)
            put_row(p, &families[f], label_name, table_at(t, i));
    }
    cv_free(t->rows);
    return t->err;
}

static int put_rows(struct cv_prom *p, const struct cv_admin_view *v)
{
    struct table t;
    table_init(&t, CV_EXPOSITION_LISTENERS, "other");
    cv_registry_each_listener(v->registry, on_listener, &t);
    int ret = put_table(p, &t, "listener", listener_families, CV_ARRAY_SIZE(listener_families));
    if (ret != 0)
        return ret;
    table_init(&t, CV_EXPOSITION_EGRESSES, "other");
    cv_registry_each_egress(v->registry, on_egress, &t);
    ret = put_table(p, &t, "egress", egress_families, CV_ARRAY_SIZE(egress_families));
    if (ret != 0)
        return ret;
    table_init(&t, CV_EXPOSITION_USERS, "");
    cv_accounts_each(v->accounts, on_account, &t);
    return put_table(p, &t, "user", user_families, CV_ARRAY_SIZE(user_families));
}

/* ---- members of chains ---- */

struct member_row {
    const struct cv_member *member; /* borrowed */
    bool up;
};

struct member_table {
    struct member_row *rows; /* owned */
    size_t n, cap;
    int err;
};

static void on_member(void *arg, const struct cv_member_info *i)
{
    struct member_table *t = arg;
    if (t->err != 0 || t->n == CV_EXPOSITION_MEMBERS)
        return;
    if (t->n == t->cap) {
        size_t cap = CV_MIN(CV_MAX(t->cap * 2, (size_t)16), (size_t)CV_EXPOSITION_MEMBERS);
        struct member_row *rows = cv_try_realloc_array(t->rows, cap, sizeof(*rows));
        if (rows == NULL) {
            t->err = -ENOMEM;
            return;
        }
        t->rows = rows;
        t->cap = cap;
    }
    t->rows[t->n++] = (struct member_row){i->member, i->state == CV_VITAL_UP};
}

static const char *const blame_names[CV_BLAME_MAX] = {
    [CV_BLAME_EGRESS] = "egress", [CV_BLAME_UNSURE] = "unsure", [CV_BLAME_TARGET] = "target"};

static size_t member_labels(const struct cv_member *m, struct cv_prom_label *labels)
{
    labels[0] = (struct cv_prom_label){"egress", m->egress_id->s, m->egress_id->len};
    labels[1] = (struct cv_prom_label){"member", cv_rcstr_text(m->id), m->id ? m->id->len : 0};
    return 2;
}

static void put_member_counter(struct cv_prom *p, const struct member_table *t, const char *name,
                               const char *help, size_t offset)
{
    struct cv_prom_label labels[2];
    cv_prom_family(p, name, "counter", help);
    for (size_t i = 0; i < t->n; i++) {
        const char *m = (const char *)t->rows[i].member;
        size_t n = member_labels(t->rows[i].member, labels);
        cv_prom_uint(p, "", labels, n, cv_counter_get((const struct cv_counter *)(m + offset)));
    }
}

static int put_members(struct cv_prom *p, const struct cv_admin_view *v)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } counters[] = {
        {"culvert_member_attempts_total", "Dials that tried this member.",
         offsetof(struct cv_member, attempts)},
        {"culvert_member_established_total", "Connections that it gave.",
         offsetof(struct cv_member, established)},
        {"culvert_member_probes_total", "Attempts that were let through to see if it works again.",
         offsetof(struct cv_member, probes)},
        {"culvert_member_downs_total", "How often it stopped working.",
         offsetof(struct cv_member, downs)},
        {"culvert_member_checks_total", "Active checks.", offsetof(struct cv_member, checks)},
        {"culvert_member_checks_failed_total", "Active checks that failed.",
         offsetof(struct cv_member, checks_failed)},
    };
    struct member_table t = {0};
    struct cv_prom_label labels[3];
    v->each_member(v->arg, on_member, &t);
    if (t.n > 0 && t.err == 0) {
        cv_prom_family(p, "culvert_member_up", "gauge",
                       "1 if this member of a chain is tried in its turn, 0 if last.");
        for (size_t i = 0; i < t.n; i++)
            cv_prom_uint(p, "", labels, member_labels(t.rows[i].member, labels), t.rows[i].up);
        for (size_t i = 0; i < CV_ARRAY_SIZE(counters); i++)
            put_member_counter(p, &t, counters[i].name, counters[i].help, counters[i].offset);
        cv_prom_family(p, "culvert_member_failed_total", "counter",
                       "Attempts that failed, by whose fault it was.");
        for (size_t i = 0; i < t.n; i++)
            for (size_t b = 0; b < CV_BLAME_MAX; b++) {
                size_t n = member_labels(t.rows[i].member, labels);
                labels[n] = (struct cv_prom_label){"blame", blame_names[b], strlen(blame_names[b])};
                cv_prom_uint(p, "", labels, n + 1, cv_counter_get(&t.rows[i].member->failed[b]));
            }
    }
    cv_free(t.rows);
    return t.err;
}

/* ---- certificates ---- */

/* A file that two listeners use has two series; one that a listener names twice has one. */
static void put_expiry(void *arg, const struct cv_admin_listener *l)
{
    struct cv_prom *p = arg;
    size_t n = l->tls_ctx != NULL ? cv_tls_server_ctx_count(l->tls_ctx) : 0;
    for (size_t i = 0; i < n; i++) {
        struct cv_tls_cert_info info, earlier;
        bool twice = false;
        cv_tls_server_ctx_cert(l->tls_ctx, i, &info);
        for (size_t j = 0; j < i && !twice; j++) {
            cv_tls_server_ctx_cert(l->tls_ctx, j, &earlier);
            twice = strcmp(earlier.cert_file, info.cert_file) == 0;
        }
        struct cv_prom_label labels[] = {{"listener", l->name, strlen(l->name)},
                                         {"file", info.cert_file, strlen(info.cert_file)}};
        if (!twice)
            cv_prom_int(p, "", labels, 2, info.not_after_s);
    }
}

static void put_tls_error(void *arg, const struct cv_admin_listener *l)
{
    if (l->tls_ctx != NULL)
        cv_prom_uint(arg, "", &(struct cv_prom_label){"listener", l->name, strlen(l->name)}, 1,
                     l->tls_error != NULL);
}

static void put_certificates(struct cv_prom *p, const struct cv_admin_view *v)
{
    cv_prom_family(p, "culvert_tls_certificate_expiry_timestamp_seconds", "gauge",
                   "When a certificate of a listener ends to be valid, in unix time.");
    v->each_listener(v->arg, put_expiry, p);
    cv_prom_family(p, "culvert_tls_certificate_reload_error", "gauge",
                   "1 if the files of certificates have changed and could not be used.");
    v->each_listener(v->arg, put_tls_error, p);
}

/* ---- families with one sample ---- */

static void put_one(struct cv_prom *p, const char *name, const char *type, const char *help,
                    uint64_t val)
{
    cv_prom_family(p, name, type, help);
    cv_prom_uint(p, "", NULL, 0, val);
}

static void put_udp(struct cv_prom *p, const struct cv_node_stats *s)
{
    put_one(p, "culvert_udp_associations", "gauge", "Live UDP associations.",
            (uint64_t)CV_MAX(cv_gauge_get(&s->udp_associations), (int64_t)0));
    cv_prom_family(p, "culvert_udp_datagrams_total", "counter",
                   "Datagrams carried; up is from the client.");
    cv_prom_uint(p, "", &(struct cv_prom_label){"direction", "up", 2}, 1,
                 cv_counter_get(&s->udp_up));
    cv_prom_uint(p, "", &(struct cv_prom_label){"direction", "down", 4}, 1,
                 cv_counter_get(&s->udp_down));
    cv_prom_family(p, "culvert_udp_dropped_total", "counter", "Datagrams dropped, by reason.");
    for (size_t i = 0; i < CV_UDP_DROP_MAX; i++) {
        const char *name = cv_udp_drop_name((enum cv_udp_drop)i);
        cv_prom_uint(p, "", &(struct cv_prom_label){"reason", name, strlen(name)}, 1,
                     cv_counter_get(&s->udp_dropped[i]));
    }
}

static void put_node(struct cv_prom *p, const struct cv_admin_view *v)
{
    const struct cv_node_stats *s = &v->node->stats;
    const struct cv_dns_stats *d = &v->node->dns_stats;
    const struct {
        const char *name, *help;
        const struct cv_counter *counter;
    } counters[] = {
        {"culvert_snapshot_swaps_total", "Snapshots that were put in force.", &s->snapshot_swaps},
        {"culvert_snapshot_refused_total", "Attempts to load a snapshot that failed.",
         &s->snapshot_refused},
        {"culvert_auth_failed_total", "Logins that failed.", &s->auth_failed},
        {"culvert_auth_cached_total", "Logins that were known from before, without hashing.",
         &s->auth_cached},
        {"culvert_auth_queue_full_total", "Logins refused because too many were being checked.",
         &s->auth_queue_full},
        {"culvert_auth_backoff_total", "Logins refused because too many before were wrong.",
         &s->auth_backoff},
        {"culvert_connections_limit_total",
         "Connections closed at once by the limits of connections per second.",
         &s->connections_limit},
        {"culvert_sessions_revoked_total", "Sessions ended because the policy changed or expired.",
         &s->revoked},
        {"culvert_access_log_dropped_total", "Access-log lines that were lost.", &s->log_dropped},
        {"culvert_dns_queries_total", "Names asked for.", &d->queries},
        {"culvert_dns_cache_hits_total", "Names answered by the cache.", &d->cache_hits},
        {"culvert_dns_failures_total", "Questions that no server could answer.", &d->failures},
        {"culvert_dns_timeouts_total", "Questions that got no answer in time.", &d->timeouts},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(counters); i++)
        put_one(p, counters[i].name, "counter", counters[i].help,
                cv_counter_get(counters[i].counter));
    cv_prom_family(p, "culvert_tls_handshakes_active", "gauge",
                   "TLS handshakes of clients that are not over.");
    cv_prom_int(p, "", NULL, 0, cv_gauge_get(&s->tls_handshakes));
    put_one(p, "culvert_bugs_total", "counter", "Internal states that should not exist.",
            cv_bug_count());
}

static void put_sync(struct cv_prom *p, const struct cv_admin_view *v)
{
    struct cv_sync_status st;
    if (v->sync == NULL || !v->sync(v->arg, &st))
        return;
    put_one(p, "culvert_sync_requests_total", "counter", "Requests to the control plane.",
            st.requests);
    put_one(p, "culvert_sync_updates_total", "counter", "Snapshots taken from the control plane.",
            st.updates);
    put_one(p, "culvert_sync_failures_total", "counter",
            "Requests to the control plane that failed, or gave a document that was refused.",
            st.failures);
    cv_prom_family(p, "culvert_sync_success_timestamp_seconds", "gauge",
                   "When the control plane last gave a good answer, in unix time; 0 for never.");
    cv_prom_seconds(p, "", NULL, 0, (uint64_t)CV_MAX(st.last_success_ms, 0) * 1000);
}

static void put_snapshot(struct cv_prom *p, const struct cv_admin_view *v)
{
    struct cv_source_status st;
    struct cv_readiness r;
    cv_source_status(v->source, &st);
    v->readiness(v->arg, &r);
    put_one(p, "culvert_snapshot_version", "gauge", "Version of the snapshot in force.",
            st.version);
    put_one(p, "culvert_snapshot_users", "gauge", "Users of the snapshot in force.", st.users);
    cv_prom_family(p, "culvert_snapshot_loaded_timestamp_seconds", "gauge",
                   "When the snapshot in force was put there, in unix time; 0 for none.");
    cv_prom_seconds(p, "", NULL, 0, (uint64_t)CV_MAX(st.loaded_ms, 0) * 1000);
    put_one(p, "culvert_snapshot_error", "gauge",
            "1 if the last attempt to load a snapshot failed.", st.has_error);
    put_one(p, "culvert_ready", "gauge", "1 if the node takes traffic.",
            r.status == CV_STATUS_READY);
    cv_prom_family(p, "culvert_build_info", "gauge", "Always 1; the label is the version.");
    cv_prom_uint(p, "", &(struct cv_prom_label){"version", CV_VERSION, sizeof(CV_VERSION) - 1}, 1,
                 1);
}

/* ---- the process ---- */

/* Newer kernels tell the number as the size of the directory; else it is walked. */
static bool open_fds(uint64_t *ret_n)
{
    struct stat sb;
    if (stat("/proc/self/fd", &sb) == 0 && sb.st_size > 0) {
        *ret_n = (uint64_t)sb.st_size;
        return true;
    }
    DIR *d = opendir("/proc/self/fd");
    if (d == NULL)
        return false;
    uint64_t n = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    *ret_n = n - 1; /* without the one of the walk */
    return true;
}

static bool resident_bytes(uint64_t *ret_n)
{
    char text[128];
    int fd = cv_sys_open("/proc/self/statm", O_RDONLY, 0);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, sizeof(text) - 1);
    cv_sys_close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    const char *second = strchr(text, ' ');
    if (second == NULL)
        return false;
    *ret_n = strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    return true;
}

static uint64_t timeval_us(const struct timeval *tv)
{
    return (uint64_t)tv->tv_sec * 1000000 + (uint64_t)tv->tv_usec;
}

/* What cannot be found out, for lack of a descriptor for one, is left out. */
static void put_process(struct cv_prom *p, const struct cv_admin_view *v)
{
    uint64_t n;
    struct rlimit lim;
    struct rusage ru;
    if (open_fds(&n))
        put_one(p, "process_open_fds", "gauge", "Open file descriptors.", n);
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY)
        put_one(p, "process_max_fds", "gauge", "Limit of open file descriptors.", lim.rlim_cur);
    if (resident_bytes(&n))
        put_one(p, "process_resident_memory_bytes", "gauge", "Resident memory.", n);
    if (getrusage(RUSAGE_SELF, &ru) == 0) {
        cv_prom_family(p, "process_cpu_seconds_total", "counter", "User and system time.");
        cv_prom_seconds(p, "", NULL, 0, timeval_us(&ru.ru_utime) + timeval_us(&ru.ru_stime));
    }
    cv_prom_family(p, "process_start_time_seconds", "gauge", "When the node started, unix time.");
    cv_prom_seconds(p, "", NULL, 0, (uint64_t)CV_MAX(v->started_ms, 0) * 1000);
}

int cv_exposition_write(const struct cv_admin_view *v, struct cv_buf *buf)
{
    struct cv_prom p;
    cv_prom_init(&p, buf);
    int ret = put_rows(&p, v);
    if (ret == 0)
        ret = put_members(&p, v);
    if (ret != 0)
        return ret;
    cv_admin_tunnels_expose(&p, v);
    put_certificates(&p, v);
    put_snapshot(&p, v);
    put_sync(&p, v);
    put_node(&p, v);
    put_udp(&p, &v->node->stats);
    put_process(&p, v);
    return cv_prom_end(&p);
}
