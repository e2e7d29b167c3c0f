#include "tap.h"

#include <pthread.h>

#include "common/alloc.h"

/* What is released is looked at just before. */
static char released[64];
static void spy_free(void *p);
#define cv_free spy_free
#include "common/rcstr.c"
#undef cv_free

static void spy_free(void *p)
{
    struct cv_rcstr *r = p;
    memcpy(released, r->s, CV_MIN((size_t)r->len + 1, sizeof(released)));
    cv_free(p);
}

static void text_and_length(void)
{
    struct cv_rcstr *r = cv_rcstr_new("alice\0x", 7);
    T_REQUIRE(r != NULL);
    T_INT_EQ(r->len, 7);
    T_MEM_EQ(r->s, "alice\0x", 8);
    T_STR_EQ(cv_rcstr_text(r), "alice");
    cv_rcstr_unref(r);
    r = cv_rcstr_new(NULL, 0);
    T_REQUIRE(r != NULL);
    T_STR_EQ(cv_rcstr_text(r), "");
    cv_rcstr_unref(r);
}

static void null_is_empty(void)
{
    T_STR_EQ(cv_rcstr_text(NULL), "");
    T_OK(cv_rcstr_ref(NULL) == NULL);
    cv_rcstr_unref(NULL);
}

static void too_long_is_refused(void)
{
    struct cv_rcstr *r = cv_rcstr_new("", (size_t)UINT32_MAX + 1);
    T_OK(r == NULL);
    r = cv_rcstr_new("", SIZE_MAX);
    T_OK(r == NULL);
}

static void *juggle(void *arg)
{
    struct cv_rcstr *r = arg;
    for (int i = 0; i < 20000; i++)
        cv_rcstr_unref(cv_rcstr_ref(r));
    cv_rcstr_unref(r);
    return NULL;
}

static void threads_share(void)
{
    struct cv_rcstr *r = cv_rcstr_new("shared", 6);
    T_REQUIRE(r != NULL);
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        T_INT_EQ(pthread_create(&threads[i], NULL, juggle, cv_rcstr_ref(r)), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    T_STR_EQ(cv_rcstr_text(r), "shared");
    T_INT_EQ(r->_refs, 1);
    cv_rcstr_unref(r);
}

static void secret_is_cleared(void)
{
    struct cv_rcstr *r = cv_rcstr_new_secret("hunter2", 7);
    T_REQUIRE(r != NULL);
    T_STR_EQ(cv_rcstr_text(r), "hunter2");
    T_INT_EQ(r->len, 7);
    memset(released, '?', sizeof(released));
    T_OK(cv_rcstr_ref(r) == r);
    cv_rcstr_unref(r);
    T_STR_EQ(r->s, "hunter2");
    T_INT_EQ(released[0], '?');
    cv_rcstr_unref(r);
    static const char zero[8];
    T_MEM_EQ(released, zero, 8);
    /* Others are not worth the time. */
    r = cv_rcstr_new("name", 4);
    cv_rcstr_unref(r);
    T_STR_EQ(released, "name");
}

int main(void)
{
    T_RUN(secret_is_cleared);
    T_RUN(text_and_length);
    T_RUN(null_is_empty);
    T_RUN(too_long_is_refused);
    T_RUN(threads_share);
    return t_done();
}
