/* TLS contexts of upstreams, one per backend, kept from one snapshot to the next: a swap, which may
 * only be about a user, shall not throw away the sessions that connections resume.
 *
 * Control thread only; the contexts themselves belong to whoever holds a reference. */
#pragma once

#include "policy/snapshot.h"

struct cv_tls_pool;
struct cv_tls_client_ctx;

struct cv_tls_pool *cv_tls_pool_new(void);
void cv_tls_pool_free(struct cv_tls_pool *p);

/* The context for this backend of the egress (borrowed from the pool until the next sweep): it
 * trusts the authorities of 'ca_file' (PEM), or those of the system when that is "", or whatever
 * comes with 'skip_cert_verify'. 0; -ENOMEM, or another code with a sentence in *reterr_text
 * (cv_free). */
int cv_tls_pool_get(struct cv_tls_pool *p, struct cv_rcstr *egress_id,
                    const struct cv_backend *backend, const char *ca_file, char **reterr_text,
                    struct cv_tls_client_ctx **ret_ctx) CV_MUST_CHECK;
/* Forget what was not asked for since the last sweep. */
void cv_tls_pool_sweep(struct cv_tls_pool *p);
/* Forget everything, the authorities, too: they are read again. */
void cv_tls_pool_clear(struct cv_tls_pool *p);
size_t cv_tls_pool_count(const struct cv_tls_pool *p);
