/* Time of compiling a snapshot and of one decision, as the number of rules grows.
 *
 *     decide_bench            all tables
 *     decide_bench compile    only the largest document: 100,000 users, 10,000 policies,
 *                             200,000 selectors
 *     decide_bench FILE       only that document
 *
 * Build it without sanitizers and with -Dbuildtype=release for figures that mean something. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "policy/decide.h"

#define HOSTS 20000

static void add(struct cv_buf *b, const char *fmt, ...) CV_PRINTF(2, 3);

static void add(struct cv_buf *b, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (cv_buf_append(b, text, (size_t)n) != 0) {
        fprintf(stderr, "the document is too large\n");
        exit(1);
    }
}

static struct cv_snapshot *compile(struct cv_buf *b, const char *what)
{
    struct cv_snapshot_error err;
    struct cv_snapshot *s;
    int64_t best = INT64_MAX;

    for (int i = 0; i < 5; i++) {
        int64_t start = cv_clock_mono_us();
        int ret = cv_snapshot_compile((const char *)cv_buf_data(b), cv_buf_len(b), "n", &err, &s);
        int64_t took = cv_clock_mono_us() - start;
        if (ret != 0) {
            fprintf(stderr, "%s: %s: %s\n", what, err.path, err.text);
            exit(1);
        }
        best = CV_MIN(best, took);
        if (i < 4)
            cv_snapshot_unref(s);
    }
    struct rusage ru;
    getrusage(RUSAGE_SELF, &ru);
    printf("%-34s %8.2f MB json %8.1f ms compile %8.2f MB compiled %6ld MB peak\n", what,
           (double)cv_buf_len(b) / 1e6, (double)best / 1e3, (double)cv_snapshot_bytes(s) / 1e6,
           ru.ru_maxrss / 1024);
    return s;
}

/* Best of five passes, in ns per decision. */
static void decide(const struct cv_snapshot *s, const char *what, const char *const *hosts)
{
    struct cv_host *h = calloc(HOSTS, sizeof(*h));
    int64_t best = INT64_MAX;
    unsigned matched = 0;

    for (int i = 0; i < HOSTS; i++) {
        char name[128];
        snprintf(name, sizeof(name), hosts[i % 4], i / 256, i % 256);
        if (cv_host_parse(name, strlen(name), &h[i]) != 0)
            abort();
    }
    for (int pass = 0; pass < 5; pass++) {
        int64_t start = cv_clock_mono_us();
        matched = 0;
        for (int i = 0; i < HOSTS; i++) {
            struct cv_verdict v;
            cv_decide(s, 0, &h[i], NULL, &v);
            matched += v.route >= 0;
        }
        best = CV_MIN(best, cv_clock_mono_us() - start);
    }
    printf("  %-32s %8.1f ns/decision, %u of %d matched\n", what, (double)best * 1000 / HOSTS,
           matched, HOSTS);
    free(h);
}

static const char *const misses[] = {"www.host%d-%d.example.net", "h%d-%d.b.example.com",
                                     "a.b.host%d.example%d.org", "cdn%d.x%d.example.com"};
static const char *const hits[] = {"n%d-%d.a.example.com", "n%d-%d.a.example.com",
                                   "n%d-%d.a.example.com", "n%d-%d.a.example.com"};
static const char *const addresses[] = {"2001:db8::%x:%x", "2001:db8:0:1::%x:%x",
                                        "2001:db8::1:%x:%x", "2001:4860::%x:%x"};

static void rules(const char *what, const char *pattern, int n)
{
    struct cv_buf b;
    char title[64];

    cv_buf_init(&b, CV_SNAPSHOT_MAX_BYTES);
    add(&b, "{\"schema_version\":1,\"version\":1,\"users\":{\"u\":{\"password\":\"p\","
            "\"policy\":\"p\"}},\"routing_policies\":{\"p\":{\"routes\":[");
    for (int i = 0; i < n; i++) {
        /* 100 selectors a route leave room for 200,000 in 8 MiB. */
        if (i % 100 == 0)
            add(&b, "%s{\"selectors\":[", i > 0 ? "," : "");
        else
            add(&b, ",");
        add(&b, pattern, i / 256, i % 256);
        if (i % 100 == 99 || i == n - 1)
            add(&b, "],\"action\":{\"type\":\"block\"}}");
    }
    add(&b, "]}}}");
    snprintf(title, sizeof(title), "%d %s", n, what);
    struct cv_snapshot *s = compile(&b, title);
    decide(s, "names that miss", misses);
    decide(s, "names of the rules", hits);
    decide(s, "addresses", addresses);
    cv_snapshot_unref(s);
    cv_buf_done(&b);
}

static void largest(void)
{
    struct cv_buf b;

    cv_buf_init(&b, CV_SNAPSHOT_MAX_BYTES);
    add(&b, "{\"schema_version\":1,\"version\":1,\"users\":{");
    for (int i = 0; i < 100000; i++)
        add(&b, "%s\"u%d\":{\"password\":\"p\",\"policy\":\"p%d\"}", i > 0 ? "," : "", i,
            i % 10000);
    add(&b, "},\"routing_policies\":{");
    for (int i = 0; i < 10000; i++) {
        add(&b, "%s\"p%d\":{\"routes\":[{\"selectors\":[", i > 0 ? "," : "", i);
        for (int j = 0; j < 20; j++)
            add(&b, "%s\"h%d.c\"", j > 0 ? "," : "", i * 20 + j);
        add(&b, "],\"action\":{\"type\":\"block\"}}]}");
    }
    add(&b, "}}");
    struct cv_snapshot *s = compile(&b, "100k users, 10k policies, 200k sel");
    decide(s, "names that miss", misses);
    cv_snapshot_unref(s);
    cv_buf_done(&b);
}

static int file(const char *path)
{
    struct cv_buf b;
    char *text;
    size_t len;

    cv_buf_init(&b, CV_SNAPSHOT_MAX_BYTES);
    if (cv_file_read(path, CV_SNAPSHOT_MAX_BYTES, &text, &len) != 0 ||
        cv_buf_append(&b, text, len) != 0) {
        fprintf(stderr, "cannot read '%s'\n", path);
        return 1;
    }
    cv_free(text);
    struct cv_snapshot *s = compile(&b, path);
    decide(s, "names that miss", misses);
    cv_snapshot_unref(s);
    cv_buf_done(&b);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "compile") != 0)
        return file(argv[1]);
    largest();
    if (argc > 1)
        return 0;
    static const int counts[] = {2000, 200000};
    for (size_t i = 0; i < CV_ARRAY_SIZE(counts); i++) {
        rules("full:", "\"full:n%d-%d.a.example.com\"", counts[i]);
        rules("suffix", "\"n%d-%d.a.example.com\"", counts[i]);
        rules("keyword:", "\"keyword:n%d-%d.a\"", counts[i]);
        rules("prefixes", "\"2001:db8:%x:%x::/64\"", counts[i]);
    }
    return 0;
}
