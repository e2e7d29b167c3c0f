#include <arch/cc.h>

#include "emu.h"

static uint16_t plain(const uint8_t *p, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += i % 2 == 0 ? (uint32_t)p[i] : (uint32_t)p[i] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static void test_checksum(void)
{
    struct emu e = {.rnd = 42};
    uint8_t buf[3000];
    for (unsigned round = 0; round < 20000; round++) {
        size_t off = emu_rand(&e) % 9, n = emu_rand(&e) % (round % 2 ? 70 : 1500);
        for (size_t i = 0; i < n; i++)
            buf[off + i] = round % 7 == 0 ? 0xff : (uint8_t)(emu_rand(&e) >> 13);
        uint16_t a = cv_lwip_checksum(buf + off, (int)n), b = plain(buf + off, n);
        /* 0 and 0xffff are the same number. */
        if (!T_OK(a == b || (a % 0xffff == 0 && b % 0xffff == 0)))
            return;
    }
}

static void test_random(void)
{
    T_OK(cv_lwip_rand() != cv_lwip_rand() || cv_lwip_rand() != cv_lwip_rand());
}

int main(void)
{
    T_RUN(test_checksum);
    T_RUN(test_random);
    return t_done();
}
