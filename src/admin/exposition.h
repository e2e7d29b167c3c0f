/* The body of /metrics. Control thread.
 *
 * One row of labels for each listener, each egress that was ever used and each user with any
 * activity. The number of rows is bounded, because a scrape must stay affordable: beyond
 * CV_EXPOSITION_EGRESSES and CV_EXPOSITION_USERS the rest is summed in one row, with the label
 * "other" for egresses and "" (which is no user's name) for users. Listeners of one name that had
 * different protocols over time are one row, since a series may appear only once. */
#pragma once

#include "admin/admin.h"
#include "common/buf.h"

#define CV_EXPOSITION_LISTENERS 1000
#define CV_EXPOSITION_EGRESSES  2000
#define CV_EXPOSITION_USERS     10000
#define CV_EXPOSITION_MEMBERS   2000 /* of chains; the rest is left out */

/* 0, CV_E_LIMIT when 'buf' is full, -ENOMEM. */
int cv_exposition_write(const struct cv_admin_view *v, struct cv_buf *buf) CV_MUST_CHECK;
