#include "tunnel/frame.h"

#include <stdlib.h>

#include "tap.h"

static struct cv_frame f;

/* What a packet looks like within, by what cv_frame_head() says. */
static size_t pack(const uint8_t *pkt, size_t len, uint8_t *out)
{
    bool swap;
    size_t n = cv_frame_head(&f, pkt[0], out, &swap);
    memcpy(out + n, pkt + swap, len - swap);
    if (swap)
        out[n + len - 1] = pkt[0];
    return n + len;
}

static void test_round_trips(void)
{
    uint8_t pkt[200], out[300], *data;
    for (size_t i = 0; i < sizeof(pkt); i++)
        pkt[i] = (uint8_t)i;
    for (int comp = CV_COMP_NONE; comp <= CV_COMP_STUB_V2; comp++) {
        for (int fragment = 0; fragment < 2; fragment++) {
            static const uint8_t firsts[] = {0x45, 0x60};
            for (size_t i = 0; i < 2; i++) {
                cv_frame_init(&f, (enum cv_profile_comp)comp, fragment);
                pkt[0] = firsts[i];
                size_t len = pack(pkt, sizeof(pkt), out);
                T_OK(len <= sizeof(pkt) + CV_FRAME_HEAD_MAX);
                data = out;
                T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_PACKET);
                T_INT_EQ(len, sizeof(pkt));
                T_MEM_EQ(data, pkt, sizeof(pkt));
            }
            memcpy(pkt, cv_frame_ping, 16);
            size_t len = pack(pkt, 16, out);
            data = out;
            T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_PING);
            memcpy(pkt, cv_frame_exit, 17);
            len = pack(pkt, 17, out);
            data = out;
            T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_EXIT);
            for (int i = 0; i < 17; i++)
                pkt[i] = (uint8_t)i;
        }
    }
}

static void test_bytes(void)
{
    bool swap;
    uint8_t head[CV_FRAME_HEAD_MAX];
    cv_frame_init(&f, CV_COMP_LZO, false);
    T_INT_EQ(cv_frame_head(&f, 0x45, head, &swap), 1);
    T_OK(head[0] == 0xfa && !swap);
    cv_frame_init(&f, CV_COMP_STUB, false);
    T_INT_EQ(cv_frame_head(&f, 0x45, head, &swap), 1);
    T_OK(head[0] == 0xfb && swap);
    cv_frame_init(&f, CV_COMP_STUB_V2, false);
    T_INT_EQ(cv_frame_head(&f, 0x45, head, &swap), 0);
    T_INT_EQ(cv_frame_head(&f, 0x50, head, &swap), 2);
    T_OK(head[0] == 0x50 && head[1] == 0);
    /* A server that compresses although it was asked not to. */
    uint8_t lz4[] = {0x50, 1, 0x1f, 0x45, 1, 0, 0, 0x50, 0x45, 0x45, 0x45, 0x45, 0x45}, *data = lz4;
    size_t len = sizeof(lz4);
    T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_PACKET);
    T_INT_EQ(len, 1 + 19 + 5);
    T_OK(data[0] == 0x45 && data[len - 1] == 0x45);
    uint8_t unknown[] = {0x12, 1, 2};
    cv_frame_init(&f, CV_COMP_LZO, false);
    data = unknown;
    len = 3;
    T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_BAD);
    len = 0;
    T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_BAD);
}

static void test_fragments(void)
{
    uint8_t pkt[1900], parts[8][600];
    size_t lens[8];
    for (size_t i = 0; i < sizeof(pkt); i++)
        pkt[i] = (uint8_t)(i * 7);
    pkt[0] = 0x45;
    cv_frame_init(&f, CV_COMP_NONE, true);
    srand(3);
    for (int round = 0; round < 300; round++) {
        size_t size = 600 + (size_t)rand() % 1300, unit = 500, count = (size + unit - 1) / unit;
        for (unsigned i = 0; i < count; i++) {
            size_t n = CV_MIN(unit, size - i * unit);
            cv_frame_fragment(&f, i, i + 1 == count, (uint32_t)unit, parts[i]);
            memcpy(parts[i] + 4, pkt + i * unit, n);
            lens[i] = n + 4;
        }
        f.next_seq++;
        unsigned order[8], whole = 0;
        for (unsigned i = 0; i < count; i++)
            order[i] = i;
        for (unsigned i = 0; i < count; i++) {
            unsigned j = (unsigned)rand() % (unsigned)count, t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        bool lose = round % 3 == 0;
        for (unsigned i = lose ? 1 : 0; i < count; i++) {
            uint8_t *data = parts[order[i]];
            size_t len = lens[order[i]];
            enum cv_frame_kind kind = cv_frame_open(&f, &data, &len);
            if (kind == CV_FRAME_PACKET) {
                whole++;
                T_INT_EQ(len, size);
                T_MEM_EQ(data, pkt, size);
            } else {
                T_INT_EQ(kind, CV_FRAME_NOTHING);
            }
        }
        T_INT_EQ(whole, lose ? 0 : 1);
    }
    uint8_t bad[4] = {0, 0, 0, 3}, *data = bad;
    size_t len = 4;
    T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_BAD);
    data = bad;
    len = 3;
    T_INT_EQ(cv_frame_open(&f, &data, &len), CV_FRAME_BAD);
}

int main(void)
{
    T_RUN(test_round_trips);
    T_RUN(test_bytes);
    T_RUN(test_fragments);
    return t_done();
}
