/* Clocks. Loop code takes its time from cv_loop_now(); these are for the loop itself, for logs and
 * for measuring. */
#pragma once

#include "common/defs.h"

int64_t cv_clock_mono_ms(void);
int64_t cv_clock_mono_us(void);
int64_t cv_clock_unix_ms(void);
/* "2026-01-31T12:34:56.789Z" */
#define CV_CLOCK_STRLEN 32
char *cv_clock_format(int64_t unix_ms, char out[CV_CLOCK_STRLEN]);

/* A duration as people write it: "500ms", "10s", "5m", "2h", "1d", also "1m30s"; "0" and "0s" are
 * zero. 0 and milliseconds, or CV_E_PARSE. */
int cv_duration_parse(const char *s, int64_t *ret_ms);

/* Days since 1970-01-01 of a "YYYY-MM-DD" date that exists in the calendar, or CV_E_PARSE. */
int cv_date_parse(const char *s, size_t len, int32_t *ret_days);
/* The date at a time (Unix seconds) in the local time zone, in the same unit; summer time counts.
 */
int32_t cv_date_at(int64_t unix_s);
/* Today in the local time zone. */
int32_t cv_date_today(void);
