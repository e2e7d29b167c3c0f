#include "tap.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/torture.h"

#ifdef CV_TORTURE

/* Runs first: the environment counts until something is armed. */
static void environment_chooses_the_call(void)
{
    T_OK(!cv_torture_fail("one"));
    T_OK(!cv_torture_fail("two"));
    T_OK(cv_torture_fail("three"));
    T_OK(!cv_torture_fail("four"));
    T_INT_EQ(cv_torture_count(), 4);
}

static void nth_allocation_fails(void)
{
    cv_torture_arm(2);
    void *a = cv_try_alloc(1), *b = cv_try_zalloc(1), *c = cv_try_strndup("x", 1);
    T_OK(a != NULL && b == NULL && c != NULL);
    T_INT_EQ(cv_torture_count(), 3);
    cv_torture_arm(1);
    T_OK(cv_try_realloc_array(a, 10, 1) == NULL);
    cv_torture_arm(0);
    for (int i = 0; i < 10; i++) {
        void *p = cv_try_alloc(1);
        T_OK(p != NULL);
        cv_free(p);
    }
    cv_free(a);
    cv_free(b);
    cv_free(c);
}

static void aborting_allocators_are_not_counted(void)
{
    cv_torture_arm(1);
    cv_free(cv_alloc(1));
    cv_free(cv_zalloc(1));
    cv_free(cv_strdup("x"));
    T_INT_EQ(cv_torture_count(), 0);
    cv_torture_arm(0);
}

int main(void)
{
    setenv("CV_TORTURE_FAIL", "3", 1);
    T_RUN(environment_chooses_the_call);
    T_RUN(nth_allocation_fails);
    T_RUN(aborting_allocators_are_not_counted);
    return t_done();
}

#else

static void never_fails_in_an_ordinary_build(void)
{
    setenv("CV_TORTURE_FAIL", "1", 1);
    for (int i = 0; i < 10; i++) {
        T_OK(!cv_torture_fail("call"));
        void *p = cv_try_alloc(1);
        T_OK(p != NULL);
        cv_free(p);
    }
}

int main(void)
{
    T_RUN(never_fails_in_an_ordinary_build);
    return t_done();
}

#endif
