#include "net/chunkq.h"

#include <pthread.h>

#include "common/alloc.h"
#include "tap.h"

enum { N = 20000 };

static void *put_all(void *arg)
{
    struct cv_chunkq *q = arg;
    for (uint32_t i = 0; i < N; i++) {
        struct cv_chunk *c = cv_chunk_new(sizeof(i));
        memcpy(c->data, &i, sizeof(i));
        c->len = sizeof(i);
        cv_chunkq_put(q, c);
    }
    return NULL;
}

static void test_order_between_threads(void)
{
    struct cv_chunkq q;
    pthread_t thread;
    uint32_t want = 0;
    bool wrong = false;
    T_REQUIRE(cv_chunkq_init(&q) == 0);
    T_REQUIRE(pthread_create(&thread, NULL, put_all, &q) == 0);
    while (want < N) {
        struct cv_chunk *c = cv_chunkq_first(&q);
        uint32_t got;
        if (c == NULL)
            continue;
        memcpy(&got, c->data, sizeof(got));
        wrong |= got != want++;
        cv_chunkq_pop(&q);
    }
    pthread_join(thread, NULL);
    T_OK(!wrong);
    T_INT_EQ(atomic_load(&q.bytes), 0);
    T_OK(cv_chunkq_first(&q) == NULL);
    cv_chunkq_done(&q);
}

static void test_consume(void)
{
    struct cv_chunkq q;
    T_REQUIRE(cv_chunkq_init(&q) == 0);
    struct cv_chunk *c = cv_chunk_new(10);
    c->len = 10;
    cv_chunkq_put(&q, c);
    T_INT_EQ(cv_chunkq_consume(&q, 4), 6);
    T_INT_EQ(cv_chunkq_first(&q)->off, 4);
    T_INT_EQ(cv_chunkq_first(&q)->len, 6);
    c = cv_chunk_new(1);
    c->len = 1;
    cv_chunkq_put(&q, c);
    cv_chunkq_pop(&q);
    T_INT_EQ(atomic_load(&q.bytes), 1);
    cv_chunkq_done(&q); /* with what is left in it */
}

int main(void)
{
    T_RUN(test_consume);
    T_RUN(test_order_between_threads);
    return t_done();
}
