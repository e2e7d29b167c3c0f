/* The order in which one dial tries the members of a chain. Pure: the states of the members go in,
 * the next one to try comes out.
 *
 * One pass: each member at most once, so a dial of n members makes at most n attempts, whatever
 * happens to the states meanwhile. First those that are UP, by priority; where a member that is due
 * for a probe stands in that order, the dial may claim it, at most one in a pass, so that it waits
 * for a dead member at most once. Then all that are left, by priority: nothing is refused while
 * something has not been tried.
 *
 * The later members of a chain are asked for just those targets that the first did not reach. So
 * that they do not suffer for it, a failure that may be the target's is held back to the end of the
 * pass: it counts, and of the first such member only, if another member reached the target or none
 * but this one got so far as to try. */
#pragma once

#include "egress/vital.h"

#define CV_ORDER_MAX 32 /* members; a snapshot allows 16 */

struct cv_order {
    uint32_t tried; /* bit i: member i */
    bool probed;
    uint8_t reached; /* members that failed although they may work */
    bool unsure;     /* ... of which the first is held back: */
    uint8_t unsure_index;
    struct cv_vital_try unsure_try;
};

struct cv_order_choice {
    unsigned index;
    enum cv_vital_way way; /* of CV_VITAL_PROBE the caller still has to claim the member */
};

/* Choose the next of 'n' members with the states 'words', in the order of their priority. 'quiet':
 * bit i is set for a member that is not probed by dials, since something else checks it. False:
 * all have been tried. */
bool cv_order_choose(const struct cv_order *o, const uint64_t *words, unsigned n, uint32_t quiet,
                     int64_t now_ms, struct cv_order_choice *ret_choice);
/* The choice is tried now. */
void cv_order_take(struct cv_order *o, const struct cv_order_choice *choice);
/* The attempt 'try' of the member 'index' has ended with 'event' and without a connection. Returns
 * what is to be told to the member now. */
enum cv_vital_event cv_order_failed(struct cv_order *o, unsigned index,
                                    const struct cv_vital_try *try, enum cv_vital_event event);
/* The pass has ended. True: CV_VITAL_UNSURE is now to be told to this member. */
bool cv_order_end(const struct cv_order *o, bool established, unsigned *ret_index,
                  struct cv_vital_try *ret_try);
