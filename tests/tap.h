/* Small TAP producer for the unit tests.
 *
 * A test program calls T_RUN(fn) for each case and returns t_done(). Within a case, T_OK and its
 * kin record one result each; a failed check prints file, line and both values and the case goes
 * on, so one run shows every fault. T_REQUIRE leaves the case at the first failure. */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int t_checks;
static int t_case_failed;
static int t_cases;
static int t_failed;

static inline bool t_check(bool ok, const char *file, int line, const char *what)
{
    t_checks++;
    if (!ok) {
        t_case_failed++;
        printf("# %s:%d: failed: %s\n", file, line, what);
    }
    return ok;
}

static inline bool t_int_eq(intmax_t a, intmax_t b, const char *file, int line, const char *what)
{
    bool ok = t_check(a == b, file, line, what);
    if (!ok)
        printf("#   got %jd, wanted %jd\n", a, b);
    return ok;
}

static inline bool t_str_eq(const char *a, const char *b, const char *file, int line,
                            const char *what)
{
    bool same = a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
    bool ok = t_check(same, file, line, what);
    if (!ok)
        printf("#   got '%s', wanted '%s'\n", a ? a : "(null)", b ? b : "(null)");
    return ok;
}

static inline bool t_mem_eq(const void *a, const void *b, size_t n, const char *file, int line,
                            const char *what)
{
    bool ok = t_check(n == 0 || memcmp(a, b, n) == 0, file, line, what);
    if (!ok) {
        const uint8_t *x = a, *y = b;
        size_t i = 0;
        while (i < n && x[i] == y[i])
            i++;
        printf("#   %zu bytes, first difference at %zu: got %02x, wanted %02x\n", n, i, x[i], y[i]);
    }
    return ok;
}

#define T_OK(cond)        t_check((cond), __FILE__, __LINE__, #cond)
#define T_INT_EQ(a, b)    t_int_eq((intmax_t)(a), (intmax_t)(b), __FILE__, __LINE__, #a " == " #b)
#define T_STR_EQ(a, b)    t_str_eq((a), (b), __FILE__, __LINE__, #a " == " #b)
#define T_MEM_EQ(a, b, n) t_mem_eq((a), (b), (n), __FILE__, __LINE__, #a " == " #b)
#define T_FAIL(...)                                                                                \
    do {                                                                                           \
        t_check(false, __FILE__, __LINE__, "explicit failure");                                    \
        printf("#   ");                                                                            \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
    } while (0)
#define T_REQUIRE(cond)                                                                            \
    do {                                                                                           \
        if (!T_OK(cond))                                                                           \
            return;                                                                                \
    } while (0)

static inline void t_run(const char *name, void (*fn)(void))
{
    t_case_failed = 0;
    int before = t_checks;
    fn();
    t_cases++;
    if (t_checks == before) {
        printf("# %s checked nothing\n", name);
        t_case_failed = 1;
    }
    if (t_case_failed > 0)
        t_failed++;
    printf("%s %d - %s\n", t_case_failed > 0 ? "not ok" : "ok", t_cases, name);
    fflush(stdout);
}

#define T_RUN(fn) t_run(#fn, fn)

static inline int t_done(void)
{
    printf("1..%d\n", t_cases);
    return t_failed > 0 || t_cases == 0 ? 1 : 0;
}
