#include "tap.h"

#include "common/list.h"

struct item {
    int id;
    struct cv_list link;
};

static void expect(struct cv_list *head, const int *ids, size_t n)
{
    size_t i = 0;
    struct cv_list *it;
    CV_LIST_FOREACH (it, head) {
        T_REQUIRE(i < n);
        T_INT_EQ(CV_CONTAINER_OF(it, struct item, link)->id, ids[i++]);
        T_OK(it->next->prev == it && it->prev->next == it);
    }
    T_INT_EQ(i, n);
}

static void order_and_removal(void)
{
    struct cv_list head;
    struct item a = {.id = 1}, b = {.id = 2}, c = {.id = 3};
    cv_list_init(&head);
    T_OK(cv_list_is_empty(&head));
    cv_list_add_tail(&head, &b.link);
    cv_list_add_tail(&head, &c.link);
    cv_list_add_head(&head, &a.link);
    expect(&head, (int[]){1, 2, 3}, 3);
    cv_list_del(&b.link);
    cv_list_del(&b.link); /* twice is allowed */
    T_OK(cv_list_is_empty(&b.link));
    expect(&head, (int[]){1, 3}, 2);
    struct cv_list *it, *tmp;
    CV_LIST_FOREACH_SAFE (it, tmp, &head)
        cv_list_del(it);
    T_OK(cv_list_is_empty(&head));
}

static void splice_moves_all(void)
{
    struct cv_list to, from;
    struct item a = {.id = 1}, b = {.id = 2}, c = {.id = 3};
    cv_list_init(&to);
    cv_list_init(&from);
    cv_list_splice(&to, &from); /* nothing into nothing */
    T_OK(cv_list_is_empty(&to));
    cv_list_add_tail(&from, &a.link);
    cv_list_splice(&to, &from);
    expect(&to, (int[]){1}, 1);
    T_OK(cv_list_is_empty(&from));
    cv_list_add_tail(&from, &b.link);
    cv_list_add_tail(&from, &c.link);
    cv_list_splice(&to, &from);
    expect(&to, (int[]){1, 2, 3}, 3);
    cv_list_splice(&to, &from); /* nothing into something */
    expect(&to, (int[]){1, 2, 3}, 3);
}

int main(void)
{
    T_RUN(order_and_removal);
    T_RUN(splice_moves_all);
    return t_done();
}
