/* What the tests of the resolver need beyond its interface. */
#pragma once

#include "net/dns.h"

struct cv_dns_files {
    const char *hosts;  /* NULL = /etc/hosts */
    const char *resolv; /* NULL = /etc/resolv.conf */
    uint16_t port;      /* of servers that name none; 0 = 53 */
};
int cv_dns_new_with(struct cv_loop *loop, const struct cv_dns_conf *conf,
                    const struct cv_dns_files *files, struct cv_dns_stats *stats,
                    struct cv_dns **ret_dns) CV_MUST_CHECK;
/* Let the cache and the checks of files believe that 'ms' more have passed. */
void cv_dns_shift_clock(struct cv_dns *dns, int64_t ms);
size_t cv_dns_held(const struct cv_dns *dns);
size_t cv_dns_flying(const struct cv_dns *dns);
