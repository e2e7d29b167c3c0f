#include "control/sync.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "common/rand.h"
#include "common/secret.h"
#include "net/signature.h"

#include "common/poison.h"

#define DOMAIN         "sync"
#define BACKOFF_SHIFT  5
#define BACKOFF_MAX_MS 300000
#define WAIT_MAX_S     300
#define SOON_MS        50   /* after a long poll that has ended as it should */
#define QUICK_MS       1000 /* a server that says it waits and does not */
#define TOKEN_MAX      4096
#define ETAG_MAX       256
#define HEADER_MAX     (TOKEN_MAX + 64)

struct cv_sync {
    struct cv_loop *loop;       /* borrowed */
    struct cv_source *source;   /* borrowed */
    struct cv_httpc *client;    /* owned */
    struct cv_httpc_call *call; /* NULL: none runs */
    struct cv_verify_key *key;  /* owned; NULL: documents need no signature */
    struct cv_timer timer;
    struct cv_sync_conf conf; /* its texts are owned */
    char *shown_url;          /* owned */
    char etag[ETAG_MAX];      /* of the last good answer; "" : none */
    unsigned wait_s;          /* the server holds requests for so long; 0: it does not */
    bool held;                /* the request on its way has asked to be held */
    int64_t asked_ms;         /* loop clock */
    struct cv_sync_status st;
};

static void ask(struct cv_sync *s);
static void on_answer(void *arg, const struct cv_httpc_answer *a);

static void on_timer(struct cv_timer *t)
{
    ask(CV_CONTAINER_OF(t, struct cv_sync, timer));
}

static char *copy(const char *text)
{
    return cv_strdup(text != NULL ? text : "");
}

char *cv_sync_shown_url(const char *url)
{
    const char *host = strstr(url, "://");
    host = host != NULL ? host + 3 : url;
    const char *end = host + strcspn(host, "?#"), *path = host + strcspn(host, "/?#");
    for (const char *at = host; at < path; at++)
        if (*at == '@')
            host = at + 1;
    size_t scheme = strstr(url, "://") != NULL ? (size_t)(strstr(url, "://") + 3 - url) : 0;
    size_t rest = (size_t)(end - host);
    char *out = cv_alloc(scheme + rest + 1);
    memcpy(out, url, scheme);
    memcpy(out + scheme, host, rest);
    out[scheme + rest] = '\0';
    return out;
}

int64_t cv_sync_pause_ms(int64_t poll_ms, uint32_t failures, uint32_t random)
{
    if (failures == 0) /* a tenth more or less */
        return poll_ms - poll_ms / 10 + (int64_t)(random % 1024) * (poll_ms / 5) / 1024;
    int64_t most = CV_MAX(poll_ms, (int64_t)BACKOFF_MAX_MS);
    int64_t pause = CV_MIN(poll_ms << CV_MIN(failures, (uint32_t)BACKOFF_SHIFT), most);
    return pause / 2 + (int64_t)(random % 1024) * (pause / 2) / 1024;
}

static void next_after(struct cv_sync *s, int64_t ms)
{
    cv_loop_timer(s->loop, &s->timer, ms);
}

static void failed(struct cv_sync *s, const char *text)
{
    s->st.failures++;
    s->st.failures_in_a_row++;
    s->wait_s = 0; /* ask again without, and be told again */
    cv_source_fail(s->source, text);
    next_after(s, cv_sync_pause_ms(s->conf.poll_ms, s->st.failures_in_a_row, cv_rand_below(1024)));
}

/* ---- the request ---- */

/* The token's text, or "" without one. 0, or a code of the file. */
static int token_of(struct cv_sync *s, char out[TOKEN_MAX])
{
    char *text = NULL;
    size_t len = 0, from = 0;
    if (s->conf.token_file[0] == '\0') {
        snprintf(out, TOKEN_MAX, "%s", s->conf.token);
        return 0;
    }
    int ret = cv_file_read(s->conf.token_file, TOKEN_MAX - 1, &text, &len);
    if (ret != 0)
        return ret;
    while (len > 0 && strchr(" \t\r\n", text[len - 1]) != NULL)
        len--;
    while (from < len && strchr(" \t\r\n", text[from]) != NULL)
        from++;
    snprintf(out, TOKEN_MAX, "%.*s", (int)(len - from), text + from);
    cv_secret_clear(text, len);
    cv_free(text);
    for (const char *c = out; *c != '\0'; c++)
        if ((unsigned char)*c < 0x21 || (unsigned char)*c > 0x7e)
            return CV_E_PARSE;
    return 0;
}

static int url_of(const struct cv_sync *s, struct cv_buf *out)
{
    struct cv_source_status st;
    cv_source_status(s->source, &st);
    int ret = cv_buf_printf(out, "%s%csince=%llu", s->conf.url,
                            strchr(s->conf.url, '?') != NULL ? '&' : '?',
                            (unsigned long long)(st.loaded ? st.version : 0));
    if (ret == 0 && s->wait_s > 0)
        ret = cv_buf_printf(out, "&wait=%u", s->wait_s);
    return ret == 0 ? cv_buf_append(out, "", 1) : ret;
}

static int send_request(struct cv_sync *s, const char *token)
{
    char bearer[HEADER_MAX], match[ETAG_MAX + 32];
    const char *headers[3];
    struct cv_buf url;
    size_t n = 0;
    headers[n++] = "Accept: application/json";
    if (token[0] != '\0') {
        snprintf(bearer, sizeof(bearer), "Authorization: Bearer %s", token);
        headers[n++] = bearer;
    }
    if (s->etag[0] != '\0') {
        snprintf(match, sizeof(match), "If-None-Match: %s", s->etag);
        headers[n++] = match;
    }
    cv_buf_init(&url, 16384);
    int ret = url_of(s, &url);
    if (ret == 0) {
        struct cv_httpc_request r = {
            .url = (const char *)cv_buf_data(&url),
            .headers = headers,
            .n_headers = n,
            .timeout_ms = s->conf.timeout_ms + (int64_t)s->wait_s * 1000,
            .max_bytes = CV_SNAPSHOT_MAX_BYTES,
            .ca_file = s->conf.ca,
            .client_cert = s->conf.client_cert,
            .client_key = s->conf.client_key,
        };
        ret = cv_httpc_get(s->client, &r, on_answer, s, &s->call);
    }
    cv_buf_done(&url);
    cv_secret_clear(bearer, sizeof(bearer));
    return ret;
}

static void ask(struct cv_sync *s)
{
    char token[TOKEN_MAX] = "", text[400];
    cv_loop_timer_stop(s->loop, &s->timer);
    s->st.requests++;
    s->held = s->wait_s > 0;
    s->asked_ms = cv_loop_now(s->loop);
    int ret = token_of(s, token);
    if (ret != 0) {
        snprintf(text, sizeof(text), "token_file '%.200s' cannot be used: %s", s->conf.token_file,
                 ret == CV_E_PARSE ? "a token is one word of printable ASCII" : cv_err_text(ret));
        failed(s, text);
    } else if ((ret = send_request(s, token)) != 0) {
        failed(s, cv_err_text(ret));
    }
    cv_secret_clear(token, sizeof(token));
}

/* ---- the answer ---- */

static void take_wait(struct cv_sync *s, const struct cv_httpc_answer *a)
{
    const char *text = cv_httpc_header(a->call, "Culvert-Wait");
    unsigned long v = text != NULL ? strtoul(text, NULL, 10) : 0;
    s->wait_s = (unsigned)CV_MIN(v, (unsigned long)WAIT_MAX_S);
}

static void take_etag(struct cv_sync *s, const struct cv_httpc_answer *a)
{
    const char *text = cv_httpc_header(a->call, "ETag");
    s->etag[0] = '\0';
    if (text != NULL && strlen(text) < ETAG_MAX && strpbrk(text, "\r\n") == NULL)
        snprintf(s->etag, sizeof(s->etag), "%s", text);
}

static void succeeded(struct cv_sync *s, const struct cv_httpc_answer *a)
{
    s->st.failures_in_a_row = 0;
    s->st.last_success_ms = cv_clock_unix_ms();
    take_wait(s, a);
    bool holds = s->held && cv_loop_now(s->loop) - s->asked_ms >= QUICK_MS;
    if (s->wait_s > 0 && (holds || !s->held))
        next_after(s, SOON_MS);
    else
        next_after(s, cv_sync_pause_ms(s->conf.poll_ms, 0, cv_rand_below(1024)));
}

static int check_signature(struct cv_sync *s, const struct cv_httpc_answer *a)
{
    if (s->key == NULL)
        return 0;
    const char *text = cv_httpc_header(a->call, "Culvert-Signature");
    if (text == NULL) {
        failed(s, "the document is not signed, and verify_key wants it to be");
        return CV_E_AUTH;
    }
    int ret = cv_verify(s->key, text, a->body, a->body_len);
    if (ret != 0)
        failed(s, ret == CV_E_AUTH ? "the signature is not of this document by verify_key"
                                   : "the signature is not base64 of 64 bytes");
    return ret;
}

static void take_document(struct cv_sync *s, const struct cv_httpc_answer *a)
{
    if (check_signature(s, a) != 0)
        return;
    char *data = cv_try_strndup(a->body != NULL ? a->body : "", a->body_len);
    if (data == NULL) {
        failed(s, cv_err_text(-ENOMEM));
        return;
    }
    struct cv_source_status before, after;
    cv_source_status(s->source, &before);
    int ret = cv_source_offer(s->source, data, a->body_len);
    if (ret != 0) { /* the source has said why */
        s->st.failures++;
        s->st.failures_in_a_row++;
        s->wait_s = 0;
        next_after(s,
                   cv_sync_pause_ms(s->conf.poll_ms, s->st.failures_in_a_row, cv_rand_below(1024)));
        return;
    }
    cv_source_status(s->source, &after);
    s->st.updates += !before.loaded || after.version != before.version;
    take_etag(s, a);
    succeeded(s, a);
    if (s->held) /* there was news, so it was right to answer early */
        next_after(s, SOON_MS);
}

static void on_answer(void *arg, const struct cv_httpc_answer *a)
{
    struct cv_sync *s = arg;
    char text[400];
    s->call = NULL;
    s->st.last_http_status = a->err == 0 ? a->status : 0;
    if (a->err != 0) {
        snprintf(text, sizeof(text), "control plane: %.300s", a->text);
        failed(s, text);
    } else if (a->status == 200) {
        take_document(s, a);
    } else if (a->status == 304 || a->status == 204) {
        cv_source_confirm(s->source);
        succeeded(s, a);
    } else {
        snprintf(text, sizeof(text), "control plane answered %u%s", a->status,
                 a->status == 401 || a->status == 403  ? ", it does not accept the token"
                 : a->status >= 300 && a->status < 400 ? ", a redirect, which is not followed"
                                                       : "");
        failed(s, text);
    }
}

/* ---- life ---- */

int cv_sync_new(struct cv_loop *loop, const struct cv_sync_conf *conf, struct cv_source *source,
                struct cv_sync **ret_sync)
{
    struct cv_sync *s = cv_try_zalloc(sizeof(*s));
    if (s == NULL)
        return -ENOMEM;
    s->loop = loop;
    s->source = source;
    s->conf = (struct cv_sync_conf){
        .url = copy(conf->url),
        .token = copy(conf->token),
        .token_file = copy(conf->token_file),
        .ca = copy(conf->ca),
        .client_cert = copy(conf->client_cert),
        .client_key = copy(conf->client_key),
        .verify_key = copy(conf->verify_key),
        .poll_ms = conf->poll_ms,
        .timeout_ms = conf->timeout_ms,
    };
    s->shown_url = cv_sync_shown_url(conf->url);
    cv_timer_init(&s->timer, on_timer);
    int ret = cv_httpc_new(loop, &s->client);
    if (ret == 0 && s->conf.verify_key[0] != '\0')
        ret = cv_verify_key_load(s->conf.verify_key, &s->key);
    if (ret != 0) {
        cv_sync_free(s);
        return ret;
    }
    next_after(s, 0);
    *ret_sync = s;
    return 0;
}

void cv_sync_free(struct cv_sync *s)
{
    if (s == NULL)
        return;
    cv_loop_timer_stop(s->loop, &s->timer);
    cv_httpc_cancel(s->call);
    cv_httpc_free(s->client);
    cv_verify_key_free(s->key);
    const char *texts[] = {s->conf.url,         s->conf.token,      s->conf.token_file, s->conf.ca,
                           s->conf.client_cert, s->conf.client_key, s->conf.verify_key};
    for (size_t i = 0; i < CV_ARRAY_SIZE(texts); i++) {
        char *text = (char *)(uintptr_t)texts[i];
        cv_secret_clear(text, strlen(text));
        cv_free(text);
    }
    cv_free(s->shown_url);
    cv_free(s);
}

void cv_sync_succeed(struct cv_sync *s, const struct cv_sync *before)
{
    s->st = before->st;
    s->st.failures_in_a_row = 0;
}

static void reload_key(struct cv_sync *s)
{
    struct cv_verify_key *key = NULL;
    if (s->key == NULL)
        return;
    int ret = cv_verify_key_load(s->conf.verify_key, &key);
    if (ret != 0) {
        cv_error(DOMAIN, "verify_key '%s' cannot be read, the old key stays: %s",
                 s->conf.verify_key, cv_err_text(ret));
        return;
    }
    cv_verify_key_free(s->key);
    s->key = key;
}

void cv_sync_now(struct cv_sync *s)
{
    reload_key(s);
    if (s->call != NULL && !s->held)
        return;
    cv_httpc_cancel(s->call);
    s->call = NULL;
    s->wait_s = 0; /* an answer at once */
    ask(s);
}

void cv_sync_status(const struct cv_sync *s, struct cv_sync_status *ret)
{
    *ret = s->st;
    ret->url = s->shown_url;
    ret->busy = s->call != NULL;
    ret->waits = s->wait_s > 0 || s->held;
    ret->is_signed = s->key != NULL;
    ret->next_in_ms = s->call != NULL ? -1 : CV_MAX(0, s->timer._due_ms - cv_loop_now(s->loop));
}
