#include "egress/order.h"

#include "common/poison.h"

static bool in_turn(uint64_t word, bool may_probe, int64_t now_ms, enum cv_vital_way *ret_way)
{
    if (cv_vital_unpack(word).state == CV_VITAL_UP) {
        *ret_way = CV_VITAL_IN_TURN;
        return true;
    }
    *ret_way = CV_VITAL_PROBE;
    return may_probe && cv_vital_is_due(word, now_ms);
}

bool cv_order_choose(const struct cv_order *o, const uint64_t *words, unsigned n, uint32_t quiet,
                     int64_t now_ms, struct cv_order_choice *ret_choice)
{
    unsigned first = n;
    enum cv_vital_way way;
    CV_ASSERT(n <= CV_ORDER_MAX);
    for (unsigned i = 0; i < n; i++) {
        uint32_t bit = UINT32_C(1) << i;
        if (o->tried & bit)
            continue;
        if (in_turn(words[i], !o->probed && !(quiet & bit), now_ms, &way)) {
            *ret_choice = (struct cv_order_choice){.index = i, .way = way};
            return true;
        }
        first = CV_MIN(first, i);
    }
    if (first == n)
        return false;
    *ret_choice = (struct cv_order_choice){.index = first, .way = CV_VITAL_LAST};
    return true;
}

void cv_order_take(struct cv_order *o, const struct cv_order_choice *choice)
{
    uint32_t bit = UINT32_C(1) << choice->index;
    CV_ASSERT(!(o->tried & bit));
    o->tried |= bit;
    if (choice->way == CV_VITAL_PROBE)
        o->probed = true;
}

enum cv_vital_event cv_order_failed(struct cv_order *o, unsigned index,
                                    const struct cv_vital_try *try, enum cv_vital_event event)
{
    /* "Works" without a connection: it said that the target cannot be had. */
    if (event == CV_VITAL_UNSURE || event == CV_VITAL_WORKS)
        o->reached++;
    /* A probe must have a verdict, and it is the first to wait. */
    if (event != CV_VITAL_UNSURE || try->way == CV_VITAL_PROBE)
        return event;
    if (!o->unsure) {
        o->unsure = true;
        o->unsure_index = (uint8_t)index;
        o->unsure_try = *try;
    }
    return CV_VITAL_NOTHING;
}

bool cv_order_end(const struct cv_order *o, bool established, unsigned *ret_index,
                  struct cv_vital_try *ret_try)
{
    if (!o->unsure || (!established && o->reached > 1))
        return false;
    *ret_index = o->unsure_index;
    *ret_try = o->unsure_try;
    return true;
}
