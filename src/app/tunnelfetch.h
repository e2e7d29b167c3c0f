/* Does a tunnel carry connections? One HTTP request over a packet interface, by a TCP/IP stack of
 * its own. */
#pragma once

#include "common/target.h"
#include "net/loop.h"
#include "netstack/netstack.h"

#define CV_TUNNELFETCH_PATH_MAX 1024

struct cv_tunnelfetch;

struct cv_tunnelfetch_url {
    struct cv_target target;
    char path[CV_TUNNELFETCH_PATH_MAX]; /* "/" at least */
};
/* "http://HOST[:PORT][/PATH]" . 0; CV_E_PARSE; CV_E_UNSUPPORTED for another scheme. */
int cv_tunnelfetch_parse(const char *url, struct cv_tunnelfetch_url *ret_url);

/* err 0: 'status' of HTTP and the bytes of the whole answer. It goes on no further. */
typedef void (*cv_tunnelfetch_cb)(void *arg, int err, int status, uint64_t bytes);
/* The address of a name, as the tunnel's DNS servers know it. */
typedef void (*cv_tunnelfetch_dns_cb)(void *arg, const struct cv_ip *ip);
/* Attach to 'pi' and fetch; all is copied. A name is asked of the 'n_dns' servers, through the
 * interface; 'on_dns' tells of the answer. 0 or -errno. */
int cv_tunnelfetch_start(struct cv_loop *loop, struct cv_pktif *pi,
                         const struct cv_net_addresses *own, const struct cv_tunnelfetch_url *url,
                         const struct cv_ip *dns, size_t n_dns, cv_tunnelfetch_dns_cb on_dns,
                         cv_tunnelfetch_cb cb, void *arg,
                         struct cv_tunnelfetch **ret_fetch) CV_MUST_CHECK;
void cv_tunnelfetch_free(struct cv_tunnelfetch *f); /* NULL is accepted; may be called in 'cb' */
