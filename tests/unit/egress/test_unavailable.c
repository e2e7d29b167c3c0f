#include "egress/egress.h"
#include "egress_util.h"

static void test_refuses(void)
{
    struct cv_rcstr *label = cv_rcstr_new("tunnel:pool", 11);
    struct cv_egress_def def = {.label = label};
    bench_open();
    bench.egress = cv_egress_unavailable_new(&def, cv_registry_egress(bench.registry, label->s));
    cv_rcstr_unref(label);
    T_STR_EQ(bench.egress->label->s, "tunnel:pool");
    T_INT_EQ(dial_host("example.test", 80), CV_E_UNSUPPORTED);
    T_INT_EQ(bench.dial.stage, CV_STAGE_EGRESS);
    T_OK(bench.dial.stream == NULL);
    dial_start("example.test", 80, 1000);
    cv_dial_cancel(bench.egress, &bench.dial);
    cv_loop_turn(bench.worker->loop, 0);
    T_INT_EQ(bench.answers, 0);
    bench_close();
}

int main(void)
{
    T_RUN(test_refuses);
    return t_done();
}
