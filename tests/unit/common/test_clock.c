#include "tap.h"

#include <stdlib.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"

static void clocks_go_forward(void)
{
    int64_t ms = cv_clock_mono_ms(), us = cv_clock_mono_us();
    T_OK(ms >= 0 && us / 1000 - ms >= 0 && us / 1000 - ms < 5000);
    T_OK(cv_clock_mono_us() >= us);
    T_OK(llabs(cv_clock_unix_ms() / 1000 - (int64_t)time(NULL)) <= 1);
}

static void formats(void)
{
    static const struct {
        int64_t ms;
        const char *text;
    } cases[] = {
        {0, "1970-01-01T00:00:00.000Z"},
        {1, "1970-01-01T00:00:00.001Z"},
        {-1, "1969-12-31T23:59:59.999Z"},
        {1769862896789, "2026-01-31T12:34:56.789Z"},
        {951782400000, "2000-02-29T00:00:00.000Z"},
        {4107542399999, "2100-02-28T23:59:59.999Z"},
        {4107542400000, "2100-03-01T00:00:00.000Z"},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        char out[CV_CLOCK_STRLEN];
        T_STR_EQ(cv_clock_format(cases[i].ms, out), cases[i].text);
    }
    char out[CV_CLOCK_STRLEN];
    T_INT_EQ(strlen(cv_clock_format(INT64_MAX, out)), 24);
    T_INT_EQ(strlen(cv_clock_format(INT64_MIN, out)), 24);
}

static void equals_libc_calendar(void)
{
    srand(3);
    bool same = true;
    for (int i = 0; i < 20000 && same; i++) {
        time_t t = (time_t)((uint64_t)rand() * 4 % 10000000000ULL);
        struct tm tm;
        gmtime_r(&t, &tm);
        char want[CV_CLOCK_STRLEN], got[CV_CLOCK_STRLEN];
        strftime(want, sizeof(want), "%Y-%m-%dT%H:%M:%S.000Z", &tm);
        same = T_OK(strcmp(want, cv_clock_format(t * 1000LL, got)) == 0);
        int32_t days;
        same = same && cv_date_parse(want, 10, &days) == 0 && days == t / 86400;
    }
    T_OK(same);
}

static void durations(void)
{
    static const struct {
        const char *text;
        int64_t ms; /* -1: refused */
    } cases[] = {
        {"0", 0},
        {"0s", 0},
        {"0ms", 0},
        {"500ms", 500},
        {"10s", 10000},
        {"5m", 300000},
        {"2h", 7200000},
        {"1d", 86400000},
        {"1m30s", 90000},
        {"1d2h3m4s5ms", 93784005},
        {"1h0m1ms", 3600001},
        {"007s", 7000},
        {"36500d", 36500LL * 86400000},
        {"36501d", -1},
        {"36500d1ms", -1},
        {"", -1},
        {"1", -1},
        {"00", -1},
        {"s", -1},
        {"1x", -1},
        {"1sec", -1},
        {"-1s", -1},
        {"+1s", -1},
        {" 1s", -1},
        {"1s ", -1},
        {"1 s", -1},
        {"1.5s", -1},
        {"1s1m", -1},
        {"1s1s", -1},
        {"1S", -1},
        {"1m1", -1},
        {"10us", -1},
        {"99999999999999999999s", -1},
        {"3155760000001ms", -1},
        {"9223372036854775807ms", -1},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        int64_t ms = -7;
        int ret = cv_duration_parse(cases[i].text, &ms);
        bool ok = cases[i].ms < 0 ? T_INT_EQ(ret, CV_E_PARSE) && T_INT_EQ(ms, -7)
                                  : T_INT_EQ(ret, 0) && T_INT_EQ(ms, cases[i].ms);
        if (!ok)
            printf("#   text '%s'\n", cases[i].text);
    }
}

static void dates(void)
{
    static const struct {
        const char *text;
        int32_t days; /* INT32_MIN: refused */
    } cases[] = {
        {"1970-01-01", 0},          {"1969-12-31", -1},         {"2026-01-31", 20484},
        {"2024-02-29", 19782},      {"0000-01-01", -719528},    {"9999-12-31", 2932896},
        {"2000-02-29", 11016},      {"2023-02-29", INT32_MIN},  {"1900-02-29", INT32_MIN},
        {"2026-13-01", INT32_MIN},  {"2026-00-01", INT32_MIN},  {"2026-01-00", INT32_MIN},
        {"2026-01-32", INT32_MIN},  {"2026-04-31", INT32_MIN},  {"2026-1-31", INT32_MIN},
        {"2026/01/31", INT32_MIN},  {"2026-01-3a", INT32_MIN},  {"", INT32_MIN},
        {"2026-01-31 ", INT32_MIN}, {" 2026-01-31", INT32_MIN}, {"-026-01-31", INT32_MIN},
        {"+026-01-31", INT32_MIN},  {"20260131", INT32_MIN},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(cases); i++) {
        int32_t days = -7;
        int ret = cv_date_parse(cases[i].text, strlen(cases[i].text), &days);
        bool ok = cases[i].days == INT32_MIN ? T_INT_EQ(ret, CV_E_PARSE)
                                             : T_INT_EQ(ret, 0) && T_INT_EQ(days, cases[i].days);
        if (!ok)
            printf("#   text '%s'\n", cases[i].text);
    }
}

static void today_is_local(void)
{
    /* Retried in case midnight passes in between. */
    for (int i = 0; i < 3; i++) {
        time_t now = time(NULL);
        struct tm tm;
        localtime_r(&now, &tm);
        char text[16];
        strftime(text, sizeof(text), "%Y-%m-%d", &tm);
        int32_t days;
        T_REQUIRE(cv_date_parse(text, 10, &days) == 0);
        if (days == cv_date_today()) {
            T_INT_EQ(cv_date_today(), days);
            return;
        }
    }
    T_FAIL("today differs from the local date");
}

/* A day is as long as the zone says: 23 hours when summer time begins, 25 when it ends. */
static void days_with_summer_time(void)
{
    static const struct {
        int64_t last_s; /* the last second of a day, in UTC */
        const char *day;
    } rows[] = {
        {1774738799, "2026-03-28"}, /* 22:59:59 UTC, 23:59:59 CET */
        {1774821599, "2026-03-29"}, /* 21:59:59 UTC, 23:59:59 CEST */
        {1792879199, "2026-10-24"}, /* 21:59:59 UTC */
        {1792969199, "2026-10-25"}, /* 22:59:59 UTC */
    };
    char before[64];
    snprintf(before, sizeof(before), "%s", getenv("TZ"));
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    T_INT_EQ(rows[1].last_s - rows[0].last_s, 23 * 3600);
    T_INT_EQ(rows[3].last_s - rows[2].last_s, 25 * 3600);
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        int32_t day = 0;
        T_INT_EQ(cv_date_parse(rows[i].day, 10, &day), 0);
        T_INT_EQ(cv_date_at(rows[i].last_s), day);
        T_INT_EQ(cv_date_at(rows[i].last_s + 1), day + 1);
        T_INT_EQ(cv_date_at(rows[i].last_s - 23 * 3600 + 1), day);
    }
    setenv("TZ", before, 1);
    tzset();
}

int main(void)
{
    /* A zone whose date differs from UTC for most of the day; no zone database is needed. */
    setenv("TZ", "XYZ-13", 1);
    tzset();
    T_RUN(clocks_go_forward);
    T_RUN(formats);
    T_RUN(equals_libc_calendar);
    T_RUN(durations);
    T_RUN(dates);
    T_RUN(today_is_local);
    T_RUN(days_with_summer_time);
    return t_done();
}
