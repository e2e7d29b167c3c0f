#include "tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"

static char last[4096];
static size_t last_len;
static unsigned lines;

static void capture(void *arg, const char *line, size_t len)
{
    T_OK(arg == &lines);
    last_len = CV_MIN(len, sizeof(last) - 1);
    memcpy(last, line, last_len);
    last[last_len] = '\0';
    lines++;
}

static void start(enum cv_log_level level, enum cv_log_format format)
{
    cv_log_configure(level, format);
    cv_log_set_sink(capture, &lines);
    lines = 0;
    last[0] = '\0';
}

static bool looks_like_time(const char *s)
{
    const char *shape = "dddd-dd-ddTdd:dd:dd.dddZ";
    for (; *shape != '\0'; shape++, s++) {
        if (*shape == 'd' ? *s < '0' || *s > '9' : *s != *shape)
            return false;
    }
    return true;
}

static void text_lines(void)
{
    start(CV_LOG_TRACE, CV_LOG_TEXT);
    cv_info("node", "started, listeners=%d name='%s'", 2, "main");
    T_OK(looks_like_time(last));
    T_STR_EQ(last + 24, " info  node: started, listeners=2 name='main'\n");
    cv_error("node", "e");
    T_STR_EQ(last + 24, " error node: e\n");
    cv_warn("node", "w");
    T_STR_EQ(last + 24, " warn  node: w\n");
    cv_debug("node", "d");
    T_STR_EQ(last + 24, " debug node: d\n");
    T_INT_EQ(lines, 4);
}

static void json_lines(void)
{
    start(CV_LOG_INFO, CV_LOG_JSON);
    cv_info("node", "quote=\" backslash=\\ tab=\t bad=\xff euro=\xe2\x82\xac");
    T_MEM_EQ(last, "{\"time\":\"", 9);
    T_OK(looks_like_time(last + 9));
    T_STR_EQ(last + 33, "\",\"level\":\"info\",\"domain\":\"node\",\"message\":\"quote=\\\" "
                        "backslash=\\\\ tab=\\u0009 bad=\\ufffd euro=\xe2\x82\xac\"}\n");
}

static void levels_filter(void)
{
    start(CV_LOG_WARN, CV_LOG_TEXT);
    cv_info("x", "not this");
    cv_debug("x", "nor this");
    T_INT_EQ(lines, 0);
    cv_warn("x", "but this");
    cv_error("x", "and this");
    T_INT_EQ(lines, 2);
}

static void level_names(void)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    enum cv_log_level level = CV_LOG_ERROR;
    for (int i = 0; i < 5; i++) {
        T_INT_EQ(cv_log_level_parse(names[i], &level), 0);
        T_INT_EQ(level, i);
    }
    T_INT_EQ(cv_log_level_parse("INFO", &level), CV_E_INVALID);
    T_INT_EQ(cv_log_level_parse("", &level), CV_E_INVALID);
    T_INT_EQ(cv_log_level_parse("warning", &level), CV_E_INVALID);
}

static void lines_cannot_be_forged(void)
{
    start(CV_LOG_INFO, CV_LOG_TEXT);
    cv_info("x", "user='%s'", "a\n2026-01-01T00:00:00.000Z error x: forged\r\x1b[2J\x7f");
    T_STR_EQ(last + 24, " info  x: user='a\\x0a2026-01-01T00:00:00.000Z error x: "
                        "forged\\x0d\\x1b[2J\\x7f'\n");
    /* CSI as one C1 character, line separator, right-to-left override; bytes that are no UTF-8. */
    cv_info("x", "%s",
            "\xc2\x9b"
            "2J\xe2\x80\xa8\xe2\x80\xae\xff\xc3");
    T_STR_EQ(last + 24, " info  x: \\x9b2J\\u2028\\u202e\\xff\\xc3\n");
    cv_info("x", "%s", "\xc3\xa4 \xe6\x97\xa5");
    T_STR_EQ(last + 24, " info  x: \xc3\xa4 \xe6\x97\xa5\n");
}

static void long_lines_are_cut(void)
{
    char text[5000];
    for (int format = CV_LOG_TEXT; format <= CV_LOG_JSON; format++) {
        start(CV_LOG_INFO, (enum cv_log_format)format);
        const char *tail = format == CV_LOG_JSON ? "...\"}\n" : "...\n";
        /* Plain text, and text of which each byte grows when escaped. */
        for (int fill = 0; fill < 3; fill++) {
            memset(text, "x\n\xff"[fill], sizeof(text) - 1);
            text[sizeof(text) - 1] = '\0';
            cv_info("x", "%s", text);
            T_OK(last_len <= 2048 && last_len > 2030);
            T_STR_EQ(last + last_len - strlen(tail), tail);
            T_OK(memchr(last, '\n', last_len) == last + last_len - 1);
        }
        memset(text, 'x', 1000);
        text[1000] = '\0';
        cv_info("x", "%s", text);
        T_OK(strstr(last, "...") == NULL);
    }
}

static void errno_survives(void)
{
    start(CV_LOG_INFO, CV_LOG_TEXT);
    errno = ECONNREFUSED;
    cv_info("x", "%s", strerror(ENOENT));
    T_INT_EQ(errno, ECONNREFUSED);
}

static void a_burst_then_silence(void)
{
    start(CV_LOG_INFO, CV_LOG_TEXT);
    for (int i = 0; i < 1000; i++)
        cv_log_limited(CV_LOG_WARN, "x", "refused %d", i);
    T_INT_EQ(lines, 10);
    T_STR_EQ(last + 24, " warn  x: refused 9 left_out=0\n");

    struct cv_log_limit limit = {0};
    uint32_t left_out = 99;
    for (int i = 0; i < 10; i++)
        T_OK(cv_log_limit_pass(&limit, &left_out) && left_out == 0);
    for (int i = 0; i < 7; i++)
        T_OK(!cv_log_limit_pass(&limit, &left_out));
    limit._window_ms -= 60000; /* a minute later */
    if (limit._window_ms == 0)
        limit._window_ms = -1;
    T_OK(cv_log_limit_pass(&limit, &left_out));
    T_INT_EQ(left_out, 7);
    T_OK(cv_log_limit_pass(&limit, &left_out));
    T_INT_EQ(left_out, 0);
}

static void suppressed_levels_do_not_use_up_the_limit(void)
{
    start(CV_LOG_ERROR, CV_LOG_TEXT);
    for (int i = 0; i < 30; i++) {
        if (i == 20)
            cv_log_configure(CV_LOG_INFO, CV_LOG_TEXT);
        cv_log_limited(CV_LOG_INFO, "x", "m");
    }
    T_INT_EQ(lines, 10);
}

static void trace_by_domain(void)
{
    start(CV_LOG_INFO, CV_LOG_TEXT);
    T_OK(cv_log_traces("socks5"));
    T_OK(cv_log_traces("relay"));
    T_OK(!cv_log_traces("sock"));
    T_OK(!cv_log_traces(""));
    cv_trace("relay", "n=%d", 1);
    T_STR_EQ(last + 24, " trace relay: n=1\n");
    cv_trace("http", "n=%d", 2);
    T_INT_EQ(lines, 1);
}

static void *write_many(void *arg)
{
    for (int i = 0; i < 200; i++)
        cv_info("thread", "%s", (const char *)arg);
    return NULL;
}

static void standard_error_gets_whole_lines(void)
{
    start(CV_LOG_INFO, CV_LOG_TEXT);
    cv_log_set_sink(NULL, NULL);
    FILE *f = tmpfile();
    T_REQUIRE(f != NULL);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    pthread_t threads[3];
    static const char *const texts[] = {"aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb",
                                        "cccccccccccccccccccc"};
    for (size_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, write_many, (void *)(uintptr_t)texts[i]);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    dup2(saved, STDERR_FILENO);
    close(saved);

    rewind(f);
    char line[256];
    unsigned n = 0;
    bool whole = true;
    while (fgets(line, sizeof(line), f) != NULL) {
        n++;
        whole = whole && looks_like_time(line) && strlen(line) == 24 + 15 + 20 + 1 &&
                strspn(line + 39, (char[]){line[39], '\0'}) == 20;
    }
    T_INT_EQ(n, 600);
    T_OK(whole);
    fclose(f);
}

int main(void)
{
    setenv("CV_TRACE", "socks5,relay", 1);
    T_RUN(text_lines);
    T_RUN(json_lines);
    T_RUN(levels_filter);
    T_RUN(level_names);
    T_RUN(lines_cannot_be_forged);
    T_RUN(long_lines_are_cut);
    T_RUN(errno_survives);
    T_RUN(a_burst_then_silence);
    T_RUN(suppressed_levels_do_not_use_up_the_limit);
    T_RUN(trace_by_domain);
    T_RUN(standard_error_gets_whole_lines);
    return t_done();
}
