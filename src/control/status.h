/* What the node says about itself: one word and one sentence, for readiness probes, the status
 * page, systemd and the log.
 *
 * Precedence: draining, then starting (no snapshot has been loaded yet), then unavailable (a
 * snapshot without users, or a listener that is down), then ready. Only ready is a success. */
#pragma once

#include "common/defs.h"

enum cv_status {
    CV_STATUS_STARTING = 1, /* nothing is loaded: every login fails */
    CV_STATUS_READY,
    CV_STATUS_UNAVAILABLE, /* something that is needed is missing */
    CV_STATUS_DRAINING,    /* shutting down: no new connections */
};

/* What the status is made of. */
struct cv_status_facts {
    bool draining;
    bool snapshot_loaded;
    uint32_t users;
    uint32_t listeners_wanted; /* of the config */
    uint32_t listeners_up;
};

struct cv_readiness {
    enum cv_status status;
    char reason[160]; /* "" when ready */
};

void cv_status_judge(const struct cv_status_facts *facts, struct cv_readiness *ret);
/* "starting", "ready", "unavailable", "draining". */
const char *cv_status_name(enum cv_status status);
