/* On a clock that the test moves. */
#include "flow/admission.h"

#include "tap.h"

static struct cv_ip ip4(uint32_t n)
{
    return (struct cv_ip){
        .family = CV_AF_IP4,
        .b = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n}};
}

/* Try 'per_ms' connections in each of 'ms' milliseconds; how many come in. */
static int run(struct cv_admission *a, struct cv_ip ip, uint64_t all, uint64_t source, int per_ms,
               int64_t *now, int ms)
{
    int n = 0;
    for (int i = 0; i < ms; i++, ++*now)
        for (int k = 0; k < per_ms; k++)
            n += cv_admission_take(a, &ip, all, source, *now);
    return n;
}

static void test_off(void)
{
    struct cv_admission *a = cv_admission_new();
    int64_t now = 1000;
    T_INT_EQ(run(a, ip4(1), 0, 0, 100, &now, 100), 10000);
    cv_admission_free(a);
    cv_admission_free(NULL);
}

static void test_rates(void)
{
    static const uint64_t rates[] = {1, 10, 100, 1000};
    for (int i = 0; i < 4; i++) {
        int64_t now = 777777;
        struct cv_admission *a = cv_admission_new();
        int n = run(a, ip4(1), 0, rates[i], 3, &now, 20000);
        T_OK(n >= (int)rates[i] * 21 && n <= (int)rates[i] * 22 + 2);
        /* Others have their own. */
        n = run(a, ip4(2), 0, rates[i], 3, &now, 1000);
        T_OK(n >= (int)rates[i] * 2 && n <= (int)rates[i] * 3 + 2);
        cv_admission_free(a);
        a = cv_admission_new();
        n = run(a, ip4(1), rates[i], 0, 3, &now, 20000);
        T_OK(n >= (int)rates[i] * 21 && n <= (int)rates[i] * 22 + 2);
        T_OK(run(a, ip4(2), rates[i], 0, 3, &now, 1) <= 1);
        cv_admission_free(a);
    }
}

/* What one source has too much is not taken from the others. */
static void test_both(void)
{
    struct cv_admission *a = cv_admission_new();
    struct cv_ip none = {0};
    int64_t now = 1000;
    T_INT_EQ(run(a, ip4(1), 100, 10, 1000, &now, 1), 20);
    T_INT_EQ(run(a, ip4(2), 100, 10, 1000, &now, 1), 20);
    T_INT_EQ(run(a, none, 100, 10, 1000, &now, 1), 160); /* no source: the node's only */
    T_INT_EQ(run(a, ip4(3), 100, 10, 1000, &now, 1), 0);
    cv_admission_free(a);
}

static void test_prefix(void)
{
    struct cv_admission *a = cv_admission_new();
    struct cv_ip ip = {.family = CV_AF_IP6, .b = {0x20, 1, 0xd, 0xb8}};
    int n = 0;
    for (int i = 0; i < 256; i++) { /* each another address of one /64 */
        ip.b[15] = (uint8_t)i;
        n += cv_admission_take(a, &ip, 0, 5, 1000);
    }
    T_INT_EQ(n, 10);
    ip.b[7] = 1;
    T_OK(cv_admission_take(a, &ip, 0, 5, 1000));
    cv_admission_free(a);
}

/* Sources that come once do not make one that comes too fast forgotten. */
static void test_flood(void)
{
    struct cv_admission *a = cv_admission_new();
    struct cv_ip greedy = ip4(1);
    int n = 0;
    for (uint32_t i = 0; i < 300000; i++) {
        struct cv_ip ip = ip4(0x20000000 + i);
        (void)cv_admission_take(a, &ip, 0, 10, 1000 + i / 1000);
        if (i % 100 == 0)
            n += cv_admission_take(a, &greedy, 0, 10, 1000 + i / 1000);
    }
    T_OK(n <= 24);
    cv_admission_free(a);
}

static void test_clock(void)
{
    struct cv_admission *a = cv_admission_new();
    int64_t now = 100000;
    T_INT_EQ(run(a, ip4(1), 10, 10, 100, &now, 1), 20);
    now -= 500; /* another thread's */
    T_INT_EQ(run(a, ip4(1), 10, 10, 100, &now, 1), 0);
    now += INT64_C(86400000) * 365;
    T_INT_EQ(run(a, ip4(1), 10, 10, 100, &now, 1), 20);
    cv_admission_free(a);
}

int main(void)
{
    T_RUN(test_off);
    T_RUN(test_rates);
    T_RUN(test_both);
    T_RUN(test_prefix);
    T_RUN(test_flood);
    T_RUN(test_clock);
    return t_done();
}
