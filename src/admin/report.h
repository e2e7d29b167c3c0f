/* The JSON bodies about the node as a whole. Control thread. */
#pragma once

#include "admin/admin.h"
#include "common/jsonw.h"

/* Body of /healthz and /readyz. *ret_ready = the node takes traffic. */
int cv_report_probe(const struct cv_admin_view *v, struct cv_buf *buf,
                    bool *ret_ready) CV_MUST_CHECK;
/* Body of /status. */
int cv_report_status(const struct cv_admin_view *v, struct cv_buf *buf) CV_MUST_CHECK;
