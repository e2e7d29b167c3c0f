#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/utf8.h"

#include "common/poison.h"

#define LINE_MAX_BYTES    2048 /* with the newline */
#define LIMIT_WINDOW_MS   60000
#define LIMIT_PER_WINDOW  10
#define TRACE_DOMAINS_MAX 32

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

enum cv_log_level cv_log_level_ = CV_LOG_INFO;
static enum cv_log_format log_format = CV_LOG_TEXT;

/* Guards the pair; it is copied out, so no sink is called under the lock. */
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static cv_log_sink_cb sink_fn;
static void *sink_arg; /* borrowed */

/* The domains of CV_TRACE; read once, at the first question. */
static pthread_once_t trace_once = PTHREAD_ONCE_INIT;
static char trace_list[512];
static const char *trace_domains[TRACE_DOMAINS_MAX];
static size_t n_trace_domains;

/* A line under construction. What does not fit is left out and the line is marked. */
struct line {
    size_t len;
    size_t cap; /* lowered while the tail must still fit */
    bool cut;
    char buf[LINE_MAX_BYTES];
};

void cv_log_configure(enum cv_log_level level, enum cv_log_format format)
{
    __atomic_store_n(&cv_log_level_, level, __ATOMIC_RELAXED);
    __atomic_store_n(&log_format, format, __ATOMIC_RELAXED);
}

void cv_log_set_sink(cv_log_sink_cb sink, void *arg)
{
    pthread_mutex_lock(&sink_lock);
    sink_fn = sink;
    sink_arg = arg;
    pthread_mutex_unlock(&sink_lock);
}

int cv_log_level_parse(const char *name, enum cv_log_level *ret_level)
{
    for (size_t i = 0; i < CV_ARRAY_SIZE(level_names); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *ret_level = (enum cv_log_level)i;
            return 0;
        }
    }
    return CV_E_INVALID;
}

static void read_trace_list(void)
{
    const char *env = getenv("CV_TRACE");
    if (env == NULL)
        return;
    snprintf(trace_list, sizeof(trace_list), "%s", env);
    char *rest = trace_list, *item;
    while ((item = strsep(&rest, ", ")) != NULL && n_trace_domains < TRACE_DOMAINS_MAX) {
        if (*item != '\0')
            trace_domains[n_trace_domains++] = item;
    }
}

bool cv_log_traces(const char *domain)
{
    pthread_once(&trace_once, read_trace_list);
    for (size_t i = 0; i < n_trace_domains; i++) {
        if (strcmp(trace_domains[i], domain) == 0 || strcmp(trace_domains[i], "all") == 0)
            return true;
    }
    return false;
}

static void put(struct line *l, const char *s, size_t len)
{
    if (l->cut || l->cap - l->len < len) {
        l->cut = true;
        return;
    }
    memcpy(l->buf + l->len, s, len);
    l->len += len;
}

static void put_str(struct line *l, const char *s)
{
    put(l, s, strlen(s));
}

/* Characters that could end the line, move the cursor of a terminal or turn the direction of what
 * follows: a peer must not be able to forge log lines. */
static bool is_harmful(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || (cp >= 0x200e && cp <= 0x200f) ||
           (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff;
}

static void put_escaped(struct line *l, const char *s, size_t len, bool json)
{
    while (len > 0) {
        uint32_t cp;
        char esc[8];
        size_t n = cv_utf8_decode(s, len, &cp);
        if (n == 0) {
            snprintf(esc, sizeof(esc), "\\x%02x", (uint8_t)*s);
            put_str(l, json ? "\\ufffd" : esc);
            n = 1;
        } else if (json && (cp == '"' || cp == '\\')) {
            esc[0] = '\\';
            esc[1] = (char)cp;
            put(l, esc, 2);
        } else if (is_harmful(cp)) {
            snprintf(esc, sizeof(esc), json || cp > 0xff ? "\\u%04x" : "\\x%02x", (unsigned)cp);
            put_str(l, esc);
        } else {
            put(l, s, n);
        }
        s += n;
        len -= n;
    }
}

static void build(struct line *l, enum cv_log_level level, const char *domain, const char *message,
                  size_t len)
{
    bool json = __atomic_load_n(&log_format, __ATOMIC_RELAXED) == CV_LOG_JSON;
    char time[CV_CLOCK_STRLEN];
    cv_clock_format(cv_clock_unix_ms(), time);
    const char *level_name = level_names[CV_MIN((size_t)level, CV_ARRAY_SIZE(level_names) - 1)];

    l->len = 0;
    l->cut = false;
    l->cap = sizeof(l->buf) - 6; /* '..."}\n' must fit in any case */
    put_str(l, json ? "{\"time\":\"" : "");
    put_str(l, time);
    put_str(l, json ? "\",\"level\":\"" : " ");
    put_str(l, level_name);
    put_str(l, json ? "\",\"domain\":\"" : (strlen(level_name) == 4 ? "  " : " "));
    put_escaped(l, domain, strlen(domain), json);
    put_str(l, json ? "\",\"message\":\"" : ": ");
    put_escaped(l, message, len, json);

    bool cut = l->cut;
    l->cut = false;
    l->cap = sizeof(l->buf);
    put_str(l, cut ? "..." : "");
    put_str(l, json ? "\"}\n" : "\n");
}

static void send_line(const struct line *l)
{
    pthread_mutex_lock(&sink_lock);
    cv_log_sink_cb fn = sink_fn;
    void *arg = sink_arg;
    pthread_mutex_unlock(&sink_lock);
    if (fn != NULL) {
        fn(arg, l->buf, l->len);
        return;
    }
    /* One write for the whole line keeps lines of several threads apart. If standard error is full
     * or gone the line is lost: waiting would stop the traffic. */
    size_t done = 0;
    while (done < l->len) {
        ssize_t n = write(STDERR_FILENO, l->buf + done, l->len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
}

void cv_log_write(enum cv_log_level level, const char *domain, const char *fmt, ...)
{
    int saved_errno = errno;
    /* Longer than a line, so that a message that is too long is seen to be. */
    char message[LINE_MAX_BYTES + 1];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : CV_MIN((size_t)n, sizeof(message) - 1);

    struct line l;
    build(&l, level, domain, message, len);
    send_line(&l);
    errno = saved_errno;
}

bool cv_log_limit_pass(struct cv_log_limit *limit, uint32_t *ret_left_out)
{
    int64_t now = CV_MAX(cv_clock_mono_ms(), 1);
    int64_t start = __atomic_load_n(&limit->_window_ms, __ATOMIC_RELAXED);
    /* Of several threads that see the window end, one starts the next. The others may still count
     * in the old one: a line more or less is no harm. */
    if ((start == 0 || now - start >= LIMIT_WINDOW_MS) &&
        __atomic_compare_exchange_n(&limit->_window_ms, &start, now, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        __atomic_store_n(&limit->_in_window, 0, __ATOMIC_RELAXED);
    /* Reading first keeps a flood from wrapping the count. */
    if (__atomic_load_n(&limit->_in_window, __ATOMIC_RELAXED) >= LIMIT_PER_WINDOW ||
        __atomic_fetch_add(&limit->_in_window, 1, __ATOMIC_RELAXED) >= LIMIT_PER_WINDOW) {
        __atomic_fetch_add(&limit->_left_out, 1, __ATOMIC_RELAXED);
        return false;
    }
    *ret_left_out = __atomic_exchange_n(&limit->_left_out, 0, __ATOMIC_RELAXED);
    return true;
}
