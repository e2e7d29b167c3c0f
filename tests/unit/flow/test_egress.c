#include "flow/egress.h"

#include "flow_util.h"

static int answers;
static int last_err;
static enum cv_stage last_stage;

static void on_done(struct cv_dial *d)
{
    answers++;
    last_err = d->err;
    last_stage = d->stage;
    cv_stream_close(d->stream, false);
}

static void test_dial(void)
{
    struct test_node n;
    test_node_start(&n);
    struct cv_egress *e = fake_factory(n.registry, NULL);
    struct cv_dial d = {.worker = n.worker, .done = on_done};

    fake.mode = FAKE_FAIL;
    fake.stage = CV_STAGE_DIAL;
    fake.err = -ECONNREFUSED;
    answers = 0;
    cv_dial_start(e, &d);
    T_INT_EQ(answers, 0); /* never from inside the call */
    TURN_UNTIL(n.worker->loop, answers == 1);
    T_INT_EQ(last_err, -ECONNREFUSED);
    T_INT_EQ(last_stage, CV_STAGE_DIAL);

    /* The answer is on its way when the caller gives up. */
    cv_dial_start(e, &d);
    cv_dial_cancel(e, &d);
    cv_loop_turn(n.worker->loop, 0);
    cv_loop_turn(n.worker->loop, 0);
    T_INT_EQ(answers, 1);
    T_INT_EQ(fake.cancels, 0); /* the egress had nothing to do with it */

    fake.mode = FAKE_HANG;
    cv_dial_start(e, &d);
    cv_dial_cancel(e, &d);
    T_INT_EQ(fake.cancels, 1);

    /* What the last dial left does not leak into the next. */
    d.err = -EIO;
    d.attempts = 9;
    fake.mode = FAKE_CONNECT;
    cv_dial_start(e, &d);
    TURN_UNTIL(n.worker->loop, answers == 2);
    T_INT_EQ(last_err, 0);
    T_INT_EQ(d.attempts, 0);
    close(fake.peer_fd);
    T_OK(cv_egress_ref(e) == e);
    cv_egress_unref(e);
    cv_egress_unref(e);
    cv_egress_unref(NULL);
    cv_loop_turn(n.worker->loop, 0);
    test_node_end(&n);
}

int main(void)
{
    T_RUN(test_dial);
    return t_done();
}
