#include "flow/worker.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"

#include "common/poison.h"

#define PIPE_SIZE       (256u << 10)
#define PIPES_IDLE_MAX  64
#define LINE_MAX_BYTES  (64u << 10)
#define TODAY_EVERY_MS  1000
#define RETIRE_EXTRA_MS (60 * 1000)

/* A resolver that was replaced. It lives until no query that was started on it can be left. */
struct retired {
    struct cv_list node; /* in worker._retired_dns */
    struct cv_timer timer;
    struct cv_dns *dns; /* owned */
    struct cv_loop *loop;
};

static int dns_new(struct cv_worker *w, const struct cv_settings *s, struct cv_dns **ret_dns)
{
    struct cv_dns_conf conf = {
        .servers = (const char *const *)s->dns_servers,
        .n_servers = s->n_dns_servers,
        .timeout_ms = s->dns_timeout_ms,
        .attempts = s->dns_attempts,
        .cache_size = s->dns_cache_size,
    };
    return cv_dns_new(w->loop, &conf, &w->node->dns_stats, ret_dns);
}

static bool dns_differs(const struct cv_settings *a, const struct cv_settings *b)
{
    if (a->n_dns_servers != b->n_dns_servers || a->dns_timeout_ms != b->dns_timeout_ms ||
        a->dns_attempts != b->dns_attempts || a->dns_cache_size != b->dns_cache_size)
        return true;
    for (size_t i = 0; i < a->n_dns_servers; i++) {
        if (strcmp(a->dns_servers[i], b->dns_servers[i]) != 0)
            return true;
    }
    return false;
}

int cv_worker_new(unsigned index, struct cv_node *node, struct cv_settings *settings,
                  struct cv_worker **ret_worker)
{
    int ret;
    struct cv_worker *w = cv_zalloc(sizeof(*w));
    w->index = index;
    w->node = node;
    w->settings = cv_settings_ref(settings);
    cv_list_init(&w->sessions);
    cv_list_init(&w->_retired_dns);
    cv_list_init(&w->_checks);
    cv_list_init(&w->_throttled);
    cv_buf_init(&w->line, LINE_MAX_BYTES);
    w->dgram_budget.max = CV_DGRAM_WAIT_MAX;
    w->_next_seq = 1;
    w->date = cv_date_today;
    cv_worker_forget_today(w);

    if ((w->scratch = cv_try_alloc(CV_SCRATCH_SIZE)) == NULL) {
        ret = -ENOMEM;
        goto Exit;
    }
    if ((ret = cv_loop_new(&w->loop)) != 0)
        goto Exit;
    if ((ret = dns_new(w, settings, &w->dns)) != 0)
        goto Exit;
    if ((ret = cv_pipe_pool_new(PIPE_SIZE, PIPES_IDLE_MAX, &w->pipes)) != 0)
        goto Exit;
    if (node->alog != NULL && (ret = cv_alog_stream_open(node->alog, w->loop, &w->alog)) != 0)
        goto Exit;
    *ret_worker = w;
    return 0;
Exit:
    cv_worker_free(w);
    return ret;
}

static void retired_free(struct retired *r)
{
    cv_loop_timer_stop(r->loop, &r->timer);
    cv_list_del(&r->node);
    cv_dns_free(r->dns);
    cv_free(r);
}

static void on_retired(struct cv_timer *t)
{
    retired_free(CV_CONTAINER_OF(t, struct retired, timer));
}

void cv_worker_free(struct cv_worker *w)
{
    if (w == NULL)
        return;
    CV_ASSERT(cv_list_is_empty(&w->sessions));
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &w->_retired_dns)
        retired_free(CV_CONTAINER_OF(it, struct retired, node));
    cv_dns_free(w->dns);
    cv_alog_stream_close(w->alog);
    /* Runs what is posted: logins that were given up come back here. */
    cv_loop_free(w->loop);
    CV_ASSERT(cv_list_is_empty(&w->_checks));
    cv_pipe_pool_free(w->pipes);
    cv_settings_unref(w->settings);
    cv_buf_done(&w->line);
    (void)CV_BUG_ON_ONCE(w->dgram_budget.used != 0);
    cv_free(w->dgram_slots);
    cv_free(w->scratch);
    cv_free(w);
}

/* Queries of dials in flight keep the old resolver busy for at most a connect timeout. */
static void dns_retire(struct cv_worker *w, struct cv_dns *dns)
{
    struct retired *r = cv_zalloc(sizeof(*r));
    r->dns = dns;
    r->loop = w->loop;
    cv_list_add_tail(&w->_retired_dns, &r->node);
    cv_timer_init(&r->timer, on_retired);
    cv_loop_timer(w->loop, &r->timer, w->settings->connect_timeout_ms + RETIRE_EXTRA_MS);
}

void cv_worker_set_settings(struct cv_worker *w, struct cv_settings *settings)
{
    if (settings == w->settings)
        return;
    struct cv_dns *dns;
    if (dns_differs(w->settings, settings) && dns_new(w, settings, &dns) == 0) {
        dns_retire(w, w->dns);
        w->dns = dns;
    }
    struct cv_settings *old = w->settings;
    w->settings = cv_settings_ref(settings);
    cv_settings_unref(old);
}

void cv_worker_forget_today(struct cv_worker *w)
{
    w->_today_until_ms = INT64_MIN;
}

int32_t cv_worker_today(struct cv_worker *w)
{
    int64_t now = cv_loop_now(w->loop);
    if (now >= w->_today_until_ms) {
        w->_today = w->date();
        w->_today_until_ms = now + TODAY_EVERY_MS;
    }
    return w->_today;
}

int cv_worker_dgram_slots(struct cv_worker *w, struct cv_dgram_in *msgs, size_t n)
{
    CV_ASSERT(n <= CV_DGRAM_BATCH);
    if (w->dgram_slots == NULL) {
        w->dgram_slots = cv_try_alloc((size_t)CV_DGRAM_BATCH * CV_DGRAM_SLOT);
        if (w->dgram_slots == NULL)
            return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        msgs[i] = (struct cv_dgram_in){
            .buf = w->dgram_slots + i * CV_DGRAM_SLOT + CV_DGRAM_HEADROOM,
            .cap = CV_DGRAM_SLOT - CV_DGRAM_HEADROOM,
        };
    }
    return 0;
}
