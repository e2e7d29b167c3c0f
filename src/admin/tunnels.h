/* What /status and /metrics say about the node's tunnels. */
#pragma once

#include "admin/admin.h"
#include "admin/prom.h"
#include "common/jsonw.h"

void cv_admin_tunnels_report(struct cv_jsonw *w, const struct cv_admin_view *v);
void cv_admin_tunnels_expose(struct cv_prom *p, const struct cv_admin_view *v);
