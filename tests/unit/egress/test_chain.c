#include "chain_util.h"
#include "flow/stage.h"

#define A 0
#define B 1
#define C 2

static struct cv_member *member(unsigned i)
{
    struct cv_member *m;
    uint32_t priority;
    (void)cv_egress_chain_get(bench.egress, i, &m, &priority);
    return m;
}

static enum cv_vital_state state(unsigned i)
{
    return cv_vital_unpack(cv_member_word(member(i))).state;
}

static int dial(const char *host)
{
    fakes.tried[0] = '\0';
    memset(fakes.tried, 0, sizeof(fakes.tried));
    int err = dial_host(host, 80);
    if (err == 0)
        hang_up();
    return err;
}

static void wait_ms(int64_t ms)
{
    int64_t end = cv_clock_mono_ms() + ms;
    while (cv_clock_mono_ms() < end)
        cv_loop_turn(bench.worker->loop, end - cv_clock_mono_ms());
    cv_loop_turn(bench.worker->loop, 0);
}

static void test_first_member(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    T_STR_EQ(bench.egress->label->s, "chain:fo");
    T_INT_EQ(cv_egress_chain_count(bench.egress), 2);
    dial_start("x.test", 443, 5000);
    T_STR_EQ(fakes.tried, "a");
    T_OK(fakes.last.target == &bench.target);
    dial_wait();
    T_INT_EQ(bench.dial.err, 0);
    T_STR_EQ(bench.dial.outlet->s, "upstream:a:1");
    T_STR_EQ(bench.dial.member->s, "a");
    T_INT_EQ(bench.dial.attempts, 1);
    T_OK(bench.dial.stats == cv_registry_egress(bench.registry, "upstream:a:1"));
    T_INT_EQ(bench.dial.local.port, 99);
    T_INT_EQ(bench.dial.peer.port, 80);
    T_INT_EQ(fakes.dials[B], 0);
    T_INT_EQ(cv_counter_get(&member(A)->established), 1);
    hang_up();
    fakes_close();
}

static void test_fail_over(void)
{
    static const struct {
        enum cv_stage stage;
        int err;
    } faults[] = {
        {CV_STAGE_DIAL, -ECONNREFUSED},
        {CV_STAGE_DNS, CV_E_DNS_NXDOMAIN},
        {CV_STAGE_TLS, CV_E_TLS},
        {CV_STAGE_OUTBOUND, CV_E_AUTH},
        {CV_STAGE_EGRESS, CV_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < CV_ARRAY_SIZE(faults); i++) {
        fakes_open();
        bench.egress = chain_new("abc");
        fake_fails(A, faults[i].stage, faults[i].err, CV_BLAME_EGRESS);
        T_INT_EQ(dial("x.test"), 0);
        T_STR_EQ(fakes.tried, "ab");
        T_STR_EQ(bench.dial.member->s, "b");
        T_INT_EQ(bench.dial.attempts, 2);
        /* The dead one is remembered. */
        T_INT_EQ(dial("x.test"), 0);
        T_STR_EQ(fakes.tried, "b");
        T_INT_EQ(state(A), CV_VITAL_DOWN);
        T_INT_EQ(cv_counter_get(&member(A)->failed[CV_BLAME_EGRESS]), 1);
        fakes_close();
    }
}

/* Every member fails: one pass, in order, and no other way out. */
static void test_exhausted(void)
{
    fakes_open();
    bench.egress = chain_new("abc");
    for (unsigned i = 0; i < 3; i++)
        fake_fails(i, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    for (int round = 0; round < 3; round++) {
        T_INT_EQ(dial("x.test"), CV_E_UNAVAILABLE);
        T_STR_EQ(fakes.tried, "abc");
        T_INT_EQ(bench.dial.stage, CV_STAGE_CHAIN_EXHAUSTED);
        T_INT_EQ(bench.dial.attempts, 3);
        T_OK(bench.dial.stream == NULL && bench.dial.member == NULL && bench.dial.outlet == NULL);
    }
    T_INT_EQ(cv_stage_socks_rep(bench.dial.stage, bench.dial.err), 1);
    T_INT_EQ(cv_stage_http_status(bench.dial.stage, bench.dial.err), 502);
    T_STR_EQ(cv_stage_message(bench.dial.stage, bench.dial.err),
             "every member of the chain failed");
    /* The first that works again is found. */
    fakes.mode[C] = FAKE_WORKS;
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "abc");
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "c");
    fakes_close();
}

/* What all say about the target is what the client is told. */
static void test_target_refused(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    fake_fails(A, CV_STAGE_OUTBOUND, -ECONNREFUSED, CV_BLAME_TARGET);
    fake_fails(B, CV_STAGE_OUTBOUND, -ECONNREFUSED, CV_BLAME_TARGET);
    for (int i = 0; i < 10; i++) {
        T_INT_EQ(dial("x.test"), -ECONNREFUSED);
        T_STR_EQ(fakes.tried, "ab");
    }
    T_INT_EQ(bench.dial.stage, CV_STAGE_CHAIN_EXHAUSTED);
    T_INT_EQ(cv_stage_socks_rep(bench.dial.stage, bench.dial.err), 5);
    fake_fails(B, CV_STAGE_OUTBOUND, CV_E_POLICY, CV_BLAME_TARGET);
    T_INT_EQ(dial("x.test"), CV_E_UNAVAILABLE);
    fake_fails(B, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), CV_E_UNAVAILABLE);
    T_INT_EQ(state(A), CV_VITAL_UP);
    T_INT_EQ(state(B), CV_VITAL_DOWN);
    T_INT_EQ(cv_counter_get(&member(A)->failed[CV_BLAME_TARGET]), 12);
    fakes_close();
}

/* A failure that may be the target's counts when another member gets there. */
static void test_unsure(void)
{
    char host[16];
    fakes_open();
    bench.egress = chain_new("ab");
    fake_fails(A, CV_STAGE_OUTBOUND, -EHOSTUNREACH, CV_BLAME_UNSURE);
    fake_fails(B, CV_STAGE_OUTBOUND, -EHOSTUNREACH, CV_BLAME_UNSURE);
    for (int i = 0; i < 10; i++) {
        snprintf(host, sizeof(host), "x%d.test", i);
        T_INT_EQ(dial(host), CV_E_UNAVAILABLE); /* not sure, so not told as if it were */
    }
    T_INT_EQ(state(A), CV_VITAL_UP);
    fakes.mode[B] = FAKE_WORKS;
    for (int i = 0; i < 10; i++) {
        T_INT_EQ(dial("same.test"), 0);
        T_STR_EQ(fakes.tried, "ab");
    }
    T_INT_EQ(state(A), CV_VITAL_UP);
    for (int i = 0; i < 100 && state(A) == CV_VITAL_UP; i++) {
        snprintf(host, sizeof(host), "y%d.test", i);
        T_INT_EQ(dial(host), 0);
    }
    T_INT_EQ(state(A), CV_VITAL_DOWN);
    T_INT_EQ(state(B), CV_VITAL_UP);
    fakes_close();
}

/* This node's own shortage says nothing about a member. */
static void test_shortage(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    fake_fails(A, CV_STAGE_DIAL, -EMFILE, CV_BLAME_EGRESS);
    fake_fails(B, CV_STAGE_DIAL, -EMFILE, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), CV_E_UNAVAILABLE);
    T_STR_EQ(fakes.tried, "ab");
    T_INT_EQ(state(A), CV_VITAL_UP);
    T_INT_EQ(state(B), CV_VITAL_UP);
    fakes_close();
}

static void test_time_limits(void)
{
    fakes_open();
    bench.settings->chain_backoff_ms = 5000;
    bench.settings->chain_backoff_max_ms = 5000;
    bench.egress = chain_new("abcd");
    for (unsigned i = 0; i < 4; i++)
        fakes.mode[i] = FAKE_HANGS;
    int64_t start = cv_clock_mono_ms();
    /* The session's connect_timeout does not bound a chain. */
    fakes.tried[0] = '\0';
    dial_start("x.test", 80, 50);
    T_OK(fakes.last.deadline_ms - cv_loop_now(bench.worker->loop) == 200);
    dial_wait();
    int64_t took = cv_clock_mono_ms() - start;
    T_INT_EQ(bench.dial.err, -ETIMEDOUT);
    T_INT_EQ(bench.dial.stage, CV_STAGE_CHAIN_EXHAUSTED);
    T_INT_EQ(cv_stage_http_status(bench.dial.stage, bench.dial.err), 504);
    T_STR_EQ(fakes.tried, "abc"); /* 200 + 200 + 100 of 500 ms */
    T_INT_EQ(bench.dial.attempts, 3);
    T_INT_EQ(fakes.cancels, 3);
    T_OK(took >= 495 && took < 2000);
    T_INT_EQ(state(A), CV_VITAL_DOWN);
    T_INT_EQ(state(3), CV_VITAL_UP);
    /* Now the one that was not reached comes first. */
    fakes.mode[3] = FAKE_WORKS;
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "d");
    fakes_close();
}

/* When the back-off is over one dial probes, the others go on as before. */
static void test_probe(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    fake_fails(A, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), 0);
    fakes.mode[A] = FAKE_HANGS;
    wait_ms(310);
    memset(fakes.tried, 0, sizeof(fakes.tried));
    dial_start("x.test", 80, 5000);
    T_STR_EQ(fakes.tried, "a");
    T_INT_EQ(state(A), CV_VITAL_PROBING);
    struct cv_dial probe_like = {.worker = bench.worker,
                                 .target = &bench.target,
                                 .deadline_ms = INT64_MAX / 2,
                                 .done = on_dialled};
    cv_dial_start(bench.egress, &probe_like);
    T_STR_EQ(fakes.tried, "ab");
    dial_wait();
    T_STR_EQ(probe_like.member->s, "b");
    cv_stream_close(probe_like.stream, false);
    close(fakes.peer_fd);
    bench.answers = 0;
    dial_wait(); /* the probe, after its time limit, by the other member */
    T_STR_EQ(bench.dial.member->s, "b");
    hang_up();
    T_INT_EQ(state(A), CV_VITAL_DOWN);
    T_INT_EQ(cv_vital_unpack(cv_member_word(member(A))).level, 2);
    fakes.mode[A] = FAKE_WORKS;
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "b");
    wait_ms(610);
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "a");
    T_INT_EQ(state(A), CV_VITAL_UP);
    T_INT_EQ(cv_counter_get(&member(A)->probes), 2);
    fakes_close();
}

/* A member that is checked by others is not probed by dials. */
static void test_checked(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    atomic_store(&member(A)->checked, true);
    fake_fails(A, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), 0);
    wait_ms(310);
    fakes.mode[A] = FAKE_WORKS;
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "b");
    fake_fails(B, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "ba");
    fakes_close();
}

static void test_cancel(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    fakes.mode[A] = FAKE_HANGS;
    dial_start("x.test", 80, 5000);
    cv_dial_cancel(bench.egress, &bench.dial);
    T_INT_EQ(fakes.cancels, 1);
    /* Between two members. */
    fake_fails(A, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    fakes.mode[B] = FAKE_HANGS;
    memset(fakes.tried, 0, sizeof(fakes.tried));
    dial_start("x.test", 80, 5000);
    while (fakes.dials[B] == 0)
        cv_loop_turn(bench.worker->loop, 1);
    cv_dial_cancel(bench.egress, &bench.dial);
    T_INT_EQ(fakes.cancels, 2);
    wait_ms(250);
    T_INT_EQ(bench.answers, 0);
    T_INT_EQ(state(A), CV_VITAL_DOWN);
    T_INT_EQ(state(B), CV_VITAL_UP);
    /* A probe that is given up frees the place. */
    wait_ms(300);
    fakes.mode[A] = FAKE_HANGS;
    dial_start("x.test", 80, 5000);
    T_INT_EQ(state(A), CV_VITAL_PROBING);
    cv_dial_cancel(bench.egress, &bench.dial);
    T_INT_EQ(state(A), CV_VITAL_DOWN);
    fakes_close();
}

/* The state outlives the snapshot, and a new definition is a new member. */
static void test_swap(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    fake_fails(A, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), 0);
    struct cv_egress *next = chain_new("cab");
    cv_egress_unref(bench.egress);
    bench.egress = next;
    T_INT_EQ(state(1), CV_VITAL_DOWN);
    fake_fails(C, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    T_INT_EQ(dial("x.test"), 0);
    T_STR_EQ(fakes.tried, "cb");
    cv_members_sweep(fakes.members);
    T_INT_EQ(cv_members_count(fakes.members), 3);
    fakes_close();
}

static void dial_udp(void)
{
    memset(fakes.tried, 0, sizeof(fakes.tried));
    bench.answers = 0;
    bench.dial =
        (struct cv_dial){.worker = bench.worker, .deadline_ms = INT64_MAX / 2, .done = on_dialled};
    cv_dial_start_udp(bench.egress, &bench.dial);
    T_INT_EQ(bench.answers, 0);
    dial_wait();
}

/* Members that can carry UDP, in the same order; what one says about UDP is not held against it. */
static void test_udp(void)
{
    fakes_open();
    fakes.tcp_only[A] = true;
    bench.egress = chain_new("abc");
    dial_udp();
    T_INT_EQ(bench.dial.err, 0);
    T_OK(bench.dial.dgram != NULL);
    T_STR_EQ(fakes.tried, "b");
    T_STR_EQ(bench.dial.member->s, "b");
    T_INT_EQ(bench.dial.attempts, 1);

    fake_fails(B, CV_STAGE_OUTBOUND, CV_E_UNSUPPORTED, CV_BLAME_EGRESS);
    dial_udp();
    T_STR_EQ(fakes.tried, "bc");
    T_INT_EQ(bench.dial.attempts, 2);
    T_INT_EQ(state(B), CV_VITAL_UP);
    fake_fails(B, CV_STAGE_EGRESS, -EPROTONOSUPPORT, CV_BLAME_EGRESS);
    dial_udp();
    T_STR_EQ(fakes.tried, "bc");
    T_INT_EQ(bench.dial.attempts, 1);
    T_INT_EQ(state(B), CV_VITAL_UP);
    /* It cannot be reached: that counts. */
    fake_fails(B, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    dial_udp();
    T_INT_EQ(state(B), CV_VITAL_DOWN);
    dial_udp();
    T_STR_EQ(fakes.tried, "c");
    fake_fails(C, CV_STAGE_DIAL, -ECONNREFUSED, CV_BLAME_EGRESS);
    dial_udp();
    T_STR_EQ(fakes.tried, "cb");
    T_INT_EQ(bench.dial.err, CV_E_UNAVAILABLE);
    T_INT_EQ(bench.dial.stage, CV_STAGE_CHAIN_EXHAUSTED);
    fakes_close();
}

static void test_no_udp(void)
{
    fakes_open();
    fakes.tcp_only[A] = fakes.tcp_only[B] = true;
    bench.egress = chain_new("ab");
    dial_udp();
    T_STR_EQ(fakes.tried, "");
    T_INT_EQ(bench.dial.err, -EPROTONOSUPPORT);
    T_INT_EQ(bench.dial.stage, CV_STAGE_CHAIN_EXHAUSTED);
    T_INT_EQ(bench.dial.attempts, 0);
    /* Known at once, given up before it is told. */
    cv_dial_start_udp(bench.egress, &bench.dial);
    cv_dial_cancel(bench.egress, &bench.dial);
    bench.answers = 0;
    wait_ms(5);
    T_INT_EQ(bench.answers, 0);
    fakes_close();

    /* The same of members that only say so when they are asked. */
    fakes_open();
    bench.egress = chain_new("ab");
    fake_fails(A, CV_STAGE_EGRESS, -EPROTONOSUPPORT, CV_BLAME_EGRESS);
    fake_fails(B, CV_STAGE_EGRESS, -EPROTONOSUPPORT, CV_BLAME_EGRESS);
    dial_udp();
    T_INT_EQ(bench.dial.err, -EPROTONOSUPPORT);
    T_INT_EQ(bench.dial.attempts, 0);
    fakes_close();
}

/* A flow may go on after a swap if the chain is what it was. */
static void test_same(void)
{
    fakes_open();
    bench.egress = chain_new("ab");
    struct cv_egress *same = chain_new("ab"), *less = chain_new("a"), *turned = chain_new("ba");
    T_OK(cv_egress_same(bench.egress, same));
    T_OK(!cv_egress_same(bench.egress, less));
    T_OK(!cv_egress_same(less, bench.egress));
    T_OK(!cv_egress_same(bench.egress, turned));
    fakes.tcp_only[A] = true;
    struct cv_egress *other = chain_new("ab");
    T_OK(!cv_egress_same(bench.egress, other));
    cv_egress_unref(same);
    cv_egress_unref(less);
    cv_egress_unref(turned);
    cv_egress_unref(other);
    fakes_close();
}

static void test_no_memory(void)
{
    for (int i = 1; i <= 3; i++) {
        fakes_open();
        fakes.fail_at = i;
        T_OK(chain_new("abc") == NULL);
        T_INT_EQ(fakes.live, 0);
        fakes_close();
    }
}

int main(void)
{
    T_RUN(test_first_member);
    T_RUN(test_fail_over);
    T_RUN(test_exhausted);
    T_RUN(test_target_refused);
    T_RUN(test_unsure);
    T_RUN(test_shortage);
    T_RUN(test_time_limits);
    T_RUN(test_probe);
    T_RUN(test_checked);
    T_RUN(test_cancel);
    T_RUN(test_swap);
    T_RUN(test_udp);
    T_RUN(test_no_udp);
    T_RUN(test_same);
    T_RUN(test_no_memory);
    return t_done();
}
