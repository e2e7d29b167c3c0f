/* Circular doubly linked list, embedded in its elements. An unlinked node points to itself, so
 * cv_list_del() may be called twice. */
#pragma once

#include "common/defs.h"

struct cv_list {
    struct cv_list *next;
    struct cv_list *prev;
};

static inline void cv_list_init(struct cv_list *l)
{
    l->next = l->prev = l;
}

static inline bool cv_list_is_empty(const struct cv_list *l)
{
    return l->next == l;
}

static inline void cv_list_add_tail(struct cv_list *head, struct cv_list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

static inline void cv_list_add_head(struct cv_list *head, struct cv_list *n)
{
    cv_list_add_tail(head->next, n);
}

static inline void cv_list_del(struct cv_list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    cv_list_init(n);
}

/* Move all elements of 'from' to the end of 'to'; 'from' is empty afterwards. */
static inline void cv_list_splice(struct cv_list *to, struct cv_list *from)
{
    if (cv_list_is_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    cv_list_init(from);
}

#define CV_LIST_FOREACH(it, head) for ((it) = (head)->next; (it) != (head); (it) = (it)->next)
/* The current element may be removed. */
#define CV_LIST_FOREACH_SAFE(it, tmp, head)                                                        \
    for ((it) = (head)->next, (tmp) = (it)->next; (it) != (head); (it) = (tmp), (tmp) = (it)->next)
