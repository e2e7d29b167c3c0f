#include <arch/cc.h>

#include "emu.h"

static const struct emu_path LOCAL = {.delay_us = 100};

static void test_one_stack(void)
{
    struct emu e;
    struct cv_netstack *second;
    emu_init(&e, 1);
    T_INT_EQ(cv_netstack_user_new(e.loop, &second), -EBUSY);
    emu_done(&e);
    emu_init(&e, 1);
    emu_done(&e);
}

static void test_many_interfaces(void)
{
    enum { N = 260 };
    static struct cv_netif *nif[N];
    static struct cv_netif_stats stats;
    struct emu e;
    struct cv_net_addresses a = {.ip4 = emu_ip("10.0.0.1")};
    unsigned n = 0;
    int ret = 0;
    emu_init(&e, 1);
    while (n < N && (ret = cv_netif_open(&e.user->super, &e.dir[0].pi, &a, &stats, &nif[n])) == 0)
        n++;
    T_OK(n >= 200 && n < N);
    T_INT_EQ(ret, -EMFILE);
    for (unsigned i = 0; i < n; i++)
        cv_netif_close(nif[i]);
    emu_done(&e);
}

/* A carrier that takes nothing for a while holds the stack back; nothing is lost by it. */
static void test_carrier_full(void)
{
    struct emu e;
    struct emu_server sv;
    struct emu_connect c;
    struct emu_end a, b, *ends[] = {&b};
    emu_init(&e, 2);
    emu_open(&e, 0, &LOCAL, &LOCAL);
    end_init(&a, &e, 1, 2, 8 << 20);
    end_init(&b, &e, 2, 1, 1);
    server_open(&sv, e.far[0], false, 80, ends, 1);
    emu_connect(&c, e.near[0], "10.8.0.1", 80, &a);
    for (unsigned i = 0; i < 40 && !b.eof; i++) {
        emu_run(&e, 2);
        e.dir[0].hold = true;
        emu_run(&e, 20);
        e.dir[0].hold = false;
        cv_pktif_writable(&e.dir[0].pi);
    }
    emu_run(&e, 60000);
    T_OK(b.eof && !b.wrong);
    T_INT_EQ(b.got, 8 << 20);
    T_INT_EQ(cv_counter_get(&e.stats[0].dropped), 0);
    end_done(&a);
    end_done(&b);
    server_close(&sv);
    emu_run(&e, 100);
    emu_done(&e);
}

/* No bytes from the network may do more than be dropped. */
static void test_garbage(void)
{
    struct emu e;
    emu_init(&e, 3);
    emu_open(&e, 0, &LOCAL, &LOCAL);
    for (unsigned round = 0; round < 5000; round++) {
        uint8_t buf[200];
        size_t n = emu_rand(&e) % sizeof(buf);
        for (size_t i = 0; i < n; i++)
            buf[i] = (uint8_t)emu_rand(&e);
        if (n > 40 && round % 2 == 0) {
            static const uint8_t head[] = {0x45, 0, 0,  0, 0, 0,  0,  0, 64, 6,
                                           0,    0, 10, 8, 0, 99, 10, 8, 0,  2};
            memcpy(buf, head, sizeof(head));
            buf[2] = (uint8_t)(n >> 8);
            buf[3] = (uint8_t)n;
            buf[9] = (uint8_t[]){6, 17, 1, 58}[round / 2 % 4];
            uint16_t sum = (uint16_t)~cv_lwip_checksum(buf, 20);
            memcpy(buf + 10, &sum, 2);
        } else if (n > 40) {
            buf[0] = (uint8_t)(0x60 | (buf[0] & 15));
            buf[4] = 0;
            buf[5] = (uint8_t)(n - 40);
            memcpy(buf + 24, e.near[0]->addresses.ip6.b, 16);
        }
        struct cv_pkt_in in = {.data = buf, .len = n};
        cv_pktif_input(&e.dir[0].pi, &in, 1);
        cv_loop_turn(e.loop, 0);
    }
    emu_run(&e, 70000);
    T_INT_EQ(cv_counter_get(&e.stats[0].packets_in) >= 5000, 1);
    emu_done(&e);
}

int main(void)
{
    T_RUN(test_one_stack);
    T_RUN(test_many_interfaces);
    T_RUN(test_carrier_full);
    T_RUN(test_garbage);
    return t_done();
}
