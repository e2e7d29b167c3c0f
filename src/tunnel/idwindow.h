/* Which packet ids were seen: a sliding window of the newest ones. An id is a replay if it was seen
 * or lies behind the window. The window is wide, since packets of one connection may be reordered
 * by as much as a fast link carries in the difference of two paths. */
#pragma once

#include "common/defs.h"

#define CV_IDWINDOW_BITS 2048

struct cv_idwindow {
    uint64_t _top;                         /* highest id accepted; 0 = none */
    uint64_t _seen[CV_IDWINDOW_BITS / 64]; /* by id modulo the width */
};

static inline void cv_idwindow_init(struct cv_idwindow *w)
{
    *w = (struct cv_idwindow){0};
}
/* True if 'id' may be accepted. 0 never is. Ask before the packet is authenticated, note after. */
bool cv_idwindow_is_new(const struct cv_idwindow *w, uint64_t id);
void cv_idwindow_note(struct cv_idwindow *w, uint64_t id);
