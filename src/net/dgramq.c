#include "net/dgramq.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/err.h"

#include "common/poison.h"

static size_t cost(size_t len)
{
    return sizeof(struct cv_dgramq_item) + len;
}

void cv_dgramq_init(struct cv_dgramq *q, uint32_t max_n, size_t max_bytes,
                    struct cv_dgramq_budget *budget)
{
    *q = (struct cv_dgramq){._budget = budget, ._max_bytes = max_bytes, ._max_n = max_n};
    cv_list_init(&q->_items);
}

int cv_dgramq_push(struct cv_dgramq *q, const struct cv_dgram_out *m)
{
    if (m->len > CV_DGRAM_MAX)
        return -EMSGSIZE;
    size_t bytes = cost(m->len);
    if (q->n >= q->_max_n || bytes > q->_max_bytes - q->_bytes ||
        bytes > q->_budget->max - q->_budget->used)
        return CV_E_LIMIT;
    struct cv_dgramq_item *item = cv_try_alloc(bytes);
    if (item == NULL)
        return -ENOMEM;
    item->_to = *m->to;
    if (m->grant != NULL)
        item->_grant = *m->grant;
    if (m->len > 0)
        memcpy(item->_data, m->data, m->len);
    item->out = (struct cv_dgram_out){
        .to = &item->_to,
        .grant = m->grant != NULL ? &item->_grant : NULL,
        .data = item->_data,
        .len = m->len,
    };
    cv_list_add_tail(&q->_items, &item->_node);
    q->n++;
    q->_bytes += bytes;
    q->_budget->used += bytes;
    return 0;
}

struct cv_dgramq_item *cv_dgramq_pop(struct cv_dgramq *q)
{
    if (q->n == 0)
        return NULL;
    struct cv_dgramq_item *item = CV_CONTAINER_OF(q->_items.next, struct cv_dgramq_item, _node);
    cv_list_del(&item->_node);
    q->n--;
    q->_bytes -= cost(item->out.len);
    q->_budget->used -= cost(item->out.len);
    return item;
}

void cv_dgramq_item_free(struct cv_dgramq_item *item)
{
    cv_free(item);
}

size_t cv_dgramq_clear(struct cv_dgramq *q)
{
    size_t n = q->n;
    for (struct cv_dgramq_item *item; (item = cv_dgramq_pop(q)) != NULL;)
        cv_dgramq_item_free(item);
    return n;
}

bool cv_dgramq_any(const struct cv_dgramq *q, bool (*fn)(void *arg, const struct cv_dgram_out *m),
                   void *arg)
{
    struct cv_list *it;
    CV_LIST_FOREACH (it, &q->_items) {
        const struct cv_dgramq_item *item = CV_CONTAINER_OF(it, struct cv_dgramq_item, _node);
        if (fn(arg, &item->out))
            return true;
    }
    return false;
}
