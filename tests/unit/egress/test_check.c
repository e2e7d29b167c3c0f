#include "egress/check.h"

#include "chain_util.h"

/* Control's loop and the worker's, both turned by the test. */
static struct {
    struct cv_loop *control;
    struct cv_checks *checks;
    struct cv_active active;
    struct cv_egress *egresses[8];
    int more; /* chains */
} c;

static void use_snapshot(const char *letters)
{
    for (uint32_t i = 0; i < c.active.n_egresses; i++)
        cv_egress_unref(c.egresses[i]);
    cv_snapshot_unref(c.active.snapshot);
    c.active.snapshot = chains_snapshot(letters, c.more);
    c.active.egresses = c.egresses;
    c.active.n_egresses = cv_snapshot_n_egresses(c.active.snapshot);
    for (uint32_t i = 0; i < c.active.n_egresses; i++) {
        const struct cv_egress_def *def = cv_snapshot_egress(c.active.snapshot, i);
        c.egresses[i] =
            def->is_chain
                ? cv_egress_chain_new(def, cv_registry_egress(bench.registry, def->label->s),
                                      fakes.members, fake_factory, NULL, cv_loop_now(c.control))
                : fake_factory(NULL, def);
    }
}

static struct cv_check_conf conf_of(const char *id, int64_t interval_ms, int64_t timeout_ms)
{
    struct cv_check_conf conf = {
        .egress_id = id, .interval_ms = interval_ms, .timeout_ms = timeout_ms};
    if (cv_target_parse("probe.test:443", 14, 0, &conf.target) != 0)
        abort();
    return conf;
}

static void bind_chain(const char *id, int64_t interval_ms, int64_t timeout_ms)
{
    struct cv_check_conf conf = conf_of(id, interval_ms, timeout_ms);
    cv_checks_bind(c.checks, &c.active, &conf, 1);
}

static void open_all(const char *letters)
{
    fakes_open();
    memset(&c, 0, sizeof(c));
    if (cv_loop_new(&c.control) != 0)
        abort();
    c.checks = cv_checks_new(c.control, &bench.worker, 1, fakes.members);
    use_snapshot(letters);
}

static void turn(int64_t ms)
{
    int64_t end = cv_clock_mono_ms() + ms;
    do {
        if (fakes.peer_fd >= 0)
            close(fakes.peer_fd);
        fakes.peer_fd = -1;
        cv_loop_turn(c.control, 1);
        cv_loop_turn(bench.worker->loop, 1);
    } while (cv_clock_mono_ms() < end);
}

static void close_all(void)
{
    cv_checks_stop(c.checks);
    cv_checks_cancel(bench.worker, c.checks);
    cv_checks_free(c.checks);
    for (uint32_t i = 0; i < c.active.n_egresses; i++)
        cv_egress_unref(c.egresses[i]);
    cv_snapshot_unref(c.active.snapshot);
    cv_loop_free(c.control); /* asserts that no timer is left */
    fakes_close();
}

/* That the condition comes true, in ten seconds at most. */
#define TURN_UNTIL(cond)                                                                           \
    do {                                                                                           \
        int64_t end_ = cv_clock_mono_ms() + 10000;                                                 \
        while (!(cond) && cv_clock_mono_ms() < end_)                                               \
            turn(1);                                                                               \
        T_OK(cond);                                                                                \
    } while (0)

static struct cv_member *chain_member(unsigned i)
{
    struct cv_member *m = NULL;
    uint32_t priority;
    for (uint32_t k = 0; k < c.active.n_egresses; k++)
        if (cv_egress_chain_count(c.egresses[k]) > i)
            (void)cv_egress_chain_get(c.egresses[k], i, &m, &priority);
    return m;
}

static enum cv_vital_state state(unsigned i)
{
    return cv_vital_unpack(cv_member_word(chain_member(i))).state;
}

static void count_single(void *arg, const struct cv_member_info *info)
{
    int *n = arg;
    (*n)++;
    T_OK(info->member->id == NULL);
    T_STR_EQ(info->member->egress_id->s, "one");
}

static void test_chain(void)
{
    int singles = 0;
    open_all("ab");
    fake_fails(1, CV_STAGE_OUTBOUND, -EHOSTUNREACH, CV_BLAME_TARGET);
    bind_chain("fo", 100, 100);
    T_OK(atomic_load(&chain_member(0)->checked) && atomic_load(&chain_member(1)->checked));
    TURN_UNTIL(cv_counter_get(&chain_member(0)->checks) >= 3 &&
               cv_counter_get(&chain_member(1)->checks) >= 3);
    T_INT_EQ(fakes.last.target->port, 443);
    T_STR_EQ(fakes.last.target->host.name, "probe.test");
    T_INT_EQ(state(0), CV_VITAL_UP);
    /* The target is known to be there: who says it is not has failed. */
    T_INT_EQ(state(1), CV_VITAL_DOWN);
    T_INT_EQ(cv_counter_get(&chain_member(0)->checks_failed), 0);
    T_OK(cv_counter_get(&chain_member(1)->checks_failed) >= 3);
    T_INT_EQ(cv_counter_get(&chain_member(1)->attempts), 0);
    /* It comes back when a check succeeds after its back-off. */
    fakes.mode[1] = FAKE_WORKS;
    TURN_UNTIL(state(1) == CV_VITAL_UP);
    cv_checks_each_single(c.checks, 0, count_single, &singles);
    T_INT_EQ(singles, 0);
    close_all();
}

static void test_silent(void)
{
    open_all("a");
    fakes.mode[0] = FAKE_HANGS;
    bind_chain("fo", 100, 120);
    TURN_UNTIL(cv_counter_get(&chain_member(0)->checks) >= 2);
    T_OK(fakes.cancels >= 2);
    T_INT_EQ(state(0), CV_VITAL_DOWN);
    close_all();
}

static void test_single(void)
{
    int singles = 0;
    open_all("a");
    bind_chain("one", 100, 100);
    cv_checks_each_single(c.checks, cv_loop_now(c.control), count_single, &singles);
    T_INT_EQ(singles, 1);
    TURN_UNTIL(fakes.dials['p' - 'a'] >= 2);
    T_INT_EQ(fakes.dials[0], 0);
    close_all();
}

/* What is not wanted any more ends, also while it is on its way; what stays keeps its time. */
static void test_bind_again(void)
{
    open_all("ab");
    bind_chain("fo", 100, 10000);
    fakes.mode[0] = FAKE_HANGS;
    TURN_UNTIL(fakes.dials[0] == 1);
    struct cv_member *a = cv_member_ref(chain_member(0));
    use_snapshot("b");
    bind_chain("fo", 100, 10000);
    T_OK(!atomic_load(&a->checked));
    uint64_t before = cv_counter_get(&chain_member(0)->checks);
    TURN_UNTIL(cv_counter_get(&chain_member(0)->checks) >= before + 3);
    T_INT_EQ(fakes.dials[0], 1);
    cv_member_unref(a);
    cv_checks_bind(c.checks, &c.active, NULL, 0);
    T_OK(!atomic_load(&chain_member(0)->checked));
    bind_chain("nobody", 100, 10000);
    /* A long interval that becomes a short one is not waited for. */
    bind_chain("fo", 3600 * 1000, 10000);
    bind_chain("fo", 100, 10000);
    before = cv_counter_get(&chain_member(0)->checks);
    TURN_UNTIL(cv_counter_get(&chain_member(0)->checks) > before);
    close_all();
}

/* Ending while checks are with the worker. */
static void test_end(void)
{
    open_all("abc");
    for (unsigned i = 0; i < 3; i++)
        fakes.mode[i] = FAKE_HANGS;
    bind_chain("fo", 100, 10000);
    TURN_UNTIL(fakes.dials[0] + fakes.dials[1] + fakes.dials[2] == 3);
    close_all();
    T_INT_EQ(fakes.cancels, 3);
}

/* No more than so many at a time, and nobody is forgotten. */
static void test_bounded(void)
{
    static const char *const ids[] = {"fo", "fo1", "fo2", "fo3"};
    struct cv_check_conf confs[CV_ARRAY_SIZE(ids)];
    open_all("a");
    for (unsigned i = 0; i < FAKES_MAX; i++)
        fakes.mode[i] = FAKE_HANGS;
    c.more = CV_ARRAY_SIZE(ids) - 1;
    use_snapshot("abcdefghijklmnop");
    for (size_t i = 0; i < CV_ARRAY_SIZE(ids); i++)
        confs[i] = conf_of(ids[i], 100, 300);
    cv_checks_bind(c.checks, &c.active, confs, CV_ARRAY_SIZE(ids));
    int most = 0;
    uint64_t least = 0;
    int64_t end = cv_clock_mono_ms() + 20000;
    while (least == 0 && cv_clock_mono_ms() < end) {
        turn(1);
        int running = -fakes.cancels;
        for (unsigned i = 0; i < FAKES_MAX; i++)
            running += fakes.dials[i];
        most = CV_MAX(most, running);
        least = UINT64_MAX;
        for (uint32_t k = 0; k < c.active.n_egresses; k++)
            for (unsigned i = 0; i < cv_egress_chain_count(c.egresses[k]); i++) {
                struct cv_member *m;
                uint32_t priority;
                (void)cv_egress_chain_get(c.egresses[k], i, &m, &priority);
                least = CV_MIN(least, cv_counter_get(&m->checks));
            }
    }
    T_INT_EQ(most, CV_CHECKS_RUNNING_MAX); /* of 64 */
    T_OK(least > 0);
    close_all();
}

int main(void)
{
    T_RUN(test_chain);
    T_RUN(test_silent);
    T_RUN(test_single);
    T_RUN(test_bind_again);
    T_RUN(test_end);
    T_RUN(test_bounded);
    return t_done();
}
