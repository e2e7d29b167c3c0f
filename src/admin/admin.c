#include "admin/admin.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin/ask.h"
#include "admin/exposition.h"
#include "admin/report.h"
#include "common/alloc.h"
#include "common/err.h"
#include "common/log.h"
#include "common/secret.h"
#include "common/sys.h"
#include "net/tcp.h"

#include "common/poison.h"

#define DOMAIN            "admin"
#define CONNECTIONS_MAX   64u
#define IDLE_S            30u
#define MEMORY_MAX        (16u << 10) /* of one connection: request head and answer head */
#define BODY_MAX          (64u << 10)
#define ANSWER_MAX        (64u << 20)
#define ASKS_MAX          4  /* at once; each may hold CV_ASK_BYTES_MAX */
#define RUNS_AT_ONCE      8  /* of the HTTP library in one turn of the loop */
#define READY_RUNS        64 /* turns in a row in which it left events lying */
#define READY_PAUSE_MS    50
#define UNIX_MODE         0660
#define TYPE_JSON         "application/json"
#define TYPE_METRICS      "text/plain; version=0.0.4; charset=utf-8"
#define SESSION_ID_DIGITS 16

struct cv_admin {
    struct cv_admin_view view;
    struct cv_loop *loop; /* borrowed */
    struct MHD_Daemon *mhd;
    struct cv_io io; /* the library's epoll descriptor */
    struct cv_timer timer;
    struct cv_task again;
    bool again_queued;
    unsigned ready_runs;
    char *node_id; /* owned */
    char *token;   /* owned, a secret; "" = none is asked for */
    char address[CV_SOCKADDR_STRLEN];
    int fd;          /* listening; the library's, -1 after cv_admin_leave() */
    char *unix_path; /* owned; NULL: TCP */
    dev_t unix_dev;
    ino_t unix_ino;
    struct cv_list waiting; /* requests whose connection is suspended */
    size_t n_asks;
    struct cv_task free_task;
};

/* One HTTP request, from its head until the library has no more use for it. */
struct request {
    struct cv_list node; /* in cv_admin.waiting */
    struct cv_admin *admin;
    struct MHD_Connection *conn;
    const char *arg;    /* what "{id}" of the route stands for; borrowed from the URL */
    struct cv_ask *ask; /* not NULL while suspended */
    bool is_list;
    struct MHD_Response *response; /* owned; made while suspended */
    unsigned status;               /* of 'response' */
    size_t body;                   /* bytes that came */
    char id[SESSION_ID_DIGITS + 1];
};

struct route {
    const char *method, *path;
    bool open; /* answers without the token */
    enum MHD_Result (*fn)(struct request *req);
    const char *help;
};

static enum MHD_Result get_routes(struct request *req);
static enum MHD_Result get_healthz(struct request *req);
static enum MHD_Result get_readyz(struct request *req);
static enum MHD_Result get_status(struct request *req);
static enum MHD_Result get_sessions(struct request *req);
static enum MHD_Result delete_session(struct request *req);
static enum MHD_Result get_metrics(struct request *req);

static const struct route routes[] = {
    {"GET", "/", false, get_routes, "This list."},
    {"GET", "/healthz", true, get_healthz, "200 while the process runs."},
    {"GET", "/readyz", true, get_readyz, "200 when the node takes traffic, else 503."},
    {"GET", "/status", false, get_status, "The node: snapshot, listeners, egresses, totals."},
    {"GET", "/sessions", false, get_sessions,
     "Live sessions, oldest first for each worker; ?user=NAME &limit=N."},
    {"DELETE", "/sessions/{id}", false, delete_session, "End a session (16 hex digits)."},
    {"GET", "/metrics", false, get_metrics, "Counters in the Prometheus text format."},
};

static void pump(struct cv_admin *a);

/* ---- answers ---- */

static void add_header(struct MHD_Response *r, const char *name, const char *val)
{
    /* Fails for lack of memory only; an answer without the header is better than none. */
    (void)MHD_add_response_header(r, name, val);
}

/* Takes the content of 'buf'. NULL: no memory. */
static struct MHD_Response *response_of(struct cv_buf *buf, const char *type)
{
    size_t len = cv_buf_len(buf);
    char *text = (char *)cv_buf_steal(buf);
    cv_buf_done(buf);
    struct MHD_Response *r =
        text != NULL ? MHD_create_response_from_buffer_with_free_callback(len, text, cv_free)
                     : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (r == NULL) {
        cv_free(text);
        return NULL;
    }
    add_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    add_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    add_header(r, "X-Content-Type-Options", "nosniff");
    return r;
}

/* {"status":"<word>"} */
static struct MHD_Response *response_word(const char *word)
{
    struct cv_buf buf;
    cv_buf_init(&buf, 256);
    if (cv_buf_printf(&buf, "{\"status\":\"%s\"}\n", word) != 0)
        return NULL;
    return response_of(&buf, TYPE_JSON);
}

/* Takes 'r', which may be NULL: then the connection is closed. */
static enum MHD_Result queue(struct request *req, unsigned status, struct MHD_Response *r)
{
    if (r == NULL)
        return MHD_NO;
    enum MHD_Result ok = MHD_queue_response(req->conn, status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result reply_word(struct request *req, unsigned status, const char *word)
{
    return queue(req, status, response_word(word));
}

/* 'ret' is how writing 'buf' ended. */
static enum MHD_Result reply_buf(struct request *req, int ret, unsigned status, struct cv_buf *buf,
                                 const char *type)
{
    if (ret == 0)
        return queue(req, status, response_of(buf, type));
    cv_buf_done(buf);
    cv_log_limited(CV_LOG_WARN, DOMAIN, "an answer could not be made error='%s'", cv_err_text(ret));
    return reply_word(req, MHD_HTTP_INTERNAL_SERVER_ERROR, "error");
}

static int end_line(struct cv_buf *buf, int ret)
{
    return ret == 0 ? cv_buf_append(buf, "\n", 1) : ret;
}

/* ---- routes that are answered at once ---- */

static enum MHD_Result get_routes(struct request *req)
{
    struct cv_buf buf;
    struct cv_jsonw w;
    cv_buf_init(&buf, ANSWER_MAX);
    cv_jsonw_init(&w, &buf);
    cv_jsonw_object(&w, NULL);
    cv_jsonw_array(&w, "routes");
    for (size_t i = 0; i < CV_ARRAY_SIZE(routes); i++) {
        cv_jsonw_object(&w, NULL);
        cv_jsonw_str(&w, "method", routes[i].method);
        cv_jsonw_str(&w, "path", routes[i].path);
        cv_jsonw_bool(&w, "token", !routes[i].open && req->admin->token[0] != '\0');
        cv_jsonw_str(&w, "help", routes[i].help);
        cv_jsonw_object_end(&w);
    }
    cv_jsonw_array_end(&w);
    cv_jsonw_object_end(&w);
    return reply_buf(req, end_line(&buf, cv_jsonw_end(&w)), MHD_HTTP_OK, &buf, TYPE_JSON);
}

static enum MHD_Result reply_probe(struct request *req, bool always_ok)
{
    struct cv_buf buf;
    bool ready = false;
    cv_buf_init(&buf, ANSWER_MAX);
    int ret = end_line(&buf, cv_report_probe(&req->admin->view, &buf, &ready));
    return reply_buf(req, ret, ready || always_ok ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                     &buf, TYPE_JSON);
}

static enum MHD_Result get_healthz(struct request *req)
{
    return reply_probe(req, true);
}

static enum MHD_Result get_readyz(struct request *req)
{
    return reply_probe(req, false);
}

static enum MHD_Result get_status(struct request *req)
{
    struct cv_buf buf;
    cv_buf_init(&buf, ANSWER_MAX);
    int ret = end_line(&buf, cv_report_status(&req->admin->view, &buf));
    return reply_buf(req, ret, MHD_HTTP_OK, &buf, TYPE_JSON);
}

static enum MHD_Result get_metrics(struct request *req)
{
    struct cv_buf buf;
    cv_buf_init(&buf, ANSWER_MAX);
    int ret = cv_exposition_write(&req->admin->view, &buf);
    return reply_buf(req, ret, MHD_HTTP_OK, &buf, TYPE_METRICS);
}

/* ---- routes that wait for workers ---- */

static void list_body(struct request *req, struct cv_ask *ask)
{
    struct cv_ask_rows rows;
    struct cv_buf buf;
    int ret = cv_ask_take_rows(ask, &rows);
    cv_ask_release(ask); /* first, so that the rows are there once only */
    if (ret == 0) {
        cv_buf_init(&buf, (size_t)ANSWER_MAX * 2 + 256);
        ret = cv_buf_append_str(&buf, "{\"sessions\":[");
        if (ret == 0)
            ret = cv_buf_append(&buf, cv_buf_data(&rows.text), cv_buf_len(&rows.text));
        cv_buf_done(&rows.text);
        if (ret == 0)
            ret =
                cv_buf_printf(&buf, "],\"count\":%zu,\"truncated\":%s,\"workers_missing\":%zu}\n",
                              rows.count, rows.truncated ? "true" : "false", rows.workers_missing);
        if (ret == 0)
            req->response = response_of(&buf, TYPE_JSON);
        else
            cv_buf_done(&buf);
    }
    req->status = MHD_HTTP_OK;
}

static void kill_body(struct request *req, struct cv_ask *ask)
{
    int ret = cv_ask_kill_result(ask);
    cv_ask_release(ask);
    if (ret == CV_E_NOTFOUND) {
        req->status = MHD_HTTP_NOT_FOUND;
        req->response = response_word("not_found");
        return;
    }
    if (ret != 0) {
        req->status = MHD_HTTP_GATEWAY_TIMEOUT;
        req->response = response_word("timeout");
        return;
    }
    cv_info(DOMAIN, "session ended on request session=%s", req->id);
    struct cv_buf buf;
    cv_buf_init(&buf, 256);
    req->status = MHD_HTTP_OK;
    if (cv_buf_printf(&buf, "{\"killed\":\"%s\"}\n", req->id) == 0)
        req->response = response_of(&buf, TYPE_JSON);
}

/* The request is no longer waiting; the library goes on with it at its next run. */
static void wake(struct request *req)
{
    struct cv_admin *a = req->admin;
    req->ask = NULL;
    a->n_asks--;
    cv_list_del(&req->node);
    MHD_resume_connection(req->conn);
}

static void again_soon(struct cv_admin *a)
{
    if (a->again_queued)
        return;
    a->again_queued = true;
    cv_loop_next(a->loop, &a->again);
}

static void on_answer(void *arg, struct cv_ask *ask)
{
    struct request *req = arg;
    struct cv_admin *a = req->admin;
    if (req->is_list)
        list_body(req, ask);
    else
        kill_body(req, ask);
    if (req->response == NULL) {
        req->status = MHD_HTTP_INTERNAL_SERVER_ERROR;
        req->response = response_word("error");
    }
    wake(req);
    again_soon(a);
}

/* The ask has been started: its answer resumes the connection. */
static enum MHD_Result wait_for_answer(struct request *req)
{
    req->admin->n_asks++;
    cv_list_add_tail(&req->admin->waiting, &req->node);
    MHD_suspend_connection(req->conn);
    return MHD_YES;
}

static enum MHD_Result reply_busy(struct request *req)
{
    struct MHD_Response *r = response_word("busy");
    if (r != NULL)
        add_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    return queue(req, MHD_HTTP_SERVICE_UNAVAILABLE, r);
}

/* A decimal number without sign; larger ones than a size_t are cut. False: something else. */
static bool parse_limit(const char *s, size_t *ret_n)
{
    char *end;
    if (s[0] < '0' || s[0] > '9')
        return false;
    errno = 0;
    unsigned long long n = strtoull(s, &end, 10);
    if (*end != '\0')
        return false;
    *ret_n = errno == ERANGE || n > SIZE_MAX ? SIZE_MAX : (size_t)n;
    return true;
}

static enum MHD_Result get_sessions(struct request *req)
{
    struct cv_admin *a = req->admin;
    struct cv_ask_filter filter = {.limit = SIZE_MAX};
    const char *limit = MHD_lookup_connection_value(req->conn, MHD_GET_ARGUMENT_KIND, "limit");
    if (limit != NULL && !parse_limit(limit, &filter.limit))
        return reply_word(req, MHD_HTTP_BAD_REQUEST, "bad_limit");
    (void)MHD_lookup_connection_value_n(req->conn, MHD_GET_ARGUMENT_KIND, "user", 4, &filter.user,
                                        &filter.user_len);
    if (a->n_asks >= ASKS_MAX)
        return reply_busy(req);
    req->is_list = true;
    if (cv_ask_sessions(a->loop, a->view.workers, a->view.n_workers, &filter, CV_ASK_DEADLINE_MS,
                        on_answer, req, &req->ask) != 0)
        return reply_word(req, MHD_HTTP_INTERNAL_SERVER_ERROR, "error");
    return wait_for_answer(req);
}

/* 16 hex digits. */
static bool parse_id(const char *s, uint64_t *ret_id)
{
    uint64_t id = 0;
    for (size_t i = 0; i < SESSION_ID_DIGITS; i++) {
        char c = s[i];
        unsigned v;
        if (c >= '0' && c <= '9')
            v = (unsigned)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = (unsigned)((c | 0x20) - 'a') + 10;
        else
            return false;
        id = id << 4 | v;
    }
    *ret_id = id;
    return s[SESSION_ID_DIGITS] == '\0';
}

static struct cv_worker *worker_of(const struct cv_admin_view *v, uint64_t id)
{
    for (size_t i = 0; i < v->n_workers; i++)
        if (v->workers[i]->index == id >> 56)
            return v->workers[i];
    return NULL;
}

static enum MHD_Result delete_session(struct request *req)
{
    struct cv_admin *a = req->admin;
    uint64_t id;
    if (!parse_id(req->arg, &id))
        return reply_word(req, MHD_HTTP_BAD_REQUEST, "bad_session_id");
    struct cv_worker *w = worker_of(&a->view, id);
    if (w == NULL)
        return reply_word(req, MHD_HTTP_NOT_FOUND, "not_found");
    if (a->n_asks >= ASKS_MAX)
        return reply_busy(req);
    snprintf(req->id, sizeof(req->id), "%016llx", (unsigned long long)id);
    if (cv_ask_kill(a->loop, w, id, CV_ASK_DEADLINE_MS, on_answer, req, &req->ask) != 0)
        return reply_word(req, MHD_HTTP_INTERNAL_SERVER_ERROR, "error");
    return wait_for_answer(req);
}

/* ---- which route, and who may ---- */

/* True, and where "{id}" begins (or NULL), if 'url' is of the form 'path'. */
static bool path_matches(const char *path, const char *url, const char **ret_arg)
{
    const char *brace = strchr(path, '{');
    *ret_arg = NULL;
    if (brace == NULL)
        return strcmp(path, url) == 0;
    size_t len = (size_t)(brace - path);
    if (strncmp(path, url, len) != 0 || url[len] == '\0' || strchr(url + len, '/') != NULL)
        return false;
    *ret_arg = url + len;
    return true;
}

static bool method_matches(const char *wanted, const char *method)
{
    return strcmp(wanted, method) == 0 ||
           (strcmp(wanted, MHD_HTTP_METHOD_GET) == 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) == 0);
}

static bool is_allowed(const struct cv_admin *a, struct MHD_Connection *conn)
{
    static const char scheme[] = "Bearer ";
    if (a->token[0] == '\0')
        return true;
    const char *given =
        MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (given == NULL || strncasecmp(given, scheme, sizeof(scheme) - 1) != 0)
        return false;
    given += sizeof(scheme) - 1;
    while (*given == ' ')
        given++;
    return cv_ct_equal(given, strlen(given), a->token, strlen(a->token));
}

/* Without a token only the loopback address protects the API, and a page in the operator's browser
 * can get round that by a name of its own that resolves to it (DNS rebinding). Such a request says
 * that name, so names are refused; addresses and localhost are what people use. */
static bool is_host_local(const struct cv_admin *a, struct MHD_Connection *conn)
{
    if (a->token[0] != '\0' || a->unix_path != NULL)
        return true;
    const char *host = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    if (host == NULL || host[0] == '\0')
        return true;
    size_t len = strlen(host);
    const char *colon = strrchr(host, ':');
    if (colon != NULL && strchr(colon, ']') == NULL)
        len = (size_t)(colon - host);
    struct cv_ip ip;
    return cv_ip_parse_any(host, len, &ip) == 0 ||
           (len == 9 && strncasecmp(host, "localhost", 9) == 0);
}

static enum MHD_Result reply_unauthorized(struct request *req)
{
    struct MHD_Response *r = response_word("unauthorized");
    if (r != NULL)
        add_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"culvert\"");
    cv_log_limited(CV_LOG_DEBUG, DOMAIN, "a request without the right token was refused");
    return queue(req, MHD_HTTP_UNAUTHORIZED, r);
}

static enum MHD_Result reply_method(struct request *req, const char *allow)
{
    struct MHD_Response *r = response_word("method_not_allowed");
    if (r != NULL)
        add_header(r, MHD_HTTP_HEADER_ALLOW, allow);
    return queue(req, MHD_HTTP_METHOD_NOT_ALLOWED, r);
}

static enum MHD_Result dispatch(struct request *req, const char *url, const char *method)
{
    const struct route *found = NULL;
    for (size_t i = 0; i < CV_ARRAY_SIZE(routes) && found == NULL; i++)
        if (path_matches(routes[i].path, url, &req->arg))
            found = &routes[i];
    if (found == NULL || !found->open) {
        if (!is_allowed(req->admin, req->conn))
            return reply_unauthorized(req);
        if (!is_host_local(req->admin, req->conn))
            return reply_word(req, MHD_HTTP_FORBIDDEN, "forbidden_host");
    }
    if (found == NULL)
        return reply_word(req, MHD_HTTP_NOT_FOUND, "not_found");
    /* Each path has one route, so its method is the whole list. */
    if (!method_matches(found->method, method))
        return reply_method(req, strcmp(found->method, "GET") == 0 ? "GET, HEAD" : found->method);
    return found->fn(req);
}

/* ---- called by the library ---- */

static bool is_body_too_large(struct MHD_Connection *conn)
{
    const char *len =
        MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    size_t n;
    return len != NULL && (!parse_limit(len, &n) || n > BODY_MAX);
}

/* Comes first with the head, then with each piece of the body, then once more to be answered, and
 * again after a connection was resumed. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *conn, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **con_cls)
{
    struct request *req = *con_cls;
    (void)version;
    (void)upload;
    if (req == NULL) {
        req = cv_try_zalloc(sizeof(*req));
        if (req == NULL)
            return MHD_NO;
        req->admin = cls;
        req->conn = conn;
        cv_list_init(&req->node);
        *con_cls = req;
        if (is_body_too_large(conn))
            return reply_word(req, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large");
        return MHD_YES;
    }
    if (*upload_size > 0) {
        /* No route has a use for a body. Nothing can be answered in the middle of one. */
        req->body += *upload_size;
        *upload_size = 0;
        return req->body <= BODY_MAX ? MHD_YES : MHD_NO;
    }
    if (req->response != NULL) {
        struct MHD_Response *r = req->response;
        req->response = NULL;
        return queue(req, req->status, r);
    }
    if (CV_BUG_ON_ONCE(req->ask != NULL))
        return MHD_NO;
    return dispatch(req, url, method);
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                         enum MHD_RequestTerminationCode why)
{
    struct request *req = *con_cls;
    (void)cls;
    (void)conn;
    (void)why;
    if (req == NULL)
        return;
    *con_cls = NULL;
    /* A suspended connection does not complete; this is for the case that it did. */
    if (CV_BUG_ON_ONCE(req->ask != NULL)) {
        cv_list_del(&req->node);
        cv_ask_release(req->ask);
        req->admin->n_asks--;
    }
    if (req->response != NULL)
        MHD_destroy_response(req->response);
    cv_free(req);
}

CV_PRINTF(2, 0)
static void on_library_log(void *cls, const char *fmt, va_list ap)
{
    char text[256];
    (void)cls;
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    if (n <= 0)
        return;
    size_t len = CV_MIN((size_t)n, sizeof(text) - 1);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '.'))
        text[--len] = '\0';
    cv_log_limited(CV_LOG_DEBUG, DOMAIN, "http library: '%s'", text);
}

/* ---- the library on our loop ---- */

static bool has_work_now(struct cv_admin *a)
{
    MHD_UNSIGNED_LONG_LONG ms;
    return MHD_get_timeout(a->mhd, &ms) == MHD_YES && ms == 0;
}

unsigned cv_admin_connections(const struct cv_admin *a)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(a->mhd, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL ? info->num_connections : 0;
}

static bool has_events(const struct cv_admin *a)
{
    struct pollfd p = {.fd = a->io.fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static void set_timer(struct cv_admin *a, int64_t at_most_ms)
{
    MHD_UNSIGNED_LONG_LONG ms;
    int64_t wait = at_most_ms;
    if (MHD_get_timeout(a->mhd, &ms) == MHD_YES && ms < (unsigned long long)wait)
        wait = (int64_t)ms;
    if (wait == INT64_MAX)
        cv_loop_timer_stop(a->loop, &a->timer);
    else
        cv_loop_timer(a->loop, &a->timer, wait);
}

/* The loop is told once when the library's epoll set becomes ready, and the library looks at
 * listening sockets by level: so what it leaves lying has to be looked for after each run. It may
 * be something that it cannot take now (no descriptors are left), so the looking slows down. */
static void pump(struct cv_admin *a)
{
    bool work = true;
    for (int i = 0; i < RUNS_AT_ONCE && work; i++) {
        unsigned before = cv_admin_connections(a);
        (void)MHD_run(a->mhd);
        /* At its limit the library takes the listening socket out of its set, and puts it back at
         * the beginning of a run only. */
        work = has_work_now(a) || cv_admin_connections(a) < before;
    }
    if (work) {
        again_soon(a);
        return;
    }
    if (!has_events(a)) {
        a->ready_runs = 0;
        set_timer(a, INT64_MAX);
    } else if (a->ready_runs < READY_RUNS) {
        a->ready_runs++;
        again_soon(a);
    } else {
        set_timer(a, READY_PAUSE_MS);
    }
}

static void on_io(struct cv_io *io, unsigned events)
{
    (void)events;
    pump(CV_CONTAINER_OF(io, struct cv_admin, io));
}

static void on_timer(struct cv_timer *t)
{
    pump(CV_CONTAINER_OF(t, struct cv_admin, timer));
}

static void on_again(struct cv_task *task)
{
    struct cv_admin *a = CV_CONTAINER_OF(task, struct cv_admin, again);
    a->again_queued = false;
    pump(a);
}

/* ---- life ---- */

static int listen_on(struct cv_admin *a, const struct cv_admin_conf *conf, int *ret_fd)
{
    const struct cv_sockaddr *sa = &conf->listen;
    struct cv_sockaddr real = {.len = sizeof(real.un)};
    struct stat sb;
    int fd = conf->fd, ret = 0;
    if (!conf->inherited)
        ret = cv_tcp_listen(sa, &(struct cv_tcp_listen_opts){.unix_mode = UNIX_MODE}, &fd);
    if (ret != 0)
        return ret;
    if (getsockname(fd, &real.sa, &real.len) != 0) {
        ret = -errno;
        cv_sys_close(fd);
        return ret;
    }
    cv_sockaddr_format(&real, a->address);
    if (sa->sa.sa_family == AF_UNIX) {
        a->unix_path = cv_strdup(sa->un.sun_path);
        if (stat(a->unix_path, &sb) == 0) {
            a->unix_dev = sb.st_dev;
            a->unix_ino = sb.st_ino;
        }
    }
    *ret_fd = fd;
    return 0;
}

/* Takes 'fd', also on failure. */
static int start_library(struct cv_admin *a, int fd)
{
    a->mhd = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL,
                              NULL, on_request, a, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
                              MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                              CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
                              MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_MAX,
                              MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
    if (a->mhd == NULL) {
        int err = errno;
        cv_sys_close(fd);
        return err > 0 ? -err : -ENOMEM;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(a->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == NULL)
        return CV_E_UNSUPPORTED;
    return cv_io_add(a->loop, &a->io, info->epoll_fd, on_io);
}

int cv_admin_start(struct cv_loop *loop, const struct cv_admin_conf *conf,
                   const struct cv_admin_view *view, struct cv_admin **ret_admin)
{
    struct cv_admin *a = cv_zalloc(sizeof(*a));
    int fd = -1;
    a->view = *view;
    a->loop = loop;
    a->node_id = cv_strdup(view->node_id);
    a->view.node_id = a->node_id;
    a->token = cv_strdup(conf->token);
    a->again.fn = on_again;
    cv_timer_init(&a->timer, on_timer);
    cv_list_init(&a->waiting);
    int ret = listen_on(a, conf, &fd);
    a->fd = fd;
    if (ret == 0)
        ret = start_library(a, fd);
    if (ret != 0) {
        if (conf->inherited)
            CV_FREE(a->unix_path); /* still another process's */
        cv_admin_stop(a);
        return ret;
    }
    /* What has connected meanwhile. */
    again_soon(a);
    *ret_admin = a;
    return 0;
}

static void on_free(struct cv_task *task)
{
    cv_free(CV_CONTAINER_OF(task, struct cv_admin, free_task));
}

void cv_admin_stop(struct cv_admin *a)
{
    struct stat sb;
    if (a == NULL)
        return;
    while (!cv_list_is_empty(&a->waiting)) {
        struct request *req = CV_CONTAINER_OF(a->waiting.next, struct request, node);
        cv_ask_release(req->ask);
        wake(req); /* the library does not stop with suspended connections */
    }
    cv_io_del(&a->io);
    cv_loop_timer_stop(a->loop, &a->timer);
    if (a->again_queued)
        (void)cv_loop_next_cancel(a->loop, &a->again);
    if (a->mhd != NULL)
        MHD_stop_daemon(a->mhd); /* closes the listening socket, too */
    if (a->unix_path != NULL && stat(a->unix_path, &sb) == 0 && sb.st_dev == a->unix_dev &&
        sb.st_ino == a->unix_ino)
        (void)unlink(a->unix_path);
    cv_free(a->unix_path);
    cv_free(a->node_id);
    cv_secret_free(a->token);
    a->free_task.fn = on_free;
    cv_loop_defer(a->loop, &a->free_task);
}

int cv_admin_fd(const struct cv_admin *a)
{
    return a->fd;
}

void cv_admin_leave(struct cv_admin *a)
{
    if (a->fd < 0)
        return;
    cv_sys_close(MHD_quiesce_daemon(a->mhd));
    a->fd = -1;
    CV_FREE(a->unix_path);
}

const char *cv_admin_address(const struct cv_admin *a)
{
    return a->address;
}

void cv_admin_set_token(struct cv_admin *a, const char *token)
{
    char *old = a->token;
    a->token = cv_strdup(token);
    cv_secret_free(old);
}
