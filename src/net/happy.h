/* Connecting to a host by Happy Eyeballs version 2 (RFC 8305): both families are asked for at once,
 * addresses are interleaved starting with the preferred family, a new attempt starts every 250 ms
 * (or as soon as one fails), the first to connect wins and the losers are closed.
 *
 * Every candidate address passes the caller's filter before a socket is made, so what is checked
 * is what is dialled. One resolution per dial. */
#pragma once

#include "common/target.h"
#include "net/dns.h"
#include "net/tcp.h"

#define CV_HAPPY_PARALLEL   4
#define CV_HAPPY_CANDIDATES (2 * CV_DNS_ADDRS_MAX)

enum cv_happy_stage {
    CV_HAPPY_DNS = 1,
    CV_HAPPY_DIAL,
};

struct cv_happy;
/* err 0: 'stream' belongs to the callee, 'peer' is its address. Else the most telling code and the
 * stage in which it ended: of the attempts (-ECONNREFUSED before -EHOSTUNREACH before -ETIMEDOUT
 * before -ENETUNREACH, since that one only says that this host lacks a family), if there were none
 * that of the filter (CV_E_GUARD), else that of the resolver (CV_E_DNS_*). Never comes from inside
 * cv_happy_start(). */
typedef void (*cv_happy_cb)(struct cv_happy *h, int err, enum cv_happy_stage stage,
                            struct cv_stream *stream, const struct cv_endpoint *peer);
/* 0 to allow the address; else the code to report if nothing else is left. */
typedef int (*cv_happy_filter_cb)(struct cv_happy *h, const struct cv_ip *ip);

struct cv_happy_conf {
    struct cv_dns *dns;          /* borrowed; may be NULL when the target is an address */
    enum cv_family prefer;       /* CV_AF_IP4 or CV_AF_IP6 */
    int64_t timeout_ms;          /* for all of it */
    int64_t attempt_delay_ms;    /* 0 = 250 */
    int64_t resolution_delay_ms; /* wait for the preferred family's answer; 0 = 50 */
};

/* Opaque in use; heap-allocated so that an idle session does not carry it. 'conf' and 'target' are
 * borrowed during the call only. 0 or -ENOMEM. */
int cv_happy_start(struct cv_loop *loop, const struct cv_happy_conf *conf,
                   const struct cv_target *target, cv_happy_filter_cb filter, cv_happy_cb cb,
                   void *arg, struct cv_happy **ret_happy) CV_MUST_CHECK;
void *cv_happy_arg(const struct cv_happy *h);
/* Give up before the callback came; the object is gone. After the callback it is gone by itself. */
void cv_happy_cancel(struct cv_happy *h);
