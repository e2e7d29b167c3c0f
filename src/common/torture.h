/* Fault injection for the torture build (-Dtorture=true): each fallible call asks cv_torture_fail()
 * first, which counts and returns true for the one call whose number was chosen with
 * CV_TORTURE_FAIL=N in the environment or cv_torture_arm(). In other builds it is constant false.
 */
#pragma once

#include "common/defs.h"

#ifdef CV_TORTURE
bool cv_torture_fail(const char *what);
void cv_torture_arm(uint64_t nth); /* 0 = never fail; resets the count */
uint64_t cv_torture_count(void);
#else
static inline bool cv_torture_fail(const char *what)
{
    (void)what;
    return false;
}
#endif
