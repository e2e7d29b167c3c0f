#include "net/dgramq.h"

#include <errno.h>

#include "common/err.h"
#include "tap.h"

static const struct cv_target *target(const char *text)
{
    static struct cv_target t;
    T_INT_EQ(cv_target_parse(text, strlen(text), 0, &t), 0);
    return &t;
}

static void test_copies_in_order(void)
{
    struct cv_dgramq_budget budget = {.max = 1 << 20};
    struct cv_dgramq q;
    struct cv_prefix grant;
    uint8_t data[3] = {'a', 'b', 'c'};
    cv_dgramq_init(&q, 8, 1 << 16, &budget);
    T_OK(cv_dgramq_pop(&q) == NULL);
    T_INT_EQ(cv_prefix_parse("10.0.0.0/8", 10, &grant), 0);
    struct cv_dgram_out m = {.to = target("a.test:1"), .grant = &grant, .data = data, .len = 3};
    T_INT_EQ(cv_dgramq_push(&q, &m), 0);
    m = (struct cv_dgram_out){.to = target("1.2.3.4:2"), .len = 0};
    T_INT_EQ(cv_dgramq_push(&q, &m), 0);
    T_INT_EQ(q.n, 2);
    /* They are copies. */
    memset(data, 'x', sizeof(data));
    memset(&grant, 0, sizeof(grant));
    (void)target("z.test:9");
    struct cv_dgramq_item *item = cv_dgramq_pop(&q);
    T_STR_EQ(item->out.to->host.name, "a.test");
    T_INT_EQ(item->out.to->port, 1);
    T_INT_EQ(item->out.len, 3);
    T_MEM_EQ(item->out.data, "abc", 3);
    T_INT_EQ(item->out.grant->len, 8);
    cv_dgramq_item_free(item);
    item = cv_dgramq_pop(&q);
    T_STR_EQ(item->out.to->host.name, "1.2.3.4");
    T_OK(item->out.grant == NULL);
    T_INT_EQ(item->out.len, 0);
    cv_dgramq_item_free(item);
    T_INT_EQ(budget.used, 0);
    T_INT_EQ(q.n, 0);
}

static bool is_long(void *arg, const struct cv_dgram_out *m)
{
    return m->len > *(size_t *)arg;
}

static void test_bounds(void)
{
    static uint8_t data[CV_DGRAM_MAX + 1];
    struct cv_dgramq_budget budget = {.max = 300000};
    struct cv_dgramq q, other;
    struct cv_dgram_out m = {.to = target("a.test:1"), .data = data, .len = 10};
    cv_dgramq_init(&q, 3, 200000, &budget);
    cv_dgramq_init(&other, 100, 200000, &budget);
    for (int i = 0; i < 3; i++)
        T_INT_EQ(cv_dgramq_push(&q, &m), 0);
    T_INT_EQ(cv_dgramq_push(&q, &m), CV_E_LIMIT); /* number */
    size_t limit = 10;
    T_OK(!cv_dgramq_any(&q, is_long, &limit));
    limit = 9;
    T_OK(cv_dgramq_any(&q, is_long, &limit));
    T_INT_EQ(cv_dgramq_clear(&q), 3);
    T_INT_EQ(cv_dgramq_clear(&q), 0);
    T_OK(!cv_dgramq_any(&q, is_long, &limit));
    m.len = CV_DGRAM_MAX + 1;
    T_INT_EQ(cv_dgramq_push(&q, &m), -EMSGSIZE);
    m.len = CV_DGRAM_MAX;
    T_INT_EQ(cv_dgramq_push(&q, &m), 0);
    T_INT_EQ(cv_dgramq_push(&q, &m), 0);
    T_INT_EQ(cv_dgramq_push(&q, &m), 0);
    T_INT_EQ(cv_dgramq_push(&other, &m), 0);
    T_INT_EQ(cv_dgramq_push(&other, &m), CV_E_LIMIT); /* what both share */
    T_INT_EQ(cv_dgramq_clear(&q), 3);
    T_INT_EQ(cv_dgramq_push(&other, &m), 0);
    T_INT_EQ(cv_dgramq_push(&other, &m), 0);
    T_INT_EQ(cv_dgramq_push(&other, &m), CV_E_LIMIT); /* bytes of one */
    T_INT_EQ(cv_dgramq_clear(&other), 3);
    T_INT_EQ(budget.used, 0);
}

int main(void)
{
    T_RUN(test_copies_in_order);
    T_RUN(test_bounds);
    return t_done();
}
