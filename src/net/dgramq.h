/* Datagrams that wait for something (a way out that is being opened, a name that is being
 * resolved), as copies. Bounded by number and bytes in each queue, and by a budget of bytes that
 * many queues of one thread share. Reaching a bound is a normal loss. */
#pragma once

#include "common/list.h"
#include "net/dgram.h"

struct cv_dgramq_budget {
    size_t used, max; /* bytes, with what each copy costs beside its payload */
};

struct cv_dgramq {
    struct cv_list _items;
    struct cv_dgramq_budget *_budget; /* borrowed (outlives the queue) */
    size_t _bytes, _max_bytes;
    uint32_t _max_n;
    uint32_t n;
};

struct cv_dgramq_item {
    struct cv_list _node;
    struct cv_dgram_out out; /* points into this item */
    struct cv_target _to;
    struct cv_prefix _grant;
    uint8_t _data[];
};

void cv_dgramq_init(struct cv_dgramq *q, uint32_t max_n, size_t max_bytes,
                    struct cv_dgramq_budget *budget);
/* Copy 'm' to the end. 0, CV_E_LIMIT, -EMSGSIZE, -ENOMEM. */
int cv_dgramq_push(struct cv_dgramq *q, const struct cv_dgram_out *m) CV_MUST_CHECK;
/* Take the first out; NULL: it is empty. The caller frees it. */
struct cv_dgramq_item *cv_dgramq_pop(struct cv_dgramq *q);
void cv_dgramq_item_free(struct cv_dgramq_item *item);
/* Drop all. Returns how many there were. */
size_t cv_dgramq_clear(struct cv_dgramq *q);
/* True if 'fn' is true for one that waits. */
bool cv_dgramq_any(const struct cv_dgramq *q, bool (*fn)(void *arg, const struct cv_dgram_out *m),
                   void *arg);
