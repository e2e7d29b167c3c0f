#include "tap.h"

#include <errno.h>
#include <limits.h>

#include "common/defs.h"
#include "common/err.h"

static void every_code_has_its_own_text(void)
{
    for (int a = CV_E_MORE; a >= CV_E_REVOKED; a--) {
        T_OK(strcmp(cv_err_text(a), "unknown error") != 0);
        for (int b = a - 1; b >= CV_E_REVOKED; b--)
            T_OK(strcmp(cv_err_text(a), cv_err_text(b)) != 0);
    }
}

static void libc_codes(void)
{
    T_STR_EQ(cv_err_text(0), "success");
    T_STR_EQ(cv_err_text(-ECONNREFUSED), "Connection refused");
    T_STR_EQ(cv_err_text(-ENOENT), "No such file or directory");
}

static void codes_that_do_not_exist(void)
{
    static const int codes[] = {1,    INT_MAX,          INT_MIN,   INT_MIN + 1,
                                -999, CV_E_REVOKED - 1, -(1 << 20)};
    for (size_t i = 0; i < CV_ARRAY_SIZE(codes); i++)
        T_STR_EQ(cv_err_text(codes[i]), "unknown error");
}

int main(void)
{
    T_RUN(every_code_has_its_own_text);
    T_RUN(libc_codes);
    T_RUN(codes_that_do_not_exist);
    return t_done();
}
