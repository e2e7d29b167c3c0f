#include "tunnel/idwindow.h"

#include <string.h>

#include "common/poison.h"

bool cv_idwindow_is_new(const struct cv_idwindow *w, uint64_t id)
{
    if (id == 0)
        return false;
    if (id > w->_top)
        return true;
    if (w->_top - id >= CV_IDWINDOW_BITS)
        return false;
    return (w->_seen[id / 64 % (CV_IDWINDOW_BITS / 64)] >> (id % 64) & 1) == 0;
}

void cv_idwindow_note(struct cv_idwindow *w, uint64_t id)
{
    if (id > w->_top) {
        uint64_t gap = id - w->_top;
        if (gap >= CV_IDWINDOW_BITS)
            memset(w->_seen, 0, sizeof(w->_seen));
        else
            for (uint64_t i = w->_top + 1; i <= id; i++)
                w->_seen[i / 64 % (CV_IDWINDOW_BITS / 64)] &= ~(1ull << (i % 64));
        w->_top = id;
    }
    w->_seen[id / 64 % (CV_IDWINDOW_BITS / 64)] |= 1ull << (id % 64);
}
