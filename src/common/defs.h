/* Macros that every module uses: attributes, container access, checked arithmetic, assertions.
 *
 * Three kinds of wrong have three tools: bad input is a return code; a broken caller is CV_ASSERT,
 * which stays in release builds; an impossible but survivable state is CV_BUG_ON_ONCE, which
 * counts, reports once, and lets the caller return. No assertion may be reachable by bytes from
 * the network. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define CV_MUST_CHECK        __attribute__((warn_unused_result))
#define CV_NORETURN          __attribute__((noreturn))
#define CV_LIKELY(x)         __builtin_expect(!!(x), 1)
#define CV_UNLIKELY(x)       __builtin_expect(!!(x), 0)
#define CV_ARRAY_SIZE(a)     (sizeof(a) / sizeof((a)[0]))

/* The object of 'type' whose 'member' is at 'ptr'. */
#define CV_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

#define CV_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CV_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Sizes that a peer or a file may influence are computed through these; true = overflow. */
#define CV_ADD_OVERFLOW(a, b, ret) __builtin_add_overflow((a), (b), (ret))
#define CV_MUL_OVERFLOW(a, b, ret) __builtin_mul_overflow((a), (b), (ret))

CV_NORETURN void cv_assert_failed(const char *expr, const char *file, int line);

/* Abort when a caller inside this program broke its contract. */
#define CV_ASSERT(expr)                                                                            \
    do {                                                                                           \
        if (CV_UNLIKELY(!(expr)))                                                                  \
            cv_assert_failed(#expr, __FILE__, __LINE__);                                           \
    } while (0)

/* Record a state that should not exist, and report it the first time. Return 'cond'. */
#define CV_BUG_ON_ONCE(cond)                                                                       \
    ({                                                                                             \
        static bool reported_;                                                                     \
        bool bad_ = CV_UNLIKELY(!!(cond));                                                         \
        if (bad_)                                                                                  \
            cv_bug_report(#cond, __FILE__, __LINE__, &reported_);                                  \
        bad_;                                                                                      \
    })
void cv_bug_report(const char *expr, const char *file, int line, bool *reported);

/* Number of CV_BUG_ON_ONCE conditions that were ever true, for the metrics. */
uint64_t cv_bug_count(void);
