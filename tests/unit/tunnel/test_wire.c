#include "tunnel/wire.h"

#include "common/err.h"

#include "tap.h"

static void test_first_packet(void)
{
    /* The first packet of a plain session is these 14 bytes. */
    static const uint8_t wanted[14] = {0x38, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0};
    struct cv_wire_ctl c = {.op = CV_WIRE_RESET_CLIENT, .sid = {1, 2, 3, 4, 5, 6, 7, 8}}, got;
    uint8_t out[64];
    size_t n = 0;
    T_INT_EQ(cv_wire_encode(&c, out, sizeof(out), &n), 0);
    T_INT_EQ(n, 14);
    T_MEM_EQ(out, wanted, 14);
    T_INT_EQ(cv_wire_decode(out, n, &got), 0);
    T_OK(got.op == CV_WIRE_RESET_CLIENT && got.id == 0 && got.n_acks == 0 && got.piece_len == 0);
    T_INT_EQ(cv_wire_encode(&c, out, 13, &n), CV_E_LIMIT);
}

static void test_acks(void)
{
    struct cv_wire_ctl c = {.op = CV_WIRE_CONTROL,
                            .key_id = 5,
                            .n_acks = 3,
                            .acks = {7, 0, 0xffffffff},
                            .peer_sid = "PEERSIDX",
                            .id = 9,
                            .piece = (const uint8_t *)"hello",
                            .piece_len = 5},
                       got;
    uint8_t out[64];
    size_t n = 0;
    T_INT_EQ(cv_wire_encode(&c, out, sizeof(out), &n), 0);
    T_INT_EQ(n, 1 + 8 + 1 + 12 + 8 + 4 + 5);
    T_INT_EQ(cv_wire_decode(out, n, &got), 0);
    T_OK(got.key_id == 5 && got.n_acks == 3 && got.acks[2] == 0xffffffff && got.id == 9);
    T_MEM_EQ(got.peer_sid, "PEERSIDX", 8);
    T_OK(got.piece_len == 5 && memcmp(got.piece, "hello", 5) == 0);
    for (size_t i = 0; i < n - 5; i++)
        T_INT_EQ(cv_wire_decode(out, i, &got), CV_E_PROTO);
    c.op = CV_WIRE_ACK;
    T_INT_EQ(cv_wire_encode(&c, out, sizeof(out), &n), 0);
    T_INT_EQ(n, 1 + 8 + 1 + 12 + 8);
    T_INT_EQ(cv_wire_decode(out, n, &got), 0);
    T_INT_EQ(got.piece_len, 0);
}

static void test_bad(void)
{
    uint8_t p[64] = {0x38, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct cv_wire_ctl got;
    T_INT_EQ(cv_wire_decode(p, sizeof(p), &got), CV_E_PROTO); /* 9 acks */
    p[9] = 0;
    for (unsigned op = 0; op < 32; op++) {
        bool known = op == 3 || op == 4 || op == 5 || op == 7 || op == 8 || op == 10 || op == 11;
        p[0] = (uint8_t)(op << 3);
        T_INT_EQ(cv_wire_decode(p, sizeof(p), &got), known ? 0 : CV_E_PROTO);
        T_INT_EQ(cv_wire_is_data(p[0]), op == 6 || op == 9);
    }
}

int main(void)
{
    T_RUN(test_first_packet);
    T_RUN(test_acks);
    T_RUN(test_bad);
    return t_done();
}
