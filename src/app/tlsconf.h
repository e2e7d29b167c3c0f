/* From the config to what a listener runs with: its certificates, its protocol. */
#pragma once

#include "app/config.h"
#include "flow/registry.h"
#include "inbound/listener.h"

/* Load the certificates of a listener; NULL context when it is plain. 'tickets' NULL: keys of its
 * own. 0, or a code with a sentence
 * in *reterr_text (cv_free). */
int cv_tlsconf_load(const struct cv_config_listener *l, struct cv_tls_tickets *tickets,
                    char **reterr_text, struct cv_tls_server_ctx **ret_ctx) CV_MUST_CHECK;
/* The whole of it; the row of counters is found or made. The caller owns a reference. */
int cv_tlsconf_listener(const struct cv_config_listener *l, struct cv_registry *registry,
                        struct cv_tls_tickets *tickets, char **reterr_text,
                        struct cv_listener_conf **ret_conf) CV_MUST_CHECK;
const char *cv_tlsconf_protocol_name(int protocol);
