#include "common/clock.h"

#include <stdio.h>
#include <time.h>

#include "common/err.h"

#include "common/poison.h"

#define DAY_S           86400
#define DURATION_MAX_MS (36500LL * DAY_S * 1000) /* 100 years: now + duration cannot overflow */

static int64_t read_clock(clockid_t id, int64_t per_second)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return ts.tv_sec * per_second + ts.tv_nsec / (1000000000 / per_second);
}

int64_t cv_clock_mono_ms(void)
{
    return read_clock(CLOCK_MONOTONIC, 1000);
}

int64_t cv_clock_mono_us(void)
{
    return read_clock(CLOCK_MONOTONIC, 1000000);
}

int64_t cv_clock_unix_ms(void)
{
    return read_clock(CLOCK_REALTIME, 1000);
}

/* Days since 1970-01-01 in the proleptic Gregorian calendar, counted in 400-year eras that begin
 * with March, so that a leap day is the last day of its year. */
static int64_t days_from_civil(int64_t year, unsigned month, unsigned day)
{
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    unsigned year_of_era = (unsigned)(year - era * 400);
    unsigned day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    unsigned day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + (int64_t)day_of_era - 719468;
}

static void civil_from_days(int64_t days, int64_t *ret_year, unsigned *ret_month, unsigned *ret_day)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    unsigned day_of_era = (unsigned)(days - era * 146097);
    unsigned year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    unsigned day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    unsigned mp = (5 * day_of_year + 2) / 153;
    *ret_day = day_of_year - (153 * mp + 2) / 5 + 1;
    *ret_month = mp < 10 ? mp + 3 : mp - 9;
    *ret_year = (int64_t)year_of_era + era * 400 + (*ret_month <= 2);
}

static char *put_digits(char *p, unsigned value, int n)
{
    for (int i = n - 1; i >= 0; i--, value /= 10)
        p[i] = (char)('0' + value % 10);
    return p + n;
}

/* By hand rather than by gmtime and snprintf: this runs for every line of the access log. */
char *cv_clock_format(int64_t unix_ms, char out[CV_CLOCK_STRLEN])
{
    int64_t seconds = unix_ms / 1000, ms = unix_ms % 1000;
    if (ms < 0) {
        ms += 1000;
        seconds--;
    }
    int64_t days = seconds / DAY_S, second = seconds % DAY_S;
    if (second < 0) {
        second += DAY_S;
        days--;
    }
    int64_t year;
    unsigned month, day;
    civil_from_days(days, &year, &month, &day);
    year = CV_MIN(CV_MAX(year, 0), 9999);

    char *p = put_digits(out, (unsigned)year, 4);
    *p++ = '-';
    p = put_digits(p, month, 2);
    *p++ = '-';
    p = put_digits(p, day, 2);
    *p++ = 'T';
    p = put_digits(p, (unsigned)(second / 3600), 2);
    *p++ = ':';
    p = put_digits(p, (unsigned)(second / 60 % 60), 2);
    *p++ = ':';
    p = put_digits(p, (unsigned)(second % 60), 2);
    *p++ = '.';
    p = put_digits(p, (unsigned)ms, 3);
    *p++ = 'Z';
    *p = '\0';
    return out;
}

static const struct {
    char name[3];
    int64_t ms;
} units[] = {{"d", DAY_S * 1000LL}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

/* The index of the unit at *s, with *s moved behind it; the number of units if there is none. */
static size_t parse_unit(const char **s)
{
    size_t len = 0;
    while ((*s)[len] >= 'a' && (*s)[len] <= 'z')
        len++;
    for (size_t i = 0; i < CV_ARRAY_SIZE(units); i++) {
        const char *name = units[i].name;
        if (len == 1 + (size_t)(name[1] != '\0') && (*s)[0] == name[0] &&
            (len == 1 || (*s)[1] == name[1])) {
            *s += len;
            return i;
        }
    }
    return CV_ARRAY_SIZE(units);
}

int cv_duration_parse(const char *s, int64_t *ret_ms)
{
    if (s[0] == '0' && s[1] == '\0') {
        *ret_ms = 0;
        return 0;
    }
    int64_t total = 0;
    size_t next_unit = 0; /* units come in falling order, each once */
    do {
        if (*s < '0' || *s > '9')
            return CV_E_PARSE;
        int64_t n = 0;
        for (; *s >= '0' && *s <= '9'; s++) {
            n = n * 10 + (*s - '0');
            if (n > DURATION_MAX_MS)
                return CV_E_PARSE;
        }
        size_t unit = parse_unit(&s);
        if (unit < next_unit || unit == CV_ARRAY_SIZE(units))
            return CV_E_PARSE;
        next_unit = unit + 1;
        if (CV_MUL_OVERFLOW(n, units[unit].ms, &n) || n > DURATION_MAX_MS - total)
            return CV_E_PARSE;
        total += n;
    } while (*s != '\0');
    *ret_ms = total;
    return 0;
}

static bool parse_digits(const char *s, size_t len, unsigned *ret_value)
{
    unsigned value = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        value = value * 10 + (unsigned)(s[i] - '0');
    }
    *ret_value = value;
    return true;
}

int cv_date_parse(const char *s, size_t len, int32_t *ret_days)
{
    unsigned year, month, day;
    if (len != 10 || s[4] != '-' || s[7] != '-' || !parse_digits(s, 4, &year) ||
        !parse_digits(s + 5, 2, &month) || !parse_digits(s + 8, 2, &day))
        return CV_E_PARSE;
    if (month < 1 || month > 12 || day < 1)
        return CV_E_PARSE;
    static const uint8_t month_days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (day > month_days[month - 1] + (unsigned)(leap && month == 2))
        return CV_E_PARSE;
    *ret_days = (int32_t)days_from_civil(year, month, day);
    return 0;
}

int32_t cv_date_at(int64_t unix_s)
{
    struct tm tm;
    time_t at = (time_t)unix_s;
    if (localtime_r(&at, &tm) == NULL)
        return (int32_t)(unix_s / DAY_S);
    return (int32_t)days_from_civil(tm.tm_year + 1900LL, (unsigned)tm.tm_mon + 1,
                                    (unsigned)tm.tm_mday);
}

int32_t cv_date_today(void)
{
    /* localtime_r takes a lock that all threads share, and each login asks; time zones change by
     * whole minutes, so each thread needs it once a minute only. */
    static __thread int64_t cached_minute = -1;
    static __thread int32_t cached_days;

    int64_t now = cv_clock_unix_ms() / 1000;
    if (now / 60 != cached_minute) {
        cached_days = cv_date_at(now);
        cached_minute = now / 60;
    }
    return cached_days;
}
