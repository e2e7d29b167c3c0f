#include "admin/ask.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "flow/session.h"

#include "common/poison.h"

#define SLICE_ROWS 256 /* formatted in one turn of a worker: well below a millisecond */

struct part {
    struct cv_task task;
    struct cv_ask *ask;       /* outlives the part */
    struct cv_worker *worker; /* borrowed */
    bool back;                /* control thread only: it is ours again */
    bool begun;               /* 'cursor' is valid */
    bool truncated;
    uint64_t cursor; /* highest id that was looked at */
    size_t count;    /* rows in 'rows' */
    struct cv_buf rows;
    int err; /* of a kill */
};

struct cv_ask {
    struct cv_loop *loop; /* borrowed; the control thread's */
    cv_ask_cb cb;         /* NULL once called or let go */
    void *arg;
    struct cv_timer deadline;
    bool released;
    _Atomic bool unwanted; /* tells workers that nobody waits: hand it back at once */
    _Atomic size_t bytes;  /* of rows so far, over all workers */
    char *user;            /* owned; NULL: all */
    size_t user_len;
    size_t limit;
    uint64_t kill_id;
    size_t n_parts;
    size_t n_out; /* parts that are with their workers */
    struct part part[];
};

static void on_list(struct cv_task *task);
static void on_kill(struct cv_task *task);
static void on_back(struct cv_task *task);
static void on_deadline(struct cv_timer *t);

static struct cv_ask *ask_new(struct cv_loop *loop, struct cv_worker *const *workers, size_t n,
                              cv_ask_cb cb, void *arg)
{
    CV_ASSERT(n >= 1 && n <= CV_WORKERS_MAX);
    struct cv_ask *ask = cv_try_zalloc(sizeof(*ask) + n * sizeof(ask->part[0]));
    if (ask == NULL)
        return NULL;
    ask->loop = loop;
    ask->cb = cb;
    ask->arg = arg;
    ask->n_parts = n;
    cv_timer_init(&ask->deadline, on_deadline);
    for (size_t i = 0; i < n; i++) {
        struct part *p = &ask->part[i];
        p->ask = ask;
        p->worker = workers[i];
        cv_buf_init(&p->rows, CV_ASK_BYTES_MAX);
    }
    return ask;
}

/* From the first post on, parts belong to their workers. */
static void ask_start(struct cv_ask *ask, cv_task_cb fn, int64_t deadline_ms)
{
    ask->n_out = ask->n_parts;
    cv_loop_timer(ask->loop, &ask->deadline, deadline_ms);
    for (size_t i = 0; i < ask->n_parts; i++) {
        ask->part[i].task.fn = fn;
        cv_loop_post(ask->part[i].worker->loop, &ask->part[i].task);
    }
}

int cv_ask_sessions(struct cv_loop *loop, struct cv_worker *const *workers, size_t n,
                    const struct cv_ask_filter *filter, int64_t deadline_ms, cv_ask_cb cb,
                    void *arg, struct cv_ask **ret_ask)
{
    struct cv_ask *ask = ask_new(loop, workers, n, cb, arg);
    if (ask == NULL)
        return -ENOMEM;
    ask->limit = filter->limit;
    if (filter->user != NULL) {
        ask->user = cv_try_strndup(filter->user, filter->user_len);
        ask->user_len = filter->user_len;
        if (ask->user == NULL) {
            cv_free(ask);
            return -ENOMEM;
        }
    }
    *ret_ask = ask;
    ask_start(ask, on_list, deadline_ms);
    return 0;
}

int cv_ask_kill(struct cv_loop *loop, struct cv_worker *worker, uint64_t id, int64_t deadline_ms,
                cv_ask_cb cb, void *arg, struct cv_ask **ret_ask)
{
    struct cv_ask *ask = ask_new(loop, &worker, 1, cb, arg);
    if (ask == NULL)
        return -ENOMEM;
    ask->kill_id = id;
    *ret_ask = ask;
    ask_start(ask, on_kill, deadline_ms);
    return 0;
}

/* ---- on the worker's thread ---- */

static void give_back(struct part *p)
{
    p->task.fn = on_back;
    cv_loop_post(p->ask->loop, &p->task);
}

static bool is_wanted(const struct cv_ask *ask, const struct cv_session *s)
{
    return ask->user == NULL || (s->username != NULL && s->username->len == ask->user_len &&
                                 memcmp(s->username->s, ask->user, ask->user_len) == 0);
}

/* False: no more rows may be added. */
static bool add_row(struct part *p, const struct cv_session *s)
{
    struct cv_ask *ask = p->ask;
    struct cv_jsonw w;
    size_t before = cv_buf_len(&p->rows);

    if (p->count == ask->limit)
        return false;
    int ret = p->count > 0 ? cv_buf_append(&p->rows, ",\n", 2) : 0;
    if (ret != 0)
        return false;
    cv_jsonw_init(&w, &p->rows);
    cv_session_describe(&w, NULL, s);
    ret = cv_jsonw_end(&w);
    size_t len = cv_buf_len(&p->rows) - before;
    /* Half a row at the end is cut off by the one who merges: only 'count' rows are read. */
    if (ret != 0 ||
        atomic_fetch_add_explicit(&ask->bytes, len, memory_order_relaxed) + len > CV_ASK_BYTES_MAX)
        return false;
    p->count++;
    return true;
}

/* Sessions are linked in the order of their ids, so the highest id that was seen is a cursor that
 * does not mind what ends between two slices. Walking up to it costs far less than formatting. */
static void on_list(struct cv_task *task)
{
    struct part *p = CV_CONTAINER_OF(task, struct part, task);
    struct cv_worker *w = p->worker;
    struct cv_list *it;
    size_t rows = 0;

    if (atomic_load_explicit(&p->ask->unwanted, memory_order_relaxed)) {
        give_back(p);
        return;
    }
    CV_LIST_FOREACH (it, &w->sessions) {
        const struct cv_session *s = CV_CONTAINER_OF(it, struct cv_session, _node);
        if ((p->begun && s->id <= p->cursor) || !is_wanted(p->ask, s))
            continue;
        if (rows == SLICE_ROWS) {
            cv_loop_next(w->loop, task);
            return;
        }
        if (!add_row(p, s)) {
            p->truncated = true;
            break;
        }
        p->begun = true;
        p->cursor = s->id;
        rows++;
    }
    give_back(p);
}

static void on_kill(struct cv_task *task)
{
    struct part *p = CV_CONTAINER_OF(task, struct part, task);
    struct cv_session *s = cv_session_find(p->worker, p->ask->kill_id);
    if (s != NULL)
        s->ops->kill(s, CV_E_KILLED);
    p->err = s != NULL ? 0 : CV_E_NOTFOUND;
    give_back(p);
}

/* ---- on the control thread ---- */

static void ask_free(struct cv_ask *ask)
{
    for (size_t i = 0; i < ask->n_parts; i++)
        cv_buf_done(&ask->part[i].rows);
    cv_free(ask->user);
    cv_free(ask);
}

static void finish(struct cv_ask *ask)
{
    cv_ask_cb cb = ask->cb;
    cv_loop_timer_stop(ask->loop, &ask->deadline);
    ask->cb = NULL;
    if (cb != NULL)
        cb(ask->arg, ask);
}

static void on_back(struct cv_task *task)
{
    struct part *p = CV_CONTAINER_OF(task, struct part, task);
    struct cv_ask *ask = p->ask;
    p->back = true;
    if (--ask->n_out > 0)
        return;
    if (ask->released)
        ask_free(ask);
    else
        finish(ask);
}

static void on_deadline(struct cv_timer *t)
{
    struct cv_ask *ask = CV_CONTAINER_OF(t, struct cv_ask, deadline);
    atomic_store_explicit(&ask->unwanted, true, memory_order_relaxed);
    finish(ask);
}

void cv_ask_release(struct cv_ask *ask)
{
    if (ask == NULL)
        return;
    CV_ASSERT(!ask->released);
    ask->released = true;
    ask->cb = NULL;
    atomic_store_explicit(&ask->unwanted, true, memory_order_relaxed);
    cv_loop_timer_stop(ask->loop, &ask->deadline);
    if (ask->n_out == 0)
        ask_free(ask);
}

/* Bytes of the first 'n' of the rows in 'text'. A newline stands between rows and nowhere else,
 * because JSON escapes those within strings. */
static size_t rows_len(const struct cv_buf *text, size_t n)
{
    const uint8_t *p = cv_buf_data(text), *end = p + cv_buf_len(text);
    for (; n > 0; n--) {
        const uint8_t *nl = memchr(p, '\n', (size_t)(end - p));
        if (nl == NULL)
            return cv_buf_len(text);
        p = nl + 1;
    }
    return (size_t)(p - cv_buf_data(text)) - 2; /* without the ",\n" */
}

static int take_part(struct cv_ask *ask, struct part *p, struct cv_ask_rows *rows)
{
    size_t n = CV_MIN(p->count, ask->limit - rows->count);
    rows->truncated |= p->truncated || n < p->count;
    if (n == 0)
        return 0;
    size_t len = n < p->count || p->truncated ? rows_len(&p->rows, n) : cv_buf_len(&p->rows);
    int ret = rows->count > 0 ? cv_buf_append(&rows->text, ",\n", 2) : 0;
    if (ret == 0)
        ret = cv_buf_append(&rows->text, cv_buf_data(&p->rows), len);
    rows->count += n;
    cv_buf_consume(&p->rows, cv_buf_len(&p->rows));
    cv_buf_release(&p->rows);
    return ret;
}

int cv_ask_take_rows(struct cv_ask *ask, struct cv_ask_rows *ret_rows)
{
    /* Workers may overrun the common bound by a row each before they notice. */
    struct cv_ask_rows rows = {0};
    cv_buf_init(&rows.text, (size_t)CV_ASK_BYTES_MAX * 2);
    for (size_t i = 0; i < ask->n_parts; i++) {
        struct part *p = &ask->part[i];
        int ret = 0;
        if (p->back)
            ret = take_part(ask, p, &rows);
        else
            rows.workers_missing++;
        if (ret != 0) {
            cv_buf_done(&rows.text);
            return ret;
        }
    }
    rows.truncated |= rows.workers_missing > 0;
    *ret_rows = rows;
    return 0;
}

int cv_ask_kill_result(const struct cv_ask *ask)
{
    return ask->part[0].back ? ask->part[0].err : -ETIMEDOUT;
}
