#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/defs.h"
#include "common/log.h"

#include "common/poison.h"

static _Atomic uint64_t bugs;

/* Straight to standard error: the logger may be what is broken. */
void cv_assert_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "culvert: assertion failed: %s (%s:%d)\n", expr, file, line);
    abort();
}

void cv_bug_report(const char *expr, const char *file, int line, bool *reported)
{
    atomic_fetch_add_explicit(&bugs, 1, memory_order_relaxed);
    if (!__atomic_exchange_n(reported, true, __ATOMIC_RELAXED))
        cv_error("bug", "impossible state, carrying on: %s (%s:%d)", expr, file, line);
}

uint64_t cv_bug_count(void)
{
    return atomic_load_explicit(&bugs, memory_order_relaxed);
}
