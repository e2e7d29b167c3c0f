#include "common/torture.h"

#ifdef CV_TORTURE

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/poison.h"

static _Atomic uint64_t calls;
static _Atomic uint64_t target;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    const char *nth = getenv("CV_TORTURE_FAIL");
    if (nth != NULL)
        atomic_store(&target, strtoull(nth, NULL, 10));
}

bool cv_torture_fail(const char *what)
{
    pthread_once(&once, read_environment);
    uint64_t n = atomic_fetch_add(&calls, 1) + 1;
    if (n != atomic_load(&target))
        return false;
    fprintf(stderr, "torture: failing call %llu: %s\n", (unsigned long long)n, what);
    return true;
}

void cv_torture_arm(uint64_t nth)
{
    pthread_once(&once, read_environment);
    atomic_store(&target, nth);
    atomic_store(&calls, 0);
}

uint64_t cv_torture_count(void)
{
    return atomic_load(&calls);
}

#endif
