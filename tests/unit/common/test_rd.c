#include "tap.h"

#include "common/rd.h"

static void reads_in_network_order(void)
{
    static const uint8_t data[] = {1, 2, 3, 4, 5, 6, 7, 'a', 'b'};
    struct cv_rd r;
    cv_rd_init(&r, data, sizeof(data));
    T_INT_EQ(cv_rd_u8(&r), 1);
    T_INT_EQ(cv_rd_u16(&r), 0x0203);
    T_INT_EQ(cv_rd_u32(&r), 0x04050607);
    const uint8_t *p = cv_rd_bytes(&r, 2);
    T_OK(p == data + 7);
    T_INT_EQ(r.left, 0);
    T_INT_EQ(r.err, 0);
}

static void highest_values(void)
{
    static const uint8_t data[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct cv_rd r;
    cv_rd_init(&r, data, sizeof(data));
    T_INT_EQ(cv_rd_u8(&r), UINT8_MAX);
    T_INT_EQ(cv_rd_u16(&r), UINT16_MAX);
    T_INT_EQ(cv_rd_u32(&r), UINT32_MAX);
}

static void shortage_sticks(void)
{
    static const uint8_t data[] = {1, 2, 3};
    for (size_t len = 0; len < 3; len++) {
        struct cv_rd r;
        cv_rd_init(&r, data, len);
        T_INT_EQ(cv_rd_u32(&r), 0);
        T_INT_EQ(r.err, CV_E_MORE);
        T_INT_EQ(cv_rd_u8(&r), 0); /* although a byte would be there */
        T_OK(cv_rd_bytes(&r, 0) == NULL);
        T_INT_EQ(r.left, len);
    }
}

static void first_fault_wins(void)
{
    static const uint8_t data[] = {1};
    struct cv_rd r;
    cv_rd_init(&r, data, 1);
    cv_rd_fail(&r);
    T_INT_EQ(cv_rd_u16(&r), 0);
    T_INT_EQ(r.err, CV_E_PROTO);
    cv_rd_init(&r, data, 1);
    cv_rd_u16(&r);
    cv_rd_fail(&r);
    T_INT_EQ(r.err, CV_E_MORE);
}

static void empty_input(void)
{
    struct cv_rd r;
    cv_rd_init(&r, NULL, 0);
    T_INT_EQ(r.err, 0);
    T_INT_EQ(cv_rd_u8(&r), 0);
    T_INT_EQ(r.err, CV_E_MORE);
}

static void writes_and_stops_at_the_end(void)
{
    uint8_t out[6] = {0};
    struct cv_wr w;
    cv_wr_init(&w, out, 5);
    cv_wr_u8(&w, 1);
    cv_wr_u16(&w, 0x0203);
    T_INT_EQ(w.err, 0);
    cv_wr_bytes(&w, "abc", 3);
    T_INT_EQ(w.err, CV_E_LIMIT);
    cv_wr_u8(&w, 9); /* would fit, but the fault sticks */
    T_INT_EQ(w.len, 3);
    T_MEM_EQ(out, "\1\2\3\0\0\0", 6);
    cv_wr_init(&w, out, 6);
    cv_wr_bytes(&w, NULL, 0);
    cv_wr_bytes(&w, "abcdef", 6);
    T_INT_EQ(w.err, 0);
    T_INT_EQ(w.len, 6);
    cv_wr_bytes(&w, "x", SIZE_MAX);
    T_INT_EQ(w.err, CV_E_LIMIT);
}

int main(void)
{
    T_RUN(reads_in_network_order);
    T_RUN(highest_values);
    T_RUN(shortage_sticks);
    T_RUN(first_fault_wins);
    T_RUN(empty_input);
    T_RUN(writes_and_stops_at_the_end);
    return t_done();
}
