/* All listeners of the node: their sockets on the control thread, their ports on the workers.
 *
 * TCP addresses get one SO_REUSEPORT socket for each worker; Unix sockets and those of systemd are
 * shared by all. A change of the config is applied as a whole or not at all: first certificates are
 * loaded and new sockets are bound, then everything is switched. A listener whose place stays the
 * same keeps its sockets, whatever else of it has changed, so no connection is lost. */
#pragma once

#include "app/config.h"
#include "app/crew.h"
#include "app/handed.h"
#include "app/systemd.h"
#include "flow/registry.h"

struct cv_front;

/* All borrowed (outlive the front). */
struct cv_front *cv_front_new(struct cv_crew *crew, struct cv_registry *registry,
                              const struct cv_systemd *systemd);
/* Bring the listeners to what the config says. 0, or a code with a sentence in 'why' that names the
 * listener: then nothing has changed. */
int cv_front_apply(struct cv_front *f, const struct cv_config *c, char *why,
                   size_t why_cap) CV_MUST_CHECK;
/* To be called about once per second with the config in force: certificates whose files have
 * changed are loaded again, for connections that come from then on, and the keys of session tickets
 * are replaced when it is time. Files are looked at once more before they are read, so that a
 * certificate and a key that are replaced one after the other are read together; what cannot be
 * used is logged, and the old certificates stay. */
void cv_front_tick(struct cv_front *f, const struct cv_config *c);
/* The same in two steps: everything that can fail but the workers' registering of sockets, with new
 * sockets bound and nothing accepted; then the switch (takes 'change', also on failure). */
struct cv_front_change;
int cv_front_prepare(struct cv_front *f, const struct cv_config *c, struct cv_front_change **ret,
                     char *why, size_t why_cap) CV_MUST_CHECK;
int cv_front_finish(struct cv_front *f, struct cv_front_change *change, char *why,
                    size_t why_cap) CV_MUST_CHECK;
void cv_front_cancel(struct cv_front_change *change); /* NULL is accepted */

/* Take sockets from 'handed' (borrowed, until it is set to NULL again) before binding any. All
 * sockets of an address are served, however many workers there are: a connection that waits in the
 * backlog of one would be reset otherwise. */
void cv_front_inherit(struct cv_front *f, struct cv_handed *handed);
/* The node before this one accepts no more, so the inherited sockets are ours alone (until then
 * this front leaves them when it closes). Open what inherited addresses lack for one socket per
 * worker; not earlier, since the kernel gives connections to a new socket at once. */
void cv_front_complete(struct cv_front *f);
/* List all sockets but those that systemd passed; they stay the front's. CV_E_LIMIT. */
int cv_front_offer(const struct cv_front *f, struct cv_handed *handed) CV_MUST_CHECK;
/* Accept no more: leave what is marked as taken, backlog and file included, and close the rest as
 * cv_front_close() does. */
void cv_front_hand_over(struct cv_front *f, const struct cv_handed *handed);
/* Look at all backlogs anew (cv_listener_port_rearm). */
void cv_front_rearm(struct cv_front *f);
/* Take what waits in the backlogs, then accept no more. */
void cv_front_close(struct cv_front *f);
void cv_front_free(struct cv_front *f); /* closes; NULL is accepted */

size_t cv_front_count(const struct cv_front *f);

/* One listener as it is. */
struct cv_front_entry {
    const char *name;
    const char *protocol;
    const char *address; /* with the real port */
    bool tls;
    const struct cv_tls_server_ctx *tls_ctx; /* NULL: plain */
    const char *tls_error; /* why changed certificates were not taken; NULL: they were, or none */
};
/* Borrowed until the next change; 'i' < cv_front_count(). */
void cv_front_get(const struct cv_front *f, size_t i, struct cv_front_entry *ret);
