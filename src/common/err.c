#include "common/err.h"

#include <string.h>

#include "common/defs.h"

#include "common/poison.h"

/* Indexed by -1000 - code. */
static const char *const texts[] = {
    [0] = "more input is needed",
    [1] = "protocol error",
    [2] = "limit reached",
    [3] = "authentication failed",
    [4] = "user expired",
    [5] = "blocked by policy",
    [6] = "name does not exist",
    [7] = "name resolution failed",
    [8] = "name resolution timed out",
    [9] = "address is private or special",
    [10] = "not supported",
    [11] = "TLS failure",
    [12] = "canceled",
    [13] = "value out of range",
    [14] = "syntax error",
    [15] = "not found",
    [16] = "exists already",
    [17] = "shutting down",
    [18] = "ended by an operator",
    [19] = "unavailable",
    [20] = "too many failed logins",
    [21] = "password has changed",
};

_Static_assert(CV_ARRAY_SIZE(texts) == -1000 - CV_E_REVOKED + 1, "a code lacks its text");

const char *cv_err_text(int err)
{
    if (err == 0)
        return "success";
    if (err > 0)
        return "unknown error";
    if (err > CV_E_MORE) {
        const char *text = strerrordesc_np(-err);
        return text != NULL ? text : "unknown error";
    }
    /* In this order, so that INT_MIN does not overflow. */
    unsigned i = (unsigned)-1000 - (unsigned)err;
    return i < CV_ARRAY_SIZE(texts) ? texts[i] : "unknown error";
}
