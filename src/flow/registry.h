/* The rows of counters that exist in this node: found or made by name, never removed, so that
 * sessions of any thread may point to them. The control thread makes and lists them. */
#pragma once

#include "flow/stats.h"

struct cv_registry;
struct cv_registry *cv_registry_new(void);
void cv_registry_free(struct cv_registry *r); /* after all threads have ended */

struct cv_listener_stats *cv_registry_listener(struct cv_registry *r, const char *name,
                                               const char *protocol);
/* 'label' as in cv_egress.label: "direct", "upstream:1.2.3.4:1080", ... At most 20000 rows; beyond
 * that all further labels share the row "other". */
struct cv_egress_stats *cv_registry_egress(struct cv_registry *r, const char *label);

void cv_registry_each_listener(struct cv_registry *r,
                               void (*fn)(void *arg, struct cv_listener_stats *s), void *arg);
void cv_registry_each_egress(struct cv_registry *r,
                             void (*fn)(void *arg, const char *label, struct cv_egress_stats *s),
                             void *arg);
