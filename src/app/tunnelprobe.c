#include "app/tunnelprobe.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/rand.h"

#include "common/poison.h"

#define PACKET_LEN  84
#define INTERVAL_MS 1000

struct cv_tunnelprobe {
    struct cv_loop *loop; /* borrowed */
    struct cv_pktif *pi;  /* borrowed */
    struct cv_ip from, to;
    struct cv_timer timer;
    cv_tunnelprobe_cb cb;
    void *arg;
    uint16_t id, seq;
    int64_t sent_us[16]; /* by seq */
    bool go_on, done;
    unsigned sent;
};

static uint16_t checksum(const uint8_t *p, size_t len)
{
    uint32_t sum = 0;
    for (size_t i = 0; i + 1 < len; i += 2)
        sum += (uint32_t)p[i] << 8 | p[i + 1];
    if (len % 2 != 0)
        sum += (uint32_t)p[len - 1] << 8;
    while (sum >> 16 != 0)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

void cv_tunnelprobe_encode(const struct cv_ip *from, const struct cv_ip *to, uint16_t id,
                           uint16_t seq, uint8_t *out, size_t len)
{
    CV_ASSERT(len >= 28 && len <= 65535);
    memset(out, 0, len);
    out[0] = 0x45;
    put16(out + 2, (uint16_t)len);
    put16(out + 4, seq);
    out[8] = 64;
    out[9] = 1; /* ICMP */
    memcpy(out + 12, from->b, 4);
    memcpy(out + 16, to->b, 4);
    put16(out + 10, checksum(out, 20));
    out[20] = 8; /* echo request, RFC 792 */
    put16(out + 24, id);
    put16(out + 26, seq);
    for (size_t i = 28; i < len; i++)
        out[i] = (uint8_t)i;
    put16(out + 22, checksum(out + 20, len - 20));
}

bool cv_tunnelprobe_is_reply(const uint8_t *data, size_t len, const struct cv_ip *to, uint16_t id,
                             uint16_t *ret_seq)
{
    if (len < 28 || data[0] >> 4 != 4)
        return false;
    size_t head = (size_t)(data[0] & 15) * 4;
    if (head < 20 || len < head + 8 || data[9] != 1 || memcmp(data + 12, to->b, 4) != 0)
        return false;
    const uint8_t *icmp = data + head;
    if (icmp[0] != 0 || (icmp[4] << 8 | icmp[5]) != id || checksum(icmp, len - head) != 0)
        return false;
    *ret_seq = (uint16_t)(icmp[6] << 8 | icmp[7]);
    return true;
}

static void ask(struct cv_tunnelprobe *p)
{
    uint8_t data[PACKET_LEN];
    cv_tunnelprobe_encode(&p->from, &p->to, p->id, p->seq, data, sizeof(data));
    struct cv_pkt_out pkt = {.iov = {{data, sizeof(data)}}, .iovcnt = 1, .len = sizeof(data)};
    p->sent_us[p->seq % CV_ARRAY_SIZE(p->sent_us)] = cv_clock_mono_us();
    p->seq++;
    p->sent++;
    (void)cv_pktif_send(p->pi, &pkt, 1);
    cv_loop_timer(p->loop, &p->timer, INTERVAL_MS);
}

static void on_timer(struct cv_timer *timer)
{
    ask(CV_CONTAINER_OF(timer, struct cv_tunnelprobe, timer));
}

static void on_input(void *arg, struct cv_pkt_in *pkts, size_t n)
{
    struct cv_tunnelprobe *p = arg;
    uint16_t seq;
    for (size_t i = 0; i < n && !p->done; i++) {
        if (!cv_tunnelprobe_is_reply(pkts[i].data, pkts[i].len, &p->to, p->id, &seq))
            continue;
        if (!p->go_on) {
            p->done = true;
            cv_loop_timer_stop(p->loop, &p->timer);
        }
        p->cb(p->arg, 0, cv_clock_mono_us() - p->sent_us[seq % CV_ARRAY_SIZE(p->sent_us)]);
    }
}

static void on_nothing(void *arg)
{
}

static const struct cv_pktif_user user = {
    .on_input = on_input, .on_writable = on_nothing, .on_changed = on_nothing};

int cv_tunnelprobe_start(struct cv_loop *loop, struct cv_pktif *pi, const struct cv_ip *from,
                         const struct cv_ip *to, bool go_on, cv_tunnelprobe_cb cb, void *arg,
                         struct cv_tunnelprobe **ret_probe)
{
    if (from->family != CV_AF_IP4 || to->family != CV_AF_IP4)
        return CV_E_INVALID;
    struct cv_tunnelprobe *p = cv_try_zalloc(sizeof(*p));
    if (p == NULL)
        return -ENOMEM;
    *p = (struct cv_tunnelprobe){
        .loop = loop, .pi = pi, .from = *from, .to = *to, .cb = cb, .arg = arg};
    p->go_on = go_on;
    p->id = (uint16_t)cv_rand_u64();
    cv_timer_init(&p->timer, on_timer);
    cv_pktif_attach(pi, &user, p);
    cv_loop_timer(loop, &p->timer, 0);
    *ret_probe = p;
    return 0;
}

void cv_tunnelprobe_set_from(struct cv_tunnelprobe *p, const struct cv_ip *from)
{
    p->from = *from;
}

unsigned cv_tunnelprobe_sent(const struct cv_tunnelprobe *p)
{
    return p->sent;
}

void cv_tunnelprobe_free(struct cv_tunnelprobe *p)
{
    if (p == NULL)
        return;
    cv_loop_timer_stop(p->loop, &p->timer);
    cv_pktif_detach(p->pi);
    cv_free(p);
}
