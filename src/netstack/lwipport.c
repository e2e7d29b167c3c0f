/* What lwIP asks of its platform: memory, random numbers, checksums, assertions. */
#include <string.h>

#include <arch/cc.h>
#include <lwip/priv/tcp_priv.h>

#include "common/alloc.h"
#include "common/rand.h"
#include "netstack/user_priv.h"

#include "common/poison.h"

uint32_t cv_lwip_rand(void)
{
    /* Ports and initial sequence numbers come from here: not to be guessed. */
    return (uint32_t)cv_rand_u64();
}

void cv_lwip_assert(const char *message, const char *file, int line)
{
    cv_assert_failed(message, file, line);
}

void *cv_lwip_malloc(size_t size)
{
    return cv_try_alloc(size);
}

void cv_lwip_free(void *p)
{
    cv_free(p);
}

/* The Internet checksum (RFC 1071) in network order, not complemented. Wide words are added with
 * their carries kept in the upper half, which compilers turn into vector instructions. */
uint16_t cv_lwip_checksum(const void *data, int len)
{
    const uint8_t *p = data;
    uint64_t a = 0, b = 0, sum;
    size_t n = (size_t)len;

    while (n >= 32) {
        uint32_t w[8];
        memcpy(w, p, sizeof(w));
        a += (uint64_t)w[0] + w[1] + w[2] + w[3];
        b += (uint64_t)w[4] + w[5] + w[6] + w[7];
        p += 32;
        n -= 32;
    }
    sum = a + b;
    while (n >= 4) {
        uint32_t w;
        memcpy(&w, p, sizeof(w));
        sum += w;
        p += 4;
        n -= 4;
    }
    if (n > 0) {
        uint8_t rest[4] = {0};
        uint32_t w;
        memcpy(rest, p, n);
        memcpy(&w, rest, sizeof(w));
        sum += w;
    }
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffu) + (sum >> 16);
    sum = (sum & 0xffffu) + (sum >> 16);
    return (uint16_t)sum;
}

uint16_t cv_lwip_netif_mss(void *netif)
{
    const struct cv_user_netif *nif = ((struct netif *)netif)->state;
    return nif->pi != NULL ? (uint16_t)CV_MIN(nif->pi->mss_max, 65535u) : 0;
}

void cv_lwip_rexmit(unsigned netif_idx)
{
    struct netif *netif = netif_get_by_index((u8_t)netif_idx);
    if (netif != NULL)
        cv_counter_add_owned(&((struct cv_user_netif *)netif->state)->super.stats->retransmits, 1);
}

/* Packets that belong to no connection (resets, ICMP errors) go back the way they came, never by
 * another tunnel. */
void *cv_lwip_route(void)
{
    return ip_current_input_netif();
}

void tcp_timer_needed(void)
{
    if (cv_user_instance != NULL)
        cv_user_need_timer(cv_user_instance);
}
