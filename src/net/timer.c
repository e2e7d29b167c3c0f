#include "net/timer.h"

#include "common/alloc.h"

#include "common/poison.h"

/* Eleven levels of 64 slots cover every non-negative int64_t, so there is no far-future special
 * case. A timer sits on the level of the highest group of six bits in which its due time differs
 * from the wheel's time, in the slot that this group names. From that follow:
 *  - all timers of a level agree with the wheel's time above that level, and their slots lie ahead
 *    of its own slot there: nothing ever wraps;
 *  - whatever is on a lower level is due before whatever is on a higher one, so the first occupied
 *    slot of the lowest occupied level holds what comes next;
 *  - moving the wheel's time up to, but not into, that slot keeps every timer where it is.
 * When time enters a slot of a higher level its timers go down (the levels below are empty then, so
 * their order is kept); each timer moves at most once per level. */
#define LEVEL_BITS 6
#define SLOTS      (1 << LEVEL_BITS)
#define LEVELS     11

struct cv_timers {
    int64_t now_ms; /* every tick up to this one has been fired */
    size_t count;
    bool advancing;
    uint32_t levels;           /* bit per level that has an occupied slot */
    uint64_t occupied[LEVELS]; /* bit per slot that is not empty */
    struct cv_list overdue;    /* started with a time that had passed: next advance */
    struct cv_list slots[LEVELS][SLOTS];
};

static void place(struct cv_timers *ts, struct cv_timer *t, unsigned level);
static void unlink_timer(struct cv_timers *ts, struct cv_timer *t);
static void fire(struct cv_timers *ts, struct cv_list *from);
static void cascade(struct cv_timers *ts, struct cv_list *from);

int cv_timers_new(int64_t now_ms, struct cv_timers **ret_timers)
{
    CV_ASSERT(now_ms >= 0);
    struct cv_timers *ts = cv_zalloc(sizeof(*ts));
    ts->now_ms = now_ms;
    cv_list_init(&ts->overdue);
    for (size_t l = 0; l < LEVELS; l++)
        for (size_t s = 0; s < SLOTS; s++)
            cv_list_init(&ts->slots[l][s]);
    *ret_timers = ts;
    return 0;
}

/* The first tick of a slot, given that it lies ahead of the wheel's time on its level. */
static int64_t slot_start_ms(const struct cv_timers *ts, unsigned level, unsigned slot)
{
    uint64_t start = (uint64_t)slot << (LEVEL_BITS * level);
    if (level + 1 < LEVELS) {
        unsigned above = LEVEL_BITS * (level + 1);
        start |= (uint64_t)ts->now_ms >> above << above;
    }
    return (int64_t)start;
}

void cv_timer_start(struct cv_timers *ts, struct cv_timer *t, int64_t due_ms)
{
    if (t->_armed)
        unlink_timer(ts, t);
    t->_armed = true;
    ts->count++;
    if (due_ms <= ts->now_ms) {
        t->_due_ms = ts->now_ms;
        cv_list_add_tail(&ts->overdue, &t->_node);
        return;
    }
    t->_due_ms = due_ms;
    unsigned top = 63u - (unsigned)__builtin_clzll((uint64_t)due_ms ^ (uint64_t)ts->now_ms);
    place(ts, t, top / LEVEL_BITS);
}

void cv_timer_stop(struct cv_timers *ts, struct cv_timer *t)
{
    if (!t->_armed)
        return;
    unlink_timer(ts, t);
    t->_armed = false;
}

static void place(struct cv_timers *ts, struct cv_timer *t, unsigned level)
{
    unsigned slot = (unsigned)((uint64_t)t->_due_ms >> (LEVEL_BITS * level)) & (SLOTS - 1);
    cv_list_add_tail(&ts->slots[level][slot], &t->_node);
    ts->occupied[level] |= 1ull << slot;
    ts->levels |= 1u << level;
}

static void clear_slot(struct cv_timers *ts, unsigned level, unsigned slot)
{
    ts->occupied[level] &= ~(1ull << slot);
    if (ts->occupied[level] == 0)
        ts->levels &= ~(1u << level);
}

static void unlink_timer(struct cv_timers *ts, struct cv_timer *t)
{
    struct cv_list *neighbour = t->_node.next;
    cv_list_del(&t->_node);
    ts->count--;
    /* A neighbour that is alone now is the list's head. Heads outside of the wheel (overdue, the
     * batch being fired) have no bit. */
    uintptr_t off = (uintptr_t)neighbour - (uintptr_t)&ts->slots[0][0];
    if (off < sizeof(ts->slots) && cv_list_is_empty(neighbour)) {
        unsigned i = (unsigned)(off / sizeof(struct cv_list));
        clear_slot(ts, i / SLOTS, i % SLOTS);
    }
}

int64_t cv_timers_next_ms(const struct cv_timers *ts)
{
    if (!cv_list_is_empty(&ts->overdue))
        return ts->now_ms;
    if (ts->levels == 0)
        return INT64_MAX;
    unsigned level = (unsigned)__builtin_ctz(ts->levels);
    unsigned slot = (unsigned)__builtin_ctzll(ts->occupied[level]);
    /* A timer that is alone in its slot is known to the millisecond, which spares the wake-ups that
     * would only move it down. */
    const struct cv_list *head = &ts->slots[level][slot];
    if (head->next == head->prev)
        return CV_CONTAINER_OF(head->next, struct cv_timer, _node)->_due_ms;
    return slot_start_ms(ts, level, slot);
}

void cv_timers_advance(struct cv_timers *ts, int64_t now_ms)
{
    CV_ASSERT(!ts->advancing);
    ts->advancing = true;
    if (!cv_list_is_empty(&ts->overdue))
        fire(ts, &ts->overdue);
    while (ts->levels != 0) {
        unsigned level = (unsigned)__builtin_ctz(ts->levels);
        unsigned slot = (unsigned)__builtin_ctzll(ts->occupied[level]);
        int64_t start = slot_start_ms(ts, level, slot);
        if (start > now_ms)
            break;
        ts->now_ms = start;
        clear_slot(ts, level, slot);
        if (level == 0)
            fire(ts, &ts->slots[level][slot]);
        else
            cascade(ts, &ts->slots[level][slot]);
    }
    ts->now_ms = CV_MAX(ts->now_ms, now_ms);
    ts->advancing = false;
}

static void fire(struct cv_timers *ts, struct cv_list *from)
{
    /* A list of its own: callbacks may start timers that land in 'from', and these are for a later
     * advance; or stop timers that are still in the batch. */
    struct cv_list batch;
    cv_list_init(&batch);
    cv_list_splice(&batch, from);
    while (!cv_list_is_empty(&batch)) {
        struct cv_timer *t = CV_CONTAINER_OF(batch.next, struct cv_timer, _node);
        cv_list_del(&t->_node);
        t->_armed = false;
        ts->count--;
        t->cb(t);
    }
}

static void cascade(struct cv_timers *ts, struct cv_list *from)
{
    while (!cv_list_is_empty(from)) {
        struct cv_timer *t = CV_CONTAINER_OF(from->next, struct cv_timer, _node);
        cv_list_del(&t->_node);
        /* Due in this very tick: level 0, which is looked at next. */
        uint64_t diff = (uint64_t)t->_due_ms ^ (uint64_t)ts->now_ms;
        place(ts, t, diff != 0 ? (63u - (unsigned)__builtin_clzll(diff)) / LEVEL_BITS : 0);
    }
}

size_t cv_timers_count(const struct cv_timers *ts)
{
    return ts->count;
}

void cv_timers_free(struct cv_timers *ts)
{
    if (ts == NULL)
        return;
    CV_ASSERT(ts->count == 0);
    cv_free(ts);
}
