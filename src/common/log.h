/* The operator's log. One line per event on standard error (or where the sink sends it), as text
 * or JSON: time, level, domain, message, then key=value fields written by the caller as part of
 * the message. error = needs a person; warn = we carried on; info = lifecycle; debug; trace is per
 * domain (CV_TRACE=socks5,relay). Messages are lower case without a full stop, variable text in
 * single quotes. Modules below flow do not log above debug. Secrets and payload are never logged.
 *
 * Peer-triggered messages use cv_log_limited(), which lets a burst through and then one line per
 * interval with the number left out. Safe from any thread. */
#pragma once

#include "common/defs.h"

enum cv_log_level {
    CV_LOG_ERROR = 0,
    CV_LOG_WARN,
    CV_LOG_INFO,
    CV_LOG_DEBUG,
    CV_LOG_TRACE,
};

enum cv_log_format {
    CV_LOG_TEXT = 0,
    CV_LOG_JSON,
};

/* Receives each finished line, with its newline, from any thread. */
typedef void (*cv_log_sink_cb)(void *arg, const char *line, size_t len);

void cv_log_configure(enum cv_log_level level, enum cv_log_format format);
/* Send lines to 'sink' in place of standard error; NULL restores it. */
void cv_log_set_sink(cv_log_sink_cb sink, void *arg);
/* 0 and the level for error|warn|info|debug|trace, else CV_E_INVALID. */
int cv_log_level_parse(const char *name, enum cv_log_level *ret_level);

extern enum cv_log_level cv_log_level_; /* read by cv_log_level() only */

/* The level in force; a reload may change it at any time. */
static inline enum cv_log_level cv_log_level(void)
{
    return __atomic_load_n(&cv_log_level_, __ATOMIC_RELAXED);
}

/* True if CV_TRACE names the domain, or "all". */
bool cv_log_traces(const char *domain);

void cv_log_write(enum cv_log_level level, const char *domain, const char *fmt, ...)
    CV_PRINTF(3, 4);

#define cv_log(level, domain, ...)                                                                 \
    do {                                                                                           \
        if ((level) <= cv_log_level())                                                             \
            cv_log_write((level), (domain), __VA_ARGS__);                                          \
    } while (0)
#define cv_error(domain, ...) cv_log(CV_LOG_ERROR, domain, __VA_ARGS__)
#define cv_warn(domain, ...)  cv_log(CV_LOG_WARN, domain, __VA_ARGS__)
#define cv_info(domain, ...)  cv_log(CV_LOG_INFO, domain, __VA_ARGS__)
#define cv_debug(domain, ...) cv_log(CV_LOG_DEBUG, domain, __VA_ARGS__)
#define cv_trace(domain, ...)                                                                      \
    do {                                                                                           \
        if (cv_log_traces(domain))                                                                 \
            cv_log_write(CV_LOG_TRACE, (domain), __VA_ARGS__);                                     \
    } while (0)

/* State of one rate-limited message; declare it static at the place that logs. */
struct cv_log_limit {
    int64_t _window_ms;
    uint32_t _in_window;
    uint32_t _left_out;
};
/* True if a line may be written now (at most 10 a minute); *ret_left_out = lines dropped before. */
bool cv_log_limit_pass(struct cv_log_limit *limit, uint32_t *ret_left_out);
#define cv_log_limited(level, domain, fmt, ...)                                                    \
    do {                                                                                           \
        static struct cv_log_limit limit_;                                                         \
        uint32_t left_out_;                                                                        \
        if ((level) <= cv_log_level() && cv_log_limit_pass(&limit_, &left_out_))                   \
            cv_log_write((level), (domain), fmt " left_out=%u", ##__VA_ARGS__, left_out_);         \
    } while (0)
