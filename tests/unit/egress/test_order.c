/* The order and the state machine below it under a virtual clock: many random worlds of members
 * that die, hang, lie and come back, under dials that overlap, are given up and fail for other
 * reasons. What must hold is checked at each step. */
#include "egress/order.h"

#include <stdlib.h>

#include "tap.h"

#define MEMBERS    6
#define DIALS      40
#define ATTEMPT_MS 10000
#define TOTAL_MS   30000

/* ---- a world ---- */

enum mood { /* what a member does to a dial */
            WORKS,
            REFUSES,     /* at once */
            HANGS,       /* says nothing */
            HANGS_LATER, /* shows life, then nothing comes */
            BAD_TARGET,  /* says that this target cannot be had */
            MOODS,
};

struct dial {
    bool live;
    struct cv_order order;
    struct cv_order_choice at;
    struct cv_vital_try try;
    int64_t begun_ms, end_ms, until_ms; /* of the pass; its end; of the attempt */
    enum cv_vital_event event;
    bool established, leaves;
    unsigned tries[MEMBERS];
    unsigned tag;
};

static struct {
    uint64_t seed;
    int64_t now;
    unsigned n;
    uint64_t word[MEMBERS];
    enum mood mood[MEMBERS];
    uint32_t quiet;
    struct cv_vital_conf conf;
    struct dial dial[DIALS];
    int probes[MEMBERS]; /* that are on their way in the running epoch */
    /* What happened. */
    uint64_t established[MEMBERS], attempts[MEMBERS], downs[MEMBERS], exhausted, passes, broken;
} w;

static uint32_t rnd(uint32_t below)
{
    w.seed = w.seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((w.seed >> 33) % below);
}

/* Cheaper than a TAP check for each of millions of steps. */
#define HOLDS(cond)                                                                                \
    do {                                                                                           \
        if (!(cond) && w.broken++ < 5)                                                             \
            T_FAIL("line %d: %s does not hold at %lld", __LINE__, #cond, (long long)w.now);        \
    } while (0)

static void world(uint64_t seed, unsigned n, int64_t backoff, int64_t backoff_max)
{
    memset(&w, 0, sizeof(w));
    w.seed = seed;
    w.n = n;
    w.now = 1000;
    w.conf = (struct cv_vital_conf){.backoff_ms = backoff, .backoff_max_ms = backoff_max};
    for (unsigned i = 0; i < n; i++)
        w.word[i] = cv_vital_new(w.now);
}

/* ---- what must hold of each change of state ---- */

static void check_change(unsigned m, uint64_t old_word, uint64_t new_word,
                         const struct cv_vital_try *try, enum cv_vital_event event)
{
    struct cv_vital a = cv_vital_unpack(old_word), b = cv_vital_unpack(new_word);
    if (a.state == b.state && a.epoch == b.epoch) {
        HOLDS(a.at_ms == b.at_ms && a.level == b.level);
        HOLDS(b.strikes < CV_VITAL_STRIKES);
        HOLDS(a.state == CV_VITAL_UP || a.strikes == b.strikes);
        return;
    }
    HOLDS(b.epoch == ((a.epoch + 1) & 1023));
    HOLDS(try == NULL || try->epoch == a.epoch); /* late news change nothing */
    HOLDS(b.strikes == 0);
    if (b.state == CV_VITAL_UP) {
        HOLDS(event == CV_VITAL_WORKS && b.level == a.level && b.at_ms == w.now);
        HOLDS(a.state == CV_VITAL_PROBING || try->way == CV_VITAL_LAST ||
              (try->way == CV_VITAL_CHECK && w.now >= a.at_ms));
    } else if (b.state == CV_VITAL_PROBING) {
        HOLDS(a.state == CV_VITAL_DOWN && w.now >= a.at_ms);
    } else {
        int64_t whole = cv_vital_backoff(b.level, &w.conf), wait = b.at_ms - w.now;
        HOLDS(event != CV_VITAL_WORKS);
        HOLDS(wait <= w.conf.backoff_max_ms && (wait > 0 || event == CV_VITAL_NOTHING));
        if (event == CV_VITAL_FAILED)
            HOLDS(wait <= whole && wait >= whole - whole / 4);
        if (a.state == CV_VITAL_UP) {
            w.downs[m]++;
            HOLDS(event != CV_VITAL_NOTHING);
            HOLDS(event == CV_VITAL_FAILED || a.strikes == CV_VITAL_STRIKES - 1);
        } else if (event == CV_VITAL_FAILED || event == CV_VITAL_UNSURE) {
            HOLDS(b.level == CV_MIN(a.level + 1, 15u));
        }
    }
}

/* ---- what must hold of each choice ---- */

static bool is_up(unsigned m)
{
    return cv_vital_unpack(w.word[m]).state == CV_VITAL_UP;
}

static bool may_probe(const struct dial *d, unsigned m)
{
    return !d->order.probed && !(w.quiet >> m & 1) && cv_vital_is_due(w.word[m], w.now);
}

/* The choice, said in the plainest way. */
static bool plain_choice(const struct dial *d, struct cv_order_choice *ret)
{
    for (int round = 0; round < 2; round++) {
        for (unsigned m = 0; m < w.n; m++) {
            if (d->tries[m] > 0)
                continue;
            ret->index = m;
            ret->way = round == 1 ? CV_VITAL_LAST : is_up(m) ? CV_VITAL_IN_TURN : CV_VITAL_PROBE;
            if (round == 1 || is_up(m) || may_probe(d, m))
                return true;
        }
    }
    return false;
}

/* ---- dials ---- */

static void apply(unsigned m, const struct cv_vital_try *try, enum cv_vital_event event)
{
    w.conf.random = rnd(UINT32_MAX);
    uint64_t old = w.word[m];
    w.word[m] = cv_vital_next(old, try, event, w.now, &w.conf);
    check_change(m, old, w.word[m], try, event);
    if (cv_vital_unpack(w.word[m]).state != CV_VITAL_PROBING)
        w.probes[m] = 0;
}

static void attempt(struct dial *d)
{
    enum mood mood = w.mood[d->at.index];
    bool sick = mood == REFUSES || mood == HANGS;
    int64_t limit = CV_MIN(w.now + ATTEMPT_MS, d->end_ms);
    d->established = mood == WORKS;
    d->event = mood == WORKS || mood == BAD_TARGET ? CV_VITAL_WORKS
               : sick                              ? CV_VITAL_FAILED
                                                   : CV_VITAL_UNSURE;
    d->until_ms =
        mood == HANGS || mood == HANGS_LATER ? limit : CV_MIN(w.now + 1 + rnd(200), limit);
    int64_t patience = w.now + 1 + rnd(2 * ATTEMPT_MS);
    if (d->leaves && patience < d->until_ms) {
        d->established = false;
        d->event = patience - w.now < 1000 ? CV_VITAL_NOTHING
                   : sick                  ? CV_VITAL_LEFT
                                           : CV_VITAL_UNSURE;
        d->until_ms = patience;
    }
}

static void end_pass(struct dial *d, bool established)
{
    unsigned m;
    d->live = false;
    if (cv_order_end(&d->order, established, &m, &d->try))
        apply(m, &d->try, CV_VITAL_UNSURE);
}

static void advance(struct dial *d)
{
    struct cv_order_choice plain;
    bool more =
        w.now < d->end_ms && cv_order_choose(&d->order, w.word, w.n, w.quiet, w.now, &d->at);
    if (!more) {
        /* Nothing is refused while something has not been tried, but for the time limit. */
        for (unsigned m = 0; m < w.n; m++)
            HOLDS(d->tries[m] == 1 || w.now >= d->end_ms);
        w.exhausted++;
        end_pass(d, false);
        return;
    }
    HOLDS(plain_choice(d, &plain) && plain.index == d->at.index && plain.way == d->at.way);
    unsigned m = d->at.index;
    HOLDS(d->tries[m] == 0);
    d->tries[m]++;
    w.attempts[m]++;
    if (d->at.way == CV_VITAL_PROBE) {
        uint64_t old = w.word[m];
        w.word[m] = cv_vital_claim(old, w.now);
        check_change(m, old, w.word[m], NULL, CV_VITAL_NOTHING);
        HOLDS(++w.probes[m] == 1); /* one at a time */
    }
    cv_order_take(&d->order, &d->at);
    d->try = (struct cv_vital_try){
        .way = d->at.way, .epoch = cv_vital_unpack(w.word[m]).epoch, .tag = d->tag};
    attempt(d);
}

static struct dial *begin(bool leaves, unsigned tag)
{
    for (int i = 0; i < DIALS; i++) {
        struct dial *d = &w.dial[i];
        if (d->live)
            continue;
        *d = (struct dial){.live = true,
                           .begun_ms = w.now,
                           .end_ms = w.now + TOTAL_MS,
                           .leaves = leaves,
                           .tag = tag};
        w.passes++;
        advance(d);
        return d;
    }
    return NULL;
}

static void end_attempt(struct dial *d)
{
    bool left = d->event == CV_VITAL_LEFT || d->event == CV_VITAL_NOTHING ||
                (d->leaves && d->until_ms < CV_MIN(d->begun_ms + ATTEMPT_MS, d->end_ms) &&
                 !d->established && d->event == CV_VITAL_UNSURE);
    enum cv_vital_event event = d->event;
    if (!d->established && !left)
        event = cv_order_failed(&d->order, d->at.index, &d->try, event);
    apply(d->at.index, &d->try, event);
    w.established[d->at.index] += d->established;
    if (d->established)
        end_pass(d, true);
    else if (left)
        d->live = false;
    else
        advance(d);
}

/* Let everything happen that happens up to 'to'. */
static void run_to(int64_t to)
{
    for (;;) {
        struct dial *first = NULL;
        for (int i = 0; i < DIALS; i++) {
            struct dial *d = &w.dial[i];
            if (d->live && d->until_ms <= to && (first == NULL || d->until_ms < first->until_ms))
                first = d;
        }
        if (first == NULL)
            break;
        w.now = CV_MAX(w.now, first->until_ms);
        end_attempt(first);
    }
    w.now = CV_MAX(w.now, to);
}

static void settle(void)
{
    run_to(w.now + TOTAL_MS);
    for (int i = 0; i < DIALS; i++)
        HOLDS(!w.dial[i].live); /* bounded, whatever the members do */
}

/* ---- the cases ---- */

static void test_random_worlds(void)
{
    uint64_t passes = 0, attempts = 0;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        world(seed * 7919, 1, 0, 0);
        w.n = 1 + rnd(MEMBERS);
        w.conf.backoff_ms = 100 + rnd(5000);
        w.conf.backoff_max_ms = w.conf.backoff_ms * (1 + rnd(50));
        w.quiet = rnd(4) == 0 ? rnd(64) : 0;
        for (unsigned i = 0; i < w.n; i++)
            w.word[i] = cv_vital_new(w.now);
        for (int step = 0; step < 500; step++) {
            run_to(w.now + rnd(rnd(10) == 0 ? 60000 : 500));
            if (rnd(6) == 0)
                w.mood[rnd(w.n)] = (enum mood)rnd(MOODS);
            if (rnd(20) == 0) {
                unsigned m = rnd(w.n);
                struct cv_vital_try try = {.way = CV_VITAL_CHECK,
                                           .epoch = cv_vital_unpack(w.word[m]).epoch};
                apply(m, &try, w.mood[m] == WORKS ? CV_VITAL_WORKS : CV_VITAL_FAILED);
            }
            (void)begin(rnd(5) == 0, rnd(4));
        }
        settle();
        passes += w.passes;
        for (unsigned i = 0; i < w.n; i++)
            attempts += w.attempts[i];
        T_OK(attempts <= passes * MEMBERS);
        T_INT_EQ(w.broken, 0);
    }
    T_OK(passes > 200000);
}

/* A primary that says nothing costs those who were on their way when it died, and later one
 * connection at a time, less and less often. */
static void test_dead_primary(void)
{
    world(1, 2, 5000, 120000);
    w.mood[0] = HANGS;
    for (int i = 0; i < 36000; i++) {
        run_to(w.now + 100);
        T_OK(begin(false, (unsigned)i & 255) != NULL || i < 200);
    }
    settle();
    T_INT_EQ(w.exhausted, 0);
    T_INT_EQ(w.downs[0], 1);
    T_OK(w.established[1] == w.passes);
    /* An hour: 40 dials at once at first, then 5, 10, 20, 40, 80, 120, 120, ... seconds. */
    T_OK(w.attempts[0] >= 40 + 20 && w.attempts[0] <= 40 + 50);
    /* It comes back: within the longest back-off everything goes there again. */
    w.mood[0] = WORKS;
    int64_t back = w.now;
    while (!is_up(0) && w.now - back < 600000) {
        run_to(w.now + 100);
        (void)begin(false, 1);
    }
    T_OK(w.now - back <= 121000);
    uint64_t before = w.established[0];
    run_to(w.now + 1000);
    for (int i = 0; i < 100; i++) {
        (void)begin(false, 1);
        run_to(w.now + 300);
    }
    T_INT_EQ(w.established[0] - before, 100 + 1); /* with the probe itself */
    T_INT_EQ(w.broken, 0);
}

/* One that works and fails in turns does not make the order change all the time. */
static void test_flapping_primary(void)
{
    static const int64_t periods[] = {500, 3000, 20000};
    for (size_t p = 0; p < CV_ARRAY_SIZE(periods); p++) {
        world(3 + p, 2, 5000, 120000);
        int64_t start = w.now;
        while (w.now - start < 4 * 3600 * 1000) {
            run_to(w.now + 100);
            w.mood[0] = (w.now - start) / periods[p] % 2 == 0 ? WORKS : REFUSES;
            (void)begin(false, rnd(256));
        }
        settle();
        T_INT_EQ(w.exhausted, 0);
        /* Four hours of 120 s at most, less a quarter each: 160, and the first few. */
        T_OK(w.downs[0] >= 20 && w.downs[0] <= 170);
        T_INT_EQ(w.broken, 0);
    }
}

/* A healthy member is not put back for targets that cannot be had. */
static void test_bad_targets(void)
{
    world(5, 2, 5000, 120000);
    /* The one that every client wants hangs behind a healthy proxy: nothing else is asked for. */
    w.mood[0] = w.mood[1] = HANGS_LATER;
    for (int i = 0; i < 500; i++) {
        run_to(w.now + 1000);
        (void)begin(false, 9);
    }
    settle();
    T_INT_EQ(w.downs[0] + w.downs[1], 0);
    /* Every second one hangs, all different: successes come in between. */
    for (unsigned i = 0; i < 5000; i++) {
        run_to(w.now + 21000);
        w.mood[0] = w.mood[1] = i % 2 == 0 ? HANGS_LATER : WORKS;
        (void)begin(false, i & 255);
    }
    /* And whole lists of targets that the proxy refuses. */
    w.mood[0] = w.mood[1] = BAD_TARGET;
    for (unsigned i = 0; i < 5000; i++) {
        run_to(w.now + 1000);
        (void)begin(false, i & 255);
    }
    settle();
    T_INT_EQ(w.downs[0] + w.downs[1], 0);
    /* But one that has stopped answering for every target is found out. */
    w.mood[0] = HANGS_LATER;
    w.mood[1] = WORKS;
    for (unsigned i = 0; i < 3; i++) {
        (void)begin(false, 10 + i);
        run_to(w.now + 11000);
    }
    T_INT_EQ(w.downs[0], 1);
    T_INT_EQ(w.broken, 0);
}

/* Clients that are less patient than the attempt's time limit do not hide a dead member. */
static void test_impatient_clients(void)
{
    world(6, 2, 5000, 120000);
    w.mood[0] = HANGS;
    int served = 0;
    for (int i = 0; i < 600; i++) {
        struct dial *d = begin(false, 1);
        if (d->until_ms > w.now + 2000) { /* gives up after two seconds */
            d->leaves = true;
            d->until_ms = w.now + 2000;
            d->event = CV_VITAL_LEFT;
        }
        uint64_t before = w.established[1];
        run_to(w.now + 3000);
        served += w.established[1] > before;
    }
    T_INT_EQ(w.downs[0], 1);
    /* Half an hour: the first three, and a probe every 5 s at worst would be 360. */
    T_OK(served >= 600 - 3 - 600 * 3 / 5 && served <= 597);
    T_INT_EQ(w.broken, 0);
}

/* Nothing works: one pass each. Then one comes back, and the next dial finds it. */
static void test_all_dead(void)
{
    world(8, 3, 5000, 120000);
    for (unsigned m = 0; m < 3; m++)
        w.mood[m] = REFUSES;
    for (int i = 0; i < 1000; i++) {
        (void)begin(false, rnd(256));
        run_to(w.now + 700);
    }
    T_INT_EQ(w.exhausted, 1000);
    T_INT_EQ(w.attempts[0] + w.attempts[1] + w.attempts[2], 3000);
    T_INT_EQ(w.downs[0] + w.downs[1] + w.downs[2], 3);
    w.mood[1] = WORKS;
    (void)begin(false, 1);
    run_to(w.now + 700);
    T_INT_EQ(w.established[1], 1);
    T_OK(is_up(1) && !is_up(0) && !is_up(2));
    uint64_t before = w.attempts[0] + w.attempts[2];
    for (int i = 0; i < 10; i++) {
        (void)begin(false, 1);
        run_to(w.now + 700);
    }
    T_INT_EQ(w.established[1], 11);
    T_OK(w.attempts[0] + w.attempts[2] - before <= 1); /* a probe may fall in */
    T_INT_EQ(w.broken, 0);
}

int main(void)
{
    T_RUN(test_random_worlds);
    T_RUN(test_dead_primary);
    T_RUN(test_flapping_primary);
    T_RUN(test_bad_targets);
    T_RUN(test_impatient_clients);
    T_RUN(test_all_dead);
    return t_done();
}
