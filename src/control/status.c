#include "control/status.h"

#include <stdio.h>

#include "common/poison.h"

void cv_status_judge(const struct cv_status_facts *facts, struct cv_readiness *ret)
{
    ret->reason[0] = '\0';
    if (facts->draining) {
        ret->status = CV_STATUS_DRAINING;
        snprintf(ret->reason, sizeof(ret->reason), "the node is shutting down");
    } else if (!facts->snapshot_loaded) {
        ret->status = CV_STATUS_STARTING;
        snprintf(ret->reason, sizeof(ret->reason), "no snapshot has been loaded");
    } else if (facts->users == 0) {
        ret->status = CV_STATUS_UNAVAILABLE;
        snprintf(ret->reason, sizeof(ret->reason), "the snapshot has no users");
    } else if (facts->listeners_up < facts->listeners_wanted) {
        ret->status = CV_STATUS_UNAVAILABLE;
        snprintf(ret->reason, sizeof(ret->reason), "%u of %u listeners are down",
                 facts->listeners_wanted - facts->listeners_up, facts->listeners_wanted);
    } else {
        ret->status = CV_STATUS_READY;
    }
}

const char *cv_status_name(enum cv_status status)
{
    switch (status) {
    case CV_STATUS_STARTING:
        return "starting";
    case CV_STATUS_READY:
        return "ready";
    case CV_STATUS_UNAVAILABLE:
        return "unavailable";
    case CV_STATUS_DRAINING:
        return "draining";
    }
    return "unknown";
}
