#include "control/status.h"

#include "tap.h"

static void test_status(void)
{
    static const struct {
        struct cv_status_facts facts;
        enum cv_status want;
    } rows[] = {
        {{.draining = true}, CV_STATUS_DRAINING},
        {{.snapshot_loaded = false, .users = 3}, CV_STATUS_STARTING},
        {{.snapshot_loaded = true, .users = 0}, CV_STATUS_UNAVAILABLE},
        {{.snapshot_loaded = true, .users = 1, .listeners_wanted = 2, .listeners_up = 1},
         CV_STATUS_UNAVAILABLE},
        {{.snapshot_loaded = true, .users = 1, .listeners_wanted = 2, .listeners_up = 2},
         CV_STATUS_READY},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++) {
        struct cv_readiness r;
        cv_status_judge(&rows[i].facts, &r);
        T_INT_EQ(r.status, rows[i].want);
        T_OK((r.reason[0] == '\0') == (r.status == CV_STATUS_READY));
        T_OK(strcmp(cv_status_name(r.status), "unknown") != 0);
    }
}

int main(void)
{
    T_RUN(test_status);
    return t_done();
}
