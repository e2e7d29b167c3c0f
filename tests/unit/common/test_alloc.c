#include "tap.h"

#include "common/alloc.h"

static void zero_sizes_give_memory(void)
{
    void *a = cv_alloc(0), *b = cv_zalloc(0), *c = cv_try_alloc(0);
    T_OK(a != NULL && b != NULL && c != NULL);
    cv_free(a);
    cv_free(b);
    CV_FREE(c);
    T_OK(c == NULL);
    cv_free(NULL);
}

static void copies_of_text(void)
{
    char *s = cv_strdup("abc");
    T_STR_EQ(s, "abc");
    cv_free(s);
    s = cv_strndup("abcdef", 2);
    T_STR_EQ(s, "ab");
    cv_free(s);
    s = cv_try_strndup("abcdef", 0);
    T_STR_EQ(s, "");
    cv_free(s);
}

static void cleared_memory(void)
{
    static const uint8_t zero[100];
    uint8_t *a = cv_zalloc(100), *b = cv_try_zalloc(100);
    T_REQUIRE(b != NULL);
    T_MEM_EQ(a, zero, 100);
    T_MEM_EQ(b, zero, 100);
    cv_free(a);
    cv_free(b);
}

static void overflow_and_absurd_sizes(void)
{
    uint8_t *p = cv_try_alloc(4);
    T_REQUIRE(p != NULL);
    memcpy(p, "1234", 4);
    T_OK(cv_try_realloc_array(p, SIZE_MAX / 2 + 1, 2) == NULL);
    T_OK(cv_try_realloc_array(p, SIZE_MAX, SIZE_MAX) == NULL);
    T_MEM_EQ(p, "1234", 4);
    T_OK(cv_try_strndup("", SIZE_MAX) == NULL);
    uint8_t *q = cv_try_realloc_array(p, 100, 3);
    T_REQUIRE(q != NULL);
    T_MEM_EQ(q, "1234", 4);
    cv_free(q);
}

static void scope_ends_scratch(void)
{
    {
        cv_auto_free char *s = cv_strdup("scratch");
        cv_auto_free char *none = NULL;
        T_STR_EQ(s, "scratch");
        T_OK(none == NULL);
    }
    T_OK(true); /* the leak checker judges at exit */
}

int main(void)
{
    T_RUN(zero_sizes_give_memory);
    T_RUN(copies_of_text);
    T_RUN(cleared_memory);
    T_RUN(overflow_and_absurd_sizes);
    T_RUN(scope_ends_scratch);
    return t_done();
}
