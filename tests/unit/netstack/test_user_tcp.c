#include "emu.h"

static const struct emu_path LOCAL = {.delay_us = 100};
static const struct emu_path WAN = {.delay_us = 25000};

/* Both ends send 'up' and 'down' bytes and close; every byte is checked. */
static void transfer(uint64_t seed, const struct emu_path *path, bool v6, uint64_t up,
                     uint64_t down, int64_t ms, double *ret_up_mbit)
{
    struct emu e;
    struct emu_server sv;
    struct emu_connect c;
    struct emu_end a, b, *ends[] = {&b};
    emu_init(&e, seed);
    emu_open(&e, 0, path, path);
    end_init(&a, &e, 11, 22, up);
    end_init(&b, &e, 22, 11, down);
    server_open(&sv, e.far[0], v6, 80, ends, 1);
    int64_t start = e.now_us;
    emu_connect(&c, e.near[0], v6 ? "fd00::1" : "10.8.0.1", 80, &a);
    int64_t until = e.now_us + ms * 1000;
    while (!(a.eof && b.eof) && a.err == 0 && b.err == 0 && emu_step(&e, until))
        ;
    T_OK(c.done);
    T_INT_EQ(c.err, 0);
    T_INT_EQ(a.err, 0);
    T_INT_EQ(b.err, 0);
    T_OK(a.eof && b.eof);
    T_INT_EQ(b.got, up);
    T_INT_EQ(a.got, down);
    T_OK(!a.wrong && !b.wrong);
    if (ret_up_mbit != NULL && b.done_us > start)
        *ret_up_mbit = (double)up * 8 / (double)(b.done_us - start);
    end_done(&a);
    if (b.s != NULL)
        end_done(&b);
    server_close(&sv);
    emu_run(&e, 100);
    emu_done(&e);
}

static void test_small(void)
{
    transfer(1, &LOCAL, false, 1, 1, 10000, NULL);
    transfer(2, &LOCAL, true, 5, 100000, 10000, NULL);
    transfer(3, &WAN, false, 3 << 20, 1 << 20, 60000, NULL);
}

static void test_bad_network(void)
{
    struct emu_path bad = {.delay_us = 20000,
                           .loss_ppm = 20000,
                           .dup_ppm = 10000,
                           .reorder_ppm = 20000,
                           .reorder_us = 3000};
    for (uint64_t seed = 1; seed <= 8; seed++)
        transfer(seed, &bad, seed % 2, 300000, 300000, 600000, NULL);
    bad.loss_ppm = 200000;
    transfer(99, &bad, false, 40000, 40000, 3600000, NULL);
}

/* The clock is virtual, so these figures are the same on every machine. */
static void test_gates(void)
{
    double mbit = 0;
    struct emu_path drop_tail = {.delay_us = 25000, .rate_bps = 200000000, .queue_us = 50000};
    transfer(5, &drop_tail, false, 100 << 20, 1, 60000, &mbit);
    printf("# 200 Mbit/s drop-tail, 50 ms: upload %.0f Mbit/s\n", mbit);
    T_OK(mbit >= 170);
    transfer(6, &WAN, false, 256 << 20, 1, 60000, &mbit);
    printf("# 50 ms without limit: upload %.0f Mbit/s\n", mbit);
    T_OK(mbit >= 500);
    struct emu_path lossy = {.delay_us = 25000, .loss_ppm = 5000};
    transfer(7, &lossy, false, 10 << 20, 1, 120000, &mbit);
    printf("# 50 ms, 0.5 %% loss: upload %.1f Mbit/s\n", mbit);
    T_OK(mbit >= 4.5);
}

static void test_refused_and_lost(void)
{
    struct emu e;
    struct emu_connect c, d, f;
    emu_init(&e, 1);
    emu_open(&e, 0, &LOCAL, &LOCAL);
    emu_connect(&c, e.near[0], "10.8.0.1", 81, NULL);
    T_OK(!c.done);
    emu_run(&e, 200);
    T_OK(c.done);
    T_INT_EQ(c.err, -ECONNREFUSED);
    e.dir[0].path.loss_ppm = 1000000;
    emu_connect(&c, e.near[0], "10.8.0.1", 81, NULL);
    emu_connect(&d, e.near[0], "10.8.0.1", 81, NULL);
    emu_run(&e, 100);
    cv_netif_cancel(e.near[0], &d.c);
    emu_run(&e, 120000);
    T_OK(c.done && !d.done);
    T_INT_EQ(c.err, -ETIMEDOUT);
    /* The interface goes away under an attempt. */
    emu_connect(&f, e.near[0], "10.8.0.1", 81, NULL);
    emu_run(&e, 100);
    cv_netif_close(e.near[0]);
    e.near[0] = NULL;
    emu_run(&e, 100);
    T_OK(f.done);
    T_INT_EQ(f.err, -ENETDOWN);
    emu_done(&e);
}

static void test_same_addresses(void)
{
    struct emu e;
    struct emu_server sv[2];
    struct emu_connect c[2];
    struct emu_end a[2], b[2], *ends[2][1] = {{&b[0]}, {&b[1]}};
    emu_init(&e, 3);
    for (unsigned k = 0; k < 2; k++) {
        emu_open(&e, k, &WAN, &WAN);
        end_init(&a[k], &e, 10 + k, 20 + k, 500000);
        end_init(&b[k], &e, 20 + k, 10 + k, 500000);
    }
    server_open(&sv[0], e.far[0], false, 80, ends[0], 1);
    server_open(&sv[1], e.far[1], false, 443, ends[1], 1);
    emu_connect(&c[0], e.near[0], "10.8.0.1", 80, &a[0]);
    emu_connect(&c[1], e.near[1], "10.8.0.1", 443, &a[1]);
    emu_run(&e, 20000);
    for (unsigned k = 0; k < 2; k++) {
        T_INT_EQ(c[k].err, 0);
        T_OK(a[k].eof && b[k].eof && !a[k].wrong && !b[k].wrong);
        T_INT_EQ(a[k].got, 500000);
        T_INT_EQ(b[k].got, 500000);
        end_done(&a[k]);
        end_done(&b[k]);
        server_close(&sv[k]);
    }
    /* Each tunnel has carried its own. */
    T_OK(e.dir[0].bytes > 500000 && e.dir[2].bytes > 500000);
    T_OK(e.dir[0].bytes < 700000 && e.dir[2].bytes < 700000);
    emu_run(&e, 100);
    emu_done(&e);
}

static void test_slow_reader(void)
{
    struct emu e;
    struct emu_server sv;
    struct emu_connect c;
    struct emu_end a, b, *ends[] = {&b};
    emu_init(&e, 4);
    emu_open(&e, 0, &LOCAL, &LOCAL);
    end_init(&a, &e, 1, 2, 1);
    end_init(&b, &e, 2, 1, 64 << 20);
    a.paused = true;
    server_open(&sv, e.far[0], false, 80, ends, 1);
    emu_connect(&c, e.near[0], "10.8.0.1", 80, &a);
    emu_run(&e, 5000);
    /* What is under way is a window and a send buffer, however long nobody reads. */
    uint64_t under_way = b.sent;
    T_OK(under_way > 0 && under_way < 8 << 20);
    emu_run(&e, 60000);
    T_OK(b.sent - under_way < 1 << 20);
    a.paused = false;
    end_recv(&a);
    emu_run(&e, 60000);
    T_OK(a.eof && !a.wrong);
    T_INT_EQ(a.got, 64 << 20);
    end_done(&a);
    end_done(&b);
    server_close(&sv);
    emu_run(&e, 100);
    emu_done(&e);
}

static void test_reconnect(void)
{
    struct emu e;
    struct emu_server sv;
    struct emu_connect c;
    struct emu_end a, b, *ends[] = {&b};
    emu_init(&e, 5);
    emu_open(&e, 0, &WAN, &WAN);
    end_init(&a, &e, 1, 2, 20 << 20);
    end_init(&b, &e, 2, 1, 20 << 20);
    server_open(&sv, e.far[0], false, 80, ends, 1);
    emu_connect(&c, e.near[0], "10.8.0.1", 80, &a);
    emu_run(&e, 400);
    T_OK(a.got > 0 && !a.eof);
    e.dir[0].pi.up = false;
    cv_pktif_changed(&e.dir[0].pi);
    emu_run(&e, 30000);
    T_INT_EQ(a.err, 0);
    T_OK(!a.eof);
    e.dir[0].pi.up = true;
    cv_pktif_changed(&e.dir[0].pi);
    cv_netif_set_addresses(e.near[0], &e.near[0]->addresses);
    emu_run(&e, 120000);
    T_OK(a.eof && b.eof && !a.wrong && !b.wrong);
    T_INT_EQ(a.got, 20 << 20);
    T_INT_EQ(b.got, 20 << 20);
    end_done(&a);
    end_done(&b);
    server_close(&sv);
    emu_run(&e, 100);
    emu_done(&e);
}

static void test_new_address(void)
{
    struct emu e;
    struct emu_server sv, sv6;
    struct emu_connect c, c6;
    struct emu_end a, b, a6, b6, *ends[] = {&b}, *ends6[] = {&b6};
    emu_init(&e, 6);
    emu_open(&e, 0, &WAN, &WAN);
    end_init(&a, &e, 1, 2, 0);
    end_init(&b, &e, 2, 1, 0);
    end_init(&a6, &e, 1, 2, 0);
    end_init(&b6, &e, 2, 1, 0);
    server_open(&sv, e.far[0], false, 80, ends, 1);
    server_open(&sv6, e.far[0], true, 80, ends6, 1);
    emu_connect(&c, e.near[0], "10.8.0.1", 80, &a);
    emu_connect(&c6, e.near[0], "fd00::1", 80, &a6);
    emu_run(&e, 1000);
    T_OK(a.s != NULL && a6.s != NULL);
    struct cv_net_addresses other = e.near[0]->addresses;
    other.ip4 = emu_ip("10.8.0.77");
    cv_netif_set_addresses(e.near[0], &other);
    emu_run(&e, 1000);
    T_INT_EQ(a.err, -ENETRESET);
    T_INT_EQ(a6.err, 0);
    T_INT_EQ(cv_counter_get(&e.stats[0].resets), 1);
    end_done(&a);
    end_done(&b);
    end_done(&a6);
    end_done(&b6);
    server_close(&sv);
    server_close(&sv6);
    emu_run(&e, 1000);
    emu_done(&e);
}

int main(void)
{
    T_RUN(test_small);
    T_RUN(test_refused_and_lost);
    T_RUN(test_same_addresses);
    T_RUN(test_slow_reader);
    T_RUN(test_reconnect);
    T_RUN(test_new_address);
    T_RUN(test_bad_network);
    T_RUN(test_gates);
    return t_done();
}
