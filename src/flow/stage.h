/* Where a session failed, and what its client is told: one table for all protocols. */
#pragma once

#include "common/defs.h"

enum cv_stage {
    CV_STAGE_NONE = 0,
    CV_STAGE_PARSE,
    CV_STAGE_AUTH,
    CV_STAGE_LIMIT,
    CV_STAGE_POLICY,
    CV_STAGE_DNS,
    CV_STAGE_DIAL,
    CV_STAGE_TLS,
    CV_STAGE_OUTBOUND,
    CV_STAGE_REVERSE_LOOKUP,
    CV_STAGE_REVERSE_OPEN,
    CV_STAGE_HOP_CONNECT,
    CV_STAGE_TUNNEL_DOWN,
    CV_STAGE_CHAIN_EXHAUSTED,
    CV_STAGE_EGRESS, /* the egress kind is not available in this node */
    CV_STAGE_SPLICE, /* the relay failed after it was established */
    CV_STAGE_LISTENER,
    CV_STAGE_SNIFF_READ,    /* the client failed while its first bytes were awaited */
    CV_STAGE_SNI_READ,      /* SNI gateway: no whole ClientHello came */
    CV_STAGE_SNI,           /* ... it has no usable name */
    CV_STAGE_SNI_ALLOWLIST, /* ... its name is none of the listener's origins */
    CV_STAGE_MAX
};

/* "dns", "chain_exhausted"; "" for NONE. */
const char *cv_stage_name(enum cv_stage stage);

/* Reply code of SOCKS5 (RFC 1928 section 6) for a failure. */
uint8_t cv_stage_socks_rep(enum cv_stage stage, int err);
/* HTTP status for a failure: 403, 407, 429, 502, 503, 504. */
unsigned cv_stage_http_status(enum cv_stage stage, int err);
/* A sentence for an access-log line or an error page: "name does not exist". Constant. */
const char *cv_stage_message(enum cv_stage stage, int err);
