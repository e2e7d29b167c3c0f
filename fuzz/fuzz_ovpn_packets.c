/* What an OpenVPN server can send, on arbitrary bytes: control packets through the reliability
 * layer, decrypted payloads, key method messages, push replies. The first byte chooses. */
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"
#include "tunnel/expand.h"
#include "tunnel/frame.h"
#include "tunnel/keymethod.h"
#include "tunnel/push.h"
#include "tunnel/reliable.h"
#include "tunnel/wire.h"

#include "common/poison.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What decodes encodes to the same bytes. Packets follow each other, each with its length. */
static void control(const uint8_t *p, size_t left)
{
    static struct cv_reliable r;
    uint32_t acks[CV_WIRE_ACKS_MAX], next = 0;
    cv_reliable_init(&r, 4);
    for (int i = 0; i < 8; i++)
        (void)cv_reliable_push(&r, CV_WIRE_CONTROL, "x", 1);
    for (int64_t now = 0; left > 1; now += 100) {
        struct cv_wire_ctl c;
        uint8_t out[300];
        size_t n = CV_MIN((size_t)p[0], left - 1), len = 0;
        (void)cv_reliable_next(&r, now);
        if (cv_wire_decode(p + 1, n, &c) == 0) {
            CV_ASSERT(cv_wire_encode(&c, out, sizeof(out), &len) == 0);
            CV_ASSERT(c.op == CV_WIRE_ACK ? len <= n : len == n && memcmp(out, p + 1, n) == 0);
            for (unsigned i = 0; i < c.n_acks; i++)
                cv_reliable_on_ack(&r, c.acks[i], now);
            if (c.op != CV_WIRE_ACK)
                (void)cv_reliable_on_message(&r, &c);
        }
        while (cv_reliable_peek(&r) != NULL) {
            CV_ASSERT(r.next_in == next++);
            cv_reliable_shift(&r);
        }
        CV_ASSERT(cv_reliable_take_acks(&r, acks, CV_WIRE_ACKS_SENT) <= CV_WIRE_ACKS_SENT);
        p += n + 1;
        left -= n + 1;
    }
}

static void payloads(const uint8_t *p, size_t left)
{
    static struct cv_frame f;
    if (left == 0)
        return;
    cv_frame_init(&f, (enum cv_profile_comp)(p[0] & 3), (p[0] & 4) != 0);
    p++;
    left--;
    while (left > 1) {
        size_t n = CV_MIN((size_t)p[0], left - 1), len = n;
        uint8_t *exact = cv_alloc(n + 1), *at = exact;
        memcpy(exact, p + 1, n);
        if (cv_frame_open(&f, &at, &len) == CV_FRAME_PACKET) {
            CV_ASSERT(len > 0 && len <= CV_FRAME_PACKET_MAX);
            volatile uint8_t last = at[len - 1];
            (void)last;
        }
        cv_free(exact);
        p += n + 1;
        left -= n + 1;
    }
}

static void keys(const uint8_t *p, size_t left)
{
    struct cv_keymethod_random r;
    char options[64];
    size_t used = 0;
    if (cv_keymethod_decode(p, left, &r, options, sizeof(options), &used) == 0)
        CV_ASSERT(used >= 71 && used <= left && strlen(options) < sizeof(options));
}

static void push(const uint8_t *p, size_t left)
{
    struct cv_push push;
    cv_push_init(&push);
    while (left > 0) {
        const uint8_t *nul = memchr(p, '\0', left);
        size_t n = nul != NULL ? (size_t)(nul - p) : left;
        if (cv_push_parse(&push, NULL, (const char *)p, n) == 0)
            CV_ASSERT(push.ip4_len <= 32 && push.n_dns <= CV_PUSH_DNS_MAX &&
                      push.n_routes <= CV_PUSH_ROUTES_MAX && push.peer_id <= 0xffffff);
        p += CV_MIN(n + 1, left);
        left -= CV_MIN(n + 1, left);
    }
    cv_push_done(&push);
}

static void expand(const uint8_t *p, size_t left)
{
    uint8_t out[500];
    size_t n = 0;
    if (cv_expand_lz4(p, left, out, sizeof(out), &n) == 0)
        CV_ASSERT(n <= sizeof(out));
    if (cv_expand_lzo(p, left, out, sizeof(out), &n) == 0)
        CV_ASSERT(n <= sizeof(out));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 4096)
        return 0;
    switch (data[0] % 5) {
    case 0:
        control(data + 1, size - 1);
        break;
    case 1:
        payloads(data + 1, size - 1);
        break;
    case 2:
        keys(data + 1, size - 1);
        break;
    case 3:
        push(data + 1, size - 1);
        break;
    default:
        expand(data + 1, size - 1);
        break;
    }
    return 0;
}
