/* What the tests of the access log reach into. */
#pragma once

#include "flow/accesslog.h"

/* Take the local day from 'today' (days since 1970) in place of the clock. Before the first line.
 */
void cv_alog_set_today(struct cv_alog *alog, int32_t (*today)(void));
/* Wait until the writer has written, or dropped, all that was handed over. */
void cv_alog_flush(struct cv_alog *alog);
