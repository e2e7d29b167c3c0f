/* Does a tunnel carry packets? ICMP echo requests over a packet interface, without a stack. */
#pragma once

#include "common/addr.h"
#include "net/loop.h"
#include "net/pktif.h"

struct cv_tunnelprobe;
/* err 0 and the round trip. */
typedef void (*cv_tunnelprobe_cb)(void *arg, int err, int64_t rtt_us);

/* Attach to 'pi' and ask 'to' once a second until it answers, or with 'go_on' until it is freed.
 * 'from' and 'to' are IPv4. 0; CV_E_INVALID when they are not; -ENOMEM. */
int cv_tunnelprobe_start(struct cv_loop *loop, struct cv_pktif *pi, const struct cv_ip *from,
                         const struct cv_ip *to, bool go_on, cv_tunnelprobe_cb cb, void *arg,
                         struct cv_tunnelprobe **ret_probe) CV_MUST_CHECK;
/* Use another own address from now on. */
void cv_tunnelprobe_set_from(struct cv_tunnelprobe *p, const struct cv_ip *from);
/* Requests so far. */
unsigned cv_tunnelprobe_sent(const struct cv_tunnelprobe *p);
void cv_tunnelprobe_free(struct cv_tunnelprobe *p); /* NULL is accepted */

/* An echo request of 'len' bytes in all (at least 28) into 'out'. */
void cv_tunnelprobe_encode(const struct cv_ip *from, const struct cv_ip *to, uint16_t id,
                           uint16_t seq, uint8_t *out, size_t len);
/* True if the packet is the reply to it, from 'to'; *ret_seq. */
bool cv_tunnelprobe_is_reply(const uint8_t *data, size_t len, const struct cv_ip *to, uint16_t id,
                             uint16_t *ret_seq);
