#include "common/err.h"
#include "emu.h"

static const struct emu_path LOCAL = {.delay_us = 100};

static struct cv_target to(const char *ip, uint16_t port)
{
    struct cv_target t = {.port = port};
    struct cv_ip a = emu_ip(ip);
    cv_host_from_ip(&t.host, &a);
    return t;
}

static int send_to(struct cv_dgram *d, const struct cv_target *t, const void *data, size_t len)
{
    struct cv_dgram_out m = {.to = t, .data = data, .len = len};
    cv_dgram_send(d, &m, 1);
    return m.err;
}

struct got {
    unsigned reads, hups;
};

static void on_event(void *arg, struct cv_dgram *d, unsigned events)
{
    struct got *g = arg;
    (void)d;
    g->reads += (events & CV_DGRAM_READ) != 0;
    g->hups += (events & CV_DGRAM_HUP) != 0;
}

static void echo(bool v6, size_t len)
{
    struct emu e;
    struct cv_dgram *a, *b;
    struct got ga = {0}, gb = {0};
    uint8_t *data = cv_alloc(len + 1), *buf = cv_alloc(65536);
    emu_init(&e, 1);
    emu_open(&e, 0, &LOCAL, &LOCAL);
    T_INT_EQ(cv_netif_udp(e.near[0], &a), 0);
    T_INT_EQ(cv_netif_udp(e.far[0], &b), 0);
    cv_dgram_set_cb(a, on_event, NULL, &ga);
    cv_dgram_set_cb(b, on_event, NULL, &gb);
    for (size_t i = 0; i < len; i++)
        data[i] = emu_byte(5, i);
    /* Where the far end listens is found by its first datagram to a closed port of ours. */
    struct cv_target nobody = to(v6 ? "fd00::2" : "10.8.0.2", 9);
    T_INT_EQ(send_to(b, &nobody, "x", 1), 0);
    emu_run(&e, 10);
    size_t n = 0;
    struct cv_dgram_in in = {.buf = buf, .cap = 65536};
    T_INT_EQ(cv_dgram_recv(a, &in, 1, &n), -EAGAIN);
    struct udp_pcb *pcb = udp_pcbs;
    while (pcb != NULL &&
           !(IP_IS_V6_VAL(pcb->local_ip) == v6 &&
             pcb->netif_idx == netif_get_index(&((struct cv_user_netif *)e.far[0])->netif)))
        pcb = pcb->next;
    T_REQUIRE(pcb != NULL);
    struct cv_target far = to(v6 ? "fd00::1" : "10.8.0.1", pcb->local_port);
    T_INT_EQ(send_to(a, &far, data, len), 0);
    emu_run(&e, 10);
    T_INT_EQ(gb.reads, 1);
    in = (struct cv_dgram_in){.buf = buf, .cap = 65536};
    T_INT_EQ(cv_dgram_recv(b, &in, 1, &n), 0);
    T_INT_EQ(n, 1);
    T_INT_EQ(in.len, len);
    T_MEM_EQ(in.data, data, len);
    struct cv_target back = {.port = in.from.port};
    cv_host_from_ip(&back.host, &in.from.ip);
    T_INT_EQ(send_to(b, &back, data, len), 0);
    emu_run(&e, 10);
    T_INT_EQ(cv_dgram_recv(a, &in, 1, &n), 0);
    T_INT_EQ(in.len, len);
    T_INT_EQ(in.from.port, far.port);
    T_OK(cv_ip_equal(&in.from.ip, &far.host.ip));
    cv_dgram_close(a);
    cv_dgram_close(b);
    cv_loop_turn(e.loop, 0);
    emu_done(&e);
    cv_free(data);
    cv_free(buf);
}

static void test_echo(void)
{
    echo(false, 0);
    echo(false, 512);
    echo(true, 512);
    echo(false, 20000);
    echo(true, 20000);
    echo(false, 65507);
}

static void test_bounds(void)
{
    struct emu e;
    struct cv_dgram *a;
    struct got g = {0};
    emu_init(&e, 2);
    emu_open(&e, 0, &LOCAL, &LOCAL);
    T_INT_EQ(cv_netif_udp(e.near[0], &a), 0);
    cv_dgram_set_cb(a, on_event, NULL, &g);
    struct udp_pcb *pcb = udp_pcbs;
    while (IP_IS_V6_VAL(pcb->local_ip))
        pcb = pcb->next;
    uint16_t port = pcb->local_port;
    struct cv_dgram *b;
    T_INT_EQ(cv_netif_udp(e.far[0], &b), 0);
    struct cv_target t = to("10.8.0.2", port);
    uint8_t data[1000] = {0};
    for (unsigned i = 0; i < 1000; i++) {
        T_INT_EQ(send_to(b, &t, data, sizeof(data)), 0);
        emu_run(&e, 1);
    }
    /* A reader that does not come costs a bounded queue. */
    T_OK(cv_counter_get(&e.stats[0].dropped) >= 700);
    struct cv_target name = {.port = 53};
    T_INT_EQ(cv_host_parse("example.org", 11, &name.host), 0);
    T_INT_EQ(send_to(a, &name, "x", 1), CV_E_INVALID);
    struct cv_net_addresses other = e.near[0]->addresses;
    other.ip4 = emu_ip("10.8.0.9");
    cv_netif_set_addresses(e.near[0], &other);
    emu_run(&e, 1);
    T_INT_EQ(g.hups, 1);
    T_INT_EQ(a->err, -ENETRESET);
    T_INT_EQ(send_to(a, &t, "x", 1), CV_E_UNAVAILABLE);
    cv_dgram_close(a);
    cv_dgram_close(b);
    cv_loop_turn(e.loop, 0);
    emu_done(&e);
}

int main(void)
{
    T_RUN(test_echo);
    T_RUN(test_bounds);
    return t_done();
}
