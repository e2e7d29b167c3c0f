#include "net/dnscache.h"

#include <errno.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hash.h"
#include "common/name.h"

#include "common/poison.h"

#define HEADS_MIN 1024
#define HEADS_MAX 65536

int cv_dnscache_init(struct cv_dnscache *c, size_t max)
{
    *c = (struct cv_dnscache){._max = max, ._n_heads = HEADS_MIN};
    while (c->_n_heads < max && c->_n_heads < HEADS_MAX)
        c->_n_heads *= 2;
    c->_heads = cv_try_zalloc(c->_n_heads * sizeof(c->_heads[0]));
    return c->_heads == NULL ? -ENOMEM : 0;
}

void cv_dnscache_done(struct cv_dnscache *c)
{
    CV_ASSERT(c->n_held == 0 && c->n_flying == 0);
    CV_FREE(c->_heads);
    CV_FREE(c->_heap);
}

struct cv_dnsentry *cv_dnsentry_new(const char *name, enum cv_family family)
{
    size_t len = strlen(name);
    CV_ASSERT(len <= CV_NAME_MAX);
    struct cv_dnsentry *e = cv_try_alloc(sizeof(*e) + len + 1);
    if (e == NULL)
        return NULL;
    *e = (struct cv_dnsentry){.family = (uint8_t)family, .name_len = (uint8_t)len};
    cv_list_init(&e->waiters);
    cv_list_init(&e->due);
    memcpy(e->name, name, len + 1);
    return e;
}

void cv_dnsentry_free(struct cv_dnsentry *e)
{
    if (e == NULL)
        return;
    CV_ASSERT(e->state == CV_DNSENTRY_LOOSE && cv_list_is_empty(&e->waiters));
    cv_free(e->ips);
    cv_free(e);
}

static uint64_t hash_of(const char *name, size_t len, enum cv_family family)
{
    /* The family turns the hash, so that both entries of a name rarely share a bucket. */
    uint64_t h = cv_hash_bytes(cv_hash_process_key(), name, len);
    return family == CV_AF_IP6 ? h >> 32 | h << 32 : h;
}

struct cv_dnsentry *cv_dnscache_find(const struct cv_dnscache *c, const char *name,
                                     enum cv_family family)
{
    size_t len = strlen(name);
    uint64_t h = hash_of(name, len, family);
    struct cv_dnsentry *e = c->_heads[h & (c->_n_heads - 1)];
    while (e != NULL && (e->_hash != h || e->family != family || e->name_len != len ||
                         memcmp(e->name, name, len) != 0))
        e = e->_next;
    return e;
}

void cv_dnscache_add(struct cv_dnscache *c, struct cv_dnsentry *e)
{
    e->_hash = hash_of(e->name, e->name_len, e->family);
    struct cv_dnsentry **head = &c->_heads[e->_hash & (c->_n_heads - 1)];
    e->_next = *head;
    *head = e;
    e->state = CV_DNSENTRY_FLYING;
    c->n_flying++;
}

static void table_remove(struct cv_dnscache *c, struct cv_dnsentry *e)
{
    struct cv_dnsentry **link = &c->_heads[e->_hash & (c->_n_heads - 1)];
    while (*link != e)
        link = &(*link)->_next;
    *link = e->_next;
    e->_next = NULL;
}

static void heap_put(struct cv_dnscache *c, size_t pos, struct cv_dnsentry *e)
{
    c->_heap[pos] = e;
    e->_pos = pos;
}

static void heap_up(struct cv_dnscache *c, size_t pos, struct cv_dnsentry *e)
{
    while (pos > 0) {
        size_t parent = (pos - 1) / 2;
        if (c->_heap[parent]->end_ms <= e->end_ms)
            break;
        heap_put(c, pos, c->_heap[parent]);
        pos = parent;
    }
    heap_put(c, pos, e);
}

static void heap_down(struct cv_dnscache *c, size_t pos, struct cv_dnsentry *e)
{
    for (;;) {
        size_t child = 2 * pos + 1;
        if (child >= c->n_held)
            break;
        if (child + 1 < c->n_held && c->_heap[child + 1]->end_ms < c->_heap[child]->end_ms)
            child++;
        if (c->_heap[child]->end_ms >= e->end_ms)
            break;
        heap_put(c, pos, c->_heap[child]);
        pos = child;
    }
    heap_put(c, pos, e);
}

static void heap_remove(struct cv_dnscache *c, struct cv_dnsentry *e)
{
    size_t pos = e->_pos;
    struct cv_dnsentry *last = c->_heap[--c->n_held];
    if (last == e)
        return;
    /* The last one fills the gap; it may belong above or below it. */
    if (pos > 0 && c->_heap[(pos - 1) / 2]->end_ms > last->end_ms)
        heap_up(c, pos, last);
    else
        heap_down(c, pos, last);
}

static bool heap_has_room(struct cv_dnscache *c)
{
    if (c->n_held < c->_cap)
        return true;
    size_t cap = c->_cap == 0 ? 64 : c->_cap * 2;
    void *p = cv_try_realloc_array(c->_heap, CV_MIN(cap, c->_max), sizeof(c->_heap[0]));
    if (p == NULL)
        return false;
    c->_heap = p;
    c->_cap = CV_MIN(cap, c->_max);
    return true;
}

struct cv_dnsentry *cv_dnscache_hold(struct cv_dnscache *c, struct cv_dnsentry *e, int64_t end_ms)
{
    CV_ASSERT(e->state == CV_DNSENTRY_FLYING);
    struct cv_dnsentry *gone = NULL;
    if (c->n_held > 0 && c->n_held >= c->_max) {
        gone = cv_dnscache_first(c);
        cv_dnscache_drop(c, gone);
    }
    if (c->_max == 0 || !heap_has_room(c)) {
        cv_dnscache_drop(c, e);
        return gone;
    }
    e->end_ms = end_ms;
    e->state = CV_DNSENTRY_HELD;
    c->n_flying--;
    heap_up(c, c->n_held++, e);
    return gone;
}

void cv_dnscache_drop(struct cv_dnscache *c, struct cv_dnsentry *e)
{
    CV_ASSERT(e->state != CV_DNSENTRY_LOOSE);
    table_remove(c, e);
    if (e->state == CV_DNSENTRY_HELD)
        heap_remove(c, e);
    else
        c->n_flying--;
    e->state = CV_DNSENTRY_LOOSE;
}

struct cv_dnsentry *cv_dnscache_first(const struct cv_dnscache *c)
{
    return c->n_held > 0 ? c->_heap[0] : NULL;
}

struct cv_dnsentry *cv_dnscache_any(const struct cv_dnscache *c, size_t *from)
{
    while (c->_heads != NULL && *from < c->_n_heads) {
        if (c->_heads[*from] != NULL)
            return c->_heads[*from];
        (*from)++;
    }
    return NULL;
}
