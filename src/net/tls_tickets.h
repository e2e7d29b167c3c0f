/* The keys under which servers seal session tickets (RFC 5077, RFC 8446 section 4.6.1).
 *
 * One set serves all listeners and all workers, and outlives a reload, so a client is resumed
 * wherever it comes back. Tickets are sealed with the newest key; the one before it still opens
 * them, older ones are gone for good: who steals a key can open the tickets of two periods. The
 * owner rotates once per CV_TLS_TICKET_MS, which is also how long a ticket is good for. */
#pragma once

#include "common/defs.h"

#define CV_TLS_TICKET_MS (60 * 60 * 1000)

struct cv_tls_tickets;
/* With one key, one reference. */
struct cv_tls_tickets *cv_tls_tickets_new(void);
struct cv_tls_tickets *cv_tls_tickets_ref(struct cv_tls_tickets *t);
void cv_tls_tickets_unref(struct cv_tls_tickets *t); /* NULL: nothing. Keys are cleared */
/* A new key from now on. Any thread. */
void cv_tls_tickets_rotate(struct cv_tls_tickets *t);
