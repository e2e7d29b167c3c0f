/* On a clock that the test moves. */
#include "flow/backoff.h"

#include <pthread.h>
#include <stdlib.h>

#include "tap.h"

static const struct cv_login_settings conf = {
    .failures = 10,
    .source_failures = 100,
    .window_ms = 60000,
    .backoff_ms = 1000,
    .backoff_max_ms = 300000,
};

static struct cv_ip ip4(uint32_t n)
{
    return (struct cv_ip){
        .family = CV_AF_IP4,
        .b = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n}};
}

static struct cv_ip ip6(uint8_t net, uint8_t host)
{
    return (struct cv_ip){.family = CV_AF_IP6,
                          .b = {0x20, 1, 0xd, 0xb8, 0, 0, 0, net, [15] = host}};
}

static struct cv_backoff_key key(struct cv_ip ip, const char *user)
{
    return cv_backoff_key(&ip, user, strlen(user));
}

static uint64_t guess; /* each one is another */

static int64_t fail(struct cv_backoff *b, struct cv_backoff_key k, int64_t now)
{
    return cv_backoff_failed(b, &conf, &k, ++guess, now);
}

static int64_t wait(struct cv_backoff *b, struct cv_backoff_key k, int64_t now)
{
    return cv_backoff_wait(b, &conf, &k, now);
}

static void test_doubling(void)
{
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key k = key(ip4(1), "alice");
    int64_t now = 5000000, want = 1000;
    for (int i = 1; i < 10; i++) {
        T_INT_EQ(wait(b, k, now), 0);
        T_INT_EQ(fail(b, k, now), 0);
    }
    for (int i = 10; i < 30; i++) {
        T_INT_EQ(wait(b, k, now), 0);
        T_INT_EQ(fail(b, k, now), want);
        T_INT_EQ(wait(b, k, now), want);
        T_OK(wait(b, k, now + want - 100) > 0);
        now += want;
        want = CV_MIN(2 * want, 300000);
    }
    T_INT_EQ(want, 300000);
    /* After the pause and a silent window all is forgotten. */
    now += 60000;
    T_INT_EQ(fail(b, k, now), 0);
    cv_backoff_free(b);
    cv_backoff_free(NULL);
}

/* Nobody else is held up: not the user elsewhere, not others at the same place. */
static void test_others(void)
{
    struct cv_backoff *b = cv_backoff_new();
    int64_t now = 1000;
    for (int i = 0; i < 20; i++)
        fail(b, key(ip4(1), "alice"), now);
    T_OK(wait(b, key(ip4(1), "alice"), now) > 0);
    T_INT_EQ(wait(b, key(ip4(2), "alice"), now), 0);
    T_INT_EQ(wait(b, key(ip4(1), "bob"), now), 0);
    T_INT_EQ(wait(b, key(ip6(1, 1), "alice"), now), 0);
    cv_backoff_free(b);
}

static void test_source(void)
{
    struct cv_backoff *b = cv_backoff_new();
    char user[16];
    int64_t now = 1000;
    struct cv_backoff_key bob = key(ip4(7), "bob");
    cv_backoff_succeeded(b, &bob, now);
    for (int i = 0; i < 99; i++) {
        snprintf(user, sizeof(user), "u%d", i);
        T_INT_EQ(fail(b, key(ip4(7), user), now), 0);
    }
    T_INT_EQ(wait(b, key(ip4(7), "new"), now), 0);
    T_INT_EQ(fail(b, key(ip4(7), "u99"), now), 1000);
    T_OK(wait(b, key(ip4(7), "new"), now) > 0);
    T_INT_EQ(wait(b, bob, now), 0); /* has logged in from there */
    T_INT_EQ(wait(b, key(ip4(8), "new"), now), 0);
    /* They drain away while nobody fails, and while somebody does now and then. */
    now += 5000;
    for (int i = 0; i < 600; i++) {
        now += 1000;
        snprintf(user, sizeof(user), "v%d", i);
        T_INT_EQ(fail(b, key(ip4(7), user), now), 0);
    }
    cv_backoff_free(b);
}

static void test_right_login(void)
{
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key k = key(ip4(1), "alice");
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 9; i++)
            T_INT_EQ(fail(b, k, 1000 * round), 0);
        cv_backoff_succeeded(b, &k, 1000 * round);
    }
    cv_backoff_free(b);
}

static void test_repeated(void)
{
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key k = key(ip4(1), "alice");
    T_OK(!cv_backoff_is_repeated(b, &k, 77));
    for (int i = 0; i < 1000; i++)
        T_INT_EQ(cv_backoff_failed(b, &conf, &k, 77, 1000), 0);
    T_OK(cv_backoff_is_repeated(b, &k, 77));
    T_OK(!cv_backoff_is_repeated(b, &k, 78));
    T_INT_EQ(wait(b, k, 1000), 0);
    cv_backoff_succeeded(b, &k, 1000);
    T_OK(!cv_backoff_is_repeated(b, &k, 77));
    T_OK(!cv_backoff_is_repeated(b, &k, 0));
    cv_backoff_free(b);
}

static void test_keys(void)
{
    struct cv_ip none = {0}, mapped = {.family = CV_AF_IP6, .b = {[10] = 0xff, 0xff, 1, 2, 3, 4}};
    struct cv_backoff_key a = key(ip6(1, 1), "u"), same = key(ip6(1, 200), "u"),
                          other = key(ip6(2, 1), "u");
    T_OK(a.source == same.source && a.pair == same.pair);
    T_OK(a.source != other.source && a.pair != other.pair);
    T_OK(key(mapped, "u").pair == key(ip4(0x01020304), "u").pair);
    T_OK(key(ip4(1), "u").source != key(ip4(2), "u").source);
    T_OK(key(ip4(1), "u").pair != key(ip4(1), "v").pair);
    /* Without an address nothing is counted. */
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key k = cv_backoff_key(&none, "u", 1);
    for (int i = 0; i < 1000; i++)
        T_INT_EQ(fail(b, k, 1000), 0);
    cv_backoff_succeeded(b, &k, 1000);
    T_INT_EQ(wait(b, k, 1000), 0);
    T_OK(!cv_backoff_is_repeated(b, &k, guess));
    cv_backoff_free(b);
}

static void test_off(void)
{
    struct cv_login_settings off = conf;
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key k = key(ip4(1), "alice");
    off.failures = 0;
    for (int i = 0; i < 99; i++)
        T_INT_EQ(cv_backoff_failed(b, &off, &k, ++guess, 1000), 0);
    T_INT_EQ(cv_backoff_failed(b, &off, &k, ++guess, 1000), 1000); /* the source's */
    off.source_failures = 0;
    T_INT_EQ(cv_backoff_wait(b, &off, &k, 1000), 0);
    T_INT_EQ(cv_backoff_failed(b, &off, &k, ++guess, 1000), 0);
    cv_backoff_free(b);
}

/* A million sources with a guess each push out neither who waits nor who has logged in before. */
static void test_flood(void)
{
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key held[200], good[200];
    int64_t now = 1000;
    int kept = 0, known = 0;
    for (uint32_t i = 0; i < 200; i++) {
        held[i] = key(ip4(0x0a000000 + i), "alice");
        for (int k = 0; k < 15; k++)
            fail(b, held[i], now);
        good[i] = key(ip4(0x0b000000 + i), "bob");
        cv_backoff_succeeded(b, &good[i], now);
    }
    for (uint32_t i = 0; i < 1000000; i++)
        fail(b, key(ip4(0x20000000 + i), "alice"), now + i / 100000);
    for (int i = 0; i < 200; i++)
        kept += wait(b, held[i], now + 1000) > 0;
    T_INT_EQ(kept, 200);
    /* Who has logged in is told by being let in where a source is held up. */
    for (uint32_t i = 0; i < 200; i++) {
        char user[16];
        for (int k = 0; k < 100; k++) {
            snprintf(user, sizeof(user), "x%d", k);
            fail(b, key(ip4(0x0b000000 + i), user), now + 1000);
        }
        known += wait(b, good[i], now + 1000) == 0;
        T_OK(wait(b, key(ip4(0x0b000000 + i), "stranger"), now + 1000) > 0);
    }
    T_OK(known >= 195);
    cv_backoff_free(b);
}

static void test_clock(void)
{
    struct cv_backoff *b = cv_backoff_new();
    struct cv_backoff_key k = key(ip4(1), "alice");
    for (int i = 0; i < 10; i++)
        fail(b, k, 1000000);
    /* Another thread's time is a little older; it waits no longer than it has to. */
    T_INT_EQ(wait(b, k, 999000), 1000);
    T_OK(wait(b, k, INT64_C(1000000) * 1000 * 100) == 0);
    cv_backoff_free(b);
}

static struct cv_backoff *shared;

static void *hammer(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    for (uint32_t i = 0; i < 20000; i++) {
        struct cv_backoff_key k = key(ip4(i % 512), "alice");
        switch (i % 3) {
        case 0:
            (void)cv_backoff_wait(shared, &conf, &k, i);
            break;
        case 1:
            (void)cv_backoff_failed(shared, &conf, &k, seed * 1000000 + i, i);
            break;
        default:
            (void)cv_backoff_is_repeated(shared, &k, i);
            break;
        }
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t t[4];
    shared = cv_backoff_new();
    for (uintptr_t i = 0; i < 4; i++)
        T_INT_EQ(pthread_create(&t[i], NULL, hammer, (void *)(i + 1)), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (uint32_t i = 0; i < 512; i++)
        T_OK(wait(shared, key(ip4(i), "alice"), 20000) > 0);
    cv_backoff_free(shared);
}

int main(void)
{
    T_RUN(test_doubling);
    T_RUN(test_others);
    T_RUN(test_source);
    T_RUN(test_right_login);
    T_RUN(test_repeated);
    T_RUN(test_keys);
    T_RUN(test_off);
    T_RUN(test_flood);
    T_RUN(test_clock);
    T_RUN(test_threads);
    return t_done();
}
