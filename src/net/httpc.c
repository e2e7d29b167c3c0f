#include "net/httpc.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/list.h"
#include "common/secret.h"

#include "common/poison.h"

#define CONNECT_MS   10000
#define EVENTS       16
#define DRAIN_ROUNDS 64

struct cv_httpc {
    struct cv_loop *loop; /* borrowed */
    CURLM *multi;         /* owned */
    /* libcurl thinks in levels, our loop in edges: its sockets are in a level-triggered epoll of
     * their own, which is one descriptor of the loop. */
    int ep;
    struct cv_io io;
    struct cv_timer timer;
    struct cv_task again;
    struct cv_task gone;
    bool again_due;
    struct cv_list calls; /* owned: all that run */
};

struct cv_httpc_call {
    struct cv_list node;
    struct cv_httpc *client; /* borrowed */
    CURL *easy;              /* owned */
    struct curl_slist *headers;
    struct cv_buf body;
    bool too_large;
    char text[CURL_ERROR_SIZE];
    cv_httpc_cb cb;
    void *arg;
};

static void init_library(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* ---- libcurl's sockets and its timer ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *per_socket)
{
    struct cv_httpc *c = arg;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(c->ep, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    ev.events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
    if (epoll_ctl(c->ep, per_socket != NULL ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev) != 0 &&
        epoll_ctl(c->ep, EPOLL_CTL_ADD, fd, &ev) != 0)
        return -1; /* the transfer fails */
    if (per_socket == NULL)
        (void)curl_multi_assign(c->multi, fd, c);
    return 0;
}

static int on_timer_wish(CURLM *multi, long after_ms, void *arg)
{
    struct cv_httpc *c = arg;
    (void)multi;
    if (after_ms < 0)
        cv_loop_timer_stop(c->loop, &c->timer);
    else
        cv_loop_timer(c->loop, &c->timer, after_ms);
    return 0;
}

/* ---- one call ---- */

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct cv_httpc_call *call = arg;
    if (cv_buf_append(&call->body, data, size * n) == 0)
        return size * n;
    call->too_large = true;
    return 0;
}

static void call_free(struct cv_httpc_call *call)
{
    if (call->easy != NULL) {
        (void)curl_multi_remove_handle(call->client->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    for (struct curl_slist *h = call->headers; h != NULL; h = h->next)
        cv_secret_clear(h->data, strlen(h->data));
    curl_slist_free_all(call->headers);
    cv_secret_clear((void *)(uintptr_t)cv_buf_data(&call->body), cv_buf_len(&call->body));
    cv_buf_done(&call->body);
    cv_list_del(&call->node);
    cv_free(call);
}

static int code_of(CURLcode code, long os_errno)
{
    switch (code) {
    case CURLE_OK:
        return 0;
    case CURLE_OPERATION_TIMEDOUT:
        return -ETIMEDOUT;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return CV_E_DNS_FAIL;
    case CURLE_COULDNT_CONNECT:
        return os_errno != 0 ? -(int)os_errno : -ECONNREFUSED;
    case CURLE_OUT_OF_MEMORY:
        return -ENOMEM;
    case CURLE_FILESIZE_EXCEEDED:
        return CV_E_LIMIT;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CIPHER:
        return CV_E_TLS;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
        return os_errno != 0 ? -(int)os_errno : -ECONNRESET;
    default:
        return CV_E_PROTO;
    }
}

static void finish(struct cv_httpc_call *call, CURLcode code)
{
    struct cv_httpc_answer a = {.call = call};
    long status = 0, os_errno = 0;
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_easy_getinfo(call->easy, CURLINFO_OS_ERRNO, &os_errno);
    a.err = call->too_large ? CV_E_LIMIT : code_of(code, os_errno);
    if (call->too_large)
        a.text = "the answer is too large";
    else
        a.text = call->text[0] != '\0' ? call->text : curl_easy_strerror(code);
    a.status = (unsigned)status;
    a.body = (const char *)cv_buf_data(&call->body);
    a.body_len = cv_buf_len(&call->body);
    call->cb(call->arg, &a);
    call_free(call);
}

/* Calls that have ended. A callback may start and cancel others. */
static void reap(struct cv_httpc *c)
{
    int left;
    CURLMsg *m;
    while ((m = curl_multi_info_read(c->multi, &left)) != NULL) {
        void *call = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &call);
        finish(call, code);
    }
}

static void drain(struct cv_httpc *c)
{
    struct epoll_event evs[EVENTS];
    for (int round = 0; round < DRAIN_ROUNDS; round++) {
        int running, n = epoll_wait(c->ep, evs, EVENTS, 0);
        if (n <= 0)
            return;
        for (int i = 0; i < n; i++) {
            int what = (evs[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                       (evs[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                       (evs[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
            (void)curl_multi_socket_action(c->multi, evs[i].data.fd, what, &running);
        }
        reap(c);
    }
    if (!c->again_due) {
        c->again_due = true;
        cv_loop_next(c->loop, &c->again);
    }
}

static void on_ready(struct cv_io *io, unsigned events)
{
    (void)events;
    drain(CV_CONTAINER_OF(io, struct cv_httpc, io));
}

static void on_again(struct cv_task *t)
{
    struct cv_httpc *c = CV_CONTAINER_OF(t, struct cv_httpc, again);
    c->again_due = false;
    drain(c);
}

static void on_timer(struct cv_timer *t)
{
    struct cv_httpc *c = CV_CONTAINER_OF(t, struct cv_httpc, timer);
    int running;
    (void)curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    reap(c);
}

int cv_httpc_new(struct cv_loop *loop, struct cv_httpc **ret_client)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, init_library);
    struct cv_httpc *c = cv_try_zalloc(sizeof(*c));
    if (c == NULL)
        return -ENOMEM;
    c->loop = loop;
    cv_list_init(&c->calls);
    cv_timer_init(&c->timer, on_timer);
    c->again.fn = on_again;
    c->multi = curl_multi_init();
    c->ep = epoll_create1(EPOLL_CLOEXEC);
    int ret = c->multi == NULL ? -ENOMEM : c->ep < 0 ? -errno : 0;
    if (ret == 0)
        ret = cv_io_add(loop, &c->io, c->ep, on_ready);
    if (ret != 0) {
        if (c->ep >= 0)
            close(c->ep);
        (void)curl_multi_cleanup(c->multi);
        cv_free(c);
        return ret;
    }
    (void)curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    (void)curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer_wish);
    (void)curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    *ret_client = c;
    return 0;
}

static void on_gone(struct cv_task *t)
{
    cv_free(CV_CONTAINER_OF(t, struct cv_httpc, gone));
}

void cv_httpc_free(struct cv_httpc *c)
{
    if (c == NULL)
        return;
    while (!cv_list_is_empty(&c->calls))
        call_free(CV_CONTAINER_OF(c->calls.next, struct cv_httpc_call, node));
    (void)curl_multi_cleanup(c->multi);
    cv_loop_timer_stop(c->loop, &c->timer);
    if (c->again_due)
        (void)cv_loop_next_cancel(c->loop, &c->again);
    cv_io_del(&c->io);
    close(c->ep);
    c->gone.fn = on_gone;
    cv_loop_defer(c->loop, &c->gone);
}

static bool is_set(const char *s)
{
    return s != NULL && s[0] != '\0';
}

/* 0 or -ENOMEM. */
static int add_headers(struct cv_httpc_call *call, const struct cv_httpc_request *r)
{
    for (size_t i = 0; i < r->n_headers; i++) {
        struct curl_slist *more = curl_slist_append(call->headers, r->headers[i]);
        if (more == NULL)
            return -ENOMEM;
        call->headers = more;
    }
    return 0;
}

static void set_options(struct cv_httpc_call *call, const struct cv_httpc_request *r)
{
    CURL *e = call->easy;
    (void)curl_easy_setopt(e, CURLOPT_PRIVATE, call);
    (void)curl_easy_setopt(e, CURLOPT_ERRORBUFFER, call->text);
    (void)curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    /* Not by the environment: where a node asks is said in its config alone. */
    (void)curl_easy_setopt(e, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(e, CURLOPT_HTTPHEADER, call->headers);
    (void)curl_easy_setopt(e, CURLOPT_ACCEPT_ENCODING, "");
    (void)curl_easy_setopt(e, CURLOPT_USERAGENT, "culvert/" CV_VERSION);
    (void)curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
                           (long)CV_MIN(r->timeout_ms, (int64_t)CONNECT_MS));
    (void)curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)r->timeout_ms);
    /* By the declared length; on_body() judges what it unpacks to. */
    (void)curl_easy_setopt(e, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)r->max_bytes);
    (void)curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(e, CURLOPT_WRITEDATA, call);
    if (is_set(r->ca_file)) {
        (void)curl_easy_setopt(e, CURLOPT_CAINFO, r->ca_file);
        (void)curl_easy_setopt(e, CURLOPT_CAPATH, NULL);
    }
    if (is_set(r->client_cert))
        (void)curl_easy_setopt(e, CURLOPT_SSLCERT, r->client_cert);
    if (is_set(r->client_cert))
        (void)curl_easy_setopt(e, CURLOPT_SSLKEY,
                               is_set(r->client_key) ? r->client_key : r->client_cert);
}

int cv_httpc_get(struct cv_httpc *c, const struct cv_httpc_request *r, cv_httpc_cb cb, void *arg,
                 struct cv_httpc_call **ret_call)
{
    if (strncasecmp(r->url, "http://", 7) != 0 && strncasecmp(r->url, "https://", 8) != 0)
        return CV_E_INVALID;
    struct cv_httpc_call *call = cv_try_zalloc(sizeof(*call));
    if (call == NULL)
        return -ENOMEM;
    call->client = c;
    call->cb = cb;
    call->arg = arg;
    cv_buf_init(&call->body, r->max_bytes);
    cv_list_add_tail(&c->calls, &call->node);
    call->easy = curl_easy_init();
    int ret = call->easy == NULL ? -ENOMEM : add_headers(call, r);
    if (ret == 0) {
        set_options(call, r);
        CURLcode code = curl_easy_setopt(call->easy, CURLOPT_URL, r->url);
        ret = code == CURLE_OK ? 0 : code == CURLE_OUT_OF_MEMORY ? -ENOMEM : CV_E_INVALID;
    }
    /* Nothing is done from inside: libcurl asks for a timer of 0. */
    if (ret == 0 && curl_multi_add_handle(c->multi, call->easy) != CURLM_OK)
        ret = -ENOMEM;
    if (ret != 0) {
        call_free(call);
        return ret;
    }
    *ret_call = call;
    return 0;
}

void cv_httpc_cancel(struct cv_httpc_call *call)
{
    if (call != NULL)
        call_free(call);
}

const char *cv_httpc_header(struct cv_httpc_call *call, const char *name)
{
    struct curl_header *h = NULL;
    return curl_easy_header(call->easy, name, 0, CURLH_HEADER, -1, &h) == CURLHE_OK ? h->value
                                                                                    : NULL;
}
