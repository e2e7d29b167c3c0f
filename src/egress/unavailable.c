#include "common/alloc.h"
#include "common/err.h"
#include "egress/egress.h"

#include "common/poison.h"

/* Stands for a kind of egress that this node does not have: a policy may name it, and what it sends
 * there is refused with a reason. */

static void unavailable_connect(struct cv_egress *e, struct cv_dial *d)
{
    cv_dial_fail_later(d, CV_STAGE_EGRESS, CV_E_UNSUPPORTED);
}

static void unavailable_cancel(struct cv_egress *e, struct cv_dial *d)
{
}

static void unavailable_free(struct cv_egress *e)
{
    cv_free(e);
}

static const struct cv_egress_ops unavailable_ops = {
    .kind = "unavailable",
    .connect = unavailable_connect,
    .cancel = unavailable_cancel,
    .free = unavailable_free,
};

struct cv_egress *cv_egress_unavailable_new(const struct cv_egress_def *def,
                                            struct cv_egress_stats *stats)
{
    struct cv_egress *e = cv_try_zalloc(sizeof(*e));
    if (e != NULL)
        cv_egress_init(e, &unavailable_ops, def->label, stats);
    return e;
}
