#include "egress/vital.h"

#include "tap.h"

static const struct cv_vital_conf conf = {.backoff_ms = 1000, .backoff_max_ms = 60000};

static struct cv_vital_try try_of(uint64_t word, enum cv_vital_way way, unsigned tag)
{
    return (struct cv_vital_try){.way = way, .epoch = cv_vital_unpack(word).epoch, .tag = tag};
}

static uint64_t after(uint64_t word, enum cv_vital_way way, unsigned tag, enum cv_vital_event event,
                      int64_t now)
{
    struct cv_vital_try try = try_of(word, way, tag);
    return cv_vital_next(word, &try, event, now, &conf);
}

static enum cv_vital_state state(uint64_t word)
{
    return cv_vital_unpack(word).state;
}

static void test_word(void)
{
    const struct cv_vital v = {.state = CV_VITAL_PROBING,
                               .level = 15,
                               .strikes = 2,
                               .tag = 255,
                               .epoch = 1023,
                               .at_ms = (INT64_C(1) << 38) - 1};
    struct cv_vital w = cv_vital_unpack(cv_vital_pack(&v));
    T_INT_EQ(w.state, v.state);
    T_INT_EQ(w.level, v.level);
    T_INT_EQ(w.strikes, v.strikes);
    T_INT_EQ(w.tag, v.tag);
    T_INT_EQ(w.epoch, v.epoch);
    T_INT_EQ(w.at_ms, v.at_ms);
    w = cv_vital_unpack(cv_vital_new(77));
    T_INT_EQ(w.state, CV_VITAL_UP);
    T_INT_EQ(w.at_ms, 77);
    T_INT_EQ(w.level + w.strikes + w.tag + w.epoch, 0);
    T_INT_EQ(cv_vital_tag(0x1234), 0x34);
}

static void test_backoff(void)
{
    static const struct {
        unsigned level;
        int64_t ms;
    } rows[] = {{0, 1000}, {1, 1000}, {2, 2000}, {3, 4000}, {6, 32000}, {7, 60000}, {15, 60000}};
    for (size_t i = 0; i < CV_ARRAY_SIZE(rows); i++)
        T_INT_EQ(cv_vital_backoff(rows[i].level, &conf), rows[i].ms);
    const struct cv_vital_conf upside_down = {.backoff_ms = 5000, .backoff_max_ms = 2000};
    T_INT_EQ(cv_vital_backoff(1, &upside_down), 2000);
    /* The random part: at most a quarter less, never more. */
    for (uint32_t r = 0; r < 3000; r++) {
        struct cv_vital_conf c = conf;
        c.random = r * 1431655u;
        uint64_t w = cv_vital_new(0);
        struct cv_vital_try try = try_of(w, CV_VITAL_IN_TURN, 0);
        int64_t at = cv_vital_unpack(cv_vital_next(w, &try, CV_VITAL_FAILED, 0, &c)).at_ms;
        T_OK(at >= 750 && at <= 1000);
    }
}

static void test_down_and_up(void)
{
    uint64_t w = cv_vital_new(0);
    T_OK(!cv_vital_is_due(w, 100000));
    uint64_t up = w;
    w = after(w, CV_VITAL_IN_TURN, 1, CV_VITAL_FAILED, 10);
    T_INT_EQ(state(w), CV_VITAL_DOWN);
    T_INT_EQ(cv_vital_unpack(w).at_ms, 1010);
    T_OK(!cv_vital_is_due(w, 1009));
    T_OK(cv_vital_is_due(w, 1010));

    /* Others that had begun before are late, whatever they say. */
    struct cv_vital_try late = try_of(up, CV_VITAL_IN_TURN, 2);
    for (int e = CV_VITAL_WORKS; e <= CV_VITAL_NOTHING; e++)
        T_OK(cv_vital_next(w, &late, (enum cv_vital_event)e, 2000, &conf) == w);

    uint64_t probing = cv_vital_claim(w, 1010);
    T_INT_EQ(state(probing), CV_VITAL_PROBING);
    T_OK(!cv_vital_is_due(probing, 99999));
    T_INT_EQ(state(after(probing, CV_VITAL_PROBE, 1, CV_VITAL_WORKS, 1020)), CV_VITAL_UP);
    uint64_t again = after(probing, CV_VITAL_PROBE, 1, CV_VITAL_FAILED, 1020);
    T_INT_EQ(state(again), CV_VITAL_DOWN);
    T_INT_EQ(cv_vital_unpack(again).at_ms, 3020);
    /* A probe that hangs has failed as well. */
    T_OK(after(probing, CV_VITAL_PROBE, 1, CV_VITAL_UNSURE, 1020) == again);
    /* One that was given up is no verdict, but the next does not follow at once; one that was
     * nothing gives its place to another. */
    uint64_t g = after(probing, CV_VITAL_PROBE, 1, CV_VITAL_LEFT, 1020);
    T_INT_EQ(state(g), CV_VITAL_DOWN);
    T_INT_EQ(cv_vital_unpack(g).at_ms, 2020);
    T_INT_EQ(cv_vital_unpack(g).level, 1);
    g = after(probing, CV_VITAL_PROBE, 1, CV_VITAL_NOTHING, 1020);
    T_OK(cv_vital_is_due(g, 1020));
    T_INT_EQ(cv_vital_unpack(g).level, 1);
}

static void test_last_resort(void)
{
    uint64_t w = after(cv_vital_new(0), CV_VITAL_IN_TURN, 1, CV_VITAL_FAILED, 0);
    for (int e = CV_VITAL_FAILED; e <= CV_VITAL_NOTHING; e++)
        T_OK(after(w, CV_VITAL_LAST, 1, (enum cv_vital_event)e, 5) == w);
    uint64_t up = after(w, CV_VITAL_LAST, 1, CV_VITAL_WORKS, 5);
    T_INT_EQ(state(up), CV_VITAL_UP);
    T_INT_EQ(cv_vital_unpack(up).at_ms, 5);
    /* The same while a probe is on its way, whose result is then late. */
    uint64_t probing = cv_vital_claim(w, 1000);
    struct cv_vital_try probe = try_of(probing, CV_VITAL_PROBE, 1);
    T_OK(after(probing, CV_VITAL_LAST, 1, CV_VITAL_FAILED, 1001) == probing);
    up = after(probing, CV_VITAL_LAST, 1, CV_VITAL_WORKS, 1001);
    T_INT_EQ(state(up), CV_VITAL_UP);
    T_OK(cv_vital_next(up, &probe, CV_VITAL_FAILED, 1500, &conf) == up);
}

static void test_level(void)
{
    /* Soon after it came back it goes on doubling; after it has lasted it begins anew. */
    uint64_t w = cv_vital_new(0);
    int64_t now = 0;
    for (unsigned level = 1; level < 20; level++) {
        w = after(w, CV_VITAL_IN_TURN, 1, CV_VITAL_FAILED, now);
        T_INT_EQ(cv_vital_unpack(w).level, CV_MIN(level, 15u));
        now = cv_vital_unpack(w).at_ms;
        w = after(cv_vital_claim(w, now), CV_VITAL_PROBE, 1, CV_VITAL_WORKS, now);
        now += 2 * cv_vital_backoff(level, &conf) - 1;
    }
    now += 1;
    w = after(w, CV_VITAL_IN_TURN, 1, CV_VITAL_FAILED, now);
    T_INT_EQ(cv_vital_unpack(w).level, 1);
}

static void test_strikes(void)
{
    uint64_t w = cv_vital_new(0);
    /* One target, as often as you like. */
    for (int i = 0; i < 1000; i++)
        w = after(w, CV_VITAL_IN_TURN, 7, CV_VITAL_UNSURE, i);
    T_INT_EQ(state(w), CV_VITAL_UP);
    T_INT_EQ(cv_vital_unpack(w).strikes, 1);
    w = after(w, CV_VITAL_IN_TURN, 8, CV_VITAL_UNSURE, 1000);
    T_INT_EQ(cv_vital_unpack(w).strikes, 2);
    /* A success or an answer that the target cannot be had: it works. */
    T_INT_EQ(cv_vital_unpack(after(w, CV_VITAL_IN_TURN, 9, CV_VITAL_WORKS, 1001)).strikes, 0);
    T_INT_EQ(state(after(w, CV_VITAL_IN_TURN, 9, CV_VITAL_UNSURE, 1001)), CV_VITAL_DOWN);
    T_OK(after(w, CV_VITAL_IN_TURN, 9, CV_VITAL_NOTHING, 1001) == w);
    /* Clients that left without any sign of life. */
    w = cv_vital_new(0);
    for (int i = 0; i < CV_VITAL_STRIKES; i++) {
        T_INT_EQ(state(w), CV_VITAL_UP);
        w = after(w, CV_VITAL_IN_TURN, 7, CV_VITAL_LEFT, i);
    }
    T_INT_EQ(state(w), CV_VITAL_DOWN);
}

static void test_checks(void)
{
    uint64_t w = cv_vital_new(0);
    T_OK(after(w, CV_VITAL_CHECK, 0, CV_VITAL_WORKS, 1) == w);
    w = after(w, CV_VITAL_CHECK, 0, CV_VITAL_FAILED, 1);
    T_INT_EQ(state(w), CV_VITAL_DOWN);
    /* A check that succeeds before the back-off is over is too early, so is one that fails. */
    T_OK(after(w, CV_VITAL_CHECK, 0, CV_VITAL_WORKS, 1000) == w);
    T_OK(after(w, CV_VITAL_CHECK, 0, CV_VITAL_FAILED, 1000) == w);
    T_INT_EQ(state(after(w, CV_VITAL_CHECK, 0, CV_VITAL_WORKS, 1001)), CV_VITAL_UP);
    w = after(w, CV_VITAL_CHECK, 0, CV_VITAL_FAILED, 1001);
    T_INT_EQ(cv_vital_unpack(w).level, 2);
    T_INT_EQ(cv_vital_unpack(w).at_ms, 3001);
    T_OK(after(w, CV_VITAL_CHECK, 0, CV_VITAL_NOTHING, 3001) == w);
}

int main(void)
{
    T_RUN(test_word);
    T_RUN(test_backoff);
    T_RUN(test_down_and_up);
    T_RUN(test_last_resort);
    T_RUN(test_level);
    T_RUN(test_strikes);
    T_RUN(test_checks);
    return t_done();
}
