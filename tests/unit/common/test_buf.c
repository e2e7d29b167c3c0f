#include "tap.h"

#include <errno.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/torture.h"

static void starts_empty_without_memory(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 10);
    T_OK(cv_buf_is_empty(&b));
    T_INT_EQ(cv_buf_len(&b), 0);
    T_INT_EQ(cv_buf_room(&b), 10);
    T_OK(cv_buf_data(&b) == NULL);
    T_INT_EQ(cv_buf_append(&b, NULL, 0), 0);
    T_OK(cv_buf_data(&b) == NULL);
    cv_buf_release(&b);
    cv_buf_done(&b);
}

static void maximum_is_exact(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 5);
    T_INT_EQ(cv_buf_append(&b, "123456", 6), CV_E_LIMIT);
    T_INT_EQ(cv_buf_append_str(&b, "12345"), 0);
    T_INT_EQ(cv_buf_append(&b, "6", 1), CV_E_LIMIT);
    T_INT_EQ(cv_buf_printf(&b, "%d", 6), CV_E_LIMIT);
    uint8_t *p;
    size_t room;
    T_INT_EQ(cv_buf_reserve(&b, 1, &p, &room), CV_E_LIMIT);
    T_MEM_EQ(cv_buf_data(&b), "12345", 5);
    cv_buf_consume(&b, 2);
    T_INT_EQ(cv_buf_room(&b), 2);
    T_INT_EQ(cv_buf_append(&b, "67", 2), 0);
    T_INT_EQ(cv_buf_append(&b, "8", 1), CV_E_LIMIT);
    T_MEM_EQ(cv_buf_data(&b), "34567", 5);
    cv_buf_done(&b);
}

static void absurd_sizes_do_not_wrap(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 100);
    uint8_t *p;
    size_t room;
    T_INT_EQ(cv_buf_append(&b, "a", 1), 0);
    T_INT_EQ(cv_buf_reserve(&b, SIZE_MAX, &p, &room), CV_E_LIMIT);
    T_INT_EQ(cv_buf_append(&b, "a", SIZE_MAX), CV_E_LIMIT);
    cv_buf_done(&b);
}

static void reserve_and_commit(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 1000);
    uint8_t *p;
    size_t room;
    T_REQUIRE(cv_buf_reserve(&b, 10, &p, &room) == 0);
    T_OK(room >= 10 && room <= 1000);
    memset(p, 'x', room);
    cv_buf_commit(&b, 7);
    T_INT_EQ(cv_buf_len(&b), 7);
    T_REQUIRE(cv_buf_reserve(&b, 993, &p, &room) == 0);
    T_INT_EQ(room, 993);
    memset(p, 'y', room);
    cv_buf_commit(&b, room);
    T_INT_EQ(cv_buf_room(&b), 0);
    T_MEM_EQ(cv_buf_data(&b), "xxxxxxxyyy", 10);
    T_INT_EQ(cv_buf_reserve(&b, 0, &p, &room), 0);
    T_INT_EQ(room, 0);
    cv_buf_done(&b);
}

static void release_only_when_empty(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 100);
    T_INT_EQ(cv_buf_append_str(&b, "ab"), 0);
    cv_buf_release(&b);
    T_INT_EQ(cv_buf_len(&b), 2);
    cv_buf_consume(&b, 2);
    T_OK(cv_buf_data(&b) != NULL);
    cv_buf_release(&b);
    T_OK(cv_buf_data(&b) == NULL);
    T_INT_EQ(cv_buf_room(&b), 100);
    T_INT_EQ(cv_buf_append_str(&b, "c"), 0);
    cv_buf_done(&b);
}

static void formatted_text_short_and_long(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 5000);
    T_INT_EQ(cv_buf_printf(&b, "%s=%d;", "key", 42), 0);
    T_MEM_EQ(cv_buf_data(&b), "key=42;", 7);
    char long_text[3000];
    memset(long_text, 'z', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    T_INT_EQ(cv_buf_printf(&b, "<%s>", long_text), 0);
    T_INT_EQ(cv_buf_len(&b), 7 + 2 + 2999);
    T_INT_EQ(cv_buf_data(&b)[7 + 2 + 2999 - 1], '>');
    T_INT_EQ(cv_buf_printf(&b, "<%s>", long_text), CV_E_LIMIT);
    T_INT_EQ(cv_buf_len(&b), 7 + 2 + 2999);
    cv_buf_done(&b);
}

static void steal(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 100);
    uint8_t *p = cv_buf_steal(&b);
    T_OK(p == NULL);
    T_INT_EQ(cv_buf_append_str(&b, "abcdef"), 0);
    cv_buf_consume(&b, 2);
    p = cv_buf_steal(&b);
    T_REQUIRE(p != NULL);
    T_MEM_EQ(p, "cdef", 4);
    T_OK(cv_buf_is_empty(&b) && cv_buf_data(&b) == NULL && cv_buf_room(&b) == 100);
    cv_free(p);
    cv_buf_done(&b);
}

static void lack_of_memory_keeps_what_is_there(void)
{
    struct cv_buf b;
    cv_buf_init(&b, 10000);
    T_INT_EQ(cv_buf_append_str(&b, "kept"), 0);
#ifdef CV_TORTURE
    char big[2000];
    memset(big, 'b', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    cv_torture_arm(1);
    T_INT_EQ(cv_buf_append_str(&b, big), -ENOMEM);
    cv_torture_arm(1);
    T_INT_EQ(cv_buf_printf(&b, "%s", big), -ENOMEM);
    uint8_t *p;
    size_t room;
    cv_torture_arm(1);
    T_INT_EQ(cv_buf_reserve(&b, sizeof(big), &p, &room), -ENOMEM);
    cv_torture_arm(0);
#endif
    T_INT_EQ(cv_buf_len(&b), 4);
    T_MEM_EQ(cv_buf_data(&b), "kept", 4);
    T_INT_EQ(cv_buf_append_str(&b, " on"), 0);
    T_MEM_EQ(cv_buf_data(&b), "kept on", 7);
    cv_buf_done(&b);
}

/* A queue that is one array, for comparison. */
static void random_walk_equals_plain_queue(void)
{
    enum { MAX = 2000, STEPS = 50000 };
    static uint8_t model[MAX];
    size_t model_len = 0;
    struct cv_buf b;
    cv_buf_init(&b, MAX);
    srand(7);
    bool same = true;
    for (int i = 0; i < STEPS && same; i++) {
        uint8_t chunk[300];
        size_t n = (size_t)rand() % sizeof(chunk);
        for (size_t j = 0; j < n; j++)
            chunk[j] = (uint8_t)rand();
        switch (rand() % 5) {
        case 0:
        case 1: {
            int want = n > MAX - model_len ? CV_E_LIMIT : 0;
            same = cv_buf_append(&b, chunk, n) == want;
            if (want == 0) {
                memcpy(model + model_len, chunk, n);
                model_len += n;
            }
            break;
        }
        case 2: {
            uint8_t *p;
            size_t room;
            if (n <= MAX - model_len) {
                same = cv_buf_reserve(&b, n, &p, &room) == 0 && room >= n;
                if (n > 0)
                    memcpy(p, chunk, n);
                cv_buf_commit(&b, n);
                memcpy(model + model_len, chunk, n);
                model_len += n;
            }
            break;
        }
        case 3: {
            size_t gone = CV_MIN(n, model_len);
            cv_buf_consume(&b, gone);
            memmove(model, model + gone, model_len - gone);
            model_len -= gone;
            break;
        }
        default:
            cv_buf_release(&b);
        }
        same = same && cv_buf_len(&b) == model_len && cv_buf_room(&b) == MAX - model_len &&
               (model_len == 0 || memcmp(cv_buf_data(&b), model, model_len) == 0);
    }
    T_OK(same);
    cv_buf_done(&b);
}

int main(void)
{
    T_RUN(starts_empty_without_memory);
    T_RUN(maximum_is_exact);
    T_RUN(absurd_sizes_do_not_wrap);
    T_RUN(reserve_and_commit);
    T_RUN(release_only_when_empty);
    T_RUN(formatted_text_short_and_long);
    T_RUN(steal);
    T_RUN(lack_of_memory_keeps_what_is_there);
    T_RUN(random_walk_equals_plain_queue);
    return t_done();
}
