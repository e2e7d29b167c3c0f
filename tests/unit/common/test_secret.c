#include "tap.h"

#include "common/alloc.h"
#include "common/secret.h"

static void equal_and_not(void)
{
    T_OK(cv_ct_equal("abc", 3, "abc", 3));
    T_OK(!cv_ct_equal("abc", 3, "abd", 3));
    T_OK(!cv_ct_equal("abc", 3, "abcd", 4));
    T_OK(!cv_ct_equal("abc", 3, "", 0));
    T_OK(cv_ct_equal("", 0, NULL, 0));
    T_OK(cv_ct_equal("a\0b", 3, "a\0b", 3));
    T_OK(!cv_ct_equal("a\0b", 3, "a\0c", 3));
}

static void cleared(void)
{
    char s[] = "hunter2";
    cv_secret_clear(s, sizeof(s));
    T_MEM_EQ(s, "\0\0\0\0\0\0\0\0", 8);
    cv_secret_clear(NULL, 0);
    cv_secret_free(NULL);
    cv_secret_free(cv_strdup("hunter2"));
}

int main(void)
{
    T_RUN(equal_and_not);
    T_RUN(cleared);
    return t_done();
}
